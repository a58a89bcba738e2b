/* The schedule's promises: any split of a text, and decoding it instead, gives the same bits; rows and
 * slots do not see each other; a verify batch changes nothing; what is not finite stays where it is. */
#include "rig.h"
#include "test.h"

#include "tol.h"

enum { N = 197 };

static void random_tokens(int32_t *token, int32_t n, uint64_t seed)
{
    struct rng r = {seed};
    for (int32_t i = 0; i < n; i++)
        token[i] = (int32_t)rng_below(&r, 8000);
}

/* Everything a slot remembers and the logits of its last position, copied. */
struct image {
    size_t n;
    unsigned char *bytes;
};

static void append(struct image *m, const void *p, size_t n)
{
    m->bytes = realloc(m->bytes, m->n + n);
    memcpy(m->bytes + m->n, p, n);
    m->n += n;
}

static struct image remember(struct rig *r, int32_t slot, int32_t n_tokens)
{
    struct image m = {0};
    const struct recurrent *rec = &r->state.recurrent;
    const struct kv_cache *kv = &r->state.kv;
    for (int32_t i = 0; i < rec->shape.n_layers; i++) {
        struct tensor S = recurrent_S(rec, i), tail = recurrent_tail(rec, i);
        append(&m, tensor_at(&S, slot), (size_t)tensor_row(&S) * dtype_size(S.dtype));
        append(&m, tensor_at(&tail, slot), (size_t)tensor_row(&tail) * dtype_size(tail.dtype));
    }
    for (int32_t i = 0; i < kv->shape.n_layers; i++) {
        struct kv_pages p = kv_cache_layer(kv, i);
        size_t row = (size_t)(p.k.dim[2] * p.k.dim[3]) * dtype_size(p.k.dtype);
        for (int32_t t = 0; t < n_tokens; t++) {
            int64_t page = p.page_table[slot * p.pages_per_slot + t / KV_PAGE];
            size_t at = (size_t)(t % KV_PAGE) * row;
            append(&m, (unsigned char *)tensor_at(&p.k, page) + at, row);
            append(&m, (unsigned char *)tensor_at(&p.v, page) + at, row);
        }
    }
    return m;
}

static void append_logits(struct image *m, struct rig *r, int32_t row)
{
    append(m, rig_logits(r, row), (size_t)r->model.dims.vocab * sizeof(float));
}

static void check_same(const char *what, struct image *a, const struct image *b)
{
    CHECK_INT(a->n, b->n);
    if (memcmp(a->bytes, b->bytes, a->n) != 0)
        FAIL("%s: different bits", what);
    free(a->bytes);
}

static void check_splits(const struct rig_options *o, uint64_t seed)
{
    static const int32_t splits[][8] = {{64, 64, 64, 5}, {1, 196},  {196, 1},
                                        {3, 61, 127, 6}, {100, 97}, {2, 2, 193}};
    int32_t token[N];
    struct rig r;
    random_tokens(token, N, seed);
    rig_open(&r, o);
    for (int32_t i = 0; i < N; i++)
        token[i] %= r.model.dims.vocab;
    rig_run(&r, PHASE_PREFILL, 0, 0, token, N);
    struct image whole = remember(&r, 0, N);
    append_logits(&whole, &r, N - 1);
    for (size_t i = 0; i < (test_quick() ? 2 : sizeof splits / sizeof *splits); i++) {
        int32_t at = 0, last = 0;
        rig_reset(&r, 0);
        for (int j = 0; at < N; j++) {
            last = splits[i][j];
            rig_run(&r, PHASE_PREFILL, 0, at, token + at, last);
            at += last;
        }
        struct image m = remember(&r, 0, N);
        append_logits(&m, &r, last - 1);
        check_same("prefill in pieces", &m, &whole);
    }
    rig_reset(&r, 0);
    for (int32_t i = 0; i < N; i++)
        rig_run(&r, PHASE_DECODE, 0, i, token + i, 1);
    struct image m = remember(&r, 0, N);
    append_logits(&m, &r, 0);
    if (r.state.kv.backend->is_host) /* a GPU's prompts have arithmetic of their own */
        check_same("decoding", &m, &whole);
    else
        free(m.bytes);
    free(whole.bytes);
    rig_close(&r);
}

TEST(any_split_gives_the_same_bits)
{
    struct rig_options bf16 = {.dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16};
    struct rig_options f32 = {.dir = test_path("models/nano"), .act = DT_F32, .kv = DT_F32};
    struct rig_options mixed = {.dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_F32};
    check_splits(&bf16, 1);
    check_splits(&f32, 2);
    check_splits(&mixed, 3);
    mixed.kv = DT_F8_E4M3;
    check_splits(&mixed, 3);
}

