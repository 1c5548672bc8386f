// The thread that fails requests to a peer that does not answer: after a queue pair's timeout,
// as often as it may retry.

#include "card.h"

#include <time.h>

static pthread_cond_t changed;

__attribute__((constructor)) static void make_condition(void)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &a);
}

// give_up fails the first request that is held, unless the peer answers after all.
static void give_up(struct queue_pair *q)
{
	struct after after = {0};
	bool failed = false;
	q->deadline = 0;
	lock_sends(q);
	run_held(q, &after);
	if (holds(q) && atomic_load(&q->state) == IBV_QPS_RTS && (after.todo & AWAIT_ANSWER)) {
		struct held *h = &q->held[q->held_tail++ % q->send_size];
		fail(q, &h->wr, h->position, IBV_WC_RETRY_EXC_ERR, ticks(), &after);
		failed = true;
	}
	spin_unlock(&q->send_lock);
	add_events(&after);
	if (failed)
		to_error(q);
}

// first_deadline is the queue pair whose deadline is the first, or NULL.
static struct queue_pair *first_deadline(void)
{
	struct queue_pair *first = NULL;
	for (struct queue_pair *q = queue_pairs; q; q = q->next)
		if (q->deadline && (!first || q->deadline < first->deadline))
			first = q;
	return first;
}

static void *run_timer(void *arg)
{
	pthread_mutex_lock(&control);
	for (;;) {
		struct queue_pair *q = first_deadline();
		if (!q) {
			pthread_cond_wait(&changed, &control);
		} else if (q->deadline <= nanoseconds()) {
			give_up(q);
		} else {
			struct timespec t = {.tv_sec = q->deadline / 1000000000, .tv_nsec = q->deadline % 1000000000};
			pthread_cond_timedwait(&changed, &control, &t);
		}
	}
	return arg;
}

void start_deadline(struct queue_pair *q)
{
	static bool running;
	uint64_t timeout = 4096ull << (q->timeout ? q->timeout : 20);
	q->deadline = nanoseconds() + timeout * (q->retries + 1);
	if (!running) {
		pthread_t thread;
		running = !pthread_create(&thread, NULL, run_timer, NULL) && !pthread_detach(thread);
	}
	pthread_cond_signal(&changed);
}
