//go:build linux

package shm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/hang"
)

// sendersProgram has as many senders to an address as it is told, and sends a datagram from
// each. It goes on with fewer if the receiver refuses others.
func sendersProgram(at netip.AddrPort, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	f, err := Fabric()
	if err != nil {
		return err
	}
	ep, err := f.(fabric.Datagrams).ListenPacket(netip.AddrPortFrom(at.Addr(), 0), fabric.DatagramOptions{RecvQueue: 1, Notify: func() {}})
	if err != nil {
		return err
	}
	for range n {
		h, err := ep.(*datagrams).resolve(context.Background(), at)
		if fabric.IsFull(err) {
			break
		}
		if err != nil {
			return err
		}
		ep.Send([]fabric.Datagram{{To: h, Buffers: [][]byte{[]byte("of many")}}})
	}
	fmt.Println("sent")
	return untilKilled()
}

// requireHonest requires that a sender reaches a receiver, whose places or memory those of another
// process have, and that its datagram arrives.
func requireHonest(t *testing.T, a, b mailbox) {
	t.Helper()
	within, cancel := context.WithTimeout(ctx, hang.After)
	defer cancel()
	h, err := a.Resolve(within, b.local)
	require.NoError(t, err)
	defer h.Close()
	require.Equal(t, fabric.OK, a.post(h, "of one"))
	for b.next(t) != "of one" {
	}
}

// A process that has sent to a receiver that does not read, as many senders as it can have,
// keeps no other process out.
func TestDatagramSendersOfOneProcessLeaveRoomForOthers(t *testing.T) {
	t.Run("places", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: a thousand descriptors take seconds to make")
		}
		needsDescriptors(t, 2*maxSources)
		f := newFabric(t)
		a, b := openMailbox(t, f, 1), openMailbox(t, f, 1)
		require.Equal(t, "sent", start(t, program("senders", b.local, strconv.Itoa(2*maxSources))).line(t))
		b.requireSources(t, maxSources)
		requireHonest(t, a, b)
	})
	t.Run("memory", func(t *testing.T) {
		f := newFabric(t)
		a, b := openMailbox(t, f, 4), openMailbox(t, f, 4)
		one, h := laneMemory(t, a, b)
		h.Close()
		b.requireSources(t, 0)
		used, _ := budget.Process.State()
		t.Cleanup(func() { budget.Process.SetLimit(0) })
		const fit = 8
		budget.Process.SetLimit(used.Registered + fit*one)
		require.Equal(t, "sent", start(t, program("senders", b.local, strconv.Itoa(fit))).line(t))
		b.requireSources(t, fit)
		requireHonest(t, a, b)
	})
}

// sourcesOf returns sources of a process, which have been admitted, and of which all that has arrived
// was received.
func sourcesOf(n int, uid uint32, pid int32) (all []*source) {
	for range n {
		own := view(shape{recvQueue: 1}, make([]byte, pages(1)))
		all = append(all, &source{state: receiving, sender: unix.Ucred{Uid: uid, Pid: pid}, e: &endpoint{mapped: mapped{own: own}}})
	}
	return all
}

// busy makes sources have something to receive.
func busy(all []*source) []*source {
	for _, s := range all {
		s.e.own.slot(0).Store(lapBit)
	}
	return all
}

// One that is silent makes room for another, and the longer it has been so the sooner, but not for
// one more of a process that has more senders. Whatever it does, one of those of which there are more
// makes room for one of which there are fewer, and a user counts before a process.
func TestDatagramSendersMakeRoomForThoseOfWhichThereAreFewer(t *testing.T) {
	crowded := slices.Concat(busy(sourcesOf(30, 1, 11)), busy(sourcesOf(10, 1, 12)), busy(sourcesOf(35, 2, 21)))
	oneSilent := slices.Concat(busy(sourcesOf(30, 1, 11)), sourcesOf(1, 1, 12))
	entering := sourcesOf(30, 1, 11)
	for _, s := range entering {
		s.state = 0
	}
	for name, test := range map[string]struct {
		all      []*source
		newcomer unix.Ucred
		evicts   int32 // process ID; 0 if nobody
	}{
		"a process that has few":                {crowded, unix.Ucred{Uid: 1, Pid: 12}, 11},
		"a new process":                         {crowded, unix.Ucred{Uid: 1, Pid: 13}, 11},
		"a user that has few":                   {crowded, unix.Ucred{Uid: 2, Pid: 21}, 11},
		"the process with most":                 {crowded, unix.Ucred{Uid: 1, Pid: 11}, 0},
		"one of a crowd beside a silent one":    {oneSilent, unix.Ucred{Uid: 1, Pid: 11}, 0},
		"a new process beside a silent one":     {oneSilent, unix.Ucred{Uid: 1, Pid: 13}, 12},
		"a process with few, of those admitted": {entering, unix.Ucred{Uid: 1, Pid: 12}, 11},
		"one of those that are admitted":        {entering, unix.Ucred{Uid: 1, Pid: 11}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := &datagrams{inflow: inflow{sources: test.all}}
			s, _, _ := d.victim(&source{sender: test.newcomer}, 0)
			if test.evicts == 0 {
				require.Nil(t, s)
			} else {
				require.Equal(t, test.evicts, s.sender.Pid)
			}
		})
	}
	d := &datagrams{inflow: inflow{sources: sourcesOf(3, 1, 11)}}
	for i, active := range []int{7, 3, 9} {
		d.sources[i].lastActivity = active
	}
	first, _, _ := d.victim(anotherHere(), 0)
	require.Same(t, d.sources[1], first)
}
