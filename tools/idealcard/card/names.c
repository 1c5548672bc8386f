// Names of what verbs and rdma_cm number, and what this card does not have.

#include "card.h"

#include <rdma/rdma_cma.h>

#include <errno.h>
#include <poll.h>

static const char *name(const char *const *names, unsigned count, unsigned n) { return n < count && names[n] ? names[n] : "unknown"; }
#define NAME_IN(names, n) name(names, sizeof names / sizeof *names, n)

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_SUCCESS] = "success",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
		[IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
		[IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_REM_OP_ERR] = "remote operation error",
		[IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
	};
	return NAME_IN(names, status);
}

const char *ibv_node_type_str(enum ibv_node_type type) { return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown"; }
const char *ibv_port_state_str(enum ibv_port_state state) { return state == IBV_PORT_ACTIVE ? "active" : "unknown"; }

const char *ibv_event_type_str(enum ibv_event_type type)
{
	static const char *const names[] = {
		[IBV_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
		[IBV_EVENT_COMM_EST] = "communication established",
	};
	return NAME_IN(names, type);
}

const char *rdma_event_str(enum rdma_cm_event_type type)
{
#define EVENT(e) [e] = #e
	static const char *const names[] = {
		EVENT(RDMA_CM_EVENT_ADDR_RESOLVED),   EVENT(RDMA_CM_EVENT_ADDR_ERROR),	    EVENT(RDMA_CM_EVENT_ROUTE_RESOLVED),
		EVENT(RDMA_CM_EVENT_ROUTE_ERROR),     EVENT(RDMA_CM_EVENT_CONNECT_REQUEST), EVENT(RDMA_CM_EVENT_CONNECT_RESPONSE),
		EVENT(RDMA_CM_EVENT_CONNECT_ERROR),   EVENT(RDMA_CM_EVENT_UNREACHABLE),	    EVENT(RDMA_CM_EVENT_REJECTED),
		EVENT(RDMA_CM_EVENT_ESTABLISHED),     EVENT(RDMA_CM_EVENT_DISCONNECTED),    EVENT(RDMA_CM_EVENT_DEVICE_REMOVAL),
		EVENT(RDMA_CM_EVENT_MULTICAST_JOIN),  EVENT(RDMA_CM_EVENT_MULTICAST_ERROR), EVENT(RDMA_CM_EVENT_ADDR_CHANGE),
		EVENT(RDMA_CM_EVENT_TIMEWAIT_EXIT),
	};
	return NAME_IN(names, type);
}

// Programs of rdma-core link to these, whether they use them or not.

static void *none(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	(void)pd, (void)a;
	return none();
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	(void)srq;
	return EOPNOTSUPP;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	(void)qp;
	return none();
}

int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *info, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	(void)id, (void)info, (void)pd, (void)a;
	errno = EOPNOTSUPP;
	return -1;
}

void rdma_destroy_ep(struct rdma_cm_id *id) { (void)id; }

int rdma_get_request(struct rdma_cm_id *listener, struct rdma_cm_id **id)
{
	(void)listener, (void)id;
	errno = EOPNOTSUPP;
	return -1;
}

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	(void)id, (void)channel;
	errno = EOPNOTSUPP;
	return -1;
}

// rpoll is poll for descriptors that are no rsockets, of which there are none.
int rpoll(struct pollfd *fds, nfds_t n, int timeout) { return poll(fds, n, timeout); }
