// What manners.h names. What is drawn depends on the seed, on the object that draws and on how often
// it has done so, and not on the time.

#include "card.h"
#include "cm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool mannered, jittered;

static const char *const names[] = {
#define NAME_OF(number, name) [number] = name,
	MANNERS(NAME_OF)
};

bool add_manner(struct card *c, const char *name)
{
	for (unsigned m = 0; m < sizeof names / sizeof *names; m++) {
		if (strcmp(names[m], name))
			continue;
		c->manners |= 1ull << m;
		limit(c, m);
		return true;
	}
	return false;
}

// learn_manners is for when this process knows the cards, which the fabric's constructor reads.
__attribute__((constructor(102))) static void learn_manners(void)
{
	for (int i = 0; self && i < fabric->cards; i++) {
		const struct card *c = &fabric->card[i];
		mannered |= c->manners != 0;
		jittered |= has(c, COMPLETIONS_ANY_ORDER) || has(c, EVENTS_COALESCED);
	}
}

// Timeouts are the hundredth of what they are.
static uint64_t scaled(uint64_t ns) { return ns / 100; }

uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

// below draws a number below n.
static uint64_t below(uint64_t object, uint64_t *draws, uint64_t n) { return mix(mix(fabric->seed ^ mix(object)) + ++*draws) % n; }

static uint64_t draw(struct queue_pair *q, uint64_t n) { return below(q->ibv.qp_num, &q->draws, n); }

// Payload that comes late. The receiver's process puts it into memory, at the last moment at which
// a card may: when it reports a completion of what came after it, or destroys what it belongs to.

struct piece {
	struct piece *next;
	uint32_t number;
	uint64_t to;
	size_t n;
	char bytes[];
};

// keep_late returns as copy_between does.
static int keep_late(struct queue_pair *p, uint64_t to, const struct queue_pair *q, uint64_t from, size_t n)
{
	struct piece *piece = allocate(p->process, sizeof *piece + n);
	int error = 0;
	piece->to = to;
	piece->n = n;
	if (q->process == self)
		memcpy(piece->bytes, (void *)(uintptr_t)from, n);
	else
		error = copy_between(self, piece->bytes, q->process, (void *)(uintptr_t)from, n);
	if (error) {
		release(piece);
		return error;
	}
	spin_lock(&p->late_lock);
	piece->number = ++p->late_pieces;
	piece->next = p->late;
	p->late = piece;
	spin_unlock(&p->late_lock);
	return 0;
}

// place does a WRITE as its receiver's card may: in pieces, which come in any order, and some of
// them after what is written later, if the memory is registered for that. Each has whole cache lines.
// It returns as copy_between does.
int place(struct queue_pair *p, uint32_t rkey, uint64_t remote, const struct queue_pair *q, uint64_t local, size_t n)
{
	const struct card *c = card_of(p->ibv.context);
	struct queue_pair *sender = (struct queue_pair *)q;
	bool pieces = has(c, RELAXED_ORDERING);
	if ((!pieces && !has(c, PAYLOAD_OVERTAKEN)) || !is_relaxed(rkey))
		return copy_to(p, remote, q, local, n);
	size_t most = pieces ? (n / 8 + 64) & ~63ul : n;
	bool forwards = draw(sender, 2);
	for (size_t done = 0; done < n;) {
		size_t left = n - done, size = left < most ? left : most;
		uint64_t at = forwards ? done : left - size;
		done += size;
		int error = draw(sender, 2) ? keep_late(p, remote + at, q, local + at, size) : copy_to(p, remote + at, q, local + at, size);
		if (error)
			return error;
	}
	return 0;
}

void land(struct queue_pair *p, uint32_t pieces)
{
	spin_lock(&p->late_lock);
	for (struct piece **at = &p->late; *at;) {
		struct piece *piece = *at;
		if ((int32_t)(piece->number - pieces) > 0) {
			at = &piece->next;
			continue;
		}
		*at = piece->next;
		memcpy((void *)(uintptr_t)piece->to, piece->bytes, piece->n);
		release(piece);
	}
	spin_unlock(&p->late_lock);
}

void land_all(struct queue_pair *p)
{
	if (p->late)
		land(p, p->late_pieces);
}

