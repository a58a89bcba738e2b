/* safetensors files: case B98, every truncation and single-byte change of its good file, shards and
 * their index, the draft head's extra files, and allocations that fail. */
#include <jansson.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "container/safetensors.h"
#include "container/shard.h"
#include "fail_alloc.h"
#include "test.h"
#include "write_safetensors.h"

static unsigned char *from_hex(const char *hex, size_t *n)
{
    *n = strlen(hex) / 2;
    unsigned char *out = malloc(*n + 1);
    CHECK(out);
    for (size_t i = 0; i < *n; i++) {
        unsigned v;
        CHECK(sscanf(hex + 2 * i, "%2x", &v) == 1);
        out[i] = (unsigned char)v;
    }
    return out;
}

static json_t *case_B98(void)
{
    json_error_t e;
    json_t *j =
        json_load_file(test_path("tests/cases/formats/B98_safetensors_malformed.json"), 0, &e);
    if (!j)
        FAIL("%s", e.text);
    return j;
}

static unsigned char *good_file(size_t *n)
{
    json_t *j = case_B98();
    unsigned char *good = from_hex(json_string_value(json_object_get(j, "good_hex")), n);
    json_decref(j);
    return good;
}

/* From memory that ends where the file ends, so that a checker sees any read beyond it. */
static lathe_status parse(const unsigned char *data, size_t n, size_t *n_tensors, lathe_error *err)
{
    struct arena arena;
    struct shard s;
    unsigned char *exact = malloc(n ? n : 1);
    CHECK(exact);
    memcpy(exact, data, n);
    arena_init(&arena, 1 << 20);
    lathe_status st = shard_parse(&s, &arena, "x.safetensors", exact, n, err);
    if (!st)
        for (size_t i = 0; i < s.n; i++)
            CHECK((const unsigned char *)s.tensors[i].data >= exact &&
                  (const unsigned char *)s.tensors[i].data + s.tensors[i].bytes <= exact + n);
    if (n_tensors)
        *n_tensors = s.n;
    arena_release(&arena);
    free(exact);
    return st;
}

TEST(case_B98_good_file)
{
    size_t n;
    unsigned char *good = good_file(&n);
    struct checkpoint *cp;
    lathe_error e;
    const char *path = test_tmp("good.safetensors");
    test_write(path, good, n);
    CHECK_OK(checkpoint_open(&cp, path, &e), &e);
    CHECK_INT(checkpoint_count(cp), 1);
    const struct checkpoint_tensor *t = checkpoint_find(cp, "a");
    CHECK(t && t == checkpoint_at(cp, 0) && !checkpoint_find(cp, "b") && !checkpoint_find(cp, ""));
    CHECK_STR(t->name, "a");
    CHECK_STR(t->file, "good.safetensors");
    CHECK(t->dtype == DT_F32 && t->n_dims == 2 && t->dim[0] == 2 && t->dim[1] == 2);
    CHECK_INT(t->bytes, 16);
    CHECK(memcmp(t->data, good + n - 16, 16) == 0);
    checkpoint_close(cp);
    free(good);
}

/* What each message must say beside the tensor's name. */
static const struct {
    const char *mutation, *says;
} messages[] = {
    {"header length 2^63", "9223372036854775808"},
    {"header length past end", "4096 bytes in a file of 81"},
    {"header length 0", "header"},
    {"7-byte file", "7 bytes"},
    {"header not JSON", "header"},
    {"header not an object", "not a JSON object"},
    {"offsets reversed", "tensor a: offsets 16 and 0"},
    {"offset past end", "tensor a: ends at byte 64 of the data, but the file holds 16"},
    {"span smaller than shape", "tensor a: 16 bytes, expected 4000000"},
    {"shape product wraps", "tensor a: its shape is 2^63 bytes"},
    {"negative dimension", "tensor a: a dimension is -2"},
    {"one offset only", "tensor a: data_offsets"},
    {"unknown dtype", "tensor a: unknown dtype \"Q9\""},
    {"I16 read as 4 bytes", "tensor a: 16 bytes, expected 8"},
    {"overlap", "tensor b: begins at byte 0 of the data, inside another"},
    {"gap", "tensor a: begins at byte 4 of the data, after a gap"},
    {"float offset", "tensor a: an offset is not an integer"},
};

