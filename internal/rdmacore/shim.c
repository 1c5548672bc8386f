// The calls into rdma-core: libraries opened at run time, one wrapper per
// call, and the data path.

#define _GNU_SOURCE // for dladdr

#include "shim.h"
#include "functions.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(result, name, args) result(*name) args;

static struct functions {
	RN_LIBIBVERBS(DECLARE)
	RN_LIBIBVERBS_OPTIONAL(DECLARE)
	RN_LIBRDMACM(DECLARE)
	RN_LIBRDMACM_OPTIONAL(DECLARE)
} lib;

// Plain dlsym finds the default version of each symbol, which is the one that
// the official headers declare.
#define LOOK_UP(result, name, args) *(void **)&found.name = dlsym(handle, #name);

#define REQUIRE(result, name, args)                          \
	LOOK_UP(result, name, args)                          \
	if (!found.name) {                                   \
		snprintf(why, sizeof why, "%s", dlerror());  \
		return why;                                  \
	}

const char *rn_load(const char *libibverbs, const char *librdmacm, int *opened)
{
	static char why[256];
	struct functions found;
	*opened = 0;
	void *handle = dlopen(libibverbs, RTLD_NOW);
	if (!handle) {
		snprintf(why, sizeof why, "%s", dlerror());
		return why;
	}
	*opened = 1;
	RN_LIBIBVERBS(REQUIRE)
	RN_LIBIBVERBS_OPTIONAL(LOOK_UP)

	*opened = 0;
	handle = dlopen(librdmacm, RTLD_NOW);
	if (!handle) {
		snprintf(why, sizeof why, "%s", dlerror());
		return why;
	}
	*opened = 1;
	RN_LIBRDMACM(REQUIRE)
	RN_LIBRDMACM_OPTIONAL(LOOK_UP)
	lib = found;
	// Before Linux 5.9 a fork leaves the pages of the provider's queues copied on write: the
	// next write of this process would go to a copy, which the device does not read. Only
	// the first call can change that: it fails if the program has made something of verbs
	// itself. Newer rdma-core does nothing where the kernel copies on fork.
	lib.ibv_fork_init();
	return NULL;
}

const char *rn_library(void)
{
	Dl_info found;
	return dladdr((void *)lib.ibv_create_qp, &found) ? found.dli_fname : NULL;
}

// failed is the errno of a call that has failed, or EINVAL if the provider has set none.
static int failed(void)
{
	return errno ? errno : EINVAL;
}

// result makes one convention of several: librdmacm returns -1 and sets errno,
// libibverbs returns the errno, some providers its negative.
static int result(int rc)
{
	if (rc == -1)
		return failed();
	return rc < 0 ? -rc : rc;
}

int rn_create_event_channel(struct rn_rdma_event_channel **channel)
{
	errno = 0;
	*channel = lib.rdma_create_event_channel();
	return *channel ? 0 : failed();
}

int rn_next_cm_event(struct rn_rdma_event_channel *channel, struct rn_rdma_cm_event **event)
{
	return result(lib.rdma_get_cm_event(channel, event));
}

void rn_ack_cm_event(struct rn_rdma_cm_event *event)
{
	lib.rdma_ack_cm_event(event);
}

const struct rn_rdma_ud_param *rn_ud_param(const struct rn_rdma_cm_event *event)
{
	return (const void *)&event->conn;
}

int rn_create_id(struct rn_rdma_event_channel *channel, enum rn_rdma_port_space ps, struct rn_rdma_cm_id **id)
{
	return result(lib.rdma_create_id(channel, id, NULL, ps));
}

int rn_destroy_id(struct rn_rdma_cm_id *id)
{
	return result(lib.rdma_destroy_id(id));
}

int rn_set_traffic_class(struct rn_rdma_cm_id *id, uint8_t traffic_class)
{
	return result(lib.rdma_set_option(id, RN_RDMA_OPTION_ID, RN_RDMA_OPTION_ID_TOS, &traffic_class, sizeof traffic_class));
}

int rn_bind(struct rn_rdma_cm_id *id, struct sockaddr_storage *addr, int v6only)
{
	if (addr->ss_family == AF_INET6) {
		int rc = result(lib.rdma_set_option(id, RN_RDMA_OPTION_ID, RN_RDMA_OPTION_ID_AFONLY, &v6only, sizeof v6only));
		if (rc)
			return rc;
	}
	return result(lib.rdma_bind_addr(id, (struct sockaddr *)addr));
}

int rn_listen(struct rn_rdma_cm_id *id, int backlog)
{
	return result(lib.rdma_listen(id, backlog));
}

