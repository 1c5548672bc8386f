package numa

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const function = "0000:84:00.0"

// twoNodes is a host whose card mlx5_0 is at node 1, as Linux shows it.
func twoNodes(t *testing.T) Tree {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("there are no such names of files")
	}
	root := t.TempDir()
	device := "sys/devices/pci0000:80/" + function
	for path, text := range map[string]string{
		"sys/devices/system/node/online":                  "0-1",
		device + "/numa_node":                             "1",
		device + "/local_cpulist":                         "16-31,48-63",
		"proc/irq/120/smp_affinity_list":                  "0-63",
		"proc/irq/120/mlx5_async0@pci:" + function + "/x": "",
		"proc/irq/121/smp_affinity_list":                  "16",
		"proc/irq/121/mlx5_comp0@pci:" + function + "/x":  "",
		"proc/irq/122/smp_affinity_list":                  "48-49",
		"proc/irq/122/mlx5_comp1@pci:" + function + "/x":  "",
		"proc/irq/123/smp_affinity_list":                  "0-63",
		"proc/irq/123/effective_affinity_list":            "2",
		"proc/irq/123/mlx5_comp2@pci:" + function + "/x":  "",
		"proc/irq/124/smp_affinity_list":                  "15-16",
		"proc/irq/124/mlx5_comp3@pci:" + function + "/x":  "",
		"proc/irq/125/smp_affinity_list":                  "0-63",
		"proc/irq/125/effective_affinity_list":            "31",
		"proc/irq/125/mlx5_comp10@pci:" + function + "/x": "",
		"proc/irq/126/smp_affinity_list":                  "17",
		"proc/irq/126/mlx5_comp4@pci:0000:84:00.1/x":      "",
	} {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, class, "mlx5_0"), 0o755))
	require.NoError(t, os.Symlink("../../../../"+device, filepath.Join(root, class, "mlx5_0/device")))
	return Tree(root)
}

func TestVectorsAreThoseWhoseInterruptsGoToTheCardsNode(t *testing.T) {
	host := twoNodes(t)
	assert.Equal(t, 1, host.Node("mlx5_0"))
	assert.Equal(t, "16-31,48-63", FormatList(host.Processors("mlx5_0")))
	assert.Equal(t, []int{0, 1, 10}, host.Vectors("mlx5_0"))

	assert.Equal(t, Unknown, host.Node("mlx5_1"))
	assert.Empty(t, host.Vectors("mlx5_1"))
}

func TestOnAHostOfOneNodeNothingIsNear(t *testing.T) {
	host := twoNodes(t)
	require.NoError(t, os.WriteFile(host.path("sys/devices/system/node/online"), []byte("0\n"), 0o600))
	assert.Equal(t, Unknown, host.Node("mlx5_0"))
	assert.Empty(t, host.Vectors("mlx5_0"))
}

func TestListsAreThoseOfTheKernel(t *testing.T) {
	for list, want := range map[string][]int{"": nil, "0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "8,0-1": {8, 0, 1}, "7-7": {7}} {
		got, err := ParseList(list)
		require.NoError(t, err, list)
		assert.Equal(t, want, got, list)
	}
	for _, list := range []string{"x", "1-", "-1", "3-1", "1,,2", " 1", "1-8192", "0x1", "99999999999", "+1"} {
		_, err := ParseList(list)
		assert.Error(t, err, list)
	}
	for _, list := range []string{"", "0", "0-3,8", "1,3,5-6"} {
		all, _ := ParseList(list)
		assert.Equal(t, list, FormatList(all))
	}
}
