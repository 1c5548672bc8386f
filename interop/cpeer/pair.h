// Queue pairs and the connection manager.

#ifndef CPEER_PAIR_H
#define CPEER_PAIR_H

#include "link.h"


enum { RINGS_SIZE = STREAMS * (RING_SIZE + LARGE_RING), OUT_MEMORY = CONTROL_BUFFERS * MESSAGE + STREAMS * OUT_SIZE };

extern struct rdma_event_channel *events;
extern struct pair *pairs;

struct pair *new_pair(struct rdma_cm_id *id, struct link *l);

// make_queues makes the queue pair, registers the link's memory, and posts the receives. Like to_ready, it
// has the pair failed if the peer has withdrawn.
void make_queues(struct pair *p);

// to_ready moves the queue pair to RTR and RTS, with a path MTU that is no larger than the peer's, if
// that has told one. It returns the path MTU.
int to_ready(struct pair *p, int mtu);

void to_error(struct pair *p);
void destroy_pair(struct pair *p);
void post_receive(struct pair *p);
void post_write(struct pair *p, const uint8_t *from, uint32_t n, uint64_t addr, uint32_t rkey, uint32_t imm);

// put_mailbox names the mailbox in private data.
void put_mailbox(struct pair *p, uint8_t *to);
bool get_mailbox(struct pair *p, const uint8_t *private, size_t length, size_t at);

// mapped is an address in 16 bytes.
void mapped(uint8_t to[16], const struct sockaddr *addr);

#endif
