package link

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
	"github.com/ringnet/ringnet/internal/testing/sim"
)

// A stream that its owner has closed waits so long for the peer's application
// and no longer, also if it was the link's last and another has begun since.
func TestAPeerThatDoesNotCloseKeepsNoStream(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, b := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, c.Close(time.Second))
		client, err := c.Link().Open(context.Background())
		require.NoError(t, err)
		server := b.accept()
		time.Sleep(2 * closeTimeout)
		require.EqualValues(t, 1, c.link.live.Load())
		require.ErrorIs(t, writeAll(s, []byte("x")), syscall.EPIPE)
		endAll(t, n, s, client, server)
	})
}

// The end that a stream has sent is followed by another, RESET, for which Close waits as it would
// have for the first: until the peer's device has it, whether the peer's process answers or not.
func TestCloseNoticesThatAResetBehindFINHasArrived(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, writeAll(s, []byte("unread")))
		peers := endpointOf(s.link)
		peers.HoldReceives(true)
		require.NoError(t, c.CloseWrite())
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, c.Close(time.Minute))
		require.Less(t, time.Since(began), time.Second)
		peers.HoldReceives(false)
		require.ErrorIs(t, s.Close(time.Second), syscall.ECONNRESET, "of what it has written")
	})
}

// Either side ends a link that has carried no stream for as long as it allows.
func TestBothSidesEndAnIdleLink(t *testing.T) {
	for _, dialers := range []bool{true, false} {
		for _, idle := range []time.Duration{closeTimeout / 100, closeTimeout - time.Second, time.Minute} {
			t.Run(fmt.Sprintf("the dialer's: %t, after %v", dialers, idle), func(t *testing.T) {
				virtually(t, func(t *testing.T, n *sim.Network) {
					short, long := testConfig, testConfig
					short.LinkIdle, long.LinkIdle = idle, time.Hour
					if !dialers {
						short, long = long, short
					}
					c, s, _ := connectLink(t, n, short, long)
					require.NoError(t, c.Close(time.Second))
					time.Sleep(closeTimeout * 9 / 10)
					require.NoError(t, s.Close(time.Second))
					time.Sleep(idle * 4 / 5)
					require.Equal(t, 2, n.Open())
					time.Sleep(idle * 2 / 5)
					require.Zero(t, n.Open())
				})
			})
		}
	}
}

// slowFile takes what is written to it when it is told to.
type slowFile struct{ came, leave chan struct{} }

func (f slowFile) Write(p []byte) (int, error) {
	close(f.came)
	<-f.leave
	return len(p), nil
}

// While a Read copies what has arrived, somebody else ends reading, which waits for
// that Read. What arrives meanwhile is dropped, but not what the Read has in hand.
func TestWhatArrivesWhileReadingEndsLeavesTheReadItsBytes(t *testing.T) {
	for name, end := range map[string]func(s *Stream) error{
		"CloseRead": (*Stream).CloseRead,
		"Close":     func(s *Stream) error { return s.Close(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := sim.New(sim.Link{})
				c, s, _ := connectLink(t, n, testConfig, testConfig)
				until := func(holds func() bool) { // a mutex that somebody waits for stops virtual time
					for done := false; !done; runtime.Gosched() {
						c.link.lock()
						done = holds()
						c.link.unlock()
					}
				}
				require.NoError(t, writeAll(s, []byte("first")))
				file := slowFile{make(chan struct{}), make(chan struct{})}
				read, ended := make(chan int, 1), make(chan error, 1)
				go func() {
					n, _ := c.ReadTo(file, 100, unlimited())
					read <- n
				}()
				<-file.came
				go func() { ended <- end(c) }()
				until(func() bool { return c.m.Uses() != machine.Reading })
				require.NoError(t, writeAll(s, []byte("second")))
				until(func() bool { return c.m.Stats().BytesReceived == uint64(len("firstsecond")) })
				close(file.leave)
				require.Equal(t, len("first"), <-read)
				require.NoError(t, <-ended)
				require.EqualValues(t, len("firstsecond"), int(c.m.Stats().BytesReceived)-c.m.Unread())
				_ = c.Close(0)
				_ = s.Close(0)
				endAll(t, n)
			})
		})
	}
}

