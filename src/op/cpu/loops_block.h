/* Inner loops of the block drafters' operators. Included by kernels_<isa>.c after loops_rows.h. */

INLINE void block_conv_act(const struct block_conv_row *b, enum dtype act)
{
    int64_t width = b->n / b->groups; /* of a group */
    for (int64_t g = 0; g < b->groups; g++)
        for (int64_t c = g * width; c < (g + 1) * width; c += LANES) {
            int64_t m = v_left((g + 1) * width, c);
            vf sum = b->add ? v_get(b->y, c, m, act) : v_set(0);
            for (int64_t j = 0; j < b->taps; j++) {
                vf w = v_get(b->base, j * b->n + c, m, DT_F32) + v_set(b->delta[j * b->groups + g]);
                sum = v_fma(w, v_get(b->in[j], c, m, act), sum);
            }
            v_put(b->y, c, m, act, sum);
        }
}

static void block_conv(const struct block_conv_row *b)
{
    BY_ACT(b->act, block_conv_act(b, DT_BF16), block_conv_act(b, DT_F32));
}

static int64_t first_above(const float *x, int64_t i, int64_t n, float bound)
{
    enum { STEP = 4 * LANES };
    if (bound != bound)
        return n;
    for (; i + STEP <= n; i += STEP) {
        vi any = {0};
        for (int j = 0; j < 4; j++)
            any |= ~(v_load(x + i + j * LANES) <= v_set(bound));
        int32_t lane[LANES], hit = 0;
        memcpy(lane, &any, sizeof lane);
        for (int j = 0; j < LANES; j++)
            hit |= lane[j];
        if (hit)
            break;
    }
    while (i < n && x[i] <= bound)
        i++;
    return i;
}

static float dot(const float *a, const float *b, int64_t n)
{
    vf sum = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t m = v_left(n, i);
        sum = v_fma(v_get(a, i, m, DT_F32), v_get(b, i, m, DT_F32), sum);
    }
    return v_sum(sum);
}
