//go:build linux && cgo

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/rdmacore"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/rconntest"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
	"github.com/ringnet/ringnet/rconn"
)

// What devices do that soft-RoCE and the ideal card do not. The cards are those of tools/idealcard
// with -manners: make test-manners runs these tests.

// onCardWith returns the fabric and the address of a card that has just these manners, or skips the
// test.
func onCardWith(t *testing.T, manners string) (fabric.Fabric, netip.Addr) {
	t.Helper()
	rdmatest.OnCardWith(t, manners)
	return onDevice(t)
}

// dialed returns an endpoint that is not open yet.
func dialed(t *testing.T, f fabric.Fabric, to netip.AddrPort) *endpoint {
	t.Helper()
	e, err := f.Dial(context.Background(), netip.AddrPort{}, to)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e.(*endpoint)
}

// deep is what links ask for.
func deep() fabric.Options {
	o := options
	o.SendQueue, o.RecvQueue = 128, 267
	return o
}

// A connection has as much inline data as the card takes.
func TestInlineDataIsWhatTheCardTakes(t *testing.T) {
	manners := os.Getenv("IDEAL_MANNERS")
	most, ok := map[string]int{"bnxt_re": 96, "irdma": 101, "qedr": 128, "hns": 32, "erdma": 96, "inline-none": 0}[manners]
	if !ok {
		t.Skip("it is for cards of tools/idealcard that take little inline data")
	}
	f, addr := onCardWith(t, manners)
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr()).(*endpoint)
	b := handshake(t, l, a).(*endpoint)
	assert.Equal(t, most, a.Inline())
	assert.Equal(t, most, b.Inline())

	source := register(t, a, 4096, fabric.LocalWrite)
	copy(source.Bytes(), pattern(64))
	wr := fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:64], Memory: source, Signaled: true}
	if most >= 64 {
		wr.Memory = nil
	}
	post(t, a, wr)
	assert.Equal(t, pattern(64), poll(t, b, 1)[0].Data)
}

// A card may make a queue pair with less inline data than it was asked for, and not fail, or tell of
// more.
func TestInlineDataIsWhatTheCardGrants(t *testing.T) {
	f, addr := onCardWith(t, "inline-granted")
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr()).(*endpoint)
	b := handshake(t, l, a).(*endpoint)
	t.Log(a.Inline())
	assert.Contains(t, []int{0, rdmacore.MaxInline / 2, rdmacore.MaxInline}, a.Inline())
	source := register(t, a, 4096, fabric.LocalWrite)
	target := register(t, b, 4096, fabric.RemoteWrite)
	copy(source.Bytes(), pattern(4096))
	for n := 1; n <= rdmacore.MaxInline+1; n *= 2 {
		for _, size := range []int{n - 1, n, n + 1} {
			wr := fabric.WorkRequest{Op: fabric.WriteImm, Data: source.Bytes()[:size], Memory: source, RemoteAddr: target.Addr(), RKey: target.RKey(), Signaled: true}
			if size <= a.Inline() {
				wr.Memory = nil
			}
			post(t, a, wr)
			assert.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
			assert.Equal(t, size, poll(t, b, 1)[0].Len)
			assert.Equal(t, source.Bytes()[:size], target.Bytes()[:size])
			require.NoError(t, b.PostRecv(1))
		}
	}
	assert.ErrorIs(t, a.PostSend([]fabric.WorkRequest{{Data: make([]byte, a.Inline()+1)}}), syscall.EMSGSIZE)
}

// Queues are as deep as the card allows, and carry as much inline data as it takes at that depth.
func TestQueuesAreAsDeepAsTheCardAllows(t *testing.T) {
	f, addr := onCardWith(t, "mlx5")
	l := listen(t, f, addr)
	deep := options
	for asked, want := range map[int]fabric.Limits{
		8192:  {SendQueue: 8192, Inline: rdmacore.MaxInline}, // in slots of 256 bytes; those of ibv_create_qp have 512
		16384: {SendQueue: 16384, Inline: 64},
		32768: {SendQueue: 32768, Inline: 0},
	} {
		deep.SendQueue, deep.RecvQueue = asked, 267
		e := dialed(t, f, l.Addr())
		limits, err := e.Open(deep)
		require.NoError(t, err)
		assert.Equal(t, want.SendQueue, limits.SendQueue)
		assert.Equal(t, want.Inline, limits.Inline)
		assert.Equal(t, 267, limits.RecvQueue)
		require.NoError(t, e.PostRecv(limits.RecvQueue))
	}
}

