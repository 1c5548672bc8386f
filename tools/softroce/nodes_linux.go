package main

// This file runs the command in one guest, or in two joined by cables.

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bootTimeout bounds the time from power-on until a guest is ready for its
// command. Emulated it takes about 10 seconds when nothing else keeps the CPUs busy.
const bootTimeout = 3 * time.Minute

// node is a guest, and the state of its command.
type node struct {
	*vm
	config  guestConfig
	console console
	cables  []*os.File   // its ends
	to      *gob.Encoder // to the guest's agent
	ready   bool
	started bool // its command was started
	cut     bool // its power was cut
	ended   bool // its command has ended, or it was cut
	status  int  // of the command
}

// cluster is all nodes of a run. Only the goroutine that calls run uses their state. Others
// send it events, which are functions that it calls.
type cluster struct {
	image   *image
	accel   accel
	nodes   []*node
	booting *time.Timer // fires when nodes take too long to boot
	events  chan func() error
	ended   chan struct{}  // closed when no events are taken any more
	outputs sync.WaitGroup // goroutines that pass on output
	lines   sync.Mutex     // held while a whole line is written to an output
}

// runGuests runs the commands of opts, each in a guest, until all have ended, and returns the exit status.
func runGuests(ctx context.Context, opts options, image *image) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	c := &cluster{image: image, accel: chooseAccel(opts.accel, filepath.Dir(image.dir)), events: make(chan func() error), ended: make(chan struct{})}
	for i, command := range opts.commands {
		c.nodes = append(c.nodes, &node{config: guestConfig{
			Node: i, Args: command, Env: environment(), Dir: dir, Scratch: opts.scratch, Image: image.dir,
		}})
	}
	for range opts.cables * (opts.nodes - 1) {
		// Sockets that keep packets apart: a guest that dies in the middle of one does no harm to the other.
		ends := [2]*os.File{}
		if ends[0], ends[1], err = socketPair(unix.SOCK_DGRAM); err != nil {
			return 0, err
		}
		for i, n := range c.nodes {
			n.cables = append(n.cables, ends[i])
			n.config.Cables++
		}
	}
	return supervise(ctx, func(ctx context.Context, signals <-chan unix.Signal) (int, error) {
		defer c.end(ctx)
		if err := c.boot(); err != nil {
			return 0, err
		}
		return c.run(ctx, signals)
	})
}

// boot starts the guests of all nodes.
func (c *cluster) boot() error {
	c.booting = time.NewTimer(bootTimeout)
	for _, n := range c.nodes {
		if err := c.powerOn(n); err != nil {
			return c.orEmulate(fmt.Errorf("starting QEMU: %w", err))
		}
	}
	return nil
}

// powerOn starts the guest of a node. When it is ready, run starts its command.
func (c *cluster) powerOn(n *node) (err error) {
	if n.vm, err = startVM(n.config.Node, c.image, c.accel, n.config.Scratch, n.cables); err != nil {
		return err
	}
	n.ready, n.started, n.ended, n.console = false, false, false, console{since: time.Now()}
	n.to = gob.NewEncoder(n.agent)
	// The guest reads it when it has booted; if it does not come to that, it hangs up.
	go func(to *gob.Encoder, config guestConfig) { _ = to.Encode(message{Config: &config}) }(n.to, n.config)
	c.outputs.Add(1)
	go c.watch(n, n.vm)
	if n.control == nil {
		return nil
	}
	go func(control *os.File) {
		for requests := bufio.NewScanner(control); requests.Scan(); {
			request := requests.Text()
			c.send(func() error {
				answer(control, c.do(n, request))
				return nil
			})
		}
	}(n.control)
	if err := n.execute("qmp_capabilities", map[string]any{}); err != nil {
		return n.explain(err)
	}
	return nil
}

// send sends an event.
func (c *cluster) send(event func() error) {
	select {
	case c.events <- event:
	case <-c.ended:
	}
}

// watch passes on the output of n's guest v, and sends an event for each other message.
func (c *cluster) watch(n *node, v *vm) {
	defer c.outputs.Done()
	stdout, stderr := io.Writer(os.Stdout), io.Writer(os.Stderr)
	if len(c.nodes) > 1 {
		prefix := fmt.Sprintf("node%d| ", n.config.Node)
		out, errs := &prefixWriter{w: stdout, mu: &c.lines, prefix: prefix}, &prefixWriter{w: stderr, mu: &c.lines, prefix: prefix}
		defer out.flush()
		defer errs.flush()
		stdout, stderr = out, errs
	}
	for messages := gob.NewDecoder(v.agent); ; {
		var m message
		switch err := messages.Decode(&m); {
		case err != nil:
			c.send(func() error { return c.orEmulate(n.gone(v)) })
			return
		case m.Stdout != nil:
			_, _ = stdout.Write(m.Stdout)
		case m.Stderr != nil:
			_, _ = stderr.Write(m.Stderr)
		default:
			c.send(func() error { return n.hear(v, m) })
		}
	}
}

// end ends all guests, and returns when all of their output has been passed on, or, if
// nobody reads the tool's output, a second after the end of ctx.
func (c *cluster) end(ctx context.Context) {
	close(c.ended)
	for _, n := range c.nodes {
		if n.vm != nil {
			n.kill()
		}
	}
	passed := make(chan struct{})
	go func() {
		c.outputs.Wait()
		close(passed)
	}()
	select {
	case <-passed:
		return
	case <-ctx.Done():
	}
	select {
	case <-passed:
	case <-time.After(time.Second):
	}
}

