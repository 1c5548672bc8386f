package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/alecthomas/kong"
)

// parsed is what the command takes a command line for.
func parsed(t *testing.T, args ...string) (c command) {
	t.Helper()
	parser, err := kong.New(&c, times, kong.Vars{"version": ""})
	require.NoError(t, err)
	_, err = parser.Parse(args)
	require.NoError(t, err)
	return c
}

func TestAPlainNumberIsSeconds(t *testing.T) {
	for given, want := range map[string]time.Duration{"0": 0, "2": 2 * time.Second, "0.5": time.Second / 2, "2m": 2 * time.Minute, "1m30s": 90 * time.Second} {
		require.Equal(t, want, parsed(t, "perf", "a:1", "-t", given).Perf.Time)
		require.Equal(t, want, parsed(t, "ss", "--watch", given).Ss.Watch)
		f, err := parseForwarding([]string{"--listen=tcp://:1", "--to=tcp://:2", "--dial-timeout", given})
		require.NoError(t, err)
		require.Equal(t, want, f.Options.DialTimeout)
	}
}
