#include <string.h>

#include "op/cpu/cpu.h"
#include "op/host.h"

enum { CHANNELS = 256 }; /* worked on at once: a thread's share is a multiple */

struct job {
    const struct cpu *cpu;
    const struct causal_conv1d_silu_args *a;
};

/* Input `i` of a sequence, counted from its first row; negative ones lie in the tail. */
static unsigned char *input(const struct tensor *in, const struct tensor *tail,
                            const struct batch_seq *s, int64_t i, int64_t c)
{
    size_t act = dtype_size(in->dtype);
    int64_t history = tail->dim[1];
    if (i >= 0)
        return (unsigned char *)tensor_at(in, s->first_row + i) + (size_t)c * act;
    return (unsigned char *)tensor_at(tail, s->slot) +
           (size_t)((history + i) * in->dim[1] + c) * act;
}

/* Channels [c, c + n) of the tail after the sequence's rows. */
static void advance(const struct tensor *in, const struct tensor *tail, const struct batch_seq *s,
                    int64_t c, int64_t n)
{
    int64_t history = tail->dim[1];
    for (int64_t i = 0; i < history; i++) /* ascending: none is read after it is written */
        memmove(input(in, tail, s, i - history, c), input(in, tail, s, s->n_rows + i - history, c),
                (size_t)n * dtype_size(in->dtype));
}

/* w [n, taps] to out [taps, n] */
static void transpose(float *out, const float *w, int64_t taps, int64_t stride, int64_t n)
{
    int64_t i = 0;
    for (; taps == 4 && i + 4 <= n; i += 4) { /* the family's taps: four channels at once */
        const float *p = w + i * stride;
        for (int64_t k = 0; k < 4; k++, p += 1) {
            float *to = out + k * n + i;
            to[0] = p[0];
            to[1] = p[stride];
            to[2] = p[2 * stride];
            to[3] = p[3 * stride];
        }
    }
    for (; i < n; i++)
        for (int64_t tap = 0; tap < taps; tap++)
            out[tap * n + i] = w[i * stride + tap];
}

/* Channels [c, c + n) of every row, then of the tail. */
static void channels(const struct job *j, int64_t c, int64_t n)
{
    const struct causal_conv1d_silu_args *a = j->a;
    int64_t taps = a->w.dim[1];
    size_t act = dtype_size(a->in.dtype);
    float w[OP_MAX_TAPS * CHANNELS]; /* [taps, n] */
    transpose(w, tensor_at(&a->w, c), taps, a->w.stride, n);
    for (int32_t i = 0; i < a->b->n_seqs; i++) {
        const struct batch_seq *s = &a->b->seq[i];
        for (int64_t t = 0; t < s->n_rows; t++) {
            const void *in[OP_MAX_TAPS];
            for (int64_t tap = 0; tap < taps; tap++)
                in[tap] = input(&a->in, &a->tail, s, t + tap - (taps - 1), c);
            unsigned char *y = tensor_at(&a->y, s->first_row + t);
            j->cpu->kernels.conv1d_silu(y + (size_t)c * act, in, w, taps, n, a->in.dtype);
        }
        if (a->b->phase != PHASE_VERIFY)
            advance(&a->in, &a->tail, s, c, n);
    }
}

static void share(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    int64_t begin, end;
    pool_share(j->a->in.dim[1], CHANNELS, thread, n_threads, &begin, &end);
    for (int64_t c = begin; c < end; c += CHANNELS)
        channels(j, c, end - c < CHANNELS ? end - c : CHANNELS);
}

lathe_status cpu_causal_conv1d_silu(void *stream, const struct causal_conv1d_silu_args *a,
                                    lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->in), share, &j);
    return LATHE_OK;
}

lathe_status cpu_conv_fold(void *stream, const struct conv_fold_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    host_keep_before(a->tail, &a->layers, a->seq);
    for (int32_t l = 0; l < a->layers.n; l++) {
        struct tensor tail = tensor_after(a->tail, (size_t)l * a->layers.state_step);
        struct tensor in = tensor_after(a->in, (size_t)l * a->layers.record_step);
        for (int32_t i = 0; i < a->n_seqs; i++)
            advance(&in, &tail, &a->seq[i], 0, in.dim[1]);
    }
    return LATHE_OK;
}