TEST(any_split_gives_the_same_bits_on_every_isa)
{
    static const char *const isa[] = {"generic", "avx2", "avx512"};
    for (int i = test_quick() ? 1 : 0; i < 3; i++) {
        void *stream;
        lathe_error err;
        if (backend_cpu.open(&stream, NULL, isa[i], &err)) /* this processor lacks it */
            continue;
        backend_cpu.close(stream);
        struct rig_options o = {
            .dir = test_path("models/nano"), .isa = isa[i], .act = DT_BF16, .kv = DT_BF16};
        check_splits(&o, 4);
    }
}

TEST(threads_do_not_change_bits)
{
    int32_t token[N];
    struct image first = {0};
    random_tokens(token, N, 5);
    for (int32_t threads = 1; threads <= 3; threads++) {
        struct rig r;
        struct rig_options o = {
            .dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16, .n_threads = threads};
        rig_open(&r, &o);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, N);
        struct image m = remember(&r, 0, N);
        append_logits(&m, &r, N - 1);
        if (threads == 1)
            first = m;
        else
            check_same("threads", &m, &first);
        rig_close(&r);
    }
    free(first.bytes);
}

TEST(slots_do_not_see_each_other)
{
    int32_t a[N], b[N];
    struct rig r;
    struct rig_options o = {
        .dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16, .n_slots = 3};
    lathe_error err;
    random_tokens(a, N, 6);
    random_tokens(b, N, 7);
    rig_open(&r, &o);
    rig_run(&r, PHASE_PREFILL, 0, 0, a, N);
    struct image alone = remember(&r, 0, N);
    append_logits(&alone, &r, N - 1);
    /* The same rows in another slot, in batches shared with another sequence of other lengths. */
    rig_reset(&r, 0);
    int32_t at_b = 0, last = 0;
    for (int32_t at = 0; at < N; at += last) {
        last = N - at < 40 ? N - at : 40;
        int32_t k = N - at_b < 29 ? N - at_b : 29;
        step_begin(&r.step, PHASE_PREFILL);
        if (k)
            step_add(&r.step, 0, at_b, b + at_b, k);
        step_add(&r.step, 2, at, a + at, last);
        CHECK_OK(step_run(&r.step, &err), &err);
        at_b += k;
        last += 0;
        if (at + last == N) {
            struct image m = remember(&r, 2, N);
            append_logits(&m, &r, k + last - 1);
            check_same("neighbours", &m, &alone);
        }
    }
    free(alone.bytes);
    rig_close(&r);
}

TEST(verify_changes_nothing)
{
    int32_t token[N];
    struct rig r;
    struct rig_options o = {.dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16};
    random_tokens(token, N, 8);
    rig_open(&r, &o);
    for (int32_t k = 1; k <= 16; k += 5) {
        rig_reset(&r, 0);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, 100);
        struct image before = remember(&r, 0, 100);
        rig_run(&r, PHASE_VERIFY, 0, 100, token + 100, k);
        struct image after = remember(&r, 0, 100);
        check_same("verify", &after, &before);
        free(before.bytes);
        struct image verified = {0}, decoded = {0};
        for (int32_t i = 0; i < k; i++)
            append_logits(&verified, &r, i);
        for (int32_t i = 0; i < k; i++) {
            rig_run(&r, PHASE_DECODE, 0, 100 + i, token + 100 + i, 1);
            append_logits(&decoded, &r, 0);
        }
        check_same("verify rows against decoding", &decoded, &verified);
        free(verified.bytes);
    }
    rig_close(&r);
}

/* Case B55: committing N of the K verified rows leaves the bits of N decode steps, for every N, in a slot
 * beside another whose rows are committed or dropped. */
TEST(commit_equals_decoding)
{
    enum { P = 60, K = 16 };
    int32_t token[N];
    struct rig r;
    struct rig_options o = {
        .dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16, .n_slots = 2};
    lathe_error err;
    random_tokens(token, N, 12);
    rig_open(&r, &o);
    for (int32_t n = 0; n <= K; n++) {
        rig_reset(&r, 0);
        rig_reset(&r, 1);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, P);
        rig_run(&r, PHASE_PREFILL, 1, 0, token + 1, P);
        step_begin(&r.step, PHASE_VERIFY);
        step_add(&r.step, 1, P, token + P + 1, K / 2);
        step_add(&r.step, 0, P, token + P, K);
        CHECK_OK(step_run(&r.step, &err), &err);
        struct batch_seq seq[2] = {{0, K / 2, n, P}, {1, 0, K / 2, P}};
        struct batch_seq *first = n ? seq : seq + 1;
        CHECK_OK(step_commit(&r.step, first, (n ? 1 : 0) + n % 2, &err), &err);
        struct image got = remember(&r, 0, P + n), other = remember(&r, 1, P + K / 2 * (n % 2));
        rig_reset(&r, 0);
        rig_reset(&r, 1);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, P);
        rig_run(&r, PHASE_PREFILL, 1, 0, token + 1, P);
        for (int32_t i = 0; i < n; i++)
            rig_run(&r, PHASE_DECODE, 0, P + i, token + P + i, 1);
        if (n % 2)
            rig_run(&r, PHASE_DECODE, 1, P, token + P + 1, K / 2);
        struct image want = remember(&r, 0, P + n), want1 = remember(&r, 1, P + K / 2 * (n % 2));
        check_same("commit", &got, &want);
        check_same("commit of the other slot", &other, &want1);
        free(want.bytes);
        free(want1.bytes);
    }
    rig_close(&r);
}

