package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Programs of rdma-core, as they are, run over the card as two processes, both of which have to
// succeed.
var programs = []struct{ server, client string }{
	{"rping -s -a 127.0.0.1 -C 100 -V", "rping -c -a 127.0.0.1 -C 100 -V"},
	{"rping -s -a ::1 -C 10 -V -S 60000", "rping -c -a ::1 -C 10 -V -S 60000"},
	{"ucmatose -c 8", "ucmatose -c 8 -s 127.0.0.1"},
	{"ibv_rc_pingpong -p 18601 -g 0", "ibv_rc_pingpong -p 18601 -g 0 127.0.0.1"},
	{"ibv_rc_pingpong -p 18602 -g 0 -e -s 100000", "ibv_rc_pingpong -p 18602 -g 0 -e -s 100000 127.0.0.1"},
	{"udaddy -c 8", "udaddy -c 8 -s 127.0.0.1"},
	{"mckey -m 239.1.1.1 -b 127.0.0.1", "mckey -m 239.1.1.1 -b 127.0.0.1 -s"},
	{"ibv_ud_pingpong -p 18603 -g 0", "ibv_ud_pingpong -p 18603 -g 0 127.0.0.1"},
	{"ibv_ud_pingpong -p 18604 -g 0 -e", "ibv_ud_pingpong -p 18604 -g 0 -e 127.0.0.1"},
}

// both is a script that runs a server and a client, and fails if one of them does. It waits until the server listens, by
// the connection manager or at the port of its -p; mckey does neither, and is taken to have joined after three seconds.
const both = `$0 >"$2" 2>&1 & server=$!
case $0 in
mckey*) sleep 3; listens=true ;;
*" -p "*) port=${0##* -p } listens="ss -Hltn sport = :${port%% *} | grep -q LISTEN" ;;
*) listens="rdma resource show cm_id | grep -q LISTEN" ;;
esac
until eval "$listens"; do kill -0 $server || exit 1; sleep 0.05; done
$1; client=$?
wait $server; server=$?
cat "$2"; echo "server $server, client $client"
exit $((server | client))`

// On InfiniBand, from one card to another.
var programsOfInfiniBand = []struct{ server, client string }{
	{"rping -s -a 127.0.0.1 -C 100 -V", "rping -c -a 127.0.0.1 -C 100 -V"},
	{"ucmatose -c 8", "ucmatose -c 8 -s 127.0.0.2"},
	{"ibv_rc_pingpong -p 18611 -d ib0", "ibv_rc_pingpong -p 18611 -d ib1 127.0.0.1"},
	{"ibv_ud_pingpong -p 18612 -d ib0", "ibv_ud_pingpong -p 18612 -d ib1 127.0.0.1"},
	{"udaddy -c 8", "udaddy -c 8 -s 127.0.0.2"},
	{"mckey -m 239.1.1.1 -b 127.0.0.1", "mckey -m 239.1.1.1 -b 127.0.0.2 -s"},
}

// Of perftest, whose messages may find no receive. Not with -R: its client may ask before its server listens, and ends
// with a segmentation fault where it tries again.
var programsOfPerftest = []string{
	"ib_write_lat -F -n 100", "ib_write_bw -F -n 100", "ib_read_lat -F -n 100", "ib_send_lat -F -n 100 -c UD", "ib_send_bw -F -n 100 -e -b",
}

const infiniBandFile = "fabrics/infiniband.json"

func TestProgramsOfRDMACore(t *testing.T) {
	t.Parallel()
	for _, p := range programs {
		runBoth(t, p.server, p.client)
	}
	for _, p := range programsOfInfiniBand {
		runBoth(t, p.server, p.client, "-fabric", infiniBandFile)
	}
}

func TestProgramsOfPerftest(t *testing.T) {
	t.Parallel()
	for i, p := range programsOfPerftest {
		p += fmt.Sprint(" -p ", 18640+i)
		runBoth(t, p, p+" 127.0.0.1", "-rnr")
	}
	runBoth(t, "ib_write_lat -F -n 100 -d ib0 -p 18660", "ib_write_lat -F -n 100 -d ib1 -p 18660 127.0.0.1", "-fabric", infiniBandFile)
}

