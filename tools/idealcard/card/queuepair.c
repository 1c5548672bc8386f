// Queue pairs: making them, their states, and their end.

#include "card.h"

#include <errno.h>
#include <string.h>

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

// new_queue_pair uses memory that no other objects have had: a process that was stopped may still
// look at a queue pair that is gone.
static struct queue_pair *new_queue_pair(struct ibv_pd *pd, const struct ibv_qp_init_attr *a)
{
	take_control();
	struct queue_pair *q = fabric->free_queue_pairs;
	if (q)
		fabric->free_queue_pairs = q->next;
	release_control();
	if (!q)
		q = allocate(0, sizeof *q);
	memset(q, 0, sizeof *q);
	q->process = self;
	q->ibv = (struct ibv_qp){.context = pd->context, .qp_context = a->qp_context, .pd = pd, .send_cq = a->send_cq,
		.recv_cq = a->recv_cq, .qp_type = a->qp_type};
	q->send_size = at_least_one(a->cap.max_send_wr);
	q->receive_size = at_least_one(a->cap.max_recv_wr);
	q->max_send_sge = at_least_one(a->cap.max_send_sge);
	q->max_recv_sge = at_least_one(a->cap.max_recv_sge);
	q->max_inline = a->cap.max_inline_data;
	q->signal_all = a->sq_sig_all;
	q->port = 1;
	uint64_t slots = 2;
	while (slots < q->receive_size)
		slots *= 2;
	q->receive_mask = slots - 1;
	q->receives = allocate(self, slots * sizeof *q->receives);
	q->held = allocate(self, q->send_size * sizeof *q->held);
	return q;
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *a, uint64_t operations)
{
	struct card *c = card_of(pd->context);
	if (unset_mask_refused(pd->context))
		return NULL;
	if (calls_fail(pd->context)) {
		errno = EIO;
		return NULL;
	}
	slow_queue_pair(c);
	if (c->manners && refuses_shape(c, &a->cap, operations))
		return NULL;
	if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UD) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (a->srq || !a->send_cq || !a->recv_cq || a->cap.max_send_wr > c->max_wr || a->cap.max_recv_wr > c->max_wr ||
	    a->cap.max_send_sge > c->max_sge || a->cap.max_recv_sge > c->max_sge || (a->cap.max_inline_data > c->max_inline && !has(c, MANA))) {
		errno = EINVAL;
		return NULL;
	}
	if (held_by(self, QUEUE_PAIRS) >= (int)c->max_qp) {
		errno = ENOMEM;
		return NULL;
	}
	hold_more(QUEUE_PAIRS, 1);
	uint32_t asked = a->cap.max_inline_data;
	grant(c, &a->cap);
	struct queue_pair *q = new_queue_pair(pd, a);
	if (q->max_inline > asked)
		q->max_inline = asked;
	take_control();
	do
		fabric->last_number = (fabric->last_number + 1) & 0xffffff;
	while (!fabric->last_number || fabric->by_number[fabric->last_number % NUMBERS]);
	q->ibv.qp_num = fabric->last_number;
	fabric->by_number[fabric->last_number % NUMBERS] = q;
	pd->handle++;
	q->next = fabric->queue_pairs;
	fabric->queue_pairs = q;
	release_control();
	return &q->ibv;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) { return create(pd, a, 0); }

// create_qp_ex makes a queue pair for some operations, which ibv_post_send posts, too: ibv_wr_post(3). It has not what
// that describes.
struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t both = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	if (a->comp_mask == both && a->pd->context == context)
		return create(a->pd, (struct ibv_qp_init_attr *)a, a->send_ops_flags);
	errno = EINVAL;
	return NULL;
}

// leave_peer has whoever sends to q find no one there.
static void leave_peer(struct queue_pair *q)
{
	for (struct queue_pair *p = fabric->queue_pairs; p; p = p->next) {
		if (p->peer != q)
			continue;
		bool locked = lock_sends_of(p);
		p->peer = NULL;
		if (locked)
			spin_unlock(&p->send_lock);
		if (holds(p))
			finish(p, AWAIT_ANSWER);
	}
}

void remove_queue_pair(struct queue_pair *q)
{
	struct queue_pair **at = &fabric->queue_pairs;
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	fabric->by_number[q->ibv.qp_num % NUMBERS] = NULL;
	atomic_store(&q->state, IBV_QPS_RESET);
	leave_peer(q);
	leave_groups(q);
	if (spin_lock_unless_stopped(&q->arrival_lock))
		spin_unlock(&q->arrival_lock); // what was arriving has arrived
	q->next = fabric->free_queue_pairs;
	fabric->free_queue_pairs = q;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	int rc = cut_off(ibv->context);
	slow_queue_pair(card_of(ibv->context));
	take_control();
	await_acknowledged(q);
	land_all(q);
	remove_queue_pair(q);
	forget_completions(ibv->send_cq, q);
	forget_completions(ibv->recv_cq, q);
	ibv->pd->handle--;
	release(q->receives);
	release(q->held);
	hold_more(QUEUE_PAIRS, -1);
	if (q->peer_process != self)
		close_lines(q->peer_process);
	release_control();
	return rc;
}

