#include "pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

struct options options = {.requests = true, .resume = true, .version = VERSION};
struct link *links;

static struct rdma_cm_id *listener;

void fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	puts("");
	exit(1);
}

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

// ---- Links

static struct link *new_link(bool active)
{
	struct link *l = calloc(1, sizeof *l);
	if (l == NULL || (l->rings = calloc(1, RINGS_SIZE)) == NULL || (l->out = calloc(1, OUT_MEMORY)) == NULL)
		fail("no memory");
	l->active = active;
	l->next = links;
	links = l;
	for (int i = 0; i < STREAMS; i++)
		l->streams[i].number = i;
	return l;
}

static void end_link(struct link *l, const char *why)
{
	if (l->stage == ENDED)
		return;
	l->stage = ENDED;
	if (l->pair != NULL)
		to_error(l->pair);
	if (options.ended != NULL)
		options.ended(l, why);
}

// breach ends a link whose peer has broken the protocol.
static void breach(struct link *l, const char *what)
{
	static char why[200];
	snprintf(why, sizeof why, "breach: %s", what);
	end_link(l, why);
}

// ---- Streams

static struct stream *begin(struct link *l, int number)
{
	static uint64_t serial;
	struct stream *s = &l->streams[number];
	*s = (struct stream){.number = number, .serial = ++serial};
	s->ring = (struct region){(uintptr_t)l->rings + number * (RING_SIZE + LARGE_RING), RING_SIZE, 0};
	return s;
}

static uint8_t *out_of(struct link *l, struct stream *s) { return l->out + CONTROL_BUFFERS * MESSAGE + s->number * OUT_SIZE; }

struct link *link_of(struct stream *s)
{
	for (struct link *l = links;; l = l->next)
		if (s >= l->streams && s < l->streams + STREAMS)
			return l;
}

struct stream *open_stream(struct link *l)
{
	for (int i = 0; i < STREAMS; i++)
		if (l->streams[i].stage == FREE) {
			struct stream *s = begin(l, i);
			s->stage = OPENING;
			s->open = true;
			return s;
		}
	fail("too many streams");
}

// may_send is up to which position a stream may send.
static uint64_t may_send(struct stream *s) { return most(s->credited, s->to_base) + s->to.size; }

size_t stream_room(struct stream *s)
{
	uint64_t end = least(may_send(s), s->completed + OUT_SIZE);
	if (s->stage != IN_USE || s->sent_end != 0 || s->close || end < s->accepted)
		return 0;
	return end - s->accepted;
}

void stream_write(struct stream *s, const uint8_t *from, size_t n)
{
	uint8_t *out = out_of(link_of(s), s);
	for (size_t i = 0; i < n; i++)
		out[(s->accepted + i) % OUT_SIZE] = from[i];
	s->accepted += n;
}

size_t stream_read(struct stream *s, uint8_t *to, size_t n)
{
	struct region from = s->ring;
	uint64_t end = s->received;
	if (s->before.size > 0) {
		from = s->before;
		end = s->base;
	}
	uint64_t at = s->consumed % from.size;
	n = least(n, least(end - s->consumed, from.size - at));
	memcpy(to, (uint8_t *)from.addr + at, n);
	s->consumed += n;
	if (s->consumed >= s->base)
		s->before.size = 0;
	return n;
}

// over frees the number of a stream of which neither side has anything more to send.
static void over(struct stream *s)
{
	if (s->end != 0 && s->sent_end != 0 && s->finack_sent && s->finack_received && s->stage == IN_USE) {
		s->stage = FREE;
		struct link *l = link_of(s);
		if (options.ready != NULL && l->stage != ENDED)
			options.ready(s); // which learns that it has ended
	}
}

// ---- What is sent

void put_header(struct link *l, uint8_t *to)
{
	put(to, 8, l->received.data);
	put(to + 8, 8, l->received.records);
}

static struct message *enqueue(struct link *l, int kind)
{
	struct message *m = &l->queue[(l->first + l->count++) % (SENDS + DEPTH)];
	*m = (struct message){.kind = kind};
	return m;
}

// to_mailbox posts a SEND of the bytes in a control buffer.
static void to_mailbox(struct link *l, const uint8_t *buffer, uint32_t n, uint32_t what)
{
	struct pair *p = l->pair;
	uint64_t slot = p->peer_mailbox + p->next_out * MESSAGE;
	p->next_out = (p->next_out + 1) % CONTROL_RECEIVES;
	post_write(p, buffer, n, slot, p->peer_mailbox_key, immediate(what, n));
}

static uint8_t *control_buffer(struct link *l)
{
	l->control = (l->control + 1) % CONTROL_BUFFERS;
	return l->out + l->control * MESSAGE;
}

