package link

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/deadline"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

var testConfig = Setup{
	Config: Config{
		RecvBuffer:       1 << 20,
		SendBuffer:       1 << 20,
		SendQueue:        128,
		RecvQueue:        256,
		KeepAlive:        -1,
		HandshakeTimeout: 10 * time.Second,
		LinkIdle:         30 * time.Second,
		AckTimeout:       500 * time.Millisecond,
		Retries:          6,
	},
	ProbeTimeout: 15 * time.Second,
	FirstStaging: firstStaging,
	RemoteMemory: 256 << 20,
	Budget:       budget.New(func() budget.Limits { return budget.Limits{Registered: budget.Unlimited, Locked: budget.Unlimited} }),
}

// far is a link on which nothing happens at once and sends and receives
// complete in odd orders.
var far = sim.Link{Latency: 200 * time.Microsecond, Bandwidth: 1 << 30, Jitter: time.Millisecond, Seed: 1}

// backlog takes what streams come.
type backlog struct {
	mu      sync.Mutex
	streams []*Stream
	refuse  wire.RefuseReason
	came    chan struct{}
}

func newBacklog() *backlog { return &backlog{came: make(chan struct{}, 1<<17)} }

func (b *backlog) Short(error) {}

func (b *backlog) Offer(s *Stream) wire.RefuseReason {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != 0 {
		return b.refuse
	}
	b.streams = append(b.streams, s)
	b.came <- struct{}{}
	return 0
}

func (b *backlog) accept() *Stream {
	<-b.came
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[0]
	b.streams = b.streams[1:]
	return s
}

// dialer makes a link on a simulated network and returns its first stream at
// both ends, and the listening side's backlog.
func connectLink(t testing.TB, n fabric.Fabric, active, passive Setup) (c, s *Stream, b *backlog) {
	t.Helper()
	l, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:0"), 8)
	require.NoError(t, err)
	defer l.Close()
	b = newBacklog()
	passive.Acceptor = b
	passive.Addresses = new(Addresses)
	active.Addresses = new(Addresses)
	accepted := make(chan *Stream, 1)
	go func() {
		ep, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		_, s, _ := Accept(context.Background(), ep, passive)
		accepted <- s
	}()
	ep, err := n.Dial(context.Background(), netip.AddrPort{}, l.Addr())
	require.NoError(t, err)
	c, err = Dial(context.Background(), ep, active)
	require.NoError(t, err)
	return c, <-accepted, b
}

// virtually runs a test in virtual time, on an instant link and on a far one.
// In the end nothing may be left.
func virtually(t *testing.T, test func(t *testing.T, n *sim.Network)) {
	for name, link := range map[string]sim.Link{"instant": {}, "far": far} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(link)
				test(t, n)
				endAll(t, n)
			})
		})
	}
}

// requireNothingLeft requires that links which have been closed leave nothing.
func requireNothingLeft(t *testing.T, n *sim.Network) {
	t.Helper()
	time.Sleep(2 * time.Minute)
	require.Zero(t, n.Open(), "endpoints or listeners left open")
	require.Zero(t, inUse(testConfig.Budget), "memory left in use")
}

// endAll closes streams. Nothing may be left.
func endAll(t *testing.T, n *sim.Network, streams ...*Stream) {
	t.Helper()
	for _, s := range streams {
		up := s.link.usable() && !s.wasReset()
		if err := s.Close(time.Minute); up && err != net.ErrClosed {
			require.NoError(t, err)
		}
	}
	requireNothingLeft(t, n)
	require.Zero(t, n.RNR(), "receiver not ready")
}

// wasReset reports whether the peer has reset the stream: it has closed it with bytes unread.
func (s *Stream) wasReset() bool {
	s.link.lock()
	defer s.link.unlock()
	s.link.pollCompletions()
	return s.m.State() == "reset"
}

// inUse is how many bytes of a budget are in use.
func inUse(b *budget.Budget) int {
	used, _ := b.State()
	return used.Registered
}

// unlimited is a deadline that does not pass.
var unlimited = deadline.New

func writeAll(s *Stream, p []byte) error {
	_, err := s.Write(p, unlimited())
	return err
}

func readAll(s *Stream) ([]byte, error) {
	var got bytes.Buffer
	b := make([]byte, 32<<10)
	for {
		n, err := s.Read(b, unlimited())
		got.Write(b[:n])
		if err == io.EOF {
			return got.Bytes(), nil
		}
		if err != nil {
			return got.Bytes(), err
		}
	}
}

