// The connection manager: how connections come about, fail to, and end.

package sim_test

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
	"github.com/ringnet/ringnet/internal/wire"
)

const latency = 10 * time.Millisecond

func reason(t testing.TB, err error) int {
	t.Helper()
	var r *fabric.RejectError
	require.ErrorAs(t, err, &r)
	return r.Reason
}

func TestPrivateDataCrossesPadded(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 1)
		a := dial(t, n)
		start := time.Now()
		go func() {
			b := accept(t, l)
			assert.Equal(t, latency, time.Since(start))
			assert.Equal(t, "hello"+string(make([]byte, fabric.MaxConnectData-5)), string(b.Private()))
			assert.Equal(t, a.LocalAddr(), b.RemoteAddr())
			assert.Equal(t, server, b.LocalAddr())
			assert.NoError(t, b.Accept(ctx, []byte("welcome")))
			assert.Equal(t, 3*latency, time.Since(start), "accepted when confirmed")
			assert.NoError(t, b.Close())
		}()
		answer, err := a.Connect(ctx, []byte("hello"))
		require.NoError(t, err)
		assert.Equal(t, "welcome"+string(make([]byte, fabric.MaxAcceptData-7)), string(answer))
		assert.Equal(t, 2*latency, time.Since(start))
		require.NoError(t, a.Confirm())
		require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
		require.NoError(t, a.Close())
		require.NoError(t, l.Close())
	})
}

func TestPrivateDataTooLongIsRefusedAtHome(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 1)
		a := dial(t, n)
		_, err := a.Connect(ctx, make([]byte, fabric.MaxConnectData+1))
		require.ErrorIs(t, err, syscall.EINVAL)
		done := dialing(a)
		b := accept(t, l)
		require.ErrorIs(t, b.Accept(ctx, make([]byte, fabric.MaxAcceptData+1)), syscall.EINVAL)
		require.ErrorIs(t, b.Reject(make([]byte, fabric.MaxRejectData+1)), syscall.EINVAL)
		require.NoError(t, b.Reject(nil))
		require.Error(t, <-done)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
}

func TestConnectIsRefusedWhereNobodyListens(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		a := dial(t, n)
		start := time.Now()
		_, err := a.Connect(ctx, nil)
		assert.Equal(t, fabric.RejectNoListener, reason(t, err))
		assert.Equal(t, 2*latency, time.Since(start))
		require.NoError(t, a.Close())
	})
}

func TestBacklogIsFullUntilAccept(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 2)
		a, b := dial(t, n), dial(t, n)
		first, second := dialing(a), dialing(b)
		synctest.Wait()
		c := dial(t, n)
		_, err := c.Connect(ctx, nil)
		var full *fabric.RejectError
		require.ErrorAs(t, err, &full)
		assert.Equal(t, fabric.RejectConsumer, full.Reason)
		assert.Equal(t, wire.Full, wire.DecodeReject(full.Private))

		served := accept(t, l)
		d := dial(t, n)
		third := dialing(d)
		synctest.Wait()
		assert.Empty(t, third, "there is room again")
		require.NoError(t, served.Close())
		require.NoError(t, l.Close())
		for _, done := range []<-chan error{first, second, third} {
			assert.Equal(t, fabric.RejectConsumer, reason(t, <-done))
		}
		for _, e := range []fabric.Endpoint{a, b, c, d} {
			require.NoError(t, e.Close())
		}
	})
}

func TestListenerRefusesWhatItHasNotAccepted(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 8)
		a, c := dial(t, n), dial(t, n)
		first := dialing(a)
		b := accept(t, l)
		second := dialing(c)
		time.Sleep(latency)
		synctest.Wait()
		accepting := make(chan error, 1)
		require.NoError(t, l.Close())
		_, err := l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, l.Close(), net.ErrClosed)
		assert.Equal(t, fabric.RejectConsumer, reason(t, <-second))

		go func() { accepting <- b.Accept(ctx, nil) }()
		require.NoError(t, <-first, "what was accepted lives on")
		require.NoError(t, <-accepting)
		for _, e := range []fabric.Endpoint{a, b, c} {
			require.NoError(t, e.Close())
		}
	})
}

