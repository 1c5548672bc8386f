// Datagrams: queue pairs of type UD, address handles, and groups.

#include "card.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

enum { GROUP_NUMBER = 0xffffff, MOST_MEMBERS = 256 };

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	struct card *c = card_of(pd->context);
	if (a->port_num < 1 || a->port_num > c->ports || (!c->port[a->port_num - 1].infiniband && !a->is_global)) {
		errno = EINVAL;
		return NULL;
	}
	struct address_handle *h = allocate(self, sizeof *h);
	h->ibv = (struct ibv_ah){.context = pd->context, .pd = pd};
	h->attr = *a;
	return &h->ibv;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	release(ah);
	return 0;
}

static bool same_gid(const union ibv_gid *a, const union ibv_gid *b) { return !memcmp(a->raw, b->raw, sizeof a->raw); }

static int index_of(const struct port *p, const union ibv_gid *gid)
{
	for (int i = 0; i < gids_of(p); i++) {
		union ibv_gid own = gid_of(p, i);
		if (same_gid(&own, gid))
			return i;
	}
	return -1;
}

static bool is_v4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	return !memcmp(gid->raw, mapped, sizeof mapped);
}

static uint16_t checksum(const uint8_t *header)
{
	uint32_t sum = 0;
	for (int i = 0; i < 20; i += 2)
		sum += header[i] << 8 | header[i + 1];
	sum = (sum >> 16) + (sum & 0xffff);
	return ~((sum >> 16) + (sum & 0xffff));
}

// make_header makes what precedes a datagram: the header of IP, in the last 20 bytes that of IPv4,
// before which is nothing of meaning; or InfiniBand's global route header.
static void make_header(uint8_t *header, const struct port *p, const struct ibv_ah_attr *a, uint64_t length)
{
	union ibv_gid from = gid_of(p, a->grh.sgid_index);
	uint16_t payload = htobe16(length + 8 + 12 + 8 + 4); // headers of UDP and InfiniBand, and a checksum
	if (!p->infiniband && is_v4(&a->grh.dgid)) {
		uint8_t *v4 = header + 20;
		uint16_t total = htobe16(be16toh(payload) + 20);
		memset(header, 0x5a, HEADER);
		memcpy(v4, (uint8_t[20]){0x45, a->grh.traffic_class, 0, 0, 0, 0, 0x40, 0, a->grh.hop_limit, 17}, 20);
		memcpy(v4 + 2, &total, sizeof total);
		memcpy(v4 + 12, from.raw + 12, 4);
		memcpy(v4 + 16, a->grh.dgid.raw + 12, 4);
		uint16_t sum = htobe16(checksum(v4));
		memcpy(v4 + 10, &sum, sizeof sum);
		return;
	}
	memcpy(header, (uint8_t[8]){0x60 | a->grh.traffic_class >> 4, a->grh.traffic_class << 4, 0, 0, 0, 0, p->infiniband ? 0x1b : 17,
			       a->grh.hop_limit}, 8);
	memcpy(header + 4, &payload, sizeof payload);
	memcpy(header + 8, from.raw, 16);
	memcpy(header + 24, a->grh.dgid.raw, 16);
}

int ibv_init_ah_from_wc(struct ibv_context *ctx, uint8_t number, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *a)
{
	struct port *p = &card_of(ctx)->port[number - 1];
	const uint8_t *header = (const uint8_t *)grh, *v4 = header + 20;
	union ibv_gid to = {.raw = {[10] = 0xff, [11] = 0xff}};
	*a = (struct ibv_ah_attr){.dlid = wc->slid, .sl = wc->sl, .port_num = number};
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	a->is_global = 1;
	a->grh.hop_limit = 64;
	if (!p->infiniband && v4[0] == 0x45 && checksum(v4) == 0) {
		a->grh.dgid = to;
		memcpy(a->grh.dgid.raw + 12, v4 + 12, 4);
		memcpy(to.raw + 12, v4 + 16, 4);
	} else {
		memcpy(a->grh.dgid.raw, header + 8, 16);
		memcpy(to.raw, header + 24, 16);
	}
	int index = index_of(p, &to);
	a->grh.sgid_index = index < 0 ? 0 : index;
	return 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t number)
{
	struct ibv_ah_attr a;
	ibv_init_ah_from_wc(pd->context, number, wc, grh, &a);
	return ibv_create_ah(pd, &a);
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	if (qp->qp_type != IBV_QPT_UD || (gid->raw[0] != 0xff && !is_v4(gid)))
		return EINVAL;
	struct attachment *a = allocate(0, sizeof *a);
	*a = (struct attachment){.qp = (struct queue_pair *)qp, .group = *gid};
	take_control();
	spin_lock(&fabric->group_lock);
	a->next = fabric->attachments;
	fabric->attachments = a;
	spin_unlock(&fabric->group_lock);
	release_control();
	return 0;
}

