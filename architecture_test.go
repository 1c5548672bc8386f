package ringnet

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// architecturePackages are the packages that docs/architecture.md names, and their
// directories.
var architecturePackages = map[string]string{
	"ringnet":  ".",
	"rconn":    "rconn",
	"pconn":    "internal/pconn",
	"auto":     "internal/auto",
	"link":     "internal/link",
	"credit":   "credit",
	"wire":     "internal/wire",
	"budget":   "internal/budget",
	"fabric":   "internal/fabric",
	"shm":      "internal/fabric/shm",
	"verbs":    "internal/fabric/verbs",
	"sim":      "internal/fabric/sim",
	"metrics":  "metrics",
	"command":  "cmd/ringnet",
	"endpoint": "cmd/ringnet/internal/endpoint",
}

func TestEveryNameInTheArchitectureDocumentExists(t *testing.T) {
	document, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	sources := make(map[string]string)
	for name, directory := range architecturePackages {
		paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			sources[name] += string(text)
		}
	}
	for _, m := range regexp.MustCompile("[`\"]([a-z]+)\\.([A-Za-z][\\w.]*)").FindAllStringSubmatch(string(document), -1) {
		require.True(t, sources[m[1]] != "", "architecturePackages lacks that of %s.%s", m[1], m[2])
		for part := range strings.SplitSeq(m[2], ".") {
			declared := regexp.MustCompile(`\b` + part + `\b`).MatchString(sources[m[1]])
			require.True(t, declared, "package %s has no %s of %s", m[1], part, m[2])
		}
	}
}
