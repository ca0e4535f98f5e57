/* The choice of tokens on a Vulkan device, against a full sort. */
#include "vk_guard.h"

#ifndef NOVA_NO_VULKAN

static vk_device *device;
static nova_error problem;
static vk_slice   all;

#define OK(call) CHECK((call) == NOVA_OK, "%s", problem.message)

#define GUARD       0xa5c3a5c3u
#define GUARD_BYTES 1024

static vk_slice slice_at(uint64_t offset, uint64_t size) {
    vk_slice s = all;
    s.offset += offset, s.size = size;
    if (s.map) s.map += offset;
    return s;
}

static int by_logit(const void *a, const void *b) {
    const vk_choice *x = (const vk_choice *)a, *y = (const vk_choice *)b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static void check_row(const float *logits, uint32_t n, uint32_t k, const uint8_t *got, const char *what) {
    vk_choices head;
    vk_choice *want = (vk_choice *)malloc(n * sizeof *want);
    uint32_t   wrong = 0, some = k < n ? k : n;
    double     sum = 0;
    if (!want) exit(2);
    memcpy(&head, got, sizeof head);
    for (uint32_t i = 0; i < n; i++) want[i].id = i, want[i].logit = logits[i];
    qsort(want, n, sizeof *want, by_logit);
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)want[0].logit);
    for (uint32_t i = 0; i < k; i++) {
        vk_choice c;
        memcpy(&c, got + sizeof head + i * sizeof c, sizeof c);
        if (i < some) wrong += c.id != want[i].id || c.logit != want[i].logit;
        else wrong += c.id != UINT32_MAX;
    }
    CHECK(wrong == 0 && head.n == some && head.odd == 0, "%s, %u of %u: %u wrong, n %u, odd %u", what, k, n, wrong,
          head.n, head.odd);
    CHECK(head.top == want[0].logit && fabs((double)head.sum / sum - 1) < 2e-6,
          "%s, %u of %u: top %g (%g), sum %.9g (%.9g)", what, k, n, (double)head.top, (double)want[0].logit, (double)head.sum, sum);
    free(want);
}

/* Rows of logits by `kind`: smooth, few values (ties), all equal, one peak, signed zeros. */
static const char *kinds[] = { "uniform", "ties", "equal", "peak", "zeros", "wide" };

static float logit_of(int kind, uint32_t i) {
    switch (kind) {
    case 1: return (float)test_below(7);
    case 2: return -3.25f;
    case 3: return i == 77 ? 30.0f : test_uniform();
    case 4: return test_below(2) ? 0.0f : -0.0f;
    case 5: return ldexpf(test_uniform(), (int)test_below(120) - 60);
    default: return test_uniform() * 20;
    }
}

static vk_choose case_choose(uint32_t n, uint32_t rows, uint32_t k) {
    vk_choose c;
    memset(&c, 0, sizeof c);
    c.n_rows = rows, c.n_vocab = n, c.ld = (n + 31) / 32 * 32, c.k = k, c.barrier = true;
    uint64_t at = GUARD_BYTES, bytes[3];
    bytes[0] = (uint64_t)rows * c.ld * sizeof(float);
    bytes[1] = vk_choose_scratch(device, &c);
    bytes[2] = rows * vk_choose_row_bytes(k);
    vk_slice *to[3];
    to[0] = &c.logits, to[1] = &c.parts, to[2] = &c.out;
    for (int i = 0; i < 3; i++) {
        *to[i] = slice_at(at, bytes[i]);
        at     = (at + bytes[i] + GUARD_BYTES + 255) / 256 * 256;
    }
    if (at > all.size) exit(2);
    return c;
}

static uint32_t guards_wrong(const vk_slice *s) {
    uint32_t words[GUARD_BYTES / 4], wrong = 0;
    for (int side = 0; side < 2; side++) {
        uint64_t at = s->offset - all.offset + (side ? s->size : 0) - (side ? 0 : GUARD_BYTES);
        OK(vk_read(device, &all, at, words, side ? 256 : GUARD_BYTES, &problem));
        for (uint32_t i = 0; i < (side ? 64 : GUARD_BYTES / 4); i++) wrong += words[i] != GUARD;
    }
    return wrong;
}

