/* y = W x and y += W x for few rows of a prompt by tiled matrices, on Hopper's tensor cores: W is streamed once and
 * expanded in registers. The results are those of linear_prefill.cu, bit for bit.
 *
 * There cuBLASLt adds the products of 16 columns at a time to one sum in F32, in the order of the columns. So does this
 * kernel, with the same instruction: a warpgroup has 64 rows of W, four strips, and all their columns. That cuBLASLt's
 * algorithms do so is not documented: it is tried when matrices are put in this order (cuda_linear_rows_open), and
 * tests/op/test_linear.c checks it.
 *
 * Rows of x are put in the order of shared memory first (`pack`), in panels of 64 columns (wgmma.cuh). In a word of a
 * tile a lane has eight neighbouring columns; of the 16 that are added at once it takes four, of the word of lane q % 2
 * or 2 + q % 2 of its quad: the first four where q < 2, else the others. Where in the instruction they stand does not
 * matter if both factors agree: pack puts columns of x there. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/decode.cuh"
#include "op/cuda/kv_tile.cuh"
#include "op/cuda/tiles.cuh"
#include "op/cuda/wgmma.cuh"
extern "C" {
#include "op/cuda/gemm.h"
}

/* A block is up to three warpgroups that multiply, and a warp that copies. */
enum { MOST_X = 8, MOST_UNITS = 16 }; /* units in shared memory: of x, of a warp's strips */
template <weight_format_id F> __host__ __device__ constexpr int warpgroups()
{
    return F == WF_FP8_BLOCK ? 2 : 3; /* as many as have the registers */
}
__host__ __device__ constexpr int threads_of(int n_warpgroups)
{
    return 128 * n_warpgroups + 32;
}

enum { MOST_PARTS = 3 };
struct rows_part {
    const unsigned char *codes, *scales; /* scales: NVFP4; else of rows or of blocks */
    int64_t scale_stride;                /* FP8_BLOCK: elements */
    void *y;
    int64_t y_stride;
    float alpha;
    int32_t first; /* of its strips among those of all parts */
    bool scales_f32, y_f32, add;
};
/* Matrices of one format that share their rows. */
struct rows_args {
    rows_part part[MOST_PARTS];
    const unsigned char *x; /* packed: [units][2] panels of 8 NT rows */
    int32_t units, strips, T;
    int32_t slots, rounds; /* strips a block has room for; how often it takes up to as many */
    int32_t stages, ahead; /* units in shared memory: of x, of a warp's strips */
};

/* Bytes of a strip's unit: codes, scales. */
template <weight_format_id F> __host__ __device__ constexpr int code_bytes()
{
    return STRIP_ROWS * UNIT_COLS / (F == WF_NVFP4 ? 2 : 1);
}
template <weight_format_id F> __host__ __device__ constexpr int scale_bytes()
{
    return F == WF_NVFP4 ? STRIP_ROWS * UNIT_COLS / 16 : 0;
}
template <int NT> __host__ __device__ constexpr int x_bytes()
{
    return NT * 8 * UNIT_COLS * 2;
}

/* ---- Rows ---------------------------------------------------------------------------------------- */

struct pack_args {
    const bf16 *in;
    int64_t in_stride;
    uint4 *out;
    int32_t T, n, sixteens; /* rows there are, rows of a panel, and of 16 columns */
};
/* A thread takes 16 columns of a row: pair p of them becomes the one at 0, 4, 2, 6, 1, 5, 3, 7. */
__global__ void pack(pack_args a)
{
    begin_kernel();
    int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x), t = (int32_t)blockIdx.y;
    if (i >= a.sixteens)
        return;
    uint4 v[2] = {};
    if (t < a.T) {
        const uint4 *p = (const uint4 *)(a.in + t * a.in_stride) + 2 * i;
        v[0] = p[0], v[1] = p[1];
    }
    unsigned char *panel = (unsigned char *)a.out + (int64_t)(i / 4) * a.n * 128;
    *(uint4 *)(panel + panel_at(t, i % 4 * 2)) = make_uint4(v[0].x, v[1].x, v[0].z, v[1].z);
    *(uint4 *)(panel + panel_at(t, i % 4 * 2 + 1)) = make_uint4(v[0].y, v[1].y, v[0].w, v[1].w);
}

