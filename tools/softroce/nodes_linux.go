package main

// This file runs the command in one guest, or in two joined by cables.

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// bootTimeout bounds the time from power-on until a guest is ready for its
// command. It takes about 10 seconds when nothing else keeps the CPUs busy.
const bootTimeout = 3 * time.Minute

// node is a guest, and the state of its command.
type node struct {
	*vm
	config  *guestConfig
	to      *gob.Encoder // to the guest's agent, once that is there
	ready   bool
	started bool // its command was started
	cycling bool // its power was cycled, and it has not booted yet
	cut     bool // its power was cut
	ended   bool // its command has ended, or it was cut
	status  int  // of the command

	passedOut, passedErr *tally // how much of its output the tool has written
	output               sync.WaitGroup
}

// runGuests runs the commands of opts, each in a guest, and returns the exit status. It
// leaves the guests' logs behind if the error is a guestError.
func runGuests(ctx context.Context, opts options, image *guestImage) (int, error) {
	logs, err := os.MkdirTemp("", "softroce-")
	if err != nil {
		return 0, err
	}
	return supervise(ctx, func(ctx context.Context, signals <-chan unix.Signal) (int, error) {
		status, err := boot(ctx, opts, image, logs, signals)
		if !errors.As(err, new(*guestError)) {
			os.RemoveAll(logs)
		}
		return status, err
	})
}

// boot starts the guests, and runs them until their commands have ended.
func boot(ctx context.Context, opts options, image *guestImage, logs string, signals <-chan unix.Signal) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	ends := make([][]*os.File, opts.nodes) // of the cables, at each node
	if opts.nodes == 2 {
		for range opts.cables {
			end0, end1, err := socketPair("cable")
			if err != nil {
				return 0, err
			}
			ends[0], ends[1] = append(ends[0], end0), append(ends[1], end1)
		}
	}
	c := &cluster{events: make(chan func() error)}
	defer c.end(ctx)
	for i := range opts.nodes {
		v, err := startVM(vmConfig{
			node: i, image: image, scratch: opts.scratch, cables: ends[i], logs: logs,
		})
		if err != nil {
			return 0, fmt.Errorf("starting QEMU: %w", err)
		}
		n := &node{vm: v, config: &guestConfig{
			Node: i, Cables: len(ends[i]),
			Args: opts.commands[i], Env: guestEnv(os.Environ(), opts.env), Dir: dir,
			Scratch: opts.scratch, ModDir: image.modules,
		}}
		c.nodes = append(c.nodes, n)
		c.pass(n, opts.nodes > 1)
		c.watch(n)
	}
	return c.run(ctx, signals)
}

// cluster is all nodes of a run. Only the goroutine that calls run uses their state. Others
// send it events, which are functions that it calls.
type cluster struct {
	nodes  []*node
	events chan func() error
	lines  sync.Mutex // held while a whole line is written to an output
}

// watch sends an event for each message and request of n.
func (c *cluster) watch(n *node) {
	go func() {
		for messages := gob.NewDecoder(n.agent); ; {
			var m message
			switch err := messages.Decode(&m); {
			case errors.Is(err, os.ErrDeadlineExceeded):
				// What follows comes from a new agent: see powerCycle.
				n.agent.SetReadDeadline(time.Time{})
				messages = gob.NewDecoder(n.agent)
				continue
			case err != nil:
				c.events <- n.gone
				return
			}
			if m.Ended {
				// Some of the output may still be in QEMU.
				n.passedOut.wait(m.Stdout)
				n.passedErr.wait(m.Stderr)
			}
			c.events <- func() error { return n.hear(m) }
		}
	}()
	if n.control == nil {
		return
	}
	go func() {
		for requests := bufio.NewScanner(n.control); requests.Scan(); {
			request := requests.Text()
			c.events <- func() error {
				n.answer(c.do(n, request))
				return nil
			}
		}
	}()
}

