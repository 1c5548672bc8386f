package rconn

import (
	"net/netip"
	"time"

	"github.com/ringnet/ringnet/internal/link"
)

// Stats counts what a connection has done since it began.
type Stats struct {
	// BytesWritten counts what Write has accepted, without what Close has discarded.
	// BytesReceived counts what has arrived, read or not; over TCP what was read.
	BytesWritten, BytesReceived uint64

	// MessagesSent and MessagesReceived count work requests with data; 0 over TCP.
	MessagesSent, MessagesReceived uint64

	// CreditsSent and CreditsReceived count messages that give room in a ring back; 0 over TCP.
	CreditsSent, CreditsReceived uint64

	// ReadWaits counts how often a Read found nothing and had to poll or to sleep, WriteWaits how
	// often a Write found no room. A long Write may wait several times. Both are 0 over TCP.
	ReadWaits, WriteWaits uint64

	// Memory is how many bytes the rings at this end have at the moment; 0 over TCP.
	Memory int

	// RTT is the smoothed round trip that TCP has measured (RFC 6298); 0 over shm and rdma, and on
	// other systems than Linux.
	RTT time.Duration
}

// LinkInfo describes a link of this process at one moment: a queue pair to another process,
// which connections between the two share.
type LinkInfo struct {
	Network       string // "rdma" or "shm"
	Transport     string // "InfiniBand" or "RoCE" on rdma, "" on shm
	Local, Remote Addr   // its addresses when it was made
	Dialed        bool   // whether this process dialed it
	Connections   int    `metric:"link_connections" help:"Connections that links carry at the moment."` // open connections

	// Memory is how many bytes the link takes of those that ringnet.Memory counts: rings, staging
	// memory, receives, buffers and the device's queues.
	Memory int

	SendQueue   int // work requests that its send queue has room for
	Outstanding int // of those, how many have been posted and have not completed

	// Path has the cards that the link goes over now. Seeking says that it has lost its queue
	// pair and is looking for another: see ringnet.Config.ResumeTimeout.
	Path         Path
	Seeking      bool      `metric:"links_seeking" help:"Links that have lost their queue pair and seek another, while their connections wait."`
	SeekingSince time.Time // when it has lost it; zero unless Seeking

	LinkStats // since it was made
}

// LinkStats counts what a link has done since it was made.
type LinkStats struct {
	BytesSent, BytesReceived       uint64 // of data, read or not
	MessagesSent, MessagesReceived uint64 // work requests with data
	ControlSent                    uint64 // control messages
	Moves                          uint64 // how often it has lost its queue pair and gone on over another
	WorkRequests, Signaled         uint64 // work requests posted, and those of them that are signaled
	Events                         uint64 // how often the link's goroutine was woken
	Probes                         uint64 // empty writes, for keepalive or to get staging memory back
}

// Path has the addresses of the two cards that a queue pair connects.
type Path struct {
	Local, Remote Addr // of this end, and of the peer
}

// LinkInfoOf returns what package internal/link tells of a link as programs see it. Package ringnet
// calls it.
func LinkInfoOf(i link.Info) LinkInfo {
	at := func(a netip.AddrPort) Addr { return NewAddr(i.Network, a) }
	return LinkInfo{
		i.Network, i.Transport, at(i.Local), at(i.Remote), i.Dialed, i.Connections, i.Memory,
		i.SendQueue, i.Outstanding, Path{at(i.Path.Local), at(i.Path.Remote)}, i.Seeking, i.SeekingSince,
		LinkStats(i.Stats),
	}
}
