/* Attention of blocks over a ring and themselves. Keys come in tiles that begin at multiples of
 * ATTENTION_TILE positions, ascending; the block's own begin with its first row. A query's sums do not
 * depend on which rows it shares a tile or a thread with. */
#include <math.h>
#include <string.h>

#include "op/cpu/cpu.h"

enum { QUERIES = 96 }; /* of one item: their sums (48 KiB at head_dim 128) stay in L2 */
_Static_assert((int)OP_MAX_GROUP <= (int)QUERIES, "an item holds a row");

struct job {
    const struct cpu *cpu;
    const struct block_attention_args *a;
    int64_t n_kv, group, hd; /* kv heads, query heads of each, head_dim */
    int64_t max_rows;        /* of an item */
    int64_t n_items;
    size_t thread_bytes;
};

/* Rows of one sequence times the query heads of one kv head, with room for their work. */
struct item {
    const struct batch_seq *seq;
    int64_t row, n_rows, kv_head; /* row: in the sequence */
    float *p, *max, *sum, *o;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void shape(struct job *j, const struct cpu *cpu, const struct block_attention_args *a)
{
    *j = (struct job){.cpu = cpu, .a = a};
    j->n_kv = a->ring->k.dim[2];
    j->hd = a->ring->k.dim[3];
    j->group = a->q.dim[1] / j->hd / j->n_kv;
    j->max_rows = QUERIES / j->group;
    size_t n = (size_t)(j->max_rows * j->group * (j->hd + ATTENTION_TILE + 2)) * sizeof(float);
    j->thread_bytes = (n + 63) & ~(size_t)63;
}

size_t cpu_block_attention_scratch(const void *stream, const struct block_attention_args *a)
{
    struct job j;
    const struct cpu *cpu = stream;
    shape(&j, cpu, a);
    return j.thread_bytes * (size_t)pool_threads(cpu->pool);
}

/* Item i: sequences in order, their rows cut into items, kv heads fastest. */
static struct item item_at(const struct job *j, int64_t i)
{
    const struct batch *b = j->a->b;
    int64_t cut = i / j->n_kv;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        int64_t rows = b->seq[s].n_rows, cuts = (rows + j->max_rows - 1) / j->max_rows;
        if (cut < cuts)
            return (struct item){
                .seq = &b->seq[s],
                .row = cut * j->max_rows,
                .n_rows = least(rows - cut * j->max_rows, j->max_rows),
                .kv_head = i % j->n_kv,
            };
        cut -= cuts;
    }
    return (struct item){0};
}

static void place(const struct job *j, struct item *it, unsigned char *memory)
{
    int64_t n = j->max_rows * j->group;
    it->p = (float *)(void *)memory;
    it->o = it->p + n * ATTENTION_TILE;
    it->max = it->o + n * j->hd;
    it->sum = it->max + n;
}

/* Up to ATTENTION_TILE keys and values at positions first ... end - 1, and what to prefetch. */
struct keys {
    int64_t first, end;
    const void *key[ATTENTION_TILE], *value[ATTENTION_TILE];
    const unsigned char *ahead_key, *ahead_value;
    size_t ahead_stride;
    enum dtype dtype;
};

/* Rows [row, row + n_rows) of the item, which see the keys at positions [from, to). */
static void see(const struct job *j, const struct item *it, const struct keys *k, int64_t row,
                int64_t n_rows, int64_t from, int64_t to)
{
    size_t head = (size_t)j->hd * dtype_size(j->a->q.dtype); /* bytes */
    int64_t n = n_rows * j->group, at = row * j->group;
    const void *q[QUERIES];
    for (int64_t i = 0; i < n; i++)
        q[i] = (const unsigned char *)tensor_at(&j->a->q,
                                                it->seq->first_row + it->row + row + i / j->group) +
               (size_t)(it->kv_head * j->group + i % j->group) * head;
    struct attention_tile t = {
        .q = q,
        .key = k->key + (from - k->first),
        .value = k->value + (from - k->first),
        .ahead_key = row ? NULL : k->ahead_key,
        .ahead_value = row ? NULL : k->ahead_value,
        .ahead_stride = k->ahead_stride,
        .ahead_size = dtype_size(k->dtype),
        .n_q = n,
        .n_keys = to - from,
        .head_dim = j->hd,
        .scale = j->a->scale,
        .p = it->p + at * ATTENTION_TILE,
        .max = it->max + at,
        .sum = it->sum + at,
        .o = it->o + at * j->hd,
        .act = j->a->q.dtype,
        .kv = k->dtype,
    };
    j->cpu->kernels.attention_tile(&t);
}

/* The keys for all rows. Neighbours that see the same ones go together. */
static void tile(const struct job *j, const struct item *it, const struct keys *k)
{
    int64_t window = j->a->window, pos = it->seq->pos + it->row;
    for (int64_t r = 0, next; r < it->n_rows; r = next) {
        int64_t from = most(k->first, pos + r - window + 1), to = least(k->end, pos + r + window);
        for (next = r + 1; next < it->n_rows; next++)
            if (most(k->first, pos + next - window + 1) != from ||
                least(k->end, pos + next + window) != to)
                break;
        if (to > from)
            see(j, it, k, r, next - r, from, to);
    }
}

