/* Chat templates: the language, the conversation's variables, marks, bounds, faults. What Python's jinja2 says about
 * the same templates and many more is compared in check_chat.py. */
static void *chat_scrub(void *p, unsigned long n);
#define JINJA_SCRUB(p, n) chat_scrub(p, n)

#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"
#include "toy_vocab.h"

#include <locale.h>
#include <fenv.h>
#include <time.h>
#if !defined(_WIN32)
#include <pthread.h>
#endif

/* What a region leaves behind must not be read: it is overwritten. */
static void *chat_scrub(void *p, unsigned long n) { return memset(p, 0xDB, n); }

/* ---- An allocator that counts, and fails when told ---- */

typedef struct counted {
    size_t   now, peak;
    uint64_t calls, fail_at;   /* 1: the first; 0: never */
} counted;

static void *counted_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    counted *c = (counted *)user;
    if (new_size && ++c->calls == c->fail_at) return NULL;
    void *p = libc_alloc(NULL, pointer, old_size, new_size);
    if (!p && new_size) return NULL;
    c->now += new_size - old_size;
    if (c->now > c->peak) c->peak = c->now;
    return p;
}

/* ---- Rendering ---- */

typedef struct rendered {
    nova_result result;
    nova_error  error;
    char       *text;   /* terminated; to be freed */
    size_t      n;
} rendered;

static rendered render_chat(const char *text, const nova_chat *chat, counted *c) {
    static nova_chat none;   /* all zeros */
    counted     own;
    chat_input  in;
    text_buffer out;
    rendered    r;
    memset(&own, 0, sizeof own);
    memset(&in, 0, sizeof in);
    memset(&r, 0, sizeof r);
    host h           = host_init(counted_alloc, c ? c : &own, NULL, NULL);
    in.chat          = chat ? chat : &none;
    in.template_text = str_c(text);
    in.bos           = str_c("<s>");
    text_init(&out, &h, CHAT_MAX_BYTES);
    r.result = chat_render(&in, &h, &out, &r.error);
    r.n      = out.n;
    r.text   = (char *)malloc(out.n + 1);
    if (out.n) memcpy(r.text, out.p, out.n);
    r.text[out.n] = 0;
    text_free(&out);
    return r;
}

static void check_text(const char *text, const char *variables, const char *expected) {
    nova_chat chat;
    memset(&chat, 0, sizeof chat);
    chat.variables_json = variables;
    chat.now            = 1764547200;
    rendered r = render_chat(text, &chat, NULL);
    CHECK(r.result == NOVA_OK && strcmp(r.text, expected) == 0, "%s\n  gives    %s\n  expected %s", text,
          r.result == NOVA_OK ? r.text : r.error.message, expected);
    free(r.text);
}

static void check_error(const char *text, const char *message) {
    rendered r = render_chat(text, NULL, NULL);
    CHECK(r.result == NOVA_ERROR_TEMPLATE && r.error.code == r.result && strstr(r.error.message, message) && r.n == 0,
          "%s\n  gives    %s\n  expected %s", text, r.result == NOVA_OK ? r.text : r.error.message, message);
    CHECK(!strchr(r.error.message, '\n'), "one line: %s", r.error.message);
    free(r.text);
}

/* ---- The language ---- */

static void test_layout(void) {
    check_text("", NULL, "");
    check_text("plain text { } }} %} #}\n", NULL, "plain text { } }} %} #}");
    check_text("a\r\nb\rc\n\n", NULL, "a\nb\nc\n");
    check_text("{% if true %}\n  x\n{% endif %}\ny", NULL, "  x\ny");
    check_text("  {% if true %}x{% endif %}  ", NULL, "x  ");
    check_text("  {%+ if true %}x{% endif +%}\n", NULL, "  x");
    check_text("a {%- if true -%}  b  {%- endif -%}  c", NULL, "abc");
    check_text("a  {{- 1 -}}  b {{ 2 }}\n c", NULL, "a1b 2\n c");
    check_text("a{# x\n %} }} #}\nb {#- c -#} d", NULL, "abd");
    check_text("{% raw %}{{ x }}{% if %}{% endraw %}!", NULL, "{{ x }}{% if %}!");
    check_text("x\n  {% raw -%}  y  {%- endraw %}\n z", NULL, "x\ny z");
    check_text("{{ {'a': {'b': 1}} }}{{ '}}' }}", NULL, "{'a': {'b': 1}}}}");
}

