package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/transfer"
)

func TestCpSendsAFile(t *testing.T) {
	from, into := filepath.Join(t.TempDir(), "file"), t.TempDir()
	content := make([]byte, 10<<20+1)
	_, _ = rand.Read(content) // never fails
	require.NoError(t, os.WriteFile(from, content, 0o600))
	server := start(t, "cp", "--serve", into, "--listen", "127.0.0.1:0")
	address := server.logged("receives", 0)["address"].(string)

	out, err := commandProcess("cp", "--json", from, address).Output()
	require.NoError(t, err)
	var sent sentFile
	require.NoError(t, json.Unmarshal(out, &sent))
	want := fmt.Sprintf("%x", sha256.Sum256(content))
	require.Equal(t, want, sent.SHA256)
	require.EqualValues(t, len(content), sent.Bytes)
	got, err := os.ReadFile(filepath.Join(into, "file"))
	require.NoError(t, err)
	require.Equal(t, want, fmt.Sprintf("%x", sha256.Sum256(got)))
	require.Equal(t, want, server.logged("received", 0)["sha256"])

	out, err = commandProcess("cp", from, address).Output()
	require.NoError(t, err)
	require.Regexp(t, `^`+want+`  file\n10 MiB over (shm|rdma|tcp) in [\d.]+ s, .*/s\n$`, string(out))
}

// Several files and folders may be sent. What is in a folder arrives in one of that name, and can be fetched from there.
func TestCpSendsFoldersAndFetches(t *testing.T) {
	from, into, back := filepath.Join(t.TempDir(), "tree"), t.TempDir(), t.TempDir()
	files := map[string]string{"a": "this is a", "below/b": "", "below/.hidden/c": strings.Repeat("c", 1<<20)}
	require.NoError(t, os.MkdirAll(filepath.Join(from, "nothing", "here"), 0o700))
	for name, content := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(content), 0o600))
	}
	server := start(t, "cp", "--serve", into, "--readable", "--listen", "127.0.0.1:0")
	address := server.logged("receives", 0)["address"].(string)
	alone := filepath.Join(t.TempDir(), "alone")
	require.NoError(t, os.WriteFile(alone, nil, 0o600))
	out, err := commandProcess("cp", from, alone, address).CombinedOutput()
	require.NoError(t, err, string(out))
	require.FileExists(t, filepath.Join(into, "alone"))
	require.DirExists(t, filepath.Join(into, "tree", "nothing", "here"))
	args := []string{"cp", "--fetch", back}
	for name := range files {
		args = append(args, "tree/"+name)
	}
	out, err = commandProcess(append(args, address)...).CombinedOutput()
	require.NoError(t, err, string(out))
	for name, content := range files {
		for _, at := range []string{into, back} {
			got, err := os.ReadFile(filepath.Join(at, "tree", name))
			require.NoError(t, err)
			require.Equal(t, content, string(got))
		}
	}
	server.logged("sent", len(files)-1)
}

func TestCpSendsStandardInput(t *testing.T) {
	into := t.TempDir()
	address := start(t, "cp", "--serve", into, "--listen", "127.0.0.1:0").logged("receives", 0)["address"].(string)
	content := strings.Repeat("of a pipe", 1<<20)
	cp := commandProcess("cp", "--name", "piped", "-", address)
	cp.Stdin = strings.NewReader(content)
	out, err := cp.CombinedOutput()
	require.NoError(t, err, string(out))
	got, err := os.ReadFile(filepath.Join(into, "piped"))
	require.NoError(t, err)
	require.True(t, content == string(got))
}

func TestCpGoesOnWhereAConnectionBroke(t *testing.T) {
	from, into := filepath.Join(t.TempDir(), "file"), t.TempDir()
	content := make([]byte, 4<<20)
	require.NoError(t, os.WriteFile(from, content, 0o600))
	server := start(t, "cp", "--serve", into, "--listen", "127.0.0.1:0")
	address := server.logged("receives", 0)["address"].(string)
	var connections atomic.Int32
	broken := serve(t, func(c *net.TCPConn) {
		defer c.Close()
		up, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer up.Close()
		go func() { _, _ = io.Copy(c, up) }()
		most := int64(math.MaxInt64)
		if connections.Add(1) == 1 {
			most = 2 << 20
		}
		_, _ = io.CopyN(up, c, most)
	})
	out, err := commandProcess("cp", "--json", from, broken).Output()
	require.NoError(t, err)
	var sent sentFile
	require.NoError(t, json.Unmarshal(out, &sent))
	require.EqualValues(t, 2, connections.Load())
	require.Positive(t, sent.ResumedFrom)
	require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(content)), sent.SHA256)
}

