package auto

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// What auto promises is tested in package ringnet, between dialers and listeners. Here are
// moments that cannot be met from there.

func TestABoundedNumberOfFailuresIsRemembered(t *testing.T) {
	var m Failures
	at := func(port int) destination {
		return destination{remote: netip.AddrPortFrom(netip.Addr{}, uint16(port))}
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
