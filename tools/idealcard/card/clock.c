// Settings, which the launcher hands over in the environment, and the clock.

#include "card.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t latency;
bool dma_free, paced, timed;
static double second, ticks_of_byte, ticks_of_message; // second: of ticks

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

// ticks_of_a_second measures the processor's clock for 10 ms.
static double ticks_of_a_second(void)
{
	uint64_t began = nanoseconds(), first = ticks(), now;
	do
		now = nanoseconds();
	while (now - began < 10000000);
	return 1e9 * (double)(ticks() - first) / (double)(now - began);
}

static double setting(const char *name)
{
	const char *text = getenv(name);
	return text ? atof(text) : 0;
}

__attribute__((constructor)) static void read_settings(void)
{
	const char *dma = getenv("IDEAL_DMA");
	double ns = setting("IDEAL_LATENCY_NS"), bytes = setting("IDEAL_BYTES_S"), messages = setting("IDEAL_MESSAGES_S");
	paced = bytes > 0 || messages > 0 || caches();
	timed = paced || ns > 0 || jittered;
	if (timed) {
		second = ticks_of_a_second();
		latency = ns / 1e9 * second;
		ticks_of_byte = bytes > 0 ? second / bytes : 0;
		ticks_of_message = messages > 0 ? second / messages : 0;
	}
	dma_free = dma && !strcmp(dma, "free");
}

uint64_t in_ticks(uint64_t ns) { return ns / 1e9 * second; }

// occupy has something take so long, after all that has been there before, and returns when that is over.
static uint64_t occupy(_Atomic uint64_t *until, uint64_t takes, uint64_t now)
{
	uint64_t before = atomic_load(until), after;
	do
		after = (before > now ? before : now) + takes;
	while (!atomic_compare_exchange_weak(until, &before, after));
	return after;
}

// sent is when a message has left a queue pair's port: after all that has been posted there before,
// and with as many bytes and messages a second as the port has, once the card has the queue pair's
// context.
uint64_t sent(struct queue_pair *q, uint64_t length, uint64_t now)
{
	if (!paced)
		return now;
	uint64_t takes = length * ticks_of_byte > ticks_of_message ? length * ticks_of_byte : ticks_of_message;
	return occupy(&port_of(q)->sent_by, takes + touch(q), now);
}

// received is when the card of the peer has a message, once it has the context of its queue pair.
uint64_t received(struct queue_pair *p, uint64_t now) { return occupy(&port_of(p)->received_by, touch(p), now); }
