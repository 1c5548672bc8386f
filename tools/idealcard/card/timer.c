// The thread that fails requests to a peer that does not answer: after a queue pair's timeout,
// as often as it may retry.

#include "card.h"

#include <errno.h>
#include <time.h>

// give_up fails the first request that is held, unless the peer answers after all.
static void give_up(struct queue_pair *q)
{
	struct after after = {0};
	bool failed = false, stalled = q->deadline == q->stalled_until;
	q->deadline = 0;
	if (impaired() && is_cut_off(q->ibv.context))
		return; // a card that is gone completes nothing
	if (stalled) {
		run_held_now(q);
		return;
	}
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

// first_deadline is this process's queue pair whose deadline is the first, or NULL.
static struct queue_pair *first_deadline(void)
{
	struct queue_pair *first = NULL;
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		if (q->process == self && q->deadline && (!first || q->deadline < first->deadline))
			first = q;
	return first;
}

// run_again executes what queue pairs of this process hold and what may be answered by now.
static void run_again(void)
{
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		if (q->process == self && q->again) {
			q->again = false;
			q->deadline = 0;
			run_held_now(q);
		}
}

static void *run_timer(void *arg)
{
	pthread_cond_t *changed = &fabric->processes[self].deadlines;
	take_control();
	for (;;) {
		run_again();
		struct queue_pair *q = first_deadline();
		if (!q) {
			wait_on(changed, &fabric->control);
		} else if (q->deadline <= nanoseconds()) {
			give_up(q);
		} else {
			struct timespec t = {.tv_sec = q->deadline / 1000000000, .tv_nsec = q->deadline % 1000000000};
			if (pthread_cond_timedwait(changed, &fabric->control, &t) == EOWNERDEAD)
				pthread_mutex_consistent(&fabric->control);
		}
	}
	return arg;
}

// start_timer starts the thread, for deadlines that any process may set.
void start_timer(void)
{
	static bool running;
	pthread_t thread;
	if (!running)
		running = !pthread_create(&thread, NULL, run_timer, NULL) && !pthread_detach(thread);
}

static void set_deadline(struct queue_pair *q, uint64_t at)
{
	q->deadline = at;
	if (q->process == self)
		start_timer();
	pthread_cond_signal(&fabric->processes[q->process].deadlines);
}

void start_deadline(struct queue_pair *q)
{
	uint64_t timeout = 4096ull << (q->timeout ? q->timeout : 20);
	set_deadline(q, nanoseconds() + timeout * (q->retries + 1));
}

// start_stall has what a queue pair holds executed once it is no longer stalled.
void start_stall(struct queue_pair *q) { set_deadline(q, q->stalled_until); }
