#include "container/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "container/shard.h"

enum { MAX_FILES = 4096, MAX_PATH = 4096 };
#define INDEX  "model.safetensors.index.json"
#define SINGLE "model.safetensors"

struct mapped {
    const char *name; /* without the folder */
    struct file map;
    struct shard shard;
};

struct checkpoint {
    struct arena arena;
    struct mapped *files; /* [n_files] */
    size_t n_files, cap_files;
    struct checkpoint_tensor *tensors;        /* [n] */
    const struct checkpoint_tensor **by_name; /* [n] */
    size_t n;
};

static bool is_folder(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

static lathe_status join(char out[MAX_PATH], const char *dir, const char *name, lathe_error *err)
{
    int n = snprintf(out, MAX_PATH, "%s/%s", dir, name);
    if (n < 0 || n >= MAX_PATH)
        return fail(err, LATHE_E_LIMIT, "path %.64s...: longer than %d bytes", dir, MAX_PATH - 1);
    return LATHE_OK;
}

/* Maps and reads one more file. */
static lathe_status add_file(struct checkpoint *cp, const char *path, const char *name,
                             lathe_error *err)
{
    if (cp->n_files == MAX_FILES)
        return fail(err, LATHE_E_LIMIT, "more than %d files", MAX_FILES);
    struct mapped *p = array_room(cp->files, cp->n_files, &cp->cap_files, sizeof *p, err);
    if (!p)
        return LATHE_E_MEMORY;
    cp->files = p;
    struct mapped *f = &cp->files[cp->n_files];
    *f = (struct mapped){.name = arena_strndup(&cp->arena, name, strlen(name))};
    if (!f->name)
        return fail_memory(err, strlen(name));
    lathe_status st = file_map(&f->map, path, err);
    if (st)
        return st;
    cp->n_files++;
    st = shard_parse(&f->shard, &cp->arena, f->name, f->map.data, f->map.size, err);
    if (st)
        error_context(err, "%s", f->name);
    return st;
}

static int by_name(const void *a, const void *b)
{
    const struct checkpoint_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Joins the lists of all files and sorts the names. */
static lathe_status build_list(struct checkpoint *cp, lathe_error *err)
{
    cp->n = 0;
    for (size_t i = 0; i < cp->n_files; i++)
        cp->n += cp->files[i].shard.n;
    cp->tensors = arena_calloc(&cp->arena, cp->n, sizeof *cp->tensors);
    cp->by_name = arena_calloc(&cp->arena, cp->n, sizeof *cp->by_name);
    if (!cp->tensors || !cp->by_name)
        return fail_memory(err, cp->n * sizeof *cp->tensors);
    size_t n = 0;
    for (size_t i = 0; i < cp->n_files; i++) {
        const struct shard *s = &cp->files[i].shard;
        for (size_t k = 0; k < s->n; k++, n++) {
            cp->tensors[n] = s->tensors[k];
            cp->by_name[n] = &cp->tensors[n];
        }
    }
    qsort(cp->by_name, n, sizeof *cp->by_name, by_name);
    for (size_t i = 1; i < n; i++) {
        const struct checkpoint_tensor *a = cp->by_name[i - 1], *b = cp->by_name[i];
        if (strcmp(a->name, b->name) == 0)
            return fail(err, LATHE_E_FORMAT, "tensor %s: both in %s and in %s", a->name, a->file,
                        b->file);
    }
    return LATHE_OK;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* A file name that stays in its folder. */
static lathe_status check_name(const struct json_doc *doc, const char *tensor, const json_t *v,
                               const char **out, lathe_error *err)
{
    size_t n = 0;
    const char *name = json_text(doc, v, &n);
    if (!name || n == 0 || strlen(name) != n)
        return fail(err, LATHE_E_FORMAT, "tensor %s: no file name", tensor);
    if (strpbrk(name, "/\\") || strstr(name, ".."))
        return fail(err, LATHE_E_FORMAT, "tensor %s: the path %.200s leaves the folder", tensor,
                    name);
    *out = name;
    return LATHE_OK;
}

static lathe_status add_shards(struct checkpoint *cp, const char *dir, const struct json_doc *doc,
                               json_t *map, lathe_error *err)
{
    size_t n = 0, size = json_object_size(map);
    const char **names = calloc(size ? size : 1, sizeof *names);
    if (!names)
        return fail_memory(err, size * sizeof *names);
    lathe_status st = LATHE_OK;
    for (void *it = json_object_iter(map); it && !st; it = json_object_iter_next(map, it))
        st =
            check_name(doc, json_object_iter_key(it), json_object_iter_value(it), &names[n++], err);
    qsort(names, st ? 0 : n, sizeof *names, by_text);
    for (size_t i = 0; i < n && !st; i++) {
        char path[MAX_PATH];
        if (i && strcmp(names[i], names[i - 1]) == 0)
            continue;
        st = join(path, dir, names[i], err);
        if (!st)
            st = add_file(cp, path, names[i], err);
    }
    free(names);
    return st;
}

/* Every tensor of the index must lie in the file that the index names. A listed file may hold more:
 * its own header is what counts. */
static lathe_status check_index(const struct checkpoint *cp, const struct json_doc *doc,
                                json_t *map, lathe_error *err)
{
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        size_t n;
        const char *name = json_object_iter_key(it);
        const char *file = json_text(doc, json_object_iter_value(it), &n);
        const struct checkpoint_tensor *t = checkpoint_find(cp, name);
        if (!t)
            return fail(err, LATHE_E_FORMAT, "tensor %s: not in %s, where the index puts it", name,
                        file);
        if (strcmp(t->file, file) != 0)
            return fail(err, LATHE_E_FORMAT, "tensor %s: in %s, but the index puts it in %s", name,
                        t->file, file);
    }
    return LATHE_OK;
}

static lathe_status open_index(struct checkpoint *cp, const char *dir, const char *path,
                               lathe_error *err)
{
    struct json_doc doc;
    lathe_status st = json_read_file(&doc, path, &json_limits_model, err);
    if (!st) {
        json_t *map = json_object_get(doc.root, "weight_map");
        if (!json_is_object(map))
            st = fail(err, LATHE_E_FORMAT, INDEX ": no object \"weight_map\"");
        else if (!(st = add_shards(cp, dir, &doc, map, err)) && !(st = build_list(cp, err)))
            st = check_index(cp, &doc, map, err);
    }
    json_release(&doc);
    return st;
}

static bool is_extra_name(const char *name)
{
    size_t n = strlen(name), tail = strlen(".safetensors");
    return n > tail && strcmp(name + n - tail, ".safetensors") == 0 && strstr(name, "mtp");
}

static bool is_open(const struct checkpoint *cp, const char *name)
{
    for (size_t i = 0; i < cp->n_files; i++)
        if (strcmp(cp->files[i].name, name) == 0)
            return true;
    return false;
}

/* Adds one file of the draft head unless all of its tensors are known by now. */
static lathe_status add_extra(struct checkpoint *cp, const char *dir, const char *name,
                              lathe_error *err)
{
    char path[MAX_PATH];
    lathe_status st = join(path, dir, name, err);
    if (!st)
        st = add_file(cp, path, name, err);
    if (st)
        return st;
    struct mapped *f = &cp->files[cp->n_files - 1];
    size_t known = 0;
    for (size_t i = 0; i < f->shard.n; i++)
        known += checkpoint_find(cp, f->shard.tensors[i].name) != NULL;
    if (known == f->shard.n) {
        file_unmap(&f->map);
        cp->n_files--;
        return LATHE_OK;
    }
    return build_list(cp, err);
}

/* Some exports leave the draft head's file (mtp.safetensors, model_mtp.safetensors) out of the
 * index. */
static lathe_status add_extras(struct checkpoint *cp, const char *dir, lathe_error *err)
{
    enum { MAX_EXTRAS = 64 };
    char *names[MAX_EXTRAS];
    size_t n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return fail(err, LATHE_E_IO, "%s: %s", dir, strerror(errno));
    lathe_status st = LATHE_OK;
    for (struct dirent *e; !st && (e = readdir(d)) != NULL;) {
        if (!is_extra_name(e->d_name) || is_open(cp, e->d_name))
            continue;
        if (n == MAX_EXTRAS)
            st = fail(err, LATHE_E_LIMIT, "more than %d files *mtp*.safetensors", MAX_EXTRAS);
        else if (!(names[n] = arena_strndup(&cp->arena, e->d_name, strlen(e->d_name))))
            st = fail_memory(err, strlen(e->d_name));
        else
            n++;
    }
    closedir(d);
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n && !st; i++)
        st = add_extra(cp, dir, names[i], err);
    return st;
}

static lathe_status open_folder(struct checkpoint *cp, const char *dir, lathe_error *err)
{
    char path[MAX_PATH];
    lathe_status st = join(path, dir, INDEX, err);
    if (st)
        return st;
    if (file_exists(path)) {
        st = open_index(cp, dir, path, err);
    } else {
        st = join(path, dir, SINGLE, err);
        if (!st && !file_exists(path))
            st = fail(err, LATHE_E_IO, "neither " SINGLE " nor " INDEX " is there");
        if (!st)
            st = add_file(cp, path, SINGLE, err);
        if (!st)
            st = build_list(cp, err);
    }
    return st ? st : add_extras(cp, dir, err);
}

static lathe_status open_one(struct checkpoint *cp, const char *path, lathe_error *err)
{
    const char *slash = strrchr(path, '/');
    lathe_status st = add_file(cp, path, slash ? slash + 1 : path, err);
    return st ? st : build_list(cp, err);
}

lathe_status checkpoint_open(struct checkpoint **out, const char *path, lathe_error *err)
{
    *out = NULL;
    struct checkpoint *cp = calloc(1, sizeof *cp);
    if (!cp)
        return fail_memory(err, sizeof *cp);
    arena_init(&cp->arena, SIZE_MAX);
    bool folder = is_folder(path);
    lathe_status st = folder ? open_folder(cp, path, err) : open_one(cp, path, err);
    if (st) {
        if (folder)
            error_context(err, "opening %s", path);
        checkpoint_close(cp);
        return st;
    }
    *out = cp;
    return LATHE_OK;
}

void checkpoint_close(struct checkpoint *cp)
{
    if (!cp)
        return;
    for (size_t i = 0; i < cp->n_files; i++)
        file_unmap(&cp->files[i].map);
    free(cp->files);
    arena_release(&cp->arena);
    free(cp);
}

size_t checkpoint_count(const struct checkpoint *cp)
{
    return cp->n;
}

const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *cp, size_t i)
{
    return &cp->tensors[i];
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *cp, const char *name)
{
    size_t lo = 0, hi = cp->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, cp->by_name[mid]->name);
        if (c == 0)
            return cp->by_name[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
