package perf

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"time"
)

// A Runner measures rounds of cells. Its methods must not run at once.
type Runner struct {
	// Slice is about how long a round of a cell takes.
	Slice time.Duration

	// Usage is what client and server have used so far.
	Usage func() (client, server Usage, err error)

	// Note tells people what else there is to know.
	Note func(format string, args ...any)

	counts map[Cell]int // operations of a worker that took about a slice
}

// cellTimeout ends a cell in which everybody waits.
const cellTimeout = 2 * time.Minute

// Measure is one round of a cell, over connections made for it.
func (r *Runner) Measure(ctx context.Context, c Cell, w *Workload, dial func(context.Context) (net.Conn, error)) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, max(cellTimeout, 10*r.Slice))
	defer cancel()
	s, err := w.Open(Client{ctx, dial, c.Conns, c.Size})
	if err != nil {
		return Sample{}, err
	}
	once := sync.OnceFunc(s.Close)
	defer once()
	defer context.AfterFunc(ctx, once)() // releases whoever waits

	n, err := r.calibrate(c, w, s)
	if err != nil {
		return Sample{}, err
	}
	return r.sample(c, s, n)
}

// calibrate warms up and finds out how many operations of a worker take a slice.
func (r *Runner) calibrate(c Cell, w *Workload, s *Session) (int, error) {
	if w.Count > 0 {
		return w.Count, nil
	}
	if r.counts == nil {
		r.counts = make(map[Cell]int)
	}
	n := max(1, r.counts[c]/8)
	most := maxOperations
	if w.Limit > 0 {
		most = w.Limit / c.Conns
	}
	fastest, repeats := time.Duration(math.MaxInt64), 0
	for {
		n = min(n, most)
		elapsed, _, err := phase(s, c.Conns, n)
		if err != nil {
			return 0, err
		}
		fastest = min(fastest, elapsed)
		if elapsed >= r.Slice/8 && n < fewOperations && repeats < 3 {
			repeats++ // perhaps something else had the processor
			continue
		}
		if fastest >= r.Slice/8 || n == most {
			n = int(float64(n) * float64(r.Slice) / float64(fastest))
			n = min(max(n, r.counts[c]/2, 1), most)
			r.counts[c] = n
			return n, nil
		}
		// As package testing does: towards the goal, but not too fast.
		aim := int(float64(n) * float64(r.Slice/6) / float64(max(fastest, 1)))
		n = min(max(aim, n+1), 100*n)
		fastest = math.MaxInt64
	}
}

// fewOperations may all have been held up by one and the same thing.
const fewOperations = 16

// maxOperations bounds what a worker keeps the times of.
const maxOperations = 1 << 24

// phase has each worker do n operations and returns the time that all took and,
// where they are timed, the time of each.
func phase(s *Session, workers, n int) (time.Duration, []time.Duration, error) {
	var times []time.Duration
	if s.Timed {
		times = make([]time.Duration, workers*n)
	}
	errs := make([]error, workers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range workers {
		all.Go(func() {
			var own []time.Duration
			if times != nil {
				own = times[i*n : (i+1)*n]
			}
			errs[i] = s.Run(i, n, own)
		})
	}
	all.Wait()
	return time.Since(start), times, errors.Join(errs...)
}

// sample is the phase that counts.
func (r *Runner) sample(c Cell, s *Session, n int) (Sample, error) {
	client, server, err := r.Usage()
	if err != nil {
		return Sample{}, err
	}
	elapsed, times, err := phase(s, c.Conns, n)
	if err != nil {
		return Sample{}, err
	}
	clientAfter, serverAfter, err := r.Usage()
	if err != nil {
		return Sample{}, err
	}
	client, server = clientAfter.minus(client), serverAfter.minus(server)
	out := Sample{
		Ops: n * c.Conns, Seconds: elapsed.Seconds(),
		CPU: client.CPU + server.CPU, ServerCPU: server.CPU, LockWait: client.LockWait + server.LockWait,
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
		out.latencies(times, s.Half)
	}
	return out, nil
}

// Measure measures the cells that many times, those next to one another in turn, so
// that a machine that drifts does so under all of them. What comes out is in the
// report. After a round it calls save. It returns early, with its error, when ctx
// ends.
func (r *Report) Measure(ctx context.Context, cells []Cell, measure func(Cell) (Sample, error), show *Progress, save func()) error {
	results := make(map[Cell]*Result)
	failures := make(map[Cell]int)
	for _, c := range cells {
		results[c] = &Result{Cell: c, Rounds: make([]*Sample, r.Rounds)}
		r.Results = append(r.Results, results[c])
	}
	for round := range r.Rounds {
		for i, c := range cells {
			if failures[c] == maxFailures {
				continue
			}
			s, err := measure(c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				failures[c]++
				results[c].Error = err.Error()
				show.Note("%v: %v", c, err)
				continue
			}
			results[c].Rounds[round] = &s
			show.measured(round, r.Rounds, i, len(cells), c, &s)
		}
		save() // a long run that is cut short has not been in vain
	}
	return nil
}

// maxFailures is after how many failures a cell is not tried again.
const maxFailures = 3
