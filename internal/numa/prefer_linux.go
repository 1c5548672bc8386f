package numa

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const mpolPreferred = 1 // MPOL_PREFERRED, set_mempolicy(2)

// Prefer has memory that nothing has touched yet be of a node, as far as that has any. Containers may not do that
// without CAP_SYS_NICE; then it is of the node that touches it first.
func Prefer(mem []byte, node int) {
	var nodes [1024 / 64]uint64
	if node < 0 || node >= 64*len(nodes) || len(mem) == 0 {
		return
	}
	nodes[node/64] = 1 << (node % 64)
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), mpolPreferred,
		uintptr(unsafe.Pointer(&nodes)), uintptr(64*len(nodes)), 0)
}

// Preferred is the node that Prefer has given to the page at the beginning of memory, or Unknown.
func Preferred(mem []byte) int {
	const ofAddress = 2 // MPOL_F_ADDR, get_mempolicy(2)
	var mode int32
	var nodes [1024 / 64]uint64
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), uintptr(unsafe.Pointer(&nodes)),
		uintptr(64*len(nodes)), uintptr(unsafe.Pointer(unsafe.SliceData(mem))), ofAddress, 0)
	for node := range 64 * len(nodes) {
		if errno == 0 && mode == mpolPreferred && nodes[node/64]>>(node%64)&1 != 0 {
			return node
		}
	}
	return Unknown
}
