// Addresses of rdma_cm. Each address of this host belongs to the card.

#include "cm.h"
#include "card.h"

#include <errno.h>
#include <ifaddrs.h>
#include <string.h>

static const uint64_t NEIGHBOUR = 3000000000; // nanoseconds that the kernel gives a neighbour to answer

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

// is_this_hosts reports whether an address is one of this host.
static bool is_this_hosts(const struct sockaddr *a)
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

static struct address raw(const struct sockaddr *a)
{
	struct address r = {.raw = {[10] = 0xff, [11] = 0xff}};
	if (a->sa_family == AF_INET)
		memcpy(r.raw + 12, &v4(a)->sin_addr, 4);
	else
		memcpy(r.raw, &v6(a)->sin6_addr, 16);
	return r;
}

static int index_at(const struct port *p, struct address a)
{
	for (int i = 0; i < atomic_load(&p->addresses); i++)
		if (!memcmp(&p->address[i], &a, sizeof a))
			return i;
	return -1;
}

// add_address gives an address of this host to a port that has all of them.
static int add_address(struct port *p, struct address a)
{
	int n = atomic_load(&p->addresses);
	if (n == ADDRESSES)
		return -1;
	p->address[n] = a;
	atomic_store(&p->addresses, n + 1);
	return n;
}

static int find_at(struct port *p, const struct sockaddr *a, bool may_add)
{
	int i = index_at(p, raw(a));
	return i < 0 && may_add && p->all && is_this_hosts(a) ? add_address(p, raw(a)) : i;
}

// find_addresses gives the addresses that this host has by now to the ports that have all of them.
void find_addresses(void)
{
	struct found f;
	struct ifaddrs *list;
	if (getifaddrs(&list))
		return;
	for (struct ifaddrs *i = list; i; i = i->ifa_next)
		if (is_family(i->ifa_addr))
			find_port(i->ifa_addr, &f);
	freeifaddrs(list);
}

static bool find_port_among(const struct sockaddr *a, struct found *f, bool may_add)
{
	for (int c = 0; c < fabric->cards; c++)
		for (int n = 1; n <= fabric->card[c].ports; n++) {
			struct port *p = &fabric->card[c].port[n - 1];
			int i = find_at(p, a, may_add);
			if (i < 0)
				continue;
			*f = (struct found){&fabric->card[c], p, n, p->infiniband ? 0 : i};
			return true;
		}
	return false;
}

bool find_port(const struct sockaddr *a, struct found *f) { return find_port_among(a, f, false) || find_port_among(a, f, true); }

// opened is the card that librdmacm opens for one: before 28da4a8de ucma_get_device takes the first with its node GUID.
static struct card *opened(struct card *c)
{
	for (int i = 0; has(c, EQUAL_GUIDS) && i < fabric->cards; i++)
		if (has(&fabric->card[i], EQUAL_GUIDS) && has_card(&fabric->card[i]))
			return &fabric->card[i];
	return c;
}

void set_device(struct identifier *i)
{
	static struct ibv_context *contexts[CARDS]; // of this process
	struct found f;
	if (!find_port(source(i), &f) || !has_card(f.card))
		return;
	struct card *card = opened(f.card);
	struct ibv_context **c = &contexts[card - fabric->card];
	if (!*c || (impaired() && is_cut_off(*c)))
		*c = open_context(card);
	i->ibv.verbs = *c;
	i->ibv.port_num = f.number;
	i->source_gid = f.gid;
	i->ibv.route.addr.addr.ibaddr.sgid = gid_of(f.port, f.gid);
	i->ibv.route.addr.addr.ibaddr.pkey = htons(f.port->pkey[0]);
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
	for (struct identifier *i = fabric->identifiers; i; i = i->next) {
		if (host_of(i->process) != host_of(self->process))
			continue;
		if (i == self || i->state == IDLE || i->peer || i->asked || i->ibv.ps != self->ibv.ps || *port(source(i)) != *port(a))
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
		fabric->last_port = fabric->last_port < first || fabric->last_port >= last ? first : fabric->last_port + 1;
		*port(a) = htons(fabric->last_port);
		if (!taken(i, a, true))
			return 0;
	}
	return EADDRNOTAVAIL;
}

