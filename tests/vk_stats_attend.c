/* What the driver's compiler makes of attention and choice: registers, spills, scratch and, counted in the driver's own
 * disassembly, matrix instructions. Works on stand-ins, since nothing runs. An argument prints the disassembly of the pipelines
 * whose line begins with it. Fails where something spills, or where the matrix path has no matrix instruction. */
#include "vk_guard.h"

#ifndef NOVA_NO_VULKAN

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
static uint64_t spills_of(const vk_statistics *s, bool strict) {
    static const char *const shown[] = { "Instruction", "VGPRs", "GPRs", "Max Waves", "Occup", "LDS", "nverse", "Latency" };
    uint64_t spills = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t value = (uint64_t)s->values[i];
        bool     show  = is_spill(s->names[i], true) && value;
        if (is_spill(s->names[i], strict)) spills += value;
        else
            for (size_t k = 0; k < COUNT_OF(shown); k++) show |= strstr(s->names[i], shown[k]) && !strstr(s->names[i], "SGPR");
        if (show) printf(" %s %llu,", s->names[i], (unsigned long long)value);
    }
    return spills;
}

static uint32_t matrix_instructions(const char *code) { return count_of(code, "hmma") + count_of(code, "v_wmma") + count_of(code, "v_swmmac"); }

static void show(vk_device *d, vk_list *list, const char *what, const char *wanted, bool matrix) {
    vk_statistics *s = (vk_statistics *)malloc(sizeof *s);
    if (!s) exit(2);
    OK(vk_compile(d, list->at, list->n, &problem));
    for (uint32_t i = 0; i < list->n; i++) {
        char name[128];
        OK(vk_statistics_get(d, list->at[i].pipeline, s, &problem));
        snprintf(name, sizeof name, "%s %s", vk_kernels[list->at[i].kernel].name, what);
        printf("%-28s %3u lanes:", name, list->at[i].spec[0]);
        uint64_t spills = spills_of(s, matrix);
        uint32_t found  = s->code ? matrix_instructions(s->code) : 0;
        printf(" matrix %u\n", found);
        if (s->code && wanted && !strncmp(name, wanted, strlen(wanted))) printf("%s\n", s->code);
        CHECK(spills == 0, "%s spills", name);
        CHECK(!matrix || found, "%s: no matrix instruction", name);
        vk_statistics_free(d, s);
    }
    free(s);
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
    host h = host_init(NULL, NULL, NULL, NULL);
    const char *wanted = argc > 1 ? argv[1] : NULL;
    test_begin(1);
    vk_device *d = guarded_device(&h, 0, 0, false);
    if (!d) return test_end();
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
