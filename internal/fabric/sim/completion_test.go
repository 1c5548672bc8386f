// The completion queue and its event.

package sim_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

func TestArmAnnouncesOnlyWhatCompletesAfterIt(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		post(t, a, send(1, "before"))
		require.NoError(t, b.Arm())
		done := waiting(b)
		time.Sleep(time.Hour)
		require.Empty(t, done, "who does not poll after Arm sleeps on")
		post(t, a, send(2, "after"))
		require.NoError(t, <-done)
		require.Len(t, poll(t, b), 2)
	})
}

func TestCompletionsOfOneQueueCanBeHeldWhileTheOtherGoesOn(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		a, b := connect(t, n)
		a.HoldSends(true)
		post(t, a, send(1, "x"), send(2, "x"))
		post(t, b, send(3, "answer"))
		require.Equal(t, []fabric.Completion{{Recv: true, Op: fabric.Send, Len: 6, Data: []byte("answer")}}, poll(t, a))
		require.NoError(t, a.Arm())
		a.HoldReceives(true)
		a.HoldSends(false)
		require.NoError(t, a.Wait())
		post(t, b, send(4, "more"))
		require.Equal(t, []fabric.Completion{{ID: 1}, {ID: 2}}, poll(t, a))
		a.HoldReceives(false)
		require.Len(t, poll(t, a), 1)
	})
}

func TestDisconnectFlushesBehindWhatIsHeld(t *testing.T) {
	a, b := connect(t, network(t, sim.Link{}))
	b.HoldReceives(true)
	post(t, a, send(1, "x"))
	require.NoError(t, b.Disconnect())
	require.Empty(t, poll(t, b))
	b.HoldReceives(false)
	c := poll(t, b)
	require.Equal(t, fabric.OK, c[0].Status)
	require.Equal(t, flushed(15), c[1:])
}

func TestMisuseThatWouldCrashAProcessPanics(t *testing.T) {
	virtual(t, sim.Link{}, func(t *testing.T, n *sim.Network) {
		a, _ := connect(t, n)
		done := waiting(a)
		synctest.Wait()
		assert.PanicsWithValue(t, "sim: Close during Wait", func() { a.Close() })
		assert.PanicsWithValue(t, "sim: two Waits at once", func() { a.Wait() })
		a.Wake()
		require.NoError(t, <-done)
	})
}