// post posts a message of the queue, for the first time or again.
static void post(struct link *l, struct message *m)
{
	if (m->kind == DATA) {
		post_write(l->pair, l->out + m->local, m->length, m->addr, m->rkey, immediate(m->what, m->length));
		return;
	}
	uint8_t *buffer = control_buffer(l);
	put_header(l, buffer);
	l->told = l->received;
	memcpy(buffer + HEADER, m->records, m->length - HEADER);
	to_mailbox(l, buffer, m->length, IMM_SEND);
}

// next_port is one for the address of a stream: another each time, so that one that is refused because
// another connection has it can be tried with the next.
static uint16_t next_port(void)
{
	static uint16_t port;
	if (port == 0)
		port = getpid() % 20000;
	return 40000 + port++ % 20000;
}

static void put_record(uint8_t *to, int type, int stream)
{
	memset(to, 0, RECORD);
	to[0] = type;
	put(to + 1, 3, stream);
}

static bool credit_is_due(struct stream *s)
{
	return s->end == 0 && s->sent_end != RESET && s->consumed - s->advertised >= s->ring.size / QUARTER;
}

static void put_credit(struct stream *s, uint8_t *to)
{
	put_record(to, CREDIT, s->number);
	put(to + 8, 8, s->consumed);
	s->advertised = s->consumed;
}

// next_record writes a record of a stream that is due, and notes that it is sent.
static bool next_record(struct link *l, struct stream *s, uint8_t *to)
{
	uint32_t rkey = l->pair->rings->rkey;
	if (s->stage == OPENING && s->open) {
		put_record(to, OPEN, s->number);
		put_ring(to, (struct region){s->ring.addr, s->ring.size, rkey});
		put(to + 20, 2, next_port());
		s->open = false;
		return true;
	}
	if (s->stage != IN_USE)
		return false;
	if (s->accept) {
		put_record(to, ACCEPT, s->number);
		put_ring(to, (struct region){s->ring.addr, s->ring.size, rkey});
		s->accept = false;
		return true;
	}
	bool ends = s->close && s->sent_end == 0 && s->accepted == s->posted;
	if (ends && !s->reset && s->end == 0 && s->consumed > s->advertised) {
		put_credit(s, to); // the last: what has been read
		return true;
	}
	bool resets = s->reset && s->sent_end != RESET && !(s->sent_end == FIN && s->end != 0);
	if (resets || ends) {
		s->sent_end = resets ? RESET : FIN;
		put_record(to, s->sent_end, s->number);
		put(to + 8, 8, s->posted);
		return true;
	}
	if (s->finack) {
		put_record(to, FINACK, s->number);
		s->finack = false;
		s->finack_sent = true;
		return true;
	}
	if (s->ring_offer && s->end == 0 && s->sent_end != RESET) {
		s->offer = (struct region){s->ring.addr + RING_SIZE, LARGE_RING, 0};
		put_record(to, RING, s->number);
		put_ring(to, (struct region){s->offer.addr, s->offer.size, rkey});
		s->ring_offer = false;
		return true;
	}
	if (credit_is_due(s)) {
		put_credit(s, to);
		return true;
	}
	return false;
}

static bool is_empty(struct link *l)
{
	for (int i = 0; i < STREAMS; i++)
		if (l->streams[i].stage != FREE)
			return false;
	return l->refused == 0;
}

// send_records posts a SEND, with records or with link credit alone, if one is due.
static bool send_records(struct link *l)
{
	if (l->pair->under_way == SENDS)
		return false;
	uint8_t records[RECORDS * RECORD];
	unsigned n = 0;
	if (l->sent.records - l->acked.records < RECORD_WINDOW) {
		for (; n < RECORDS && l->refused > 0; n++) {
			l->refused--;
			put_record(records + n * RECORD, REFUSE, l->refusals[l->refused].number);
			put(records + n * RECORD + 4, 4, l->refusals[l->refused].reason);
		}
		for (int i = 0; i < STREAMS && n < RECORDS; i++) {
			struct stream *s = &l->streams[i];
			while (n < RECORDS && next_record(l, s, records + n * RECORD))
				n++;
			over(s);
		}
		if (l->goaway && !l->goaway_sent && n < RECORDS && is_empty(l)) {
			put_record(records + n++ * RECORD, GOAWAY, 0);
			l->goaway_sent = true;
		}
	}
	bool due = l->received.data - l->told.data >= DEPTH / QUARTER || l->received.records - l->told.records >= RECORD_TURN;
	if (n == 0 && (!due || l->credit_under_way))
		return false;
	struct message *m = enqueue(l, n > 0 ? SEND : LINK_CREDIT);
	m->length = HEADER + n * RECORD;
	memcpy(m->records, records, n * RECORD);
	if (n > 0)
		m->number = ++l->sent.records;
	else
		l->credit_under_way = true;
	post(l, m);
	return true;
}

