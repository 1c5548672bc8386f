package ringnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/rdmatest"
)

// rdma_cm says that the address of a card has changed (tools/idealcard -manners addr-change): whether what is sent still
// arrives, a probe finds out.
func TestConnectionIsProbedWhenTheCardsAddressChanges(t *testing.T) {
	rdmatest.OnCardWith(t, "addr-change")
	h := rdmaHost(t)
	cfg := &Config{KeepAlive: -1}
	client, server := connect(t, h, h.listen(t, ListenConfig{Config: cfg}), &Dialer{Config: cfg})
	probes := func() uint64 { return client.(*Conn).Link().Probes + server.(*Conn).Link().Probes }
	require.Zero(t, probes())
	for round := uint64(0); probes() == 0 && !t.Failed(); round++ {
		transferInPieces(t, client, server, round)
	}
	require.Zero(t, client.(*Conn).Link().Moves)
}

// rdma_cm says that a peer has another address (-manners neighbour-moved): what was sent is lost, and the link goes on
// before the card has found out.
func TestConnectionGoesOnAtOnceWhenThePeersAddressChanges(t *testing.T) {
	rdmatest.OnCardWith(t, "neighbour-moved")
	h := rdmaHost(t)
	causes := make(chan error, 16)
	trace := &Trace{LinkMoved: func(_ LinkInfo, _ time.Duration, cause error) { causes <- cause }}
	client, server := connect(t, h, h.listen(t, ListenConfig{Trace: trace}), &Dialer{Trace: trace})
	for round := uint64(0); len(causes) == 0 && !t.Failed(); round++ {
		transferInPieces(t, client, server, round)
	}
	text := (<-causes).Error() + "; " + rdmatest.Within(t, causes).Error()
	require.Contains(t, text, "the way to the peer has changed")
	require.NotContains(t, text, "retries exceeded")
}

// A peer's kernel may remember a connection of the queue pair, that of a process before a crash, until it is asked for
// another one (-manners stale-once): that is no reason to take TCP.
func TestDialIsRepeatedWhenThePeerRemembersTheQueuePair(t *testing.T) {
	rdmatest.OnCardWith(t, "stale-once")
	h := rdmaHost(t)
	t.Setenv("RINGNET_NETWORKS", "rdma,tcp")
	h.network = "auto"
	client, server := connect(t, h, listen(t, ListenConfig{}, h.network, h.any()), &Dialer{})
	require.Equal(t, "rdma", client.(*AutoConn).Carrier())
	ask(t, client, server, 10)
}