static void test_expressions(void) {
    check_text("{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % -3 }} {{ 2 ** 3 }} {{ 1 / 2 }} {{ 1 ~ 'a' ~ none }}", NULL,
               "6 -2 8 0.5 1aNone");
    check_text("{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ not 1 == 2 }} {{ 'a' not in 'bc' }} {{ 1 in [1.0] }}", NULL,
               "True False True True True");
    check_text("{{ 0 or '' or 'x' }} {{ 1 and [] }} {{ 'a' if x else 'b' }}{{ 'a' if x }}", NULL, "x [] b");
    check_text("{{ 'a' 'b' \"\\x41\\u00e9\\n\\q\" }}", NULL, "abA\xC3\xA9\n\\q");
    check_text("{{ [1, 'a', none, true, 1.5, (1,), {'k': \"it's\"}] }}", NULL,
               "[1, 'a', None, True, 1.5, (1,), {'k': \"it's\"}]");
    check_text(
        "{{ 0x1F }} {{ 1_000 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 5e-324 }} {{ 1e22 }} {{ -0.0 }} {{ 1e-5 }}",
        NULL, "31 1000 1000.0 0.30000000000000004 1e+16 5e-324 1e+22 -0.0 1e-05");
    check_text("{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[9] }}{{ s[1:3] }} {{ s[::-1] }}",
               "{\"l\": [3, 1, 2], \"s\": \"\xC3\xA4" "bc\"}", "3 2 [1, 2] [2, 1, 3] bc cb\xC3\xA4");
    check_text(
        "{{ d.a }} {{ d['items'] }} {{ d.items()|list }} {{ d.get('x', 5) }} {{ d.zz is defined }} {{ d['zz'] }}",
        "{\"d\": {\"a\": 1, \"items\": 2}}", "1 2 [('a', 1), ('items', 2)] 5 False ");
    check_text("{{ x }}{{ x ~ 'a' }}{{ x is defined }}{% for y in x %}{% endfor %}{{ x|default('d') }}", NULL,
               "aFalsed");
    check_text("{{ '%s-%05.1f' % ('a', 2.25) }} {{ '{:>4}|{x!r}'.format('b', x='c') }}", NULL, "a-002.2    b|'c'");
}

static void test_statements(void) {
    check_text("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ loop.last }}{{ x }};{% else %}no{% endfor %}",
               NULL, "1False1;2True3;");
    check_text(
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% for x in [] %}{% else %}none{% endfor %}", NULL,
        "a1none");
    check_text("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}"
               "{% for x in [1, 2] %}{{ x }}{% break %}{% endfor %}", NULL, "131");
    check_text("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", NULL, "123");
    check_text("{% for x in [1, 2] %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ "
               "loop.changed(1) }} {% endfor %}",
               NULL, "2aTrue 1bFalse ");
    check_text("{% set x = 1 %}{% for y in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% "
               "endif %}{{ x }}",
               NULL, "13");
    check_text("{% set ns = namespace(n=0) %}{% for y in [1, 2] %}{% set ns.n = ns.n + y %}{% endfor %}{{ ns.n }}",
               NULL, "3");
    check_text("{% set a, (b, c) = 1, [2, 3] %}{{ a }}{{ b }}{{ c }}{% set x | upper %}t{{ a }}{% endset %}{{ x }}",
               NULL, "123T1");
    check_text("{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ caller() if caller }}{% endmacro %}"
               "{{ m(1) }} {{ m(1, c=5) }} {% call m(1, 2, 3, 4) %}!{% endcall %}", NULL, "121() 125() 123(4,)!");
    check_text("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", NULL, "3210");
    check_text("{% with a = 1 %}{{ a }}{% endwith %}{{ a }}{% filter upper %}b{% endfilter %}{% generation %}c{% "
               "endgeneration %}",
               NULL, "1Bc");
    /* What is assigned only further down is undefined above, though the template was given it. */
    check_text("{% for y in [1] %}{{ x }}{% endfor %}-{% set x = 5 %}{{ x }}", "{\"x\": 1}", "-5");
    check_text("{% if no %}{% set x = 5 %}{% endif %}{{ x }}", "{\"x\": 1}", "1");
}

static void test_library(void) {
    check_text(
        "{{ ' A b '|trim|lower|replace('a', 'x')|title }} {{ 'a,b'.split(',')|join('+') }} {{ [3, 1]|sort|first }}",
        NULL, "X B a+b 1");
    check_text("{{ d|tojson }} {{ d|tojson(indent=1) }} {{ d|tojson(ensure_ascii=true, separators=(',', ':')) }}",
               "{\"d\": {\"a\": [1, 2.0, null, \"\xC3\xA4\\\"<\"], \"e\": {}}}",
               "{\"a\": [1, 2.0, null, \"\xC3\xA4\\\"<\"], \"e\": {}} {\n \"a\": [\n  1,\n  2.0,\n  null,\n  "
               "\"\xC3\xA4\\\"<\"\n ],\n"
               " \"e\": {}\n} {\"a\":[1,2.0,null,\"\\u00e4\\\"<\"],\"e\":{}}");
    check_text(
        "{{ l|map(attribute='n')|list }} {{ l|selectattr('n', 'gt', 1)|list|length }} {{ [1, 2]|select('odd')|list }} "
        "{{ l|groupby('n')|length }} {{ {'b': 1, 'A': 2}|dictsort }}",
        "{\"l\": [{\"n\": 1}, {\"n\": 2}]}", "[1, 2] 1 [1] 2 [('A', 2), ('b', 1)]");
    check_text("{{ '42'|int + 1 }} {{ 'x'|int(7) }} {{ '1.5'|float }} {{ 2.5|round }} {{ -3|abs }} {{ [1, 2]|sum }} {{ "
               "7 is odd }}",
               NULL, "43 7 1.5 2.0 3 3 True");
    check_text("{{ '<'|e }}{{ ('<'|safe) + '<' }}", NULL, "&lt;<&lt;");
    check_text("{{ '\xC3\x9F\xCE\xA3 \xC7\x86'|upper }} {{ '\xCE\x91\xCE\xA3'|lower }} {{ '\xEF\xAC\x81x'.title() }}",
               NULL, "SS\xCE\xA3 \xC7\x84 \xCE\xB1\xCF\x82 Fix");
    check_text("{{ range(3)|list }}{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ dict(a=1) }}",
               NULL, "[0, 1, 2]121{'a': 1}");
    check_text("{{ x * 1 if false else x }} {{ [x]|tojson }} {{ x is integer }}", "{\"x\": 18446744073709551615}",
               "18446744073709551615 [18446744073709551615] True");
}