/* ---- Products ------------------------------------------------------------------------------------ */

#if HAS_WGMMA

/* The bytes arrive at the barrier at `bar`. */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                          uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Both addresses are those of byte 0: OFFSET is part of the instruction. */
template <int OFFSET> __device__ __forceinline__ void copy16_shared(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0+%2], [%1+%2], 16;" ::"r"(to), "l"(from),
                 "n"(OFFSET));
}
/* The thread arrives at the barrier when all it has copied so is there. */
__device__ __forceinline__ void copies_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
template <int OFFSET> __device__ __forceinline__ uint4 load_shared16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at), "n"(OFFSET)
                 : "memory");
    return v;
}
/* A value that the compiler keeps instead of making it again. */
__device__ __forceinline__ uint32_t kept(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* What a lane has of a strip's unit, the words of columns 0..15 and 16..31 of every 32 apart, and how it finds its four
 * columns in a word. */
template <weight_format_id F> struct lane_unit;

template <> struct lane_unit<WF_NVFP4> {
    uint32_t word[2][2][4]; /* [half of 32][h][J] */
    four_scales scale[2][2];
    uint32_t codes, scales; /* where the lane's are in a slot */
    uint32_t m0, m1, first, second0, second1;
    __device__ __forceinline__ lane_unit()
    {
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, free = (uint32_t)E2M1_FREE;
        const bool upper = lane & 2; /* has pairs 2 and 3 of words, else 0 and 1 */
        codes = kept((4 * g + (lane & 1)) * 16);
        scales = kept(code_bytes<WF_NVFP4>() + g * 16);
        m0 = kept(upper ? free : ~0u);
        m1 = kept(upper ? free : 0);
        first = kept(upper ? 12 : 0);
        second0 = kept(upper ? 4 : 6);
        second1 = kept(upper ? 10 : 8);
    }
    __device__ __forceinline__ void load(uint32_t slot)
    {
        *(uint4 *)word[0][0] = load_shared16<0>(slot + codes);
        *(uint4 *)word[0][1] = load_shared16<512>(slot + codes);
        *(uint4 *)word[1][0] = load_shared16<32>(slot + codes);
        *(uint4 *)word[1][1] = load_shared16<544>(slot + codes);
        uint4 v = load_shared16<0>(slot + scales);
        scale[0][0] = scales_of(v.x), scale[0][1] = scales_of(v.y);
        scale[1][0] = scales_of(v.z), scale[1][1] = scales_of(v.w);
    }
    /* Columns 32 J + 16 S and on. */
    template <int J, int S> __device__ __forceinline__ void expand(uint32_t (&a)[4]) const
    {
        const uint32_t w0 = word[S][0][J], w1 = word[S][1][J];
        const uint32_t turned = __funnelshift_r(w1, w1, 2);
        const uint32_t v0 = (w0 & m0) | (turned & ~m0), v1 = (w0 & m1) | (turned & ~m1);
        const uint32_t s0 = scale_pair(scale[S][0], J), s1 = scale_pair(scale[S][1], J);
        a[0] = e2m1_pair(__funnelshift_l(w0, w0, first), s0);
        a[1] = e2m1_pair(__funnelshift_l(w1, w1, first), s1);
        a[2] = e2m1_pair(__funnelshift_l(v0, v0, second0), s0);
        a[3] = e2m1_pair(__funnelshift_l(v1, v1, second1), s1);
    }
};

template <weight_format_id F> struct lane_unit {
    uint32_t word[2][2][4]; /* [half of 32][h][J] */
    uint32_t codes;
    bool upper;
    __device__ __forceinline__ lane_unit()
    {
        const uint32_t lane = threadIdx.x % 32;
        upper = lane & 2;
        codes = kept((lane / 4 * 4 + (lane & 1)) * 16);
    }
    template <int S, int H, int P> __device__ __forceinline__ void load_piece(uint32_t at)
    {
        uint4 v = load_shared16<(2 * H + P) * 512 + S * 32>(at);
        word[S][H][2 * P] = upper ? v.y : v.x;
        word[S][H][2 * P + 1] = upper ? v.w : v.z;
    }
    __device__ __forceinline__ void load(uint32_t slot)
    {
        const uint32_t at = slot + codes;
        load_piece<0, 0, 0>(at), load_piece<0, 1, 0>(at);
        load_piece<1, 0, 0>(at), load_piece<1, 1, 0>(at);
        load_piece<0, 0, 1>(at), load_piece<0, 1, 1>(at);
        load_piece<1, 0, 1>(at), load_piece<1, 1, 1>(at);
    }
    template <int J, int S> __device__ __forceinline__ void expand(uint32_t (&a)[4]) const
    {
        fp8_pairs(word[S][0][J], a[0], a[2]);
        fp8_pairs(word[S][1][J], a[1], a[3]);
    }
};

/* Two of BF16 times a block's scale, rounded, and the rest. */
__device__ __forceinline__ void scale_pair_parts(uint32_t w, float scale, uint32_t &rounded,
                                                 uint32_t &rest)
{
    float x = __uint_as_float(w << 16) * scale, y = __uint_as_float(w & 0xFFFF0000u) * scale;
    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    __nv_bfloat162 r = __floats2bfloat162_rn(x - __low2float(v), y - __high2float(v));
    rounded = *(const uint32_t *)&v;
    rest = *(const uint32_t *)&r;
}

/* Sums: FP8_BLOCK has one of rounded weights and one of rests. */
template <weight_format_id F> __host__ __device__ constexpr int sums()
{
    return F == WF_FP8_BLOCK ? 2 : 1;
}

/* What it becomes in y, as cuBLASLt and `finish` in linear_prefill.cu do it. */
template <weight_format_id F>
__device__ __forceinline__ void put(const rows_part &p, int32_t t, int32_t row, float sum, float by)
{
    const int64_t at = t * p.y_stride + row;
    const bool later = F == WF_FP8_ROW || F == WF_FP8_BLOCK; /* it is scaled by `finish` */
    if (p.add) {
        float old = to_float(((const bf16 *)p.y)[at]);
        ((bf16 *)p.y)[at] =
            from_float<bf16>(later ? fmaf(sum, by, old) : old + __fmul_rn(p.alpha, sum));
        return;
    }
    float x = later ? sum * by : p.alpha * sum;
    if (p.y_f32)
        ((float *)p.y)[at] = x;
    else
        ((bf16 *)p.y)[at] = from_float<bf16>(x);
}
#endif

/* T <= 8 NT. Blocks stay: each has its share of strips, neighbours, and takes up to `slots` of them at a time, one a warp.
 * A warp copies its strips' units itself, ahead and past the end of a strip into its next one, and begins before the
 * kernels in front have ended. Units of x are copied by a warp of their own, for all.
 *
 * Bound by integer operations as long as rows are few, of which a multiprocessor does half as many as others, at 128 rows
 * by tensor cores; where a block has three strips or fewer by one warp's latencies. */
template <weight_format_id F, int NT>
__global__ void __launch_bounds__(threads_of(warpgroups<F>()), 1)
    linear_rows(const __grid_constant__ rows_args a)
{
#if HAS_WGMMA
    enum {
        CODES = code_bytes<F>(),
        SCALES = scale_bytes<F>(),
        X = x_bytes<NT>(),
        READ = 8 * MOST_X
    };
    extern __shared__ unsigned char shared[];
    __shared__ uint64_t x_barrier[2][MOST_X]; /* a unit of x is there; it is read */
    __shared__ uint64_t weight_barrier[4 * warpgroups<F>()][MOST_UNITS];
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t full = shared_address(x_barrier[0]), empty = full + READ;
    const int32_t warps = (int32_t)(blockDim.x / 32 - 1), warp = (int32_t)uniform(threadIdx.x / 32);
    const int32_t lane = threadIdx.x % 32;

    for (int i = threadIdx.x; i < 4 * warpgroups<F>() * MOST_UNITS; i += blockDim.x)
        barrier_init(shared_address(weight_barrier[0]) + 8 * i, 32);
    if (threadIdx.x == 0)
        for (int s = 0; s < a.stages; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, warps);
        }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* for copies too */
    __syncthreads();

    const int32_t blocks = (int32_t)gridDim.x, block = (int32_t)blockIdx.x;
    const int32_t share = a.strips / blocks, over = a.strips % blocks;
    const int32_t first = block * share + (block < over ? block : over);
    const int32_t mine = share + (block < over);
    auto strip_of = [&](int32_t round) { return first + mine * round / a.rounds; };
    auto part_of = [&](int32_t strip) -> const rows_part & {
        return a.part[(strip >= a.part[1].first) + (strip >= a.part[2].first)];
    };

    if (warp == warps) {
        begin_kernel();
        const unsigned char *from = a.x;
        uint32_t parity = 1;
        int32_t steps = lane == 0 ? a.rounds * a.units : 0, unit = 0;
        for (int s = 0; steps > 0; steps--) {
            barrier_wait(empty + 8 * s, parity);
            barrier_expect(full + 8 * s, X);
            bulk_copy(base + s * X, from, X, full + 8 * s);
            from += X;
            if (++unit == a.units)
                unit = 0, from -= (int64_t)a.units * X;
            if (++s == a.stages)
                s = 0, parity ^= 1;
        }
    } else {
        /* This warp's ring, and what is copied into it next. */
        enum { UNIT = CODES + SCALES };
        const uint32_t ring = base + a.stages * X + warp * a.ahead * UNIT;
        const uint32_t ring_end = ring + a.ahead * UNIT, x_end = base + a.stages * X;
        const uint32_t bars = shared_address(weight_barrier[warp]);
        int32_t next = 0, left = 0; /* round, units of its strip */
        const unsigned char *codes = NULL, *scales = NULL;
        auto copy_next = [&](uint32_t slot, uint32_t bar) {
            while (left == 0) {
                if (next == a.rounds)
                    return;
                int32_t own = strip_of(next) + warp;
                if (own < strip_of(++next)) {
                    const rows_part &p = part_of(own);
                    int64_t unit = (int64_t)(own - p.first) * a.units;
                    codes = p.codes + unit * CODES + lane * 16;
                    scales = p.scales + unit * SCALES + lane * 16;
                    left = a.units;
                }
            }
            left--;
            const uint32_t to = slot + lane * 16;
            copy16_shared<0>(to, codes);
            copy16_shared<512>(to, codes);
            if (CODES > 1024) {
                copy16_shared<1024>(to, codes);
                copy16_shared<1536>(to, codes);
            }
            if (SCALES && lane < SCALES / 16)
                copy16_shared<0>(to + CODES, scales);
            copies_arrive(bar);
            codes += CODES;
            scales += SCALES;
        };
        for (int32_t i = 0; i < a.ahead; i++)
            copy_next(ring + i * UNIT, bars + 8 * i);
        begin_kernel();

        lane_unit<F> u;
        uint32_t slot = ring, slot_bar = bars, slot_parity = 0; /* the unit that is loaded next */
        uint32_t x = base, x_bar = full, x_parity = 0;
        auto load_next = [&]() {
            barrier_wait(slot_bar, slot_parity);
            u.load(slot);
        };
        auto refill = [&]() {
            __syncwarp(); /* all lanes have read the unit */
            copy_next(slot, slot_bar);
            slot += UNIT;
            slot_bar += 8;
            if (slot == ring_end)
                slot = ring, slot_bar = bars, slot_parity ^= 1;
        };
        /* A unit of x is read. */
        auto release = [&](uint32_t bar) {
            if (lane == 0)
                barrier_arrive(bar + READ);
        };
        for (int32_t round = 0; round < a.rounds; round++) {
            const int32_t own = strip_of(round) + warp;
            const bool has_strip = own < strip_of(round + 1);
            const rows_part &p = part_of(own);
            const int32_t strip = own - p.first; /* of the part */
            float d[sums<F>()][NT * 4];
#pragma unroll
            for (int i = 0; i < sums<F>(); i++)
#pragma unroll
                for (int j = 0; j < NT * 4; j++)
                    d[i][j] = 0;
            uint32_t f[sums<F>()][2][4][4]; /* factors of half a unit, and of the next */
#pragma unroll
            for (int i = 0; i < sums<F>() * 32; i++)
                f[i / 32][i / 16 % 2][i / 4 % 4][i % 4] = 0;
            uint32_t before = x_bar;
            if (has_strip)
                load_next();
#pragma unroll 1
            for (int32_t unit = 0; unit < a.units; unit++) {
                const uint32_t b = panel_descriptor(x);
                float block = 0;
                if (F == WF_FP8_BLOCK && has_strip)
                    block = scale_at(p.scales, p.scales_f32,
                                     strip / (128 / STRIP_ROWS) * p.scale_stride + unit);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (has_strip) {
                        uint32_t(&v)[4][4] = f[0][half];
                        if (half == 0) {
                            u.template expand<0, 0>(v[0]);
                            u.template expand<0, 1>(v[1]);
                            u.template expand<1, 0>(v[2]);
                            u.template expand<1, 1>(v[3]);
                        } else {
                            u.template expand<2, 0>(v[0]);
                            u.template expand<2, 1>(v[1]);
                            u.template expand<3, 0>(v[2]);
                            u.template expand<3, 1>(v[3]);
                        }
                        if (F == WF_FP8_BLOCK)
#pragma unroll
                            for (int i = 0; i < 16; i++)
                                scale_pair_parts(v[i / 4][i % 4], block, v[i / 4][i % 4],
                                                 f[sums<F>() - 1][half][i / 4][i % 4]);
                    }
                    if (half == 0)
                        barrier_wait(x_bar, x_parity);
                    wgmma_fence();
#pragma unroll
                    for (int i = 0; i < sums<F>(); i++)
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            wgmma_few<true>(d[i], f[i][half][k], b + half * (X / 2 / 16) + 2 * k,
                                            bf16());
                    wgmma_commit();
                    if (half == 1 && has_strip) {
                        refill();
                        if (unit + 1 < a.units)
                            load_next();
                    }
                    wgmma_wait<1>();
#pragma unroll
                    for (int i = 0; i < sums<F>() * 4; i++)
                        wgmma_done(f[i / 4][half ^ 1][i % 4]);
                    if (half == 0 && unit > 0)
                        release(before);
                }
                before = x_bar;
                x += X;
                x_bar += 8;
                if (x == x_end)
                    x = base, x_bar = full, x_parity ^= 1;
            }
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < sums<F>(); i++)
                wgmma_done(d[i]);
            release(before);
            if (!has_strip)
                continue;
            float by[2] = {1, 1};
            const int32_t row = strip * STRIP_ROWS + lane / 4;
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (F == WF_FP8_ROW)
                    by[h] = scale_at(p.scales, p.scales_f32, row + 8 * h);
#pragma unroll
            for (int i = 0; i < NT * 4; i++) {
                int32_t t = i / 4 * 8 + lane % 4 * 2 + i % 2;
                float sum = F == WF_FP8_BLOCK ? d[sums<F>() - 1][i] + d[0][i] : d[0][i];
                if (t < a.T)
                    put<F>(p, t, row + i / 2 % 2 * 8, sum, by[i / 2 % 2]);
            }
        }
    }
