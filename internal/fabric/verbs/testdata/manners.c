// libibverbs with the behaviour of devices that the tests do not have. It is linked
// against the real library, so what it does not define is the real one's; the rest it
// does or refuses as struct manners has it, which the test maps, too.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#undef ibv_reg_mr
#undef ibv_query_port

// The same in manners_test.go.
static struct manners {
	// How to behave.
	_Atomic uint32_t max_inline;     // more inline data than this is refused
	_Atomic uint32_t refusal;        // with this errno
	_Atomic uint32_t max_depth;      // and so is a deeper queue
	_Atomic uint32_t loads_fragment; // a write of nothing loads its first fragment all the same
	_Atomic uint32_t dead;           // the device does nothing more, but its calls succeed
	_Atomic uint32_t cut_off;        // the kernel has removed the device: asking and destroying fail
	_Atomic uint32_t active_mtu;     // of the port, as ibv_mtu; 0: what it is
	_Atomic uint32_t wrong_length;   // of the writes with an immediate that arrive; 0: what it is

	// What was asked.
	_Atomic uint32_t queue_pairs;  // ibv_create_qp, refused or not
	_Atomic uint32_t empty_writes; // writes of nothing
	_Atomic uint32_t empty_rkey;   // of the last one
	_Atomic uint64_t empty_addr;
	_Atomic uint32_t relaxed;       // regions with relaxed ordering
	_Atomic uint32_t strict;        // and others
	_Atomic uint32_t rnr_retry;     // of the last queue pair that went to RTS
	_Atomic uint32_t rnr_timer;     // of the last that went to RTR
	_Atomic uint32_t traffic_class; // of each that went to RTR, a byte, the last lowest
	_Atomic uint32_t path_mtu;      // the same of the MTU
	_Atomic uint32_t fork_inits;    // ibv_fork_init, before any other call of those here
} *m;

static int events;   // asynchronous ones: a byte for each, its type
static int async_fd; // where the kernel would report them
static struct ibv_cq *last_cq;

static void *real(const char *name)
{
	static void *libibverbs;
	if (!libibverbs)
		libibverbs = dlopen("libibverbs.so.1", RTLD_NOW);
	return dlsym(libibverbs, name);
}

#define REAL(name) ((__typeof__(&name))real(#name))

__attribute__((constructor)) static void start(void)
{
	const char *shared = getenv("RINGNET_TEST_MANNERS"), *fifo = getenv("RINGNET_TEST_EVENTS");
	int fd = open(shared, O_RDWR);
	m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	events = open(fifo, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (m == MAP_FAILED || events < 0) {
		perror("manners");
		abort();
	}
	close(fd);
}

// The data path: the library's users find it in the context.

static struct ibv_context_ops device;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	if (m->dead)
		return 0;
	for (struct ibv_send_wr *w = wr; w; w = w->next) {
		if (w->opcode != IBV_WR_RDMA_WRITE || w->num_sge != 0)
			continue;
		m->empty_writes++;
		m->empty_addr = w->wr.rdma.remote_addr;
		m->empty_rkey = w->wr.rdma.rkey;
		if (m->loads_fragment && w->sg_list)
			w->num_sge = 1;
	}
	return device.post_send(qp, wr, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return m->dead ? 0 : device.post_recv(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	if (m->dead)
		return 0;
	n = device.poll_cq(cq, n, wc);
	for (int i = 0; i < n && m->wrong_length; i++)
		if (wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			wc[i].byte_len = m->wrong_length;
	return n;
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	if (ctx->ops.post_send != post_send) {
		device = ctx->ops;
		ctx->ops.post_send = post_send;
		ctx->ops.post_recv = post_recv;
		ctx->ops.poll_cq = poll_cq;
		async_fd = ctx->async_fd;
	}
	ctx->async_fd = events;
	return m->cut_off ? EIO : REAL(ibv_query_device)(ctx, attr);
}

int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	int rc = REAL(ibv_query_port)(ctx, port, attr);
	if (!rc && m->active_mtu)
		((struct ibv_port_attr *)attr)->active_mtu = m->active_mtu;
	return rc;
}

// The test sends the asynchronous events. When a device is opened, its context gets the
// descriptor for them; calls that make an object need the kernel's own, async_fd.

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	char type;
	if (read(events, &type, 1) != 1)
		return -1;
	event->event_type = type;
	event->element.cq = last_cq;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
}

// Making things.

int ibv_fork_init(void)
{
	if (!async_fd && !last_cq)
		m->fork_inits++;
	return REAL(ibv_fork_init)();
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	if ((uint32_t)cqe > 2 * m->max_depth) {
		errno = m->refusal;
		return NULL;
	}
	ctx->async_fd = async_fd;
	return last_cq = REAL(ibv_create_cq)(ctx, cqe, cq_context, channel, vector);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	m->queue_pairs++;
	if (attr->cap.max_inline_data > m->max_inline || attr->cap.max_send_wr > m->max_depth || attr->cap.max_recv_wr > m->max_depth) {
		errno = m->refusal;
		return NULL;
	}
	pd->context->async_fd = async_fd;
	return REAL(ibv_create_qp)(pd, attr);
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	switch (attr->qp_state) {
	case IBV_QPS_ERR:
		if (m->dead)
			return 0;
		break;
	case IBV_QPS_RTR:
		m->rnr_timer = mask & IBV_QP_MIN_RNR_TIMER ? attr->min_rnr_timer : 0;
		m->traffic_class = m->traffic_class << 8 | attr->ah_attr.grh.traffic_class;
		m->path_mtu = m->path_mtu << 8 | attr->path_mtu;
		break;
	case IBV_QPS_RTS:
		m->rnr_retry = attr->rnr_retry;
		break;
	default:
		break;
	}
	return REAL(ibv_modify_qp)(qp, attr, mask);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	m->strict++;
	return REAL(ibv_reg_mr)(pd, addr, length, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	if (access & IBV_ACCESS_RELAXED_ORDERING && iova == (uintptr_t)addr)
		m->relaxed++;
	else
		m->strict++;
	return REAL(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
}

// Destroying them: what the kernel has removed cannot be destroyed, and the library
// frees nothing of it (ibv_open_device(3)).

#define DESTROY(name, type) \
	int name(type *object) { return m->cut_off ? EIO : REAL(name)(object); }

DESTROY(ibv_destroy_qp, struct ibv_qp)
DESTROY(ibv_destroy_cq, struct ibv_cq)
DESTROY(ibv_dereg_mr, struct ibv_mr)
DESTROY(ibv_dealloc_pd, struct ibv_pd)
