// Faults that come by themselves, drawn from the fabric's seed: IDEAL_FAULTS has what the launcher has
// checked, such as "out=50000000ns,qp=1e-5,kill@2000". Each kind counts its occasions in each process;
// KIND=RATE is how probable it is at each of them, and KIND@N has it come at the Nth.

#include "card.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>

enum kind_of_fault { QP, CABLE, PORT, CARD, KILL, KINDS_OF_FAULTS };
static const char *const names[] = {"qp", "cable", "port", "card", "kill"};

enum { WIRE_HEADERS = 70, ACKNOWLEDGEMENT = 62 }; // bytes on the cable

bool scheduled;
static uint64_t out = 100000000, state; // of the generator, under draws
static double rate[KINDS_OF_FAULTS];
static _Atomic int64_t left[KINDS_OF_FAULTS]; // occasions until the next one
static bool ever[KINDS_OF_FAULTS];
static pthread_mutex_t draws = PTHREAD_MUTEX_INITIALIZER;

// draw is splitmix64.
static uint64_t draw(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static int64_t next_gap(int kind)
{
	if (rate[kind] <= 0)
		return INT64_MAX / 2;
	double n = log(((draw() >> 11) + 1) * 0x1p-53) / log1p(-rate[kind]);
	return n < 1e18 ? 1 + (int64_t)n : INT64_MAX / 2;
}

static void read_word(const char *word)
{
	unsigned long long n;
	if (sscanf(word, "out=%llu", &n) == 1)
		out = n;
	for (int k = 0; k < KINDS_OF_FAULTS; k++) {
		size_t length = strlen(names[k]);
		if (strncmp(word, names[k], length))
			continue;
		if (word[length] == '@')
			left[k] = atoll(word + length + 1);
		else if (word[length] == '=')
			rate[k] = atof(word + length + 1);
		ever[k] = true;
	}
}

// read_schedule is for a process that has its number. It returns whether there is a schedule.
bool read_schedule(void)
{
	char *text = getenv("IDEAL_FAULTS"), *rest, *copy;
	if (!text || !*text)
		return false;
	copy = strdup(text);
	for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
		read_word(word);
	free(copy);
	state = fabric->seed + (self * 0x9e3779b97f4a7c15ull << 7);
	for (int k = 0; k < KINDS_OF_FAULTS; k++)
		if (!left[k])
			left[k] = next_gap(k);
	return scheduled = true;
}

// comes counts n occasions, and returns whether a fault comes at one of them: at which, in at.
static bool comes(int kind, int64_t n, int64_t *at)
{
	if (!ever[kind])
		return false;
	int64_t before = atomic_fetch_sub(&left[kind], n);
	if (before > n || before < 1)
		return false;
	*at = before - 1;
	pthread_mutex_lock(&draws);
	atomic_store(&left[kind], next_gap(kind));
	pthread_mutex_unlock(&draws);
	return true;
}

// count_call counts a call of verbs.
void count_call(struct ibv_context *c)
{
	int64_t at;
	struct card *card = card_of(c);
	if (comes(KILL, 1, &at))
		kill(getpid(), SIGKILL);
	if (comes(CARD, 1, &at))
		begin_fault(&card->gone, out);
	if (comes(PORT, 1, &at))
		begin_fault(&card->port[0].down, out);
}

// strike_request counts a work request, and returns whether its queue pair fails, and whether that
// is before the peer has it or after.
enum strike strike_request(void)
{
	int64_t at;
	if (!comes(QP, 1, &at))
		return NOTHING;
	pthread_mutex_lock(&draws);
	enum strike s = draw() & 1 ? BEFORE : AFTER;
	pthread_mutex_unlock(&draws);
	return s;
}

// strike_cable counts the bytes of a message and of its acknowledgement. It returns how many of the
// message's length arrive: all but one more than that if the acknowledgement does, too.
uint64_t strike_cable(struct queue_pair *q, const struct queue_pair *p, uint64_t length)
{
	int64_t at;
	if (card_of(q->ibv.context)->host == card_of(p->ibv.context)->host || !comes(CABLE, WIRE_HEADERS + length + ACKNOWLEDGEMENT, &at))
		return length + 1;
	begin_fault(&fabric->out[port_of(q)->cable], out);
	at -= WIRE_HEADERS;
	return at < 0 ? 0 : (uint64_t)at < length ? (uint64_t)at : length;
}
