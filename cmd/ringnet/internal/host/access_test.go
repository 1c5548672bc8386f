package host

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNodes(t *testing.T) {
	root := t.TempDir()
	for _, n := range tree(root).Nodes() {
		require.True(t, n.Missing(), n.Path)
	}
	write(t, root, map[string]string{"dev/infiniband/rdma_cm": "", "dev/infiniband/uverbs0": ""})
	for _, n := range tree(root).Nodes() {
		require.NoError(t, n.Err, n.Path)
	}
}

func TestSharedNamespaces(t *testing.T) {
	root := t.TempDir()
	_, known := tree(root).SharedNamespaces()
	require.False(t, known)
	for text, want := range map[string]bool{"Y": true, "N": false} {
		write(t, root, map[string]string{"sys/module/ib_core/parameters/netns_mode": text})
		shared, known := tree(root).SharedNamespaces()
		require.True(t, known)
		require.Equal(t, want, shared)
	}
}

func TestProvider(t *testing.T) {
	root := t.TempDir()
	card := Device{Driver: "mlx5_core"}
	name, installed := tree(root).Provider(card)
	require.Equal(t, "mlx5", name)
	require.False(t, installed)
	write(t, root, map[string]string{"usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": ""})
	_, installed = tree(root).Provider(card)
	require.True(t, installed)
	name, _ = tree(root).Provider(Device{Driver: "a new one"})
	require.Empty(t, name, "is not known, so nothing is said of it")
}

func TestTrafficClass(t *testing.T) {
	root := t.TempDir()
	require.Empty(t, tree(root).TrafficClass("mlx5_0"))
	write(t, root, map[string]string{"sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106"})
	require.Equal(t, "106", tree(root).TrafficClass("mlx5_0"))
}
