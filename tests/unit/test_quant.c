/* Number formats bit by bit, and weight formats: bytes, round trips, cases B79 and B80. */
#include <float.h>
#include <jansson.h>

#include "quant/formats.h"
#include "tensor/number.h"
#include "tensor/tensor.h"
#include "test.h"

/* ---- Numbers: against values and roundings written out in double ------------------------- */

/* The value of a small float in double: `bias`, mantissa bits. */
static double small_value(unsigned code, int exp_bits, int man_bits, int bias)
{
    unsigned man = code & ((1u << man_bits) - 1), exp = code >> man_bits & ((1u << exp_bits) - 1);
    double sign = code >> (exp_bits + man_bits) & 1 ? -1 : 1;
    if (exp == 0)
        return sign * ldexp(man, 1 - bias - man_bits);
    return sign * ldexp(man + (1u << man_bits), (int)exp - bias - man_bits);
}

TEST(bf16_and_f16_values)
{
    for (unsigned c = 0; c < 65536; c++) {
        double b = small_value(c, 8, 7, 127), h = small_value(c, 5, 10, 15);
        float got = bf16_to_f32((uint16_t)c);
        if ((c >> 7 & 0xFF) == 0xFF)
            CHECK(c & 0x7F ? isnan(got) : isinf(got));
        else if ((double)got != b || !!signbit(got) != (int)(c >> 15))
            FAIL("bf16 %04x: %g, expected %g", c, (double)got, b);
        got = f16_to_f32((uint16_t)c);
        if ((c >> 10 & 0x1F) == 0x1F)
            CHECK(c & 0x3FF ? isnan(got) : isinf(got));
        else if ((double)got != h || !!signbit(got) != (int)(c >> 15))
            FAIL("f16 %04x: %g, expected %g", c, (double)got, h);
    }
}

TEST(bf16_and_f16_round_trip)
{
    for (unsigned c = 0; c < 65536; c++) {
        uint16_t back = bf16_from_f32(bf16_to_f32((uint16_t)c));
        bool nan = (c & 0x7FFF) > 0x7F80;
        if (nan ? (back & 0x7FFF) <= 0x7F80 || !(back & 0x40) : back != c)
            FAIL("bf16 %04x came back as %04x", c, back);
        back = f16_from_f32(f16_to_f32((uint16_t)c));
        nan = (c & 0x7FFF) > 0x7C00;
        if (nan ? (back & 0x7FFF) <= 0x7C00 : back != c)
            FAIL("f16 %04x came back as %04x", c, back);
    }
}

/* The nearest of the values v(0) < v(1) < ... v(n - 1), ties to the even index. */
static unsigned nearest(double x, double (*v)(unsigned), unsigned n)
{
    unsigned lo = 0, hi = n - 1;
    if (x >= v(hi))
        return hi;
    while (hi - lo > 1) {
        unsigned mid = (lo + hi) / 2;
        *(v(mid) <= x ? &lo : &hi) = mid;
    }
    double down = x - v(lo), up = v(hi) - x;
    return down < up || (down == up && lo % 2 == 0) ? lo : hi;
}

static double v_bf16(unsigned c)
{
    return small_value(c, 8, 7, 127);
}
static double v_f16(unsigned c)
{
    return small_value(c, 5, 10, 15);
}
static double v_e4m3(unsigned c)
{
    return small_value(c, 4, 3, 7);
}
static double v_e2m1(unsigned c)
{
    return small_value(c, 2, 1, 1);
}

/* x and its sign twin through every encoder. Index 0x7F80 of bf16 and 0x7C00 of f16, one step above
 * the largest finite value, stand for infinity. */
