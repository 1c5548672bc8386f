//go:build linux

package shm

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// undecided returns a fabric whose Config.Trust does not return until decide is closed, and
// then trusts, and a channel that shows that it has been called.
func undecided(t *testing.T) (f fabric.Fabric, asked, decide chan struct{}) {
	t.Helper()
	needsRoot(t)
	asked, decide = make(chan struct{}, 1), make(chan struct{})
	f, err := New(Config{Trust: func(uint32) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-decide
		return true
	}})
	require.NoError(t, err)
	return f, asked, decide
}

// If Config.Trust takes long to judge one user, a group's sender reaches the members of the
// others, and can be closed. Members of that user are reached once it is accepted.
func TestTrustThatIsSlowDelaysNoGroup(t *testing.T) {
	f, asked, decide := undecided(t)
	leavesNothing(t)
	decided := sync.OnceFunc(func() { close(decide) })
	defer decided()
	group := someGroup()
	p := startAs(t, stranger, "member", netip.AddrPortFrom(host, 0), group.String(), "trust")
	require.Equal(t, "joined", p.first)
	a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
	var h [2]*members
	soon(t, "Resolve", func() {
		h = [2]*members{a.resolveMembers(t, group), b.resolveMembers(t, group)}
	})
	soon(t, "the question", func() { <-asked })
	soon(t, "Join", func() { assert.NoError(t, b.Join(ctx, group, netip.Addr{})) })
	h[0].requireLanes(t, 1)
	a.delivers(t, h[0], "hello", b)
	h[1].Close()
	soon(t, "Close", func() { assert.NoError(t, b.Close()) })
	h[0].requireLanes(t, 0)
	decided()
	h[0].requireLanes(t, 1)
	require.Equal(t, fabric.OK, a.post(h[0], "hello"))
	require.Equal(t, "hello", p.line(t))
}

// Resolve waits for Config.Trust about a receiver's user until its context ends.
func TestTrustThatIsSlowIsWaitedForUntilTheContextEnds(t *testing.T) {
	f, asked, decide := undecided(t)
	defer close(decide)
	at := place()
	startAs(t, stranger, "squat", at, "idle", nameOf(datagramName, stranger, "", at))
	a := openMailbox(t, f, 16)
	asking, cancel := context.WithCancel(ctx)
	go func() {
		<-asked
		cancel()
	}()
	soon(t, "Resolve", func() {
		_, err := a.Resolve(asking, at)
		assert.ErrorIs(t, err, context.Canceled)
	})
}

// Config.Trust may close the handle and the queue pair for which it is called.
func TestTrustMayCallClose(t *testing.T) {
	needsRoot(t)
	var a mailbox
	resolved, closed := make(chan fabric.AddressHandle, 1), make(chan error, 1)
	f, err := New(Config{Trust: func(uint32) bool {
		(<-resolved).Close()
		closed <- a.Close()
		return false
	}})
	require.NoError(t, err)
	group := someGroup()
	startAs(t, stranger, "squat", netip.AddrPortFrom(host, 1), "idle", nameOf(memberName, stranger, "1", group))
	a = openMailbox(t, f, 16)
	soon(t, "Close", func() {
		h, err := a.Resolve(ctx, group)
		if assert.NoError(t, err) {
			resolved <- h
			assert.NoError(t, <-closed)
		}
	})
}
