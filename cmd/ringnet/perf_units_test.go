package main

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPerfNamesSizesExactly(t *testing.T) {
	for size, want := range map[int]string{64: "64 B", 4 << 10: "4.0 KiB", 64 << 10: "64 KiB", 1 << 20: "1.0 MiB", 1536: "1.5 KiB", 64_000: "64 kB", 1_500_000: "1.5 MB", 64_001: "64001 B", 1: "1 B", maxPerfSize: "16 MiB"} {
		require.Equal(t, want, exactSize(size))
	}
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
