package grpcnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringnet/ringnet"
)

// AuthInfo says what carries a connection that no credentials secure, and who the peer is: one of
// NewCredentials(nil), or one over shm for which [NewLocalCredentials] has left them out.
// [google.golang.org/grpc/peer.Peer] has it as its AuthInfo. Connections that credentials secure have
// theirs, for example a credentials.TLSInfo.
//
// Its SecurityLevel is NoSecurity, or PrivacyAndIntegrity for NewLocalCredentials, as that of a Unix
// socket is in [google.golang.org/grpc/credentials/local]: the bytes stay in memory that the two processes
// share, and the kernel says who the peer is.
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
}

// AuthType is "insecure", or "shm" where NewLocalCredentials has left credentials out.
func (a AuthInfo) AuthType() string {
	if a.SecurityLevel == credentials.PrivacyAndIntegrity {
		return "shm"
	}
	return "insecure"
}

// ValidateAuthority allows a call to name any authority: nobody has proven a name.
func (AuthInfo) ValidateAuthority(string) error { return nil }

// infoOf returns what is known of a connection of package ringnet, and false for any other.
func infoOf(c net.Conn, level credentials.SecurityLevel) (AuthInfo, bool) {
	own, ok := c.(stream)
	if !ok {
		return AuthInfo{}, false
	}
	info := AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: level}, Carrier: own.Carrier()}
	info.UID, info.KnowsUID = own.PeerUser()
	if s, ok := own.(conn); ok {
		own = s.stream
	}
	if a, ok := own.(*ringnet.AutoConn); ok {
		info.PassedOver = a.PassedOver()
	}
	return info, true
}

// NewCredentials returns c, which hold on every network, over shm as over TCP: with
// [credentials.NewTLS] each end checks the other's certificate, and the client the server's name, and
// the AuthInfo of each connection is a credentials.TLSInfo. gRPC takes c itself as well. nil is
// [insecure.NewCredentials] with an [AuthInfo] that says what carries a connection.
//
// [NewLocalCredentials] leaves credentials out over shm.
func NewCredentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	if c == nil {
		return open{insecure.NewCredentials()}
	}
	return c
}

// open leaves connections open, and says what carries them.
type open struct {
	credentials.TransportCredentials
}

func (o open) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if info, ok := infoOf(c, credentials.NoSecurity); ok {
		return c, info, nil
	}
	return o.TransportCredentials.ClientHandshake(ctx, authority, c)
}

func (o open) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if info, ok := infoOf(c, credentials.NoSecurity); ok {
		return c, info, nil
	}
	return o.TransportCredentials.ServerHandshake(c)
}

func (o open) Clone() credentials.TransportCredentials { return open{o.TransportCredentials.Clone()} }

// NewLocalCredentials returns credentials that trust a peer over shm if the kernel says that its process has
// this one's effective user ID, instead of asking for others. What is lost on these connections:
//
//   - Certificates are not looked at. A server that requires its clients' (tls.RequireAndVerifyClientCert)
//     serves those that have none, a client does not check the server's name, and any authority may be
//     named ([grpc.CallAuthority]): every process of this user passes for every other.
//   - Nothing is encrypted. Root, and whoever may debug a process of this user, can read along.
//   - So whoever is forwarded by a process of this user, a ringnet proxy for example, is taken for this
//     user. Do not use them where such a process serves others.
//
// An AuthInfo with the peer's user is all that is known of these peers. Over rdma and TCP, over shm with a process
// of another user, whom TrustUser has admitted or who is root, and for connections of other libraries,
// others hold; nil refuses all of these.
//
// Both ends need NewLocalCredentials. If one has it and the other has not, the handshake fails over shm
// at once, and works over the other networks.
func NewLocalCredentials(others credentials.TransportCredentials) credentials.TransportCredentials {
	if others == nil {
		others = &refusing{credentials.ProtocolInfo{SecurityProtocol: "local"}}
	}
	return local{others}
}

// local has others secure connections, but for those with this user's processes over shm.
type local struct {
	others credentials.TransportCredentials
}

// without returns the AuthInfo of a connection that needs no others.
func without(c net.Conn) (AuthInfo, bool) {
	info, ok := infoOf(c, credentials.PrivacyAndIntegrity)
	return info, ok && info.Carrier == "shm" && info.KnowsUID && info.UID == uint32(os.Geteuid())
}

func (l local) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info, ok := without(c)
	if !ok {
		return l.others.ClientHandshake(ctx, authority, c)
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	err := agree(c)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		return nil, nil, err
	}
	return c, info, nil
}

func (l local) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info, ok := without(c)
	if !ok {
		return l.others.ServerHandshake(c)
	}
	if err := agree(c); err != nil {
		return nil, nil, err
	}
	return c, info, nil
}

// greeting is what each end sends that leaves others out. It begins no TLS record and no frame of
// HTTP/2, and is longer than what a server reads first of either, so a peer that expects these fails at once.
const greeting = "ringnet: no credentials over shm\n"

// agree returns an error unless the peer leaves out others, too. Its reads end at c's deadline.
func agree(c net.Conn) error {
	_, err := c.Write([]byte(greeting))
	got := make([]byte, len(greeting))
	for n := 0; err == nil && n < len(got); {
		var m int
		m, err = c.Read(got[n:])
		if n += m; !strings.HasPrefix(greeting, string(got[:n])) {
			return errors.New("grpcnet: the peer uses its credentials over shm, and this end does not: NewLocalCredentials has to be at both ends")
		}
		if n == len(got) {
			return nil
		}
	}
	return fmt.Errorf("grpcnet: no greeting over shm: does the peer have NewLocalCredentials, too? %w", err)
}

// Info is that of others.
func (l local) Info() credentials.ProtocolInfo { return l.others.Info() }

func (l local) Clone() credentials.TransportCredentials { return local{l.others.Clone()} }

// OverrideServerName is that of others.
func (l local) OverrideServerName(name string) error { return l.others.OverrideServerName(name) } //nolint:staticcheck // gRPC's interface has it

// UsesXDS is that of others: gRPC's balancers ask for it, and hand out a cluster's certificates only if it is true.
func (l local) UsesXDS() bool {
	x, ok := l.others.(interface{ UsesXDS() bool })
	return ok && x.UsesXDS()
}

// refusing refuses every connection.
type refusing struct{ info credentials.ProtocolInfo }

func (r *refusing) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return r.ServerHandshake(c)
}

func (*refusing) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	by := c.RemoteAddr().Network()
	if info, ok := infoOf(c, credentials.NoSecurity); ok {
		by = info.Carrier
		if info.KnowsUID {
			by += fmt.Sprintf(" with user %d", info.UID)
		}
	}
	return nil, nil, fmt.Errorf("grpcnet: no credentials for a connection over %s: NewLocalCredentials(nil) accepts shm with processes of one user alone", by)
}

func (r *refusing) Info() credentials.ProtocolInfo { return r.info }

func (r *refusing) Clone() credentials.TransportCredentials { return &refusing{r.info} }

func (r *refusing) OverrideServerName(name string) error {
	r.info.ServerName = name //nolint:staticcheck // it is what the method is for
	return nil
}
