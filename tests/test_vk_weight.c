/* Weights on a Vulkan device: the planar layouts against the README's words, in one part and in several, mapped and
 * staged; and the multiplications for 1 to 8 columns, every format, path and epilogue, against sums in double. */
#include "vk_guard.h"
#include <time.h>

#ifndef NOVA_NO_VULKAN

/* ---- Layout ---- */

static float half_at(const uint32_t *words, size_t i) {
    return half_to_float((uint16_t)(words[i / 2] >> 16 * (i % 2)));
}

/* Weight i of a row of a part, by shaders/README.md, one bit at a time. */
static float planar_value(const vk_weight *w, const vk_part *p, const uint32_t *words, uint32_t row, uint32_t i) {
    size_t   groups = w->n_pad / 32, g = i / 32, group = row * groups + g, e = i % 32;
    size_t   super = row * (groups / 8) + g / 8, halves = (groups + 1) / 2 * 2, supers = (groups / 8 + 1) / 2 * 2;
    uint32_t quad = (uint32_t)e / 4, b = (uint32_t)e % 4;
    const uint32_t *codes = words + p->codes, *high = words + p->high, *scales = words + p->scales;
    const uint32_t *extra = words + p->extra;
    if (w->format == GPU_F32) return load_f32(codes + group * 32 + e);
    if (w->format == GPU_F16) return half_at(codes, group * 32 + e);
    if (w->format == GPU_BF16) return bf16_to_float((uint16_t)(codes[(group * 32 + e) / 2] >> 16 * (e % 2)));
    if (w->format == GPU_Q8_0)
        return half_at(scales, row * halves + g) * (float)(int8_t)(codes[group * 8 + quad] >> 8 * b & 255);
    int code = (int)(codes[group * 4 + quad % 4] >> (8 * b + (quad < 4 ? 0 : 4)) & 15);
    if (w->format == GPU_Q5_0 || w->format == GPU_Q5_1 || w->format == GPU_Q5_K)
        code |= (int)(high[group] >> (8 * b + quad) & 1) << 4;
    if (w->format == GPU_Q6_K) code |= (int)(high[group * 2 + quad / 4] >> (8 * b + 2 * (quad % 4)) & 3) << 4;
    if (w->format == GPU_Q4_0) return half_at(scales, row * halves + g) * (float)(code - 8);
    if (w->format == GPU_Q5_0) return half_at(scales, row * halves + g) * (float)(code - 16);
    if (w->format == GPU_Q4_1 || w->format == GPU_Q5_1)
        return half_at(scales, 2 * group) * (float)code + half_at(scales, 2 * group + 1);
    if (w->format == GPU_Q6_K) {
        int scale = (int8_t)(scales[super * 4 + (g % 8) / 2] >> (16 * (g % 2) + (e < 16 ? 0 : 8)) & 255);
        return half_at(extra, row * supers + g / 8) * (float)scale * (float)(code - 32);
    }
    uint32_t field = 0;
    for (uint32_t k = 0; k < 12; k++) {
        uint32_t bit = 12 * (uint32_t)(g % 8) + k;
        field |= (scales[super * 4 + 1 + bit / 32] >> bit % 32 & 1) << k;
    }
    float d = half_at(scales, super * 8), least = half_at(scales, super * 8 + 1);
    return d * (float)(field & 63) * (float)code - least * (float)(field >> 6);
}

