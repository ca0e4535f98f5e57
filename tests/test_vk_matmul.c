/* Multiplications for many columns on a Vulkan device: every path that the device has, every format, tile and epilogue,
 * against sums in double precision; with an argument "bench", their speed. */
#include "vk_guard.h"
#include <time.h>

#ifndef NOVA_NO_VULKAN

/* ---- A problem ---- */

typedef struct problem {
    random_weight r[2];
    vk_weight     w[2];
    vk_matmul     m;
    guarded       x, y, xq, scratch, bias[2];
    float        *host_x, *host_y, *host_q, *host_bias[2];   /* host_q: what xq stands for */
    double       *sums[2][2];                               /* [of x, of what xq stands for][weight] */
    uint32_t      n_in, n_out, n_col;
    arena         a;
} problem;

static void *zeros(size_t n, size_t each) {
    void *p = calloc(n ? n : 1, each);
    if (!p) exit(2);
    return p;
}

static float largest_of(const random_weight *r, uint32_t n) {
    float most = 0;
    for (uint32_t i = 0; i < n; i++) most = fabsf(r->floats[i]) > most ? fabsf(r->floats[i]) : most;
    return most;
}

typedef struct shape {
    uint32_t    type, n_in, n_out, n_col;
    op_epilogue epilogue;
    bool        biased;
    float       size;      /* of the weights */
    float       massive;   /* added to one channel of every column */
} shape;

static void take_inputs(problem *p, vk_device *d, const shape *s) {
    size_t  ld_x = p->m.ld_x, groups = s->n_col * ld_x / 32;
    int8_t *q = (int8_t *)zeros(32 * groups, 1);
    float  *scales = (float *)zeros(groups, sizeof(float)), *pairs = (float *)zeros(2 * groups, sizeof(float));
    p->host_x = (float *)zeros(32 * groups, sizeof(float));
    p->host_q = (float *)zeros(32 * groups, sizeof(float));
    uint32_t channel = test_below(s->n_in);
    for (uint32_t c = 0; c < s->n_col; c++)
        for (uint32_t i = 0; i < s->n_in; i++)
            p->host_x[c * ld_x + i] = test_uniform() + (i == channel ? s->massive * (1 + test_uniform() / 2) : 0);
    input_quantise(CPU_PLAIN, p->host_x, 32 * groups, q, scales);
    for (size_t g = 0; g < groups; g++) {
        int sum = 0;
        for (size_t i = 32 * g; i < 32 * g + 32; i++) sum += q[i], p->host_q[i] = scales[g] * (float)q[i];
        pairs[2 * g] = scales[g], pairs[2 * g + 1] = scales[g] * (float)sum;
    }
    p->x  = guarded_take(d, 128 * groups);
    p->xq = guarded_take(d, 40 * groups);
    MUST(vk_write(d, &p->x.s, 0, p->host_x, p->x.s.size, error));
    MUST(vk_write(d, &p->xq.s, 0, q, 32 * groups, error));
    MUST(vk_write(d, &p->xq.s, 32 * groups, pairs, 8 * groups, error));
    p->m.xq_scales = (uint32_t)(8 * groups);
    free(q);
    free(scales);
    free(pairs);
}

static void take_sums(problem *p) {
    for (int q = 0; q < 2; q++)
        for (int w = 0; w < 2 && p->m.w[w]; w++) {
            const float *x = q ? p->host_q : p->host_x;
            p->sums[q][w] = (double *)zeros((size_t)p->n_col * p->n_out, sizeof(double));
            for (size_t c = 0; c < p->n_col; c++)
                for (size_t r = 0; r < p->n_out; r++) {
                    double sum = p->m.bias[w].size ? (double)p->host_bias[w][r] : 0;
                    const float *column = x + c * p->m.ld_x, *row = p->r[w].floats + r * p->n_in;
                    for (size_t i = 0; i < p->n_in; i++) sum += (double)column[i] * (double)row[i];
                    p->sums[q][w][c * p->n_out + r] = sum;
                }
        }
}

