// Protection domains and memory regions. A key has the region's index and its generation.

#include "card.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

struct region {
	atomic_uint key; // 0: none
	uint32_t access, next_free;
	uint64_t addr, length;
	struct ibv_pd *pd;
	uint8_t generation;
};

static struct region *regions;
static uint32_t used = 1, free_list; // under control

__attribute__((constructor)) static void make_table(void)
{
	size_t size = MAX_MR * sizeof *regions;
	regions = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (regions == MAP_FAILED)
		abort();
}

// permits reports whether a key allows an access to memory.
bool permits(uint32_t key, struct ibv_pd *pd, uint32_t access, uint64_t addr, uint64_t length)
{
	uint32_t index = key >> 8;
	if (unlikely(!key || index >= MAX_MR))
		return false;
	struct region *r = &regions[index];
	if (unlikely(atomic_load_explicit(&r->key, memory_order_acquire) != key))
		return false;
	uint64_t offset = addr - r->addr;
	return r->pd == pd && (r->access & access) == access && offset <= r->length && length <= r->length - offset;
}

// free_index takes the index of a region that is free, or 0. Control is held.
static uint32_t free_index(void)
{
	uint32_t index = free_list;
	if (index)
		free_list = regions[index].next_free;
	else if (used < MAX_MR)
		index = used++;
	return index;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	bool remote_only = (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE);
	if (iova != (uintptr_t)addr || !length || remote_only) {
		errno = EINVAL;
		return NULL;
	}
	pthread_mutex_lock(&control);
	uint32_t index = free_index();
	if (!index) {
		pthread_mutex_unlock(&control);
		errno = ENOMEM;
		return NULL;
	}
	struct region *r = &regions[index];
	r->generation++;
	r->addr = (uintptr_t)addr;
	r->length = length;
	r->access = access;
	r->pd = pd;
	uint32_t key = index << 8 | r->generation;
	struct ibv_mr *mr = malloc(sizeof *mr);
	*mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = index, .lkey = key, .rkey = key};
	pd->handle++; // the users of a domain
	atomic_store_explicit(&r->key, key, memory_order_release);
	pthread_mutex_unlock(&control);
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
}

// await_copies waits until no request is being executed that may have seen a key.
static void await_copies(void)
{
	for (struct queue_pair *q = queue_pairs; q; q = q->next) {
		uint64_t turns = *(volatile uint64_t *)&q->turns;
		while (atomic_load(&q->send_lock) && *(volatile uint64_t *)&q->turns == turns)
			sched_yield();
	}
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&control);
	struct region *r = &regions[mr->handle];
	atomic_exchange(&r->key, 0);
	await_copies();
	mr->pd->handle--;
	r->next_free = free_list;
	free_list = mr->handle;
	pthread_mutex_unlock(&control);
	free(mr);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	pd->context = ctx;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (pd->handle)
		return EBUSY;
	free(pd);
	return 0;
}
