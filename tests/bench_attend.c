/* Speed of the CPU's attention on one thread: prompts as GFLOP/s against the processor's own peak of float
 * multiply-adds, generation as GB/s of keys and values against plain reading. Work is timed in pieces of about a
 * millisecond, and the best of several times of each piece counts, so that other work on the machine disturbs little.
 *
 *   bench_attend [plain|avx2|avx512]     default: the best level */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#define REPEAT 9

static double seconds(uint64_t since) { return (double)(clock_ns() - since) * 1e-9; }

static uint8_t *taken[64];   /* to be given back when a measurement is done */
static size_t   n_taken;

static void *take(size_t bytes) {
    uint8_t *p = (uint8_t *)malloc(bytes + 64);
    if (!p || n_taken == COUNT_OF(taken)) exit(2);
    taken[n_taken++] = p;
    memset(p, 0, bytes + 64);
    return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static void give_all(void) {
    while (n_taken > 0) free(taken[--n_taken]);
}

/* ---- The machine's own limits ---- */

#ifdef NOVA_X86
NOVA_TARGET_AVX512 static float peak_loop_avx512(uint32_t n) {
    __m512 a[12], b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(0.001f);
    ATTEND_UNROLL for (int k = 0; k < 8; k++) a[k] = _mm512_set1_ps((float)k);
    for (uint32_t i = 0; i < n; i++) ATTEND_UNROLL for (int k = 0; k < 8; k++) a[k] = _mm512_fmadd_ps(a[k], b, c);
    for (int k = 1; k < 8; k++) a[0] = _mm512_add_ps(a[0], a[k]);
    return _mm512_cvtss_f32(a[0]);
}
NOVA_TARGET_AVX2 static float peak_loop_avx2(uint32_t n) {
    __m256 a[12], b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.001f);
    ATTEND_UNROLL for (int k = 0; k < 8; k++) a[k] = _mm256_set1_ps((float)k);
    for (uint32_t i = 0; i < n; i++) ATTEND_UNROLL for (int k = 0; k < 8; k++) a[k] = _mm256_fmadd_ps(a[k], b, c);
    for (int k = 1; k < 8; k++) a[0] = _mm256_add_ps(a[0], a[k]);
    return _mm256_cvtss_f32(a[0]);
}
#endif

static volatile float    keep_float;
static volatile uint64_t keep_u64;

static double peak_gflops(cpu_level level) {
    double best = 0;
    for (int r = 0; r < 4 * REPEAT; r++) {
        uint32_t n = 200000, lanes = level == CPU_AVX512 ? 16 : 8;
        uint64_t t = clock_ns();
#ifdef NOVA_X86
        if (level == CPU_AVX512) keep_float = peak_loop_avx512(n);
        if (level == CPU_AVX2) keep_float = peak_loop_avx2(n);
#endif
        double g = 2.0 * 8 * lanes * n / seconds(t) * 1e-9;
        if (level != CPU_PLAIN && g > best) best = g;
    }
    return best;
}

