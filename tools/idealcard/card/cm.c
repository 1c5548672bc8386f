// Connections of rdma_cm, between two identifiers of this process.

#include "cm.h"
#include "card.h"

#include <errno.h>
#include <stdlib.h>

enum { REJ_TIMEOUT = 4, REJ_INVALID_SERVICE_ID = 8, REJ_CONSUMER_DEFINED = 28 }; // reasons, by the InfiniBand specification

pthread_mutex_t manager = PTHREAD_MUTEX_INITIALIZER;
struct identifier *identifiers;

int leave(int error)
{
	pthread_mutex_unlock(&manager);
	if (!error)
		return 0;
	errno = error;
	return -1;
}

void set_device(struct identifier *i)
{
	i->ibv.verbs = &context;
	i->ibv.port_num = 1;
}

struct identifier *new_identifier(struct rdma_event_channel *channel, void *user)
{
	struct identifier *i = calloc(1, sizeof *i);
	i->ibv.channel = channel;
	i->ibv.context = user;
	i->ibv.ps = RDMA_PS_TCP;
	i->ibv.qp_type = IBV_QPT_RC;
	i->next = identifiers;
	identifiers = i;
	return i;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *user, enum rdma_port_space ps)
{
	pthread_mutex_lock(&manager);
	if (ps != RDMA_PS_TCP)
		return leave(EOPNOTSUPP);
	*id = &new_identifier(channel, user)->ibv;
	return leave(0);
}

static void reject(struct identifier *p, int reason, const void *data, size_t length)
{
	p->state = CLOSED;
	push_data(p, p, RDMA_CM_EVENT_REJECTED, reason, data, length, REJ_DATA);
}

static void disconnected(struct identifier *i, enum state next)
{
	i->state = next;
	push(i, RDMA_CM_EVENT_DISCONNECTED, 0);
}

// hang_up tells the peer that this end disconnects, as far as the peer is connected.
static void hang_up(struct identifier *p)
{
	if (p->state == CONNECTED || p->state == REP_SENT)
		disconnected(p, DREQ_RCVD);
	else if (p->state == DREQ_SENT)
		disconnected(p, CLOSED);
}

// tell_peer tells the peer what the kernel does when an identifier is destroyed.
static void tell_peer(struct identifier *i, struct identifier *p)
{
	switch (i->state) {
	case REQ_SENT:
		reject(p, REJ_TIMEOUT, NULL, 0);
		break;
	case REQ_RCVD:
	case REP_RCVD:
	case REP_SENT:
		if (p->state != CLOSED)
			reject(p, REJ_CONSUMER_DEFINED, NULL, 0);
		break;
	case CONNECTED:
	case DREQ_RCVD:
		hang_up(p);
		break;
	default:
		break;
	}
}

// part takes an identifier from its peer and from the list.
void part(struct identifier *i)
{
	struct identifier *p = i->peer, **at = &identifiers;
	if (p) {
		tell_peer(i, p);
		p->peer = i->peer = NULL;
	}
	i->state = CLOSED;
	while (*at != i)
		at = &(*at)->next;
	*at = i->next;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	part(i);
	await_events(i);
	pthread_mutex_unlock(&manager);
	free(i);
	return 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	(void)backlog;
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if (i->state != BOUND)
		return leave(EINVAL);
	i->state = LISTENING;
	return leave(0);
}

static struct identifier *listener_at(struct sockaddr *a)
{
	struct identifier *l = identifiers;
	while (l && !(l->state == LISTENING && covers(l, a)))
		l = l->next;
	return l;
}

