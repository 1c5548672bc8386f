// Protection domains and memory regions. A key has the region's index and its generation.

#include "card.h"

#include <errno.h>
#include <sched.h>

// permits reports whether a key allows an access to memory.
bool permits(uint32_t key, struct ibv_pd *pd, uint32_t access, uint64_t addr, uint64_t length)
{
	uint32_t index = key >> 8;
	if (unlikely(!key || index >= MAX_MR))
		return false;
	struct region *r = &fabric->regions[index];
	if (unlikely(atomic_load_explicit(&r->key, memory_order_acquire) != key))
		return false;
	uint64_t offset = addr - r->addr;
	return r->pd == pd && (r->access & access) == access && offset <= r->length && length <= r->length - offset;
}

// is_relaxed is for a key that is valid.
bool is_relaxed(uint32_t key) { return fabric->regions[key >> 8].access & IBV_ACCESS_RELAXED_ORDERING; }

// free_index takes the index of a region that is free, or 0. Control is held.
static uint32_t free_index(void)
{
	uint32_t index = fabric->free_regions;
	if (index)
		fabric->free_regions = fabric->regions[index].next_free;
	else if (fabric->used_regions < MAX_MR)
		index = fabric->used_regions++;
	return index;
}

// fork_safe is whether the program asked for that before it made anything.
static bool fork_safe;

int ibv_fork_init(void)
{
	if (held_by(self, CONTEXTS))
		return EINVAL;
	fork_safe = true;
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	bool remote_only = (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE);
	if (calls_fail(pd->context)) {
		errno = EIO;
		return NULL;
	}
	slow_registration(card_of(pd->context), length);
	if (iova != (uintptr_t)addr || !length || remote_only) {
		errno = EINVAL;
		return NULL;
	}
	take_control();
	uint32_t index = held_by(self, REGIONS) < (int)card_of(pd->context)->max_mr ? free_index() : 0;
	if (!index) {
		release_control();
		errno = ENOMEM;
		return NULL;
	}
	struct region *r = &fabric->regions[index];
	r->process = self;
	hold_more(REGIONS, 1);
	r->generation++;
	r->addr = (uintptr_t)addr;
	r->length = length;
	r->access = access;
	r->pd = pd;
	uint32_t key = index << 8 | r->generation;
	struct ibv_mr *mr = allocate(self, sizeof *mr);
	*mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = index, .lkey = key, .rkey = key};
	pd->handle++; // the users of a domain
	atomic_store_explicit(&r->key, key, memory_order_release);
	release_control();
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

// await_copies waits until no request is being executed that may have seen a key. Those of a
// process that has been stopped have either ended or not begun to copy.
static void await_copies(void)
{
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next) {
		uint64_t turns = *(volatile uint64_t *)&q->turns;
		for (unsigned n = 1, holder; (holder = atomic_load(&q->send_lock)) && *(volatile uint64_t *)&q->turns == turns; n++) {
			sched_yield();
			if (holder != self && n % 100 == 0 && (has_ended(holder) || is_stopped(holder)))
				break;
		}
	}
}

void free_region(uint32_t index)
{
	struct region *r = &fabric->regions[index];
	atomic_exchange(&r->key, 0);
	await_copies();
	r->process = 0;
	r->next_free = fabric->free_regions;
	fabric->free_regions = index;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int rc = cut_off(mr->context);
	take_control();
	free_region(mr->handle);
	land_in_process();
	hold_more(REGIONS, -1);
	mr->pd->handle--;
	release_control();
	release(mr);
	return rc;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	if (calls_fail(ctx)) {
		errno = EIO;
		return NULL;
	}
	if (has(card_of(ctx), FORK_COPIES) && !fork_safe) {
		errno = EFAULT;
		return NULL;
	}
	struct ibv_pd *pd = allocate(self, sizeof *pd);
	hold_more(DOMAINS, 1);
	pd->context = ctx;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (pd->handle)
		return EBUSY;
	int rc = cut_off(pd->context);
	hold_more(DOMAINS, -1);
	release(pd);
	return rc;
}
