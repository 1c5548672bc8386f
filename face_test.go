package ringnet

import (
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/ringnet/ringnet"

// public is a package that programs import.
type public struct {
	*doc.Package
	fset     *token.FileSet
	imports  map[string]string        // paths by the names that its files have for them
	examples []string                 // all that there are, shown or not
	raw      map[string]*ast.TypeSpec // types as they are in the files: go/doc takes away what is not exported
}

// publicPackages are those of all modules, by path.
func publicPackages(t *testing.T) map[string]public {
	t.Helper()
	all := make(map[string]public)
	require.NoError(t, filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		base := filepath.Base(dir)
		if slices.Contains([]string{"internal", "cmd", "examples", "benchmarks", "interop", "tools", "testdata"}, base) || len(base) > 1 && base[0] == '.' {
			return filepath.SkipDir
		}
		p, err := parsePackage(path.Join(module, filepath.ToSlash(dir)), dir)
		if p.Package != nil {
			all[p.ImportPath] = p
		}
		return err
	}))
	return all
}

// parsePackage returns the package in a folder as a program on this system finds it, or none.
func parsePackage(importPath, dir string) (public, error) {
	p := public{fset: token.NewFileSet(), imports: make(map[string]string), raw: make(map[string]*ast.TypeSpec)}
	found, err := build.ImportDir(dir, 0)
	if _, none := err.(*build.NoGoError); none {
		return p, nil
	} else if err != nil {
		return p, err
	}
	var files []*ast.File
	for _, name := range slices.Concat(found.GoFiles, found.CgoFiles, found.TestGoFiles, found.XTestGoFiles) {
		f, err := parser.ParseFile(p.fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return p, err
		}
		files = append(files, f)
		if strings.HasSuffix(name, "_test.go") {
			for _, e := range doc.Examples(f) {
				p.examples = append(p.examples, "Example"+e.Name)
			}
			continue
		}
		for _, i := range f.Imports {
			at := strings.Trim(i.Path.Value, `"`)
			name := path.Base(at)
			if i.Name != nil {
				name = i.Name.Name
			}
			p.imports[name] = at
		}
		raw, err := parser.ParseFile(p.fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return p, err
		}
		for _, d := range raw.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				for _, spec := range g.Specs {
					p.raw[spec.(*ast.TypeSpec).Name.Name] = spec.(*ast.TypeSpec)
				}
			}
		}
	}
	p.Package, err = doc.NewFromFiles(p.fset, files, importPath)
	return p, err
}

