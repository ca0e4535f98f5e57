/* The system's floor: atomics, threads, clocks, files, the processor, floating-point modes and rules. */
#include "faults.h"
#define NOVA_TEST_STAYS   /* the functions under "Rules" are compiled as nova.c is, also with -ffast-math */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"
#if defined(__linux__)
#include <dirent.h>
#endif

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

/* ---- Atomics and threads ---- */

#define N_THREADS 4
#define N_ROUNDS  20000

typedef struct shared {
    atomic_int32 sum, gate, taken;
    wait_lock    lock;
    int          turn;     /* guarded by the lock */
    long         plain;    /* guarded by the lock */
    long         payload;  /* published by `gate` */
} shared;

typedef struct seat { shared *s; int index; long got; } seat;

static void test_atomics(void) {
    atomic_int32 a = {5};
    CHECK(atomic_load_acquire(&a) == 5 && atomic_load_relaxed(&a) == 5, "load");
    CHECK(atomic_add(&a, -7) == 5 && atomic_load_relaxed(&a) == -2, "add");
    CHECK(atomic_exchange(&a, INT32_MAX) == -2, "exchange");
    CHECK(atomic_add(&a, 1) == INT32_MAX && atomic_load_relaxed(&a) == INT32_MIN, "wraps");
    atomic_store_release(&a, 1);
    CHECK(atomic_load_acquire(&a) == 1, "store");
    atomic_store_relaxed(&a, 2);
    CHECK(atomic_load_acquire(&a) == 2, "store");
    cpu_pause();
}

static void count_up(void *arg) {
    seat *t = (seat *)arg;
    for (int i = 0; i < N_ROUNDS; i++) {
        atomic_add(&t->s->sum, t->index + 1);
        wait_lock_enter(&t->s->lock);
        t->s->plain++;
        wait_lock_leave(&t->s->lock);
    }
    while (!atomic_load_acquire(&t->s->gate)) thread_yield();
    t->got = t->s->payload;
}

static void test_threads(void) {
    static shared s;
    thread t[N_THREADS];
    seat   seats[N_THREADS];
    int    started = 0;
    memset(&s, 0, sizeof s);
    CHECK(wait_lock_init(&s.lock), "lock");
    for (int i = 0; i < N_THREADS; i++) {
        seats[i].s     = &s;
        seats[i].index = i;
        started += thread_start(&t[i], count_up, &seats[i]);
    }
    CHECK(started == N_THREADS, "%d", started);
    s.payload = 4711;
    atomic_store_release(&s.gate, 1);
    for (int i = 0; i < started; i++) thread_join(&t[i]);
    CHECK(atomic_load_relaxed(&s.sum) == N_ROUNDS * 10, "%d", atomic_load_relaxed(&s.sum));
    CHECK(s.plain == (long)N_THREADS * N_ROUNDS, "%ld", s.plain);
    for (int i = 0; i < started; i++) CHECK(seats[i].got == 4711, "%ld", seats[i].got);
    wait_lock_free(&s.lock);
}

/* Threads take turns by sleeping and waking alone. */
static void take_turns(void *arg) {
    seat *t = (seat *)arg;
    for (int i = 0; i < 500; i++) {
        wait_lock_enter(&t->s->lock);
        while (t->s->turn % N_THREADS != t->index) wait_lock_sleep(&t->s->lock);
        t->s->turn++;
        wait_lock_wake_all(&t->s->lock);
        wait_lock_leave(&t->s->lock);
    }
}

static void test_waiting(void) {
    static shared s;
    thread t[N_THREADS];
    seat   seats[N_THREADS];
    memset(&s, 0, sizeof s);
    CHECK(wait_lock_init(&s.lock), "lock");
    for (int i = 0; i < N_THREADS; i++) {
        seats[i].s     = &s;
        seats[i].index = i;
        CHECK(thread_start(&t[i], take_turns, &seats[i]), "start");
    }
    for (int i = 0; i < N_THREADS; i++) thread_join(&t[i]);
    CHECK(s.turn == 500 * N_THREADS, "%d", s.turn);
    wait_lock_free(&s.lock);
}

