// cpeer is a second implementation of docs/protocol.md, to show that the document is enough. It serves
// tests, so whatever it cannot do ends it, and says why.
//
//     cpeer listen HOST PORT            echo what arrives on each stream of each link
//     cpeer dial HOST PORT [OPTION]...  send to an echo server, and compare
//
// Options: streams=N, bytes=N for each stream; lose=N has the queue pair be lost whenever so many more
// bytes have come back; wait=1 leaves it to the peer to ask for another, which it does as long as there
// are streams; resume=0; version=N; reset=N resets each stream when N bytes have come back;
// breach=NAME breaks the protocol.

#include "link.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static unsigned streams = 1;
static uint64_t bytes = 100000, lose_each, lose_next, reset_at, echoed, done;
static const struct breach *to_commit;
static struct link *dialed;

static uint8_t pattern(int number, uint64_t at) { return at * 7 + at / 251 + number; }

// echo sends back what arrives.
static void echo(struct stream *s)
{
	uint8_t buffer[4096];
	for (size_t n; (n = stream_room(s)) > 0;) {
		n = stream_read(s, buffer, n < sizeof buffer ? n : sizeof buffer);
		if (n == 0)
			break;
		stream_write(s, buffer, n);
		echoed += n;
	}
	s->close = s->close || (s->end == FIN && s->consumed == s->received);
	if (lose_each > 0 && echoed >= lose_next) {
		lose_next = echoed + lose_each;
		lose_pair(link_of(s));
	}
}

// check sends the pattern, and compares what comes back.
static void check(struct stream *s)
{
	uint8_t buffer[4096];
	for (size_t n, i; (n = stream_room(s)) > 0 && s->app_sent < bytes;) {
		n = n < sizeof buffer ? n : sizeof buffer;
		n = n < bytes - s->app_sent ? n : bytes - s->app_sent;
		for (i = 0; i < n; i++)
			buffer[i] = pattern(s->number, s->app_sent + i);
		stream_write(s, buffer, n);
		s->app_sent += n;
	}
	s->close = s->close || s->app_sent == bytes;
	for (size_t n; (n = stream_read(s, buffer, sizeof buffer)) > 0; s->app_received += n, echoed += n)
		for (size_t i = 0; i < n; i++)
			if (buffer[i] != pattern(s->number, s->app_received + i))
				fail("stream %d: another byte at %llu", s->number, (unsigned long long)(s->app_received + i));
	s->reset = s->reset || (reset_at > 0 && s->app_received >= reset_at);
	if (lose_each > 0 && echoed >= lose_next) {
		lose_next = echoed + lose_each;
		lose_pair(dialed);
	}
	if (s->stage == FREE) {
		if (reset_at == 0 && (s->end != FIN || s->app_received != bytes))
			fail("stream %d: %llu bytes came back", s->number, (unsigned long long)s->app_received);
		if (++done == streams)
			dialed->goaway = true;
	}
}

// A breach is a message that breaks a rule: a SEND with a record, in which one field is set, or data.
static const struct breach {
	const char *name;
	int type, offset, size; // of the record, and of its field
	uint64_t value;
	uint32_t data; // the immediate; 0: it is a SEND
	uint32_t length;
} breaches[] = {
	{"type", GOAWAY + 1, .length = HEADER + RECORD},
	{"bits", FINACK, 23, 1, 1, .length = HEADER + RECORD},
	{"finack", FINACK, .length = HEADER + RECORD},
	{"fin", FIN, 8, 8, 1, .length = HEADER + RECORD},
	{"credit", CREDIT, 8, 8, 1, .length = HEADER + RECORD},
	{"open", OPEN, 16, 4, RING_SIZE, .length = HEADER + RECORD},
	{"unknown", FINACK, 1, 3, 5, .length = HEADER + RECORD},
	{"goaway", GOAWAY, RECORD, 1, GOAWAY, .length = HEADER + 2 * RECORD},
	{"totals", FINACK, 7 - HEADER, 1, 1, .length = HEADER + RECORD},
	{"link-credit", .length = HEADER},
	{"length", FINACK, .length = HEADER + 1},
	{"empty", .data = IMM_FULL, .length = 0},
	{"new", .data = IMM_NEW, .length = 1},
	{"stream", .data = 5, .length = 1},
};

static const struct breach *breach_called(const char *name)
{
	for (size_t i = 0; i < sizeof breaches / sizeof *breaches; i++)
		if (strcmp(breaches[i].name, name) == 0)
			return &breaches[i];
	fail("no breach is called %s", name);
}

static void commit(struct link *l, const struct breach *b)
{
	uint8_t message[MESSAGE] = {0}, *record = message + HEADER;
	put_header(l, message);
	record[0] = b->type;
	if (b->type == OPEN)
		put(record + 20, 2, 1);
	put(record + b->offset, b->size, b->value);
	struct region to = l->streams[0].to;
	if (b->data != 0)
		post_message(l, b->data, message, b->length, to.addr, to.rkey);
	else
		post_message(l, IMM_SEND, message, b->length, 0, 0);
}

static void up(struct link *l)
{
	if (to_commit != NULL)
		return commit(l, to_commit);
	for (unsigned i = 1; i < streams; i++)
		open_stream(l);
}

static void ended(struct link *l, const char *why)
{
	if (l->active && strcmp(why, "goaway") == 0)
		printf("ok, with %d moves\n", l->moves);
	else
		printf("ended: %s\n", why);
	if (l->active)
		exit(strcmp(why, "goaway") == 0 ? 0 : 3);
}

static void option(const char *text)
{
	const char *is = strchr(text, '=');
	uint64_t v = is != NULL ? strtoull(is + 1, NULL, 10) : 0;
	size_t n = is != NULL ? (size_t)(is - text) : 0;
	if (n == 7 && strncmp(text, "streams", n) == 0)
		streams = v;
	else if (n == 5 && strncmp(text, "bytes", n) == 0)
		bytes = v;
	else if (n == 4 && strncmp(text, "lose", n) == 0)
		lose_each = lose_next = v;
	else if (n == 4 && strncmp(text, "wait", n) == 0)
		options.requests = v == 0;
	else if (n == 6 && strncmp(text, "resume", n) == 0)
		options.resume = v != 0;
	else if (n == 7 && strncmp(text, "version", n) == 0)
		options.version = v;
	else if (n == 5 && strncmp(text, "reset", n) == 0)
		reset_at = v;
	else if (n == 6 && strncmp(text, "breach", n) == 0)
		to_commit = breach_called(is + 1);
	else
		fail("unknown option %s", text);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	if (argc < 4)
		fail("want listen or dial, HOST, PORT");
	for (int i = 4; i < argc; i++)
		option(argv[i]);
	options.ended = ended;
	if (strcmp(argv[1], "listen") == 0) {
		options.ready = echo;
		printf("listening at %u\n", listen_at(argv[2], argv[3]));
	} else {
		options.ready = to_commit == NULL ? check : NULL;
		options.up = up;
		dialed = dial(argv[2], argv[3]);
	}
	for (;;)
		serve();
}
