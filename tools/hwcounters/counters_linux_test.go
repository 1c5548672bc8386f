package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSinceTellsWhatRose(t *testing.T) {
	before := counts{"a/1/sent": 5, "a/1/rcvd": 7, "a/1/gone": 1}
	after := counts{"a/1/sent": 9, "a/1/rcvd": 7, "b/1/new": 2}
	require.Equal(t, []rise{{"a/1/sent", 4}, {"b/1/new", 2}}, after.since(before))
}

func TestNoReceiveKnowsTheCountersOfDevices(t *testing.T) {
	for name, want := range map[string]bool{
		"rxe0/1/rcvd_rnr_err":           true,
		"rxe0/1/send_rnr_err":           true,
		"rxe0/1/retry_rnr_exceeded_err": true,
		"mlx5_0/1/rnr_nak_retry_err":    true,
		"mlx5_0/1/out_of_buffer":        true,
		"bnxt_re0/1/max_retry_exceeded": false,
		"rnr0/1/sent_pkts":              false,
	} {
		require.Equal(t, want, rise{counter: name}.noReceive(), name)
	}
}
