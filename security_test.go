package ringnet

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testDirectories are the directories of the tests that documents name, as package and
// test.
var testDirectories = map[string]string{
	"ringnet":     ".",
	"budget":      "internal/budget",
	"mapping":     "internal/mapping",
	"command":     "cmd/ringnet",
	"auto":        "internal/auto",
	"autoudp":     "internal/autoudp",
	"examples":    "examples",
	"integration": "internal/integration",
	"interop":     "interop",
	"limiter":     "internal/limiter",
	"link":        "internal/link",
	"pconn":       "internal/pconn",
	"rconn":       "rconn",
	"shm":         "internal/fabric/shm",
	"verbs":       "internal/fabric/verbs",
	"wire":        "internal/wire",
}

// namedTests finds them in a document. A * stands for the rest of several names.
var namedTests = regexp.MustCompile("`(\\w+)\\.((?:Test|Fuzz)[A-Z]\\w+\\*?)`")

// TestEveryClaimOfTheSecurityDocumentHasItsTest finds a test named with each
// item of the lists in docs/security.md, and each test that is named.
func TestEveryClaimOfTheSecurityDocumentHasItsTest(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	require.NoError(t, err)
	for _, claim := range strings.Split(string(text), "\n- ")[1:] {
		claim, _, _ = strings.Cut(claim, "\n\n")
		tests := namedTests.FindAllStringSubmatch(claim, -1)
		require.NotEmpty(t, tests, "no test is named with %q", claim)
		for _, test := range tests {
			require.Contains(t, testDirectories, test[1])
			requireTest(t, testDirectories[test[1]], test[2])
		}
	}
}

// declaredTests are the lines that declare tests, by directory, as far as they have been read.
var declaredTests = make(map[string]string)

func requireTest(t *testing.T, directory, name string) {
	t.Helper()
	if declaredTests[directory] == "" {
		files, err := filepath.Glob(filepath.Join(directory, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range strings.Lines(string(source)) {
				if strings.HasPrefix(line, "func ") {
					declaredTests[directory] += line
				}
			}
		}
	}
	declared := regexp.MustCompile(`(?m)^func ` + strings.ReplaceAll(name, "*", `\w+`) + `\(`)
	require.True(t, declared.MatchString(declaredTests[directory]), "there is no test %s in %s", name, directory)
}
