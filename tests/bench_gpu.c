/* What a GPU can, and where a model's time goes on it: JSON for tests/gpu_report.py.
 *
 *     bench_gpu device [DEVICE]            driver, abilities, limits; measured: copy bandwidth, multiplications at size
 *     bench_gpu model DEVICE FILE [BATCH]  every kernel's time for a token and for a full batch of a prompt
 *
 * Times are the device's timestamps; where it has none, the host's clock around a submit, and then no kernel has a time
 * of its own. Works on a device that runs nothing too (a stand-in of the lab), and says that it does not. */
#define GUARD_OWN_MAIN
#include "vk_guard.h"

#ifdef NOVA_NO_VULKAN
int main(void) {
    fprintf(stderr, "bench_gpu: built without Vulkan\n");
    return 1;
}
#else

#define MOST_STAMPS 4096u   /* dispatches of a submit that is timed, at most */

/* ---- JSON ---- */

static bool json_first = true;

static void put_text(const char *z) {
    putchar('"');
    for (; *z; z++) {
        if (*z == '"' || *z == '\\') putchar('\\');
        if ((unsigned char)*z >= 32) putchar(*z);
    }
    putchar('"');
}

static void put_key(const char *key) {
    if (!json_first) putchar(',');
    json_first = true;   /* behind a key comes its value */
    if (key) put_text(key), putchar(':');
}

static void put_open(const char *key, char bracket) {
    put_key(key);
    putchar(bracket);
}

static void put_close(char bracket) {
    putchar(bracket);
    json_first = false;
}

static void put_string(const char *key, const char *value) {
    put_key(key);
    put_text(value);
    json_first = false;
}

static void put_number(const char *key, double value) {
    put_key(key);
    if (value == value && value < 1e300 && value > -1e300) printf("%.10g", value);
    else printf("null");
    json_first = false;
}

static void put_bool(const char *key, bool value) {
    put_key(key);
    printf(value ? "true" : "false");
    json_first = false;
}

/* ---- Timing ---- */

typedef struct bench {
    host        h;
    vk_device  *d;
    VkQueryPool stamps;       /* VK_NULL_HANDLE: the host's clock */
    const char *why;          /* no stamps */
    uint64_t    mask;         /* valid bits of a stamp */
    bool        is_cpu;
    nova_error  error;
} bench;

static uint32_t stamp_bits(const vk_device *d) {
    VkQueueFamilyProperties families[32];
    uint32_t                n = COUNT_OF(families);
    d->api.GetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
    return d->family < n ? families[d->family].timestampValidBits : 0;
}

static void stamps_open(bench *b) {
    VkQueryPoolCreateInfo info;
    uint32_t              bits = stamp_bits(b->d);
    b->is_cpu = b->d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
    b->why    = "the device has none";
    if (!bits || !(b->d->caps.timestamp_ns > 0)) return;
    b->mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    memset(&info, 0, sizeof info);
    info.sType      = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    info.queryType  = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = MOST_STAMPS + 1;
    if (b->d->api.CreateQueryPool(b->d->device, &info, NULL, &b->stamps) != VK_SUCCESS) {
        b->stamps = VK_NULL_HANDLE;
        b->why    = "they cannot be made";
    }
}

static void stamps_drop(bench *b, const char *why) {
    if (b->stamps) b->d->api.DestroyQueryPool(b->d->device, b->stamps, NULL);
    b->stamps = VK_NULL_HANDLE;
    b->why    = why;
}

static void stamp(bench *b, VkCommandBuffer commands, uint32_t index) {
    if (b->stamps) b->d->api.CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, b->stamps, index);
}

/* Differences of n + 1 stamps, in nanoseconds; false where they did not come. */
static bool stamps_read(bench *b, uint32_t n, double *ns) {
    static uint64_t ticks[MOST_STAMPS + 1];
    double          tick = (double)b->d->caps.timestamp_ns;
    VkResult        r    = b->d->api.GetQueryPoolResults(b->d->device, b->stamps, 0, n + 1, (n + 1) * sizeof *ticks, ticks,
                                                         sizeof *ticks, VK_QUERY_RESULT_64_BIT);
    if (r != VK_SUCCESS || ticks[0] == ticks[n]) return false;
    for (uint32_t i = 0; i < n; i++) ns[i] = (double)((ticks[i + 1] - ticks[i]) & b->mask) * tick;
    return true;
}

/* Records into commands between the stamps. */
typedef void (*record_fn)(bench *b, VkCommandBuffer commands, void *user);

/* Runs what `fn` records, which writes stamps 1..n itself. Nanoseconds from stamp to stamp into ns, if there are any;
 * the whole, by stamps or else by the host's clock, into *total. */
static nova_result run_timed(bench *b, record_fn fn, void *user, uint32_t n, double *ns, double *total) {
    nova_error     *error = &b->error;
    vk_device      *d     = b->d;
    VkCommandBuffer commands;
    TRY(commands_begin(d, &commands, error));
    if (b->stamps) d->api.CmdResetQueryPool(commands, b->stamps, 0, n + 1);
    stamp(b, commands, 0);
    fn(b, commands, user);
    uint64_t start = clock_ns();
    TRY(commands_run(d, commands, error));
    *total = (double)(clock_ns() - start);
    if (!b->stamps) return NOVA_OK;
    if (!stamps_read(b, n, ns)) {
        stamps_drop(b, "they do not come back");
        return NOVA_OK;
    }
    *total = 0;
    for (uint32_t i = 0; i < n; i++) *total += ns[i];
    return NOVA_OK;
}

