package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What one who asks takes of the processes of a user, who may be hostile: none of it keeps those of
// others from being seen.
const (
	asksAtOnce = 256
	perUser    = 2 * asking // of time
	maxItems   = 300_000    // links and connections
	maxBytes   = 128 << 20
	maxLine    = 16 << 10 // bytes of an item
	maxReasons = 8        // of a connection, to have been passed over
)

// errNotOurs is for a process that is gone, that another user has, or that is not asked for, and errOthers for one
// of another user that is there.
var (
	errNotOurs = errors.New("another user's process, or none any more")
	errOthers  = fmt.Errorf("%w: it is there", errNotOurs)
)

// process is a connection to a process that this user may ask.
type process struct {
	*net.UnixConn
	name     string
	uid, pid int
}

// dial connects to the process with a socket of that name, if it may be one that only asks for.
func dial(ctx context.Context, name, only string) (*process, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", name)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, errNotOurs
	}
	if err != nil {
		return nil, err
	}
	p := &process{UnixConn: c.(*net.UnixConn), name: strings.TrimPrefix(name, prefix)}
	p.uid, p.pid, err = peer(p.UnixConn)
	switch {
	case err != nil || !mayBe(p.pid, only) || !isOf(p.pid, p.uid):
		err = errNotOurs
	case os.Geteuid() != 0 && !isOwn(p.uid):
		err = errOthers
	default:
		return p, nil
	}
	_ = c.Close()
	return nil, err
}

// mayBe reports whether the process with an ID may be one that is asked for by its ID or its name, which is
// that of [Process.Program], or "" for all.
func mayBe(pid int, only string) bool {
	if only == "" || only == strconv.Itoa(pid) || pid == 0 {
		return true
	}
	text, _ := os.ReadFile(fmt.Sprint("/proc/", pid, "/cmdline"))
	program, _, _ := strings.Cut(string(text), "\x00")
	return program == "" || filepath.Base(program) == only
}

// isOf reports whether the process with an ID is that of a user who listens. The ID and the user are those
// of when it began to; the ID may be another user's process by now, but root forges nothing, and may have
// become another user since. 0 is a process outside of this PID namespace.
func isOf(pid, uid int) bool {
	if pid == 0 || uid == 0 {
		return true
	}
	text, _ := os.ReadFile(fmt.Sprint("/proc/", pid, "/status"))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // real, effective, saved and file system's
		if len(fields) == 5 && fields[0] == "Uid:" {
			return fields[2] == strconv.Itoa(uid)
		}
	}
	return false
}

// Ask asks the processes of the host's network namespace that use package ringnet and answer this
// user: those of a program or with an ID, or, if only is "", all. Those that do not answer in time are left
// out, with an error for each user in failed. Others is how many there are of other users, who do not
// answer this one.
func Ask(ctx context.Context, only string) (all []Process, others int, failed []error, err error) {
	names, err := sockets()
	if err != nil {
		return nil, 0, nil, err
	}
	byUser := make(map[int][]string)
	refusals := 0
	for _, name := range names {
		// A user may have more processes than this one may have descriptors: each is connected to for a
		// moment, and sent nothing.
		c, err := dial(ctx, name, only)
		switch {
		case err == nil:
			byUser[c.uid] = append(byUser[c.uid], name)
			_ = c.Close()
		case err == errOthers:
			others++
		case !errors.Is(err, errNotOurs):
			refusals++
			failed = []error{fmt.Errorf("%d processes take no connection: %w", refusals, err)}
		}
	}
	var mu sync.Mutex
	var users sync.WaitGroup
	for uid, of := range byUser {
		users.Go(func() {
			answers, silent, why := askUser(ctx, of)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, answers...)
			if silent > 0 {
				failed = append(failed, fmt.Errorf("%d processes of user %d: %w", silent, uid, why))
			}
		})
	}
	users.Wait()
	return all, others, failed, nil
}

// askUser asks the processes of a user. It returns how many have not answered, and why one of them has
// not.
func askUser(ctx context.Context, names []string) (all []Process, silent int, why error) {
	ctx, cancel := context.WithTimeout(ctx, perUser)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	budget := new(budget)
	slots := make(chan struct{}, asksAtOnce)
	for _, name := range names {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			p, err := ask(ctx, name, budget)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all = append(all, p)
			case !errors.Is(err, errNotOurs):
				silent, why = silent+1, err
			}
		})
	}
	asked.Wait()
	return all, silent, why
}

// ask asks the process with a socket of that name.
func ask(ctx context.Context, name string, b *budget) (Process, error) {
	c, err := dial(ctx, name, "")
	if err != nil {
		return Process{}, err
	}
	defer c.Close()
	return c.ask(ctx, Request{}, b)
}

// Kill has a process end one of its connections.
func Kill(ctx context.Context, pid int, number uint64) error {
	names, err := sockets()
	if err != nil {
		return err
	}
	gone := fmt.Errorf("there is no process %d that uses ringnet and answers this user", pid)
	for _, name := range names {
		c, err := dial(ctx, name, "")
		switch {
		case errors.Is(err, errNotOurs):
			continue
		case err != nil:
			gone = fmt.Errorf("process %d does not answer, or is not there: %w", pid, err)
			continue
		case c.pid != pid:
			_ = c.Close()
			continue
		}
		defer c.Close()
		p, err := c.ask(ctx, Request{Kill: number}, new(budget))
		if err == nil && p.Error != "" {
			err = fmt.Errorf("process %d: %q", pid, p.Error)
		}
		return err
	}
	return gone
}

// budget is what was taken of a user's processes.
type budget struct{ items, bytes atomic.Int64 }

// take takes an item of so many bytes.
func (b *budget) take(n int) error {
	if b.items.Add(1) > maxItems || b.bytes.Add(int64(n)) > maxBytes {
		return fmt.Errorf("the answers of this user's processes have more than %d links and connections, or more than %d MiB", maxItems, maxBytes>>20)
	}
	return nil
}

// ask sends a request and takes the answer. A process that ends the connection at once ends, or has no
// connection any more; one of another user may be in a user namespace that does not know root, or this
// process is.
func (c *process) ask(ctx context.Context, r Request, b *budget) (p Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*asking)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, maxLine)
	next := func() (i item, err error) {
		switch {
		case lines.Scan():
			if err = b.take(len(lines.Bytes())); err == nil {
				err = json.Unmarshal(lines.Bytes(), &i)
			}
		case lines.Err() != nil:
			err = lines.Err()
		default:
			err = io.ErrUnexpectedEOF
		}
		return i, err
	}
	err = json.NewEncoder(c).Encode(r)
	var i item
	if err == nil {
		i, err = next()
	}
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) || err == io.ErrUnexpectedEOF {
		return p, errNotOurs
	}
	if err == nil && i.Process != nil {
		p = *i.Process
	}
	for n := i.Items; n > 0 && err == nil; n-- {
		if i, err = next(); err != nil {
			break
		}
		switch {
		case i.Link != nil:
			p.Links = append(p.Links, *i.Link)
		case i.Connection != nil && len(i.Connection.PassedOver) <= maxReasons:
			p.Connections = append(p.Connections, *i.Connection)
		default:
			err = errors.New("an item that is none")
		}
	}
	if err != nil {
		return p, fmt.Errorf("process %d has not answered: %w", c.pid, err)
	}
	p.ID, p.PID, p.UID = c.name, c.pid, c.uid
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
		if of, _ := strconv.ParseUint(fields[flags], 16, 32); of&listens != 0 {
			names = append(names, fields[path])
		}
	}
	return names, nil
}