// Vendor options are offered in the request, and those of them that the listener's queue pair knows, too, come with the
// answer, as librdmacm does it for queue pairs of its own.
func TestBothEndsTakeTheVendorOptionsThatBothKnow(t *testing.T) {
	f, addr := onCardWith(t, "mlx5")
	l := listen(t, f, addr)
	dialer := opened(t, f, l.Addr()).(*endpoint)
	var known, taken uint32
	done := accepting(t, l, func(e fabric.Endpoint) error {
		err := openEndpoint(e)
		known = e.(*endpoint).VendorOptions()
		return errors.Join(err, e.Accept(context.Background(), nil))
	})
	offered := dialer.VendorOptions()
	_, err := dialer.Connect(context.Background(), nil)
	require.NoError(t, err)
	taken = dialer.VendorOptions()
	require.NoError(t, dialer.Confirm())
	require.NoError(t, <-done)
	require.NotEqual(t, offered, known)
	assert.NotZero(t, taken)
	assert.Equal(t, offered&known, taken)
}

// A card whose firmware fails with the options that the peer has told does without them, and so does the peer.
func TestConnectionDoesWithoutVendorOptionsThatTheCardFailsWith(t *testing.T) {
	f, addr := onCardWith(t, "ece-refused")
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr()).(*endpoint)
	require.NotZero(t, a.VendorOptions())
	b := handshake(t, l, a).(*endpoint)
	assert.Zero(t, a.VendorOptions())
	assert.Zero(t, b.VendorOptions())
	post(t, a, fabric.WorkRequest{Op: fabric.Send, Data: pattern(16), Signaled: true})
	assert.Equal(t, pattern(16), poll(t, b, 1)[0].Data)
}

// The error of a card that refuses everything, with an errno or without, is returned, and ends the
// dial.
func TestCardThatRefusesEverything(t *testing.T) {
	f, addr := onCardWith(t, "no-queue-pair")
	_, err := dialed(t, f, listen(t, f, addr).Addr()).Open(options)
	require.Error(t, err)
	t.Log(err)
	assert.ErrorContains(t, err, "16 sends and 18 receives")
	assert.NotErrorIs(t, err, fabric.ErrDeviceRemoved)
}

// What a card refuses because others have it is no limit of the card. If it is inline data, which the
// program has not asked for, an endpoint does with less; if it is depth, the error has what to do about
// it. When the others have gone, the next one gets all.
func TestShortageIsNoLimitOfTheCard(t *testing.T) {
	f, addr := onCardWith(t, "shortage")
	l := listen(t, f, addr)
	first, second := dialed(t, f, l.Addr()), dialed(t, f, l.Addr())
	all, err := first.Open(deep())
	require.NoError(t, err)
	assert.Equal(t, fabric.Limits{SendQueue: 128, RecvQueue: 267, Inline: rdmacore.MaxInline, Spin: rdmacore.Spin, Transport: "RoCE"}, all)

	less, err := second.Open(deep())
	require.NoError(t, err)
	assert.Equal(t, 96, less.Inline)
	assert.Equal(t, 128, less.SendQueue)

	_, err = dialed(t, f, l.Addr()).Open(deep())
	require.Error(t, err)
	t.Log(err)
	assert.True(t, rdmacore.IsShortage(err))
	assert.ErrorContains(t, err, "128 sends and 267 receives")

	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	again, err := dialed(t, f, l.Addr()).Open(deep())
	require.NoError(t, err)
	assert.Equal(t, all, again)
}