typedef struct list_run {
    vk_dispatch     *list;
    VkDescriptorSet *sets;
    uint32_t         n;
    bool             each;    /* a stamp behind every dispatch, not only behind the last */
} list_run;

static void record_list(bench *b, VkCommandBuffer commands, void *user) {
    const list_run *r = (const list_run *)user;
    if (!r->each) {
        vk_record(b->d, commands, r->list, r->n, r->sets);
        stamp(b, commands, 1);
    }
    for (uint32_t i = 0; r->each && i < r->n; i++) {
        if (r->list[i].barrier && i > 0) vk_barrier(b->d, commands, false);
        vk_record(b->d, commands, &r->list[i], 1, &r->sets[i]);
        stamp(b, commands, i + 1);
    }
}

/* A list once; ns (NULL: not wanted) of every dispatch. */
static nova_result run_list_timed(bench *b, vk_dispatch *list, uint32_t n, double *ns, double *total) {
    nova_error      *error = &b->error;
    VkDescriptorPool own   = VK_NULL_HANDLE;
    double           one;
    list_run         r;
    TRY(vk_compile(b->d, list, n, error));
    r.list = list, r.n = n, r.each = ns && b->stamps && n <= MOST_STAMPS;
    r.sets = (VkDescriptorSet *)calloc(n ? n : 1, sizeof *r.sets);
    if (!r.sets) return fail_memory(error, n * sizeof *r.sets, "descriptors");
    nova_result result = vk_sets_open(b->d, n, &own, r.sets, error);
    if (result == NOVA_OK) result = run_timed(b, record_list, &r, r.each ? n : 1, r.each ? ns : &one, total);
    if (own) b->d->api.DestroyDescriptorPool(b->d->device, own, NULL);
    free(r.sets);
    return result;
}

#define SLOW_NS 500000000u

/* The least of some runs, after one that warms up; a third of a second altogether. What is slow runs once. */
static nova_result best_of(bench *b, record_fn fn, void *user, double *best) {
    double   ns, total;
    uint64_t start = clock_ns();
    TRY(run_timed(b, fn, user, 1, &ns, best));
    if (clock_ns() - start > SLOW_NS) return NOVA_OK;
    for (uint32_t i = 0; i < 2 || (i < 50 && clock_ns() - start < 300000000u); i++) {
        TRY(run_timed(b, fn, user, 1, &ns, &total));
        if (i == 0 || total < *best) *best = total;
    }
    return NOVA_OK;
}

static nova_result best_of_list(bench *b, vk_list *l, double *best) {
    nova_error      *error = &b->error;
    VkDescriptorPool own   = VK_NULL_HANDLE;
    list_run         r;
    if (l->failed) return fail_memory(error, 0, "a list");
    TRY(vk_compile(b->d, l->at, l->n, error));
    r.list = l->at, r.n = l->n, r.each = false;
    r.sets = (VkDescriptorSet *)calloc(l->n, sizeof *r.sets);
    if (!r.sets) return fail_memory(error, l->n * sizeof *r.sets, "descriptors");
    nova_result result = vk_sets_open(b->d, l->n, &own, r.sets, error);
    if (result == NOVA_OK) result = best_of(b, record_list, &r, best);
    if (own) b->d->api.DestroyDescriptorPool(b->d->device, own, NULL);
    free(r.sets);
    return result;
}

/* ---- The device ---- */

static void put_driver(const vk_device *d) {
    VkPhysicalDeviceProperties2          all;
    VkPhysicalDeviceDriverProperties     driver;
    extension_list                       l;
    nova_error                           error;
    uint32_t                             v = d->caps.api;
    char                                 version[32];
    memset(&all, 0, sizeof all);
    memset(&driver, 0, sizeof driver);
    all.sType    = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    if (list_extensions(&d->api, &d->h, d->physical, &l, &error) == NOVA_OK) {
        if (offers(&l, d->caps.api, VK_API_VERSION_1_2, "VK_KHR_driver_properties")) all.pNext = &driver;
        mem_free(&d->h, l.at, l.n * sizeof *l.at);
    }
    d->api.GetPhysicalDeviceProperties2(d->physical, &all);
    put_string("driver", driver.driverName);
    put_string("driver_info", driver.driverInfo);
    put_number("driver_version", d->caps.driver_version);
    snprintf(version, sizeof version, "%u.%u.%u", VK_VERSION_MAJOR(v), VK_VERSION_MINOR(v), VK_VERSION_PATCH(v));
    put_string("vulkan", version);
}

/* Its number in "gpu:N". */
static int index_of(const vk_device *d) {
    VkPhysicalDevice all[VK_MOST_DEVICES];
    uint32_t         n = VK_MOST_DEVICES;
    d->api.EnumeratePhysicalDevices(d->instance, &n, all);
    for (uint32_t i = 0; i < n; i++)
        if (all[i] == d->physical) return (int)i;
    return -1;
}

