/* Placing a program's end on GPUs: see gpu.h. */
#include "gpu.h"
#include "vk_machine.h"

#ifdef NOVA_NO_VULKAN

static nova_result gpu_open(gpu_group **out, const host *h, const gpu_desc *desc, nova_error *error) {
    (void)h;
    *out = NULL;
    if (strncmp(desc->device, "gpu", 3)) return NOVA_OK;
    return fail(error, NOVA_ERROR_DEVICE, "device '%.32s': this nova was built without Vulkan", desc->device);
}
static void     gpu_close(gpu_group *g) { (void)g; }
static uint32_t gpu_batch(const gpu_group *g) { return (void)g, UINT32_MAX; }
static uint32_t gpu_first_op(const gpu_group *g, const program *p) { return (void)g, p->n_ops; }
static bool     gpu_has_layer(const gpu_group *g, const program *p, uint32_t layer) { return (void)g, (void)p, (void)layer, false; }
static const gpu_choices *gpu_get_choices(const gpu_group *g, uint32_t row) { return (void)g, (void)row, (const gpu_choices *)NULL; }
static nova_result gpu_body(gpu_group *g, const pass *p, uint32_t k, const float *x, size_t ld_x, bool (*cancelled)(void *), void *user, nova_error *error) {
    return (void)g, (void)p, (void)k, (void)x, (void)ld_x, (void)cancelled, (void)user, fail(error, NOVA_ERROR_DEVICE, "no GPU");
}
static nova_result gpu_head(gpu_group *g, uint32_t first, uint32_t n, const float **logits, size_t *ld, bool (*cancelled)(void *), void *user,
                            nova_error *error) {
    return (void)g, (void)first, (void)n, (void)logits, (void)ld, (void)cancelled, (void)user, fail(error, NOVA_ERROR_DEVICE, "no GPU");
}
static uint32_t gpu_columns(const gpu_group *g) { return (void)g, UINT32_MAX; }
static nova_result gpu_copy_page(gpu_group *g, uint32_t from, uint32_t to, nova_error *error) { return (void)g, (void)from, (void)to, (void)error, NOVA_OK; }
static nova_result gpu_page_get(gpu_group *g, const program *p, uint32_t layer, uint32_t page, uint8_t *out, nova_error *error) {
    return (void)g, (void)p, (void)layer, (void)page, (void)out, (void)error, NOVA_OK;
}
static nova_result gpu_page_put(gpu_group *g, const program *p, uint32_t layer, uint32_t page, const uint8_t *in, nova_error *error) {
    return (void)g, (void)p, (void)layer, (void)page, (void)in, (void)error, NOVA_OK;
}
static nova_result gpu_cache_get(gpu_group *g, text_buffer *out, nova_error *error) { return (void)g, (void)out, (void)error, NOVA_OK; }
static nova_result gpu_kernels(gpu_group *g, nova_kernel_fn fn, void *user, nova_error *error) {
    return (void)g, (void)fn, (void)user, (void)error, NOVA_OK;
}
static void     gpu_get_stats(const gpu_group *g, gpu_stats *out) {
    (void)g;
    memset(out, 0, sizeof *out);
}

NOVA_API nova_result nova_list_gpus(nova_gpu_info *infos, uint32_t capacity, uint32_t *n, nova_error *error) {
    (void)infos, (void)capacity;
    if (n) *n = 0;
    return fail(error, NOVA_ERROR_DEVICE, "this nova was built without Vulkan");
}

#else

struct gpu_group {
    host        h;
    uint32_t    n;
    vk_device  *devices[GPU_MOST];
    vk_machine *machines[GPU_MOST];      /* one behind the other */
    uint32_t    first_op, n_layers, n_batch;
    float      *x;                       /* what crosses from one device to the next: [n_batch][n_embd] */
    size_t      x_bytes, ld_x;
};

/* ---- Which ---- */

/* Splits "gpu:0,gpu:1". */
static uint32_t split_names(const char *device, char names[GPU_MOST][16], nova_error *error) {
    uint32_t n = 0;
    for (const char *p = device;; p++) {
        const char *end = strchr(p, ',');
        size_t      len = end ? (size_t)(end - p) : strlen(p);
        if (n == GPU_MOST || len == 0 || len > 15) {
            fail(error, NOVA_ERROR_ARGUMENT, "device '%.48s' is none of auto, cpu, gpu, gpu:N, gpu:N,gpu:N (%u at most)", device, GPU_MOST);
            return 0;
        }
        memcpy(names[n], p, len);
        names[n++][len] = 0;
        if (!end) return n;
        p = end;
    }
}

