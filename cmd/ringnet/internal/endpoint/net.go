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

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/passrights"
)

// Conn has the methods that connections of all networks have.
type Conn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

// Listener has the methods that listeners of all networks have.
type Listener interface {
	net.Listener
	SetDeadline(t time.Time) error
}

// Options are for listening and for dialing. One of the networks that Require has is to carry each
// connection of auto, and TCP may, too, if there are none. TrustUser are users besides this process's.
type Options struct {
	Require     []string      `enum:"shm,rdma" placeholder:"NETWORK" help:"Refuse connections of auto that none of these carries: shm, rdma."`
	TrustUser   []uint32      `placeholder:"UID" help:"Connect by shm to processes of these users, besides one's own."`
	DialTimeout time.Duration `default:"10s" placeholder:"TIME" help:"Give up to connect after this time (${default})."` // 0: none
}

// trusts is TrustUser as Dialer and ListenConfig have it.
func (o Options) trusts() func(uint32) bool {
	if len(o.TrustUser) == 0 {
		return nil
	}
	return func(uid uint32) bool { return slices.Contains(o.TrustUser, uid) }
}

// Listen listens at the endpoint.
func (e Endpoint) Listen(ctx context.Context, o Options) (Listener, error) {
	listen := (&net.ListenConfig{Control: control(e)}).Listen
	if e.IsRingnet() {
		listen = (&ringnet.ListenConfig{TrustUser: o.trusts()}).Listen
	} else if e.Network == "unix" {
		if err := removeStale(e.Address); err != nil {
			return nil, err
		}
	}
	l, err := listen(ctx, e.Network, e.Address)
	if err != nil {
		return nil, err
	}
	if auto, ok := l.(*ringnet.AutoListener); ok {
		if err := o.offered(auto); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	return l.(Listener), nil
}

// offered returns why a listener offers none of the networks that Require has, or nil.
func (o Options) offered(l *ringnet.AutoListener) error {
	why := make(map[string]string)
	for _, r := range l.PassedOver() {
		why[r.Network] = fmt.Sprintf("%s: %v", r.Network, r.Err)
	}
	var missing []string
	for _, network := range o.Require {
		if why[network] == "" {
			return nil
		}
		missing = append(missing, why[network])
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s is required, and cannot be offered: %s", strings.Join(o.Require, " or "), strings.Join(missing, "; "))
}

// control is that of net.Dialer and net.ListenConfig: nobody sends descriptors to this process's Unix sockets.
func control(e Endpoint) func(network, address string, c syscall.RawConn) error {
	if e.Network == "unix" {
		return passrights.Refuse
	}
	return nil
}

// removeStale removes a Unix socket on which no process listens: a process that was
// killed leaves it behind.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return nil // if something else is there, bind says so
	}
	c, err := (&net.Dialer{Control: passrights.Refuse}).Dial("unix", path)
	if err == nil {
		go c.Close() // which its listener may make long, before Linux 6.16
		return nil
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	return nil
}

// Dialer returns a function that connects to the endpoint. For a connection of auto, that
// also returns the reasons why no better network carries it. Ringnet's connections that
// one such function makes may share a link.
func (e Endpoint) Dialer(o Options) func(context.Context) (Conn, []ringnet.Reason, error) {
	dial := (&net.Dialer{Timeout: o.DialTimeout, Control: control(e)}).DialContext
	if e.IsRingnet() {
		dial = (&ringnet.Dialer{Timeout: o.DialTimeout, TrustUser: o.trusts(), Require: o.Require}).DialContext
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

// Carrier returns the connection that carries a connection of auto; another carries
// itself.
func Carrier(c net.Conn) net.Conn {
	if auto, ok := c.(*ringnet.AutoConn); ok {
		return auto.NetConn()
	}
	return c
}

// NetworkOf returns the name of the network that carries a connection.
func NetworkOf(c net.Conn) string { return Carrier(c).LocalAddr().Network() }

// Carried returns a connection that was accepted. It resets a connection of auto that is
// carried by a network that Require does not have: a Dialer does so by itself, but a
// listener accepts the connection first.
func (o Options) Carried(c net.Conn) (Conn, error) {
	auto, ok := c.(*ringnet.AutoConn)
	if !ok {
		return c.(Conn), nil
	}
	carrier := auto.Carrier()
	if len(o.Require) == 0 || slices.Contains(o.Require, carrier) {
		return auto, nil
	}
	Reset(auto)
	return nil, fmt.Errorf("%v has connected over %s, but %s is required", auto.RemoteAddr(), carrier, strings.Join(o.Require, " or "))
}

// Reset closes a connection so that the peer gets an error. Unix sockets cannot do that:
// there the peer gets the end of the stream, unless it has sent bytes that were not read.
func Reset(c net.Conn) {
	SetLinger(c, 0)
	_ = c.Close()
}

// SetLinger sets what Close does, and the kernel when the process ends: 0 resets the
// connection, and -1 delivers what was written. Unix sockets ignore it.
func SetLinger(c net.Conn, sec int) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(sec)
	}
}
