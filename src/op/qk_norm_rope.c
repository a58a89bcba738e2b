#include "op/run.h"

static void check(struct exec *x, const struct qk_norm_rope_args *a)
{
    OP_BEGIN(x);
    const struct tensor *q = &a->q, *k = &a->k, *qg = &a->qg;
    int64_t T = a->b->n_rows, d = a->head_dim;
    OP_REQUIRE(x, "qk_norm_rope", d >= 1 && d <= OP_MAX_HEAD);
    OP_REQUIRE(x, "qk_norm_rope", is_act(q->dtype) && q->dim[1] % d == 0);
    OP_REQUIRE(x, "qk_norm_rope", is_matrix(q, q->dtype, T, q->dim[1]));
    OP_REQUIRE(x, "qk_norm_rope", is_matrix(qg, q->dtype, T, qg->dim[1]));
    OP_REQUIRE(x, "qk_norm_rope", qg->dim[1] == q->dim[1] || qg->dim[1] == 2 * q->dim[1]);
    OP_REQUIRE(x, "qk_norm_rope", is_matrix(k, q->dtype, T, k->dim[1]));
    OP_REQUIRE(x, "qk_norm_rope", k->dim[1] % d == 0 && k->dim[1] > 0);
    OP_REQUIRE(x, "qk_norm_rope", is_vector(&a->q_norm, DT_F32, d));
    OP_REQUIRE(x, "qk_norm_rope", is_vector(&a->k_norm, DT_F32, d));
    OP_REQUIRE(x, "qk_norm_rope",
               a->rope->dims >= 0 && a->rope->dims % 2 == 0 && a->rope->dims <= d);
    for (int32_t i = 0; i < a->rope->dims / 2; i++)
        OP_REQUIRE(x, "qk_norm_rope", a->rope->axis[i] < 3);
}

void op_qk_norm_rope(struct exec *x, struct tensor q, struct tensor k, struct tensor qg,
                     struct tensor q_norm, struct tensor k_norm, int32_t head_dim, float eps,
                     const struct rope *rope, const struct batch *b)
{
    struct qk_norm_rope_args a = {q, k, qg, q_norm, k_norm, head_dim, eps, rope, b};
    check(x, &a);
    OP_BEGIN(x);
    OP_RUN(x, qk_norm_rope, &a, &q, "");
}

void op_qk_norm_rope_append(struct exec *x, struct tensor q, struct tensor k, struct tensor qg,
                            struct tensor q_norm, struct tensor k_norm, int32_t head_dim, float eps,
                            const struct rope *rope, const struct kv_pages *kv, struct tensor v,
                            const struct batch *b)
{
    struct qk_norm_rope_append_args a = {
        .norm_rope = {q, k, qg, q_norm, k_norm, head_dim, eps, rope, b}, .append = {kv, k, v, b}};
    if (!x->backend->qk_norm_rope_append) {
        op_qk_norm_rope(x, q, k, qg, q_norm, k_norm, head_dim, eps, rope, b);
        op_kv_append(x, kv, k, v, b);
        return;
    }
    check(x, &a.norm_rope);
    kv_append_check(x, &a.append);
    OP_BEGIN(x);
    OP_RUN(x, qk_norm_rope_append, &a, &q, "");
}
