//go:build linux

package cardreport

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// private is what must be in no report. The user and the host are those of the environment.
var private = []string{
	"lieselotte", "secretbox", "203.0.113.77", "fe80:0000:0000:0000:0a1b:2cff:fe3d:4e5f", "fe80::a1b:2cff:fe3d:4e5f",
	"0a:1b:2c:3d:4e:5f", "0a1b:2c03:003d:4e5f", "0a1b2c03003d4e5f", "0x0a1b2c03003d4e5f", "enx0a1b2c3d4e5f",
	"rocex0a1b2c03003d4e5f", "/home/lieselotte/src/x.go", "secretbox.example.com",
}

var privateEnvironment = []string{"USER=lieselotte", "HOSTNAME=secretbox.example.com"}

func TestScrubberLeavesOutWhatIsPrivateAndNothingElse(t *testing.T) {
	for _, variable := range privateEnvironment {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	s := newScrubber("otherbox.example.com", "198.51.100.1")
	require.Equal(t, "ADDRESS to NAME", s.text("198.51.100.2 to 198.51.100.1"))
	s.keep = []string{"218.0.152.0/pkg 218.0.166.0", "mlnx-ofed-kernel-dkms 24.10.OFED.24.10.1.1.4.1-1"}
	for _, word := range append(private, "otherbox") {
		for _, text := range []string{word, "x " + word + " y", "(" + word + ")", `"` + word + `"`, "at=" + word} {
			require.NotContains(t, s.text(text), word)
		}
	}
	for _, text := range []string{
		"firmware 218.0.152.0", "mlnx-ofed-kernel-dkms 24.10.OFED.24.10.1.1.4.1-1, libibverbs1 2410mlnx54-1.2410068",
		"/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", "Linux 6.1.0-18-amd64, rdma-core 44.0", "/dev/infiniband/uverbs0 can be opened",
		"16:02:05 UTC", "conn_test.go:12: 3.41 µs", "mlx5_0 port 1", "libefa.so.1: undefined symbol",
	} {
		require.Equal(t, text, s.text(text))
	}
	out, err := s.json(map[string]any{"secretbox": []any{0.12345678901234567, "203.0.113.77", `"secretbox":`}})
	require.NoError(t, err)
	require.JSONEq(t, `{"secretbox": [0.12345678901234567, "ADDRESS", "\"NAME\":"]}`, string(out))
}

// root is the folder of all modules.
const root = "../.."

// build builds what a report needs, and the card, once: a program that is being written cannot be run.
var build = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("make", "-C", root, "card-report-programs", "bin/idealcard").CombinedOutput()
})

// programs returns the folder of what a report needs.
func programs(t *testing.T) string {
	t.Helper()
	out, err := build()
	require.NoError(t, err, "%s", out)
	dir, err := filepath.Abs(filepath.Join(root, "bin/card-report"))
	require.NoError(t, err)
	return dir
}

// runOverTheCard runs a command over the card, with flags of that before it, and reads the report that it leaves in a folder.
func runOverTheCard(t *testing.T, dir string, env []string, command ...string) (*document, string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(root, "bin/idealcard"), append([]string{"-rnr"}, command...)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return readReport(t, dir)
}

// readReport returns the figures, and all texts.
func readReport(t *testing.T, dir string) (*document, string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, reportPrefix+figures))
	require.NoError(t, err)
	r := new(document)
	require.NoError(t, json.Unmarshal(text, r))
	all := ""
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all += string(text)
	}
	return r, all
}

func (r *document) part(t *testing.T, title string) *Part {
	t.Helper()
	for _, p := range r.Parts {
		if p.Title == title {
			return p
		}
	}
	require.Fail(t, "no part "+title)
	return nil
}

// cell is the second column of the row that begins with a text.
func (p *Part) cell(t *testing.T, begins string) string {
	t.Helper()
	for _, table := range p.Tables {
		for _, row := range table.Rows {
			if strings.HasPrefix(row[0], begins) {
				return row[1]
			}
		}
	}
	require.Failf(t, "no row "+begins, "%q has %q, and %q", p.Title, p.Tables, p.Problems)
	return ""
}

