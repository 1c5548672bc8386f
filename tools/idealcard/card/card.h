// What the files of the card share. README.md says what the card models.
//
// Lock order: control, then a queue pair's send_lock, then its receive_lock, then the lock of a
// ring of completions, then a channel's mutex. Who holds a spinlock never takes control.

#ifndef IDEALCARD_H
#define IDEALCARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>
// The header has macros of the same names as functions that are defined here.
#undef ibv_reg_mr
#undef ibv_query_port

enum {
	MAX_WR = 1 << 15,
	MAX_CQE = 1 << 22,
	MAX_MR = 1 << 18,
	MAX_SGE = 4,
	MAX_INLINE = 512,
	VECTORS = 2,
	SHORT = 4096, // with dma_free, shorter payloads are copied all the same
};

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define OWN_LINE __attribute__((aligned(64))) // starts a cache line

// clock.c: settings, the clock and locks.

extern uint64_t latency; // in ticks; 0: none
extern bool dma_free;	 // payloads of SHORT bytes and more are not copied

// ticks is the processor's clock; nanoseconds is CLOCK_MONOTONIC.
uint64_t ticks(void);
uint64_t nanoseconds(void);

typedef atomic_uint spinlock;
void spin_lock(spinlock *lock);
void spin_unlock(spinlock *lock);
void relax(void);

// Objects. Each begins with what the library's user sees of it.

struct queue_pair;

// A channel hands out completion events in the order of their times.
struct event {
	struct completion_queue *cq;
	uint64_t at; // when the completion becomes visible
};

struct channel {
	struct ibv_comp_channel ibv;
	pthread_mutex_t mutex;
	struct event *events;
	int count, capacity;
};

struct completion {
	uint64_t wr_id;
	uint64_t at;		// when it becomes visible
	struct queue_pair *qp;	// NULL: the queue pair is gone
	uint32_t position;	// of the request in the send queue
	uint32_t byte_len, imm_data, qp_num, src_qp;
	uint8_t status, opcode, flags;
};

// An entry of a ring is a cache line, as that of a card.
struct entry {
	_Atomic uint64_t sequence; // its position in the ring, from 1 on, once it is there
	struct completion completion;
} OWN_LINE;

struct ring {
	spinlock lock OWN_LINE;
	uint64_t head, tail_seen;
	_Atomic uint64_t tail OWN_LINE; // written by the poller
	struct entry *entries;
	uint64_t mask;
};

enum { RECEIVES, SENDS };

struct completion_queue {
	struct ibv_cq ibv;
	struct channel *channel;
	struct completion_queue *next; // in the list of all
	uint64_t depth;
	atomic_bool armed OWN_LINE;
	atomic_uint signalers;	     // events that have still to reach the channel
	spinlock poll_lock OWN_LINE; // pollers
	struct ring rings[2];	     // RECEIVES and SENDS, each in the order of time
};

struct receive {
	uint64_t wr_id;
	int num_sge;
	struct ibv_sge sge[MAX_SGE];
};

// A request that waits for the peer.
struct held {
	struct ibv_send_wr wr;
	uint32_t position;
	struct ibv_sge sge[MAX_SGE];
	char inline_data[MAX_INLINE];
};

struct queue_pair {
	struct ibv_qp ibv;
	struct queue_pair *next; // in the list of all
	atomic_int state;
	uint32_t access, dest_qp_num;
	struct queue_pair *peer; // written with control and send_lock
	bool signal_all, established;
	int max_send_sge, max_recv_sge;
	uint32_t max_inline;
	uint8_t timeout, retries;
	uint64_t deadline; // of the peer's answer, in nanoseconds; 0: none. Under control
	int unacknowledged; // asynchronous events; under control

	spinlock send_lock OWN_LINE;
	uint32_t send_size, send_head;
	uint64_t receives_seen; // of the peer's receive_head
	uint64_t turns;		// how often send_lock has been taken
	struct held *held;
	uint32_t held_head, held_tail;
	_Atomic uint32_t send_tail OWN_LINE; // written by the poller

	spinlock receive_lock OWN_LINE;
	uint32_t receive_size;
	uint64_t receive_mask, receive_tail_seen;
	_Atomic uint64_t receive_head;
	struct receive *receives;
	_Atomic uint64_t receive_tail OWN_LINE; // written by the peer, under its send_lock
	atomic_bool awaited;			// the peer holds requests that want a receive
};

extern struct ibv_context context;
extern struct ibv_device device;

// control guards the lists of objects and everything that is not on the path of data.
extern pthread_mutex_t control;
extern struct queue_pair *queue_pairs;

// What is left to do when the spinlocks have been released.
struct after {
	unsigned todo;
	int count;
	struct event events[8];
};

enum {
	AWAIT_ANSWER = 1,	// the peer does not answer
	FLUSH = 2,		// the queue pair is in the error state
	FAIL_PEER = 4,		// so is the peer's
	REPORT_ESTABLISHED = 8, // the first message of the peer
};

// completion.c

int poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *ibv, int solicited_only);
void complete(struct ibv_cq *ibv, int ring, const struct completion *what, struct after *after);
void forget_completions(struct ibv_cq *ibv, struct queue_pair *q);

// channel.c

void add_event(struct completion_queue *cq, uint64_t at);
void add_events(struct after *after);
void forget_events(struct completion_queue *cq);

// memory.c

bool permits(uint32_t key, struct ibv_pd *pd, uint32_t access, uint64_t addr, uint64_t length);

// execute.c

enum outcome { DONE, NO_RECEIVE, NO_ANSWER, FAILED };
enum outcome execute(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after);
enum outcome fail(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, int status, uint64_t now, struct after *after);

// post.c

int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void lock_sends(struct queue_pair *q);
bool holds(struct queue_pair *q);
void run_held(struct queue_pair *q, struct after *after);

// state.c: with control held.

void run_held_now(struct queue_pair *q);
void to_error(struct queue_pair *q);
void finish(struct queue_pair *q, unsigned todo);

// async.c: with control held.

void push_async(enum ibv_event_type type, void *element);
void await_acknowledged(struct queue_pair *q);

// timer.c: with control held.

void start_deadline(struct queue_pair *q);

// counter.c

void count(const char *counter);

#endif
