package examples

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// overAny ends in the network that carried the bytes: what "auto" finds depends
// on the system that the test runs on.
const overAny = "(shm|rdma|tcp)\n$"

func TestProgramsRunWithOneCommand(t *testing.T) {
	for program, want := range map[string]string{
		"echo":     `^hello, ring, over ` + overAny,
		"tls":      `^hello, I am ring\.example with TLS 1\.3, over ` + overAny,
		"grpc":     `^SERVING, over ` + overAny,
		"sums":     `^4 blobs, 10486785 bytes, all sums right, over ` + overAny,
		"twolines": `^set colour blue: ok\nget colour: blue\nget size: none\ncarried by ` + overAny,
	} {
		t.Run(program, func(t *testing.T) {
			require.Regexp(t, want, run(t, build(t, ".", "./"+program)))
		})
	}
}

// What the comment of twolines shows as its past is a program that works.
func TestTwoLinesTurnATCPProgramIntoAnAutoProgram(t *testing.T) {
	source, err := os.ReadFile("twolines/main.go")
	require.NoError(t, err)
	diff := regexp.MustCompile(`(?m)^//\twas +(.*)\n//\tis +(.*)$`).FindAllStringSubmatch(string(source), -1)
	require.Len(t, diff, 2, "lines that the comment says were changed")
	before := strings.Replace(string(source), "\t\"github.com/ringnet/ringnet\"\n", "", 1)
	for _, line := range diff {
		was, is := "\n\t"+line[1]+"\n", "\n\t"+line[2]+"\n"
		require.Equal(t, 1, strings.Count(before, is), is)
		before = strings.Replace(before, is, was, 1)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(before), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module twolines\n\ngo 1.25.0\n"), 0o644))
	require.Regexp(t, `get colour: blue\nget size: none\ncarried by tcp\n$`, run(t, build(t, dir, ".")))
}

func TestHTTPServerAndClient(t *testing.T) {
	server, client := build(t, ".", "./http/server"), build(t, ".", "./http/client")
	for _, network := range []string{"auto", "tcp"} {
		t.Run(network, func(t *testing.T) {
			addr := start(t, server, "-network", network, "-addr", "127.0.0.1:0", "-dir", ".")
			require.Regexp(t, `\n\d+ files, \d+ bytes, all identical, over (shm|rdma|tcp), in `,
				run(t, client, "-network", network, "-server", addr, "-dir", "."))
			require.Regexp(t, `\n\d files, \d+ bytes, all identical, over (shm|rdma|tcp), in `,
				run(t, client, "-network", network, "-server", addr, "-dir", ".", "echo", "tls"))
		})
	}
}

func TestHTTP3ServerAndClient(t *testing.T) {
	server, client := build(t, ".", "./http3/server"), build(t, ".", "./http3/client")
	certificate := t.TempDir()
	generate := exec.Command("go", "run", filepath.Join(runtime.GOROOT(), "src/crypto/tls/generate_cert.go"), "-host", "ring.example")
	generate.Dir = certificate
	out, err := generate.CombinedOutput()
	require.NoError(t, err, string(out))
	cert, key := filepath.Join(certificate, "cert.pem"), filepath.Join(certificate, "key.pem")
	for _, network := range []string{"shm-udp", "udp"} {
		t.Run(network, func(t *testing.T) {
			addr := start(t, server, "-network", network, "-addr", "127.0.0.1:0", "-dir", ".", "-cert", cert, "-key", key)
			require.Regexp(t, `^\d+ files, \d+ bytes, all with the same SHA-256, over `+network+`, in `,
				run(t, client, "-network", network, "-server", addr, "-dir", ".", "-cert", cert))
		})
	}
}

// The demo's last line is what README and Makefile promise.
func TestDemoEndsInItsResult(t *testing.T) {
	bin := t.TempDir()
	for _, program := range []string{"server", "client", "demo"} {
		require.NoError(t, os.Rename(build(t, ".", "./http/"+program), filepath.Join(bin, program)))
	}
	require.Regexp(t, `\ndemo: \d+ files, \d+ bytes, all identical, over (shm|rdma|tcp); \d+\.\d\d times as (fast|slow) as TCP\n$`,
		run(t, filepath.Join(bin, "demo"), "-bin", bin, "-dir", ".", "-rounds", "2"))
}

// build builds a program, as on a machine without a C compiler.
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

// start starts a server until the end of the test, and returns where it listens.
func start(t *testing.T, program string, args ...string) (addr string) {
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
	listening, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(strings.TrimPrefix(listening, "listening on "))
}

// run runs a program and returns what it said.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}
