/* Ground: configuration of the compiler, errors, allocation through the host, checked sizes, growing text. */
#ifndef NOVA_BASE_H
#define NOVA_BASE_H

#include "nova.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What the compiler offers ---- */

#if defined(__MINGW32__) && !defined(__clang__)
#define NOVA_PRINTF(f, a) __attribute__((format(gnu_printf, f, a)))   /* plain `printf` there knows no %zu */
#elif defined(__GNUC__) || defined(__clang__)
#define NOVA_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define NOVA_PRINTF(f, a)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define NOVA_INLINE       static inline __attribute__((always_inline))
#define NOVA_NOINLINE     __attribute__((noinline))
#define NOVA_RESTRICT     __restrict__
#define NOVA_UNUSED       __attribute__((unused))   /* tested, and called by what is to come */
#define NOVA_LIKELY(x)    __builtin_expect(!!(x), 1)
#define NOVA_ALIGN(n)     __attribute__((aligned(n)))
#else
#define NOVA_INLINE       static __forceinline
#define NOVA_NOINLINE     __declspec(noinline)
#define NOVA_RESTRICT     __restrict
#define NOVA_UNUSED
#define NOVA_LIKELY(x)    (x)
#define NOVA_ALIGN(n)     __declspec(align(n))
#endif

#if defined(__x86_64__) || defined(_M_X64)
#define NOVA_X86 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define NOVA_ARM64 1
#endif

/* A test may define this before it includes nova.c, to make the Nth call of a kind fail.
 * The kinds are "map", "read", "thread" and "mutex"; allocations fail through the allocator. */
#ifndef NOVA_FAULT
#define NOVA_FAULT(kind) 0
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define CACHE_LINE      64

/* ---- The host's callbacks, copied from a descriptor ---- */

typedef struct host {
    nova_alloc_fn alloc;      /* never NULL after host_init */
    void         *alloc_user;
    nova_log_fn   log;        /* may be NULL */
    void         *log_user;
} host;

/* Fills in the C library's allocator where the host gave none. */
static host host_init(nova_alloc_fn alloc, void *alloc_user, nova_log_fn log, void *log_user);

/* Allocation: NULL when the host has no more. `size` 0 is allowed and gives NULL from mem_alloc. Aligned to 16. */
static void *mem_alloc(const host *h, size_t size);
static void *mem_zalloc(const host *h, size_t size);
static void *mem_resize(const host *h, void *pointer, size_t old_size, size_t new_size);  /* on NULL the old block stands */
static void  mem_free(const host *h, void *pointer, size_t size);                          /* NULL is ignored */

static void log_text(const host *h, nova_log_level level, const char *format, ...) NOVA_PRINTF(3, 4);

/* ---- Errors ---- */

/* Fills `error` (which may be NULL) and returns `code`, so that callers can write `return fail(...)`. */
static nova_result fail(nova_error *error, nova_result code, const char *format, ...) NOVA_PRINTF(3, 4);
/* The same with a place: a byte offset in the file, or NOVA_NOWHERE. */
static nova_result fail_at(nova_error *error, nova_result code, uint64_t offset, const char *format, ...) NOVA_PRINTF(4, 5);
static nova_result fail_memory(nova_error *error, size_t size, const char *what);
static void        error_clear(nova_error *error);

/* Returns from the calling function with the result of a call that failed. */
#define TRY(call)                                        \
    do {                                                 \
        nova_result try_result = (call);                 \
        if (try_result != NOVA_OK) return try_result;    \
    } while (0)

/* ---- Checked sizes: false on overflow, *out untouched ---- */

NOVA_INLINE bool size_mul(size_t a, size_t b, size_t *out) {
    if (b != 0 && a > SIZE_MAX / b) return false;
    *out = a * b;
    return true;
}

NOVA_INLINE bool size_add(size_t a, size_t b, size_t *out) {
    if (a > SIZE_MAX - b) return false;
    *out = a + b;
    return true;
}

NOVA_INLINE size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
NOVA_INLINE size_t size_max(size_t a, size_t b) { return a > b ? a : b; }
/* Rounds up to a power of two; the caller knows that it cannot overflow. */
NOVA_INLINE size_t size_align(size_t n, size_t to) { return (n + to - 1) & ~(to - 1); }

/* ---- Text that lies somewhere else, not terminated ---- */

typedef struct str {
    const char *p;
    size_t      n;
} str;

NOVA_INLINE str  str_of(const char *p, size_t n) { str s; s.p = p; s.n = n; return s; }
NOVA_INLINE bool str_eq(str a, str b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0); }
static str  str_c(const char *z);
static bool str_is(str s, const char *z);
/* Formats for printf's "%.*s", cut to a length that fits an error message, so that hostile names stay short. */
#define STR_ARG(s) (int)((s).n < 96 ? (s).n : 96), (s).p

/* ---- A growing byte buffer; after one failed growth it stays failed and ignores appends ---- */

typedef struct text_buffer {
    const host *h;
    char       *p;
    size_t      n, cap;
    size_t      limit;   /* most bytes it may hold, 0: no limit */
    bool        failed;
} text_buffer;

static void text_init(text_buffer *b, const host *h, size_t limit);
static bool text_reserve(text_buffer *b, size_t extra);
static bool text_append(text_buffer *b, const char *p, size_t n);
static void text_free(text_buffer *b);

/* ---- An arena: many small blocks that live and die together ---- */

typedef struct arena_block arena_block;
typedef struct arena {
    const host  *h;
    arena_block *blocks;
    char        *next, *end;
} arena;

static void  arena_init(arena *a, const host *h);
/* Aligned to 16; NULL when the host has no more, or for a size of SIZE_MAX/2 and above. Contents undefined. */
static void *arena_alloc(arena *a, size_t size);
static void *arena_zalloc(arena *a, size_t size);
static void  arena_free(arena *a);

/* ---- Little-endian loads from anywhere ---- */

NOVA_INLINE uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, sizeof v); return v; }
NOVA_INLINE uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
NOVA_INLINE uint64_t load_u64(const void *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }
NOVA_INLINE float    load_f32(const void *p) { float v; memcpy(&v, p, sizeof v); return v; }

/* No infinity and no NaN, asked of the bits: gcc -ffast-math compares a NaN with a constant as it likes ("x <= FLT_MAX" is
 * true), and the pragmas at the head of this file cannot change that. x != x and x - x == 0 are safe. */
NOVA_INLINE bool f32_is_finite(float f) { return (load_u32(&f) & 0x7f800000u) != 0x7f800000u; }
NOVA_INLINE bool f64_is_negative(double d) { return load_u64(&d) >> 63 != 0; }   /* -0.0 too; MinGW's signbit takes floats */
NOVA_INLINE bool f64_is_finite(double d) { return (load_u64(&d) >> 52 & 0x7ff) != 0x7ff; }

/* 64-bit FNV-1a, seeded so that one table's collisions are not another's. Not for hostile keys alone: tables that
 * hold names from a file bound their probe lengths by their size. */
NOVA_INLINE uint64_t hash_bytes(const void *p, size_t n, uint64_t seed) {
    const unsigned char *b = (const unsigned char *)p;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

#endif
