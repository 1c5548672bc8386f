// Tries on a device what providers are known to do in different ways, and prints a line for each:
// its name, a tab, and what was seen.
//
//	manners DEVICE [ADDRESS]
//
// ADDRESS is an IPv4 address of the device, by which the GID is chosen. Both ends of all connections
// are queue pairs of this process, at the first port that is ACTIVE. It knows nothing of ringnet.

#define _GNU_SOURCE
#include "connect.h"
#include <dlfcn.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 64, TIMES = 16, BYTES = 1 << 16, SETTLED = 50 /* ms */, PATIENCE = 20 /* s */, REGION = 64 << 20 };

static struct ibv_device_attr limits;
static struct ibv_pd *pd;
static struct ibv_mr *mr; // of BYTES for each end
static int most_inline;	  // bytes

// How the queue pairs of a pair are made and connected.
struct how {
	bool one_cq; // for both ends
	int inline_data;
	struct patience patience;
	struct ibv_comp_channel *channel; // of the first end
	struct ibv_cq *cq;		  // of both ends, that was there
};

static const struct how usual = {.patience = {.timeout = 14, .retries = 7, .rnr_retries = 7}};

struct pair {
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	bool has_cq[2]; // that are its own
};

static void say(const char *name, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	printf("%s\t", name);
	vprintf(format, args);
	putchar('\n');
	fflush(stdout); // what follows may end this process
	va_end(args);
}

static void failed(const char *name, const char *call) { say(name, "not seen: %s: %s", call, errno ? strerror(errno) : "no errno"); }

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int by_size(const void *x, const void *y) { return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y); }

static const char *seconds(double s)
{
	static char text[4][32];
	static int turn;
	char *t = text[turn++ % 4];
	if (s < 1e-3)
		snprintf(t, sizeof *text, "%.3g µs", s * 1e6);
	else if (s < 1)
		snprintf(t, sizeof *text, "%.3g ms", s * 1e3);
	else
		snprintf(t, sizeof *text, "%.3g s", s);
	return t;
}

// median sorts the times.
static const char *median(double *times, int n)
{
	static char text[4][80];
	static int turn;
	char *t = text[turn++ % 4];
	double first = times[0];
	qsort(times, n, sizeof *times, by_size);
	snprintf(t, sizeof *text, "%s, the first time %s", seconds(times[n / 2]), seconds(first));
	return t;
}

static struct ibv_qp *queue_pair(struct ibv_cq *cq, int sends, int inline_data, struct ibv_qp_cap *granted)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = sends, .max_recv_wr = MANY, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = inline_data}};
	errno = 0;
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	if (qp && granted)
		*granted = a.cap;
	return qp;
}

// destroyed prints an errno with which a destroy fails: of a device that is gone it may.
static void destroyed(const char *what, int error)
{
	if (error)
		say("destroy that failed", "%s: %s", what, strerror(error));
}

static void close_pair(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		if (p->qp[i])
			destroyed("queue pair", ibv_destroy_qp(p->qp[i]));
	for (int i = 0; i < 2; i++)
		if (p->has_cq[i])
			destroyed("completion queue", ibv_destroy_cq(p->cq[i]));
	memset(p, 0, sizeof *p);
}

// open_pair connects two queue pairs. For a pair that cannot be had it says so under the name.
static bool open_pair(const char *name, struct pair *p, const struct how *how)
{
	memset(p, 0, sizeof *p);
	for (int i = 0; i < 2; i++) {
		p->cq[i] = how->cq ? how->cq : p->cq[0];
		if (!how->cq && !(i && how->one_cq)) {
			p->cq[i] = ibv_create_cq(device.ctx, 4 * MANY, NULL, i ? NULL : how->channel, 0);
			p->has_cq[i] = p->cq[i];
		}
		if (!p->cq[i] || !(p->qp[i] = queue_pair(p->cq[i], MANY, how->inline_data, NULL)) || !to_init(p->qp[i])) {
			failed(name, "making a queue pair");
			close_pair(p);
			return false;
		}
	}
	for (int i = 0; i < 2; i++)
		if (!to_rts(p->qp[i], p->qp[!i]->qp_num, how->patience)) {
			failed(name, "connecting a queue pair");
			close_pair(p);
			return false;
		}
	return true;
}

