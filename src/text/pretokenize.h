/* Cuts a text into the splits within which BPE works. The pattern is the one of tokenizer.json, an
 * Oniguruma expression: every match is a split, and so is what lies between matches. The pattern of
 * this family is matched by hand, any other one by PCRE2. */
#ifndef LATHE_TEXT_PRETOKENIZE_H
#define LATHE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Letters and marks form words with one leading character that is no letter, digit or line break;
 * digits stand alone; other characters run together, with a leading space and line breaks behind. */
extern const char pretokenize_family_pattern[];

struct pretokenizer;

/* Refuses, naming it, syntax that Oniguruma and PCRE2 understand differently. With `by_regex` the
 * family's pattern is run by PCRE2 too. */
lathe_status pretokenizer_open(struct pretokenizer **p, const char *pattern, size_t n,
                               bool by_regex, lathe_error *err);
void pretokenizer_close(struct pretokenizer *p); /* NULL is allowed */

/* Walks over the splits of one text after another; one thread's own. */
struct splitter {
    const struct pretokenizer *p;
    void *match, *context; /* PCRE2's */
    const char *s;         /* [n], valid UTF-8 */
    size_t n, at;          /* s[at..): not handed out yet */
    size_t begin, end;     /* with has_match: the next match; n, n after the last one */
    bool has_match;
    size_t search, last; /* where the next search begins; the end of the match before it */
};

lathe_status splitter_init(struct splitter *w, const struct pretokenizer *p, lathe_error *err);
void splitter_release(struct splitter *w); /* also of a zeroed struct */
void splitter_start(struct splitter *w, const char *s, size_t n);
/* The next split is s[*from..*to); they follow on one another. At the end *from == *to == n. A
 * pattern that takes too many steps is an error. */
lathe_status splitter_next(struct splitter *w, size_t *from, size_t *to, lathe_error *err);

#endif
