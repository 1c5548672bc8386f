// The devices, and what verbs tell of them.

#include "card.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct ibv_device devices[CARDS];

static void describe(struct ibv_device *d, int n)
{
	bool iwarp = has(&fabric->card[n], IWARP);
	d->node_type = iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
	d->transport_type = iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	snprintf(d->name, sizeof d->name, "%s", fabric->card[n].name);
	snprintf(d->dev_name, sizeof d->dev_name, "uverbs%d", n);
	snprintf(d->dev_path, sizeof d->dev_path, "/sys/class/infiniband_verbs/uverbs%d", n);
	snprintf(d->ibdev_path, sizeof d->ibdev_path, "/sys/class/infiniband/%s", d->name);
}

// A context is the end of a verbs_context, in which programs find newer calls.
static struct verbs_context *with_newer(struct context *c)
{
	return (struct verbs_context *)((char *)c - offsetof(struct verbs_context, context));
}

struct ibv_context *open_context(struct card *card)
{
	struct verbs_context *newer = allocate(self, offsetof(struct verbs_context, context) + sizeof(struct context));
	struct context *c = (struct context *)&newer->context;
	memset(newer, 0, offsetof(struct verbs_context, context) + sizeof *c);
	newer->sz = sizeof *newer;
	if (has(card, MLX5))
		newer->create_qp_ex = create_qp_ex;
	c->ibv.abi_compat = __VERBS_ABI_IS_EXTENDED;
	struct ibv_device *d = &devices[card - fabric->card];
	hold_more(CONTEXTS, 1);
	describe(d, card - fabric->card);
	c->process = self;
	c->card = card;
	c->generation = atomic_load(&card->generation);
	c->ibv.device = d;
	c->ibv.cmd_fd = -1;
	c->ibv.async_fd = eventfd(0, EFD_CLOEXEC);
	c->ibv.num_comp_vectors = VECTORS;
	c->ibv.ops.poll_cq = poll_cq;
	c->ibv.ops.req_notify_cq = req_notify_cq;
	c->ibv.ops.post_send = post_send;
	c->ibv.ops.post_recv = post_recv;
	take_control();
	c->next = fabric->contexts;
	fabric->contexts = c;
	release_control();
	return &c->ibv;
}

struct ibv_device **ibv_get_device_list(int *n)
{
	int found = 0;
	struct ibv_device **list = calloc(CARDS + 1, sizeof *list);
	for (int i = 0; self && i < fabric->cards; i++) {
		if (!has_card(&fabric->card[i]))
			continue;
		describe(&devices[i], i);
		list[found++] = &devices[i];
	}
	if (n)
		*n = found;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
int ibv_get_device_index(struct ibv_device *d) { return d - devices; }
__be64 ibv_get_device_guid(struct ibv_device *d) { return htobe64(fabric->card[d - devices].guid); }

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct card *c = &fabric->card[d - devices];
	if (has_card(c))
		return open_context(c);
	errno = ENODEV;
	return NULL;
}

int ibv_close_device(struct ibv_context *c)
{
	take_control();
	forget_context((struct context *)c);
	release_control();
	close(c->async_fd);
	hold_more(CONTEXTS, -1);
	release(with_newer((struct context *)c));
	return 0;
}

void forget_context(struct context *c)
{
	struct context **at = &fabric->contexts;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *a)
{
	struct card *c = card_of(ctx);
	if (calls_fail(ctx))
		return EIO;
	*a = (struct ibv_device_attr){
		.fw_ver = "1.0",
		.node_guid = htobe64(c->guid),
		.sys_image_guid = htobe64(c->guid),
		.max_mr_size = UINT64_MAX,
		.page_size_cap = ~0xfffull,
		.vendor_id = 0x1dea,
		.max_qp = c->max_qp,
		.max_qp_wr = c->max_wr,
		.max_sge = c->max_sge,
		.max_sge_rd = c->max_sge,
		.max_cq = 1 << 16,
		.max_cqe = c->max_cqe,
		.max_mr = c->max_mr,
		.max_pd = 1 << 16,
		.max_ah = 1 << 16,
		.max_mcast_grp = 1 << 16,
		.max_mcast_qp_attach = 1 << 16,
		.max_total_mcast_qp_attach = 1 << 16,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 16,
		.max_pkeys = PKEYS,
		.local_ca_ack_delay = 15,
		.phys_port_cnt = c->ports,
	};
	return 0;
}

