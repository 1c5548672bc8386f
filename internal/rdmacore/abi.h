// The part of rdma-core's stable ABI that ringnet uses, declared here so that
// a build needs no RDMA headers. Every name is the official one behind rn_ or
// RN_, and abi_test.go compares each size, offset and constant with the
// official headers. For that it reads this file line by line:
//
//   - one member or constant per line; reserved members are filling;
//   - a comment behind a member is the official path where that differs, or
//     several where they share its place;
//   - "partial" behind a struct: only the front of the official one, which the
//     libraries alone allocate; "the end": only its end, which grows at the front.

#ifndef RINGNET_ABI_H
#define RINGNET_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <netinet/in.h>
#include <sys/socket.h>

struct rn_ibv_pd;
struct rn_ibv_srq;
struct rn_ibv_ah;
struct rn_ibv_cq;
struct rn_ibv_qp;
struct rn_ibv_wc;
struct rn_ibv_qp_init_attr_ex;
struct rn_ibv_send_wr;
struct rn_ibv_recv_wr;

struct rn_ibv_device { // partial
	void *reserved_ops[2]; // _ops
	int node_type;
	int transport_type;
	char name[64];
};

struct rn_ibv_context { // partial
	struct rn_ibv_device *device;
	void *reserved_0[11]; // ops
	int (*poll_cq)(struct rn_ibv_cq *cq, int n, struct rn_ibv_wc *wc); // ops.poll_cq
	int (*req_notify_cq)(struct rn_ibv_cq *cq, int solicited_only); // ops.req_notify_cq
	void *reserved_1[12];
	int (*post_send)(struct rn_ibv_qp *qp, struct rn_ibv_send_wr *wr, struct rn_ibv_send_wr **bad); // ops.post_send
	int (*post_recv)(struct rn_ibv_qp *qp, struct rn_ibv_recv_wr *wr, struct rn_ibv_recv_wr **bad); // ops.post_recv
	void *reserved_2[5];
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

struct rn_verbs_context { // the end
	struct rn_ibv_qp *(*create_qp_ex)(struct rn_ibv_context *ctx, struct rn_ibv_qp_init_attr_ex *attr);
	void *reserved_0[5];
	size_t sz;
	struct rn_ibv_context context;
};

struct rn_ibv_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int reserved_0[2];
	int max_qp_init_rd_atom;
	int reserved_1[16];
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct rn_ibv_port_attr { // partial
	unsigned int state;
	unsigned int max_mtu;
	unsigned int active_mtu;
	uint32_t reserved_0[7];
	uint8_t reserved_1[6];
	uint8_t link_layer;
	uint8_t reserved_2[17];
};

struct rn_ibv_comp_channel {
	struct rn_ibv_context *context;
	int fd;
	int refcnt;
};

struct rn_ibv_cq { // partial
	struct rn_ibv_context *context;
	struct rn_ibv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
};

struct rn_ibv_qp { // partial
	struct rn_ibv_context *context;
	void *qp_context;
	struct rn_ibv_pd *pd;
	struct rn_ibv_cq *send_cq;
	struct rn_ibv_cq *recv_cq;
	struct rn_ibv_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
};

struct rn_ibv_mr {
	struct rn_ibv_context *context;
	struct rn_ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct rn_ibv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct rn_ibv_send_wr {
	uint64_t wr_id;
	struct rn_ibv_send_wr *next;
	struct rn_ibv_sge *sg_list;
	int num_sge;
	unsigned int opcode;
	unsigned int send_flags;
	uint32_t imm_data;
	uint64_t remote_addr; // wr.rdma.remote_addr, wr.ud.ah
	uint32_t rkey; // wr.rdma.rkey, wr.ud.remote_qpn
	uint32_t remote_qkey; // wr.ud.remote_qkey
	uint64_t reserved_1[9];
};

struct rn_ibv_recv_wr {
	uint64_t wr_id;
	struct rn_ibv_recv_wr *next;
	struct rn_ibv_sge *sg_list;
	int num_sge;
};

struct rn_ibv_wc {
	uint64_t wr_id;
	unsigned int status;
	unsigned int opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data;
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct rn_ibv_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct rn_ibv_qp_init_attr {
	void *qp_context;
	struct rn_ibv_cq *send_cq;
	struct rn_ibv_cq *recv_cq;
	struct rn_ibv_srq *srq;
	struct rn_ibv_qp_cap cap;
	unsigned int qp_type;
	int sq_sig_all;
};

struct rn_ibv_qp_init_attr_ex {
	void *qp_context;
	struct rn_ibv_cq *send_cq;
	struct rn_ibv_cq *recv_cq;
	struct rn_ibv_srq *srq;
	struct rn_ibv_qp_cap cap;
	unsigned int qp_type;
	int sq_sig_all;
	uint32_t comp_mask;
	struct rn_ibv_pd *pd;
	void *xrcd;
	uint32_t create_flags;
	uint16_t max_tso_header;
	void *rwq_ind_tbl;
	uint64_t rx_hash_conf[3];
	uint32_t source_qpn;
	uint64_t send_ops_flags;
};

struct rn_ibv_qp_attr {
	unsigned int qp_state;
	unsigned int cur_qp_state;
	unsigned int path_mtu;
	unsigned int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct rn_ibv_qp_cap cap;
	uint64_t reserved_0[2];
	uint32_t reserved_1;
	uint8_t reserved_2[2];
	uint8_t traffic_class; // ah_attr.grh.traffic_class
	uint8_t reserved_3[9];
	uint64_t alt_ah_attr[4];
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct rn_ibv_ece {
	uint32_t vendor_id;
	uint32_t options;
	uint32_t comp_mask;
};

struct rn_ibv_async_event {
	uint64_t element;
	unsigned int event_type;
};

struct rn_rdma_event_channel {
	int fd;
};

struct rn_rdma_cm_id { // partial
	struct rn_ibv_context *verbs;
	struct rn_rdma_event_channel *channel;
	void *context;
	struct rn_ibv_qp *qp;
	struct sockaddr_storage src; // route.addr.src_storage
	struct sockaddr_storage dst; // route.addr.dst_storage
	uint64_t sgid[2]; // route.addr.addr.ibaddr.sgid
	uint64_t reserved_0[3];
	void *path_rec; // route.path_rec
	int num_paths; // route.num_paths
	int reserved_1;
	unsigned int ps;
	uint8_t port_num;
};

struct rn_rdma_conn_param {
	const void *private_data;
	uint8_t private_data_len;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t srq;
	uint32_t qp_num;
};

struct rn_ibv_ah_attr {
	uint64_t dgid[2]; // grh.dgid
	uint8_t reserved_0[5];
	uint8_t hop_limit; // grh.hop_limit
	uint8_t reserved_1[2];
	uint16_t dlid;
	uint16_t reserved_2[3];
};

struct rn_rdma_cm_join_mc_attr_ex {
	uint32_t comp_mask;
	uint32_t join_flags;
	struct sockaddr *addr;
};

struct rn_rdma_ud_param {
	const void *private_data;
	uint8_t private_data_len;
	struct rn_ibv_ah_attr ah_attr;
	uint32_t qp_num;
	uint32_t qkey;
};

struct rn_rdma_cm_event { // partial
	struct rn_rdma_cm_id *id;
	struct rn_rdma_cm_id *listen_id;
	unsigned int event;
	int status;
	struct rn_rdma_conn_param conn; // param.conn
	uint8_t reserved_0[32];
};

enum rn_ibv_event_type {
	RN_IBV_EVENT_CQ_ERR = 0,
	RN_IBV_EVENT_QP_FATAL = 1,
	RN_IBV_EVENT_QP_REQ_ERR = 2,
	RN_IBV_EVENT_QP_ACCESS_ERR = 3,
	RN_IBV_EVENT_COMM_EST = 4,
	RN_IBV_EVENT_DEVICE_FATAL = 8,
	RN_IBV_EVENT_PORT_ERR = 10,
};

enum rn_rdma_port_space {
	RN_RDMA_PS_TCP = 0x0106,
	RN_RDMA_PS_UDP = 0x0111,
};

enum {
	RN_IBV_TRANSPORT_IWARP = 1,

