/* The GGUF reader: what is right is read right, what is wrong is refused at the right place, nothing crashes it.
 * `test_gguf --seeds FOLDER` writes the fuzzer's seeds instead. */
#include "faults.h"
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "gguf_walk.h"
#include "gguf_writer.h"
#include "test.h"
#if defined(_WIN32)
#include <winioctl.h>
#endif

/* ---- Reading with everything watched ---- */

typedef struct reading {
    faults      f;
    host        h;
    arena       a;
    gguf        g;
    nova_error  error;
    nova_result result;
} reading;

static void read_bytes(reading *r, const unsigned char *p, size_t n, bool vocab_only, long fail_at) {
    faults_init(&r->f, fail_at);
    r->h = host_init(faults_alloc, &r->f, NULL, NULL);
    error_clear(&r->error);
    arena_init(&r->a, &r->h);
    r->result = gguf_read(&r->g, &r->a, p, n, vocab_only, &r->error);
}

static void read_writer(reading *r, gguf_writer *w) {
    size_t n;
    const unsigned char *p = gw_finish(w, &n);
    read_bytes(r, p, n, false, 0);
}

static void read_end(reading *r) {
    arena_free(&r->a);
    CHECK(faults_end(&r->f) == 0, "%s", r->f.first_error);
}

/* A file with every type, nested arrays and tensors of several layouts. */
static void write_all_kinds(gguf_writer *w, uint32_t version, uint32_t alignment) {
    static const float    f32[] = {1.5f, -2.25f, 1e-5f};
    static const double   f64[] = {1e300, 0.1};
    static const int16_t  i16[] = {-3, 4};
    static const uint64_t u64[] = {UINT64_MAX, 7};
    static const int64_t  i64[] = {INT64_MIN, -1, 5};
    static const uint8_t  bools[] = {1, 0, 1};
    static const char *const words[] = {"zero", "", "two\001\"", "\xc3\xa9\xe2\x82\xac"};
    uint64_t ne[4] = {64, 3, 1, 1};
    gw_init(w);
    w->version   = version;
    w->alignment = alignment;
    gw_str(w, "general.architecture", "llama");
    if (alignment != 32) gw_u32(w, "general.alignment", alignment);
    gw_u8(w, "t.u8", 200), gw_i8(w, "t.i8", -100), gw_u16(w, "t.u16", 60000), gw_i16(w, "t.i16", -30000);
    gw_u32(w, "t.u32", 4000000000u), gw_i32(w, "t.i32", -2000000000), gw_u64(w, "t.u64", UINT64_MAX);
    gw_i64(w, "t.i64", INT64_MIN), gw_f32(w, "t.f32", 0.1f), gw_f64(w, "t.f64", -1e-7), gw_bool(w, "t.true", 1);
    gw_bool(w, "t.false", 0), gw_str(w, "t.empty", ""), gw_str_n(w, "t.nul", "a\0b", 3);
    gw_array(w, "a.f32", GW_F32, f32, 3), gw_array(w, "a.f64", GW_F64, f64, 2), gw_array(w, "a.i16", GW_I16, i16, 2);
    gw_array(w, "a.u64", GW_U64, u64, 2), gw_array(w, "a.i64", GW_I64, i64, 3),
        gw_array(w, "a.bool", GW_BOOL, bools, 3);
    gw_array_str(w, "a.str", words, NULL, 4), gw_array(w, "a.none", GW_U8, NULL, 0);
    gw_array_head(w, "a.nested", GW_ARRAY, 3);   /* [[1, 2], [], ["x"]] */
    gw_put_u32(&w->meta, GW_U8), gw_put_u64(&w->meta, 2), gw_put(&w->meta, "\1\2", 2);
    gw_put_u32(&w->meta, GW_F64), gw_put_u64(&w->meta, 0);
    gw_put_u32(&w->meta, GW_STRING), gw_put_u64(&w->meta, 1), gw_put_str(&w->meta, "x", 1);
    gw_u32(w, "last", 77);
    gw_tensor(w, "f32.weight", TYPE_F32, 2, ne, NULL, 64 * 3 * 4);
    gw_tensor(w, "q4_0.weight", TYPE_Q4_0, 2, ne, NULL, 3 * 36);
    ne[0] = 256, ne[1] = 2, ne[2] = 2, ne[3] = 2;
    gw_tensor(w, "q6_K.weight", TYPE_Q6_K, 4, ne, NULL, 8 * 210);
    ne[0] = 5;
    gw_tensor(w, "bias", TYPE_F16, 1, ne, "\1\2\3\4\5\6\7\10\11\12", 10);
}

/* ---- What is right ---- */

static void check_printed(const gguf *g, const char *key, const char *want) {
    char text[256];
    const gguf_value *v = gguf_find(g, str_c(key));
    CHECK(v != NULL, "%s", key);
    if (!v) return;
    gguf_print(v, text, sizeof text);
    CHECK(strcmp(text, want) == 0, "%s: %s", key, text);
}

