/* How fast is the matmul for many columns? Measures the processor's peak first, then every type's share of it.
 *
 *     bench_wide [-c] [-l LEVEL] [TYPE ...]     level 0, 1, 2; by default the best of the processor, and all types
 *
 * Every number is the best of some runs. -c counts a thread's own time on its core, where the system tells it, for
 * machines that have other work to do; what others do to the caches counts all the same. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#define REPEATS     7
#define MAX_THREADS 2

typedef struct shape { uint32_t n_in, n_out, n_col; } shape;
static const shape SHAPES[] = { { 4096, 4096, 512 }, { 2048, 8192, 512 }, { 576, 1536, 512 }, { 1536, 576, 128 } };

static bool own_time;

static double seconds(void) {
#ifdef CLOCK_THREAD_CPUTIME_ID
    struct timespec t;
    if (own_time && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
#endif
    return (double)clock_ns() * 1e-9;
}

/* ---- Peaks: twelve independent chains of one instruction, nothing but registers ---- */

#if defined(NOVA_X86) && defined(__GNUC__)
#define TWELVE(before, after)                                                                                     \
    before "0" after before "1" after before "2" after before "3" after before "4" after before "5" after         \
    before "6" after before "7" after before "8" after before "9" after before "10" after before "11" after
#define CLOBBERS \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15"
#define LOOPS 1000000

/* Operations a second, in Gop/s, of instructions that do `operations` each on registers of the kind `r`. */
#define PEAK(name, target, r, begin, chain, operations)                                   \
    target static double name(void) {                                                     \
        uint32_t v = 0x3c3c3c3cu; /* 0.0115 as a float, 60 as a byte */                   \
        __asm__ volatile("vmovd %0, %%xmm15\nvpbroadcastd %%xmm15, %%" r "15\n" begin : : "r"(v) : CLOBBERS); \
        double t = seconds();                                                             \
        for (int i = 0; i < LOOPS; i++) __asm__ volatile(chain : : : CLOBBERS);           \
        return 12.0 * (operations) * LOOPS * 1e-9 / (seconds() - t);                      \
    }
PEAK(peak_int8_avx512, NOVA_TARGET_AVX512, "zmm", TWELVE("vmovdqa64 %%zmm15, %%zmm", "\n"),
     TWELVE("vpdpbusd %%zmm15, %%zmm15, %%zmm", "\n"), 128)
PEAK(peak_float_avx512, NOVA_TARGET_AVX512, "zmm", TWELVE("vmovdqa64 %%zmm15, %%zmm", "\n"),
     TWELVE("vfmadd231ps %%zmm15, %%zmm15, %%zmm", "\n"), 32)
/* vpmaddubsw, whose products somebody must add */
PEAK(peak_int8_avx2, NOVA_TARGET_AVX2, "ymm", TWELVE("vmovdqa %%ymm15, %%ymm", "\n"),
     TWELVE("vpmaddubsw %%ymm15, %%ymm15, %%ymm14\nvpaddw %%ymm14, %%ymm15, %%ymm", "\n"), 64)
PEAK(peak_float_avx2, NOVA_TARGET_AVX2, "ymm", TWELVE("vmovdqa %%ymm15, %%ymm", "\n"),
     TWELVE("vfmadd231ps %%ymm15, %%ymm15, %%ymm", "\n"), 16)
static double (*const PEAKS[CPU_LEVELS][2])(void) = {
    { NULL, NULL }, { peak_float_avx2, peak_int8_avx2 }, { peak_float_avx512, peak_int8_avx512 }
};
#else
static double (*const PEAKS[CPU_LEVELS][2])(void) = { { NULL } };
#endif

static double peak(cpu_level level, uint32_t form) {
    double best = 0;
    for (int i = 0; i < 20 && PEAKS[level][form]; i++) {
        double p = PEAKS[level][form]();
        best = p > best ? p : best;
    }
    return best;
}

/* ---- A matmul on some threads ---- */

typedef struct job {
    cpu_level      level;
    const weight  *w;
    const uint8_t *input;
    size_t         n_col;
    float         *out;
    uint32_t       begin, end;
    void          *scratch;
    atomic_int32  *gate;      /* threads that are not ready yet */
    double         seconds;
} job;

static void job_run(void *arg) {
    job *j = (job *)arg;
    atomic_add(j->gate, -1);
    while (atomic_load_acquire(j->gate) > 0) cpu_pause();
    double t = seconds();
    wide_matmul(j->level, j->w, j->input, j->n_col, NULL, j->begin, j->end, j->out, j->w->n_out, j->scratch);
    j->seconds = seconds() - t;
}

static void *aligned(size_t size) {
    char *p = (char *)malloc(size + 64);
    if (!p) exit(1);
    return p + (64 - (uintptr_t)p % 64) % 64;   /* the process frees it */
}

