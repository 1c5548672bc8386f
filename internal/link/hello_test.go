package link

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// badHello is a change of a good request or answer into one that is refused.
type badHello struct {
	says   string
	change func(b []byte, typ credit.Record) []byte
}

// badHellos are some. Package wire has the others.
var badHellos = map[string]badHello{
	"nothing":      {says: "are not ringnet's", change: func([]byte, credit.Record) []byte { return nil }},
	"garbage":      {says: "are not ringnet's", change: func([]byte, credit.Record) []byte { return []byte("GET / HTTP/1.1\r\n") }},
	"version 2":    {says: "version 2 of the ringnet protocol was offered, and the side that refuses it speaks version 3", change: put(5, 2)},
	"a resumption": {says: "about a link to be taken up again", change: put(6, 0x80)},
	"no record":    {says: "record of type 0", change: func(b []byte, _ credit.Record) []byte { return b[:wire.HelloSize] }}, // padded by the connection manager
	"6 receives":   {says: "6 receives", change: put(11, 6)},
	"stream 1":     {says: "for stream 1 in a", change: put(15, 1)},
	"a small ring": {says: "ring of 2048 bytes", change: put(28, 0, 0, 8, 0)},
	"the other's record": {says: "for stream 0 in a", change: func(b []byte, typ credit.Record) []byte {
		b[12] = byte(credit.OpenRecord + credit.AcceptRecord - typ)
		return b
	}},
	"a record of a link that is": {says: "GOAWAY for stream 0 in a", change: func(b []byte, _ credit.Record) []byte {
		wire.Record{Type: credit.GoAwayRecord}.Put(b[wire.HelloSize:])
		return b
	}},
}

// put puts bytes in the place of others.
func put(at int, bytes ...byte) func(b []byte, typ credit.Record) []byte {
	return func(b []byte, _ credit.Record) []byte {
		copy(b[at:], bytes)
		return b
	}
}

func TestHandshakeRefusesABadHelloWithTheReason(t *testing.T) {
	for name, bad := range badHellos {
		for _, typ := range []credit.Record{credit.OpenRecord, credit.AcceptRecord} {
			t.Run(name+" with "+typ.String(), func(t *testing.T) {
				onNetwork(t, sim.Link{}, func(t *testing.T, n *sim.Network, l fabric.Listener) { bad.requireRefused(t, n, l, typ) })
			})
		}
	}
}

// requireRefused requires that this side refuses such a request, or such an answer.
func (bad badHello) requireRefused(t *testing.T, n *sim.Network, l fabric.Listener, typ credit.Record) {
	cfg := testConfig
	hello := func(ep fabric.Endpoint) []byte { return bad.change(openRaw(t, ep).hello(typ), typ) }
	served := accepting(l, func(ep fabric.Endpoint) error {
		if typ == credit.AcceptRecord {
			defer ep.Close()
			return ep.Accept(t.Context(), hello(ep))
		}
		_, _, err := Accept(t.Context(), ep, cfg)
		return err
	})
	ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	var refused, told error
	if typ == credit.OpenRecord {
		_, told = ep.Connect(t.Context(), hello(ep))
		refused = <-served
		require.NoError(t, ep.Close())
	} else {
		_, refused = Dial(t.Context(), ep, cfg)
		told = <-served
	}
	require.ErrorIs(t, refused, syscall.EPROTO)
	require.ErrorContains(t, refused, bad.says)
	var reject *fabric.RejectError
	require.ErrorAs(t, told, &reject)
	require.Equal(t, fabric.RejectConsumer, reject.Reason)
	reason := wire.DecodeReject(reject.Private).Reason
	require.Contains(t, reason, bad.says)
	require.NotContains(t, reason, "peer", "as whoever reads it is called")
}

// Until a proof has come back nobody knows whose link it is: all that the side that dialed
// says is said for a stream.
func TestALinkThatIsToBeProvedSaysNothingUnasked(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := testConfig
		cfg.Proof = &Proof{
			Port:    80,
			Connect: func() error { return nil },
			Verify:  func(context.Context, <-chan struct{}) error { return nil },
		}
		c, s, _ := connectLink(t, n, cfg, cfg)
		time.Sleep(cfg.KeepAlive / 2)
		c.link.lock()
		require.Zero(t, c.link.m.Stats().WorkRequests)
		c.link.unlock()
		endAll(t, n, c, s)
	})
}
