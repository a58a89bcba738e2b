/* cuBLASLt. It is loaded when a stream is opened, not linked: the program starts without it, and then prompts take
 * the kernels for few rows.
 *
 * cuBLASLt's heuristic looks at the number of rows; here it is asked once for each shape of matrix, for ROWS of
 * them, and what it answers serves any number. An algorithm that divides k among blocks is never taken, and none
 * that needs a workspace: a block then has its tile alone. That a row's sums then depend neither on where in a tile
 * it lies nor on how many tiles there are is not documented; tests/op/test_linear.c checks it, on the GPUs it ran on. */
#include "op/cuda/gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
    ROWS = 2048, /* what algorithms are chosen for */
    CHOICES = 16,
    MAX_SHAPES = 64,
};

#define ENTRIES(X)                                                                                 \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatrixLayoutInit_internal)                                                           \
    X(cublasLtMatmulDescInit_internal)                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceInit_internal)                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)

struct known {
    struct gemm_shape shape;
    bool has_algo;
    cublasLtMatmulAlgo_t algo;
};

struct gemm {
    cublasLtHandle_t handle;
#define X(name) __typeof__(name) *name;
    ENTRIES(X)
#undef X
    struct known known[MAX_SHAPES];
    int n_known;
};

/* ---- Loading ------------------------------------------------------------------------------------- */

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define LIBRARY    "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

/* Loaded once a process: it is not made to be unloaded. */
static void *load(void)
{
    static const char *const path[] = {LIBRARY, "/usr/local/cuda/lib64/" LIBRARY};
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        void *p = dlopen(path[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
        if (p)
            return p;
    }
    return NULL;
}

static bool find_entries(struct gemm *g, void *library)
{
    void *p;
#define X(name)                                                                                    \
    p = dlsym(library, #name);                                                                     \
    if (!p)                                                                                        \
        return false;                                                                              \
    memcpy(&g->name, &p, sizeof p);
    ENTRIES(X)
#undef X
    return true;
}

struct gemm *gemm_open(void)
{
    struct gemm *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    void *library = load();
    if (!library)
        log_warn("there is no %s: prompts are computed several times more slowly", LIBRARY);
    else if (!find_entries(g, library))
        log_warn("%s is not the one expected: prompts are computed several times more slowly",
                 LIBRARY);
    else if (g->cublasLtCreate(&g->handle) == CUBLAS_STATUS_SUCCESS)
        return g;
    else
        log_warn("%s does not start: prompts are computed several times more slowly", LIBRARY);
    free(g);
    return NULL;
}

void gemm_close(struct gemm *g)
{
    if (!g)
        return;
    (void)g->cublasLtDestroy(g->handle);
    free(g);
}

/* ---- Shapes -------------------------------------------------------------------------------------- */

/* What cuBLASLt is told of a product. To it matrices lie column by column: ours are their transposes, d^T [n, T] =
 * w x^T. */
struct product {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t w, x, d;
};

static bool set_block_scales(const struct gemm *g, struct product *p, const struct gemm_args *a)
{
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t bytes;
    } set[] = {
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a->w_scale, sizeof a->w_scale},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a->x_scale, sizeof a->x_scale},
    };
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        if (g->cublasLtMatmulDescSetAttribute(&p->desc, set[i].attribute, set[i].value,
                                              set[i].bytes) != CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

static bool describe(const struct gemm *g, struct product *p, const struct gemm_args *a)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t n = (uint64_t)a->shape.n, k = (uint64_t)a->shape.k, T = (uint64_t)a->T;
    static const cudaDataType types[] = {CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_4F_E2M1};
    cudaDataType type = types[a->shape.type];
    cudaDataType d_type = a->shape.d_f32 ? CUDA_R_32F : CUDA_R_16BF;
    return g->cublasLtMatmulDescInit_internal(&p->desc, sizeof p->desc, CUBLAS_COMPUTE_32F,
                                              CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           g->cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                             sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
           (a->shape.type != GEMM_NVFP4 || set_block_scales(g, p, a)) &&
           g->cublasLtMatrixLayoutInit_internal(&p->w, sizeof p->w, type, k, n, a->ldw) ==
               CUBLAS_STATUS_SUCCESS &&
           g->cublasLtMatrixLayoutInit_internal(&p->x, sizeof p->x, type, k, T, a->ldx) ==
               CUBLAS_STATUS_SUCCESS &&
           g->cublasLtMatrixLayoutInit_internal(&p->d, sizeof p->d, d_type, n, T, a->ldd) ==
               CUBLAS_STATUS_SUCCESS;
}

static bool prefer(const struct gemm *g, cublasLtMatmulPreferenceOpaque_t *p)
{
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = 0;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE, bytes = 16;
    if (g->cublasLtMatmulPreferenceInit_internal(p, sizeof *p) != CUBLAS_STATUS_SUCCESS ||
        g->cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &workspace,
                                                sizeof workspace) != CUBLAS_STATUS_SUCCESS ||
        g->cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                &reduction,
                                                sizeof reduction) != CUBLAS_STATUS_SUCCESS)
        return false;
    for (size_t i = 0; i < sizeof alignment / sizeof *alignment; i++)
        if (g->cublasLtMatmulPreferenceSetAttribute(p, alignment[i], &bytes, sizeof bytes) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    return true;
}

