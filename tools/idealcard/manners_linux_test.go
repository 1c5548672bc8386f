package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// row is tests of a package that pass on cards of some manners.
type row struct {
	in      string
	manners string
	tests   string // after "^"
	seeds   int    // how many
	flags   []string
}

// Packages that have the tests.
const (
	ringnet = "."
	rconn   = "rconn"
	verbs   = "internal/fabric/verbs"
	core    = "internal/rdmacore"
	ud      = "rdmaudp/internal/ud" // of another module, as is
	command = "cmd/ringnet"
)

// Tests of package rconn: everything, what takes a second or two, and those that expect an end.
const (
	everything = `Test.*/^(verbs|rdma6?)$`
	some       = `Test(Nettest|RandomLives|Buffers.*|Peek.*|CopyOfAFile)$/^(verbs|rdma6?)$`
	ends       = `TestConnectionsEndWithAnErrorOfTheCard$`
)

// onCards are the manners, with the tests that pass on cards which have them. With the last of
// them connections end, and that test says with which error.
var onCards = []row{
	{rconn, "relaxed-ordering", everything, 1, nil},
	{rconn, "payload-overtaken", everything, 1, nil},
	{rconn, "completions-any-order", everything, 1, nil},
	{rconn, "short-polls", everything, 1, nil},
	{rconn, "relaxed-ordering,completions-any-order,short-polls,events-twice", some, 1, nil},
	{rconn, "events-coalesced", some, 1, nil},
	{rconn, "events-twice", some, 1, nil},
	{rconn, "events-spurious", some, 1, nil},
	{rconn, "mlx5", some, 1, nil},
	{rconn, "bnxt_re", some, 1, nil},
	{rconn, "irdma", some, 1, nil},
	{rconn, "qedr", some, 1, nil},
	{rconn, "hns", some, 1, nil},
	{rconn, "erdma", some, 1, nil},
	{rconn, "rnr", some, 1, nil},
	{rconn, "slow-retry", some, 1, nil},
	{rconn, "slow-registration", some, 1, nil},
	{rconn, "slow-queue-pairs", `TestRandomLives$/^(verbs|rdma6?)$`, 1, nil},
	{ringnet, "slow-queue-pairs", "TestTransferOverQueuePairsThatFail$", 1, []string{"-faults", "qp=2e-3"}},
	{rconn, "comm-est-late", some, 1, nil},
	{rconn, "rep-lost", some, 1, nil},
	{rconn, "dreq-lost", some, 1, nil},
	{rconn, "inline-none", some, 1, nil},
	{verbs, "empty-write-checked", "TestProbesNameMemoryOfThePeer$", 1, nil},
	{rconn, "fork-copies", some, 1, nil},
	{rconn, "batch-cut", ends, 4, nil},
	{rconn, "length-wrong", ends, 4, nil},
	{rconn, "mlx5-internal-error", ends, 4, nil},
	{rconn, "mlx5-cq-error", ends, 4, nil},
	{rconn, "removed", ends, 4, nil},
	{rconn, "reset", ends, 4, nil},
	{rconn, "mana", some, 1, nil},
	{rconn, "mana,rnr", some, 2, nil},
	{verbs, "mana,rnr", "TestInlineDataOfRequestsThatWaitIsNotOverwritten$", 2, nil},
	{verbs, "irdma", "Test(Contract|InlineDataIsWhatTheCardTakes|ProbesNameMemoryOfThePeer)$", 1, nil},
	{verbs, "bnxt_re", "TestInlineDataIsWhatTheCardTakes$", 2, nil},
	{verbs, "qedr", "TestInlineDataIsWhatTheCardTakes$", 1, nil},
	{verbs, "hns", "TestInlineDataIsWhatTheCardTakes$", 1, nil},
	{verbs, "erdma", "TestInlineDataIsWhatTheCardTakes$", 1, nil},
	{verbs, "inline-none", "TestInlineDataIsWhatTheCardTakes$", 1, nil},
	{verbs, "inline-granted", "TestInlineDataIsWhatTheCardGrants$", 3, nil},
	{rconn, "inline-granted", some, 3, nil},
	{verbs, "mlx5", "Test(QueuesAreAsDeepAsTheCardAllows|BothEndsTakeTheVendorOptionsThatBothKnow)$", 1, nil},
	{verbs, "ece-refused", "TestConnectionDoesWithoutVendorOptionsThatTheCardFailsWith$", 1, nil},
	{verbs, "no-queue-pair", "TestCardThatRefusesEverything$", 3, nil},
	{verbs, "shortage", "TestShortageIsNoLimitOfTheCard$", 3, nil},
	{ud, "grh-missing", "TestDatagramWithoutAHeaderIsDropped$", 1, nil},
	{ud, "length-wrong", "TestDatagramThatIsLongerThanItsReceiveIsDropped$", 4, nil},
	{verbs, "length-wrong", "TestWrongLengthIsFoundOutAtOnce$", 4, nil},
	{ringnet, "completions-any-order", "TestTransferOverQueuePairsThatFail$", 4, []string{"-faults", "qp=2e-3"}},
	{ringnet, "relaxed-ordering,payload-overtaken,events-spurious", "TestTransferOverQueuePairsThatFail$", 2, []string{"-faults", "qp=2e-3"}},
	{verbs, "short-polls", "TestPollTakesAllThatHasCompleted$", 1, nil},
	{verbs, "relaxed-ordering", "TestBytesMayComeInAnyOrderBeforeTheCompletion$", 1, nil},
	{verbs, "removed", "TestNothingStaysOfACardThatIsGone$", 1, nil},
	{ud, "", "TestDatagramsRecvQueue$", 1, []string{"-latency", "1ms"}},
	{command, "bnxt_re-push", "TestDoctorSends(Messages|NothingInlineWhereThatIsSwitchedOff)OverRDMA$", 1, nil},
	{command, "stale-length", "TestDoctorSendsMessagesOverRDMA$", 1, nil},
	{command, "hns-direct-wqe", "TestDoctorSendsMessagesOverRDMA$", 1, nil},
	{command, "bnxt_re-push", "TestDoctorGoesRoundDefectsOverRDMA$", 1, []string{"-rdma-core", "50.0"}},
	{command, "hns-direct-wqe", "TestDoctorGoesRoundDefectsOverRDMA$", 1, []string{"-rdma-core", "50.0"}},
	{rconn, "bnxt_re-push", some, 1, []string{"-rdma-core", "50.0"}},
	{rconn, "hns-direct-wqe", some, 1, []string{"-rdma-core", "50.0"}},
	{core, "bnxt_re", "TestWhatACardGrantsIsRemembered$", 2, nil},
	{command, "no-queue-pair", "TestDoctorSendsMessagesOverRDMA$", 3, nil},
	{command, "removed", "TestDoctorSendsMessagesOverRDMA$", 2, nil},
	{core, "equal-guids", "TestDeviceThatDoesNotHaveTheAddressIsRefused$", 1, []string{"-fabric", "../../tools/idealcard/fabrics/two-cards.json"}},
	{command, "equal-guids", "TestDoctorFindsEqualGUIDsOverRDMA$", 1, []string{"-rdma-core", "28.0", "-fabric", "../../tools/idealcard/fabrics/two-cards.json"}},
	{ringnet, "addr-change", "TestConnectionIsProbedWhenTheCardsAddressChanges$", 2, nil},
	{ringnet, "neighbour-moved", "TestConnectionGoesOnAtOnceWhenThePeersAddressChanges$", 2, nil},
	{ringnet, "stale-once", "TestDialIsRepeatedWhenThePeerRemembersTheQueuePair$", 1, nil},
	{command, "stale-once", "TestDoctorGoesRoundWhatRingnetDoesOverRDMA$", 1, nil},
	{command, "neighbour-moved", "TestDoctorGoesRoundWhatRingnetDoesOverRDMA$", 1, nil},
	{command, "", "TestDoctorBesideAnIWARPDeviceOverRDMA$", 1, []string{"-fabric", "../../tools/idealcard/fabrics/iwarp.json"}},
	{core, "", "TestAtAllAddressesBesideAnIWARPDeviceTheOthersListen$", 1, []string{"-fabric", "../../tools/idealcard/fabrics/iwarp.json"}},
	{core, "iwarp", "TestWhereAllDevicesAreIWARPNothingListens$", 1, nil},
	{verbs, "mask-unset", "TestQueuesAreAskedForWithNothingOnTheStack$", 1, nil},
	{verbs, "status-unset", "TestFailureWithoutAStatusIsNoSuccess$", 1, nil},
	{verbs, "", "TestMTUIsThatOfTheNarrowerPort$", 1, []string{"-fabric", "../../../tools/idealcard/fabrics/infiniband.json"}},
}

