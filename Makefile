# Everything a fresh machine needs is installed by the targets themselves: on
# Debian and Ubuntu as root by apt-get, elsewhere tools/softroce says what to
# install.

GO       ?= go
SOFTROCE := bin/softroce
CARD     := bin/idealcard
GOSRC    = $(shell $(GO) env GOROOT)/src

# What runs over an RDMA device of packages that run over other networks, too: see unit.
# tools/rdmasuites.sh has the same for a real kernel's.
SUITE = -run "$$(tools/rdmatests.sh . rconn)" . ./rconn

# Modules besides the root, whose heavy dependencies are theirs alone.
MODULES := internal/perf tools/softroce tools/idealcard tools/release cmd/ringnet metrics grpcnet rdmaudp interop examples benchmarks

# Under the race detector a program sleeps for a second before it exits, for goroutines that go on.
# Tests have none by then, and start hundreds of programs.
export GORACE ?= atexit_sleep_ms=0

# Only a hang lasts 30 minutes, be the machine ever so busy.
TEST = $(GO) test -timeout 30m

# Runs a test program where there is a device, and fails if the device has
# counted a message that found no receive posted.
COUNTING = -exec "'$(CURDIR)/$(SOFTROCE)' -timeout 30m -- '$(CURDIR)/bin/hwcounters'"
# The same on the ideal card, which the launcher asks what it has counted. Packages of one run have a
# card each, and run at once.
ON_CARD = -exec "'$(CURDIR)/$(CARD)' --"
ON_INFINIBAND = -exec "'$(CURDIR)/$(CARD)' -fabric '$(CURDIR)/tools/idealcard/fabrics/infiniband.json' --"
RNR_ON_CARD = -exec "'$(CURDIR)/$(CARD)' -rnr --"
RNR_ON_INFINIBAND = -exec "'$(CURDIR)/$(CARD)' -rnr -fabric '$(CURDIR)/tools/idealcard/fabrics/infiniband.json' --"
TEST_RDMA = RINGNET_REQUIRE_RDMA=1 $(TEST) -count=1

.PHONY: demo demo-rdma demo-card demo-nodes test test-quick packages check vet lint vuln apidiff release unit cross programs test-card rdma-suites test-rdma test-matrix test-matrix-card test-manners test-users soak soak-kernels soak-hours soak-card hours-card soak-ports explore mutants fuzz
.PHONY: bench bench-busy bench-tail bench-rdma bench-card bench-proxy bench-links bench-json card-report card-report-programs clean

# An unmodified net/http client fetches Go's own sources from an unmodified
# net/http server in another process: on auto, which needs nothing but Go and is
# shared memory between processes of one host, with TCP to compare; and over
# RDMA, where the device's own counters show that the bytes went through it.
demo:
	cd examples && CGO_ENABLED=0 $(GO) build -o ../bin/demo/ ./http/...
	bin/demo/demo -bin bin/demo -dir $(GOSRC) net crypto

demo-rdma: $(SOFTROCE) bin/hwcounters
	cd examples && CGO_ENABLED=1 $(GO) build -o ../bin/demo-rdma/ ./http/...
	$(SOFTROCE) -timeout 15m -- bin/hwcounters bin/demo-rdma/demo -bin bin/demo-rdma -network rdma -rounds 1 -dir $(GOSRC) net crypto

# The same over a card that is emulated, in a second: see tools/idealcard.
demo-card: $(CARD)
	cd examples && CGO_ENABLED=1 $(GO) build -o ../bin/demo-rdma/ ./http/...
	$(CARD) -- bin/demo-rdma/demo -bin bin/demo-rdma -network rdma -rounds 1 -dir $(GOSRC) net crypto

