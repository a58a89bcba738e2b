/* Attention in tiles of keys, split at absolute positions. A row and head's result is made of one sum
 * per split of ATTENTION_SPLIT keys (tiles in ascending order, online softmax), added to each other in
 * ascending order. Who computes which split, and which rows share a tile, changes nothing in it.
 * Keys and values in E4M3 become BF16 a tile at a time, which changes no number. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "op/cpu/cpu.h"

enum {
    QUERIES = 96, /* of one block: 16 rows of 6 heads; their sums (96 KiB) stay in L2 */
    HEADS = 16,   /* kv heads of one block at most */
    /* With at most this many rows, splits are spread over the threads; more rows are work enough. */
    SPREAD_ROWS = 16,
    WAVE_BYTES = 8 << 20, /* of split sums in flight */
};
_Static_assert((int)OP_MAX_GROUP <= (int)QUERIES, "a block holds a row");

/* Rows of one sequence times the query heads of some kv heads. */
struct block {
    int64_t n_rows, row, slot, pos, kv_head, n_kv_heads;
};

/* Of some queries over one split. */
struct sums {
    float *max, *sum; /* [n] */
    float *o;         /* [n, head_dim] */
};

struct job {
    const struct cpu *cpu;
    const struct attention_args *a;
    int64_t n_kv, group, hd; /* kv heads, query heads of each, head_dim */
    int64_t rows_per_block, heads_per_block, n_blocks;
    int64_t n_splits; /* of the longest row */
    unsigned char *threads;
    size_t thread_bytes,
        sums_bytes;           /* of a thread; of its scores and sums, behind which tiles of E4M3
                                        are expanded */
    float *all_max, *all_sum; /* [T, n_heads] */
    float *wave;              /* [wave_splits][T * n_heads * (head_dim + 2)] */
    int64_t wave_splits, wave_first;
    _Atomic int64_t next;
};

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The job's parts in scratch; returns the bytes they take. */
static size_t lay_out(struct job *j, const struct cpu *cpu, const struct attention_args *a)
{
    const struct tensor *k = &a->kv->k;
    int64_t T = a->q.dim[0];
    j->cpu = cpu;
    j->a = a;
    j->n_kv = k->dim[2];
    j->hd = k->dim[3];
    j->group = a->q.dim[1] / j->hd / j->n_kv;
    j->rows_per_block = least(T, QUERIES / j->group);
    int64_t queries = j->rows_per_block * j->group, heads = j->n_kv * j->group;
    j->sums_bytes = whole_lines((size_t)(queries * (j->hd + ATTENTION_TILE + 2)) * sizeof(float));
    j->thread_bytes = j->sums_bytes;
    if (k->dtype == DT_F8_E4M3)
        j->thread_bytes += whole_lines((size_t)(2 * ATTENTION_TILE * j->hd) * sizeof(uint16_t));
    size_t used = j->thread_bytes * (size_t)pool_threads(cpu->pool);
    unsigned char *base = a->scratch.data;
    j->threads = base;
    size_t total = whole_lines((size_t)(T * heads) * sizeof(float));
    if (base) {
        j->all_max = (float *)(void *)(base + used);
        j->all_sum = (float *)(void *)(base + used + total);
        j->wave = (float *)(void *)(base + used + 2 * total);
    }
    used += 2 * total;
    /* More rows take no less scratch than fewer, so that planning for the most covers all. */
    size_t split = (size_t)(least(T, SPREAD_ROWS) * heads * (j->hd + 2)) * sizeof(float);
    int64_t ctx = a->kv->pages_per_slot * k->dim[1];
    size_t splits = (size_t)((ctx + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT);
    size_t in_flight = 1 + WAVE_BYTES / split;
    j->wave_splits = T > SPREAD_ROWS ? 0 : (int64_t)(splits < in_flight ? splits : in_flight);
    used += whole_lines(splits < in_flight ? splits * split : WAVE_BYTES + split);
    return used;
}

size_t cpu_attention_scratch(const void *stream, const struct attention_args *a)
{
    struct job j = {0};
    return lay_out(&j, stream, a);
}

/* Block i: sequences in order, their rows cut into blocks, kv heads fastest. */
static struct block block_at(const struct job *j, int64_t i)
{
    const struct batch *b = j->a->b;
    int64_t head_cuts = j->n_kv / j->heads_per_block, cut = i / head_cuts;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const struct batch_seq *seq = &b->seq[s];
        int64_t cuts = (seq->n_rows + j->rows_per_block - 1) / j->rows_per_block;
        if (cut < cuts) {
            int64_t first = cut * j->rows_per_block;
            return (struct block){
                .n_rows = least(seq->n_rows - first, j->rows_per_block),
                .row = seq->first_row + first,
                .slot = seq->slot,
                .pos = seq->pos + first,
                .kv_head = i % head_cuts * j->heads_per_block,
                .n_kv_heads = j->heads_per_block,
            };
        }
        cut -= cuts;
    }
    return (struct block){0};
}

