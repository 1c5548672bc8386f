//go:build linux

// Connections between processes, which may die.

package shm

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// lastWordsProgram sends, says that it has, and waits to be killed.
func lastWordsProgram(at netip.AddrPort, _ []string) error {
	f, err := Fabric()
	if err != nil {
		return err
	}
	e, err := dial(f, at, options)
	if err == nil {
		err = e.PostSend([]fabric.WorkRequest{send(1, "tell my wife"), send(2, "that I love her")})
	}
	if err != nil {
		return err
	}
	fmt.Println("said")
	return untilKilled()
}

// echoProgram listens at an address, says where that is, and accepts.
func echoProgram(at netip.AddrPort, args []string) error {
	f, err := New(Config{Trust: func(uint32) bool { return len(args) > 0 && args[0] == "trust" }})
	if err != nil {
		return err
	}
	l, err := f.Listen(at, 1)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		if e, err := accept(l, options); err == nil {
			e.Close()
		}
	}
}

// A process that is killed has disconnected, and what it had sent has arrived.
func TestKill(t *testing.T) {
	leavesNothing(t)
	l := listen(t, newFabric(t), 1)
	p := start(t, program("last words", l.Addr()))
	e, err := accept(l, options)
	require.NoError(t, err)
	require.Equal(t, "said", p.line(t))
	require.NoError(t, p.Process.Kill())
	soon(t, "the news", func() { assert.ErrorIs(t, e.Wait(), fabric.ErrDisconnected) })
	require.NoError(t, e.Disconnect())
	c := poll(t, e)
	require.Equal(t, "tell my wife", string(c[0].Data))
	require.Equal(t, "that I love her", string(c[1].Data))
	require.Equal(t, flushed(62), c[2:])
	require.NoError(t, e.Close())
}
