// What there is of iproute2's rdma, for programs that count what is left.

#include <stdio.h>
#include <string.h>

int idealcard_resources(int json);
int idealcard_statistic(int json);
int idealcard_queue_pairs(void);
int idealcard_listeners(void);

int main(int argc, char **argv)
{
	int json = argc > 1 && !strcmp(argv[1], "-j");
	if (argc == 3 + json && !strcmp(argv[1 + json], "resource") && !strcmp(argv[2 + json], "show"))
		return idealcard_resources(json);
	if (argc == 3 + json && !strcmp(argv[1 + json], "statistic") && !strcmp(argv[2 + json], "show"))
		return idealcard_statistic(json);
	if (argc == 4 && !strcmp(argv[1], "resource") && !strcmp(argv[2], "show") && !strcmp(argv[3], "qp"))
		return idealcard_queue_pairs();
	if (argc == 4 && !strcmp(argv[1], "resource") && !strcmp(argv[2], "show") && !strcmp(argv[3], "cm_id"))
		return idealcard_listeners();
	fprintf(stderr, "rdma: of the ideal card there is: rdma [-j] resource|statistic show, and rdma resource show qp|cm_id\n");
	return 1;
}
