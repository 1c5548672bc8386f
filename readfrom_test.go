package ringnet

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/fabric/sim"
)

// breakingFile is a file during one Read of which something breaks.
type breakingFile struct {
	*os.File
	breaks func()
}

func (f *breakingFile) Read(p []byte) (int, error) {
	if f.breaks != nil {
		f.breaks()
		f.breaks = nil
	}
	return f.File.Read(p)
}

// A path that is lost while a file is read puts off neither the deadline of its copy nor
// loses a byte of it: another copy can continue.
func TestCopyOfAFileAgainstADeadlineWhileThePathIsLost(t *testing.T) {
	t.Run("whole", func(t *testing.T) { copyWhileThePathIsLost(t, math.MaxInt64) })
	t.Run("limited", func(t *testing.T) { copyWhileThePathIsLost(t, 60_000) })
}

// copyWhileThePathIsLost copies so many bytes of a file at most.
func copyWhileThePathIsLost(t *testing.T, most int64) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Link{Latency: time.Millisecond})
		simulate(t, n)
		l := host{"sim", "10.0.0.1"}.listen(t, ListenConfig{})
		c, err := Dial("sim", l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)

		want := bytes.Repeat([]byte("ringnet"), 10_000)
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, want, 0o600))
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		breaking := &breakingFile{f, func() {
			n.Cut(true)
			for _, e := range n.Endpoints() {
				e.Fail(fabric.ErrQueuePair)
			}
			synctest.Wait()
		}}
		const after = 10 * time.Second
		start := time.Now()
		require.NoError(t, c.SetWriteDeadline(start.Add(after)))
		from := &io.LimitedReader{R: breaking, N: most}
		copied, err := c.(io.ReaderFrom).ReadFrom(from)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, after, time.Since(start))
		at, err := f.Seek(0, io.SeekCurrent)
		require.NoError(t, err)
		require.Equal(t, at, copied)
		require.Equal(t, most-copied, from.N)

		n.Cut(false)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		go func() {
			_, _ = io.Copy(c, from)
			_ = c.Close()
		}()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[:min(most, int64(len(want)))], got))
		require.NoError(t, s.Close())
		require.NoError(t, l.Close())
		time.Sleep(2 * time.Minute)
		require.Zero(t, n.Open(), "endpoints left open")
	})
}
