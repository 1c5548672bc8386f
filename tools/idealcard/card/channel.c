// Completion channels: an eventfd counts the events, and each event has its time.

#include "card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct channel *c = calloc(1, sizeof *c);
	c->ibv.context = ctx;
	c->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	if (c->ibv.fd < 0) {
		free(c);
		return NULL;
	}
	pthread_mutex_init(&c->mutex, NULL);
	return &c->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct channel *c = (struct channel *)ibv;
	if (ibv->refcnt)
		return EBUSY;
	if (ibv->fd >= 0)
		close(ibv->fd);
	free(c->events);
	free(c);
	return 0;
}

// add_event makes the descriptor readable at once, and ibv_get_cq_event waits until the
// completion is visible: a timer would cost the sender more than the latency is.
void add_event(struct completion_queue *cq, uint64_t at)
{
	struct channel *c = cq->channel;
	pthread_mutex_lock(&c->mutex);
	if (c->count == c->capacity) {
		c->capacity = c->capacity * 2 + 8;
		c->events = realloc(c->events, c->capacity * sizeof *c->events);
	}
	int i = c->count++;
	for (; i > 0 && c->events[i - 1].at > at; i--)
		c->events[i] = c->events[i - 1];
	c->events[i] = (struct event){cq, at};
	pthread_mutex_unlock(&c->mutex);
	uint64_t one = 1;
	if (write(c->ibv.fd, &one, sizeof one) < 0)
		abort();
}

void add_events(struct after *after)
{
	for (int i = 0; i < after->count; i++) {
		struct event *e = &after->events[i];
		add_event(e->cq, e->at);
		atomic_fetch_sub(&e->cq->signalers, 1);
	}
	after->count = 0;
}

// take_event takes the first event, if forget_events has left one.
static bool take_event(struct channel *c, struct event *e)
{
	pthread_mutex_lock(&c->mutex);
	bool found = c->count > 0;
	if (found) {
		*e = c->events[0];
		memmove(c->events, c->events + 1, --c->count * sizeof *c->events);
	}
	pthread_mutex_unlock(&c->mutex);
	return found;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context)
{
	struct event e;
	uint64_t n;
	do
		if (read(ibv->fd, &n, sizeof n) < 0)
			return -1;
	while (!take_event((struct channel *)ibv, &e));
	while (latency && (int64_t)(e.at - ticks()) > 0)
		relax();
	*cq = &e.cq->ibv;
	*cq_context = e.cq->ibv.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) { (void)cq, (void)n; }

void forget_events(struct completion_queue *cq)
{
	struct channel *c = cq->channel;
	int left = 0;
	pthread_mutex_lock(&c->mutex);
	for (int i = 0; i < c->count; i++)
		if (c->events[i].cq != cq)
			c->events[left++] = c->events[i];
	c->count = left;
	pthread_mutex_unlock(&c->mutex);
}
