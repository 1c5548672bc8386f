package ringnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/inspect"
)

// Tests in virtual time cannot wait on a socket.
func init() { _ = os.Setenv("RINGNET_SS", "off") }

// answering has this process answer during a test, with the connections that the test makes.
func answering(t *testing.T) {
	t.Setenv("RINGNET_SS", "on")
}

// of are what a process tells of the ends of a connection: that of c, and the other.
func of(t *testing.T, p inspect.Process, c net.Conn) (own, other inspect.Connection) {
	t.Helper()
	for _, told := range p.Connections {
		switch told.Local {
		case c.LocalAddr().String():
			own = told
		case c.RemoteAddr().String():
			if told.Remote == c.LocalAddr().String() {
				other = told
			}
		}
	}
	require.NotZero(t, own.Number)
	require.NotZero(t, other.Number)
	return own, other
}

// own is this process as it answers itself, once it does.
func own(t *testing.T) (p inspect.Process) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, _, _, err := inspect.Ask(t.Context(), "") // others' tests stop processes, which do not answer then
		require.NoError(t, err)
		for _, one := range all {
			if one.PID == os.Getpid() {
				p = one
				return true
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond)
	return p
}

func connectedOver(t *testing.T, network string) (client, server net.Conn) {
	t.Helper()
	l, err := Listen(network, "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return dial(t, &Dialer{}, network, l.Addr().String()), accept(t, l)
}

func TestAProcessTellsOfItsConnections(t *testing.T) {
	answering(t)
	t.Setenv("RINGNET_NETWORKS", "shm,tcp")
	client, server := connectedOver(t, "auto")
	_, err := client.Write(make([]byte, 1000))
	require.NoError(t, err)
	_, err = io.ReadFull(server, make([]byte, 600))
	require.NoError(t, err)
	require.NoError(t, client.(*AutoConn).CloseWrite())

	var p inspect.Process
	var dialed, accepted inspect.Connection
	require.Eventually(t, func() bool {
		p = own(t)
		dialed, accepted = of(t, p, client)
		return accepted.State != "open"
	}, time.Minute, time.Millisecond)
	require.Equal(t, os.Geteuid(), p.UID)
	require.True(t, dialed.Dialed)
	require.False(t, accepted.Dialed)
	require.Equal(t, "shm", dialed.Carrier)
	require.Equal(t, client.LocalAddr().String(), dialed.Local)
	require.Equal(t, client.RemoteAddr().String(), dialed.Remote)
	require.EqualValues(t, 1000, dialed.BytesWritten)
	require.Equal(t, "fin-sent", dialed.State)
	require.Equal(t, "fin-received", accepted.State)
	require.EqualValues(t, 1000, accepted.BytesReceived)
	require.Equal(t, 400, accepted.Unread)
	require.True(t, slices.ContainsFunc(p.Links, func(l inspect.Link) bool {
		return l.Network == "shm" && l.Dialed && l.Connections == 1 && l.BytesSent == 1000
	}), p.Links)
}

func TestAProcessTellsWhyNoBetterNetworkCarriesAConnection(t *testing.T) {
	answering(t)
	t.Setenv("RINGNET_NETWORKS", "rdma,tcp")
	client, _ := connectedOver(t, "auto")
	if client.(*AutoConn).Carrier() != "tcp" {
		t.Skip("this machine has RDMA")
	}
	c, _ := of(t, own(t), client)
	require.Equal(t, "tcp", c.Carrier)
	require.NotEmpty(t, c.PassedOver)
	require.Equal(t, "shm", c.PassedOver[0].Network)
	require.NotEmpty(t, c.PassedOver[0].Code)
	require.ErrorContains(t, inspect.Kill(t.Context(), os.Getpid(), c.Number), "TCP carries")
	require.ErrorContains(t, inspect.Kill(t.Context(), os.Getpid(), 1<<40), "no connection")
}

// sockets are the names of this process's sockets for those who ask.
func sockets() (names []string) {
	text, _ := os.ReadFile("/proc/net/unix")
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		socket, _ := os.Readlink(fd)
		inode := strings.TrimSuffix(strings.TrimPrefix(socket, "socket:["), "]")
		if _, name, found := strings.Cut(string(text), " "+inode+" @ringnet-ss:"); inode != socket && found {
			name, _, _ = strings.Cut(name, "\n")
			names = append(names, "@ringnet-ss:"+name)
		}
	}
	return names
}

// It listens while it has a connection, and not where that is switched off.
func TestAProcessAnswersWhileItHasConnections(t *testing.T) {
	listens := func() bool { return len(sockets()) > 0 }
	silent := func() bool { return !listens() }
	require.Eventually(t, silent, time.Minute, time.Millisecond, "of other tests")
	connectedOver(t, "shm")
	time.Sleep(300 * time.Millisecond)
	require.False(t, listens(), "RINGNET_SS=off")

	t.Setenv("RINGNET_SS", "on")
	a := inspect.New(describeProcess)
	for range 3 {
		a.Hold()
		require.Eventually(t, listens, time.Minute, time.Millisecond)
		a.Release()
		a.Hold()
		a.Release()
		require.Eventually(t, silent, time.Minute, time.Millisecond)
	}
}