static int bind_to(struct identifier *i, const struct sockaddr *a)
{
	if (!is_family(a))
		return EAFNOSUPPORT;
	struct found f;
	i->any = unspecified(a);
	if (!i->any && (!find_port(a, &f) || f.card->host != host_of(self)))
		return EADDRNOTAVAIL;
	if (!i->any && lasts(&f.card->gone))
		return ENODEV;
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
	take_manager();
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

// address_towards turns the address of another host's port into that of this host's port at the same
// cable, and leaves one of this host.
int address_towards(const struct found *to, struct sockaddr *a)
{
	if (to->card->host == host_of(self))
		return 0;
	for (int c = 0; c < fabric->cards; c++)
		for (int n = 0; n < fabric->card[c].ports; n++) {
			struct port *p = &fabric->card[c].port[n];
			if (!has_card(&fabric->card[c]) || p->cable != to->port->cable)
				continue;
			for (int k = 0; k < atomic_load(&p->addresses); k++) {
				static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
				bool is_v4 = !memcmp(p->address[k].raw, mapped, sizeof mapped);
				if (is_v4 != (a->sa_family == AF_INET))
					continue;
				if (is_v4)
					memcpy(&v4(a)->sin_addr, p->address[k].raw + 12, 4);
				else
					memcpy(&v6(a)->sin6_addr, p->address[k].raw, 16);
				return lasts(&p->down) ? ENETUNREACH : 0;
			}
		}
	return ENETUNREACH;
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

static void describe_path(struct identifier *i)
{
	struct found from, to;
	if (!find_port(source(i), &from) || !find_port(destination(i), &to))
		return;
	i->path = (struct ibv_sa_path_rec){.sgid = gid_of(from.port, from.gid), .dgid = gid_of(to.port, to.gid), .slid = htons(from.port->lid),
		.dlid = htons(to.port->lid), .pkey = htons(from.port->pkey[0]), .mtu_selector = 2, .mtu = enum_of_mtu(from.port->mtu)};
	i->ibv.route.addr.addr.ibaddr.dgid = i->path.dgid;
	i->ibv.route.path_rec = &i->path;
	i->ibv.route.num_paths = 1;
}

// begin_query begins one that is answered after so many nanoseconds, if i waits for so long.
static void begin_query(struct identifier *i, enum message m, uint64_t answered, uint64_t patience, int outcome)
{
	bool heard = answered <= patience;
	atomic_store(&fabric->impaired, true); // the host looks after it
	i->unanswered = m;
	i->expires = nanoseconds() + (heard ? answered : patience);
	i->outcome = heard ? outcome : ETIMEDOUT;
}

static void end_path_query(struct identifier *i)
{
	i->state = ROUTE_RESOLVED;
	describe_path(i);
	push(i, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

void end_query(struct identifier *i, enum message m)
{
	if (i->outcome)
		push(i, m == PATH_QUERY ? RDMA_CM_EVENT_ROUTE_ERROR : RDMA_CM_EVENT_ADDR_ERROR, -i->outcome);
	else
		end_path_query(i);
}

// is_silent reports whether an address that no port has is that of a host that does not answer: one of
// TEST-NET-1 (RFC 5737).
static bool is_silent(const struct sockaddr *a) { return a->sa_family == AF_INET && ntohl(v4(a)->sin_addr.s_addr) >> 8 == 0xc00002; }

static bool is_multicast(const struct sockaddr *a)
{
	return a->sa_family == AF_INET ? IN_MULTICAST(ntohl(v4(a)->sin_addr.s_addr)) : IN6_IS_ADDR_MULTICAST(&v6(a)->sin6_addr);
}

// resolve_group is for a group, which leaves from the address that the identifier is bound to.
static int resolve_group(struct identifier *i, const struct sockaddr *to)
{
	if (i->state != BOUND || i->any) {
		push(i, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
		return 0;
	}
	i->ibv.route.addr.dst_storage = stored(to);
	i->state = ADDR_RESOLVED;
	push(i, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	return 0;
}

static int resolve(struct identifier *i, const struct sockaddr *from, const struct sockaddr *to, uint64_t patience)
{
	if ((from && from->sa_family != to->sa_family) || (i->state != IDLE && i->state != BOUND) || i->unanswered)
		return EINVAL;
	int error = from && i->state == IDLE ? bind_to(i, from) : 0;
	if (error)
		return error;
	struct sockaddr_storage there = towards(to);
	struct found f;
	if (is_multicast(to))
		return resolve_group(i, to);
	if (!find_port((struct sockaddr *)&there, &f)) {
		if (is_silent(to))
			begin_query(i, ADDRESS_QUERY, NEIGHBOUR, patience, EHOSTUNREACH);
		else
			push(i, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
		return 0;
	}
	struct sockaddr_storage own = there;
	bool bound = i->state == BOUND && !i->any;
	error = bound ? 0 : address_towards(&f, (struct sockaddr *)&own);
	if (error) {
		push(i, RDMA_CM_EVENT_ADDR_ERROR, -error);
		return 0;
	}
	error = bind_towards(i, own);
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
	take_manager();
	return leave(resolve((struct identifier *)id, from, to, timeout * 1000000ull));
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout)
{
	struct identifier *i = (struct identifier *)id;
	take_manager();
	if (i->state != ADDR_RESOLVED || i->unanswered)
		return leave(EINVAL);
	struct found f; // on Ethernet nobody is asked
	if (fabric->sm_delay && find_port(source(i), &f) && f.port->infiniband)
		begin_query(i, PATH_QUERY, fabric->sm_delay, timeout * 1000000ull, 0);
	else
		end_path_query(i);
	return leave(0);
}

uint16_t rdma_get_src_port(struct rdma_cm_id *id) { return *port(source((struct identifier *)id)); }
uint16_t rdma_get_dst_port(struct rdma_cm_id *id) { return *port(destination((struct identifier *)id)); }
