package rconn

import "github.com/ringnet/ringnet/internal/link"

// Stats counts what a connection has done since it began. Package ringnet documents each field.
type Stats = link.StreamStats

// Stats returns a snapshot of the connection's counters. It works after Close.
func (c *Conn) Stats() Stats { return c.stream.Stats() }

// End describes a connection that has ended.
type End struct {
	Stats   Stats
	Err     error // the error that Close has returned
	Dropped bool  // the program did not close it, and the garbage collector found it
}

// Link returns a snapshot of the link that carries the connection. It works after Close, and
// after the link has ended.
func (c *Conn) Link() link.Info { return c.stream.Link().Info() }