func TestCpSaysWhyItTriesAgain(t *testing.T) {
	from := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(from, nil, 0o600))
	for _, quiet := range []bool{false, true} {
		var connections atomic.Int32
		broken := make(chan struct{})
		address := serve(t, func(c *net.TCPConn) {
			if connections.Add(1) == 1 {
				_ = c.Close()
				return
			}
			close(broken)
			_, _ = io.Copy(io.Discard, c)
		})
		cp := commandProcess("cp", fmt.Sprintf("--quiet=%t", quiet), from, address)
		out := new(strings.Builder)
		cp.Stderr = out
		require.NoError(t, cp.Start())
		<-broken
		require.NoError(t, cp.Process.Signal(os.Interrupt))
		require.Error(t, cp.Wait())
		require.Equal(t, !quiet, strings.Contains(out.String(), "no answer: ") && strings.Contains(out.String(), ": tries again\n"), out)
	}
}

// A receiver without room tells the sender so, which does not try again.
func TestCpSaysThatTheReceiverHasNoRoom(t *testing.T) {
	from := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(from, make([]byte, 64<<20), 0o600))
	for _, networks := range []string{"shm,tcp", "tcp"} {
		t.Setenv("RINGNET_NETWORKS", networks)
		server := startProcess(t, limited("ulimit -f 1000", "--json", "cp", "--serve", t.TempDir(), "--listen", "127.0.0.1:0"))
		out, err := commandProcess("cp", "--retry", "1h", from, server.logged("receives", 0)["address"].(string)).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "refused: ", networks)
		require.Contains(t, string(out), "file too large", networks)
	}
}

// canceling is a file of any length that cancels the transfer while it is read.
type canceling struct {
	io.Seeker
	cancel func()
	read   int64
}

func (c *canceling) Read(p []byte) (int, error) {
	if c.read += int64(len(p)); c.read == int64(len(p)) {
		c.cancel()
		time.Sleep(50 * time.Millisecond) // so that the effects of the cancellation come before the end of this Read
	}
	return len(p), nil
}

func TestCpEndsThoughItIsCanceledWhileItReadsTheFile(t *testing.T) {
	address := serve(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("{}\n"))
		_, _ = io.Copy(io.Discard, c)
	})
	ctx, cancel := context.WithCancel(t.Context())
	file := &canceling{Seeker: strings.NewReader(""), cancel: cancel}
	const size = 1 << 30
	_, _, err := attempt(ctx, hostPort(address), func(c net.Conn) (transfer.File, error) {
		return transfer.Send(c, "file", file, size, func(int64) {})
	})
	require.Error(t, err)
	require.Less(t, file.read, int64(size))
}

func TestCpSaysThatItWasStopped(t *testing.T) {
	from := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(from, make([]byte, 64<<20), 0o600))
	offered := make(chan struct{})
	address := serve(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		close(offered)
	})
	cp := commandProcess("cp", from, address)
	out := new(strings.Builder)
	cp.Stderr = out
	require.NoError(t, cp.Start())
	<-offered
	require.NoError(t, cp.Process.Signal(os.Interrupt))
	require.Error(t, cp.Wait())
	require.True(t, strings.HasSuffix(out.String(), "ringnet: "+from+": stopped; the same command goes on where it was\n"), out)
}

func TestCpRefusesMoreConnectionsThanItMayHave(t *testing.T) {
	server := start(t, "cp", "--serve", t.TempDir(), "--listen", "127.0.0.1:0", "--max-connections", "2")
	address := server.logged("receives", 0)["address"].(string)
	for i := range 2 {
		c := dial(t, address)
		write(t, c, fmt.Sprintf("{\"name\":\"f%d\",\"size\":10}\n", i))
		readExactly(t, c, 1) // it is served
	}
	requireRefused(t, address)
	server.logged("refused a connection until others end", 0)
}
