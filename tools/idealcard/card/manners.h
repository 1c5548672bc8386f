// The manners of cards, by name: what cards do that the ideal one does not. docs/verbs.md has the
// source of each.

#ifndef IDEALCARD_MANNERS_H
#define IDEALCARD_MANNERS_H

// The launcher reads the names here, too.
#define MANNERS(MANNER) \
	MANNER(MLX5, "mlx5") \
	MANNER(BNXT_RE, "bnxt_re") \
	MANNER(IRDMA, "irdma") \
	MANNER(QEDR, "qedr") \
	MANNER(HNS, "hns") \
	MANNER(ERDMA, "erdma") \
	MANNER(MANA, "mana") \
	MANNER(RELAXED_ORDERING, "relaxed-ordering") \
	MANNER(PAYLOAD_OVERTAKEN, "payload-overtaken") \
	MANNER(COMPLETIONS_ANY_ORDER, "completions-any-order") \
	MANNER(SHORT_POLLS, "short-polls") \
	MANNER(EVENTS_COALESCED, "events-coalesced") \
	MANNER(EVENTS_TWICE, "events-twice") \
	MANNER(EVENTS_SPURIOUS, "events-spurious") \
	MANNER(LENGTH_WRONG, "length-wrong") \
	MANNER(RNR, "rnr") \
	MANNER(SLOW_RETRY, "slow-retry") \
	MANNER(SLOW_REGISTRATION, "slow-registration") \
	MANNER(SLOW_QUEUE_PAIRS, "slow-queue-pairs") \
	MANNER(BATCH_CUT, "batch-cut") \
	MANNER(COMM_EST_LATE, "comm-est-late") \
	MANNER(REP_LOST, "rep-lost") \
	MANNER(DREQ_LOST, "dreq-lost") \
	MANNER(ECE_REFUSED, "ece-refused") \
	MANNER(MLX5_INTERNAL_ERROR, "mlx5-internal-error") \
	MANNER(MLX5_CQ_ERROR, "mlx5-cq-error") \
	MANNER(REMOVED, "removed") \
	MANNER(RESET, "reset") \
	MANNER(INLINE_NONE, "inline-none") \
	MANNER(NO_QUEUE_PAIR, "no-queue-pair") \
	MANNER(SHORTAGE, "shortage") \
	MANNER(EMPTY_WRITE_CHECKED, "empty-write-checked") \
	MANNER(FORK_COPIES, "fork-copies") \
	MANNER(GRH_MISSING, "grh-missing") \
	MANNER(INLINE_GRANTED, "inline-granted") \
	MANNER(BNXT_RE_PUSH, "bnxt_re-push") \
	MANNER(STALE_LENGTH, "stale-length") \
	MANNER(HNS_DIRECT_WQE, "hns-direct-wqe") \
	MANNER(STATUS_UNSET, "status-unset") \
	MANNER(EQUAL_GUIDS, "equal-guids") \
	MANNER(ADDR_CHANGE, "addr-change") \
	MANNER(NEIGHBOUR_MOVED, "neighbour-moved") \
	MANNER(STALE_ONCE, "stale-once") \
	MANNER(IWARP, "iwarp") \
	MANNER(MASK_UNSET, "mask-unset")

#define MANNER_NUMBER(number, name) number,
enum manner { MANNERS(MANNER_NUMBER) };

#endif
