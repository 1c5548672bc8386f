// Benchmarks measures ringnet beside what a program would use instead: TCP and
// Unix sockets of package net on one host, and on an RDMA device TCP, raw verbs
// (perftest) and rsockets.
//
//	go run .                      on this host: shm, TCP, Unix sockets
//	go run . -rdma                on this host's RDMA device
//	go run . -listen :18600       on one of two hosts, and
//	go run . -connect HOST:18600  on the other: both hosts' RDMA devices
//	go run . -card FILE           on an ideal card, beside a program in C on the same verbs
//
// With -beside FILE another version of ringnet is measured in the same rounds:
// FILE is this program as it was built there, for instance by
//
//	git worktree add /tmp/other VERSION
//	(cd /tmp/other/benchmarks && go build -o /tmp/other/benchmarks-VERSION .)
//	go run . -beside /tmp/other/benchmarks-VERSION
//
// Version 1 of the protocol, a queue pair for each connection, is 04f2eb9.
//
// A busy host is measured by starting strangers, processes that compute all the time:
//
//	go run . -busy 0,2,8
//
// prints rows for each of these numbers of strangers, with how many processors they had
// meanwhile. How much more a request takes than over a pipe in memory is measured by
//
//	go run . -one-process
//
// Processor time is of client and server together, and never of strangers. With -markdown
// the tables are those for documents, as "make bench-busy" prints them.
//
// What ringnet itself costs where the card costs nothing is measured on the ideal card of
// tools/idealcard, FILE ("make bench-card"). Each cell of each round runs in a process of its own,
// which is both ends of its connections.
//
// Where one lock holds up many processors, connections do better on several links
// (ringnet.Config.Links). By what is measured an owner of such a host decides with
//
//	go run . -peers shm/1,shm/2,shm/4 -workloads work,http -conns 16,64,256 -idle none
//
// Except with -one-process and -card, client and server are two processes. Every figure is measured in
// every round, one peer after the other, so that a machine that drifts does so under all of
// them; what is compared is the median of the rounds' ratios. A table appears
// on the terminal, and with -out also as JSON and as charts.
//
// Rounds, workloads that need net/http at the most, medians with their intervals of confidence and
// tables are those of ringnet perf (cmd/ringnet), which measures between two hosts
// without raw verbs and the like: packages workload and report of ../internal/perf have what the
// two share. Package charts draws.
//
// For each release "make bench-json VERSION=…" keeps some figures of shm and TCP as
// results/VERSION.json, with the machine, the version of Go and the commit. What
// differs between two such files, and whether by more than chance, says
//
//	go run . -compare results/v0.1.0.json,results/v0.2.0.json
//
// They are of different hours, if not of different machines: TCP's lines show what that
// alone does. To learn what a change does, measure with -beside.
//
// The way through the files: flags.go says what there is to choose, peers.go says what is compared, workloads.go what
// is done with it, rpc.go and card.go how, server.go is the other process,
// tools.go runs the
// programs of perftest and rsockets and the one in C, beside.go that of another version, run.go says
// what is gone through in rounds, busy.go has strangers, idle.go measures what has none,
// report.go and table.go say what came out, compare.go what differs from another time.
//
// A server that listens runs what its client asks for, out of the above, and
// knows no password: let nobody else reach it.
package main