static void check_layout(vk_device *d, uint32_t type, uint32_t n_in, uint32_t n_out) {
    random_weight r = random_weight_open(type, n_in, n_out, 1.0f);
    vk_weight     w;
    arena         a;
    uint64_t      sum = 0;
    uint32_t      row = 0;
    arena_init(&a, &d->h);
    MUST(vk_weight_load(d, &a, &r.w, &w, error));
    CHECK(w.n_pad % 32 == 0 && w.n_pad >= n_in && w.n_pad < n_in + 32, "pad %u of %u", w.n_pad, n_in);
    for (uint32_t i = 0; i < w.n_parts; i++) {
        const vk_part *p     = &w.parts[i];
        uint32_t      *words = (uint32_t *)malloc((size_t)p->bytes.size);
        uint32_t       wrong = 0;
        if (!words) exit(2);
        sum += p->bytes.size;
        CHECK(p->row == row && p->n_rows > 0, "%s: part %u begins at row %u", type_of(type)->name, i, p->row);
        CHECK(p->bytes.size <= d->caps.max_range, "a part of %llu bytes", (unsigned long long)p->bytes.size);
        CHECK((p->codes | p->high | p->scales | p->extra) % 64 == 0, "a plane begins off 256 bytes");
        MUST(vk_read(d, &p->bytes, 0, words, p->bytes.size, error));
        for (uint32_t k = 0; k < p->n_rows; k++)
            for (uint32_t c = 0; c < w.n_pad; c++) {
                float have = planar_value(&w, p, words, k, c);
                float want = c < n_in ? r.floats[(size_t)(row + k) * n_in + c] : 0;
                wrong += load_u32(&have) != load_u32(&want) && !(have == 0 && want == 0);
            }
        CHECK(wrong == 0, "%s %u x %u, part %u: %u weights differ", type_of(type)->name, n_in, n_out, i, wrong);
        row += p->n_rows;
        free(words);
    }
    float top = 0;
    for (size_t i = 0; i < (size_t)n_in * n_out; i++) top = fmaxf(top, fabsf(r.floats[i]));
    CHECK(w.largest >= top && w.largest <= top * 4, "%s: largest %g, not %g", type_of(type)->name, (double)w.largest,
          (double)top);
    CHECK(row == n_out, "%u rows of %u", row, n_out);
    CHECK(sum == vk_weight_bytes(d, &r.w), "%llu bytes, not %llu", (unsigned long long)sum,
          (unsigned long long)vk_weight_bytes(d, &r.w));
    arena_free(&a);
    random_weight_close(&r);
}

static uint32_t some_width(uint32_t type, uint32_t most) {
    uint32_t block = type_of(type)->block_weights;
    return block * (1 + test_below(most < block ? 1 : most / block));
}

static void test_layouts(vk_device *d) {
    for (uint32_t t = 0; t < COUNT_OF(every_type); t++) {
        check_layout(d, every_type[t], type_of(every_type[t])->block_weights, 1);
        for (int i = 0; i < 6; i++) check_layout(d, every_type[t], some_width(every_type[t], 1100), 1 + test_below(70));
    }
}

static void test_refusals(vk_device *d) {
    weight     w;
    vk_weight  out;
    arena      a;
    nova_error error;
    arena_init(&a, &d->h);
    memset(&w, 0, sizeof w);
    w.type = 63, w.n_in = 32, w.n_out = 1;
    CHECK(vk_weight_load(d, &a, &w, &out, &error) == NOVA_ERROR_UNSUPPORTED, "an unknown type was taken");
    uint64_t range = d->caps.max_range;
    d->caps.max_range = 4096;
    w.type = TYPE_F32, w.n_in = 4096, w.row_bytes = 16384;
    CHECK(vk_weight_load(d, &a, &w, &out, &error) == NOVA_ERROR_UNSUPPORTED, "a row larger than a binding was taken");
    d->caps.max_range = range;
    arena_free(&a);
}

/* ---- Multiplications ---- */

typedef struct product {
    random_weight r[2];
    vk_weight     w[2];
    vk_matmul     m;
    guarded       x, y, xq, bias[2];
    float        *host_x, *host_y, *host_bias[2];
    int8_t       *host_q;
    float        *host_d;
    uint32_t      n_in, n_out, n_col;
    arena         a;
} product;

static float *floats_of(size_t n) {
    float *p = (float *)calloc(n ? n : 1, sizeof *p);
    if (!p) exit(2);
    return p;
}