static void check_choose(uint32_t n, uint32_t rows, uint32_t k, int kind, bool odd) {
    vk_choose c = case_choose(n, rows, k);
    vk_list   list;
    float    *logits = (float *)malloc(c.logits.size);
    uint8_t  *got = (uint8_t *)malloc(c.out.size);
    if (!logits || !got) exit(2);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < c.ld; i++) logits[(size_t)r * c.ld + i] = i < n ? logit_of(kind, i) : 0;   /* the pad */
    static const uint32_t strange[] = { 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu };
    if (odd)
        for (uint32_t r = 0; r < rows; r++)
            memcpy(&logits[(size_t)r * c.ld + test_below(n)], &strange[test_below(4)], sizeof(float));
    OK(vk_fill(device, &all, GUARD, &problem));
    OK(vk_write(device, &c.logits, 0, logits, c.logits.size, &problem));
    vk_list_init(&list, &device->h);
    vk_choose_add(device, &list, &c);
    OK(vk_run_list(device, list.at, list.n, &problem));
    vk_list_free(&list);
    OK(vk_read(device, &c.out, 0, got, c.out.size, &problem));
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *row = got + r * vk_choose_row_bytes(k);
        vk_choices     head;
        memcpy(&head, row, sizeof head);
        if (odd) CHECK(head.odd == 1, "not finite, and not seen");
        else check_row(logits + (size_t)r * c.ld, n, k, row, kinds[kind]);
    }
    CHECK(guards_wrong(&c.logits) + guards_wrong(&c.parts) + guards_wrong(&c.out) == 0, "guards were overwritten");
    free(logits);
    free(got);
}

static void bench(void) {
    static const uint32_t ks[] = { 1, 64, 256 };
    for (int i = 0; i < 3; i++) {
        vk_choose c = case_choose(128256, 1, ks[i]);
        vk_list   list;
        float     x[1024];
        for (uint32_t at = 0; at < 128256; at += 1024) {
            for (uint32_t j = 0; j < 1024; j++) x[j] = test_uniform() * 20;
            size_t some = size_min(1024, 128256 - at) * sizeof(float);
            OK(vk_write(device, &c.logits, at * sizeof(float), x, some, &problem));
        }
        vk_list_init(&list, &device->h);
        for (int j = 0; j < 10; j++) vk_choose_add(device, &list, &c);
        double best = 1e30;
        for (int j = 0; j < 4; j++) {
            double start = (double)clock_ns();
            OK(vk_run_list(device, list.at, list.n, &problem));
            best = fmin(best, ((double)clock_ns() - start) / 10);
        }
        printf("%u of 128256: %.1f us\n", ks[i], best * 1e-3);
        vk_list_free(&list);
    }
}

static void run_all(void) {
    static const uint32_t sizes[] = { 1, 2, 3, 15, 31, 127, 256, 257, 1000, 4095, 4096, 4097, 32000, 50257 };
    for (int round = 0; round < 60; round++) {
        uint32_t n = round < 40 ? sizes[test_below(COUNT_OF(sizes))] : 1 + test_below(20000);
        uint32_t k = test_below(3) ? 1 + test_below(VK_CHOOSE_MOST) : test_below(2) ? 1 : VK_CHOOSE_MOST;
        check_choose(n, 1 + test_below(4), k, (int)test_below(COUNT_OF(kinds)), false);
    }
    check_choose(300000, 1, 256, 0, false);
    check_choose(300000, 1, 256, 2, false);
    check_choose(128256, 2, 1, 1, false);
    for (int round = 0; round < 8; round++) check_choose(1 + test_below(9000), 2, 1 + 63 * test_below(2), 0, true);
}

int main(int argc, char **argv) {
    host h = host_init(NULL, NULL, NULL, NULL);
    test_begin(1);
    device = guarded_device(&h, 0, 0, false);
    if (!device) return test_end();
    printf("%s\n", device->caps.name);
    OK(vk_take(device, VK_USE_DEVICE, 8u << 20, &all, &problem));
    if (argc > 1 && !strcmp(argv[1], "bench")) bench();
    else {
        /* The shapes of workgroups differ between GPUs and CPUs: each device runs both. */
        VkPhysicalDeviceType own = device->caps.type;
        device->caps.type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
        run_all();
        device->caps.type = VK_PHYSICAL_DEVICE_TYPE_CPU;
        run_all();
        device->caps.type = own;
    }
    vk_device_close(device);
    return test_end();
}

#endif