// send_of posts a message of a stream, if it has bytes and there is room.
static bool send_of(struct link *l, struct stream *s)
{
	if (s->stage != IN_USE || s->accept || s->sent_end != 0)
		return false;
	bool new = s->to_offer.size > 0 && s->accepted - s->posted <= s->to_offer.size;
	if (new) {
		s->to = s->to_offer;
		s->to_base = s->posted;
		s->to_offer.size = 0;
	}
	uint64_t n = least(s->accepted, may_send(s)) - s->posted;
	n = least(n, least(s->to.size - s->posted % s->to.size, OUT_SIZE - s->posted % OUT_SIZE));
	if (n == 0 && !new)
		return false;
	struct message *m = enqueue(l, DATA);
	m->number = ++l->sent.data;
	m->stream = s;
	m->serial = s->serial;
	m->local = out_of(l, s) - l->out + s->posted % OUT_SIZE;
	m->length = n;
	m->addr = s->to.addr + s->posted % s->to.size;
	m->rkey = s->to.rkey;
	s->posted += n;
	m->what = s->number | (new ? IMM_NEW : 0) | (s->posted == may_send(s) ? IMM_FULL : 0);
	post(l, m);
	return true;
}

static bool send_data(struct link *l)
{
	if (l->sent.data - l->acked.data >= l->peer_depth || SENDS - l->pair->under_way <= DATA_LEAVES)
		return false;
	for (int i = 0; i < STREAMS; i++) {
		l->turn = (l->turn + 1) % STREAMS;
		if (send_of(l, &l->streams[l->turn]))
			return true;
	}
	return false;
}

// pump lets the application go on, and posts what may be posted.
static void pump(struct link *l)
{
	for (bool more = true; more && l->stage == UP && l->lost == NULL;) {
		for (int i = 0; i < STREAMS; i++)
			if (l->streams[i].stage == IN_USE && options.ready != NULL)
				options.ready(&l->streams[i]);
		more = send_records(l);
		more = send_data(l) || more;
	}
	if (l->stage == UP && l->goaway_sent && l->goaway_received && l->count == 0 && is_empty(l))
		end_link(l, "goaway");
}

void post_message(struct link *l, uint32_t what, const uint8_t *bytes, uint32_t n, uint64_t addr, uint32_t rkey)
{
	uint8_t *buffer = control_buffer(l);
	memcpy(buffer, bytes, n);
	l->pair->apart++;
	if (addr == 0)
		to_mailbox(l, buffer, n, what);
	else
		post_write(l->pair, buffer, n, addr, rkey, immediate(what, n));
}

// ---- What arrives

static void on_data(struct link *l, uint32_t imm, uint32_t n)
{
	unsigned number = imm & 0xffff;
	struct stream *s = &l->streams[number % STREAMS];
	if (number >= STREAMS || s->stage != IN_USE || s->end != 0)
		return breach(l, "data for a stream that does not take any");
	if (l->received.data - l->told.data >= DEPTH)
		return breach(l, "more data messages than there are receives");
	l->received.data++;
	if (imm & IMM_NEW) {
		if (s->offer.size == 0)
			return breach(l, "a ring that was not offered");
		if (s->consumed < s->received)
			s->before = s->ring;
		s->ring = s->offer;
		s->offer.size = 0;
		s->base = s->received;
	} else if (n == 0) {
		return breach(l, "data without a byte");
	}
	uint64_t at = s->received % s->ring.size;
	if (at + n > s->ring.size || s->received + n > most(s->advertised, s->base) + s->ring.size)
		return breach(l, "data beyond the ring");
	s->received += n;
	if (s->sent_end == RESET)
		s->consumed = s->received; // nobody reads it
	if (imm & IMM_FULL && !s->grown)
		s->grown = s->ring_offer = true;
}

static void on_open(struct link *l, const uint8_t *record, int number)
{
	if (l->active || l->goaway_received || get(record + 20, 2) == 0)
		return breach(l, "an OPEN that must not be");
	if (number >= STREAMS) {
		l->refusals[l->refused].number = number;
		l->refusals[l->refused++].reason = NO_MEMORY;
		return;
	}
	if (l->streams[number].stage != FREE)
		return breach(l, "an OPEN for a number in use");
	struct stream *s = begin(l, number);
	s->stage = IN_USE;
	s->accept = true;
	s->to = get_ring(record);
}

static void on_end(struct link *l, struct stream *s, int type, uint64_t at)
{
	if (at != s->received || s->end == RESET || (type == FIN && s->end != 0) || (s->finack_received && s->end == FIN))
		return breach(l, "an end that must not be");
	if (s->end == 0)
		s->finack = true;
	s->end = type;
	if (type == RESET) {
		s->accepted = s->posted;
		s->reset = s->sent_end == 0;
	}
}

