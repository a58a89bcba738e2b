/* The tokenizer of a model directory: byte-level BPE behind NFC and a splitting pattern, with added
 * tokens ("<|im_end|>") that are matched in the raw text first. Read from tokenizer.json and the
 * added_tokens_decoder of tokenizer_config.json; immutable once open, so threads may share it. */
#ifndef LATHE_TEXT_TOKENIZER_H
#define LATHE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"
#include "base/watch.h"

struct tokenizer;

/* From trees that are already read. `config` is the root of tokenizer_config.json; its root may be
 * NULL. Nothing is borrowed from either. */
lathe_status tokenizer_open_json(struct tokenizer **t, const struct json_doc *tokenizer,
                                 const struct json_doc *config, lathe_error *err);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

enum tokenizer_control {
    TOKENIZER_PLAIN,   /* spelled-out added tokens are ordinary text */
    TOKENIZER_CONTROL, /* they become their ids */
};

/* Encodes n bytes of UTF-8. A token's offset is the first byte of the character in which it begins;
 * where NFC composed characters, of the first one it was made of. *out is released with
 * lathe_tokens_release; it is empty after a failure. Invalid UTF-8 names the byte. */
lathe_status tokenizer_encode(const struct tokenizer *t, const char *s, size_t n,
                              enum tokenizer_control mode, lathe_tokens *out, lathe_error *err);

/* The same for text of two origins: an added token is matched only where all of its bytes have
 * trusted[i] != 0. Everything else, also across a change of origin, is encoded as one text. */
lathe_status tokenizer_encode_marked(const struct tokenizer *t, const char *s, size_t n,
                                     const unsigned char *trusted, lathe_tokens *out,
                                     lathe_error *err);

/* One more than the largest id. Ids below may be holes. */
/* The same of either, while `watch` is asked; NULL: it is not. trusted NULL: `control` counts for all bytes. */
lathe_status tokenizer_encode_watched(const struct tokenizer *t, const char *s, size_t n,
                                      bool control, const unsigned char *trusted,
                                      struct watch *watch, lathe_tokens *out, lathe_error *err);

int32_t tokenizer_n_ids(const struct tokenizer *t);
/* Does a token have this id? These are the ids that may be sampled. Any id is allowed. */
bool tokenizer_has(const struct tokenizer *t, int32_t id);
/* The bytes that the token stands for, not necessarily whole characters; NULL if there is none.
 * Valid as long as the tokenizer. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);
/* Is it an added token? */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* Is it an added token flagged "special", which decoded text usually leaves out? <think> is not. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* The id of the added token spelled `content`, -1 if there is none. */
int32_t tokenizer_control_id(const struct tokenizer *t, const char *content);

/* Appends the bytes of the tokens, unchecked for UTF-8. An id without a token is an error. */
lathe_status tokenizer_decode(const struct tokenizer *t, const int32_t *id, size_t n,
                              struct buf *out, lathe_error *err);

#endif
