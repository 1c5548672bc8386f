package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/hang"
)

// asCommand in the environment makes this test program the ringnet command.
const asCommand = "RINGNET_TEST_AS_COMMAND"

// asEcho in the environment makes this test program an echo server: clients and servers of
// 10,000 connections would have too many files open in one process.
const asEcho = "RINGNET_TEST_AS_ECHO"

func echoServer() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go echo(c.(*net.TCPConn))
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	if os.Getenv(asEcho) != "" {
		echoServer()
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what has to happen.
const patience = hang.After

// commandProcess returns the command in a process of its own.
func commandProcess(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// service is a process of the command that serves.
type service struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu  sync.Mutex // guards what follows
	log strings.Builder
}

// start starts the command as a service. The end of the test stops it, and requires that it
// ends without an error.
func start(t testing.TB, args ...string) *service {
	t.Helper()
	return startProcess(t, commandProcess(append([]string{"--json"}, args...)...))
}

// startProcess is start with any command.
func startProcess(t testing.TB, cmd *exec.Cmd) *service {
	t.Helper()
	s := &service{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = s
	require.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(func() {
		if s.running() {
			assert.NoError(t, s.stop(), s.said())
		}
	})
	return s
}

// Write takes what the process logs.
func (s *service) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// said returns everything that the process has logged.
func (s *service) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *service) running() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// logged waits for the nth entry with the message and returns it.
func (s *service) logged(message string, nth int) (found map[string]any) {
	s.t.Helper()
	hang.Unless(s.t, func() bool {
		ended := !s.running()
		found = entry(s.said(), message, nth)
		return found != nil || ended
	}, "did not say %s", message)
	require.NotNil(s.t, found, "ended before it said %s: %s", message, s.said())
	return found
}

// entry returns the nth entry with the message in a log, or nil.
func entry(log, message string, nth int) map[string]any {
	for line := range strings.Lines(log) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) != nil || e["msg"] != message {
			continue
		}
		if nth--; nth < 0 {
			return e
		}
	}
	return nil
}

// address returns where the nth forwarding listens.
func (s *service) address(nth int) string {
	s.t.Helper()
	return s.logged("forwards", nth)["address"].(string)
}

// port returns the port at which the first forwarding listens.
func (s *service) port() string { return portOf(s.t, s.address(0)) }

func portOf(t testing.TB, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return port
}

// terminate asks the process to end.
func (s *service) terminate() { _ = s.cmd.Process.Signal(syscall.SIGTERM) }

// wait returns when the process has ended, with an error if its status is not 0.
func (s *service) wait() error {
	select {
	case <-s.done:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.done
		s.t.Error("the process did not end: " + s.said())
	}
	if s.cmd.ProcessState.Success() {
		return nil
	}
	return &exec.ExitError{ProcessState: s.cmd.ProcessState}
}

func (s *service) stop() error {
	s.terminate()
	return s.wait()
}

// softroceAddress returns that of an RDMA device.
func softroceAddress() string { return os.Getenv("SOFTROCE_ADDR") }

// startPair starts two proxies with a network of ringnet between them. It returns first the
// one that clients dial; the other forwards to the address.
func startPair(t testing.TB, between, to string, args ...string) (client, server *service) {
	t.Helper()
	at := "127.0.0.1:0"
	switch between {
	case "rdma":
		at = softroceAddress() + ":0"
	case "unix":
		at = t.TempDir() + "/between"
	}
	server = start(t, append([]string{"proxy", "--listen", between + "://" + at, "--to", to}, args...)...)
	client = start(t, append([]string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", between + "://" + server.address(0)}, args...)...)
	return client, server
}

// startProxy starts a proxy from TCP to an address of TCP.
func startProxy(t testing.TB, to string, args ...string) *service {
	t.Helper()
	return start(t, append([]string{"proxy", "--listen", "tcp://127.0.0.1:0", "--to", "tcp://" + to}, args...)...)
}

// serve serves each connection to a listener of TCP until the end of the test, and returns
// its address.
func serve(t testing.TB, handle func(c *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handle(c.(*net.TCPConn))
		}
	}()
	return l.Addr().String()
}

// echo sends back what arrives, until the client ends the stream.
func echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, c) // without the two descriptors of splice
	_ = c.Close()
}

// dial connects to an address of TCP until the end of the test.
func dial(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c.(*net.TCPConn)
}
