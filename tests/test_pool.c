/* The worker threads: every index once, barriers that hold and publish, crowds, the host's own pool, faults, rest. */
#include "faults.h"
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

#define MOST 16

static void sleep_ms(unsigned ms) {
#if defined(_WIN32)
    Sleep(ms);
#else
    struct timespec t;
    t.tv_sec  = ms / 1000;
    t.tv_nsec = (long)(ms % 1000) * 1000000;
    nanosleep(&t, NULL);
#endif
}

typedef struct job {
    pool        *p;
    int          rounds;
    int          calls[MOST];      /* written by its own thread alone */
    int          wrong[MOST];
    long         cells[2][MOST];   /* plain memory: only the barriers order it */
    atomic_int32 next, taken[1000];
} job;

/* ---- Tasks ---- */

static void note(void *arg, uint32_t i, uint32_t n) {
    job *j = (job *)arg;
    if (i >= n || n != pool_size(j->p)) return;
    j->calls[i]++;
}

/* Each round every thread sums what all others wrote in the round before. */
static void relay(void *arg, uint32_t i, uint32_t n) {
    job *j = (job *)arg;
    j->cells[0][i] = 1;
    pool_barrier(j->p);
    for (int r = 0; r < j->rounds; r++) {
        long sum = 0;
        for (uint32_t k = 0; k < n; k++) sum += j->cells[r & 1][k];
        if (sum != (long)n * (r + 1)) j->wrong[i]++;
        j->cells[~r & 1][i] = r + 2;
        pool_barrier(j->p);
    }
}

/* Threads that are late by turns, some far beyond the spinning, so that others fall asleep at the barrier. */
static void stagger(void *arg, uint32_t i, uint32_t n) {
    job *j = (job *)arg;
    for (int r = 0; r < 12; r++) {
        if ((uint32_t)r % n == i) sleep_ms(1);
        j->cells[0][i] = r;
        pool_barrier(j->p);
        for (uint32_t k = 0; k < n; k++)
            if (j->cells[0][k] != r) j->wrong[i]++;
        pool_barrier(j->p);
    }
}

static void take(void *arg, uint32_t i, uint32_t n) {
    job *j = (job *)arg;
    (void)i, (void)n;
    for (uint32_t k; (k = pool_take(&j->next)) < COUNT_OF(j->taken);) atomic_add(&j->taken[k], 1);
}

static job *new_job(pool *p, int rounds) {
    job *j = (job *)calloc(1, sizeof *j);
    if (!j) exit(2);
    j->p      = p;
    j->rounds = rounds;
    return j;
}

/* ---- All of it on one pool ---- */

static void exercise(pool *p, uint32_t n, int rounds) {
    job *j = new_job(p, rounds);
    int  wrong = 0, once = 0;
    CHECK(pool_size(p) == n, "%u", pool_size(p));
    for (int i = 0; i < 50; i++) pool_run(p, note, j);
    for (uint32_t i = 0; i < n; i++) wrong += j->calls[i] != 50;
    CHECK(wrong == 0, "%u threads: %d indices were not called once a run", n, wrong);
    pool_run(p, relay, j);
    pool_run(p, stagger, j);
    for (uint32_t i = 0; i < n; i++) wrong += j->wrong[i];
    CHECK(wrong == 0, "%u threads: %d wrong sums behind barriers", n, wrong);
    pool_run(p, take, j);
    for (size_t k = 0; k < COUNT_OF(j->taken); k++) once += atomic_load_relaxed(&j->taken[k]) == 1;
    CHECK(once == (int)COUNT_OF(j->taken), "%d shares were taken once", once);
    free(j);
}

static void test_sizes(void) {
    for (uint32_t n = 0; n <= MOST; n = n < 4 ? n + 1 : n * 2) {
        faults     f;
        pool      *p;
        nova_error e;
        faults_init(&f, 0);
        host h = host_init(faults_alloc, &f, NULL, NULL);
        CHECK(pool_open(&p, &h, n, NULL, NULL, &e) == NOVA_OK, "%s", e.message);
        long calls = f.calls;
        exercise(p, n ? n : 1, n > 4 ? 300 : 1500);
        CHECK(f.calls == calls, "running takes no memory");
        pool_close(p);
        CHECK(faults_end(&f) == 0, "%s", f.first_error);
    }
    pool_close(NULL);
}

