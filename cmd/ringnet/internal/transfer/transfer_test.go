package transfer

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// transferred sends content to a folder over a connection that wrap may spoil.
func transferred(t *testing.T, folder *Folder, name string, content []byte, wrap func(net.Conn) net.Conn) (sent File, failed, received error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := folder.Serve(b)
		b.Close()
		done <- err
	}()
	sent, failed = Send(wrap(a), name, bytes.NewReader(content), int64(len(content)), func(int64) {})
	a.Close()
	return sent, failed, <-done
}

// requireSent requires that content arrives, and returns where the receiver had it go on.
func requireSent(t *testing.T, folder *Folder, name string, content []byte) (from int64) {
	t.Helper()
	sent, failed, received := transferred(t, folder, name, content, whole)
	require.NoError(t, failed)
	require.NoError(t, received)
	require.Equal(t, File{name, int64(len(content)), sent.From, fmt.Sprintf("%x", sha256.Sum256(content)), true}, sent)
	requireFile(t, filepath.Join(folder.root.Name(), filepath.FromSlash(name)), content)
	return sent.From
}

func whole(c net.Conn) net.Conn { return c }

// spoiled is a connection with other reads or writes.
type spoiled struct {
	net.Conn
	io.Reader
	write func(p []byte) (int, error)
}

func (s spoiled) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s spoiled) Write(p []byte) (int, error) { return s.write(p) }

var errBroken = errors.New("broken")

// after has a connection break after so many bytes were written.
func after(left int) func(net.Conn) net.Conn {
	return func(c net.Conn) net.Conn {
		return spoiled{c, c, func(p []byte) (int, error) {
			n, err := c.Write(p[:min(len(p), left)])
			if left -= n; err == nil && n < len(p) {
				err = errors.Join(errBroken, c.Close())
			}
			return n, err
		}}
	}
}

// saying is a peer that says something, and takes everything.
func saying(t *testing.T, said string) net.Conn {
	c, other := net.Pipe()
	t.Cleanup(func() { c.Close(); other.Close() })
	return spoiled{c, strings.NewReader(said), io.Discard.Write}
}

func newFolder(t *testing.T) (*Folder, string) {
	t.Helper()
	dir := t.TempDir()
	folder, err := OpenFolder(dir, 8)
	require.NoError(t, err)
	return folder, dir
}

func requireFile(t *testing.T, path string, content []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
}

func TestSendBeginsAgainIfTheFileHasChanged(t *testing.T) {
	folder, _ := newFolder(t)
	_, failed, _ := transferred(t, folder, "file", random(4*copyLen), after(2*copyLen+100))
	require.Error(t, failed)
	for _, content := range [][]byte{random(4 * copyLen), random(10)} {
		require.Zero(t, requireSent(t, folder, "file", content))
	}
}

func TestReceiveRefusesWhatWasChangedOnItsWay(t *testing.T) {
	folder, dir := newFolder(t)
	content := random(2 * copyLen)
	at := copyLen
	_, failed, received := transferred(t, folder, "file", content, func(c net.Conn) net.Conn {
		return spoiled{c, c, func(p []byte) (int, error) {
			p = bytes.Clone(p)
			if at >= 0 && at < len(p) {
				p[at] ^= 1
			}
			at -= len(p)
			return c.Write(p)
		}}
	})
	require.ErrorAs(t, failed, new(RefusedError))
	require.ErrorContains(t, received, "its SHA-256 is another than was sent")
	require.NoFileExists(t, filepath.Join(dir, "file"))
	require.Zero(t, requireSent(t, folder, "file", content))
}

func TestReceiveRefusesNamesThatLeadElsewhere(t *testing.T) {
	folder, _ := newFolder(t)
	for _, name := range []string{"", ".", "..", "../file", "/etc/passwd", `..\file`, ".file.part", "a\x00b", strings.Repeat("x", 201),
		"a/../../b", "a//b", "a/.", "/", "a//", ".git/config", "a/" + strings.Repeat("x", 201), strings.Repeat("a/", 1001) + "b"} {
		_, failed, received := transferred(t, folder, name, []byte("x"), whole)
		require.ErrorAs(t, failed, new(RefusedError), "%q", name)
		require.ErrorContains(t, received, "want a plain name", "%q", name)
	}
}

