#include "op/run.h"

/* While planning there is no memory. */
static bool is_there(const struct exec *x, const struct history *h)
{
    return x->planning || (h->p && h->seen && h->times);
}

void op_penalise(struct exec *x, struct tensor logits, int32_t first, const struct resident *r,
                 const struct history *h)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "penalise", logits.n_dims == 2 && logits.dtype == DT_F32);
    OP_REQUIRE(x, "penalise",
               logits.dim[0] >= 1 && first >= 0 && first + logits.dim[0] <= RESIDENT_ROWS);
    OP_REQUIRE(x, "penalise", logits.stride >= logits.dim[1] && is_there(x, h));
    struct penalise_args a = {logits, first, r, h};
    OP_RUN(x, penalise, &a, &logits, "");
}

void op_walk(struct exec *x, struct tensor token, struct tensor id, struct tensor score,
             const struct resident *r, const struct history *h)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "walk", id.n_dims == 2 && id.dim[0] >= 1 && id.dim[1] >= 1);
    int64_t n = id.dim[0], k = id.dim[1];
    OP_REQUIRE(x, "walk", n < RESIDENT_ROWS && k <= CHOICE_MOST && is_there(x, h));
    OP_REQUIRE(x, "walk", x->planning || r);
    OP_REQUIRE(x, "walk", is_vector(&token, DT_I32, n) && is_matrix(&id, DT_I32, n, k));
    OP_REQUIRE(x, "walk", is_matrix(&score, DT_F32, n, k * k));
    struct walk_args a = {token, id, score, r, h};
    OP_RUN(x, walk, &a, &token, "");
}

void op_choose(struct exec *x, struct tensor token, struct tensor value, struct tensor id,
               struct tensor logits, const int32_t (*range)[2], int32_t n_ranges, int32_t first,
               int32_t none, const struct resident *r)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "choose", id.n_dims == 2 && id.dim[0] >= 1 && id.dim[1] >= 1);
    int64_t T = id.dim[0], k = id.dim[1];
    OP_REQUIRE(x, "choose", first >= 0 && first + T <= RESIDENT_ROWS && k <= CHOICE_MOST);
    OP_REQUIRE(x, "choose", is_vector(&token, DT_I32, T) && is_matrix(&id, DT_I32, T, k));
    OP_REQUIRE(x, "choose", is_matrix(&value, DT_F32, T, k) && (x->planning || r));
    OP_REQUIRE(x, "choose", is_matrix(&logits, DT_F32, T, logits.dim[1]));
    OP_REQUIRE(x, "choose", n_ranges >= 1 && range[n_ranges - 1][1] <= logits.dim[1]);
    int64_t n_parts = (logits.dim[1] + CHOOSE_COLUMNS - 1) / CHOOSE_COLUMNS;
    size_t mark = exec_push(x);
    struct tensor scratch = exec_tmp(x, DT_U8, T, k > 1 ? n_parts * CHOOSE_PART : 1);
    struct choose_args a = {token, value, id, logits, range, n_ranges, scratch, first, none, r};
    OP_BEGIN(x);
    OP_RUN(x, choose, &a, &token, "");
    exec_pop(x, mark);
}

void op_advance(struct exec *x, struct resident *r, int32_t n_rows, const struct history *h,
                struct round_report *report)
{
    OP_BEGIN(x);
    OP_REQUIRE(x, "advance", x->planning || (r && report));
    OP_REQUIRE(x, "advance", is_there(x, h) && n_rows >= 1 && n_rows <= RESIDENT_ROWS);
    struct tensor best = tensor_2d(x->planning ? NULL : r->best, DT_I32, n_rows, 1);
    struct advance_args a = {r, n_rows, h, report};
    OP_RUN(x, advance, &a, &best, "");
}
