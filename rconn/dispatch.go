package rconn

import (
	"errors"
	"syscall"
	"time"
)

// patience is how long a device may owe the completion of a probe: as long as
// the slowest takes to give up a peer. Soft-RoCE can owe it for ever: when the
// interface below keeps the packets it was given, a repetition finds no room,
// and no timer is set for the next.
const patience = 4 * AckTimeout * (Retries + 1)

var errNoWord = errors.New("the device does not say what became of a probe")

// dispatch is the goroutine of a connection. It makes progress when nobody else
// does, hears of what nobody asked for, and takes the connection down when both
// its user and its peer are done with it.
func (c *Conn) dispatch() {
	for !c.round(c.ep.Wait()) {
	}
	c.tearDown()
}

// round deals with one event, and says whether it was the last.
func (c *Conn) round(event error) (over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Events++
	c.armed = false
	c.dispatching = true
	c.changed(event)
	c.progress()
	c.watch()
	c.dispatching = false
	return c.closed && (c.ended && c.peerGone || c.forced)
}

// tearDown frees everything. The locks keep out calls that are still copying.
func (c *Conn) tearDown() {
	c.reading.Lock()
	c.writing.Lock()
	c.mu.Lock()
	for c.posting {
		c.posted.Wait()
	}
	c.ended, c.down = true, true
	c.rearm.Stop()
	if c.keepAlive != nil {
		c.keepAlive.Stop()
	}
	if c.drain != nil {
		c.drain.Stop()
	}
	if c.teardown != nil {
		c.teardown.Stop()
	}
	c.readDeadline.Set(never)
	c.writeDeadline.Set(never)
	c.mu.Unlock()
	c.writing.Unlock()
	c.reading.Unlock()
	// From here on no call touches the endpoint, but for Wake. The memory is
	// gone either way; there is nobody to tell.
	_ = c.ep.Close()
}

// probe asks the peer's device for a sign of life. Called with mu held.
func (c *Conn) probe() {
	c.probeDue = true
	c.flush()
	c.arm()
}

// probeTick asks the peer's device for a sign of life.
func (c *Conn) probeTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probe()
}

// keepAliveTick probes the peer's device if nothing has been heard of it since
// the last tick. It comes twice in Config.KeepAlive, so that no silence is
// longer than that: who has been heard just after a tick is not probed by the
// next.
func (c *Conn) keepAliveTick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	switch {
	case c.out[probe] && time.Since(c.probed) > patience:
		c.lose(&lostError{syscall.ETIMEDOUT, errNoWord})
	case c.heard == c.keepHeard:
		c.probe()
	}
	c.keepHeard = c.heard
	c.keepAlive.Reset(c.cfg.KeepAlive / 2)
}
