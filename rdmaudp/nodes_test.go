//go:build linux

package rdmaudp_test

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/rdmaudp"
)

// Node 1 sends a question back. Before that it may be asked to join the group, or to leave it.
const (
	datagramPort = "7173"
	sameAgain    = 0
	joinGroup    = 1
	leaveGroup   = 2
)

var nodesGroup = &net.UDPAddr{IP: net.IPv4(239, 255, 71, 74), Port: 7174}

func TestDatagramsBetweenNodes(t *testing.T) {
	onNodes(t, func() { answerDatagrams(t) })
	t.Run("a group", testGroupOfNodes)
	for _, env := range []string{"SOFTROCE_PEER", "SOFTROCE_PEER6"} {
		c, err := rdmaudp.Dial("rdma-udp", net.JoinHostPort(requireEnv(t, env), datagramPort))
		require.NoError(t, err)
		defer c.Close()
		a := asker{PacketConn: c}
		a.askUntilAnswered(t, sameAgain, 0)
		t.Run("round trips to "+env, func(t *testing.T) {
			for size := range a.MaxMessage() - askSize + 1 {
				if size%37 == 0 || size == a.MaxMessage()-askSize {
					a.askUntilAnswered(t, sameAgain, size)
				}
			}
			require.Zero(t, a.Stats().Missed)
		})
		t.Run("the cable out, to "+env, func(t *testing.T) {
			require.NoError(t, control("cable down"))
			require.False(t, a.ask(t, sameAgain, 100))
			require.NoError(t, control("cable up"))
			a.askUntilAnswered(t, sameAgain, 100)
		})
	}
}

// testGroupOfNodes sends to a group whose members are on both nodes. Node 1 sends back what
// it receives.
func testGroupOfNodes(t *testing.T) {
	c, err := rdmaudp.Dial("rdma-udp", net.JoinHostPort(requireEnv(t, "SOFTROCE_PEER"), datagramPort))
	require.NoError(t, err)
	defer c.Close()
	node1 := asker{PacketConn: c}
	node1.askUntilAnswered(t, joinGroup, 0)
	pc, err := rdmaudp.Listen("rdma-udp", net.JoinHostPort(requireEnv(t, "SOFTROCE_ADDR"), "0"))
	require.NoError(t, err)
	defer pc.Close()
	sender := asker{PacketConn: pc, to: nodesGroup}
	require.NoError(t, sender.JoinGroup(nil, nodesGroup)) // it receives its own datagrams, too
	heard := func(answers int) func() bool {
		return func() bool { return sender.answers(t, 100) == answers }
	}
	require.True(t, eventually(heard(2)), "both hear")
	node1.askUntilAnswered(t, leaveGroup, 0)
	for range 3 {
		require.LessOrEqual(t, sender.answers(t, 100), 1)
	}
	require.True(t, eventually(heard(1)), "this node alone hears")
	node1.askUntilAnswered(t, joinGroup, 0)
	for range 3 {
		require.True(t, eventually(heard(2)), "both hear again")
		require.NoError(t, control("cable down"))
		require.LessOrEqual(t, sender.answers(t, 100), 1)
		require.NoError(t, control("cable up"))
	}
	require.True(t, eventually(heard(2)), "the cable has flapped")
	require.NoError(t, sender.LeaveGroup(nil, nodesGroup))
	require.True(t, eventually(heard(1)), "node 1 alone hears")
	node1.askUntilAnswered(t, leaveGroup, 0)
}

// asker asks node 1.
type asker struct {
	*rdmaudp.PacketConn
	to    net.Addr // nil: the address that was dialed
	asked uint64
}

// askSize is how many bytes of a question mean something. The rest is padding.
const askSize = 9

// ask asks once, and returns whether the answer came within a second.
func (a *asker) ask(t *testing.T, what byte, size int) bool {
	t.Helper()
	question := a.question(what, size)
	_, err := a.Write(question)
	return err == nil && a.answered(t, question) // else nobody listens
}

// answers asks a group for the same, and returns how many answers came.
func (a *asker) answers(t *testing.T, size int) (n int) {
	t.Helper()
	question := a.question(sameAgain, size)
	_, err := a.WriteTo(question, a.to)
	require.NoError(t, err)
	for a.answered(t, question) {
		n++
	}
	return n
}

func (a *asker) question(what byte, size int) []byte {
	a.asked++
	return append(binary.BigEndian.AppendUint64([]byte{what}, a.asked), make([]byte, size)...)
}

// answered returns whether an answer came within a second.
func (a *asker) answered(t *testing.T, question []byte) bool {
	t.Helper()
	require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
	for answer := make([]byte, a.MaxMessage()); ; {
		n, err := a.Read(answer)
		if err != nil {
			return false
		}
		if binary.BigEndian.Uint64(answer[1:]) == a.asked {
			require.Equal(t, question, answer[:n])
			return true
		}
	}
}

