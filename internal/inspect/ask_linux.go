package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	usersAtOnce = 2048       // who are asked at once; fewer where fewer descriptors may be open
	asksAtOnce  = 256        // of the processes of a user; fewer if there are so many users that it would be more than usersAtOnce in all
	hangAtOnce  = 8192       // calls of all users: package runtime ends a process with more than 10,000 threads
	perUser     = 3 * asking // from the first connection to a process of theirs on, if all are asked at once
	rounds      = 3          // of those who are not, of asking each
	failures    = 8          // that are told of; the others are counted
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
	return all, others, append(failed, summary(silent, why)...), nil
}

// summary is what users' processes have not answered, and why, with one error for all but a few users.
func summary(silent map[int]int, why map[int]error) (failed []error) {
	uids := slices.Sorted(maps.Keys(silent))
	for _, uid := range uids[:min(len(uids), failures)] {
		failed = append(failed, fmt.Errorf("%d processes of user %d: %w", silent[uid], uid, why[uid]))
	}
	if more := uids[len(failed):]; len(more) > 0 {
		n := 0
		for _, uid := range more {
			n += silent[uid]
		}
		failed = append(failed, fmt.Errorf("%d processes of %d more users: %w", n, len(more), why[more[0]]))
	}
	return failed
}

// Kill has a process end one of its connections. It looks for the process first, which takes no answer, and then
// asks it once: what was begun is not to be asked for again.
func Kill(ctx context.Context, pid int, number uint64) error {
	byUser, err := socketsByUser(ctx)
	if err != nil {
		return err
	}
	looking, found := context.WithCancel(ctx)
	defer found()
	its := make(map[int][]string)
	err = fmt.Errorf("there is no process %d that uses ringnet and answers this user", pid)
	took := func(uid int, p Process, failed error) {
		switch {
		case failed == nil && p.Error != "":
			err = fmt.Errorf("process %d: %q", pid, p.Error)
		case failed == nil:
			err = nil
		case errors.As(failed, new(refusedError)) || failed == errLate:
			err = fmt.Errorf("process %d does not answer, or is not there: %w", pid, failed)
		case !errors.Is(failed, errNotOurs):
			err = failed
		}
	}
	askUsers(looking, byUser, requestOf(pid, nil), func(uid int, p Process, failed error) {
		if failed == nil && len(its) == 0 {
			its[uid] = []string{prefix + p.ID}
			found()
		}
		if len(its) == 0 {
			took(uid, p, failed)
		}
	})
	askUsers(ctx, its, requestOf(pid, &Request{Kill: number}), took)
	return err
}

// requestOf returns a function that sends a process a request, or, if it is nil, finds the process.
func requestOf(pid int, r *Request) askFunc {
	return func(ctx context.Context, name string, b *budget) (Process, error) {
		c, err := dial(ctx, name, "")
		if err != nil {
			return Process{}, err
		}
		defer c.Close()
		if c.pid != pid {
			return Process{}, errNotOurs
		}
		if r == nil {
			return Process{ID: c.name}, nil
		}
		return c.ask(ctx, *r, b)
	}
}

// askFunc is a function that asks the process with a socket of a name.
type askFunc func(ctx context.Context, name string, b *budget) (Process, error)

// outcome is what a process has answered, or why it has not.
type outcome struct {
	of      int // which socket
	process Process
	err     error
}

// askUsers calls ask for each socket, and took, one call after the other, with what comes of it. The
// processes of a user hold up no others, and have a time of their own: where there are more users than are asked at
// once, as one who has subordinate user IDs can have them, it is short, and those who are late are asked again after
// all others. It returns by the end of ctx, whatever hangs. Users with low numbers come first: those of user
// namespaces, of which one user may have very many, have high ones.
func askUsers(ctx context.Context, byUser map[int][]string, ask askFunc, took func(uid int, p Process, err error)) {
	atOnce := min(usersAtOnce, max(descriptors()/2, 1))
	for range rounds {
		if turns := (len(byUser) + atOnce - 1) / atOnce; turns > 1 {
			byUser = askInTurn(ctx, byUser, atOnce, asking/time.Duration(turns), ask, took)
			continue
		}
		byUser = askInTurn(ctx, byUser, atOnce, perUser, ask, took)
		break
	}
	for uid, late := range byUser {
		for range late {
			took(uid, Process{}, errLate)
		}
	}
}

// askInTurn is a round of askUsers, of which each user's part takes so long at most. It returns those who are late.
func askInTurn(ctx context.Context, byUser map[int][]string, users int, turn time.Duration, ask askFunc, took func(uid int, p Process, err error)) map[int][]string {
	var mu sync.Mutex // held during took, and guards late
	late := make(map[int][]string)
	var all sync.WaitGroup
	atOnce := min(asksAtOnce, max(users/max(len(byUser), 1), 1))
	turns := make(chan struct{}, users)
	for _, uid := range slices.Sorted(maps.Keys(byUser)) {
		turns <- struct{}{} // which comes by the end of ctx
		all.Go(func() {
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(ctx, turn)
			defer cancel()
			left := askUser(ctx, uid, byUser[uid], atOnce, ask, func(o *outcome) {
				mu.Lock()
				defer mu.Unlock()
				took(uid, o.process, o.err)
			})
			mu.Lock()
			defer mu.Unlock()
			if len(left) > 0 {
				late[uid] = left
			}
		})
	}
	all.Wait()
	return late
}

// descriptors is how many this process may have.
func descriptors() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return usersAtOnce
	}
	return int(min(l.Cur, 1<<30))
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

// hangs are the places of all users.
var hangs = make(chan struct{}, hangAtOnce)

// askUser is askUsers for one user, until ctx ends. It returns those who are late.
func askUser(ctx context.Context, uid int, names []string, atOnce int, ask askFunc, took func(*outcome)) (late []string) {
	outcomes := make(chan *outcome, len(names)) // so those who are late hold up nobody
	var next atomic.Int64
	taken, budget := placesOf(uid), new(budget)
	work := func() {
		for _, places := range []chan struct{}{taken, hangs} {
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
			case <-ctx.Done():
				return
			}
		}
		for i := next.Add(1) - 1; int(i) < len(names) && ctx.Err() == nil; i = next.Add(1) - 1 {
			p, err := ask(ctx, names[i], budget)
			if err != nil && ctx.Err() != nil && !errors.Is(err, errNotOurs) {
				return // ctx has ended it
			}
			outcomes <- &outcome{int(i), p, err}
		}
	}
	for range min(len(names), atOnce) {
		go work()
	}
	came := make([]bool, len(names))
	for range names {
		var o *outcome
		select {
		case o = <-outcomes:
		case <-ctx.Done():
			select {
			case o = <-outcomes:
			default:
				for i, name := range names {
					if !came[i] {
						late = append(late, name)
					}
				}
				return late
			}
		}
		came[o.of] = true
		took(o)
	}
	return nil
}
