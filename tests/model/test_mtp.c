/* The head's schedule and the drafter on it: against the reference's vectors, over every way of cutting a
 * sequence, and at the edges. */
#include "device.h"
#include "drafter_bench.h"
#include "test.h"

#include "base/json.h"
#include "container/safetensors.h"
#include "make_model.h"
#include "tol.h"

static const struct drafter_ops *const ops = &drafter_mtp;

/* ---- Reference vectors --------------------------------------------------------------------- */

/* Rows of the head over a cache of its own: hidden states h_0 .. of the rig's last run with the tokens that
 * follow them, then a chain. logits [4, vocab]. */
static void chain(struct bench *b, const int32_t *seq, int32_t n, float *logits)
{
    lathe_error err;
    struct rig *r = &b->r;
    const struct dims *d = &r->model.dims;
    struct kv_cache kv;
    struct kv_shape shape = {1, d->n_kv_heads, d->head_dim, r->state.kv.shape.dtype, 1, b->o.n_ctx};
    CHECK_OK(kv_cache_open(&kv, &shape, &r->memory.cache, &err), &err);
    CHECK_OK(kv_cache_reserve(&kv, 0, n + 3, &err), &err);
    struct kv_pages pages = kv_cache_layer(&kv, 0);
    int32_t rows = n - 1, next = -1;
    int32_t *slot = calloc((size_t)rows, sizeof *slot), *pos = calloc((size_t)rows, sizeof *pos);
    int32_t(*rope_pos)[3] = calloc((size_t)rows, sizeof *rope_pos);
    size_t bytes = (size_t)rows * (size_t)d->hidden * sizeof(float), room = (size_t)1 << 28;
    struct tensor s = tensor_2d(device_alloc(bytes), DT_F32, rows, d->hidden);
    struct tensor h = tensor_2d(device_alloc(bytes), DT_F32, rows, d->hidden);
    void *workspace = device_alloc(room);
    for (int32_t i = 0; i < rows; i++) {
        pos[i] = i;
        for (int axis = 0; axis < 3; axis++)
            rope_pos[i][axis] = i;
    }
    memcpy(h.data, r->step.hidden.data, bytes);
    struct exec x;
    exec_init(&x, r->backend, r->stream, workspace, room);
    for (int32_t i = 0; i < 4; i++) {
        int32_t T = i == 0 ? rows : 1;
        if (i > 0) {
            memcpy(h.data, tensor_at(&s, i == 1 ? rows - 1 : 0), bytes / (size_t)rows);
            pos[0] = rows - 1 + i;
            for (int axis = 0; axis < 3; axis++)
                rope_pos[0][axis] = pos[0];
        }
        struct batch_seq q = {0, 0, T, pos[0]};
        struct batch batch = {.phase = PHASE_DECODE,
                              .n_rows = T,
                              .n_seqs = 1,
                              .token = i == 0 ? seq + 1 : &next,
                              .slot = slot,
                              .pos = pos,
                              .rope_pos = (const int32_t(*)[3])rope_pos,
                              .seq = &q};
        int32_t last = T - 1;
        exec_begin(&x);
        mtp_step(&x, &r->model, &batch, &pages, &r->state.rope, tensor_rows(h, 0, T),
                 tensor_rows(s, 0, T));
        struct tensor row = exec_tmp(&x, DT_F32, 1, d->vocab);
        forward_logits(&x, &r->model, row, tensor_rows(s, 0, T), &last);
        CHECK_OK(exec_end(&x, &err), &err);
        memcpy(logits + (int64_t)i * d->vocab, row.data, (size_t)d->vocab * sizeof *logits);
        next = argmax(logits + (int64_t)i * d->vocab, d->vocab);
    }
    device_free(workspace);
    device_free(s.data);
    device_free(h.data);
    free(slot);
    free(pos);
    free(rope_pos);
    kv_cache_close(&kv);
}

