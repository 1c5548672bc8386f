package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// clone is a copy of the repository at its last commit, in which the changelog has a version.
func clone(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "clone")
	config := filepath.Join(t.TempDir(), "config")
	const text = "[user]\nname = Releaser\nemail = releaser@example.org\n[safe]\ndirectory = *\n" // whoever has cloned it
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	t.Setenv("GOSUMDB", "off") // go install asks it of every module, and it may be out of reach
	require.NoError(t, run(".", nil, "git", "clone", "--quiet", "--no-tags", "../..", dir))
	changes := filepath.Join(dir, "CHANGELOG.md")
	before, err := os.ReadFile(changes)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(changes, append(before, "\n## 0.1.7, 2026-01-02\n"...), 0o644))
	require.NoError(t, run(dir, nil, "git", "commit", "--quiet", "--all", "--message", "Changes"))
	return dir
}

// What is tagged can be installed, and main stays as it was.
func TestRelease(t *testing.T) {
	dir := clone(t)
	before, err := output(dir, "git", "rev-parse", "HEAD")
	require.NoError(t, err)
	require.NoError(t, release(dir, "v0.1.7"))
	after, err := output(dir, "git", "rev-parse", "HEAD")
	require.NoError(t, err)
	require.Equal(t, before, after)

	all, err := output(dir, "git", "tag")
	require.NoError(t, err)
	require.ElementsMatch(t, tags("v0.1.7"), strings.Split(all, "\n"))
	for _, m := range modules {
		mod, err := output(dir, "git", "show", tagOf(m, "v0.1.7")+":"+filepath.ToSlash(filepath.Join(m, "go.mod")))
		require.NoError(t, err)
		require.NotContains(t, mod, "replace", m)
		require.NotContains(t, mod, root+" v0.0.0", m)
	}
	require.ErrorContains(t, release(dir, "v0.1.7"), "there is a tag")
}

func TestReleaseSaysWhatIsMissing(t *testing.T) {
	dir := clone(t)
	require.ErrorContains(t, release(dir, "0.1.7"), "want a version")
	require.ErrorContains(t, release(dir, "v0.1"), "want a version")
	require.ErrorContains(t, release(dir, "v2.0.0"), "major version")
	require.ErrorContains(t, release(dir, "v0.1.8"), "CHANGELOG.md has no line")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "doc.go"), []byte("package ringnet\n"), 0o644))
	require.ErrorContains(t, release(dir, "v0.1.7"), "not committed")
}
