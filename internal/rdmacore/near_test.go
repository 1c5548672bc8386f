//go:build linux && cgo

package rdmacore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/mapping"
	"github.com/ringnet/ringnet/internal/numa"
)

// onNode has the test's host be one of two nodes, whose card is at node 0 and has vector 1 near it.
func onNode(t *testing.T, device string) {
	t.Helper()
	root := t.TempDir()
	card := "sys/devices/0000:84:00.0"
	for path, text := range map[string]string{
		"sys/devices/system/node/online":                  "0-1",
		card + "/numa_node":                               "0",
		card + "/local_cpulist":                           "0-7",
		"proc/irq/7/smp_affinity_list":                    "8",
		"proc/irq/7/mlx5_comp0@pci:0000:84:00.0/spurious": "",
		"proc/irq/8/smp_affinity_list":                    "1",
		"proc/irq/8/mlx5_comp1@pci:0000:84:00.0/spurious": "",
	} {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	class := filepath.Join(root, "sys/class/infiniband", device)
	require.NoError(t, os.MkdirAll(class, 0o755))
	require.NoError(t, os.Symlink("../../../../"+card, filepath.Join(class, "device")))
	host = numa.Tree(root)
	t.Cleanup(func() { host = "/" })
}

// vectorsOf are the completion vectors of the next queue pairs.
func vectorsOf(t *testing.T, m CM, id func(CM) *ID) (vectors []int) {
	for range 3 {
		q := &QueuePair{ID: id(m)}
		require.NoError(t, q.OpenDevice())
		require.NoError(t, q.CreateCompletionQueue(16))
		vectors = append(vectors, q.vector)
		defer q.Close()
	}
	return vectors
}

func TestVectorsAreThoseOfConfigOrNearTheCard(t *testing.T) {
	m, addr := onDevice(t)
	bound := func(m CM) *ID {
		id, err := m.Bind(addr)
		require.NoError(t, err)
		return id
	}
	with := func(vectors string) CM {
		m.config.Vectors = vectors
		return m
	}
	id := bound(m)
	device, vectors := deviceName(id.cm), int(id.cm.verbs.num_comp_vectors)
	require.NoError(t, id.Close())
	if vectors < 2 {
		t.Skip("the device has one")
	}
	all := vectorsOf(t, with(""), bound)
	assert.NotEqual(t, all[0], all[1], "without nodes")
	onNode(t, device)
	assert.Equal(t, []int{1, 1, 1}, vectorsOf(t, with(""), bound))
	assert.Equal(t, []int{0, 0, 0}, vectorsOf(t, with("0"), bound))
	assert.Equal(t, []int{0, 0, 0}, vectorsOf(t, with("8191,0"), bound))
	assert.Equal(t, []int{1, 1, 1}, vectorsOf(t, with("8191"), bound))
	two := vectorsOf(t, with("0-1"), bound)
	assert.NotEqual(t, two[0], two[1])
}

func TestMemoryIsNearTheCard(t *testing.T) {
	m, addr := onDevice(t)
	scratch, err := mapping.Map(-1, 0, os.Getpagesize())
	require.NoError(t, err)
	defer mapping.Unmap(scratch)
	if numa.Prefer(scratch, 0); numa.Preferred(scratch) == numa.Unknown {
		t.Skip("this process may not choose a node: mbind(2)")
	}
	id, err := m.Bind(addr)
	require.NoError(t, err)
	onNode(t, deviceName(id.cm))
	q := &QueuePair{ID: id}
	defer q.Close()
	require.NoError(t, q.OpenDevice())
	memory, err := q.Register(1<<16, RemoteWrite)
	require.NoError(t, err)
	assert.Equal(t, 0, numa.Preferred(memory.Bytes()))
}