// Askers that are silent, or take no answer, hold up neither the process nor, for long, others.
func TestSilentAskersHoldUpNobody(t *testing.T) {
	answering(t)
	client, server := connectedOver(t, "shm")
	own(t)
	names := sockets()
	for range 8 {
		for _, name := range names {
			c, err := net.Dial("unix", name)
			require.NoError(t, err)
			defer c.Close()
		}
	}
	write(t, client, "x")
	_, err := server.Read(make([]byte, 1))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if all, _, _, _ := inspect.Ask(ctx, ""); slices.ContainsFunc(all, func(p inspect.Process) bool { return p.PID == os.Getpid() }) {
			break
		}
	}
	require.NoError(t, ctx.Err())
}

// Another user of the host gets nothing.
func TestAnotherUserIsToldNothing(t *testing.T) {
	answering(t)
	connectedOver(t, "shm")
	own(t)
	require.Equal(t, "0 processes, 0 bytes", stranger(t, append([]string{"ask"}, sockets()...)...))
}

// askAsStranger asks whoever answers, and then those with sockets of the given names, without the
// library's own checks.
func askAsStranger(names []string) error {
	all, _, failed, err := inspect.Ask(context.Background(), "")
	if err = errors.Join(append(failed, err)...); err != nil {
		return err
	}
	told := 0
	for _, name := range names {
		c, err := net.Dial("unix", name)
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("{}\n"))
		text, _ := io.ReadAll(c)
		told += len(text)
	}
	fmt.Printf("%d processes, %d bytes\n", len(all), told)
	return nil
}

// What another user's processes answer, or do not, hides nothing from root, who asks all, and costs root
// neither much memory nor much time. Nor does it keep root from ending a connection.
func TestAnotherUserHidesNothingFromRoot(t *testing.T) {
	answering(t)
	client, _ := connectedOver(t, "shm")
	number := own(t).Connections[0].Number
	require.Equal(t, "squats", stranger(t, "squat"))
	all, _, failed, err := inspect.Ask(t.Context(), "")
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(all, func(p inspect.Process) bool { return p.PID == os.Getpid() }))
	for _, p := range all {
		require.LessOrEqual(t, len(p.Connections), 300_000)
	}
	require.ErrorContains(t, errors.Join(failed...), fmt.Sprintf("processes of user %d: ", strangerUID))
	require.ErrorContains(t, errors.Join(failed...), "50 processes take no connection: ")
	require.NoError(t, inspect.Kill(t.Context(), os.Getpid(), number))
	_, err = client.Read(make([]byte, 1))
	require.Error(t, err)
}

// answerAsStranger answers as no process of this library does: with no end, not at all, and not even
// taking connections.
func answerAsStranger([]string) error {
	endless := func(c net.Conn) {
		line := bytes.Repeat([]byte("{\"connection\":{}}\n"), 1000)
		_, err := c.Write([]byte("{\"process\":{},\"items\":1000000000}\n"))
		for err == nil {
			_, err = c.Write(line)
		}
	}
	long := func(c net.Conn) {
		var err error
		for err == nil {
			_, err = c.Write(make([]byte, 1<<20))
		}
	}
	for i := range 102 {
		l, err := net.Listen("unix", fmt.Sprintf("@ringnet-ss:A%d-%d", i, os.Getpid()))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if i < 2 {
					go []func(net.Conn){endless, long}[i](c)
				}
			}
		}()
	}
	for i := range 50 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("@ringnet-ss:F%d-%d", i, os.Getpid())
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Listen(fd, 0)); err != nil {
			return err
		}
		// The one for which there is room, unless another asker of the host has it.
		if _, err := net.Dial("unix", name); err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	fmt.Println("squats")
	return nil
}

// One who no longer waits gets nothing done: the process may have been stopped meanwhile.
func TestAnAskerWhoHasGoneKillsNothing(t *testing.T) {
	answering(t)
	client, server := connectedOver(t, "shm")
	number := own(t).Connections[0].Number
	for _, name := range sockets() {
		dial := func() net.Conn {
			c, err := net.Dial("unix", name)
			require.NoError(t, err)
			return c
		}
		for range 4 { // as many as are answered at once: those that follow wait
			defer dial().Close()
		}
		gone := dial()
		_, err := fmt.Fprintf(gone, "{\"kill\":%d}\n", number)
		require.NoError(t, err)
		require.NoError(t, gone.Close())
	}
	own(t) // which has answered those before
	write(t, client, "x")
	_, err := server.Read(make([]byte, 1))
	require.NoError(t, err)
}

// A user who has no number in this user namespace may be anyone, and is not asked or told.
func TestUsersWithoutANumberAreNotTold(t *testing.T) {
	require.Equal(t, "told 1", strangerWith(t, strangerUID, "own"))
	require.Equal(t, "told 0", strangerWith(t, shm.OverflowUID(), "own"))
}

// askOneself makes a connection, and asks the processes of this user.
func askOneself([]string) error {
	if err := os.Setenv("RINGNET_SS", "on"); err != nil {
		return err
	}
	l, err := Listen("auto", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go l.Accept()
	c, err := Dial("auto", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	for len(sockets()) == 0 {
		time.Sleep(time.Millisecond)
	}
	all, _, failed, err := inspect.Ask(context.Background(), "")
	fmt.Println("told", len(all))
	return errors.Join(append(failed, err)...)
}
