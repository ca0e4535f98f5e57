/* File blocks to the planar layouts of shaders/README.md. A row is taken apart into four planes; each format has one
 * function for a block, which reads and writes forwards only, since mapped device memory may be uncached. */
#include "vk_weight.h"

#ifndef NOVA_NO_VULKAN

#define VK_PLANES       4
#define VK_PLANE_ALIGN  256u
#define VK_WEIGHT_PIECE ((size_t)4 << 20)   /* converted at once where the host cannot see the device's memory */

/* ---- Blocks ---- */

/* Where the next block's parts go. */
typedef struct planes {
    uint8_t *codes, *high, *scales, *extra;
} planes;

static void put(uint8_t **to, const void *from, size_t n) {
    memcpy(*to, from, n);
    *to += n;
}
static void put_u32(uint8_t **to, uint32_t v) { put(to, &v, sizeof v); }
static void put_u64(uint8_t **to, uint64_t v) { put(to, &v, sizeof v); }

#define LOW_HALVES 0x0f0f0f0f0f0f0f0fu

/* Codes of 32 weights from 32 bytes, of which each gives its low half. */
static void put_low(uint8_t **to, const uint8_t *p) {
    for (int i = 0; i < 16; i += 8)
        put_u64(to, (load_u64(p + i) & LOW_HALVES) | (load_u64(p + 16 + i) & LOW_HALVES) << 4);
}

static void put_high(uint8_t **to, const uint8_t *p) {
    for (int i = 0; i < 16; i += 8)
        put_u64(to, (load_u64(p + i) >> 4 & LOW_HALVES) | (load_u64(p + 16 + i) & ~LOW_HALVES));
}

/* Bit 4i+b goes to 8b+i: a nibble's bits are spread to the four bytes by one multiplication. */
static uint32_t turn_bits(uint32_t bits) {
    uint32_t out = 0;
    for (int i = 0; i < 8; i++) out |= ((bits >> 4 * i & 15u) * 0x00204081u & 0x01010101u) << i;
    return out;
}

static void planar_q4_0(planes *to, const uint8_t *p) {
    put(&to->scales, p, 2);
    put(&to->codes, p + 2, 16);
}

static void planar_q4_1(planes *to, const uint8_t *p) {
    put(&to->scales, p, 4);
    put(&to->codes, p + 4, 16);
}

static void planar_q5_0(planes *to, const uint8_t *p) {
    put(&to->scales, p, 2);
    put_u32(&to->high, turn_bits(load_u32(p + 2)));
    put(&to->codes, p + 6, 16);
}

static void planar_q5_1(planes *to, const uint8_t *p) {
    put(&to->scales, p, 4);
    put_u32(&to->high, turn_bits(load_u32(p + 4)));
    put(&to->codes, p + 8, 16);
}

static void planar_q8_0(planes *to, const uint8_t *p) {
    put(&to->scales, p, 2);
    put(&to->codes, p + 2, 32);
}

/* d and dmin as they are, then eight fields of scale and minimum, 12 bits each. */
static void put_k_scales(uint8_t **to, const uint8_t *p) {
    uint64_t low = 0, all = 0;   /* fields 0..3, 4..7 */
    for (int j = 7; j >= 0; j--) {
        int scale, minimum;
        k_scale_min(p + 4, j, &scale, &minimum);
        uint64_t field = (uint64_t)(scale | minimum << 6);
        if (j >= 4) all = all << 12 | field;
        else low = low << 12 | field;
    }
    put(to, p, 4);
    put_u32(to, (uint32_t)low);
    put_u32(to, (uint32_t)(low >> 32 | all << 16));
    put_u32(to, (uint32_t)(all >> 16));
}

static void planar_q4_k(planes *to, const uint8_t *p) {
    put_k_scales(&to->scales, p);
    for (int j = 0; j < 4; j++) {
        put_low(&to->codes, p + 16 + 32 * j);
        put_high(&to->codes, p + 16 + 32 * j);
    }
}

static void planar_q5_k(planes *to, const uint8_t *p) {
    put_k_scales(&to->scales, p);
    for (int j = 0; j < 8; j++) {
        uint32_t bits = 0;
        for (int i = 0; i < 8; i++) bits |= (load_u32(p + 16 + 4 * i) >> j & 0x01010101u) << i;
        put_u32(&to->high, bits);
    }
    for (int j = 0; j < 4; j++) {
        put_low(&to->codes, p + 48 + 32 * j);
        put_high(&to->codes, p + 48 + 32 * j);
    }
}

