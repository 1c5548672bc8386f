//go:build linux && cgo

package ud

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// What is in the place of a header then may be that of another datagram, which came from somebody else.
func TestDatagramWithoutAHeaderIsDropped(t *testing.T) {
	rdmatest.OnCardWith(t, "grh-missing")
	dropsEveryThirdDatagram(t)
}

func TestDatagramThatIsLongerThanItsReceiveIsDropped(t *testing.T) {
	rdmatest.OnCardWith(t, "length-wrong")
	dropsEveryThirdDatagram(t)
}

func dropsEveryThirdDatagram(t *testing.T) {
	t.Helper()
	const depth = 16
	a, b := openPackets(t, depth), openPackets(t, depth)
	h := a.to(t, b)
	defer h.Close()
	for i := range 4 * depth {
		want := fmt.Sprint(i)
		require.Equal(t, fabric.OK, a.send(h, want))
		if i%3 != 2 {
			require.Equal(t, want, b.next(t))
		}
	}
}
