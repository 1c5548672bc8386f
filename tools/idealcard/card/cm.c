// Connections of rdma_cm, between two identifiers.

#include "cm.h"
#include "card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { REJ_TIMEOUT = 4, REJ_INVALID_SERVICE_ID = 8, REJ_STALE_CONN = 10, REJ_CONSUMER_DEFINED = 28 }; // reasons, by the InfiniBand specification

int leave(int error)
{
	release_manager();
	if (!error)
		return 0;
	errno = error;
	return -1;
}

struct identifier *new_identifier(struct rdma_event_channel *channel, void *user, enum rdma_port_space ps)
{
	unsigned process = ((struct cm_channel *)channel)->process;
	struct identifier *i = allocate(process, sizeof *i);
	i->process = process;
	i->ibv.channel = channel;
	i->ibv.context = user;
	i->ibv.ps = ps;
	i->ibv.qp_type = ps == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD;
	i->qkey = RDMA_UDP_QKEY;
	i->next = fabric->identifiers;
	fabric->identifiers = i;
	return i;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *user, enum rdma_port_space ps)
{
	take_manager();
	if (!channel || (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IPOIB))
		return leave(EOPNOTSUPP);
	*id = &new_identifier(channel, user, ps)->ibv;
	return leave(0);
}

// behaves reports whether i's card has a manner. While a card is gone, identifiers have none.
static bool behaves(const struct identifier *i, enum manner m) { return i->ibv.verbs && has(card_of(i->ibv.verbs), m); }

static uint64_t patience(void) { return 60000000000; }

// has_path reports whether a message of i reaches its peer's host.
bool has_path(struct identifier *i)
{
	struct found from, to;
	if (!impaired())
		return true;
	return find_port(source(i), &from) && find_port(destination(i), &to) && joined(from.card, from.port, to.card, to.port);
}

void await_path(struct identifier *i, enum message m)
{
	i->unanswered = m;
	i->expires = nanoseconds() + patience();
}

// keep keeps what is sent with a message, for the case that it has to be sent again.
static void keep(struct identifier *i, const struct rdma_conn_param *param)
{
	i->sent = *param;
	memcpy(i->data, param->private_data, param->private_data_len);
	i->sent.private_data = i->data;
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
	if (!has_path(i)) {
		if (p->state == REQ_SENT)
			await_path(p, REQUEST);
		return;
	}
	if (datagrams(i)) {
		if (i->state == REQ_RCVD)
			refuse_service(i, NULL, 0);
		return;
	}
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
		if (!behaves(i, DREQ_LOST))
			hang_up(p);
		break;
	default:
		break;
	}
}

// part takes an identifier from its peer and from the list.
void part(struct identifier *i)
{
	struct identifier *p = i->peer, **at = &fabric->identifiers;
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
	take_manager();
	part(i);
	await_events(i);
	release_manager();
	release(i);
	return 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	(void)backlog;
	struct identifier *i = (struct identifier *)id;
	take_manager();
	if (i->state != BOUND)
		return leave(EINVAL);
	i->state = LISTENING;
	return leave(0);
}

// listener_at is the one that takes the requests of i, or NULL.
static struct identifier *listener_at(struct identifier *i)
{
	struct identifier *l = fabric->identifiers;
	struct found f;
	if (!find_port(destination(i), &f))
		return NULL;
	while (l && !(host_of(l->process) == f.card->host && l->state == LISTENING && l->ibv.ps == i->ibv.ps && covers(l, destination(i))))
		l = l->next;
	return l;
}

// ask gives the listener an identifier for a connection that i asks for.
static struct identifier *ask(struct identifier *i, struct identifier *listener)
{
	struct identifier *n = new_identifier(listener->ibv.channel, listener->ibv.context, listener->ibv.ps);
	n->state = REQ_RCVD;
	n->asked = true;
	n->ibv.route.addr.src_storage = i->ibv.route.addr.dst_storage;
	n->ibv.route.addr.dst_storage = i->ibv.route.addr.src_storage;
	n->traffic_class = i->traffic_class;
	i->state = REQ_SENT;
	i->peer = n;
	n->peer = i;
	return n;
}

static size_t room_for_request(const struct identifier *i) { return datagrams(i) ? SIDR_REQ_DATA : REQ_DATA; }

static void send_request(struct identifier *i);

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *given)
{
	static const struct rdma_conn_param none;
	struct identifier *i = (struct identifier *)id;
	const struct rdma_conn_param *param = given ? given : &none;
	if (id->verbs && calls_fail(id->verbs)) {
		errno = ENODEV;
		return -1;
	}
	take_manager();
	if (i->state != ROUTE_RESOLVED || param->private_data_len > room_for_request(i))
		return leave(EINVAL);
	keep(i, param);
	i->sent.qp_num = id->qp ? id->qp->qp_num : param->qp_num;
	send_request(i);
	return leave(0);
}

static void send_request(struct identifier *i)
{
	const struct rdma_conn_param *param = &i->sent;
	if (!has_path(i)) {
		i->state = REQ_SENT;
		await_path(i, REQUEST);
		return;
	}
	struct identifier *l = listener_at(i);
	// The peer's kernel remembers a connection of this queue pair, and forgets it then: cm_match_req.
	if (l && behaves(i, STALE_ONCE) && !atomic_exchange(&card_of(i->ibv.verbs)->forgotten, true)) {
		reject(i, REJ_STALE_CONN, NULL, 0);
		return;
	}
	if (!l && datagrams(i))
		refuse_unknown_service(i);
	else if (!l)
		reject(i, REJ_INVALID_SERVICE_ID, NULL, 0);
	if (!l)
		return;
	struct identifier *n = ask(i, l);
	struct rdma_cm_event *e = push_data(l, n, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param->private_data, param->private_data_len, room_for_request(i));
	if (datagrams(i))
		return;
	n->remote_qp_num = param->qp_num;
	n->remote_ece = i->local_ece;
	struct rdma_conn_param *c = &e->param.conn;
	c->responder_resources = param->initiator_depth;
	c->initiator_depth = param->responder_resources;
	c->retry_count = param->retry_count;
	c->rnr_retry_count = param->rnr_retry_count;
	c->qp_num = n->remote_qp_num;
}

