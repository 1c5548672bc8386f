// Release makes the tags of a version, locally:
//
//	release v0.1.0
//
// On main, modules of this repository find each other by replace directives, which `go install
// ...@latest` refuses. So what is tagged is a commit beside main in which there are none: each module
// that others use requires the others at the version. Before it tags, release serves what the module
// proxy would serve, tidies by that, and installs the command from it as a user does; what it builds for
// those without Go is in bin/dist. It pushes nothing.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	modzip "golang.org/x/mod/zip"
)

// root is the module that the others depend on.
const root = "github.com/ringnet/ringnet"

// modules are the folders of those that users require or install, each behind those that it requires.
var modules = []string{".", "tools/softroce", "internal/perf", "metrics", "grpcnet", "cmd/ringnet"}

func main() {
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "usage: release [-check] VERSION, such as v0.1.0, in the repository") }
	check := flag.Bool("check", false, "only see whether there is anything against it")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	does := release
	if *check {
		does = ready
	}
	if err := does(".", flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release tags a version of the repository at dir.
func release(dir, version string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := ready(dir, version); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	tree, proxy := filepath.Join(tmp, "tree"), filepath.Join(tmp, "proxy")
	if err := run(dir, nil, "git", "worktree", "add", "--quiet", "--detach", tree); err != nil {
		return err
	}
	defer func() { _ = run(dir, nil, "git", "worktree", "remove", "--force", tree) }()
	license, err := os.ReadFile(filepath.Join(tree, "LICENSE"))
	if err != nil {
		return err
	}
	commit := []string{"commit", "--quiet", "--allow-empty", "--message", "Release " + version}
	for _, m := range modules {
		at := filepath.Join(tree, m)
		err := os.WriteFile(filepath.Join(at, "LICENSE"), license, 0o644) // each module is a work of its own
		if err == nil {
			err = prepare(at, pathOf(m), version, proxy)
		}
		if err == nil {
			err = run(tree, nil, "git", "add", "--all")
		}
		if err == nil {
			err = run(tree, nil, "git", commit...)
		}
		if err == nil {
			err = serve(dir, tree, m, version, proxy)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", pathOf(m), err)
		}
		commit = []string{"commit", "--quiet", "--allow-empty", "--amend", "--no-edit"}
	}
	made, err := commitTime(dir)
	if err != nil {
		return err
	}
	files := filepath.Join(dir, "bin", "dist")
	if err := dist(files, tmp, version, proxy, license, made); err != nil {
		return err
	}
	for _, m := range modules {
		if err := run(tree, nil, "git", "tag", "--annotate", "--message", pathOf(m)+" "+version, tagOf(m, version)); err != nil {
			return err
		}
	}
	fmt.Printf("tagged %s; to publish it: git push origin %s, and the files of %s\n", version, strings.Join(tags(version), " "), files)
	return nil
}

// commitTime is when the last commit was made.
func commitTime(dir string) (time.Time, error) {
	said, err := output(dir, "git", "log", "-1", "--format=%cI")
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339, said)
}

func pathOf(folder string) string { return strings.TrimSuffix(root+"/"+folder, "/.") }

// tagOf is the tag of a module in a folder: Go looks for it under the folder's name.
func tagOf(folder, version string) string { return strings.TrimPrefix(folder+"/"+version, "./") }

func tags(version string) (all []string) {
	for _, m := range modules {
		all = append(all, tagOf(m, version))
	}
	return all
}

// ready returns why the repository cannot be released as the version.
func ready(dir, version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q: want a version such as v0.1.0", version)
	}
	if semver.Major(version) > "v1" {
		return fmt.Errorf("%s: from v2 on the paths of modules end with the major version, which is not prepared", version)
	}
	changed, err := output(dir, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("there are changes that are not committed:\n%s", changed)
	}
	for _, tag := range tags(version) {
		if found, err := output(dir, "git", "tag", "--list", tag); err != nil || found != "" {
			return errors.Join(err, fmt.Errorf("there is a tag %s", tag))
		}
	}
	changes, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(version[1:]) + `, \d{4}-\d{2}-\d{2}$`)
	if !section.Match(changes) {
		return fmt.Errorf("CHANGELOG.md has no line %q", "## "+version[1:]+", "+time.Now().Format(time.DateOnly))
	}
	return nil
}

// prepare has a module require others of this repository at the version.
func prepare(dir, path, version, proxy string) error {
	file := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	m, err := modfile.Parse(file, text, nil)
	if err != nil {
		return err
	}
	for _, r := range m.Replace {
		if err := m.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	for _, r := range m.Require {
		if ours(r.Mod.Path) {
			if err := m.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
	}
	m.Cleanup()
	if text, err = m.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	if path == root {
		return nil
	}
	return run(dir, environment(proxy), "go", "mod", "tidy")
}

func ours(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// serve puts a module of a tree's last commit into the files of a proxy, as the go command would from its
// tag: the sums of what is served are in the modules that require it.
func serve(dir, tree, folder, version, proxy string) error {
	path := pathOf(folder)
	at := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	commit, err := output(tree, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(tree, folder, "go.mod"))
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		"list":            version + "\n",
		version + ".info": fmt.Sprintf("{\"Version\":%q}", version),
		version + ".mod":  string(mod),
	} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	err = zipped(f, dir, commit, folder, version)
	return errors.Join(err, f.Close())
}

// zipped writes the archive of a module at a revision.
func zipped(w io.Writer, dir, revision, folder, version string) error {
	return modzip.CreateFromVCS(w, module.Version{Path: pathOf(folder), Version: version}, dir, revision, strings.TrimPrefix(folder, "."))
}

const goFlags = "GOFLAGS=-mod=mod -modcacherw -trimpath -ldflags=-s"

// environment has the go command ask our proxy for our modules, and for others this user's cache and what
// the user has. It keeps ours out of the cache, where the real ones may come to be.
func environment(proxy string) []string {
	path := func(p string) string { return "file://" + filepath.ToSlash(p) }
	return append(os.Environ(), goFlags, "GOWORK=off", "GONOSUMDB="+root+","+root+"/*",
		"GOPROXY="+path(proxy)+","+path(filepath.Join(goEnv("GOMODCACHE"), "cache", "download"))+","+goEnv("GOPROXY"),
		"GOMODCACHE="+filepath.Join(filepath.Dir(proxy), "cache"))
}

func goEnv(name string) string {
	value, _ := output(".", "go", "env", name)
	return value
}

func run(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func output(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
