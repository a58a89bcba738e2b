#include "passage.h"

#include "test.h"

double passage_nats(lathe_engine *e)
{
    lathe_tokens tokens;
    lathe_error err;
    size_t length;
    char *text = test_read(test_path("tests/golden/passage.txt"), &length);
    CHECK_OK(lathe_tokenize(lathe_engine_text(e), text, length, false, &tokens, &err), &err);
    size_t n = test_quick() && tokens.n > 200 ? 200 : tokens.n;
    double *logprob = calloc(n, sizeof *logprob), sum = 0;
    CHECK(logprob != NULL);
    CHECK_OK(lathe_score(e, tokens.id, n, 0, logprob, NULL, NULL, &err), &err);
    for (size_t i = 1; i < n; i++)
        sum -= logprob[i];
    free(logprob);
    free(text);
    lathe_tokens_release(&tokens);
    return sum / (double)(n - 1);
}
