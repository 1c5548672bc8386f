//go:build linux && cgo

package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/rconn"
)

// manners is how the library of testdata/manners.c is to behave, and what it was asked
// for: the same structure as there, in shared memory.
type manners struct {
	maxInline     atomic.Uint32
	refusal       atomic.Uint32
	maxDepth      atomic.Uint32
	loadsFragment atomic.Uint32
	dead          atomic.Uint32
	cutOff        atomic.Uint32
	activeMTU     atomic.Uint32
	wrongLength   atomic.Uint32

	queuePairs   atomic.Uint32
	emptyWrites  atomic.Uint32
	emptyRKey    atomic.Uint32
	emptyAddr    atomic.Uint64
	relaxed      atomic.Uint32
	strict       atomic.Uint32
	rnrRetry     atomic.Uint32
	rnrTimer     atomic.Uint32
	trafficClass atomic.Uint32
	pathMTU      atomic.Uint32
	forkInits    atomic.Uint32
}

// Asynchronous events that the library can be made to report.
const (
	cqErr       = 0
	deviceFatal = 8
)

// emulated is the soft-RoCE device with the manners of another.
type emulated struct {
	*manners
	fabric rdma
	addr   netip.Addr
	events *os.File
}

// TestManners shows what real devices do that soft-RoCE does not, each named
// after the provider in rdma-core that has been read to do it. The library is
// one for the whole process, so the tests have a process of their own.
func TestManners(t *testing.T) {
	d := emulate(t)
	if d == nil {
		return
	}
	for _, tt := range []struct {
		name string
		set  func(m *manners)
		test func(t *testing.T, d *emulated)
	}{
		{"bnxt_re refuses more than 96 bytes inline, without an errno", func(m *manners) {
			m.maxInline.Store(96)
			m.refusal.Store(0)
		}, takesInline(96, 5)},
		{"bnxt_re's firmware refuses more than 96 bytes inline, which its driver reports as EIO", func(m *manners) {
			m.maxInline.Store(96)
			m.refusal.Store(uint32(syscall.EIO))
		}, takesInline(96, 5)},
		{"irdma refuses more than 101 bytes inline", func(m *manners) { m.maxInline.Store(101) }, takesInline(101, 4)},
		{"qedr refuses more than 128 bytes inline", func(m *manners) { m.maxInline.Store(128) }, takesInline(128, 3)},
		{"nothing is taken inline", func(m *manners) { m.maxInline.Store(0) }, takesInline(0, 9)},
		{"mlx5 refuses a queue that is too deep", func(m *manners) { m.maxDepth.Store(100) }, testDepth},
		{"everything is refused, without an errno", func(m *manners) {
			m.maxDepth.Store(0)
			m.refusal.Store(0)
		}, testRefusal},
		{"everything is refused with EIO", func(m *manners) {
			m.maxDepth.Store(0)
			m.refusal.Store(uint32(syscall.EIO))
		}, testRefusal},
		{"memory is short for a while (RLIMIT_MEMLOCK)", func(m *manners) { m.refusal.Store(uint32(syscall.ENOMEM)) }, testShortage},
		{"nothing may be locked for a while", func(m *manners) { m.refusal.Store(uint32(syscall.EPERM)) }, testShortage},
		{"the control group has its share for a while", func(m *manners) { m.refusal.Store(uint32(syscall.EAGAIN)) }, testShortage},
		{"memory is short for inline data alone, for a while", func(m *manners) { m.refusal.Store(uint32(syscall.ENOMEM)) }, testInlineShortage},
		{"the kernel has taken the device back: no completion queue", func(m *manners) { m.maxDepth.Store(0) }, testNothingCanBeMade},
		{"the kernel has taken the device back: no queue pair", func(m *manners) { m.maxDepth.Store(24) }, testNothingCanBeMade},
		{"irdma loads the first fragment of nothing", func(m *manners) { m.loadsFragment.Store(1) }, testEmptyWrite},
		{"irdma loads the first fragment of a probe", func(m *manners) { m.loadsFragment.Store(1) }, testProbe},
		{"mlx5 is removed and flushes nothing", func(*manners) {}, testRemoval},
		{"mlx5 has a CQ error and flushes nothing", func(*manners) {}, testCQError},
		{"a send may find no receive for a while", func(*manners) {}, testPatience},
		{"packets are marked with the traffic class", func(*manners) {}, testTrafficClass},
		{"the listener's port has a smaller MTU", func(*manners) {}, testMTU},
		{"a write arrives with a length that is too small", func(m *manners) { m.wrongLength.Store(20) }, testWrongLength},
		{"a write arrives with a length that is too large", func(m *manners) { m.wrongLength.Store(60) }, testWrongLength},
		{"memory is registered with relaxed ordering", func(*manners) {}, testRelaxedOrdering},
		{"the kernel takes the device back", func(*manners) {}, testCutOff},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d.reset()
			tt.set(d.manners)
			tt.test(t, d)
		})
	}
}

