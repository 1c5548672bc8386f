package budget

import (
	"bytes"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// addresses32 are those that Linux leaves to a process of 32 bits, in bytes: 3 GiB, or 4 under
// a kernel of 64 bits.
const addresses32 = 3 << 30

// addressSpace is how many bytes this process may map.
func addressSpace() uint64 {
	space := uint64(math.MaxUint64)
	if strconv.IntSize == 32 {
		space = addresses32
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) == nil {
		space = min(space, limit.Cur) // RLIM_INFINITY is the largest
	}
	return space
}

// Addresses are how many bytes this process may map, and has mapped.
type Addresses struct{ space, mapped uint64 }

// AddressesNow asks the system.
func AddressesNow() Addresses {
	space := addressSpace()
	if space == math.MaxUint64 {
		return Addresses{space: space}
	}
	return Addresses{space, mapped()}
}

// Check returns a *[ShortageError] if n bytes are not to be mapped where ringnet has
// mapped used bytes. As many addresses as ringnet takes remain for the rest of the process: Go
// ends one whose heap finds none.
func (a Addresses) Check(n, used int) error {
	if a.space == math.MaxUint64 {
		return nil
	}
	limit := addressLimit(a.space, a.mapped, used)
	if n > limit-used {
		return &ShortageError{Wanted: n, Used: used, Limit: limit, Of: AddressSpace}
	}
	return nil
}

// addressLimit is how many bytes ringnet may map, where this process has mapped so many in all:
// half of what the others leave.
func addressLimit(space, mapped uint64, used int) int {
	others := mapped - min(uint64(used), mapped)
	return clamp((space - min(others, space)) / 2)
}

// mapped is how many bytes this process has mapped (proc_pid_statm(5)), or 0 where it cannot
// know.
func mapped() uint64 {
	text, _ := os.ReadFile("/proc/self/statm")
	pages, _, _ := bytes.Cut(text, []byte(" "))
	n, _ := strconv.ParseUint(string(pages), 10, 64)
	return n * uint64(os.Getpagesize())
}
