package auto

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/transport"
	"github.com/ringnet/ringnet/internal/wire"
)

// What auto promises is tested in package ringnet, between dialers and listeners. Here are
// moments that cannot be met from there.

func TestABoundedNumberOfFailuresIsRemembered(t *testing.T) {
	var m Failures
	at := func(port int) failureKey {
		return failureKey{remote: netip.AddrPortFrom(netip.Addr{}, uint16(port))}
	}
	for port := range maxFailures + 10 {
		m.add(at(port), Failure{}, time.Hour)
	}
	require.Len(t, m.known, maxFailures)
	require.NotNil(t, m.find(at(0), time.Hour))
	m.add(at(maxFailures), Failure{}, 0)
	require.Len(t, m.known, 1, "the others are not remembered any more")
	require.Nil(t, m.find(at(0), time.Hour))
}

// offers is an Acceptor that takes every stream.
type offers struct{}

func (offers) Offer(*link.Stream) wire.RefuseReason { return 0 }
func (offers) Short(error)                          {}

// Connections that a dialer opens before it has proven the link end with the link.
func TestALinkThatIsUsedBeforeItIsProvenIsEnded(t *testing.T) {
	n := sim.New(sim.Link{})
	fl, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:80"), 1)
	require.NoError(t, err)
	defer fl.Close()
	cfg, err := link.NewSetup(nil)
	require.NoError(t, err)
	l := (&ListenConfig{Times: Times{Proof: time.Hour}}).newListener()
	accepted := make(chan error, 1)
	go func() {
		ep, err := fl.Accept()
		if err == nil {
			cfg := cfg
			cfg.Acceptor = offers{}
			_, _, err = l.AcceptLink(context.Background(), ep, cfg)
		}
		accepted <- err
	}()
	ep, err := n.Dial(t.Context(), netip.AddrPort{}, fl.Addr())
	require.NoError(t, err)
	dialing := cfg
	dialing.Proof = &link.Proof{
		Port:    80,
		Connect: func() error { return nil },
		Verify:  func(context.Context, <-chan struct{}) error { return nil },
	}
	s, err := link.Dial(t.Context(), ep, dialing)
	require.NoError(t, err)
	defer s.Close(0)
	early, err := s.Link().Open(t.Context())
	require.NoError(t, err)
	defer early.Close(0)
	l.claims.mu.Lock()
	for _, c := range l.claims.open {
		c.end() // as its time would
	}
	l.claims.mu.Unlock()
	require.ErrorIs(t, <-accepted, ErrUnmet)
	_, err = early.Read(make([]byte, 1), deadline.New())
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.False(t, l.claims.any())
}

// tcpPair returns both ends of a TCP connection, made before there is a bubble of virtual time.
func tcpPair(t *testing.T) (dialed, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	d, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	a, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = d.Close()
		_ = a.Close()
	})
	return d.(*net.TCPConn), a.(*net.TCPConn)
}

// waiting is what waits for Accept once nothing else happens, in virtual time.
func waiting(l *Listener) int {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// wrapping is told of nothing but TCP connections.
type wrapping struct{ transport.Events }

func (wrapping) OpenedTCP(c *net.TCPConn) transport.Conn { return &TCPConn{TCPConn: c} }

// A TCP connection whose link is not confirmed waits for Accept from Times.Proof on, however long the link's
// handshake may take.
func TestAConnectionIsHeldForAProofForItsTimeAtMost(t *testing.T) {
	_, held := tcpPair(t)
	from, to := plain(held.RemoteAddr()), plain(held.LocalAddr())
	synctest.Test(t, func(t *testing.T) {
		const within = 250 * time.Millisecond
		n := sim.New(sim.Link{})
		fl, err := n.Listen(to, 1)
		require.NoError(t, err)
		defer fl.Close()
		cfg, err := link.NewSetup(nil)
		require.NoError(t, err)
		cfg.HandshakeTimeout = time.Hour
		l := (&ListenConfig{ListenConfig: transport.ListenConfig{Events: wrapping{}}, Times: Times{Proof: within}}).newListener()
		go func() {
			if ep, err := fl.Accept(); err == nil {
				cfg := cfg
				cfg.Acceptor = offers{}
				_, _, _ = l.AcceptLink(t.Context(), ep, cfg)
			}
		}()
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, fl.Addr())
		require.NoError(t, err)
		dialing, given := cfg, make(chan struct{})
		defer close(given)
		dialing.Proof = &link.Proof{Port: from.Port(), Connect: func() error {
			<-given // the dialer never confirms before
			return ErrUnmet
		}}
		go func() { _, _ = link.Dial(t.Context(), ep, dialing) }()
		synctest.Wait()

		require.True(t, l.claims.meet(held))
		time.Sleep(within - 1)
		require.Zero(t, waiting(l))
		time.Sleep(time.Nanosecond)
		require.Equal(t, 1, waiting(l))
		require.False(t, l.claims.any())
	})
}

// A TCP listener that fails, for want of descriptors perhaps, fails again at once: one error waits for Accept,
// though while there are claims as many connections may as the backlog allows.
func TestErrorsOfTCPWaitOneAtATime(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	require.NoError(t, tcp.SetDeadline(time.Unix(1, 0))) // as good as any error that is temporary
	synctest.Test(t, func(t *testing.T) {
		l := (&ListenConfig{ListenConfig: transport.ListenConfig{Backlog: 10}}).newListener()
		l.TCP = tcp
		require.True(t, l.claims.add(ends{}, &claim{}))
		l.served.Go(l.serveTCP)
		defer l.Close()
		for range 3 {
			require.Equal(t, 1, waiting(l)) // and serveTCP waits for room
			a, err := l.Next()
			require.NoError(t, err)
			require.ErrorIs(t, a.Err, os.ErrDeadlineExceeded)
		}
	})
}
