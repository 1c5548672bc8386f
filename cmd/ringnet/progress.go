package main

import (
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"
)

// progress shows from time to time how much of something is done, on a line that it
// overwrites.
type progress struct {
	w     io.Writer
	name  string
	size  int64
	quiet bool

	done, most int64 // bytes, in this attempt and in the best one
	seen       int64 // most, at the last call of advanced
	shown      time.Time
}

func newProgress(w io.Writer, name string, size int64, quiet bool) *progress {
	return &progress{w: w, name: name, size: size, quiet: quiet, shown: time.Now()}
}

// begin begins an attempt.
func (p *progress) begin() { p.done = 0 }

// moved adds n bytes to the attempt.
func (p *progress) moved(n int64) {
	p.done += n
	p.most = max(p.most, p.done)
	if !p.quiet && time.Since(p.shown) >= time.Second/2 {
		p.shown = time.Now()
		fmt.Fprintf(p.w, "\r%s: %s of %s, %d %%\x1b[K", p.name, humanize.IBytes(uint64(p.done)), humanize.IBytes(uint64(p.size)), 100*p.done/max(p.size, 1))
	}
}

// advanced reports whether more is done than at its last call.
func (p *progress) advanced() bool {
	more := p.most > p.seen
	p.seen = p.most
	return more
}

// clear clears the line.
func (p *progress) clear() {
	if !p.quiet {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// end clears the line, and shows no more.
func (p *progress) end() {
	p.clear()
	p.quiet = true
}
