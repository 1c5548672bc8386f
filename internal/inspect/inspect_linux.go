package inspect

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric/shm"
	"github.com/ringnet/ringnet/internal/passrights"
)

const (
	prefix  = "@ringnet-ss:"
	askers  = 4               // that are answered at once; the others wait
	asking  = 2 * time.Second // that one may take to ask, and again to take the answer
	request = 1 << 10         // bytes of a request at most

	strangerPause = time.Millisecond // after one who may not ask, so that many of them take little processor time
)

// refuseDescriptors has nobody send descriptors to a socket, of which the close may block this process.
var refuseDescriptors = passrights.Refuse

// listen begins to listen. Where that is forbidden, nobody can ask.
func (a *Answerer) listen() {
	l, err := (&net.ListenConfig{Control: refuseDescriptors}).Listen(context.Background(), "unix", prefix+rand.Text())
	if err != nil {
		a.ended()
		return
	}
	own := l.(*net.UnixListener)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = func() { _ = own.SetDeadline(time.Unix(1, 0)) }
	if a.held == 0 { // any more
		a.end()
	}
	go a.serve(own)
}

// serve answers until end is called. It closes sockets here, and one after the other, for another user
// may have sent a descriptor whose close blocks: then this process answers nobody, and goes on.
func (a *Answerer) serve(l *net.UnixListener) {
	slots := make(chan struct{}, askers)
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			time.Sleep(asking) // no descriptor is left, perhaps
			continue
		}
		if uid, _, err := peer(c); err != nil || uid != 0 && !isOwn(uid) {
			_ = c.Close()
			time.Sleep(strangerPause)
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			a.serveOne(c)
		}()
	}
	_ = l.Close()
	a.ended()
	a.begin() // something may be held again
}

// serveOne answers one who may ask.
func (a *Answerer) serveOne(c *net.UnixConn) {
	_ = c.SetDeadline(time.Now().Add(asking))
	var r Request
	if json.NewDecoder(io.LimitReader(c, request)).Decode(&r) != nil || isGone(c) {
		return
	}
	p := a.answer(r)
	p.At = time.Now()
	_ = c.SetDeadline(time.Now().Add(asking))
	w := bufio.NewWriter(c)
	e := json.NewEncoder(w)
	first := p
	first.Links, first.Connections = nil, nil
	_ = e.Encode(item{Process: &first, Items: len(p.Links) + len(p.Connections)})
	for i := range p.Links {
		_ = e.Encode(item{Link: &p.Links[i]})
	}
	for i := range p.Connections {
		_ = e.Encode(item{Connection: &p.Connections[i]})
	}
	_ = w.Flush() // the one who asks notices what it lacks
}

// item is a line of an answer. The first has the process, and how many follow.
type item struct {
	Process    *Process    `json:"process,omitempty"`
	Items      int         `json:"items,omitempty"`
	Link       *Link       `json:"link,omitempty"`
	Connection *Connection `json:"connection,omitempty"`
}

// isGone reports whether one who has asked no longer waits: this process may have been stopped meanwhile.
func isGone(c *net.UnixConn) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err == unix.ECONNRESET
	})
	return gone || err != nil
}

// isOwn reports whether a user is this process's. One who has no number in this user namespace may be
// anyone.
func isOwn(uid int) bool { return uid == os.Geteuid() && uint32(uid) != shm.OverflowUID() }

// peer is who is at the other end, as the kernel tells.
func peer(c *net.UnixConn) (uid, pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var of *unix.Ucred
	if e := raw.Control(func(fd uintptr) { of, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return 0, 0, e
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("getsockopt", err)
	}
	return int(of.Uid), int(of.Pid), nil
}
