// What the files of rdma_cm share: identifiers, and how they change.

#ifndef IDEALCARD_CM_H
#define IDEALCARD_CM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

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

struct identifier {
	struct rdma_cm_id ibv;
	struct identifier *next; // in the list of all
	enum state state;
	struct identifier *peer; // the other end of the connection, or NULL once it is gone
	bool v6only, any;
	uint32_t remote_qp_num;
	uint8_t traffic_class;
	int reported, acknowledged; // events
};

// manager guards all identifiers and events.
extern pthread_mutex_t manager;
extern struct identifier *identifiers;

// leave sets errno and releases the manager: what a function of librdmacm ends with.
int leave(int error);

// cmaddr.c: with the manager held.

struct sockaddr *source(struct identifier *i);
struct sockaddr *destination(struct identifier *i);
bool covers(struct identifier *i, struct sockaddr *a);

// cmevent.c: with the manager held. Data is padded as the kernel does, to the length of the
// message that carries it.

enum { REQ_DATA = 92 - 36, REP_DATA = 196, REJ_DATA = 148 };

struct rdma_cm_event *push(struct identifier *owner, enum rdma_cm_event_type type, int status);
struct rdma_cm_event *push_data(struct identifier *owner, struct identifier *of, enum rdma_cm_event_type type, int status,
	const void *data, size_t length, size_t padded);
void await_events(struct identifier *i);

// cm.c: with the manager held.

struct identifier *new_identifier(struct rdma_event_channel *channel, void *context);
void part(struct identifier *i);
void set_device(struct identifier *i);

#endif
