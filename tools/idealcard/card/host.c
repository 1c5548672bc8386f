// What the kernel of a host does for its processes: it gives them the fabric's memory, and when
// one has ended, however it did, it destroys what that has left. This runs in a process of its
// own, which the launcher starts.

#include "card.h"
#include "cm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GRACE = 1000000000 }; // nanoseconds in which whoever was just using what is gone has finished

struct client {
	unsigned process;
	uint64_t ended; // when, in nanoseconds; 0: it has not
};

static struct pollfd *polled; // [0] is the listener, and each other one belongs to clients[i]
static struct client *clients;
static int count_polled;

static void reap_regions(unsigned process)
{
	for (uint32_t i = 1; i < fabric->used_regions; i++)
		if (fabric->regions[i].process == process)
			free_region(i);
}

static void reap_queue_pairs(unsigned process)
{
	struct queue_pair *next;
	for (struct queue_pair *q = fabric->queue_pairs; q; q = next) {
		next = q->next;
		if (q->process == process)
			remove_queue_pair(q);
	}
}

static void reap(unsigned process)
{
	atomic_store(&fabric->processes[process].dead, true);
	atomic_fetch_add(&fabric->deaths, 1);
	take_manager();
	for (struct identifier *i = fabric->identifiers, *next; i; i = next) {
		next = i->next;
		if (i->process == process)
			part(i);
	}
	release_manager();
	take_control();
	for (struct context *c = fabric->contexts, *next; c; c = next) {
		next = c->next;
		if (c->process == process)
			forget_context(c);
	}
	reap_queue_pairs(process);
	reap_regions(process);
	release_control();
}

static bool send_fabric(int to, int memory, unsigned number)
{
	char control[CMSG_SPACE(sizeof memory)] = "";
	struct iovec part = {&number, sizeof number};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof memory)};
	memcpy(CMSG_DATA(c), &memory, sizeof memory);
	return sendmsg(to, &m, MSG_NOSIGNAL) == sizeof number;
}

static void welcome(int listener, int memory)
{
	struct ucred who;
	socklen_t length = sizeof who;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	unsigned number = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) ? 0 : new_process(who.pid);
	if (!number || !send_fabric(fd, memory, number)) {
		close(fd);
		return;
	}
	polled = realloc(polled, (count_polled + 2) * sizeof *polled);
	clients = realloc(clients, (count_polled + 1) * sizeof *clients);
	polled[count_polled] = (struct pollfd){.fd = fd, .events = POLLIN};
	clients[count_polled++] = (struct client){.process = number};
}

static void forget_client(int i)
{
	polled[i] = polled[--count_polled];
	clients[i] = clients[count_polled];
}

// look_after reaps a process that has ended, and frees what it had in the fabric a while later.
static void look_after(int i)
{
	struct client *c = &clients[i];
	if (c->ended && nanoseconds() - c->ended >= GRACE) {
		release_all(c->process);
		forget_client(i);
	} else if (polled[i].revents) {
		close(polled[i].fd);
		polled[i].fd = -1;
		polled[i].revents = 0;
		reap(c->process);
		c->ended = nanoseconds();
	}
}

// answer_request obeys the launcher, which sends a line and waits for the answer.
static void answer_request(void)
{
	char request[128], answer[128];
	ssize_t n = read(STDIN_FILENO, request, sizeof request - 1);
	if (n <= 0)
		_exit(0); // the launcher has ended
	request[n] = '\0';
	obey(request, answer, sizeof answer);
	if (write(STDOUT_FILENO, answer, strlen(answer)) < 0)
		_exit(1);
}

// breaks_things reports whether faults come that no request asks for.
static bool breaks_things(void)
{
	const char *schedule = getenv("IDEAL_FAULTS");
	for (int i = 0; i < fabric->cards; i++)
		if (fabric->card[i].manners)
			return true;
	return schedule && *schedule;
}

__attribute__((visibility("default"))) int idealcard_host(int listener)
{
	int memory = memfd_create("idealcard", MFD_CLOEXEC);
	if (memory < 0 || ftruncate(memory, FABRIC_SIZE) || !map_fabric(memory)) {
		fprintf(stderr, "idealcard: the fabric's memory: %s%s\n", strerror(errno), no_addresses());
		return 1;
	}
	make_fabric();
	self = new_process(getpid());
	scheduled = breaks_things();
	polled = calloc(2, sizeof *polled); // and one more for requests
	clients = calloc(1, sizeof *clients);
	polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
	for (count_polled = 1;;) {
		struct pollfd *control = &polled[count_polled];
		*control = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
		poll(polled, count_polled + 1, scheduled || impaired() ? 5 : 100);
		if (control->revents)
			answer_request();
		notice_faults();
		for (int i = count_polled - 1; i > 0; i--)
			look_after(i);
		if (polled[0].revents)
			welcome(listener, memory);
	}
}
