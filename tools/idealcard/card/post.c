// Send and receive queues. A request is executed by the thread that posts it; one that has to
// wait for the peer is held, and so are all that follow it.

#include "card.h"

#include <errno.h>
#include <string.h>

// lock_sends takes a send queue, and counts that: ibv_dereg_mr looks at the number.
void lock_sends(struct queue_pair *q)
{
	spin_lock(&q->send_lock);
	q->turns++;
}

// lock_sends_of is for the send queue of any process. It returns false if that has been stopped
// while it held the lock.
bool lock_sends_of(struct queue_pair *q)
{
	if (!spin_lock_unless_stopped(&q->send_lock))
		return false;
	q->turns++;
	return true;
}

bool holds(struct queue_pair *q) { return q->held_head != q->held_tail; }

static __attribute__((noinline)) void hold(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position)
{
	struct held *h = &q->held[q->held_head++ % q->send_size];
	h->wr = *wr;
	h->position = position;
	h->delivered = false;
	h->wr.sg_list = h->sge;
	if (!(wr->send_flags & IBV_SEND_INLINE)) {
		memcpy(h->sge, wr->sg_list, wr->num_sge * sizeof *h->sge);
		return;
	}
	uint32_t n = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		memcpy(h->inline_data + n, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		n += wr->sg_list[i].length;
	}
	h->sge[0] = (struct ibv_sge){.addr = (uintptr_t)h->inline_data, .length = n};
	h->wr.num_sge = n > 0;
}

static enum outcome run_one(struct queue_pair *q, struct held *h, struct after *after)
{
	if (atomic_load(&q->state) != IBV_QPS_ERR && !h->delivered)
		return execute(q, &h->wr, h->position, ticks(), after);
	if (atomic_load(&q->state) != IBV_QPS_ERR) {
		if (!q->peer || !reaches(q, q->peer))
			return NO_ANSWER;
		acknowledge(q, &h->wr, h->position, ticks(), after);
		return DONE;
	}
	fail(q, &h->wr, h->position, IBV_WC_WR_FLUSH_ERR, ticks(), after);
	return DONE;
}

// run_held executes what is held, as far as that can be. send_lock is held.
void run_held(struct queue_pair *q, struct after *after)
{
	while (holds(q)) {
		int state = atomic_load(&q->state);
		if (state != IBV_QPS_ERR && state != IBV_QPS_RTS)
			return;
		if (unlikely(q->stalled_until) && state == IBV_QPS_RTS && nanoseconds() < q->stalled_until) {
			after->todo |= STALLED;
			return;
		}
		enum outcome done = run_one(q, &q->held[q->held_tail % q->send_size], after);
		if (done == NOT_ACKNOWLEDGED)
			q->held[q->held_tail % q->send_size].delivered = true;
		if (done == NO_ANSWER || done == NOT_ACKNOWLEDGED) {
			after->todo |= AWAIT_ANSWER;
			return;
		}
		if (done != NO_RECEIVE) {
			q->held_tail++;
			continue;
		}
		atomic_exchange(&q->peer->awaited, true);
		if (atomic_load(&q->peer->receive_head) == atomic_load(&q->peer->receive_tail))
			return;
	}
}

// refusal is the errno for a request that the send queue does not take, or 0.
static int refusal(struct queue_pair *q, const struct ibv_send_wr *wr, int state)
{
	if (unlikely(state != IBV_QPS_RTS && state != IBV_QPS_ERR))
		return EINVAL;
	if (unlikely(q->send_head - atomic_load_explicit(&q->send_tail, memory_order_acquire) >= q->send_size))
		return ENOMEM;
	if (unlikely(wr->num_sge > q->max_send_sge))
		return EINVAL;
	if (!(wr->send_flags & IBV_SEND_INLINE))
		return 0;
	uint64_t n = 0;
	for (int i = 0; i < wr->num_sge; i++)
		n += wr->sg_list[i].length;
	return n > q->max_inline ? ENOMEM : 0;
}

// break_down has a queue pair fail at a request, which the peer may have had by then.
static __attribute__((noinline)) void break_down(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, enum strike strike,
	uint64_t now, struct after *after)
{
	struct ibv_send_wr silent = *wr;
	silent.send_flags &= ~IBV_SEND_SIGNALED;
	bool runs = strike == AFTER && atomic_load(&q->state) == IBV_QPS_RTS && !holds(q) && !q->signal_all;
	if (runs && execute(q, &silent, position, now, after) == FAILED)
		return;
	hold(q, wr, position);
	atomic_store(&q->state, IBV_QPS_ERR);
	run_held(q, after);
	after->todo |= FLUSH | REPORT_FATAL;
}

