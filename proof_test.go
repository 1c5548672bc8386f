package ringnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hostport"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/hang"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/internal/wire"
)

// lapse is how long each end waits for a proof in tests in which a part of it does not
// come.
const lapse = 100 * time.Millisecond

// proveWithin sets how long each end waits for a proof.
func proveWithin(t testing.TB, d time.Duration) {
	setAutoTimes(t, func(times *auto.Times) { times.Proof = d })
}

// listenBriefly listens on auto as a listener that waits for proofs for a lapse only, however
// long dialers wait.
func listenBriefly(t *testing.T, address string) *AutoListener {
	before := autoTimes
	autoTimes.Proof = lapse
	defer func() { autoTimes = before }()
	return listenAuto(t, address)
}

// requireNothingElse requires that a listener accepts no more connections.
func requireNothingElse(t *testing.T, l net.Listener) {
	t.Helper()
	setDeadline := l.(interface{ SetDeadline(time.Time) error }).SetDeadline
	require.NoError(t, setDeadline(time.Now().Add(50*time.Millisecond)))
	c, err := l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing else is accepted, as %v", c)
	require.NoError(t, setDeadline(time.Time{}))
}

// requireConnected requires that Accept returns the other end of c, and that bytes pass.
func requireConnected(t *testing.T, c net.Conn, l net.Listener) {
	t.Helper()
	s := accept(t, l)
	defer s.Close()
	defer c.Close()
	write(t, c, "hello")
	require.NoError(t, c.(*AutoConn).CloseWrite())
	requireRest(t, s, "hello")
}

func requireCodes(t *testing.T, c *AutoConn, codes ...ReasonCode) {
	t.Helper()
	var got []ReasonCode
	for _, r := range c.PassedOver() {
		got = append(got, r.Code)
	}
	require.Equal(t, codes, got, "%v", c.PassedOver())
}

func dialAuto(t *testing.T, d Dialer, address string) *AutoConn {
	t.Helper()
	return dial(t, &d, "auto", address).(*AutoConn)
}

