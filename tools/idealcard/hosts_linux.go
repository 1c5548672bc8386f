package main

// This file runs the command on each host of a fabric, with the host's cards; if there are two, each is in
// a network namespace of its own, with an interface at each cable.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// hosts runs the command on the hosts. Only the goroutine that calls run, which is tied to its
// thread, uses its state; others send it events.
type hosts struct {
	o       options
	dir     string
	env     []string
	own     *os.File // the tool's network namespace, or nil with one host, which is in it
	all     []*host
	card    io.Writer // requests to the program that gives the fabric
	answers *bufio.Reader
	control *os.File
	events  chan func() error
	caught  <-chan os.Signal // which the command gets
}

type host struct {
	number int
	dir    string
	ns     *os.File
	keeper *keeper
	runs   int // how often the command has been started
	ended  bool
	off    bool // its power was cut
	status int
}

// startFabric starts the program that gives the command's processes a fabric, and returns a function that
// ends it. Users other than this one may use its socket, but not what lies beside that.
func (h *hosts) startFabric(program string) (stop func(), err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket(), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("%w: a socket's path has at most 107 bytes, and lies in TMPDIR", err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	socket, err := l.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = h.env, os.Stderr, []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // a terminal's signals are for the command
	requests, err := cmd.StdinPipe()
	answers, unpiped := cmd.StdoutPipe()
	if err := errors.Join(err, unpiped, os.Chmod(h.socket(), 0o777), os.Chmod(h.dir, 0o711)); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the fabric's host: %w: make bin/idealcard makes it", err)
	}
	h.card, h.answers = requests, bufio.NewReader(answers)
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

func (h *hosts) run() (int, error) {
	h.events = make(chan func() error)
	for i := range h.o.fabric.hosts() {
		h.all = append(h.all, &host{number: i, dir: hostDir(h.dir, i)})
	}
	if len(h.all) > 1 {
		if err := h.connect(); err != nil {
			return exitFailed, fmt.Errorf("two hosts, which only root can have: %w", err)
		}
	}
	if err := h.openControl(); err != nil {
		return exitFailed, err
	}
	for _, host := range h.all {
		if err := h.start(host); err != nil {
			return exitFailed, err
		}
	}
	defer h.kill(h.all...)
	goesOn := func(host *host) bool { return !host.ended && !host.off }
	for slices.ContainsFunc(h.all, goesOn) {
		select {
		case s := <-h.caught:
			for _, host := range h.all {
				host.keeper.signal(s)
			}
		case event := <-h.events:
			if err := event(); err != nil {
				return exitFailed, err
			}
		}
	}
	for _, host := range h.all {
		if !host.off && host.status != 0 {
			return host.status, nil
		}
	}
	return 0, nil
}

// start starts the command on a host.
func (h *hosts) start(host *host) error {
	env := append(slices.Clip(h.env), h.o.fabric.environment(host.number)...)
	env = append(env, "IDEAL_FABRIC="+h.socket(), "SOFTROCE_CONTROL="+h.control.Name())
	err := h.at(host, func() (err error) {
		host.keeper, err = start(host.dir, h.o.command, env)
		return err
	})
	if err != nil {
		return err
	}
	host.ended, host.off = false, false
	host.runs++
	k, run := host.keeper, host.runs
	go func() {
		status := k.wait()
		h.events <- func() error {
			if run == host.runs {
				host.ended, host.status = true, status
			}
			return nil
		}
	}()
	return nil
}

// at calls do in the network namespace of a host.
func (h *hosts) at(host *host, do func() error) error {
	if h.own == nil {
		return do()
	}
	if err := unix.Setns(int(host.ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return errors.Join(do(), unix.Setns(int(h.own.Fd()), unix.CLONE_NEWNET))
}

// connect makes the hosts' namespaces and the cables between them.
func (h *hosts) connect() (err error) {
	const this = "/proc/thread-self/ns/net"
	if h.own, err = os.Open(this); err != nil {
		return err
	}
	for _, host := range h.all {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if host.ns, err = os.Open(this); err != nil {
			return err
		}
	}
	for cable := range h.o.fabric.cables() {
		name := netdev(cable)
		if err := ip("link", "add", name, "netns", path(h.all[0].ns), "type", "veth", "peer", "name", name, "netns", path(h.all[1].ns)); err != nil {
			return err
		}
	}
	for _, host := range h.all {
		err = errors.Join(err, h.at(host, func() error { return h.o.fabric.setUp(host.number) }))
	}
	return err
}

// setUp gives the interfaces of a host, in whose namespace this is, their addresses.
func (f *cardFabric) setUp(host int) error {
	err := ip("link", "set", "lo", "up")
	for _, c := range f.Cards {
		for _, p := range c.Ports {
			for _, a := range p.Addresses {
				if c.Host == host {
					add := []string{"addr", "add", a + "/24", "dev", netdev(p.Cable)}
					if netip.MustParseAddr(a).Is6() {
						add = []string{"addr", "add", a + "/64", "dev", netdev(p.Cable), "nodad"} // else it is usable a little later
					}
					err = errors.Join(err, ip(add...), ip("link", "set", netdev(p.Cable), "up"))
				}
			}
		}
	}
	return err
}

func netdev(cable int) string { return fmt.Sprint("cable", cable) }

func path(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// openControl makes the terminal that SOFTROCE_CONTROL names, and has its lines carried out.
func (h *hosts) openControl() error {
	master, control, err := pty.Open()
	if err != nil {
		return err
	}
	h.control = control
	if _, err := term.MakeRaw(int(control.Fd())); err != nil {
		return err
	}
	go func() {
		for requests := bufio.NewScanner(master); requests.Scan(); {
			request := requests.Text()
			h.events <- func() error {
				answer := "ok"
				if err := h.do(request); err != nil {
					answer = "error " + err.Error()
				}
				_, err := fmt.Fprintln(master, answer)
				return err
			}
		}
	}()
	return nil
}

// do carries out a request: the card's part of it, and what concerns interfaces and processes.
func (h *hosts) do(request string) error {
	if which, cycle := strings.CutPrefix(request, "power cycle "); cycle {
		if err := h.do("power off " + which); err != nil {
			return err
		}
		return h.do("power on " + which)
	}
	if err := h.tellCard(request); err != nil { // which knows what can be asked for
		return err
	}
	switch words := strings.Fields(request); words[0] {
	case "cable":
		return h.setLinks(words[1], words[2:])
	case "power":
		for _, host := range h.all {
			if fmt.Sprint(host.number) != words[2] {
				continue
			}
			if words[1] == "on" && host.off {
				return h.start(host)
			} else if words[1] == "off" {
				h.kill(host)
			}
			return nil
		}
		return errors.New("there is no such host")
	}
	return nil
}

// kill ends all processes of hosts.
func (h *hosts) kill(all ...*host) {
	for _, host := range all {
		host.off = true
		host.keeper.end()
	}
	for _, host := range all {
		<-host.keeper.ended
	}
}

// setLinks sets the interfaces at both ends of a cable up or down, or, if none is named, those of all.
func (h *hosts) setLinks(how string, named []string) (err error) {
	for cable := range h.o.fabric.cables() {
		for _, host := range h.all {
			if h.own != nil && (len(named) == 0 || named[0] == fmt.Sprint(cable)) {
				err = errors.Join(err, h.at(host, func() error { return ip("link", "set", netdev(cable), how) }))
			}
		}
	}
	return err
}

// tellCard has the program that gives the fabric carry out a request.
func (h *hosts) tellCard(request string) error {
	if len(request) > 100 {
		return errors.New("unknown request")
	}
	if _, err := fmt.Fprintln(h.card, request); err != nil {
		return err
	}
	answer, err := h.answers.ReadString('\n')
	if text, failed := strings.CutPrefix(answer, "error "); failed {
		return errors.New(strings.TrimSpace(text))
	}
	return err
}

// socket is the path at which processes come onto the fabric.
func (h *hosts) socket() string { return filepath.Join(h.dir, "fabric") }

func hostDir(dir string, n int) string { return filepath.Join(dir, fmt.Sprint("host", n)) }

// environment is what the command is told of a host.
func (f *cardFabric) environment(n int) (env []string) {
	if f.hosts() == 1 {
		return nil
	}
	env = append(env, fmt.Sprint("IDEAL_NODE=", n), fmt.Sprint("SOFTROCE_NODE=", n))
	prefix := map[int]string{0: "SOFTROCE_", 1: "SOFTROCE_SECOND_"}
	for _, c := range f.Cards {
		for _, p := range c.Ports {
			before, told := prefix[p.Cable]
			switch {
			case !told:
			case c.Host == n:
				env = append(env, before+"DEVICE="+c.Name, before+"NETDEV="+netdev(p.Cable), before+"ADDR="+p.Addresses[0])
			default:
				env = append(env, before+"PEER="+p.Addresses[0], before+"PEER_DEVICE="+c.Name)
			}
		}
	}
	return env
}

// hosts is how many hosts there are.
func (f *cardFabric) hosts() int {
	n := 1
	for _, c := range f.Cards {
		n = max(n, c.Host+1)
	}
	return n
}

func (f *cardFabric) cables() int {
	n := 0
	for _, c := range f.Cards {
		for _, p := range c.Ports {
			n = max(n, p.Cable+1)
		}
	}
	return n
}
