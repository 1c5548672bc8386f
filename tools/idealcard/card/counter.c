// The hardware counters, which are files below /sys/class/infiniband, as those of other devices.

#include "card.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

// count adds one to a counter, which several processes may have open. What is counted is rare.
void count(const struct card *card, const char *counter)
{
	char path[128], text[32] = "";
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/%s", card->name, counter);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX) || read(fd, text, sizeof text - 1) < 0)
		abort();
	int n = snprintf(text, sizeof text, "%ld\n", atol(text) + 1);
	if (pwrite(fd, text, n, 0) != n)
		abort();
	close(fd);
}
