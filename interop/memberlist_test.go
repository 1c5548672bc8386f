//go:build unix

package interop

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// gossip is a memberlist.Transport on auto, with its packets by UDP: docs/migrate.md shows it to users.
type gossip struct {
	net.Listener
	*net.UDPConn
	streams chan net.Conn
	packets chan *memberlist.Packet
}

func newGossip(address string) (*gossip, error) {
	l, err := ringnet.Listen("auto", address)
	if err != nil {
		return nil, err
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.Addr().(*net.TCPAddr).AddrPort()))
	if err != nil {
		l.Close()
		return nil, err
	}
	g := &gossip{l, c, make(chan net.Conn), make(chan *memberlist.Packet)}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			g.streams <- c
		}
	}()
	go func() {
		for {
			b := make([]byte, 1<<16)
			n, from, err := g.ReadFrom(b)
			if err != nil {
				return
			}
			g.packets <- &memberlist.Packet{Buf: b[:n], From: from, Timestamp: time.Now()}
		}
	}()
	return g, nil
}

func (g *gossip) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	a := g.Listener.Addr().(*net.TCPAddr)
	switch {
	case ip != "":
		return net.ParseIP(ip), port, nil
	case a.IP.IsUnspecified():
		return nil, 0, fmt.Errorf("other nodes cannot reach %v: set AdvertiseAddr and AdvertisePort", a)
	}
	return a.IP, a.Port, nil
}

func (g *gossip) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err == nil {
		_, err = g.WriteToUDPAddrPort(b, to)
	}
	return time.Now(), err
}

func (g *gossip) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return ringnet.DialTimeout("auto", addr, timeout)
}

func (g *gossip) PacketCh() <-chan *memberlist.Packet { return g.packets }
func (g *gossip) StreamCh() <-chan net.Conn           { return g.streams }

func (g *gossip) Shutdown() error {
	g.Listener.Close()
	return g.UDPConn.Close()
}

// Two nodes on ringnet, and one that has only TCP, find each other, and notice that one leaves.
func TestMemberlist(t *testing.T) {
	config := func(name string) *memberlist.Config {
		c := memberlist.DefaultLocalConfig()
		c.Name, c.BindAddr, c.BindPort, c.Logger = name, "127.0.0.1", 0, log.New(io.Discard, "", 0)
		return c
	}
	var nodes []*memberlist.Memberlist
	for _, name := range []string{"first", "second", "plain"} {
		c := config(name)
		if name != "plain" {
			g, err := newGossip("127.0.0.1:0")
			require.NoError(t, err)
			c.Transport = g
		}
		node, err := memberlist.Create(c)
		require.NoError(t, err)
		defer func() { require.NoError(t, node.Shutdown()) }()
		if len(nodes) > 0 {
			_, err = node.Join([]string{nodes[0].LocalNode().Address()})
			require.NoError(t, err)
		}
		nodes = append(nodes, node)
	}
	all := func(n int) func() bool {
		return func() bool {
			for _, node := range nodes[:n] {
				if node.NumMembers() != n {
					return false
				}
			}
			return true
		}
	}
	hang.Unless(t, all(3))
	anywhere, err := newGossip(":0")
	require.NoError(t, err)
	defer anywhere.Shutdown()
	_, _, err = anywhere.FinalAdvertiseAddr("", 7946)
	require.ErrorContains(t, err, "set AdvertiseAddr")
	require.NoError(t, nodes[2].Leave(hang.After))
	hang.Unless(t, all(2))
}
