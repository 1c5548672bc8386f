// Package integration has the tests of ringnet as a whole: on a real RDMA device, between
// processes and between machines. They use only the public API, except for tests whose
// peer breaks the protocol: these play that peer by packages fabric and link.
//
// All but those over shared memory need a device, which tools/softroce provides.
// SOFTROCE_ADDR is the device's address; without it they skip, or fail if
// RINGNET_REQUIRE_RDMA is 1. RINGNET_SOAK=1 repeats everything more often than is needed
// after every change. The tests between two nodes run where SOFTROCE_PEER is the other
// node's address:
//
//	go test -c -o /tmp/integration.test ./internal/testing/integration
//	bin/softroce -- bin/hwcounters /tmp/integration.test
//	bin/softroce -nodes 2 -- bin/hwcounters /tmp/integration.test -test.run TestNodes
//	bin/softroce -nodes 2 -cables 2 -- bin/hwcounters /tmp/integration.test -test.run TestMatrix
//
// tools/hwcounters.sh makes them fail if any of their messages found no receive posted.
package integration
