// The cards of a fabric, which the launcher describes in lines of words:
//
//	seed NUMBER
//	sm_delay NANOSECONDS
//	card NAME HOST GUID MAX_QP MAX_WR MAX_CQE MAX_MR MAX_SGE MAX_INLINE
//	cache QUEUE_PAIRS NANOSECONDS
//	manner NAME
//	port ethernet|infiniband MTU LID CABLE
//	pkey NUMBER
//	address IP|all
//
// Each port belongs to the card before it, and what follows to the port before that.

#include "card.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_address(struct port *p, const char *text)
{
	struct address *a = &p->address[p->addresses];
	struct in_addr v4;
	if (!strcmp(text, "all"))
		return p->all = true;
	if (p->addresses == ADDRESSES)
		return false;
	if (inet_pton(AF_INET, text, &v4) == 1) {
		a->raw[10] = a->raw[11] = 0xff;
		memcpy(a->raw + 12, &v4, sizeof v4);
	} else if (inet_pton(AF_INET6, text, a->raw) != 1) {
		return false;
	}
	p->addresses++;
	return true;
}

static bool read_line(const char *line)
{
	char word[64];
	struct card *c = &fabric->card[fabric->cards - 1], new = {0};
	struct port *p = fabric->cards && c->ports ? &c->port[c->ports - 1] : NULL;
	if (sscanf(line, "card %31s %d %" SCNx64 " %u %u %u %u %u %u", new.name, &new.host, &new.guid, &new.max_qp, &new.max_wr, &new.max_cqe, &new.max_mr,
		   &new.max_sge, &new.max_inline) == 9) {
		if (fabric->cards == CARDS || new.max_wr > MOST_WR || new.max_cqe > MOST_CQE || new.max_mr >= MAX_MR ||
		    new.max_sge > MAX_SGE || new.max_inline > MAX_INLINE || new.host < 0 || new.host >= HOSTS)
			return false;
		fabric->card[fabric->cards++] = new;
		return true;
	}
	if (fabric->cards && sscanf(line, "cache %u %" SCNu64, &c->qp_cache, &c->qp_miss) == 2)
		return c->qp_cache < NUMBERS;
	if (sscanf(line, "seed %" SCNu64, &fabric->seed) == 1)
		return true;
	if (sscanf(line, "sm_delay %" SCNu64, &fabric->sm_delay) == 1)
		return true;
	if (fabric->cards && sscanf(line, "manner %63s", word) == 1)
		return add_manner(c, word);
	struct port port = {0};
	if (fabric->cards && c->ports < PORTS && sscanf(line, "port %63s %u %hu %d", word, &port.mtu, &port.lid, &port.cable) == 4 &&
	    port.cable >= 0 && port.cable < CABLES) {
		port.infiniband = !strcmp(word, "infiniband");
		port.guid = c->guid + 1 + c->ports;
		c->port[c->ports++] = port;
		return true;
	}
	if (p && p->pkeys < PKEYS && sscanf(line, "pkey %hx", &p->pkey[p->pkeys]) == 1)
		return ++p->pkeys;
	return p && sscanf(line, "address %63s", word) == 1 && read_address(p, word);
}

// read_cards ends the process if it does not understand the text: it is the launcher's.
void read_cards(const char *text)
{
	char line[256];
	for (const char *at = text; *at; at += strcspn(at, "\n") + 1) {
		snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
		if (!read_line(line)) {
			fprintf(stderr, "idealcard: IDEAL_CARDS has the line: %s\n", line);
			exit(1);
		}
		if (!at[strcspn(at, "\n")])
			break;
	}
}
