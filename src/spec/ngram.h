/* What the n-gram drafter tells beyond the interface of drafters, for combinations. */
#ifndef LATHE_SPEC_NGRAM_H
#define LATHE_SPEC_NGRAM_H

#include "spec/drafter.h"

enum {
    NGRAM_MIN = 3,      /* tokens that must match before anything is proposed */
    NGRAM_STRONG = 12,  /* a match of so many is a copy rather than a coincidence */
    NGRAM_LONGEST = 64, /* matches are not measured further */
};

/* Length of the match that the slot's last proposal continues, at most NGRAM_LONGEST; 0: nothing was
 * proposed. Depends on the history only. */
int32_t ngram_match(const struct drafter *d, int32_t slot);

#endif