// Whoever may write to the folder can put a link there, give a file another name, or make one of his own, which
// he would read, and change afterwards.
func TestReceiveWritesToNoFileOfOthers(t *testing.T) {
	for name, how := range map[string]struct {
		put     func(other, part string) error
		refused bool
	}{
		"a link":       {func(_, part string) error { return os.Symlink("other", part) }, true},
		"another name": {os.Link, false},
		"another user's": {func(other, part string) error {
			return errors.Join(os.Rename(other, part), os.Chown(part, 1000, 1000))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" && os.Geteuid() != 0 {
				t.Skip("only root can make files of other users")
			}
			folder, dir := newFolder(t)
			other := filepath.Join(dir, "other")
			require.NoError(t, os.WriteFile(other, []byte("kept"), 0o666))
			file, err := os.Open(other)
			require.NoError(t, err)
			defer file.Close()
			require.NoError(t, how.put(other, filepath.Join(dir, partOf("file"))))
			_, failed, _ := transferred(t, folder, "file", []byte("secret"), whole)
			require.Equal(t, how.refused, errors.As(failed, new(RefusedError)), failed)
			content, err := io.ReadAll(file)
			require.NoError(t, err)
			require.Equal(t, "kept", string(content))
		})
	}
}

// What is no folder is not taken for one.
func TestReceiveMakesFolders(t *testing.T) {
	folder, dir := newFolder(t)
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink(".", filepath.Join(dir, "in")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for _, name := range []string{"out/x", "in/x", "file/x", "out/", "file/x/"} {
		_, failed, _ := transferred(t, folder, name, []byte("x"), whole)
		require.ErrorContains(t, failed, ": not a folder", name)
	}
	for _, name := range []string{"a/b/c", "a/b/d", "a/file"} {
		_, failed, _ := transferred(t, folder, name, random(copyLen), after(copyLen/2))
		require.Error(t, failed)
		requireSent(t, folder, name, random(copyLen))
	}
	for range 2 {
		_, failed, _ := transferred(t, folder, "a/empty/", nil, whole)
		require.NoError(t, failed)
	}
	require.DirExists(t, filepath.Join(dir, "a", "empty"))
}

// fetched fetches a file of a folder into another, over a connection that wrap may spoil.
func fetched(t *testing.T, from, into *Folder, name string, wrap func(net.Conn) net.Conn) (got File, failed error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = from.Serve(wrap(b))
		b.Close()
	}()
	got, failed = into.Fetch(a, name, func(int64, int64) {})
	a.Close()
	<-done
	return got, failed
}

func TestFetch(t *testing.T) {
	from, there := newFolder(t)
	into, here := newFolder(t)
	content := random(4 * copyLen)
	require.NoError(t, os.Mkdir(filepath.Join(there, "a"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(there, "a", "file"), content, 0o600))
	require.NoError(t, os.Symlink("a/file", filepath.Join(there, "link")))
	from.Readable = true
	for name, want := range map[string]string{"a": "not a regular file", "link": "not a regular file", "none": "no such file", "../x": "want a plain name"} {
		_, failed := fetched(t, from, into, name, whole)
		require.ErrorAs(t, failed, new(RefusedError), name)
		require.ErrorContains(t, failed, want)
	}
	_, failed := fetched(t, from, into, "a/file", after(2*copyLen+100))
	require.Error(t, failed)
	got, failed := fetched(t, from, into, "a/file", whole)
	require.NoError(t, failed)
	require.Positive(t, got.From, "it goes on where the connection broke")
	requireFile(t, filepath.Join(here, "a", "file"), content)
}

// Who wants a file takes no other.
func TestFetchTakesWhatItWants(t *testing.T) {
	into, here := newFolder(t)
	a, b := net.Pipe()
	go func() {
		_, _ = newLines(b).r.ReadSlice('\n')
		_ = newLines(b).send(message{Name: "other"})
	}()
	_, failed := into.Fetch(a, "file", func(int64, int64) {})
	require.ErrorIs(t, failed, ErrStranger)
	left, err := os.ReadDir(here)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestReceiveKeepsThePermissionsOfTheFileThatItReplaces(t *testing.T) {
	folder, dir := newFolder(t)
	path := filepath.Join(dir, "file")
	for _, mode := range []os.FileMode{0o600, 0o640, 0o755} {
		require.NoError(t, os.WriteFile(path, nil, mode))
		require.NoError(t, os.Chmod(path, mode))
		requireSent(t, folder, "file", []byte("x"))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}
}

func TestFolderKeepsTheLatestPartialFiles(t *testing.T) {
	folder, dir := newFolder(t)
	for i := range 3 * 8 {
		name := fmt.Sprintf("file%d", i)
		_, failed, _ := transferred(t, folder, name, random(4*copyLen), after(2*copyLen+100))
		require.Error(t, failed)
		at := time.Now().Add(time.Duration(i-100) * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, "."+name+".part"), at, at))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".part"), nil, 0o600))
	parts, err := filepath.Glob(filepath.Join(dir, ".file*.part"))
	require.NoError(t, err)
	require.Len(t, parts, 8)
	require.FileExists(t, filepath.Join(dir, ".file23.part"))
	require.NoFileExists(t, filepath.Join(dir, ".file15.part"))
}

