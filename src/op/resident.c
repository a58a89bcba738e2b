#include "op/resident.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "op/backend.h"

struct resident resident_at(int32_t slot, int32_t pos, int32_t token)
{
    struct resident r = {
        .token = {token},
        .block_token = {token},
        .block = {slot, 0, 1, pos},
        .keep = {slot, 0, 0, pos},
        .behind = {slot, 0, 0, pos - 1},
        .before = -1,
        .left = INT32_MAX,
    };
    for (int32_t i = 0; i <= RESIDENT_ROWS; i++) {
        int32_t at = pos - 1 + i;
        r.slot[i] = slot;
        r.pos[i] = r.kept_pos[i] = at;
        r.one[i] = (struct batch_seq){slot, 0, 1, at};
        r.seq[i] = (struct batch_seq){slot, 0, i, pos};
        for (int axis = 0; axis < 3; axis++)
            r.rope_pos[i][axis] = r.kept_rope_pos[i][axis] = at;
    }
    return r;
}

/* From place `first` of the positions on. */
static struct batch batch_of(const struct resident *r, const struct batch_seq *seq,
                             const int32_t *token, int32_t first, int32_t end_pos)
{
    return (struct batch){
        .phase = PHASE_DECODE,
        .n_rows = seq->n_rows,
        .n_seqs = 1,
        .token = token,
        .slot = r->slot + first,
        .pos = r->pos + first,
        .rope_pos = r->rope_pos + first,
        .seq = seq,
        .end_pos = end_pos,
    };
}

void resident_batch(struct batch *b, const struct resident *r, int32_t n, int32_t end_pos)
{
    *b = batch_of(r, &r->seq[n], r->token, 1, end_pos);
    b->phase = PHASE_VERIFY;
}

void resident_block(struct batch *b, const struct resident *r, int32_t end_pos)
{
    *b = batch_of(r, &r->block, r->block_token, 1, end_pos);
}

void resident_one(struct batch *b, const struct resident *r, int32_t i, const int32_t *token,
                  int32_t end_pos)
{
    *b = batch_of(r, &r->one[i], token, i, end_pos);
}

void resident_kept(struct batch *b, const struct resident *r, int32_t end_pos)
{
    *b = batch_of(r, &r->keep, r->kept_token, 1, end_pos);
    b->pos = r->kept_pos + 1;
    b->rope_pos = r->kept_rope_pos + 1;
}

void resident_behind(struct batch *b, const struct resident *r, int32_t end_pos)
{
    *b = batch_of(r, &r->behind, r->kept_token, 0, end_pos);
    b->pos = r->kept_pos;
    b->rope_pos = r->kept_rope_pos;
}

/* Is row i's token decided? */
static bool is_decided(const struct resident *r, int32_t i)
{
    return r->best[i] >= 0 && r->logit[i] <= FLT_MAX;
}

/* May the row behind row i of n be judged, the token of row i being that row's? */
static bool goes_on(const struct resident *r, int32_t i, int32_t n)
{
    if (i + 1 >= n || r->best[i] != r->token[i + 1])
        return false;
    for (int32_t k = 0; k < r->n_stops; k++)
        if (r->stop[k] == r->best[i])
            return false;
    return true;
}

static void note(const struct history *h, int32_t id)
{
    if (h->times[id] == 0) {
        h->seen[h->p->n_seen++] = id;
        h->times[id] = 1;
    }
    h->times[id]++;
}

