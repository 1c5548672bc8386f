package transfer

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
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
func transferred(t *testing.T, folder *Folder, name string, content []byte, wrap func(io.ReadWriter) io.ReadWriter) (sent Sent, failed, received error) {
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

func whole(c io.ReadWriter) io.ReadWriter { return c }

// breaking is a connection that breaks after so many bytes were written.
type breaking struct {
	io.ReadWriter
	left int
}

var errBroken = errors.New("broken")

func (b *breaking) Write(p []byte) (int, error) {
	n, err := b.ReadWriter.Write(p[:min(len(p), b.left)])
	if b.left -= n; err == nil && n < len(p) {
		err = errBroken
	}
	return n, err
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errBroken
	}
	return b.ReadWriter.Read(p)
}

func after(n int) func(io.ReadWriter) io.ReadWriter {
	return func(c io.ReadWriter) io.ReadWriter { return &breaking{c, n} }
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

func TestSendFilesOfAllSizes(t *testing.T) {
	folder, dir := newFolder(t)
	for _, n := range []int{0, 1, copyLen, 3*copyLen + 1} {
		content := random(n)
		sent, failed, received := transferred(t, folder, "file", content, whole)
		require.NoError(t, failed)
		require.NoError(t, received)
		require.Equal(t, Sent{0, fmt.Sprintf("%x", sha256.Sum256(content))}, sent)
		requireFile(t, filepath.Join(dir, "file"), content)
	}
}

func TestSendGoesOnWhereAConnectionBroke(t *testing.T) {
	folder, dir := newFolder(t)
	content := random(10 * copyLen)
	_, failed, received := transferred(t, folder, "file", content, after(5*copyLen+100))
	require.ErrorIs(t, failed, errBroken)
	require.Error(t, received)
	require.NoFileExists(t, filepath.Join(dir, "file"))
	sent, failed, received := transferred(t, folder, "file", content, whole)
	require.NoError(t, failed)
	require.NoError(t, received)
	require.InDelta(t, 5*copyLen, sent.From, copyLen)
	requireFile(t, filepath.Join(dir, "file"), content)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left of the first")
}

func TestSendBeginsAgainIfTheFileHasChanged(t *testing.T) {
	folder, dir := newFolder(t)
	_, failed, _ := transferred(t, folder, "file", random(4*copyLen), after(2*copyLen+100))
	require.Error(t, failed)
	for _, content := range [][]byte{random(4 * copyLen), random(10)} {
		sent, failed, received := transferred(t, folder, "file", content, whole)
		require.NoError(t, failed)
		require.NoError(t, received)
		require.Zero(t, sent.From)
		requireFile(t, filepath.Join(dir, "file"), content)
	}
}

// flipping is a connection that changes a byte on its way.
type flipping struct {
	io.ReadWriter
	at int
}

func (f *flipping) Write(p []byte) (int, error) {
	p = bytes.Clone(p)
	if f.at >= 0 && f.at < len(p) {
		p[f.at] ^= 1
	}
	f.at -= len(p)
	return f.ReadWriter.Write(p)
}

func TestReceiveRefusesWhatWasChangedOnItsWay(t *testing.T) {
	folder, dir := newFolder(t)
	content := random(2 * copyLen)
	_, failed, received := transferred(t, folder, "file", content, func(c io.ReadWriter) io.ReadWriter { return &flipping{c, copyLen} })
	require.ErrorAs(t, failed, new(RefusedError))
	require.ErrorContains(t, received, "its SHA-256 is another than was sent")
	require.NoFileExists(t, filepath.Join(dir, "file"))
	sent, failed, _ := transferred(t, folder, "file", content, whole)
	require.NoError(t, failed)
	require.Zero(t, sent.From)
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

// A link in the folder may be a stranger's, who would have another file written over.
func TestReceiveFollowsNoLinks(t *testing.T) {
	folder, dir := newFolder(t)
	outside := filepath.Join(t.TempDir(), "outside")
	for link, other := range map[string]string{"within": filepath.Join(dir, "within"), outside: outside} {
		require.NoError(t, os.WriteFile(other, nil, 0o600))
		require.NoError(t, os.Symlink(link, filepath.Join(dir, ".file.part")))
		_, failed, received := transferred(t, folder, "file", []byte("x"), whole)
		require.Error(t, failed)
		require.Error(t, received)
		requireFile(t, other, nil)
		require.NoError(t, os.Remove(filepath.Join(dir, ".file.part")))
	}
}

// Nor are those taken for folders that are none.
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
		content := random(copyLen)
		_, failed, _ = transferred(t, folder, name, content, whole)
		require.NoError(t, failed)
		requireFile(t, filepath.Join(dir, filepath.FromSlash(name)), content)
	}
	for range 2 {
		_, failed, _ := transferred(t, folder, "a/empty/", nil, whole)
		require.NoError(t, failed)
	}
	require.DirExists(t, filepath.Join(dir, "a", "empty"))
}

