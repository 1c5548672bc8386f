package perf

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"time"
)

// A Runner measures rounds of cells. Its methods must not be called at once.
type Runner struct {
	// Slice is about how long a round of a cell takes.
	Slice time.Duration

	// Usage returns what client and server have used so far.
	Usage func() (client, server Usage, err error)

	// Strangers, if not nil, returns the processor time that strangers have had so far, in
	// seconds.
	Strangers func() float64

	// Note shows a message to people.
	Note func(format string, args ...any)

	counts map[Cell]int // operations of a worker that took about a slice
}

// cellTimeout ends a cell that hangs.
const cellTimeout = 2 * time.Minute

// Measure measures one round of a cell, over new connections.
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
			repeats++ // perhaps another process had the processor
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

// fewOperations is so few that one disturbance may have delayed them all.
const fewOperations = 16

// maxOperations is how many operations a worker may do, whose times it keeps.
const maxOperations = 1 << 24

// phase runs n operations of each worker, and returns the time that all took and, if they
// are timed, the time of each.
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

// sample runs the phase that is measured.
func (r *Runner) sample(c Cell, s *Session, n int) (Sample, error) {
	client, server, err := r.Usage()
	if err != nil {
		return Sample{}, err
	}
	others := r.strangers()
	elapsed, times, err := phase(s, c.Conns, n)
	if err != nil {
		return Sample{}, err
	}
	others = r.strangers() - others
	clientAfter, serverAfter, err := r.Usage()
	if err != nil {
		return Sample{}, err
	}
	client, server = clientAfter.minus(client), serverAfter.minus(server)
	out := Sample{
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
		out.latencies(times, s.Half)
	}
	return out, nil
}

func (r *Runner) strangers() float64 {
	if r.Strangers == nil {
		return 0
	}
	return r.Strangers()
}

// Measure measures r.Rounds rounds of all cells and puts the results into the report. In
// each round it measures the cells in order, so that a machine that becomes slower or
// faster meanwhile does so for all of them. After each round it calls save. When ctx ends
// it returns early, with the error of ctx.
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

// maxFailures is after how many failures a cell is not measured any more.
const maxFailures = 3