// A listener's application closes a connection before the word that it was accepted
// has been sent, as it may while much else is being sent. The link goes on.
func TestAStreamThatIsGivenUpBeforeItIsAnsweredIsRefused(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, b := connectLink(t, n, testConfig, testConfig)
		posts := func(does bool) {
			s.link.lock()
			defer s.link.unlock()
			setPosting(s.link.m, does)
		}
		time.Sleep(time.Second) // nothing is being posted then
		posts(true)
		dial := dialing(context.Background(), c.link)
		require.NoError(t, b.accept().Close(0))
		posts(false)
		require.ErrorIs(t, (<-dial).err, syscall.ECONNRESET)
		requireEcho(t, c, s)
		endAll(t, n, c, s)
	})
}

// The peer does not wait for a stream that it has ended itself, so it is gone when there is a path
// again.
func TestClosingWhatThePeerHasClosedDuringABreak(t *testing.T) {
	unnoticed := func(cfg *Setup) { cfg.KeepAlive, cfg.LinkIdle = -1, time.Second }
	resumedWith(t, far, unnoticed, func(t *testing.T, n *sim.Network, c, s *Stream) {
		require.NoError(t, writeAll(s, []byte("all")))
		require.NoError(t, s.Close(time.Minute))
		n.Cut(true)
		ended := make(chan error, 1)
		go func() { ended <- c.Close(time.Minute) }()
		<-s.link.Gone()
		n.Cut(false)
		require.NoError(t, <-ended)
	})
}

// A link that is told to leave has begun to when it has been told.
func TestALinkThatIsToldToLeaveTakesNoStreamFromThenOn(t *testing.T) {
	for name, tell := range map[string]func(l *Link){
		"idle links are closed": (*Link).Leave,
		"memory is short":       func(l *Link) { l.freeUnneeded() },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, n *sim.Network) {
				c, s, _ := connectLink(t, n, testConfig, testConfig)
				require.NoError(t, c.Close(time.Second))
				require.NoError(t, s.Close(time.Second))
				time.Sleep(time.Second)
				tell(c.Link())
				_, err := c.Link().Open(context.Background())
				require.ErrorIs(t, err, machine.ErrGoingAway)
				time.Sleep(time.Second)
				require.Zero(t, n.Open())
			})
		})
	}
}

// A caller that panics while it looks at what has arrived has taken nothing, and the stream is as
// it was: it can be closed for reading, and its peer goes on writing.
func TestAPanicWhileBytesAreLentLeavesTheStream(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, writeAll(c, []byte("unread")))
		require.NoError(t, s.AwaitRead(unlimited()))
		require.Panics(t, func() {
			_ = s.Lend(100, unlimited(), func([]byte, error) (int, bool) { panic("of the caller's") })
		})
		require.NoError(t, s.CloseRead())
		written := make(chan error)
		go func() { written <- writeAll(c, make([]byte, 3*testConfig.RecvBuffer)) }()
		require.NoError(t, <-written)
		endAll(t, n, c, s)
	})
}

// The peer accepts a stream, writes to it and resets it before whoever opens it has
// had a turn.
func TestAStreamThatIsOverBeforeItIsOpenKeepsNoMemory(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, b := connectLink(t, n, testConfig, testConfig)
		l := c.link
		before := l.m.Rings().Taken()
		require.NoError(t, l.takePlace(t.Context()))
		opening, err := l.beginStream(t.Context())
		require.NoError(t, err)
		server := b.accept()
		time.Sleep(time.Second)
		require.NoError(t, writeAll(server, []byte("x")))
		require.NoError(t, server.Close(0))
		time.Sleep(time.Second)
		err = opening.awaitAnswer(t.Context())
		l.lock()
		err = opening.m.Opened(err)
		l.unlock()
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Equal(t, before, l.m.Rings().Taken())
		endAll(t, n, c, s)
	})
}

