// Package budget limits how much memory the links of a process register, and its datagrams:
// pinned for a device, or shared with another process. They reserve memory here before they
// register it, and release it here after they have freed it.
package budget

import (
	"fmt"
	"math"
	"sync"
	"syscall"
)

// Budget counts how much memory is registered, and how much of that is locked: pinned,
// and counted by the kernel against RLIMIT_MEMLOCK. Its methods may be called at once.
type Budget struct {
	limits func() Limits

	mu    sync.Mutex // guards what follows
	set   int        // bytes, by SetLimit; 0: those of known
	known Limits     // what limits has returned last
	used  Used
}

// Limits are numbers of bytes: of registered memory, and of those of locked memory.
type Limits struct {
	Registered int
	Locked     int
}

// Used is how much is in use.
type Used struct {
	Limits
}

// Unlimited is a limit that nothing reaches.
const Unlimited = math.MaxInt

// New returns a budget within limits, of which Refresh asks.
func New(limits func() Limits) *Budget {
	return &Budget{limits: limits, known: Limits{Unlimited, Unlimited}}
}

// Process is the budget of this process, by default within what the system allows.
var Process = New(systemLimits)

// SetLimit sets how many bytes may be registered; 0 stands for what the system allows.
// Memory that is registered already stays registered.
func (b *Budget) SetLimit(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set = n
}

// Refresh asks the system what the limits are. It is called, with no lock held, before something
// begins that reserves memory. Reserve asks nobody: it is called with the lock of a link held.
func (b *Budget) Refresh() {
	limits := b.limits()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = limits
}

// State returns how much is in use, and the limits.
func (b *Budget) State() (used Used, limits Limits) {
	b.Refresh()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.limitsNow()
}

// limitsNow returns the limits. The caller holds mu.
func (b *Budget) limitsNow() Limits {
	l := b.known
	if b.set > 0 {
		l.Registered = b.set
	}
	return l
}

// keptFromGrowth is the part of a limit, an eighth, that growing rings leave free: for new
// links and streams, and for the smaller rings that others change to.
const keptFromGrowth = 8

// MayGrow reports whether something may become n bytes larger where used bytes of limit
// are in use.
func MayGrow(used, n, limit int) bool { return n <= limit-limit/keptFromGrowth-used }

// MayGrow reports whether something that works without them may take n bytes more, locked or not.
// They are not reserved.
func (b *Budget) MayGrow(n int, locked bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	limits := b.limitsNow()
	return MayGrow(b.used.Registered, n, limits.Registered) && (!locked || MayGrow(b.used.Locked, n, limits.Locked))
}

// Account is what one link, or one receive queue for datagrams, has reserved of a budget. Its
// methods must not be called at once.
type Account struct {
	Budget *Budget
	Locked bool // what is registered is locked
	bytes  int
}

// Bytes is how much is reserved.
func (a *Account) Bytes() int { return a.bytes }

// Reserve reserves n bytes, or returns a *[ShortageError].
func (a *Account) Reserve(n int) error {
	return a.reserve(n, func(used, limit int) bool { return n <= limit-used })
}

// ReserveToGrow reserves n bytes for something that works without them, too: it fails
// earlier, see MayGrow.
func (a *Account) ReserveToGrow(n int) error {
	return a.reserve(n, func(used, limit int) bool { return MayGrow(used, n, limit) })
}

func (a *Account) reserve(n int, fits func(used, limit int) bool) error {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	limits := b.limitsNow()
	switch {
	case !fits(b.used.Registered, limits.Registered):
		return &ShortageError{Wanted: n, Used: b.used.Registered, Limit: limits.Registered}
	case a.Locked && !fits(b.used.Locked, limits.Locked):
		return &ShortageError{Wanted: n, Used: b.used.Locked, Limit: limits.Locked, Of: LockedMemory}
	}
	a.add(n)
	return nil
}

// Release gives back n of the bytes reserved.
func (a *Account) Release(n int) {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.add(-n)
}

// add adds n bytes, which may be negative. The caller holds Budget.mu.
func (a *Account) add(n int) {
	a.bytes += n
	a.Budget.used.Registered += n
	if a.Locked {
		a.Budget.used.Locked += n
	}
}

// Limited is a kind of memory that has a limit.
type Limited int

const (
	RegisteredMemory Limited = iota // of the process
	LockedMemory                    // of the process
	LinkMemory                      // for rings of one link
	AddressSpace                    // what this process may map
)

// ShortageError is the error if memory would exceed a limit; errors.Is(err,
// syscall.ENOMEM) holds. Numbers are bytes.
type ShortageError struct {
	Wanted, Used, Limit int
	Of                  Limited

	// Releasing is true if others are about to release memory.
	Releasing bool
}

func (e *ShortageError) Error() string {
	wanted, used, limit := (e.Wanted+1023)/1024, e.Used/1024, e.Limit/1024
	switch e.Of {
	case LockedMemory:
		return fmt.Sprintf("%d KiB more would have to be locked, ringnet has %d KiB, and this process may lock %d KiB in all (RLIMIT_MEMLOCK)",
			wanted, used, limit)
	case LinkMemory:
		return fmt.Sprintf("%d KiB more would have to be registered for the rings of one link, which has %d KiB of %d KiB",
			wanted, used, limit)
	case AddressSpace:
		return fmt.Sprintf("%d KiB more would have to be mapped, ringnet has %d KiB, and there are addresses for %d KiB (RLIMIT_AS, or 32 bits)",
			wanted, used, limit)
	}
	return fmt.Sprintf("%d KiB more would have to be registered, and ringnet has %d KiB of %d KiB (ringnet.SetMemoryLimit)",
		wanted, used, limit)
}

func (e *ShortageError) Unwrap() error   { return syscall.ENOMEM }
func (e *ShortageError) Timeout() bool   { return false }
func (e *ShortageError) Temporary() bool { return e.Releasing }