static void check_rounding(float x)
{
    double a = fabs((double)x);
    unsigned sign = signbit(x) ? 1 : 0;
    unsigned want = nearest(a, v_bf16, 0x7F81) | sign << 15, got = bf16_from_f32(x);
    if (got != want)
        FAIL("bf16 of %a: %04x, expected %04x", (double)x, got, want);
    want = nearest(a, v_f16, 0x7C01) | sign << 15, got = f16_from_f32(x);
    if (got != want)
        FAIL("f16 of %a: %04x, expected %04x", (double)x, got, want);
    want = nearest(a, v_e4m3, 0x7F) | sign << 7, got = e4m3_from_f32(x);
    if (got != want)
        FAIL("e4m3 of %a: %02x, expected %02x", (double)x, got, want);
    want = nearest(a, v_e2m1, 8) | sign << 3, got = e2m1_from_f32(x);
    if (got != want)
        FAIL("e2m1 of %a: %x, expected %x", (double)x, got, want);
}

TEST(rounding_of_random_floats)
{
    struct rng r = {1};
    for (int i = 0; i < 300000; i++) {
        float x = f32_from_bits((uint32_t)rng_u64(&r));
        if (isfinite(x))
            check_rounding(x);
        check_rounding((float)(rng_normal(&r) * exp(8 * rng_normal(&r))));
    }
}

static void check_around(double x)
{
    float f = (float)x;
    check_rounding(f);
    check_rounding(-f);
    check_rounding(nextafterf(f, INFINITY));
    check_rounding(nextafterf(f, 0));
}

TEST(rounding_at_every_value_and_tie)
{
    for (unsigned c = 0; c < 0x7E; c++) {
        check_around(v_e4m3(c));
        check_around((v_e4m3(c) + v_e4m3(c + 1)) / 2);
    }
    for (unsigned c = 0; c < 7; c++) {
        check_around(v_e2m1(c));
        check_around((v_e2m1(c) + v_e2m1(c + 1)) / 2);
    }
    for (unsigned c = 0; c < 0x7C00; c++)
        check_around((v_f16(c) + v_f16(c + 1)) / 2);
    for (unsigned c = 0x80; c < 0x7F7F; c++)
        check_around((v_bf16(c) + v_bf16(c + 1)) / 2);
    static const float edges[] = {0,     448,     449,     464,          465, 65504, 65519, 65520,
                                  65535, FLT_MAX, FLT_MIN, FLT_TRUE_MIN, 5,   6,     7};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        check_around((double)edges[i]);
}

TEST(special_values_of_encoders)
{
    CHECK_INT(bf16_from_f32(INFINITY), 0x7F80);
    CHECK_INT(f16_from_f32(-INFINITY), 0xFC00);
    CHECK_INT(e4m3_from_f32(INFINITY), 0x7E);
    CHECK_INT(e4m3_from_f32(-INFINITY), 0xFE);
    CHECK_INT(e4m3_from_f32(NAN) & 0x7F, 0x7F);
    CHECK_INT(e2m1_from_f32(-INFINITY), 15);
    CHECK_INT(e2m1_from_f32(-0.0f), 8);
    CHECK(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7F800001)))));
    CHECK(isnan(f16_to_f32(f16_from_f32(f32_from_bits(0xFF800001)))));
}

TEST(e4m3_and_e2m1_tables)
{
    for (unsigned c = 0; c < 256; c++) {
        float f = e4m3_to_f32((uint8_t)c), t = e4m3_value[c];
        if ((c & 0x7F) == 0x7F) {
            CHECK(isnan(f) && isnan(t));
            continue;
        }
        if ((double)f != small_value(c, 4, 3, 7) || f32_bits(f) != f32_bits(t))
            FAIL("e4m3 %02x: %g and %g", c, (double)f, (double)t);
        CHECK_INT(e4m3_from_f32(f), c);
    }
    static const float want[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (unsigned c = 0; c < 16; c++) {
        float f = e2m1_to_f32((uint8_t)c);
        CHECK(fabsf(f) == want[c & 7] && !!signbit(f) == (c >= 8));
        CHECK_INT(e2m1_from_f32(f), c);
        CHECK(e2m1_to_f32((uint8_t)(c | 0xF0)) == f);
    }
}

TEST(to_and_from_f32_at_odd_addresses)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_F8_E4M3};
    float x[9], y[9];
    for (int i = 0; i < 9; i++)
        x[i] = (float)(i - 4) * 0.5f;
    for (size_t d = 0; d < 4; d++) {
        unsigned char bytes[64];
        from_f32(bytes + 1, dtypes[d], x, 9);
        to_f32(y, bytes + 1, dtypes[d], 9);
        CHECK(memcmp(x, y, sizeof x) == 0);
    }
}

