#include "op/run.h"

/* Every sequence's rows lie in [0, n_rows) and its slot in [0, n_slots). */
static bool rows_fit(const struct batch_seq *seq, int32_t n_seqs, int64_t n_rows, int64_t n_slots)
{
    for (int32_t i = 0; i < n_seqs; i++) {
        const struct batch_seq *s = &seq[i];
        if (s->slot < 0 || s->slot >= n_slots || s->n_rows < 0 || s->first_row < 0 ||
            s->first_row + (int64_t)s->n_rows > n_rows)
            return false;
    }
    return true;
}

static bool layers_fit(const struct fold_layers *l)
{
    return l->n >= 1 && l->n <= UINT16_MAX && l->state_step % 16 == 0 && l->record_step % 16 == 0;
}

static bool before_fits(const int32_t *before, const struct batch_seq *seq, int32_t n_seqs,
                        int64_t n_slots)
{
    return !before || (n_seqs == 1 && *before >= -1 && *before < n_slots && *before != seq->slot);
}

void op_gated_delta_fold(struct exec *x, struct tensor S, struct tensor qkv, struct tensor g,
                         struct tensor beta, const struct gdn_heads *heads,
                         const struct fold_layers *layers, const struct batch_seq *seq,
                         int32_t n_seqs)
{
    OP_BEGIN(x);
    int64_t n_k = heads->n_k_heads, n_v = heads->n_v_heads, dk = heads->dk, dv = heads->dv;
    int64_t T = qkv.dim[0];
    OP_REQUIRE(x, "gated_delta_fold", n_k >= 1 && n_v >= 1 && n_v % n_k == 0);
    OP_REQUIRE(x, "gated_delta_fold", dk >= 1 && dv >= 1 && dk <= OP_MAX_HEAD && dv <= OP_MAX_HEAD);
    OP_REQUIRE(x, "gated_delta_fold", is_act(qkv.dtype));
    OP_REQUIRE(x, "gated_delta_fold", is_matrix(&qkv, qkv.dtype, T, 2 * n_k * dk + n_v * dv));
    OP_REQUIRE(x, "gated_delta_fold", is_matrix(&g, DT_F32, T, n_v));
    OP_REQUIRE(x, "gated_delta_fold", is_matrix(&beta, DT_F32, T, n_v));
    OP_REQUIRE(x, "gated_delta_fold", S.n_dims == 4 && S.dtype == DT_F32 && S.dim[1] == n_v);
    OP_REQUIRE(x, "gated_delta_fold", S.dim[2] == dk && S.dim[3] == dv);
    OP_REQUIRE(x, "gated_delta_fold", layers_fit(layers));
    OP_REQUIRE(x, "gated_delta_fold", rows_fit(seq, n_seqs, T, S.dim[0]));
    OP_REQUIRE(x, "gated_delta_fold", before_fits(layers->before, seq, n_seqs, S.dim[0]));
    struct gated_delta_fold_args a = {S, qkv, g, beta, *heads, *layers, seq, n_seqs};
    OP_RUN(x, gated_delta_fold, &a, &S, "");
}

void op_conv_fold(struct exec *x, struct tensor tail, struct tensor in,
                  const struct fold_layers *layers, const struct batch_seq *seq, int32_t n_seqs)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "conv_fold", in.n_dims == 2 && is_act(in.dtype) && in.dim[1] >= 1);
    OP_REQUIRE(x, "conv_fold", is_matrix(&in, in.dtype, in.dim[0], in.dim[1]));
    OP_REQUIRE(x, "conv_fold", tail.n_dims == 3 && tail.dtype == in.dtype);
    OP_REQUIRE(x, "conv_fold", tail.dim[1] < OP_MAX_TAPS && tail.dim[2] == in.dim[1]);
    OP_REQUIRE(x, "conv_fold", layers_fit(layers));
    OP_REQUIRE(x, "conv_fold", rows_fit(seq, n_seqs, in.dim[0], tail.dim[0]));
    OP_REQUIRE(x, "conv_fold", before_fits(layers->before, seq, n_seqs, tail.dim[0]));
    struct conv_fold_args a = {tail, in, *layers, seq, n_seqs};
    OP_RUN(x, conv_fold, &a, &tail, "");
}
