//go:build linux

package integration_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
)

// Node 1 listens at one port for connections that ask for something, and at another for
// many that want an echo.
const (
	nodePort = "7171"
	echoPort = "7172"
)

// keepAlive is short, so that tests do not wait long for it.
const keepAlive = time.Second

const defaultResume = 30 * time.Second // Config.ResumeTimeout

// TestNodes runs on two machines joined by a cable. Node 1 serves node 0, until
// that has its power cut.
func TestNodes(t *testing.T) {
	if os.Getenv("SOFTROCE_PEER") == "" {
		t.Skip("SOFTROCE_PEER is not set; bin/softroce -nodes 2 runs this where there are two nodes")
	}
	if os.Getenv("SOFTROCE_NODE") == "1" {
		serveNode(t)
		return
	}
	t.Cleanup(func() { require.NoError(t, control("power off 1")) })
	waitForNode(t)
	n := times(4<<20, 64<<20)
	t.Run("transfers", func(t *testing.T) { atOnce(t, transfers(t, n)...) })
	t.Run("IPv6", func(t *testing.T) {
		require.NoError(t, fetch(ask(t, requireEnv(t, "SOFTROCE_PEER6"), "send", n), n, func() {}))
	})
	t.Run("traffic class", requireTrafficClass)
	t.Run("five hundred dials with one packet in a hundred lost", func(t *testing.T) {
		peer := os.Getenv("SOFTROCE_PEER")
		lossy := ask(t, peer, "lose", 1)
		answer := make([]byte, len(allRight))
		_, err := io.ReadFull(lossy, answer)
		require.NoError(t, err)
		require.Equal(t, allRight, string(answer))
		defer lossy.Close()
		require.NoError(t, netem("add", "loss", "1%"))
		defer netem("delete")
		require.NoError(t, dialAtOnce(500, net.JoinHostPort(peer, echoPort)))
		require.NotZero(t, dropped(t), "packets lost")
	})
	t.Run("transfers with the cable out for ten seconds", func(t *testing.T) {
		peer := os.Getenv("SOFTROCE_PEER")
		started := make(chan struct{})
		start := sync.OnceFunc(func() { close(started) })
		all := []func() error{func() error {
			<-started
			err := control("cable down")
			time.Sleep(10 * time.Second)
			return errors.Join(err, control("cable up"))
		}}
		for range 8 {
			push, down := ask(t, peer, "receive", n), ask(t, peer, "send", n)
			all = append(all,
				func() error { return give(push, n) },
				func() error { return fetch(down, n, start) })
		}
		atOnce(t, all...)
	})
	t.Run("power cut", func(t *testing.T) {
		peer := os.Getenv("SOFTROCE_PEER")
		at := func(resume time.Duration) *ringnet.Conn {
			d := &ringnet.Dialer{Config: &ringnet.Config{KeepAlive: keepAlive, Links: 1, ResumeTimeout: resume}}
			return askWith(t, d, peer, "send", endless)
		}
		conns := map[*ringnet.Conn]time.Duration{at(hasty.ResumeTimeout): 0, at(0): defaultResume} // and how long they wait
		started, over := make(chan struct{}, 2), make(chan time.Time, 2)
		var all []func() error
		for c, waits := range conns {
			all = append(all, func() error {
				err := fetch(c, endless, func() { started <- struct{}{} })
				ended := time.Now()
				cut := <-over
				if !errors.Is(err, syscall.ETIMEDOUT) || ended.Sub(cut) < waits {
					return fmt.Errorf("%w after %v, want ETIMEDOUT after %v", err, ended.Sub(cut), waits)
				}
				return c.Close() // it is lost already
			})
		}
		atOnce(t, append(all, func() error {
			for range conns {
				<-started
			}
			cut := time.Now()
			err := control("power off 1")
			for range conns {
				over <- cut
			}
			return err
		})...)
		_, err := ringnet.DialTimeout("rdma", net.JoinHostPort(peer, nodePort), 5*time.Second)
		require.True(t, err.(net.Error).Timeout(), "%v", err)
	})
}

// The seeds of the streams of each direction.
const (
	seedGiven   = 1
	seedFetched = 2
)

// transfers returns a transfer in each direction, each over a connection of its own.
func transfers(t *testing.T, n int) []func() error {
	t.Helper()
	peer := os.Getenv("SOFTROCE_PEER")
	to, from := ask(t, peer, "receive", n), ask(t, peer, "send", n)
	return []func() error{
		func() error { return give(to, n) },
		func() error { return fetch(from, n, func() {}) },
	}
}

// ask connects to node 1 and tells it what to do.
func ask(t *testing.T, host, what string, n int) *ringnet.Conn {
	t.Helper()
	return askWith(t, &ringnet.Dialer{Config: &ringnet.Config{KeepAlive: keepAlive, Links: 1}}, host, what, n)
}

// askWith is ask over a connection that this dialer makes.
func askWith(t *testing.T, d *ringnet.Dialer, host, what string, n int) *ringnet.Conn {
	t.Helper()
	c, err := d.Dial("rdma", net.JoinHostPort(host, nodePort))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = fmt.Fprintln(c, what, n)
	require.NoError(t, err)
	return c.(*ringnet.Conn)
}

// allRight is the answer of node 1 to a stream without an error.
const allRight = "all right"

