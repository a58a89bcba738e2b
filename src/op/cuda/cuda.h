/* The CUDA backend's inside: what every entry gets as its stream. C, and included from CUDA C. */
#ifndef LATHE_OP_CUDA_CUDA_H
#define LATHE_OP_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "op/backend.h"

struct gpu {
    int device;
    int sm;            /* 90 for compute capability 9.0 */
    int n_sms;         /* multiprocessors */
    int shared_per_sm; /* bytes of shared memory of one */
    char name[16];     /* "sm_90" */
    cudaStream_t stream;
    cudaError_t failed; /* of a call that had no status to return */
    cudaError_t lost;   /* after which the device takes no more work of this process */
    struct gemm *gemm;  /* NULL where there is no cuBLASLt */
    int rows_family; /* of cuBLASLt's algorithms whose sums linear_wgmma.cu makes too; negative: none */
    bool rows_known; /* rows_family was looked for */
    enum prompt_math prompt_math;

    bool is_open; /* counted among the process's streams */

    /* Small arrays of the host travel to the device through a ring. A place is taken again only after its
     * copies have gone round, in stream order. */
    unsigned char *ring;
    size_t ring_at;

    /* The last small array that was sent, and where it is; NULL: it may be written over. */
    unsigned char sent[256];
    size_t sent_bytes;
    const void *sent_device;

    /* The batch that is on the device: its arrays packed, and where. */
    unsigned char *batch_host;
    size_t batch_bytes;
    const unsigned char *batch_device;

    /* While a schedule is captured: the arrays of the host that have a home on the device. */
    struct home home[MAX_HOMES];
    int n_homes; /* 0: none is captured */
    cudaEvent_t mark[ROUND_REPORTS];
};

enum { CUDA_RING = 32 << 20, CUDA_MAX_UPLOAD = 4 << 20 };

static inline struct gpu *cuda_of(void *stream)
{
    return (struct gpu *)stream;
}

/* load.c, the entry of the table. */
lathe_status cuda_load(void *stream, struct pool *pool, const struct load *load, size_t n,
                       lathe_progress_fn progress, void *progress_ctx, lathe_error *err);

/* The status and the message of a call of the runtime that failed. Any thread. */
lathe_status cuda_error(struct gpu *c, cudaError_t e, const char *what, lathe_error *err);

/* LATHE_E_DEVICE if the launch before it, or an earlier call, failed. */
lathe_status cuda_launched(struct gpu *c, lathe_error *err);

/* A device copy of a small array in the host's pageable memory, valid for the operators launched in this call. NULL after a
 * failure, which cuda_launched reports. */
const void *cuda_upload(struct gpu *c, const void *p, size_t bytes);

/* The ring's CUDA_RING bytes, for what is launched before the next upload; what was uploaded is gone. NULL as above. */
unsigned char *cuda_scratch(struct gpu *c);

/* Where an array of the host is on the device while a schedule is captured; NULL: nowhere. */
const void *cuda_home(const struct gpu *c, const void *p);

/* A batch whose arrays the device can read. */
struct cuda_batch {
    enum phase phase;
    int32_t n_rows, n_seqs;
    const int32_t *token, *slot, *pos; /* [n_rows] */
    const int32_t (*rope_pos)[3];      /* [n_rows] */
    const struct batch_seq *seq;       /* [n_seqs] */
    const int32_t *seq_of;             /* [n_rows]: index into seq */
};
lathe_status cuda_batch(struct gpu *c, const struct batch *b, struct cuda_batch *out,
                        lathe_error *err);

lathe_status cuda_arrange(void *stream, struct weight *const *w, size_t n, lathe_error *err);
bool cuda_linears(void *stream, const struct linear_args *a, int n);
bool cuda_linear_silu_mul(void *stream, const struct linear_args a[2]);
bool cuda_linear_add_norm(void *stream, const struct linear_args *a, const struct normed *n);
bool cuda_linears_gates(void *stream, const struct linear_args *a, int n,
                        const struct gdn_gates_args *gates);
