package main

// This file copies the output of guests to that of the tool.

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// pass copies the output of n to the tool's own, until n is gone.
func (c *cluster) pass(n *node, prefixed bool) {
	pass := func(from *os.File, to io.Writer) *tally {
		flush := func() {}
		if prefixed {
			w := &prefixWriter{w: to, mu: &c.lines, prefix: fmt.Sprintf("node%d| ", n.node)}
			to, flush = w, w.flush
		}
		passed := newTally(to)
		n.output.Go(func() {
			_, _ = io.Copy(passed, from)
			passed.close()
			flush()
		})
		return passed
	}
	n.passedOut = pass(n.stdout, os.Stdout)
	n.passedErr = pass(n.stderr, os.Stderr)
}

// tally counts the bytes that are written to w.
type tally struct {
	w       io.Writer
	mu      sync.Mutex // guards n and closed
	changed sync.Cond  // n or closed
	n       int64
	closed  bool
}

func newTally(w io.Writer) *tally {
	t := &tally{w: w}
	t.changed.L = &t.mu
	return t
}

func (t *tally) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += int64(n)
	t.changed.Broadcast()
	return n, err
}

// restart counts from 0.
func (t *tally) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n = 0
}

// close says that there is no more to come.
func (t *tally) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

// wait returns when n bytes have been written, or no more are to come.
func (t *tally) wait(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n < n && !t.closed {
		t.changed.Wait()
	}
}

// prefixWriter writes whole lines to w, each with a prefix, while it holds mu.
type prefixWriter struct {
	w      io.Writer
	mu     *sync.Mutex
	prefix string
	line   []byte // begun but not ended
}

func (p *prefixWriter) Write(data []byte) (int, error) {
	p.line = append(p.line, data...)
	end := bytes.LastIndexByte(p.line, '\n') + 1
	if end == 0 {
		return len(data), nil
	}
	var out []byte
	for line := range bytes.Lines(p.line[:end]) {
		out = append(append(out, p.prefix...), line...)
	}
	p.line = append(p.line[:0], p.line[end:]...)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.w.Write(out)
	return len(data), err
}

// flush ends a line that was begun.
func (p *prefixWriter) flush() {
	if len(p.line) > 0 {
		_, _ = p.Write([]byte("\n"))
	}
}