// askUntilAnswered asks over and over, as users of datagrams have to.
func (a *asker) askUntilAnswered(t *testing.T, what byte, size int) {
	t.Helper()
	require.True(t, eventually(func() bool { return a.ask(t, what, size) }), "%d bytes", size)
}

// answerDatagrams answers until the power is cut.
func answerDatagrams(t *testing.T) {
	c, err := rdmaudp.Listen("rdma-udp", ":"+datagramPort)
	require.NoError(t, err)
	at := interfaceOf(t, requireEnv(t, "SOFTROCE_ADDR"))
	for p := make([]byte, 4096); ; {
		n, from, err := c.ReadFrom(p)
		require.NoError(t, err)
		switch p[0] {
		case joinGroup: // asked again if the answer was lost
			err = c.JoinGroup(at, nodesGroup)
			require.True(t, err == nil || errors.Is(err, syscall.EADDRINUSE), "%v", err)
		case leaveGroup:
			err = c.LeaveGroup(at, nodesGroup)
			require.True(t, err == nil || errors.Is(err, syscall.EADDRNOTAVAIL), "%v", err)
		}
		_, err = c.WriteTo(p[:n], from)
		require.NoError(t, err)
	}
}

// No call waits for a device that has been removed. A PacketConn that listens at its
// address gets an error, and one that listens at all addresses goes on with the next
// device.
func TestDatagramsDeviceRemoved(t *testing.T) {
	device := deviceOfItsOwn(t)
	other := requireEnv(t, "SOFTROCE_OTHER_ADDR")
	host := requireEnv(t, "SOFTROCE_ADDR")
	listener, err := rdmaudp.Listen("rdma-udp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	dialed, err := rdmaudp.Dial("rdma-udp", listener.LocalAddr().String())
	require.NoError(t, err)
	_, err = dialed.Write([]byte("hello"))
	require.NoError(t, err)
	_, from, err := listener.ReadFrom(make([]byte, 100))
	require.NoError(t, err)
	_, err = listener.WriteTo([]byte("hello"), from)
	require.NoError(t, err)
	_, err = dialed.Read(make([]byte, 100))
	require.NoError(t, err)
	everywhere, err := rdmaudp.Listen("rdma-udp", ":0")
	require.NoError(t, err)

	require.NoError(t, exec.Command("rdma", "link", "delete", device).Start())
	removed := func() bool {
		c, err := rdmaudp.Listen("rdma-udp", net.JoinHostPort(host, "0"))
		if err == nil {
			c.Close()
		}
		return errors.Is(err, errors.ErrUnsupported)
	}
	require.True(t, eventually(removed), "what is open does not keep the device")
	for _, c := range []net.Conn{dialed, listener} {
		_, err = c.Read(make([]byte, 100))
		requireErrno(t, err, syscall.ENETDOWN)
		_, err = c.Write([]byte("hello?"))
		require.Error(t, err)
	}
	require.NoError(t, dialed.Close())
	require.NoError(t, listener.Close())

	renewDevice(t, "another", interfaceOf(t, other).Name)
	_, port, err := net.SplitHostPort(everywhere.LocalAddr().String())
	require.NoError(t, err)
	dialed, err = rdmaudp.Dial("rdma-udp", net.JoinHostPort(other, port))
	require.NoError(t, err)
	a := asker{PacketConn: dialed}
	go func() {
		p := make([]byte, 100)
		for n, from, err := everywhere.ReadFrom(p); err == nil; n, from, err = everywhere.ReadFrom(p) {
			_, _ = everywhere.WriteTo(p[:n], from)
		}
	}()
	a.askUntilAnswered(t, sameAgain, 10)
	require.NoError(t, dialed.Close())
	require.NoError(t, everywhere.Close())
	require.NoError(t, exec.Command("rdma", "link", "delete", "another").Start())
}

func TestOverInfiniBandThereIsNoUDP(t *testing.T) {
	addr := requireEnv(t, "SOFTROCE_ADDR")
	layer, err := os.ReadFile("/sys/class/infiniband/" + requireEnv(t, "SOFTROCE_DEVICE") + "/ports/1/link_layer")
	require.NoError(t, err)
	if strings.TrimSpace(string(layer)) != "InfiniBand" {
		t.Skip("the device has RoCE; tools/idealcard has one of InfiniBand: make test-card")
	}
	_, err = rdmaudp.Listen("rdma-udp", net.JoinHostPort(addr, "0"))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "datagrams over InfiniBand, which only RoCE has")
}
