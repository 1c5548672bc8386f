//go:build linux && cgo

package ud

// What a queue pair of type UD sends, and the address handles by which it does.

import (
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

// sendWithin is how long drain waits for the device to send: a device whose port is up,
// and that has received no pause frame, takes microseconds.
const sendWithin = time.Second

// queueSends are the sends of a queue pair, which have a completion queue of their own.
type queueSends struct {
	depth     int // of the send queue
	sends     *rdmacore.Queue
	sendSlots *rdmacore.Memory

	sending      sync.Mutex // guards what follows
	posted, done uint64     // counts of sends
	handles      map[*addressHandle]struct{}
}

// setAddressHandle gives h a new address handle for at, for which the kernel looks up
// the Ethernet address again. The error is net.ErrClosed if q is being closed, or h was
// released.
func (q *queuePair) setAddressHandle(h *addressHandle, at *rdmacore.Service) error {
	q.handling.Lock()
	defer q.handling.Unlock()
	if q.closing.Load() {
		return net.ErrClosed
	}
	ah, err := q.qp.CreateAddressHandle(at)
	if err != nil {
		return err
	}
	q.sending.Lock()
	defer q.sending.Unlock()
	if h.released {
		ah.Destroy()
		return net.ErrClosed
	}
	q.retire(h)
	h.ah = ah
	q.handles[h] = struct{}{}
	return nil
}

// retire destroys the address handle of h, once what was sent by it has left the device.
// Called with sending held.
func (q *queuePair) retire(h *addressHandle) {
	if h.ah == (rdmacore.AddressHandle{}) {
		return // it has none yet, or q is closed
	}
	if !q.drain(0) {
		q.d.fail(q)
		_ = q.qp.ToError()
	}
	q.destroy(h)
}

// destroy destroys it when no send uses it any more. Called with sending held.
func (q *queuePair) destroy(h *addressHandle) {
	h.ah.Destroy()
	h.ah = rdmacore.AddressHandle{}
	delete(q.handles, h)
}

// release ends the use of a handle: setAddressHandle fails from now on.
func (q *queuePair) release(h *addressHandle) {
	q.sending.Lock()
	defer q.sending.Unlock()
	h.released = true
	q.retire(h)
}

// send sends datagrams by handles of this queue pair, and sets their Status.
func (q *queuePair) send(ds []Datagram) {
	q.sending.Lock()
	defer q.sending.Unlock()
	batch := 0
	for i := range ds {
		if ds[i].Status = q.encode(batch, &ds[i]); ds[i].Status != fabric.OK {
			continue
		}
		if batch++; batch == min(sendBatch, q.depth) {
			q.post(batch)
			batch = 0
		}
	}
	q.post(batch)
}

// encode writes a send of d to slot i of the batch. Called with sending held.
func (q *queuePair) encode(i int, d *Datagram) fabric.Status {
	h := d.To.(*addressHandle)
	n := HeaderSize + Size(d.Buffers)
	switch {
	case h.gone.Load() || h.ah == (rdmacore.AddressHandle{}) || q.failed.Load():
		return fabric.Flushed
	case n > h.maxMessage+HeaderSize:
		return fabric.RNRRetryExceeded
	case !q.drain(q.depth - 1 - i):
		q.d.fail(q)
		return fabric.Flushed
	}
	at := int((q.posted+uint64(i))%uint64(q.depth)) * q.stride
	slot := q.sendSlots.Bytes()[at:][:n]
	rest := slot[copy(slot, d.Header[:]):]
	for _, b := range d.Buffers {
		rest = rest[copy(rest, b):]
	}
	w, s := &q.sends.Sends[i], &q.sends.SGEs[i]
	w.Opcode = rdmacore.SendOpcode
	w.Flags = 0
	if n <= q.qp.Inline() {
		w.Flags = rdmacore.Inline
	}
	w.NumSGE = 1
	w.RemoteAddr = h.ah.Addr()
	w.RKey = h.receiver.number
	w.RemoteQKey = h.receiver.key
	*s = rdmacore.SGE{Addr: rdmacore.AddrOf(slot), Length: uint32(n), LKey: q.sendSlots.LKey()}
	return fabric.OK
}

// post posts a batch of n sends, of which the last is signaled. Called with sending
// held.
func (q *queuePair) post(n int) {
	if n == 0 {
		return
	}
	q.posted += uint64(n)
	last := &q.sends.Sends[n-1]
	last.Flags |= rdmacore.Signaled
	last.ID = q.posted
	if q.sends.PostSend(n) != nil {
		q.d.fail(q)
	}
}

// drain polls until at most limit sends are under way. It returns false if one fails, or
// if they take longer than sendWithin. Called with sending held.
func (q *queuePair) drain(limit int) bool {
	var deadline time.Time
	for polls := 0; q.posted-q.done > uint64(limit); polls++ {
		if q.failed.Load() {
			return false
		}
		n := q.sends.Poll(sendBatch)
		for i := range max(n, 0) {
			w := &q.sends.WCs[i]
			if w.Status != rdmacore.Success {
				return false
			}
			q.done = w.ID
		}
		switch {
		case n < 0:
			return false
		case n > 0:
		case deadline.IsZero():
			deadline = time.Now().Add(sendWithin)
		case polls > rdmacore.Spin:
			if time.Now().After(deadline) {
				return false
			}
			time.Sleep(10 * time.Microsecond)
		default:
			runtime.Gosched()
		}
	}
	return true
}
