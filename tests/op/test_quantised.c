/* Products of quantised rows: the formulas against their definition, and the kernels that make codes and scales. The
 * products themselves are in test_linear.c. */
#include <math.h>

#include "op_test.h"
#include "tensor/number.h"
#ifdef LATHE_CUDA
#include "op/cuda/gemm.h"
#include "op/cuda/quantised.h"
#endif

enum { T = 7, COLS = 192 };

/* Rows of all sizes: usual numbers, zeros, one that dwarfs the others, powers of two, ties, tiny ones. */
static struct tensor rows_of_all_kinds(int64_t gap)
{
    struct rng r = {31};
    struct tensor in = op_tensor(DT_BF16, T, COLS, gap);
    op_fill_normal(&in, &r, 0, 1);
    for (int64_t c = 0; c < COLS; c++) {
        op_put(&in, 1, c, 0);
        op_put(&in, 2, c, c == 7 ? 1e30 : (double)c - 90);
        op_put(&in, 3, c, ldexp(c % 2 ? -1 : 1, (int)(c % 24) - 12));
        op_put(&in, 4, c, c == 100 ? 2688 : c % 16 == 3 ? 6 : (double)(c % 48) / 8 - 3);
        op_put(&in, 5, c, 1e-38 * (double)(c % 5));
        if (c / 16 == 4)
            op_put(&in, 6, c, 0);
    }
    return in;
}

/* The number of a format that is nearest, of two as near the one with the even code: by trying all codes from 0 on that
 * have no sign. Beyond the largest it is that. */
static uint8_t nearest(double x, int n_codes, float (*value)(uint8_t))
{
    int best = 0;
    for (int c = 1; c < n_codes; c++) {
        double d = fabs(fabs(x) - (double)value((uint8_t)c));
        double least = fabs(fabs(x) - (double)value((uint8_t)best));
        if (d < least || (d == least && c % 2 == 0))
            best = c;
    }
    return (uint8_t)best;
}

/* Row t as PROMPT_FP8 says. */
static void fp8_row(const struct tensor *in, int64_t t, double *out)
{
    double most = 0;
    for (int64_t c = 0; c < COLS; c++)
        most = fmax(most, fabs(op_at(in, t, c)));
    float s = most > 0 ? (float)most / 448 : 1;
    for (int64_t c = 0; c < COLS; c++) {
        float x = (float)op_at(in, t, c) / s;
        out[c] = copysign((double)e4m3_to_f32(nearest((double)x, 127, e4m3_to_f32)), (double)x) *
                 (double)s;
    }
}

/* Row t as PROMPT_NVFP4 says: its scale, those of its blocks, and its codes. */
static float nvfp4_row(const struct tensor *in, int64_t t, uint8_t *block_scale, uint8_t *code)
{
    double most = 0;
    for (int64_t c = 0; c < COLS; c++)
        most = fmax(most, fabs(op_at(in, t, c)));
    float s = most > 0 ? (float)most / 2688 : 1;
    for (int64_t b = 0; b < COLS / 16; b++) {
        most = 0;
        for (int64_t c = 16 * b; c < 16 * b + 16; c++)
            most = fmax(most, fabs(op_at(in, t, c)));
        block_scale[b] = nearest((double)((float)most / 6 / s), 127, e4m3_to_f32);
        float step = e4m3_to_f32(block_scale[b]) * s;
        for (int64_t c = 16 * b; c < 16 * b + 16; c++) {
            float x = (float)op_at(in, t, c) / step;
            code[c] = 0;
            if (step > 0)
                code[c] = (uint8_t)(nearest((double)x, 8, e2m1_to_f32) | (signbit(x) ? 8 : 0));
        }
    }
    return s;
}

static void nvfp4_values(const struct tensor *in, int64_t t, double *out)
{
    uint8_t block_scale[COLS / 16], code[COLS];
    double s = (double)nvfp4_row(in, t, block_scale, code);
    for (int64_t c = 0; c < COLS; c++)
        out[c] = s * (double)e4m3_to_f32(block_scale[c / 16]) * (double)e2m1_to_f32(code[c]);
}

