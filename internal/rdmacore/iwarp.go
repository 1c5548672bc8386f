//go:build linux && cgo

package rdmacore

// iWARP, RDMA over TCP, is refused: it has other messages, other completions, and ports that are
// those of the host's TCP. A host may have such a device beside others: many servers have Intel's X722.

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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

// listenAtEach listens at each address that the other cards have by now, in place of all addresses. If they have none, the
// error is that of those.
func (m CM) listenAtEach(all netip.AddrPort, o ListenOptions, refused error) (*Listener, error) {
	var at []netip.AddrPort
	for _, a := range m.addresses() {
		if family := all.Addr(); !family.IsValid() || family.Is4() == a.Is4() {
			at = append(at, netip.AddrPortFrom(a, all.Port()))
		}
	}
	if len(at) == 0 {
		return nil, refused
	}
	l, err := m.listen(o, true, at...)
	if err != nil {
		return nil, err
	}
	if l.addr = all; !all.Addr().IsValid() {
		l.addr = netip.AddrPortFrom(netip.IPv6Unspecified(), all.Port())
	}
	return l, nil
}

// addresses are those of this host by which a card can be used.
func (m CM) addresses() (all []netip.Addr) {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		for _, text := range addrs {
			prefix, err := netip.ParsePrefix(text.String())
			if err != nil {
				continue
			}
			a := prefix.Addr()
			if a.Is6() && a.IsLinkLocalUnicast() {
				a = a.WithZone(i.Name)
			}
			if _, ok := m.portOf(a); ok && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}
