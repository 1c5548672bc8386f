package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInfoSaysWhatAutoOffers(t *testing.T) {
	out, err := commandProcess("info").Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^auto offers (shm, )?(rdma, )?tcp$`, string(out))
	require.Regexp(t, `(?m)^memory of links: .* at most in a process$`, string(out))

	var i info
	out, err = commandProcess("info", "--json").Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &i))
	require.Contains(t, i.Auto.Offers, "tcp")
	require.Len(t, i.Auto.PassedOver, 3-len(i.Auto.Offers))
	require.Positive(t, i.Memory.Link)
	require.NotNil(t, i.Devices)
}

func TestInfoOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		var i info
		out, err := commandProcess("info", "--json").Output()
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(out, &i))
		require.Contains(t, i.Auto.Offers, "rdma")
		for _, d := range i.Devices {
			if d.Name != os.Getenv("SOFTROCE_DEVICE") {
				continue
			}
			p := d.Ports[0]
			require.True(t, p.Usable())
			require.Equal(t, os.Getenv("SOFTROCE_NETDEV"), p.Interface)
			require.Equal(t, "Ethernet", p.LinkLayer)
			require.NotZero(t, p.RoCEMTU)
			require.NotEmpty(t, p.GIDs)
			require.Contains(t, p.GIDs[0].Type, "RoCE")
			require.Contains(t, d.Addresses[p.Interface][0], os.Getenv("SOFTROCE_ADDR"))
			return
		}
		require.Fail(t, "no device "+os.Getenv("SOFTROCE_DEVICE"), string(out))
	})
}
