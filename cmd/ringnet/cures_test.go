//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	lib "github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

// onHost has this process find the files of another host.
func onHost(t *testing.T, files map[string]string) {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	own := host.Root
	host.Root = host.Tree(root)
	t.Cleanup(func() { host.Root = own })
}

func TestCuresAreTheDistributions(t *testing.T) {
	for id, want := range map[string]string{"debian": "apt-get", "fedora": "dnf", "sles": "zypper", "alpine": "apk"} {
		onHost(t, map[string]string{"etc/os-release": "ID=" + id})
		require.Contains(t, cure("rdma", lib.ReasonNoLibrary), want)
	}
	onHost(t, map[string]string{"etc/os-release": "ID=ubuntu", "sys/bus/pci/drivers/mlx5_core/0000:3b:00.0/vendor": "0x15b3"})
	require.Contains(t, cure("rdma", lib.ReasonNoDevice), "modprobe mlx5_ib")
	require.Contains(t, cure("rdma", lib.ReasonNoDevice), "linux-modules-extra")
}

// Nothing is opened to all users, and where there is no card nothing slower than TCP is set up.
func TestNoCureOpensDevicesToAllOrSetsUpSoftRoCE(t *testing.T) {
	onHost(t, nil)
	all := []string{permit(host.Node{Err: syscall.EPERM}), permit(host.Node{Err: syscall.EACCES}), permit(host.Node{Err: syscall.EACCES, Group: "109"})}
	for code := range cures {
		all = append(all, cure("rdma", code), cure("shm", code))
	}
	for _, code := range []lib.ReasonCode{lib.ReasonNoLibrary, lib.ReasonNoDevice, lib.ReasonPermission} {
		all = append(all, cure("rdma", code))
	}
	for _, c := range all {
		require.NotEmpty(t, c)
		require.NotRegexp(t, `666|rxe`, c)
	}
}

func TestPermissionIsGivenByWhoDenies(t *testing.T) {
	onHost(t, map[string]string{"dev/infiniband/rdma_cm": "", "dev/infiniband/uverbs0": ""})
	require.Contains(t, cure("rdma", lib.ReasonPermission), "below 1024", "both files can be opened")
	onHost(t, map[string]string{"proc/self/attr/current": "system_u:system_r:container_t:s0:c1,c2"})
	require.Contains(t, permit(host.Node{Err: syscall.EACCES}), "setsebool -P container_use_devices 1")
	onHost(t, nil)
	require.NotContains(t, permit(host.Node{Err: syscall.EACCES}), "setsebool")
	require.Contains(t, permit(host.Node{Err: syscall.EACCES}), "/etc/udev/rules.d")
	require.Contains(t, permit(host.Node{Err: syscall.EACCES, Group: "109"}), "usermod --append --groups 109 ")
	require.Contains(t, permit(host.Node{Err: &os.PathError{Err: syscall.EPERM}}), "docker run --device /dev/infiniband", "a control group of devices denies")
}

// What keeps shared memory away is not cured by what RDMA wants.
func TestCuresOfSharedMemoryAreItsOwn(t *testing.T) {
	onHost(t, nil)
	for _, code := range []lib.ReasonCode{lib.ReasonUnsupported, lib.ReasonPermission, lib.ReasonSilent, lib.ReasonMemory} {
		require.NotEqual(t, cure("rdma", code), cure("shm", code), code)
		require.NotRegexp(t, "CGO_ENABLED|infiniband|rdma|4791", cure("shm", code))
	}
	var d diagnosis
	d.checkOffers(autoInfo{Offers: []string{"rdma", "tcp"}, PassedOver: []reason{{"shm", lib.ReasonPermission, "a sandbox refuses memfd_create"}}})
	d.requireBad(t, "shm", "a sandbox", "docker run --user UID")
	require.NotContains(t, mend(lib.Reason{Network: "shm", Code: lib.ReasonSilent, Err: errors.New("x")}), "nft")
}

func TestDoctorSaysWhyADeviceCannotBeUsed(t *testing.T) {
	for why, device := range map[string]host.Device{
		"an X722 of Intel":  {Name: "irdma0", Driver: "i40e", IWARP: true},
		"eRDMA":             {Name: "erdma_0", Driver: "erdma", IWARP: true},
		"a card of Chelsio": {Name: "cxgb4_0", Driver: "cxgb4", IWARP: true},
		"in software: siw":  {Name: "siw0", IWARP: true},
		"EFA has neither":   {Name: "rdmap0s6", Driver: "efa", NodeType: "unspecified"},
		"usNIC UDP":         {Name: "usnic_0", NodeType: "usNIC UDP"},
	} {
		d := diagnosis{Findings: checkDevice(device)}
		d.requireBad(t, device.Name, "cannot be used, because", "")
		require.Len(t, d.Findings, 1, "nothing is said of its ports")
		require.Contains(t, d.Findings[0].What, why)
	}
	require.Empty(t, unusable(host.Device{Name: "erdma_0", Driver: "erdma", NodeType: "CA"}), "of RoCE")
}

func TestDoctorKnowsDefectsOfProviders(t *testing.T) {
	onHost(t, map[string]string{
		"etc/os-release":      "ID=ubuntu",
		"proc/self/maps":      "0-1 r-xp 0 0:0 1 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0",
		"var/lib/dpkg/status": "Package: ibverbs-providers\nVersion: 50.0-2ubuntu0.2\n",
	})
	var d diagnosis
	d.checkDefects([]host.Device{{Name: "bnxt_re0", Driver: "bnxt_en"}, {Name: "mlx5_0", Driver: "mlx5_core"}})
	f := d.find(t, func(f finding) bool { return strings.Contains(f.What, "garbles inline data") })
	require.Equal(t, note, f.Status)
	require.Contains(t, f.What, "this rdma-core (50.0; ibverbs-providers 50.0-2ubuntu0.2)")
	require.Contains(t, f.Mend, "apt-get")
	require.Contains(t, f.Mend, "rdma-core 50.4 or newer")
	require.False(t, slices.ContainsFunc(d.Findings, func(f finding) bool { return f.Subject == "mlx5_0" }))
}
