package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutants are edits of ringnet, and tests that fail then on cards of some manners.
var mutants = []struct {
	name, file, old, new string
	row
}{
	{
		"Poll trusts a provider to return all", "internal/rdmacore/shim.c",
		"while (more && got < n);", "while (0);",
		row{verbs, "short-polls", "TestPollTakesAllThatHasCompleted$", 1, nil},
	},
	{
		"a write of nothing has a stale fragment", "internal/fabric/verbs/queue.go",
		"w.NumSGE, *s = 0, rdmacore.SGE{}", "w.NumSGE = 0",
		row{verbs, "irdma", "TestContract$/^EmptyWriteCompletes$", 1, nil},
	},
	{
		"a card that takes fewer bytes inline than it is asked for is given up", "internal/rdmacore/queuepair.go",
		"sends*64+recvs*16); errors.Is(err, fabric.ErrDeviceRemoved) {", "sends*64+recvs*16); true || errors.Is(err, fabric.ErrDeviceRemoved) {",
		row{verbs, "bnxt_re", "TestInlineDataIsWhatTheCardTakes$", 1, nil},
	},
	{
		"a shortage is taken for a limit of the card", "internal/rdmacore/errors.go",
		"return isErrno(err, syscall.ENOMEM, syscall.EPERM, syscall.EAGAIN)", "return false",
		row{verbs, "shortage", "TestShortageIsNoLimitOfTheCard$", 1, nil},
	},
	{
		"fork support is asked for when there are devices already", "internal/rdmacore/shim.c",
		"	lib.ibv_fork_init();\n", "",
		row{rconn, "fork-copies", some, 1, nil},
	},
	{
		"memory that cannot be deregistered stays mapped", "internal/rdmacore/memory.go",
		"err := m.deregister()\n", "err := m.deregister()\nif err != nil {\nreturn err\n}\n",
		row{verbs, "removed", "TestNothingStaysOfACardThatIsGone$", 1, nil},
	},
	{
		"a header that a datagram does not have is trusted", "rdmaudp/internal/ud/receive.go",
		"w.Flags&rdmacore.WithGRH != 0 && ", "",
		row{ud, "grh-missing", "TestDatagramWithoutAHeaderIsDropped$", 1, nil},
	},
	{
		"memory is registered for strict ordering", "internal/rdmacore/memory.go",
		"if q.ID.manager.relaxed {", "if false {",
		row{verbs, "relaxed-ordering", "TestBytesMayComeInAnyOrderBeforeTheCompletion$", 1, nil},
	},
	{
		"all inline data goes to the same place", "internal/fabric/verbs/queue.go",
		"slot := int((e.posted + uint64(i)) % uint64(len(e.Queue.Sends)))", "slot := i",
		row{verbs, "mana,rnr", "TestInlineDataOfRequestsThatWaitIsNotOverwritten$", 1, nil},
	},
	{
		"a length that is wrong passes", "internal/fabric/verbs/queue.go",
		"	switch {\n	case imm&lengthMask != 0:", "	imm &^= lengthMask\n	switch {\n	case false:",
		row{verbs, "length-wrong", "TestWrongLengthIsFoundOutAtOnce$", 1, nil},
	},
	{
		"a datagram does not wait for room in the send queue", "rdmaudp/internal/ud/send.go",
		"q.posted-q.done > uint64(limit); polls++", "polls == 0; polls++",
		row{ud, "", "TestDatagramsRecvQueue$", 1, []string{"-latency", "1ms"}},
	},
}

// TestMutants sees that the manners find each of the mutants. It takes minutes.
func TestMutants(t *testing.T) {
	if os.Getenv("RINGNET_MUTANTS") == "" {
		t.Skip("RINGNET_MUTANTS is not set")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			path, err := filepath.Abs("../../" + m.file)
			require.NoError(t, err)
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(source), m.old), "%q in %s", m.old, m.file)
			dir := t.TempDir()
			mutated, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(mutated, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600))
			replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, replace, 0o600))
			out, status := m.run(t, buildTests(t, m.in, "-overlay", overlay), 1)
			require.NotZero(t, status, out)
			require.Contains(t, out, "--- FAIL: ")
		})
	}
}
