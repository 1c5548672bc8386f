package main

// This file compiles the card.

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed card
var sources embed.FS

var (
	cflags  = []string{"-O3", "-flto", "-Wall", "-Wextra", "-fPIC", "-pthread"}
	library = append(cflags, "-shared", "-Wl,-Bsymbolic")
)

// build returns the folder of the libraries and of the program raw. It is made once for
// each version of the sources, in the user's cache folder.
func build() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	version, err := hash()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("ringnet-idealcard-%d-%s", os.Getuid(), version))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "ringnet-idealcard-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, sources); err != nil {
		return "", err
	}
	if err := compile(filepath.Join(work, "card")); err != nil {
		return "", fmt.Errorf("%w; it needs a C compiler and the headers of rdma-core: libibverbs-dev and librdmacm-dev", err)
	}
	if err := os.Rename(filepath.Join(work, "card"), dir); err != nil {
		if _, there := os.Stat(dir); there != nil {
			return "", err // else another process has made it
		}
	}
	return dir, nil
}

// hash identifies the sources, and how they are compiled.
func hash() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, compiler(), library)
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

// compile makes both libraries of the same sources, since rdma_cm and the card share much: that
// of rdma_cm is empty and has the other one loaded.
func compile(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return err
	}
	var card []string
	for _, name := range names {
		if name = filepath.Base(name); name != "raw.c" {
			card = append(card, name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "empty.c"), nil, 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		append(append(library, "-o", "libibverbs.so.1", "-Wl,-soname,libibverbs.so.1"), card...),
		append(library, "-o", "librdmacm.so.1", "-Wl,-soname,librdmacm.so.1", "empty.c", "-Wl,--no-as-needed", "libibverbs.so.1"),
		append(cflags, "-o", "raw", "raw.c", "libibverbs.so.1"),
	} {
		cmd := exec.Command(compiler(), args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the card: %w\n%s", err, out)
		}
	}
	return nil
}
