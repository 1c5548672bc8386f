package ringnet

// Config, which package link reads.

import (
	"time"

	"github.com/ringnet/ringnet/internal/link"
)

// Config has the sizes, queue depths and times of one end of a connection. A nil *Config and
// the zero value of each field mean the defaults; the two ends need not agree. A Config may be
// shared by Dialers and ListenConfigs, and must not change while it is used.
type Config struct {
	// RecvBuffer is the largest size of the ring that the peer writes to, in bytes: a power of
	// two from 4 KiB to 1 GiB. Default 1 MiB. The ring is pinned memory (RLIMIT_MEMLOCK), and
	// limits the throughput: a stream that is to fill a link of bandwidth B and round trip T needs
	// twice B·T.
	//
	// On a link that connections share a ring begins with 16 KiB, and grows to 256 KiB when the
	// peer has filled it. Over rdma it grows further, to RecvBuffer, if the peer fills it again and
	// again while it is read. It stays as it is when memory is short. After LinkIdle without data
	// it shrinks to 16 KiB.
	RecvBuffer int

	// SendBuffer is the largest size of the link's staging memory, in bytes: a power of two from 4 KiB to
	// 1 GiB. Default 1 MiB. Bytes wait there until the device has sent them. It is pinned memory, too. It
	// begins with 64 KiB, and grows to four times as much, with what is there until that has been sent,
	// whenever a Write finds no room. It stays as it is when memory is short. After LinkIdle without
	// use it shrinks to 64 KiB.
	SendBuffer int

	// SendQueue is how many work requests of the link may be outstanding: 16 to 32768. Default
	// 64. A device may grant fewer.
	SendQueue int

	// RecvQueue is how many data messages the peer may have under way on the link, whatever their
	// size: a multiple of 4 from 4 to 32768. Default 176: the completion queue has room for both, and
	// devices make it 256 entries long then. A device may grant fewer.
	RecvQueue int

	// BusyPoll is how long a Read or Write that has to wait polls the completion queue before it
	// sleeps. Polling uses a processor to save the time of a wake-up. 0, the default, polls some
	// tens of microseconds where that has lately found what was waited for; elsewhere one wait in
	// 256 at least tries it. A positive time is for processors
	// that nothing else wants: who polls for so long gives way to other threads every few
	// microseconds (sched_yield(2)). Negative never polls. Where this is 0 the environment variable
	// RINGNET_BUSYPOLL decides, if it is set: a duration, such as 50us, or off.
	BusyPoll time.Duration

	// KeepAlive is the maximum idle time before the link probes the peer's device, 1 ms at least.
	// Default 10 s; negative never probes. The path is lost (see ResumeTimeout) if the peer's device
	// does not answer for as long as AckTimeout and Retries say; and if this side's device does not
	// complete the probe in four times that, 15.0 s by default.
	KeepAlive time.Duration

	// Linger is how long at most Close waits until the peer's device has taken everything written.
	// Default 10 s. [rconn.Conn.SetLinger] changes it for one connection, also to 0.
	Linger time.Duration

	// HandshakeTimeout limits the time from the first message of a link's handshake to the last, and
	// how long a dial on a link waits for its answer. Default 30 s: rdma_cm repeats a lost message
	// after 4 to 6 s, and the repetition may be lost, too.
	HandshakeTimeout time.Duration

	// TrafficClass is the byte that marks the packets that this end sends over RDMA, 1 to 255: type
	// of service in IPv4, traffic class in IPv6. Its upper six bits are the DSCP, so DSCP 26 is 104
	// (RFC 2474); with ECN, whose bits are the lower two, it is 106 (RFC 3168). 0, the default: at
	// the dialing end rdma_cm takes the class that is configured for the device (default_roce_tos)
	// or else 0, and the accepting end answers in the dialer's class. Negative means class 0. The
	// dialing end alone decides the service level (SL) of both directions, and with it the priority
	// in VLAN tags: rdma_cm takes it from the dialer's route. Over shm there are no packets.
	TrafficClass int

	// Dedicated gives each connection a link of its own, with its own queue pair, memory and
	// failures; the traffic of other connections does not delay it. By default the connections from
	// a process to one address share a link if their Configs are the same. Only the dialing end's
	// Dedicated counts.
	Dedicated bool

	// Links is the largest number of links over which the connections from this process to one
	// address are spread, 1 to 64. Default: GOMAXPROCS / 8, 1 at least and 8 at most, because each
	// link has one lock; docs/performance.md says how to measure what is best. Only the dialing
	// end's Links counts.
	//
	// A connection begins on the link that has the fewest. When all links have 8 connections or
	// more, and memory is not short, a dial makes another link for its connection. It waits 125 ms
	// at most, and begins on one of the others if it gets none; then no dial tries again for 10 s.
	// Each link takes PinnedMemory and a queue pair at each end. When a link ends, its connections
	// end, and no others.
	Links int

	// ResumeTimeout is how long connections wait when the path to the peer is lost while both
	// processes live: the cable is out, the port is down, or the device has failed. Meanwhile both
	// sides look for another queue pair. When they have one, the connections go on where they were:
	// nothing is lost and nothing comes twice. While they wait, so do Reads and Writes, deadlines
	// still apply, and a dial makes another link. After that time the connections end. The time
	// begins anew with the next loss, unless nothing has reached the peer meanwhile. They end at
	// once when the peer's process is gone, when the peer breaks the protocol, and when a device
	// that had acknowledged bytes loses them.
	//
	// Default 30 s: longer than it takes to move a cable to another port, or to start a switch's
	// port; and, together with the time that it takes to notice the loss, longer than the two times
	// 15 s for which spanning tree keeps a port from forwarding (IEEE 802.1D). Negative does not
	// wait.
	//
	// Connections wait only if both ends want that, and the shorter time counts. A process whose
	// connections can wait listens for its peers' requests at a port that rdma_cm chooses; if it may
	// not listen, its connections do not wait. Over shm there is no path to lose. This has been tried
	// on soft-RoCE, and not yet on cards.
	ResumeTimeout time.Duration

	// LinkIdle is how long a link stays up after its last connection has ended, so that the next can
	// begin on it, while its listener is open; and how long a ring that has grown stays large when
	// no data comes. Default 30 s. Negative ends the link at once, and shrinks rings after 1 s. When
	// memory is short, idle links end and idle rings shrink sooner.
	LinkIdle time.Duration

	// AckTimeout is how long this end's device waits for the peer's to acknowledge a message over
	// RDMA, before it sends that again: 1 ms to 1 min. Default 537 ms. Devices count it as 4.096 µs
	// times a power of two, to which it is rounded up, and may wait up to four times as long
	// (InfiniBand specification, 9.7.6.1.3). Where the network drops packets, the loss of the last of
	// several takes that long, since none behind it shows the gap; a time that is shorter than the
	// network's delays under load has the device send what was not lost. docs/deploy.md says what
	// others choose. E810 (irdma) takes no heed of it.
	AckTimeout time.Duration

	// Retries is how often this end's device sends a message again that is not acknowledged, 1 to 7.
	// Default 6. The path is lost, and ResumeTimeout begins, after AckTimeout times one more than
	// this: 3.8 s by default, 15.0 s with devices that wait four times as long. Soft-RoCE takes 7 for
	// "without end".
	Retries int

	// Inline is how many bytes of a message at most this end hands to the card together with the work
	// request over RDMA, 1 to 220, so that the card need not fetch them; negative for none. Default
	// 220, or what the card takes, which may be less: on ConnectX that is what the processor writes to
	// the card itself (BlueFlame). Where this is 0 the environment variable RINGNET_INLINE decides, if
	// it is set: a number, or off.
	Inline int

	// Vectors are the completion vectors of the card whose interrupts tell this end's links that
	// something has arrived, as Linux lists processors: "0-3,8". Links take them in turn. Default "":
	// those whose interrupts go to processors of the card's NUMA node, where the host has several
	// nodes and the card is one of NVIDIA's (mlx5), whose interrupts tell their vectors; else all.
	// ringnet info shows them. Those that a card does not have are left out; without any, the default
	// counts. Who has set the affinity of interrupts, or runs on certain processors, knows better.
	Vectors string
}

