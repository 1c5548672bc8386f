package main

import (
	"os"
	"testing"
)

// Without a home the cache is in a folder that all users may write to.
func TestDefaultCacheIsTheUsersAlone(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("TMPDIR", t.TempDir())
	dir, err := defaultCache()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := defaultCache(); err != nil || again != dir {
		t.Fatalf("%q, %v, want %q again", again, err, dir)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := defaultCache(); err == nil {
		t.Error("a folder that others may write to")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := defaultCache(); err == nil {
		t.Error("a link to another folder")
	}
}
