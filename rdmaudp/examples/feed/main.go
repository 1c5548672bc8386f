// Feed publishes prices to a group, as exchanges do, and receives them: any number of
// receivers, each of which reports what it has missed.
//
//	go run ./examples/feed -interface eth0 &
//	go run ./examples/feed -interface eth0 &
//	go run ./examples/feed -addr 10.0.0.1:0 -publish
//
// Each datagram begins with the sequence number of its first update, as MoldUDP64's do, and
// the last is sent several times. So a receiver that was there from the beginning knows
// which updates it has lost, the last included, and could ask for them elsewhere.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/ringnet/ringnet/rdmaudp"
)

// A datagram has a header (the sequence number of its first update, 8 bytes, and the number
// of updates, 2) and the updates (which security, 4 bytes, and its price, 8), big endian.
const (
	headerSize = 10
	updateSize = 12
	perPacket  = 64 // updates

	// endOfFeed in place of the number of updates says that there are none from this
	// sequence number on.
	endOfFeed = 0xffff
	endings   = 20 // datagrams that say so
	endPause  = 50 * time.Millisecond
)

func main() {
	group := flag.String("group", "239.0.0.70:7000", "address and port of the group")
	device := flag.String("interface", "", "network interface of an RDMA device, to receive at")
	publish := flag.Bool("publish", false, "publish, and do not receive")
	addr := flag.String("addr", ":0", "address of an RDMA device, to publish from")
	packets := flag.Int("packets", 10_000, "datagrams to publish")
	pause := flag.Duration("pause", 100*time.Microsecond, "time between them")
	skip := flag.Int("skip", 0, "lose one in so many instead of sending it, to see the gaps")
	flag.Parse()

	var err error
	if *publish {
		err = send(os.Stdout, *addr, *group, *packets, *pause, *skip)
	} else {
		err = receive(os.Stdout, *device, *group)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// send publishes made-up prices to the group.
func send(out io.Writer, addr, group string, packets int, pause time.Duration, skip int) error {
	c, err := rdmaudp.Listen("rdma-udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	to, err := net.ResolveUDPAddr("udp", group)
	if err != nil {
		return err
	}
	p := make([]byte, headerSize, headerSize+perPacket*updateSize)
	sequence := uint64(1)
	for i := range packets {
		p = p[:headerSize]
		binary.BigEndian.PutUint64(p, sequence)
		binary.BigEndian.PutUint16(p[8:], perPacket)
		for range perPacket {
			p = binary.BigEndian.AppendUint32(p, rand.Uint32N(500))
			p = binary.BigEndian.AppendUint64(p, rand.Uint64N(1_000_000))
		}
		sequence += perPacket
		if skip > 0 && i%skip == skip-1 {
			continue
		}
		if _, err := c.WriteTo(p, to); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	p = p[:headerSize]
	binary.BigEndian.PutUint64(p, sequence)
	binary.BigEndian.PutUint16(p[8:], endOfFeed)
	for range endings {
		if _, err := c.WriteTo(p, to); err != nil {
			return err
		}
		time.Sleep(endPause)
	}
	fmt.Fprintf(out, "%d updates published\n", sequence-1)
	return nil
}

// receive receives until the feed ends, and prints what is missing.
func receive(out io.Writer, device, group string) error {
	var ifi *net.Interface
	if device != "" {
		var err error
		if ifi, err = net.InterfaceByName(device); err != nil {
			return err
		}
	}
	c, err := rdmaudp.ListenMulticast("rdma-udp", ifi, group)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintln(out, "listening on", group)
	ms := make([]rdmaudp.Message, perPacket)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, c.MaxMessage())}
	}
	r := receiver{out: out, next: 1, prices: make(map[uint32]uint64)}
	for !r.ended {
		n, err := c.ReadBatch(ms, 0)
		if err != nil {
			return err
		}
		for _, m := range ms[:n] {
			r.take(m.Buffers[0][:m.N])
		}
	}
	fmt.Fprintf(out, "%d updates received, %d missing in %d gaps, prices of %d securities\n", r.received, r.missing, r.gaps, len(r.prices))
	return nil
}

// receiver is the state of a receiver of the feed.
type receiver struct {
	out                     io.Writer
	next                    uint64            // sequence number
	prices                  map[uint32]uint64 // by security
	received, missing, gaps uint64
	ended                   bool
}

// take processes a datagram.
func (r *receiver) take(p []byte) {
	if len(p) < headerSize {
		return // it is not of this feed
	}
	sequence, n := binary.BigEndian.Uint64(p), binary.BigEndian.Uint16(p[8:])
	p = p[headerSize:]
	if sequence < r.next || n != endOfFeed && len(p) != int(n)*updateSize {
		return // it is old, or not of this feed
	}
	if sequence > r.next {
		fmt.Fprintf(r.out, "gap: %d to %d\n", r.next, sequence-1) // to be asked for elsewhere
		r.missing += sequence - r.next
		r.gaps++
		r.next = sequence
	}
	if n == endOfFeed {
		r.ended = true
		return
	}
	for ; len(p) > 0; p = p[updateSize:] {
		r.prices[binary.BigEndian.Uint32(p)] = binary.BigEndian.Uint64(p[4:])
	}
	r.received += uint64(n)
	r.next += uint64(n)
}
