package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Node is a device file that RDMA needs.
type Node struct {
	Path   string
	Module string // the kernel module that makes it
	Err    error  // why it cannot be opened, or nil
	Group  string // those who may, besides root: a number; "" if no group may, or all
}

// Nodes are the device file of the connection manager, and one of a device: one that can be
// opened, if there is any.
func (t Tree) Nodes() []Node {
	nodes := []Node{{Path: "/dev/infiniband/rdma_cm", Module: "rdma_ucm"}, {Path: "/dev/infiniband/uverbs*", Module: "ib_uverbs"}}
	for i, n := range nodes {
		nodes[i].Err = &fs.PathError{Op: "open", Path: n.Path, Err: fs.ErrNotExist}
		paths, _ := filepath.Glob(filepath.Join(string(t), n.Path))
		for _, path := range paths {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				_ = f.Close()
			}
			if nodes[i].Err = err; err == nil {
				break
			}
			nodes[i].Group = groupOf(path)
		}
	}
	return nodes
}

// Missing reports whether the node does not exist.
func (n Node) Missing() bool { return errors.Is(n.Err, fs.ErrNotExist) }

// ExclusiveNamespaces reports whether each network namespace sees only its own RDMA devices.
func (t Tree) ExclusiveNamespaces() bool {
	return t.text("sys/module/ib_core/parameters/netns_mode") == "N"
}

// providers are the names of rdma-core's libraries, by driver.
var providers = map[string]string{
	"rdma_rxe":  "rxe",
	"mlx5_core": "mlx5",
	"mlx4_core": "mlx4",
	"bnxt_en":   "bnxt_re",
	"ice":       "irdma",
	"i40e":      "irdma",
	"qede":      "qedr",
	"hns3":      "hns",
	"cxgb4":     "cxgb4",
	"efa":       "efa",
	"erdma":     "erdma",
	"mana":      "mana",
	"ionic":     "ionic",
}

// Provider is the name of the library of rdma-core that the device needs, or "" if
// that is not known, and whether it is installed.
func (t Tree) Provider(d Device) (name string, installed bool) {
	name = providers[d.Driver]
	if name == "" {
		return "", false
	}
	configured, _ := filepath.Glob(filepath.Join(string(t), "etc/libibverbs.d", name+".driver"))
	return name, len(configured) > 0 || t.Libraries().Providers[name] != ""
}

// TrafficClass is the traffic class that rdma_cm is configured to give the packets of a
// device's first port, or "" if none is configured: then the kernel gives 0.
func (t Tree) TrafficClass(device string) string {
	return t.text("sys/kernel/config/rdma_cm", device, "ports/1/default_roce_tos")
}