// hidden are the types that an expression names and that no program can name: of internal packages.
func (p public) hidden(e ast.Node) (names []string) {
	ast.Inspect(e, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && strings.Contains(p.imports[x.Name]+"/", "/internal/") {
				names = append(names, x.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	return names
}

// at says where in a package something stands.
func (p public) at(n ast.Node, names ...string) string {
	return p.fset.Position(n.Pos()).String() + ": " + p.Name + "." + strings.Join(names, ".")
}

// hasType reports whether the documentation of a package has a type.
func (p public) hasType(name string) bool {
	return slices.ContainsFunc(p.Types, func(t *doc.Type) bool { return t.Name == name })
}

// seam are the functions by which the packages of this repository make values of public types. What
// they take, a program cannot have.
var seam = []string{"rconn.New", "rconn.LinkInfoOf"}

// A program finds each type with its fields and methods in the documentation of the package that it imports,
// or, if that names it so, of another that it can import.
func TestEachPublicTypeIsDocumentedWhereProgramsImportIt(t *testing.T) {
	all := publicPackages(t)
	for _, name := range []string{"", "rconn", "ring", "credit", "grpcnet", "metrics", "rdmaudp"} {
		require.Contains(t, all, path.Join(module, name))
	}
	for _, p := range all {
		for _, f := range p.Funcs {
			p.requireSignature(t, f)
		}
		for _, v := range slices.Concat(p.Vars, p.Consts) {
			for _, spec := range v.Decl.Specs {
				if of := spec.(*ast.ValueSpec).Type; of != nil && len(p.hidden(of)) > 0 {
					t.Errorf("%s: its type is %v", p.at(spec), p.hidden(of))
				}
			}
		}
		for _, typ := range p.Types {
			for _, f := range slices.Concat(typ.Funcs, typ.Methods) {
				p.requireSignature(t, f)
			}
			for _, spec := range typ.Decl.Specs {
				p.requireType(t, all, spec.(*ast.TypeSpec))
			}
		}
	}
}

// requireSignature requires that a program can name what a function or method takes and returns, and that it is
// documented.
func (p public) requireSignature(t *testing.T, f *doc.Func) {
	t.Helper()
	if f.Doc == "" && f.Name != "String" {
		t.Errorf("%s has no comment", p.at(f.Decl, f.Name))
	}
	if hidden := p.hidden(f.Decl.Type); len(hidden) > 0 && !slices.Contains(seam, p.Name+"."+f.Name) {
		t.Errorf("%s has to do with %v", p.at(f.Decl, f.Name), hidden)
	}
}

// requireType requires the same of a type.
func (p public) requireType(t *testing.T, all map[string]public, spec *ast.TypeSpec) {
	t.Helper()
	if of, ok := p.raw[spec.Name.Name].Type.(*ast.StructType); ok {
		p.requireFields(t, all, spec.Name.Name, of)
		return
	}
	if hidden := p.hidden(spec.Type); len(hidden) > 0 {
		t.Errorf("%s is %v", p.at(spec, spec.Name.Name), hidden)
	}
	if s, ok := spec.Type.(*ast.SelectorExpr); ok {
		p.requireFound(t, all, p.at(spec, spec.Name.Name), s)
	}
}

// requireFound requires that the documentation of a package of this repository has a type.
func (p public) requireFound(t *testing.T, all map[string]public, at string, s *ast.SelectorExpr) {
	t.Helper()
	of := p.imports[s.X.(*ast.Ident).Name]
	if other, known := all[of]; strings.HasPrefix(of+"/", module+"/") && (!known || !other.hasType(s.Sel.Name)) {
		t.Errorf("%s: the documentation of %s has no %s", at, of, s.Sel.Name)
	}
}

// hides reports whether a type that is not exported has fields or methods that go/doc does not show where it is
// embedded: those of an unexported struct's methods it shows.
func (p public) hides(name string) bool {
	of, isStruct := p.raw[name].Type.(*ast.StructType)
	return !isStruct || slices.ContainsFunc(of.Fields.List, func(f *ast.Field) bool {
		return len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported)
	})
}

// requireFields requires that a program can name the type of each field of a struct, and that each has a
// comment, its own or that of fields before it. What an unexported type has that is embedded, no
// documentation shows.
func (p public) requireFields(t *testing.T, all map[string]public, name string, of *ast.StructType) {
	t.Helper()
	explained := -1 // the last line of fields that a comment explains
	for _, field := range of.Fields.List {
		at := p.at(field, name)
		embedded := field.Type
		if star, ok := embedded.(*ast.StarExpr); ok {
			embedded = star.X
		}
		exported := slices.ContainsFunc(field.Names, (*ast.Ident).IsExported)
		switch e := embedded.(type) {
		case *ast.Ident:
			if len(field.Names) == 0 && !e.IsExported() && p.hides(e.Name) {
				t.Errorf("%s embeds %s, whose fields and methods nobody sees", at, e.Name)
			}
		case *ast.SelectorExpr:
			if len(field.Names) == 0 {
				p.requireFound(t, all, at, e)
				exported = true
			}
		}
		if !exported {
			continue
		}
		if hidden := p.hidden(field.Type); len(hidden) > 0 {
			t.Errorf("%s has a field of type %v", at, hidden)
		}
		if field.Doc != nil || field.Comment != nil || p.fset.Position(field.Pos()).Line == explained+1 {
			explained = p.fset.Position(field.End()).Line
		} else if len(field.Names) > 0 {
			t.Errorf("%s.%s has no comment", at, field.Names[0].Name)
		}
	}
}

// shown are the examples that the documentation of a package has.
func (p public) shown() (names []string) {
	add := func(of string, examples []*doc.Example) {
		for _, e := range examples {
			names = append(names, strings.TrimSuffix("Example"+of+"_"+e.Suffix, "_"))
		}
	}
	add("", p.Examples)
	for _, f := range p.Funcs {
		add(f.Name, f.Examples)
	}
	for _, typ := range p.Types {
		add(typ.Name, typ.Examples)
		for _, f := range typ.Funcs {
			add(f.Name, f.Examples)
		}
		for _, m := range typ.Methods {
			add(typ.Name+"_"+m.Name, m.Examples)
		}
	}
	return names
}

// go vet knows the name of an example where an alias leads, and documentation does not show it there.
func TestEachExampleIsShown(t *testing.T) {
	all := publicPackages(t)
	for _, p := range all {
		require.ElementsMatch(t, p.examples, p.shown(), p.ImportPath)
	}
	for of, names := range map[string][]string{
		"":        {"ExampleDial", "ExampleListen", "ExampleListenConfig_trustUser", "ExampleConn_peek", "ExampleBuffer", "ExampleTrace"},
		"rconn":   {"ExampleConn_Peek", "ExampleConn_WriteBuffer"},
		"grpcnet": {"Example"},
		"metrics": {"ExampleNewCollector"},
		"rdmaudp": {"Example", "ExampleListenMulticast"},
	} {
		require.Subset(t, all[path.Join(module, of)].shown(), names, of)
	}
}
