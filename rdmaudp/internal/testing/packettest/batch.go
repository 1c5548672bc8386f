package packettest

import (
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Several datagrams at once. A call may send or receive fewer than it was given; the caller
// calls again for the rest.

// writeAll writes a batch to its end.
func writeAll(t *testing.T, n Network, c net.PacketConn, ms []ipv4.Message) {
	t.Helper()
	for len(ms) > 0 {
		written, err := n.Batch(c).WriteBatch(ms, 0)
		require.NoError(t, err)
		require.Positive(t, written)
		ms = ms[written:]
	}
}

// readAll reads count datagrams, each into buffers of the given sizes.
func readAll(t *testing.T, n Network, c net.PacketConn, count int, rooms ...int) []ipv4.Message {
	t.Helper()
	ms := make([]ipv4.Message, count)
	for i := range ms {
		for _, room := range rooms {
			ms[i].Buffers = append(ms[i].Buffers, make([]byte, room))
		}
	}
	require.NoError(t, c.SetReadDeadline(time.Now().Add(hang.After)))
	for rest := ms; len(rest) > 0; {
		read, err := n.Batch(c).ReadBatch(rest, 0)
		require.NoError(t, err)
		require.Positive(t, read)
		rest = rest[read:]
	}
	return ms
}

// bytesOf are the bytes of a message that was read.
func bytesOf(m ipv4.Message) (all []byte) {
	for _, b := range m.Buffers {
		all = append(all, b...)
	}
	return all[:m.N]
}

func testBatch(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for round := range 3 {
		ms := make([]ipv4.Message, n.Burst)
		for i := range ms {
			data := pattern(64, i*round)
			ms[i] = ipv4.Message{Buffers: [][]byte{data[:i], data[i:]}, Addr: b.LocalAddr()}
		}
		writeAll(t, n, a, ms)
		for i, m := range readAll(t, n, b, len(ms), 10, 100) {
			require.Equal(t, 64, ms[i].N)
			require.Equal(t, pattern(64, i*round), bytesOf(m))
			require.Equal(t, a.LocalAddr().String(), m.Addr.String())
			require.Zero(t, m.Flags)
		}
	}
}

func testBatchOfSeveralReceivers(t *testing.T, n Network) {
	a := n.listen(t)
	var receivers []net.PacketConn
	var ms []ipv4.Message
	for i := range 4 {
		receivers = append(receivers, n.listen(t))
		for j := range 3 {
			text := strconv.Itoa(10*i + j)
			ms = append(ms, ipv4.Message{Buffers: [][]byte{[]byte(text)}, Addr: receivers[i].LocalAddr()})
		}
	}
	writeAll(t, n, a, ms)
	for i, c := range receivers {
		for j := range 3 {
			got, _ := receive(t, c)
			require.Equal(t, strconv.Itoa(10*i+j), string(got))
		}
	}
}

func testBatchTruncated(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	send(t, a, b.LocalAddr(), []byte("longer than that"))
	send(t, a, b.LocalAddr(), []byte("short"))
	ms := readAll(t, n, b, 2, 4, 2)
	require.Equal(t, "longer", string(bytesOf(ms[0])))
	require.NotZero(t, ms[0].Flags)
	require.Equal(t, "short", string(bytesOf(ms[1])))
	require.Zero(t, ms[1].Flags)
}

// Messages before one that cannot be sent are sent.
func testBatchWithAnError(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	ms := []ipv4.Message{
		{Buffers: [][]byte{[]byte("first")}, Addr: b.LocalAddr()},
		{Buffers: [][]byte{make([]byte, n.Most), {1}}, Addr: b.LocalAddr()},
		{Buffers: [][]byte{[]byte("third")}, Addr: b.LocalAddr()},
	}
	written := 0
	for written < 1 {
		w, err := n.Batch(a).WriteBatch(ms[written:], 0)
		if written += w; w == 0 {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 1, written)
	_, err := n.Batch(a).WriteBatch(ms[written:], 0)
	requireOpError(t, err, "write", syscall.EMSGSIZE)
	got, _ := receive(t, b)
	require.Equal(t, "first", string(got))
	requireNothing(t, n, b)
}