static void test_errors(void) {
    check_error("\n\n{{ raise_exception('Roles must\nalternate') }}", "template line 3: Roles must?alternate");
    check_error("{{ x.y }}", "line 1: 'x' is undefined");
    check_error("{% if true %}\n{{ 1 + 'a' }}\n{% endif %}", "line 2: '+' is not for a 'int' and a 'str'");
    check_error("{{ 1 / 0 }}", "division by zero");
    check_error("{{ 9223372036854775807 + 1 }}", "64 bits");
    check_error("{{ 9223372036854775808 }}", "too large");
    check_error("{{ 2 ** 64 }}", "64 bits");
    check_error("{{ 'a'|nope }}", "no filter of this name: 'nope'");
    check_error("{{ 'a'|urlize }}", "not supported");
    check_error("{% include 'x' %}", "unsupported tag 'include'");
    check_error("{% if x %}", "endif");
    check_error("{{ 1", "expected '}}'");
    check_error("{# a", "a comment does not end");
    check_error("{% raw %} a", "a raw block does not end");
    check_error("{{ 'a }}", "a string does not end");
    check_error("{{ [1) }}", "unexpected ')', expected ']'");
    check_error("{% break %}", "outside a loop");
    check_error("{% set x.y = 1 %}", "no namespace");
    check_error("{{ [1].append(2) }}", "the sandbox forbids");
    check_error("{{ range(100001) }}", "100000");
    check_error("{% for x in 5 %}{% endfor %}", "iteration");
}

static void test_date(void) {
    nova_chat chat;
    struct tm t;
    char      expected[64];
    memset(&chat, 0, sizeof chat);
    chat.now = 1764547200;
    CHECK(clock_local(chat.now, &t), "clock_local");
#ifdef _WIN32   /* the older of its C libraries knows no more */
#define DATE_FORMAT "%Y-%m-%d %H:%M:%S %j %U %W %w %I"
#else
#define DATE_FORMAT "%Y-%m-%d %H:%M:%S %j %U %W %V %G %u %w %e %I"
#endif
    strftime(expected, sizeof expected, DATE_FORMAT, &t);
    rendered r = render_chat("{{ strftime_now('" DATE_FORMAT "') }}", &chat, NULL);
    CHECK(strcmp(r.text, expected) == 0, "%s, not %s", r.text, expected);
    free(r.text);
    chat.now = 0;   /* the clock's */
    r        = render_chat("{{ strftime_now('%Y')|int > 2024 }}", &chat, NULL);
    CHECK(strcmp(r.text, "True") == 0, "%s", r.text);
    free(r.text);
}

/* The digits of floats must not depend on the host's locale. */
static void test_locale(void) {
    const char *names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C.UTF-8@decimal"};
    size_t      i       = 0;
    while (i < COUNT_OF(names) && !setlocale(LC_ALL, names[i])) i++;
    if (i == COUNT_OF(names)) SKIP("no locale with a decimal comma is installed");
    check_text("{{ 1.5 }} {{ '2.5'|float }} {{ '%.2f' % 1.25 }} {{ x }} {{ 1234.5678|round(2) }}", "{\"x\": 0.1}",
               "1.5 2.5 1.25 0.1 1234.57");
    setlocale(LC_ALL, "C");
}

/* Random floats, printed and read back. */
static void test_floats(void) {
    char       text[JFLOAT_TEXT];
    int        wrong = 0;
    float_mode mode  = float_mode_enter();   /* -ffast-math takes subnormals for 0 */
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = test_random();
        double   x, back = 0;
        memcpy(&x, &bits, sizeof x);
        if (x - x != 0) continue;
        size_t n = jfloat_text(text, x);
        if (n != strlen(text) || n >= JFLOAT_TEXT || !jv_parse_float(str_c(text), &back) || back != x) wrong++;
    }
    float_mode_leave(mode);
    CHECK(wrong == 0, "%d floats do not survive", wrong);
}

/* Whichever way the host rounds, and that stays its way. */
static void test_rounding(void) {
    static const int ways[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        fesetround(ways[i]);
        rendered r    = render_chat("{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 5e-324 }} {{ '0.3'|float }}", NULL, NULL);
        int      kept = fegetround();
        fesetround(FE_TONEAREST);
        CHECK(r.result == NOVA_OK && strcmp(r.text, "0.30000000000000004 0.3333333333333333 5e-324 0.3") == 0, "%s",
              r.text);
        CHECK(kept == ways[i], "the rounding is %d, not %d", kept, ways[i]);
        free(r.text);
    }
}

/* ---- The conversation ---- */

#define DUMP                                                                                                        \
    "{% for m in messages %}{{ m|tojson }};{% endfor %}{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ " \
    "bos_token }} {{ eos_token is defined }}"

