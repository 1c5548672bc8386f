package rconn

import (
	"time"

	"github.com/ringnet/ringnet/internal/link"
)

// Stats counts what a connection has done since it began.
type Stats struct {
	BytesWritten  uint64 // that Write has accepted, without those that Close has discarded
	BytesReceived uint64 // that have arrived, read or not; over TCP: that were read

	// Messages are work requests with data. Credits are messages that give room in a ring
	// back. 0 over TCP.
	MessagesSent, MessagesReceived uint64
	CreditsSent, CreditsReceived   uint64

	// ReadWaits counts how often a Read found nothing, and WriteWaits how often a Write found
	// no room, and had to poll or to sleep. A long Write may wait several times. 0 over TCP.
	ReadWaits, WriteWaits uint64

	Memory int // bytes of the rings at this end, at the moment; 0 over TCP

	// RTT is the smoothed round trip that TCP has measured (RFC 6298). 0 over shm and rdma, and
	// on other systems than Linux.
	RTT time.Duration
}

// Stats returns a snapshot of the connection's counters. It works after Close.
func (c *Conn) Stats() Stats { return statsOf(c.stream.Stats()) }

func statsOf(s link.StreamStats) Stats {
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

// End describes a connection that has ended.
type End struct {
	Stats   Stats
	Err     error // the error that Close has returned
	Dropped bool  // the program did not close it, and the garbage collector found it
}

// LinkInfo describes a link of this process at one moment: a queue pair to another process,
// which connections between the two share. Counters are since the link was made.
type LinkInfo struct {
	Network       string // "rdma" or "shm"
	Transport     string // "InfiniBand", "RoCE" or "iWARP" on rdma, else ""
	Local, Remote Addr
	Dialed        bool // whether this process dialed it
	Connections   int  // that are open
	Memory        int  // bytes registered at this end: rings, staging memory and receives, without the device's queues

	// Path has the cards that the link goes over now; Local and Remote are those that it
	// was made over. Standby has the cards that it goes over when it loses these, and is
	// the zero Path if there is no standby ([Config.NoStandby]). Moves counts how often the
	// link has lost its queue pair and gone on over another. Seeking means that it has lost
	// its queue pair and is looking for another ([Config.ResumeTimeout]).
	Path    Path
	Standby Path
	Moves   uint64
	Seeking bool

	BytesSent, BytesReceived       uint64 // of data
	MessagesSent, MessagesReceived uint64 // of data
	ControlSent                    uint64 // control messages

	WorkRequests uint64 // work requests posted, of all kinds
	Signaled     uint64 // those of them that are signaled
	Events       uint64 // how often the link's goroutine was woken
	Probes       uint64 // empty writes sent, for keepalive or to get staging memory back
}

// Path has the addresses of the two cards that a queue pair connects: of this end, and of the
// peer.
type Path struct{ Local, Remote Addr }

func newPath(network string, p link.Path) Path {
	if p == (link.Path{}) {
		return Path{}
	}
	return Path{NewAddr(network, p.Local), NewAddr(network, p.Remote)}
}

// NewLinkInfo returns the public form of i.
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

// Link returns a snapshot of the link that carries the connection. It works after Close, and
// after the link has ended.
func (c *Conn) Link() LinkInfo { return NewLinkInfo(c.stream.Link().Info()) }
