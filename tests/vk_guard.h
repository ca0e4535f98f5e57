/* For the tests of the Vulkan kernels, first of all in them: nova.c, a device, buffers between guards, weights of every format at
 * random. Without Vulkan the program is a skip. */
#ifndef NOVA_VK_GUARD_H
#define NOVA_VK_GUARD_H

#define NOVA_TEST_STAYS   /* the tests' own sums are compiled by the rules of nova.c */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#include "test.h"

#ifdef NOVA_NO_VULKAN

#ifndef GUARD_OWN_MAIN   /* who defines it says by himself that there is nothing to do */
int main(void) {
    test_begin(1);
    SKIP("built without Vulkan");
    return test_end();
}
#endif

#else

#define GUARD_BYTES 256u
#define GUARD_WORD  0xffc5a5a5u   /* a NaN: whoever reads a guard shows it in his result */

#define MUST(call)                                                                                    \
    do {                                                                                              \
        nova_error must_error;                                                                        \
        memset(&must_error, 0, sizeof must_error);                                                    \
        nova_error *error = &must_error;                                                              \
        if ((call) != NOVA_OK) {                                                                      \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, must_error.message);                  \
            exit(2);                                                                                  \
        }                                                                                             \
    } while (0)

/* A slice with guards on both sides, and room up to the next multiple of 256 that is guard too. */
typedef struct guarded {
    vk_slice whole, s;
} guarded;

static uint64_t guarded_room(uint64_t size) {
    return (size + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES + 2 * GUARD_BYTES;
}

static guarded guarded_take(vk_device *d, uint64_t size) {
    guarded g;
    MUST(vk_take(d, VK_USE_DEVICE, guarded_room(size), &g.whole, error));
    MUST(vk_fill(d, &g.whole, GUARD_WORD, error));
    g.s = g.whole;
    g.s.offset += GUARD_BYTES;
    g.s.size = size;
    if (g.s.map) g.s.map += GUARD_BYTES;
    return g;
}

static bool guarded_whole(vk_device *d, const guarded *g) {
    uint8_t *bytes = (uint8_t *)malloc((size_t)g->whole.size);
    bool     whole = true;
    uint64_t n = g->whole.size;
    if (!bytes) exit(2);
    MUST(vk_read(d, &g->whole, 0, bytes, n, error));
    for (uint64_t i = 0; i < n; i += 4)
        if (i < GUARD_BYTES || i >= GUARD_BYTES + g->s.size)
            if (load_u32(bytes + i) != GUARD_WORD) whole = false;
    free(bytes);
    return whole;
}

/* A device by the environment (NOVA_GPU: what to open, else any); NULL and a skip where there is none. */
static vk_device *guarded_device(const host *h, uint32_t without, uint64_t max_range, bool staged) {
    nova_error     error;
    vk_device     *d = NULL;
    vk_device_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(&error, 0, sizeof error);
    desc.want      = getenv("NOVA_GPU") ? getenv("NOVA_GPU") : "gpu";
    desc.without   = without;
    desc.max_range = max_range;
    desc.staged    = staged;
    if (vk_device_open(&d, h, &desc, &error) != NOVA_OK) {
        SKIP("no Vulkan device: %s", error.message);
        return NULL;
    }
    return d;
}

/* ---- Weights ---- */

static const uint32_t every_type[] = {TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q4_0, TYPE_Q4_1, TYPE_Q5_0,
                                      TYPE_Q5_1, TYPE_Q8_0, TYPE_Q4_K, TYPE_Q5_K, TYPE_Q6_K};

typedef struct random_weight {
    weight   w;
    uint8_t *bytes;
    float   *floats;   /* the same, [n_out][n_in] */
} random_weight;

static void put_half(uint8_t *p, float f) {
    uint16_t h = float_to_half(f);
    memcpy(p, &h, 2);
}

/* Random codes; scales of about `size`, which may be so small that they are subnormal halves. */
static random_weight random_weight_open(uint32_t type, uint32_t n_in, uint32_t n_out, float size) {
    const type_layout *t = type_of(type);
    random_weight      r;
    size_t             row = type_row_bytes(type, n_in), n = row * n_out, i;
    r.bytes  = (uint8_t *)malloc(n + 1);
    r.floats = (float *)malloc((size_t)n_in * n_out * sizeof(float));
    if (!r.bytes || !r.floats) exit(2);
    for (i = 0; i < n; i++) r.bytes[i] = (uint8_t)test_random();
    for (i = 0; i < n; i += t->block_bytes) {
        uint8_t *p = r.bytes + i;
        float    f = test_uniform() * size, m = test_uniform() * size * 8;
        uint32_t u = load_u32(&f);
        switch (type) {
        case TYPE_F32:  memcpy(p, &f, 4); break;
        case TYPE_F16:  put_half(p, f); break;
        case TYPE_BF16: p[0] = (uint8_t)(u >> 16), p[1] = (uint8_t)(u >> 24); break;
        case TYPE_Q4_1: case TYPE_Q5_1: put_half(p, f), put_half(p + 2, m); break;
        case TYPE_Q4_K: case TYPE_Q5_K: put_half(p, f / 32), put_half(p + 2, m / 32); break;
        case TYPE_Q6_K: put_half(p + 208, f / 64); break;
        default:        put_half(p, f); break;
        }
    }
    for (i = 0; i < n_out; i++) t->to_float(r.bytes + i * row, r.floats + i * n_in, n_in);
    r.w.type      = type;
    r.w.n_in      = n_in;
    r.w.n_out     = n_out;
    r.w.row_bytes = row;
    r.w.data      = r.bytes;
    return r;
}

static void random_weight_close(random_weight *r) {
    free(r->bytes);
    free(r->floats);
}

#endif
#endif
