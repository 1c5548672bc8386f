// Package machine is the protocol of a link without I/O: what one end of a link decides.
//
// A [Link] is told what has happened (a completion, a call on one of its streams, an alarm that is due, a
// queue pair that is lost, or another that is to take its place), changes, and says what is to be done: which
// work requests to post, how many receives, which calls may have become ready, what memory is wanted, and when to
// come back. It does nothing by itself: no lock, goroutine, channel or timer is in this package, no system call and no
// device. It is given a clock. So each of its histories can be played, and explore_test.go plays all short ones.
//
// Package link drives it: see unlock there, which carries out what a Link wants.
//
// The ledgers of package credit say who may send what. A stream's bytes lie in rings that the peer writes to
// (inbox.go), in memory that package ring cuts into them. What a Write has accepted waits in the staging memory
// (staging.go) for its turn (send.go, records in control.go), stays known until the peer has it
// (retransmit.go), and is sent again over another queue pair (resume.go). How streams begin and end is in open.go and
// close.go, how links do in life.go and idle.go. What the peer sends comes in through receive.go.
//
// A Link and its Streams belong to one caller at a time.
package machine
