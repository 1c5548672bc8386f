// Cards that are gone, ports that are down, cables that are out, and hosts without power: what
// reaches what, and what those notice that have to do with it.

#include "card.h"
#include "cm.h"

void begin_fault(struct fault *f, uint64_t for_ns)
{
	atomic_store(&f->until, for_ns ? nanoseconds() + for_ns : 0);
	atomic_store(&f->lasts, true);
	atomic_store(&fabric->impaired, true);
}

void end_fault(struct fault *f) { atomic_store(&f->lasts, false); }

bool has_card(const struct card *c) { return c->host == host_of(self) && !lasts(&c->gone); }

// is_cut_off reports whether a context is of a card that is gone, or has been since.
bool is_cut_off(struct ibv_context *c)
{
	const struct card *card = card_of(c);
	return lasts(&card->gone) || ((struct context *)c)->generation != atomic_load(&card->generation);
}

static bool is_up(const struct card *c, const struct port *p) { return !lasts(&c->gone) && !lasts(&fabric->off[c->host]) && !lasts(&p->down); }

// joined reports whether what leaves one port reaches another.
bool joined(const struct card *c, const struct port *p, const struct card *d, const struct port *q)
{
	if (!is_up(c, p) || !is_up(d, q))
		return false;
	return c->host == d->host || (p->cable == q->cable && !lasts(&fabric->out[p->cable]));
}

bool reaches(const struct queue_pair *q, const struct queue_pair *p)
{
	if (is_cut_off(q->ibv.context) || is_cut_off(p->ibv.context))
		return false;
	return joined(card_of(q->ibv.context), port_of((struct queue_pair *)q), card_of(p->ibv.context), port_of((struct queue_pair *)p));
}

// report tells all who have a card open. Control is held.
void report_event(const struct card *card, enum ibv_event_type type, int port)
{
	struct ibv_async_event e = {.event_type = type, .element.port_num = port};
	for (struct context *c = fabric->contexts; c; c = c->next)
		if (c->card == card && c->generation == atomic_load(&card->generation) && !is_dead(c->process))
			push_event(c, &e);
}

// report_loss tells all who use a card that it is gone, those who wait for its completions among
// them. Control is held.
static void report_loss(struct card *c)
{
	report_event(c, IBV_EVENT_DEVICE_FATAL, 0);
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next) {
		struct channel *channel = ((struct completion_queue *)q->ibv.recv_cq)->channel;
		if (card_of(q->ibv.context) == c && channel && !is_dead(q->process))
			wake_channel(channel);
	}
	release_control();
	remove_device(c);
	take_control();
}

// notice returns whether a fault has begun or ended since the last time.
static bool notice(struct fault *f)
{
	uint64_t until = atomic_load(&f->until);
	if (lasts(f) && until && until <= nanoseconds())
		end_fault(f);
	bool now = lasts(f);
	return atomic_exchange(&f->noticed, now) != now;
}

static void notice_port(struct card *c, int number)
{
	struct port *p = &c->port[number - 1];
	if (notice(&p->down))
		report_event(c, lasts(&p->down) ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, number);
}

static void notice_card(struct card *c)
{
	for (int i = 1; i <= c->ports; i++)
		notice_port(c, i);
	if (!notice(&c->gone))
		return;
	if (!lasts(&c->gone)) {
		atomic_fetch_add(&c->generation, 1);
		return;
	}
	report_loss(c);
}

// try_again has requests that got no answer sent once more, where they reach the peer by now.
static void try_again(void)
{
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		if (q->deadline && q->peer && reaches(q, q->peer)) {
			q->again = true;
			pthread_cond_signal(&fabric->processes[q->process].deadlines);
		}
}

// notice_faults does what follows from what has begun or ended.
void notice_faults(void)
{
	if (!impaired())
		return;
	take_control();
	for (int i = 0; i < CABLES; i++)
		notice(&fabric->out[i]);
	for (int i = 0; i < HOSTS; i++)
		notice(&fabric->off[i]);
	for (int i = 0; i < fabric->cards; i++)
		notice_card(&fabric->card[i]);
	try_again();
	release_control();
	send_again();
}