static void on_record(struct link *l, const uint8_t *record)
{
	const char *wrong = check_record(record);
	if (wrong != NULL)
		return breach(l, wrong);
	int type = record[0], number = get(record + 1, 3);
	if (type == GOAWAY) {
		if (l->goaway_received)
			return breach(l, "a second GOAWAY");
		l->goaway_received = l->goaway = true;
		return;
	}
	if (type == OPEN)
		return on_open(l, record, number);
	struct stream *s = &l->streams[number % STREAMS];
	bool answers = type == ACCEPT || type == REFUSE;
	if (number >= STREAMS || s->stage != (answers ? OPENING : IN_USE) || s->open || s->accept)
		return breach(l, "a record for a stream that does not take it");
	uint64_t at = get(record + 8, 8);
	switch (type) {
	case ACCEPT:
		s->stage = IN_USE;
		s->to = get_ring(record);
		break;
	case REFUSE:
		if (get(record + 4, 4) != ANOTHER_HAS_THE_ADDRESS)
			fail("stream %d was refused, for reason %d", number, (int)get(record + 4, 4));
		s->open = true;
		break;
	case CREDIT:
		if (s->end == RESET || (s->finack_received && s->sent_end != 0) || at <= s->credited || at > s->posted)
			return breach(l, "a CREDIT that must not be");
		s->credited = at;
		break;
	case RING:
		if (s->to_offer.size > 0)
			return breach(l, "a second offer");
		if (s->sent_end == 0)
			s->to_offer = get_ring(record);
		break;
	case FIN:
	case RESET:
		on_end(l, s, type, at);
		break;
	case FINACK:
		if (s->sent_end == 0 || s->finack_received)
			return breach(l, "a FINACK that must not be");
		s->finack_received = true;
		break;
	}
	over(s);
}

static void on_send(struct link *l, const uint8_t *bytes, uint32_t n)
{
	if (n < HEADER || n > MESSAGE || (n - HEADER) % RECORD != 0)
		return breach(l, "a SEND of a length that cannot be");
	struct counts says = {get(bytes, 8), get(bytes + 8, 8)};
	if (n > HEADER && l->received.records - l->told.records >= RECORD_WINDOW)
		return breach(l, "more SENDs than there are receives");
	if (says.data < l->acked.data || says.data > l->sent.data || says.records < l->acked.records || says.records > l->sent.records)
		return breach(l, "totals that cannot be");
	if (n == HEADER && says.data - l->acked.data < l->peer_depth / QUARTER && says.records - l->acked.records < RECORD_TURN)
		return breach(l, "link credit that is not due");
	l->acked = says;
	if (n > HEADER)
		l->received.records++;
	for (uint32_t at = HEADER; at < n && l->stage != ENDED; at += RECORD)
		on_record(l, bytes + at);
}

// ---- Another queue pair

static void send_keys(struct link *l)
{
	uint8_t *buffer = control_buffer(l);
	uint32_t n = 18;
	l->pair->apart++;
	put_header(l, buffer);
	buffer[16] = 0;
	buffer[17] = !l->keys_sent;
	if (!l->keys_sent) {
		put(buffer + 18, 8, (uintptr_t)l->rings);
		put(buffer + 26, 4, RINGS_SIZE);
		put(buffer + 30, 4, l->pair->rings->rkey);
		n += 16;
	}
	l->keys_sent = true;
	to_mailbox(l, buffer, n, IMM_SEND);
}

static void replace_key(uint64_t addr, uint32_t *rkey, struct region r)
{
	if (addr >= r.addr && addr - r.addr < r.size)
		*rkey = r.rkey;
}

// send_again posts the messages that the peer has not received.
static void send_again(struct link *l)
{
	unsigned count = l->count, first = l->first;
	l->count = 0;
	struct counts next = l->acked;
	for (unsigned i = 0; i < count; i++) {
		struct message m = l->queue[(first + i) % (SENDS + DEPTH)];
		if (m.kind != DATA && m.kind != SEND)
			continue;
		bool data = m.kind == DATA;
		if (m.number <= (data ? l->acked.data : l->acked.records)) {
			if (data && m.stream->serial == m.serial)
				m.stream->completed += m.length;
			continue;
		}
		if (m.number != (data ? ++next.data : ++next.records))
			return end_link(l, "the peer lacks what is not here any more");
		for (uint32_t at = 0; !data && at < m.length - HEADER; at += RECORD)
			if (m.records[at] == OPEN || m.records[at] == ACCEPT || m.records[at] == RING)
				put(m.records + at + 4, 4, l->pair->rings->rkey);
		l->queue[(first + l->count++) % (SENDS + DEPTH)] = m;
	}
	if (next.data != l->sent.data || next.records != l->sent.records)
		return end_link(l, "the peer lacks what is not here any more");
	for (unsigned i = 0; i < l->count; i++)
		post(l, &l->queue[(first + i) % (SENDS + DEPTH)]);
}

