/* Greedy rounds against the recorded ones (golden/mixed_spec.json, and bf16_spec.json of ../shared): how many
 * drafts each round accepts, with MTP K = 3 and with DFlash2; and that the tokens are those of plain
 * decoding. Conventions of the record: the first token comes from the prompt's own logits; rounds run until
 * 80 tokens are out, the last not clipped; a draft that is an end token is never counted as accepted. */
#include "rig.h"
#include "test.h"

#include "base/json.h"
#include "spec/drafter.h"
#include "tol.h"

enum { ENOUGH = 80, MOST = 128, END_TURN = 8162, END_TEXT = 8160 };

struct player {
    struct rig rig;
    struct id_set ids;
    struct sample_scratch scratch;
    const struct drafter_ops *ops;
    struct drafter *drafter;
    struct drafter_info info;
};

static void player_open(struct player *p, const char *dir, const char *draft_dir, const char *name,
                        enum dtype act)
{
    lathe_error err;
    struct drafter_info taps = {0};
    *p = (struct player){.ops = drafter_named(name)};
    CHECK(p->ops != NULL);
    /* The taps are known only from the drafter, which needs the model: opened twice. */
    for (int turn = 0; turn < 2; turn++) {
        struct rig_options o = {
            .dir = dir, .act = act, .kv = act, .tap = taps.tap, .n_taps = taps.n_taps};
        static int32_t tap[16];
        rig_open(&p->rig, &o);
        if (turn == 0)
            CHECK_OK(id_set_init(&p->ids, p->rig.model.dims.vocab, NULL, &err), &err);
        if (turn == 0)
            CHECK_OK(sample_scratch_init(&p->scratch, p->rig.model.dims.vocab, &err), &err);
        struct drafter_options d = {.model = &p->rig.model,
                                    .backend = p->rig.backend,
                                    .stream = p->rig.stream,
                                    .ids = &p->ids,
                                    .scratch = &p->scratch,
                                    .act = act,
                                    .kv = act,
                                    .n_slots = 1,
                                    .n_ctx = 1024,
                                    .max_rows = 1024,
                                    .dir = draft_dir};
        CHECK_OK(drafter_open(p->ops, &p->drafter, &d, &p->rig.memory, &err), &err);
        p->ops->info(p->drafter, &p->info);
        if (turn == 1)
            break;
        if (p->info.n_taps)
            memcpy(tap, p->info.tap, (size_t)p->info.n_taps * sizeof *tap);
        taps = (struct drafter_info){.tap = tap, .n_taps = p->info.n_taps};
        p->ops->close(p->drafter);
        rig_close(&p->rig);
    }
}

static void player_close(struct player *p)
{
    p->ops->close(p->drafter);
    sample_scratch_release(&p->scratch);
    id_set_release(&p->ids);
    rig_close(&p->rig);
}

static void tell(struct player *p, int32_t pos, int32_t n, const int32_t *token)
{
    lathe_error err;
    struct committed c = {.slot = 0,
                          .pos = pos,
                          .n = n,
                          .token = token,
                          .hidden = tensor_rows(p->rig.step.hidden, 0, n),
                          .feature = tensor_rows(p->rig.step.feature, 0, n)};
    CHECK_OK(p->ops->committed(p->drafter, &c, &err), &err);
}

static bool is_end(int32_t id)
{
    return id == END_TURN || id == END_TEXT;
}

/* Plays a prompt; accepted[] of each round, the tokens, and how many rounds. */
static int32_t play(struct player *p, const int32_t *prompt, int32_t n, int32_t k,
                    int32_t *accepted, int32_t *token, int32_t *n_token)
{
    struct rig *r = &p->rig;
    int32_t history[1024], n_rounds = 0, pos = n, vocab = r->model.dims.vocab;
    lathe_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct sampler_options so = {
        .sampling = &greedy, .ids = &p->ids, .prompt = prompt, .n_prompt = n};
    struct sampler *sampler;
    lathe_error err;
    CHECK_OK(sampler_open(&sampler, &so, &err), &err);
    memcpy(history, prompt, (size_t)n * sizeof *history);
    rig_reset(r, 0);
    p->ops->rewind(p->drafter, 0, 0);
    rig_run(r, PHASE_PREFILL, 0, 0, prompt, n);
    tell(p, 0, n, prompt);
    int32_t anchor = argmax(rig_logits(r, n - 1), vocab);
    *n_token = 0;
    token[(*n_token)++] = anchor;
    sampler_commit(sampler, &anchor, 1);
    while (*n_token < ENOUGH && !is_end(anchor)) {
        history[pos] = anchor;
        struct draft_request d = {.slot = 0,
                                  .pos = pos,
                                  .anchor = anchor,
                                  .most = k,
                                  .sampler = sampler,
                                  .history = history};
        CHECK_OK(p->ops->propose(p->drafter, &d, 1, &err), &err);
        CHECK_INT(d.n, k);
        memcpy(history + pos + 1, d.draft, (size_t)d.n * sizeof *history);
        rig_run(r, PHASE_VERIFY, 0, pos, history + pos, 1 + d.n);
        int32_t a = 0, y;
        for (;; a++) {
            y = argmax(rig_logits(r, a), vocab);
            if (a == d.n || y != d.draft[a] || is_end(y))
                break;
        }
        struct batch_seq kept = {0, 0, a + 1, pos};
        CHECK_OK(step_commit(&r->step, &kept, 1, &err), &err);
        tell(p, pos, a + 1, history + pos);
        accepted[n_rounds++] = a;
        memcpy(token + *n_token, d.draft, (size_t)a * sizeof *token);
        token[*n_token + a] = y;
        sampler_commit(sampler, token + *n_token, a + 1);
        *n_token += a + 1;
        pos += a + 1;
        anchor = y;
    }
    sampler_close(sampler);
    return n_rounds;
}

