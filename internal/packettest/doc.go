// Package packettest is to net.PacketConn what golang.org/x/net/nettest is to net.Conn:
// it tests that an implementation keeps what users of package net rely on. It asks for
// nothing that UDP on the loopback interface does not do, and is run over that, too.
//
// A datagram may be lost, so a test that waits for one fails if it is. None may be here:
// all tests stay within what a receive queue of [Network.Burst] datagrams holds.
package packettest