static void on_keys(struct link *l, const uint8_t *bytes, uint32_t n)
{
	struct counts says = {get(bytes, 8), get(bytes + 8, 8)};
	int more = bytes[16], regions = bytes[17];
	if (n < 18 || n != 18u + 16 * regions || more > 1 || regions > REGIONS || (more && regions < REGIONS) ||
	    says.data < l->acked.data || says.data > l->sent.data || says.records < l->acked.records || says.records > l->sent.records)
		return breach(l, "keys that cannot be");
	for (int i = 0; i < regions; i++) {
		const uint8_t *at = bytes + 18 + 16 * i;
		struct region r = {get(at, 8), get(at + 8, 4), get(at + 12, 4)};
		for (int k = 0; k < STREAMS; k++) {
			replace_key(l->streams[k].to.addr, &l->streams[k].to.rkey, r);
			replace_key(l->streams[k].to_offer.addr, &l->streams[k].to_offer.rkey, r);
		}
		for (unsigned k = 0; k < l->count; k++) {
			struct message *m = &l->queue[(l->first + k) % (SENDS + DEPTH)];
			replace_key(m->addr, &m->rkey, r);
		}
	}
	if (more)
		return send_keys(l);
	l->keys_received = true;
	l->acked = says;
	l->told = l->received;
	l->credit_under_way = false;
	l->stage = UP;
	l->moves++;
	send_again(l);
}

// went_over begins the exchange of keys, once the new queue pair is connected.
static void went_over(struct link *l, struct pair *p)
{
	l->pair = p;
	l->attempt = l->arrival = NULL;
	l->stage = MOVING;
	l->keys_sent = l->keys_received = false;
	send_keys(l);
}

static void receive(struct link *l, struct pair *p, struct ibv_wc *wc)
{
	uint32_t imm = ntohl(wc->imm_data), n = wc->byte_len;
	p->receives--;
	if (!p->established) {
		rdma_notify(p->id, IBV_EVENT_COMM_EST);
		if (l->stage == SETTING_UP)
			l->stage = UP;
		p->established = true;
		if (l->stage == SEEKING)
			went_over(l, p);
	}
	if ((imm >> 16 & 0x1fff) != n % 8191) {
		l->lost = "a message of another length than its immediate says";
		return;
	}
	uint8_t slot[MESSAGE];
	if (imm & IMM_SEND) {
		memcpy(slot, p->slots + p->next_in * MESSAGE, MESSAGE);
		p->next_in = (p->next_in + 1) % CONTROL_RECEIVES;
	}
	if (l->lost == NULL)
		post_receive(p);
	if (!(imm & IMM_SEND))
		on_data(l, imm, n);
	else if (l->stage == MOVING)
		on_keys(l, slot, n);
	else
		on_send(l, slot, n);
}

// completed takes the oldest message from the queue.
static void completed(struct link *l, struct pair *p)
{
	p->under_way--;
	if (p->apart > 0) {
		p->apart--;
		return;
	}
	struct message *m = &l->queue[l->first];
	if (m->kind == DATA && m->stream->serial == m->serial)
		m->stream->completed += m->length;
	if (m->kind == LINK_CREDIT)
		l->credit_under_way = false;
	l->first = (l->first + 1) % (SENDS + DEPTH);
	l->count--;
}

// poll_pair takes all completions.
static void poll_pair(struct pair *p)
{
	struct link *l = p->link;
	struct ibv_wc wc;
	while (p->cq != NULL && l->stage != ENDED && ibv_poll_cq(p->cq, 1, &wc) > 0) {
		if (wc.status == IBV_WC_SUCCESS && wc.wr_id == 0) {
			receive(l, p, &wc);
		} else if (wc.status == IBV_WC_SUCCESS) {
			completed(l, p);
		} else {
			p->receives -= wc.wr_id == 0;
			if (p == l->pair && l->lost == NULL)
				l->lost = ibv_wc_status_str(wc.status);
			p->failed = true;
		}
	}
}

static void drop(struct pair **p)
{
	if (*p != NULL)
		destroy_pair(*p);
	*p = NULL;
}

// lose takes what had arrived on the queue pair that is lost, and has the link look for another.
static void lose(struct link *l)
{
	struct pair *p = l->pair;
	to_error(p);
	for (double until = now() + 5; p->receives > 0 && now() < until && l->stage != ENDED;)
		poll_pair(p);
	if (l->stage == ENDED)
		return;
	bool done = (l->goaway_sent && l->count == 0) || (l->goaway_received && !l->active);
	if (done && is_empty(l))
		return end_link(l, "goaway");
	if (!l->resume)
		return end_link(l, l->lost);
	drop(&l->pair);
	if (l->stage == UP)
		l->lost_at = now();
	l->lost = NULL;
	l->stage = SEEKING;
}

void lose_pair(struct link *l) { l->lost = "it was to be lost"; }

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;
	if (events == NULL) {
		if ((events = rdma_create_event_channel()) == NULL)
			fail("rdma_create_event_channel: %s", strerror(errno));
		fcntl(events->fd, F_SETFL, O_NONBLOCK);
	}
	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP) != 0)
		fail("rdma_create_id: %s", strerror(errno));
	return id;
}

