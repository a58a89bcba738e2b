#include "model/bind.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longest first: the full model, its text part saved alone, and text-only exports. */
static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                       "language_model.", "model."};

static bool begins(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static const char *shorten(const char *name)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (begins(name, prefixes[i]))
            return name + strlen(prefixes[i]);
    return name;
}

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

lathe_status names_open(struct binder *b, const struct checkpoint *files, struct arena *arena,
                        lathe_error *err)
{
    *b = (struct binder){.arena = arena, .n = checkpoint_count(files)};
    buf_init(&b->problems, sizeof err->message - 128);
    b->entries = calloc(b->n ? b->n : 1, sizeof *b->entries);
    if (!b->entries)
        return fail_memory(err, b->n * sizeof *b->entries);
    for (size_t i = 0; i < b->n; i++) {
        const struct checkpoint_tensor *t = checkpoint_at(files, i);
        b->entries[i] = (struct entry){.name = shorten(t->name), .tensor = t};
    }
    qsort(b->entries, b->n, sizeof *b->entries, by_name);
    for (size_t i = 1; i < b->n; i++)
        if (strcmp(b->entries[i - 1].name, b->entries[i].name) == 0)
            problem(b, LATHE_E_FORMAT, "tensors %s and %s are for the same place",
                    b->entries[i - 1].tensor->name, b->entries[i].tensor->name);
    return LATHE_OK;
}

void names_close(struct binder *b)
{
    free(b->entries);
    free(b->bound);
    buf_release(&b->problems);
}

static void join(char out[MAX_NAME], const char *base, const char *suffix)
{
    (void)snprintf(out, MAX_NAME, "%s%s%s", base, suffix ? "." : "", suffix ? suffix : "");
}

/* Index of the first name that is not before `name`. */
static size_t lower_bound(const struct binder *b, const char *name)
{
    size_t lo = 0, hi = b->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(b->entries[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct entry *find(const struct binder *b, const char *base, const char *suffix)
{
    char name[MAX_NAME];
    join(name, base, suffix);
    size_t i = lower_bound(b, name);
    return i < b->n && strcmp(b->entries[i].name, name) == 0 ? &b->entries[i] : NULL;
}

const struct checkpoint_tensor *names_take(struct binder *b, const char *base, const char *suffix)
{
    struct entry *e = find(b, base, suffix);
    if (!e)
        return NULL;
    e->is_used = true;
    return e->tensor;
}

bool names_has(const struct binder *b, const char *base, const char *suffix)
{
    return find(b, base, suffix) != NULL;
}

bool names_has_prefix(const struct binder *b, const char *prefix)
{
    size_t i = lower_bound(b, prefix);
    return i < b->n && begins(b->entries[i].name, prefix);
}

void names_ignore_prefix(struct binder *b, const char *prefix)
{
    for (size_t i = lower_bound(b, prefix); i < b->n && begins(b->entries[i].name, prefix); i++)
        b->entries[i].is_used = true;
}

void names_full(const struct binder *b, const char *short_name, char out[MAX_NAME])
{
    /* The prefix is the one of a tensor from the same part of the model. */
    static const char *const parts[] = {"layers.", "mtp.", "lm_head"};
    const char *part = "layers.", *prefix = "model.language_model.";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (begins(short_name, parts[i]))
            part = parts[i];
    if (strcmp(part, "layers.") != 0)
        prefix = "";
    int n = (int)strlen(prefix);
    size_t i = lower_bound(b, part);
    if (i < b->n && begins(b->entries[i].name, part)) {
        prefix = b->entries[i].tensor->name;
        n = (int)(b->entries[i].name - prefix);
    }
    (void)snprintf(out, MAX_NAME, "%.*s%s", n, prefix, short_name);
}

void names_check_unused(struct binder *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (!b->entries[i].is_used)
            problem(b, LATHE_E_FORMAT, "tensor %s in %s has no place in the model",
                    b->entries[i].tensor->name, b->entries[i].tensor->file);
}

void problem(struct binder *b, lathe_status status, const char *fmt, ...)
{
    char text[MAX_NAME + 256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (b->n_problems++ == 0)
        b->status = status;
    if (b->problems.over)
        return;
    size_t len = b->problems.len;
    if (len + strlen(text) + 2 > b->problems.limit) {
        b->problems.over = true; /* later ones are counted only */
        return;
    }
    buf_printf(&b->problems, "%s%s", len ? "; " : "", text);
    b->n_told++;
}

void problem_memory(struct binder *b, size_t bytes)
{
    problem(b, LATHE_E_MEMORY, "out of memory (%zu bytes)", bytes);
    b->status = LATHE_E_MEMORY;
}

void problem_shape(struct binder *b, const struct checkpoint_tensor *t, const char *expected)
{
    char shape[256];
    int n = snprintf(shape, sizeof shape, "%s [", dtype_name(t->dtype));
    for (int32_t i = 0; i < t->n_dims; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? ", " : "",
                      (long long)t->dim[i]);
    problem(b, LATHE_E_FORMAT, "tensor %s in %s: %s], expected %s by config.json", t->name, t->file,
            shape, expected);
}

lathe_status problems_check(struct binder *b, lathe_error *err)
{
    if (b->problems.no_memory || b->status == LATHE_E_MEMORY)
        return fail(err, LATHE_E_MEMORY, "out of memory");
    if (b->n_problems == 0)
        return LATHE_OK;
    if (b->n_problems == 1)
        return fail(err, b->status, "%s", buf_str(&b->problems));
    if (b->n_told == b->n_problems)
        return fail(err, b->status, "%d problems: %s", b->n_problems, buf_str(&b->problems));
    return fail(err, b->status, "%d problems: %s; and %d more", b->n_problems,
                buf_str(&b->problems), b->n_problems - b->n_told);
}
