// Completion channels: an eventfd counts the events, and each event has its time.

#include "card.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	if (calls_fail(ctx)) {
		errno = EIO;
		return NULL;
	}
	struct channel *c = allocate(self, sizeof *c);
	c->process = self;
	c->serial = atomic_fetch_add(&fabric->last_channel, 1) + 1;
	c->ibv.context = ctx;
	c->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	if (c->ibv.fd < 0) {
		release(c);
		return NULL;
	}
	return &c->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct channel *c = (struct channel *)ibv;
	if (ibv->refcnt)
		return EBUSY;
	if (ibv->fd >= 0)
		close(ibv->fd);
	release(c->events);
	release(c);
	return 0;
}

static void grow(struct channel *c)
{
	struct event *old = c->events;
	c->capacity = c->capacity * 2 + 8;
	c->events = allocate(c->process, c->capacity * sizeof *old);
	if (old)
		memcpy(c->events, old, c->count * sizeof *old);
	release(old);
}

// add_event makes the descriptor readable at once, and ibv_get_cq_event waits until the
// completion is visible: a timer would cost the sender more than the latency is.
void add_event(struct completion_queue *cq, uint64_t at)
{
	struct channel *c = cq->channel;
	spin_lock(&c->lock);
	if (c->count == c->capacity)
		grow(c);
	int i = c->count++;
	for (; i > 0 && c->events[i - 1].at > at; i--)
		c->events[i] = c->events[i - 1];
	c->events[i] = (struct event){cq, at};
	spin_unlock(&c->lock);
	wake_channel(c);
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
	spin_lock(&c->lock);
	bool found = c->count > 0;
	if (found) {
		*e = c->events[0];
		memmove(c->events, c->events + 1, --c->count * sizeof *c->events);
	}
	spin_unlock(&c->lock);
	return found;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context)
{
	struct event e;
	uint64_t n;
	do
		if (cut_off(ibv->context) || read(ibv->fd, &n, sizeof n) < 0) {
			errno = cut_off(ibv->context) ? EIO : errno;
			return -1;
		}
	while (!take_event((struct channel *)ibv, &e));
	while (timed && (int64_t)(e.at - ticks()) > 0)
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
	spin_lock(&c->lock);
	for (int i = 0; i < c->count; i++)
		if (c->events[i].cq != cq)
			c->events[left++] = c->events[i];
	c->count = left;
	spin_unlock(&c->lock);
}