TEST(the_reference_is_the_definition)
{
    enum { ROWS = 128 };
    static const enum weight_format_id format[] = {WF_FP8_TENSOR, WF_FP8_ROW, WF_FP8_BLOCK,
                                                   WF_NVFP4, WF_BF16};
    struct op_env *ref = op_ref();
    struct rng r = {32};
    lathe_error err;
    for (int math = PROMPT_ACT; math <= PROMPT_NVFP4; math++) {
        CHECK_OK(ref->backend->set_prompt_math(ref->stream, (enum prompt_math)math, &err), &err);
        for (int f = 0; f < 5; f++)
            for (int phase = PHASE_PREFILL; phase <= PHASE_DECODE; phase++) {
                struct weight w = op_weight(format[f], ROWS, COLS, &r, 0.1);
                struct tensor in = rows_of_all_kinds(3), y = op_tensor(DT_F32, T, ROWS, 0),
                              want = op_tensor(DT_F32, T, ROWS, 0);
                bool fp8 = math != PROMPT_ACT && f < 2 && phase == PHASE_PREFILL;
                bool nvfp4 = math == PROMPT_NVFP4 && f == 3 && phase == PHASE_PREFILL;
                for (int64_t t = 0; t < T; t++) {
                    double x[COLS];
                    for (int64_t c = 0; c < COLS; c++)
                        x[c] = op_at(&in, t, c);
                    if (fp8)
                        fp8_row(&in, t, x);
                    if (nvfp4)
                        nvfp4_values(&in, t, x);
                    for (int64_t row = 0; row < ROWS; row++) {
                        float v[COLS];
                        double sum = 0;
                        weight_formats[format[f]].unpack(v, &w, row, 0, COLS);
                        for (int64_t c = 0; c < COLS; c++)
                            sum += (double)v[c] * x[c];
                        op_put(&want, t, row, sum);
                    }
                }
                op_case("math %d, %s, phase %d", math, weight_formats[format[f]].name, phase);
                (void)exec_phase(&ref->exec, (enum phase)phase);
                op_linear(&ref->exec, y, in, &w);
                op_check_ok(ref);
                op_check_near("y", &y, &want, TOL_ROW_F32);
                op_done();
            }
    }
    CHECK_OK(ref->backend->set_prompt_math(ref->stream, PROMPT_ACT, &err), &err);
}

#ifdef LATHE_CUDA
static struct gpu *gpu(void)
{
    int n;
    struct op_env *env = op_envs(&n);
    if (strcmp(env->backend->name, "cuda") != 0)
        SKIP("there is no GPU");
    return env->stream;
}

/* Where cuBLASLt's documentation has the scale: tiles of 128 rows by 4, 512 bytes each. */
static int64_t place(int64_t row, int64_t block, int64_t blocks)
{
    int64_t tile = row / 128 * (blocks / 4) + block / 4;
    return 512 * tile + 16 * (row % 32) + 4 * (row % 128 / 32) + block % 4;
}

TEST(kernels_make_the_codes_of_rows)
{
    enum { ROWS = 128 };
    struct gpu *c = gpu();
    lathe_error err;
    for (int k = 0; k < 3; k++) {
        static const int64_t gaps[] = {0, 3, 8};
        int64_t gap = gaps[k];
        struct tensor in = rows_of_all_kinds(gap);
        uint8_t *code = op_alloc(ROWS * COLS), *block_scale = op_alloc(ROWS * COLS / 16);
        float *scale = op_alloc(ROWS * sizeof *scale);
        op_case("gap %lld", (long long)gap);
        cuda_e4m3_rows(c, &in, ROWS, code, scale);
        CHECK_OK(backend_cuda.wait(c, &err), &err);
        for (int64_t t = 0; t < ROWS; t++) {
            double x[COLS] = {0};
            if (t < T)
                fp8_row(&in, t, x);
            for (int64_t i = 0; i < COLS; i++) {
                double got = (double)scale[t] * (double)e4m3_to_f32(code[t * COLS + i]);
                if (got != x[i])
                    OP_FAIL("E4M3 [%lld, %lld] is %g, expected %g", (long long)t, (long long)i, got,
                            x[i]);
            }
        }
        cuda_nvfp4_rows(c, &in, ROWS, code, block_scale, scale);
        CHECK_OK(backend_cuda.wait(c, &err), &err);
        for (int64_t t = 0; t < ROWS; t++) {
            uint8_t blocks[COLS / 16] = {0}, codes[COLS] = {0};
            float s = t < T ? nvfp4_row(&in, t, blocks, codes) : 1;
            CHECK(scale[t] == s);
            for (int64_t i = 0; i < COLS; i++) {
                int got = code[(t * COLS + i) / 2] >> 4 * (i % 2) & 15;
                int d = block_scale[place(t, i / 16, COLS / 16)];
                if (got != codes[i] || d != blocks[i / 16])
                    OP_FAIL("NVFP4 [%lld, %lld] is %x in a block of %02x, expected %x, %02x",
                            (long long)t, (long long)i, got, d, codes[i], blocks[i / 16]);
            }
        }
        op_free(code);
        op_free(block_scale);
        op_free(scale);
        op_done();
    }
}