static void check_values(const gguf *g) {
    str words[5];
    int n = 0;
    check_printed(g, "general.architecture", "llama");
    check_printed(g, "t.u8", "200"), check_printed(g, "t.i8", "-100"), check_printed(g, "t.u16", "60000");
    check_printed(g, "t.i16", "-30000"), check_printed(g, "t.u32", "4000000000"),
        check_printed(g, "t.i32", "-2000000000");
    check_printed(g, "t.u64", "18446744073709551615"), check_printed(g, "t.i64", "-9223372036854775808");
    check_printed(g, "t.f32", "0.1"), check_printed(g, "t.f64", "-1e-07");
    check_printed(g, "t.true", "true"), check_printed(g, "t.false", "false");
    check_printed(g, "t.empty", ""), check_printed(g, "t.nul", "a b");
    check_printed(g, "a.f32", "3 x f32: 1.5, -2.25, 1e-05"), check_printed(g, "a.f64", "2 x f64: 1e+300, 0.1");
    check_printed(g, "a.i16", "2 x i16: -3, 4"), check_printed(g, "a.bool", "3 x bool: true, false, true");
    check_printed(g, "a.str", "4 x string: \"zero\", \"\", \"two \"\", \"\xc3\xa9\xe2\x82\xac\"");
    check_printed(g, "a.none", "0 x u8"), check_printed(g, "a.nested", "3 x array"), check_printed(g, "last", "77");
    gguf_strings s = gguf_strings_of(gguf_find(g, str_c("a.str")));
    while (n < 5 && gguf_strings_next(&s, &words[n])) n++;
    CHECK(n == 4 && str_is(words[0], "zero") && str_is(words[1], "") && str_is(words[2], "two\001\""), "%d", n);
    const gguf_value *v = gguf_find(g, str_c("a.i64"));
    CHECK(gguf_array_is(v, GGUF_I64) && !gguf_array_is(v, GGUF_U64) && !gguf_array_is(NULL, GGUF_I64), "types");
    CHECK(gguf_item_int(v, 0) == INT64_MIN && gguf_item_int(v, 1) == -1 && gguf_item_int(v, 2) == 5, "i64");
    v = gguf_find(g, str_c("a.u64"));
    CHECK(gguf_item_int(v, 0) == INT64_MAX && gguf_item_int(v, 1) == 7, "u64");
    CHECK(gguf_item_int(gguf_find(g, str_c("a.i16")), 0) == -3, "i16");
    CHECK(gguf_item_int(gguf_find(g, str_c("a.bool")), 0) == 1, "bool");
    CHECK(gguf_item_f32(gguf_find(g, str_c("a.f32")), 1) == -2.25f, "f32");
    CHECK(gguf_item_f32(gguf_find(g, str_c("a.f64")), 1) == 0.1f, "f64");
    CHECK(gguf_item_f32(gguf_find(g, str_c("a.i16")), 0) == -3.0f, "i16 as f32");
}

static void check_tensors(const gguf *g) {
    static const uint64_t bytes[] = {768, 108, 1680, 10};
    CHECK(g->n_tensors == 4, "%u", g->n_tensors);
    for (uint32_t i = 0; i < 4; i++) CHECK(g->tensors[i].n_bytes == bytes[i], "%u: %u", i,
                                           (unsigned)g->tensors[i].n_bytes);
    const gguf_tensor *t = gguf_find_tensor(g, str_c("q6_K.weight"));
    CHECK(t && t->type == TYPE_Q6_K && t->n_dims == 4 && t->ne[0] == 256 && t->ne[3] == 2, "q6_K");
    t = gguf_find_tensor(g, str_c("bias"));
    CHECK(t && t->n_dims == 1 && t->ne[0] == 5 && t->ne[1] == 1 && t->ne[3] == 1, "bias");
    CHECK(t && t->n_bytes == 10 && memcmp(t->data, "\1\2\3\4\5\6\7\10\11\12", 10) == 0, "its bytes");
    CHECK(!gguf_find_tensor(g, str_c("bia")) && !gguf_find_tensor(g, str_c("bias.")) && !gguf_find(g, str_c("")),
          "absent");
    CHECK(!gguf_find_tensor(g, str_of(NULL, 0)), "no name at all");
}

static void test_right_files(void) {
    static const uint32_t alignments[] = {8, 32, 64, 4096};
    for (uint32_t version = 2; version <= 3; version++) {
        for (size_t i = 0; i < COUNT_OF(alignments); i++) {
            gguf_writer w;
            reading     r;
            size_t      n;
            write_all_kinds(&w, version, alignments[i]);
            unsigned char *p = gw_exact(&w, &n);
            read_bytes(&r, p, n, false, 0);
            CHECK(r.result == NOVA_OK, "%s", r.error.message);
            CHECK(r.g.version == version && r.g.alignment == alignments[i] && r.g.n_meta == w.n_meta, "head");
            if (r.result == NOVA_OK) check_values(&r.g), check_tensors(&r.g), walk_gguf(&r.g);
            read_end(&r);
            read_bytes(&r, p, n, true, 0);
            CHECK(r.result == NOVA_OK && r.g.n_tensors == 0 && !gguf_find_tensor(&r.g, str_c("bias")), "vocab only");
            if (r.result == NOVA_OK) check_values(&r.g);
            read_end(&r);
            free(p);
            gw_free(&w);
        }
    }
}

/* No tensors, no keys, nothing behind the tables, names at the limits. */
static void test_bare_files(void) {
    gguf_writer w;
    reading     r;
    gw_init(&w);
    read_writer(&r, &w);
    CHECK(r.result == NOVA_OK && r.g.n_meta == 0 && r.g.n_tensors == 0, "%s", r.error.message);
    CHECK(!gguf_find(&r.g, str_c("x")) && !gguf_find_tensor(&r.g, str_c("x")), "nothing");
    read_end(&r);
    gw_u8(&w, "x", 1);
    char *name = (char *)malloc(65535);
    memset(name, 'n', 65535);
    gw_key_n(&w, name, 65535, GW_U8);
    gw_put(&w.meta, "\5", 1);
    read_writer(&r, &w);
    CHECK(r.result == NOVA_OK && r.g.n_meta == 2 && gguf_find(&r.g, str_of(name, 65535)), "%s", r.error.message);
    CHECK(!gguf_find(&r.g, str_of(name, 65534)), "a shorter name");
    read_end(&r);
    free(name);
    gw_free(&w);
}

static void test_printing_is_cut(void) {
    gguf_writer w;
    reading     r;
    char        text[16];
    gw_init(&w);
    gw_str(&w, "s", "ab\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");   /* 2 + 2 + 3 + 4 + 1 bytes */
    read_writer(&r, &w);
    static const size_t whole[] = {0, 1, 2, 2, 4, 4, 4, 7, 7, 7, 7, 11, 12, 12};
    for (size_t room = 0; room < COUNT_OF(whole); room++) {
        memset(text, '#', sizeof text);
        gguf_print(&r.g.meta[0].value, text, room + 1);
        CHECK(strlen(text) == whole[room], "room %u: %u", (unsigned)room, (unsigned)strlen(text));
        CHECK(text[room + 1] == '#', "wrote behind the end");
    }
    gguf_print(&r.g.meta[0].value, text, 0);
    read_end(&r);
    gw_free(&w);
}

/* ---- Typed access ---- */

