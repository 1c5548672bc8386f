package rconn_test

import (
	"testing"

	"golang.org/x/net/nettest"
)

func TestNettest(t *testing.T) {
	overEachFabricInRealTime(t, func(t *testing.T, v venue) {
		nettest.TestConn(t, v.pipe(t))
	})
}
