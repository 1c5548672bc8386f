package host

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a process has loaded counts for more than what lies where distributions have it.
func TestLibraries(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"usr/lib64/libibverbs.so.1.14.49.1":             "",
		"usr/lib64/libibverbs/libbnxt_re-rdmav34.so":    "",
		"usr/lib64/libibverbs.so.1":                     "",
		"usr/lib64/libibverbs/libmlx5-rdmav34.so.weird": "",
	})
	l := Tree(root).Libraries()
	require.Equal(t, Version{49, 1}, l.Version)
	require.Contains(t, l.Providers["bnxt_re"], "libbnxt_re-rdmav34.so")
	require.Len(t, l.Providers, 1)

	write(t, root, map[string]string{"proc/self/maps": "7f00-7f01 r-xp 00000000 08:01 1    /nix/store/x-rdma-core-56.1/lib/libibverbs.so.1.15.56.1\n" +
		"7f02-7f03 r-xp 00000000 08:01 2    /nix/store/x-rdma-core-56.1/lib/libibverbs/libmlx5-rdmav57.so\n7f04-7f05 rw-p 00000000 00:00 0\n"})
	l = Tree(root).Libraries()
	require.Equal(t, Libraries{Version{56, 1}, "/nix/store/x-rdma-core-56.1/lib/libibverbs.so.1.15.56.1",
		map[string]string{"mlx5": "/nix/store/x-rdma-core-56.1/lib/libibverbs/libmlx5-rdmav57.so"}}, l)

	write(t, root, map[string]string{"proc/self/maps": "7f00-7f01 r-xp 00000000 08:01 1    /opt/bin/card/libibverbs.so.1\n"})
	require.Zero(t, Tree(root).Libraries().Version, "is not known")
}

func TestPackagesHaveTheirRevisions(t *testing.T) {
	for name, file := range map[string][3]string{
		"Debian": {"var/lib/dpkg/status", "Package: ibverbs-providers\nStatus: install ok installed\nVersion: 50.0-2ubuntu0.2\n\nPackage: ibverbs-utils\nVersion: 1\n", "ibverbs-providers 50.0-2ubuntu0.2"},
		"Alpine": {"lib/apk/db/installed", "C:Q1=\nP:rdma-core\nV:54.0-r1\n\nP:musl\nV:1\n", "rdma-core 54.0-r1"},
		"Arch":   {"var/lib/pacman/local/rdma-core-56.1-1/desc", "", "rdma-core 56.1-1"},
		"OFED":   {"var/lib/dpkg/status", "Package: mlnx-ofed-kernel-dkms\nVersion: 24.10.OFED.24.10.1.1.4.1-1\n", "mlnx-ofed-kernel-dkms 24.10.OFED.24.10.1.1.4.1-1"},
	} {
		root := t.TempDir()
		write(t, root, map[string]string{file[0]: file[1]})
		require.Equal(t, []string{file[2]}, Tree(root).Packages(), name)
	}
}

