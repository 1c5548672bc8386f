package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	usersAtOnce = 1024       // who are asked at once
	asksAtOnce  = 256        // of the processes of a user; fewer if there are so many users that it would be more than usersAtOnce in all
	perUser     = 3 * asking // from the first connection to a process of theirs on
)

// unknown is the user of those whose user the kernel does not tell.
const unknown = -1

// errLate is why a process has not answered whose call may still hang.
var errLate = errors.New("no answer in time")

// Ask asks the processes of the host's network namespace that use package ringnet and answer this
// user: those of a program or with an ID, or, if only is "", all. Those that do not answer in time are left
// out, with an error for each user in failed. Others is how many there are of other users, who do not
// answer this one.
func Ask(ctx context.Context, only string) (all []Process, others int, failed []error, err error) {
	byUser, err := socketsByUser(ctx)
	if err != nil {
		return nil, 0, nil, err
	}
	ask := func(ctx context.Context, name string, b *budget) (Process, error) {
		c, err := dial(ctx, name, only)
		if err != nil {
			return Process{}, err
		}
		defer c.Close()
		return c.ask(ctx, Request{}, b)
	}
	silent, why := make(map[int]int), make(map[int]error)
	refusals := 0
	var refusal error
	askUsers(ctx, byUser, ask, func(uid int, p Process, err error) {
		switch {
		case err == nil:
			all = append(all, p)
		case err == errOthers:
			others++
		case errors.Is(err, errNotOurs):
		case errors.As(err, new(refusedError)):
			refusals, refusal = refusals+1, err
		default:
			silent[uid]++
			if err != errLate || why[uid] == nil {
				why[uid] = err
			}
		}
	})
	if refusals > 0 {
		failed = append(failed, fmt.Errorf("%d processes take no connection: %w", refusals, refusal))
	}
	for _, uid := range slices.Sorted(maps.Keys(silent)) {
		failed = append(failed, fmt.Errorf("%d processes of user %d: %w", silent[uid], uid, why[uid]))
	}
	return all, others, failed, nil
}

// Kill has a process end one of its connections.
func Kill(ctx context.Context, pid int, number uint64) error {
	byUser, err := socketsByUser(ctx)
	if err != nil {
		return err
	}
	ctx, found := context.WithCancel(ctx)
	defer found()
	ask := func(ctx context.Context, name string, b *budget) (Process, error) {
		c, err := dial(ctx, name, "")
		if err != nil {
			return Process{}, err
		}
		defer c.Close()
		if c.pid != pid {
			return Process{}, errNotOurs
		}
		return c.ask(ctx, Request{Kill: number}, b)
	}
	err = fmt.Errorf("there is no process %d that uses ringnet and answers this user", pid)
	done := false
	askUsers(ctx, byUser, ask, func(_ int, p Process, failed error) {
		switch {
		case done || errors.Is(failed, errNotOurs):
			return
		case errors.As(failed, new(refusedError)) || failed == errLate:
			err = fmt.Errorf("process %d does not answer, or is not there: %w", pid, failed)
			return
		case failed == nil && p.Error != "":
			failed = fmt.Errorf("process %d: %q", pid, p.Error)
		}
		err, done = failed, true
		found()
	})
	return err
}

// askFunc is a function that asks the process with a socket of a name.
type askFunc func(ctx context.Context, name string, b *budget) (Process, error)

// outcome is what a process has answered, or why it has not.
type outcome struct {
	process Process
	err     error
}

// askUsers calls ask for each socket, and took, one call after the other, with what comes of it. The
// processes of a user hold up no others, and have a time of their own. It returns by the end of ctx, whatever
// hangs. Users with low numbers come first: those of user namespaces, of which one user may have very many, have high
// ones.
func askUsers(ctx context.Context, byUser map[int][]string, ask askFunc, took func(uid int, p Process, err error)) {
	var mu sync.Mutex // held during took
	var users sync.WaitGroup
	atOnce := min(asksAtOnce, max(usersAtOnce/max(len(byUser), 1), 1))
	turns := make(chan struct{}, usersAtOnce)
	for _, uid := range slices.Sorted(maps.Keys(byUser)) {
		turns <- struct{}{} // which comes by the end of ctx
		users.Go(func() {
			defer func() { <-turns }()
			askUser(ctx, uid, byUser[uid], atOnce, ask, func(o *outcome) {
				mu.Lock()
				defer mu.Unlock()
				took(uid, o.process, o.err)
			})
		})
	}
	users.Wait()
}

// places are those of the users' processes that are asked. Another user may have a call hang in the kernel
// for as long as that user likes, by descriptors that are sent to it (before Linux 6.16): it keeps its place and
// its thread, and nobody waits for it.
var places = struct {
	sync.Mutex
	of map[int]chan struct{}
}{of: make(map[int]chan struct{})}

// placesOf are a user's places.
func placesOf(uid int) chan struct{} {
	places.Lock()
	defer places.Unlock()
	if places.of[uid] == nil {
		places.of[uid] = make(chan struct{}, asksAtOnce)
	}
	return places.of[uid]
}

// askUser is askUsers for one user.
func askUser(ctx context.Context, uid int, names []string, atOnce int, ask askFunc, took func(*outcome)) {
	ctx, cancel := context.WithTimeout(ctx, perUser)
	defer cancel()
	outcomes := make(chan *outcome, len(names)) // so those who are late hold up nobody
	var next atomic.Int64
	taken, budget := placesOf(uid), new(budget)
	work := func() {
		select {
		case taken <- struct{}{}:
			defer func() { <-taken }()
		case <-ctx.Done():
			return
		}
		for i := next.Add(1) - 1; int(i) < len(names) && ctx.Err() == nil; i = next.Add(1) - 1 {
			p, err := ask(ctx, names[i], budget)
			outcomes <- &outcome{p, err}
		}
	}
	for range min(len(names), atOnce) {
		go work()
	}
	for range names {
		o := &outcome{err: errLate}
		select {
		case o = <-outcomes:
		case <-ctx.Done():
			select {
			case o = <-outcomes:
			default:
			}
		}
		took(o)
	}
}