/* ---- Weight formats ------------------------------------------------------------------------ */

struct matrix {
    struct weight w;
    unsigned char *codes, *scales; /* one byte off any alignment */
};

static struct matrix matrix_new(enum weight_format_id format, int64_t rows, int64_t cols,
                                enum dtype scales_dtype)
{
    struct matrix m = {0};
    lathe_error e;
    CHECK_OK(weight_formats[format].layout(&m.w, rows, cols, scales_dtype, &e), &e);
    CHECK(m.w.codes.data == NULL && m.w.scales.data == NULL && m.w.global == 1);
    CHECK_INT(m.w.format, format);
    m.codes = calloc(weight_bytes(&m.w) + 1, 1);
    m.scales = calloc(weight_bytes(&m.w) + 1, 1);
    CHECK(m.codes && m.scales);
    m.w.codes.data = m.codes + 1;
    if (m.w.scales.n_dims)
        m.w.scales.data = m.scales + 1;
    return m;
}

static void matrix_free(struct matrix *m)
{
    free(m->codes);
    free(m->scales);
}

static float *random_matrix(int64_t n, uint64_t seed, float *amax)
{
    struct rng r = {seed};
    float *x = malloc((size_t)n * sizeof *x);
    CHECK(x);
    *amax = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(0.05 * rng_normal(&r));
        *amax = fmaxf(*amax, fabsf(x[i]));
    }
    return x;
}

static void unpack_all(const struct weight *w, float *out)
{
    for (int64_t r = 0; r < w->rows; r++)
        weight_formats[w->format].unpack(out + r * w->cols, w, r, 0, w->cols);
}

static const struct {
    int64_t rows, cols;
} shapes[] = {{1, 16}, {3, 48}, {128, 128}, {129, 144}, {200, 320}, {260, 1088}};

/* Largest error of one value, relative to the largest value under the same scale: half a step of
 * the codes, plus what the rounding of scales to BF16 or E4M3 adds by clipping. */
static double step_of(enum weight_format_id format)
{
    switch (format) {
    case WF_F32:
        return 0;
    case WF_BF16:
        return 0x1p-8;
    case WF_F16:
        return 0x1p-11;
    case WF_NVFP4:
        return 1.0 / 6 + 1.0 / 16;
    default:
        return 1.0 / 28 + 0x1p-9;
    }
}

TEST(round_trip_stays_within_half_a_step)
{
    for (int f = 0; f < WF_COUNT; f++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int b = 0; b < 2; b++) {
                int64_t rows = shapes[s].rows, cols = shapes[s].cols, n = rows * cols;
                struct matrix m =
                    matrix_new((enum weight_format_id)f, rows, cols, b ? DT_BF16 : DT_F32);
                float amax, *x = random_matrix(n, s + 1, &amax), *y = malloc((size_t)n * sizeof *y);
                CHECK(y);
                m.w.global = weight_global_for(m.w.format, amax);
                weight_formats[f].pack(&m.w, x, 0, rows);
                unpack_all(&m.w, y);
                for (int64_t i = 0; i < n; i++)
                    if (!(fabs((double)x[i] - (double)y[i]) <= step_of(m.w.format) * (double)amax))
                        FAIL("%s [%lld, %lld] value %lld: %g became %g", weight_formats[f].name,
                             (long long)rows, (long long)cols, (long long)i, (double)x[i],
                             (double)y[i]);
                lathe_error e;
                CHECK_OK(weight_check_scales(&m.w, &e), &e);
                free(x);
                free(y);
                matrix_free(&m);
            }
}

