package rconn

import (
	"fmt"
	"runtime"
	"time"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// Config has the sizes, queue depths and times of a connection's end. The zero value of each field
// means its default; the two ends of a connection need not agree. A Config may
// be shared and must not change while it is used.
type Config struct {
	// RecvBuffer is the maximum size of the ring that the peer writes to, in bytes:
	// a power of two from 4 KiB to 1 GiB. Default 1 MiB. It is pinned memory
	// (RLIMIT_MEMLOCK), and bounds the throughput: a link of bandwidth B and
	// round trip T needs B·T or more. On a link that connections share, a ring
	// begins with 16 KiB and grows to 256 KiB when it is full. It grows to
	// RecvBuffer if the peer fills it again and again while it is read, as long as
	// there is memory; not over shm, where no time passes between a Write and what
	// can be read. After LinkIdle without data it has 16 KiB again.
	RecvBuffer int

	// SendBuffer is the size of the link's staging ring, in which bytes wait
	// until the device has sent them, in bytes: a power of two from 4 KiB to
	// 1 GiB. Default 1 MiB. It is pinned too.
	SendBuffer int

	// SendQueue is how many work requests of the link may be outstanding: 16 to 32768.
	// Default 128. A device may grant fewer.
	SendQueue int

	// RecvQueue is how many data messages the peer may have under way on the
	// link, whatever their size: a multiple of 4 from 4 to 32768. Default 256. A
	// device may grant fewer.
	RecvQueue int

	// BusyPoll is how long a Read or Write that has to wait polls the
	// completion queue before it parks. It trades a processor for latency. By
	// default (0) the time follows the gaps seen, and is short where waiting
	// is usually long; negative never polls.
	BusyPoll time.Duration

	// KeepAlive is the maximum idle time before the link probes the peer's device,
	// 1 ms at least. Default 10 s; negative never probes. The path is lost, as
	// ResumeTimeout has it, when the peer does not answer a probe, or anything else,
	// for [AckTimeout]·([Retries]+1), or the own device does not complete the
	// probe for four times that, 15.0 s.
	KeepAlive time.Duration

	// Linger bounds how long Close waits for the peer's device to have taken
	// everything written. Default 10 s. [Conn.SetLinger] changes it, and can
	// also set it to nothing at all.
	Linger time.Duration

	// HandshakeTimeout bounds what passes between the first message of the
	// handshake and the last. Default 30 s: rdma_cm repeats a message that was
	// lost after 4 to 6 s, and the repetition may be lost, too.
	HandshakeTimeout time.Duration

	// TrafficClass is the byte that marks the packets this end sends over RDMA,
	// 1 to 255: IPv4 calls it type of service, IPv6 traffic class. Its upper six
	// bits are the DSCP, by which a network tells traffic that must not be
	// dropped from other; where it is to say rather than drop that it is
	// congested, the lowest two are 2 (RFC 2474, RFC 3168). So DSCP 26 is 106.
	// By default (0) rdma_cm chooses for the dialing end, by what is configured
	// for its device (default_roce_tos) or else 0, and the accepting end answers
	// in the class of the dialer; negative is class 0. The priority in a VLAN's
	// tag is the dialer's choice alone. Shared memory has no packets.
	TrafficClass int

	// Dedicated gives a connection a link of its own: its own queue pair and
	// memory, its own failures, and no other's traffic before its own. By default
	// connections from a process to one address share a link, if their Configs ask
	// for the same link. The dialing end decides.
	Dedicated bool

	// Links is how many links the connections from this process to one address may
	// be spread over, 1 to 64. Each connection begins on the one with the fewest;
	// another is made when all have 8 connections or more and memory is not short,
	// and no dial waits for it or fails for want of it. Each takes PinnedMemory and a
	// queue pair at either end. Default: GOMAXPROCS / 8, 1 at least and 8 at most,
	// for one lock serves a link; docs/performance.md has how to tell how many
	// processors that is enough for. A link that dies ends its own connections; each
	// finds out by itself that the path or the peer is gone. Only the dialing end's Links counts.
	Links int

	// ResumeTimeout is how long connections wait when the path to the peer is lost while
	// both processes live: the cable is out, the port is down, the device has failed.
	// Meanwhile this side and the peer look for another queue pair, on which all goes on
	// where it was: nothing is lost and nothing comes twice. Reads and Writes wait,
	// deadlines go on, and a dial makes another link. After it connections end, as they
	// do at once when the peer's process is gone or breaks the protocol, and when bytes
	// are lost with a device that had acknowledged them.
	//
	// Default 30 s: longer than a cable is out that is moved to another port, than a
	// switch's port takes to start, and, with the time that it takes to notice the loss,
	// than the twice 15 s for which spanning tree keeps a port from forwarding (IEEE
	// 802.1D). Connections of package net wait longer for a host that is gone: 150 s if
	// they are idle, and a quarter of an hour (Linux, tcp_retries2) if they have data
	// under way. Negative does not wait.
	//
	// Both ends must want it, and the shorter of their times counts. A process whose
	// connections wait listens at a port of rdma_cm's choice, for requests of the peers;
	// where it may not listen its connections do not wait. Shared memory has no path to
	// lose. Tried on soft-RoCE, with cables that are out and devices that are removed; with
	// cards not yet.
	ResumeTimeout time.Duration

	// NoStandby keeps a link from having a second queue pair stand by. By default a link
	// that may wait (ResumeTimeout), between two hosts that each have another RDMA card, or
	// another port, makes one over those after a second or two. When it loses its own it
	// goes on over the standby, at once and without a handshake. It takes receives
	// and queues at either end, 4 KiB and 108 KiB by default, but no memory for data;
	// where memory is short there is none. Both ends must want it. Without it, a link that
	// has lost its card goes on over another all the same, which takes a second or more.
	NoStandby bool

	// LinkIdle is how long a link stays up when its last connection is gone, for
	// the next to begin on, and keeps rings that have grown and to which nothing
	// comes. Default 30 s; negative ends it at once, and keeps rings for 1 s, the
	// least. Where memory is short, neither stays.
	LinkIdle time.Duration
}

// How long a device waits for its peer's acknowledgement, and how often it
// repeats what was not acknowledged. That the path is lost is noticed after
// AckTimeout·(Retries+1), 3.8 s; a real device may take up to four times as
// long (InfiniBand specification, 9.7.6.1.3), 15.0 s. An idle connection
// notices after KeepAlive and that. It must be longer than an emulated machine
// may stall.
const (
	AckTimeout = 536870912 * time.Nanosecond // 4.096 µs · 2^17, as a queue pair counts
	Retries    = 6                           // a queue pair can 7, but soft-RoCE takes that for ever
)

const (
	defaultBuffer    = 1 << 20
	defaultSendQueue = 128
	defaultRecvQueue = 256
	defaultTime      = 10 * time.Second
	defaultHandshake = 30 * time.Second

	minKeepAlive = time.Millisecond
	minSendQueue = 16
	maxQueue     = 32768

	maxTrafficClass = 255

	defaultLinkIdle = 30 * time.Second
	defaultResume   = 30 * time.Second

	processorsPerLink = 8
	maxDefaultLinks   = 8
	maxLinks          = 64

	// sharedMemory is how many bytes the rings on a link may take at an end.
	sharedMemory = 256 << 20
)

// Validate returns what is wrong with c, with the name of the field, or nil.
func (c *Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// PinnedMemory is how many bytes of locked memory an end of a link with this
// configuration takes at first: its staging memory, receives, the ring of its
// first connection, and the queues of its device, which differ. They are counted
// as mlx5 lays them out, for whose cards (NVIDIA's ConnectX-4 and later) this is
// an upper bound; others may want somewhat more or less.
//
// With Dedicated that is all that the connection ever takes. RingMemory is what each
// connection adds to a link that several share.
func (c *Config) PinnedMemory() int {
	l, err := c.Link()
	if err != nil {
		return 0
	}
	return l.PinnedMemory()
}

// RingMemory is how many bytes of locked memory the ring of a connection takes at
// first, and at most: when the peer fills it again and again while it is read, and
// the smaller ring before it is still there. It is
// registered, together with that of others, 256 KiB at a time. All rings of a link
// at one end together take 256 MiB at most, or RecvBuffer if that is more.
func (c *Config) RingMemory() (first, most int) {
	l, err := c.Link()
	if err != nil {
		return 0, 0
	}
	return l.FirstRing(), l.RecvBuffer
}

// MostLinks is Links or its default, or 1 with Dedicated.
func (c *Config) MostLinks() int {
	d, err := c.withDefaults()
	if err != nil || d.Dedicated {
		return 1
	}
	return d.Links
}

func defaultLinks() int {
	return max(1, min(runtime.GOMAXPROCS(0)/processorsPerLink, maxDefaultLinks))
}

// withDefaults returns c, or the default configuration if c is nil, with the
// defaults filled in, or an error that names the field at fault.
func (c *Config) withDefaults() (Config, error) {
	var d Config
	if c != nil {
		d = *c
	}
	if err := d.fillSizes(); err != nil {
		return d, err
	}
	if err := d.fillTimes(); err != nil {
		return d, err
	}
	if d.TrafficClass > maxTrafficClass {
		return d, fmt.Errorf("Config.TrafficClass is %d: want 1 to %d, 0 for the system's choice, or a negative number for class 0", d.TrafficClass, maxTrafficClass)
	}
	return d, nil
}

// fillSizes fills the defaults of sizes and numbers in, and returns what is wrong with
// one, or nil.
func (c *Config) fillSizes() error {
	sizes := []struct {
		name       string
		value      *int
		def        int
		min, max   int
		multiple   int
		powerOfTwo bool
	}{
		{"RecvBuffer", &c.RecvBuffer, defaultBuffer, wire.MinRing, wire.MaxRing, 1, true},
		{"SendBuffer", &c.SendBuffer, defaultBuffer, wire.MinRing, wire.MaxRing, 1, true},
		{"SendQueue", &c.SendQueue, defaultSendQueue, minSendQueue, maxQueue, 1, false},
		{"RecvQueue", &c.RecvQueue, defaultRecvQueue, wire.MinReceives, maxQueue, 4, false},
		{"Links", &c.Links, defaultLinks(), 1, maxLinks, 1, false},
	}
	for _, f := range sizes {
		if *f.value == 0 {
			*f.value = f.def
		}
		v := *f.value
		switch {
		case v < f.min || v > f.max:
			return fmt.Errorf("Config.%s is %d: want %d to %d, or 0 for the default of %d", f.name, v, f.min, f.max, f.def)
		case f.powerOfTwo && v&(v-1) != 0:
			return fmt.Errorf("Config.%s is %d: want a power of two", f.name, v)
		case v%f.multiple != 0:
			return fmt.Errorf("Config.%s is %d: want a multiple of %d", f.name, v, f.multiple)
		}
	}
	return nil
}

// fillTimes does the same with times.
func (c *Config) fillTimes() error {
	if c.KeepAlive == 0 {
		c.KeepAlive = defaultTime
	}
	if c.LinkIdle == 0 {
		c.LinkIdle = defaultLinkIdle
	}
	if c.ResumeTimeout == 0 {
		c.ResumeTimeout = defaultResume
	}
	if c.KeepAlive > 0 && c.KeepAlive < minKeepAlive {
		return fmt.Errorf("Config.KeepAlive is %v: want %v at least, 0 for the default of %v, or a negative time for none", c.KeepAlive, minKeepAlive, defaultTime)
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"Linger", &c.Linger, defaultTime},
		{"HandshakeTimeout", &c.HandshakeTimeout, defaultHandshake},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 0 {
			return fmt.Errorf("Config.%s is %v: want a positive time, or 0 for the default of %v", f.name, *f.value, f.def)
		}
	}
	return nil
}

// patience is how long a device may take to complete a probe: as long as the slowest takes
// to give up a peer. Soft-RoCE may never complete it: when the interface below keeps the
// packets it was given, a repetition finds no room, and no timer is set for the next.
const patience = 4 * AckTimeout * (Retries + 1)

// Link is what a link that suits c is made of, or an error that names the field
// at fault.
func (c *Config) Link() (link.Config, error) {
	d, err := c.withDefaults()
	if err != nil {
		return link.Config{}, err
	}
	l := link.Config{
		RecvBuffer: d.RecvBuffer,
		SendBuffer: d.SendBuffer,
		SendQueue:  d.SendQueue,
		RecvQueue:  d.RecvQueue,
		BusyPoll:   d.BusyPoll,
		KeepAlive:  d.KeepAlive,
		Handshake:  d.HandshakeTimeout,
		Patience:   patience,
		AckTimeout: AckTimeout,
		Retries:    Retries,
		Budget:     budget.Process,
		Resume:     max(d.ResumeTimeout, 0),
		Standby:    !d.NoStandby,
	}
	if !d.Dedicated {
		l.Shared, l.Idle, l.RemoteMemory = true, max(d.LinkIdle, 0), sharedMemory
	}
	return l, nil
}
