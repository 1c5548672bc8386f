package packettest

import (
	"fmt"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Which socket receives which datagrams.

func testAddresses(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for _, c := range []net.PacketConn{a, b} {
		host, port, err := net.SplitHostPort(c.LocalAddr().String())
		require.NoError(t, err)
		require.Equal(t, n.Host, host)
		require.NotEqual(t, "0", port)
	}
	require.NotEqual(t, a.LocalAddr().String(), b.LocalAddr().String())
	send(t, a, b.LocalAddr(), nil)
	_, from := receive(t, b)
	require.Equal(t, a.LocalAddr().String(), from.String())
	require.Equal(t, a.LocalAddr().Network(), from.Network())

	// Addresses of package net will do.
	to, err := net.ResolveUDPAddr("udp", b.LocalAddr().String())
	require.NoError(t, err)
	send(t, a, to, []byte("to a *net.UDPAddr"))
	got, _ := receive(t, b)
	require.Equal(t, "to a *net.UDPAddr", string(got))
}

func testWildcard(t *testing.T, n Network) {
	a, b := n.listen(t), n.listenAt(t, ":0")
	host, port, err := net.SplitHostPort(b.LocalAddr().String())
	require.NoError(t, err)
	require.True(t, net.ParseIP(host).IsUnspecified())
	to, err := net.ResolveUDPAddr("udp", net.JoinHostPort(n.Host, port))
	require.NoError(t, err)
	send(t, a, to, []byte("hello"))
	_, from := receive(t, b)
	send(t, b, from, []byte("hello yourself"))
	got, from := receive(t, a)
	require.Equal(t, "hello yourself", string(got))
	require.Equal(t, to.String(), from.String())
}

func testAddressInUse(t *testing.T, n Network) {
	a := n.listen(t)
	_, err := n.Listen(a.LocalAddr().String())
	requireOpError(t, err, "listen", syscall.EADDRINUSE)
	require.NoError(t, a.Close())
	n.listenAt(t, a.LocalAddr().String())
}

func testWrongAddresses(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for _, to := range []net.Addr{
		nil, &net.UnixAddr{Name: "/nowhere"}, (*net.UDPAddr)(nil), &net.UDPAddr{},
		// Ports that their method AddrPort would truncate to others.
		&net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: -1}, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1<<16 + 1},
		&net.UDPAddr{Port: 1<<16 + 1}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1<<16 + 1},
	} {
		sent, err := a.WriteTo([]byte("lost"), to)
		var oe *net.OpError
		require.ErrorAs(t, err, &oe, "%v", to)
		require.Equal(t, "write", oe.Op)
		require.Zero(t, sent)
	}
	send(t, a, b.LocalAddr(), []byte("found"))
	got, _ := receive(t, b)
	require.Equal(t, "found", string(got))
}

// To send to an address that no socket has is no error, but for one that was dialed, once, and
// when a socket has it, datagrams arrive.
func testNobody(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	dialed := n.dial(t, b.LocalAddr())
	require.NoError(t, b.Close())
	for range 10 {
		send(t, a, b.LocalAddr(), []byte("anybody there?"))
	}
	_, err := dialed.Write([]byte("anybody there?"))
	require.NoError(t, err)
	require.NoError(t, dialed.SetReadDeadline(time.Now().Add(hang.After)))
	_, err = dialed.Read(make([]byte, 1))
	requireOpError(t, err, "read", syscall.ECONNREFUSED)
	require.NoError(t, dialed.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = dialed.Read(make([]byte, 1))
	requireTimeout(t, err, "read")
	requireNothing(t, n, a)
	b = n.listenAt(t, b.LocalAddr().String())
	send(t, a, b.LocalAddr(), []byte("and now?"))
	for {
		got, _ := receive(t, b)
		if string(got) == "and now?" {
			break
		}
		require.Equal(t, "anybody there?", string(got)) // from a queue of those who were to be found
	}
}

func testPeerRestarts(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for i := range 10 {
		message := strconv.Itoa(i)
		send(t, a, b.LocalAddr(), []byte(message))
		got, from := receive(t, b)
		require.Equal(t, message, string(got))
		send(t, b, from, got)
		got, _ = receive(t, a)
		require.Equal(t, message, string(got))
		require.NoError(t, b.Close())
		b = n.listenAt(t, b.LocalAddr().String())
	}
	// Last words arrive.
	send(t, b, a.LocalAddr(), []byte("bye"))
	require.NoError(t, b.Close())
	got, from := receive(t, a)
	require.Equal(t, "bye", string(got))
	require.Equal(t, b.LocalAddr().String(), from.String())
}

func testManyPeers(t *testing.T, n Network) {
	const peers = 20
	server := n.listen(t)
	go func() {
		b := make([]byte, 1<<16)
		for {
			got, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:got], from)
		}
	}()
	answered := make(chan error, peers)
	for i := range peers {
		c := n.listen(t)
		go func() { answered <- ask(c, server.LocalAddr(), strconv.Itoa(i)) }()
	}
	for range peers {
		require.NoError(t, <-answered)
	}
}

// ask sends messages to a server, and returns an error unless each comes back.
func ask(c net.PacketConn, server net.Addr, name string) error {
	if err := c.SetReadDeadline(time.Now().Add(hang.After)); err != nil {
		return err
	}
	b := make([]byte, 100)
	for i := range 20 {
		message := fmt.Sprintf("%d of %s", i, name)
		if _, err := c.WriteTo([]byte(message), server); err != nil {
			return err
		}
		got, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		if string(b[:got]) != message || from.String() != server.String() {
			return fmt.Errorf("%q from %v, want %q from %v", b[:got], from, message, server)
		}
	}
	return nil
}

func testDialed(t *testing.T, n Network) {
	b, stranger := n.listen(t), n.listen(t)
	c := n.dial(t, b.LocalAddr())
	require.Equal(t, b.LocalAddr().String(), c.RemoteAddr().String())
	_, err := c.Write([]byte("question"))
	require.NoError(t, err)
	got, from := receive(t, b)
	require.Equal(t, "question", string(got))
	require.Equal(t, c.LocalAddr().String(), from.String())
	send(t, stranger, from, []byte("you do not know me"))
	send(t, b, from, []byte("answer"))
	p := make([]byte, 100)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(hang.After)))
	read, err := c.Read(nil) // which takes nothing
	require.NoError(t, err)
	require.Zero(t, read)
	read, err = c.Read(p)
	require.NoError(t, err)
	require.Equal(t, "answer", string(p[:read]))

	// It is a net.PacketConn, too, which sends to nobody else.
	pc := c.(net.PacketConn)
	_, err = pc.WriteTo([]byte("to another"), stranger.LocalAddr())
	requireOpError(t, err, "write", net.ErrWriteToConnected)
	send(t, b, from, []byte("again"))
	got, from = receive(t, pc)
	require.Equal(t, "again", string(got))
	require.Equal(t, b.LocalAddr().String(), from.String())

	for _, want := range []error{syscall.EDESTADDRREQ, net.ErrClosed} {
		_, err = b.(net.Conn).Write([]byte("to whom?"))
		requireOpError(t, err, "write", want)
		_, err = n.Batch(b).WriteBatch([]ipv4.Message{{Buffers: [][]byte{[]byte("to whom?")}}}, 0)
		requireOpError(t, err, "write", want)
		_ = b.Close()
	}
}
