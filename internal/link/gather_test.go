package link

import (
	"bytes"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// However bytes are cut into pieces, what is written of them is what it would be
// in one piece, and what is left is the rest.
func FuzzGather(f *testing.F) {
	f.Add([]byte("several pieces"), []byte{3, 0, 0, 5}, uint(9), uint(4))
	f.Add([]byte{}, []byte{0, 0}, uint(0), uint(0))
	f.Add(bytes.Repeat([]byte("much"), 30_000), []byte{255, 1, 0, 255}, uint(70_000), uint(300))
	f.Fuzz(func(t *testing.T, all, cuts []byte, n, split uint) {
		v := buffersOf(all, cuts)
		g := gatherFrom(v)
		require.LessOrEqual(t, g.n, len(all))
		require.GreaterOrEqual(t, g.n, min(len(all), worthwhile))

		g = g.head(int(n % uint(g.n+1)))
		first, second := make([]byte, split%uint(g.n+1)), []byte(nil)
		second = make([]byte, g.n-len(first))
		g.copyTo(first, second)
		require.Equal(t, string(all[:g.n]), string(append(first, second...)), "copied")

		cut := g.trim()
		require.Equal(t, string(all[:g.n]), string(g.first)+string(bytes.Join(g.rest, nil)), "sent from where they lie")
		cut.mend()
		require.Equal(t, string(all), string(bytes.Join(v, nil)), "the buffers are as they were")

		consume(&v, g.n)
		require.Equal(t, string(all[g.n:]), string(bytes.Join(v, nil)), "left")
		if g.n == len(all) {
			require.Empty(t, v)
		}
	})
}

// buffersOf cuts bytes into pieces, each cut times 100 long, with the rest behind.
func buffersOf(all, cuts []byte) (v net.Buffers) {
	for _, cut := range cuts {
		n := min(100*int(cut), len(all))
		v = append(v, all[:n:n])
		all = all[n:]
	}
	return append(v, all)
}
