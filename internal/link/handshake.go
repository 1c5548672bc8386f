package link

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/bubble"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// Dial makes a link of an endpoint that was dialed, and its first stream. It
// takes the endpoint over, and closes it if it fails. It ends early when ctx
// does, and after Config.HandshakeTimeout.
func Dial(ctx context.Context, ep fabric.Endpoint, cfg Setup) (*Stream, error) {
	h := handshake{ep: ep, cfg: cfg}
	if cfg.Dedicated {
		h.features = wire.Dedicated
	}
	_, s, err := h.dial(ctx)
	return s, err
}

// Accept makes a link of an endpoint that a listener accepted, and its first stream, as Dial
// does on the other side.
func Accept(ctx context.Context, ep fabric.Endpoint, cfg Setup) (*Link, *Stream, error) {
	private := ep.Private()
	peer, r, bad := wire.DecodeHello(private)
	h := handshake{ep: ep, cfg: cfg, awaited: true}
	switch {
	case bad != nil:
	case r.Type != credit.OpenRecord || r.Stream != 0:
		bad = fmt.Errorf("%v for stream %d in a request", r.Type, r.Stream)
	case peer.Features&wire.Dedicated != 0:
		h.cfg.Dedicated = true
	}
	return h.run(ctx, func(ctx context.Context, l *Link, held ring.Piece) (*Stream, error) {
		if bad != nil {
			return nil, &ProtocolError{Reason: bad.Error()}
		}
		l.m.Hear(peer, r.Ring)
		if asked, ok := wire.RequestedReconnect(private); ok && h.offerReconnect(ctx, l) {
			l.path.own.Link, l.path.own.Secret = newSecret()
			l.path.notePeer(asked, l)
		}
		s := l.newStream(l.m.AcceptFirst(held, r.Ring), netip.AddrPort{}, netip.AddrPort{})
		h.awaited = false
		if err := h.answer(ctx, l, h.hello(l, credit.AcceptRecord, held)); err != nil {
			return nil, err
		}
		return s, reach(ctx, l.ep, r.Ring)
	})
}

// handshake is this side of one.
type handshake struct {
	ep       fabric.Endpoint
	cfg      Setup
	features wire.Features // of this side's hello
	awaited  bool          // the peer waits for this side's answer
	lost     error         // why this side's answer was not confirmed, perhaps to its knowledge alone
}

// dial is the handshake of the side that dials.
func (h *handshake) dial(ctx context.Context) (*Link, *Stream, error) {
	return h.run(ctx, func(ctx context.Context, l *Link, held ring.Piece) (*Stream, error) {
		l.active = true
		l.m.Dials()
		h.offerReconnect(ctx, l)
		s := l.newStream(l.m.First(held), netip.AddrPort{}, netip.AddrPort{})
		r, err := h.request(ctx, l, held)
		if err != nil {
			return nil, err
		}
		if err := reach(ctx, l.ep, r.Ring); err != nil {
			return nil, err
		}
		if err := s.m.FirstAnswered(&r); err != nil {
			return nil, err
		}
		return s, h.confirm()
	})
}

// run makes a link, which ends again if it is not proven.
func (h *handshake) run(ctx context.Context,
	exchange func(ctx context.Context, l *Link, held ring.Piece) (*Stream, error)) (*Link, *Stream, error) {
	l, s, err := h.make(ctx, exchange)
	if err != nil {
		return nil, nil, err
	}
	if !l.awaitConfirmation(ctx) {
		err = handshakeError(h.lost)
	} else if h.cfg.Proof != nil {
		err = h.cfg.Proof.Verify(ctx, l.gone)
	}
	if err != nil {
		l.Abort()
		_ = s.Close(0)
		return nil, nil, err
	}
	return l, s, nil
}

