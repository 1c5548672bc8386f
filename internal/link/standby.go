package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// Where both sides have another card, the side that dialed the link makes a second queue
// pair over those, its standby: connected, with its receives posted, and without the
// link's memory. A link that loses its queue pair goes on over it without a handshake.
// The side that notices first begins; the other notices by its keys.

// standby is the queue pair that a link goes on over when it loses its own.
type standby struct {
	ep        fabric.Endpoint
	footprint fabric.Footprint   // within the link's account
	attempt   uint64             // that has made it
	stop      context.CancelFunc // of watch
	useless   atomic.Bool        // the standby will not be used: watch is to end at once
	done      chan struct{}      // closed when watch has ended

	// Set before done is closed.
	err  error      // nil: the queue pair is sound
	keys *wire.Keys // the peer's first: it goes on over the standby
}

// A link gets a standby when it has gone without for standbyPause, or half as long again,
// for all links of a card may have lost theirs at once. After each attempt that fails it
// waits twice as long, standbyPauseMost at most.
const (
	standbyPause     = time.Second
	standbyPauseMost = 16 * time.Second
)

// keepStandby makes a standby for the link whenever it has none and there are cards for it,
// until the link ends or the peer has refused one over each of them. To make one may take as
// long as an attempt may.
func (l *Link) keepStandby() {
	refusals := make(map[route]bool)
	limit := attemptTime
	for pause := standbyPause; sleep(l.path.ctx, pause+rand.N(pause/2)); {
		switch sb, err := l.dialStandby(refusals, limit); {
		case errors.Is(err, errUnwanted):
			return
		case err != nil:
			pause = min(2*pause, standbyPauseMost)
			limit = min(2*limit, longAttempt)
		default:
			<-sb.done
			pause, limit = standbyPause, attemptTime
		}
	}
}

// errNoStandby reports a link that has no standby, or needs none now.
var errNoStandby = errors.New("there is no standby")

// errUnwanted reports that a standby has been refused wherever there could be one.
var errUnwanted = errors.New("the peer wants no standby")

// dialStandby makes a standby over cards that the link's queue pair is not on, but for
// those over which one has been refused. That says nothing of the others: an address that
// the peer has told may be another host's as well.
func (l *Link) dialStandby(refusals map[route]bool, limit time.Duration) (*standby, error) {
	now := l.endpoint()
	err := errNoStandby
	open := false // whether there may be one later
	for _, r := range l.routes() {
		if r.shares(now.LocalAddr().Addr(), now.RemoteAddr().Addr()) {
			continue
		}
		r.known = false
		if !refusals[r] {
			sb, err := l.dialStandbyOver(r, limit)
			if err == nil {
				return sb, nil
			}
			refusals[r] = refused(err) && !noListener(err)
		}
		open = open || !refusals[r]
		err = errUnwanted
	}
	if open {
		err = errNoStandby
	}
	return nil, err
}

func (l *Link) dialStandbyOver(r route, limit time.Duration) (*standby, error) {
	ctx, cancel := context.WithTimeout(l.path.ctx, limit)
	defer cancel()
	ep, err := l.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	sb, err := l.makeStandby(ep, func() (uint64, error) { return l.request(ctx, r, ep, wire.ResumeStandby) })
	if err != nil {
		_ = ep.Close()
	}
	return sb, err
}

// What a rejection says to a peer that offers a standby.
var (
	standbyUnwanted = wire.Reject{Reason: "the link is to have no other queue pair"}
	standbyUntimely = wire.Reject{Busy: true, Reason: "the link can have no other queue pair now"}
)

// offeredStandby takes a standby that the peer offers, or refuses it.
func (l *Link) offeredStandby(a arrival) {
	reject := &standbyUnwanted // nil once the offer has been answered
	err := errNoStandby
	if l.cfg.Standby {
		reject = &standbyUntimely
		if l.countAttempt(a.request.Attempt) {
			l.dropStandby() // the peer has lost it, or would offer no other
			_, err = l.makeStandby(a.ep, func() (uint64, error) {
				reject = nil
				ctx, cancel := context.WithTimeout(l.path.ctx, moveTime)
				defer cancel()
				return a.request.Attempt, l.answer(ctx, a)
			})
		}
	}
	if err == nil {
		return
	}
	if reject != nil {
		_ = a.ep.Reject(reject.Append(nil))
	}
	_ = a.ep.Close()
}

// countAttempt notes an attempt of the peer's at a standby. It returns false if that is an
// old one, or the link has no use for it.
func (l *Link) countAttempt(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != up || number <= l.path.latest {
		return false
	}
	l.path.latest = number
	return true
}

// makeStandby makes the queue pair of an endpoint within the link's account, has connect
// connect it, and the link have it for its standby. If it fails the endpoint is its
// caller's again.
func (l *Link) makeStandby(ep fabric.Endpoint, connect func() (attempt uint64, err error)) (*standby, error) {
	ctx, stop := context.WithCancel(l.path.ctx)
	sb := &standby{ep: ep, footprint: ep.Footprint(l.cfg.options()), stop: stop, done: make(chan struct{})}
	if err := l.beginStandby(sb); err != nil {
		stop()
		return nil, err
	}
	defer l.path.work.Done()
	err := l.openAgain(ep)
	if err == nil {
		sb.attempt, err = connect()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.path.making = false
	if err == nil && (l.stage != up || sb.attempt < l.path.madeBy) { // it has moved meanwhile
		err = errNoStandby
	}
	if err != nil {
		stop()
		l.releaseStandby(sb)
		return nil, err
	}
	l.path.standby = sb
	l.path.work.Go(func() { l.watchStandby(ctx, sb) })
	return sb, nil
}

// beginStandby reserves memory for a standby, unless there is one, or one is being made.
func (l *Link) beginStandby(sb *standby) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != up || l.path.making || l.path.standby != nil {
		return errNoStandby
	}
	if err := l.memory.account.ReserveToGrow(sb.footprint.Receives + sb.footprint.Queues); err != nil {
		return err
	}
	l.memory.queues += sb.footprint.Queues
	l.path.making = true
	l.path.work.Add(1)
	return nil
}

