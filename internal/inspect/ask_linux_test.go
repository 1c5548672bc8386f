package inspect

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/passrights"
)

// A call that hangs in the kernel does not know of its context.
func TestAskingWaitsForNoCallThatHangs(t *testing.T) {
	const hostile, honest = -2, -3
	release := make(chan struct{})
	defer close(release)
	var hanging atomic.Int32
	ask := func(ctx context.Context, name string, _ *budget) (Process, error) {
		if name == "hangs" {
			hanging.Add(1)
			<-release
		}
		return Process{ID: name}, nil
	}
	names := map[int][]string{hostile: slices.Repeat([]string{"hangs"}, 1000), honest: {"answers"}}
	for range 3 { // as top does
		ctx, cancel := context.WithCancel(t.Context())
		late := 0
		askUsers(ctx, names, ask, func(uid int, p Process, err error) {
			if uid == honest {
				assert.NoError(t, err)
				assert.Equal(t, "answers", p.ID)
				cancel() // has come although all others hang
				return
			}
			assert.Equal(t, errLate, err)
			late++
		})
		require.Equal(t, 1000, late)
	}
	require.LessOrEqual(t, int(hanging.Load()), asksAtOnce, "of threads")
}

// More users than are asked at once are asked nevertheless, those with low numbers first.
func TestAskingComesToAllUsers(t *testing.T) {
	names, asked := make(map[int][]string), make(map[int]bool)
	for uid := range 3 * usersAtOnce {
		names[-10-uid] = []string{fmt.Sprint(uid), fmt.Sprint(uid)}
	}
	ask := func(context.Context, string, *budget) (Process, error) { return Process{}, errNotOurs }
	askUsers(t.Context(), names, ask, func(uid int, _ Process, _ error) { asked[uid] = true })
	require.Len(t, asked, len(names))
}

// One user may have as many silent users as it has subordinate user IDs, each of which is waited for. None of them
// takes the time of another's process, nor of one that is slow the first time.
func TestSilentUsersTakeNoTimeOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silent, honest, slow = 3 * usersAtOnce, 1 << 30, 1<<30 + 1
		defer clear(places.of) // which are this bubble's
		names := map[int][]string{honest: {"honest"}, slow: {"slow"}}
		for uid := range silent {
			names[1<<20+uid] = []string{"silent"}
		}
		asked := 0
		ask := func(ctx context.Context, name string, _ *budget) (Process, error) {
			if name == "slow" {
				asked++
			}
			if name == "silent" || name == "slow" && asked < 2 {
				<-ctx.Done()
				return Process{}, ctx.Err()
			}
			return Process{ID: name}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*asking) // as ringnet ss does
		defer cancel()
		var answered []string
		late := 0
		askUsers(ctx, names, ask, func(_ int, p Process, err error) {
			if err == nil {
				answered = append(answered, p.ID)
				return
			}
			assert.Equal(t, errLate, err)
			late++
		})
		require.Equal(t, []string{"honest", "slow"}, answered)
		require.Equal(t, silent, late, "each once")
		require.NoError(t, ctx.Err())
	})
}

// Very many users who do not answer fill no screen.
func TestFailuresOfManyUsersAreSummedUp(t *testing.T) {
	silent, why := make(map[int]int), make(map[int]error)
	for uid := range 3000 {
		silent[uid], why[uid] = 2, errLate
	}
	failed := summary(silent, why)
	require.Len(t, failed, failures+1)
	require.EqualError(t, failed[0], "2 processes of user 0: no answer in time")
	require.EqualError(t, failed[failures], fmt.Sprintf("%d processes of %d more users: no answer in time", 2*(3000-failures), 3000-failures))
}

// listenAt listens where one who asks looks for processes, and calls answer with each connection.
func listenAt(t *testing.T, answer func(*net.UnixConn)) (name string) {
	t.Helper()
	name = fmt.Sprint(prefix, "TEST", os.Getpid(), t.Name())
	l, err := net.Listen("unix", name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer(c.(*net.UnixConn))
			_ = c.Close()
		}
	}()
	return name
}

// The kernel closes a descriptor that was not taken in the call that reads, or closes the socket: for as long as it
// likes who has sent it.
func TestNobodySendsDescriptorsToOneWhoAsks(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	if passrights.Set(fd, false) != nil {
		t.Skip("this kernel has no SO_PASSRIGHTS")
	}
	sent := make(chan error, 1)
	name := listenAt(t, func(c *net.UnixConn) {
		_, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil)
		sent <- err
	})
	c, err := connect(t.Context(), name)
	require.NoError(t, err)
	defer c.Close()
	require.ErrorIs(t, <-sent, syscall.EPERM)
}

// A user's own words are no other socket's name, and hide none.
func TestNamesOfSocketsMayHaveNewlines(t *testing.T) {
	var lc net.ListenConfig
	forged := fmt.Sprint(prefix, "TESTFORGED", os.Getpid())
	for i := range 3 {
		l, err := lc.Listen(t.Context(), "unix", fmt.Sprintf("@x%d-%d\n0 0 0 10000 0 0 0 %s", os.Getpid(), i, forged))
		require.NoError(t, err)
		defer l.Close()
	}
	name := listenAt(t, func(*net.UnixConn) {})
	byUser, err := socketsByUser(t.Context())
	require.NoError(t, err)
	require.Contains(t, byUser[os.Geteuid()], name)
	require.NotContains(t, byUser[os.Geteuid()], forged)
	names, err := namesInProc("/proc/net/unix") // where the kernel tells no more
	require.NoError(t, err)
	require.Contains(t, names, name)
	require.True(t, slices.IsSorted(names) && len(slices.Compact(slices.Clone(names))) == len(names), "each once")
	require.Contains(t, usersOf(t.Context(), names)[os.Geteuid()], name)
	require.NotContains(t, usersOf(t.Context(), names)[os.Geteuid()], forged)
}

// What a process says of itself in /proc has no end if it likes (PR_SET_MM_MAP).
func TestWhatAProcessSaysOfItselfIsReadInPart(t *testing.T) {
	require.Equal(t, filepath.Base(os.Args[0]), filepath.Base(strings.SplitN(ofProcess(os.Getpid(), "cmdline"), "\x00", 2)[0]))
	maps := ofProcess(os.Getpid(), "maps")
	require.NotEmpty(t, maps)
	require.LessOrEqual(t, len(maps), unix.PathMax)
	require.Empty(t, ofProcess(1<<30, "cmdline"))
}
