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

#include "fabric.h"
#include "faults.h"

#include <infiniband/verbs.h>
// The header has macros of the same names as functions that are defined here.
#undef ibv_reg_mr
#undef ibv_query_port

enum {
	MAX_SGE = 4,
	MAX_INLINE = 512,
	MOST_WR = 1 << 15,
	MOST_CQE = 1 << 22,
	VECTORS = 2,
	SHORT = 4096, // with dma_free, shorter payloads are copied all the same
};

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define OWN_LINE __attribute__((aligned(64))) // starts a cache line

// All that follows is the card's own.
#pragma GCC visibility push(hidden)

struct queue_pair;

// clock.c: settings and the clock.

extern uint64_t latency; // in ticks; 0: none
extern bool dma_free;	 // payloads of SHORT bytes and more are not copied
extern bool paced;	 // ports have so many bytes or messages a second, or cards miss contexts
extern bool timed;	 // completions become visible later than they are made: latency, or paced

uint64_t sent(struct queue_pair *q, uint64_t length, uint64_t now);
uint64_t received(struct queue_pair *p, uint64_t now);
uint64_t in_ticks(uint64_t ns);

// ticks is the processor's clock; nanoseconds is CLOCK_MONOTONIC.
uint64_t ticks(void);
uint64_t nanoseconds(void);

// Objects, in the fabric's memory. Each begins with what the library's user sees of it.

struct piece;
struct after;

// A channel hands out completion events in the order of their times.
struct event {
	struct completion_queue *cq;
	uint64_t at; // when the completion becomes visible
};

struct channel {
	struct ibv_comp_channel ibv;
	unsigned process;
	uint64_t serial; // from 1 on; those of a fabric differ
	spinlock lock;
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
	uint16_t slid;
	uint32_t late; // pieces of payload that are in memory before this is reported: manners.c
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
	uint64_t draws, last_at; // manners.c
};

enum { RECEIVES, SENDS };

struct completion_queue {
	struct ibv_cq ibv;
	struct channel *channel;
	uint64_t depth;
	unsigned process, deaths; // deaths: of processes, when it was made
	atomic_bool armed OWN_LINE;
	atomic_uint signalers;	     // events that have still to reach the channel
	spinlock poll_lock OWN_LINE; // pollers
	struct ring rings[2];	     // RECEIVES and SENDS, each in the order of time
	uint64_t serial, draws;	     // manners.c
	atomic_bool dead;	     // nothing more is reported
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
	bool delivered; // and the answer was lost
	bool direct;	// the slot's last request was posted alone: defects.c
};

struct queue_pair {
	struct ibv_qp ibv;
	struct queue_pair *next; // in the list of all
	unsigned process;
	atomic_int state;
	uint32_t access, dest_qp_num;
	struct queue_pair *peer; // written with control and send_lock
	unsigned peer_process;	 // also when the peer is gone
	bool signal_all, established;
	int max_send_sge, max_recv_sge;
	uint32_t max_inline;
	uint8_t timeout, retries, port, path_mtu, rnr_timer, rnr_retries, traffic_class;
	uint32_t ece, ece_asked; // ece.c
	bool ece_settled;
	uint64_t deadline; // of the peer's answer, in nanoseconds; 0: none. Under control
	bool again;	   // what it holds may be answered by now; under control
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
	_Atomic uint64_t receive_tail OWN_LINE; // written by the peer, under its send_lock, or with arrival_lock
	atomic_bool awaited;			// the peer holds requests that want a receive

	uint64_t draws, stalled_until; // manners.c, under send_lock
	bool alone;		       // the request that is posted; defects.c, under send_lock
	struct ibv_sge last;	       // of the one before it in its post
	atomic_bool astray;	       // what it sends goes to a hardware address that nobody has
	uint32_t unannounced;	       // messages of the peer before COMM_EST, under control
	spinlock late_lock;
	struct piece *late;    // payload that is not in memory yet
	uint32_t late_pieces;  // in all, ever: written by the peer, under its send_lock
	spinlock arrival_lock; // of type UD: those who send to it take turns
	uint32_t qkey;
	uint16_t pkey;
	uint32_t cached; // the slot in the card's cache that it has had last, under the cache's lock
};

struct address_handle {
	struct ibv_ah ibv;
	struct ibv_ah_attr attr;
};

struct attachment {
	struct attachment *next;
	struct queue_pair *qp;
	union ibv_gid group;
};

struct context {
	struct ibv_context ibv;
	unsigned process;
	struct card *card;
	unsigned generation;	   // of the card
	struct context *next;	   // in the list of all, under control
	struct async_event *first; // under control
};

static inline void take_control(void) { lock_mutex(&fabric->control); }
static inline void release_control(void) { pthread_mutex_unlock(&fabric->control); }

// device.c

struct ibv_context *open_context(struct card *card);
void forget_context(struct context *c); // with control held
static inline struct card *card_of(struct ibv_context *c) { return ((struct context *)c)->card; }
static inline struct port *port_of(struct queue_pair *q) { return &card_of(q->ibv.context)->port[q->port - 1]; }
union ibv_gid gid_of(const struct port *p, int index);
int gids_of(const struct port *p);
int enum_of_mtu(uint32_t bytes);

