//go:build linux

package integration_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/testing/hang"
)

// A peer is stopped, as by SIGSTOP or a debugger. Its kernel still makes TCP connections.
// So dials of "auto" succeed although a link to the peer is up: as many as a link may have
// streams that are not yet answered, and more. When the peer continues, all connections
// work, and new ones are on the link again.
func TestAutoReachesAStoppedPeerAsTCPDoes(t *testing.T) {
	p := start(t, "echoer", "auto", "127.0.0.1:0")
	address := p.hear()
	dial := func(network string, times int) (conns []net.Conn) {
		d := ringnet.Dialer{Config: &ringnet.Config{
			Links:            1,         // whatever the number of processors
			HandshakeTimeout: time.Hour, // a dial that waits for the stopped peer does not end
		}}
		if network == "shm" {
			d.Require = []string{network} // or TCP has won on a machine that is busy
		}
		dials := make([]func() error, times)
		conns = make([]net.Conn, times)
		for i := range dials {
			dials[i] = func() error {
				began := time.Now()
				c, err := d.Dial("auto", address)
				if err != nil {
					return err
				}
				conns[i] = c
				if carrier := c.(*ringnet.AutoConn).Carrier(); carrier != network {
					return fmt.Errorf("connected over %s", carrier)
				}
				if took := time.Since(began); took > hang.After {
					return fmt.Errorf("connected after %v", took)
				}
				return nil
			}
		}
		atOnce(t, dials...)
		return conns
	}
	conns := dial("shm", 1)
	requireEchoed(t, conns[0])
	for range 2 {
		p.stop()
		conns = append(conns, dial("tcp", 300)...)
		p.goOn()
		for _, c := range conns {
			requireEchoed(t, c)
		}
		conns = append(conns, dial("shm", 2)...)
		require.Equal(t, 1, linksTo(address))
	}
	for _, c := range conns {
		requireEchoed(t, c)
		require.NoError(t, c.Close())
	}
}

// linksTo returns how many links to an address this process has.
func linksTo(address string) (n int) {
	for _, l := range ringnet.Links() {
		if l.Remote.String() == address {
			n++
		}
	}
	return n
}

// requireEchoed sends a message, and requires that it comes back.
func requireEchoed(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(hang.After)))
	require.NoError(t, echoed(c, 100))
}

// A process closes its listener with a connection left, and is stopped. A new process listens at its
// address, and each dial of a client of the old one reaches it, without a wait: the old one has said
// that it accepts no more.
func TestDialsPassAProcessThatDrainsAndIsStopped(t *testing.T) {
	for _, network := range []string{"shm", "auto"} {
		t.Run(network, func(t *testing.T) {
			old := start(t, "echoer", network, "127.0.0.1:0")
			address := old.hear()
			d := ringnet.Dialer{Config: &ringnet.Config{HandshakeTimeout: time.Hour}} // a dial that waits for it does not end
			if network == "auto" {
				d.Require = []string{"shm"} // or TCP has won on a machine that is busy
			}
			left, err := d.Dial(network, address)
			require.NoError(t, err)
			requireEchoed(t, left)
			old.tell("stop listening")
			requireEchoed(t, left)
			old.stop()
			successor := start(t, "echoer", network, address)
			require.Equal(t, address, successor.hear())
			for range 3 {
				c, err := d.Dial(network, address)
				require.NoError(t, err)
				requireEchoed(t, c)
				require.NoError(t, c.Close())
			}
			old.goOn()
			requireEchoed(t, left)
			require.NoError(t, left.Close())
		})
	}
}
