// Options of the vendor that two queue pairs agree on: Enhanced Connection Establishment, as mlx5 has it. Other cards
// have none.

#include "card.h"
#include "cm.h"

#include <errno.h>

enum { MELLANOX = 0x15b3, VERSION_1 = 0x10000000 };

static bool has_ece(const struct queue_pair *q)
{
	const struct card *c = card_of(q->ibv.context);
	return has(c, MLX5) || has(c, ECE_REFUSED);
}

// known is what a queue pair's firmware knows: here no two know the same.
static uint32_t known(const struct queue_pair *q) { return VERSION_1 | (mix(fabric->seed ^ q->ibv.qp_num) & 0xffff); }

int ibv_query_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	if (!has_ece(q))
		return EOPNOTSUPP;
	*ece = (struct ibv_ece){.vendor_id = MELLANOX, .options = q->ece_settled ? q->ece : known(q)};
	return 0;
}

// ibv_set_ece is for the next state.
int ibv_set_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct queue_pair *q = (struct queue_pair *)ibv;
	if (!has_ece(q))
		return EOPNOTSUPP;
	if (ece->comp_mask || ece->vendor_id != MELLANOX)
		return EINVAL;
	q->ece_asked = ece->options;
	q->ece = 0;
	q->ece_settled = true;
	return 0;
}

// settle_ece is part of a change of state. It returns false if the firmware refuses.
bool settle_ece(struct queue_pair *q)
{
	if (q->ece_asked && has(card_of(q->ibv.context), ECE_REFUSED))
		return false;
	if (q->ece_asked)
		q->ece = q->ece_asked & known(q);
	q->ece_asked = 0;
	return true;
}

int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
	if (id->qp || !ece->vendor_id || ece->comp_mask)
		return leave(EINVAL);
	i->local_ece = *ece;
	return leave(0);
}

int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
	if (id->qp)
		return leave(EINVAL);
	*ece = i->remote_ece;
	return leave(0);
}
