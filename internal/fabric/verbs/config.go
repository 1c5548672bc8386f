package verbs

import "github.com/ringnet/ringnet/internal/fabric"

// Config has the options of a fabric.
type Config struct {
	// TrafficClass is what the packets of connections are marked with, as
	// ringnet.Config has it.
	TrafficClass int

	// Vectors are completion vectors, as ringnet.Config has them.
	Vectors string

	// Inline is how much inline data a work request has, as ringnet.Config has it.
	Inline int
}

// Fabric returns the fabric with the default configuration.
func Fabric() (fabric.Fabric, error) { return New(Config{}) }
