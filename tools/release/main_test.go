package main

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	architectures = []string{runtime.GOARCH}
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
	requireSums(t, dir)
	require.ErrorContains(t, release(dir, "v0.1.7"), "there is a tag")
	requireFiles(t, filepath.Join(dir, "bin", "dist"))
}

// requireSums requires that the modules know each other by the sums of what is tagged.
func requireSums(t *testing.T, dir string) {
	for _, m := range []string{".", "internal/perf", "metrics"} { // which the command imports
		download := exec.Command("go", "mod", "download", "-json", pathOf(m)+"@v0.1.7")
		download.Dir, download.Env = t.TempDir(), environment(dir, t.TempDir())
		said, err := download.Output()
		require.NoError(t, err, "%s", said)
		var tagged struct{ Sum string }
		require.NoError(t, json.Unmarshal(said, &tagged))
		known, err := output(dir, "git", "grep", "-h", "^"+pathOf(m)+" v0.1.7 h1:", tagOf("cmd/ringnet", "v0.1.7"), "--", "*go.sum")
		require.NoError(t, err, m)
		for line := range strings.Lines(known) {
			require.Equal(t, pathOf(m)+" v0.1.7 "+tagged.Sum, strings.TrimSpace(line))
		}
	}
}

// requireFiles requires that what is built for those without Go works, and that Debian's lintian has
// nothing against the package.
func requireFiles(t *testing.T, folder string) {
	require.NoError(t, run(folder, nil, "sha256sum", "--check", "--strict", "SHA256SUMS"))
	listed, err := os.ReadFile(filepath.Join(folder, "SHA256SUMS"))
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(listed), "\n"))

	at := t.TempDir()
	require.NoError(t, run(at, nil, "tar", "-xzf", filepath.Join(folder, "ringnet_0.1.7_linux_"+runtime.GOARCH+".tar.gz"), "--strip-components=1"))
	says, err := output(at, "./ringnet", "--version")
	require.NoError(t, err)
	require.Contains(t, says, "ringnet v0.1.7,")
	static, err := elf.Open(filepath.Join(at, "ringnet"))
	require.NoError(t, err)
	defer static.Close()
	require.Nil(t, static.Section(".interp"), "it is linked statically")

	deb := filepath.Join(folder, "ringnet_0.1.7-1_"+runtime.GOARCH+".deb")
	require.NoError(t, run(at, nil, "dpkg-deb", "--extract", deb, "."))
	says, err = output(at, "usr/bin/ringnet", "--version")
	require.NoError(t, err)
	require.Contains(t, says, "ringnet v0.1.7,")
	if _, err := exec.LookPath("lintian"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	said, err := exec.Command("lintian", "--fail-on", "error,warning,info", deb).CombinedOutput()
	require.NoError(t, err, "%s", said)

	var bill struct {
		Packages []struct{ Name, VersionInfo string }
	}
	text, err := os.ReadFile(filepath.Join(folder, "ringnet_0.1.7_linux_"+runtime.GOARCH+".spdx.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &bill))
	require.Greater(t, len(bill.Packages), 5)
	require.Equal(t, root+"/cmd/ringnet", bill.Packages[0].Name)
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