// emulate builds the library and runs the rest of the test in a process of its
// own, with the library open. It returns nil in this one when that has ended.
func emulate(t *testing.T) *emulated {
	t.Helper()
	addr := address(t, "SOFTROCE_ADDR")
	const library, shared, fifo = "RINGNET_TEST_LIBRARY", "RINGNET_TEST_MANNERS", "RINGNET_TEST_EVENTS"
	if os.Getenv(child) == "" {
		requireHeaders(t)
		dir := t.TempDir()
		t.Setenv(library, filepath.Join(dir, "libmanners.so"))
		t.Setenv(shared, filepath.Join(dir, "manners"))
		t.Setenv(fifo, filepath.Join(dir, "events"))
		compileLibrary(t, os.Getenv(library), "testdata/manners.c", "-Wl,--no-as-needed", "-l:libibverbs.so.1")
		require.NoError(t, os.WriteFile(os.Getenv(shared), make([]byte, os.Getpagesize()), 0o600))
		require.NoError(t, unix.Mkfifo(os.Getenv(fifo), 0o600))
	}
	if !inAProcessOfItsOwn(t, "run", nil) {
		return nil
	}
	if strings.HasPrefix(os.Getenv("SOFTROCE_DEVICE"), "siw") {
		t.Skip("the library speaks for soft-RoCE")
	}
	f, err := os.OpenFile(os.Getenv(shared), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	events, err := os.OpenFile(os.Getenv(fifo), os.O_RDWR, 0)
	require.NoError(t, err)
	manager, err := open(os.Getenv(library), librdmacm)
	require.NoError(t, err)
	asked := (*manners)(unsafe.Pointer(unsafe.SliceData(m)))
	require.EqualValues(t, 1, asked.forkInits.Load(), "calls of ibv_fork_init, before any other")
	return &emulated{asked, manager.fabric(Config{}), addr, events}
}

// compileLibrary makes a shared library of a C source.
func compileLibrary(t *testing.T, library, source string, args ...string) {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	args = append([]string{"-std=gnu11", "-Wall", "-Werror", "-I.", "-shared", "-fPIC", "-o", library, source}, args...)
	out, err := exec.Command(cc, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// reset gives the device soft-RoCE's own manners, as if it had just been found.
func (d *emulated) reset() {
	page := unsafe.Slice((*byte)(unsafe.Pointer(d.manners)), unsafe.Sizeof(manners{}))
	clear(page)
	clear(d.fabric.devices.shapes)
	d.maxInline.Store(1 << 20)
	d.maxDepth.Store(1 << 20)
	d.refusal.Store(uint32(syscall.EINVAL))
}

// raise has the library report an asynchronous event.
func (d *emulated) raise(t *testing.T, kind byte) {
	t.Helper()
	_, err := d.events.Write([]byte{kind})
	require.NoError(t, err)
}

// dialed returns an endpoint that is not open yet.
func (d *emulated) dialed(t *testing.T) fabric.Endpoint {
	t.Helper()
	e, err := d.fabric.Dial(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(d.addr, 9))
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

func (d *emulated) pair(t *testing.T) (a, b *endpoint) {
	t.Helper()
	l := listen(t, d.fabric, d.addr)
	a = opened(t, d.fabric, l.Addr()).(*endpoint)
	return a, handshake(t, l, a).(*endpoint)
}

// streams returns the two ends of a byte stream.
func (d *emulated) streams(t *testing.T, cfg *rconn.Config) (c, s *rconn.Conn) {
	t.Helper()
	l := listen(t, d.fabric, d.addr)
	served := make(chan *rconn.Conn, 1)
	go func() {
		ep, err := l.Accept()
		if !assert.NoError(t, err) {
			return
		}
		s, err := rconn.Server(context.Background(), "rdma", ep, cfg)
		if assert.NoError(t, err) {
			served <- s
		}
	}()
	ep, err := d.fabric.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, err = rconn.Client(context.Background(), "rdma", ep, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s = within(t, served)
	t.Cleanup(func() { s.Close() })
	return c, s
}

// takesInline: a connection is made with as much inline data as the device
// takes, found with so many tries, and the next connection needs no more than
// one.
func takesInline(most, tries int) func(*testing.T, *emulated) {
	return func(t *testing.T, d *emulated) {
		l := listen(t, d.fabric, d.addr)
		a := opened(t, d.fabric, l.Addr()).(*endpoint)
		assert.EqualValues(t, tries, d.queuePairs.Load(), "queue pairs asked for")
		b := handshake(t, l, a).(*endpoint)
		assert.EqualValues(t, tries+1, d.queuePairs.Load(), "the device is known")
		assert.GreaterOrEqual(t, a.inlineSize, most)
		assert.Equal(t, a.inlineSize, b.inlineSize)

		source := register(t, a, 4096, fabric.LocalWrite)
		copy(source.Bytes(), pattern(64))
		wr := fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:64], Memory: source, Signaled: true}
		if most >= 64 {
			wr.Memory = nil
		}
		post(t, a, wr)
		assert.Equal(t, pattern(64), poll(t, b, 1)[0].Data)
	}
}

// testDepth: queues are as deep as the device allows, and carry as much inline
// data as it takes at that depth.
func testDepth(t *testing.T, d *emulated) {
	deep := options
	deep.SendQueue, deep.RecvQueue = 1000, 267
	for range 2 {
		tried := d.queuePairs.Load()
		e := d.dialed(t)
		limits, err := e.Open(deep)
		require.NoError(t, err)
		assert.Equal(t, 62, limits.SendQueue)
		assert.Equal(t, 66, limits.RecvQueue)
		assert.Equal(t, maxInline, limits.Inline)
		require.NoError(t, e.PostRecv(limits.RecvQueue))
		require.NoError(t, e.Close())
		if tried > 0 {
			assert.Equal(t, tried+1, d.queuePairs.Load(), "the device is known")
		}
	}
}

// testRefusal: the error of a device that refuses everything is returned, and ends the
// dial.
func testRefusal(t *testing.T, d *emulated) {
	_, err := d.dialed(t).Open(options)
	require.Error(t, err)
	t.Log(err)
	assert.ErrorContains(t, err, "16 sends and 18 receives")
	assert.NotErrorIs(t, err, fabric.ErrDeviceRemoved)
}

// testShortage: what the device refuses because others have it is no limit of the
// device. The error has what to do about it, and another try succeeds when the others
// have gone.
func testShortage(t *testing.T, d *emulated) {
	deep := options
	deep.SendQueue, deep.RecvQueue = 128, 267
	d.maxDepth.Store(200)
	_, err := d.dialed(t).Open(deep)
	require.Error(t, err)
	t.Log(err)
	assert.ErrorIs(t, err, syscall.Errno(d.refusal.Load()))
	assert.ErrorContains(t, err, "128 sends and 267 receives")

	d.maxDepth.Store(1 << 20)
	limits, err := d.dialed(t).Open(deep)
	require.NoError(t, err)
	assert.Equal(t, fabric.Limits{SendQueue: 128, RecvQueue: 267, Inline: maxInline, Spin: spin, Transport: "RoCE"}, limits)
}

// testInlineShortage: the program has not asked for inline data, so an endpoint does
// with less, but the next one gets all of it if it is there.
func testInlineShortage(t *testing.T, d *emulated) {
	d.maxInline.Store(101)
	limits, err := d.dialed(t).Open(options)
	require.NoError(t, err)
	assert.Less(t, limits.Inline, maxInline)

	d.maxInline.Store(1 << 20)
	limits, err = d.dialed(t).Open(options)
	require.NoError(t, err)
	assert.Equal(t, maxInline, limits.Inline)
}

// testNothingCanBeMade: the error of a device that is gone is another than that of a
// device that refuses, and what was made before is freed.
func testNothingCanBeMade(t *testing.T, d *emulated) {
	e := d.dialed(t)
	inUse, err := e.(*endpoint).manager.devices.acquire(e.(*endpoint).id.verbs)
	require.NoError(t, err)
	defer e.(*endpoint).manager.devices.release(inUse)
	d.refusal.Store(uint32(syscall.EIO))
	d.cutOff.Store(1)
	descriptors := countDescriptors(t)
	_, err = e.Open(options)
	require.Error(t, err)
	t.Log(err)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	assert.LessOrEqual(t, d.queuePairs.Load(), uint32(1), "queue pairs asked for")
	_ = e.Close() // what cannot be destroyed is an error
	assert.LessOrEqual(t, countDescriptors(t), descriptors)
}

// testEmptyWrite: what the send queue's slot held before does no harm.
func testEmptyWrite(t *testing.T, d *emulated) {
	a, b := d.pair(t)
	source := register(t, a, 4096, fabric.LocalWrite)
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:options.RecvSize], Memory: source, Signaled: true})
	poll(t, a, 1)
	poll(t, b, 1)
	post(t, a, fabric.WorkRequest{ID: 5, Op: fabric.Write, Signaled: true})
	assert.Equal(t, fabric.Completion{ID: 5}, poll(t, a, 1)[0])
	assert.EqualValues(t, 1, d.emptyWrites.Load())
}

