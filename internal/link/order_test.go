package link

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// What a stream has written waits behind the bulk of others. Then it has an answer,
// and so is in a conversation, whose messages wait for no bulk.
func TestAConversationDoesNotOvertakeItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: time.Millisecond})
		clients, servers := streamsOfBoth(t, n, testConfig, testConfig, 25)
		c, s, l := clients[0], servers[0], clients[0].link
		for range burst { // so that they are in none
			for _, c := range clients {
				require.NoError(t, writeAll(c, []byte("-")))
			}
			time.Sleep(5 * time.Millisecond)
		}
		l.mu.Lock()
		l.send.window.limit = minWindow
		l.mu.Unlock()

		require.NoError(t, writeAll(s, []byte("answer")))
		time.Sleep(time.Millisecond / 2)
		for _, other := range clients[1:] {
			require.NoError(t, writeAll(other, make([]byte, 15<<10)))
		}
		first := bytes.Repeat([]byte{1}, 2*copyLocked)
		require.NoError(t, writeAll(c, first))
		synctest.Wait()
		l.mu.Lock()
		pending := c.ledger.Pending()
		l.mu.Unlock()
		require.Equal(t, len(first), pending)
		require.NoError(t, writeAll(c, []byte("+"))) // is no bulk, and could go at once
		time.Sleep(time.Millisecond)
		require.NoError(t, writeAll(c, []byte("second")))

		got := make([]byte, burst+len(first)+len("+second"))
		_, err := io.ReadFull(reader{s}, got)
		require.NoError(t, err)
		require.Equal(t, "---"+string(first)+"+second", string(got))
		endAll(t, n, append(clients, servers...)...)
	})
}