// A peer that is silent is given up, but not while it may be at work.
func TestSilentPeersAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, _ := newFolder(t)
		a, b := net.Pipe()
		l := newLines(a)
		for work, want := range map[int64]time.Duration{0: silence, 100 * leastRate: silence + 100*time.Second, math.MaxInt64: 1<<30*time.Second + silence} {
			began := time.Now()
			_, err := l.receive(work)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.Equal(t, want, time.Since(began))
		}
		for _, give := range []func() error{
			func() error { _, err := folder.Serve(a); return err },
			func() error { _, err := Send(a, "f", strings.NewReader("x"), 1, func(int64) {}); return err },
			func() error { _, err := l.Read(make([]byte, 1)); return err },
			func() error { _, err := l.Write(make([]byte, 1)); return err },
		} {
			began := time.Now()
			require.ErrorIs(t, give(), os.ErrDeadlineExceeded)
			require.Equal(t, silence, time.Since(began))
		}
		require.NoError(t, b.Close())
	})
}

// Each end waits for the other's hashing, and for the file to be on its device.
func TestPeersAtWorkAreWaitedFor(t *testing.T) {
	const work = 2 * silence
	folder, dir := newFolder(t)
	content := make([]byte, int(work/time.Second)*leastRate+copyLen)
	_, failed, _ := transferred(t, folder, "file", content, after(len(content)-copyLen/2))
	require.ErrorIs(t, failed, errBroken)
	working := func(c net.Conn, before string) net.Conn {
		return spoiled{c, c, func(p []byte) (int, error) {
			if bytes.HasPrefix(p, []byte(before)) {
				time.Sleep(work)
				_ = c.SetWriteDeadline(time.Time{}) // that of before the work
			}
			return c.Write(p)
		}}
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		served := make(chan error, 1)
		go func() {
			_, err := folder.Serve(working(b, "{"))
			served <- err
		}()
		began := time.Now()
		sent, err := Send(working(a, `{"offset"`), "file", bytes.NewReader(content), int64(len(content)), func(int64) {})
		require.NoError(t, err)
		require.NoError(t, <-served)
		require.GreaterOrEqual(t, sent.From, int64(work/time.Second)*leastRate)
		require.Equal(t, 3*work, time.Since(began))
	})
	requireFile(t, filepath.Join(dir, "file"), content)
}

func TestReceiveTakesAFileFromOneConnectionAtATime(t *testing.T) {
	folder, _ := newFolder(t)
	require.True(t, folder.begin(partOf("file")))
	_, failed, _ := transferred(t, folder, "file", []byte("x"), whole)
	require.ErrorIs(t, failed, ErrBusy)
	folder.end(partOf("file"))
	requireSent(t, folder, "file", []byte("x"))
}

// Whatever a stranger says ends in an error.
func TestStrangersEndInErrors(t *testing.T) {
	folder, _ := newFolder(t)
	for _, said := range []string{
		"", "\n", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 2*maxLine),
		`{"name":"f","size":-1}` + "\n",
		`{"name":"f","size":10}` + "\n" + `{"offset":-1}` + "\n",
		`{"name":"f","size":10}` + "\n" + `{"offset":11}` + "\n",
		`{"name":"f","size":10}` + "\n" + `{"offset":0}` + "\nshort",
	} {
		_, err := folder.Serve(saying(t, said))
		require.Error(t, err, "%.100q", said)
		_, err = Send(saying(t, said), "f", strings.NewReader("x"), 1, func(int64) {})
		require.Error(t, err, "%.100q", said)
	}
}

func TestSendRefusesNamesThatWouldArriveAsOthers(t *testing.T) {
	folder, _ := newFolder(t)
	_, err, _ := transferred(t, folder, "a\xff", []byte("x"), whole)
	require.ErrorAs(t, err, new(RefusedError))
}
