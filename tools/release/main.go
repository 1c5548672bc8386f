// Release makes the tags of a version, locally:
//
//	release v0.1.0
//
// On main, modules of this repository find each other by replace directives, which `go install
// ...@latest` refuses. So what is tagged is a commit beside main in which there are none: each module
// that others use requires the others at the version. Before it tags, release pushes the tags to a
// repository of its own, tidies by that, and installs the command from it as a user does; what it builds
// for those without Go is in bin/dist. It pushes nothing elsewhere.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// root is the module that the others depend on.
const root = "github.com/ringnet/ringnet"

// modules are the folders of those that users require or install, each behind those that it requires.
var modules = []string{".", "tools/softroce", "internal/perf", "metrics", "grpcnet", "rdmaudp", "cmd/ringnet"}

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
	tree, served := filepath.Join(tmp, "tree"), filepath.Join(tmp, "served")
	env := environment(served, filepath.Join(tmp, "cache"))
	if err := run(dir, nil, "git", "init", "--quiet", "--bare", served); err != nil {
		return err
	}
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
			err = prepare(at, version, env)
		}
		for _, git := range [][]string{
			{"add", "--all"}, commit,
			{"push", "--quiet", "--no-verify", served, "HEAD:refs/tags/" + tagOf(m, version)}, // the modules behind it have its sums
		} {
			if err == nil {
				err = run(tree, nil, "git", git...)
			}
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
	if err := dist(files, tmp, tree, version, env, made); err != nil {
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
func prepare(dir, version string, env []string) error {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	edit := []string{"mod", "edit"}
	for _, m := range modules {
		if path := pathOf(m); strings.Contains(string(mod), path+" v") {
			edit = append(edit, "-dropreplace="+path, "-require="+path+"@"+version)
		}
	}
	if len(edit) == 2 {
		return nil // it requires none
	}
	if err := run(dir, env, "go", edit...); err != nil {
		return err
	}
	return run(dir, env, "go", "mod", "tidy")
}

const goFlags = "GOFLAGS=-mod=mod -modcacherw -trimpath -ldflags=-s"

// environment has the go command take our modules from a repository on this host, and others from this
// user's cache and from where the user has them. It has a cache of its own, for in the user's the real ones
// may come to be.
func environment(repository, cache string) []string {
	url := func(p string) string { return "file://" + filepath.ToSlash(p) }
	ours := root + "," + root + "/*"
	return append(os.Environ(), goFlags, "GOWORK=off", "GONOSUMDB="+ours, "GONOPROXY="+ours,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+url(repository)+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+root,
		"GOPROXY="+url(filepath.Join(goEnv("GOMODCACHE"), "cache", "download"))+","+goEnv("GOPROXY"), "GOMODCACHE="+cache)
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
