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

// queueReceives are the receives of a queue pair. e has the queue pair, the completion
// queue of the receives, and their memory. Its Wait returns when something arrives, or
// when the device changes.
type queueReceives struct {
	e      *endpoint
	slots  []byte
	stride int

	receiving     sync.Mutex // held to use e.queue; guards what follows
	polled, taken int        // completions in e.wc, and how many of them have been looked at
}

// listen notifies the owner when something may have arrived, until the queue pair is closed or
// fails.
func (q *datagramQueue) listen() {
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
	_ = q.e.Arm() // on an error, Wait returns that the device or the queue pair is gone
}

// receive copies datagrams that have arrived to ds, and returns their number. If the
// filter rejects a flood of them, it returns after len(ds)+pollBatch completions, and
// calls notify so that the owner calls it again.
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

// poll posts again the receives whose datagrams have been taken, and polls. It returns
// false if nothing has arrived. Called with receiving held.
func (q *datagramQueue) poll() bool {
	e := q.e
	if q.taken > 0 && C.rn_post_recv(handle(e.queue), C.int(q.taken)) != 0 {
		q.d.fail(q)
		return false
	}
	q.polled, q.taken = int(C.rn_poll(handle(e.queue), C.int(len(e.wc)))), 0
	if q.polled < 0 {
		q.polled = 0
		q.d.fail(q)
	}
	return q.polled > 0
}

// take copies a datagram that has arrived to d, if the filter accepts it.
func (q *datagramQueue) take(w *C.struct_rn_ibv_wc, d *fabric.Datagram) (wanted bool) {
	if int64(w.byte_len) > int64(q.stride) {
		return false // the device reports more than there was room for
	}
	slot := q.slots[int(w.wr_id)*q.stride:][:w.byte_len]
	d.Header, d.From, d.Via = [fabric.HeaderSize]byte{}, netip.AddrPort{}, fabric.Via{Queue: q.number}
	var rest []byte
	if w.wc_flags&C.RN_IBV_WC_GRH != 0 && len(slot) >= grhSize+fabric.HeaderSize {
		var from netip.Addr
		from, d.Via.To = addressesOf((*[grhSize]byte)(slot), q.zone)
		d.From = netip.AddrPortFrom(from, 0)
		d.Header = [fabric.HeaderSize]byte(slot[grhSize:])
		rest = slot[grhSize+fabric.HeaderSize:]
	}
	return d.Take(rest, q.d.filter)
}