// run starts the commands when all nodes are ready, does what they request, and returns the
// exit status when they have ended.
func (c *cluster) run(ctx context.Context, signals <-chan unix.Signal) (int, error) {
	silence := time.NewTicker(kvmSilence / 10)
	defer silence.Stop()
	started := false
	for {
		select {
		case event := <-c.events:
			if err := event(); err != nil {
				return 0, err
			}
		case s := <-signals:
			if !started {
				return 0, errors.New("interrupted while the guest was booting")
			}
			for _, n := range c.nodes {
				if n.started && !n.ended {
					_ = n.to.Encode(message{Signal: int(s)})
				}
			}
		case now := <-silence.C:
			if c.accel.orTCG {
				if err := c.orEmulate(c.hung(now)); err != nil {
					return 0, err
				}
			}
		case <-c.booting.C:
			if !started {
				if err := c.orEmulate(c.notReady(fmt.Errorf("not ready %v after power-on", bootTimeout))); err != nil {
					return 0, err
				}
			}
		case <-ctx.Done():
			if !started {
				return 0, c.notReady(context.Cause(ctx))
			}
			return 0, context.Cause(ctx)
		}
		if c.all(func(n *node) bool { return n.ready || n.cut }) {
			started = true
			c.accel.booted()
			for _, n := range c.nodes {
				if err := n.start(); err != nil {
					return 0, err
				}
			}
		}
		if c.all(func(n *node) bool { return n.ended }) {
			return c.status()
		}
	}
}

func (c *cluster) all(is func(*node) bool) bool {
	return !slices.ContainsFunc(c.nodes, func(n *node) bool { return !is(n) })
}

// notReady returns cause with the log of the first guest that is not ready.
func (c *cluster) notReady(cause error) error {
	i := slices.IndexFunc(c.nodes, func(n *node) bool { return !n.ready })
	return c.nodes[i].explain(fmt.Errorf("node %d was still booting: %w", i, cause))
}

// status returns the first exit status that is not zero, of nodes whose power was not cut.
func (c *cluster) status() (int, error) {
	if c.all(func(n *node) bool { return n.cut }) {
		return 0, errors.New("the power of all nodes was cut, and none is left to say how it went")
	}
	for _, n := range c.nodes {
		if !n.cut && n.status != 0 {
			return n.status, nil
		}
	}
	return 0, nil
}

// do does what the command of a node requests on its control port.
func (c *cluster) do(by *node, request string) error {
	words := strings.Fields(request)
	number := -1
	if len(words) == 3 {
		if n, err := strconv.ParseUint(words[2], 10, 8); err == nil {
			number, words = int(n), words[:2]
		}
	}
	exists := number >= 0 && number < len(c.nodes)
	switch what := strings.Join(words, " "); {
	case (what == "cable down" || what == "cable up") && number < len(c.nodes[0].cables):
		return c.setCables(number, words[1] == "up")
	case what == "power off" && exists:
		n := c.nodes[number]
		n.cut, n.ended = true, true
		n.unplug()
		return nil
	case what == "power cycle" && exists && c.nodes[number] != by:
		n := c.nodes[number]
		if n.cut {
			return errors.New("its power was cut")
		}
		n.unplug()
		err := c.powerOn(n)
		if err != nil {
			n.cut, n.ended = true, true
		}
		return err
	}
	return fmt.Errorf("unknown request %q: there are \"cable down [CABLE]\", \"cable up [CABLE]\", \"power off NODE\" and \"power cycle NODE\", which is the other one", request)
}

// setCables plugs a cable in or out, at both ends. If number is negative, it does so with
// all cables.
func (c *cluster) setCables(number int, in bool) error {
	var errs []error
	for _, n := range c.nodes {
		for cable := range n.cables {
			if !n.cut && (number < 0 || number == cable) {
				errs = append(errs, n.setLink(cable, in))
			}
		}
	}
	return errors.Join(errs...)
}

// unplug ends the guest at once. What comes over its cables is dropped, until another guest is ready: if
// nobody took it, the network interface of the other node's guest would be stuck when the cables are full, as the
// power cut of another machine does not make it.
func (n *node) unplug() {
	n.kill()
	for _, cable := range n.cables {
		cable.SetReadDeadline(time.Time{})
		go func() { _, _ = io.Copy(io.Discard, cable) }()
	}
}

// start starts the command, unless it was started or the power was cut.
func (n *node) start() error {
	if n.started || n.cut {
		return nil
	}
	n.started = true
	return n.to.Encode(message{Start: true})
}

// gone is the event that the agent of a guest has hung up: unless the power was cut, the guest
// has died.
func (n *node) gone(v *vm) error {
	if n.cut || n.vm != v {
		return nil
	}
	n.kill() // which also waits until the log is complete
	return n.explain(fmt.Errorf("the guest of node %d died", n.config.Node))
}

// hear is the event of a message from the agent of a guest.
func (n *node) hear(v *vm, m message) error {
	switch {
	case n.vm != v:
	case m.Failed != "":
		return n.explain(fmt.Errorf("setting up the guest of node %d: %s", n.config.Node, m.Failed))
	case m.Ready:
		n.ready = true
		for _, cable := range n.cables {
			cable.SetReadDeadline(time.Now()) // the guest reads it
		}
	case m.Ended:
		n.status, n.ended = m.Status, true
	}
	return nil
}

// answer answers a request on a control port.
func answer(control io.Writer, err error) {
	line := "ok"
	if err != nil {
		line = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	// A node that has just cut its own power cannot read it.
	fmt.Fprintln(control, line)
}
