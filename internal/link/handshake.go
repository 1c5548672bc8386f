package link

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// Dial makes a link of an endpoint that was dialed, and its first stream. It
// takes the endpoint over, and closes it if it fails. It ends early when ctx
// does, and after Config.Handshake.
func Dial(ctx context.Context, ep fabric.Endpoint, cfg Config) (*Stream, error) {
	awaited := false
	return handshake(ctx, ep, cfg, &awaited, func(ctx context.Context, l *Link) (*Stream, error) {
		held, err := l.rings.take(l.cfg.FirstRing())
		if err != nil {
			return nil, err
		}
		l.active = true
		s := l.addStream(0, credit.NewStream(held.size), held)
		answer, err := ep.Connect(ctx, l.hello(s, credit.OpenRecord))
		if err != nil {
			return nil, err
		}
		awaited = true
		peer, r, err := wire.DecodeHello(answer)
		if err == nil {
			l.meet(peer)
			err = l.answered(s, &r)
		}
		if err != nil {
			return nil, &ProtocolError{err.Error()}
		}
		return s, ep.Confirm()
	})
}

// Accept makes a link of an endpoint that a listener accepted, as Dial does on
// the other side.
func Accept(ctx context.Context, ep fabric.Endpoint, cfg Config) (*Stream, error) {
	awaited := true
	peer, r, bad := wire.DecodeHello(ep.Private())
	if bad == nil && (r.Type != wire.OpenRecord || r.Stream != 0) {
		bad = fmt.Errorf("%v for stream %d in a request", r.Type, r.Stream)
	}
	if peer.Features&wire.Dedicated != 0 {
		cfg.Shared, cfg.Idle = false, 0
	}
	return handshake(ctx, ep, cfg, &awaited, func(ctx context.Context, l *Link) (*Stream, error) {
		if bad != nil {
			return nil, &ProtocolError{bad.Error()}
		}
		l.meet(peer)
		held, err := l.rings.take(l.cfg.FirstRing())
		if err != nil {
			return nil, err
		}
		s := l.addStream(0, credit.AcceptStream(held.size, r.Ring.Size), held)
		s.peer, l.send.target = r.Ring, r.Ring
		awaited = false
		if err := ep.Accept(ctx, l.hello(s, credit.AcceptRecord)); err != nil {
			return nil, err
		}
		return s, l.reach(r.Ring)
	})
}

// handshake prepares a link, has it exchange hellos, and starts it. If it fails
// while the peer awaits this side's answer, the peer is told why. At other times
// there must be no rejection: the kernel would take the connection for settled,
// repeat the unanswered request for some 100 s all the same, and have Close wait
// for the end of that.
func handshake(ctx context.Context, ep fabric.Endpoint, cfg Config, awaited *bool,
	exchange func(ctx context.Context, l *Link) (*Stream, error)) (s *Stream, err error) {
	account := &budget.Account{Budget: cfg.Budget}
	defer func() {
		if s != nil {
			return
		}
		// Without an error, a function of the user's has panicked.
		if err != nil && *awaited {
			_ = ep.Reject(rejection(err).Append(nil))
		}
		_ = ep.Close()
		account.Release(account.Bytes())
	}()
	ctx, cancel := context.WithTimeout(ctx, cfg.Handshake)
	defer cancel()
	l, err := prepare(ep, cfg, account)
	if err != nil {
		return nil, short(err, within(cfg.Budget))
	}
	local, remote := ep.LocalAddr(), ep.RemoteAddr()
	if !cfg.Addresses.claim(local, remote) {
		return nil, &RefusedError{fmt.Sprintf("another connection has the addresses %v and %v", local, remote), true}
	}
	defer func() {
		if s == nil {
			cfg.Addresses.release(local, remote)
		}
	}()
	if s, err = exchange(ctx, l); err != nil {
		return nil, handshakeError(err)
	}
	s.local, s.remote = local, remote
	s.inbox.ring = ring.New(s.inbox.held.bytes())
	l.start()
	return s, nil
}

// minSendQueue is the least that a link works with: room for some data beside
// the control messages.
const minSendQueue = credit.LinkControlSends + 6

// rejection is what the peer is told of an error.
func rejection(err error) wire.Reject {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return wire.Reject{Busy: refused.Busy, Reason: refused.Reason}
	}
	var shortage *budget.ShortageError
	return wire.Reject{Busy: errors.As(err, &shortage) && shortage.Passing, Reason: err.Error()}
}

