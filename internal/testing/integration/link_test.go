//go:build linux

package integration_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet"
)

// deviceOfItsOwn returns a device that a test may remove. It needs a guest of its own: a
// soft-RoCE device goes only when every process has ended that ever used it, because
// librdmacm keeps devices open and rdma_rxe waits for that. The device is a new one: when
// the connection manager has tried to send while its interface was down, the manager's own
// queue pair fails for good. A card in user space has no interface, and obeys tools/idealcard.
func deviceOfItsOwn(t *testing.T) (device, netdev string) {
	t.Helper()
	device, netdev = requireEnv(t, "SOFTROCE_DEVICE"), os.Getenv("SOFTROCE_NETDEV")
	if os.Getenv("RINGNET_REMOVE_DEVICE") != "1" {
		t.Skip("takes the RDMA device away: RINGNET_REMOVE_DEVICE=1 allows it, in a guest of its own")
	}
	if netdev == "" {
		require.NoError(t, control("card return "+device)) // or the last test has removed it
		return device, ""
	}
	require.Equal(t, "softroce0", netdev, "the device is not one that tools/softroce has made for this run")
	if os.Getenv(aloneVariable) == "" {
		renewDevice(t, device, netdev)
	}
	return device, netdev
}

// connectHastily makes a connection that ends as soon as its queue pair does: tests of when and why
// a connection ends do not wait for another queue pair.
func connectHastily(t *testing.T, l net.Listener) (dialer, accepter *ringnet.Conn) {
	t.Helper()
	d, err := (&ringnet.Dialer{Config: &ringnet.Config{ResumeTimeout: -1}}).Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d.(*ringnet.Conn), accept(t, l)
}

func TestDeviceRemoved(t *testing.T) {
	device, netdev := deviceOfItsOwn(t)
	alone(t, nil, func(t *testing.T) {
		l := listen(t, ringnet.ListenConfig{})
		var ends []*ringnet.Conn
		for range crowdSize {
			d, a := connectHastily(t, l)
			requireEcho(t, d, a)
			require.NoError(t, (&stream{}).send(d, spoken, spoken))
			require.NoError(t, (&stream{}).send(a, spoken, spoken))
			ends = append(ends, d, a)
		}
		require.Len(t, ringnet.Links(), 2, "both ends of one")
		arrived := func() bool {
			return !slices.ContainsFunc(ends, func(c *ringnet.Conn) bool { return c.Stats().BytesReceived < 1000+spoken })
		}
		require.True(t, eventually(arrived))
		if netdev == "" {
			require.NoError(t, control("card remove "+device))
		} else {
			require.NoError(t, exec.Command("rdma", "link", "delete", device).Start())
		}
		for _, c := range ends {
			require.NoError(t, (&stream{}).receive(c, spoken))
			// The other end may have ended the connection first.
			_, err := c.Read(make([]byte, 1))
			requireErrno(t, err, syscall.ENETDOWN, syscall.ECONNRESET)
			_, err = c.Write(make([]byte, 1))
			requireErrno(t, err, syscall.ENETDOWN, syscall.ECONNRESET)
			require.NoError(t, c.Close())
		}
		require.True(t, eventually(func() bool { return len(ringnet.Links()) == 0 }))
		_, err := l.Accept()
		require.ErrorContains(t, err, "RDMA device removed")
		_, err = ringnet.Dial("rdma", l.Addr().String())
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}

func TestPortDown(t *testing.T) {
	_, netdev := deviceOfItsOwn(t)
	alone(t, nil, func(t *testing.T) {
		l := listen(t, ringnet.ListenConfig{})
		d, a := connectHastily(t, l)
		requireEcho(t, d, a)
		setLink(t, netdev, "down")
		time.Sleep(time.Second)
		setLink(t, netdev, "up")
		time.Sleep(3 * time.Second) // longer than a connection waits before it probes
		requireEcho(t, d, a)

		setLink(t, netdev, "down")
		for _, c := range []*ringnet.Conn{d, a} {
			// Soft-RoCE then has no route, and reports an error instead of nothing.
			_, err := c.Read(make([]byte, 1))
			requireErrno(t, err, syscall.ETIMEDOUT, syscall.ECONNRESET)
		}
		setLink(t, netdev, "up")
	})
}

// setLink sets an interface "down" or "up". It asks the kernel itself: ip takes seconds to
// start on a busy machine, and a connection waits no longer than that for an interface.
func setLink(t *testing.T, netdev, state string) {
	t.Helper()
	if netdev == "" {
		require.NoError(t, control("port "+state+" "+os.Getenv("SOFTROCE_DEVICE")))
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	flags, err := unix.NewIfreq(netdev)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, flags))
	if state == "up" {
		flags.SetUint16(flags.Uint16() | unix.IFF_UP)
	} else {
		flags.SetUint16(flags.Uint16() &^ unix.IFF_UP)
	}
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, flags))
}

// renewDevice deletes the device and makes it again.
func renewDevice(t *testing.T, device, netdev string) {
	t.Helper()
	dir := filepath.Join("/sys/class/infiniband", device)
	_ = exec.Command("rdma", "link", "delete", device).Run() // or the last test has
	require.True(t, eventually(func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}))
	out, err := exec.Command("rdma", "link", "add", device, "type", "rxe", "netdev", netdev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, eventually(func() bool {
		state, err := os.ReadFile(filepath.Join(dir, "ports/1/state"))
		return err == nil && strings.Contains(string(state), "ACTIVE")
	}))
}

// requireErrno requires one of the errors.
func requireErrno(t *testing.T, err error, wanted ...syscall.Errno) {
	t.Helper()
	for _, errno := range wanted {
		if errors.Is(err, errno) {
			return
		}
	}
	t.Fatalf("%v: want one of %v", err, wanted)
}