typedef struct bit_name { uint32_t bit; const char *name; } bit_name;

static void put_bits(const char *key, uint32_t bits, const bit_name *names, size_t n) {
    put_open(key, '[');
    for (size_t i = 0; i < n; i++)
        if (bits & names[i].bit) put_string(NULL, names[i].name);
    put_close(']');
}

static void put_abilities(const vk_caps *c) {
    static const bit_name inner[] = {
        {VK_CAN_SUBGROUP, "subgroup"}, {VK_CAN_F16, "f16"}, {VK_CAN_INT8, "int8"}, {VK_CAN_DOT, "dot"},
        {VK_CAN_MATRIX, "matrix"}, {VK_CAN_SIZED, "subgroup size"}, {VK_CAN_STORAGE16, "16-bit storage"},
        {VK_CAN_STORAGE8, "8-bit storage"}, {VK_CAN_EXECUTABLE, "pipeline statistics"},
        {VK_CAN_BUDGET, "memory budget"}, {VK_CAN_IMPORT, "host memory import"}};
    static const bit_name outer[] = {   /* by the command line's names */
        {NOVA_GPU_MATRIX_F16, "matrix-f16"}, {NOVA_GPU_MATRIX_S8, "matrix-s8"}, {NOVA_GPU_DOT, "dot"},
        {NOVA_GPU_F16, "f16"}, {NOVA_GPU_SUBGROUP, "subgroup"}, {NOVA_GPU_MAPPED, "mapped"}};
    put_bits("can", c->can, inner, COUNT_OF(inner));
    put_bits("abilities", public_abilities(c), outer, COUNT_OF(outer));
}

static const char *component_name(VkComponentTypeKHR t) {
    static const char *const names[] = {"f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"};
    return (uint32_t)t < COUNT_OF(names) ? names[t] : "?";
}

static void put_matrices(const vk_caps *c) {
    put_open("matrices", '[');
    for (uint32_t i = 0; i < c->n_matrices; i++) {
        const vk_matrix *m = &c->matrices[i];
        char             text[64];
        snprintf(text, sizeof text, "%ux%ux%u %s to %s", m->m, m->n, m->k, component_name(m->a), component_name(m->c));
        put_string(NULL, text);
    }
    put_close(']');
}

static void put_device(const bench *b) {
    const vk_caps *c = &b->d->caps;
    put_open("device", '{');
    put_string("name", c->name);
    put_string("kind", kind_of(c->type));
    put_number("index", index_of(b->d));
    put_number("vendor_id", c->vendor);
    put_number("device_id", c->device);
    put_driver(b->d);
    put_abilities(c);
    put_matrices(c);
    put_bool("dot_fast", c->dot_fast != 0);
    put_number("subgroup", c->subgroup);
    put_number("subgroup_min", c->subgroup_min);
    put_number("subgroup_max", c->subgroup_max);
    put_number("max_workgroup", c->max_workgroup);
    put_number("max_shared_bytes", c->max_shared);
    put_number("max_binding_bytes", (double)c->max_range);
    put_number("max_allocation_bytes", (double)c->max_alloc);
    put_number("memory_bytes", (double)c->heap_bytes);
    put_number("free_bytes", (double)c->heap_free);
    put_bool("unified", c->unified);
    put_close('}');
}

static void put_clock(const bench *b) {
    put_bool("timestamps", b->stamps != VK_NULL_HANDLE);
    if (!b->stamps) put_string("timestamps_why", b->why);
    else put_number("timestamp_ns", (double)b->d->caps.timestamp_ns);
}

/* ---- Copy bandwidth ---- */

typedef struct copy_run {
    vk_slice from, to;
    uint32_t n;
} copy_run;

static void record_copies(bench *b, VkCommandBuffer commands, void *user) {
    const copy_run *r = (const copy_run *)user;
    for (uint32_t i = 0; i < r->n; i++) {
        if (i) vk_barrier(b->d, commands, false);
        record_piece(b->d, commands, &r->from, 0, &r->to, 0, r->from.size);
    }
    stamp(b, commands, 1);
}

/* Does what was written arrive? A stand-in's does not. */
static bool copy_arrives(bench *b, copy_run *r) {
    uint32_t word = 0;
    double   ns;
    r->n = 1;
    if (vk_fill(b->d, &r->from, 0x600df00du, &b->error) != NOVA_OK) return false;
    if (best_of(b, record_copies, r, &ns) != NOVA_OK) return false;
    return vk_read(b->d, &r->to, r->to.size - 4, &word, 4, &b->error) == NOVA_OK && word == 0x600df00du;
}

