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
	require.Contains(t, tried(host.Device{Driver: "mana"}, port, nil, errors.New("x")).What, "cannot be used, because this kernel's driver has no GSI queue pair")
}

func statuses(d diagnosis) (all []status) {
	for _, f := range d.Findings {
		all = append(all, f.Status)
	}
	return all
}