static void request(struct link *l)
{
	struct rdma_cm_id *id = new_id();
	l->attempt = new_pair(id, l);
	struct sockaddr_storage from = l->local, to = l->remote;
	((struct sockaddr_in *)&from)->sin_port = 0; // at the same place in an IPv6 address
	((struct sockaddr_in *)&to)->sin_port = htons(l->peer_port);
	if (rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 1000) != 0)
		l->attempt->failed = true;
}

// answer accepts the peer's request.
static void answer(struct link *l, struct pair *p)
{
	uint8_t private[REP_LEN] = {0}, from[16], to[16];
	mapped(from, rdma_get_local_addr(p->id));
	mapped(to, rdma_get_peer_addr(p->id));
	make_queues(p);
	struct resumption r = {l->active ? ANSWER_OF_ACTIVE : ANSWER_OF_PASSIVE, l->number, p->resumption.attempt, 0};
	put_resumption(private, r, l->secret, from, to);
	private[REP_MTU] = to_ready(p, 0);
	if (p->failed)
		return;
	put_mailbox(p, private + REP_MAILBOX);
	struct rdma_conn_param param = {.private_data = private, .private_data_len = sizeof private, .qp_num = p->qp->qp_num, .rnr_retry_count = 7};
	p->failed = rdma_accept(p->id, &param) != 0;
}

// PAUSE is between attempts, and how long the side that dialed leaves its own request the time to be
// answered when the peer has made one, too; LONG is what an attempt may take, and LIMIT all of them.
static const double PAUSE = 0.1, LONG = 1, LIMIT = 30;

// seek does what is due for a link that has no queue pair.
static void seek(struct link *l)
{
	double at = now();
	if (at - l->lost_at > LIMIT)
		return end_link(l, "no other queue pair was found");
	if (l->attempt != NULL && (l->attempt->failed || at - l->attempt->made > LONG)) {
		drop(&l->attempt);
		l->next_try = at + PAUSE;
	}
	struct pair *a = l->arrival;
	if (a != NULL && (a->failed || at - a->made > 4 * LONG)) {
		drop(&l->arrival);
	} else if (a != NULL && a->qp == NULL && (!l->active || l->attempt == NULL || at - l->attempt->made > PAUSE)) {
		drop(&l->attempt);
		answer(l, a);
	}
	if (l->arrival == NULL && l->attempt == NULL && (options.requests || l->goaway_sent) && at >= l->next_try)
		request(l);
}

// ---- The connection manager

static void reject(struct rdma_cm_id *id, int code, const char *reason)
{
	uint8_t private[148];
	rdma_reject(id, private, put_reject(private, code, reason));
	rdma_destroy_id(id);
}

static struct link *find_link(struct resumption r)
{
	for (struct link *l = links; l != NULL; l = l->next)
		if (l->resume && l->number == r.link && l->active == (r.kind == REQUEST_OF_PASSIVE) && l->stage != ENDED)
			return l;
	return NULL;
}

// on_resumption is a request of a peer for another queue pair.
static void on_resumption(struct rdma_cm_id *id, const uint8_t *private, size_t length)
{
	struct resumption r = get_resumption(private);
	struct link *l = find_link(r);
	uint8_t from[16], to[16];
	mapped(from, rdma_get_peer_addr(id));
	mapped(to, rdma_get_local_addr(id));
	if (l == NULL || !is_sealed(private, l->secret, from, to))
		return reject(id, 0, "there is no such link");
	if (r.attempt <= l->taken || r.taken < l->answered)
		return reject(id, 1, "the request is stale");
	l->taken = r.attempt;
	struct pair *p = new_pair(id, l);
	p->resumption = r;
	if (!get_mailbox(p, private, length, REQ_MAILBOX))
		fail("a request without a mailbox");
	drop(&l->arrival);
	l->arrival = p;
	if (l->stage == SETTING_UP && !l->active)
		l->stage = UP; // it has confirmed, and lost that
	if (l->stage == UP || l->stage == MOVING)
		l->lost = "the peer has lost the queue pair";
}

static void copy_addresses(struct link *l, struct rdma_cm_id *id)
{
	memcpy(&l->local, rdma_get_local_addr(id), sizeof(struct sockaddr_in6));
	memcpy(&l->remote, rdma_get_peer_addr(id), sizeof(struct sockaddr_in6));
}

// put_hello writes the hello and the record behind it, with the link's first ring.
static void put_hello(struct pair *p, uint8_t *to, int type, int features)
{
	struct link *l = p->link;
	put_magic(to);
	put(to + 4, 2, options.version);
	put(to + 6, 2, features);
	put(to + 8, 4, DEPTH);
	put_record(to + HELLO, type, 0);
	put_ring(to + HELLO, (struct region){l->streams[0].ring.addr, RING_SIZE, p->rings->rkey});
	if (features & RESUME)
		put(to + 38, 2, ntohs(rdma_get_src_port(listener)));
}

