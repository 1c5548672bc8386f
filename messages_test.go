package ringnet

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docs/troubleshoot.md has every error message that a user can meet.

// messageDirectories have the packages whose errors users meet. Of packages sim and
// direct, which are fabrics for tests, they meet none.
var messageDirectories = []string{".", "rconn", "pconn", "credit", "internal/budget", "internal/fabric", "internal/fabric/shm",
	"internal/fabric/verbs", "internal/link", "internal/wire", "cmd/ringnet", "cmd/ringnet/internal", "metrics"}

// messages returns the texts of errors in the sources, as searchable makes them, each with
// one file that has it.
func messages(t *testing.T) map[string]string { return textsOf(t, messagesOf) }

// textsOf returns texts of the sources, each with one file that has it.
func textsOf(t *testing.T, texts func(*ast.File) []string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	parse := func(path string) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, text := range texts(file) {
			if text = searchable(text); text != "" {
				all[text] = path
			}
		}
	}
	for _, directory := range messageDirectories {
		err := filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != directory && directory != "cmd/ringnet/internal":
				return filepath.SkipDir
			case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"):
				parse(path)
			}
			return nil
		})
		require.NoError(t, err)
	}
	return all
}

// messagesOf returns the texts in a file of which errors are made.
func messagesOf(file *ast.File) (texts []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr: // errors.New("…"), fmt.Errorf("…", …)
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "New" || f.Sel.Name == "Errorf") && len(n.Args) > 0 {
				texts = append(texts, literals(n.Args[0])...)
			}
		case *ast.CompositeLit: // RefusedError{"…"}, wire.Reject{Reason: "…"}
			if name := typeName(n.Type); strings.HasSuffix(name, "Error") || name == "Reject" {
				for _, e := range n.Elts {
					texts = append(texts, literals(e)...)
				}
			}
		case *ast.FuncDecl: // func (e *T) Error() string
			if n.Recv != nil && n.Name.Name == "Error" {
				texts = append(texts, literals(n.Body)...)
			}
		case *ast.ValueSpec: // texts of statuses
			if n.Names[0].Name == "statusText" {
				texts = append(texts, literals(n.Values[0])...)
			}
		}
		return true
	})
	return texts
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// literals returns the strings in a part of a program.
func literals(n ast.Node) (texts []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

// searchable returns a format as a reader searches for it: with "…" for what is put in, and
// without it at either end. Nothing may be left.
func searchable(format string) string {
	text := strings.Trim(verb.ReplaceAllString(format, "…"), "… :;,")
	if inner, ok := strings.CutPrefix(text, "("); ok {
		text = strings.TrimSuffix(inner, ")")
	}
	text = strings.Trim(strings.TrimSuffix(text, " (…)"), "… :;,")
	if !letters.MatchString(text) {
		return ""
	}
	return text
}

var (
	verb    = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)
	letters = regexp.MustCompile(`[a-z]{2}`)
)

// explained returns the messages in the tables of docs/troubleshoot.md. The column of texts
// is the first or, of errnos, the second.
func explained(t *testing.T) (texts []string) {
	t.Helper()
	document, err := os.ReadFile("docs/troubleshoot.md")
	require.NoError(t, err)
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(document), -1) {
		texts = append(texts, row[1])
	}
	return texts
}

func TestTroubleshootHasEveryMessage(t *testing.T) {
	document := make(map[string]bool)
	for _, text := range explained(t) {
		document[searchable(text)] = true
	}
	all := messages(t)
	for _, text := range slices.Sorted(maps.Keys(all)) {
		assert.True(t, document[text] || unexplained[text] != "",
			"docs/troubleshoot.md does not explain %q of %s: add it, or say in unexplained, in messages_test.go, why no user needs it", text, all[text])
		assert.False(t, document[text] && unexplained[text] != "", "%q is explained, and said to need none", text)
	}
	for text := range unexplained {
		assert.True(t, all[text] != "", "no error has the text %q, which unexplained, in messages_test.go, has", text)
	}
}

