//go:build etcd

// etcd takes a minute and a half to compile: make soak runs this.

package interop

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

func TestEtcd(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		config := embed.NewConfig()
		config.Dir, config.LogLevel = t.TempDir(), "panic"
		here := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
		config.ListenPeerUrls, config.ListenClientUrls = here, here
		server, err := embed.StartEtcd(config)
		require.NoError(t, err)
		defer server.Close()
		<-server.Server.ReadyNotify()
		l := n.listen(t)
		service := v3rpc.Server(server.Server, nil, nil)
		go service.Serve(l)
		defer service.Stop()

		dialer := &watchedDialer{Dialer: n.dialer()}
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{l.Addr().String()},
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", addr)
			})},
		})
		require.NoError(t, err)
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), hang.After)
		defer cancel()
		watched := client.Watch(ctx, "key", clientv3.WithPrefix())
		for i := range 100 {
			_, err := client.Put(ctx, fmt.Sprint("key", i), fmt.Sprint(i))
			require.NoError(t, err)
		}
		for seen := 0; seen < 100; {
			w := receive(t, watched)
			require.NoError(t, w.Err())
			seen += len(w.Events)
		}
		got, err := client.Get(ctx, "key", clientv3.WithPrefix())
		require.NoError(t, err)
		require.EqualValues(t, 100, got.Count)
		dialer.requireAll(t, n.carrier(t))
	})
}
