// What follows from requests that fail or wait, and from changes of state. Control is held.

#include "card.h"

// run_held_now executes what a queue pair holds.
void run_held_now(struct queue_pair *q)
{
	struct after after = {0};
	if (!lock_sends_of(q)) {
		if (q->peer)
			atomic_store(&q->peer->awaited, true); // the next receive tries again
		return;
	}
	run_held(q, &after);
	spin_unlock(&q->send_lock);
	add_events(&after);
	if (after.todo)
		finish(q, after.todo);
}

// run_held_by_peer is for when q has changed: its peer may be waiting for that.
static void run_held_by_peer(struct queue_pair *q)
{
	struct queue_pair *p = q->peer;
	if (p && p->peer == q && holds(p))
		run_held_now(p);
}

// flush_receives completes all receives of a queue pair in the error state. Only a peer that q
// has as its peer takes receives of q, and if its process is stopped, it looks at q's state when it
// goes on.
static void flush_receives(struct queue_pair *q)
{
	struct after after = {0};
	struct queue_pair *p = q->peer && q->peer->peer == q ? q->peer : NULL;
	if (p && !lock_sends_of(p))
		p = NULL;
	bool takes_turns = q->ibv.qp_type == IBV_QPT_UD && spin_lock_unless_stopped(&q->arrival_lock);
	spin_lock(&q->receive_lock);
	uint64_t head = atomic_load(&q->receive_head);
	for (uint64_t n = atomic_load(&q->receive_tail); n != head; n++) {
		struct completion c = {.wr_id = q->receives[n & q->receive_mask].wr_id, .at = ticks(), .qp = q, .status = IBV_WC_WR_FLUSH_ERR};
		complete(q->ibv.recv_cq, RECEIVES, &c, &after);
	}
	atomic_store(&q->receive_tail, head);
	atomic_store(&q->awaited, false);
	spin_unlock(&q->receive_lock);
	if (takes_turns)
		spin_unlock(&q->arrival_lock);
	if (p) {
		p->receives_seen = head;
		spin_unlock(&p->send_lock);
	}
	add_events(&after);
}

void to_error(struct queue_pair *q)
{
	struct after after = {0};
	bool locked = lock_sends_of(q);
	spin_lock(&q->receive_lock);
	atomic_store(&q->state, IBV_QPS_ERR);
	q->ibv.state = IBV_QPS_ERR;
	spin_unlock(&q->receive_lock);
	if (locked) {
		run_held(q, &after);
		spin_unlock(&q->send_lock);
	}
	add_events(&after);
	flush_receives(q);
	q->deadline = 0;
	run_held_by_peer(q);
}

void finish(struct queue_pair *q, unsigned todo)
{
	struct queue_pair *p = q->peer;
	if ((todo & REPORT_ESTABLISHED) && p && !p->established && announces(p)) {
		p->established = true;
		push_async(IBV_EVENT_COMM_EST, p);
	}
	if (todo & REPORT_FATAL)
		push_async(IBV_EVENT_QP_FATAL, q);
	if ((todo & FAIL_PEER) && p) {
		push_async(IBV_EVENT_QP_ACCESS_ERR, p);
		to_error(p);
	}
	if (todo & FLUSH)
		to_error(q);
	if (todo & STALLED)
		start_stall(q);
	if ((todo & AWAIT_ANSWER) && !q->deadline)
		start_deadline(q);
	if (atomic_exchange(&q->awaited, false))
		run_held_by_peer(q);
}
