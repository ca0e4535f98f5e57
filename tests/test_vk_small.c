/* The small kernels on a Vulkan device: norms, embedding, gathering, quantising, sums, against plain C. */
#include "vk_guard.h"

#ifndef NOVA_NO_VULKAN

static float *floats_of(size_t n) {
    float *p = (float *)calloc(n ? n : 1, sizeof *p);
    if (!p) exit(2);
    return p;
}

/* Columns on both sides. */
typedef struct columns {
    guarded  g;
    float   *host;
    uint32_t n, ld, n_col;
} columns;

static uint32_t some_ld(uint32_t n) { return (n + 31) / 32 * 32 + 32 * test_below(3); }

static columns columns_open(vk_device *d, uint32_t n, uint32_t n_col, float size) {
    columns c;
    c.n = n, c.ld = some_ld(n), c.n_col = n_col;
    c.host = floats_of((size_t)c.ld * n_col);
    for (uint32_t k = 0; k < n_col; k++)
        for (uint32_t i = 0; i < n; i++) c.host[(size_t)k * c.ld + i] = test_uniform() * size;
    c.g = guarded_take(d, (uint64_t)c.ld * n_col * 4);
    MUST(vk_write(d, &c.g.s, 0, c.host, c.g.s.size, error));
    return c;
}

static float *column_of(const columns *c, uint32_t k) { return c->host + (size_t)k * c->ld; }

static void columns_write(vk_device *d, columns *c) { MUST(vk_write(d, &c->g.s, 0, c->host, c->g.s.size, error)); }

/* What the device has now; pads and guards are checked to be as they were. */
static float *columns_read(vk_device *d, const columns *c, const char *what) {
    float   *have = floats_of((size_t)c->ld * c->n_col);
    uint32_t pads = 0;
    MUST(vk_read(d, &c->g.s, 0, have, c->g.s.size, error));
    for (uint32_t k = 0; k < c->n_col; k++)
        for (uint32_t i = c->n; i < c->ld; i++) pads += load_u32(&have[(size_t)k * c->ld + i]) != 0;
    CHECK(pads == 0, "%s: %u pads written", what, pads);
    CHECK(guarded_whole(d, &c->g), "%s: a guard was written", what);
    return have;
}

static void columns_close(columns *c) { free(c->host); }

static void run(vk_device *d, vk_list *list) {
    MUST(vk_run_list(d, list->at, list->n, error));
    vk_list_free(list);
}

/* ---- Quantised twins ---- */

typedef struct twin {
    guarded  g;
    uint32_t ld, n_col, scales;
} twin;

static twin twin_open(vk_device *d, uint32_t ld, uint32_t n_col) {
    twin t;
    t.ld = ld, t.n_col = n_col;
    t.scales = vk_quantised_scales(ld, n_col);
    t.g = guarded_take(d, vk_quantised_bytes(ld, n_col));
    return t;
}

/* The codes may differ from the CPU's by one where the number lies in the middle; d by its last bits. */
static void twin_check(vk_device *d, const twin *t, const float *x, uint32_t n, const char *what) {
    uint8_t *have = (uint8_t *)malloc((size_t)t->g.s.size);
    uint32_t bad_code = 0, bad_scale = 0, bad_sum = 0, strange = 0;
    if (!have) exit(2);
    MUST(vk_read(d, &t->g.s, 0, have, t->g.s.size, error));
    for (uint32_t k = 0; k < t->n_col; k++)
        for (uint32_t g = 0; g < (n + 31) / 32; g++) {
            const int8_t *codes = (const int8_t *)have + (size_t)k * t->ld + 32 * g;
            const float  *from  = x + (size_t)k * t->ld + 32 * g;
            int8_t        want[32];
            float         scale, pair[2], sum = 0;
            memcpy(pair, have + 4 * (size_t)t->scales + 8 * ((size_t)k * (t->ld / 32) + g), 8);
            input_quantise(CPU_PLAIN, from, 32, want, &scale);
            for (int i = 0; i < 32; i++) {
                int   off  = codes[i] - want[i];
                float near_middle = scale > 0 ? from[i] / scale - floorf(from[i] / scale) - 0.5f : 1;
                if (off > 1 || off < -1 || (off && fabsf(near_middle) > 1e-3f)) bad_code++;
                sum += (float)codes[i];
            }
            if (scale != scale) {
                strange += pair[0] == pair[0] || pair[1] == pair[1];
                continue;
            }
            bad_scale += !(fabsf(pair[0] - scale) <= scale * 1e-6f);
            bad_sum += !(fabsf(pair[1] - pair[0] * sum) <= fabsf(pair[1]) * 1e-6f);
        }
    CHECK(!bad_code && !bad_scale && !bad_sum && !strange, "%s: %u codes, %u scales, %u sums, %u NaN", what, bad_code,
          bad_scale, bad_sum, strange);
    CHECK(guarded_whole(d, &t->g), "%s: a guard was written", what);
    free(have);
}

