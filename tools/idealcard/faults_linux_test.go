package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const twoHostsFile = "fabrics/two-hosts.json"

func TestFaultsAreRefused(t *testing.T) {
	for text, why := range map[string]string{
		"qp":            "want out=DURATION",
		"qp=1.5":        "it is a probability",
		"qp=NaN":        "it is a probability",
		"qp@0":          "want out=DURATION",
		"disk=0.1":      "there are the kinds qp, cable, port, card and kill",
		"out=-1s,qp@1":  "it must be positive",
		"out=soon,qp@1": "invalid duration",
		"qp@1,":         "want out=DURATION",
	} {
		_, err := parseFaults(text)
		require.ErrorContains(t, err, why, text)
	}
	got, err := parseFaults("qp=1e-5,out=50ms,kill@2000")
	require.NoError(t, err)
	require.Equal(t, "qp=1e-5,out=50000000ns,kill@2000", got)
	again, err := parseFaults(got)
	require.NoError(t, err)
	require.Equal(t, got, again, "what is printed can be given again")
}

// onTwoHosts runs a script on host 0 and one on host 1, with ask to ask the control port.
func onTwoHosts(t *testing.T, here, there string, flags ...string) string {
	t.Helper()
	requirePrograms(t, "rping")
	const script = `ask() { exec 3<>$SOFTROCE_CONTROL; echo "$*" >&3; read answer <&3; exec 3>&-; echo "$*: $answer"; }
state() { ibv_devinfo -d $SOFTROCE_DEVICE | grep -o 'PORT_[A-Z]*'; }
if [ $SOFTROCE_NODE = 0 ]; then eval "$0"; else eval "$1"; fi`
	args := append(flags, "-fabric", twoHostsFile, "--", "timeout", "-k", "1", "60", "bash", "-c", script, here, there)
	cmd := tool(t, args...)
	if out, err := exec.Command("unshare", "-n", "true").CombinedOutput(); err != nil {
		t.Skipf("no network namespace can be made: %s", out)
	}
	out, status := result(t, cmd)
	require.Zero(t, status, out)
	return out
}

func TestControlBreaksAndMends(t *testing.T) {
	out := onTwoHosts(t, `state; ask cable down 0; state; ask cable up 0; state
ask port down left0; state; ask port up left0 1; state
ask card remove left0; ibv_devices | grep -c left; ask card return left0; ibv_devices | grep -c left
ask path down; state; ask path up
ask; ask cable; ask cable tie; ask cable down 7; ask cable down 0 1; ask card remove none; ask port down left0 2; ask power off 5; ask power off 1 1`, "exit 0")
	require.Equal(t, `PORT_ACTIVE
cable down 0: ok
PORT_DOWN
cable up 0: ok
PORT_ACTIVE
port down left0: ok
PORT_DOWN
port up left0 1: ok
PORT_ACTIVE
card remove left0: ok
1
card return left0: ok
2
path down: ok
PORT_ACTIVE
path up: ok
: error unknown request
cable: error unknown request
cable tie: error unknown request
cable down 7: error there is no such cable
cable down 0 1: error unknown request
card remove none: error there is no such card
port down left0 2: error the card has no such port
power off 5: error there is no such host
power off 1 1: error unknown request
`, out)
}

// A program that has no way to go on ends when its requests have run out of retries, and one that
// connects while the path is down gets its answer when that is up again.
func TestPathThatIsDownGivesNoAnswer(t *testing.T) {
	began := time.Now()
	out := onTwoHosts(t, `sleep 0.5; ask path down
rping -c -a $SOFTROCE_PEER -C 3 -v & client=$!
sleep 1; kill -0 $client && echo "it waits"; ask path up; wait $client && echo "it went on"`, `rping -s -a $SOFTROCE_ADDR -C 3`)
	require.Contains(t, out, "it waits\n")
	require.Contains(t, out, "it went on\n")
	require.Greater(t, time.Since(began), 1500*time.Millisecond)
}

// The server of a client that has failed may wait for a message for ever.
const clientAlone = `$0 >/dev/null 2>&1 & server=$!
sleep 0.5
$1; client=$?
kill -KILL $server 2>/dev/null
exit $client`

func TestScheduleComesWhereItSays(t *testing.T) {
	t.Parallel()
	const rping, pingpong = "rping -%s -a 127.0.0.1 -C 100", "ibv_rc_pingpong -p 18641 -g 0%s"
	requirePrograms(t, pingpong)
	for _, c := range []struct {
		faults, server, client string
		fails                  bool
	}{
		{"qp@40", fmt.Sprintf(rping, "s"), fmt.Sprintf(rping, "c"), true},
		{"qp@40000", fmt.Sprintf(rping, "s"), fmt.Sprintf(rping, "c"), false},
		{"card@300,out=10s", fmt.Sprintf(rping, "s"), fmt.Sprintf(rping, "c"), true},
		{"kill@60", fmt.Sprintf(pingpong, ""), fmt.Sprintf(pingpong, " 127.0.0.1"), true}, // both poll all the time
	} {
		t.Run(c.faults, func(t *testing.T) {
			t.Parallel()
			out, status := idealcard(t, "-seed", "7", "-faults", c.faults, "--", "timeout", "-k", "1", "60", "sh", "-c", clientAlone, c.server, c.client)
			require.Equal(t, c.fails, status != 0, "%s: %s", c.faults, out)
			require.Equal(t, c.fails, strings.Contains(out, "idealcard: it failed with -seed 7\n"), out)
		})
	}
}
