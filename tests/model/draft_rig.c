#include "draft_rig.h"

#include "make_model.h"
#include "test.h"

void draft_rig_open(struct draft_rig *r, const struct draft_rig_options *o)
{
    static struct dflash_config c;
    struct rig_options ro = o->rig;
    lathe_error err;
    *r = (struct draft_rig){0};
    CHECK_OK(dflash_config_read(&c, o->dir, &err), &err);
    ro.tap = c.tap;
    ro.n_taps = c.n_taps;
    rig_open(&r->rig, &ro);
    int32_t vocab = r->rig.model.dims.vocab, n_ids = o->n_ids ? o->n_ids : vocab;
    uint64_t *bits = calloc((size_t)vocab / 64 + 1, sizeof *bits);
    for (int32_t i = 0; i < n_ids; i++)
        bits[i / 64] |= (uint64_t)1 << i % 64;
    CHECK_OK(id_set_init(&r->ids, vocab, bits, &err), &err);
    free(bits);
    CHECK_OK(sample_scratch_init(&r->scratch, vocab, &err), &err);
    struct drafter_options d = {
        .model = &r->rig.model,
        .backend = r->rig.backend,
        .stream = r->rig.stream,
        .ids = &r->ids,
        .scratch = &r->scratch,
        .act = ro.act,
        .kv = ro.kv,
        .n_slots = ro.n_slots ? ro.n_slots : 1,
        .n_ctx = ro.n_ctx ? ro.n_ctx : 1024,
        .max_rows = o->max_rows ? o->max_rows : 512,
        .dir = o->dir,
    };
    CHECK_OK(drafter_open(&drafter_dflash2, &r->d, &d, &r->rig.memory, &err), &err);
    r->rig.step.o.tap = r->d->config.tap; /* the same layers, as long as the drafter */
    r->sampling = (lathe_sampling){.top_p = 1, .repetition_penalty = 1, .seed = 1};
}

static char made_dir[1100];

const char *draft_rig_dir(void)
{
    return made_dir;
}

void draft_rig_make(struct draft_rig *r, const struct drafter_spec *s, const struct out_file *f,
                    const struct draft_rig_options *o)
{
    static int n;
    char name[32], target[1100];
    struct model_spec m;
    struct draft_rig_options all = *o;
    snprintf(target, sizeof target, "%s", test_tmp("target"));
    snprintf(name, sizeof name, "drafter-%d", n++);
    snprintf(made_dir, sizeof made_dir, "%s", test_tmp(name));
    model_spec_init(&m);
    make_model(target, &m);
    drafter_files(made_dir, s, f);
    all.rig.dir = target;
    all.dir = made_dir;
    draft_rig_open(r, &all);
}

void draft_rig_close(struct draft_rig *r)
{
    drafter_dflash2.close(r->d);
    sampler_close(r->sampler);
    sample_scratch_release(&r->scratch);
    id_set_release(&r->ids);
    rig_close(&r->rig);
}

void draft_rig_sampler(struct draft_rig *r, int32_t n_prompt)
{
    lathe_error err;
    int32_t *prompt = calloc((size_t)n_prompt + 1, sizeof *prompt);
    struct sampler_options o = {
        .sampling = &r->sampling, .ids = &r->ids, .prompt = prompt, .n_prompt = n_prompt};
    sampler_close(r->sampler);
    CHECK_OK(sampler_open(&r->sampler, &o, &err), &err);
    free(prompt);
}

void draft_rig_run(struct draft_rig *r, enum phase phase, int32_t slot, int32_t pos,
                   const int32_t *token, int32_t n)
{
    lathe_error err;
    const struct step *s = &r->rig.step;
    rig_run(&r->rig, phase, slot, pos, token, n);
    struct committed c = {
        .slot = slot,
        .pos = pos,
        .n = n,
        .token = token,
        .hidden = tensor_rows(s->hidden, 0, n),
        .feature = tensor_rows(s->feature, 0, n),
    };
    CHECK_OK(drafter_dflash2.committed(r->d, &c, &err), &err);
}

void draft_rig_feed(struct draft_rig *r, int32_t slot, struct tensor feature)
{
    lathe_error err;
    struct committed c = {
        .slot = slot,
        .pos = r->d->context.frontier[slot],
        .n = (int32_t)feature.dim[0],
        .feature = feature,
    };
    CHECK_OK(drafter_dflash2.committed(r->d, &c, &err), &err);
}

int32_t draft_rig_propose(struct draft_rig *r, int32_t slot, int32_t anchor, int32_t most,
                          int32_t *out)
{
    lathe_error err;
    if (!r->sampler)
        draft_rig_sampler(r, 0);
    struct draft_request q = {
        .slot = slot,
        .pos = r->d->context.frontier[slot],
        .anchor = anchor,
        .most = most,
        .sampler = r->sampler,
        .history = r->history,
    };
    CHECK_OK(drafter_dflash2.propose(r->d, &q, 1, &err), &err);
    memcpy(out, q.draft, (size_t)q.n * sizeof *out);
    return q.n;
}

struct buf draft_rig_save(struct draft_rig *r, int32_t slot)
{
    lathe_error err;
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    CHECK_OK(drafter_dflash2.save(r->d, slot, &b, &err), &err);
    return b;
}