// A program that is refused a thousand times logs the error a thousand times. So advice is
// in the document and in ringnet doctor, not in errors.
func TestMessagesAreShort(t *testing.T) {
	const most = 120
	advice := regexp.MustCompile(`\b(modprobe|apt-get|ulimit|LimitMEMLOCK|docker|chmod|TrustUser|CAP_\w+)\b|\n`)
	for text, path := range messages(t) {
		require.LessOrEqual(t, len(text), most, "%q of %s", text, path)
		require.False(t, advice.MatchString(text), "%q of %s", text, path)
	}
}

// When a message goes, its explanation goes, too.
func TestTroubleshootHasNoMessageThatIsGone(t *testing.T) {
	all := textsOf(t, func(file *ast.File) []string { return literals(file) })
	for _, text := range explained(t) {
		if text != "open …: no such file or directory" { // which is package os's
			require.True(t, all[searchable(text)] != "", "no error has the text %q", text)
		}
	}
}

func TestTroubleshootHasTheTextsOfErrnos(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the document has Linux's texts")
	}
	document, err := os.ReadFile("docs/troubleshoot.md")
	require.NoError(t, err)
	table, _, _ := strings.Cut(string(document), "\n## RDMA")
	rows := regexp.MustCompile("(?m)^\\| ([\\w.]+) \\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1)
	require.Len(t, rows, len(errnos))
	for _, row := range rows {
		require.EqualError(t, errnos[row[1]], row[2])
	}
}

var errnos = map[string]error{
	"ECONNREFUSED": syscall.ECONNREFUSED, "ECONNRESET": syscall.ECONNRESET, "ETIMEDOUT": syscall.ETIMEDOUT,
	"EMSGSIZE": syscall.EMSGSIZE, "EDESTADDRREQ": syscall.EDESTADDRREQ, "net.ErrWriteToConnected": net.ErrWriteToConnected,
	"EPIPE": syscall.EPIPE, "EPROTO": syscall.EPROTO, "ENETDOWN": syscall.ENETDOWN, "EHOSTUNREACH": syscall.EHOSTUNREACH,
	"ENETUNREACH": syscall.ENETUNREACH, "ENODEV": syscall.ENODEV, "ENOMEM": syscall.ENOMEM, "EAGAIN": syscall.EAGAIN,
	"EMFILE": syscall.EMFILE, "EADDRINUSE": syscall.EADDRINUSE, "EADDRNOTAVAIL": syscall.EADDRNOTAVAIL,
	"EACCES": syscall.EACCES, "EINVAL": syscall.EINVAL, "ENOTCONN": syscall.ENOTCONN,
	"errors.ErrUnsupported": errors.ErrUnsupported, "net.ErrClosed": net.ErrClosed,
	"os.ErrDeadlineExceeded": os.ErrDeadlineExceeded, "context.Canceled": canceledError{},
}