static double matmul_seconds(cpu_level level, const weight *w, const uint8_t *input, size_t n_col, float *out,
                             uint32_t n) {
    uint32_t unit = wide_panel_rows(level, w->type, w->n_in), units = (w->n_out + unit - 1) / unit;
    static void *scratch[MAX_THREADS];
    double best = 1e9;
    for (uint32_t i = 0; i < n; i++)
        if (!scratch[i]) scratch[i] = aligned((size_t)4 << 20);
    for (int k = 0; k < REPEATS; k++) {
        thread       threads[MAX_THREADS];
        job          jobs[MAX_THREADS];
        atomic_int32 gate;
        atomic_store_release(&gate, (int32_t)n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t begin = units * i / n * unit, end = (uint32_t)size_min(w->n_out, units * (i + 1) / n * unit);
            job      j     = { level, w, input, n_col, out, begin, end, scratch[i], &gate, 0 };
            jobs[i] = j;
            if (i && !thread_start(&threads[i], job_run, &jobs[i])) exit(1);
        }
        job_run(&jobs[0]);
        double slowest = jobs[0].seconds;
        for (uint32_t i = 1; i < n; i++) {
            thread_join(&threads[i]);
            slowest = jobs[i].seconds > slowest ? jobs[i].seconds : slowest;
        }
        best = slowest < best ? slowest : best;
    }
    return best;
}

/* Any bytes, but where halves or floats may lie ones of ordinary size: the processor is slow with subnormals. */
static uint8_t *random_weights(uint32_t type, size_t bytes) {
    uint32_t block = type_of(type)->block_bytes, high = type == TYPE_Q6_K ? 209 : block <= 4 ? block - 1 : 1;
    bool     two   = type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K;
    uint8_t *p     = (uint8_t *)aligned(bytes);
    uint64_t z     = 1;
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)((z = z * 6364136223846793005u + 1442695040888963407u) >> 56);
    for (size_t i = 0; i < bytes; i += block) {
        p[i + high] = 0x2c;
        if (two) p[i + 3] = 0x2c;
    }
    return p;
}

static void measure_type(cpu_level level, uint32_t type, const double *peaks) {
    printf("%-5s", type_of(type)->name);
    for (size_t s = 0; s < COUNT_OF(SHAPES); s++) {
        const shape *z    = &SHAPES[s];
        uint32_t     form = wide_form(type);
        weight       w    = { type, z->n_in, z->n_out, type_row_bytes(type, z->n_in), NULL };
        w.data = random_weights(type, w.row_bytes * w.n_out);
        float   *x     = (float *)aligned(sizeof(float) * z->n_in * z->n_col);
        float   *out   = (float *)aligned(sizeof(float) * z->n_out * z->n_col);
        uint8_t *input = (uint8_t *)aligned(wide_input_bytes(level, form, z->n_in, z->n_col));
        for (size_t i = 0; i < (size_t)z->n_in * z->n_col; i++) x[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
        double prepare = 1e9;
        for (int i = 0; i < 3; i++) {
            double t = seconds();
            wide_prepare(level, form, x, z->n_in, NULL, z->n_in, z->n_col, 0, wide_tiles(level, form, z->n_col), input);
            t = seconds() - t;
            prepare = t < prepare ? t : prepare;
        }
        double operations = 2e-9 * z->n_in * z->n_out * (double)z->n_col;
        for (uint32_t n = 1; n <= MAX_THREADS; n++) {
            double speed = operations / matmul_seconds(level, &w, input, z->n_col, out, n);
            printf(" %7.1f", speed);
            if (peaks[form] > 0) printf(" %4.1f%%", 100 * speed / (n * peaks[form]));
        }
        printf(" (%4.1f%%)", 100 * prepare * peaks[form] / operations);
        fflush(stdout);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    cpu_level level = cpu_level_of(cpu_features());
    int       i     = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "-c") == 0) own_time = true;
        else if (strcmp(argv[i], "-l") == 0 && i + 1 < argc) level = (cpu_level)atoi(argv[++i]);
    }
    if (level < CPU_PLAIN || level > cpu_level_of(cpu_features())) {
        printf("this processor has no such level\n");
        return 1;
    }
    double peaks[2] = { peak(level, 0), peak(level, 1) };
    printf("level %d, peak of one thread: int8 %.1f, float %.1f Gop/s\n", (int)level, peaks[1], peaks[0]);
    printf("Gop/s and share of the peak with 1 and 2 threads (packing the columns, in the same share of one thread)\n");
    for (size_t s = 0; s < COUNT_OF(SHAPES); s++) {
        char text[48];
        snprintf(text, sizeof text, "%u x %u x %u", SHAPES[s].n_in, SHAPES[s].n_out, SHAPES[s].n_col);
        printf("%s%-37s", s ? "" : "      ", text);
    }
    printf("\n");
    for (uint32_t type = 0; type < TYPE_LIMIT; type++) {
        bool wanted = i >= argc && type_of(type)->name;
        for (int k = i; k < argc; k++) wanted = wanted || type_by_name(argv[k]) == (int)type;
        if (wanted) measure_type(level, type, peaks);
    }
    return 0;
}
