//go:build linux && cgo

package rdmacore

// How much inline data queue pairs have.

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/ringnet/ringnet/internal/provider"
)

// MaxInline is how much inline data a queue pair has at most, in bytes.
const MaxInline = provider.MaxInline

// inlineSizes are the sizes of inline data to ask for, in bytes, the largest first: qedr takes 128, irdma 101,
// bnxt_re 96.
var inlineSizes = [...]int{MaxInline, 128, 101, 96, 64, 48, 32, 0}

// shape is what a device's limit of inline data depends on.
type shape struct {
	kind         Type
	sends, recvs int
	most         int // that may be asked for
}

// mostInline is how much inline data a queue pair may have whose Config wants so much.
func (d *device) mostInline(wanted int) int {
	if wanted == 0 {
		return d.most
	}
	return min(max(wanted, 0), MaxInline)
}

// sizesFor are the sizes of inline data to ask for: from what the device has granted for such a queue pair on, so that
// it refuses more once in a process. Newest bnxt_re's kernel logs each refusal.
func (d *device) sizesFor(s shape) (sizes []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	most, known := d.granted[s]
	if !known {
		most = s.most
	}
	sizes = append(sizes, most)
	for _, n := range inlineSizes {
		if n < most {
			sizes = append(sizes, n)
		}
	}
	return sizes
}

// grants remembers the size that the device has taken.
func (d *device) grants(s shape, size int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.granted[s] = size
}

// goRound decides what the device is used without, by its driver and the version of rdma-core. The limit of inline
// data that a user has set counts for more.
func (d *device) goRound(limit int, library provider.Version) {
	link, _ := os.Readlink(filepath.Join(sysInfiniband, contextName(d.ctx), "device/driver"))
	driver := filepath.Base(link)
	detour := provider.DetourOf(driver, library)
	d.lean = isLean(driver)
	d.alone = detour.Batch
	d.most = MaxInline
	switch {
	case limit != 0:
		d.most = max(limit, 0)
	case detour.Inline:
		d.most = 0
	}
}

// isLean reports whether the driver is NVIDIA's mlx5, also of a subfunction (mlx5_core.sf). For ibv_create_qp its
// provider makes slots of the send queue in which memory windows can be bound, 512 bytes long; for writes alone, with
// MaxInline, 256 bytes, from rdma-core v24 on. ibv_post_send still posts them (ibv_wr_post(3)).
func isLean(driver string) bool { return strings.HasPrefix(driver, "mlx5_core") }
