// Queue pairs: making them, their states, and their end.

#include "card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 1 << 16 };

pthread_mutex_t control = PTHREAD_MUTEX_INITIALIZER;
struct queue_pair *queue_pairs;
static struct queue_pair *by_number[NUMBERS];
static uint32_t last_number = 0x10;

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

static struct queue_pair *new_queue_pair(struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	struct queue_pair *q = aligned_alloc(64, sizeof *q);
	memset(q, 0, sizeof *q);
	q->ibv = (struct ibv_qp){.context = pd->context, .qp_context = a->qp_context, .pd = pd, .send_cq = a->send_cq,
		.recv_cq = a->recv_cq, .qp_type = IBV_QPT_RC};
	q->send_size = at_least_one(a->cap.max_send_wr);
	q->receive_size = at_least_one(a->cap.max_recv_wr);
	q->max_send_sge = at_least_one(a->cap.max_send_sge);
	q->max_recv_sge = at_least_one(a->cap.max_recv_sge);
	q->max_inline = a->cap.max_inline_data;
	q->signal_all = a->sq_sig_all;
	uint64_t slots = 2;
	while (slots < q->receive_size)
		slots *= 2;
	q->receive_mask = slots - 1;
	q->receives = calloc(slots, sizeof *q->receives);
	q->held = calloc(q->send_size, sizeof *q->held);
	return q;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	if (a->qp_type != IBV_QPT_RC) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (a->srq || !a->send_cq || !a->recv_cq || a->cap.max_send_wr > MAX_WR || a->cap.max_recv_wr > MAX_WR ||
	    a->cap.max_send_sge > MAX_SGE || a->cap.max_recv_sge > MAX_SGE || a->cap.max_inline_data > MAX_INLINE) {
		errno = EINVAL;
		return NULL;
	}
	struct queue_pair *q = new_queue_pair(pd, a);
	pthread_mutex_lock(&control);
	do
		last_number = (last_number + 1) & 0xffffff;
	while (!last_number || by_number[last_number % NUMBERS]);
	q->ibv.qp_num = last_number;
	by_number[last_number % NUMBERS] = q;
	pd->handle++;
	q->next = queue_pairs;
	queue_pairs = q;
	pthread_mutex_unlock(&control);
	return &q->ibv;
}

// leave_peer has whoever sends to q find no one there.
static void leave_peer(struct queue_pair *q)
{
	for (struct queue_pair *p = queue_pairs; p; p = p->next) {
		if (p->peer != q)
			continue;
		lock_sends(p);
		p->peer = NULL;
		spin_unlock(&p->send_lock);
		if (holds(p))
			finish(p, AWAIT_ANSWER);
	}
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct queue_pair *q = (struct queue_pair *)ibv, **at = &queue_pairs;
	pthread_mutex_lock(&control);
	await_acknowledged(q);
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	by_number[ibv->qp_num % NUMBERS] = NULL;
	leave_peer(q);
	forget_completions(ibv->send_cq, q);
	forget_completions(ibv->recv_cq, q);
	ibv->pd->handle--;
	pthread_mutex_unlock(&control);
	free(q->receives);
	free(q->held);
	free(q);
	return 0;
}

// allowed reports whether verbs allow a change of state, with these attributes.
static bool allowed(int from, int to, int mask)
{
	const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	switch (to) {
	case IBV_QPS_INIT:
		return from == IBV_QPS_INIT || (from == IBV_QPS_RESET && (mask & init) == init);
	case IBV_QPS_RTR:
		return from == IBV_QPS_INIT && (mask & rtr) == rtr;
	case IBV_QPS_RTS:
		return from == IBV_QPS_RTS || (from == IBV_QPS_RTR && (mask & rts) == rts);
	}
	return to == IBV_QPS_ERR;
}

static void set_peer(struct queue_pair *q, uint32_t number)
{
	struct queue_pair *p = by_number[number % NUMBERS];
	q->dest_qp_num = number;
	q->peer = p && p->ibv.qp_num == number ? p : NULL;
	q->receives_seen = q->peer ? atomic_load(&q->peer->receive_tail) : 0;
}

static void set_attributes(struct queue_pair *q, const struct ibv_qp_attr *a, int mask, int state)
{
	if (mask & IBV_QP_ACCESS_FLAGS)
		q->access = a->qp_access_flags;
	if (mask & IBV_QP_TIMEOUT)
		q->timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		q->retries = a->retry_cnt;
	if (state == IBV_QPS_ERR) {
		to_error(q);
		return;
	}
	lock_sends(q);
	if (mask & IBV_QP_DEST_QPN)
		set_peer(q, a->dest_qp_num);
	spin_lock(&q->receive_lock);
	atomic_store(&q->state, state);
	q->ibv.state = state;
	spin_unlock(&q->receive_lock);
	spin_unlock(&q->send_lock);
}

// answer has a peer that has waited for q to be ready send what it holds.
static void answer(struct queue_pair *q)
{
	for (struct queue_pair *p = queue_pairs; p; p = p->next)
		if (p->peer == q && holds(p)) {
			p->deadline = 0;
			run_held_now(p);
		}
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	int rc = EINVAL;
	pthread_mutex_lock(&control);
	int from = atomic_load(&q->state), to = mask & IBV_QP_STATE ? (int)a->qp_state : from;
	if (allowed(from, to, mask)) {
		set_attributes(q, a, mask, to);
		if (to == IBV_QPS_RTR)
			answer(q);
		rc = 0;
	}
	pthread_mutex_unlock(&control);
	return rc;
}