static void product_inputs(product *p, vk_device *d, float massive) {
    uint32_t ld_x = p->m.ld_x, ld_y = p->m.ld_y, n_col = p->n_col;
    size_t   groups = (size_t)n_col * ld_x / 32;
    p->host_x = floats_of((size_t)n_col * ld_x);
    p->host_y = floats_of((size_t)n_col * ld_y);
    p->host_q = (int8_t *)calloc(32 * groups, 1);
    p->host_d = floats_of(2 * groups);
    float *scales = floats_of(groups);
    for (uint32_t c = 0; c < n_col; c++) {
        for (uint32_t i = 0; i < p->n_in; i++) p->host_x[(size_t)c * ld_x + i] = test_uniform();
        p->host_x[(size_t)c * ld_x + test_below(p->n_in)] += massive;
        for (uint32_t i = 0; i < ld_y; i++) p->host_y[(size_t)c * ld_y + i] = i < p->n_out ? test_uniform() * 3 : 0;
    }
    input_quantise(CPU_PLAIN, p->host_x, 32 * groups, p->host_q, scales);
    for (size_t g = 0; g < groups; g++) {
        int sum = 0;
        for (size_t i = 0; i < 32; i++) sum += p->host_q[32 * g + i];
        p->host_d[2 * g]     = scales[g];
        p->host_d[2 * g + 1] = scales[g] * (float)sum;
    }
    free(scales);
    p->x  = guarded_take(d, (uint64_t)n_col * ld_x * 4);
    p->y  = guarded_take(d, (uint64_t)n_col * ld_y * 4);
    p->xq = guarded_take(d, 40 * groups);
    MUST(vk_write(d, &p->x.s, 0, p->host_x, p->x.s.size, error));
    MUST(vk_write(d, &p->y.s, 0, p->host_y, p->y.s.size, error));
    MUST(vk_write(d, &p->xq.s, 0, p->host_q, 32 * groups, error));
    MUST(vk_write(d, &p->xq.s, 32 * groups, p->host_d, 8 * groups, error));
    for (int i = 0; i < 2; i++) {
        p->host_bias[i] = floats_of(p->n_out);
        for (uint32_t k = 0; k < p->n_out; k++) p->host_bias[i][k] = test_uniform();
        p->bias[i] = guarded_take(d, p->n_out * 4);
        MUST(vk_write(d, &p->bias[i].s, 0, p->host_bias[i], p->bias[i].s.size, error));
    }
}

static void product_open(product *p, vk_device *d, uint32_t type, uint32_t type1, uint32_t n_in, uint32_t n_out,
                         uint32_t n_col, op_epilogue epilogue, uint32_t biased, float size, float massive) {
    memset(p, 0, sizeof *p);
    arena_init(&p->a, &d->h);
    p->n_in = n_in, p->n_out = n_out, p->n_col = n_col;
    for (int i = 0; i < (epilogue == EPILOGUE_GLU ? 2 : 1); i++) {
        p->r[i] = random_weight_open(i ? type1 : type, n_in, n_out, size);
        MUST(vk_weight_load(d, &p->a, &p->r[i].w, &p->w[i], error));
        p->m.w[i] = &p->w[i];
    }
    p->m.n_col    = n_col;
    p->m.ld_x     = (n_in + 31) / 32 * 32 + 32 * test_below(2);
    p->m.ld_y     = (n_out + 31) / 32 * 32 + 32 * test_below(2);
    p->m.epilogue = epilogue;
    p->m.act      = (activation)(1 + test_below(5));
    p->m.barrier  = true;
    product_inputs(p, d, massive);
    p->m.x = p->x.s, p->m.y = p->y.s, p->m.xq = p->xq.s;
    p->m.xq_scales = n_col * p->m.ld_x / 4;
    for (int i = 0; i < 2; i++)
        if (biased >> i & 1) p->m.bias[i] = p->bias[i].s;
}

static void product_close(product *p) {
    for (int i = 0; i < 2; i++) random_weight_close(&p->r[i]), free(p->host_bias[i]);
    free(p->host_x);
    free(p->host_y);
    free(p->host_q);
    free(p->host_d);
    arena_free(&p->a);
}

