// Package netns tells the network namespaces of threads apart, and has goroutines work in that of the
// thread that began them.
//
// A thread has a namespace of its own if a goroutine that is locked to it (runtime.LockOSThread) has
// entered one, as plug-ins of container networks do. Sockets, names in the abstract namespace of Unix
// sockets, and the answers of netlink(7) belong to the namespace of the thread that makes or asks for
// them, and so do ids of rdma_cm. A socket keeps its namespace.
//
// So what depends on the namespace is done on the thread of the call that began it, or in a goroutine
// that [Namespace.Go] or [Entry.Go] begins; and what connections share has the Namespace in its key.
package netns

import (
	"errors"
	"fmt"
)

// Namespace is a network namespace, while something of this process is in it: 0 is that of the process's
// goroutines, the others have numbers that no two have at a time.
type Namespace uint64

// Go calls f in another goroutine that is in the namespace, which has to be the calling thread's. It
// returns an error if that cannot be: then f is not called.
func (n Namespace) Go(f func()) error {
	e, err := n.open()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Go(f)
}

// Refuse returns an error unless the namespace is the process's, for a use that needs it.
func (n Namespace) Refuse() error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("this thread is in another network namespace than the process's goroutines: %w", errors.ErrUnsupported)
}
