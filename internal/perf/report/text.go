package report

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
)

// Unknown stands in tables for values that are not known, which are 0.
const Unknown = "–"

// Rate writes values of a second, of a unit.
func Rate(unit string) func(float64) string {
	return func(x float64) string { return SI(x, unit+"/s") }
}

// Seconds is a time in seconds.
func Seconds(s float64) string { return SI(s, "s") }

// Size is a number of bytes, in powers of 1024.
func Size(bytes int) string { return humanize.IBytes(uint64(max(0, bytes))) }

// ExactSize is a number of bytes in the unit in which it is a short number, or in bytes.
func ExactSize(n int) string {
	for _, text := range []string{Size(n), humanize.Bytes(uint64(n))} {
		if is, err := humanize.ParseBytes(text); err == nil && is == uint64(n) {
			return text
		}
	}
	return fmt.Sprintf("%d B", n)
}

// SI is a value with its unit, in powers of 1000 and with three significant digits.
func SI(x float64, unit string) string {
	if x == 0 {
		return Unknown
	}
	return humanize.SI(significant(x), unit)
}

// Nanos is a time in nanoseconds, as SI writes seconds.
func Nanos(ns float64) string { return Seconds(ns / 1e9) }

// Number is a number with three significant digits.
func Number(x float64) string { return humanize.Ftoa(significant(x)) }

// significant rounds to three significant digits: humanize does not round before the
// decimal point.
func significant(x float64) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

// Times is a ratio with three significant digits.
func Times(x float64) string { return Number(x) + " ×" }

// Progress shows progress: on a terminal in one line that changes, elsewhere in a line
// for each cell, unless it is quiet.
type Progress struct {
	out      io.Writer
	terminal bool
	quiet    bool
	started  time.Time
	shown    time.Time
}

// NewProgress writes to out.
func NewProgress(out io.Writer) *Progress {
	now := time.Now()
	p := &Progress{out: out, started: now, shown: now}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// OnlyOnTerminal makes p quiet unless it writes to a terminal, where lines can be overwritten.
func (p *Progress) OnlyOnTerminal() *Progress {
	p.quiet = !p.terminal
	return p
}

// Quiet makes p show nothing if it is to be quiet.
func (p *Progress) Quiet(quiet bool) *Progress {
	p.quiet = p.quiet || quiet
	return p
}

const clearLine = "\r\x1b[K"

func (p *Progress) measured(round, rounds, cell, cells int, c Cell, s *Sample) {
	done := float64(round*cells+cell+1) / float64(rounds*cells)
	left := time.Duration(float64(time.Since(p.started)) * (1/done - 1)).Round(time.Second)
	p.Show("%3.0f %% (%v left)  round %d of %d  %-44s %12s/s  %12s  p50 %s", 100*done, left, round+1, rounds,
		c, SI(s.PerSecond(), ""), SI(s.BytesPerSec(), "B/s"), Nanos(s.P50))
}

// Due reports, twice a second at the most, whether something is to be shown that changes all the
// time.
func (p *Progress) Due(now time.Time) bool {
	if p.quiet || now.Sub(p.shown) < time.Second/2 {
		return false
	}
	p.shown = now
	return true
}

// Show writes a line that the next one overwrites, on a terminal.
func (p *Progress) Show(format string, args ...any) { p.line(fmt.Sprintf(format, args...), false) }

// Note writes a line that is not overwritten. It replaces what is not printable, for errors may have the other end's
// words.
func (p *Progress) Note(format string, args ...any) {
	p.line(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, fmt.Sprintf(format, args...)), true)
}

func (p *Progress) line(s string, keep bool) {
	switch {
	case p.quiet:
	case !p.terminal:
		fmt.Fprintln(p.out, s)
	case keep:
		fmt.Fprint(p.out, clearLine, s, "\n")
	default:
		fmt.Fprint(p.out, clearLine, s)
	}
}

// End clears the line.
func (p *Progress) End() {
	if p.terminal && !p.quiet {
		fmt.Fprint(p.out, clearLine)
	}
}
