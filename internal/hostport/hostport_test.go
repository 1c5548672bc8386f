package hostport

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is an address already is not resolved, with what would have come of it.
func TestLiteralAddressesAreThoseThatTheResolverWouldReturn(t *testing.T) {
	for _, f := range []Family{"ip", "ip4", "ip6"} {
		for _, host := range []string{"127.0.0.1", "::1", "::ffff:192.0.2.1"} {
			ips, err := net.DefaultResolver.LookupNetIP(t.Context(), string(f), host)
			addrs, failed := f.Resolve(t.Context(), net.DefaultResolver, "tcp", net.JoinHostPort(host, "80"), netip.Addr{})
			require.Equal(t, err, failed, "%s of %s", host, f)
			require.Len(t, addrs, len(ips), "%s of %s", host, f)
			for i, ip := range ips {
				require.Equal(t, netip.AddrPortFrom(ip.Unmap(), 80), addrs[i])
			}
		}
	}
}
