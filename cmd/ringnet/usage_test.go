package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/wire"
)

// ringnetCommand runs the command in this process.
func ringnetCommand(t *testing.T, args ...string) (out, errs string, status int) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return o.String(), e.String(), status
}

const wantTime = "want a time, such as 2s, 100ms or 5m"

// wrong are command lines, in which words in capitals stand for what a test has, with FILE for a file of
// forwardings; and what is said of them.
var wrong = []struct{ args, file, says string }{
	{"", "", ": see ringnet --help"},
	{"nowhere", "", ": see ringnet --help"},
	{"perf --nowhere", "", ": see ringnet --help"},
	{"completion tcsh", "", "must be one of"},

	{"kill 0 1", "", "want numbers that ringnet ss shows"},
	{"kill 1 x", "", "expected a valid 64 bit uint"},
	{"ss --watch=-1s", "", "want a time above 0"},
	{"ss --watch=s", "", wantTime},
	{"ss --watch=2x", "", wantTime},
	{"ss --watch=", "", wantTime},
	{"ss --watch=1m2", "", wantTime},
	{"ss --watch=inf", "", wantTime},
	{"ss --carrier=udp", "", `--carrier must be one of "shm","rdma","tcp" but got "udp"`},
	{"ss --carrier=", "", `--carrier must be one of "shm","rdma","tcp" but got ""`},
	{"ss --state=opn", "", `--state must be one of "open",`},
	{"ss --state=", "", `"busy" but got ""`},
	{"ss --address=nonsense", "", "want an IP address, :PORT, or both"},
	{"top --address=10.0.0.1:port", "", "want an IP address, :PORT, or both"},
	{"top --interval=0s", "", "want a time above 0"},
	{"--json top", "", "top shows no JSON"},

	{"perf", "", "want HOST:PORT to connect to, or --listen"},
	{"perf a:1 --listen :1", "", "want HOST:PORT to connect to, or --listen"},
	{"perf localhost", "", "want HOST:PORT"},
	{"perf --listen auto", "", "want HOST:PORT"},
	{"perf a:1 --rounds 0", "", "want positive values"},
	{"perf a:1 --connections 0", "", "want positive values"},
	{"perf a:1 --connections 257", "", "--connections wants 256 at most"},
	{"perf a:1 --connections 1,1", "", "want each value once"},
	{"perf a:1 --slice 11s", "", "--slice wants 10s at most"},
	{"perf a:1 --sizes 0", "", "want a size from 1 to 16MiB"},
	{"perf a:1 --sizes many", "", "want a size from 1 to 16MiB"},
	{"perf a:1 --sizes 64,1KiB,64", "", "want each value once"},
	{"perf a:1 --networks ib", "", "must be one of"},
	{"perf a:1 --networks tcp,tcp", "", "want each value once"},
	{"perf a:1 --reverse", "", "--reverse and --both are for -t TIME"},
	{"perf a:1 -t 1s --reverse --both", "", "--both includes --reverse"},
	{"perf a:1 -t 0", "", "want a time above 0"},
	{"perf a:1 -t 1s --sizes 1,2", "", "-t measures one network, with one size"},
	{"perf a:1 -t 1s --rounds 7", "", "--rounds and --slice are for the table"},
	{"perf --listen :0 -t 1s", "", "--listen wants no flags of what to measure"},
	{"perf --listen :0 --timeout 5s", "", "--listen wants no flags of what to measure"},

	{"proxy", "", "missing flag --listen=URL"},
	{"proxy --listen auto://:1", "", "missing flag --to=URL"},
	{"proxy --listen auto://:1 --to redis:6379", "", `--to: "redis:6379": want NETWORK://HOST:PORT`},
	{"proxy --listen auto://:1 --to=", "", `--to: "": want NETWORK://HOST:PORT`},
	{"proxy --listen auto://:1 --to tcp://6379", "", `want HOST:PORT after tcp://`},
	{"proxy --listen auto://:1 --to auto://::1:6379", "", `with [] around an IPv6 address`},
	{"proxy --listen auto://:1 --to unix://redis.sock", "", `want an absolute path`},
	{"proxy --listen udp://:53 --to tcp://:1", "", `unknown network "udp": want one of auto, auto4, auto6, shm, rdma, rdma4, rdma6, tcp, tcp4, tcp6, unix`},
	{"proxy --listen tcp://:1 --to tcp://:2 --require shm", "", "--require is about auto"},
	{"proxy --listen auto://:1 --to tcp://:2 --require ib", "", `must be one of "shm","rdma"`},
	{"proxy --listen auto://:1 --to tcp://:2 --max-connections=-1", "", "want a positive number"},
	{"proxy --listen auto://:1 --to tcp://:2 --idle=-1s", "", "want positive times"},
	{"proxy --listen auto://:1 --to tcp://:2 --to tcp://:4", "", "--to is given twice"},
	{"proxy --listen tcp://127.0.0.1:99999 --to tcp://:2", "", "invalid port"},
	{"proxy --listen tcp://:1 --to tcp://:2 --metrics nowhere", "", `--metrics: "nowhere": want HOST:PORT`},
	{"proxy --file FILE --listen auto://:1", "--listen auto://:1 --to tcp://:2", "--file has its own"},
	{"proxy --trust-user 1 --file FILE", "--listen auto://:1 --to tcp://:2", "--file has its own"},
	{"proxy --file FILE", "\n--listen auto://:1 --to tcp://:2 --listen auto://:3 --to tcp://:4", ":2: --listen is given twice"},
	{"proxy --file FILE", "# nothing\n", "has no forwardings"},
	{"proxy --file FILE", "\n--listen auto://:1 --too tcp://:2", ":2: unknown flag --too"},
	{"proxy --file FILE", "--listen auto://:1 --to tcp://:2\n--listen auto://:1 --to tcp://:3", ":2: another line listens at auto://:1"},
	{"proxy --metrics nowhere:0 --file FILE", "--listen auto://:0 --to tcp://:2\n--listen auto://:0 --to tcp://:2 --idle 1h", ":2: another line forwards from auto://:0 to tcp://:2"},
	{"proxy --file FILE", "--listen auto://:1 --to\x1b[2J tcp://:2", "--to\ufffd[2J"},
	{"proxy --file FILE", "--listen auto://:1", ":1: missing flag --to=URL"},
	{"proxy --file /dev/zero", "", "/dev/zero: not a regular file"},
	{"proxy --file /nowhere/forwardings", "", "no such file"},
}

