package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ringnet/ringnet/internal/perf"
)

// Report is everything that came out, as it is written to results.json.
type Report struct {
	Commit string `json:"commit,omitempty"` // which version was measured
	Note   string `json:"note,omitempty"`   // what else there is to know
	perf.Report
	Idle    []Idle
	Library *Library `json:",omitempty"`
	Figures []Figure
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

// finish works out what follows from the rounds so far.
func (r *Report) finish() {
	r.Summarise()
	r.Figures = r.figures()
}

// write leaves results.json and the charts in the folder, which exists: latency and
// rate by size of message, and requests by number of connections.
func (r *Report) write(dir string) error {
	errs := []error{perf.WriteJSON(filepath.Join(dir, "results.json"), r), r.WriteSizeCharts(dir)}
	for _, key := range []string{"work", "http", "grpc"} {
		w, err := findWorkload(key)
		if err != nil {
			return err
		}
		errs = append(errs, r.WriteConnsChart(filepath.Join(dir, "requests-"+key+".svg"),
			"Requests per second: "+w.Name+" (higher is better)", "requests per second", key, 0, perf.PerSecond(""),
			func(s perf.Summary) float64 { return s.PerSecond.Median }))
	}
	return errors.Join(errs...)
}
