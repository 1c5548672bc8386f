//go:build linux && cgo

package ud

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Hostile peers of the connection manager: any host that can reach the port by RDMA may
// send any request.

// maxServiceData is how many bytes of private data an SIDR REQ has room for, behind those of
// the connection manager itself.
const maxServiceData = 216 - 36

// bystanders are a sender and a receiver that know each other, and an endpoint to attack
// them.
type bystanders struct {
	a, b    packets
	handle  *addressHandle
	hostile packets
}

func openBystanders(t *testing.T) bystanders {
	t.Helper()
	warm := openPackets(t, 16) // the connection manager, and its threads
	warm.to(t, warm).Close()
	require.NoError(t, warm.Close())
	leavesNothing(t)
	s := bystanders{a: openPackets(t, 16), b: openPackets(t, 16), hostile: openPackets(t, 16)}
	s.handle = s.a.to(t, s.b)
	t.Cleanup(s.handle.Close)
	return s
}

// requireUnharmed requires that both still work, and that the receiver is found at the
// first try.
func (s bystanders) requireUnharmed(t *testing.T) {
	t.Helper()
	require.Equal(t, fabric.OK, s.a.send(s.handle, "hello"))
	require.Equal(t, "hello", s.b.next(t))
	again := s.a.to(t, s.b)
	defer again.Close()
	require.Equal(t, fabric.OK, s.a.send(again, "again"))
	require.Equal(t, "again", s.b.next(t))
}

// requireRejected requires that a request is answered, with a rejection.
func requireRejected(t *testing.T, id *rdmacore.ID, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang.After)
	defer cancel()
	_, err := awaitService(ctx, id, nil)
	require.ErrorAs(t, err, new(*fabric.RejectError), what)
}

// A message that is no request is rejected.
func TestDatagramsSurviveNonsense(t *testing.T) {
	s := openBystanders(t)
	asks := request{ID: 7}.append(nil)
	changed := func(i int, b byte) []byte {
		c := append([]byte(nil), asks...)
		c[i] = b
		return c
	}
	for name, private := range map[string][]byte{
		"nothing":               nil,
		"one byte":              asks[:1],
		"all but the magic":     asks[1:],
		"as long as can be":     make([]byte, maxServiceData),
		"no magic":              changed(0, 0),
		"another version":       changed(1, 2),
		"another kind":          changed(2, 3),
		"a kind far from those": changed(2, 0xff),
		"an ask with a port":    changed(13, 1),
		"a watch of no port":    changed(2, byte(watchKind)),
	} {
		e, err := s.hostile.sendRequest(context.Background(), netip.AddrPort{}, s.b.local, private)
		require.NoError(t, err, name)
		requireRejected(t, e, name)
		require.NoError(t, e.Close())
	}
	s.requireUnharmed(t)
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	require.Empty(t, s.b.requests)
}

// Requests without the other of their sender, however many, are bounded, and a sender
// that tries after them succeeds.
func TestDatagramsSurviveFloodsOfRequests(t *testing.T) {
	for name, r := range map[string]request{
		"watches": {Kind: watchKind, Port: 1},
		"asks":    {Kind: askKind},
	} {
		t.Run(name, func(t *testing.T) {
			s := openBystanders(t)
			const flood = 1000
			flooded := make(chan error, 1)
			var all []*rdmacore.ID
			go func() {
				for i := range flood {
					r.ID = uint64(i)
					e, err := s.hostile.request(context.Background(), s.b.local, r)
					if err != nil {
						flooded <- err
						return
					}
					all = append(all, e)
				}
				flooded <- nil
			}()
			found, tries := 0, 0
			var err error
			for under := true; under; {
				select {
				case err = <-flooded:
					under = false
				default:
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					h, err := s.a.Resolve(ctx, s.b.local)
					cancel()
					tries++
					if err == nil {
						found++
						h.Close()
					}
					require.Equal(t, fabric.OK, s.a.send(s.handle, "meanwhile"))
					require.Equal(t, "meanwhile", s.b.next(t))
				}
			}
			for _, e := range all {
				t.Cleanup(func() { _ = e.Close() })
			}
			require.NoError(t, err)
			t.Logf("the receiver was found in %d of %d tries", found, tries)
			// Of a burst, the listener takes as many as its backlog holds, and what is answered came behind them.
			s.a.to(t, s.b).Close()
			s.requireUnharmed(t)
			s.b.mu.Lock()
			require.LessOrEqual(t, len(s.b.requests), maxRequests)
			s.b.mu.Unlock()
		})
	}
}

// idOf is the number of the requests of a handle.
func (p packets) idOf(h *addressHandle) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, other := range p.handles {
		if other == h {
			return id
		}
	}
	return 0
}

// A handle ends by a notice only if that has its number, which only its receiver knows,
// and comes from the receiver's address.
func TestDatagramsSurviveNoticesOfOthers(t *testing.T) {
	s := openBystanders(t)
	notice := func(p packets, to netip.AddrPort, id uint64) {
		e, err := p.request(context.Background(), to, request{Kind: endedKind, ID: id})
		require.NoError(t, err)
		defer e.Close()
		requireRejected(t, e, "a notice")
	}
	id := s.a.idOf(s.handle)
	for i := range 100 {
		notice(s.hostile, s.a.local, uint64(i))
	}
	for i := range 64 {
		notice(s.hostile, s.a.local, id^1<<i)
	}
	require.False(t, s.handle.gone.Load())
	s.requireUnharmed(t)

	t.Run("FromAnotherAddress", func(t *testing.T) {
		addr6, err := netip.ParseAddr(os.Getenv("SOFTROCE_ADDR6"))
		if err != nil {
			t.Skip("the device has no IPv6 address")
		}
		everywhere := openPacketsAt(t, netip.Addr{}, 16)
		h := everywhere.to(t, s.b)
		defer h.Close()
		elsewhere := openPacketsAt(t, addr6, 16)
		notice(elsewhere, netip.AddrPortFrom(addr6, everywhere.local.Port()), everywhere.idOf(h))
		require.False(t, h.gone.Load())
		require.Equal(t, fabric.OK, everywhere.send(h, "hello"))
		require.Equal(t, "hello", s.b.next(t))
		notice(s.b, netip.AddrPortFrom(s.b.local.Addr(), everywhere.local.Port()), everywhere.idOf(h))
		require.True(t, h.gone.Load(), "and so the notice was one")
	})
}