static int post_receives(struct ibv_qp *qp, int n)
{
	struct ibv_recv_wr wr = {0}, *bad;
	int error = 0;
	while (!error && n-- > 0)
		error = ibv_post_recv(qp, &wr, &bad);
	return errno = error;
}

// post posts a signaled request with the first bytes of the first end's memory to the second's.
static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, int bytes, int flags, uint64_t id)
{
	struct ibv_sge g = {.addr = (uintptr_t)mr->addr, .length = bytes, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = id, .sg_list = &g, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | flags,
		.wr.rdma = {.remote_addr = (uintptr_t)mr->addr + BYTES, .rkey = mr->rkey}};
	return errno = ibv_post_send(qp, &wr, &bad);
}

// await polls for n completions, and returns how many there were in the end.
static int await(struct ibv_cq *cq, struct ibv_wc *wc, int n, double patience)
{
	int got = 0;
	for (double began = now(); got < n && now() - began < patience;) {
		int k = ibv_poll_cq(cq, n - got, wc + got);
		if (k < 0)
			break;
		got += k;
	}
	return got;
}

static void settle(void) { usleep(SETTLED * 1000); }

static void see_limits(void)
{
	say("firmware", "%s", limits.fw_ver);
	say("vendor and part", "%#x, %d", limits.vendor_id, limits.vendor_part_id);
	say("queue pairs, completion queues, regions", "%d, %d, %d", limits.max_qp, limits.max_cq, limits.max_mr);
	say("work requests of a queue pair", "%d", limits.max_qp_wr);
	say("completions of a queue", "%d", limits.max_cqe);
	say("bytes of a region", "%.3g", (double)limits.max_mr_size);
	say("parts of a work request (max_sge)", "%d", limits.max_sge);
	say("acknowledgement delay of the device", "%s", seconds(4.096e-6 * (1u << (limits.local_ca_ack_delay & 31))));
	say("MTU in use, of the most", "%d of %d bytes", 128 << device.port.active_mtu, 128 << device.port.max_mtu);
}

static void see_inline(void)
{
	static const int asked[] = {0, 32, 60, 64, 96, 101, 128, 192, 220, 236, 256, 400, 512, 828, 1024, 2048};
	struct ibv_cq *cq = ibv_create_cq(device.ctx, 4 * MANY, NULL, NULL, 0);
	char text[1024] = "", refused[1024] = "";
	int most = 0;
	for (size_t i = 0; cq && i < sizeof asked / sizeof *asked; i++) {
		struct ibv_qp_cap granted;
		struct ibv_qp *qp = queue_pair(cq, MANY, asked[i], &granted);
		size_t at = strlen(text), no = strlen(refused);
		if (!qp) {
			snprintf(refused + no, sizeof refused - no, "%s%d (%s)", no ? ", " : "", asked[i], errno ? strerror(errno) : "no errno");
			continue;
		}
		snprintf(text + at, sizeof text - at, "%s%d", at ? ", " : "", granted.max_inline_data);
		most_inline = most = asked[i];
		destroyed("queue pair", ibv_destroy_qp(qp));
	}
	if (cq)
		ibv_destroy_cq(cq);
	say("inline bytes refused", "%s", *refused ? refused : "none, up to 2048");
	say("inline bytes granted, where not refused", "%s", text);
	struct how how = usual;
	how.inline_data = most;
	struct pair p;
	struct ibv_wc wc;
	const char *name = "inline bytes sent";
	if (!open_pair(name, &p, &how))
		return;
	memset(mr->addr, 0, 2 * BYTES);
	memset(mr->addr, 7, most);
	if (post(p.qp[0], IBV_WR_RDMA_WRITE, most, IBV_SEND_INLINE, 0))
		failed(name, "ibv_post_send");
	else if (await(p.cq[0], &wc, 1, PATIENCE) != 1)
		say(name, "%d: no completion in %d s", most, PATIENCE);
	else
		say(name, "%d: %s, and the bytes %s", most, ibv_wc_status_str(wc.status),
			memcmp(mr->addr, (char *)mr->addr + BYTES, most) ? "were not there" : "were there");
	close_pair(&p);
}

