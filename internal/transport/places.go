package transport

// How many connections and links may wait at a listener.

// places counts the connections that Accept has not returned and the links that they came
// on, and bounds both. Guarded by Listener.mu.
type places struct {
	connections, maxConnections int // in their handshake or waiting for Accept
	links, maxLinks             int // of which Accept has returned no connection
	forPeers, maxForPeers       int // bytes that this side makes for the dialers of those links
}

// takeLink takes a place for a link and one for its first connection, or neither.
func (p *places) takeLink(forPeer int) bool {
	if forPeer > p.maxForPeers-p.forPeers || p.links == p.maxLinks || !p.takeConnection() {
		return false
	}
	p.links++
	p.forPeers += forPeer
	return true
}

// free is for how many links of such dialers there are places.
func (p *places) free(forPeer int) int {
	return min(p.maxLinks-p.links, p.maxConnections-p.connections, (p.maxForPeers-p.forPeers)/max(forPeer, 1))
}

func (p *places) leaveLink(forPeer int) {
	p.links--
	p.forPeers -= forPeer
}

// takeConnection takes a place for a connection, if there is one.
func (p *places) takeConnection() bool {
	if p.connections == p.maxConnections {
		return false
	}
	p.connections++
	return true
}

func (p *places) leaveConnection() { p.connections-- }
