//go:build unix

package interop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

func TestRedisValuesOfAllSizes(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		c := client(t, options)
		for _, size := range []int{0, 1, 4095, 65537, 4<<20 + 1} {
			want := randomBytes(size)
			require.NoError(t, c.Set(t.Context(), "value", want, 0).Err())
			got, err := c.Get(t.Context(), "value").Bytes()
			require.NoError(t, err)
			requireSame(t, want, got)
		}
		require.Equal(t, redis.Nil, c.Get(t.Context(), "nothing").Err())
	})
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

func TestRedisPublishAndSubscribe(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		c := client(t, options)
		s := c.Subscribe(t.Context(), "news")
		defer s.Close()
		_, err := s.Receive(t.Context()) // confirms the subscription
		require.NoError(t, err)
		const messages = 200
		published := make(chan error, 1)
		go func() {
			for i := range messages {
				if err := c.Publish(t.Context(), "news", i).Err(); err != nil {
					published <- err
					return
				}
			}
			published <- nil
		}()
		for i := range messages {
			m, err := s.ReceiveTimeout(t.Context(), hang.After)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), m.(*redis.Message).Payload)
		}
		require.NoError(t, receive(t, published))

		_, err = s.ReceiveTimeout(t.Context(), 20*time.Millisecond)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, s.Ping(t.Context()))
		pong, err := s.ReceiveTimeout(t.Context(), hang.After)
		require.NoError(t, err)
		require.IsType(t, &redis.Pong{}, pong)
	})
}

func TestRedisBlockingCommands(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		c := client(t, options)
		// Nothing comes, and the server's timeout passes.
		require.Equal(t, redis.Nil, c.BLPop(t.Context(), time.Second, "queue").Err())

		// A value comes while the command waits.
		type popped struct {
			values []string
			err    error
		}
		pop := make(chan popped, 1)
		go func() {
			values, err := c.BLPop(t.Context(), 0, "queue").Result()
			pop <- popped{values, err}
		}()
		require.NoError(t, c.RPush(t.Context(), "queue", "something").Err())
		p := receive(t, pop)
		require.NoError(t, p.err)
		require.Equal(t, []string{"queue", "something"}, p.values)
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

func TestRedisPool(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		options.PoolSize = 8
		c := client(t, options)
		const clients, each = 32, 10
		done := make(chan error, clients)
		for range clients {
			go func() {
				for range each {
					if err := c.Incr(t.Context(), "counter").Err(); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range clients {
			require.NoError(t, receive(t, done))
		}
		n, err := c.Get(t.Context(), "counter").Int()
		require.NoError(t, err)
		require.Equal(t, clients*each, n)
		stats := c.PoolStats()
		require.LessOrEqual(t, stats.TotalConns, uint32(8))
		require.Zero(t, stats.StaleConns, "connections that were taken for dead")
		require.Zero(t, stats.Timeouts)
	})
}

func TestRedisServerThatGoesAwayIsAnError(t *testing.T) {
	overRedis(t, func(t *testing.T, options redis.Options) {
		options.MaxRetries = -1
		c := client(t, options)
		waiting := client(t, options)
		require.NoError(t, waiting.Ping(t.Context()).Err())
		failed := make(chan error, 1)
		go func() { failed <- waiting.BLPop(t.Context(), 0, "queue").Err() }()
		_ = c.ShutdownNoSave(t.Context()).Err() // the answer is the end of the connection
		require.Error(t, receive(t, failed))
	})
}
