/* Causal depthwise convolution with SiLU, and the commit of its tail. A thread keeps the last inputs of
 * its channels in registers and walks down rows; all forms add in the same order. */
#include "op/cuda/cuda.cuh"

enum {
    SHORT_ROWS = 32, /* up to this many rows of each sequence one thread walks them all */
    CHUNK_ROWS = 32, /* of longer ones a thread walks so many */
    THREADS = 128,
};

struct conv {
    const void *in;
    void *y, *tail;
    const float *w;
    int64_t in_stride, y_stride, w_stride, tail_stride; /* elements; of tail: from slot to slot */
    size_t in_step, tail_step; /* bytes from layer to layer, where conv_tail works on several */
    int64_t channels;
    int32_t taps, n_rows, n_seqs;
    const struct batch_seq *seq;
    const int32_t *seq_of;
    const int32_t *before; /* as in struct fold_layers */
    bool store;            /* the tail advances */
};

/* N consecutive numbers; in one access if `wide`, which means they are aligned to it. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};
template <typename T, int N>
__device__ __forceinline__ void load(float out[N], const T *p, bool wide)
{
    if (wide) {
        pack<T, N> x = *(const pack<T, N> *)p;
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = to_float(x.v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = to_float(p[i]);
    }
}
template <typename T, int N>
__device__ __forceinline__ void store(T *p, const float in[N], bool wide)
{
    pack<T, N> x;
#pragma unroll
    for (int i = 0; i < N; i++)
        x.v[i] = from_float<T>(in[i]);
    if (wide) {
        *(pack<T, N> *)p = x;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            p[i] = x.v[i];
    }
}

/* Input `row` of a sequence, counted from its first in the batch; negative ones lie in its tail. */
template <typename T>
__device__ __forceinline__ const T *input_at(const struct conv &a, const struct batch_seq &s,
                                             int32_t row, int64_t c)
{
    if (row >= 0)
        return (const T *)a.in + (s.first_row + (int64_t)row) * a.in_stride + c;
    return (const T *)a.tail + s.slot * a.tail_stride + (a.taps - 1 + row) * a.channels + c;
}

/* Rows [first, end) of the batch, channels [c, c + N). */
template <typename T, int TAPS, int N>
__device__ __forceinline__ void walk(const struct conv &a, int32_t first, int32_t end, int64_t c,
                                     bool wide)
{
    float w[TAPS][N], x[TAPS][N];
#pragma unroll
    for (int j = 0; j < TAPS; j++)
#pragma unroll
        for (int i = 0; i < N; i++)
            w[j][i] = a.w[(c + i) * a.w_stride + j];
    struct batch_seq s = a.seq[a.seq_of[first]];
    bool begin = true;
    for (int32_t t = first; t < end; t++) {
        if (t == s.first_row + s.n_rows) {
            s = a.seq[a.seq_of[t]];
            begin = true;
        }
        if (begin) {
#pragma unroll
            for (int j = 0; j < TAPS - 1; j++)
                load<T, N>(x[j + 1], input_at<T>(a, s, t - s.first_row - (TAPS - 1) + j, c), wide);
            begin = false;
        }
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[j][i] = x[j + 1][i];
        load<T, N>(x[TAPS - 1], (const T *)a.in + t * a.in_stride + c, wide);
        float y[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            float sum = w[0][i] * x[0][i];
#pragma unroll
            for (int j = 1; j < TAPS; j++)
                sum = fmaf(w[j][i], x[j][i], sum);
            y[i] = silu(sum);
        }
        store<T, N>((T *)a.y + t * a.y_stride + c, y, wide);
    }
}

/* The tail of a sequence, which `before` gets a copy of if it is a slot. */
template <typename T, int N>
__device__ __forceinline__ void keep_before(const struct conv &a, const struct batch_seq &s,
                                            int32_t before, int64_t c, bool wide)
{
    if (before < 0 || s.n_rows == 0)
        return;
    for (int32_t j = 1 - a.taps; j < 0; j++) {
        float x[N];
        const T *from = input_at<T>(a, s, j, c);
        load<T, N>(x, from, wide);
        store<T, N>((T *)a.tail + (from - (const T *)a.tail) + (before - s.slot) * a.tail_stride, x,
                    wide);
    }
}

