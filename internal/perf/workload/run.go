package workload

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/perf/report"
)

// A Runner measures rounds of cells. Its methods must not be called at once.
type Runner struct {
	// Slice is about how long a round of a cell takes.
	Slice time.Duration

	// Several, if not nil, is how many operations with a size are measured together.
	Several func(size int) int

	// Usage returns what client and server have used so far.
	Usage func() (client, server Usage, err error)

	// Strangers, if not nil, returns the processor time that strangers have had so far, in
	// seconds.
	Strangers func() float64

	// Note shows a message to people.
	Note func(format string, args ...any)

	counts map[report.Cell]int // operations of a worker that took about a slice
}

// cellTimeout ends a cell that hangs.
const cellTimeout = 2 * time.Minute

// Measure measures one round of a cell, over new connections.
func (r *Runner) Measure(ctx context.Context, c report.Cell, w *Workload, dial func(context.Context) (net.Conn, error)) (report.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, max(cellTimeout, 10*r.Slice))
	defer cancel()
	several := 1
	if r.Several != nil {
		several = r.Several(c.Size)
	}
	s, err := w.Open(Client{ctx, dial, c.Conns, c.Size, several})
	if err != nil {
		return report.Sample{}, err
	}
	once := sync.OnceFunc(s.Close)
	defer once()
	defer context.AfterFunc(ctx, once)() // releases whoever waits

	n, err := r.calibrate(c, w, s)
	if err != nil {
		return report.Sample{}, err
	}
	return r.sample(c, s, s.whole(n))
}

// whole rounds a number of operations up to one of whole Several.
func (s *Session) whole(n int) int {
	several := max(s.Several, 1)
	return (n + several - 1) / several * several
}

// calibrate warms up and finds out how many operations of a worker take a slice.
func (r *Runner) calibrate(c report.Cell, w *Workload, s *Session) (int, error) {
	if w.Count > 0 {
		return w.Count, nil
	}
	if r.counts == nil {
		r.counts = make(map[report.Cell]int)
	}
	n := max(1, r.counts[c]/8)
	most := maxOperations
	if w.Limit > 0 {
		most = w.Limit / c.Conns
	}
	for {
		n = min(n, most)
		elapsed, _, err := phase(s, c.Conns, s.whole(n))
		if err != nil {
			return 0, err
		}
		if elapsed >= r.Slice/8 || n == most {
			n = int(float64(n) * float64(r.Slice) / float64(elapsed))
			n = min(max(n, r.counts[c]/2, 1), most) // perhaps another process had the processor
			r.counts[c] = n
			return n, nil
		}
		// As package testing does: towards the goal, but not too fast.
		aim := int(float64(n) * float64(r.Slice/6) / float64(max(elapsed, 1)))
		n = min(max(aim, n+1), 100*n)
	}
}

// maxOperations is how many operations a worker may do in a round.
const maxOperations = 1 << 24

// phase runs n operations of each worker, and returns the time that all took and, if they
// are timed, their times.
func phase(s *Session, workers, n int) (time.Duration, histograms, error) {
	var times []Times
	var shared histograms
	if s.Timed {
		times, shared = newTimes(workers, n, max(s.Several, 1))
	}
	errs := make([]error, workers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range workers {
		all.Go(func() {
			if times == nil {
				errs[i] = s.Run(i, n, nil)
				return
			}
			errs[i] = s.Run(i, n, &times[i])
			times[i].flush()
		})
	}
	all.Wait()
	return time.Since(start), shared, errors.Join(errs...)
}

// sample runs the phase that is measured.
func (r *Runner) sample(c report.Cell, s *Session, n int) (report.Sample, error) {
	client, server, err := r.Usage()
	if err != nil {
		return report.Sample{}, err
	}
	others := r.strangers()
	elapsed, times, err := phase(s, c.Conns, n)
	if err != nil {
		return report.Sample{}, err
	}
	others = r.strangers() - others
	clientAfter, serverAfter, err := r.Usage()
	if err != nil {
		return report.Sample{}, err
	}
	client, server = clientAfter.minus(client), serverAfter.minus(server)
	out := report.Sample{
		Ops: n * c.Conns, Seconds: elapsed.Seconds(),
		CPU: client.CPU + server.CPU, ServerCPU: server.CPU, LockWait: client.LockWait + server.LockWait,
		Strangers: others / elapsed.Seconds(),
	}
	if s.Failed != nil {
		if out.Failed, err = s.Failed(); err != nil {
			r.Note("%v: %d of %d failed, one of them: %v", c, out.Failed, out.Ops, err)
		}
		out.Ops -= out.Failed
	}
	out.Bytes = out.Ops * s.Bytes
	allocs := float64(client.Mallocs+server.Mallocs) / float64(out.Ops)
	out.Allocs = &allocs
	if times != nil {
		out.SetLatencies(times.sum(), s.Half)
	}
	return out, nil
}

func (r *Runner) strangers() float64 {
	if r.Strangers == nil {
		return 0
	}
	return r.Strangers()
}
