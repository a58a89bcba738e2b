/* What a tokenizer holds; for its reader (tokenizer_json.c) and its user (tokenizer.c). */
#ifndef LATHE_TEXT_TOKENIZER_DATA_H
#define LATHE_TEXT_TOKENIZER_DATA_H

#include "base/arena.h"
#include "base/json.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

enum token_kind { TOKEN_NONE, TOKEN_NORMAL, TOKEN_ADDED, TOKEN_SPECIAL };

struct token_place { /* the bytes of one id in `bytes` */
    uint32_t at;
    uint32_t n : 24, kind : 8; /* kind: enum token_kind */
};

struct tokenizer {
    struct token_place *token; /* [n_ids] */
    int32_t n_ids;
    char *bytes; /* of all tokens, one after another */
    size_t n_bytes, cap_bytes;
    struct bpe bpe;
    struct added_tokens added; /* their contents lie in `arena` */
    struct arena arena;
    struct pretokenizer *split;
    bool nfc;
};

/* In tokenizer_json.c: fills a zeroed tokenizer whose arena is ready; what a failure leaves is
 * released by tokenizer_close. */
lathe_status tokenizer_read(struct tokenizer *t, const struct json_doc *doc,
                            const struct json_doc *config, lathe_error *err);

#endif
