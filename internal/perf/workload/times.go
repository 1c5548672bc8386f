package workload

import (
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Times records how long a worker's operations take. It is that worker's alone.
type Times struct {
	several int             // operations that are timed together
	kept    []time.Duration // until there is no room
	shared  histograms
}

// Record takes the time of an operation, and allocates nothing.
func (t *Times) Record(d time.Duration) {
	if len(t.kept) == cap(t.kept) {
		t.flush()
	}
	t.kept = append(t.kept, d)
}

func (t *Times) flush() {
	t.shared.add(t.kept)
	t.kept = t.kept[:0]
}

const (
	keep    = 64        // times that a worker keeps, of which there may be thousands
	longest = time.Hour // as which longer times are recorded
	digits  = 3         // of each time
)

// histograms have the times of all workers. Each takes a quarter of a MiB, and there is one for each
// processor, so that hardly anybody who adds to one finds none free: who waits would be measured waiting.
type histograms []histogram

type histogram struct {
	mu    sync.Mutex // guards times
	times *hdrhistogram.Histogram
}

// newTimes returns what each worker records n operations with, and where that is in the end.
func newTimes(workers, n, several int) ([]Times, histograms) {
	shared := make(histograms, runtime.GOMAXPROCS(0))
	for i := range shared {
		shared[i].times = hdrhistogram.New(1, int64(longest), digits)
	}
	room := max(1, min(keep, n/several))
	kept, times := make([]time.Duration, workers*room), make([]Times, workers)
	for i := range times {
		times[i] = Times{several, kept[i*room : i*room : (i+1)*room], shared}
	}
	return times, shared
}

// add adds to the first histogram that is free.
func (h histograms) add(times []time.Duration) {
	for i := range h {
		if h[i].mu.TryLock() {
			h[i].addLocked(times)
			return
		}
	}
	h[0].mu.Lock()
	h[0].addLocked(times)
}

// addLocked releases the lock.
func (h *histogram) addLocked(times []time.Duration) {
	for _, d := range times {
		_ = h.times.RecordValue(int64(min(d, longest))) // there is none that it refuses
	}
	h.mu.Unlock()
}

// sum is all of them in one, after all workers have ended.
func (h histograms) sum() *hdrhistogram.Histogram {
	for i := range h[1:] {
		h[0].times.Merge(h[1+i].times)
	}
	return h[0].times
}
