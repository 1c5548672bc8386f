package examples

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each end may be on auto while the other only has TCP.
func TestHTTPServerAndClient(t *testing.T) {
	server, client := build(t, ".", "./http/server"), build(t, ".", "./http/client")
	for _, networks := range [][2]string{{"auto", "auto"}, {"auto", "tcp"}, {"tcp", "auto"}} {
		_, addr := start(t, server, "-network", networks[0], "-addr", "127.0.0.1:0", "-dir", ".")
		for _, subfolders := range [][]string{nil, {"http", "copy"}} {
			args := append([]string{"-network", networks[1], "-server", addr, "-dir", "."}, subfolders...)
			require.Regexp(t, `\n\d+ files, \d+ bytes, all identical, over (shm|rdma|tcp), in `, run(t, client, args...), networks)
		}
	}
}

// A file arrives whole, and its sum is the same at both ends.
func TestCopy(t *testing.T) {
	copy, dir := build(t, ".", "./copy"), t.TempDir()
	content := strings.Repeat("ring", 1<<20)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(content), 0o600))
	t.Chdir(dir)
	said, addr := start(t, copy, "-listen", "127.0.0.1:0", "received")
	sent := run(t, copy, "-dial", addr, "file")
	kept, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, strings.Fields(sent)[0], strings.Fields(kept)[0])
	got, err := os.ReadFile("received")
	require.NoError(t, err)
	require.True(t, content == string(got))
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