// testProbe: an idle connection is probed, lives on, and its probes name the
// peer's ring.
func testProbe(t *testing.T, d *emulated) {
	c, s := d.streams(t, &rconn.Config{KeepAlive: 20 * time.Millisecond})
	requireEcho(t, c, s)
	hang.Unless(t, func() bool { return c.Link().Probes > 2 && s.Link().Probes > 2 })
	requireEcho(t, c, s)
	assert.NotZero(t, d.emptyRKey.Load())
	assert.NotZero(t, d.emptyAddr.Load())
}

func requireEcho(t *testing.T, c, s *rconn.Conn) {
	t.Helper()
	want := pattern(100)
	got := make([]byte, len(want))
	for _, way := range [][2]*rconn.Conn{{c, s}, {s, c}} {
		_, err := way[0].Write(want)
		require.NoError(t, err)
		require.NoError(t, way[1].SetReadDeadline(time.Now().Add(hang.After)))
		n, err := way[1].Read(got)
		require.NoError(t, err)
		require.Equal(t, want, got[:n])
		require.NoError(t, way[1].SetReadDeadline(time.Time{}))
	}
}

// testRemoval: Read, Write and Close return that the device is gone.
func testRemoval(t *testing.T, d *emulated) {
	for _, err := range endsWhenDead(t, d, deviceFatal) {
		assert.ErrorIs(t, err, syscall.ENETDOWN)
	}
}