static nova_result open_devices(gpu_group *g, const gpu_desc *desc, nova_error *error) {
    char           names[GPU_MOST][16];
    vk_device_desc d;
    uint32_t       n = split_names(desc->device, names, error);
    if (n == 0) return NOVA_ERROR_ARGUMENT;
    memset(&d, 0, sizeof d);
    if (desc->without & NOVA_GPU_DOT) d.without |= VK_CAN_DOT;
    if (desc->without & NOVA_GPU_F16) d.without |= VK_CAN_F16;
    if (desc->without & NOVA_GPU_SUBGROUP) d.without |= VK_CAN_SUBGROUP;
    d.as_gpu        = desc->force != 0;
    d.no_matrix_f16 = (desc->without & NOVA_GPU_MATRIX_F16) != 0;
    d.no_matrix_s8  = (desc->without & NOVA_GPU_MATRIX_S8) != 0;
    d.measure    = desc->measure;
    d.no_import  = desc->no_import;
    d.staged     = (desc->without & NOVA_GPU_MAPPED) != 0;
    d.vram_limit = desc->vram;
    d.given      = desc->vulkan;
    d.cache      = desc->cache;
    d.cache_size = desc->cache_size;
    if (desc->vulkan && n > 1) return fail(error, NOVA_ERROR_ARGUMENT, "device '%.48s': the host's Vulkan device is one", desc->device);
    while (g->n < n) {
        d.want = names[g->n];
        TRY(vk_device_open(&g->devices[g->n], &g->h, &d, error));
        g->devices[g->n]->statistics = desc->statistics;
        g->n++;
    }
    return NOVA_OK;
}

/* ---- Where ---- */

/* The operation that layer il begins with; n_body for the output. */
static uint32_t layer_begin(const program *p, uint32_t il) {
    uint32_t i = 0;
    while (i < p->n_body && (p->ops[i].kind == OP_EMBED || p->ops[i].layer < il)) i++;
    return i;
}

static vk_machine_desc machine_desc(const gpu_desc *d, uint32_t n_batch, uint32_t first, uint32_t last) {
    vk_machine_desc m;
    memset(&m, 0, sizeof m);
    m.model = d->model, m.prog = d->prog, m.kv = d->kv;
    m.op_first = first, m.op_last = last;
    m.force = d->force;
    m.n_ctx = d->n_ctx, m.n_batch = n_batch, m.n_seqs = d->n_seqs, m.n_logits = d->n_logits, m.max_pages = d->max_pages;
    m.progress = d->progress, m.progress_user = d->progress_user;
    return m;
}

static uint64_t room_of(const vk_device *d) {
    uint64_t limit = vram_limit(d);
    return limit > d->taken ? limit - d->taken : 0;
}

static bool is_plain_cache(const kv_layer *l) { return page_is_plain(l->shape.type_k) && page_is_plain(l->shape.type_v); }

/* Are there kernels for these operations, and for the formats of their weights and caches? */
static bool is_supported(const gpu_desc *d, const vk_machine_desc *m) {
    for (uint32_t i = m->op_first; i < m->op_last; i++) {
        if (vk_machine_cannot(m, &d->prog->ops[i])) return false;
        if (d->prog->ops[i].kind == OP_STORE && !is_plain_cache(&d->kv->layers[d->prog->ops[i].layer])) return false;
        for (uint32_t k = 0; k < d->prog->ops[i].n_w; k++) {
            vk_format f;
            if (!vk_format_of(d->prog->ops[i].w[k]->type, &f)) return false;
        }
    }
    return true;
}

static bool fits_on(const vk_device *dev, const gpu_desc *d, const vk_machine_desc *m) {
    uint64_t bytes, room;
    return is_supported(d, m) && vk_machine_bytes(dev, m, &bytes, &room) && room <= room_of(dev);
}

/* The most layers that end with operation `last` and fit the device; gives the first operation. `allowed` counts layers, the
 * output being one; what was taken is subtracted. */