static void test_quantise(vk_device *d, uint32_t n, uint32_t n_col) {
    columns x = columns_open(d, n, n_col, 1.0f);
    twin    t = twin_open(d, x.ld, n_col);
    vk_list list;
    if (n > 40) {   /* a block of zeros, one of tiny numbers, a massive number, and what is no number */
        for (uint32_t i = 0; i < 32; i++) column_of(&x, 0)[i] = 0;
        if (n > 64) for (uint32_t i = 32; i < 64; i++) column_of(&x, 0)[i] = 1e-38f;
        column_of(&x, n_col - 1)[39] = 1e5f;
        if (n_col > 1) column_of(&x, 1)[5] = NAN;
        if (n_col > 2) column_of(&x, 2)[7] = -INFINITY;
        columns_write(d, &x);
    }
    vk_list_init(&list, &d->h);
    vk_quantise_add(d, &list, x.g.s, t.g.s, t.scales, n, x.ld, n_col, true);
    run(d, &list);
    twin_check(d, &t, x.host, n, "quantise");
    columns_close(&x);
}

/* ---- Norms ---- */

static vk_slice upload_vector(vk_device *d, float *values, uint32_t n, guarded *g) {
    for (uint32_t i = 0; i < n; i++) values[i] = test_uniform();
    *g = guarded_take(d, n * 4);
    MUST(vk_write(d, &g->s, 0, values, n * 4, error));
    return g->s;
}

static void test_norm(vk_device *d, norm_kind kind, uint32_t n, uint32_t n_col, uint32_t with, bool in_place,
                      bool floats, bool quantised) {
    columns  x = columns_open(d, n, n_col, 2.0f), y = columns_open(d, n, n_col, 1.0f);
    float   *w = floats_of(n), *b = floats_of(n), *want = floats_of((size_t)y.ld * n_col);
    guarded  gw, gb;
    vk_norm  m;
    vk_list  list;
    columns *out = in_place ? &x : &y;
    twin     t = twin_open(d, out->ld, n_col);
    double   worst = 0;
    if (n > 3) column_of(&x, n_col - 1)[n / 2] = 1e5f;
    columns_write(d, &x);
    memset(&m, 0, sizeof m);
    m.kind = kind, m.n = n, m.n_col = n_col, m.eps = 1e-5f, m.barrier = true;
    m.x = x.g.s, m.ld_x = x.ld, m.ld_y = out->ld;
    if (floats) m.y = out->g.s;
    if (with & 1) m.w = upload_vector(d, w, n, &gw);
    if (with & 2) m.b = upload_vector(d, b, n, &gb);
    if (quantised) m.yq = t.g.s, m.yq_scales = t.scales;
    free(want);
    want = floats_of((size_t)out->ld * n_col);
    for (uint32_t k = 0; k < n_col; k++)
        vector_norm(CPU_PLAIN, kind, want + (size_t)k * out->ld, column_of(&x, k), with & 1 ? w : NULL,
                    with & 2 ? b : NULL, n, m.eps);
    vk_list_init(&list, &d->h);
    vk_norm_add(d, &list, &m);
    run(d, &list);
    if (floats) {
        float *have = columns_read(d, out, "norm");
        for (size_t i = 0; i < (size_t)out->ld * n_col; i++) {
            double off = fabs((double)have[i] - (double)want[i]) / (1e-5 * fabs((double)want[i]) + 4e-6);
            if (!(off <= worst)) worst = off;
        }
        CHECK(worst <= 1, "norm %d of %u, %u columns, with %u: off by %g of what is allowed", (int)kind, n, n_col, with,
              worst);
        if (quantised) twin_check(d, &t, have, n, "norm, quantised");
        free(have);
    } else if (quantised) {
        float *near_want = want;   /* as close as the device's own floats would be */
        uint8_t *q = (uint8_t *)malloc((size_t)t.g.s.size);
        uint32_t off = 0;
        if (!q) exit(2);
        MUST(vk_read(d, &t.g.s, 0, q, t.g.s.size, error));
        for (uint32_t k = 0; k < n_col; k++)
            for (uint32_t i = 0; i < n; i++) {
                float scale = load_f32(q + 4 * (size_t)t.scales + 8 * ((size_t)k * (t.ld / 32) + i / 32));
                float value = scale * (float)(int8_t)q[(size_t)k * t.ld + i];
                off += !(fabsf(value - near_want[(size_t)k * t.ld + i]) <= 0.502f * scale + 1e-5f);
            }
        CHECK(off == 0, "norm quantised alone: %u off", off);
        free(q);
    }
    if (!in_place) free(columns_read(d, &x, "norm's x"));
    columns_close(&x);
    columns_close(&y);
    free(w);
    free(b);
    free(want);
}