# The same from one machine to another: two emulated ones on one cable. The
# client asks for a little until the server listens, and in the end it switches
# the server's machine off.
demo-nodes: $(SOFTROCE)
	cd examples && CGO_ENABLED=1 $(GO) build -o ../bin/demo-rdma/ ./http/...
	$(SOFTROCE) -nodes 2 -timeout 15m -- \
		bin/demo-rdma/server -network rdma -addr :8080 -dir $(GOSRC) -- \
		sh -c 'client="bin/demo-rdma/client -network rdma -server $$SOFTROCE_PEER:8080 -dir $(GOSRC)"; \
			until $$client errors; do sleep 1; done; \
			$$client net crypto; status=$$?; echo power off 0 >$$SOFTROCE_CONTROL; exit $$status'

# One after the other, but for cross and test-card: programs waits half of its time, for proxies and databases.
test: packages
	for targets in vet unit '$(CARD) bin/cpeer' '-j2 -Oline cross programs test-card' test-rdma; do \
		$(MAKE) --no-print-directory $$targets || exit 1; done

# Debian packages that tests want: a C compiler for the race detector and the
# shim of rdma-core, one more for arm64, the official headers for the shim's ABI test,
# ip and nft for network namespaces, programs that ringnet is to carry,
# podman for containers, systemd to check units, and lintian for the Debian package.
# tools/softroce installs what it needs by itself.

PACKAGES := apache2-utils gcc ibverbs-utils iproute2 kmod libc6-dev libibverbs-dev librdmacm-dev libssl-dev lintian nftables perftest podman postgresql rdmacm-utils redis-server systemd
CROSS_CC := aarch64-linux-gnu-gcc
ifneq ($(shell uname -m),aarch64)
PACKAGES += gcc-aarch64-linux-gnu libc6-dev-arm64-cross
endif
# dpkg-query knows of packages that are not installed, too.
HAVE = $(shell dpkg-query -W -f '$${Package}/$${db:Status-Status} ' $(PACKAGES) 2>/dev/null)
MISSING = $(filter-out $(patsubst %/installed,%,$(HAVE)),$(PACKAGES))
packages:
	@test -z "$(MISSING)" || ! command -v dpkg-query >/dev/null || \
	if [ "$$(id -u)" = 0 ]; then \
		apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(MISSING); \
	else \
		echo "missing packages; as root: apt-get install $(MISSING)"; exit 1; \
	fi

# What can be checked without running anything; the linters take minutes, so they are no part
# of test. Nor is macOS: its files are those of Linux or those of Windows, which test has.
check: vet lint
	for module in . tools/softroce tools/idealcard cmd/ringnet metrics grpcnet; do \
		(cd $$module && CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) vet ./...) || exit 1; done

vet:
	@files=$$($$($(GO) env GOROOT)/bin/gofmt -l .) || exit 1; test -z "$$files" || { echo "not formatted: $$files"; exit 1; }
	$(GO) vet ./...
	for module in $(MODULES); do (cd $$module && $(GO) vet ./...) || exit 1; done

GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# .golangci.yml says what is looked for; staticcheck's checks are among it.
lint:
	for module in . $(MODULES); do (cd $$module && $(GO) run $(GOLANGCI_LINT) run ./...) || exit 1; done

# Vulnerabilities that are known of what is called here, in other modules and in Go's own
# packages, by the database at VULNDB, which may be a file:// copy.
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
VULNDB ?= https://vuln.go.dev
vuln:
	@$(GO) run $(GOVULNCHECK) -db $(VULNDB) -version | grep 'DB updated' || \
		{ echo "make vuln: nothing has been checked: the database at $(VULNDB) cannot be read; VULNDB=file:///… names a copy" >&2; exit 1; }
	@for module in . $(MODULES); do echo "$$module"; (cd $$module && $(GO) run $(GOVULNCHECK) -db $(VULNDB) ./...) || exit 1; done

# What has changed in the exported API since the last release.
apidiff:
	GO=$(GO) tools/apidiff.sh

# Tags VERSION=v0.1.0 of what is committed, when everything has passed, and pushes nothing.
release:
	cd tools/release && $(TEST) ./... && $(GO) build -o ../../bin/ .
	bin/release -check $(VERSION)
	$(MAKE) check vuln apidiff
	rm -rf bin/clone && git clone --quiet . bin/clone && $(MAKE) -C bin/clone test
	bin/release $(VERSION)

