//go:build linux

package rdmaudp_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// requireEnv returns the value of a variable that tools/softroce sets where a test has what
// it needs, skips the test elsewhere, or fails it if it is required to run.
func requireEnv(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if why := name + " is not set; bin/softroce runs this where there is an RDMA device"; value == "" {
		if os.Getenv("RINGNET_REQUIRE_RDMA") == "1" {
			t.Fatal("RINGNET_REQUIRE_RDMA=1, but " + why)
		}
		t.Skip(why)
	}
	return value
}

// onNodes skips a test unless it runs on two machines joined by a cable. It returns on node 0.
// Node 1 serves, until node 0 cuts its power.
func onNodes(t *testing.T, serve func()) {
	t.Helper()
	if os.Getenv("SOFTROCE_PEER") == "" {
		t.Skip("SOFTROCE_PEER is not set; bin/softroce -nodes 2 runs this where there are two nodes")
	}
	if os.Getenv("SOFTROCE_NODE") == "1" {
		serve()
	}
	t.Cleanup(func() { require.NoError(t, control("power off 1")) })
}

// control has tools/softroce change something about the nodes or the cable.
func control(request string) error {
	port, err := os.OpenFile(os.Getenv("SOFTROCE_CONTROL"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer port.Close()
	if _, err := fmt.Fprintln(port, request); err != nil {
		return err
	}
	answer, err := bufio.NewReader(port).ReadString('\n')
	if err == nil && answer != "ok\n" {
		err = errors.New(answer)
	}
	return err
}

// eventually waits until something holds, and reports false if it never does.
func eventually(is func() bool) bool {
	for end := time.Now().Add(hang.After); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// deviceOfItsOwn returns a soft-RoCE device that a test may remove. The test needs a guest and a
// process of its own: such a device goes only when every process has ended that ever used it.
func deviceOfItsOwn(t *testing.T) (device string) {
	t.Helper()
	device = requireEnv(t, "SOFTROCE_DEVICE")
	if os.Getenv("RINGNET_REMOVE_DEVICE") != "1" {
		t.Skip("takes the RDMA device away: RINGNET_REMOVE_DEVICE=1 allows it, in a guest of its own")
	}
	require.Equal(t, "softroce0", os.Getenv("SOFTROCE_NETDEV"), "the device is not one that tools/softroce has made for this run")
	return device
}

// renewDevice deletes the device and makes it again.
func renewDevice(t *testing.T, device, netdev string) {
	t.Helper()
	dir := filepath.Join("/sys/class/infiniband", device)
	_ = exec.Command("rdma", "link", "delete", device).Run()
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
