/* Byte pair encoding: adjacent symbols are merged, the pair of the lowest rank first and the leftmost
 * of equals, until no pair is in the table. O(n log n) in the bytes of one split. */
#ifndef LATHE_TEXT_BPE_H
#define LATHE_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct bpe_merge { /* left, right -> result; left < 0 marks a free place of the table */
    int32_t left, right;
    int32_t rank, result;
};

struct bpe {
    int32_t byte_id[256];    /* the symbol of a single byte, -1: none */
    struct bpe_merge *table; /* open addressing; 1 << bits places, at most half of them used */
    int32_t bits;
};

/* A table for up to n_merges merges; byte_id is all -1. */
lathe_status bpe_init(struct bpe *b, size_t n_merges, lathe_error *err);
void bpe_release(struct bpe *b); /* also of a zeroed struct */
/* A pair that is added again takes the later rank. */
void bpe_add(struct bpe *b, const struct bpe_merge *m);

struct bpe_symbol;
struct bpe_work { /* one thread's workspace, kept between calls; ready when zeroed */
    struct bpe_symbol *symbol;
    uint64_t *heap;
    size_t cap_symbol, cap_heap, n_heap;
    /* The result: token i has id[i] and begins at byte at[i]. */
    int32_t *id;
    uint32_t *at;
    size_t n, cap_id, cap_at;
};

/* Encodes one split, n < 2^31, whose bytes all have a symbol. The result stays until the next call. */
lathe_status bpe_encode(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                        lathe_error *err);
void bpe_work_release(struct bpe_work *w);

#endif
