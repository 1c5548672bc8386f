package rconn_test

import (
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A connection to which the program has lost all references is closed when it is collected.
func TestDroppedConnectionIsClosed(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		l, err := v.Listen(v.any(), 8)
		require.NoError(t, err)
		defer l.Close()
		c, s, err := v.connectTo(l, nil, nil)
		require.NoError(t, err)
		_, err = c.Write([]byte("goodbye"))
		require.NoError(t, err)
		c = nil
		got := started(func() string { b, _ := io.ReadAll(s); return string(b) })
		for {
			runtime.GC()
			select {
			case text := <-got:
				require.Equal(t, "goodbye", text)
				require.NoError(t, s.Close())
				return
			default:
			}
		}
	})
}