// prepare opens the endpoint and sets up everything that does not depend on the
// peer. The receives are posted before the peer hears of this side. What a link
// needs for good is reserved before anything is made.
func prepare(ep fabric.Endpoint, cfg Config, account *budget.Account) (*Link, error) {
	options := fabric.Options{
		SendQueue:    cfg.SendQueue,
		RecvQueue:    cfg.RecvQueue + credit.LinkControlReceives,
		RecvSize:     wire.MessageSize,
		RemoteMemory: max(cfg.RemoteMemory, cfg.RecvBuffer),
		AckTimeout:   cfg.AckTimeout,
		Retries:      cfg.Retries,
	}
	asked := ep.Footprint(options)
	account.Locked = asked.Locked
	if err := account.Reserve(cfg.fixedMemory(asked)); err != nil {
		return nil, err
	}
	limits, err := ep.Open(options)
	if err != nil {
		return nil, err
	}
	options.SendQueue, options.RecvQueue = limits.SendQueue, limits.RecvQueue
	granted := ep.Footprint(options)
	account.Release(cfg.fixedMemory(asked) - cfg.fixedMemory(granted))
	cfg.SendQueue = min(cfg.SendQueue, limits.SendQueue)
	cfg.RecvQueue = min(cfg.RecvQueue, limits.RecvQueue-credit.LinkControlReceives) &^ 3
	if cfg.RecvQueue < wire.MinReceives || cfg.SendQueue < minSendQueue {
		return nil, fmt.Errorf("the device grants queues of %d and %d work requests: want %d and %d at least",
			limits.SendQueue, limits.RecvQueue, minSendQueue, wire.MinReceives+credit.LinkControlReceives)
	}
	l := &Link{
		ep:      ep,
		cfg:     cfg,
		limits:  limits,
		opens:   make(chan struct{}, wire.MaxOpens),
		gone:    make(chan struct{}),
		account: account,
		queues:  granted.Queues,
	}
	l.rings = arena{
		register: func(n int) (fabric.Memory, error) { return ep.Register(n, fabric.RemoteWrite) },
		account:  account,
		slabSize: cfg.slabSize(),
		limit:    options.RemoteMemory,
	}
	if err := l.rings.add(cfg.FirstRing()); err != nil {
		return nil, err
	}
	memory, err := ep.Register(cfg.SendBuffer+ControlMemory, fabric.LocalWrite)
	if err != nil {
		return nil, err
	}
	l.send = newSendQueue(memory, cfg.SendBuffer, cfg.SendQueue)
	l.watch.budget = limits.Spin
	l.receive.posted = cfg.RecvQueue + credit.LinkControlReceives
	return l, ep.PostRecv(l.receive.posted)
}

// fixedMemory is how many bytes a link with such queues registers, or its device
// does, before it carries anything.
func (c *Config) fixedMemory(queues fabric.Footprint) int {
	return queues.Receives + queues.Queues + fabric.Pages(c.SendBuffer+ControlMemory) + c.FirstRing()
}

// PinnedMemory is that on a network of devices.
func (c *Config) PinnedMemory() int {
	receives := c.RecvQueue + credit.LinkControlReceives
	return c.fixedMemory(fabric.Footprint{
		Receives: fabric.Pages(receives * wire.MessageSize),
		Queues:   fabric.DeviceQueues(c.SendQueue, receives),
	})
}

// hello is the private data that tells of this side and of the first stream.
func (l *Link) hello(s *Stream, record credit.Record) []byte {
	hello := wire.Hello{Receives: l.cfg.RecvQueue}
	if l.active && !l.cfg.Shared {
		hello.Features = wire.Dedicated
	}
	b := hello.Append(nil)
	b = append(b, make([]byte, wire.RecordSize)...)
	r := wire.Record{Type: wire.RecordType(record), Ring: s.inbox.held.place()}
	r.Put(b[wire.HelloSize:])
	s.ledger.SendRecord(record)
	return b
}

// meet takes what the peer says of its side of the link.
func (l *Link) meet(peer wire.Hello) {
	l.ledger = credit.NewLink(l.cfg.RecvQueue, peer.Receives)
}

// answered takes the peer's answer for the first stream.
func (l *Link) answered(s *Stream, r *wire.Record) error {
	if r.Type != wire.AcceptRecord || r.Stream != s.number {
		return fmt.Errorf("%v for stream %d in an answer", r.Type, r.Stream)
	}
	l.send.target = r.Ring
	return s.receivedRecord(r)
}

// unset is when timers fire that are yet to be set.
const unset = math.MaxInt64

// reach makes sure that a ring of the peer's may be written to.
func (l *Link) reach(p wire.RingPlace) error {
	if err := l.ep.Reach(p.Addr, p.RKey, p.Size); err != nil {
		return &ProtocolError{"a ring that is not there: " + err.Error()}
	}
	return nil
}

// start sets the connected queue pair to work.
func (l *Link) start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = time.AfterFunc(unset, l.idleTick)
	l.tidying.timer = time.AfterFunc(unset, l.tidyTick)
	l.watch.timer = time.AfterFunc(watchWithin, l.watchTick)
	l.watch.pending = true
	if l.cfg.KeepAlive > 0 {
		l.alive.timer = time.AfterFunc(l.cfg.KeepAlive/2, l.keepAliveTick)
	}
	l.watchNow()
	l.enlist()
	go l.run()
}
