package auto

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Accept of TCP goes on while the kernel does not tell whose a connection is.
func TestTheKernelHoldsUpNoOtherClaim(t *testing.T) {
	given := make(chan *net.TCPConn, 1)
	cs := &claims{giveBack: func(c *net.TCPConn) { given <- c }, within: time.Hour, open: make(map[ends]*claim)}
	claimed := func(owns func() bool) (*net.TCPConn, *claim, ends) {
		_, conn := tcpPair(t)
		key := ends{plain(conn.RemoteAddr()), plain(conn.LocalAddr())}
		c := &claim{owns: owns, met: make(chan struct{}), end: func() {}}
		require.True(t, cs.add(key, c))
		return conn, c, key
	}
	tell := make(chan bool)
	slow, c, key := claimed(func() bool { return <-tell })
	require.True(t, cs.meet(slow))
	require.False(t, cs.meet(slow), "it is taken")
	quick, other, otherKey := claimed(func() bool { return true })
	require.True(t, cs.meet(quick))
	require.NoError(t, cs.settle(t.Context(), otherKey, other))

	tell <- false
	require.Same(t, slow, <-given, "a stranger's")
	require.True(t, cs.meet(slow))
	cs.drop(key, c)
	require.Same(t, slow, <-given, "given back once")
	tell <- true
	require.False(t, cs.meet(slow))
}
