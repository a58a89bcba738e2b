/* When and where requests run: interactive before background, by priority, as they came; and whose cached state is given up for
 * whom. */
#include <stdatomic.h>

#include "engine/engine.h"
#include "test.h"

enum { MOST = 16 };

/* In the order that slots took them. */
static struct {
    atomic_int n;
    int32_t which[MOST];
} taken;

struct asked {
    lathe_request *r;
    int32_t which;
    bool is_taken;
    atomic_bool holds; /* the scheduler, until it is false again */
};

/* The first event of a request says that a slot took it. On the scheduler's thread. */
static void note(void *ctx)
{
    struct asked *a = ctx;
    int i = atomic_load(&taken.n);
    if (a->is_taken || i == MOST)
        return;
    a->is_taken = true;
    taken.which[i] = a->which;
    atomic_store(&taken.n, i + 1);
    while (atomic_load(&a->holds))
        ;
}

static lathe_engine *open_nano(int32_t n_slots)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_slots = n_slots;
    o.n_ctx = 512;
    o.n_threads = 1;
    o.spec = "none";
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

/* A text of n words that begins with the name. */
static void submit(lathe_engine *e, struct asked *a, const char *name, int32_t n, bool background,
                   int32_t priority, uint64_t session)
{
    lathe_request_options o;
    lathe_error err;
    struct buf text;
    buf_init(&text, 1 << 16);
    buf_puts(&text, name);
    for (int32_t i = 0; i < n; i++)
        buf_puts(&text, " the");
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = text.data;
    o.n_text = text.len;
    o.max_tokens = 1;
    o.is_background = background;
    o.priority = priority;
    o.session = session;
    o.notify = note;
    o.notify_ctx = a;
    CHECK_OK(lathe_request_submit(e, &o, &a->r, &err), &err);
    buf_release(&text);
}

static lathe_usage end(struct asked *a)
{
    lathe_event ev;
    do
        lathe_request_next(a->r, -1, &ev);
    while (ev.type != LATHE_EVENT_FINISH);
    CHECK(ev.finish != LATHE_FINISH_ERROR);
    lathe_request_close(a->r);
    return ev.usage;
}

/* Tokens that were cached. */
static int32_t run(lathe_engine *e, const char *name, int32_t n, bool background, uint64_t session)
{
    struct asked a = {.which = -1};
    submit(e, &a, name, n, background, 0, session);
    return end(&a).cached_tokens;
}

TEST(interactive_before_background_by_priority_as_they_came)
{
    static const struct {
        bool background;
        int32_t priority;
    } row[] = {{true, 0},  {false, 0},  {true, 5}, {false, 3}, {true, -2},
               {false, 0}, {false, -1}, {true, 5}, {true, 0}};
    static const int32_t want[] = {6, 1, 5, 3, 4, 0, 8, 2, 7};
    enum { N = sizeof row / sizeof *row };
    struct asked first = {.which = -1, .holds = true}, a[N] = {0};
    lathe_engine *e = open_nano(1);
    lathe_activity now;
    lathe_slot_info slot;
    atomic_store(&taken.n, 0);
    submit(e, &first, "first", 400, false, 0, 0);
    while (atomic_load(&taken.n) == 0)
        ;
    for (int32_t i = 0; i < N; i++) {
        a[i].which = i;
        submit(e, &a[i], "a", 10 + i, row[i].background, row[i].priority, 0);
    }
    lathe_engine_activity(e, &now, &slot, 1);
    CHECK_INT(now.n_queued, N);
    CHECK_INT(now.n_queued_background, 5);
    atomic_store(&first.holds, false);
    (void)end(&first);
    for (int32_t i = 0; i < N; i++)
        (void)end(&a[i]);
    lathe_engine_activity(e, &now, &slot, 1);
    CHECK_INT(now.n_queued + now.n_queued_background, 0);
    for (int32_t i = 0; i < N; i++)
        CHECK_INT(taken.which[1 + i], want[i]);
    CHECK(slot.is_background); /* the last one was */
    lathe_engine_close(e);
}

/* Two conversations, of which the second is the shorter; what comes then, and which of them is still there. */
static void check_loss(bool first_is_background, bool background, uint64_t session, int32_t lost)
{
    static const char *const name[] = {"one", "two"};
    lathe_engine *e = open_nano(2);
    CHECK_INT(run(e, name[0], 100, first_is_background, 1), 0);
    CHECK_INT(run(e, name[1], 50, false, 2), 0);
    CHECK_INT(run(e, "three", 20, background, session), 0);
    int32_t kept = 1 - lost;
    CHECK(run(e, name[kept], kept == 0 ? 110 : 60, false, 0) > 0);
    CHECK_INT(run(e, name[lost], 120, false, 0), 0);
    lathe_engine_close(e);
}

TEST(whose_state_is_given_up)
{
    check_loss(false, false, 0, 1); /* the fewest tokens */
    check_loss(true, false, 0, 0);  /* what the background left */
    check_loss(true, true, 0, 0);
    check_loss(false, false, 1, 0); /* what the own conversation left */
    check_loss(false, false, 2, 1);
    check_loss(true, false, 2, 0);
    check_loss(false, true, 1, 1); /* the background has no conversation of its own */
}

/* An interactive conversation is still there after many requests of the background, whatever they are as long as one other
 * slot is. */
TEST(the_background_leaves_a_conversation_alone)
{
    static const char *const name[] = {"title", "summary", "topic", "agent"};
    lathe_engine *e = open_nano(2);
    CHECK_INT(run(e, "one", 20, false, 1), 0);
    for (int32_t i = 0; i < 4; i++)
        CHECK_INT(run(e, name[i], 100 + 20 * i, true, 1), 0);
    CHECK(run(e, "one", 60, false, 1) > 0);
    /* A session alone finds nothing. */
    CHECK_INT(run(e, "other", 60, false, 1), 0);
    lathe_engine_close(e);
}
