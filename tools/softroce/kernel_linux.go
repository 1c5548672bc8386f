package main

// This file keeps the kernel and the initial file system of guests in a cache. The name
// of an entry is made from everything that the entry is made of, and an entry gets it when
// it is complete.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/gofrs/flock"
)

// guestImage is what a guest boots from.
type guestImage struct {
	machine machine
	kernel  string // path of the kernel
	initrd  string // path of the initial file system
	modules string // folder with lib/modules, as modprobe -d takes it
	release string // of the kernel, as uname -r has it
}

// kernelLayout is increased whenever the result of unpackKernel changes.
const kernelLayout = "1"

// earlyModules are loaded before the guest has its files: first those for the file
// system, then those for the virtio ports, the network and soft-RoCE.
var earlyModules = []string{
	"virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console",
	"virtio_rng", "virtio_net", "dummy", "veth", "sch_netem",
	"crc32_generic", "rdma_rxe", "rdma_ucm", "ib_uverbs",
}

// optionalModules are those of earlyModules that newer kernels do not have, because they
// have checksums built in.
var optionalModules = map[string]bool{"crc32_generic": true, "virtio_rng": true, "veth": true, "sch_netem": true}

//go:embed init.sh
var initScript []byte

// prepare returns the image from which guests boot. If the cache does not have it, prepare
// makes it.
func prepare(ctx context.Context) (*guestImage, error) {
	m, err := thisMachine()
	if err != nil {
		return nil, err
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(dir, "ringnet-softroce")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	// The lock is held, so entries with temporary names are left over from runs that were
	// killed.
	if stale, err := filepath.Glob(filepath.Join(cache, "tmp-*")); err == nil {
		for _, path := range stale {
			os.RemoveAll(path)
		}
	}
	if err := install(ctx, guestPackages(m)); err != nil {
		return nil, err
	}
	image, err := cachedKernel(ctx, cache, m, thisDistribution())
	if err != nil {
		return nil, fmt.Errorf("getting a kernel: %w", err)
	}
	if image.initrd, err = cachedInitrd(ctx, cache, image); err != nil {
		return nil, fmt.Errorf("making the initial file system: %w", err)
	}
	return image, nil
}

// lock waits for an exclusive lock on the file at path, which it creates.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f := flock.New(path)
	if _, err := f.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return nil, fmt.Errorf("waiting for another run to unlock %s: %w", path, cmp.Or(context.Cause(ctx), err))
	}
	return func() { f.Close() }, nil
}

// cacheKey returns a short name for something made from parts.
func cacheKey(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// cachedKernel returns the kernel in the cache, or downloads one. The cache keeps its
// kernel when the distribution publishes a newer one.
func cachedKernel(ctx context.Context, cache string, m machine, d distribution) (*guestImage, error) {
	source := kernelPackage(m, d)
	key := cacheKey(kernelLayout, source, d.name)
	dir := filepath.Join(cache, "kernel-"+key)
	if _, err := os.Stat(dir); err != nil {
		err := build(cache, dir, func(tmp string) error { return unpackKernel(ctx, source, tmp) })
		if err != nil {
			return nil, err
		}
	}
	kernel, release, err := kernelIn(dir)
	if err != nil {
		return nil, fmt.Errorf("%w; remove the folder and try again", err)
	}
	return &guestImage{machine: m, kernel: kernel, modules: dir, release: release}, nil
}

// kernelIn returns the path of the kernel that was unpacked into a folder, and its release.
func kernelIn(dir string) (path, release string, err error) {
	kernels, _ := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		return "", "", fmt.Errorf("%s should have one boot/vmlinuz-* but has %d", dir, len(kernels))
	}
	return kernels[0], strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-"), nil
}

// build makes a folder with the given path. If make fails, the folder does not exist.
func build(cache, path string, fill func(tmp string) error) error {
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// unpackKernel downloads the packages of the kernel that the package source
// stands for, and unpacks them into dir without installing them.
func unpackKernel(ctx context.Context, source, dir string) error {
	var packages []string
	err := withLists(ctx, func() (err error) {
		if packages, err = kernelPackages(ctx, source); err != nil {
			return err
		}
		progress("downloading %s (once)", strings.Join(packages, " "))
		_, err = apt(ctx, dir, "apt-get", append([]string{"download", "-q"}, packages...)...)
		return err
	})
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(archives) == 0 {
		return fmt.Errorf("apt-get download %s left nothing", strings.Join(packages, " "))
	}
	for _, archive := range archives {
		if _, err := output(exec.CommandContext(ctx, "dpkg", "-x", archive, dir)); err != nil {
			return err
		}
		if err := os.Remove(archive); err != nil {
			return err
		}
	}
	// Debian's packages have come to use /usr/lib/modules; depmod and modprobe
	// look in the one folder or in the other, depending on their age.
	usr := filepath.Join(dir, "usr", "lib")
	if _, err = os.Stat(filepath.Join(usr, "modules")); err == nil {
		err = os.Symlink("usr/lib", filepath.Join(dir, "lib"))
	} else if err = os.MkdirAll(usr, 0o755); err == nil {
		err = os.Symlink("../../lib/modules", filepath.Join(usr, "modules"))
	}
	if err != nil {
		return err
	}
	_, release, err := kernelIn(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(packages, " "), err)
	}
	_, err = output(exec.CommandContext(ctx, "depmod", "-b", dir, release))
	return err
}

