//go:build linux

// Peers that mean harm. A program in a process of its own does its worst to
// listeners and dialers in this one, which must neither crash nor hang nor lose
// anything, and whose honest connection must not notice.

package shm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/mapping"
	"github.com/ringnet/ringnet/internal/wire"
)

// raider is one connection of a hostile peer.
type raider struct {
	*rand.Rand
	sock      *socket
	passive   bool
	to        netip.AddrPort
	shape     shape
	mem       []byte // of both ends; a dialer's own until it has the listener's
	fd        int
	own, peer *segment
}

// victim is the shape of the segments of the ends that are attacked.
var victim = shape{region: ringSize, recvQueue: options.RecvQueue, recvSize: options.RecvSize}

func (r *raider) close() {
	r.sock.close()
	r.take(nil, -1, shape{})
}

// take has the raider use other memory from now on.
func (r *raider) take(mem []byte, fd int, peer shape) {
	if r.mem != nil {
		_ = mapping.Unmap(r.mem)
		unix.Close(r.fd)
	}
	r.mem, r.fd, r.own, r.peer = mem, fd, nil, nil
	if mem == nil {
		return
	}
	r.own, r.peer = r.layout(peer).views(mem)
	if !r.passive {
		r.own, r.peer = r.peer, r.own
	}
}

// layout is that of the memory shared with a peer.
func (r *raider) layout(peer shape) layout {
	if r.passive {
		return layout{r.shape, peer}
	}
	return layout{peer, r.shape}
}

func (r *raider) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// first is the frame with which an honest peer would begin.
func (r *raider) first() frame {
	f := frame{kind: req, source: netip.AddrPortFrom(r.to.Addr(), 1+uint16(r.IntN(65535))), target: r.to, private: r.bytes(r.IntN(fabric.MaxConnectData)), shape: r.shape}
	if r.passive {
		f.kind = rep
	}
	return f
}

// begin sends a packet in the place of the first frame, with memory if an honest
// peer would.
func (r *raider) begin(b []byte) error {
	if r.passive {
		return r.sock.send(b, r.fd)
	}
	return r.sock.send(b, -1)
}

// await receives a frame, not for long.
func (r *raider) await() (frame, int, error) {
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	var b [maxFrame]byte
	n, fd, err := r.sock.receive(short, b[:], true)
	if err != nil {
		return frame{}, -1, err
	}
	f, err := decodeFrame(b[:n])
	return f, fd, err
}

// shake completes the handshake, as an honest peer would.
func (r *raider) shake() bool {
	r.begin(r.first().encoded())
	f, fd, err := r.await()
	if r.passive || err != nil || fd < 0 {
		return err == nil && f.kind == rtu
	}
	l := r.layout(f.shape)
	mem, err := mapAll(fd, l)
	if err != nil {
		unix.Close(fd)
		return false
	}
	r.take(mem, fd, f.shape)
	r.own.posted.Store(uint64(r.shape.recvQueue))
	return r.sock.send((&frame{kind: rtu}).encode(), -1) == nil
}

// mapAll takes a listener's memory, and maps all of it.
func mapAll(fd int, l layout) ([]byte, error) {
	mapped, err := adoptMemory(fd, l.queues(), l.size(), []part{{0, l.size()}})
	if err != nil {
		return nil, err
	}
	return mapped[0], nil
}

// createAll makes memory for a dialer, and maps all of it.
func createAll(l layout) ([]byte, int, error) {
	mapped, fd, err := createMemory(l.queues(), l.size(), []part{{0, l.size()}})
	if err != nil {
		return nil, -1, err
	}
	return mapped[0], fd, nil
}

func (f frame) encoded() []byte { return f.encode() }