static void check_golden(const char *dir, const char *stem)
{
    static const char *const prompts[] = {"story", "define", "passage"};
    char path[1100], name[64];
    lathe_error err;
    struct checkpoint *vectors;
    struct json_doc json;
    snprintf(path, sizeof path, "%s.safetensors", stem);
    CHECK_OK(checkpoint_open(&vectors, path, &err), &err);
    snprintf(path, sizeof path, "%s.json", stem);
    CHECK_OK(json_read_file(&json, path, &json_limits_model, &err), &err);
    struct bench b;
    struct rig_options o = {.dir = dir, .act = DT_F32, .kv = DT_F32};
    bench_open(&b, ops, &o);
    int32_t vocab = b.r.model.dims.vocab;
    float *logits = malloc(4 * (size_t)vocab * sizeof *logits);
    float *want = malloc(4 * (size_t)vocab * sizeof *want);
    for (size_t p = 0; p < sizeof prompts / sizeof *prompts; p++) {
        snprintf(name, sizeof name, "%s.seq", prompts[p]);
        const struct checkpoint_tensor *seq = checkpoint_find(vectors, name);
        snprintf(name, sizeof name, "%s.mtp_logits", prompts[p]);
        const struct checkpoint_tensor *golden = checkpoint_find(vectors, name);
        CHECK(seq && golden && golden->bytes == 4 * (size_t)vocab * sizeof *want);
        int32_t n = (int32_t)(seq->bytes / 4), token[1024];
        memcpy(token, seq->data, seq->bytes);
        memcpy(want, golden->data, golden->bytes);
        bench_reset(&b, 0);
        bench_feed(&b, 0, token, 0, n - 1);
        struct draft_request r = bench_propose(&b, 0, &bench_greedy, token, n, 4);
        json_t *drafts = json_object_get(
            json_object_get(json_object_get(json.root, "prompts"), prompts[p]), "mtp_drafts");
        CHECK_INT(json_array_size(drafts), 4);
        CHECK_INT(r.n, 4);
        for (int32_t i = 0; i < 4; i++)
            CHECK_INT(r.draft[i], json_integer_value(json_array_get(drafts, (size_t)i)));
        chain(&b, token, n, logits);
        double worst = relative_difference(logits, want, 4 * (int64_t)vocab);
        if (!(worst <= TOL_GOLDEN_F32))
            FAIL("logits of %s: relative difference %.3g", prompts[p], worst);
    }
    free(logits);
    free(want);
    bench_close(&b);
    checkpoint_close(vectors);
    json_release(&json);
}

TEST(golden_mixed)
{
    check_golden("models/nano", "tests/golden/mixed_spec");
}

TEST(golden_bf16)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s", test_shared("nano/bf16"));
    char stem[1024];
    snprintf(stem, sizeof stem, "%s", test_shared("nano/golden/bf16_spec.json"));
    *strrchr(stem, '.') = 0;
    check_golden(dir, stem);
}

/* One row of the head at position 0: s [hidden]. */
static void one_row(struct bench *b, int32_t token, const float *hidden, float *s)
{
    lathe_error err;
    struct rig *r = &b->r;
    const struct dims *d = &r->model.dims;
    struct kv_cache kv;
    struct kv_shape shape = {1, d->n_kv_heads, d->head_dim, DT_F32, 1, 64};
    size_t room = (size_t)1 << 24;
    void *workspace = device_alloc(room);
    int32_t slot = 0, pos = 0, rope_pos[1][3] = {{0}};
    struct batch_seq q = {0, 0, 1, 0};
    struct batch batch = {.phase = PHASE_DECODE,
                          .n_rows = 1,
                          .n_seqs = 1,
                          .token = &token,
                          .slot = &slot,
                          .pos = &pos,
                          .rope_pos = (const int32_t(*)[3])rope_pos,
                          .seq = &q};
    struct tensor h = device_copy(hidden, 1, d->hidden);
    struct tensor out =
        tensor_2d(device_alloc((size_t)d->hidden * sizeof *s), DT_F32, 1, d->hidden);
    CHECK_OK(kv_cache_open(&kv, &shape, &r->memory.cache, &err), &err);
    CHECK_OK(kv_cache_reserve(&kv, 0, 1, &err), &err);
    struct kv_pages pages = kv_cache_layer(&kv, 0);
    struct exec x;
    exec_init(&x, r->backend, r->stream, workspace, room);
    exec_begin(&x);
    mtp_step(&x, &r->model, &batch, &pages, &r->state.rope, h, out);
    CHECK_OK(exec_end(&x, &err), &err);
    memcpy(s, out.data, (size_t)d->hidden * sizeof *s);
    kv_cache_close(&kv);
    device_free(h.data);
    device_free(out.data);
    device_free(workspace);
}

