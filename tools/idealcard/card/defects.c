// Defects of providers, as rdma-core was released with them: requests that arrive otherwise than they were
// posted.

#include "card.h"

#include <errno.h>
#include <string.h>

// begin_post is for each call of ibv_post_send. send_lock is held.
void begin_post(struct queue_pair *q, bool alone)
{
	q->alone = alone;
	q->last.length = 0;
}

// bnxt_re before 9558f227b: bnxt_re_copy_data_to_pb overwrites what it pushes, which is inline data of up to 96
// bytes that is posted alone.
static const struct ibv_send_wr *overwritten(const struct ibv_send_wr *wr, struct ibv_send_wr *loaded)
{
	enum { PUSHED = 96 };
	static _Thread_local uint8_t bytes[PUSHED];
	static _Thread_local struct ibv_sge sge;
	uint32_t n = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		if (n + wr->sg_list[i].length > PUSHED)
			return wr;
		memcpy(bytes + n, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		n += wr->sg_list[i].length;
	}
	for (uint32_t i = 0; i < n; i++)
		bytes[i] ^= 0xff;
	sge = (struct ibv_sge){.addr = (uintptr_t)bytes, .length = n};
	*loaded = *wr;
	loaded->sg_list = &sge;
	loaded->num_sge = n > 0;
	return loaded;
}

// bnxt_re before 68f59cd6b: bnxt_re_post_send keeps the length of the request before, in the same post, for one
// without SGEs.
static const struct ibv_send_wr *lengthened(struct queue_pair *q, const struct ibv_send_wr *wr, struct ibv_send_wr *loaded)
{
	if (wr->num_sge) {
		q->last = wr->sg_list[0];
		return wr;
	}
	if (!q->last.length)
		return wr;
	*loaded = *wr;
	loaded->sg_list = &q->last;
	loaded->num_sge = 1;
	loaded->send_flags |= IBV_SEND_INLINE; // whatever its key
	return loaded;
}

// libhns before 15adbcf23: a request in a batch leaves the fields of DirectWQE as they are that one posted alone has
// set in its slot, and the card executes another request. Here that is one without data.
static const struct ibv_send_wr *replaced(struct queue_pair *q, const struct ibv_send_wr *wr, struct ibv_send_wr *loaded)
{
	struct held *slot = &q->held[q->send_head % q->send_size];
	bool stale = slot->direct && !q->alone;
	slot->direct = q->alone;
	if (!stale)
		return wr;
	*loaded = *wr;
	loaded->num_sge = 0;
	return loaded;
}

// spoil is a request as a provider with a defect hands it to the card. send_lock is held.
const struct ibv_send_wr *spoil(struct queue_pair *q, const struct ibv_send_wr *wr, struct ibv_send_wr *loaded)
{
	const struct card *c = card_of(q->ibv.context);
	if (has(c, BNXT_RE_PUSH) && q->alone && (wr->send_flags & IBV_SEND_INLINE))
		return overwritten(wr, loaded);
	if (has(c, STALE_LENGTH))
		return lengthened(q, wr, loaded);
	if (has(c, HNS_DIRECT_WQE))
		return replaced(q, wr, loaded);
	return wr;
}

// forgets_status reports whether what is reported of a request that has failed has no status: irdma before
// 7f9761eb5, irdma_process_cqe, sets it if the request was flushed.
bool forgets_status(const struct completion *e)
{
	return has(card_of(e->qp->ibv.context), STATUS_UNSET) && e->status != IBV_WC_WR_FLUSH_ERR;
}

// unset_mask_refused is for a call that makes a queue: bnxt_re before cfba7251f sends the kernel what lies on the stack,
// and a kernel that looks at the mask in it refuses.
__attribute__((noinline)) bool unset_mask_refused(struct ibv_context *context)
{
	uint64_t request[16], mask = 0;
	if (!has(card_of(context), MASK_UNSET))
		return false;
	__asm__ volatile("" : "=m"(request)); // holds what lies there
	for (unsigned i = 0; i < sizeof request / sizeof *request; i++)
		mask |= request[i];
	errno = EINVAL;
	return mask;
}