// sendMany sends a packet with any number of descriptors.
func (r *raider) sendMany(b []byte, fds ...int) {
	unix.Sendmsg(r.sock.fd, b, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// scribble writes to all that it shares, for a while: noise, and words that
// mean something.
func (r *raider) scribble() {
	end := time.Now().Add(rand.N(3 * time.Millisecond))
	for time.Now().Before(end) {
		for range 200 {
			s := r.own
			if r.IntN(2) == 0 {
				s = r.peer
			}
			switch r.IntN(6) {
			case 0:
				s.posted.Store(r.Uint64() >> r.IntN(64))
			case 1:
				s.waiting.Store(r.Uint32() >> r.IntN(32))
			case 2:
				s.slots[r.IntN(len(s.slots))].Store(r.Uint64())
			case 3: // nearly right
				pos := r.Uint64N(uint64(2 * len(s.slots)))
				word := s.lapOf(pos) | r.Uint64N(64)<<lengthShift | r.Uint64()&sendBit
				s.slot(pos).Store(word | uint64(r.Uint32()>>r.IntN(32)))
			case 4:
				binary.LittleEndian.PutUint64(r.mem[r.IntN(len(r.mem)-8):], r.Uint64())
			case 5:
				at := r.IntN(len(r.mem)/os.Getpagesize()) * os.Getpagesize()
				copy(r.mem[at:at+os.Getpagesize()], r.bytes(64))
			}
		}
	}
}

// attacks are what hostile peers do to whoever they are connected to.
var attacks = []func(r *raider){
	func(r *raider) {}, // disconnect at once
	func(r *raider) { time.Sleep(rand.N(2 * time.Millisecond)) },
	func(r *raider) { r.sock.send(r.bytes(r.IntN(600)), -1) },
	func(r *raider) { // an empty packet, which looks like the end
		unix.Sendmsg(r.sock.fd, nil, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		r.await()
	},
	func(r *raider) { // a good frame with a few bits wrong
		b := r.first().encoded()
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		r.begin(b)
		r.await()
	},
	func(r *raider) { // numbers that have nothing to do with the memory
		f := r.first()
		f.shape = shape{int(r.Uint64() >> (1 + r.IntN(63))), r.Uint32(), int(r.Uint32() >> r.IntN(32)), int(r.Uint32() >> r.IntN(32))}
		r.begin(f.encode())
		r.await()
	},
	func(r *raider) { // no memory, or some that nobody has asked for
		if r.passive {
			r.sock.send(r.first().encoded(), -1)
		} else {
			r.sock.send(r.first().encoded(), r.fd)
		}
		r.await()
	},
	func(r *raider) { // bad memory
		n := r.IntN(len(badMemory))
		for _, create := range badMemory {
			if n--; n >= 0 {
				continue
			}
			if fd, err := create(len(r.mem)); err == nil {
				r.sock.send(r.first().encoded(), fd)
				unix.Close(fd)
			}
			break
		}
		r.await()
	},
	func(r *raider) { // too much memory
		fds := make([]int, 2+r.IntN(252))
		for i := range fds {
			fds[i] = r.fd
		}
		r.sendMany(r.first().encoded(), fds...)
		r.await()
	},
	func(r *raider) { // descriptors with noise
		r.sendMany(r.bytes(1+r.IntN(40)), r.fd, r.sock.fd)
		r.await()
	},
	func(r *raider) { // a socket in flight that is the connection itself
		r.sendMany(r.first().encoded(), r.sock.fd)
	},
	func(r *raider) { // leave before the answer, or with it
		r.begin(r.first().encoded())
		if r.IntN(2) == 0 {
			if _, fd, _ := r.await(); fd >= 0 {
				unix.Close(fd)
			}
		}
	},
	func(r *raider) { // go on with anything but what is due
		r.begin(r.first().encoded())
		if _, fd, _ := r.await(); fd >= 0 {
			unix.Close(fd)
		}
		k := []kind{req, rep, rej}[r.IntN(3)]
		r.sock.send((&frame{kind: k, reason: r.IntN(40), shape: r.shape, source: r.to, target: r.to, private: r.bytes(10)}).encode(), -1+r.IntN(2)*(1+r.fd))
		r.await()
	},
	func(r *raider) { // everything at once, in advance
		r.begin(r.first().encoded())
		for range r.IntN(300) {
			r.sock.send((&frame{kind: rtu}).encode(), -1)
		}
	},
	func(r *raider) {
		if r.shake() {
			r.scribble()
		}
	},
	func(r *raider) { // scribble and ring, or ring alone
		if !r.shake() {
			return
		}
		for range r.IntN(20) {
			for range r.IntN(400) {
				_ = r.sock.ring()
			}
			if r.IntN(2) == 0 {
				r.scribble()
			}
		}
	},
	func(r *raider) { // doorbells with descriptors, large ones, empty ones
		if !r.shake() {
			return
		}
		for range r.IntN(50) {
			r.sendMany(r.bytes(r.IntN(4000)), r.fd, r.fd, r.sock.fd)
			unix.Sendmsg(r.sock.fd, nil, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
	},
	func(r *raider) { // change the memory under the peer
		if !r.shake() {
			return
		}
		for range 20 {
			unix.Ftruncate(r.fd, int64(r.IntN(2*len(r.mem))))
			addSeals(r.fd, r.IntN(64))
			at, n := pages(r.IntN(len(r.mem)))-pages(1), pages(1+r.IntN(len(r.mem)))
			_ = punch(r.fd, max(at, 0), n)
			unix.Madvise(r.mem, unix.MADV_REMOVE)
			r.own.waiting.Store(1)
		}
	},
	func(r *raider) { // take the memory and not the last seals, or punch holes first
		r.begin(r.first().encoded())
		fd := r.fd
		if !r.passive {
			var err error
			if _, fd, err = r.await(); err != nil || fd < 0 {
				return
			}
			defer unix.Close(fd)
		}
		switch r.IntN(3) {
		case 0:
			addSeals(fd, unix.F_SEAL_SEAL)
		case 1:
			_ = punch(fd, 0, pages(1))
			addSeals(fd, lastSeals())
		}
		if !r.passive {
			r.sock.send((&frame{kind: rtu}).encode(), -1)
		}
		r.await()
	},
	func(r *raider) { // let the peer ring without ever answering
		if !r.shake() {
			return
		}
		for range 1000 {
			r.own.waiting.Store(1)
			r.own.posted.Add(1)
		}
		time.Sleep(rand.N(5 * time.Millisecond))
	},
	func(r *raider) { // half a goodbye
		if r.shake() {
			unix.Shutdown(r.sock.fd, r.IntN(3))
			r.scribble()
		}
	},
}

// raid is one round of one connection.
func raid(r *rand.Rand, sock *socket, passive bool, to netip.AddrPort) error {
	region := pages(r.IntN(100_000))
	s, err := newShape(uint64(region), r.Uint32(), 1+r.Uint32N(300), r.Uint32N(100))
	if err != nil {
		return err
	}
	raider := &raider{Rand: r, sock: sock, passive: passive, to: to, shape: s}
	l := raider.layout(victim)
	mem, fd, err := createAll(l)
	if err != nil {
		return err
	}
	raider.take(mem, fd, victim)
	raider.own.posted.Store(uint64(s.recvQueue))
	defer raider.close()
	attacks[r.IntN(len(attacks))](raider)
	return nil
}

func hostileArgs(args []string) (rounds int, r *rand.Rand) {
	rounds, _ = strconv.Atoi(args[0])
	seed, _ := strconv.ParseUint(args[1], 10, 64)
	return rounds, rand.New(rand.NewPCG(seed, 0))
}

// hostileDialer raids a listener.
func hostileDialer(at netip.AddrPort, args []string) error {
	rounds, r := hostileArgs(args)
	for range rounds {
		sock, err := newSocket(newCloser())
		if err != nil {
			return err
		}
		if err := sock.connect(nameOf(listenerName, os.Geteuid(), "", at)); err != nil {
			return fmt.Errorf("the listener is gone: %w", err)
		}
		if err := raid(r, sock, false, at); err != nil {
			return err
		}
	}
	return nil
}

// hostileServer raids dialers.
func hostileServer(at netip.AddrPort, args []string) error {
	rounds, r := hostileArgs(args)
	f, err := New(Config{})
	if err != nil {
		return err
	}
	sock, at, err := f.(*shm).listenAt(at)
	if err != nil {
		return err
	}
	fmt.Println(at)
	l := &listener{sock: sock}
	for range rounds {
		fd, err := l.next()
		if err != nil {
			return err
		}
		s, err := pollSocket(fd, false, newCloser())
		if err != nil {
			return err
		}
		if r.IntN(4) == 0 { // read the request, or do not
			(&raider{sock: s}).await()
		}
		if err := raid(r, s, true, at); err != nil {
			return err
		}
	}
	return nil
}

// bear makes an end do with a hostile peer what it does with any, for a while, or until an
// error shows that the peer is one.
func bear(e end) {
	enough := time.AfterFunc(30*time.Millisecond, e.Wake)
	defer enough.Stop()
	end := time.Now().Add(20 * time.Millisecond)
	var c [32]fabric.Completion
	data := make([]byte, 300)
	err := e.PostSend([]fabric.WorkRequest{{Op: fabric.Write, Signaled: true}})
	for i := uint32(0); err == nil && time.Now().Before(end); i++ {
		room := len(*e.window.Load())
		n := min(int(i)%len(data), room)
		if int(e.posted-e.freed.Load()) < options.SendQueue {
			err = e.PostSend([]fabric.WorkRequest{{
				Op: fabric.WriteImm, Imm: i, Data: data[:n], Signaled: i%8 == 0,
				RKey: e.peer.rkey, RemoteAddr: uint64(int(i) * 17 % (room - n + 1)),
			}})
		}
		recvs := 0
		if err == nil {
			err = e.Arm()
		}
		for n := len(c); err == nil && n == len(c); {
			n, err = e.Poll(c[:])
			for _, x := range c[:n] {
				if x.Status != fabric.OK {
					err = fmt.Errorf("%v", x.Status)
				} else if x.Recv {
					recvs++
				}
			}
		}
		if err == nil {
			err = e.PostRecv(recvs)
		}
		if err == nil {
			err = e.Wait()
		}
	}
	e.Disconnect()
	for e.recvDone < e.recvPosted {
		e.Poll(c[:])
	}
}

// undisturbed runs f beside an honest connection of the same fabric, which has
// to go on all the while.
func undisturbed(t *testing.T, f fabric.Fabric, attack func()) {
	t.Helper()
	a, b := connectTo(t, f, listen(t, f, 1), options)
	var stop atomic.Bool
	var rounds atomic.Uint64
	var both sync.WaitGroup
	both.Go(func() {
		s, r := &stream{end: a, peerKey: b.mem.RKey()}, &stream{end: b, peerKey: a.mem.RKey()}
		for !stop.Load() {
			target := rounds.Add(1)
			var pair sync.WaitGroup
			pair.Go(func() { assert.NoError(t, s.run(target, target)) })
			pair.Go(func() { assert.NoError(t, r.run(target, target)) })
			pair.Wait()
			time.Sleep(100 * time.Microsecond)
		}
	})
	attack()
	hang.Unless(t, func() bool { return rounds.Load() > 10 })
	stop.Store(true)
	soon(t, "the honest connection", both.Wait)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

func hostileRounds() int {
	switch {
	case soak:
		return 5_000
	case testing.Short():
		return 50
	}
	return 300
}

// seed is one that a failure prints.
func seed(t *testing.T) string {
	n := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", n)
		}
	})
	return strconv.FormatUint(n, 10)
}

func TestHostileDialers(t *testing.T) { lenientToo(t, hostileDialers) }

func hostileDialers(t *testing.T, f *shm) {
	leavesNothing(t)
	undisturbed(t, f, func() {
		l := listen(t, f, 8)
		var victims sync.WaitGroup
		var established atomic.Int64
		victims.Go(func() {
			for {
				ep, err := l.Accept()
				if err != nil {
					return
				}
				victims.Go(func() {
					defer ep.Close()
					e, err := open(ep, options)
					if !assert.NoError(t, err) {
						return
					}
					short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
					defer cancel()
					if e.Accept(short, nil) == nil {
						established.Add(1)
						bear(e)
					} else {
						ep.Reject([]byte("no"))
					}
				})
			}
		})
		p := start(t, program("hostile dialer", l.Addr(), strconv.Itoa(hostileRounds()), seed(t)))
		require.NoError(t, p.Wait(), "%s", p.err)
		done := make(chan error, 1)
		go func() {
			e, err := dial(f, l.Addr(), options)
			if err == nil {
				e.Close()
			}
			done <- err
		}()
		soon(t, "an honest dialer", func() { require.NoError(t, <-done) })
		require.NoError(t, l.Close())
		soon(t, "the victims", victims.Wait)
		t.Logf("%d connections established", established.Load())
		assert.NotZero(t, established.Load())
	})
}

func TestHostileListeners(t *testing.T) { lenientToo(t, hostileListeners) }

func hostileListeners(t *testing.T, f *shm) {
	leavesNothing(t)
	undisturbed(t, f, func() {
		rounds := hostileRounds()
		p := start(t, program("hostile server", netip.AddrPortFrom(host, 0), strconv.Itoa(rounds), seed(t)))
		at := netip.MustParseAddrPort(p.line(t))
		established := 0
		for range rounds {
			ep, err := f.Dial(ctx, netip.AddrPort{}, at)
			require.NoError(t, err)
			e, err := open(ep, options)
			require.NoError(t, err)
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			soon(t, "Connect", func() { _, err = e.Connect(short, []byte("hello")) })
			cancel()
			if err == nil && e.Confirm() == nil {
				established++
				bear(e)
			}
			require.NoError(t, e.Close())
		}
		require.NoError(t, p.Wait(), "%s", p.err)
		t.Logf("%d connections established", established)
		assert.NotZero(t, established)
	})
}

// Dialers that connect and send no request delay no others.
func TestSilentDialers(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t)
	f.(*shm).requestTimeout = time.Hour
	l := listen(t, f, 1)
	const silent = maxRequests + 50
	var first *socket
	for i := range silent {
		sock, err := newSocket(newCloser())
		require.NoError(t, err)
		defer sock.close()
		if i == 0 {
			first = sock
		}
		require.NoError(t, sock.connect(plainName(l.Addr())))
	}
	listener := l.(*listener)
	count := func() int {
		listener.mu.Lock()
		defer listener.mu.Unlock()
		return len(listener.requests)
	}
	require.LessOrEqual(t, count(), maxRequests)
	// The reject asks it to try again: it may only have been slow.
	_, _, err := newEndpoint(f.(*shm), first, l.Addr(), l.Addr()).receive(t.Context())
	var full *fabric.RejectError
	require.ErrorAs(t, err, &full)
	require.Equal(t, wire.Full, wire.DecodeReject(full.Private))
	requireAccepts(t, f, l)
	require.LessOrEqual(t, count(), maxRequests)
}

// A dialer that sends no request loses its place after a while.
func TestSilentDialersAreGivenUp(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t)
	f.(*shm).requestTimeout = 100 * time.Millisecond
	l := listen(t, f, 1)
	s, err := newSocket(newCloser())
	require.NoError(t, err)
	defer s.close()
	require.NoError(t, s.connect(plainName(l.Addr())))
	_, _, err = newEndpoint(f.(*shm), s, l.Addr(), l.Addr()).receive(t.Context())
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	require.Equal(t, reasonUnsupported, reject.Reason)
}

func TestDoorbellFloodEndsTheConnection(t *testing.T) {
	a, b := connected(t, options)
	require.NoError(t, b.Arm())
	a.peer.waiting.Store(0)
	_ = a.sock.ring()
	require.NoError(t, b.Wait())
	_ = a.sock.ring()
	require.ErrorIs(t, b.Wait(), fabric.ErrQueuePair)
	require.NoError(t, b.Disconnect())
	require.Len(t, poll(t, b), 64)
}

func TestPostedCountThatCannotBeEndsTheConnection(t *testing.T) {
	for name, posted := range map[string]uint64{"more than its queue": 129, "fewer than before": 63, "none": 0} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, options)
			for i := range uint32(64) {
				post(t, a, a.write(b, 0, i, ""))
			}
			b.own.posted.Store(posted)
			post(t, a, a.write(b, 0, 0, ""))
			c := make([]fabric.Completion, 100)
			n, err := a.Poll(c)
			require.ErrorIs(t, err, fabric.ErrQueuePair)
			require.ErrorContains(t, err, "receives")
			require.Equal(t, append([]fabric.Completion{{Status: fabric.Fatal}}, flushed(64)...), c[:n])
			require.ErrorIs(t, a.Wait(), fabric.ErrQueuePair)
			require.Len(t, poll(t, b), 64)
		})
	}
}

func TestDescriptorThatIsBadEndsTheConnection(t *testing.T) {
	for name, word := range map[string]uint64{
		"write longer than memory": lapBit | (ringSize+1)<<lengthShift,
		"send longer than receive": lapBit | sendBit | 25<<lengthShift,
		"send with an immediate":   lapBit | sendBit | 1,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, options)
			post(t, a, a.write(b, 0, 1, "x"))
			a.peer.slot(1).Store(word)
			c := make([]fabric.Completion, 100)
			n, err := b.Poll(c)
			require.ErrorIs(t, err, fabric.ErrQueuePair)
			require.ErrorContains(t, err, "bytes")
			require.Equal(t, append([]fabric.Completion{received(1, 1)}, flushed(63)...), c[:n])
			require.ErrorIs(t, b.Wait(), fabric.ErrQueuePair)
			n, err = b.Poll(c)
			require.NoError(t, err, "it is told once")
			require.Zero(t, n)
		})
	}
}