TEST(case_B98_mutations)
{
    json_t *j = case_B98(), *m;
    size_t i, seen = 0;
    json_array_foreach(json_object_get(j, "mutations"), i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        const char *hex = json_string_value(json_object_get(m, "hex"));
        if (!hex)
            continue; /* generated below */
        size_t n, k = 0;
        unsigned char *data = from_hex(hex, &n);
        lathe_error e = {0};
        if (!parse(data, n, NULL, &e))
            FAIL("%s: accepted", name);
        while (k < sizeof messages / sizeof *messages && strcmp(messages[k].mutation, name) != 0)
            k++;
        if (k == sizeof messages / sizeof *messages || !strstr(e.message, messages[k].says))
            FAIL("%s: \"%s\"", name, e.message);
        seen++;
        free(data);
    }
    CHECK_INT(seen, sizeof messages / sizeof *messages);
    json_decref(j);
}

static size_t with_header(const char *header, size_t n_data, unsigned char **out)
{
    size_t n = strlen(header);
    *out = calloc(8 + n + n_data + 1, 1);
    CHECK(*out);
    for (int i = 0; i < 8; i++)
        (*out)[i] = (unsigned char)(n >> 8 * i);
    memcpy(*out + 8, header, n);
    return 8 + n + n_data;
}

static void check_refused(const char *header, size_t n_data, const char *says)
{
    unsigned char *data;
    lathe_error e = {0};
    size_t n = with_header(header, n_data, &data);
    if (!parse(data, n, NULL, &e) || !strstr(e.message, says))
        FAIL("%s: \"%s\", expected \"%s\"", header, e.message, says);
    free(data);
}

static void check_accepted(const char *header, size_t n_data, size_t n_tensors)
{
    unsigned char *data;
    lathe_error e = {0};
    size_t got = 0, n = with_header(header, n_data, &data);
    CHECK_OK(parse(data, n, &got, &e), &e);
    CHECK_INT(got, n_tensors);
    free(data);
}

TEST(case_B98_deep_metadata)
{
    static char header[8000];
    size_t n = (size_t)sprintf(header, "{\"__metadata__\":{\"k\":");
    memset(header + n, '[', 3000);
    memset(header + n + 3000, ']', 3000);
    sprintf(header + n + 6000,
            "},\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}");
    check_refused(header, 16, "header");
}

TEST(headers)
{
    check_accepted("{}", 0, 0);
    check_accepted("{\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}}    ", 2, 1);
    check_accepted("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
                   "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                   "\"c\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[3,3]}}",
                   3, 3);
    check_accepted("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
                   "\"__metadata__\":{\"x\":\"y\"},"
                   "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                   2, 2);
    check_refused("{}", 1, "1 bytes behind the last tensor");
    check_refused("", 0, "header");
    check_refused("{\"__metadata__\":[]}", 0, "__metadata__");
    check_refused("{\"__metadata__\":{\"k\":1}}", 0, "__metadata__: member k");
    check_refused("{\"a\":3}", 0, "tensor a: not an object");
    check_refused("{\"a\":{}}", 0, "tensor a: no dtype");
    check_refused("{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor a: no shape");
    check_refused("{\"a\":{\"dtype\":\"F32\\u0000\",\"shape\":[]}}", 0, "unknown dtype");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
                  1, "9 dimensions");
    check_refused(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551617],\"data_offsets\":[0,1]}}", 1,
        "tensor a: a dimension is not an integer below 2^63");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1,
                  "tensor a: a dimension");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1,
                  "data_offsets");
    check_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":"
                  "[9223372036854775807,9223372036854775807]}}",
                  1, "tensor a: ends at byte 9223372036854775807");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807,2],"
                  "\"data_offsets\":[0,0]}} ",
                  1, "1 bytes behind");
}

TEST(every_truncation_is_refused)
{
    size_t n;
    unsigned char *good = good_file(&n);
    for (size_t k = 0; k < n; k++) {
        lathe_error e = {0};
        CHECK(parse(good, k, NULL, &e));
        CHECK(e.message[0]);
    }
    free(good);
}

/* Most are refused; none may crash, and what is accepted lies inside the file (checked in parse). */
TEST(every_single_byte_change)
{
    size_t n;
    unsigned char *good = good_file(&n);
    for (size_t i = 0; i < n; i++)
        for (int v = 0; v < 256; v++) {
            unsigned char old = good[i];
            lathe_error e = {0};
            good[i] = (unsigned char)v;
            lathe_status st = parse(good, n, NULL, &e);
            CHECK(!st == !e.message[0]);
            CHECK(st || i >= 8 || v == old); /* every other header length breaks the JSON */
            good[i] = old;
        }
    free(good);
}

/* ---- Folders ------------------------------------------------------------------------------ */

static const char *folder(const char *name)
{
    const char *dir = test_tmp(name);
    CHECK(mkdir(dir, 0755) == 0);
    return dir;
}

