// Package fabric is the interface between ringnet's protocol and what moves its bytes:
// an RDMA device (package verbs), shared memory (shm), or a model of them for tests (sim).
// It has the vocabulary of verbs. A fabric makes queue pairs and connects them;
// package link carries streams over a connected queue pair, and over another when that
// is lost, and uses nothing of a fabric but what is here.
//
// A connection is set up in this order, and [Endpoint] documents each step:
//
//	active side:   Dial → Open → Register, PostRecv → Connect → Confirm
//	passive side:  Listener.Accept → Open → Register, PostRecv → Accept
//
// After that both sides post work requests and poll completions until
// Disconnect, which flushes every posted receive through Poll, and Close.
package fabric

import (
	"context"
	"net/netip"
	"time"
)

// Fabric makes connections of one kind. Its methods may be called at once from
// several goroutines.
type Fabric interface {
	// Dial finds a route to remote and returns an endpoint that has neither a
	// queue pair nor a connection yet. If local is not valid, the fabric chooses
	// it. Dial returns early when ctx ends.
	Dial(ctx context.Context, local, remote netip.AddrPort) (Endpoint, error)

	// Listen accepts connection requests at local; port 0 chooses one. An
	// unspecified address means all addresses of its family, the zero Addr
	// those of both. Up to backlog requests wait for [Listener.Accept]; further
	// ones are rejected for want of room.
	Listen(local netip.AddrPort, backlog int) (Listener, error)
}

// Host is a Fabric that knows which cards this host has.
type Host interface {
	Fabric

	// Cards returns the cards that this host has at the moment. It may open each.
	Cards() []Card
}

// Card is a port of a device: the addresses that it has on the network, except for
// link-local ones.
type Card []netip.Addr

// Listener receives connection requests.
type Listener interface {
	// Accept returns the next request: an endpoint that is neither open nor
	// answered. After Close it returns net.ErrClosed; any other error means
	// that this listener will never accept again.
	Accept() (Endpoint, error)

	// Addr is the address listened on, with the port in use.
	Addr() netip.AddrPort

	// Close refuses the requests that Accept has not returned and wakes it.
	// Endpoints that Accept has returned live on.
	Close() error
}

