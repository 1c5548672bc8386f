//go:build unix

package interop

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/programs"
)

// overRedis runs a test with options for clients that reach a redis-server over each
// network.
func overRedis(t *testing.T, test func(t *testing.T, options redis.Options)) {
	overEachNetwork(t, func(t *testing.T, n network) {
		socket := filepath.Join(t.TempDir(), "redis")
		programs.StartRedis(t, "--port", "0", "--unixsocket", socket)
		l := n.listen(t)
		forward(t, l, "unix", socket)
		test(t, redis.Options{Addr: l.Addr().String(), Dialer: n.dialer().DialContext, ReadTimeout: hang.After})
	})
}

// client makes a client that is closed at the end of the test.
func client(t *testing.T, options redis.Options) *redis.Client {
	t.Helper()
	c := redis.NewClient(&options)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRedisPipelinesAndTransactions(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		c := client(t, options)
		const commands = 10_000
		for name, run := range map[string]func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error){
			"pipeline": c.Pipelined, "transaction": c.TxPipelined,
		} {
			replies, err := run(t.Context(), func(p redis.Pipeliner) error {
				for range commands {
					p.Incr(t.Context(), name)
				}
				return nil
			})
			require.NoError(t, err)
			require.Len(t, replies, commands)
			for i, r := range replies {
				require.EqualValues(t, i+1, r.(*redis.IntCmd).Val())
			}
		}
	})
}

func TestRedisClientTimesOutAndWorksOn(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		options.ContextTimeoutEnabled = true
		options.MaxRetries = -1
		c := client(t, options)
		require.NoError(t, c.Ping(t.Context()).Err())
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := c.BLPop(ctx, 0, "queue").Err()
		var timeout net.Error
		require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
		require.NoError(t, c.Ping(t.Context()).Err())
	})
}