static void send_reply(struct identifier *i);

static int accept_connection(struct identifier *i, const struct rdma_conn_param *param, uint32_t qp_num)
{
	struct identifier *p = i->peer;
	if (i->state != REQ_RCVD || !p || param->private_data_len > REP_DATA)
		return EINVAL;
	i->state = REP_SENT;
	keep(i, param);
	i->sent.qp_num = qp_num;
	send_reply(i);
	return 0;
}

static void send_reply(struct identifier *i)
{
	const struct rdma_conn_param *param = &i->sent;
	struct identifier *p = i->peer;
	uint32_t qp_num = param->qp_num;
	if (!p)
		return;
	if (!has_path(i)) {
		await_path(i, REPLY);
		return;
	}
	p->remote_qp_num = qp_num;
	p->remote_ece = (struct ibv_ece){i->remote_ece.vendor_id, i->local_ece.options, 0};
	p->state = REP_RCVD;
	if (behaves(i, REP_LOST) && answer_later(p, param, qp_num))
		return;
	struct rdma_cm_event *e = push_data(p, p, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, param->private_data, param->private_data_len, REP_DATA);
	e->param.conn.qp_num = qp_num;
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	static const struct rdma_conn_param none;
	struct identifier *i = (struct identifier *)id;
	const struct rdma_conn_param *p = param ? param : &none;
	uint32_t qp_num = id->qp ? id->qp->qp_num : p->qp_num;
	if (before_accept(i))
		return -1;
	take_manager();
	return leave(datagrams(i) ? answer_service(i, p, qp_num) : accept_connection(i, p, qp_num));
}

static void establish(struct identifier *i)
{
	i->state = CONNECTED;
	push(i, RDMA_CM_EVENT_ESTABLISHED, 0);
}

int rdma_establish(struct rdma_cm_id *id)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
	if (i->state != REP_RCVD)
		return leave(EINVAL);
	i->state = CONNECTED;
	if (!has_path(i))
		await_path(i, READY);
	else if (i->peer && i->peer->state == REP_SENT)
		establish(i->peer);
	return leave(0);
}

int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type type)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
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
	take_manager();
	if ((i->state != REQ_RCVD && i->state != REP_RCVD && i->state != REP_SENT) || length > REJ_DATA)
		return leave(EINVAL);
	if (datagrams(i))
		refuse_service(i, data, length);
	else if (i->peer && !has_path(i) && i->peer->state == REQ_SENT)
		await_path(i->peer, REQUEST);
	else if (i->peer && has_path(i))
		reject(i->peer, REJ_CONSUMER_DEFINED, data, length);
	i->state = CLOSED;
	return leave(0);
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	struct identifier *i = (struct identifier *)id;
	fail_queue_pair(id);
	take_manager();
	if (i->state != CONNECTED && i->state != DREQ_RCVD)
		return leave(EINVAL);
	i->state = i->state == CONNECTED ? DREQ_SENT : CLOSED;
	bool lost = behaves(i, DREQ_LOST);
	if (i->peer && !lost && has_path(i))
		hang_up(i->peer);
	else if (i->peer && !lost && i->state == DREQ_SENT)
		await_path(i, GOODBYE);
	else if (i->state == DREQ_SENT)
		disconnected(i, CLOSED);
	return leave(0);
}

static void send_once_more(struct identifier *i, enum message m)
{
	if (m == REQUEST) {
		if (i->peer)
			i->peer->peer = NULL;
		i->peer = NULL;
		send_request(i);
	} else if (m == REPLY) {
		send_reply(i);
	} else if (i->peer && m == READY && i->peer->state == REP_SENT) {
		establish(i->peer);
	} else if (i->peer && m == GOODBYE) {
		hang_up(i->peer);
	}
}

static void expire(struct identifier *i, enum message m)
{
	if (m == ADDRESS_QUERY || m == PATH_QUERY)
		end_query(i, m);
	else if (m == GOODBYE)
		disconnected(i, CLOSED);
	else if (m != READY)
		push(i, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

// send_again sends what got no answer, where there is a path by now, gives up what has got none
// for long, and ends queries.
void send_again(void)
{
	take_manager();
	for (struct identifier *i = fabric->identifiers; i; i = i->next) {
		enum message m = i->unanswered;
		bool late = m && nanoseconds() > i->expires;
		if (!m || (!late && (m >= ADDRESS_QUERY || !has_path(i))))
			continue;
		i->unanswered = NO_MESSAGE;
		if (late)
			expire(i, m);
		else
			send_once_more(i, m);
	}
	release_manager();
}

// remove_device tells those who have identifiers of a card that it is gone.
void remove_device(const struct card *card)
{
	take_manager();
	for (struct identifier *i = fabric->identifiers; i; i = i->next)
		if (i->ibv.verbs && card_of(i->ibv.verbs) == card && is_cut_off(i->ibv.verbs))
			push(i, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	release_manager();
}
