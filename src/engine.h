/* An engine: a compiled program, the executor's memory, the pool of cache pages, the threads. All taken when it opens. */
#ifndef NOVA_ENGINE_H
#define NOVA_ENGINE_H

#include "gpu.h"

/* Everything that a descriptor and its defaults come to. */
typedef struct engine_plan {
    uint32_t  n_ctx, n_sessions, n_batch, n_logits, n_threads;
    uint32_t  n_batch_whole;           /* where GPUs take the whole program */
    uint32_t  type_k, type_v;          /* tensor_type */
    cpu_level level;
} engine_plan;

struct nova_engine {
    host              h;
    const nova_model *model;
    engine_plan       plan;
    arena             a;               /* program and tables */
    program           prog;
    kv_pool           kv;
    cpu_machine       cpu;
    gpu_group        *gpu;             /* NULL: none; runs the program's end, from gpu_first_op on */
    pool             *threads;
    uint8_t          *cache, *scratch; /* as allocated; used from the next multiple of 64 on */
    size_t            cache_bytes, scratch_bytes;
    uint32_t          n_open;          /* sessions */

    /* The pass that is being put together. */
    pass              now;
    int32_t          *ids;             /* [n_batch] */
    pass_run         *runs;            /* [n_sessions] */
    nova_session    **run_sessions;    /* [n_sessions] */
    nova_error        pass_error;      /* why the last pass failed */
};

#endif