static void test_thread_faults(void) {
    thread    t;
    wait_lock l;
    seat      unused;
    memset(&unused, 0, sizeof unused);
    fault_arm("thread", 1);
    CHECK(!thread_start(&t, take_turns, &unused) && fault_armed.hits == 1, "thread");
    fault_arm("mutex", 1);
    CHECK(!wait_lock_init(&l) && fault_armed.hits == 1, "mutex");
    fault_arm(NULL, 0);
}

#if !defined(_WIN32)
static void ask_signals(void *arg) {
    sigset_t *set = (sigset_t *)arg;
    pthread_sigmask(SIG_SETMASK, NULL, set);
}

static void test_signals_stay_with_the_host(void) {
    thread   t;
    sigset_t inside, before, after;
    sigemptyset(&inside);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK(thread_start(&t, ask_signals, &inside), "start");
    thread_join(&t);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK(sigismember(&inside, SIGINT) == 1 && sigismember(&inside, SIGALRM) == 1, "the host's are blocked in workers");
    CHECK(sigismember(&inside, SIGSEGV) == 0 && sigismember(&inside, SIGBUS) == 0, "faults are not");
    CHECK(sigismember(&before, SIGINT) == sigismember(&after, SIGINT), "the caller's mask is as it was");
}
#endif

/* ---- Time ---- */

static void test_clocks(void) {
    uint64_t last = clock_ns(), start = last;
    bool     back = false;
    for (int i = 0; i < 10000; i++) {
        uint64_t now = clock_ns();
        back = back || now < last;
        last = now;
    }
    CHECK(!back, "the clock went back");
    sleep_ms(20);
    uint64_t slept = clock_ns() - start;
    CHECK(slept >= 15000000u && slept < 20000000000u, "slept %llu ns", (unsigned long long)slept);
    int64_t now = (int64_t)time(NULL), ours = clock_unix();
    CHECK(ours - now >= 0 && ours - now <= 2, "unix time");
    static const int64_t times[] = {0, 86399, 951782400, 1709164800, 2000000000};
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        time_t    t = (time_t)times[i];
        struct tm tm, *want = localtime(&t);
        CHECK(want && clock_local(times[i], &tm), "local time of %lld", (long long)times[i]);
        CHECK(want && tm.tm_year == want->tm_year && tm.tm_yday == want->tm_yday && tm.tm_hour == want->tm_hour &&
              tm.tm_min == want->tm_min && tm.tm_sec == want->tm_sec && tm.tm_wday == want->tm_wday, "of %lld",
                  (long long)times[i]);
    }
    struct tm tm;
    CHECK(!clock_local(INT64_MAX, &tm) && !clock_local(INT64_MIN, &tm), "years that no calendar has");
}

/* ---- Files ---- */

static char folder[64];   /* this run's own */