bool cuda_block_conv_add_norm(void *stream, const struct block_conv_add_norm_args *a);
bool cuda_block_conv_made(void *stream, const struct block_conv_made_args *a);
bool cuda_ring_rows(void *stream, const struct ring_rows_args *a);
bool cuda_gdn_mix(void *stream, const struct gdn_mix_args *a);
lathe_status cuda_qk_norm_rope_append(void *stream, const struct qk_norm_rope_append_args *a,
                                      lathe_error *err);
lathe_status cuda_gated_attention(void *stream, const struct gated_attention_args *a,
                                  lathe_error *err);
/* op_linear with BF16 activations and a tiled matrix. */
lathe_status cuda_linear_tiled(struct gpu *c, const struct linear_args *a, lathe_error *err);

/* gated_delta_chunks.cu: gated_delta_rule of prompts in chunks, where it takes them. `what`: all, or one part, to be timed. */
enum { CHUNKS_FACTORS = 1, CHUNKS_WALK = 2, CHUNKS_KEEP = 4, CHUNKS_ALL = 7 };
bool cuda_gated_delta_chunks_takes(const struct gpu *c, const struct gated_delta_rule_args *a);
lathe_status cuda_gated_delta_chunks(struct gpu *c, const struct gated_delta_rule_args *a, int what,
                                     lathe_error *err);

/* One function per operator, the entries of backend_cuda. */
#define X(name)                                                                                    \
    lathe_status cuda_##name(void *stream, const struct name##_args *a, lathe_error *err);
OPERATORS(X)
#undef X
size_t cuda_linear_scratch(const void *stream, const struct linear_args *a);
/* linear_prefill.cu: does it compute this product? Scratch: at most, by shapes. */
bool cuda_linear_prefill_takes(const struct gpu *c, const struct linear_args *a);
size_t cuda_linear_prefill_scratch(const struct gpu *c, const struct linear_args *a);
lathe_status cuda_linear_prefill(struct gpu *c, const struct linear_args *a, lathe_error *err);
/* linear_wgmma.cu: few rows of a prompt by tiled matrices, with the bits of linear_prefill.cu where cuBLASLt's algorithms for
 * the product are of c->rows_family. cuda_linear_rows_open looks for it, once: it waits for the device and writes over
 * cuda_scratch. cuda_linear_prefill_by_rows says whether all of it is so. */
void cuda_linear_rows_open(struct gpu *c);
bool cuda_linear_rows_takes(const struct gpu *c, const struct linear_args *a);
bool cuda_linear_prefill_by_rows(const struct gpu *c, const struct linear_args *a);
lathe_status cuda_linear_rows(struct gpu *c, const struct linear_args *a, lathe_error *err);
/* n products of one input, with the first one's scratch; false: they cannot be made together. What fails is reported by
 * cuda_launched. */
bool cuda_linears_rows(struct gpu *c, const struct linear_args *a, int n);
/* The same of linear_quantised.cu, which comes first where c->prompt_math wants it. */
bool cuda_linear_quantised_takes(const struct gpu *c, const struct linear_args *a);
size_t cuda_linear_quantised_scratch(const struct gpu *c, const struct linear_args *a);
lathe_status cuda_linear_quantised(struct gpu *c, const struct linear_args *a, lathe_error *err);
size_t cuda_gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a);
size_t cuda_gated_delta_rule_scratch(const void *stream, const struct gated_delta_rule_args *a);
size_t cuda_delta_room(const void *stream, const struct gdn_heads *heads, enum dtype act);
size_t cuda_attention_scratch(const void *stream, const struct attention_args *a);
size_t cuda_block_attention_scratch(const void *stream, const struct block_attention_args *a);
size_t cuda_top_k_scratch(const void *stream, const struct top_k_args *a);

#endif