/* Rows of a tile of keys. */
static void find_rows(const struct kv_pages *kv, const struct block *b, int64_t kv_head,
                      int64_t first, int64_t n_keys, const void **key, const void **value)
{
    int64_t page = kv->k.dim[1], n_kv = kv->k.dim[2], hd = kv->k.dim[3];
    int64_t at = first / page, in_page = first % page;
    const int32_t *table = kv->page_table + b->slot * kv->pages_per_slot;
    size_t size = dtype_size(kv->k.dtype);
    for (int64_t i = 0; i < n_keys; i++) {
        size_t offset = (size_t)((in_page * n_kv + kv_head) * hd) * size;
        key[i] = (const unsigned char *)tensor_at(&kv->k, table[at]) + offset;
        value[i] = (const unsigned char *)tensor_at(&kv->v, table[at]) + offset;
        if (++in_page == page) {
            in_page = 0;
            at++;
        }
    }
}

/* Where the tile behind `first` lies, if in one page. A block of all kv heads wants all of it soon, and
 * its heads' turns ask for it in the order of memory, which wakes the hardware's own prefetching: rows of
 * one head, some KiB apart, do not (7 GB/s where 12 are reached at one row and long contexts). */
static void look_ahead(const struct job *j, const struct block *b, int64_t kv_head, int64_t first,
                       struct attention_tile *t)
{
    const struct kv_pages *kv = j->a->kv;
    int64_t page = kv->k.dim[1], n_kv = kv->k.dim[2];
    size_t row = (size_t)j->hd * dtype_size(kv->k.dtype);
    first += ATTENTION_TILE;
    if (page % ATTENTION_TILE != 0 || first >= b->pos + b->n_rows)
        return;
    int32_t at = kv->page_table[b->slot * kv->pages_per_slot + first / page];
    bool all = b->n_kv_heads == n_kv;
    size_t offset =
        (size_t)(first % page * n_kv) * row + (size_t)kv_head * row * (all ? ATTENTION_TILE : 1);
    t->ahead_key = (const unsigned char *)tensor_at(&kv->k, at) + offset;
    t->ahead_value = (const unsigned char *)tensor_at(&kv->v, at) + offset;
    t->ahead_stride = row * (size_t)(all ? 1 : n_kv);
    t->ahead_size = dtype_size(kv->k.dtype);
}

/* Rows of E4M3 codes to BF16 in *to, which moves on. */
static void expand(const struct job *j, const void **rows, int64_t n_keys, uint16_t **to)
{
    for (int64_t i = 0; i < n_keys; i++, *to += j->hd) {
        j->cpu->kernels.convert(*to, DT_BF16, rows[i], DT_F8_E4M3, j->hd);
        rows[i] = *to;
    }
}

/* Adds one tile of keys to the sums of the block's rows and one kv head's queries. Rows that see all of
 * the tile go together, the others one by one. */
