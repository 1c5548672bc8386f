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
	"os/exec"
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

func TestCpSendsSeveralFiles(t *testing.T) {
	from, into := t.TempDir(), t.TempDir()
	address := start(t, "cp", "--serve", into, "--listen", "127.0.0.1:0").logged("receives", 0)["address"].(string)
	args := []string{"cp"}
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte("this is "+name), 0o600))
		args = append(args, filepath.Join(from, name))
	}
	out, err := commandProcess(append(args, address)...).Output()
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(out), " over "))
	for _, name := range []string{"a", "b", "c"} {
		got, err := os.ReadFile(filepath.Join(into, name))
		require.NoError(t, err)
		require.Equal(t, "this is "+name, string(got))
	}
}

// What is in a folder arrives in one of that name, and can be fetched from there.
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
	out, err := commandProcess("cp", from, address).CombinedOutput()
	require.NoError(t, err, string(out))
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

func TestCpSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, ".hidden")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	address := start(t, "cp", "--serve", t.TempDir(), "--listen", "127.0.0.1:0").logged("receives", 0)["address"].(string)
	stranger := serve(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("220 mail.example ESMTP\r\n")) })
	for args, want := range map[string]string{
		"":                                     "want FILE... HOST:PORT, or --serve DIR",
		file:                                   "want FILE... HOST:PORT, or --serve DIR",
		file + " nowhere:port":                 "want HOST or HOST:PORT",
		"/nowhere/file " + address:             "no such file",
		file + " " + stranger + " --retry 1h":  "no answer: this is no ringnet cp",
		"--serve " + dir + " --listen nowhere": "want HOST:PORT",
		"--serve /nowhere":                     "no such file",
		"--serve " + dir + " " + file + " " + address: "--serve wants no file to send",
		"/proc/cpuinfo " + address:                    "/proc/cpuinfo: refused: the file is longer than its size",
		file + " " + address:                          file + `: refused: ".hidden": want a plain name`,
		file + " " + freeAddress(t) + " --retry 1ms":  "connection refused",
		file + " " + address + " --retry=-1s":         "--retry=-1s: want a time",
		file + " " + address + " --listen :1":         "--listen, --max-connections and --readable are for --serve",
		"- " + address:                                "--name is for standard input, -, which needs one",
		file + " " + address + " --name x":            "--name is for standard input, -, which needs one",
		"--fetch " + dir + " x " + address:            "refused: files may be sent here, and not fetched",
		file + " a/.hidden " + address:                "two files are called .hidden",
		"--serve " + dir + " --max-connections 0":     "--max-connections wants a positive value",
	} {
		out, err := commandProcess(append([]string{"cp"}, strings.Fields(args)...)...).CombinedOutput()
		require.Error(t, err, args)
		require.Contains(t, string(out), want, args)
		require.NotContains(t, string(out), "\x1b", "progress is for terminals")
	}
}

// A file that cannot be sent is a failure, as with cp of coreutils: the command line is right.
func TestCpOfWhatIsNoFileFails(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("/etc", link))
	for file, want := range map[string]string{dir: link + ": not a regular file", filepath.Join(dir, "none"): "no such file"} {
		out, err := commandProcess("cp", file, "127.0.0.1:1").CombinedOutput()
		require.Equal(t, failed, err.(*exec.ExitError).ExitCode(), string(out))
		require.Contains(t, string(out), want)
	}
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
	f := sentFile{Name: "file"}
	err := f.attempt(ctx, hostPort(address), func(c net.Conn) error {
		_, err := transfer.Send(c, f.Name, file, size, func(int64) {})
		return err
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