// A conversation never fills its ring, but a small one wants a CREDIT for each
// message of a quarter of it. Where memory is shared the ring grows by less: the memory of a
// host's processes is in its caches as long as there is little of it.
func TestRingsGrowUnderABusyConversation(t *testing.T) {
	for name, tt := range map[string]struct {
		link sim.Link
		ring int
	}{
		"over a wire": {sim.Link{}, eagerRing},
		"in memory":   {sim.Link{Inline: worthwhile}, sharedRing},
	} {
		t.Run(name, func(t *testing.T) {
			onLink(t, tt.link, testConfig, testConfig, 2, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
				client, server := clients[1], servers[1]
				const size = 4 << 10
				talk := func(messages int) {
					for range messages {
						for _, way := range [][2]*Stream{{client, server}, {server, client}} {
							require.NoError(t, writeAll(way[0], make([]byte, size)))
							_, err := way[1].Discard(size, unlimited())
							require.NoError(t, err)
						}
					}
				}
				for range creditsToGrow {
					talk(3)
					time.Sleep(20 * time.Millisecond)
				}
				require.Equal(t, firstRing, client.ringSize(), "three messages in 20 ms")
				talk(3 * creditsToGrow)
				synctest.Wait() // for the memory
				talk(1)
				require.Equal(t, tt.ring, client.ringSize())
				require.Equal(t, tt.ring, server.ringSize())
				sent := client.Stats().CreditsSent
				talk(3 * creditsToGrow)
				require.LessOrEqual(t, client.Stats().CreditsSent-sent, uint64(3*creditsToGrow*size/(tt.ring/4)+1))
				require.Equal(t, tt.ring, client.ringSize())
			})
		})
	}
}

// Over a long way CREDITs come in bursts, a round trip apart, and a larger ring is what makes a
// stream faster.
func TestRingsGrowOverALongWay(t *testing.T) {
	onLink(t, sim.Link{Latency: 20 * time.Millisecond}, testConfig, testConfig, 1, func(t *testing.T, n *sim.Network, clients, servers []*Stream) {
		require.NoError(t, exchange(clients[0], servers[0], 8<<20, 1))
		require.Equal(t, testConfig.RecvBuffer, servers[0].ringSize())
	})
}

// A link counts the work requests that it posts, each among those of its kind.
func TestALinkCountsWhatItPosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(far)
		var posted sync.Map // by endpoint, its *Stats
		n.SetFaults(sim.Faults{PostSend: func(e *sim.Endpoint, wr []fabric.WorkRequest) error {
			v, _ := posted.LoadOrStore(e, new(Stats))
			s := v.(*Stats) // posts are made one at a time
			for i := range wr {
				s.WorkRequests++
				if wr[i].Signaled {
					s.Signaled++
				}
				switch wr[i].Op {
				case fabric.WriteImm:
					s.MessagesSent++
					s.BytesSent += uint64(wr[i].Len())
				case fabric.Send:
					s.ControlSent++
				case fabric.Write:
					s.Probes++
				}
			}
			return nil
		}})
		cfg := testConfig
		cfg.KeepAlive = time.Second
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 3)
		for i := range clients {
			require.NoError(t, exchange(clients[i], servers[i], 1<<20, uint64(i)))
		}
		time.Sleep(10 * time.Second) // of probes
		for _, l := range []*Link{clients[0].link, servers[0].link} {
			v, _ := posted.Load(endpointOf(l))
			want, got := *v.(*Stats), l.Stats()
			require.Positive(t, want.Probes)
			require.Positive(t, want.ControlSent)
			got.BytesSent = l.Info().BytesSent // with those of streams that are not over
			got.BytesReceived, got.MessagesReceived, got.Events = 0, 0, 0
			require.Equal(t, want, got)
		}
		endAll(t, n, append(clients, servers...)...)
	})
}

// stageTable is the table at machine.Stage: what may come after each.
var stageTable = map[machine.Stage][]machine.Stage{
	machine.Up:       {machine.Draining, machine.Ending},
	machine.Draining: {machine.Seeking, machine.Ending, machine.Ended},
	machine.Ending:   {machine.Ended, machine.Closed},
	machine.Seeking:  {machine.Up, machine.Ended},
	machine.Ended:    {machine.Closed},
}

// All tests of this package hold all links to the table.
func init() {
	machine.TestHookEnter = func(before, after machine.Stage) {
		if !slices.Contains(stageTable[before], after) {
			panic(fmt.Sprintf("a link goes from stage %d to %d", before, after))
		}
	}
}