/* The sum, and the sum of its magnitudes. */
static double reference(const product *p, int which, uint32_t c, uint32_t row, bool quantised, double *size) {
    const float *w = p->r[which].floats + (size_t)row * p->n_in;
    double       sum = 0;
    *size = 0;
    for (uint32_t i = 0; i < p->n_in; i++) {
        size_t at = (size_t)c * p->m.ld_x + i;
        double x  = quantised ? (double)p->host_d[at / 32 * 2] * p->host_q[at] : (double)p->host_x[at];
        sum += x * (double)w[i];
        *size += fabs(x * (double)w[i]);
    }
    if (p->m.bias[which].size) sum += (double)p->host_bias[which][row], *size += fabs((double)p->host_bias[which][row]);
    return sum;
}

static double act_of(activation act, double x) {
    switch (act) {
    case ACT_SILU:     return x / (1 + exp(-x));
    case ACT_GELU:     return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case ACT_GELU_ERF: return 0.5 * x * erfc(-x * 0.70710678118654752);
    case ACT_RELU:     return x > 0 ? x : 0;
    case ACT_RELU_SQR: return x > 0 ? x * x : 0;
    default:           return x;
    }
}

/* What may be wrong: `tolerance` of the sums' magnitudes, through the epilogue. */
static double expected(const product *p, uint32_t c, uint32_t row, bool quantised, double tolerance, double *error) {
    double size, size1, r0 = reference(p, 0, c, row, quantised, &size), e0 = size * tolerance;
    double before = (double)p->host_y[(size_t)c * p->m.ld_y + row];
    if (p->m.epilogue == EPILOGUE_ADD) r0 += before, e0 += fabs(before) * 1e-7;
    *error = e0;
    if (p->m.epilogue == EPILOGUE_NONE || p->m.epilogue == EPILOGUE_ADD) return r0;
    double slope = p->m.act == ACT_RELU_SQR ? 2 * fabs(r0) + e0 : 1.2;
    double a     = act_of(p->m.act, r0);
    *error = e0 * slope + fabs(a) * 2e-6 + 2e-7;
    if (p->m.epilogue == EPILOGUE_ACT) return a;
    double r1 = reference(p, 1, c, row, quantised, &size1), e1 = size1 * tolerance;
    *error = *error * (fabs(r1) + e1) + fabs(a) * e1;
    return a * r1;
}

static double worst;   /* of all errors, as a share of what was allowed */

static void product_check(product *p, vk_device *d, bool quantised, const char *what) {
    float   *y = floats_of((size_t)p->n_col * p->m.ld_y);
    uint32_t wrong = 0, pads = 0;
    double   share = 0;
    MUST(vk_read(d, &p->y.s, 0, y, p->y.s.size, error));
    for (uint32_t c = 0; c < p->n_col; c++)
        for (uint32_t r = 0; r < p->m.ld_y; r++) {
            size_t at = (size_t)c * p->m.ld_y + r;
            double error, want;
            if (r >= p->n_out) {
                pads += y[at] != p->host_y[at];
                continue;
            }
            want = expected(p, c, r, quantised, quantised ? 4e-6 : 1e-6, &error);
            error += 1e-37;   /* tiny results may be flushed */
            double off = fabs((double)y[at] - want);
            if (!(off <= error)) wrong++;
            if (off / error > share) share = off / error;
        }
    CHECK(wrong == 0, "%s %s %u x %u, %u columns, epilogue %d act %d bias %d: %u wrong, by up to %g of what is allowed",
          what, type_of(p->r[0].w.type)->name, p->n_in, p->n_out, p->n_col, (int)p->m.epilogue, (int)p->m.act,
          (p->m.bias[0].size != 0) + 2 * (p->m.bias[1].size != 0), wrong, share);
    CHECK(pads == 0, "%s %s: %u pads written", what, type_of(p->r[0].w.type)->name, pads);
    bool whole = guarded_whole(d, &p->x) && guarded_whole(d, &p->y) && guarded_whole(d, &p->xq);
    CHECK(whole, "%s: a guard was written", what);
    if (share > worst) worst = share;
    MUST(vk_write(d, &p->y.s, 0, p->host_y, p->y.s.size, error));
    free(y);
}

