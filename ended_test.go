package ringnet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// accepts returns whether l accepts a connection in the next 20 milliseconds, and closes it.
func accepts(t *testing.T, l net.Listener) bool {
	t.Helper()
	require.NoError(t, l.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(20*time.Millisecond)))
	c, err := l.Accept()
	if err != nil {
		return false
	}
	require.NoError(t, c.Close())
	return true
}

// A dial whose context has ended connects to nobody, on a link that is up or about to leave.
func TestADialWhoseContextHasEndedConnectsToNobody(t *testing.T) {
	onlySHM(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, network := range []string{"auto", "shm"} {
		l, err := Listen(network, "127.0.0.1:0")
		require.NoError(t, err)
		c, err := Dial(network, l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		for range 10 {
			_, err := (&Dialer{}).DialContext(ended, network, l.Addr().String())
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, accepts(t, l), network)
		}
		require.NoError(t, l.Close()) // the link leaves with its connection
		for range 10 {
			_, err := (&Dialer{}).DialContext(ended, network, l.Addr().String())
			require.ErrorIs(t, err, context.Canceled)
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	}
}

// The second family of a name is not dialed once the first has connected, and no hook is called for it.
func TestTheSecondFamilyIsNotDialedInVain(t *testing.T) {
	onlySHM(t)
	l, err := Listen("auto", ":0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	keep, err := Dial("auto", "0.0.0.0:"+port) // a link to the other family
	require.NoError(t, err)
	defer keep.Close()
	require.True(t, accepts(t, l))
	var hooked atomic.Int32
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectStart: func(string, string) { hooked.Add(1) }})
	for range 10 {
		c, err := (&Dialer{}).DialContext(ctx, "auto", "[::]:"+port)
		if isLackOfIPv6(err) {
			t.Skip(err)
		}
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.True(t, accepts(t, l))
		require.False(t, accepts(t, l), "a second connection")
	}
	require.EqualValues(t, 10, hooked.Load())
}

func isLackOfIPv6(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// Who listens again behind an Accept that has returned net.ErrClosed finds the address free.
func TestTheAddressIsFreeWhenAcceptSaysThatTheListenerIsClosed(t *testing.T) {
	onlySHM(t)
	for _, network := range []string{"auto", "shm"} {
		address := "127.0.0.1:0"
		for range 20 {
			l, err := Listen(network, address)
			require.NoError(t, err, network)
			address = l.Addr().String()
			closed := make(chan error, 1)
			time.AfterFunc(time.Millisecond, func() { closed <- l.Close() })
			_, err = l.Accept()
			require.ErrorIs(t, err, net.ErrClosed)
			again, err := Listen(network, address)
			require.NoError(t, err, network)
			require.NoError(t, <-closed)
			require.NoError(t, again.Close())
		}
	}
}

// Each dial that crosses with the Close of a listener finds no listener, or connects and is reset.
func TestDialsThatCrossWithCloseFindNoListener(t *testing.T) {
	onlySHM(t)
	for i := range 200 {
		l, err := Listen("shm", "127.0.0.1:0")
		require.NoError(t, err)
		done := make(chan error, 3)
		for range cap(done) {
			go func() {
				c, err := (&Dialer{Config: &Config{Dedicated: true}}).Dial("shm", l.Addr().String())
				if err == nil {
					err = c.Close()
				}
				done <- err
			}()
		}
		time.Sleep(time.Duration(i%40) * 50 * time.Microsecond)
		require.NoError(t, l.Close())
		for range cap(done) {
			if err := <-done; err != nil && !errors.Is(err, syscall.ECONNRESET) {
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				require.NotContains(t, err.Error(), "by the peer")
			}
		}
	}
}

// fullDisk is a reader and a writer.
type fullDisk struct{}

var errFailing = errors.New("the disk is full")

func (fullDisk) Read([]byte) (int, error)  { return 0, errFailing }
func (fullDisk) Write([]byte) (int, error) { return 0, errFailing }

// The errors of copies are package net's, whatever carries the connection.
func TestErrorsOfCopiesAreWhoseTheCallIs(t *testing.T) {
	for _, carrier := range []string{"shm", "tcp"} {
		t.Run(carrier, func(t *testing.T) {
			onlySHM(t)
			if carrier == "tcp" {
				t.Setenv("RINGNET_NETWORKS", "tcp")
			}
			l, err := Listen("auto", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			c, err := Dial("auto", l.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			s, err := l.Accept()
			require.NoError(t, err)
			defer s.Close()
			require.Equal(t, carrier, c.(*AutoConn).Carrier())
			requireOp := func(op string, err error) {
				t.Helper()
				var of *net.OpError
				require.ErrorAs(t, err, &of)
				require.Equal(t, op, of.Op)
				require.Equal(t, carrier, of.Net)
				require.ErrorIs(t, err, errFailing)
			}
			_, err = io.Copy(c, fullDisk{})
			requireOp("readfrom", err)
			write(t, c, "x")
			_, err = io.Copy(fullDisk{}, s)
			requireOp("writeto", err)
		})
	}
}

// An address is dialed from one of its own family alone.
func TestADialFromAnotherFamilyIsRefused(t *testing.T) {
	onlySHM(t)
	l, err := Listen("shm", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, network := range []string{"shm", "auto"} {
		_, err = (&Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv6loopback}}).Dial(network, l.Addr().String())
		require.ErrorContains(t, err, "no address of the local address's family")
	}
}
