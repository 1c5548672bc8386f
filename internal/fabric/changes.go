package fabric

import "sync"

// Changes are a connection's changes that [Endpoint].Wait has not returned yet. The zero
// Changes are none. Its methods may be called at once.
type Changes struct {
	mu      sync.Mutex // guards what follows
	pending []error
	added   map[error]bool // which kinds must not be added again
}

// Add adds err, which is of a kind. Only those after which the connection may go on are
// added more than once.
func (c *Changes) Add(kind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.added[kind] {
		return
	}
	if c.added == nil {
		c.added = make(map[error]bool)
	}
	c.added[kind] = !MayGoOn(kind)
	c.pending = append(c.pending, err)
}

// Next removes the oldest change and returns it, or nil if there is none.
func (c *Changes) Next() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return nil
	}
	err := c.pending[0]
	c.pending = c.pending[1:]
	return err
}
