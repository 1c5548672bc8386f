package pollers

import "golang.org/x/sys/unix"

// GiveWay gives this thread's processor to another thread that waits for it, of any process: who polls without end
// would be run to the end of its slice, some milliseconds, before who is to answer.
func GiveWay() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
