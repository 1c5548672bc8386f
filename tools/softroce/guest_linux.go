package main

// This file is the tool inside a guest, where it is the first process: it sets
// the guest up, runs the command, and reports to the tool on the host.

import (
	"encoding/gob"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guestInit is the argument with which the tool is started in a guest.
const guestInit = "guest-init"

// guestConfig is what the host sends to a guest.
type guestConfig struct {
	Node    int
	Cables  int // to the other node, if any
	Args    []string
	Env     []string
	Dir     string
	Scratch string // mounted under the path it has on the host, unless empty
	Image   string // folder with the lib/modules of the kernel
}

// message is what host and guest send to each other over portAgent. It is encoded by
// package gob, for which strings are bytes: arguments need not be UTF-8.
type message struct {
	// From the host: Config, Start when all nodes are ready, and then any Signal for the command.
	Config *guestConfig
	Start  bool
	Signal int

	// From the guest: Ready, or why it Failed to be, then what the command writes to Stdout and Stderr, and
	// behind all that Ended with a Status.
	Ready          bool
	Failed         string
	Stdout, Stderr []byte
	Ended          bool
	Status         int
}

// Names of the virtio ports that join host and guest.
const (
	portAgent   = "softroce.agent"
	portControl = "softroce.control"
)

// Tags of the 9p file systems that the host offers.
const (
	tagHost    = "host"
	tagScratch = "scratch"
)

// guestMain runs the guest. It does not return: at its end it powers the guest off.
func guestMain() {
	err := guestLife()
	// This is in the console's log.
	fmt.Println("softroce: guest ends:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// guestLife sets the guest up and runs the command. The host ends the guest; if
// guestLife returns, that has failed.
func guestLife() error {
	if err := mountAll(); err != nil {
		return err
	}
	path, err := findPort(portAgent)
	if err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	agent := os.NewFile(uintptr(fd), path) // for blocking reads and writes
	from, to := gob.NewDecoder(agent), gob.NewEncoder(agent)
	var m message
	if err := from.Decode(&m); err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	config := m.Config
	env, err := setUp(config)
	if err != nil {
		return to.Encode(message{Failed: err.Error()})
	}
	if err := to.Encode(message{Ready: true}); err != nil {
		return err
	}
	if err := from.Decode(&m); err != nil {
		return fmt.Errorf("waiting for the start: %w", err)
	}
	stdout := writer(func(p []byte) error { return to.Encode(message{Stdout: p}) })
	stderr := writer(func(p []byte) error { return to.Encode(message{Stderr: p}) })
	signals := make(chan unix.Signal, 1)
	go listen(from, signals)
	status, err := runCommand(config, env, stdout, stderr, signals)
	if err != nil {
		fmt.Fprintln(stderr, "softroce:", err)
	}
	if err := leaveScratch(config); err != nil {
		return err
	}
	if err := to.Encode(message{Ended: true, Status: status}); err != nil {
		return err
	}
	// The host ends the guest when all nodes are done.
	select {}
}

// writer is an io.Writer that hands on all that is written to it.
type writer func(p []byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

// mountAll mounts the file systems that programs expect besides the host's.
func mountAll() error {
	for _, m := range []struct{ fstype, dir, data string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", "mode=755"},
		{"devpts", "/dev/pts", "ptmxmode=666,mode=620,gid=5"},
		{"tmpfs", "/dev/shm", "mode=1777"},
		{"tmpfs", "/run", "mode=755"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+target, "/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

// findPort returns the device of the virtio port of a name, which appears some time after its driver is
// there.
func findPort(name string) (path string, err error) {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		files, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == name {
				return "/dev/" + filepath.Base(filepath.Dir(file)), nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("there is no virtio port %s", name)
		}
	}
}

// setUp sets up the network, the devices and the files that the command expects, and returns
// the environment of the command.
func setUp(c *guestConfig) ([]string, error) {
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if err := unix.Sethostname(fmt.Appendf(nil, "node%d", c.Node)); err != nil {
		return nil, err
	}
	// modprobe looks there for the modules of this kernel.
	if err := os.MkdirAll("/lib/modules", 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount(filepath.Join(c.Image, "lib/modules"), "/lib/modules", "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount /lib/modules: %w", err)
	}
	found, err := makeDevices(c)
	if err != nil {
		return nil, err
	}
	env := append(c.Env, fmt.Sprintf("SOFTROCE_NODE=%d", c.Node))
	env = append(env, found.env()...)
	if c.Cables > 0 {
		control, err := findPort(portControl)
		if err != nil {
			return nil, err
		}
		env = append(env, "SOFTROCE_CONTROL="+control)
		for i := range c.Cables {
			v4, v6 := nodeAddrs(i, 1-c.Node)
			env = append(env, fmt.Sprint(prefixes[i], "PEER=", v4), fmt.Sprint(prefixes[i], "PEER6=", v6))
		}
	}
	if c.Scratch != "" {
		if err := unix.Mount(tagScratch, c.Scratch, "9p", 0, "trans=virtio,version=9p2000.L,msize=262144,cache=mmap"); err != nil {
			return nil, fmt.Errorf("mount %s: %w", c.Scratch, err)
		}
		env = append(env, "SOFTROCE_SCRATCH="+c.Scratch)
	}
	raiseLimits()
	// As under systemd: the kernel's own default is too low for a server.
	files := unix.Rlimit{Cur: 1024, Max: 524288}
	return env, unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
}

// listen receives signals for the command from the host and sends them to signals. It
// powers the guest off when the tool on the host is gone.
func listen(from *gob.Decoder, signals chan<- unix.Signal) {
	for {
		var m message
		if from.Decode(&m) != nil {
			_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
		}
		signals <- unix.Signal(m.Signal)
	}
}

// runCommand runs the command, passes on signals, and returns its exit status
// when it has ended, and all its children with it.
func runCommand(c *guestConfig, env []string, stdout, stderr io.Writer, signals <-chan unix.Signal) (int, error) {
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			os.Setenv("PATH", path)
		}
	}
	if err := os.Chdir(c.Dir); err != nil {
		return exitFailed, err
	}
	path, status, err := lookPath(c.Args[0])
	if err != nil {
		return status, err
	}
	// The command gets pipes: a port can be opened only once, so that
	// /dev/stdout would not work, and it takes no more than 32 KiB at once.
	cmd := &exec.Cmd{Path: path, Args: c.Args, Env: env, Stdout: stdout, Stderr: stderr, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if err := cmd.Start(); err != nil {
		return exitNotExecutable, err
	}
	go func() {
		for s := range signals {
			_ = unix.Kill(-cmd.Process.Pid, s)
		}
	}()
	status, err = reap(cmd.Process.Pid)
	// A process that still runs could hold the pipes open for ever.
	_ = unix.Kill(-1, unix.SIGKILL)
	_ = cmd.Wait() // for the output: it has been reaped
	return status, err
}

// reap waits for the process pid and returns its exit status. The first
// process of a system inherits all those whose parents have ended, and waits
// for them as well.
func reap(pid int) (int, error) {
	for {
		var ws syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return exitFailed, fmt.Errorf("wait: %w", err)
		case ended == pid:
			return exitStatus(ws), nil
		}
	}
}

// leaveScratch writes everything in the scratch folder to the host.
func leaveScratch(c *guestConfig) error {
	if c.Scratch == "" {
		return nil
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	unix.Sync()
	return unix.Unmount(c.Scratch, 0)
}
