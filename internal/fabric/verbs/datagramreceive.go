//go:build linux && cgo

package verbs

// What a queue pair for datagrams receives.

// #include "shim.h"
import "C"
import (
	"errors"
	"net/netip"
	"sync"

	"github.com/ringnet/ringnet/internal/fabric"
)

// queueReceives are the receives of a queue pair. e has the queue pair, the completion queue
// of the receives, and their memory. It sleeps until something arrives, and is told what
// becomes of the device.
type queueReceives struct {
	e      *endpoint
	slots  []byte
	stride int

	receiving     sync.Mutex // is held by who looks at e.queue, and guards what follows
	polled, taken int        // completions in e.wc, and how many of them have been looked at
}

// begin has the endpoint's owner told when there is something to receive. Called with the
// endpoint's mu held.
func (q *datagramQueue) begin() {
	q.listening = make(chan struct{})
	go q.listen()
}

func (q *datagramQueue) listen() {
	defer close(q.listening)
	for !q.closing.Load() {
		if err := q.e.Wait(); err != nil && !errors.Is(err, fabric.ErrPortDown) {
			q.d.fail(q)
			return
		}
		q.d.notify()
	}
}

func (q *datagramQueue) arm() {
	q.receiving.Lock()
	defer q.receiving.Unlock()
	_ = q.e.Arm() // the device is gone, or the queue pair: Wait says so
}

// receive takes what has arrived, as much as ds has room for, and says how much. It comes
// back after a while from a flood of which nothing is wanted, and has itself called again.
func (q *datagramQueue) receive(ds []fabric.Datagram) (n int) {
	q.receiving.Lock()
	defer q.receiving.Unlock()
	for looked := 0; n < len(ds) && q.e.queue != nil && !q.closing.Load() && !q.failed.Load(); looked++ {
		if looked == len(ds)+pollBatch {
			q.d.notify()
			break
		}
		if q.taken == q.polled && !q.poll() {
			break
		}
		w := &q.e.wc[q.taken]
		q.taken++
		if w.status != C.RN_IBV_WC_SUCCESS {
			q.d.fail(q)
		} else if q.take(w, &ds[n]) {
			n++
		}
	}
	return n
}

// poll posts the receives again whose slots have been copied from, and polls, for more
// than a caller may have room for. It returns false if there is nothing. Called with
// receiving held.
func (q *datagramQueue) poll() bool {
	e := q.e
	if q.taken > 0 && C.rn_post_recv(e.queue, C.int(q.taken)) != 0 {
		q.d.fail(q)
		return false
	}
	q.polled, q.taken = int(C.rn_poll(e.queue, C.int(len(e.wc)))), 0
	if q.polled < 0 {
		q.polled = 0
		q.d.fail(q)
	}
	return q.polled > 0
}

// take copies a datagram that has arrived, if it is wanted.
func (q *datagramQueue) take(w *C.struct_rn_ibv_wc, d *fabric.Datagram) (wanted bool) {
	slot := q.slots[int(w.wr_id)*q.stride:][:w.byte_len]
	d.Header, d.From, d.Via, d.Len = [fabric.HeaderSize]byte{}, netip.AddrPort{}, fabric.Via{Queue: q.number}, 0
	var rest []byte
	if w.wc_flags&C.RN_IBV_WC_GRH != 0 && len(slot) >= grhSize+fabric.HeaderSize {
		var from netip.Addr
		from, d.Via.To = addressesOf((*[grhSize]byte)(slot), q.zone)
		d.From = netip.AddrPortFrom(from, 0)
		d.Header = [fabric.HeaderSize]byte(slot[grhSize:])
		rest = slot[grhSize+fabric.HeaderSize:]
		d.Len = len(rest)
	}
	if !q.d.filter(d) {
		return false
	}
	for _, part := range d.Buffers {
		rest = rest[copy(part, rest):]
	}
	return true
}
