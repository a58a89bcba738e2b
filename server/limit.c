#include "limit.h"

const struct limit_row limit_rows[N_LIMITS] = {
#define X(name, option, unit, bits, low, normal, high, what)                                       \
    [LIMIT_##name] = {option, unit, what, bits, low, normal, high},
    SERVER_LIMITS(X)
#undef X
};

void limits_init(struct limits *l)
{
    for (int i = 0; i < N_LIMITS; i++)
        l->of[i] = limit_rows[i].normal << limit_rows[i].bits;
}

struct json_limits limits_json(const struct limits *l)
{
    return (struct json_limits){
        .bytes = (size_t)l->of[LIMIT_BODY],
        .string = (size_t)l->of[LIMIT_STRING],
        .values = l->of[LIMIT_VALUES],
        .depth = (int32_t)l->of[LIMIT_DEPTH],
        .string_option = limit_rows[LIMIT_STRING].option,
        .values_option = limit_rows[LIMIT_VALUES].option,
        .depth_option = limit_rows[LIMIT_DEPTH].option,
    };
}
