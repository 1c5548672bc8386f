// Queue pairs that librdmacm makes for its user, and moves from state to state with a connection.

#include "cm.h"
#include "card.h"

#include <errno.h>

// connecting reports whether an identifier knows the queue pair of its peer.
static bool connecting(const struct identifier *i)
{
	return i->state == REQ_RCVD || i->state == REP_RCVD || i->state == REP_SENT || i->state == CONNECTED;
}

static int datagram_attributes(struct identifier *i, struct ibv_qp_attr *a, int *mask)
{
	*mask = IBV_QP_STATE;
	if (a->qp_state == IBV_QPS_INIT) {
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
		a->pkey_index = 0;
		a->port_num = i->ibv.port_num;
		a->qkey = i->qkey;
	} else if (a->qp_state == IBV_QPS_RTS) {
		*mask |= IBV_QP_SQ_PSN;
	}
	return i->ibv.verbs ? 0 : EINVAL;
}

// path_to_peer has the MTU of the active side's port, which the request tells the passive side.
static void path_to_peer(struct identifier *i, struct ibv_qp_attr *a)
{
	struct found f;
	const struct port *own = &card_of(i->ibv.verbs)->port[i->ibv.port_num - 1];
	a->path_mtu = enum_of_mtu(own->mtu);
	a->dest_qp_num = i->remote_qp_num;
	a->ah_attr.port_num = i->ibv.port_num;
	a->ah_attr.is_global = !own->infiniband;
	a->ah_attr.grh.sgid_index = i->source_gid;
	a->ah_attr.grh.hop_limit = 64;
	a->ah_attr.grh.traffic_class = i->traffic_class;
	if (find_port(destination(i), &f)) {
		a->ah_attr.dlid = f.port->lid;
		a->ah_attr.grh.dgid = gid_of(f.port, f.gid);
		if (i->state == REQ_RCVD)
			a->path_mtu = enum_of_mtu(f.port->mtu);
	}
}

static int connection_attributes(struct identifier *i, struct ibv_qp_attr *a, int *mask)
{
	switch (a->qp_state) {
	case IBV_QPS_INIT:
		*mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
		a->qp_access_flags = connecting(i) ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0;
		a->pkey_index = 0;
		a->port_num = i->ibv.port_num;
		return i->ibv.verbs ? 0 : EINVAL;
	case IBV_QPS_RTR:
		*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		if (!connecting(i))
			return EINVAL;
		path_to_peer(i, a);
		return 0;
	case IBV_QPS_RTS:
		*mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
		a->timeout = 18;
		a->retry_cnt = 7;
		a->rnr_retry = 7;
		return connecting(i) ? 0 : EINVAL;
	default:
		return EINVAL;
	}
}

int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *a, int *mask)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
	return leave(datagrams(i) ? datagram_attributes(i, a, mask) : connection_attributes(i, a, mask));
}

static int move_to(struct rdma_cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_attr a = {.qp_state = state};
	int mask, rc = rdma_init_qp_attr(id, &a, &mask);
	if (rc)
		return rc;
	errno = ibv_modify_qp(id->qp, &a, mask);
	return errno ? -1 : 0;
}

static int connect_queue_pair(struct rdma_cm_id *id)
{
	return move_to(id, IBV_QPS_INIT) || move_to(id, IBV_QPS_RTR) || move_to(id, IBV_QPS_RTS) ? -1 : 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	bool is_datagrams = a->qp_type == IBV_QPT_UD;
	if (!pd && !id->pd)
		id->pd = ibv_alloc_pd(id->verbs);
	id->qp = ibv_create_qp(pd ? pd : id->pd, a);
	if (!id->qp)
		return -1;
	if (move_to(id, IBV_QPS_INIT) || (is_datagrams && (move_to(id, IBV_QPS_RTR) || move_to(id, IBV_QPS_RTS)))) {
		rdma_destroy_qp(id);
		return -1;
	}
	return 0;
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *a)
{
	return rdma_create_qp(id, a->comp_mask & IBV_QP_INIT_ATTR_PD ? a->pd : NULL, (struct ibv_qp_init_attr *)a);
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	ibv_destroy_qp(id->qp);
	id->qp = NULL;
}

// before_accept makes the queue pair ready for what the peer sends once it has been accepted.
int before_accept(struct identifier *i) { return i->ibv.qp && !datagrams(i) ? connect_queue_pair(&i->ibv) : 0; }

void fail_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	if (id->qp)
		ibv_modify_qp(id->qp, &a, IBV_QP_STATE);
}

// before_report does what librdmacm does with an event before its user gets it.
void before_report(struct rdma_cm_event *e)
{
	struct rdma_cm_id *id = e->id;
	if (!id->qp)
		return;
	if (e->event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
		if (connect_queue_pair(id) || rdma_establish(id)) {
			e->event = RDMA_CM_EVENT_CONNECT_ERROR;
			e->status = errno;
			return;
		}
		e->event = RDMA_CM_EVENT_ESTABLISHED;
	} else if (e->event == RDMA_CM_EVENT_REJECTED) {
		fail_queue_pair(id);
	} else if (e->event == RDMA_CM_EVENT_MULTICAST_JOIN && !e->status) {
		e->status = ibv_attach_mcast(id->qp, &e->param.ud.ah_attr.grh.dgid, e->param.ud.ah_attr.dlid);
	}
}
