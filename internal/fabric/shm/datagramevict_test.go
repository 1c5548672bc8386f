//go:build linux

package shm

import (
	"context"
	"fmt"
	"net/netip"
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

// crowdOf returns sources of one process that are being admitted.
func crowdOf(d *datagrams, n int, uid uint32, pid int32) (all []*source) {
	for range n {
		all = append(all, &source{d: d, sender: unix.Ucred{Uid: uid, Pid: pid}, cancel: func() {}, over: make(chan struct{})})
	}
	return all
}

// That holds for senders that connect and never confirm, too; and a user counts before a process.
func TestDatagramSendersMakeRoomForThoseOfWhichThereAreFewer(t *testing.T) {
	for name, test := range map[string]struct {
		newcomer unix.Ucred
		evicts   int32 // process ID; 0 if nobody
	}{
		"of a process that has few": {unix.Ucred{Uid: 1, Pid: 12}, 11},
		"of a new process":          {unix.Ucred{Uid: 1, Pid: 13}, 11},
		"of a user that has few":    {unix.Ucred{Uid: 2, Pid: 21}, 11},
		"of the process with most":  {unix.Ucred{Uid: 1, Pid: 11}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := &datagrams{notify: func() {}}
			d.admitted.L = &d.mu
			d.entering = append(crowdOf(d, 30, 1, 11), crowdOf(d, 10, 1, 12)...)
			d.entering = append(d.entering, crowdOf(d, 35, 2, 21)...)
			d.mu.Lock()
			defer d.mu.Unlock()
			s := d.evict(&source{d: d, sender: test.newcomer}, 0)
			if test.evicts == 0 {
				require.Nil(t, s)
				return
			}
			require.NotNil(t, s)
			require.Equal(t, test.evicts, s.sender.Pid)
			require.Equal(t, ended, s.state)
		})
	}
}

// A sender that has been silent makes room for others, but not for one more of a process that has
// more senders.
func TestDatagramSendersThatAreSilentKeepTheirPlaceBesideACrowd(t *testing.T) {
	a, b := openMailboxes(t, 1)
	h := a.resolve(t, b)
	defer h.Close()
	a.delivers(t, h, "all is received", b)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Len(t, b.sources, 1)
	silent := b.sources[0]
	silent.sender = unix.Ucred{Uid: 1, Pid: 12}
	b.entering = crowdOf(b.datagrams, 30, 1, 11)
	defer func() { b.entering = nil }()
	require.Nil(t, b.evict(&source{d: b.datagrams, sender: unix.Ucred{Uid: 1, Pid: 11}}, 0))
	require.Equal(t, receiving, silent.state)
	require.Same(t, silent, b.evict(&source{d: b.datagrams, sender: unix.Ucred{Uid: 1, Pid: 13}}, 0))
}
