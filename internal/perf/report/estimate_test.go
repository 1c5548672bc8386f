package report

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEstimate(t *testing.T) {
	assert.Equal(t, Estimate{}, NewEstimate(nil))
	assert.Equal(t, Estimate{}, NewEstimate([]float64{math.NaN(), math.NaN()}), "what JSON has no word for")
	assert.Equal(t, Estimate{}, NewEstimate([]float64{math.Inf(1)}))
	assert.Equal(t, Estimate{Median: 3}, NewEstimate([]float64{5, 1, 3, 2, 4}), "too few for an interval")
	assert.Equal(t, "3 s", Estimate{Median: 3}.Text(Seconds))

	rounds := []float64{10, 14, 11, 9, 10, 8, 12}
	e := NewEstimate(rounds)
	assert.Equal(t, Estimate{Median: 10, Low: 8, High: 14}, e)
	assert.Equal(t, []float64{10, 14, 11, 9, 10, 8, 12}, rounds, "the rounds keep their order")
	assert.Equal(t, "10 s ±40%", e.Text(Seconds))
	assert.Equal(t, "10 s (8 s to 850 s)", Estimate{Median: 10, Low: 8, High: 850}.Text(Seconds), "8400 % say nothing")
}

func TestChange(t *testing.T) {
	older, newer := []float64{10, 12, 9, 11}, []float64{20, 22, 19, 23}
	assert.Equal(t, "+100.00% (p=0.029 n=4)", Change(older, newer))
	assert.Equal(t, []float64{10, 12, 9, 11}, older, "the rounds keep their order")
	assert.Equal(t, "~ (p=1.000 n=4)", Change(older, []float64{11, 10, 13, 8}))
	assert.Equal(t, "~ (p=0.100 n=3)", Change(older[:3], newer[:3]), "too few to tell")
	assert.Equal(t, "~ (p=1.000 n=4)", Change([]float64{5, 5, 5, 5}, []float64{5, 5, 5, 5}))
}

func TestBesideComparesRoundWithRound(t *testing.T) {
	of := func(rates ...float64) *Result {
		r := new(Result)
		for _, rate := range rates {
			if rate == 0 {
				r.Rounds = append(r.Rounds, nil) // failed
			} else {
				r.Rounds = append(r.Rounds, &Sample{Ops: int(rate), Seconds: 1})
			}
		}
		return r
	}
	assert.Equal(t, 3.0, of(30, 60, 0, 100).Beside(of(10, 20, 1, 0), (*Sample).PerSecond).Median)
	assert.Zero(t, of(0, 1).Beside(of(1, 0), (*Sample).PerSecond), "no round has both")

	r := &Report{Base: "tcp", Results: []*Result{of(30, 60), of(10, 20), of(1, 2)}}
	r.Results[0].Cell, r.Results[1].Cell, r.Results[2].Cell = Cell{Peer: "shm"}, Cell{Peer: "tcp"}, Cell{Peer: "shm", Size: 1}
	r.Summarise()
	assert.Equal(t, 3.0, r.Results[0].ByBase.Median)
	assert.Zero(t, r.Results[1].ByBase, "it is the base")
	assert.Zero(t, r.Results[2].ByBase, "of which the base has none")
}

func TestTableOfResultsLeavesOutColumnsThatSayNothing(t *testing.T) {
	results := []*Result{{Cell: Cell{Peer: "a", Size: 64}}, {Cell: Cell{Peer: "b|c"}}}
	table := NewTable(results, []Column{
		{"peer", func(x *Result) string { return x.Peer }},
		{"conns", func(x *Result) string { return strconv.Itoa(x.Conns) }},
		{"size", func(x *Result) string { return Size(x.Size) }},
	})
	var text, markdown strings.Builder
	table.Text(&text)
	assert.Equal(t, "peer  size\na     64 B\nb|c   0 B\n", text.String())
	table.Markdown(&markdown)
	assert.Equal(t, "\n| peer | size |\n|---|---|\n| a | 64 B |\n| b\\|c | 0 B |\n", markdown.String())
}

func TestPeersSideBySide(t *testing.T) {
	r := &Report{Rounds: 1, Peers: []Peer{{Key: "c", Name: "verbs"}, {Key: "ours", Name: "ringnet"}, {Key: "none", Name: "of which nothing is known"}}}
	for _, c := range []Cell{{"c", "turn", 64, 1, 0}, {"ours", "turn", 64, 1, 0}, {"ours", "http", 0, 1, 0}} {
		r.Results = append(r.Results, &Result{Cell: c, Rounds: []*Sample{{Ops: 1, Seconds: 1}}})
	}
	r.Summarise()
	table := r.Side("what", func(c Cell) string { return c.Workload }, func(x *Result) string { return Number(x.Median.PerSecond.Median) },
		SideColumn{"by C", func(measured map[string]*Result) string { return strconv.FormatBool(measured["c"] != nil) }})
	assert.Equal(t, Table{{"what", "verbs", "ringnet", "by C"}, {"turn", "1", "1", "true"}, {"http", Unknown, "1", "false"}}, table)
}

func TestTextHasThreeDigits(t *testing.T) {
	for x, want := range map[float64]string{0: "–", 1234567: "1.23 MB/s", 999.6: "1 kB/s", 47.25: "47.3 B/s", 2e-9: "2 nB/s"} {
		assert.Equal(t, want, SI(x, "B/s"))
	}
	assert.Equal(t, "1.5 µs", Nanos(1500))
	assert.Equal(t, "0.00996", Number(0.0099567))
	assert.Equal(t, "4.0 KiB", Size(4096))
	assert.Equal(t, "ping-pong 64 B ×16 tcp", Cell{"tcp", "ping-pong", 64, 16, 0}.String())
	assert.Equal(t, "http ×1 tcp beside 2", Cell{"tcp", "http", 0, 1, 2}.String())
}
