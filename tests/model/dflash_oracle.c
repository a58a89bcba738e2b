#include "dflash_oracle.h"

static const struct drafter_spec *spec;
static struct out_file *file;

/* A tensor as doubles: heap memory. */
static double *take(const char *layer, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", layer, name);
    struct out_tensor *t = out_find(file, full);
    if (!t)
        FAIL("oracle: no tensor %s", full);
    size_t n = t->bytes / dtype_size(t->dtype);
    float *x = malloc(n * sizeof *x);
    double *d = malloc(n * sizeof *d);
    to_f32(x, t->data, t->dtype, (int64_t)n);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    free(x);
    return d;
}

static void multiply(double *y, const double *w, const double *x, int32_t rows, int32_t cols)
{
    for (int32_t r = 0; r < rows; r++) {
        y[r] = 0;
        for (int32_t c = 0; c < cols; c++)
            y[r] += w[r * cols + c] * x[c];
    }
}

static void apply(double *y, const char *layer, const char *name, const double *x, int32_t n,
                  int32_t rows, int32_t cols)
{
    double *w = take(layer, name);
    for (int32_t i = 0; i < n; i++)
        multiply(y + i * rows, w, x + i * cols, rows, cols);
    free(w);
}

static void norm(double *y, const double *x, const double *w, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + 1e-6) * w[i];
}

static void norm_rows(double *y, const double *x, const char *layer, const char *name, int32_t rows,
                      int32_t n)
{
    double *w = take(layer, name);
    for (int32_t i = 0; i < rows; i++)
        norm(y + i * n, x + i * n, w, n);
    free(w);
}

/* The pair index at which a frequency makes `turns` turns within the original context. */
static double yarn_dim(double turns)
{
    double two_pi = 2 * acos(-1.0);
    return spec->head_dim * log(spec->original_max_position / (turns * two_pi)) /
           (2 * log(spec->rope_theta));
}

/* One head: all of its dims rotate, dim j with j + n / 2. */
static void rotate(double *x, int32_t n, int32_t pos)
{
    double low = 0, high = 0, scale = 1;
    if (spec->yarn_factor > 0) {
        low = fmax(floor(yarn_dim(32)), 0);
        high = fmin(ceil(yarn_dim(1)), n - 1);
        if (low == high)
            high += 0.001;
        scale = 0.1 * log(spec->yarn_factor) + 1;
    }
    for (int32_t j = 0; j < n / 2; j++) {
        double f = pow(spec->rope_theta, -2.0 * j / n);
        if (spec->yarn_factor > 0) {
            double r = fmin(fmax((j - low) / (high - low), 0), 1);
            f *= (1 - r) + r / spec->yarn_factor;
        }
        double c = cos(pos * f) * scale, s = sin(pos * f) * scale, a = x[j], b = x[j + n / 2];
        x[j] = a * c - b * s;
        x[j + n / 2] = b * c + a * s;
    }
}

static void heads(double *x, const char *layer, const char *name, int32_t rows, int32_t n_heads,
                  int32_t pos)
{
    int32_t d = spec->head_dim;
    norm_rows(x, x, layer, name, rows * n_heads, d);
    for (int32_t i = 0; i < rows * n_heads; i++)
        rotate(x + i * d, d, pos + i / n_heads);
}

static bool is(const char *architecture)
{
    return strcmp(spec->architecture, architecture) == 0;
}

/* side 0 before, 1 after the half layer; delta comes from its input u. */
static void convolve(double *y, const double *x, const double *u, const char *layer,
                     const char *name, int32_t side)
{
    int32_t H = spec->hidden, groups = H / spec->conv_group, W = spec->block;
    char full[64];
    if (!is("DFlash2DraftModel")) {
        memcpy(y, x, (size_t)(W * H) * sizeof *y);
        return;
    }
    double *delta = malloc((size_t)(W * 4 * groups) * sizeof *delta);
    snprintf(full, sizeof full, "%s.kernel_projection.weight", name);
    apply(delta, layer, full, u, W, 4 * groups, H);
    snprintf(full, sizeof full, "%s.base_kernel", name);
    double *base = take(layer, full);
    for (int32_t t = 0; t < W; t++)
        for (int32_t c = 0; c < H; c++) {
            y[t * H + c] = 0;
            for (int32_t tap = 0; tap < 2 && tap <= t; tap++)
                y[t * H + c] +=
                    (base[(side * 2 + tap) * H + c] +
                     delta[t * 4 * groups + (side * 2 + tap) * groups + c / spec->conv_group]) *
                    x[(t - tap) * H + c];
        }
    free(base);
    free(delta);
}

