package verbs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// IWARP reports whether this host has an iWARP device, whose ports are those of TCP.
func IWARP() bool { return haveIWARP("/sys/class/infiniband") }

func haveIWARP(sysfs string) bool {
	types, _ := filepath.Glob(filepath.Join(sysfs, "*", "node_type"))
	return slices.ContainsFunc(types, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.HasPrefix(string(text), "4:") // RDMA_NODE_RNIC
	})
}
