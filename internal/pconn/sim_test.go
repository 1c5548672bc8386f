package pconn_test

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/fabric/sim/datagram"
	"github.com/ringnet/ringnet/internal/packettest"
	"github.com/ringnet/ringnet/internal/pconn"
)

// Conns on a network whose faults the test decides.

const latency = 10 * time.Millisecond

// virtual runs f in virtual time on a network of such links, and requires that nothing on it
// is open at the end.
func virtual(t *testing.T, l datagram.Link, f func(t *testing.T, n *datagram.Network)) {
	synctest.Test(t, func(t *testing.T) { f(t, newNetwork(t, l)) })
}

func newNetwork(t *testing.T, l datagram.Link) *datagram.Network {
	n := datagram.New(l)
	t.Cleanup(func() { require.Zero(t, n.Open(), "endpoints or address handles left open") })
	return n
}

// addrPort is an address of the form "host:port", of which the host may be missing.
func addrPort(address string) (netip.AddrPort, error) {
	if port, ok := strings.CutPrefix(address, ":"); ok {
		a, err := netip.ParseAddrPort("0.0.0.0:" + port)
		return netip.AddrPortFrom(netip.Addr{}, a.Port()), err
	}
	return netip.ParseAddrPort(address)
}

// groupsOf returns what package packettest needs to test the groups of a network.
func groupsOf(n *datagram.Network) *packettest.Groups {
	return &packettest.Groups{
		Listen: func(group string) (net.PacketConn, error) {
			c, err := pconn.Listen(n, pconn.Options{Network: "sim", Local: netip.MustParseAddrPort("10.0.0.1:0")})
			if err != nil {
				return nil, err
			}
			return c, c.JoinGroup(nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(group)))
		},
		Leave: func(member net.PacketConn, group string) error {
			return member.(*pconn.Conn).LeaveGroup(nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(group)))
		},
		Sender: func(net.PacketConn) error { return nil },
	}
}

func TestConnOverSim(t *testing.T) {
	suite := func(n *datagram.Network, prompt bool) packettest.Network {
		return packettest.Network{
			Listen: func(address string) (net.PacketConn, error) {
				local, err := addrPort(address)
				if err != nil {
					return nil, err
				}
				c, err := pconn.Listen(n, pconn.Options{Network: "sim", Local: local})
				if err != nil {
					return nil, &net.OpError{Op: "listen", Net: "sim", Err: err}
				}
				return c, nil
			},
			Dial: func(address string) (net.Conn, error) {
				remote, err := addrPort(address)
				if err != nil {
					return nil, err
				}
				return pconn.Listen(n, pconn.Options{Network: "sim", Local: netip.AddrPortFrom(remote.Addr(), 0), Remote: remote})
			},
			Batch:  func(c net.PacketConn) packettest.Batcher { return packettest.Batches(c.(*pconn.Conn)) },
			Host:   "10.0.0.1",
			Most:   4088,
			Burst:  64,
			Prompt: prompt,
			Groups: groupsOf(n),
		}
	}
	t.Run("at once", func(t *testing.T) {
		each := func(t *testing.T, test func(*testing.T, packettest.Network)) {
			virtual(t, datagram.Link{}, func(t *testing.T, n *datagram.Network) { test(t, suite(n, true)) })
		}
		packettest.Each(t, each)
		packettest.EachOfGroups(t, each)
	})
	t.Run("far away", func(t *testing.T) {
		each := func(t *testing.T, test func(*testing.T, packettest.Network)) {
			virtual(t, datagram.Link{Link: sim.Link{Latency: latency}}, func(t *testing.T, n *datagram.Network) { test(t, suite(n, false)) })
		}
		packettest.Each(t, each)
		packettest.EachOfGroups(t, each)
	})
	t.Run("in real time", func(t *testing.T) {
		packettest.Test(t, suite(newNetwork(t, datagram.Link{Link: sim.Link{Spin: 1000}}), true))
	})
}