// give sends n bytes to a node that receives, which answers that they were right.
func give(c *ringnet.Conn, n int) error {
	if err := (&stream{seed: seedGiven}).send(c, n, 50_000); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(c)
	if err != nil || string(answer) != allRight {
		return fmt.Errorf("the other node: %s, %w", answer, err)
	}
	return nil
}

// fetch receives n bytes from a node that sends, and calls underway after the first of
// them.
func fetch(c *ringnet.Conn, n int, underway func()) error {
	s := &stream{seed: seedFetched}
	first := min(n, 1<<20)
	if err := s.receive(c, first); err != nil {
		return err
	}
	underway()
	return s.receiveAll(c, n-first)
}

// serveNode serves until the power is cut.
func serveNode(t *testing.T) {
	many, err := (&ringnet.ListenConfig{Config: small}).Listen(t.Context(), "rdma", net.JoinHostPort("", echoPort))
	require.NoError(t, err)
	go echoAll(many)
	l, err := ringnet.Listen("rdma", net.JoinHostPort("", nodePort))
	require.NoError(t, err)
	for {
		c, err := l.Accept()
		require.NoError(t, err)
		go serveConn(c.(*ringnet.Conn))
	}
}

// serveConn does what the first line on a connection asks for.
func serveConn(c *ringnet.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	var what string
	var n int
	if _, err := fmt.Fscanln(r, &what, &n); err != nil {
		return
	}
	switch what {
	case "send":
		_ = (&stream{seed: seedFetched}).send(c, n, 50_000) // the peer notices an error
	case "receive":
		if err := (&stream{seed: seedGiven}).receiveAll(r, n); err != nil {
			fmt.Fprint(c, err)
			return
		}
		fmt.Fprint(c, allRight)
	case "lose":
		// What this node sends is lost as long as the connection lasts.
		if err := netem("add", "loss", fmt.Sprint(n, "%")); err != nil {
			fmt.Fprint(c, err)
			return
		}
		defer netem("delete")
		fmt.Fprint(c, allRight)
		_, _ = io.Copy(io.Discard, r)
	}
}

// waitForNode returns when node 1 listens.
func waitForNode(t *testing.T) {
	t.Helper()
	addr := net.JoinHostPort(os.Getenv("SOFTROCE_PEER"), nodePort)
	require.True(t, eventually(func() bool {
		c, err := ringnet.Dial("rdma", addr)
		if err == nil {
			c.Close()
		}
		return !errors.Is(err, syscall.ECONNREFUSED)
	}))
}

// netem changes how this node's interface treats what it sends.
func netem(action string, how ...string) error {
	args := append([]string{"qdisc", action, "dev", os.Getenv("SOFTROCE_NETDEV"), "root", "netem"}, how...)
	if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("tc: %w: %s", err, out)
	}
	return nil
}

// dropped is how many packets netem has dropped.
func dropped(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("tc", "-statistics", "-json", "qdisc", "show", "dev", os.Getenv("SOFTROCE_NETDEV"), "root").Output()
	require.NoError(t, err)
	var qdiscs []struct{ Drops int }
	require.NoError(t, json.Unmarshal(out, &qdiscs))
	require.Len(t, qdiscs, 1)
	t.Log(qdiscs[0].Drops, "packets dropped")
	return qdiscs[0].Drops
}

// control has tools/softroce change something about the nodes or the cable.
func control(request string) error {
	port, err := os.OpenFile(os.Getenv("SOFTROCE_CONTROL"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer port.Close()
	if _, err := fmt.Fprintln(port, request); err != nil {
		return err
	}
	answer, err := bufio.NewReader(port).ReadString('\n')
	if err == nil && answer != "ok\n" {
		err = errors.New(answer)
	}
	return err
}

// requireTrafficClass fetches some bytes from node 1 over a connection with a traffic
// class, and requires that packets of that class pass this node's interface both ways: the
// listener, whose Config has no class, answers in the dialer's.
func requireTrafficClass(t *testing.T) {
	t.Helper()
	const class, n = 106, 4096
	packets := sniff(t)
	d := ringnet.Dialer{Config: &ringnet.Config{TrafficClass: class}}
	c, err := d.Dial("rdma", net.JoinHostPort(os.Getenv("SOFTROCE_PEER"), nodePort))
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprintln(c, "send", n)
	require.NoError(t, err)
	require.NoError(t, fetch(c.(*ringnet.Conn), n, func() {}))

	ways := make(map[bool]int)
	for len(ways) < 2 {
		tos, outgoing := nextRoCE(t, packets)
		if tos == class {
			ways[outgoing]++
		}
	}
}

// sniff returns a socket that gets the IP packets that this node's interface sends and
// receives.
func sniff(t *testing.T) int {
	t.Helper()
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)) // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	ifi, err := net.InterfaceByName(requireEnv(t, "SOFTROCE_NETDEV"))
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}))
	return fd
}

// nextRoCE returns the type of service of the next packet of a connected queue pair, which
// is a UDP packet to port 4791 with an opcode of class RC, and whether this node sent it.
func nextRoCE(t *testing.T, packets int) (tos byte, outgoing bool) {
	t.Helper()
	b := make([]byte, 64)
	for {
		n, from, err := unix.Recvfrom(packets, b, unix.MSG_DONTWAIT)
		require.NoError(t, err, "no packet of that class")
		const ip, udp = 20, 8
		if n <= ip+udp || b[0] != 0x45 || b[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(b[ip+2:]) != 4791 || b[ip+udp]>>5 != 0 {
			continue
		}
		return b[1], from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
	}
}
