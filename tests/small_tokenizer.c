#include "small_tokenizer.h"

#include "base/utf8.h"

static const char sound_pre_tokenizer[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+|"
    "\\\\S+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"use_regex\":false}]}";

static void append_bytes(struct buf *b)
{
    int32_t other = 0x100;
    for (int32_t i = 0; i < 256; i++) {
        bool shown = (i > 0x20 && i < 0x7F) || (i > 0xA0 && i != 0xAD);
        char u[5] = {0};
        utf8_encode((uint32_t)(shown ? i : other++), u);
        buf_printf(b, "%s\"%s%s\":%d", i ? "," : "", i == '"' || i == '\\' ? "\\" : "", u, i);
    }
}

void small_tokenizer_write(struct buf *b, const struct small_tokenizer *p)
{
    const char *vocab = p->vocab ? p->vocab : "%,\"ab\":256,\"abc\":257";
    buf_printf(b, "{%s\"normalizer\":%s,\"pre_tokenizer\":%s,", p->head ? p->head : "",
               p->normalizer ? p->normalizer : "{\"type\":\"NFC\"}",
               p->pre_tokenizer ? p->pre_tokenizer : sound_pre_tokenizer);
    buf_printf(b, "\"added_tokens\":%s,\"model\":{%s\"vocab\":{",
               p->added ? p->added : "[{\"id\":260,\"content\":\"<x>\",\"special\":true}]",
               p->model ? p->model : "\"type\":\"BPE\",");
    for (; *vocab; vocab++)
        if (*vocab == '%')
            append_bytes(b);
        else
            buf_putc(b, *vocab);
    buf_printf(b, "},\"merges\":%s}}", p->merges ? p->merges : "[\"a b\",[\"ab\",\"c\"]]");
}
