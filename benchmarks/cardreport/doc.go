// Package cardreport runs on an RDMA device all that ringnet's authors would like to know of it, and writes
// one report in Markdown, with charts and the figures beside it. "make card-report" builds what it
// needs, and runs it with the flags of CARD_REPORT:
//
//	make card-report                                  one host: both ends are at its device
//	make card-report CARD_REPORT=-listen              two hosts: on the one,
//	make card-report CARD_REPORT="-connect ADDRESS"   and on the other, with the address of the first one's device
//
// One host with two ports on one cable is two hosts if one of the ports is in a network namespace of
// its own, and each command runs in one ("rdma system set netns exclusive", "rdma dev set DEVICE netns
// NAMESPACE", "ip netns exec NAMESPACE make …"). Else packets between the ports do not leave the device.
//
// The host that listens tries its own device, too, once the other one has done all else. It writes that half
// of the report, which the other's report also has, and ends.
//
// A part that cannot run says why, and the others run. Cardreport fails only if it cannot write the
// report. It sends nothing, and nothing in the report says where the host is or whose: scrub.go leaves out
// names of hosts and users, addresses, GUIDs, and folders. What is written is printed in the end.
//
// The way through the files: main.go has the flags and the order of the parts, server.go is the
// other end, device.go, host.go, facts.go, counters.go and kernellog.go ask what is there, suites.go, speed.go,
// manners.go (with manners/manners.c) and failover.go try it, report.go writes.
//
// A server that listens starts processes for its client, and knows no password: let nobody else
// reach it.
package cardreport
