package main

import (
	"errors"
	"path/filepath"

	"github.com/ringnet/ringnet/benchmarks/charts"
	"github.com/ringnet/ringnet/internal/perf/report"
)

// Report is everything that came out, as it is written to results.json.
type Report struct {
	Commit string `json:"commit,omitempty"` // which version was measured
	report.Report
	Idle []Idle
}

// readReport reads what write has left.
func readReport(path string) (*Report, error) {
	r := new(Report)
	return r, report.ReadJSON(path, r)
}

// write leaves results.json and the charts in the folder, which exists.
func (r *Report) write(dir string) error {
	_, err := charts.Sizes(&r.Report, dir)
	return errors.Join(err, report.WriteJSON(filepath.Join(dir, "results.json"), r))
}
