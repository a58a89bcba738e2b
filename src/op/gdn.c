#include "op/run.h"

static bool is_projected(const struct gdn_projected *p, enum dtype act, int64_t T, int64_t conv_dim,
                         int64_t v_dim, int64_t n_v)
{
    return is_matrix(&p->mixed, act, T, conv_dim) && is_matrix(&p->z, act, T, v_dim) &&
           is_matrix(&p->g, DT_F32, T, n_v) && is_matrix(&p->beta, DT_F32, T, n_v);
}

/* Lets the backend make the products of u and the gates in one go. */
static bool join_gates(struct exec *x, const struct gdn_projected *out, const struct normed *in,
                       const struct gdn_inputs *w)
{
    const struct normed *of = in->unscaled ? in : NULL;
    struct tensor u = in->u;
    struct linear_args l[2] = {
        {.y = out->mixed, .in = u, .w = w->in_proj_qkv, .of = of, .phase = x->phase},
        {.y = out->z, .in = u, .w = w->in_proj_z, .of = of, .phase = x->phase},
    };
    struct gdn_gates_args g = {.g = out->g,
                               .beta = out->beta,
                               .u = u,
                               .in_proj_a = w->in_proj_a,
                               .in_proj_b = w->in_proj_b,
                               .A_log = w->A_log,
                               .dt_bias = w->dt_bias};
    return !x->planning && x->backend->linears_gates &&
           op_joined(x, "gdn_project", x->backend->linears_gates(x->stream, l, 2, &g));
}

void op_gdn_project(struct exec *x, const struct gdn_projected *out, struct normed *in,
                    const struct gdn_inputs *w)
{
    OP_BEGIN(x);
    struct tensor u = in->u;
    int64_t hidden = u.dim[1], n_v = w->in_proj_a->rows;
    OP_REQUIRE(x, "gdn_project", u.n_dims == 2 && u.dim[0] >= 1 && is_act(u.dtype));
    OP_REQUIRE(x, "gdn_project", u.stride >= hidden);
    OP_REQUIRE(x, "gdn_project",
               w->in_proj_qkv->cols == hidden && w->in_proj_z->cols == hidden &&
                   w->in_proj_a->cols == hidden && w->in_proj_b->cols == hidden);
    OP_REQUIRE(x, "gdn_project", w->in_proj_b->rows == n_v);
    OP_REQUIRE(x, "gdn_project",
               is_projected(out, u.dtype, u.dim[0], w->in_proj_qkv->rows, w->in_proj_z->rows, n_v));
    OP_REQUIRE(x, "gdn_project",
               is_vector(&w->A_log, DT_F32, n_v) && is_vector(&w->dt_bias, DT_F32, n_v));
    if (join_gates(x, out, in, w))
        return;
    if (in->unscaled)
        op_norm(x, in, in->w);
    op_gdn_gates(x, out->g, out->beta, u, w->in_proj_a, w->in_proj_b, w->A_log, w->dt_bias);
    op_linears(x, 2, (struct tensor[]){out->mixed, out->z}, in,
               (const struct weight *[]){w->in_proj_qkv, w->in_proj_z});
}

void op_gdn_mix(struct exec *x, struct tensor y, struct tensor qkv, const struct gdn_projected *in,
                struct tensor conv, struct tensor norm, float eps, struct tensor tail,
                struct tensor S, const struct gdn_heads *heads, const struct batch *b)
{
    OP_BEGIN(x);
    int64_t T = b->n_rows, n_k = heads->n_k_heads, n_v = heads->n_v_heads, dk = heads->dk;
    int64_t v_dim = n_v * heads->dv, conv_dim = 2 * n_k * dk + v_dim;
    enum dtype act = in->mixed.dtype;
    OP_REQUIRE(x, "gdn_mix", n_k >= 1 && n_v >= 1 && n_v % n_k == 0 && is_act(act));
    OP_REQUIRE(x, "gdn_mix", dk >= 1 && heads->dv >= 1);
    OP_REQUIRE(x, "gdn_mix", is_projected(in, act, T, conv_dim, v_dim, n_v));
    OP_REQUIRE(x, "gdn_mix", is_matrix(&y, act, T, v_dim) && is_matrix(&qkv, act, T, conv_dim));
    OP_REQUIRE(x, "gdn_mix", x->planning || qkv.data != in->mixed.data);
    OP_REQUIRE(x, "gdn_mix", is_matrix(&conv, DT_F32, conv_dim, conv.dim[1]));
    OP_REQUIRE(x, "gdn_mix", is_vector(&norm, DT_F32, heads->dv));
    OP_REQUIRE(x, "gdn_mix", tail.n_dims == 3 && tail.dtype == act && tail.dim[2] == conv_dim);
    OP_REQUIRE(x, "gdn_mix", tail.dim[1] == conv.dim[1] - 1);
    OP_REQUIRE(x, "gdn_mix", S.n_dims == 4 && S.dtype == DT_F32 && S.dim[1] == n_v);
    OP_REQUIRE(x, "gdn_mix", S.dim[2] == dk && S.dim[3] == heads->dv);
    OP_REQUIRE(x, "gdn_mix",
               x->planning || (batch_fits(b, S.dim[0]) && batch_fits(b, tail.dim[0])));
    struct gdn_mix_args a = {y, qkv, in, conv, norm, eps, tail, S, *heads, b};
    if (!x->planning && x->backend->gdn_mix &&
        op_joined(x, "gdn_mix", x->backend->gdn_mix(x->stream, &a)))
        return;
    size_t mark = exec_push(x);
    struct tensor o = exec_tmp(x, DT_F32, T, v_dim); /* rounded once, after the gated norm */
    op_causal_conv1d_silu(x, qkv, in->mixed, conv, tail, b);
    op_gated_delta_rule(x, o, qkv, in->g, in->beta, S, heads, b);
    op_rmsnorm_gated(x, y, o, in->z, norm, eps);
    exec_pop(x, mark);
}