// testCQError: the same for a connection that has a broken completion queue. Its
// peer gets no more than a disconnect.
func testCQError(t *testing.T, d *emulated) {
	for _, err := range endsWhenDead(t, d, cqErr) {
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	}
}

// endsWhenDead returns what Read and Write at both ends of a connection return when the
// device dies and reports it by an event. Both are waiting then, and Close ends
// afterwards.
func endsWhenDead(t *testing.T, d *emulated, event byte) []error {
	t.Helper()
	c, s := d.streams(t, nil)
	requireEcho(t, c, s)
	ends := make(chan error)
	for _, end := range []*rconn.Conn{c, s} {
		go func() {
			_, err := end.Read(make([]byte, 1))
			ends <- err
		}()
	}
	d.dead.Store(1)
	for _, end := range []*rconn.Conn{c, s} {
		go func() {
			_, err := end.Write(make([]byte, 4<<20)) // more than there is room for
			ends <- err
		}()
	}
	d.raise(t, event)
	var errs []error
	for range 4 {
		errs = append(errs, within(t, ends))
	}
	for _, end := range []*rconn.Conn{c, s} {
		closed := make(chan error, 1)
		go func() { closed <- end.Close() }()
		within(t, closed)
	}
	return errs
}

// testPatience: both sides retry without end, and soon, a send that finds no receive. By
// rdma_cm's own setting it would wait for 655 ms.
func testPatience(t *testing.T, d *emulated) {
	d.pair(t)
	assert.EqualValues(t, 7, d.rnrRetry.Load())
	assert.EqualValues(t, 12, d.rnrTimer.Load(), "0.64 ms")
}

