package transfer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Folder receives files. Its methods may be called at once.
type Folder struct {
	Readable bool // others may fetch files; set before the Folder is used

	root *os.Root
	most int // partial files

	mu   sync.Mutex // guards what follows
	busy map[string]bool
}

// OpenFolder opens a folder, which must exist. It keeps as many partial files there as most
// says, and removes the oldest for another.
func OpenFolder(path string, most int) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{root: root, most: most, busy: make(map[string]bool)}, nil
}

// Serve receives a file over a connection, or sends one that is fetched. If the connection breaks,
// the bytes that have arrived stay in the folder, in a hidden file, for the next connection.
func (f *Folder) Serve(c net.Conn) (File, error) {
	l := newLines(c)
	o, err := l.receive(0)
	if err != nil {
		return File{}, err
	}
	if o.Fetch != "" {
		return f.give(l, o.Fetch)
	}
	return f.take(l, o, func(int64) {})
}

// Fetch fetches a file by its name, and calls moved with numbers of bytes, as [Send] does, and with
// how many the file has.
func (f *Folder) Fetch(c net.Conn, name string, moved func(n, of int64)) (File, error) {
	if err := checkName(name); err != nil {
		return File{}, err
	}
	l := newLines(c)
	if err := l.send(message{Fetch: name}); err != nil {
		return File{}, err
	}
	o, err := l.answer(0)
	if err != nil {
		return File{}, err
	}
	if o.Name != name {
		return File{}, fmt.Errorf("%.200q was wanted, and %.200q comes: %w", name, o.Name, ErrStranger)
	}
	return f.take(l, o, func(n int64) { moved(n, o.Size) })
}

// give sends a file of the folder.
func (f *Folder) give(l lines, name string) (File, error) {
	file, size, err := f.toGive(name)
	if err != nil {
		_ = l.send(message{Error: reason(err)}) // who may be gone
		return File{}, fmt.Errorf("%.200q: %w", name, err)
	}
	defer file.Close()
	return send(l, name, file, size, func(int64) {})
}

func (f *Folder) toGive(name string) (file *os.File, size int64, err error) {
	if !f.Readable {
		return nil, 0, RefusedError{"files may be sent here, and not fetched"}
	}
	if err := checkName(name); err != nil {
		return nil, 0, err
	}
	if file, err = OpenRegular(f.root, name); err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// OpenRegular opens a file of a folder to read it, and refuses what is none, such as a link or a pipe.
func OpenRegular(root *os.Root, name string) (*os.File, error) {
	there, err := regular(root, name)
	if err != nil {
		return nil, err
	}
	return open(root, name, os.O_RDONLY, there)
}

// regular describes a file, and refuses what is none.
func regular(root *os.Root, name string) (fs.FileInfo, error) {
	there, err := root.Lstat(name)
	if err == nil && !there.Mode().IsRegular() {
		err = RefusedError{name + ": not a regular file"}
	}
	return there, err
}

// open opens the file that regular has described, in whose place something else may be by now.
func open(root *os.Root, name string, flags int, there fs.FileInfo) (*os.File, error) {
	file, err := root.OpenFile(name, flags|nonblocking, 0)
	if err != nil {
		return nil, err
	}
	if opened, err := file.Stat(); err != nil || !os.SameFile(opened, there) {
		return nil, errors.Join(RefusedError{name + ": not a regular file"}, err, file.Close())
	}
	return file, nil
}

// reason is what the peer is told of an error: it adds that the file was refused.
func reason(err error) string {
	if refused := new(RefusedError); errors.As(err, refused) {
		return refused.Why
	}
	return err.Error()
}

// take receives a file that was offered.
func (f *Folder) take(l lines, o message, moved func(int64)) (File, error) {
	r, err := f.receive(l, o, moved)
	if err != nil {
		_ = l.send(message{Error: reason(err), Busy: err == ErrBusy}) // who may be gone
		return r, fmt.Errorf("%.200q: %w", o.Name, err)
	}
	return r, l.send(message{SHA256: r.SHA256})
}

func (f *Folder) receive(l lines, o message, moved func(int64)) (r File, err error) {
	if err := checkName(o.Name); err != nil {
		return r, err
	}
	if o.Size < 0 {
		return r, RefusedError{fmt.Sprintf("a size of %d", o.Size)}
	}
	if name, ok := strings.CutSuffix(o.Name, "/"); ok {
		return File{Name: o.Name, SHA256: sum(sha256.New())}, f.makeFolder(name)
	}
	if !f.begin(partOf(o.Name)) {
		return r, ErrBusy
	}
	defer f.end(partOf(o.Name))
	if err := f.makeFolder(path.Dir(o.Name)); err != nil {
		return r, err
	}
	file, err := f.openPart(o.Name)
	if err != nil {
		return r, err
	}
	h, from, err := receiveFile(l, file, o.Size, moved)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = errors.Join(RefusedError{err.Error()}, f.root.Remove(partOf(o.Name))) // which takes the room of others
		}
		return r, err
	}
	if err := f.root.Rename(partOf(o.Name), o.Name); err != nil {
		return r, err
	}
	if err := f.sync(path.Dir(o.Name)); err != nil {
		return r, err
	}
	return File{Name: o.Name, Size: o.Size, From: from, SHA256: sum(h)}, nil
}

