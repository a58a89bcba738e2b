/* Turns of the assistant as they were sampled. Text that is tokenised anew need not give the tokens that it was sampled as;
 * here known tokens take the place of a turn's, if they say the same bytes and have the same control tokens at the same
 * places: so they can change where its plain text is cut, and nothing else. */
#ifndef LATHE_TEXT_REPLAY_H
#define LATHE_TEXT_REPLAY_H

#include "base/buf.h"
#include "text/text.h"

/* What is known of turns. */
struct replay_memory {
    /* Appends to `out` the ids, as int32_t, of a turn whose text is s[0..n), from behind its header up to its end token. False:
     * it is not known. */
    bool (*recall)(void *ctx, const char *s, size_t n, struct buf *out);
    void *ctx;
};

/* In the tokens of a rendered prompt. turn: what the caller knows of messages (lathe_turn), in their order, the assistant's
 * turns of the prompt being the messages message[0..n_messages); where there are not as many it is not looked at. memory
 * may be NULL; it has the first word. */
lathe_status replay_prompt(const lathe_text *text, lathe_prompt *prompt, const lathe_turn *turn,
                           size_t n_turns, const size_t *message, size_t n_messages,
                           const struct replay_memory *memory, struct watch *watch,
                           lathe_error *err);

/* Where the turn begins that the prompt leaves open: the first token behind its header. False if it is not the
 * assistant's. */
bool replay_open_turn(const lathe_text *text, const lathe_prompt *prompt, size_t *first);

#endif
