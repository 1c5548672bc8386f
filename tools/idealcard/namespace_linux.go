package main

// This file runs the command in a mount namespace of its own, in which /sys/class/infiniband and
// /dev/infiniband say that there is a device.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// inside is the name under which this program starts itself in the namespace.
const inside = "idealcard-inside"

// The device, and what it counts.
const (
	device    = "ideal0"
	noReceive = "rcvd_rnr_err"
)

var counters = []string{noReceive, "cq_overruns"}

// describe makes the files that say what the device is, and its counters, in a folder that this
// process sees, too.
func describe(dir string) error {
	files := map[string]string{
		"node_type":          "1: CA",
		"ports/1/link_layer": "Ethernet",
		"ports/1/state":      "4: ACTIVE",
	}
	for _, name := range counters {
		files["ports/1/hw_counters/"+name] = "0"
	}
	errs := []error{os.MkdirAll(filepath.Join(dir, device, "ports/1/gid_attrs/ndevs"), 0o755)}
	for name, text := range files {
		path := filepath.Join(dir, device, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	return errors.Join(errs...)
}

// runInside runs the command in the namespace and returns its exit status.
func runInside(dir string, command, env []string) (int, error) {
	cmd, err := start(dir, command, env)
	if err != nil {
		return exitFailed, err
	}
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(caught)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-caught:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			return exitStatus(err)
		}
	}
}

// start starts this program in a new mount namespace: as root, or in a user namespace in which
// the user stays who he is.
func start(dir string, command, env []string) (*exec.Cmd, error) {
	asRoot := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	asUser := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUSER, Pdeathsig: unix.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	}
	var errs []error
	for _, attr := range []*syscall.SysProcAttr{asRoot, asUser} {
		cmd := &exec.Cmd{
			Path: "/proc/self/exe", Args: append([]string{inside, dir}, command...), Env: env,
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: attr,
		}
		err := cmd.Start()
		if err == nil {
			return cmd, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no mount namespace can be made here, neither as root (%w) nor in a user namespace (%w): "+
		"run it as root with CAP_SYS_ADMIN, or where users may make namespaces", errs[0], errs[1])
}

// enter makes the mounts, and becomes the command.
func enter(dir string, command []string) error {
	if err := mountDevice(dir); err != nil {
		return fmt.Errorf("%w: this system lets neither root nor users mount here", err)
	}
	// The command has no more rights than it would have had.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return err
	}
	return fmt.Errorf("%s: %w", path, unix.Exec(path, command, os.Environ()))
}

// mountDevice mounts a /sys/class and a /dev that have all that was there, and the device.
func mountDevice(dir string) error {
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	parts := filepath.Join(dir, "parts")
	if err := os.Mkdir(parts, 0o755); err != nil {
		return err
	}
	if err := mount("none", parts, "tmpfs", 0); err != nil {
		return err
	}
	class, dev := filepath.Join(parts, "class"), filepath.Join(parts, "dev")
	if err := errors.Join(mirror("/sys/class", class), mirror("/dev", dev)); err != nil {
		return err
	}
	if err := bind(filepath.Join(dir, device), filepath.Join(class, "infiniband", device), true); err != nil {
		return err
	}
	for _, name := range []string{"rdma_cm", "uverbs0"} {
		path := filepath.Join(dev, "infiniband", name)
		if err := errors.Join(os.WriteFile(path, nil, 0), os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	return errors.Join(mount(class, "/sys/class", "", unix.MS_BIND|unix.MS_REC), mount(dev, "/dev", "", unix.MS_BIND|unix.MS_REC))
}

// mirror makes a folder that has what another one has, but an empty folder infiniband.
func mirror(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "infiniband"), 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "infiniband" {
			continue
		}
		if err := mirrorOne(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()), e.Type()); err != nil {
			return err
		}
	}
	return nil
}

func mirrorOne(from, to string, kind fs.FileMode) error {
	if kind&fs.ModeSymlink == 0 {
		return bind(from, to, kind.IsDir())
	}
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return os.Symlink(target, to)
}

// bind mounts a folder or a file at another place, which it makes.
func bind(from, to string, isDir bool) (err error) {
	if isDir {
		err = os.Mkdir(to, 0o755)
	} else {
		err = os.WriteFile(to, nil, 0o644)
	}
	if err != nil {
		return err
	}
	return mount(from, to, "", unix.MS_BIND|unix.MS_REC)
}

func mount(from, to, kind string, flags uintptr) error {
	if err := unix.Mount(from, to, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", to, err)
	}
	return nil
}
