package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBashCompletes(t *testing.T) {
	script, err := commandProcess("completion", "bash").Output()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "completion")
	require.NoError(t, os.WriteFile(path, script, 0o600))
	for typed, want := range map[string]string{
		"ringnet pr":                       "proxy",
		"ringnet cp --se":                  "--serve",
		"ringnet perf --js":                "--json",
		"ringnet ss --wa":                  "--watch",
		"ringnet --js":                     "--json",
		"ringnet ss --carrier r":           "rdma",
		"ringnet completion z":             "zsh",
		"ringnet cp " + path[:len(path)-3]: path,
	} {
		const do = `source "$1"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ringnet; echo "${COMPREPLY[*]}"`
		out, err := exec.Command("bash", "-c", do, "bash", path, typed).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, want, strings.TrimSpace(string(out)), typed)
	}
}

func TestCompletionIsForEachShell(t *testing.T) {
	for shell, want := range map[string]string{
		"zsh":  "bashcompinit",
		"fish": "complete -c ringnet -n '__fish_seen_subcommand_from ss' -l carrier -x -a 'shm rdma tcp' -d 'Only those",
	} {
		out, err := commandProcess("completion", shell).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), want)
	}
	require.Equal(t, `'it\'s a \\ word'`, quoted(`it's a \ word`))
}
