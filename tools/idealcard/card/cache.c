// The contexts of queue pairs that a card keeps: those of the qp_cache that it has used last. To use
// another one it has to fetch its context, from the host's memory.

#include "card.h"

// caches reports whether any card has such a cache.
bool caches(void)
{
	for (int i = 0; self && i < fabric->cards; i++)
		if (fabric->card[i].qp_cache)
			return true;
	return false;
}

static void take_out(struct cache *c, uint32_t n)
{
	struct slot *s = &c->slots[n];
	*(s->newer ? &c->slots[s->newer].older : &c->newest) = s->older;
	*(s->older ? &c->slots[s->older].newer : &c->oldest) = s->newer;
}

static void put_first(struct cache *c, uint32_t n)
{
	c->slots[n].newer = 0;
	c->slots[n].older = c->newest;
	*(c->newest ? &c->slots[c->newest].newer : &c->oldest) = n;
	c->newest = n;
}

// touch has the card use a queue pair, and returns how long it takes to fetch its context, in ticks.
// A process that dies in between leaves a list that is wrong, but no number that is.
uint64_t touch(struct queue_pair *q)
{
	const struct card *card = card_of(q->ibv.context);
	struct cache *c = &fabric->cache[card - fabric->card];
	if (!card->qp_cache)
		return 0;
	spin_lock(&c->lock);
	bool hit = q->cached && c->slots[q->cached].qp_num == q->ibv.qp_num;
	if (!hit)
		q->cached = c->used < card->qp_cache ? ++c->used : c->oldest;
	if (hit || c->slots[q->cached].qp_num)
		take_out(c, q->cached);
	c->slots[q->cached].qp_num = q->ibv.qp_num;
	put_first(c, q->cached);
	spin_unlock(&c->lock);
	if (hit)
		return 0;
	atomic_fetch_add(&c->misses, 1);
	return in_ticks(card->qp_miss);
}
