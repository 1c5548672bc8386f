package inspect

import (
	"bufio"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ringnet/ringnet/internal/fabric/shm"
)

// socketsByUser are the names of the sockets of this network namespace that answer, by the users who
// have them.
func socketsByUser(ctx context.Context) (map[int][]string, error) {
	byUser, err := shm.StreamListeners(ctx, prefix)
	if !errors.Is(err, errors.ErrUnsupported) {
		return byUser, err
	}
	names, err := namesInProc("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	return usersOf(ctx, names), nil
}

// namesInProc are the names of sockets that answer, for kernels that do not tell the users. A name may have
// newlines, and so be several lines: what is read here may be no socket's name, and another user's may be
// there often.
func namesInProc(path string) (names []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		const listens, flags, name = 1 << 16, 3, 7 // the flag is __SO_ACCEPTCON of linux/net.h
		if len(fields) <= name || !strings.HasPrefix(fields[name], prefix) {
			continue
		}
		if of, _ := strconv.ParseUint(fields[flags], 16, 32); of&listens != 0 {
			names = append(names, fields[name])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), lines.Err()
}

// usersOf finds out who has the sockets with these names: it connects to each for a moment, and sends
// nothing. A user who has very many keeps it from others.
func usersOf(ctx context.Context, names []string) map[int][]string {
	byUser := make(map[int][]string)
	whose := func(ctx context.Context, name string, _ *budget) (Process, error) {
		c, err := connect(ctx, name)
		if err != nil {
			return Process{}, err
		}
		return Process{ID: name, UID: c.uid}, c.Close()
	}
	askUsers(ctx, map[int][]string{unknown: names}, whose, func(_ int, p Process, err error) {
		if err == nil {
			byUser[p.UID] = append(byUser[p.UID], p.ID)
		}
	})
	return byUser
}
