// Benchmarks measures ringnet beside what a program would use instead: TCP and
// Unix sockets of package net on one host, and on an RDMA device TCP, raw verbs
// (perftest) and rsockets.
//
//	go run .                      on this host: shm, TCP, Unix sockets
//	go run . -rdma                on this host's RDMA device
//	go run . -listen :18600       on one of two hosts, and
//	go run . -connect HOST:18600  on the other: both hosts' RDMA devices
//	go run . -card FILE           on an ideal card, beside a program in C on the same verbs
//	go run . -busy 0,2,8          beside strangers, processes that compute all the time
//	go run . -tail                rates, p99 and p99.9 beside the better of the others: one table
//	go run . -one-process         beside a pipe in memory
//	go run . -beside FILE         beside another version of ringnet, in the same rounds
//	go run . card-report          and all else of a device, in a report: package cardreport
//
// The FILE of -beside is this program as it was built there, which "make bin/benchmarks-VERSION"
// does. Version 1 of the protocol, a queue pair for each connection, is 04f2eb9.
//
// The FILE of -card is made by tools/idealcard ("make bench-card"). There, and with -beside, each
// cell of each round runs in a process of its own: on the card that is both ends of its connections.
//
// Except with -one-process and -card, client and server are two processes, whose processor time is
// added up. Every figure is measured in every round, one peer after the other, so that a machine that
// drifts does so under all of them; what is compared is the median of the rounds' ratios. Tables
// appear on the terminal, with -markdown those for documents, and with -out also JSON and charts.
// Their head says where, when, how often, beside what and with which intervals it was measured.
//
// The time of each operation goes to a histogram of three digits (HdrHistogram), of which percentiles
// are: medians of the rounds'. p99.9 is unknown ("–") if a round has timed fewer than 1,000
// operations, of which it would be the slowest; a longer -slice has more. A worker begins an operation
// when its last one has ended, so what waits behind a stall is not begun, and not among them.
//
// Rounds, workloads that need net/http at the most, medians with their intervals of confidence and
// tables are those of ringnet perf (cmd/ringnet), which measures between two hosts without raw verbs
// and the like: packages workload and report of ../internal/perf have what the two share. Package
// charts draws, and package process runs other programs.
//
// The way through the files: flags.go says what there is to choose, peers.go says what is compared,
// workloads.go what is done with it, grpc.go and card.go how, server.go is the other process,
// tools.go runs the programs of perftest and rsockets and the one in C, beside.go measures in
// processes of their own, run.go says what is gone through in rounds, busy.go has strangers, idle.go
// measures what has no rounds, table.go says what came out, and tail.go with -tail.
//
// A server that listens runs what its client asks for, out of the above, and
// knows no password: let nobody else reach it.
package main