/* Buffers that no cache of a GPU holds. */
static nova_result put_copy(bench *b) {
    const vk_caps *c    = &b->d->caps;
    uint64_t       most = (uint64_t)(b->is_cpu ? 64 : 512) << 20;
    copy_run       r;
    double         ns = 0;
    while (most > 1u << 20 && (most > c->max_alloc / 2 || most > c->heap_free / 8)) most /= 2;
    TRY(vk_take(b->d, VK_USE_DEVICE, most, &r.from, &b->error));
    TRY(vk_take(b->d, VK_USE_DEVICE, most, &r.to, &b->error));
    put_bool("executes", copy_arrives(b, &r));
    r.n = 4;
    TRY(best_of(b, record_copies, &r, &ns));
    put_open("copy", '{');
    put_number("bytes", (double)most);
    put_number("bytes_per_s", ns > 0 ? 2.0 * (double)most * r.n / ns * 1e9 : 0);   /* read and written */
    put_close('}');
    return NOVA_OK;
}

/* ---- Multiplications at size ---- */

/* A weight of random blocks: 32 rows' worth, again and again. */
static nova_result big_weight(bench *b, arena *a, uint32_t type, uint32_t n_in, uint32_t n_out, vk_weight *out) {
    random_weight r     = random_weight_open(type, n_in, 32, 0.01f);
    weight        w     = r.w;
    size_t        bytes = 32 * w.row_bytes;
    uint8_t      *data  = (uint8_t *)malloc((size_t)n_out * w.row_bytes + bytes);
    nova_result   result;
    if (!data) return fail_memory(&b->error, (size_t)n_out * w.row_bytes, "a weight");
    for (size_t at = 0; at < n_out * w.row_bytes; at += bytes) memcpy(data + at, r.bytes, bytes);
    w.n_out = n_out;
    w.data  = data;
    result  = vk_weight_load(b->d, a, &w, out, &b->error);
    free(data);
    random_weight_close(&r);
    return result;
}

/* A square problem, every path's buffers. */
typedef struct square {
    uint32_t n;
    arena    a;
    vk_slice x, y, xq, scratch;
} square;

static nova_result take_random(bench *b, uint64_t n, vk_slice *out) {
    uint64_t piece = n < 1u << 20 ? n : 1u << 20;
    float   *f     = (float *)malloc(piece * sizeof *f);
    TRY(vk_take(b->d, VK_USE_DEVICE, n * sizeof *f, out, &b->error));
    if (!f) return fail_memory(&b->error, piece * sizeof *f, "numbers");
    for (uint64_t i = 0; i < piece; i++) f[i] = test_uniform();
    nova_result result = NOVA_OK;
    for (uint64_t at = 0; at < n && result == NOVA_OK; at += piece)
        result = vk_write(b->d, out, at * sizeof *f, f, (n - at < piece ? n - at : piece) * sizeof *f, &b->error);
    free(f);
    return result;
}

static nova_result square_open(bench *b, square *s, uint32_t n) {
    nova_error *error = &b->error;
    uint64_t    scratch = vk_matmul_scratch(b->d, n, n), quantised = vk_quantised_bytes(n, n);
    vk_list     l;
    memset(s, 0, sizeof *s);
    s->n = n;
    arena_init(&s->a, &b->h);
    TRY(take_random(b, (uint64_t)n * n, &s->x));
    TRY(vk_take(b->d, VK_USE_DEVICE, (uint64_t)n * n * sizeof(float), &s->y, error));
    TRY(vk_take(b->d, VK_USE_DEVICE, quantised, &s->xq, error));
    if (scratch) TRY(vk_take(b->d, VK_USE_DEVICE, scratch, &s->scratch, error));
    vk_list_init(&l, &b->h);
    vk_quantise_add(b->d, &l, s->x, s->xq, vk_quantised_scales(n, n), n, n, n, true);
    nova_result result = vk_run_list(b->d, l.at, l.n, error);
    vk_list_free(&l);
    return result;
}

static vk_matmul square_matmul(const square *s, const vk_weight *w, uint32_t path) {
    vk_matmul m;
    memset(&m, 0, sizeof m);
    m.w[0] = w;
    m.x = s->x, m.y = s->y, m.xq = s->xq, m.scratch = s->scratch;
    m.xq_scales = vk_quantised_scales(s->n, s->n);
    m.ld_x = m.ld_y = m.n_col = s->n;
    m.barrier = true;
    m.path    = path;
    return m;
}

/* Nanoseconds, activations being packed already where the path packs them. */
static nova_result time_matmul(bench *b, vk_matmul *m, double *ns) {
    vk_list l;
    vk_list_init(&l, &b->h);
    vk_matmul_add(b->d, &l, m);   /* packs */
    nova_result result = l.failed ? fail_memory(&b->error, 0, "a list") : vk_run_list(b->d, l.at, l.n, &b->error);
    l.n      = 0;
    m->packed = true;
    vk_matmul_add(b->d, &l, m);
    if (result == NOVA_OK) result = best_of_list(b, &l, ns);
    vk_list_free(&l);
    return result;
}

static void put_rate(const char *path, const char *format, uint32_t n, double ns) {
    put_open(NULL, '{');
    put_string("path", path);
    put_string("weights", format);
    put_number("n", n);
    put_number("ns", ns);
    put_number("multiply_adds_per_s", ns > 0 ? (double)n * n * n / ns * 1e9 : 0);
    put_close('}');
}

static nova_result square_and_weight(bench *b, square *s, vk_weight *w, uint32_t n) {
    TRY(square_open(b, s, n));
    return big_weight(b, &s->a, TYPE_Q8_0, n, n, w);
}

