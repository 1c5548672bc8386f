package packettest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Groups is a network's multicast, at one interface of this host.
type Groups struct {
	// Listen returns a new member of a group, of the form "239.1.2.3:4567". Leave
	// ends the membership.
	Listen func(group string) (net.PacketConn, error)
	Leave  func(member net.PacketConn, group string) error

	// Sender makes a socket send to groups at that interface.
	Sender func(net.PacketConn) error
}

// group returns the address of a group, at random, so that no other test uses it.
func group() *net.UDPAddr {
	return &net.UDPAddr{IP: net.IPv4(239, 255, byte(rand.N(256)), byte(rand.N(256))), Port: 20000 + rand.N(10000)}
}

func (n Network) member(t *testing.T, group net.Addr) net.PacketConn {
	t.Helper()
	c, err := n.Groups.Listen(group.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// sender returns a socket that has sent to the group until each member has received
// something, as senders have to who want no later datagram to be lost.
func (n Network) sender(t *testing.T, to net.Addr, members ...net.PacketConn) net.PacketConn {
	t.Helper()
	c := n.listen(t)
	require.NoError(t, n.Groups.Sender(c))
	n.introduce(t, c, to, members...)
	return c
}

const hello = "hello"

// introduce sends hello to the group until each member has received it.
func (n Network) introduce(t *testing.T, c net.PacketConn, to net.Addr, members ...net.PacketConn) {
	t.Helper()
	var heard atomic.Int64
	done := make(chan struct{})
	for _, m := range members {
		require.NoError(t, m.SetReadDeadline(time.Now().Add(hang.After)))
		go func() {
			defer func() { done <- struct{}{} }()
			b := make([]byte, 100)
			for {
				got, _, err := m.ReadFrom(b)
				if err != nil {
					return
				}
				if string(b[:got]) == hello {
					heard.Add(1)
					return
				}
			}
		}()
	}
	for range members {
		for waiting := true; waiting; {
			send(t, c, to, []byte(hello))
			select {
			case <-done:
				waiting = false
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	require.EqualValues(t, len(members), heard.Load(), "members that have heard")
}

// next returns the next datagram that is not a hello, and its sender.
func next(t *testing.T, c net.PacketConn) (string, net.Addr) {
	t.Helper()
	for {
		if got, from := receive(t, c); string(got) != hello {
			return string(got), from
		}
	}
}

func testGroup(t *testing.T, n Network) {
	g := group()
	members := []net.PacketConn{n.member(t, g), n.member(t, g), n.member(t, g)}
	c := n.sender(t, g, members...)
	for i := range n.Burst {
		send(t, c, g, []byte(strconv.Itoa(i)))
	}
	for _, m := range members {
		for i := range n.Burst {
			got, from := next(t, m)
			require.Equal(t, strconv.Itoa(i), got)
			require.Equal(t, c.LocalAddr().String(), from.String())
		}
	}
	for _, size := range []int{0, 1, 1000, min(n.Most, 4088)} {
		send(t, c, g, pattern(size, size))
		for _, m := range members {
			got, _ := next(t, m)
			require.Equal(t, string(pattern(size, size)), got)
		}
	}
}

// A member does not receive datagrams to another port or another group.
func testGroupsApart(t *testing.T, n Network) {
	g := group()
	port, other := *g, *group()
	port.Port++
	m := n.member(t, g)
	c := n.sender(t, g, m)
	n.introduce(t, c, &port, n.member(t, &port))
	n.introduce(t, c, &other, n.member(t, &other))
	send(t, c, &port, []byte("to another port"))
	send(t, c, &other, []byte("to another group"))
	send(t, c, g, []byte("to g"))
	got, _ := next(t, m)
	require.Equal(t, "to g", got)
}

func testGroupLeft(t *testing.T, n Network) {
	g := group()
	stays, leaves := n.member(t, g), n.member(t, g)
	c := n.sender(t, g, stays, leaves)
	require.NoError(t, n.Groups.Leave(leaves, g.String()))
	require.ErrorIs(t, n.Groups.Leave(leaves, g.String()), syscall.EADDRNOTAVAIL)
	for i := range 10 {
		send(t, c, g, []byte(strconv.Itoa(i)))
		got, _ := next(t, stays)
		require.Equal(t, strconv.Itoa(i), got)
	}
	require.NoError(t, leaves.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	for b := make([]byte, 100); ; {
		got, _, err := leaves.ReadFrom(b)
		if err != nil {
			requireTimeout(t, err, "read")
			break
		}
		require.Equal(t, hello, string(b[:got]), "heard after it has left")
	}
}

// A datagram to a group without members is no error. While members join and leave, one that
// stays loses nothing.
func testGroupComesAndGoes(t *testing.T, n Network) {
	g := group()
	c := n.sender(t, g)
	for range 10 {
		send(t, c, g, []byte("anybody there?"))
	}
	stays := n.member(t, g)
	n.introduce(t, c, g, stays)
	for i := range 10 {
		comes := n.member(t, g)
		n.introduce(t, c, g, comes)
		message := fmt.Sprint("round ", i)
		send(t, c, g, []byte(message))
		for _, m := range []net.PacketConn{stays, comes} {
			got, _ := next(t, m)
			require.Equal(t, message, got)
		}
		require.NoError(t, comes.Close())
	}
}