#if defined(_WIN32)
/* Absolute and with the prefix that allows any length. */
static void wide_path(const char *path, WCHAR *out, size_t size) {
    WCHAR plain[2048];
    MultiByteToWideChar(CP_UTF8, 0, path, -1, plain, 2048);
    memcpy(out, L"\\\\?\\", 8);
    GetFullPathNameW(plain, (DWORD)size - 4, out + 4, NULL);
}
static bool make_folder(const char *path) {
    WCHAR w[2048];
    wide_path(path, w, 2048);
    return CreateDirectoryW(w, NULL) != 0;
}
static void remove_path(const char *path) {
    WCHAR w[2048];
    wide_path(path, w, 2048);
    if (!DeleteFileW(w)) RemoveDirectoryW(w);
}
static bool write_file(const char *path, const void *p, size_t n) {
    WCHAR w[2048];
    DWORD got = 0;
    wide_path(path, w, 2048);
    HANDLE f = CreateFileW(w, GENERIC_WRITE, 0, NULL, CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL, NULL);
    if (f == INVALID_HANDLE_VALUE) return false;
    bool ok = WriteFile(f, p, (DWORD)n, &got, NULL) && got == n;
    CloseHandle(f);
    return ok;
}
#else
static bool make_folder(const char *path) { return mkdir(path, 0700) == 0; }
static void remove_path(const char *path) { (void)remove(path); }
static bool write_file(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(p, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}
#endif

static const char *in_folder(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Files this process has open, where the system tells. */
static int open_files(void) {
    int n = 0;
#if defined(__linux__)
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    while (readdir(d)) n++;
    closedir(d);
#endif
    return n;
}

typedef struct opening {
    faults           f;
    host             h;
    file_map         m;
    nova_error       error;
    nova_result      result;
    nova_progress_fn progress;
    void            *user;
} opening;

static void open_path(opening *o, const char *path, bool to_memory, long fail_at) {
    faults_init(&o->f, fail_at);
    o->h = host_init(faults_alloc, &o->f, NULL, NULL);
    error_clear(&o->error);
    o->result = file_open(&o->m, &o->h, path, to_memory, o->progress, o->user, &o->error);
}

static void open_end(opening *o) {
    file_close(&o->m, &o->h);
    CHECK(!o->m.data && !o->m.size && !o->m.block, "closed");
    file_close(&o->m, &o->h);   /* twice is harmless */
    CHECK(faults_end(&o->f) == 0, "%s", o->f.first_error);
}

static void expect_refused(const char *path, nova_result code, const char *words) {
    for (int to_memory = 0; to_memory < 2; to_memory++) {
        opening o;
        memset(&o, 0, sizeof o);
        open_path(&o, path, to_memory != 0, 0);
        CHECK(o.result == code && o.error.code == code, "%.60s: %d %s", path, (int)o.result, o.error.message);
        CHECK(strstr(o.error.message, words) != NULL, "%.60s: %s", path, o.error.message);
        size_t n = strlen(path), shown = n < 100 ? n : 100;
        CHECK(strstr(o.error.message, path + n - shown) != NULL, "names the path's end: %s", o.error.message);
        CHECK(!o.m.data && !o.m.size && !o.m.block, "nothing left");
        CHECK(file_open(&o.m, &o.h, path, to_memory != 0, NULL, NULL, NULL) == code, "without an error struct");
        open_end(&o);
    }
}

static void expect_content(const char *path, const void *p, size_t n) {
    for (int to_memory = 0; to_memory < 2; to_memory++) {
        opening o;
        memset(&o, 0, sizeof o);
        open_path(&o, path, to_memory != 0, 0);
        CHECK(o.result == NOVA_OK, "%s", o.error.message);
        CHECK(o.m.size == n && o.m.data && memcmp(o.m.data, p, n) == 0, "content of %s", path);
        CHECK((o.m.block != NULL) == (to_memory != 0) && (uintptr_t)o.m.data % CACHE_LINE == 0, "place");
        open_end(&o);
    }
}

static void test_files(void) {
    static const char text[] = "nova reads this";
    int before = open_files();
    CHECK(write_file(in_folder("text"), text, sizeof text), "write");
    expect_content(in_folder("text"), text, sizeof text);
    CHECK(write_file(in_folder("\xc3\xbc-\xe6\x97\xa5\xe6\x9c\xac-\xf0\x9f\x98\x80"), text, 4), "write");
    expect_content(in_folder("\xc3\xbc-\xe6\x97\xa5\xe6\x9c\xac-\xf0\x9f\x98\x80"), text, 4);
    remove_path(in_folder("\xc3\xbc-\xe6\x97\xa5\xe6\x9c\xac-\xf0\x9f\x98\x80"));
    expect_refused(in_folder("missing"), NOVA_ERROR_FILE, "no such file");
    expect_refused(in_folder("no/where"), NOVA_ERROR_FILE, "no such file");
    expect_refused(in_folder("text/below"), NOVA_ERROR_FILE, "no such file");
    expect_refused("", NOVA_ERROR_FILE, "");
    expect_refused(folder, NOVA_ERROR_FILE, "is a directory");
    CHECK(write_file(in_folder("empty"), text, 0), "write");
    expect_refused(in_folder("empty"), NOVA_ERROR_FILE, "is empty");
    remove_path(in_folder("empty"));
    remove_path(in_folder("text"));
    CHECK(open_files() == before, "files left open: %d, before %d", open_files(), before);
}

/* Paths beyond 260 characters, the old limit of Windows. */
static void test_long_paths(void) {
    char   path[1024];
    int    depth = 0;
    size_t ends[8];
    snprintf(path, sizeof path, "%s", folder);
    for (; depth < 8; depth++) {
        size_t n = strlen(path);
        ends[depth] = n;
        memset(path + n, 'd', 61);
        path[n]      = '/';
        path[n + 61] = 0;
        if (!make_folder(path)) break;
    }
    CHECK(depth == 8, "folders: %d", depth);
    strcat(path, "/file");
    CHECK(write_file(path, "long", 4), "write");
    expect_content(path, "long", 4);
    remove_path(path);
    expect_refused(path, NOVA_ERROR_FILE, "no such file");
    *strrchr(path, '/') = 0;
    for (; depth > 0; depth--) {
        remove_path(path);
        path[ends[depth - 1]] = 0;
    }
}

#if !defined(_WIN32)
/* What is no file must be told at once: a FIFO would block for ever. */
static void test_special_files(void) {
    static char endless[6000];
    CHECK(mkfifo(in_folder("fifo"), 0600) == 0, "mkfifo");
    expect_refused(in_folder("fifo"), NOVA_ERROR_FILE, "is not a regular file");
    remove_path(in_folder("fifo"));
    expect_refused("/dev/null", NOVA_ERROR_FILE, "is not a regular file");
    CHECK(symlink("loop", in_folder("loop")) == 0, "symlink");
    expect_refused(in_folder("loop"), NOVA_ERROR_FILE, "symbolic links");
    remove_path(in_folder("loop"));
    memset(endless, 'x', sizeof endless - 1);
    expect_refused(endless, NOVA_ERROR_FILE, "too long");
    uid_t me = geteuid();
    CHECK(write_file(in_folder("secret"), "x", 1) && chmod(in_folder("secret"), 0) == 0, "chmod");
    if (me == 0 && seteuid(65534) != 0) {
        SKIP("root may read everything, and cannot become somebody else here");
    } else {
        expect_refused(in_folder("secret"), NOVA_ERROR_FILE, "no permission");
        CHECK(seteuid(me) == 0, "back to who we were");
    }
    remove_path(in_folder("secret"));
}
#endif

typedef struct watcher { uint64_t seen[8], total; int n, cancel_at; const char *path; long new_size; } watcher;

static bool watch(void *user, const char *what, uint64_t done, uint64_t total) {
    watcher *w = (watcher *)user;
    if (w->n < 8) w->seen[w->n] = done;
    w->n++;
    w->total = total;
    CHECK(what && *what, "a word for people");
#if !defined(_WIN32)
    if (w->path && w->n == 1 && truncate(w->path, w->new_size) != 0) return false;
#endif
    return w->n != w->cancel_at;
}

static void test_reading(void) {
    const size_t MIB = (size_t)1 << 20, n = 33 * MIB + 5;
    const char  *path = in_folder("large");
    opening      o;
    watcher      w;
    uint8_t     *p = (uint8_t *)malloc(n);
    if (!p) exit(2);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(i * 131 >> 7);
    memset(&o, 0, sizeof o);
    memset(&w, 0, sizeof w);
    o.progress = watch;
    o.user     = &w;
    CHECK(write_file(path, p, n), "write");
    open_path(&o, path, true, 0);
    CHECK(o.result == NOVA_OK && o.m.size == n && memcmp(o.m.data, p, n) == 0, "%s", o.error.message);
    CHECK(w.n == 3 && w.seen[0] == 16 * MIB && w.seen[1] == 32 * MIB && w.seen[2] == n && w.total == n, "pieces: %d",
          w.n);
    open_end(&o);
    memset(&w, 0, sizeof w);
    w.cancel_at = 2;
    open_path(&o, path, true, 0);
    CHECK(o.result == NOVA_CANCELLED && w.n == 2, "%d: %s", (int)o.result, o.error.message);
    open_end(&o);
#if !defined(_WIN32)   /* where nobody may write a file that is being read */
    memset(&w, 0, sizeof w);
    w.path = path, w.new_size = (long)(n + 1);
    open_path(&o, path, true, 0);
    CHECK(o.result == NOVA_ERROR_FILE && strstr(o.error.message, "became longer"), "%s", o.error.message);
    open_end(&o);
    memset(&w, 0, sizeof w);
    w.path = path, w.new_size = (long)(20 * MIB);
    open_path(&o, path, true, 0);
    CHECK(o.result == NOVA_ERROR_FILE && strstr(o.error.message, "became shorter"), "%s", o.error.message);
    open_end(&o);
#endif
    remove_path(path);
    free(p);
}

static void test_file_faults(void) {
    opening o;
    int     before = open_files();
    long    at;
    memset(&o, 0, sizeof o);
    CHECK(write_file(in_folder("text"), "text", 4), "write");
    fault_arm("map", 1);
    open_path(&o, in_folder("text"), false, 0);
    CHECK(fault_armed.hits == 1 && (o.result == NOVA_ERROR_FILE || o.result == NOVA_ERROR_MEMORY), "%d", (int)o.result);
    open_end(&o);
    for (at = 1;; at++) {
        fault_arm("read", at);
        open_path(&o, in_folder("text"), true, 0);
        CHECK(o.result == (fault_armed.hits ? NOVA_ERROR_FILE : NOVA_OK), "read %ld: %d", at, (int)o.result);
        open_end(&o);
        if (!fault_armed.hits) break;
    }
    CHECK(at > 2, "%ld reads", at);
    fault_arm(NULL, 0);
    for (int to_memory = 0; to_memory < 2; to_memory++) {
        for (at = 1;; at++) {
            open_path(&o, in_folder("text"), to_memory != 0, at);
            long failed = o.f.failed;
            CHECK(o.result == (failed ? NOVA_ERROR_MEMORY : NOVA_OK), "allocation %ld: %d", at, (int)o.result);
            open_end(&o);
            if (!failed) break;
        }
        CHECK(at > to_memory, "%ld allocations", at);
    }
    remove_path(in_folder("text"));
    CHECK(open_files() == before, "files left open: %d, before %d", open_files(), before);
}

/* ---- The processor ---- */

static void test_features(void) {
    uint32_t features = cpu_features();
    CHECK(!(features & NOVA_CPU_AVX512) || (features & NOVA_CPU_AVX2), "AVX-512 comes with AVX2");
    CHECK((features & ~(uint32_t)(NOVA_CPU_AVX2 | NOVA_CPU_AVX512)) == 0, "%x", features);
#if defined(NOVA_X86) && (defined(__GNUC__) || defined(__clang__)) && !defined(_MSC_VER)
    bool avx2   = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    CHECK(avx2 == ((features & NOVA_CPU_AVX2) != 0), "AVX2: the compiler's library says %d", avx2);
    CHECK(avx512 == ((features & NOVA_CPU_AVX512) != 0), "AVX-512: the compiler's library says %d", avx512);
#elif !defined(NOVA_X86)
    CHECK(features == 0, "%x", features);
#endif
    printf("features %u, %u cores\n", features, cpu_cores());
}

static void test_cores(void) {
    uint32_t cores = cpu_cores();
    CHECK(cores >= 1 && cores <= 4096, "%u", cores);
#if defined(__linux__)
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        SKIP("the affinity mask cannot be read here");
        return;
    }
    CHECK(cores <= (uint32_t)CPU_COUNT(&all), "%u cores of %d", cores, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (size_t i = CPU_SETSIZE; i-- > 0 && CPU_COUNT(&one) == 0;)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        SKIP("the affinity mask cannot be set here");
        return;
    }
    CHECK(cpu_cores() == 1, "%u cores in a mask of one", cpu_cores());
    sched_setaffinity(0, sizeof all, &all);
    CHECK(cpu_cores() == cores, "%u", cpu_cores());
#endif
}

/* ---- Floating-point modes: what a host may have set must neither reach nova nor be lost ---- */

#if defined(NOVA_X86)
#define HOSTILE_MODE 1
static uint64_t mode_read(void) { return _mm_getcsr(); }
static void     mode_write(uint64_t v) { _mm_setcsr((unsigned)v); }
/* FTZ, DAZ, rounding up, division by zero traps */
static uint64_t mode_hostile(uint64_t v) { return (v | 0x8040u | 0x4000u) & ~(uint64_t)0x0200u; }
#elif defined(NOVA_ARM64)
#define HOSTILE_MODE 1
static uint64_t mode_read(void) { return fpcr_read(); }
static void     mode_write(uint64_t v) { fpcr_write(v); }
static uint64_t mode_hostile(uint64_t v) { return v | (uint64_t)1 << 24 | (uint64_t)1 << 22; }   /* FZ, rounding up */
#endif

static volatile float tiny = 1e-40f, one = 1.0f, speck = 1e-9f, zero = 0.0f;

static uint32_t bits_of(float f) { return load_u32(&f); }

static void test_float_mode(void) {
#if defined(HOSTILE_MODE)
    uint64_t before = mode_read(), hostile = mode_hostile(before);
    mode_write(hostile);
    volatile float flushed = tiny * one, up = one + speck;
    hostile          = mode_read();   /* with the flags that this has raised */
    float_mode     m = float_mode_enter();
    volatile float kept = tiny * one, nearest = one + speck, infinite = one / zero;
    float_mode_leave(m);
    uint64_t after = mode_read();
    mode_write(before);
    CHECK(bits_of(flushed) == 0 && bits_of(up) == 0x3f800001, "the test's own setting works");
    CHECK(bits_of(kept) == bits_of(tiny) && bits_of(nearest) == 0x3f800000 && bits_of(infinite) == 0x7f800000,
          "%x %x %x", bits_of(kept), bits_of(nearest), bits_of(infinite));   /* bits: the mode here may flush them */
    CHECK(after == hostile, "put back: %llx, was %llx", (unsigned long long)after, (unsigned long long)hostile);
#else
    SKIP("no floating-point modes are known on this processor");
#endif
}

/* ---- Rules: nova.c computes what it says, whatever the host compiles with ---- */

static NOVA_NOINLINE float add_up(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}

static NOVA_NOINLINE float add_up_exactly(const float *x, int n) {   /* Kahan's sum: zero by algebra */
    float sum = 0, lost = 0;
    for (int i = 0; i < n; i++) {
        float y = x[i] - lost, t = sum + y;
        lost = (t - sum) - y;
        sum  = t;
    }
    return sum;
}

static NOVA_NOINLINE int  classify(float x) { return (isnan(x) ? 1 : 0) | (isinf(x) ? 2 : 0) | (x != x ? 4 : 0); }
static NOVA_NOINLINE bool finite_number(float x) { return f32_is_finite(x) && f64_is_finite((double)x) && x - x == 0; }
static NOVA_NOINLINE bool infinite_or_nan(float x) { return !f32_is_finite(x) && !f64_is_finite((double)x) &&
                                                    x - x != 0; }
static NOVA_NOINLINE float plus_zero(float x) { return x + 0.0f; }
static NOVA_NOINLINE float divide(float x, float y) { return x / y; }

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void test_float_rules(void) {
    float x[1001];
    volatile float in_order = 0;
    double exact = 0;
    for (int i = 0; i < 1001; i++) {
        x[i]     = test_uniform() * (i % 7 ? 1.0f : 1e6f);
        in_order = in_order + x[i];
        exact += (double)x[i];
    }
    float nan_bits = float_of(0x7fc00000), infinity_bits = float_of(0x7f800000);
    CHECK(add_up(x, 1001) == in_order, "a sum in order: %.9g, %.9g", (double)add_up(x, 1001), (double)in_order);
    CHECK(fabs((double)add_up_exactly(x, 1001) - exact) <= 1e-7 * fabs(exact), "a compensated sum");
    CHECK(classify(nan_bits) == 5 && classify(infinity_bits) == 2 && classify(one) == 0, "%d %d %d",
          classify(nan_bits), classify(infinity_bits), classify(one));
    CHECK(!finite_number(nan_bits) && !finite_number(infinity_bits) && finite_number(one) && finite_number(FLT_MAX) &&
          finite_number(tiny), "finite");
    CHECK(infinite_or_nan(nan_bits) && infinite_or_nan(infinity_bits) && !infinite_or_nan(-FLT_MAX), "not finite");
    CHECK(bits_of(plus_zero(-zero)) == 0, "-0 + 0 is +0");
    for (uint32_t i = 1; i < 100; i++) {   /* the reciprocal's product is wrong for some of these */
        volatile double q = (double)i / 49.0;
        CHECK(divide((float)i, 49.0f) == (float)q, "%u / 49", i);
    }
}

int main(void) {
    test_begin(20262);
    snprintf(folder, sizeof folder, "build/test_platform_%llx", (unsigned long long)clock_ns());
    test_atomics();
    test_threads();
    test_waiting();
    test_thread_faults();
    test_clocks();
    if (make_folder(folder)) {
        test_files();
        test_long_paths();
        test_reading();
        test_file_faults();
#if !defined(_WIN32)
        test_special_files();
#endif
        remove_path(folder);
    } else {
        CHECK(false, "no folder build/ to write in");
    }
#if !defined(_WIN32)
    test_signals_stay_with_the_host();
#endif
    test_features();
    test_cores();
    test_float_mode();
    test_float_rules();
    return test_end();
}
