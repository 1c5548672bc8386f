// How a card reaches another process: its memory, and its descriptors, which are eventfds.

#include "card.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// Interrupt lines of other processes' completion channels: descriptors of this process for
// theirs.
enum { LINES = 256 };

struct line {
	uint64_t serial; // of the channel
	unsigned process;
	int fd;
};

static struct line lines[LINES]; // under line_lock
static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;

static int pid_of(unsigned process) { return atomic_load(&fabric->processes[process].pid); }

// open_remote returns a descriptor for what fd is in another process, or -1 if that has ended.
static int open_remote(unsigned process, int fd)
{
	int pidfd = syscall(SYS_pidfd_open, pid_of(process), 0);
	if (pidfd < 0)
		return -1;
	int own = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	if (own < 0 && errno != ESRCH && errno != EBADF) {
		fprintf(stderr, "idealcard: process %d must not be reached: pidfd_getfd: %s\n", pid_of(process), strerror(errno));
		abort();
	}
	close(pidfd);
	return own;
}

static void signal_fd(int fd)
{
	uint64_t one = 1;
	if (write(fd, &one, sizeof one) < 0)
		abort();
}

void wake(unsigned process, int fd)
{
	if (process == self) {
		signal_fd(fd);
		return;
	}
	int own = is_dead(process) ? -1 : open_remote(process, fd);
	if (own >= 0) {
		signal_fd(own);
		close(own);
	}
}

static void close_line(struct line *l)
{
	if (l->serial && l->fd >= 0)
		close(l->fd);
	l->serial = 0;
}

void wake_channel(struct channel *c)
{
	if (likely(c->process == self)) {
		signal_fd(c->ibv.fd);
		return;
	}
	struct line *l = &lines[c->serial % LINES];
	pthread_mutex_lock(&line_lock);
	if (l->serial != c->serial) {
		close_line(l);
		*l = (struct line){c->serial, c->process, open_remote(c->process, c->ibv.fd)};
	}
	if (l->fd >= 0)
		signal_fd(l->fd);
	pthread_mutex_unlock(&line_lock);
}

void close_lines(unsigned process)
{
	pthread_mutex_lock(&line_lock);
	for (struct line *l = lines; l < lines + LINES; l++)
		if (l->process == process)
			close_line(l);
	pthread_mutex_unlock(&line_lock);
}

// copy_between copies from a process to another one, of which one is this. It returns EFAULT
// if memory is not there, or ESRCH if the process is not.
int copy_between(unsigned to_process, void *to, unsigned from_process, const void *from, size_t n)
{
	bool writes = from_process == self;
	while (n) {
		struct iovec target = {to, n}, source = {(void *)from, n};
		ssize_t done = writes ? process_vm_writev(pid_of(to_process), &source, 1, &target, 1, 0)
				      : process_vm_readv(pid_of(from_process), &target, 1, &source, 1, 0);
		if (done < 0 && errno == EPERM) {
			fprintf(stderr, "idealcard: process %d must not be reached: process_vm_writev: %s\n",
				pid_of(writes ? to_process : from_process), strerror(errno));
			abort();
		}
		if (done <= 0)
			return done < 0 ? errno : EFAULT;
		to = (char *)to + done;
		from = (const char *)from + done;
		n -= done;
	}
	return 0;
}
