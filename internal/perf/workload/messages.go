package workload

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A client's request to a server of messages is a header of headerSize bytes: the kind of
// request, the size of the messages, and their number.
const (
	Echo   = iota // send each message back
	Sink          // read them all, then send one byte
	Work          // work on each message, then send it back
	Source        // send them all

	// FirstOwn is the first request that a server may add.
	FirstOwn = 16

	headerSize = 16
	sinkBuffer = 64 << 10 // what a sink reads into, unless messages are larger

	maxOwn = 256 << 10 // bytes of a connection's own memory, if there is a bound

	workTime = 10 * time.Microsecond // on a message, at each side
)

// A MessageServer serves the requests of clients.
type MessageServer struct {
	// MaxSize is the largest message, in bytes.
	MaxSize int

	// Long is how many messages of more than 256 KiB are here at once, of all connections, before they are
	// sent back: those of others wait in turn. 0: any number.
	Long int

	// Own serves kinds of requests that this package does not have, from FirstOwn on.
	Own map[int]func(net.Conn) error

	// Deadline, if not nil, returns the time by which the next request has to arrive,
	// or, if it has arrived, to be done.
	Deadline func() time.Time

	begin sync.Once
	long  chan []byte // Long buffers that are not in use; nil: of no length yet
}

// maxMessages is how many messages a request may have.
const maxMessages = 1 << 32

// Serve serves requests until the client closes the connection, or one is not allowed.
func (s *MessageServer) Serve(c net.Conn) error {
	var header [headerSize]byte
	var buf []byte
	for {
		if err := s.extend(c); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, header[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		op := binary.LittleEndian.Uint32(header[:])
		size := binary.LittleEndian.Uint32(header[4:])
		n := binary.LittleEndian.Uint64(header[8:])
		if err := s.extend(c); err != nil {
			return err
		}
		if own, ok := s.Own[int(op)]; ok {
			if err := own(c); err != nil {
				return err
			}
			continue
		}
		if size < 1 || int64(size) > int64(s.MaxSize) || n > maxMessages {
			return fmt.Errorf("%d messages of %d bytes are not allowed", n, size)
		}
		own := max(int(size), sinkBuffer)
		if s.Long > 0 {
			own = min(own, maxOwn)
		}
		if own > len(buf) {
			buf = make([]byte, own)
		}
		if err := s.serveRequest(c, op, buf, int(size), int64(n)); err != nil {
			return err
		}
	}
}

func (s *MessageServer) extend(c net.Conn) error {
	if s.Deadline == nil {
		return nil
	}
	return c.SetDeadline(s.Deadline())
}

// takeLong waits for the turn to have a message of a size, and returns memory for it, which giveLong takes back.
func (s *MessageServer) takeLong(size int) []byte {
	s.begin.Do(func() {
		s.long = make(chan []byte, s.Long)
		for range s.Long {
			s.long <- nil
		}
	})
	buf := <-s.long
	if len(buf) < size {
		buf = make([]byte, size)
	}
	return buf
}

func (s *MessageServer) giveLong(buf []byte) { s.long <- buf }

// sendBack receives a message, and sends it when it is complete, for the client does not read before.
func (s *MessageServer) sendBack(c net.Conn, op uint32, buf []byte, size int) error {
	if size > len(buf) {
		buf = s.takeLong(size)
		defer s.giveLong(buf)
	}
	if _, err := io.ReadFull(c, buf[:size]); err != nil {
		return err
	}
	if op == Work {
		Compute(time.Now(), workTime)
	}
	_, err := c.Write(buf[:size])
	return err
}

func (s *MessageServer) serveRequest(c net.Conn, op uint32, buf []byte, size int, n int64) error {
	switch op {
	case Echo, Work:
		for range n {
			if err := s.sendBack(c, op, buf, size); err != nil {
				return err
			}
		}
		return nil
	case Sink:
		for left := int64(size) * n; left > 0; {
			m, err := c.Read(buf[:min(left, int64(len(buf)))])
			if err != nil {
				return err
			}
			left -= int64(m)
		}
		_, err := c.Write(buf[:1])
		return err
	case Source:
		for range n {
			for left := size; left > 0; left -= min(left, len(buf)) {
				if _, err := c.Write(buf[:min(left, len(buf))]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return fmt.Errorf("unknown request %d", op)
}

// Request sends a request to a server of messages.
func Request(c net.Conn, op, size, n int) error {
	var header [headerSize]byte
	binary.LittleEndian.PutUint32(header[:], uint32(op))
	binary.LittleEndian.PutUint32(header[4:], uint32(size))
	binary.LittleEndian.PutUint64(header[8:], uint64(n))
	_, err := c.Write(header[:])
	return err
}

// Compute keeps a processor busy for the time d from start, and returns when that is over.
func Compute(start time.Time, d time.Duration) time.Time {
	for {
		if now := time.Now(); now.Sub(start) >= d {
			return now
		}
	}
}

// Exchange sends n messages that the server echoes or works on, and receives each before it
// sends the next. With Work it also works on each itself, which is not timed. Times are those of Each.
func Exchange(c net.Conn, op int, buf []byte, n int, times *Times) error {
	if err := Request(c, op, len(buf), n); err != nil {
		return err
	}
	ask := func() error {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		_, err := io.ReadFull(c, buf)
		return err
	}
	if op != Work {
		return Each(n, times, ask)
	}
	for range n {
		if err := Each(1, times, ask); err != nil {
			return err
		}
		Compute(time.Now(), workTime)
	}
	return nil
}

// stream sends n messages and waits until the other side has read them all.
func stream(c net.Conn, buf []byte, n int) error {
	if err := Request(c, Sink, len(buf), n); err != nil {
		return err
	}
	for range n {
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, buf[:1])
	return err
}
