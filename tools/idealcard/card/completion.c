// Completion queues: a ring for receives and one for sends, each in the order of time.

#include "card.h"

#include <errno.h>
#include <sched.h>

static void make_ring(struct ring *r, uint64_t depth)
{
	uint64_t n = 2;
	while (n < depth)
		n *= 2;
	r->mask = n - 1;
	r->entries = allocate(self, n * sizeof *r->entries);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	if (unset_mask_refused(ctx))
		return NULL;
	if (calls_fail(ctx)) {
		errno = EIO;
		return NULL;
	}
	if (cqe < 1 || (uint32_t)cqe > card_of(ctx)->max_cqe || vector < 0 || vector >= VECTORS) {
		errno = EINVAL;
		return NULL;
	}
	struct completion_queue *q = allocate(self, sizeof *q);
	q->process = self;
	q->deaths = atomic_load(&fabric->deaths);
	q->ibv = (struct ibv_cq){.context = ctx, .channel = channel, .cq_context = cq_context, .cqe = cqe};
	q->channel = (struct channel *)channel;
	q->depth = cqe;
	q->serial = atomic_fetch_add(&fabric->last_channel, 1);
	make_ring(&q->rings[RECEIVES], cqe);
	make_ring(&q->rings[SENDS], cqe);
	hold_more(COMPLETION_QUEUES, 1);
	take_control();
	if (channel)
		channel->refcnt++;
	release_control();
	return &q->ibv;
}

// leave_channel takes a queue that no queue pair uses from its channel.
static int leave_channel(struct completion_queue *q)
{
	for (struct queue_pair *p = fabric->queue_pairs; p; p = p->next)
		if (p->ibv.send_cq == &q->ibv || p->ibv.recv_cq == &q->ibv)
			return EBUSY;
	if (q->channel)
		q->channel->ibv.refcnt--;
	return 0;
}

// await_signalers waits for events that are under way, unless they may be those of a process that
// has died.
static void await_signalers(struct completion_queue *q)
{
	uint64_t began = nanoseconds();
	while (atomic_load(&q->signalers) && (atomic_load(&fabric->deaths) == q->deaths || nanoseconds() - began < 100000000))
		sched_yield();
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct completion_queue *q = (struct completion_queue *)ibv;
	take_control();
	int rc = leave_channel(q);
	release_control();
	if (rc)
		return rc;
	rc = cut_off(ibv->context);
	await_signalers(q);
	if (q->channel)
		forget_events(q);
	hold_more(COMPLETION_QUEUES, -1);
	release(q->rings[RECEIVES].entries);
	release(q->rings[SENDS].entries);
	release(q);
	return rc;
}

// signal_event makes the event that an armed queue owes, once the locks have been released.
static __attribute__((noinline)) void signal_event(struct completion_queue *q, uint64_t at, struct after *after)
{
	if (!q->channel || !atomic_exchange(&q->armed, false))
		return;
	if (unlikely(mannered)) {
		at = time_of_event(q, at);
		if (twice(q))
			add_event(q, at);
	}
	if (after->count == sizeof after->events / sizeof *after->events) {
		add_event(q, at);
		return;
	}
	atomic_fetch_add(&q->signalers, 1);
	after->events[after->count++] = (struct event){q, at};
}

static bool full(struct completion_queue *q, struct ring *r)
{
	if (likely(r->head - r->tail_seen < q->depth))
		return false;
	r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
	return r->head - r->tail_seen >= q->depth;
}

// complete adds a completion. Where there is no room it is lost, and counted.
void complete(struct ibv_cq *ibv, int ring, const struct completion *what, struct after *after)
{
	struct completion_queue *q = (struct completion_queue *)ibv;
	struct ring *r = &q->rings[ring];
	if (unlikely(spin_lock(&r->lock)) && r->entries[r->head & r->mask].sequence == r->head + 1)
		r->head++; // who died there had made the entry
	if (unlikely(full(q, r))) {
		spin_unlock(&r->lock);
		count(card_of(ibv->context), "cq_overruns");
		return;
	}
	struct entry *e = &r->entries[r->head & r->mask];
	e->completion = *what;
	e->completion.qp_num = what->qp->ibv.qp_num;
	e->completion.late = ring == RECEIVES ? what->qp->late_pieces : 0;
	if (unlikely(jittered))
		e->completion.at = time_of_completion(r, what);
	uint64_t at = e->completion.at;
	atomic_exchange(&e->sequence, r->head + 1); // also the barrier before armed is read
	r->head++;
	spin_unlock(&r->lock);
	if (unlikely(atomic_load_explicit(&q->armed, memory_order_relaxed)))
		signal_event(q, at, after);
}

