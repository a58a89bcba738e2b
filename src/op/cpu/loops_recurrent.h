/* Inner loops of the convolution and of the gated delta rule. Included by kernels_<isa>.c after
 * loops_rows.h. */

INLINE void conv1d_silu_act(void *y, const void *const *in, const float *w, int64_t taps, int64_t n,
                            enum dtype act)
{
    for (int64_t c = 0; c < n; c += LANES) {
        int64_t m = v_left(n, c);
        vf sum = v_get(w, c, m, DT_F32) * v_get(in[0], c, m, act);
        for (int64_t j = 1; j < taps; j++)
            sum = v_fma(v_get(w + j * n, c, m, DT_F32), v_get(in[j], c, m, act), sum);
        v_put(y, c, m, act, v_silu(sum));
    }
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

/* Two passes over the block a row: S^T k on the decayed S, then the update fused with S^T q. Even and
 * odd k are summed apart, for twice the chains of additions. */
INLINE void delta_rows_with(const struct delta_block *b, bool has_o)
{
    for (int64_t t = 0; t < b->n_rows; t++) {
        const float *k = b->k + t * b->dk, *q = b->q + t * b->dk;
        vf decay = v_set(b->decay[t]), beta = v_set(b->beta[t]);
        vf kv[2][DELTA_VECTORS] = {{{0}}}, o[2][DELTA_VECTORS] = {{{0}}}, d[DELTA_VECTORS];
        for (int64_t i = 0; i < b->dk; i += 2)
            for (int e = 0; e < 2 && i + e < b->dk; e++)
                for (int c = 0; c < DELTA_VECTORS; c++) {
                    vf x = decay * v_load(b->S + (i + e) * DELTA_COLS + c * LANES);
                    kv[e][c] = v_fma(x, v_set(k[i + e]), kv[e][c]);
                }
        for (int c = 0; c < DELTA_VECTORS; c++) {
            int64_t at = t * b->v_stride + c * LANES, m = v_left(b->n_cols, c * LANES);
            vf v = {0};
            if (m > 0)
                v = b->act == DT_BF16 ? v_get(b->v, at, m, DT_BF16) : v_get(b->v, at, m, DT_F32);
            d[c] = beta * (v - (kv[0][c] + kv[1][c]));
        }
        for (int64_t i = 0; i < b->dk; i += 2)
            for (int e = 0; e < 2 && i + e < b->dk; e++)
                for (int c = 0; c < DELTA_VECTORS; c++) {
                    float *s = b->S + (i + e) * DELTA_COLS + c * LANES;
                    vf x = v_fma(v_set(k[i + e]), d[c], decay * v_load(s));
                    v_store(s, x);
                    if (has_o)
                        o[e][c] = v_fma(x, v_set(q[i + e]), o[e][c]);
                }
        for (int c = 0; c < DELTA_VECTORS; c++) {
            int64_t m = v_left(b->n_cols, c * LANES);
            if (has_o && m > 0)
                v_put(b->o + t * b->o_stride, c * LANES, m, DT_F32, o[0][c] + o[1][c]);
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
