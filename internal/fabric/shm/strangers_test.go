//go:build linux

// Descriptors that other users send, and whose close blocks.

package shm

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// lingering returns a descriptor whose last close blocks for an hour: that of a
// TCP connection that lingers over data for which its peer, which is this
// process too, has no room. Closing that peer ends it.
func lingering() (fd, peer int, err error) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, -1, err
	}
	unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
	if err := unix.Listen(l, 1); err != nil {
		return -1, -1, err
	}
	at, err := unix.Getsockname(l)
	if err != nil {
		return -1, -1, err
	}
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		return -1, -1, err
	}
	if err := unix.Connect(fd, at); err != nil {
		return -1, -1, err
	}
	peer, _, err = unix.Accept4(l, unix.SOCK_CLOEXEC) // and never read
	if err != nil {
		return -1, -1, err
	}
	for err == nil {
		err = unix.Send(fd, make([]byte, 4096), unix.MSG_DONTWAIT)
	}
	if err != unix.EAGAIN {
		return -1, -1, err
	}
	return fd, peer, nil
}

func sendDescriptor(socket, fd int) error {
	return unix.Sendmsg(socket, []byte("x"), unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// lingerProgram sends such descriptors to a listener by its name, as many as its
// arguments want, or until the listener accepts no more, and then prints how many.
func lingerProgram(_ netip.AddrPort, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	sent, refused := 0, 0
	var fd int
	for sent+refused < n {
		if fd == 0 {
			if fd, _, err = lingering(); err != nil {
				return err
			}
		}
		s, err := connectByName(args[1])
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN) {
			break // the listener has ended, or does not accept any more
		}
		if err == nil {
			err = sendDescriptor(s.fd, fd)
		}
		switch err {
		case nil:
			sent++
			// The last to close it is the listener, unless it is very fast.
			go unix.Close(fd)
			fd = 0
		case unix.EPERM: // SO_PASSRIGHTS
			refused++
		case unix.EPIPE, unix.ECONNRESET:
			// The listener was faster.
		default:
			return err
		}
	}
	fmt.Println(sent)
	return untilKilled()
}

// lingerServerProgram has the names that it is told, and sends such descriptors
// to whoever connects, if it can.
func lingerServerProgram(_ netip.AddrPort, names []string) error {
	for _, name := range names {
		s, err := new(shm).listenBy(name)
		if err != nil {
			return err
		}
		go func() {
			l := &listener{sock: s}
			for {
				memory, _, err := lingering()
				if err != nil {
					fmt.Println(err)
					return
				}
				fd, err := l.next()
				if err == nil {
					err = sendDescriptor(fd, memory)
				}
				if err == nil {
					go unix.Close(memory)
				}
				fmt.Println("sent:", err)
			}
		}()
	}
	fmt.Println("ready")
	return untilKilled()
}

// lenientToo runs a test on this kernel and on one without SO_PASSRIGHTS.
func lenientToo(t *testing.T, test func(t *testing.T, f *shm)) {
	t.Run("this kernel", func(t *testing.T) { test(t, newFabric(t).(*shm)) })
	t.Run("a kernel without SO_PASSRIGHTS", func(t *testing.T) {
		f := newFabric(t).(*shm)
		f.noPassRights = true
		test(t, f)
	})
}

// guarded reports whether nobody can send descriptors to a fabric's sockets.
func guarded(t *testing.T, f *shm) bool {
	t.Helper()
	s, err := f.newSocket(newCloser())
	require.NoError(t, err)
	defer s.close()
	return !s.rights
}

// nextDialer is the next connection that brings a request. Where the kernel does
// not keep descriptors away, a dialer first makes one that only asks who listens.
func nextDialer(l *listener) (*socket, error) {
	for {
		fd, err := l.next()
		if err != nil {
			return nil, err
		}
		s, err := pollSocket(fd, false, newCloser())
		if err != nil {
			return nil, err
		}
		var b [maxFrame]byte
		_, _, err = s.receive(ctx, b[:], false)
		if !errors.Is(err, io.EOF) {
			return s, err
		}
		s.close()
	}
}

func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(tasks)
}

// With more of them than may be held up, the listener ends where the kernel does
// not keep them away. Nothing else does.
func TestLingeringDescriptorsEndAListenerAtMost(t *testing.T) {
	needsRoot(t) // before there is anything that a skip would leave behind
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) {
		undisturbed(t, f, func() {
			before := threads(t)
			other := listen(t, f, 1)
			l := listen(t, f, 1)
			many := "5000"
			if guarded(t, f) {
				many = "1000" // all in vain
			}
			startAs(t, stranger, "linger", l.Addr(), many, plainName(l.Addr()))
			if guarded(t, f) {
				requireAccepts(t, f, l)
			} else {
				soon(t, "Accept", func() {
					_, err := l.Accept()
					require.ErrorIs(t, err, errHeldUp)
				})
				_, err := dial(f, l.Addr(), options)
				require.Equal(t, fabric.RejectNoListener, reason(t, err), "dialers need not wait")
			}
			requireAccepts(t, f, other)
			soon(t, "Close", func() { require.NoError(t, l.Close()) })
			assert.LessOrEqual(t, threads(t), before+maxClosing+8)
		})
	})
}

