// The memory that all processes on a fabric share. It has the same address in each of them, so
// that objects in it point to one another. Everything that another process may have to see is
// there: the structures that a library's user sees, too, though pointers of his mean something
// in his process alone.

#ifndef IDEALCARD_FABRIC_H
#define IDEALCARD_FABRIC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manners.h"

enum {
	PROCESSES = 1 << 16, // in a fabric's life: numbers are not used again
	NUMBERS = 1 << 16,   // of queue pairs
	CLASSES = 40,	     // of blocks of memory
	CARDS = 8,
	PORTS = 2,
	PKEYS = 16,
	ADDRESSES = 64, // of a port
	HOSTS = 2,
	CABLES = CARDS * PORTS,
	NAME = 32,
	MAX_MR = 1 << 18,
};

struct queue_pair;
struct identifier;
struct context;
struct block;

// A lock names the process that holds it, or is 0. Who waits for a process that has ended takes
// the lock from it.
typedef atomic_uint spinlock;

enum kind { CONTEXTS, DOMAINS, COMPLETION_QUEUES, QUEUE_PAIRS, REGIONS, KINDS };

struct process {
	atomic_int pid;
	int host; // of those whose cards the fabric has
	atomic_bool dead;
	pthread_cond_t deadlines; // timer.c
	atomic_int held[KINDS];
};

struct region {
	atomic_uint key; // 0: none
	uint32_t access, next_free, process;
	uint64_t addr, length;
	struct ibv_pd *pd;
	uint8_t generation;
};

// An address of IP as 16 bytes, as a GID has it: those of IPv4 are mapped.
struct address {
	uint8_t raw[16];
};

// Something that has failed.
struct fault {
	atomic_bool lasts, noticed;
	_Atomic uint64_t until; // in nanoseconds; 0: until somebody mends it
};

struct port {
	bool infiniband;
	bool all;	// addresses of this host
	uint32_t mtu;	// in bytes
	uint16_t lid;	// InfiniBand has it
	uint64_t guid;	// as well
	int pkeys;
	uint16_t pkey[PKEYS];
	atomic_int addresses; // written under manager
	struct address address[ADDRESSES];
	_Atomic uint64_t sent_by;     // in ticks: when all that has been posted will be on the cable
	_Atomic uint64_t received_by; // and when all that was on the cable will be received
	int cable;
	struct fault down;
};

// A card, and as much of it as verbs allow to make.
struct card {
	char name[NAME];
	uint64_t guid;
	uint32_t max_qp, max_wr, max_cqe, max_mr, max_sge, max_inline;
	uint64_t manners;	     // a bit for each
	_Atomic uint64_t busy_until; // with a queue pair, where those are slow; in nanoseconds
	atomic_uint requests;	     // that have been posted, as far as a manner counts them
	atomic_bool failed;	     // for good, but is there
	atomic_bool forgotten;	     // the connections of before: see STALE_ONCE
	int ports;
	struct port port[PORTS];
	uint32_t qp_cache; // contexts of queue pairs that it keeps; 0: all
	uint64_t qp_miss;  // how long it takes to fetch another one, in nanoseconds
	int host;
	struct fault gone;
	atomic_uint generation; // how often it has come back
};

// The queue pairs that a card has used last, as a list: cache.c.
struct cache {
	spinlock lock;
	uint32_t used, newest, oldest;
	_Atomic uint64_t misses;
	struct slot {
		uint32_t qp_num, newer, older; // numbers of slots; 0: none
	} slots[NUMBERS];
};

struct attachment;

struct fabric {
	uint64_t seed; // of all that manners and schedules draw
	int cards;
	struct card card[CARDS];
	struct cache cache[CARDS];
	struct fault out[CABLES]; // cables
	struct fault off[HOSTS];  // hosts without power
	uint64_t sm_delay;	  // in nanoseconds: until InfiniBand's subnet manager answers
	atomic_bool impaired;     // there may be a fault, or somebody who does not answer at once

	pthread_mutex_t control; // guards the lists of objects and everything that is not on the path of data
	struct queue_pair *queue_pairs, *free_queue_pairs, *by_number[NUMBERS];
	struct context *contexts;
	uint32_t last_number;
	spinlock group_lock;
	struct attachment *attachments; // of queue pairs to groups; to change it takes control, too
	uint32_t used_regions, free_regions;
	struct region regions[MAX_MR];

	pthread_mutex_t manager; // guards all identifiers and events of rdma_cm
	struct identifier *identifiers;
	uint16_t last_port;

	atomic_uint last_process, deaths;
	_Atomic uint64_t last_channel;
	struct process processes[PROCESSES];

	spinlock heap_lock;
	struct block *free_blocks[CLASSES];
	char *heap_end;
};

#define FABRIC_ADDRESS 0x420000000000 // where neither kernels, loaders nor the race detector put anything
#define FABRIC_SIZE (1ull << 36)      // of addresses: pages are there once they are used
#define fabric ((struct fabric *)FABRIC_ADDRESS)

#pragma GCC visibility push(hidden)

// fabric.c

extern unsigned self; // the number of this process, from 1 on; 0: it is on no fabric

unsigned new_process(int pid);
bool is_dead(unsigned process);   // the host has noticed that it has ended
bool has_ended(unsigned process); // even if the host has not
bool is_stopped(unsigned process);
bool map_fabric(int fd);
const char *no_addresses(void); // what may be said of errno beside it, or ""
void make_fabric(void);
void lock_mutex(pthread_mutex_t *mutex);
void wait_on(pthread_cond_t *changed, pthread_mutex_t *mutex);

// hold_more counts what this process has, and n may be negative.
static inline void hold_more(enum kind kind, int n) { atomic_fetch_add(&fabric->processes[self].held[kind], n); }
static inline int held_by(unsigned process, enum kind kind) { return atomic_load(&fabric->processes[process].held[kind]); }

// settings.c

void read_cards(const char *text);

// manners.c

bool add_manner(struct card *c, const char *name);

// shapes.c

void limit(struct card *c, enum manner m);

static inline bool has(const struct card *c, enum manner m) { return c->manners >> m & 1; }

// cmaddr.c

void find_addresses(void);

// lock.c

// spin_lock returns true if it has taken the lock from a process that has ended.
bool spin_lock(spinlock *lock);
void spin_unlock(spinlock *lock);
// spin_lock_unless_stopped returns false if a process holds the lock that has been stopped.
bool spin_lock_unless_stopped(spinlock *lock);
void relax(void);

// heap.c: memory of the fabric, zeroed, which belongs to a process and goes with it.

void *allocate(unsigned process, size_t n);
void release(void *memory);
void release_all(unsigned process);

#pragma GCC visibility pop

#endif