static void context(const struct job *j, const struct item *it)
{
    const struct kv_ring *ring = j->a->ring;
    size_t row = (size_t)(j->n_kv * j->hd) * dtype_size(ring->k.dtype); /* bytes */
    size_t head = (size_t)(it->kv_head * j->hd) * dtype_size(ring->k.dtype);
    const unsigned char *keys = (const unsigned char *)tensor_at(&ring->k, it->seq->slot) + head;
    const unsigned char *values = (const unsigned char *)tensor_at(&ring->v, it->seq->slot) + head;
    int64_t size = ring->k.dim[1], end = it->seq->pos;
    int64_t oldest = most(ring->first[it->seq->slot], end + it->row - (int64_t)j->a->window + 1);
    struct keys k = {.ahead_stride = row, .dtype = ring->k.dtype};
    for (k.first = oldest; k.first < end; k.first = k.end) {
        k.end = least(end, (k.first / ATTENTION_TILE + 1) * ATTENTION_TILE);
        for (int64_t i = k.first; i < k.end; i++) {
            k.key[i - k.first] = keys + (size_t)(i % size) * row;
            k.value[i - k.first] = values + (size_t)(i % size) * row;
        }
        /* The rows after these, unless the ring ends between: a kv head's keys lie apart, which the
         * hardware does not see coming. */
        bool more = k.end + ATTENTION_TILE <= end && k.end % size + ATTENTION_TILE <= size;
        k.ahead_key = more ? keys + (size_t)(k.end % size) * row : NULL;
        k.ahead_value = more ? values + (size_t)(k.end % size) * row : NULL;
        tile(j, it, &k);
    }
}

static void own_rows(const struct job *j, const struct item *it)
{
    const struct batch_seq *seq = it->seq;
    size_t head = (size_t)(it->kv_head * j->hd) * dtype_size(j->a->k.dtype);
    struct keys k = {.dtype = j->a->k.dtype};
    for (int64_t s = 0; s < seq->n_rows; s += ATTENTION_TILE) {
        int64_t next = least(seq->n_rows, s + ATTENTION_TILE), row = seq->first_row;
        for (int64_t i = s; i < next; i++) {
            k.key[i - s] = (const unsigned char *)tensor_at(&j->a->k, row + i) + head;
            k.value[i - s] = (const unsigned char *)tensor_at(&j->a->v, row + i) + head;
        }
        k.first = seq->pos + s;
        k.end = seq->pos + next;
        tile(j, it, &k);
    }
}

static void items(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct block_attention_args *a = j->a;
    int64_t begin, end;
    pool_share(j->n_items, 1, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        struct item it = item_at(j, i);
        place(j, &it, (unsigned char *)a->scratch.data + (size_t)thread * j->thread_bytes);
        int64_t n = it.n_rows * j->group, row = it.seq->first_row + it.row;
        for (int64_t q = 0; q < n; q++) {
            it.max[q] = -INFINITY;
            it.sum[q] = 0;
        }
        memset(it.o, 0, (size_t)(n * j->hd) * sizeof(float));
        context(j, &it);
        own_rows(j, &it);
        for (int64_t q = 0; q < n; q++) {
            size_t at = (size_t)((it.kv_head * j->group + q % j->group) * j->hd);
            unsigned char *o = tensor_at(&a->o, row + q / j->group);
            j->cpu->kernels.attention_finish(it.o + q * j->hd, it.sum[q], j->hd);
            j->cpu->kernels.convert(o + at * dtype_size(a->o.dtype), a->o.dtype, it.o + q * j->hd,
                                    DT_F32, j->hd);
        }
    }
}

lathe_status cpu_block_attention(void *stream, const struct block_attention_args *a,
                                 lathe_error *err)
{
    struct job j;
    const struct cpu *cpu = cpu_of(stream);
    shape(&j, cpu, a);
    int64_t threads = pool_threads(cpu->pool), longest = 1, keys = 0;
    size_t need = j.thread_bytes * (size_t)threads;
    if ((size_t)tensor_elements(&a->scratch) < need)
        return fail(err, LATHE_E_ARGUMENT, "scratch of %lld bytes, expected %zu",
                    (long long)tensor_elements(&a->scratch), need);
    for (int32_t s = 0; s < a->b->n_seqs; s++) {
        longest = most(longest, a->b->seq[s].n_rows);
        keys += a->b->seq[s].n_rows *
                (least(a->b->seq[s].pos, a->ring->k.dim[1]) + a->b->seq[s].n_rows);
    }
    /* An item for every thread, if need be of few rows, each of which reads the keys anew. */
    int64_t heads = j.n_kv * a->b->n_seqs, cuts = (threads + heads - 1) / heads;
    j.max_rows = least(j.max_rows, (longest + cuts - 1) / cuts);
    for (int32_t s = 0; s < a->b->n_seqs; s++)
        j.n_items += (a->b->seq[s].n_rows + j.max_rows - 1) / j.max_rows * j.n_kv;
    cpu_run(cpu, keys * a->q.dim[1], items, &j);
    return LATHE_OK;
}
