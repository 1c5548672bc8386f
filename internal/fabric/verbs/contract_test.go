//go:build linux && cgo

package verbs

import (
	"net/netip"
	"testing"

	"github.com/ringnet/ringnet/internal/testing/fabrictest"
	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

func TestContract(t *testing.T) { fabrictest.Test(t, pair) }

func TestManagerContract(t *testing.T) {
	f, addr := onDevice(t)
	for _, at := range []netip.Addr{addr, rdmatest.Address(t, "SOFTROCE_ADDR6")} {
		t.Run(at.String(), func(t *testing.T) { fabrictest.Manager(t, f, at) })
	}
}
