#include "op_test.h"

enum { LAYERS = 3, SLOTS = 4, SEQS = 2 };

/* Rows of two verified sequences, and how many of each are kept. */
struct commit {
    int32_t verified[SEQS], kept[SEQS];
};

static const struct commit commits[] = {
    {{1, 1}, {1, 1}}, {{4, 3}, {1, 3}}, {{9, 2}, {5, 2}}, {{20, 18}, {17, 2}}};

/* The layers of a part as rows, `step` bytes apart. */
static struct tensor part_of(enum dtype dtype, int64_t n, size_t step)
{
    return op_tensor(dtype, LAYERS, n, (int64_t)(step / dtype_size(dtype)) - n);
}

static size_t step_of(int64_t bytes)
{
    return ((size_t)bytes + 16 + 15) / 16 * 16; /* with a gap, whose guard words must stay */
}

static int32_t sequences(const struct commit *c, struct batch_seq seq[SEQS], struct op_batch *kept)
{
    static const int32_t slot[SEQS] = {2, 0};
    int32_t T = 0;
    op_batch_begin(kept, PHASE_DECODE);
    for (int i = 0; i < SEQS; i++) {
        seq[i] = (struct batch_seq){.slot = slot[i], .first_row = T, .n_rows = c->kept[i]};
        op_batch_add(kept, slot[i], 10 * i, c->kept[i]);
        T += c->verified[i];
    }
    return T;
}

/* The rows that are kept, one behind the other. */
static struct tensor kept_rows(struct tensor rows, const struct batch_seq seq[SEQS])
{
    int64_t n = 0;
    struct tensor all =
        op_tensor(rows.dtype, seq[0].n_rows + (int64_t)seq[1].n_rows, rows.dim[1], 0);
    for (int i = 0; i < SEQS; i++) {
        struct tensor to = tensor_rows(all, n, seq[i].n_rows);
        struct tensor from = tensor_rows(rows, seq[i].first_row, seq[i].n_rows);
        op_set(&to, &from);
        n += seq[i].n_rows;
    }
    return all;
}

/* Every layer's state after the fold has the bits that decoding the kept rows leaves. */
static void check_delta(struct op_env *e, const struct gdn_heads *h, enum dtype act,
                        const struct commit *c)
{
    static struct op_batch b;
    struct batch_seq seq[SEQS];
    struct rng r = {(uint64_t)(h->dk + c->verified[0])};
    int64_t T = sequences(c, seq, &b), n_v = h->n_v_heads, S_size = n_v * h->dk * h->dv;
    int64_t width = 2 * h->n_k_heads * h->dk + n_v * h->dv;
    struct fold_layers layers = {.n = LAYERS,
                                 .state_step = step_of(SLOTS * S_size * 4),
                                 .record_step = step_of(T * (width + n_v) * 4)};
    struct tensor S = part_of(DT_F32, SLOTS * S_size, layers.state_step), want;
    struct tensor qkv = part_of(act, T * width, layers.record_step);
    struct tensor g = part_of(DT_F32, T * n_v, layers.record_step);
    struct tensor beta = part_of(DT_F32, T * n_v, layers.record_step);
    op_case("%s, %d/%d heads of %d x %d, %s, %d of %d rows", e->name, h->n_k_heads, h->n_v_heads,
            h->dk, h->dv, dtype_name(act), c->kept[0], c->verified[0]);
    op_fill_normal(&S, &r, 0, 0.5);
    op_fill_normal(&qkv, &r, 0, 1);
    for (int64_t l = 0; l < LAYERS; l++)
        for (int64_t i = 0; i < T * n_v; i++) {
            op_put(&g, l, i, -2 * rng_unit(&r) * rng_unit(&r));
            op_put(&beta, l, i, rng_unit(&r));
        }
    want = op_copy(&S, DT_F32);
    uint64_t before[] = {op_hash(&qkv), op_hash(&g), op_hash(&beta)};
    op_gated_delta_fold(&e->exec, tensor_4d(S.data, DT_F32, SLOTS, n_v, h->dk, h->dv),
                        tensor_2d(qkv.data, act, T, width), tensor_2d(g.data, DT_F32, T, n_v),
                        tensor_2d(beta.data, DT_F32, T, n_v), h, &layers, seq, SEQS);
    op_check_ok(e);
    CHECK(before[0] == op_hash(&qkv) && before[1] == op_hash(&g) && before[2] == op_hash(&beta));
    for (int64_t l = 0; l < LAYERS; l++) {
        struct tensor rows = kept_rows(tensor_2d(tensor_at(&qkv, l), act, T, width), seq);
        struct tensor gs = kept_rows(tensor_2d(tensor_at(&g, l), DT_F32, T, n_v), seq);
        struct tensor betas = kept_rows(tensor_2d(tensor_at(&beta, l), DT_F32, T, n_v), seq);
        struct tensor o = op_tensor(DT_F32, rows.dim[0], n_v * h->dv, 0);
        op_gated_delta_rule(&e->exec, o, rows, gs, betas,
                            tensor_4d(tensor_at(&want, l), DT_F32, SLOTS, n_v, h->dk, h->dv), h,
                            &b.b);
        op_check_ok(e);
    }
    op_check_same("S", &S, &want);
    op_done();
}