// Endpoint is one end of one connection: a queue pair with its completion
// queue, its memory and its place in the connection manager.
//
// Setup (Open to Confirm or Accept) is done by one goroutine. Afterwards
// PostRecv, Poll, Arm and Disconnect are called by one goroutine at a time,
// PostSend by one at a time, possibly while another calls those (but not
// Disconnect), Wait by one goroutine, possibly while others post or poll, and
// RingDue, Ring and Wake by anyone at any time, also after Close. Register is called by any number of goroutines,
// but it for remote writes, or Reach, by one at a time, possibly while others call all these, and
// Free or Keep of memory: a device may take long over it.
//
// A peer of the same host decides how long some system calls take. Ring, Reach, Wait, Register,
// Close and the calls of set-up may make such ones; the others, which are called with the lock of a
// link held, make none.
type Endpoint interface {
	// LocalAddr and RemoteAddr are known from the start.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort

	// Footprint says what memory Open takes with these options. It may be
	// called before Open and after it.
	Footprint(o Options) Footprint

	// Open creates the protection domain, completion queue and queue pair, the
	// latter in state INIT, and returns what the device granted, which may be
	// less than asked for.
	Open(o Options) (Limits, error)

	// Register returns n bytes of zeroed, page-aligned memory off the Go heap
	// that the device may access; n is rounded up to whole pages. The endpoint
	// owns it: it is unmapped by Free or Close. It may be called at any time after
	// Open, and until Close; of memory for remote writes there may be
	// Options.RemoteMemory bytes in all.
	Register(n int, a Access) (Memory, error)

	// Reach returns an error unless this side may write to n bytes of the peer's
	// memory. It is called before the first write there, and does not wait for memory to
	// be made: a fabric that shares memory must not touch memory that may not exist. When
	// ctx ends it returns early; then neither it nor Register for remote writes is called again.
	Reach(ctx context.Context, addr uint64, rkey uint32, n int) error

	// Reaches reports whether it is known already that Reach would return nil. It is called as
	// PostRecv is.
	Reaches(addr uint64, rkey uint32, n int) bool

	// PostRecv posts n receives. The endpoint owns the buffers that Sends are
	// received into.
	PostRecv(n int) error

	// PostSend posts the work requests in order: all, or none and an error.
	// It keeps no reference to wr.
	PostSend(wr []WorkRequest) error

	// RingDue reports whether the peer may sleep through what PostSend has posted unless Ring is
	// called, which wakes it. An error comes from Poll and Wait. Close waits for calls of Ring.
	RingDue() bool
	Ring()

	// Poll moves completions to c and says how many: less than c has room for only if
	// there are no more. It never blocks. A
	// completion makes the bytes of its message, and of all before it, visible.
	// The completions of sends and receives are not ordered with each other.
	Poll(c []Completion) (int, error)

	// Arm asks for one event: the next completion makes Wait return. What
	// completed before Arm may give none, so Poll once more after Arm.
	Arm() error

	// Wait blocks until the armed event, Wake, or a change of the connection,
	// and holds no thread meanwhile. It may return nil for no reason. A change
	// of the connection is returned once as an error: [ErrPortDown] or [ErrAddressChanged],
	// after which the connection may still recover, or the reason it is lost, which
	// wraps one of [ErrDisconnected], [ErrDeviceRemoved], [ErrQueuePair] and [ErrPathLost].
	Wait() error

	// Wake makes the present or the next Wait return, with a change if there is one.
	Wake()

	// Connect sends a connection request with the private data, at most
	// [MaxConnectData] bytes, and returns the peer's answer, possibly padded
	// with zeros. When it returns nil the queue pair is ready to receive. A
	// rejection is a *[RejectError].
	Connect(ctx context.Context, private []byte) (peer []byte, err error)

	// Confirm tells the peer that its answer to Connect is good. Only then may
	// this side send.
	Confirm() error

	// Private is the private data of the request that Accept returned,
	// possibly padded with zeros. The endpoint owns it.
	Private() []byte

	// Accept answers a request with the private data, at most [MaxAcceptData]
	// bytes, and returns when the peer has confirmed: from then on this side
	// may send. Where messages may be lost an error behind the answer is a *[RejectError],
	// or an *[UnconfirmedError]: the peer may have confirmed all the same.
	Accept(ctx context.Context, private []byte) error

	// Reject refuses a request, or instead of Confirm the peer's answer, with
	// the private data, at most [MaxRejectData] bytes.
	Reject(private []byte) error

	// Disconnect moves the queue pair to ERR, which flushes whatever is posted
	// through Poll, and tells the peer. If the device is gone, or has failed,
	// Disconnect may return nil and flush nothing. When the peer's kernel has answered,
	// Wait returns [ErrDisconnected], if it has not before. Disconnect may be
	// called again.
	Disconnect() error

	// Close destroys everything the endpoint made, its memory included, in
	// whatever state of set-up or connection it is. Only Wake may be running.
	Close() error
}

// Mover is an Endpoint that may lose its peer while both processes live: because a cable
// or a device fails. Its memory, with all that lies in it, can be moved to another
// endpoint of the fabric.
type Mover interface {
	Endpoint

	// Leave gives up memory of Register or Adopt, which stays where it is, so that
	// another endpoint adopts it, or the caller frees it. It is called by one goroutine
	// at a time, when the queue pair is in ERR and has given back all that was posted. If
	// the device is gone, it may return an error, and the memory is given up all the
	// same.
	Leave(m Memory) error

	// Adopt takes over memory that an endpoint has left, as if it had been
	// registered here: its bytes and its address are what they were, its key is
	// another. It is called by one goroutine at a time.
	Adopt(m Memory) error
}

// Neighbor is an Endpoint whose peer is a process of this host, of which the fabric asks the kernel
// who it is.
type Neighbor interface {
	Endpoint

	// PeerUser returns the effective user ID that the peer's process had when it connected
	// or began to listen, as this process's user namespace numbers it. It is called before
	// Close.
	PeerUser() (uid uint32, err error)

	// MemoryForPeer returns how many bytes Accept makes for the dialer's queues, besides those of
	// this end.
	MemoryForPeer() int
}

// Sizes of the private data that the connection manager carries, in bytes:
// what the InfiniBand CM messages REQ, REP and REJ have room for, less the 36
// that rdma_cm takes from REQ for addresses (rdma_connect(3), rdma_accept(3)), and
// the 12 at the end of REQ and REP by which a fabric tells where Sends go, and one of REP
// for the length of packets.
const (
	MaxConnectData = 44
	MaxAcceptData  = 183
	MaxRejectData  = 148
)

