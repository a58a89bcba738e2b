/* The markup of the model's output, matched a byte at a time. No tag is the beginning of another, and
 * '<' is only ever the first byte of one: after a mismatch nothing of what was matched can begin a
 * tag, and the byte that did not match is looked at afresh. */
#ifndef LATHE_TEXT_TAG_H
#define LATHE_TEXT_TAG_H

#include <stdint.h>

enum tag { /* sets of them are ored */
           TAG_THINK = 1,
           TAG_THINK_END = 2,
           TAG_CALL = 4,
           TAG_CALL_END = 8,
           TAG_FUNCTION = 16,
           TAG_FUNCTION_NAME = 32,
           TAG_FUNCTION_END = 64,
           TAG_PARAMETER = 128,
           TAG_PARAMETER_NAME = 256,
           TAG_PARAMETER_END = 512,
           /* What tag_feed answers beside a completed tag. */
           TAG_MORE = 1 << 10,
           TAG_NO = 1 << 11,
};

struct tag_match { /* all zero: nothing matched yet */
    uint32_t live; /* the tags that the bytes so far begin */
    int32_t n;     /* bytes so far */
};

/* One byte; `wanted` is the set of tags, the same until the match ends. A completed tag and TAG_NO
 * reset the match; with TAG_NO the byte is not consumed. */
enum tag tag_feed(struct tag_match *m, uint32_t wanted, char c);

#endif
