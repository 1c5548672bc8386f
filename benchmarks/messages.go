package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// What a client asks of the server of messages, in a header of headerSize
// bytes: what to do, with messages of what size, how many of them.
const (
	echo      = iota // send each message back
	sink             // read them all, then send one byte
	work             // work on each message, then send it back
	bystander        // be a bystander; see serveBystander

	headerSize = 16
	sinkBuffer = 64 << 10 // what a sink reads into, unless messages are larger

	workTime = 10 * time.Microsecond // on a message, at each side
)

// serveMessages does what the client asks until it closes the connection.
func serveMessages(c net.Conn) error {
	defer c.Close()
	var header [headerSize]byte
	var buf []byte
	for {
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return nil
		}
		op := binary.LittleEndian.Uint32(header[:])
		size := int(binary.LittleEndian.Uint32(header[4:]))
		n := int(binary.LittleEndian.Uint64(header[8:]))
		if size > len(buf) {
			buf = make([]byte, max(size, sinkBuffer))
		}
		if err := serveRequest(c, int(op), buf, size, n); err != nil {
			return err
		}
	}
}

func serveRequest(c net.Conn, op int, buf []byte, size, n int) error {
	switch op {
	case echo, work:
		for range n {
			if _, err := io.ReadFull(c, buf[:size]); err != nil {
				return err
			}
			if op == work {
				compute(time.Now(), workTime)
			}
			if _, err := c.Write(buf[:size]); err != nil {
				return err
			}
		}
		return nil
	case sink:
		for left := size * n; left > 0; {
			m, err := c.Read(buf[:min(left, len(buf))])
			if err != nil {
				return err
			}
			left -= m
		}
		_, err := c.Write(buf[:1])
		return err
	case bystander:
		return serveBystander(c)
	}
	return fmt.Errorf("unknown request %d", op)
}

func request(c net.Conn, op, size, n int) error {
	var header [headerSize]byte
	binary.LittleEndian.PutUint32(header[:], uint32(op))
	binary.LittleEndian.PutUint32(header[4:], uint32(size))
	binary.LittleEndian.PutUint64(header[8:], uint64(n))
	_, err := c.Write(header[:])
	return err
}

// compute keeps a processor busy and returns when it ends.
func compute(start time.Time, d time.Duration) time.Time {
	for {
		if now := time.Now(); now.Sub(start) >= d {
			return now
		}
	}
}

// pingPong sends messages to be echoed, or worked on, and takes each back before
// the next. What was worked on it works on, too.
func pingPong(c net.Conn, op int, buf []byte, times []time.Duration) error {
	if err := request(c, op, len(buf), len(times)); err != nil {
		return err
	}
	last := time.Now()
	for i := range times {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		now := time.Now()
		times[i] = now.Sub(last)
		if op == work {
			now = compute(now, workTime)
		}
		last = now
	}
	return nil
}

// stream sends n messages and waits until the other side has read them all.
func stream(c net.Conn, buf []byte, n int) error {
	if err := request(c, sink, len(buf), n); err != nil {
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
