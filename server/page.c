#include "page.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A file's bytes, put into the read-only data by the assembler, which runs in the root of the repository. */
#define FILE_BYTES(name, path)                                                                     \
    __asm__(".pushsection .rodata\n"                                                               \
            "page_" #name "_begin:\n"                                                              \
            ".incbin \"server/page/" path "\"\n"                                                   \
            "page_" #name "_end:\n"                                                                \
            ".popsection\n");                                                                      \
    extern const char page_##name##_begin[], page_##name##_end[]

#define FILES(X)                                                                                   \
    X(index, "index.html", "text/html; charset=utf-8")                                             \
    X(style, "style.css", "text/css; charset=utf-8")                                               \
    X(icon, "icon.svg", "image/svg+xml")                                                           \
    X(main, "main.js", "text/javascript; charset=utf-8")                                           \
    X(api, "api.js", "text/javascript; charset=utf-8")                                             \
    X(chat, "chat.js", "text/javascript; charset=utf-8")                                           \
    X(view, "view.js", "text/javascript; charset=utf-8")                                           \
    X(panel, "panel.js", "text/javascript; charset=utf-8")                                         \
    X(settings, "settings.js", "text/javascript; charset=utf-8")

#define DECLARE(name, path, type) FILE_BYTES(name, path);
FILES(DECLARE)

static const struct file {
    const char *name, *type, *begin, *end;
} files[] = {
#define ROW(name, path, type) {path, type, page_##name##_begin, page_##name##_end},
    FILES(ROW)};

/* FNV-1a, 64 bits: tells one build's file from another's. */
static uint64_t hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

static void send_file(struct exchange *x, const struct file *f)
{
    size_t n = (size_t)(f->end - f->begin);
    x->type = f->type;
    x->is_page = true;
    (void)snprintf(x->etag, sizeof x->etag, "\"%016llx\"", (unsigned long long)hash(f->begin, n));
    buf_append(&x->reply, f->begin, n);
}

void page(struct exchange *x)
{
    send_file(x, &files[0]);
}

void page_file(struct exchange *x)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(x->rest, files[i].name) == 0) {
            send_file(x, &files[i]);
            return;
        }
    (void)refuse(&x->failure, NOT_FOUND, "the page has no file %.100s", x->rest);
}
