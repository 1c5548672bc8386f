package budget

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimitOfTheControlGroup(t *testing.T) {
	for name, test := range map[string]struct {
		groups string
		files  map[string]string
		want   int
	}{
		"none":                            {"", nil, Unlimited},
		"version 2":                       {"0::/a/b\n", map[string]string{"a/b/memory.max": "4096\n"}, 4096},
		"version 2, no limit":             {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, Unlimited},
		"of the group above":              {"0::/a/b\n", map[string]string{"a/memory.max": "4096\n", "a/b/memory.max": "8192\n"}, 4096},
		"the group is the root":           {"0::/outside/c\n", map[string]string{"memory.max": "4096\n"}, 4096},
		"version 1":                       {"3:cpu:/a\n4:memory:/a\n0::/\n", map[string]string{"memory/a/memory.limit_in_bytes": "8192\n"}, 8192},
		"version 1, no limit":             {"4:memory:/\n", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, clamp(9223372036854771712)},
		"both":                            {"4:memory:/\n0::/\n", map[string]string{"memory/memory.limit_in_bytes": "8192\n", "memory.max": "4096\n"}, 4096},
		"throttled":                       {"0::/a/b\n", map[string]string{"a/memory.high": "2048\n", "a/memory.max": "4096\n", "a/b/memory.high": "max\n"}, 2048},
		"many groups above":               {"0::/a/b/c/d/e\n", map[string]string{"memory.max": "max\n", "a/b/memory.max": "4096\n", "a/b/c/d/e/memory.max": "max\n"}, 4096},
		"outside of the root":             {"0::/../../c\n", map[string]string{"memory.max": "4096\n"}, 4096},
		"version 1, above":                {"4:memory:/a/b\n", map[string]string{"memory/memory.limit_in_bytes": "16384\n", "memory/a/memory.limit_in_bytes": "8192\n"}, 8192},
		"version 1, mounted with another": {"4:cpuset,memory:/a\n", map[string]string{"cpuset,memory/a/memory.limit_in_bytes": "8192\n"}, 8192},
		"nonsense":                        {"what\n0::\n:::\n", map[string]string{"memory.max": "-1\n"}, Unlimited},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			groups := filepath.Join(root, "groups")
			require.NoError(t, os.WriteFile(groups, []byte(test.groups), 0o600))
			for file, text := range test.files {
				file = filepath.Join(root, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
				require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			}
			require.Equal(t, test.want, groupMemory(groups, root))
		})
	}
}

// Ringnet maps at most as much as it leaves to the rest of the process.
func TestHalfOfTheAddressesAreLeft(t *testing.T) {
	const GiB = 1 << 30
	for _, test := range []struct {
		space, mapped uint64
		used, limit   int
	}{
		{2 * GiB, 0, 0, GiB},
		{2 * GiB, GiB, 0, GiB / 2},
		{2 * GiB, GiB, GiB, GiB},
		{GiB, 2 * GiB, 0, 0},
		{GiB, 0, GiB / 4, GiB / 2}, // without /proc
	} {
		require.Equal(t, test.limit, addressLimit(test.space, test.mapped, test.used), "%+v", test)
	}
	require.Greater(t, mapped(), uint64(1<<20))
	require.Equal(t, strconv.IntSize == 64, addressSpace() == math.MaxUint64, "this test has no RLIMIT_AS")
}

func TestUserNamespaces(t *testing.T) {
	require.True(t, firstUserNamespace("         0          0 4294967295\n"))
	require.False(t, firstUserNamespace("         0       1000          1\n"))
	require.False(t, firstUserNamespace(""))
}
