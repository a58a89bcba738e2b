/* Drafters: proposals for the tokens that follow a sequence. A drafter proposes and keeps a context of its
 * own per slot; it never touches the target's state, and whatever it proposes the output is the same. The
 * engine verifies, accepts and commits (verify.h) and then tells the drafter what was committed.
 *
 * Words: the frontier F of a slot is the number of tokens whose effects the target's state holds; the
 * anchor is the newest token, sampled and not yet committed, at position F; the drafts follow it at F + 1,
 * F + 2 ... */
#ifndef LATHE_SPEC_DRAFTER_H
#define LATHE_SPEC_DRAFTER_H

#include "model/forward.h"
#include "op/memory.h"
#include "sample/sample.h"

enum { SPEC_MAX_DRAFT = 15 }; /* of any drafter: a verify batch has up to 16 rows a sequence */

struct drafter_options {
    const struct model *model; /* the target's, as are the next four; all borrowed */
    const struct backend *backend;
    void *stream;
    const struct id_set *ids;       /* what may be sampled: nothing else is proposed */
    struct sample_scratch *scratch; /* of the thread that calls the drafter */
    enum dtype act, kv;             /* dtypes of activations and of the target's keys and values */
    int32_t n_slots, n_ctx;
    int32_t max_rows; /* that committed() gets at once */
    const char
        *dir; /* the drafter's own checkpoint; NULL: it is part of the target's, or has none */
};

/* Where a proposal comes from: statistics and limits are kept apart, because they differ so much. DRAFT_SOURCES itself: from
 * no drafter. */
enum draft_source { DRAFT_MODEL, DRAFT_LOOKUP, DRAFT_SOURCES };

/* What a drafter wants to be told, and can give. Valid as long as the drafter. */
struct drafter_info {
    int32_t max_draft;               /* tokens it can propose at once, <= SPEC_MAX_DRAFT */
    int32_t usual_draft;             /* drafts a round where nothing else is asked for */
    int32_t max_from[DRAFT_SOURCES]; /* the same of each of its sources, 0: it has no such source */
    int32_t usual_from[DRAFT_SOURCES];
    int32_t n_taps;     /* layers whose hidden states it reads; 0: none */
    const int32_t *tap; /* [n_taps], ascending */
    bool has_law;       /* fills draft_request.law */
};

/* Rows that became part of a slot's sequence, in order and without gaps: a chunk of the prompt, or the
 * accepted rows of a round. */
struct committed {
    int32_t slot, pos; /* pos: of the first row */
    int32_t n;
    const int32_t *token;  /* [n] */
    struct tensor hidden;  /* [n, hidden] act, after the target's final norm */
    struct tensor feature; /* [n, n_taps * hidden] act */
};

/* A proposal's law, where it is kept for rejection sampling. */
struct draft_law {
    int32_t n;
    struct candidate *q; /* [n]: id and weight, the weights being probabilities */
};

struct draft_request {
    int32_t slot;
    int32_t pos; /* F: position of the anchor */
    int32_t anchor;
    int32_t most; /* drafts wanted, 1 .. max_draft */
    /* For a combination: the most from each of its parts; 0: as many as it usually gives, -1: none. */
    int32_t most_from[DRAFT_SOURCES];
    /* History and settings of the request. Drafts are chosen by sampler_pick on the drafter's logits, with
     * the drafts before as draft[0 .. i): so they share filters, penalties and noise with the target's own
     * choice. `history` is the sequence up to and with the anchor. */
    struct sampler *sampler;
    const int32_t *history; /* [pos + 1] */
    struct draft_law *law;  /* [most], its arrays with room for n_vocab; NULL: not wanted */
    /* Filled by propose. */
    int32_t draft[SPEC_MAX_DRAFT];
    int32_t n; /* 0 .. most */
    enum draft_source source;
};

struct drafter; /* each implementation's own */

