//go:build linux

package integration_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/wire"
)

// Private data of peers that are not ringnet's.
var (
	noRingnet    = []byte("GET / HTTP/1.0\r\n\r\n, and that is no hello")
	otherVersion = func() []byte {
		b := greeting(wire.OpenRecord, 4096)
		binary.BigEndian.PutUint16(b[4:], wire.Version+1)
		return b
	}()
	noRing = greeting(wire.OpenRecord, 4096+1)
)

// greeting returns the private data of a request, or of an answer, with a ring of the given
// size at no address.
func greeting(t wire.RecordType, ring int) []byte {
	b := append(wire.Hello{Receives: 4}.Append(nil), make([]byte, wire.RecordSize)...)
	wire.Record{Type: t, Ring: wire.RingPlace{Size: ring}}.Put(b[wire.HelloSize:])
	return b
}

// strangers are such private data, and the reason of their refusal.
var strangers = map[string]struct {
	hello []byte
	says  string
}{
	"wrong magic":   {noRingnet, "are not ringnet's"},
	"nothing":       {nil, "are not ringnet's"},
	"wrong version": {otherVersion, "version 3 of the ringnet protocol was offered"},
	"wrong ring":    {noRing, "ring of 4097 bytes"},
}

func TestListenerRefusesAStrangerWithTheReasonAndGoesOn(t *testing.T) {
	l := listen(t, ringnet.ListenConfig{})
	for name, s := range strangers {
		t.Run(name, func(t *testing.T) {
			_, err := rawDial(t.Context(), l.Addr(), s.hello)
			var reject *fabric.RejectError
			require.ErrorAs(t, err, &reject)
			require.Equal(t, fabric.RejectConsumer, reject.Reason)
			require.Contains(t, wire.DecodeReject(reject.Private).Reason, s.says)

			c, err := ringnet.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			requireEcho(t, c, accept(t, l))
		})
	}
}

func TestDialerRefusesAStrangerWithTheReason(t *testing.T) {
	for name, s := range strangers {
		t.Run(name, func(t *testing.T) {
			addr, answered := rawListen(t, func(ctx context.Context, ep fabric.Endpoint) error {
				return ep.Accept(ctx, s.hello)
			})
			_, err := ringnet.Dial("rdma", addr)
			requireOpError(t, err, "dial", addr, syscall.EPROTO)
			require.ErrorContains(t, err, s.says)
			// The listener gets the reason, too.
			var reject *fabric.RejectError
			require.ErrorAs(t, <-answered, &reject)
			require.Contains(t, wire.DecodeReject(reject.Private).Reason, s.says)
		})
	}
}

func TestDialerRepeatsTheReasonOfARefusal(t *testing.T) {
	for says, private := range map[string][]byte{
		"not on a Sunday":                   wire.Reject{Reason: "not on a Sunday"}.Append(nil),
		"it may not be a ringnet listener":  []byte("whatever this is"),
		"no reason given":                   nil,
		"?[31m":                             wire.Reject{Reason: "\x1b[31m"}.Append(nil),
		"the peer speaks version 7 of that": append([]byte{0x72, 0x4e, 0x45, 0x54, 0, 7, 0, 33}, "the peer speaks version 7 of that"...),
	} {
		addr, answered := rawListen(t, func(_ context.Context, ep fabric.Endpoint) error { return ep.Reject(private) })
		_, err := ringnet.Dial("rdma", addr)
		requireOpError(t, err, "dial", addr, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, says)
		require.NoError(t, <-answered)
	}
}

func TestListenerThatAcceptsAndDiesIsAReset(t *testing.T) {
	addr, answered := rawListen(t, func(ctx context.Context, ep fabric.Endpoint) error {
		if err := ep.Accept(ctx, greeting(wire.AcceptRecord, 4096)); err != nil {
			return err
		}
		return ep.Disconnect()
	})
	c, err := ringnet.Dial("rdma", addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, <-answered)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// rawOptions are enough for a handshake.
var rawOptions = fabric.Options{SendQueue: 16, RecvQueue: 16, RecvSize: 24, Sends: 16, AckTimeout: time.Second, Retries: 6}

// rawDial requests a connection with the given private data, and returns the answer.
func rawDial(ctx context.Context, addr net.Addr, hello []byte) (answer []byte, err error) {
	f, err := verbs.Fabric()
	if err != nil {
		return nil, err
	}
	ep, err := f.Dial(ctx, netip.AddrPort{}, addr.(ringnet.Addr).AddrPort())
	if err != nil {
		return nil, err
	}
	defer ep.Close()
	if _, err := ep.Open(rawOptions); err != nil {
		return nil, err
	}
	return ep.Connect(ctx, hello)
}

// rawListen answers one request for a connection to the address that it returns, and sends
// the result. Then it closes the endpoint and the listener.
func rawListen(t testing.TB, answer func(context.Context, fabric.Endpoint) error) (addr string, result <-chan error) {
	t.Helper()
	ip, err := netip.ParseAddr(rdmaAddr(t))
	require.NoError(t, err)
	f, err := verbs.Fabric()
	require.NoError(t, err)
	l, err := f.Listen(netip.AddrPortFrom(ip, 0), 1)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	done := make(chan error, 1)
	go func() {
		err := rawAnswer(l, answer)
		l.Close()
		done <- err
	}()
	return l.Addr().String(), done
}

func rawAnswer(l fabric.Listener, answer func(context.Context, fabric.Endpoint) error) (err error) {
	ep, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	if _, err := ep.Open(rawOptions); err != nil {
		return err
	}
	if err := ep.PostRecv(rawOptions.RecvQueue); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), hang.After)
	defer cancel()
	return answer(ctx, ep)
}

// requireEcho requires that each end reads what the other writes.
func requireEcho(t testing.TB, a, b net.Conn) {
	t.Helper()
	require.NoError(t, echo(a, b))
}

func echo(a, b net.Conn) error {
	const n = 1000
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		if err := (&stream{}).send(way[0], n, n); err != nil {
			return err
		}
		if err := (&stream{}).receive(way[1], n); err != nil {
			return err
		}
	}
	return nil
}

// requireOpError requires package net's error around the given cause.
func requireOpError(t testing.TB, err error, op, addr string, cause error) {
	t.Helper()
	require.IsType(t, &net.OpError{}, err)
	e := err.(*net.OpError)
	require.Equal(t, op, e.Op)
	require.Equal(t, "rdma", e.Net)
	require.Equal(t, addr, e.Addr.String())
	require.ErrorIs(t, err, cause)
}