/* With fc = [1 | 0] the head hears the token only, with [0 | 1] the hidden state only. */
TEST(embedding_comes_first)
{
    for (int32_t half = 0; half < 2; half++) {
        struct model_spec spec;
        struct out_file f = {0};
        const char *dir = test_tmp(half ? "fc_hidden" : "fc_embedding");
        model_spec_init(&spec);
        spec.has_mtp = true;
        make_tensors(&f, &spec);
        struct out_tensor *fc = out_find(&f, "mtp.fc.weight");
        CHECK(fc && fc->dtype == DT_BF16 && fc->dim[1] == 2 * fc->dim[0]);
        uint16_t *w = (uint16_t *)(void *)fc->data;
        for (int64_t row = 0; row < fc->dim[0]; row++)
            for (int64_t col = 0; col < fc->dim[1]; col++)
                w[row * fc->dim[1] + col] = col == row + half * fc->dim[0] ? 0x3f80 : 0;
        make_files(dir, &spec, &f);
        out_release(&f);
        struct bench b;
        struct rig_options o = {.dir = dir, .act = DT_F32, .kv = DT_F32, .n_ctx = 64};
        bench_open(&b, ops, &o);
        int32_t n = b.r.model.dims.hidden;
        float *h = malloc(2 * (size_t)n * sizeof *h), *s = malloc(4 * (size_t)n * sizeof *s);
        struct rng rng = {8};
        for (int32_t i = 0; i < 2 * n; i++)
            h[i] = (float)rng_normal(&rng);
        for (int32_t i = 0; i < 4; i++) /* token i / 2, hidden state i % 2 */
            one_row(&b, 5 + i / 2, h + (i % 2) * n, s + i * n);
        size_t bytes = (size_t)n * sizeof *s;
        CHECK((memcmp(s, s + n, bytes) == 0) == (half == 0));
        CHECK((memcmp(s, s + 2 * n, bytes) == 0) == (half == 1));
        free(h);
        free(s);
        bench_close(&b);
    }
}

/* ---- Contexts ------------------------------------------------------------------------------ */

static void small_model(const char *dir, uint64_t seed)
{
    struct model_spec s;
    model_spec_init(&s);
    s.seed = seed;
    s.has_mtp = true;
    make_model(dir, &s);
}

/* The same sequence in one piece, token by token and in random pieces, some of them between proposals and
 * after commits that were taken back, gives the same bytes and drafts. */
static void check_splits(const char *dir, enum dtype act, enum dtype kv, int32_t rounds)
{
    struct bench b;
    struct rig_options o = {.dir = dir, .act = act, .kv = kv, .n_slots = 2, .n_ctx = 256};
    bench_open(&b, ops, &o);
    struct rng rng = {5};
    int32_t token[256], other[256], n = 150;
    uint32_t vocab = (uint32_t)b.r.model.dims.vocab;
    for (int32_t round = 0; round < rounds; round++) {
        random_tokens(token, 256, vocab, (uint64_t)round);
        bench_reset(&b, 0);
        bench_feed(&b, 0, token, 0, n);
        struct draft_request want = bench_propose(&b, 0, &bench_greedy, token, n + 1, 8);
        CHECK_INT(want.n, 8);
        struct buf one = bench_save(&b, 0);
        for (int32_t way = 0; way < 3; way++) {
            bench_reset(&b, 1);
            for (int32_t at = 0; at < n;) {
                int32_t k = way == 0 ? 1 : 1 + (int32_t)rng_below(&rng, way == 1 ? 16 : 70);
                k = at + k < n ? k : n - at;
                bench_feed(&b, 1, token, at, k);
                at += k;
                if (way == 1 && at < n)
                    (void)bench_propose(&b, 1, &bench_greedy, token, at + 1,
                                        1 + (int32_t)rng_below(&rng, 8));
                if (way == 2 && at >= 16) {
                    /* Other tokens of the same length, taken back. */
                    memcpy(other, token, sizeof token);
                    int32_t back = 1 + (int32_t)rng_below(&rng, 15);
                    random_tokens(other + at, back, vocab, rng_u64(&rng));
                    rig_reset(&b.r, 0);
                    rig_run(&b.r, PHASE_PREFILL, 0, 0, other, at + back);
                    bench_tell(&b, 1, other, at, back, at);
                    ops->rewind(b.d, 1, at);
                }
            }
            struct buf two = bench_save(&b, 1);
            check_same_bytes(&one, &two);
            struct draft_request got = bench_propose(&b, 1, &bench_greedy, token, n + 1, 8);
            check_same_drafts(&got, &want);
            struct buf three = bench_save(&b, 1); /* a proposal is no part of it */
            check_same_bytes(&one, &three);
            buf_release(&two);
            buf_release(&three);
        }
        buf_release(&one);
    }
    bench_close(&b);
}

TEST(splits_give_equal_contexts)
{
    small_model(test_tmp("splits"), 1);
    check_splits(test_tmp("splits"), DT_F32, DT_F32, 3);
    check_splits(test_tmp("splits"), DT_BF16, DT_BF16, 3);
    check_splits(test_tmp("splits"), DT_BF16, DT_F8_E4M3, 3);
    check_splits("models/nano", DT_BF16, DT_BF16, 1);
}