static void test_typed_access(void) {
    gguf_writer w;
    reading     r;
    uint32_t    u = 42;
    float       f = 42;
    bool        b = true;
    str         s = str_of("old", 3);
    nova_error  e;
    write_all_kinds(&w, 3, 32);
    gw_f64(&w, "x.huge", 1e300), gw_f32(&w, "x.nan", nanf("")), gw_f64(&w, "x.inf", -HUGE_VAL),
        gw_i8(&w, "x.minus", -1);
    gw_u64(&w, "x.2^32", (uint64_t)1 << 32), gw_i64(&w, "x.max", 0xFFFFFFFF), gw_f32(&w, "x.3.0", 3.0f);
    read_writer(&r, &w);
    const gguf *g = &r.g;
    error_clear(&e);
    CHECK(gguf_get_u32(g, "none", &u, &e) == NOVA_OK && u == 42 && e.code == NOVA_OK, "missing");
    CHECK(gguf_get_f32(g, "none", &f, &e) == NOVA_OK && f == 42, "missing");
    CHECK(gguf_get_bool(g, "none", &b, &e) == NOVA_OK && b, "missing");
    CHECK(gguf_get_str(g, "none", &s, &e) == NOVA_OK && str_is(s, "old"), "missing");
    static const char *const not_u32[] = {"t.u64", "t.i64", "t.f32", "t.true", "t.empty", "a.i16", "x.minus", "x.2^32",
                                          "x.3.0"};
    for (size_t i = 0; i < COUNT_OF(not_u32); i++) {
        CHECK(gguf_get_u32(g, not_u32[i], &u, &e) == NOVA_ERROR_FORMAT && u == 42, "%s: %u", not_u32[i], u);
        CHECK(e.code == NOVA_ERROR_FORMAT && strstr(e.message, not_u32[i]), "%s", e.message);
        CHECK(e.offset == gguf_find(g, str_c(not_u32[i]))->offset, "offset of %s", not_u32[i]);
    }
    CHECK(gguf_get_u32(g, "x.minus", &u, NULL) == NOVA_ERROR_FORMAT, "without an error struct");
    CHECK(gguf_get_u32(g, "x.max", &u, &e) == NOVA_OK && u == UINT32_MAX, "i64 that fits");
    CHECK(gguf_get_u32(g, "t.u8", &u, &e) == NOVA_OK && u == 200, "u8");
    static const char *const not_f32[] = {"x.huge", "x.nan", "x.inf", "t.true", "t.empty", "a.f32"};
    for (size_t i = 0; i < COUNT_OF(not_f32); i++)
        CHECK(gguf_get_f32(g, not_f32[i], &f, &e) == NOVA_ERROR_FORMAT && f == 42, "%s: %g", not_f32[i], (double)f);
    CHECK(gguf_get_f32(g, "t.f64", &f, &e) == NOVA_OK && f == -1e-7f, "f64");
    CHECK(gguf_get_f32(g, "t.i8", &f, &e) == NOVA_OK && f == -100.0f, "i8");
    CHECK(gguf_get_bool(g, "t.u8", &b, &e) == NOVA_ERROR_FORMAT && b, "u8 is no bool");
    CHECK(gguf_get_bool(g, "t.false", &b, &e) == NOVA_OK && !b, "bool");
    CHECK(gguf_get_str(g, "a.str", &s, &e) == NOVA_ERROR_FORMAT && str_is(s, "old"), "an array is no string");
    CHECK(gguf_get_str(g, "t.nul", &s, &e) == NOVA_OK && s.n == 3 && s.p[2] == 'b', "string");
    walk_gguf(g);
    read_end(&r);
    gw_free(&w);
}

/* ---- What is wrong: one case a function, refused with a code and words that say where ---- */

static const uint64_t ne_32[4] = {32, 1, 1, 1};

static void one_tensor(gguf_writer *w, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset) {
    gw_info(w, "the.tensor", 10, type, n_dims, ne, offset);
    gw_put(&w->data, NULL, 256);
}

static void dims(gguf_writer *w, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    uint64_t ne[4] = {a, b, c, d};
    one_tensor(w, TYPE_Q4_0, 4, ne, 0);
}

static void nest(gguf_writer *w, int depth) {
    gw_array_head(w, "the.key", GW_ARRAY, 1);
    for (int i = 2; i < depth; i++) gw_put_u32(&w->meta, GW_ARRAY), gw_put_u64(&w->meta, 1);
    gw_put_u32(&w->meta, GW_U8), gw_put_u64(&w->meta, 1), gw_put(&w->meta, "x", 1);
}