#endif
}

/* ---- Host side --------------------------------------------------------------------------------- */

/* Rows that are taken at once, and at most. */
enum { ROWS_AT_ONCE = 128, MOST_ROWS = 256 };
static_assert((int)ROWS_AT_ONCE <= (int)GEMM_LEAST_ROWS, "scratch has room for as many rows");

template <weight_format_id F, int NT> static void launch_rows(struct gpu *c, rows_args a)
{
    enum {
        X = x_bytes<NT>(),
        BARRIERS = (2 * MOST_X + 4 * warpgroups<F>() * MOST_UNITS) * 8 + 64,
        ROOM = (227 << 10) - 1024 - BARRIERS,
        ENOUGH = 5, /* units ahead */
    };
    int32_t blocks = a.strips < c->n_sms ? a.strips : c->n_sms;
    int32_t most = cuda_blocks(a.strips, blocks);
    a.rounds = cuda_blocks(most, 4 * warpgroups<F>());
    a.slots = cuda_blocks(most, a.rounds);
    int32_t unit = a.slots * (code_bytes<F>() + scale_bytes<F>());
    a.stages = NT == 16 ? 4 : NT == 8 ? 5 : MOST_X;
    while (a.stages > 2 && ROOM - a.stages * X < ENOUGH * unit)
        a.stages--;
    a.ahead = (ROOM - a.stages * X) / unit;
    if (a.ahead > MOST_UNITS)
        a.ahead = MOST_UNITS;
    unsigned threads = (unsigned)threads_of(cuda_blocks(a.slots, 4));
    size_t shared = (size_t)(a.stages * X + a.ahead * unit) + 1024;
    (void)cudaFuncSetAttribute(linear_rows<F, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)shared);
    launch_next(c, linear_rows<F, NT>, (unsigned)blocks, threads, shared, a);
}

