package examples

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

// activate starts the program with a socket, as systemd does, and waits until it listens.
func activate(t *testing.T, program string, socket *os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "LISTEN_FDS=1 LISTEN_PID=$$ exec "+program)
	cmd.ExtraFiles = []*os.File{socket} // descriptor 3
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "listening on "+address(t, socket))
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return cmd
}

func address(t *testing.T, socket *os.File) string {
	t.Helper()
	l, err := net.FileListener(socket)
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// A request that arrives while no server runs is answered by the next one.
func TestSystemdSocketOutlivesItsServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	socket, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	defer socket.Close()
	addr := address(t, socket)

	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       (&ringnet.Dialer{ForTCP: "auto"}).DialContext,
	}}
	says := func(cmd *exec.Cmd) string { return fmt.Sprintf("process %d says hello over ", cmd.Process.Pid) }
	get := func() (string, error) {
		r, err := client.Get("http://" + addr)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return string(body), err
	}

	program := build(t, ".", "./activation")
	first := activate(t, program, socket)
	answer, err := get()
	require.NoError(t, err)
	require.Regexp(t, "^"+says(first)+"(shm|rdma|tcp)\n$", answer)
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	require.NoError(t, first.Wait())

	type result struct {
		answer string
		err    error
	}
	meanwhile := make(chan result, 1)
	go func() {
		answer, err := get()
		meanwhile <- result{answer, err}
	}()
	second := activate(t, program, socket)
	r := <-meanwhile
	require.NoError(t, r.err)
	require.True(t, strings.HasPrefix(r.answer, says(second)), r.answer)
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	require.NoError(t, second.Wait())
}
