//go:build linux

package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/credit"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/wire"
)

// clientStaging is the staging memory of a client that is one of many.
const clientStaging = 64 << 10

// client dials, sends many messages at once, reads them back, and keeps the connection.
func client(args []string) error {
	d := ringnet.Dialer{Config: &ringnet.Config{SendBuffer: clientStaging}}
	c, err := d.Dial("rdma", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	const bytes = 8000
	sent := make(chan error, 1)
	go func() { sent <- (&stream{}).send(c, bytes, 100) }()
	if err := (&stream{}).receive(c, bytes); err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	say("done")
	hear() // until the test has ended
	return nil
}

// For receives a server pins less than 4 KiB for each client process, which is a page,
// whatever the client may have under way.
func TestReceivesOfManyClientsTakeLittle(t *testing.T) {
	require.Less(t, credit.LinkControlReceives*wire.MessageSize, 4<<10)
	rdmaAddr(t)
	alone(t, nil, func(t *testing.T) {
		clients := times(30, 300)
		l := listen(t, ringnet.ListenConfig{Config: &ringnet.Config{SendBuffer: clientStaging}})
		go echoAll(l)
		require.Zero(t, pinned())
		began := time.Now()
		const atOnce = 10 // begin
		var all []*process
		for len(all) < clients {
			for range min(atOnce, clients-len(all)) {
				all = append(all, start(t, "client", l.Addr().String()))
			}
			for _, p := range all[len(all)-min(atOnce, len(all)):] {
				require.Equal(t, "done", p.hear())
			}
		}
		require.Len(t, ringnet.Links(), clients)
		each := pinned() / clients
		t.Logf("%d clients in %v: %d bytes pinned for each, VmRSS %d KiB", clients, time.Since(began).Round(time.Second), each, status("VmRSS"))
		const ring = 16 << 10
		receives := each - fabric.Pages(clientStaging+link.ControlMemory) - ring
		require.LessOrEqual(t, receives, fabric.PageSize)
	})
}