static uint32_t place_on(const vk_device *dev, const gpu_desc *d, uint32_t n_batch, uint32_t last, uint32_t *allowed) {
    const program *p     = d->prog;
    uint32_t       first = last, layer = d->model->n_layer;
    while (layer > 0 && layer_begin(p, layer - 1) >= last) layer--;   /* layers that others have */
    uint32_t next = last > p->n_body ? p->n_body : layer > 0 ? layer_begin(p, layer - 1) : last;
    while (*allowed && next < first) {
        uint32_t begin = next == layer_begin(p, 0) ? 0 : next;        /* the first layer brings the embedding */
        vk_machine_desc m = machine_desc(d, n_batch, begin, last);
        if (!fits_on(dev, d, &m)) {
            if (begin == next) break;
            begin = next;                                              /* the embedding alone does not fit */
            m = machine_desc(d, n_batch, begin, last);
            if (!fits_on(dev, d, &m)) break;
        }
        first = begin;
        --*allowed;
        while (layer > 0 && layer_begin(p, layer - 1) >= next) layer--;
        if (first == 0 || layer == 0) break;
        next = layer_begin(p, layer - 1);
    }
    return first;
}

static uint32_t count_layers(const program *p, uint32_t first) {
    uint32_t n = first < p->n_ops;   /* the output */
    for (uint32_t i = first; i < p->n_body; i++) n += p->ops[i].kind == OP_ATTEND;
    return n;
}

/* Shares the program's end among the devices, the last of which gets the output: as many layers as fit, evenly where there is
 * room for all. Gives each device's first operation; the next one's, or n_ops, ends it. */
static void place(const gpu_group *g, const gpu_desc *desc, uint32_t n_batch, uint32_t first[GPU_MOST]) {
    uint32_t allowed = desc->n_layers, last = desc->prog->n_ops;
    uint32_t share = g->n > 1 ? (desc->model->n_layer + 1 + g->n - 1) / g->n : UINT32_MAX;
    for (uint32_t k = g->n; k-- > 0; last = first[k]) {
        uint32_t take = allowed < share || k == 0 ? allowed : share, before = take;
        first[k] = place_on(g->devices[k], desc, n_batch, last, &take);
        allowed -= before - take;
    }
}

static nova_result open_machines(gpu_group *g, const gpu_desc *desc, nova_error *error) {
    uint32_t first[GPU_MOST], last = desc->prog->n_ops;
    g->n_batch = desc->n_batch_whole;
    place(g, desc, g->n_batch, first);
    if (first[0] != 0 && g->n_batch != desc->n_batch) place(g, desc, g->n_batch = desc->n_batch, first);
    for (uint32_t k = g->n; k-- > 0; last = first[k]) {
        if (first[k] == last) continue;
        vk_machine_desc m = machine_desc(desc, g->n_batch, first[k], last);
        TRY(vk_machine_open(&g->machines[k], &g->h, g->devices[k], &m, error));
    }
    g->first_op = first[0];
    g->n_layers = count_layers(desc->prog, first[0]);
    return NOVA_OK;
}

static nova_result gpu_begin(gpu_group *g, const gpu_desc *desc, nova_error *error) {
    TRY(open_devices(g, desc, error));
    TRY(open_machines(g, desc, error));
    if (g->n == 1) return NOVA_OK;
    g->ld_x    = desc->prog->width[BUF_X];
    g->x_bytes = g->n_batch * g->ld_x * sizeof(float);
    g->x       = (float *)mem_alloc(&g->h, g->x_bytes);
    return g->x ? NOVA_OK : fail_memory(error, g->x_bytes, "what crosses between devices");
}

static bool has_imported(const gpu_group *g) {
    for (uint32_t k = 0; k < g->n; k++)
        if (g->devices[k]->imported) return true;
    return false;
}

static void group_empty(gpu_group *g) {
    for (uint32_t k = 0; k < GPU_MOST; k++) {
        vk_machine_close(g->machines[k]);
        vk_device_close(g->devices[k]);
        g->machines[k] = NULL, g->devices[k] = NULL;
    }
    mem_free(&g->h, g->x, g->x_bytes);
    g->n = 0, g->x = NULL, g->x_bytes = 0;
}

/* Why no layer went to a GPU: the model's end is what it would take first. */
static void log_unused(const host *h, const gpu_desc *desc) {
    vk_machine_desc m   = machine_desc(desc, desc->n_batch, desc->prog->n_body, desc->prog->n_ops);
    const char     *why = NULL;
    for (uint32_t i = desc->prog->n_ops; !why && i-- > 0;) why = vk_machine_cannot(&m, &desc->prog->ops[i]);
    if (why) log_text(h, NOVA_LOG_WARNING, "the GPU is not used: it has no kernels for %s yet", why);
    else log_text(h, NOVA_LOG_WARNING, "the GPU is not used: no layer fits its memory, or its kernels lack a format");
}

