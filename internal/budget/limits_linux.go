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

// share is the part of the memory that this process may have which its links may
// register: a quarter. Both ends of a link within one control group then have a
// half of it between them, and whatever else the process does has the rest.
const share = 4

// systemLimits is what the system allows: a share of the memory of this machine,
// or of the control group that this process is in if that is less, and of locked
// memory RLIMIT_MEMLOCK.
func systemLimits() Limits {
	return Limits{Registered: memory() / share, Locked: lockable()}
}

// memory is how much this process and its control group may have.
var memory = sync.OnceValue(func() int { return min(machineMemory(), groupMemory("/proc/self/cgroup", "/sys/fs/cgroup")) })

func machineMemory() int {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return Unlimited
	}
	return clamp(uint64(info.Totalram) * uint64(info.Unit))
}

// groupMemory is the least that the control groups of this process, and those
// that these are in, allow it: memory.max of version 2, or memory.high, beyond which
// the kernel slows a process down to take back what it can, which what links have
// registered is not; and memory.limit_in_bytes of version 1
// (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). What is not
// there sets no limit: a container may see its own group as the root and still be
// told where that is outside.
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

// number is what a file says, or Unlimited if it says "max" or is not there.
func number(file string) int {
	text, _ := os.ReadFile(file)
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return Unlimited
	}
	return clamp(n)
}

func clamp(n uint64) int { return int(min(n, math.MaxInt)) }

// lockable is how much this process may lock. Who has CAP_IPC_LOCK, in the first
// user namespace, is not limited (ib_umem_get in drivers/infiniband/core/umem.c).
func lockable() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY || mayLock() {
		return Unlimited
	}
	return clamp(limit.Cur)
}

var mayLock = sync.OnceValue(func() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil || data[0].Effective&(1<<unix.CAP_IPC_LOCK) == 0 {
		return false
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && firstUserNamespace(string(ids))
})

// firstUserNamespace says whether user IDs mean what they mean to the kernel, all
// 2^32-1 of them (user_namespaces(7)).
func firstUserNamespace(uidMap string) bool {
	return strings.Join(strings.Fields(uidMap), " ") == "0 0 4294967295"
}
