// Asynchronous events. Those of a queue pair that is destroyed are dropped, and those that the
// program has taken have to be acknowledged first.

#include "card.h"

#include <errno.h>
#include <unistd.h>

struct async_event {
	struct ibv_async_event ibv;
	struct async_event *next;
};

static pthread_cond_t acknowledged = PTHREAD_COND_INITIALIZER;

void push_event(struct context *c, const struct ibv_async_event *event)
{
	struct async_event *e = allocate(c->process, sizeof *e), **last = &c->first;
	e->ibv = *event;
	while (*last)
		last = &(*last)->next;
	*last = e;
	wake(c->process, c->ibv.async_fd);
}

void push_async(enum ibv_event_type type, struct queue_pair *q)
{
	struct ibv_async_event e = {.event_type = type, .element.qp = &q->ibv};
	push_event((struct context *)q->ibv.context, &e);
}

static void forget_async(struct queue_pair *q)
{
	struct context *c = (struct context *)q->ibv.context;
	for (struct async_event **at = &c->first; *at;) {
		struct async_event *e = *at;
		if (e->ibv.element.qp != &q->ibv) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		release(e);
	}
}

static struct queue_pair *find(const void *element)
{
	struct queue_pair *q = fabric->queue_pairs;
	while (q && q != element)
		q = q->next;
	return q;
}

// take takes the first event, if there is one.
static bool take(struct context *c, struct ibv_async_event *event)
{
	take_control();
	struct async_event *e = c->first;
	if (e) {
		c->first = e->next;
		*event = e->ibv;
		release(e);
		struct queue_pair *q = find(event->element.qp);
		if (q)
			q->unacknowledged++;
	}
	release_control();
	return e;
}

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	uint64_t n;
	while (!take((struct context *)ctx, event)) {
		errno = cut_off(ctx);
		if (errno || read(ctx->async_fd, &n, sizeof n) < 0)
			return -1;
	}
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	take_control();
	struct queue_pair *q = find(event->element.qp);
	if (q)
		q->unacknowledged--;
	pthread_cond_broadcast(&acknowledged);
	release_control();
}

void await_acknowledged(struct queue_pair *q)
{
	for (forget_async(q); q->unacknowledged > 0; forget_async(q))
		wait_on(&acknowledged, &fabric->control);
}
