package transfer

import (
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync"
)

// Folder receives files. Its methods may be called at once.
type Folder struct {
	root *os.Root

	mu   sync.Mutex // guards what follows
	busy map[string]bool
}

// OpenFolder opens a folder, which must exist.
func OpenFolder(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Folder{root: root, busy: make(map[string]bool)}, nil
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
	if err := l.receive(&o); err != nil {
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
	part := "." + o.Name + ".part"
	file, err := f.root.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return r, err
	}
	h, err := receiveFile(l, file, o.Size)
	if err != nil {
		return r, errors.Join(err, file.Close())
	}
	if err := errors.Join(l.sync(file), file.Close(), f.root.Rename(part, o.Name)); err != nil {
		return r, err
	}
	return Received{o.Name, o.Size, sum(h)}, nil
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
	if err := l.receive(&s); err != nil {
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
	if err := l.receive(&e); err != nil {
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
	return true
}

// end releases a name.
func (f *Folder) end(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, name)
}
