package packettest

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Whether datagrams arrive, and what is in them.

func testSizes(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for _, size := range []int{0, 1, 7, 8, 9, 63, 64, 65, 512, 1000, n.Most - 1, n.Most} {
		data := pattern(size, size)
		send(t, a, b.LocalAddr(), data)
		got, from := receive(t, b)
		require.Equal(t, data, got)
		require.Equal(t, a.LocalAddr().String(), from.String())
	}
	sent, err := a.WriteTo(make([]byte, n.Most+1), b.LocalAddr())
	require.Zero(t, sent)
	requireOpError(t, err, "write", syscall.EMSGSIZE)
	requireNothing(t, n, b)
}

// Bytes that do not fit into the reader's buffer are lost, as on every system but Windows.
func testShortBuffer(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for _, s := range []string{"too long for the buffer", "", "next"} {
		send(t, a, b.LocalAddr(), []byte(s))
	}
	short := make([]byte, 8)
	require.NoError(t, b.SetReadDeadline(time.Now().Add(hang.After)))
	got, from, err := b.ReadFrom(short)
	require.NoError(t, err)
	require.Equal(t, "too long", string(short[:got]))
	require.Equal(t, a.LocalAddr().String(), from.String())
	for _, want := range []string{"", "next"} {
		next, _ := receive(t, b)
		require.Equal(t, want, string(next))
	}

	send(t, a, b.LocalAddr(), []byte("no buffer at all"))
	got, _, err = b.ReadFrom(nil)
	require.NoError(t, err)
	require.Zero(t, got)
	requireNothing(t, n, b)
}

// A caller may change its buffer as soon as WriteTo has returned.
func testCallersBuffer(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	data := []byte("before")
	send(t, a, b.LocalAddr(), data) // waits inside a until b's address is resolved
	copy(data, "xxxxxx")
	send(t, a, b.LocalAddr(), data)
	first, _ := receive(t, b)
	second, _ := receive(t, b)
	require.Equal(t, "before", string(first))
	require.Equal(t, "xxxxxx", string(second))
}

// Datagrams wait in order until they are read.
func testBurst(t *testing.T, n Network) {
	a, b := n.listen(t), n.listen(t)
	for round := range 3 {
		for i := range n.Burst {
			send(t, a, b.LocalAddr(), binary.BigEndian.AppendUint64(make([]byte, 56), uint64(i)))
		}
		for i := range n.Burst {
			got, _ := receive(t, b)
			require.Len(t, got, 64)
			require.EqualValues(t, i, binary.BigEndian.Uint64(got[56:]), "round %d", round)
		}
	}
}

// A receiver that does not read loses datagrams. The sender does not wait for it, other
// receivers lose none, and the datagrams that arrive are whole and in order.
func testOverrun(t *testing.T, n Network) {
	a, deaf, other := n.listen(t), n.listen(t), n.listen(t)
	send(t, a, deaf.LocalAddr(), nil) // so that its address is resolved before the flood
	receive(t, deaf)
	const flood = 20000
	data := pattern(256, 0)
	for i := range flood {
		binary.BigEndian.PutUint64(data, uint64(i))
		send(t, a, deaf.LocalAddr(), data)
		if i%1000 == 0 {
			send(t, a, other.LocalAddr(), data)
			got, _ := receive(t, other)
			require.Equal(t, data, got)
		}
	}
	next, lost := uint64(0), false
	requireOfFlood := func(b []byte) {
		i := binary.BigEndian.Uint64(b)
		require.GreaterOrEqual(t, i, next)
		lost = lost || i != next
		binary.BigEndian.PutUint64(data, i)
		require.Equal(t, data, b)
		next = i + 1
	}
	after, wait := []byte("and on"), 100*time.Millisecond
	if n.Prompt {
		got, _ := receive(t, deaf)
		requireOfFlood(got)
		send(t, a, deaf.LocalAddr(), after)
		wait = hang.After
	}
	late := time.Now().Add(hang.After)
	for b := make([]byte, 512); ; {
		_ = deaf.SetReadDeadline(time.Now().Add(wait))
		got, _, err := deaf.ReadFrom(b)
		if err != nil { // there is nothing more to read, or this machine is slow
			requireTimeout(t, err, "read")
			require.True(t, time.Now().Before(late), "nothing arrives after the flood")
			send(t, a, deaf.LocalAddr(), after)
			continue
		}
		if bytes.Equal(b[:got], after) {
			break
		}
		requireOfFlood(b[:got])
	}
	require.True(t, lost || next < flood, "nothing was lost: the flood is too short for this test")
}