static void product_run(product *p, vk_device *d, const vk_matvec_shape *s, const char *what) {
    vk_list list;
    vk_list_init(&list, &d->h);
    if (s) vk_matvec_add_as(&list, &p->m, s);
    else vk_matvec_add(d, &list, &p->m);
    MUST(vk_run_list(d, list.at, list.n, error));
    bool quantised = list.at[0].kernel == KERNEL_MATVEC_DOT_SG;
    vk_list_free(&list);
    product_check(p, d, quantised, what);
}

/* Every way to cut the work that the device can go. */
static const struct {
    const char *name;
    vk_kernel   kernel;
    uint32_t    lanes_log, rows, stage_lanes;
} ways[] = {
    {"a row a lane", KERNEL_MATVEC, 0, 1, 0},
    {"shared", KERNEL_MATVEC, 3, 1, 0},
    {"shared, staged", KERNEL_MATVEC, 4, 2, 2},
    {"subgroup", KERNEL_MATVEC_SG, 2, 2, 0},
    {"subgroup, staged", KERNEL_MATVEC_SG, 3, 1, 2},   /* not on subgroups of 4 */
    {"subgroup, staged", KERNEL_MATVEC_SG, 1, 1, 8},
    {"dot, a row a lane", KERNEL_MATVEC_DOT_SG, 0, 1, 0},
    {"dot", KERNEL_MATVEC_DOT_SG, 2, 2, 0},
};

/* Where compiling a shader takes its time (found by the first one), a format goes two of the ways only, each way
 * several formats; NOVA_TEST_ALL: all of them everywhere. */
static bool slow_compiler;

static bool way_taken(size_t way, uint32_t turn) {
    if (!slow_compiler || getenv("NOVA_TEST_ALL")) return true;
    return way < 6 ? (way + turn) % 6 == 0 : (way + turn) % 2 == 0;
}

static bool way_shape(const vk_device *d, const product *p, size_t way, vk_matvec_shape *s) {
    memset(s, 0, sizeof *s);
    s->kernel    = ways[way].kernel;
    s->lanes_log = ways[way].lanes_log;
    s->rows      = ways[way].rows;
    s->stage     = ways[way].stage_lanes << s->lanes_log;
    s->local     = d->caps.subgroup > 16 ? d->caps.subgroup : 16;
    if (p->n_col > 4 || (p->m.epilogue == EPILOGUE_GLU && p->n_col > 2)) s->rows = 1;
    return vk_matvec_fits(d, &p->m, s);
}

static void test_ways(vk_device *d, uint32_t type, uint32_t turn, uint32_t n_col, op_epilogue epilogue) {
    bool    odd = type_of(type)->block_weights == 1;
    product p;
    product_open(&p, d, type, type, odd ? 1 + test_below(300) : some_width(type, 700), 1 + test_below(90), n_col,
                 epilogue, test_below(4), 1.0f, 0);
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        vk_matvec_shape s;
        if (way_taken(i, turn) && way_shape(d, &p, i, &s)) product_run(&p, d, &s, ways[i].name);
    }
    product_close(&p);
}

/* As this device chooses, and as a GPU would. */
static void test_choice(vk_device *d, uint32_t type, uint32_t n_col, op_epilogue epilogue) {
    VkPhysicalDeviceType kind = d->caps.type;
    uint64_t             dot  = d->caps.dot_fast;
    product p;
    product_open(&p, d, type, type, some_width(type, 700), 1 + test_below(300), n_col, epilogue, 2 + n_col % 2, 1.0f,
                 0);
    product_run(&p, d, NULL, "chosen");
    d->caps.type     = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    d->caps.dot_fast = n_col % 2;
    product_run(&p, d, NULL, "chosen for a GPU");
    d->caps.type     = kind;
    d->caps.dot_fast = (uint32_t)dot;
    product_close(&p);
}

