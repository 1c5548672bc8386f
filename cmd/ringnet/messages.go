package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/verbs"
)

// What doctor sends through each card to itself: messages of all kinds that links send, in such an order that each
// kind begins at each place of the queues. Some providers garble one kind, and only beside another.

// checkMessages sends messages of each kind through each card to itself. It reports whether some came otherwise
// than they were sent.
func (d *diagnosis) checkMessages(ctx context.Context, devices []host.Device) (garbled bool) {
	var found []finding
	for _, device := range devices {
		if unusable(device) != "" {
			continue // checkDevice has told
		}
		for _, p := range device.Ports {
			addresses := p.Addresses()
			i := slices.IndexFunc(addresses, func(a netip.Prefix) bool { return !a.Addr().IsLinkLocalUnicast() })
			if i < 0 || !p.Usable() {
				continue
			}
			failures, err := tryCard(ctx, addresses[i].Addr())
			if errors.Is(err, fabric.ErrLockedMemory) {
				continue // checkMemory has told
			}
			garbled = garbled || len(failures) > 0
			found = append(found, tried(device, p, failures, err))
		}
	}
	d.decide(found)
	return garbled
}

// tried tells what has become of the messages through a port.
func tried(device host.Device, p host.Port, failures []string, err error) finding {
	f := finding{Subject: portName(device, p), Status: bad, Code: ringnet.ReasonOther}
	switch {
	case err != nil && device.Driver == "mana":
		f.What = "cannot be used, because this kernel's driver has no GSI queue pair, it seems, and so makes no connections (that of Linux 6.12 has none): " + err.Error()
		f.Mend = "a newer kernel"
	case err != nil:
		f.What, f.Mend = "nothing can be sent through it to itself: "+err.Error(), "dmesg   # what its driver says"
	case len(failures) > 0:
		f.What = "messages that do not come as they are sent: " + strings.Join(failures, "; ")
		f.Mend = cureInline() + "RINGNET_NETWORKS=shm,tcp   # until the provider is another one; please report it: make card-report"
	default:
		return finding{Subject: f.Subject, Status: good, What: "messages of each kind come through it as they are sent"}
	}
	return f
}

// cureInline is what to try first, as a line, where messages are garbled: to set how much is sent inline, or not to.
func cureInline() string {
	if os.Getenv("RINGNET_INLINE") != "" {
		return "unset RINGNET_INLINE   # and run this again\n"
	}
	return "RINGNET_INLINE=off   # and run this again: nothing is sent inline then\n"
}

// decide adds what was found by messages. If they come through one card, nothing of what was found before keeps
// connections from RDMA, and they do not fall back to TCP; but for a lack of locked memory.
func (d *diagnosis) decide(found []finding) {
	if slices.ContainsFunc(found, func(f finding) bool { return !f.isBad() }) {
		for i, f := range d.Findings {
			if f.isBad() && f.Code != ringnet.ReasonLockedMemory {
				d.Findings[i].Status = note
			}
		}
	}
	d.add(found...)
}

// kind is a kind of messages: those of a post each, with their lengths in bytes. A negative length is of inline
// data.
type kind struct {
	name  string
	posts [][]int
}

// kindsFor are the kinds with as much inline data as a card takes.
func kindsFor(inline int) (all []kind) {
	alone := func(sizes ...int) (posts [][]int) {
		for _, n := range sizes {
			posts = append(posts, []int{n})
		}
		return posts
	}
	all = []kind{
		{"data from memory, posted alone", alone(1, 64, slotSize)},
		{"data from memory, in a batch", [][]int{{64, slotSize, 1, 4096}}},
		{"no data, posted alone", alone(0)},
		{"no data, behind data in a batch", [][]int{{4096, 0, 64, 0}}},
	}
	if inline > 0 {
		all = append(all,
			kind{"inline data, posted alone", alone(-1, -min(8, inline), -min(64, inline), -min(96, inline), -inline)},
			kind{"inline data, in a batch", [][]int{{-1, -inline, -min(64, inline), -min(96, inline)}}},
			kind{"inline data and data from memory, in a batch", [][]int{{-inline, 4096, -1, slotSize}}})
	}
	return all
}

