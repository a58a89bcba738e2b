/* Inner loops of attention. Included by kernels_<isa>.c after loops_rows.h.
 *
 * A tile's scores, weights and sums are blocks of queries x keys and queries x dims held in registers,
 * so that each loaded key or value serves several queries; a query's own sums do not depend on the
 * block it is in. Scores: lanes along head_dim, summed at the end. Sums of values: lanes along
 * head_dim, keys in ascending order. */

#if defined(__AVX512F__) || defined(__aarch64__)
enum { BLOCK_Q = 6 }; /* 32 registers: 6 x 4 sums, 4 keys, 1 query */
#else
enum { BLOCK_Q = 2 };
#endif
enum { BLOCK_K = 4, BLOCK_D = 4 };

/* Into L2: what is wanted next. */
INLINE void prefetch_ahead(const struct attention_tile *t, const unsigned char *ahead, int64_t k,
                           int64_t d, int64_t q0)
{
    if (q0 == 0 && ahead)
        __builtin_prefetch(ahead + (size_t)k * t->ahead_stride + (size_t)d * t->ahead_size, 0, 2);
}

/* acc[i][j] += query i times key j over m <= LANES dims from d */
INLINE void scores_step(vf acc[BLOCK_Q][BLOCK_K], const struct attention_tile *t, int64_t q0,
                        int64_t k0, int n_q, int n_k, int64_t d, int64_t m, enum dtype act,
                        enum dtype kv)
{
    vf key[BLOCK_K];
    UNROLL for (int j = 0; j < n_k; j++)
    {
        key[j] = v_get(t->key[k0 + j], d, m, kv);
        prefetch_ahead(t, t->ahead_key, k0 + j, d, q0);
    }
    UNROLL for (int i = 0; i < n_q; i++)
    {
        vf q = v_get(t->q[q0 + i], d, m, act);
        UNROLL for (int j = 0; j < n_k; j++) acc[i][j] = v_fma(q, key[j], acc[i][j]);
    }
}

#if defined(__AVX512BF16__)
/* Up to 32 BF16 values; the mask's other lanes are 0. */
INLINE __m512bh pairs_at(const void *p, int64_t i, __mmask32 mask)
{
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, (const uint16_t *)p + i);
}

/* The same with BF16 dot products: pairs of dims, products exact, sums in F32. */
INLINE void scores_pairs(vf acc[BLOCK_Q][BLOCK_K], const struct attention_tile *t, int64_t q0,
                         int64_t k0, int n_q, int n_k, int64_t d, __mmask32 mask)
{
    __m512bh key[BLOCK_K];
    UNROLL for (int j = 0; j < n_k; j++)
    {
        key[j] = pairs_at(t->key[k0 + j], d, mask);
        prefetch_ahead(t, t->ahead_key, k0 + j, d, q0);
    }
    UNROLL for (int i = 0; i < n_q; i++)
    {
        __m512bh q = pairs_at(t->q[q0 + i], d, mask);
        UNROLL for (int j = 0; j < n_k; j++) acc[i][j] =
            (vf)_mm512_dpbf16_ps((__m512)acc[i][j], q, key[j]);
    }
}
#endif

INLINE void scores_block(const struct attention_tile *t, int64_t q0, int64_t k0, int n_q, int n_k,
                         enum dtype act, enum dtype kv)
{
    int64_t hd = t->head_dim, d = 0;
    vf acc[BLOCK_Q][BLOCK_K];
    UNROLL for (int i = 0; i < BLOCK_Q; i++) UNROLL for (int j = 0; j < BLOCK_K; j++) acc[i][j] =
        (vf){0};
#if defined(__AVX512BF16__)
    if (act == DT_BF16 && kv == DT_BF16) {
        for (; d + 32 <= hd; d += 32)
            scores_pairs(acc, t, q0, k0, n_q, n_k, d, ~(__mmask32)0);
        if (d < hd)
            scores_pairs(acc, t, q0, k0, n_q, n_k, d, ((__mmask32)1 << (hd - d)) - 1);
        d = hd;
    }
#endif
    for (; d + LANES <= hd; d += LANES)
        scores_step(acc, t, q0, k0, n_q, n_k, d, LANES, act, kv);
    if (d < hd)
        scores_step(acc, t, q0, k0, n_q, n_k, d, hd - d, act, kv);
    UNROLL for (int i = 0; i < n_q; i++)
    {
        float *p = t->p + (q0 + i) * ATTENTION_TILE + k0;
        v4 sum = v_sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]) * t->scale;
        memcpy(p, &sum, (size_t)n_k * sizeof *p);
    }
}

INLINE void scores_rows(const struct attention_tile *t, int64_t q0, int n_q, enum dtype act,
                        enum dtype kv)
{
    int64_t k = 0;
    for (; k + BLOCK_K <= t->n_keys; k += BLOCK_K)
        scores_block(t, q0, k, n_q, BLOCK_K, act, kv);
    for (; k < t->n_keys; k++)
        scores_block(t, q0, k, n_q, 1, act, kv);
}

INLINE void scores_of(const struct attention_tile *t, enum dtype act, enum dtype kv)
{
    int64_t q = 0;
    for (; q + BLOCK_Q <= t->n_q; q += BLOCK_Q)
        scores_rows(t, q, BLOCK_Q, act, kv);
    for (; q < t->n_q; q++)
        scores_rows(t, q, 1, act, kv);
}