// detach ends the membership of a queue pair in a group, or, without one, in all. Control is held.
static bool detach(struct queue_pair *q, const union ibv_gid *group)
{
	bool found = false;
	spin_lock(&fabric->group_lock);
	for (struct attachment **at = &fabric->attachments; *at;) {
		struct attachment *a = *at;
		if (a->qp == q && (!group || same_gid(&a->group, group))) {
			*at = a->next;
			release(a);
			found = true;
		} else {
			at = &a->next;
		}
	}
	spin_unlock(&fabric->group_lock);
	return found;
}

void leave_groups(struct queue_pair *q) { detach(q, NULL); }

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	take_control();
	bool found = detach((struct queue_pair *)qp, gid);
	release_control();
	return found ? 0 : EINVAL;
}

// is_addressed reports whether an address handle leads to a queue pair's port.
static bool is_addressed(struct queue_pair *p, const struct ibv_ah_attr *a)
{
	struct port *port = port_of(p);
	return port->infiniband && !a->is_global ? port->lid == a->dlid : index_of(port, &a->grh.dgid) >= 0;
}

// A place in the memory of a receive.
struct place {
	int sge;
	uint64_t filled;
};

static bool put(struct queue_pair *p, const struct receive *r, struct place *at, const struct queue_pair *q, uint64_t from, uint64_t left)
{
	while (left) {
		const struct ibv_sge *g = &r->sge[at->sge];
		if (at->sge == r->num_sge || !permits(g->lkey, p->ibv.pd, IBV_ACCESS_LOCAL_WRITE, g->addr, g->length))
			return false;
		uint64_t n = g->length - at->filled < left ? g->length - at->filled : left;
		if (copy_to(p, g->addr + at->filled, q, from, n))
			return false;
		from += n, left -= n, at->filled += n;
		if (at->filled == g->length)
			*at = (struct place){at->sge + 1, 0};
	}
	return true;
}

// skip leaves memory of a receive as it is.
static void skip(const struct receive *r, struct place *at, uint64_t left)
{
	while (left) {
		uint64_t room = r->sge[at->sge].length - at->filled, n = room < left ? room : left;
		left -= n, at->filled += n;
		if (n == room)
			*at = (struct place){at->sge + 1, 0};
	}
}

static bool fits(const struct receive *r, uint64_t length)
{
	uint64_t room = 0;
	for (int i = 0; i < r->num_sge; i++)
		room += r->sge[i].length;
	return length <= room;
}

// arrive gives a datagram to the first receive of a queue pair. The queue pair's arrival_lock is
// held. Without a receive that it fits in it is lost.
static void arrive(struct queue_pair *p, struct queue_pair *q, const struct ibv_send_wr *wr, uint64_t length, uint64_t at,
	struct after *after)
{
	struct address_handle *h = (struct address_handle *)wr->wr.ud.ah;
	struct port *from = port_of(q);
	bool has_header = (!from->infiniband || h->attr.is_global) && sends_header(q);
	uint64_t tail = atomic_load(&p->receive_tail);
	if (tail == atomic_load_explicit(&p->receive_head, memory_order_acquire))
		return;
	struct receive *r = &p->receives[tail & p->receive_mask];
	uint8_t header[HEADER];
	struct place place = {0, 0};
	if (!fits(r, HEADER + length))
		return;
	if (has_header) {
		make_header(header, from, &h->attr, length);
		if (!put(p, r, &place, q, (uintptr_t)header, HEADER))
			return;
	} else {
		skip(r, &place, HEADER);
	}
	for (int i = 0; i < wr->num_sge; i++)
		if (!put(p, r, &place, q, wr->sg_list[i].addr, wr->sg_list[i].length))
			return;
	struct completion c = {.wr_id = r->wr_id, .at = at, .qp = p, .byte_len = HEADER + length, .src_qp = q->ibv.qp_num,
		.opcode = IBV_WC_RECV, .flags = has_header ? IBV_WC_GRH : 0, .slid = from->lid};
	if (wr->opcode == IBV_WR_SEND_WITH_IMM) {
		c.imm_data = wr->imm_data;
		c.flags |= IBV_WC_WITH_IMM;
	}
	atomic_store_explicit(&p->receive_tail, tail + 1, memory_order_release);
	complete(p->ibv.recv_cq, RECEIVES, &c, after);
}

