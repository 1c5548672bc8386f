//go:build linux

// Connections between processes, which may die.

package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

const forever = 1 << 62

// sendProgram sends as long as it lives.
func sendProgram(at netip.AddrPort, _ []string) error { return streamProgram(at, forever, 0) }

// receiveProgram receives as long as it lives.
func receiveProgram(at netip.AddrPort, _ []string) error { return streamProgram(at, 0, forever) }

// pongProgram sends and receives a number of messages, and ends when its peer
// does.
func pongProgram(at netip.AddrPort, args []string) error {
	n, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	return streamProgram(at, n, n)
}

func streamProgram(at netip.AddrPort, send, receive uint64) error {
	f, err := Fabric()
	if err != nil {
		return err
	}
	e, err := dial(f, at, options)
	if err != nil {
		return err
	}
	s, err := exchangeKeys(e)
	if err != nil {
		return err
	}
	if err := s.run(send, receive); err != nil {
		return err
	}
	for err == nil {
		err = e.Wait()
	}
	if !errors.Is(err, fabric.ErrDisconnected) {
		return err
	}
	return e.Close()
}

// echoProgram listens at an address, says where that is, and accepts.
func echoProgram(at netip.AddrPort, args []string) error {
	f, err := New(Config{Trust: func(uint32) bool { return len(args) > 0 && args[0] == "trust" }})
	if err != nil {
		return err
	}
	l, err := f.Listen(at, 1)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		if e, err := accept(l, options); err == nil {
			e.Close()
		}
	}
}

func TestWakesBetweenProcessesAreNotLost(t *testing.T) {
	leavesNothing(t)
	messages := uint64(20_000)
	if soak {
		messages = 2_000_000
	}
	l := listen(t, newFabric(t), 1)
	p := start(t, program("pong", l.Addr(), strconv.FormatUint(messages, 10)))
	soon(t, "messages", func() {
		e, err := accept(l, options)
		require.NoError(t, err)
		s, err := exchangeKeys(e)
		require.NoError(t, err)
		assert.NoError(t, s.run(messages, messages))
		require.NoError(t, e.Disconnect())
		require.NoError(t, e.Close())
	})
	require.NoError(t, p.Wait(), "%s", p.err)
}

// Whatever a process does when it is killed, its peer gets all that had been sent, and
// Wait returns ErrDisconnected there.
func TestKill(t *testing.T) {
	rounds := 10
	if soak {
		rounds = 100
	}
	if testing.Short() {
		rounds = 2
	}
	leavesNothing(t)
	l := listen(t, newFabric(t), 16)
	for _, name := range []string{"send", "receive"} {
		var delivered uint64
		for range rounds {
			p := start(t, program(name, l.Addr()))
			e, err := accept(l, options)
			require.NoError(t, err)
			s, err := exchangeKeys(e)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() {
				var err error
				if name == "send" {
					err = s.run(0, forever)
				} else {
					err = s.run(forever, 0)
				}
				done <- err
			}()
			time.Sleep(rand.N(30 * time.Millisecond))
			require.NoError(t, p.Process.Kill())
			soon(t, "the news", func() { assert.ErrorIs(t, <-done, fabric.ErrDisconnected) })
			p.Wait()

			require.NoError(t, e.Disconnect())
			for err == nil {
				_, err = s.take()
			}
			require.ErrorIs(t, err, errFlushed, "what had arrived is whole")
			delivered += s.received + s.credit
			require.NoError(t, e.Close())
		}
		t.Logf("%s: %d rounds, %d messages", name, rounds, delivered)
		assert.NotZero(t, delivered)
	}
}

// A process may be killed in the middle of a handshake too.
func TestKillDuringTheHandshake(t *testing.T) {
	rounds := 20
	if soak {
		rounds = 200
	}
	leavesNothing(t)
	l := listen(t, newFabric(t), 16)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			ep, err := l.Accept()
			if err != nil {
				return
			}
			if e, err := open(ep, options); err == nil && e.Accept(ctx, nil) == nil {
				for err == nil {
					err = e.Wait()
				}
			}
			ep.Close()
		}
	})
	soon(t, "the listener", func() {
		for range rounds {
			p := start(t, program("send", l.Addr()))
			time.Sleep(rand.N(40 * time.Millisecond))
			require.NoError(t, p.Process.Kill())
			p.Wait()
		}
		p := start(t, program("dial", l.Addr()))
		require.NoError(t, p.Wait(), "%s", p.err)
	})
	require.NoError(t, l.Close())
	accepting.Wait()
}
