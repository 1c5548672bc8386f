package fabric

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPages(t *testing.T) {
	most := math.MaxInt - PageSize + 1
	for n, want := range map[int]int{0: 0, 1: PageSize, PageSize: PageSize, PageSize + 1: 2 * PageSize, most - 1: most, most: most, most + 1: most, math.MaxInt: most} {
		require.Equal(t, want, Pages(n), "%d", n)
	}
}