// A process that has the name of a listener can send descriptors to its dialers.
func TestLingeringDescriptorsDelayNoDialer(t *testing.T) {
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) {
		at := place()
		p := startAs(t, stranger, "linger server", at, plainName(at), plainName(netip.AddrPortFrom(netip.Addr{}, at.Port())))
		before := threads(t)
		var first sync.Once
		f.config.Trust = func(uint32) bool {
			// By the time that the dialer makes up its mind.
			first.Do(func() {
				// A dialer that sees whose listener it is leaves at once. Whoever asks who it is hears nothing.
				want := []string{"sent: broken pipe"}
				if guarded(t, f) {
					want = append(want, "sent: operation not permitted")
				}
				assert.Contains(t, want, p.line(t))
			})
			return false
		}
		for range 2 * maxClosing {
			soon(t, "Connect", func() {
				_, err := dial(f, at, options)
				require.ErrorIs(t, err, syscall.EACCES)
			})
		}
		l, err := f.Listen(at, 1)
		require.NoError(t, err)
		requireAccepts(t, f, l)
		require.NoError(t, l.Close())
		assert.LessOrEqual(t, threads(t), before+maxClosing+8)
	})
}

// A trusted peer, too, harms no more than the connection with it.
func TestLingeringDescriptorsOfATrustedPeerEndTheConnection(t *testing.T) {
	leavesNothing(t)
	f := newFabric(t).(*shm)
	a, b := connectTo(t, f, listen(t, f, 1), options)
	for _, from := range []end{a, b} {
		fd, err := createMemfd()
		require.NoError(t, err)
		if guarded(t, f) {
			require.ErrorIs(t, from.sock.send([]byte("x"), fd), syscall.EPERM)
		}
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())

	f.noPassRights = true
	a, b = connectTo(t, f, listen(t, f, 1), options)
	for _, pair := range [][2]end{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		require.NoError(t, to.Arm())
		fd, peer, err := lingering()
		require.NoError(t, err)
		defer unix.Close(peer)
		require.NoError(t, sendDescriptor(from.sock.fd, fd))
		go unix.Close(fd)
		soon(t, "Wait", func() {
			err := to.Wait()
			assert.ErrorIs(t, err, fabric.ErrQueuePair)
			assert.ErrorIs(t, err, errDescriptors)
		})
	}
	soon(t, "Close", func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// A listener that is trusted may send any descriptor instead of memory. It costs no more
// than so many descriptors and threads, however often it is dialed at once, and no other
// listener's dialers anything.
func TestLingeringDescriptorsInsteadOfMemoryEndDialsOfThatListener(t *testing.T) {
	leavesNothing(t)
	lenientToo(t, func(t *testing.T, f *shm) {
		at, closing := answersWithLingering(t, f)
		other := listen(t, f, 1)
		one, peer := connectTo(t, f, other, options)
		before := threads(t)
		var dials atomic.Int64
		soon(t, "Connect", func() {
			var dialers sync.WaitGroup
			for range 4 {
				dialers.Go(func() {
					for err := error(nil); dials.Load() < 1000 && !errors.Is(err, errHeldUp); dials.Add(1) {
						if _, err = dial(f, at, options); !errors.Is(err, errHeldUp) {
							assert.ErrorContains(t, err, "not of shared memory")
						}
					}
				})
			}
			dialers.Wait()
		})
		// Of the two closes of each descriptor, here and where it was sent, the last blocks.
		blockedThere := closing.Load()
		assert.LessOrEqual(t, dials.Load(), 2*(maxClosing+maxWaiting)+blockedThere)
		assert.LessOrEqual(t, threads(t), before+2*maxClosing+8+int(blockedThere))
		requireAccepts(t, f, other)
		fd := one.sock.fd
		require.NoError(t, one.Close())
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		assert.ErrorIs(t, err, syscall.EBADF, "descriptor of a connection that was made before")
		require.NoError(t, peer.Close())
	})
}

// answersWithLingering listens, answers each request with a descriptor whose
// last close blocks until the end of the test, and returns where, and how many of
// its own closes are under way.
func answersWithLingering(t *testing.T, f *shm) (netip.AddrPort, *atomic.Int64) {
	t.Helper()
	var closing atomic.Int64
	s, at, err := f.listenAt(netip.AddrPortFrom(host, 0))
	require.NoError(t, err)
	var peers []int
	done := make(chan struct{})
	go func() {
		defer close(done)
		l := &listener{sock: s}
		for {
			server, err := nextDialer(l)
			if err != nil {
				return
			}
			memory, peer, err := lingering()
			assert.NoError(t, err)
			peers = append(peers, peer)
			f := frame{kind: rep, shape: victim}
			assert.NoError(t, server.send(f.encode(), memory))
			server.close()
			closing.Add(1)
			go func() {
				unix.Close(memory)
				closing.Add(-1)
			}()
		}
	}()
	t.Cleanup(func() {
		s.sleeper.Wake()
		<-done
		s.close()
		for _, fd := range peers {
			unix.Close(fd)
		}
	})
	return at, &closing
}
