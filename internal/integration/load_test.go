//go:build linux

package integration_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ringnet/ringnet"
)

// small is a configuration with so little memory that many connections fit into a small
// machine.
var small = &ringnet.Config{RecvBuffer: 4096, SendBuffer: 4096, SendQueue: 16, RecvQueue: 4}

// echoAll sends back what arrives on connections that l accepts.
func echoAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c) // the dialer notices an error
		}()
	}
}

// dialAtOnce makes connections at once, exchanges one message on each, and returns the
// first error.
func dialAtOnce(dials int, address string) error {
	d := ringnet.Dialer{Config: small, Timeout: 5 * time.Minute}
	errs := make(chan error, dials)
	var all sync.WaitGroup
	for range dials {
		all.Go(func() {
			if err := exchange(&d, address); err != nil {
				errs <- err
			}
		})
	}
	all.Wait()
	close(errs)
	failed := len(errs)
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d failed: %w", failed, dials, <-errs)
}

// exchange dials an echo server and exchanges a message.
func exchange(d *ringnet.Dialer, address string) error {
	c, err := d.Dial("rdma", address)
	if err != nil {
		return err
	}
	defer c.Close()
	return echoed(c)
}

// echoed sends a message, and returns an error unless it comes back.
func echoed(c net.Conn) error {
	message := fmt.Sprintf("%v to %v", c.LocalAddr(), c.RemoteAddr())
	if _, err := io.WriteString(c, message); err != nil {
		return err
	}
	b := make([]byte, len(message))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != message {
		return fmt.Errorf("%q came back", b)
	}
	return nil
}
