package main

// This file starts a guest and has the host's ends of the sockets to it.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// vm is a guest. Its files are the host's ends of sockets whose other ends only QEMU has,
// so that they hang up when QEMU ends.
type vm struct {
	vmConfig
	cmd     *exec.Cmd
	console string // path of a log: the kernel's console
	errors  string // path of a log: QEMU's own complaints

	agent, stdout, stderr *os.File
	control, qmp          *os.File // only with cables

	qmpReader  *bufio.Reader
	negotiated bool // QEMU takes commands
}

// vmConfig says how to start a guest.
type vmConfig struct {
	node    int
	image   *guestImage
	scratch string
	cables  []*os.File // this guest's ends, if any, which QEMU inherits
	logs    string     // folder for logs
}

// startVM starts a guest. It must be called on the main thread: QEMU gets
// SIGKILL when the thread that has started it ends.
func startVM(c vmConfig) (*vm, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	v := &vm{
		vmConfig: c,
		console:  filepath.Join(c.logs, fmt.Sprintf("console%d.log", c.node)),
		errors:   filepath.Join(c.logs, fmt.Sprintf("qemu%d.log", c.node)),
	}
	attachments, theirs, err := v.attach()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(v.errors)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	v.cmd = exec.Command(c.image.machine.qemu, append(v.arguments(exe), attachments...)...)
	v.cmd.Stdout, v.cmd.Stderr = log, log
	v.cmd.ExtraFiles = theirs
	v.cmd.SysProcAttr = &syscall.SysProcAttr{
		// Signals of the terminal are for the tool, which passes them on.
		Setpgid:   true,
		Pdeathsig: unix.SIGKILL,
	}
	err = v.cmd.Start()
	for _, f := range theirs {
		if !slices.Contains(c.cables, f) {
			f.Close()
		}
	}
	return v, err
}

// arguments are QEMU's for the machine itself, in which exe, this program, is the first
// process.
func (v *vm) arguments(exe string) []string {
	m := v.image.machine
	args := append([]string{
		// A stock kernel hangs under the KVM of some machines that are
		// themselves virtual, so this does not even try.
		"-accel", "tcg,thread=multi", "-cpu", "max",
		"-m", "3G", "-smp", "2",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", v.image.kernel, "-initrd", v.image.initrd,
		// On a host with much to do the guest's timer may come so late that its kernel
		// takes it for broken, if it looks, and panics.
		"-append", fmt.Sprintf(`console=%s quiet panic=-1 mitigations=off no_timer_check audit=0 SOFTROCE_EXE="%s"`, m.console, exe),
		"-chardev", "file,id=console,path=" + escape(v.console), "-serial", "chardev:console",
		"-device", "virtio-rng-pci",
		"-virtfs", "local,path=/,mount_tag=" + tagHost + ",security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial-pci,max_ports=8",
	}, m.args...)
	if v.scratch != "" {
		args = append(args, "-virtfs", "local,path="+escape(v.scratch)+",mount_tag="+tagScratch+",security_model=none,multidevs=remap")
	}
	return args
}

// attach makes the sockets between the tool and the guest. It sets v's ends, and returns
// QEMU's, which QEMU inherits from descriptor 3 on, and QEMU's arguments for them. The
// caller closes them, except for the cables.
func (v *vm) attach() (args []string, theirs []*os.File, err error) {
	connect := func(ours **os.File, name string) (chardev string, err error) {
		var their *os.File
		if *ours, their, err = socketPair(name); err != nil {
			return "", err
		}
		theirs = append(theirs, their)
		return fmt.Sprintf("socket,id=%s,fd=%d", name, 2+len(theirs)), nil
	}
	type port struct {
		ours **os.File
		name string
	}
	ports := []port{{&v.agent, portAgent}, {&v.stdout, portStdout}, {&v.stderr, portStderr}}
	if len(v.cables) > 0 {
		ports = append(ports, port{&v.control, portControl})
	}
	for _, p := range ports {
		chardev, err := connect(p.ours, p.name)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, "-chardev", chardev, "-device", "virtserialport,chardev="+p.name+",name="+p.name)
	}
	if len(v.cables) > 0 {
		chardev, err := connect(&v.qmp, "qmp")
		if err != nil {
			return nil, nil, err
		}
		v.qmpReader = bufio.NewReader(v.qmp)
		args = append(args, "-chardev", chardev, "-mon", "chardev=qmp,mode=control")
	}
	for i, cable := range v.cables {
		theirs = append(theirs, cable)
		args = append(args,
			"-netdev", fmt.Sprintf("socket,id=cable%d,fd=%d", i, 2+len(theirs)),
			"-device", fmt.Sprintf("virtio-net-pci,id=nic%d,netdev=cable%d,mac=02:50:f7:a0:%02x:%02x,host_mtu=%d", i, i, 0xce+i, v.node+1, mtu))
	}
	return args, theirs, nil
}

