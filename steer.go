package ringnet

// Which networks auto uses.

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// betterThanTCP are the networks that auto prefers to TCP, the best first.
var betterThanTCP = []string{"shm", "rdma"}

// networksEnv is the environment variable that lists the networks that auto uses, in the order
// to try them.
const networksEnv = "RINGNET_NETWORKS"

// steering says which networks auto is to use.
type steering struct {
	better   []string // networks, in the order to try them
	off      []string // the better networks that are left out
	fallBack bool     // TCP may carry the connection
}

var errOff = errors.New("switched off by RINGNET_NETWORKS or Require")

// steer reads RINGNET_NETWORKS.
func steer() (steering, error) {
	value := os.Getenv(networksEnv)
	if value == "" {
		return steering{better: betterThanTCP, fallBack: true}, nil
	}
	var s steering
	for _, name := range strings.Split(value, ",") {
		switch {
		case s.fallBack:
			return s, fmt.Errorf("the environment variable %s is %q: tcp must come last", networksEnv, value)
		case name == "tcp":
			s.fallBack = true
		case slices.Contains(s.better, name):
			return s, fmt.Errorf("the environment variable %s is %q: %s is named twice", networksEnv, value, name)
		case slices.Contains(betterThanTCP, name):
			s.better = append(s.better, name)
		default:
			return s, fmt.Errorf("the environment variable %s is %q: want some of shm, rdma and tcp, separated by commas", networksEnv, value)
		}
	}
	return s.leaveOut(), nil
}

// leaveOut sets off to the networks that better leaves out.
func (s steering) leaveOut() steering {
	s.off = nil
	for _, name := range betterThanTCP {
		if !slices.Contains(s.better, name) {
			s.off = append(s.off, name)
		}
	}
	return s
}

// steer returns which networks a dial is to use: RINGNET_NETWORKS and Require say so.
func (d *Dialer) steer() (steering, error) {
	s, err := steer()
	if err != nil || len(d.Require) == 0 {
		return s, err
	}
	if err := checkRequired("Dialer.Require", d.Require); err != nil {
		return s, err
	}
	s.fallBack = false
	s.better = slices.DeleteFunc(slices.Clone(s.better), func(name string) bool { return !slices.Contains(d.Require, name) })
	return s.leaveOut(), nil
}

// checkRequired returns an error if a field named Require names an unknown network.
func checkRequired(field string, networks []string) error {
	for _, name := range networks {
		if !slices.Contains(betterThanTCP, name) {
			return fmt.Errorf("%s has %q: want shm or rdma", field, name)
		}
	}
	return nil
}
