package main

// This file adds siw, the kernel's software iWARP, to the kernel of guests. Debian
// leaves it out of its kernels but not of their source, of which it is built.

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Providers of the devices that are made here, as "rdma link add … type" names
// them: soft-RoCE and soft-iWARP.
const (
	rxe = "rxe"
	siw = "siw"
)

// siwPackages are needed to build siw, besides the kernel's own packages, which are
// unpacked and not installed.
var siwPackages = []string{"gcc", "libc6-dev", "make", "xz-utils"}

// addSiw adds siw to the modules of image, unless they have it.
func addSiw(ctx context.Context, cache string, image *guestImage) error {
	probe := exec.CommandContext(ctx, sbin("modprobe"), "-d", image.modules, "-S", image.release, "--show-depends", siw)
	if probe.Run() == nil {
		return nil
	}
	if err := install(ctx, siwPackages); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	module, err := buildSiw(ctx, image.release, tmp)
	if err != nil {
		return err
	}
	place := filepath.Join(image.modules, "lib", "modules", image.release, "updates")
	if err := os.MkdirAll(place, 0o755); err != nil {
		return err
	}
	if err := os.Rename(module, filepath.Join(place, "siw.ko")); err != nil {
		return err
	}
	_, err = output(exec.CommandContext(ctx, sbin("depmod"), "-b", image.modules, image.release))
	return err
}

// buildSiw builds the module for the kernel of that release in the folder dir,
// and returns its path there.
func buildSiw(ctx context.Context, release, dir string) (string, error) {
	headers := "linux-headers-" + release
	err := withLists(ctx, func() error {
		out, err := apt(ctx, "", "apt-cache", "depends", headers)
		if err != nil {
			return err
		}
		packages := append([]string{headers, kernelSource(release)}, headerDependencies(out)...)
		progress("building siw of %s (once)", strings.Join(packages, " "))
		_, err = apt(ctx, dir, "apt-get", append([]string{"download", "-q"}, packages...)...)
		return err
	})
	if err != nil {
		return "", err
	}
	// The source is an archive inside the package, a hundred times as large as siw's part
	// of it.
	const script = `set -e
for deb in linux-headers-*.deb linux-kbuild-*.deb; do dpkg -x "$deb" root; done
mkdir source
dpkg --fsys-tarfile linux-source-*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
	tar -xJ -C source --strip-components=1 --wildcards '*/drivers/infiniband/sw/siw/*'
sed -i "s|/usr/src|$PWD/root/usr/src|" "root/usr/src/$1/Makefile"
make -s -C "root/usr/src/$1" CC=gcc CONFIG_RDMA_SIW=m M="$PWD/source/drivers/infiniband/sw/siw" modules
strip --strip-debug -o siw.ko source/drivers/infiniband/sw/siw/siw.ko
`
	cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", headers)
	cmd.Dir = dir
	_, err = output(cmd)
	return filepath.Join(dir, "siw.ko"), err
}

// kernelSource is the package with the source of the kernel of that release.
func kernelSource(release string) string {
	return "linux-source-" + regexp.MustCompile(`^\d+\.\d+`).FindString(release)
}

// headerDependency matches packages that the headers of a kernel are parts of.
var headerDependency = regexp.MustCompile(`(?m)^ +Depends: (linux-(?:headers|kbuild)-[0-9]\S*)$`)

// headerDependencies returns those in the output of apt-cache depends.
func headerDependencies(out string) []string { return firstGroups(headerDependency, out) }