// escape doubles the commas in a value of one of QEMU's options.
func escape(value string) string {
	return strings.ReplaceAll(value, ",", ",,")
}

// socketPair returns two connected sockets, the first for Go's poller.
func socketPair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// kill ends the guest at once and waits for its end. It may be called again.
func (v *vm) kill() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// swallow reads and drops, in the place of the killed guest, what comes over its cables. If
// it closed its ends instead, a QEMU at the other end that has sent a part of a packet,
// because the cable was full, would send neither the rest nor anything after it: the
// network interface of its guest would be stuck, as the power cut of another machine does
// not make it.
func (v *vm) swallow() error {
	for _, cable := range v.cables {
		if err := unix.SetNonblock(int(cable.Fd()), false); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		go func() { _, _ = io.Copy(io.Discard, cable) }()
	}
	return nil
}

// reset resets the guest's hardware. Until the guest has booted, its cables lead
// nowhere, and its firmware may reset it once more; later, a guest that resets
// itself has panicked, and ends.
func (v *vm) reset() error {
	return errors.Join(v.setBooted(false), v.execute("system_reset", nil))
}

// setBooted is called with false when a guest is reset, and with true when it has booted.
func (v *vm) setBooted(booted bool) error {
	onReboot := "reset"
	if booted {
		onReboot = "shutdown"
	}
	err := v.execute("set-action", map[string]any{"reboot": onReboot})
	for i := range v.cables {
		err = errors.Join(err, v.execute("set_link", map[string]any{"name": fmt.Sprint("cable", i), "up": booted}))
	}
	return err
}

// qmpTimeout bounds the wait for QEMU's answer to a command.
const qmpTimeout = 10 * time.Second

// setLink connects the guest's network interface to the cable of that number, or
// disconnects it.
func (v *vm) setLink(cable int, up bool) error {
	return v.execute("set_link", map[string]any{"name": fmt.Sprint("nic", cable), "up": up})
}

// execute has QEMU execute a command of its machine protocol, QMP.
func (v *vm) execute(command string, arguments map[string]any) error {
	if !v.negotiated {
		v.negotiated = true
		if err := v.execute("qmp_capabilities", nil); err != nil {
			return err
		}
	}
	if err := v.qmp.SetDeadline(time.Now().Add(qmpTimeout)); err != nil {
		return err
	}
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(v.qmp).Encode(request); err != nil {
		return err
	}
	for {
		line, err := v.qmpReader.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("QMP %s: %w", command, err)
		}
		var answer struct {
			Return *json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("QMP %s: %w", command, err)
		}
		if answer.Error != nil {
			return fmt.Errorf("QMP %s: %s", command, answer.Error.Desc)
		}
		// Other messages of QEMU's are its greeting and events.
		if answer.Return != nil {
			return nil
		}
	}
}

// guestError is a failure of a guest, with the ends of its logs. After one the logs are
// kept.
type guestError struct {
	err  error
	logs string
}

func (e *guestError) Error() string { return e.err.Error() + e.logs }
func (e *guestError) Unwrap() error { return e.err }

// explain returns err as a guestError, unless the guest's logs are empty.
func (v *vm) explain(err error) error {
	var logs string
	for _, path := range []string{v.errors, v.console} {
		if tail := lastLines(path, 50); tail != "" {
			logs += fmt.Sprintf("\n--- end of %s\n%s", path, tail)
		}
	}
	if logs == "" {
		return err
	}
	return &guestError{err, logs}
}

// lastLines returns the last n lines of a file, without control characters, which would
// command a terminal.
func lastLines(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r != 0x7f {
			return r
		}
		return -1
	}, string(data))
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
