package rconn

import (
	"time"

	"github.com/ringnet/ringnet/internal/link"
)

// Stats counts what a connection has done.
type Stats struct {
	BytesWritten  uint64 // accepted by Write, without what Close has discarded
	BytesReceived uint64 // arrived, read or not; over TCP: read

	// Messages are work requests with data, and credits messages that give the room
	// back which data has taken. 0 over TCP.
	MessagesSent, MessagesReceived uint64
	CreditsSent, CreditsReceived   uint64

	// Waits are how often a Read has found nothing, and a Write no room, and had to
	// poll or to sleep. A long Write may wait several times. 0 over TCP.
	ReadWaits, WriteWaits uint64

	Memory int // bytes of the rings at this end, at the moment; 0 over TCP, whose buffers are the kernel's

	// RTT is the time of a round trip, smoothed (RFC 6298), that TCP has last measured.
	// 0 where it is not known: on shm and rdma, and on other systems than Linux.
	RTT time.Duration
}

// Stats returns a snapshot of the connection's counters. It works after Close.
func (c *Conn) Stats() Stats { return statsOf(c.stream) }

func statsOf(stream *link.Stream) Stats {
	s := stream.Stats()
	return Stats{
		BytesWritten:     s.BytesWritten,
		BytesReceived:    s.BytesReceived,
		MessagesSent:     s.MessagesSent,
		MessagesReceived: s.MessagesReceived,
		CreditsSent:      s.CreditsSent,
		CreditsReceived:  s.CreditsReceived,
		ReadWaits:        s.ReadWaits,
		WriteWaits:       s.WriteWaits,
		Memory:           s.Memory,
	}
}

// End is how a connection has ended.
type End struct {
	Stats   Stats
	Err     error // of Close
	Dropped bool  // it was not closed, but garbage
}

// LinkInfo is what a link of this process is and carries at the moment: a queue
// pair to another process, which connections between them share. It is one flat list, for
// programs to print.
type LinkInfo struct {
	Network       string // "rdma" or "shm"
	Transport     string // "InfiniBand", "RoCE" or "iWARP" on rdma, else ""
	Local, Remote Addr
	Dialed        bool // by this process
	Connections   int
	Memory        int // bytes registered at this end: rings, staging memory and receives, but not a device's queues

	// Path is which cards the link goes over now. Local and Remote stay what they were
	// when it was made. Standby is where it goes on when it loses that path, the zero Path
	// if nothing stands by ([Config.NoStandby]). Moves is how often it has gone on over
	// another queue pair, and Seeking says that it has lost its own and seeks another
	// ([Config.ResumeTimeout]).
	Path    Path
	Standby Path
	Moves   uint64
	Seeking bool

	BytesSent, BytesReceived       uint64 // of data
	MessagesSent, MessagesReceived uint64 // of data
	ControlSent                    uint64 // messages of control

	WorkRequests uint64 // posted, of all kinds
	Signaled     uint64 // of those, the signaled ones
	Events       uint64 // times that the link's goroutine was woken
	Probes       uint64 // sent: writes of nothing, for keepalive or to have staging memory back
}

// Path is the addresses, of either side, between which a queue pair is connected.
type Path struct{ Local, Remote Addr }

func newPath(network string, p link.Path) Path {
	if p == (link.Path{}) {
		return Path{}
	}
	return Path{NewAddr(network, p.Local), NewAddr(network, p.Remote)}
}

// NewLinkInfo makes public what is known of a link.
func NewLinkInfo(i link.Info) LinkInfo {
	return LinkInfo{
		Network:          i.Network,
		Transport:        i.Transport,
		Local:            NewAddr(i.Network, i.Local),
		Remote:           NewAddr(i.Network, i.Remote),
		Dialed:           i.Dialed,
		Connections:      i.Streams,
		Memory:           i.Memory,
		Path:             newPath(i.Network, i.Path),
		Standby:          newPath(i.Network, i.Standby),
		Moves:            i.Moves,
		Seeking:          i.Seeking,
		BytesSent:        i.BytesSent,
		BytesReceived:    i.BytesReceived,
		MessagesSent:     i.MessagesSent,
		MessagesReceived: i.MessagesReceived,
		ControlSent:      i.RecordsSent + i.CreditsSent,
		WorkRequests:     i.WorkRequests,
		Signaled:         i.Signaled,
		Events:           i.Events,
		Probes:           i.Probes,
	}
}

// Link tells of the link that carries the connection. It works after Close, and
// after the link has ended.
func (c *Conn) Link() LinkInfo { return NewLinkInfo(c.stream.Link().Info()) }
