package link

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// slowHost is a host whose cards take long to list.
type slowHost struct {
	fabric.Fabric
	begun chan struct{}
	cards chan []fabric.Card
}

func (h slowHost) Cards() []fabric.Card {
	h.begun <- struct{}{}
	return <-h.cards
}

// Who waits for the list of cards waits no longer than its context, and holds up nobody.
func TestCardsAreListedForAllWhoWait(t *testing.T) {
	h := slowHost{begun: make(chan struct{}, 1), cards: make(chan []fabric.Card)}
	r := &ReconnectListener{Fabric: h}
	own, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.1")
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan []netip.Addr)
	go func() { first <- r.others(ctx, own) }()
	<-h.begun
	require.Nil(t, r.find(linkID{}))
	second := make(chan []netip.Addr)
	go func() { second <- r.others(t.Context(), own) }()
	cancel()
	require.Empty(t, <-first)
	h.cards <- []fabric.Card{{own}, {other}}
	require.Equal(t, []netip.Addr{other}, <-second)
	require.Equal(t, []netip.Addr{other}, r.others(t.Context(), own))
}
