//go:build linux

package shm

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"syscall"
)

// The most that a segment may hold; nothing larger is ever mapped. Package wire
// allows less.
const (
	maxRegion    = 1 << 30
	maxRecvQueue = 1 << 17
	maxBuffers   = 64 << 20 // of receive buffers, in bytes
)

// shape is what a segment is made of, as its owner sends it to the peer.
type shape struct {
	region    int    // bytes of memory for remote writes, whole pages
	rkey      uint32 // of that memory
	recvQueue int    // receives that may be posted
	recvSize  int    // bytes that a Send may carry
}

// newShape checks the numbers of a shape.
func newShape(region uint64, rkey, recvQueue, recvSize uint32) (shape, error) {
	switch {
	case region > maxRegion || region%uint64(os.Getpagesize()) != 0:
		return shape{}, fmt.Errorf("%d bytes of memory for remote writes, want whole pages and at most %d: %w", region, maxRegion, syscall.EINVAL)
	case recvQueue == 0 || recvQueue > maxRecvQueue:
		return shape{}, fmt.Errorf("receive queue of %d, want 1 to %d: %w", recvQueue, maxRecvQueue, syscall.EINVAL)
	case uint64(recvSize)*uint64(recvQueue) > maxBuffers/2:
		return shape{}, fmt.Errorf("%d receives of %d bytes, want at most %d in all: %w", recvQueue, recvSize, maxBuffers/2, syscall.EINVAL)
	}
	return shape{int(region), rkey, int(recvQueue), int(recvSize)}, nil
}

// Where things lie in a segment. Words that different ends write, or that one
// end polls, have cache lines of their own.
const (
	lineSize = 64

	// waitingAt is where waiting is: 1 while the owner may be asleep, or ownerGone.
	waitingAt = 0
	// postedAt is where posted is: how many receives the owner has posted since Open.
	postedAt = lineSize
	// slotsAt is where the descriptors begin.
	slotsAt = 2 * lineSize
)

// slots is the number of descriptors: a power of two, and room for all receives
// that may be posted.
func (s shape) slots() int { return 1 << bits.Len(uint(s.recvQueue-1)) }

// stride is how many bytes a receive buffer takes, with padding.
func (s shape) stride() int { return (s.recvSize + 7) &^ 7 }

// buffersAt is where the receive buffers begin, one for each slot.
func (s shape) buffersAt() int { return slotsAt + 8*s.slots() }

// queues is how many bytes the queues of an end need, in whole pages.
func (s shape) queues() int {
	return pages(s.buffersAt() + s.slots()*s.stride())
}

// layout is how the memory of a connection is divided: what both ends' queues
// need comes first and exists from the start; behind it addresses are set aside
// for the memory for remote writes, which exists when it is registered.
type layout struct{ listener, dialer shape }

// newLayout checks that the size of both ends' memory fits an int.
func newLayout(listener, dialer shape) (layout, error) {
	l := layout{listener, dialer}
	if listener.region > math.MaxInt-dialer.region-l.queues() {
		return layout{}, fmt.Errorf("memory for remote writes of %d and %d bytes: %w", listener.region, dialer.region, syscall.ENOMEM)
	}
	return l, nil
}

// queues is how many bytes the queues of both ends need.
func (l layout) queues() int { return l.listener.queues() + l.dialer.queues() }

// size is how many bytes the memory has as a whole.
func (l layout) size() int { return l.queues() + l.listener.region + l.dialer.region }

// firstWindow is how many bytes of the peer's region are mapped at first. A peer with a few
// connections, or one large ring, writes to no more.
const firstWindow = 1 << 20

// parts are what an end maps at first: the queues; of its own region what it has registered, but
// a page at least for mapping.Again to begin with; and of the peer's the first window.
func (l layout) parts(passive bool, registered int) [3]part {
	own, peer := part{l.queues(), l.listener.region}, part{l.queues() + l.listener.region, l.dialer.region}
	if !passive {
		own, peer = peer, own
	}
	own.size = min(max(registered, os.Getpagesize()), own.size)
	peer.size = min(peer.size, firstWindow)
	return [3]part{{0, l.queues()}, own, peer}
}

// views returns both ends' segments in the memory of the queues.
func (l layout) views(queues []byte) (listener, dialer *segment) {
	n := l.listener.queues()
	return view(l.listener, queues[:n]), view(l.dialer, queues[n:])
}

// pages rounds n up to whole pages.
func pages(n int) int {
	page := os.Getpagesize()
	return (n + page - 1) &^ (page - 1)
}