static void planar_q6_k(planes *to, const uint8_t *p) {
    for (int half = 0; half < 2; half++, p += 64) {
        put_low(&to->codes, p);
        put_low(&to->codes, p + 32);
        put_high(&to->codes, p);
        put_high(&to->codes, p + 32);
    }
    for (int half = 0; half < 2; half++, p += 32)
        for (int run = 0; run < 4; run++)
            for (int h = 0; h < 2; h++) {
                uint32_t bits = 0;
                for (int k = 0; k < 4; k++) bits |= (load_u32(p + 16 * h + 4 * k) >> 2 * run & 0x03030303u) << 2 * k;
                put_u32(&to->high, bits);
            }
    put(&to->scales, p, 16);
    put(&to->extra, p + 16, 2);
}

/* ---- Formats ---- */

typedef struct planar_layout {
    uint32_t type;
    void   (*block)(planes *to, const uint8_t *p);   /* NULL: rows are copied */
    uint32_t bytes[VK_PLANES];                       /* of a block */
    float    code;                                   /* the largest, without its sign */
} planar_layout;

static const planar_layout planar_layouts[GPU_FORMAT_COUNT] = {
    {TYPE_F32,  NULL,        {4, 0, 0, 0}, 0},
    {TYPE_F16,  NULL,        {2, 0, 0, 0}, 0},
    {TYPE_BF16, NULL,        {2, 0, 0, 0}, 0},
    {TYPE_Q4_0, planar_q4_0, {16, 0, 2, 0}, 8},
    {TYPE_Q4_1, planar_q4_1, {16, 0, 4, 0}, 15},
    {TYPE_Q5_0, planar_q5_0, {16, 4, 2, 0}, 16},
    {TYPE_Q5_1, planar_q5_1, {16, 4, 4, 0}, 31},
    {TYPE_Q8_0, planar_q8_0, {32, 0, 2, 0}, 128},
    {TYPE_Q4_K, planar_q4_k, {128, 0, 16, 0}, 15},
    {TYPE_Q5_K, planar_q5_k, {128, 32, 16, 0}, 31},
    {TYPE_Q6_K, planar_q6_k, {128, 64, 16, 2}, 32},
};

static bool vk_format_of(uint32_t type, vk_format *out) {
    for (uint32_t f = 0; f < GPU_FORMAT_COUNT; f++)
        if (planar_layouts[f].type == type) {
            *out = (vk_format)f;
            return true;
        }
    return false;
}

static uint32_t padded_width(uint32_t n_in) { return (n_in + 31) & ~31u; }

/* Bytes of a row in each plane, whole words; gives their sum. */
static uint64_t row_plane_bytes(const planar_layout *l, uint32_t n_in, uint64_t bytes[VK_PLANES]) {
    uint64_t sum = 0, n_blocks = padded_width(n_in) / type_of(l->type)->block_weights;
    for (int i = 0; i < VK_PLANES; i++) {
        bytes[i] = (n_blocks * l->bytes[i] + 3) & ~(uint64_t)3;
        sum += bytes[i];
    }
    return sum;
}

/* Bytes of a part of n rows; where each plane begins. */
static uint64_t part_bytes(const uint64_t bytes[VK_PLANES], uint64_t n_rows, uint64_t starts[VK_PLANES]) {
    uint64_t at = 0;
    for (int i = 0; i < VK_PLANES; i++) {
        starts[i] = at;
        at += (n_rows * bytes[i] + VK_PLANE_ALIGN - 1) & ~(uint64_t)(VK_PLANE_ALIGN - 1);
    }
    return at;
}

/* Rows a part: all, or as many as a binding and an allocation may hold, shared out evenly, by 64 where that still fits.
 * 0: not even one fits. */
static uint32_t rows_of_part(const vk_device *d, const weight *w, uint64_t row_bytes) {
    uint64_t limit = d->caps.max_range < d->caps.max_alloc ? d->caps.max_range : d->caps.max_alloc;
    uint64_t slack = VK_PLANES * VK_PLANE_ALIGN;
    if (limit > (uint64_t)UINT32_MAX) limit = UINT32_MAX;   /* and words are counted in 32 bits */
    if (limit < slack + row_bytes) return 0;
    uint64_t most = (limit - slack) / row_bytes;
    if (most >= w->n_out) return w->n_out;
    uint64_t n_parts = (w->n_out + most - 1) / most, even = (w->n_out + n_parts - 1) / n_parts;
    uint64_t round = (even + 63) & ~(uint64_t)63;
    return (uint32_t)(round <= most ? round : even);
}

static uint64_t vk_weight_bytes(const vk_device *d, const weight *w) {
    uint64_t  bytes[VK_PLANES], starts[VK_PLANES];
    vk_format f;
    if (!vk_format_of(w->type, &f) || w->n_out == 0) return 0;
    uint64_t row  = row_plane_bytes(&planar_layouts[f], w->n_in, bytes);
    uint32_t rows = rows_of_part(d, w, row);
    if (rows == 0) return 0;
    return w->n_out / rows * part_bytes(bytes, rows, starts) + part_bytes(bytes, w->n_out % rows, starts);
}

