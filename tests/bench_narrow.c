/* How fast the narrow matmul streams weights, beside a loop that only reads. A tool, not a test.
 *
 *   cc -O2 -I. tests/bench_narrow.c -o bench_narrow -lm -lpthread -ldl
 *   bench_narrow [-m MIB] [-n N_IN] [-r REPEATS] [-l LEVEL] [TYPE...]
 *
 * For each type: GB/s of weights with 1, 2, 4 and 8 columns, on one thread and on two, from memory (a matrix of MIB)
 * and from cache (one of 1 MiB). Each number is the best of REPEATS rounds, and the rounds of one line alternate, so that
 * other load on the machine hits all alike. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

enum { MAX_THREADS = 2 };

typedef struct bench {
    cpu_level   level;
    weight      w;
    const void *in[NARROW_MAX];
    uint32_t    n_col, n_threads;
    float      *out;
    uint64_t    sink;
} bench;

typedef struct share { bench *b; uint32_t index; uint64_t sink; thread t; } share;

/* Four streams, fetched ahead: the most that one thread gets. */
static void read_rows(share *s, uint32_t begin, uint32_t end) {
    const uint8_t *p      = s->b->w.data + begin * s->b->w.row_bytes;
    size_t         length = (end - begin) * s->b->w.row_bytes / 512 * 128;
    uint64_t       sum    = 0;
    for (size_t i = 0; i < length; i += 128)
        for (size_t stream = 0; stream < 4; stream++) {
            const uint8_t *at = p + stream * length + i;
#ifdef NOVA_X86
            _mm_prefetch((const char *)((uintptr_t)at + 4096), _MM_HINT_T0);
            _mm_prefetch((const char *)((uintptr_t)at + 4160), _MM_HINT_T0);
#endif
            for (int k = 0; k < 128; k += 16) sum += load_u64(at + k);
        }
    s->sink = sum;
}

static void run_share(void *arg) {
    share   *s     = (share *)arg;
    bench   *b     = s->b;
    uint32_t begin = (uint32_t)((uint64_t)b->w.n_out * s->index / b->n_threads);
    uint32_t end   = (uint32_t)((uint64_t)b->w.n_out * (s->index + 1) / b->n_threads);
    if (b->n_col == 0) read_rows(s, begin, end);
    else narrow_matmul(b->level, &b->w, b->in, b->n_col, begin, end, b->out, b->w.n_out);
}

static double run_once(bench *b) {
    share    s[MAX_THREADS];
    uint64_t start = clock_ns();
    for (uint32_t i = 0; i < b->n_threads; i++) s[i].b = b, s[i].index = i, s[i].sink = 0;
    for (uint32_t i = 1; i < b->n_threads; i++)
        if (!thread_start(&s[i].t, run_share, &s[i])) exit(2);
    run_share(&s[0]);
    for (uint32_t i = 1; i < b->n_threads; i++) thread_join(&s[i].t);
    for (uint32_t i = 0; i < b->n_threads; i++) b->sink += s[i].sink;
    return (double)(clock_ns() - start) * 1e-9;
}

/* GB/s. A small matrix is computed many times; a large one by slices of 16 MiB, whose best counts: short enough to run
 * undisturbed now and then. */
static double speed(bench *b) {
    const weight whole = b->w;
    double   best  = 0;
    uint32_t slice = (uint32_t)(((size_t)16 << 20) / whole.row_bytes);
    if (slice > whole.n_out) {
        double bytes = (double)whole.row_bytes * whole.n_out, seconds = 0;
        int    inner = (int)(16e6 / bytes) + 1;
        for (int i = 0; i < inner; i++) seconds += run_once(b);
        return bytes * inner / seconds * 1e-9;
    }
    b->w.n_out = slice;
    for (uint32_t row = 0; row + slice <= whole.n_out; row += slice) {
        b->w.data = whole.data + row * whole.row_bytes;
        double v  = (double)whole.row_bytes * slice / run_once(b) * 1e-9;
        if (v > best) best = v;
    }
    b->w = whole;
    return best;
}