static void wrong_magic(gguf_writer *w) { memcpy(&w->magic, "GGML", 4); }
static void wrong_version_0(gguf_writer *w) { w->version = 0; }
static void wrong_version_1(gguf_writer *w) { w->version = 1; }
static void wrong_version_4(gguf_writer *w) { w->version = 4; }
static void wrong_big_endian(gguf_writer *w) { w->version = 0x03000000; }
static void wrong_n_meta(gguf_writer *w) { gw_u32(w, "the.key", 1), w->n_meta = UINT64_MAX; }
static void wrong_n_meta_32(gguf_writer *w) { gw_u32(w, "the.key", 1), w->n_meta = 0x100000001u; }
static void wrong_n_meta_one(gguf_writer *w) { gw_u32(w, "the.key", 1), w->n_meta++; }
static void wrong_n_tensors(gguf_writer *w) { w->n_tensors = UINT64_MAX / 8; }
static void wrong_n_tensors_one(gguf_writer *w) {
    one_tensor(w, TYPE_F32, 1, ne_32, 0), w->n_tensors++, w->data.n = 0, w->padded = false;
}
static void wrong_key_empty(gguf_writer *w) { gw_u32(w, "first", 1), gw_u32(w, "", 1); }
static void wrong_key_nul(gguf_writer *w) { gw_key_n(w, "the\0key", 7, GW_U8), gw_put(&w->meta, "x", 1); }
static void wrong_key_twice(gguf_writer *w) {
    gw_u32(w, "the.key", 1), gw_u32(w, "another", 2), gw_str(w, "the.key", "x");
}
static void wrong_key_over_end(gguf_writer *w) {
    gw_put_u64(&w->meta, 4096), gw_put(&w->meta, "the.key.that.ends", 17), w->n_meta++;
}
static void wrong_key_wraps(gguf_writer *w) {
    gw_put_u64(&w->meta, UINT64_MAX - 7), gw_put(&w->meta, "the.key.that.wraps", 18), w->n_meta++;
}
static void wrong_key_64k(gguf_writer *w) {
    char *name = (char *)calloc(65536, 1);
    memset(name, 'k', 65536);
    gw_key_n(w, name, 65536, GW_U8), gw_put(&w->meta, "x", 1);
    free(name);
}
static void wrong_type_13(gguf_writer *w) { gw_key(w, "the.key", 13), gw_put(&w->meta, NULL, 16); }
static void wrong_type_big(gguf_writer *w) { gw_key(w, "the.key", 0x80000000u), gw_put(&w->meta, NULL, 16); }
static void wrong_bool(gguf_writer *w) { gw_bool(w, "the.key", 2); }
static void wrong_bool_item(gguf_writer *w) { gw_array(w, "the.key", GW_BOOL, "\0\1\1\377", 4); }
static void wrong_string(gguf_writer *w) {
    gw_key(w, "the.key", GW_STRING), gw_put_u64(&w->meta, 5), gw_put(&w->meta, "four", 4);
}
static void wrong_string_wraps(gguf_writer *w) {
    gw_key(w, "the.key", GW_STRING), gw_put_u64(&w->meta, UINT64_MAX), gw_put(&w->meta, "four", 4);
}
static void wrong_item_type(gguf_writer *w) { gw_array_head(w, "the.key", 99, 1), gw_put(&w->meta, NULL, 16); }
static void wrong_array_over_end(gguf_writer *w) { gw_array_head(w, "the.key", GW_U32, 5), gw_put(&w->meta, NULL, 19); }
static void wrong_array_wraps(gguf_writer *w) {
    gw_array_head(w, "the.key", GW_F64, UINT64_MAX / 8 + 2), gw_put(&w->meta, NULL, 64);
}
static void wrong_array_of_strings(gguf_writer *w) {
    gw_array_head(w, "the.key", GW_STRING, UINT64_MAX / 2), gw_put(&w->meta, NULL, 64);
}
static void wrong_string_in_array(gguf_writer *w) {
    gw_array_head(w, "the.key", GW_STRING, 3), gw_put_str(&w->meta, "ok", 2), gw_put_u64(&w->meta, 1u << 20),
        gw_put(&w->meta, NULL, 40);
}
static void wrong_nested_type(gguf_writer *w) {
    gw_array_head(w, "the.key", GW_ARRAY, 1), gw_put_u32(&w->meta, 77), gw_put_u64(&w->meta, 1),
        gw_put(&w->meta, NULL, 16);
}
static void wrong_nested_depth(gguf_writer *w) { nest(w, 9); }
static void wrong_nested_count(gguf_writer *w) {
    gw_array_head(w, "the.key", GW_ARRAY, UINT64_MAX / 12), gw_put(&w->meta, NULL, 64);
}
static void wrong_alignment_0(gguf_writer *w) { gw_u32(w, "general.alignment", 0); }
static void wrong_alignment_1(gguf_writer *w) { gw_u32(w, "general.alignment", 1); }
static void wrong_alignment_24(gguf_writer *w) { gw_u32(w, "general.alignment", 24); }
static void wrong_alignment_type(gguf_writer *w) { gw_str(w, "general.alignment", "32"); }
static void wrong_alignment_huge(gguf_writer *w) {
    gw_u32(w, "general.alignment", 0x80000000u), one_tensor(w, TYPE_F32, 1, ne_32, 0);
}
static void wrong_alignment_64(gguf_writer *w) { gw_u64(w, "general.alignment", (uint64_t)1 << 32); }
static void wrong_tensor_empty(gguf_writer *w) {
    gw_info(w, "", 0, TYPE_F32, 1, ne_32, 0), gw_put(&w->data, NULL, 256);
}
static void wrong_tensor_nul(gguf_writer *w) {
    gw_info(w, "a\0b", 3, TYPE_F32, 1, ne_32, 0), gw_put(&w->data, NULL, 256);
}
static void wrong_tensor_twice(gguf_writer *w) {
    one_tensor(w, TYPE_F32, 1, ne_32, 0), gw_info(w, "other", 5, TYPE_F32, 1, ne_32, 128),
        one_tensor(w, TYPE_F32, 1, ne_32, 256);
}
static void wrong_dims_0(gguf_writer *w) { one_tensor(w, TYPE_F32, 0, ne_32, 0); gw_put(&w->infos, NULL, 64); }
static void wrong_dims_5(gguf_writer *w) {
    static const uint64_t ne[5] = {32, 1, 1, 1, 1};
    one_tensor(w, TYPE_F32, 5, ne, 0);
}
static void wrong_dims_many(gguf_writer *w) {
    gw_put_str(&w->infos, "the.tensor", 10), gw_put_u32(&w->infos, UINT32_MAX), gw_put(&w->infos, NULL, 99),
        w->n_tensors++;
}
static void wrong_ne_0(gguf_writer *w) { dims(w, 0, 1, 1, 1); }
static void wrong_ne_3(gguf_writer *w) { dims(w, 32, 1, 1, 0); }
static void wrong_ne_block(gguf_writer *w) { dims(w, 48, 2, 1, 1); }
static void wrong_ne_product(gguf_writer *w) { dims(w, (uint64_t)1 << 32, (uint64_t)1 << 32, 1, 1); }
static void wrong_ne_product_0(gguf_writer *w) { dims(w, (uint64_t)1 << 32, (uint64_t)1 << 31, 2, (uint64_t)1 << 63); }
static void wrong_ne_sign(gguf_writer *w) { dims(w, (uint64_t)1 << 63, 1, 1, 1); }
static void wrong_ne_minus(gguf_writer *w) { dims(w, UINT64_MAX - 31, 1, 1, 1); }
static void wrong_bytes(gguf_writer *w) {
    static const uint64_t ne[1] = {(uint64_t)1 << 62};
    one_tensor(w, TYPE_F32, 1, ne, 0);
}
static void wrong_bytes_wrap(gguf_writer *w) {
    static const uint64_t ne[1] = {((uint64_t)1 << 62) + 8};
    one_tensor(w, TYPE_F32, 1, ne, 0);
}
static void wrong_tensor_type(gguf_writer *w) { one_tensor(w, 4, 1, ne_32, 0); }
static void wrong_tensor_type_big(gguf_writer *w) { one_tensor(w, UINT32_MAX, 1, ne_32, 0); }
static void wrong_offset_unaligned(gguf_writer *w) { one_tensor(w, TYPE_F32, 1, ne_32, 16); }
static void wrong_offset_end(gguf_writer *w) { one_tensor(w, TYPE_F32, 1, ne_32, 160); }
static void wrong_offset_behind(gguf_writer *w) { one_tensor(w, TYPE_F32, 1, ne_32, 4096); }
static void wrong_offset_wraps(gguf_writer *w) { one_tensor(w, TYPE_F32, 1, ne_32, UINT64_MAX - 31); }
static void wrong_no_weights(gguf_writer *w) { one_tensor(w, TYPE_F32, 1, ne_32, 0), w->data.n = 0; }
static void wrong_no_padding(gguf_writer *w) { one_tensor(w, TYPE_F32, 1, ne_32, 0), w->data.n = 0, w->padded = false; }
static void wrong_overlap(gguf_writer *w) {
    one_tensor(w, TYPE_F32, 1, ne_32, 96), gw_info(w, "b", 1, TYPE_F32, 1, ne_32, 0);
}
static void wrong_same_place(gguf_writer *w) {
    one_tensor(w, TYPE_F32, 1, ne_32, 0), gw_info(w, "b", 1, TYPE_F32, 1, ne_32, 0);
}