/* ---- Rows ---- */

static void zero_pad(uint8_t **to, const uint8_t *end) {
    memset(*to, 0, (size_t)(end - *to));
    *to += end - *to;
}

static void planar_row(const planar_layout *l, const uint8_t *p, const weight *w, planes *to,
                       const uint64_t bytes[VK_PLANES]) {
    const uint8_t *end_codes = to->codes + bytes[0], *end_scales = to->scales + bytes[2];
    const uint8_t *end_extra = to->extra + bytes[3];
    if (!l->block) {
        put(&to->codes, p, w->row_bytes);
        zero_pad(&to->codes, end_codes);
        return;
    }
    const type_layout *t = type_of(w->type);
    for (uint32_t i = 0; i < w->n_in; i += t->block_weights, p += t->block_bytes) l->block(to, p);
    zero_pad(&to->scales, end_scales);   /* the half behind an odd number of them */
    zero_pad(&to->extra, end_extra);
}

/* The largest of plain numbers without their signs, which as integers have the order of the numbers. */
static float largest_of_plain(uint32_t type, const uint8_t *p, uint32_t n) {
    uint32_t top = 0, u;
    float    f;
    if (type == TYPE_F32) {
        for (uint32_t i = 0; i < n; i++) u = load_u32(p + 4 * (size_t)i) & 0x7fffffffu, top = u > top ? u : top;
        memcpy(&f, &top, sizeof f);
        return f;
    }
    for (uint32_t i = 0; i < n; i++) u = load_u16(p + 2 * (size_t)i) & 0x7fffu, top = u > top ? u : top;
    return type == TYPE_F16 ? half_to_float((uint16_t)top) : bf16_to_float((uint16_t)top);
}

/* No less than any weight of a block, its scale times code, and its minimum, which add up where their signs agree. */
static float largest_of_block(const planar_layout *l, const uint8_t *p) {
    bool  is_k = l->type == TYPE_Q4_K || l->type == TYPE_Q5_K;
    bool  has_min = is_k || l->type == TYPE_Q4_1 || l->type == TYPE_Q5_1;
    float d = fabsf(load_half(p + (l->type == TYPE_Q6_K ? 208 : 0))) * l->code;
    float m = has_min ? fabsf(load_half(p + 2)) : 0;
    int   scale, least, top_scale = 0, top_min = 0;
    if (is_k)
        for (int j = 0; j < 8; j++) {
            k_scale_min(p + 4, j, &scale, &least);
            if (scale > top_scale) top_scale = scale;
            if (least > top_min) top_min = least;
        }
    if (l->type == TYPE_Q6_K)
        for (int j = 0; j < 16; j++) {
            scale = abs((int)(int8_t)p[192 + j]);
            if (scale > top_scale) top_scale = scale;
        }
    if (is_k) m *= (float)top_min;
    if (is_k || l->type == TYPE_Q6_K) d *= (float)top_scale;
    return d + m;
}

static float largest_of_row(const planar_layout *l, const uint8_t *p, const weight *w) {
    const type_layout *t = type_of(w->type);
    float              top = 0;
    if (!l->block) return largest_of_plain(w->type, p, w->n_in);
    for (uint32_t i = 0; i < w->n_in; i += t->block_weights, p += t->block_bytes) {
        float f = largest_of_block(l, p);
        if (!(f <= top) && top == top) top = f;   /* a NaN too, which then stays */
    }
    return top;
}

/* Rows row..row + n of the file's weight, planar, to four pieces of memory; *largest grows to what they hold. */
static void planar_rows(const planar_layout *l, const weight *w, uint32_t row, uint32_t n,
                        const uint64_t bytes[VK_PLANES], planes to, float *largest) {
    const uint8_t *p = w->data + (size_t)row * w->row_bytes;
    for (uint32_t r = 0; r < n; r++, p += w->row_bytes) {
        float f = largest_of_row(l, p, w);
        if (!(f <= *largest) && *largest == *largest) *largest = f;
        planar_row(l, p, w, &to, bytes);
    }
}

/* What lies between planes is never written, and read by nobody. */
static void load_mapped(const planar_layout *l, const weight *w, const vk_part *part, const uint64_t bytes[VK_PLANES],
                        const uint64_t starts[VK_PLANES], float *largest) {
    planes to;
    to.codes  = part->bytes.map + starts[0];
    to.high   = part->bytes.map + starts[1];
    to.scales = part->bytes.map + starts[2];
    to.extra  = part->bytes.map + starts[3];
    planar_rows(l, w, part->row, part->n_rows, bytes, to, largest);
}