// deliver takes a datagram to a queue pair, if that is still there and takes it.
static void deliver(struct queue_pair *p, uint32_t number, struct queue_pair *q, const struct ibv_send_wr *wr, uint64_t length, uint64_t at,
	struct after *after)
{
	uint32_t key = wr->wr.ud.remote_qkey >> 31 ? q->qkey : wr->wr.ud.remote_qkey;
	if (!spin_lock_unless_stopped(&p->arrival_lock))
		return;
	int state = atomic_load(&p->state);
	if (p->ibv.qp_num == number && p->ibv.qp_type == IBV_QPT_UD && (state == IBV_QPS_RTS || state == IBV_QPS_RTR) && p->qkey == key &&
	    port_of(p)->infiniband == port_of(q)->infiniband && share_partition(p, q))
		arrive(p, q, wr, length, at, after);
	spin_unlock(&p->arrival_lock);
}

static int members_of(const union ibv_gid *group, struct queue_pair **all, uint32_t *numbers)
{
	int n = 0;
	spin_lock(&fabric->group_lock);
	for (struct attachment *a = fabric->attachments; a && n < MOST_MEMBERS; a = a->next)
		if (same_gid(&a->group, group)) {
			numbers[n] = a->qp->ibv.qp_num;
			all[n++] = a->qp;
		}
	spin_unlock(&fabric->group_lock);
	return n;
}

static void deliver_to_group(struct queue_pair *q, const struct ibv_send_wr *wr, uint64_t length, uint64_t at, struct after *after)
{
	struct queue_pair *all[MOST_MEMBERS];
	uint32_t numbers[MOST_MEMBERS];
	int n = members_of(&((struct address_handle *)wr->wr.ud.ah)->attr.grh.dgid, all, numbers);
	for (int i = 0; i < n; i++)
		if (!impaired() || reaches(q, all[i]))
			deliver(all[i], numbers[i], q, wr, length, at, after);
}

void send_datagram(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after)
{
	struct address_handle *h = (struct address_handle *)wr->wr.ud.ah;
	uint32_t number = wr->wr.ud.remote_qpn;
	uint64_t length;
	if (atomic_load(&q->state) == IBV_QPS_ERR) {
		fail(q, wr, position, IBV_WC_WR_FLUSH_ERR, now, after);
		return;
	}
	if (!own_memory(q, wr, &length) || length > port_of(q)->mtu || (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM)) {
		after->todo |= FLUSH;
		fail(q, wr, position, length > port_of(q)->mtu ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR, now, after);
		return;
	}
	struct queue_pair *p = fabric->by_number[number % NUMBERS];
	now = sent(q, length, now);
	if (number == GROUP_NUMBER)
		deliver_to_group(q, wr, length, now + latency, after);
	else if (p && p->ibv.qp_num == number && is_addressed(p, &h->attr) && (!impaired() || reaches(q, p)))
		deliver(p, number, q, wr, length, now + latency, after);
	if ((wr->send_flags & IBV_SEND_SIGNALED) || q->signal_all) {
		struct completion c = {.wr_id = wr->wr_id, .at = now + latency, .qp = q, .position = position, .byte_len = length, .opcode = IBV_WC_SEND};
		complete(q->ibv.send_cq, SENDS, &c, after);
	}
}
