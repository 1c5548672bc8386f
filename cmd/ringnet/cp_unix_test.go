//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCpDoesNotWaitForAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	out, err := commandProcess("cp", pipe, "127.0.0.1:1").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "not a regular file")
}