# For the hand, in about two minutes: what says at once that a change is wrong.
test-quick:
	$(GO) vet ./...
	$(TEST) -short ./...
	for module in cmd/ringnet metrics grpcnet; do (cd $$module && $(GO) vet ./... && $(TEST) -short ./...) || exit 1; done

# The race detector leaves no memory for the explorations of package credit, and no time for those of
# packages machine and link. Half of the time the tests of a package wait: four packages go at once, and first the
# one that takes longest.
unit:
	$(TEST) -race -shuffle=on -p 4 ./internal/link ./...
	$(TEST) ./credit ./internal/machine ./internal/link

# Builds without cgo and for systems without RDMA have stubs that say so. The
# shim of rdma-core is compiled for the other processor that RDMA devices are found
# beside: nothing of it may depend on the processor. What counts positions and maps
# memory is tested where ints and addresses have 32 bits, if the system runs programs of 386, as most
# of amd64 do.
NARROWLY := CGO_ENABLED=0 GOOS=linux GOARCH=386 $(GO)
NARROW := ./credit ./ring ./rconn ./internal/wire ./internal/link ./internal/mapping ./internal/budget ./internal/fabric/shm
cross:
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(TEST) -skip '^TestAuto|Asker|^TestAnotherUser' . # which wait long, and of which cgo is no part
	CGO_ENABLED=0 GOOS=linux GOARCH=386 $(GO) vet ./...
	@if $(NARROWLY) test -run '^$$' ./ring >/dev/null 2>&1; then \
		echo $(NARROWLY) test -short -p 4 $(NARROW); $(NARROWLY) test -timeout 30m -short -p 4 $(NARROW); \
	else echo "this system runs no programs of 386: no test has been run as one"; fi
	CGO_ENABLED=1 GOOS=linux GOARCH=arm64 CC=$(CROSS_CC) $(GO) vet ./internal/rdmacore ./internal/fabric/verbs
	cd rdmaudp && CGO_ENABLED=0 $(GO) vet ./... && CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) vet ./...
	cd rdmaudp && CGO_ENABLED=1 GOOS=linux GOARCH=arm64 CC=$(CROSS_CC) $(GO) vet ./internal/ud
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) vet ./...
	cd cmd/ringnet && CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) vet ./...
	cd metrics && CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) vet ./...

# The command, what others wrote for package net, the examples, and the benchmarks
# in small. (TestManners is among test-card.)
programs:
	cd cmd/ringnet && RINGNET_REQUIRE_PROGRAMS=1 $(TEST) -race -count=1 -parallel 8 ./...
	cd cmd/ringnet && $(TEST) -count=1 -run TenThousand .
	cd metrics && $(TEST) -race -count=1 ./...
	cd rdmaudp && $(TEST) -race -count=1 ./...
	cd grpcnet && $(TEST) -count=1 ./... # soak has the race detector for it, and for interop
	cd tools/softroce && $(TEST) -race -count=1 ./...
	cd tools/idealcard && $(TEST) -count=1 -parallel 4 -skip '^TestManners$$' ./...
	cd interop && RINGNET_REQUIRE_PROGRAMS=1 $(TEST) -count=1 ./...
	cd examples && RINGNET_REQUIRE_PROGRAMS=1 $(TEST) -count=1 ./...
	cd internal/perf && $(TEST) -race -count=1 ./...
	cd benchmarks && $(TEST) -count=1 -parallel 4 ./...