TEST(gated_delta_fold_is_decoding)
{
    static const struct gdn_heads heads[] = {
        {2, 6, 128, 128}, {1, 2, 33, 31}, {1, 3, 8, 65}, {3, 3, 1, 1}};
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (size_t j = 0; j < 4; j++)
            for (size_t k = 0; k < sizeof commits / sizeof commits[0]; k++)
                if (j > 0 || k < 3)
                    check_delta(i < 0 ? op_ref() : &env[i], &heads[j], k % 2 ? DT_F32 : DT_BF16,
                                &commits[k]);
}

static void check_conv(struct op_env *e, int64_t channels, int64_t taps, enum dtype act,
                       const struct commit *c)
{
    static struct op_batch b;
    struct batch_seq seq[SEQS];
    struct rng r = {(uint64_t)(channels + c->verified[0])};
    int64_t T = sequences(c, seq, &b), history = (taps - 1) * channels;
    struct fold_layers layers = {.n = LAYERS,
                                 .state_step = step_of(SLOTS * history * 4),
                                 .record_step = step_of(T * channels * 4)};
    struct tensor tail = part_of(act, SLOTS * history, layers.state_step), want;
    struct tensor in = part_of(act, T * channels, layers.record_step);
    struct tensor w = op_tensor(DT_F32, channels, taps, 0);
    op_case("%s, %lld channels, %lld taps, %s, %d of %d rows", e->name, (long long)channels,
            (long long)taps, dtype_name(act), c->kept[0], c->verified[0]);
    op_fill_normal(&tail, &r, 0, 1);
    op_fill_normal(&in, &r, 0, 1);
    op_fill_normal(&w, &r, 0, 1);
    want = op_copy(&tail, act);
    uint64_t before = op_hash(&in);
    op_conv_fold(&e->exec, tensor_3d(tail.data, act, SLOTS, taps - 1, channels),
                 tensor_2d(in.data, act, T, channels), &layers, seq, SEQS);
    op_check_ok(e);
    CHECK(before == op_hash(&in));
    for (int64_t l = 0; l < LAYERS; l++) {
        struct tensor rows = kept_rows(tensor_2d(tensor_at(&in, l), act, T, channels), seq);
        struct tensor y = op_tensor(act, rows.dim[0], channels, 0);
        op_causal_conv1d_silu(&e->exec, y, rows, w,
                              tensor_3d(tensor_at(&want, l), act, SLOTS, taps - 1, channels), &b.b);
        op_check_ok(e);
    }
    op_check_same("tail", &tail, &want);
    op_done();
}

TEST(conv_fold_is_decoding)
{
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (size_t k = 0; k < sizeof commits / sizeof commits[0]; k++) {
            struct op_env *e = i < 0 ? op_ref() : &env[i];
            check_conv(e, 640, 4, DT_BF16, &commits[k]);
            check_conv(e, 320, 4, DT_F32, &commits[k]);
            check_conv(e, 33, 3, DT_BF16, &commits[k]);
            check_conv(e, 5, 8, DT_F32, &commits[k]);
        }
}

/* One sequence's states, of n_kept rows that are folded. The slot that `before` names gets what they were, bit for bit;
 * no other slot changes, and the fold is that without `before`. */