// land_in_process is for memory that is no longer registered. Control is held.
void land_in_process(void)
{
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		if (q->process == self)
			land_all(q);
}

// Completions and their events.

static uint64_t ticks_of(uint64_t ns)
{
	static uint64_t a_millisecond;
	if (!a_millisecond) {
		uint64_t began = nanoseconds(), first = ticks();
		while (nanoseconds() - began < 1000000)
			relax();
		a_millisecond = ticks() - first;
	}
	return a_millisecond * ns / 1000000;
}

// time_of_completion is when a completion becomes visible: after those before it in its ring, and in
// any order with those of others. The ring's lock is held.
uint64_t time_of_completion(struct ring *r, const struct completion *c)
{
	uint64_t at = c->at;
	if (has(card_of(c->qp->ibv.context), COMPLETIONS_ANY_ORDER))
		at += below(c->qp->ibv.qp_num * 2 + (r == &((struct completion_queue *)c->qp->ibv.send_cq)->rings[SENDS]), &r->draws, ticks_of(50000));
	if ((int64_t)(at - r->last_at) > 0)
		r->last_at = at;
	return r->last_at;
}

static bool one_of(struct completion_queue *q, enum manner m, uint64_t n)
{
	return has(card_of(q->ibv.context), m) && !below(q->serial, &q->draws, n);
}

uint64_t time_of_event(struct completion_queue *q, uint64_t at)
{
	return has(card_of(q->ibv.context), EVENTS_COALESCED) ? at + ticks_of(100000) : at;
}