// fails are command lines that are right.
var fails = []struct{ args, says string }{
	{"perf NOBODY --networks tcp", "the server cannot be reached: over tcp: dial tcp"},
	{"perf STRANGER --networks tcp", "want ringnet perf --listen there, which would say so: "},
	{"perf REFUSES --networks tcp", "over tcp: not \ufffd[2J you"},
	{"proxy --listen tcp://TAKEN --to tcp://:2", "--listen tcp://TAKEN: listen tcp TAKEN: bind: address already in use"},
	{"proxy --listen tcp://127.0.0.1:0 --to tcp://:2 --metrics TAKEN", "--metrics TAKEN: listen"},
}

// Who calls the command wrongly is told what is wrong, and its status tells that from what has failed.
func TestWhatIsWrongIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "FILE")
	says := func(line string) string { return serve(t, func(c *net.TCPConn) { _, _ = c.Write([]byte(line)) }) }
	stranger, refuses := says("220 mail.example ESMTP\r\n"), says(`{"error":"not \u001b[2J you"}`+"\n")
	words := strings.NewReplacer("FILE", file, "STRANGER", stranger, "REFUSES", refuses, "TAKEN", serve(t, echo), "NOBODY", freeAddress(t))
	requireSaid := func(want int, args, what string) {
		t.Helper()
		out, errs, status := ringnetCommand(t, strings.Fields(words.Replace(args))...)
		require.Equal(t, want, status, "%s: %s", args, errs)
		require.Contains(t, errs, what, args)
		require.Regexp(t, `(?m)^ringnet: .*\n$`, errs, args)
		require.NotContains(t, out+errs, "\x1b", "progress is for terminals")
	}
	for _, c := range wrong {
		require.NoError(t, os.WriteFile(file, []byte(c.file), 0o600))
		requireSaid(misuse, c.args, c.says)
	}
	for _, c := range fails {
		requireSaid(failed, c.args, words.Replace(c.says))
	}
}

func TestBusyPollIsSetByFlagBeforeTheEnvironment(t *testing.T) {
	t.Setenv("RINGNET_BUSYPOLL", "on")
	const perf, proxy = "perf 127.0.0.1:1 --networks=auto --timeout=1s", "proxy --listen=auto://127.0.0.1:0 --to=tcp://127.0.0.1:1"
	for line, says := range map[string]string{
		perf:                      `RINGNET_BUSYPOLL is "on"`,
		proxy:                     `RINGNET_BUSYPOLL is "on"`,
		perf + " --busy-poll=5":   `--busy-poll: "5": want a positive time, such as 50us, or off`,
		proxy + " --busy-poll=5":  `--busy-poll: "5": want a positive time, such as 50us, or off`,
		perf + " --busy-poll=off": "connection refused",
	} {
		out, err := commandProcess(strings.Fields(line)...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), says)
	}
}

func TestSettingsThatAreWrongAreTold(t *testing.T) {
	for _, name := range []string{"RINGNET_INLINE", "RINGNET_RELAXED_ORDERING"} {
		t.Setenv(name, "abc")
		for _, line := range []string{"doctor", "perf 127.0.0.1:1 --networks=auto --timeout=1s", "proxy --listen=auto://127.0.0.1:0 --to=tcp://127.0.0.1:1"} {
			out, err := commandProcess(strings.Fields(line)...).CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), name+` is "abc"`)
		}
		require.NoError(t, os.Unsetenv(name))
	}
}

func TestHelpAndVersion(t *testing.T) {
	version, _, status := ringnetCommand(t, "--version")
	require.Zero(t, status)
	require.Regexp(t, `^ringnet \S+, wire protocol `+strconv.Itoa(wire.Version)+`, go1\S+\n$`, version)
	for asked, same := range map[string]string{"help": "--help", "help perf": "perf --help"} {
		help, _, status := ringnetCommand(t, strings.Fields(asked)...)
		require.Zero(t, status)
		usual, _, _ := ringnetCommand(t, strings.Fields(same)...)
		require.Equal(t, usual, help)
	}
}
