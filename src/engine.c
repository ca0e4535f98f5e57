/* Opening and closing engines: defaults, sizes, memory. See engine.h. */
#include "engine.h"

#define DEFAULT_CONTEXT  4096
#define DEFAULT_BATCH    512
#define DEFAULT_THREADS  16
#define SMALLEST_BATCH   32
#define BATCH_BYTES      ((size_t)14 << 20)   /* that default batches keep the CPU's buffers within */
#define LOGIT_BYTES      ((size_t)6 << 20)
#define MOST_LOGITS      32

/* ---- From a descriptor to numbers ---- */

static const struct { nova_cache_type cache; uint32_t type; } cache_types[] = {
    {NOVA_CACHE_F16, TYPE_F16},
    {NOVA_CACHE_F32, TYPE_F32},
    {NOVA_CACHE_Q8_0, TYPE_Q8_0},
    {NOVA_CACHE_Q4_0, TYPE_Q4_0},
};

static nova_result plan_cache(nova_cache_type cache, uint32_t *type, nova_error *error) {
    for (size_t i = 0; i < COUNT_OF(cache_types); i++)
        if (cache_types[i].cache == cache) {
            *type = cache_types[i].type;
            return NOVA_OK;
        }
    return fail(error, NOVA_ERROR_ARGUMENT, "cache type %d is not known", (int)cache);
}

static nova_result plan_device(const char *device, nova_error *error) {
    if (!device || !strcmp(device, "auto") || !strcmp(device, "cpu") || !strcmp(device, "gpu")) return NOVA_OK;
    if (!strncmp(device, "gpu:", 4)) return NOVA_OK;   /* looked at closely when the devices are known */
    return fail(error, NOVA_ERROR_ARGUMENT, "device '%.48s' is none of auto, cpu, gpu, gpu:N, gpu:N,gpu:N", device);
}

/* Bytes that one more column costs in the executor's buffers. */
static size_t column_bytes(const program *p) {
    size_t floats = 2 * ((size_t)p->ropes[0].n_pairs + p->ropes[1].n_pairs), widest = 0;
    for (int b = 0; b < BUF_LOGITS; b++) {
        floats += p->width[b];
        widest = size_max(widest, p->width[b]);
    }
    return floats * sizeof(float) + widest * 2;   /* and its quantised form */
}

static nova_result engine_plan_make(engine_plan *plan, const nova_model *m, const nova_engine_desc *d, nova_error *error) {
    memset(plan, 0, sizeof *plan);
    if (m->vocab_only) return fail(error, NOVA_ERROR_ARGUMENT, "the model was opened for its vocabulary alone");
    if (d->n_ctx == 1) return fail(error, NOVA_ERROR_ARGUMENT, "a context of 1 token holds no token and its successor: 2 is the least");
    if (d->n_ctx > 1u << 30) return fail(error, NOVA_ERROR_ARGUMENT, "a context of %u tokens is beyond %u", d->n_ctx, 1u << 30);
    if (d->n_sessions > 65536) return fail(error, NOVA_ERROR_ARGUMENT, "%u sessions are beyond 65536", d->n_sessions);
    if (d->n_threads > 1024) return fail(error, NOVA_ERROR_ARGUMENT, "%u threads are beyond 1024", d->n_threads);
    TRY(plan_device(d->device, error));
    TRY(plan_cache(d->cache_k, &plan->type_k, error));
    TRY(plan_cache(d->cache_v, &plan->type_v, error));
    if (m->n_positions && d->n_ctx > m->n_positions)
        return fail(error, NOVA_ERROR_ARGUMENT, "a context of %u tokens, but the model has learned %u positions", d->n_ctx, m->n_positions);
    uint32_t most = m->n_positions ? (uint32_t)size_min(m->n_positions, m->n_ctx_train) : m->n_ctx_train;
    plan->n_ctx      = d->n_ctx ? d->n_ctx : (uint32_t)size_max(2, size_min(most, DEFAULT_CONTEXT));
    plan->n_sessions = d->n_sessions ? d->n_sessions : 1;
    plan->n_threads  = d->n_threads ? d->n_threads : (uint32_t)size_min(cpu_cores(), DEFAULT_THREADS);
    plan->level      = cpu_level_of(cpu_features() & ~d->cpu_without);
    plan->n_logits   = (uint32_t)size_max(1, size_min(MOST_LOGITS, LOGIT_BYTES / sizeof(float) / m->n_vocab));
    return NOVA_OK;
}