// ask gives the listener an identifier for a connection that i asks for.
static struct identifier *ask(struct identifier *i, struct identifier *listener)
{
	struct identifier *n = new_identifier(listener->ibv.channel, listener->ibv.context);
	n->state = REQ_RCVD;
	n->ibv.route = i->ibv.route;
	n->ibv.route.addr.src_storage = i->ibv.route.addr.dst_storage;
	n->ibv.route.addr.dst_storage = i->ibv.route.addr.src_storage;
	n->traffic_class = i->traffic_class;
	set_device(n);
	i->state = REQ_SENT;
	i->peer = n;
	n->peer = i;
	return n;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if (i->state != ROUTE_RESOLVED || param->private_data_len > REQ_DATA)
		return leave(EINVAL);
	struct identifier *l = listener_at(destination(i));
	if (!l) {
		reject(i, REJ_INVALID_SERVICE_ID, NULL, 0);
		return leave(0);
	}
	struct identifier *n = ask(i, l);
	n->remote_qp_num = param->qp_num;
	struct rdma_conn_param *c = &push_data(l, n, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param->private_data, param->private_data_len, REQ_DATA)->param.conn;
	c->responder_resources = param->initiator_depth;
	c->initiator_depth = param->responder_resources;
	c->retry_count = param->retry_count;
	c->rnr_retry_count = param->rnr_retry_count;
	c->qp_num = param->qp_num;
	return leave(0);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	struct identifier *p = i->peer;
	if (i->state != REQ_RCVD || !p || param->private_data_len > REP_DATA)
		return leave(EINVAL);
	i->state = REP_SENT;
	p->remote_qp_num = param->qp_num;
	p->state = REP_RCVD;
	push_data(p, p, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, param->private_data, param->private_data_len, REP_DATA)->param.conn.qp_num = param->qp_num;
	return leave(0);
}

static void establish(struct identifier *i)
{
	i->state = CONNECTED;
	push(i, RDMA_CM_EVENT_ESTABLISHED, 0);
}

int rdma_establish(struct rdma_cm_id *id)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if (i->state != REP_RCVD)
		return leave(EINVAL);
	i->state = CONNECTED;
	if (i->peer && i->peer->state == REP_SENT)
		establish(i->peer);
	return leave(0);
}

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type type)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if (type == IBV_EVENT_COMM_EST && i->state == CONNECTED)
		return leave(EISCONN);
	if (type != IBV_EVENT_COMM_EST || i->state != REP_SENT)
		return leave(EINVAL);
	establish(i);
	return leave(0);
}

int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if ((i->state != REQ_RCVD && i->state != REP_RCVD && i->state != REP_SENT) || length > REJ_DATA)
		return leave(EINVAL);
	if (i->peer)
		reject(i->peer, REJ_CONSUMER_DEFINED, data, length);
	i->state = CLOSED;
	return leave(0);
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if (i->state != CONNECTED && i->state != DREQ_RCVD)
		return leave(EINVAL);
	i->state = i->state == CONNECTED ? DREQ_SENT : CLOSED;
	if (i->peer)
		hang_up(i->peer);
	else if (i->state == DREQ_SENT)
		disconnected(i, CLOSED);
	return leave(0);
}

// connecting reports whether an identifier knows the queue pair of its peer.
static bool connecting(const struct identifier *i)
{
	return i->state == REQ_RCVD || i->state == REP_RCVD || i->state == REP_SENT || i->state == CONNECTED;
}

int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *a, int *mask)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	switch (a->qp_state) {
	case IBV_QPS_INIT:
		*mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
		a->qp_access_flags = 0;
		a->pkey_index = 0;
		a->port_num = id->port_num;
		return leave(id->verbs ? 0 : EINVAL);
	case IBV_QPS_RTR:
		*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		a->path_mtu = IBV_MTU_4096;
		a->dest_qp_num = i->remote_qp_num;
		a->ah_attr.is_global = 1;
		a->ah_attr.grh.traffic_class = i->traffic_class;
		a->ah_attr.port_num = 1;
		return leave(connecting(i) ? 0 : EINVAL);
	case IBV_QPS_RTS:
		*mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
		a->timeout = 18;
		a->retry_cnt = 7;
		a->rnr_retry = 7;
		return leave(connecting(i) ? 0 : EINVAL);
	default:
		return leave(EINVAL);
	}
}

// There are no datagrams, and so no groups: only these names, which a program looks up.

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *user)
{
	(void)id, (void)attr, (void)user;
	pthread_mutex_lock(&manager);
	return leave(EOPNOTSUPP);
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *a)
{
	(void)id, (void)a;
	pthread_mutex_lock(&manager);
	return leave(EOPNOTSUPP);
}
