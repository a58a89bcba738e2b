/* Dicts: entries in insertion order, with a hash index once they are many. */
#include <string.h>

#include "text/template_string.h"

enum { SMALL = 8 }; /* entries that are searched one by one */

static uint32_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    return (uint32_t)x;
}

/* Equal keys have equal hashes: 1, 1.0 and true are the same key. False: unhashable. */
static bool hash_key(struct value key, uint32_t *hash)
{
    switch ((enum value_type)key.type) {
    case V_STRING:
        *hash = string_hash(key.u.string);
        return true;
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT: {
        double x = value_real(key);
        uint64_t bits = 0;
        if (x != 0)
            memcpy(&bits, &x, sizeof bits);
        *hash = mix(bits);
        return true;
    }
    case V_TUPLE:
        *hash = (uint32_t)key.u.list->n;
        for (size_t i = 0; i < key.u.list->n && i < 8; i++) {
            uint32_t h;
            struct value v = key.u.list->item[i];
            if (v.type == V_TUPLE)
                h = (uint32_t)v.u.list->n;
            else if (!hash_key(v, &h))
                return false;
            *hash = mix((uint64_t)*hash << 32 | h);
        }
        return true;
    case V_LIST:
    case V_DICT:
    case V_VIEW:
        return false;
    default:
        *hash = key.type;
        return true;
    }
}

/* String keys, the usual case, without the recursion guard. */
static bool same_key(struct run *r, struct value a, struct value b, bool *same)
{
    if (a.type == V_STRING && b.type == V_STRING) {
        *same = string_equal(a.u.string, b.u.string);
        return true;
    }
    return value_equal(r, a, b, same);
}

static bool find(struct run *r, const struct dict *d, struct value key, size_t *at)
{
    *at = SIZE_MAX;
    uint32_t hash;
    if (!hash_key(key, &hash))
        return run_error(r, "unhashable type: '%s'", value_type_name(key));
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            bool same;
            if (!same_key(r, d->entry[i].key, key, &same))
                return false;
            if (same) {
                *at = i;
                break;
            }
        }
        return true;
    }
    size_t mask = d->n_index - 1;
    for (size_t i = hash & mask; d->index[i]; i = (i + 1) & mask) {
        size_t e = (size_t)d->index[i] - 1;
        bool same;
        if (!run_steps(r, 1) || !same_key(r, d->entry[e].key, key, &same))
            return false;
        if (same) {
            *at = e;
            break;
        }
    }
    return true;
}

bool dict_find(struct run *r, const struct dict *d, struct value key, const struct value **v)
{
    size_t at;
    *v = NULL;
    if (!find(r, d, key, &at))
        return false;
    if (at != SIZE_MAX)
        *v = &d->entry[at].value;
    return true;
}

const struct value *dict_get(const struct dict *d, const struct string *key)
{
    if (d->index) {
        size_t mask = d->n_index - 1;
        for (size_t i = string_hash(key) & mask; d->index[i]; i = (i + 1) & mask) {
            const struct entry *e = &d->entry[d->index[i] - 1];
            if (e->key.type == V_STRING && string_equal(e->key.u.string, key))
                return &e->value;
        }
        return NULL;
    }
    for (size_t i = 0; i < d->n; i++)
        if (d->entry[i].key.type == V_STRING && string_equal(d->entry[i].key.u.string, key))
            return &d->entry[i].value;
    return NULL;
}

static void index_add(struct dict *d, size_t e)
{
    uint32_t hash = 0;
    (void)hash_key(d->entry[e].key, &hash);
    size_t mask = d->n_index - 1, i = hash & mask;
    while (d->index[i])
        i = (i + 1) & mask;
    d->index[i] = (int32_t)(e + 1);
}

static bool grow(struct run *r, struct dict *d)
{
    if (d->n >= INT32_MAX / 4)
        return run_error(r, "a dict of more than %d items", INT32_MAX / 4);
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct entry *e = run_array(r, cap, sizeof *e);
    if (!e)
        return false;
    if (d->n)
        memcpy(e, d->entry, d->n * sizeof *e);
    d->entry = e;
    d->cap = cap;
    return true;
}

/* At most half full. */
static bool reindex(struct run *r, struct dict *d)
{
    if (d->n < SMALL || d->n * 2 < d->n_index)
        return true;
    size_t n = 4 * SMALL;
    while (n < d->n * 4)
        n *= 2;
    int32_t *index = run_array(r, n, sizeof *index);
    if (!index)
        return false;
    memset(index, 0, n * sizeof *index);
    d->index = index;
    d->n_index = n;
    for (size_t i = 0; i < d->n; i++)
        index_add(d, i);
    return true;
}

bool dict_set(struct run *r, struct dict *d, struct value key, struct value v)
{
    size_t at;
    if (!run_steps(r, 1) || !find(r, d, key, &at))
        return false;
    if (at != SIZE_MAX) {
        d->entry[at].value = v;
        return true;
    }
    if ((d->n == d->cap && !grow(r, d)) || !reindex(r, d))
        return false;
    d->entry[d->n] = (struct entry){key, v};
    d->n++;
    if (d->index)
        index_add(d, d->n - 1);
    return true;
}

bool value_dict(struct run *r, size_t n_expected, unsigned char origin, struct value *out)
{
    struct dict *d = run_alloc(r, sizeof *d);
    if (!d)
        return false;
    *d = (struct dict){0};
    if (n_expected) {
        d->entry = run_array(r, n_expected, sizeof *d->entry);
        if (!d->entry)
            return false;
        d->cap = n_expected;
    }
    *out = (struct value){.type = V_DICT, .origin = origin, .u.dict = d};
    return true;
}
