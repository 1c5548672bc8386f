package ringnet

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// make fuzz starts from the inputs that are committed beside a target, and go test runs
// each of them.
func TestEveryFuzzTargetHasItsCorpus(t *testing.T) {
	var targets, corpora []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		dir := filepath.Dir(path)
		if strings.Contains(filepath.ToSlash(path), "/testdata/fuzz/") && !slices.Contains(corpora, dir) {
			corpora = append(corpora, dir)
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, target := range regexp.MustCompile(`(?m)^func (Fuzz\w+)`).FindAllSubmatch(text, -1) {
			targets = append(targets, filepath.Join(dir, "testdata", "fuzz", string(target[1])))
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, targets)
	require.ElementsMatch(t, targets, corpora)
}
