// What goes over the wire, as docs/protocol.md has it.

#ifndef CPEER_WIRE_H
#define CPEER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	VERSION = 3,
	QUARTER = 4,      // Q: credit is due for each quarter of a window
	RECORD_WINDOW = 8, // W: SENDs with records that may be unacknowledged
	RECORD_TURN = 4,  // T: for so many link credit is due
	CONTROL_RECEIVES = RECORD_WINDOW + RECORD_WINDOW / RECORD_TURN + QUARTER, // C
	DATA_LEAVES = RECORD_WINDOW + 2, // S: slots of the send queue
	HELLO = 12,
	HEADER = 16,
	RECORD = 24,
	RECORDS = 10, // in a SEND
	MESSAGE = HEADER + RECORDS * RECORD,
	REQ_MAILBOX = 44, // where it is in private data
	REP_MTU = 183,
	REP_MAILBOX = 184,
	REQ_LEN = REQ_MAILBOX + 12,
	REP_LEN = REP_MAILBOX + 12,
	RESUMPTION = 40,
	REGIONS = 14, // in a SEND with keys
};

enum { DEDICATED = 1, PROOF = 4, RESUME = 8, RESUMPTION_BIT = 0x8000 };

enum { OPEN = 1, ACCEPT, REFUSE, CREDIT, RING, FIN, RESET, FINACK, GOAWAY };

// Reasons to refuse a stream.
enum { ANOTHER_HAS_THE_ADDRESS = 3, NO_MEMORY = 4 };

// Kinds of resumptions.
enum { REQUEST_OF_ACTIVE = 0x8001, REQUEST_OF_PASSIVE = 0xc001, ANSWER_OF_ACTIVE = 0x8002, ANSWER_OF_PASSIVE = 0xc002 };

#define IMM_NEW (1u << 31)
#define IMM_FULL (1u << 30)
#define IMM_SEND (1u << 29)

// immediate has the length of its message, too.
static inline uint32_t immediate(uint32_t what, uint32_t length) { return what | length % 8191 << 16; }

static inline void put(uint8_t *to, int size, uint64_t v)
{
	for (int i = size - 1; i >= 0; i--, v >>= 8)
		to[i] = v;
}

static inline uint64_t get(const uint8_t *from, int size)
{
	uint64_t v = 0;
	for (int i = 0; i < size; i++)
		v = v << 8 | from[i];
	return v;
}

static inline void put_magic(uint8_t *to)
{
	memcpy(to, "rNET", 4);
	put(to + 4, 2, VERSION);
}

// A region is memory that the peer may write to.
struct region {
	uint64_t addr;
	uint32_t size, rkey;
};

static inline void put_ring(uint8_t *record, struct region r)
{
	put(record + 4, 4, r.rkey);
	put(record + 8, 8, r.addr);
	put(record + 16, 4, r.size);
}

static inline struct region get_ring(const uint8_t *record)
{
	return (struct region){get(record + 8, 8), get(record + 16, 4), get(record + 4, 4)};
}

// A resumption asks for another queue pair for a link, or answers.
struct resumption {
	unsigned kind;
	uint64_t link;
	uint32_t attempt, taken;
};

// put_resumption writes a resumption with its code, for which the addresses are mapped to IPv6.
void put_resumption(uint8_t *to, struct resumption r, const uint8_t secret[16], const uint8_t sender[16], const uint8_t receiver[16]);

// is_sealed reports whether the code of a resumption is right.
bool is_sealed(const uint8_t *from, const uint8_t secret[16], const uint8_t sender[16], const uint8_t receiver[16]);

struct resumption get_resumption(const uint8_t *from);

// check_hello returns why the private data of a REQ, or of a REP, is refused, or NULL.
const char *check_hello(const uint8_t *private, size_t length, int type);

// check_record returns why a record is a breach of the protocol, or NULL.
const char *check_record(const uint8_t *record);

// put_reject writes a rejection and returns its length.
size_t put_reject(uint8_t *to, int code, const char *reason);

#endif
