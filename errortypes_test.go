package ringnet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// RefusedError has the name and the fields of that of package ringnet, and is another type.
type RefusedError struct {
	Reason string
	Busy   bool
}

func (*RefusedError) Error() string { return "" }

// Programs find errors of internal packages as types that they can name.
func TestErrorsOfPeersAreFoundAsTypesOfThisPackage(t *testing.T) {
	inner := &fabric.RefusedError{Reason: "no room", Busy: true}
	err := error(&net.OpError{Op: "dial", Err: fmt.Errorf("%w, %w", syscall.EIO, inner)})
	var refused *ringnet.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, &ringnet.RefusedError{Reason: "no room", Busy: true}, refused)
	require.Equal(t, inner.Error(), refused.Error())
	require.ErrorIs(t, refused, syscall.ECONNREFUSED)
	require.True(t, refused.Temporary())
	require.False(t, refused.Timeout())
	var protocol *ringnet.ProtocolError
	require.False(t, errors.As(err, &protocol))
	require.False(t, errors.As(err, new(*RefusedError)), "of another package")

	err = &net.OpError{Op: "read", Err: &link.ProtocolError{Reason: "a ring that is not there"}}
	require.ErrorAs(t, err, &protocol)
	require.Equal(t, &ringnet.ProtocolError{Reason: "a ring that is not there"}, protocol)
	require.Equal(t, errors.Unwrap(err).Error(), protocol.Error())
	require.ErrorIs(t, protocol, syscall.EPROTO)
	require.False(t, errors.As(err, &refused))
}

// The compiler knows that a LinkInfo has a value for each of its fields; not that nothing is left out of what a
// link tells.
func TestProgramsSeeAllThatALinkTells(t *testing.T) {
	var told link.Info
	known := make(map[string]any)
	fill(reflect.ValueOf(&told).Elem(), known)
	shown := reflect.ValueOf(rconn.LinkInfoOf(told))
	for name, want := range known {
		got := shown.FieldByName(name)
		require.True(t, got.IsValid(), name)
		if at, ok := want.(netip.AddrPort); ok {
			want = rconn.NewAddr(told.Network, at)
		}
		if path, ok := want.(link.Path); ok {
			want = rconn.Path{Local: rconn.NewAddr(told.Network, path.Local), Remote: rconn.NewAddr(told.Network, path.Remote)}
		}
		require.Equal(t, want, got.Interface(), name)
	}
}

// fill gives each field of a struct another value, and notes it.
func fill(v reflect.Value, known map[string]any) {
	for i := range v.NumField() {
		n := len(known) + 1
		at := func(port int) netip.AddrPort { return netip.AddrPortFrom(netip.IPv6Loopback(), uint16(port)) }
		field := v.Field(i)
		switch f := field.Addr().Interface().(type) {
		case *string:
			*f = fmt.Sprint(n)
		case *bool:
			*f = true
		case *int:
			*f = n
		case *uint64:
			*f = uint64(n)
		case *time.Time:
			*f = time.Unix(int64(n), 0)
		case *netip.AddrPort:
			*f = at(n)
		case *link.Path:
			*f = link.Path{Local: at(n), Remote: at(1000 + n)}
		default:
			fill(field, known)
			continue
		}
		known[v.Type().Field(i).Name] = field.Interface()
	}
}
