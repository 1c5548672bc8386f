// What a C programmer would write on verbs for two threads, to compare ringnet with.
//
//	raw WORKLOAD BYTES MILLISECONDS [DEVICE [ADDRESS]]
//
// Without a DEVICE it measures the first one; an IPv4 ADDRESS of it chooses the GID.
// It prints a JSON object: operations, their bytes, the seconds that they took, the median of an
// operation in nanoseconds, and the processor time of both ends in seconds. The workloads:
//
//	turn       one thread copies a message, posts it, polls for it and copies it again
//	ping-pong  half a round trip between two threads
//	stream     a thread copies messages and posts them, another polls and copies them
//	event-N    the Nth of 40 messages in a row, EVENT_GAP after one another, from post to poll

#define _GNU_SOURCE
#include "connect.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { RECEIVES = 256, BATCH = 32, SENDS = 512, ROW = 40, EVENT_GAP = 50000, MAX_TIMES = 1 << 20 };

struct side {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *ring, *staging, *credit;
	char *user;
	struct side *peer;
	uint64_t sent, done; // requests, and those that have completed
	int due;	     // receives to post
	unsigned idle;	     // polls that have found nothing
};

static struct side sides[2];
static size_t size, slot, window; // of messages: bytes, bytes in the ring, and how many it holds
static unsigned inline_size = 256;  // that the device takes, or less
static int position;		  // of the event that is measured
static _Atomic bool stop;
static float times[MAX_TIMES];
static _Atomic int timed;
static int per_time; // operations
static uint64_t operations;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static double processor_time(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "raw: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void add_time(double ns)
{
	if (timed < MAX_TIMES) {
		times[timed] = ns;
		timed++;
	}
}

// tick is called after each operation: the clock is read once for several of them.
static void tick(void)
{
	static uint64_t since;
	if (++operations % per_time)
		return;
	uint64_t t = now();
	if (since)
		add_time((double)(t - since) / per_time);
	since = t;
}

static int by_size(const void *x, const void *y)
{
	return (*(const float *)x > *(const float *)y) - (*(const float *)x < *(const float *)y);
}

static void report(double seconds, double cpu, double scale)
{
	qsort(times, timed, sizeof *times, by_size);
	printf("{\"ops\":%.0f,\"bytes\":%.0f,\"seconds\":%g,\"p50\":%g,\"cpu\":%g}\n", operations / scale, operations / scale * size, seconds,
		scale * times[timed / 2], cpu);
}

static void *pages(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	must(p != MAP_FAILED, "mmap");
	return p;
}

static struct ibv_mr *memory(struct side *s, size_t n)
{
	struct ibv_mr *mr = ibv_reg_mr(s->pd, pages(n), n, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	must(mr, "ibv_reg_mr");
	return mr;
}

static void open_side(struct side *s, struct side *peer)
{
	s->peer = peer;
	s->pd = ibv_alloc_pd(device.ctx);
	s->cq = ibv_create_cq(device.ctx, 1024, NULL, NULL, 0);
	must(s->pd && s->cq, "ibv_create_cq");
	for (;; inline_size /= 2) {
		struct ibv_qp_init_attr q = {.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = SENDS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = inline_size}};
		s->qp = ibv_create_qp(s->pd, &q);
		if (s->qp || inline_size <= sizeof(uint64_t)) // which is what a credit has
			break;
	}
	must(s->qp, "ibv_create_qp");
	s->ring = memory(s, window * slot);
	s->staging = memory(s, window * slot);
	s->credit = memory(s, 4096);
	s->user = pages(slot);
}

static void connect_side(struct side *s)
{
	must(to_init(s->qp), "INIT");
	must(to_rts(s->qp, s->peer->qp->qp_num, (struct patience){.timeout = 14, .retries = 7, .rnr_retries = 7}), "RTS");
}

static void post_receives(struct side *s, int n)
{
	struct ibv_recv_wr wr[BATCH], *bad;
	for (int left = n, k; left > 0; left -= k) {
		k = left < BATCH ? left : BATCH;
		memset(wr, 0, k * sizeof *wr);
		for (int i = 0; i + 1 < k; i++)
			wr[i].next = &wr[i + 1];
		must(!ibv_post_recv(s->qp, wr, &bad), "ibv_post_recv");
	}
}

// write_to posts a write to the peer's memory: a message if it has an immediate. The last of
// each BATCH requests asks for a completion.
static void write_to(struct side *s, const void *from, size_t n, const struct ibv_mr *mr, size_t offset, bool message)
{
	struct ibv_sge g = {.addr = (uintptr_t)from, .length = n, .lkey = s->staging->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &g, .num_sge = 1, .opcode = message ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.send_flags = (++s->sent % BATCH == 0 ? IBV_SEND_SIGNALED : 0) | (n <= inline_size ? IBV_SEND_INLINE : 0),
		.wr.rdma = {.remote_addr = (uintptr_t)mr->addr + offset, .rkey = mr->rkey}};
	must(!ibv_post_send(s->qp, &wr, &bad), "ibv_post_send");
}

// poll returns how many messages have arrived, and posts the receives that they have taken. One in a
// while that finds nothing yields: the other thread may want this processor.
static int poll(struct side *s)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(s->cq, 16, wc), got = 0;
	if (n == 0 && ++s->idle % 1000 == 0)
		sched_yield();
	for (int i = 0; i < n; i++) {
		must(wc[i].status == IBV_WC_SUCCESS, "completion");
		if (wc[i].opcode & IBV_WC_RECV)
			got++;
		else
			s->done += BATCH;
	}
	s->due += got;
	if (s->due >= BATCH) {
		post_receives(s, s->due);
		s->due = 0;
	}
	return got;
}

