package link

import (
	"net/netip"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/machine"
)

// Stream is one end of a reliable byte stream on a link. Its methods may be
// called at once from any goroutines. Errors are bare: io.EOF, net.ErrClosed,
// os.ErrDeadlineExceeded, a syscall.Errno, or an error that wraps one.
type Stream struct {
	link          *Link
	local, remote netip.AddrPort

	reading sync.Mutex // the turn to read; held by the one Read under way, also while it waits
	writing sync.Mutex // the turn to write; held by the one Write under way, also while it waits
	cut     cut        // by that Write, while what it writes is posted; guarded by writing

	// Guarded by link.mu.
	m      *machine.Stream
	calls  [calls]call
	atWork bool // counted in link.watch.atWork
	want   int  // bytes that the Peek under way waits for; 0: there is none
}

// newStream makes the stream of a machine's, between two addresses.
func (l *Link) newStream(m *machine.Stream, local, remote netip.AddrPort) *Stream {
	s := &Stream{link: l, m: m, local: local, remote: remote}
	m.Owner = s
	return s
}

// forget frees the addresses of a stream that has no owner and is over.
func (l *Link) forget(m *machine.Stream) {
	if s, ok := m.Owner.(*Stream); ok && s.remote.IsValid() {
		l.cfg.Addresses.release(l.cfg.Namespace, s.local, s.remote)
		s.remote = netip.AddrPort{}
	}
}

// Link is the link that carries the stream.
func (s *Stream) Link() *Link { return s.link }

// Network is the name of the link's network.
func (l *Link) Network() string { return l.cfg.Network }

// PeerUser is the effective user ID that the peer's process had when it connected, if the network
// connects processes of one host and the link is not closed.
func (l *Link) PeerUser() (uid uint32, known bool) {
	l.lock()
	defer l.unlock()
	neighbor, ok := l.ep.(fabric.Neighbor)
	if !ok || l.m.Stage() == machine.Closed {
		return 0, false
	}
	uid, err := neighbor.PeerUser()
	return uid, err == nil
}

// Linger is Config.Linger.
func (s *Stream) Linger() time.Duration { return s.link.cfg.Linger }

// LocalAddr and RemoteAddr are the addresses of the stream's ends. They are not
// to be called after Close.
func (s *Stream) LocalAddr() netip.AddrPort  { return s.local }
func (s *Stream) RemoteAddr() netip.AddrPort { return s.remote }
