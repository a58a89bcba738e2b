#include <stdarg.h>

#include "op_test.h"

static char name[256];

/* Results of one way to compute everything. */
struct result {
    struct tensor out[OP_MAX_TENSORS], state[OP_MAX_TENSORS];
};

static int64_t total(const struct op_seqs *p)
{
    int64_t T = 0;
    for (int i = 0; i < p->n_seqs; i++)
        T += p->n_rows[i];
    return T;
}

static struct result fresh(const struct op_seqs *p)
{
    struct result r;
    for (int i = 0; i < p->n_out; i++) {
        r.out[i] = op_tensor(p->out[i].dtype, p->out[i].dim[0], p->out[i].dim[1], i);
        op_set(&r.out[i], &p->out[i]);
    }
    for (int i = 0; i < p->n_state; i++)
        r.state[i] = op_copy(&p->state[i], p->state[i].dtype);
    return r;
}

static struct result run_whole(struct op_env *e, const struct op_seqs *p, const struct tensor *in,
                               const struct tensor *state, enum phase phase)
{
    static struct op_batch b;
    struct result r = fresh(p);
    for (int i = 0; i < p->n_state && state; i++)
        op_set(&r.state[i], &state[i]);
    op_batch_begin(&b, phase);
    for (int i = 0; i < p->n_seqs; i++)
        op_batch_add(&b, p->slot[i], p->pos[i], p->n_rows[i]);
    p->run(&e->exec, p, in, r.out, r.state, &b.b);
    op_check_ok(e);
    return r;
}

/* Batches of the next `step` rows (fewer at a sequence's end) of each of n_seqs sequences from `first`;
 * rows are gathered and scattered. */
static void run_pieces(struct op_env *e, const struct op_seqs *p, enum phase phase, int32_t step,
                       int first, int n_seqs, struct result *r)
{
    static struct op_batch b;
    int32_t at[OP_MAX_ROWS]; /* row of the whole problem */
    for (int32_t done = 0;; done += step) {
        op_batch_begin(&b, phase);
        int32_t row = 0;
        for (int i = 0; i < p->n_seqs; row += p->n_rows[i++]) {
            int32_t n = p->n_rows[i] - done < step ? p->n_rows[i] - done : step;
            if (i < first || i >= first + n_seqs || n <= 0)
                continue;
            for (int32_t k = 0; k < n; k++)
                at[b.b.n_rows + k] = row + done + k;
            op_batch_add(&b, p->slot[i], p->pos[i] + done, n);
        }
        if (b.b.n_rows == 0)
            return;
        struct tensor in[OP_MAX_TENSORS], out[OP_MAX_TENSORS];
        for (int i = 0; i < p->n_in; i++) {
            in[i] = op_tensor(p->in[i].dtype, b.b.n_rows, p->in[i].dim[1], 0);
            for (int32_t k = 0; k < b.b.n_rows; k++) {
                struct tensor to = tensor_rows(in[i], k, 1), from = tensor_rows(p->in[i], at[k], 1);
                op_set(&to, &from);
            }
        }
        for (int i = 0; i < p->n_out; i++)
            out[i] = op_tensor(p->out[i].dtype, b.b.n_rows, p->out[i].dim[1], 0);
        p->run(&e->exec, p, in, out, r->state, &b.b);
        op_check_ok(e);
        for (int i = 0; i < p->n_out; i++)
            for (int32_t k = 0; k < b.b.n_rows; k++) {
                struct tensor to = tensor_rows(r->out[i], at[k], 1);
                struct tensor from = tensor_rows(out[i], k, 1);
                op_set(&to, &from);
            }
    }
}

static void check_same(const struct op_seqs *p, const char *what, const struct result *got,
                       const struct result *want)
{
    char label[96];
    for (int i = 0; i < p->n_out; i++) {
        snprintf(label, sizeof label, "output %d %s", i, what);
        op_check_same(label, &got->out[i], &want->out[i]);
    }
    for (int i = 0; i < p->n_state; i++) {
        snprintf(label, sizeof label, "state %d %s", i, what);
        op_check_same(label, &got->state[i], &want->state[i]);
    }
}

/* Many cuts on one thread, one on several. */
static void check_cuts(struct op_env *e, const struct op_seqs *p, enum phase phase,
                       const struct result *want)
{
    static const int32_t many[] = {1, 2, 3, 5, 17}, few[] = {3}, of_long[] = {29};
    const int32_t *step = total(p) > 100 ? of_long : e->n_threads > 1 ? few : many;
    char what[64];
    for (int i = 0; i < (step == many ? 5 : 1); i++) {
        int mark = op_mark();
        struct result r = fresh(p);
        snprintf(what, sizeof what, "in pieces of %d rows", step[i]);
        run_pieces(e, p, phase, step[i], 0, p->n_seqs, &r);
        check_same(p, what, &r, want);
        op_release(mark);
    }
    struct result alone = fresh(p);
    for (int i = p->n_seqs - 1; i >= 0; i--)
        run_pieces(e, p, phase, OP_MAX_ROWS, i, 1, &alone);
    check_same(p, "of sequences alone", &alone, want);
}

