package main

// This file starts a guest and has the host's ends of the sockets to it.

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// vm is a guest. Its files are the host's ends of sockets whose other ends only QEMU has,
// so that they hang up when QEMU ends.
type vm struct {
	cmd          *exec.Cmd
	log          *os.File // the kernel's console, and QEMU's own complaints
	agent        *os.File
	control, qmp *os.File      // only with cables
	answers      *json.Decoder // of qmp
}

// startVM starts the guest of a node. It must be called on the main thread: QEMU gets
// SIGKILL when the thread that has started it ends. cables are the node's ends of its cables, if any.
func startVM(node int, image *image, accel accel, scratch string, cables []*os.File) (*vm, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	v := &vm{}
	if v.log, err = os.CreateTemp("", "softroce"); err != nil {
		return nil, err
	}
	os.Remove(v.log.Name())
	v.cmd = exec.Command(image.machine.qemu, arguments(image, accel, exe, scratch)...)
	v.cmd.Stdout, v.cmd.Stderr = v.log, v.log
	v.cmd.SysProcAttr = &syscall.SysProcAttr{
		// Signals of the terminal are for the tool, which passes them on.
		Setpgid:   true,
		Pdeathsig: unix.SIGKILL,
	}
	if v.agent, err = v.attach(portAgent); err != nil {
		return nil, err
	}
	v.add("-device", "virtserialport,chardev="+portAgent+",name="+portAgent)
	if len(cables) > 0 {
		if v.control, err = v.attach(portControl); err != nil {
			return nil, err
		}
		if v.qmp, err = v.attach("qmp"); err != nil {
			return nil, err
		}
		v.answers = json.NewDecoder(v.qmp)
		v.add("-device", "virtserialport,chardev="+portControl+",name="+portControl, "-mon", "chardev=qmp,mode=control")
	}
	sockets := v.cmd.ExtraFiles
	for i, cable := range cables {
		v.add("-netdev", fmt.Sprintf("socket,id=cable%d,fd=%d", i, v.inherit(cable)), "-device",
			fmt.Sprintf("virtio-net-pci,id=nic%d,netdev=cable%d,mac=02:50:f7:a0:%02x:%02x,host_mtu=%d,romfile=", i, i, 0xce+i, node+1, mtu))
	}
	err = v.cmd.Start()
	for _, f := range sockets {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// arguments are QEMU's for the machine itself, in which exe, this program, is the first
// process.
func arguments(image *image, accel accel, exe, scratch string) []string {
	m := image.machine
	args, quiet := accel.arguments()
	args = append(args,
		"-m", "3G", "-smp", "2",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", image.dir+"/vmlinuz", "-initrd", image.dir+"/initrd",
		// On a host with much to do the guest's timer may come so late that its kernel
		// takes it for broken, if it looks, and panics. And where addresses are looked for
		// twice, link-local ones are of no use for the first second.
		"-append", fmt.Sprintf(`console=%s %spanic=-1 mitigations=off no_timer_check audit=0 sysctl.net.ipv6.conf.default.accept_dad=0 SOFTROCE_EXE="%s"`, m.console, quiet, exe),
		"-serial", "stdio",
		"-device", "virtio-rng-pci",
		"-virtfs", "local,path=/,mount_tag="+tagHost+",security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial-pci,max_ports=8",
	)
	args = append(args, m.args...)
	if scratch != "" {
		// One of QEMU's options has its commas doubled.
		args = append(args, "-virtfs", "local,path="+strings.ReplaceAll(scratch, ",", ",,")+",mount_tag="+tagScratch+",security_model=none,multidevs=remap")
	}
	return args
}

func (v *vm) add(args ...string) { v.cmd.Args = append(v.cmd.Args, args...) }

// inherit gives QEMU a file, and returns its descriptor there.
func (v *vm) inherit(f *os.File) int {
	v.cmd.ExtraFiles = append(v.cmd.ExtraFiles, f)
	return 2 + len(v.cmd.ExtraFiles)
}

// attach makes a socket between the tool and QEMU, which has a character device of that name for it.
func (v *vm) attach(name string) (ours *os.File, err error) {
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err == nil {
		v.add("-chardev", fmt.Sprintf("socket,id=%s,fd=%d", name, v.inherit(theirs)))
	}
	return ours, err
}

// socketPair returns two connected sockets of a kind, for Go's poller.
func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// kill ends the guest at once and waits for its end. It may be called again.
func (v *vm) kill() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// qmpTimeout bounds the wait for QEMU's answer to a command, the first of which waits for QEMU to start.
const qmpTimeout = 30 * time.Second

// setLink connects the guest's network interface to the cable of that number, or
// disconnects it.
func (v *vm) setLink(cable int, up bool) error {
	return v.execute("set_link", map[string]any{"name": fmt.Sprint("nic", cable), "up": up})
}

// execute has QEMU execute a command of its machine protocol, QMP.
func (v *vm) execute(command string, arguments map[string]any) error {
	if err := v.qmp.SetDeadline(time.Now().Add(qmpTimeout)); err != nil {
		return err
	}
	if err := json.NewEncoder(v.qmp).Encode(map[string]any{"execute": command, "arguments": arguments}); err != nil {
		return err
	}
	for {
		var answer struct {
			Return *json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := v.answers.Decode(&answer); err != nil {
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

// explain returns err with the last lines of the guest's log, without control characters, which would
// command a terminal.
func (v *vm) explain(err error) error {
	data := make([]byte, 64<<10)
	info, unknown := v.log.Stat()
	if unknown != nil {
		return err
	}
	n, _ := v.log.ReadAt(data, max(0, info.Size()-int64(len(data))))
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r != 0x7f {
			return r
		}
		return -1
	}, string(data[:n]))
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return fmt.Errorf("%w\n--- end of its log\n%s", err, strings.Join(lines[max(0, len(lines)-50):], "\n"))
}

// briefly returns what explain has returned in one line: err, and the last line of the log.
func briefly(err error) string {
	lines := strings.Split(err.Error(), "\n")
	if last := lines[len(lines)-1]; len(lines) > 1 && last != "" {
		return lines[0] + ": " + last
	}
	return lines[0]
}