/* Rows of the block over the context's keys and their own: keys and values [frontier + block, kv]. */
static void attend(double *o, const double *q, const double *k, const double *v, int32_t frontier,
                   bool sliding)
{
    int32_t d = spec->head_dim, H = spec->n_heads, KV = spec->n_kv_heads,
            n = frontier + spec->block;
    double *p = malloc((size_t)n * sizeof *p);
    for (int32_t t = 0; t < spec->block; t++)
        for (int32_t h = 0; h < H; h++) {
            int32_t kv = h / (H / KV);
            double sum = 0, max = -INFINITY;
            for (int32_t s = 0; s < n; s++) {
                bool seen = !sliding || abs(frontier + t - s) < spec->window;
                p[s] = -INFINITY;
                if (!seen)
                    continue;
                p[s] = 0;
                for (int32_t i = 0; i < d; i++)
                    p[s] += q[(t * H + h) * d + i] * k[(s * KV + kv) * d + i] / sqrt(d);
                max = fmax(max, p[s]);
            }
            for (int32_t i = 0; i < d; i++)
                o[(t * H + h) * d + i] = 0;
            for (int32_t s = 0; s < n; s++)
                sum += exp(p[s] - max);
            for (int32_t s = 0; s < n; s++)
                for (int32_t i = 0; i < d; i++)
                    o[(t * H + h) * d + i] += exp(p[s] - max) / sum * v[(s * KV + kv) * d + i];
        }
    free(p);
}

static double *room(int32_t rows, int32_t cols)
{
    double *x = calloc((size_t)rows * (size_t)cols, sizeof *x);
    CHECK(x);
    return x;
}

static void run_layer(double *x, const double *context, int32_t frontier, int32_t i)
{
    int32_t H = spec->hidden, W = spec->block, M = spec->mlp, n = frontier + W;
    int32_t q_dim = spec->n_heads * spec->head_dim, kv_dim = spec->n_kv_heads * spec->head_dim;
    char layer[32];
    snprintf(layer, sizeof layer, "layers.%d.", i);
    double *u = room(W, H), *y = room(W, H), *z = room(W, H), *q = room(W, q_dim),
           *o = room(W, q_dim);
    double *k = room(n, kv_dim), *v = room(n, kv_dim), *gate = room(W, M), *up = room(W, M);
    norm_rows(u, x, layer, "input_layernorm.weight", W, H);
    convolve(y, u, u, layer, "attention_conv", 0);
    apply(k, layer, "self_attn.k_proj.weight", context, frontier, kv_dim, H);
    apply(v, layer, "self_attn.v_proj.weight", context, frontier, kv_dim, H);
    apply(q, layer, "self_attn.q_proj.weight", y, W, q_dim, H);
    apply(k + frontier * kv_dim, layer, "self_attn.k_proj.weight", y, W, kv_dim, H);
    apply(v + frontier * kv_dim, layer, "self_attn.v_proj.weight", y, W, kv_dim, H);
    heads(k, layer, "self_attn.k_norm.weight", n, spec->n_kv_heads, 0);
    heads(q, layer, "self_attn.q_norm.weight", W, spec->n_heads, frontier);
    attend(o, q, k, v, frontier, spec->layer_types[i] == 's');
    apply(y, layer, "self_attn.o_proj.weight", o, W, H, q_dim);
    convolve(z, y, u, layer, "attention_conv", 1);
    for (int32_t j = 0; j < W * H; j++)
        x[j] += z[j];
    norm_rows(u, x, layer, "post_attention_layernorm.weight", W, H);
    convolve(y, u, u, layer, "mlp_conv", 0);
    apply(gate, layer, "mlp.gate_proj.weight", y, W, M, H);
    apply(up, layer, "mlp.up_proj.weight", y, W, M, H);
    for (int32_t j = 0; j < W * M; j++)
        gate[j] = gate[j] / (1 + exp(-gate[j])) * up[j];
    apply(y, layer, "mlp.down_proj.weight", gate, W, H, M);
    convolve(z, y, u, layer, "mlp_conv", 1);
    for (int32_t j = 0; j < W * H; j++)
        x[j] += z[j];
    double *all[] = {u, y, z, q, o, k, v, gate, up};
    for (size_t j = 0; j < sizeof all / sizeof *all; j++)
        free(all[j]);
}

/* ids[0..n] by value and then id, the first n + 1 of them in place. */
static void sort_best(int32_t *ids, const double *value, int32_t vocab, int32_t n)
{
    for (int32_t i = 0; i < vocab; i++)
        ids[i] = i;
    for (int32_t i = 0; i <= n && i < vocab; i++)
        for (int32_t j = i + 1; j < vocab; j++)
            if (value[ids[j]] > value[ids[i]] ||
                (value[ids[j]] == value[ids[i]] && ids[j] < ids[i])) {
                int32_t t = ids[i];
                ids[i] = ids[j];
                ids[j] = t;
            }
}