func TestCloseWakesAccept(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 1)
		done := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			done <- err
		}()
		synctest.Wait()
		require.Empty(t, done)
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
	})
}

func TestAddresses(t *testing.T) {
	n := network(t, sim.Link{})
	ap := netip.MustParseAddrPort
	listen := func(a netip.AddrPort) (netip.AddrPort, error) {
		l, err := n.Listen(a, 1)
		if err != nil {
			return a, err
		}
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l.Addr(), nil
	}
	dial := func(local, remote netip.AddrPort) (fabric.Endpoint, error) {
		e, err := n.Dial(ctx, local, remote)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, e.Close()) })
		}
		return e, err
	}

	_, err := listen(ap("10.0.0.1:80"))
	require.NoError(t, err)
	for _, a := range []string{"10.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::ffff:10.0.0.1]:80"} {
		_, err = listen(ap(a))
		assert.ErrorIs(t, err, syscall.EADDRINUSE, a)
	}
	for _, a := range []string{"10.0.0.2:80", "10.0.0.1:81", "[fe80::1]:80"} {
		_, err = listen(ap(a))
		assert.NoError(t, err, a)
	}
	a, err := listen(netip.AddrPort{})
	require.NoError(t, err)
	assert.Equal(t, netip.IPv6Unspecified(), a.Addr())
	b, err := listen(netip.AddrPort{})
	require.NoError(t, err)
	assert.NotEqual(t, a, b)

	_, err = dial(ap("10.0.0.1:80"), ap("10.0.0.9:9"))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = dial(ap("10.0.0.7:1"), ap("10.0.0.9:9"))
	require.NoError(t, err)
	_, err = dial(ap("10.0.0.7:1"), ap("10.0.0.9:9"))
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	e, err := dial(netip.AddrPort{}, ap("0.0.0.0:9"))
	require.NoError(t, err)
	assert.Equal(t, ap("127.0.0.1:9"), e.RemoteAddr())
	f, err := dial(netip.AddrPort{}, ap("0.0.0.0:9"))
	require.NoError(t, err)
	assert.NotEqual(t, e.LocalAddr(), f.LocalAddr())
	_, err = dial(netip.AddrPort{}, ap("10.0.0.9:0"))
	assert.ErrorIs(t, err, syscall.EINVAL)
}

func TestListenerAtTheWildcardHearsEveryAddress(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		every, err := n.Listen(netip.MustParseAddrPort("[::]:4711"), 2)
		require.NoError(t, err)
		e, err := n.Dial(ctx, netip.AddrPort{}, server)
		require.NoError(t, err)
		a := open(t, e, options)
		done := dialing(a)
		b, err := every.Accept()
		require.NoError(t, err)
		assert.Equal(t, server, b.LocalAddr())
		assert.Same(t, a, n.Find(a.LocalAddr(), server))
		assert.Same(t, b, n.Find(server, a.LocalAddr()))
		require.NoError(t, b.Close())
		require.Error(t, <-done)
		require.NoError(t, a.Close())
		require.NoError(t, every.Close())
	})
}

func TestContextEndsWhatNobodyAnswers(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		n.Blackhole(server.Addr())
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		a := dial(t, n)
		start := time.Now()
		_, err := a.Connect(ctx, nil)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		require.NoError(t, a.Close())
		_, err = n.Dial(ctx, netip.AddrPort{}, server)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestConnectionManagerGivesUp(t *testing.T) {
	virtual(t, sim.Link{CMTimeout: time.Minute}, func(t *testing.T, n *sim.Network) {
		n.Blackhole(server.Addr())
		a := dial(t, n)
		start := time.Now()
		_, err := a.Connect(ctx, nil)
		assert.ErrorIs(t, err, syscall.ETIMEDOUT)
		assert.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, a.Close())
	})
}

