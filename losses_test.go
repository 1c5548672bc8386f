package ringnet

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestTransferOverQueuePairsThatFail sends both ways over a card that fails queue pairs all the time
// (tools/idealcard -faults qp=…), whatever other manners it has, until it has failed one at least: all
// bytes arrive, and none twice.
func TestTransferOverQueuePairsThatFail(t *testing.T) {
	if !strings.Contains(os.Getenv("IDEAL_FAULTS"), "qp=") {
		t.Skip("it is for tools/idealcard -faults qp=RATE")
	}
	h := rdmaHost(t)
	before := Totals()["rdma"].LinksMoved
	client, server := connect(t, h, h.listen(t, ListenConfig{}), &Dialer{})
	for round := uint64(0); Totals()["rdma"].LinksMoved == before && !t.Failed(); round++ {
		var all sync.WaitGroup
		for i, way := range [][2]net.Conn{{client, server}, {server, client}} {
			all.Go(func() { transferInPieces(t, way[0], way[1], 2*round+uint64(i)) })
		}
		all.Wait()
	}
}

// transferInPieces sends 4 MiB in Writes of up to 8000 bytes.
func transferInPieces(t *testing.T, from io.Writer, to io.Reader, seed uint64) {
	want := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(want)
	sent := make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(1, seed))
		for left := want; len(left) > 0; {
			n := min(1+r.IntN(8000), len(left))
			if _, err := from.Write(left[:n]); err != nil {
				sent <- err
				return
			}
			left = left[n:]
		}
		sent <- nil
	}()
	got := make([]byte, len(want))
	_, err := io.ReadFull(to, got)
	assert.NoError(t, errors.Join(err, <-sent))
	assert.True(t, bytes.Equal(want, got))
}
