// Package charts draws results with a line for each peer, both axes logarithmic.
package charts

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"

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
	for _, n := range slices.Sorted(maps.Keys(conns)) {
		for _, c := range []chart{
			{
				file: fmt.Sprintf("latency-%d.svg", n), workload: "ping-pong", conns: n,
				title: fmt.Sprintf("Latency, half the median round trip, connections: %d (lower is better)", n),
				y:     func(s report.Summary) float64 { return cmp.Or(s.P50.Median, s.Mean.Median) }, yTick: report.Nanos,
			},
			{
				file: fmt.Sprintf("rate-%d.svg", n), workload: "stream", conns: n,
				title: fmt.Sprintf("Throughput of a stream, connections: %d (higher is better)", n),
				y:     func(s report.Summary) float64 { return s.BytesPerSec.Median }, yTick: report.Rate("B"),
			},
		} {
			path := filepath.Join(dir, c.file)
			switch drawn, err := c.draw(r, path); {
			case err != nil:
				return files, err
			case drawn:
				files = append(files, path)
			}
		}
	}
	return files, nil
}

type chart struct {
	file, title, workload string
	conns                 int
	y                     func(report.Summary) float64
	yTick                 func(float64) string
}

// draw draws the results without strangers, unless there are none or those of one size only.
func (c chart) draw(r *report.Report, path string) (drawn bool, err error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s\n%s, medians of %d rounds", c.title, r.Machine, r.Rounds)
	p.X.Label.Text, p.X.Scale = "size of a message", plot.LogScale{}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers(c.yTick)
	p.Legend.Top, p.Legend.Left = true, true
	sizes := make(map[int]bool)
	var lines []any
	low, high := math.Inf(1), 0.0
	for _, peer := range r.Peers {
		var points plotter.XYs
		for _, result := range r.Results {
			y, cell := c.y(result.Median), report.Cell{Peer: peer.Key, Workload: c.workload, Size: result.Size, Conns: c.conns}
			if result.Cell != cell || y <= 0 {
				continue
			}
			points, sizes[cell.Size] = append(points, plotter.XY{X: float64(cell.Size), Y: y}), true
			low, high = min(low, y), max(high, y)
		}
		if len(points) > 0 {
			lines = append(lines, peer.Name, points)
		}
	}
	if len(sizes) < 2 {
		return false, nil
	}
	var ticks plot.ConstantTicks
	for size := range sizes {
		ticks = append(ticks, plot.Tick{Value: float64(size), Label: report.Size(size)})
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