/* Does each block compute its tile alone? */
static bool adds_in_order(const struct gemm *g, const cublasLtMatmulHeuristicResult_t *r)
{
    int32_t split = 0;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t n;
    if (r->state != CUBLAS_STATUS_SUCCESS || r->workspaceSize != 0 ||
        g->cublasLtMatmulAlgoConfigGetAttribute(&r->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                sizeof split, &n) != CUBLAS_STATUS_SUCCESS ||
        g->cublasLtMatmulAlgoConfigGetAttribute(&r->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                &reduction, sizeof reduction,
                                                &n) != CUBLAS_STATUS_SUCCESS)
        return false;
    return (split == 0 || split == 1) && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static void choose(const struct gemm *g, struct known *s)
{
    static const char *const names[] = {"BF16", "FP8", "NVFP4"};
    static const _Alignas(16)
        uint8_t some[16]; /* it asks for pointers to scales, and does not read them */
    cublasLtMatmulHeuristicResult_t choice[CHOICES];
    cublasLtMatmulPreferenceOpaque_t preference;
    struct product p;
    int n = 0;
    const struct gemm_shape *shape = &s->shape;
    struct gemm_args a = {
        .shape = *shape, .ldw = shape->k, .ldx = shape->k, .ldd = shape->n, .T = ROWS};
    a.w_scale = a.x_scale = some;
    if (!describe(g, &p, &a) || !prefer(g, &preference) ||
        g->cublasLtMatmulAlgoGetHeuristic(g->handle, &p.desc, &p.w, &p.x, &p.d, &p.d, &preference,
                                          CHOICES, choice, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    for (int i = 0; i < n && !s->has_algo; i++)
        if (adds_in_order(g, &choice[i])) {
            s->algo = choice[i].algo;
            s->has_algo = true;
        }
    if (!s->has_algo)
        log_warn("cuBLASLt has no suitable product for %s matrices of [%lld, %lld]: prompts are "
                 "computed without it there",
                 names[shape->type], (long long)shape->n, (long long)shape->k);
}

static bool same_shape(const struct gemm_shape *a, const struct gemm_shape *b)
{
    return a->n == b->n && a->k == b->k && a->type == b->type && a->d_f32 == b->d_f32;
}

/* The shape's place in the table. What does not fit takes the last place in turn: the answer for a shape is always
 * the same. */
static struct known *find(struct gemm *g, struct gemm_shape shape)
{
    for (int i = 0; i < g->n_known; i++)
        if (same_shape(&g->known[i].shape, &shape))
            return &g->known[i];
    if (g->n_known < MAX_SHAPES)
        g->n_known++;
    struct known *s = &g->known[g->n_known - 1];
    *s = (struct known){.shape = shape};
    choose(g, s);
    return s;
}

bool gemm_has(struct gemm *g, struct gemm_shape shape)
{
    return g && find(g, shape)->has_algo;
}

int gemm_family(struct gemm *g, struct gemm_shape shape)
{
    const struct known *s = g ? find(g, shape) : NULL;
    int32_t id;
    size_t n;
    if (!s || !s->has_algo ||
        g->cublasLtMatmulAlgoConfigGetAttribute(&s->algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id,
                                                &n) != CUBLAS_STATUS_SUCCESS)
        return -1;
    return id;
}

lathe_status gemm(struct gpu *c, const struct gemm_args *a, lathe_error *err)
{
    struct gemm *g = c->gemm;
    const struct known *s = find(g, a->shape);
    struct product p;
    cublasStatus_t e = CUBLAS_STATUS_NOT_SUPPORTED;
    if (s->has_algo && describe(g, &p, a))
        e = g->cublasLtMatmul(g->handle, &p.desc, &a->alpha, a->w, &p.w, a->x, &p.x, &a->beta, a->d,
                              &p.d, a->d, &p.d, &s->algo, NULL, 0, c->stream);
    if (e != CUBLAS_STATUS_SUCCESS)
        return fail(err, LATHE_E_DEVICE, "cuBLASLt: status %d for [%lld, %lld] times [%lld, %lld]",
                    (int)e, (long long)a->T, (long long)a->shape.k, (long long)a->shape.n,
                    (long long)a->shape.k);
    return LATHE_OK;
}
