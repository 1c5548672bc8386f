package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// write leaves results.json and the charts in the folder, which exists: latency and
// rate by size of message, and requests by number of connections.
func (r *Report) write(dir string) error {
	_, err := charts.Sizes(&r.Report, dir)
	errs := []error{err, report.WriteJSON(filepath.Join(dir, "results.json"), r)}
	for _, key := range []string{"work", "http", "grpc"} {
		w, err := findWorkload(key)
		if err != nil {
			return err
		}
		errs = append(errs, charts.Requests(&r.Report, filepath.Join(dir, "requests-"+key+".svg"), key, w.Name))
	}
	return errors.Join(errs...)
}