static void check_verify(struct op_env *e, const struct op_seqs *p, const struct result *want)
{
    struct result r = run_whole(e, p, p->in, NULL, PHASE_VERIFY);
    for (int i = 0; i < p->n_out; i++)
        op_check_same("output in VERIFY", &r.out[i], &want->out[i]);
    for (int i = 0; i < p->n_state && !p->verify_writes; i++)
        op_check_same("state in VERIFY", &r.state[i], &p->state[i]);
}

/* Rows before `bad` of its sequence and all rows of other sequences are as in want. */
static void check_spread(const struct op_seqs *p, const char *what, const struct result *got,
                         const struct result *want, int seq, int32_t bad)
{
    bool seen = false;
    for (int o = 0; o < p->n_out; o++) {
        int32_t row = 0;
        for (int i = 0; i < p->n_seqs; row += p->n_rows[i++])
            for (int32_t k = 0; k < p->n_rows[i]; k++) {
                bool reached = i == seq && k >= bad;
                if (!reached && !op_same_row(&got->out[o], row + k, &want->out[o], row + k))
                    OP_FAIL("NaN in %s of sequence %d, row %d reaches row %d of sequence %d", what,
                            seq, bad, k, i);
                seen |= reached && op_row_has_nan(&got->out[o], row + k);
            }
    }
    if (!seen)
        OP_FAIL("NaN in %s of sequence %d, row %d is not seen", what, seq, bad);
}

static void check_poison(struct op_env *e, const struct op_seqs *p, enum phase phase,
                         const struct result *want)
{
    int seq = p->n_seqs / 2;
    int32_t bad = p->n_rows[seq] / 2, row = bad;
    for (int i = 0; i < seq; i++)
        row += p->n_rows[i];
    for (int i = 0; i < p->n_in; i++) {
        struct tensor in[OP_MAX_TENSORS];
        char what[32];
        snprintf(what, sizeof what, "input %d", i);
        memcpy(in, p->in, sizeof in);
        in[i] = op_copy(&p->in[i], p->in[i].dtype);
        for (int64_t c = 0; c < in[i].dim[1]; c++)
            op_put(&in[i], row, c, NAN);
        struct result r = run_whole(e, p, in, NULL, phase);
        check_spread(p, what, &r, want, seq, bad);
    }
    if (!p->poison_state)
        return;
    struct result bad_state = fresh(p);
    p->poison_state(p, bad_state.state, p->slot[seq]);
    struct result r = run_whole(e, p, p->in, bad_state.state, phase);
    check_spread(p, "state", &r, want, seq, 0);
}

static uint64_t hash_inputs(const struct op_seqs *p)
{
    uint64_t h = 0;
    for (int i = 0; i < p->n_in; i++)
        h = h * 31 + op_hash(&p->in[i]);
    for (int i = 0; i < p->n_whole; i++)
        h = h * 31 + op_hash(&p->whole[i]);
    return h;
}

static void check_near(const struct op_seqs *p, const struct result *got, const struct result *want,
                       struct op_tol tol)
{
    for (int k = 0; k < p->n_out; k++)
        op_check_near("output", &got->out[k], &want->out[k], tol);
    for (int k = 0; k < p->n_state; k++)
        op_check_near("state", &got->state[k], &want->state[k], p->state_tol);
}

void op_seqs_check(const struct op_seqs *p, const char *fmt, ...)
{
    int n_envs;
    struct op_env *env = op_envs(&n_envs), *ref = op_ref();
    struct result same = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    op_case("%s: %s", name, ref->name);
    uint64_t before = hash_inputs(p);
    struct result want = run_whole(ref, p, p->in, NULL, PHASE_PREFILL);
    if (total(p) <= 20) {
        check_cuts(ref, p, PHASE_DECODE, &want);
        check_verify(ref, p, &want);
    }
    for (int i = 0; i < n_envs; i++) {
        struct op_env *e = &env[i];
        int mark = op_mark();
        op_case("%s: %s", name, e->name);
        struct result r = run_whole(e, p, p->in, NULL, PHASE_PREFILL);
        check_near(p, &r, &want,
                   e->backend->is_host || !p->gpu_prefill_tol.name ? p->tol : p->gpu_prefill_tol);
        if (i == 0 || strcmp(e->isa, env[i - 1].isa) != 0) {
            same = r;
            mark = op_mark();
        }
        check_same(p, "with more threads", &r, &same);
        /* Phases have the same arithmetic on the host, and may have one of their own elsewhere. */
        struct result decoded = r;
        if (!e->backend->is_host) {
            check_cuts(e, p, PHASE_PREFILL, &r);
            check_poison(e, p, PHASE_PREFILL, &r);
            decoded = run_whole(e, p, p->in, NULL, PHASE_DECODE);
            check_near(p, &decoded, &want, p->tol);
        }
        check_cuts(e, p, PHASE_DECODE, &decoded);
        check_verify(e, p, &decoded);
        check_poison(e, p, PHASE_DECODE, &decoded);
        if (hash_inputs(p) != before)
            OP_FAIL("an input changed");
        op_release(mark);
    }
    op_done();
}
