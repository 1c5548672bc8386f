package endpoint

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"time"
)

// AcceptAll hands on the connections that a listener accepts until it fails for
// good, and returns why. It waits where it fails for the moment, but for no longer
// than until done is closed.
func AcceptAll(l net.Listener, done <-chan struct{}, log *slog.Logger, handle func(net.Conn)) error {
	const longest = time.Second
	for delay := time.Duration(0); ; {
		c, err := l.Accept()
		if temporary, ok := err.(interface{ Temporary() bool }); ok && temporary.Temporary() && !errors.Is(err, os.ErrDeadlineExceeded) {
			// No more descriptors, most likely: some of those in use will end.
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