static void test_variables(void) {
    nova_chat    chat;
    nova_message m[4];
    memset(&chat, 0, sizeof chat);
    memset(m, 0, sizeof m);
    m[0].role            = "user";
    m[0].content         = "h\xC3\xA4 \xFF\xC3\"";   /* broken UTF-8 */
    m[1].role            = "assistant";
    m[1].tool_calls_json = "[{\"function\": {\"name\": \"f\", \"arguments\": {}}}]";
    m[2].role            = "tool";
    m[2].content         = "r";
    m[2].extra_json      = "{\"name\": \"f\", \"content\": [{\"type\": \"text\"}], \"x\": null}";
    m[3].role            = "user";
    chat.messages        = m;
    chat.n_messages      = 4;
    rendered r = render_chat(DUMP, &chat, NULL);
    CHECK(strcmp(r.text, "{\"role\": \"user\", \"content\": \"h\xC3\xA4 \xEF\xBF\xBD\xEF\xBF\xBD\\\"\"};"
                         "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
                         "\"f\", \"arguments\": {}}}]};"
                         "{\"role\": \"tool\", \"content\": [{\"type\": \"text\"}], \"name\": \"f\", \"x\": "
                         "null};{\"role\": \"user\"};"
                         "None None True <s> False") == 0,
          "%s", r.result ? r.error.message : r.text);
    free(r.text);
    chat.n_messages           = 0;
    chat.tools_json           = "[1]";
    chat.no_generation_prompt = true;
    chat.variables_json       = "{\"bos_token\": \"B\", \"documents\": [2], \"eos_token\": \"E\"}";
    r                         = render_chat(DUMP, &chat, NULL);
    CHECK(strcmp(r.text, "[1] [2] False B True") == 0, "%s", r.text);
    free(r.text);
}

static void check_argument(const char *part, const nova_chat *chat) {
    rendered r = render_chat("x", chat, NULL);
    CHECK(r.result == NOVA_ERROR_ARGUMENT && strstr(r.error.message, part), "%d %s: expected %s", r.result,
          r.error.message, part);
    free(r.text);
}

static void test_bad_json(void) {
    static const char *const bad[] = {"",           "[",           "[1,]",        "[1 2]",    "{}",    "nul",  "[\"a]",
                                      "[\"\\x\"]",  "[\"\\u12\"]", "[01]",        "[1.]",     "[1e]",  "[-]",  "[] x",
                                      "[{\"a\":}]", "[{a:1}]",     "[{\"a\" 1}]", "[\"\n\"]", "[NaN]", "[+1]", "\xFF"};
    nova_chat    chat;
    nova_message m;
    memset(&chat, 0, sizeof chat);
    memset(&m, 0, sizeof m);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        chat.tools_json = bad[i];
        check_argument("tools_json", &chat);
    }
    chat.tools_json = NULL;
    chat.messages   = &m;
    chat.n_messages = 1;
    check_argument("messages[0]: the role is NULL", &chat);
    m.role            = "x";
    m.tool_calls_json = "{}";
    check_argument("messages[0].tool_calls_json: an array is expected", &chat);
    m.tool_calls_json = NULL;
    m.extra_json      = "{\"a\": tru}";
    check_argument("messages[0].extra_json, byte 6", &chat);
    chat.n_messages     = 0;
    chat.variables_json = "[]";
    check_argument("variables_json: an object is expected", &chat);
    char *deep = (char *)malloc(200001);
    memset(deep, '[', 200000);
    deep[200000]        = 0;
    chat.variables_json = NULL;
    chat.tools_json     = deep;
    check_argument("nested too deeply", &chat);
    free(deep);
}

/* ---- Marks: invisible to the template, and where they were in the text ---- */

static void check_marked(const char *text, const char *content, const char *expected) {
    jinja         j;
    text_buffer   out;
    nova_error    error;
    jvalue        v;
    host          h = host_init(NULL, NULL, NULL, NULL);
    text_init(&out, &h, 0);
    jinja_open(&j, &h, &error);
    j.begins['<'] = true;
    jdict *d = jdict_open(&j);
    v        = jv_string(content, strlen(content), J_MARKED);
    bool ok  = d && jdict_set_c(&j, d, "c", v) && jinja_run(&j, str_c(text), d, &out) && text_append(&out, "", 1);
    CHECK(ok && strcmp(out.p, expected) == 0, "%s\n  gives    %s\n  expected %s", text, ok ? out.p : error.message,
          expected);
    jinja_close(&j);
    text_free(&out);
}

