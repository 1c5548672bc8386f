// What Go calls. Every function that can fail returns 0 or a positive errno,
// and none keeps a pointer to Go memory.

#ifndef RINGNET_SHIM_H
#define RINGNET_SHIM_H

#include "abi.h"

// rn_load looks up the two libraries. It returns NULL or what is missing, and sets
// opened to whether that was a function of a library that is there. It must not run
// twice at once.
const char *rn_load(const char *libibverbs, const char *librdmacm, int *opened);

// rn_library is the path of libibverbs as it was loaded, or NULL.
const char *rn_library(void);

// The connection manager.

int rn_create_event_channel(struct rn_rdma_event_channel **channel);

// rn_next_cm_event takes the next event without waiting; rn_ack_cm_event gives
// it back.
int rn_next_cm_event(struct rn_rdma_event_channel *channel, struct rn_rdma_cm_event **event);
void rn_ack_cm_event(struct rn_rdma_cm_event *event);

// rn_ud_param returns what an event of the port space for UDP has in place of conn.
const struct rn_rdma_ud_param *rn_ud_param(const struct rn_rdma_cm_event *event);

int rn_create_id(struct rn_rdma_event_channel *channel, enum rn_rdma_port_space ps, struct rn_rdma_cm_id **id);
int rn_destroy_id(struct rn_rdma_cm_id *id);
int rn_set_traffic_class(struct rn_rdma_cm_id *id, uint8_t traffic_class);
int rn_bind(struct rn_rdma_cm_id *id, struct sockaddr_storage *addr, int v6only);
int rn_listen(struct rn_rdma_cm_id *id, int backlog);
int rn_resolve_addr(struct rn_rdma_cm_id *id, struct sockaddr_storage *src, struct sockaddr_storage *dst, int timeout_ms);
int rn_resolve_route(struct rn_rdma_cm_id *id, int timeout_ms);
int rn_connect(struct rn_rdma_cm_id *id, uint32_t qp_num, uint8_t retries, uint8_t rnr_retries, const void *data, uint8_t len);
int rn_establish(struct rn_rdma_cm_id *id);
int rn_accept(struct rn_rdma_cm_id *id, uint32_t qp_num, const void *data, uint8_t len);
int rn_reject(struct rn_rdma_cm_id *id, const void *data, uint8_t len);
int rn_notify_established(struct rn_rdma_cm_id *id);
int rn_disconnect(struct rn_rdma_cm_id *id);

// rn_join makes an id that is bound to a device a member of a multicast group, or one
// that only sends to it, until rn_leave.
int rn_join(struct rn_rdma_cm_id *id, struct sockaddr_storage *group, int sends_only);
int rn_leave(struct rn_rdma_cm_id *id, struct sockaddr_storage *group);

// The device.

int rn_query_device(struct rn_ibv_context *ctx, struct rn_ibv_device_attr *attr);
int rn_query_port(struct rn_ibv_context *ctx, uint8_t port, struct rn_ibv_port_attr *attr);

// rn_next_async_event takes the next event without waiting;
// rn_ack_async_event gives it back.
int rn_next_async_event(struct rn_ibv_context *ctx, struct rn_ibv_async_event *event);
void rn_ack_async_event(struct rn_ibv_async_event *event);

int rn_alloc_pd(struct rn_ibv_context *ctx, struct rn_ibv_pd **pd);
int rn_dealloc_pd(struct rn_ibv_pd *pd);

// rn_reg_mr leaves out relaxed ordering where the library does not know it.
int rn_reg_mr(struct rn_ibv_pd *pd, void *addr, size_t n, unsigned int access, struct rn_ibv_mr **mr);
int rn_dereg_mr(struct rn_ibv_mr *mr);
int rn_create_comp_channel(struct rn_ibv_context *ctx, struct rn_ibv_comp_channel **channel);
int rn_create_cq(struct rn_ibv_context *ctx, int depth, struct rn_ibv_comp_channel *channel, int vector, struct rn_ibv_cq **cq);
int rn_destroy_cq(struct rn_ibv_cq *cq);

