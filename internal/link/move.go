package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
)

// move has the link go on over another queue pair before ctx ends, and waits so long for each message with
// the peer's keys. If move fails, the endpoint is its caller's again.
func (l *Link) move(ctx context.Context, ep fabric.Endpoint, keys time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	all, rings, err := l.beginMove()
	if err != nil {
		return err
	}
	x, err := l.moveMemory(ep, all, rings)
	var lostAgain error
	if err == nil {
		if err = x.run(ctx, ep, keys); err != nil && x.drain(ep) {
			lostAgain, err = err, nil
		}
	}
	if err == nil {
		err = l.goOn(ep, x, lostAgain)
	}
	if err != nil {
		_ = ep.Disconnect()
		withdraw(ep, all)
		l.endMove()
	}
	return err
}

// goOn has the link go on over another queue pair, which may be lost again already.
func (l *Link) goOn(ep fabric.Endpoint, x *keyExchange, lostAgain error) error {
	l.lock()
	defer l.unlock()
	took, cause := time.Since(l.m.LostAt()), l.m.Cause()
	if err := l.m.Adopt(machine.Exchange{Received: x.received, Own: x.own, Peer: x.peer, Posted: x.posted, UnderWay: x.sent - x.completed}); err != nil {
		return err
	}
	before := l.ep
	l.ep = ep
	l.path.lost = append(l.path.lost, before)
	l.path.owner.none = false
	l.freeMoved()
	l.life.told = machine.Up
	l.lacksPath.Store(false)
	l.settled.Broadcast()
	for _, moved := range l.moved {
		go moved(l.info(), took, cause)
	}
	if l.path.arrival != nil {
		lostAgain = errPeerReconnects
	}
	if lostAgain != nil {
		l.m.Fail(machine.Lost(lostAgain))
	}
	l.m.ConnectionChanged(x.changed)
	l.pollCompletions()
	return nil
}

// memoryOwner is which endpoint has the memory of a link that has lost its queue pair. Guarded
// by Link.mu, but for what only the goroutine of the search uses.
type memoryOwner struct {
	none   bool // no endpoint has it; read and written by that goroutine, and when it has ended
	moving bool // about to be another endpoint's: nothing else may free any
}

// beginMove returns all memory of the link to a caller that is about to move it, with what
// was being registered when the link lost its queue pair. A device takes seconds for much of
// it, and mu is not held meanwhile; but a link without a queue pair gets no more memory, and
// none of it is freed until endMove.
func (l *Link) beginMove() (all []fabric.Memory, rings int, err error) {
	l.memory.registering.Wait()
	l.lock()
	defer l.unlock()
	if l.m.Stage() != machine.Seeking {
		return nil, 0, machine.ErrGone
	}
	l.path.owner.moving = true
	all, rings = l.registered()
	return all, rings, nil
}

// endMove ends what beginMove has begun.
func (l *Link) endMove() {
	l.lock()
	defer l.unlock()
	l.freeMoved()
}

// freeMoved frees what its owners have closed since beginMove.
func (l *Link) freeMoved() {
	l.path.owner.moving = false
	for b := range l.buffers {
		if b.closed {
			b.free(fabric.Memory.Free)
		}
	}
}

// registered is all memory of the link, and how much of it, from the first on, is the
// peer's to write to.
func (l *Link) registered() (all []fabric.Memory, rings int) {
	for _, s := range l.m.Rings().Slabs() {
		all = append(all, s.Memory.(fabric.Memory))
	}
	rings = len(all)
	for b := range l.buffers {
		all = append(all, b.memory)
	}
	return append(all, l.m.StagingMemory()...), rings
}

// withdraw takes a link's memory from an endpoint.
func withdraw(ep fabric.Endpoint, all []fabric.Memory) {
	for _, m := range all {
		_ = ep.(fabric.Mover).Leave(m) // a device that is gone has it no more
	}
}

// withdrawFromLost takes its memory from the endpoint that the link has lost.
func (l *Link) withdrawFromLost() {
	all, _, err := l.beginMove()
	if err != nil {
		return
	}
	withdraw(l.ep, all) // which stays what it is while the link seeks
	l.path.owner.none = true
	l.endMove()
}

// moveMemory hands the link's memory to another endpoint, and prepares to tell the peer the
// keys: the peer writes to the first so many, the rings.
func (l *Link) moveMemory(ep fabric.Endpoint, all []fabric.Memory, rings int) (*keyExchange, error) {
	var regions wire.Regions
	for i, m := range all {
		if err := ep.(fabric.Mover).Adopt(m); err != nil {
			return nil, err
		}
		if i < rings {
			regions = append(regions, wire.Region{Addr: m.Addr(), Size: uint32(len(m.Bytes())), Key: m.RKey()})
		}
	}
	regions.Sort()
	l.lock()
	defer l.unlock()
	memory, buffer := l.m.Scratch()
	return &keyExchange{
		got:    l.m.Snapshot(),
		own:    regions,
		unsent: regions,
		more:   true,
		posted: l.cfg.RecvQueue + credit.LinkControlReceives,
		memory: memory,
		buffer: buffer,
	}, nil
}

// maxRegions is how many regions of memory a peer may have.
const maxRegions = 1 << 16

