package ringnet

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// guides are the documents for operators and newcomers. The tests here require that
// whatever these name exists.
var guides = []string{"docs/deploy.md", "docs/migrate.md", "docs/reliability.md", "docs/security.md", "docs/troubleshoot.md", "rdmaudp/README.md"}

// overEachGuide runs a test with the text of each guide.
func overEachGuide(t *testing.T, test func(t *testing.T, text string)) {
	for _, guide := range guides {
		t.Run(guide, func(t *testing.T) {
			text, err := os.ReadFile(guide)
			require.NoError(t, err)
			test(t, string(text))
		})
	}
}

// sources returns the program text of this repository without its tests.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	require.NoError(t, err)
	return all.String()
}

// requireInSource requires that the sources have a part, and does not print them.
func requireInSource(t *testing.T, source, part string) {
	t.Helper()
	require.True(t, strings.Contains(source, part), "no source has %s", part)
}

// namedTests finds them in a document. A * stands for the rest of several names.
var namedTests = regexp.MustCompile("`(\\w+\\.(?:Test|Fuzz)[A-Z]\\w+\\*?)`")

// declaredTests returns the names of all tests as documents write them, package and test, a line each.
func declaredTests(t *testing.T) string {
	t.Helper()
	var names strings.Builder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		name := map[string]string{".": "ringnet", "cmd/ringnet": "command"}[folder]
		text, err := os.ReadFile(path)
		for _, test := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(text, -1) {
			fmt.Fprintf(&names, "%s.%s\n", cmp.Or(name, filepath.Base(folder)), test[1])
		}
		return err
	})
	require.NoError(t, err)
	return names.String()
}

func TestGuidesNameTestsThatExist(t *testing.T) {
	declared := declaredTests(t)
	overEachGuide(t, func(t *testing.T, text string) {
		for _, test := range namedTests.FindAllStringSubmatch(text, -1) {
			name := strings.ReplaceAll(regexp.QuoteMeta(test[1]), `\*`, `\w+`)
			require.True(t, regexp.MustCompile(`(?m)^`+name+`$`).MatchString(declared), "there is no test %s", test[1])
		}
	})
}

// Each item of the lists in docs/security.md is a claim.
func TestEveryClaimOfTheSecurityDocumentHasItsTest(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	require.NoError(t, err)
	for _, claim := range strings.Split(string(text), "\n- ")[1:] {
		claim, _, _ = strings.Cut(claim, "\n\n")
		require.Regexp(t, namedTests, claim, "no test is named with it")
	}
}

// documents returns the paths of all documents.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "rdmaudp/*.md", ".github/*/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		paths = append(paths, found...)
	}
	return paths
}

func TestDocumentsLinkToWhatExists(t *testing.T) {
	headings := make(map[string][]string)
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, heading := range regexp.MustCompile("(?m)^#+ (.+)$").FindAllStringSubmatch(string(text), -1) {
			headings[path] = append(headings[path], anchor(heading[1]))
		}
	}
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			file, heading, inside := strings.Cut(link[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, path)
			require.True(t, !inside || slices.Contains(headings[target], heading), "%s: %s", path, link[1])
		}
	}
}

// anchor returns the name of a heading in links.
func anchor(heading string) string {
	plain := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(plain, " ", "-")
}

func TestGuidesNameCommandsThatExist(t *testing.T) {
	overEachGuide(t, func(t *testing.T, text string) {
		source := sources(t)
		for _, command := range regexp.MustCompile("(?m)(?:`|^    )ringnet ([a-z]+)").FindAllStringSubmatch(text, -1) {
			requireInSource(t, source, "type "+command[1]+"Command struct")
		}
		for _, flag := range regexp.MustCompile("`ringnet proxy --([a-z-]+)").FindAllStringSubmatch(text, -1) {
			field := ""
			for word := range strings.SplitSeq(flag[1], "-") {
				field += strings.ToUpper(word[:1]) + word[1:]
			}
			require.True(t, regexp.MustCompile(`\n\t`+field+` +[^\n]+help:`).MatchString(source), flag[0])
		}
		for _, variable := range regexp.MustCompile(`RINGNET_[A-Z_]+`).FindAllString(text, -1) {
			requireInSource(t, source, `"`+variable+`"`)
		}
	})
}

// Each line that docs/migrate.md gives for a library is a line of a test.
func TestLinesForLibrariesAreThoseOfTests(t *testing.T) {
	guide, err := os.ReadFile("docs/migrate.md")
	require.NoError(t, err)
	var tests []byte
	for _, file := range []string{"interop/dialers_test.go", "interop/libraries_test.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		tests = append(tests, text...)
	}
	_, table, found := strings.Cut(string(guide), "dialer := &ringnet.Dialer{ForTCP: \"auto\"}")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "interop/dialers_test.go")
	lines := regexp.MustCompile("`([^`]*(?:addr|dialer)[^`]*)`").FindAllStringSubmatch(table, -1)
	require.NotEmpty(t, lines)
	for _, line := range lines {
		requireInSource(t, string(tests), line[1])
	}
}

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