static void plan_batch(engine_plan *plan, const nova_engine_desc *d, const program *p) {
    size_t n = d->n_batch, whole = d->n_batch ? d->n_batch : DEFAULT_BATCH, most = (size_t)plan->n_ctx * plan->n_sessions;
    if (n == 0) n = size_max(SMALLEST_BATCH, size_min(DEFAULT_BATCH, BATCH_BYTES / column_bytes(p) / 8 * 8));
    plan->n_batch       = (uint32_t)size_max(size_min(n, most), plan->n_sessions);   /* a column for each session at least */
    plan->n_batch_whole = (uint32_t)size_max(size_min(whole, most), plan->n_sessions);
    plan->n_logits = (uint32_t)size_min(plan->n_logits, plan->n_batch);
}

/* ---- The pieces ---- */

/* Sizes of pages; memory comes later. */
static nova_result cache_measure(nova_engine *e, nova_error *error) {
    const nova_model *m    = e->model;
    kv_pool          *kv   = &e->kv;
    size_t            pages, total = 0, bytes;
    kv->n_layer = m->n_layer;
    kv->layers  = (kv_layer *)arena_zalloc(&e->a, m->n_layer * sizeof(kv_layer));
    if (!kv->layers) return fail_memory(error, m->n_layer * sizeof(kv_layer), "the cache's layers");
    bool fits = size_mul(kv_pages_for(e->plan.n_ctx), e->plan.n_sessions, &pages) && pages < UINT32_MAX;
    for (uint32_t il = 0; fits && il < m->n_layer; il++) {
        kv_layer *l = &kv->layers[il];
        l->n_head_kv        = m->layers[il].n_head_kv;
        l->shape.head_dim_k = m->head_dim_k;
        l->shape.head_dim_v = m->head_dim_v;
        l->shape.type_k     = e->plan.type_k;
        l->shape.type_v     = e->plan.type_v;
        l->shape.scale      = m->attn_scale;
        l->shape.soft_cap   = m->attn_cap;
        l->k_bytes          = attend_k_page_bytes(&l->shape);
        l->v_bytes          = attend_v_page_bytes(&l->shape);
        l->page_bytes       = l->n_head_kv * (l->k_bytes + l->v_bytes);
        fits = size_mul(l->page_bytes, pages, &bytes) && size_add(total, bytes, &total);
    }
    if (!fits || !size_add(total, CACHE_LINE, &total))
        return fail(error, NOVA_ERROR_ARGUMENT, "a cache for %u sessions of %u tokens is beyond this machine's addresses",
                    e->plan.n_sessions, e->plan.n_ctx);
    kv->n_pages  = (uint32_t)pages;
    e->cache_bytes = total;
    return NOVA_OK;
}

static uint8_t *line_aligned(uint8_t *p) { return p + (CACHE_LINE - (uintptr_t)p % CACHE_LINE) % CACHE_LINE; }

static nova_result cache_take(nova_engine *e, nova_error *error) {
    kv_pool *kv = &e->kv;
    e->cache       = (uint8_t *)mem_alloc(&e->h, e->cache_bytes);
    kv->free_pages = (uint32_t *)arena_alloc(&e->a, kv->n_pages * sizeof(uint32_t));
    kv->n_users    = (uint32_t *)arena_zalloc(&e->a, kv->n_pages * sizeof(uint32_t));
    if (!e->cache || !kv->free_pages || !kv->n_users) return fail_memory(error, e->cache_bytes, "the cache");
    uint8_t *at = line_aligned(e->cache);
    for (uint32_t il = 0; il < kv->n_layer; il++) {
        if (gpu_has_layer(e->gpu, &e->prog, il)) continue;
        kv->layers[il].pages = at;
        at += kv->layers[il].page_bytes * kv->n_pages;
    }
    for (uint32_t i = 0; i < kv->n_pages; i++) kv->free_pages[i] = kv->n_pages - 1 - i;   /* page 0 goes first */
    kv->n_free = kv->n_pages;
    return NOVA_OK;
}

/* Where the executor's and the pass's memory lies; with base NULL only how much it is. */
static size_t scratch_layout(nova_engine *e, uint8_t *base) {
    cpu_machine *c = &e->cpu;
    c->level     = e->plan.level;
    c->model     = e->model;
    c->prog      = &e->prog;
    c->kv        = &e->kv;
    c->n_batch   = gpu_first_op(e->gpu, &e->prog) == 0 ? e->plan.n_sessions : e->plan.n_batch;   /* nothing to run: for little */
    c->n_seqs    = e->plan.n_sessions;
    c->n_logits  = e->plan.n_logits;
    c->n_threads = e->plan.n_threads;
    size_t at = cpu_layout(c, base);
    e->ids          = (int32_t *)(void *)carve(base, &at, e->plan.n_batch * sizeof(int32_t));
    e->runs         = (pass_run *)(void *)carve(base, &at, c->n_seqs * sizeof(pass_run));
    e->run_sessions = (nova_session **)(void *)carve(base, &at, c->n_seqs * sizeof(nova_session *));
    return at;
}

