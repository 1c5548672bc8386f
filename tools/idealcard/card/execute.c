// What a card does with one request. The sender's send_lock is held.

#include "card.h"

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
	if (unlikely(!p || p->dest_qp_num != q->ibv.qp_num))
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
static bool own_memory(const struct queue_pair *q, const struct ibv_send_wr *wr, uint64_t *length)
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

static void copy(void *to, const void *from, size_t n)
{
	if (n < SHORT || !dma_free)
		memcpy(to, from, n);
}

// access_peer does an RDMA write or read. It returns false if the peer does not permit that.
static bool access_peer(const struct queue_pair *p, const struct ibv_send_wr *wr, uint64_t length)
{
	bool reads = wr->opcode == IBV_WR_RDMA_READ;
	uint32_t access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
	uint64_t remote = wr->wr.rdma.remote_addr;
	if (!length)
		return true;
	if (unlikely(!(p->access & access) || !permits(wr->wr.rdma.rkey, p->ibv.pd, access, remote, length)))
		return false;
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *g = &wr->sg_list[i];
		if (reads)
			copy((void *)(uintptr_t)g->addr, (void *)(uintptr_t)remote, g->length);
		else
			copy((void *)(uintptr_t)remote, (void *)(uintptr_t)g->addr, g->length);
		remote += g->length;
	}
	return true;
}

// scatter copies a SEND to the memory of a receive. It returns the status of the receive.
static enum ibv_wc_status scatter(const struct queue_pair *p, const struct ibv_send_wr *wr, const struct receive *r)
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
			memcpy((void *)(uintptr_t)(g->addr + filled), (void *)(uintptr_t)from, n);
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

// report_done makes the completions of a request that has succeeded.
static void report_done(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, const struct receive *r,
	uint64_t length, uint64_t now, struct after *after)
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
	if ((wr->send_flags & IBV_SEND_SIGNALED) || q->signal_all) {
		struct completion c = {.wr_id = wr->wr_id, .at = now + 2 * latency, .qp = q, .position = position,
			.byte_len = length, .opcode = sent_opcode(wr->opcode)};
		complete(q->ibv.send_cq, SENDS, &c, after);
	}
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
	if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM) {
		enum ibv_wc_status status = scatter(p, wr, r);
		if (unlikely(status != IBV_WC_SUCCESS))
			return refuse(q, wr, position, r, status, now, after);
	} else if (unlikely(!access_peer(p, wr, length))) {
		after->todo |= FLUSH | FAIL_PEER;
		return fail(q, wr, position, IBV_WC_REM_ACCESS_ERR, now, after);
	}
	report_done(q, wr, position, r, length, now, after);
	return DONE;
}
