package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/ringnet/ringnet"
)

// Conn is what the connections of all networks can do.
type Conn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// Listener is what the listeners of all networks can do.
type Listener interface {
	net.Listener
	SetDeadline(t time.Time) error
}

// Options are for listening and for dialing.
type Options struct {
	// Require are the networks, "shm" or "rdma", of which one has to carry each
	// connection of auto; empty means that TCP may, too.
	Require []string

	// TrustUser are users whose processes shm may connect to, besides this
	// process's own.
	TrustUser []uint32
}

// trusts is what Dialer and ListenConfig want as TrustUser.
func (o Options) trusts() func(uint32) bool {
	if len(o.TrustUser) == 0 {
		return nil
	}
	return func(uid uint32) bool { return slices.Contains(o.TrustUser, uid) }
}

// Listen announces on the endpoint.
func (e Endpoint) Listen(ctx context.Context, o Options) (Listener, error) {
	l, err := e.listen(ctx, o)
	if err != nil {
		return nil, err
	}
	return l.(Listener), nil
}

func (e Endpoint) listen(ctx context.Context, o Options) (net.Listener, error) {
	switch {
	case e.IsRingnet():
		return (&ringnet.ListenConfig{TrustUser: o.trusts()}).Listen(ctx, e.Network, e.Address)
	case e.Network == "unix":
		if err := removeStale(e.Address); err != nil {
			return nil, err
		}
	}
	return new(net.ListenConfig).Listen(ctx, e.Network, e.Address)
}

// removeStale removes a Unix socket that nobody listens on, as a process leaves
// it that was killed.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil // or bind says what is there
	} else if err != nil {
		return err
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		return c.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	return nil
}

// Dialer returns what connects to the endpoint, and says of a connection of auto why
// no better network carries it. Of ringnet's connections all that one Dialer makes
// may share a link.
func (e Endpoint) Dialer(o Options) func(context.Context) (Conn, []ringnet.Reason, error) {
	dial := new(net.Dialer).DialContext
	if e.IsRingnet() {
		dial = (&ringnet.Dialer{TrustUser: o.trusts(), Require: o.Require}).DialContext
	}
	return func(ctx context.Context) (Conn, []ringnet.Reason, error) {
		c, err := dial(ctx, e.Network, e.Address)
		if err != nil {
			return nil, nil, err
		}
		var passedOver []ringnet.Reason
		if auto, ok := c.(*ringnet.AutoConn); ok {
			passedOver = auto.PassedOver()
		}
		return c.(Conn), passedOver, nil
	}
}

// Carrier is what carries a connection: of auto, the connection beneath.
func Carrier(c net.Conn) net.Conn {
	if auto, ok := c.(*ringnet.AutoConn); ok {
		return auto.NetConn()
	}
	return c
}

// Carried returns a connection that was accepted. If what carries it is not what is
// required, the connection is reset: a dialer of ringnet's requires it by itself, but
// one that accepts has no choice before.
func (o Options) Carried(c net.Conn) (Conn, error) {
	auto, ok := c.(*ringnet.AutoConn)
	if !ok {
		return c.(Conn), nil
	}
	carrier := auto.LocalAddr().Network()
	if len(o.Require) == 0 || slices.Contains(o.Require, carrier) {
		return auto, nil
	}
	Reset(auto)
	return nil, fmt.Errorf("%v has connected over %s, but %s is required", auto.RemoteAddr(), carrier, strings.Join(o.Require, " or "))
}

// Reset closes a connection so that the peer gets an error. A Unix socket has no
// such thing: there the peer gets the end of the stream, unless it has sent what
// was not read.
func Reset(c net.Conn) {
	if r, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = r.SetLinger(0)
	}
	_ = c.Close()
}

// Printable is what a peer says without what would command a terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
