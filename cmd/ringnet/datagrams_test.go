package main

import (
	"encoding/json"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/internal/perf"
)

// answering starts ringnet ping --datagram --listen and returns its address.
func answering(t *testing.T, host string) string {
	t.Helper()
	return start(t, "ping", "--datagram", "--listen", "auto://"+net.JoinHostPort(host, "0")).logged("answers", 0)["address"].(string)
}

func requireAnswers(t *testing.T, r pingResult, n int) {
	t.Helper()
	require.Empty(t, r.Error+r.NoAnswer+r.Ended)
	require.NotNil(t, r.RoundTrip)
	require.Positive(t, r.First)
	require.Positive(t, r.RoundTrip.Min)
	require.Equal(t, n, r.RoundTrip.Count+r.Lost)
}

func TestPingDatagrams(t *testing.T) {
	requireShm(t)
	address := answering(t, "127.0.0.1")
	for _, size := range []string{"16", "4088"} {
		results := pinged(t, "--datagram", "-n", "20", "-s", size, address)
		requireAnswers(t, results["shm-udp"], 20)
		requireAnswers(t, results["udp"], 20)
		require.NotEmpty(t, results["rdma-udp"].Error, "of an address of no RDMA device")
	}
	tooLong := pinged(t, "--datagram", "-n", "1", "-s", "4089", address)
	requireAnswers(t, tooLong["udp"], 1)
	require.Regexp(t, `message too long: 4089 bytes, at most 4088$`, tooLong["shm-udp"].Error)
	out, err := commandProcess("ping", "--datagram", "-n", "20", address).Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^ *shm-udp +[\d.]+ [µm]?s +\d+ of 20( +[\d.]+ [nµm]?s( ±\d+%)?){5}$`, string(out))
	require.Regexp(t, `(?m)^not over rdma-udp: `, string(out))
}

func TestPingDatagramsOverIPv6(t *testing.T) {
	if c, err := net.ListenPacket("udp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 on this host:", err)
	} else {
		require.NoError(t, c.Close())
	}
	requireAnswers(t, pinged(t, "--datagram", "-n", "3", "--networks", "tcp", answering(t, "::1"))["udp"], 3)
}

func TestPingDatagramsOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		results := pinged(t, "--datagram", "-n", "20", "--networks", "rdma,tcp", answering(t, softroceAddress()))
		requireAnswers(t, results["rdma-udp"], 20)
		requireAnswers(t, results["udp"], 20)
	})
}

// lossy answers pings over UDP until the end of the test, but not those for whose number
// lost returns true.
func lossy(t *testing.T, lost func(number uint32) bool) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		p := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFrom(p)
			if err != nil {
				return
			}
			if token, _, number, ok := parseDatagramHeader(p[:n]); ok && !lost(number) {
				putDatagramHeader(p, token, datagramEchoed, number-1) // an answer that comes too late
				_, _ = c.WriteTo(p[:n], from)
				putDatagramHeader(p, token, datagramEchoed, number)
				_, _ = c.WriteTo(p[:n], from)
			}
		}
	}()
	return c.LocalAddr().String()
}

func TestPingCountsDatagramsThatAreLost(t *testing.T) {
	address := lossy(t, func(number uint32) bool { return number%3 == 1 })
	r := pinged(t, "--datagram", "--networks", "tcp", "-n", "6", address)["udp"]
	require.Empty(t, r.Error+r.NoAnswer+r.Ended)
	require.Equal(t, 2, r.Lost)
	require.Equal(t, 4, r.RoundTrip.Count)
}

func TestPingOfDatagramsEndsWhenNoneIsAnswered(t *testing.T) {
	address := lossy(t, func(number uint32) bool { return number > 2 })
	out, err := commandProcess("ping", "--json", "--datagram", "--networks", "tcp", "--timeout", "1s", address).Output()
	require.Error(t, err)
	var results []pingResult
	require.NoError(t, json.Unmarshal(out, &results))
	require.Equal(t, "no answers for 1s", results[0].Ended)
	require.Equal(t, 3, results[0].RoundTrip.Count)
	require.Equal(t, 1, results[0].Lost)

	out, err = commandProcess("ping", "--datagram", "--timeout", "100ms", lossy(t, func(uint32) bool { return true })).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "cannot be reached")
	require.Contains(t, string(out), "not over udp: no answers for 100ms: want ringnet ping --datagram --listen there")
	require.NotContains(t, string(out), "median", "a table of nothing")
}

// If answers were answered, a sender with a forged address could make two servers send to
// each other for ever.
func TestPingOfDatagramsAnswersNoAnswers(t *testing.T) {
	client, err := net.Dial("udp", answering(t, "127.0.0.1"))
	require.NoError(t, err)
	defer client.Close()
	send := func(token uint64, kind, number uint32) {
		p := make([]byte, datagramHeader)
		putDatagramHeader(p, token, kind, number)
		_, err := client.Write(p)
		require.NoError(t, err)
	}
	send(pingToken, datagramEchoed, 1)
	send(pingToken, datagramSink, 2)
	send(pingToken, datagramEnd, 3)
	send(pingToken+1, datagramEcho, 4)
	_, err = client.Write([]byte("too short"))
	require.NoError(t, err)
	send(pingToken, datagramEcho, 5)
	p := make([]byte, maxDatagram)
	require.NoError(t, client.SetReadDeadline(time.Now().Add(patience)))
	n, err := client.Read(p)
	require.NoError(t, err)
	require.Equal(t, datagramHeader, n)
	_, kind, number, ok := parseDatagramHeader(p[:n])
	require.True(t, ok)
	require.EqualValues(t, datagramEchoed, kind)
	require.EqualValues(t, 5, number)
}

// measuredDatagrams is measured with sizes and numbers of connections for datagrams.
func measuredDatagrams(t *testing.T, args ...string) *perfReport {
	t.Helper()
	return measured(t, append([]string{"--datagram"}, args...)...)
}

func requireDatagrams(t *testing.T, r *perfReport, networks ...string) {
	t.Helper()
	requireMeasuredBeside(t, r, "udp", networks...)
	for _, network := range networks {
		for _, workload := range []string{"ping-pong", "stream"} {
			x := r.Find(perf.Cell{Peer: network, Workload: workload, Size: 3072, Conns: 3})
			i := 0
			for ; i < len(r.Datagrams) && r.Datagrams[i].Cell != x.Cell; i++ {
			}
			if network == "udp" {
				require.Equal(t, len(r.Datagrams), i, "UDP tells a socket nothing")
				continue
			}
			require.Less(t, i, len(r.Datagrams))
			c, s := r.Datagrams[i].Client, r.Datagrams[i].Server
			least := 0
			for _, round := range x.Rounds {
				least += round.Ops
			}
			require.GreaterOrEqual(t, s.Received, uint64(least))
			require.GreaterOrEqual(t, c.Sent, s.Received)
			require.Zero(t, c.Unreachable+c.Foreign+s.Foreign)
			if workload == "ping-pong" {
				require.GreaterOrEqual(t, c.Received, uint64(least))
			}
		}
	}
}

func TestPerfMeasuresDatagramsBesideUDP(t *testing.T) {
	requireShm(t)
	for _, network := range []string{"auto", "shm"} {
		r := measuredDatagrams(t, perfServing(t, network, "127.0.0.1"))
		requireDatagrams(t, r, "shm-udp", "udp")
		require.Equal(t, "rdma-udp", r.Peers[0].Key)
		require.NotEmpty(t, r.Peers[0].Unavailable, "of an address of no RDMA device")
	}
}

func TestPerfOfDatagramsOverRDMA(t *testing.T) {
	t.Run("rdma", func(t *testing.T) {
		requireRDMA(t)
		r := measuredDatagrams(t, "--networks", "rdma,tcp", perfServing(t, "auto", softroceAddress()))
		requireDatagrams(t, r, "rdma-udp", "udp")
	})
}

func TestPerfTableOfDatagrams(t *testing.T) {
	requireShm(t)
	out, err := commandProcess("perf", "--datagram", "--rounds", "2", "--slice", "1ms", perfServing(t, "auto", "127.0.0.1")).Output()
	require.NoError(t, err)
	require.Regexp(t, `(?m)^not over rdma-udp: .+`, string(out))
	require.Contains(t, string(out), "rate by UDP's")
	require.Regexp(t, `(?m)^64 B +1 +shm-udp +[\d.]+ [nµm]?s .* 0 % .* ×$`, string(out))
	require.Regexp(t, `(?m)^1.0 KiB +16 +udp +[\d.]+ [kM]?/s +[\d.]+ [kMG]?B/s +[\d.e+]+ % `, string(out))
	require.Regexp(t, `(?m)^stream +1.0 KiB +16 +shm-udp +\d+ +\d+ `, string(out))
}

// losing is a socket that loses every third datagram that is written.
type losing struct {
	endpoint.PacketConn
	written int
}

func (l *losing) loses() bool {
	l.written++
	return l.written%3 == 1
}

func (l *losing) Write(p []byte) (int, error) {
	if l.loses() {
		return len(p), nil
	}
	return l.PacketConn.Write(p)
}

func (l *losing) WriteBatch(ms []ringnet.Message, _ int) (int, error) {
	for _, m := range ms {
		if _, err := l.Write(m.Buffers[0]); err != nil {
			return 0, err
		}
	}
	return len(ms), nil
}

// worker returns a worker of ringnet perf --datagram over UDP with a server, until the end
// of the test.
func worker(t *testing.T) *datagramWorker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	served, err := l.Accept()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		messages := perf.MessageServer{MaxSize: 1, Own: map[int]func(net.Conn) error{perfDatagrams: serveDatagrams}}
		ended <- messages.Serve(served)
		served.Close()
	}()
	w, err := newDatagramWorker(t.Context(), conn, "udp", 64, patience)
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		w.packets.Close()
		require.NoError(t, <-ended)
	})
	return w
}

func TestPerfCountsDatagramsThatAreLost(t *testing.T) {
	w := worker(t)
	w.packets = &losing{PacketConn: w.packets}
	for range 2 { // each run counts its own
		require.NoError(t, w.stream(30))
		require.GreaterOrEqual(t, w.lost, 9)
		require.LessOrEqual(t, w.lost, 11)
	}
	w.packets.(*losing).written = 0
	require.NoError(t, w.echo(make([]time.Duration, 4)))
	require.Equal(t, 2, w.lost)
	w.packets.(*losing).written = 0
	require.ErrorContains(t, w.echo(make([]time.Duration, 1)), "all of 1 datagrams were lost")
	w.packets.(*losing).written = 0
	require.ErrorContains(t, w.stream(1), "all of 1 datagrams were lost")
	require.NoError(t, w.stream(math.MaxInt16), "the server serves on")
}

func TestPerfOfDatagramsWhereTheServerHasGone(t *testing.T) {
	packets, err := endpoint.DialPacket(t.Context(), "udp", lossy(t, func(uint32) bool { return true }))
	require.NoError(t, err)
	defer packets.Close()
	w := &datagramWorker{
		packets: packets, more: make(chan struct{}), timeout: patience,
		batch: []ringnet.Message{{Buffers: [][]byte{make([]byte, datagramHeader)}}},
	}
	close(w.more)
	_, err = w.end()
	require.ErrorContains(t, err, "the server has ended the connection")
}

func TestPerfOfDatagramsOfAServerThatHasNone(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		_, _ = server.Read(make([]byte, 100))
		_ = json.NewEncoder(server).Encode(perfSocket{Error: "no \x1bdevice"})
	}()
	_, err := newDatagramWorker(t.Context(), client, "rdma-udp", 64, patience)
	require.ErrorContains(t, err, "the server has no socket of rdma-udp: no \ufffddevice")
	go func() {
		_, _ = server.Read(make([]byte, 100))
		server.Close()
	}()
	_, err = newDatagramWorker(t.Context(), client, "rdma-udp", 64, patience)
	require.ErrorContains(t, err, "want a ringnet perf --listen that knows --datagram")
}

// A hostile server takes neither the client's memory nor its time.
func TestPerfOfDatagramsOfAServerThatSaysTooMuchOrNothing(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	sent := make(chan int, 1)
	go func() {
		_, _ = server.Read(make([]byte, 100))
		n, err := server.Write([]byte(`{"error":"`))
		for more := 0; err == nil && n < 1<<24; n += more {
			more, err = server.Write([]byte(strings.Repeat("x", 100)))
		}
		sent <- n
	}()
	_, err := newDatagramWorker(t.Context(), client, "udp", 64, patience)
	require.ErrorContains(t, err, "want a ringnet perf --listen that knows --datagram")
	client.Close()
	require.Less(t, <-sent, 2*maxPerfLine)

	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		_, err := newDatagramWorker(t.Context(), client, "udp", 64, time.Second)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})

	packets, err := endpoint.DialPacket(t.Context(), "udp", lossy(t, func(uint32) bool { return true }))
	require.NoError(t, err)
	defer packets.Close()
	w := &datagramWorker{
		packets: packets, more: make(chan struct{}), timeout: 50 * time.Millisecond,
		batch: []ringnet.Message{{Buffers: [][]byte{make([]byte, datagramHeader)}}},
	}
	_, err = w.end()
	require.ErrorContains(t, err, "the server does not say what has arrived")
}

func TestDatagramFlags(t *testing.T) {
	failsWith(t, misuse, "--sizes of datagrams are from 16 to 16384", strings.Fields("--datagram a:1 --sizes 15")...)
	failsWith(t, misuse, "--sizes of datagrams are from 16 to 16384", strings.Fields("--datagram a:1 --sizes 17KiB")...)
	out, err := commandProcess(strings.Fields("ping --datagram a:1 -s 15")...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "--size of datagrams is from 16 to 16384")
}
