package perf

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Chart is a line for each peer, both axes logarithmic.
type Chart struct {
	Title          string
	XLabel, YLabel string
	XTick          func(int) string
	YTick          func(float64) string

	subtitle string
	xs       []int // where there are points
	lines    []line
}

type line struct {
	name   string
	points map[int]float64 // by x
}

// WriteSizeCharts draws latency and rate by size of message, for each number of
// connections, into the folder.
func (r *Report) WriteSizeCharts(dir string) error {
	conns := make(map[int]bool)
	for _, x := range r.Results {
		conns[x.Conns] = true
	}
	var errs []error
	for n := range conns {
		with := "one connection"
		if n > 1 {
			with = fmt.Sprintf("%d connections", n)
		}
		bySize := func(workload string) func(*Result) (int, bool) {
			return func(x *Result) (int, bool) { return x.Size, x.Workload == workload && x.Conns == n }
		}
		errs = append(errs,
			r.WriteChart(filepath.Join(dir, fmt.Sprintf("latency-%d.svg", n)), Chart{
				Title:  "Latency, half the median round trip, " + with + " (lower is better)",
				YLabel: "half a round trip", YTick: Nanos,
				XLabel: sizeLabel, XTick: Size,
			}, bySize(PingPong.Key), func(s Summary) float64 { return cmp.Or(s.P50.Median, s.Mean.Median) }),
			r.WriteChart(filepath.Join(dir, fmt.Sprintf("rate-%d.svg", n)), Chart{
				Title:  "Throughput of a stream, " + with + " (higher is better)",
				YLabel: "payload per second", YTick: PerSecond("B"),
				XLabel: sizeLabel, XTick: Size,
			}, bySize(Stream.Key), func(s Summary) float64 { return s.BytesPerSec.Median }))
	}
	return errors.Join(errs...)
}

// WriteConnsChart draws something of a workload by number of connections.
func (r *Report) WriteConnsChart(path, title, yLabel string, workload string, size int, tick func(float64) string, value func(Summary) float64) error {
	return r.WriteChart(path, Chart{
		Title: title, YLabel: yLabel, YTick: tick,
		XLabel: "connections, both axes logarithmic", XTick: strconv.Itoa,
	}, func(x *Result) (int, bool) { return x.Conns, x.Workload == workload && x.Size == size }, value)
}

// PerSecond writes rates of a unit.
func PerSecond(unit string) func(float64) string {
	return func(x float64) string { return SI(x, unit+"/s") }
}

const sizeLabel = "size of a message (of one Write), both axes logarithmic"

// WriteChart draws a value of the results without strangers that at has a place on the x
// axis for, unless there is none or only one place.
func (r *Report) WriteChart(path string, c Chart, at func(*Result) (x int, ok bool), value func(Summary) float64) error {
	c.subtitle = fmt.Sprintf("%s. Median of %d rounds.", r.Machine, r.Rounds)
	for _, p := range r.Peers {
		l := line{name: p.Name, points: make(map[int]float64)}
		for _, result := range r.Results {
			x, ok := at(result)
			if !ok || result.Peer != p.Key || result.Busy > 0 || result.Median.Rounds == 0 {
				continue
			}
			if v := value(result.Median); v > 0 {
				l.points[x] = v
				c.xs = append(c.xs, x)
			}
		}
		if len(l.points) > 0 {
			c.lines = append(c.lines, l)
		}
	}
	slices.Sort(c.xs)
	c.xs = slices.Compact(c.xs)
	if len(c.xs) < 2 {
		return nil
	}
	r.Charts = append(r.Charts, path)
	return os.WriteFile(path, []byte(c.svg()), 0o644)
}

// Where things are, in pixels. Names of lines stand to the right of them.
const (
	chartWidth, chartHeight = 860, 460
	plotLeft, plotRight     = 86, 590
	plotTop, plotBottom     = 80, 400
	labelGap                = 16
)

// Colours that stay apart for the colour-blind and on light and dark pages
// (Okabe and Ito, 2008), and dashes for when they do not suffice.
var (
	colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"}
	dashes  = []string{"", "6 3", "2 3"}
)

const chartStyle = `text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:12px;fill:#1f2328}
.title{font-size:16px;font-weight:600}.small{font-size:11px;fill:#59636e}
.page{fill:#fff}.grid{stroke:#d1d9e0;stroke-width:1}.line{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.page{fill:#0d1117}.grid{stroke:#3d444d}}`

