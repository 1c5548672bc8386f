// What a card does with one request. The sender's send_lock is held.

#include "card.h"

#include <errno.h>
#include <string.h>

static bool takes_receive(int opcode) { return opcode != IBV_WR_RDMA_WRITE && opcode != IBV_WR_RDMA_READ; }

enum outcome fail(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, int status, uint64_t now, struct after *after)
{
	struct completion c = {.wr_id = wr->wr_id, .at = now, .qp = q, .position = position, .status = status};
	atomic_store(&q->state, IBV_QPS_ERR);
	complete(q->ibv.send_cq, SENDS, &c, after);
	return FAILED;
}

// answers reports whether the peer's queue pair takes messages of q.
static bool answers(const struct queue_pair *q, const struct queue_pair *p, struct after *after)
{
	if (unlikely(!p || p->dest_qp_num != q->ibv.qp_num || p->path_mtu != q->path_mtu || (impaired() && !reaches(q, p)) || (mannered && (!works(p->ibv.context) || q->astray || p->astray))))
		return false;
	int state = atomic_load_explicit(&p->state, memory_order_acquire);
	if (unlikely(state == IBV_QPS_RTR && !p->established))
		after->todo |= REPORT_ESTABLISHED;
	return state == IBV_QPS_RTS || state == IBV_QPS_RTR;
}

// next_receive is the first receive that the peer has posted, or NULL.
static struct receive *next_receive(struct queue_pair *q, struct queue_pair *p)
{
	uint64_t tail = atomic_load_explicit(&p->receive_tail, memory_order_relaxed);
	if (tail == q->receives_seen) {
		q->receives_seen = atomic_load_explicit(&p->receive_head, memory_order_acquire);
		if (unlikely(tail == q->receives_seen))
			return NULL;
	}
	return &p->receives[tail & p->receive_mask];
}

// own_memory adds up what a request names of its sender's memory. It returns false if the
// request may not use that.
bool own_memory(const struct queue_pair *q, const struct ibv_send_wr *wr, uint64_t *length)
{
	uint32_t access = wr->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
	*length = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *g = &wr->sg_list[i];
		*length += g->length;
		if (wr->send_flags & IBV_SEND_INLINE || !g->length)
			continue;
		if (unlikely(!permits(g->lkey, q->ibv.pd, access, g->addr, g->length)))
			return false;
	}
	return true;
}

// copy copies between queue pairs' processes, and returns as copy_between does.
static inline int copy(const struct queue_pair *to_whom, uint64_t to, const struct queue_pair *from_whom, uint64_t from, size_t n)
{
	if (unlikely(to_whom->process != from_whom->process))
		return copy_between(to_whom->process, (void *)(uintptr_t)to, from_whom->process, (void *)(uintptr_t)from, n);
	memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
	return 0;
}

int copy_to(const struct queue_pair *to_whom, uint64_t to, const struct queue_pair *from_whom, uint64_t from, size_t n)
{
	return copy(to_whom, to, from_whom, from, n);
}

// access_peer does an RDMA write or read. It returns EACCES or EFAULT if the peer does not permit
// that, or ESRCH if its process has ended. Of the bytes so many arrive.
static int access_peer(const struct queue_pair *q, struct queue_pair *p, const struct ibv_send_wr *wr, uint64_t length,
	uint64_t arrives)
{
	bool reads = wr->opcode == IBV_WR_RDMA_READ;
	uint32_t access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
	uint64_t remote = wr->wr.rdma.remote_addr;
	int error = 0;
	if (!length && !has(card_of(p->ibv.context), EMPTY_WRITE_CHECKED))
		return 0;
	if (unlikely(!(p->access & access) || !permits(wr->wr.rdma.rkey, p->ibv.pd, access, remote, length)))
		return EACCES;
	for (int i = 0; i < wr->num_sge && !error; i++) {
		const struct ibv_sge *g = &wr->sg_list[i];
		uint64_t n = g->length < arrives ? g->length : arrives;
		if (g->length < SHORT || !dma_free)
			error = reads ? copy(q, g->addr, p, remote, n) : unlikely(mannered) ? place(p, wr->wr.rdma.rkey, remote, q, g->addr, n) : copy(p, remote, q, g->addr, n);
		remote += g->length;
		arrives -= n;
	}
	return error;
}

// scatter copies a SEND to the memory of a receive. It returns the status of the receive.
static enum ibv_wc_status scatter(const struct queue_pair *q, const struct queue_pair *p, const struct ibv_send_wr *wr, const struct receive *r)
{
	int at = 0;
	uint64_t filled = 0; // of r->sge[at]
	for (int i = 0; i < wr->num_sge; i++) {
		uint64_t from = wr->sg_list[i].addr, left = wr->sg_list[i].length;
		while (left) {
			const struct ibv_sge *g = &r->sge[at];
			if (at == r->num_sge)
				return IBV_WC_LOC_LEN_ERR;
			if (!permits(g->lkey, p->ibv.pd, IBV_ACCESS_LOCAL_WRITE, g->addr, g->length))
				return IBV_WC_LOC_PROT_ERR;
			uint64_t n = g->length - filled < left ? g->length - filled : left;
			int error = copy(p, g->addr + filled, q, from, n);
			if (unlikely(error))
				return error == ESRCH ? IBV_WC_RETRY_EXC_ERR : IBV_WC_LOC_PROT_ERR;
			from += n, left -= n, filled += n;
			if (filled == g->length)
				at++, filled = 0;
		}
	}
	return IBV_WC_SUCCESS;
}