static void problem_open(problem *p, vk_device *d, const shape *s) {
    memset(p, 0, sizeof *p);
    arena_init(&p->a, &d->h);
    p->n_in = s->n_in, p->n_out = s->n_out, p->n_col = s->n_col;
    p->m.n_col    = s->n_col;
    p->m.ld_x     = (s->n_in + 31) / 32 * 32 + 32 * test_below(2);
    p->m.ld_y     = (s->n_out + 31) / 32 * 32 + 32 * test_below(2);
    p->m.epilogue = s->epilogue;
    p->m.act      = (activation)(1 + s->type % 5);
    p->m.barrier  = true;
    for (int i = 0; i < 2; i++) {
        p->host_bias[i] = (float *)zeros(s->n_out, sizeof(float));
        p->bias[i]      = guarded_take(d, s->n_out * 4);
        for (uint32_t k = 0; k < s->n_out; k++) p->host_bias[i][k] = test_uniform() * s->size * 4;
        MUST(vk_write(d, &p->bias[i].s, 0, p->host_bias[i], p->bias[i].s.size, error));
        if (s->biased) p->m.bias[i] = p->bias[i].s;
    }
    for (int i = 0; i < (s->epilogue == EPILOGUE_GLU ? 2 : 1); i++) {
        p->r[i] = random_weight_open(s->type, s->n_in, s->n_out, s->size);
        MUST(vk_weight_load(d, &p->a, &p->r[i].w, &p->w[i], error));
        CHECK(p->w[i].largest * 1.00001f >= largest_of(&p->r[i], s->n_in * s->n_out) / 2, "%s: %g is not the largest",
              type_of(s->type)->name, (double)p->w[i].largest);
        p->m.w[i] = &p->w[i];
    }
    take_inputs(p, d, s);
    take_sums(p);
    p->host_y = (float *)zeros((size_t)s->n_col * p->m.ld_y, sizeof(float));
    for (uint32_t c = 0; c < s->n_col; c++)
        for (uint32_t r = 0; r < s->n_out; r++) p->host_y[c * p->m.ld_y + r] = test_uniform() * s->size * 8;
    p->y = guarded_take(d, (uint64_t)s->n_col * p->m.ld_y * 4);
    p->m.x = p->x.s, p->m.y = p->y.s, p->m.xq = p->xq.s;
    if (vk_matmul_scratch(d, p->m.ld_x, s->n_col)) {
        p->scratch   = guarded_take(d, vk_matmul_scratch(d, p->m.ld_x, s->n_col));
        p->m.scratch = p->scratch.s;
    }
}

static void problem_close(problem *p) {
    for (int i = 0; i < 2; i++) {
        random_weight_close(&p->r[i]);
        free(p->host_bias[i]);
        free(p->sums[0][i]);
        free(p->sums[1][i]);
    }
    free(p->host_x);
    free(p->host_y);
    free(p->host_q);
    arena_free(&p->a);
}

/* ---- Checks ---- */

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

static double expected(const problem *p, bool quantised, uint32_t c, uint32_t r) {
    size_t at = (size_t)c * p->n_out + r;
    double r0 = p->sums[quantised][0][at], y = (double)p->host_y[(size_t)c * p->m.ld_y + r];
    switch (p->m.epilogue) {
    case EPILOGUE_ADD: return r0 + y;
    case EPILOGUE_ACT: return act_of(p->m.act, r0);
    case EPILOGUE_GLU: return act_of(p->m.act, r0) * p->sums[quantised][1][at];
    default:           return r0;
    }
}

/* Mean square errors that a path may have, as a share of the result's. Paths over quantised activations are held
 * against exact sums over those. */
static const double allowed[VK_PATH_COUNT] = {1e-11, 1e-5, 1e-11, 1e-5, 1e-11};
static double       worst[VK_PATH_COUNT];

