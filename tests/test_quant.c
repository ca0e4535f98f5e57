/* Block formats to float, and half precision.
 *
 * The expected values come from gguf-py (the GGUF project's own Python): tests/check_quant.py makes the same blocks
 * from the same random numbers and checks the hashes that stand here. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

/* The seed of the blocks is part of the vectors and does not change with NOVA_SEED. */
#define VECTOR_SEED   20260u
#define VECTOR_BLOCKS 512u

typedef struct vector {
    const char *type;
    int         scale_at[2];   /* offsets of the halves in a block, -1: none */
    uint64_t    hash;          /* FNV-1a over the floats' bits, word by word, every NaN as 0x7fc00000 */
} vector;

static const vector vectors[] = {
    /* BEGIN VECTORS */
    { "F32", { -1, -1 }, 0x3255c81072d7674bu },
    { "F16", { 0, -1 }, 0x9101ddfb1bfbcb25u },
    { "BF16", { -1, -1 }, 0xc37413df53d84b25u },
    { "Q4_0", { 0, -1 }, 0xb4d3da166de25325u },
    { "Q4_1", { 0, 2 }, 0x4c8008d6e9e4b67fu },
    { "Q5_0", { 0, -1 }, 0x02d7bdd6d9a59b25u },
    { "Q5_1", { 0, 2 }, 0x28dc5ab9d4a96059u },
    { "Q8_0", { 0, -1 }, 0xcc78f9afd21f9325u },
    { "Q4_K", { 0, 2 }, 0xc3f40f6b2b8d09a3u },
    { "Q5_K", { 0, 2 }, 0x757a3179a77726f0u },
    { "Q6_K", { 208, -1 }, 0x8bae96a84008e3a3u },
    /* END VECTORS */
};

/* Scales that random bits rarely give: zeros, the subnormals' ends, the largest, infinities, one. */
static const uint16_t extreme[10] = { 0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x3c00 };

/* Random bytes; every fourth block has extreme scales. */
static uint8_t *make_blocks(const type_layout *info, const vector *v) {
    size_t   n = (size_t)VECTOR_BLOCKS * info->block_bytes;
    uint8_t *data = (uint8_t *)malloc(size_align(n, 8));
    if (!data) exit(2);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t r = test_random();
        memcpy(data + i, &r, 8);
    }
    for (size_t b = 0; b < VECTOR_BLOCKS; b += 4)
        for (size_t k = 0; k < 2; k++)
            if (v->scale_at[k] >= 0)
                memcpy(data + b * info->block_bytes + v->scale_at[k], &extreme[(b / 4 + 3 * k) % 10], 2);
    return data;
}

static uint64_t hash_floats(const float *p, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = load_u32(p + i);
        if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

static void test_vectors(void) {
    uint64_t seed = test_seed;
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        const vector    *v    = &vectors[i];
        int              type = type_by_name(v->type);
        const type_layout *info = type_of((uint32_t)type);
        CHECK(type >= 0 && info->name, "%s is missing", v->type);
        if (!info->name) continue;
        test_seed = VECTOR_SEED;
        uint8_t *data = make_blocks(info, v);
        size_t   n    = (size_t)VECTOR_BLOCKS * info->block_weights;
        float   *out  = (float *)malloc(n * sizeof *out);
        if (!out) exit(2);
        info->to_float(data, out, n);
        uint64_t hash = hash_floats(out, n);
        CHECK(hash == v->hash, "%s: 0x%016llx, not 0x%016llx", v->type, (unsigned long long)hash,
              (unsigned long long)v->hash);
        free(data);
        free(out);
    }
    test_seed = seed;
}

/* Every supported type has a vector, so that a new row cannot be forgotten here. */
static void test_table(void) {
    size_t n = 0;
    for (uint32_t t = 0; t < 2 * TYPE_LIMIT; t++) {
        const type_layout *info = type_of(t);
        if (!info->name) continue;
        n++;
        bool found = false;
        for (size_t i = 0; i < COUNT_OF(vectors); i++) found |= strcmp(vectors[i].type, info->name) == 0;
        CHECK(found, "no vector for %s", info->name);
        CHECK(t < TYPE_LIMIT && type_by_name(info->name) == (int)t, "%s", info->name);
        CHECK(type_row_bytes(t, 3 * (size_t)info->block_weights) == 3 * (size_t)info->block_bytes, "%s", info->name);
    }
    CHECK(n == COUNT_OF(vectors), "%zu types, %zu vectors", n, COUNT_OF(vectors));
    CHECK(type_by_name("q4_k") == TYPE_Q4_K && type_by_name("Q4_K") == TYPE_Q4_K, "case");
    CHECK(type_by_name("bf16") == TYPE_BF16, "case");
    CHECK(type_by_name("Q4") == -1 && type_by_name("") == -1 && type_by_name("Q4_KX") == -1, "names that are none");
    CHECK(type_of(UINT32_MAX)->name == NULL && type_of(4)->name == NULL, "numbers that are none");
}

static double half_value(uint16_t h) {
    int    exponent = (h >> 10) & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static void test_half(void) {
    uint32_t wrong = 0, back = 0, middle = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = half_to_float((uint16_t)h);
        if ((h & 0x7c00u) == 0x7c00u) {
            uint32_t bits = load_u32(&f);
            wrong += bits != ((h & 0x8000u) << 16 | 0x7f800000u | (h & 0x3ffu) << 13);
        } else {
            double exact = half_value((uint16_t)h);
            wrong += (double)f != exact || (signbit(f) != 0) != (h >= 0x8000u);
        }
        uint16_t expected = (uint16_t)(h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) ? (uint16_t)(h | 0x200u) : (uint16_t)h;
        back += float_to_half(f) != expected;
    }
    CHECK(wrong == 0, "half_to_float: %u wrong", wrong);
    CHECK(back == 0, "float_to_half of a half: %u wrong", back);

    /* Between neighbours: just below the middle, the middle (to even), just above. */
    for (uint32_t h = 0; h < 0x7bffu; h++) {
        float    m  = (float)((half_value((uint16_t)h) + half_value((uint16_t)(h + 1))) / 2);
        uint16_t lo = (uint16_t)h, hi = (uint16_t)(h + 1), even = h & 1 ? hi : lo;
        middle += float_to_half(m) != even || float_to_half(-m) != (even | 0x8000);
        middle += float_to_half(nextafterf(m, 0)) != lo || float_to_half(nextafterf(m, 1e9f)) != hi;
    }
    CHECK(middle == 0, "float_to_half between neighbours: %u wrong", middle);
    CHECK(float_to_half(65519.996f) == 0x7bff && float_to_half(65520.0f) == 0x7c00, "overflow");
    CHECK(float_to_half(-1e30f) == 0xfc00, "overflow");
    CHECK(float_to_half(1e-30f) == 0 && float_to_half(-1e-44f) == 0x8000, "underflow");
    uint32_t nan_bits = 0xff800001u;
    float    nan;
    memcpy(&nan, &nan_bits, sizeof nan);
    CHECK((float_to_half(nan) & 0x7c00) == 0x7c00 && (float_to_half(nan) & 0x3ff) != 0, "a NaN stays one");
    CHECK(bf16_to_float(0x3f80) == 1.0f && bf16_to_float(0xc000) == -2.0f, "bfloat16");
    CHECK(bf16_to_float(0x7f80) > FLT_MAX, "bfloat16's infinity");
}

int main(void) {
    test_begin(1);
    test_table();
    test_vectors();
    test_half();
    return test_end();
}