// listen returns a Conn, which the test closes in the end.
func listen(t *testing.T, n *datagram.Network, local string) *pconn.Conn {
	t.Helper()
	c, err := pconn.Listen(n, pconn.Options{Network: "sim", Local: netip.MustParseAddrPort(local)})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// write sends a number.
func write(t *testing.T, c *pconn.Conn, i int, to net.Addr) {
	t.Helper()
	_, err := c.WriteTo([]byte(strconv.Itoa(i)), to)
	require.NoError(t, err)
}

// readAll reads the numbers that have arrived by now, or arrive within a time.
func readAll(t *testing.T, c *pconn.Conn, within time.Duration) (numbers []int) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(within)))
	b := make([]byte, 100)
	for {
		n, err := c.Read(b)
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return numbers
		}
		i, err := strconv.Atoi(string(b[:n]))
		require.NoError(t, err)
		numbers = append(numbers, i)
	}
}

// missing is how many numbers are not there between the first and the last.
func missing(numbers []int) uint64 {
	if len(numbers) == 0 {
		return 0
	}
	there := make(map[int]bool)
	for _, i := range numbers {
		there[i] = true
	}
	return uint64(slices.Max(numbers)-slices.Min(numbers)+1) - uint64(len(there))
}

// Missed counts exactly the datagrams that were lost on the way, or not read in time, once a
// later one has arrived. A datagram that arrives twice changes nothing.
func TestMissedIsExact(t *testing.T) {
	for seed := range uint64(5) {
		link := datagram.Link{Link: sim.Link{Latency: latency, Seed: seed}, Loss: 0.2, Duplicates: 0.1}
		virtual(t, link, func(t *testing.T, n *datagram.Network) {
			a, b := listen(t, n, "10.0.0.1:0"), listen(t, n, "10.0.0.2:0")
			g := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("239.1.2.3:7"))
			require.NoError(t, b.JoinGroup(nil, g))
			var own, groups []int
			const offset = 1 << 20 // of the numbers that go to the group
			for i := range 3000 {
				write(t, a, i, b.LocalAddr())
				if i%3 == 0 {
					write(t, a, offset+i/3, g)
				}
				if i%1000 > 500 { // the receiver reads for a while, and is overrun for a while
					for _, number := range readAll(t, b, time.Millisecond) {
						if number >= offset {
							groups = append(groups, number)
						} else {
							own = append(own, number)
						}
					}
				}
				if i%100 == 99 {
					require.Equal(t, missing(own)+missing(groups), b.Stats().Missed)
				}
			}
			require.EqualValues(t, len(own)+len(groups), b.Stats().Received)
			require.Greater(t, len(own), 500)
			require.Greater(t, len(groups), 100)
			require.NotZero(t, n.Overruns())
			require.EqualValues(t, 4000, a.Stats().Sent)
		})
	}
}

// Missed does not count datagrams that were sent while a Conn was not a member of the group,
// or to other addresses.
func TestMissedLeavesOutWhatWasNotSentHere(t *testing.T) {
	virtual(t, datagram.Link{}, func(t *testing.T, n *datagram.Network) {
		a, b := listen(t, n, "10.0.0.1:0"), listen(t, n, "0.0.0.0:0")
		g := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("239.1.2.3:7"))
		for i := range 300 {
			switch i {
			case 0, 200:
				require.NoError(t, b.JoinGroup(nil, g))
			case 100:
				require.NoError(t, b.LeaveGroup(nil, g))
			}
			write(t, a, i, g)
			require.Len(t, readAll(t, b, time.Millisecond), map[bool]int{true: 1}[i < 100 || i >= 200])
		}
		port := b.LocalAddr().(fabric.Addr).AddrPort().Port()
		for i := range 300 {
			to := map[bool]string{true: "10.0.0.2", false: "10.0.0.3"}[i < 100 || i%3 == 0]
			write(t, a, i, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), port)))
			require.Len(t, readAll(t, b, time.Millisecond), 1)
		}
		require.Zero(t, b.Stats().Missed)
	})
}

