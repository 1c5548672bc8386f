// The connection manager: how connections come about, fail to, and end.

package sim_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

const latency = 10 * time.Millisecond

func TestAddresses(t *testing.T) {
	n := network(t, sim.Link{})
	ap := netip.MustParseAddrPort
	listen := func(a netip.AddrPort) (netip.AddrPort, error) {
		l, err := n.Listen(a, 1)
		if err != nil {
			return a, err
		}
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l.Addr(), nil
	}
	dial := func(local, remote netip.AddrPort) (fabric.Endpoint, error) {
		e, err := n.Dial(ctx, local, remote)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, e.Close()) })
		}
		return e, err
	}

	_, err := listen(ap("10.0.0.1:80"))
	require.NoError(t, err)
	for _, a := range []string{"10.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::ffff:10.0.0.1]:80"} {
		_, err = listen(ap(a))
		assert.ErrorIs(t, err, syscall.EADDRINUSE, a)
	}
	for _, a := range []string{"10.0.0.2:80", "10.0.0.1:81", "[fe80::1]:80"} {
		_, err = listen(ap(a))
		assert.NoError(t, err, a)
	}
	a, err := listen(netip.AddrPort{})
	require.NoError(t, err)
	assert.Equal(t, netip.IPv6Unspecified(), a.Addr())
	b, err := listen(netip.AddrPort{})
	require.NoError(t, err)
	assert.NotEqual(t, a, b)

	_, err = dial(ap("10.0.0.1:80"), ap("10.0.0.9:9"))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = dial(ap("10.0.0.7:1"), ap("10.0.0.9:9"))
	require.NoError(t, err)
	_, err = dial(ap("10.0.0.7:1"), ap("10.0.0.9:9"))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	e, err := dial(netip.AddrPort{}, ap("0.0.0.0:9"))
	require.NoError(t, err)
	assert.Equal(t, ap("127.0.0.1:9"), e.RemoteAddr())
	f, err := dial(netip.AddrPort{}, ap("0.0.0.0:9"))
	require.NoError(t, err)
	assert.NotEqual(t, e.LocalAddr(), f.LocalAddr())
	_, err = dial(netip.AddrPort{}, ap("10.0.0.9:0"))
	assert.ErrorIs(t, err, syscall.EINVAL)
}

func TestConnectionManagerGivesUp(t *testing.T) {
	virtual(t, sim.Link{CMTimeout: time.Minute}, func(t *testing.T, n *sim.Network) {
		n.Blackhole(server.Addr())
		a := dial(t, n)
		start := time.Now()
		_, err := a.Connect(ctx, nil)
		assert.ErrorIs(t, err, syscall.ETIMEDOUT)
		assert.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, a.Close())
	})
}

func TestDisconnectEndsWithoutAnAnswer(t *testing.T) {
	for name, broken := range map[string]func(n *sim.Network){
		"cut": func(n *sim.Network) { n.Cut(true) },
		"lost": func(n *sim.Network) {
			n.SetFaults(sim.Faults{Lose: func(*sim.Endpoint, sim.Message) bool { return true }})
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
				a, b := connect(t, n)
				broken(n)
				start := time.Now()
				theirs := waiting(b)
				require.NoError(t, a.Disconnect())
				require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
				require.Equal(t, sim.DefaultCMTimeout, time.Since(start))
				require.Empty(t, theirs, "it has not heard of it")
				b.Wake()
				<-theirs
			})
		})
	}
}

func TestWhatHasLeftArrivesThoughTheSenderIsGone(t *testing.T) {
	virtual(t, sim.Link{Latency: latency, Bandwidth: 1000}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		m := register(t, a, 100, fabric.LocalWrite)
		copy(m.Bytes(), "abcdefghij")
		wr := fabric.WorkRequest{Op: fabric.Send, Data: m.Bytes()[:10], Memory: m}
		post(t, a, wr, wr) // 10 ms each on the link
		time.Sleep(15 * time.Millisecond)
		require.NoError(t, a.Disconnect())
		clear(m.Bytes())
		time.Sleep(time.Second)
		_, recvs := split(poll(t, b))
		require.Len(t, recvs, 1)
		assert.Equal(t, "abcdefghij", string(recvs[0].Data))
	})
}
