package rconn_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/rconn"
)

// endErrors are, for the manners of cards with which connections end, the errors that say so.
var endErrors = map[string][]syscall.Errno{
	"batch-cut":           {syscall.ECONNRESET},
	"length-wrong":        {syscall.ECONNRESET, syscall.EPROTO},
	"mlx5-cq-error":       {syscall.ECONNRESET, syscall.ETIMEDOUT},
	"mlx5-internal-error": {syscall.ENETDOWN, syscall.ECONNRESET, syscall.ETIMEDOUT},
	"removed":             {syscall.ENETDOWN, syscall.ECONNRESET, syscall.ETIMEDOUT},
	"reset":               {syscall.ENETDOWN, syscall.ECONNRESET, syscall.ETIMEDOUT},
}

// On a card that fails sooner or later, what arrives is the beginning of what was sent, all
// calls return, with an error that tells what has happened, and so does Close. Tools/idealcard
// has the cards.
func TestConnectionsEndWithAnErrorOfTheCard(t *testing.T) {
	want := endErrors[os.Getenv("IDEAL_MANNERS")]
	if want == nil {
		t.Skip("no card of such manners: make test-card")
	}
	v := verbsVenue(t)
	l, err := v.Listen(netip.AddrPortFrom(v.addr, 0), 16)
	require.NoError(t, err)
	defer l.Close()
	c, s, err := v.connectTo(l, nil, nil)
	if c == nil { // the card has failed already
		assert.True(t, isOneOf(err, want), "%v", err)
		return
	}
	t.Cleanup(func() { c.Close() })
	if err != nil {
		_, err := c.Read(make([]byte, 1))
		assert.True(t, isOneOf(err, want), "%v", err)
		return
	}
	ends := make(chan error, 4)
	for i, end := range []*rconn.Conn{c, s} {
		writes, reads := rand.New(rand.NewPCG(1, uint64(i))), rand.New(rand.NewPCG(2, uint64(i)))
		go func() { ends <- pattern(i).send(end, 0, math.MaxInt, 3000, writes) }()
		go func() {
			_, err := pattern(1-i).receive(end, 0, 5000, reads)
			ends <- err
		}()
	}
	for range 4 {
		var err error
		hang.Unless(t, func() bool {
			select {
			case err = <-ends:
				return true
			default:
				return false
			}
		})
		assert.True(t, isOneOf(err, want), "%v", err)
	}
	for _, end := range []*rconn.Conn{c, s} {
		closed := started(end.Close)
		hang.Unless(t, func() bool { return len(closed) > 0 })
	}
}

func isOneOf(err error, errnos []syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}
