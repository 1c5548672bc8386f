//go:build linux

// Processes of users whom a listener does not trust.

package shm

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/testing/limits"
)

// A dialer that may not connect is refused as soon as the kernel has said who it is. It takes no
// place among the requests, so it does not even take the lock that guards these.
func TestStrangersTakeNoPlaceOfAListener(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) {
		l := listen(t, f, 1).(*listener)
		l.mu.Lock()
		unlock := sync.OnceFunc(l.mu.Unlock)
		defer unlock()
		soon(t, "a stranger", func() {
			said, err := asUser(t, l.Addr(), user(stranger))
			assert.Error(t, err)
			assert.Equal(t, fmt.Sprintf("dial: another user: the peer's user ID is 0, and it does not trust ours, %d", stranger), strings.TrimSpace(said))
		})
		unlock()
		requireAccepts(t, f, l)
	})
}

// However many processes of one user wait, because Config.Trust has not decided about it or
// because they send nothing, the places of others remain.
func TestSilentDialersOfOneUserTakeNoPlaceOfAnother(t *testing.T) {
	limits.NeedDescriptors(t, 3*maxRequests+4)
	leavesNothing(t)
	f := newFabric(t).(*shm)
	f.requestTimeout = time.Hour
	decided := make(chan struct{})
	defer close(decided)
	f.config.Trust = func(uint32) bool {
		<-decided
		return true
	}
	l := listen(t, f, 1).(*listener)
	connect := func(uid uint32) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(pair[1]) })
		l.addRequest(pair[0], uid)
	}
	honest, many := stranger, another
	connect(honest)
	for range 2 * maxRequests {
		connect(many)
	}
	connect(honest)
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []uint32
	for _, r := range l.requests {
		if r.uid == honest {
			left = append(left, r.uid)
		}
		require.NoError(t, r.ctx.Err())
	}
	require.Len(t, left, 2)
	require.Len(t, l.requests, maxRequests)
}