static const char *in(const char *dir, const char *name)
{
    static char path[4][1400];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

/* A file with one U8 [1] tensor for each name, valued first, first + 1 ... */
static void write_file(const char *path, const char *const *names, int n, unsigned char first)
{
    struct out_file f = {0};
    for (int i = 0; i < n; i++) {
        unsigned char v = (unsigned char)(first + i);
        out_add(&f, names[i], DT_U8, 1, (int64_t[]){1}, &v);
    }
    out_write(&f, 0, f.n, path);
    out_release(&f);
}
#define NAMES(...)                                                                                 \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

static void write_index(const char *dir, const char *map)
{
    char text[2000];
    int n = snprintf(text, sizeof text, "{\"metadata\": {}, \"weight_map\": %s}", map);
    test_write(in(dir, "model.safetensors.index.json"), text, (size_t)n);
}

static void check_value(const struct checkpoint *cp, const char *name, const char *file, int value)
{
    const struct checkpoint_tensor *t = checkpoint_find(cp, name);
    if (!t)
        FAIL("no tensor %s", name);
    CHECK_STR(t->file, file);
    CHECK_INT(*(const unsigned char *)t->data, value);
}

TEST(shards)
{
    const char *dir = folder("shards");
    struct checkpoint *cp;
    lathe_error e;
    write_file(in(dir, "m-1.safetensors"), NAMES("b", "a"), 1);
    write_file(in(dir, "m-2.safetensors"), NAMES("c", "unlisted"), 11);
    write_index(dir, "{\"c\": \"m-2.safetensors\", \"a\": \"m-1.safetensors\", "
                     "\"b\": \"m-1.safetensors\"}");
    CHECK_OK(checkpoint_open(&cp, dir, &e), &e);
    CHECK_INT(checkpoint_count(cp), 4);
    CHECK_STR(checkpoint_at(cp, 0)->name, "b"); /* order of files and offsets */
    CHECK_STR(checkpoint_at(cp, 1)->name, "a");
    CHECK_STR(checkpoint_at(cp, 2)->name, "c");
    check_value(cp, "a", "m-1.safetensors", 2);
    check_value(cp, "b", "m-1.safetensors", 1);
    check_value(cp, "c", "m-2.safetensors", 11);
    check_value(cp, "unlisted", "m-2.safetensors", 12);
    checkpoint_close(cp);
}

static void check_folder(const char *dir, lathe_status status, const char *says)
{
    struct checkpoint *cp;
    lathe_error e;
    CHECK_ERR(checkpoint_open(&cp, dir, &e), &e, status, says);
    CHECK(cp == NULL);
    CHECK(strstr(e.message, dir));
}

TEST(case_B98_sharded)
{
    const char *dir = folder("no-shard");
    write_index(dir, "{\"a\": \"m-1.safetensors\"}");
    check_folder(dir, LATHE_E_IO, "m-1.safetensors");

    dir = folder("leaves");
    write_index(dir, "{\"a\": \"../../etc/x.safetensors\"}");
    check_folder(dir, LATHE_E_FORMAT,
                 "tensor a: the path ../../etc/x.safetensors leaves the folder");
    static const char *const bad[] = {"/etc/x", "sub/x.safetensors", "..", "a\\\\b", "..x",
                                      "",       "a\\u0000b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char map[100];
        snprintf(map, sizeof map, "{\"a\": \"%s\"}", bad[i]);
        write_index(dir, map);
        check_folder(dir, LATHE_E_FORMAT, "tensor a:");
    }

    dir = folder("other");
    write_index(dir, "{\"a\": \"m-1.safetensors\"}");
    write_file(in(dir, "m-1.safetensors"), NAMES("b"), 1);
    check_folder(dir, LATHE_E_FORMAT, "tensor a: not in m-1.safetensors");
}

TEST(index_and_files_that_disagree)
{
    const char *dir = folder("disagree");
    write_file(in(dir, "m-1.safetensors"), NAMES("a"), 1);
    write_file(in(dir, "m-2.safetensors"), NAMES("b"), 2);
    write_index(dir, "{\"a\": \"m-2.safetensors\", \"b\": \"m-1.safetensors\"}");
    check_folder(dir, LATHE_E_FORMAT, "tensor a: in m-1.safetensors, but the index puts it in m-2");
    write_file(in(dir, "m-2.safetensors"), NAMES("a", "b"), 2);
    write_index(dir, "{\"a\": \"m-1.safetensors\", \"b\": \"m-2.safetensors\"}");
    check_folder(dir, LATHE_E_FORMAT, "tensor a: both in m-");
    write_index(dir, "{\"a\": 1}");
    check_folder(dir, LATHE_E_FORMAT, "tensor a: no file name");
    write_index(dir, "[]");
    check_folder(dir, LATHE_E_FORMAT, "weight_map");
    test_write(in(dir, "model.safetensors.index.json"), "{", 1);
    check_folder(dir, LATHE_E_FORMAT, "index.json");
    test_write(in(dir, "m-2.safetensors"), "1234567", 7);
    write_index(dir, "{\"a\": \"m-1.safetensors\", \"b\": \"m-2.safetensors\"}");
    check_folder(dir, LATHE_E_FORMAT, "m-2.safetensors: 7 bytes");
}

TEST(folders_without_a_model)
{
    struct checkpoint *cp;
    lathe_error e;
    check_folder(folder("empty"), LATHE_E_IO, "neither model.safetensors nor");
    check_folder(test_tmp("absent"), LATHE_E_IO, "absent");
    test_write(test_tmp("zero.safetensors"), "", 0);
    CHECK_ERR(checkpoint_open(&cp, test_tmp("zero.safetensors"), &e), &e, LATHE_E_FORMAT,
              "0 bytes");
    checkpoint_close(NULL);
}

TEST(draft_head_in_a_file_of_its_own)
{
    const char *dir = folder("extra");
    struct checkpoint *cp;
    lathe_error e;
    write_file(in(dir, "m-1.safetensors"), NAMES("a", "mtp.x"), 1);
    write_index(dir, "{\"a\": \"m-1.safetensors\", \"mtp.x\": \"m-1.safetensors\"}");
    write_file(in(dir, "model_mtp.safetensors"), NAMES("mtp.y", "mtp.z"), 21);
    write_file(in(dir, "mtp.safetensors"), NAMES("mtp.x"), 31); /* known: left alone */
    write_file(in(dir, "other.safetensors"), NAMES("w"), 41);   /* not a part */
    CHECK_OK(checkpoint_open(&cp, dir, &e), &e);
    CHECK_INT(checkpoint_count(cp), 4);
    check_value(cp, "mtp.x", "m-1.safetensors", 2);
    check_value(cp, "mtp.z", "model_mtp.safetensors", 22);
    checkpoint_close(cp);
    write_file(in(dir, "mtp.safetensors"), NAMES("mtp.x", "mtp.q"), 31);
    check_folder(dir, LATHE_E_FORMAT,
                 "tensor mtp.x: both in m-1.safetensors and in mtp.safetensors");

    dir = folder("extra-single");
    write_file(in(dir, "model.safetensors"), NAMES("a"), 1);
    write_file(in(dir, "mtp.safetensors"), NAMES("mtp.x"), 5);
    CHECK_OK(checkpoint_open(&cp, dir, &e), &e);
    check_value(cp, "mtp.x", "mtp.safetensors", 5);
    checkpoint_close(cp);
}

TEST(nano_and_its_drafter)
{
    struct checkpoint *cp;
    lathe_error e;
    CHECK_OK(checkpoint_open(&cp, test_path("models/nano"), &e), &e);
    CHECK_INT(checkpoint_count(cp), 224 + 33);
    checkpoint_close(cp);
    CHECK_OK(checkpoint_open(&cp, test_path("models/nano-dflash2"), &e), &e);
    CHECK_INT(checkpoint_count(cp), 117);
    checkpoint_close(cp);
}

TEST(allocations_that_fail)
{
    const char *dir = folder("alloc");
    write_file(in(dir, "m-1.safetensors"), NAMES("a", "b", "c"), 1);
    write_file(in(dir, "m-2.safetensors"), NAMES("d"), 2);
    write_index(dir, "{\"a\": \"m-1.safetensors\", \"b\": \"m-1.safetensors\", "
                     "\"d\": \"m-2.safetensors\"}");
    write_file(in(dir, "mtp.safetensors"), NAMES("mtp.x"), 3);
    for (size_t nth = 1;; nth++) {
        struct checkpoint *cp;
        lathe_error e;
        fail_alloc_arm(nth);
        lathe_status st = checkpoint_open(&cp, dir, &e);
        bool failed = fail_alloc_disarm();
        if (!st)
            checkpoint_close(cp);
        if (!failed) {
            CHECK_INT(st, LATHE_OK);
            CHECK(nth > 20);
            break;
        }
        if (st != LATHE_E_MEMORY)
            FAIL("allocation %zu: status %d, %s", nth, (int)st, st ? e.message : "");
        CHECK(cp == NULL);
    }
}
