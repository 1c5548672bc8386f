package main

// This file makes what guests boot from, of packages of the distribution, and keeps it in a cache.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// machine is what guests of one architecture need.
type machine struct {
	qemu    string   // program
	pkg     string   // package that has the program
	args    []string // arguments that every guest gets
	console string   // name of the first serial port
	kernel  string   // Debian's name for the architecture's kernel package
}

var machines = map[string]machine{
	"amd64": {qemu: "qemu-system-x86_64", pkg: "qemu-system-x86", console: "ttyS0", kernel: "linux-image-amd64"},
	"arm64": {qemu: "qemu-system-aarch64", pkg: "qemu-system-arm", args: []string{"-machine", "virt"}, console: "ttyAMA0", kernel: "linux-image-arm64"},
}

// image is a folder with the kernel "vmlinuz" for a machine, the initial file system "initrd", and
// "lib/modules".
type image struct {
	machine machine
	dir     string
}

// Modules that are loaded before the guest has its files: those for the file system, the virtio ports, the
// network and soft-RoCE, and before them those that not all kernels have, or have built in.
var (
	optionalModules = []string{"crc32_generic", "virtio_rng", "veth", "sch_netem"}
	earlyModules    = []string{
		"virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console",
		"virtio_net", "dummy", "rdma_rxe", "rdma_ucm", "ib_uverbs",
	}
)

// packages are the programs and libraries that commands expect where there is an RDMA device, and what an
// image is made with. The utilities bring libibverbs and librdmacm with them, whose packages have different
// names in different releases.
var packages = []string{
	"iproute2", "ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "perftest", "libibverbs-dev", "librdmacm-dev",
	"busybox-static", "kmod", "xz-utils", "zstd",
}

//go:embed init.sh
var initScript []byte

// thisMachine returns what guests of this host's architecture need.
func thisMachine() (machine, error) {
	m, ok := machines[runtime.GOARCH]
	if !ok {
		return m, fmt.Errorf("there is no guest for %s: only for amd64 and arm64", runtime.GOARCH)
	}
	return m, nil
}

// prepare returns the image from which guests boot, with the kernel of that name: see getKernel. If the cache
// does not have it, prepare makes it. The cache keeps its kernel when the distribution publishes a newer one.
func prepare(ctx context.Context, kernel string) (*image, error) {
	m, err := thisMachine()
	if err != nil {
		return nil, err
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(caches, "ringnet-softroce")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(cache, "lock"))
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return nil, fmt.Errorf("waiting for another run to unlock %s: %w", lock, cmp.Or(context.Cause(ctx), err))
	}
	defer lock.Close()
	// Other users' PATH often leaves out where modprobe and depmod are.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if err := install(ctx, append(packages, m.pkg)); err != nil {
		return nil, err
	}
	distribution, _ := os.ReadFile("/etc/os-release")
	of := fmt.Sprint(string(distribution), string(initScript), optionalModules, earlyModules)
	name := strings.TrimSuffix(m.kernel+"-"+kernel, "-")
	i := &image{m, filepath.Join(cache, fmt.Sprintf("%s-%x", name, sha256.Sum256([]byte(of))))}
	if _, err := os.Stat(i.dir); err == nil {
		return i, nil
	}
	made := filepath.Join(cache, "unfinished") // perhaps of a run that was killed
	if err := errors.Join(os.RemoveAll(made), os.Mkdir(made, 0o755)); err != nil {
		return nil, err
	}
	release, err := getKernel(ctx, m, kernel, distribution, made)
	if err != nil {
		return nil, fmt.Errorf("getting a kernel: %w", err)
	}
	if err := makeInitrd(ctx, made, release); err != nil {
		return nil, fmt.Errorf("making the initial file system: %w", err)
	}
	return i, os.Rename(made, i.dir)
}

// makeInitrd makes the initial file system of the kernel in dir: busybox, init.sh, and modules whose names
// begin with numbers, so that they sort in the order in which to load them.
func makeInitrd(ctx context.Context, dir, release string) error {
	tree := filepath.Join(dir, "tree")
	defer os.RemoveAll(tree)
	busybox, err := os.ReadFile("/bin/busybox")
	for _, folder := range []string{"bin", "modules", "host", "memory", "root"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(tree, folder), 0o755))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(tree, "bin/busybox"), busybox, 0o755), os.WriteFile(filepath.Join(tree, "init"), initScript, 0o755))
	if err != nil {
		return err
	}
	var files []string
	for _, name := range slices.Concat(optionalModules, earlyModules) {
		out, err := output(exec.CommandContext(ctx, "modprobe", "-d", dir, "-S", release, "--show-depends", name))
		if err != nil && !slices.Contains(optionalModules, name) {
			return err
		}
		files = append(files, insmodPaths(out)...)
	}
	for i, path := range files {
		if slices.Contains(files[:i], path) {
			continue
		}
		module, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tree, "modules", fmt.Sprintf("%03d", i)), module, 0o644); err != nil {
			return err
		}
	}
	pack := exec.CommandContext(ctx, "sh", "-c", "find . | busybox cpio -o -H newc >../initrd")
	pack.Dir = tree
	_, err = output(pack)
	return err
}

// insmodLine matches a file that modprobe --show-depends says to insert; options
// may follow. It also names modules that are built in.
var insmodLine = regexp.MustCompile(`(?m)^insmod (.*?\.ko(?:\.[a-z]+)?)(?: .*)?$`)

// insmodPaths returns the files in the output of modprobe --show-depends.
func insmodPaths(out string) (paths []string) {
	for _, m := range insmodLine.FindAllStringSubmatch(out, -1) {
		paths = append(paths, m[1])
	}
	return paths
}

// readModule returns a module, uncompressed: busybox knows no compression.
func readModule(ctx context.Context, path string) ([]byte, error) {
	unpack := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(path)]
	if unpack == "" {
		return os.ReadFile(path)
	}
	out, err := output(exec.CommandContext(ctx, unpack, "-dc", path))
	return []byte(out), err
}

// install installs those of the packages that are not installed.
func install(ctx context.Context, packages []string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("there is no RDMA device here, and making one takes Debian's or Ubuntu's packages: apt-get not found")
	}
	args := append([]string{"-W", "-f", "${Package} ${db:Status-Status}\n"}, packages...)
	// Its exit status is not 0 if it does not know one of them.
	out, _ := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	lines := strings.Split(string(out), "\n")
	missing := slices.DeleteFunc(packages, func(p string) bool { return slices.Contains(lines, p+" installed") })
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing; this command installs them:\n\tsudo apt-get update && sudo apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	progress("installing %s", strings.Join(missing, " "))
	updateLists(ctx)
	_, err := apt(ctx, "", "apt-get", append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)...)
	return err
}

// updateLists updates the lists of available packages, which only root can: there may be none, and those that
// are too old name packages that are gone. If it fails, those that there are may do.
func updateLists(ctx context.Context) {
	if os.Geteuid() == 0 {
		_, _ = apt(ctx, "", "apt-get", "update", "-q")
	}
}

// apt runs one of apt's programs in dir and returns its output. It waits for
// others who are installing something, and never asks anything.
func apt(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	// When time is over, apt gets a chance to leave the packages in order.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := output(cmd)
	if err != nil && os.Geteuid() != 0 {
		err = fmt.Errorf("%w\nif apt's lists are missing or old, this helps: sudo apt-get update", err)
	}
	return out, err
}

// output runs cmd and returns its standard output. The error has its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// progress tells the user about something that takes time and is done once.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "softroce: "+format+"\n", args...)
}
