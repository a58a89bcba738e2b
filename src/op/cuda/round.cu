/* The operators of rounds that the device decides: penalties, choices of tokens and drafts, the end of a round. All are
 * bound by the latency of a few reads. */
#include <float.h>

#include "op/cuda/cuda.cuh"

/* As the host's, rounding for rounding. */
__device__ __forceinline__ float with_penalties(const struct penalties &p, float x, int32_t count)
{
    if (!(fabsf(x) <= FLT_MAX))
        return x;
    if (p.repetition != 1.0f)
        x = x > 0 ? __fdiv_rn(x, p.repetition) : __fmul_rn(x, p.repetition);
    if (count > 0)
        x = __fsub_rn(x, __fadd_rn(__fmul_rn(p.frequency, (float)count), p.presence));
    return fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
}

/* How often id is among n tokens. */
__device__ __forceinline__ int32_t count_of(const int32_t *token, int32_t n, int32_t id)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += token[i] == id;
    return count;
}

enum { THREADS = 512 };

/* A block a row. */
static __global__ void __launch_bounds__(THREADS)
    penalise(float *logits, int64_t stride, int32_t first, const struct resident *r,
             struct history h)
{
    begin_kernel();
    __shared__ int32_t token[RESIDENT_ROWS];
    struct penalties p = *h.p;
    int32_t j = first + (int32_t)blockIdx.x; /* drafts before */
    float *row = logits + blockIdx.x * stride;
    if (p.n_seen < 0)
        return;
    if (threadIdx.x < RESIDENT_ROWS)
        token[threadIdx.x] = r->token[threadIdx.x];
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < p.n_seen; i += THREADS) {
        int32_t id = h.seen[i];
        row[id] = with_penalties(p, row[id], h.times[id] - 1 + count_of(token + 1, j, id));
    }
    int32_t i = (int32_t)threadIdx.x + 1;
    if (i > j || h.times[token[i]] > 0 || count_of(token + 1, i - 1, token[i]) > 0)
        return;
    row[token[i]] = with_penalties(p, row[token[i]], count_of(token + 1, j, token[i]));
}

extern "C" lathe_status cuda_penalise(void *stream, const struct penalise_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    launch_next(c, penalise, (unsigned)a->logits.dim[0], THREADS, 0, (float *)a->logits.data,
                a->logits.stride, a->first, a->r, *a->h);
    return cuda_launched(c, err);
}

/* ---- Choices, as choice_of makes them ----------------------------------------------------------- */

/* k candidates, and what a warp notes of them. */
struct candidates {
    float x[CHOICE_MOST];
    int32_t id[CHOICE_MOST];      /* -1: not there */
    uint64_t weight[CHOICE_MOST]; /* fixed; 0 of what top-k leaves out */
};

/* The place of the best of a warp's candidates, -1 if none is there. */
__device__ __forceinline__ int32_t best_of(const struct candidates &a, int32_t k)
{
    int32_t best = -1, best_id = INT32_MAX;
    float most = 0;
    for (int32_t c = (int32_t)threadIdx.x; c < k; c += 32)
        if (a.id[c] >= 0 && (best < 0 || choice_is_better(a.x[c], a.id[c], most, best_id)))
            best = c, best_id = a.id[c], most = a.x[c];
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        int32_t c = __shfl_xor_sync(0xffffffffu, best, m);
        int32_t of = __shfl_xor_sync(0xffffffffu, best_id, m);
        float x = __shfl_xor_sync(0xffffffffu, most, m);
        if (c >= 0 && (best < 0 || choice_is_better(x, of, most, best_id)))
            best = c, best_id = of, most = x;
    }
    return best;
}

/* How many candidates are better than c. */
__device__ __forceinline__ int32_t n_better(const struct candidates &a, int32_t k, int32_t c)
{
    int32_t n = 0;
    for (int32_t j = 0; j < k; j++)
        n += a.id[j] >= 0 && choice_is_better(a.x[j], a.id[j], a.x[c], a.id[c]);
    return n;
}

/* What they weigh together. */
__device__ __forceinline__ uint64_t better_weight(const struct candidates &a, int32_t k, int32_t c)
{
    uint64_t sum = 0;
    for (int32_t j = 0; j < k; j++)
        if (a.id[j] >= 0 && choice_is_better(a.x[j], a.id[j], a.x[c], a.id[c]))
            sum += a.weight[j];
    return sum;
}

