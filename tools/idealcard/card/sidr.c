// Datagrams of rdma_cm: requests for a queue pair (SIDR), and groups.

#include "cm.h"
#include "card.h"

#include <errno.h>
#include <string.h>

enum { UNSUPPORTED = 1, REJECTED = 2 }; // status, by the InfiniBand specification
enum { NOT_SUPPORTED = 524 };		// ENOTSUPP, which is the kernel's own
enum { GROUP_NUMBER = 0xffffff, FIRST_GROUP_LID = 0xc000 };

static void unreachable(struct identifier *i, int status, const void *data, size_t length)
{
	i->state = CLOSED;
	push_data(i, i, RDMA_CM_EVENT_UNREACHABLE, status, data, length, SIDR_REP_DATA);
}

static void unpair(struct identifier *i)
{
	if (i->peer)
		i->peer->peer = NULL;
	i->peer = NULL;
}

void refuse_unknown_service(struct identifier *i) { unreachable(i, UNSUPPORTED, NULL, 0); }

// towards is how datagrams of an identifier's port reach an address.
static struct ibv_ah_attr towards(const struct identifier *i, const struct sockaddr *a)
{
	struct found f;
	struct ibv_ah_attr attr = {.port_num = i->ibv.port_num};
	if (!find_port(a, &f))
		return attr;
	attr.dlid = f.port->lid;
	attr.is_global = !f.port->infiniband;
	attr.grh.dgid = gid_of(f.port, f.gid);
	attr.grh.sgid_index = i->source_gid;
	attr.grh.hop_limit = 64;
	attr.grh.traffic_class = i->traffic_class;
	return attr;
}

int answer_service(struct identifier *i, const struct rdma_conn_param *param, uint32_t qp_num)
{
	struct identifier *p = i->peer;
	if (i->state != REQ_RCVD || param->private_data_len > SIDR_REP_DATA)
		return EINVAL;
	i->state = CLOSED;
	if (!p)
		return 0;
	if (!has_path(i)) {
		await_path(p, REQUEST);
		unpair(i);
		return 0;
	}
	p->state = CONNECTED;
	struct rdma_cm_event *e = push_data(p, p, RDMA_CM_EVENT_ESTABLISHED, 0, param->private_data, param->private_data_len, SIDR_REP_DATA);
	e->param.ud.ah_attr = towards(p, destination(p));
	e->param.ud.qp_num = qp_num;
	e->param.ud.qkey = i->qkey;
	unpair(i);
	return 0;
}

void refuse_service(struct identifier *i, const void *data, size_t length)
{
	if (i->peer)
		unreachable(i->peer, REJECTED, data, length);
	unpair(i);
}

// group_of is the GID of a group: RoCE has IP's own, and InfiniBand one that has the P_Key, too.
static union ibv_gid group_of(const struct port *p, const struct sockaddr *a)
{
	union ibv_gid gid = {0};
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
	if (p->infiniband) {
		bool is_v6 = a->sa_family == AF_INET6;
		memcpy(gid.raw, (uint8_t[8]){0xff, 0x12, is_v6 ? 0x60 : 0x40, 0x1b, p->pkey[0] >> 8 | 0x80, p->pkey[0]}, 8);
		memcpy(gid.raw + (is_v6 ? 8 : 12), is_v6 ? v6->sin6_addr.s6_addr + 8 : (const uint8_t *)&v4->sin_addr, is_v6 ? 8 : 4);
		if (!is_v6)
			gid.raw[12] &= 0x0f;
	} else if (a->sa_family == AF_INET) {
		gid.raw[10] = gid.raw[11] = 0xff;
		memcpy(gid.raw + 12, &v4->sin_addr, 4);
	} else {
		memcpy(gid.raw, &v6->sin6_addr, 16);
	}
	return gid;
}

static uint16_t lid_of(const union ibv_gid *group)
{
	uint32_t n = 0;
	for (int i = 0; i < 16; i++)
		n = n * 31 + group->raw[i];
	return FIRST_GROUP_LID + n % 0x3fff;
}

static bool is_group(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return IN_MULTICAST(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr));
	return a->sa_family == AF_INET6 && IN6_IS_ADDR_MULTICAST(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *a, void *user)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
	if (!id->verbs || !datagrams(i) || !is_group(a->addr))
		return leave(EINVAL);
	struct port *p = &card_of(id->verbs)->port[id->port_num - 1];
	if (a->addr->sa_family == AF_INET6 && !p->infiniband)
		return leave(NOT_SUPPORTED);
	struct rdma_cm_event *e = push(i, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
	union ibv_gid group = group_of(p, a->addr);
	e->param.ud.private_data = user;
	e->param.ud.qp_num = GROUP_NUMBER;
	e->param.ud.qkey = i->qkey;
	e->param.ud.ah_attr = (struct ibv_ah_attr){.port_num = id->port_num, .is_global = 1, .dlid = p->infiniband ? lid_of(&group) : 0,
		.grh = {.dgid = group, .sgid_index = i->source_gid, .hop_limit = 64, .traffic_class = i->traffic_class}};
	return leave(0);
}

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *a, void *user)
{
	struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER, .addr = a};
	return rdma_join_multicast_ex(id, &attr, user);
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *a)
{
	if (id->verbs && id->qp) {
		union ibv_gid group = group_of(&card_of(id->verbs)->port[id->port_num - 1], a);
		ibv_detach_mcast(id->qp, &group, 0);
	}
	return 0;
}