/* Largest size that memory holds and that lasts no longer than it must to be measured. */
static nova_result choose_square(bench *b, square *s, vk_weight *w) {
    uint32_t most = b->is_cpu ? 1024 : 4096;
    TRY(square_and_weight(b, s, w, b->is_cpu ? 256 : 512));
    for (;;) {
        vk_matmul m = square_matmul(s, w, 0);
        square    next;
        vk_weight next_w;
        double    ns;
        TRY(time_matmul(b, &m, &ns));
        if (s->n >= most || ns > 2e7) return NOVA_OK;
        bool fits = square_and_weight(b, &next, &next_w, 2 * s->n) == NOVA_OK;
        arena_free(fits ? &s->a : &next.a);
        if (!fits) return NOVA_OK;
        *s = next, *w = next_w;
    }
}

static nova_result put_rates(bench *b, square *s, const vk_weight *q8) {
    static const uint32_t types[] = {TYPE_F16, TYPE_Q4_0, TYPE_Q4_K, TYPE_Q6_K};
    put_open("matmul", '[');
    for (uint32_t p = 0; p < VK_PATH_COUNT; p++) {
        vk_matmul m = square_matmul(s, q8, 1 + p);
        double    ns;
        if (!vk_matmul_can(b->d, &m, (vk_path)p)) continue;
        TRY(time_matmul(b, &m, &ns));
        put_rate(vk_path_name((vk_path)p), "Q8_0", s->n, ns);
    }
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        vk_weight w;
        double    ns;
        TRY(big_weight(b, &s->a, types[i], s->n, s->n, &w));
        vk_matmul m = square_matmul(s, &w, 0);
        vk_path   p = vk_matmul_choose(b->d, &m);
        TRY(time_matmul(b, &m, &ns));
        put_rate(vk_path_name(p), type_of(types[i])->name, s->n, ns);
    }
    put_close(']');
    return NOVA_OK;
}

/* One column by a weight of this type, about `bytes` large. Quantised activations are at hand, as behind a norm. */
static nova_result put_matvec(bench *b, arena *a, uint32_t type, uint64_t bytes, vk_matmul *m) {
    uint32_t  n_out = (uint32_t)(bytes / type_row_bytes(type, m->ld_x) / 32 * 32);
    double    ns, sum = 0;
    vk_weight w;
    vk_list   l;
    TRY(big_weight(b, a, type, m->ld_x, n_out, &w));
    m->w[0] = &w;
    m->ld_y = n_out;
    vk_list_init(&l, &b->h);
    vk_matvec_add(b->d, &l, m);
    const char *kernel = l.n ? vk_kernels[l.at[0].kernel].name : "";
    nova_result result = best_of_list(b, &l, &ns);
    vk_list_free(&l);
    if (result != NOVA_OK) return result;
    for (uint32_t p = 0; p < w.n_parts; p++) sum += (double)w.parts[p].bytes.size;
    put_open(NULL, '{');
    put_string("kernel", kernel);
    put_string("weights", type_of(type)->name);
    put_number("bytes", sum);
    put_number("bytes_per_s", ns > 0 ? sum / ns * 1e9 : 0);
    put_close('}');
    return NOVA_OK;
}

/* Weights for one column, larger than a GPU's caches. */
static nova_result put_matvecs(bench *b) {
    static const uint32_t types[] = {TYPE_F16, TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_K, TYPE_Q6_K};
    const uint32_t        n_in  = 4096;
    uint64_t              most  = (uint64_t)(b->is_cpu ? 8 : 256) << 20;
    nova_error           *error = &b->error;
    vk_matmul             m;
    vk_list               l;
    while (most > 1u << 20 && most > b->d->caps.heap_free / 16) most /= 2;
    memset(&m, 0, sizeof m);
    m.ld_x = n_in, m.n_col = 1, m.barrier = true;
    m.xq_scales = vk_quantised_scales(n_in, 1);
    TRY(take_random(b, n_in, &m.x));
    TRY(vk_take(b->d, VK_USE_DEVICE, vk_quantised_bytes(n_in, 1), &m.xq, error));
    TRY(vk_take(b->d, VK_USE_DEVICE, most / n_in * 2 * sizeof(float), &m.y, error));
    vk_list_init(&l, &b->h);
    vk_quantise_add(b->d, &l, m.x, m.xq, m.xq_scales, n_in, n_in, 1, true);
    nova_result result = vk_run_list(b->d, l.at, l.n, error);
    vk_list_free(&l);
    put_open("matvec", '[');
    for (size_t i = 0; result == NOVA_OK && i < COUNT_OF(types); i++) {
        arena a;
        arena_init(&a, &b->h);
        result = put_matvec(b, &a, types[i], most, &m);
        arena_free(&a);
    }
    put_close(']');
    return result == NOVA_ERROR_MEMORY ? NOVA_OK : result;   /* as many as fit */
}