TEST(packing_again_changes_nothing)
{
    for (int f = 0; f < WF_COUNT; f++) {
        enum { ROWS = 130, COLS = 160 };
        struct matrix a = matrix_new((enum weight_format_id)f, ROWS, COLS, DT_F32);
        struct matrix b = matrix_new((enum weight_format_id)f, ROWS, COLS, DT_F32);
        float amax, *x = random_matrix(ROWS * COLS, 7, &amax), *y = malloc(sizeof *y * ROWS * COLS);
        CHECK(y);
        a.w.global = b.w.global = weight_global_for(a.w.format, amax);
        weight_formats[f].pack(&a.w, x, 0, ROWS);
        unpack_all(&a.w, y);
        weight_formats[f].pack(&b.w, y, 0, 128);
        weight_formats[f].pack(&b.w, y + 128 * COLS, 128, ROWS - 128);
        unpack_all(&b.w, x);
        for (int i = 0; i < ROWS * COLS; i++)
            /* A scale may come out one rounding apart; the value must not move by more. */
            if (!(fabs((double)x[i] - (double)y[i]) <= 0x1p-20 * (double)amax))
                FAIL("%s: value %d moved from %g to %g", weight_formats[f].name, i, (double)y[i],
                     (double)x[i]);
        free(x);
        free(y);
        matrix_free(&a);
        matrix_free(&b);
    }
}

TEST(unpack_of_pieces_equals_unpack_of_the_row)
{
    enum { ROWS = 130, COLS = 304 };
    for (int f = 0; f < WF_COUNT; f++) {
        struct matrix m = matrix_new((enum weight_format_id)f, ROWS, COLS, DT_BF16);
        float amax, *x = random_matrix(ROWS * COLS, 9, &amax), row[COLS], piece[COLS + 2];
        m.w.global = weight_global_for(m.w.format, amax);
        weight_formats[f].pack(&m.w, x, 0, ROWS);
        for (int64_t r = 0; r < ROWS; r += 43) {
            weight_formats[f].unpack(row, &m.w, r, 0, COLS);
            for (int64_t c = 0; c < COLS; c += 16)
                for (int64_t n = 16; c + n <= COLS; n += 48) {
                    piece[0] = piece[n + 1] = 12345;
                    weight_formats[f].unpack(piece + 1, &m.w, r, c, n);
                    CHECK(memcmp(piece + 1, row + c, (size_t)n * sizeof *row) == 0);
                    CHECK(piece[0] == 12345 && piece[n + 1] == 12345);
                }
        }
        free(x);
        matrix_free(&m);
    }
}

/* Every code word, with the value written out from the number's definition. */
TEST(all_codes_mean_their_values)
{
    struct matrix m = matrix_new(WF_FP8_ROW, 2, 256, DT_F32);
    uint8_t *code = m.w.codes.data;
    float scale[2] = {0.25f, -3}, y[256];
    memcpy(m.w.scales.data, scale, sizeof scale);
    for (int i = 0; i < 512; i++)
        code[i] = (uint8_t)i;
    for (int r = 0; r < 2; r++) {
        fp8_row_unpack(y, &m.w, r, 0, 256);
        for (int c = 0; c < 256; c++)
            CHECK((c & 0x7F) == 0x7F ? isnan(y[c])
                                     : (double)y[c] == v_e4m3((unsigned)c) * (double)scale[r]);
    }
    matrix_free(&m);

    m = matrix_new(WF_NVFP4, 256, 512, DT_F32); /* row: scale code; byte of the row: code pair */
    code = m.w.codes.data;
    m.w.global = 0.75f;
    for (int r = 0; r < 256; r++) {
        memset((uint8_t *)m.w.scales.data + r * 32, r, 32);
        for (int c = 0; c < 256; c++)
            code[r * 256 + c] = (uint8_t)c;
    }
    for (int r = 0; r < 256; r++) {
        float z[512];
        nvfp4_unpack(z, &m.w, r, 0, 512);
        for (int c = 0; c < 512; c++) {
            unsigned q = (unsigned)(c % 2 ? c / 2 >> 4 : c / 2 & 15);
            double want = v_e2m1(q) * v_e4m3((unsigned)r) * 0.75; /* few bits: exact */
            if ((r & 0x7F) == 0x7F ? !isnan(z[c]) : (double)z[c] != want)
                FAIL("scale %02x code %x: %g, expected %g", (unsigned)r, q, (double)z[c], want);
        }
    }
    matrix_free(&m);
}

