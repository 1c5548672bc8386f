//go:build linux

package integration_test

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
)

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

// nodes is what node 0 does with node 1, and with the cables.
type nodes struct{ t *testing.T }

// obeyed returns on node 0, when node 1 obeys it.
func obeyed(t *testing.T) nodes {
	onNodes(t, func() { obey(t) })
	n := nodes{t}
	n.await()
	return n
}

func TestNodes(t *testing.T) {
	obeyed(t).there("start")
	exchange := func(d *ringnet.Dialer, host string, up, down int) error {
		c, err := visit(d, host, 49_999) // which writes 50,000 bytes at once
		if err != nil {
			return err
		}
		return errors.Join(c.exchange(up, down), c.leave())
	}
	peer, many := os.Getenv("SOFTROCE_PEER"), times(4<<20, 64<<20)
	t.Run("transfers", func(t *testing.T) {
		atOnce(t,
			func() error { return exchange(new(ringnet.Dialer), peer, many, 1) },
			func() error { return exchange(new(ringnet.Dialer), peer, 1, many) })
	})
	t.Run("IPv6", func(t *testing.T) {
		require.NoError(t, exchange(new(ringnet.Dialer), requireEnv(t, "SOFTROCE_PEER6"), 1, many))
	})
	// Packets of the class pass this node's interface both ways: the listener, whose Config has no class,
	// answers in the dialer's.
	t.Run("traffic class", func(t *testing.T) {
		const class = 106
		packets := sniff(t)
		require.NoError(t, exchange(&ringnet.Dialer{Config: &ringnet.Config{TrafficClass: class}}, peer, 1, 4096))
		ways := make(map[bool]int)
		for len(ways) < 2 {
			tos, outgoing := nextRoCE(t, packets)
			if tos == class {
				ways[outgoing]++
			}
		}
	})
	t.Run("five hundred dials with one packet in a hundred lost", func(t *testing.T) {
		n := nodes{t}
		n.there("sh: " + netem("add", "loss 1%"))
		n.here(netem("add", "loss 1%"))
		d := ringnet.Dialer{Config: small, Timeout: 5 * time.Minute}
		dials := make([]func() error, 500)
		for i := range dials {
			dials[i] = func() error { return exchange(&d, peer, 100, 100) }
		}
		atOnce(t, dials...)
		require.NotZero(t, dropped(t), "packets lost")
		n.here(netem("delete", ""))
	})
}

// talker is the client's end of a connection of the traffic.
type talker struct {
	net.Conn
	out, in stream
	most    int // bytes of a Write
}

// talk begins a connection of the traffic.
func talk(c net.Conn, kind, seed uint64, most int) (*talker, error) {
	return &talker{c, stream{seed: seed}, stream{seed: seed}, most}, binary.Write(c, binary.BigEndian, hello{kind, seed})
}

// ask sends so many bytes, and asks for so many.
func (k *talker) ask(up, down int) error {
	if err := binary.Write(k, binary.BigEndian, request{uint32(up), uint32(down)}); err != nil {
		return err
	}
	return k.out.send(k, up, k.most)
}

// exchange sends so many bytes, and receives so many. If there is one, all that was sent was right.
func (k *talker) exchange(up, down int) error {
	if err := k.ask(up, down); err != nil {
		return err
	}
	return k.in.receive(k, down)
}

// visit connects to the server at a host, which has answered then.
func visit(d *ringnet.Dialer, host string, seed uint64) (*talker, error) {
	c, err := d.Dial("rdma", net.JoinHostPort(host, trafficPorts["rdma"]))
	if err != nil {
		return nil, err
	}
	k, err := talk(c, unobserved, seed, 1+int(seed%100_000))
	if err == nil {
		err = k.exchange(0, 1)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return k, nil
}

// leave ends a visit in order.
func (k *talker) leave() error {
	return errors.Join(k.Conn.(*ringnet.Conn).CloseWrite(), k.in.receiveAll(k, 0), k.Close())
}

// netem is a command that changes how a node's interfaces treat what it sends.
func netem(do, how string) string {
	var all []string
	for _, dev := range []string{os.Getenv("SOFTROCE_NETDEV"), os.Getenv("SOFTROCE_SECOND_NETDEV")} {
		if dev != "" {
			all = append(all, fmt.Sprintf("tc qdisc %s dev %s root netem %s", do, dev, how))
		}
	}
	return strings.Join(all, " && ")
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

func (n nodes) control(request string) {
	n.t.Helper()
	require.NoError(n.t, control(request))
}

// cut breaks something, such as a cable of a number, or both, and mends it after a while.
func (n nodes) cut(what, number string, d time.Duration) {
	n.t.Helper()
	n.control(what + " down " + number)
	time.Sleep(d)
	n.control(what + " up " + number)
}

// here runs a command in a shell of this node.
func (n nodes) here(command string) {
	n.t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(n.t, err, "%s: %s", command, out)
}

// there has node 1 obey an order, and returns its answer.
func (n nodes) there(order string) string {
	n.t.Helper()
	answer, err := orderNode(order)
	require.NoError(n.t, err)
	answer, ok := strings.CutPrefix(answer, "ok ")
	require.True(n.t, ok, "%s: %s", order, answer)
	return answer
}

// ask has the server of node 1 say something of itself.
func (n nodes) ask(what string, x any) {
	n.t.Helper()
	require.NoError(n.t, json.Unmarshal([]byte(n.there("ask: "+what)), x))
}

// await returns when node 1 takes orders.
func (n nodes) await() {
	n.t.Helper()
	require.True(n.t, eventually(func() bool {
		_, err := orderNode("sh: true")
		return err == nil
	}))
}

// orderPort is where node 1 takes orders, one on each connection.
const orderPort = "7184"

func orderNode(order string) (string, error) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(cmp.Or(os.Getenv("SOFTROCE_SECOND_PEER"), os.Getenv("SOFTROCE_PEER")), orderPort), 10*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, order); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	if err == nil && len(answer) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return strings.TrimSuffix(string(answer), "\n"), err
}

// obey obeys node 0 until the power is cut.
func obey(t *testing.T) {
	l, err := net.Listen("tcp", net.JoinHostPort("", orderPort))
	require.NoError(t, err)
	var server *process
	end := func() {
		if server != nil {
			_ = server.cmd.Process.Kill() // the process may have been killed already
			_ = server.cmd.Wait()
		}
	}
	for {
		c, err := l.Accept()
		require.NoError(t, err)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			c.Close()
			continue
		}
		what, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		answer := ""
		switch what {
		case "start":
			end() // ends that of a row that has failed
			role := "traffic server"
			if rest == "ports" {
				role = "ports server"
			}
			server = startAs(t, map[string]*syscall.SysProcAttr{"nobody": nobody}[rest], role, rest)
			require.Equal(t, "done", server.hear())
		case "tell":
			server.tell(rest)
		case "ask":
			server.say(rest)
			answer = server.hear()
		case "signal":
			var s int
			_, err = fmt.Sscan(rest, &s)
			if err == nil {
				err = server.cmd.Process.Signal(syscall.Signal(s))
			}
		case "no more memory":
			noMoreMemory(t, server)
		case "stop":
			end()
		case "sh":
			var out []byte
			if out, err = exec.Command("sh", "-c", rest).CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
		}
		if err != nil {
			fmt.Fprintln(c, "error", err)
		} else {
			fmt.Fprintln(c, "ok", answer)
		}
		c.Close()
	}
}
