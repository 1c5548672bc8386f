package main

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPerfNamesSizesExactly(t *testing.T) {
	out, err := commandProcess("perf", perfServing(t, "127.0.0.1"), "--networks=tcp", "--sizes=64KB", "--connections=1", "--rounds=1", "--slice=1ms").Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^64 kB +`, string(out))
	require.NotContains(t, string(out), "63 KiB")
}

// Who ends perf -t has what was measured, as of iperf3.
func TestPerfStreamsUntilItIsInterrupted(t *testing.T) {
	for _, network := range []string{"auto", "tcp"} {
		perf := commandProcess("perf", perfServing(t, "127.0.0.1"), "-t", "1h", "--networks", network)
		errs := new(strings.Builder)
		perf.Stderr = errs
		out, err := perf.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, perf.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan())
		require.Regexp(t, ` [kMGT]?B/s sent `, lines.Text())
		require.NoError(t, perf.Process.Signal(os.Interrupt))
		last := ""
		for lines.Scan() {
			last = lines.Text()
		}
		require.Regexp(t, `^  0\.0 to .*, in all$`, last)
		require.NoError(t, perf.Wait(), errs)
		require.Empty(t, errs.String())
	}
}