// releaseStandby gives back what beginStandby has reserved. Called with mu held.
func (l *Link) releaseStandby(sb *standby) {
	l.memory.queues -= sb.footprint.Queues
	l.memory.account.Release(sb.footprint.Receives + sb.footprint.Queues)
}

// watchStandby has the link lose its queue pair if the peer goes on over the standby, and
// drops the standby if it is lost, or stopped.
func (l *Link) watchStandby(ctx context.Context, sb *standby) {
	defer close(sb.done)
	sb.err = sb.watch(ctx, &l.cfg)
	if !l.keepsStandby(sb) {
		_ = sb.ep.Close()
	}
}

// keepsStandby returns whether a standby that is not watched any more is of use: to the
// search that has taken it, or to the link, because the peer goes on over it. Then the link
// loses its queue pair.
func (l *Link) keepsStandby(sb *standby) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.path.standby != sb:
	case sb.err == nil && sb.keys != nil:
		l.fail(&lostError{syscall.ECONNRESET, errReturned})
	default:
		l.path.standby = nil
		l.releaseStandby(sb)
		return false
	}
	return true
}

// watch waits until the peer goes on over the standby, or ctx ends, and then for a probe
// that is under way, unless the standby will not be used. An error says that the queue pair
// is not sound.
func (sb *standby) watch(ctx context.Context, cfg *Config) error {
	defer context.AfterFunc(ctx, sb.ep.Wake)()
	var due atomic.Bool // a probe is
	timer := time.AfterFunc(unset, func() {
		due.Store(true)
		sb.ep.Wake()
	})
	defer timer.Stop()
	if cfg.KeepAlive > 0 {
		timer.Reset(cfg.KeepAlive)
	}
	var probed time.Time // zero if no probe is under way
	var until time.Time  // once ctx has ended: how long to wait for that
	for {
		if err := sb.ep.Arm(); err != nil {
			return err
		}
		var c [1]fabric.Completion
		n, err := sb.ep.Poll(c[:])
		switch {
		case err != nil:
			return err
		case n == 1 && c[0].Status != fabric.OK:
			return failed(&c[0])
		case n == 1 && !c[0].Recv:
			probed = time.Time{}
		case n == 1:
			keys, err := decodeKeys(&c[0])
			if err == nil {
				err = sb.ep.PostRecv(1)
			}
			if err != nil {
				return err
			}
			sb.keys = &keys
		case sb.useless.Load():
			return errNoStandby
		case (ctx.Err() != nil || sb.keys != nil) && probed.IsZero():
			return nil
		case ctx.Err() != nil && until.IsZero():
			until = time.Now().Add(attemptTime)
			timer.Reset(attemptTime)
		case ctx.Err() != nil && !time.Now().Before(until), !probed.IsZero() && time.Since(probed) > cfg.Patience:
			return errNoCompletion
		case ctx.Err() == nil && due.Swap(false):
			timer.Reset(cfg.KeepAlive)
			if probed.IsZero() {
				probed = time.Now()
				err = sb.ep.PostSend([]fabric.WorkRequest{{Op: fabric.Write, Signaled: true}})
			}
		default:
			err = sb.ep.Wait()
		}
		if err != nil {
			return err
		}
	}
}

// takeStandby returns the link's standby, which is its caller's then, or nil.
func (l *Link) takeStandby() *standby {
	l.mu.Lock()
	defer l.mu.Unlock()
	sb := l.path.standby
	if sb != nil {
		l.path.standby = nil
		l.releaseStandby(sb)
	}
	return sb
}

// dropStandby closes the link's standby, if there is one.
func (l *Link) dropStandby() {
	if sb := l.takeStandby(); sb != nil {
		sb.drop()
		<-sb.done
		_ = sb.ep.Close()
	}
}

// drop ends watch at once.
func (sb *standby) drop() {
	sb.useless.Store(true)
	sb.stop()
}

// use ends watch, and returns nil if the queue pair is sound. It waits for a probe that is
// under way until ctx ends.
func (sb *standby) use(ctx context.Context) error {
	sb.stop()
	defer context.AfterFunc(ctx, func() {
		sb.drop()
		sb.ep.Wake()
	})()
	<-sb.done
	return sb.err
}

// giveUpStandby stops the link's standby, and returns how many bytes that will free. Called
// with mu held.
func (l *Link) giveUpStandby() int {
	sb := l.path.standby
	if sb == nil {
		return 0
	}
	sb.stop()
	return sb.footprint.Receives + sb.footprint.Queues
}

// moveToStandby has the link go on over its standby, unless a request of the peer's comes:
// then the peer's end of the standby is not sound.
func (l *Link) moveToStandby(ctx context.Context) error {
	sb := l.takeStandby()
	if sb == nil {
		return errNoStandby
	}
	ctx, cancel := l.untilAnother(ctx, sb.attempt)
	defer cancel()
	err := sb.use(ctx)
	if err == nil {
		err = l.move(ctx, sb.ep, sb.attempt, sb.keys)
	}
	if err != nil {
		_ = sb.ep.Close()
		l.attemptFailed(sb.attempt)
	}
	return err
}
