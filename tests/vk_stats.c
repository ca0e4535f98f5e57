/* What the driver's compiler makes of the multiplications for many columns: for each path, format and epilogue its
 * statistics and, counted in its own disassembly, matrix, dot and packed instructions. Works on stand-ins, since
 * nothing runs. Arguments: a path alone ("matrix f16"), a format alone ("Q4_0"), "code" to see the first pipeline's.
 * Fails where something spills, or where a path over matrices has no matrix instruction. */
#include "vk_guard.h"

#ifndef NOVA_NO_VULKAN

static uint32_t count_of(const char *text, const char *word) {
    uint32_t n = 0;
    for (const char *p = strstr(text, word); p; p = strstr(p + 1, word)) n++;
    return n;
}

/* Names that the drivers' disassemblers use. */
static const char *const instructions[3][4] = {
    {"hmma", "imma", "v_wmma", "v_swmmac"},
    {"idp4", "dp4acc", "v_dot4", "v_dot8"},
    {"hfma2", "v_pk_fma_f16", "v_pk_mul_f16", "v_fma_mix"}};

static uint32_t instructions_of(const char *code, int kind) {
    uint32_t n = 0;
    for (int i = 0; i < 4; i++) n += count_of(code, instructions[kind][i]);
    return n;
}

static bool is_spill(const char *name) { return strstr(name, "pill") || strstr(name, "cratch"); }
static bool is_shown(const char *name) {
    static const char *const words[] = {"Instruction", "VGPRs", "GPRs", "Register", "LDS", "Occupancy", "Waves"};
    if (strstr(name, "SGPR")) return false;
    for (uint32_t i = 0; i < COUNT_OF(words); i++)
        if (strstr(name, words[i])) return true;
    return false;
}

static void show(vk_device *d, vk_path path, uint32_t format, op_epilogue epilogue, uint32_t n_out, uint32_t n_col,
                 bool print) {
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
    if (!vk_matmul_can(d, &m, path) || !is_worth(d, &m, path)) return;
    m.path = 1 + (uint32_t)path;
    vk_list_init(&list, &d->h);
    vk_matmul_add(d, &list, &m);
    uint64_t start = clock_ns();
    MUST(vk_compile(d, list.at, list.n, error));
    double took = (double)(clock_ns() - start) * 1e-9;
    vk_statistics *n = (vk_statistics *)malloc(sizeof *n);
    if (!n) exit(2);
    MUST(vk_statistics_get(d, list.at[0].pipeline, n, error));
    vk_tile     t    = tile_for(d, &m, path);
    const char *type = type_of(planar_layouts[format].type)->name, *code = n->code ? n->code : "";
    bool        spills = false;
    printf("%-10s %-4s%-4s tile %3u x %3u, %3u lanes:", vk_path_name(path), type, epilogues[epilogue], t.rows, t.cols,
           t.local);
    for (uint32_t i = 0; i < n->n; i++) {
        if (is_spill(n->names[i]) && n->values[i] > 0) spills = true;
        if (is_shown(n->names[i]) || (is_spill(n->names[i]) && n->values[i] > 0))
            printf(" %s %.0f,", n->names[i], n->values[i]);
    }
    printf(" matrix %u, dot %u, packed %u, %.2f s\n", instructions_of(code, 0), instructions_of(code, 1),
           instructions_of(code, 2), took);
    if (print) printf("%s\n", code);
    CHECK(!spills, "%s %s spills", vk_path_name(path), type);
    CHECK(!is_matrix_path(path) || instructions_of(code, 0) > 0, "%s %s: no matrix instruction", vk_path_name(path),
          type);
    vk_statistics_free(d, n);
    free(n);
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
    for (uint32_t i = 0; i < d->caps.n_matrices; i++) {
        const vk_matrix *x = &d->caps.matrices[i];
        printf("  matrix %u x %u x %u of types %d %d %d\n", x->m, x->n, x->k, (int)x->a, (int)x->b, (int)x->c);
    }
    for (int path = 0; path < VK_PATH_COUNT; path++) {
        if (argc > 1 && strcmp(argv[1], vk_path_name((vk_path)path))) continue;
        for (uint32_t f = 0; f < GPU_FORMAT_COUNT; f++) {
            if (argc > 2 && strcmp(argv[2], type_of(planar_layouts[f].type)->name)) continue;
            show(d, (vk_path)path, f, EPILOGUE_NONE, 4096, 512, argc > 3);
            if (argc > 3) break;
        }
        if (argc > 2) continue;
        show(d, (vk_path)path, GPU_Q4_0, EPILOGUE_GLU, 4096, 512, false);
        show(d, (vk_path)path, GPU_Q4_0, EPILOGUE_ADD, 576, 64, false);
    }
    vk_device_close(d);
    return test_end();
}
#endif