typedef struct wrong_file {
    const char *name;
    void      (*write)(gguf_writer *w);
    nova_result code;
    const char *words;   /* in the message */
} wrong_file;

#define F NOVA_ERROR_FORMAT
#define U NOVA_ERROR_UNSUPPORTED
static const wrong_file wrong_files[] = {
    {"magic", wrong_magic, F, "not a GGUF file"},
    {"version-0", wrong_version_0, U, "version 0"},
    {"version-1", wrong_version_1, U, "version 1"},
    {"version-4", wrong_version_4, U, "version 4"},
    {"big-endian", wrong_big_endian, U, "big-endian"},
    {"n-meta", wrong_n_meta, F, "key count is 18446744073709551615"},
    {"n-meta-32", wrong_n_meta_32, F, "key count"},
    {"n-meta-one", wrong_n_meta_one, F, "key count is 2"},
    {"n-tensors", wrong_n_tensors, F, "tensor count"},
    {"n-tensors-one", wrong_n_tensors_one, F, "tensor count is 2"},
    {"key-empty", wrong_key_empty, F, "key 1: its name is empty"},
    {"key-nul", wrong_key_nul, F, "key 0: its name holds a NUL"},
    {"key-twice", wrong_key_twice, F, "key \"the.key\" is there twice"},
    {"key-over-end", wrong_key_over_end, F, "key 0: its name of 4096 bytes"},
    {"key-wraps", wrong_key_wraps, F, "key 0: its name of 18446744073709551608 bytes"},
    {"key-64k", wrong_key_64k, F, "key 0: its name has 65536 bytes"},
    {"type-13", wrong_type_13, F, "key \"the.key\": its type is 13"},
    {"type-big", wrong_type_big, F, "key \"the.key\": its type is 2147483648"},
    {"bool", wrong_bool, F, "key \"the.key\": a bool is 2"},
    {"bool-item", wrong_bool_item, F, "key \"the.key\": a bool is 255"},
    {"string", wrong_string, F, "key \"the.key\": its string of 5 bytes"},
    {"string-wraps", wrong_string_wraps, F, "key \"the.key\": its string"},
    {"item-type", wrong_item_type, F, "key \"the.key\": its item type is 99"},
    {"array-over-end", wrong_array_over_end, F, "key \"the.key\": its 5 items of type u32"},
    {"array-wraps", wrong_array_wraps, F, "key \"the.key\": its 2305843009213693953 items of type f64"},
    {"array-of-strings", wrong_array_of_strings, F, "key \"the.key\": its 9223372036854775807 items of type string"},
    {"string-in-array", wrong_string_in_array, F, "key \"the.key\": its string of 1048576 bytes"},
    {"nested-type", wrong_nested_type, F, "key \"the.key\": its item type is 77"},
    {"nested-depth", wrong_nested_depth, F, "key \"the.key\": arrays are nested deeper than 8"},
    {"nested-count", wrong_nested_count, F, "key \"the.key\": its"},
    {"alignment-0", wrong_alignment_0, F, "\"general.alignment\": 0 is not a power of two"},
    {"alignment-1", wrong_alignment_1, F, "\"general.alignment\": 1 is not"},
    {"alignment-24", wrong_alignment_24, F, "\"general.alignment\": 24 is not"},
    {"alignment-type", wrong_alignment_type, F, "\"general.alignment\": its type is string"},
    {"alignment-huge", wrong_alignment_huge, F, "ends before its weights"},
    {"alignment-64", wrong_alignment_64, F, "\"general.alignment\": 4294967296 is out of range"},
    {"tensor-empty", wrong_tensor_empty, F, "tensor 0: its name is empty"},
    {"tensor-nul", wrong_tensor_nul, F, "tensor 0: its name holds a NUL"},
    {"tensor-twice", wrong_tensor_twice, F, "tensor \"the.tensor\" is there twice"},
    {"dims-0", wrong_dims_0, F, "tensor \"the.tensor\": it has 0 dimensions"},
    {"dims-5", wrong_dims_5, F, "tensor \"the.tensor\": it has 5 dimensions"},
    {"dims-many", wrong_dims_many, F, "tensor \"the.tensor\": it has 4294967295 dimensions"},
    {"ne-0", wrong_ne_0, F, "tensor \"the.tensor\": dimension 0 is 0"},
    {"ne-3", wrong_ne_3, F, "tensor \"the.tensor\": dimension 3 is 0"},
    {"ne-block", wrong_ne_block, F, "tensor \"the.tensor\": its rows of 48 weights are no whole blocks of Q4_0"},
    {"ne-product", wrong_ne_product, F, "tensor \"the.tensor\": its dimensions multiply"},
    {"ne-product-0", wrong_ne_product_0, F, "tensor \"the.tensor\": its dimensions multiply"},
    {"ne-sign", wrong_ne_sign, F, "tensor \"the.tensor\": its dimensions multiply"},
    {"ne-minus", wrong_ne_minus, F, "tensor \"the.tensor\": its dimensions multiply"},
    {"bytes", wrong_bytes, F, "tensor \"the.tensor\": its size overflows"},
    {"bytes-wrap", wrong_bytes_wrap, F, "tensor \"the.tensor\": its size overflows"},
    {"tensor-type", wrong_tensor_type, U, "tensor \"the.tensor\": its type number 4 is not supported"},
    {"tensor-type-big", wrong_tensor_type_big, U, "tensor \"the.tensor\": its type number 4294967295"},
    {"offset-unaligned", wrong_offset_unaligned, F, "tensor \"the.tensor\": its offset 16 is not aligned to 32"},
    {"offset-end", wrong_offset_end, F, "tensor \"the.tensor\": its 128 bytes at 160"},
    {"offset-behind", wrong_offset_behind, F, "tensor \"the.tensor\": its 128 bytes at 4096"},
    {"offset-wraps", wrong_offset_wraps, F, "tensor \"the.tensor\": its 128 bytes at"},
    {"no-weights", wrong_no_weights, F, "the"},
    {"no-padding", wrong_no_padding, F, "ends before its weights"},
    {"overlap", wrong_overlap, F, "tensors \"b\" and \"the.tensor\" overlap"},
    {"same-place", wrong_same_place, F, "tensors \"the.tensor\" and \"b\" overlap"},
};
#undef F
#undef U