// make prepares a link and its first ring, has exchange send and receive hellos, and starts
// the link. If that fails while the peer waits for this side's answer, make rejects the
// peer with the reason. At other times it must not reject: the kernel would take the
// connection for settled, repeat the unanswered request for some 100 s all the same, and
// Close would wait for the end of that.
func (h *handshake) make(ctx context.Context,
	exchange func(ctx context.Context, l *Link, held ring.Piece) (*Stream, error)) (made *Link, s *Stream, err error) {
	h.cfg.Budget.Refresh()
	account := &budget.Account{Budget: h.cfg.Budget}
	var local, remote netip.AddrPort // of the stream, once it has them
	var l *Link
	defer func() {
		if made != nil {
			return
		}
		if l != nil {
			l.unmake()
		}
		// If there is no error, a function of the user's has panicked.
		if err != nil && h.awaited {
			_ = h.ep.Reject(rejection(err).Append(nil))
		}
		_ = h.ep.Close()
		h.cfg.Addresses.release(h.cfg.Namespace, local, remote)
		account.Release(account.Bytes())
	}()
	ctx, cancel := context.WithTimeout(ctx, h.cfg.HandshakeTimeout)
	defer cancel()
	if l, err = prepare(h.ep, h.cfg, account); err != nil {
		return nil, nil, reclaimOn(err, within(h.cfg.Budget))
	}
	held, _ := l.m.TakeRing() // prepare has registered it
	at, to := h.ep.LocalAddr(), h.ep.RemoteAddr()
	if !h.cfg.Addresses.take(h.cfg.Namespace, at, to) {
		return nil, nil, &takenError{&fabric.RefusedError{Reason: fmt.Sprintf("another connection has the addresses %v and %v", at, to), Busy: true}}
	}
	local, remote = at, to
	if s, err = exchange(ctx, l, held); err != nil {
		return nil, nil, handshakeError(err)
	}
	s.local, s.remote = local, remote
	l.start(h.lost)
	return l, s, nil
}

// request asks the peer for the link, and takes its answer.
func (h *handshake) request(ctx context.Context, l *Link, held ring.Piece) (wire.Record, error) {
	answer, err := h.ep.Connect(ctx, h.hello(l, credit.OpenRecord, held))
	if err != nil {
		return wire.Record{}, err
	}
	h.awaited = true
	peer, r, err := wire.DecodeHello(answer)
	switch {
	case err != nil:
	case r.Type != credit.AcceptRecord || r.Stream != 0:
		err = fmt.Errorf("%v for stream %d in an answer", r.Type, r.Stream)
	case wire.ProofPort(answer) != h.cfg.proofPort():
		err = errors.New("an answer that is not about the proof that was asked for")
	}
	if err != nil {
		return wire.Record{}, &ProtocolError{Reason: err.Error()}
	}
	l.m.Hear(peer, r.Ring)
	if told, ok := wire.AnsweredReconnect(answer); ok && l.path.listener != nil {
		l.path.own.Link, l.path.own.Secret = told.Link, told.Secret
		l.path.notePeer(told, l)
	}
	return r, nil
}

// confirm tells the peer that its answer is good, once the proof, if there is one, is under way.
func (h *handshake) confirm() error {
	if h.cfg.Proof != nil {
		if err := h.cfg.Proof.Connect(); err != nil {
			return err
		}
	}
	return h.ep.Confirm()
}

// proofPort returns the port of the proof, or 0 if there is none.
func (c *Setup) proofPort() uint16 {
	if c.Proof == nil {
		return 0
	}
	return c.Proof.Port
}

// offerReconnect has this side listen for another queue pair for the link when its own is
// lost, if it can and is to. It returns whether it does.
func (h *handshake) offerReconnect(ctx context.Context, l *Link) bool {
	if _, can := h.ep.(fabric.Mover); !can || h.cfg.Reconnect == nil {
		return false
	}
	// Where there can be no listener the link is as good as it would be without.
	return l.path.listen(ctx, h.cfg.Reconnect, l.local.Addr()) == nil
}

// minSendQueue is the least that a link works with: room for some data beside
// the control messages.
const minSendQueue = credit.LinkControlSends + 6

// rejection is what this side answers the peer for an error.
func rejection(err error) wire.Reject {
	var refused *fabric.RefusedError
	if errors.As(err, &refused) {
		return wire.Reject{Busy: refused.Busy, Reason: refused.Reason}
	}
	if protocol := (*ProtocolError)(nil); errors.As(err, &protocol) {
		return wire.Reject{Reason: protocol.Reason} // the reader is the peer that it speaks of
	}
	var shortage *budget.ShortageError
	releasing := errors.As(err, &shortage) && shortage.Releasing
	noDescriptors := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
	return wire.Reject{Busy: releasing || noDescriptors, Reason: err.Error()}
}

