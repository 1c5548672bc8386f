package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseFlagsAndCommand(t *testing.T) {
	dir := t.TempDir()
	o, err := parse([]string{"-timeout", "0", "-scratch", dir, "-env", "A, B", "-env", "C*", "-guest", "--", "go", "test", "-v", "--", "x"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.nodes != 1 || !o.guest || o.timeout != 0 || o.scratch != dir {
		t.Errorf("flags: %+v", o)
	}
	if !slices.Equal(o.env, []string{"A", "B", "C*"}) {
		t.Errorf("list: %q", o.env)
	}
	if want := []string{"go", "test", "-v", "--", "x"}; len(o.commands) != 1 || !slices.Equal(o.commands[0], want) {
		t.Errorf("commands: %q, want %q", o.commands, want)
	}
}

func TestParseGivesEachNodeItsCommand(t *testing.T) {
	for _, tt := range []struct {
		args string
		want [][]string
	}{
		{"-nodes 2 -- a b", [][]string{{"a", "b"}, {"a", "b"}}},
		{"-nodes 2 -- a b -- c", [][]string{{"a", "b"}, {"c"}}},
		{"-nodes 2 -- a -- b -- c", [][]string{{"a"}, {"b", "--", "c"}}},
	} {
		o, err := parse(strings.Fields(tt.args), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", tt.args, err)
		} else if !slices.EqualFunc(o.commands, tt.want, slices.Equal) {
			t.Errorf("%s: %q, want %q", tt.args, o.commands, tt.want)
		}
	}
}

func TestParseRefusesNonsense(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", "no command"},
		{"-nodes 2 -- a --", "no command"},
		{"-nodes 3 -- a", "-nodes 3"},
		{"-cables 2 -- a", "-cables 2"},
		{"-nodes 2 -cables 3 -- a", "-cables 3"},
		{"-timeout -1s -- a", "-timeout -1s"},
		{"-scratch /nonexistent -- a", "/nonexistent"},
		{"-scratch /dev/null -- a", "not a folder"},
		{"-no-such-flag -- a", "no-such-flag"},
	} {
		if _, err := parse(strings.Fields(tt.args), io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want one about %q", tt.args, err, tt.want)
		}
	}
}

func TestGuestEnvHasTheUsualAndTheNamed(t *testing.T) {
	environ := []string{"PATH=/bin", "SECRET=x", "GOCOVERDIR=/c", "LC_ALL=C", "A=1=2", "AB=3", "RINGNET_X=1", "PREFIX_Y=2"}
	want := []string{"PATH=/bin", "GOCOVERDIR=/c", "LC_ALL=C", "A=1=2", "RINGNET_X=1", "PREFIX_Y=2"}
	if got := guestEnv(environ, []string{"A", "PREFIX_*", "ABSENT"}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestBuildIsCompleteOrNotAtAll(t *testing.T) {
	cache := t.TempDir()
	path := filepath.Join(cache, "made")
	failure := errors.New("failure")
	if err := build(cache, path, func(string) error { return failure }); err != failure {
		t.Errorf("error %v, want %v", err, failure)
	}
	if left, _ := os.ReadDir(cache); len(left) != 0 {
		t.Errorf("a failure leaves %v", left)
	}
	if err := build(cache, path, func(tmp string) error { return os.WriteFile(filepath.Join(tmp, "f"), nil, 0o600) }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
		t.Error(err)
	}
}

func TestLockKeepsOthersOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("no more patience")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, cause)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, cause) {
		t.Errorf("while locked: %v, want %v", err, cause)
	}
	unlock()
	unlock, err = lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestKernelPackageOfDistributions(t *testing.T) {
	for _, tt := range []struct{ name, release, want string }{
		{"Debian", "ID=debian\nVERSION_ID=\"12\"\n", "linux-image-amd64"},
		{"Ubuntu", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", "linux-image-generic"},
		{"Mint", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "linux-image-generic"},
	} {
		if got := kernelPackage(machines["amd64"], parseOSRelease(tt.release)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestKernelDependencies(t *testing.T) {
	for _, tt := range []struct {
		out  string
		want []string
	}{
		{"linux-image-amd64\n  Depends: linux-image-6.1.0-9-amd64\n", []string{"linux-image-6.1.0-9-amd64"}},
		{
			"linux-image-6.8.0-1-generic\n |Depends: kmod\n  Depends: linux-modules-6.8.0-1-generic\n  Depends: linux-modules-extra-6.8.0-1-generic\n  Recommends: linux-image-7-generic\n  Suggests: linux-headers-6.8\n",
			[]string{"linux-modules-6.8.0-1-generic", "linux-modules-extra-6.8.0-1-generic"},
		},
		{"linux-image-6.1.0-9-amd64\n  Depends: kmod\n  Depends: linux-base\n    linux-image-9\n", nil},
	} {
		if got := kernelDependencies(tt.out); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.out, got, tt.want)
		}
	}
}

func TestInsmodPaths(t *testing.T) {
	out := "builtin crc32\ninsmod /a b/x.ko \ninsmod /a b/y.ko.xz numdummies=0\ninsmod /z.ko.zst\n"
	if got, want := insmodPaths(out), []string{"/a b/x.ko", "/a b/y.ko.xz", "/z.ko.zst"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMissingPackagesAsksDpkg(t *testing.T) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		t.Skip("no dpkg here")
	}
	got := missingPackages(context.Background(), []string{"dpkg", "softroce-no-such-package"})
	if want := []string{"softroce-no-such-package"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// writeSysfs writes files below a new folder that is laid out like
// /sys/class/infiniband, and returns it.
func writeSysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	sys := t.TempDir()
	for name, data := range files {
		path := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

func TestFindDeviceTakesAnActivePortWithAnAddress(t *testing.T) {
	sys := writeSysfs(t, map[string]string{
		"down0/ports/1/state":              "1: DOWN\n",
		"down0/ports/1/gid_attrs/ndevs/0":  "eth0\n",
		"ipless0/ports/1/state":            "4: ACTIVE\n",
		"ipless0/device/net/ib0/x":         "",
		"mlx5_0/ports/1/state":             "4: ACTIVE\n",
		"mlx5_0/ports/1/gid_attrs/ndevs/0": "eth1\n",
		"mlx5_0/ports/1/gid_attrs/ndevs/1": "eth1\n",
	})
	addrs := func() map[string][]netip.Addr {
		up := map[string][]netip.Addr{}
		for netdev, list := range map[string]string{
			"lo": "127.0.0.1 ::1", "eth0": "10.0.0.1", "ib0": "fe80::1", "eth1": "fe80::2 10.0.1.1 10.0.1.2 fd00::1", "eth2": "10.0.2.1",
		} {
			for a := range strings.FieldsSeq(list) {
				up[netdev] = append(up[netdev], netip.MustParseAddr(a))
			}
		}
		return up
	}
	d := findDevice(sys, addrs)
	if d == nil {
		t.Fatal("no device found")
	}
	want := []string{"SOFTROCE_DEVICE=mlx5_0", "SOFTROCE_NETDEV=eth1", "SOFTROCE_ADDR=10.0.1.1", "SOFTROCE_ADDR6=fd00::1", "SOFTROCE_OTHER_ADDR=10.0.2.1"}
	if got := d.env(envPrefix); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFindDeviceWithoutAny(t *testing.T) {
	none := func() map[string][]netip.Addr { return nil }
	if d := findDevice(filepath.Join(t.TempDir(), "absent"), none); d != nil {
		t.Errorf("found %+v", d)
	}
}

func TestHasGIDs(t *testing.T) {
	port := writeSysfs(t, map[string]string{
		"gids/0": "fe80:0000:0000:0000:0050:f7ff:fea0:ce00\n",
		"gids/1": "0000:0000:0000:0000:0000:ffff:c612:0001\n",
		"gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
	})
	if !hasGIDs(port, nodeAddr(0, 0)) {
		t.Error("the GID of an IPv4 address is not found")
	}
	if hasGIDs(port, nodeAddr(0, 0), nodeAddr6(0, 0)) {
		t.Error("a GID is found that is not there")
	}
}

func TestPrefixWriterWritesWholeLines(t *testing.T) {
	var out bytes.Buffer
	w := &prefixWriter{w: &out, mu: new(sync.Mutex), prefix: "n| "}
	for _, s := range []string{"a", "b\nc\n\nd", "", "e", "\n", "last"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write(%q) = %d, %v", s, n, err)
		}
	}
	w.flush()
	w.flush()
	if got, want := out.String(), "n| ab\nn| c\nn| \nn| de\nn| last\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTallyWaitsForBytesOrTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tally := newTally(io.Discard)
		done := make(chan int64, 3)
		for _, n := range []int64{0, 5, 6} {
			go func() {
				tally.wait(n)
				done <- n
			}()
		}
		expect := func(want ...int64) {
			t.Helper()
			synctest.Wait()
			for _, n := range want {
				if len(done) == 0 {
					t.Fatalf("wait(%d) does not return", n)
				}
				if got := <-done; got != n {
					t.Errorf("wait(%d) returns, want wait(%d)", got, n)
				}
			}
			if len(done) > 0 {
				t.Errorf("wait(%d) returns too early", <-done)
			}
		}
		expect(0)
		tally.Write([]byte("1234"))
		expect()
		tally.Write([]byte("5"))
		expect(5)
		tally.close()
		expect(6)
	})
}

func TestLastLinesLeavesOutControlCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("1\n2\x1b[0m\r\n3\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := lastLines(path, 2), "2[0m\n3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := lastLines(path+"-absent", 2); got != "" {
		t.Errorf("of a file that is not there: %q", got)
	}
}

func TestRequestsNobodyKnowsAreErrors(t *testing.T) {
	c := &cluster{}
	for _, request := range []string{"cable", "power off 2", "power off", "power cycle 0", "Cable Down", "cable down now", "cable down -1"} {
		if err := c.do(nil, request); err == nil {
			t.Errorf("%q is no error", request)
		}
	}
}
