package grpcnet

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringnet/ringnet"
)

// AuthInfo says what carries a connection, and who the peer is. [google.golang.org/grpc/peer.Peer]
// has one as its AuthInfo.
//
// Over shm its SecurityLevel is PrivacyAndIntegrity, as that of a Unix socket is: the bytes stay in
// memory that the two processes share, and the kernel says who the peer is. Over rdma and TCP it is
// that of Inner, whose AuthType and authority count as well.
type AuthInfo struct {
	credentials.CommonAuthInfo

	// Carrier is the network that carries the connection: "shm", "rdma" or "tcp".
	Carrier string

	// UID is the effective user ID of the peer's process over shm. KnowsUID is false over other
	// networks.
	UID      uint32
	KnowsUID bool

	// PassedOver has the reasons why no better network carries a connection of auto.
	PassedOver []ringnet.Reason

	// Inner is the AuthInfo of the credentials that NewCredentials was given, for example a
	// credentials.TLSInfo; nil over shm.
	Inner credentials.AuthInfo
}

// AuthType is "shm" over shm, or that of Inner.
func (a AuthInfo) AuthType() string {
	if a.Inner == nil {
		return a.Carrier
	}
	return a.Inner.AuthType()
}

// ValidateAuthority allows a call to name another authority where Inner does; over shm, where there
// are no names to be checked, always.
func (a AuthInfo) ValidateAuthority(authority string) error {
	if v, ok := a.Inner.(credentials.AuthorityValidator); ok {
		return v.ValidateAuthority(authority)
	}
	return nil
}

// NewCredentials returns credentials for connections of package ringnet, for both ends. Over shm
// there is no handshake: see [AuthInfo]. All others are secured by others, which both ends have to
// have alike; nil leaves them open. A client's check of the server's name is that of others, so over
// shm there is none: whom a process of this host connects to is decided by
// [ringnet.Dialer].TrustUser and [ringnet.ListenConfig].TrustUser, which is this process's own user
// and root by default.
func NewCredentials(others credentials.TransportCredentials) credentials.TransportCredentials {
	if others == nil {
		others = insecure.NewCredentials()
	}
	return byCarrier{others}
}

// byCarrier secures connections that others than shm carry.
type byCarrier struct {
	others credentials.TransportCredentials
}

func (b byCarrier) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return b.handshake(c, func() (net.Conn, credentials.AuthInfo, error) {
		return b.others.ClientHandshake(ctx, authority, c)
	})
}

func (b byCarrier) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return b.handshake(c, func() (net.Conn, credentials.AuthInfo, error) { return b.others.ServerHandshake(c) })
}

func (b byCarrier) handshake(c net.Conn, others func() (net.Conn, credentials.AuthInfo, error)) (net.Conn, credentials.AuthInfo, error) {
	own, ok := c.(conn)
	if !ok { // it is not of package ringnet
		return others()
	}
	info := AuthInfo{Carrier: own.Carrier()}
	if a, ok := own.stream.(*ringnet.AutoConn); ok {
		info.PassedOver = a.PassedOver()
	}
	if info.Carrier == "shm" {
		info.UID, info.KnowsUID = own.PeerUser()
		info.SecurityLevel = credentials.PrivacyAndIntegrity
		return c, info, nil
	}
	secured, inner, err := others()
	if err != nil {
		return nil, nil, err
	}
	info.Inner = inner
	if level, ok := inner.(interface {
		GetCommonAuthInfo() credentials.CommonAuthInfo
	}); ok {
		info.CommonAuthInfo = level.GetCommonAuthInfo()
	}
	return secured, info, nil
}

// Info is that of the credentials of the others.
func (b byCarrier) Info() credentials.ProtocolInfo { return b.others.Info() }

// Clone returns a copy.
func (b byCarrier) Clone() credentials.TransportCredentials { return byCarrier{b.others.Clone()} }

// OverrideServerName is that of the credentials of the others.
func (b byCarrier) OverrideServerName(name string) error { return b.others.OverrideServerName(name) } //nolint:staticcheck // gRPC's interface has it
