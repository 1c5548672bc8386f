//go:build linux && cgo

package verbs

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// resources is what connections could leave behind.
type resources struct {
	Descriptors, Mappings, Goroutines int
	QueuePairs, CompletionQueues      int
	Regions, Domains, IDs             int
}

func countResources(t testing.TB) resources {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	r := resources{Descriptors: len(descriptors), Goroutines: runtime.NumGoroutine()}
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	r.Mappings = bytes.Count(maps, []byte{'\n'})
	// "rxe0: qp 3 cq 2 pd 1 mr 0 ..." for each device
	out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, n := range map[string]*int{
		"qp": &r.QueuePairs, "cq": &r.CompletionQueues, "mr": &r.Regions, "pd": &r.Domains, "cm_id": &r.IDs,
	} {
		for _, m := range regexp.MustCompile(`\b`+name+` (\d+)`).FindAllSubmatch(out, -1) {
			k, err := strconv.Atoi(string(m[1]))
			require.NoError(t, err)
			*n += k
		}
	}
	return r
}

func TestUseAfterCloseIsAnError(t *testing.T) {
	a, _ := pair(t)
	require.NoError(t, a.Close())
	for name, call := range map[string]func() error{
		"Open":       func() error { _, err := a.Open(options); return err },
		"PostRecv":   func() error { return a.PostRecv(1) },
		"PostSend":   func() error { return a.PostSend(make([]fabric.WorkRequest, 1)) },
		"Poll":       func() error { _, err := a.Poll(make([]fabric.Completion, 1)); return err },
		"Arm":        a.Arm,
		"Connect":    func() error { _, err := a.Connect(context.Background(), nil); return err },
		"Confirm":    a.Confirm,
		"Accept":     func() error { return a.Accept(context.Background(), nil) },
		"Reject":     func() error { return a.Reject(nil) },
		"Disconnect": a.Disconnect,
	} {
		assert.ErrorIs(t, call(), net.ErrClosed, name)
	}
	_, err := a.Register(1, fabric.LocalWrite)
	assert.Error(t, err)
}

// However far set-up came, Close takes it back.
func TestCloseInEveryState(t *testing.T) {
	f, addr := onDevice(t)
	l := listen(t, f, addr)
	steps := []func(a fabric.Endpoint) error{
		func(a fabric.Endpoint) error { _, err := a.Open(options); return err },
		func(a fabric.Endpoint) error { _, err := a.Register(1, fabric.RemoteWrite); return err },
		func(a fabric.Endpoint) error { return a.PostRecv(options.RecvQueue) },
		func(a fabric.Endpoint) error {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			a.Connect(ctx, nil)
			return nil
		},
	}
	for n := range len(steps) + 1 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, err := f.Dial(context.Background(), netip.AddrPort{}, l.Addr())
			require.NoError(t, err)
			for _, step := range steps[:n] {
				require.NoError(t, step(a))
			}
			require.NoError(t, a.Close())
			require.NoError(t, a.Close(), "again")
		})
	}
}

// A child process must not get the rings.
func TestRegisteredMemoryStaysInThisProcess(t *testing.T) {
	a, _ := pair(t)
	m := register(t, a, 1<<20, fabric.RemoteWrite)
	assert.True(t, registeredAt(t, m.Addr()))
}

// registeredAt reports whether there is memory at an address that stays out of child
// processes: MADV_DONTFORK, which smaps calls dc. Registered memory is of that kind, and
// what else comes to lie where some has been is not.
func registeredAt(t *testing.T, addr uint64) bool {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	inside := false
	for line := range strings.Lines(string(smaps)) {
		var start, end uint64
		if n, _ := fmt.Sscanf(line, "%x-%x", &start, &end); n == 2 {
			inside = start <= addr && addr < end
		} else if inside && strings.HasPrefix(line, "VmFlags:") {
			return slices.Contains(strings.Fields(line), "dc")
		}
	}
	return false
}
