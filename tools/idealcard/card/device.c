// The device, of which there is one, and what it does not have.

#include "card.h"

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "ideal0",
	.dev_name = "uverbs0",
	.dev_path = "/sys/class/infiniband_verbs/uverbs0",
	.ibdev_path = "/sys/class/infiniband/ideal0",
};

struct ibv_context context;

__attribute__((constructor)) static void open_context(void)
{
	context.device = &device;
	context.cmd_fd = -1;
	context.async_fd = eventfd(0, EFD_CLOEXEC);
	context.num_comp_vectors = VECTORS;
	context.ops.poll_cq = poll_cq;
	context.ops.req_notify_cq = req_notify_cq;
	context.ops.post_send = post_send;
	context.ops.post_recv = post_recv;
}

struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	list[0] = &device;
	if (n)
		*n = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	(void)d;
	return &context;
}

int ibv_fork_init(void) { return 0; }

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *a)
{
	(void)ctx;
	*a = (struct ibv_device_attr){
		.fw_ver = "1.0",
		.node_guid = htobe64(0x1dea1),
		.sys_image_guid = htobe64(0x1dea1),
		.max_mr_size = UINT64_MAX,
		.page_size_cap = ~0xfffull,
		.vendor_id = 0x1dea,
		.max_qp = 1 << 16,
		.max_qp_wr = MAX_WR,
		.max_sge = MAX_SGE,
		.max_sge_rd = MAX_SGE,
		.max_cq = 1 << 16,
		.max_cqe = MAX_CQE,
		.max_mr = MAX_MR - 1,
		.max_pd = 1 << 16,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 16,
		.max_pkeys = 1,
		.local_ca_ack_delay = 15,
		.phys_port_cnt = 1,
	};
	return 0;
}

// ibv_query_port may get the older structure, which ends with link_layer.
int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	(void)ctx;
	struct ibv_port_attr a = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 1,
		.max_msg_sz = 1u << 30,
		.pkey_tbl_len = 1,
		.active_width = 2,
		.active_speed = 32,
		.phys_state = 5,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	if (port != 1)
		return EINVAL;
	memcpy(compat, &a, offsetof(struct ibv_port_attr, link_layer) + sizeof a.link_layer);
	return 0;
}

// There are no datagrams: nothing of them but these names, which a program looks up.

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	(void)pd, (void)a;
	errno = EOPNOTSUPP;
	return NULL;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	(void)ah;
	return EOPNOTSUPP;
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	return EOPNOTSUPP;
}