func TestDialerThatGivesUpIsNotAccepted(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 1)
		a := dial(t, n)
		ctx1, cancel := context.WithTimeout(ctx, latency/2)
		defer cancel()
		_, err := a.Connect(ctx1, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, a.Close())
		b := accept(t, l)
		assert.Equal(t, 4, reason(t, b.Accept(ctx, nil)), "timeout")
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
}

func TestRejectSaysWhy(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 1)
		a := dial(t, n)
		done := dialing(a)
		b := accept(t, l)
		require.NoError(t, b.Reject([]byte("no")))
		err := <-done
		require.Equal(t, fabric.RejectConsumer, reason(t, err))
		var r *fabric.RejectError
		require.ErrorAs(t, err, &r)
		assert.Equal(t, "no"+string(make([]byte, fabric.MaxRejectData-2)), string(r.Private))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
}

func TestDialerMayRejectTheAnswer(t *testing.T) {
	for name, reject := range map[string]func(a fabric.Endpoint) error{
		"reject": func(a fabric.Endpoint) error { return a.Reject([]byte("no")) },
		"close":  func(a fabric.Endpoint) error { return a.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
				l := listen(t, n, 1)
				a := dial(t, n)
				go func() {
					_, err := a.Connect(ctx, nil)
					assert.NoError(t, err)
					assert.NoError(t, reject(a))
				}()
				b := accept(t, l)
				assert.Equal(t, fabric.RejectConsumer, reason(t, b.Accept(ctx, nil)))
				_ = a.Close()
				require.NoError(t, b.Close())
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestServerWaitsForTheConfirmation(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		l := listen(t, n, 1)
		a := dial(t, n)
		go a.Connect(ctx, nil) // and no Confirm
		b := accept(t, l)
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.ErrorIs(t, b.Accept(ctx, nil), context.DeadlineExceeded)
		require.NoError(t, b.Close())
		require.ErrorIs(t, a.Confirm(), fabric.ErrDisconnected)
		require.NoError(t, a.Close())
		require.NoError(t, l.Close())
	})
}

func TestMessageConfirmsWhenTheConfirmationIsLost(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		n.SetFaults(sim.Faults{Lose: func(_ *sim.Endpoint, m sim.Message) bool { return m == sim.RTU }})
		l := listen(t, n, 1)
		a := dial(t, n)
		done := dialing(a)
		b := accept(t, l)
		accepted := make(chan error, 1)
		go func() { accepted <- b.Accept(ctx, nil) }()
		require.NoError(t, <-done)
		time.Sleep(time.Second)
		require.Empty(t, accepted)
		post(t, a, send(1, "x"))
		require.NoError(t, <-accepted)
		require.Len(t, poll(t, b), 1)
		post(t, b, send(1, "y"))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
}

func TestAcceptEndsWhenThePeerDisconnectsUnconfirmed(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		n.SetFaults(sim.Faults{Lose: func(_ *sim.Endpoint, m sim.Message) bool { return m == sim.RTU }})
		l := listen(t, n, 1)
		a := dial(t, n)
		done := dialing(a)
		b := accept(t, l)
		accepted := make(chan error, 1)
		go func() { accepted <- b.Accept(ctx, nil) }()
		require.NoError(t, <-done)
		require.NoError(t, a.Disconnect())
		require.ErrorIs(t, <-accepted, fabric.ErrDisconnected)
		require.NoError(t, b.Close())
		require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
		require.NoError(t, a.Close())
		require.NoError(t, l.Close())
	})
}

func TestAnswerCanBeLost(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		n.SetFaults(sim.Faults{Lose: func(_ *sim.Endpoint, m sim.Message) bool { return m == sim.REP }})
		l := listen(t, n, 1)
		a := dial(t, n)
		done := dialing(a)
		b := accept(t, l)
		require.ErrorIs(t, b.Accept(ctx, nil), syscall.ETIMEDOUT)
		require.ErrorIs(t, <-done, syscall.ETIMEDOUT)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
}