// kernelPackages returns the packages with the files of the kernel that the
// package source stands for: the image, and the modules where they are apart.
func kernelPackages(ctx context.Context, source string) ([]string, error) {
	var found []string
	seen := map[string]bool{}
	for queue := []string{source}; len(queue) > 0; queue = queue[1:] {
		out, err := apt(ctx, "", "apt-cache", "depends", queue[0])
		if err != nil {
			return nil, err
		}
		for _, name := range kernelDependencies(out) {
			if !seen[name] {
				seen[name] = true
				found = append(found, name)
				queue = append(queue, name)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s depends on no kernel, says apt-cache", source)
	}
	return found, nil
}

// kernelDependency matches packages of one kernel version, such as
// linux-image-6.1.0-9-amd64.
var kernelDependency = regexp.MustCompile(`(?m)^ +Depends: (linux-(?:image|modules|modules-extra)-[0-9]\S*)$`)

// kernelDependencies returns the packages of a kernel in the output of
// apt-cache depends.
func kernelDependencies(out string) []string { return firstGroups(kernelDependency, out) }

// firstGroups returns what the first group of re has matched, of each match in text.
func firstGroups(re *regexp.Regexp, text string) []string {
	var groups []string
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		groups = append(groups, m[1])
	}
	return groups
}

// cachedInitrd returns the path of the initial file system for the kernel of
// image, and makes it when the cache has none.
func cachedInitrd(ctx context.Context, cache string, image *guestImage) (string, error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", err
	}
	key := cacheKey(image.modules, image.release, string(initScript), string(busybox), strings.Join(earlyModules, " "))
	path := filepath.Join(cache, "initrd-"+key)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	files, err := moduleFiles(ctx, image)
	if err != nil {
		return "", err
	}
	var archive bytes.Buffer
	if err := writeInitrd(&archive, busybox, files); err != nil {
		return "", err
	}
	tmp := filepath.Join(cache, "tmp-"+filepath.Base(path))
	if err := os.WriteFile(tmp, archive.Bytes(), 0o644); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// moduleFile is a kernel module as insmod takes it.
type moduleFile struct {
	name string
	data []byte
}

// moduleFiles returns earlyModules and what they need, in the order in which
// to load them.
func moduleFiles(ctx context.Context, image *guestImage) ([]moduleFile, error) {
	var files []moduleFile
	seen := map[string]bool{}
	for _, name := range earlyModules {
		out, err := output(exec.CommandContext(ctx, sbin("modprobe"), "-d", image.modules, "-S", image.release, "--show-depends", name))
		if err != nil {
			if optionalModules[name] {
				continue
			}
			return nil, err
		}
		for _, path := range insmodPaths(out) {
			if seen[path] {
				continue
			}
			seen[path] = true
			data, err := readModule(ctx, path)
			if err != nil {
				return nil, err
			}
			base, _, _ := strings.Cut(filepath.Base(path), ".")
			files = append(files, moduleFile{base, data})
		}
	}
	return files, nil
}

// insmodLine matches a file that modprobe --show-depends says to insert; options
// may follow. It also names modules that are built in.
var insmodLine = regexp.MustCompile(`(?m)^insmod (.*?\.ko(?:\.[a-z]+)?)(?: .*)?$`)

// insmodPaths returns the files in the output of modprobe --show-depends.
func insmodPaths(out string) []string { return firstGroups(insmodLine, out) }

// readModule returns a module, uncompressed: busybox knows no compression.
func readModule(ctx context.Context, path string) ([]byte, error) {
	var unpack string
	switch filepath.Ext(path) {
	case ".xz":
		unpack = "xz"
	case ".zst":
		unpack = "zstd"
	case ".gz":
		unpack = "gzip"
	default:
		return os.ReadFile(path)
	}
	out, err := output(exec.CommandContext(ctx, unpack, "-dc", path))
	return []byte(out), err
}

// writeInitrd writes the initial file system: busybox, init.sh and modules,
// whose names begin with numbers so that they sort in the order to load them.
func writeInitrd(w io.Writer, busybox []byte, modules []moduleFile) error {
	c := cpio.NewWriter(w)
	entry := func(name string, mode cpio.FileMode, data []byte) error {
		if err := c.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := c.Write(data)
		return err
	}
	var errs []error
	for _, dir := range []string{"bin", "modules", "host", "memory", "root"} {
		errs = append(errs, entry(dir, cpio.TypeDir|0o755, nil))
	}
	errs = append(errs, entry("bin/busybox", cpio.TypeReg|0o755, busybox), entry("init", cpio.TypeReg|0o755, initScript))
	for i, m := range modules {
		errs = append(errs, entry(fmt.Sprintf("modules/%03d-%s", i, m.name), cpio.TypeReg|0o644, m.data))
	}
	return errors.Join(append(errs, c.Close())...)
}

// sbin returns the path of a program for administrators, which the PATH of
// other users often leaves out.
func sbin(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	return "/usr/sbin/" + program
}