/* ---- The host's pool ---- */

typedef struct hosted { nova_task_fn task; void *arg; uint32_t index, n; thread t; } hosted;

static void hosted_call(void *arg) {
    hosted *c = (hosted *)arg;
    c->task(c->arg, c->index, c->n);
}

/* Threads that live for one call: slow, but right. */
static void host_parallel(void *user, nova_task_fn task, void *arg, uint32_t n) {
    hosted c[MOST];
    memset(c, 0, sizeof c);
    ++*(int *)user;
    for (uint32_t i = 0; i < n; i++) {
        c[i].task  = task;
        c[i].arg   = arg;
        c[i].index = i;
        c[i].n     = n;
        if (i && !thread_start(&c[i].t, hosted_call, &c[i])) exit(2);
    }
    hosted_call(&c[0]);
    for (uint32_t i = 1; i < n; i++) thread_join(&c[i].t);
}

static void test_host_parallel(void) {
    host       h = host_init(NULL, NULL, NULL, NULL);
    pool      *p;
    nova_error e;
    int        runs = 0;
    fault_arm("thread", 1);   /* none may be started by the pool */
    CHECK(pool_open(&p, &h, 3, host_parallel, &runs, &e) == NOVA_OK, "%s", e.message);
    CHECK(fault_armed.seen == 0, "the pool started threads of its own");
    fault_arm(NULL, 0);
    exercise(p, 3, 500);
    CHECK(runs == 53, "%d runs", runs);
    pool_close(p);
    CHECK(pool_open(&p, &h, 1, host_parallel, &runs, &e) == NOVA_OK, "%s", e.message);
    exercise(p, 1, 10);
    CHECK(runs == 53, "one thread needs nobody's help");
    pool_close(p);
}

/* ---- Floating-point modes ---- */

static volatile float tiny = 1e-40f, one = 1.0f;

static void keep_tiny(void *arg, uint32_t i, uint32_t n) {
    (void)n;
    ((job *)arg)->calls[i] = tiny * one > 0.0f;
}

static void test_float_modes(void) {
#if defined(NOVA_X86) || defined(NOVA_ARM64)
    host       h = host_init(NULL, NULL, NULL, NULL);
    pool      *p;
    nova_error e;
#if defined(NOVA_X86)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);   /* FTZ, DAZ: threads inherit it, too */
#else
    uint64_t before = fpcr_read();
    fpcr_write(before | (uint64_t)1 << 24);
#endif
    CHECK(pool_open(&p, &h, 3, NULL, NULL, &e) == NOVA_OK, "%s", e.message);
    job *j = new_job(p, 0);
    volatile float flushed_before = tiny * one;
    pool_run(p, keep_tiny, j);
    volatile float flushed_after = tiny * one;
#if defined(NOVA_X86)
    _mm_setcsr(before);
#else
    fpcr_write(before);
#endif
    CHECK(j->calls[0] && j->calls[1] && j->calls[2], "subnormals live in tasks: %d %d %d", j->calls[0], j->calls[1],
          j->calls[2]);
    CHECK(flushed_before == 0.0f && flushed_after == 0.0f, "the caller's mode is put back");
    pool_close(p);
    free(j);
#else
    SKIP("no floating-point modes are known on this processor");
#endif
}

/* ---- Faults ---- */

static void test_faults(void) {
    static const char *const kinds[] = {"thread", "mutex"};
    pool      *p;
    nova_error e;
    faults     f;
    host       h;
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        for (long at = 1;; at++) {
            faults_init(&f, 0);
            h = host_init(faults_alloc, &f, NULL, NULL);
            error_clear(&e);
            fault_arm(kinds[k], at);
            nova_result r   = pool_open(&p, &h, 5, NULL, NULL, &e);
            long        hit = fault_armed.hits;
            fault_arm(NULL, 0);
            CHECK(r == (hit ? NOVA_ERROR_THREAD : NOVA_OK), "%s %ld: %d %s", kinds[k], at, (int)r, e.message);
            CHECK((p == NULL) == (hit != 0) && (e.code != NOVA_OK) == (hit != 0), "%s %ld", kinds[k], at);
            if (p) exercise(p, 5, 20);
            pool_close(p);
            CHECK(faults_end(&f) == 0, "%s", f.first_error);
            CHECK(hit || at == (k == 0 ? 5 : 2), "%s: %ld calls", kinds[k], at);
            if (!hit) break;
        }
    }
    for (long at = 1;; at++) {
        faults_init(&f, at);
        h = host_init(faults_alloc, &f, NULL, NULL);
        nova_result r      = pool_open(&p, &h, 3, NULL, NULL, &e);
        long        failed = f.failed;
        CHECK(r == (failed ? NOVA_ERROR_MEMORY : NOVA_OK), "allocation %ld: %d", at, (int)r);
        pool_close(p);
        CHECK(faults_end(&f) == 0, "%s", f.first_error);
        CHECK(failed || at == 3, "%ld allocations", at);
        if (!failed) break;
    }
}

