//go:build unix

package interop

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	coder "github.com/coder/websocket"
	gorilla "github.com/gorilla/websocket"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/soheilhy/cmux"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// serveSSH answers each command with the command.
func serveSSH(t *testing.T) (network, address string) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	require.NoError(t, err)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	return serveEach(t, func(c net.Conn) {
		_, channels, requests, err := ssh.NewServerConn(c, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for asked := range channels {
			channel, requests, err := asked.Accept()
			if err != nil {
				return
			}
			for r := range requests {
				var command struct{ Text string }
				_ = ssh.Unmarshal(r.Payload, &command)
				_ = r.Reply(true, nil)
				_, _ = io.WriteString(channel, command.Text)
				_, _ = channel.SendRequest("exit-status", false, make([]byte, 4))
				_ = channel.Close()
			}
		}
	})
}

// serveEach serves each connection of a TCP listener, until the end of the test.
func serveEach(t *testing.T, serve func(c net.Conn)) (network, address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveOn(t, l, serve)
	return "tcp", l.Addr().String()
}

func talkSSH(t *testing.T, dialer *watchedDialer, addr string) {
	config := &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	conn, err := dialer.Dial("tcp", addr)
	require.NoError(t, err)
	c, channels, requests, err := ssh.NewClientConn(conn, addr, config)
	require.NoError(t, err)
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	require.NoError(t, err)
	out, err := session.Output("say it")
	require.NoError(t, err)
	require.Equal(t, "say it", string(out))
}

// serveWebSocket sends back what comes.
func serveWebSocket(t *testing.T) (network, address string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := coder.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return "tcp", s.Listener.Addr().String()
}

func talkCoderWebSocket(t *testing.T, dialer *watchedDialer, addr string) {
	transport := &http.Transport{DialContext: dialer.DialContext}
	c, _, err := coder.Dial(t.Context(), "ws://"+addr, &coder.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	require.NoError(t, err)
	defer c.CloseNow()
	require.NoError(t, c.Write(t.Context(), coder.MessageText, []byte("hello")))
	_, b, err := c.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
	require.NoError(t, c.Close(coder.StatusNormalClosure, ""))
}

func talkGorillaWebSocket(t *testing.T, dialer *watchedDialer, addr string) {
	ws := &gorilla.Dialer{NetDialContext: dialer.DialContext}
	c, resp, err := ws.DialContext(t.Context(), "ws://"+addr, nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	defer c.Close()
	require.NoError(t, c.WriteMessage(gorilla.TextMessage, []byte("hello")))
	_, b, err := c.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
}

const procedure = "/say.Say/Say"

func serveConnect(t *testing.T) (network, address string) {
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, func(_ context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		return connect.NewResponse(r.Msg), nil
	}))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return "tcp", s.Listener.Addr().String()
}

func talkConnect(t *testing.T, dialer *watchedDialer, addr string) {
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	c := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](&http.Client{Transport: transport}, "http://"+addr+procedure)
	r, err := c.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("hello")))
	require.NoError(t, err)
	require.Equal(t, "hello", r.Msg.Value)
}

// serveObjects stands in for a store of objects: the content of each is its name.
func serveObjects(t *testing.T) (network, address string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(r.URL.Path))
	}))
	t.Cleanup(s.Close)
	return "tcp", s.Listener.Addr().String()
}

func talkMinio(t *testing.T, dialer *watchedDialer, addr string) {
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	c, err := minio.New(addr, &minio.Options{Transport: transport, Region: "here", Creds: credentials.NewStaticV4("key", "secret", "")})
	require.NoError(t, err)
	o, err := c.GetObject(t.Context(), "bucket", "object", minio.GetObjectOptions{})
	require.NoError(t, err)
	defer o.Close()
	b, err := io.ReadAll(o)
	require.NoError(t, err)
	require.Equal(t, "/bucket/object", string(b))
}

// A client of Kafka dials the brokers that the first one names, so these have to listen on ringnet
// themselves: kfake is Kafka's protocol in memory.
func TestKafka(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		dialer := &watchedDialer{Dialer: n.dialer()}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(3, "topic"),
			kfake.ListenFn(func(_, _ string) (net.Listener, error) { return ringnet.Listen(n.name, net.JoinHostPort(n.host, "0")) }))
		require.NoError(t, err)
		defer cluster.Close()
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(dialer.DialContext), kgo.ConsumeTopics("topic"), kgo.DefaultProduceTopic("topic"))
		require.NoError(t, err)
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), hang.After)
		defer cancel()
		const records = 100
		for i := range records {
			require.NoError(t, client.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr())
		}
		for got := 0; got < records; {
			fetched := client.PollFetches(ctx)
			require.NoError(t, fetched.Err())
			got += fetched.NumRecords()
		}
		dialer.requireAll(t, n.carrier(t))
	})
}

// streamLayer is all that raft.NewNetworkTransport wants of a network.
type streamLayer struct {
	net.Listener
	dialer *watchedDialer
}

func (s streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.dialer.DialContext(ctx, "tcp", string(addr))
}

func TestRaft(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		dialer := &watchedDialer{Dialer: n.dialer()}
		var peers raft.Configuration
		var nodes []*raft.Raft
		var stores []*raft.InmemStore
		var transports []*raft.NetworkTransport
		for i := range 3 {
			transport := raft.NewNetworkTransport(streamLayer{n.listen(t), dialer}, 3, hang.After, io.Discard)
			defer transport.Close()
			transports, stores = append(transports, transport), append(stores, raft.NewInmemStore())
			peers.Servers = append(peers.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(i)), Address: transport.LocalAddr()})
		}
		applied := make(chan string, 1000)
		for i := range 3 {
			config := raft.DefaultConfig()
			config.LocalID, config.Logger = peers.Servers[i].ID, hclog.NewNullLogger()
			snapshots := raft.NewInmemSnapshotStore()
			require.NoError(t, raft.BootstrapCluster(config, stores[i], stores[i], snapshots, transports[i], peers))
			node, err := raft.NewRaft(config, machine{applied}, stores[i], stores[i], snapshots, transports[i])
			require.NoError(t, err)
			defer func() { require.NoError(t, node.Shutdown().Error()) }()
			nodes = append(nodes, node)
		}
		for {
			for _, node := range nodes {
				if node.State() == raft.Leader && node.Apply([]byte("done"), hang.After).Error() == nil {
					for range nodes {
						require.Equal(t, "done", receive(t, applied))
					}
					dialer.requireAll(t, n.carrier(t))
					return
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// machine is a state machine that tells what is applied to it.
type machine struct{ applied chan<- string }

func (m machine) Apply(l *raft.Log) any {
	m.applied <- string(l.Data)
	return nil
}

func (machine) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.ErrUnsupported }
func (machine) Restore(io.ReadCloser) error         { return errors.ErrUnsupported }

// cmux looks at what arrives before it decides whose it is.
func TestCmux(t *testing.T) {
	overEachNetwork(t, func(t *testing.T, n network) {
		l := n.listen(t)
		m := cmux.New(l)
		web, others := m.Match(cmux.HTTP1Fast()), m.Match(cmux.Any())
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })}
		go s.Serve(web)
		serveOn(t, others, func(c net.Conn) { _, _ = io.Copy(c, c) })
		go m.Serve()
		defer m.Close()
		talkHTTP(t, &watchedDialer{Dialer: n.dialer()}, l.Addr().String())
		c := n.dial(t, l)
		_, err := c.Write([]byte("something else"))
		require.NoError(t, err)
		b := make([]byte, len("something else"))
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, "something else", string(b))
	})
}
