// Retransmission under cuts at random.

package sim_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

func TestEveryMessageArrivesOnceAndInOrderWhateverIsCut(t *testing.T) {
	const messages = 300
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 0))
		link := sim.Link{
			Latency: time.Duration(rng.IntN(3)) * 20 * time.Millisecond, // beyond half of AckTimeout: repeated in vain
			Jitter:  time.Duration(rng.IntN(2)) * 10 * time.Millisecond,
			Seed:    seed,
		}
		if rng.IntN(2) == 0 {
			link.Bandwidth = 10_000
		}
		o := options
		o.AckTimeout, o.Retries = 50*time.Millisecond, 7
		t.Run(fmt.Sprintf("%d %+v", seed, link), func(t *testing.T) {
			virtual(t, link, func(t *testing.T, n *sim.Network) {
				a, b := connectWith(t, n, o)
				m := register(t, b, 4096, fabric.RemoteWrite)
				var sent, got, acked uint32
				for cut := false; got < messages || acked < messages; cut = !cut {
					// At least one of the repetitions meets no cut.
					n.Cut(cut)
					length := 300 * time.Millisecond
					if cut {
						length = time.Duration(rng.IntN(200)) * time.Millisecond
					}
					for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(time.Millisecond) {
						for sent < messages && sent < got+16 && sent < acked+16 && rng.IntN(4) > 0 {
							data := make([]byte, rng.IntN(100))
							post(t, a, fabric.WorkRequest{
								ID: uint64(sent), Op: fabric.WriteImm, Imm: sent, Signaled: rng.IntN(4) == 0 || sent%8 == 7 || sent == messages-1,
								Data: data, RemoteAddr: m.Addr(), RKey: m.RKey(),
							})
							sent++
						}
						for _, c := range poll(t, b) {
							require.Equal(t, fabric.OK, c.Status)
							require.Equal(t, got, c.Imm)
							got++
							require.NoError(t, b.PostRecv(1))
						}
						for _, c := range poll(t, a) {
							require.Equal(t, fabric.OK, c.Status)
							require.GreaterOrEqual(t, c.ID, uint64(acked))
							acked = uint32(c.ID) + 1
						}
					}
				}
				require.Zero(t, n.RNR())
			})
		})
	}
}