// Destroying fails on a card that is gone, and making things does, and all the same nothing stays
// mapped or open.
func TestNothingStaysOfACardThatIsGone(t *testing.T) {
	f, addr := onCardWith(t, "removed")
	l := listen(t, f, addr)
	other := dialed(t, f, l.Addr())
	descriptors := countDescriptors(t)
	a := opened(t, f, l.Addr()).(*endpoint)
	b := handshake(t, l, a).(*endpoint)
	rings := []fabric.Memory{register(t, a, 1<<20, fabric.RemoteWrite), register(t, b, 1<<20, fabric.LocalWrite)}
	addrs := []uint64{rings[0].Addr(), rings[1].Addr(), a.in.memory.Addr()}
	for _, addr := range addrs {
		require.True(t, rdmatest.RegisteredAt(t, addr))
	}
	hang.Unless(t, func() bool { // a request is the card's last
		_ = a.PostSend([]fabric.WorkRequest{{Op: fabric.Write, Signaled: true}})
		n, err := a.Poll(make([]fabric.Completion, 1))
		return n == 0 || err != nil
	})
	for _, e := range []*endpoint{a, b} {
		require.ErrorIs(t, waitForChange(t, e), fabric.ErrDeviceRemoved)
	}
	_, err := other.Open(options)
	t.Log(err)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	_ = other.Close() // what cannot be destroyed is an error
	for _, e := range []*endpoint{a, b} {
		err := e.Close()
		t.Log(err)
		assert.ErrorIs(t, err, syscall.ENODEV)
		assert.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	}
	for _, addr := range addrs {
		assert.False(t, rdmatest.RegisteredAt(t, addr), "%#x", addr)
	}
	assert.LessOrEqual(t, countDescriptors(t), descriptors+1, "descriptors, of which the listener may have one")
}

// The error of a card that goes at one of the calls that make things is another than that of a card
// that refuses, and what was made before is freed. -faults says at which.
func TestOpenWhileTheCardGoes(t *testing.T) {
	if !strings.Contains(os.Getenv("IDEAL_FAULTS"), "card@") {
		t.Skip("it is for tools/idealcard -faults card@N")
	}
	f, addr := onDevice(t)
	e := dialed(t, f, netip.AddrPortFrom(addr, 9))
	descriptors := countDescriptors(t)
	_, err := e.Open(options)
	t.Log(err)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorIs(t, err, fabric.ErrDeviceRemoved)
	_ = e.Close()
	assert.LessOrEqual(t, countDescriptors(t), descriptors)
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Memory is registered with relaxed ordering, unless that is switched off, as it is in another process
// here: then the bytes of a write are there before its completion.
func TestBytesMayComeInAnyOrderBeforeTheCompletion(t *testing.T) {
	const option = "RINGNET_RELAXED_ORDERING"
	f, addr := onCardWith(t, "relaxed-ordering")
	relaxed := os.Getenv(option) != "off"
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr())
	b := handshake(t, l, a)
	source, target := register(t, a, 4096, fabric.LocalWrite), register(t, b, 4096, fabric.RemoteWrite)
	copy(source.Bytes(), pattern(4096))
	late := 0
	for range options.SendQueue {
		clear(target.Bytes())
		post(t, a, fabric.WorkRequest{Op: fabric.WriteImm, Data: source.Bytes(), Memory: source, RemoteAddr: target.Addr(), RKey: target.RKey(), Signaled: true})
		poll(t, a, 1)
		if !bytes.Equal(target.Bytes(), source.Bytes()) {
			late++
		}
		poll(t, b, 1)
		assert.Equal(t, source.Bytes(), target.Bytes())
	}
	assert.Equal(t, relaxed, late > 0, "%d writes", late)
	if relaxed {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), option+"=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
	}
}

