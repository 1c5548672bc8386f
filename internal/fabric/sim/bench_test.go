// The cost of the fabric itself on an instant link.

package sim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// message returns a function that takes one message of size bytes from end to
// end: posted, polled at both ends, its receive posted again.
func message(t testing.TB, size int) func() {
	a, b := connect(t, network(t, sim.Link{}))
	from := register(t, a, size, fabric.LocalWrite)
	to := register(t, b, size, fabric.RemoteWrite)
	wr := []fabric.WorkRequest{{
		Op: fabric.WriteImm, Signaled: true,
		Data: from.Bytes()[:size], Memory: from,
		RemoteAddr: to.Addr(), RKey: to.RKey(),
	}}
	c := make([]fabric.Completion, 16)
	return func() {
		if err := a.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		for _, e := range []fabric.Endpoint{b, a} {
			if n, err := e.Poll(c); n != 1 || err != nil || c[0].Status != fabric.OK {
				t.Fatal(n, err, c[0].Status)
			}
		}
		if err := b.PostRecv(1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMessageOnAnInstantLinkAllocatesNothing(t *testing.T) {
	m := message(t, 64)
	assert.Zero(t, testing.AllocsPerRun(1000, m))
}

func BenchmarkMessage(b *testing.B) {
	for _, size := range []int{64, 4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			m := message(b, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				m()
			}
		})
	}
}

func BenchmarkPollNothing(b *testing.B) {
	a, _ := connect(b, network(b, sim.Link{}))
	c := make([]fabric.Completion, 16)
	for b.Loop() {
		if n, err := a.Poll(c); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}
