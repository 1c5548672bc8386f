package link

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// Handshakes of which one message is lost: the two sides have to agree whether there is a link.

// loses has the network lose messages of the connection manager: of each kind so many.
func loses(n *sim.Network, kinds map[sim.Message]int) {
	var mu sync.Mutex // guards kinds
	n.SetFaults(sim.Faults{Lose: func(_ *sim.Endpoint, m sim.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		kinds[m]--
		return kinds[m] >= 0
	}})
}

// handshakes are the outcomes of both sides of one.
type handshakes struct {
	c, s     *Stream
	accepted chan error // what Accept has returned, when it has
}

// shake has one host dial another, and returns when the dial has ended.
func shake(t *testing.T, n *sim.Network, configure func(*Setup)) (h *handshakes, dialed error) {
	t.Helper()
	return shakeWith(t, t.Context(), n, configure)
}

// shakeWith is shake, with a context for Accept.
func shakeWith(t *testing.T, ctx context.Context, n *sim.Network, configure func(*Setup)) (h *handshakes, dialed error) {
	t.Helper()
	active, passive, dialer := twoCards(n)
	passive.Acceptor = newBacklog()
	for _, cfg := range []*Setup{&active, &passive} {
		cfg.Addresses = new(Addresses)
		configure(cfg)
	}
	l, err := n.Listen(netip.AddrPortFrom(server1, 0), 8)
	require.NoError(t, err)
	h = &handshakes{accepted: make(chan error, 1)}
	go func() {
		ep, err := l.Accept()
		if err == nil {
			_, h.s, err = Accept(ctx, ep, passive)
		}
		h.accepted <- err
	}()
	ep, err := dialer.Dial(t.Context(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	h.c, dialed = Dial(t.Context(), ep, active)
	require.NoError(t, l.Close())
	return h, dialed
}

// proofThatHolds is that of both sides.
var proofThatHolds = &Proof{
	Port:    1,
	Connect: func() error { return nil },
	Verify:  func(context.Context, <-chan struct{}) error { return nil },
}

// TestALinkWhoseConfirmationIsLostGoesOn loses RTU, and then the queue pair, in each of the ways in which either
// side comes to know of that. Dial has returned the connection, so it has to be there.
func TestALinkWhoseConfirmationIsLostGoesOn(t *testing.T) {
	for name, tt := range map[string]struct {
		lost map[sim.Message]int // beside RTU
		lose func(n *sim.Network, c *sim.Endpoint)
	}{
		"and the dialer disconnects": {nil, func(_ *sim.Network, c *sim.Endpoint) { c.Fail(fabric.ErrQueuePair) }},
		"and so is the goodbye":      {map[sim.Message]int{sim.DREQ: 1}, func(_ *sim.Network, c *sim.Endpoint) { c.Fail(fabric.ErrQueuePair) }},
		"with the dialer's port": {nil, func(n *sim.Network, c *sim.Endpoint) {
			n.CutCard(client1, true)
			c.Fail(fabric.ErrPortDown)
		}},
		"with the listener's card": {nil, func(n *sim.Network, c *sim.Endpoint) {
			n.CutCard(server1, true)
			n.Find(c.RemoteAddr(), c.LocalAddr()).Fail(fabric.ErrDeviceRemoved)
		}},
		"and the path for as long as the listener waits": {map[sim.Message]int{sim.DREQ: 1}, func(n *sim.Network, c *sim.Endpoint) {
			n.Cut(true)
			c.Fail(fabric.ErrQueuePair)
			time.AfterFunc(testConfig.HandshakeTimeout+10*time.Second, func() { n.Cut(false) })
		}},
	} {
		for how, configure := range map[string]func(*Setup){
			"":            func(*Setup) {},
			", dedicated": func(cfg *Setup) { cfg.Dedicated = true },
			", proven":    func(cfg *Setup) { cfg.Proof = proofThatHolds },
		} {
			t.Run(name+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := sim.New(far)
					lost := map[sim.Message]int{sim.RTU: 1}
					for m, many := range tt.lost {
						lost[m] = many
					}
					loses(n, lost)
					h, err := shake(t, n, configure)
					require.NoError(t, err)
					tt.lose(n, endpointOf(h.c.link))
					require.NoError(t, writeAll(h.c, []byte("written behind Dial")))
					require.NoError(t, h.c.CloseWrite())
					require.NoError(t, <-h.accepted)
					got, err := readAll(h.s)
					require.NoError(t, err)
					require.Equal(t, "written behind Dial", string(got))
					endAll(t, n, h.c, h.s)
				})
			})
		}
	}
}

