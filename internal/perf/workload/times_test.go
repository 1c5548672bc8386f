package workload

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/require"
)

// Many workers, each with times of its own length, from nanoseconds to minutes.
func TestHistogramHasTheTimesOfAllWorkers(t *testing.T) {
	const workers, each = 1000, 150
	times, shared := newTimes(workers, each, 1)
	all := make([]time.Duration, workers*each)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range all {
		all[i] = time.Duration(1) << random.IntN(38)
		all[i] += time.Duration(random.Int64N(int64(all[i])))
	}
	var ended sync.WaitGroup
	for i := range times {
		ended.Go(func() {
			for _, d := range all[i*each : (i+1)*each] {
				times[i].Record(d)
			}
			times[i].flush()
		})
	}
	ended.Wait()
	slices.Sort(all)
	sum := shared.sum()
	require.EqualValues(t, len(all), sum.TotalCount())
	for _, percentile := range []float64{0.1, 50, 90, 99, 99.9, 100} {
		exact := float64(all[int(percentile/100*float64(len(all)))-1])
		require.InEpsilon(t, exact, sum.ValueAtPercentile(percentile), 1e-3, "%g %%", percentile)
	}
}

func TestTimesThatHistogramsHaveNoRoomForCount(t *testing.T) {
	times, shared := newTimes(1, 3, 1)
	for _, d := range []time.Duration{0, time.Second, 100 * time.Hour} {
		times[0].Record(d)
	}
	times[0].flush()
	sum := shared.sum()
	require.EqualValues(t, 3, sum.TotalCount())
	require.InEpsilon(t, float64(time.Hour), sum.ValueAtPercentile(100), 1e-3)
}

func TestWhoFindsAHistogramFreeDoesNotWait(t *testing.T) {
	shared := make(histograms, 3)
	for i := range shared {
		shared[i].times = hdrhistogram.New(1, int64(longest), digits)
	}
	shared[0].mu.Lock()
	shared[1].mu.Lock()
	shared.add([]time.Duration{1, 2}) // this goroutine would wait for itself
	require.EqualValues(t, 2, shared[2].times.TotalCount())
	shared[0].mu.Unlock()
	shared.add([]time.Duration{3})
	require.EqualValues(t, 1, shared[0].times.TotalCount())
	shared[1].mu.Unlock()
	require.EqualValues(t, 3, shared.sum().TotalCount())
}

func TestRecordingAllocatesNothing(t *testing.T) {
	times, _ := newTimes(1, 1e6, 1)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		for i := range 10 * keep {
			times[0].Record(time.Duration(i) * time.Microsecond)
		}
	}))
}

func TestWorkersHaveNoHistogramEach(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	times, _ := newTimes(10_000, 1e6, 1)
	runtime.ReadMemStats(&after)
	require.Len(t, times, 10_000)
	require.Less(t, int(after.TotalAlloc-before.TotalAlloc), 10_000*1024+runtime.GOMAXPROCS(0)<<20, "bytes")
}

func BenchmarkRecord(b *testing.B) {
	times, _ := newTimes(1, 1e6, 1)
	for i := range b.N {
		times[0].Record(time.Duration(i&0xffff) * 10)
	}
}

// Here all workers fill their memory at once, and wait for nothing else.
func BenchmarkRecordOfManyWorkers(b *testing.B) {
	times, _ := newTimes(1000, 1e6, 1)
	var workers sync.WaitGroup
	for i := range times {
		workers.Go(func() {
			for range b.N / len(times) {
				times[i].Record(time.Duration(i) * time.Microsecond)
			}
		})
	}
	workers.Wait()
}
