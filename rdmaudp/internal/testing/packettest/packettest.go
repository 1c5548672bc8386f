package packettest

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Network is the implementation that is tested.
type Network struct {
	// Listen and Dial are ListenPacket and Dial of the network, at addresses of the
	// form "127.0.0.1:0".
	Listen func(address string) (net.PacketConn, error)
	Dial   func(address string) (net.Conn, error)

	// Batch returns the methods for batches of a socket.
	Batch func(net.PacketConn) Batcher

	// Host is an address of this host at which to listen.
	Host string

	// Most is how many bytes the longest datagram has. Burst is how many datagrams of
	// 64 bytes a receive queue holds.
	Most, Burst int

	// Prompt says that the network does not delay datagrams: once a first one has
	// arrived, each later one is in its receiver's queue, or lost, when WriteTo returns,
	// and the room of one that was read is free for the next.
	Prompt bool

	Groups *Groups // nil if the network has none
}

// Batcher has the methods of ipv4.PacketConn for several datagrams at once.
type Batcher interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// Test tests a network.
func Test(t *testing.T, n Network) {
	run(t, n, []named{
		{"Sizes", testSizes},
		{"ShortBuffer", testShortBuffer},
		{"CallersBuffer", testCallersBuffer},
		{"Burst", testBurst},
		{"Overrun", testOverrun},
		{"Batch", testBatch},
		{"BatchOfSeveralReceivers", testBatchOfSeveralReceivers},
		{"BatchTruncated", testBatchTruncated},
		{"BatchWithAnError", testBatchWithAnError},
		{"AddressesOfBothEnds", testAddresses},
		{"Wildcard", testWildcard},
		{"AddressInUse", testAddressInUse},
		{"WrongAddresses", testWrongAddresses},
		{"Nobody", testNobody},
		{"PeerRestarts", testPeerRestarts},
		{"ManyPeers", testManyPeers},
		{"Dialed", testDialed},
		{"ReadDeadline", testReadDeadline},
		{"ReadDeadlineWakes", testReadDeadlineWakes},
		{"WriteDeadline", testWriteDeadline},
		{"Close", testClose},
		{"CloseWakes", testCloseWakes},
		{"SeveralReaders", testSeveralReaders},
		{"RacyUse", testRacyUse},
	})
	if n.Groups != nil {
		run(t, n, []named{
			{"Group", testGroup},
			{"GroupsApart", testGroupsApart},
			{"GroupLeft", testGroupLeft},
			{"GroupComesAndGoes", testGroupComesAndGoes},
		})
	}
}

// named is a test with its name.
type named struct {
	name string
	test func(*testing.T, Network)
}

func run(t *testing.T, n Network, tests []named) {
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) { c.test(t, n) })
	}
}

// listen returns a socket at a free port, which the test closes in the end.
func (n Network) listen(t *testing.T) net.PacketConn {
	t.Helper()
	return n.listenAt(t, net.JoinHostPort(n.Host, "0"))
}

func (n Network) listenAt(t *testing.T, address string) net.PacketConn {
	t.Helper()
	c, err := n.Listen(address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func (n Network) dial(t *testing.T, to net.Addr) net.Conn {
	t.Helper()
	c, err := n.Dial(to.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// send sends a datagram.
func send(t *testing.T, from net.PacketConn, to net.Addr, data []byte) {
	t.Helper()
	n, err := from.WriteTo(data, to)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
}

// receive returns the next datagram and who sent it.
func receive(t *testing.T, c net.PacketConn) ([]byte, net.Addr) {
	t.Helper()
	b := make([]byte, 1<<16)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(hang.After)))
	n, from, err := c.ReadFrom(b)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	return b[:n], from
}

// requireNothing requires that no datagram waits at c. It sends one of its own, and
// requires that this is the next to arrive.
func requireNothing(t *testing.T, n Network, c net.PacketConn) {
	t.Helper()
	marker := []byte("nothing before this")
	send(t, n.listen(t), c.LocalAddr(), marker)
	got, _ := receive(t, c)
	require.Equal(t, string(marker), string(got))
}

// pattern is n bytes that depend on the seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// requireOpError requires that err is a *net.OpError of an operation, and wraps want.
func requireOpError(t *testing.T, err error, op string, want error) {
	t.Helper()
	var oe *net.OpError
	require.ErrorAs(t, err, &oe)
	require.Equal(t, op, oe.Op)
	require.ErrorIs(t, err, want)
}

// requireTimeout requires that err says that a deadline of the operation has passed.
func requireTimeout(t *testing.T, err error, op string) {
	t.Helper()
	requireOpError(t, err, op, os.ErrDeadlineExceeded)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
}