# The suites on a card of ideal speed, emulated in this host's own memory, for what an emulated
# machine is too slow to show. What it cannot run is left out by name: see CARD_LACKS.
#
# It has no files in /sys (of metrics TestDevicesOverRDMA; TestInfoOverRDMA), no limit of locked memory
# (TestLockedMemoryIsUsedUp, TestLinksPinWhatTheyHaveRegistered), no
# second device (TestDatagramsDeviceRemoved; TestPortDown and TestDeviceRemoved take
# the only one away, and run by themselves), and all addresses of this host are
# its own, so none has no device (TestAddressWithoutRDMA,
# TestGroupsThatCannotBeJoined) or has just been added (TestDatagramsNoticeOfASecondAddress), and none
# is link-local at an interface of its own (TestIPv6WithAZone). There is no kernel to swap memory out
# (TestConnectionsBeginInMemoryThatIsSwappedOut). It is no library of the system, with
# devices of the kernel (TestNoLibrary, TestNoPermission, TestUnprivilegedUser,
# TestDoctorOverRDMA, TestContainersOverRDMA). Tests of several hosts skip themselves.
CARD_LACKS = ^TestDevicesOverRDMA|^TestInfoOverRDMA|^TestLockedMemoryIsUsedUp|^TestLinksPinWhatTheyHaveRegistered|^TestPortDown|DeviceRemoved$$|^TestGroupsThatCannotBeJoined|^TestDatagramsNoticeOfASecondAddress|^TestAddressWithoutRDMA|^TestIPv6WithAZone|^TestConnectionsBeginInMemoryThatIsSwappedOut|^TestNoLibrary|^TestNoPermission|^TestUnprivilegedUser|^TestDoctorOverRDMA|^TestContainersOverRDMA
test-card: $(CARD) bin/cpeer
	$(TEST_RDMA) -race $(ON_CARD) $(SUITE) -skip '$(CARD_LACKS)'
	$(TEST_RDMA) -race $(ON_CARD) -skip '$(CARD_LACKS)|/^shm$$' ./internal/testing/integration
	cd rdmaudp && $(TEST_RDMA) -race $(ON_CARD) -skip '$(CARD_LACKS)' . ./internal/ud ./examples/feed
	cd rdmaudp && $(TEST_RDMA) $(ON_INFINIBAND) -run InfiniBand .
	RINGNET_REMOVE_DEVICE=1 $(TEST_RDMA) -race $(ON_CARD) -run '^Test(DeviceRemoved|PortDown)$$' ./internal/testing/integration
	$(TEST_RDMA) -race $(ON_CARD) -run '^TestConfigReachesRDMA$$' ./internal/transport
	$(TEST_RDMA) -race $(RNR_ON_CARD) -skip '^TestABI|$(CARD_LACKS)' ./internal/rdmacore ./internal/fabric/verbs
	$(TEST_RDMA) $(ON_INFINIBAND) $(SUITE) -skip '$(CARD_LACKS)'
	$(TEST_RDMA) $(ON_INFINIBAND) -skip '$(CARD_LACKS)|/^shm$$' ./internal/testing/integration
	$(TEST_RDMA) $(RNR_ON_INFINIBAND) -skip '^TestABI|$(CARD_LACKS)' ./internal/rdmacore ./internal/fabric/verbs
	cd interop && RINGNET_REQUIRE_PROGRAMS=1 $(TEST_RDMA) $(ON_CARD) -run '/^rdma$$' .
	cd metrics && $(TEST_RDMA) $(ON_CARD) -skip '$(CARD_LACKS)' ./...
	cd grpcnet && $(TEST_RDMA) $(ON_CARD) -run '/^rdma$$' .
	cd cmd/ringnet && RINGNET_REQUIRE_PROGRAMS=1 $(TEST_RDMA) $(ON_CARD) -run '(ProxyPairMoves|OverRDMA)/^rdma$$' -skip '$(CARD_LACKS)' .
	cd cmd/ringnet && $(TEST_RDMA) $(ON_INFINIBAND) -run '^TestDoctorSendsMessagesOverRDMA$$' .
	$(MAKE) hours-card HOURS=0.004 SEED=1 RACE=-race
	$(MAKE) soak-ports DURATION=8s SEED=1 RACE=-race
	$(MAKE) test-manners
	$(MAKE) demo-card

