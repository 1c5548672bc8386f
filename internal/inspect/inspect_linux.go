package inspect

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric/shm"
)

const (
	prefix  = "@ringnet-ss:"
	askers  = 4               // that are answered at once; the others wait
	asking  = 2 * time.Second // that one may take to ask, and again to take the answer
	request = 1 << 10         // bytes of a request at most
	answer  = 64 << 20        // bytes of an answer at most: some 150,000 connections
)

// soPassRights is SO_PASSRIGHTS (include/uapi/asm-generic/socket.h).
const soPassRights = 83

// listen begins to listen. Called with mu held.
func (a *Answerer) listen() {
	refuseDescriptors := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, 0) // Linux 6.16 or later
		})
	}
	l, err := (&net.ListenConfig{Control: refuseDescriptors}).Listen(context.Background(), "unix", prefix+rand.Text())
	if err != nil {
		return
	}
	own := l.(*net.UnixListener)
	a.end = func() { _ = own.SetDeadline(time.Unix(1, 0)) }
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
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			a.answer(c)
		}()
	}
	_ = l.Close()
	a.mu.Lock()
	a.end = nil
	a.mu.Unlock()
	a.begin() // something may be held again
}

// answer answers one who may ask.
func (a *Answerer) answer(c *net.UnixConn) {
	_ = c.SetDeadline(time.Now().Add(asking))
	var r Request
	if json.NewDecoder(io.LimitReader(c, request)).Decode(&r) != nil {
		return
	}
	p := a.Answer(r)
	_ = c.SetDeadline(time.Now().Add(asking))
	_ = json.NewEncoder(c).Encode(p) // the one who asks notices what it lacks
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

// Ask asks all processes of the host's network namespace that use package ringnet and answer this
// user. One that does not answer in time is left out, with an error in failed.
func Ask(ctx context.Context) (all []Process, failed []error, err error) {
	names, err := sockets()
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var asked sync.WaitGroup
	slots := make(chan struct{}, 64)
	for _, name := range names {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			p, err := ask(ctx, name, 0, Request{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all = append(all, p)
			case !errors.Is(err, errNotOurs):
				failed = append(failed, err)
			}
		})
	}
	asked.Wait()
	return all, failed, nil
}

// Kill has a process end one of its connections.
func Kill(ctx context.Context, pid int, number uint64) error {
	names, err := sockets()
	if err != nil {
		return err
	}
	for _, name := range names {
		switch p, err := ask(ctx, name, pid, Request{Kill: number}); {
		case errors.Is(err, errNotOurs):
			continue
		case err != nil:
			return err
		case p.Error != "":
			return fmt.Errorf("process %d: %s", pid, p.Error)
		default:
			return nil
		}
	}
	return fmt.Errorf("there is no process %d that uses ringnet and answers this user", pid)
}

// errNotOurs is for a process that is gone, belongs to another user, or is not the one asked for.
var errNotOurs = errors.New("another user's process, or another one")

// ask asks the process with a socket of that name, if it is pid where that is not 0.
func ask(ctx context.Context, name string, pid int, r Request) (p Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*asking)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", name)
	if errors.Is(err, unix.ECONNREFUSED) {
		return p, errNotOurs // it has ended meanwhile
	}
	if err != nil {
		return p, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	ofUser, ofProcess, err := peer(c.(*net.UnixConn))
	if err != nil {
		return p, err
	}
	if os.Geteuid() != 0 && !isOwn(ofUser) || pid != 0 && pid != ofProcess {
		return p, errNotOurs
	}
	err = json.NewEncoder(c).Encode(r)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(c, answer)).Decode(&p)
	}
	if err != nil {
		return p, fmt.Errorf("process %d has not answered: %w", ofProcess, err)
	}
	p.PID, p.UID = ofProcess, ofUser
	return p, nil
}

// sockets are the names of those of this network namespace that answer.
func sockets() (names []string, err error) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		const listens, flags, path = 1 << 16, 3, 7 // the flag is __SO_ACCEPTCON of linux/net.h
		if len(fields) <= path || !strings.HasPrefix(fields[path], prefix) {
			continue
		}
		var of uint32
		if _, err := fmt.Sscanf(fields[flags], "%x", &of); err == nil && of&listens != 0 {
			names = append(names, fields[path])
		}
	}
	return names, nil
}