static void scores(const struct attention_tile *t)
{
    if (t->kv == DT_BF16)
        BY_ACT(t->act, scores_of(t, DT_BF16, DT_BF16), scores_of(t, DT_F32, DT_BF16));
    else
        BY_ACT(t->act, scores_of(t, DT_BF16, DT_F32), scores_of(t, DT_F32, DT_F32));
}

/* e^(x - max), where a maximum of -infinity (nothing but such scores so far) counts as 0. */
INLINE vf weight(vf x, float max)
{
    return v_exp(x - v_set(max == -INFINITY ? 0 : max));
}

/* Scores of query i to weights; returns the factor of what was summed before. */
INLINE float softmax_step(const struct attention_tile *t, int64_t i)
{
    float *p = t->p + i * ATTENTION_TILE;
    float max = t->max[i];
    for (int64_t k = 0; k < t->n_keys; k++)
        max = p[k] > max ? p[k] : max;
    float factor = weight(v_set(t->max[i]), max)[0];
    vf sum = {0};
    for (int64_t k = 0; k < t->n_keys; k += LANES) {
        int64_t m = v_left(t->n_keys, k);
        vf w = weight(v_get(p, k, m, DT_F32), max);
        v_put(p, k, m, DT_F32, w);
        sum += v_get(p, k, m, DT_F32); /* without the lanes behind the last key */
    }
    t->max[i] = max;
    t->sum[i] = t->sum[i] * factor + v_sum(sum);
    return factor;
}

INLINE void values_block(const struct attention_tile *t, const float *factor, int64_t q0,
                         int64_t d0, int n_q, int n_d, int64_t m, enum dtype kv)
{
    int64_t hd = t->head_dim;
    vf acc[BLOCK_Q][BLOCK_D];
    UNROLL for (int i = 0; i < n_q; i++) UNROLL for (int j = 0; j < n_d; j++) acc[i][j] =
        v_get(t->o, (q0 + i) * hd + d0 + j * LANES, m, DT_F32) * v_set(factor[q0 + i]);
    for (int64_t k = 0; k < t->n_keys; k++) {
        vf value[BLOCK_D];
        UNROLL for (int j = 0; j < n_d; j++)
        {
            value[j] = v_get(t->value[k], d0 + j * LANES, m, kv);
            prefetch_ahead(t, t->ahead_value, k, d0 + j * LANES, q0);
        }
        UNROLL for (int i = 0; i < n_q; i++)
        {
            vf p = v_set(t->p[(q0 + i) * ATTENTION_TILE + k]);
            UNROLL for (int j = 0; j < n_d; j++) acc[i][j] = v_fma(p, value[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < n_q; i++) UNROLL for (int j = 0; j < n_d; j++)
        v_put(t->o, (q0 + i) * hd + d0 + j * LANES, m, DT_F32, acc[i][j]);
}

INLINE void values_rows(const struct attention_tile *t, const float *factor, int64_t q0, int n_q,
                        enum dtype kv)
{
    int64_t d = 0;
    for (; d + BLOCK_D * LANES <= t->head_dim; d += BLOCK_D * LANES)
        values_block(t, factor, q0, d, n_q, BLOCK_D, LANES, kv);
    for (; d < t->head_dim; d += LANES)
        values_block(t, factor, q0, d, n_q, 1, v_left(t->head_dim, d), kv);
}

INLINE void values_of(const struct attention_tile *t, const float *factor, int64_t n_q,
                      enum dtype kv)
{
    int64_t q = 0;
    for (; q + BLOCK_Q <= n_q; q += BLOCK_Q)
        values_rows(t, factor, q, BLOCK_Q, kv);
    for (; q < n_q; q++)
        values_rows(t, factor, q, 1, kv);
}

static void attention_weights_and_values(const struct attention_tile *t)
{
    enum { STEP = 96 };
    float factor[STEP];
    struct attention_tile s = *t;
    for (int64_t q = 0; q < t->n_q; q += STEP) {
        s.n_q = t->n_q - q < STEP ? t->n_q - q : STEP;
        s.p = t->p + q * ATTENTION_TILE;
        s.max = t->max + q;
        s.sum = t->sum + q;
        s.o = t->o + q * t->head_dim;
        for (int64_t i = 0; i < s.n_q; i++)
            factor[i] = softmax_step(&s, i);
        if (t->kv == DT_BF16)
            values_of(&s, factor, s.n_q, DT_BF16);
        else
            values_of(&s, factor, s.n_q, DT_F32);
    }
}

static void attention_tile(const struct attention_tile *t)
{
    scores(t);
    attention_weights_and_values(t);
}

static void attention_merge(float *all_max, float *all_sum, float *all_o, float max, float sum,
                            const float *o, int64_t n)
{
    float top = *all_max > max ? *all_max : max;
    float old = weight(v_set(*all_max), top)[0], new = weight(v_set(max), top)[0];
    *all_max = top;
    *all_sum = *all_sum * old + sum * new;
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        vf merged =
            v_fma(v_get(o, i, m, DT_F32), v_set(new), v_get(all_o, i, m, DT_F32) * v_set(old));
        v_put(all_o, i, m, DT_F32, merged);
    }
}

static void attention_finish(float *o, float sum, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        v_put(o, i, m, DT_F32, v_get(o, i, m, DT_F32) / v_set(sum));
    }
}