static void see_depth(void)
{
	int deepest = 0, n = MANY;
	errno = 0;
	for (; n <= limits.max_qp_wr; n *= 2) {
		struct ibv_cq *cq = ibv_create_cq(device.ctx, 4 * MANY, NULL, NULL, 0);
		struct ibv_qp *qp = cq ? queue_pair(cq, n, 0, NULL) : NULL;
		int error = errno;
		if (qp)
			destroyed("queue pair", ibv_destroy_qp(qp));
		if (cq)
			ibv_destroy_cq(cq);
		errno = error;
		if (!qp)
			break;
		deepest = n;
	}
	if (n <= limits.max_qp_wr)
		say("deepest send queue, in powers of two", "%d of %d; %d: %s", deepest, limits.max_qp_wr, n, errno ? strerror(errno) : "no errno");
	else
		say("deepest send queue, in powers of two", "%d of %d", deepest, limits.max_qp_wr);
}

static void time_registration(const char *name, int access)
{
	double made[5], freed[5];
	void *memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED) {
		failed(name, "mmap");
		return;
	}
	for (int i = 0; i < 5; i++) {
		double t = now();
		struct ibv_mr *m = ibv_reg_mr(pd, memory, REGION, access);
		made[i] = now() - t;
		if (!m) {
			failed(name, "ibv_reg_mr");
			munmap(memory, REGION);
			return;
		}
		t = now();
		destroyed("region", ibv_dereg_mr(m));
		freed[i] = now() - t;
	}
	munmap(memory, REGION);
	say(name, "%s; given back in %s", median(made, 5), median(freed, 5));
}

static void see_times(void)
{
	double cq_made[TIMES], cq_gone[TIMES], qp_made[TIMES], qp_gone[TIMES], connected[TIMES];
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	time_registration("registration of 64 MiB", access);
	time_registration("the same with relaxed ordering", access | 1 << 20);
	for (int i = 0; i < TIMES; i++) {
		double t = now();
		struct ibv_cq *cq = ibv_create_cq(device.ctx, 4 * MANY, NULL, NULL, 0);
		cq_made[i] = now() - t;
		t = now();
		struct ibv_qp *qp = cq ? queue_pair(cq, MANY, 0, NULL) : NULL;
		qp_made[i] = now() - t;
		t = now();
		if (!qp || !to_init(qp) || !to_rts(qp, qp->qp_num, usual.patience)) {
			failed("time of a queue pair", "making and connecting it");
			return;
		}
		connected[i] = now() - t;
		t = now();
		destroyed("queue pair", ibv_destroy_qp(qp));
		qp_gone[i] = now() - t;
		t = now();
		destroyed("completion queue", ibv_destroy_cq(cq));
		cq_gone[i] = now() - t;
	}
	say("a completion queue, made", "%s; destroyed in %s", median(cq_made, TIMES), median(cq_gone, TIMES));
	say("a queue pair, made", "%s; destroyed in %s", median(qp_made, TIMES), median(qp_gone, TIMES));
	say("a queue pair from RESET to RTS", "%s", median(connected, TIMES));
}

// see_order has two pairs share a completion queue, and writes by turns.
static void see_order(void)
{
	const char *name = "completions of two queue pairs, polled in another order than posted";
	struct how how = usual;
	struct pair a, b;
	struct ibv_wc wc[2 * MANY];
	int later = 0;
	how.one_cq = true;
	if (!open_pair(name, &a, &how))
		return;
	how.cq = a.cq[0];
	if (!open_pair(name, &b, &how)) {
		close_pair(&a);
		return;
	}
	for (int i = 0; i < MANY; i++) // a long one and a short one
		if (post(i % 2 ? b.qp[0] : a.qp[0], IBV_WR_RDMA_WRITE, i % 2 ? 8 : BYTES, 0, i)) {
			failed(name, "ibv_post_send");
			close_pair(&b);
			close_pair(&a);
			return;
		}
	int got = await(a.cq[0], wc, MANY, PATIENCE);
	for (int i = 1; i < got; i++)
		later += wc[i].wr_id < wc[i - 1].wr_id;
	say(name, "%d of %d%s", later, MANY, got < MANY ? "; some never came" : "");
	close_pair(&b);
	close_pair(&a);
}

static void see_polls(void)
{
	const char *name = "a poll for 64 when there are 64";
	struct pair p;
	struct ibv_wc wc[MANY];
	if (!open_pair(name, &p, &usual))
		return;
	for (int i = 0; i < MANY; i++)
		if (post(p.qp[0], IBV_WR_RDMA_WRITE, 8, 0, i)) {
			failed(name, "ibv_post_send");
			close_pair(&p);
			return;
		}
	settle();
	int first = await(p.cq[0], wc, 1, PATIENCE);
	int rest = ibv_poll_cq(p.cq[0], MANY - 1, wc);
	say(name, "gave %d", first + rest);
	close_pair(&p);
}