const (
	slotSize       = 8 << 10 // for one of the messages of a post
	slots          = 4       // messages of a post, at most
	cycles         = 32      // of all kinds
	completionTime = 5 * time.Second
	connectTime    = 10 * time.Second
	tryingTime     = time.Minute // on one card
)

// tryOptions are those of the queue pairs. Their queues are short, to wrap often.
var tryOptions = fabric.Options{SendQueue: 16, RecvQueue: 32, RecvSize: 64, Sends: 32, RemoteMemory: slots * slotSize, AckTimeout: 67 * time.Millisecond, Retries: 7}

// trial is a connection of a card with itself.
type trial struct {
	a, b           fabric.Endpoint
	source, target fabric.Memory
	inline         int
	sent           int
}

// errGarbled is a message that has come, and was another one.
var errGarbled = errors.New("it came otherwise than it was sent")

// failedError is a work request that has failed.
type failedError fabric.Completion

func (e failedError) Error() string { return fmt.Sprintf("%v, vendor code %#x", e.Status, e.Vendor) }

// isPathLost reports whether the card, or its connection manager, says that the path is lost.
func isPathLost(err error) bool {
	var failed failedError
	return errors.Is(err, fabric.ErrPathLost) || errors.As(err, &failed) && failed.Status == fabric.RetryExceeded
}

// tryCard sends messages through a card with an address, and returns what is wrong with the kinds that fail. The
// error says why nothing could be sent.
func tryCard(ctx context.Context, address netip.Addr) (failures []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryingTime)
	defer cancel()
	t, err := connect(ctx, address)
	if err != nil {
		return nil, err
	}
	defer func() { t.close() }()
	failed := make(map[string]bool)
	kinds := kindsFor(t.inline)
	for range cycles {
		for _, k := range kinds {
			for _, post := range k.posts {
				if failed[k.name] || ctx.Err() != nil {
					break
				}
				err := t.try(post)
				if isPathLost(err) { // then ringnet goes on over another queue pair
					t.close()
					if t, err = connect(ctx, address); err != nil {
						return append(failures, k.name+": the path was lost, and then: "+err.Error()), nil
					}
					err = t.try(post)
				}
				if err == nil {
					continue
				}
				failed[k.name] = true
				failures = append(failures, k.name+": "+err.Error())
				if errors.Is(err, errGarbled) {
					continue
				}
				t.close() // the connection is lost
				if t, err = connect(ctx, address); err != nil {
					return append(failures, "and then: "+err.Error()), nil
				}
			}
		}
	}
	return failures, nil
}

// connect connects a card with itself. As ringnet does, it asks again while the connection manager remembers
// an earlier connection of the queue pair.
func connect(ctx context.Context, address netip.Addr) (*trial, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	var pauses fabric.Pauses
	for {
		t, err := connectOnce(ctx, address)
		var reject *fabric.RejectError
		if !errors.As(err, &reject) || reject.Reason != fabric.RejectStale || !pauses.Wait(ctx) {
			return t, err
		}
	}
}

func connectOnce(ctx context.Context, address netip.Addr) (t *trial, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f, err := verbs.Fabric()
	if err != nil {
		return nil, err
	}
	l, err := f.Listen(netip.AddrPortFrom(address, 0), 1)
	if err != nil {
		return nil, err
	}
	t = new(trial)
	accepted := make(chan error, 1)
	go func() { accepted <- t.accept(ctx, l) }()
	if err = t.dial(ctx, f, address, l.Addr()); err != nil {
		_ = l.Close() // which ends Accept,
		cancel()      // or what follows that
	}
	if refused := <-accepted; refused != nil && !errors.Is(refused, net.ErrClosed) && !errors.Is(refused, context.Canceled) {
		err = refused // and err, if there is one, is that it refused
	}
	_ = l.Close()
	if err == nil {
		t.source, err = t.a.Register(slots*slotSize, fabric.LocalWrite)
	}
	if err == nil {
		t.target, err = t.b.Register(slots*slotSize, fabric.RemoteWrite)
	}
	if err == nil {
		err = t.a.Reach(ctx, t.target.Addr(), t.target.RKey(), slots*slotSize)
	}
	if err != nil {
		t.close()
	}
	return t, err
}