func listenTCP(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// forget has auto try networks again that have failed.
func forget(t *testing.T) {
	failures = new(auto.Failures)
	t.Cleanup(func() { failures = new(auto.Failures) })
}

// Over shm or rdma one server listens at the port at which another listens over TCP.
func TestAutoPassesASquatterThatIsHonest(t *testing.T) {
	better(t, sim.New(sim.Link{}), sim.New(sim.Link{}))
	for i, network := range auto.BetterThanTCP {
		server := listenTCP(t, "127.0.0.1:0")
		squatter := listen(t, ListenConfig{}, network, server.Addr().String())
		c := dialAuto(t, Dialer{}, server.Addr().String())
		require.Equal(t, "tcp", carrierOf(c))
		codes := []ReasonCode{ReasonNoListener, ReasonNoListener}
		codes[i] = ReasonRefused
		requireCodes(t, c, codes...)
		require.ErrorContains(t, c.PassedOver()[i], "the listener does not listen on TCP")
		requireConnected(t, c, server)
		requireNothingElse(t, server)
		requireNothingElse(t, squatter)
	}
}

// A link that was dialed without TCP is no proof of where TCP leads.
func TestAutoDoesNotUseALinkThatIsNotProven(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	server := listenTCP(t, "127.0.0.1:0")
	listen(t, ListenConfig{}, "shm", server.Addr().String())
	dial(t, &Dialer{}, "shm", server.Addr().String())
	requireConnected(t, dialAuto(t, Dialer{}, server.Addr().String()), server)
}

// believe is what takes a link for proven.
func believe(context.Context, <-chan struct{}) error { return nil }

// liar is a listener that accepts every link, and claims to wait for the TCP connection
// that proves it.
func liar(t *testing.T, f fabric.Fabric, at net.Addr) {
	addr := at.(*net.TCPAddr).AddrPort()
	l, err := f.Listen(addr, 16)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	cfg, err := link.NewSetup(nil)
	require.NoError(t, err)
	go func() {
		for {
			ep, err := l.Accept()
			if err != nil {
				return
			}
			cfg := cfg
			cfg.Proof = &link.Proof{Port: wire.ProofPort(ep.Private()), Verify: believe}
			if _, s, err := link.Accept(t.Context(), ep, cfg); err == nil && s != nil {
				defer s.Close(0)
			}
		}
	}()
}

// A squatter cannot end a TCP connection that it does not have.
func TestAutoPassesASquatterThatLies(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	proveWithin(t, lapse)
	server := listenTCP(t, "127.0.0.1:0")
	liar(t, f, server.Addr())
	c := dialAuto(t, Dialer{}, server.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	requireCodes(t, c, ReasonElsewhere, ReasonNotTried)

	tried := accept(t, server) // the connection that was to prove the link
	n, err := tried.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Error(t, err, "ended without a byte")
	requireConnected(t, c, server)

	again := dialAuto(t, Dialer{}, server.Addr().String())
	requireCodes(t, again, ReasonElsewhere, ReasonOther)
	requireConnected(t, again, server)
	requireNothingElse(t, server)
}

// A server that writes first shows that it has the TCP connection.
func TestAutoReadsWhatAServerSaysFirstWhenASquatterLies(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	server := listenTCP(t, "127.0.0.1:0")
	liar(t, f, server.Addr())
	go func() {
		if s, err := server.Accept(); err == nil {
			_, _ = s.Write([]byte("220 ready"))
			_ = s.Close()
		}
	}()
	c := dialAuto(t, Dialer{}, server.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	requireCodes(t, c, ReasonElsewhere, ReasonNotTried)
	require.EqualError(t, c.PassedOver()[0], "shm: TCP leads to another listener")
	requireRest(t, c, "220 ready")
}

// claim requests a link as a dialer of auto does, with the port of the TCP connection that is to
// prove it. It calls answered when the listener has answered.
func claim(ctx context.Context, f fabric.Fabric, to netip.AddrPort, port uint16, answered func() error) (*link.Stream, error) {
	ep, err := f.Dial(ctx, netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	cfg, err := link.NewSetup(nil)
	if err != nil {
		return nil, err
	}
	cfg.Proof = &link.Proof{Port: port, Connect: answered, Verify: believe}
	return link.Dial(ctx, ep, cfg)
}

// rawDial claims a port, and ends the link.
func rawDial(t *testing.T, f fabric.Fabric, to net.Addr, port uint16, answered func() error) error {
	t.Helper()
	remote, err := hostport.LocalAddrPort(to)
	require.NoError(t, err)
	s, err := claim(t.Context(), f, remote, port, answered)
	if err == nil {
		s.Link().Abort()
		err = s.Close(0)
	}
	return err
}

// anyPort returns a port that nothing uses and that the kernel gives only to programs that
// ask for it: for connections and for port 0 the kernel takes others (ip_local_port_range).
func anyPort(t *testing.T) *net.TCPAddr {
	t.Helper()
	for {
		port := 10_000 + (os.Getpid()+int(portsTaken.Add(1)))%20_000
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		require.NoError(t, l.Close())
		return l.Addr().(*net.TCPAddr)
	}
}

// portsTaken counts the ports that anyPort has tried.
var portsTaken atomic.Int64

var errDied = errors.New("the dialer has died")

// requireNoClaim requires that a listener soon has no claim to a TCP connection from a port: it
// takes another one.
func requireNoClaim(t *testing.T, f fabric.Fabric, to net.Addr, from *net.TCPAddr) {
	t.Helper()
	hang.Unless(t, func() bool {
		return errors.Is(rawDial(t, f, to, uint16(from.Port), func() error { return errDied }), errDied)
	})
}

// A dialer names the port of a TCP connection in its request, and then closes that connection, or
// uses it for traffic, whether it confirms the link or not. Accept returns the connection.
func TestAutoListenerAcceptsAHeldConnectionThatHasEndedOrHasData(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	for name, dialer := range map[string]struct {
		says  string
		waits bool // until the connection is accepted
		err   error
	}{"confirms": {"traffic", false, nil}, "does not": {"traffic", true, errDied}, "dies": {"", false, errDied}} {
		t.Run(name, func(t *testing.T) {
			if dialer.waits {
				proveWithin(t, lapse)
			}
			l := listenAuto(t, "127.0.0.1:0")
			from := anyPort(t)
			var s net.Conn
			err := rawDial(t, f, l.Addr(), uint16(from.Port), func() error {
				c := dialTCP(t, from, l.Addr().String())
				write(t, c, dialer.says)
				require.NoError(t, c.(*net.TCPConn).CloseWrite())
				if dialer.waits {
					s = accept(t, l)
				}
				return dialer.err
			})
			require.ErrorIs(t, err, dialer.err)
			if !dialer.waits {
				s = accept(t, l)
			}
			require.Equal(t, "tcp", carrierOf(s))
			requireRest(t, s, dialer.says)
			requireNothingElse(t, l)
			requireNoClaim(t, f, l.Addr(), from)
		})
	}
}

// If the connection that was claimed does not come, the link ends. A connection from
// another port does not meet the claim.
func TestClaimThatIsNotMetEndsTheLink(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	proveWithin(t, lapse)
	l := listenAuto(t, "127.0.0.1:0")
	var other net.Conn
	from := anyPort(t)
	require.NoError(t, rawDial(t, f, l.Addr(), uint16(from.Port), func() error {
		other = dialTCP(t, nil, l.Addr().String())
		return nil
	}))
	s := accept(t, l)
	require.Equal(t, other.LocalAddr().String(), s.RemoteAddr().String())
	requireNothingElse(t, l)
	requireNoClaim(t, f, l.Addr(), from)
}

func TestClaimOfAPortThatIsClaimedIsRefused(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	l := listenAuto(t, "127.0.0.1:0")
	port := uint16(anyPort(t).Port)
	err := rawDial(t, f, l.Addr(), port, func() error {
		err := rawDial(t, f, l.Addr(), port, func() error { return nil })
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, "another dialer has named the same TCP port")
		return errDied
	})
	require.ErrorIs(t, err, errDied)
}

// interrupted returns a fabric that calls then whenever a request of a dialer has been
// answered.
func interrupted(then func()) *hooked {
	return &hooked{Fabric: sim.New(sim.Link{}), connect: func(connect func() ([]byte, error)) ([]byte, error) {
		answer, err := connect()
		if err == nil {
			then()
		}
		return answer, err
	}}
}

// A listener closes when it has answered, and another one takes its port: auto reaches the
// second, as TCP does.
func TestAutoReachesTheListenerThatHasTakenOver(t *testing.T) {
	var first, second *AutoListener
	better(t, interrupted(func() {
		require.NoError(t, first.Close())
		second = listenAuto(t, first.Addr().String())
	}), nil)
	first = listenAuto(t, "127.0.0.1:0")
	c := dialAuto(t, Dialer{}, first.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	requireConnected(t, c, second)
	requireNothingElse(t, second)
}

// The TCP connection that proves a link may be queued behind connections that nobody
// accepts.
func TestAutoProvesALinkThoughNobodyAccepts(t *testing.T) {
	better(t, sim.New(sim.Link{}), nil)
	l := listenAuto(t, "127.0.0.1:0")
	var plain []net.Conn
	for range 20 {
		c := dialTCP(t, nil, l.Addr().String())
		plain = append(plain, c)
	}
	c := dialAuto(t, Dialer{}, l.Addr().String())
	require.Equal(t, "shm", carrierOf(c))
	accepted := make(map[string]bool)
	for range len(plain) + 1 {
		s := accept(t, l)
		accepted[s.RemoteAddr().String()] = true
	}
	for _, c := range append(plain, c) {
		require.True(t, accepted[c.LocalAddr().String()])
	}
	requireNothingElse(t, l)
}

// Each link has a proof of its own.
func TestAutoProvesLinksBeyondTheFirst(t *testing.T) {
	f := sim.New(sim.Link{})
	better(t, f, nil)
	l := listenAuto(t, "127.0.0.1:0")
	d := Dialer{Config: &Config{Links: 2}}
	dialed := make(map[string]bool)
	used := func() (n int) {
		for _, i := range Links() {
			if i.Dialed && i.Connections > 0 && i.Remote.String() == l.Addr().String() {
				n++
			}
		}
		return n
	}
	for used() < 2 {
		dialed[dialAuto(t, d, l.Addr().String()).LocalAddr().String()] = true
		s := accept(t, l)
		require.True(t, dialed[s.RemoteAddr().String()])
	}
	requireNothingElse(t, l)
}

// A dial that finds all links busy asks for another. If it gets none it goes on over those, and
// leaves nothing behind.
func TestAutoGoesOnOverItsLinksWhereItGetsNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		connect  func(t *testing.T, connect func() ([]byte, error)) ([]byte, error)
		confirm  error
		answer   time.Duration // see auto.Times
		carriers []string      // those that the dial may take; none: any
		proofs   int           // TCP connections that the listener accepts, of proofs that were not needed
	}{
		"it is refused": {connect: func(*testing.T, func() ([]byte, error)) ([]byte, error) {
			return nil, &fabric.RejectError{Reason: fabric.RejectConsumer, Private: wire.Reject{Reason: "no more"}.Append(nil)}
		}},
		"the answer is no answer": {connect: func(_ *testing.T, connect func() ([]byte, error)) ([]byte, error) {
			answer, err := connect()
			return make([]byte, len(answer)), err
		}},
		"it fails when TCP has connected": {confirm: errDied, proofs: 1},
		"it is not answered": {answer: lapse, carriers: []string{"shm"}, connect: func(t *testing.T, connect func() ([]byte, error)) ([]byte, error) {
			<-t.Context().Done()
			return connect()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			better(t, &hooked{
				Fabric: sim.New(sim.Link{}),
				connect: func(connect func() ([]byte, error)) ([]byte, error) {
					if requests.Add(1) == 2 && c.connect != nil {
						return c.connect(t, connect)
					}
					return connect()
				},
				confirm: func(confirm func() error) error {
					if requests.Load() == 2 && c.confirm != nil {
						return c.confirm
					}
					return confirm()
				},
			}, nil)
			if c.answer > 0 {
				setAutoTimes(t, func(times *auto.Times) { times.Answer = c.answer })
			}
			l := listenAuto(t, "127.0.0.1:0")
			d := Dialer{Config: &Config{Links: 2}, Require: c.carriers}
			dialed := make(map[string]net.Conn)
			for range 10 {
				c := dialAuto(t, d, l.Addr().String())
				require.Equal(t, "shm", c.Carrier())
				require.Empty(t, c.PassedOver())
				dialed[c.LocalAddr().String()] = c
			}
			require.GreaterOrEqual(t, requests.Load(), int32(2))
			proofs := 0
			for range len(dialed) + c.proofs {
				s := accept(t, l)
				if c := dialed[s.RemoteAddr().String()]; c != nil {
					write(t, c, "hello")
					requireNext(t, s, "hello")
					continue
				}
				proofs++
				require.NoError(t, s.SetReadDeadline(time.Now().Add(hang.After)))
				_, err := s.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
			require.Equal(t, c.proofs, proofs)
			requireNothingElse(t, l)
		})
	}
}

func TestAutoPassesASquatterOnRDMAItself(t *testing.T) {
	h := rdmaHost(t)
	f, err := transport.RDMA.Open(nil, nil)
	require.NoError(t, err)
	better(t, nil, f)
	requireReasons(t, requireCarried(t, listenAuto(t, h.any()), Dialer{}, "rdma"), "shm: absent")
	server := listenTCP(t, h.any())
	listen(t, ListenConfig{}, "rdma", server.Addr().String())
	c := dialAuto(t, Dialer{}, server.Addr().String())
	require.Equal(t, "tcp", carrierOf(c))
	requireCodes(t, c, ReasonOther, ReasonRefused)
	requireConnected(t, c, server)

	proveWithin(t, lapse)
	lied := listenTCP(t, h.any())
	liar(t, f, lied.Addr())
	c = dialAuto(t, Dialer{}, lied.Addr().String())
	requireCodes(t, c, ReasonOther, ReasonElsewhere)
	require.NoError(t, accept(t, lied).Close())
	requireConnected(t, c, lied)
}