// end ends all guests, and returns when all of their output has been passed on, or, if
// nobody reads the tool's output, a second after the end of ctx.
func (c *cluster) end(ctx context.Context) {
	for _, n := range c.nodes {
		n.kill()
	}
	passed := make(chan struct{})
	go func() {
		for _, n := range c.nodes {
			n.output.Wait()
		}
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
	booting := time.NewTimer(bootTimeout)
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
		case <-booting.C:
			if !started {
				return 0, c.notReady(fmt.Errorf("not ready %v after power-on", bootTimeout))
			}
		case <-ctx.Done():
			if !started {
				return 0, c.notReady(context.Cause(ctx))
			}
			return 0, context.Cause(ctx)
		}
		if c.all(func(n *node) bool { return n.ready || n.cut }) {
			started = true
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
	for _, n := range c.nodes {
		if !is(n) {
			return false
		}
	}
	return true
}

// notReady returns cause with the logs of the first guest that is not ready.
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
	switch strings.Join(words, " ") {
	case "cable down", "cable up":
		if number < len(c.nodes[0].cables) {
			return c.setCables(number, words[1] == "up")
		}
	case "power off":
		if number >= 0 && number < len(c.nodes) {
			return c.nodes[number].powerOff()
		}
	case "power cycle":
		if number >= 0 && number < len(c.nodes) && c.nodes[number] != by {
			return c.nodes[number].powerCycle()
		}
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

// powerOff ends the guest at once.
func (n *node) powerOff() error {
	n.cut, n.ended = true, true
	n.kill()
	return n.swallow()
}

// powerCycle resets the guest. When it has booted, run starts its command again.
func (n *node) powerCycle() error {
	if n.cut {
		return errors.New("its power was cut")
	}
	if err := n.reset(); err != nil {
		return err
	}
	n.cycling = true
	n.ready, n.started, n.ended = false, false, false
	return n.agent.SetReadDeadline(time.Now())
}

// start starts the command, unless it was started or the power was cut.
func (n *node) start() error {
	if n.started || n.cut {
		return nil
	}
	n.started = true
	return n.to.Encode(message{Start: true})
}

// gone is the event that the guest's agent has hung up: unless the power was cut, the guest
// has died.
func (n *node) gone() error {
	if n.cut {
		return nil
	}
	n.kill() // which also waits until the logs are complete
	return n.explain(fmt.Errorf("the guest of node %d died", n.node))
}

// hear is the event of a message from the guest's agent.
func (n *node) hear(m message) error {
	switch {
	case m.Failed != "":
		return n.explain(fmt.Errorf("setting up the guest of node %d: %s", n.node, m.Failed))
	case m.Booted:
		if n.cycling {
			n.cycling = false
			if err := n.setBooted(true); err != nil {
				return err
			}
		}
		n.to = gob.NewEncoder(n.agent)
		return n.to.Encode(message{Config: n.config})
	case m.Ready:
		n.ready = true
		n.passedOut.restart()
		n.passedErr.restart()
	case m.Ended:
		n.status, n.ended = m.Status, true
	}
	return nil
}

// answer answers a request on the control port.
func (n *node) answer(err error) {
	line := "ok"
	if err != nil {
		line = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	// A node that has just cut its own power cannot read it.
	fmt.Fprintln(n.control, line)
}

// guestEnv returns the variables of environ that a guest gets: the usual ones
// and those named, where NAME* is a prefix.
func guestEnv(environ, names []string) []string {
	names = append([]string{
		"PATH", "HOME", "USER", "LOGNAME", "LANG", "TERM", "TMPDIR", "TZ",
		"LC_*", "GO*", "CGO_*", "RINGNET_*",
	}, names...)
	var env []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		for _, want := range names {
			if prefix, ok := strings.CutSuffix(want, "*"); name == want || ok && strings.HasPrefix(name, prefix) {
				env = append(env, v)
				break
			}
		}
	}
	return env
}
