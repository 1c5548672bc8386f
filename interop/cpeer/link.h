// A link and its streams. All of it is in one thread, which calls serve again and again.

#ifndef CPEER_LINK_H
#define CPEER_LINK_H

#include "wire.h"

#include <netinet/in.h>
#include <rdma/rdma_cma.h>

enum {
	STREAMS = 64,      // numbers of streams on a link are less
	DEPTH = 64,        // D: receives for data
	SENDS = 64,        // work requests of the send queue
	RECEIVES = DEPTH + CONTROL_RECEIVES,
	RING_SIZE = 16 << 10,
	LARGE_RING = 64 << 10, // that is offered once the first was full
	OUT_SIZE = 32 << 10,   // bytes of a stream that wait to be sent, or to be acknowledged
	CONTROL_BUFFERS = 16,  // of 256 bytes: more than there are SENDs under way
};

struct stream {
	enum { FREE, OPENING, IN_USE } stage;
	int number;
	uint64_t serial; // of all streams

	// What arrives.
	struct region ring, before, offer; // before is drained first; offer is not taken yet; size 0: none
	uint64_t received, consumed, advertised, base;
	int end; // FIN or RESET, once it has arrived

	// What is sent.
	struct region to, to_offer;
	uint64_t accepted, posted, completed, credited, to_base;
	int sent_end;

	// Records that are due.
	bool open, accept, ring_offer, finack, reset;
	bool grown, finack_sent, finack_received;

	bool close;                     // the application has written all
	uint64_t app_sent, app_received;
};

// A message is on the send queue, or waits to be sent again.
struct message {
	enum { DATA, SEND, LINK_CREDIT } kind;
	uint64_t number; // of its kind on the link, from 1
	struct stream *stream;
	uint64_t serial;
	uint32_t what;                     // of the immediate
	uint32_t local, length;            // in the link's out memory
	uint64_t addr;                     // of data, at the peer
	uint32_t rkey;                     // the same
	uint8_t records[RECORDS * RECORD]; // of a SEND
};

// A pair is a queue pair with its connection.
struct pair {
	struct rdma_cm_id *id;
	struct link *link;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *rings, *out, *mailbox;
	uint8_t *slots;              // of the mailbox
	unsigned next_in, next_out;  // slots
	uint64_t peer_mailbox;
	uint32_t peer_mailbox_key;
	int receives; // posted
	int under_way; // work requests of the send queue
	int apart;     // of those the first, which are no messages of link.queue: keys
	bool established, failed;
	struct resumption resumption;
	double made;
	struct pair *next;
};

struct counts {
	uint64_t data, records;
};

struct link {
	bool active;
	enum { SETTING_UP, UP, SEEKING, MOVING, ENDED } stage;
	const char *lost; // why, until it is dealt with
	struct pair *pair;
	struct pair *attempt, *arrival; // while it is SEEKING
	struct sockaddr_storage local, remote;

	uint8_t *rings, *out; // memory that the peer may write to, and the rest
	struct stream streams[STREAMS];
	unsigned turn; // of the streams, for data

	uint32_t peer_depth;
	struct counts sent, acked, received, told;
	struct message queue[SENDS + DEPTH]; // a ring of messages that have not completed
	unsigned first, count;
	bool credit_under_way;
	unsigned control; // the next buffer

	bool goaway, goaway_sent, goaway_received; // the first: it is due
	struct {
		int number, reason;
	} refusals[256];
	int refused;

	// Going on over another queue pair.
	bool resume, keys_sent, keys_received;
	uint64_t number;
	uint8_t secret[16];
	uint16_t peer_port;
	uint32_t made, answered, taken;
	double lost_at, next_try, nobody_since;
	int moves;
	struct link *next;
};

// What the program is to do, and is told.
struct options {
	bool requests;        // ask for another queue pair, and not only wait for the peer to ask
	bool resume;          // offer to go on over another
	unsigned version;     // in hellos
	void (*ready)(struct stream *s);    // the stream has begun, has bytes, room or an end
	void (*up)(struct link *l);         // the first stream may be used
	void (*ended)(struct link *l, const char *why);
};
extern struct options options;

extern struct link *links;

// listen_at listens at an address, and returns the port.
uint16_t listen_at(const char *host, const char *port);

struct link *dial(const char *host, const char *port);

// open_stream begins another stream, of the side that has dialed.
struct stream *open_stream(struct link *l);

// serve waits for something to happen, a tenth of a second at most, and does what is due.
void serve(void);

struct link *link_of(struct stream *s);

// stream_read takes bytes that have arrived.
size_t stream_read(struct stream *s, uint8_t *to, size_t n);

// stream_room is how many bytes stream_write takes.
size_t stream_room(struct stream *s);
void stream_write(struct stream *s, const uint8_t *from, size_t n);

// lose_pair has the link lose its queue pair.
void lose_pair(struct link *l);

// post_message posts what may break the protocol: bytes to the mailbox, or to a ring.
void post_message(struct link *l, uint32_t what, const uint8_t *bytes, uint32_t n, uint64_t addr, uint32_t rkey);

// put_header writes the totals that each SEND has.
void put_header(struct link *l, uint8_t *to);

double now(void);

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