static void bench_line(bench *b, const char *where, int repeats) {
    static const uint32_t columns[] = { 0, 1, 2, 4, 8 };   /* 0: only read */
    double best[COUNT_OF(columns)] = { 0 };
    for (int r = 0; r < repeats; r++)
        for (size_t i = 0; i < COUNT_OF(columns); i++) {
            b->n_col = columns[i];
            double v = speed(b);
            if (v > best[i]) best[i] = v;
        }
    printf("%-5s %s, %u thread%s read %6.2f  columns", type_of(b->w.type)->name, where, b->n_threads,
           b->n_threads > 1 ? "s:" : ": ", best[0]);
    for (size_t i = 1; i < COUNT_OF(columns); i++) printf("  %u: %6.2f", columns[i], best[i]);
    printf("\n");
    fflush(stdout);
}

static void *must(void *p) {
    if (!p) exit(2);
    return p;
}

static void bench_type(uint32_t type, cpu_level level, uint32_t n_in, size_t total, int repeats) {
    const type_layout *info = type_of(type);
    bench b;
    memset(&b, 0, sizeof b);
    b.level       = level;
    b.w.type      = type;
    b.w.n_in      = n_in;
    b.w.row_bytes = type_row_bytes(type, n_in);
    size_t   n_rows = total / b.w.row_bytes;
    uint8_t *data   = (uint8_t *)must(malloc(n_rows * b.w.row_bytes));
    for (size_t i = 0; i < n_rows * b.w.row_bytes; i++) data[i] = (uint8_t)(0x20 + i % 23);
    b.w.data = data;
    b.out    = (float *)must(malloc(n_rows * NARROW_MAX * sizeof(float)));
    memset(b.out, 0, n_rows * NARROW_MAX * sizeof(float));
    float *x = (float *)must(malloc(n_in * sizeof *x));
    for (uint32_t i = 0; i < n_in; i++) x[i] = test_uniform();
    size_t   column = narrow_input_bytes(narrow_form(type), n_in);
    uint8_t *area   = (uint8_t *)must(malloc(NARROW_MAX * column + 64));
    uint8_t *first = (uint8_t *)size_align((size_t)(uintptr_t)area, 64);
    for (uint32_t c = 0; c < NARROW_MAX; c++) {
        uint8_t *p = first + c * column;
        narrow_prepare(level, narrow_form(type), x, n_in, 0, n_in, p);
        b.in[c] = p;
    }
    uint64_t start = clock_ns();
    for (int i = 0; i < 100; i++) narrow_prepare(level, narrow_form(type), x, n_in, 0, n_in, first);
    double prepare = (double)(clock_ns() - start) / 100.0 / n_in;

    for (b.n_threads = 1; b.n_threads <= MAX_THREADS; b.n_threads++) {
        b.w.n_out = (uint32_t)n_rows;
        bench_line(&b, "memory", repeats);
    }
    b.n_threads = 1;
    b.w.n_out   = (uint32_t)(((size_t)1 << 20) / b.w.row_bytes);
    bench_line(&b, "cache", repeats);
    printf("%-5s prepare %.2f ns a weight\n", info->name, prepare);
    free(data);
    free(b.out);
    free(x);
    free(area);
}

int main(int argc, char **argv) {
    size_t    total   = (size_t)1024 << 20;
    uint32_t  n_in    = 4096;
    int       repeats = 7, types = 0;
    cpu_level level   = cpu_level_of(cpu_features());
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "-m")) total = (size_t)strtoul(next, NULL, 10) << 20, i++;
        else if (!strcmp(argv[i], "-n")) n_in = (uint32_t)strtoul(next, NULL, 10), i++;
        else if (!strcmp(argv[i], "-r")) repeats = (int)strtol(next, NULL, 10), i++;
        else if (!strcmp(argv[i], "-l")) level = (cpu_level)strtoul(next, NULL, 10), i++;
        else if (type_by_name(argv[i]) >= 0) {
            bench_type((uint32_t)type_by_name(argv[i]), level, n_in, total, repeats);
            types++;
        }
        else {
            fprintf(stderr, "bench_narrow: unknown argument %s\n", argv[i]);
            return 2;
        }
    }
    for (uint32_t t = 0; t < TYPE_LIMIT && !types; t++)
        if (type_of(t)->name) bench_type(t, level, n_in, total, repeats);
    return 0;
}
