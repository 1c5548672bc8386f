package link

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/numa"
	"github.com/ringnet/ringnet/internal/provider"
	"github.com/ringnet/ringnet/internal/wire"
)

// Config has the sizes, queue depths and times of one end of a connection: it has the fields of
// ringnet.Config, which documents them.
type Config struct {
	RecvBuffer       int           // largest size of a ring, in bytes: a power of two
	SendBuffer       int           // size of the link's staging ring, in bytes: a power of two
	SendQueue        int           // work requests of the link that may be outstanding
	RecvQueue        int           // data messages that the peer may have under way: a multiple of credit.CreditsPerWindow
	BusyPoll         time.Duration // that a call polls before it sleeps; 0: adaptive; negative: never
	KeepAlive        time.Duration // longest idle time before the peer's device is probed; negative: never
	Linger           time.Duration // that Close waits for delivery
	HandshakeTimeout time.Duration // of a link's handshake, and of a dial on a link
	TrafficClass     int           // of the packets of this end over RDMA; 0: the system's choice; negative: class 0
	Dedicated        bool          // each connection has a link of its own
	Links            int           // largest number of links over which connections to one address are spread
	ResumeTimeout    time.Duration // that streams wait for another queue pair; negative: they do not wait
	LinkIdle         time.Duration // that a link without streams stays; negative: not at all
	AckTimeout       time.Duration // of the queue pair
	Retries          int           // of the queue pair
	Inline           int           // bytes that a work request carries by itself at most; 0: as many as the card takes; negative: none
	Vectors          string        // completion vectors, as numa.ParseList has them; empty: those near the card
}

// The defaults of how long a device waits for an acknowledgement of its peer, and of how often it
// sends again what was not acknowledged. The time has to be longer than an emulated machine may
// stand still.
const (
	DefaultAckTimeout = 536870912 * time.Nanosecond // 4.096 µs · 2^17, as a queue pair counts
	DefaultRetries    = 6                           // soft-RoCE takes 7 for "for ever"
)

const (
	defaultBuffer    = 1 << 20
	defaultSendQueue = 64
	defaultRecvQueue = 176
	defaultTime      = 10 * time.Second
	defaultHandshake = 30 * time.Second

	minKeepAlive = time.Millisecond
	maxQueue     = 32768

	minAckTimeout = time.Millisecond
	maxAckTimeout = time.Minute
	maxRetries    = 7 // a queue pair has three bits for it

	maxTrafficClass = 255

	firstStaging = 64 << 10

	defaultLinkIdle = 30 * time.Second
	defaultResume   = 30 * time.Second

	processorsPerLink = 8
	maxDefaultLinks   = 8
	maxLinks          = 64

	// sharedMemory is how many bytes the rings on a link may take at an end: 256 MiB, or 32 where
	// addresses have 32 bits.
	sharedMemory = 32 << 20 << (3 * (strconv.IntSize / 64))
)

// Validate returns an error that names the first field whose value is not allowed, or nil.
func (c *Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// PinnedMemory returns what one end of a link takes at first: see ringnet.Config.PinnedMemory.
func (c *Config) PinnedMemory() int {
	s, err := NewSetup(c)
	if err != nil {
		return 0
	}
	return s.fixedMemory(fabric.Footprint{
		Receives: fabric.Pages(credit.LinkControlReceives * wire.MessageSize),
		Queues:   fabric.DeviceQueues(s.SendQueue, s.RecvQueue+credit.LinkControlReceives),
	})
}

// RingMemory returns the size of a ring: see ringnet.Config.RingMemory.
func (c *Config) RingMemory() (first, most int) {
	s, err := NewSetup(c)
	if err != nil {
		return 0, 0
	}
	return s.firstRing(), s.RecvBuffer
}

// MostLinks returns Links or its default; 1 with Dedicated, or if c is not valid.
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
	if d.Inline > provider.MaxInline {
		return d, fmt.Errorf("Config.Inline is %d: want 1 to %d, 0 for the default of %d, or a negative number for none", d.Inline, provider.MaxInline, provider.MaxInline)
	}
	if err := provider.CheckSettings(); err != nil { // whatever the network: auto would do without rdma, and not say so
		return d, err
	}
	if _, err := numa.ParseList(d.Vectors); err != nil {
		return d, fmt.Errorf("Config.Vectors is %q: want numbers of completion vectors, such as 0-3,8: %w", d.Vectors, err)
	}
	return d, nil
}

// fillSizes fills in the defaults of sizes and numbers, and returns an error if one is not
// allowed.
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
		{"RecvQueue", &c.RecvQueue, defaultRecvQueue, wire.MinReceives, maxQueue, credit.CreditsPerWindow, false},
		{"Links", &c.Links, defaultLinks(), 1, maxLinks, 1, false},
		{"Retries", &c.Retries, DefaultRetries, 1, maxRetries, 1, false},
	}
	for _, f := range sizes {
		*f.value = cmp.Or(*f.value, f.def)
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
func (c *Config) fillTimes() (err error) {
	c.KeepAlive = cmp.Or(c.KeepAlive, defaultTime)
	c.Linger = cmp.Or(c.Linger, defaultTime)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshake)
	c.LinkIdle = cmp.Or(c.LinkIdle, defaultLinkIdle)
	c.ResumeTimeout = cmp.Or(c.ResumeTimeout, defaultResume)
	c.AckTimeout = cmp.Or(c.AckTimeout, DefaultAckTimeout)
	const positive = "Config.%s is %v: want a positive time, or 0 for the default of %v"
	switch {
	case c.KeepAlive > 0 && c.KeepAlive < minKeepAlive:
		return fmt.Errorf("Config.KeepAlive is %v: want %v at least, 0 for the default of %v, or a negative time for none", c.KeepAlive, minKeepAlive, defaultTime)
	case c.Linger < 0:
		return fmt.Errorf(positive, "Linger", c.Linger, defaultTime)
	case c.HandshakeTimeout < 0:
		return fmt.Errorf(positive, "HandshakeTimeout", c.HandshakeTimeout, defaultHandshake)
	case c.AckTimeout < minAckTimeout || c.AckTimeout > maxAckTimeout:
		return fmt.Errorf("Config.AckTimeout is %v: want %v to %v, or 0 for the default of %v", c.AckTimeout, minAckTimeout, maxAckTimeout, DefaultAckTimeout)
	case c.BusyPoll == 0:
		c.BusyPoll, err = busyPoll(os.Getenv(busyPollEnv))
	}
	return err
}

const busyPollEnv = "RINGNET_BUSYPOLL"

// busyPoll reads the value of busyPollEnv.
func busyPoll(value string) (time.Duration, error) {
	switch value {
	case "":
		return 0, nil
	case "off":
		return -1, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("the environment variable %s is %q: want a positive time, such as 50us, or off", busyPollEnv, value)
	}
	return d, nil
}
