package transfer

import (
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Folder receives files. Its methods may be called at once.
type Folder struct {
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

// Received is a file that was received.
type Received struct {
	Name   string
	Size   int64
	SHA256 string
}

// Receive receives a file over a connection. If the connection breaks, the bytes that have
// arrived stay in the folder, in a hidden file, for the next connection.
func (f *Folder) Receive(c io.ReadWriter) (Received, error) {
	l := newLines(c)
	var o offer
	if err := l.receive(&o, 0); err != nil {
		return Received{}, err
	}
	r, err := f.receive(l, o)
	if err != nil {
		why := err.Error()
		if refused := new(RefusedError); errors.As(err, refused) {
			why = refused.Why // the sender adds that the file was refused
		}
		_ = l.send(answer{Error: why, Busy: err == ErrBusy}) // who may be gone
		return r, fmt.Errorf("%.200q: %w", o.Name, err)
	}
	return r, l.send(answer{SHA256: r.SHA256})
}

func (f *Folder) receive(l lines, o offer) (r Received, err error) {
	if err := checkName(o.Name); err != nil {
		return r, err
	}
	if o.Size < 0 {
		return r, RefusedError{fmt.Sprintf("a size of %d", o.Size)}
	}
	if !f.begin(o.Name) {
		return r, ErrBusy
	}
	defer f.end(o.Name)
	file, err := f.open(o.Name)
	if err != nil {
		return r, err
	}
	h, err := receiveFile(l, file, o.Size)
	if err != nil {
		return r, errors.Join(err, file.Close())
	}
	if err := errors.Join(l.sync(file), file.Close()); err != nil {
		return r, err
	}
	if err := f.root.Rename(partOf(o.Name), o.Name); err != nil {
		return r, err
	}
	if err := f.sync(l); err != nil {
		return r, err
	}
	return Received{o.Name, o.Size, sum(h)}, nil
}

// partOf is the name of a file while it is not complete.
func partOf(name string) string { return "." + name + partEnd }

const partEnd = ".part"

// open opens the file for what arrives under a name. If there is a file of that name, the
// new one has its permissions before it has bytes.
func (f *Folder) open(name string) (*os.File, error) {
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
	there, err := f.root.Lstat(part)
	if err != nil {
		return nil, err
	}
	if !there.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", part)
	}
	if !isOwn(there) {
		if err := f.root.Remove(part); err != nil {
			return nil, err
		}
		return f.create(part)
	}
	file, err := f.root.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if opened, err := file.Stat(); err != nil || !os.SameFile(opened, there) {
		return nil, errors.Join(fmt.Errorf("%s: not a regular file", part), err, file.Close())
	}
	return file, nil
}

// sync writes the folder to its device, so that a file that has its name keeps it.
func (f *Folder) sync(l lines) error {
	if runtime.GOOS == "windows" {
		return nil // which cannot
	}
	folder, err := f.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(l.sync(folder), folder.Close())
}

// receiveFile receives the bytes that the file does not have yet, and returns the hash of
// the whole.
func receiveFile(l lines, file *os.File, size int64) (hash.Hash, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	have := info.Size()
	if have > size {
		have = 0 // of another file
	}
	h, err := l.hashed(file, have)
	if err != nil {
		return nil, err
	}
	if err := l.send(answer{Have: have, SHA256: sum(h)}); err != nil {
		return nil, err
	}
	var s start
	if err := l.receive(&s, have); err != nil {
		return nil, err
	}
	switch s.Offset {
	case have:
	case 0:
		h.Reset()
	default:
		return nil, RefusedError{fmt.Sprintf("it begins at %d: want %d, or 0", s.Offset, have)}
	}
	if _, err := file.Seek(s.Offset, io.SeekStart); err != nil {
		return nil, err
	}
	if err := file.Truncate(s.Offset); err != nil {
		return nil, err
	}
	if err := copyHashed(file, l, size-s.Offset, h, func(int64) {}); err != nil {
		return nil, err
	}
	var e end
	if err := l.receive(&e, 0); err != nil {
		return nil, err
	}
	if e.SHA256 != sum(h) {
		return nil, errors.Join(RefusedError{"its SHA-256 is another than was sent"}, file.Truncate(0))
	}
	return h, nil
}

// begin reserves a name, and returns false if another connection has reserved it.
func (f *Folder) begin(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy[name] {
		return false
	}
	f.busy[name] = true
	f.forget(f.most - len(f.busy))
	return true
}

// forget removes the oldest of the partial files that no connection brings, until so many
// are left. Called with mu held.
func (f *Folder) forget(most int) {
	entries, _ := fs.ReadDir(f.root.FS(), ".") // if that fails, so does what follows
	var old []fs.FileInfo
	for _, e := range entries {
		name, hidden := strings.CutPrefix(strings.TrimSuffix(e.Name(), partEnd), ".")
		info, err := e.Info()
		if err == nil && hidden && strings.HasSuffix(e.Name(), partEnd) && info.Mode().IsRegular() && !f.busy[name] {
			old = append(old, info)
		}
	}
	slices.SortFunc(old, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for len(old) > max(most, 0) {
		_ = f.root.Remove(old[0].Name())
		old = old[1:]
	}
}

// end releases a name.
func (f *Folder) end(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, name)
}