func (c *Chart) svg() string {
	low, high := c.bounds()
	x := func(at int) float64 {
		first, last := math.Log(float64(c.xs[0])), math.Log(float64(c.xs[len(c.xs)-1]))
		return plotLeft + (plotRight-plotLeft)*(math.Log(float64(at))-first)/(last-first)
	}
	y := func(v float64) float64 {
		return plotBottom - (plotBottom-plotTop)*(math.Log(v)-math.Log(low))/(math.Log(high)-math.Log(low))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-label="%[3]s">`+"\n",
		chartWidth, chartHeight, html.EscapeString(c.Title))
	fmt.Fprintf(&b, "<style>%s</style>\n<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", chartStyle, chartWidth, chartHeight)
	text := func(x, y float64, class, anchor, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, html.EscapeString(s))
	}
	grid := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(&b, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x1, y1, x2, y2)
	}
	text(16, 26, "title", "start", c.Title)
	text(16, 46, "small", "start", c.subtitle)
	text(16, plotTop-10, "small", "start", c.YLabel)
	text((plotLeft+plotRight)/2, plotBottom+40, "small", "middle", c.XLabel)
	for _, v := range ticks(low, high) {
		grid(plotLeft, y(v), plotRight, y(v))
		text(plotLeft-8, y(v)+4, "small", "end", c.YTick(v))
	}
	for _, at := range c.xs {
		grid(x(at), plotTop, x(at), plotBottom)
		text(x(at), plotBottom+18, "small", "middle", c.XTick(at))
	}
	for i, l := range c.lines {
		c.draw(&b, i, l, x, y)
	}
	for i, at := range c.labels(y) {
		colour := colours[i%len(colours)]
		end := c.lines[i].last(c.xs)
		fmt.Fprintf(&b, "<path d=\"M%.1f %.1fL%d %.1f\" stroke=\"%s\" class=\"line\" style=\"stroke-width:1;opacity:.5\"/>\n",
			x(end)+4, y(c.lines[i].points[end]), plotRight+14, at, colour)
		fmt.Fprintf(&b, "<circle cx=\"%d\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", plotRight+18, at, colour)
		text(plotRight+27, at+4, "", "start", c.lines[i].name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *Chart) draw(b *strings.Builder, i int, l line, x func(int) float64, y func(float64) float64) {
	colour, dash := colours[i%len(colours)], dashes[i/len(colours)%len(dashes)]
	var path []string
	for _, at := range c.xs {
		if v, ok := l.points[at]; ok {
			path = append(path, fmt.Sprintf("%.1f %.1f", x(at), y(v)))
		}
	}
	fmt.Fprintf(b, "<path class=\"line\" stroke=\"%s\" stroke-dasharray=\"%s\" d=\"M%s\"/>\n", colour, dash, strings.Join(path, "L"))
	for _, p := range path {
		cx, cy, _ := strings.Cut(p, " ")
		fmt.Fprintf(b, "<circle cx=\"%s\" cy=\"%s\" r=\"3\" fill=\"%s\"/>\n", cx, cy, colour)
	}
}

// last is the largest of xs that the line has a point for.
func (l line) last(xs []int) int {
	for _, x := range slices.Backward(xs) {
		if _, ok := l.points[x]; ok {
			return x
		}
	}
	return 0
}

// bounds are the powers of ten around all points.
func (c *Chart) bounds() (low, high float64) {
	low, high = math.Inf(1), 0
	for _, l := range c.lines {
		for _, v := range l.points {
			low, high = min(low, v), max(high, v)
		}
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	if low == high {
		high *= 10
	}
	return low, high
}

// ticks are the powers of ten from low to high, and what lies between them if
// these are few.
func ticks(low, high float64) (values []float64) {
	steps := []float64{1}
	if high/low < 101 {
		steps = []float64{1, 2, 5}
	}
	for power := low; power <= high*1.001; power *= 10 {
		for _, step := range steps {
			if v := step * power; v <= high*1.001 {
				values = append(values, v)
			}
		}
	}
	return values
}

// labels places the names of the lines next to their ends, as far apart as
// they have to be.
func (c *Chart) labels(y func(float64) float64) []float64 {
	order := make([]int, len(c.lines))
	at := make([]float64, len(c.lines))
	for i, l := range c.lines {
		order[i] = i
		at[i] = y(l.points[l.last(c.xs)])
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	for k, i := range order {
		if k > 0 {
			at[i] = max(at[i], at[order[k-1]]+labelGap)
		}
	}
	for k, i := range slices.Backward(order) {
		limit := float64(plotBottom)
		if k < len(order)-1 {
			limit = at[order[k+1]] - labelGap
		}
		at[i] = min(at[i], limit)
	}
	return at
}