/* Everything that needs no memory to speak of: program and sizes. */
static nova_result engine_measure(nova_engine *e, const nova_engine_desc *d, nova_error *error) {
    TRY(engine_plan_make(&e->plan, e->model, d, error));
    TRY(program_build(&e->prog, &e->a, e->model, e->plan.n_ctx, error));
    plan_batch(&e->plan, d, &e->prog);
    return cache_measure(e, error);
}

static nova_result gpus_open(nova_engine *e, const nova_engine_desc *d, bool measure, nova_error *error) {
    gpu_desc g;
    memset(&g, 0, sizeof g);
    g.model     = e->model;
    g.prog      = &e->prog;
    g.kv        = &e->kv;
    g.device    = d->device ? d->device : "auto";
    g.vram      = d->vram_bytes;
    g.n_layers  = d->gpu_layers ? d->gpu_layers : UINT32_MAX;
    g.n_ctx     = e->plan.n_ctx;
    g.n_batch   = e->plan.n_batch;
    g.n_batch_whole = e->plan.n_batch_whole;
    g.measure   = measure;
    g.n_seqs    = e->plan.n_sessions;
    g.n_logits  = e->plan.n_logits;
    g.max_pages = kv_pages_for(e->plan.n_ctx);
    g.without   = d->gpu_without;
    g.force     = d->gpu_force;
    g.statistics = d->gpu_statistics;
    g.vulkan     = d->vulkan;
    g.cache      = d->gpu_cache;
    g.cache_size = d->gpu_cache_size;
    g.progress  = d->progress;
    g.progress_user = d->progress_user;
    return gpu_open(&e->gpu, &e->h, &g, error);
}

/* Gives GPUs their part, and says what is left to the CPU. */
static nova_result engine_place(nova_engine *e, const nova_engine_desc *d, bool measure, nova_error *error) {
    TRY(gpus_open(e, d, measure, error));
    if (e->gpu) e->plan.n_batch = gpu_batch(e->gpu);
    for (uint32_t il = 0; il < e->kv.n_layer; il++)
        if (gpu_has_layer(e->gpu, &e->prog, il)) e->cache_bytes -= e->kv.layers[il].page_bytes * e->kv.n_pages;
    e->scratch_bytes = scratch_layout(e, NULL) + CACHE_LINE;
    return NOVA_OK;
}

static nova_result engine_take(nova_engine *e, const nova_engine_desc *d, nova_error *error) {
    TRY(engine_place(e, d, false, error));
    TRY(cache_take(e, error));
    e->scratch = (uint8_t *)mem_alloc(&e->h, e->scratch_bytes);
    if (!e->scratch) return fail_memory(error, e->scratch_bytes, "the engine's buffers");
    scratch_layout(e, line_aligned(e->scratch));
    TRY(pool_open(&e->threads, &e->h, e->plan.n_threads, d->parallel, d->parallel_user, error));
    e->cpu.threads = e->threads;
    return NOVA_OK;
}

/* ---- The interface ---- */

static const char *const cpu_level_names[CPU_LEVELS] = {"plain", "avx2", "avx512"};

NOVA_API void nova_get_cpu_info(nova_cpu_info *info) {
    info->features = cpu_features();
    info->level    = cpu_level_names[cpu_level_of(info->features)];
    info->n_cores  = cpu_cores();
}

static nova_engine *engine_new(const nova_model *m, const nova_engine_desc *d, nova_error *error) {
    host h = host_init(d->alloc ? d->alloc : m->h.alloc, d->alloc ? d->alloc_user : m->h.alloc_user,
                       d->log ? d->log : m->h.log, d->log ? d->log_user : m->h.log_user);
    nova_engine *e = (nova_engine *)mem_zalloc(&h, sizeof *e);
    if (!e) {
        fail_memory(error, sizeof *e, "the engine");
        return NULL;
    }
    e->h     = h;
    e->model = m;
    arena_init(&e->a, &e->h);
    return e;
}

