package host

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/internal/provider"
)

// Version is one of rdma-core.
type Version = provider.Version

// Libraries are rdma-core's, as this process has them.
type Libraries struct {
	Version   Version
	Path      string            // of libibverbs
	Providers map[string]string // their paths, by name: mlx5
}

var (
	ibverbsFile  = regexp.MustCompile(`/libibverbs\.so\.1(\.[\d.]+)?$`)
	providerFile = regexp.MustCompile(`/lib(\w+)-rdmav\d+\.so$`)
)

// Libraries finds the libraries that this process has loaded, wherever they lie, and if it has loaded none those
// where distributions have them.
func (t Tree) Libraries() Libraries {
	l := Libraries{Providers: make(map[string]string)}
	for line := range strings.Lines(t.text("proc/self/maps")) {
		if f := strings.Fields(line); len(f) >= 6 {
			l.add(f[5])
		}
	}
	if l.Path != "" {
		return l
	}
	for _, place := range []string{"usr/lib/*-linux-gnu*", "usr/lib64", "usr/lib", "lib64", "lib", "usr/local/lib*"} {
		for _, pattern := range []string{"libibverbs.so.1.*", "libibverbs/lib*-rdmav*.so"} {
			found, _ := filepath.Glob(filepath.Join(string(t), place, pattern))
			for _, path := range found {
				l.add(path)
			}
		}
	}
	return l
}

func (l *Libraries) add(path string) {
	if ibverbsFile.MatchString(path) && l.Path == "" {
		l.Path, l.Version = path, provider.VersionOf(path)
	}
	if m := providerFile.FindStringSubmatch(path); m != nil && l.Providers[m[1]] == "" {
		l.Providers[m[1]] = path
	}
}

// packages are those that have the libraries, in one distribution or another, or tell of the drivers.
var packages = regexp.MustCompile(`^(rdma-core|rdma-core-libs|libibverbs1?|librdmacm1?|ibverbs-providers|lib(mlx4-|mlx5-|hns|mana|efa)1|mlnx-ofed-kernel(-dkms|-utils)?|mlnx-ofa_kernel)$`)

// Packages are the installed packages of rdma-core and of OFED, each with its version and the distribution's
// revision.
func (t Tree) Packages() (all []string) {
	add := func(name, version string) {
		if text := name + " " + version; packages.MatchString(name) && version != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	var name string
	for line := range strings.Lines(t.text("var/lib/dpkg/status")) { // Debian
		if value, ok := strings.CutPrefix(line, "Package: "); ok {
			name = strings.TrimSpace(value)
		} else if value, ok := strings.CutPrefix(line, "Version: "); ok {
			add(name, strings.TrimSpace(value))
		}
	}
	for _, file := range []string{"lib/apk/db/installed", "usr/lib/apk/db/installed"} { // Alpine
		for line := range strings.Lines(t.text(file)) {
			if value, ok := strings.CutPrefix(line, "P:"); ok {
				name = strings.TrimSpace(value)
			} else if value, ok := strings.CutPrefix(line, "V:"); ok {
				add(name, strings.TrimSpace(value))
			}
		}
	}
	for _, folder := range t.names("var/lib/pacman/local") { // Arch: NAME-VERSION-REVISION
		if i := strings.LastIndex(folder, "-"); i > 0 {
			if i = strings.LastIndex(folder[:i], "-"); i > 0 {
				add(folder[:i], folder[i+1:])
			}
		}
	}
	if t == "/" { // its database has no form of its own
		names := []string{"-q", "--qf", `%{NAME} %{VERSION}-%{RELEASE}\n`, "rdma-core", "libibverbs", "libibverbs1", "librdmacm", "librdmacm1", "mlnx-ofa_kernel"}
		for _, name := range ofProviders {
			names = append(names, name)
		}
		out, _ := exec.Command("rpm", names...).Output() // which fails for those that are not installed
		for line := range strings.Lines(string(out)) {
			name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
			add(name, version)
		}
	}
	return all
}
