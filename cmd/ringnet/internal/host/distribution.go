package host

import (
	"path/filepath"
	"slices"
	"strings"
)

// Release is a field of os-release(5): PRETTY_NAME, ID.
func (t Tree) Release(field string) string {
	for _, file := range []string{"etc/os-release", "usr/lib/os-release"} {
		for line := range strings.Lines(t.text(file)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+"="); ok {
				return strings.Trim(value, `"'`)
			}
		}
	}
	return ""
}

// family is the distribution, or one that it is like, among some.
func (t Tree) family(known ...string) string {
	for _, word := range append([]string{t.Release("ID")}, strings.Fields(t.Release("ID_LIKE"))...) {
		if word, _, _ = strings.Cut(word, "-"); slices.Contains(known, word) { // opensuse-leap
			return word
		}
	}
	return ""
}

// ofProviders are packages of SUSE's that have one provider. The others are in libibverbs.
var ofProviders = map[string]string{"mlx4": "libmlx4-1", "mlx5": "libmlx5-1", "hns": "libhns1", "mana": "libmana1", "efa": "libefa1"}

// Install is the command that installs rdma-core with a provider, or "" if which it is is not known, or brings it
// up to date.
func (t Tree) Install(provider string) string {
	switch t.family("debian", "ubuntu", "rhel", "fedora", "centos", "amzn", "suse", "opensuse", "sles", "alpine", "arch") {
	case "debian", "ubuntu":
		return "apt-get update && apt-get install libibverbs1 librdmacm1 ibverbs-providers"
	case "rhel", "fedora", "centos", "amzn":
		return "dnf install libibverbs librdmacm rdma-core && dnf upgrade libibverbs librdmacm rdma-core"
	case "suse", "opensuse", "sles":
		return strings.TrimSpace("zypper install rdma-core libibverbs libibverbs1 librdmacm1 " + ofProviders[provider])
	case "alpine":
		return "apk add --upgrade rdma-core so:libibverbs.so.1 so:librdmacm.so.1"
	case "arch":
		return "pacman -Syu rdma-core"
	}
	return "install rdma-core: libibverbs, librdmacm and its providers"
}

// modules are the kernel's modules for RDMA, by the drivers of cards that have a driver of their own for Ethernet.
var modules = [][2]string{
	{"mlx5_core", "mlx5_ib"}, {"mlx4_core", "mlx4_ib"}, {"bnxt_en", "bnxt_re"}, {"ice", "irdma"}, {"qede", "qedr"},
	{"hns3", "hns_roce_hw_v2"}, {"mana", "mana_ib"}, {"ionic", "ionic_rdma"},
}

// MissingModule is the module of a card that this host has, and that may not be loaded: "" if there is no such card.
func (t Tree) MissingModule() string {
	for _, m := range modules {
		if found, _ := filepath.Glob(filepath.Join(string(t), "sys/bus/pci/drivers", m[0], "*:*:*.*")); len(found) > 0 {
			return m[1]
		}
	}
	return ""
}

// ConfinedBySELinux reports whether SELinux confines this process as it confines containers: it keeps devices from
// them, unless container_use_devices is on. A container sees nothing of SELinux's own files.
func (t Tree) ConfinedBySELinux() bool {
	return strings.Contains(t.text("proc/self/attr/current"), ":container_t:")
}
