// Package mutants sees that the tests of a package fail when a step is left out of what they test.
package mutants

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Mutant is an edit of a file, relative to the folder of the package whose tests are to fail: Old stands there once.
type Mutant struct{ Name, File, Old, New, Tests string }

// Run sees that each mutant fails its Tests, or otherwise if it names none, which are run with more of an environment. It
// skips if RINGNET_MUTANTS is not set, for it takes minutes.
func Run(t *testing.T, all []Mutant, otherwise string, env ...string) {
	if os.Getenv("RINGNET_MUTANTS") == "" {
		t.Skip("RINGNET_MUTANTS is not set")
	}
	run := func(ctx context.Context, program, tests string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, program, "-test.run", "^"+tests)
		cmd.Env = append(os.Environ(), env...)
		return cmd.CombinedOutput()
	}
	unchanged := filepath.Join(t.TempDir(), "unchanged.test")
	out, err := exec.Command("go", "test", "-c", "-o", unchanged, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	took := make(map[string]time.Duration) // by tests, how long they take without a mutant
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			tests := m.Tests
			if tests == "" {
				tests = otherwise
			}
			program := m.build(t)
			if took[tests] == 0 {
				began := time.Now()
				out, err := run(t.Context(), unchanged, tests)
				require.NoError(t, err, "%s", out)
				took[tests] = time.Since(began)
			}
			// Virtual time may stand: what takes four times as long as without the mutant hangs.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second+4*took[tests])
			defer cancel()
			out, err := run(ctx, program, tests)
			require.Error(t, err, "%s does not fail", tests)
			first, _, _ := strings.Cut(string(out), "\n")
			t.Log(err, first)
		})
	}
}

// build builds the tests of the package with the mutant.
func (m *Mutant) build(t *testing.T) (program string) {
	path, err := filepath.Abs(m.File)
	require.NoError(t, err)
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(source), m.Old), "%q in %s", m.Old, m.File)
	dir := t.TempDir()
	mutated, overlay := filepath.Join(dir, filepath.Base(m.File)), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(mutated, []byte(strings.Replace(string(source), m.Old, m.New, 1)), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	program = filepath.Join(dir, "mutant.test")
	out, err := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// Of are mutants of which each is its name, file, old, new and tests.
func Of(edits [][5]string) (all []Mutant) {
	for _, e := range edits {
		all = append(all, Mutant{Name: e[0], File: e[1], Old: e[2], New: e[3], Tests: e[4]})
	}
	return all
}
