// What can fail, and whether it has.

#ifndef IDEALCARD_FAULTS_H
#define IDEALCARD_FAULTS_H

#include "fabric.h"

#include <errno.h>

struct ibv_context;
struct queue_pair;

#pragma GCC visibility push(hidden)

// faults.c

static inline bool lasts(const struct fault *f) { return atomic_load_explicit(&f->lasts, memory_order_acquire); }
static inline bool impaired(void) { return __builtin_expect(atomic_load_explicit(&fabric->impaired, memory_order_relaxed), false); }

void begin_fault(struct fault *f, uint64_t lasts); // in nanoseconds; 0: until somebody mends it
void end_fault(struct fault *f);
void notice_faults(void);

// cm.c

void remove_device(const struct card *card);
void send_again(void);

// faults.c

bool has_card(const struct card *c); // this process's host has it
bool is_cut_off(struct ibv_context *c);
bool joined(const struct card *c, const struct port *p, const struct card *d, const struct port *q);
bool reaches(const struct queue_pair *q, const struct queue_pair *p);
static inline int host_of(unsigned process) { return fabric->processes[process].host; }

// schedule.c

extern bool scheduled; // faults come by themselves

enum strike { NOTHING, BEFORE, AFTER };

bool read_schedule(void);
void count_call(struct ibv_context *c);
enum strike strike_request(void);
uint64_t strike_cable(struct queue_pair *q, const struct queue_pair *p, uint64_t length);

// cut_off is the errno of a call after the kernel has taken a card back, or 0.
static inline int cut_off(struct ibv_context *c) { return impaired() && is_cut_off(c) ? EIO : 0; }

// calls_fail is what each call of verbs asks first: whether the card is gone.
static inline bool calls_fail(struct ibv_context *c)
{
	if (__builtin_expect(scheduled, false))
		count_call(c);
	return cut_off(c);
}

// control.c

void obey(const char *request, char *answer, size_t size);

#pragma GCC visibility pop

#endif
