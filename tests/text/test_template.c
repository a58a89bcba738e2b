/* The template interpreter by itself: origins of bytes, limits on hostile templates, messages with
 * their lines, failing allocations. What it renders is compared in test_oracle_jinja.c. */
#define _GNU_SOURCE
#include "test.h"

#include <time.h>

#include "fail_alloc.h"
#include "text/template_value.h"

/* ---- Rendering ----------------------------------------------------------------------------- */

static const struct template_limits small_limits = {
    .memory_bytes = 16 << 20, .output_bytes = 1 << 20, .steps = 2000000, .depth = 1000};

/* Renders a source with the members of a JSON object as variables, whose bytes are of origin 1. */
static lathe_status render(const char *source, const char *vars,
                           const struct template_limits *limits, struct rendering *out,
                           lathe_error *e)
{
    struct template *t;
    struct json_doc d = {0};
    struct run r;
    struct template_var var[16];
    struct value value[16];
    size_t n = 0;
    *out = (struct rendering){0};
    lathe_status st = template_open(&t, source, strlen(source), e);
    if (st)
        return st;
    run_open(&r, limits, e);
    st = json_read(&d, vars, strlen(vars), &json_limits_request, e);
    for (void *it = json_object_iter(d.root); it && !st; it = json_object_iter_next(d.root, it)) {
        if (!value_from_json(&r, &d, json_object_iter_value(it), 1, &value[n]))
            st = r.status;
        var[n] = (struct template_var){json_object_iter_key(it), &value[n]};
        n++;
    }
    st = st ? st : template_render(t, &r, var, n, out, e);
    run_close(&r);
    json_release(&d);
    template_close(t);
    return st;
}

static void expect(const char *source, const char *vars, const char *text)
{
    struct rendering out;
    lathe_error e;
    CHECK_OK(render(source, vars, &small_limits, &out, &e), &e);
    CHECK_STR(out.text, text);
    rendering_release(&out);
}

static void expect_error(const char *source, lathe_status st, const char *message)
{
    struct rendering out;
    lathe_error e;
    lathe_status got = render(source, "{\"x\":\"<s>\",\"l\":[1,2]}", &small_limits, &out, &e);
    if (got != st || !strstr(e.message, message))
        FAIL("%.200s\n  status %d, %s\n  expected %d, %s", source, (int)got,
             got ? e.message : out.text, (int)st, message);
    CHECK(!out.text && !out.origin);
}

/* ---- Origins ------------------------------------------------------------------------------- */

/* `marks` has '.' for a byte of the template and 'x' for one of a variable. */
static void expect_origins(const char *source, const char *text, const char *marks)
{
    struct rendering out;
    lathe_error e;
    char got[1000];
    CHECK_OK(render(source,
                    "{\"x\":\" abc \",\"y\":\"de\",\"l\":[\"p\",\"q\"],\"n\":42,\"t\":true,"
                    "\"d\":{\"k\":\"v\",\"m\":[1,2.5,null]},\"csv\":\"a,b,c\"}",
                    &small_limits, &out, &e),
             &e);
    CHECK_STR(out.text, text);
    CHECK(out.n < sizeof got);
    for (size_t i = 0; i < out.n; i++)
        got[i] = out.origin[i] == 0 ? '.' : out.origin[i] == 1 ? 'x' : '?';
    got[out.n] = 0;
    if (strcmp(got, marks) != 0)
        FAIL("%s\n  text     %s\n  got      %s\n  expected %s", source, out.text, got, marks);
    rendering_release(&out);
}

