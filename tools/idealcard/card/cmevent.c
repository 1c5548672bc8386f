// Events of rdma_cm and their channels.

#include "cm.h"
#include "card.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct cm_event {
	struct rdma_cm_event ibv;
	struct identifier *owner; // which waits for it to be acknowledged
	struct cm_event *next;
	char data[256];
};

static pthread_cond_t acknowledged = PTHREAD_COND_INITIALIZER;

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *c = allocate(self, sizeof *c);
	c->process = self;
	c->ibv.fd = eventfd(0, EFD_CLOEXEC);
	if (c->ibv.fd < 0) {
		release(c);
		return NULL;
	}
	return &c->ibv;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
	release(channel);
}

// push_data adds an event to the owner's channel: one of another identifier, if the owner listens.
struct rdma_cm_event *push_data(struct identifier *owner, struct identifier *of, enum rdma_cm_event_type type, int status,
	const void *data, size_t length, size_t padded)
{
	struct cm_channel *c = (struct cm_channel *)owner->ibv.channel;
	struct cm_event *e = allocate(c->process, sizeof *e), **last = &c->first;
	e->owner = owner;
	e->ibv.id = &of->ibv;
	e->ibv.listen_id = of == owner ? NULL : &owner->ibv;
	e->ibv.event = type;
	e->ibv.status = status;
	if (length)
		memcpy(e->data, data, length);
	if (padded) {
		e->ibv.param.conn.private_data = e->data;
		e->ibv.param.conn.private_data_len = padded;
	}
	while (*last)
		last = &(*last)->next;
	*last = e;
	wake(c->process, c->ibv.fd);
	return &e->ibv;
}

struct rdma_cm_event *push(struct identifier *owner, enum rdma_cm_event_type type, int status)
{
	return push_data(owner, owner, type, status, NULL, 0, 0);
}

// take takes the first event of a channel, or NULL. An identifier that another process has made
// for a request gets this one's device.
static struct cm_event *take(struct cm_channel *c)
{
	take_manager();
	struct cm_event *e = c->first;
	if (e) {
		c->first = e->next;
		e->owner->reported++;
		if (e->ibv.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			set_device((struct identifier *)e->ibv.id);
	}
	release_manager();
	return e;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct cm_event *e;
	uint64_t n;
	while (!(e = take((struct cm_channel *)channel)))
		if (read(channel->fd, &n, sizeof n) < 0)
			return -1;
	before_report(&e->ibv);
	*event = &e->ibv;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	struct cm_event *e = (struct cm_event *)event;
	take_manager();
	e->owner->acknowledged++;
	pthread_cond_broadcast(&acknowledged);
	release_manager();
	release(e);
	return 0;
}

// forget drops the events of an identifier that nobody has taken, and with a request the
// identifier that it has come with.
static void forget(struct identifier *i)
{
	struct cm_channel *c = (struct cm_channel *)i->ibv.channel;
	for (struct cm_event **at = &c->first; *at;) {
		struct cm_event *e = *at;
		if (e->owner != i) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		if (e->ibv.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct identifier *asked = (struct identifier *)e->ibv.id;
			part(asked);
			forget(asked);
			release(asked);
			at = &c->first;
		}
		release(e);
	}
}

// await_events drops what has not been taken, and waits until all else is acknowledged.
void await_events(struct identifier *i)
{
	forget(i);
	while (i->acknowledged < i->reported)
		wait_on(&acknowledged, &fabric->manager);
}
