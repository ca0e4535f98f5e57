/* What the driver's compiler makes of the multiplications for many columns: for each path, format and epilogue registers, spills, scratch
 * and, counted in the driver's own disassembly, matrix and dot instructions. Works on stand-ins, since nothing runs. With an argument:
 * its paths alone ("matrix f16"); with a second one, the disassembly of the first pipeline. Fails where something spills, or where a
 * matrix path has no matrix instruction. */
#define NOVA_TEST_STAYS
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

#ifdef NOVA_NO_VULKAN
int main(void) {
    test_begin(1);
    SKIP("built without Vulkan");
    return test_end();
}
#else
#include "vk_guard.h"

static uint32_t count_of(const char *text, const char *word) {
    uint32_t n = 0;
    for (const char *p = strstr(text, word); p; p = strstr(p + 1, word)) n++;
    return n;
}

/* Matrix, dot and packed instructions in the text of the last representation that has any: the machine's. */
static void count_instructions(const char *text, uint32_t counts[3]) {
    static const char *const words[3][4] = {{"hmma", "imma", "v_wmma", "v_swmmac"}, {"idp4", "v_dot4", "dp4a", "v_dot8"},
                                            {"hfma2", "v_pk_fma_f16", "v_pk_mul_f16", "v_fma_mix"}};
    uint32_t found[3];
    for (int i = 0; i < 3; i++) {
        found[i] = 0;
        for (int k = 0; k < 4; k++) found[i] += count_of(text, words[i][k]);
    }
    if (found[0] + found[1] + found[2]) memcpy(counts, found, sizeof found);
}

static bool is_spill(const char *name) { return strstr(name, "pill") || strstr(name, "cratch") || !strcmp(name, "SLM Size"); }

typedef struct numbers {
    char     text[256];
    bool     spills;
    uint32_t counts[3];
} numbers;

