package report

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

func TestTheTailWantsAThousandTimes(t *testing.T) {
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for i := range 999 {
		require.NoError(t, h.RecordValue(int64(i+1)*1000))
	}
	var few, enough Sample
	few.SetLatencies(h, false)
	require.InEpsilon(t, 500e3, few.P50, 1e-3)
	require.InEpsilon(t, 900e3, few.P90, 2e-3)
	require.InEpsilon(t, 990e3, few.P99, 2e-3)
	require.InEpsilon(t, 500e3, few.Mean, 1e-3)
	require.Zero(t, few.P999, "of 999 times it is the slowest")
	require.NoError(t, h.RecordValue(1e9))
	enough.SetLatencies(h, true)
	require.InEpsilon(t, 999e3/2, enough.P999, 1e-3, "half of the slowest but one")
	require.InEpsilon(t, 990e3/2, enough.P99, 2e-3)

	r := &Report{Results: []*Result{{Rounds: []*Sample{&enough, nil, &enough}}, {Rounds: []*Sample{&enough, &enough, &few}}}}
	r.Summarise()
	require.Equal(t, enough.P999, r.Results[0].Median.P999.Median)
	require.Zero(t, r.Results[1].Median.P999, "one round does not know it")
	require.Equal(t, "500 µs", P999.Value(r.Results[0]))
	require.Equal(t, Unknown, P999.Value(r.Results[1]))
}

func TestTableOfResultsLeavesOutColumnsThatSayNothing(t *testing.T) {
	r := &Report{Rounds: 1, Peers: []Peer{{Key: "b", Name: "b|c"}}, Results: []*Result{
		{Cell: Cell{Peer: "a", Workload: "stream", Size: 64}}, {Cell: Cell{Peer: "b", Workload: "stream"}}, {Cell: Cell{Peer: "b", Workload: "http"}},
		{Cell: Cell{Peer: "failed", Workload: "stream"}, Rounds: []*Sample{nil}},
	}}
	for _, x := range r.Results[:3] {
		x.Rounds = []*Sample{{Ops: 1500, Bytes: 3000, Seconds: 1, CPU: 6, ServerCPU: 2}}
	}
	r.Results[1].Rounds[0].Mean = 1500
	r.Summarise()
	columns := []Column{Median, P90, P99, PerSecond, Bytes, CPU, ClientCPU, ServerCPU, {"nothing", func(*Result) string { return "0" }}}
	var text, markdown strings.Builder
	r.Table("stream", columns...).Text(&text)
	assert.Equal(t, `
size  over  median         operations  rate    processor time  CPU, client  CPU, server
64 B  a     –              1.5 k/s     3 kB/s  2 Ms/GB         1.33 Ms/GB   667 ks/GB
0 B   b|c   1.5 µs (mean)  1.5 k/s     3 kB/s  4 ms            2.67 ms      1.33 ms
`, "\n"+text.String())
	r.Table("http", Bytes).Markdown(&markdown)
	assert.Equal(t, "\n| over | rate |\n|---|---|\n| b\\|c | 3 kB/s |\n", markdown.String())
}

func TestHeadSaysHowItWasMeasuredAndWhatWasNot(t *testing.T) {
	r := &Report{Started: time.Unix(0, 0), Load: [2]float64{0.5, 2}, Rounds: 6, Slice: time.Second, Peers: []Peer{{Name: "rdma", Unavailable: "no device"}, {Name: "tcp"}}, Results: []*Result{
		{Cell: Cell{"tcp", "http", 0, 1, 0}, Error: "refused", Median: Summary{Rounds: 2}}, {},
	}}
	var head strings.Builder
	r.PrintHead(&head)
	assert.Equal(t, `
1970-01-01 00:00 UTC; load average 0.50 before and 2.00 after
medians of 6 rounds of 1s each, and the interval of 95 % confidence for the median, from order statistics: whatever the distribution is
not over rdma: no device
http ×1 tcp: failed in 4 of 6 rounds: refused
`, "\n"+head.String())
	head.Reset()
	r.Rounds, r.Peers, r.Results = 5, nil, nil
	r.PrintHead(&head)
	assert.Contains(t, head.String(), "\nmedians of 5 rounds of 1s each\n")
}

func TestTextHasThreeDigits(t *testing.T) {
	for x, want := range map[float64]string{0: "–", 1234567: "1.23 MB/s", 999.6: "1 kB/s", 47.25: "47.3 B/s", 2e-9: "2 nB/s"} {
		assert.Equal(t, want, SI(x, "B/s"))
	}
	assert.Equal(t, "1.5 µs", Nanos(1500))
	assert.Equal(t, "0.00996", Number(0.0099567))
	for size, want := range map[int]string{64: "64 B", 4 << 10: "4.0 KiB", 64 << 10: "64 KiB", 1 << 20: "1.0 MiB", 1536: "1.5 KiB", 64_000: "64 kB", 1_500_000: "1.5 MB", 64_001: "64001 B", 1: "1 B", 16 << 20: "16 MiB"} {
		assert.Equal(t, want, ExactSize(size))
	}
	assert.Equal(t, "ping-pong 64 B ×16 tcp", Cell{"tcp", "ping-pong", 64, 16, 0}.String())
	assert.Equal(t, "http ×1 tcp beside 2", Cell{"tcp", "http", 0, 1, 2}.String())
}
