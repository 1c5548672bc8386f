// Package packettest tests implementations of net.PacketConn, as
// golang.org/x/net/nettest tests those of net.Conn: it tests what users of package net
// rely on. It demands nothing that UDP on the loopback interface does not do, and its own
// test runs it over UDP.
//
// Networks may lose datagrams, and a test that waits for a lost one fails. Here none is to
// be lost: no test has more datagrams wait than a receive queue of [Network.Burst] holds.
package packettest