func TestDisconnectFlushesAndTellsThePeerWhoseQueuePairStays(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		start := time.Now()
		ours, theirs := waiting(a), waiting(b)
		require.NoError(t, a.Disconnect())
		require.Equal(t, flushed(16), poll(t, a))
		require.ErrorIs(t, <-theirs, fabric.ErrDisconnected)
		require.Equal(t, latency, time.Since(start))
		require.Empty(t, poll(t, b), "its owner moves it to ERR")

		time.Sleep(time.Second)
		require.Empty(t, ours, "the peer answers when it disconnects too")
		start = time.Now()
		require.NoError(t, b.Disconnect())
		require.Equal(t, flushed(16), poll(t, b))
		require.ErrorIs(t, <-ours, fabric.ErrDisconnected)
		require.Equal(t, latency, time.Since(start))

		require.NoError(t, a.Disconnect())
		again := waiting(a)
		time.Sleep(time.Hour)
		require.Empty(t, again, "once")
		a.Wake()
		require.NoError(t, <-again)
	})
}

func TestBothMayDisconnectAtOnce(t *testing.T) {
	virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		start := time.Now()
		require.NoError(t, a.Disconnect())
		require.NoError(t, b.Disconnect())
		require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
		require.ErrorIs(t, b.Wait(), fabric.ErrDisconnected)
		require.Equal(t, latency, time.Since(start))
	})
}

func TestDisconnectEndsWithoutAnAnswer(t *testing.T) {
	for name, broken := range map[string]func(n *sim.Network){
		"cut": func(n *sim.Network) { n.Cut(true) },
		"lost": func(n *sim.Network) {
			n.SetFaults(sim.Faults{Lose: func(*sim.Endpoint, sim.Message) bool { return true }})
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
				a, b := connect(t, n)
				broken(n)
				start := time.Now()
				theirs := waiting(b)
				require.NoError(t, a.Disconnect())
				require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
				require.Equal(t, sim.DefaultCMTimeout, time.Since(start))
				require.Empty(t, theirs, "it has not heard of it")
				b.Wake()
				<-theirs
			})
		})
	}
}

func TestCloseAndDeathDisconnect(t *testing.T) {
	for name, end := range map[string]func(e *sim.Endpoint) error{
		"close": (*sim.Endpoint).Close,
		"kill":  func(e *sim.Endpoint) error { e.Kill(); return e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, sim.Link{Latency: latency}, func(t *testing.T, n *sim.Network) {
				l := listen(t, n, 1)
				a := dial(t, n)
				done := dialing(a)
				b := accept(t, l)
				require.NoError(t, b.Accept(ctx, nil))
				require.NoError(t, <-done)
				start := time.Now()
				require.NoError(t, end(b))
				require.ErrorIs(t, a.Wait(), fabric.ErrDisconnected)
				require.Equal(t, latency, time.Since(start))

				post(t, a, send(1, "x"))
				require.Equal(t, fabric.RetryExceeded, await(t, a)[0].Status, "nobody is there")
				require.NoError(t, a.Disconnect())
				require.NoError(t, a.Close())
				require.ErrorIs(t, a.Close(), net.ErrClosed)
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestWhatHasLeftArrivesThoughTheSenderIsGone(t *testing.T) {
	virtual(t, sim.Link{Latency: latency, Bandwidth: 1000}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		m := register(t, a, 100, fabric.LocalWrite)
		copy(m.Bytes(), "abcdefghij")
		wr := fabric.WorkRequest{Op: fabric.Send, Data: m.Bytes()[:10], Memory: m}
		post(t, a, wr, wr) // 10 ms each on the link
		time.Sleep(15 * time.Millisecond)
		require.NoError(t, a.Disconnect())
		clear(m.Bytes())
		time.Sleep(time.Second)
		_, recvs := split(poll(t, b))
		require.Len(t, recvs, 1)
		assert.Equal(t, "abcdefghij", string(recvs[0].Data))
	})
}
