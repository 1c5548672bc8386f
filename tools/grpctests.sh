#!/bin/sh
# Runs gRPC's own end-to-end tests over ringnet, in a copy of the version that grpcnet requires:
# tools/grpctests.sh NETWORK [FLAG OF GO TEST...]. In the copy, what listens on tcp and what dials it
# goes to the network, which is a name that ringnet.Dialer.ForTCP takes, or tcp, to compare with.
# LACKS are the tests that do not pass over ringnet, each with its reason:
#
#	GoAwayStreamIDSmallerThanCreatedStreams  leaves its listener open, which has goroutines
set -eu
cd "$(dirname "$0")/.."
root=$PWD network=$1
shift
test $network = tcp && LACKS='^$' || LACKS='/^GoAwayStreamIDSmallerThanCreatedStreams$'
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
(cd grpcnet && go mod download google.golang.org/grpc && cp -r "$(go list -m -f '{{.Dir}}' google.golang.org/grpc)/." "$copy")
chmod -R u+w "$copy"
cd "$copy"

mkdir internal/overringnet
cat > internal/overringnet/overringnet.go <<'END'
// Package overringnet listens and dials on another network than TCP.
package overringnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ringnet/ringnet"
)

var (
	network = os.Getenv("RINGNET_GRPC_TESTS")
	config  = &ringnet.Config{LinkIdle: time.Millisecond} // each test requires that no goroutine is left
)

func Listen(n, address string) (net.Listener, error) {
	if network == "tcp" || !strings.HasPrefix(n, "tcp") {
		return net.Listen(n, address)
	}
	return (&ringnet.ListenConfig{Config: config}).Listen(context.Background(), network, address)
}

func DialContext(ctx context.Context, n, address string) (net.Conn, error) {
	if network == "tcp" {
		return (&net.Dialer{}).DialContext(ctx, n, address)
	}
	c, err := (&ringnet.Dialer{ForTCP: network, Config: config}).DialContext(ctx, n, address)
	if c, ok := c.(*ringnet.AutoConn); ok {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(carriers, c.Carrier())
	}
	return c, err
}

var (
	mu          sync.Mutex
	carriers, _ = os.OpenFile(os.Getenv("RINGNET_GRPC_CARRIERS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
)
END

own=google.golang.org/grpc/internal/overringnet
# replace FROM TO FILE... in each file that has it, of which there must be one.
replace() {
	from=$1 to=$2
	shift 2
	files=$(grep -lF "$from" "$@") || { echo "$0: this version of gRPC has no $from" >&2; exit 2; }
	for file in $files; do
		sed -i "s/$from/$to/" "$file"
		grep -q "$own" "$file" || sed -i "0,/^import /s|^import |import \"$own\"\n&|" "$file"
		printf '\nvar _ net.Conn\n' >> "$file" # in case that nothing else of package net is used
	done
}
replace 'net.Listen("tcp"' 'overringnet.Listen("tcp"' test/*.go internal/testutils/*.go
replace 'net.Listen(network' 'overringnet.Listen(network' test/*.go
replace 'net.Listen(ss.Network' 'overringnet.Listen(ss.Network' internal/stubserver/*.go
replace 'internal.NetDialerWithTCPKeepalive().DialContext(ctx, networkType' 'overringnet.DialContext(ctx, networkType' internal/transport/http2_client.go
go mod edit -require github.com/ringnet/ringnet@v0.0.0 -replace "github.com/ringnet/ringnet=$root"
go mod tidy
RINGNET_GRPC_TESTS=$network RINGNET_GRPC_CARRIERS=$copy/carriers go test -count=1 -skip "$LACKS" "$@" ./test
test $network = tcp && exit
echo "connections by what carried them:"
sort "$copy/carriers" | uniq -c
grep -q -v '^tcp$' "$copy/carriers"