int rn_resolve_addr(struct rn_rdma_cm_id *id, struct sockaddr_storage *src, struct sockaddr_storage *dst, int timeout_ms)
{
	return result(lib.rdma_resolve_addr(id, (struct sockaddr *)src, (struct sockaddr *)dst, timeout_ms));
}

int rn_resolve_route(struct rn_rdma_cm_id *id, int timeout_ms)
{
	return result(lib.rdma_resolve_route(id, timeout_ms));
}

int rn_connect(struct rn_rdma_cm_id *id, uint32_t qp_num, uint8_t retries, uint8_t rnr_retries, const void *data, uint8_t len)
{
	struct rn_rdma_conn_param param = {
		.private_data = data,
		.private_data_len = len,
		.retry_count = retries,
		.rnr_retry_count = rnr_retries,
		.qp_num = qp_num,
	};
	return result(lib.rdma_connect(id, &param));
}

int rn_establish(struct rn_rdma_cm_id *id)
{
	return result(lib.rdma_establish(id));
}

int rn_accept(struct rn_rdma_cm_id *id, uint32_t qp_num, const void *data, uint8_t len)
{
	struct rn_rdma_conn_param param = {
		.private_data = data,
		.private_data_len = len,
		.qp_num = qp_num,
	};
	return result(lib.rdma_accept(id, &param));
}

int rn_reject(struct rn_rdma_cm_id *id, const void *data, uint8_t len)
{
	return result(lib.rdma_reject(id, data, len));
}

int rn_notify_established(struct rn_rdma_cm_id *id)
{
	return result(lib.rdma_notify(id, RN_IBV_EVENT_COMM_EST));
}

int rn_disconnect(struct rn_rdma_cm_id *id)
{
	return result(lib.rdma_disconnect(id));
}

int rn_join(struct rn_rdma_cm_id *id, struct sockaddr_storage *group, int sends_only)
{
	struct rn_rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RN_RDMA_CM_JOIN_MC_ATTR_ADDRESS | RN_RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = sends_only ? RN_RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RN_RDMA_MC_JOIN_FLAG_FULLMEMBER,
		.addr = (struct sockaddr *)group,
	};
	return result(lib.rdma_join_multicast_ex(id, &attr, NULL));
}

int rn_leave(struct rn_rdma_cm_id *id, struct sockaddr_storage *group)
{
	return result(lib.rdma_leave_multicast(id, (struct sockaddr *)group));
}

int rn_query_device(struct rn_ibv_context *ctx, struct rn_ibv_device_attr *attr)
{
	return result(lib.ibv_query_device(ctx, attr));
}

int rn_query_port(struct rn_ibv_context *ctx, uint8_t port, struct rn_ibv_port_attr *attr)
{
	return result(lib.ibv_query_port(ctx, port, (struct _compat_ibv_port_attr *)attr));
}

int rn_next_async_event(struct rn_ibv_context *ctx, struct rn_ibv_async_event *event)
{
	return result(lib.ibv_get_async_event(ctx, event));
}

void rn_ack_async_event(struct rn_ibv_async_event *event)
{
	lib.ibv_ack_async_event(event);
}

int rn_alloc_pd(struct rn_ibv_context *ctx, struct rn_ibv_pd **pd)
{
	errno = 0;
	*pd = lib.ibv_alloc_pd(ctx);
	return *pd ? 0 : failed();
}

int rn_dealloc_pd(struct rn_ibv_pd *pd)
{
	return result(lib.ibv_dealloc_pd(pd));
}

int rn_reg_mr(struct rn_ibv_pd *pd, void *addr, size_t n, unsigned int access, struct rn_ibv_mr **mr)
{
	errno = 0;
	if (lib.ibv_reg_mr_iova2)
		*mr = lib.ibv_reg_mr_iova2(pd, addr, n, (uintptr_t)addr, access);
	else
		*mr = lib.ibv_reg_mr(pd, addr, n, access & ~RN_IBV_ACCESS_RELAXED_ORDERING);
	return *mr ? 0 : failed();
}

int rn_dereg_mr(struct rn_ibv_mr *mr)
{
	return result(lib.ibv_dereg_mr(mr));
}

int rn_create_comp_channel(struct rn_ibv_context *ctx, struct rn_ibv_comp_channel **channel)
{
	errno = 0;
	*channel = lib.ibv_create_comp_channel(ctx);
	return *channel ? 0 : failed();
}

int rn_free_comp_channel(struct rn_ibv_comp_channel *channel)
{
	channel->fd = -1;
	return result(lib.ibv_destroy_comp_channel(channel));
}

