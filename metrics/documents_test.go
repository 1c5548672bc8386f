package metrics

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDocumentListsTheMetricsAndTheirLabels(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	documented := make(map[string][]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(ringnet_\\w+)` \\| ([^|]*)\\|").FindAllStringSubmatch(string(text), -1) {
		require.NotContains(t, documented, row[1])
		documented[row[1]] = nil
		for _, label := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1) {
			documented[row[1]] = append(documented[row[1]], label[1])
		}
	}
	described := make(map[string][]string)
	for _, m := range slices.Concat(process, devices) {
		described[m.name] = m.labels
	}
	require.Equal(t, described, documented)
}
