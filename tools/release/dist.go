package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// What others install without Go: for each architecture an archive with the command, linked statically
// and so without rdma, which loads the libraries of the host's cards; a Debian package for this
// architecture, with rdma; beside each what it was built from, in SPDX; and the sums of all.

// architectures are those of the archives. A variable, for tests build for one.
var architectures = []string{"amd64", "arm64"}

// dist makes the files of a version in a folder, from its sources in a tree. They are as old as the commit.
func dist(folder, tmp, tree, version string, env []string, made time.Time) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var files []string
	add := func(name string) (path string) {
		files = append(files, name)
		return filepath.Join(folder, name)
	}
	for _, arch := range architectures {
		command, err := build(tmp, version, env, arch, false)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("ringnet_%s_linux_%s", version[1:], arch)
		err = run(tmp, nil, "tar", "--create", "--use-compress-program=gzip -n", "--file="+add(name+".tar.gz"), "--transform=s,^,"+name+"/,",
			"--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", fmt.Sprint("--mtime=@", made.Unix()),
			"--directory="+filepath.Dir(command), "ringnet", "--directory="+tree, "LICENSE")
		if err != nil {
			return err
		}
		if err := bill(add(name+".spdx.json"), name, command, version, made); err != nil {
			return err
		}
	}
	command, err := build(tmp, version, env, runtime.GOARCH, true)
	if err != nil {
		return err
	}
	says, err := output(tmp, command, "--version")
	if err != nil {
		return err
	}
	if !strings.Contains(says, version) {
		return fmt.Errorf("the command says that it is %q", says)
	}
	name := fmt.Sprintf("ringnet_%s-1_%s", version[1:], runtime.GOARCH)
	if err := bill(add(name+".spdx.json"), name, command, version, made); err != nil {
		return err
	}
	if err := deb(add(name+".deb"), tmp, tree, command, version, made); err != nil {
		return err
	}
	sums, err := output(folder, "sha256sum", files...)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "SHA256SUMS"), []byte(sums+"\n"), 0o644)
}

// build builds the command as its users do, and returns its path.
func build(tmp, version string, env []string, arch string, cgo bool) (string, error) {
	bin := filepath.Join(tmp, fmt.Sprintf("%s-cgo-%t", arch, cgo))
	env = append(slices.Clip(env), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOPATH="+bin, "GOBIN=")
	if cgo {
		env = append(env, "CGO_ENABLED=1", goFlags+" -buildmode=pie") // as Debian wants it
	}
	if err := run(tmp, env, "go", "install", pathOf("cmd/ringnet")+"@"+version); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(bin, "bin", "ringnet"))
	if len(found) == 0 && err == nil { // where the go command puts those of another architecture
		found, err = filepath.Glob(filepath.Join(bin, "bin", "*", "ringnet"))
	}
	if len(found) != 1 {
		return "", errors.Join(err, fmt.Errorf("go install has left no command in %s", bin))
	}
	return found[0], nil
}

// bill writes what a command was built from, in the format SPDX 2.3.
func bill(file, name, command, version string, made time.Time) error {
	info, err := buildinfo.ReadFile(command)
	if err != nil {
		return err
	}
	type object map[string]any
	part := func(id, path, version string) object {
		return object{
			"SPDXID": id, "name": path, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"externalRefs": []object{{
				"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + path + "@" + version,
			}},
		}
	}
	const document, main = "SPDXRef-DOCUMENT", "SPDXRef-ringnet"
	parts := []object{part(main, info.Main.Path, info.Main.Version), part("SPDXRef-go", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, part(fmt.Sprintf("SPDXRef-%d", i+1), m.Path, m.Version))
	}
	related := []object{{"spdxElementId": document, "relationshipType": "DESCRIBES", "relatedSpdxElement": main}}
	for _, p := range parts[1:] {
		related = append(related, object{"spdxElementId": main, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": p["SPDXID"]})
	}
	text, err := json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": document, "name": name,
		"documentNamespace": "https://" + root + "/spdx/" + version + "/" + name,
		"creationInfo":      object{"created": made.UTC().Format(time.RFC3339), "creators": []string{"Tool: " + root + "/tools/release"}},
		"packages":          parts,
		"relationships":     related,
	}, "", "\t")
	return errors.Join(err, os.WriteFile(file, text, 0o644))
}

// deb makes a Debian package of a command and the files in the folder debian of the sources, in two of
// which are variables. Its unit is installed, and not enabled.
func deb(file, tmp, sources, command, version string, made time.Time) error {
	tree := filepath.Join(tmp, "deb")
	if err := os.CopyFS(tree, os.DirFS(filepath.Join(sources, "tools/release/debian"))); err != nil {
		return err
	}
	text, err := os.ReadFile(command)
	if err != nil {
		return err
	}
	variables := map[string]string{
		"VERSION": version[1:], "ARCHITECTURE": runtime.GOARCH, "SIZE": fmt.Sprint(len(text) >> 10), "DATE": made.UTC().Format(time.RFC1123Z),
	}
	const changes = "usr/share/doc/ringnet/changelog.Debian"
	files := map[string]string{"usr/bin/ringnet": string(text)}
	for _, name := range []string{"DEBIAN/control", changes} {
		text, err := os.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return err
		}
		files[name] = os.Expand(string(text), func(variable string) string { return variables[variable] })
	}
	for shell, at := range map[string]string{
		"bash": "usr/share/bash-completion/completions/ringnet",
		"fish": "usr/share/fish/vendor_completions.d/ringnet.fish",
	} {
		says, err := output(tmp, command, "completion", shell)
		if err != nil {
			return err
		}
		files[at] = says + "\n"
	}
	for name, text := range files {
		at := filepath.Join(tree, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(tree, "usr/bin/ringnet"), 0o755); err != nil {
		return err
	}
	if err := run(tree, nil, "gzip", "-9n", "usr/share/man/man1/ringnet.1", changes); err != nil {
		return err
	}
	env := append(os.Environ(), fmt.Sprint("SOURCE_DATE_EPOCH=", made.Unix()))
	return run(tmp, env, "dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, file)
}
