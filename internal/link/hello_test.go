package link

import (
	"context"
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

// badHellos change a good request or answer into one that is refused. Package wire has the others.
var badHellos = map[string]struct {
	change func(b []byte, typ credit.Record) []byte
	says   string
}{
	"nothing":      {func([]byte, credit.Record) []byte { return nil }, "are not ringnet's"},
	"garbage":      {func([]byte, credit.Record) []byte { return []byte("GET / HTTP/1.1\r\n") }, "are not ringnet's"},
	"version 2":    {func(b []byte, _ credit.Record) []byte { b[5] = 2; return b }, "version 2 of the ringnet protocol was offered, and the side that refuses it speaks version 3"},
	"a resumption": {func(b []byte, _ credit.Record) []byte { b[6] |= 0x80; return b }, "about a link to be taken up again"},
	"no record":    {func(b []byte, _ credit.Record) []byte { return b[:wire.HelloSize] }, "record of type 0"}, // padded by the connection manager
	"6 receives":   {func(b []byte, _ credit.Record) []byte { b[11] = 6; return b }, "6 receives"},
	"stream 1":     {func(b []byte, _ credit.Record) []byte { b[15] = 1; return b }, "for stream 1 in a"},
	"a small ring": {func(b []byte, _ credit.Record) []byte { binary.BigEndian.PutUint32(b[28:], 2048); return b }, "ring of 2048 bytes"},
	"the other's record": {func(b []byte, typ credit.Record) []byte {
		b[12] = byte(credit.OpenRecord + credit.AcceptRecord - typ)
		return b
	}, "for stream 0 in a"},
	"a record of a link that is": {func(b []byte, _ credit.Record) []byte {
		wire.Record{Type: credit.GoAwayRecord}.Put(b[wire.HelloSize:])
		return b
	}, "GOAWAY for stream 0 in a"},
}

func TestHandshakeRefusesABadHelloWithTheReason(t *testing.T) {
	for name, bad := range badHellos {
		for typ, serves := range map[credit.Record]bool{credit.OpenRecord: false, credit.AcceptRecord: true} {
			t.Run(name+" with "+typ.String(), func(t *testing.T) {
				onNetwork(t, func(t *testing.T, n *sim.Network, l fabric.Listener) {
					hello := func(ep fabric.Endpoint) []byte { return bad.change(openRaw(t, ep).hello(typ), typ) }
					served := accepting(l, func(ep fabric.Endpoint) error {
						if serves {
							defer ep.Close()
							return ep.Accept(t.Context(), hello(ep))
						}
						_, _, err := Accept(t.Context(), ep, testConfig)
						return err
					})
					ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
					require.NoError(t, err)
					var refused, told error
					if serves {
						_, refused = Dial(t.Context(), ep, testConfig)
						told = <-served
					} else {
						_, told = ep.Connect(t.Context(), hello(ep))
						refused = <-served
						require.NoError(t, ep.Close())
					}
					require.ErrorIs(t, refused, syscall.EPROTO)
					require.ErrorContains(t, refused, bad.says)
					var reject *fabric.RejectError
					require.ErrorAs(t, told, &reject)
					require.Equal(t, fabric.RejectConsumer, reject.Reason)
					reason := wire.DecodeReject(reject.Private).Reason
					require.Contains(t, reason, bad.says)
					require.NotContains(t, reason, "peer", "as whoever reads it is called")
				})
			})
		}
	}
}

func TestHandshakeHasATimeLimit(t *testing.T) {
	silent := netip.MustParseAddrPort("10.0.0.2:1")
	for name, fails := range map[string]func(t *testing.T, n *sim.Network, l fabric.Listener) (time.Duration, error){
		"no answer": func(t *testing.T, n *sim.Network, _ fabric.Listener) (time.Duration, error) {
			ep, err := n.Dial(t.Context(), netip.AddrPort{}, silent)
			require.NoError(t, err)
			_, err = Dial(t.Context(), ep, testConfig)
			return testConfig.HandshakeTimeout, err
		},
		"no confirmation": func(t *testing.T, n *sim.Network, l fabric.Listener) (time.Duration, error) {
			served := accepting(l, func(ep fabric.Endpoint) error {
				_, _, err := Accept(t.Context(), ep, testConfig)
				return err
			})
			ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
			require.NoError(t, err)
			defer ep.Close()
			_, err = ep.Connect(t.Context(), openRaw(t, ep).hello(credit.OpenRecord))
			require.NoError(t, err)
			return testConfig.HandshakeTimeout, <-served
		},
		"a context that ends before": func(t *testing.T, n *sim.Network, _ fabric.Listener) (time.Duration, error) {
			ep, err := n.Dial(t.Context(), netip.AddrPort{}, silent)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = Dial(ctx, ep, testConfig)
			return time.Second, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onNetwork(t, func(t *testing.T, n *sim.Network, l fabric.Listener) {
				n.Blackhole(silent.Addr())
				began := time.Now()
				after, err := fails(t, n, l)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, after, time.Since(began))
			})
		})
	}
}