/* The tail of a sequence becomes the last taps - 1 of its old tail and its rows. */
template <typename T, int N>
__device__ __forceinline__ void advance(const struct conv &a, const struct batch_seq &s, int64_t c,
                                        bool wide)
{
    float x[OP_MAX_TAPS - 1][N];
#pragma unroll
    for (int j = 0; j < OP_MAX_TAPS - 1; j++)
        if (j < a.taps - 1)
            load<T, N>(x[j], input_at<T>(a, s, s.n_rows - (a.taps - 1) + j, c), wide);
#pragma unroll
    for (int j = 0; j < OP_MAX_TAPS - 1; j++)
        if (j < a.taps - 1)
            store<T, N>((T *)a.tail + s.slot * a.tail_stride + j * a.channels + c, x[j], wide);
}

/* All sequences are short: a thread has its channels of one of them, tail included. Bound by latency. */
template <typename T, int TAPS, int N>
__global__ void __launch_bounds__(THREADS) conv_seqs(struct conv a, bool wide)
{
    begin_kernel();
    int64_t c = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (c >= a.channels)
        return;
    for (int32_t i = blockIdx.y; i < a.n_seqs; i += gridDim.y) {
        struct batch_seq s = a.seq[i];
        walk<T, TAPS, N>(a, s.first_row, s.first_row + s.n_rows, c, wide);
        if (a.store)
            advance<T, N>(a, s, c, wide);
    }
}

/* Long ones: blocks of rows, whichever sequence they belong to; the tail, which they read, is advanced
 * by another launch. Bound by memory: each input is read once, and again at a block's edge. */
template <typename T, int TAPS, int N>
__global__ void __launch_bounds__(THREADS) conv_rows(struct conv a, bool wide)
{
    begin_kernel();
    int64_t c = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    int64_t first = (int64_t)blockIdx.y * CHUNK_ROWS;
    if (c < a.channels)
        for (; first < a.n_rows; first += (int64_t)gridDim.y * CHUNK_ROWS)
            walk<T, TAPS, N>(a, (int32_t)first, (int32_t)min(first + CHUNK_ROWS, (int64_t)a.n_rows),
                             c, wide);
}

/* blockIdx.z: layers. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) conv_tail(struct conv a, bool wide)
{
    begin_kernel();
    a.in = (const unsigned char *)a.in + blockIdx.z * a.in_step;
    a.tail = (unsigned char *)a.tail + blockIdx.z * a.tail_step;
    int64_t c = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    int32_t before = a.before ? *a.before : -1;
    if (c < a.channels)
        for (int32_t i = blockIdx.y; i < a.n_seqs; i += gridDim.y) {
            keep_before<T, N>(a, a.seq[i], before, c, wide);
            advance<T, N>(a, a.seq[i], c, wide);
        }
}

/* Can N numbers at every multiple of N channels be taken in one access? */
static bool is_wide(const struct conv *a, size_t size, int n)
{
    size_t bytes = size * (size_t)n;
    uintptr_t bits = (uintptr_t)a->in | (uintptr_t)a->y | (uintptr_t)a->tail |
                     (uintptr_t)(a->in_stride * (int64_t)size) |
                     (uintptr_t)(a->y_stride * (int64_t)size) |
                     (uintptr_t)(a->tail_stride * (int64_t)size);
    return bits % bytes == 0 && (size_t)a->channels * size % bytes == 0;
}

static unsigned least(int64_t a, int64_t b)
{
    return (unsigned)(a < b ? a : b);
}

template <typename T> static void launch_tail(struct gpu *c, const struct conv *a, int32_t n_layers)
{
    unsigned seqs = least(a->n_seqs, 65535), layers = (unsigned)n_layers;
    if (is_wide(a, sizeof(T), 2))
        launch_next(c, conv_tail<T, 2>, dim3(cuda_blocks(a->channels, 2 * THREADS), seqs, layers),
                    THREADS, 0, *a, true);
    else
        launch_next(c, conv_tail<T, 1>, dim3(cuda_blocks(a->channels, THREADS), seqs, layers),
                    THREADS, 0, *a, true);
}

