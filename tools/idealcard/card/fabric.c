// How a process comes onto a fabric: by the socket that IDEAL_FABRIC names, at which host.c
// listens. Without that name it has a fabric of its own.

#include "card.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

unsigned self;
static int connection = -1; // to the host, which sees by it that this process has ended

bool is_dead(unsigned process) { return atomic_load(&fabric->processes[process].dead); }

// state_of is a process's state as ps has it, or 0 if there is no such process.
static char state_of(unsigned process)
{
	char path[32], text[512] = "";
	snprintf(path, sizeof path, "/proc/%d/stat", atomic_load(&fabric->processes[process].pid));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	const char *name_end = n > 0 ? strrchr(text, ')') : NULL;
	return name_end ? name_end[2] : 0;
}

bool is_stopped(unsigned process)
{
	char state = state_of(process);
	return state == 'T' || state == 't';
}

bool has_ended(unsigned process)
{
	if (is_dead(process))
		return true;
	char state = state_of(process);
	return !state || state == 'Z' || state == 'X';
}

void lock_mutex(pthread_mutex_t *mutex)
{
	if (pthread_mutex_lock(mutex) == EOWNERDEAD)
		pthread_mutex_consistent(mutex);
}

void wait_on(pthread_cond_t *changed, pthread_mutex_t *mutex)
{
	if (pthread_cond_wait(changed, mutex) == EOWNERDEAD)
		pthread_mutex_consistent(mutex);
}

bool map_fabric(int fd)
{
	return mmap(fabric, FABRIC_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, fd, 0) == fabric;
}

void make_fabric(void)
{
	pthread_mutexattr_t a;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&fabric->control, &a);
	pthread_mutex_init(&fabric->manager, &a);
	fabric->last_number = 0x10;
	fabric->used_regions = 1;
	read_cards(getenv("IDEAL_CARDS"));
	find_addresses();
}

unsigned new_process(int pid)
{
	unsigned n = atomic_fetch_add(&fabric->last_process, 1) + 1;
	if (n >= PROCESSES)
		return 0;
	struct process *p = &fabric->processes[n];
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&p->deadlines, &a);
	atomic_store(&p->pid, pid);
	return n;
}

// come connects to the host, and gets the fabric's memory and this process's number.
static bool come(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	unsigned number = 0;
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec part = {&number, sizeof number};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(connection, (struct sockaddr *)&a, sizeof a) || recvmsg(connection, &m, MSG_CMSG_CLOEXEC) != sizeof number)
		return false;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_type != SCM_RIGHTS)
		return false;
	int fd;
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	bool mapped = map_fabric(fd);
	close(fd);
	self = mapped ? number : 0;
	const char *host = getenv("IDEAL_NODE");
	if (self && host)
		fabric->processes[self].host = atoi(host) % HOSTS;
	return mapped;
}

const char *no_addresses(void) { return errno == ENOMEM ? ": it has 64 GiB of addresses, which ulimit -v must permit" : ""; }

// leave_child keeps a child from looking like its parent: it may not use what that has made.
static void leave_child(void)
{
	close(connection);
	connection = -1;
	self = 0;
}

__attribute__((constructor(101))) static void join_fabric(void)
{
	const char *path = getenv("IDEAL_FABRIC");
	if (!path)
		return; // see host.c
	if (!come(path)) {
		fprintf(stderr, "idealcard: this process cannot come onto the fabric %s: %s%s\n", path, strerror(errno), no_addresses());
		return;
	}
	read_schedule();
	// The peers' processes copy to and from this one's memory.
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	pthread_atfork(NULL, NULL, leave_child);
}
