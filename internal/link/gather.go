package link

import (
	"net"

	"github.com/ringnet/ringnet/internal/machine"
)

// gather is n bytes to write that lie in several pieces: those of first, then those
// of rest, the last of which may hold more.
type gather struct {
	n     int
	first []byte
	rest  [][]byte

	// Or they lie in a buffer, from a position on.
	loan *machine.Loan
	from int
}

// whole is bytes in one piece.
func whole(p []byte) gather { return gather{n: len(p), first: p} }

// gatherFrom is what to write next of the buffers: enough to be worth a work
// request, or all.
func gatherFrom(v net.Buffers) gather {
	if len(v) == 0 {
		return gather{}
	}
	g := gather{n: len(v[0]), first: v[0]}
	more := 1
	for ; more < len(v) && g.n < machine.Worthwhile; more++ {
		g.n += len(v[more])
	}
	g.rest = v[1:more]
	return g
}

// consume takes the first n bytes from the buffers, and the buffers that are empty
// then.
func consume(v *net.Buffers, n int) {
	for len(*v) > 0 && len((*v)[0]) <= n {
		n -= len((*v)[0])
		(*v)[0] = nil
		*v = (*v)[1:]
	}
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
}

// head is the first n of the bytes.
func (g gather) head(n int) gather {
	if n <= len(g.first) {
		return whole(g.first[:n])
	}
	g.n = n
	return g
}

// copyTo copies the bytes to first and then second, which together hold as many.
func (g gather) copyTo(first, second []byte) {
	n := copy(first, g.first)
	copy(second, g.first[n:])
	n = len(g.first)
	for _, p := range g.rest {
		if n < len(first) {
			m := copy(first[n:], p)
			n += m
			p = p[m:]
		}
		if n >= len(first) {
			n += copy(second[n-len(first):], p)
		}
	}
}

// cut is a piece of a caller's that has been shortened for as long as its bytes are sent.
type cut struct {
	piece *[]byte // nil: none has been
	was   []byte
}

// mend puts the piece back.
func (c *cut) mend() {
	if c.piece != nil {
		*c.piece = c.was
		*c = cut{}
	}
}

// trim shortens rest to the n bytes.
func (g *gather) trim() cut {
	left := g.n - len(g.first)
	for i, p := range g.rest {
		if left <= len(p) {
			g.rest = g.rest[:i+1]
			g.rest[i] = p[:left]
			return cut{&g.rest[i], p}
		}
		left -= len(p)
	}
	return cut{}
}