// wipe_stack leaves zeros where the locals of the next call will lie: bnxt_re's provider before cfba7251f sends the kernel
// what it has not set, and a newer kernel refuses to make queues if that is not 0.
static __attribute__((noinline)) void wipe_stack(void)
{
	char locals[4096];
	memset(locals, 0, sizeof locals);
	__asm__ volatile("" : : "r"(locals) : "memory"); // or the compiler leaves it out
}

int rn_create_cq(struct rn_ibv_context *ctx, int depth, struct rn_ibv_comp_channel *channel, int vector, struct rn_ibv_cq **cq)
{
	errno = 0;
	wipe_stack();
	*cq = lib.ibv_create_cq(ctx, depth, NULL, channel, vector);
	return *cq ? 0 : failed();
}

int rn_destroy_cq(struct rn_ibv_cq *cq)
{
	return result(lib.ibv_destroy_cq(cq));
}

// create_qp_for_writes makes a queue pair for writes alone, or returns NULL. ibv_create_qp_ex is no function of a
// library: verbs.h has it find the provider's.
static struct rn_ibv_qp *create_qp_for_writes(struct rn_ibv_pd *pd, struct rn_ibv_qp_init_attr *attr)
{
	struct rn_ibv_context *ctx = attr->send_cq->context;
	struct rn_verbs_context *newer = (void *)((char *)ctx - offsetof(struct rn_verbs_context, context));
	struct rn_ibv_qp_init_attr_ex ex = {
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.comp_mask = RN_IBV_QP_INIT_ATTR_PD | RN_IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = RN_IBV_QP_EX_WITH_RDMA_WRITE | RN_IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	// Else it is in no verbs_context, or in one that ends before.
	if (ctx->abi_compat != (void *)UINTPTR_MAX || newer->sz < sizeof *newer || !newer->create_qp_ex)
		return NULL;
	struct rn_ibv_qp *qp = newer->create_qp_ex(ctx, &ex);
	if (qp)
		attr->cap = ex.cap;
	return qp;
}

int rn_create_qp(struct rn_ibv_pd *pd, unsigned int type, int writes_only, struct rn_ibv_cq *send_cq, struct rn_ibv_cq *recv_cq, struct rn_ibv_qp_cap *cap, struct rn_ibv_qp **qp)
{
	struct rn_ibv_qp_init_attr attr = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = *cap,
		.qp_type = type,
	};
	errno = 0;
	wipe_stack();
	*qp = writes_only ? create_qp_for_writes(pd, &attr) : NULL;
	if (!*qp) {
		errno = 0;
		*qp = lib.ibv_create_qp(pd, &attr);
	}
	if (!*qp)
		return failed();
	*cap = attr.cap;
	return 0;
}

int rn_destroy_qp(struct rn_ibv_qp *qp)
{
	return result(lib.ibv_destroy_qp(qp));
}

int rn_create_ah(struct rn_ibv_pd *pd, struct rn_ibv_ah_attr *attr, struct rn_ibv_ah **ah)
{
	errno = 0;
	*ah = lib.ibv_create_ah(pd, attr);
	return *ah ? 0 : failed();
}

int rn_destroy_ah(struct rn_ibv_ah *ah)
{
	return result(lib.ibv_destroy_ah(ah));
}

int rn_attach(struct rn_ibv_qp *qp, const struct rn_ibv_ah_attr *group)
{
	return result(lib.ibv_attach_mcast(qp, (const union rn_ibv_gid *)group->dgid, group->dlid));
}

int rn_detach(struct rn_ibv_qp *qp, const struct rn_ibv_ah_attr *group)
{
	return result(lib.ibv_detach_mcast(qp, (const union rn_ibv_gid *)group->dgid, group->dlid));
}

// cm_attr asks rdma_cm for the attributes of the next state. Older kernels
// leak bits 21 to 24 of the mask, which mean something only inside them.
static int cm_attr(struct rn_rdma_cm_id *id, unsigned int state, struct rn_ibv_qp_attr *attr, int *mask)
{
	memset(attr, 0, sizeof *attr);
	*mask = 0;
	attr->qp_state = state;
	int rc = result(lib.rdma_init_qp_attr(id, attr, mask));
	*mask &= ~(0xf << 21);
	return rc;
}

int rn_qp_init(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, unsigned int access)
{
	struct rn_ibv_qp_attr attr;
	int mask;
	int rc = cm_attr(id, RN_IBV_QPS_INIT, &attr, &mask);
	if (rc)
		return rc;
	attr.qp_access_flags = access;
	return result(lib.ibv_modify_qp(qp, &attr, mask | RN_IBV_QP_ACCESS_FLAGS));
}