static nova_result gpu_open(gpu_group **out, const host *h, const gpu_desc *desc, nova_error *error) {
    bool automatic = !strcmp(desc->device, "auto");
    *out = NULL;
    if (!strcmp(desc->device, "cpu") || desc->n_layers == 0) return NOVA_OK;
    gpu_group *g = (gpu_group *)mem_zalloc(h, sizeof *g);
    if (!g) return fail_memory(error, sizeof *g, "the GPUs");
    g->h = *h;
    nova_error why;
    error_clear(&why);
    nova_result result = gpu_begin(g, desc, &why);
    if (result == NOVA_ERROR_DEVICE && has_imported(g)) {   /* a driver that refused the file's pages late, and with them the device */
        gpu_desc again = *desc;
        again.no_import = true;
        log_text(h, NOVA_LOG_INFO, "the GPU does not read the file where it lies: %s", why.message);
        group_empty(g);
        result = gpu_begin(g, &again, &why);
    }
    if (result == NOVA_OK && g->n_layers) {
        *out = g;
        return NOVA_OK;
    }
    gpu_close(g);
    if (result == NOVA_CANCELLED || result == NOVA_ERROR_ARGUMENT || (result != NOVA_OK && !automatic)) {
        if (error) *error = why;
        return result;
    }
    if (result != NOVA_OK && !desc->measure)   /* that there is none is nothing to be warned of */
        log_text(h, result == NOVA_ERROR_DEVICE ? NOVA_LOG_INFO : NOVA_LOG_WARNING, "the GPU is not used: %s", why.message);
    if (result == NOVA_OK && !desc->measure) log_unused(h, desc);
    return NOVA_OK;
}

static void gpu_close(gpu_group *g) {
    if (!g) return;
    host h = g->h;
    group_empty(g);
    mem_free(&h, g, sizeof *g);
}

/* ---- Running ---- */

static uint32_t gpu_batch(const gpu_group *g) { return g ? g->n_batch : UINT32_MAX; }
static uint32_t gpu_first_op(const gpu_group *g, const program *p) { return g ? g->first_op : p->n_ops; }

static bool gpu_has_layer(const gpu_group *g, const program *p, uint32_t layer) {
    return g && layer_begin(p, layer) >= g->first_op;
}

static nova_result gpu_body(gpu_group *g, const pass *p, uint32_t k, const float *x, size_t ld_x, bool (*cancelled)(void *), void *user, nova_error *error) {
    vk_machine *before = NULL;
    for (uint32_t i = 0; i < g->n; i++) {
        vk_machine *m = g->machines[i];
        if (!m) continue;
        if (before) {
            TRY(vk_machine_x(before, m->desc.op_first < m->desc.prog->n_body ? p->n_col : p->n_out, g->x, g->ld_x, error));
            x = g->x, ld_x = g->ld_x;
        }
        m->cancelled = cancelled, m->cancelled_user = user;
        TRY(vk_machine_body(m, p, k, m->desc.op_first == 0 ? NULL : x, ld_x, error));
        before = m;
    }
    return NOVA_OK;
}

static vk_machine *last_machine(const gpu_group *g) {
    uint32_t k = g->n - 1;
    while (k > 0 && !g->machines[k]) k--;
    return g->machines[k];
}

static nova_result gpu_head(gpu_group *g, uint32_t first, uint32_t n, const float **logits, size_t *ld, bool (*cancelled)(void *), void *user,
                            nova_error *error) {
    vk_machine *m = last_machine(g);
    m->cancelled = cancelled, m->cancelled_user = user;
    return vk_machine_head(m, first, n, logits, ld, error);
}

static const gpu_choices *gpu_get_choices(const gpu_group *g, uint32_t row) {
    return (const gpu_choices *)(const void *)vk_machine_choices(last_machine(g), row);
}

static uint32_t gpu_columns(const gpu_group *g) {
    uint32_t least = UINT32_MAX;
    for (uint32_t k = 0; g && k < g->n; k++)
        if (g->machines[k]) least = (uint32_t)size_min(least, vk_machine_columns(g->machines[k]));
    return least;
}

static nova_result gpu_copy_page(gpu_group *g, uint32_t from, uint32_t to, nova_error *error) {
    for (uint32_t k = 0; g && k < g->n; k++)
        if (g->machines[k]) TRY(vk_machine_copy_page(g->machines[k], from, to, error));
    return NOVA_OK;
}

