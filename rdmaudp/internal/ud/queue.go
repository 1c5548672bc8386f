//go:build linux && cgo

package ud

// A queue pair of type UD, and its memory. What it receives is in receive.go,
// what it sends in send.go.
//
// What arrives lies in slots of registered memory, each with room for the longest
// datagram and the device's header, until Receive copies it; what is to be sent is
// copied to slots of its own. Sends and receives have a completion queue each, because
// different goroutines poll them.

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
)

const (
	// maxSends is the maximum depth of the send queue, and sendBatch the maximum
	// number of sends that are posted at once.
	maxSends  = 128
	sendBatch = 64
)

// queuePair is a queue pair of type UD.
type queuePair struct {
	d *endpoint
	queueName
	queueReceives
	queueSends
	member    *membership // nil if it is not a group's; guarded by datagrams.making, until it is removed from d
	memory    budget.Account
	listening sync.WaitGroup // listen
	failed    atomic.Bool
	closing   atomic.Bool

	handling sync.Mutex // held by setAddressHandle and close; locked before receiving and sending

	// Guarded by datagrams.mu, until it is removed from d.
	used     bool      // senders may know it, or handles send by it
	watchers []watcher // the oldest first
}

// queueName is what identifies a queue pair, and what senders need to know of it.
type queueName struct {
	number uint64         // unique in this process
	local  netip.Addr     // of its port
	group  netip.AddrPort // it receives from this group alone; not valid: from senders that resolve local
	key    uint32         // Q_Key
	zone   string         // of the port's interface
	mtu    int
}

var queuePairsMade atomic.Uint64 // made so far

// newQueuePair returns a queue pair, with its receives posted, at the port that has
// an address. If m is not nil, the queue pair is for m's group alone, and m ends with
// it, or with an error.
func newQueuePair(d *endpoint, local netip.Addr, m *membership, recvs int) (*queuePair, error) {
	q := &queuePair{
		d:          d,
		queueName:  queueName{number: queuePairsMade.Add(1), local: local},
		queueSends: queueSends{handles: make(map[*addressHandle]struct{})},
		member:     m,
		memory:     budget.Account{Budget: budget.Process, Locked: true},
	}
	if m != nil {
		q.group, q.used = m.group, true
	}
	if err := q.open(recvs); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

func (q *queuePair) open(recvs int) error {
	if err := q.bind(); err != nil {
		return err
	}
	wanted := maxSends
	q.key = randomKey()
	if q.group.IsValid() {
		wanted, q.key = 1, groupKey(q.group.Port())
	}
	sends, recvs := q.qp.Clamp(wanted, recvs)
	q.depth = sends
	q.stride = rdmacore.Stride(grhSize + q.mtu)
	memory := fabric.Pages(recvs*q.stride) + fabric.Pages(sends*q.stride)
	if err := q.memory.Reserve(memory + fabric.DatagramQueues(sends, recvs)); err != nil {
		return err
	}
	if err := q.createQueues(sends, recvs); err != nil {
		return err
	}
	if err := q.createMemory(sends, recvs); err != nil {
		return err
	}
	if err := q.qp.ToReadyForDatagrams(q.key); err != nil {
		return err
	}
	if err := q.qp.Queue.PostRecv(recvs); err != nil {
		return err
	}
	if q.member != nil {
		return q.member.attach(q.qp)
	}
	return nil
}

// isAt reports whether the queue pair is at the port of an ID.
func (q *queuePair) isAt(id *rdmacore.ID) bool { return q.qp.ID.SamePort(id) }

// bind opens the device and reads the attributes of its port.
func (q *queuePair) bind() error {
	id, err := q.d.cm.Bind(q.local)
	if err != nil {
		return err
	}
	q.qp = &rdmacore.QueuePair{ID: id}
	if err := q.qp.OpenDevice(); err != nil {
		return err
	}
	port, err := q.qp.QueryPort()
	if err != nil {
		return err
	}
	if !port.Ethernet {
		return fmt.Errorf("datagrams over %s, which only RoCE has: %w", id.Transport(), errors.ErrUnsupported)
	}
	q.mtu = mtuBytes(port.MTU)
	q.zone = id.Interface()
	return nil
}

// mtuBytes converts an ibv_mtu to bytes: 1 is 256 bytes, and each is twice the one
// before.
func mtuBytes(mtu uint8) int { return 128 << min(mtu, 5) }

// randomKey is a random Q_Key of those that any sender may use: without the most
// significant bit (InfiniBand specification, 10.2.5).
func randomKey() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		if key := binary.BigEndian.Uint32(b[:]) &^ (1 << 31); key != 0 {
			return key
		}
	}
}

// createQueues makes the completion queues and the queue pair.
func (q *queuePair) createQueues(sends, recvs int) error {
	if err := q.qp.CreateCompletionQueue(recvs); err != nil {
		return err
	}
	if err := q.qp.CreateSendCompletionQueue(sends); err != nil {
		return err
	}
	return q.qp.Create(rdmacore.UD, sends, recvs)
}

// createMemory makes the slots, and the work requests that name them.
func (q *queuePair) createMemory(sends, recvs int) (err error) {
	if q.slots, err = q.qp.Register(recvs*q.stride, rdmacore.LocalWrite); err != nil {
		return err
	}
	err = q.qp.NewQueue(rdmacore.QueueOptions{
		WCs:        min(pollBatch, max(1, recvs/4)), // receives are posted again when all that were polled have been taken
		Recvs:      recvs,
		Slots:      q.slots,
		RecvStride: q.stride,
		RecvSize:   grhSize + q.mtu,
	})
	if err != nil {
		return err
	}
	if q.sendSlots, err = q.qp.Register(sends*q.stride, rdmacore.LocalWrite); err != nil {
		return err
	}
	q.sends, err = q.qp.NewSendQueue(rdmacore.QueueOptions{WCs: sendBatch, Sends: sendBatch})
	return err
}

// close releases everything. It is called once, when the queue pair is not in the
// endpoint.
func (q *queuePair) close() {
	q.closing.Store(true)
	if q.qp != nil {
		q.qp.Wake()
		q.listening.Wait()
	}
	q.handling.Lock()
	defer q.handling.Unlock()
	q.receiving.Lock()
	defer q.receiving.Unlock()
	q.sending.Lock()
	defer q.sending.Unlock()
	if q.member != nil {
		q.member.end()
	}
	if q.qp == nil {
		return
	}
	_ = q.qp.Destroy() // an error, here and below, means that the device is gone
	for h := range q.handles {
		q.destroy(h)
	}
	_ = q.qp.Close()
	q.sends = nil
	q.memory.Release(q.memory.Bytes())
}

// maxMessage is the maximum number of bytes of a datagram, behind its header.
func (q *queuePair) maxMessage() int { return q.mtu - HeaderSize }
