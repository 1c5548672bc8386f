package link

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// witness is a fabric whose dialer notes what its queue pair receives.
type witness struct {
	fabric.Fabric
	received []fabric.Completion
}

type witnessEndpoint struct {
	fabric.Endpoint
	w *witness
}

func (w *witness) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	ep, err := w.Fabric.Dial(ctx, local, remote)
	return witnessEndpoint{ep, w}, err
}

func (e witnessEndpoint) Poll(c []fabric.Completion) (int, error) {
	n, err := e.Endpoint.Poll(c)
	for _, wc := range c[:n] {
		if wc.Recv {
			wc.ID, wc.Data = 0, bytes.Clone(wc.Data)
			e.w.received = append(e.w.received, wc)
		}
	}
	return n, err
}

// Why the end of a process is never the end of a stream: what its peer has received, down to
// the last completion, is the same whether the process had written more or not. No flag of a
// message and no count of messages could tell, for all had left before.
func TestTheEndOfAProcessDoesNotTellWhetherBytesAreMissing(t *testing.T) {
	writes := func(pending int) func(t *testing.T, s *Stream) {
		return func(t *testing.T, s *Stream) {
			require.NoError(t, writeAll(s, []byte("!")), "it is accepted")
			require.Equal(t, pending, s.ledger.Pending())
		}
	}
	var whole *witness
	for _, c := range []struct {
		name string
		held bool // the device has not told yet that the first messages have arrived
		more func(t *testing.T, s *Stream)
	}{
		{"nothing is missing", false, func(*testing.T, *Stream) {}},
		{"a byte waits to go together with more", true, writes(1)},
		{"a byte is posted, and has not left", false, writes(0)},
		{"the end of CloseWrite is posted, and has not left", false, func(t *testing.T, s *Stream) {
			require.NoError(t, s.CloseWrite())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{Latency: time.Millisecond, Bandwidth: 1 << 20})
				w := &witness{Fabric: n}
				reader, s, _ := connectLink(t, w, testConfig, testConfig)
				ep := s.link.ep.(*sim.Endpoint)
				ep.HoldSends(c.held)
				all := strings.Repeat("-", s.link.send.slots.Depth()-credit.LinkControlSends)
				for i := range all {
					require.NoError(t, writeAll(s, []byte(all[i:i+1])))
				}
				time.Sleep(time.Second)
				c.more(t, s)
				ep.Kill()
				got, err := readAll(reader)
				require.Equal(t, all, string(got))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				if whole == nil {
					whole = w
				}
				require.Equal(t, whole.received, w.received)
				ep.HoldSends(false)
				endAll(t, n, reader, s)
			})
		})
	}
}
