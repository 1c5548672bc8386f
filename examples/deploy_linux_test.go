package examples

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ringnet/ringnet/internal/programs"
)

// Operators copy parts of the documents: units that systemd reads, YAML and JSON.

// blocks returns the indented parts of a document.
func blocks(t *testing.T, document string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", document))
	require.NoError(t, err)
	var all []string
	for _, block := range regexp.MustCompile(`(?m)(?:^    .*\n|^\n)+`).FindAllString(string(text), -1) {
		if strings.TrimSpace(block) != "" {
			all = append(all, regexp.MustCompile(`(?m)^    `).ReplaceAllString(block, ""))
		}
	}
	require.NotEmpty(t, all)
	return all
}

// systemd ignores lines that it does not know, and starts the unit without them.
func TestSystemdAcceptsTheUnitsOfDocumentsAndExamples(t *testing.T) {
	units := make(map[string]string)
	for _, document := range []string{"docs/deploy.md", "docs/command.md"} {
		for _, block := range blocks(t, document) {
			if strings.HasPrefix(strings.TrimSpace(block), "[Service]") {
				units[filepath.Base(document)+".service"] = block
			}
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

func TestRecipesForKubernetesFitTogether(t *testing.T) {
	var all strings.Builder
	for _, block := range blocks(t, "docs/deploy.md") {
		var v any
		switch first := strings.TrimSpace(block); {
		case strings.HasPrefix(first, "{"):
			require.NoError(t, json.Unmarshal([]byte(block), &v), block)
		case strings.HasPrefix(first, "spec:\n"):
			require.NoError(t, yaml.Unmarshal([]byte(block), &v), block)
		default:
			continue
		}
		fmt.Fprintf(&all, "%v\n", v)
	}
	resource := regexp.MustCompile(`resourceName:(\w+) `).FindStringSubmatch(all.String())
	require.NotNil(t, resource, all.String())
	require.Contains(t, all.String(), "limits:map[rdma/"+resource[1]+":1]")
}