NOVA_API nova_engine *nova_engine_open(nova_model *model, const nova_engine_desc *desc, nova_error *error) {
    nova_engine_desc none;
    memset(&none, 0, sizeof none);
    if (!model) return NULL;   /* the error of the failed open stands */
    if (!desc) desc = &none;
    error_clear(error);
    nova_engine *e = engine_new(model, desc, error);
    if (!e) return NULL;
    float_mode  mode   = float_mode_enter();   /* for the rotary frequencies */
    nova_result result = engine_measure(e, desc, error);
    float_mode_leave(mode);
    if (result != NOVA_OK || engine_take(e, desc, error) != NOVA_OK) {
        nova_engine_close(e);
        return NULL;
    }
    if (e->plan.n_ctx > model->n_ctx_train)
        log_text(&e->h, NOVA_LOG_WARNING, "a context of %u tokens, but the model was trained for %u: text may degrade beyond",
                 e->plan.n_ctx, model->n_ctx_train);
    return e;
}

NOVA_API void nova_engine_close(nova_engine *engine) {
    if (!engine) return;
    host h = engine->h;
    gpu_close(engine->gpu);
    pool_close(engine->threads);
    mem_free(&h, engine->cache, engine->cache_bytes);
    mem_free(&h, engine->scratch, engine->scratch_bytes);
    arena_free(&engine->a);
    mem_free(&h, engine, sizeof *engine);
}

NOVA_API void nova_engine_get_info(const nova_engine *engine, nova_engine_info *info) {
    memset(info, 0, sizeof *info);
    info->n_ctx         = engine->plan.n_ctx;
    info->n_sessions    = engine->plan.n_sessions;
    info->n_batch       = engine->plan.n_batch;
    info->n_threads     = engine->plan.n_threads;
    info->cache_bytes   = engine->cache_bytes;
    info->scratch_bytes = engine->scratch_bytes;
    info->cpu           = cpu_level_names[engine->plan.level];
    gpu_stats gpus;
    gpu_get_stats(engine->gpu, &gpus);
    info->device        = gpus.name ? gpus.name : "cpu";
    info->vram_bytes    = gpus.vram_bytes;
    info->imported_bytes = gpus.imported_bytes;
    info->n_layers      = engine->model->n_layer + 1;
    info->gpu_layers    = gpus.n_layers;
    info->n_submits     = gpus.n_submits;
    info->n_dispatches  = gpus.n_dispatches;
    info->n_barriers    = gpus.n_barriers;
    info->gpu_wait_ns   = gpus.wait_ns;
    info->gpu_longest_ns = gpus.longest_ns;
    info->n_ops         = engine->prog.n_ops;
}

NOVA_API nova_result nova_engine_gpu_cache(nova_engine *engine, void *data, size_t capacity, size_t *n, nova_error *error) {
    text_buffer out;
    if (!engine || !n || (capacity && !data)) return fail(error, NOVA_ERROR_ARGUMENT, "nova_engine_gpu_cache: an argument is NULL");
    error_clear(error);
    text_init(&out, &engine->h, 0);
    nova_result result = gpu_cache_get(engine->gpu, &out, error);
    *n = result == NOVA_OK ? out.n : 0;
    if (result == NOVA_OK && out.n > capacity)
        result = fail(error, NOVA_ERROR_TOO_SMALL, "the compiled kernels take %zu bytes, not %zu", out.n, capacity);
    if (result == NOVA_OK && out.n) memcpy(data, out.p, out.n);
    text_free(&out);
    return result;
}

NOVA_API nova_result nova_engine_kernels(nova_engine *engine, nova_kernel_fn fn, void *user, nova_error *error) {
    if (!engine || !fn) return fail(error, NOVA_ERROR_ARGUMENT, "nova_engine_kernels: an argument is NULL");
    error_clear(error);
    return gpu_kernels(engine->gpu, fn, user, error);
}

NOVA_API nova_result nova_engine_size(const nova_model *model, const nova_engine_desc *desc, nova_engine_info *info,
                                      nova_error *error) {
    nova_engine_desc none;
    memset(&none, 0, sizeof none);
    if (!model || !info) return fail(error, NOVA_ERROR_ARGUMENT, "nova_engine_size: an argument is NULL");
    if (!desc) desc = &none;
    error_clear(error);
    nova_engine *e = engine_new(model, desc, error);
    if (!e) return NOVA_ERROR_MEMORY;
    nova_result result = engine_measure(e, desc, error);
    if (result == NOVA_OK) result = engine_place(e, desc, true, error);
    if (result == NOVA_OK) nova_engine_get_info(e, info);
    if (result == NOVA_OK && e->gpu) info->device = "gpu";   /* its name goes with it */
    nova_engine_close(e);
    return result;
}