/* T rows of x and of each y. */
template <weight_format_id F, int NT>
static void multiply_rows(struct gpu *c, const struct linear_args *l, int n, int32_t t0, int32_t T)
{
    const int64_t cols = l->w->cols;
    pack_args p = {
        .in = (const bf16 *)l->in.data + t0 * l->in.stride,
        .in_stride = l->in.stride,
        .out = (uint4 *)l->scratch.data,
        .T = T,
        .n = 8 * NT,
        .sixteens = (int32_t)(cols / 16),
    };
    rows_args a = {
        .x = (const unsigned char *)l->scratch.data,
        .units = (int32_t)(cols / UNIT_COLS),
        .T = T,
    };
    for (int i = 0; i < MOST_PARTS; i++) {
        a.part[i].first = INT32_MAX;
        if (i >= n)
            continue;
        const struct weight *w = l[i].w;
        const struct tensor *y = &l[i].y;
        a.part[i] = {
            .codes = (const unsigned char *)w->codes.data,
            .scales = (const unsigned char *)w->scales.data,
            .scale_stride = w->scales.stride,
            .y = (unsigned char *)y->data + (size_t)(t0 * y->stride) * dtype_size(y->dtype),
            .y_stride = y->stride,
            .alpha = F == WF_NVFP4 ? w->global * (float)(1 << NVFP4_SHIFT) : w->global,
            .first = a.strips,
            .scales_f32 = w->scales.dtype == DT_F32,
            .y_f32 = y->dtype == DT_F32,
            .add = l[i].add,
        };
        a.strips += (int32_t)(w->rows / STRIP_ROWS);
    }
    enum { THREADS = 128 };
    dim3 grid((unsigned)cuda_blocks(p.sixteens, THREADS), (unsigned)p.n);
    launch_next(c, pack, grid, THREADS, 0, p);
    launch_rows<F, NT>(c, a);
}

