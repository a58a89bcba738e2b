/* The register of the regression cases: every one is tested where this table says, or skipped here by
 * name, with what it needs. Where ../shared is present the table is checked against it. */
#include "test.h"

#include <dirent.h>

struct entry {
    const char *id, *where; /* a test file, or NULL */
    const char *needs;      /* if NULL above: what the case needs that is not built */
};

static const struct entry cases[] = {
    {"B01", "tests/text/test_tokenizer.c", NULL},
    {"B02", "tests/text/test_tokenizer.c", NULL},
    {"B03", "tests/text/test_tokenizer.c", NULL},
    {"B04", "tests/text/test_render.c", NULL},
    {"B05", "tests/text/test_stream.c", NULL},
    {"B07", "tests/text/test_text_api.c", NULL},
    {"B09", "tests/text/test_render.c", NULL},
    {"B11", "tests/text/test_render.c", NULL},
    {"B12", "tests/text/test_render.c", NULL},
    {"B13", "tests/text/test_render.c", NULL},
    {"B15", "tests/text/test_render.c", NULL},
    {"B17", "tests/text/test_render.c", NULL},
    {"B19", "tests/text/test_parse.c", NULL},
    {"B20", "tests/text/test_parse.c", NULL},
    {"B22", "tests/text/test_parse.c", NULL},
    {"B24", "tests/text/test_parse.c", NULL},
    {"B26", "tests/text/test_parse.c", NULL},
    {"B27", "tests/text/test_parse.c", NULL},
    {"B28", "tests/server/chat_checks.py", NULL},
    {"B31", NULL, "constrained output"},
    {"B32", NULL, "constrained output"},
    {"B34", NULL, "constrained output"},
    {"B36", NULL, "constrained output"},
    {"B38", NULL, "constrained output"},
    {"B40", NULL, "constrained output"},
    {"B42", NULL, "constrained output"},
    {"B43", NULL, "constrained output"},
    {"B44", NULL, "constrained output"},
    {"B45", NULL, "constrained output"},
    {"B46", "tests/model/test_engine.c", NULL},
    {"B47", "tests/text/test_parse.c", NULL},
    {"B48", "tests/text/test_parse.c", NULL},
    {"B49", "tests/server/chat_checks.py", NULL},
    {"B50", "tests/server/chat_checks.py", NULL},
    {"B51", "tests/server/test_cuts.c", NULL},
    {"B53", "tests/server/chat_checks.py", NULL},
    {"B54", "tests/model/test_spec.c", NULL},
    {"B55", "tests/model/test_forward.c", NULL},
    {"B56", "tests/model/test_spec.c", NULL},
    {"B58", "tests/model/test_spec.c", NULL},
    {"B59", "tests/model/test_spec.c", NULL},
    {"B61", "tests/unit/test_sample.c", NULL},
    {"B62", NULL, "speculation and constrained output"},
    {"B65", "tests/model/test_spec.c", NULL},
    {"B66", NULL, "a prefix cache with checkpoints"},
    {"B67", "tests/model/test_reuse.c", NULL},
    {"B70", "tests/model/test_reuse.c", NULL},
    {"B72", NULL, "images"},
    {"B74", "tests/server/test_requests.c", NULL},
    {"B76", NULL, "a prefix cache with checkpoints"},
    {"B77", "tests/op/test_rmsnorm_gated.c", NULL},
    {"B78", "tests/model/test_engine.c", NULL},
    {"B79", "tests/unit/test_quant.c", NULL},
    {"B80", "tests/unit/test_quant.c", NULL},
    {"B82", "tests/op/test_qk_norm_rope.c", NULL},
    {"B83", "tests/model/test_forward.c", NULL},
    {"B84", "tests/model/test_forward.c", NULL},
    {"B86", NULL, "images"},
    {"B89", "tests/unit/test_sample.c", NULL},
    {"B90", NULL, "GGUF files"},
    {"B92", "tests/model/test_bind.c", NULL},
    {"B94", NULL, "GGUF files"},
    {"B96", "tests/model/test_strict.c", NULL},
    {"B97", NULL, "GGUF files"},
    {"B98", "tests/unit/test_safetensors.c", NULL},
    {"B100", "tests/server/answer_checks.py", NULL},
    {"B101", "tests/unit/test_json.c", NULL},
    {"B104", "tests/unit/test_build.sh", NULL},
    {"B105", NULL, "a GPU, where tests/model/test_ahead.c replays captured rounds"},
    {"B106", "tests/model/test_admission.c", NULL},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* The file that is said to test a case names it. */
TEST(tested_cases_are_named_in_their_files)
{
    for (int i = 0; i < N_CASES; i++) {
        if (!cases[i].where)
            continue;
        char *source = test_read(test_path(cases[i].where), NULL);
        bool named = strstr(source, cases[i].id) != NULL;
        free(source);
        if (!named)
            FAIL("%s does not mention case %s", cases[i].where, cases[i].id);
    }
}

TEST(every_case_is_registered)
{
    char root[512];
    int found = 0;
    snprintf(root, sizeof root, "%s", test_shared("cases"));
    DIR *top = opendir(root);
    CHECK(top != NULL);
    for (struct dirent *area; (area = readdir(top));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", root, area->d_name);
        DIR *dir = area->d_name[0] == '.' ? NULL : opendir(path);
        for (struct dirent *f; dir && (f = readdir(dir));) {
            if (f->d_name[0] != 'B')
                continue;
            size_t n = strcspn(f->d_name, "_");
            bool known = false;
            for (int i = 0; i < N_CASES; i++)
                known |= strlen(cases[i].id) == n && memcmp(cases[i].id, f->d_name, n) == 0;
            if (!known)
                FAIL("case %s/%s is in no test and not in the register", area->d_name, f->d_name);
            found++;
        }
        if (dir)
            closedir(dir);
    }
    closedir(top);
    CHECK_INT(found, N_CASES);
}

/* One skip a case, so that the closing line counts them. */
static int next_skipped;

static void skip_next(void)
{
    while (next_skipped < N_CASES && cases[next_skipped].where)
        next_skipped++;
    if (next_skipped == N_CASES)
        return;
    const struct entry *c = &cases[next_skipped++];
    SKIP("case %s needs %s", c->id, c->needs);
}

__attribute__((constructor(65535))) static void register_skips(void)
{
    static struct test_case t[N_CASES];
    static char name[N_CASES][32];
    for (int i = 0; i < N_CASES; i++) {
        if (cases[i].where)
            continue;
        snprintf(name[i], sizeof name[i], "case_%s", cases[i].id);
        t[i] = (struct test_case){name[i], skip_next, NULL};
        test_register(&t[i]);
    }
}
