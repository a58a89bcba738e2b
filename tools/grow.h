/* What the files of tools/grow share: the sizes of nano and of the member to be written, the list of
 * tensors to write, and how a row of each comes about. */
#ifndef LATHE_TOOLS_GROW_H
#define LATHE_TOOLS_GROW_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/thread.h"
#include "container/safetensors.h"

/* nano's sizes. Nothing else can be grown: where its layers go depends on them. */
enum {
    NANO_LAYERS = 8,
    NANO_HIDDEN = 320,
    NANO_MLP = 1088,
    NANO_VOCAB = 8192,
    NANO_HEADS = 6,
    NANO_KV_HEADS = 1,
    NANO_HEAD_DIM = 256,
    NANO_GDN_K_HEADS = 2,
    NANO_GDN_V_HEADS = 6,
    NANO_GDN_DIM = 128,
    NANO_TAPS = 5,
    NANO_DRAFT_HEADS = 4,
    NANO_DRAFT_HEAD_DIM = 128,
    NANO_DRAFT_KV_HEADS = 1,
    NANO_DRAFT_LAYERS = 5,
    NANO_CONV_GROUP = 16,
    NANO_RANK = 64,
};

/* A member of the family: what nano's sizes are multiplied by, and where its layers go. The 27B's numbers
 * as examples. */
struct growth {
    int32_t tile;               /* 16: residual stream and MLP */
    int32_t attention;          /* 4: heads, as are the next two */
    int32_t gdn;                /* 8 */
    int32_t draft;              /* 8 */
    int32_t rank;               /* 4: of the drafter's selector */
    int32_t vocab;              /* 248320 rows */
    int32_t n_layers;           /* 64 */
    int32_t n_late;             /* 8: last layers, whose MLPs are like nano's last one */
    int32_t place[NANO_LAYERS]; /* 0, 1, 6, 23, 24, 34, 48, 59 */
    int32_t tap[NANO_TAPS];     /* 5, 19, 33, 47, 61: layers whose output the drafter reads */
};

/* Refuses members that cannot be. */
lathe_status growth_init(struct growth *g, int32_t n_layers, int32_t tile, lathe_error *err);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* How a tensor holds numbers, for what stands in it where nano has nothing. */
enum plane {
    PLANE_PLAIN,       /* BF16 or F32 values */
    PLANE_E4M3,        /* codes with a scale a row */
    PLANE_E2M1,        /* codes with a scale a block */
    PLANE_ROW_SCALE,   /* of PLANE_E4M3 */
    PLANE_BLOCK_SCALE, /* of PLANE_E2M1 */
};

/* Where nano has no entry. */
enum beyond {
    BEYOND_TILE, /* nano's entries again */
    BEYOND_ZERO, /* numbers that are zero, for their input is not */
    BEYOND_ANY,  /* random numbers: what reads them multiplies by zero */
};

/* One axis: parts that follow each other, nano's `from` entries of each becoming `to`. */
enum { MAX_PARTS = 5 };
struct axis {
    int32_t n;
    int64_t from[MAX_PARTS], to[MAX_PARTS];
    enum beyond beyond;
};

struct grown {
    const char *name;
    enum dtype dtype;
    int32_t n_dims;
    int64_t dim[MAX_TENSOR_DIMS];
    enum plane plane;
    const unsigned char *source; /* nano's tensor, row-major; not read unless is_carried */
    bool is_carried;             /* false: all of it is `rows.beyond` */
    struct axis rows;            /* of rows */
    struct axis cols;            /* of bytes of a row */
    int64_t n_rows, row_bytes;
    uint64_t key; /* of its random numbers */
};

struct grown_list {
    struct grown *tensor; /* [n] */
    size_t n;
};

/* The tensors of the grown model and of the grown drafter. What `nano` holds and no rule knows is refused.
 * The lists and, with `as_bf16`, nano's weights expanded to BF16 live in `arena`; everything else points
 * into `nano`. */
lathe_status list_model(struct grown_list *l, const struct checkpoint *nano, const struct growth *g,
                        struct arena *arena, lathe_error *err);
lathe_status list_drafter(struct grown_list *l, const struct checkpoint *nano,
                          const struct growth *g, bool as_bf16, struct arena *arena,
                          lathe_error *err);

/* Before the first grown_rows. */
void fill_init(void);
/* Rows [row, row + n) of t. What comes out depends on t alone, not on how the rows are divided. */
void grown_rows(unsigned char *out, const struct grown *t, int64_t row, int64_t n);

/* ---- Configuration --------------------------------------------------------------------------- */

/* DIR/config.json with the member's sizes, as text; refuses another model than nano. */
lathe_status model_config(struct buf *out, const char *dir, const struct growth *g,
                          lathe_error *err);
/* Sets g->tap from the drafter's own taps. */
lathe_status drafter_config(struct buf *out, const char *dir, struct growth *g, bool as_bf16,
                            lathe_error *err);

/* ---- Folders --------------------------------------------------------------------------------- */

/* A folder to be written: under a temporary name beside its own until it is complete. */
struct folder {
    const char *path;   /* the final one */
    const char *source; /* the folder that small files are copied from */
    struct grown_list list;
    int64_t shard_bytes; /* a shard ends before it gets larger; 0: one file without an index */
    struct buf config;   /* text of config.json */
};

struct progress {
    void (*fn)(void *ctx, int64_t done, int64_t total); /* may be NULL; on the calling thread */
    void *ctx;
    bool (*is_stopped)(void *ctx); /* asked by every thread before each chunk */
};

/* Writes all of them or none: after a failure nothing of them is left. `bytes` takes the sum, `n_files` of
 * each folder the number of its safetensors files. */
lathe_status folders_write(const struct folder *folder, int32_t n, struct pool *pool,
                           const struct progress *progress, int64_t *bytes, int32_t *n_files,
                           lathe_error *err);

#endif
