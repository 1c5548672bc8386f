// Requests to break something, or to mend it, which the launcher passes on in lines:
//
//	cable down|up [CABLE]
//	path down|up [CABLE]
//	port down|up CARD [PORT]
//	card remove|return CARD
//	power off|on HOST
//
// When a cable is down its ports are down, too, and report that; a path that is down reports
// nothing.

#include "card.h"

#include <stdio.h>
#include <string.h>

static struct card *card_named(const char *name)
{
	for (int i = 0; i < fabric->cards; i++)
		if (!strcmp(fabric->card[i].name, name))
			return &fabric->card[i];
	return NULL;
}

static void change(struct fault *f, bool begins)
{
	if (begins)
		begin_fault(f, 0);
	else
		end_fault(f);
}

static bool has_cable(int cable)
{
	bool found = false;
	for (int i = 0; i < fabric->cards; i++)
		for (int j = 0; j < fabric->card[i].ports; j++)
			found |= cable < 0 || fabric->card[i].port[j].cable == cable;
	return found;
}

static void change_ports(int cable, bool begins)
{
	for (int i = 0; i < fabric->cards; i++)
		for (int j = 0; j < fabric->card[i].ports; j++)
			if (cable < 0 || fabric->card[i].port[j].cable == cable)
				change(&fabric->card[i].port[j].down, begins);
}

// obey_cable is for requests about one cable, or about all: cable is -1 then.
static const char *obey_cable(const char *what, int cable, bool begins)
{
	if (cable < -1 || cable >= CABLES || !has_cable(cable))
		return "there is no such cable";
	if (!strcmp(what, "cable"))
		change_ports(cable, begins);
	for (int i = 0; i < CABLES; i++)
		if (cable < 0 || i == cable)
			change(&fabric->out[i], begins);
	return NULL;
}

static const char *obey_card(const char *what, const char *name, int port, bool begins)
{
	struct card *c = card_named(name);
	if (!c)
		return "there is no such card";
	if (!strcmp(what, "card"))
		change(&c->gone, begins);
	else if (port < 1 || port > c->ports)
		return "the card has no such port";
	else
		change(&c->port[port - 1].down, begins);
	return NULL;
}

static const char *carry_out(const char *request)
{
	char what[16], how[16], which[NAME] = "", more[16] = "", rest[2];
	int n = sscanf(request, "%15s %15s %31s %15s %1s", what, how, which, more, rest), number = -1, port = 1;
	bool begins = n >= 2 && (!strcmp(how, "down") || !strcmp(how, "remove") || !strcmp(how, "off"));
	bool of_cable = n >= 2 && (!strcmp(what, "cable") || !strcmp(what, "path"));
	if (n < 2 || n > 4 || (!begins && strcmp(how, "up") && strcmp(how, "return") && strcmp(how, "on")))
		return "unknown request";
	if (of_cable && n <= 3 && (n == 2 || sscanf(which, "%d%1s", &number, rest) == 1))
		return obey_cable(what, number, begins);
	if (!strcmp(what, "power") && n == 3 && sscanf(which, "%d%1s", &number, rest) == 1) {
		if (number < 0 || number >= HOSTS)
			return "there is no such host";
		change(&fabric->off[number], begins);
		return NULL;
	}
	if ((!strcmp(what, "card") && n == 3) || (!strcmp(what, "port") && n >= 3 && (n == 3 || sscanf(more, "%d%1s", &port, rest) == 1)))
		return obey_card(what, which, port, begins);
	return "unknown request";
}

void obey(const char *request, char *answer, size_t size)
{
	const char *error = carry_out(request);
	notice_faults();
	snprintf(answer, size, error ? "error %s\n" : "ok\n", error);
}
