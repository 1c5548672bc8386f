//go:build unix

package autoudp

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"slices"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

// The proof that a carrier leads to the process that UDP leads to, and that what comes by the carrier
// is from whom UDP comes:
//
//  1. A asks B by the carrier, with a nonce and the address that its datagrams by UDP come from.
//  2. The next datagram of A's by UDP that B receives from there B answers by UDP, with what only
//     who has the nonce and that datagram can know, about the carrier by which A has asked, and a token.
//  3. A, which has received the token at that address, tells it to B by the carrier. From now on B
//     takes what comes from A's queue pair by the carrier for A's.
//  4. B says so, by UDP, and A takes the carrier.
//
// So an answer comes only to who has just asked and sent something, and no message of a proof reaches a
// program that is not ringnet's, unless that has A's port by UDP within proofWait of A's question.

const (
	proofTries = 3               // questions
	proofWait  = time.Second     // for what follows each
	proofLasts = 2 * searchAgain // at the receiver; the sender counts on three quarters of that

	maxSums      = 64   // datagrams of a proof of which the answer may be about one
	maxQuestions = 64   // of peers that have not been answered
	maxSources   = 4096 // that are known
)

// nonce is a number that nobody guesses.
type nonce [wire.ProofNonceSize]byte

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // which never fails
	return n
}

// sum is what only who has the nonce and some bytes can know.
func (n nonce) sum(of ...[]byte) (s [sha256.Size]byte) {
	h := hmac.New(sha256.New, n[:])
	for _, b := range of {
		h.Write(b)
	}
	h.Sum(s[:0])
	return s
}

// says is what B says by UDP: that it has "answered", of which an answer begins with the first half, and
// in the end that it has "accepted". The name of the carrier keeps a third process from passing on by one
// carrier what it gets by another.
func (n nonce) says(what string, c *carrier) []byte {
	s := n.sum([]byte("ringnet: " + what + ", " + c.name))
	return s[:]
}

// proof is one that this end asks for, A's side. Guarded by endpoint.mu.
type proof struct {
	carrier   *carrier
	handle    fabric.AddressHandle
	nonce     nonce
	sums      []nonce       // of the datagrams sent by UDP since the last question
	confirmed bool          // B has answered since then, and been told the token
	ended     time.Time     // zero: not yet; what comes later is dropped
	accepted  chan struct{} // closed when B takes the carrier's datagrams
}

// wants reports whether the next datagram is to go by UDP. Called with mu held.
func (p *proof) wants() bool { return len(p.sums) == 0 }

// sent notes a datagram that is sent by UDP. Called with mu held.
func (p *proof) sent(buffers [][]byte) {
	if len(p.sums) < maxSums {
		s := p.nonce.sum(buffers...)
		p.sums = append(p.sums, nonce(s[:]))
	}
}

// prove asks for the proof that a carrier leads to the receiver that UDP leads to, and returns
// whether there is one.
func (r *route) prove(c *carrier, h fabric.AddressHandle) bool {
	from := r.e.socket.local
	if from.Addr().IsUnspecified() {
		a, err := fabric.SourceOf(r.to)
		if err != nil {
			return false
		}
		from = netip.AddrPortFrom(a, from.Port())
	}
	p := &proof{carrier: c, handle: h, nonce: newNonce(), accepted: make(chan struct{})}
	r.begin(p)
	defer r.end(p)
	question := wire.ProofRequest{Nonce: p.nonce, From: plain(from)}.Append(nil)
	for range proofTries {
		if !r.askAgain(p) {
			return true
		}
		r.e.sending.Lock()
		r.e.sendControl(c, h, wire.ProofQuestion, question)
		r.e.sending.Unlock()
		again := time.NewTimer(proofWait)
		select {
		case <-p.accepted:
			again.Stop()
			return true
		case <-again.C:
		case <-r.ctx.Done():
			again.Stop()
			return false
		}
	}
	return false
}

// askAgain prepares for another question, unless the proof has just been accepted.
func (r *route) askAgain(p *proof) bool {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if !p.ended.IsZero() {
		return false
	}
	p.sums, p.confirmed = nil, false
	return true
}

func (r *route) begin(p *proof) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.proof = p
	r.e.asking = append(slices.DeleteFunc(r.e.asking, func(o *proof) bool {
		return !o.ended.IsZero() && time.Since(o.ended) > proofWait
	}), p)
}

func (r *route) end(p *proof) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	r.proof, p.ended, p.sums = nil, time.Now(), nil
}

// question is one of a peer's, B's side. Guarded by endpoint.mu.
type question struct {
	of       source
	carrier  *carrier
	from     netip.AddrPort // by UDP; once it is answered with the zone that it has here
	nonce    nonce
	token    nonce
	answered bool
	asked    time.Time
}

// known is what B knows of a source. Guarded by endpoint.mu.
type known struct {
	from   netip.AddrPort // by UDP
	proven time.Time
}

