package main

import (
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// progress is how much of a file has been sent.
type progress struct {
	*report.Progress
	name       string
	size       int64
	done, most int64 // bytes, in this attempt and in the best one
	seen       int64 // most, at the last call of advanced
}

// moved adds n bytes to the attempt.
func (p *progress) moved(n int64) {
	p.done += n
	p.most = max(p.most, p.done)
	if p.Due(time.Now()) {
		p.Show("%s: %s of %s, %d %%", p.name, humanize.IBytes(uint64(p.done)), humanize.IBytes(uint64(p.size)), 100*p.done/max(p.size, 1))
	}
}

// advanced reports whether more is done than at its last call.
func (p *progress) advanced() bool {
	more := p.most > p.seen
	p.seen = p.most
	return more
}
