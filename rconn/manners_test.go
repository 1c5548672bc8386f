package rconn_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/hang"
	"github.com/ringnet/ringnet/internal/rconntest"
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
	served := make(chan *rconn.Conn, 1)
	go func() {
		defer close(served)
		ep, err := l.Accept()
		if err != nil {
			return
		}
		if s, err := rconntest.Server(context.Background(), "rdma", ep, nil); err == nil {
			served <- s
		}
	}()
	ep, err := v.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, err := rconntest.Client(context.Background(), "rdma", ep, nil)
	if err != nil { // the card has failed already
		assert.True(t, isOneOf(err, want), "%v", err)
		return
	}
	t.Cleanup(func() { c.Close() })
	s, ok := <-served
	if !ok {
		_, err := c.Read(make([]byte, 1))
		assert.True(t, isOneOf(err, want), "%v", err)
		return
	}
	ends := make(chan error, 4)
	for i, end := range []*rconn.Conn{c, s} {
		go func() { ends <- writeUntilEnd(end, pattern(i)) }()
		go func() { ends <- readUntilEnd(end, pattern(1-i)) }()
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

func writeUntilEnd(c net.Conn, p pattern) error {
	b := make([]byte, 3000)
	for sent := 0; ; {
		p.fill(b, sent)
		n, err := c.Write(b)
		if sent += n; err != nil {
			return err
		}
	}
}

func readUntilEnd(c net.Conn, p pattern) error {
	b := make([]byte, 5000)
	for received := 0; ; {
		n, err := c.Read(b)
		if wrong := p.check(b[:n], received); wrong != nil {
			return wrong
		}
		if received += n; err != nil {
			return err
		}
	}
}

func isOneOf(err error, errnos []syscall.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