static void take_receive(struct queue_pair *p, const struct completion *c, struct after *after)
{
	uint64_t tail = atomic_load_explicit(&p->receive_tail, memory_order_relaxed);
	atomic_store_explicit(&p->receive_tail, tail + 1, memory_order_release);
	complete(p->ibv.recv_cq, RECEIVES, c, after);
}

// refuse fails a receive that has no room, and with it both queue pairs.
static enum outcome refuse(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, const struct receive *r,
	enum ibv_wc_status status, uint64_t now, struct after *after)
{
	struct queue_pair *p = q->peer;
	struct completion c = {.wr_id = r->wr_id, .at = now + latency, .qp = p, .status = status};
	atomic_store(&p->state, IBV_QPS_ERR);
	take_receive(p, &c, after);
	after->todo |= FLUSH | FAIL_PEER;
	return fail(q, wr, position, status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, now, after);
}

static int sent_opcode(int opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	}
	return IBV_WC_SEND;
}

// report_received makes the completion of the receive that a request has taken, if it takes one.
static void report_received(struct queue_pair *q, const struct ibv_send_wr *wr, const struct receive *r, uint64_t length, uint64_t now,
	struct after *after)
{
	if (r) {
		bool writes = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
		struct completion c = {.wr_id = r->wr_id, .at = now + latency, .qp = q->peer, .byte_len = length,
			.src_qp = q->ibv.qp_num, .opcode = writes ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV};
		if (wr->opcode != IBV_WR_SEND) {
			c.imm_data = wr->imm_data;
			c.flags = IBV_WC_WITH_IMM;
		}
		take_receive(q->peer, &c, after);
	}
}

static void report_sent(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t length, uint64_t now, struct after *after)
{
	if ((wr->send_flags & IBV_SEND_SIGNALED) || q->signal_all) {
		struct completion c = {.wr_id = wr->wr_id, .at = now + 2 * latency, .qp = q, .position = position,
			.byte_len = length, .opcode = sent_opcode(wr->opcode)};
		complete(q->ibv.send_cq, SENDS, &c, after);
	}
}

// acknowledge completes a request that the peer has had before.
void acknowledge(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after)
{
	uint64_t length;
	own_memory(q, wr, &length);
	report_sent(q, wr, position, length, now, after);
}

// changed reports whether the peer, in another process, no longer takes the message that has been
// copied: this process may have been stopped meanwhile, and its locks do not hold then.
static inline bool changed(const struct queue_pair *q, const struct queue_pair *p)
{
	if (likely(p->process == q->process))
		return false;
	int state = atomic_load_explicit(&p->state, memory_order_acquire);
	return q->peer != p || (state != IBV_QPS_RTS && state != IBV_QPS_RTR);
}

enum outcome execute(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after)
{
	struct queue_pair *p = q->peer;
	if (unlikely(!answers(q, p, after)))
		return NO_ANSWER;
	struct receive *r = NULL;
	if (takes_receive(wr->opcode) && !(r = next_receive(q, p)))
		return NO_RECEIVE;
	uint64_t length;
	if (unlikely(!own_memory(q, wr, &length))) {
		after->todo |= FLUSH;
		return fail(q, wr, position, IBV_WC_LOC_PROT_ERR, now, after);
	}
	uint64_t arrives = likely(!scheduled) ? length + 1 : strike_cable(q, p, length);
	if (unlikely(arrives <= length && (arrives < length || wr->opcode == IBV_WR_RDMA_READ))) {
		if (wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			access_peer(q, p, wr, length, arrives);
		return NO_ANSWER;
	}
	if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM) {
		enum ibv_wc_status status = scatter(q, p, wr, r);
		if (unlikely(changed(q, p) || status == IBV_WC_RETRY_EXC_ERR))
			return NO_ANSWER;
		if (unlikely(status != IBV_WC_SUCCESS))
			return refuse(q, wr, position, r, status, now, after);
	} else {
		int error = access_peer(q, p, wr, length, length);
		if (unlikely(changed(q, p) || error == ESRCH))
			return NO_ANSWER;
		if (unlikely(error)) {
			after->todo |= FLUSH | FAIL_PEER;
			return fail(q, wr, position, IBV_WC_REM_ACCESS_ERR, now, after);
		}
	}
	if (unlikely(paced))
		now = received(p, sent(q, length, now));
	report_received(q, wr, r, length, now, after);
	if (unlikely(arrives == length))
		return NOT_ACKNOWLEDGED;
	report_sent(q, wr, position, length, now, after);
	return DONE;
}
