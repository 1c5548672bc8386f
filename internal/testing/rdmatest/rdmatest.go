//go:build linux

// Package rdmatest has what tests need that want an RDMA device: where one is, and what may be left
// behind. tools/softroce and tools/idealcard set the variables.
package rdmatest

import (
	"bytes"
	"errors"
	"fmt"
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

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// Address is what an environment variable holds, SOFTROCE_ADDR for example. The test is skipped if it
// is not set, or fails if RDMA is required.
func Address(t testing.TB, name string) netip.Addr {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		if required() {
			t.Fatalf("%s is not set", name)
		}
		t.Skipf("no RDMA device: %s is not set; bin/softroce sets it", name)
	}
	addr, err := netip.ParseAddr(value)
	require.NoError(t, err)
	return addr
}

// Opened skips the test if err, of opening the libraries, says that this host has no RDMA, and RDMA is
// not required.
func Opened(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errors.ErrUnsupported) && !required() {
		t.Skip(err)
	}
	require.NoError(t, err)
}

func required() bool { return os.Getenv("RINGNET_REQUIRE_RDMA") == "1" }

// OnCardWith skips the test unless it runs on a card that has just these manners.
func OnCardWith(t testing.TB, manners string) {
	t.Helper()
	if os.Getenv("IDEAL_MANNERS") != manners {
		t.Skipf("it is for tools/idealcard -manners %s", manners)
	}
}

// Within returns what c has, and fails the test when it never has anything.
func Within[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hang.After):
		require.FailNow(t, "nothing happened")
		panic("unreachable")
	}
}

// Resources is what connections and queue pairs could leave behind.
type Resources struct {
	Descriptors, Mappings, Goroutines int
	QueuePairs, CompletionQueues      int
	Regions, Domains, IDs             int
}

// CountResources counts them.
func CountResources(t testing.TB) Resources {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	r := Resources{Descriptors: len(descriptors), Goroutines: runtime.NumGoroutine()}
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

// RegisteredAt reports whether there is memory at an address that stays out of child
// processes: MADV_DONTFORK, which smaps calls dc. Registered memory is of that kind, and
// what else comes to lie where some has been is not.
func RegisteredAt(t testing.TB, addr uint64) bool {
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
