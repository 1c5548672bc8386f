package link

import (
	"fmt"
	"slices"
)

// stageTable is the table at stage: what may come after each.
var stageTable = map[stage][]stage{
	up:       {draining, ending},
	draining: {seeking, ending, ended},
	ending:   {ended, closed},
	seeking:  {up, ended},
	ended:    {closed},
}

// All tests of this package hold all links to the table.
func init() {
	testHookEnter = func(before, after stage) {
		if !slices.Contains(stageTable[before], after) {
			panic(fmt.Sprintf("a link goes from stage %d to %d", before, after))
		}
	}
}
