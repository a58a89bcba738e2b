#define _DEFAULT_SOURCE /* madvise */
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tensor/number.h"

enum { MAX_BLOCKS = 4096, PAGE = 2 << 20 };

static void *block[MAX_BLOCKS];
static int n_blocks;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

void *large_pages(size_t bytes)
{
    size_t size = bytes < PAGE ? 64 : PAGE;
    void *p = aligned_alloc(size, (bytes + size) / size * size);
    if (p && size == PAGE)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void *memory(size_t bytes)
{
    void *p = n_blocks < MAX_BLOCKS ? large_pages(bytes) : NULL;
    if (!p)
        die("out of memory");
    return block[n_blocks++] = p;
}

void release_memory(void)
{
    while (n_blocks > 0)
        free(block[--n_blocks]);
}

static uint64_t random_u64(void) /* splitmix64 */
{
    static uint64_t state;
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void *random_bytes(size_t bytes)
{
    uint64_t *p = memory(bytes);
    for (size_t i = 0; i <= bytes / 8; i++)
        p[i] = random_u64();
    return p;
}

struct tensor zeros(enum dtype dtype, int64_t rows, int64_t cols)
{
    size_t bytes = (size_t)(rows * cols) * dtype_size(dtype);
    return tensor_2d(memset(memory(bytes), 0, bytes), dtype, rows, cols);
}

struct tensor numbers(enum dtype dtype, int64_t rows, int64_t cols)
{
    struct tensor t = zeros(dtype, rows, cols);
    unsigned char *p = t.data;
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = (float)((int)(random_u64() % 2000) - 1000) / 1000;
        from_f32(p + (size_t)i * dtype_size(dtype), dtype, &x, 1);
    }
    return t;
}

struct tensor numbers_1d(int64_t n)
{
    return tensor_1d(numbers(DT_F32, 1, n).data, DT_F32, n);
}

struct weight random_weight(enum weight_format_id format, int64_t rows, int64_t cols)
{
    struct weight w;
    lathe_error err;
    if (weight_formats[format].layout(&w, rows, cols, DT_BF16, &err))
        die(err.message);
    size_t size = dtype_size(w.codes.dtype), bytes = (size_t)tensor_elements(&w.codes) * size;
    uint8_t *p = w.codes.data = random_bytes(bytes);
    if (w.codes.dtype == DT_F8_E4M3)
        for (size_t i = 0; i < bytes; i++)
            p[i] &= 0xBF;
    else if (w.codes.dtype != DT_U8) /* about 2^-15 .. 1 */
        for (size_t i = size - 1; i < bytes; i += size)
            p[i] = (uint8_t)((p[i] & 0x83) | 0x38);
    if (w.scales.n_dims) {
        bytes = (size_t)tensor_elements(&w.scales) * dtype_size(w.scales.dtype);
        p = w.scales.data = random_bytes(bytes);
        for (size_t i = 0; i < bytes; i++)
            p[i] = (uint8_t)(format == WF_NVFP4 ? (p[i] & 0x3F) + 8 : (p[i] & 3) | 0x3C);
    }
    if (format == WF_NVFP4 || format == WF_FP8_TENSOR)
        w.global = 0.01f;
    return w;
}

void settle(struct weight *w)
{
    /* Root mean squares of the random codes: 0.6 of E4M3 below 2; 3.6 of E2M1 times a scale of NVFP4. */
    float scale = 1 / (0.6f * sqrtf((float)w->cols));
    if (w->format == WF_NVFP4)
        w->global = 1 / (3.6f * sqrtf((float)w->cols));
    else if (w->format == WF_FP8_TENSOR)
        w->global = scale;
    else if (w->format == WF_FP8_ROW)
        for (int64_t i = 0; i < w->rows; i++)
            from_f32((unsigned char *)w->scales.data + (size_t)i * dtype_size(w->scales.dtype),
                     w->scales.dtype, &scale, 1);
}
