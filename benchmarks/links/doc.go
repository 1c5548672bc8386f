// Package links works out what ringnet would do on links that nobody here owns:
// 100 and 400 Gb/s, near and far, and ten thousand connections at once. Its
// tests run the real package rconn over package sim, in the virtual time of
// testing/synctest, and print tables, one of which is in docs/performance.md:
//
//	go test ./links -v -args -tables
//
// Modelled are the link (delay, and the time that a byte takes to leave), the
// device's acknowledgements, the queues with their depths, the rings, and all of
// the protocol above. Not modelled is what takes time in a processor, a memory
// or a PCIe bus: copies, system calls, cgo crossings and wake-ups are free in
// virtual time. Headers take no room on the link.
package links
