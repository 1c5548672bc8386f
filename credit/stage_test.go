package credit

import (
	"fmt"
	"slices"
)

// stageTable is the table at Stage: what may come after each.
var stageTable = map[Stage][]Stage{
	Dialing:   {Opening, Over},
	Opening:   {Open, Abandoned, Over},
	Abandoned: {Open, Over},
	Answering: {Open, Refusing},
	Refusing:  {Over},
	Open:      {Over},
	Over:      {},
}

// stagedWorld notes how stages change.
type stagedWorld struct {
	*streamWorld
	seen map[[2]Stage]bool
}

func (w stagedWorld) do(s *streamState, act streamAction) error {
	before := *s
	if err := w.streamWorld.do(s, act); err != nil {
		return err
	}
	for side := range s {
		for _, e := range before[side].ends {
			if e.id == 0 {
				continue
			}
			// A stream that the world has forgotten was over.
			after := Over
			if now := s[side].other(e.id); now != nil {
				after = now.ledger.Stage()
			}
			if err := w.note(e.ledger.Stage(), after); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w stagedWorld) note(before, after Stage) error {
	if before == after {
		return nil
	}
	if !slices.Contains(stageTable[before], after) {
		return fmt.Errorf("a stream that was %v is %v", before, after)
	}
	w.seen[[2]Stage{before, after}] = true
	return nil
}
