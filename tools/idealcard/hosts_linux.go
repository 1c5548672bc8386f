package main

// This file runs the command on each host of a fabric: in a network namespace of its own, with an
// interface at each cable, and with the host's cards.

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

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
	card    net.Conn // to the program that gives the fabric
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
	env := append(h.env, h.o.fabric.environment(host.number)...)
	if h.own != nil {
		if err := unix.Setns(int(host.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		defer func() { _ = unix.Setns(int(h.own.Fd()), unix.CLONE_NEWNET) }()
	}
	k, err := start(host.dir, h.o.command, append(env, "SOFTROCE_CONTROL="+h.control.Name()))
	if err != nil {
		return err
	}
	host.keeper, host.ended, host.off = k, false, false
	host.runs++
	run := host.runs
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

// connect makes the hosts' namespaces and the cables between them.
func (h *hosts) connect() (err error) {
	if h.own, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	defer func() { _ = unix.Setns(int(h.own.Fd()), unix.CLONE_NEWNET) }()
	for _, host := range h.all {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if host.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		if err := ip("link", "set", "lo", "up"); err != nil {
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
		if err := unix.Setns(int(host.ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, c := range h.o.fabric.Cards {
			for _, p := range c.Ports {
				for _, a := range p.Addresses {
					if c.Host == host.number {
						bits := "/24"
						if netip.MustParseAddr(a).Is6() {
							bits = "/64"
						}
						err = errors.Join(err, ip("addr", "add", a+bits, "dev", netdev(p.Cable)), ip("link", "set", netdev(p.Cable), "up"))
					}
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
	words := strings.Fields(request)
	cycle := len(words) == 3 && words[0] == "power" && words[1] == "cycle"
	if cycle {
		request = "power off " + words[2]
	}
	if err := h.tellCard(request); err != nil {
		return err
	}
	if len(words) >= 2 && words[0] == "cable" && h.own != nil {
		for cable := range h.o.fabric.cables() {
			if len(words) == 2 || words[2] == fmt.Sprint(cable) {
				if err := h.setLinks(cable, words[1]); err != nil {
					return err
				}
			}
		}
	}
	if len(words) != 3 || words[0] != "power" {
		return nil
	}
	for _, host := range h.all {
		if fmt.Sprint(host.number) != words[2] {
			continue
		}
		if words[1] != "on" {
			h.kill(host)
		}
		if words[1] == "off" {
			return nil
		}
		if err := h.tellCard("power on " + words[2]); err != nil {
			return err
		}
		return h.start(host)
	}
	return errors.New("there is no such host")
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

func (h *hosts) setLinks(cable int, how string) (err error) {
	defer func() { _ = unix.Setns(int(h.own.Fd()), unix.CLONE_NEWNET) }()
	for _, host := range h.all {
		err = errors.Join(err, unix.Setns(int(host.ns.Fd()), unix.CLONE_NEWNET), ip("link", "set", netdev(cable), how))
	}
	return err
}

func (h *hosts) tellCard(request string) error {
	answer := make([]byte, 256)
	if len(request) > 100 {
		return errors.New("unknown request")
	}
	if _, err := h.card.Write([]byte(request + "\n")); err != nil {
		return err
	}
	n, err := h.card.Read(answer)
	if text := strings.TrimSpace(string(answer[:n])); err == nil && text != "ok" {
		err = errors.New(strings.TrimPrefix(text, "error "))
	}
	return err
}

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

// cardSocket is the pair of sockets by which the launcher and the fabric's program talk.
func cardSocket() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	own := os.NewFile(uintptr(fds[0]), "requests")
	defer own.Close()
	c, err := net.FileConn(own)
	return c, os.NewFile(uintptr(fds[1]), "requests"), err
}
