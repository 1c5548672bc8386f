// Package transfer sends files over a connection, and continues one that a broken
// connection has interrupted.
//
// The sender sends name and size. The receiver answers how many bytes of the file it has
// from an earlier connection, with their SHA-256. If the sender's file begins with these
// bytes, the sender sends the rest, else the whole file. At the end both send the SHA-256
// of the whole file, and only if they agree the receiver gives the file its name.
// Everything but the file's bytes is a line of JSON. An empty line is a sign of life.
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
	"os"
	"strings"
	"time"

	pool "github.com/libp2p/go-buffer-pool"
)

// offer is the sender's first line, or, with Fetch, that of who wants a file.
type offer struct {
	Name  string `json:"name,omitempty"`
	Size  int64  `json:"size"`
	Fetch string `json:"fetch,omitempty"` // a name
	Error string `json:"error,omitempty"` // why there is no such file
}

// answer is the receiver's line, after the offer and at the end.
type answer struct {
	Have   int64  `json:"have,omitempty"`   // bytes
	SHA256 string `json:"sha256,omitempty"` // of these, and at the end of all
	Error  string `json:"error,omitempty"`
	Busy   bool   `json:"busy,omitempty"` // another connection sends the file
}

// start is the sender's line before the bytes: where they begin.
type start struct {
	Offset int64 `json:"offset"`
}

// end is the sender's line after the bytes.
type end struct {
	SHA256 string `json:"sha256"`
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

// signOfLife is how often a peer is told that this end is at work. The peer takes as many
// as the work may need, one in five seconds. A variable, for tests change it.
var signOfLife = 5 * time.Second

// lines are a connection with lines on it.
type lines struct {
	*bufio.Reader
	w io.Writer
}

func newLines(c io.ReadWriter) lines { return lines{bufio.NewReaderSize(c, maxLine), c} }

func (l lines) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = l.w.Write(append(b, '\n'))
	return err
}

// leastRate is how many bytes a second a peer hashes, or syncs, at least.
const leastRate = 1 << 20

// receive receives a line, and before it the signs of life of a peer that works on some
// bytes.
func (l lines) receive(v any, work int64) error {
	line, err := l.ReadSlice('\n')
	signs := 10 + work/leastRate/5
	for ; err == nil && len(line) == 1 && signs > 0; signs-- {
		line, err = l.ReadSlice('\n')
	}
	switch {
	case err == nil && len(line) == 1:
		return fmt.Errorf("only signs of life: %w", ErrStranger)
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("a line is too long: %w", ErrStranger)
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("%w: %w", ErrStranger, err)
	}
	return nil
}

// hashed is the hash of the next n bytes of a file.
func (l lines) hashed(file io.Reader, n int64) (hash.Hash, error) {
	h := sha256.New()
	return h, copyHashed(&signs{w: l.w, said: time.Now()}, file, n, h, func(int64) {})
}

// signs takes bytes and gives signs of life.
type signs struct {
	w    io.Writer
	said time.Time
}

func (s *signs) Write(p []byte) (int, error) {
	if time.Since(s.said) < signOfLife {
		return len(p), nil
	}
	s.said = time.Now()
	if _, err := s.w.Write([]byte("\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// sync writes a file to its device, and gives signs of life.
func (l lines) sync(file interface{ Sync() error }) error {
	synced := make(chan error, 1)
	go func() { synced <- file.Sync() }()
	ticker := time.NewTicker(signOfLife)
	defer ticker.Stop()
	for {
		select {
		case err := <-synced:
			return err
		case <-ticker.C:
			_, _ = l.w.Write([]byte("\n")) // to whom may be gone
		}
	}
}

// Write sends bytes of a file, or returns what the receiver has against it.
func (l lines) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		var refused RefusedError
		if errors.As(l.receiveAnswer(new(answer), 0), &refused) {
			err = refused
		}
	}
	return n, err
}

// copyHashed moves n bytes and hashes them.
func copyHashed(w io.Writer, r io.Reader, n int64, h hash.Hash, moved func(int64)) error {
	buf := pool.Get(int(min(n, copyLen)))
	defer pool.Put(buf)
	for n > 0 {
		m, err := io.ReadFull(r, buf[:min(n, copyLen)])
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		h.Write(buf[:m])
		if _, failed := w.Write(buf[:m]); failed != nil {
			return failed
		}
		moved(int64(m))
		if n -= int64(m); err != nil {
			return err
		}
	}
	return nil
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