static void check_result(problem *p, vk_device *d, vk_path path, const char *what) {
    bool     quantised = path == VK_PATH_DOT || path == VK_PATH_MATRIX_S8;
    float   *y = (float *)zeros((size_t)p->n_col * p->m.ld_y, sizeof(float));
    uint32_t pads = 0;
    double   off = 0, all = 0;
    MUST(vk_read(d, &p->y.s, 0, y, p->y.s.size, error));
    for (uint32_t c = 0; c < p->n_col; c++)
        for (uint32_t r = 0; r < p->m.ld_y; r++) {
            float have = y[(size_t)c * p->m.ld_y + r];
            if (r < p->n_out) {
                double want = expected(p, quantised, c, r);
                off += ((double)have - want) * ((double)have - want), all += want * want;
            } else if (have != 0) {
                pads++;
            }
        }
    double share = all > 0 ? off / all : off;
    if (!(share <= worst[path])) worst[path] = share;
    CHECK(share <= allowed[path], "%s, %s, %s %u x %u, %u columns, epilogue %d act %d bias %d: error %g", what,
          vk_path_name(path), type_of(p->r[0].w.type)->name, p->n_in, p->n_out, p->n_col, (int)p->m.epilogue,
          (int)p->m.act, p->m.bias[0].size != 0, share);
    CHECK(pads == 0, "%s, %s: %u pads written", what, vk_path_name(path), pads);
    bool whole = guarded_whole(d, &p->x) && guarded_whole(d, &p->y) && guarded_whole(d, &p->xq) &&
                 guarded_whole(d, &p->bias[0]) && guarded_whole(d, &p->bias[1]);
    if (p->scratch.s.size) whole = whole && guarded_whole(d, &p->scratch);
    CHECK(whole, "%s, %s: a guard was written", what, vk_path_name(path));
    free(y);
}

static void run_list(problem *p, vk_device *d, vk_list *list, vk_path path, const char *what) {
    MUST(vk_write(d, &p->y.s, 0, p->host_y, p->y.s.size, error));
    MUST(vk_run_list(d, list->at, list->n, error));
    vk_list_free(list);
    check_result(p, d, path, what);
}

static void run_path(problem *p, vk_device *d, vk_path path, const char *what) {
    vk_list list;
    if (!vk_matmul_can(d, &p->m, path)) return;
    p->m.path = 1 + (uint32_t)path;
    vk_list_init(&list, &d->h);
    vk_matmul_add(d, &list, &p->m);
    run_list(p, d, &list, path, what);
}

static void run_paths(vk_device *d, const shape *s, const char *what) {
    problem p;
    problem_open(&p, d, s);
    for (int path = 0; path < VK_PATH_COUNT; path++) run_path(&p, d, (vk_path)path, what);
    problem_close(&p);
}

static uint32_t some_width(uint32_t type, uint32_t most) {
    uint32_t block = type_of(type)->block_weights;
    return block * (1 + test_below(most < block ? 1 : most / block));
}

static shape some_shape(uint32_t type, uint32_t most, op_epilogue epilogue) {
    shape s;
    s.type     = type;
    s.n_in     = some_width(type, most);
    s.n_out    = 1 + test_below(most);
    s.n_col    = 9 + test_below(most - 8);
    s.epilogue = epilogue;
    s.biased   = test_below(2) != 0;
    s.size     = 1;
    s.massive  = 0;
    return s;
}

/* An epilogue a format, with bias or not, so that there is one pipeline a format and path. */
static shape format_shape(uint32_t t, uint32_t from, uint32_t most) {
    static const op_epilogue epilogues[] = {EPILOGUE_NONE, EPILOGUE_GLU, EPILOGUE_ADD, EPILOGUE_ACT};
    shape s  = some_shape(every_type[t], most, epilogues[(t + from) % 4]);
    s.biased = (t + from) % 3 == 0;
    return s;
}

/* Odd sizes, and numbers that bite. */
static void test_formats(vk_device *d, uint32_t from) {
    for (uint32_t t = 0; t < COUNT_OF(every_type); t++) {
        shape s = format_shape(t, from, 300);
        run_paths(d, &s, "sizes");
        s         = format_shape(t, from, 100);
        s.massive = 1e5f;
        run_paths(d, &s, "a massive channel");
        s      = format_shape(t, from, 100);
        s.size = 3e-6f;
        run_paths(d, &s, "subnormal scales");
    }
}

static void test_sizes(vk_device *d, uint32_t from) {
    static const uint32_t sizes[] = {1, 31, 32, 33, 63, 65, 127, 129, 257};
    for (uint32_t i = 0; i < 12; i++) {
        shape s = format_shape(i % COUNT_OF(every_type), from, 128);
        s.n_out = sizes[test_below(COUNT_OF(sizes))];
        s.n_col = 9 + sizes[test_below(COUNT_OF(sizes))] % 129;
        run_paths(d, &s, "sizes at edges");
    }
}

