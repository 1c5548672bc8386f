#include "pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

struct rdma_event_channel *events;
struct pair *pairs;

static void must(int rc, const char *what)
{
	if (rc != 0)
		fail("%s: %s", what, strerror(rc > 0 ? rc : errno));
}

static void *got(void *p, const char *what)
{
	if (p == NULL)
		fail("%s: %s", what, strerror(errno));
	return p;
}

struct pair *new_pair(struct rdma_cm_id *id, struct link *l)
{
	struct pair *p = got(calloc(1, sizeof *p), "calloc");
	p->id = id;
	p->link = l;
	p->made = now();
	p->next = pairs;
	pairs = p;
	id->context = p;
	return p;
}

// init_attr asks the connection manager for attributes, which it has only as long as the peer has not
// withdrawn.
static bool init_attr(struct pair *p, struct ibv_qp_attr *attr, int *mask)
{
	p->failed = p->failed || rdma_init_qp_attr(p->id, attr, mask) != 0;
	return !p->failed;
}

void make_queues(struct pair *p)
{
	struct link *l = p->link;
	p->pd = got(ibv_alloc_pd(p->id->verbs), "ibv_alloc_pd");
	p->channel = got(ibv_create_comp_channel(p->id->verbs), "ibv_create_comp_channel");
	fcntl(p->channel->fd, F_SETFL, O_NONBLOCK);
	p->cq = got(ibv_create_cq(p->id->verbs, SENDS + RECEIVES, NULL, p->channel, 0), "ibv_create_cq");
	must(ibv_req_notify_cq(p->cq, 0), "ibv_req_notify_cq");
	struct ibv_qp_init_attr init = {
		.send_cq = p->cq,
		.recv_cq = p->cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = SENDS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
	};
	p->qp = got(ibv_create_qp(p->pd, &init), "ibv_create_qp");
	const int remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	p->rings = got(ibv_reg_mr(p->pd, l->rings, RINGS_SIZE, remote), "ibv_reg_mr");
	p->out = got(ibv_reg_mr(p->pd, l->out, OUT_MEMORY, 0), "ibv_reg_mr");
	p->slots = got(calloc(CONTROL_RECEIVES, MESSAGE), "calloc");
	p->mailbox = got(ibv_reg_mr(p->pd, p->slots, CONTROL_RECEIVES * MESSAGE, remote), "ibv_reg_mr");
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	int mask;
	if (!init_attr(p, &attr, &mask))
		return;
	attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	must(ibv_modify_qp(p->qp, &attr, mask), "ibv_modify_qp to INIT");
	while (p->receives < RECEIVES)
		post_receive(p);
}

void post_receive(struct pair *p)
{
	struct ibv_recv_wr wr = {.wr_id = 0}, *bad;
	must(ibv_post_recv(p->qp, &wr, &bad), "ibv_post_recv");
	p->receives++;
}

void post_write(struct pair *p, const uint8_t *from, uint32_t n, uint64_t addr, uint32_t rkey, uint32_t imm)
{
	struct ibv_sge sge = {(uintptr_t)from, n, p->out->lkey};
	struct ibv_send_wr wr = {
		.wr_id = 1, // a completion with an error has no opcode
		.sg_list = &sge,
		.num_sge = n > 0,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl(imm),
		.wr.rdma = {.remote_addr = addr, .rkey = rkey},
	}, *bad;
	must(ibv_post_send(p->qp, &wr, &bad), "ibv_post_send");
	p->under_way++;
}

int to_ready(struct pair *p, int mtu)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int mask;
	if (!init_attr(p, &attr, &mask))
		return 0;
	struct ibv_port_attr port;
	must(ibv_query_port(p->id->verbs, p->id->port_num, &port), "ibv_query_port");
	if (attr.path_mtu > port.active_mtu)
		attr.path_mtu = port.active_mtu;
	if (mtu > 0 && (int)attr.path_mtu > mtu)
		attr.path_mtu = mtu;
	attr.min_rnr_timer = 12;
	attr.max_dest_rd_atomic = 0;
	must(ibv_modify_qp(p->qp, &attr, mask), "ibv_modify_qp to RTR");
	mtu = attr.path_mtu;
	attr.qp_state = IBV_QPS_RTS;
	if (!init_attr(p, &attr, &mask))
		return 0;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 0;
	must(ibv_modify_qp(p->qp, &attr, mask), "ibv_modify_qp to RTS");
	return mtu;
}

void to_error(struct pair *p)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	ibv_modify_qp(p->qp, &attr, IBV_QP_STATE);
	rdma_disconnect(p->id);
}

void destroy_pair(struct pair *p)
{
	for (struct pair **at = &pairs; *at != NULL; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	if (p->qp != NULL) {
		ibv_destroy_qp(p->qp);
		ibv_destroy_cq(p->cq);
		ibv_dereg_mr(p->mailbox);
		ibv_dereg_mr(p->rings);
		ibv_dereg_mr(p->out);
		ibv_destroy_comp_channel(p->channel);
		ibv_dealloc_pd(p->pd);
		free(p->slots);
	}
	rdma_destroy_id(p->id);
	free(p);
}

void put_mailbox(struct pair *p, uint8_t *to)
{
	put(to, 8, (uintptr_t)p->slots);
	put(to + 8, 4, p->mailbox->rkey);
}

bool get_mailbox(struct pair *p, const uint8_t *private, size_t length, size_t at)
{
	if (length < at + 12)
		return false;
	p->peer_mailbox = get(private + at, 8);
	p->peer_mailbox_key = get(private + at + 8, 4);
	return p->peer_mailbox != 0 || p->peer_mailbox_key != 0;
}

void mapped(uint8_t to[16], const struct sockaddr *addr)
{
	if (addr->sa_family == AF_INET6) {
		memcpy(to, &((const struct sockaddr_in6 *)addr)->sin6_addr, 16);
		return;
	}
	memset(to, 0, 16);
	to[10] = to[11] = 0xff;
	memcpy(to + 12, &((const struct sockaddr_in *)addr)->sin_addr, 4);
}
