package cardreport

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// leftOut is what the writer of an issue, and its readers, are told.
const leftOut = "Names of hosts and users are left out (NAME), addresses, GIDs and GUIDs (ADDRESS), serial numbers, and the folders of paths; " +
	"and of the kernel's log all lines but those of cards, links and RDMA."

// document is what is written: all of it to JSON, and what people read to Markdown.
type document struct {
	Day    string         `json:"day"`
	Device string         `json:"device"`
	Hosts  int            `json:"hosts"`
	Parts  []*Part        `json:"parts"`
	Speed  *report.Report `json:"speed,omitempty"`

	scrub *scrubber
	path  string // of its files, up to what they are
}

// Part is what came out of one.
type Part struct {
	Title    string   `json:"title"`
	Note     string   `json:"note,omitempty"`
	Tables   []titled `json:"tables,omitempty"`
	Problems []string `json:"problems,omitempty"` // what could not run, or has failed, and why
	Details  string   `json:"details,omitempty"`  // output of programs
	Charts   []string `json:"charts,omitempty"`   // their files
	Seconds  float64  `json:"seconds"`
}

// titled is a table, the first row of which is its head.
type titled struct {
	Title string       `json:"title,omitempty"`
	Rows  report.Table `json:"rows"`
}

// table begins a table, to which row adds.
func (p *Part) table(head ...string) { p.Tables = append(p.Tables, titled{Rows: report.Table{head}}) }
func (p *Part) row(cells ...string)  { p.Tables[len(p.Tables)-1].Rows.Row(cells...) }
func (p *Part) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

// state says whether there is a result: a table without rows is none.
func (p *Part) state() string {
	ran := p.Details != "" || slices.ContainsFunc(p.Tables, func(t titled) bool { return len(t.Rows) > 1 })
	switch {
	case len(p.Problems) == 0 && ran:
		return "done"
	case ran:
		return fmt.Sprintf("problems: %d", len(p.Problems))
	}
	return "could not run"
}

// add runs a part and takes what comes out.
func (r *document) add(title string, run func(p *Part)) {
	fmt.Fprintf(os.Stderr, "card-report: %s …\n", title)
	began := time.Now()
	p := &Part{Title: title}
	run(p)
	p.Seconds = time.Since(began).Round(time.Millisecond).Seconds()
	r.Parts = append(r.Parts, p)
	fmt.Fprintf(os.Stderr, "card-report: %s: %s\n", title, p.state())
}

// The files of a report, besides its charts, are named after what it is, and how they are written.
const (
	reportPrefix = "card-report"
	halfPrefix   = "card-report-other-host" // the half of a host that listens
	markdown     = ".md"
	figures      = ".json"
)

// write leaves the files in their folder.
func (r *document) write() error {
	all, err := r.scrub.json(r)
	return errors.Join(err,
		os.WriteFile(r.path+figures, append(all, '\n'), 0o644),
		os.WriteFile(r.path+markdown, []byte(r.scrub.text(r.markdown())), 0o644))
}

func (r *document) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# ringnet on %s\n\nHosts: %d. %s. Written by `make card-report`; the figures are in %s.\n\n"+leftOut+"\n", r.Device, r.Hosts, r.Day, filepath.Base(r.path)+figures)
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

func (p *Part) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n", p.Title)
	if p.Note != "" {
		fmt.Fprintf(b, "\n%s\n", p.Note)
	}
	for _, t := range p.Tables {
		if t.Title != "" {
			fmt.Fprintf(b, "\n%s:\n", t.Title)
		}
		t.Rows.Markdown(b)
	}
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

// show prints what is to be sent, for who sends it to read, and what is in none of its files.
func (r *document) show(w io.Writer) error {
	text := r.scrub.text(r.markdown())
	_, err := fmt.Fprintf(w, "%s\n", text)
	fmt.Fprintf(os.Stderr, "card-report: above is all of %s. Left out of it and its charts: %s\ncard-report: nothing has been sent. "+
		"Read it; then open an issue with its text, and attach %s and the charts\n",
		r.path+markdown, strings.Join(slices.Sorted(maps.Keys(r.scrub.left)), ", "), filepath.Base(r.path)+figures)
	return err
}