static void read_statistics(vk_device *d, VkPipelineExecutableInfoKHR *info, numbers *n) {
    VkPipelineExecutableStatisticKHR all[64];
    uint32_t count = 64;
    memset(all, 0, sizeof all);
    for (int i = 0; i < 64; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    d->api.GetPipelineExecutableStatisticsKHR(d->device, info, &count, all);
    for (uint32_t i = 0; i < count; i++) {
        static const char *const shown[] = {"Instruction", "VGPRs", "GPRs", "Max Waves", "Occup", "LDS", "nverse", "Cycle", "Latency"};
        bool show = is_spill(all[i].name) && all[i].value.u64;
        if (is_spill(all[i].name) && all[i].value.u64) n->spills = true;
        for (uint32_t k = 0; k < COUNT_OF(shown); k++) show |= strstr(all[i].name, shown[k]) && !strstr(all[i].name, "SGPR") && !strstr(all[i].name, "pill");
        size_t at = strlen(n->text);
        if (show) snprintf(n->text + at, sizeof n->text - at, " %s %llu,", all[i].name, (unsigned long long)all[i].value.u64);
    }
}

static void read_code(vk_device *d, VkPipelineExecutableInfoKHR *info, numbers *n, bool print) {
    VkPipelineExecutableInternalRepresentationKHR all[16];
    uint32_t count = 16;
    memset(all, 0, sizeof all);
    for (int i = 0; i < 16; i++) all[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    d->api.GetPipelineExecutableInternalRepresentationsKHR(d->device, info, &count, all);
    for (uint32_t i = 0; i < count; i++) all[i].pData = calloc(1, all[i].dataSize + 1);
    d->api.GetPipelineExecutableInternalRepresentationsKHR(d->device, info, &count, all);
    for (uint32_t i = 0; i < count; i++) {
        count_instructions((const char *)all[i].pData, n->counts);
        if (print) printf("==== %s\n%s\n", all[i].name, (const char *)all[i].pData);
        free(all[i].pData);
    }
}

static numbers numbers_of(vk_device *d, VkPipeline pipeline, bool print) {
    VkPipelineInfoKHR           whole;
    VkPipelineExecutableInfoKHR info;
    numbers                     n;
    memset(&whole, 0, sizeof whole);
    memset(&info, 0, sizeof info);
    memset(&n, 0, sizeof n);
    info.sType    = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
    info.pipeline = pipeline;
    read_statistics(d, &info, &n);
    read_code(d, &info, &n, print);
    return n;
}

static void show(vk_device *d, vk_path path, uint32_t format, op_epilogue epilogue, uint32_t n_out, uint32_t n_col, bool print) {
    static const char *const epilogues[] = {"", " add", " act", " glu"};
    vk_part   part;
    vk_weight w;
    vk_matmul m;
    vk_list   list;
    memset(&part, 0, sizeof part);
    memset(&w, 0, sizeof w);
    memset(&m, 0, sizeof m);
    part.n_rows = n_out;
    w.format = (vk_format)format, w.n_in = w.n_pad = 4096, w.n_out = n_out, w.n_parts = 1, w.parts = &part;
    m.w[0] = &w, m.w[1] = epilogue == EPILOGUE_GLU ? &w : NULL;
    m.xq.size = m.scratch.size = m.x.size = 4;
    m.ld_x = 4096, m.ld_y = n_out, m.n_col = n_col, m.epilogue = epilogue, m.act = ACT_SILU;
    m.packed = true;
    if (!vk_matmul_can(d, &m, path)) return;
    m.path = 1 + (uint32_t)path;
    vk_list_init(&list, &d->h);
    vk_matmul_add(d, &list, &m);
    uint64_t start = clock_ns();
    MUST(vk_compile(d, list.at, list.n, error));
    double  took = (double)(clock_ns() - start) * 1e-9;
    numbers n    = numbers_of(d, d->pipelines[list.at[0].pipeline].handle, print);
    bool    matrix = is_matrix_path(path);
    vk_tile t = tile_for(d, &m, path);
    const char *type = type_of(planar_layouts[format].type)->name;
    printf("%-10s %-4s%-4s tile %3u x %3u, %3u lanes:%s matrix %u, dot %u, packed %u, %.2f s\n", vk_path_name(path), type, epilogues[epilogue],
           t.rows, t.cols, t.local, n.text, n.counts[0], n.counts[1], n.counts[2], took);
    CHECK(!n.spills, "%s %s spills", vk_path_name(path), type);
    CHECK(!matrix || n.counts[0] > 0, "%s %s: no matrix instruction", vk_path_name(path), type);
    vk_list_free(&list);
}

int main(int argc, char **argv) {
    host h = host_init(NULL, NULL, NULL, NULL);
    test_begin(1);
    vk_device *d = guarded_device(&h, 0, 0, false);
    if (!d) return test_end();
    if (!(d->caps.can & VK_CAN_EXECUTABLE)) {
        SKIP("%s tells nothing of its pipelines", d->caps.name);
        vk_device_close(d);
        return test_end();
    }
    d->statistics = true;
    printf("%s\n", d->caps.name);
    for (uint32_t i = 0; i < d->caps.n_matrices; i++)
        printf("  matrix %u x %u x %u of types %d %d %d\n", d->caps.matrices[i].m, d->caps.matrices[i].n, d->caps.matrices[i].k,
               (int)d->caps.matrices[i].a, (int)d->caps.matrices[i].b, (int)d->caps.matrices[i].c);
    for (int path = 0; path < VK_PATH_COUNT; path++) {
        if (argc > 1 && strcmp(argv[1], vk_path_name((vk_path)path))) continue;
        for (uint32_t f = 0; f < GPU_FORMAT_COUNT; f++) {
            if (argc > 2 && strcmp(argv[2], type_of(planar_layouts[f].type)->name)) continue;
            show(d, (vk_path)path, f, EPILOGUE_NONE, 4096, 512, argc > 3);
            if (argc > 3) return test_end();
        }
        show(d, (vk_path)path, GPU_Q4_0, EPILOGUE_GLU, 4096, 512, false);
        show(d, (vk_path)path, GPU_Q4_0, EPILOGUE_ADD, 576, 64, false);
    }
    vk_device_close(d);
    return test_end();
}
#endif
