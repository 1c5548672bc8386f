package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// completed is what bash offers for the last of some words, as readline splits them: = is one.
func completed(t *testing.T, script string, words ...string) string {
	t.Helper()
	const do = `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ringnet; echo "${COMPREPLY[*]}"`
	out, err := exec.Command("bash", append([]string{"-c", do, script, "ringnet"}, words...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

func TestBashCompletes(t *testing.T) {
	script, err := commandProcess("completion", "bash").Output()
	require.NoError(t, err)
	dir := t.TempDir()
	path := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(path, script, 0o600))
	t.Chdir(dir) // the file is what would be offered
	for _, c := range []struct{ typed, want string }{
		{"ss --state = f", "fin-sent fin-received finished"},
		{"ss --state =", "open fin-sent fin-received finished reset aborted closing ended seeking busy"},
		{"ss --state=cl", "--state=closing"}, // zsh
		{"perf --networks auto,t", "auto,tcp"},
		{"perf --networks = auto,shm,r", "auto,shm,rdma"},
		{"perf --networks=auto,t", "--networks=auto,tcp"},
		{"perf --networks ", "auto shm rdma tcp"},
		{"--json pe", "perf"},
		{"help pe", "perf"},
		{"--json ss --carrier s", "shm"},
		{"ss --json --li", "--links"},
		{"ss --links --carrier s", "shm"},
		{"kill ", ""},
		{"kill 1 ", ""},
		{"ss ", ""},
		{"ss --process ", ""},
		{"ss --process s", ""},
		{"perf -t ", ""},
		{"perf ", ""},
		{"proxy --file scr", "script"},
		{"proxy --file = scr", "script"},
		{"proxy --file=scr", "--file=script"},
		{"proxy --require shm,", "shm,shm shm,rdma"},
		{"completion ", "bash zsh fish"},
	} {
		require.Equal(t, c.want, completed(t, path, strings.Split(c.typed, " ")...), c.typed)
	}
}

// Where no argument is a file, fish offers none either.
func TestCompletionIsForEachShell(t *testing.T) {
	const fish = "complete -c ringnet -n '__fish_seen_subcommand_from "
	for shell, lines := range map[string][]string{
		"zsh": {"bashcompinit"},
		"fish": {fish + "ss' -l carrier -x -a 'shm rdma tcp' -d 'Only those", fish + "kill' -f", fish + "ss' -f",
			fish + "ss' -l process -x -d 'Only those of", fish + "proxy' -l file -r -d", fish + "perf' -l reverse -d"},
	} {
		script, err := commandProcess("completion", shell).Output()
		require.NoError(t, err)
		for _, line := range lines {
			require.Contains(t, string(script), line)
		}
	}
	require.Equal(t, `'it\'s a \\ word'`, quoted(`it's a \ word`))
}