// attributesOf are those that tools/idealcard prints of the queue pair of an endpoint.
func attributesOf(t *testing.T, e fabric.Endpoint) map[string]int {
	t.Helper()
	if os.Getenv("IDEAL_CARDS") == "" {
		t.Skip("tools/idealcard tells the attributes of queue pairs")
	}
	out, err := exec.Command("rdma", "resource", "show", "qp").Output()
	require.NoError(t, err)
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^.* lqpn %d .*$`, e.(*endpoint).Number())).Find(out)
	require.NotNil(t, line, "%s", out)
	found := map[string]int{}
	for _, m := range regexp.MustCompile(`([a-z-]+) (\d+)`).FindAllSubmatch(line, -1) {
		found[string(m[1])], err = strconv.Atoi(string(m[2]))
		require.NoError(t, err)
	}
	return found
}

// Both sides retry without end, and soon, a send that finds no receive. By rdma_cm's own setting it
// would wait for 655 ms.
func TestSendThatFindsNoReceiveIsRetriedSoonAndForEver(t *testing.T) {
	a, b := pair(t)
	for _, e := range []fabric.Endpoint{a, b} {
		got := attributesOf(t, e)
		assert.Equal(t, 7, got["rnr-retries"])
		assert.Equal(t, 12, got["rnr-timer"], "0.64 ms")
	}
}

// Each end marks its packets as configured, and as the system does otherwise.
func TestPacketsAreMarkedWithTheTrafficClass(t *testing.T) {
	for _, tt := range []struct{ dialer, listener, wantDialer, wantListener int }{
		{0, 0, 0, 0},
		{106, 106, 106, 106},
		{106, 104, 106, 104},
		{106, 0, 106, 106},
		{0, 104, 0, 104},
		{104, -1, 104, 0},
	} {
		t.Run(fmt.Sprint(tt.dialer, tt.listener), func(t *testing.T) {
			_, addr := onDevice(t)
			dialer, err := New(Config{TrafficClass: tt.dialer})
			require.NoError(t, err)
			listener, err := New(Config{TrafficClass: tt.listener})
			require.NoError(t, err)
			l := listen(t, listener, addr)
			a := opened(t, dialer, l.Addr())
			b := handshake(t, l, a)
			assert.Equal(t, tt.wantDialer, attributesOf(t, a)["tos"], "dialer")
			assert.Equal(t, tt.wantListener, attributesOf(t, b)["tos"], "listener")
		})
	}
}

// Both queue pairs have the MTU of the dialer's port, or that of the listener's if it is smaller.
func TestMTUIsThatOfTheNarrowerPort(t *testing.T) {
	if !strings.Contains(os.Getenv("IDEAL_CARDS"), "port infiniband 2048") {
		t.Skip("it is for tools/idealcard -fabric fabrics/infiniband.json")
	}
	f, wide := onDevice(t)
	narrow := netip.MustParseAddr("127.0.0.2") // of the card with that MTU
	for _, way := range [][2]netip.Addr{{wide, wide}, {wide, narrow}, {narrow, wide}} {
		l := listen(t, f, way[1])
		e, err := f.Dial(context.Background(), netip.AddrPortFrom(way[0], 0), l.Addr())
		require.NoError(t, err)
		defer e.Close()
		require.NoError(t, openEndpoint(e))
		b := handshake(t, l, e)
		want := 4096
		if way != [2]netip.Addr{wide, wide} {
			want = 2048
		}
		assert.Equal(t, want, attributesOf(t, e)["path-mtu"], "dialer")
		assert.Equal(t, want, attributesOf(t, b)["path-mtu"], "listener")
		source := register(t, e, 4096, fabric.LocalWrite)
		copy(source.Bytes(), pattern(options.RecvSize))
		post(t, e, fabric.WorkRequest{Op: fabric.Send, Data: source.Bytes()[:options.RecvSize], Memory: source})
		assert.Equal(t, pattern(options.RecvSize), poll(t, b, 1)[0].Data)
	}
}

// A device whose completions do not say how much has arrived is found out by the first of them.
func TestWrongLengthIsFoundOutAtOnce(t *testing.T) {
	onCardWith(t, "length-wrong")
	for _, op := range []fabric.Opcode{fabric.Send, fabric.WriteImm} {
		a, b := pair(t)
		source, target := register(t, a, 4096, fabric.LocalWrite), register(t, b, 4096, fabric.RemoteWrite)
		post(t, a, fabric.WorkRequest{Op: op, Data: source.Bytes()[:40], Memory: source, RemoteAddr: target.Addr(), RKey: target.RKey()})
		n, err := b.Poll(make([]fabric.Completion, 1))
		t.Log(err)
		assert.Zero(t, n)
		assert.ErrorIs(t, err, fabric.ErrQueuePair)
		assert.ErrorContains(t, err, "wrong length")
	}
}

// A provider may ask for queues with what lies on the stack, where newer kernels look for a mask: then they are not refused
// for what other calls have left there, which would be taken for too much inline data, or too deep.
func TestQueuesAreAskedForWithNothingOnTheStack(t *testing.T) {
	f, addr := onCardWith(t, "mask-unset")
	l := listen(t, f, addr)
	for range 8 {
		limits, err := dialed(t, f, l.Addr()).Open(deep())
		require.NoError(t, err)
		assert.Equal(t, fabric.Limits{SendQueue: 128, RecvQueue: 267, Inline: rdmacore.MaxInline, Spin: rdmacore.Spin, Transport: "RoCE"}, limits)
	}
}

// A provider may leave the status of a request that has failed as it was, which is that of one before.
func TestFailureWithoutAStatusIsNoSuccess(t *testing.T) {
	onCardWith(t, "status-unset")
	a, b := pair(t)
	target := register(t, b, 4096, fabric.RemoteWrite)
	wr := fabric.WorkRequest{Op: fabric.Write, Data: []byte("x"), Signaled: true, RemoteAddr: target.Addr(), RKey: target.RKey()}
	post(t, a, wr)
	require.Equal(t, fabric.OK, poll(t, a, 1)[0].Status)
	wr.RKey++
	post(t, a, wr)
	assert.NotEqual(t, fabric.OK, poll(t, a, 1)[0].Status)
}

// An idle connection is probed, and lives on, also on a card that loads what a write of nothing might
// write, or checks the key of where.
func TestProbesNameMemoryOfThePeer(t *testing.T) {
	manners := os.Getenv("IDEAL_MANNERS")
	if manners != "irdma" {
		manners = "empty-write-checked"
	}
	f, addr := onCardWith(t, manners)
	l := listen(t, f, addr)
	cfg := &rconntest.Config{KeepAlive: 20 * time.Millisecond}
	served := make(chan *rconn.Conn, 1)
	go func() {
		ep, err := l.Accept()
		if !assert.NoError(t, err) {
			return
		}
		s, err := rconntest.Server(context.Background(), "rdma", ep, cfg)
		if assert.NoError(t, err) {
			served <- s
		}
	}()
	ep, err := f.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, err := rconntest.Client(context.Background(), "rdma", ep, cfg)
	require.NoError(t, err)
	defer c.Close()
	s := rdmatest.Within(t, served)
	defer s.Close()
	hang.Unless(t, func() bool { return c.Link().Probes > 2 && s.Link().Probes > 2 })
	_, err = c.Write([]byte("still there"))
	require.NoError(t, err)
	got := make([]byte, 11)
	_, err = s.Read(got)
	require.NoError(t, err)
	assert.Equal(t, "still there", string(got))
}

// The card takes inline data as late as other data.
func TestInlineDataOfRequestsThatWaitIsNotOverwritten(t *testing.T) {
	f, addr := onCardWith(t, "mana,rnr")
	l := listen(t, f, addr)
	a := opened(t, f, l.Addr())
	b := handshake(t, l, a)
	target := register(t, b, 4096, fabric.RemoteWrite)
	for i := range 100 * options.SendQueue {
		want := pattern(rdmacore.MaxInline)
		want[0] = byte(i)
		post(t, a, fabric.WorkRequest{
			ID: uint64(i), Op: fabric.Write, Data: want, Signaled: true,
			RemoteAddr: target.Addr() + uint64(i%options.SendQueue*rdmacore.MaxInline), RKey: target.RKey(),
		})
		if i%options.SendQueue < options.SendQueue-1 {
			continue
		}
		for _, c := range poll(t, a, options.SendQueue) {
			require.Equal(t, fabric.OK, c.Status)
			got := target.Bytes()[int(c.ID)%options.SendQueue*rdmacore.MaxInline:][:rdmacore.MaxInline]
			want[0] = byte(c.ID)
			require.Equal(t, want, got)
		}
	}
}
