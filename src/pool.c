/* The worker threads: see pool.h. Everything that waits here waits for a counter to change: it looks for some
 * microseconds, gives its time slice away for some more, and then sleeps until the one who changes it wakes it. */
#include "pool.h"

#define POOL_SPIN_NS   20000   /* longer than what threads mostly differ by inside one operation */
#define POOL_CROWD_NS  1000    /* the same with more threads than cores, where the others need the core */
#define POOL_AWAKE_NS  50000   /* spinning and giving the time slice away, together */

typedef struct pool_worker { thread t; pool *p; uint32_t index; } pool_worker;

/* Counters that different threads write at different times lie in cache lines of their own. */
typedef struct pool_counter { atomic_int32 a; char pad[CACHE_LINE - sizeof(atomic_int32)]; } pool_counter;

struct pool {
    pool_counter     runs;      /* goes up with every run, and at the end: what workers wait for */
    pool_counter     done;      /* goes up when the last worker has returned: what pool_run waits for */
    pool_counter     busy;      /* workers that have not returned */
    pool_counter     arrived;   /* threads at the barrier */
    pool_counter     phase;     /* goes up when all have arrived */
    pool_counter     sleepers;
    wait_lock        lock;      /* guards nothing but sleeping and waking */
    nova_task_fn     task;      /* of the current run; NULL: the end */
    void            *arg;
    nova_parallel_fn parallel;
    void            *parallel_user;
    pool_worker     *workers;   /* n - 1 of them */
    uint32_t         n, n_started;
    uint64_t         spin_ns;
    bool             locked;    /* the lock exists */
    void            *block;     /* this struct's own memory, before alignment */
    host             h;
};

/* ---- Waiting for a counter ---- */

/* Waits, awake, until *a is not `old`; false when that took too long. */
static bool pool_spin(const pool *p, const atomic_int32 *a, int32_t old) {
    for (int i = 0; i < 64; i++) {   /* about as long as asking the clock */
        if (atomic_load_acquire(a) != old) return true;
        cpu_pause();
    }
    uint64_t start = clock_ns(), waited = 0;
    while (waited < POOL_AWAKE_NS) {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_acquire(a) != old) return true;
            cpu_pause();
        }
        if (waited >= p->spin_ns) thread_yield();
        waited = clock_ns() - start;
    }
    return false;
}

static void pool_wait(pool *p, atomic_int32 *a, int32_t old) {
    if (pool_spin(p, a, old)) return;
    wait_lock_enter(&p->lock);
    atomic_add(&p->sleepers.a, 1);
    /* This read and the one of `sleepers` in pool_change are sequentially consistent: one of the two sees the other. */
    while (atomic_add(a, 0) == old) wait_lock_sleep(&p->lock);
    atomic_add(&p->sleepers.a, -1);
    wait_lock_leave(&p->lock);
}

static void pool_change(pool *p, atomic_int32 *a) {
    atomic_add(a, 1);
    if (atomic_add(&p->sleepers.a, 0) == 0) return;
    wait_lock_enter(&p->lock);
    wait_lock_wake_all(&p->lock);
    wait_lock_leave(&p->lock);
}

/* ---- Workers ---- */

static void pool_do(pool *p, uint32_t index) {
    float_mode mode = float_mode_enter();
    p->task(p->arg, index, p->n);
    float_mode_leave(mode);
}

static void pool_work(void *arg) {
    pool_worker *w    = (pool_worker *)arg;
    pool        *p    = w->p;
    for (uint32_t runs = 0;; runs++) {
        pool_wait(p, &p->runs.a, (int32_t)runs);
        if (!p->task) return;
        pool_do(p, w->index);
        if (atomic_add(&p->busy.a, -1) == 1) pool_change(p, &p->done.a);
    }
}

