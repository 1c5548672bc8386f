// Softroce runs a command where there is an RDMA device.
//
//	softroce [flags] -- COMMAND ARG…
//	softroce -nodes 2 [flags] -- COMMAND0 ARG… -- COMMAND1 ARG…
//	go test -exec "softroce [flags] --" ./…
//
// "make bin/softroce" builds it.
//
// The command runs in the first of these places that can be had:
//
//  1. Right here, when the host has an RDMA device with an ACTIVE port whose
//     network interface has an IPv4 address.
//  2. In a QEMU guest that runs a stock Debian or Ubuntu kernel with a soft-RoCE
//     device.
//
// Flag -guest goes straight to the second, and so do -kernel and -nodes 2.
//
// # The guest
//
// The guest sees all files of the host under their own paths. What it writes
// to them it keeps in its memory, and it is gone when the guest is; what it
// writes below the folder named by -scratch is on the host at once. The
// command starts in the working directory of the tool, as root, without limit
// on locked memory, with an empty standard input. Its standard output and
// standard error are those of the tool, byte for byte, as they come.
//
// The kernel is that of the host's distribution, or one of Debian's by name, if
// apt's sources of the host have an archive of Debian's:
//
//	-kernel trixie                  the newest of a suite; also stable-backports,
//	                                oldstable-security, testing, unstable …
//	-kernel 6.12.48+deb13-amd64     this release, as uname -r has it
//	-kernel list                    no guest: prints which suites can be had,
//	                                and the versions of their kernels
//
// The lists of packages of these suites are the tool's own; apt's sources and
// lists of the host stay as they are. The default of -kernel is the environment
// variable SOFTROCE_KERNEL.
//
// QEMU uses KVM where the user may open /dev/kvm, and emulates elsewhere, which
// is ten times as slow or more. On some machines, which are themselves virtual,
// QEMU does not start with KVM, or a guest's kernel hangs in its first lines: its
// console shows nothing new for 10 seconds. Then the tool says so and starts all
// guests of this run again, emulated. Until the host boots again, other runs
// emulate at once. Flag -accel, or the environment variable SOFTROCE_ACCEL, says
// which of the two to use, "kvm" or "tcg" (emulation), whatever may happen.
//
// # What the command is told
//
// The command has the environment of the tool, and in it:
//
//	SOFTROCE_DEVICE      the RDMA device, for example rxe0
//	SOFTROCE_NETDEV      the network interface it is on
//	SOFTROCE_ADDR        the IPv4 address of that interface
//	SOFTROCE_ADDR6       its IPv6 address (unique local or global), if any
//	SOFTROCE_OTHER_ADDR  the IPv4 address of an interface without RDMA, if any
//	SOFTROCE_NODE        the number of this node: 0, or 1 with -nodes 2
//	SOFTROCE_PEER        with -nodes 2, the IPv4 address of the other node
//	SOFTROCE_PEER6       with -nodes 2, the IPv6 address of the other node
//	SOFTROCE_CONTROL     with -nodes 2, the path of the control port
//	SOFTROCE_SCRATCH     the folder named by -scratch, if any
//
// With -cables 2 there are SOFTROCE_SECOND_DEVICE, SOFTROCE_SECOND_NETDEV,
// SOFTROCE_SECOND_ADDR, SOFTROCE_SECOND_ADDR6, SOFTROCE_SECOND_PEER and
// SOFTROCE_SECOND_PEER6 for what is at the second cable.
//
// # Two nodes
//
// With -nodes 2 there are two guests on one emulated cable, and the command
// runs on both of them at once, or, when there is a second --, one command on
// each. With -cables 2 there is a second cable, which has at each end an interface
// and an RDMA device of its own; it is a network of its own. Every line of output begins with the name of its node: "node0| " or
// "node1| ". A command may open SOFTROCE_CONTROL for reading and writing (one
// process of each node at a time), write one of these lines, and read the
// answer, which is "ok" or "error" and what was wrong:
//
//	cable down [CABLE]   both ends lose their carrier; CABLE is 0, or 1 with
//	                     -cables 2, and without it all cables are meant
//	cable up [CABLE]     and get it back
//	power off NODE       the guest of that node ends at once
//	power cycle NODE     the other node's guest does, and boots again with all
//	                     cables up; then it runs its command once more
//
// In a shell:
//
//	exec 3<>$SOFTROCE_CONTROL; echo cable down >&3; read answer <&3
//
// A guest lives on after its command has ended, until the other command has
// ended too.
//
// # Exit status
//
// The exit status is that of the command, or 128+N when signal N ended it; with
// two nodes the first of them that is not zero, where a node whose power was
// cut has none. 124 says that -timeout was over, 125 that the tool itself
// failed, 126 that the command could not be executed, 127 that it was not
// found. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command,
// which then has 5 seconds to end; the exit status is 128+N. No guest outlives
// the tool.
//
// # What it needs
//
// As root on Debian or Ubuntu the tool installs what is missing; otherwise it
// says what to install. Each kernel and its initial file system are made once
// and kept in the user's cache folder, under ringnet-softroce: a suite's newer
// kernel is had when the folder is removed.
package main
