//go:build linux && cgo

package rdmacore

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
)

// TestABI compiles abi.h and functions.h together with the official headers
// and has the compiler compare every size, offset, constant and signature.
func TestABI(t *testing.T) {
	requireHeaders(t)
	compile(t, layoutCheck(t))
	compile(t, goLayoutCheck(t))
	compile(t, signatureCheck(t))
}

func requireHeaders(t *testing.T) {
	t.Helper()
	out, err := tryCompile(t, "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n")
	if err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s\napt-get install gcc libibverbs-dev librdmacm-dev", out)
	}
	t.Skip("the headers of rdma-core are not installed: apt-get install gcc libibverbs-dev librdmacm-dev")
}

func compile(t *testing.T, source string) {
	t.Helper()
	out, err := tryCompile(t, source)
	require.NoError(t, err, "%s", out)
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

func tryCompile(t *testing.T, source string) ([]byte, error) {
	t.Helper()
	here, err := os.Getwd()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "check.c")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	return exec.Command(compiler(), "-std=gnu11", "-fsyntax-only", "-I"+here, file).CombinedOutput()
}

var (
	structLine   = regexp.MustCompile(`^struct (rn_\w+) \{(?: // (partial|the end))?$`)
	memberLine   = regexp.MustCompile(`^\t.*?(?:\(\*(\w+)\)\(.*\)|(\w+)(?:\[\d+\])?);(?: // (.+))?$`)
	constantLine = regexp.MustCompile(`^\tRN_(\w+) = .*,$`)
)

// statuses are those of ibv_wc_status whose numbers package fabric has.
var statuses = map[string]fabric.Status{
	"SUCCESS": fabric.OK, "LOC_LEN_ERR": fabric.LocalLength, "LOC_QP_OP_ERR": fabric.LocalQPOperation,
	"LOC_PROT_ERR": fabric.LocalProtection, "WR_FLUSH_ERR": fabric.Flushed, "BAD_RESP_ERR": fabric.BadResponse,
	"LOC_ACCESS_ERR": fabric.LocalAccess, "REM_INV_REQ_ERR": fabric.RemoteInvalidRequest,
	"REM_ACCESS_ERR": fabric.RemoteAccess, "REM_OP_ERR": fabric.RemoteOperation, "RETRY_EXC_ERR": fabric.RetryExceeded,
	"RNR_RETRY_EXC_ERR": fabric.RNRRetryExceeded, "REM_ABORT_ERR": fabric.RemoteAborted, "FATAL_ERR": fabric.Fatal,
	"RESP_TIMEOUT_ERR": fabric.ResponseTimeout, "GENERAL_ERR": fabric.General,
}

// layoutCheck asserts that the structures and constants of abi.h are those of
// the same names without the prefix. A line that it does not understand fails
// the test, so none escapes.
func layoutCheck(t *testing.T) string {
	text, err := os.ReadFile("abi.h")
	require.NoError(t, err)
	var c bytes.Buffer
	c.WriteString("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include \"abi.h\"\n")
	c.WriteString("#define SAME(x) _Static_assert(x, #x)\n")

	for name, status := range statuses {
		fmt.Fprintf(&c, "SAME(IBV_WC_%s == %d);\n", name, status)
	}
	var ours, theirs string
	var part string
	structs, members, constants := 0, 0, 0
	for _, line := range strings.Split(string(text), "\n") {
		if m := structLine.FindStringSubmatch(line); m != nil {
			ours, theirs, part = "struct "+m[1], "struct "+strings.TrimPrefix(m[1], "rn_"), m[2]
			structs++
			if part == "" {
				fmt.Fprintf(&c, "SAME(sizeof(%s) == sizeof(%s));\n", ours, theirs)
			}
			continue
		}
		if !strings.HasPrefix(line, "\t") {
			if line == "};" {
				ours = ""
			}
			continue
		}
		if ours == "" {
			m := constantLine.FindStringSubmatch(line)
			require.NotNil(t, m, line)
			fmt.Fprintf(&c, "SAME(RN_%[1]s == (int)%[1]s);\n", m[1])
			constants++
			continue
		}
		m := memberLine.FindStringSubmatch(line)
		require.NotNil(t, m, line)
		name, path := m[1]+m[2], m[3]
		if strings.HasPrefix(name, "reserved") {
			continue
		}
		if path == "" {
			path = name
		}
		members++
		for _, path := range strings.Split(path, ", ") {
			if part == "the end" {
				fmt.Fprintf(&c, "SAME(sizeof(%[1]s) - offsetof(%[1]s, %[2]s) == sizeof(%[3]s) - offsetof(%[3]s, %[4]s));\n", ours, name, theirs, path)
			} else {
				fmt.Fprintf(&c, "SAME(offsetof(%s, %s) == offsetof(%s, %s));\n", ours, name, theirs, path)
			}
			fmt.Fprintf(&c, "SAME(sizeof(((%s *)0)->%s) == sizeof(((%s *)0)->%s));\n", ours, name, theirs, path)
		}
	}
	t.Logf("%d structures, %d members, %d constants", structs, members, constants)
	require.Greater(t, structs, 15)
	require.Greater(t, members, 100)
	require.Greater(t, constants, 50)
	return c.String()
}