func (t *trial) accept(ctx context.Context, l fabric.Listener) (err error) {
	if t.b, err = l.Accept(); err != nil {
		return err
	}
	if _, err = t.b.Open(tryOptions); err == nil {
		err = t.b.PostRecv(tryOptions.RecvQueue / 2)
	}
	if err == nil {
		err = t.b.Accept(ctx, nil)
	}
	if err != nil {
		_ = t.b.Close() // which refuses the dialer, if it waits
		t.b = nil
	}
	return err
}

func (t *trial) dial(ctx context.Context, f fabric.Fabric, local netip.Addr, remote netip.AddrPort) (err error) {
	if t.a, err = f.Dial(ctx, netip.AddrPortFrom(local, 0), remote); err != nil {
		return err
	}
	limits, err := t.a.Open(tryOptions)
	if err != nil {
		return err
	}
	t.inline = limits.Inline
	if _, err = t.a.Connect(ctx, nil); err != nil {
		return err
	}
	return t.a.Confirm()
}

func (t *trial) close() {
	if t == nil {
		return // there is no fabric any more
	}
	for _, e := range []fabric.Endpoint{t.a, t.b} {
		if e != nil {
			_ = e.Close()
		}
	}
}

// try posts messages, and looks at what comes.
func (t *trial) try(sizes []int) error {
	clear(t.target.Bytes())
	want := make([]byte, slots*slotSize)
	var post []fabric.WorkRequest
	for i, n := range sizes {
		at := i * slotSize
		data := want[at : at+max(n, -n)]
		for j := range data {
			t.sent++
			data[j] = byte(t.sent%255 + 1) // never 0
		}
		wr := fabric.WorkRequest{Op: fabric.WriteImm, Imm: uint32(i), Signaled: i == len(sizes)-1, RemoteAddr: t.target.Addr() + uint64(at), RKey: t.target.RKey()}
		if wr.Data = data; n > 0 {
			wr.Data, wr.Memory = t.source.Bytes()[at:at+copy(t.source.Bytes()[at:], data)], t.source
		}
		post = append(post, wr)
	}
	if err := t.a.PostSend(post); err != nil {
		return fmt.Errorf("lengths %v: %w", sizes, err)
	}
	if t.a.RingDue() {
		t.a.Ring()
	}
	sent, err := await(t.a, 1)
	if err == nil && sent[0].Status != fabric.OK {
		err = failedError(sent[0])
	}
	var came []fabric.Completion
	if err == nil {
		came, err = await(t.b, len(sizes))
	}
	if err != nil {
		return fmt.Errorf("lengths %v: %w", sizes, err)
	}
	if err := t.b.PostRecv(len(sizes)); err != nil {
		return err
	}
	return t.compare(sizes, came, want)
}

// compare returns an error if a message came otherwise than it was sent, or bytes beside it.
func (t *trial) compare(sizes []int, came []fabric.Completion, want []byte) error {
	for i, c := range came {
		n := max(sizes[i], -sizes[i])
		if c.Status != fabric.OK || c.Imm != uint32(i) || c.Len != n {
			return fmt.Errorf("%w: number %d of %d bytes as %d of %d bytes (%v)", errGarbled, i, n, c.Imm, c.Len, c.Status)
		}
	}
	wrong := 0
	for i, b := range t.target.Bytes()[:len(want)] {
		if b != want[i] {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%w: lengths %v, %d bytes are wrong", errGarbled, sizes, wrong)
	}
	return nil
}

// await polls for n completions.
func await(e fabric.Endpoint, n int) ([]fabric.Completion, error) {
	all := make([]fabric.Completion, n)
	deadline := time.Now().Add(completionTime)
	for got := 0; got < n; {
		k, err := e.Poll(all[got:])
		if err != nil {
			return nil, err
		}
		if got += k; k == 0 && time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d completions in %v", got, n, completionTime)
		}
		runtime.Gosched()
	}
	return all, nil
}
