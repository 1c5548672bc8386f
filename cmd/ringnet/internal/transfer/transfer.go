// Package transfer sends files over a connection, and continues one that a broken
// connection has interrupted.
//
// The sender sends name and size. The receiver answers how many bytes of the file it has
// from an earlier connection, with their SHA-256. If the sender's file begins with these
// bytes, the sender sends the rest, else the whole file. At the end both send the SHA-256
// of the whole file, and only if they agree the receiver gives the file its name.
// Everything but the file's bytes is a line of JSON.
//
// An end that is silent, and does not hash or sync, has its connection given up.
//
// A name may lead through folders, which the receiver makes: a/b. One that ends in / is an
// empty folder. Who wants a file of a folder that may be read begins with the name alone, and
// then receives.
package transfer

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"strings"
	"time"

	pool "github.com/libp2p/go-buffer-pool"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
)

// message is a line of the protocol. Each kind has some of the fields.
type message struct {
	Fetch  string `json:"fetch,omitempty"`  // a receiver asks for the file of this name
	Name   string `json:"name,omitempty"`   // a sender offers a file of this name,
	Size   int64  `json:"size,omitempty"`   // and of so many bytes
	Have   int64  `json:"have,omitempty"`   // the receiver has so many of its bytes already
	Offset int64  `json:"offset,omitempty"` // the sender begins with this byte
	SHA256 string `json:"sha256,omitempty"` // of the bytes that the receiver has; behind the last byte, of the file
	Error  string `json:"error,omitempty"`  // the file is refused, for this reason
	Busy   bool   `json:"busy,omitempty"`   // another connection sends the file
}

// File is a file that has moved.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"bytes"`
	From   int64  `json:"resumed_from"` // how many bytes the receiver had from an earlier connection
	SHA256 string `json:"sha256"`       // of the whole file, at both ends
	Sent   bool   `json:"-"`            // from here
}

// RefusedError says why the receiver, or Send, refuses a file. To try again does not help.
type RefusedError struct{ Why string }

func (e RefusedError) Error() string { return "refused: " + e.Why }

// ErrBusy says that another connection sends a file of this name. It may be broken,
// and the receiver has not noticed it yet.
var ErrBusy = errors.New("another connection brings a file of this name")

// ErrStranger says that the peer does not speak this protocol. To try again does not help.
var ErrStranger = errors.New("this is no ringnet cp")

// maxLine is the longest line, in bytes, for which memory is taken.
const maxLine = 64 << 10

// copyLen is how many bytes are moved at a time.
const copyLen = 256 << 10

// silence is how long a peer may be silent that has nothing to do, and leastRate how many bytes a second
// it hashes, or writes to its device, at least.
const (
	silence   = 30 * time.Second
	leastRate = 1 << 20
)

// lines are a connection with lines on it.
type lines struct {
	r *bufio.Reader
	net.Conn
}

func newLines(c net.Conn) lines { return lines{bufio.NewReaderSize(c, maxLine), c} }

func (l lines) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = l.SetWriteDeadline(time.Now().Add(silence))
	_, err = l.Conn.Write(append(b, '\n'))
	return err
}

// receive receives a line, before which the peer has to work on some bytes.
func (l lines) receive(work int64) (m message, err error) {
	l.patience(work)
	line, err := l.r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return m, fmt.Errorf("a line is too long: %w", ErrStranger)
	case err == io.EOF:
		return m, io.ErrUnexpectedEOF
	case err != nil:
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	return m, nil
}

// answer receives what the peer answers, or returns why it refuses the file.
func (l lines) answer(work int64) (message, error) {
	m, err := l.receive(work)
	switch {
	case err != nil:
		return m, fmt.Errorf("no answer: %w", err)
	case m.Busy:
		return m, ErrBusy
	case m.Error != "":
		return m, RefusedError{endpoint.Printable(m.Error)}
	}
	return m, nil
}

// patience has reads fail when the peer is silent for longer than work on some bytes takes.
func (l lines) patience(work int64) {
	const most = 1 << 30 // seconds
	_ = l.SetReadDeadline(time.Now().Add(silence + time.Duration(min(work/leastRate, most))*time.Second))
}

// Read receives bytes of a file.
func (l lines) Read(p []byte) (int, error) {
	l.patience(0)
	return l.r.Read(p)
}

// Write sends bytes of a file, or returns what the receiver has against it.
func (l lines) Write(p []byte) (int, error) {
	_ = l.SetWriteDeadline(time.Now().Add(silence))
	n, err := l.Conn.Write(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_, why := l.answer(0)
		if refused := new(RefusedError); errors.As(why, refused) {
			err = *refused
		}
	}
	return n, err
}

// copyHashed moves n bytes and hashes them.
func copyHashed(w io.Writer, r io.Reader, n int64, h hash.Hash, moved func(int64)) error {
	buf := pool.Get(int(min(max(n, 1), copyLen)))
	defer pool.Put(buf)
	done, err := io.CopyBuffer(io.MultiWriter(h, w, counter(moved)), io.LimitReader(r, n), buf)
	if err == nil && done < n {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// counter counts bytes.
type counter func(n int64)

func (c counter) Write(p []byte) (int, error) {
	c(int64(len(p)))
	return len(p), nil
}

// hashed is the hash of the next n bytes of a file.
func hashed(file io.Reader, n int64) (hash.Hash, error) {
	h := sha256.New()
	return h, copyHashed(io.Discard, file, n, h, func(int64) {})
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// checkName refuses what is not the name of a file, or, if it ends in /, of a folder. Partial
// files are those at the top whose names begin with a dot.
func checkName(name string) error {
	parts := strings.Split(strings.TrimSuffix(name, "/"), "/")
	ok := len(name) <= 2000 && !strings.ContainsAny(name, "\\\x00") && parts[0] != "" && parts[0][0] != '.'
	for _, part := range parts {
		ok = ok && part != "" && part != "." && part != ".." && len(part) <= 200
	}
	if !ok {
		return RefusedError{fmt.Sprintf("%.200q: want a plain name that does not begin with a dot, behind names of folders at most", name)}
	}
	return nil
}
