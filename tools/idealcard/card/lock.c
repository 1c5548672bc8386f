// Spinlocks in the memory that processes share.

#include "card.h"

#include <sched.h>

void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline bool try(spinlock *lock, unsigned holder)
{
	return atomic_compare_exchange_strong_explicit(lock, &holder, self, memory_order_acquire, memory_order_relaxed);
}

enum waited { TAKEN, TAKEN_FROM_DEAD, STOPPED };
enum { SPINS = 2000, LOOKS = 100 };

// wait_for yields now and then, because the holder may have lost its processor, and looks what
// has become of the holder.
static __attribute__((noinline)) enum waited wait_for(spinlock *lock, bool unless_stopped)
{
	for (unsigned n = 1;; n++) {
		unsigned holder = atomic_load_explicit(lock, memory_order_relaxed);
		if (!holder && try(lock, 0))
			return TAKEN;
		relax();
		if (n % SPINS)
			continue;
		sched_yield();
		if (!holder || holder == self || n % (SPINS * LOOKS))
			continue;
		if (has_ended(holder) && try(lock, holder))
			return TAKEN_FROM_DEAD;
		if (unless_stopped && is_stopped(holder))
			return STOPPED;
	}
}

bool spin_lock(spinlock *lock) { return unlikely(!try(lock, 0)) && wait_for(lock, false) == TAKEN_FROM_DEAD; }

bool spin_lock_unless_stopped(spinlock *lock) { return try(lock, 0) || wait_for(lock, true) != STOPPED; }

void spin_unlock(spinlock *lock) { atomic_store_explicit(lock, 0, memory_order_release); }
