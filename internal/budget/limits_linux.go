package budget

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// share is the part of this process's memory that its links may register: a quarter.
// Two processes in one control group, with a link between them, then register half of
// its memory at most, and the rest is for whatever else they do.
const share = 4

// systemLimits is what the system allows. Registered memory is limited to a share of
// this machine's memory, or of its control group's if that is less, and locked memory to
// RLIMIT_MEMLOCK. Where addresses are fewer than that memory has bytes, they count instead.
func systemLimits() Limits {
	return Limits{Registered: memory() / share, Locked: lockable()}
}

// memory is how many bytes this process and its control group may have.
var memory = sync.OnceValue(func() int {
	return min(machineMemory(), groupMemory("/proc/self/cgroup", "/sys/fs/cgroup"), clamp(addressSpace()))
})

func machineMemory() int {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return Unlimited
	}
	return clamp(uint64(info.Totalram) * uint64(info.Unit))
}

// groupMemory is the least limit of the control groups of this process and of all groups
// above them. In version 2 that is memory.max, or memory.high: above memory.high the
// kernel slows a process down while it takes memory back, and it cannot take back what
// links have registered. In version 1 it is memory.limit_in_bytes
// (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). A file that does not
// exist sets no limit: inside a container, the path of the own group may be that outside.
func groupMemory(groups, root string) int {
	text, _ := os.ReadFile(groups)
	least := Unlimited
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		// ID:CONTROLLERS:PATH; version 2 is 0 and has no controllers.
		field := strings.SplitN(lines.Text(), ":", 3)
		if len(field) < 3 {
			continue
		}
		var files []string
		switch {
		case field[0] == "0" && field[1] == "":
			files = []string{"memory.max", "memory.high"}
		case slices.Contains(strings.Split(field[1], ","), "memory"):
			files = []string{"memory.limit_in_bytes"}
		}
		mount := path.Join(root, field[1])
		for dir := path.Clean("/" + field[2]); ; dir = path.Dir(dir) {
			for _, file := range files {
				least = min(least, number(path.Join(mount, dir, file)))
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}

// number is the number in a file, or Unlimited if the file has "max" or does not exist.
func number(file string) int {
	text, _ := os.ReadFile(file)
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return Unlimited
	}
	return clamp(n)
}

func clamp(n uint64) int { return int(min(n, math.MaxInt)) }

// lockable is how many bytes this process may lock. A process that has CAP_IPC_LOCK in
// the first user namespace has no limit (ib_umem_get in drivers/infiniband/core/umem.c).
func lockable() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY || mayLock() {
		return Unlimited
	}
	return clamp(limit.Cur)
}

// mayLock reports whether this process has CAP_IPC_LOCK in the first user namespace.
var mayLock = sync.OnceValue(func() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil || data[0].Effective&(1<<unix.CAP_IPC_LOCK) == 0 {
		return false
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && firstUserNamespace(string(ids))
})

// firstUserNamespace reports whether /proc/self/uid_map is that of the first user
// namespace, which maps all 2^32-1 user IDs to themselves (user_namespaces(7)).
func firstUserNamespace(uidMap string) bool {
	return strings.Join(strings.Fields(uidMap), " ") == "0 0 4294967295"
}