// testTrafficClass: each end marks its packets as configured, and as the system does
// otherwise.
func testTrafficClass(t *testing.T, d *emulated) {
	for _, tt := range []struct{ dialer, listener, wantDialer, wantListener int }{
		{0, 0, 0, 0},
		{106, 106, 106, 106},
		{106, 104, 106, 104},
		{106, 0, 106, 106},
		{0, 104, 0, 104},
		{104, -1, 104, 0},
	} {
		t.Run(fmt.Sprint(tt.dialer, tt.listener), func(t *testing.T) {
			dialer, listener := d.fabric, d.fabric
			dialer.config.TrafficClass, listener.config.TrafficClass = tt.dialer, tt.listener
			d.trafficClass.Store(0)
			l := listen(t, listener, d.addr)
			a := opened(t, dialer, l.Addr())
			handshake(t, l, a)
			// The side that accepts is ready to receive first.
			seen := d.trafficClass.Load()
			assert.Equal(t, tt.wantListener, int(seen>>8&0xff), "listener")
			assert.Equal(t, tt.wantDialer, int(seen&0xff), "dialer")
		})
	}
}

// testMTU: both queue pairs have the dialer's MTU, or the smaller one of the listener's port.
func testMTU(t *testing.T, d *emulated) {
	d.pair(t)
	seen := d.pathMTU.Load()
	assert.Equal(t, seen>>8&0xff, seen&0xff)
	assert.Greater(t, seen&0xff, uint32(1))

	d.activeMTU.Store(1) // 256 bytes
	a, b := d.pair(t)
	seen = d.pathMTU.Load()
	assert.EqualValues(t, 1, seen>>8&0xff, "listener")
	assert.EqualValues(t, 1, seen&0xff, "dialer")
	source := register(t, a, 4096, fabric.LocalWrite)
	copy(source.Bytes(), pattern(options.RecvSize))
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:options.RecvSize], Memory: source})
	assert.Equal(t, pattern(options.RecvSize), poll(t, b, 1)[0].Data)
}

// testWrongLength: a device whose completions do not say how much has arrived is found out by
// its first Send. What comes later is not looked at.
func testWrongLength(t *testing.T, d *emulated) {
	send := func(a *endpoint) {
		source := register(t, a, 4096, fabric.LocalWrite)
		copy(source.Bytes(), pattern(40))
		post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:40], Memory: source})
	}
	a, b := d.pair(t)
	send(a)
	var err error
	hang.Unless(t, func() bool {
		_, err = b.Poll(make([]fabric.Completion, 1))
		return err != nil
	})
	assert.ErrorIs(t, err, fabric.ErrQueuePair)
	t.Log(err)

	wrong := d.wrongLength.Swap(0)
	a, b = d.pair(t)
	send(a)
	assert.Equal(t, pattern(40), poll(t, b, 1)[0].Data)
	d.wrongLength.Store(wrong)
	send(a)
	assert.Len(t, poll(t, b, 1)[0].Data, int(wrong))
}

// testRelaxedOrdering: all memory is, unless that is switched off.
func testRelaxedOrdering(t *testing.T, d *emulated) {
	a, _ := d.pair(t)
	register(t, a, 4096, fabric.RemoteWrite)
	assert.EqualValues(t, 3, d.relaxed.Load(), "the ring, and the mailboxes of both ends")
	assert.Zero(t, d.strict.Load())

	d.fabric.relaxed = false
	defer func() { d.fabric.relaxed = true }()
	register(t, a, 4096, fabric.RemoteWrite)
	assert.EqualValues(t, 3, d.relaxed.Load())
	assert.EqualValues(t, 1, d.strict.Load())
}

// testCutOff: destroying fails, and all the same nothing stays mapped or open.
func testCutOff(t *testing.T, d *emulated) {
	descriptors := countDescriptors(t)
	a, b := d.pair(t)
	rings := []fabric.Memory{register(t, a, 1<<20, fabric.RemoteWrite), register(t, b, 1<<20, fabric.LocalWrite)}
	for _, m := range rings {
		require.True(t, registeredAt(t, m.Addr()))
	}
	d.raise(t, deviceFatal)
	for _, e := range []*endpoint{a, b} {
		require.ErrorIs(t, waitForChange(t, e), fabric.ErrDeviceRemoved)
	}
	d.cutOff.Store(1)
	addrs := []uint64{rings[0].Addr(), rings[1].Addr(), a.in.memory.Addr()}
	for _, e := range []*endpoint{a, b} {
		err := e.Close()
		t.Log(err)
		assert.ErrorIs(t, err, syscall.ENODEV)
		assert.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	}
	for _, addr := range addrs {
		assert.False(t, registeredAt(t, addr), "%#x", addr)
	}
	assert.LessOrEqual(t, countDescriptors(t), descriptors+1, "descriptors, of which the listener may have one")
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
