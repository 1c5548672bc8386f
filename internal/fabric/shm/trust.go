//go:build linux

package shm

// Whom to connect with.

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// maxJudging is how many other users are judged at a time.
const maxJudging = 64

// listenerUser is the user who listens at a name. Nobody can send anything to the
// socket that finds out.
func listenerUser(name string) (uid uint32, err error) {
	s, err := newSocket(nil)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := unix.Shutdown(s.fd, unix.SHUT_RD); err != nil {
		return 0, os.NewSyscallError("shutdown", err)
	}
	if err := s.connect(name); err != nil {
		return 0, err
	}
	return s.peer()
}

// vet returns an error unless a trusted user listens at a name.
func (f *shm) vet(ctx context.Context, name string) error {
	uid, err := listenerUser(name)
	if err != nil {
		return err
	}
	return f.judge(ctx, uid, true)
}

// trust decides whether to connect with the process at the other end of a
// socket.
func (f *shm) trust(ctx context.Context, s *socket, root bool) error {
	uid, err := s.peer()
	if err != nil {
		return err
	}
	return f.judge(ctx, uid, root)
}

// judge decides whether to connect with processes of a user, or of root.
func (f *shm) judge(ctx context.Context, uid uint32, root bool) error {
	own := uint32(os.Geteuid())
	switch {
	case uid == f.overflow:
		return fmt.Errorf("%w: the peer's user has no ID in this user namespace (it shows as %d): %w", fabric.ErrOtherUser, uid, syscall.EACCES)
	case uid == own, root && uid == 0:
		return nil
	case f.config.Trust != nil:
		if trusted, err := f.ask(ctx, uid); trusted || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the peer's user ID is %d, ours %d: %w", fabric.ErrOtherUser, uid, own, syscall.EACCES)
}

// verdicts are the calls of the application under way that judge users: one for each user,
// whoever wants to know, so that one that is not answered holds up that user alone.
type verdicts struct {
	places chan struct{} // has one for each
	mu     *sync.Mutex   // guards what follows
	of     map[uint32]*verdict
}

// verdict is one. trusted is set when done is closed.
type verdict struct {
	done    chan struct{}
	trusted bool
}

func newVerdicts() verdicts {
	return verdicts{make(chan struct{}, maxJudging), new(sync.Mutex), make(map[uint32]*verdict)}
}

// ask has the application judge, and waits for the verdict, and before for a place, if
// maxJudging users are being judged. Nothing can interrupt the application: ctx ends the wait.
func (f *shm) ask(ctx context.Context, uid uint32) (trusted bool, err error) {
	v := f.judging.underWay(uid)
	if v == nil {
		select {
		case f.judging.places <- struct{}{}:
			v = f.judging.begin(uid, f.config.Trust)
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	select {
	case <-v.done:
		return v.trusted, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// underWay is the verdict about a user that the application is to give, or nil.
func (j *verdicts) underWay(uid uint32) *verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.of[uid]
}

// begin has the application judge a user, for which its caller has taken a place, unless it
// does already.
func (j *verdicts) begin(uid uint32, trust func(uint32) bool) *verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	if v := j.of[uid]; v != nil {
		<-j.places
		return v
	}
	v := &verdict{done: make(chan struct{})}
	j.of[uid] = v
	go func() {
		trusted := trust(uid)
		j.mu.Lock()
		defer j.mu.Unlock()
		v.trusted = trusted
		delete(j.of, uid)
		close(v.done)
		<-j.places
	}()
	return v
}

// isStranger says whether it is for the application to say if this process may connect to
// listeners of a user.
func isStranger(uid uint32) bool { return uid != uint32(os.Geteuid()) && uid != 0 }
