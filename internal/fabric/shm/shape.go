//go:build linux

package shm

import (
	"fmt"
	"math/bits"
	"os"
	"syscall"
)

// The most that a segment may hold; nothing larger is ever mapped. They leave
// room above what package wire allows.
const (
	maxRegion    = 1 << 30
	maxRecvQueue = 1 << 17
	maxBuffers   = 64 << 20 // of receive buffers, in bytes
)

// shape is what a segment is made of, as its owner tells the peer.
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

	// waitingAt is a word that is 1 while the owner may be asleep.
	waitingAt = 0
	// postedAt is how many receives the owner has posted since the beginning.
	postedAt = lineSize
	// slotsAt is where the descriptors begin.
	slotsAt = 2 * lineSize
)

// slots is the number of descriptors: a power of two, and room for all receives
// that may be posted.
func (s shape) slots() int { return 1 << bits.Len(uint(s.recvQueue-1)) }

// stride is the distance of receive buffers.
func (s shape) stride() int { return (s.recvSize + 7) &^ 7 }

// buffersAt is where the receive buffers begin, one for each slot.
func (s shape) buffersAt() int { return slotsAt + 8*s.slots() }

// regionAt is where the memory for remote writes begins, on a page.
func (s shape) regionAt() int {
	return pages(s.buffersAt() + s.slots()*s.stride())
}

// size is that of the segment.
func (s shape) size() int { return s.regionAt() + s.region }

// pages rounds n up to whole pages.
func pages(n int) int {
	page := os.Getpagesize()
	return (n + page - 1) &^ (page - 1)
}