static void test_wrong_files(void) {
    for (size_t i = 0; i < COUNT_OF(wrong_files); i++) {
        const wrong_file *c = &wrong_files[i];
        gguf_writer w;
        reading     r;
        size_t      n;
        gw_init(&w);
        c->write(&w);
        unsigned char *p = gw_exact(&w, &n);
        read_bytes(&r, p, n, false, 0);
        CHECK(r.result == c->code && r.error.code == c->code, "%s: %d %s", c->name, (int)r.result, r.error.message);
        CHECK(strstr(r.error.message, c->words) != NULL, "%s: %s", c->name, r.error.message);
        CHECK(r.error.offset <= n, "%s: offset %llu of %llu", c->name, (unsigned long long)r.error.offset,
              (unsigned long long)n);
        CHECK(r.f.bytes_peak < (256 << 10), "%s: took %llu bytes", c->name, (unsigned long long)r.f.bytes_peak);
        read_end(&r);
        read_bytes(&r, p, n, false, 0);   /* no struct for the error is fine as well */
        CHECK(gguf_read(&r.g, &r.a, p, n, false, NULL) == c->code, "%s: without an error struct", c->name);
        read_end(&r);
        free(p);
        gw_free(&w);
    }
}

/* Where an error is said to lie, on an example of each kind. */
static void test_offsets(void) {
    gguf_writer w;
    reading     r;
    gw_init(&w);
    gw_u32(&w, "ok", 1);                    /* 24: 8 + 2 + 4 + 4 */
    gw_array(&w, "b", GW_BOOL, "\1\1\3", 3);  /* 42: 8 + 1 + 4, item type at 55, count at 59, items from 67 */
    read_writer(&r, &w);
    CHECK(r.error.offset == 69, "the third bool: %llu", (unsigned long long)r.error.offset);
    read_end(&r);
    w.meta.p[7] = 0x80;                     /* the length of "ok", last byte */
    read_writer(&r, &w);
    CHECK(r.error.offset == 24 && r.result == NOVA_ERROR_FORMAT, "%llu: %s", (unsigned long long)r.error.offset,
          r.error.message);
    read_end(&r);
    gw_free(&w);
}

static void test_depth_8_is_fine(void) {
    gguf_writer w;
    reading     r;
    gw_init(&w);
    nest(&w, 8);
    gw_u32(&w, "behind", 5);
    read_writer(&r, &w);
    CHECK(r.result == NOVA_OK && gguf_find(&r.g, str_c("behind")), "%s", r.error.message);
    read_end(&r);
    gw_free(&w);
}

/* ---- Every truncation, every wrong byte ---- */

static long damage_read, damage_refused;

static void damaged(const unsigned char *p, size_t n, int modes) {
    host       h = host_init(NULL, NULL, NULL, NULL);
    arena      a;
    gguf       g;
    nova_error e;
    for (int vocab_only = 0; vocab_only < modes; vocab_only++) {
        error_clear(&e);
        arena_init(&a, &h);
        nova_result r = gguf_read(&g, &a, p, n, vocab_only != 0, &e);
        damage_read++;
        if (r == NOVA_OK) {
            walk_gguf(&g);
        } else {
            damage_refused++;
            if ((r != NOVA_ERROR_FORMAT && r != NOVA_ERROR_UNSUPPORTED) || e.code != r || !e.message[0] || e.offset > n)
                CHECK(false, "%d at %llu: %s", (int)r, (unsigned long long)e.offset, e.message);
        }
        arena_free(&a);
    }
}

static void test_truncations(void) {
    gguf_writer w;
    size_t      n, full;
    write_all_kinds(&w, 3, 32);
    const unsigned char *p = gw_finish(&w, &full);
    damage_read = damage_refused = 0;
    for (n = 0; n < full; n++) {
        unsigned char *cut = (unsigned char *)malloc(n ? n : 1);
        if (n) memcpy(cut, p, n);
        damaged(cut, n, 2);
        free(cut);
    }
    CHECK(damage_read == (long)(2 * full), "%ld", damage_read);
    /* A whole vocabulary is a success behind the keys; nothing else is. */
    CHECK(damage_refused == (long)(full + 24 + w.meta.n), "%ld of %ld refused", damage_refused, damage_read);
    gw_free(&w);
}