static int bench_device(bench *b, const char *name) {
    vk_device_desc desc;
    square         s;
    vk_weight      w;
    memset(&desc, 0, sizeof desc);
    memset(&s, 0, sizeof s);
    desc.want = name;
    nova_result result = vk_device_open(&b->d, &b->h, &desc, &b->error);
    if (result == NOVA_OK) {
        stamps_open(b);
        put_open(NULL, '{');
        put_device(b);
        result = put_copy(b);
        if (result == NOVA_OK) result = choose_square(b, &s, &w);
        if (result == NOVA_OK) result = put_rates(b, &s, &w);
        if (result == NOVA_OK) result = put_matvecs(b);
        if (s.n) arena_free(&s.a);
        put_clock(b);
        put_close('}');
        printf("\n");
        stamps_drop(b, "");
    }
    vk_device_close(b->d);
    return result == NOVA_OK ? 0 : 1;
}

/* ---- A model ---- */

/* What an operation is for. */
static const char *role_of(const op *o) {
    switch (o->kind) {
    case OP_EMBED:  return "embedding";
    case OP_NORM:   return "norm";
    case OP_STORE:  return "rope, cache";
    case OP_ATTEND: return "attention";
    case OP_GATHER: return "gather";
    default: break;
    }
    if (o->dst[0] == BUF_LOGITS) return "output";
    if (o->dst[0] == BUF_Q) return "q k v";
    if (o->src == BUF_ATT) return "attention out";
    return o->src == BUF_FF ? "ffn down" : "ffn up";
}

/* Dispatches of one pipeline for one purpose. */
typedef struct group {
    uint32_t    pipeline, n;
    const char *role, *format;
    double      ns, bytes, multiply_adds;   /* bytes: of weights */
} group;

typedef struct note {
    const char *role, *format;
    double      bytes, multiply_adds;
} note;

/* A pass's dispatches, and what each of them is for. */
typedef struct pass_list {
    vk_list l;
    note   *notes;            /* [capacity] */
    uint32_t capacity;
} pass_list;

/* The part of a weight that a binding is; NULL: none. */
static const vk_part *part_at(const vk_machine *m, const vk_slice *s, const vk_weight **w) {
    for (uint32_t i = 0; i < m->n_tensors; i++)
        for (uint32_t k = 0; k < m->tensors[i].w.n_parts; k++) {
            const vk_part *p = &m->tensors[i].w.parts[k];
            if (p->bytes.buffer != s->buffer || p->bytes.offset != s->offset || p->bytes.size != s->size) continue;
            *w = &m->tensors[i].w;
            return p;
        }
    return NULL;
}

static note note_of(const vk_machine *m, const vk_dispatch *x, const char *what, uint32_t n_col) {
    note             n;
    const vk_weight *w = NULL;
    memset(&n, 0, sizeof n);
    n.role = what;
    n.format = "";
    if (x->kernel == KERNEL_COUNT) return n;
    for (uint32_t i = 0; i < x->n_bind && i < 2; i++) {
        const vk_part *p = part_at(m, &x->bind[i], &w);
        if (!p || (i && x->bind[1].buffer == x->bind[0].buffer && x->bind[1].offset == x->bind[0].offset)) continue;
        n.format = type_of(planar_layouts[w->format].type)->name;
        if (!strcmp(what, "embedding")) continue;   /* reads some rows alone */
        n.bytes += (double)p->bytes.size;
        n.multiply_adds += (double)w->n_in * p->n_rows * n_col;
    }
    return n;
}

static bool note_new(pass_list *p, const vk_machine *m, uint32_t from, const char *what, uint32_t n_col) {
    if (p->l.failed) return false;
    if (p->l.n > p->capacity) {
        uint32_t cap  = 2 * p->l.n;
        note    *more = (note *)realloc(p->notes, cap * sizeof *more);
        if (!more) return false;
        p->notes = more, p->capacity = cap;
    }
    for (uint32_t i = from; i < p->l.n; i++) p->notes[i] = note_of(m, &p->l.at[i], what, n_col);
    return true;
}

/* Operation by operation; as the machine does it (list_whole, run_prompt), with the notes. */
static bool pass_list_make(pass_list *p, vk_machine *m, const pass_shape *s, bool chooses) {
    bool good = true;
    memset(p, 0, sizeof *p);
    vk_list_init(&p->l, &m->h);
    for (uint32_t i = m->desc.op_first; good && i < m->desc.op_last; i++) {
        const op *o    = &m->desc.prog->ops[i];
        uint32_t  from = p->l.n;
        list_ops(m, &p->l, i, i + 1, s);
        good = note_new(p, m, from, role_of(o), columns_for(o, s));
    }
    uint32_t kind = has_head(&m->desc) ? choice_kind_for(m, 1) : 0, from = p->l.n;
    if (chooses && kind) list_choose(m, &p->l, s->n_out, kind);
    return good && note_new(p, m, from, "choice", s->n_out);
}

static void pass_list_free(pass_list *p) {
    vk_list_free(&p->l);
    free(p->notes);
}

/* As the machine does it: a token at once, a prompt in submits of some milliseconds. ns of each dispatch, NULL: not
 * wanted. */