int enum_of_mtu(uint32_t bytes)
{
	int n = IBV_MTU_256;
	while (n < IBV_MTU_4096 && 128u << (n + 1) <= bytes)
		n++;
	return n;
}

int gids_of(const struct port *p) { return p->infiniband ? 1 : atomic_load(&p->addresses); }

// gid_of is a port's GID: of Ethernet its addresses are GIDs, and InfiniBand has one of its own.
union ibv_gid gid_of(const struct port *p, int index)
{
	union ibv_gid gid = {0};
	if (p->infiniband) {
		gid.global.subnet_prefix = htobe64(0xfe80000000000000);
		gid.global.interface_id = htobe64(p->guid);
	} else if (index < atomic_load(&p->addresses)) {
		memcpy(gid.raw, p->address[index].raw, sizeof gid.raw);
	}
	return gid;
}

static struct port *port_at(struct ibv_context *c, unsigned n)
{
	return n >= 1 && n <= (unsigned)card_of(c)->ports ? &card_of(c)->port[n - 1] : NULL;
}

// ibv_query_port may get the older structure, which ends with link_layer.
int ibv_query_port(struct ibv_context *ctx, uint8_t number, struct _compat_ibv_port_attr *compat)
{
	struct port *p = port_at(ctx, number);
	if (calls_fail(ctx))
		return EIO;
	if (!p)
		return EINVAL;
	bool down = lasts(&p->down);
	struct ibv_port_attr a = {
		.state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = enum_of_mtu(p->mtu),
		.gid_tbl_len = p->infiniband ? 1 : ADDRESSES,
		.max_msg_sz = 1u << 30,
		.pkey_tbl_len = p->pkeys,
		.lid = p->lid,
		.sm_lid = p->infiniband ? 1 : 0,
		.active_width = 2,
		.active_speed = 32,
		.phys_state = down ? 3 : 5,
		.link_layer = p->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET,
	};
	memcpy(compat, &a, offsetof(struct ibv_port_attr, link_layer) + sizeof a.link_layer);
	return 0;
}

static int fail_with(int error)
{
	errno = error;
	return -1;
}

int ibv_query_gid(struct ibv_context *ctx, uint8_t number, int index, union ibv_gid *gid)
{
	struct port *p = port_at(ctx, number);
	if (!p || index < 0 || index >= (p->infiniband ? 1 : ADDRESSES))
		return fail_with(EINVAL);
	*gid = gid_of(p, index);
	return 0;
}

int ibv_query_gid_type(struct ibv_context *ctx, uint8_t number, unsigned int index, unsigned int *type)
{
	struct port *p = port_at(ctx, number);
	if (!p || index >= (unsigned)gids_of(p))
		return fail_with(EINVAL);
	*type = !p->infiniband; // of IBV_GID_TYPE_SYSFS_*: IB or RoCE v1, RoCE v2
	return 0;
}

int _ibv_query_gid_ex(struct ibv_context *ctx, uint32_t number, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t size)
{
	struct port *p = port_at(ctx, number);
	(void)flags, (void)size;
	if (!p)
		return EINVAL;
	if (index >= (uint32_t)gids_of(p))
		return ENODATA;
	*e = (struct ibv_gid_entry){gid_of(p, index), index, number, p->infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2, 0};
	return 0;
}

int ibv_query_pkey(struct ibv_context *ctx, uint8_t number, int index, __be16 *pkey)
{
	struct port *p = port_at(ctx, number);
	if (!p || index < 0 || index >= p->pkeys)
		return fail_with(EINVAL);
	*pkey = htobe16(p->pkey[index]);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *ctx, uint8_t number, __be16 pkey)
{
	struct port *p = port_at(ctx, number);
	for (int i = 0; p && i < p->pkeys; i++)
		if (htobe16(p->pkey[i]) == pkey)
			return i;
	return fail_with(EINVAL);
}

// ibv_read_sysfs_file is of a version that has no header.
int ibv_read_sysfs_file(const char *dir, const char *file, char *text, size_t size)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", dir, file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size);
	if (fd >= 0)
		close(fd);
	if (n > 0 && text[n - 1] == '\n')
		text[--n] = '\0';
	else if (n >= 0 && (size_t)n < size)
		text[n] = '\0';
	return n;
}
