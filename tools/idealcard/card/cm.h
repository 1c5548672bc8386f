// What the files of rdma_cm share: identifiers, and how they change.

#ifndef IDEALCARD_CM_H
#define IDEALCARD_CM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fabric.h"

#include <rdma/rdma_cma.h>

enum state {
	IDLE,
	BOUND,
	ADDR_RESOLVED,
	ROUTE_RESOLVED,
	LISTENING,
	REQ_SENT,
	REQ_RCVD,
	REP_SENT,
	REP_RCVD,
	CONNECTED,
	DREQ_SENT,
	DREQ_RCVD,
	CLOSED,
};

// A message that the peer has not had, and which is sent again once it reaches the peer; or a query:
// of a neighbour's address (ARP), or of a path from the subnet manager.
enum message { NO_MESSAGE, REQUEST, REPLY, READY, GOODBYE, ADDRESS_QUERY, PATH_QUERY };

struct identifier {
	struct rdma_cm_id ibv;
	struct identifier *next; // in the list of all
	unsigned process;
	enum state state;
	struct identifier *peer; // the other end of the connection, or NULL once it is gone
	bool v6only, any, asked; // asked: it was made for a request
	uint32_t remote_qp_num;
	uint8_t traffic_class;
	uint8_t source_gid; // its index at the port
	uint32_t qkey;
	struct ibv_sa_path_rec path;
	int reported, acknowledged; // events
	enum message unanswered;
	uint64_t expires; // in nanoseconds
	int outcome;	  // of a query: an errno, or 0
	struct rdma_conn_param sent; // what was sent last; its data are those below
	char data[256];
	struct ibv_ece local_ece, remote_ece;
};

struct cm_event;

struct cm_channel {
	struct rdma_event_channel ibv;
	unsigned process;
	struct cm_event *first;
};

static inline void take_manager(void) { lock_mutex(&fabric->manager); }
static inline void release_manager(void) { pthread_mutex_unlock(&fabric->manager); }

#pragma GCC visibility push(hidden)

// leave sets errno and releases the manager: what a function of librdmacm ends with.
int leave(int error);

// cmaddr.c: with the manager held.

// A port, by an address of IP.
struct found {
	struct card *card;
	struct port *port;
	int number, gid; // of the port at the card, and the index of its GID
};

bool find_port(const struct sockaddr *a, struct found *f);
int address_towards(const struct found *to, struct sockaddr *a);
void set_device(struct identifier *i);
struct sockaddr *source(struct identifier *i);
struct sockaddr *destination(struct identifier *i);
bool covers(struct identifier *i, struct sockaddr *a);
void end_query(struct identifier *i, enum message m);

// cmevent.c: with the manager held. Data is padded as the kernel does, to the length of the
// message that carries it.

enum { REQ_DATA = 92 - 36, REP_DATA = 196, REJ_DATA = 148, SIDR_REQ_DATA = 216 - 36, SIDR_REP_DATA = 136 };

struct rdma_cm_event *push(struct identifier *owner, enum rdma_cm_event_type type, int status);
struct rdma_cm_event *push_data(struct identifier *owner, struct identifier *of, enum rdma_cm_event_type type, int status,
	const void *data, size_t length, size_t padded);
void await_events(struct identifier *i);

// cm.c: with the manager held.

struct identifier *new_identifier(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps);
void part(struct identifier *i);
bool has_path(struct identifier *i);
void await_path(struct identifier *i, enum message m);

// manners.c: with the manager held. answer_later returns false if it cannot.

bool answer_later(struct identifier *p, const struct rdma_conn_param *param, uint32_t qp_num);

// sidr.c: with the manager held. Datagrams are of the port space for UDP.

static inline bool datagrams(const struct identifier *i) { return i->ibv.ps != RDMA_PS_TCP; }
void refuse_unknown_service(struct identifier *i);
int answer_service(struct identifier *i, const struct rdma_conn_param *param, uint32_t qp_num);
void refuse_service(struct identifier *i, const void *data, size_t length);

// cmqp.c

int before_accept(struct identifier *i);
void fail_queue_pair(struct rdma_cm_id *id);
void before_report(struct rdma_cm_event *e);

#pragma GCC visibility pop

#endif