func TestAddressOfAPort(t *testing.T) {
	var d deviceInfo
	require.NoError(t, json.Unmarshal([]byte(`{"ports": [{"state": "DOWN", "interfaces": [{"name": "a"}]}, {"state": "ACTIVE", "interfaces": [{"name": "c"}, {"name": "b"}]}],
		"addresses": {"a": ["10.0.0.1/24"], "b": ["fe80::1/64", "169.254.3.4/16", "10.0.0.2/24", "fd00::2/64"]}}`), &d))
	name, address := d.network()
	require.Equal(t, []string{"b", "10.0.0.2"}, []string{name, address})
}

// bare is how a command is run with what who has a card has in the environment: nothing tells of it.
// Without PATH there is no perftest. The card's folder is in it, and its program raw.
var bare = []string{"--", "/usr/bin/env", "-u", "SOFTROCE_ADDR", "-u", "SOFTROCE_ADDR6", "-u", "SOFTROCE_DEVICE", "PATH=/nowhere"}

func TestReportOverTheCard(t *testing.T) {
	t.Parallel()
	bin, dir := programs(t), t.TempDir()
	r, all := runOverTheCard(t, dir, nil, append(bare, filepath.Join(bin, "benchmarks"), Argument, "-quick", "-repo", root, "-out", dir)...)
	require.Equal(t, "ideal0", r.Device)
	require.Len(t, r.Parts, 7)

	assert.Equal(t, "done", r.part(t, "Doctor").state())
	assert.Contains(t, r.part(t, "Doctor").Details, "ideal0")
	host := r.part(t, "Host")
	assert.Equal(t, "ideal0", host.cell(t, "device"))
	assert.Contains(t, host.Details, "port 1 is ACTIVE")
	suites := r.part(t, "Suites")
	assert.Equal(t, "done", suites.state(), "%q %s", suites.Problems, suites.Details)
	assert.Equal(t, "1", suites.cell(t, "rconn"))
	assert.Equal(t, "0", suites.cell(t, "rcvd_rnr_err"))
	assert.Contains(t, all, "| rcvd_rnr_err | 0 | a message found no receive: ringnet promises 0 |")

	speed := r.part(t, "Speed")
	assert.Contains(t, speed.Problems, "verbs send (ib_send_lat): ib_send_lat is not installed (Debian: perftest)")
	for i, over := range [][]string{{"TCP", "ringnet rdma", "verbs in C, one process"}, {"TCP", "ringnet rdma", "verbs in C, one process"}, {"TCP", "ringnet rdma"}} {
		for _, name := range over {
			assert.True(t, slices.ContainsFunc(speed.Tables[i].Rows, func(row []string) bool { return slices.Contains(row, name) }), "%s: %q %q", name, speed.Tables[i], speed.Problems)
		}
	}
	require.Len(t, speed.Charts, 2)
	for _, chart := range speed.Charts {
		assert.FileExists(t, filepath.Join(dir, chart))
		assert.Contains(t, all, "!["+chart+"]("+chart+")")
	}

	manners := r.part(t, "Manners")
	assert.Equal(t, "done", manners.state(), "%q", manners.Problems)
	assert.Equal(t, "512: success, and the bytes were there", manners.cell(t, "inline bytes sent"))
	assert.Contains(t, manners.cell(t, "16 receives flushed by ERR"), "16, in ")
	assert.Contains(t, manners.cell(t, "a peer that is gone"), "retry counter exceeded")
	assert.NotEmpty(t, manners.cell(t, "registration of 64 MiB"))
	assert.Equal(t, "as sent", manners.cell(t, "no data (no SGE), behind data in a batch"))
	assert.NotEmpty(t, manners.cell(t, "a WRITE's bytes come in order"))
	assert.NotEmpty(t, manners.cell(t, "ECE"))
	assert.Equal(t, "of 1 devices 0 have an equal one, and 0 none", host.cell(t, "node GUIDs"))

	failover := r.part(t, "Failover")
	assert.Contains(t, failover.cell(t, "the peer's process is killed"), "connection reset by peer")
	assert.Equal(t, "went on", failover.cell(t, "its queue pair is moved to ERR"))
	assert.Equal(t, []string{"the port is down for 3s (ip link set): not permitted: -port-down permits it"}, failover.Problems)

	name, err := os.Hostname()
	require.NoError(t, err)
	assert.Contains(t, all, leftOut)
	for _, word := range []string{"127.0.0.1", "::1", "7f00:0001", bin, dir, name} {
		assert.NotContains(t, all, word)
	}
}

