package rconn

import "github.com/ringnet/ringnet/internal/link"

// Config has the sizes, queue depths and times of one end of a connection.
type Config = link.Config
