package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFabricsOfThisFolderAreRead(t *testing.T) {
	files, err := os.ReadDir("fabrics")
	require.NoError(t, err)
	for _, file := range files {
		_, err := readFabric("fabrics/" + file.Name())
		require.NoError(t, err)
	}
}

func TestFabricIsRefused(t *testing.T) {
	const one = `{"cards": [{"name": "a0", "ports": [{"addresses": ["all"]}]}]}`
	_, err := parseFabric([]byte(one))
	require.NoError(t, err)
	for _, bad := range []struct{ from, to, why string }{
		{one, "", "EOF"},
		{one, one + "{}", "there is more behind the fabric"},
		{one, `{}`, "number of cards 0: there can be 1 to 8"},
		{`"a0"`, `"a0", "manners": ["mlx5", "mlx6"]`, `manner "mlx6": there are mlx5, bnxt_re, `},
		{`"name"`, `"nama"`, `unknown field "nama"`},
		{`"a0"`, `"A 0"`, `card "A 0": a name has`},
		{`"a0"`, `"a0", "qp_cache": 65536, "qp_miss": "1us"`, "qp_cache 65536: there can be 0 to 65535"},
		{`"a0"`, `"a0", "limits": {"inline": 513}`, "inline 513: there can be 1 to 512"},
		{`{"addresses": ["all"]}`, ``, `card "a0": number of ports 0: there can be 1 to 2`},
		{`["all"]`, `[]`, "number of addresses 0"},
		{`["all"]`, `["10.0.0.256"]`, `address "10.0.0.256"`},
		{`["all"]`, `["239.0.0.1"]`, `address "239.0.0.1"`},
		{`["all"]`, `["all", "all"]`, "address all: another port has it"},
		{`["all"]`, `["::1", "0:0::1"]`, "address ::1: another port has it"},
		{`["all"]`, `["all"], "mtu": 1500`, "mtu 1500: there are 256"},
		{`["all"]`, `["all"], "link": "Token Ring"`, `link "Token Ring": there are Ethernet and InfiniBand`},
		{`["all"]`, `["all"], "link": "InfiniBand"`, "lid 0: ports of InfiniBand"},
		{`["all"]`, `["all"], "lid": 3`, "lid 3: ports of InfiniBand"},
		{`["all"]`, `["all"], "pkeys": ["0x18000"]`, `pkey "0x18000"`},
		{`{"cards"`, `{"latency": "-1s", "cards"`, `"-1s" into Go struct field cardFabric.latency`},
		{`{"cards"`, `{"gigabits": -1, "cards"`, "gigabits -1: there can be 0 to"},
		{`{"cards"`, `{"latency": "soon", "cards"`, `"soon" into Go struct field cardFabric.latency of type time.Duration`},
		{`"a0"`, `"a0", "qp_cache": 5, "qp_miss": "5"`, `"5" into Go struct field card.cards.qp_miss of type time.Duration`},
		{`"a0"`, `"a0", "host": 2`, "host 2: there can be 0 to 1"},
		{`"a0"`, `"a0", "host": 1`, "with two hosts each port"},
		{`["all"]`, `["all"], "cable": 16`, "cable 16: there can be 0 to 15"},
	} {
		text := strings.Replace(one, bad.from, bad.to, 1)
		_, err := parseFabric([]byte(text))
		require.ErrorContains(t, err, bad.why, text)
	}
}

func TestFabricHasItsCards(t *testing.T) {
	requirePrograms(t, "ibv_devinfo")
	out, status := idealcard(t, "-fabric", infiniBandFile, "--", "sh", "-c", "ibv_devinfo -v; ls /dev/infiniband")
	require.Zero(t, status, out)
	for _, want := range []string{
		"max_qp:\t\t\t\t4096", "hca_id:\tib1", "port_lid:\t\t2", "active_mtu:\t\t2048", "link_layer:\t\tInfiniBand", "uverbs1\n", "fe80:",
	} {
		require.Contains(t, out, want)
	}
}

func TestFabricIsAsSlowAsItIsSaid(t *testing.T) {
	for pace, least := range map[string]float64{`"gigabits": 1`: 4096 * 8, `"messages": 10000`: 100e3, `"latency": "50us"`: 50e3} {
		path := t.TempDir() + "/fabric.json"
		text := `{` + pace + `, "cards": [{"name": "a0", "ports": [{"addresses": ["all"]}]}]}`
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		out, status := idealcard(t, "-fabric", path, "--", "raw", "ping-pong", "4096", "300")
		require.Zero(t, status, out)
		var sample struct{ P50 float64 }
		require.NoError(t, json.Unmarshal([]byte(out), &sample), out)
		require.GreaterOrEqual(t, sample.P50, least*0.99, "nanoseconds, half a round trip, with %s", pace)
	}
}

// The two queue pairs of a ping-pong take turns. With room for both a card fetches each context once;
// with room for one it has to fetch the other one for each message.
func TestCardKeepsAsManyContextsAsItIsSaid(t *testing.T) {
	for room, thrashes := range map[int]bool{2: false, 1: true} {
		path := t.TempDir() + "/fabric.json"
		text := fmt.Sprintf(`{"cards": [{"name": "a0", "qp_cache": %d, "qp_miss": "50us", "ports": [{"addresses": ["all"]}]}]}`, room)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		out, status := idealcard(t, "-fabric", path, "--", "sh", "-c", "raw ping-pong 64 300 && rdma -j statistic show")
		require.Zero(t, status, out)
		var sample struct{ Ops, P50 float64 }
		var cards []struct {
			Misses float64 `json:"qp_misses"`
		}
		d := json.NewDecoder(strings.NewReader(out))
		require.NoError(t, d.Decode(&sample), out)
		require.NoError(t, d.Decode(&cards), out)
		if !thrashes {
			require.Equal(t, 2.0, cards[0].Misses)
			continue
		}
		require.GreaterOrEqual(t, cards[0].Misses, sample.Ops)
		require.GreaterOrEqual(t, sample.P50, 49.5e3, "nanoseconds, half a round trip")
	}
}