template <weight_format_id F>
static void multiply(struct gpu *c, const struct linear_args *l, int n)
{
    enum { MOST = F == WF_FP8_BLOCK ? ROWS_AT_ONCE / 2 : ROWS_AT_ONCE }; /* two sums */
    const int32_t all = (int32_t)l->in.dim[0];
    for (int32_t t = 0; t < all; t += MOST) {
        const int32_t T = all - t < MOST ? all - t : MOST;
        if (T <= 16)
            multiply_rows<F, 2>(c, l, n, t, T);
        else if (T <= 32)
            multiply_rows<F, 4>(c, l, n, t, T);
        else if (T <= 64)
            multiply_rows<F, 8>(c, l, n, t, T);
        else if constexpr (F != WF_FP8_BLOCK)
            multiply_rows<F, 16>(c, l, n, t, T);
    }
}

static void multiply_any(struct gpu *c, const struct linear_args *a, int n)
{
    switch (a->w->format) {
    case WF_NVFP4:
        multiply<WF_NVFP4>(c, a, n);
        break;
    case WF_FP8_ROW:
        multiply<WF_FP8_ROW>(c, a, n);
        break;
    case WF_FP8_BLOCK:
        multiply<WF_FP8_BLOCK>(c, a, n);
        break;
    default:
        multiply<WF_FP8_TENSOR>(c, a, n);
    }
}

