//go:build linux

package shm

import (
	"context"
	"net/netip"
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
// others, and can be closed.
func TestTrustThatIsSlowDelaysNoGroup(t *testing.T) {
	f, asked, decide := undecided(t)
	leavesNothing(t)
	defer close(decide)
	group := someGroup()
	startAs(t, 1000, "squat", netip.AddrPortFrom(host, 1), "idle", nameOf(memberName, 1000, "1", group))
	a, b := openMailbox(t, f, 16), openMailbox(t, f, 16)
	var h *members
	soon(t, "Resolve", func() {
		resolved, err := a.Resolve(ctx, group)
		if assert.NoError(t, err) {
			h = resolved.(*members)
		}
	})
	soon(t, "the question", func() { <-asked })
	soon(t, "Join", func() { assert.NoError(t, b.Join(ctx, group, netip.Addr{})) })
	h.requireLanes(t, 1)
	a.delivers(t, h, "hello", b)
	h.Close()
	soon(t, "Close", func() { assert.NoError(t, a.Close()) })
}

// Members of a user whom Config.Trust accepts late are reached then.
func TestTrustThatIsSlowAddsMembersLater(t *testing.T) {
	f, asked, decide := undecided(t)
	group := someGroup()
	a := openMailbox(t, f, 16)
	var h *members
	p := startAs(t, 1000, "member", netip.AddrPortFrom(host, 0), group.String(), "trust")
	require.Equal(t, "joined", p.first)
	soon(t, "Resolve", func() {
		resolved, err := a.Resolve(ctx, group)
		if assert.NoError(t, err) {
			h = resolved.(*members)
		}
	})
	defer h.Close()
	soon(t, "the question", func() { <-asked })
	require.Zero(t, h.count())
	close(decide)
	h.requireLanes(t, 1)
	require.Equal(t, fabric.OK, a.post(h, "hello"))
	require.Equal(t, "hello", p.line(t))
}

// Resolve waits for Config.Trust about a receiver's user until its context ends.
func TestTrustThatIsSlowIsWaitedForUntilTheContextEnds(t *testing.T) {
	f, asked, decide := undecided(t)
	defer close(decide)
	at := place()
	startAs(t, 1000, "squat", at, "idle", nameOf(datagramName, 1000, "", at))
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
	startAs(t, 1000, "squat", netip.AddrPortFrom(host, 1), "idle", nameOf(memberName, 1000, "1", group))
	a = openMailbox(t, f, 16)
	soon(t, "Close", func() {
		h, err := a.Resolve(ctx, group)
		if assert.NoError(t, err) {
			resolved <- h
			assert.NoError(t, <-closed)
		}
	})
}