// receivedByUDP takes a datagram that has come by UDP, and returns whether it is one for the
// application.
func (e *endpoint) receivedByUDP(d *fabric.Datagram) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.Len == wire.ProofAnswerSize || d.Len == wire.ProofAcceptedSize { // from any address: B may have several
		for _, p := range e.asking {
			confirm, about := p.received(e.socket.bytes(d.Len))
			if confirm != nil {
				e.later(func() { e.confirm(p, confirm) })
			}
			if about {
				return false
			}
		}
	}
	from := plain(d.From)
	for _, q := range e.questions {
		if q.from == from && !q.answered && time.Since(q.asked) <= proofWait {
			q.answered, q.from = true, d.From
			sum := q.nonce.sum(e.socket.bytes(d.Len))
			answer := slices.Concat(q.nonce.says("answered", q.carrier)[:wire.ProofNonceSize], sum[:wire.ProofNonceSize], q.token[:])
			e.later(func() { e.socket.send([][]byte{answer}, q.from) })
		}
	}
	return true
}

// received takes what has come by UDP from B, and returns whether it is about the proof, and what is
// to be confirmed, if anything. Called with mu held.
func (p *proof) received(b []byte) (confirm []byte, about bool) {
	const n = wire.ProofNonceSize
	switch len(b) {
	case wire.ProofAnswerSize:
		if subtle.ConstantTimeCompare(p.nonce.says("answered", p.carrier)[:n], b[:n]) == 0 {
			return nil, false
		}
		if p.ended.IsZero() && slices.Contains(p.sums, nonce(b[n:2*n])) {
			p.confirmed = true
			confirm = slices.Concat(p.nonce[:], b[2*n:])
		}
		return confirm, true
	case wire.ProofAcceptedSize:
		if subtle.ConstantTimeCompare(p.nonce.says("accepted", p.carrier), b) == 0 {
			return nil, false
		}
		if p.confirmed && p.ended.IsZero() {
			p.ended = time.Now()
			close(p.accepted)
		}
		return nil, true
	}
	return nil, false
}

// confirm tells the token to B, unless the proof has ended, and its handle may be closed.
func (e *endpoint) confirm(p *proof, b []byte) {
	e.sending.Lock()
	defer e.sending.Unlock()
	e.mu.Lock()
	ended := !p.ended.IsZero()
	e.mu.Unlock()
	if !ended {
		e.sendControl(p.carrier, p.handle, wire.ProofConfirmed, b)
	}
}

// receivedByCarrier is the filter of what comes by a carrier.
func (e *endpoint) receivedByCarrier(c *carrier, d *fabric.Datagram) bool {
	if h, ok := wire.DecodeProofHeader(d.Header); ok {
		e.receivedProof(c, h.Kind, sourceOfDatagram(d), bytes.Clone(d.Bytes[:min(len(d.Bytes), wire.ProofRequestSize+1)]))
		return false
	}
	h, ok := wire.DecodeDatagramHeader(d.Header)
	e.mu.Lock()
	k := e.sources[sourceOfDatagram(d)]
	e.mu.Unlock()
	if !ok || k == nil || e.emptied.Sub(k.proven) > proofLasts { // it may have lain unread since
		d.Header = [fabric.HeaderSize]byte{} // of none that is ringnet's
		return e.filter(d)
	}
	d.From = k.from
	h.SourcePort = k.from.Port()
	h.Put(&d.Header)
	return e.filter(d)
}

func sourceOfDatagram(d *fabric.Datagram) source { return source{d.From.Addr(), d.Sender, d.Via} }

// receivedProof takes a message of a proof that has come by a carrier.
func (e *endpoint) receivedProof(c *carrier, kind wire.ProofKind, of source, b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.questions = slices.DeleteFunc(e.questions, func(q *question) bool {
		return now.Sub(q.asked) > proofTries*proofWait || kind == wire.ProofQuestion && q.of == of
	})
	switch kind {
	case wire.ProofQuestion:
		r, ok := wire.DecodeProofRequest(b)
		if !ok || r.From.Addr() != of.addr.WithZone("") {
			return
		}
		if len(e.questions) == maxQuestions {
			e.questions = slices.Delete(e.questions, 0, 1) // each is of another queue pair
		}
		e.questions = append(e.questions, &question{of: of, carrier: c, from: r.From, nonce: r.Nonce, token: newNonce(), asked: now})
	case wire.ProofConfirmed:
		for i, q := range e.questions {
			if q.of == of && q.answered && subtle.ConstantTimeCompare(b, slices.Concat(q.nonce[:], q.token[:])) == 1 {
				e.questions = slices.Delete(e.questions, i, i+1)
				e.accept(q, now)
				return
			}
		}
	}
}

// accept takes what comes from a source for what its address sends by UDP. Called with mu held.
func (e *endpoint) accept(q *question, now time.Time) {
	if _, ok := e.sources[q.of]; !ok && len(e.sources) == maxSources {
		var oldest source
		for of, k := range e.sources {
			if o := e.sources[oldest]; o == nil || k.proven.Before(o.proven) {
				oldest = of
			}
		}
		delete(e.sources, oldest)
	}
	e.sources[q.of] = &known{q.from, now}
	say := q.nonce.says("accepted", q.carrier)
	e.later(func() { e.socket.send([][]byte{say}, q.from) })
}

// plain is an address without a zone, whose name is each host's own.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
