#!/bin/sh
# Runs test programs that make test-rdma has compiled, each in its package's folder, on an RDMA
# device: tools/rdmasuites.sh SUITE... Of interop it is what shows each library, net/http and the
# peer in C beside a kernel: make test-card and make soak run all of it. They share an emulated
# machine, which takes longer to boot than most of them to run. hwcounters fails if the device has
# counted a message that found no receive posted. Package verbs sends such messages, and datagrams
# are lost.
set -eu
cd "$(dirname "$0")/.."
programs=$PWD/bin/rdma counting=$PWD/bin/hwcounters
export RINGNET_REQUIRE_RDMA=1 RINGNET_REQUIRE_PROGRAMS=1

# in_folder FOLDER [COMMAND] PROGRAM FLAG...
in_folder() (
	cd "$1"
	shift
	"$@" -test.timeout 20m
)

for suite in "$@"; do
	echo "$suite"
	test=$programs/$suite.test
	case $suite in
	root) in_folder . "$counting" "$test" -test.run "$(tools/rdmatests.sh .)" ;;
	rconn) in_folder rconn "$counting" "$test" -test.run "$(tools/rdmatests.sh rconn)" ;;
	integration) in_folder internal/testing/integration "$counting" "$test" -test.skip '/^shm$' ;;
	rdmacore) in_folder internal/rdmacore "$test" -test.skip '^TestABI' ;;
	verbs) in_folder internal/fabric/verbs "$test" ;;
	interop) in_folder interop "$counting" "$test" -test.run '^(TestLibrariesDialRingnet|TestHTTPCarriesLargeBodiesBothWays|TestAPeerInC.*)$/^rdma$' ;;
	metrics) in_folder metrics "$counting" "$test" ;;
	rdmaudp)
		in_folder rdmaudp "$test" -test.skip 'DeviceRemoved|BetweenNodes'
		in_folder rdmaudp/internal/ud "$programs/ud.test"
		;;
	feed) in_folder rdmaudp/examples/feed "$test" ;;
	command) in_folder cmd/ringnet "$counting" "$test" -test.run '(ProxyPairMoves|OverRDMA)/^rdma$' ;;
	*) echo "$0: unknown suite" >&2; exit 2 ;;
	esac
done