static nova_result run_pieces(bench *b, vk_machine *m, pass_list *p, bool at_once, double *ns, double *total,
                              uint32_t *submits) {
    *total = 0, *submits = 0;
    for (uint32_t first = 0; first < p->l.n;) {
        double   cost, whole;
        uint32_t n = at_once ? p->l.n - first : submit_length(m, &p->l, first, &cost);
        if (n > MOST_STAMPS) n = MOST_STAMPS;
        TRY(run_list_timed(b, p->l.at + first, n, ns ? ns + first : NULL, &whole));
        *total += whole;
        first += n;
        ++*submits;
    }
    return NOVA_OK;
}

static int by_time(const void *a, const void *b) {
    const group *x = (const group *)a, *y = (const group *)b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : x->pipeline < y->pipeline ? -1 : x->pipeline > y->pipeline;
}

static void put_group(const vk_device *d, const group *g, bool timed) {
    const vk_pipeline *p = g->pipeline == UINT32_MAX ? NULL : &d->pipelines[g->pipeline];
    char               constants[VK_SPECS * 12] = "";
    size_t             at = 0;
    bool               copies = g->pipeline == UINT32_MAX;
    for (uint32_t i = 0; !copies && i < p->n_spec; i++)
        at += (size_t)snprintf(constants + at, sizeof constants - at, "%s%u", i ? "," : "", p->spec[i]);
    put_open(NULL, '{');
    put_string("kernel", copies ? "copy" : vk_kernels[p->kernel].name);
    put_string("role", g->role);
    put_string("weights", g->format);
    put_string("specialisation", constants);
    put_number("subgroup", copies ? 0 : p->subgroup);
    put_number("dispatches", g->n);
    if (timed) put_number("ns", g->ns);
    put_number("weight_bytes", g->bytes);
    put_number("multiply_adds", g->multiply_adds);
    put_close('}');
}

static group *sum_groups(const pass_list *p, const double *ns, uint32_t *n) {
    group *all = (group *)calloc(p->l.n ? p->l.n : 1, sizeof *all);
    *n = 0;
    for (uint32_t i = 0; all && i < p->l.n; i++) {
        const vk_dispatch *x = &p->l.at[i];
        uint32_t           k = 0, id = x->kernel == KERNEL_COUNT ? UINT32_MAX : x->pipeline;
        while (k < *n && (all[k].pipeline != id || strcmp(all[k].role, p->notes[i].role))) k++;
        if (k == *n) all[k].pipeline = id, all[k].role = p->notes[i].role, all[k].format = p->notes[i].format, ++*n;
        all[k].n++;
        all[k].ns += ns[i];
        all[k].bytes += p->notes[i].bytes;
        all[k].multiply_adds += p->notes[i].multiply_adds;
    }
    if (all) qsort(all, *n, sizeof *all, by_time);
    return all;
}

/* The times of a pass: the least of some runs. */
typedef struct pass_times {
    double  *ns, *best;         /* of each dispatch: of this run, of the fastest */
    double   plain, stamped;    /* the whole, without and with a stamp behind each dispatch */
    uint32_t submits;
} pass_times;

static nova_result time_pass(bench *b, vk_machine *m, pass_list *p, bool at_once, pass_times *t) {
    uint64_t start = clock_ns();
    double   total;
    t->ns   = (double *)calloc(p->l.n + 1, sizeof *t->ns);
    t->best = (double *)calloc(p->l.n + 1, sizeof *t->best);
    if (!t->ns || !t->best) return fail_memory(&b->error, p->l.n * sizeof *t->ns, "times");
    TRY(vk_compile(b->d, p->l.at, p->l.n, &b->error));
    for (uint32_t i = 0; i == 0 || (i < 30 && clock_ns() - start < SLOW_NS); i++) {
        TRY(run_pieces(b, m, p, at_once, NULL, &total, &t->submits));
        if (i == 0 || total < t->plain) t->plain = total;
        TRY(run_pieces(b, m, p, at_once, t->ns, &total, &t->submits));
        if (i && total >= t->stamped) continue;
        t->stamped = total;
        memcpy(t->best, t->ns, p->l.n * sizeof *t->ns);
    }
    return NOVA_OK;
}

static nova_result put_times(bench *b, const char *key, const pass_shape *s, uint32_t position, const pass_list *p,
                             const pass_times *t) {
    uint32_t n;
    group   *groups = sum_groups(p, t->best, &n);
    if (!groups) return fail_memory(&b->error, p->l.n * sizeof *groups, "kernels");
    put_open(key, '{');
    put_number("columns", s->n_col);
    put_number("position", position);
    put_number("dispatches", p->l.n);
    put_number("submits", t->submits);
    put_number("ns", t->plain);
    if (b->stamps) put_number("ns_stamped", t->stamped);
    put_open("kernels", '[');
    for (uint32_t i = 0; i < n; i++) put_group(b->d, &groups[i], b->stamps != VK_NULL_HANDLE);
    put_close(']');
    put_close('}');
    free(groups);
    return NOVA_OK;
}

static nova_result put_pass(bench *b, vk_machine *m, const char *key, const pass_shape *s, bool is_token,
                            uint32_t position) {
    pass_list   p;
    pass_times  t;
    memset(&t, 0, sizeof t);
    nova_result result = pass_list_make(&p, m, s, is_token) ? NOVA_OK : fail_memory(&b->error, 0, "a pass");
    if (result == NOVA_OK) result = time_pass(b, m, &p, is_token, &t);
    if (result == NOVA_OK) result = put_times(b, key, s, position, &p, &t);
    free(t.ns), free(t.best);
    pass_list_free(&p);
    return result;
}