/* Whose layer it is. */
static vk_machine *machine_of(const gpu_group *g, const program *p, uint32_t layer) {
    uint32_t at = layer_begin(p, layer);
    for (uint32_t k = 0; k < g->n; k++)
        if (g->machines[k] && at >= g->machines[k]->desc.op_first && at < g->machines[k]->desc.op_last) return g->machines[k];
    return NULL;
}

static nova_result gpu_page_get(gpu_group *g, const program *p, uint32_t layer, uint32_t page, uint8_t *out, nova_error *error) {
    return vk_machine_page_get(machine_of(g, p, layer), layer, page, out, error);
}

static nova_result gpu_page_put(gpu_group *g, const program *p, uint32_t layer, uint32_t page, const uint8_t *in, nova_error *error) {
    return vk_machine_page_put(machine_of(g, p, layer), layer, page, in, error);
}

static nova_result gpu_cache_get(gpu_group *g, text_buffer *out, nova_error *error) {
    for (uint32_t k = 0; g && k < g->n; k++) TRY(vk_cache_get(g->devices[k], out, error));
    return NOVA_OK;
}

static nova_result gpu_kernels(gpu_group *g, nova_kernel_fn fn, void *user, nova_error *error) {
    bool go_on = true;
    for (uint32_t k = 0; g && go_on && k < g->n; k++)
        if (g->machines[k]) TRY(vk_machine_kernels(g->machines[k], fn, user, &go_on, error));
    return NOVA_OK;
}

static void gpu_get_stats(const gpu_group *g, gpu_stats *out) {
    memset(out, 0, sizeof *out);
    if (!g) return;
    out->n_layers = g->n_layers;
    for (uint32_t k = 0; k < g->n; k++) {
        if (!g->machines[k]) continue;
        if (!out->name) out->name = g->devices[k]->caps.name;
        out->n_submits += g->machines[k]->n_submits;
        out->n_dispatches += g->machines[k]->n_dispatches;
        out->n_barriers += g->machines[k]->n_barriers;
        out->wait_ns += g->machines[k]->wait_ns;
        if (g->machines[k]->longest_ns > out->longest_ns) out->longest_ns = g->machines[k]->longest_ns;
        out->vram_bytes += g->devices[k]->taken;
        out->imported_bytes += g->devices[k]->imported;
    }
}

/* ---- What there is ---- */

static const char *kind_of(VkPhysicalDeviceType type) {
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual";
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return "cpu";
    default: return "other";
    }
}

static uint32_t public_abilities(const vk_caps *c) {
    uint32_t a = 0;
    for (uint32_t i = 0; i < c->n_matrices; i++)
        a |= c->matrices[i].a == VK_COMPONENT_TYPE_FLOAT16_KHR ? NOVA_GPU_MATRIX_F16 : NOVA_GPU_MATRIX_S8;
    if (c->can & VK_CAN_DOT) a |= NOVA_GPU_DOT;
    if (c->can & VK_CAN_F16) a |= NOVA_GPU_F16;
    if (c->can & VK_CAN_SUBGROUP) a |= NOVA_GPU_SUBGROUP;
    if (c->unified) a |= NOVA_GPU_MAPPED;
    return a;
}

static void public_info(const vk_caps *c, nova_gpu_info *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->name, c->name, size_min(sizeof out->name, sizeof c->name));
    out->kind         = kind_of(c->type);
    out->memory_bytes = c->heap_bytes;
    out->free_bytes   = c->heap_free;
    out->api_major    = VK_VERSION_MAJOR(c->api);
    out->api_minor    = VK_VERSION_MINOR(c->api);
    out->subgroup     = c->subgroup;
    out->abilities    = public_abilities(c);
}

NOVA_API nova_result nova_list_gpus(nova_gpu_info *infos, uint32_t capacity, uint32_t *n, nova_error *error) {
    if (!n || (capacity && !infos)) return fail(error, NOVA_ERROR_ARGUMENT, "nova_list_gpus: an argument is NULL");
    error_clear(error);
    host        h    = host_init(NULL, NULL, NULL, NULL);
    size_t      size = (capacity ? capacity : 1) * sizeof(vk_caps);
    vk_caps    *caps = (vk_caps *)mem_zalloc(&h, size);
    if (!caps) return fail_memory(error, size, "the list of devices");
    nova_result result = vk_device_list(&h, caps, capacity, n, error);
    for (uint32_t i = 0; result == NOVA_OK && i < *n && i < capacity; i++) public_info(&caps[i], &infos[i]);
    if (result != NOVA_OK) *n = 0;
    mem_free(&h, caps, size);
    return result;
}

#endif
