//go:build linux

package shm

// Whom to connect with.

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/fabric"
)

// maxJudging is how many other users' processes are judged at a time.
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

// ask has the application judge, and waits for a place, if there are maxJudging who do
// that, and for the verdict. Nothing can interrupt the application: ctx ends the wait.
func (f *shm) ask(ctx context.Context, uid uint32) (trusted bool, err error) {
	select {
	case f.judging <- struct{}{}:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	verdict := make(chan bool, 1)
	go func() {
		verdict <- f.config.Trust(uid)
		<-f.judging
	}()
	select {
	case trusted := <-verdict:
		return trusted, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// isStranger says whether it is for the application to say if this process may connect to
// listeners of a user.
func isStranger(uid uint32) bool { return uid != uint32(os.Geteuid()) && uid != 0 }