/* A text of `at` tokens and n_col more, in pages 0, 1, ... of the machine's cache. */
static void place_text(vk_machine *m, uint32_t *table, uint32_t at, uint32_t n_col, const int32_t *ids) {
    kv_seq   seq;
    pass_run run;
    pass     p;
    memset(&seq, 0, sizeof seq);
    memset(&run, 0, sizeof run);
    memset(&p, 0, sizeof p);
    seq.table    = table;
    seq.capacity = m->desc.max_pages;
    seq.n_pages  = (at + n_col + KV_PAGE - 1) / KV_PAGE;
    seq.n_tokens = at;
    run.seq      = &seq;
    run.n_col    = n_col;
    run.n_out    = 1;
    p.n_col = n_col, p.n_run = 1, p.n_out = 1;
    p.ids  = ids;
    p.runs = &run;
    for (uint32_t i = 0; i < seq.n_pages; i++) table[i] = i;
    write_now(m, &p);
}

static nova_result bench_passes(bench *b, nova_engine *e) {
    vk_machine *m = last_machine(e->gpu);
    uint32_t    n = m->desc.n_batch;
    uint32_t   *table = (uint32_t *)calloc(m->desc.max_pages, sizeof *table);
    int32_t    *ids   = (int32_t *)calloc(n, sizeof *ids);
    pass_shape  s;
    nova_result result = table && ids ? NOVA_OK : fail_memory(&b->error, n, "ids");
    b->d = m->dev;
    stamps_open(b);
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; ids && i < n; i++) ids[i] = (int32_t)test_below(e->model->n_vocab);
    s.n_col = n, s.n_out = 1, s.kept = n > 1;
    if (result == NOVA_OK) place_text(m, table, 0, n, ids);
    if (result == NOVA_OK) result = put_pass(b, m, "prompt", &s, false, 0);
    s.n_col = 1, s.kept = false;
    if (result == NOVA_OK) place_text(m, table, n, 1, ids);
    if (result == NOVA_OK) result = put_pass(b, m, "token", &s, true, n);
    put_clock(b);
    stamps_drop(b, "");
    free(table);
    free(ids);
    return result;
}

/* Feeds a prompt, so that the machine knows the device's pace. */
static nova_result warm_up(bench *b, nova_engine *e) {
    nova_session *s   = nova_session_open(e, NULL, &b->error);
    uint32_t      n   = e->plan.n_batch;
    int32_t      *ids = (int32_t *)calloc(n, sizeof *ids);
    for (uint32_t i = 0; ids && i < n; i++) ids[i] = (int32_t)test_below(e->model->n_vocab);
    nova_result result = s && ids ? nova_session_feed(s, ids, n, &b->error) : b->error.code;
    free(ids);
    nova_session_close(s);
    return result;
}

static int bench_model(bench *b, const char *device, const char *path, const char *batch) {
    nova_model_desc  file;
    nova_engine_desc desc;
    nova_engine_info info;
    memset(&file, 0, sizeof file);
    memset(&desc, 0, sizeof desc);
    file.path   = path;
    desc.device = device;
    desc.n_batch = batch ? (uint32_t)strtoul(batch, NULL, 10) : 0;
    desc.n_ctx   = 512 + KV_PAGE;
    nova_model  *model  = nova_model_open(&file, &b->error);
    nova_engine *engine = nova_engine_open(model, &desc, &b->error);
    nova_result  result = engine ? NOVA_OK : b->error.code;
    if (result == NOVA_OK) nova_engine_get_info(engine, &info);
    if (result == NOVA_OK && !info.gpu_layers) result = fail(&b->error, NOVA_ERROR_DEVICE, "no layer is on the GPU");
    if (result == NOVA_OK) result = warm_up(b, engine);
    if (result == NOVA_OK) {
        put_open(NULL, '{');
        put_number("gpu_layers", info.gpu_layers);
        put_number("n_layers", info.n_layers);
        put_number("n_batch", info.n_batch);
        put_number("vram_bytes", (double)info.vram_bytes);
        result = bench_passes(b, engine);
        put_close('}');
        printf("\n");
    }
    nova_engine_close(engine);
    nova_model_close(model);
    return result == NOVA_OK ? 0 : 1;
}

int main(int argc, char **argv) {
    bench b;
    int   status = 2;
    memset(&b, 0, sizeof b);
    b.h       = host_init(NULL, NULL, NULL, NULL);
    test_seed = 1;
    if (argc >= 2 && argc <= 3 && !strcmp(argv[1], "device")) status = bench_device(&b, argc > 2 ? argv[2] : "gpu");
    else if (argc >= 4 && argc <= 5 && !strcmp(argv[1], "model")) status = bench_model(&b, argv[2], argv[3], argv[4]);
    else fprintf(stderr, "usage: bench_gpu device [DEVICE] | bench_gpu model DEVICE FILE [BATCH]\n");
    if (status == 1) fprintf(stderr, "bench_gpu: %s\n", b.error.message);
    return status;
}
#endif