extern "C" bool cuda_linear_rows_takes(const struct gpu *c, const struct linear_args *a)
{
    return c->rows_known && c->rows_family >= 0 && a->w->tiled && a->in.dtype == DT_BF16 &&
           a->in.dim[0] <= MOST_ROWS && rows_aligned(a->in.data, a->in.stride, sizeof(bf16));
}

extern "C" lathe_status cuda_linear_rows(struct gpu *c, const struct linear_args *a,
                                         lathe_error *err)
{
    multiply_any(c, a, 1);
    return cuda_launched(c, err);
}

extern "C" bool cuda_linears_rows(struct gpu *c, const struct linear_args *a, int n)
{
    if (n > MOST_PARTS || !a->scratch.data)
        return false;
    for (int i = 0; i < n; i++)
        if (a[i].w->format != a->w->format || a[i].of || !cuda_linear_prefill_by_rows(c, &a[i]))
            return false;
    multiply_any(c, a, n);
    return true;
}

/* ---- Does cuBLASLt add in this order? ----------------------------------------------------------------- */

/* E4M3 codes of all exponents, arranged, and numbers for them: in another order they have other sums. */
__global__ void fill_trial(uint32_t *codes, bf16 *x, uint32_t n_codes, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, v = i * 2654435761u;
    v = (v ^ v >> 15) * 2246822519u;
    v ^= v >> 13;
    if (i < n_codes) {
        uint32_t nan = e4m3_nan(v) & 0x80808080u;
        codes[i] = fp8_arrange(v ^ nan >> 7);
    } else if (i < n)
        x[i - n_codes] = from_float<bf16>((float)(int32_t)v * 0x1p-31f);
}

