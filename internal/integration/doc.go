// Package integration holds the tests of ringnet as a whole: on a real RDMA
// device, between processes and between machines, through nothing but its
// public API. Where a test needs a peer that does not keep the protocol, it
// plays one on packages fabric and link.
//
// They need a device, which tools/softroce has, but for those between processes
// over shared memory. SOFTROCE_ADDR says where it is; without that the tests skip,
// unless RINGNET_REQUIRE_RDMA=1 forbids it.
// RINGNET_SOAK=1 repeats everything as often as it should be repeated once in
// a while, and not after every change. The test between two nodes runs where
// SOFTROCE_PEER names the other one:
//
//	go test -c -o /tmp/integration.test ./internal/integration
//	bin/softroce -- bin/hwcounters /tmp/integration.test
//	bin/softroce -nodes 2 -- bin/hwcounters /tmp/integration.test -test.run TestNodes
//	bin/softroce -nodes 2 -cables 2 -- bin/hwcounters /tmp/integration.test -test.run TestMatrix
//
// tools/hwcounters has them fail if one of all their messages found no receive
// posted.
package integration
