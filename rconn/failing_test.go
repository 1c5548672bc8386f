package rconn_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/rconntest"
	"github.com/ringnet/ringnet/rconn"
)

// failing is an endpoint some of whose calls fail, once now is set.
type failing struct {
	fabric.Endpoint
	calls map[string]bool
	now   atomic.Bool
}

func (e *failing) err(call string) error {
	if e.now.Load() && e.calls[call] {
		return syscall.EIO
	}
	return nil
}

func (e *failing) PostRecv(n int) error {
	if err := e.err("PostRecv"); err != nil {
		return err
	}
	return e.Endpoint.PostRecv(n)
}

func (e *failing) PostSend(wr []fabric.WorkRequest) error {
	if err := e.err("PostSend"); err != nil {
		return err
	}
	return e.Endpoint.PostSend(wr)
}

func (e *failing) Poll(c []fabric.Completion) (int, error) {
	if err := e.err("Poll"); err != nil {
		return 0, err
	}
	return e.Endpoint.Poll(c)
}

func (e *failing) Arm() error {
	if err := e.err("Arm"); err != nil {
		return err
	}
	return e.Endpoint.Arm()
}

func (e *failing) Disconnect() error {
	if err := e.err("Disconnect"); err != nil {
		return err
	}
	return e.Endpoint.Disconnect()
}

// Whichever calls fail, alone or together, Read and Write return an error, Close returns,
// and nothing is left open.
func TestDeviceWhoseCallsFail(t *testing.T) {
	calls := []string{"PostRecv", "PostSend", "Poll", "Arm", "Disconnect"}
	for set := range 1 << len(calls) {
		inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
			l, err := v.Listen(v.any(), 1)
			require.NoError(t, err)
			defer l.Close()
			accepted := started(func() *rconn.Conn {
				ep, err := l.Accept()
				if err != nil {
					return nil
				}
				s, err := rconntest.Server(context.Background(), "rdma", ep, nil)
				if err != nil {
					return nil
				}
				return s
			})
			ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
			require.NoError(t, err)
			bad := &failing{Endpoint: ep, calls: map[string]bool{}}
			for i, call := range calls {
				bad.calls[call] = set>>i&1 == 1
			}
			c, err := rconntest.Client(context.Background(), "rdma", bad, tight)
			require.NoError(t, err)
			s := <-accepted
			require.NotNil(t, s)

			bad.now.Store(true)
			read := started(func() error { _, err := c.Read(make([]byte, 100)); return err })
			write(t, s, "x")
			wrote := started(func() error { return writeUntilError(c) })
			time.Sleep(time.Minute)
			_ = s.Close()
			_ = c.Close()
			require.NotNil(t, <-wrote)
			if err := <-read; err != nil {
				require.NotErrorIs(t, err, syscall.EPROTO, "%v", bad.calls)
			}
			time.Sleep(time.Minute)
			require.Zero(t, len(v.Endpoints()), "%v", bad.calls)
		})
	}
}

// A failure at any step of the set-up is an error at this end and a refusal at the other,
// and leaves nothing open.
func TestSetUpThatFailsIsAnErrorAtBothEnds(t *testing.T) {
	broken := syscall.ENOMEM
	for _, side := range []string{"dialer", "listener"} {
		for name, faults := range map[string]func(mine func(*sim.Endpoint) bool) sim.Faults{
			"Open": func(mine func(*sim.Endpoint) bool) sim.Faults {
				return sim.Faults{Open: func(e *sim.Endpoint) error {
					if mine(e) {
						return broken
					}
					return nil
				}}
			},
			"Register": func(mine func(*sim.Endpoint) bool) sim.Faults {
				return sim.Faults{Register: func(e *sim.Endpoint, _ int) error {
					if mine(e) {
						return broken
					}
					return nil
				}}
			},
		} {
			t.Run(side+" "+name, func(t *testing.T) {
				inVirtualTime(t, wan, func(t *testing.T, v simVenue) {
					l, err := v.Listen(v.any(), 1)
					require.NoError(t, err)
					defer l.Close()
					v.SetFaults(faults(func(e *sim.Endpoint) bool { return (e.LocalAddr() == l.Addr()) == (side == "listener") }))
					_, _, err = v.connectTo(l, nil, nil)
					if side == "dialer" {
						require.ErrorIs(t, err, broken)
					} else {
						require.ErrorIs(t, err, syscall.ECONNREFUSED)
						require.ErrorContains(t, err, broken.Error())
					}
				})
			})
		}
	}
}