static void test_marks(void) {
    const char *c = "a<\xFF|x|>\xC3\xFF\xA4 b";   /* one behind '<', one within a character */
    check_marked("{{ c }}", c, c);
    check_marked("{{ c|length }} {{ c == 'a<|x|>\xC3\xA4 b' }} {{ '<|x|>' in c }} {{ c.find('|>') }}", c,
                 "9 True True 4");
    check_marked("{{ c[1:3] }} {{ c[6] }} {{ c[::-1] }}", c, "<\xFF| \xC3\xFF\xA4 b \xC3\xFF\xA4>|x|<\xFF" "a");
    check_marked("{{ c.split('<|x|>') }}", c, "['a', '\xC3\xFF\xA4 b']");
    check_marked("{{ c.replace('<|', '') }} {{ c|upper }}", c, "ax|>\xC3\xFF\xA4 b A<\xFF|X|>\xC3\x84\xFF B");
    check_marked("{{ c|tojson }} {{ [c] }} {{ c ~ '<|y|>' }}", c,
                 "\"a<\xFF|x|>\xC3\xFF\xA4 b\" ['a<\xFF|x|>\xC3\xFF\xA4 b'] a<\xFF|x|>\xC3\xFF\xA4 b<|y|>");
    check_marked(
        "{{ {'a<|x|>\xC3\xA4 b': 1}[c] }} {{ c.startswith('a<|') }} {{ c.endswith('\xC3\xA4 b') }} {{ c < 'b' }}", c,
        "1 True True True");
    check_marked("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(c)|length }} {{ c|trim('ab')|length }} {{ "
                 "'%s'|format(c)|length }} {{ '{}'.format(c)|length }}",
                 c, "9 7 9 9");
    /* What a template puts in is the end of a token at most, or a whole one. */
    check_marked("{{ c.replace('&lt;', '<') }}{{ 'a'.replace('a', '<b') }}", "&lt;|x|>", "<\xFF|x|><b");
    check_marked("{{ c.replace('[i]', '<|i|>') }}{{ c.replace('x', 'y') }}", "x[i]y", "x<|i|>\xFFyy[i]y");
}

/* Everything that comes from the conversation is marked, what the host and the template say is not. */
static void test_real_marks(void) {
    static toy   vocabulary;
    arena        a;
    gguf         g;
    tokenizer   *t = NULL;
    nova_error   error;
    nova_message m;
    nova_chat    chat;
    chat_input   in;
    text_buffer  out;
    host         h = host_init(NULL, NULL, NULL, NULL);
    toy_bpe(&vocabulary, "gpt-2");
    toy_file f = toy_write(&vocabulary);
    arena_init(&a, &h);
    bool open =
        gguf_read(&g, &a, f.p, f.n, true, &error) == NOVA_OK && tokenizer_open(&t, &a, &h, &g, &error) == NOVA_OK;
    CHECK(open, "%s", error.message);
    memset(&m, 0, sizeof m);
    memset(&chat, 0, sizeof chat);
    memset(&in, 0, sizeof in);
    m.role              = "<|bos|>";
    m.content           = "<|im_end|>";
    m.extra_json        = "{\"<|bos|>\": \"\\u003c|bos|>\"}";
    m.tool_calls_json   = "[\"<|bos|>\"]";
    chat.messages       = &m;
    chat.n_messages     = 1;
    chat.tools_json     = "[\"<|bos|>\"]";
    chat.variables_json = "{\"bos_token\": \"<|bos|>\", \"documents\": [\"<|bos|>\"]}";
    in.chat             = &chat;
    in.marks            = t;
    in.template_text    = str_c("{{ messages[0]|tojson }}{{ messages[0]['<|bos|>'] }}{{ tools[0] }}{{ documents[0] }} "
                                "{{ bos_token }}<|im_end|>{{ 'y' if messages[0].role == bos_token }}");
    text_init(&out, &h, 0);
    nova_result result = open ? chat_render(&in, &h, &out, &error) : NOVA_ERROR_FORMAT;
    text_append(&out, "", 1);
    CHECK(result == NOVA_OK &&
              strcmp(out.p, "{\"role\": \"<\xFF|bos|>\", \"content\": \"<\xFF|im_end|>\", \"tool_calls\": "
                            "[\"<\xFF|bos|>\"], \"<\xFF|bos|>\": \"<\xFF|bos|>\"}<\xFF|bos|><\xFF|bos|><\xFF|bos|> "
                            "<|bos|><|im_end|>y") == 0,
          "%s %s", error.message, out.p);
    /* Nor does a token form when the template takes the conversation's words apart and puts them together. */
    static const char *const tricks[] = {
        "{{ c|lower }}", "{{ c|upper|lower }}", "{{ c|title|lower }}", "{{ c.swapcase() }}", "{{ c.capitalize().lower() }}",
        "{{ c.replace('\"', '') }}", "{{ c.replace('&lt;', '<') }}", "{{ c|replace('&lt;|', '<|') }}",
        "{{ c.split('\"')|join }}", "{{ c.split('\"')[0] ~ c.split('\"')[1] }}", "{{ c[::2] }}", "{{ c[::-1] }}",
        "{{ c|list|join }}", "{{ c[:4] }}{{ c[5:] }}", "{{ c|trim }}", "{% for x in c %}{{ x }}{% endfor %}",
        "{{ c|list|batch(3)|sum(start=[])|join }}", "{{ '%s%s'|format(c[:4], c[5:]) }}", "{{ c|tojson|replace('\\\\', '') }}",
    };
    static const char *const contents[] = {
        "<|IM_END|>", "<|Im_End|>", "<|im\"_end|>", "&lt;|im_end|>", "<|im|_end|>", "<<||iimm__eenndd||>>", ">|dne_mi|<",
        " <|im_end|> ", "<|BOS|>", "&lt;|bos|>", "<\\|bos|>", "<|bo\"s|>",
    };
    memset(&m, 0, sizeof m);
    m.role              = "user";
    chat.tools_json     = NULL;
    chat.variables_json = NULL;
    for (size_t i = 0; open && i < COUNT_OF(tricks); i++)
        for (size_t k = 0; k < COUNT_OF(contents); k++) {
            char    text[256];
            int32_t ids[256];
            size_t  n_ids;
            out.n = 0;
            snprintf(text, sizeof text, "{%% set c = messages[0].content %%}%s", tricks[i]);
            m.content        = contents[k];
            in.template_text = str_c(text);
            result = chat_render(&in, &h, &out, &error);
            if (result == NOVA_OK)
                result = tokenizer_encode(t, &h, str_of(out.p, out.n), NOVA_PARSE_SPECIAL | TOKENIZER_MARKED, ids,
                                          COUNT_OF(ids), &n_ids, &error);
            CHECK(result == NOVA_OK, "%s: %s", tricks[i], error.message);
            for (size_t at = 0; result == NOVA_OK && at < n_ids; at++) {
                char piece[64];
                CHECK(tokenizer_piece(t, ids[at], false, false, piece, sizeof piece) != 0, "%s of %s: a control token",
                      tricks[i], contents[k]);
            }
        }
    text_free(&out);
    arena_free(&a);
    free(f.p);
}

