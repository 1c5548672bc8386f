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
	"runtime"
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

// linger is for how long Close waits, in seconds: longer than any fault lasts.
const linger = 60

// onNodes skips a test unless it runs on two machines joined by a cable, or on two hosts of ideal cards.
// It returns on node 0. Node 1 serves, until node 0 cuts its power.
func onNodes(t *testing.T, serve func()) {
	t.Helper()
	if os.Getenv("SOFTROCE_PEER") == "" {
		t.Skip("SOFTROCE_PEER is not set; bin/softroce -nodes 2 runs this where there are two nodes")
	}
	if os.Getenv("SOFTROCE_NODE") == "1" {
		serve()
	}
	t.Cleanup(func() { require.NoError(t, control("power off 1")) })
}

func TestNodes(t *testing.T) {
	onNodes(t, func() {
		many, err := (&ringnet.ListenConfig{Config: small}).Listen(t.Context(), "rdma", net.JoinHostPort("", echoPort))
		require.NoError(t, err)
		go echoAll(many)
		serveNode(t, ringnet.ListenConfig{})
	})
	waitForNode(t)
	peer := os.Getenv("SOFTROCE_PEER")
	n := times(4<<20, 64<<20)
	t.Run("transfers", func(t *testing.T) {
		to, from := ask(t, peer, "receive", n), ask(t, peer, "send", n)
		atOnce(t, func() error { return give(to, seedOfNodes, n) }, func() error { return fetch(from, seedOfNodes, n) })
	})
	t.Run("IPv6", func(t *testing.T) {
		require.NoError(t, fetch(ask(t, requireEnv(t, "SOFTROCE_PEER6"), "send", n), seedOfNodes, n))
	})
	t.Run("traffic class", requireTrafficClass)
	t.Run("five hundred dials with one packet in a hundred lost", func(t *testing.T) {
		defer ask(t, peer, "lose", 1).Close()
		require.NoError(t, netem("add", "loss", "1%"))
		defer netem("delete")
		d := ringnet.Dialer{Config: small, Timeout: 5 * time.Minute}
		dials := make([]func() error, 500)
		for i := range dials {
			dials[i] = func() error {
				c, err := d.Dial("rdma", net.JoinHostPort(peer, echoPort))
				if err != nil {
					return err
				}
				defer c.Close()
				return echoed(c, 100)
			}
		}
		atOnce(t, dials...)
		require.NotZero(t, dropped(t), "packets lost")
	})
}

// seedOfNodes has give write 50,000 bytes at once.
const seedOfNodes = 49_999

// ask has node 1 do something, over a connection that the end of the test closes.
func ask(t *testing.T, host, what string, n int) *ringnet.Conn {
	t.Helper()
	c, err := order(&ringnet.Dialer{Config: &ringnet.Config{KeepAlive: keepAlive, Links: 1}}, host, what, seedOfNodes, n)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// order connects to node 1 and tells it what to do, which it has begun then.
func order(d *ringnet.Dialer, host, what string, seed uint64, n int) (*ringnet.Conn, error) {
	c, err := d.Dial("rdma", net.JoinHostPort(host, nodePort))
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintln(c, what, seed, n) // the Read below has the error, too
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		c.Close()
		return nil, err
	}
	return c.(*ringnet.Conn), nil
}

// allRight is the answer of node 1 to a stream without an error.
const allRight = "all right"

// give sends n bytes to a node that receives, which answers that they were right.
func give(c *ringnet.Conn, seed uint64, n int) error {
	s := &stream{seed: seed}
	if err := s.send(c, n, 1+int(seed%100_000)); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(c)
	if err == nil && string(answer) != allRight {
		err = errors.New(string(answer))
	}
	return err
}

// fetch receives n bytes from a node that sends.
func fetch(c *ringnet.Conn, seed uint64, n int) error { return (&stream{seed: seed}).receiveAll(c, n) }

// serveNode serves node 0 until the power is cut.
func serveNode(t *testing.T, lc ringnet.ListenConfig) {
	l, err := lc.Listen(t.Context(), "rdma", net.JoinHostPort("", nodePort))
	require.NoError(t, err)
	for {
		c, err := l.Accept()
		require.NoError(t, err)
		go func() {
			if err := obeyOrder(c.(*ringnet.Conn)); err != nil {
				t.Log(err)
			}
		}()
	}
}

// obeyOrder does what the first line on a connection asks for.
func obeyOrder(c *ringnet.Conn) (err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetLinger(linger); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	var what string
	var seed uint64
	var n int
	if _, err := fmt.Fscanln(r, &what, &seed, &n); err != nil {
		return nil // the dialer has given up
	}
	if what == "lose" { // what this node sends, as long as the connection lasts
		if err := netem("add", "loss", fmt.Sprint(n, "%")); err != nil {
			return err
		}
		defer netem("delete")
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return nil
	}
	s := &stream{seed: seed}
	switch what {
	case "send":
		err = s.send(c, n, 50_000)
	case "receive":
		if err = s.receiveAll(r, n); err == nil {
			_, err = fmt.Fprint(c, allRight)
		}
	case "echo", "lose":
		_, err = io.Copy(c, r)
	case "stacks":
		b := make([]byte, 1<<20)
		_, err = c.Write(b[:runtime.Stack(b, true)])
	case "state":
		err = json.NewEncoder(c).Encode(reported())
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// waitForNode returns when node 1 serves.
func waitForNode(t *testing.T) {
	t.Helper()
	require.True(t, eventually(func() bool {
		c, err := order(new(ringnet.Dialer), os.Getenv("SOFTROCE_PEER"), "echo", 0, 0)
		if err == nil {
			c.Close()
		}
		return err == nil
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
	c, err := order(&d, os.Getenv("SOFTROCE_PEER"), "send", seedOfNodes, n)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, fetch(c, seedOfNodes, n))

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
