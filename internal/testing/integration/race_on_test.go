//go:build race

package integration_test

// shadow is how many times as much memory the race detector has a process take (5 to 10 times for what it
// watches, by its documentation, https://go.dev/doc/articles/race_detector).
const shadow = 5