# The suites once more on a real kernel's RDMA stack, and between two machines on one cable. Under
# the race detector they run natively: see test-card.
test-rdma: rdma-suites
	$(SOFTROCE) -timeout 30m -- tools/rdmasuites.sh root rconn integration rdmacore verbs rdmaudp interop metrics command
	RINGNET_REQUIRE_RDMA=1 RINGNET_REMOVE_DEVICE=1 $(SOFTROCE) -guest -timeout 5m -- \
		bin/hwcounters bin/rdma/integration.test -test.timeout 120s -test.run 'TestDeviceRemoved|TestPortDown'
	RINGNET_REQUIRE_RDMA=1 RINGNET_REMOVE_DEVICE=1 $(SOFTROCE) -guest -timeout 5m -- \
		bin/rdma/rdmaudp.test -test.timeout 120s -test.run TestDatagramsDeviceRemoved
	$(SOFTROCE) -nodes 2 -timeout 10m -- bin/hwcounters bin/rdma/integration.test -test.run TestNodes
	$(SOFTROCE) -nodes 2 -timeout 5m -- bin/rdma/rdmaudp.test -test.run TestDatagramsBetweenNodes
	$(SOFTROCE) -nodes 2 -cables 2 -timeout 10m -- bin/hwcounters bin/rdma/integration.test \
		-test.run 'TestMatrix/^(cable_1_out_for_5_s|both_cables_out_for_5_s|the_listener_killed|the_listener.s_node_without_power_for_a_while)$$'