static void test_wrong_bytes(void) {
    gguf_writer w;
    size_t      n;
    write_all_kinds(&w, 3, 32);
    gw_finish(&w, &n);
    size_t tables = 24 + w.meta.n + w.infos.n;
    unsigned char *p = gw_exact(&w, &n);
    damage_read = damage_refused = 0;
    for (size_t i = 0; i < tables; i++) {
        unsigned char right = p[i];
        /* All 255 others in what has structure; elsewhere (a name's or text's byte) the bits one by one. */
        for (unsigned v = 0; v < 256; v++) {
            if (v == right || (right > 32 && ((v ^ right) & ((v ^ right) - 1)) != 0)) continue;
            p[i] = (unsigned char)v;
            damaged(p, n, v % 16 == 0 ? 2 : 1);
        }
        p[i] = right;
    }
    CHECK(damage_read > 150000 && damage_refused > 50000, "%ld read, %ld refused", damage_read, damage_refused);
    printf("%ld damaged files read, %ld refused\n", damage_read, damage_refused);
    free(p);
    gw_free(&w);
}

/* Several bytes at once, and 64-bit numbers that are dangerous. */
static void test_random_damage(void) {
    static const uint64_t nasty[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff,
                                     0x8000000000000000, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX / 8 + 1,
                                         0x2000000000000000};
    gguf_writer w;
    size_t      n;
    write_all_kinds(&w, 2, 64);
    unsigned char *good = gw_exact(&w, &n), *p = (unsigned char *)malloc(n);
    damage_read = damage_refused = 0;
    for (int round = 0; round < 8000; round++) {
        memcpy(p, good, n);
        for (uint32_t k = 1 + test_below(3); k > 0; k--) {
            size_t at = 8 + test_below((uint32_t)(24 + w.meta.n + w.infos.n - 16));
            if (test_below(2)) memcpy(p + at, &nasty[test_below(COUNT_OF(nasty))], test_below(2) ? 8 : 4);
            else p[at] = (unsigned char)test_random();
        }
        damaged(p, n, 2);
    }
    CHECK(damage_refused > damage_read / 4, "%ld of %ld refused", damage_refused, damage_read);
    free(p);
    free(good);
    gw_free(&w);
}

/* ---- Memory and time ---- */

static void test_out_of_memory(void) {
    gguf_writer w;
    size_t      n;
    long        at = 1;
    write_all_kinds(&w, 3, 32);
    unsigned char *name = (unsigned char *)malloc(3000);
    for (int i = 0; i < 2000; i++) {   /* enough that the tables do not fit one block */
        int k = snprintf((char *)name, 3000, "key.%d", i);
        gw_key_n(&w, name, (size_t)k, GW_U8), gw_put(&w.meta, "x", 1);
        gw_info(&w, name, (size_t)k, TYPE_F32, 1, ne_32, 4096 + 128 * (uint64_t)i);
    }
    gw_put(&w.data, NULL, 4096 + 128 * 2000 - w.data.n);
    unsigned char *p = gw_exact(&w, &n);
    for (;; at++) {
        reading r;
        read_bytes(&r, p, n, false, at);
        long failed = r.f.failed;
        CHECK(r.result == (failed ? NOVA_ERROR_MEMORY : NOVA_OK), "call %ld: %d %s", at, (int)r.result,
              r.error.message);
        CHECK(!failed || strstr(r.error.message, "out of memory"), "%s", r.error.message);
        if (!failed) CHECK(r.f.bytes_peak < 6 * n + (256 << 10), "%llu bytes for a file of %llu",
                           (unsigned long long)r.f.bytes_peak, (unsigned long long)n);
        read_end(&r);
        if (!failed) break;
    }
    CHECK(at > 4, "%ld allocations", at);
    free(name);
    free(p);
    gw_free(&w);
}

/* Names that a hash, a trie or a naive sort would choke on. Quadratic work would be 10^11 steps. */
static void test_hostile_names(void) {
    enum { N = 300000 };
    gguf_writer w;
    reading     r;
    char        name[128];
    memset(name, 'a', sizeof name);
    gw_init(&w);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name + 100, 20, "%08u", i % 2 ? N - i : i);   /* ups and downs behind a long common start */
        gw_key_n(&w, name, 108, GW_U8), gw_put(&w.meta, "x", 1);
    }
    uint64_t start = clock_ns();
    read_writer(&r, &w);
    double seconds = (double)(clock_ns() - start) / 1e9;
    CHECK(r.result == NOVA_OK && r.g.n_meta == N, "%s", r.error.message);
    CHECK(seconds < 10, "%.1f s", seconds);
    printf("%d hostile names: %.0f ms\n", N, seconds * 1e3);
    snprintf(name + 100, 20, "%08u", 250000u);
    CHECK(gguf_find(&r.g, str_of(name, 108)) != NULL && !gguf_find(&r.g, str_of(name, 107)), "found");
    size_t n_bytes = r.g.size;
    CHECK(r.f.bytes_peak < 6 * n_bytes + (1 << 20), "memory");
    read_end(&r);
    w.meta.n--;   /* the last of many is not whole: no memory for the others */
    read_writer(&r, &w);
    CHECK(r.result == NOVA_ERROR_FORMAT && r.f.calls == 0, "%ld calls: %s", r.f.calls, r.error.message);
    read_end(&r);
    w.meta.n++;
    snprintf(name + 100, 20, "%08u", 7u);   /* odd numbers run from the end down: 7 is there as N - 7 is odd */
    bool there = (N - 7) % 2 == 1;
    gw_key_n(&w, name, 108, GW_U8), gw_put(&w.meta, "x", 1);
    read_writer(&r, &w);
    CHECK((r.result == NOVA_ERROR_FORMAT) == there && (!there || strstr(r.error.message, "twice")), "%s",
          r.error.message);
    CHECK(!there || r.error.offset > n_bytes - 1, "the later of the two is named");
    read_end(&r);
    gw_free(&w);
}

