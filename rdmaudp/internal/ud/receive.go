//go:build linux && cgo

package ud

// What a queue pair for datagrams receives.

import (
	"net/netip"
	"sync"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

// pollBatch is the maximum number of completions that one poll takes.
const pollBatch = 64

// queueReceives are the receives of a queue pair, whose Wait returns when something arrives, or
// when the device changes.
type queueReceives struct {
	qp     *rdmacore.QueuePair
	slots  *rdmacore.Memory
	stride int

	receiving     sync.Mutex // held to use qp.Queue; guards what follows
	polled, taken int        // completions in its WCs, and how many of them have been looked at
}

// listen notifies the owner when something may have arrived, until the queue pair is closed or
// fails.
func (q *queuePair) listen() {
	for !q.closing.Load() {
		if err := q.qp.Wait(); err != nil && !fabric.MayGoOn(err) {
			q.d.fail(q)
			return
		}
		q.d.notify()
	}
}

func (q *queuePair) arm() {
	q.receiving.Lock()
	defer q.receiving.Unlock()
	_ = q.qp.Arm() // on an error, Wait returns that the device or the queue pair is gone
}

// receive copies datagrams that have arrived to ds, and returns their number. If the
// filter rejects a flood of them, it returns after len(ds)+pollBatch completions, and
// calls notify so that the owner calls it again.
func (q *queuePair) receive(ds []Datagram) (n int) {
	q.receiving.Lock()
	defer q.receiving.Unlock()
	for looked := 0; n < len(ds) && q.qp.Queue != nil && !q.closing.Load() && !q.failed.Load(); looked++ {
		if looked == len(ds)+pollBatch {
			q.d.notify()
			break
		}
		if q.taken == q.polled && !q.poll() {
			break
		}
		w := &q.qp.Queue.WCs[q.taken]
		q.taken++
		if w.Status != rdmacore.Success {
			q.d.fail(q)
		} else if q.take(w, &ds[n]) {
			n++
		}
	}
	return n
}

// poll posts again the receives whose datagrams have been taken, and polls. It returns
// false if nothing has arrived. Called with receiving held.
func (q *queuePair) poll() bool {
	if q.taken > 0 && q.qp.Queue.PostRecv(q.taken) != nil {
		q.d.fail(q)
		return false
	}
	q.polled, q.taken = q.qp.Queue.Poll(len(q.qp.Queue.WCs)), 0
	if q.polled < 0 {
		q.polled = 0
		q.d.fail(q)
	}
	return q.polled > 0
}

// take copies a datagram that has arrived to d, if the filter accepts it.
func (q *queuePair) take(w *rdmacore.WC, d *Datagram) (wanted bool) {
	if int64(w.ByteLen) > int64(q.stride) {
		return false // the device reports more than there was room for
	}
	slot := q.slots.Bytes()[int(w.ID)*q.stride:][:w.ByteLen]
	d.Header, d.From, d.Via = [HeaderSize]byte{}, netip.AddrPort{}, Via{Queue: q.number}
	var rest []byte
	if w.Flags&rdmacore.WithGRH != 0 && len(slot) >= grhSize+HeaderSize {
		var from netip.Addr
		from, d.Via.To = addressesOf((*[grhSize]byte)(slot), q.zone)
		d.From = netip.AddrPortFrom(from, 0)
		d.Header = [HeaderSize]byte(slot[grhSize:])
		rest = slot[grhSize+HeaderSize:]
	}
	return d.Take(rest, q.d.filter)
}
