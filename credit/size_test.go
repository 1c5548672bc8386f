package credit

import (
	"os"
	"testing"
)

// soak asks for the explorations that take minutes and gigabytes.
var soak = os.Getenv("RINGNET_SOAK") != ""

// size is how long an exploration takes.
type size int

const (
	small  size = iota // also with the race detector
	medium             // seconds
	large              // minutes: soak
)

func (s size) skip(t *testing.T) {
	switch {
	case s == large && !soak:
		t.Skip("set RINGNET_SOAK for this")
	case s == medium && (raceEnabled || testing.Short()):
		t.Skip("takes seconds, many with the race detector, which has nothing to find here: go test ./credit, as make unit does")
	}
}