func TestMissedCountsWhatWasSentWhileTheCableWasCut(t *testing.T) {
	virtual(t, datagram.Link{}, func(t *testing.T, n *datagram.Network) {
		a, b := listen(t, n, "10.0.0.1:0"), listen(t, n, "10.0.0.2:0")
		for i := range 100 {
			n.Cut(i >= 30 && i < 50)
			write(t, a, i, b.LocalAddr())
			require.Len(t, readAll(t, b, time.Millisecond), map[bool]int{true: 1}[i < 30 || i >= 50])
		}
		require.EqualValues(t, 20, b.Stats().Missed)
		require.EqualValues(t, 100, a.Stats().Sent)
	})
}

// Reads and writes that are under way when the device is removed, or begin later, fail. They
// do not wait for Close.
func TestDeviceRemovedFailsAllCalls(t *testing.T) {
	virtual(t, datagram.Link{Link: sim.Link{Latency: latency}}, func(t *testing.T, n *datagram.Network) {
		c, err := pconn.Listen(n, pconn.Options{Network: "sim", Local: netip.MustParseAddrPort("10.0.0.1:1")})
		require.NoError(t, err)
		defer c.Close()
		reads := make(chan error)
		for range 2 {
			go func() {
				_, _, err := c.ReadFrom(make([]byte, 10))
				reads <- err
			}()
		}
		synctest.Wait()
		n.RemoveDevice()
		_, written := c.WriteTo([]byte("hello"), fabric.NewAddr("sim", netip.MustParseAddrPort("10.0.0.2:1")))
		_, _, later := c.ReadFrom(make([]byte, 10))
		for _, err := range []error{<-reads, <-reads, written, later} {
			require.ErrorIs(t, err, syscall.ENETDOWN)
			require.ErrorContains(t, err, "RDMA device removed")
		}
	})
}

// A receiver that does not read makes others lose nothing, whether the same Conn sends to
// both or another does, in turn or in a batch, or both are members of one group.
func TestReceiverThatIsOverrunCostsOthersNothing(t *testing.T) {
	virtual(t, datagram.Link{Link: sim.Link{Latency: latency}}, func(t *testing.T, n *datagram.Network) {
		a, b := listen(t, n, "10.0.0.1:0"), listen(t, n, "10.0.0.1:0")
		deaf, keen := listen(t, n, "10.0.0.2:0"), listen(t, n, "10.0.0.3:0")
		g := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("239.1.2.3:7"))
		for _, c := range []*pconn.Conn{deaf, keen} {
			require.NoError(t, c.SetReadBuffer(64<<10))
			require.NoError(t, c.JoinGroup(nil, g))
		}
		for _, c := range []*pconn.Conn{a, b} { // so that they have found all receivers
			write(t, c, -1, deaf.LocalAddr())
			write(t, c, -1, keen.LocalAddr())
		}
		require.Len(t, append(readAll(t, deaf, time.Second), readAll(t, keen, time.Second)...), 4)
		const rounds = 200
		received := 0
		for i := range rounds {
			var ms []pconn.Message
			for _, to := range []net.Addr{deaf.LocalAddr(), keen.LocalAddr(), g, deaf.LocalAddr(), g} {
				ms = append(ms, pconn.Message{Buffers: [][]byte{[]byte(strconv.Itoa(i))}, Addr: to})
			}
			sent, err := a.WriteBatch(ms, 0)
			require.NoError(t, err)
			require.Equal(t, len(ms), sent)
			write(t, b, i, deaf.LocalAddr())
			write(t, b, i, keen.LocalAddr())
			received += len(readAll(t, keen, time.Millisecond))
		}
		received += len(readAll(t, keen, time.Second))
		require.Equal(t, 4*rounds, received)
		require.Zero(t, keen.Stats().Missed)

		readAll(t, deaf, time.Second)
		for _, c := range []*pconn.Conn{a, b} {
			write(t, c, rounds, deaf.LocalAddr())
		}
		write(t, a, rounds, g)
		require.Len(t, readAll(t, deaf, time.Second), 3)
		require.Equal(t, n.Overruns(), deaf.Stats().Missed)
		require.EqualValues(t, 5*rounds-2*16, deaf.Stats().Missed, "16 were of its own, and 16 of the group's")
	})
}
