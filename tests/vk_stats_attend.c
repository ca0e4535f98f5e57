/* What the driver's compiler makes of attention and choice: registers, spills, scratch and, counted in the driver's own
 * disassembly, matrix instructions. Works on stand-ins, since nothing runs. An argument prints the disassembly of the pipelines
 * whose line begins with it. Fails where something spills, or where the matrix path has no matrix instruction. */
#include "nova.c"

#include "test.h"

#ifdef NOVA_NO_VULKAN

int main(void) {
    SKIP("built without Vulkan");
    return test_end();
}

#else

static nova_error problem;

#define OK(call) CHECK((call) == NOVA_OK, "%s", problem.message)

static uint32_t count_of(const char *text, const char *word) {
    uint32_t n = 0;
    for (const char *p = strstr(text, word); p; p = strstr(p + 1, word)) n++;
    return n;
}

/* "Spills to reg": from predicates and uniform registers to ordinary ones, which costs a move; asked of the matrix path alone. */
static bool is_spill(const char *name, bool strict) {
    if (!strict && strstr(name, "to reg")) return false;
    return strstr(name, "pill") || strstr(name, "cratch") || !strcmp(name, "SLM Size");
}

/* Prints what the compiler says; gives what spilled. */
static uint64_t statistics(const vk_device *d, const VkPipelineExecutableInfoKHR *info, bool strict) {
    static const char *const shown[] = { "Instruction", "VGPRs", "GPRs", "Max Waves", "Occup", "LDS", "nverse", "Latency" };
    VkPipelineExecutableStatisticKHR all[64];
    uint32_t n = 64;
    uint64_t spills = 0;
    memset(all, 0, sizeof all);
    for (int i = 0; i < 64; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    d->api.GetPipelineExecutableStatisticsKHR(d->device, info, &n, all);
    for (uint32_t i = 0; i < n; i++) {
        bool show = is_spill(all[i].name, true) && all[i].value.u64;
        if (is_spill(all[i].name, strict)) spills += all[i].value.u64;
        else
            for (size_t k = 0; k < COUNT_OF(shown); k++) show |= strstr(all[i].name, shown[k]) && !strstr(all[i].name, "SGPR");
        if (show) printf(" %s %llu,", all[i].name, (unsigned long long)all[i].value.u64);
    }
    return spills;
}

/* Matrix instructions in the last text that has any: the machine's. */
static uint32_t matrix_instructions(const vk_device *d, const VkPipelineExecutableInfoKHR *info, bool print) {
    VkPipelineExecutableInternalRepresentationKHR all[16];
    uint32_t n = 16, found = 0;
    memset(all, 0, sizeof all);
    for (int i = 0; i < 16; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    d->api.GetPipelineExecutableInternalRepresentationsKHR(d->device, info, &n, all);
    for (uint32_t i = 0; i < n; i++) all[i].pData = calloc(1, all[i].dataSize + 1);
    d->api.GetPipelineExecutableInternalRepresentationsKHR(d->device, info, &n, all);
    for (uint32_t i = 0; i < n; i++) {
        const char *text = (const char *)all[i].pData;
        uint32_t    some = count_of(text, "hmma") + count_of(text, "v_wmma") + count_of(text, "v_swmmac");
        if (some) found = some;
        if (print) printf("\n==== %s\n%s\n", all[i].name, text);
        free(all[i].pData);
    }
    return found;
}

static void show(vk_device *d, vk_list *list, const char *what, const char *wanted, bool matrix) {
    OK(vk_compile(d, list->at, list->n, &problem));
    for (uint32_t i = 0; i < list->n; i++) {
        VkPipelineExecutableInfoKHR info;
        char name[128];
        memset(&info, 0, sizeof info);
        info.sType    = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
        info.pipeline = d->pipelines[list->at[i].pipeline].handle;
        snprintf(name, sizeof name, "%s %s", vk_kernels[list->at[i].kernel].name, what);
        printf("%-28s %3u lanes:", name, list->at[i].spec[0]);
        uint64_t spills = statistics(d, &info, matrix);
        uint32_t found  = matrix_instructions(d, &info, wanted && !strncmp(name, wanted, strlen(wanted)));
        printf(" matrix %u\n", found);
        CHECK(spills == 0, "%s spills", name);
        CHECK(!matrix || found, "%s: no matrix instruction", name);
    }
    vk_list_free(list);
}

static void show_attend(vk_device *d, attend_path path, uint32_t dim, uint32_t n_rep, bool f32, const char *wanted) {
    vk_now    now;
    vk_cache  cache;
    vk_attend a;
    vk_list   list;
    char      what[64];
    memset(&now, 0, sizeof now);
    memset(&cache, 0, sizeof cache);
    memset(&a, 0, sizeof a);
    cache.n_head_kv = 8, cache.head_dim_k = cache.head_dim_v = dim, cache.k_f32 = cache.v_f32 = f32;
    a.now = &now, a.cache = &cache, a.n_head = 8 * n_rep, a.n_rot = dim, a.n_ctx = 4096, a.n_run = 1;
    a.n_col = path == ATTEND_FEW ? 1 : 512;
    a.scale = 1, a.path = path;
    if (vk_attend_path(d, &a) != path) return;
    vk_list_init(&list, &d->h);
    vk_attend_add(d, &list, &a);
    snprintf(what, sizeof what, "%u x %u%s", n_rep, dim, f32 ? " f32" : "");
    show(d, &list, what, wanted, path == ATTEND_MANY_MATRIX);
}

static void show_rest(vk_device *d, const char *wanted) {
    vk_now    now;
    vk_cache  cache;
    vk_store  s;
    vk_choose c;
    vk_list   list;
    memset(&now, 0, sizeof now);
    memset(&cache, 0, sizeof cache);
    memset(&s, 0, sizeof s);
    memset(&c, 0, sizeof c);
    cache.n_head_kv = 8, cache.head_dim_k = cache.head_dim_v = 128;
    s.now = &now, s.cache = &cache, s.n_col = 512, s.n_head = 32, s.n_rot = 128;
    vk_list_init(&list, &d->h);
    vk_store_add(d, &list, &s);
    show(d, &list, "", wanted, false);
    for (uint32_t k = 1; k <= 64; k += 63) {
        char what[16];
        c.n_rows = 1, c.n_vocab = 128256, c.ld = 128256, c.k = k;
        vk_list_init(&list, &d->h);
        vk_choose_add(d, &list, &c);
        snprintf(what, sizeof what, "%u", k);
        show(d, &list, what, wanted, false);
    }
}

int main(int argc, char **argv) {
    host           h = host_init(NULL, NULL, NULL, NULL);
    vk_device     *d;
    vk_device_desc desc;
    const char    *wanted = argc > 1 ? argv[1] : NULL;
    test_begin(1);
    memset(&desc, 0, sizeof desc);
    desc.want = "gpu";
    if (vk_device_open(&d, &h, &desc, &problem) != NOVA_OK) {
        SKIP("no device: %s", problem.message);
        return test_end();
    }
    printf("%s\n", d->caps.name);
    if (d->caps.can & VK_CAN_EXECUTABLE) {
        static const uint32_t dims[] = { 64, 80, 96, 128, 256 };
        d->statistics = true;
        show_rest(d, wanted);
        for (int path = ATTEND_FEW; path <= ATTEND_MANY_MATRIX; path++)
            for (size_t i = 0; i < COUNT_OF(dims); i++) show_attend(d, (attend_path)path, dims[i], 4, false, wanted);
        show_attend(d, ATTEND_FEW, 128, 1, false, wanted);
        show_attend(d, ATTEND_FEW, 128, 8, false, wanted);
        show_attend(d, ATTEND_FEW, 128, 7, true, wanted);
        show_attend(d, ATTEND_MANY_F32, 128, 4, true, wanted);
    } else SKIP("%s tells nothing of its pipelines", d->caps.name);
    vk_device_close(d);
    return test_end();
}

#endif
