#include "test.h"

#include "fail_alloc.h"
#include "text/values.h"

static struct toolset *open_tools(const char *json)
{
    struct toolset *ts;
    lathe_error e;
    CHECK_OK(toolset_open(&ts, json, strlen(json), &e), &e);
    return ts;
}

/* A tool t whose parameter p has this schema; `more` are further members of `parameters`. */
static struct toolset *with_schema(const char *schema, const char *more)
{
    char json[4096];
    snprintf(json, sizeof json,
             "[{\"type\":\"function\",\"function\":{\"name\":\"t\",\"parameters\":{\"type\":"
             "\"object\",\"properties\":{\"p\":%s}%s}}}]",
             schema, more);
    return open_tools(json);
}

static const char *typed(const char *schema, const char *text)
{
    static struct buf out;
    struct toolset *ts = with_schema(schema, "");
    struct parameter p = parameter_of(ts, "t", toolset_parameter(ts, "t", "p", 1));
    lathe_error e;
    if (!out.limit)
        buf_init(&out, 1 << 16);
    buf_clear(&out);
    CHECK_OK(value_print(&out, &p, text, strlen(text), &e), &e);
    /* What is a string before its end must be one at its end. */
    for (size_t n = 0; n <= strlen(text); n++)
        if (value_is_string(&p, text, n))
            CHECK(buf_str(&out)[0] == '"');
    toolset_close(ts);
    return buf_str(&out);
}

TEST(values_follow_the_schema)
{
    static const struct {
        const char *schema, *text, *want;
    } row[] = {
        /* 1: null. */
        {"{\"type\":[\"integer\",\"null\"]}", " null\n", "null"},
        {"{\"type\":[\"integer\",\"null\"]}", "None", "null"},
        {"{\"type\":\"string\",\"nullable\":true}", "null", "null"},
        {"{\"type\":\"string\",\"nullable\":true}", "nullx", "\"nullx\""},
        {"{\"type\":\"string\",\"nullable\":true}", " null x", "\" null x\""},
        {"{\"type\":\"null\"}", "null", "null"},
        {"{\"type\":\"null\"}", "5", "\"5\""},
        {"{\"type\":\"integer\"}", "null", "\"null\""},
        {"{\"type\":\"string\"}", "null", "\"null\""},
        {"{}", "null", "\"null\""},
        {"{\"const\":null}", "null", "null"},
        /* 2: JSON of a type of S, as it is spelled. */
        {"{\"type\":\"integer\"}", " 42 ", "42"},
        {"{\"type\":\"integer\"}", "5.0", "5.0"},
        {"{\"type\":\"integer\"}", "5.5", "\"5.5\""},
        {"{\"type\":\"integer\"}", "1e3", "1e3"},
        {"{\"type\":\"integer\"}", "123456789012345678901234567890",
         "123456789012345678901234567890"},
        {"{\"type\":\"integer\"}", "2026-01-15", "\"2026-01-15\""},
        {"{\"type\":\"integer\"}", "", "\"\""},
        {"{\"type\":\"integer\"}", "007", "\"007\""},
        {"{\"type\":\"integer\"}", "true", "\"true\""},
        {"{\"type\":\"integer\"}",
         "\xEF\xBB\xBF"
         "5",
         "\"\xEF\xBB\xBF"
         "5\""},
        {"{\"type\":\"number\"}", "3.50", "3.50"},
        {"{\"type\":\"number\"}", "7", "7"},
        {"{\"type\":\"number\"}", "1e400", "\"1e400\""},
        {"{\"type\":\"number\"}", "NaN", "\"NaN\""},
        {"{\"type\":\"boolean\"}", "true", "true"},
        {"{\"type\":\"boolean\"}", "False", "false"},
        {"{\"type\":\"boolean\"}", "True ", "true"},
        {"{\"type\":\"boolean\"}", "TRUE", "\"TRUE\""},
        {"{\"type\":\"boolean\"}", "1", "\"1\""},
        {"{\"type\":\"integer\"}", "True", "\"True\""},
        {"{\"type\":\"object\"}", "\n{\"a\" :\t1.50}", "{\"a\" :\t1.50}"},
        {"{\"type\":\"object\"}", "[1]", "\"[1]\""},
        {"{\"type\":\"object\"}", "{\"a\":1", "\"{\\\"a\\\":1\""},
        {"{\"type\":\"object\"}", "{'a':1}", "\"{'a':1}\""},
        {"{\"type\":\"array\"}", "[\"1\", \"{}\"]", "[\"1\", \"{}\"]"},
        {"{\"type\":\"array\"}", "\"[1]\"", "\"\\\"[1]\\\"\""},
        {"{\"type\":[\"string\",\"integer\"]}", "42", "42"},
        {"{\"type\":[\"string\",\"integer\"]}", "4x", "\"4x\""},
        {"{\"type\":[\"string\",\"integer\"]}", "\"4\"", "\"\\\"4\\\"\""},
        {"{\"type\":[\"string\",\"boolean\"]}", "True", "true"},
        {"{\"enum\":[\"1\",2,\"null\"]}", "1", "\"1\""},
        {"{\"enum\":[\"1\",2]}", "2", "2"},
        {"{\"enum\":[\"1\",2]}", "3", "3"},
        {"{\"anyOf\":[{\"enum\":[\"1\"]},{\"type\":\"integer\"}]}", "1", "\"1\""},
        {"{\"anyOf\":[{\"const\":\"1\"},{\"type\":\"integer\"}]}", "1", "\"1\""},
        /* 3: strings, untouched. */
        {"{\"type\":\"string\"}", " 03106 ", "\" 03106 \""},
        {"{\"type\":\"string\"}", "{\"a\":1}", "\"{\\\"a\\\":1}\""},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", "1", "\"1\""},
        /* 4: no type. */
        {"{\"description\":\"x\"}", " {\"a\": [1]}\n", "{\"a\": [1]}"},
        {"{\"description\":\"x\"}", "[1]", "[1]"},
        {"{\"description\":\"x\"}", "[1", "\"[1\""},
        {"{\"description\":\"x\"}", "123", "\"123\""},
        {"true", "[]", "[]"},
        /* Unions. */
        {"{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"null\"}]}", "{}", "{}"},
        {"{\"allOf\":[{\"type\":\"array\"},{\"minItems\":1}]}", "[]", "[]"},
        {"{\"const\":5}", "5", "5"},
        {"{\"enum\":[1.5]}", "2.5", "2.5"},
        {"{\"enum\":[99999999999999999999]}", "1", "1"},
        {"{\"enum\":[true,{},[]]}", "{}", "{}"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *got = typed(row[i].schema, row[i].text);
        if (strcmp(got, row[i].want) != 0)
            FAIL("%s as %s: %s, expected %s", row[i].text, row[i].schema, got, row[i].want);
    }
}