// events counts the events of a channel, until none comes for a while.
static int events(struct ibv_comp_channel *channel)
{
	int n = 0;
	void *ignored;
	struct ibv_cq *cq;
	for (struct pollfd f = {.fd = channel->fd, .events = POLLIN}; poll(&f, 1, SETTLED) > 0 && !ibv_get_cq_event(channel, &cq, &ignored); n++)
		ibv_ack_cq_events(cq, 1);
	return n;
}

static void see_events(void)
{
	const char *name = "events";
	struct how how = usual;
	struct pair p;
	struct ibv_wc wc[MANY];
	how.channel = ibv_create_comp_channel(device.ctx);
	if (!how.channel) {
		failed(name, "ibv_create_comp_channel");
		return;
	}
	if (open_pair(name, &p, &how)) {
		ibv_req_notify_cq(p.cq[0], 0);
		for (int i = 0; i < TIMES; i++)
			post(p.qp[0], IBV_WR_RDMA_WRITE, 8, 0, i);
		say("events of a queue armed once, for 16 completions", "%d", events(how.channel));
		await(p.cq[0], wc, TIMES, PATIENCE);
		ibv_req_notify_cq(p.cq[0], 0);
		say("events of a queue armed when it was empty", "%d", events(how.channel));
		await(p.cq[0], wc, MANY, 0);
		post(p.qp[0], IBV_WR_RDMA_WRITE, 8, 0, 0);
		say("events of a completion after that", "%d", events(how.channel));
		post(p.qp[0], IBV_WR_RDMA_WRITE, 8, 0, 0);
		settle();
		ibv_req_notify_cq(p.cq[0], 0);
		say("events of a queue armed when a completion was there", "%d", events(how.channel));
		close_pair(&p);
	}
	ibv_destroy_comp_channel(how.channel);
}

static void see_flush(void)
{
	const char *name = "16 receives flushed by ERR";
	struct pair p;
	struct ibv_wc wc[TIMES];
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	if (!open_pair(name, &p, &usual))
		return;
	double began = now();
	if (post_receives(p.qp[0], TIMES) || (errno = ibv_modify_qp(p.qp[0], &a, IBV_QP_STATE))) {
		failed(name, "ibv_modify_qp to ERR");
	} else {
		int got = await(p.cq[0], wc, TIMES, 2);
		say(name, "%d, in %s%s%s", got, seconds(now() - began), got ? ", the first with: " : "", got ? ibv_wc_status_str(wc[0].status) : "");
		if (post(p.qp[0], IBV_WR_RDMA_WRITE, 8, 0, 0))
			say("a post in ERR", "refused: %s", strerror(errno));
		else
			say("a post in ERR", "%s", await(p.cq[0], wc, 1, 2) == 1 ? ibv_wc_status_str(wc[0].status) : "no completion");
	}
	close_pair(&p);
}

static void see_rnr(void)
{
	const char *name = "a message that waits 5 ms for a receive (RNR timer 0.64 ms)";
	struct how how = usual;
	struct pair p;
	struct ibv_wc wc;
	if (open_pair(name, &p, &usual)) {
		post(p.qp[0], IBV_WR_RDMA_WRITE_WITH_IMM, 8, 0, 0);
		usleep(5000);
		double began = now();
		post_receives(p.qp[1], 1);
		if (await(p.cq[0], &wc, 1, PATIENCE) == 1)
			say(name, "%s, %s after the receive", ibv_wc_status_str(wc.status), seconds(now() - began));
		else
			say(name, "no completion in %d s", PATIENCE);
		close_pair(&p);
	}
	name = "a message without a receive, not to be tried again";
	how.patience.rnr_retries = 0;
	if (!open_pair(name, &p, &how))
		return;
	double began = now();
	post(p.qp[0], IBV_WR_RDMA_WRITE_WITH_IMM, 8, 0, 0);
	if (await(p.cq[0], &wc, 1, 2) == 1)
		say(name, "%s, after %s", ibv_wc_status_str(wc.status), seconds(now() - began));
	else
		say(name, "no completion in 2 s");
	close_pair(&p);
}

