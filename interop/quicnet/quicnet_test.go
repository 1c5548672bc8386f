package quicnet_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "github.com/quic-go/quic-go/http3" // whose module these tests are of
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/interop/quicnet"
)

// TestQUIC runs quic-go's own tests with sockets of ringnet wherever they, or their proxy
// that loses packets, make a UDP socket. It compiles them with nothing but the name of that
// type changed. It leaves out tests in which quic-go makes its own sockets, among them
// those of HTTP/3, those that need more of a socket than a net.PacketConn, and those that
// use none.
func TestQUIC(t *testing.T) {
	if c, err := quicnet.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else {
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	scratch := t.TempDir()
	copied := filepath.Join(scratch, "quic-go")
	require.NoError(t, os.CopyFS(copied, os.DirFS(moduleDir(t))))
	files, err := filepath.Glob(filepath.Join(copied, "integrationtests/self/*_test.go"))
	require.NoError(t, err)
	var tests []string
	for _, file := range append(files, filepath.Join(copied, "integrationtests/tools/proxy/proxy.go")) {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		text := overRingnet(string(source))
		if wantsOptions.MatchString(text) {
			text = "package self_test\n"
		}
		if !strings.HasPrefix(filepath.Base(file), "http") { // whose client makes its own socket
			tests = append(tests, testsOnSockets(t, text)...)
		}
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	require.Greater(t, len(tests), 50)

	program := filepath.Join(scratch, "self.test")
	command(t, "go", "test", "-c", "-vet=off", "-modfile", modFile(t, scratch, copied), "-o", program, module+"/integrationtests/self")
	t.Setenv("TIMESCALE_FACTOR", "5") // quic-go's own word for slow machines
	cmd := exec.Command(program, "-test.v", "-test.run", "^("+strings.Join(tests, "|")+")$")
	cmd.Dir = scratch // where the tests write
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("%d tests over %s", len(tests), quicnet.Network)
}

const module = "github.com/quic-go/quic-go"

// command runs a command, and returns its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// moduleDir returns the directory of quic-go's source.
func moduleDir(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(command(t, "go", "list", "-m", "-f", "{{.Dir}}", module))
}

// modFile returns a go.mod like this module's, with a copy of quic-go in its place.
func modFile(t *testing.T, scratch, copied string) string {
	t.Helper()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(scratch, name), text, 0o644))
	}
	file := filepath.Join(scratch, "go.mod")
	command(t, "go", "mod", "edit", "-replace", module+"="+copied, file)
	return file
}

// wantsOptions finds the files of tests that set options of a socket of the system.
var wantsOptions = regexp.MustCompile(`OOBCapablePacketConn`)

// overRingnet makes a file use sockets of package quicnet.
func overRingnet(text string) string {
	changed := strings.NewReplacer("net.UDPConn", "quicnet.UDPConn", "net.ListenUDP(", "quicnet.ListenUDP(").Replace(text)
	if changed == text {
		return text
	}
	return strings.Replace(changed, "import (\n", "import (\n\t\"github.com/ringnet/ringnet/interop/quicnet\"\n", 1)
}

// noSocket finds tests without a socket, and ownSocket those in which quic-go makes one by
// itself.
var (
	noSocket  = regexp.MustCompile(`synctest\.Test|newSimnet`)
	ownSocket = regexp.MustCompile(`quic\.(Dial|Listen)Addr`)
)

// notHere finds tests that look for the MTU of a path, for which quic-go needs options of a
// socket, and those that set some 25 MB a second, however slow the machine is.
var notHere = regexp.MustCompile(`MTUDiscovery|^TestStream(Read|Write)Cancellation$`)

// testsOnSockets returns the names of the tests of a file that are to be run.
func testsOnSockets(t *testing.T, text string) (names []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, 0)
	require.NoError(t, err)
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
			continue
		}
		body := text[files.Position(f.Pos()).Offset:files.Position(f.End()).Offset]
		if !noSocket.MatchString(body) && !ownSocket.MatchString(body) && !notHere.MatchString(f.Name.Name) {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