static void decide(struct oracle *o, double better, double worse)
{
    o->margin = fmin(o->margin, better - worse);
}

static void choose_row(struct oracle *o, int32_t i, const double *logits)
{
    int32_t *ids = malloc((size_t)spec->vocab * sizeof *ids);
    sort_best(ids, logits, spec->vocab, 1);
    decide(o, logits[ids[0]], logits[ids[1]]);
    o->draft[i] = ids[0];
    free(ids);
}

static void choose_candidate(struct oracle *o, int32_t i, const double *logits, const double *h,
                             int32_t before)
{
    int32_t n = o->n_candidates, rank = spec->rank, best = 0;
    bool markov = is("DSparkDraftModel");
    int32_t *ids = malloc((size_t)spec->vocab * sizeof *ids);
    double g[64];
    double *A = take("", markov ? "markov_head.markov_w1.weight"
                                : "candidate_selector.predecessor_codebook");
    double *B =
        take("", markov ? "markov_head.markov_w2.weight" : "candidate_selector.successor_codebook");
    sort_best(ids, logits, spec->vocab, n);
    for (int32_t r = 0; r < rank; r++)
        g[r] = 1;
    if (!markov)
        apply(g, "", "candidate_selector.hidden_projection.weight", h, 1, rank, spec->hidden);
    for (int32_t c = 0; c < n; c++) {
        o->id[i][c] = ids[c];
        o->logit[i][c] = logits[ids[c]];
        if (!markov && c + 1 < spec->vocab) /* places matter, and who has none */
            decide(o, logits[ids[c]], logits[ids[c + 1]]);
        o->score[i][c] = logits[ids[c]];
        for (int32_t r = 0; r < rank; r++)
            o->score[i][c] += A[before * rank + r] * g[r] * B[ids[c] * rank + r];
        if (o->score[i][c] > o->score[i][best])
            best = c;
    }
    for (int32_t c = 0; c < n; c++)
        if (c != best)
            decide(o, o->score[i][best], o->score[i][c]);
    o->draft[i] = ids[best];
    if (markov && spec->has_confidence) {
        double *w = take("", "confidence_head.proj.weight"),
               *b = take("", "confidence_head.proj.bias");
        double x = b[0];
        for (int32_t c = 0; c < spec->hidden; c++)
            x += w[c] * h[c];
        for (int32_t r = 0; r < rank && spec->confidence_sees_token; r++)
            x += w[spec->hidden + r] * A[before * rank + r];
        o->confidence[i] = 1 / (1 + exp(-x));
        free(w);
        free(b);
    }
    free(A);
    free(B);
    free(ids);
}

void oracle_run(struct oracle *o, const struct drafter_spec *s, struct out_file *f,
                const double *features, int32_t frontier, int32_t anchor, const double *embed,
                const double *head)
{
    spec = s;
    file = f;
    int32_t H = s->hidden, W = s->block;
    bool markov = is("DSparkDraftModel");
    int32_t first = markov && !s->next_row_only ? 0 : 1;
    CHECK(H == ORACLE_HIDDEN && W <= ORACLE_BLOCK && s->rank <= 64);
    *o = (struct oracle){.n_drafts = W - first, .margin = INFINITY};
    o->n_candidates = markov ? ORACLE_CANDIDATES : is("DFlash2DraftModel") ? s->n_candidates : 0;
    double *own_embed = s->own_embed ? take("", "embed_tokens.weight") : NULL;
    double *own_head = s->own_head ? take("", "lm_head.weight") : NULL;
    double *context = room(frontier + 1, H), *x = room(W, H);
    double *logits = malloc((size_t)s->vocab * sizeof *logits);
    apply(context, "", "fc.weight", features, frontier, H, s->n_taps * H);
    norm_rows(context, context, "", "hidden_norm.weight", frontier, H);
    for (int32_t t = 0; t < W; t++)
        memcpy(x + t * H, (own_embed ? own_embed : embed) + (t ? s->mask_token : anchor) * H,
               (size_t)H * sizeof *x);
    for (int32_t i = 0; i < s->n_layers; i++)
        run_layer(x, context, frontier, i);
    norm_rows(x, x, "", "norm.weight", W, H);
    memcpy(o->hidden, x, (size_t)(W * H) * sizeof *x);
    for (int32_t i = 0; i < o->n_drafts; i++) {
        const double *h = x + (i + first) * H;
        multiply(logits, own_head ? own_head : head, h, s->vocab, H);
        if (o->n_candidates)
            choose_candidate(o, i, logits, h, i ? o->draft[i - 1] : anchor);
        else
            choose_row(o, i, logits);
    }
    free(own_embed);
    free(own_head);
    free(context);
    free(x);
    free(logits);
}