void resident_advance(struct resident *r, int32_t n_rows, const struct history *h,
                      struct round_report *report)
{
    struct round_report *to = &report[r->n_rounds++ % ROUND_REPORTS];
    int32_t n = 0;
    while (n < r->left && is_decided(r, n)) {
        to->token[n] = r->best[n];
        if (!goes_on(r, n++, n_rows))
            break;
    }
    to->n = n;
    r->keep = r->seq[n_rows];
    r->keep.n_rows = r->behind.n_rows = n;
    if (n == 0)
        return;
    if (r->left < INT32_MAX)
        r->left -= n;
    for (int32_t i = 0; i < n && h->p->n_seen >= 0; i++)
        note(h, r->best[i]);
    memcpy(r->kept_token, r->token, sizeof r->kept_token);
    memcpy(r->kept_pos, r->pos, sizeof r->kept_pos);
    memcpy(r->kept_rope_pos, r->rope_pos, sizeof r->kept_rope_pos);
    r->behind.pos = r->keep.pos - 1;
    r->token[0] = r->block_token[0] = r->best[n - 1];
    r->block.pos += n;
    for (int32_t i = 0; i <= RESIDENT_ROWS; i++) {
        r->pos[i] += n;
        r->one[i].pos += n;
        r->seq[i].pos += n;
        for (int axis = 0; axis < 3; axis++)
            r->rope_pos[i][axis] += n;
    }
}

float penalised(const struct penalties *p, float x, int32_t count)
{
    if (!(fabsf(x) <= FLT_MAX))
        return x;
    if (p->repetition != 1)
        x = x > 0 ? x / p->repetition : x * p->repetition;
    if (count > 0)
        x -= p->frequency * (float)count + p->presence;
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static int32_t count_of(const int32_t *token, int32_t n, int32_t id)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += token[i] == id;
    return count;
}

float history_penalised(const struct history *h, int32_t id, float x, const int32_t *token,
                        int32_t n)
{
    int32_t more = count_of(token, n, id), times = h->times[id];
    if (h->p->n_seen < 0 || (times == 0 && more == 0))
        return x;
    return penalised(h->p, x, (times > 0 ? times - 1 : 0) + more);
}

void resident_penalise(float *row, const struct history *h, const int32_t *token, int32_t n)
{
    for (int32_t i = 0; i < h->p->n_seen; i++) {
        int32_t id = h->seen[i];
        row[id] = history_penalised(h, id, row[id], token, n);
    }
    for (int32_t i = 0; i < n && h->p->n_seen >= 0; i++) {
        int32_t id = token[i];
        if (h->times[id] == 0 && count_of(token, i, id) == 0)
            row[id] = history_penalised(h, id, row[id], token, n);
    }
}

/* Of the token that follows row i. */
static int32_t next_pos(const struct resident *r, int32_t i)
{
    return r->pos[1 + i] + 1;
}

void resident_walk(struct tensor token, struct tensor id, struct tensor score,
                   const struct resident *r, const struct history *h)
{
    int32_t n = (int32_t)id.dim[0], k = (int32_t)id.dim[1], place = 0, *out = token.data;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int32_t i = 0; i < n; i++) {
        const int32_t *of = tensor_at(&id, i);
        const float *row = (const float *)tensor_at(&score, i) + (ptrdiff_t)place * k;
        float x[CHOICE_MOST];
        for (int32_t c = 0; c < k; c++)
            x[c] = of[c] < 0 ? row[c] : history_penalised(h, of[c], row[c], out, i);
        place = choice_of(&r->choice, x, of, k, next_pos(r, i));
        if (place < 0)
            break;
        out[i] = of[place];
    }
}

void resident_choose(const struct choose_args *a)
{
    const struct choice *c = &a->r->choice;
    int32_t *out = a->token.data, k = (int32_t)a->id.dim[1];
    for (int32_t t = 0; t < (int32_t)a->id.dim[0]; t++) {
        const float *x = tensor_at(&a->value, t), *row = tensor_at(&a->logits, t);
        const int32_t *of = tensor_at(&a->id, t);
        int32_t position = next_pos(a->r, a->first + t), place;
        out[t] = a->none;
        if (!(x[0] <= FLT_MAX))
            continue;
        place = choice_of(c, x, of, k, position);
        if (place >= 0 && k > 1 && CHOICE_IS_WHOLE(c))
            out[t] = choice_of_row(c, row, a->range, a->n_ranges, x[0], position);
        else if (place >= 0)
            out[t] = of[place];
    }
}
