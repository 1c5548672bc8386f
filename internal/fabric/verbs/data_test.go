//go:build linux && cgo

package verbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// What Poll leaves would make no event. A device may report what has arrived after what has been
// sent, so this is for one that is known to have done so.
func TestPollTakesAllThatHasCompleted(t *testing.T) {
	onCardWith(t, "short-polls")
	a, b := pair(t)
	for range 8 {
		for range 8 {
			post(t, a, fabric.WorkRequest{Op: fabric.Send, Signaled: true})
		}
		poll(t, a, 8)
		n, err := b.Poll(make([]fabric.Completion, 64))
		require.NoError(t, err)
		assert.Equal(t, 8, n)
		require.NoError(t, b.PostRecv(8))
	}
}

// noReceives is the number of sends that found no receive posted, as the device counts
// them.
func noReceives(t testing.TB) (n int) {
	t.Helper()
	files, err := filepath.Glob("/sys/class/infiniband/*/ports/*/hw_counters/*rnr*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		count, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		n += count
	}
	return n
}

// A send that finds no receive is counted by the device, does not end the
// connection, and is tried again.
func TestSendWithoutAReceiveWaitsForOne(t *testing.T) {
	a, b := pair(t)
	for i := range options.RecvQueue {
		post(t, a, fabric.WorkRequest{ID: uint64(i), Op: fabric.Send, Signaled: true})
		require.Equal(t, fabric.OK, poll(t, a, 1)[0].Status, "send %d", i)
	}
	before := noReceives(t)
	post(t, a, fabric.WorkRequest{ID: 99, Op: fabric.Send, Signaled: true})
	hang.Unless(t, func() bool { return noReceives(t) > before }, "the device counts nothing")
	n, err := a.Poll(make([]fabric.Completion, 1))
	require.NoError(t, err)
	assert.Zero(t, n, "neither sent nor failed")

	poll(t, b, options.RecvQueue)
	require.NoError(t, b.PostRecv(1))
	assert.Equal(t, fabric.Completion{ID: 99}, poll(t, a, 1)[0])
}

func TestPostSendRefusesNonsense(t *testing.T) {
	a, _ := pair(t)
	m := register(t, a, 4096, fabric.LocalWrite)
	for _, tt := range []struct {
		name string
		wr   []fabric.WorkRequest
		want syscall.Errno
	}{
		{"too many", make([]fabric.WorkRequest, options.SendQueue+1), syscall.ENOMEM},
		{"too long to be inline", []fabric.WorkRequest{{Data: make([]byte, rdmacore.MaxInline+1)}}, syscall.EMSGSIZE},
		{"data elsewhere", []fabric.WorkRequest{{Data: make([]byte, 1), Memory: m}}, syscall.EFAULT},
		{"the ID of a receive", []fabric.WorkRequest{{ID: recvBit}}, syscall.EINVAL},
		{"no opcode", []fabric.WorkRequest{{Op: 9}}, syscall.EINVAL},
		{"no memory of ours", []fabric.WorkRequest{{Data: m.Bytes()[:1], Memory: struct{ fabric.Memory }{m}}}, syscall.EINVAL},
	} {
		assert.ErrorIs(t, a.PostSend(tt.wr), tt.want, tt.name)
	}
	assert.ErrorIs(t, a.PostRecv(options.RecvQueue+1), syscall.ENOMEM)
	post(t, a) // none at all is fine
}

// All that a link does for a message, and to sleep until it comes.
func TestAMessageThatIsWaitedForAllocatesNothing(t *testing.T) {
	a, b := pair(t)
	wr := []fabric.WorkRequest{{Op: fabric.Send, Data: []byte("x"), Signaled: true}}
	c := make([]fabric.Completion, 1)
	polled := func(e fabric.Endpoint) bool {
		n, err := e.Poll(c)
		if err != nil {
			t.Error(err)
		}
		return n == 1
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if b.Arm() != nil || a.PostSend(wr) != nil {
			t.Error("not armed, or not sent")
		}
		if err := b.Wait(); err != nil {
			t.Error(err)
		}
		for !polled(b) { // Wait may return for no reason
		}
		for !polled(a) {
		}
		if err := b.PostRecv(1); err != nil {
			t.Error(err)
		}
	}))
}
