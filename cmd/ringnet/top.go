package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/term"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/inspect"
)

type topCommand struct {
	shown
	Interval time.Duration `default:"1s" placeholder:"TIME" help:"How often to look."`
}

// Run shows the busiest connections of this host until it is interrupted.
func (c *topCommand) Run(ctx context.Context, s *streams) error {
	switch {
	case c.Interval <= 0:
		return misuseError{fmt.Errorf("--interval=%v: want a time above 0", c.Interval)}
	case s.json:
		return misuseError{fmt.Errorf("top shows no JSON: ringnet --json ss --watch=%v does", c.Interval)}
	}
	screen := newScreen(s.terminal)
	defer screen.leave()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if screen.terminal != nil && term.IsTerminal(int(os.Stdin.Fd())) {
		go endedBy(os.Stdin, stop)
	}
	resized, suspended := make(chan os.Signal, 1), make(chan os.Signal, 1)
	notifyTerminal(resized, suspended)
	defer signal.Stop(resized)
	defer signal.Stop(suspended)
	var before, v survey
	var used map[int]time.Duration
	rows := [][]string{{"looking for " + c.Interval.String()}}
	totals, said := "", ""
	for next := time.Now(); ; {
		if !time.Now().Before(next) {
			next = time.Now().Add(c.Interval)
			now, failed, err := c.ask(ctx)
			if err != nil {
				return err
			}
			before, v = v, now
			usedBefore := used
			used = processorTimes(v)
			if !before.at.IsZero() {
				totals, rows = busiest(v, before, used, usedBefore)
			}
			said = totals
			for _, more := range []error{failed, v.hint()} { // which may have names that others have chosen
				if more != nil {
					said = strings.TrimPrefix(said+"; "+endpoint.Printable(more.Error()), "; ")
				}
			}
		}
		screen.draw(said, rows)
		select {
		case <-time.After(time.Until(next)):
		case <-resized:
		case <-suspended:
			screen.leave()
			suspend()
			screen.enter()
		case <-ctx.Done():
			return nil
		}
	}
}

// endedBy calls stop when somebody types q or Escape. Other keys may be several characters behind an escape.
func endedBy(keys io.Reader, stop func()) {
	for b := make([]byte, 64); ; {
		n, err := keys.Read(b)
		typed := string(b[:n])
		if typed == "\x1b" || !strings.HasPrefix(typed, "\x1b") && strings.ContainsAny(typed, "qQ") {
			stop()
			return
		}
		if err != nil {
			return
		}
	}
}

// busiest has a row for each connection, those that carry most first.
func busiest(v, before survey, used, usedBefore map[int]time.Duration) (summary string, rows [][]string) {
	type line struct {
		carried uint64
		cells   []string
	}
	var lines []line
	var sum moved
	rate := v.since(before)
	was := make(map[string]inspect.Process) // by ID
	for _, p := range before.all {
		was[p.ID] = p
	}
	for _, p := range v.all {
		cpu, polling := "-", "-"
		if b, ok := usedBefore[p.PID]; ok {
			cpu = share(used[p.PID]-b, v.at.Sub(before.at))
		}
		if b, ok := was[p.ID]; ok {
			polling = share(time.Duration(p.Polling-b.Polling), p.At.Sub(b.At))
		}
		for _, c := range p.Connections {
			a := rate(keyOf(&p, &c))
			sum.sent, sum.received = sum.sent+a.sent, sum.received+a.received
			lines = append(lines, line{a.sent + a.received, []string{size(a.sent), size(a.received),
				cpu, polling, process(&p), fmt.Sprint(c.Number), c.Carrier, state(&c, v.at), c.Local, c.Remote,
				size(uint64(max(c.Unsent, 0))), unread(&c)}})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(b.carried, a.carried) })
	rows = [][]string{{"SENT/s", "RECEIVED/s", "CPU", "POLLING", "PROCESS", "NUMBER", "CARRIER", "STATE", "LOCAL", "REMOTE", "UNSENT", "UNREAD"}}
	for _, l := range lines {
		rows = append(rows, l.cells)
	}
	return fmt.Sprintf("%s of %s: %s/s sent, %s/s received", english.Plural(len(lines), "connection", ""), english.Plural(len(v.all), "process", ""), size(sum.sent), size(sum.received)), rows
}

// share is how much of a time a process has used: of all processors, or to poll.
func share(used, took time.Duration) string {
	if used < 0 || took <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(used)/float64(took))
}

// screen is a terminal that is drawn anew each time, or another file, to which each picture is added.
type screen struct {
	w        io.Writer
	terminal *os.File // nil: it is none
	keys     func()   // leaves the keys to others again
}

func newScreen(w io.Writer) *screen {
	s := &screen{w: w}
	if f, ok := w.(*os.File); ok {
		if term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
			s.terminal = f
			s.enter()
		}
	}
	return s
}

// enter takes the other screen, without a cursor, and the keys.
func (s *screen) enter() {
	if s.terminal != nil {
		s.keys = takeKeys(os.Stdin)
		fmt.Fprint(s.w, "\x1b[?1049h\x1b[?25l")
	}
}

func (s *screen) leave() {
	if s.terminal != nil {
		s.keys()
		fmt.Fprint(s.w, "\x1b[?25h\x1b[?1049l")
	}
}

// draw shows as many rows as there is room for, each cut to the width.
func (s *screen) draw(summary string, rows [][]string) {
	if s.terminal == nil {
		fmt.Fprintln(s.w, summary)
		_ = printTable(s.w, rows)
		return
	}
	width, height, err := term.GetSize(int(s.terminal.Fd()))
	if err != nil {
		return
	}
	rows = rows[:min(len(rows), max(height-1, 1))]
	var table strings.Builder
	_ = printTable(&table, rows)
	lines := append([]string{summary}, strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")...)
	lines = lines[:min(len(lines), height)]
	var picture strings.Builder
	picture.WriteString("\x1b[H")
	for i, line := range lines {
		cells := []rune(line)
		picture.WriteString(string(cells[:min(len(cells), width)]) + "\x1b[K")
		if i < len(lines)-1 {
			picture.WriteString("\r\n")
		}
	}
	picture.WriteString("\x1b[J")
	fmt.Fprint(s.w, picture.String())
}
