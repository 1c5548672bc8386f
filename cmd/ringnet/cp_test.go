package main

import (
	"bytes"
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

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/transfer"
)

// cpServing starts ringnet cp --serve and returns its address, too.
func cpServing(t *testing.T, into string, flags ...string) (server *service, address string) {
	t.Helper()
	server = start(t, append([]string{"cp", "--serve", into, "--listen", "127.0.0.1:0"}, flags...)...)
	return server, server.logged("receives", 0)["address"].(string)
}

// newFile makes a file, and returns its path.
func newFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// Several files and folders may be sent, and standard input. What is in a folder arrives in one of that name, and
// can be fetched from there.
func TestCpSendsFoldersAndFetches(t *testing.T) {
	from, into, back := filepath.Join(t.TempDir(), "tree"), t.TempDir(), t.TempDir()
	files := map[string]string{"a": "this is a", "below/b": "", "below/.hidden/c": strings.Repeat("c", 1<<20)}
	require.NoError(t, os.MkdirAll(filepath.Join(from, "nothing", "here"), 0o700))
	for name, content := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(content), 0o600))
	}
	server, address := cpServing(t, into, "--readable")
	run := func(input string, args ...string) {
		c := commandProcess(append([]string{"cp"}, args...)...)
		c.Stdin = strings.NewReader(input)
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	piped := strings.Repeat("of a pipe", 1<<20)
	run(piped, "--name", "piped", from, newFile(t, nil), "-", address)
	require.FileExists(t, filepath.Join(into, "file"))
	require.DirExists(t, filepath.Join(into, "tree", "nothing", "here"))
	got, err := os.ReadFile(filepath.Join(into, "piped"))
	require.NoError(t, err)
	require.True(t, piped == string(got))
	args := []string{"--fetch", back}
	for name := range files {
		args = append(args, "tree/"+name)
	}
	run("", append(args, address)...)
	for name, content := range files {
		for _, at := range []string{into, back} {
			got, err := os.ReadFile(filepath.Join(at, "tree", name))
			require.NoError(t, err)
			require.Equal(t, content, string(got))
		}
	}
	server.logged("sent", len(files)-1)
}

func TestCpGoesOnWhereAConnectionBroke(t *testing.T) {
	content := make([]byte, 4<<20)
	_, _ = rand.Read(content) // never fails
	into, from := t.TempDir(), newFile(t, content)
	server, address := cpServing(t, into)
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
	require.InDelta(t, 2<<20, sent.From, 1<<20)
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	require.Equal(t, sentFile{transfer.File{Name: "file", Size: 4 << 20, From: sent.From, SHA256: sum}, sent.Seconds, "tcp"}, sent)
	require.Contains(t, string(out), `"resumed_from": `)
	require.Equal(t, sum, server.logged("received", 0)["sha256"])
	got, err := os.ReadFile(filepath.Join(into, "file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
	left, err := os.ReadDir(into)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing of the first connection")

	out, err = commandProcess("cp", from, address).Output()
	require.NoError(t, err)
	require.Regexp(t, `^`+sum+`  file\n4\.0 MiB over (shm|rdma|tcp) in [\d.]+ s, .*/s\n$`, string(out))
}

// Whoever interrupts cp is told how to go on, and meanwhile why it tries again, unless that is not wanted.
func TestCpSaysWhyItTriesAgainAndThatItWasStopped(t *testing.T) {
	from := newFile(t, nil)
	require.NoError(t, os.Truncate(from, 1<<40)) // without end
	for _, quiet := range []bool{false, true} {
		var connections atomic.Int32
		underWay := make(chan struct{})
		address := serve(t, func(c *net.TCPConn) {
			if connections.Add(1) == 1 {
				_ = c.Close()
				return
			}
			_, _ = c.Write([]byte("{}\n"))
			_, _ = io.CopyN(io.Discard, c, 1<<20)
			close(underWay)
			_, _ = io.Copy(io.Discard, c)
		})
		cp := startProcess(t, commandProcess("cp", fmt.Sprintf("--quiet=%t", quiet), from, address))
		<-underWay
		require.NoError(t, cp.cmd.Process.Signal(os.Interrupt))
		require.Error(t, cp.wait())
		require.Equal(t, !quiet, strings.Contains(cp.said(), "no answer: ") && strings.Contains(cp.said(), ": tries again\n"), cp.said())
		require.True(t, strings.HasSuffix(cp.said(), "ringnet: "+from+": stopped; the same command goes on where it was\n"), cp.said())
	}
}

func TestCpRefusesMoreConnectionsThanItMayHave(t *testing.T) {
	server, address := cpServing(t, t.TempDir(), "--max-connections", "2")
	for i := range 2 {
		c := dial(t, address)
		write(t, c, fmt.Sprintf("{\"name\":\"f%d\",\"size\":10}\n", i))
		readExactly(t, c, 1) // it is served
	}
	requireRefused(t, address)
	server.logged("refused a connection until others end", 0)
}

// Who may write to a folder while it is sent has a sender, root maybe, send no other file of the host.
func TestCpSendsNoFileThatHasBecomeALink(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("root's"), 0o600))
	tree := filepath.Join(t.TempDir(), "tree")
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "below"), 0o700))
	for _, name := range []string{"a", "below/secret", "below/z", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(tree, name), []byte("plain"), 0o600))
	}
	items, err := itemsOf(tree, "tree")
	require.NoError(t, err)
	require.Len(t, items, 4)

	require.NoError(t, os.Remove(filepath.Join(tree, "a")))
	require.NoError(t, os.Symlink(secret, filepath.Join(tree, "a")))
	require.NoError(t, os.RemoveAll(filepath.Join(tree, "below")))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(tree, "below")))
	require.NoError(t, os.Remove(filepath.Join(tree, "c")))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "c"), []byte("another"), 0o600))
	_, err = itemsOf(tree, "tree")
	require.ErrorContains(t, err, "not a regular file", "a link that is there from the beginning")
	for _, i := range items[:3] {
		_, err := i.open()
		require.ErrorContains(t, err, i.path+": ")
	}
	_, err = items[0].open()
	require.ErrorContains(t, err, "not a regular file")
	f, err := items[3].open() // as a program that writes files anew leaves it
	require.NoError(t, err)
	defer f.Close()
	content, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Equal(t, "another", string(content))
}