// ece_of asks for the vendor's options of a queue pair (Enhanced Connection Establishment). It returns 0 where the
// libraries or the provider know none.
static int ece_of(struct rn_ibv_qp *qp, struct rn_ibv_ece *ece)
{
	memset(ece, 0, sizeof *ece);
	return lib.ibv_query_ece && lib.ibv_set_ece && lib.rdma_set_local_ece && lib.rdma_get_remote_ece &&
		!lib.ibv_query_ece(qp, ece) && ece->vendor_id;
}

unsigned int rn_vendor_options(struct rn_ibv_qp *qp)
{
	struct rn_ibv_ece ece;
	return ece_of(qp, &ece) ? ece.options : 0;
}

void rn_offer_options(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp)
{
	struct rn_ibv_ece ece;
	if (ece_of(qp, &ece))
		lib.rdma_set_local_ece(id, &ece);
}

// set_options has the next state of a queue pair take the options that the peer has told, or none if the peer's vendor
// is another, as librdmacm does with queue pairs of its own. It returns whether there are any.
static int set_options(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, int none)
{
	struct rn_ibv_ece own, peers = {0};
	if (!ece_of(qp, &own))
		return 0;
	lib.rdma_get_remote_ece(id, &peers);
	own.options = none || peers.vendor_id != own.vendor_id ? 0 : peers.options;
	return !lib.ibv_set_ece(qp, &own) && own.options;
}

int rn_qp_ready(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, int answers, uint8_t min_rnr_timer, uint8_t timeout, uint8_t retries, uint8_t rnr_retries, int traffic_class, uint8_t *mtu)
{
	struct rn_ibv_qp_attr attr;
	int mask;
	int rc = cm_attr(id, RN_IBV_QPS_RTR, &attr, &mask);
	if (rc)
		return rc;
	attr.min_rnr_timer = min_rnr_timer;
	if (traffic_class >= 0)
		attr.traffic_class = traffic_class;
	if (*mtu && *mtu < attr.path_mtu)
		attr.path_mtu = *mtu;
	*mtu = attr.path_mtu;
	int optional = set_options(id, qp, 0);
	rc = result(lib.ibv_modify_qp(qp, &attr, mask | RN_IBV_QP_MIN_RNR_TIMER));
	if (rc && optional && answers) {
		set_options(id, qp, 1);
		rc = result(lib.ibv_modify_qp(qp, &attr, mask | RN_IBV_QP_MIN_RNR_TIMER));
	}
	if (rc)
		return rc;
	if (answers)
		rn_offer_options(id, qp);

	rc = cm_attr(id, RN_IBV_QPS_RTS, &attr, &mask);
	if (rc)
		return rc;
	attr.timeout = timeout;
	attr.retry_cnt = retries;
	attr.rnr_retry = rnr_retries;
	return result(lib.ibv_modify_qp(qp, &attr, mask | RN_IBV_QP_TIMEOUT | RN_IBV_QP_RETRY_CNT | RN_IBV_QP_RNR_RETRY));
}

int rn_qp_datagrams(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, uint32_t qkey)
{
	struct rn_ibv_qp_attr attr;
	int mask;
	int rc = cm_attr(id, RN_IBV_QPS_INIT, &attr, &mask);
	if (rc)
		return rc;
	attr.qkey = qkey;
	rc = result(lib.ibv_modify_qp(qp, &attr, mask | RN_IBV_QP_QKEY));
	if (rc)
		return rc;
	attr.qp_state = RN_IBV_QPS_RTR;
	rc = result(lib.ibv_modify_qp(qp, &attr, RN_IBV_QP_STATE));
	if (rc)
		return rc;
	attr.qp_state = RN_IBV_QPS_RTS;
	return result(lib.ibv_modify_qp(qp, &attr, RN_IBV_QP_STATE | RN_IBV_QP_SQ_PSN));
}

int rn_qp_error(struct rn_ibv_qp *qp)
{
	struct rn_ibv_qp_attr attr = {.qp_state = RN_IBV_QPS_ERR};
	return result(lib.ibv_modify_qp(qp, &attr, RN_IBV_QP_STATE));
}

