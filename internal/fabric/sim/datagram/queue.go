// The receive queues of a queue pair for datagrams.

package datagram

import "github.com/ringnet/ringnet/internal/fabric"

// receiveQueue has what was sent to an endpoint, or to a group at one of its cards.
type receiveQueue struct {
	d      *endpoint
	number uint64 // in the order in which those of the network were made
	membership
	waiting []fabric.Datagram // one buffer each
	ended   bool
}

// arrive puts a datagram into the queue, or drops it if the queue is full or has ended.
func (q *receiveQueue) arrive(x fabric.Datagram) {
	d := q.d
	switch {
	case q.ended:
		return
	case len(q.waiting) >= d.recvQueue:
		d.n.overruns++
		return
	}
	x.Via.Queue = q.number
	q.waiting = append(q.waiting, x)
	if d.armed {
		d.armed = false
		d.notify()
	}
}

// addQueue makes a receive queue.
func (d *endpoint) addQueue(m membership) {
	d.n.queues++
	d.queues = append(d.queues, &receiveQueue{d: d, number: d.n.queues, membership: m})
}

// end drops what has arrived and what will arrive.
func (q *receiveQueue) end() { q.ended, q.waiting = true, nil }

// Receive implements [fabric.DatagramEndpoint]. Each call begins with another queue than
// the last.
func (d *endpoint) Receive(ds []fabric.Datagram) (n int) {
	d.recvTurn++
	for n < len(ds) {
		x, ok := d.next()
		if !ok {
			break
		}
		if d.take(&ds[n], x) {
			n++
		}
	}
	return n
}

// next takes the next datagram from the receive queues. It takes Network.mu.
func (d *endpoint) next() (x fabric.Datagram, ok bool) {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	for i := range d.queues {
		q := d.queues[(d.recvTurn+i)%len(d.queues)]
		if len(q.waiting) > 0 {
			x, q.waiting = q.waiting[0], q.waiting[1:]
			return x, true
		}
	}
	return x, false
}

// take copies a datagram that has arrived, if the filter wants it.
func (d *endpoint) take(to *fabric.Datagram, x fabric.Datagram) (wanted bool) {
	rest := x.Buffers[0]
	to.Header, to.From, to.Via, to.Len = x.Header, x.From, x.Via, len(rest)
	to.Bytes = rest
	wanted = d.filter(to)
	to.Bytes = nil
	if !wanted {
		return false
	}
	for _, part := range to.Buffers {
		rest = rest[copy(part, rest):]
	}
	return true
}