static vk_tile matrix_tile_of(const uint32_t from[4], uint32_t subgroup) {
    vk_tile t;
    t.rows = from[0], t.each_rows = from[2];
    t.cols = from[1], t.each_cols = from[3];
    t.local = t.rows / t.each_rows * (t.cols / t.each_cols) * subgroup;
    t.stage = 1 + test_below(2), t.loop = from[0] > 16;
    return t;
}

static vk_tile rows_tile_of(const uint32_t from[4], uint32_t subgroup, bool glu) {
    vk_tile t;
    t.local = subgroup * (1 + test_below(2)), t.stage = from[2];
    t.each_rows = from[0], t.cols = t.each_cols = from[1];
    t.rows = t.local * t.each_rows * (glu ? 2 : 1);
    t.loop = from[3] != 0;
    return t;
}

/* Tiles that this device would not choose, and loops as on a GPU; a stage that the groups do not fill. */
static void test_tiles(vk_device *d) {
    static const uint32_t rows[][4]     = {{1, 4, 1, 0}, {2, 8, 2, 0}, {1, 16, 3, 0}, {1, 32, 1, 1}};
    static const uint32_t matrices[][4] = {{16, 16, 16, 8}, {64, 32, 16, 16}, {32, 64, 32, 16}};
    static const uint32_t types[]       = {TYPE_F16, TYPE_Q4_0, TYPE_Q5_1, TYPE_Q8_0, TYPE_Q6_K};
    shape   s = some_shape(types[test_below(COUNT_OF(types))], 200, test_below(2) ? EPILOGUE_NONE : EPILOGUE_GLU);
    problem p;
    s.n_in = s.type == TYPE_Q6_K ? 256 : 224;
    problem_open(&p, d, &s);
    for (int path = 0; path < VK_PATH_COUNT; path++) {
        bool     matrix = path == VK_PATH_MATRIX_F16 || path == VK_PATH_MATRIX_S8;
        uint32_t n      = matrix ? COUNT_OF(matrices) : COUNT_OF(rows), first = test_below(n);
        for (uint32_t k = 0; k < 2; k++) {   /* two of them a run, since each is a pipeline */
            uint32_t i = (first + k) % n, subgroup = matrix_subgroup(d);
            bool     glu = p.m.w[1] != NULL;
            vk_tile  t = matrix ? matrix_tile_of(matrices[i], subgroup) : rows_tile_of(rows[i], subgroup, glu);
            vk_list  list;
            char     what[64];
            snprintf(what, sizeof what, "tile %u x %u, stage %u", t.rows, t.cols, t.stage);
            vk_list_init(&list, &d->h);
            if (vk_matmul_add_as(d, &list, &p.m, (vk_path)path, &t)) run_list(&p, d, &list, (vk_path)path, what);
        }
    }
    problem_close(&p);
}

/* Weights in several bindings; gate and up of two formats; activations packed once for two. */
static void test_parts(const host *h) {
    vk_device *d = guarded_device(h, 0, 32768, false);
    if (!d) return;
    for (int i = 0; i < 2; i++) {
        shape s = some_shape(i ? TYPE_Q4_K : TYPE_F16, 40, i ? EPILOGUE_GLU : EPILOGUE_ADD);
        s.n_in = 256, s.n_out = 300, s.n_col = 17;
        problem p;
        problem_open(&p, d, &s);
        CHECK(p.w[0].n_parts > 1, "the weight is one part");
        for (int path = 0; path < VK_PATH_COUNT; path++) run_path(&p, d, (vk_path)path, "parts");
        problem_close(&p);
    }
    vk_device_close(d);
}

static void test_two_formats(vk_device *d) {
    shape   s = some_shape(TYPE_Q4_K, 70, EPILOGUE_GLU);
    problem p;
    problem_open(&p, d, &s);
    random_weight_close(&p.r[1]);
    p.r[1] = random_weight_open(TYPE_Q6_K, s.n_in, s.n_out, 1);
    MUST(vk_weight_load(d, &p.a, &p.r[1].w, &p.w[1], error));
    for (int q = 0; q < 2; q++) free(p.sums[q][0]), free(p.sums[q][1]);
    take_sums(&p);
    for (int path = 0; path < VK_PATH_COUNT; path++) {
        run_path(&p, d, (vk_path)path, "two formats");
        p.m.packed = true;
        p.m.epilogue = EPILOGUE_NONE;
        if (path == VK_PATH_MATRIX_F16 || path == VK_PATH_F16) run_path(&p, d, (vk_path)path, "packed before");
        p.m.packed = false;
        p.m.epilogue = EPILOGUE_GLU;
    }
    problem_close(&p);
}

