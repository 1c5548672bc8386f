// Package logs bounds what strangers can have the command log: how many lines of a kind. Nobody waits
// for who reads the log.
package logs

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	window = 10 * time.Second
	most   = 20 // lines of a kind in a window
)

// Limit returns a log that leaves out lines of which there are too many with one message, and says how many it has
// left out. Those below Info, which somebody has asked for, it leaves as they are.
func Limit(log *slog.Logger) *slog.Logger {
	return slog.New(&limited{Handler: log.Handler(), kinds: make(map[string]*kind)})
}

// limited limits the lines of a handler.
type limited struct {
	slog.Handler
	mu    sync.Mutex // guards what follows
	kinds map[string]*kind
}

// kind is the lines with one message, in a window.
type kind struct {
	until          time.Time
	lines, omitted int
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !l.allows(r) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler. Its lines have limits of their own.
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return Limit(slog.New(l.Handler.WithAttrs(attrs))).Handler()
}

// WithGroup implements slog.Handler. Its lines have limits of their own.
func (l *limited) WithGroup(name string) slog.Handler {
	return Limit(slog.New(l.Handler.WithGroup(name))).Handler()
}

// allows counts a line, and reports whether it is one of few.
func (l *limited) allows(r slog.Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	k := l.kinds[r.Message]
	if k == nil || now.After(k.until) && k.omitted == 0 {
		k = &kind{until: now.Add(window)}
		l.kinds[r.Message] = k
	}
	if k.lines++; k.lines <= most {
		return true
	}
	if k.omitted++; k.omitted == 1 {
		time.AfterFunc(time.Until(k.until), func() { l.tell(r.Level, r.Message) })
	}
	return false
}

// tell ends a window in which lines were left out.
func (l *limited) tell(level slog.Level, message string) {
	l.mu.Lock()
	n := l.kinds[message].omitted
	delete(l.kinds, message)
	l.mu.Unlock()
	slog.New(l.Handler).Log(context.Background(), level, "left lines out", "of", message, "lines", n)
}

const (
	room    = 1024        // lines that wait for a Writer to write them
	closing = time.Second // that Close waits for them
)

// Writer writes lines in a goroutine of its own, so that nobody waits for who reads them. It drops those for
// which there is no room. Its methods may be called at once.
type Writer struct {
	written chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards what follows
	lines   chan []byte
	dropped int
	closed  bool
}

// NewWriter returns a Writer that writes to w. It calls lost with how many lines it has dropped when there is room again.
func NewWriter(w io.Writer, lost func(lines int)) *Writer {
	l := &Writer{written: make(chan struct{}), lines: make(chan []byte, room)}
	go func() {
		defer close(l.written)
		for line := range l.lines {
			_, _ = w.Write(line)
			if n := l.takeDropped(); n > 0 {
				lost(n)
			}
		}
	}()
	return l
}

// takeDropped returns how many lines were dropped since it was called before.
func (l *Writer) takeDropped() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, l.dropped = l.dropped, 0
	return n
}

// Write implements io.Writer, and never fails.
func (l *Writer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(line), nil
	}
	select {
	case l.lines <- bytes.Clone(line):
	default:
		l.dropped++
	}
	return len(line), nil
}

// Close returns when all lines are written, or after a second.
func (l *Writer) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.lines)
	}
	l.mu.Unlock()
	select {
	case <-l.written:
	case <-time.After(closing):
	}
}