static void check_load(enum dtype kv)
{
    lathe_error err;
    struct bench b;
    struct rig_options o = {
        .dir = test_tmp("load"), .act = DT_BF16, .kv = kv, .n_slots = 2, .n_ctx = 256};
    bench_open(&b, ops, &o);
    int32_t token[256];
    random_tokens(token, 256, (uint32_t)b.r.model.dims.vocab, 3);
    struct buf empty = bench_save(&b, 0);
    CHECK_INT(empty.len, 0);
    for (int32_t n = 1; n < 200; n += 33) {
        bench_reset(&b, 0);
        bench_feed(&b, 0, token, 0, n);
        struct buf x = bench_save(&b, 0);
        CHECK_OK(ops->load(b.d, 1, x.data, x.len, &err), &err);
        struct buf y = bench_save(&b, 1);
        check_same_bytes(&x, &y);
        /* Both slots in one call, of different lengths. */
        struct sampler *s = bench_sampler(&b, &bench_greedy, token, n + 1);
        struct draft_request r[2] = {
            {.slot = 1, .pos = n, .anchor = token[n], .most = 8, .sampler = s, .history = token},
            {.slot = 0, .pos = n, .anchor = token[n], .most = 3, .sampler = s, .history = token}};
        CHECK_OK(ops->propose(b.d, r, 2, &err), &err);
        CHECK_INT(r[0].n, 8);
        CHECK_INT(r[1].n, 3);
        for (int32_t i = 0; i < 3; i++)
            CHECK_INT(r[0].draft[i], r[1].draft[i]);
        struct draft_request alone = bench_propose(&b, 0, &bench_greedy, token, n + 1, 8);
        check_same_drafts(&alone, &r[0]);
        sampler_close(s);
        /* And both go on. */
        rig_run(&b.r, PHASE_PREFILL, 0, n, token + n, 5);
        bench_tell(&b, 0, token, n, 5, 0);
        bench_tell(&b, 1, token, n, 5, 0);
        struct buf p = bench_save(&b, 0), q = bench_save(&b, 1);
        check_same_bytes(&p, &q);
        CHECK(ops->load(b.d, 1, x.data, x.len - 1, &err) == LATHE_E_FORMAT);
        buf_release(&x);
        buf_release(&y);
        buf_release(&p);
        buf_release(&q);
    }
    CHECK_OK(ops->load(b.d, 1, NULL, 0, &err), &err);
    struct buf none = bench_save(&b, 1);
    CHECK_INT(none.len, 0);
    char *long_bytes = calloc(1, 1 << 22);
    CHECK(ops->load(b.d, 1, long_bytes, 1 << 22, &err) == LATHE_E_FORMAT);
    free(long_bytes);
    bench_close(&b);
}

TEST(load_goes_on_where_save_was)
{
    small_model(test_tmp("load"), 2);
    check_load(DT_BF16);
    check_load(DT_F8_E4M3);
}

/* A slot that goes back further than hidden states are kept drafts nothing until the next commit. */
TEST(far_rewinds)
{
    lathe_error err;
    small_model(test_tmp("far"), 3);
    struct bench b;
    struct rig_options o = {.dir = test_tmp("far"), .act = DT_F32, .kv = DT_F32, .n_ctx = 256};
    bench_open(&b, ops, &o);
    int32_t token[256];
    random_tokens(token, 256, (uint32_t)b.r.model.dims.vocab, 4);
    bench_feed(&b, 0, token, 0, 100);
    struct buf x;
    buf_init(&x, 1 << 20);
    ops->rewind(b.d, 0, 120);
    struct draft_request r = bench_propose(&b, 0, &bench_greedy, token, 101, 4);
    CHECK_INT(r.n, 4);
    ops->rewind(b.d, 0, 50);
    CHECK(ops->save(b.d, 0, &x, &err) == LATHE_E_UNSUPPORTED);
    r = bench_propose(&b, 0, &bench_greedy, token, 51, 4);
    CHECK_INT(r.n, 0);
    rig_reset(&b.r, 0);
    rig_run(&b.r, PHASE_PREFILL, 0, 0, token, 50);
    bench_feed(&b, 0, token, 50, 50);
    r = bench_propose(&b, 0, &bench_greedy, token, 101, 4);
    CHECK_INT(r.n, 4);
    buf_release(&x);
    bench_close(&b);
}

