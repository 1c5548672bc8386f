// What processes have of the card, as `rdma resource show` prints it, and what they do with it: `rdma
// statistic show`.

#include "card.h"
#include "cm.h"

#include <stdio.h>

static int held_by_all(enum kind kind)
{
	int n = 0;
	for (unsigned i = 1; i <= atomic_load(&fabric->last_process); i++)
		if (!is_dead(i))
			n += held_by(i, kind);
	return n;
}

__attribute__((visibility("default"))) int idealcard_queue_pairs(void)
{
	if (!self)
		return 1;
	take_control();
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		printf("link %s/%d lqpn %u rqpn %u state %d path-mtu %d tos %d rnr-timer %d rnr-retries %d\n", card_of(q->ibv.context)->name, q->port,
			q->ibv.qp_num, q->dest_qp_num, atomic_load(&q->state), 128 << q->path_mtu, q->traffic_class, q->rnr_timer, q->rnr_retries);
	release_control();
	return 0;
}

// idealcard_listeners prints the identifiers that listen.
__attribute__((visibility("default"))) int idealcard_listeners(void)
{
	if (!self)
		return 1;
	take_manager();
	for (struct identifier *i = fabric->identifiers; i; i = i->next)
		if (i->state == LISTENING)
			printf("link %s/1 state LISTEN\n", fabric->card[0].name);
	release_manager();
	return 0;
}

__attribute__((visibility("default"))) int idealcard_resources(int json)
{
	int queue_pairs = 0, identifiers = 0;
	if (!self)
		return 1;
	const char *name = fabric->card[0].name; // all that there is counts as that one's
	take_control();
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		queue_pairs++;
	release_control();
	take_manager();
	for (struct identifier *i = fabric->identifiers; i; i = i->next)
		identifiers++;
	release_manager();
	if (!json) {
		printf("0: %s: qp %d cq %d pd %d mr %d cm_id %d ctx %d srq 0\n", name, queue_pairs, held_by_all(COMPLETION_QUEUES),
			held_by_all(DOMAINS), held_by_all(REGIONS), identifiers, held_by_all(CONTEXTS));
		return 0;
	}
	printf("[{\"ifindex\":0,\"ifname\":\"%s\",\"pd\":%d,\"cq\":%d,\"qp\":%d,\"cm_id\":%d,\"mr\":%d,\"ctx\":%d,\"srq\":0}]\n", name,
		held_by_all(DOMAINS), held_by_all(COMPLETION_QUEUES), queue_pairs, identifiers, held_by_all(REGIONS), held_by_all(CONTEXTS));
	return 0;
}

// idealcard_statistic prints of each card how many requests have been posted to the send queues that
// there are, how many bytes are registered, and how often it had not the context of a queue pair.
__attribute__((visibility("default"))) int idealcard_statistic(int json)
{
	if (!self)
		return 1;
	for (int i = 0; i < fabric->cards; i++) {
		const struct card *card = &fabric->card[i];
		uint64_t requests = 0, bytes = 0;
		take_control();
		for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
			if (card_of(q->ibv.context) == card)
				requests += q->send_head;
		for (uint32_t j = 1; j < fabric->used_regions; j++)
			if (atomic_load(&fabric->regions[j].key) && card_of(fabric->regions[j].pd->context) == card)
				bytes += fabric->regions[j].length;
		release_control();
		unsigned long long n[] = {requests, bytes, atomic_load(&fabric->cache[i].misses)};
		if (json)
			printf("%s{\"ifname\":\"%s\",\"requests\":%llu,\"registered\":%llu,\"qp_misses\":%llu}", i ? "," : "[", card->name, n[0], n[1], n[2]);
		else
			printf("link %s/1 requests %llu registered %llu qp_misses %llu\n", card->name, n[0], n[1], n[2]);
	}
	if (json)
		printf("]\n");
	return 0;
}