static void see_retries(int timeout, int retries)
{
	char name[100];
	struct how how = usual;
	struct pair p;
	struct ibv_wc wc;
	snprintf(name, sizeof name, "a peer that is gone, timeout %s, %d retries", seconds(4.096e-6 * (1 << timeout)), retries);
	how.patience.timeout = timeout;
	how.patience.retries = retries;
	if (!open_pair(name, &p, &how))
		return;
	ibv_destroy_qp(p.qp[1]);
	p.qp[1] = NULL;
	double began = now();
	if (post(p.qp[0], IBV_WR_RDMA_WRITE, 8, 0, 0))
		failed(name, "ibv_post_send");
	else if (await(p.cq[0], &wc, 1, PATIENCE) == 1)
		say(name, "%s, after %s", ibv_wc_status_str(wc.status), seconds(now() - began));
	else
		say(name, "no completion in %d s", PATIENCE);
	close_pair(&p);
}

// see_empty_write writes nothing to address 0 with key 0, which verbs lets succeed.
static void see_empty_write(void)
{
	const char *name = "an empty write without a key";
	struct pair p;
	struct ibv_wc wc;
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	if (!open_pair(name, &p, &usual))
		return;
	if ((errno = ibv_post_send(p.qp[0], &wr, &bad)))
		failed(name, "ibv_post_send");
	else
		say(name, "%s", await(p.cq[0], &wc, 1, PATIENCE) == 1 ? ibv_wc_status_str(wc.status) : "no completion");
	close_pair(&p);
}

