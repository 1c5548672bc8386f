//go:build !race

package rconn

func raceRelease() {}
func raceAcquire() {}
