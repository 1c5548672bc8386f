package numa

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMemoryIsOfTheNodeThatIsPreferred(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	for _, none := range []int{Unknown, 1 << 20} {
		Prefer(mem, none)
		assert.Equal(t, Unknown, Preferred(mem))
	}
	Prefer(nil, 0)
	Prefer(mem, 0)
	if Preferred(mem) == Unknown {
		t.Skip("this process may not choose a node: mbind(2)")
	}
	assert.Equal(t, 0, Preferred(mem))
}
