package ringnet

// Conn and Buffer, which package rconn implements.

import "github.com/ringnet/ringnet/rconn"

// Conn is one end of a reliable byte stream over RDMA or shared memory. Dial and Accept
// return a *Conn on the networks "rdma" and "shm"; on "auto" they return an [AutoConn], whose
// NetConn method returns the *Conn unless TCP carries the connection.
//
// Package [rconn] documents the methods:
//
//	Read, Write, Close, LocalAddr, RemoteAddr                 of a net.Conn
//	SetDeadline, SetReadDeadline, SetWriteDeadline            of a net.Conn
//	CloseRead, CloseWrite, SetLinger                          half-closes, and what Close does
//	ReadFrom, WriteTo, WriteBuffers                           fewer copies and calls
//	Peek, Buffered, Discard, NewBuffer, WriteBuffer           without a copy
//	AwaitRead                                                 waits without a buffer
//	Carrier, Stats, Link, PeerUser                            the network, the counters, the link,
//	                                                          and over shm who the peer is
//	SyscallConn                                               shows whether the Conn is alive
//	SetNoDelay, SetKeepAlive, SetKeepAlivePeriod,
//	SetKeepAliveConfig, SetReadBuffer, SetWriteBuffer         change nothing: see Config
//
// They may be called by several goroutines at once. The bytes of concurrent Writes do not mix,
// and concurrent Reads get different bytes. Read and Write do not keep the slice that they are
// given. A Conn that is garbage-collected without Close is closed then. If a process exits without
// Close, what Write has accepted may be lost, and its peers read ECONNRESET behind what has arrived.
//
// Errors other than io.EOF are *net.OpError. errors.Is finds in them
//
//	os.ErrDeadlineExceeded  the deadline has passed; the connection is still usable
//	net.ErrClosed           this side has called Close
//	syscall.EPIPE           Write after CloseWrite, or after the peer has closed
//	syscall.ECONNRESET      the peer is gone without Close, or has closed with bytes unread
//	syscall.ETIMEDOUT       the peer's device does not answer; or Close could not deliver in time
//	syscall.ECONNABORTED    an operator has ended the connection: see ringnet kill
//	syscall.ENETDOWN        this side's device is gone
//	syscall.ENOTCONN        CloseRead or CloseWrite after the connection was lost, or both ends
//	                        have ended their directions
//	syscall.EPROTO          the peer broke the protocol
//
// When the path or a device is lost, the connection waits for another before it fails: see
// [Config].ResumeTimeout. While the peer's process is stopped the connection does not fail,
// because the peer's device still answers: Reads and Writes wait until their deadlines. But if
// this side closes another connection to it meanwhile, and the peer does not go on within
// ResumeTimeout and 10 s, those that share a link with that one fail.
type Conn = rconn.Conn

// Buffer is registered memory from which the device sends without a copy. A Buffer belongs to
// the connection whose [rconn.Conn.NewBuffer] made it. The program fills it by Write or Fill, and
// hands it over by [rconn.Conn.WriteBuffer]. The device hands it back, empty, when it has sent the
// bytes; Wait waits for that. In the meantime Write, Fill and WriteBuffer fail with
// [ErrHandedOver]. The program never gets a slice of the memory.
//
//	b, err := conn.NewBuffer(1 << 20)
//	…
//	for err == nil {
//		b.Wait()
//		if _, err = b.Fill(file); err == nil {
//			_, err = conn.WriteBuffer(b)
//		}
//	}
//	b.Close()
//
// With two Buffers, a program can fill one while the device sends the other. The methods may be
// called by several goroutines at once; [rconn.Buffer] documents them: Write, Fill, Len, Wait,
// Close. The memory counts against [SetMemoryLimit], and is pinned on rdma. The memory and the
// link stay until Close, or until the garbage collector finds the Buffer. Over shm a Buffer saves
// nothing: both a Write and a Buffer copy once.
type Buffer = rconn.Buffer

// ErrHandedOver is the error of methods of a [Buffer] that the device is still sending from.
var ErrHandedOver = rconn.ErrHandedOver