// Options says what a queue pair should be like.
type Options struct {
	SendQueue int // send work requests that may be outstanding
	RecvQueue int // receives that may be posted

	// A Send carries at most RecvSize bytes, and at most Sends of those that a side has
	// posted are not yet polled by the peer. Both sides have the same values, 1 at least.
	RecvSize int
	Sends    int

	// RemoteMemory is how many bytes may be registered for remote writes in
	// all. A fabric that shares memory sets aside as many addresses.
	RemoteMemory int

	// A message that is not acknowledged is sent again after AckTimeout, at
	// most Retries (0 to 7) times; then the connection is lost. A device may
	// round AckTimeout up, to a power of two times 4.096 µs, and real ones may
	// wait up to four times as long (InfiniBand specification, 9.7.6.1.3).
	AckTimeout time.Duration
	Retries    int
}

// Footprint is what memory Open takes, in bytes.
type Footprint struct {
	Receives int  // registered for receives
	Queues   int  // of the device, as far as their size is known, and for the peer
	Locked   bool // RLIMIT_MEMLOCK limits this and what is registered
}

// Limits is what a device granted.
type Limits struct {
	SendQueue int
	RecvQueue int

	// Inline is the number of bytes that a work request may carry by itself,
	// without registered memory.
	Inline int

	// SharesMemory says that a post itself puts the bytes where the peer reads them.
	SharesMemory bool

	// Transport is InfiniBand or RoCE; "" where there is no device.
	Transport string

	// Spin is the number of polls worth making before waiting for an event; 0 where
	// an event comes as early as a poll finds something.
	Spin int
}

// Access says who, besides the device at home, may write to memory.
type Access int

const (
	// LocalWrite lets receives be placed in the memory.
	LocalWrite Access = iota
	// RemoteWrite lets the peer of this endpoint, and nobody else, write to
	// the memory too.
	RemoteWrite
)

// Memory is registered memory.
type Memory interface {
	// Bytes is the memory itself. A fabric may make memory for remote writes only
	// when the endpoint is connected: Bytes may be called from then on.
	Bytes() []byte

	// Addr and RKey name the memory to the peer.
	Addr() uint64
	RKey() uint32

	// Free gives the memory back, which neither the peer nor a work request that is
	// under way may use any more. It may be called at any time until the endpoint's Close. A
	// fabric that cannot free memory to which the peer may write returns false, and it stays as it is.
	Free() bool

	// Keep says that slices of the memory may outlive it. To touch them after Free
	// or Close then raises no signal, but what they hold means nothing. It is called
	// as PostRecv is, any number of times.
	Keep()
}

// Opcode is the operation of a work request.
type Opcode uint8

const (
	// Send delivers the data to the peer's next posted receive.
	Send Opcode = iota
	// Write places the data in the peer's memory, unseen by the peer.
	Write
	// WriteImm places the data in the peer's memory and then completes the
	// peer's next posted receive with the immediate.
	WriteImm
)

// MaxID is the largest ID of a work request: above it are those of receives.
const MaxID = 1<<63 - 1

// WorkRequest is a request to the send queue.
type WorkRequest struct {
	ID       uint64 // comes back in the completion; MaxID at most
	Op       Opcode
	Signaled bool   // complete on success too; failures always complete
	Imm      uint32 // WriteImm only; bits 16 to 29 are 0

	// Data is what to send. Where Memory is nil it is carried inline: at most
	// Limits.Inline bytes, the caller's again when PostSend returns. Otherwise
	// it lies in Memory and must not change before this request or a later one
	// of the same queue has completed.
	Data   []byte
	Memory Memory

	// Rest is more to send, behind Data, if that is carried inline: their bytes
	// together are at most Limits.Inline.
	Rest [][]byte

	// Write and WriteImm: where in the peer's memory.
	RemoteAddr uint64
	RKey       uint32
}

// Len is how many bytes the request carries.
func (wr *WorkRequest) Len() int {
	n := len(wr.Data)
	for _, p := range wr.Rest {
		n += len(p)
	}
	return n
}

// CopyTo copies what the request carries to b, as much as that holds, and returns
// how many bytes.
func (wr *WorkRequest) CopyTo(b []byte) int {
	n := copy(b, wr.Data)
	for _, p := range wr.Rest {
		n += copy(b[n:], p)
	}
	return n
}

// Completion is the end of a work request or of a receive.
type Completion struct {
	ID     uint64 // of the work request; 0 for receives, which complete in the order posted
	Recv   bool   // a receive; meaningful whatever the status
	Status Status
	Vendor uint32 // the device's own word about a failure, for messages only

	// Of receives that succeeded:
	Op   Opcode // what the peer did: Send or WriteImm
	Imm  uint32 // WriteImm: the immediate
	Len  int    // bytes that the peer sent or wrote
	Data []byte // Send: those bytes, valid until the next PostRecv
}