/* WIDE numbers a thread where memory binds, FEW where latency does. */
template <typename T, int TAPS, int WIDE, int FEW>
static void launch_taps(struct gpu *c, const struct conv *a, int32_t longest)
{
    if (longest <= SHORT_ROWS) {
        unsigned seqs = least(a->n_seqs, 65535);
        if (FEW > 1 && is_wide(a, sizeof(T), FEW))
            launch_next(c, conv_seqs<T, TAPS, FEW>,
                        dim3(cuda_blocks(a->channels, FEW * THREADS), seqs), THREADS, 0, *a, true);
        else
            launch_next(c, conv_seqs<T, TAPS, 1>, dim3(cuda_blocks(a->channels, THREADS), seqs),
                        THREADS, 0, *a, true);
        return;
    }
    unsigned chunks = least(((int64_t)a->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS, 65535);
    if (WIDE > 1 && is_wide(a, sizeof(T), WIDE))
        launch_next(c, conv_rows<T, TAPS, WIDE>,
                    dim3(cuda_blocks(a->channels, WIDE * THREADS), chunks), THREADS, 0, *a, true);
    else
        launch_next(c, conv_rows<T, TAPS, 1>, dim3(cuda_blocks(a->channels, THREADS), chunks),
                    THREADS, 0, *a, true);
    if (a->store)
        launch_tail<T>(c, a, 1);
}

template <typename T> static void launch(struct gpu *c, const struct conv *a, int32_t longest)
{
    switch (a->taps) {
    case 2:
        return launch_taps<T, 2, 1, 1>(c, a, longest);
    case 3:
        return launch_taps<T, 3, 1, 1>(c, a, longest);
    case 4:
        return launch_taps<T, 4, 16 / sizeof(T) / 2, 2>(c, a, longest);
    case 5:
        return launch_taps<T, 5, 1, 1>(c, a, longest);
    case 6:
        return launch_taps<T, 6, 1, 1>(c, a, longest);
    case 7:
        return launch_taps<T, 7, 1, 1>(c, a, longest);
    default:
        return launch_taps<T, 8, 1, 1>(c, a, longest);
    }
}

extern "C" lathe_status
cuda_causal_conv1d_silu(void *stream, const struct causal_conv1d_silu_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct conv v = {};
    v.in = a->in.data;
    v.y = a->y.data;
    v.tail = a->tail.data;
    v.w = (const float *)a->w.data;
    v.in_stride = a->in.stride;
    v.y_stride = a->y.stride;
    v.w_stride = a->w.stride;
    v.tail_stride = a->tail.stride;
    v.channels = a->in.dim[1];
    v.taps = (int32_t)a->w.dim[1];
    v.n_rows = b.n_rows;
    v.n_seqs = b.n_seqs;
    v.seq = b.seq;
    v.seq_of = b.seq_of;
    v.store = b.phase != PHASE_VERIFY;
    int32_t longest = 0;
    for (int32_t i = 0; i < a->b->n_seqs; i++)
        longest = a->b->seq[i].n_rows > longest ? a->b->seq[i].n_rows : longest;
    WITH_ACT(a->in.dtype, T, launch<T>(c, &v, longest));
    return cuda_launched(c, err);
}

extern "C" lathe_status cuda_conv_fold(void *stream, const struct conv_fold_args *a,
                                       lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    if (a->n_seqs == 0)
        return LATHE_OK;
    struct conv v = {};
    v.in = v.y = a->in.data;
    v.tail = a->tail.data;
    v.in_stride = v.y_stride = a->in.stride;
    v.tail_stride = a->tail.stride;
    v.channels = a->in.dim[1];
    v.in_step = a->layers.record_step;
    v.tail_step = a->layers.state_step;
    v.taps = (int32_t)a->tail.dim[1] + 1;
    v.n_seqs = a->n_seqs;
    v.seq = (const struct batch_seq *)cuda_upload(c, a->seq, (size_t)a->n_seqs * sizeof *a->seq);
    if (a->layers.before)
        v.before = (const int32_t *)cuda_upload(c, a->layers.before, sizeof *v.before);
    if (v.seq)
        WITH_ACT(a->in.dtype, T, launch_tail<T>(c, &v, a->layers.n));
    return cuda_launched(c, err);
}
