package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/ringnet/ringnet"
)

// peer is something that carries bytes from one process to another: a network,
// or a program that measures for itself.
type peer struct {
	name string // for people
	key  string // for flags and JSON

	// Of networks:
	listen func(host string) (net.Listener, error)
	dial   func(ctx context.Context, address string) (net.Conn, error)
	ours   *ringnet.Config // not nil if ringnet is what carries the bytes

	yardstick bool // others are compared with it

	// Of programs, by workload:
	tools map[string]tool

	// A build of this program, if each cell is measured by a process of its own; and, of another
	// version, the key by which that knows the peer.
	program, as string
}

var peers = []*peer{
	ours("ringnet shm", "shm", "shm", &ringnet.Config{}),
	ours("ringnet rdma", "rdma", "rdma", &ringnet.Config{}),
	ours("ringnet rdma, busy polling", "rdma-busy", "rdma", &ringnet.Config{BusyPoll: 10 * time.Second}),
	ours("ringnet rdma, a link for each connection", "rdma-dedicated", "rdma", &ringnet.Config{Dedicated: true}),
	ours("ringnet rdma, never polling", "rdma-parking", "rdma", &ringnet.Config{BusyPoll: -1}),
	ours("ringnet shm, never polling", "shm-parking", "shm", &ringnet.Config{BusyPoll: -1}),
	{name: "TCP", key: "tcp", yardstick: true, listen: func(host string) (net.Listener, error) { return net.Listen("tcp", net.JoinHostPort(host, "0")) }, dial: dialer("tcp")},
	{name: "Unix socket", key: "unix", yardstick: true, listen: func(string) (net.Listener, error) { return net.Listen("unix", "") }, dial: dialer("unix")},
	{name: "pipe in memory", key: "pipe", yardstick: true, listen: listenPipe, dial: dialPipe},
	{name: "verbs write (ib_write_*)", key: "ib_write", yardstick: true, tools: map[string]tool{
		"ping-pong": perftestLatency("ib_write_lat"), "stream": perftestBandwidth("ib_write_bw"),
	}},
	{name: "verbs send (ib_send_lat)", key: "ib_send", yardstick: true, tools: map[string]tool{
		"ping-pong": perftestLatency("ib_send_lat"),
	}},
	{name: "verbs send, events (ib_send_lat -e)", key: "ib_send-events", tools: map[string]tool{
		"ping-pong": perftestLatency("ib_send_lat", "-e"),
	}},
	{name: "verbs in C, one process", key: "raw", yardstick: true, tools: raw()},
	{name: "rsockets (rstream)", key: "rsockets", yardstick: true, tools: rstream()},
	{name: "rsockets, parking (rstream -T b)", key: "rsockets-blocking", tools: rstream("-T", "b")},
}

// The peers that are measured by default: cardPeers on the card, of which TCP is beside it.
const (
	hostPeers = "shm,tcp,unix"
	rdmaPeers = "rdma-busy,rdma,tcp,ib_write,ib_send,ib_send-events,rsockets,rsockets-blocking"
	cardPeers = "raw,rdma,rdma-busy,rdma-parking,tcp"
)

func findPeer(key string) (*peer, error) {
	if i := slices.IndexFunc(peers, func(p *peer) bool { return p.key == key }); i >= 0 {
		return peers[i], nil
	}
	if p := spread(key); p != nil {
		peers = append(peers, p)
		return p, nil
	}
	return nil, fmt.Errorf("no peer is called %q", key)
}

// spread is ringnet with up to as many links for a pair of processes as a key such as
// "shm/4" says, or nil if the key is no such one.
func spread(key string) *peer {
	network, number, _ := strings.Cut(key, "/")
	links, err := strconv.Atoi(number)
	if err != nil || links < 1 || network != "shm" && network != "rdma" {
		return nil
	}
	return ours(fmt.Sprintf("ringnet %s, Links: %d", network, links), key, network, &ringnet.Config{Links: links})
}

func ours(name, key, network string, cfg *ringnet.Config) *peer {
	return &peer{
		name: name, key: key, ours: cfg,
		listen: func(host string) (net.Listener, error) {
			lc := ringnet.ListenConfig{Config: cfg}
			return lc.Listen(context.Background(), network, net.JoinHostPort(host, "0"))
		},
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&ringnet.Dialer{Config: cfg}).DialContext(ctx, network, address)
		},
	}
}

// dialAt dials one address.
func (p *peer) dialAt(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return p.dial(ctx, address) }
}

func dialer(network string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

const pipeBytes = 64 << 10

// pipe is what listens for pipes in memory, in this process.
var pipe *bufconn.Listener

func listenPipe(string) (net.Listener, error) {
	pipe = bufconn.Listen(pipeBytes)
	return pipe, nil
}

func dialPipe(ctx context.Context, _ string) (net.Conn, error) {
	if pipe == nil {
		return nil, errors.New("it wants -one-process")
	}
	return pipe.DialContext(ctx)
}