/* What is not finite makes a row NaN. */
TEST(kernels_keep_what_is_not_finite)
{
    enum { ROWS = 128 };
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    struct gpu *c = gpu();
    lathe_error err;
    uint8_t *code = op_alloc(ROWS * COLS), *block_scale = op_alloc(ROWS * COLS / 16);
    float *scale = op_alloc(ROWS * sizeof *scale);
    for (int i = 0; i < 3; i++) {
        struct tensor in = rows_of_all_kinds(0);
        op_put(&in, 0, 37, bad[i]);
        cuda_e4m3_rows(c, &in, ROWS, code, scale);
        CHECK_OK(backend_cuda.wait(c, &err), &err);
        CHECK((code[37] & 0x7F) == 0x7F);
        cuda_nvfp4_rows(c, &in, ROWS, code, block_scale, scale);
        CHECK_OK(backend_cuda.wait(c, &err), &err);
        CHECK_INT(block_scale[place(0, 2, COLS / 16)], 0x7F);
        op_done();
    }
    op_free(code);
    op_free(block_scale);
    op_free(scale);
}

/* A tiled matrix as cuBLASLt reads it: its own codes and scales. */
TEST(kernels_make_rows_of_tiles)
{
    enum { ROWS = 160, WIDE = 384, FIRST = 32, N = 128 };
    struct gpu *c = gpu();
    struct rng r = {33};
    lathe_error err;
    struct weight w = op_weight(WF_NVFP4, ROWS, WIDE, &r, 0.1), *list = &w;
    size_t bytes = ROWS * WIDE / 2, scale_bytes = ROWS * WIDE / 16;
    uint8_t *was = malloc(bytes), *scale_was = malloc(scale_bytes);
    uint8_t *code = op_alloc(N * WIDE / 2), *scale = op_alloc((size_t)gemm_scale_bytes(N, WIDE));
    CHECK(was && scale_was && code && scale);
    uint8_t *scales = w.scales.data;
    for (size_t i = 0; i < scale_bytes; i++)
        scales[i] = (uint8_t)(i % 127);
    memcpy(was, w.codes.data, bytes);
    memcpy(scale_was, scales, scale_bytes);
    CHECK_OK(backend_cuda.arrange(c, &list, 1, &err), &err);
    CHECK(w.tiled);
    cuda_nvfp4_of_tiles(c, &w, FIRST, N, code, scale);
    CHECK_OK(backend_cuda.wait(c, &err), &err);
    for (int64_t row = 0; row < N; row++)
        for (int64_t k = 0; k < WIDE; k++) {
            int64_t i = (row + FIRST) * WIDE + k;
            int d = scale_was[i / 16], got_d = scale[place(row, k / 16, WIDE / 16)];
            int want = d ? was[i / 2] >> 4 * (k % 2) & 15 : 0;
            int got = code[(row * WIDE + k) / 2] >> 4 * (k % 2) & 15;
            if (got != want || (d && got_d != d))
                OP_FAIL("[%lld, %lld] is %x in a block of %02x, expected %x, %02x", (long long)row,
                        (long long)k, got, got_d, want, d);
        }
    free(was);
    free(scale_was);
    op_free(code);
    op_free(scale);
    op_done();
}
#endif
