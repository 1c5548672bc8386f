//go:build race

package credit

const raceEnabled = true
