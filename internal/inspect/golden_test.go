package inspect

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Scripts of users read what ringnet --json ss prints: testdata/ss.json has all that it may have.
func TestWhatAProcessTellsIsWhatUsersRead(t *testing.T) {
	known, err := os.ReadFile("testdata/ss.json")
	require.NoError(t, err)
	var all []Process
	d := json.NewDecoder(bytes.NewReader(known))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&all))
	now, err := json.Marshal(all)
	require.NoError(t, err)
	require.JSONEq(t, string(known), string(now))
}