// first is the oldest completion of a ring, if it is visible by now.
static inline struct completion *first(struct ring *r, uint64_t now)
{
	uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
	struct entry *e = &r->entries[tail & r->mask];
	if (atomic_load_explicit(&e->sequence, memory_order_acquire) != tail + 1 || e->completion.at > now)
		return NULL;
	return &e->completion;
}

// report fills what verbs define: of a failed request that is little, so the rest is garbage.
static inline void report(const struct completion *e, struct ibv_wc *wc)
{
	enum ibv_wc_status before = wc->status;
	*wc = (struct ibv_wc){.wr_id = e->wr_id, .status = e->status, .qp_num = e->qp_num};
	if (likely(e->status == IBV_WC_SUCCESS)) {
		wc->opcode = e->opcode;
		wc->byte_len = unlikely(mannered) ? length_of(e) : e->byte_len;
		wc->imm_data = e->imm_data;
		wc->src_qp = e->src_qp;
		wc->wc_flags = e->flags;
		wc->slid = e->slid;
		return;
	}
	if (forgets_status(e))
		wc->status = before;
	wc->vendor_err = 0x1d;
	wc->opcode = 0x5555;
	wc->byte_len = wc->imm_data = wc->src_qp = wc->wc_flags = 0x55555555;
}

int poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
	struct completion_queue *q = (struct completion_queue *)ibv;
	struct ring *receives = &q->rings[RECEIVES], *sends = &q->rings[SENDS];
	uint64_t now = timed ? ticks() : UINT64_MAX;
	if (unlikely(scheduled))
		count_call(ibv->context);
	if (!first(receives, now) && !first(sends, now))
		return 0;
	int got = 0;
	if (unlikely(mannered)) {
		if (q->dead || !works(ibv->context))
			return 0;
		n = cut_poll(q, n);
	}
	spin_lock(&q->poll_lock);
	while (got < n) {
		struct completion *r = first(receives, now), *s = first(sends, now);
		if (!r && !s)
			break;
		bool is_send = s && (!r || s->at <= r->at); // so receives do not keep sends waiting
		struct completion *e = is_send ? s : r;
		struct ring *from = is_send ? sends : receives;
		if (likely(e->qp != NULL)) {
			if (unlikely(e->late))
				land(e->qp, e->late);
			report(e, &wc[got++]);
			if (is_send)
				atomic_store_explicit(&e->qp->send_tail, e->position + 1, memory_order_release);
		}
		uint64_t tail = atomic_load_explicit(&from->tail, memory_order_relaxed);
		atomic_store_explicit(&from->tail, tail + 1, memory_order_release);
	}
	spin_unlock(&q->poll_lock);
	return got;
}

// next_visible finds when the first completion that is not visible yet will be.
static bool next_visible(struct completion_queue *q, uint64_t *at)
{
	bool found = false;
	uint64_t now = ticks();
	for (int i = 0; i < 2; i++) {
		struct ring *r = &q->rings[i];
		for (uint64_t n = atomic_load(&r->tail);; n++) {
			struct entry *e = &r->entries[n & r->mask];
			if (atomic_load(&e->sequence) != n + 1)
				break;
			if (e->completion.at <= now)
				continue;
			if (!found || e->completion.at < *at)
				*at = e->completion.at;
			found = true;
			break;
		}
	}
	return found;
}

int req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	(void)solicited_only;
	struct completion_queue *q = (struct completion_queue *)ibv;
	atomic_exchange(&q->armed, true);
	if (unlikely(mannered) && q->channel && spurious(q))
		add_event(q, ticks());
	if (!timed || !q->channel)
		return 0;
	uint64_t at = 0;
	spin_lock(&q->poll_lock);
	bool due = next_visible(q, &at) && atomic_exchange(&q->armed, false);
	spin_unlock(&q->poll_lock);
	if (due)
		add_event(q, at);
	return 0;
}

void forget_completions(struct ibv_cq *ibv, struct queue_pair *q)
{
	struct completion_queue *cq = (struct completion_queue *)ibv;
	spin_lock(&cq->poll_lock);
	for (int i = 0; i < 2; i++) {
		struct ring *r = &cq->rings[i];
		spin_lock(&r->lock);
		for (uint64_t n = atomic_load(&r->tail); n != r->head; n++)
			if (r->entries[n & r->mask].completion.qp == q)
				r->entries[n & r->mask].completion.qp = NULL;
		spin_unlock(&r->lock);
	}
	spin_unlock(&cq->poll_lock);
}
