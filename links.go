package ringnet

// What programs are told of links and memory, and what they may say of them.

import (
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/rconn"
)

// LinkInfo describes a link of this process at one moment: [Links], a [Trace] and
// [rconn.Conn.Link] return one.
type LinkInfo = rconn.LinkInfo

// Path has the addresses of the two cards that a queue pair connects.
type Path = rconn.Path

// Links returns the links of this process that are up or are looking for another queue pair,
// in no particular order. There may be several to one address (see [Config].Links). Links that
// have ended are not among them; the memory of their connections counts in [Memory] until
// these are closed.
func Links() (all []LinkInfo) {
	for _, i := range link.List() {
		all = append(all, rconn.LinkInfoOf(i))
	}
	return all
}

// MemoryInfo has the memory, in bytes, that the links of this process have registered, and what they may register. Registered memory is pinned for a device, with the
// device's queues as far as their size is known (see [Config.PinnedMemory]), or shared
// with another process.
type MemoryInfo struct {
	// Used is what is registered now. Limit is what SetMemoryLimit has set, or its default.
	Used  int `metric:"memory_used_bytes" help:"Memory that links have registered."`
	Limit int `metric:"memory_limit_bytes" help:"Memory that links may register."`

	// Locked is the part of Used that is pinned for devices. LockedLimit is its limit,
	// RLIMIT_MEMLOCK, or math.MaxInt for a process that has CAP_IPC_LOCK.
	Locked      int `metric:"locked_memory_used_bytes" help:"Memory that links have locked (pinned) for RDMA devices."`
	LockedLimit int `metric:"locked_memory_limit_bytes" help:"Memory that links may lock (pin) for RDMA devices; infinite without a limit."`
}

// Memory returns how much memory the links of this process use. Rings grow until seven eighths of a limit are in use; the
// rest is for new links and connections. When a limit is reached, idle links end and idle rings
// shrink. A Dial that still finds no memory fails, with an error that has the figures; on
// "auto" it takes TCP instead.
func Memory() MemoryInfo {
	used, limits := budget.Process.State()
	return MemoryInfo{used.Registered, limits.Registered, used.Locked, limits.Locked}
}

// SetMemoryLimit sets how many bytes the links of this process may register.
// 0 or less means the default: a quarter of the machine's memory, or of what the control group
// allows (memory.max, memory.high) if that is less. What is registered already stays. It may
// be called at any time, by several goroutines at once.
func SetMemoryLimit(bytes int) { budget.Process.SetLimit(max(bytes, 0)) }

// CloseIdleLinks ends the links of this process, dialed or accepted, that carry no connection
// and are only kept for the next one (see [Config].LinkIdle). A link carries a connection until
// its Close has returned; where the peer's end of it is still to come, the link ends with that, and
// one that is looking for another queue pair when it has found one or none.
func CloseIdleLinks() { link.CloseIdle() }