// fetched fetches a file of a folder into another, over a connection that wrap may spoil.
func fetched(t *testing.T, from, into *Folder, name string, wrap func(io.ReadWriter) io.ReadWriter) (got Received, failed error) {
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
	_, failed := fetched(t, from, into, "a/file", whole)
	require.ErrorContains(t, failed, "files may be sent here, and not fetched")
	from.Readable = true
	for name, want := range map[string]string{"a": "not a regular file", "link": "not a regular file", "none": "no such file", "../x": "want a plain name"} {
		_, failed := fetched(t, from, into, name, whole)
		require.ErrorAs(t, failed, new(RefusedError), name)
		require.ErrorContains(t, failed, want)
	}
	_, failed = fetched(t, from, into, "a/file", after(2*copyLen+100))
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
		_, _ = newLines(b).ReadSlice('\n')
		_ = newLines(b).send(offer{Name: "other", Size: 0})
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
		_, failed, _ := transferred(t, folder, "file", []byte("x"), whole)
		require.NoError(t, failed)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}
}

// Files of /proc have a size of 0, and others grow while they are sent.
func TestSendRefusesAFileThatIsLongerThanItsSize(t *testing.T) {
	folder, dir := newFolder(t)
	for _, size := range []int64{0, 10} {
		a, b := net.Pipe()
		received := make(chan struct{})
		go func() {
			_, _ = folder.Serve(b)
			close(received)
		}()
		_, err := Send(a, "file", bytes.NewReader(random(11)), size, func(int64) {})
		a.Close()
		<-received
		require.ErrorAs(t, err, new(RefusedError))
		require.NoFileExists(t, filepath.Join(dir, "file"))
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

// idling is a peer that gives signs of life, one a second, for a day.
type idling struct{ left int }

func (r *idling) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	if r.left--; r.left < 0 {
		return 0, io.EOF
	}
	return copy(p, "\n"), nil
}

func TestSignsOfLifeAloneAreNotEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, _ := newFolder(t)
		day := func() io.ReadWriter {
			return struct {
				io.Reader
				io.Writer
			}{&idling{24 * 60 * 60}, io.Discard}
		}
		_, err := folder.Serve(day())
		require.ErrorIs(t, err, ErrStranger)
		_, err = Send(day(), "f", strings.NewReader("x"), 1, func(int64) {})
		require.ErrorIs(t, err, ErrStranger)
	})
}

func TestReceiveTakesAFileFromOneConnectionAtATime(t *testing.T) {
	folder, _ := newFolder(t)
	require.True(t, folder.begin(partOf("file")))
	_, failed, _ := transferred(t, folder, "file", []byte("x"), whole)
	require.ErrorIs(t, failed, ErrBusy)
	folder.end(partOf("file"))
	_, failed, _ = transferred(t, folder, "file", []byte("x"), whole)
	require.NoError(t, failed)
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
		_, err := folder.Serve(struct {
			io.Reader
			io.Writer
		}{strings.NewReader(said), io.Discard})
		require.Error(t, err, "%.100q", said)

		_, err = Send(struct {
			io.Reader
			io.Writer
		}{strings.NewReader(said), io.Discard}, "f", strings.NewReader("x"), 1, func(int64) {})
		require.Error(t, err, "%.100q", said)
	}
}

// refusing is a receiver that is heard, and takes no more bytes.
type refusing struct {
	io.Reader
	left int
}

func (r *refusing) Write(p []byte) (int, error) {
	if r.left -= len(p); r.left < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestSendTellsWhyTheReceiverTakesNoMore(t *testing.T) {
	c := &refusing{strings.NewReader(`{}` + "\n" + `{"error":"no space left\u001b[2J"}` + "\n"), copyLen}
	_, err := Send(c, "f", bytes.NewReader(random(4*copyLen)), 4*copyLen, func(int64) {})
	require.Equal(t, RefusedError{"no space left\ufffd[2J"}, err, "without what would clear a terminal")
}

func TestSendRefusesNamesThatWouldArriveAsOthers(t *testing.T) {
	folder, _ := newFolder(t)
	_, err, _ := transferred(t, folder, "a\xff", []byte("x"), whole)
	require.ErrorAs(t, err, new(RefusedError))
}

// waiting is a file of which no more can be read until something is closed.
type waiting struct {
	io.ReadSeeker
	until <-chan struct{}
}

func (w waiting) Read(p []byte) (int, error) {
	if at, _ := w.Seek(0, io.SeekCurrent); at > 0 {
		<-w.until
	}
	return w.ReadSeeker.Read(p)
}

func (w waiting) Sync() error {
	<-w.until
	return nil
}

// alive is a connection that notices signs of life.
type alive struct {
	io.ReadWriter
	seen chan struct{}
}

func (a *alive) Write(p []byte) (int, error) {
	if string(p) == "\n" {
		select {
		case <-a.seen:
		default:
			close(a.seen)
		}
	}
	return a.ReadWriter.Write(p)
}

// Each end waits for the other's hashing and syncing, however long that takes.
func TestWhoeverIsAtWorkGivesSignsOfLife(t *testing.T) {
	before := signOfLife
	signOfLife = time.Nanosecond
	defer func() { signOfLife = before }()
	work := map[string]func(lines, waiting) error{
		"hashing": func(l lines, file waiting) error { _, err := l.hashed(file, 3*copyLen); return err },
		"syncing": func(l lines, file waiting) error { return l.sync(file) },
	}
	for name, work := range work {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			c := &alive{a, make(chan struct{})}
			done := make(chan error, 1)
			go func() {
				l := newLines(c)
				done <- errors.Join(work(l, waiting{bytes.NewReader(random(3 * copyLen)), c.seen}), l.send(answer{Have: 7}))
			}()
			var got answer
			require.NoError(t, newLines(b).receive(&got, 1<<60))
			require.EqualValues(t, 7, got.Have)
			require.NoError(t, <-done)
		})
	}
}