static void send_one(struct queue_pair *q, const struct ibv_send_wr *given, int state, uint64_t now, struct after *after)
{
	struct ibv_send_wr loaded;
	const struct ibv_send_wr *wr = unlikely(mannered) ? as_loaded(q, given, &loaded) : given;
	uint32_t position = q->send_head++;
	if (unlikely(q->ibv.qp_type == IBV_QPT_UD)) {
		send_datagram(q, wr, position, now, after);
		return;
	}
	enum strike strike = likely(!scheduled) ? NOTHING : strike_request();
	if (unlikely(strike != NOTHING)) {
		break_down(q, wr, position, strike, now, after);
		return;
	}
	if (unlikely(mannered))
		before_request(q, after);
	enum outcome done = NO_ANSWER;
	if (likely(state == IBV_QPS_RTS && !holds(q) && !(after->todo & STALLED))) {
		done = execute(q, wr, position, now, after);
		if (likely(done == DONE || done == FAILED))
			return;
		if (done == NO_RECEIVE)
			count(card_of(q->ibv.context), "rcvd_rnr_err");
	}
	hold(q, wr, position);
	if (unlikely(done == NOT_ACKNOWLEDGED))
		q->held[(q->held_head - 1) % q->send_size].delivered = true;
	run_held(q, after);
}

static __attribute__((noinline)) void finish_unlocked(struct queue_pair *q, unsigned todo)
{
	if (todo & TROUBLE)
		make_trouble(q);
	take_control();
	finish(q, todo);
	release_control();
}

int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	struct after after;
	after.todo = after.count = 0;
	int rc = 0;
	uint64_t now = timed ? ticks() : 0;
	if (unlikely(scheduled))
		count_call(ibv->context);
	if (unlikely(mannered && !works(ibv->context)))
		return 0;
	lock_sends(q);
	if (unlikely(mannered && wr))
		begin_post(q, !wr->next);
	for (struct ibv_send_wr *first = wr; wr; wr = wr->next) {
		int state = atomic_load_explicit(&q->state, memory_order_relaxed);
		rc = refusal(q, wr, state);
		if (unlikely(mannered && !rc && wr != first && cuts_batch(q)))
			rc = ENOMEM;
		if (unlikely(rc))
			break;
		send_one(q, wr, state, now, &after);
	}
	spin_unlock(&q->send_lock);
	if (unlikely(rc))
		*bad = wr;
	if (unlikely(after.count))
		add_events(&after);
	if (unlikely(after.todo))
		finish_unlocked(q, after.todo);
	return rc;
}

static bool receives_full(struct queue_pair *q, uint64_t head)
{
	if (likely(head - q->receive_tail_seen < q->receive_size))
		return false;
	q->receive_tail_seen = atomic_load_explicit(&q->receive_tail, memory_order_acquire);
	return head - q->receive_tail_seen >= q->receive_size;
}

int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	int rc = 0;
	if (unlikely(mannered && !works(ibv->context)))
		return 0;
	spin_lock(&q->receive_lock);
	int state = atomic_load_explicit(&q->state, memory_order_relaxed);
	uint64_t head = atomic_load_explicit(&q->receive_head, memory_order_relaxed);
	for (; wr; wr = wr->next) {
		if (unlikely(state == IBV_QPS_RESET || wr->num_sge > q->max_recv_sge))
			rc = EINVAL;
		else if (unlikely(receives_full(q, head)))
			rc = ENOMEM;
		if (unlikely(rc)) {
			*bad = wr;
			break;
		}
		struct receive *r = &q->receives[head++ & q->receive_mask];
		r->wr_id = wr->wr_id;
		r->num_sge = wr->num_sge;
		for (int i = 0; i < wr->num_sge; i++)
			r->sge[i] = wr->sg_list[i];
	}
	atomic_exchange(&q->receive_head, head); // also the barrier before awaited is read
	spin_unlock(&q->receive_lock);
	if (unlikely(state == IBV_QPS_ERR || atomic_load_explicit(&q->awaited, memory_order_relaxed)))
		finish_unlocked(q, state == IBV_QPS_ERR ? FLUSH : 0);
	return rc;
}
