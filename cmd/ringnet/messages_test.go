//go:build unix

package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	lib "github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

// On an ideal card all messages come through as they are sent. With a manner of tools/idealcard, these do not.
func TestDoctorSendsMessagesOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		d := doctor(t, "")
		spoiled := map[string]string{
			"bnxt_re-push":   "inline data, posted alone: it came otherwise",
			"hns-direct-wqe": "data from memory, in a batch: ",
			"no-queue-pair":  "nothing can be sent through it to itself: the device refuses even queues of 16 sends",
			"removed":        "and then: ", // it cannot be opened again
		}[os.Getenv("IDEAL_MANNERS")]
		f := d.find(t, func(f finding) bool {
			return strings.HasPrefix(f.Subject, os.Getenv("SOFTROCE_DEVICE")) && strings.Contains(f.What, "sent")
		})
		if spoiled == "" {
			require.Equal(t, finding{Subject: f.Subject, Status: good, What: "messages of each kind come through it as they are sent"}, f)
			require.False(t, d.FallsBack, "%+v", d.Findings)
			return
		}
		require.Equal(t, bad, f.Status)
		require.Contains(t, f.What, spoiled)
		require.NotEmpty(t, f.Mend)
		require.True(t, d.FallsBack)
	})
}

// Where driver and release are known to have a defect, messages come all the same, and doctor and info say how. By
// RINGNET_INLINE a user decides otherwise, or helps where they are not known.
func TestDoctorGoesRoundDefectsOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		device := os.Getenv("SOFTROCE_DEVICE")
		says, ok := map[string]string{"bnxt_re-push": "it sends nothing inline", "hns-direct-wqe": "it posts each request alone"}[os.Getenv("IDEAL_MANNERS")]
		if !ok {
			t.Skip("it is for tools/idealcard -manners bnxt_re-push -rdma-core 50.0")
		}
		come := func(d diagnosis) bool {
			return d.find(t, func(f finding) bool {
				return strings.HasPrefix(f.Subject, device) && strings.Contains(f.What, "as they are sent")
			}).Status == good
		}
		d := doctor(t, "")
		require.True(t, come(d), "%+v", d.Findings)
		require.False(t, d.FallsBack)
		f := d.find(t, func(f finding) bool {
			return f.Subject == device && strings.Contains(f.What, "ringnet goes round it: "+says)
		})
		require.Equal(t, note, f.Status)
		out, err := commandProcess("info").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), says)
		if says == "it sends nothing inline" {
			require.False(t, come(doctor(t, "RINGNET_INLINE=96")))
		}
	})
}

// A provider that is not known to garble inline data does not do it to who sends none.
func TestDoctorSendsNothingInlineWhereThatIsSwitchedOffOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		if os.Getenv("IDEAL_MANNERS") != "bnxt_re-push" {
			t.Skip("it is for tools/idealcard -manners bnxt_re-push")
		}
		d := doctor(t, "RINGNET_INLINE=off")
		require.False(t, d.FallsBack, "%+v", d.Findings)
	})
}

// What ringnet goes on after does not have doctor fail.
func TestDoctorGoesRoundWhatRingnetDoesOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		d := doctor(t, "")
		require.False(t, d.FallsBack, "with tools/idealcard -manners stale-once, or neighbour-moved: %+v", d.Findings)
	})
}

// rdma-core before v30 opens the first of the devices that have the same node GUID.
func TestDoctorFindsEqualGUIDsOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		if os.Getenv("IDEAL_MANNERS") != "equal-guids" {
			t.Skip("it is for tools/idealcard -manners equal-guids -rdma-core 28.0")
		}
		f := doctor(t, "").find(t, func(f finding) bool { return f.Subject == "two0" && strings.Contains(f.What, "the same node GUID") })
		require.Contains(t, f.Mend, "rdma-core 30.0")
	})
}

// Beside a card that can be used, an iWARP device has nothing fall back.
func TestDoctorBesideAnIWARPDeviceOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		if _, err := os.Stat("/sys/class/infiniband/iwarp0"); err != nil {
			t.Skip("it is for tools/idealcard -fabric fabrics/iwarp.json")
		}
		d := doctor(t, "")
		require.False(t, d.FallsBack, "%+v", d.Findings)
		require.Equal(t, note, d.find(t, func(f finding) bool { return f.Subject == "iwarp0" }).Status)
	})
}

func TestMessagesThatComeDecide(t *testing.T) {
	port := host.Port{Number: 1}
	before := []finding{{Subject: "mlx5_0 port 1", Status: bad, Code: lib.ReasonNoDevice}, {Subject: "locked memory", Status: bad, Code: lib.ReasonLockedMemory}}
	come, garbled := tried(host.Device{Name: "a"}, port, nil, nil), tried(host.Device{Name: "b"}, port, []string{"inline data, in a batch: …"}, nil)

	d := diagnosis{Findings: slices.Clone(before)}
	d.decide([]finding{come, garbled})
	require.Equal(t, []status{note, bad, good, bad}, statuses(d))
	d = diagnosis{Findings: slices.Clone(before)}
	d.decide([]finding{garbled})
	require.Equal(t, []status{bad, bad, bad}, statuses(d))
	require.Regexp(t, "^RINGNET_INLINE=off .*\nRINGNET_NETWORKS=", garbled.Mend)
	t.Setenv("RINGNET_INLINE", "96")
	require.Regexp(t, "^unset RINGNET_INLINE .*\nRINGNET_NETWORKS=", tried(host.Device{}, port, []string{"x"}, nil).Mend)
	require.Contains(t, tried(host.Device{Driver: "mana"}, port, nil, errors.New("x")).What, "cannot be used, because this kernel's driver has no GSI queue pair")
}

func statuses(d diagnosis) (all []status) {
	for _, f := range d.Findings {
		all = append(all, f.Status)
	}
	return all
}
