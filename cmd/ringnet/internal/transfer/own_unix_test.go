//go:build unix

package transfer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever may write to the folder can give a file another name there, which is no less a link.
func TestReceiveWritesToNoFileThatHasAnotherName(t *testing.T) {
	folder, dir := newFolder(t)
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("kept"), 0o600))
	require.NoError(t, os.Link(other, filepath.Join(dir, ".file.part")))
	_, failed, _ := transferred(t, folder, "file", []byte("x"), whole)
	require.NoError(t, failed)
	requireFile(t, other, []byte("kept"))
}

// A stranger would read what arrives in a file of his, and change it afterwards.
func TestReceiveWritesToNoFileOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of other users")
	}
	folder, dir := newFolder(t)
	part := filepath.Join(dir, ".file.part")
	require.NoError(t, os.WriteFile(part, nil, 0o666))
	require.NoError(t, os.Chown(part, 1000, 1000))
	strangers, err := os.Open(part)
	require.NoError(t, err)
	defer strangers.Close()
	_, failed, _ := transferred(t, folder, "file", []byte("secret"), whole)
	require.NoError(t, failed)
	info, err := strangers.Stat()
	require.NoError(t, err)
	require.Zero(t, info.Size())
}
