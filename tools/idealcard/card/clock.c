// Settings, which the launcher hands over in the environment, the clock and locks.

#include "card.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t latency;
bool dma_free;

uint64_t nanoseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

uint64_t ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
	return nanoseconds();
#endif
}

// ticks_of measures the processor's clock for 10 ms.
static uint64_t ticks_of(double ns)
{
	uint64_t began = nanoseconds(), first = ticks(), now;
	do
		now = nanoseconds();
	while (now - began < 10000000);
	return ns * (double)(ticks() - first) / (double)(now - began);
}

__attribute__((constructor)) static void read_settings(void)
{
	const char *ns = getenv("IDEAL_LATENCY_NS"), *dma = getenv("IDEAL_DMA");
	if (ns && atol(ns) > 0)
		latency = ticks_of(atol(ns));
	dma_free = dma && !strcmp(dma, "free");
}

void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

// wait_for yields now and then: the holder may have lost its processor.
static __attribute__((noinline)) void wait_for(spinlock *lock)
{
	for (unsigned n = 1; atomic_load_explicit(lock, memory_order_relaxed); n++) {
		relax();
		if (n % 2000 == 0)
			sched_yield();
	}
}

void spin_lock(spinlock *lock)
{
	while (unlikely(atomic_exchange_explicit(lock, 1, memory_order_acquire)))
		wait_for(lock);
}

void spin_unlock(spinlock *lock) { atomic_store_explicit(lock, 0, memory_order_release); }