# A second implementation of docs/protocol.md.
bin/cpeer: $(wildcard interop/cpeer/*) | packages
	cc -std=gnu17 -O2 -Wall -Wextra -Werror -o $@ interop/cpeer/*.c -libverbs -lrdmacm -lcrypto

# What tools/rdmasuites.sh runs.
rdma-suites: $(SOFTROCE) bin/hwcounters bin/cpeer
	$(GO) test -c -o bin/rdma/root.test .
	$(GO) test -c -o bin/rdma/ ./rconn ./internal/testing/integration ./internal/rdmacore ./internal/fabric/verbs
	cd interop && $(GO) test -c -o ../bin/rdma/interop.test .
	cd metrics && $(GO) test -c -o ../bin/rdma/metrics.test .
	cd rdmaudp && $(GO) test -c -o ../bin/rdma/ . ./internal/ud ./examples/feed
	cd cmd/ringnet && $(GO) test -c -o ../../bin/rdma/command.test .

# Sixteen connections of all kinds, and sixteen of TCP beside them, through each of
# many faults of cables, cards, nodes and peers; bin/matrix/matrix.md is the table.
test-matrix: $(SOFTROCE) bin/hwcounters
	mkdir -p bin/matrix
	$(GO) test -c -o bin/rdma/ ./internal/testing/integration
	$(SOFTROCE) -nodes 2 -cables 2 -scratch bin/matrix -timeout 30m -- \
		bin/hwcounters bin/rdma/integration.test -test.v -test.timeout 30m -test.run TestMatrix

# The same on ideal cards of two hosts, natively: the rows of cables, ports, devices and processes
# that it takes a few seconds to see. A cable that is out for good takes TCP minutes.
ON_HOSTS = $(CARD) -fabric tools/idealcard/fabrics/two-hosts.json --
CARD_MATRIX = none|cable_1_out_for_[15]_s|both_cables_out_for_5_s|the_dialer.s_.*|the_listener.s_device_1_removed|the_listener_.*
test-matrix-card: $(CARD)
	$(GO) test -c -o bin/rdma/ ./internal/testing/integration
	$(ON_HOSTS) bin/rdma/integration.test -test.v -test.timeout 5m -test.run 'TestMatrix/^($(CARD_MATRIX))$$'

# ringnet on cards of each manner that docs/verbs.md lists.
test-manners:
	cd tools/idealcard && $(TEST) -count=1 -parallel 4 -run '^TestManners$$' .

# The tests of the root module as four users, beside programs of each. It needs root.
test-users:
	GO=$(GO) tools/testusers.sh

# Everything as often as it should be repeated once in a while.
soak: export RINGNET_SOAK = 1
soak: rdma-suites
	RINGNET_SOAK= $(MAKE) test-users
	RINGNET_SOAK= $(MAKE) soak-kernels
	cd tools/release && $(TEST) -count=1 ./... # which compiles the command for each system
	cd benchmarks && $(TEST) -count=1 ./cardreport
	GO=$(GO) tools/fuzz.sh 1m
	$(GO) test -count=1 -timeout 60m ./credit ./rconn ./internal/fabric/...
	cd tools/idealcard && $(GO) test -count=10 -timeout 60m -run '^TestManners$$' .
	cd tools/softroce && SOFTROCE_TEST_GUESTS=1 $(GO) test -count=1 -timeout 30m .
	$(TEST_RDMA) -run TestNettest/verbs -count=20 $(COUNTING) ./rconn
	$(SOFTROCE) -timeout 2h -- tools/rdmasuites.sh root rconn integration rdmacore verbs rdmaudp feed
	cd interop && RINGNET_REQUIRE_PROGRAMS=1 $(GO) test -race -tags etcd -count=3 ./...
	cd grpcnet && $(TEST) -race -count=3 ./...
	tools/grpctests.sh tcp && tools/grpctests.sh auto
	cd interop && RINGNET_REQUIRE_PROGRAMS=1 $(TEST_RDMA) $(COUNTING) -tags etcd -count=3 -run '/^rdma$$' .

# The suites on the kernel of each of Debian's suites that can be had and that Debian keeps up, or on those that
# KERNELS names; docs/verbs.md has what differs.
KERNELS ?=
soak-kernels: rdma-suites
	for kernel in $(or $(KERNELS),$$($(SOFTROCE) -kernel list | awk '!/^oldold|-security / && !seen[$$2]++ { print $$1 }')); do \
		$(SOFTROCE) -kernel $$kernel -timeout 1h -- \
			sh -c 'uname -r; exec tools/rdmasuites.sh root rconn integration rdmacore verbs rdmaudp' || exit 1; done

# Random traffic under random faults between two machines on one cable, for HOURS
# hours, of which there may be a fraction. SEED has it draw what another run has drawn.
HOURS ?= 1
minutes = $(shell awk 'BEGIN { print int(60 * $(HOURS)) + $(1) }')m
soak-hours: $(SOFTROCE) bin/hwcounters
	$(GO) test -c -o bin/rdma/ ./internal/testing/integration
	RINGNET_REQUIRE_RDMA=1 RINGNET_SOAK_HOURS=$(HOURS) RINGNET_SOAK_SEED=$(SEED) \
		$(SOFTROCE) -nodes 2 -timeout $(call minutes,15) -- bin/hwcounters bin/rdma/integration.test \
		-test.timeout $(call minutes,10) -test.v -test.run TestHours

# The same natively, between two hosts of ideal cards: millions of Reads and Writes an hour, while work
# requests, cables and ports fail by themselves, too. No card is removed: what the libraries have of
# such a card stays, and TestHours counts that. SEED is that of all that is drawn. Then a thousand
# processes, ten thousand connections and 64 links.
CARD_FAULTS ?= qp=1e-3,cable=3e-9,port=2e-5,out=50ms
soak-card: hours-card
	RINGNET_SOAK=1 RINGNET_REQUIRE_RDMA=1 $(CARD) -- bin/integration.test -test.timeout 30m -test.v -test.run '^TestScale$$'

hours-card: $(CARD)
	$(GO) test $(RACE) -c -o bin/ ./internal/testing/integration
	RINGNET_REQUIRE_RDMA=1 RINGNET_SOAK_HOURS=$(HOURS) $(CARD) $(if $(SEED),-seed $(SEED)) -faults $(CARD_FAULTS) \
		-fabric tools/idealcard/fabrics/two-hosts.json -- \
		bin/integration.test -test.timeout $(call minutes,10) -test.v -test.run TestHours

# Two processes that dial a third, between the same hosts, for DURATION, while ports, cables and paths fail around Dial
# and Close: each byte that Write and Close have taken must be read, and the end behind it.
DURATION ?= 1h
PORT_FAULTS ?= port=1e-4,cable=1e-7,out=20ms
soak-ports: $(CARD)
	$(GO) test $(RACE) -c -o bin/ports/ ./internal/testing/integration
	RINGNET_REQUIRE_RDMA=1 RINGNET_SOAK_PORTS=$(DURATION) $(CARD) $(if $(SEED),-seed $(SEED)) -faults $(PORT_FAULTS) \
		-fabric tools/idealcard/fabrics/two-hosts.json -- bin/ports/integration.test -test.timeout 0 -test.v -test.run '^TestPorts$$'

# STEPS random steps of two processes whose links lose their queue pairs all the time,
# in virtual time: TestExplore says what it wants. SEED is that of the first world.
STEPS ?= 10000000
explore:
	RINGNET_EXPLORE=$(STEPS) RINGNET_EXPLORE_SEED=$(SEED) GODEBUG=asyncpreemptoff=1 \
		$(GO) test -count=1 -timeout 0 -run '^TestExplore$$' -v ./internal/link
	RINGNET_EXPLORE_LOSSES=1 RINGNET_EXPLORE_SEED=$(SEED) RINGNET_EXPLORE_WORLDS=$$(($(STEPS) / 200 + 1)) \
		$(GO) test -count=1 -timeout 0 -run '^TestExplore' -v ./internal/machine

# Edits of ringnet that each leave out a step, and whether a test fails then.
mutants:
	RINGNET_MUTANTS=1 $(TEST) -count=1 -run '^TestMutants$$' -v ./internal/machine ./internal/link
	cd tools/idealcard && RINGNET_MUTANTS=1 $(TEST) -count=1 -run '^TestMutants$$' -v .

# Every fuzz target of every module, each for FUZZTIME.
FUZZTIME ?= 30s
fuzz:
	GO=$(GO) tools/fuzz.sh $(FUZZTIME)

# ringnet beside TCP and Unix sockets on this host, in five minutes: a table,
# and results.json and charts in bin/results. BENCH has more flags; with
# BENCH='-beside FILE' another version is measured in the same rounds.
bench: bin/benchmarks
	bin/benchmarks -idle 1000,10000 -out bin/results $(BENCH)

# ringnet beside raw verbs, rsockets and TCP on an RDMA device: the same,
# in bin/results-rdma. On the emulated machine it takes a quarter of an hour.
bench-rdma: bin/benchmarks $(SOFTROCE)
	mkdir -p bin/results-rdma
	$(SOFTROCE) -scratch bin/results-rdma -timeout 90m -- \
		bin/benchmarks -rdma -rounds 5 -slice 300ms -idle 1000 -out bin/results-rdma $(BENCH)

# shm with and without polling beside TCP and Unix sockets on a host where 0, 2 and 8 other
# processes compute all the time, and beside a pipe in memory in one process: tables for
# docs/performance.md, in a quarter of an hour.
WAITING = shm,shm-parking,tcp,unix
BUSY = bin/benchmarks -busy 0,2,8 -peers $(WAITING) -slice 250ms -markdown
bench-busy: bin/benchmarks
	$(BUSY) -workloads ping-pong -sizes 1024 -conns 1,16,64,256 -out bin/results-busy/ping-pong $(BENCH)
	$(BUSY) -workloads stream -sizes 65536 -conns 1,16,64 -out bin/results-busy/stream $(BENCH)
	$(BUSY) -workloads connect,http,grpc -out bin/results-busy $(BENCH)
	bin/benchmarks -one-process -peers pipe,$(WAITING) -workloads http,grpc -slice 250ms -markdown -out bin/results-one-process $(BENCH)

# One table of the tail: rates, p99 and p99.9 of shm beside the better of TCP and Unix sockets, while 0, 2
# and 8 other processes compute all the time, in five minutes. BENCH='-workloads http -busy 0 -rounds 3' is
# a short run; with BENCH='-beside FILE' another version of shm has a row below each.
bench-tail: bin/benchmarks
	bin/benchmarks -tail -markdown -out bin/results-tail $(BENCH)

# ringnet beside a program in C, on a card of ideal speed, and beside TCP, in four minutes: tables,
# and results.json and charts in bin/results-card. It wants two processors that do nothing
# else: each end polls one.
bench-card: bin/benchmarks $(CARD)
	bin/benchmarks -card $(CARD) -out bin/results-card $(BENCH)

# All that we would like to know of an RDMA device: bin/results-report/card-report.md, with charts,
# for an issue. It takes ten minutes. CARD_REPORT has flags: -listen and "-connect ADDRESS" for two
# hosts, and more that "go doc" and -help in benchmarks/cardreport tell of.
card-report: card-report-programs
	bin/card-report/benchmarks card-report $(CARD_REPORT)

# The two programs in C want libibverbs-dev. Without it their parts of the report say so.
CC_REPORT = $(CC) -Wall -Wextra -pthread -Itools/idealcard/card
card-report-programs:
	cd benchmarks && CGO_ENABLED=1 $(GO) build -o ../bin/card-report/ .
	cd cmd/ringnet && CGO_ENABLED=1 $(GO) build -o ../../bin/card-report/ .
	CGO_ENABLED=1 $(GO) test -c -o bin/card-report/ . ./rconn
	-$(CC_REPORT) -O3 -o bin/card-report/raw tools/idealcard/card/main_raw.c -libverbs
	-$(CC_REPORT) -O2 -o bin/card-report/manners benchmarks/cardreport/manners/manners.c -libverbs -ldl

# Two proxies with shm between them, beside two of socat's with TCP, and beside
# none: docs/command.md.
bench-proxy:
	cd cmd/ringnet && $(GO) test -run '^$$' -bench Pair -count 5 .
	cd cmd/ringnet && $(GO) test -run '^$$' -bench Programs -benchtime 1x -count 5 .

# The tables of docs/performance.md: links that nobody here owns, in virtual
# time.
bench-links:
	cd benchmarks && $(GO) test ./links -count=1 -v -args -tables

# Some of the figures of make bench, to be kept for the release VERSION, and with
# BENCH='-beside FILE' those of another version in the same rounds.
bench-json: bin/benchmarks
	@test -n "$(VERSION)" || { echo "make bench-json VERSION=v0.1.0" >&2; exit 1; }
	bin/benchmarks -peers shm,tcp -workloads ping-pong,stream,connect,http,grpc -sizes 64,65536 -conns 1,16 \
		-out bin/results-$(VERSION) $(BENCH)
	mkdir -p benchmarks/results
	cp bin/results-$(VERSION)/results.json benchmarks/results/$(VERSION).json

clean:
	rm -rf bin

bin/hwcounters: tools/hwcounters.sh
	mkdir -p bin
	cp $< $@

bin/benchmarks: FORCE
	cd benchmarks && CGO_ENABLED=1 $(GO) build -o ../bin/ .

# The same as of another version, for -beside.
bin/benchmarks-%:
	git worktree add --force --detach bin/of-$* $*
	cd bin/of-$*/benchmarks && CGO_ENABLED=1 $(GO) build -o $(CURDIR)/$@ .
	git worktree remove --force bin/of-$*

# What go build makes is rebuilt if go build says so.
.PHONY: FORCE
FORCE:

$(CARD): $(wildcard tools/idealcard/*.go tools/idealcard/card/*)
	$(MAKE) -C tools/idealcard/card OUT='$(CURDIR)/bin/card'
	cd tools/idealcard && $(GO) build -o ../../$@ .

$(SOFTROCE): $(wildcard tools/softroce/*)
	cd tools/softroce && $(GO) build -o ../../$@ .