static void on_request(struct rdma_cm_id *id, const uint8_t *private, size_t length)
{
	if (length >= RESUMPTION && memcmp(private, "rNET", 4) == 0 && get(private + 6, 2) & RESUMPTION_BIT)
		return on_resumption(id, private, length);
	const char *wrong = check_hello(private, length, OPEN);
	int features = get(private + 6, 2);
	if (wrong == NULL && features & PROOF)
		wrong = "this side knows no proof";
	if (wrong != NULL)
		return reject(id, 0, wrong);
	struct link *l = new_link(false);
	copy_addresses(l, id);
	struct pair *p = l->pair = new_pair(id, l);
	if (!get_mailbox(p, private, length, REQ_MAILBOX))
		return reject(id, 0, "there is no mailbox");
	struct stream *s = begin(l, 0);
	s->stage = IN_USE;
	s->to = get_ring(private + HELLO);
	l->peer_depth = get(private + 8, 4);
	make_queues(p);
	uint8_t answer[REP_LEN] = {0};
	l->resume = options.resume && features & RESUME && get(private + 38, 2) != 0;
	put_hello(p, answer, ACCEPT, l->resume ? RESUME : 0);
	if (l->resume) {
		l->peer_port = get(private + 38, 2);
		if (getrandom(l->secret, 16, 0) != 16 || getrandom(&l->number, 8, 0) != 8)
			fail("getrandom: %s", strerror(errno));
		put(answer + 40, 8, l->number);
		memcpy(answer + 48, l->secret, 16);
	}
	answer[REP_MTU] = to_ready(p, 0);
	if (p->failed)
		fail("the peer has withdrawn");
	put_mailbox(p, answer + REP_MAILBOX);
	struct rdma_conn_param param = {.private_data = answer, .private_data_len = sizeof answer, .qp_num = p->qp->qp_num, .rnr_retry_count = 7};
	if (rdma_accept(id, &param) != 0)
		fail("rdma_accept: %s", strerror(errno));
}

// connect_pair makes the queue pair, and asks the peer for the other end.
static void connect_pair(struct pair *p)
{
	struct link *l = p->link;
	uint8_t private[REQ_LEN] = {0};
	make_queues(p);
	if (p->failed)
		return;
	if (l->stage == SETTING_UP) {
		struct stream *s = begin(l, 0);
		s->stage = OPENING;
		put_hello(p, private, OPEN, options.resume ? RESUME : 0);
	} else {
		uint8_t from[16], to[16];
		mapped(from, rdma_get_local_addr(p->id));
		mapped(to, rdma_get_peer_addr(p->id));
		p->resumption = (struct resumption){l->active ? REQUEST_OF_ACTIVE : REQUEST_OF_PASSIVE, l->number, ++l->made,
			l->arrival != NULL ? l->arrival->resumption.attempt - 1 : l->taken};
		put_resumption(private, p->resumption, l->secret, from, to);
	}
	put_mailbox(p, private + REQ_MAILBOX);
	struct rdma_conn_param param = {.private_data = private, .private_data_len = sizeof private, .qp_num = p->qp->qp_num, .retry_count = 6, .rnr_retry_count = 7};
	if (rdma_connect(p->id, &param) != 0)
		p->failed = true;
}

// on_answer is the peer's REP.
static void on_answer(struct pair *p, const uint8_t *private, size_t length)
{
	struct link *l = p->link;
	if (!get_mailbox(p, private, length, REP_MAILBOX))
		fail("an answer without a mailbox");
	if (l->stage == SETTING_UP) {
		const char *wrong = check_hello(private, length, ACCEPT);
		if (wrong != NULL)
			fail("the answer: %s", wrong);
		copy_addresses(l, p->id);
		l->peer_depth = get(private + 8, 4);
		struct stream *s = &l->streams[0];
		s->stage = IN_USE;
		s->to = get_ring(private + HELLO);
		l->resume = options.resume && get(private + 6, 2) & RESUME;
		l->peer_port = get(private + 38, 2);
		l->number = get(private + 40, 8);
		memcpy(l->secret, private + 48, 16);
	} else {
		uint8_t from[16], to[16];
		mapped(from, rdma_get_peer_addr(p->id));
		mapped(to, rdma_get_local_addr(p->id));
		struct resumption r = get_resumption(private);
		if (!is_sealed(private, l->secret, from, to) || r.kind != (l->active ? ANSWER_OF_PASSIVE : ANSWER_OF_ACTIVE) ||
		    r.attempt != p->resumption.attempt) {
			rdma_reject(p->id, NULL, 0);
			p->failed = true;
			return;
		}
		l->answered = r.attempt;
	}
	to_ready(p, private[REP_MTU]);
	if (p->failed || rdma_establish(p->id) != 0) {
		p->failed = true;
		return;
	}
	p->established = true;
	if (l->stage == SEEKING) {
		drop(&l->arrival);
		return went_over(l, p);
	}
	l->stage = UP;
	if (options.up != NULL)
		options.up(l);
}

