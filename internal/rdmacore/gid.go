//go:build linux && cgo

package rdmacore

// Which device has a GID. Before v30, rdma-core finds the device of an id by the node GUID that the kernel tells, and
// functions of a card may have the same, or 0: then the queue pair would be on another device than the connection.

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ringnet/ringnet/internal/provider"
)

// checkDevice returns an error if the library has opened another device than the one that has the GID of the id's local
// address.
func (s *devices) checkDevice(cm cmID) error {
	if s.library != (provider.Version{}) && !provider.EqualGUIDs.Have(s.library) {
		return nil
	}
	gid := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&cm.sgid)))
	return checkGID(sysInfiniband, deviceName(cm), int(cm.port_num), gid)
}

// checkGID returns an error if the port of a device does not have a GID, and one of another device has it.
func checkGID(sysfs, device string, port int, gid netip.Addr) error {
	if gid.IsUnspecified() || hasGID(filepath.Join(sysfs, device, "ports", strconv.Itoa(port)), gid) {
		return nil
	}
	others, _ := filepath.Glob(filepath.Join(sysfs, "*", "ports", strconv.Itoa(port)))
	for _, other := range others {
		name := filepath.Base(filepath.Dir(filepath.Dir(other)))
		if name != device && hasGID(other, gid) {
			return fmt.Errorf("%s has the address, and rdma-core has opened %s, which has the same node GUID: %w", name, device, errors.ErrUnsupported)
		}
	}
	return nil
}

func hasGID(port string, gid netip.Addr) bool {
	entries, _ := os.ReadDir(filepath.Join(port, "gids"))
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(port, "gids", e.Name()))
		if own, err := netip.ParseAddr(strings.TrimSpace(string(text))); err == nil && own == gid {
			return true
		}
	}
	return false
}
