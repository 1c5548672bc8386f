package transfer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"unicode/utf8"
)

// Send sends a file with a name and a size over a connection. It calls moved with numbers
// of bytes: those that the receiver has already, and then those that it has sent.
func Send(c net.Conn, name string, file io.ReadSeeker, size int64, moved func(int64)) (File, error) {
	if !utf8.ValidString(name) {
		return File{}, RefusedError{fmt.Sprintf("%q: want a name in UTF-8", name)}
	}
	return send(newLines(c), name, file, size, moved)
}

func send(l lines, name string, file io.ReadSeeker, size int64, moved func(int64)) (File, error) {
	if err := l.send(message{Name: name, Size: size}); err != nil {
		return File{}, err
	}
	has, err := l.answer(size)
	if err != nil || strings.HasSuffix(name, "/") {
		return File{Name: name, SHA256: has.SHA256, Sent: true}, err
	}
	if has.Have < 0 || has.Have > size {
		has.Have = 0 // of another file
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return File{}, err
	}
	h, err := hashed(file, has.Have)
	if err != nil {
		return File{}, changed(err)
	}
	if sum(h) != has.SHA256 {
		has.Have = 0
		h.Reset()
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return File{}, err
		}
	}
	moved(has.Have)
	if err := l.send(message{Offset: has.Have}); err != nil {
		return File{}, err
	}
	if err := copyHashed(l, file, size-has.Have, h, moved); err != nil {
		return File{}, changed(err)
	}
	if n, _ := io.ReadFull(file, make([]byte, 1)); n > 0 {
		return File{}, RefusedError{"the file is longer than its size, or has become longer meanwhile"}
	}
	if err := l.send(message{SHA256: sum(h)}); err != nil {
		return File{}, err
	}
	got, err := l.answer(size)
	if err != nil {
		return File{}, err
	}
	if got.SHA256 != sum(h) {
		return File{}, RefusedError{"the SHA-256 of what has arrived is another"}
	}
	return File{name, size, has.Have, got.SHA256, true}, nil
}

// changed makes a RefusedError of an unexpected end of the sender's file.
func changed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return RefusedError{"the file has become shorter meanwhile"}
	}
	return err
}