// is_gone reports whether a rejection says that the peer does not have the link any more. That nobody
// listens has to be found twice.
static bool is_gone(struct link *l, int status, const uint8_t *private, size_t length)
{
	enum { INVALID_SERVICE_ID = 8 };
	if (status != INVALID_SERVICE_ID) {
		l->nobody_since = 0;
		return length >= 8 && memcmp(private, "rNET", 4) == 0 && private[6] == 0 && private[7] > 0;
	}
	if (l->nobody_since == 0)
		l->nobody_since = now();
	return now() - l->nobody_since >= PAUSE;
}

static void on_failure(struct pair *p, int event, int status, const uint8_t *private, size_t length)
{
	struct link *l = p->link;
	p->failed = true;
	if (p == l->pair && l->stage == SETTING_UP && !l->active && l->resume && event == RDMA_CM_EVENT_DISCONNECTED)
		l->stage = UP; // only a side that has confirmed disconnects
	if (p == l->pair && l->stage == SETTING_UP) {
		if (length >= 8 && memcmp(private, "rNET", 4) == 0 && private[7] <= length - 8)
			fail("refused: %.*s", private[7], private + 8);
		fail("no link: %s", rdma_event_str(event));
	}
	if (p == l->attempt && event == RDMA_CM_EVENT_REJECTED && is_gone(l, status, private, length))
		return end_link(l, l->goaway && is_empty(l) ? "goaway" : "the peer does not have the link any more");
	if (p == l->pair && l->lost == NULL && l->stage != ENDED)
		l->lost = rdma_event_str(event);
}

static void on_event(struct rdma_cm_event *e)
{
	struct rdma_cm_id *id = e->id;
	struct pair *p = id->context;
	int event = e->event, status = e->status;
	uint8_t private[256] = {0};
	size_t length = 0;
	if (event == RDMA_CM_EVENT_CONNECT_REQUEST || event == RDMA_CM_EVENT_CONNECT_RESPONSE || event == RDMA_CM_EVENT_REJECTED) {
		length = e->param.conn.private_data_len;
		if (length > 0)
			memcpy(private, e->param.conn.private_data, length);
	}
	rdma_ack_cm_event(e);
	switch (event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(id, 1000) != 0)
			p->failed = true;
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		connect_pair(p);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		on_request(id, private, length);
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		on_answer(p, private, length);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (p->established)
			break;
		p->established = true;
		if (p == p->link->arrival)
			went_over(p->link, p);
		else if (p->link->stage == SETTING_UP)
			p->link->stage = UP;
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		if (p != NULL)
			on_failure(p, event, status, private, length);
	}
}

static struct addrinfo *resolve(const char *host, const char *port)
{
	struct addrinfo *a, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	int rc = getaddrinfo(host, port, &hints, &a);
	if (rc != 0)
		fail("%s port %s: %s", host, port, gai_strerror(rc));
	return a;
}

uint16_t listen_at(const char *host, const char *port)
{
	listener = new_id();
	if (rdma_bind_addr(listener, resolve(host, port)->ai_addr) != 0 || rdma_listen(listener, 128) != 0)
		fail("cannot listen at %s port %s: %s", host, port, strerror(errno));
	return ntohs(rdma_get_src_port(listener));
}

struct link *dial(const char *host, const char *port)
{
	listen_at(resolve(host, port)->ai_family == AF_INET ? "0.0.0.0" : "::", "0"); // for requests of the peer's
	struct link *l = new_link(true);
	l->pair = new_pair(new_id(), l);
	if (rdma_resolve_addr(l->pair->id, NULL, resolve(host, port)->ai_addr, 2000) != 0)
		fail("rdma_resolve_addr: %s", strerror(errno));
	return l;
}

// sleep_until_something waits for an event or a completion.
static void sleep_until_something(void)
{
	struct pollfd fds[256] = {{events->fd, POLLIN, 0}};
	int n = 1;
	for (struct pair *p = pairs; p != NULL && n < 256; p = p->next)
		if (p->channel != NULL)
			fds[n++] = (struct pollfd){p->channel->fd, POLLIN, 0};
	poll(fds, n, 20);
	struct rdma_cm_event *e;
	while (rdma_get_cm_event(events, &e) == 0)
		on_event(e);
}

void serve(void)
{
	sleep_until_something();
	for (struct pair *p = pairs; p != NULL; p = p->next) {
		struct ibv_cq *cq;
		void *context;
		while (p->channel != NULL && ibv_get_cq_event(p->channel, &cq, &context) == 0) {
			ibv_ack_cq_events(cq, 1);
			ibv_req_notify_cq(cq, 0);
		}
		poll_pair(p);
	}
	for (struct link *l = links; l != NULL; l = l->next) {
		if (l->lost != NULL && l->stage != ENDED && l->pair != NULL)
			lose(l);
		if (l->stage == SEEKING)
			seek(l);
		if (l->stage == UP)
			pump(l);
	}
}