// length_of is what a completion says of the bytes that have arrived. Of datagrams the length of every
// third is wrong. poll_lock is held.
uint32_t length_of(const struct completion *e)
{
	struct completion_queue *q = (struct completion_queue *)e->qp->ibv.recv_cq;
	uint32_t n = e->byte_len, lengths[] = {n + 4, n - 4, n ? 1 : 2, n + (1 << 20)};
	if (!has(card_of(e->qp->ibv.context), LENGTH_WRONG))
		return n;
	if (e->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		return lengths[fabric->seed % 4];
	return e->qp->ibv.qp_type == IBV_QPT_UD && e->opcode == IBV_WC_RECV && ++q->draws % 3 == 0 ? lengths[3] : n;
}

bool twice(struct completion_queue *q) { return one_of(q, EVENTS_TWICE, 2); }
bool spurious(struct completion_queue *q) { return one_of(q, EVENTS_SPURIOUS, 3); }

// cut_poll is how many completions a poll for n returns at most.
int cut_poll(struct completion_queue *q, int n)
{
	return has(card_of(q->ibv.context), SHORT_POLLS) && n > 1 ? 1 + (int)below(q->serial, &q->draws, n < 4 ? n : 4) : n;
}

// Requests.

// sends_header reports whether a datagram of q comes with its header: with GRH_MISSING every third
// does not. send_lock is held.
bool sends_header(struct queue_pair *q) { return !has(card_of(q->ibv.context), GRH_MISSING) || ++q->draws % 3; }

bool works(struct ibv_context *context) { return !atomic_load(&card_of(context)->failed) && !cut_off(context); }

// brings_trouble reports whether the request that is posted is the one that brings trouble.
static bool brings_trouble(struct card *c)
{
	const uint64_t troubles = 1ull << MLX5_INTERNAL_ERROR | 1ull << MLX5_CQ_ERROR | 1ull << REMOVED | 1ull << RESET | 1ull << ADDR_CHANGE |
		1ull << NEIGHBOUR_MOVED;
	return (c->manners & troubles) && atomic_fetch_add(&c->requests, 1) == mix(fabric->seed) % 1000;
}

// before_request is for each request that is posted. send_lock is held.
void before_request(struct queue_pair *q, struct after *after)
{
	struct card *c = card_of(q->ibv.context);
	uint64_t wait = 0;
	if (brings_trouble(c))
		after->todo |= TROUBLE;
	if (has(c, RNR) && !draw(q, 64))
		wait = 1000000 + draw(q, 4000000);
	if (has(c, SLOW_RETRY) && !draw(q, 256))
		wait = scaled(16000000000);
	if (wait && q->ibv.qp_type == IBV_QPT_RC) {
		q->stalled_until = nanoseconds() + wait;
		after->todo |= STALLED;
	}
}

// as_loaded is a request as the card loads it: mana does not look at IBV_SEND_INLINE, and irdma takes
// the first fragment of a WRITE of none.
const struct ibv_send_wr *as_loaded(struct queue_pair *q, const struct ibv_send_wr *wr, struct ibv_send_wr *loaded)
{
	if (has(card_of(q->ibv.context), MANA)) {
		*loaded = *wr;
		loaded->send_flags &= ~IBV_SEND_INLINE;
		return loaded;
	}
	wr = spoil(q, wr, loaded);
	if (!has(card_of(q->ibv.context), IRDMA) || wr->opcode != IBV_WR_RDMA_WRITE || wr->num_sge || !wr->sg_list)
		return wr;
	*loaded = *wr;
	loaded->num_sge = 1;
	return loaded;
}

bool cuts_batch(struct queue_pair *q) { return has(card_of(q->ibv.context), BATCH_CUT) && !draw(q, 64); }

// announces reports whether the card reports COMM_EST for a message of the peer: the first one that
// arrives before the queue pair can send, or a later one. Control is held.
bool announces(struct queue_pair *p)
{
	return !has(card_of(p->ibv.context), COMM_EST_LATE) || p->unannounced++ >= mix(fabric->seed ^ p->ibv.qp_num) % 4;
}

// tell has rdma_cm report what has become of the path of q, as it does to who is connected.
static void tell(struct queue_pair *q, enum rdma_cm_event_type type, int status)
{
	take_manager();
	for (struct identifier *i = fabric->identifiers; i; i = i->next)
		if (i->process == q->process && i->sent.qp_num == q->ibv.qp_num && i->state == CONNECTED)
			push(i, type, status);
	release_manager();
}

// make_trouble is what becomes of a card, of q's completion queue, or of its path.
void make_trouble(struct queue_pair *q)
{
	struct card *c = card_of(q->ibv.context);
	struct completion_queue *cq = (struct completion_queue *)q->ibv.recv_cq;
	if (has(c, ADDR_CHANGE)) {
		tell(q, RDMA_CM_EVENT_ADDR_CHANGE, 0);
		return;
	}
	if (has(c, NEIGHBOUR_MOVED)) {
		q->astray = true;
		tell(q, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
		return;
	}
	if (has(c, MLX5_CQ_ERROR) || has(c, MLX5_INTERNAL_ERROR)) {
		struct ibv_async_event e = {.event_type = IBV_EVENT_CQ_ERR, .element.cq = &cq->ibv};
		take_control();
		if (has(c, MLX5_CQ_ERROR)) {
			atomic_store(&cq->dead, true);
			push_event((struct context *)q->ibv.context, &e);
		} else {
			atomic_store(&c->failed, true);
			report_event(c, IBV_EVENT_DEVICE_FATAL, 0);
		}
		release_control();
		return;
	}
	begin_fault(&c->gone, 0);
	notice_faults();
	if (!has(c, RESET))
		return;
	end_fault(&c->gone);
	notice_faults();
}

// A REP that is lost, and comes once its sender repeats it.
struct answer {
	struct identifier *to;
	uint32_t qp_num;
	uint8_t length;
	char data[REP_DATA];
};

static void *answer_again(void *arg)
{
	struct answer *a = arg;
	struct timespec t = {.tv_nsec = scaled(4300000000)};
	nanosleep(&t, NULL);
	take_manager();
	struct identifier *i = fabric->identifiers;
	while (i && !(i == a->to && i->state == REP_RCVD && i->remote_qp_num == a->qp_num))
		i = i->next;
	if (i)
		push_data(i, i, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, a->data, a->length, REP_DATA)->param.conn.qp_num = a->qp_num;
	release_manager();
	free(a);
	return NULL;
}

bool answer_later(struct identifier *p, const struct rdma_conn_param *param, uint32_t qp_num)
{
	pthread_t thread;
	struct answer *a = calloc(1, sizeof *a);
	*a = (struct answer){.to = p, .qp_num = qp_num, .length = param->private_data_len};
	if (a->length)
		memcpy(a->data, param->private_data, a->length);
	if (!pthread_create(&thread, NULL, answer_again, a))
		return !pthread_detach(thread);
	free(a);
	return false;
}