/* By a warp, which has written x and id and synchronised: the place of the chosen candidate, -1 if none is there. */
static __device__ int32_t choose_place(const struct choice &p, struct candidates &a, int32_t k,
                                       int32_t position)
{
    int32_t best = best_of(a, k);
    if (best < 0 || p.temperature == 0)
        return best;
    int32_t top_k = p.top_k > 0 ? p.top_k : INT32_MAX;
    float top = a.x[best];
    unsigned long long sum = 0;
    for (int32_t c = (int32_t)threadIdx.x; c < k && p.top_p < 1; c += 32) {
        bool is_in = a.id[c] >= 0 && n_better(a, k, c) < top_k;
        a.weight[c] = is_in ? choice_fixed(choice_weight(a.x[c], top, p.temperature)) : 0;
        sum += a.weight[c];
    }
    __syncwarp();
    double need = choice_need(p.top_p, warp_sum(sum)), most = 0;
    int32_t chosen = -1, id = INT32_MAX;
    for (int32_t c = (int32_t)threadIdx.x; c < k; c += 32) {
        int32_t of = a.id[c];
        if (of < 0 || n_better(a, k, c) >= top_k)
            continue;
        uint64_t better = p.top_p < 1 ? better_weight(a, k, c) : 0;
        if (better > 0 && !((double)better < need))
            continue;
        if (p.min_p > 0 && !(choice_weight(a.x[c], top, p.temperature) >= p.min_p))
            continue;
        double key =
            choice_key(a.x[c], p.temperature, choice_gumbel(choice_bits(p.seed, position, of, 0)));
        if (chosen < 0 || key > most || (key == most && of < id))
            chosen = c, id = of, most = key;
    }
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        int32_t c = __shfl_xor_sync(0xffffffffu, chosen, m);
        int32_t of = __shfl_xor_sync(0xffffffffu, id, m);
        double key = __shfl_xor_sync(0xffffffffu, most, m);
        if (c >= 0 && (chosen < 0 || key > most || (key == most && of < id)))
            chosen = c, id = of, most = key;
    }
    return chosen;
}

/* Of the token that follows row i. */
__device__ __forceinline__ int32_t next_pos(const struct resident *r, int32_t i)
{
    return r->pos[1 + i] + 1;
}

/* A warp. */
static __global__ void __launch_bounds__(32)
    walk(int32_t *token, const int32_t *id, int64_t id_stride, const float *score,
         int64_t score_stride, int32_t n, int32_t k, const struct resident *r, struct history h)
{
    begin_kernel();
    __shared__ int32_t taken[RESIDENT_ROWS];
    __shared__ struct candidates a;
    struct penalties p = *h.p;
    struct choice choice = r->choice;
    int32_t place = 0, i = 0;
    for (; i < n; i++) {
        for (int32_t c = (int32_t)threadIdx.x; c < k; c += 32) {
            int32_t of = id[i * id_stride + c];
            float x = score[i * score_stride + (int64_t)place * k + c];
            bool there = of >= 0 && fabsf(x) <= FLT_MAX;
            if (there && p.n_seen >= 0) {
                int32_t times = h.times[of], more = count_of(taken, i, of);
                if (times > 0 || more > 0)
                    x = with_penalties(p, x, max(times - 1, 0) + more);
            }
            a.x[c] = x;
            a.id[c] = there ? of : -1;
        }
        __syncwarp();
        place = choose_place(choice, a, k, next_pos(r, i));
        if (place < 0)
            break;
        if (threadIdx.x == 0)
            token[i] = taken[i] = a.id[place];
        __syncwarp();
    }
    for (i += (int32_t)threadIdx.x; i < n; i += 32)
        token[i] = 0;
}

extern "C" lathe_status cuda_walk(void *stream, const struct walk_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    launch_next(c, walk, 1, 32, 0, (int32_t *)a->token.data, (const int32_t *)a->id.data,
                a->id.stride, (const float *)a->score.data, a->score.stride, a->id.dim[0],
                a->id.dim[1], a->r, *a->h);
    return cuda_launched(c, err);
}

/* The largest key of a part of a row, and whose it is; id -1: nobody's. */
struct draw {
    double key;
    int32_t id;
};
static_assert(sizeof(struct draw) == CHOOSE_PART, "the scratch of op_choose");