func TestReportOverInfiniBand(t *testing.T) {
	t.Parallel()
	bin, dir := programs(t), t.TempDir()
	flags := append([]string{"-fabric", filepath.Join(root, "tools/idealcard/fabrics/infiniband.json")}, bare...)
	r, _ := runOverTheCard(t, dir, nil, append(flags, filepath.Join(bin, "benchmarks"), Argument, "-quick", "-repo", root, "-out", dir)...)
	require.Equal(t, "ib0", r.Device)
	assert.Contains(t, r.part(t, "Doctor").Details, "ok    ib0 port 1: is ACTIVE on lo, InfiniBand")
	assert.Equal(t, "done", r.part(t, "Suites").state(), "%q", r.part(t, "Suites").Problems)
	assert.Equal(t, "done", r.part(t, "Manners").state(), "%q", r.part(t, "Manners").Problems)
	assert.Equal(t, "went on", r.part(t, "Failover").cell(t, "its queue pair is moved to ERR"))
	assert.Contains(t, r.part(t, "Doctor").Details, "ok    ib0 port 1: messages of each kind come through it")
}

// What other programs write may have anything in it, and each may fail.
func TestReportOfProgramsThatFailAndTellTales(t *testing.T) {
	t.Parallel()
	installed, bin, dir := programs(t), t.TempDir(), t.TempDir()
	script := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o755))
	}
	tales := strings.Join(private, " ")
	script("ringnet", "case $1 in doctor) echo planted: '"+tales+"'; exit 1;; esac\nexec "+filepath.Join(installed, "ringnet")+` "$@"`)
	script("rconn.test", "echo '=== RUN   TestWorks/verbs'; echo '--- PASS: TestWorks/verbs (0.00s)'; "+
		"echo '=== RUN   TestLacks/verbs'; echo '    x_test.go:1: it lacks "+tales+"'; echo '--- SKIP: TestLacks/verbs (0.00s)'; "+
		"echo '=== RUN   TestPlanted/verbs'; echo '"+tales+"'; echo '--- FAIL: TestPlanted/verbs (0.00s)'; exit 1")
	script("ringnet.test", "echo '"+tales+"' >&2; kill -9 $$")
	script("benchmarks", "echo '"+tales+"' >&2; exit 3")
	script("manners", "printf 'first\\t"+tales+"\\n'; echo '"+tales+"' >&2; exit 1")
	r, all := runOverTheCard(t, dir, privateEnvironment, "--", filepath.Join(installed, "benchmarks"), Argument, "-quick", "-bin", bin, "-repo", root, "-out", dir)

	assert.Equal(t, "done", r.part(t, "Doctor").state())
	assert.Contains(t, r.part(t, "Doctor").Details, "planted: ")
	suites := r.part(t, "Suites")
	assert.Contains(t, suites.Problems, "rconn: failed: TestPlanted/verbs")
	assert.Contains(t, strings.Join(suites.Problems, "\n"), "ringnet.test: signal: killed")
	assert.Contains(t, suites.Details, "--- FAIL: TestPlanted/verbs")
	assert.NotContains(t, suites.Details, "TestWorks")
	assert.Contains(t, all, "| rconn | 1 | 1 | 1 | it lacks ")
	assert.Contains(t, strings.Join(r.part(t, "Speed").Problems, "\n"), "benchmarks: exit status 3")
	assert.NotEmpty(t, r.part(t, "Manners").cell(t, "first"))
	assert.Contains(t, strings.Join(r.part(t, "Manners").Problems, "\n"), "manners: exit status 1")
	assert.Equal(t, "went on", r.part(t, "Failover").cell(t, "its queue pair is moved to ERR"))
	for _, word := range private {
		assert.NotContains(t, all, word)
	}
}