/* ---- Speed ---- */

/* Seconds, and what all threads computed in them: on a device that is this CPU, others may have taken the rest. */
static double now(void) { return (double)clock_ns() * 1e-9; }
static double computed(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void bench(vk_device *d, const shape *s, uint32_t repeats) {
    problem p;
    double  work = 2e-9 * s->n_in * s->n_out * s->n_col * (s->epilogue == EPILOGUE_GLU ? 2 : 1);
    problem_open(&p, d, s);
    for (int path = 0; path < VK_PATH_COUNT; path++) {
        vk_list list;
        double  best = 1e9, least = 1e9, first = 0;
        if (!vk_matmul_can(d, &p.m, (vk_path)path)) continue;
        p.m.path = 1 + (uint32_t)path;
        vk_list_init(&list, &d->h);
        vk_matmul_add(d, &list, &p.m);
        for (uint32_t i = 0; i <= repeats; i++) {
            double start = now(), cpu = computed();
            MUST(vk_run_list(d, list.at, list.n, error));
            double took = now() - start, cpu_took = computed() - cpu;
            if (i == 0) first = cpu_took;
            else best = took < best ? took : best, least = cpu_took < least ? cpu_took : least;
        }
        printf("%-5s %5u x %5u, %4u columns%s, %-10s %8.3f ms %8.2f GFLOP/s, %.2f a CPU second; compiled in %.2f s\n",
               type_of(s->type)->name, s->n_in, s->n_out, s->n_col, s->epilogue == EPILOGUE_GLU ? " glu" : "",
               vk_path_name((vk_path)path), best * 1e3, work / best, work / least, first);
        vk_list_free(&list);
    }
    problem_close(&p);
}

static void bench_all(vk_device *d) {
    static const shape shapes[] = {
        {TYPE_Q4_0, 576, 1536, 128, EPILOGUE_NONE, false, 1, 0},
        {TYPE_Q4_0, 576, 1536, 128, EPILOGUE_GLU, false, 1, 0},
        {TYPE_Q4_0, 1536, 576, 128, EPILOGUE_ADD, false, 1, 0},
        {TYPE_Q4_0, 576, 192, 128, EPILOGUE_NONE, false, 1, 0},
        {TYPE_Q8_0, 576, 1536, 128, EPILOGUE_NONE, false, 1, 0},
        {TYPE_Q4_K, 768, 1536, 128, EPILOGUE_NONE, false, 1, 0},
        {TYPE_Q6_K, 768, 1536, 128, EPILOGUE_NONE, false, 1, 0},
        {TYPE_F16, 576, 1536, 128, EPILOGUE_NONE, false, 1, 0},
    };
    for (uint32_t i = 0; i < COUNT_OF(shapes); i++) bench(d, &shapes[i], 5);
}

int main(int argc, char **argv) {
    (void)argv;
    host h = host_init(NULL, NULL, NULL, NULL);
    test_begin(argc > 1 ? 1 : 20261);
    vk_device *d = guarded_device(&h, 0, 0, false);
    if (!d) return test_end();
    printf("%s: paths", d->caps.name);
    for (int path = 0; path < VK_PATH_COUNT; path++)
        if (vk_matmul_paths(d) >> path & 1) printf(" %s,", vk_path_name((vk_path)path));
    printf("\n");
    if (argc > 1) {
        bench_all(d);
        vk_device_close(d);
        return 0;
    }
    uint32_t from = test_below(12);
    test_formats(d, from);
    test_sizes(d, from);
    test_tiles(d);
    test_two_formats(d);
    vk_device_close(d);
    test_parts(&h);
    for (int path = 0; path < VK_PATH_COUNT; path++)
        printf("%s: error at most %.2g\n", vk_path_name((vk_path)path), worst[path]);
    return test_end();
}
#endif
