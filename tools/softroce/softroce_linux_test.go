package main

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseGivesEachNodeItsCommand(t *testing.T) {
	for _, tt := range []struct {
		args string
		want [][]string
	}{
		{"-nodes 2 -- a b", [][]string{{"a", "b"}, {"a", "b"}}},
		{"-nodes 2 -- a b -- c", [][]string{{"a", "b"}, {"c"}}},
		{"-nodes 2 -- a -- b -- c", [][]string{{"a"}, {"b", "--", "c"}}},
	} {
		o, err := parse(strings.Fields(tt.args), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", tt.args, err)
		} else if !slices.EqualFunc(o.commands, tt.want, slices.Equal) {
			t.Errorf("%s: %q, want %q", tt.args, o.commands, tt.want)
		}
	}
}

func TestParseOfTheListOfKernelsNeedsNoCommand(t *testing.T) {
	if o, err := parse([]string{"-kernel", "list"}, io.Discard); err != nil || o.kernel != listKernels {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestParseRefusesNonsense(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", "no command"},
		{"-nodes 2 -- a --", "no command"},
		{"-nodes 3 -- a", "-nodes 3"},
		{"-cables 2 -- a", "-cables 2"},
		{"-nodes 2 -cables 3 -- a", "-cables 3"},
		{"-scratch /nonexistent -- a", "/nonexistent"},
		{"-scratch /dev/null -- a", "/dev/null"},
		{"-accel hvf -- a", "-accel hvf"},
		{"-kernel /etc -- a", "-kernel /etc"},
		{"-kernel TRIXIE -- a", "-kernel TRIXIE"},
		{"-kernel trixie", "no command"},
		{"-no-such-flag -- a", "no-such-flag"},
	} {
		if _, err := parse(strings.Fields(tt.args), io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one about %q", tt.args, err, tt.want)
		}
	}
}

func TestKernelPackageOfDistributions(t *testing.T) {
	for _, tt := range []struct{ name, release, want string }{
		{"Debian", "ID=debian\nVERSION_ID=\"12\"\n", "linux-image-amd64"},
		{"Ubuntu", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", "linux-image-generic"},
		{"Mint", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "linux-image-generic"},
	} {
		if got := kernelPackage(machines["amd64"], []byte(tt.release)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestKernelPartsOfDependencies(t *testing.T) {
	out := "linux-image-generic\n  Depends: linux-image-6.8.0-1-generic\n |Depends: linux-image-7-cloud\nlinux-image-6.8.0-1-generic\n" +
		"  Depends: linux-modules-6.8.0-1-generic\nlinux-image-unsigned-6.8.0-1-generic\nlinux-modules-6.8.0-1-generic\nlinux-modules-extra-6.8.0-1-generic\nkmod\n"
	want := []string{"linux-image-6.8.0-1-generic", "linux-modules-6.8.0-1-generic", "linux-modules-extra-6.8.0-1-generic"}
	if got := kernelParts.FindAllString(out, -1); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestInsmodPaths(t *testing.T) {
	out := "builtin crc32\ninsmod /a b/x.ko \ninsmod /a b/y.ko.xz numdummies=0\ninsmod /z.ko.zst\n"
	if got, want := insmodPaths(out), []string{"/a b/x.ko", "/a b/y.ko.xz", "/z.ko.zst"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// writeSysfs writes files below a new folder that is laid out like
// /sys/class/infiniband, and returns it.
func writeSysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	sys := t.TempDir()
	for name, data := range files {
		path := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

func TestFindDeviceTakesAnActivePortWithAnAddress(t *testing.T) {
	sys := writeSysfs(t, map[string]string{
		"down0/ports/1/state":              "1: DOWN\n",
		"down0/ports/1/gid_attrs/ndevs/0":  "eth0\n",
		"ipless0/ports/1/state":            "4: ACTIVE\n",
		"ipless0/device/net/ib0/x":         "",
		"mlx5_0/ports/1/state":             "4: ACTIVE\n",
		"mlx5_0/ports/1/gid_attrs/ndevs/0": "eth1\n",
		"mlx5_0/ports/1/gid_attrs/ndevs/1": "eth1\n",
	})
	up := map[string][]netip.Addr{}
	for netdev, list := range map[string]string{
		"lo": "127.0.0.1 ::1", "eth0": "10.0.0.1", "ib0": "fe80::1", "eth1": "fe80::2 10.0.1.1 10.0.1.2 fd00::1", "eth2": "10.0.2.1",
	} {
		for a := range strings.FieldsSeq(list) {
			up[netdev] = append(up[netdev], netip.MustParseAddr(a))
		}
	}
	want := []string{"SOFTROCE_DEVICE=mlx5_0", "SOFTROCE_NETDEV=eth1", "SOFTROCE_ADDR=10.0.1.1", "SOFTROCE_ADDR6=fd00::1", "SOFTROCE_OTHER_ADDR=10.0.2.1"}
	if got := findDevices(2, sys, up).env(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRequestsNobodyKnowsAreErrors(t *testing.T) {
	c := &cluster{nodes: []*node{{}}}
	for _, request := range []string{"cable", "power off 2", "power off", "power cycle 0", "Cable Down", "cable down now", "cable down -1"} {
		if err := c.do(c.nodes[0], request); err == nil {
			t.Errorf("%q is no error", request)
		}
	}
}