// whileTheCardGoes has the card go at each of the calls of verbs with which an endpoint is made.
func whileTheCardGoes() (rows []row) {
	for n := range 7 {
		rows = append(rows, row{verbs, "", "TestOpenWhileTheCardGoes$", 1, []string{"-faults", fmt.Sprintf("out=1h,card@%d", n+1)}})
	}
	return rows
}

// TestManners runs ringnet's tests on cards with each of the manners, and draws what they draw from the
// same seeds each time; with RINGNET_SOAK from others.
func TestManners(t *testing.T) {
	first := 1
	if os.Getenv("RINGNET_SOAK") != "" {
		first += rand.IntN(1e6)
	}
	programs := map[string]string{}
	for _, in := range []string{ringnet, rconn, verbs, core, ud, command} {
		programs[in] = buildTests(t, in)
	}
	tried := map[string]bool{}
	for _, r := range append(onCards, whileTheCardGoes()...) {
		tried[r.manners] = true
		for seed := first; seed < first+r.seeds; seed++ {
			t.Run(fmt.Sprintf("%s/%d", r.manners, seed), func(t *testing.T) {
				t.Parallel()
				requirePass(t, programs[r.in], r, seed)
			})
		}
	}
	for _, m := range manners() {
		require.True(t, tried[m], m)
	}
}

// buildTests compiles the tests of a package, with more flags of go test, and returns the program.
func buildTests(t *testing.T, in string, flags ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "test")
	build := exec.Command("go", append([]string{"test", "-c", "-o", program}, flags...)...)
	build.Dir = "../../" + in
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// requirePass fails if no test has run, or one of those that are there for these cards alone has been
// skipped.
func requirePass(t *testing.T, program string, r row, seed int) {
	t.Helper()
	out, status := r.run(t, program, seed)
	require.Zero(t, status, "-manners %s -seed %d: %s", r.manners, seed, out)
	require.Contains(t, out, "--- PASS: ")
	if r.in != rconn {
		require.NotContains(t, out, "--- SKIP: ")
	}
}

func (r row) run(t *testing.T, program string, seed int) (string, int) {
	t.Helper()
	args := append([]string{"-rnr", "-manners", r.manners, "-seed", fmt.Sprint(seed)}, r.flags...)
	args = append(args, "--", program, "-test.v", "-test.run", "^"+r.tests, "-test.timeout", "10m")
	cmd := tool(t, args...)
	cmd.Dir = "../../" + r.in
	cmd.Env = append(cmd.Env, "RINGNET_REQUIRE_RDMA=1")
	out, status := result(t, cmd)
	return strings.TrimSpace(out), status
}