/* ---- Rest, and what it costs ---- */

/* Nanoseconds of processor time that this process has used. */
static uint64_t used_ns(void) {
#if defined(_WIN32)
    FILETIME made, ended, kernel, user;
    GetProcessTimes(GetCurrentProcess(), &made, &ended, &kernel, &user);
    uint64_t k = (uint64_t)kernel.dwHighDateTime << 32 | kernel.dwLowDateTime;
    uint64_t u = (uint64_t)user.dwHighDateTime << 32 | user.dwLowDateTime;
    return (k + u) * 100;
#else
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

static void test_rest(void) {
    host       h = host_init(NULL, NULL, NULL, NULL);
    pool      *p;
    nova_error e;
    CHECK(pool_open(&p, &h, 4, NULL, NULL, &e) == NOVA_OK, "%s", e.message);
    job *j = new_job(p, 0);
    pool_run(p, note, j);
    sleep_ms(20);
    uint64_t before = used_ns();
    sleep_ms(200);
    uint64_t used = used_ns() - before;
    CHECK(used < 20000000u, "%llu ns of processor time in 0.2 s of rest", (unsigned long long)used);
    pool_run(p, note, j);   /* and they wake up again */
    CHECK(j->calls[3] == 2, "%d", j->calls[3]);
    pool_close(p);
    free(j);
}

/* More threads than cores: barriers must stay far below a time slice of the scheduler each. */
static void test_crowd(void) {
    const int  rounds = 200;
    host       h = host_init(NULL, NULL, NULL, NULL);
    pool      *p;
    nova_error e;
    CHECK(pool_open(&p, &h, MOST, NULL, NULL, &e) == NOVA_OK, "%s", e.message);
    job     *j     = new_job(p, rounds);
    uint64_t start = clock_ns();
    pool_run(p, relay, j);
    double us = (double)(clock_ns() - start) / 1e3 / rounds;
    CHECK(us < 20000, "%.0f us a barrier of %d threads", us, MOST);
    printf("%d threads: %.1f us a barrier\n", MOST, us);
    pool_close(p);
    free(j);
}

static void barriers(void *arg, uint32_t i, uint32_t n) {
    job *j = (job *)arg;
    (void)i, (void)n;
    for (int r = 0; r < j->rounds; r++) pool_barrier(j->p);
}

static void nothing(void *arg, uint32_t i, uint32_t n) { (void)arg, (void)i, (void)n; }

static void print_costs(void) {
    const int  rounds = 5000;
    host       h = host_init(NULL, NULL, NULL, NULL);
    pool      *p;
    nova_error e;
    CHECK(pool_open(&p, &h, 2, NULL, NULL, &e) == NOVA_OK, "%s", e.message);
    job     *j     = new_job(p, rounds);
    uint64_t start = clock_ns();
    for (int i = 0; i < rounds; i++) pool_run(p, nothing, NULL);
    uint64_t run = clock_ns();
    pool_run(p, barriers, j);
    uint64_t end = clock_ns();
    printf("2 threads: %.0f ns a run, %.0f ns a barrier\n", (double)(run - start) / rounds,
           (double)(end - run) / rounds);
    pool_close(p);
    free(j);
}

int main(void) {
    test_begin(20263);
    test_sizes();
    test_host_parallel();
    test_float_modes();
    test_faults();
    test_rest();
    test_crowd();
    print_costs();
    return test_end();
}