func runBoth(t *testing.T, server, client string, flags ...string) {
	t.Run(strings.Join(append(flags, client), " "), func(t *testing.T) {
		t.Parallel()
		requirePrograms(t, server)
		command := []string{"--", "timeout", "60", "sh", "-c", both, server, client, t.TempDir() + "/server"}
		out, status := idealcard(t, append(flags, command...)...)
		require.Zero(t, status, out)
	})
}

// ucmatose waits for two seconds.
func TestSubnetManagerAnswersLateOrNotAtAll(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "ucmatose")
	late := withSubnetManager(t, "300ms")
	began := time.Now()
	out, status := idealcard(t, "-fabric", late, "--", "timeout", "60", "sh", "-c", both, "ucmatose -c 2", "ucmatose -c 2 -s 127.0.0.2", t.TempDir()+"/server")
	require.Zero(t, status, out)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)

	for event, args := range map[string][]string{
		"ROUTE": {"-fabric", withSubnetManager(t, "1h"), "--", "timeout", "60", "ucmatose", "-c", "1", "-s", "127.0.0.2"},
		"ADDR":  {"--", "timeout", "60", "ucmatose", "-c", "1", "-s", "192.0.2.1"}, // nobody's address
	} {
		out, status := idealcard(t, args...)
		require.NotZero(t, status, out)
		require.Contains(t, out, "RDMA_CM_EVENT_"+event+"_ERROR, error: -110")
	}
}

// withSubnetManager is a file of the fabric of InfiniBand whose subnet manager takes a time to answer.
func withSubnetManager(t *testing.T, delay string) (path string) {
	t.Helper()
	text, err := os.ReadFile(infiniBandFile)
	require.NoError(t, err)
	changed := regexp.MustCompile(`"sm_delay": "[^"]*"`).ReplaceAll(text, fmt.Appendf(nil, `"sm_delay": %q`, delay))
	require.NotEqual(t, text, changed)
	path = t.TempDir() + "/fabric.json"
	require.NoError(t, os.WriteFile(path, changed, 0o644))
	return path
}

// Wherever a process is when it is stopped, nothing is lost when it goes on, and its peer and those
// who have nothing to do with it go on meanwhile, or afterwards.
func TestStoppedProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "ibv_rc_pingpong")
	const script = `ibv_rc_pingpong -p 18621 -g 0 -n 50000 >/dev/null & server=$!
sleep 0.2
ibv_rc_pingpong -p 18621 -g 0 -e -n 50000 127.0.0.1 >/dev/null & client=$!
ibv_rc_pingpong -p 18622 -g 0 -n 5000 >/dev/null & others=$!
sleep 0.2
ibv_rc_pingpong -p 18622 -g 0 -n 5000 127.0.0.1 >/dev/null && wait $others || exit 3
for i in $(seq 50); do
	for p in $server $client; do kill -STOP $p 2>/dev/null && sleep 0.003 && kill -CONT $p; done
done
wait $server && wait $client`
	out, status := idealcard(t, "-rnr", "--", "timeout", "-k", "1", "100", "bash", "-c", script)
	require.Zero(t, status, out)
}

// Processes that are killed in the middle of their traffic leave nothing that keeps others waiting.
func TestKilledProcessesHoldUpNobody(t *testing.T) {
	t.Parallel()
	requirePrograms(t, "ibv_rc_pingpong")
	const script = `for i in $(seq 30); do
	ibv_rc_pingpong -p 18631 -g 0 -n 1000000 >/dev/null 2>&1 & server=$!
	sleep 0.05
	ibv_rc_pingpong -p 18631 -g 0 -n 1000000 127.0.0.1 >/dev/null 2>&1 & client=$!
	sleep 0.05
	kill -KILL $server $client
	wait $server $client
done
ibv_rc_pingpong -p 18632 -g 0 >/dev/null & server=$!
sleep 0.2
ibv_rc_pingpong -p 18632 -g 0 127.0.0.1 && wait $server && sleep 1.5 && rdma resource show`
	out, status := idealcard(t, "-rnr", "--", "timeout", "-k", "1", "100", "bash", "-c", script)
	require.Zero(t, status, out)
	require.Contains(t, out, "ideal0: qp 0 cq 0 pd 0 mr 0 cm_id 0 ctx 0", "what is left")
}

func requirePrograms(t *testing.T, command string) {
	t.Helper()
	var name string
	fmt.Sscan(command, &name)
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%v; apt-get install rdmacm-utils ibverbs-utils perftest", err)
	}
}