// TestALinkWhoseAnswerIsLostNeverWas loses REP: Dial fails, and Accept returns no connection.
func TestALinkWhoseAnswerIsLostNeverWas(t *testing.T) {
	for name, lost := range map[string]map[sim.Message]int{
		"REP":                       {sim.REP: 1},
		"REP, and that Dial failed": {sim.REP: 1, sim.REJ: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				loses(n, lost)
				h, err := shake(t, n, func(*Setup) {})
				require.ErrorIs(t, err, context.DeadlineExceeded)
				began := time.Now()
				require.Error(t, <-h.accepted)
				require.LessOrEqual(t, time.Since(began), testConfig.HandshakeTimeout+30*time.Second)
				require.Nil(t, h.s)
				requireNothingLeft(t, n)
			})
		})
	}
}

// TestAListenerThatGivesUpForgetsTheLink has a listener stop waiting for a confirmation that is lost: no connection
// is accepted, and the dialer's ends.
func TestAListenerThatGivesUpForgetsTheLink(t *testing.T) {
	for name, after := range map[string]time.Duration{"at once": 0, "when it waits for the dialer": testConfig.HandshakeTimeout + time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(far)
				loses(n, map[sim.Message]int{sim.RTU: 1})
				ctx, cancel := context.WithCancel(t.Context())
				h, err := shakeWith(t, ctx, n, func(cfg *Setup) { cfg.KeepAlive = -1 })
				require.NoError(t, err)
				time.Sleep(after)
				began := time.Now()
				cancel()
				require.Error(t, <-h.accepted)
				require.Less(t, time.Since(began), time.Second, "in virtual time")
				_, err = h.c.Read(make([]byte, 1), unlimited())
				require.ErrorIs(t, err, syscall.ECONNRESET)
				endAll(t, n, h.c)
			})
		})
	}
}

// TestALinkGoesOnThoughTheHandshakeOfItsNextQueuePairIsLost loses each message of that, once and twice,
// whichever side asks.
func TestALinkGoesOnThoughTheHandshakeOfItsNextQueuePairIsLost(t *testing.T) {
	for m, name := range map[sim.Message]string{sim.REQ: "REQ", sim.REP: "REP", sim.RTU: "RTU", sim.DREQ: "DREQ"} {
		for times := range 2 {
			for _, dialer := range []bool{true, false} {
				t.Run(fmt.Sprint(name, " ", times+1, " times, dialer ", dialer), func(t *testing.T) {
					onTwoCards(t, func(t *testing.T, n *sim.Network, c, s *Stream) {
						loses(n, map[sim.Message]int{m: times + 1})
						loser := c
						if !dialer {
							loser = s
						}
						endpointOf(loser.link).Fail(fabric.ErrQueuePair)
						require.LessOrEqual(t, requireEcho(t, c, s), 30*time.Second)
					})
				})
			}
		}
	}
}

// cancelsLate is an endpoint whose listener stops waiting for a confirmation in the moment in which it comes.
type cancelsLate struct {
	*sim.Endpoint
	cancel context.CancelFunc
}

func (e cancelsLate) Accept(ctx context.Context, private []byte) error {
	err := e.Endpoint.Accept(ctx, private)
	e.cancel()
	return err
}

// TestALinkThatIsConfirmedIsNotGivenUp has the listener of auto, which waits for a dialer's TCP connection as for
// the confirmation, stop waiting when both have just come. It has proven the link then, so the link stays.
func TestALinkThatIsConfirmedIsNotGivenUp(t *testing.T) {
	onNetwork(t, far, func(t *testing.T, n *sim.Network, l fabric.Listener) {
		cfg := resuming(n)
		cfg.Proof = proofThatHolds
		var s *Stream
		accepted := accepting(l, func(ep fabric.Endpoint) (err error) {
			ctx, cancel := context.WithCancel(t.Context())
			_, s, err = Accept(ctx, cancelsLate{ep.(*sim.Endpoint), cancel}, cfg)
			return err
		})
		ep, err := n.Dial(t.Context(), netip.AddrPort{}, l.Addr())
		require.NoError(t, err)
		c, err := Dial(t.Context(), ep, cfg)
		require.NoError(t, err)
		require.NoError(t, <-accepted)
		synctest.Wait()
		require.NoError(t, exchange(c, s, 1000, 1))
		require.NoError(t, c.Close(time.Minute))
		require.NoError(t, s.Close(time.Minute))
	})
}
