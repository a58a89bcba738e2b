/* The routes that generate, and the least of a body of each, without its braces. */
#ifndef LATHE_TESTS_ROUTES_H
#define LATHE_TESTS_ROUTES_H

#define USER "{\"role\":\"user\",\"content\":\"a\"}"

enum route { CHAT = 1, COMPLETIONS = 2, RESPONSES = 4, MESSAGES = 8, OPENAI = 7, ALL = 15 };

static const struct {
    enum route route;
    const char *path, *body;
} routes[] = {{CHAT, "/v1/chat/completions", "\"messages\":[" USER "]"},
              {COMPLETIONS, "/v1/completions", "\"prompt\":\"a\""},
              {RESPONSES, "/v1/responses", "\"input\":\"a\""},
              {MESSAGES, "/v1/messages", "\"messages\":[" USER "]"}};
enum { N_ROUTES = sizeof routes / sizeof *routes };

#endif
