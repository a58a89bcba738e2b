/* Any bytes as a config.json: a refusal with a message, or sizes within the stated ranges, whose
 * products no later code needs to check. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/model.h"
#include "op/op.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dims d;
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
    require(d.rotary_dims >= 2 && d.rotary_dims % 2 == 0 && d.rotary_dims <= d.head_dim);
    require(isfinite(d.rope_scale) && d.max_position > 0);
    for (int32_t i = 0; i < d.rotary_dims / 2; i++)
        require(isfinite(d.inv_freq[i]) && d.inv_freq[i] >= 0 && d.inv_freq[i] <= 1);
    return 0;
}