func TestReportWithoutADeviceSaysSoInEachPart(t *testing.T) {
	t.Parallel()
	bin, dir := programs(t), t.TempDir()
	out, err := exec.Command(filepath.Join(bin, "benchmarks"), Argument, "-device", "nosuch0", "-address", "192.0.2.1", "-out", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	r, _ := readReport(t, dir)
	require.Equal(t, "no RDMA device", r.Device)
	for _, title := range []string{"Suites", "Speed", "Manners", "Failover"} {
		p := r.part(t, title)
		assert.Equal(t, "could not run", p.state(), title)
		assert.Contains(t, p.Problems[0], "there is no RDMA device", title)
	}
}

// Each host is in a network namespace of its own, as is the other with its cards.
func TestReportOfTwoHosts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can have two hosts")
	}
	t.Parallel()
	bin, dir := programs(t), t.TempDir()
	// Of perftest one program is enough. It is told the device of its own host.
	tools := t.TempDir()
	sends, lacking := exec.LookPath("ib_send_lat")
	if lacking == nil {
		require.NoError(t, os.Symlink(sends, filepath.Join(tools, "ib_send_lat")))
	}
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte(`
		unset SOFTROCE_ADDR SOFTROCE_DEVICE
		PATH=$4
		if [ $IDEAL_NODE = 0 ]; then exec "$1" card-report -listen -quick -out "$3"; fi
		until (: <>/dev/tcp/$SOFTROCE_PEER/18599) 2>"$0.refused"; do :; done
		exec "$1" card-report -quick -repo "$2" -connect $SOFTROCE_PEER -out "$3"
`), 0o644))
	cmd := exec.Command(filepath.Join(root, "bin/idealcard"), "-rnr", "-fabric", filepath.Join(root, "tools/idealcard/fabrics/two-hosts.json"),
		"--", "bash", script, filepath.Join(bin, "benchmarks"), root, dir, tools)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out) // and so the host that listens has ended
	r, all := readReport(t, dir)
	require.Equal(t, 2, r.Hosts)
	require.Equal(t, "right0", r.part(t, "Host").cell(t, "device"))
	require.Equal(t, "size", r.part(t, "Speed").Tables[0].Rows[0][0])
	require.Equal(t, lacking == nil, slices.ContainsFunc(r.part(t, "Speed").Tables[0].Rows, func(row []string) bool { return slices.Contains(row, "verbs send (ib_send_lat)") }), "%q", r.part(t, "Speed").Problems)
	require.Equal(t, "went on", r.part(t, "Failover").cell(t, "its queue pair is moved to ERR"))
	for _, part := range []string{"Speed", "Failover"} {
		require.True(t, slices.ContainsFunc(r.part(t, part).Tables, func(table titled) bool { return table.Title == "of the other host's device" }), part)
	}
	require.NotContains(t, all, "198.18.")

	half := new(document)
	text, err := os.ReadFile(filepath.Join(dir, halfPrefix+figures))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, half))
	require.FileExists(t, filepath.Join(dir, halfPrefix+markdown))
	for _, title := range []string{"Doctor", "Host", "Manners", "Kernel"} {
		own, told := half.part(t, title), r.part(t, "Other host: "+title)
		require.Equal(t, own.Tables, told.Tables)
		require.Equal(t, own.Details, told.Details)
	}
	require.Equal(t, "left0", half.part(t, "Host").cell(t, "device"))
}