/* ---- Bounds ---- */

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_UNDEFINED__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer) || __has_feature(memory_sanitizer)
#define SLOW 1
#endif
#endif
#if !defined(SLOW) && defined(__GNUC__) && !defined(__OPTIMIZE__)
#define SLOW 1
#endif
#ifndef SLOW
#define SLOW 0
#endif

static const char *const hostile[] = {
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(x) %}{{ m(x + [1]) }}{% endmacro %}{{ m([]) }}",
    "{% macro m() %}{% if true %}{% for x in [1] %}{{ (((m()))) }}{% endfor %}{% endif %}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(100000) %}{% set ns.s = ns.s ~ 'x' %}{{ ns.s }}{% endfor %}",
    "{% set ns = namespace(l=[1]) %}{% for a in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for a in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "{% set ns = namespace(l=[]) %}{% for a in range(100000) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == "
    "ns.l }}",
    "{% set ns = namespace(l=[]) %}{% for a in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
    "{% set ns = namespace(g=[1]) %}{% for a in range(100000) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ "
    "ns.g|list }}",
    "{{ 'x' * 100000000 }}",
    "{{ 'x' * 9223372036854775807 }}",
    "{{ [1] * 100000000 }}",
    "{{ 'abc' * 3000000 * 3000000 }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '%.1000000000f' % 1.5 }}",
    "{{ 'x'|indent(1000000000, true) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ [1]|batch(100000000, 1)|list }}",
    "{{ [1]|slice(100000000)|list }}",
    "{{ ('a' * 4000000)|list }}",
    "{{ ('ab' * 4000000).replace('', 'xxxxxxxxxx') }}",
    "{{ ('a' * 4000000).replace('a', 'bcd') }}",
    "{{ ('a' * 2000000) in ('a' * 3999999 + 'b') ~ ('a' * 10 + 'c') }}",
    "{% set a = 'a' * 3000000 %}{% for x in range(100000) %}{{ 'b' in a }}{% endfor %}",
    "{% set a = 'a' * 3000000 %}{{ a.count('a' * 1000 + 'b') }}",
    "{% set a = ' ' * 3000000 %}{% for x in range(100000) %}{% set b = a|trim %}{% endfor %}",
    "{% set a = 'x' * 3000000 %}{% for x in range(100000) %}{{ a == a ~ '' }}{% endfor %}",
    "{% set a = 'x' * 2000000 %}{% for x in range(100000) %}{{ a|length }}{% endfor %}",
    "{% set a = 'x' * 2000000 %}{% for x in range(100000) %}{{ a[1000000] }}{% endfor %}",
    "{% set a = 'x' * 2000000 %}{% for x in range(100000) %}{{ (a|upper)[0] }}{% endfor %}",
    "{% set a = '1' * 2000000 %}{% for x in range(100000) %}{{ a|int(0) }}{% endfor %}",
    "{% set a = range(100000)|list %}{% for x in range(100000) %}{{ (a|sort)[0] }}{% endfor %}",
    "{% set a = range(100000)|list %}{% for x in range(100000) %}{{ a|sum }}{{ 5.5 in a }}{% endfor %}",
    "{% set a = range(100000)|list %}{{ a|unique|list|length }}{{ a|groupby(0)|list }}{{ a|join }}{{ a|tojson }}{{ a "
    "}}",
    "{% for x in range(100000) %}{{ 1.1e300 }}{{ 0.1|round(5) }}{{ '1.5'|float }}{% endfor %}",
    "{{ strftime_now('%c' * 2000000) }}",
    "{{ strftime_now('%Y' * 4000000)|length }}",
    "{{ ('%s' * 2000000) % 1 }}",
    "{{ ('{}' * 1000000).format(*range(100000)) }}",
    "{{ ('a.' * 1000000)|attr('x') }}{{ [{}]|map(attribute='a.' * 1000000)|list }}",
    "{% set a %}{% for x in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endset %}",
    "{% for x in range(100000) %}{% for y in 'x' * 1000 %}{{ loop.length }}{% endfor %}{% endfor %}",
    "{% for x in range(100000) %}{{ dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10)['j'] }}{% endfor %}",
    "{% macro m(a, b, c, d, e, f, g, h) %}{% endmacro %}{% for x in range(100000) %}{{ m(1, 2, 3, 4, 5, 6, 7, 8) }}{% "
    "endfor %}",
    "{% for x in range(100000) %}{{ namespace(a=1) }}{% endfor %}",
    "{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}{{ raise_exception('x') }}",
    "{% for x in range(100000) %}{{ 'abc'.zfill(3000000)|length }}{% endfor %}",
};

