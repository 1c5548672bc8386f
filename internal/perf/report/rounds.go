package report

import "context"

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