// Close returns why what was written is lost, where no call has. (TestCloseOfALostConnectionSaysWhatWasLost of
// package rconn has other ways to lose it.)
func TestCloseSaysWhatIsLostWithALink(t *testing.T) {
	for name, tt := range map[string]struct {
		lose func(n *sim.Network, c, s *Stream)
		err  error
	}{
		"no other path in Config.ResumeTimeout": {func(n *sim.Network, c, _ *Stream) {
			n.Cut(true)
			_ = writeAll(c, []byte("more"))
		}, syscall.ETIMEDOUT},
		"keepalive alone has noticed": {func(n *sim.Network, _, _ *Stream) { n.Cut(true) }, syscall.ETIMEDOUT},
		"the peer's process is gone":  {func(_ *sim.Network, _, s *Stream) { s.link.Abort() }, syscall.ECONNRESET},
		"an operator has ended it":    {func(_ *sim.Network, c, _ *Stream) { _ = c.Abort() }, syscall.ECONNABORTED},
		"the peer's operator has":     {func(_ *sim.Network, _, s *Stream) { _ = s.Abort() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
				require.NoError(t, writeAll(c, make([]byte, 8<<10)))
				time.Sleep(100 * time.Millisecond)
				tt.lose(n, c, s)
				time.Sleep(c.link.cfg.ResumeTimeout + time.Minute)
				require.ErrorIs(t, c.Close(time.Minute), tt.err)
			})
		})
	}
}

// The same of a peer that breaks the protocol.
func TestCloseSaysThatThePeerHasBrokenTheProtocol(t *testing.T) {
	besideAPeer(t, true, small, func(t *testing.T, p *rawPeer) {
		require.NoError(t, writeAll(p.s, []byte("lost")))
		p.data(7, 8)
		synctest.Wait()
		require.ErrorIs(t, p.s.Close(time.Minute), syscall.EPROTO)
	})
}

// The peer cannot be reached while one stream is closed, in vain. When it can, the Close of another waits
// for it as long as any.
func TestTheTimeThatACloseHasWaitedDuringABreakDoesNotCountBehindIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: time.Millisecond})
		cfg := resuming(n)
		clients, servers := streamsOfBoth(t, n, cfg, cfg, 2)
		resumed := make(chan struct{})
		clients[0].link.OnMove(func(Info, time.Duration, error) { close(resumed) })
		n.Cut(true)
		endpointOf(clients[0].link).Fail(fabric.ErrQueuePair)
		require.Equal(t, syscall.ETIMEDOUT, clients[0].Close(2*time.Second))
		n.Cut(false)
		<-resumed
		require.NoError(t, clients[1].Close(2*time.Second))
		closeAtOnce(servers)
		endAll(t, n)
	})
}

// The link has been lost, and its device gives nothing back for longer than Close lingers. It is the link that
// is to blame, and not a peer that is slow.
func TestACloseOfWhatIsLostDoesNotTimeOut(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		n.SetFaults(sim.Faults{Unflushed: func(*sim.Endpoint) bool { return true }})
		n.Cut(true)
		require.NoError(t, writeAll(c, []byte("lost")))
		endpointOf(c.link).Fail(fabric.ErrQueuePair)
		time.Sleep(time.Second)
		require.NotEqual(t, syscall.ETIMEDOUT, c.Close(time.Second))
		_ = s.Close(0)
		endAll(t, n)
	})
}

