package link

import (
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// Whoever asks holds the link's lock for one stream at a time, however many there are: to look at one of these
// is a fault.
func TestWhoAsksLooksAtNoOtherStreams(t *testing.T) {
	page, err := syscall.Mmap(-1, 0, int(unsafe.Sizeof(machine.Stream{})), syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer syscall.Munmap(page)
	others := slices.Repeat([]*machine.Stream{(*machine.Stream)(unsafe.Pointer(&page[0]))}, 10_000)
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, exchange(c, s, 100<<10, 1))
		l := c.link
		l.lock()
		table := at[[]*machine.Stream](l.m, "streams.byNumber")
		own := *table
		*table = slices.Concat(own, others)
		l.unlock()
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		require.NotPanics(t, func() {
			require.EqualValues(t, 100<<10, l.Info().BytesSent)
			require.EqualValues(t, 100<<10, l.Stats().BytesSent)
			List()
			Totals()
			_, known := c.State(nil)
			require.True(t, known)
			require.EqualValues(t, 100<<10, c.Stats().BytesWritten)
		})
		require.EqualValues(t, 100<<10, s.link.Stats().BytesReceived)
		l.lock()
		*table = own
		l.unlock()
		endAll(t, n, c, s)
	})
}
