/* Small tokenizer files for tests: a byte-level vocabulary with two merges and one added token, any
 * part of which can be replaced. */
#ifndef LATHE_TESTS_SMALL_TOKENIZER_H
#define LATHE_TESTS_SMALL_TOKENIZER_H

#include "base/buf.h"

/* JSON texts; NULL takes the sound one. */
struct small_tokenizer {
    const char *head; /* further members of the root, each with a comma behind */
    const char *normalizer, *pre_tokenizer;
    const char *model; /* further members of the model, likewise; the sound one: "type":"BPE", */
    const char
        *vocab; /* members; '%' stands for the 256 bytes, ids 0 to 255. "ab" 256, "abc" 257 */
    const char *merges; /* a b, ab c */
    const char *added;  /* <x> 260, special */
    const char *config; /* for the caller: tokenizer_config.json */
};

/* Appends tokenizer.json. */
void small_tokenizer_write(struct buf *out, const struct small_tokenizer *parts);

#endif
