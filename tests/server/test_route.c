#include "server/route.h"

#include "test.h"

static struct exchange find(const char *method, const char *path, int *allow)
{
    static char copy[256];
    (void)snprintf(copy, sizeof copy, "%s", path);
    struct exchange x = {.method = method, .path = copy};
    (void)route_find(&x, allow);
    return x;
}

TEST(paths)
{
    static const struct {
        const char *method, *path;
        enum condition want;
        const char *rest;
        enum shape shape;
    } rows[] = {
        {"GET", "/v1/models", FINE, "", SHAPE_OPENAI},
        {"HEAD", "/models/", FINE, "", SHAPE_OPENAI},
        {"GET", "/v1/models/a/b", FINE, "a/b", SHAPE_OPENAI},
        {"GET", "/models/a/", FINE, "a", SHAPE_OPENAI},
        {"GET", "/health/", FINE, "", SHAPE_OPENAI},
        {"GET", "/", FINE, "", SHAPE_OPENAI},
        {"HEAD", "/page/main.js", FINE, "main.js", SHAPE_OPENAI},
        {"GET", "/page", NOT_FOUND, "", SHAPE_OPENAI},
        {"GET", "/v1/health", NOT_FOUND, "", SHAPE_OPENAI},
        {"GET", "/v1/v1/models", NOT_FOUND, "", SHAPE_OPENAI},
        {"GET", "/modelsx", NOT_FOUND, "", SHAPE_OPENAI},
        {"POST", "/v1/models", BAD_METHOD, "", SHAPE_OPENAI},
        {"PATCH", "/health", BAD_METHOD, "", SHAPE_OPENAI},
        {"POST", "/v1/messages/batches", NOT_FOUND, "", SHAPE_ANTHROPIC},
        {"POST", "/messages/x", NOT_FOUND, "", SHAPE_ANTHROPIC},
        {"POST", "/v1/embeddings", NOT_FOUND, "", SHAPE_OPENAI},
        {"GET", "", NOT_FOUND, "", SHAPE_OPENAI},
        {"GET", "/v1/", NOT_FOUND, "", SHAPE_OPENAI},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int allow;
        struct exchange x = find(rows[i].method, rows[i].path, &allow);
        if (x.failure.condition != rows[i].want || route_shape(rows[i].path) != rows[i].shape ||
            (x.route != NULL) != (rows[i].want == FINE) || strcmp(x.rest, rows[i].rest) != 0)
            FAIL("%s %s: %s, rest %s", rows[i].method, rows[i].path, x.failure.message, x.rest);
        CHECK(rows[i].want != BAD_METHOD || allow == GET);
    }
    int allow;
    CHECK(strstr(find("POST", "/v1/v1/models", &allow).failure.message, "drop one /v1"));
    CHECK(strstr(find("POST", "/v1/embeddings", &allow).failure.message, "not supported"));
}

TEST(decoding)
{
    char out[64];
    CHECK(path_decode("/a%2Fb%20c%", 11, out));
    CHECK_STR(out, "/a/b c%");
    CHECK(path_decode("/%zz+%4", 7, out));
    CHECK_STR(out, "/%zz+%4");
    CHECK(!path_decode("/a%00", 5, out));
}

TEST(methods)
{
    char out[40];
    route_methods(GET | DELETE, out);
    CHECK_STR(out, "GET, HEAD, DELETE, OPTIONS");
    route_methods(POST, out);
    CHECK_STR(out, "POST, OPTIONS");
}
