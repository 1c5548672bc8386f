package strangers

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDsAreNobodys(t *testing.T) {
	for _, own := range []int{0, 1000, 1001, 39_999, 40_000, 47_999, 48_000, 65_534} {
		seen := make(map[uint32]bool)
		for pid := 4_000_123; pid < 4_001_123; pid++ {
			for n := range 8 {
				uid := id(own, pid, n)
				require.NotEqual(t, uint32(own), uid)
				require.True(t, uid >= 40_000 && uid < 61_184, uid)
				seen[uid] = true
			}
		}
		require.Len(t, seen, 8*1000)
	}
}

func TestNamespacesHaveUsers(t *testing.T) {
	require.True(t, mapped("         0          0 4294967295\n", 40_000))
	require.True(t, mapped("0 1000 1\n1 100000 65536\n", 40_000))
	require.False(t, mapped("0 1000 1\n", 40_000))
	require.False(t, mapped("0 1000 1\n1 100000 39999\n", 40_000))
}

func TestFoldersAreOpenToOthers(t *testing.T) {
	private := t.TempDir()
	require.NoError(t, os.Chmod(private, 0o700))
	t.Setenv("TMPDIR", private)
	require.False(t, open(private))
	dir := Folder(t)
	require.True(t, open(dir) || os.Geteuid() != 0)
}