TEST(fp8_block_scales_cover_their_blocks)
{
    enum { ROWS = 300, COLS = 272 };
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    for (int d = 0; d < 2; d++) {
        struct matrix m = matrix_new(WF_FP8_BLOCK, ROWS, COLS, dtypes[d]);
        CHECK_INT(m.w.scales.dim[0], 3);
        CHECK_INT(m.w.scales.dim[1], 3);
        memset(m.w.codes.data, 0x38, ROWS * COLS); /* 1.0 */
        float s[9], y[COLS];
        for (int i = 0; i < 9; i++)
            s[i] = (float)(i + 1);
        from_f32(m.w.scales.data, dtypes[d], s, 9);
        for (int r = 0; r < ROWS; r++) {
            fp8_block_unpack(y, &m.w, r, 0, COLS);
            for (int c = 0; c < COLS; c++)
                CHECK(y[c] == s[r / 128 * 3 + c / 128]);
        }
        matrix_free(&m);
    }
}

TEST(same_numbers_in_two_formats)
{
    enum { ROWS = 256, COLS = 256 };
    float amax, *x = random_matrix(ROWS * COLS, 3, &amax), *y = malloc(sizeof *y * ROWS * COLS);
    float *z = malloc(sizeof *z * ROWS * COLS);
    CHECK(y && z);
    struct matrix t = matrix_new(WF_FP8_TENSOR, ROWS, COLS, DT_F32);
    struct matrix r = matrix_new(WF_FP8_ROW, ROWS, COLS, DT_F32);
    struct matrix b = matrix_new(WF_FP8_BLOCK, ROWS, COLS, DT_F32);
    t.w.global = weight_global_for(WF_FP8_TENSOR, amax);
    fp8_tensor_pack(&t.w, x, 0, ROWS);
    unpack_all(&t.w, y);
    /* The same codes, and the one scale repeated. */
    r.w.codes = b.w.codes = t.w.codes;
    float scales[ROWS];
    for (int i = 0; i < ROWS; i++)
        scales[i] = t.w.global;
    memcpy(r.w.scales.data, scales, sizeof scales);
    memcpy(b.w.scales.data, scales, 4 * sizeof *scales);
    unpack_all(&r.w, z);
    CHECK(memcmp(y, z, sizeof *y * ROWS * COLS) == 0);
    unpack_all(&b.w, z);
    CHECK(memcmp(y, z, sizeof *y * ROWS * COLS) == 0);
    /* What a format holds exactly survives in BF16 (E4M3 times a power of two) and F32. */
    struct matrix h = matrix_new(WF_BF16, ROWS, COLS, DT_F32);
    struct matrix f = matrix_new(WF_F32, ROWS, COLS, DT_F32);
    t.w.global = 0x1p-12f;
    unpack_all(&t.w, y);
    bf16_pack(&h.w, y, 0, ROWS);
    f32_pack(&f.w, y, 0, ROWS);
    unpack_all(&h.w, z);
    CHECK(memcmp(y, z, sizeof *y * ROWS * COLS) == 0);
    unpack_all(&f.w, z);
    CHECK(memcmp(y, z, sizeof *y * ROWS * COLS) == 0);
    matrix_free(&t), matrix_free(&r), matrix_free(&b), matrix_free(&h), matrix_free(&f);
    free(x), free(y), free(z);
}

TEST(golden_bytes)
{
    static const float x[16] = {6, 3, -1.5f, 0, .5f, 1, 2, 4, -6, -3, -2, -1, -.5f, 4, 0, 1.5f};
    static const unsigned char codes[8] = {0x57, 0x0B, 0x21, 0x64, 0xDF, 0xAC, 0x69, 0x30};
    struct matrix m = matrix_new(WF_NVFP4, 1, 16, DT_F32);
    m.w.global = 0.5f;
    nvfp4_pack(&m.w, x, 0, 1);
    CHECK(memcmp(m.w.codes.data, codes, 8) == 0);
    CHECK_INT(*(uint8_t *)m.w.scales.data, 0x40); /* 2 = 6 / 6 / 0.5 */
    matrix_free(&m);

    static const float y[4] = {448, -1, 0.4375f, 224};
    m = matrix_new(WF_FP8_ROW, 1, 4, DT_BF16);
    fp8_row_pack(&m.w, y, 0, 1);
    CHECK(memcmp(m.w.codes.data, "\x7E\xB8\x2E\x76", 4) == 0);
    CHECK(memcmp(m.w.scales.data, "\x80\x3F", 2) == 0);
    matrix_free(&m);

    float zero[16] = {0};
    m = matrix_new(WF_NVFP4, 1, 16, DT_F32);
    nvfp4_pack(&m.w, zero, 0, 1);
    CHECK_INT(*(uint8_t *)m.w.scales.data, 0x20); /* 0.125, the quantiser's stand-in for 0 */
    matrix_free(&m);
}

