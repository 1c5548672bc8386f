package endpoint

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"time"
)

// AcceptAll calls handle with each connection that a listener accepts, until the
// listener fails, and returns the error. After a temporary error it waits and tries
// again; once done is closed it does not wait.
func AcceptAll(l net.Listener, done <-chan struct{}, log *slog.Logger, handle func(net.Conn)) error {
	const longest = time.Second
	for delay := time.Duration(0); ; {
		c, err := l.Accept()
		if temporary, ok := err.(interface{ Temporary() bool }); ok && temporary.Temporary() && !errors.Is(err, os.ErrDeadlineExceeded) {
			// Most likely there are no more descriptors, until some connections end.
			delay = min(max(2*delay, 5*time.Millisecond), longest)
			log.Warn("cannot accept for the moment", "error", err, "again in", delay)
			select {
			case <-time.After(delay):
			case <-done:
			}
			continue
		}
		if err != nil {
			return err
		}
		delay = 0
		handle(c)
	}
}