static void check_before(struct op_env *e, int32_t n_kept, int32_t before_slot)
{
    enum { ROWS = 5, DIM = 128, CHANNELS = 3 * DIM, TAIL = 3 * CHANNELS, S_SIZE = DIM * DIM };
    const struct gdn_heads h = {1, 1, DIM, DIM};
    const struct batch_seq seq = {2, 1, n_kept, 7};
    struct rng r = {(uint64_t)(n_kept + 2)};
    int32_t *before = op_alloc(sizeof *before);
    struct fold_layers layers = {.n = LAYERS, .record_step = step_of(ROWS * CHANNELS * 4)};
    struct tensor qkv = part_of(DT_BF16, ROWS * CHANNELS, layers.record_step);
    struct tensor g = part_of(DT_F32, ROWS, layers.record_step);
    struct tensor beta = part_of(DT_F32, ROWS, layers.record_step);
    op_case("%s, %d rows, before in %d", e->name, n_kept, before_slot);
    op_fill_normal(&qkv, &r, 0, 1);
    op_fill_normal(&g, &r, -1, 0.1);
    op_fill_normal(&beta, &r, 0.5, 0.1);
    *before = before_slot;
    for (int is_tail = 0; is_tail < 2; is_tail++) {
        int64_t size = is_tail ? TAIL : S_SIZE;
        enum dtype dtype = is_tail ? DT_BF16 : DT_F32;
        layers.state_step = step_of(SLOTS * size * 4);
        struct tensor state = part_of(dtype, SLOTS * size, layers.state_step), was;
        struct tensor want = part_of(dtype, SLOTS * size, layers.state_step);
        op_fill_normal(&state, &r, 0, 1);
        was = op_copy(&state, dtype);
        op_set(&want, &state);
        for (int with = 0; with < 2; with++) {
            void *data = with ? state.data : want.data;
            layers.before = with ? before : NULL;
            if (is_tail)
                op_conv_fold(&e->exec, tensor_3d(data, dtype, SLOTS, 3, CHANNELS),
                             tensor_2d(qkv.data, DT_BF16, ROWS, CHANNELS), &layers, &seq, 1);
            else
                op_gated_delta_fold(&e->exec, tensor_4d(data, dtype, SLOTS, 1, DIM, DIM),
                                    tensor_2d(qkv.data, DT_BF16, ROWS, CHANNELS),
                                    tensor_2d(g.data, DT_F32, ROWS, 1),
                                    tensor_2d(beta.data, DT_F32, ROWS, 1), &h, &layers, &seq, 1);
            op_check_ok(e);
        }
        for (int64_t l = 0; l < LAYERS && before_slot >= 0 && n_kept > 0; l++)
            memcpy((unsigned char *)tensor_at(&want, l) +
                       (size_t)(before_slot * size) * dtype_size(dtype),
                   (unsigned char *)tensor_at(&was, l) +
                       (size_t)(seq.slot * size) * dtype_size(dtype),
                   (size_t)size * dtype_size(dtype));
        op_check_same("state", &state, &want);
    }
    op_free(before);
    op_done();
}

TEST(folds_keep_what_was_before)
{
    int n;
    struct op_env *env = op_envs(&n);
    for (int i = -1; i < n; i++)
        for (int32_t n_kept = 0; n_kept <= 4; n_kept++)
            for (int32_t slot = -1; slot < SLOTS; slot++)
                if (slot != 2)
                    check_before(i < 0 ? op_ref() : &env[i], n_kept, slot);
}

TEST(folds_refuse_layers_that_no_kernel_reaches)
{
    static struct op_batch b;
    struct op_env *e = op_ref();
    struct batch_seq seq[SEQS];
    struct tensor tail = op_tensor(DT_F32, SLOTS, 3, 0), in = op_tensor(DT_F32, 2, 1, 0);
    static const int32_t beyond = SLOTS;
    const struct fold_layers bad[] = {{.n = 0},
                                      {.n = 1, .state_step = 12},
                                      {.n = 1, .record_step = 20},
                                      {.n = 1, .before = &beyond}};
    sequences(&commits[0], seq, &b);
    for (int i = 0; i < 4; i++) {
        op_case("case %d", i);
        op_conv_fold(&e->exec, tensor_3d(tail.data, DT_F32, SLOTS, 3, 1), in, &bad[i], seq,
                     i < 3 ? SEQS : 1);
        op_check_failed(e, LATHE_E_ARGUMENT, "conv_fold");
    }
    op_done();
}