	RN_IBV_ACCESS_LOCAL_WRITE = 1,
	RN_IBV_ACCESS_REMOTE_WRITE = 2,
	RN_IBV_ACCESS_RELAXED_ORDERING = 1 << 20,

	RN_IBV_LINK_LAYER_ETHERNET = 2,

	RN_IBV_QPT_RC = 2,
	RN_IBV_QPT_UD = 4,

	RN_IBV_QPS_INIT = 1,
	RN_IBV_QPS_RTR = 2,
	RN_IBV_QPS_RTS = 3,
	RN_IBV_QPS_ERR = 6,

	RN_IBV_QP_STATE = 1 << 0,
	RN_IBV_QP_ACCESS_FLAGS = 1 << 3,
	RN_IBV_QP_QKEY = 1 << 6,
	RN_IBV_QP_TIMEOUT = 1 << 9,
	RN_IBV_QP_RETRY_CNT = 1 << 10,
	RN_IBV_QP_RNR_RETRY = 1 << 11,
	RN_IBV_QP_MIN_RNR_TIMER = 1 << 15,
	RN_IBV_QP_SQ_PSN = 1 << 16,
	RN_IBV_QP_DEST_QPN = 1 << 20,

	RN_IBV_QP_INIT_ATTR_PD = 1 << 0,
	RN_IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,

	RN_IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
	RN_IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,

	RN_IBV_WR_RDMA_WRITE = 0,
	RN_IBV_WR_RDMA_WRITE_WITH_IMM = 1,
	RN_IBV_WR_SEND = 2,

	RN_IBV_SEND_SIGNALED = 1 << 1,
	RN_IBV_SEND_INLINE = 1 << 3,

	RN_IBV_WC_RECV = 128,
	RN_IBV_WC_RECV_RDMA_WITH_IMM = 129,

	RN_IBV_WC_GRH = 1 << 0,

	RN_IBV_WC_SUCCESS = 0,
	RN_IBV_WC_GENERAL_ERR = 21,

	RN_RDMA_OPTION_ID = 0,
	RN_RDMA_OPTION_ID_TOS = 0,
	RN_RDMA_OPTION_ID_AFONLY = 2,

	RN_RDMA_CM_EVENT_ADDR_RESOLVED = 0,
	RN_RDMA_CM_EVENT_ADDR_ERROR = 1,
	RN_RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
	RN_RDMA_CM_EVENT_ROUTE_ERROR = 3,
	RN_RDMA_CM_EVENT_CONNECT_REQUEST = 4,
	RN_RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
	RN_RDMA_CM_EVENT_CONNECT_ERROR = 6,
	RN_RDMA_CM_EVENT_UNREACHABLE = 7,
	RN_RDMA_CM_EVENT_REJECTED = 8,
	RN_RDMA_CM_EVENT_ESTABLISHED = 9,
	RN_RDMA_CM_EVENT_DISCONNECTED = 10,
	RN_RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
	RN_RDMA_CM_EVENT_MULTICAST_JOIN = 12,
	RN_RDMA_CM_EVENT_MULTICAST_ERROR = 13,
	RN_RDMA_CM_EVENT_ADDR_CHANGE = 14,

	RN_RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
	RN_RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
	RN_RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
	RN_RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
};

#endif
