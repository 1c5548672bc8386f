#include "wire.h"

#include <openssl/hmac.h>

static void seal(uint8_t code[16], const uint8_t *resumption, const uint8_t secret[16], const uint8_t sender[16], const uint8_t receiver[16])
{
	uint8_t text[24 + 32], sum[32];
	memcpy(text, resumption, 24);
	memcpy(text + 24, sender, 16);
	memcpy(text + 40, receiver, 16);
	HMAC(EVP_sha256(), secret, 16, text, sizeof text, sum, NULL);
	memcpy(code, sum, 16);
}

void put_resumption(uint8_t *to, struct resumption r, const uint8_t secret[16], const uint8_t sender[16], const uint8_t receiver[16])
{
	put_magic(to);
	put(to + 6, 2, r.kind);
	put(to + 8, 8, r.link);
	put(to + 16, 4, r.attempt);
	put(to + 20, 4, r.taken);
	seal(to + 24, to, secret, sender, receiver);
}

bool is_sealed(const uint8_t *from, const uint8_t secret[16], const uint8_t sender[16], const uint8_t receiver[16])
{
	uint8_t code[16];
	seal(code, from, secret, sender, receiver);
	return memcmp(code, from + 24, sizeof code) == 0;
}

struct resumption get_resumption(const uint8_t *from)
{
	return (struct resumption){get(from + 6, 2), get(from + 8, 8), get(from + 16, 4), get(from + 20, 4)};
}

const char *check_hello(const uint8_t *private, size_t length, int type)
{
	if (length < 8 || memcmp(private, "rNET", 4) != 0)
		return "this is no hello of the ringnet protocol";
	if (get(private + 4, 2) != VERSION)
		return "this side speaks version 3 of the ringnet protocol";
	if (length < HELLO + RECORD)
		return "the hello is too short";
	if (get(private + 6, 2) & RESUMPTION_BIT)
		return "this is a resumption";
	uint64_t depth = get(private + 8, 4);
	if (depth < 4 || depth > 65536 || depth % QUARTER != 0)
		return "a number of receives that must not be";
	const uint8_t *record = private + HELLO;
	if (check_record(record) != NULL || record[0] != type || get(record + 1, 3) != 0)
		return "the hello has a record that must not be";
	return NULL;
}

// fields has the offsets and sizes of what a record of each type has.
static const struct {
	int offset, size;
} fields[][4] = {
	[OPEN] = {{4, 16}, {20, 2}},
	[ACCEPT] = {{4, 16}},
	[REFUSE] = {{4, 4}},
	[CREDIT] = {{8, 8}},
	[RING] = {{4, 16}},
	[FIN] = {{8, 8}},
	[RESET] = {{4, 1}, {8, 8}},
	[FINACK] = {{0, 0}},
	[GOAWAY] = {{0, 0}},
};

const char *check_record(const uint8_t *record)
{
	int type = record[0];
	if (type < OPEN || type > GOAWAY)
		return "a record of an unknown type";
	if (get(record + 1, 3) >= 65536 || (type == GOAWAY && get(record + 1, 3) != 0))
		return "a record for a stream that cannot be";
	uint8_t rest[RECORD];
	memcpy(rest, record, RECORD);
	memset(rest, 0, 4);
	for (int i = 0; i < 4; i++)
		memset(rest + fields[type][i].offset, 0, fields[type][i].size);
	for (int i = 0; i < RECORD; i++)
		if (rest[i] != 0)
			return "a record with bits that must be 0";
	struct region ring = get_ring(record);
	if ((type == OPEN || type == ACCEPT || type == RING) &&
	    (ring.size < 4096 || ring.size > 1 << 30 || (ring.size & (ring.size - 1)) != 0))
		return "a ring of a size that cannot be";
	if (type == REFUSE && (get(record + 4, 4) < 1 || get(record + 4, 4) > 5))
		return "an unknown reason to refuse";
	if (type == RESET && record[4] > 1)
		return "a RESET that is neither late nor not";
	return NULL;
}

size_t put_reject(uint8_t *to, int code, const char *reason)
{
	put_magic(to);
	to[6] = code;
	to[7] = strlen(reason);
	memcpy(to + 8, reason, to[7]);
	return 8 + to[7];
}
