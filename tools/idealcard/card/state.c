// What follows from requests that fail or wait, and from changes of state. Control is held.

#include "card.h"

// run_held_now executes what a queue pair holds.
void run_held_now(struct queue_pair *q)
{
	struct after after = {0};
	lock_sends(q);
	run_held(q, &after);
	spin_unlock(&q->send_lock);
	add_events(&after);
	if (after.todo)
		finish(q, after.todo);
}

// run_held_by_peer is for when q has changed: its peer may be waiting for that.
static void run_held_by_peer(struct queue_pair *q)
{
	for (struct queue_pair *p = queue_pairs; p; p = p->next)
		if (p->peer == q && holds(p))
			run_held_now(p);
}

// flush_receives completes all receives of a queue pair in the error state. Only a peer that q
// has as its peer takes receives of q.
static void flush_receives(struct queue_pair *q)
{
	struct after after = {0};
	struct queue_pair *p = q->peer && q->peer->peer == q ? q->peer : NULL;
	if (p)
		lock_sends(p);
	spin_lock(&q->receive_lock);
	uint64_t head = atomic_load(&q->receive_head);
	for (uint64_t n = atomic_load(&q->receive_tail); n != head; n++) {
		struct completion c = {.wr_id = q->receives[n & q->receive_mask].wr_id, .at = ticks(), .qp = q, .status = IBV_WC_WR_FLUSH_ERR};
		complete(q->ibv.recv_cq, RECEIVES, &c, &after);
	}
	atomic_store(&q->receive_tail, head);
	atomic_store(&q->awaited, false);
	spin_unlock(&q->receive_lock);
	if (p) {
		p->receives_seen = head;
		spin_unlock(&p->send_lock);
	}
	add_events(&after);
}

void to_error(struct queue_pair *q)
{
	struct after after = {0};
	lock_sends(q);
	spin_lock(&q->receive_lock);
	atomic_store(&q->state, IBV_QPS_ERR);
	q->ibv.state = IBV_QPS_ERR;
	spin_unlock(&q->receive_lock);
	run_held(q, &after);
	spin_unlock(&q->send_lock);
	add_events(&after);
	flush_receives(q);
	q->deadline = 0;
	run_held_by_peer(q);
}

void finish(struct queue_pair *q, unsigned todo)
{
	struct queue_pair *p = q->peer;
	if ((todo & REPORT_ESTABLISHED) && p && !p->established) {
		p->established = true;
		push_async(IBV_EVENT_COMM_EST, p);
	}
	if ((todo & FAIL_PEER) && p) {
		push_async(IBV_EVENT_QP_ACCESS_ERR, p);
		to_error(p);
	}
	if (todo & FLUSH)
		to_error(q);
	if ((todo & AWAIT_ANSWER) && !q->deadline)
		start_deadline(q);
	if (atomic_exchange(&q->awaited, false))
		run_held_by_peer(q);
}