static void test_norms(vk_device *d) {
    static const uint32_t sizes[] = {1, 2, 3, 5, 31, 32, 33, 64, 100, 127, 257, 300, 576, 2048, 5000};
    for (uint32_t i = 0; i < COUNT_OF(sizes); i++)
        for (uint32_t kind = 0; kind < 2; kind++) {
            uint32_t with = (i + kind) % 4;
            test_norm(d, (norm_kind)kind, sizes[i], 1 + test_below(5), with, i % 3 == 0, true, false);
            test_norm(d, (norm_kind)kind, sizes[i], 1 + test_below(5), 1, false, true, true);
        }
    test_norm(d, NORM_RMS, 576, 3, 1, false, false, true);
}

/* ---- Tables of `now` ---- */

static void test_embed(vk_device *d, uint32_t type, uint32_t n_in, uint32_t n_vocab, uint32_t n_col) {
    random_weight r = random_weight_open(type, n_in, n_vocab, 1.0f);
    columns       y = columns_open(d, n_in, n_col, 1.0f);
    float         scale = test_below(2) ? 1.0f : 4.0f;   /* products are exact */
    uint32_t      col = 64, now[64 + 4 * 16], used = n_col > 1 ? n_col - 1 : 1, wrong = 0;
    guarded       g = guarded_take(d, sizeof now);
    vk_weight     w;
    vk_list       list;
    arena         a;
    arena_init(&a, &d->h);
    memset(now, 0xee, sizeof now);
    now[0] = used;
    for (uint32_t k = 0; k < n_col; k++) now[col + 4 * k] = k == 0 ? n_vocab - 1 : test_below(n_vocab);
    MUST(vk_write(d, &g.s, 0, now, sizeof now, error));
    MUST(vk_weight_load(d, &a, &r.w, &w, error));
    vk_list_init(&list, &d->h);
    vk_embed_add(d, &list, &w, g.s, col, y.g.s, y.ld, n_col, scale, true);
    run(d, &list);
    float *have = columns_read(d, &y, "embed");
    for (uint32_t k = 0; k < n_col; k++)
        for (uint32_t i = 0; i < n_in; i++) {
            float want = k < used ? scale * r.floats[(size_t)now[col + 4 * k] * n_in + i] : column_of(&y, k)[i];
            wrong += have[(size_t)k * y.ld + i] != want;
        }
    CHECK(wrong == 0, "embed %s %u x %u in %u parts: %u differ", type_of(type)->name, n_in, n_vocab, w.n_parts, wrong);
    free(have);
    columns_close(&y);
    arena_free(&a);
    random_weight_close(&r);
}

static void test_embeds(vk_device *d) {
    for (uint32_t t = 0; t < COUNT_OF(every_type); t++)
        for (int i = 0; i < 2; i++) {
            uint32_t block = type_of(every_type[t])->block_weights;
            uint32_t n_in  = block * (1 + test_below(block == 1 ? 300 : 1 + 600 / block));
            test_embed(d, every_type[t], n_in, 1 + test_below(300), 1 + test_below(9));
        }
}

