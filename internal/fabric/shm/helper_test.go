//go:build linux

// What the tests of this package share.

package shm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/fabrictest"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/wire"
)

// host is an address that no other process on this machine is likely to use,
// so that tests of several processes can run at once and what is left behind
// can be told apart.
var host = func() netip.Addr {
	id := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(id>>16) + 64, byte(id >> 8), byte(id)})
}()

var (
	options = fabric.Options{SendQueue: 128, RecvQueue: 64, RecvSize: 24, RemoteMemory: ringSize}
	ctx     = context.Background()
)

var (
	post    = fabrictest.Post
	flushed = fabrictest.Flushed
)

// soak is whether to take a long time.
var soak = os.Getenv("RINGNET_SOAK") == "1"

// Programs that tests run in processes of their own, by name. Each gets the
// address that it was started with.
var programs = map[string]func(at netip.AddrPort, args []string) error{
	"echo":          echoProgram,
	"dial":          dialProgram,
	"squat":         squatProgram,
	"squat dialers": squatDialersProgram,
	"crowd":         crowdProgram,
	"linger":        lingerProgram,
	"linger server": lingerServerProgram,
}

const programEnv = "RINGNET_SHM_PROGRAM"

func TestMain(m *testing.M) {
	if name := os.Getenv(programEnv); name != "" {
		at := netip.MustParseAddrPort(os.Args[1])
		if err := programs[name](at, os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// process is a program under way.
type process struct {
	*exec.Cmd
	out   *bufio.Reader
	err   *bytes.Buffer
	first string // line that it has printed, if it was waited for
}

// program prepares a program of the above.
func program(name string, at netip.AddrPort, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{at.String()}, args...)...)
	cmd.Env = append(os.Environ(), programEnv+"="+name)
	return cmd
}

// untilKilled is how a program ends that has nothing more to do. (Without cgo, Go takes select {} for
// a deadlock, and ends the program.)
func untilKilled() error {
	for {
		time.Sleep(time.Hour)
	}
}

// start starts a program, which is killed at the end of the test.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd, err: new(bytes.Buffer)}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	cmd.Stderr = p.err
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return p
}

// line is the next line that a program prints.
func (p *process) line(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(t, err, "%s", p.err)
	return strings.TrimSpace(line)
}

// left counts what this process holds: descriptors, mappings of segments,
// goroutines; and sockets of this test's host.
func left(t testing.TB) [4]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	names, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	return [4]int{
		len(fds),
		bytes.Count(maps, []byte("memfd:ringnet")),
		runtime.NumGoroutine(),
		bytes.Count(names, []byte(":"+host.String()+":")),
	}
}

// leavesNothing checks at the end of the test that it left nothing behind.
func leavesNothing(t testing.TB) {
	t.Helper()
	// Whatever the runtime and the poller open once is opened now.
	f := newFabric(t)
	l, err := f.Listen(netip.AddrPortFrom(host, 0), 1)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	before := left(t)
	t.Cleanup(func() {
		// What has been closed may take a moment to end.
		var after [4]int
		for end := time.Now().Add(hang.After); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			after = left(t)
			if after[0] <= before[0] && after[1] <= before[1] && after[2] <= before[2] && after[3] <= before[3] {
				return // fewer, if an earlier test was not quite over
			}
		}
		t.Errorf("descriptors, mappings, goroutines, names: %v before, %v after", before, after)
	})
}

func newFabric(t testing.TB) fabric.Fabric {
	t.Helper()
	f, err := New(Config{}) // and not the shared one: tests change theirs
	if errors.Is(err, errors.ErrUnsupported) {
		skip(t, "%v", err)
	}
	require.NoError(t, err)
	return f
}

