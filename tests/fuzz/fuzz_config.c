/* Any bytes as a config.json, of a model and of a drafter: a refusal with a message, or sizes within the
 * stated ranges, whose products no later code needs to check. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/model.h"
#include "op/op.h"
#include "spec/dflash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_rotary(const struct dims *d)
{
    require(d->rotary_dims >= 2 && d->rotary_dims % 2 == 0 && d->rotary_dims <= d->head_dim);
    require(isfinite(d->rope_scale) && d->max_position > 0);
    for (int32_t i = 0; i < d->rotary_dims / 2; i++)
        require(isfinite(d->inv_freq[i]) && d->inv_freq[i] >= 0 && d->inv_freq[i] <= 1);
}

static void check_drafter(const uint8_t *data, size_t n)
{
    struct dflash_config c;
    lathe_error err = {0};
    if (dflash_config_parse(&c, (const char *)data, n, &err)) {
        require(err.message[0] != 0);
        return;
    }
    require(c.dims.vocab > 0 && c.dims.hidden > 0 && c.dims.n_layers <= MAX_LAYERS);
    require(c.dims.n_heads % c.dims.n_kv_heads == 0 && c.dims.head_dim <= OP_MAX_HEAD);
    require(c.block >= 2 && c.block <= DFLASH_MAX_BLOCK && c.mask_token < c.dims.vocab);
    require(c.n_taps >= 1 && c.n_taps <= DFLASH_MAX_TAPS && c.tap[c.n_taps - 1] < MAX_LAYERS);
    require(c.rank >= 0 && c.rank <= OP_MAX_RANK && c.n_candidates <= DFLASH_MAX_CANDIDATES);
    require(c.kind != DFLASH_SELECTOR || c.dims.hidden % c.conv_group == 0);
    for (int32_t i = 0; i < c.dims.n_layers; i++)
        require(c.dims.is_full_attention[i] || c.window >= 1);
    check_rotary(&c.dims);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dims d;
    check_drafter(data, n);
    lathe_error err = {0};
    if (dims_parse(&d, (const char *)data, n, &err)) {
        require(err.message[0] != 0);
        return 0;
    }
    require(d.vocab > 0 && d.hidden > 0 && d.mlp > 0 && d.rms_eps >= 0);
    require(d.n_layers > 0 && d.n_layers <= MAX_LAYERS);
    require(d.n_kv_heads > 0 && d.n_heads % d.n_kv_heads == 0);
    require(d.n_k_heads > 0 && d.n_v_heads % d.n_k_heads == 0);
    require(d.head_dim <= OP_MAX_HEAD && d.dk <= OP_MAX_HEAD && d.dv <= OP_MAX_HEAD);
    require((int64_t)d.n_heads * 2 * d.head_dim <= INT32_MAX);
    require(d.conv_dim == 2 * (int64_t)d.n_k_heads * d.dk + (int64_t)d.n_v_heads * d.dv);
    require(d.conv_taps >= 2 && d.conv_taps <= OP_MAX_TAPS);
    check_rotary(&d);
    return 0;
}
