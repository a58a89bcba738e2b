#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "text/grow.h"

struct bpe_symbol { /* symbol i begins at byte i of the split; merged into its left one: id -1 */
    int32_t id;
    int32_t prev, next; /* living neighbours; -1 and n at the ends */
};

lathe_status bpe_init(struct bpe *b, size_t n_merges, lathe_error *err)
{
    *b = (struct bpe){.bits = 4};
    memset(b->byte_id, 0xFF, sizeof b->byte_id);
    while (((size_t)1 << b->bits) < n_merges * 2)
        b->bits++;
    size_t bytes = ((size_t)1 << b->bits) * sizeof *b->table;
    b->table = malloc(bytes);
    if (!b->table)
        return fail_memory(err, bytes);
    memset(b->table, 0xFF, bytes);
    return LATHE_OK;
}

void bpe_release(struct bpe *b)
{
    free(b->table);
    b->table = NULL;
}

/* The place of a pair, or the free one where it belongs. */
static struct bpe_merge *find(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    size_t mask = ((size_t)1 << b->bits) - 1;
    size_t i = (size_t)(h >> (64 - b->bits));
    while (b->table[i].left >= 0 && (b->table[i].left != left || b->table[i].right != right))
        i = (i + 1) & mask;
    return &b->table[i];
}

void bpe_add(struct bpe *b, const struct bpe_merge *m)
{
    *find(b, m->left, m->right) = *m;
}

/* The heap orders rank << 32 | position, so that the leftmost of equal pairs comes first. */
static void sift_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t x = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1] < h[child])
            child++;
        if (x <= h[child])
            break;
        h[i] = h[child];
    }
    h[i] = x;
}

static void push(struct bpe_work *w, uint64_t x)
{
    uint64_t *h = w->heap;
    size_t i = w->n_heap++;
    for (; i > 0 && h[(i - 1) / 2] > x; i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = x;
}

static uint64_t pop(struct bpe_work *w)
{
    uint64_t x = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap > 1)
        sift_down(w->heap, w->n_heap, 0);
    return x;
}

/* Queues the pair that begins at symbol i, if the table has it. */
static void queue_pair(const struct bpe *b, struct bpe_work *w, int32_t i, int32_t n)
{
    if (i < 0 || w->symbol[i].next >= n)
        return;
    const struct bpe_merge *m = find(b, w->symbol[i].id, w->symbol[w->symbol[i].next].id);
    if (m->left >= 0)
        push(w, (uint64_t)m->rank << 32 | (uint32_t)i);
}

static lathe_status reserve(struct bpe_work *w, size_t n, lathe_error *err)
{
    struct bpe_symbol *s = grow(w->symbol, &w->cap_symbol, n, sizeof *s);
    if (s)
        w->symbol = s;
    /* At most n - 1 pairs to begin with; each of up to n - 1 merges takes one out and adds two. */
    uint64_t *h = grow(w->heap, &w->cap_heap, 2 * n, sizeof *h);
    if (h)
        w->heap = h;
    int32_t *id = grow(w->id, &w->cap_id, n, sizeof *id);
    if (id)
        w->id = id;
    uint32_t *at = grow(w->at, &w->cap_at, n, sizeof *at);
    if (at)
        w->at = at;
    return s && h && id && at ? LATHE_OK : fail_memory(err, n * sizeof *s);
}

lathe_status bpe_encode(const struct bpe *b, struct bpe_work *w, const char *str, size_t n_bytes,
                        lathe_error *err)
{
    int32_t n = (int32_t)n_bytes;
    w->n = w->n_heap = 0;
    if (n == 0)
        return LATHE_OK;
    lathe_status st = reserve(w, n_bytes, err);
    if (st)
        return st;
    struct bpe_symbol *s = w->symbol;
    for (int32_t i = 0; i < n; i++)
        s[i] = (struct bpe_symbol){b->byte_id[(unsigned char)str[i]], i - 1, i + 1};
    for (int32_t i = 0; i + 1 < n; i++) {
        const struct bpe_merge *m = find(b, s[i].id, s[i + 1].id);
        if (m->left >= 0)
            w->heap[w->n_heap++] = (uint64_t)m->rank << 32 | (uint32_t)i;
    }
    for (size_t i = w->n_heap / 2; i-- > 0;)
        sift_down(w->heap, w->n_heap, i);

    while (w->n_heap) {
        uint64_t top = pop(w);
        int32_t i = (int32_t)(top & 0x7FFFFFFF), j = s[i].next;
        if (s[i].id < 0 || j >= n)
            continue;
        const struct bpe_merge *m = find(b, s[i].id, s[j].id);
        if (m->left < 0 || (uint64_t)m->rank != top >> 32)
            continue; /* a neighbour has changed since the pair was queued */
        s[i].id = m->result;
        s[i].next = s[j].next;
        s[j].id = -1;
        if (s[i].next < n)
            s[s[i].next].prev = i;
        queue_pair(b, w, s[i].prev, n);
        queue_pair(b, w, i, n);
    }
    for (int32_t i = 0; i < n; i = s[i].next) {
        w->id[w->n] = s[i].id;
        w->at[w->n++] = (uint32_t)i;
    }
    return LATHE_OK;
}

void bpe_work_release(struct bpe_work *w)
{
    free(w->symbol);
    free(w->heap);
    free(w->id);
    free(w->at);
    *w = (struct bpe_work){0};
}