static unsigned types_in(const char *schema, const char *more)
{
    struct toolset *ts = with_schema(schema, more);
    const json_t *p = toolset_parameter(ts, "t", "p", 1);
    CHECK(p);
    unsigned set = schema_types(ts, "t", p);
    toolset_close(ts);
    return set;
}

TEST(schemas_follow_local_references)
{
    static const char defs[] = ",\"$defs\":{\"n\":{\"type\":\"integer\"},\"a/b~c d\":{\"type\":"
                               "\"array\"},\"l\":[{\"type\":\"object\"}],"
                               "\"loop\":{\"$ref\":\"#/$defs/loop\"},"
                               "\"tree\":{\"anyOf\":[{\"$ref\":\"#/$defs/tree\"},{\"$ref\":"
                               "\"#/$defs/tree\"},{\"type\":\"boolean\"}]}}";
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/n\"}", defs), TYPE_INTEGER);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/n\",\"type\":\"null\"}", defs),
              TYPE_INTEGER | TYPE_NULL);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/a~1b~0c%20d\"}", defs), TYPE_ARRAY);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/l/0\"}", defs), TYPE_OBJECT);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/l/1\"}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":\"#\"}", defs), TYPE_OBJECT);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/none/x\"}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":\"http://x/y\"}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":\"\"}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":5}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":\"#/%\"}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/loop\"}", defs), 0);
    CHECK_INT(types_in("{\"$ref\":\"#/$defs/tree\"}", defs) & ~(unsigned)TYPE_BOOLEAN, 0);
    CHECK_INT(types_in("{\"type\":[\"string\",5,\"what\",null]}", ""), TYPE_STRING);
    CHECK_INT(types_in("{\"type\":7,\"anyOf\":3,\"enum\":{}}", ""), 0);
}