// keyExchange tells the peer what this side has received and the keys of its memory, and
// receives the same from the peer. Each SEND but the first answers one of the peer's, so
// that a receive is posted for it. All use one buffer, so each waits for the completion of
// the last.
type keyExchange struct {
	got       wire.Header // received by this side
	received  wire.Header // by the peer
	own, peer wire.Regions
	unsent    wire.Regions // of own
	more      bool         // the peer has more to tell
	peerSent  int          // SENDs of the peer's
	posted    int          // receives
	sent      int
	completed int       // of those; the last may complete when the link is at work again
	late      time.Time // of the peer's next message
	changed   error     // what Wait has returned, for the link to take note of
	memory    fabric.Memory
	buffer    []byte
}

func (x *keyExchange) run(ctx context.Context, ep fabric.Endpoint, wait time.Duration) error {
	stop := context.AfterFunc(ctx, ep.Wake)
	defer stop()
	x.late = time.Now().Add(wait)
	late := time.AfterFunc(wait, ep.Wake)
	defer late.Stop()
	for x.sent < x.peerSent || x.more || len(x.unsent) > 0 {
		if err := x.await(ctx, ep, func() bool { return x.completed == x.sent }); err != nil {
			return err
		}
		n := min(len(x.unsent), wire.MaxRegions)
		b := wire.Keys{Received: x.got, More: len(x.unsent) > n, Regions: x.unsent[:n]}.Append(x.buffer)
		wr := fabric.WorkRequest{ID: machine.KeysID, Op: fabric.Send, Signaled: true, Data: b, Memory: x.memory}
		if err := ep.PostSend([]fabric.WorkRequest{wr}); err != nil {
			return err
		}
		x.unsent = x.unsent[n:]
		x.sent++
		x.late = time.Now().Add(wait)
		late.Reset(wait)
		if err := x.await(ctx, ep, func() bool { return x.peerSent >= x.sent }); err != nil {
			return err
		}
	}
	return nil
}

// await takes completions until enough returns true. It polls them one by one, since what
// comes behind the peer's last SEND is the link's to take.
func (x *keyExchange) await(ctx context.Context, ep fabric.Endpoint, enough func() bool) error {
	var c [1]fabric.Completion
	for !enough() {
		if err := ep.Arm(); err != nil {
			return err
		}
		n, err := ep.Poll(c[:])
		if err == nil && n == 0 {
			switch err = ctx.Err(); {
			case err != nil:
			case !time.Now().Before(x.late):
				err = errNoKeys
			default:
				if err = ep.Wait(); fabric.MayGoOn(err) {
					x.changed, err = err, nil // it may come back in time
				}
			}
		}
		if err == nil && n == 1 {
			err = x.take(&c[0])
			if err == nil && c[0].Recv {
				err = ep.PostRecv(1)
				x.posted++
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errNoKeys reports a peer that has not told its keys in time.
var errNoKeys = errors.New("the peer has not sent its keys")

// take handles a completion.
func (x *keyExchange) take(c *fabric.Completion) error {
	if c.Recv {
		x.posted--
	}
	switch {
	case c.Status != fabric.OK:
		return machine.Failed(c)
	case !c.Recv:
		x.completed++
		return nil
	}
	keys, err := decodeKeys(c)
	if err != nil {
		return machine.Breach(err)
	}
	return x.receive(&keys)
}

// receive handles a SEND of the peer's.
func (x *keyExchange) receive(keys *wire.Keys) error {
	switch {
	case len(x.peer)+len(keys.Regions) > maxRegions:
		return machine.Breach(fmt.Errorf("the peer names more than %d regions of memory", maxRegions))
	case !x.more && len(keys.Regions) > 0:
		return machine.Breach(errors.New("keys behind the last"))
	case x.peerSent > 0 && keys.Received != x.received:
		return machine.Breach(errors.New("keys with totals that have changed"))
	}
	x.peerSent++
	x.peer = append(x.peer, keys.Regions...)
	if !keys.More {
		x.peer.Sort()
	}
	x.received, x.more = keys.Received, keys.More
	return nil
}

// drain takes what has arrived on a queue pair that was lost during the exchange, up to the
// peer's last SEND, and returns whether the exchange is complete all the same. If it is, the
// peer may have gone on and sent data, which its device counts as delivered: the peer may
// have freed those bytes, so the link has to go on over this queue pair to receive them.
func (x *keyExchange) drain(ep fabric.Endpoint) bool {
	if x.sent == 0 || len(x.unsent) > 0 || ep.Disconnect() != nil {
		return false
	}
	end := time.Now().Add(machine.DrainTime)
	late := time.AfterFunc(machine.DrainTime, ep.Wake)
	defer late.Stop()
	var c [1]fabric.Completion
	for (x.more || x.peerSent < x.sent) && x.posted > 0 && time.Now().Before(end) {
		if ep.Arm() != nil {
			return false
		}
		switch n, err := ep.Poll(c[:]); {
		case err != nil:
			return false
		case n == 0:
			_ = ep.Wait() // whatever it says, what has arrived comes first
		case x.take(&c[0]) != nil && c[0].Status == fabric.OK:
			return false
		}
	}
	return !x.more && x.peerSent == x.sent // each SEND of this side has its answer
}

// decodeKeys takes keys out of a receive.
func decodeKeys(c *fabric.Completion) (wire.Keys, error) {
	if c.Op != fabric.Send {
		return wire.Keys{}, errors.New("a message that does not have the peer's keys")
	}
	return wire.DecodeKeys(c.Data)
}
