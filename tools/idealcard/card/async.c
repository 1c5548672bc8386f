// Asynchronous events. Those of a queue pair that is destroyed are dropped, and those that the
// program has taken have to be acknowledged first.

#include "card.h"

#include <stdlib.h>
#include <unistd.h>

struct async_event {
	struct ibv_async_event ibv;
	struct async_event *next;
};

static struct async_event *first; // under control
static pthread_cond_t acknowledged = PTHREAD_COND_INITIALIZER;

void push_async(enum ibv_event_type type, void *element)
{
	struct async_event *e = calloc(1, sizeof *e), **last = &first;
	e->ibv.event_type = type;
	e->ibv.element.qp = element;
	while (*last)
		last = &(*last)->next;
	*last = e;
	uint64_t one = 1;
	if (write(context.async_fd, &one, sizeof one) < 0)
		abort();
}

static void forget_async(void *element)
{
	for (struct async_event **at = &first; *at;) {
		struct async_event *e = *at;
		if (e->ibv.element.qp != element) {
			at = &e->next;
			continue;
		}
		*at = e->next;
		free(e);
	}
}

static struct queue_pair *find(const void *element)
{
	struct queue_pair *q = queue_pairs;
	while (q && q != element)
		q = q->next;
	return q;
}

// take takes the first event, if there is one.
static bool take(struct ibv_async_event *event)
{
	pthread_mutex_lock(&control);
	struct async_event *e = first;
	if (e) {
		first = e->next;
		*event = e->ibv;
		free(e);
		struct queue_pair *q = find(event->element.qp);
		if (q)
			q->unacknowledged++;
	}
	pthread_mutex_unlock(&control);
	return e;
}

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	uint64_t n;
	while (!take(event))
		if (read(ctx->async_fd, &n, sizeof n) < 0)
			return -1;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	pthread_mutex_lock(&control);
	struct queue_pair *q = find(event->element.qp);
	if (q)
		q->unacknowledged--;
	pthread_cond_broadcast(&acknowledged);
	pthread_mutex_unlock(&control);
}

void await_acknowledged(struct queue_pair *q)
{
	for (forget_async(q); q->unacknowledged > 0; forget_async(q))
		pthread_cond_wait(&acknowledged, &control);
}
