// Connects two queue pairs of one process, on any device but those of iWARP: for programs that
// measure it, and know nothing of the card.

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// The device, and its first port that is ACTIVE.
static struct {
	struct ibv_context *ctx;
	struct ibv_port_attr port;
	uint8_t number;
	union ibv_gid gid;
	int gid_index;
} device;

// choose_gid prefers the RoCE v2 GID of the address.
static void choose_gid(const char *address)
{
	union ibv_gid wanted = {.raw = {[10] = 0xff, [11] = 0xff}};
	int best = -1;
	if (!address || sscanf(address, "%hhu.%hhu.%hhu.%hhu", &wanted.raw[12], &wanted.raw[13], &wanted.raw[14], &wanted.raw[15]) != 4)
		memset(&wanted, 0, sizeof wanted);
	for (int i = 0; i < device.port.gid_tbl_len; i++) {
		static const union ibv_gid none;
		union ibv_gid g;
		char path[300], type[32] = "";
		if (ibv_query_gid(device.ctx, device.number, i, &g) || !memcmp(&g, &none, sizeof g))
			continue;
		snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", ibv_get_device_name(device.ctx->device),
			device.number, i);
		FILE *f = fopen(path, "r");
		if (f && !fgets(type, sizeof type, f))
			*type = 0;
		if (f)
			fclose(f);
		int score = 2 * !memcmp(&g, &wanted, sizeof g) + !strncmp(type, "RoCE v2", 7);
		if (score > best) {
			best = score;
			device.gid = g;
			device.gid_index = i;
		}
	}
}

// open_device opens the device with a name, or the first one, and chooses a GID by an IPv4 address,
// if there is one. It returns what it could not do, or NULL.
static const char *open_device(const char *name, const char *address)
{
	struct ibv_device_attr limits;
	struct ibv_device **all = ibv_get_device_list(NULL);
	for (int i = 0; all && all[i] && !device.ctx; i++)
		if (!name || !strcmp(ibv_get_device_name(all[i]), name))
			device.ctx = ibv_open_device(all[i]);
	if (!device.ctx) {
		errno = ENODEV;
		return "no such device can be opened";
	}
	if (device.ctx->device->transport_type == IBV_TRANSPORT_IWARP)
		return "the device speaks iWARP, whose queue pairs only rdma_cm connects";
	if ((errno = ibv_query_device(device.ctx, &limits)))
		return "ibv_query_device";
	for (device.number = 1; device.number <= limits.phys_port_cnt; device.number++)
		if (!ibv_query_port(device.ctx, device.number, &device.port) && device.port.state == IBV_PORT_ACTIVE) {
			choose_gid(address);
			return NULL;
		}
	errno = ENETDOWN;
	return "no port is ACTIVE";
}

static bool to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = device.number,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
	return !(errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

// How long a queue pair tries, as ibv_modify_qp has it.
struct patience {
	uint8_t timeout, retries, rnr_retries;
};

static bool to_rts(struct ibv_qp *qp, uint32_t peer, struct patience p)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = device.port.active_mtu, .dest_qp_num = peer,
		.min_rnr_timer = 12, // 0.64 ms
		.ah_attr = {.dlid = device.port.lid, .port_num = device.number}};
	if (device.port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh = (struct ibv_global_route){.dgid = device.gid, .sgid_index = device.gid_index, .hop_limit = 64};
	}
	errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (errno)
		return false;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = p.timeout, .retry_cnt = p.retries, .rnr_retry = p.rnr_retries};
	return !(errno = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}