static void test_gather(vk_device *d, uint32_t n, uint32_t n_col, uint32_t n_out, uint32_t most, bool windowed) {
    columns  x = columns_open(d, n, n_col, 1.0f), y = columns_open(d, n, most, 1.0f);
    uint32_t now[64 + 32], first = windowed ? 2 : 0, wrong = 0;
    guarded  g = guarded_take(d, sizeof now);
    vk_list  list;
    memset(now, 0, sizeof now);
    now[0] = n_col, now[2] = n_out, now[3] = first;
    for (uint32_t i = 0; i < n_out; i++) now[64 + i] = test_below(n_col);
    MUST(vk_write(d, &g.s, 0, now, sizeof now, error));
    vk_list_init(&list, &d->h);
    vk_gather_add(d, &list, x.g.s, x.ld, g.s, 64, windowed, y.g.s, y.ld, n, most, true);
    run(d, &list);
    float *have = columns_read(d, &y, "gather");
    for (uint32_t k = 0; k < most; k++)
        for (uint32_t i = 0; i < n; i++) {
            float want = k + first < n_out ? column_of(&x, now[64 + first + k])[i] : column_of(&y, k)[i];
            wrong += have[(size_t)k * y.ld + i] != want;
        }
    CHECK(wrong == 0, "gather %u of %u columns of %u: %u differ", n_out, n_col, n, wrong);
    free(have);
    columns_close(&x);
    columns_close(&y);
}

static void test_add(vk_device *d, uint32_t n, uint32_t n_col) {
    columns  x = columns_open(d, n, n_col, 1.0f), y = columns_open(d, n, n_col, 1.0f);
    uint32_t wrong = 0;
    vk_list  list;
    vk_list_init(&list, &d->h);
    float scale = test_below(2) ? 1.0f : -0.5f;   /* products are exact: one rounding */
    vk_add_add(d, &list, y.g.s, y.ld, x.g.s, x.ld, n, n_col, scale, true);
    run(d, &list);
    float *have = columns_read(d, &y, "add");
    for (uint32_t k = 0; k < n_col; k++)
        for (uint32_t i = 0; i < n; i++)
            wrong += have[(size_t)k * y.ld + i] != column_of(&y, k)[i] + scale * column_of(&x, k)[i];
    CHECK(wrong == 0, "add %u: %u differ", n, wrong);
    free(have);
    columns_close(&x);
    columns_close(&y);
}

/* Scaled, and capped: also where exponentials of the numbers would be infinite. */
static void test_scale(vk_device *d, uint32_t n, uint32_t n_col, float scale, float cap) {
    columns  y = columns_open(d, n, n_col, 100.0f);
    uint32_t wrong = 0;
    vk_list  list;
    vk_list_init(&list, &d->h);
    vk_scale_add(d, &list, y.g.s, y.ld, n, n_col, scale, cap, true);
    run(d, &list);
    float *have = columns_read(d, &y, "scale");
    for (uint32_t k = 0; k < n_col; k++)
        for (uint32_t i = 0; i < n; i++) {
            double x = (double)column_of(&y, k)[i] * scale, want = cap != 0 ? cap * tanh(x / cap) : x;
            wrong += !(fabs((double)have[(size_t)k * y.ld + i] - want) <= 1e-5 * fabs(want) + 1e-6 * fabs((double)cap));
        }
    CHECK(wrong == 0, "scale %g, cap %g, of %u: %u differ", (double)scale, (double)cap, n, wrong);
    free(have);
    columns_close(&y);
}

static void test_device(vk_device *d) {
    static const uint32_t sizes[] = {1, 7, 31, 32, 33, 97, 127, 300, 1009};
    printf("%s, subgroup %u\n", d->caps.name, d->caps.subgroup);
    test_norms(d);
    test_embeds(d);
    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        test_quantise(d, sizes[i], 1 + i % 5);
        test_add(d, sizes[i], 1 + i % 7);
        test_scale(d, sizes[i], 1 + i % 7, 0.125f, 0);
        test_scale(d, sizes[i], 1 + i % 7, 1.0f, 30.0f);
        test_scale(d, sizes[i], 1 + i % 7, 1000.0f, 0.5f);
        test_gather(d, sizes[i], 1 + test_below(20), 1 + test_below(20), 1 + test_below(9), false);
        test_gather(d, sizes[i], 1 + test_below(20), 1 + test_below(20), 1 + test_below(9), true);
    }
}

int main(void) {
    host h = host_init(NULL, NULL, NULL, NULL);
    test_begin(20260802);
    vk_device *d = guarded_device(&h, 0, 0, false);
    if (d) {
        test_device(d);
        vk_device_close(d);
        d = guarded_device(&h, VK_CAN_SUBGROUP, 32768, false);   /* the plain twins; weights in parts */
        test_norms(d);
        test_embeds(d);
        vk_device_close(d);
    }
    return test_end();
}
#endif
