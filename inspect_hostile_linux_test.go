package ringnet

// What other users do to root's `ringnet ss` with what the kernel passes on for them: descriptors, names, and
// what /proc has of a process.

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/inspect"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// asksAll asks all processes, as root's `ringnet ss` does, and returns what this one has told.
func asksAll(t *testing.T, only string) (own []inspect.Process) {
	t.Helper()
	told := make(chan []inspect.Process, 1)
	go func() {
		all, _, _, _ := inspect.Ask(t.Context(), only)
		told <- all
	}()
	select {
	case all := <-told:
		return slices.DeleteFunc(all, func(p inspect.Process) bool { return p.PID != os.Getpid() })
	case <-time.After(hang.After):
		require.Fail(t, "hangs")
	}
	return nil
}

// A descriptor whose close lingers would have the kernel block who is sent it, in read or close.
func TestNobodyIsHeldUpByDescriptorsThatOthersSend(t *testing.T) {
	answering(t)
	client, _ := connectedOver(t, "shm")
	number := own(t).Connections[0].Number
	require.Equal(t, "sends", stranger(t, "send"))
	require.Len(t, asksAll(t, ""), 1)
	require.NoError(t, inspect.Kill(t.Context(), os.Getpid(), number))
	_, err := client.Read(make([]byte, 1))
	require.Error(t, err)
}

// sendDescriptors sends each who asks a TCP connection that waits in close until its peer has read.
func sendDescriptors([]string) error {
	l, err := net.Listen("unix", "@ringnet-ss:S")
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		var unread []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			full, err := net.Dial("tcp", tcp.Addr().String())
			if err != nil {
				return
			}
			peer, err := tcp.Accept()
			if err != nil {
				return
			}
			unread = append(unread, peer, c) //nolint:staticcheck // which keeps them open
			_ = full.(*net.TCPConn).SetLinger(3600)
			_ = full.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = full.Write(make([]byte, 64<<20))
			f, err := full.(*net.TCPConn).File()
			if err != nil {
				return
			}
			if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte("{\"process\":{}}\n"), unix.UnixRights(int(f.Fd())), nil); err != nil {
				_ = c.Close()
			}
			go f.Close() // where it was not sent these wait themselves
			go full.Close()
		}
	}()
	fmt.Println("sends")
	return nil
}

// A name with newlines is no other line of a table.
func TestNamesOfOthersHideNothing(t *testing.T) {
	answering(t)
	connectedOver(t, "shm")
	own(t)
	require.Equal(t, "forges", stranger(t, append([]string{"forge"}, sockets()...)...))
	require.Len(t, asksAll(t, ""), 1, "each connection once")
}

// forgeNames has sockets with names of which /proc/net/unix makes the lines of others.
func forgeNames(victims []string) error {
	for i, victim := range slices.Repeat(victims, 20) {
		l, err := net.Listen("unix", fmt.Sprintf("@x%d\n0 0 0 10000 0 0 0 %s", i, victim))
		if err != nil {
			return err
		}
		go l.Accept() // keeps it
	}
	fmt.Println("forges")
	return nil
}

// The words of a process are as long as it likes.
func TestWordsOfOthersTakeLittleMemory(t *testing.T) {
	answering(t)
	connectedOver(t, "shm")
	own(t)
	require.Equal(t, "swells", stranger(t, "swell"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	asksAll(t, "no-program-has-this-name")
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(swollen/8))
}

const swollen = 1 << 30 // bytes of words

// swell gives this process so many, and listens.
func swell([]string) error {
	words, err := unix.Mmap(-1, 0, swollen, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):])) // from the second on: see proc_pid_stat(5)
	at := func(field int) uint64 {
		n, _ := strconv.ParseUint(fields[field-2], 10, 64)
		return n
	}
	begin := uint64(uintptr(unsafe.Pointer(&words[0])))
	brk, _, _ := unix.Syscall(unix.SYS_BRK, 0, 0, 0)
	mm := struct { // struct prctl_mm_map of linux/prctl.h
		startCode, endCode, startData, endData, startBrk, brk, startStack, argStart, argEnd, envStart, envEnd, auxv uint64
		auxvSize, exe                                                                                               uint32
	}{at(26), at(27), at(45), at(46), at(47), uint64(brk), at(28), begin, begin + swollen, at(50), at(51), 0, 0, ^uint32(0)}
	if err := unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&mm)), unsafe.Sizeof(mm), 0); err != nil {
		return err
	}
	l, err := net.Listen("unix", "@ringnet-ss:W")
	if err != nil {
		return err
	}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.Close()
		}
	}()
	fmt.Println("swells")
	return nil
}

// Something may hold the lock of a link for long. Whoever asks has all other links and connections, and learns
// which are busy.
func TestALinkThatIsBusyHidesNothing(t *testing.T) {
	l, err := Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client := dial(t, &Dialer{}, "shm", l.Addr().String())
	server := accept(t, l)
	states := func() (clients, servers inspect.Connection) {
		return of(t, describeProcess(inspect.Request{}), client)
	}
	totals.mu.Lock() // which the server's link waits for when a stream is offered
	dialed := make(chan net.Conn, 1)
	go func() {
		c, _ := Dial("shm", l.Addr().String())
		dialed <- c
	}()
	hang.Unless(t, func() bool {
		_, servers := states()
		return servers.State == "busy"
	})
	clients, servers := states()
	require.Equal(t, "open", clients.State)
	require.Equal(t, server.LocalAddr().String(), servers.Local)
	locals := []string{client.LocalAddr().String(), server.LocalAddr().String()}
	for _, i := range Links() {
		locals = slices.DeleteFunc(locals, func(local string) bool { return i.Local.String() == local })
	}
	require.Empty(t, locals)
	require.ErrorContains(t, kill(servers.Number), "busy")
	totals.mu.Unlock()
	another := <-dialed
	require.NotNil(t, another)
	require.NoError(t, another.Close())
	_, err = client.Read(make([]byte, 1))
	require.Error(t, err, "what was asked for is done later")
}