TEST(schemas_find_parameters)
{
    struct toolset *ts =
        open_tools("[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"$ref\":"
                   "\"#/$defs/x\","
                   "\"$defs\":{\"x\":{\"properties\":{\"k\":{\"type\":\"integer\"}}}},\"allOf\":[{"
                   "\"properties\":"
                   "{\"m\":{}}}]}}},{\"type\":\"function\",\"function\":{\"name\":\"b\"}},"
                   "{\"type\":\"function\",\"function\":{\"name\":\"c\",\"parameters\":\"x\"}}]");
    CHECK(toolset_parameter(ts, "a", "k", 1));
    CHECK(toolset_parameter(ts, "a", "m", 1));
    CHECK(!toolset_parameter(ts, "a", "kx", 2));
    CHECK(toolset_parameter(ts, "a", "kx", 1));
    CHECK(!toolset_parameter(ts, "a", "k\0", 2));
    CHECK(!toolset_parameter(ts, "b", "k", 1));
    CHECK(!toolset_parameter(ts, "c", "k", 1));
    toolset_close(ts);
}

TEST(toolsets_resolve_names)
{
    struct toolset *ts = open_tools(
        "[5, {}, {\"type\":\"function\",\"function\":{}}, {\"function\":{\"name\":7}}, "
        "{\"name\":\"\"}, {\"name\":\"a\\u0000b\"}, {\"name\":\"get\"}, {\"name\":\"ns.get\"}, "
        "{\"name\":\"put\"}, {\"name\":\"a__put\"}]");
    CHECK(toolset_any(ts));
    CHECK_STR(toolset_find(ts, "get", 3), "get");
    CHECK_STR(toolset_find(ts, "getter", 3), "get");
    CHECK_STR(toolset_find(ts, "x:get", 5), "get");
    CHECK_STR(toolset_find(ts, "ns.get", 6), "ns.get");
    CHECK(!toolset_find(ts, "x/ns.get", 8)); /* get or ns.get */
    CHECK(!toolset_find(ts, "x.a__put", 8));
    CHECK_STR(toolset_find(ts, "__put", 5), "put");
    CHECK(!toolset_find(ts, "Get", 3));
    CHECK(!toolset_find(ts, "xget", 4));
    CHECK(!toolset_find(ts, "get.", 4));
    CHECK(!toolset_find(ts, "a", 1));
    CHECK(!toolset_find(ts, "", 0));
    toolset_close(ts);
    ts = open_tools("[]");
    CHECK(!toolset_any(ts) && !toolset_any(NULL));
    toolset_close(ts);
}

/* Strings whose type is certain are not waited for. */
TEST(values_know_strings_early)
{
    static const struct {
        const char *schema, *text;
        bool want;
    } row[] = {
        {"{\"type\":\"string\"}", "", true},
        {"{\"type\":[\"string\",\"null\"]}", "", false},
        {"{\"type\":[\"string\",\"null\"]}", " nul", false},
        {"{\"type\":[\"string\",\"null\"]}", "null \n", false},
        {"{\"type\":[\"string\",\"null\"]}", "nul ", true},
        {"{\"type\":[\"string\",\"null\"]}", "x", true},
        {"{\"type\":[\"string\",\"integer\"]}", "x", false},
        {"{}", " ", false},
        {"{}", " {", false},
        {"{}", "a", true},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct toolset *ts = with_schema(row[i].schema, "");
        struct parameter p = parameter_of(ts, "t", toolset_parameter(ts, "t", "p", 1));
        if (value_is_string(&p, row[i].text, strlen(row[i].text)) != row[i].want)
            FAIL("\"%s\" as %s", row[i].text, row[i].schema);
        toolset_close(ts);
    }
}

TEST(values_survive_failing_allocations)
{
    static const char json[] = "[{\"name\":\"t\",\"parameters\":{\"properties\":{\"p\":{\"type\":"
                               "\"object\"}}}}]";
    for (size_t nth = 1;; nth++) {
        struct toolset *ts = NULL;
        struct buf out;
        lathe_error e;
        buf_init(&out, 1000);
        fail_alloc_arm(nth);
        lathe_status st = toolset_open(&ts, json, sizeof json - 1, &e);
        if (!st) {
            struct parameter p = parameter_of(ts, "t", toolset_parameter(ts, "t", "p", 1));
            st = value_print(&out, &p, "{\"a\": [1]}", 10, &e);
        }
        if (!st)
            st = buf_check(&out, "output", &e);
        bool failed = fail_alloc_disarm();
        toolset_close(ts);
        if (!failed) {
            CHECK_OK(st, &e);
            CHECK_STR(buf_str(&out), "{\"a\": [1]}");
            buf_release(&out);
            break;
        }
        buf_release(&out);
        CHECK_ERR(st, &e, LATHE_E_MEMORY, "out of memory");
    }
}
