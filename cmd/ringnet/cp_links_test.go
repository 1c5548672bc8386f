package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who may write to a folder while it is sent has a sender, root maybe, send no other file of the host.
func TestCpSendsNoFileThatHasBecomeALink(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("root's"), 0o600))
	tree := filepath.Join(t.TempDir(), "tree")
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "below"), 0o700))
	for _, name := range []string{"a", "below/secret", "below/z", "c"} {
		require.NoError(t, os.WriteFile(filepath.Join(tree, name), []byte("plain"), 0o600))
	}
	items, err := itemsOf(tree, "tree")
	require.NoError(t, err)
	require.Len(t, items, 4)

	require.NoError(t, os.Remove(filepath.Join(tree, "a")))
	require.NoError(t, os.Symlink(secret, filepath.Join(tree, "a")))
	require.NoError(t, os.RemoveAll(filepath.Join(tree, "below")))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(tree, "below")))
	require.NoError(t, os.Remove(filepath.Join(tree, "c")))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "c"), []byte("another"), 0o600))
	_, err = itemsOf(tree, "tree")
	require.ErrorContains(t, err, "not a regular file", "a link that is there from the beginning")
	for _, i := range items[:3] {
		_, err := i.open()
		require.ErrorContains(t, err, i.path+": ")
	}
	_, err = items[0].open()
	require.ErrorContains(t, err, "not a regular file")
	f, err := items[3].open() // as a program that writes files anew leaves it
	require.NoError(t, err)
	defer f.Close()
	content, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Equal(t, "another", string(content))
}
