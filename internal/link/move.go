package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// move has the link go on over another queue pair, that of the given attempt. If it
// fails the endpoint is its caller's again.
func (l *Link) move(ctx context.Context, ep fabric.Endpoint, attempt uint64, heard *wire.Keys) error {
	x, err := l.moveMemory(ep)
	if err == nil {
		x.heard = heard
		err = x.run(ctx, ep)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.resume(ep, attempt, x)
	}
	if err != nil {
		_ = ep.Disconnect()
		l.leave(ep)
	}
	return err
}

// registered is all memory of the link, and how much of it, from the first on, is the
// peer's to write to. Called with mu held.
func (l *Link) registered() (all []fabric.Memory, rings int) {
	for _, s := range l.rings.slabs {
		all = append(all, s.memory)
	}
	rings = len(all)
	for b := range l.send.buffers {
		all = append(all, b.memory)
	}
	return append(all, l.send.staging.memory), rings
}

// leave takes from an endpoint what it has of the link's memory. Called with mu held.
func (l *Link) leave(ep fabric.Endpoint) {
	all, _ := l.registered()
	for _, m := range all {
		_ = ep.(fabric.Mover).Leave(m) // a device that is gone has it no more
	}
	l.path.homeless = true
}

// moveMemory has the link's memory go over to another endpoint, of which the peer is
// to be told.
func (l *Link) moveMemory(ep fabric.Endpoint) (*keyExchange, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != seeking {
		return nil, errGone
	}
	if !l.path.homeless {
		l.leave(l.ep)
	}
	var regions wire.Regions
	all, rings := l.registered()
	for i, m := range all {
		if err := ep.(fabric.Mover).Adopt(m); err != nil {
			return nil, err
		}
		if i < rings {
			regions = append(regions, wire.Region{Addr: m.Addr(), Size: uint32(len(m.Bytes())), Key: m.RKey()})
		}
	}
	regions.Sort()
	got := l.ledger.Received()
	return &keyExchange{
		got:    wire.Header{Data: got.Data, Records: got.Records},
		own:    regions,
		first:  l.send.slots.Next(),
		memory: l.send.staging.memory,
		buffer: l.send.credits.buffers[:0:wire.MessageSize], // nothing else is sent meanwhile
	}, nil
}

// maxRegions bounds what a peer may tell of.
const maxRegions = 1 << 16

// keyExchange tells the peer what this side has received, and of its memory, and takes
// note of the same of the peer's. Each SEND but the first answers one of the peer's, so
// that there is a receive for it, and the buffer is free.
type keyExchange struct {
	got       wire.Header // received by this side
	received  wire.Header // by the peer
	own, peer wire.Regions
	heard     *wire.Keys // the peer's first SEND, if it has come already
	first     uint64     // number of the first work request
	sent      int
	completed int // of those; the last may complete when the link is at work again
	memory    fabric.Memory
	buffer    []byte
}

func (x *keyExchange) run(ctx context.Context, ep fabric.Endpoint) error {
	stop := context.AfterFunc(ctx, ep.Wake)
	defer stop()
	untold := x.own
	for more := true; more || len(untold) > 0; {
		n := min(len(untold), wire.MaxRegions)
		b := wire.Keys{Received: x.got, More: len(untold) > n, Regions: untold[:n]}.Append(x.buffer)
		untold = untold[n:]
		wr := fabric.WorkRequest{ID: x.first + uint64(x.sent), Op: fabric.Send, Signaled: true, Data: b, Memory: x.memory}
		if err := ep.PostSend([]fabric.WorkRequest{wr}); err != nil {
			return err
		}
		x.sent++
		keys, err := x.await(ctx, ep)
		if err != nil {
			return err
		}
		if x.peer = append(x.peer, keys.Regions...); len(x.peer) > maxRegions {
			return fmt.Errorf("the peer tells of more than %d regions of memory", maxRegions)
		}
		x.received, more = keys.Received, keys.More
	}
	x.peer.Sort()
	return nil
}

// await waits for a SEND of the peer's. What comes behind the last is not for here.
func (x *keyExchange) await(ctx context.Context, ep fabric.Endpoint) (keys wire.Keys, err error) {
	if x.heard != nil {
		keys, x.heard = *x.heard, nil
		return keys, nil
	}
	var c [1]fabric.Completion
	for {
		if err := ep.Arm(); err != nil {
			return keys, err
		}
		n, err := ep.Poll(c[:])
		if err == nil && n == 0 {
			if err = ctx.Err(); err == nil {
				if err = ep.Wait(); errors.Is(err, fabric.ErrPortDown) {
					err = nil
				}
			}
		}
		switch {
		case err != nil:
			return keys, err
		case n == 0:
		case c[0].Status != fabric.OK:
			return keys, failed(&c[0])
		case !c[0].Recv:
			x.completed++
		default:
			return receivedKeys(ep, &c[0])
		}
	}
}

// receivedKeys takes keys out of a receive, and posts that again.
func receivedKeys(ep fabric.Endpoint, c *fabric.Completion) (wire.Keys, error) {
	if c.Op != fabric.Send {
		return wire.Keys{}, errors.New("another message than the peer's keys")
	}
	keys, err := wire.DecodeKeys(c.Data)
	if err == nil {
		err = ep.PostRecv(1)
	}
	return keys, err
}

// resume sets the link to work on another queue pair. Called with mu held, which it
// may release to send.
func (l *Link) resume(ep fabric.Endpoint, attempt uint64, x *keyExchange) error {
	if l.stage != seeking {
		return errGone
	}
	if err := l.ledger.Resume(credit.Totals{Data: x.received.Data, Records: x.received.Records}); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	l.strike()
	if l.lostBytes() {
		return fmt.Errorf("%w: what its device had taken is lost with it", errGone)
	}
	l.sendAgain(x)
	before := l.ep
	l.ep = ep
	l.stats.Moves++
	l.path.over = attempt
	l.stage, l.cause, l.final = up, nil, false
	l.cut, l.abandoned, l.peerGone = false, false, false
	l.path.homeless = false
	l.receive.posted, l.receive.spent, l.receive.flushing = l.cfg.RecvQueue+credit.LinkControlReceives, 0, false
	l.watch.armed, l.send.called = false, false
	before.Wake() // the engine, to close it
	for s := range l.everyStream() {
		s.wake()
	}
	l.watchNow()
	l.pollAndSend()
	return nil
}
