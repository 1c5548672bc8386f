package rconn

import "github.com/ringnet/ringnet/internal/link"

// ProtocolError is the error of a peer that broke the protocol. All connections of its link end.
// errors.Is(err, syscall.EPROTO) holds.
type ProtocolError = link.ProtocolError

// RefusedError is the error of a listener that refused the connection, with its reason. Busy means
// that a later dial may succeed. errors.Is(err, syscall.ECONNREFUSED) holds.
type RefusedError = link.RefusedError