__device__ __forceinline__ bool is_drawn_before(const struct draw &a, const struct draw &b)
{
    return a.id >= 0 && (b.id < 0 || a.key > b.key || (a.key == b.key && a.id < b.id));
}
__device__ __forceinline__ struct draw warp_draw(struct draw a)
{
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        struct draw b = {__shfl_xor_sync(0xffffffffu, a.key, m),
                         __shfl_xor_sync(0xffffffffu, a.id, m)};
        if (is_drawn_before(b, a))
            a = b;
    }
    return a;
}

struct row_draw {
    const float *logits, *value; /* value: the largest of a row first */
    int64_t logits_stride, value_stride;
    struct few range; /* begin and end of each */
    int32_t n_ranges, first;
    unsigned n_parts;
    const struct resident *r;
    struct draw *part; /* [T, n_parts] */
};

/* A block a row and part, where choices are made among all of a row: else it has nothing to do. Bound by the generator's
 * arithmetic. */
static __global__ void __launch_bounds__(256) draw_part(const __grid_constant__ struct row_draw a)
{
    begin_kernel();
    __shared__ struct draw of_warp[8];
    const struct choice c = a.r->choice;
    if (!CHOICE_IS_WHOLE(&c))
        return;
    int32_t t = (int32_t)(blockIdx.x / a.n_parts), part = (int32_t)(blockIdx.x % a.n_parts);
    int32_t position = next_pos(a.r, a.first + t), lane = (int32_t)threadIdx.x % 32;
    const float *row = a.logits + t * a.logits_stride;
    float top = a.value[t * a.value_stride];
    struct draw mine = {0, -1};
    for (int32_t i = 0; i < a.n_ranges; i++) {
        int32_t begin = max((int32_t)few_at(a.range, 2 * i), part * CHOOSE_COLUMNS);
        int32_t end = min((int32_t)few_at(a.range, 2 * i + 1), (part + 1) * CHOOSE_COLUMNS);
        for (int32_t id = begin + (int32_t)threadIdx.x; id < end; id += 256) {
            float x = row[id];
            if (!(fabsf(x) <= FLT_MAX))
                continue;
            uint64_t bits = choice_bits(c.seed, position, id, 0);
            if (mine.id >= 0 && choice_key(x, c.temperature, choice_gumbel_bound(bits)) <= mine.key)
                continue;
            if (c.min_p > 0 && !(choice_weight(x, top, c.temperature) >= c.min_p))
                continue;
            struct draw other = {choice_key(x, c.temperature, choice_gumbel(bits)), id};
            if (is_drawn_before(other, mine))
                mine = other;
        }
    }
    mine = warp_draw(mine);
    if (lane == 0)
        of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    mine = of_warp[lane % 8];
    mine = warp_draw(mine);
    if (lane == 0)
        a.part[blockIdx.x] = mine;
}

/* A warp a row. */
static __global__ void __launch_bounds__(32)
    choose(int32_t *token, const float *value, int64_t value_stride, const int32_t *id,
           int64_t id_stride, int32_t k, int32_t first, int32_t none, const struct resident *r,
           const struct draw *part, int32_t n_parts)
{
    begin_kernel();
    __shared__ struct candidates a;
    int32_t t = (int32_t)blockIdx.x, chosen = -1;
    bool is_number = value[t * value_stride] <= FLT_MAX;
    struct choice choice = r->choice;
    if (k > 1 && CHOICE_IS_WHOLE(&choice)) {
        struct draw mine = {0, -1};
        for (int32_t i = (int32_t)threadIdx.x; i < n_parts; i += 32)
            if (is_drawn_before(part[t * n_parts + i], mine))
                mine = part[t * n_parts + i];
        chosen = warp_draw(mine).id;
    } else {
        for (int32_t c = (int32_t)threadIdx.x; c < k; c += 32) {
            float x = value[t * value_stride + c];
            a.x[c] = x;
            a.id[c] = fabsf(x) <= FLT_MAX ? id[t * id_stride + c] : -1;
        }
        __syncwarp();
        int32_t place = choose_place(choice, a, k, next_pos(r, first + t));
        chosen = place < 0 ? -1 : a.id[place];
    }
    if (threadIdx.x == 0)
        token[t] = is_number && chosen >= 0 ? chosen : none;
}