func TestDefectsAreThoseOfTheVersionAndTheDriver(t *testing.T) {
	has := func(driver, part string, v Version) bool {
		for _, x := range (Libraries{Version: v}).Defects(Device{Driver: driver}, false) {
			if x.Commit == part {
				return true
			}
		}
		return false
	}
	const push, length, table, mask, wqe, status, empty = "9558f227b", "68f59cd6b", "65197a494", "cfba7251f", "15adbcf23", "7f9761eb5", "b8e99f551"
	for _, x := range []struct {
		driver, commit string
		with, without  []Version
	}{
		{"bnxt_en", push, []Version{{47, 0}, {47, 5}, {49, 1}, {50, 0}, {54, 0}, {56, 0}}, []Version{{46, 9}, {47, 6}, {50, 4}, {56, 1}, {57, 0}, {64, 0}}},
		{"bnxt_en", length, []Version{{47, 0}, {49, 8}}, []Version{{46, 0}, {50, 0}, {51, 0}}},
		{"bnxt_en", table, []Version{{50, 0}, {51, 0}}, []Version{{49, 8}, {50, 1}, {51, 1}, {52, 0}}},
		{"bnxt_en", mask, []Version{{44, 0}, {63, 0}}, []Version{{63, 1}, {64, 0}}},
		{"hns3", wqe, []Version{{39, 0}, {44, 0}, {50, 0}, {56, 1}, {60, 0}}, []Version{{38, 9}, {44, 11}, {56, 3}, {61, 0}}},
		{"ice", status, []Version{{37, 0}, {39, 0}, {43, 12}}, []Version{{44, 0}}},
		{"mana", empty, []Version{{50, 0}, {53, 2}}, []Version{{53, 3}, {57, 0}}},
	} {
		for _, v := range x.with {
			require.True(t, has(x.driver, x.commit, v), "%s %v", x.commit, v)
			require.False(t, has("mlx5_core", x.commit, v))
		}
		for _, v := range append(x.without, Version{}) {
			require.False(t, has(x.driver, x.commit, v), "%s %v", x.commit, v)
		}
	}
	require.Empty(t, Libraries{Version: Version{28, 0}}.Defects(Device{Driver: "mlx5_core"}, false))
	require.Len(t, Libraries{Version: Version{28, 0}}.Defects(Device{Driver: "mlx5_core"}, true), 1)
	require.Empty(t, Libraries{Version: Version{33, 0}}.Defects(Device{Driver: "mlx5_core"}, true))
}

func TestFixIsTheNextRelease(t *testing.T) {
	l := Libraries{Version: Version{50, 0}}
	all := l.Defects(Device{Driver: "bnxt_en"}, false)
	require.Equal(t, "rdma-core 50.4 or newer, or a revision of the distribution's that has 9558f227b", all[0].Fix(l.Version))
	require.Contains(t, all[2].Fix(Version{44, 0}), "rdma-core 64.0 or newer", "44 has no release with it")
	l.Version = Version{49, 1}
	require.Contains(t, l.Defects(Device{Driver: "bnxt_en"}, false)[1].Fix(l.Version), "rdma-core 50.0 or newer")
}

func TestLibrariesThatAreTooOldForADevice(t *testing.T) {
	l := Libraries{Version: Version{44, 0}}
	for _, d := range []Device{{Driver: "ionic"}, {Driver: "bnxt_en", PCI: "0x14e4:0x1760"}} {
		_, old := l.TooOld(d)
		require.True(t, old, d)
	}
	for _, d := range []Device{{Driver: "mlx5_core"}, {Driver: "bnxt_en", PCI: "0x14e4:0x1750"}, {Driver: "mana"}} {
		_, old := l.TooOld(d)
		require.False(t, old, d)
	}
	_, old := Libraries{}.TooOld(Device{Driver: "ionic"})
	require.False(t, old, "is not known")
}

func TestInstallIsTheDistributionsCommand(t *testing.T) {
	for release, want := range map[string]string{
		"ID=debian": "apt-get ", "ID=ubuntu\nID_LIKE=debian": "apt-get ", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"": "apt-get ",
		"ID=\"rhel\"\nID_LIKE=\"fedora\"": "dnf ", "ID=rocky\nID_LIKE=\"rhel centos fedora\"": "dnf ", "ID=amzn\nID_LIKE=fedora": "dnf ", "ID=ol\nID_LIKE=fedora": "dnf ",
		"ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"": "libmlx5-1", "ID=sles\nID_LIKE=suse": "zypper ",
		"ID=alpine": "apk ", "ID=arch": "pacman ", "ID=talos": "install rdma-core: ",
	} {
		root := t.TempDir()
		write(t, root, map[string]string{"etc/os-release": release})
		require.Contains(t, Tree(root).Install("mlx5"), want, release)
	}
	require.Contains(t, Tree(t.TempDir()).Install(""), "install rdma-core", "a container of nothing")
}

func TestMissingModule(t *testing.T) {
	root := t.TempDir()
	require.Empty(t, Tree(root).MissingModule())
	write(t, root, map[string]string{"sys/bus/pci/drivers/bnxt_en/bind": "", "sys/bus/pci/drivers/ice/0000:3b:00.0/vendor": ""})
	require.Equal(t, "irdma", Tree(root).MissingModule())
}
