package metrics

import (
	"math"

	"github.com/ringnet/ringnet"
)

// process are the metrics of what package ringnet does in this process.
var process list

var (
	linksUp         = process.gauge("links", "Links to other processes that are up.", "network")
	linksSeeking    = process.gauge("links_seeking", "Links that have lost their queue pair and seek another, while their connections wait.", "network")
	linkConnections = process.gauge("link_connections", "Connections that links carry at the moment.", "network")

	memoryUsed        = process.gauge("memory_used_bytes", "Memory that links have registered.")
	memoryLimit       = process.gauge("memory_limit_bytes", "Memory that links may register.")
	lockedMemoryUsed  = process.gauge("locked_memory_used_bytes", "Memory that links have locked (pinned) for RDMA devices.")
	lockedMemoryLimit = process.gauge("locked_memory_limit_bytes", "Memory that links may lock (pin) for RDMA devices; infinite without a limit.")
)

var (
	dialsSucceeded = process.counter("dials_succeeded", "Dials that have returned a connection, by the network that carries it.", "network")
	dialsFailed    = process.counter("dials_failed", "Dials that have failed, by the network asked for and the code of the reason.", "network", "code")
	passedOver     = process.counter("dials_passed_over", "Dials of auto that have not connected over a better network than TCP, by that network and the code of the reason.", "network", "code")

	accepts          = process.counter("accepts", "Connections that Accept has returned, by the network that carries them.", "network")
	acceptsFellBack  = process.counter("accepts_fell_back", "Connections that Accept has returned over TCP although the listener offered a better network.")
	handshakesFailed = process.counter("handshakes_failed", "Connections that dialers have asked listeners for in vain, by the code of the reason.", "network", "code")

	connectionsOpened = process.counter("connections_opened", "Connections that have begun.", "network")
	connectionsClosed = process.counter("connections_closed", "Connections that were closed.", "network")
	bytesSent         = process.counter("sent_bytes", "Bytes that connections have sent.", "network")
	bytesReceived     = process.counter("received_bytes", "Bytes that connections have received.", "network")
	messagesSent      = process.counter("sent_messages", "Work requests with data that connections have sent.", "network")
	messagesReceived  = process.counter("received_messages", "Work requests with data that connections have received.", "network")

	linksMade  = process.counter("links_made", "Links that were made.", "network")
	linksMoved = process.counter("links_moved", "Times that a link has lost its queue pair and has gone on over another.", "network")
	linksLost  = process.counter("links_lost", "Links that have ended although they were needed, by the code of the reason.", "network", "code")
)

// linkNetworks are those that have links. Auto has TCP besides.
var linkNetworks = []string{"shm", "rdma"}

func readProcess(emit emitter) {
	emitTotals(emit, ringnet.Totals())
	emitLinks(emit, ringnet.Links())
	readMemory(emit)
}

func emitTotals(emit emitter, totals map[string]ringnet.NetworkTotals) {
	for _, network := range linkNetworks {
		t := totals[network]
		emit(messagesSent, float64(t.MessagesSent), network)
		emit(messagesReceived, float64(t.MessagesReceived), network)
		emit(linksMade, float64(t.LinksMade), network)
		emit(linksMoved, float64(t.LinksMoved), network)
	}
	for _, network := range append([]string{"tcp"}, linkNetworks...) {
		t := totals[network]
		emit(dialsSucceeded, float64(t.Dialed), network)
		emit(accepts, float64(t.Accepted), network)
		emit(connectionsOpened, float64(t.Opened), network)
		emit(connectionsClosed, float64(t.Closed), network)
		emit(bytesSent, float64(t.BytesSent), network)
		emit(bytesReceived, float64(t.BytesReceived), network)
	}
	emit(acceptsFellBack, float64(totals["tcp"].FellBack))
	for network, t := range totals {
		for d, byCode := range map[*metric]map[ringnet.ReasonCode]uint64{
			dialsFailed:      t.DialsFailed,
			passedOver:       t.PassedOver,
			handshakesFailed: t.Failed,
			linksLost:        t.LinksLost,
		} {
			for code, n := range byCode {
				emit(d, float64(n), network, string(code))
			}
		}
	}
}

func emitLinks(emit emitter, links []ringnet.LinkInfo) {
	counts := make(map[string]struct{ up, seeking, connections int })
	for _, l := range links {
		c := counts[l.Network]
		c.up++
		if l.Seeking {
			c.seeking++
		}
		c.connections += l.Connections
		counts[l.Network] = c
	}
	for _, network := range linkNetworks {
		c := counts[network]
		emit(linksUp, float64(c.up), network)
		emit(linksSeeking, float64(c.seeking), network)
		emit(linkConnections, float64(c.connections), network)
	}
}

func readMemory(emit emitter) {
	m := ringnet.Memory()
	emit(memoryUsed, float64(m.Used))
	emit(memoryLimit, limit(m.Limit))
	emit(lockedMemoryUsed, float64(m.Locked))
	emit(lockedMemoryLimit, limit(m.LockedLimit))
}

// limit is a limit of MemoryInfo, where math.MaxInt means that there is none.
func limit(bytes int) float64 {
	if bytes == math.MaxInt {
		return math.Inf(1)
	}
	return float64(bytes)
}
