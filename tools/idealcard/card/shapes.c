// Manners by which cards refuse to make things, or take their time.

#include "card.h"

#include <errno.h>
#include <time.h>

// The limits of families of cards: 0 is the card's own.
static const struct {
	uint32_t max_wr, max_cqe, max_sge, max_inline;
} families[] = {
	[MLX5] = {32768, 4194303, 0, 0},
	[BNXT_RE] = {0, 0, 0, 96},
	[IRDMA] = {4063, 1048575, 0, 101},
	[QEDR] = {32767, 0, 0, 128},
	[HNS] = {32767, 4194303, 0, 32},
	[ERDMA] = {8192, 0, 0, 96},
};

static void lower(uint32_t *limit, uint32_t to)
{
	if (to && to < *limit)
		*limit = to;
}

// limit gives a card the limits of a family, if the manner is that of one.
void limit(struct card *c, enum manner m)
{
	if (m == INLINE_NONE)
		c->max_inline = 0;
	if (m >= sizeof families / sizeof *families)
		return;
	lower(&c->max_wr, families[m].max_wr);
	lower(&c->max_cqe, families[m].max_cqe);
	lower(&c->max_sge, families[m].max_sge);
	lower(&c->max_inline, families[m].max_inline);
}

// slot is the size in bytes of a slot of mlx5's send queue: for all operations it has room to bind a memory window.
static uint64_t slot(uint32_t sge, uint32_t inline_data, uint64_t operations)
{
	enum { BIND = 192, WRITE = 32, SEGMENT = 16, INLINE_HEADER = 4, BLOCK = 64 };
	const uint64_t writes = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND;
	uint64_t gathers = sge * SEGMENT, inlines = inline_data ? (INLINE_HEADER + inline_data + SEGMENT - 1) / SEGMENT * SEGMENT : 0;
	uint64_t overhead = operations && !(operations & ~writes) ? WRITE : BIND;
	return (overhead + (gathers > inlines ? gathers : inlines) + BLOCK - 1) / BLOCK * BLOCK;
}

static uint64_t queue_memory(uint32_t sends, uint32_t inline_data, uint32_t receives) { return sends * (64ull + inline_data) + receives * 16ull; }

// runs_short reports whether the queues of this process would have more memory than there is.
static bool runs_short(const struct ibv_qp_cap *cap)
{
	uint64_t used = queue_memory(cap->max_send_wr, cap->max_inline_data, cap->max_recv_wr);
	take_control();
	for (struct queue_pair *q = fabric->queue_pairs; q; q = q->next)
		if (q->process == self)
			used += queue_memory(q->send_size, q->max_inline, q->receive_size);
	release_control();
	return used > 65536;
}

// refuses_shape reports whether a card refuses to make a queue pair that is within its limits, or
// with BNXT_RE one that is not, and sets errno as the card does.
bool refuses_shape(const struct card *c, const struct ibv_qp_cap *cap, uint64_t operations)
{
	static const int shortages[] = {ENOMEM, EPERM, EAGAIN}, refusals[] = {0, EIO, EINVAL};
	errno = EINVAL;
	if (has(c, NO_QUEUE_PAIR)) {
		errno = refusals[fabric->seed % 3];
		return true;
	}
	if (has(c, BNXT_RE) && cap->max_inline_data > c->max_inline) {
		errno = fabric->seed % 2 ? 0 : EIO;
		return true;
	}
	if (has(c, SHORTAGE) && runs_short(cap)) {
		errno = shortages[fabric->seed % 3];
		return true;
	}
	return has(c, MLX5) && cap->max_send_wr * slot(cap->max_send_sge, cap->max_inline_data, operations) > 32768 * 64;
}

// grant sets how much inline data a queue pair has, where that is not what was asked for. It may be
// said to be more than any card has.
void grant(const struct card *c, struct ibv_qp_cap *cap)
{
	uint32_t asked = cap->max_inline_data, granted[] = {0, asked / 2, UINT32_MAX};
	if (has(c, INLINE_GRANTED))
		cap->max_inline_data = granted[fabric->seed % 3];
}

void slow_registration(const struct card *c, size_t length)
{
	struct timespec t = {.tv_sec = length / 1000000000, .tv_nsec = length % 1000000000};
	if (has(c, SLOW_REGISTRATION))
		nanosleep(&t, NULL);
}

// slow_queue_pair takes 20 ms to make or to destroy a queue pair, one after the other of all processes.
void slow_queue_pair(struct card *c)
{
	const uint64_t takes = 20000000;
	if (!has(c, SLOW_QUEUE_PAIRS))
		return;
	uint64_t now = nanoseconds(), last = atomic_load(&c->busy_until), end;
	do
		end = (last > now ? last : now) + takes;
	while (!atomic_compare_exchange_weak(&c->busy_until, &last, end));
	struct timespec t = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}
