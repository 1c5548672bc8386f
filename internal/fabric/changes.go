package fabric

import "sync"

// Changes are what has become of a connection and is to be returned by [Endpoint].Wait.
// The zero Changes are none. Its methods may be called at once.
type Changes struct {
	mu      sync.Mutex // guards what follows
	pending []error
	told    map[error]bool // by kind
}

// Add adds err. What says that the connection is lost is added once for each kind.
func (c *Changes) Add(kind, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[kind] {
		return
	}
	if c.told == nil {
		c.told = make(map[error]bool)
	}
	c.told[kind] = kind != ErrPortDown
	c.pending = append(c.pending, err)
}

// Has says whether one of a kind that says that the connection is lost has been added.
func (c *Changes) Has(kind error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[kind]
}

// Next takes the oldest out, and returns nil if there is none.
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