struct rn_queue *rn_queue_new(struct rn_ibv_qp *qp, struct rn_ibv_cq *cq, int wcs, int sends,
	int recvs, uint64_t recv_mask, void *recv_addr, uint32_t recv_stride, uint32_t recv_size, uint32_t recv_lkey)
{
	size_t wc = sizeof(struct rn_queue);
	size_t send = wc + wcs * sizeof(struct rn_ibv_wc);
	size_t send_sge = send + sends * sizeof(struct rn_ibv_send_wr);
	size_t recv = send_sge + sends * sizeof(struct rn_ibv_sge);
	size_t recv_sge = recv + recvs * sizeof(struct rn_ibv_recv_wr);
	char *base = calloc(1, recv_sge + recvs * sizeof(struct rn_ibv_sge));
	if (!base)
		return NULL;

	struct rn_queue *q = (struct rn_queue *)base;
	q->qp = qp;
	q->cq = cq;
	q->poll_cq = cq->context->poll_cq;
	q->req_notify_cq = cq->context->req_notify_cq;
	q->post_send = qp->context->post_send;
	q->post_recv = qp->context->post_recv;
	q->wc = (void *)(base + wc);
	q->send = (void *)(base + send);
	q->send_sge = (void *)(base + send_sge);
	q->recv = (void *)(base + recv);
	q->recv_sge = (void *)(base + recv_sge);
	q->recv_count = recvs;
	q->polled = wcs;

	for (int i = 0; i < sends; i++) {
		q->send[i].next = &q->send[i + 1];
		q->send[i].sg_list = &q->send_sge[i];
	}
	for (int i = 0; i < recvs; i++) {
		q->recv_sge[i].addr = (uint64_t)(uintptr_t)recv_addr + (uint64_t)i * recv_stride;
		q->recv_sge[i].length = recv_size;
		q->recv_sge[i].lkey = recv_lkey;
		q->recv[i].wr_id = recv_mask | i;
		q->recv[i].next = &q->recv[(i + 1) % recvs];
		q->recv[i].sg_list = &q->recv_sge[i];
		q->recv[i].num_sge = recv_size ? 1 : 0;
	}
	return q;
}

int rn_poll(uintptr_t queue, int n)
{
	struct rn_queue *q = (struct rn_queue *)queue;

	// irdma's provider before 7f9761eb5 leaves the status of some requests that have failed as it was: that is
	// never success then.
	for (int i = 0; i < q->polled; i++)
		q->wc[i].status = RN_IBV_WC_GENERAL_ERR;
	q->polled = 0;

	// Some providers return less than there is, and what is left makes no event. To ask again takes
	// 13 of the 530 ns of a Write and a Read of 64 bytes (make bench-card, the median of three).
	int got = 0, more;
	do {
		more = q->poll_cq(q->cq, n - got, q->wc + got);
		if (more < 0 && !got)
			return more;
		if (more > 0)
			got += more;
	} while (more > 0 && got < n);
	q->polled = got;
	return got;
}

// post_some posts q->send[first:end].
static int post_some(struct rn_queue *q, int first, int end)
{
	struct rn_ibv_send_wr *last = &q->send[end - 1], *next = last->next, *bad = NULL;
	last->next = NULL;
	int rc = result(q->post_send(q->qp, &q->send[first], &bad));
	last->next = next;
	if (rc && (first || bad != q->send))
		rn_qp_error(q->qp);
	return rc;
}

int rn_post_send(uintptr_t queue, int n)
{
	struct rn_queue *q = (struct rn_queue *)queue;
	int rc = 0;

	// A request without data is the first of a post: behind another one, bnxt_re's provider before 68f59cd6b gives it
	// the length of that.
	for (int first = 0, end; first < n && !rc; first = end) {
		for (end = first + 1; end < n && !q->alone && q->send[end].num_sge; end++)
			;
		rc = post_some(q, first, end);
	}
	return rc;
}

int rn_post_recv(uintptr_t queue, int n)
{
	struct rn_queue *q = (struct rn_queue *)queue;
	struct rn_ibv_recv_wr *first = &q->recv[q->recv_next], *bad = NULL;
	struct rn_ibv_recv_wr *last = &q->recv[(q->recv_next + n - 1) % q->recv_count], *next = last->next;
	last->next = NULL;
	int rc = result(q->post_recv(q->qp, first, &bad));
	last->next = next;
	if (!rc)
		q->recv_next = (q->recv_next + n) % q->recv_count;
	else if (bad != first)
		rn_qp_error(q->qp);
	return rc;
}

int rn_arm(uintptr_t queue)
{
	struct rn_queue *q = (struct rn_queue *)queue;

	return result(q->req_notify_cq(q->cq, 0));
}

int rn_take_event(struct rn_queue *q, int *taken)
{
	struct rn_ibv_cq *cq;
	void *context;
	int rc = result(lib.ibv_get_cq_event(q->cq->channel, &cq, &context));

	*taken = !rc;
	if (!rc)
		lib.ibv_ack_cq_events(q->cq, 1);
	return rc == EAGAIN ? 0 : rc;
}
