package ringnet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// No code stands in two places. Tests may repeat themselves.

// maxSameLines is how many lines of code in a row may stand in another place, too.
const maxSameLines = 5

// source is a file of the repository that is not a test.
type source struct {
	path string
	text string
	set  *token.FileSet
	file *ast.File
}

// allSources are the sources of all modules.
func allSources(t *testing.T) (all []source) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(path), text: string(text), set: token.NewFileSet()}
		s.file, err = parser.ParseFile(s.set, path, text, parser.SkipObjectResolution|parser.ParseComments)
		all = append(all, s)
		return err
	})
	require.NoError(t, err)
	require.Greater(t, len(all), 200)
	return all
}

// line returns the line of a position.
func (s source) line(p token.Pos) int { return s.set.Position(p).Line }

// codeLine is a line of code.
type codeLine struct {
	text   string // without indentation
	number int
	decl   ast.Decl // which it is of
}

// code returns the lines of a source that are compared with others: those of functions and
// types, without comments, tables, and lines that have only braces.
func (s source) code() (lines []codeLine) {
	all := strings.Split(s.text, "\n")
	skip := make(map[int]bool)
	omit := func(n ast.Node) {
		for i := s.line(n.Pos()); i <= s.line(n.End()); i++ {
			skip[i] = true
		}
	}
	for _, g := range s.file.Comments {
		for _, c := range g.List {
			if strings.HasPrefix(strings.TrimSpace(all[s.line(c.Pos())-1]), "/") {
				omit(c)
			}
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CompositeLit); ok {
			switch c.Type.(type) {
			case *ast.ArrayType, *ast.MapType:
				omit(c)
			}
		}
		return true
	})
	for _, d := range s.file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok != token.TYPE {
			continue
		}
		for i := s.line(d.Pos()); i <= s.line(d.End()); i++ {
			text := strings.TrimSpace(all[i-1])
			if strings.ContainsFunc(text, unicode.IsLetter) && !skip[i] {
				lines = append(lines, codeLine{text, i, d})
			}
		}
	}
	return lines
}

// place is where a block of lines begins.
type place struct {
	path string
	line int
}

// sameBlocks returns the places of each block that occurs more than once, by its text.
func sameBlocks(all []source) map[string][]place {
	places := make(map[string][]place)
	for _, s := range all {
		lines := s.code()
		for i := maxSameLines; i < len(lines); i++ {
			block := lines[i-maxSameLines : i+1]
			if block[0].decl != block[maxSameLines].decl {
				continue
			}
			var text strings.Builder
			for _, l := range block {
				text.WriteString(l.text + "\n")
			}
			places[text.String()] = append(places[text.String()], place{s.path, block[0].number})
		}
	}
	maps.DeleteFunc(places, func(_ string, at []place) bool { return len(at) < 2 })
	return places
}

func TestEveryBlockOfCodeStandsInOnePlace(t *testing.T) {
	for text, places := range sameBlocks(allSources(t)) {
		for _, p := range places[1:] {
			t.Errorf("%s:%d and %s:%d:\n%s", places[0].path, places[0].line, p.path, p.line, text)
		}
	}
}