/* Nothing is proposed or written beyond the context, whatever is asked for. */
TEST(context_edge)
{
    small_model(test_tmp("edge"), 4);
    struct bench b;
    enum { N = 70 };
    struct rig_options o = {
        .dir = test_tmp("edge"), .act = DT_F32, .kv = DT_F32, .n_slots = 2, .n_ctx = N};
    bench_open(&b, ops, &o);
    int32_t token[N + 1];
    random_tokens(token, N + 1, (uint32_t)b.r.model.dims.vocab, 5);
    bench_feed(&b, 0, token, 0, N - 12);
    for (int32_t n = N - 12; n < N; n++) {
        struct draft_request r = bench_propose(&b, 0, &bench_greedy, token, n + 1, 8);
        CHECK_INT(r.n, N - 1 - n < 8 ? N - 1 - n : 8);
        bench_feed(&b, 0, token, n, 1);
    }
    /* A context that is not as long as the sequence is refused. */
    lathe_error err;
    struct draft_request wrong = {.pos = 5, .most = 1, .history = token};
    CHECK_ERR(ops->propose(b.d, &wrong, 1, &err), &err, LATHE_E_ARGUMENT, "position 5");
    struct committed c = {.pos = N, .n = 1, .token = token, .hidden = b.r.step.hidden};
    CHECK_ERR(ops->committed(b.d, &c, &err), &err, LATHE_E_ARGUMENT, "position 70");
    /* And of an empty sequence nothing can be said. */
    struct draft_request r = bench_propose(&b, 1, &bench_greedy, token, 1, 8);
    CHECK_INT(r.n, 0);
    struct drafter_info info;
    ops->info(b.d, &info);
    CHECK_INT(info.max_draft, 8);
    CHECK(info.has_law && info.n_taps == 0);
    bench_close(&b);
}

/* ---- Choice -------------------------------------------------------------------------------- */

/* Sampled drafts come from the law that is handed out, with the request's filters. */
TEST(laws_and_filters)
{
    lathe_error err;
    struct bench b;
    struct rig_options o = {.dir = "models/nano", .act = DT_BF16, .kv = DT_BF16};
    bench_open(&b, ops, &o);
    int32_t token[64];
    random_tokens(token, 64, 8000, 6);
    bench_feed(&b, 0, token, 0, 63);
    lathe_sampling s = {.temperature = 0.9f, .top_k = 5, .top_p = 1, .repetition_penalty = 1.3f};
    struct draft_law law[8];
    for (int i = 0; i < 8; i++)
        law[i].q = malloc((size_t)b.r.model.dims.vocab * sizeof *law[i].q);
    bool differ = false;
    int32_t first[8];
    for (int64_t seed = 0; seed < 8; seed++) {
        s.seed = seed;
        struct draft_request r = {.pos = 63,
                                  .anchor = token[63],
                                  .most = 8,
                                  .history = token,
                                  .law = law,
                                  .sampler = bench_sampler(&b, &s, token, 64)};
        CHECK_OK(ops->propose(b.d, &r, 1, &err), &err);
        CHECK_INT(r.n, 8);
        for (int32_t i = 0; i < r.n; i++) {
            double sum = 0, p = 0;
            CHECK_INT(law[i].n, 5);
            for (int32_t j = 0; j < law[i].n; j++) {
                CHECK(j == 0 || law[i].q[j].id > law[i].q[j - 1].id);
                sum += law[i].q[j].weight;
                p += law[i].q[j].id == r.draft[i] ? law[i].q[j].weight : 0;
            }
            CHECK(p > 0 && fabs(sum - 1) < 1e-12);
        }
        differ |= seed > 0 && memcmp(first, r.draft, sizeof first) != 0;
        memcpy(first, r.draft, sizeof first);
        struct draft_request again = bench_propose(&b, 0, &s, token, 64, 8);
        check_same_drafts(&again, &r);
        sampler_close(r.sampler);
    }
    CHECK(differ);
    for (int i = 0; i < 8; i++)
        free(law[i].q);
    bench_close(&b);
}

TEST(refuses_a_model_without_head)
{
    lathe_error err;
    struct model_spec spec;
    model_spec_init(&spec);
    spec.has_mtp = false;
    make_model(test_tmp("headless"), &spec);
    struct rig r;
    struct rig_options o = {.dir = test_tmp("headless"), .act = DT_F32, .kv = DT_F32};
    rig_open(&r, &o);
    struct drafter *d;
    struct drafter_options d_o = {.model = &r.model,
                                  .backend = r.backend,
                                  .stream = r.stream,
                                  .act = DT_F32,
                                  .kv = DT_F32,
                                  .n_slots = 1,
                                  .n_ctx = 64,
                                  .max_rows = 64};
    CHECK_ERR(ops->open(&d, &d_o, &err), &err, LATHE_E_UNSUPPORTED, "no MTP head");
    CHECK(d == NULL);
    rig_close(&r);
}