// rn_create_qp makes a queue pair. With writes_only it is one that posts writes alone, where the
// provider can make such.
int rn_create_qp(struct rn_ibv_pd *pd, unsigned int type, int writes_only, struct rn_ibv_cq *send_cq, struct rn_ibv_cq *recv_cq, struct rn_ibv_qp_cap *cap, struct rn_ibv_qp **qp);
int rn_destroy_qp(struct rn_ibv_qp *qp);
int rn_create_ah(struct rn_ibv_pd *pd, struct rn_ibv_ah_attr *attr, struct rn_ibv_ah **ah);
int rn_destroy_ah(struct rn_ibv_ah *ah);

// rn_attach attaches a queue pair to a multicast group, by the attributes in rdma_cm's
// event MULTICAST_JOIN.
int rn_attach(struct rn_ibv_qp *qp, const struct rn_ibv_ah_attr *group);
int rn_detach(struct rn_ibv_qp *qp, const struct rn_ibv_ah_attr *group);

// rn_free_comp_channel frees a channel, but leaves its descriptor open: the caller
// closes it.
int rn_free_comp_channel(struct rn_ibv_comp_channel *channel);

// Queue pair states. rdma_cm knows the path and the peer; the rest is ours.
// The timeout is an exponent: 4.096 us * 2^timeout. A traffic class less than 0
// leaves it to rdma_cm. mtu, an ibv_mtu, is the longest that the caller allows, or 0 for
// any; rn_qp_ready sets it to what the queue pair has.
//
// rn_offer_options has the next request tell the peer what options of the vendor the queue pair
// knows, if any. rn_qp_ready takes those that the peer has told; with answers set it tells the peer in
// the answer which the queue pair has taken, and does without where the device fails with them. The
// peer does not hear from a side that does not answer, so there that is an error.
void rn_offer_options(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp);
unsigned int rn_vendor_options(struct rn_ibv_qp *qp);
int rn_qp_init(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, unsigned int access);
int rn_qp_ready(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, int answers, uint8_t min_rnr_timer, uint8_t timeout, uint8_t retries, uint8_t rnr_retries, int traffic_class, uint8_t *mtu);
int rn_qp_error(struct rn_ibv_qp *qp);

// rn_qp_datagrams makes a queue pair of type UD ready to send and receive, at the port
// that the id is bound to.
int rn_qp_datagrams(struct rn_rdma_cm_id *id, struct rn_ibv_qp *qp, uint32_t qkey);

// The data path of one endpoint: its queue pair and everything that a call
// from Go into the device needs, allocated once. send[i] has sge send_sge[i].
struct rn_queue {
	struct rn_ibv_qp *qp;
	struct rn_ibv_cq *cq;
	int (*poll_cq)(struct rn_ibv_cq *, int, struct rn_ibv_wc *);
	int (*req_notify_cq)(struct rn_ibv_cq *, int);
	int (*post_send)(struct rn_ibv_qp *, struct rn_ibv_send_wr *, struct rn_ibv_send_wr **);
	int (*post_recv)(struct rn_ibv_qp *, struct rn_ibv_recv_wr *, struct rn_ibv_recv_wr **);
	struct rn_ibv_wc *wc;
	struct rn_ibv_send_wr *send;
	struct rn_ibv_sge *send_sge;
	struct rn_ibv_recv_wr *recv;
	struct rn_ibv_sge *recv_sge;
	int recv_count;
	int recv_next;
	int alone;  // each request has a post of its own
	int polled; // entries of wc that may hold what the last poll has found
};

// rn_queue_new allocates a queue, to be freed with free; NULL if there is no
// memory. The receives go to recv_addr + i*recv_stride, each of recv_size bytes.
struct rn_queue *rn_queue_new(struct rn_ibv_qp *qp, struct rn_ibv_cq *cq, int wcs, int sends,
	int recvs, uint64_t recv_mask, void *recv_addr, uint32_t recv_stride, uint32_t recv_size, uint32_t recv_lkey);

// The functions of the path of data take a struct rn_queue as a number.

// rn_poll fills q->wc and returns how many, at most n, or less than 0.
int rn_poll(uintptr_t queue, int n);

// rn_post_send posts q->send[0:n] in order. If the device takes only some of
// them, the queue pair goes to the error state.
int rn_post_send(uintptr_t queue, int n);

// rn_post_recv posts the next n receives; the same applies.
int rn_post_recv(uintptr_t queue, int n);

int rn_arm(uintptr_t queue);

// rn_take_event takes and acknowledges a completion event if there is one, and sets
// taken to whether there was.
int rn_take_event(struct rn_queue *q, int *taken);

#endif