/* A file whose weights lie behind 4 GiB. Its holes take no room where the file system knows holes. */
static bool sparse_write(const char *path, gguf_writer *w, uint64_t at, const void *p, size_t n) {
    size_t size;
    const unsigned char *head = gw_finish(w, &size);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(head, 1, size, f) == size && fflush(f) == 0;
#if defined(_WIN32)
    DWORD got;
    ok = ok && DeviceIoControl((HANDLE)_get_osfhandle(_fileno(f)), FSCTL_SET_SPARSE, NULL, 0, NULL, 0, &got, NULL);
    ok = ok && _fseeki64(f, (int64_t)at, SEEK_SET) == 0;
#else
    ok = ok && fseeko(f, (off_t)at, SEEK_SET) == 0;
#endif
    ok = ok && fwrite(p, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}

/* Maps and reads a sparse file that `w` and `weights` make, or skips. */
static bool read_sparse(reading *r, file_map *m, const host *h, const char *path, gguf_writer *w, uint64_t at,
                        const float *weights) {
    nova_error e;
    if (sizeof(size_t) < 8) {
        SKIP("a 32-bit process has no room for 5 GiB");
        return false;
    }
    if (!sparse_write(path, w, at, weights, 32 * sizeof(float))) {
        SKIP("no sparse file of 5 GiB can be written here");
        return false;
    }
    CHECK(file_open(m, h, path, false, NULL, NULL, &e) == NOVA_OK && m->size == at + 128, "%s", e.message);
    read_bytes(r, m->data, m->size, false, 0);
    return true;
}

static void test_beyond_4_gib(void) {
    const uint64_t far_away = ((uint64_t)5 << 30) + 64;
    char           path[64];   /* its own: this test may run several times at once */
    float          weights[32], last = 0;
    gguf_writer    w;
    file_map       m;
    reading        r;
    host           h = host_init(NULL, NULL, NULL, NULL);
    snprintf(path, sizeof path, "build/test_gguf_%llx.sparse", (unsigned long long)clock_ns());
    for (int i = 0; i < 32; i++) weights[i] = (float)i;
    gw_init(&w);
    gw_str(&w, "general.architecture", "llama");
    gw_info(&w, "near", 4, TYPE_F32, 1, ne_32, 0);
    gw_info(&w, "far", 3, TYPE_F32, 1, ne_32, far_away);
    gw_put(&w.data, NULL, 32);
    uint64_t start = (24 + w.meta.n + w.infos.n + 31) / 32 * 32;
    if (read_sparse(&r, &m, &h, path, &w, start + far_away, weights)) {
        const gguf_tensor *t = r.result == NOVA_OK ? gguf_find_tensor(&r.g, str_c("far")) : NULL;
        CHECK(t != NULL, "%s", r.error.message);
        if (t) memcpy(&last, t->data + 31 * sizeof(float), sizeof last);
        CHECK(last == 31.0f, "%g", (double)last);
        read_end(&r);
        file_close(&m, &h);
    }
    /* 5 GiB of holes have room for what the head promises: three hundred million keys. */
    w.n_meta = 300000000;
    w.infos.n = 0;
    if (read_sparse(&r, &m, &h, path, &w, start + far_away, weights)) {
        CHECK(r.result == NOVA_ERROR_FORMAT && strstr(r.error.message, "key 1: its name is empty"), "%s",
              r.error.message);
        CHECK(r.f.calls == 0, "%ld allocations for holes", r.f.calls);
        read_end(&r);
        file_close(&m, &h);
    }
    remove(path);
    gw_free(&w);
}

/* ---- Files of the world ---- */

static void test_real_file(const char *folder, const char *name, uint32_t n_tokens) {
    char        path[1024];
    host        h = host_init(NULL, NULL, NULL, NULL);
    file_map    m;
    reading     r;
    nova_error  e;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_open(&m, &h, path, false, NULL, NULL, &e) != NOVA_OK) {
        SKIP("%s", e.message);
        return;
    }
    uint64_t start = clock_ns();
    read_bytes(&r, m.data, m.size, false, 0);
    double ms = (double)(clock_ns() - start) / 1e6;
    CHECK(r.result == NOVA_OK, "%s: %s", name, r.error.message);
    if (r.result == NOVA_OK) {
        const gguf_value *tokens = gguf_find(&r.g, str_c("tokenizer.ggml.tokens"));
        CHECK(gguf_array_is(tokens, GGUF_STRING) && tokens->n == n_tokens, "%s: tokens", name);
        walk_gguf(&r.g);
        printf("%s: %u keys, %u tensors, %.2f ms\n", name, r.g.n_meta, r.g.n_tensors, ms);
    }
    read_end(&r);
    file_close(&m, &h);
}

static void test_real_files(void) {
    const char *data = getenv("NOVA_TEST_DATA");
    if (!data) data = "../shared";
    test_real_file(data, "tokenizers/mistral.gguf", 32000);
    test_real_file(data, "tokenizers/llama3_1.gguf", 128256);
    test_real_file(data, "tokenizers/qwen3.gguf", 151669);
    test_real_file(data, "tokenizers/deepseek_v3.gguf", 128815);
    test_real_file(data, "tokenizers/gemma3.gguf", 262145);
    test_real_file(data, "tokenizers/gptoss.gguf", 200019);
    test_real_file(data, "models/relu2-8m-f16.gguf", 4096);
}

/* ---- Seeds for the fuzzer ---- */

static int write_seeds(const char *folder) {
    char        path[1024];
    gguf_writer w;
    bool        ok = true;
    for (size_t i = 0; i < COUNT_OF(wrong_files); i++) {
        gw_init(&w);
        wrong_files[i].write(&w);
        snprintf(path, sizeof path, "%s/%s.gguf", folder, wrong_files[i].name);
        if (w.meta.n < 4096) ok = gw_save(&w, path) && ok;
        gw_free(&w);
    }
    for (uint32_t version = 2; version <= 3; version++) {
        write_all_kinds(&w, version, version == 2 ? 8 : 32);
        snprintf(path, sizeof path, "%s/all-kinds-v%u.gguf", folder, version);
        ok = gw_save(&w, path) && ok;
        gw_free(&w);
    }
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) return write_seeds(argv[2]);
    test_begin(20261);
    test_right_files();
    test_bare_files();
    test_printing_is_cut();
    test_typed_access();
    test_wrong_files();
    test_offsets();
    test_depth_8_is_fine();
    test_truncations();
    test_wrong_bytes();
    test_random_damage();
    test_out_of_memory();
    test_hostile_names();
    test_beyond_4_gib();
    test_real_files();
    return test_end();
}