// unexplained are the messages that docs/troubleshoot.md leaves out, and why.
var unexplained = reasons(map[string][]string{
	"it only says where another error comes from": {
		"accept", "confirm", "connect", "dial", "dial from", "listen at", "open", "reject",
		"tcp", "the listener at", "uverbs*", "ibv_poll_cq", "bytes of data", "--listen", "--metrics",
		"TCP beside",
	},
	"no link or dialer lets it out: a message is waited for, or repeated": {
		"data has arrived", "success",
	},
	"only a defect of ours can cause it, for what is asked of a fabric has been checked before": {
		"adopt … bytes", "leave … bytes", "open with", "queue pair options", "register … bytes", "bytes of private data, at most", "bytes inline, at most",
		"a Send where there are none", "data outside its memory", "memory of another fabric", "work request …, opcode",
		"post a send before the connection is established", "post a send of … bytes", "post … sends to a full queue",
		"post … receives", "post … receives to a full queue", "post … receives to a queue of", "post … work requests to a queue of",
		"bytes of memory for remote writes, want whole pages and at most", "receive queue of …, want 1 to",
		"receives of … bytes, want at most … in all", "bytes at … are not the peer's memory", "bytes at … do not exist",
		"local QP operation error", "local access error", "local protection error", "bad response",
	},
	"only a defect of the peer can cause it, and the document has what stands before it: no other queue pair in": {
		"an answer that is not about the request", "kind … in … bytes", "the private data are not about a link to be taken up again",
	},
	"only a defect of the peer can cause it, and the document has what stands before it: peer broke the ringnet protocol": {
		"a message that does not have the peer's keys", "keys in a message of … bytes", "keys behind the last",
		"keys with totals that have changed", "the peer names more than … regions of memory",
		"the private data are about a link to be taken up again",
	},
	"only a link hears it that would have a standby, and it goes on without": {
		"the link can have no other queue pair now", "the link is to have no other queue pair", "there is no standby",
		"the peer wants no standby",
	},
	"only a defect of the kernel can cause it": {
		"netlink answered another request", "netlink's answer ends early",
	},
	"the document has it by what stands before it: peer broke the ringnet protocol": {
		"acknowledgement of … when … were sent", "acknowledgement runs backwards: … after", "data message … when … were granted",
		"link credit for … data messages and … record SENDs", "record SEND … when … were granted",
		"CREDIT for … bytes after …, with … sent", "RESET behind FINACK", "a second RING before the first is taken",
		"a second end of the stream", "behind FINACK", "behind RESET", "bytes at … in a ring of", "bytes behind the end of the stream",
		"data for a new ring when none was offered", "data message of … bytes", "data on a stream that is",
		"data up to byte … when credit ends at", "for a stream that is", "for no end",
		"the end of the stream after … bytes, with … received", "unexpected",
		"a link without a stream, on which none can begin", "a ring that is not there",
		"an answer that is not about the first stream that was asked for", "an answer that is not about the proof that was asked for",
		"for stream … in a request", "for stream … in an answer", "OPEN behind GOAWAY", "OPEN for stream … when … numbers were used",
		"OPEN for stream …, which exists", "OPEN from the side that was dialed", "OPEN when … others are not answered",
		"OPEN without a port", "a second GOAWAY", "there is no stream",
		"REFUSE for reason …, want 1 to", "control message of … bytes, want … and … for each of 0 to … records",
		"data for stream …, want less than", "for stream …, want less than", "want 1 to",
		"with a ring of … bytes, want a power of two from … to", "with bits set that must be zero",
		"handshake of … bytes, want", "receives, want a multiple of 4 from … to",
	},
	"it says itself what the flags or the file of the command should be": {
		"--serve wants no file to send", "--max-connections wants a positive value", "want FILE HOST:PORT, or --serve DIR", "want HOST:PORT",
		"want HOST:PORT to connect to, or --listen NETWORK://HOST:PORT to answer",
		"--datagram --listen wants auto, shm, rdma or tcp",
		"want HOST:PORT to connect to, or --listen NETWORK://HOST:PORT to be the other end",
		"--connections, --rounds, --slice and --timeout want positive values", "--max-connections and --max-time want positive values",
		"want a network of hosts and ports, not unix", "--slice wants … at most: --rounds can be more",
		"want a size from 1 to 1GiB, as in 64, 4KiB or 1MiB",
		"--size of datagrams is from … to", "--sizes of datagrams are from … to", "--count, --size, --set-ups and --timeout want positive values", "--size=…: want … at most", "unknown network …: want one of",
		"want HOST:PORT after …://, with [] around an IPv6 address", "want NETWORK://HOST:PORT, as in auto://:6380, or unix:///PATH",
		"want an absolute path after unix://, as in unix:///run/redis.sock",
		"--idle and --dial-timeout want positive times, or 0 for no bound",
		"--… is given twice",
		"--max-connections=…: want a positive number, or 0 for no bound", "--require is about auto, which neither … nor … is",
		"has no forwardings: want lines like --listen auto://:6380 --to tcp://127.0.0.1:6379",
		"missing flag --listen=URL: where connections are accepted, for example --listen auto://:6380",
		"missing flag --to=URL: where connections are forwarded to, for example --to tcp://127.0.0.1:6379",
	},
	"it is in the table of errnos": {"i/o timeout", "operation was canceled"},
})

func reasons(byReason map[string][]string) map[string]string {
	all := make(map[string]string)
	for reason, texts := range byReason {
		for _, text := range texts {
			all[text] = reason
		}
	}
	return all
}
