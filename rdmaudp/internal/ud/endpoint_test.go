//go:build linux && cgo

package ud

import (
	"bufio"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// onDevice returns the fabric and the address of a device, or skips the test.
func onDevice(t testing.TB) (rdma, netip.Addr) {
	t.Helper()
	addr := rdmatest.Address(t, "SOFTROCE_ADDR")
	f, err := Open(0)
	rdmatest.Opened(t, err)
	return f.(rdma), addr
}

// packets is an endpoint for datagrams, and a channel that receives when there are any.
type packets struct {
	*endpoint
	news chan struct{}
}

func openPackets(t *testing.T, queue int) packets {
	t.Helper()
	_, addr := onDevice(t)
	return openPacketsAt(t, addr, queue)
}

func openPacketsAt(t *testing.T, addr netip.Addr, queue int) packets {
	t.Helper()
	f, _ := onDevice(t)
	p := packets{news: make(chan struct{}, 1)}
	ep, err := f.ListenPacket(netip.AddrPortFrom(addr, 0), Options{
		RecvQueue: queue,
		Filter:    func(d *Datagram) bool { return d.From.Addr().IsValid() },
		Notify: func() {
			select {
			case p.news <- struct{}{}:
			default:
			}
		},
		Lost: func(error) {}, // rdmaudp.TestDatagramsDeviceRemoved
	})
	require.NoError(t, err)
	p.endpoint = ep.(*endpoint)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (p packets) queue() *queuePair { return (*p.queues.Load())[0] }

// to resolves the address of another.
func (p packets) to(t *testing.T, other packets) *addressHandle {
	t.Helper()
	h, err := p.Resolve(context.Background(), other.local)
	require.NoError(t, err)
	return h.(*addressHandle)
}

// send sends a datagram, and returns its status.
func (p packets) send(h *addressHandle, text string) fabric.Status {
	d := []Datagram{{To: h, Buffers: [][]byte{[]byte(text)}}}
	p.Send(d)
	return d[0].Status
}

// next waits for the next datagram.
func (p packets) next(t *testing.T) string {
	t.Helper()
	b := make([]byte, largestMTU)
	d := []Datagram{{Buffers: [][]byte{b}}}
	for late := time.After(hang.After); ; {
		p.Arm()
		if p.Receive(d) == 1 {
			return string(b[:d[0].Len])
		}
		select {
		case <-p.news:
		case <-late:
			require.FailNow(t, "no datagram")
		}
	}
}

func requireGone(t *testing.T, h *addressHandle) {
	t.Helper()
	hang.Unless(t, h.gone.Load)
}

func TestDatagramsGiveEverythingBack(t *testing.T) {
	a := openPackets(t, 16)
	_, addr := onDevice(t)
	cycle := func() {
		b := openPackets(t, 16)
		there, back := b.to(t, a), a.to(t, b)
		require.Equal(t, fabric.OK, b.send(there, "hello"))
		require.Equal(t, fabric.OK, a.send(back, "hello"))
		require.Equal(t, "hello", a.next(t))
		require.Equal(t, "hello", b.next(t))
		there.Close()
		if addr.Is4() { // rdma_cm joins no groups of IPv6
			cycleOfGroup(t, a, b)
		}
		require.NoError(t, b.Close())
		require.True(t, back.gone.Load(), "Close has told it")
		require.Equal(t, fabric.Flushed, a.send(back, "hello?"))
		back.Close()
		_, err := a.Resolve(context.Background(), b.local)
		require.ErrorAs(t, err, new(*fabric.RejectError))
		a.forgetWatchers()
	}
	cycle()
	leavesNothing(t)
	for range 10 {
		cycle()
	}
}

// leavesNothing requires, when the test ends, that all that it has used from now on is
// released.
func leavesNothing(t *testing.T) {
	t.Helper()
	used, _ := budget.Process.State()
	before := rdmatest.CountResources(t)
	t.Cleanup(func() {
		after, _ := budget.Process.State()
		require.Equal(t, used, after)
		var now rdmatest.Resources
		for deadline := time.Now().Add(hang.After); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			now = rdmatest.CountResources(t)
			now.Mappings = before.Mappings                          // threads' stacks, and malloc's arenas
			now.Goroutines = max(now.Goroutines, before.Goroutines) // one was about to end
			if now == before {
				return
			}
		}
		require.Equal(t, before, now)
	})
}

// forgetWatchers removes the watchers that the queue pair still has.
func (p packets) forgetWatchers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queue()
	for _, w := range q.watchers {
		_ = w.id.Close()
	}
	q.watchers = nil
}

