package main

// ringnet perf --datagram. Each worker of the client has a connection of the visit, by
// which it asks the server for a socket for datagrams: over shm for one of shm-udp, over
// rdma for one of rdma-udp, over TCP for one of UDP. The connection carries what must not
// be lost: where that socket is, and how many datagrams have arrived there.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

// perfDatagrams is a request for a socket for datagrams, which exists until the connection
// ends. The server answers with a line of JSON, perfSocket, and sends another,
// perfArrivals, for each datagramEnd that arrives at the socket.
const perfDatagrams = perf.FirstOwn + 1

// perfSocket says where the server's socket is, or why there is none.
type perfSocket struct {
	Error string `json:"error,omitempty"`
	Port  uint16 `json:"port,omitempty"`
	Token uint64 `json:"token,omitempty"` // what datagrams to it begin with
}

// perfArrivals says what has arrived before a datagramEnd.
type perfArrivals struct {
	Number   uint32              `json:"number"`   // of the datagramEnd
	Received int                 `json:"received"` // of datagramSink, since the last
	Stats    ringnet.PacketStats `json:"stats"`
}

// serveDatagrams serves perfDatagrams, until the connection ends.
func serveDatagrams(conn net.Conn) error {
	lines := json.NewEncoder(conn)
	s := &datagramServer{token: rand.Uint64()}
	s.end = func(number uint32, received int) error {
		return lines.Encode(perfArrivals{number, received, s.conn.Stats()})
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err == nil {
		s.conn, err = endpoint.ListenPacket(context.Background(), endpoint.Packets[endpoint.NetworkOf(conn)], net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return lines.Encode(perfSocket{Error: err.Error()})
	}
	defer s.conn.Close()
	if err := lines.Encode(perfSocket{Port: portOf(s.conn.LocalAddr()), Token: s.token}); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		s.conn.Close()
	}()
	return s.serve()
}

// eachNetwork replaces auto, which has no datagrams, by shm and rdma.
func eachNetwork(networks []string) (each []string) {
	for _, n := range networks {
		if n == "auto" {
			each = append(each, "shm", "rdma")
		} else {
			each = append(each, n)
		}
	}
	slices.Sort(each)
	return slices.Compact(each)
}

// packetPeers replaces networks by those of datagrams that use the same devices.
func packetPeers(peers []perf.Peer) {
	for i, p := range peers {
		network := endpoint.Packets[p.Key]
		peers[i].Key, peers[i].Name = network, network
	}
}

// datagramWorkload returns the workload of a cell of datagrams. It adds the counters of its
// sockets to the report.
func (r *perfReport) datagramWorkload(cell perf.Cell) *perf.Workload {
	return &perf.Workload{Open: func(cl perf.Client) (*perf.Session, error) {
		conns, closeConns, err := cl.DialAll()
		if err != nil {
			return nil, err
		}
		var workers []*datagramWorker
		closeAll := func() {
			closeConns()
			for _, w := range workers {
				w.packets.Close()
			}
		}
		for _, conn := range conns {
			w, err := newDatagramWorker(cl.Context, conn, cell.Peer, cl.Size, r.timeout)
			if err != nil {
				closeAll()
				return nil, err
			}
			workers = append(workers, w)
		}
		s := &perf.Session{
			Bytes: cl.Size, Close: closeAll,
			Run:    func(worker, n int, _ []time.Duration) error { return workers[worker].stream(n) },
			Failed: func() (int, error) { return r.countDatagrams(cell, workers), nil },
		}
		if cell.Workload == perf.PingPong.Key {
			s.Bytes, s.Half, s.Timed = 2*cl.Size, true, true
			s.Run = func(worker, _ int, times []time.Duration) error { return workers[worker].echo(times) }
		}
		return s, nil
	}}
}

// countDatagrams adds the counters of the sockets of a round to the report, and returns how
// many datagrams were lost.
func (r *perfReport) countDatagrams(cell perf.Cell, workers []*datagramWorker) (lost int) {
	var counted *perfCounted
	if cell.Peer != r.baseline {
		i := slices.IndexFunc(r.Datagrams, func(d *perfCounted) bool { return d.Cell == cell })
		if i < 0 {
			i = len(r.Datagrams)
			r.Datagrams = append(r.Datagrams, &perfCounted{Cell: cell})
		}
		counted = r.Datagrams[i]
	}
	for _, w := range workers {
		lost += w.lost
		if counted != nil {
			addStats(&counted.Client, w.packets.Stats())
			addStats(&counted.Server, w.server)
		}
	}
	return lost
}

func addStats(to *ringnet.PacketStats, s ringnet.PacketStats) {
	to.Sent += s.Sent
	to.Received += s.Received
	to.BytesSent += s.BytesSent
	to.BytesReceived += s.BytesReceived
	to.Missed += s.Missed
	to.Refused += s.Refused
	to.Unreachable += s.Unreachable
	to.Dropped += s.Dropped
	to.Foreign += s.Foreign
}

// datagramWorker is a socket of the client, and the connection beside it.
type datagramWorker struct {
	packets endpoint.PacketConn
	token   uint64
	timeout time.Duration     // of the server's answers
	batch   []ringnet.Message // of which all have the same bytes
	answer  []byte

	arrivals atomic.Pointer[perfArrivals] // the last
	more     chan struct{}                // has room for one: there is another; closed when the server has gone

	number uint32              // of the last datagram that has one
	lost   int                 // datagrams of the last run
	server ringnet.PacketStats // of the server's socket, when that ended
}

// newDatagramWorker asks the server for a socket, and returns one that sends there.
func newDatagramWorker(ctx context.Context, conn net.Conn, network string, size int, timeout time.Duration) (*datagramWorker, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := perf.Request(conn, perfDatagrams, 0, 0); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(conn, maxPerfLine)
	var there perfSocket
	if err := readPerfLine(lines, &there); err != nil {
		return nil, fmt.Errorf("want a ringnet perf --listen that knows --datagram: %w", err)
	}
	if stop() {
		_ = conn.SetDeadline(time.Time{})
	}
	if there.Error != "" {
		return nil, fmt.Errorf("the server has no socket of %s: %s", network, endpoint.Printable(there.Error))
	}
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	packets, err := endpoint.DialPacket(ctx, network, net.JoinHostPort(host, strconv.Itoa(int(there.Port))))
	if err != nil {
		return nil, err
	}
	w := &datagramWorker{packets: packets, token: there.Token, timeout: timeout, answer: make([]byte, size), more: make(chan struct{}, 1)}
	buffer := [][]byte{make([]byte, size)}
	for range datagramBatch {
		w.batch = append(w.batch, ringnet.Message{Buffers: buffer})
	}
	go w.receiveArrivals(lines)
	if _, err := w.end(); err != nil { // finds the server's socket, which takes its time
		packets.Close()
		return nil, err
	}
	return w, nil
}

// receiveArrivals keeps the last arrivals, until the connection ends.
func (w *datagramWorker) receiveArrivals(lines *bufio.Reader) {
	defer close(w.more)
	for {
		a := new(perfArrivals)
		if readPerfLine(lines, a) != nil {
			return
		}
		w.arrivals.Store(a)
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
}

// put makes all datagrams of the batch share one buffer, and returns it.
func (w *datagramWorker) put(kind uint32) []byte {
	w.number++
	p := w.batch[0].Buffers[0]
	putDatagramHeader(p, w.token, kind, w.number)
	return p
}

// echo sends datagrams, and receives the answer to each before it sends the next.
func (w *datagramWorker) echo(times []time.Duration) error {
	w.lost = 0
	var renew time.Time
	last := time.Now()
	for i := range times {
		if last.After(renew) { // a deadline for each would take longer
			if err := w.packets.SetReadDeadline(last.Add(answerWithin)); err != nil {
				return err
			}
			renew = last.Add(answerWithin / 2)
		}
		if _, err := w.packets.Write(w.put(datagramEcho)); err != nil {
			return err
		}
		if err := awaitAnswer(w.packets, w.answer, w.number); errors.Is(err, os.ErrDeadlineExceeded) {
			w.lost++
		} else if err != nil {
			return err
		}
		now := time.Now()
		times[i] = now.Sub(last)
		last = now
	}
	_, err := w.end()
	return errors.Join(err, w.allLost(len(times)))
}

// stream sends n datagrams, and waits until the server has counted those that arrive.
func (w *datagramWorker) stream(n int) error {
	w.put(datagramSink)
	for left := n; left > 0; {
		sent, err := w.packets.WriteBatch(w.batch[:min(left, len(w.batch))], 0)
		if err != nil {
			return err
		}
		left -= sent
	}
	received, err := w.end()
	w.lost = max(n-received, 0)
	return errors.Join(err, w.allLost(n))
}

// allLost returns an error if all n datagrams were lost.
func (w *datagramWorker) allLost(n int) error {
	if w.lost < n {
		return nil
	}
	return fmt.Errorf("all of %d datagrams were lost", n)
}

// endAgain is after how long a datagramEnd without an answer is sent again.
const endAgain = 5 * time.Millisecond

// end asks the server what has arrived. Datagrams do not overtake one another, so those
// that have not arrived before the datagramEnd are lost.
func (w *datagramWorker) end() (received int, err error) {
	p := w.put(datagramEnd)
	timeout := time.After(w.timeout)
	for {
		if _, err := w.packets.Write(p[:datagramHeader]); err != nil {
			return 0, err
		}
		select {
		case _, ok := <-w.more:
			if !ok {
				return 0, errors.New("the server has ended the connection")
			}
			if a := w.arrivals.Load(); a.Number == w.number {
				w.server = a.Stats
				return a.Received, nil
			}
		case <-time.After(endAgain):
		case <-timeout:
			return 0, errors.New("the server does not say what has arrived")
		}
	}
}