/* Case B78: what is not finite ends in its own slot, and a reset forgets it. */
TEST(nonfinite_state_stays_in_its_slot)
{
    static const float poison[] = {NAN, INFINITY};
    int32_t token[N];
    struct rig r;
    struct rig_options o = {
        .dir = test_path("models/nano"), .act = DT_BF16, .kv = DT_BF16, .n_slots = 2};
    lathe_error err;
    random_tokens(token, N, 9);
    rig_open(&r, &o);
    rig_run(&r, PHASE_PREFILL, 1, 0, token, 50);
    rig_run(&r, PHASE_DECODE, 1, 50, token + 50, 1);
    struct image healthy = remember(&r, 1, 51);
    append_logits(&healthy, &r, 0);
    for (int variant = 0; variant < 3; variant++) {
        rig_reset(&r, 0);
        rig_reset(&r, 1);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, 50);
        rig_run(&r, PHASE_PREFILL, 1, 0, token, 50);
        if (variant < 2) {
            struct tensor S = recurrent_S(&r.state.recurrent, 2);
            ((float *)tensor_at(&S, 0))[77] = poison[variant];
        } else {
            struct kv_pages p = kv_cache_layer(&r.state.kv, 0);
            memset(tensor_at(&p.k, p.page_table[0]), 0xFF, 2); /* a BF16 NaN */
        }
        step_begin(&r.step, PHASE_DECODE);
        step_add(&r.step, 0, 50, token + 50, 1);
        step_add(&r.step, 1, 50, token + 50, 1);
        CHECK_OK(step_run(&r.step, &err), &err);
        const float *sick = rig_logits(&r, 0);
        CHECK(!isfinite(sick[0]));
        struct image m = remember(&r, 1, 51);
        append_logits(&m, &r, 1);
        check_same("the healthy slot", &m, &healthy);
        rig_reset(&r, 0);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, 50);
        rig_run(&r, PHASE_DECODE, 0, 50, token + 50, 1);
        m = remember(&r, 0, 51);
        append_logits(&m, &r, 0);
        check_same("the slot after a reset", &m, &healthy);
    }
    free(healthy.bytes);
    rig_close(&r);
}

/* Case B83: the tail of a short prompt is zero on its old side. */
TEST(short_prompts_have_zero_history)
{
    int32_t token[8];
    struct rig r;
    struct rig_options o = {.dir = test_path("models/nano"), .act = DT_F32, .kv = DT_F32};
    random_tokens(token, 8, 10);
    rig_open(&r, &o);
    for (int32_t n = 1; n <= 5; n++) {
        rig_reset(&r, 0);
        rig_run(&r, PHASE_PREFILL, 0, 0, token, n);
        struct tensor tail = recurrent_tail(&r.state.recurrent, 0);
        const float *x = tail.data;
        for (int32_t j = 0; j < 3; j++) {
            double sum = 0;
            for (int64_t c = 0; c < tail.dim[2]; c++)
                sum += fabs((double)x[j * tail.dim[2] + c]);
            CHECK((sum == 0) == (j < 3 - n));
        }
    }
    rig_close(&r);
}

/* Case B84: the workspace in use depends on the chunk, not on how much of the prompt came before. */
TEST(workspace_follows_the_chunk)
{
    enum { CHUNK = 512, LONG = 4096 };
    int32_t *token = malloc(LONG * sizeof *token);
    size_t peak = 0;
    struct rig r;
    struct rig_options o = {.dir = test_path("models/nano"),
                            .act = DT_BF16,
                            .kv = DT_BF16,
                            .n_ctx = LONG,
                            .max_rows = CHUNK};
    random_tokens(token, LONG, 11);
    rig_open(&r, &o);
    for (int32_t at = 0; at < LONG; at += CHUNK) {
        rig_run(&r, PHASE_PREFILL, 0, at, token + at, CHUNK);
        if (at == 1024)
            peak = r.step.x.peak;
    }
    CHECK_INT(r.step.x.peak, peak);
    CHECK(peak <= r.step.workspace_bytes);
    free(token);
    rig_close(&r);
}
