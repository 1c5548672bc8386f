package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/perf"
)

// Where there is no card, TCP shows that the workloads work.
func TestEachWorkloadMeasuresOverTCP(t *testing.T) {
	over := peers[slices.IndexFunc(peers, func(p peer) bool { return p.Key == tcp })]
	for _, w := range workloads {
		if w.peers != nil && !slices.Contains(w.peers, tcp) {
			continue
		}
		for _, conns := range w.conns {
			t.Run(fmt.Sprintf("%s %d", w.key, conns), func(t *testing.T) {
				e := &end{peer: over, Cell: perf.Cell{Workload: w.key, Size: w.sizes[0], Conns: conns}, slice: 5 * time.Millisecond}
				l, err := e.listen()
				require.NoError(t, err)
				defer l.Close()
				e.l = l
				s, err := w.measure(e)
				require.NoError(t, err)
				require.Positive(t, s.Ops)
				require.Positive(t, s.P50)
				require.Equal(t, s.Ops*w.sizes[0], s.Bytes/messagesOf(w.key))
			})
		}
	}
}

// messagesOf is how many messages an operation has.
func messagesOf(key string) int {
	if key == "connect" {
		return 2
	}
	return 1
}

func TestTableHasARowForEachCellAndRatiosOfTimes(t *testing.T) {
	r := &perf.Report{Rounds: 1}
	add := func(peer, workload string, p50, seconds float64) {
		r.Results = append(r.Results, &perf.Result{
			Cell:   perf.Cell{Peer: peer, Workload: workload, Size: 64, Conns: 1},
			Rounds: []*perf.Sample{{Ops: 1, Bytes: 64, Seconds: seconds, P50: p50, CPU: 1}},
		})
	}
	add(raw, "turn", 50, 1)
	add(rdma, "turn", 200, 1)
	add(tcp, "turn", 1000, 1)
	add(raw, "stream", 0, 1)
	add(rdma, "stream", 0, 2)
	r.Summarise()
	var out strings.Builder
	printTable(&out, r)
	require.Contains(t, out.String(), "| Write and Read of 64 B in one goroutine | 50 ns | 200 ns | – | – | 1 µs | 4 × | – | 5 × |\n")
	require.Contains(t, out.String(), "| stream, one copy at each end, 64 B | 64 B/s | 32 B/s | – | – | – | 2 × | – | – |\n")
}