struct recorded {
    struct checkpoint *vectors; /* for the prompts' ids */
    struct json_doc plain, spec;
};

static void record_files(struct recorded *g, const char *plain, const char *spec)
{
    char path[1100];
    lathe_error err;
    snprintf(path, sizeof path, "%s.safetensors", plain);
    CHECK_OK(checkpoint_open(&g->vectors, path, &err), &err);
    snprintf(path, sizeof path, "%s.json", plain);
    CHECK_OK(json_read_file(&g->plain, path, &json_limits_model, &err), &err);
    snprintf(path, sizeof path, "%s.json", spec);
    CHECK_OK(json_read_file(&g->spec, path, &json_limits_model, &err), &err);
}

static void record_release(struct recorded *g)
{
    checkpoint_close(g->vectors);
    json_release(&g->plain);
    json_release(&g->spec);
}

/* All recorded rounds of one drafter. With F32 they are equal; with BF16 only the tokens a round are
 * compared, over all prompts together. */
static void check(const struct recorded *g, const char *dir, const char *draft_dir,
                  const char *name, const char *prefix, int32_t k, enum dtype act)
{
    struct player p;
    const char *key;
    json_t *want;
    int32_t tokens = 0, rounds = 0, want_tokens = 0, want_rounds = 0;
    player_open(&p, dir, draft_dir, name, act);
    json_object_foreach(json_object_get(g->spec.root, "greedy_rounds"), key, want)
    {
        size_t n_prefix = strlen(prefix);
        if (strncmp(key, prefix, n_prefix) != 0 || key[n_prefix] != '.')
            continue;
        char id[64];
        snprintf(id, sizeof id, "%s.ids", key + n_prefix + 1);
        const struct checkpoint_tensor *t = checkpoint_find(g->vectors, id);
        CHECK(t != NULL);
        int32_t prompt[1024], accepted[MOST], token[MOST + 16], n_token;
        memcpy(prompt, t->data, t->bytes);
        int32_t n = play(&p, prompt, (int32_t)(t->bytes / 4), k, accepted, token, &n_token);
        json_t *list = json_object_get(want, "accepted");
        size_t i;
        json_t *v;
        json_array_foreach(list, i, v)
        {
            want_tokens += (int32_t)json_integer_value(v) + 1;
            want_rounds++;
            if (act == DT_F32 && ((int32_t)i >= n || accepted[i] != json_integer_value(v)))
                FAIL("%s: round %zu accepts %d, recorded are %d", key, i,
                     (int32_t)i < n ? accepted[i] : -1, (int32_t)json_integer_value(v));
        }
        if (act == DT_F32)
            CHECK_INT(n, json_array_size(list));
        for (int32_t r = 0; r < n; r++)
            tokens += accepted[r] + 1;
        rounds += n;
        if (act != DT_F32)
            continue;
        json_t *plain =
            json_object_get(json_object_get(g->plain.root, "prompts"), key + n_prefix + 1);
        json_t *greedy = json_object_get(plain, "greedy");
        for (int32_t r = 0; r < n_token && (size_t)r < json_array_size(greedy); r++)
            CHECK_INT(token[r], json_integer_value(json_array_get(greedy, (size_t)r)));
    }
    CHECK(want_rounds > 0);
    double rate = (double)tokens / rounds, recorded = (double)want_tokens / want_rounds;
    printf("     %s: %.3f tokens a round, recorded %.3f\n", prefix, rate, recorded);
    if (!(rate >= TOL_TOKENS_A_ROUND * recorded))
        FAIL("%s: %.3f tokens a round, recorded are %.3f", prefix, rate, recorded);
    player_close(&p);
}

static void check_mixed(enum dtype act)
{
    struct recorded g;
    record_files(&g, test_path("tests/golden/mixed"), test_path("tests/golden/mixed_spec"));
    check(&g, test_path("models/nano"), NULL, "mtp", "mtp3", 3, act);
    check(&g, test_path("models/nano"), test_path("models/nano-dflash2"), "dflash2", "dflash2", 7,
          act);
    record_release(&g);
}

TEST(mixed_rounds_f32)
{
    check_mixed(DT_F32);
}

TEST(mixed_rounds_bf16_activations)
{
    check_mixed(DT_BF16);
}

TEST(bf16_checkpoint_rounds_f32)
{
    struct recorded g;
    char plain[1024], spec[1024], dir[1024], draft[1024];
    snprintf(plain, sizeof plain, "%s", test_shared("nano/golden/bf16.json"));
    snprintf(spec, sizeof spec, "%s", test_shared("nano/golden/bf16_spec.json"));
    snprintf(dir, sizeof dir, "%s", test_shared("nano/bf16"));
    snprintf(draft, sizeof draft, "%s", test_shared("nano/dflash2-bf16"));
    *strstr(plain, ".json") = 0;
    *strstr(spec, ".json") = 0;
    record_files(&g, plain, spec);
    check(&g, dir, NULL, "mtp", "mtp3", 3, DT_F32);
    check(&g, dir, draft, "dflash2", "dflash2", 7, DT_F32);
    record_release(&g);
}