// cache.c

bool caches(void);
uint64_t touch(struct queue_pair *q);

// ud.c

enum { HEADER = 40 }; // bytes before each datagram

void send_datagram(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after);
void leave_groups(struct queue_pair *q); // with control held

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
	REPORT_FATAL = 16,
	STALLED = 32,		// what is held waits for a time
	TROUBLE = 64,		// of the card, or the completion queue
};

// manners.c

extern bool mannered; // some card has manners
extern bool jittered; // completions come at times that are drawn

uint64_t mix(uint64_t x);
int place(struct queue_pair *p, uint32_t rkey, uint64_t remote, const struct queue_pair *q, uint64_t local, size_t n);
void land(struct queue_pair *p, uint32_t pieces);
void land_all(struct queue_pair *p);
void land_in_process(void);
uint64_t time_of_completion(struct ring *r, const struct completion *c);
uint64_t time_of_event(struct completion_queue *q, uint64_t at);
int cut_poll(struct completion_queue *q, int n);
uint32_t length_of(const struct completion *e);
bool twice(struct completion_queue *q);
bool spurious(struct completion_queue *q);
void before_request(struct queue_pair *q, struct after *after);
bool cuts_batch(struct queue_pair *q);
void begin_post(struct queue_pair *q, bool alone);
bool unset_mask_refused(struct ibv_context *context);
bool forgets_status(const struct completion *e);
const struct ibv_send_wr *spoil(struct queue_pair *q, const struct ibv_send_wr *wr, struct ibv_send_wr *loaded);
const struct ibv_send_wr *as_loaded(struct queue_pair *q, const struct ibv_send_wr *wr, struct ibv_send_wr *loaded);
bool announces(struct queue_pair *p);
bool sends_header(struct queue_pair *q);
void make_trouble(struct queue_pair *q); // without locks
bool works(struct ibv_context *context);

// ece.c

bool settle_ece(struct queue_pair *q); // with control held

// shapes.c

// operations are of ibv_create_qp_ex, or 0: all.
bool refuses_shape(const struct card *c, const struct ibv_qp_cap *cap, uint64_t operations);
void grant(const struct card *c, struct ibv_qp_cap *cap);
void slow_registration(const struct card *c, size_t length);
void slow_queue_pair(struct card *c);

// faults.c

void report_event(const struct card *card, enum ibv_event_type type, int port); // with control held

// completion.c

int poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *ibv, int solicited_only);
void complete(struct ibv_cq *ibv, int ring, const struct completion *what, struct after *after);
void forget_completions(struct ibv_cq *ibv, struct queue_pair *q);

// channel.c

void add_event(struct completion_queue *cq, uint64_t at);
void add_events(struct after *after);
void forget_events(struct completion_queue *cq);

// wake.c

void wake(unsigned process, int fd);
void wake_channel(struct channel *c);
void close_lines(unsigned process);
int copy_between(unsigned to_process, void *to, unsigned from_process, const void *from, size_t n);

// memory.c

void free_region(uint32_t index); // with control held

bool own_memory(const struct queue_pair *q, const struct ibv_send_wr *wr, uint64_t *length);
int copy_to(const struct queue_pair *to_whom, uint64_t to, const struct queue_pair *from_whom, uint64_t from, size_t n);
bool permits(uint32_t key, struct ibv_pd *pd, uint32_t access, uint64_t addr, uint64_t length);
bool is_relaxed(uint32_t key);

// execute.c

enum outcome { DONE, NO_RECEIVE, NO_ANSWER, NOT_ACKNOWLEDGED, FAILED };
enum outcome execute(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after);
void acknowledge(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, uint64_t now, struct after *after);
enum outcome fail(struct queue_pair *q, const struct ibv_send_wr *wr, uint32_t position, int status, uint64_t now, struct after *after);

// post.c

int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void lock_sends(struct queue_pair *q);
bool lock_sends_of(struct queue_pair *q);
bool holds(struct queue_pair *q);
void run_held(struct queue_pair *q, struct after *after);

// queuepair.c

struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *a);

// With control held:

void remove_queue_pair(struct queue_pair *q);
bool share_partition(const struct queue_pair *p, const struct queue_pair *q);

// state.c: with control held.

void run_held_now(struct queue_pair *q);
void to_error(struct queue_pair *q);
void finish(struct queue_pair *q, unsigned todo);

// async.c: with control held.

void push_async(enum ibv_event_type type, struct queue_pair *q);
void push_event(struct context *c, const struct ibv_async_event *event);
void await_acknowledged(struct queue_pair *q);

// timer.c: with control held.

void start_timer(void);
void start_deadline(struct queue_pair *q);
void start_stall(struct queue_pair *q);

// counter.c

void count(const struct card *card, const char *counter);

#pragma GCC visibility pop

#endif
