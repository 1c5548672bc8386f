package main

// This file gets the kernel of a guest: this distribution's, or one of Debian's by name.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var ubuntuLines = regexp.MustCompile(`(?m)^(?:ID|ID_LIKE)=.*\bubuntu\b`)

// kernelPackage returns the package that depends on the newest kernel with the
// RDMA modules, in a distribution with that os-release(5); the flavours for clouds lack them.
func kernelPackage(m machine, osRelease []byte) string {
	if ubuntuLines.Match(osRelease) {
		return "linux-image-generic"
	}
	return m.kernel
}

// kernelParts match packages with the files of one kernel, such as linux-image-6.1.0-9-amd64: the image, and
// the kernel and its modules where they are apart.
var kernelParts = regexp.MustCompile(`(?m)^linux-(?:image|base|binary|modules|modules-extra)-[0-9]\S*$`)

// listKernels is the name that stands for no kernel, but for the list of them.
const listKernels = "list"

var (
	// kernelNames match what -kernel may name: a suite, or a kernel's release, which begins with a digit.
	kernelNames = regexp.MustCompile(`^[a-z0-9][a-z0-9.+~-]*$`)
	releases    = regexp.MustCompile(`^[0-9]`)
)

// suites are the names that Debian gives its suites one after the other, so that they do not age.
var suites = []string{
	"oldoldstable", "oldstable", "oldstable-security", "oldstable-backports",
	"stable", "stable-security", "stable-backports", "testing", "unstable",
}

// getKernel unpacks into dir the kernel of that name: the newest of a suite of Debian's, such as "trixie", that of
// a release, such as "6.12.48+deb13-amd64", or without a name this distribution's, and returns its release.
func getKernel(ctx context.Context, m machine, name string, osRelease []byte, dir string) (string, error) {
	updateLists(ctx)
	if name == "" {
		return unpackKernel(ctx, nil, kernelPackage(m, osRelease), dir)
	}
	source, from := m.kernel, []string{name}
	if releases.MatchString(name) {
		source, from = "linux-image-"+name, suites
	}
	lists, err := debianLists(ctx, from)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(lists.dir)
	release, err := unpackKernel(ctx, lists.options, source, dir)
	if err != nil && ctx.Err() == nil {
		known, unknown := kernels(ctx, m)
		err = errors.Join(fmt.Errorf("-kernel %s cannot be had: %w\nThese suites can, with these versions:\n%s", name, err, strings.TrimSpace(known)), unknown)
	}
	return release, err
}

// kernels returns a line for each of Debian's suites that can be had: its name, and the version of its kernel.
func kernels(ctx context.Context, m machine) (string, error) {
	lists, err := debianLists(ctx, suites)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(lists.dir)
	table, err := apt(ctx, "", "apt-cache", append(lists.options, "madison", m.kernel)...)
	lines := kernelLines(table)
	if err == nil && lines == "" {
		err = errors.New("none of Debian's suites can be had")
	}
	return lines, err
}

// madisonLines match those of apt-cache madison: a package, its version, and the archive, suite and list that have it.
var madisonLines = regexp.MustCompile(`(?m)^[^|]*\| *(\S+) \| \S+ ([^/ ]+)/`)

// kernelLines makes the lines of kernels of the output of apt-cache madison, in the order of suites.
func kernelLines(table string) string {
	var lines strings.Builder
	for _, suite := range suites {
		for _, m := range madisonLines.FindAllStringSubmatch(table, -1) {
			if m[2] == suite {
				fmt.Fprintln(&lines, suite, m[1])
			}
		}
	}
	return lines.String()
}

// packageLists are lists of packages in a folder of their own, and the options by which apt's programs use them and
// not the system's.
type packageLists struct {
	dir     string
	options []string
}

// debianLists gets the lists of packages of Debian's suites with those names, as far as the archives have them
// from which the system gets its packages.
func debianLists(ctx context.Context, names []string) (*packageLists, error) {
	targets, err := apt(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	archives := map[string]string{}
	for line := range strings.Lines(targets) {
		uri, label, _ := strings.Cut(strings.TrimSpace(line), " ")
		archives[label] = uri
	}
	var sources strings.Builder
	for _, name := range names {
		label := "Debian"
		if strings.HasSuffix(name, "-security") {
			label = "Debian-Security"
		}
		if uri := archives[label]; uri != "" {
			fmt.Fprintf(&sources, "deb [target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, name)
		}
	}
	if sources.Len() == 0 {
		return nil, errors.New("apt's sources, /etc/apt/sources.list and sources.list.d, have no archive of Debian's with such a suite")
	}
	dir, err := os.MkdirTemp("", "softroce-lists-")
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "sources.list")
	lists := &packageLists{dir, []string{
		"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State=" + dir, "-o", "Dir::Cache=" + dir,
	}}
	progress("getting the package lists of %s", strings.Join(names, " "))
	err = os.WriteFile(list, []byte(sources.String()), 0o644)
	// It fails if one of the suites cannot be had; what needs that finds no packages.
	_, _ = apt(ctx, "", "apt-get", append(lists.options, "update", "-q")...)
	return lists, err
}

// unpackKernel downloads the packages of the kernel that the package source stands for, unpacks them into
// dir without installing them, and returns the kernel's release, as uname -r has it. Options are for apt's programs.
func unpackKernel(ctx context.Context, options []string, source, dir string) (release string, err error) {
	depends, err := apt(ctx, dir, "apt-cache", slices.Concat(options, []string{"depends", "--recurse", "--important", source})...)
	if err != nil {
		return "", err
	}
	parts := kernelParts.FindAllString(depends, -1)
	progress("downloading %s (once)", strings.Join(parts, " "))
	if _, err = apt(ctx, dir, "apt-get", slices.Concat(options, []string{"download", "-q"}, parts)...); err != nil {
		return "", err
	}
	archives, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	unpacked := filepath.Join(dir, "unpacked")
	for _, archive := range archives {
		if _, err := output(exec.CommandContext(ctx, "dpkg", "-x", archive, unpacked)); err != nil {
			return "", err
		}
	}
	// Debian's packages have come to use /usr, and since 7 for all.
	kernels := glob(unpacked, "boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz")
	modules := glob(unpacked, "lib/modules/*", "usr/lib/modules/*")
	if len(kernels) != 1 || len(modules) != 1 {
		return "", fmt.Errorf("%s: %q should have one kernel and its modules, but there are %d and %d", source, parts, len(kernels), len(modules))
	}
	release = filepath.Base(modules[0])
	err = errors.Join(
		os.Rename(kernels[0], filepath.Join(dir, "vmlinuz")),
		os.MkdirAll(filepath.Join(dir, "lib/modules"), 0o755),
		os.Rename(modules[0], filepath.Join(dir, "lib/modules", release)),
		os.Symlink(".", filepath.Join(dir, "usr")), // where newer depmods and modprobes look
		os.RemoveAll(unpacked),
	)
	for _, archive := range archives {
		err = errors.Join(err, os.Remove(archive))
	}
	if err == nil {
		_, err = output(exec.CommandContext(ctx, "depmod", "-b", dir, release))
	}
	return release, err
}

// glob returns the paths below dir that match the first pattern that any matches.
func glob(dir string, patterns ...string) (paths []string) {
	for _, pattern := range patterns {
		if paths, _ = filepath.Glob(filepath.Join(dir, pattern)); len(paths) > 0 {
			break
		}
	}
	return paths
}
