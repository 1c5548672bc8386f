package ringnet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests here compare docs/architecture.md with the code: the names it has, and their
// files.

// architecturePackages are the packages that the document names, and their directories.
var architecturePackages = map[string]string{
	"ringnet":  ".",
	"rconn":    "rconn",
	"pconn":    "pconn",
	"link":     "internal/link",
	"credit":   "credit",
	"ring":     "ring",
	"wire":     "internal/wire",
	"budget":   "internal/budget",
	"deadline": "internal/deadline",
	"mapping":  "internal/mapping",
	"fabric":   "internal/fabric",
	"shm":      "internal/fabric/shm",
	"verbs":    "internal/fabric/verbs",
	"sim":      "internal/fabric/sim",
	"metrics":  "metrics",
	"command":  "cmd/ringnet",
	"endpoint": "cmd/ringnet/internal/endpoint",
}

// declarations maps each name that a package declares to the files that declare it. Fields
// and methods have the name of their type before them.
type declarations map[string][]string

func (d declarations) add(file string, names ...string) {
	d[strings.Join(names, ".")] = append(d[strings.Join(names, ".")], file)
}

// parsePackage calls visit with each file of a package, whatever system it is for.
func parsePackage(t *testing.T, directory string, visit func(path string, file *ast.File)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, paths, directory)
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		visit(path, file)
	}
}

func declarationsOf(t *testing.T, directory string) declarations {
	t.Helper()
	all := make(declarations)
	parsePackage(t, directory, func(path string, file *ast.File) {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					all.add(path, d.Name.Name)
				} else {
					all.add(path, receiverName(d.Recv.List[0].Type), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					all.addSpec(path, s)
				}
			}
		}
	})
	return all
}

// receiverName returns the type of a receiver.
func receiverName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverName(e.X)
	case *ast.IndexExpr:
		return receiverName(e.X)
	case *ast.IndexListExpr:
		return receiverName(e.X)
	}
	return e.(*ast.Ident).Name
}

func (d declarations) addSpec(path string, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			d.add(path, name.Name)
		}
	case *ast.TypeSpec:
		d.add(path, s.Name.Name)
		var fields *ast.FieldList
		switch t := s.Type.(type) {
		case *ast.StructType:
			fields = t.Fields
		case *ast.InterfaceType:
			fields = t.Methods
		default:
			return
		}
		for _, f := range fields.List {
			for _, name := range f.Names {
				d.add(path, s.Name.Name, name.Name)
			}
		}
	}
}

func architecture(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	return string(text)
}

var (
	qualifiedName = regexp.MustCompile(`\b([a-z]+)\.([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)`)
	namesAndFile  = regexp.MustCompile(`([^|\[\]]*)\[([^\]]+)\]\(\.\./([^)]+\.go)\)`)
)

// namesIn returns the names of declarations in a text, as package and name, without names
// of files.
func namesIn(text string) (names [][2]string) {
	for _, m := range qualifiedName.FindAllStringSubmatch(text, -1) {
		if _, known := architecturePackages[m[1]]; known && m[2] != "go" && m[2] != "md" {
			names = append(names, [2]string{m[1], m[2]})
		}
	}
	return names
}

func TestEveryNameInTheArchitectureDocumentExists(t *testing.T) {
	text := architecture(t)
	all := make(map[string]declarations)
	for name, directory := range architecturePackages {
		all[name] = declarationsOf(t, directory)
	}
	for _, name := range namesIn(text) {
		require.NotEmpty(t, all[name[0]][name[1]], "package %s has no %s", name[0], name[1])
	}
	// After a name the document has the file that declares it.
	located := 0
	for line := range strings.Lines(text) {
		for _, m := range namesAndFile.FindAllStringSubmatch(line, -1) {
			for _, name := range namesIn(m[1]) {
				require.Contains(t, all[name[0]][name[1]], filepath.FromSlash(m[3]), "%s.%s", name[0], name[1])
				located++
			}
			if path.Ext(m[2]) == ".go" {
				require.Equal(t, path.Base(m[3]), m[2])
			}
		}
	}
	require.Greater(t, located, 200)
}

func TestEveryLockIsInTheArchitectureDocument(t *testing.T) {
	_, table, _ := strings.Cut(architecture(t), "\n## Locks\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\[").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	for name, directory := range architecturePackages {
		parsePackage(t, directory, func(path string, file *ast.File) {
			if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(directory, "cmd/") {
				return
			}
			for _, lock := range locksOf(file) {
				require.True(t, slices.Contains(documented, name+"."+lock), "no row for %s.%s of %s", name, lock, path)
			}
		})
	}
}

// locksOf are the mutexes that a file declares: fields of types, by the type and the field,
// and those within variables, by the variable.
func locksOf(file *ast.File) (locks []string) {
	for _, d := range file.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				for _, field := range mutexesIn(s.Type) {
					locks = append(locks, strings.TrimSuffix(s.Name.Name+"."+field, "."))
				}
			case *ast.ValueSpec:
				if len(mutexesIn(s)) > 0 {
					locks = append(locks, s.Names[0].Name)
				}
			}
		}
	}
	return locks
}

// mutexesIn returns the fields that are mutexes: "" stands for an embedded one.
func mutexesIn(n ast.Node) (fields []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		f, ok := n.(*ast.Field)
		if !ok {
			return true
		}
		if name := typeName(f.Type); name != "Mutex" && name != "RWMutex" {
			return true
		}
		if len(f.Names) == 0 {
			fields = append(fields, "")
		}
		for _, name := range f.Names {
			fields = append(fields, name.Name)
		}
		return true
	})
	return fields
}
