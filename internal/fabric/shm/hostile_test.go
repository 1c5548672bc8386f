//go:build linux

// Peers that mean harm. They do their worst to listeners and dialers, which must
// neither crash nor hang nor lose anything, and whose honest connection must not notice.

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/mapping"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/limits"
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
	l := r.layout(peer)
	r.own, r.peer = l.views(mem[:l.queues()])
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

func (r *raider) opening() []byte {
	f := r.first()
	return f.encode()
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

// ignore is await for an answer that the raider does nothing with.
func (r *raider) ignore() {
	if _, fd, _ := r.await(); fd >= 0 {
		unix.Close(fd)
	}
}

// shake completes the handshake, as an honest peer would.
func (r *raider) shake() bool {
	r.begin(r.opening())
	f, fd, err := r.await()
	if r.passive || err != nil || fd < 0 {
		return err == nil && f.kind == rtu
	}
	l := r.layout(f.shape)
	mapped, err := adoptMemory(fd, l.size(), whole(l))
	if err != nil {
		unix.Close(fd)
		return false
	}
	_ = mapping.Unmap(mapped[0])
	r.take(mapped[1], fd, f.shape)
	r.own.posted.Store(uint64(r.shape.recvQueue))
	return r.sock.send((&frame{kind: rtu}).encode(), -1) == nil
}

// whole are the parts of memory of which all is mapped, though only the queues are made. The
// queues alone are not needed.
func whole(l layout) [3]part { return [3]part{{0, l.queues()}, {0, l.size()}} }

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
var attacks = map[string]func(r *raider){
	"leaves soon": func(*raider) { time.Sleep(rand.N(2 * time.Millisecond)) },
	"noise":       func(r *raider) { r.sock.send(r.bytes(r.IntN(600)), -1) },
	"an empty packet, which looks like the end": func(r *raider) {
		unix.Sendmsg(r.sock.fd, nil, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		r.ignore()
	},
	"no memory, or some that nobody has asked for": func(r *raider) {
		if r.passive {
			r.sock.send(r.opening(), -1)
		} else {
			r.sock.send(r.opening(), r.fd)
		}
		r.ignore()
	},
	"bad memory": func(r *raider) {
		n := r.IntN(len(badMemory))
		for _, create := range badMemory {
			if n--; n >= 0 {
				continue
			}
			if fd, err := create(len(r.mem)); err == nil {
				r.sock.send(r.opening(), fd)
				unix.Close(fd)
			}
			break
		}
		r.ignore()
	},
	"too much memory": func(r *raider) {
		fds := make([]int, 2+r.IntN(252))
		for i := range fds {
			fds[i] = r.fd
		}
		r.sendMany(r.opening(), fds...)
		r.ignore()
	},
	"descriptors with noise": func(r *raider) {
		r.sendMany(r.bytes(1+r.IntN(40)), r.fd, r.sock.fd)
		r.ignore()
	},
	"a socket in flight that is the connection itself": func(r *raider) {
		r.sendMany(r.opening(), r.sock.fd)
	},
	"leaves before the answer, or with it": func(r *raider) {
		r.begin(r.opening())
		if r.IntN(2) == 0 {
			r.ignore()
		}
	},
	"goes on with anything but what is due": func(r *raider) {
		r.begin(r.opening())
		r.ignore()
		k := []kind{req, rep, rej}[r.IntN(3)]
		r.sock.send((&frame{kind: k, reason: r.IntN(40), shape: r.shape, source: r.to, target: r.to, private: r.bytes(10)}).encode(), -1+r.IntN(2)*(1+r.fd))
		r.ignore()
	},
	"everything at once, in advance": func(r *raider) {
		r.begin(r.opening())
		for range r.IntN(300) {
			r.sock.send((&frame{kind: rtu}).encode(), -1)
		}
	},
	"scribbles and rings, or rings alone": func(r *raider) {
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
	"doorbells with descriptors, large ones, empty ones": func(r *raider) {
		if !r.shake() {
			return
		}
		for range r.IntN(50) {
			r.sendMany(r.bytes(r.IntN(4000)), r.fd, r.fd, r.sock.fd)
			unix.Sendmsg(r.sock.fd, nil, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
	},
	"changes the memory under the peer": func(r *raider) {
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
	"takes the memory and not the last seals, or punches holes first": func(r *raider) {
		r.begin(r.opening())
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
		r.ignore()
	},
	"lets the peer ring without ever answering": func(r *raider) {
		if !r.shake() {
			return
		}
		for range 1000 {
			r.own.waiting.Store(1)
			r.own.posted.Add(1)
		}
		time.Sleep(rand.N(5 * time.Millisecond))
	},
	"half a goodbye": func(r *raider) {
		if r.shake() {
			unix.Shutdown(r.sock.fd, r.IntN(3))
			r.scribble()
		}
	},
}

// raid is one connection of a hostile peer.
func raid(t *testing.T, sock *socket, passive bool, to netip.AddrPort, attack func(r *raider)) {
	r := &raider{Rand: rand.New(rand.NewPCG(rand.Uint64(), 0)), sock: sock, passive: passive, to: to}
	s, err := newShape(uint64(pages(r.IntN(100_000))), r.Uint32(), 1+r.Uint32N(300), r.Uint32N(100))
	if !assert.NoError(t, err) {
		return
	}
	r.shape = s
	l := r.layout(victim)
	mapped, fd, err := createMemory(l.size(), whole(l))
	if !assert.NoError(t, err) {
		return
	}
	_ = mapping.Unmap(mapped[0])
	r.take(mapped[1], fd, victim)
	r.own.posted.Store(uint64(s.recvQueue))
	defer r.close()
	attack(r)
}

// bear makes an end do with a hostile peer what it does with any, for a while, or until an
// error shows that the peer is one.
func bear(e end) {
	enough := time.AfterFunc(30*time.Millisecond, e.Wake)
	defer enough.Stop()
	end := time.Now().Add(20 * time.Millisecond)
	var c [32]fabric.Completion
	data := make([]byte, 300)
	var err error
	for i := uint32(0); err == nil && time.Now().Before(end); i++ {
		room := len(*e.window.Load())
		n := min(int(i)%len(data), room)
		err = errors.Join(e.Arm(), e.post(fabric.WorkRequest{
			Op: fabric.WriteImm, Imm: i, Data: data[:n], Signaled: true,
			RKey: e.peer.rkey, RemoteAddr: uint64(int(i) * 17 % (room - n + 1)),
		}))
		for n := len(c); err == nil && n == len(c); {
			recvs := 0
			n, err = e.Poll(c[:])
			for _, x := range c[:n] {
				if x.Status != fabric.OK {
					err = fmt.Errorf("%v", x.Status)
				} else if x.Recv {
					recvs++
				}
			}
			err = errors.Join(err, e.PostRecv(recvs))
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
	var over atomic.Bool
	var rounds atomic.Uint32
	var honest sync.WaitGroup
	honest.Go(func() {
		for !over.Load() && assert.NoError(t, exchange(a, b, rounds.Load())) && assert.NoError(t, exchange(b, a, rounds.Load())) {
			rounds.Add(1)
			time.Sleep(100 * time.Microsecond)
		}
	})
	attack()
	before := rounds.Load()
	hang.Unless(t, func() bool { return rounds.Load() > before+20 })
	over.Store(true)
	soon(t, "the honest connection", honest.Wait)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// exchange has one end write a message to the other, which sleeps until it has come.
func exchange(from, to end, i uint32) error {
	text := fmt.Sprint("message ", i)
	wr := from.write(to, 0, i, text)
	wr.Signaled = true
	err := errors.Join(to.Arm(), from.post(wr))
	var sent, got [2]fabric.Completion
	for n := 0; err == nil && n == 0; {
		if err = to.Wait(); err == nil {
			n, err = to.Poll(got[:])
		}
	}
	if _, pollErr := from.Poll(sent[:]); err != nil || pollErr != nil {
		return errors.Join(err, pollErr)
	}
	if got[0].Imm != i || got[0].Len != len(text) || string(to.mem.Bytes()[:len(text)]) != text {
		return fmt.Errorf("%v, in the place of %s", got[0], text)
	}
	return to.PostRecv(1)
}

// Each does its worst to a listener, and to a dialer.
func TestHostilePeers(t *testing.T) {
	rounds := 6
	switch {
	case soak:
		rounds = 200
	case testing.Short():
		rounds = 1
	}
	lenientToo(t, func(t *testing.T, f *shm) {
		leavesNothing(t)
		undisturbed(t, f, func() {
			established := [2]int{}
			for name, attack := range attacks {
				t.Run(name, func(t *testing.T) {
					established[0] += raidListener(t, f, rounds, attack)
					established[1] += raidDialers(t, f, rounds, attack)
				})
			}
			t.Logf("%d connections established", established)
			assert.NotZero(t, established[0])
			assert.NotZero(t, established[1])
		})
	})
}

// raidListener has a listener raided, and returns how many connections it has made.
func raidListener(t *testing.T, f *shm, rounds int, attack func(r *raider)) int {
	l := listen(t, f, 8)
	var victims sync.WaitGroup
	var established atomic.Int64
	patience := new(atomic.Int64) // of those who accept: little for raiders, who may never confirm
	patience.Store(int64(200 * time.Millisecond))
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
				short, cancel := context.WithTimeout(ctx, time.Duration(patience.Load()))
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
	for range rounds {
		sock, err := connectByName(plainName(l.Addr()))
		require.NoError(t, err, "the listener is gone")
		raid(t, sock, false, l.Addr(), attack)
	}
	patience.Store(int64(hang.After))
	soon(t, "an honest dialer", func() {
		e, err := dial(f, l.Addr(), options)
		if assert.NoError(t, err) {
			assert.NoError(t, e.Close())
		}
	})
	require.NoError(t, l.Close())
	soon(t, "the victims", victims.Wait)
	return int(established.Load()) - 1
}

// raidDialers is the same with dialers.
func raidDialers(t *testing.T, f *shm, rounds int, attack func(r *raider)) (established int) {
	sock, at, err := f.listenAt(netip.AddrPortFrom(host, 0))
	require.NoError(t, err)
	var raids sync.WaitGroup
	raids.Go(func() {
		l := &listener{sock: sock}
		for {
			s, err := nextDialer(l)
			if err != nil {
				return
			}
			raid(t, s, true, at, attack)
		}
	})
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
	sock.sleeper.Wake()
	raids.Wait()
	require.NoError(t, sock.close())
	return established
}

// Dialers that connect and send no request delay no others.
func TestSilentDialers(t *testing.T) {
	limits.NeedDescriptors(t, 2*(maxRequests+50))
	leavesNothing(t)
	f := newFabric(t)
	f.(*shm).requestTimeout = time.Hour
	l := listen(t, f, 1)
	const silent = maxRequests + 50
	var first *socket
	for i := range silent {
		sock, err := connectByName(plainName(l.Addr()))
		require.NoError(t, err)
		defer sock.close()
		if i == 0 {
			first = sock
		}
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
	s, err := connectByName(plainName(l.Addr()))
	require.NoError(t, err)
	defer s.close()
	_, _, err = newEndpoint(f.(*shm), s, l.Addr(), l.Addr()).receive(t.Context())
	var reject *fabric.RejectError
	require.ErrorAs(t, err, &reject)
	require.Equal(t, reasonUnsupported, reject.Reason)
}

// Each breach of b's is seen by a, which flushes its receives and tells the reason once.
func TestBreachesEndTheConnection(t *testing.T) {
	posted := func(n uint64) func(t *testing.T, a, b end) {
		return func(t *testing.T, a, b end) {
			for range 64 {
				post(t, a, a.write(b, 0, 0, ""))
			}
			b.own.posted.Store(n)
			post(t, a, a.write(b, 0, 0, ""))
		}
	}
	descriptor := func(word uint64) func(t *testing.T, a, b end) {
		return func(_ *testing.T, _, b end) { b.peer.slot(0).Store(word) }
	}
	fails := []fabric.Completion{{Status: fabric.Fatal}}
	for name, test := range map[string]struct {
		breach func(t *testing.T, a, b end)
		want   []fabric.Completion // before the flushed receives
		says   string
	}{
		"more receives than its queue":   {posted(129), fails, "receives"},
		"fewer receives than before":     {posted(63), fails, "receives"},
		"no receives":                    {posted(0), fails, "receives"},
		"a write longer than memory":     {descriptor(lapBit | (ringSize+1)<<lengthShift), nil, "bytes"},
		"a send longer than its receive": {descriptor(lapBit | sendBit | 25<<lengthShift), nil, "bytes"},
		"a send with an immediate":       {descriptor(lapBit | sendBit | 1), nil, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t, options)
			test.breach(t, a, b)
			c := make([]fabric.Completion, 100)
			n, err := a.Poll(c)
			require.ErrorIs(t, err, fabric.ErrQueuePair)
			require.ErrorContains(t, err, test.says)
			require.Equal(t, append(test.want, flushed(64)...), c[:n])
			require.ErrorIs(t, a.Wait(), fabric.ErrQueuePair)
			require.Empty(t, poll(t, a), "it is told once")
		})
	}
	t.Run("more doorbells than a has slept", func(t *testing.T) {
		a, b := connected(t, options)
		require.NoError(t, a.Arm())
		b.peer.waiting.Store(0)
		_ = b.sock.ring()
		require.NoError(t, a.Wait())
		_ = b.sock.ring()
		require.ErrorIs(t, a.Wait(), fabric.ErrQueuePair)
		require.NoError(t, a.Disconnect())
		require.Len(t, poll(t, a), 64)
	})
}
