package link

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// heldUp is an endpoint that is told late whether the peer's memory exists.
type heldUp struct {
	fabric.Endpoint
	told    chan struct{} // closed when it is
	fault   error         // then
	reaches atomic.Bool
	asked   atomic.Int32
}

func (e *heldUp) Reaches(uint64, uint32, int) bool { return e.reaches.Load() }

func (e *heldUp) Reach(ctx context.Context, _ uint64, _ uint32, _ int) error {
	e.asked.Add(1)
	select {
	case <-e.told:
		e.reaches.Store(e.fault == nil)
		return e.fault
	case <-ctx.Done():
		return ctx.Err()
	}
}

// besideAHeldUpPeer is besideAPeer with such an endpoint.
func besideAHeldUpPeer(t *testing.T, accepted bool, test func(t *testing.T, p *rawPeer, e *heldUp)) {
	besideAPeer(t, accepted, testConfig, func(t *testing.T, p *rawPeer) {
		l := p.s.link
		e := &heldUp{told: make(chan struct{})}
		l.lock()
		addFreeSlab(t, l) // while the kernel is held up none is registered
		e.Endpoint, l.ep = l.ep, e
		l.unlock()
		test(t, p, e)
	})
}

// has reports whether a record of a type has come.
func (p *rawPeer) has(typ credit.Record) bool {
	synctest.Wait()
	p.poll()
	for _, r := range p.got {
		if r.Type == typ {
			return true
		}
	}
	return false
}

// While the kernel does not tell whether the ring of a stream exists, the link goes on.
func TestLinkGoesOnWhileAPeerHoldsUpTheKernel(t *testing.T) {
	besideAHeldUpPeer(t, true, func(t *testing.T, p *rawPeer, e *heldUp) {
		p.control(p.open(1))
		require.False(t, p.has(credit.AcceptRecord))
		require.EqualValues(t, 1, e.asked.Load())
		p.requireReceived()
		p.control(p.open(2))
		require.False(t, p.has(credit.AcceptRecord))
		p.s.link.Info()
		close(e.told)
		require.Equal(t, uint32(2), p.last(credit.AcceptRecord).Stream)
		require.EqualValues(t, 1, e.asked.Load())
	})
}

// A stream that this side dials is the program's once its ring is known to exist.
func TestOpenWaitsForTheRing(t *testing.T) {
	besideAHeldUpPeer(t, false, func(t *testing.T, p *rawPeer, e *heldUp) {
		type opened struct {
			s   *Stream
			err error
		}
		begin := func(ctx context.Context) <-chan opened {
			done := make(chan opened, 1)
			go func() {
				s, err := p.s.link.Open(ctx)
				done <- opened{s, err}
			}()
			return done
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := begin(ctx)
		p.control(p.accept(p.last(credit.OpenRecord).Stream))
		p.requireReceived()
		require.ErrorIs(t, (<-late).err, context.DeadlineExceeded)
		p.last(credit.ResetRecord)

		patient := begin(t.Context())
		n := p.last(credit.OpenRecord).Stream
		p.control(p.accept(n))
		synctest.Wait()
		require.Empty(t, patient)
		close(e.told)
		got := <-patient
		require.NoError(t, got.err)
		_, err := got.s.Write([]byte("x"), unlimited())
		require.NoError(t, err)
		require.NoError(t, got.s.Close(0))
	})
}

// A stream goes on in the ring that it has until the one that is offered is known to exist.
func TestRingThatIsOfferedIsNotUsedBeforeItIsKnownToExist(t *testing.T) {
	besideAHeldUpPeer(t, true, func(t *testing.T, p *rawPeer, e *heldUp) {
		p.control(p.offer(0, 2*wire.MinRing))
		synctest.Wait()
		require.EqualValues(t, 1, e.asked.Load())
		_, err := p.s.Write([]byte("x"), unlimited())
		require.NoError(t, err)
		require.Zero(t, field(p.s.m, "next.Size").Int())
		require.EqualValues(t, wire.MinRing, field(p.s.m, "peer.Size").Int())
		close(e.told)
		synctest.Wait()
		require.EqualValues(t, 2*wire.MinRing, field(p.s.m, "peer.Size").Int())
	})
}

// A second offer is against the protocol, and what is kept of the first is no more.
func TestRingsAreNotHeldInLine(t *testing.T) {
	besideAHeldUpPeer(t, true, func(t *testing.T, p *rawPeer, e *heldUp) {
		p.control(p.offer(0, 2*wire.MinRing), p.offer(0, 2*wire.MinRing))
		_, err := p.s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.EPROTO)
	})
}

// The peer may have ended the stream when its ring is known to exist.
func TestRingOfAStreamThatHasEnded(t *testing.T) {
	besideAHeldUpPeer(t, true, func(t *testing.T, p *rawPeer, e *heldUp) {
		p.control(p.offer(0, 2*wire.MinRing), resetAt(0))
		synctest.Wait()
		close(e.told)
		synctest.Wait()
		require.True(t, p.s.link.usable())
	})
}

// A peer that holds up the kernel for longer than a handshake may take loses its link.
func TestPeerThatHoldsUpTheKernelLosesItsLink(t *testing.T) {
	besideAHeldUpPeer(t, true, func(t *testing.T, p *rawPeer, e *heldUp) {
		p.control(p.open(1))
		start := time.Now()
		_, err := p.s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.ErrorIs(t, err, errLateRing)
		require.Equal(t, p.s.link.cfg.HandshakeTimeout, time.Since(start))
	})
}

// bell is an endpoint whose peer makes each doorbell long.
type bell struct {
	fabric.Endpoint
	due     atomic.Bool
	rung    chan struct{}
	release chan struct{}
}

func (b *bell) PostSend(wr []fabric.WorkRequest) error {
	b.due.Store(true)
	return b.Endpoint.PostSend(wr)
}

func (b *bell) RingDue() bool { return b.due.Load() }

func (b *bell) Ring() {
	if b.due.Swap(false) {
		b.rung <- struct{}{}
		<-b.release
	}
}

// Nobody waits for a doorbell but the call that has posted.
func TestDoorbellIsRungWithoutTheLock(t *testing.T) {
	besideAPeer(t, true, testConfig, func(t *testing.T, p *rawPeer) {
		l := p.s.link
		b := &bell{rung: make(chan struct{}), release: make(chan struct{})}
		l.lock()
		b.Endpoint, l.ep = l.ep, b
		l.unlock()
		go func() { _, _ = p.s.Write([]byte("x"), unlimited()) }()
		<-b.rung
		synctest.Wait() // others hold it for a moment
		require.True(t, l.mu.TryLock())
		l.unlock()
		l.Info()
		close(b.release)
		go func() {
			for range b.rung {
			}
		}()
		synctest.Wait()
		require.NoError(t, p.s.Close(0))
		synctest.Wait()
		l.Abort()
		synctest.Wait()
		close(b.rung)
	})
}

// The link may have ended when a ring is known not to exist: it stays ended, for the reason that it has.
func TestARingThatIsNotThereOfALinkThatHasEnded(t *testing.T) {
	besideAHeldUpPeer(t, true, func(t *testing.T, p *rawPeer, e *heldUp) {
		e.fault = errors.New("nothing is there")
		p.control(p.open(1))
		synctest.Wait()
		require.EqualValues(t, 1, e.asked.Load())
		require.NoError(t, p.ep.Disconnect())
		_, err := p.s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.ECONNRESET)
		close(e.told)
		synctest.Wait()
		_, err = p.s.Read(make([]byte, 1), unlimited())
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}