// prepare opens the endpoint and sets up everything that does not depend on the peer. It
// posts the receives before this side sends the peer anything, and reserves the memory
// that a link always needs before it makes anything.
func prepare(ep fabric.Endpoint, cfg Setup, account *budget.Account) (*Link, error) {
	options := cfg.options()
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
	fixed := cfg.fixedMemory(ep.Footprint(options))
	account.Release(cfg.fixedMemory(asked) - fixed)
	cfg.SendQueue = min(cfg.SendQueue, limits.SendQueue)
	cfg.RecvQueue = min(cfg.RecvQueue, limits.RecvQueue-credit.LinkControlReceives)
	cfg.RecvQueue -= cfg.RecvQueue % credit.CreditsPerWindow
	if cfg.RecvQueue < wire.MinReceives || cfg.SendQueue < minSendQueue {
		return nil, fmt.Errorf("the device grants queues of %d and %d work requests: want %d and %d at least",
			limits.SendQueue, limits.RecvQueue, minSendQueue, wire.MinReceives+credit.LinkControlReceives)
	}
	cfg.Proof = nil // whose functions are those of the dial, or of the listener's handshake
	l := &Link{
		ep:      ep,
		local:   ep.LocalAddr(),
		remote:  ep.RemoteAddr(),
		cfg:     cfg,
		limits:  limits,
		bubble:  bubble.In(),
		life:    life{gone: make(chan struct{})},
		memory:  linkMemory{account: account, fixed: fixed},
		opens:   make(chan struct{}, wire.MaxOpens),
		buffers: make(map[*Buffer]struct{}),
	}
	l.settled.L = &l.mu
	first, err := ep.Register(cfg.firstRing(), fabric.RemoteWrite)
	if err != nil {
		return nil, err
	}
	staging, err := ep.Register(cfg.firstStaging()+machine.ControlMemory, fabric.LocalWrite)
	if err != nil {
		return nil, err
	}
	decides := cfg.machine(limits)
	decides.Reaches = func(p wire.RingPlace) bool { return l.ep.Reaches(p.Addr, p.RKey, p.Size) }
	l.m = machine.New(decides, staging, time.Now)
	l.m.Rings().Add(first, cfg.firstRing(), true) // the peer's probes name a place in it
	return l, ep.PostRecv(cfg.RecvQueue + credit.LinkControlReceives)
}

// options are those of the link's queue pairs.
func (c *Setup) options() fabric.Options {
	return fabric.Options{
		SendQueue:    c.SendQueue,
		RecvQueue:    c.RecvQueue + credit.LinkControlReceives,
		RecvSize:     wire.MessageSize,
		Sends:        credit.LinkControlReceives,
		RemoteMemory: c.remoteMemory(),
		AckTimeout:   c.AckTimeout,
		Retries:      c.Retries,
	}
}

// fixedMemory is how many bytes a link with such queues registers, or its device
// does, before it carries anything.
func (c *Setup) fixedMemory(queues fabric.Footprint) int {
	return queues.Receives + queues.Queues + fabric.Pages(c.firstStaging()+machine.ControlMemory) + c.firstRing()
}

// hello is the private data that describes this side, and the ring that it has for the
// link's first stream.
func (h *handshake) hello(l *Link, about credit.Record, held ring.Piece) []byte {
	features, proof := h.features, h.cfg.proofPort()
	if proof != 0 {
		features |= wire.Proof
	}
	if l.path.listener != nil {
		features |= wire.Resume
	}
	b := wire.Hello{Features: features, Receives: l.cfg.RecvQueue}.Append(nil)
	b = append(b, make([]byte, wire.RecordSize)...)
	wire.Record{Type: about, Ring: l.m.Held(held)}.Put(b[wire.HelloSize:])
	if proof != 0 {
		b = wire.AppendProof(b, proof)
	}
	switch {
	case l.path.listener == nil:
	case l.active:
		b = l.path.own.AppendRequest(b)
	default:
		b = l.path.own.AppendAnswer(b)
	}
	return b
}

// started reports whether the queue pair has been set to work.
func (l *Link) started() bool { return l.watch.given != nil }

// unset is a time so long that a timer made with it does not fire before it is set.
const unset = math.MaxInt64

// start sets the queue pair to work. It is not known to be connected if it is lost already: then
// the link waits for the peer to take it up again, as one does that has lost its queue pair.
func (l *Link) start(lost error) {
	l.lock()
	defer l.unlock()
	l.timer = time.AfterFunc(unset, l.tick)
	l.watch.given = make(chan struct{}, 1)
	l.watch.timer = time.AfterFunc(watchWithin, l.watchTick)
	l.watch.pending = true
	l.m.Start()
	l.enlist()
	go l.run()
	if l.path.arrival != nil {
		lost = errPeerReconnects
	} else {
		l.path.unconfirmed = lost != nil && !errors.Is(lost, fabric.ErrDisconnected)
	}
	l.m.ConnectionChanged(lost)
}
