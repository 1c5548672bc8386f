package verbs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIWARPNeedsOneDeviceOnly(t *testing.T) {
	sysfs := t.TempDir()
	device := func(name, nodeType string) {
		require.NoError(t, os.Mkdir(filepath.Join(sysfs, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(sysfs, name, "node_type"), []byte(nodeType+"\n"), 0o600))
	}
	assert.False(t, haveIWARP(sysfs))
	device("rxe0", "1: CA")
	assert.False(t, haveIWARP(sysfs))
	device("siw0", "4: RNIC")
	assert.True(t, haveIWARP(sysfs))
}