// A device takes long over a post, and meanwhile the time is over that the link has waited for the peer. It
// goes when the device has come to an end with the post, though nothing completes, and the peer says nothing.
func TestALinkThatEndsDuringAPostGoesBehindIt(t *testing.T) {
	virtually(t, func(t *testing.T, n *sim.Network) {
		cfg := testConfig
		cfg.KeepAlive, cfg.LinkIdle = time.Second, 0
		c, s, _ := connectLink(t, n, cfg, testConfig)
		l := c.link
		posts := func(does bool) {
			l.lock()
			defer l.unlock()
			setPosting(l.m, does)
		}
		time.Sleep(10 * time.Second)
		require.NoError(t, c.Close(time.Second))
		posts(true)
		time.Sleep(2 * closeTimeout)
		require.Equal(t, 2, n.Open())
		n.Cut(true)
		n.SetFaults(sim.Faults{Unflushed: func(*sim.Endpoint) bool { return true }})
		posts(false)
		time.Sleep(time.Second)
		require.Equal(t, 1, n.Open())
		_ = s.Close(0)
		endAll(t, n)
	})
}

// Bytes are unread when the owner closes, and more come before Close has dropped them, because a Read is
// still under way.
func TestCloseWithBytesUnreadResetsThoughMoreCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{})
		c, s, _ := connectLink(t, n, testConfig, testConfig)
		require.NoError(t, writeAll(s, []byte("unread")))
		synctest.Wait()
		until := func(holds func() bool) { // a mutex that somebody waits for stops virtual time
			for done := false; !done; runtime.Gosched() {
				c.link.lock()
				c.link.pollCompletions()
				done = holds()
				c.link.unlock()
			}
		}
		until(func() bool { return c.m.Unread() > 0 })
		c.reading.Lock()
		closed := make(chan error, 1)
		go func() { closed <- c.Close(time.Second) }()
		until(func() bool { return c.m.Uses() == machine.Orphaned })
		require.NoError(t, writeAll(s, []byte("more")))
		until(func() bool { return c.m.Stats().BytesReceived == uint64(len("unreadmore")) })
		c.reading.Unlock()
		require.NoError(t, <-closed)
		time.Sleep(time.Second)
		require.ErrorIs(t, writeAll(s, []byte("x")), syscall.ECONNRESET)
		endAll(t, n, c, s)
	})
}

// How a stream ends is decided once: an end that says less, and comes later, changes nothing, though the
// peer has not been told yet.
func TestAStrongerEndOutlivesAWeakerOne(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *Stream){
		"Abort": func(t *testing.T, c *Stream) { require.NoError(t, c.Abort()) },
		"Abort and Close": func(t *testing.T, c *Stream) {
			require.NoError(t, c.Abort())
			require.NoError(t, c.Close(time.Millisecond))
		},
		"CloseWrite, Abort and Close": func(t *testing.T, c *Stream) {
			require.NoError(t, c.CloseWrite())
			require.NoError(t, c.Abort())
			require.NoError(t, c.Close(time.Millisecond))
		},
		"Close without linger": func(t *testing.T, c *Stream) { require.NoError(t, c.Close(0)) },
		"CloseRead, and Close without linger": func(t *testing.T, c *Stream) {
			require.NoError(t, c.CloseRead())
			require.NoError(t, c.Close(0))
		},
		"Close with bytes unread": func(t *testing.T, c *Stream) { _ = c.Close(time.Millisecond) },
	} {
		for _, seeking := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, while the link seeks: %t", name, seeking), func(t *testing.T) {
				resumed(t, far, func(t *testing.T, n *sim.Network, c, s *Stream) {
					require.NoError(t, writeAll(s, []byte("unread")))
					time.Sleep(time.Second)
					n.Cut(seeking)
					time.Sleep(10 * time.Second)
					require.Equal(t, seeking, c.link.Info().Seeking)
					end(t, c)
					n.Cut(false)
					time.Sleep(10 * time.Second)
					require.ErrorIs(t, writeAll(s, []byte("x")), syscall.ECONNRESET)
					_, err := s.Read(make([]byte, 1), unlimited())
					require.Contains(t, []error{syscall.ECONNRESET, io.EOF}, err) // io.EOF behind FIN
				})
			})
		}
	}
}
