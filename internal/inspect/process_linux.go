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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What one who asks takes of the processes of a user, who may be hostile: none of it keeps those of
// others from being seen.
const (
	maxItems   = 300_000 // links and connections
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

// refusedError is why a process takes no connection.
type refusedError struct{ error }

// process is a connection to a process that this user may ask.
type process struct {
	*net.UnixConn
	name     string
	uid, pid int
}

// connect connects to a process with a socket of that name.
func connect(ctx context.Context, name string) (*process, error) {
	c, err := (&net.Dialer{Control: refuseDescriptors}).DialContext(ctx, "unix", name)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, errNotOurs
	}
	if err != nil {
		return nil, refusedError{err}
	}
	p := &process{UnixConn: c.(*net.UnixConn), name: strings.TrimPrefix(name, prefix)}
	if p.uid, p.pid, err = peer(p.UnixConn); err != nil {
		_ = c.Close()
		return nil, errNotOurs
	}
	return p, nil
}

// dial connects to the process with a socket of that name, if it may be one that only asks for.
func dial(ctx context.Context, name, only string) (*process, error) {
	p, err := connect(ctx, name)
	if err != nil {
		return nil, err
	}
	switch {
	case !mayBe(p.pid, only) || !isOf(p.pid, p.uid):
		err = errNotOurs
	case os.Geteuid() != 0 && !isOwn(p.uid):
		err = errOthers
	default:
		return p, nil
	}
	_ = p.Close()
	return nil, err
}

// mayBe reports whether the process with an ID may be one that is asked for by its ID or its name, which is
// that of [Process.Program], or "" for all.
func mayBe(pid int, only string) bool {
	if only == "" || only == strconv.Itoa(pid) || pid == 0 {
		return true
	}
	program, _, _ := strings.Cut(ofProcess(pid, "cmdline"), "\x00")
	return program == "" || filepath.Base(program) == only
}

// isOf reports whether the process with an ID is that of a user who listens. The ID and the user are those
// of when it began to; the ID may be another user's process by now, but root forges nothing, and may have
// become another user since. 0 is a process outside of this PID namespace.
func isOf(pid, uid int) bool {
	if pid == 0 || uid == 0 {
		return true
	}
	for line := range strings.Lines(ofProcess(pid, "status")) { // whose names the kernel has escaped
		fields := strings.Fields(line) // real, effective, saved and file system's
		if len(fields) == 5 && fields[0] == "Uid:" {
			return fields[2] == strconv.Itoa(uid)
		}
	}
	return false
}

// ofProcess is the beginning of a file in /proc of a process, as long as a path may be. A process can make
// what it tells of itself there endless.
func ofProcess(pid int, file string) string {
	f, err := os.Open(fmt.Sprint("/proc/", pid, "/", file))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, unix.PathMax))
	return string(text)
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