// The kernel of a process that has died rejects the requests to watch its queue pairs.
func TestDatagramsToAProcessThatDies(t *testing.T) {
	a := openPackets(t, 16)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDatagramReceiverProgram$")
	cmd.Env = append(os.Environ(), "RINGNET_DATAGRAM_RECEIVER=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	to := netip.MustParseAddrPort(strings.TrimSpace(line))
	h, err := a.Resolve(context.Background(), to)
	require.NoError(t, err)
	defer h.Close()
	require.Equal(t, fabric.OK, a.send(h.(*addressHandle), "hello"))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	requireGone(t, h.(*addressHandle))
	_, err = a.Resolve(context.Background(), to)
	require.ErrorAs(t, err, new(*fabric.RejectError))
}

func TestDatagramReceiverProgram(t *testing.T) {
	if os.Getenv("RINGNET_DATAGRAM_RECEIVER") == "" {
		t.Skip("a program of TestDatagramsToAProcessThatDies")
	}
	p := openPackets(t, 16)
	os.Stdout.WriteString(p.local.String() + "\n")
	select {}
}

// Without the Q_Key a sender's datagrams are dropped, and the filter sees messages that
// are no datagrams.
func TestDatagramsOfStrangers(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	right := a.to(t, b)
	defer right.Close()
	right.receiver.key ^= 1
	require.Equal(t, fabric.OK, a.send(right, "with another Q_Key"))
	right.receiver.key ^= 1

	// A message without so much as a header.
	q := a.queue()
	q.sending.Lock()
	require.Equal(t, fabric.OK, q.encode(0, &Datagram{To: right}))
	q.sends.SGEs[0].Length = 1
	q.post(1)
	q.sending.Unlock()

	require.Equal(t, fabric.OK, a.send(right, "hello"))
	require.Equal(t, "hello", b.next(t))
}

func TestDatagramTooLongForItsReceiver(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	h := a.to(t, b)
	defer h.Close()
	require.Equal(t, a.limits.MaxMessage, h.maxMessage)
	h.maxMessage = 5
	require.Equal(t, fabric.RNRRetryExceeded, a.send(h, "longer"))
	require.Equal(t, fabric.OK, a.send(h, "short"))
	require.Equal(t, "short", b.next(t))
}

// Receive returns from a flood that the filter rejects, and notifies the owner that
// there is more.
func TestDatagramsThatTheFilterDrops(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 4*pollBatch)
	h := a.to(t, b)
	defer h.Close()
	b.filter = func(d *Datagram) bool { return d.Len > 0 }
	for range 3 * pollBatch {
		require.Equal(t, fabric.OK, a.send(h, ""))
	}
	require.Equal(t, fabric.OK, a.send(h, "wanted"))
	calls := 0
	d := []Datagram{{Buffers: [][]byte{make([]byte, 10)}}}
	for b.Arm(); b.Receive(d) == 0; b.Arm() {
		calls++
		select {
		case <-b.news:
		case <-time.After(hang.After):
			require.FailNow(t, "nobody tells that there is more")
		}
	}
	require.GreaterOrEqual(t, calls, 2)
}

// A queue pair has the depth that was set last before it came into use. A send waits while the
// send queue is full of those that have not completed.
func TestDatagramsRecvQueue(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	b.SetRecvQueue(4)
	h := a.to(t, b)
	defer h.Close()
	b.SetRecvQueue(16)
	for range 2*a.queue().depth + 1 {
		require.Equal(t, fabric.OK, a.send(h, "hello"))
	}
	require.False(t, a.queue().failed.Load())
	other := a.to(t, a)
	defer other.Close()
	require.Equal(t, fabric.OK, a.send(other, "all sent"))
	require.Equal(t, "all sent", a.next(t))
	room := make([]Datagram, 16)
	require.Equal(t, 4, b.Receive(room))
}

// A queue pair that has failed is replaced, and its senders are notified.
func TestDatagramsWhenAQueuePairFails(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	h := a.to(t, b)
	defer h.Close()
	q := b.queue()
	require.NoError(t, q.qp.ToError()) // to state ERR
	hang.Unless(t, func() bool {
		b.Receive(make([]Datagram, 1)) // finds the receives flushed, once the device has done so
		return h.gone.Load()
	})
	again := a.to(t, b)
	defer again.Close()
	require.NotEqual(t, h.receiver, again.receiver)
	require.Equal(t, fabric.OK, a.send(again, "hello"))
	require.Equal(t, "hello", b.next(t))
}

// One watcher too many displaces the oldest, whose request is rejected.
func TestDatagramWatchersAreBounded(t *testing.T) {
	a, b := openPackets(t, 16), openPackets(t, 16)
	h := a.to(t, b)
	defer h.Close()
	q := b.queue()
	b.mu.Lock()
	q.watchers[0].since = time.Now().Add(-maxWatcherAge - time.Second)
	b.mu.Unlock()
	other := a.to(t, b)
	defer other.Close()
	requireGone(t, h)
	require.False(t, other.gone.Load())
}