// await returns false when the time is over.
static bool await(struct side *s)
{
	while (!poll(s))
		if (atomic_load_explicit(&stop, memory_order_relaxed))
			return false;
	return true;
}

// send posts a message with a copy of the user's bytes: one that is inline is a copy itself.
static void send(struct side *s)
{
	size_t at = s->sent % window * slot;
	char *from = s->user;
	if (size > inline_size)
		from = memcpy((char *)s->staging->addr + at, s->user, size);
	write_to(s, from, size, s->peer->ring, at, true);
}

static void receive(struct side *s, uint64_t n) { memcpy(s->user, (char *)s->ring->addr + n % window * slot, size); }

static void *turn(void *arg)
{
	struct side *s = arg;
	for (uint64_t n = 0; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
		send(s);
		await(s->peer);
		receive(s->peer, n);
		if (s->sent % BATCH == 0)
			poll(s);
		tick();
	}
	return NULL;
}

static void *ping(void *arg)
{
	struct side *s = arg;
	for (send(s); await(s); send(s))
		tick();
	return NULL;
}

static void *pong(void *arg)
{
	struct side *s = arg;
	while (await(s))
		send(s);
	return NULL;
}

// write_stream sends as long as the receiver has room: it writes how many messages it has taken to
// the sender's memory.
static void *write_stream(void *arg)
{
	struct side *s = arg;
	volatile uint64_t *taken = s->credit->addr;
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		if (s->sent - *taken >= window || s->sent - s->done >= SENDS - BATCH) {
			poll(s);
			continue;
		}
		send(s);
		if (s->sent % BATCH == 0)
			poll(s);
		tick();
	}
	return NULL;
}

static void *read_stream(void *arg)
{
	struct side *s = arg;
	uint64_t n = 0, told = 0, every = window / 2 < BATCH ? window / 2 : BATCH;
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int got = poll(s); got > 0; got--)
			receive(s, n++);
		if (n - told < every)
			continue;
		told = n;
		write_to(s, &n, sizeof n, s->peer->credit, 0, false);
	}
	return NULL;
}

// write_events sends rows of messages that have the time of their post, each of which the
// reader answers at its end.
static void *write_events(void *arg)
{
	struct side *s = arg;
	do {
		uint64_t next = now();
		for (int i = 0; i < ROW; i++) {
			for (next += EVENT_GAP; now() < next;)
				sched_yield();
			*(uint64_t *)s->user = now();
			send(s);
		}
	} while (await(s));
	return NULL;
}

static void read_event(struct side *s, uint64_t n)
{
	receive(s, n - 1);
	operations++;
	if (n % ROW == (uint64_t)position % ROW)
		add_time(now() - *(uint64_t *)s->user);
	if (n % ROW == 0)
		send(s);
}

static void *read_events(void *arg)
{
	uint64_t n = 0;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		for (int got = poll(arg); got > 0; got--)
			read_event(arg, ++n);
	return NULL;
}

// A workload is what the threads do; scale is what of an operation's time is measured.
struct workload {
	const char *name;
	void *(*first)(void *), *(*second)(void *);
	double scale;
};

static const struct workload workloads[] = {
	{"turn", turn, NULL, 1},
	{"ping-pong", ping, pong, 0.5},
	{"stream", write_stream, read_stream, 1},
	{"event", write_events, read_events, 1},
};

static const struct workload *find(char *name)
{
	char *dash = strncmp(name, "event-", 6) ? NULL : strchr(name, '-');
	if (dash) {
		*dash = 0;
		position = atoi(dash + 1);
	}
	for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
		if (!strcmp(workloads[i].name, name))
			return &workloads[i];
	errno = EINVAL;
	must(false, name);
	return NULL;
}

static void prepare(const char *name, const char *address)
{
	const char *failed = open_device(name, address);
	must(!failed, failed);
	slot = (size + 63) & ~63ul;
	window = (8 << 20) / slot;
	window = window > 128 ? 128 : window < 8 ? 8 : window;
	per_time = size <= 4096 ? 64 : 8;
	for (int i = 0; i < 2; i++)
		open_side(&sides[i], &sides[!i]);
	for (int i = 0; i < 2; i++) {
		connect_side(&sides[i]);
		post_receives(&sides[i], RECEIVES);
	}
}

int main(int argc, char **argv)
{
	if (argc < 4 || argc > 6) {
		fprintf(stderr, "usage: raw turn|ping-pong|stream|event-N BYTES MILLISECONDS [DEVICE [ADDRESS]]\n");
		return 2;
	}
	const struct workload *w = find(argv[1]);
	size = atol(argv[2]);
	int ms = atoi(argv[3]);
	prepare(argv[4], argc == 6 ? argv[5] : NULL);
	pthread_t threads[2];
	uint64_t began = now();
	double cpu = processor_time();
	if (w->second)
		must(!pthread_create(&threads[1], NULL, w->second, &sides[1]), "pthread_create");
	must(!pthread_create(&threads[0], NULL, w->first, &sides[0]), "pthread_create");
	do
		nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
	while (!timed); // longer on a busy machine
	stop = true;
	pthread_join(threads[0], NULL);
	if (w->second)
		pthread_join(threads[1], NULL);
	report((now() - began) / 1e9, processor_time() - cpu, w->scale);
	return 0;
}