TEST(sizes_that_a_format_cannot_hold)
{
    struct weight w;
    lathe_error e;
    CHECK_ERR(nvfp4_layout(&w, 4, 24, DT_F32, &e), &e, LATHE_E_FORMAT, "multiple of 16");
    CHECK_ERR(bf16_layout(&w, 0, 16, DT_F32, &e), &e, LATHE_E_FORMAT, "0 x 16");
    CHECK_ERR(f32_layout(&w, 1, (int64_t)1 << 40, DT_F32, &e), &e, LATHE_E_FORMAT, "1099511627776");
    CHECK_ERR(fp8_row_layout(&w, 4, 16, DT_F16, &e), &e, LATHE_E_FORMAT, "F16");
    CHECK_ERR(fp8_block_layout(&w, 4, 16, DT_I32, &e), &e, LATHE_E_FORMAT, "I32");
    for (int f = 0; f < WF_COUNT; f++)
        CHECK(weight_formats[f].layout(&w, -1, 16, DT_F32, NULL) == LATHE_E_FORMAT);
}

TEST(scales_that_are_not_numbers)
{
    lathe_error e;
    struct matrix m = matrix_new(WF_FP8_ROW, 5, 16, DT_F32);
    CHECK_OK(weight_check_scales(&m.w, &e), &e);
    float nan = NAN;
    memcpy((char *)m.w.scales.data + 12, &nan, 4);
    CHECK_ERR(weight_check_scales(&m.w, &e), &e, LATHE_E_NUMERIC, "row 3");
    matrix_free(&m);

    m = matrix_new(WF_FP8_BLOCK, 300, 300, DT_BF16);
    memcpy((char *)m.w.scales.data + 2 * 5, "\x80\x7F", 2);
    CHECK_ERR(weight_check_scales(&m.w, &e), &e, LATHE_E_NUMERIC, "block [1, 2] is inf");
    matrix_free(&m);

    m = matrix_new(WF_NVFP4, 3, 16 * 300, DT_F32);
    CHECK_OK(weight_check_scales(&m.w, &e), &e);
    ((uint8_t *)m.w.scales.data)[2 * 300 + 299] = 0xFF;
    CHECK_ERR(weight_check_scales(&m.w, &e), &e, LATHE_E_NUMERIC, "block [2, 299]");
    ((uint8_t *)m.w.scales.data)[300 + 17] = 0x7F;
    CHECK_ERR(weight_check_scales(&m.w, &e), &e, LATHE_E_NUMERIC, "block [1, 17]");
    static const float bad[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        m.w.global = bad[i];
        CHECK_ERR(weight_check_scales(&m.w, &e), &e, LATHE_E_NUMERIC, "expected > 0");
    }
    matrix_free(&m);
}

TEST(nonfinite_entries_are_found)
{
    enum { ROWS = 4, COLS = 1088 };
    for (int f = 0; f < WF_COUNT; f++) {
        struct matrix m = matrix_new((enum weight_format_id)f, ROWS, COLS, DT_F32);
        float amax, *x = random_matrix(ROWS * COLS, 5, &amax);
        int64_t row = -1, col = -1;
        m.w.global = weight_global_for(m.w.format, amax);
        weight_formats[f].pack(&m.w, x, 0, ROWS);
        CHECK(!weight_find_nonfinite(&m.w, &row, &col));
        x[2 * COLS + 1000] = f == WF_F16 ? 1e6f : NAN; /* beyond F16: infinity */
        weight_formats[f].pack(&m.w, x, 0, ROWS);
        CHECK(weight_find_nonfinite(&m.w, &row, &col));
        bool by_block = f == WF_NVFP4, by_row = f == WF_FP8_ROW;
        CHECK_INT(row, f == WF_FP8_BLOCK ? 0 : 2);
        CHECK_INT(col, f == WF_FP8_BLOCK ? 896 : by_row ? 0 : by_block ? 992 : 1000);
        free(x);
        matrix_free(&m);
    }
}

