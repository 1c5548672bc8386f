package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// output is what was logged.
type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(p)
}

// take returns what has come since it was called before.
func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.Reset()
	return o.String()
}

// Too many lines of one kind are as many as somebody reads, and the log says how many more there were.
func TestLinesOfAKindAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		all := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		log, other := Limit(all).With("listen", "a"), Limit(all).With("listen", "b")
		for range 10_000 {
			log.Warn("refused")
		}
		log.Warn("another kind")
		other.Warn("refused")
		for range 100 {
			log.Debug("each one")
		}
		logged := out.take()
		require.Equal(t, most+1, strings.Count(logged, "msg=refused"))
		require.Contains(t, logged, "another kind")
		require.Equal(t, 100, strings.Count(logged, "each one"))
		time.Sleep(window)
		synctest.Wait()
		require.Contains(t, out.take(), fmt.Sprintf("msg=\"left lines out\" listen=a of=refused lines=%d", 10_000-most))
		log.Warn("refused")
		require.Contains(t, out.take(), "msg=refused", "a window later")
		time.Sleep(2 * window)
		require.Empty(t, out.take())
	})
}

// stuck is a file of which nobody reads what is written to it, until it is closed.
type stuck chan struct{}

func (s stuck) Write(p []byte) (int, error) {
	<-s
	return len(p), nil
}

func TestNobodyWaitsForWhoReadsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, lost := make(stuck), 0
		w := NewWriter(reader, func(lines int) { lost += lines })
		write := func(lines int) {
			for range lines {
				_, err := w.Write([]byte("line\n"))
				require.NoError(t, err)
			}
		}
		write(1)
		synctest.Wait() // which the reader has
		write(room + 7)
		close(reader)
		synctest.Wait()
		w.Close()
		require.Equal(t, 7, lost)

		reader = make(stuck)
		w = NewWriter(reader, func(int) {})
		write(3)
		w.Close() // does not wait for ever
		write(3)
		close(reader)
		w.Close()
	})
}