func listen(t testing.TB, f fabric.Fabric, backlog int) fabric.Listener {
	t.Helper()
	l, err := f.Listen(netip.AddrPortFrom(host, 0), backlog)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// plainName is what a listener of this user's is called if nobody is in the way.
func plainName(a netip.AddrPort) string { return nameOf(listenerName, ownUser(), "", a) }

// createWhole is createMemory with one part, of all n bytes.
func createWhole(n int) ([]byte, int, error) {
	mapped, fd, err := createMemory(n, [3]part{{0, n}})
	return mapped[0], fd, err
}

// adoptWhole is adoptMemory with the same part.
func adoptWhole(fd, n int) ([]byte, error) {
	mapped, err := adoptMemory(fd, n, [3]part{{0, n}})
	return mapped[0], err
}

// connectByName connects a socket to the listener that has a name.
func connectByName(name string) (*socket, error) {
	s, err := newSocket(newCloser())
	if err != nil {
		return nil, err
	}
	if err := s.connect(name); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// end is an endpoint with its memory.
type end struct {
	*endpoint
	mem fabric.Memory
}

const ringSize = 64 << 10

// open makes an endpoint's queue pair, with ringSize bytes of memory for the
// peer to write to and all receives posted.
func open(ep fabric.Endpoint, o fabric.Options) (end, error) {
	l, err := ep.Open(o)
	if err != nil {
		return end{}, err
	}
	m, err := ep.Register(ringSize, fabric.RemoteWrite)
	if err != nil {
		return end{}, err
	}
	return end{ep.(*endpoint), m}, ep.PostRecv(l.RecvQueue)
}

// dial connects to an address.
func dial(f fabric.Fabric, to netip.AddrPort, o fabric.Options) (end, error) {
	return dialFrom(f, netip.AddrPort{}, to, o)
}

func dialFrom(f fabric.Fabric, from, to netip.AddrPort, o fabric.Options) (end, error) {
	ep, err := f.Dial(ctx, from, to)
	if err != nil {
		return end{}, err
	}
	e, err := open(ep, o)
	if err == nil {
		_, err = e.Connect(ctx, nil)
	}
	if err == nil {
		err = e.Confirm()
	}
	if err != nil {
		ep.Close()
	}
	return e, err
}

// accept completes a handshake.
func accept(l fabric.Listener, o fabric.Options) (end, error) {
	ep, err := l.Accept()
	if err != nil {
		return end{}, err
	}
	e, err := open(ep, o)
	if err == nil {
		err = e.Accept(ctx, nil)
	}
	if err != nil {
		ep.Close()
	}
	return e, err
}

// connectEnds connects a dialer with a listener whose options differ.
func connectEnds(f fabric.Fabric, l fabric.Listener, dialer, listener fabric.Options) (a, b end, err error) {
	failed := make(chan error, 1)
	go func() {
		var err error
		b, err = accept(l, listener)
		failed <- err
	}()
	a, err = dial(f, l.Addr(), dialer)
	return a, b, errors.Join(<-failed, err)
}

// connectTo makes a connection by way of a listener.
func connectTo(t testing.TB, f fabric.Fabric, l fabric.Listener, o fabric.Options) (a, b end) {
	t.Helper()
	a, b, err := connectEnds(f, l, o, o)
	require.NoError(t, err)
	return a, b
}

// requireAccepts requires that a listener accepts a dialer soon.
func requireAccepts(t testing.TB, f fabric.Fabric, l fabric.Listener) {
	t.Helper()
	soon(t, "a dialer", func() {
		a, b := connectTo(t, f, l, options)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// connected makes a connection, which is closed at the end of the test.
func connected(t testing.TB, o fabric.Options) (a, b end) {
	t.Helper()
	f := newFabric(t)
	a, b = connectTo(t, f, listen(t, f, 1), o)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func send(id uint64, data string) fabric.WorkRequest {
	return fabric.WorkRequest{ID: id, Op: fabric.Send, Data: []byte(data), Signaled: true}
}

// write is a WriteImm to the peer's memory; both ends' keys are at hand here.
func (e end) write(to end, at int, imm uint32, data string) fabric.WorkRequest {
	return fabric.WorkRequest{Op: fabric.WriteImm, Data: []byte(data), Imm: imm, RemoteAddr: to.mem.Addr() + uint64(at), RKey: to.mem.RKey()}
}

// post posts a work request, and wakes the peer.
func (e end) post(wr fabric.WorkRequest) error {
	err := e.PostSend([]fabric.WorkRequest{wr})
	e.Ring()
	return err
}

// poll returns all that has completed.
func poll(t testing.TB, e end) []fabric.Completion {
	t.Helper()
	var c [256]fabric.Completion
	n, err := e.Poll(c[:])
	require.NoError(t, err)
	return c[:n]
}

// soon runs f, which must end within the time that only a hang exceeds.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(hang.After):
		buf := make([]byte, 1<<20)
		t.Fatalf("%s: still waiting\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

// isFull reports whether an error is a rejection for want of room.
func isFull(err error) bool {
	var reject *fabric.RejectError
	return errors.As(err, &reject) && wire.DecodeReject(reject.Private).Busy
}