static nova_result load_pieces(vk_device *d, const planar_layout *l, const weight *w, const vk_part *part,
                               const uint64_t bytes[VK_PLANES], const uint64_t starts[VK_PLANES], float *largest,
                               nova_error *error) {
    uint64_t row_bytes = bytes[0] + bytes[1] + bytes[2] + bytes[3], at[VK_PLANES];
    uint32_t n = row_bytes < VK_WEIGHT_PIECE ? (uint32_t)(VK_WEIGHT_PIECE / row_bytes) : 1;
    if (n > part->n_rows) n = part->n_rows;
    size_t      size   = (size_t)(n * row_bytes);
    nova_result result = NOVA_OK;
    uint8_t    *piece  = (uint8_t *)mem_alloc(&d->h, size);
    if (!piece) return fail_memory(error, size, "a piece of a weight");
    for (uint32_t row = 0; row < part->n_rows && result == NOVA_OK; row += n) {
        if (n > part->n_rows - row) n = part->n_rows - row;
        planes to;
        at[0] = 0;
        for (int i = 1; i < VK_PLANES; i++) at[i] = at[i - 1] + n * bytes[i - 1];
        to.codes = piece, to.high = piece + at[1], to.scales = piece + at[2], to.extra = piece + at[3];
        planar_rows(l, w, part->row + row, n, bytes, to, largest);
        for (int i = 0; i < VK_PLANES && result == NOVA_OK; i++)
            if (bytes[i])
                result = vk_write(d, &part->bytes, starts[i] + row * bytes[i], piece + at[i], n * bytes[i], error);
    }
    mem_free(&d->h, piece, size);
    return result;
}

/* Where the file has the planar layout already and the device can read it there. Only the largest weight is looked for. */
static nova_result load_in_place(vk_device *d, const planar_layout *l, const weight *w, vk_part *part, float *largest, bool *done, nova_error *error) {
    const uint8_t *rows = w->data + (size_t)part->row * w->row_bytes;
    *done = false;
    if (l->block || w->n_in % 32 != 0) return NOVA_OK;
    TRY(vk_import(d, rows, (uint64_t)part->n_rows * w->row_bytes, &part->bytes, done, error));
    for (uint32_t r = 0; *done && r < part->n_rows; r++) {
        float f = largest_of_row(l, rows + (size_t)r * w->row_bytes, w);
        if (!(f <= *largest) && *largest == *largest) *largest = f;
    }
    return NOVA_OK;
}

static nova_result vk_weight_load(vk_device *d, arena *a, const weight *w, vk_weight *out, nova_error *error) {
    uint64_t bytes[VK_PLANES], starts[VK_PLANES];
    memset(out, 0, sizeof *out);
    if (!vk_format_of(w->type, &out->format))
        return fail(error, NOVA_ERROR_UNSUPPORTED, "no GPU layout for tensor type %u", w->type);
    const planar_layout *l = &planar_layouts[out->format];
    uint32_t rows = rows_of_part(d, w, row_plane_bytes(l, w->n_in, bytes));
    if (rows == 0)
        return fail(error, NOVA_ERROR_UNSUPPORTED, "a row of %u weights is too long for a binding", w->n_in);
    out->n_in    = w->n_in;
    out->n_out   = w->n_out;
    out->n_pad   = padded_width(w->n_in);
    out->n_parts = (w->n_out + rows - 1) / rows;
    out->parts   = (vk_part *)arena_zalloc(a, out->n_parts * sizeof *out->parts);
    if (!out->parts) return fail_memory(error, out->n_parts * sizeof *out->parts, "a weight's parts");
    for (uint32_t i = 0; i < out->n_parts; i++) {
        vk_part *part = &out->parts[i];
        part->row     = i * rows;
        part->n_rows  = rows < w->n_out - part->row ? rows : w->n_out - part->row;
        bool     in_place;
        uint64_t size = part_bytes(bytes, part->n_rows, starts);
        TRY(load_in_place(d, l, w, part, &out->largest, &in_place, error));
        if (in_place) continue;   /* one plane alone, which begins at 0 */
        TRY(vk_take(d, VK_USE_DEVICE, size, &part->bytes, error));
        part->codes  = (uint32_t)(starts[0] / 4);
        part->high   = (uint32_t)(starts[1] / 4);
        part->scales = (uint32_t)(starts[2] / 4);
        part->extra  = (uint32_t)(starts[3] / 4);
        if (d->desc.measure) continue;
        if (part->bytes.map) load_mapped(l, w, part, bytes, starts, &out->largest);
        else TRY(load_pieces(d, l, w, part, bytes, starts, &out->largest, error));
    }
    return NOVA_OK;
}

#endif