static void tile_sums(const struct job *j, const struct block *b, int64_t kv_head, int64_t first,
                      float *p, const struct sums *out)
{
    const void *key[ATTENTION_TILE], *value[ATTENTION_TILE];
    size_t head = (size_t)j->hd * dtype_size(j->a->q.dtype); /* bytes */
    int64_t n_keys = least(ATTENTION_TILE, b->pos + b->n_rows - first);
    enum dtype kv = j->a->kv->k.dtype;
    find_rows(j->a->kv, b, kv_head, first, n_keys, key, value);
    if (kv == DT_F8_E4M3) {
        uint16_t *to = (uint16_t *)(void *)((unsigned char *)p + j->sums_bytes);
        expand(j, key, n_keys, &to);
        expand(j, value, n_keys, &to);
        kv = DT_BF16;
    }
    for (int64_t r = 0; r < b->n_rows;) {
        int64_t sees = least(ATTENTION_TILE, b->pos + r + 1 - first);
        int64_t n_rows = sees < ATTENTION_TILE ? 1 : b->n_rows - r;
        const void *q[QUERIES];
        for (int64_t i = 0; i < n_rows * j->group; i++)
            q[i] = (const unsigned char *)tensor_at(&j->a->q, b->row + r + i / j->group) +
                   (size_t)(kv_head * j->group + i % j->group) * head;
        size_t at = (size_t)(r * j->group);
        struct attention_tile t = {
            .q = q,
            .key = key,
            .value = value,
            .n_q = n_rows * j->group,
            .n_keys = sees,
            .head_dim = j->hd,
            .scale = j->a->scale,
            .p = p,
            .max = out->max + at,
            .sum = out->sum + at,
            .o = out->o + at * (size_t)j->hd,
            .act = j->a->q.dtype,
            .kv = kv,
        };
        if (r == 0)
            look_ahead(j, b, kv_head, first, &t);
        if (sees > 0)
            j->cpu->kernels.attention_tile(&t);
        r += n_rows;
    }
}

/* Sums of the block over the keys of one split that each row may see; out[h] is of its kv head h. */
static void split_sums(const struct job *j, const struct block *b, int64_t split, float *p,
                       const struct sums *out)
{
    int64_t n_q = b->n_rows * j->group;
    for (int64_t h = 0; h < b->n_kv_heads; h++) {
        for (int64_t i = 0; i < n_q; i++) {
            out[h].max[i] = -INFINITY;
            out[h].sum[i] = 0;
        }
        memset(out[h].o, 0, (size_t)(n_q * j->hd) * sizeof(float));
    }
    int64_t end = least((split + 1) * ATTENTION_SPLIT, b->pos + b->n_rows); /* of keys */
    for (int64_t first = split * ATTENTION_SPLIT; first < end; first += ATTENTION_TILE)
        for (int64_t h = 0; h < b->n_kv_heads; h++)
            tile_sums(j, b, b->kv_head + h, first, p, &out[h]);
}

/* Splits that row r of the block reaches into. */
static int64_t splits_of(const struct block *b, int64_t r)
{
    return (b->pos + r) / ATTENTION_SPLIT + 1;
}

/* Adds a split's sums to those of the splits before it, which lie in o, all_max and all_sum. */
static void merge(const struct job *j, int64_t row, int64_t head, int64_t split, float max,
                  float sum, const float *o)
{
    size_t i = (size_t)(row * j->n_kv * j->group + head);
    float *all = (float *)tensor_at(&j->a->o, row) + head * j->hd;
    if (split == 0) {
        j->all_max[i] = max;
        j->all_sum[i] = sum;
        memcpy(all, o, (size_t)j->hd * sizeof *o);
    } else {
        j->cpu->kernels.attention_merge(&j->all_max[i], &j->all_sum[i], all, max, sum, o, j->hd);
    }
}

static void finish(const struct job *j, int64_t row, int64_t head)
{
    j->cpu->kernels.attention_finish((float *)tensor_at(&j->a->o, row) + head * j->hd,
                                     j->all_sum[row * j->n_kv * j->group + head], j->hd);
}

/* Whole blocks, the longest first, as threads become free. */
static void whole_blocks(void *ctx, int32_t thread, int32_t n_threads)
{
    struct job *j = ctx;
    (void)n_threads;
    int64_t queries = j->rows_per_block * j->group;
    float *p = (float *)(void *)(j->threads + (size_t)thread * j->thread_bytes);
    struct sums sums = {.o = p + queries * ATTENTION_TILE};
    sums.max = sums.o + queries * j->hd;
    sums.sum = sums.max + queries;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (i >= j->n_blocks)
            return;
        struct block b = block_at(j, j->n_blocks - 1 - i);
        for (int64_t split = 0; split < splits_of(&b, b.n_rows - 1); split++) {
            if (cpu_is_left(j->cpu, thread))
                return;
            split_sums(j, &b, split, p, &sums);
            for (int64_t n = 0; n < b.n_rows * j->group; n++)
                if (split < splits_of(&b, n / j->group))
                    merge(j, b.row + n / j->group, b.kv_head * j->group + n % j->group, split,
                          sums.max[n], sums.sum[n], sums.o + n * j->hd);
        }
        for (int64_t n = 0; n < b.n_rows * j->group; n++)
            finish(j, b.row + n / j->group, b.kv_head * j->group + n % j->group);
    }
}