static void test_hostile(void) {
    double worst = 0;
    size_t peak  = 0;
    for (size_t i = 0; i < COUNT_OF(hostile); i++) {
        counted c;
        memset(&c, 0, sizeof c);
        rendered r    = render_chat(hostile[i], NULL, &c);
        double   took = 1;
        for (int k = 0; k < (SLOW ? 1 : 5) && took >= 0.03; k++) { /* the best of some tries: the machine may be busy */
            double   start = seconds();
            rendered again = render_chat(hostile[i], NULL, NULL);
            double   now   = seconds() - start;
            if (now < took) took = now;
            free(again.text);
        }
        if (took > worst) worst = took;
        if (c.peak > peak) peak = c.peak;
        CHECK(r.result == NOVA_ERROR_TEMPLATE, "%s: %d", hostile[i], r.result);
        CHECK(c.now == 0, "%s: %zu bytes are not freed", hostile[i], c.now);
        CHECK(c.peak <= CHAT_MAX_BYTES, "%s: %zu bytes", hostile[i], c.peak);
        free(r.text);
    }
    printf("hostile templates: at most %.1f ms, %.2f MiB\n", 1e3 * worst, (double)peak / 1048576);
}

/* `n` times `open`, then `middle`, then `n` times `close`. */
static char *nested_text(const char *open, size_t n, const char *middle, const char *close) {
    char *text = (char *)malloc(n * (strlen(open) + strlen(close)) + strlen(middle) + 1), *p = text;
    for (size_t i = 0; i < n; i++) p += sprintf(p, "%s", open);
    p += sprintf(p, "%s", middle);
    for (size_t i = 0; i < n; i++) p += sprintf(p, "%s", close);
    return text;
}

static double worst_nested;

static void check_nested(const char *before, const char *open, const char *middle, const char *close,
                         const char *after) {
    for (size_t n = 20; n <= 20000; n *= 1000) {
        char    *inner = nested_text(open, n, middle, close), *text = (char *)malloc(strlen(inner) + 200);
        sprintf(text, "%s%s%s", before, inner, after);
        double   start = seconds();
        rendered r     = render_chat(text, NULL, NULL);
        CHECK(n == 20 ? r.result == NOVA_OK : r.result == NOVA_ERROR_TEMPLATE, "%s x %zu: %s", open, n,
              r.error.message);
        double took = seconds() - start;
        if (took > worst_nested) worst_nested = took;
        free(r.text);
        free(inner);
        free(text);
    }
}

static void test_nested(void) {
    check_nested("{{ ", "(", "1", ")", " }}");
    check_nested("{{ ", "[", "1", "]", " }}");
    check_nested("{{ ", "{1: ", "1", "}", " }}");
    check_nested("{{ ", "-", "1", "", " }}");
    check_nested("{{ ", "not ", "1", "", " }}");
    check_nested("{{ ", "1 if 1 else ", "1", "", " }}");
    check_nested("{{ ", "range(", "1", ")", " if 0 }}");
    check_nested("{{ 1", "", "", "|string", " }}");
    check_nested("{{ x", "", "", "[0:]", " if 0 }}");
    check_nested("", "{% if 1 %}", "x", "{% endif %}", "");
    check_nested("", "{% for x in [1] %}", "x", "{% endfor %}", "");
    check_nested("", "{% macro m() %}", "x", "{% endmacro %}", "");
    check_nested("", "{% set x %}", "x", "{% endset %}", "");
    check_nested("{% if 0 %}{% set ", "(", "x, y", ",)", " = 1 %}{% endif %}");
}

/* Long chains are no nesting. */
static void test_long(void) {
    char    *sum = nested_text("", 5000, "{{ 1", " + 1"), *text = (char *)malloc(strlen(sum) + 10);
    sprintf(text, "%s }}", sum);
    rendered r = render_chat(text, NULL, NULL);
    CHECK(strcmp(r.text, "5001") == 0, "%s", r.result ? r.error.message : r.text);
    free(r.text);
    free(sum);
    free(text);
    text = nested_text("", 2000, "{% if 0 %}", "{% elif 0 %}");
    text = (char *)realloc(text, strlen(text) + 40);
    strcat(text, "{% else %}x{% endif %}");
    r = render_chat(text, NULL, NULL);
    CHECK(strcmp(r.text, "x") == 0, "%s", r.result ? r.error.message : r.text);
    free(r.text);
    free(text);
}

