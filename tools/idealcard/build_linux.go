package main

// This file compiles the card.

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed card
var sources embed.FS

var (
	cflags  = []string{"-O3", "-flto", "-Wall", "-Wextra", "-fPIC", "-pthread", "-D_GNU_SOURCE"}
	library = slices.Clip(append(cflags, "-shared", "-Wl,-Bsymbolic", "-Wl,--version-script=versions")) // several commands append to it
)

// What lies in the cache folder begins with this. A version that nobody has used for so long is
// removed when another one is made.
const (
	cached   = "ringnet-idealcard-"
	keptFor  = 24 * time.Hour
	building = cached + "build-"
)

// build returns the folder of the libraries and of the programs raw, host and rdma. It is made once for
// each version of the sources, in the user's cache folder, and stays as long as this process lives.
func build() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no cache folder to keep the card in: %w", err)
	}
	if !filepath.IsAbs(cache) {
		return "", fmt.Errorf("the cache folder %q is relative: set HOME or XDG_CACHE_HOME to an absolute path", cache)
	}
	if strings.ContainsAny(cache, ":;$") { // the command's LD_LIBRARY_PATH and PATH would not lead there
		return "", fmt.Errorf("the cache folder %q has one of the characters : ; $ in its name: set XDG_CACHE_HOME to another", cache)
	}
	version, err := hash()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("%s%d-%s", cached, os.Getuid(), version))
	if err := checkCache(cache); err != nil {
		return "", fmt.Errorf("%w: the card is kept there; set XDG_CACHE_HOME to a folder that this user may write to and run programs from", err)
	}
	if use(dir) {
		return dir, nil
	}
	removeUnused(cache)
	if err := makeVersion(cache, dir); err != nil {
		return "", err
	}
	use(dir) // which nobody removes for some time
	return dir, nil
}

// checkCache makes the cache folder, if there is none, and returns why it cannot be used.
func checkCache(cache string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	if err := unix.Access(cache, unix.W_OK); err != nil {
		return &os.PathError{Op: "write", Path: cache, Err: err}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cache, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: cache, Err: err}
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s: it is mounted noexec", cache)
	}
	return nil
}

func makeVersion(cache, dir string) error {
	work, err := os.MkdirTemp(cache, building)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	if err := compile(filepath.Join(work, "card")); err != nil {
		return fmt.Errorf("%w\nThe card needs a C compiler and the headers of rdma-core (Debian: apt-get install gcc libibverbs-dev librdmacm-dev)", err)
	}
	if err := os.Rename(filepath.Join(work, "card"), dir); err != nil {
		if _, there := os.Stat(dir); there != nil {
			return err // else another process has made it
		}
	}
	return nil
}

// use keeps a version from being removed until this process ends. It returns false if there is none.
func use(dir string) bool {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	now := time.Now()
	if unix.Flock(fd, unix.LOCK_SH) != nil || os.Chtimes(dir, now, now) != nil { // it may have gone by now
		_ = unix.Close(fd)
		return false
	}
	return true
}

// removeUnused removes versions, and what is left of builds that were killed, that nobody has used for
// long and nobody uses.
func removeUnused(cache string) {
	old, _ := filepath.Glob(filepath.Join(cache, cached+"*"))
	for _, dir := range old {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > keptFor && unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = unix.Close(fd)
	}
}

// versions is a linker script of the versions that programs want of rdma-core's libraries. Symbols
// have none of them, and so satisfy all. Those for rdma-core's own programs have a number that
// grows with its releases.
func versions() []byte {
	var script bytes.Buffer
	for i := range 16 {
		fmt.Fprintf(&script, "IBVERBS_1.%d {};\nRDMACM_1.%[1]d {};\n", i)
	}
	for i := range 40 {
		fmt.Fprintf(&script, "MLX5_1.%d {};\nEFA_1.%[1]d {};\n", i)
	}
	for i := 14; i < 100; i++ {
		fmt.Fprintf(&script, "IBVERBS_PRIVATE_%d {};\n", i)
	}
	return script.Bytes()
}

// hash identifies the sources, and how they are compiled.
func hash() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, compiler(), library)
	sum.Write(versions())
	files, err := fs.Glob(sources, "card/*")
	for _, path := range files {
		text, _ := sources.ReadFile(path) // it is embedded
		fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

// compilerLines is how much is shown of what the compiler says: without the headers it says the same of
// each file.
const compilerLines = 20

// compile makes both libraries of the same sources, since rdma_cm and the card share much: that
// of rdma_cm is empty and has the other one loaded.
func compile(dir string) error {
	card, err := filepath.Glob(filepath.Join(dir, "*.c"))
	card = slices.DeleteFunc(card, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "main_") })
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "empty.c"), nil, 0o644), os.WriteFile(filepath.Join(dir, "versions"), versions(), 0o644))
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		append(append(library, "-o", "libibverbs.so.1", "-Wl,-soname,libibverbs.so.1"), append(card, "-lm")...),
		append(library, "-o", "librdmacm.so.1", "-Wl,-soname,librdmacm.so.1", "empty.c", "-Wl,--no-as-needed", "libibverbs.so.1"),
		append(library, "-o", "libmlx5.so.1", "-Wl,-soname,libmlx5.so.1", "main_providers.c"),
		append(library, "-o", "libefa.so.1", "-Wl,-soname,libefa.so.1", "main_providers.c"),
		append(cflags, "-o", "raw", "main_raw.c", "libibverbs.so.1"),
		append(cflags, "-o", "host", "main_host.c", "libibverbs.so.1"),
		append(cflags, "-o", "rdma", "main_rdma.c", "libibverbs.so.1"),
	} {
		cmd := exec.Command(compiler(), args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(lines) > compilerLines {
				lines = append(lines[:compilerLines], "...")
			}
			return fmt.Errorf("compile the card: %w\n%s", err, strings.Join(lines, "\n"))
		}
	}
	return nil
}
