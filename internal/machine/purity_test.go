package machine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// imports are what a machine may import, and of some what it may use: words, and nothing that does anything.
var imports = map[string]string{
	"bufio":          "ErrBufferFull",
	"container/list": "",
	"errors":         "",
	"fmt":            "",
	"io":             "EOF",
	"math":           "",
	"net":            "ErrClosed",
	"reflect":        "",
	"slices":         "",
	"syscall":        "Errno ECONNABORTED ECONNRESET EADDRNOTAVAIL EHOSTUNREACH EMFILE ENETDOWN ENOMEM ENOTCONN EPIPE EPROTO ETIMEDOUT",
	"time":           "Time Duration Second Millisecond Minute",

	"github.com/ringnet/ringnet/credit":           "",
	"github.com/ringnet/ringnet/ring":             "",
	"github.com/ringnet/ringnet/internal/errtype": "",
	"github.com/ringnet/ringnet/internal/wire":    "",
	"github.com/ringnet/ringnet/internal/fabric": "WorkRequest Completion Memory Send Write WriteImm OK Flushed LocalLength RetryExceeded ResponseTimeout " +
		"RemoteAccess RemoteInvalidRequest RNRRetryExceeded ErrDisconnected ErrDeviceRemoved ErrQueuePair ErrPortDown ErrAddressChanged ErrPathLost RefusedError RejectError MaxID",
}

// TestTheMachineDoesNothingByItself sees that this package has no goroutine and no channel, imports nothing that does I/O,
// waits, locks or tells the time, and knows words of a fabric alone.
func TestTheMachineDoesNothingByItself(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, f.Name(), nil, 0)
		require.NoError(t, err)
		allowed := make(map[string]string) // by the name of the package
		for _, i := range file.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			uses, may := imports[path]
			require.True(t, may, "%s imports %s", f.Name(), path)
			allowed[path[strings.LastIndex(path, "/")+1:]] = uses
		}
		ast.Inspect(file, func(n ast.Node) bool {
			at := ""
			if n != nil {
				at = set.Position(n.Pos()).String()
			}
			switch n := n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
				require.Fail(t, "it does something", at)
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok && of.Obj == nil && allowed[of.Name] != "" {
					require.Contains(t, strings.Fields(allowed[of.Name]), n.Sel.Name, at)
				}
			}
			return true
		})
	}
}