/* A long conversation: memory that a turn took is free again behind it. */
static void test_regions(void) {
    nova_chat     chat;
    counted       c;
    const size_t  n       = 200, n_content = 10000;
    char         *content = (char *)malloc(n_content + 1);
    nova_message *m       = (nova_message *)calloc(n, sizeof *m);
    memset(content, 'x', n_content);
    content[n_content] = 0;
    for (size_t i = 0; i < n; i++) {
        m[i].role    = i % 2 ? "assistant" : "user";
        m[i].content = content;
    }
    memset(&chat, 0, sizeof chat);
    memset(&c, 0, sizeof c);
    chat.messages   = m;
    chat.n_messages = n;
    rendered r      = render_chat(
             "{% macro show(x) %}{% set y = x|tojson %}{{ y ~ y|trim }}{% endmacro %}{% for m in messages %}"
                  "{% set a = m.content ~ '.' %}{% set b = (a ~ 'z')|escape %}{{ show(b)|length }}{{ m.role }}{{ a }}\n"
                  "{% endfor %}",
             &chat, &c);
    CHECK(r.result == NOVA_OK && r.n > n * n_content, "%s", r.error.message);
    CHECK(c.peak < 4 * n * n_content && c.now == (size_t)0, "%zu bytes for %zu", c.peak, r.n);
    free(r.text);
    free(m);
    free(content);
}

#if !defined(_WIN32)
static void *small_stack(void *arg) {
    (void)arg;
    test_hostile();
    test_nested();
    test_bad_json();
    return NULL;
}

static void test_small_stack(void) {
    pthread_t      thread_id;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, SLOW ? (size_t)1 << 20 : (size_t)256 << 10);
    bool started = pthread_create(&thread_id, &attributes, small_stack, NULL) == 0;
    CHECK(started, "a thread with a small stack");
    if (started) pthread_join(thread_id, NULL);
    pthread_attr_destroy(&attributes);
}
#else
static void test_small_stack(void) { SKIP("no threads with a given stack here"); }
#endif

/* ---- Faults ---- */

static void test_faults(void) {
    static const char text[] =
        "{% macro m(x, y=[1]) %}{{ x|upper }}{{ y }}{{ caller('c') if caller }}{% endmacro %}{{ m(messages[0].content) "
        "}}"
        "{% call(a) m('q') %}{{ a * 500 }}{% endcall %}{% set ns = namespace(a={}) %}{% for k in tools[0]|dictsort %}"
        "{% set ns.a = dict(ns.a, **{k[0]: k[1]}) %}{{ loop.length }}{% endfor %}{{ ns.a|tojson(indent=2) }}{{ ns }}"
        "{{ messages|map(attribute='role')|map('title')|list }}{% set big %}{{ 'x' * 70000 }}{% endset %}{{ big|length "
        "}}"
        "{{ big }}{{ tools|groupby('a')|list }}{{ '%s {}'.format(1) % 2 }}{{ [3, 1]|sort }}{% filter replace('a', 'b') "
        "%}aa{% endfilter %}"
        "{% for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}{{ 'a,b'.split(',') }}{{ "
        "strftime_now('%Y') }}";
    nova_chat    chat;
    nova_message m;
    uint64_t     n = 1;
    memset(&chat, 0, sizeof chat);
    memset(&m, 0, sizeof m);
    m.role              = "user";
    m.content           = "escaped \xFF text";
    m.extra_json        = "{\"x\": \"\\u00e4\", \"y\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}";
    chat.messages       = &m;
    chat.n_messages     = 1;
    chat.tools_json     = "[{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"j\":10}]";
    chat.variables_json = "{\"v\": \"w\"}";
    for (;; n++) {
        counted c;
        memset(&c, 0, sizeof c);
        c.fail_at  = n;
        rendered r = render_chat(text, &chat, &c);
        CHECK(c.now == 0, "fault %llu: %zu bytes are not freed", (unsigned long long)n, c.now);
        bool done = c.calls < n;
        CHECK(done ? r.result == NOVA_OK : r.result == NOVA_ERROR_MEMORY && r.n == 0, "fault %llu: %d %s",
              (unsigned long long)n, r.result, r.error.message);
        free(r.text);
        if (done) break;
    }
    CHECK(n > 8, "only %llu allocations", (unsigned long long)n);
}

/* What the buffer held before stays, whatever happens; its own limit holds. */
static void test_output(void) {
    static nova_chat none;   /* all zeros */
    chat_input  in;
    text_buffer out;
    nova_error  error;
    host        h = host_init(NULL, NULL, NULL, NULL);
    memset(&in, 0, sizeof in);
    in.chat = &none;
    text_init(&out, &h, 20);
    text_append(&out, "before", 6);
    in.template_text = str_c("x{{ raise_exception('no') }}");
    CHECK(chat_render(&in, &h, &out, &error) == NOVA_ERROR_TEMPLATE && out.n == 6 && !out.failed, "%zu", out.n);
    in.template_text = str_c("{{ 'x' * 15 }}");
    CHECK(chat_render(&in, &h, &out, &error) == NOVA_ERROR_TEMPLATE && out.n == 6 && !out.failed, "%zu", out.n);
    in.template_text = str_c("{{ 'x' * 14 }}");
    CHECK(chat_render(&in, &h, &out, NULL) == NOVA_OK && out.n == 20 && memcmp(out.p, "beforexx", 8) == 0, "%zu",
          out.n);
    text_free(&out);
}

int main(void) {
    test_begin(20251201);
    test_layout();
    test_expressions();
    test_statements();
    test_library();
    test_errors();
    test_date();
    test_locale();
    test_floats();
    test_rounding();
    test_variables();
    test_bad_json();
    test_marks();
    test_real_marks();
    test_hostile();
    test_nested();
    printf("nested templates: at most %.1f ms\n", 1e3 * worst_nested);
    test_long();
    test_regions();
    test_small_stack();
    test_faults();
    test_output();
    return test_end();
}
