package perf

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTicksLieBetweenPowersOfTenIfTheseAreFew(t *testing.T) {
	assert.Equal(t, []float64{1, 2, 5, 10, 20, 50, 100}, ticks(1, 100))
	assert.Equal(t, []float64{1, 10, 100, 1000}, ticks(1, 1000))
}

func TestChartIsXML(t *testing.T) {
	r := &Report{Machine: Machine{CPU: `"<&>"`}, Rounds: 7, Peers: []Peer{{Key: "a", Name: "a & b"}, {Key: "c", Name: "c"}}}
	for _, key := range []string{"a", "c"} {
		for _, size := range []int{64, 4096, 65536} {
			r.Results = append(r.Results, &Result{
				Cell:   Cell{key, PingPong.Key, size, 1, 0},
				Median: Summary{Rounds: 1, P50: Estimate{Median: float64(size)}},
			})
		}
	}
	dir := t.TempDir()
	require.NoError(t, r.WriteSizeCharts(dir))
	text, err := os.ReadFile(filepath.Join(dir, "latency-1.svg"))
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(text, new(struct{})))
	assert.Contains(t, string(text), ">a &amp; b</text>")
	assert.Equal(t, 3+3+2, strings.Count(string(text), "<circle"), "a point each, and the names'")
	assert.NoFileExists(t, filepath.Join(dir, "rate-1.svg"), "of which nothing is known")
}
