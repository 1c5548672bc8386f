// Addresses of rdma_cm. Each address of this host belongs to the card.

#include "cm.h"

#include <errno.h>
#include <ifaddrs.h>
#include <string.h>

static uint16_t last_port;
static struct ibv_sa_path_rec path;

struct sockaddr *source(struct identifier *i) { return &i->ibv.route.addr.src_addr; }
struct sockaddr *destination(struct identifier *i) { return &i->ibv.route.addr.dst_addr; }

static struct sockaddr_in *v4(const struct sockaddr *a) { return (struct sockaddr_in *)a; }
static struct sockaddr_in6 *v6(const struct sockaddr *a) { return (struct sockaddr_in6 *)a; }

static uint16_t *port(const struct sockaddr *a)
{
	return a->sa_family == AF_INET6 ? &v6(a)->sin6_port : &v4(a)->sin_port;
}

static struct sockaddr_storage stored(const struct sockaddr *a)
{
	struct sockaddr_storage s = {0};
	memcpy(&s, a, a->sa_family == AF_INET6 ? sizeof *v6(a) : sizeof *v4(a));
	return s;
}

static bool same(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return v4(a)->sin_addr.s_addr == v4(b)->sin_addr.s_addr;
	return IN6_ARE_ADDR_EQUAL(&v6(a)->sin6_addr, &v6(b)->sin6_addr);
}

static bool unspecified(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return v4(a)->sin_addr.s_addr == INADDR_ANY;
	return IN6_IS_ADDR_UNSPECIFIED(&v6(a)->sin6_addr);
}

static bool is_family(const struct sockaddr *a) { return a && (a->sa_family == AF_INET || a->sa_family == AF_INET6); }

static bool is_local(const struct sockaddr *a)
{
	struct ifaddrs *list, *i;
	bool found = a->sa_family == AF_INET && ntohl(v4(a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	if (found || getifaddrs(&list))
		return found;
	for (i = list; i && !found; i = i->ifa_next)
		found = is_family(i->ifa_addr) && same(i->ifa_addr, a);
	freeifaddrs(list);
	return found;
}

// covers reports whether an identifier that is bound takes what goes to an address.
bool covers(struct identifier *i, struct sockaddr *a)
{
	if (*port(source(i)) != *port(a))
		return false;
	if (!i->any)
		return same(source(i), a);
	return source(i)->sa_family == a->sa_family || (source(i)->sa_family == AF_INET6 && !i->v6only);
}

// taken reports whether another identifier has an address that self wants.
static bool taken(struct identifier *self, struct sockaddr *a, bool any)
{
	for (struct identifier *i = identifiers; i; i = i->next) {
		if (i == self || i->state == IDLE || i->peer || *port(source(i)) != *port(a))
			continue;
		if (covers(i, a) || (any && (a->sa_family == source(i)->sa_family || (a->sa_family == AF_INET6 && !self->v6only))))
			return true;
	}
	return false;
}

// choose_port is for who binds to port 0.
static int choose_port(struct identifier *i, struct sockaddr *a)
{
	const uint16_t first = 32768, last = 60999;
	for (int n = first; n <= last; n++) {
		last_port = last_port < first || last_port >= last ? first : last_port + 1;
		*port(a) = htons(last_port);
		if (!taken(i, a, true))
			return 0;
	}
	return EADDRNOTAVAIL;
}

static int bind_to(struct identifier *i, const struct sockaddr *a)
{
	if (!is_family(a))
		return EAFNOSUPPORT;
	i->any = unspecified(a);
	if (!i->any && !is_local(a))
		return EADDRNOTAVAIL;
	struct sockaddr_storage own = stored(a);
	if (*port(a) == 0) {
		int error = choose_port(i, (struct sockaddr *)&own);
		if (error)
			return error;
	} else if (taken(i, (struct sockaddr *)&own, i->any)) {
		return EADDRINUSE;
	}
	i->ibv.route.addr.src_storage = own;
	i->state = BOUND;
	if (!i->any)
		set_device(i);
	return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t length)
{
	(void)length;
	struct identifier *i = (struct identifier *)id;
	if (level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_AFONLY)
		i->v6only = *(int *)value;
	else if (level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_TOS)
		i->traffic_class = *(uint8_t *)value;
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *a)
{
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	return leave(i->state == IDLE ? bind_to(i, a) : EINVAL);
}

// towards is the address that an identifier connects to: the kernel takes none for this host.
static struct sockaddr_storage towards(const struct sockaddr *to)
{
	struct sockaddr_storage s = stored(to);
	struct sockaddr *a = (struct sockaddr *)&s;
	if (unspecified(a) && a->sa_family == AF_INET)
		v4(a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else if (unspecified(a))
		v6(a)->sin6_addr = in6addr_loopback;
	return s;
}

// bind_towards gives an identifier that has none the source address for a destination.
static int bind_towards(struct identifier *i, struct sockaddr_storage to)
{
	struct sockaddr *a = (struct sockaddr *)&to;
	if (i->state == BOUND && !i->any)
		return 0;
	if (i->state == IDLE) {
		*port(a) = 0;
		return bind_to(i, a);
	}
	*port(a) = *port(source(i));
	i->ibv.route.addr.src_storage = to;
	i->any = false;
	return 0;
}

static int resolve(struct identifier *i, const struct sockaddr *from, const struct sockaddr *to)
{
	if ((from && from->sa_family != to->sa_family) || (i->state != IDLE && i->state != BOUND))
		return EINVAL;
	int error = from && i->state == IDLE ? bind_to(i, from) : 0;
	if (error)
		return error;
	struct sockaddr_storage there = towards(to);
	if (!is_local((struct sockaddr *)&there)) {
		push(i, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
		return 0;
	}
	error = bind_towards(i, there);
	if (error)
		return error;
	i->ibv.route.addr.dst_storage = there;
	set_device(i);
	i->state = ADDR_RESOLVED;
	push(i, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout)
{
	(void)timeout;
	pthread_mutex_lock(&manager);
	return leave(resolve((struct identifier *)id, from, to));
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout)
{
	(void)timeout;
	struct identifier *i = (struct identifier *)id;
	pthread_mutex_lock(&manager);
	if (i->state != ADDR_RESOLVED)
		return leave(EINVAL);
	i->state = ROUTE_RESOLVED;
	i->ibv.route.path_rec = &path;
	i->ibv.route.num_paths = 1;
	push(i, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return leave(0);
}
