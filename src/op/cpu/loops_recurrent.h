/* Inner loops of the convolution and of the gated delta rule. Included by kernels_<isa>.c after
 * loops_rows.h. */

/* m <= LANES channels from c */
INLINE void conv1d_silu_step(void *y, const void *const *in, const float *w, int64_t taps,
                             int64_t n, int64_t c, int64_t m, enum dtype act)
{
    vf sum = v_get(w, c, m, DT_F32) * v_get(in[0], c, m, act);
    for (int64_t j = 1; j < taps; j++)
        sum = v_fma(v_get(w + j * n, c, m, DT_F32), v_get(in[j], c, m, act), sum);
    v_put(y, c, m, act, v_silu(sum));
}

INLINE void conv1d_silu_act(void *y, const void *const *in, const float *w, int64_t taps, int64_t n,
                            enum dtype act)
{
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES)
        conv1d_silu_step(y, in, w, taps, n, c, LANES, act);
    if (c < n)
        conv1d_silu_step(y, in, w, taps, n, c, n - c, act);
}

static void conv1d_silu(void *y, const void *const *in, const float *w, int64_t taps, int64_t n,
                        enum dtype act)
{
    BY_ACT(act, conv1d_silu_act(y, in, w, taps, n, DT_BF16),
           conv1d_silu_act(y, in, w, taps, n, DT_F32));
}

INLINE void l2norm_act(float *y, const void *x, int64_t n, double factor, enum dtype act)
{
    vf scale = v_set((float)(factor / sqrt(sum_squares(x, n, act) + 1e-6)));
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        v_put(y, i, m, DT_F32, v_get(x, i, m, act) * scale);
    }
}

static void l2norm(float *y, const void *x, int64_t n, double factor, enum dtype act)
{
    BY_ACT(act, l2norm_act(y, x, n, factor, DT_BF16), l2norm_act(y, x, n, factor, DT_F32));
}

enum { DELTA_VECTORS = DELTA_COLS / LANES };

/* kv += decayed row of S times k */
INLINE void delta_read(vf kv[DELTA_VECTORS], const float *row, vf decay, float k)
{
    UNROLL for (int c = 0; c < DELTA_VECTORS; c++) kv[c] =
        v_fma(decay * v_load(row + c * LANES), v_set(k), kv[c]);
}

/* The row becomes decayed row + k d; o += that times *q, unless q is NULL. */
INLINE void delta_write(vf o[DELTA_VECTORS], float *row, vf decay, float k, const float *q,
                        const vf d[DELTA_VECTORS])
{
    UNROLL for (int c = 0; c < DELTA_VECTORS; c++)
    {
        vf x = v_fma(v_set(k), d[c], decay * v_load(row + c * LANES));
        v_store(row + c * LANES, x);
        if (q)
            o[c] = v_fma(x, v_set(*q), o[c]);
    }
}

/* Two passes over the block a row: S^T k on the decayed S, then the update fused with S^T q. Even and
 * odd k are summed apart, for twice the chains of additions. */
INLINE void delta_rows_with(const struct delta_block *b, bool has_o)
{
    for (int64_t t = 0; t < b->n_rows; t++) {
        const float *k = b->k + t * b->dk, *q = b->q + t * b->dk;
        vf decay = v_set(b->decay[t]), beta = v_set(b->beta[t]);
        vf even[DELTA_VECTORS], odd[DELTA_VECTORS], d[DELTA_VECTORS];
        UNROLL for (int c = 0; c < DELTA_VECTORS; c++) even[c] = odd[c] = (vf){0};
        int64_t i = 0;
        for (; i + 2 <= b->dk; i += 2) {
            delta_read(even, b->S + i * DELTA_COLS, decay, k[i]);
            delta_read(odd, b->S + (i + 1) * DELTA_COLS, decay, k[i + 1]);
        }
        if (i < b->dk)
            delta_read(even, b->S + i * DELTA_COLS, decay, k[i]);
        UNROLL for (int c = 0; c < DELTA_VECTORS; c++)
        {
            int64_t at = t * b->v_stride + c * LANES, m = v_left(b->n_cols, c * LANES);
            vf v = {0};
            if (m > 0)
                v = b->act == DT_BF16 ? v_get(b->v, at, m, DT_BF16) : v_get(b->v, at, m, DT_F32);
            d[c] = beta * (v - (even[c] + odd[c]));
            even[c] = odd[c] = (vf){0};
        }
        for (i = 0; i + 2 <= b->dk; i += 2) {
            delta_write(even, b->S + i * DELTA_COLS, decay, k[i], has_o ? q + i : NULL, d);
            delta_write(odd, b->S + (i + 1) * DELTA_COLS, decay, k[i + 1], has_o ? q + i + 1 : NULL,
                        d);
        }
        if (i < b->dk)
            delta_write(even, b->S + i * DELTA_COLS, decay, k[i], has_o ? q + i : NULL, d);
        UNROLL for (int c = 0; c < DELTA_VECTORS; c++)
        {
            int64_t m = v_left(b->n_cols, c * LANES);
            if (has_o && m > 0)
                v_put(b->o + t * b->o_stride, c * LANES, m, DT_F32, even[c] + odd[c]);
        }
    }
}

static void delta_rows(const struct delta_block *b)
{
    if (b->o)
        delta_rows_with(b, true);
    else
        delta_rows_with(b, false);
}
