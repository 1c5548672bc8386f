//go:build linux

package shm

// Which users a fabric connects with.

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// maxJudging is how many calls of Config.Trust may be under way at a time.
const maxJudging = 64

// listenerUser returns the user who listens at a name. The socket that it connects
// for that receives nothing.
func listenerUser(name string) (uid uint32, err error) {
	s, err := newSocket(closer{})
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

// judgeOwner returns an error unless a listener's user is the one whose listener is wanted, and trusted.
// Another user, trusted or not, may have taken its name.
func (f *shm) judgeOwner(ctx context.Context, uid, wanted uint32) error {
	if uid != wanted {
		return &fabric.OtherUserError{Peer: uid, Own: wanted}
	}
	return f.judge(ctx, uid, true)
}

// judge returns an error unless a user is trusted: this process's own, root if root
// is set, and whom Config.Trust accepts.
func (f *shm) judge(ctx context.Context, uid uint32, root bool) error {
	own := ownUser()
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
	return &fabric.OtherUserError{Peer: uid, Own: own}
}

// mayAdmit reports whether a listener may trust a user: only if it returns true can judge
// return nil for a dialer.
func (f *shm) mayAdmit(uid uint32) bool {
	return uid != f.overflow && (uid == ownUser() || f.config.Trust != nil)
}

// verdicts are the calls of Config.Trust under way: one for each user, shared by all who
// wait for it, so that a call that does not return holds up that user alone.
type verdicts struct {
	places chan struct{} // has an element for each call
	mu     sync.Mutex    // guards what follows
	of     map[uint32]*verdict
}

// verdict is one call's. trusted is set before done is closed.
type verdict struct {
	done    chan struct{}
	trusted bool
}

func newVerdicts() *verdicts {
	return &verdicts{places: make(chan struct{}, maxJudging), of: make(map[uint32]*verdict)}
}

// ask returns what Config.Trust returns about a user, from a call under way or a new one,
// for which it first waits until fewer than maxJudging are under way. The end of ctx ends
// the wait, not the call.
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

// underWay returns the verdict of the call under way about a user, or nil.
func (j *verdicts) underWay(uid uint32) *verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.of[uid]
}

// begin calls Config.Trust about a user in a goroutine. Its caller has taken a place for the
// call; if one about this user is under way by now, begin returns that and frees the place.
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
		trusted := false
		defer func() { // also if trust ends the goroutine, as a test that fails does
			j.mu.Lock()
			defer j.mu.Unlock()
			v.trusted = trusted
			delete(j.of, uid)
			close(v.done)
			<-j.places
		}()
		trusted = trust(uid)
	}()
	return v
}

// ownUser returns this process's effective user ID.
func ownUser() uint32 { return uint32(os.Geteuid()) }
