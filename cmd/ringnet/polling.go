package main

import (
	"fmt"
	"os"

	"github.com/ringnet/ringnet"
)

// pollingFlags are the flags of commands that wait for what connections bring.
type pollingFlags struct {
	BusyPoll busyPoll `placeholder:"TIME" help:"Poll so long before a wait sleeps, for example 50us, or off. Default: as long as has lately been worthwhile. Also: $RINGNET_BUSYPOLL."`
}

// busyPoll is a value of RINGNET_BUSYPOLL, which package ringnet reads.
type busyPoll string

// Validate is called by kong when all flags have been read.
func (b busyPoll) Validate() error {
	if b == "" {
		return nil
	}
	if err := os.Setenv("RINGNET_BUSYPOLL", string(b)); err != nil {
		return fmt.Errorf("%q: %w", b, err)
	}
	if new(ringnet.Config).Validate() != nil {
		return fmt.Errorf("%q: want a positive time, such as 50us, or off", b)
	}
	return nil
}