/* Where a split of the current wave lies for a block: queries of all rows of one kv head side by side,
 * so that a block's are contiguous. */
static struct sums wave_sums(const struct job *j, int64_t split, int64_t row, int64_t kv_head)
{
    int64_t T = j->a->q.dim[0], n = T * j->n_kv * j->group;
    float *base = j->wave + (split - j->wave_first) * n * (j->hd + 2);
    int64_t at = (kv_head * T + row) * j->group;
    return (struct sums){base + n * j->hd + at, base + n * (j->hd + 1) + at, base + at * j->hd};
}

static void wave_splits(void *ctx, int32_t thread, int32_t n_threads)
{
    struct job *j = ctx;
    (void)n_threads;
    int64_t n = least(j->wave_splits, j->n_splits - j->wave_first);
    float *p = (float *)(void *)(j->threads + (size_t)thread * j->thread_bytes);
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (i >= j->n_blocks * n)
            return;
        struct block b = block_at(j, i % j->n_blocks);
        int64_t split = j->wave_first + i / j->n_blocks;
        if (split >= splits_of(&b, b.n_rows - 1))
            continue;
        struct sums out[HEADS];
        for (int64_t h = 0; h < b.n_kv_heads; h++)
            out[h] = wave_sums(j, split, b.row, b.kv_head + h);
        split_sums(j, &b, split, p, out);
    }
}

static void wave_merge(void *ctx, int32_t thread, int32_t n_threads)
{
    struct job *j = ctx;
    const struct batch *b = j->a->b;
    int64_t heads = j->n_kv * j->group, begin, end;
    pool_share(j->a->q.dim[0] * heads, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / heads, head = i % heads, g = head % j->group;
        int64_t n = b->pos[row] / ATTENTION_SPLIT + 1;
        int64_t last = least(n, j->wave_first + j->wave_splits);
        for (int64_t split = j->wave_first; split < last; split++) {
            struct sums s = wave_sums(j, split, row, head / j->group);
            merge(j, row, head, split, s.max[g], s.sum[g], s.o + g * j->hd);
        }
        if (j->wave_first < n && n <= j->wave_first + j->wave_splits)
            finish(j, row, head);
    }
}

lathe_status cpu_attention(void *stream, const struct attention_args *a, lathe_error *err)
{
    struct job j = {0};
    size_t need = lay_out(&j, stream, a);
    if ((size_t)tensor_elements(&a->scratch) < need)
        return fail(err, LATHE_E_ARGUMENT, "scratch of %lld bytes, expected %zu",
                    (long long)tensor_elements(&a->scratch), need);
    int64_t keys = 0, cuts = 0, n_threads = pool_threads(j.cpu->pool);
    for (int32_t s = 0; s < a->b->n_seqs; s++) {
        const struct batch_seq *seq = &a->b->seq[s];
        int64_t end = (int64_t)seq->pos + seq->n_rows;
        int64_t splits = (end + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT;
        cuts += (seq->n_rows + j.rows_per_block - 1) / j.rows_per_block;
        j.n_splits = splits > j.n_splits ? splits : j.n_splits;
        keys += end * seq->n_rows;
    }
    int64_t work = keys * a->q.dim[1];
    j.heads_per_block = 1;
    if (j.wave_splits == 0 || j.n_splits == 1) {
        j.n_blocks = cuts * j.n_kv;
        cpu_run(j.cpu, work, whole_blocks, &j);
        return LATHE_OK;
    }
    /* All heads of a split together, if that leaves work for all threads: memory is read in order. */
    if (j.n_kv <= HEADS && cuts * least(j.n_splits, j.wave_splits) >= 4 * n_threads)
        j.heads_per_block = j.n_kv;
    j.n_blocks = cuts * (j.n_kv / j.heads_per_block);
    for (; j.wave_first < j.n_splits; j.wave_first += j.wave_splits) {
        j.next = 0;
        cpu_run(j.cpu, work, wave_splits, &j);
        cpu_run(j.cpu, work, wave_merge, &j);
    }
    return LATHE_OK;
}
