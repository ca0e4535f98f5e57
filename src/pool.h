/* The worker threads of an engine: run one function on all of them at once, with barriers inside. */
#ifndef NOVA_POOL_H
#define NOVA_POOL_H

#include "platform.h"

typedef struct pool pool;

/* n threads, the caller's being number 0. Workers sleep while nothing runs. With `parallel`, the host's threads are
 * used instead and none is started. Errors: THREAD, MEMORY. */
static nova_result pool_open(pool **out, const host *h, uint32_t n, nova_parallel_fn parallel, void *parallel_user,
                             nova_error *error);
static void        pool_close(pool *p);   /* joins the workers; NULL is ignored */
NOVA_UNUSED static uint32_t    pool_size(const pool *p);

/* Runs task(arg, i, n) for i = 0..n-1 at the same time and returns when all have returned. Float modes are set for
 * each (float_mode_enter). Not from inside a task. */
static void pool_run(pool *p, nova_task_fn task, void *arg);

/* Inside a task: waits until all n threads have come here. Spins some microseconds, then sleeps. Everything written
 * before by any of them is visible to all behind it. */
static void pool_barrier(pool *p);

/* Inside a task: shares of work that threads take as they come. pool_take hands out 0, 1, 2, ... of `counter`, which
 * must be zero before the barrier in front. */
NOVA_INLINE uint32_t pool_take(atomic_int32 *counter) { return (uint32_t)atomic_add(counter, 1); }

#endif