/* More workgroups than one axis takes; rows so long that a sum has a thousand steps. */
static void test_large(vk_device *d) {
    product p;
    vk_matvec_shape s;
    product_open(&p, d, TYPE_Q4_0, TYPE_Q4_0, 32, 70001, 1, EPILOGUE_NONE, 0, 1.0f, 0);
    memset(&s, 0, sizeof s);
    s.kernel = KERNEL_MATVEC, s.lanes_log = 3, s.local = 8, s.rows = 1;
    product_run(&p, d, &s, "many rows");
    product_close(&p);
    product_open(&p, d, TYPE_F16, TYPE_F16, 32768, 5, 2, EPILOGUE_NONE, 0, 1.0f, 0);
    for (uint32_t i = 0; i < 2 * 32768; i++) p.host_x[i] = fabsf(p.host_x[i]);
    for (uint32_t i = 0; i < 5 * 32768; i++) {   /* all of one sign: the sum grows all along */
        p.r[0].floats[i] = fabsf(p.r[0].floats[i]);
        put_half(p.r[0].bytes + 2 * i, p.r[0].floats[i]);
    }
    MUST(vk_weight_load(d, &p.a, &p.r[0].w, &p.w[0], error));
    MUST(vk_write(d, &p.x.s, 0, p.host_x, p.x.s.size, error));
    product_run(&p, d, NULL, "long rows");
    product_close(&p);
}

/* One way, many sizes. */
static void test_sizes(vk_device *d, uint32_t type) {
    for (int i = 0; i < 9; i++) {
        product p;
        product_open(&p, d, type, type, some_width(type, 300), 4 + test_below(i < 4 ? 40 : 300), 1, EPILOGUE_NONE,
                     0, i % 3 == 1 ? 3e-6f : 1.0f, i % 3 == 2 ? 1e5f : 0.0f);
        product_run(&p, d, NULL, i % 3 == 1 ? "subnormal scales" : i % 3 == 2 ? "a massive activation" : "sizes");
        product_close(&p);
    }
}

/* A glu of two formats, and, on a device that must split, of several parts. */
static void test_pair(vk_device *d, uint32_t type1, uint32_t n_col) {
    product p;
    product_open(&p, d, TYPE_Q4_K, type1, 512, 150 + test_below(200), n_col, EPILOGUE_GLU, 1 + test_below(2), 1.0f, 0);
    product_run(&p, d, NULL, "a pair");
    product_close(&p);
}

static void test_products(vk_device *d) {
    clock_t start = clock();
    test_sizes(d, TYPE_F32);
    slow_compiler = clock() - start > CLOCKS_PER_SEC / 3;
    printf("compiling takes %.2f s%s\n", (double)(clock() - start) / CLOCKS_PER_SEC,
           slow_compiler ? ": fewer ways" : "");
    for (uint32_t t = 0; t < COUNT_OF(every_type); t++) {
        test_ways(d, every_type[t], t, 1 + t % 2, (op_epilogue)(t % 4));
        if (t) test_sizes(d, every_type[t]);
    }
    for (uint32_t c = 2; c <= VK_MATVEC_MAX; c++)
        test_choice(d, every_type[(c + 2) % COUNT_OF(every_type)], c, (op_epilogue)(c % 4));
    test_ways(d, TYPE_Q4_0, 1, 3, EPILOGUE_GLU);
    for (uint32_t i = 0; i < 2; i++) test_pair(d, i ? TYPE_Q6_K : TYPE_Q4_K, 1 + i);
    test_large(d);
}

/* A device that must split weights, and one whose memory the host cannot see. */
static void test_split(const host *h, uint64_t max_range, bool staged) {
    vk_device *d = guarded_device(h, 0, max_range, staged);
    if (!d) return;
    for (uint32_t t = 0; t < COUNT_OF(every_type); t++)
        check_layout(d, every_type[t], some_width(every_type[t], 600), 40 + test_below(200));
    if (max_range) test_pair(d, TYPE_Q4_K, 1);
    if (!max_range) test_layouts(d);
    vk_device_close(d);
}

int main(void) {
    host h = host_init(NULL, NULL, NULL, NULL);
    test_begin(20260801);
    vk_device *d = guarded_device(&h, 0, 0, false);
    if (d) {
        printf("%s, subgroup %u\n", d->caps.name, d->caps.subgroup);
        test_layouts(d);
        test_refusals(d);
        test_products(d);
        vk_device_close(d);
        test_split(&h, 65536, false);
        test_split(&h, 0, true);
        printf("worst error: %.3f of what is allowed\n", worst);
    }
    return test_end();
}
#endif
