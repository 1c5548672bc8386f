// Names of hosts, as rdma_cm resolves them.

#include <rdma/rdma_cma.h>

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

static struct sockaddr *copy_of(const struct addrinfo *a)
{
	struct sockaddr *copy = malloc(a->ai_addrlen);
	return memcpy(copy, a->ai_addr, a->ai_addrlen);
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **result)
{
	static const struct rdma_addrinfo none;
	const struct rdma_addrinfo *h = hints ? hints : &none;
	struct addrinfo *list, plain = {.ai_family = h->ai_family, .ai_socktype = SOCK_STREAM};
	if (h->ai_flags & RAI_PASSIVE)
		plain.ai_flags |= AI_PASSIVE;
	if (h->ai_flags & RAI_NUMERICHOST)
		plain.ai_flags |= AI_NUMERICHOST;
	int rc = getaddrinfo(node, service, &plain, &list);
	if (rc)
		return rc;
	struct rdma_addrinfo *r = calloc(1, sizeof *r);
	r->ai_flags = h->ai_flags;
	r->ai_family = list->ai_family;
	r->ai_port_space = h->ai_port_space ? h->ai_port_space : RDMA_PS_TCP;
	r->ai_qp_type = h->ai_qp_type ? h->ai_qp_type : r->ai_port_space == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD;
	if (h->ai_flags & RAI_PASSIVE) {
		r->ai_src_addr = copy_of(list);
		r->ai_src_len = list->ai_addrlen;
	} else {
		r->ai_dst_addr = copy_of(list);
		r->ai_dst_len = list->ai_addrlen;
	}
	freeaddrinfo(list);
	*result = r;
	return 0;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *r)
{
	if (!r)
		return;
	free(r->ai_src_addr);
	free(r->ai_dst_addr);
	free(r);
}
