package ringnet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docs/troubleshoot.md has the error messages of the library that a user can do something
// about.

// messageDirectories have the packages whose errors users meet. Of package sim,
// a fabric for tests, they meet none.
var messageDirectories = []string{".", "rconn", "internal/pconn", "credit", "internal/auto", "internal/budget", "internal/fabric", "internal/fabric/shm",
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
			text = searchable(text)
			if known := all[text]; text != "" && (known == "" || saysItself.MatchString(known)) {
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

// explained returns the messages in docs/troubleshoot.md: what stands in the first column of
// its tables, between backquotes.
func explained(t *testing.T) (texts []string) {
	t.Helper()
	document, err := os.ReadFile("docs/troubleshoot.md")
	require.NoError(t, err)
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(string(document), -1) {
		for _, text := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			texts = append(texts, text[1])
		}
	}
	require.NotEmpty(t, texts)
	return texts
}

// saysItself are the packages whose errors are not in the document one by one. What a peer
// did wrong stands behind "peer broke the ringnet protocol", which is there. The command's
// errors say which flag, end or limit it is.
var saysItself = regexp.MustCompile(`^(credit|internal/wire|cmd)/`)

// namesTheSetting finds errors about a field or a variable, its value and what is wanted.
var namesTheSetting = regexp.MustCompile(`(is|has) …: `)

func TestTroubleshootHasEveryMessage(t *testing.T) {
	document := make(map[string]bool)
	for _, text := range explained(t) {
		document[searchable(text)] = true
	}
	all := messages(t)
	for _, text := range slices.Sorted(maps.Keys(all)) {
		if saysItself.MatchString(all[text]) || namesTheSetting.MatchString(text) {
			continue
		}
		assert.True(t, document[text] || unexplained[text] != "",
			"docs/troubleshoot.md does not explain %q of %s: add it, or say in unexplained, in messages_test.go, why no user needs it", text, all[text])
		assert.False(t, document[text] && unexplained[text] != "", "%q is explained, and said to need none", text)
	}
	for text := range unexplained {
		assert.True(t, all[text] != "" && !saysItself.MatchString(all[text]), "unexplained, in messages_test.go, need not have %q", text)
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

// unexplained are the messages that docs/troubleshoot.md leaves out, and why.
var unexplained = reasons(map[string][]string{
	"it only says where another error comes from": {
		"accept", "close", "confirm", "read", "connect", "dial", "dial from", "listen at", "open", "reject",
		"tcp", "the listener at", "uverbs*", "ibv_poll_cq", "bytes of data",
	},
	"the command says it of the process and connection that it was given": {
		"it has no connection", "TCP carries connection …: ss --kill ends it",
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
		"an answer that is not about the request",
	},
	"only a defect of the peer can cause it, and the document has what stands before it: peer broke the ringnet protocol": {
		"a message that does not have the peer's keys", "keys behind the last",
		"keys with totals that have changed", "the peer names more than … regions of memory",
	},
	"only a defect of the kernel can cause it": {
		"netlink answered another request", "netlink's answer ends early",
	},
	"the document has what a peer over shm does wrong as one": {
		"the peer broke the handshake", "handshake message of unknown kind", "handshake message that ends early",
		"handshake message that is too long", "handshake message with a bad address",
		"the peer sent file descriptors that this side had not asked for",
		"the peer sent more than one file descriptor, or this process has no room for one",
		"the peer's descriptor is not of shared memory", "the peer's memory is of type …, want tmpfs",
		"the peer's memory has … bytes, want", "shared memory has seals …, want",
		"shared memory has a hole at …, among the first … bytes", "the peer's address cannot be a connection's",
		"the peer's address names no interface", "the peer's address is not this host's", "the peer cannot be woken",
		"the peer sent a wake-up that this side had not asked for",
		"the peer says that it has posted … receives, after …, with a queue of",
		"the peer says that it wrote … bytes to memory of", "the peer says that it sent … bytes to a receive of",
	},
	"the document has what stands before it: peer broke the ringnet protocol": {
		"a link without a stream, on which none can begin", "a ring that is not there",
		"an answer that is not about the first stream that was asked for", "an answer that is not about the proof that was asked for",
		"for stream … in a request", "for stream … in an answer", "OPEN behind GOAWAY", "OPEN for stream … when … numbers were used",
		"OPEN for stream …, which exists", "OPEN from the side that was dialed", "OPEN when … others are not answered",
		"OPEN without a port", "a second GOAWAY", "there is no stream",
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
