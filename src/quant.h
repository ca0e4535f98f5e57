/* The tensor types of GGUF: names, block layouts, exact conversion to float. */
#ifndef NOVA_QUANT_H
#define NOVA_QUANT_H

#include "base.h"

/* Numbers as in the GGUF specification (ggml_type); a type that is missing here is not supported. */
#define TENSOR_TYPES(X) /* name, number, weights a block, bytes a block */ \
    X(F32, 0, 1, 4)     \
    X(F16, 1, 1, 2)     \
    X(Q4_0, 2, 32, 18)  \
    X(Q4_1, 3, 32, 20)  \
    X(Q5_0, 6, 32, 22)  \
    X(Q5_1, 7, 32, 24)  \
    X(Q8_0, 8, 32, 34)  \
    X(Q4_K, 12, 256, 144) \
    X(Q5_K, 13, 256, 176) \
    X(Q6_K, 14, 256, 210) \
    X(BF16, 30, 1, 2)

typedef enum tensor_type {
#define TENSOR_TYPE_ENUM(name, number, weights, bytes) TYPE_##name = number,
    TENSOR_TYPES(TENSOR_TYPE_ENUM)
#undef TENSOR_TYPE_ENUM
    TYPE_LIMIT = 64   /* no type has this number or a higher one */
} tensor_type;

typedef struct type_layout {
    const char *name;           /* NULL: not supported */
    uint32_t    block_weights;  /* a row's length is a multiple of this */
    uint32_t    block_bytes;
    void      (*to_float)(const void *blocks, float *out, size_t n);  /* n is a multiple of block_weights */
} type_layout;

/* Never NULL; a number out of range gives an entry without a name. */
static const type_layout *type_of(uint32_t type);
/* The type's number by name ("Q4_K", any case), or -1. */
NOVA_UNUSED static int  type_by_name(const char *name);
/* Bytes of a row of n weights; n is a multiple of the type's block. */
static size_t type_row_bytes(uint32_t type, size_t n);

/* IEEE half and bfloat16, bit by bit: subnormals, infinities and NaN as they are; rounding to nearest even. */
static float    half_to_float(uint16_t h);
static uint16_t float_to_half(float f);
NOVA_INLINE float bf16_to_float(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#endif
