package rconn

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
	"github.com/ringnet/ringnet/ring"
)

// never is the deadline that does not come.
var never time.Time

// Client makes a connection of an endpoint that was dialed. It takes the
// endpoint over, and closes it if it fails. The network names the connection's
// addresses. It ends early when ctx does, and after Config.HandshakeTimeout.
func Client(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config) (*Conn, error) {
	awaited := false
	return handshake(ctx, network, ep, cfg, &awaited, func(ctx context.Context, c *Conn, hello []byte) error {
		answer, err := ep.Connect(ctx, hello)
		if err != nil {
			return err
		}
		awaited = true
		if err := c.meet(answer); err != nil {
			return err
		}
		return ep.Confirm()
	})
}

// Server makes a connection of an endpoint that a listener accepted, as Client
// does on the other side.
func Server(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config) (*Conn, error) {
	awaited := true
	return handshake(ctx, network, ep, cfg, &awaited, func(ctx context.Context, c *Conn, hello []byte) error {
		if err := c.meet(ep.Private()); err != nil {
			return err
		}
		awaited = false
		return ep.Accept(ctx, hello)
	})
}

// handshake prepares a connection, has it exchange hellos, and starts it. If it
// fails while the peer awaits this side's answer, the peer is told why. At other
// times there must be no rejection: the kernel would take the connection for
// settled, repeat the unanswered request for some 100 s all the same, and have
// Close wait for the end of that.
func handshake(ctx context.Context, network string, ep fabric.Endpoint, cfg *Config, awaited *bool,
	exchange func(ctx context.Context, c *Conn, hello []byte) error) (_ *Conn, err error) {
	defer func() {
		if err != nil {
			if *awaited {
				_ = ep.Reject(wire.Reject{Reason: err.Error()}.Append(nil))
			}
			_ = ep.Close()
		}
	}()
	d, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.HandshakeTimeout)
	defer cancel()
	c, inbox, hello, err := prepare(network, ep, d)
	if err != nil {
		return nil, err
	}
	if err := exchange(ctx, c, hello.Append(nil)); err != nil {
		return nil, handshakeError(err)
	}
	c.inbox = ring.New(inbox.Bytes()[:d.RecvBuffer])
	c.start()
	return c, nil
}

// prepare opens the endpoint and sets up everything that does not depend on the
// peer, but for the inbox, whose bytes are there once the endpoint is connected.
// The receives are posted before the peer hears of this side.
func prepare(network string, ep fabric.Endpoint, cfg Config) (*Conn, fabric.Memory, wire.Hello, error) {
	limits, err := ep.Open(cfg.options())
	if err != nil {
		return nil, nil, wire.Hello{}, err
	}
	receives := min(cfg.RecvQueue, limits.RecvQueue-credit.ControlReceives) &^ 3
	if receives < wire.MinReceives || limits.SendQueue < minSendQueue {
		return nil, nil, wire.Hello{}, fmt.Errorf("the device grants queues of %d and %d work requests: want %d and %d at least",
			limits.SendQueue, limits.RecvQueue, minSendQueue, wire.MinReceives+credit.ControlReceives)
	}
	inbox, err := ep.Register(cfg.RecvBuffer, fabric.RemoteWrite)
	if err != nil {
		return nil, nil, wire.Hello{}, err
	}
	outbox, err := ep.Register(cfg.SendBuffer+controlMemory, fabric.LocalWrite)
	if err != nil {
		return nil, nil, wire.Hello{}, err
	}
	posted := receives + credit.ControlReceives
	if err := ep.PostRecv(posted); err != nil {
		return nil, nil, wire.Hello{}, err
	}
	depth := min(cfg.SendQueue, limits.SendQueue)
	c := &Conn{
		calls:         newCalls(),
		ep:            ep,
		cfg:           cfg,
		limits:        limits,
		local:         NewAddr(network, ep.LocalAddr()),
		remote:        NewAddr(network, ep.RemoteAddr()),
		readDeadline:  deadline.New(),
		writeDeadline: deadline.New(),
		receiver:      credit.NewReceiver(cfg.RecvBuffer, receives),
		receives:      posted,
		budget:        limits.Spin,
		state:         state{linger: cfg.Linger},
		sendQueue: sendQueue{
			slots:    credit.NewSlots(depth),
			entries:  make([]entry, 1<<bits.Len(uint(depth-1))),
			postTime: math.MaxInt64,
			batch:    make([]fabric.WorkRequest, 0, maxBatch),
			memory:   outbox,
			staging:  ring.New(outbox.Bytes()[:cfg.SendBuffer]),
		},
	}
	c.posted.L = &c.mu
	return c, inbox, wire.Hello{Addr: inbox.Addr(), RKey: inbox.RKey(), Ring: cfg.RecvBuffer, Receives: receives}, nil
}

// meet takes the peer's hello.
func (c *Conn) meet(hello []byte) error {
	peer, err := wire.DecodeHello(hello)
	if err != nil {
		return &ProtocolError{err.Error()}
	}
	c.peer = peer
	c.sender = credit.NewSender(peer.Ring, peer.Receives)
	c.most = min(maxMessage, peer.Ring/4, c.staging.Size()/4)
	c.chunk = min(worthwhile, c.most)
	return nil
}

// start sets the connected queue pair to work.
func (c *Conn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rearm = time.AfterFunc(rearmAfter, c.rearmTick)
	c.rearming = true
	if c.cfg.KeepAlive > 0 {
		c.keepAlive = time.AfterFunc(c.cfg.KeepAlive/2, c.keepAliveTick)
	}
	c.arm()
	go c.dispatch()
}
