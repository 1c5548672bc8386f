//go:build linux && cgo

package rdmacore

// iWARP, RDMA over TCP, is refused: it has other messages, other completions, and ports that are
// those of the host's TCP.

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// refuseIWARP returns an error if the id's device is an iWARP device.
func refuseIWARP(id cmID) error {
	if id.verbs == nil || id.verbs.device.transport_type != C.RN_IBV_TRANSPORT_IWARP {
		return nil
	}
	return errIWARP(deviceName(id))
}

func errIWARP(device string) error {
	return fmt.Errorf("%s is an iWARP device, over which there is no rdma: %w", device, errors.ErrUnsupported)
}

// refuseAtAll returns an error if local is all addresses of a host with an iWARP device. The
// kernel would listen there, too, and take connections that are for the host's TCP. A port that
// the kernel chooses is no program's.
func refuseAtAll(sysfs string, local netip.AddrPort) error {
	if local.Addr().IsValid() && !local.Addr().IsUnspecified() || local.Port() == 0 {
		return nil
	}
	types, _ := filepath.Glob(filepath.Join(sysfs, "*", "node_type"))
	for _, path := range types {
		if text, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(text), "4:") { // RDMA_NODE_RNIC
			return errIWARP(filepath.Base(filepath.Dir(path)))
		}
	}
	return nil
}