/* What a round leaves of its rows, kept or not. */
struct round_rows {
    struct tensor hidden;  /* [>= T, hidden] act, after the target's final norm */
    struct tensor feature; /* [>= T, n_taps * hidden] act */
};

struct drafter_ops {
    const char *name; /* "mtp" */
    /* Takes nothing of the backend. Refuses a checkpoint that does not fit the target with both numbers. */
    lathe_status (*open)(struct drafter **d, const struct drafter_options *o, lathe_error *err);
    /* Takes what it needs for contexts of n_ctx positions, whatever the options said. Over a memory that
     * measures any number of times; then once over one that does not, after which, and after memory_load,
     * the functions below may be called. */
    lathe_status (*place)(struct drafter *d, int32_t n_ctx, struct memory *m, lathe_error *err);
    void (*close)(struct drafter *d); /* NULL is allowed */
    void (*info)(const struct drafter *d, struct drafter_info *out);
    lathe_status (*committed)(struct drafter *d, const struct committed *c, lathe_error *err);
    /* For n slots, each at most once. Allocates nothing. Proposing less than wanted, or nothing, is
     * allowed. */
    lathe_status (*propose)(struct drafter *d, struct draft_request *r, int32_t n,
                            lathe_error *err);
    /* Rounds that the device decides; NULL, all of these: it knows none. Before the first of them, which have `most` rows
     * at most, with r as resident_at made it: fills in what it runs in its block, sends what else operators read, which
     * lies in *home (bytes 0: nothing does). False if it cannot. */
    bool (*ready)(struct drafter *d, struct resident *r, int32_t most, struct home *home);
    /* Rounds that are launched from now on stay below end_pos. */
    lathe_status (*reach)(struct drafter *d, int32_t slot, int32_t end_pos, lathe_error *err);
    /* What `committed` does with the rows that the last round kept; then the drafts of the next, of n_rows rows, to `there`,
     * which is r where the operators are: chosen by r->choice with the penalties of h, as the target's tokens are, which are
     * among the n_best <= CHOICE_MOST best of a row. r is what they are checked with. */
    lathe_status (*draft)(struct drafter *d, const struct resident *r, struct resident *there,
                          int32_t n_rows, int32_t n_best, const struct history *h,
                          const struct round_rows *last, int32_t end_pos, lathe_error *err);
    /* The last round that was launched has told it of these, of which only slot, pos, n and token are there. */
    void (*followed)(struct drafter *d, const struct committed *c);
    /* Would it propose to r what rounds of the device do not? NULL: never. */
    bool (*differs)(struct drafter *d, struct draft_request *r);
    /* Forgets what it knows of a slot's positions n and above; n = 0 makes it that of an empty
     * sequence. */
    void (*rewind)(struct drafter *d, int32_t slot, int32_t n);
    /* The context of a slot as bytes: what the sequence determines and nothing else, so that equal
     * sequences give equal bytes however they were cut. Appends to `out`. */
    lathe_status (*save)(const struct drafter *d, int32_t slot, struct buf *out, lathe_error *err);
    lathe_status (*load)(struct drafter *d, int32_t slot, const void *bytes, size_t n,
                         lathe_error *err);
};

/* drafters.c: by name, NULL if there is none; and all names, "mtp, dflash2, ...", as far as there is room. A
 * name with "+ngram" is that drafter beside n-gram lookup. */
const struct drafter_ops *drafter_named(const char *name);
void drafter_names(char *out, size_t room);
/* Opens, places and loads in one, for the options' context. */
lathe_status drafter_open(const struct drafter_ops *ops, struct drafter **d,
                          const struct drafter_options *o, struct memory *m, lathe_error *err);

extern const struct drafter_ops drafter_mtp;
extern const struct drafter_ops drafter_ngram;
extern const struct drafter_ops
    drafter_dflash2; /* DFlash v1 and DSpark checkpoints too, by their config */
extern const struct drafter_ops drafter_mtp_ngram, drafter_dflash2_ngram; /* combine.c */

#endif
