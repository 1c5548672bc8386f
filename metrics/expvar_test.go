package metrics

import (
	"encoding/json"
	"expvar"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
)

func TestPublishShowsWhatTheCollectorsCollect(t *testing.T) {
	connect(t)
	const name = "TestPublish"
	if expvar.Get(name) == nil { // -count runs the test again
		Publish(name)
	}
	var shown map[string]any
	require.NoError(t, json.Unmarshal([]byte(expvar.Get(name).String()), &shown))
	families, err := registry(t).Gather()
	require.NoError(t, err)
	for _, f := range families {
		require.Contains(t, shown, strings.TrimPrefix(f.GetName(), "ringnet_"))
	}
	require.Len(t, shown, len(families))
	require.Equal(t, gather(t)[`ringnet_links{network="shm"}`], shown["links"].(map[string]any)["shm"])
	require.Equal(t, float64(ringnet.Memory().Limit), shown["memory_limit_bytes"])
}

func TestPutMakesObjectsOfLabels(t *testing.T) {
	object := make(map[string]any)
	put(object, []string{"links"}, 3)
	put(object, []string{"dials", "shm", "ok"}, 1)
	put(object, []string{"dials", "shm", "failed"}, 2)
	put(object, []string{"dials", "tcp", "ok"}, 4)
	put(object, []string{"limit"}, math.Inf(1))
	text, err := json.Marshal(object)
	require.NoError(t, err)
	require.JSONEq(t, `{"links": 3, "dials": {"shm": {"ok": 1, "failed": 2}, "tcp": {"ok": 4}}, "limit": null}`, string(text))
}