/* ---- Cases --------------------------------------------------------------------------------- */

static size_t from_hex(const char *hex, unsigned char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        CHECK(sscanf(hex + 2 * i, "%2x", &v) == 1);
        out[i] = (unsigned char)v;
    }
    return n;
}

static json_t *case_of(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(test_path(path), 0, &e);
    if (!j)
        FAIL("%s: %s", path, e.text);
    return j;
}

static struct matrix matrix_of_case(const json_t *j, int64_t rows)
{
    struct matrix m = matrix_new(WF_NVFP4, rows, 16, DT_F32);
    for (int64_t r = 0; r < rows; r++) {
        from_hex(json_string_value(json_object_get(j, "packed_hex_low_nibble_first")),
                 (unsigned char *)m.w.codes.data + 8 * r);
        from_hex(json_string_value(json_object_get(j, "block_scale_e4m3_hex")),
                 (unsigned char *)m.w.scales.data + r);
    }
    return m;
}

static void check_row(const struct weight *w, int64_t r, const json_t *want)
{
    float y[16];
    nvfp4_unpack(y, w, r, 0, 16);
    CHECK_INT(json_array_size(want), 16);
    for (size_t i = 0; i < 16; i++)
        CHECK((double)y[i] == json_number_value(json_array_get(want, i)));
}

TEST(case_B79_parts_keep_their_scales)
{
    json_t *j = case_of("tests/cases/numerics/B79_nvfp4_fused_partitions.json");
    const json_t *part, *codes = json_object_get(j, "codes");
    size_t i;
    struct matrix m = matrix_of_case(j, 2);
    for (i = 0; i < 16; i++)
        CHECK_INT(((uint8_t *)m.w.codes.data)[i / 2] >> (i % 2 ? 4 : 0) & 15,
                  json_integer_value(json_array_get(codes, i)));
    json_array_foreach(json_object_get(j, "parts"), i, part)
    {
        const char *name = json_string_value(json_object_get(part, "name"));
        float y[16];
        double dot = 0;
        m.w.global = (float)json_number_value(json_object_get(part, "weight_scale_2"));
        check_row(&m.w, 0, json_object_get(part, "row"));
        nvfp4_unpack(y, &m.w, 0, 0, 16);
        for (int k = 0; k < 16; k++)
            dot += k * (double)y[k];
        CHECK(dot == json_number_value(json_object_get(json_object_get(j, "dot_ramp"), name)));
    }
    const json_t *fused = json_object_get(j, "fused_scalar_variant");
    m.w.global = (float)json_number_value(json_object_get(fused, "weight_scale_2"));
    check_row(&m.w, 0, json_object_get(fused, "both_rows"));
    check_row(&m.w, 1, json_object_get(fused, "both_rows"));
    matrix_free(&m);
    json_decref(j);
}

TEST(case_B80_divisor_and_multiplier)
{
    json_t *j = case_of("tests/cases/numerics/B80_nvfp4_scale_convention.json");
    struct matrix m = matrix_of_case(j, 1);
    const json_t *d = json_object_get(j, "variant_divisor");
    m.w.global = 1 / (float)json_number_value(json_object_get(d, "weight_global_scale"));
    check_row(&m.w, 0, json_object_get(j, "row"));
    d = json_object_get(j, "variant_multiplier");
    m.w.global = (float)json_number_value(json_object_get(d, "weight_scale_2"));
    check_row(&m.w, 0, json_object_get(j, "row"));
    matrix_free(&m);
    json_decref(j);
}
