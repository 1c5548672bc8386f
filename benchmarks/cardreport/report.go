package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// document is what is written: all of it to JSON, and what people read to Markdown.
type document struct {
	Format int            `json:"format"` // 1
	Day    string         `json:"day"`
	Device string         `json:"device"`
	Hosts  int            `json:"hosts"`
	Parts  []*part        `json:"parts"`
	Speed  *report.Report `json:"speed,omitempty"`

	scrub *scrubber
}

// part is what came out of one.
type part struct {
	Title    string       `json:"title"`
	Note     string       `json:"note,omitempty"`
	Rows     report.Table `json:"rows,omitempty"`     // of a table; the first is its head
	More     report.Table `json:"more,omitempty"`     // of a second one
	Problems []string     `json:"problems,omitempty"` // what could not run, or has failed, and why
	Details  string       `json:"details,omitempty"`  // output of programs
	Charts   []string     `json:"charts,omitempty"`   // their files
	Seconds  float64      `json:"seconds"`
}

func (p *part) row(cells ...string) { p.Rows.Row(cells...) }
func (p *part) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

// ran reports whether there is a result: a table without rows is none.
func (p *part) ran() bool { return len(p.Rows) > 1 || len(p.More) > 1 }

func (p *part) state() string {
	switch {
	case len(p.Problems) == 0 && p.ran():
		return "done"
	case p.ran():
		return fmt.Sprintf("problems: %d", len(p.Problems))
	}
	return "could not run"
}

// add runs a part and takes what comes out, with what other programs have written in it scrubbed.
func (r *document) add(title string, run func(p *part)) {
	fmt.Fprintf(os.Stderr, "card-report: %s …\n", title)
	began := time.Now()
	p := &part{Title: title}
	run(p)
	p.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	for i := range p.Problems {
		p.Problems[i] = r.scrub.foreign(p.Problems[i])
	}
	p.Details = r.scrub.foreign(p.Details)
	for _, row := range slices.Concat(p.Rows, p.More) {
		for i := range row {
			row[i] = r.scrub.foreign(row[i])
		}
	}
	r.Parts = append(r.Parts, p)
	fmt.Fprintf(os.Stderr, "card-report: %s: %s\n", title, p.state())
}

// The files of a report, besides its charts.
const (
	markdownFile = "card-report.md"
	jsonFile     = "card-report.json"
)

// write leaves the files in a folder.
func (r *document) write(dir string) error {
	figures, err := r.scrub.json(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, jsonFile), append(figures, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, markdownFile), []byte(r.scrub.addresses(r.markdown())), 0o644)
}

func (r *document) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# ringnet on %s\n\nHosts: %d. %s. Written by `make card-report`; the figures are in %s.\n", r.Device, r.Hosts, r.Day, jsonFile)
	summary := report.Table{{"part", "result", "took"}}
	for _, p := range r.Parts {
		summary.Row(p.Title, p.state(), fmt.Sprintf("%.1f s", p.Seconds))
	}
	summary.Markdown(&b)
	for _, p := range r.Parts {
		p.markdown(&b)
	}
	return b.String()
}

func (p *part) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n", p.Title)
	if p.Note != "" {
		fmt.Fprintf(b, "\n%s\n", p.Note)
	}
	p.Rows.Markdown(b)
	p.More.Markdown(b)
	for _, chart := range p.Charts {
		fmt.Fprintf(b, "\n![%s](%[1]s)\n", chart)
	}
	if len(p.Problems) > 0 {
		fmt.Fprint(b, "\nWhat could not run, or has failed:\n\n")
		for _, problem := range p.Problems {
			fmt.Fprintf(b, "- %s\n", strings.Join(strings.Fields(problem), " "))
		}
	}
	if p.Details != "" {
		fmt.Fprintf(b, "\n<details><summary>Output</summary>\n\n````\n%s\n````\n\n</details>\n", strings.TrimSpace(p.Details))
	}
}
