package transfer

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// Sent is a file that was sent.
type Sent struct {
	From   int64  // how many bytes the receiver had from an earlier connection
	SHA256 string // of the whole file, at both ends
}

// Send sends a file with a name and a size over a connection. It calls moved with numbers
// of bytes: those that the receiver has already, and then those that it has sent.
func Send(c io.ReadWriter, name string, file io.ReadSeeker, size int64, moved func(int64)) (Sent, error) {
	if !utf8.ValidString(name) {
		return Sent{}, RefusedError{fmt.Sprintf("%q: want a name in UTF-8", name)}
	}
	return send(newLines(c), name, file, size, moved)
}

func send(l lines, name string, file io.ReadSeeker, size int64, moved func(int64)) (Sent, error) {
	if err := l.send(offer{Name: name, Size: size}); err != nil {
		return Sent{}, err
	}
	var has answer
	if err := l.receiveAnswer(&has, size); err != nil || strings.HasSuffix(name, "/") {
		return Sent{SHA256: has.SHA256}, err
	}
	if has.Have < 0 || has.Have > size {
		has.Have = 0 // of another file
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return Sent{}, err
	}
	h, err := l.hashed(file, has.Have)
	if err != nil {
		return Sent{}, changed(err)
	}
	if sum(h) != has.SHA256 {
		has.Have = 0
		h.Reset()
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return Sent{}, err
		}
	}
	moved(has.Have)
	if err := l.send(start{has.Have}); err != nil {
		return Sent{}, err
	}
	if err := copyHashed(l, file, size-has.Have, h, moved); err != nil {
		return Sent{}, changed(err)
	}
	if n, _ := io.ReadFull(file, make([]byte, 1)); n > 0 {
		return Sent{}, RefusedError{"the file is longer than its size, or has become longer meanwhile"}
	}
	if err := l.send(end{sum(h)}); err != nil {
		return Sent{}, err
	}
	var got answer
	if err := l.receiveAnswer(&got, size); err != nil {
		return Sent{}, err
	}
	if got.SHA256 != sum(h) {
		return Sent{}, RefusedError{"the SHA-256 of what has arrived is another"}
	}
	return Sent{has.Have, got.SHA256}, nil
}

// changed makes a RefusedError of an unexpected end of the sender's file.
func changed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return RefusedError{"the file has become shorter meanwhile"}
	}
	return err
}

// receiveAnswer waits for an answer, before which the receiver has to work on some bytes.
func (l lines) receiveAnswer(a *answer, work int64) error {
	if err := l.receive(a, work); err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	switch {
	case a.Busy:
		return ErrBusy
	case a.Error != "":
		return RefusedError{endpoint.Printable(a.Error)}
	}
	return nil
}
