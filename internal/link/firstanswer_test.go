package link

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
)

// A stream begins with a ring of a page. If a call waits that has room for more, it has grown when the first answer
// comes; and else that takes a round trip more.
func TestTheFirstAnswerTakesAsLongAsTheTenth(t *testing.T) {
	const request, answer = 64, 16 << 10
	long := sim.Link{Latency: 200 * time.Microsecond}
	for name, tt := range map[string]struct {
		reads int // bytes that a Read of the client takes at most
		more  time.Duration
	}{
		"read in one":     {answer, 0},
		"read in buffers": {4 << 10, 2 * long.Latency},
	} {
		t.Run(name, func(t *testing.T) {
			onLink(t, long, testConfig, testConfig, 3, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
				client, server := clients[2], servers[2]
				go func() {
					b := make([]byte, request)
					for {
						if _, err := io.ReadFull(reader{server}, b); err != nil {
							return
						}
						_ = writeAll(server, make([]byte, answer))
					}
				}()
				require.Equal(t, firstRing, client.ringSize())
				var took []time.Duration
				for range 10 {
					start := time.Now()
					require.NoError(t, writeAll(client, make([]byte, request)))
					for left := answer; left > 0; {
						m, err := client.Read(make([]byte, min(left, tt.reads)), unlimited())
						require.NoError(t, err)
						left -= m
					}
					took = append(took, time.Since(start))
				}
				require.Equal(t, 2*long.Latency, took[9])
				require.Equal(t, took[9]+tt.more, took[0])
				require.Equal(t, smallRing, client.ringSize())
				require.Equal(t, firstRing, server.ringSize())
			})
		})
	}
}
