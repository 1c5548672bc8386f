package fabrictest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// How completions are waited for.

func testArm(t *testing.T, pair Pair) {
	a, b := pair(t)
	send := func() {
		Post(t, a, fabric.WorkRequest{Op: fabric.Send, Signaled: true})
		Poll(t, a, 1)
	}
	take := func() {
		Poll(t, b, 1)
		require.NoError(t, b.PostRecv(1))
	}
	done := Waiting(b)
	send()
	Asleep(t, done, "it is not armed")
	take()
	for range 20 {
		require.NoError(t, b.Arm())
		send()
		require.NoError(t, woken(t, done))
		take()
		done = Waiting(b)
	}
	send()
	Asleep(t, done, "Arm is for one event")
	take()
	b.Wake()
	require.NoError(t, woken(t, done))

	// Who finds what it needs behind Arm does not wait.
	for range 20 {
		require.NoError(t, b.Arm())
		send()
		take()
	}
	require.NoError(t, woken(t, Waiting(b)), "though its completions have been polled")
	require.NoError(t, b.Arm())
	done = Waiting(b)
	Asleep(t, done, "there is one event however often it was armed")
	send()
	require.NoError(t, woken(t, done))
}

func testWakeAfterClose(t *testing.T, pair Pair) {
	a, _ := pair(t)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				a.Wake()
			}
		}
	}()
	require.NoError(t, a.Close())
	close(stop)
	<-done
	a.Wake()
}