// goLayoutCheck asserts that the structures of Go that lie in C memory are laid out as the official ones.
func goLayoutCheck(t *testing.T) string {
	var c bytes.Buffer
	c.WriteString("#include <stddef.h>\n#include <infiniband/verbs.h>\n#define SAME(x) _Static_assert(x, #x)\n")
	for _, s := range []struct {
		ours   any
		theirs string
		paths  map[string]string
	}{
		{SendWR{}, "ibv_send_wr", map[string]string{
			"ID": "wr_id", "next": "next", "sgList": "sg_list", "NumSGE": "num_sge", "Opcode": "opcode", "Flags": "send_flags",
			"Imm": "imm_data", "RemoteAddr": "wr.rdma.remote_addr, wr.ud.ah", "RKey": "wr.rdma.rkey, wr.ud.remote_qpn", "RemoteQKey": "wr.ud.remote_qkey",
		}},
		{SGE{}, "ibv_sge", map[string]string{"Addr": "addr", "Length": "length", "LKey": "lkey"}},
		{WC{}, "ibv_wc", map[string]string{
			"ID": "wr_id", "Status": "status", "Opcode": "opcode", "VendorErr": "vendor_err", "ByteLen": "byte_len", "Imm": "imm_data",
			"qpNum": "qp_num", "srcQP": "src_qp", "Flags": "wc_flags", "pkeyIndex": "pkey_index", "slid": "slid", "sl": "sl", "pathBits": "dlid_path_bits",
		}},
	} {
		ours := reflect.TypeOf(s.ours)
		fmt.Fprintf(&c, "SAME(sizeof(struct %s) == %d);\n", s.theirs, ours.Size())
		for i := range ours.NumField() {
			f := ours.Field(i)
			if f.Name == "_" {
				continue
			}
			require.NotEmpty(t, s.paths[f.Name], "%s.%s", s.theirs, f.Name)
			for path := range strings.SplitSeq(s.paths[f.Name], ", ") {
				fmt.Fprintf(&c, "SAME(offsetof(struct %s, %s) == %d);\n", s.theirs, path, f.Offset)
				fmt.Fprintf(&c, "SAME(sizeof(((struct %s *)0)->%s) == %d);\n", s.theirs, path, f.Type.Size())
			}
		}
	}
	return c.String()
}

// signatureCheck asserts that the functions of functions.h have their official
// types, by taking the prefix off the type names in it.
func signatureCheck(t *testing.T) string {
	text, err := os.ReadFile("functions.h")
	require.NoError(t, err)
	var c bytes.Buffer
	c.WriteString("#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#undef ibv_reg_mr\n")
	c.WriteString(strings.NewReplacer("rn_ibv_", "ibv_", "rn_rdma_", "rdma_").Replace(string(text)))
	c.WriteString("#define SAME(result, name, args) _Static_assert(__builtin_types_compatible_p(__typeof__(result (*) args), __typeof__(&name)), #name);\n")
	c.WriteString("RN_LIBIBVERBS(SAME)\nRN_LIBIBVERBS_OPTIONAL(SAME)\nRN_LIBRDMACM(SAME)\nRN_LIBRDMACM_OPTIONAL(SAME)\n")
	return c.String()
}
