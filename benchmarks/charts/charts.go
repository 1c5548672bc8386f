// Package charts draws results with a line for each peer, both axes logarithmic.
package charts

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// Sizes draws latency and rate by size of message, for each number of connections, into the
// folder, and returns the files.
func Sizes(r *report.Report, dir string) (files []string, err error) {
	conns := make(map[int]bool)
	for _, x := range r.Results {
		conns[x.Conns] = true
	}
	var errs []error
	add := func(name string, c chart) {
		path := filepath.Join(dir, name)
		drawn, err := c.draw(r, path)
		if drawn {
			files = append(files, path)
		}
		errs = append(errs, err)
	}
	for _, n := range slices.Sorted(maps.Keys(conns)) {
		bySize := func(workload string) func(*report.Result) (int, bool) {
			return func(x *report.Result) (int, bool) { return x.Size, x.Workload == workload && x.Conns == n }
		}
		add(fmt.Sprintf("latency-%d.svg", n), chart{
			title: fmt.Sprintf("Latency, half the median round trip, connections: %d (lower is better)", n),
			x:     bySize("ping-pong"), xLabel: "size of a message", xTick: report.Size,
			y: func(s report.Summary) float64 { return cmp.Or(s.P50.Median, s.Mean.Median) }, yTick: report.Nanos,
		})
		add(fmt.Sprintf("rate-%d.svg", n), chart{
			title: fmt.Sprintf("Throughput of a stream, connections: %d (higher is better)", n),
			x:     bySize("stream"), xLabel: "size of one Write", xTick: report.Size,
			y: func(s report.Summary) float64 { return s.BytesPerSec.Median }, yTick: report.Rate("B"),
		})
	}
	return files, errors.Join(errs...)
}

// Requests draws the requests per second of a workload by number of connections.
func Requests(r *report.Report, path, workload, name string) error {
	_, err := chart{
		title: "Requests per second: " + name + " (higher is better)",
		x:     func(x *report.Result) (int, bool) { return x.Conns, x.Workload == workload }, xLabel: "connections", xTick: strconv.Itoa,
		y: func(s report.Summary) float64 { return s.PerSecond.Median }, yTick: report.Rate(""),
	}.draw(r, path)
	return err
}

type chart struct {
	title, xLabel string
	x             func(*report.Result) (at int, ok bool) // where a result has its place
	xTick         func(int) string
	y             func(report.Summary) float64
	yTick         func(float64) string
}

// draw draws the results without strangers, unless there is no place on the x axis or only one.
func (c chart) draw(r *report.Report, path string) (drawn bool, err error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s\n%s, medians of %d rounds", c.title, r.Machine, r.Rounds)
	p.X.Label.Text, p.X.Scale = c.xLabel, plot.LogScale{}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers(c.yTick)
	p.Legend.Top, p.Legend.Left = true, true
	xs := make(map[int]bool)
	var lines []any
	low, high := math.Inf(1), 0.0
	for _, peer := range r.Peers {
		var points plotter.XYs
		for _, result := range r.Results {
			x, ok := c.x(result)
			y := c.y(result.Median)
			if !ok || result.Peer != peer.Key || result.Busy > 0 || y <= 0 {
				continue
			}
			points, xs[x] = append(points, plotter.XY{X: float64(x), Y: y}), true
			low, high = min(low, y), max(high, y)
		}
		if len(points) > 0 {
			lines = append(lines, peer.Name, points)
		}
	}
	if len(xs) < 2 {
		return false, nil
	}
	var ticks plot.ConstantTicks
	for x := range xs {
		ticks = append(ticks, plot.Tick{Value: float64(x), Label: c.xTick(x)})
	}
	p.X.Tick.Marker = ticks
	p.Add(plotter.NewGrid())
	if err := plotutil.AddLinePoints(p, lines...); err != nil {
		return false, err
	}
	p.Y.Min, p.Y.Max = math.Pow10(int(math.Floor(math.Log10(low)))), math.Pow10(int(math.Ceil(math.Log10(high))))
	return true, p.Save(24*vg.Centimeter, 14*vg.Centimeter, path)
}

// powers labels the powers of ten.
type powers func(float64) string

// Ticks implements plot.Ticker.
func (label powers) Ticks(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{}.Ticks(low, high)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = label(t.Value)
		}
	}
	return ticks
}
