// Card measures ringnet on an ideal RDMA card (tools/idealcard), beside a C program on the same
// verbs and beside TCP over loopback: what ringnet itself costs where the card costs nothing.
//
//	make bench-card
//
// Each cell of each round runs in a process of its own, which is both ends of its connections.
// The result is a table in Markdown, and with -out results.json and charts.
//
// main.go starts the processes, table.go prints what they report, workloads.go has what is
// measured, and measure.go what they have in common.
package main
