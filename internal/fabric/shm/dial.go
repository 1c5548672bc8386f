//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/mapping"
)

// shm implements [fabric.Fabric].
type shm struct {
	config   Config
	overflow uint32 // OverflowUID

	judging *verdicts

	requestTimeout time.Duration

	// Tests set these for what an older kernel does: one that does not list sockets, and
	// one without SO_PASSRIGHTS.
	noSocketLists, noPassRights bool
}

var _ fabric.Fabric = (*shm)(nil)

// Fabric returns the fabric with the zero [Config], or an error that wraps
// errors.ErrUnsupported and says what is missing.
func Fabric() (fabric.Fabric, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.fabric == nil {
		f, err := New(Config{})
		if err != nil {
			return nil, err
		}
		shared.fabric = f
	}
	return shared.fabric, nil
}

// shared has the fabric with the zero Config, once there is one.
var shared struct {
	sync.Mutex
	fabric fabric.Fabric
}

// New returns a fabric, or an error that wraps errors.ErrUnsupported and says
// what is missing.
func New(c Config) (fabric.Fabric, error) {
	if !canShare.Load() {
		if err := probe(); err != nil {
			return nil, err
		}
		canShare.Store(true)
	}
	overflow := OverflowUID()
	if ownUser() == overflow {
		return nil, fmt.Errorf("shared memory: %w: user %d may be anyone who has no ID in this user namespace", errors.ErrUnsupported, overflow)
	}
	return &shm{
		config:         c,
		overflow:       overflow,
		judging:        newVerdicts(),
		requestTimeout: requestTimeout,
	}, nil
}

// canShare is set once probe has succeeded, for dials make fabrics.
var canShare atomic.Bool

// probe returns why memory cannot be shared.
func probe() error {
	err := shareMemory()
	if err != nil && !exhausted(err) {
		err = fmt.Errorf("shared memory: %w: the kernel, or a sandbox, refuses %w", errors.ErrUnsupported, err)
	}
	return err
}

// shareMemory does with a little memory what both ends of a connection do, and makes the system
// calls by which they ring.
func shareMemory() error {
	n := os.Getpagesize()
	made, fd, err := createMemory(n, [3]part{{0, n}})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	defer func() { _ = unmapAll(made[:]) }()
	if err := ringNobody(fd); err != nil {
		return err
	}
	adopted, err := adoptMemory(fd, n, [3]part{{0, n}})
	if err != nil {
		return err
	}
	defer func() { _ = unmapAll(adopted[:]) }()
	again, err := mapping.Again(adopted[0], n)
	if err != nil {
		return err
	}
	return mapping.Unmap(again)
}

// ringNobody makes the system calls of doorbells with a descriptor that is no socket's.
func ringNobody(fd int) error {
	s := &socket{fd: fd}
	if err := s.ring(); !errors.Is(err, syscall.ENOTSOCK) {
		return err
	}
	if _, _, err := s.take(new(doorbells)); !errors.Is(err, syscall.ENOTSOCK) {
		return err
	}
	return nil
}

// OverflowUID is the user ID that the kernel shows for users who have none in the
// reader's user namespace (user_namespaces(7)).
func OverflowUID() uint32 {
	b, _ := os.ReadFile("/proc/sys/kernel/overflowuid")
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return 65534 // the default
	}
	return uint32(n)
}

// Dial implements [fabric.Fabric]. It never fails for want of a listener:
// Connect does. An address that is known not to be this host's is refused at
// once, with ECONNREFUSED.
func (f *shm) Dial(ctx context.Context, local, remote netip.AddrPort) (fabric.Endpoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e, err := f.newDialer(local, remote)
	if err != nil {
		return nil, err
	}
	if e.local, err = f.nameDialer(e.sock, e.local); err != nil {
		e.sock.close()
		return nil, fmt.Errorf("dial from %v: %w", e.local, err)
	}
	return e, nil
}

// newDialer returns an endpoint for a connection from one address of this host to
// another.
func (f *shm) newDialer(local, remote netip.AddrPort) (*endpoint, error) {
	local, remote = fabric.Plain(local), fabric.Plain(remote)
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, fmt.Errorf("dial %v: %w", remote, syscall.EINVAL)
	}
	if remote.Addr().IsUnspecified() {
		remote = netip.AddrPortFrom(fabric.Loopback(remote.Addr()), remote.Port())
	}
	if err := checkLocal(remote.Addr()); errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("%v: %w (%v): %w", remote.Addr(), fabric.ErrOtherHost, err, syscall.ECONNREFUSED)
	} else if err != nil {
		return nil, fmt.Errorf("dial %v: %w", remote, err)
	}
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		// As routing does for addresses of one's own host.
		local = netip.AddrPortFrom(remote.Addr(), local.Port())
	} else if err := checkLocal(local.Addr()); err != nil {
		return nil, fmt.Errorf("dial from %v: %w", local, err)
	}
	s, err := f.newSocket(closer{remote})
	if err != nil {
		return nil, err
	}
	return newEndpoint(f, s, local, remote), nil
}