// KINDS of messages are those of a post each: lengths, of inline data if they are negative.
enum { SLOT = BYTES / 4, LONG = SLOT - 64, CYCLES = 64, MOST = -(1 << 20) /* as much inline data as there may be */, END = 1 << 20 };
static const struct {
	const char *name;
	int posts[6][5]; // each up to END
} kinds[] = {
	{"data from memory, posted alone", {{1, END}, {96, END}, {LONG, END}}},
	{"data from memory, in a batch", {{64, LONG, 1, 4096, END}}},
	{"no data (no SGE), posted alone", {{0, END}}},
	{"no data (no SGE), behind data in a batch", {{4096, 0, 64, 0, END}}},
	{"inline data, posted alone", {{-1, END}, {-8, END}, {-64, END}, {-96, END}, {-220, END}, {MOST, END}}},
	{"inline data, in a batch", {{-1, MOST, -64, -96, END}}},
	{"inline data and data from memory, in a batch", {{MOST, 4096, -1, LONG, END}}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

// came posts messages, and returns NULL if they come as they were sent, or what is otherwise.
static const char *came(struct pair *p, const int *sizes, unsigned *filled)
{
	static char why[200];
	struct ibv_sge sge[4];
	struct ibv_send_wr wr[4] = {0}, *bad;
	struct ibv_wc sent, got[4];
	uint8_t *from = mr->addr, *to = from + BYTES;
	int n = 0, length[4];
	for (; n < 4 && sizes[n] != END; n++) {
		int size = sizes[n] < -most_inline ? -most_inline : sizes[n];
		length[n] = size < 0 ? -size : size;
		sge[n] = (struct ibv_sge){.addr = (uintptr_t)from + n * SLOT, .length = length[n], .lkey = mr->lkey};
		wr[n] = (struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = n, .sg_list = &sge[n], .num_sge = length[n] > 0,
			.send_flags = size < 0 ? IBV_SEND_INLINE : 0, .wr.rdma = {.remote_addr = (uintptr_t)to + n * SLOT, .rkey = mr->rkey}};
		if (n)
			wr[n - 1].next = &wr[n];
		for (int i = 0; i < length[n]; i++)
			from[n * SLOT + i] = ++*filled % 255 + 1;
	}
	wr[n - 1].send_flags |= IBV_SEND_SIGNALED;
	memset(to, 0, BYTES);
	if (post_receives(p->qp[1], n) || (errno = ibv_post_send(p->qp[0], wr, &bad)))
		return strerror(errno);
	if (await(p->cq[0], &sent, 1, 3) != 1 || sent.status)
		return snprintf(why, sizeof why, "the request ends with: %s", sent.status ? ibv_wc_status_str(sent.status) : "nothing"), why;
	if (await(p->cq[1], got, n, 3) != n)
		return "a message has not come";
	for (int i = 0; i < n; i++) {
		if (got[i].status || got[i].byte_len != (uint32_t)length[i] || got[i].imm_data != (uint32_t)i)
			return snprintf(why, sizeof why, "%d bytes came as %u (%s)", length[i], got[i].byte_len, ibv_wc_status_str(got[i].status)), why;
		if (memcmp(from + i * SLOT, to + i * SLOT, length[i]))
			return snprintf(why, sizeof why, "of %d bytes some are others", length[i]), why;
		for (int j = length[i]; j < SLOT; j++)
			if (to[i * SLOT + j])
				return snprintf(why, sizeof why, "%d bytes were written further than that", length[i]), why;
	}
	return NULL;
}

// see_kinds sends messages of all kinds by turns, so that each kind begins at each place of the queue.
static void see_kinds(void)
{
	const char *wrong[KINDS] = {0};
	struct how how = usual;
	struct pair p;
	unsigned filled = 0;
	how.inline_data = most_inline;
	if (!open_pair("messages of all kinds", &p, &how))
		return;
	for (int cycle = 0; cycle < CYCLES && p.qp[0]; cycle++)
		for (int k = 0; k < KINDS && p.qp[0]; k++)
			for (int i = 0; i < 6 && (kinds[k].posts[i][0] || kinds[k].posts[i][1]) && !wrong[k]; i++) {
				if ((!most_inline && kinds[k].posts[i][0] < 0) || !(wrong[k] = came(&p, kinds[k].posts[i], &filled)))
					continue;
				say(kinds[k].name, "%s", wrong[k]);
				close_pair(&p); // it may have failed
				if (!open_pair("messages after that", &p, &how))
					break;
			}
	for (int k = 0; k < KINDS; k++)
		if (!wrong[k])
			say(kinds[k].name, "%s", !most_inline && kinds[k].posts[0][0] < 0 ? "there is none" : "as sent");
	close_pair(&p);
}

// see_promises asks for what newer libraries tell.
static void see_promises(void)
{
	struct { uint32_t vendor_id, options, comp_mask; } ece = {0}; // struct ibv_ece
	int (*in_order)(struct ibv_qp *, enum ibv_wr_opcode, uint32_t) = (int (*)(struct ibv_qp *, enum ibv_wr_opcode, uint32_t))dlsym(RTLD_DEFAULT, "ibv_query_qp_data_in_order");
	int (*query_ece)(struct ibv_qp *, void *) = (int (*)(struct ibv_qp *, void *))dlsym(RTLD_DEFAULT, "ibv_query_ece");
	struct pair p;
	uint32_t number;
	if (!open_pair("what the library promises", &p, &usual))
		return;
	say("a WRITE's bytes come in order (ibv_query_qp_data_in_order)", "%s",
		!in_order ? "this library does not tell" : in_order(p.qp[0], IBV_WR_RDMA_WRITE, 0) ? "yes" : "no promise");
	if (!query_ece || (errno = query_ece(p.qp[0], &ece)))
		say("ECE", "%s", query_ece ? strerror(errno) : "this library does not tell");
	else
		say("ECE", "vendor %#x, options %#x", ece.vendor_id, ece.options);
	number = p.qp[0]->qp_num;
	close_pair(&p);
	if (open_pair("the number of the next queue pair", &p, &usual)) {
		say("the number of the next queue pair", "%s", p.qp[0]->qp_num == number ? "that of one just destroyed" : "another");
		close_pair(&p);
	}
}

static void prepare(const char *name, const char *address)
{
	const char *failed = open_device(name, address);
	errno = failed ? errno : ibv_query_device(device.ctx, &limits);
	void *memory = aligned_alloc(4096, 2 * BYTES);
	if (!failed && (errno || !memory || !(pd = ibv_alloc_pd(device.ctx)) ||
			       !(mr = ibv_reg_mr(pd, memory, 2 * BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE))))
		failed = "a region cannot be had";
	if (failed) {
		fprintf(stderr, "manners: %s: %s\n", failed, errno ? strerror(errno) : "no errno");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: manners DEVICE [ADDRESS]\n");
		return 2;
	}
	prepare(argv[1], argv[2]);
	see_limits();
	see_inline();
	see_depth();
	see_times();
	see_order();
	see_polls();
	see_events();
	see_flush();
	see_rnr();
	see_retries(10, 1);
	see_retries(14, 6);
	see_retries(14, 7);
	see_empty_write();
	see_kinds();
	see_promises();
	return 0;
}
