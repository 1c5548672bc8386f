package ringnet

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// maxSameLines is how many lines of code in a row may stand in another place, too.
const maxSameLines = 5

// isCode reports whether a line counts: not a comment, a row of a table, or one that has only braces.
func isCode(line string) bool {
	return strings.ContainsFunc(line, unicode.IsLetter) && !strings.HasPrefix(line, "//") && !strings.HasPrefix(line, "{") && !strings.HasPrefix(line, `"`)
}

// eachFile calls f with each file of Go but for tests, of all modules.
func eachFile(t *testing.T, f func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(path, string(text))
		}
		return err
	}))
}

// A raw system call keeps a processor of Go's scheduler for as long as it takes, and the collector
// waits for it. That of most is up to whoever owns the other end.
func TestEverySystemCallIsKnownToTheScheduler(t *testing.T) {
	eachFile(t, func(path, text string) {
		for i, line := range strings.Split(text, "\n") {
			if strings.Contains(line, "RawSyscall") || strings.Contains(line, "SyscallNoError") {
				t.Errorf("%s:%d: %s", path, i+1, strings.TrimSpace(line))
			}
		}
	})
}

// What tests alone need is in folders of its own, and nothing else imports it.
func TestNoProgramImportsWhatIsForTests(t *testing.T) {
	eachFile(t, func(path, text string) {
		if !strings.Contains("/"+filepath.ToSlash(path), "/internal/testing/") && strings.Contains(text, "/internal/testing/") {
			t.Errorf("%s imports what is for tests", path)
		}
	})
}

// What rdma-core has is below both that use it: connections, behind the seam, and datagrams, of which
// there are none in the root module. Neither of the two knows the other.
func TestRDMACoreIsBelowConnectionsAndDatagrams(t *testing.T) {
	const module = `"github.com/ringnet/ringnet/`
	barred := map[string][]string{
		"internal/rdmacore/":     {"internal/fabric/", "internal/wire", "internal/link", "credit", "ring", "rconn", "rdmaudp"},
		"internal/fabric/verbs/": {"rdmaudp"},
		"rdmaudp/":               {"internal/fabric/verbs", "internal/link", "credit", "ring", "rconn"},
	}
	ofFabric := regexp.MustCompile(`\bfabric\.(\w+)`)
	helpers := regexp.MustCompile(`^(Err\w+|RejectError|RejectNoListener|Changes|Sleeper|NewSleeper|ZoneName|Limits)$`)
	eachFile(t, func(path, text string) {
		path = filepath.ToSlash(path)
		for folder, all := range barred {
			for _, other := range all {
				if strings.HasPrefix(path, folder) && strings.Contains(text, module+other) {
					t.Errorf("%s imports %s", path, other)
				}
			}
		}
		for _, name := range ofFabric.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(path, "internal/rdmacore/") && !helpers.MatchString(name[1]) {
				t.Errorf("%s uses the contract of connections: %s", path, name[0])
			}
		}
		if strings.HasPrefix(path, "internal/fabric/") && strings.Contains(text, "atagramEndpoint") {
			t.Errorf("%s has datagrams", path)
		}
	})
}

// No code of functions stands in two places. Tests may repeat themselves.
func TestEveryBlockOfCodeStandsInOnePlace(t *testing.T) {
	places := make(map[string]string) // of blocks of lines
	eachFile(t, func(path, text string) {
		var block []string // the last lines of the function
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "func ") || strings.HasPrefix(line, "}") {
				block = nil
			}
			if line = strings.TrimSpace(line); !isCode(line) {
				continue
			}
			if block = append(block, line); len(block) <= maxSameLines {
				continue
			}
			same := strings.Join(block, "\n")
			if places[same] != "" {
				t.Errorf("%s and %s:\n%s", places[same], path, same)
			}
			places[same], block = path, block[1:]
		}
	})
	require.Greater(t, len(places), 10_000)
}