// Validate returns an error that names the first field whose value is not allowed, or nil. Dial
// and Listen return the same error.
func (c *Config) Validate() error { return (*link.Config)(c).Validate() }

// PinnedMemory returns how many bytes of locked memory one end of a link with this Config takes
// at first: for staging memory, receives, the ring of the first connection, and the device's
// queues. The size of queues depends on the device; they are counted as mlx5 lays them out. So
// for its cards (NVIDIA's ConnectX-4 and later) this is an upper bound with rdma-core v24 and
// later, and others may take somewhat more or less. It returns 0 if c is not valid.
//
// Staging memory may grow to SendBuffer. On a link that several connections share, each takes RingMemory.
func (c *Config) PinnedMemory() int { return (*link.Config)(c).PinnedMemory() }

// RingMemory returns the size of a connection's ring, in bytes of locked memory: at first, and
// at most. While a ring is replaced by a larger one, both exist. Rings of one link are registered
// together, each time as much as there is already, 2 MiB at most; and all of them take 256 MiB at most at one end (32 MiB where
// addresses have 32 bits), or RecvBuffer if that is more. RingMemory returns 0 and 0 if c is not
// valid.
func (c *Config) RingMemory() (first, most int) { return (*link.Config)(c).RingMemory() }

// MostLinks returns Links or its default; 1 with Dedicated, or if c is not valid.
func (c *Config) MostLinks() int { return (*link.Config)(c).MostLinks() }