static bool pool_start(pool *p) {
    for (uint32_t i = 0; i < p->n - 1; i++) {
        pool_worker *w = &p->workers[i];
        w->p     = p;
        w->index = i + 1;
        if (!thread_start(&w->t, pool_work, w)) return false;
        p->n_started++;
    }
    return true;
}

/* ---- Opening and closing ---- */

static pool *pool_alloc(const host *h) {
    void *block = mem_zalloc(h, sizeof(pool) + CACHE_LINE);
    if (!block) return NULL;
    pool *p  = (pool *)(void *)(((uintptr_t)block + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    p->block = block;
    p->h     = *h;
    return p;
}

static nova_result pool_open(pool **out, const host *h, uint32_t n, nova_parallel_fn parallel, void *parallel_user,
                             nova_error *error) {
    *out = NULL;
    pool *p = pool_alloc(h);
    if (!p) return fail_memory(error, sizeof(pool) + CACHE_LINE, "the worker threads");
    p->n             = n ? n : 1;
    p->parallel      = p->n > 1 ? parallel : NULL;
    p->parallel_user = parallel_user;
    p->spin_ns       = p->n > 1 && p->n > cpu_cores() ? POOL_CROWD_NS : POOL_SPIN_NS;
    p->locked        = p->n > 1 && wait_lock_init(&p->lock);
    nova_result r    = NOVA_OK;
    if (p->n > 1 && !p->locked) r = fail(error, NOVA_ERROR_THREAD, "a lock for the worker threads cannot be made");
    if (r == NOVA_OK && p->n > 1 && !p->parallel) {
        size_t bytes = 0;
        if (size_mul(p->n - 1, sizeof(pool_worker), &bytes)) p->workers = (pool_worker *)mem_zalloc(h, bytes);
        if (!p->workers) r = fail_memory(error, bytes, "the worker threads");
        else if (!pool_start(p))
            r = fail(error, NOVA_ERROR_THREAD, "thread %u of %u cannot be started", p->n_started + 2, p->n);
    }
    if (r == NOVA_OK) *out = p;
    else pool_close(p);
    return r;
}

static void pool_close(pool *p) {
    if (!p) return;
    p->task = NULL;
    if (p->n_started) pool_change(p, &p->runs.a);
    for (uint32_t i = 0; i < p->n_started; i++) thread_join(&p->workers[i].t);
    if (p->locked) wait_lock_free(&p->lock);
    host h = p->h;
    mem_free(&h, p->workers, p->workers ? (p->n - 1) * sizeof(pool_worker) : 0);
    mem_free(&h, p->block, sizeof(pool) + CACHE_LINE);
}

NOVA_UNUSED static uint32_t pool_size(const pool *p) { return p->n; }

/* ---- Running ---- */

/* What the host's threads call. */
static void pool_hosted(void *arg, uint32_t index, uint32_t n) {
    (void)n;
    pool_do((pool *)arg, index);
}

static void pool_run(pool *p, nova_task_fn task, void *arg) {
    p->task = task;
    p->arg  = arg;
    if (p->n == 1) {
        pool_do(p, 0);
    } else if (p->parallel) {
        p->parallel(p->parallel_user, pool_hosted, p, p->n);
    } else {
        int32_t done = atomic_load_relaxed(&p->done.a);
        atomic_store_relaxed(&p->busy.a, (int32_t)(p->n - 1));
        pool_change(p, &p->runs.a);
        pool_do(p, 0);
        pool_wait(p, &p->done.a, done);
    }
}

static void pool_barrier(pool *p) {
    if (p->n == 1) return;
    int32_t phase = atomic_load_relaxed(&p->phase.a);   /* cannot change before this thread has arrived */
    if (atomic_add(&p->arrived.a, 1) != (int32_t)(p->n - 1)) {
        pool_wait(p, &p->phase.a, phase);
        return;
    }
    atomic_store_relaxed(&p->arrived.a, 0);             /* seen by all before `phase` lets them on */
    pool_change(p, &p->phase.a);
}
