package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/testing/programs"
)

// systemd ignores lines that it does not know, and starts the unit without them.
func TestSystemdAcceptsTheUnitsOfDocumentsAndExamples(t *testing.T) {
	units := make(map[string]string)
	for _, document := range []string{"docs/deploy.md", "docs/command.md"} {
		text, err := os.ReadFile(filepath.Join("..", document))
		require.NoError(t, err)
		for _, unit := range regexp.MustCompile(`(?m)^    \[Service\]\n(?:    .*\n|\n)+`).FindAllString(string(text), -1) {
			units[filepath.Base(document)+".service"] = regexp.MustCompile(`(?m)^    `).ReplaceAllString(unit, "")
		}
	}
	for _, unit := range []string{"activation.service", "activation.socket"} {
		text, err := os.ReadFile(filepath.Join("activation", unit))
		require.NoError(t, err)
		units[unit] = string(text)
	}
	require.Len(t, units, 4)

	dir := t.TempDir()
	args := []string{"verify", "--man=no", "--recursive-errors=no"}
	for name, unit := range units {
		// The programs need not be installed.
		unit = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/\w+`).ReplaceAllString(unit, "ExecStart=/bin/true")
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(unit), 0o600))
		args = append(args, path)
	}
	out, err := exec.CommandContext(t.Context(), programs.Path(t, "systemd-analyze", "systemd"), args...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NotContains(t, string(out), dir, "a warning")
}
