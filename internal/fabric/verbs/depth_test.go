//go:build linux && cgo

package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

func TestACKTimeoutIsRoundedUp(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want uint8
	}{
		{-1, 1}, {0, 1}, // 0 would mean for ever
		{4096 * time.Nanosecond, 1},
		{8192 * time.Nanosecond, 1},
		{8193 * time.Nanosecond, 2},
		{4096 << 14, 14}, // 67 ms
		{4096<<14 + 1, 15},
		{500 * time.Millisecond, 17}, // 537 ms
		{1000 * time.Hour, 31},
	} {
		assert.Equal(t, tt.want, ackTimeout(tt.d), "%v", tt.d)
	}
}

// A device that refuses is asked for half the depth of the longer queue, until
// leastSends and leastRecvs.
func TestDepthIsHalvedToTheLeastThatIsWanted(t *testing.T) {
	o, steps := fabric.Options{SendQueue: 32768, RecvQueue: 267}, 0
	for before := o; makeShallower(&o); before = o {
		assert.Less(t, o.SendQueue+o.RecvQueue, before.SendQueue+before.RecvQueue)
		steps++
	}
	assert.Equal(t, fabric.Options{SendQueue: 16, RecvQueue: 18}, o)
	assert.Equal(t, wire.MinReceives+credit.LinkControlReceives, o.RecvQueue, "what a link wants")
	assert.Equal(t, 15, steps)
	assert.False(t, makeShallower(&fabric.Options{SendQueue: 4, RecvQueue: 8}), "less than that is not asked for if it was not wanted")
}
