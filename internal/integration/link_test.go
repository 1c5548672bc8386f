//go:build linux

package integration_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/rconn"
)

// These tests take the device away, or its port. They want a boot of their own:
// a process that has ever used a soft-RoCE device keeps it from going.
func deviceOfItsOwn(t *testing.T) (device, netdev string) {
	t.Helper()
	device, netdev = requireEnv(t, "SOFTROCE_DEVICE"), requireEnv(t, "SOFTROCE_NETDEV")
	if os.Getenv("RINGNET_REMOVE_DEVICE") != "1" {
		t.Skip("takes the RDMA device away: RINGNET_REMOVE_DEVICE=1 allows it, in a guest of its own")
	}
	require.Equal(t, "softroce0", netdev, "the device is not one that tools/softroce has made for this run")
	return device, netdev
}

func TestDeviceRemoved(t *testing.T) {
	device, _ := deviceOfItsOwn(t)
	removed := make(chan error, 1)
	if os.Getenv(aloneVariable) == "" {
		t.Cleanup(func() { addDevice(t) })
	}
	alone(t, nil, func(t *testing.T) {
		l := listen(t, ringnet.ListenConfig{})
		d, a, err := connect(l)
		require.NoError(t, err)
		require.NoError(t, echo(d, a))
		go func() { removed <- exec.Command("rdma", "link", "delete", device).Start() }()
		for _, c := range []*ringnet.Conn{d, a} {
			_, err := c.Read(make([]byte, 1))
			// The other end may have been quicker to say goodbye.
			require.Condition(t, func() bool { return isErrno(err, syscall.ENETDOWN, syscall.ECONNRESET) }, "%v", err)
			_, err = c.Write(make([]byte, 1))
			require.Condition(t, func() bool { return isErrno(err, syscall.ENETDOWN, syscall.ECONNRESET) }, "%v", err)
		}
		require.NoError(t, <-removed)
		_, err = l.Accept()
		require.ErrorContains(t, err, "RDMA device removed")
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
		_, err = ringnet.Dial("rdma", l.Addr().String())
		require.Error(t, err)
		t.Log(err)
	})
}

func TestPortDown(t *testing.T) {
	_, netdev := deviceOfItsOwn(t)
	if os.Getenv(aloneVariable) == "" {
		// What the connection manager could not send has ruined its own queue
		// pair for good.
		t.Cleanup(func() {
			require.NoError(t, exec.Command("rdma", "link", "delete", os.Getenv("SOFTROCE_DEVICE")).Run())
			addDevice(t)
		})
	}
	alone(t, nil, func(t *testing.T) {
		d, a := pair(t)
		require.NoError(t, echo(d, a))
		setLink(t, netdev, "down")
		time.Sleep(time.Second)
		setLink(t, netdev, "up")
		time.Sleep(3 * time.Second) // beyond what a connection waits before it looks
		require.NoError(t, echo(d, a))
		require.NoError(t, echo(a, d))

		setLink(t, netdev, "down")
		down := time.Now()
		for _, c := range []*ringnet.Conn{d, a} {
			_, err := c.Read(make([]byte, 1))
			require.Condition(t, func() bool { return isErrno(err, syscall.ETIMEDOUT, syscall.ECONNRESET) }, "%v", err)
			t.Log(time.Since(down), err)
		}
		require.Less(t, time.Since(down), 2*time.Second+rconn.AckTimeout*(rconn.Retries+1)+time.Second)
		setLink(t, netdev, "up")
	})
}

func setLink(t *testing.T, netdev, state string) {
	t.Helper()
	out, err := exec.Command("ip", "link", "set", netdev, state).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// addDevice makes the device that was removed again, and waits until it works.
func addDevice(t *testing.T) {
	t.Helper()
	device, netdev := os.Getenv("SOFTROCE_DEVICE"), os.Getenv("SOFTROCE_NETDEV")
	gone := func() bool {
		_, err := os.Stat(filepath.Join("/sys/class/infiniband", device))
		return err != nil
	}
	require.True(t, eventually(10*time.Second, gone))
	out, err := exec.Command("rdma", "link", "add", device, "type", "rxe", "netdev", netdev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, eventually(10*time.Second, func() bool {
		state, err := os.ReadFile(filepath.Join("/sys/class/infiniband", device, "ports/1/state"))
		return err == nil && strings.Contains(string(state), "ACTIVE")
	}))
}

func isErrno(err error, any ...syscall.Errno) bool {
	for _, errno := range any {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