extern "C" lathe_status cuda_choose(void *stream, const struct choose_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    unsigned T = (unsigned)a->id.dim[0];
    struct row_draw d = {};
    d.logits = (const float *)a->logits.data;
    d.value = (const float *)a->value.data;
    d.logits_stride = a->logits.stride;
    d.value_stride = a->value.stride;
    d.n_ranges = a->n_ranges;
    d.first = a->first;
    d.n_parts = (unsigned)((a->logits.dim[1] + CHOOSE_COLUMNS - 1) / CHOOSE_COLUMNS);
    d.r = a->r;
    d.part = (struct draw *)a->scratch.data;
    if (a->id.dim[1] > 1) {
        if (!few_of(c, &d.range, a->range[0], 2 * (int64_t)a->n_ranges))
            return cuda_launched(c, err);
        launch_next(c, draw_part, T * d.n_parts, 256, 0, d);
    }
    launch_next(c, choose, T, 32, 0, (int32_t *)a->token.data, d.value, d.value_stride,
                (const int32_t *)a->id.data, a->id.stride, (int32_t)a->id.dim[1], a->first, a->none,
                a->r, (const struct draw *)d.part, (int32_t)d.n_parts);
    return cuda_launched(c, err);
}

/* By the lanes that have a token, each another: the history has them once more. */
__device__ __forceinline__ void note(const struct history &h, int lane, bool has, int32_t id)
{
    unsigned same = __match_any_sync(0xffffffffu, has ? id : -1 - lane);
    int32_t n_seen = h.p->n_seen, times = 0;
    bool is_first = has && __ffs((int)same) - 1 == lane && n_seen >= 0;
    if (is_first)
        times = h.times[id];
    unsigned fresh = __ballot_sync(0xffffffffu, is_first && times == 0);
    if (is_first) {
        h.times[id] = max(times, 1) + __popc(same);
        if (times == 0)
            h.seen[n_seen + __popc(fresh & ((1u << lane) - 1))] = id;
    }
    if (lane == 0)
        h.p->n_seen = n_seen + __popc(fresh);
}

/* A warp, a lane a row. */
static __global__ void __launch_bounds__(32)
    advance(struct resident *r, int32_t rows, struct history h, struct round_report *report)
{
    begin_kernel();
    int lane = (int)threadIdx.x, i = min(lane, RESIDENT_ROWS - 1);
    int32_t best = r->best[i], n_rounds = r->n_rounds, left = r->left;
    bool is_decided = lane < rows && best >= 0 && r->logit[i] <= FLT_MAX;
    bool goes_on = is_decided && lane + 1 < rows && best == r->token[min(i + 1, RESIDENT_ROWS - 1)];
    for (int k = 0; k < r->n_stops; k++)
        goes_on = goes_on && r->stop[k] != best;
    /* The first row that does not go on is the last that is judged. */
    int last = __ffs((int)~__ballot_sync(0xffffffffu, goes_on)) - 1;
    int n = min(last + (int)(__ballot_sync(0xffffffffu, is_decided) >> last & 1), left);
    struct round_report *to = &report[n_rounds % ROUND_REPORTS];
    int32_t anchor = __shfl_sync(0xffffffffu, best, max(n - 1, 0));
    if (lane < n)
        to->token[lane] = best;
    if (lane == 0) {
        to->n = n;
        r->n_rounds = n_rounds + 1;
        r->keep = r->seq[rows];
        r->keep.n_rows = r->behind.n_rows = n;
    }
    if (n == 0)
        return;
    note(h, lane, lane < n, best);
    if (lane < RESIDENT_ROWS)
        r->kept_token[lane] = r->token[lane];
    __syncwarp();
    if (lane == 0) {
        r->token[0] = r->block_token[0] = anchor;
        r->behind.pos = r->keep.pos - 1;
        r->block.pos += n;
        if (left < INT32_MAX)
            r->left = left - n;
    }
    if (lane > RESIDENT_ROWS)
        return;
    r->kept_pos[lane] = r->pos[lane];
    r->pos[lane] += n;
    r->one[lane].pos += n;
    r->seq[lane].pos += n;
    for (int axis = 0; axis < 3; axis++) {
        r->kept_rope_pos[lane][axis] = r->rope_pos[lane][axis];
        r->rope_pos[lane][axis] += n;
    }
}

extern "C" lathe_status cuda_advance(void *stream, const struct advance_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    launch_next(c, advance, 1, 32, 0, a->r, a->n_rows, *a->h, a->report);
    return cuda_launched(c, err);
}