static uint64_t read_all(const uint8_t *p, size_t bytes) {
    uint64_t sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    for (size_t i = 0; i + 64 <= bytes; i += 64)
        for (size_t k = 0; k < 8; k++) sum[k] += load_u64(p + i + 8 * k);
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* ---- Attention ---- */

typedef struct cache {
    attend_shape shape;
    uint32_t     n_pages;
    uint8_t     *k, *v;
} cache;

static float some_float(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * (1.0f / 2147483648.0f);
}

static void cache_fill(cache *c, uint32_t head_dim, uint32_t type, uint32_t n_pages) {
    float    x[256];
    uint64_t state = 1;
    memset(c, 0, sizeof *c);
    c->shape.head_dim_k = c->shape.head_dim_v = head_dim;
    c->shape.type_k = c->shape.type_v = type;
    c->shape.scale = 1.0f / sqrtf((float)head_dim);
    c->n_pages = n_pages;
    c->k = (uint8_t *)take(n_pages * attend_k_page_bytes(&c->shape));
    c->v = (uint8_t *)take(n_pages * attend_v_page_bytes(&c->shape));
    for (uint32_t t = 0; t < n_pages * KV_PAGE; t++) {
        for (uint32_t d = 0; d < head_dim; d++) x[d] = some_float(&state);
        attend_store(CPU_PLAIN, &c->shape, c->k + t / KV_PAGE * attend_k_page_bytes(&c->shape),
                     c->v + t / KV_PAGE * attend_v_page_bytes(&c->shape), t % KV_PAGE, x, x);
    }
}

typedef struct block {
    const float  *q[128];
    attend_state  states[128];
    uint32_t      first[128], last[128];
    float        *queries, *acc;
    void         *scratch;
} block;

static void block_fill(block *b, const cache *c, uint32_t n_q) {
    uint32_t n     = c->shape.head_dim_k;
    uint64_t state = 7;
    b->queries = (float *)take(n_q * n * sizeof(float));
    b->acc     = (float *)take(n_q * n * sizeof(float));
    b->scratch = take(attend_scratch_bytes(&c->shape, n_q));
    for (uint32_t i = 0; i < n_q * n; i++) b->queries[i] = 4 * some_float(&state);
    for (uint32_t i = 0; i < n_q; i++) b->q[i] = b->queries + (size_t)i * n;
}

/* Pages begin .. end for queries at positions from, from + 1, ... */
static void block_pages(cpu_level level, block *b, const cache *c, uint32_t n_q, uint32_t from, uint32_t begin,
                        uint32_t end) {
    for (uint32_t page = begin; page < end; page++) {
        for (uint32_t i = 0; i < n_q; i++) {
            uint32_t seen = from + i + 1, base = page * KV_PAGE;
            b->first[i] = 0;
            b->last[i]  = seen <= base ? 0 : (uint32_t)size_min(seen - base, KV_PAGE);
        }
        attend_page(level, &c->shape, n_q, b->q, b->states, b->first, b->last,
                    c->k + page * attend_k_page_bytes(&c->shape),
                    c->v + page * attend_v_page_bytes(&c->shape), b->scratch);
    }
}

static void block_begin(block *b, uint32_t n, uint32_t n_q) {
    for (uint32_t i = 0; i < n_q; i++) attend_begin(&b->states[i], b->acc + (size_t)i * n, n);
}

/* 512 queries, the last of n_keys tokens; the work counted is what is under the causal edge. */
static void bench_prompt(cpu_level level, double peak, uint32_t head_dim, uint32_t type, uint32_t n_keys,
                         uint32_t n_q) {
    cache    c;
    block    b;
    double   sum = 0;
    uint32_t n = 512;
    cache_fill(&c, head_dim, type, n_keys / KV_PAGE);
    block_fill(&b, &c, n_q);
    double pairs = (double)n * (n_keys - n) + (double)n * (n + 1) / 2;
    for (uint32_t i = 0; i < n; i += n_q) {
        double best = 1e9;
        for (int r = 0; r < REPEAT; r++) {
            uint64_t t = clock_ns();
            block_begin(&b, head_dim, n_q);
            block_pages(level, &b, &c, n_q, n_keys - n + i, 0, (n_keys - n + i + n_q + KV_PAGE - 1) / KV_PAGE);
            for (uint32_t k = 0; k < n_q; k++) attend_end(&b.states[k], b.states[k].acc, head_dim);
            double s = seconds(t);
            if (s < best) best = s;
        }
        sum += best;
    }
    double best = pairs * 4 * head_dim / sum * 1e-9;
    printf("prompt      %s head_dim %3u  512 x %4u  by %3u: %6.1f GFLOP/s", type == TYPE_F16 ? "F16" : "F32", head_dim,
           n_keys, n_q, best);
    if (peak > 0) printf("  %.0f%% of the peak", 100 * best / peak);
    printf("\n");
    give_all();
}

/* Keys and values in pieces of 8 MiB, by attention or plainly. */
static double stream_gbs(cpu_level level, block *b, const cache *c, uint32_t n_q, bool plainly) {
    size_t   page = attend_k_page_bytes(&c->shape);
    uint32_t piece = (uint32_t)(((size_t)4 << 20) / page), n = c->n_pages / piece;
    double   best[64], sum = 0;
    for (uint32_t k = 0; k < n; k++) best[k] = 1e9;
    for (int r = 0; r < REPEAT; r++) {
        block_begin(b, c->shape.head_dim_v, n_q);
        for (uint32_t k = 0; k < n; k++) {
            uint64_t t = clock_ns();
            if (!plainly) block_pages(level, b, c, n_q, c->n_pages * KV_PAGE, k * piece, (k + 1) * piece);
            else
                keep_u64 = read_all(c->k + k * piece * page, piece * page)
                         + read_all(c->v + k * piece * page, piece * page);
            double s = seconds(t);
            if (s < best[k]) best[k] = s;
        }
    }
    for (uint32_t k = 0; k < n; k++) sum += best[k];
    return 2.0 * n * piece * (double)page / sum * 1e-9;
}

static void bench_generate(cpu_level level, uint32_t head_dim, uint32_t type, uint32_t n_q) {
    cache c;
    block b;
    uint32_t token = 2 * head_dim * (type == TYPE_F16 ? 2 : 4);   /* bytes */
    cache_fill(&c, head_dim, type, ((uint32_t)128 << 20) / (KV_PAGE * token));
    block_fill(&b, &c, n_q);
    double speed = stream_gbs(level, &b, &c, n_q, false), plainly = stream_gbs(level, &b, &c, n_q, true);
    printf("generation  %s head_dim %3u  %2u queries a KV head: %6.1f GB/s; plain reading %.1f\n",
           type == TYPE_F16 ? "F16" : "F32", head_dim, n_q, speed, plainly);
    give_all();
}

int main(int argc, char **argv) {
    static const char *const names[CPU_LEVELS] = { "plain", "avx2", "avx512" };
    cpu_level level = cpu_level_of(cpu_features());
    for (int l = 0; l < (int)level && argc > 1; l++)
        if (strcmp(argv[1], names[l]) == 0) level = (cpu_level)l;
    float_mode mode = float_mode_enter();
    double     peak = peak_gflops(level);
    printf("level %s, float multiply-add peak %.1f GFLOP/s\n", names[level], peak);
    static const uint32_t dims[] = { 64, 128 }, rows[] = { 1, 2, 3, 4, 6, 8, 12, 16 };
    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (uint32_t n_keys = 512; n_keys <= 4096; n_keys *= 8)
            bench_prompt(level, peak, dims[i], TYPE_F16, n_keys, 64);
    bench_prompt(level, peak, 128, TYPE_F32, 4096, 64);
    bench_prompt(level, peak, 80, TYPE_F16, 4096, 64);
    bench_prompt(level, peak, 96, TYPE_F16, 4096, 64);
    bench_prompt(level, peak, 128, TYPE_F16, 4096, 16);
    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (size_t k = 0; k < COUNT_OF(rows); k++) bench_generate(level, dims[i], TYPE_F16, rows[k]);
    bench_generate(level, 128, TYPE_F32, 4);
    float_mode_leave(mode);
    return 0;
}
