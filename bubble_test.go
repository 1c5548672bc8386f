package ringnet

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestInABubble does what docs/migrate.md says of testing/synctest, over shared memory: where
// goroutines wait for sockets, time stands still in a bubble, so that no timer helps a link along.
func TestInABubble(t *testing.T) {
	onlySHM(t)
	for _, network := range []string{"auto", "shm"} {
		for name, tt := range map[string]struct {
			cfg *Config
			end func()
		}{
			"CloseIdleLinks": {nil, CloseIdleLinks},
			"LinkIdle":       {&Config{LinkIdle: -1}, func() {}},
			"Dedicated":      {&Config{Dedicated: true}, func() {}},
		} {
			t.Run(network+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l, err := (&ListenConfig{Config: tt.cfg}).Listen(t.Context(), network, "127.0.0.1:0")
					require.NoError(t, err)
					for range 3 {
						connectInABubble(t, Dialer{Config: tt.cfg}, l)
					}
					require.NoError(t, l.Close())
					tt.end()
				})
			})
		}
	}
}

// TestThereIsNoRDMAInABubble: the process's goroutines would use what the bubble has made.
func TestThereIsNoRDMAInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := Listen("rdma", "127.0.0.1:0")
		require.ErrorContains(t, err, "RDMA in a bubble")
		_, err = Dial("rdma", "127.0.0.1:1")
		require.ErrorContains(t, err, "RDMA in a bubble")
	})
}

// TestInABubbleAndOutside uses links to one listener outside of a bubble, in it, and outside again.
func TestInABubbleAndOutside(t *testing.T) {
	onlySHM(t)
	for _, network := range []string{"auto", "shm"} {
		t.Run(network, func(t *testing.T) {
			l, err := Listen(network, "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			go echoEach(l)
			use := func(t *testing.T) {
				for range 3 {
					c, err := Dial(network, l.Addr().String())
					require.NoError(t, err)
					require.NoError(t, c.SetDeadline(time.Now().Add(time.Hour)))
					write(t, c, "hello")
					requireNext(t, c, "hello")
					require.NoError(t, c.Close())
				}
			}
			for range 3 {
				use(t)
				synctest.Test(t, func(t *testing.T) {
					use(t)
					CloseIdleLinks()
				})
			}
		})
	}
}

// connectInABubble dials, exchanges some bytes, and returns when Close has at both ends.
func connectInABubble(t *testing.T, d Dialer, l net.Listener) {
	c, err := d.Dial(networkOf(l), l.Addr().String())
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	closed := make(chan error)
	go func() {
		_, err := s.Read(make([]byte, 5))
		if err == nil {
			_, err = s.Write([]byte("world"))
		}
		_, _ = s.Read(make([]byte, 1)) // the end
		_ = s.Close()
		closed <- err
	}()
	write(t, c, "hello")
	requireNext(t, c, "world")
	require.NoError(t, c.Close())
	require.NoError(t, <-closed)
}

// networkOf returns the network that l listens on.
func networkOf(l net.Listener) string {
	if _, ok := l.(*AutoListener); ok {
		return "auto"
	}
	return l.Addr().Network()
}

// echoEach sends back what comes on each connection that l accepts, until l is closed.
func echoEach(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}
