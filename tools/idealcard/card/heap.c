// Memory of the fabric, in blocks whose sizes are powers of two.

#include "card.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALLEST = 7, LARGE = 16, PAGE = 4096 }; // classes, which are exponents of 2; bytes

struct block {
	uint32_t class;
	uint32_t process; // 0: it is free
	struct block *next;
	char memory[] OWN_LINE;
};

static char *heap_start(void) { return (char *)fabric + (sizeof *fabric + PAGE) / PAGE * PAGE; }

static struct block *new_block(unsigned class)
{
	if (!fabric->heap_end)
		fabric->heap_end = heap_start();
	if (fabric->heap_end + (1ull << class) > (char *)fabric + FABRIC_SIZE)
		abort(); // it is as large as what thousands of processes want
	struct block *b = (struct block *)fabric->heap_end;
	b->class = class;
	fabric->heap_end += 1ull << class;
	return b;
}

static char *end_of(struct block *b) { return (char *)b + (1ull << b->class); }

// pages_of and pages_end are where whole pages of a large block begin and end.
static char *pages_of(struct block *b) { return (char *)(((uintptr_t)b->memory + PAGE - 1) / PAGE * PAGE); }
static char *pages_end(struct block *b) { return (char *)((uintptr_t)end_of(b) / PAGE * PAGE); }

// clear makes zeros of what release_block has not.
static void clear(struct block *b)
{
	if (b->class < LARGE) {
		memset(b->memory, 0, end_of(b) - b->memory);
		return;
	}
	memset(b->memory, 0, pages_of(b) - b->memory);
	memset(pages_end(b), 0, end_of(b) - pages_end(b));
}

void *allocate(unsigned process, size_t n)
{
	unsigned class = SMALLEST;
	while ((1ull << class) < n + sizeof(struct block))
		class++;
	spin_lock(&fabric->heap_lock);
	struct block *b = fabric->free_blocks[class];
	if (b)
		fabric->free_blocks[class] = b->next;
	else
		b = new_block(class);
	b->process = process;
	spin_unlock(&fabric->heap_lock);
	clear(b);
	return b->memory;
}

// release_block gives the pages of a large block back to the kernel, which makes zeros of them.
static void release_block(struct block *b)
{
	if (b->class >= LARGE && madvise(pages_of(b), pages_end(b) - pages_of(b), MADV_REMOVE))
		abort();
	spin_lock(&fabric->heap_lock);
	b->process = 0;
	b->next = fabric->free_blocks[b->class];
	fabric->free_blocks[b->class] = b;
	spin_unlock(&fabric->heap_lock);
}

void release(void *memory)
{
	if (memory)
		release_block((struct block *)((char *)memory - offsetof(struct block, memory)));
}

void release_all(unsigned process)
{
	spin_lock(&fabric->heap_lock);
	char *end = fabric->heap_end;
	spin_unlock(&fabric->heap_lock);
	for (char *at = heap_start(); at < end; at += 1ull << ((struct block *)at)->class)
		if (((struct block *)at)->process == process)
			release_block((struct block *)at);
}