// makeFolder makes a folder, and those above it. Links are no folders.
func (f *Folder) makeFolder(name string) error {
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		there, err := f.root.Lstat(name[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return f.root.MkdirAll(name, 0o777)
		}
		if err == nil && !there.IsDir() {
			err = RefusedError{fmt.Sprintf("%s: not a folder", name[:i])}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// partOf is the name of a file while it is not complete. All are at the top of the folder.
func partOf(name string) string {
	if strings.Contains(name, "/") {
		name = fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	}
	return "." + name + partEnd
}

const partEnd = ".part"

// openPart opens the file for what arrives under a name. If there is a file of that name, the
// new one has its permissions before it has bytes.
func (f *Folder) openPart(name string) (*os.File, error) {
	part := partOf(name)
	file, err := f.create(part)
	if errors.Is(err, fs.ErrExist) {
		file, err = f.reopen(part)
	}
	if err != nil {
		return nil, err
	}
	if before, err := f.root.Lstat(name); err == nil && before.Mode().IsRegular() {
		if err := file.Chmod(before.Mode().Perm()); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return file, nil
}

// create makes a partial file, and follows no link.
func (f *Folder) create(part string) (*os.File, error) {
	return f.root.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}

// reopen opens a partial file that is there, and not what a link leads to. If it may be a
// stranger's, reopen replaces it.
func (f *Folder) reopen(part string) (*os.File, error) {
	there, err := regular(f.root, part)
	if err != nil {
		return nil, err
	}
	if isOwn(there) {
		return open(f.root, part, os.O_RDWR, there)
	}
	if err := f.root.Remove(part); err != nil {
		return nil, err
	}
	return f.create(part)
}

// sync writes a folder to its device, so that a file that has its name keeps it.
func (f *Folder) sync(name string) error {
	if runtime.GOOS == "windows" {
		return nil // which cannot
	}
	folder, err := f.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// receiveFile receives the bytes that the file does not have yet, and returns the hash of
// the whole, and where they begin.
func receiveFile(l lines, file *os.File, size int64, moved func(int64)) (h hash.Hash, from int64, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	have := info.Size()
	if have > size {
		have = 0 // of another file
	}
	h, err = hashed(file, have)
	if err != nil {
		return nil, 0, err
	}
	if err := l.send(message{Have: have, SHA256: sum(h)}); err != nil {
		return nil, 0, err
	}
	s, err := l.receive(have)
	if err != nil {
		return nil, 0, err
	}
	switch s.Offset {
	case have:
	case 0:
		h.Reset()
	default:
		return nil, 0, RefusedError{fmt.Sprintf("it begins at %d: want %d, or 0", s.Offset, have)}
	}
	if _, err := file.Seek(s.Offset, io.SeekStart); err != nil {
		return nil, 0, err
	}
	if err := file.Truncate(s.Offset); err != nil {
		return nil, 0, err
	}
	moved(s.Offset)
	if err := copyHashed(file, l, size-s.Offset, h, moved); err != nil {
		return nil, 0, err
	}
	e, err := l.receive(0)
	if err != nil {
		return nil, 0, err
	}
	if e.SHA256 != sum(h) {
		return nil, 0, errors.Join(RefusedError{"its SHA-256 is another than was sent"}, file.Truncate(0))
	}
	return h, s.Offset, nil
}

// begin reserves a partial file, and returns false if another connection has reserved it.
func (f *Folder) begin(part string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy[part] {
		return false
	}
	f.busy[part] = true
	f.forget(f.most - len(f.busy))
	return true
}

// forget removes the oldest of the partial files that no connection brings, until so many
// are left. Called with mu held.
func (f *Folder) forget(most int) {
	entries, _ := fs.ReadDir(f.root.FS(), ".") // if that fails, so does what follows
	var old []fs.FileInfo
	for _, e := range entries {
		partial := strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), partEnd)
		info, err := e.Info()
		if err == nil && partial && info.Mode().IsRegular() && !f.busy[e.Name()] {
			old = append(old, info)
		}
	}
	slices.SortFunc(old, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for len(old) > max(most, 0) {
		_ = f.root.Remove(old[0].Name())
		old = old[1:]
	}
}

// end releases a partial file.
func (f *Folder) end(part string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, part)
}