// allowed reports whether verbs allow a change of state, with these attributes.
static bool allowed(int type, int from, int to, int mask)
{
	bool datagrams = type == IBV_QPT_UD;
	const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	const int rtr = datagrams ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int rts = datagrams ? IBV_QP_SQ_PSN : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
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

// share_partition reports whether the P_Keys of two queue pairs match: one has to be that of a full
// member.
bool share_partition(const struct queue_pair *p, const struct queue_pair *q)
{
	return !((p->pkey ^ q->pkey) & 0x7fff) && ((p->pkey | q->pkey) & 0x8000);
}

static void set_peer(struct queue_pair *q, uint32_t number)
{
	struct queue_pair *p = fabric->by_number[number % NUMBERS];
	q->peer = p && p->ibv.qp_num == number ? p : NULL;
	// The one of two that gets its peer as the second sees whether they are of one partition, and
	// if not, takes nothing of the other.
	bool strangers = q->peer && atomic_load(&p->state) != IBV_QPS_RESET && !share_partition(p, q);
	q->dest_qp_num = strangers ? 0 : number;
	q->receives_seen = q->peer ? atomic_load(&q->peer->receive_tail) : 0;
	q->peer_process = q->peer ? q->peer->process : self;
	if (q->peer_process != self)
		start_timer(); // the other process can leave q without a peer
}

static void set_attributes(struct queue_pair *q, const struct ibv_qp_attr *a, int mask, int state)
{
	if (mask & IBV_QP_ACCESS_FLAGS)
		q->access = a->qp_access_flags;
	if (mask & IBV_QP_QKEY)
		q->qkey = a->qkey;
	if (mask & IBV_QP_PORT)
		q->port = a->port_num;
	if (mask & IBV_QP_PKEY_INDEX)
		q->pkey = port_of(q)->pkey[a->pkey_index % PKEYS];
	if (mask & IBV_QP_PATH_MTU)
		q->path_mtu = a->path_mtu;
	if (mask & IBV_QP_TIMEOUT)
		q->timeout = a->timeout;
	if (mask & IBV_QP_RETRY_CNT)
		q->retries = a->retry_cnt;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		q->rnr_timer = a->min_rnr_timer;
	if (mask & IBV_QP_RNR_RETRY)
		q->rnr_retries = a->rnr_retry;
	if (mask & IBV_QP_AV)
		q->traffic_class = a->ah_attr.grh.traffic_class;
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
	struct queue_pair *p = q->peer;
	if (p && p->peer == q && holds(p)) {
		p->deadline = 0;
		run_held_now(p);
	}
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	int rc = EINVAL;
	if (calls_fail(ibv->context))
		return EIO;
	if (mannered && !works(ibv->context))
		return 0;
	take_control();
	int from = atomic_load(&q->state), to = mask & IBV_QP_STATE ? (int)a->qp_state : from;
	bool has_port = !(mask & IBV_QP_PORT) || (a->port_num >= 1 && a->port_num <= card_of(ibv->context)->ports);
	if (allowed(ibv->qp_type, from, to, mask) && has_port && settle_ece(q)) {
		set_attributes(q, a, mask, to);
		if (to == IBV_QPS_RTR)
			answer(q);
		rc = 0;
	}
	release_control();
	return rc;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	(void)mask;
	*init = (struct ibv_qp_init_attr){.qp_context = ibv->qp_context, .send_cq = ibv->send_cq, .recv_cq = ibv->recv_cq,
		.cap = {.max_send_wr = q->send_size, .max_recv_wr = q->receive_size, .max_send_sge = q->max_send_sge,
			.max_recv_sge = q->max_recv_sge, .max_inline_data = q->max_inline},
		.qp_type = ibv->qp_type, .sq_sig_all = q->signal_all};
	*a = (struct ibv_qp_attr){.qp_state = atomic_load(&q->state), .cur_qp_state = atomic_load(&q->state), .path_mtu = q->path_mtu,
		.qkey = q->qkey, .dest_qp_num = q->dest_qp_num, .qp_access_flags = q->access, .cap = init->cap, .port_num = q->port,
		.timeout = q->timeout, .retry_cnt = q->retries, .min_rnr_timer = q->rnr_timer, .rnr_retry = q->rnr_retries};
	return 0;
}
