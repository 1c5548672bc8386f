package provider

import (
	"fmt"
	"os"
	"strconv"
)

// What the environment of the process sets for all devices.
const (
	inlineEnv  = "RINGNET_INLINE"
	relaxedEnv = "RINGNET_RELAXED_ORDERING"
)

// MaxInline is how much inline data a queue pair has at most, in bytes. Cards of NVIDIA take requests of up to 256 bytes,
// which that much makes, when they are posted alone, from the processor itself (BlueFlame: post_send_db in rdma-core's
// providers/mlx5/qp.c); a longer one costs the copy, and a fetch by the card. More would also make every slot of the send
// queue larger, where copying by the processor stops being cheaper than that fetch.
const MaxInline = 220

// CheckSettings returns an error that names the first setting whose value is not allowed, or nil.
func CheckSettings() error {
	if _, err := InlineLimit(); err != nil {
		return err
	}
	_, err := RelaxedOrdering()
	return err
}

// InlineLimit is how much inline data a queue pair has at most, in bytes: 0 if no limit is set, negative for none.
func InlineLimit() (int, error) {
	value := os.Getenv(inlineEnv)
	switch value {
	case "":
		return 0, nil
	case "off":
		return -1, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > MaxInline {
		return 0, fmt.Errorf("the environment variable %s is %q: want 1 to %d, in bytes, or off", inlineEnv, value, MaxInline)
	}
	return n, nil
}

// RelaxedOrdering reports whether a device may write bytes to memory in another order
// than they arrived in, up to the completion. Some hosts (AMD's, and recent ones of
// Intel's) reach their bandwidth only with it and others lose by it, so an environment
// variable switches it off.
func RelaxedOrdering() (bool, error) {
	switch value := os.Getenv(relaxedEnv); value {
	case "", "on":
		return true, nil
	case "off":
		return false, nil
	default:
		return false, fmt.Errorf("the environment variable %s is %q: want on, off, or none at all, which is on", relaxedEnv, value)
	}
}
