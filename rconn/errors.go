package rconn

import "github.com/ringnet/ringnet/internal/link"

// ProtocolError reports a peer that does not keep the protocol. The connections
// it came over are lost; errors.Is(err, syscall.EPROTO) holds.
type ProtocolError = link.ProtocolError

// RefusedError reports a listener that refused the connection and said why;
// errors.Is(err, syscall.ECONNREFUSED) holds.
type RefusedError = link.RefusedError
