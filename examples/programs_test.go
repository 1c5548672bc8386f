package examples

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each end may be on auto while the other only has TCP.
func TestHTTPServerAndClient(t *testing.T) {
	server, client := build(t, ".", "./http/server"), build(t, ".", "./http/client")
	for _, networks := range [][2]string{{"auto", "auto"}, {"auto", "tcp"}, {"tcp", "auto"}} {
		_, addr := start(t, server, "-network", networks[0], "-addr", "127.0.0.1:0", "-dir", ".")
		for _, subfolders := range [][]string{nil, {"http", "feed"}} {
			args := append([]string{"-network", networks[1], "-server", addr, "-dir", "."}, subfolders...)
			require.Regexp(t, `\n\d+ files, \d+ bytes, all identical, over (shm|rdma|tcp), in `, run(t, client, args...), networks)
		}
	}
}

// overEachPacketNetwork runs a test over shm-udp, and over rdma-udp where there is a
// device. With a device build takes the program that Makefile has built, because Go would
// take long there; else it builds the program of this directory.
func overEachPacketNetwork(t *testing.T, test func(t *testing.T, network, host string, build func(program string) string)) {
	t.Run("shm", func(t *testing.T) {
		test(t, "shm-udp", "127.0.0.1", func(program string) string { return build(t, ".", program) })
	})
	t.Run("rdma", func(t *testing.T) {
		host := os.Getenv("SOFTROCE_ADDR")
		if host == "" && os.Getenv("RINGNET_REQUIRE_RDMA") != "" {
			t.Fatal("RINGNET_REQUIRE_RDMA is set, but not SOFTROCE_ADDR")
		}
		if host == "" {
			t.Skip("no RDMA device: SOFTROCE_ADDR is not set; bin/softroce runs this where there is one")
		}
		test(t, "rdma-udp", host, func(program string) string {
			return filepath.Join("../bin/examples", strings.TrimSuffix(filepath.Base(program), ".go"))
		})
	})
}

func TestHTTP3ServerAndClient(t *testing.T) {
	overEachPacketNetwork(t, func(t *testing.T, network, host string, build func(string) string) {
		dir := t.TempDir()
		//nolint:staticcheck // the test runs where it was built
		generate, err := filepath.Abs(build(filepath.Join(runtime.GOROOT(), "src/crypto/tls/generate_cert.go")))
		require.NoError(t, err)
		cmd := exec.Command(generate, "-host", "ring.example", "-ecdsa-curve", "P256")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		server, client := build("./http3/server"), build("./http3/client")
		ends := [][2]string{{network, network}}
		if network == "shm-udp" {
			ends = append(ends, [][2]string{{"auto-udp", "auto-udp"}, {"auto-udp", "udp"}, {"udp", "auto-udp"}}...)
		}
		for _, networks := range ends {
			_, addr := start(t, server, "-network", networks[0], "-addr", host+":0", "-dir", dir, "-cert", cert, "-key", key)
			for _, size := range []int{0, 1, 4 << 20} {
				content := strings.Repeat("ring", size)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(content), 0o600))
				got := run(t, client, "-network", networks[1], "-cert", cert, "https://"+addr+"/file")
				require.Equal(t, len(content), len(got), networks)
				require.True(t, content == got, networks)
			}
		}
	})
}

// interfaceOf returns the interface that has an address of this host.
func interfaceOf(t *testing.T, host string) *net.Interface {
	t.Helper()
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range all {
		addrs, err := ifi.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			if a.(*net.IPNet).IP.String() == host {
				return &ifi
			}
		}
	}
	require.FailNow(t, "no interface has "+host)
	return nil
}

// What a receiver gets and what it reports as missing is together all that was published.
func TestFeedReportsGaps(t *testing.T) {
	overEachPacketNetwork(t, func(t *testing.T, network, host string, build func(string) string) {
		args := []string{"-network", network, "-group", "239.0.0.71:7001"}
		ifi := interfaceOf(t, host)
		feed := build("./feed")
		var receivers []*bufio.Reader
		for range 2 {
			out, _ := start(t, feed, append(args, "-interface", ifi.Name)...)
			receivers = append(receivers, out)
		}
		const packets, updates, skip = 1000, 64, 100
		require.Equal(t, fmt.Sprintf("%d updates published\n", packets*updates),
			run(t, feed, append(args, "-publish", "-addr", host+":0", "-packets", strconv.Itoa(packets), "-skip", strconv.Itoa(skip))...))
		for _, out := range receivers {
			said, err := io.ReadAll(out)
			require.NoError(t, err)
			var gaps, missing, received, missingInAll, gapsInAll int
			for line := range strings.Lines(string(said)) {
				var from, to int
				if _, err := fmt.Sscanf(line, "gap: %d to %d\n", &from, &to); err == nil {
					gaps, missing = gaps+1, missing+to-from+1
				} else {
					_, err := fmt.Sscanf(line, "%d updates received, %d missing in %d gaps", &received, &missingInAll, &gapsInAll)
					require.NoError(t, err, line)
				}
			}
			require.GreaterOrEqual(t, missing, packets/skip*updates)
			require.Positive(t, received)
			require.Equal(t, packets*updates, received+missing)
			require.Equal(t, []int{missing, gaps}, []int{missingInAll, gapsInAll})
		}
	})
}

// README.md and Makefile promise the demo's last line.
func TestDemoEndsInItsResult(t *testing.T) {
	bin := t.TempDir()
	for _, program := range []string{"server", "client", "demo"} {
		require.NoError(t, os.Rename(build(t, ".", "./http/"+program), filepath.Join(bin, program)))
	}
	require.Regexp(t, `\ndemo: \d+ files, \d+ bytes, all identical, over (shm|rdma|tcp); \d+\.\d\d times as (fast|slow) as TCP\n$`,
		run(t, filepath.Join(bin, "demo"), "-bin", bin, "-dir", ".", "-rounds", "2"))
}

// build builds a program as on a machine without a C compiler.
func build(t *testing.T, dir, program string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", bin, program)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

// start starts a server until the end of the test. It returns its output from then on, and
// where it listens.
func start(t *testing.T, program string, args ...string) (said *bufio.Reader, addr string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said = bufio.NewReader(out)
	listening, err := said.ReadString('\n')
	require.NoError(t, err)
	return said, strings.TrimSpace(strings.TrimPrefix(listening, "listening on "))
}

// run runs a program and returns its output.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}
