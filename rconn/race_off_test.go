//go:build !race

package rconn_test

const raceEnabled = false