TEST(origins_follow_the_bytes)
{
    static const struct {
        const char *source, *text, *marks;
    } rows[] = {
        {"a{{ x }}b", "a abc b", ".xxxxx."},
        {"{{ x | trim }}|", "abc|", "xxx."},
        {"{{ 'A' ~ y ~ 'B' }}", "AdeB", ".xx."},
        {"{{ 'A' + y + 'B' + y }}", "AdeBde", ".xx.xx"},
        {"{{ y * 2 }}{{ '-' * 2 }}", "dede--", "xxxx.."},
        {"{{ ('A' + y)[1:] }}", "de", "xx"},
        {"{{ ('A' + y)[:2] }}", "Ad", ".x"},
        {"{{ ('A' + y)[::-1] }}", "edA", "xx."},
        {"{{ ('A' + y)[0] }}{{ ('A' + y)[-1] }}", "Ae", ".x"},
        {"{{ ('A,' + csv).split(',') | join('-') }}", "A-a-b-c", "..x.x.x"},
        {"{{ csv.split(',')[1] }}", "b", "x"},
        {"{{ csv.rsplit(',', 1) | join('|') }}", "a,b|c", "xxx.x"},
        {"{{ csv | replace(',', ';') }}", "a;b;c", "x.x.x"},
        {"{{ 'a.b' | replace('.', y) }}", "adeb", ".xx."},
        {"{{ csv.replace('b', 'b') }}", "a,b,c", "xx.xx"},
        {"{{ ('A' + y) | upper }}", "ADE", ".xx"},
        {"{{ ('A' + y).title() }}", "Ade", ".xx"},
        {"{{ ('A' + y) | title }}", "Ade", ".xx"},
        {"{{ ('ß' + y) | upper }}", "SSDE", "..xx"},
        {"{{ l | join(', ') }}", "p, q", "x..x"},
        {"{{ '-'.join(l) }}", "p-q", "x.x"},
        {"{{ l }}", "['p', 'q']", "xxxxxxxxxx"},
        {"{{ ['A', y] }}", "['A', 'de']", "......xxxx."},
        {"{{ n }}{{ n + 1 }}{{ 1 + 1 }}{{ t }}", "42432True", "xxxx.xxxx"},
        {"{{ n / 2 }}{{ -n }}{{ n | string }}{{ n * 1.5 }}", "21.0-424263.0", "xxxxxxxxxxxxx"},
        {"{{ d | tojson }}", "{\"k\": \"v\", \"m\": [1, 2.5, null]}",
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},
        {"{{ {'a': y} | tojson }}", "{\"a\": \"de\"}", "......xxxx."},
        {"{{ ['<' ~ y] | tojson }}", "[\"<de\"]", "...xx.."},
        {"{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}", "k=v;m=[1, 2.5, None];",
         "x.x.x.xxxxxxxxxxxxxx."},
        {"{% set s %}<{{ y }}>{% endset %}{{ s }}{{ s | trim('<>') }}", "<de>de", ".xx.xx"},
        {"{% macro m(v) %}[{{ v }}]{% endmacro %}{{ m(y) }}{{ m('z') }}", "[de][z]", ".xx...."},
        {"{% set ns = namespace(s='') %}{% for c in csv %}{% set ns.s = ns.s ~ c ~ '.' %}{% endfor "
         "%}"
         "{{ ns.s }}",
         "a.,.b.,.c.", "x.x.x.x.x."},
        {"{{ '%s:%d' % (y, n) }}", "de:42", "xx.xx"},
        {"{{ '{}-{}'.format(y, 1) }}", "de-1", "xx.."},
        {"{{ '%5s|' % y }}", "   de|", "...xx."},
        {"{{ y.center(6, '*') }}", "**de**", "..xx.."},
        {"{{ y.zfill(4) }}", "00de", "..xx"},
        {"{{ '<' ~ y ~ '>' | e }}", "<de&gt;", ".xx...."},
        {"{{ ('<' ~ y ~ '>') | e }}", "&lt;de&gt;", "....xx...."},
        {"{{ (y ~ '\n' ~ y) | indent(2) }}", "de\n  de", "xx...xx"},
        {"{{ y | default('z') }}{{ nope | default('z') }}", "dez", "xx."},
        {"{{ y | list | join }}{{ y | reverse }}", "deed", "xxxx"},
        {"{{ l | map('upper') | join('/') }}", "P/Q", "x.x"},
        {"{{ [y, 'a'] | sort | join(',') }}", "a,de", "..xx"},
        {"{{ csv.partition(',') | join('|') }}", "a|,|b,c", "x.x.xxx"},
        {"{{ y.removeprefix('d') }}{{ ('A' ~ y).removesuffix('e') }}", "eAd", "x.x"},
        {"{{ (y ~ '\nz').splitlines() | join(' ') }}", "de z", "xx.."},
        {"{{ y | truncate(5) }}{{ 'A' | center(3) }}", "de A ", "xx..."},
        {"{{ y | tojson | safe }}{{ y | string }}{{ y | format }}", "\"de\"dede", "xxxxxxxx"},
        {"{{ 'yes' if t else 'no' }}{{ y and 'z' }}{{ '' or y }}", "yeszde", "....xx"},
        {"{{ csv[2:3] ~ csv[0] ~ '!' }}", "ba!", "xx."},
        {"{{ loop }}{% for c in l %}{{ loop.index }}{{ c }}{% endfor %}", "1p2q", ".x.x"},
        {"{{ (csv | length) }}{{ csv.find('b') }}", "52", "xx"},
        {"{{ dict(a=y) | tojson }}", "{\"a\": \"de\"}", "......xxxx."},
        {"{% filter upper %}z{{ y }}{% endfilter %}", "ZDE", ".xx"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_origins(rows[i].source, rows[i].text, rows[i].marks);
}

/* A string that grew in place must not show in the shorter one it grew from. */
TEST(concatenation_leaves_its_operands_alone)
{
    expect("{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{% set e = b ~ '3' %}"
           "{{ a }} {{ b }} {{ c }} {{ e }} {{ b ~ '4' }} {{ b }}",
           "{}", "xy xy1 xy2 xy13 xy14 xy1");
    expect("{% set a = [1] + [2] %}{% set b = a + [3] %}{% set c = a + [4] %}{{ a }}{{ b }}{{ c }}"
           "{{ b[1:] + [5] }}{{ b }}",
           "{}", "[1, 2][1, 2, 3][1, 2, 4][2, 3, 5][1, 2, 3]");
}

/* ---- Limits -------------------------------------------------------------------------------- */

TEST(hostile_templates_reach_a_limit)
{
    static const struct {
        const char *source, *message;
    } rows[] = {
        {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
         "more than its limit of"},
        {"\n{% macro m() %}\n{{ m() }}{% endmacro %}{{ m() }}",
         "line 3: nested deeper than the limit of 1000 levels"},
        {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
         "nested deeper than"},
        {"{{ range(100001) }}", "line 1: Range too big"},
        {"{{ range(-9223372036854775807, 9223372036854775807) }}", "Range too big"},
        {"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(100) %}"
         "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
         "limit of"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}"
         "{% endfor %}",
         "limit of"},
        {"{{ 'a' * 10000000000 }}", "limit of"},
        {"{{ 'ab' * 9223372036854775807 }}", "a string of more than"},
        {"{{ [1] * 10000000000 }}", "limit of"},
        {"{{ [1, 2] * 9223372036854775807 }}", "a list of more than"},
        {"{{ 'a'.center(10000000000) }}", "limit of"},
        {"{{ 'a' | indent(10000000000) }}", "limit of"},
        {"{{ '%100001d' % 1 }}", "a width or precision of more than 100000"},
        {"{{ '%.1000f' % 1 }}", "a width or precision of more than 100"},
        {"{{ '{:999999}'.format(1) }}", "a width of more than 100000"},
        {"{{ [[1]] | tojson(indent=100000) }}", "indent of more than 1000"},
        {"{% set ns = namespace(x=1) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}"
         "{{ ns.x }}",
         "nested deeper than"},
        {"{% set ns = namespace(x=1) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}"
         "{{ ns.x | tojson }}",
         "nested deeper than"},
        {"{% set ns = namespace(x=1, y=1) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}"
         "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}{{ ns.x < ns.y }}",
         "nested deeper than"},
        {"{% set ns = namespace(x=1) %}{% for i in range(2000) %}{% set ns.x = (ns.x,) %}{% endfor "
         "%}"
         "{{ {ns.x: 1}[ns.x] }}",
         "nested deeper than"},
        {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nested deeper than"},
        {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested deeper than"},
        {"{% for i in range(100000) %}{{ 'sixteen bytes...' * 10 }}{% endfor %}",
         "the text is longer than the limit of 1048576 bytes"},
        {"{{ 2 ** 63 }}", "the result of ** is beyond 64 bits"},
        {"{{ 7 ** 9223372036854775807 }}", "beyond 64 bits"},
        {"{{ 9223372036854775807 + 1 }}", "the result of + is beyond 64 bits"},
        {"{{ 9223372036854775807 * 2 }}", "the result of * is beyond 64 bits"},
        {"{{ -9223372036854775807 - 2 }}", "the result of - is beyond 64 bits"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "the result of // is beyond 64 bits"},
        {"{{ -(-9223372036854775807 - 1) }}", "the result of - is beyond 64 bits"},
        {"{{ 99999999999999999999 + 1 }}", "arithmetic with the integer 99999999999999999999"},
        {"{{ 1e30 | int }}", "an integer beyond 64 bits"},
        {"{% set a = 'a' * 30000 %}{% set b = 'a' * 15000 ~ 'b' %}{% for i in range(1000) %}"
         "{{ a.find(b) }}{% endfor %}",
         "limit of"},
        {"{% set a = 'a' * 30000 %}{% for i in range(100000) %}{{ a == a ~ '' }}{% endfor %}",
         "limit of"},
        {"{% set l = range(100000) | list %}{% for i in range(100000) %}{{ l | sort | first }}"
         "{% endfor %}",
         "limit of"},
        {"{% for i in range(100000) %}{{ range(100000) | list | length }}{% endfor %}", "limit of"},
        {"{% for i in range(100000) %}{{ ('x' * 10000) | list | length }}{% endfor %}", "limit of"},
        {"{% set d = dict(range(50000) | map('batch', 1)) %}", "'int' object is not iterable"},
        {"{{ [1,2,3] | batch(0) | list }}", "batch: a count of 1 to"},
        {"{{ [1,2,3] | slice(99999999) | list }}", "slice: a count of 1 to"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        clock_t start = clock();
        expect_error(rows[i].source, LATHE_E_TEMPLATE, rows[i].message);
        double s = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (s > 20)
            FAIL("%s took %.1f s", rows[i].source, s);
    }
    expect("{{ -9223372036854775807 - 1 }}{{ (-9223372036854775807 - 1) % -1 }}", "{}",
           "-92233720368547758080");
    expect("{{ [] * 9223372036854775807 }}{{ '' * 9223372036854775807 }}", "{}", "[]");
}

/* The limits that lathe_render takes. */
TEST(default_limits_end_within_seconds)
{
    static const char *const sources[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a ~ b %}{% endfor %}"
        "{% endfor %}",
        "{% set l = range(100000) | list %}{% for i in range(100000) %}{% set m = l | sort %}"
        "{% endfor %}",
        "{% set s = 'ab' * 100000 %}{% for i in range(100000) %}{% set t = s | upper %}{% endfor "
        "%}",
        "{% set s = 'ab' * 100000 %}{% for i in range(100000) %}{% set t = s.split('b') %}"
        "{% endfor %}",
        "{% set s = 'ab' * 100000 %}{% for i in range(100000) %}{% set t = s[::-1] %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        struct template_limits limits;
        struct rendering out;
        lathe_error e;
        template_limits_init(&limits, 1000);
        clock_t start = clock();
        CHECK_ERR(render(sources[i], "{}", &limits, &out, &e), &e, LATHE_E_TEMPLATE, "limit of");
        double s = (double)(clock() - start) / CLOCKS_PER_SEC;
        printf("%.2f s: %s\n", s, e.message);
        CHECK(s < 30); /* 1 s on a plain build; instrumented ones are slower */
    }
}

/* ---- Loading ------------------------------------------------------------------------------- */

static char *repeated(const char *begin, const char *s, size_t n, const char *end)
{
    size_t len = strlen(s), head = strlen(begin);
    char *text = malloc(head + n * len + strlen(end) + 1);
    CHECK(text);
    memcpy(text, begin, head);
    for (size_t i = 0; i < n; i++)
        memcpy(text + head + i * len, s, len);
    strcpy(text + head + n * len, end);
    return text;
}

TEST(sources_that_are_refused)
{
    static const struct {
        const char *source, *message;
        lathe_status st;
    } rows[] = {
        {"a\n{% block x %}{% endblock %}", "line 2: {% block %} is not supported",
         LATHE_E_UNSUPPORTED},
        {"{% extends 'x' %}", "line 1: {% extends %} is not supported", LATHE_E_UNSUPPORTED},
        {"{% include 'x' %}", "{% include %}", LATHE_E_UNSUPPORTED},
        {"{% import 'x' as y %}", "{% import %}", LATHE_E_UNSUPPORTED},
        {"{% from 'x' import y %}", "{% from %}", LATHE_E_UNSUPPORTED},
        {"{% do x %}", "{% do %}", LATHE_E_UNSUPPORTED},
        {"{% autoescape true %}{% endautoescape %}", "{% autoescape %}", LATHE_E_UNSUPPORTED},
        {"\n\n{{ x | urlize }}", "line 3: there is no filter 'urlize'", LATHE_E_UNSUPPORTED},
        {"{{ x is somewhat }}", "line 1: there is no test 'somewhat'", LATHE_E_UNSUPPORTED},
        {"{{ x[1, 2] }}", "an index of several parts", LATHE_E_UNSUPPORTED},
        {"{{ '\\N{BULLET}' }}", "\\N{name}", LATHE_E_UNSUPPORTED},
        {"{{ 0xFFFFFFFFFFFFFFFFFF }}", "beyond 64 bits", LATHE_E_UNSUPPORTED},
        {"{% print 1, 2 %}", "{% print %} of several values", LATHE_E_UNSUPPORTED},
        {"{% if x %}\n{% for a in b %}\n{% endif %}", "line 3: unexpected {% endif %}",
         LATHE_E_FORMAT},
        {"\n{% if x %}", "line 2: the template ends before the {% endif %} of line 2",
         LATHE_E_FORMAT},
        {"\n{% if\nx %}\n{% elif y %}\n\n",
         "line 5: the template ends before the {% endif %} of line 2", LATHE_E_FORMAT},
        {"{% if x\n%}{% else %}\n", "before the {% endif %} of line 1", LATHE_E_FORMAT},
        {"\n{% for a in b %}\n{% else %}\n", "before the {% endfor %} of line 2", LATHE_E_FORMAT},
        {"\n{% macro m() %}\n", "before the {% endmacro %} of line 2", LATHE_E_FORMAT},
        {"{% set x\n%}\n", "before the {% endset %} of line 1", LATHE_E_FORMAT},
        {"{% nonsense %}", "line 1: unexpected {% nonsense %}", LATHE_E_FORMAT},
        {"{{ 1 +\n}}", "line 2: the tag ends, expected an expression", LATHE_E_FORMAT},
        {"{{ (1 }}", "unexpected '}'", LATHE_E_FORMAT},
        {"{{ 1", "line 1: the template ends inside a tag", LATHE_E_FORMAT},
        {"{{ 'abc", "a string without its closing '", LATHE_E_FORMAT},
        {"a\nb {# c", "line 2: a comment without its end", LATHE_E_FORMAT},
        {"{% raw %} x", "{% raw %} without {% endraw %}", LATHE_E_FORMAT},
        {"{{ a b }}", "line 1: found 'b', expected the end of the tag", LATHE_E_FORMAT},
        {"{{ a ? b }}", "unexpected character '?", LATHE_E_FORMAT},
        {"{{ '\\ud83d' }}", "half a surrogate pair", LATHE_E_FORMAT},
        {"{{ '\\x4' }}", "truncated", LATHE_E_FORMAT},
        {"{% set 5 = 1 %}", "cannot assign", LATHE_E_FORMAT},
        {"{% break %}", "{% break %} outside a loop", LATHE_E_FORMAT},
        {"{% for a in b %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
         "{% continue %} outside a loop", LATHE_E_FORMAT},
        {"{{ f(a=1, a=2) }}", "the keyword argument 'a' is repeated", LATHE_E_FORMAT},
        {"{{ \xff }}", "not UTF-8 at byte 3", LATHE_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect_error(rows[i].source, rows[i].st, rows[i].message);
}

TEST(deep_and_long_sources)
{
    static const struct {
        const char *begin, *repeated, *end, *message;
        size_t n;
    } rows[] = {
        {"{{ ", "(", "1", "nested deeper than", 100000},
        {"{{ ", "[", "1", "nested deeper than", 100000},
        {"{{ ", "-", "1 }}", "nested deeper than", 100000},
        {"{{ ", "not ", "1 }}", "nested deeper than", 100000},
        {"{{ 1", "+1", " }}", "an expression nested deeper than", 100000},
        {"{{ 1", "|abs", " }}", "an expression nested deeper than", 100000},
        {"{{ x", ".a", " }}", "an expression nested deeper than", 100000},
        {"{{ x", "[0]", " }}", "an expression nested deeper than", 100000},
        {"{{ x", "()", " }}", "an expression nested deeper than", 100000},
        {"{{ 1", " if 1 else 1", " }}", "nested deeper than", 50000},
        {"{{ 1", " or 1", " }}", "an expression nested deeper than", 100000},
        {"", "{% if 1 %}", "", "nested deeper than", 90000},
        {"", "{% for a in b %}", "", "nested deeper than", 60000},
        {"", "{% macro m() %}", "", "nested deeper than", 60000},
        {"{% set ", "(", "a", "nested deeper than", 100000},
        {"{{ x", "|default(x", "", "nested deeper than", 90000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *source = repeated(rows[i].begin, rows[i].repeated, rows[i].n, rows[i].end);
        expect_error(source, LATHE_E_LIMIT, rows[i].message);
        free(source);
    }
    /* Long without being deep. */
    char *source =
        repeated("{% if x == 0 %}", "{% elif x == 1 %}a", 20000, "{% else %}end{% endif %}");
    expect(source, "{\"x\":5}", "end");
    free(source);
    source = repeated("{{ 'a'", " ~ 'b'", 50000, "| length }}");
    struct rendering out;
    lathe_error e;
    CHECK_OK(render(source, "{}", &small_limits, &out, &e), &e);
    rendering_release(&out);
    free(source);
    source = repeated("{{ [", "1,", 100000, "] | length }}");
    expect(source, "{}", "100000");
    free(source);
    source = repeated("", "x", TEMPLATE_MAX_SOURCE + 1, "");
    expect_error(source, LATHE_E_LIMIT, "the limit is 1048576");
    free(source);
}

TEST(failures_name_their_line)
{
    expect_error("a\nb\n{{ missing.x }}", LATHE_E_TEMPLATE, "line 3: 'missing' is undefined");
    expect_error("{% set d = {} %}\n{{ d.a.b }}", LATHE_E_TEMPLATE,
                 "line 2: 'dict object' has no attribute 'a'");
    expect_error("{% macro m() %}\n{{ 1 + 'a' }}\n{% endmacro %}\n\n{{ m() }}", LATHE_E_TEMPLATE,
                 "line 2: unsupported operand type(s) for +: 'int' and 'str'");
    expect_error("\n{{ raise_exception('because ' ~ x) }}", LATHE_E_TEMPLATE,
                 "line 2: because <s>");
    expect_error("{{ x() }}", LATHE_E_TEMPLATE, "'str' object is not callable");
    expect_error("{{ l.append(1) }}", LATHE_E_TEMPLATE,
                 "access to attribute 'append' of 'list' object is unsafe");
    expect_error("{{ x.__class__() }}", LATHE_E_TEMPLATE, "is unsafe");
    expect_error("{{ x | replace('a') }}", LATHE_E_TEMPLATE,
                 "filter 'replace' is missing the argument 'new'");
    expect_error("{{ x | trim(1, 2) }}", LATHE_E_TEMPLATE,
                 "filter 'trim' takes 1 argument, 2 given");
    expect_error("{{ x | trim(characters='a') }}", LATHE_E_TEMPLATE, "no such keyword argument");
    expect_error("{{ l[:'a'] }}", LATHE_E_TEMPLATE, "slice indices must be integers");
}

TEST(names_that_a_template_reads)
{
    static const char source[] = "{% if a.b %}{{ c | default(d) }}{% set e = 1 %}{% endif %}";
    struct template *t;
    lathe_error e;
    CHECK_OK(template_open(&t, source, sizeof source - 1, &e), &e);
    CHECK(template_reads(t, "a") && template_reads(t, "c") && template_reads(t, "d"));
    CHECK(!template_reads(t, "b") && !template_reads(t, "default") && !template_reads(t, "z"));
    template_close(t);
}

TEST(strftime_now_uses_the_given_time)
{
    struct template_limits limits = small_limits;
    struct rendering out;
    lathe_error e;
    setenv("TZ", "UTC", 1);
    tzset();
    limits.now = 86400 * 365;
    CHECK_OK(render("{{ strftime_now('%Y-%m-%d %H:%M') }}{{ strftime_now('') }}", "{}", &limits,
                    &out, &e),
             &e);
    CHECK_STR(out.text, "1971-01-01 00:00");
    rendering_release(&out);
}

/* ---- Failing allocations ------------------------------------------------------------------- */

TEST(rendering_survives_failed_allocations)
{
    static const char source[] =
        "{% macro m(a, b=[1]) %}{{ a ~ b | join }}{% endmacro %}{% set ns = namespace(s='') %}"
        "{% for k, v in d.items() %}{% set ns.s = ns.s ~ k ~ v | tojson %}{% endfor %}{{ ns.s }}"
        "{{ m(1.5) }}{{ d | dictsort }}{{ range(3) | list }}{{ 'a,b'.split(',') | map('upper') | "
        "list }}"
        "{% for x in range(5000) %}{% set y = [x, x] %}{% endfor %}";
    for (size_t nth = 1;; nth++) {
        struct rendering out;
        lathe_error e = {0};
        fail_alloc_arm(nth);
        lathe_status st =
            render(source, "{\"d\":{\"k\":[1,2.5],\"b\":\"text\"}}", &small_limits, &out, &e);
        bool failed = fail_alloc_disarm();
        if (failed && st != LATHE_E_MEMORY)
            FAIL("allocation %zu: status %d, %s", nth, (int)st, e.message);
        rendering_release(&out);
        if (!failed) {
            CHECK_OK(st, &e);
            CHECK(nth > 10);
            break;
        }
    }
}
