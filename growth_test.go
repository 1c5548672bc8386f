package ringnet

import (
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/sim"
)

// onSim runs a test with the two ends of a connection, in virtual time.
func onSim(t *testing.T, test func(t *testing.T, n *sim.Network, client, server *Conn)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Minute) }) // until closed connections are gone
		n := sim.New(sim.Link{Latency: 10 * time.Microsecond})
		simulate(t, n)
		l, err := Listen("sim", "10.0.0.1:0")
		require.NoError(t, err)
		c, err := Dial("sim", l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		for _, c := range []net.Conn{c, s} { // what hangs ends with an error
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		}
		test(t, n, c.(*Conn), s.(*Conn))
		for _, c := range []net.Conn{c, s} {
			_ = c.(*Conn).SetLinger(0)
			_ = c.Close()
		}
		require.NoError(t, l.Close())
	})
}

// A server reads a header, and answers with 100 KB while its client sends 100 KB more: that is less than what TCP takes
// while nobody reads.
func TestBothEndsMayWriteBehindAHeader(t *testing.T) {
	const head, first, body = 4, 5000, 100_000
	onSim(t, func(t *testing.T, _ *sim.Network, client, server *Conn) {
		served := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(server, make([]byte, head))
			time.Sleep(time.Second)
			if err == nil {
				_, err = server.Write(make([]byte, body))
			}
			if err == nil {
				_, err = io.ReadFull(server, make([]byte, first-head+body))
			}
			served <- err
		}()
		time.Sleep(time.Second) // the server waits
		_, err := client.Write(make([]byte, first))
		require.NoError(t, err)
		_, err = io.ReadFull(client, make([]byte, head))
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = client.Write(make([]byte, body))
		require.NoError(t, err)
		_, err = io.ReadFull(client, make([]byte, body-head))
		require.NoError(t, err)
		require.NoError(t, <-served)
	})
}

// A Read that waits for a few bytes does not read what else comes.
func TestARingGrowsBehindAHeader(t *testing.T) {
	onSim(t, func(t *testing.T, _ *sim.Network, client, server *Conn) {
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(server, make([]byte, 4))
			read <- err
		}()
		time.Sleep(time.Second)
		n, err := client.Write(make([]byte, 1<<20))
		require.Error(t, err, "nobody reads the rest")
		require.NoError(t, <-read)
		require.GreaterOrEqual(t, n, 256<<10)
	})
}

// Memory that cannot be registered is not asked for by each Read.
func TestReadsDoNotAskForMemoryAgainAndAgain(t *testing.T) {
	onSim(t, func(t *testing.T, n *sim.Network, client, server *Conn) {
		var asked atomic.Int64
		n.SetFaults(sim.Faults{Register: func(*sim.Endpoint, int) error {
			asked.Add(1)
			return syscall.ENOMEM
		}})
		go echoWith(server, 64<<10)
		p := make([]byte, 32<<10)
		for range 1000 {
			_, err := client.Write([]byte("0123456789"))
			require.NoError(t, err)
			_, err = client.Read(p)
			require.NoError(t, err)
		}
		n.SetFaults(sim.Faults{})
		require.Less(t, asked.Load(), int64(100))
	})
}

// echoWith writes what it reads into a buffer of n bytes.
func echoWith(c net.Conn, n int) {
	p := make([]byte, n)
	for {
		n, err := c.Read(p)
		if err == nil {
			_, err = c.Write(p[:n])
		}
		if err != nil {
			return
		}
	}
}

// Nor does a Read that has nothing to wait for make the ring larger, nor a server's that has room for more than its
// clients send.
func TestRingsThatNeedNotGrow(t *testing.T) {
	for name, end := range map[string]func(*Conn) error{"CloseRead": (*Conn).CloseRead, "Close": (*Conn).Close} {
		t.Run(name, func(t *testing.T) {
			onSim(t, func(t *testing.T, _ *sim.Network, client, _ *Conn) {
				_, err := client.Write([]byte("x"))
				require.NoError(t, err)
				before := client.Stats().Memory
				require.NoError(t, end(client))
				_, err = client.Read(make([]byte, 64<<10))
				require.Error(t, err)
				time.Sleep(time.Second)
				require.LessOrEqual(t, client.Stats().Memory, before)
			})
		})
	}
	t.Run("a server's", func(t *testing.T) {
		onSim(t, func(t *testing.T, _ *sim.Network, client, server *Conn) {
			before := server.Stats().Memory
			go echoWith(server, 32<<10)
			for range 3 {
				_, err := client.Write([]byte("x"))
				require.NoError(t, err)
				_, err = client.Read(make([]byte, 1))
				require.NoError(t, err)
				time.Sleep(time.Second)
			}
			require.Equal(t, before, server.Stats().Memory)
		})
	})
}
