//go:build linux && cgo

package rdmacore

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// A device is asked for more than it takes once, for each kind and depth of queue pairs.
func TestWhatADeviceGrantsIsRemembered(t *testing.T) {
	d := &device{granted: make(map[shape]int)}
	link, other := shape{RC, 128, 267, MaxInline}, shape{RC, 8192, 267, MaxInline}
	assert.Equal(t, inlineSizes[:], d.sizesFor(link))
	d.grants(link, 96)
	assert.Equal(t, []int{96, 64, 48, 32, 0}, d.sizesFor(link))
	assert.Equal(t, inlineSizes[:], d.sizesFor(other))
	d.grants(other, 0)
	assert.Equal(t, []int{0}, d.sizesFor(other))
	assert.Equal(t, []int{100, 96, 64, 48, 32, 0}, d.sizesFor(shape{UD, 128, 267, 100}))
}

// Config counts for more than the environment and what is known of a provider, which are those of a device.
func TestInlineDataIsAtMostThatOfConfig(t *testing.T) {
	m, addr := onDevice(t)
	for wanted, want := range map[int]int{-1: 0, 1: 1, 64: 64} {
		m.config.Inline = wanted
		id, err := m.Bind(addr)
		require.NoError(t, err)
		q := &QueuePair{ID: id}
		defer q.Close()
		require.NoError(t, q.OpenDevice())
		require.NoError(t, q.CreateCompletionQueue(32))
		require.NoError(t, q.Create(RC, 16, 16))
		assert.Equal(t, want, q.Inline())
	}
	d := &device{most: 0}
	assert.Equal(t, 96, d.mostInline(96))
}

func TestWhatACardGrantsIsRemembered(t *testing.T) {
	rdmatest.OnCardWith(t, "bnxt_re")
	m, addr := onDevice(t)
	id, err := m.Bind(addr)
	require.NoError(t, err)
	q := &QueuePair{ID: id}
	defer q.Close()
	require.NoError(t, q.OpenDevice())
	require.NoError(t, q.CreateCompletionQueue(32))
	require.NoError(t, q.Create(RC, 16, 16))
	require.Equal(t, 96, q.Inline())
	assert.Equal(t, []int{96, 64, 48, 32, 0}, q.device.sizesFor(shape{RC, 16, 16, MaxInline}))
}