__global__ void compare_trial(const uint32_t *a, const uint32_t *b, int32_t n, int *differ)
{
    int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n && a[i] != b[i])
        *differ = 1;
}

extern "C" void cuda_linear_rows_open(struct gpu *c)
{
    enum { ROWS = 512, COLS = 2048, T = ROWS_AT_ONCE, CODES = ROWS * COLS, X = T * COLS * 2 };
    enum { Y = T * ROWS * 4, SCRATCH = 2 * CODES + X + Y, THREADS = 256 };
    static_assert(CODES + X + 2 * Y + SCRATCH + 256 <= CUDA_RING, "");
    if (c->rows_known)
        return;
    c->rows_known = true;
    c->rows_family = -1;
    unsigned char *at = c->sm == 90 && c->gemm ? cuda_scratch(c) : NULL;
    if (!at)
        return;
    unsigned char *x = at + CODES, *y[2] = {x + X, x + X + Y}, *scratch = y[1] + Y;
    int *differ = (int *)(scratch + SCRATCH), host = 1;
    struct weight w = {};
    w.format = WF_FP8_TENSOR;
    w.rows = ROWS;
    w.cols = COLS;
    w.codes = tensor_2d(at, DT_F8_E4M3, ROWS, COLS);
    w.global = 1;
    w.tiled = true;
    struct linear_args a = {};
    a.in = tensor_2d(x, DT_BF16, T, COLS);
    a.w = &w;
    a.phase = PHASE_PREFILL;
    a.scratch = tensor_2d(scratch, DT_U8, 1, SCRATCH);
    enum prompt_math math = c->prompt_math;
    c->prompt_math = PROMPT_ACT;
    uint32_t n_codes = CODES / 4, n = n_codes + X / 2;
    fill_trial<<<(unsigned)cuda_blocks(n, THREADS), THREADS, 0, c->stream>>>((uint32_t *)at,
                                                                             (bf16 *)x, n_codes, n);
    cudaMemsetAsync(differ, 0, sizeof *differ, c->stream);
    lathe_error err;
    lathe_status st = LATHE_OK;
    for (int i = 0; i < 2 && !st; i++) {
        a.y = tensor_2d(y[i], DT_F32, T, ROWS);
        st = i == 0 ? cuda_linear_prefill(c, &a, &err) : cuda_linear_rows(c, &a, &err);
    }
    c->prompt_math = math;
    compare_trial<<<cuda_blocks(T * ROWS, THREADS), THREADS, 0, c->stream>>>(
        (const uint32_t *)y[0], (const uint32_t *)y[1], T * ROWS, differ);
    cudaMemcpyAsync(&host, differ, sizeof host, cudaMemcpyDeviceToHost, c->stream);
    if (!st && !cudaStreamSynchronize(c->stream) && !host)
        c->rows_family = gemm_family(c->gemm, {.n = ROWS, .k = COLS, .d_f32 = true});
}
