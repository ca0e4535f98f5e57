/* nova: an embedded runtime for GGUF language models. The interface and the manual are in nova.h.
 * MIT license, see LICENSE.
 *
 * This file is generated from src/ by src/join.py: change it there.
 * SPIR-V modules: 0, 0 bytes.
 */

/* What the system's headers need to be told before the first of them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64
#endif
#if defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1
#endif

/* Results do not depend on -ffast-math and its parts, nor on whether a product and a sum may become one operation: what
 * this file computes is what it says (comparisons with NaN: see f32_is_finite). Taken back at its end. Clang's -ffast-math
 * alone makes one operation of them all the same in functions with FMA instructions: last bits differ from those of other
 * builds, and every promise about one build's results holds. */
#if defined(__clang__)
#if defined(__x86_64__) || defined(__FAST_MATH__) || __FINITE_MATH_ONLY__   /* elsewhere some versions do not know it */
#pragma float_control(precise, on, push)
#endif
#pragma clang fp contract(off) reassociate(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma push_macro("__FAST_MATH__")
#pragma GCC optimize("no-fast-math", "fp-contract=off")
#undef __FAST_MATH__   /* or g++ takes the C library's vector functions, which are less exact */
#elif defined(_MSC_VER)
#pragma float_control(precise, on, push)
#ifndef __clang_major__
#pragma fp_contract(off)
#endif
#endif

#include "nova.h"

/* ==== src/base.h ============================================================================================== */

/* Ground: configuration of the compiler, errors, allocation through the host, checked sizes, growing text. */
#ifndef NOVA_BASE_H
#define NOVA_BASE_H


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

/* ==== src/base.c ============================================================================================== */

/* Ground: see base.h. */

/* ---- Host ---- */

static void *libc_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    (void)user, (void)old_size;
    if (new_size == 0) {
        free(pointer);
        return NULL;
    }
    return realloc(pointer, new_size);
}

static host host_init(nova_alloc_fn alloc, void *alloc_user, nova_log_fn log, void *log_user) {
    host h;
    h.alloc      = alloc ? alloc : libc_alloc;
    h.alloc_user = alloc_user;
    h.log        = log;
    h.log_user   = log_user;
    return h;
}

static void *mem_alloc(const host *h, size_t size) {
    return size ? h->alloc(h->alloc_user, NULL, 0, size) : NULL;
}

static void *mem_zalloc(const host *h, size_t size) {
    void *p = mem_alloc(h, size);
    if (p) memset(p, 0, size);
    return p;
}

static void *mem_resize(const host *h, void *pointer, size_t old_size, size_t new_size) {
    return h->alloc(h->alloc_user, pointer, old_size, new_size);
}

static void mem_free(const host *h, void *pointer, size_t size) {
    if (pointer) h->alloc(h->alloc_user, pointer, size, 0);
}

static void log_text(const host *h, nova_log_level level, const char *format, ...) {
    if (!h->log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    h->log(h->log_user, level, line);
}

/* ---- Errors ---- */

static void error_clear(nova_error *error) {
    if (!error) return;
    error->code       = NOVA_OK;
    error->offset     = NOVA_NOWHERE;
    error->message[0] = 0;
}

/* Names from files end up in messages: what is no printable text or UTF-8 must not reach a terminal. */
static void message_clean(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 32 || *p == 127) *p = '?';
}

static void error_fill(nova_error *error, nova_result code, uint64_t offset, const char *format, va_list args) {
    error->code   = code;
    error->offset = offset;
    vsnprintf(error->message, sizeof error->message, format, args);
    message_clean(error->message);
}

static nova_result fail(nova_error *error, nova_result code, const char *format, ...) {
    if (!error) return code;
    va_list args;
    va_start(args, format);
    error_fill(error, code, NOVA_NOWHERE, format, args);
    va_end(args);
    return code;
}

static nova_result fail_at(nova_error *error, nova_result code, uint64_t offset, const char *format, ...) {
    if (!error) return code;
    va_list args;
    va_start(args, format);
    error_fill(error, code, offset, format, args);
    va_end(args);
    return code;
}

static nova_result fail_memory(nova_error *error, size_t size, const char *what) {
    return fail(error, NOVA_ERROR_MEMORY, "out of memory: %zu bytes for %s", size, what);
}

NOVA_API const char *nova_result_text(nova_result result) {
#define RESULT_CASE(name, number, text) case name: return text;
    switch (result) { NOVA_RESULTS(RESULT_CASE) }
#undef RESULT_CASE
    return "unknown result";
}

NOVA_API const char *nova_version(void) { return NOVA_VERSION; }

/* ---- Text ---- */

static str str_c(const char *z) { return str_of(z, strlen(z)); }

static bool str_is(str s, const char *z) { return str_eq(s, str_c(z)); }

static void text_init(text_buffer *b, const host *h, size_t limit) {
    memset(b, 0, sizeof *b);
    b->h     = h;
    b->limit = limit;
}

static bool text_reserve(text_buffer *b, size_t extra) {
    size_t need;
    if (b->failed || !size_add(b->n, extra, &need) || need > SIZE_MAX / 2 || (b->limit && need > b->limit)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap) return true;
    size_t cap = size_max(need, size_max(64, b->cap + b->cap / 2));
    char  *p   = (char *)mem_resize(b->h, b->p, b->cap, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p   = p;
    b->cap = cap;
    return true;
}

static bool text_append(text_buffer *b, const char *p, size_t n) {
    if (n == 0) return !b->failed;
    if (!text_reserve(b, n)) return false;
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return true;
}

static void text_free(text_buffer *b) {
    mem_free(b->h, b->p, b->cap);
    b->p = NULL;
    b->n = b->cap = 0;
}

/* ---- Arena ---- */

struct arena_block {
    arena_block *older;
    size_t       size;   /* of the whole block, this head included */
};

#define ARENA_HEAD  size_align(sizeof(arena_block), 16)
#define ARENA_BLOCK ((size_t)64 << 10)

static void arena_init(arena *a, const host *h) {
    memset(a, 0, sizeof *a);
    a->h = h;
}

static void *arena_alloc(arena *a, size_t size) {
    if (size >= SIZE_MAX / 2) return NULL;
    size = size_align(size ? size : 1, 16);
    if ((size_t)(a->end - a->next) < size) {
        size_t       whole = size_max(ARENA_BLOCK, size + ARENA_HEAD);
        arena_block *block = (arena_block *)mem_alloc(a->h, whole);
        if (!block) return NULL;
        block->older = a->blocks;
        block->size  = whole;
        a->blocks    = block;
        a->next      = (char *)block + ARENA_HEAD;
        a->end       = (char *)block + whole;
    }
    void *p = a->next;
    a->next += size;
    return p;
}

static void *arena_zalloc(arena *a, size_t size) {
    void *p = arena_alloc(a, size);
    if (p) memset(p, 0, size);
    return p;
}

static void arena_free(arena *a) {
    while (a->blocks) {
        arena_block *older = a->blocks->older;
        mem_free(a->h, a->blocks, a->blocks->size);
        a->blocks = older;
    }
    a->next = a->end = NULL;
}

/* ==== src/platform.h ========================================================================================== */

/* The system: threads, atomics, time, files, the processor's features, floating-point modes. */
#ifndef NOVA_PLATFORM_H
#define NOVA_PLATFORM_H


#include <time.h>
#ifdef _MSC_VER
#include <intrin.h>
#endif

#if defined(__GLIBC__) && !defined(__USE_MISC)
#error "Include nova.c before the system's headers, or compile with -std=gnu11 or -D_GNU_SOURCE."
#endif

/* ---- Atomics (C11's are missing in MSVC's C and in C++17's C headers) ---- */

typedef struct atomic_int32 { volatile int32_t v; } atomic_int32;

/* atomic_add and atomic_exchange are sequentially consistent and return the value before; a sum wraps around.
 * cpu_pause belongs inside every spin loop. */
#if defined(__GNUC__) || defined(__clang__)
NOVA_INLINE int32_t atomic_load_acquire(const atomic_int32 *a) { return __atomic_load_n(&a->v, __ATOMIC_ACQUIRE); }
NOVA_INLINE int32_t atomic_load_relaxed(const atomic_int32 *a) { return __atomic_load_n(&a->v, __ATOMIC_RELAXED); }
NOVA_INLINE void    atomic_store_release(atomic_int32 *a, int32_t v) { __atomic_store_n(&a->v, v, __ATOMIC_RELEASE); }
NOVA_INLINE void    atomic_store_relaxed(atomic_int32 *a, int32_t v) { __atomic_store_n(&a->v, v, __ATOMIC_RELAXED); }
NOVA_INLINE int32_t atomic_add(atomic_int32 *a, int32_t v) { return __atomic_fetch_add(&a->v, v, __ATOMIC_SEQ_CST); }
NOVA_INLINE int32_t atomic_exchange(atomic_int32 *a, int32_t v) {
    return __atomic_exchange_n(&a->v, v, __ATOMIC_SEQ_CST);
}
NOVA_INLINE void cpu_pause(void) {
#if defined(NOVA_X86)
    __builtin_ia32_pause();
#elif defined(NOVA_ARM64)
    __asm__ __volatile__("isb" ::: "memory");  /* "yield" takes no time at all on most cores */
#endif
}
#else
/* MSVC. Plain loads and stores are ordered by x64 itself; ARM64 needs the barrier instruction. */
#if defined(NOVA_ARM64)
#define ATOMIC_ORDER() __dmb(_ARM64_BARRIER_ISH)
#else
#define ATOMIC_ORDER() \
    __pragma(warning(push)) __pragma(warning(disable : 4996)) _ReadWriteBarrier() __pragma(warning(pop))
#endif
NOVA_INLINE int32_t atomic_load_relaxed(const atomic_int32 *a) { return __iso_volatile_load32(&a->v); }
NOVA_INLINE void    atomic_store_relaxed(atomic_int32 *a, int32_t v) { __iso_volatile_store32(&a->v, v); }
NOVA_INLINE int32_t atomic_load_acquire(const atomic_int32 *a) {
    int32_t v = __iso_volatile_load32(&a->v);
    ATOMIC_ORDER();
    return v;
}
NOVA_INLINE void atomic_store_release(atomic_int32 *a, int32_t v) {
    ATOMIC_ORDER();
    __iso_volatile_store32(&a->v, v);
}
NOVA_INLINE int32_t atomic_add(atomic_int32 *a, int32_t v) {
    return (int32_t)_InterlockedExchangeAdd((volatile long *)&a->v, (long)v);
}
NOVA_INLINE int32_t atomic_exchange(atomic_int32 *a, int32_t v) {
    return (int32_t)_InterlockedExchange((volatile long *)&a->v, (long)v);
}
NOVA_INLINE void cpu_pause(void) {
#if defined(NOVA_ARM64)
    __isb(_ARM64_BARRIER_SY);
#else
    _mm_pause();
#endif
}
#endif

/* ---- Threads ---- */

typedef struct thread    { uintptr_t handle; void (*fn)(void *); void *arg; } thread;  /* must not move while it runs */
typedef struct wait_lock { NOVA_ALIGN(16) unsigned char storage[128]; } wait_lock;  /* a mutex with one condition */

static bool thread_start(thread *t, void (*fn)(void *arg), void *arg);
static void thread_join(thread *t);
static void thread_yield(void);
static bool wait_lock_init(wait_lock *l);
static void wait_lock_free(wait_lock *l);
static void wait_lock_enter(wait_lock *l);
static void wait_lock_leave(wait_lock *l);
static void wait_lock_sleep(wait_lock *l);   /* inside; wakes up inside; may wake for no reason */
static void wait_lock_wake_all(wait_lock *l);

/* ---- Time ---- */

static uint64_t clock_ns(void);        /* monotonic */
static int64_t  clock_unix(void);      /* seconds since 1970, for templates that print the date */
/* Local calendar time of a Unix time, thread-safe; false where the system cannot say. */
static bool     clock_local(int64_t unix_time, struct tm *out);

/* ---- Files. Paths are UTF-8 on every system. ---- */

typedef struct file_map {
    const uint8_t *data;
    size_t         size;
    void          *block;    /* NULL: mapped; else what the host's allocator gave, `data` being its first cache line */
} file_map;

/* Maps a regular file read-only and shared, or reads it into memory. Errors: FILE (missing, a directory, empty, no
 * permission, changed size while reading: each its own sentence with the path), MEMORY, CANCELLED.
 * Files over 4 GiB work. Reading goes in pieces of 16 MiB with `progress` behind each. */
static nova_result file_open(file_map *f, const host *h, const char *path, bool to_memory,
                             nova_progress_fn progress, void *progress_user, nova_error *error);
static void        file_close(file_map *f, const host *h);

/* ---- The processor ---- */

/* NOVA_CPU_... bits of what processor and operating system offer (cpuid and xgetbv; nothing on other machines).
 *   NOVA_CPU_AVX2:   AVX2, FMA, F16C
 *   NOVA_CPU_AVX512: AVX2 and AVX-512 F, BW, DQ, VL, VNNI, VBMI (Ice Lake, Zen 4 and later) */
static uint32_t cpu_features(void);
/* Cores that this process may use: physical ones where the system tells, within its affinity mask; at least 1. */
static uint32_t cpu_cores(void);

/* For functions that use an instruction set beyond the base line. */
#if defined(NOVA_X86) && (defined(__GNUC__) || defined(__clang__))
#define NOVA_TARGET_AVX2   __attribute__((target("avx2,fma,f16c")))
#define NOVA_TARGET_AVX512 \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")))
#else
#define NOVA_TARGET_AVX2
#define NOVA_TARGET_AVX512
#endif

/* gcc for 64-bit Windows aligns the stack to 16 bytes and spills wider registers with instructions that demand more (GCC
 * bug 54412): the assembler is told to take those that do not. Versions that align it lose nothing by that. */
#if defined(NOVA_X86) && defined(_WIN32) && defined(__GNUC__) && !defined(__clang__)
#define UNALIGNED_MOVE(aligned, unaligned) __asm__(".macro " aligned " a:vararg\n\t" unaligned " \\a\n\t.endm")
UNALIGNED_MOVE("vmovaps", "vmovups");
UNALIGNED_MOVE("vmovapd", "vmovupd");
UNALIGNED_MOVE("vmovdqa", "vmovdqu");
UNALIGNED_MOVE("vmovdqa32", "vmovdqu32");
UNALIGNED_MOVE("vmovdqa64", "vmovdqu64");
#undef UNALIGNED_MOVE
#endif

/* Round to nearest, subnormals kept, exceptions masked: set for a call and put back, so that results do not depend on
 * what the host set. */
typedef struct float_mode { uint64_t saved; } float_mode;
static float_mode float_mode_enter(void);
static void       float_mode_leave(float_mode m);

#endif

/* ==== src/platform.c ========================================================================================== */

/* The system: see platform.h. First what differs between POSIX and Windows, then the processor. */

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#include <process.h>
#else
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#if defined(NOVA_X86)
#include <xmmintrin.h>
#if !defined(_MSC_VER)
#include <cpuid.h>
#endif
#endif

#define THREAD_STACK ((size_t)1 << 20)   /* the same everywhere: some systems' default is 128 KiB, others' 8 MiB */
#define READ_PIECE   ((size_t)16 << 20)

/* ---- Messages about paths ---- */

/* A path's last part that fits into a message together with the reason; whole characters. */
static const char *path_tail(const char *path) {
    size_t n = strlen(path), most = 180;
    if (n <= most) return path;
    const char *p = path + n - most;
    while ((*p & 0xC0) == 0x80) p++;
    return p;
}

static nova_result fail_path(nova_error *error, nova_result code, const char *path, const char *reason) {
    const char *tail = path_tail(path);
    return fail(error, code, "%s%s: %s", tail == path ? "" : "...", tail, reason);
}

static nova_result fail_path_code(nova_error *error, const char *path, const char *reason, long number) {
    const char *tail = path_tail(path);
    return fail(error, NOVA_ERROR_FILE, "%s%s: %s (system error %ld)", tail == path ? "" : "...", tail, reason, number);
}

typedef struct system_reason { long number; const char *text; } system_reason;

static nova_result fail_system(nova_error *error, const char *path, const char *what, long number,
                               const system_reason *reasons, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (reasons[i].number == number) return fail_path(error, NOVA_ERROR_FILE, path, reasons[i].text);
    return fail_path_code(error, path, what, number);
}

#if !defined(_WIN32)

/* ---- POSIX: threads ---- */

typedef char thread_handle_fits[sizeof(pthread_t) <= sizeof(uintptr_t) ? 1 : -1];

static void *thread_main(void *p) {
    thread *t = (thread *)p;
    t->fn(t->arg);
    return NULL;
}

/* The host's signals are not for our threads; faults and the profiler's clock must still arrive where they happen. */
static void thread_signals(sigset_t *set) {
    static const int stay[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF};
    sigfillset(set);
    for (size_t i = 0; i < COUNT_OF(stay); i++) sigdelset(set, stay[i]);
}

static bool thread_start(thread *t, void (*fn)(void *arg), void *arg) {
    pthread_attr_t attributes;
    pthread_t      handle;
    sigset_t       blocked, before;
    t->fn  = fn;
    t->arg = arg;
    if (NOVA_FAULT("thread") || pthread_attr_init(&attributes) != 0) return false;
    (void)pthread_attr_setstacksize(&attributes, THREAD_STACK);   /* else the default, which is as good */
    thread_signals(&blocked);
    bool masked  = pthread_sigmask(SIG_SETMASK, &blocked, &before) == 0;
    bool started = pthread_create(&handle, &attributes, thread_main, t) == 0 ||
                   pthread_create(&handle, NULL, thread_main, t) == 0;   /* the host's thread-local data is larger */
    if (masked) (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (started) t->handle = (uintptr_t)handle;
    return started;
}

static void thread_join(thread *t) { (void)pthread_join((pthread_t)t->handle, NULL); }

static void thread_yield(void) { (void)sched_yield(); }

typedef struct posix_lock { pthread_mutex_t mutex; pthread_cond_t condition; } posix_lock;
typedef char posix_lock_fits[sizeof(posix_lock) <= sizeof(wait_lock) ? 1 : -1];

static posix_lock *posix_lock_of(wait_lock *l) { return (posix_lock *)(void *)l->storage; }

static bool wait_lock_init(wait_lock *l) {
    posix_lock *p = posix_lock_of(l);
    if (NOVA_FAULT("mutex") || pthread_mutex_init(&p->mutex, NULL) != 0) return false;
    if (pthread_cond_init(&p->condition, NULL) == 0) return true;
    pthread_mutex_destroy(&p->mutex);
    return false;
}

static void wait_lock_free(wait_lock *l) {
    pthread_cond_destroy(&posix_lock_of(l)->condition);
    pthread_mutex_destroy(&posix_lock_of(l)->mutex);
}

static void wait_lock_enter(wait_lock *l) { pthread_mutex_lock(&posix_lock_of(l)->mutex); }
static void wait_lock_leave(wait_lock *l) { pthread_mutex_unlock(&posix_lock_of(l)->mutex); }
static void wait_lock_sleep(wait_lock *l) { pthread_cond_wait(&posix_lock_of(l)->condition, &posix_lock_of(l)->mutex); }
static void wait_lock_wake_all(wait_lock *l) { pthread_cond_broadcast(&posix_lock_of(l)->condition); }

/* ---- POSIX: time ---- */

static uint64_t clock_ns(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool clock_local(int64_t unix_time, struct tm *out) {
    time_t t = (time_t)unix_time;
    return (int64_t)t == unix_time && localtime_r(&t, out) != NULL;
}

/* ---- POSIX: files ---- */

static nova_result fail_errno(nova_error *error, const char *path, const char *what, int number) {
    static const system_reason reasons[] = {
        {ENOENT, "no such file"},
        {ENOTDIR, "no such file: a part of the path is not a directory"},
        {ENAMETOOLONG, "the path is too long for this system"},
        {ELOOP, "too many symbolic links"},
        {EACCES, "no permission to read it"},
        {EPERM, "no permission to read it"},
        {EISDIR, "is a directory, not a file"},
        {ENXIO, "is not a regular file"},
        {EMFILE, "cannot be opened: the process has too many files open"},
        {ENFILE, "cannot be opened: the system has too many files open"},
        {EOVERFLOW, "is too large for this system"},
        {ENODEV, "cannot be mapped on this file system; read it into memory instead"},
        {EIO, "cannot be read: input/output error"},
    };
    return fail_system(error, path, what, number, reasons, COUNT_OF(reasons));
}

/* The descriptor's size if it is a regular file that has something in it and fits the address space. */
static nova_result file_check(int fd, const char *path, size_t *size, nova_error *error) {
    struct stat s;
    if (fstat(fd, &s) != 0) return fail_errno(error, path, "cannot be examined", errno);
    if (S_ISDIR(s.st_mode)) return fail_path(error, NOVA_ERROR_FILE, path, "is a directory, not a file");
    if (!S_ISREG(s.st_mode)) return fail_path(error, NOVA_ERROR_FILE, path, "is not a regular file");
    if (s.st_size <= 0) return fail_path(error, NOVA_ERROR_FILE, path, "is empty");
    if ((uint64_t)s.st_size > SIZE_MAX / 2)
        return fail_path(error, NOVA_ERROR_FILE, path, "is too large for the address space of this process");
    *size = (size_t)s.st_size;
    return NOVA_OK;
}

static nova_result file_map_os(file_map *f, int fd, const char *path, nova_error *error) {
    void *p = NOVA_FAULT("map") ? (errno = ENODEV, MAP_FAILED) : mmap(NULL, f->size, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
        f->data = (const uint8_t *)p;
        return NOVA_OK;
    }
    if (errno != ENOMEM) return fail_errno(error, path, "cannot be mapped", errno);
    return fail_path(error, NOVA_ERROR_MEMORY, path, "no address space left to map it");
}

/* Reads up to n bytes; fewer at the end of the file; -1 on errors. */
static int64_t file_read_some(int fd, uint8_t *to, size_t n) {
    for (;;) {
        ssize_t got = NOVA_FAULT("read") ? (errno = EIO, -1) : read(fd, to, n);
        if (got >= 0 || errno != EINTR) return (int64_t)got;
    }
}

static nova_result fail_read(nova_error *error, const char *path) {
    return fail_errno(error, path, "cannot be read", errno);
}

typedef int os_file;

/* A FIFO without a writer would hold us up, hence O_NONBLOCK; regular files do not care. */
static nova_result file_open_handle(os_file *out, size_t *size, const host *h, const char *path, nova_error *error) {
    (void)h;
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return fail_errno(error, path, "cannot be opened", errno);
    nova_result r = file_check(fd, path, size, error);
    if (r != NOVA_OK) (void)close(fd);
    else *out = fd;
    return r;
}

static void file_close_handle(os_file fd) { (void)close(fd); }

static void file_unmap(const uint8_t *data, size_t size) { (void)munmap((void *)(uintptr_t)data, size); }

#else

/* ---- Windows: threads ---- */

static unsigned __stdcall thread_main(void *p) {
    thread *t = (thread *)p;
    t->fn(t->arg);
    return 0;
}

static bool thread_start(thread *t, void (*fn)(void *arg), void *arg) {
    t->fn     = fn;
    t->arg    = arg;
    t->handle = NOVA_FAULT("thread") ? 0
              : (uintptr_t)_beginthreadex(NULL, (unsigned)THREAD_STACK, thread_main, t,
                                          STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return t->handle != 0;
}

static void thread_join(thread *t) {
    WaitForSingleObject((HANDLE)t->handle, INFINITE);
    CloseHandle((HANDLE)t->handle);
}

static void thread_yield(void) { SwitchToThread(); }

typedef struct windows_lock { SRWLOCK lock; CONDITION_VARIABLE condition; } windows_lock;
typedef char windows_lock_fits[sizeof(windows_lock) <= sizeof(wait_lock) ? 1 : -1];

static windows_lock *windows_lock_of(wait_lock *l) { return (windows_lock *)(void *)l->storage; }

static bool wait_lock_init(wait_lock *l) {
    if (NOVA_FAULT("mutex")) return false;
    InitializeSRWLock(&windows_lock_of(l)->lock);
    InitializeConditionVariable(&windows_lock_of(l)->condition);
    return true;
}

static void wait_lock_free(wait_lock *l) { (void)l; }
static void wait_lock_enter(wait_lock *l) { AcquireSRWLockExclusive(&windows_lock_of(l)->lock); }
static void wait_lock_leave(wait_lock *l) { ReleaseSRWLockExclusive(&windows_lock_of(l)->lock); }
static void wait_lock_sleep(wait_lock *l) {
    SleepConditionVariableSRW(&windows_lock_of(l)->condition, &windows_lock_of(l)->lock, INFINITE, 0);
}
static void wait_lock_wake_all(wait_lock *l) { WakeAllConditionVariable(&windows_lock_of(l)->condition); }

/* ---- Windows: time ---- */

static uint64_t clock_ns(void) {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    uint64_t t = (uint64_t)ticks.QuadPart, f = (uint64_t)per_second.QuadPart;
    return t / f * 1000000000u + t % f * 1000000000u / f;
}

static bool clock_local(int64_t unix_time, struct tm *out) {
    __time64_t t = unix_time;
    return _localtime64_s(out, &t) == 0;
}

/* ---- Windows: files ---- */

static nova_result fail_windows(nova_error *error, const char *path, const char *what, DWORD number) {
    static const system_reason reasons[] = {
        {ERROR_FILE_NOT_FOUND, "no such file"},
        {ERROR_PATH_NOT_FOUND, "no such file"},
        {ERROR_INVALID_NAME, "no such file: the name is not valid"},
        {ERROR_BAD_PATHNAME, "no such file: the name is not valid"},
        {ERROR_BAD_NETPATH, "no such file: the network path was not found"},
        {ERROR_NO_UNICODE_TRANSLATION, "no such file: the path is not UTF-8"},
        {ERROR_FILENAME_EXCED_RANGE, "the path is too long for this system"},
        {ERROR_ACCESS_DENIED, "no permission to read it"},
        {ERROR_SHARING_VIOLATION, "is in use by another program"},
        {ERROR_LOCK_VIOLATION, "is in use by another program"},
        {ERROR_NOT_READY, "cannot be opened: the drive is not ready"},
        {ERROR_TOO_MANY_OPEN_FILES, "cannot be opened: too many files are open"},
        {ERROR_DIRECTORY, "is a directory, not a file"},
    };
    return fail_system(error, path, what, (long)number, reasons, COUNT_OF(reasons));
}

/* UTF-8 to UTF-16; *n counts units, the end included. NULL with the reason in `error`. */
static WCHAR *path_widen(const host *h, const char *path, size_t *n, nova_error *error) {
    int need = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    if (need <= 0) {
        fail_windows(error, path, "the path cannot be understood", GetLastError());
        return NULL;
    }
    *n = (size_t)need;
    WCHAR *wide = (WCHAR *)mem_alloc(h, *n * sizeof(WCHAR));
    if (!wide) fail_memory(error, *n * sizeof(WCHAR), "a path");
    else MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, need);
    return wide;
}

/* Paths of MAX_PATH and longer work only absolute and behind the prefix "\\?\" (Win32, "Maximum Path Length").
 * Returns the path to use, inside or equal to a block of *n units that the caller frees; NULL with a reason. */
static WCHAR *path_long(const host *h, const char *path, const WCHAR *wide, size_t *n, WCHAR **use, nova_error *error) {
    static const WCHAR prefix[] = {'\\', '\\', '?', '\\', 'U', 'N', 'C'};
    enum { ROOM = 8 };
    DWORD need = GetFullPathNameW(wide, 0, NULL, NULL);   /* the end included */
    if (need == 0) {
        fail_windows(error, path, "the path cannot be understood", GetLastError());
        return NULL;
    }
    *n = (size_t)need + ROOM;
    WCHAR *block = (WCHAR *)mem_alloc(h, *n * sizeof(WCHAR));
    if (!block) {
        fail_memory(error, *n * sizeof(WCHAR), "a path");
        return NULL;
    }
    WCHAR *full = block + ROOM;
    DWORD    got  = GetFullPathNameW(wide, need, full, NULL);
    if (got == 0 || got >= need) full[0] = 0;
    *use = full;
    bool device = full[0] == '\\' && full[1] == '\\' && (full[2] == '?' || full[2] == '.') && full[3] == '\\';
    if (got < MAX_PATH || device) return block;
    bool share = full[0] == '\\' && full[1] == '\\';      /* \\server\share becomes \\?\UNC\server\share */
    size_t k = share ? 7 : 4;
    *use = full + (share ? 1 : 0) - k;
    memcpy(*use, prefix, k * sizeof(WCHAR));
    return block;
}

typedef HANDLE os_file;

/* The handle's size if it is a regular file that has something in it and fits the address space. */
static nova_result file_check(HANDLE file, const char *path, size_t *size, nova_error *error) {
    LARGE_INTEGER n;
    if (GetFileType(file) != FILE_TYPE_DISK) return fail_path(error, NOVA_ERROR_FILE, path, "is not a regular file");
    if (!GetFileSizeEx(file, &n)) return fail_windows(error, path, "cannot be examined", GetLastError());
    if (n.QuadPart <= 0) return fail_path(error, NOVA_ERROR_FILE, path, "is empty");
    if ((uint64_t)n.QuadPart > SIZE_MAX / 2)
        return fail_path(error, NOVA_ERROR_FILE, path, "is too large for the address space of this process");
    *size = (size_t)n.QuadPart;
    return NOVA_OK;
}

static nova_result file_open_wide(os_file *out, size_t *size, const WCHAR *wide, const char *path, nova_error *error) {
    DWORD kind = GetFileAttributesW(wide);
    if (kind != INVALID_FILE_ATTRIBUTES && (kind & FILE_ATTRIBUTE_DIRECTORY))
        return fail_path(error, NOVA_ERROR_FILE, path, "is a directory, not a file");
    HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                              FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return fail_windows(error, path, "cannot be opened", GetLastError());
    nova_result r = file_check(file, path, size, error);
    if (r != NOVA_OK) CloseHandle(file);
    else *out = file;
    return r;
}

static nova_result file_open_handle(os_file *out, size_t *size, const host *h, const char *path, nova_error *error) {
    size_t      n_wide, n_block;
    nova_error  unheard;
    if (!error) error = &unheard;
    WCHAR    *use  = NULL;
    WCHAR    *wide = path_widen(h, path, &n_wide, error);
    if (!wide) return error->code;
    WCHAR    *block = path_long(h, path, wide, &n_block, &use, error);
    nova_result r     = block ? file_open_wide(out, size, use, path, error) : error->code;
    mem_free(h, block, block ? n_block * sizeof(WCHAR) : 0);
    mem_free(h, wide, n_wide * sizeof(WCHAR));
    return r;
}

/* The view keeps the mapping alive: no handle has to be kept. */
static nova_result file_map_os(file_map *f, os_file file, const char *path, nova_error *error) {
    HANDLE mapping = NOVA_FAULT("map") ? NULL : CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    if (!mapping) return fail_windows(error, path, "cannot be mapped", GetLastError());
    f->data = (const uint8_t *)MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, f->size);
    nova_result r = f->data ? NOVA_OK : fail_path(error, NOVA_ERROR_MEMORY, path, "no address space left to map it");
    CloseHandle(mapping);
    return r;
}

static int64_t file_read_some(os_file file, uint8_t *to, size_t n) {
    DWORD got = 0;
    if (NOVA_FAULT("read") || !ReadFile(file, to, (DWORD)size_min(n, READ_PIECE), &got, NULL)) return -1;
    return (int64_t)got;
}

static nova_result fail_read(nova_error *error, const char *path) {
    return fail_windows(error, path, "cannot be read", GetLastError());
}

static void file_close_handle(os_file file) { CloseHandle(file); }

static void file_unmap(const uint8_t *data, size_t size) {
    (void)size;
    UnmapViewOfFile(data);
}

#endif

/* ---- Both ---- */

static int64_t clock_unix(void) { return (int64_t)time(NULL); }

/* Fills f->data, or says why not. One byte more is asked for: a file that grows is as wrong as one that shrinks. */
static nova_result file_fill(file_map *f, os_file file, const char *path, nova_progress_fn progress,
                             void *progress_user, nova_error *error) {
    uint8_t *to   = (uint8_t *)(uintptr_t)f->data;
    size_t   done = 0, shown = 0;
    while (done < f->size) {
        int64_t got = file_read_some(file, to + done, size_min(f->size - done, READ_PIECE - (done - shown)));
        if (got < 0) return fail_read(error, path);
        if (got == 0) return fail_path(error, NOVA_ERROR_FILE, path, "became shorter while it was read");
        done += (size_t)got;
        if (done < f->size && done - shown < READ_PIECE) continue;
        shown = done;
        if (progress && !progress(progress_user, "reading", done, f->size))
            return fail_path(error, NOVA_CANCELLED, path, "reading was cancelled");
    }
    uint8_t more;
    int64_t got = file_read_some(file, &more, 1);
    if (got < 0) return fail_read(error, path);
    return got == 0 ? NOVA_OK : fail_path(error, NOVA_ERROR_FILE, path, "became longer while it was read");
}

static nova_result file_load(file_map *f, os_file file, const host *h, const char *path, nova_progress_fn progress,
                             void *progress_user, nova_error *error) {
    f->block = mem_alloc(h, f->size + CACHE_LINE);   /* the size is at most SIZE_MAX / 2 */
    if (!f->block) return fail_memory(error, f->size + CACHE_LINE, "the file");
    f->data = (const uint8_t *)(((uintptr_t)f->block + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    nova_result r = file_fill(f, file, path, progress, progress_user, error);
    if (r != NOVA_OK) file_close(f, h);
    return r;
}

static nova_result file_open(file_map *f, const host *h, const char *path, bool to_memory,
                             nova_progress_fn progress, void *progress_user, nova_error *error) {
    os_file file = (os_file)0;
    memset(f, 0, sizeof *f);
    nova_result r = file_open_handle(&file, &f->size, h, path, error);
    if (r != NOVA_OK) return r;
    r = to_memory ? file_load(f, file, h, path, progress, progress_user, error) : file_map_os(f, file, path, error);
    file_close_handle(file);
    if (r != NOVA_OK) memset(f, 0, sizeof *f);
    return r;
}

static void file_close(file_map *f, const host *h) {
    if (f->block) mem_free(h, f->block, f->size + CACHE_LINE);
    else if (f->data) file_unmap(f->data, f->size);
    memset(f, 0, sizeof *f);
}

/* ---- The processor: features ---- */

#if defined(NOVA_X86)

/* EAX, EBX, ECX, EDX; zeros for leaves that the processor does not have. */
static void cpuid_read(uint32_t leaf, uint32_t r[4]) {
    memset(r, 0, 4 * sizeof r[0]);
#if defined(_MSC_VER)
    int regs[4];
    __cpuid(regs, 0);
    if ((uint32_t)regs[0] < leaf) return;
    __cpuidex(regs, (int)leaf, 0);
    memcpy(r, regs, sizeof regs);
#else
    (void)__get_cpuid_count(leaf, 0, &r[0], &r[1], &r[2], &r[3]);
#endif
}

/* Which registers the operating system saves (XCR0). Only where cpuid says OSXSAVE. */
static uint64_t xgetbv_read(void) {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
#endif
}

/* Bits: Intel SDM volume 2, CPUID leaves 1 and 7; volume 1, 13.3 (XCR0). */
static uint32_t cpu_features(void) {
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29 };                 /* leaf 1, ECX */
    enum { AVX2 = 1 << 5, AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30 };        /* leaf 7, EBX */
    const uint32_t AVX512VL = (uint32_t)1 << 31;
    enum { AVX512VBMI = 1 << 1, AVX512VNNI = 1 << 11 };                                       /* leaf 7, ECX */
    enum { YMM_STATE = 0x06, ZMM_STATE = 0xE6 };                                              /* XCR0 */
    const uint32_t need1 = FMA | OSXSAVE | AVX | F16C;
    const uint32_t need7b = (uint32_t)(AVX512F | AVX512DQ | AVX512BW) | AVX512VL;
    const uint32_t need7c = AVX512VBMI | AVX512VNNI;
    uint32_t leaf1[4], leaf7[4];
    cpuid_read(1, leaf1);
    cpuid_read(7, leaf7);
    if ((leaf1[2] & need1) != need1 || !(leaf7[1] & AVX2)) return 0;
    uint64_t state = xgetbv_read();
    if ((state & YMM_STATE) != YMM_STATE) return 0;
    bool wide = (state & ZMM_STATE) == ZMM_STATE && (leaf7[1] & need7b) == need7b && (leaf7[2] & need7c) == need7c;
    return NOVA_CPU_AVX2 | (wide ? (uint32_t)NOVA_CPU_AVX512 : 0);
}

#else

static uint32_t cpu_features(void) { return 0; }

#endif

/* ---- The processor: cores ---- */

#if defined(__linux__)

/* The file's start as text; false when it cannot be read. */
static bool system_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, size - 1);
    (void)close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

#define CPU_MASK_BYTES 4096

static bool mask_has(const uint8_t *mask, unsigned long cpu) {
    return cpu < CPU_MASK_BYTES * 8 && (mask[cpu / 8] >> (cpu % 8) & 1);
}

/* A core counts once: for the first of its hardware threads that we may use. The list reads "0,4" or "0-1". */
static bool core_counts(const uint8_t *mask, unsigned long cpu) {
    char path[96], text[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%lu/topology/thread_siblings_list", cpu);
    if (!system_text(path, text, sizeof text)) return true;
    for (char *p = text; *p >= '0' && *p <= '9';) {
        unsigned long first = strtoul(p, &p, 10), last = first;
        if (*p == '-') last = strtoul(p + 1, &p, 10);
        for (unsigned long i = first; i <= last && i < cpu; i++)
            if (mask_has(mask, i)) return false;
        if (*p == ',') p++;
    }
    return true;
}

/* How many processors' time a control group grants ("200000 100000": two), or UINT32_MAX. */
static uint32_t quota_read(const char *path) {
    char text[64], *p;
    if (!system_text(path, text, sizeof text)) return UINT32_MAX;
    unsigned long long quota = strtoull(text, &p, 10), period = strtoull(p, NULL, 10);
    if (p == text || quota == 0 || period == 0 || quota / period >= UINT32_MAX - 1) return UINT32_MAX;
    return (uint32_t)((quota + period - 1) / period);
}

/* The tightest quota of our control group (version 2) and those around it. */
static uint32_t quota_cores(void) {
    char text[512], path[600];
    uint32_t cores = quota_read("/sys/fs/cgroup/cpu.max");
    if (!system_text("/proc/self/cgroup", text, sizeof text) || strncmp(text, "0::/", 4) != 0) return cores;
    text[strcspn(text, "\n")] = 0;
    for (char *group = text + 3, *slash; (slash = strrchr(group, '/')) != NULL; *slash = 0) {
        if (!slash[1]) continue;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        uint32_t here = quota_read(path);
        if (here < cores) cores = here;
    }
    return cores;
}

static uint32_t cpu_cores(void) {
    NOVA_ALIGN(16) uint8_t mask[CPU_MASK_BYTES];
    uint32_t n = 0;
    memset(mask, 0, sizeof mask);
    if (syscall(SYS_sched_getaffinity, 0, sizeof mask, mask) <= 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online > 0 ? (uint32_t)online : 1;
    }
    for (unsigned long cpu = 0; cpu < CPU_MASK_BYTES * 8; cpu++)
        if (mask_has(mask, cpu) && core_counts(mask, cpu)) n++;
    uint32_t quota = quota_cores();
    if (quota < n) n = quota;
    return n ? n : 1;
}

#elif defined(_WIN32)

/* Of the process's processor group (64 at most): more threads than that are asked for by hand. */
static uint32_t cpu_cores(void) {
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION info[512];
    DWORD_PTR ours = 0, all = 0;
    DWORD     bytes = sizeof info;
    uint32_t  n = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &ours, &all)) ours = 0;
    if (ours && GetLogicalProcessorInformation(info, &bytes)) {
        for (DWORD i = 0; i < bytes / sizeof info[0]; i++)
            if (info[i].Relationship == RelationProcessorCore && (info[i].ProcessorMask & ours)) n++;
    }
    if (n == 0) for (; ours; ours &= ours - 1) n++;   /* the system does not tell: hardware threads */
    return n ? n : 1;
}

#else

static uint32_t cpu_cores(void) {
#if defined(__APPLE__)
    /* The fast ones: work that meets at barriers is as slow as its slowest thread. */
    static const char *const names[] = {"hw.perflevel0.physicalcpu", "hw.physicalcpu"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        int32_t n = 0;
        size_t  size = sizeof n;
        if (sysctlbyname(names[i], &n, &size, NULL, 0) == 0 && size == sizeof n && n > 0) return (uint32_t)n;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

#endif

/* ---- Floating-point modes ---- */

#if defined(NOVA_X86)

/* MXCSR (Intel SDM volume 1, 10.2.3): all exceptions masked, nearest, FTZ and DAZ off, no flag raised. */
static float_mode float_mode_enter(void) {
    float_mode m;
    m.saved = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return m;
}

static void float_mode_leave(float_mode m) { _mm_setcsr((unsigned)m.saved); }

#elif defined(NOVA_ARM64)

#if defined(_MSC_VER)
#ifndef ARM64_FPCR
#define ARM64_FPCR 0x5A20   /* op0 3, op1 3, CRn 4, CRm 4, op2 0 */
#endif
static uint64_t fpcr_read(void) { return (uint64_t)_ReadStatusReg(ARM64_FPCR); }
static void     fpcr_write(uint64_t v) { _WriteStatusReg(ARM64_FPCR, (__int64)v); }
#else
static uint64_t fpcr_read(void) {
    uint64_t v;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(v));
    return v;
}
static void fpcr_write(uint64_t v) { __asm__ __volatile__("msr fpcr, %0" : : "r"(v) : "memory"); }
#endif

/* FPCR (Arm ARM, C5.2): zero is nearest, no flushing, no default NaN, no traps. */
static float_mode float_mode_enter(void) {
    float_mode m;
    m.saved = fpcr_read();
    fpcr_write(0);
    return m;
}

static void float_mode_leave(float_mode m) { fpcr_write(m.saved); }

#else

static float_mode float_mode_enter(void) {
    float_mode m;
    m.saved = 0;
    return m;
}

static void float_mode_leave(float_mode m) { (void)m; }

#endif

/* ==== src/pool.h ============================================================================================== */

/* The worker threads of an engine: run one function on all of them at once, with barriers inside. */
#ifndef NOVA_POOL_H
#define NOVA_POOL_H


typedef struct pool pool;

/* n threads, the caller's being number 0. Workers sleep while nothing runs. With `parallel`, the host's threads are
 * used instead and none is started. Errors: THREAD, MEMORY. */
static nova_result pool_open(pool **out, const host *h, uint32_t n, nova_parallel_fn parallel, void *parallel_user,
                             nova_error *error);
static void        pool_close(pool *p);   /* joins the workers; NULL is ignored */
NOVA_UNUSED static uint32_t    pool_size(const pool *p);

/* Runs task(arg, i, n) for i = 0..n-1 at the same time and returns when all have returned. Float modes are set for
 * each (float_mode_enter). Not from inside a task. */
static void pool_run(pool *p, nova_task_fn task, void *arg);

/* Inside a task: waits until all n threads have come here. Spins some microseconds, then sleeps. Everything written
 * before by any of them is visible to all behind it. */
static void pool_barrier(pool *p);

/* Inside a task: shares of work that threads take as they come. pool_take hands out 0, 1, 2, ... of `counter`, which
 * must be zero before the barrier in front. */
NOVA_INLINE uint32_t pool_take(atomic_int32 *counter) { return (uint32_t)atomic_add(counter, 1); }

#endif

/* ==== src/pool.c ============================================================================================== */

/* The worker threads: see pool.h. Everything that waits here waits for a counter to change: it looks for some
 * microseconds, gives its time slice away for some more, and then sleeps until the one who changes it wakes it. */

#define POOL_SPIN_NS   20000   /* longer than what threads mostly differ by inside one operation */
#define POOL_CROWD_NS  1000    /* the same with more threads than cores, where the others need the core */
#define POOL_AWAKE_NS  50000   /* spinning and giving the time slice away, together */

typedef struct pool_worker { thread t; pool *p; uint32_t index; } pool_worker;

/* Counters that different threads write at different times lie in cache lines of their own. */
typedef struct pool_counter { atomic_int32 a; char pad[CACHE_LINE - sizeof(atomic_int32)]; } pool_counter;

struct pool {
    pool_counter     runs;      /* goes up with every run, and at the end: what workers wait for */
    pool_counter     done;      /* goes up when the last worker has returned: what pool_run waits for */
    pool_counter     busy;      /* workers that have not returned */
    pool_counter     arrived;   /* threads at the barrier */
    pool_counter     phase;     /* goes up when all have arrived */
    pool_counter     sleepers;
    wait_lock        lock;      /* guards nothing but sleeping and waking */
    nova_task_fn     task;      /* of the current run; NULL: the end */
    void            *arg;
    nova_parallel_fn parallel;
    void            *parallel_user;
    pool_worker     *workers;   /* n - 1 of them */
    uint32_t         n, n_started;
    uint64_t         spin_ns;
    bool             locked;    /* the lock exists */
    void            *block;     /* this struct's own memory, before alignment */
    host             h;
};

/* ---- Waiting for a counter ---- */

/* Waits, awake, until *a is not `old`; false when that took too long. */
static bool pool_spin(const pool *p, const atomic_int32 *a, int32_t old) {
    for (int i = 0; i < 64; i++) {   /* about as long as asking the clock */
        if (atomic_load_acquire(a) != old) return true;
        cpu_pause();
    }
    uint64_t start = clock_ns(), waited = 0;
    while (waited < POOL_AWAKE_NS) {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_acquire(a) != old) return true;
            cpu_pause();
        }
        if (waited >= p->spin_ns) thread_yield();
        waited = clock_ns() - start;
    }
    return false;
}

static void pool_wait(pool *p, atomic_int32 *a, int32_t old) {
    if (pool_spin(p, a, old)) return;
    wait_lock_enter(&p->lock);
    atomic_add(&p->sleepers.a, 1);
    /* This read and the one of `sleepers` in pool_change are sequentially consistent: one of the two sees the other. */
    while (atomic_add(a, 0) == old) wait_lock_sleep(&p->lock);
    atomic_add(&p->sleepers.a, -1);
    wait_lock_leave(&p->lock);
}

static void pool_change(pool *p, atomic_int32 *a) {
    atomic_add(a, 1);
    if (atomic_add(&p->sleepers.a, 0) == 0) return;
    wait_lock_enter(&p->lock);
    wait_lock_wake_all(&p->lock);
    wait_lock_leave(&p->lock);
}

/* ---- Workers ---- */

static void pool_do(pool *p, uint32_t index) {
    float_mode mode = float_mode_enter();
    p->task(p->arg, index, p->n);
    float_mode_leave(mode);
}

static void pool_work(void *arg) {
    pool_worker *w    = (pool_worker *)arg;
    pool        *p    = w->p;
    for (uint32_t runs = 0;; runs++) {
        pool_wait(p, &p->runs.a, (int32_t)runs);
        if (!p->task) return;
        pool_do(p, w->index);
        if (atomic_add(&p->busy.a, -1) == 1) pool_change(p, &p->done.a);
    }
}

static bool pool_start(pool *p) {
    for (uint32_t i = 0; i < p->n - 1; i++) {
        pool_worker *w = &p->workers[i];
        w->p     = p;
        w->index = i + 1;
        if (!thread_start(&w->t, pool_work, w)) return false;
        p->n_started++;
    }
    return true;
}

/* ---- Opening and closing ---- */

static pool *pool_alloc(const host *h) {
    void *block = mem_zalloc(h, sizeof(pool) + CACHE_LINE);
    if (!block) return NULL;
    pool *p  = (pool *)(void *)(((uintptr_t)block + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    p->block = block;
    p->h     = *h;
    return p;
}

static nova_result pool_open(pool **out, const host *h, uint32_t n, nova_parallel_fn parallel, void *parallel_user,
                             nova_error *error) {
    *out = NULL;
    pool *p = pool_alloc(h);
    if (!p) return fail_memory(error, sizeof(pool) + CACHE_LINE, "the worker threads");
    p->n             = n ? n : 1;
    p->parallel      = p->n > 1 ? parallel : NULL;
    p->parallel_user = parallel_user;
    p->spin_ns       = p->n > 1 && p->n > cpu_cores() ? POOL_CROWD_NS : POOL_SPIN_NS;
    p->locked        = p->n > 1 && wait_lock_init(&p->lock);
    nova_result r    = NOVA_OK;
    if (p->n > 1 && !p->locked) r = fail(error, NOVA_ERROR_THREAD, "a lock for the worker threads cannot be made");
    if (r == NOVA_OK && p->n > 1 && !p->parallel) {
        size_t bytes = 0;
        if (size_mul(p->n - 1, sizeof(pool_worker), &bytes)) p->workers = (pool_worker *)mem_zalloc(h, bytes);
        if (!p->workers) r = fail_memory(error, bytes, "the worker threads");
        else if (!pool_start(p))
            r = fail(error, NOVA_ERROR_THREAD, "thread %u of %u cannot be started", p->n_started + 2, p->n);
    }
    if (r == NOVA_OK) *out = p;
    else pool_close(p);
    return r;
}

static void pool_close(pool *p) {
    if (!p) return;
    p->task = NULL;
    if (p->n_started) pool_change(p, &p->runs.a);
    for (uint32_t i = 0; i < p->n_started; i++) thread_join(&p->workers[i].t);
    if (p->locked) wait_lock_free(&p->lock);
    host h = p->h;
    mem_free(&h, p->workers, p->workers ? (p->n - 1) * sizeof(pool_worker) : 0);
    mem_free(&h, p->block, sizeof(pool) + CACHE_LINE);
}

NOVA_UNUSED static uint32_t pool_size(const pool *p) { return p->n; }

/* ---- Running ---- */

/* What the host's threads call. */
static void pool_hosted(void *arg, uint32_t index, uint32_t n) {
    (void)n;
    pool_do((pool *)arg, index);
}

static void pool_run(pool *p, nova_task_fn task, void *arg) {
    p->task = task;
    p->arg  = arg;
    if (p->n == 1) {
        pool_do(p, 0);
    } else if (p->parallel) {
        p->parallel(p->parallel_user, pool_hosted, p, p->n);
    } else {
        int32_t done = atomic_load_relaxed(&p->done.a);
        atomic_store_relaxed(&p->busy.a, (int32_t)(p->n - 1));
        pool_change(p, &p->runs.a);
        pool_do(p, 0);
        pool_wait(p, &p->done.a, done);
    }
}

static void pool_barrier(pool *p) {
    if (p->n == 1) return;
    int32_t phase = atomic_load_relaxed(&p->phase.a);   /* cannot change before this thread has arrived */
    if (atomic_add(&p->arrived.a, 1) != (int32_t)(p->n - 1)) {
        pool_wait(p, &p->phase.a, phase);
        return;
    }
    atomic_store_relaxed(&p->arrived.a, 0);             /* seen by all before `phase` lets them on */
    pool_change(p, &p->phase.a);
}

/* ==== src/quant.h ============================================================================================= */

/* The tensor types of GGUF: names, block layouts, exact conversion to float. */
#ifndef NOVA_QUANT_H
#define NOVA_QUANT_H


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

/* ==== src/quant.c ============================================================================================= */

/* Block formats to float: see quant.h. Layouts as in the GGUF specification and ggml's type definitions.
 *
 * Every product below is exact: a half's 11 bits times a scale of at most 7 bits times a code of at most 6 bits fits
 * the 24 bits of a float, and nothing is so small that it would be subnormal. At most one sum follows, which rounds
 * once. So no compiler option (contraction to multiply-add, reassociation) changes a result. */

/* ---- Half precision ---- */

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu, u;
    if (exponent == 31) {
        u = 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        u = (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        u = 0;
    } else {
        for (exponent = 113; !(mantissa & 0x400u); exponent--) mantissa <<= 1;
        u = exponent << 23 | (mantissa & 0x3ffu) << 13;
    }
    u |= sign;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t float_to_half(float f) {
    uint32_t u, half;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) {            /* NaN: the upper payload bits, made quiet */
        half = 0x7e00u | ((u >> 13) & 0x3ffu);
    } else if (u >= 0x477ff000u) {    /* 65520 and above rounds to infinity */
        half = 0x7c00u;
    } else if (u >= 0x38800000u) {    /* 2^-14: normal as a half. A carry runs into the exponent, as it must. */
        half = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
    } else if (u >= 0x33000000u) {    /* 2^-25 and above: a count of 2^-24 */
        uint32_t mantissa = (u & 0x7fffffu) | 0x800000u, shift = 126 - (u >> 23);
        uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
        half = mantissa >> shift;
        if (rest > middle || (rest == middle && (half & 1u))) half++;
    } else {
        half = 0;
    }
    return (uint16_t)(sign | half);
}

static float load_half(const uint8_t *p) { return half_to_float(load_u16(p)); }

/* ---- Plain types ---- */

static void f32_to_float(const void *blocks, float *out, size_t n) { memcpy(out, blocks, n * sizeof *out); }

static void f16_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i++) out[i] = load_half(p + 2 * i);
}

static void bf16_to_floats(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(load_u16(p + 2 * i));
}

/* ---- Blocks of 32: weight j in the low half of byte j, weight j + 16 in the high half ---- */

/* d (half), 16 bytes of codes: w = d * (code - 8) */
static void q4_0_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 18) {
        float d = load_half(p);
        for (int j = 0; j < 16; j++) {
            out[i + (size_t)j]      = d * (float)((p[2 + j] & 15) - 8);
            out[i + (size_t)j + 16] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

/* d, m (halves), 16 bytes of codes: w = d * code + m */
static void q4_1_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 20) {
        float d = load_half(p), m = load_half(p + 2);
        for (int j = 0; j < 16; j++) {
            out[i + (size_t)j]      = d * (float)(p[4 + j] & 15) + m;
            out[i + (size_t)j + 16] = d * (float)(p[4 + j] >> 4) + m;
        }
    }
}

/* The 5-bit code of weight j: its fifth bit is bit j of a 32-bit word. */
static int code_5(const uint8_t *codes, uint32_t high, int j) {
    int low = j < 16 ? codes[j] & 15 : codes[j - 16] >> 4;
    return low | (int)((high >> j) & 1u) << 4;
}

/* d (half), 4 bytes of fifth bits, 16 bytes of codes: w = d * (code - 16) */
static void q5_0_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 22) {
        float    d    = load_half(p);
        uint32_t high = load_u32(p + 2);
        for (int j = 0; j < 32; j++) out[i + (size_t)j] = d * (float)(code_5(p + 6, high, j) - 16);
    }
}

/* d, m (halves), 4 bytes of fifth bits, 16 bytes of codes: w = d * code + m */
static void q5_1_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 24) {
        float    d = load_half(p), m = load_half(p + 2);
        uint32_t high = load_u32(p + 4);
        for (int j = 0; j < 32; j++) out[i + (size_t)j] = d * (float)code_5(p + 8, high, j) + m;
    }
}

/* d (half), 32 signed bytes: w = d * code */
static void q8_0_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 34) {
        float d = load_half(p);
        for (int j = 0; j < 32; j++) out[i + (size_t)j] = d * (float)(int8_t)p[2 + j];
    }
}

/* ---- Blocks of 256 ---- */

/* Scale and minimum, 6 bits each, of sub-block j of Q4_K and Q5_K, from 12 packed bytes. */
static void k_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min   = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min   = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* d, dmin (halves), 12 bytes of scales, 128 bytes of codes: w = d * scale * code - dmin * min by sub-blocks of 32.
 * 32 bytes hold the codes of two sub-blocks: low halves, then high halves. */
static void q4_k_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (; n; n -= 256, p += 144, out += 256) {
        float d = load_half(p), dmin = load_half(p + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *codes = p + 16 + 32 * (j / 2);
            int            scale, min;
            k_scale_min(p + 4, j, &scale, &min);
            float a = d * (float)scale, b = dmin * (float)min;
            for (int l = 0; l < 32; l++) out[32 * j + l] = a * (float)(j % 2 ? codes[l] >> 4 : codes[l] & 15) - b;
        }
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the codes: bit j of byte l belongs to weight l of sub-block j. */
static void q5_k_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (; n; n -= 256, p += 176, out += 256) {
        float d = load_half(p), dmin = load_half(p + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *high = p + 16, *codes = p + 48 + 32 * (j / 2);
            int            scale, min;
            k_scale_min(p + 4, j, &scale, &min);
            float a = d * (float)scale, b = dmin * (float)min;
            for (int l = 0; l < 32; l++) {
                int code = (j % 2 ? codes[l] >> 4 : codes[l] & 15) | ((high[l] >> j) & 1) << 4;
                out[32 * j + l] = a * (float)code - b;
            }
        }
    }
}

/* 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales, d (half): w = d * scale * (code - 32) by
 * sub-blocks of 16. Each half of the block: 64 bytes of low bits hold four runs of 32 weights (low halves of the first
 * and second 32 bytes, then high halves), 32 bytes of high bits the same runs by pairs of bits. */
static void q6_k_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (; n; n -= 256, p += 210, out += 256) {
        float d = load_half(p + 208);
        for (int j = 0; j < 256; j++) {
            int     half = j / 128, run = j / 32 % 4, l = j % 32;
            uint8_t low  = p[64 * half + 32 * (run % 2) + l], high = p[128 + 32 * half + l];
            int     code = (run < 2 ? low & 15 : low >> 4) | ((high >> (2 * run)) & 3) << 4;
            out[j] = d * (float)(int8_t)p[192 + j / 16] * (float)(code - 32);
        }
    }
}

/* ---- The table ---- */

#define F32_TO_FLOAT  f32_to_float
#define F16_TO_FLOAT  f16_to_float
#define BF16_TO_FLOAT bf16_to_floats
#define Q4_0_TO_FLOAT q4_0_to_float
#define Q4_1_TO_FLOAT q4_1_to_float
#define Q5_0_TO_FLOAT q5_0_to_float
#define Q5_1_TO_FLOAT q5_1_to_float
#define Q8_0_TO_FLOAT q8_0_to_float
#define Q4_K_TO_FLOAT q4_k_to_float
#define Q5_K_TO_FLOAT q5_k_to_float
#define Q6_K_TO_FLOAT q6_k_to_float

static const type_layout *type_of(uint32_t type) {
    static const type_layout none = { NULL, 1, 0, NULL };
#define TYPE_CASE(name, number, weights, bytes)                                    \
    case number: {                                                                 \
        static const type_layout info = { #name, weights, bytes, name##_TO_FLOAT };  \
        return &info;                                                              \
    }
    switch (type) {
        TENSOR_TYPES(TYPE_CASE)
        default: return &none;
    }
#undef TYPE_CASE
}

static bool name_eq_any_case(const char *a, const char *b) {
    for (;; a++, b++) {
        char x = *a >= 'a' && *a <= 'z' ? (char)(*a - 32) : *a;
        char y = *b >= 'a' && *b <= 'z' ? (char)(*b - 32) : *b;
        if (x != y) return false;
        if (x == 0) return true;
    }
}

NOVA_UNUSED static int type_by_name(const char *name) {
    for (uint32_t t = 0; t < TYPE_LIMIT; t++)
        if (type_of(t)->name && name_eq_any_case(type_of(t)->name, name)) return (int)t;
    return -1;
}

static size_t type_row_bytes(uint32_t type, size_t n) {
    const type_layout *info = type_of(type);
    return n / info->block_weights * info->block_bytes;
}

/* ==== src/gguf.h ============================================================================================== */

/* The GGUF container, versions 2 and 3, little-endian, read as hostile input.
 * Source: the GGUF specification (ggml docs/gguf.md). Nothing is copied: keys, values, tensors point into the file. */
#ifndef NOVA_GGUF_H
#define NOVA_GGUF_H


typedef enum gguf_type {
    GGUF_U8 = 0, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPE_COUNT
} gguf_type;

typedef struct gguf_value {
    gguf_type      type;
    gguf_type      item;     /* of an array */
    uint64_t       n;        /* items of an array, 1 otherwise */
    const uint8_t *data;     /* the value, an array's first item, or a string's length */
    const uint8_t *end;      /* behind its last byte */
    uint64_t       offset;   /* of `data` in the file */
} gguf_value;

typedef struct gguf_meta {
    str        key;
    gguf_value value;
} gguf_meta;

typedef struct gguf_tensor {
    str            name;
    uint32_t       type;      /* tensor_type; checked to be one that type_of knows */
    uint32_t       n_dims;
    uint64_t       ne[4];     /* ne[0]: length of a row; unused ones are 1; each >= 1; ne[0] % block == 0 */
    uint64_t       n_bytes;
    const uint8_t *data;      /* aligned as the file says, seen from the file's start */
} gguf_tensor;

typedef struct gguf {
    const uint8_t *data;
    size_t         size;
    uint32_t       version;
    uint32_t       alignment;
    uint64_t       data_offset;
    uint32_t       n_meta, n_tensors;
    gguf_meta     *meta;
    gguf_tensor   *tensors;
    /* Positions in the order of the names, for binary search: no hash that a hostile file could make collide. */
    uint32_t      *meta_index, *tensor_index;
} gguf;

/* Reads everything but the weights, checks all of it; tables go into the arena, and take at most six times the bytes
 * that the file itself spends on them (a file of holes that promises much gets nothing). Time is that of sorting the
 * names. Every rejection names the place: the offset, and the key or tensor. With `vocab_only`, tensors are not read at
 * all: n_tensors is 0. Refused beyond the specification: duplicate or empty names, names with a NUL or
 * over 65535 bytes, tensors that share bytes (so weights are never more than the file), arrays nested deeper than 8.
 * Errors: FORMAT, UNSUPPORTED (version 1, big-endian, a tensor type that type_of does not know), MEMORY. */
static nova_result gguf_read(gguf *g, arena *a, const uint8_t *data, size_t size, bool vocab_only, nova_error *error);

static const gguf_value  *gguf_find(const gguf *g, str key);           /* NULL: not there */
static const gguf_tensor *gguf_find_tensor(const gguf *g, str name);   /* NULL: not there */

/* Typed access. A missing key: OK, and *out untouched. Wrong type or out of range: FORMAT, naming the key, *out as it
 * was. Any integer type is taken for an integer that fits, any number type for a float that stays finite. */
static nova_result gguf_get_u32(const gguf *g, const char *key, uint32_t *out, nova_error *error);
static nova_result gguf_get_f32(const gguf *g, const char *key, float *out, nova_error *error);
static nova_result gguf_get_bool(const gguf *g, const char *key, bool *out, nova_error *error);
static nova_result gguf_get_str(const gguf *g, const char *key, str *out, nova_error *error);

/* Items of arrays; the caller has checked type, item type and index. */
static bool    gguf_array_is(const gguf_value *v, gguf_type item);   /* false for NULL */
static float   gguf_item_f32(const gguf_value *v, uint64_t i);       /* any number type */
static int64_t gguf_item_int(const gguf_value *v, uint64_t i);       /* integers, bools; U64 stops at INT64_MAX */

/* Walks an array of strings, which has no random access. */
typedef struct gguf_strings { const uint8_t *at; uint64_t left; } gguf_strings;
static gguf_strings gguf_strings_of(const gguf_value *v);
static bool         gguf_strings_next(gguf_strings *s, str *out);

/* A value printed for people, cut to whole characters and terminated: arrays as their count and first elements, control
 * characters replaced. A `size` of 0 does nothing. */
static void gguf_print(const gguf_value *v, char *text, size_t size);

#endif

/* ==== src/gguf.c ============================================================================================== */

/* The GGUF container: see gguf.h. One walk over the file by a cursor that never leaves it. */

#define GGUF_NAME_MOST  65535   /* the specification's limit for keys */
#define GGUF_DEPTH_MOST 8       /* arrays in arrays; nobody is known to write two */
#define GGUF_META_LEAST 14      /* bytes: length 8, a name of 1, type 4, a value of 1 */
#define GGUF_INFO_LEAST 33      /* bytes: length 8, a name of 1, dimensions 4 + 8, type 4, offset 8 */
#define GGUF_MANY       65536   /* entries that are gone over once before memory is taken for them */

typedef struct gguf_type_info { const char *name; uint32_t size; /* 0: varies */ } gguf_type_info;

static const gguf_type_info gguf_types[GGUF_TYPE_COUNT] = {
    {"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4}, {"bool", 1},
    {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

/* Bytes that one value takes at least: a string's length, an array's item type and count. */
static uint64_t gguf_least(uint32_t type) {
    return type == GGUF_STRING ? 8 : type == GGUF_ARRAY ? 12 : gguf_types[type].size;
}

/* ---- The cursor ---- */

typedef struct gguf_reader {
    const uint8_t *data;
    size_t         size, at;
    const char    *kind;    /* of what is being read, for messages: "key", "tensor" */
    uint64_t       number;  /* its number in the file */
    str            name;    /* its name, once that is known */
    nova_error    *error;
} gguf_reader;

static size_t gguf_left(const gguf_reader *r) { return r->size - r->at; }

NOVA_PRINTF(4, 5)
static nova_result gguf_fail(const gguf_reader *r, nova_result code, uint64_t at, const char *format, ...) {
    char    what[192];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!r->kind) return fail_at(r->error, code, at, "%s", what);
    if (!r->name.p) return fail_at(r->error, code, at, "%s %llu: %s", r->kind, (unsigned long long)r->number, what);
    return fail_at(r->error, code, at, "%s \"%.*s\": %s", r->kind, STR_ARG(r->name), what);
}

static nova_result gguf_u32(gguf_reader *r, uint32_t *out, const char *what) {
    if (gguf_left(r) < 4) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at, "the file ends inside its %s", what);
    *out = load_u32(r->data + r->at);
    r->at += 4;
    return NOVA_OK;
}

static nova_result gguf_u64(gguf_reader *r, uint64_t *out, const char *what) {
    if (gguf_left(r) < 8) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at, "the file ends inside its %s", what);
    *out = load_u64(r->data + r->at);
    r->at += 8;
    return NOVA_OK;
}

static nova_result gguf_string(gguf_reader *r, str *out, const char *what) {
    uint64_t    n = 0;
    size_t      at = r->at;
    nova_result result = gguf_u64(r, &n, what);
    if (result != NOVA_OK) return result;
    if (n > gguf_left(r))
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %s of %llu bytes runs over the file's end", what,
                         (unsigned long long)n);
    *out = str_of((const char *)r->data + r->at, (size_t)n);
    r->at += (size_t)n;
    return NOVA_OK;
}

/* The name of a key or tensor, which from here on stands in every message. */
static nova_result gguf_name(gguf_reader *r, str *out) {
    size_t      at = r->at;
    nova_result result = gguf_string(r, out, "name");
    if (result != NOVA_OK) return result;
    if (out->n == 0) return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its name is empty");
    if (out->n > GGUF_NAME_MOST) return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its name has %zu bytes", out->n);
    if (memchr(out->p, 0, out->n)) return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its name holds a NUL");
    r->name = *out;
    return NOVA_OK;
}

/* ---- Order by name or place, for finding and for telling duplicates ---- */

typedef bool (*gguf_less_fn)(const gguf *g, uint32_t a, uint32_t b);

static int name_order(str a, str b) {
    size_t n     = size_min(a.n, b.n);
    int    order = n ? memcmp(a.p, b.p, n) : 0;
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

static bool gguf_less_meta(const gguf *g, uint32_t a, uint32_t b) {
    return name_order(g->meta[a].key, g->meta[b].key) < 0;
}
static bool gguf_less_tensor(const gguf *g, uint32_t a, uint32_t b) {
    return name_order(g->tensors[a].name, g->tensors[b].name) < 0;
}
static bool gguf_less_place(const gguf *g, uint32_t a, uint32_t b) { return g->tensors[a].data < g->tensors[b].data; }

/* Merges the sorted runs [lo, mid) and [mid, hi) of `from` into `to`. Of equal names the earlier comes first. */
static void gguf_merge(const gguf *g, gguf_less_fn less, const uint32_t *from, uint32_t *to,
                       size_t lo, size_t mid, size_t hi) {
    size_t a = lo, b = mid;
    for (size_t i = lo; i < hi; i++) {
        bool first = a < mid && (b >= hi || !less(g, from[b], from[a]));
        to[i] = first ? from[a++] : from[b++];
    }
}

/* 0 .. n-1 sorted, in time n log n whatever the file holds; NULL when memory ends. */
static uint32_t *gguf_sort(const gguf *g, arena *a, uint32_t n, gguf_less_fn less) {
    uint32_t *from = (uint32_t *)arena_alloc(a, (size_t)n * sizeof(uint32_t));
    uint32_t *to   = (uint32_t *)arena_alloc(a, (size_t)n * sizeof(uint32_t));
    bool      sorted = true;
    if (!from || !to) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        from[i] = i;
        sorted  = sorted && (i == 0 || !less(g, i, i - 1));
    }
    for (size_t run = 1; run < n && !sorted; run *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * run)
            gguf_merge(g, less, from, to, lo, size_min(lo + run, n), size_min(lo + 2 * run, n));
        uint32_t *t = from;
        from = to;
        to   = t;
    }
    return from;
}

/* ---- Values ---- */

static nova_result gguf_check_bools(gguf_reader *r, const uint8_t *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at + i, "a bool is %u", p[i]);
    return NOVA_OK;
}

/* Passes over n strings: a vocabulary has half a million of them. */
static nova_result gguf_skip_strings(gguf_reader *r, uint64_t n) {
    size_t at = r->at;
    for (; n; n--) {
        if (r->size - at < 8) break;
        uint64_t length = load_u64(r->data + at);
        if (length > r->size - at - 8) break;
        at += 8 + (size_t)length;
    }
    r->at = at;
    str s;
    return n ? gguf_string(r, &s, "string") : NOVA_OK;   /* which says what is wrong with the next */
}

/* Passes over n values of a type that is no array. */
static nova_result gguf_skip(gguf_reader *r, uint32_t type, uint64_t n) {
    nova_result result = NOVA_OK;
    if (type == GGUF_STRING) return gguf_skip_strings(r, n);
    uint64_t size = gguf_types[type].size;
    if (n > gguf_left(r) / size)
        return gguf_fail(r, NOVA_ERROR_FORMAT, r->at, "its value runs over the file's end");
    if (type == GGUF_BOOL) result = gguf_check_bools(r, r->data + r->at, n);
    if (result == NOVA_OK) r->at += (size_t)(n * size);
    return result;
}

/* Reads a type's number, of a value or of an array's items. */
static nova_result gguf_type_of(gguf_reader *r, uint32_t *type, const char *what) {
    size_t      at = r->at;
    nova_result result = gguf_u32(r, type, what);
    if (result == NOVA_OK && *type >= GGUF_TYPE_COUNT)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %s is %u, which is no type", what, *type);
    return result;
}

/* An array's head: what it holds and how many, as far as the file has room for them. */
static nova_result gguf_array_head(gguf_reader *r, uint32_t *item, uint64_t *n) {
    nova_result result = gguf_type_of(r, item, "item type");
    size_t      at = r->at;
    if (result == NOVA_OK) result = gguf_u64(r, n, "count");
    if (result == NOVA_OK && *n > gguf_left(r) / gguf_least(*item))
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %llu items of type %s run over the file's end",
                         (unsigned long long)*n, gguf_types[*item].name);
    return result;
}

/* Passes over an array's items; `left` counts, per depth, the arrays that are still to come. */
static nova_result gguf_skip_items(gguf_reader *r, uint32_t item, uint64_t n) {
    uint64_t left[GGUF_DEPTH_MOST - 1];   /* the innermost array holds values */
    uint32_t depth = 0;
    if (item != GGUF_ARRAY) return gguf_skip(r, item, n);
    left[0] = n;
    for (;;) {
        while (left[depth] == 0) {
            if (depth == 0) return NOVA_OK;
            depth--;
        }
        left[depth]--;
        size_t      at = r->at;
        nova_result result = gguf_array_head(r, &item, &n);
        if (result != NOVA_OK) return result;
        if (item != GGUF_ARRAY) {
            result = gguf_skip(r, item, n);
            if (result != NOVA_OK) return result;
        } else if (depth + 1 < COUNT_OF(left)) {
            left[++depth] = n;
        } else {
            return gguf_fail(r, NOVA_ERROR_FORMAT, at, "arrays are nested deeper than %d", GGUF_DEPTH_MOST);
        }
    }
}

static nova_result gguf_value_read(gguf_reader *r, gguf_value *v) {
    uint32_t    type = 0, item = 0;
    nova_result result = gguf_type_of(r, &type, "type");
    if (result != NOVA_OK) return result;
    v->n = 1;
    if (type == GGUF_ARRAY) result = gguf_array_head(r, &item, &v->n);
    if (result != NOVA_OK) return result;
    v->type   = (gguf_type)type;
    v->item   = (gguf_type)item;
    v->data   = r->data + r->at;
    v->offset = r->at;
    result    = type == GGUF_ARRAY ? gguf_skip_items(r, item, v->n) : gguf_skip(r, type, 1);
    v->end    = r->data + r->at;
    return result;
}

/* ---- The parts of the file ---- */

/* A count from the file's head, which must not promise more than the rest can hold. */
static nova_result gguf_count(gguf_reader *r, uint64_t *n, size_t least, size_t behind, const char *what) {
    size_t      at = r->at;
    nova_result result = gguf_u64(r, n, what);
    if (result != NOVA_OK) return result;
    uint64_t most = gguf_left(r) < behind ? 0 : (gguf_left(r) - behind) / least;
    if (*n > most || *n > UINT32_MAX)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %s is %llu, for which the file is too short", what,
                         (unsigned long long)*n);
    return NOVA_OK;
}

static nova_result gguf_head(gguf_reader *r, gguf *g, bool vocab_only) {
    uint32_t    magic = 0;
    uint64_t    n_tensors = 0, n_meta = 0;
    nova_result result = gguf_u32(r, &magic, "first word");
    if (result != NOVA_OK) return result;
    if (memcmp(r->data, "GGUF", 4) != 0) return gguf_fail(r, NOVA_ERROR_FORMAT, 0, "this is not a GGUF file");
    if ((result = gguf_u32(r, &g->version, "version")) != NOVA_OK) return result;
    if (g->version != 0 && (g->version & 0xFFFF) == 0)
        return gguf_fail(r, NOVA_ERROR_UNSUPPORTED, 4, "this GGUF file is big-endian");
    if (g->version != 2 && g->version != 3)
        return gguf_fail(r, NOVA_ERROR_UNSUPPORTED, 4, "this GGUF file has version %u; 2 and 3 can be read",
                         g->version);
    result = vocab_only ? gguf_u64(r, &n_tensors, "tensor count")
                        : gguf_count(r, &n_tensors, GGUF_INFO_LEAST, 8, "tensor count");
    if (result == NOVA_OK) result = gguf_count(r, &n_meta, GGUF_META_LEAST, 0, "key count");
    if (result != NOVA_OK) return result;
    g->n_tensors = vocab_only ? 0 : (uint32_t)n_tensors;
    g->n_meta    = (uint32_t)n_meta;
    return NOVA_OK;
}

static void *gguf_table(arena *a, uint32_t n, size_t size) {
    size_t bytes;
    return size_mul(n, size, &bytes) ? arena_alloc(a, bytes) : NULL;
}

/* Starts on the i-th entry of a table. */
static void gguf_begin(gguf_reader *r, const char *kind, uint64_t i) {
    r->kind   = kind;
    r->number = i;
    r->name   = str_of(NULL, 0);
}

/* Reads the keys into `table`, or (NULL) only checks them. A copy of the reader: the caller's goes on from *end. */
static nova_result gguf_keys(gguf_reader r, gguf_meta *table, uint32_t n, size_t *end) {
    nova_result result = NOVA_OK;
    gguf_meta   one;
    for (uint32_t i = 0; i < n && result == NOVA_OK; i++) {
        gguf_meta *m = table ? &table[i] : &one;
        gguf_begin(&r, "key", i);
        result = gguf_name(&r, &m->key);
        if (result == NOVA_OK) result = gguf_value_read(&r, &m->value);
    }
    *end = r.at;
    return result;
}

static nova_result gguf_meta_read(gguf_reader *r, gguf *g, arena *a) {
    size_t      end;
    nova_result result = g->n_meta > GGUF_MANY ? gguf_keys(*r, NULL, g->n_meta, &end) : NOVA_OK;
    if (result != NOVA_OK) return result;
    g->meta = (gguf_meta *)gguf_table(a, g->n_meta, sizeof(gguf_meta));
    if (!g->meta) return fail_memory(r->error, g->n_meta * sizeof(gguf_meta), "the table of keys");
    result = gguf_keys(*r, g->meta, g->n_meta, &end);
    if (result != NOVA_OK) return result;
    r->at         = end;
    g->meta_index = gguf_sort(g, a, g->n_meta, gguf_less_meta);
    if (!g->meta_index) return fail_memory(r->error, g->n_meta * sizeof(uint32_t), "the index of keys");
    for (uint32_t i = 1; i < g->n_meta; i++) {
        str key = g->meta[g->meta_index[i]].key;
        if (str_eq(g->meta[g->meta_index[i - 1]].key, key))
            return fail_at(r->error, NOVA_ERROR_FORMAT, (uint64_t)((const uint8_t *)key.p - g->data),
                           "key \"%.*s\" is there twice", STR_ARG(key));
    }
    return NOVA_OK;
}

static nova_result gguf_alignment(gguf_reader *r, gguf *g) {
    g->alignment = 32;
    nova_result result = gguf_get_u32(g, "general.alignment", &g->alignment, r->error);
    if (result != NOVA_OK) return result;
    if (g->alignment < 8 || (g->alignment & (g->alignment - 1)) != 0)
        return fail_at(r->error, NOVA_ERROR_FORMAT, gguf_find(g, str_c("general.alignment"))->offset,
                       "key \"general.alignment\": %u is not a power of two from 8 up", g->alignment);
    return NOVA_OK;
}

static bool u64_mul(uint64_t a, uint64_t b, uint64_t *out) {
    if (b != 0 && a > UINT64_MAX / b) return false;
    *out = a * b;
    return true;
}

/* Sets n_bytes. Weights are counted in int64_t by everybody, so that is their limit. */
static nova_result gguf_tensor_size(gguf_reader *r, gguf_tensor *t, size_t at) {
    const type_layout *type = type_of(t->type);
    uint64_t weights = 1;
    if (!type->name) return gguf_fail(r, NOVA_ERROR_UNSUPPORTED, at, "its type number %u is not supported", t->type);
    for (uint32_t i = 0; i < 4; i++)
        if (!u64_mul(weights, t->ne[i], &weights) || weights > INT64_MAX)
            return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its dimensions multiply to more than 2^63 weights");
    if (t->ne[0] % type->block_weights != 0)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its rows of %llu weights are no whole blocks of %s (%u weights)",
                         (unsigned long long)t->ne[0], type->name, type->block_weights);
    if (!u64_mul(weights / type->block_weights, type->block_bytes, &t->n_bytes))
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its size overflows");
    return NOVA_OK;
}

/* A tensor's entry. Its place comes relative to the weights, whose start is not known yet: *offset. */
static nova_result gguf_info_read(gguf_reader *r, gguf_tensor *t, uint64_t *offset) {
    size_t      at = r->at;
    nova_result result = gguf_name(r, &t->name);
    if (result != NOVA_OK || (result = gguf_u32(r, &t->n_dims, "number of dimensions")) != NOVA_OK) return result;
    if (t->n_dims < 1 || t->n_dims > 4)
        return gguf_fail(r, NOVA_ERROR_FORMAT, r->at - 4, "it has %u dimensions", t->n_dims);
    for (uint32_t i = 0; i < 4; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && (result = gguf_u64(r, &t->ne[i], "dimensions")) != NOVA_OK) return result;
        if (t->ne[i] == 0) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at - 8, "dimension %u is 0", i);
    }
    if ((result = gguf_u32(r, &t->type, "type")) != NOVA_OK) return result;
    if ((result = gguf_u64(r, offset, "offset")) != NOVA_OK) return result;
    return gguf_tensor_size(r, t, at);
}

/* Checks where a tensor lies and sets `data`, now that the start of the weights is known. */
static nova_result gguf_place(gguf_reader *r, gguf *g, gguf_tensor *t, uint64_t offset, uint64_t at) {
    uint64_t room = g->size - g->data_offset;
    r->kind = "tensor";
    r->name = t->name;
    if (offset % g->alignment != 0)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its offset %llu is not aligned to %u", (unsigned long long)offset,
                         g->alignment);
    if (offset > room || t->n_bytes > room - offset)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %llu bytes at %llu of the weights run over the file's end",
                         (unsigned long long)t->n_bytes, (unsigned long long)offset);
    t->data = g->data + g->data_offset + offset;
    return NOVA_OK;
}

/* Where a tensor's entry starts in the file, for messages. */
static uint64_t gguf_info_at(const gguf *g, const gguf_tensor *t) {
    return (uint64_t)((const uint8_t *)t->name.p - g->data) - 8;
}

/* Names must differ, and places too. */
static nova_result gguf_tensors_check(gguf_reader *r, gguf *g, arena *a) {
    uint32_t *place = gguf_sort(g, a, g->n_tensors, gguf_less_place);
    g->tensor_index = gguf_sort(g, a, g->n_tensors, gguf_less_tensor);
    if (!place || !g->tensor_index)
        return fail_memory(r->error, g->n_tensors * sizeof(uint32_t), "the index of tensors");
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const gguf_tensor *t = &g->tensors[g->tensor_index[i]], *before = &g->tensors[g->tensor_index[i - 1]];
        if (str_eq(before->name, t->name))
            return fail_at(r->error, NOVA_ERROR_FORMAT, gguf_info_at(g, t), "tensor \"%.*s\" is there twice",
                           STR_ARG(t->name));
        t      = &g->tensors[place[i]];
        before = &g->tensors[place[i - 1]];
        if (before->n_bytes > (uint64_t)(t->data - before->data))
            return fail_at(r->error, NOVA_ERROR_FORMAT, gguf_info_at(g, t), "tensors \"%.*s\" and \"%.*s\" overlap",
                           STR_ARG(before->name), STR_ARG(t->name));
    }
    return NOVA_OK;
}

/* Reads the tensors' entries into the tables, or (NULL) only checks them, as gguf_keys does. */
static nova_result gguf_infos(gguf_reader r, gguf_tensor *table, uint64_t *offsets, uint32_t n, size_t *end) {
    nova_result result = NOVA_OK;
    gguf_tensor one;
    uint64_t    offset;
    for (uint32_t i = 0; i < n && result == NOVA_OK; i++) {
        gguf_begin(&r, "tensor", i);
        result = gguf_info_read(&r, table ? &table[i] : &one, table ? &offsets[i] : &offset);
    }
    *end = r.at;
    return result;
}

static nova_result gguf_tensors_read(gguf_reader *r, gguf *g, arena *a) {
    size_t      end;
    nova_result result = g->n_tensors > GGUF_MANY ? gguf_infos(*r, NULL, NULL, g->n_tensors, &end) : NOVA_OK;
    if (result != NOVA_OK) return result;
    g->tensors        = (gguf_tensor *)gguf_table(a, g->n_tensors, sizeof(gguf_tensor));
    uint64_t *offsets = (uint64_t *)gguf_table(a, g->n_tensors, sizeof(uint64_t));
    if (!g->tensors || !offsets)
        return fail_memory(r->error, g->n_tensors * sizeof(gguf_tensor), "the table of tensors");
    result = gguf_infos(*r, g->tensors, offsets, g->n_tensors, &end);
    if (result != NOVA_OK || g->n_tensors == 0) return result;
    uint64_t padding = (g->alignment - end % g->alignment) % g->alignment;
    if (padding > g->size - end) return fail_at(r->error, NOVA_ERROR_FORMAT, end, "the file ends before its weights");
    g->data_offset = end + padding;
    for (uint32_t i = 0; i < g->n_tensors && result == NOVA_OK; i++)
        result = gguf_place(r, g, &g->tensors[i], offsets[i], gguf_info_at(g, &g->tensors[i]));
    return result == NOVA_OK ? gguf_tensors_check(r, g, a) : result;
}

static nova_result gguf_read(gguf *g, arena *a, const uint8_t *data, size_t size, bool vocab_only, nova_error *error) {
    gguf_reader r;
    memset(&r, 0, sizeof r);
    r.data  = data;
    r.size  = size;
    r.error = error;
    memset(g, 0, sizeof *g);
    g->data = data;
    g->size = size;
    nova_result result = gguf_head(&r, g, vocab_only);
    if (result == NOVA_OK) result = gguf_meta_read(&r, g, a);
    if (result == NOVA_OK) result = gguf_alignment(&r, g);
    if (result == NOVA_OK) result = gguf_tensors_read(&r, g, a);
    return result;
}

/* ---- Finding ---- */

static const gguf_value *gguf_find(const gguf *g, str key) {
    for (uint32_t lo = 0, hi = g->n_meta; lo < hi;) {
        uint32_t         mid   = lo + (hi - lo) / 2;
        const gguf_meta *m     = &g->meta[g->meta_index[mid]];
        int              order = name_order(key, m->key);
        if (order == 0) return &m->value;
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

static const gguf_tensor *gguf_find_tensor(const gguf *g, str name) {
    for (uint32_t lo = 0, hi = g->n_tensors; lo < hi;) {
        uint32_t           mid   = lo + (hi - lo) / 2;
        const gguf_tensor *t     = &g->tensors[g->tensor_index[mid]];
        int                order = name_order(name, t->name);
        if (order == 0) return t;
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

/* ---- Numbers ---- */

/* What a number's type can hold: an integer with its sign apart, or a double. */
typedef struct gguf_number { bool is_int, negative; uint64_t magnitude; double real; } gguf_number;

static gguf_number number_unsigned(uint64_t u) {
    gguf_number n;
    n.is_int    = true;
    n.negative  = false;
    n.magnitude = u;
    n.real      = (double)u;
    return n;
}

static gguf_number number_signed(int64_t i) {
    gguf_number n = number_unsigned(i < 0 ? 0 - (uint64_t)i : (uint64_t)i);
    n.negative = i < 0;
    n.real     = (double)i;
    return n;
}

static gguf_number number_real(double d) {
    gguf_number n = number_unsigned(0);
    n.is_int = false;
    n.real   = d;
    return n;
}

/* Of a type that has a fixed size. */
static gguf_number gguf_number_at(gguf_type type, const uint8_t *p) {
    double d;
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: return number_unsigned(p[0]);
    case GGUF_I8:   return number_signed((int8_t)p[0]);
    case GGUF_U16:  return number_unsigned(load_u16(p));
    case GGUF_I16:  return number_signed((int16_t)load_u16(p));
    case GGUF_U32:  return number_unsigned(load_u32(p));
    case GGUF_I32:  return number_signed((int32_t)load_u32(p));
    case GGUF_U64:  return number_unsigned(load_u64(p));
    case GGUF_I64:  return number_signed((int64_t)load_u64(p));
    case GGUF_F32:  return number_real((double)load_f32(p));
    case GGUF_F64:  memcpy(&d, p, sizeof d); return number_real(d);
    default:        return number_real(0.0);
    }
}

static bool type_is_number(gguf_type type) { return type != GGUF_STRING && type != GGUF_ARRAY && type != GGUF_BOOL; }

static nova_result fail_type(const gguf_value *v, const char *key, const char *want, nova_error *error) {
    return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\": its type is %s, not %s", key,
                   gguf_types[v->type].name, want);
}

static nova_result gguf_get_u32(const gguf *g, const char *key, uint32_t *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (!type_is_number(v->type)) return fail_type(v, key, "an integer", error);
    gguf_number n = gguf_number_at(v->type, v->data);
    if (!n.is_int) return fail_type(v, key, "an integer", error);
    if (n.negative || n.magnitude > UINT32_MAX)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\": %s%llu is out of range", key,
                       n.negative ? "-" : "", (unsigned long long)n.magnitude);
    *out = (uint32_t)n.magnitude;
    return NOVA_OK;
}

static nova_result gguf_get_f32(const gguf *g, const char *key, float *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (!type_is_number(v->type)) return fail_type(v, key, "a number", error);
    double d = gguf_number_at(v->type, v->data).real;
    if (!f64_is_finite(d) || fabs(d) > (double)FLT_MAX)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\": %g is no finite float", key, d);
    *out = (float)d;
    return NOVA_OK;
}

static nova_result gguf_get_bool(const gguf *g, const char *key, bool *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (v->type != GGUF_BOOL) return fail_type(v, key, "a bool", error);
    *out = v->data[0] != 0;
    return NOVA_OK;
}

static nova_result gguf_get_str(const gguf *g, const char *key, str *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (v->type != GGUF_STRING) return fail_type(v, key, "a string", error);
    *out = str_of((const char *)v->data + 8, (size_t)load_u64(v->data));
    return NOVA_OK;
}

/* ---- Arrays ---- */

static bool gguf_array_is(const gguf_value *v, gguf_type item) { return v && v->type == GGUF_ARRAY && v->item == item; }

static float gguf_item_f32(const gguf_value *v, uint64_t i) {
    return (float)gguf_number_at(v->item, v->data + i * gguf_types[v->item].size).real;
}

static int64_t gguf_item_int(const gguf_value *v, uint64_t i) {
    gguf_number n = gguf_number_at(v->item, v->data + i * gguf_types[v->item].size);
    if (n.negative) return -(int64_t)(n.magnitude - 1) - 1;   /* INT64_MIN has no positive twin */
    return n.magnitude > INT64_MAX ? INT64_MAX : (int64_t)n.magnitude;
}

static gguf_strings gguf_strings_of(const gguf_value *v) {
    gguf_strings s;
    s.at   = v->data;
    s.left = v->n;
    return s;
}

static bool gguf_strings_next(gguf_strings *s, str *out) {
    if (s->left == 0) return false;
    *out = str_of((const char *)s->at + 8, (size_t)load_u64(s->at));
    s->at += 8 + out->n;
    s->left--;
    return true;
}

/* ---- Printing ---- */

typedef struct printer { char *p; size_t n, size; } printer;

/* How many of the n bytes are whole characters: a character of UTF-8 that was cut at the end is left out. */
static size_t whole_characters(const char *p, size_t n) {
    size_t start = n, back = 0;
    while (start > 0 && back < 3 && ((unsigned char)p[start - 1] & 0xC0) == 0x80) start--, back++;
    if (start == 0) return n;
    unsigned char lead = (unsigned char)p[start - 1];
    size_t        need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return back + 1 < need ? start - 1 : n;
}

static void print_bytes(printer *o, const char *p, size_t n) {
    n = size_min(n, o->size - 1 - o->n);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        o->p[o->n++] = (char)(c < 32 || c == 127 ? ' ' : c);
    }
}

/* The shortest text that reads back as the same number; with a point in every language the host may have chosen. */
static void print_real(double d, bool single, char text[40]) {
    int digits = single ? 6 : 15, most = single ? 9 : 17;
    for (; digits <= most; digits++) {
        snprintf(text, 40, "%.*g", digits, d);
        double back = strtod(text, NULL);
        if (single ? (float)back == (float)d : back == d) break;
    }
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.';
}

static void print_number(printer *o, gguf_type type, const uint8_t *p) {
    char        text[40];
    gguf_number n = gguf_number_at(type, p);
    if (!n.is_int) print_real(n.real, type == GGUF_F32, text);
    else snprintf(text, sizeof text, "%s%llu", n.negative ? "-" : "", (unsigned long long)n.magnitude);
    print_bytes(o, text, strlen(text));
}

/* A value that is no array. */
static void print_scalar(printer *o, gguf_type type, const uint8_t *p) {
    if (type == GGUF_STRING) print_bytes(o, (const char *)p + 8, (size_t)load_u64(p));
    else if (type == GGUF_BOOL) print_bytes(o, p[0] ? "true" : "false", p[0] ? 4 : 5);
    else print_number(o, type, p);
}

/* A string among others: its start is enough. */
static void print_quoted(printer *o, const char *p, size_t n) {
    size_t cut = size_min(n, 48);
    if (cut < n) cut = whole_characters(p, cut);
    print_bytes(o, "\"", 1);
    print_bytes(o, p, cut);
    print_bytes(o, cut < n ? "...\"" : "\"", cut < n ? 4 : 1);
}

static void print_array(printer *o, const gguf_value *v) {
    char           head[64];
    uint64_t       n = v->item == GGUF_ARRAY ? 0 : v->n < 8 ? v->n : 8;   /* items that are shown */
    const uint8_t *p = v->data;
    snprintf(head, sizeof head, "%llu x %s", (unsigned long long)v->n, gguf_types[v->item].name);
    print_bytes(o, head, strlen(head));
    for (uint64_t i = 0; i < n; i++) {
        size_t length = v->item == GGUF_STRING ? (size_t)load_u64(p) : 0;
        print_bytes(o, i ? ", " : ": ", 2);
        if (v->item == GGUF_STRING) print_quoted(o, (const char *)p + 8, length);
        else print_scalar(o, v->item, p);
        p += gguf_least(v->item) + length;
    }
    if (n && n < v->n) print_bytes(o, ", ...", 5);
}

static void gguf_print(const gguf_value *v, char *text, size_t size) {
    printer o;
    if (size == 0) return;
    o.p    = text;
    o.n    = 0;
    o.size = size;
    if (v->type == GGUF_ARRAY) print_array(&o, v);
    else print_scalar(&o, v->type, v->data);
    if (o.n == size - 1) o.n = whole_characters(text, o.n);
    text[o.n] = 0;
}

/* ==== src/cpu_input.h ========================================================================================= */

/* What the CPU's matmuls share: the view of a weight matrix, the level of the instruction set, activations as int8.
 *
 * A matmul computes out[c][r] = sum over i of w[r][i] * x[c][i] for columns c (tokens) and rows r. Columns come in two
 * ways. Narrow: up to 8 at once, weights streamed at memory speed, for generation. Wide: many, weights unpacked by
 * panels, for prompts. Both quantise activations alike, so they differ by the rounding of float sums only.
 *
 * Order of additions: a column's result never depends on which or how many other columns are computed with it, nor on
 * how rows are shared among threads; within narrow and within wide it is bit-identical. */
#ifndef NOVA_CPU_INPUT_H
#define NOVA_CPU_INPUT_H


#ifdef NOVA_X86
#if defined(__GNUC__) && !defined(__clang__)   /* gcc 12's header initialises vectors by themselves (PR 105593) */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#endif

typedef enum cpu_level { CPU_PLAIN = 0, CPU_AVX2 = 1, CPU_AVX512 = 2, CPU_LEVELS } cpu_level;

/* The best level that `features` (NOVA_CPU_... bits) allow. */
static cpu_level cpu_level_of(uint32_t features);

typedef struct weight {
    uint32_t       type;        /* tensor_type */
    uint32_t       n_in;        /* row length, a multiple of the type's block */
    uint32_t       n_out;       /* rows */
    size_t         row_bytes;
    const uint8_t *data;        /* as it lies in the file: aligned to 32 at least in a sound file, assume 1 */
} weight;

/* Activations as int8, by blocks of 32: d = max|x| / 127, q = x * (127 / max|x|) rounded to nearest even, the same bits
 * on every level. A block of zeros has d = 0, and so has one below INPUT_SMALLEST, whose d would be subnormal. A block
 * with a NaN or an infinity gets d = NaN and q = 0, so that it stays visible in the result. |q| <= 127. */
#define INPUT_BLOCK    32
#define INPUT_SMALLEST (127 * FLT_MIN)
static void input_quantise(cpu_level level, const float *x, size_t n, int8_t *q, float *d);  /* n: a multiple of 32 */

#endif

/* ==== src/cpu_input.c ========================================================================================= */

/* Activations as int8: see cpu_input.h. */

static cpu_level cpu_level_of(uint32_t features) {
    if (!(features & NOVA_CPU_AVX2)) return CPU_PLAIN;
    return features & NOVA_CPU_AVX512 ? CPU_AVX512 : CPU_AVX2;
}

/* Every level computes the same bits: the largest |x| is found among integers, the factor is one division, each code
 * one multiplication and one rounding. */

/* From the largest |x| of a block, as bits: its d, and the factor that x is multiplied by. */
static float input_factor(uint32_t max_bits, float *d) {
    float max;
    memcpy(&max, &max_bits, sizeof max);
    if (max_bits >= 0x7f800000u) {
        *d = NAN;
        return 0;
    }
    if (max < INPUT_SMALLEST) {
        *d = 0;
        return 0;
    }
    *d = max / 127.0f;
    return 127.0f / max;
}

static void input_quantise_plain(const float *x, size_t n, int8_t *q, float *d) {
    for (size_t b = 0; b < n / INPUT_BLOCK; b++, x += INPUT_BLOCK, q += INPUT_BLOCK) {
        uint32_t max_bits = 0;
        for (int i = 0; i < INPUT_BLOCK; i++) {
            uint32_t bits = load_u32(x + i) & 0x7fffffffu;
            if (bits > max_bits) max_bits = bits;
        }
        float factor = input_factor(max_bits, &d[b]);
        if (factor == 0) {
            memset(q, 0, INPUT_BLOCK);
            continue;
        }
        /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits. */
        for (int i = 0; i < INPUT_BLOCK; i++) {
            float    scaled = x[i] * factor;
            float    moved  = scaled + 12582912.0f;
            q[i] = (int8_t)(int32_t)(load_u32(&moved) - 0x4b400000u);
        }
    }
}

#ifdef NOVA_X86

NOVA_TARGET_AVX2
static void input_quantise_avx2(const float *x, size_t n, int8_t *q, float *d) {
    const __m256i positive = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t b = 0; b < n / INPUT_BLOCK; b++, x += INPUT_BLOCK, q += INPUT_BLOCK) {
        __m256  v[4];
        __m256i m = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            m    = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), positive));
        }
        __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
        h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1));
        float factor = input_factor((uint32_t)_mm_cvtsi128_si32(h), &d[b]);
        if (factor == 0) {
            memset(q, 0, INPUT_BLOCK);
            continue;
        }
        __m256i r[4];
        for (int i = 0; i < 4; i++) r[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(factor)));
        __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
        _mm256_storeu_si256((__m256i *)(void *)q, _mm256_permutevar8x32_epi32(packed, order));
    }
}

#endif

static void input_quantise(cpu_level level, const float *x, size_t n, int8_t *q, float *d) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        input_quantise_avx2(x, n, q, d);
        return;
    }
#endif
    (void)level;
    input_quantise_plain(x, n, q, d);
}

/* ==== src/cpu_narrow.h ======================================================================================== */

/* Matmul for 1 to 8 columns: weights are read once, where they lie in the file, at memory speed. */
#ifndef NOVA_CPU_NARROW_H
#define NOVA_CPU_NARROW_H


#define NARROW_MAX 8   /* columns */

/* A column is prepared once for all weights of one form; types tell which form they read. */
static uint32_t narrow_form(uint32_t type);                       /* 0 .. NARROW_FORMS - 1 */
static size_t   narrow_input_bytes(uint32_t form, size_t n_in);   /* of one prepared column, a multiple of 64 */
#define NARROW_FORMS 3

/* Prepares elements begin..end of one column (multiples of 256, or end == n_in), so that threads can share the work.
 * `out` is the column's area, aligned to 64. */
static void narrow_prepare(cpu_level level, uint32_t form, const float *x, size_t n_in, size_t begin, size_t end,
                           void *out);

/* out[c * ld_out + r] for rows row_begin <= r < row_end and columns 0 <= c < n_col; inputs[c] are prepared columns in the
 * type's form. Every row count and every row_bytes works; nothing behind the last row is read. */
static void narrow_matmul(cpu_level level, const weight *w, const void *const *inputs, uint32_t n_col,
                          uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out);

#endif

/* ==== src/cpu_narrow.c ======================================================================================== */

/* Matmul for few columns: see cpu_narrow.h.
 *
 * A row is read in groups of weights: 256, or 32 of the float types. Codes are unpacked once a group to unsigned bytes,
 * and each column adds their dot products with its int8 activations. What a format subtracts from its codes contributes
 * a multiple of the activations' sum, so that sum is prepared with them: as the value that an integer sum starts from,
 * or as a float to add a multiple of.
 *
 * Where a row is no multiple of the group, its last group overlaps the one before, and the prepared activations of what
 * is counted already are zero. A row shorter than one group is copied to a padded buffer.
 *
 * The kernels of a level are one loop over rows, inlined for each type and for 1, 2, 4 and 8 columns; other numbers
 * compute a column twice. A new format is a line in NARROW_TYPES and a case where its level unpacks. */

/* How the activations lie that a type reads. */
enum {
    FORM_FLOAT,   /* floats */
    FORM_32,      /* for weights with a scale for 32 */
    FORM_16       /* for weights with a scale for 16 */
};

#define NARROW_TYPES(X) /* name, form */ \
    X(F32, FORM_FLOAT)  \
    X(F16, FORM_FLOAT)  \
    X(BF16, FORM_FLOAT) \
    X(Q4_0, FORM_32)    \
    X(Q4_1, FORM_32)    \
    X(Q5_0, FORM_32)    \
    X(Q5_1, FORM_32)    \
    X(Q8_0, FORM_32)    \
    X(Q4_K, FORM_32)    \
    X(Q5_K, FORM_32)    \
    X(Q6_K, FORM_16)

NOVA_INLINE uint32_t type_form(uint32_t type) {
#define NARROW_FORM_CASE(name, form) case TYPE_##name: return form;
    switch (type) { NARROW_TYPES(NARROW_FORM_CASE) }
#undef NARROW_FORM_CASE
    return FORM_FLOAT;
}

static uint32_t narrow_form(uint32_t type) { return type_form(type); }

/* ---- Prepared activations, one struct a group ----
 *
 * q lies in natural order, or in that of the AVX-512 kernels' codes, see arrange_avx512. s is the sum of q over the
 * 32 or 16 weights of one scale. */

typedef struct input_float {
    float x[32];
} input_float;

typedef struct input_32 {
    int8_t  q[256];
    float   d[8];
    float   ds[8];    /* d * s */
    int32_t s4[8];    /* -4 * s: two sums start from it and make up for codes that mean code - 8 */
    int32_t s8[8];    /* -8 * s: the same for code - 16 */
} input_32;

typedef struct input_16 {
    int8_t q[256];
    union {
        struct { float d[16]; int32_t s32[16]; } by_16;   /* AVX-512; s32 = -32 * s: code - 32 */
        struct { float d[8]; float ds32[16]; } by_32;     /* others; ds32 = -32 * d * s */
    } u;
} input_16;

NOVA_INLINE uint32_t form_group(uint32_t form) { return form == FORM_FLOAT ? 32 : 256; }
NOVA_INLINE uint32_t form_input_bytes(uint32_t form) {
    return form == FORM_FLOAT ? sizeof(input_float) : form == FORM_32 ? sizeof(input_32) : sizeof(input_16);
}

static size_t narrow_input_bytes(uint32_t form, size_t n_in) {
    uint32_t group = form_group(form);
    return (n_in / group + (n_in % group != 0)) * form_input_bytes(form);
}

/* Loads from anywhere. */
#define V128(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define V256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define V512(p) _mm512_loadu_si512((const void *)(p))

static int32_t sum_16(const int8_t *q) {
#ifdef NOVA_X86
    /* Sums of absolute differences from zero, after a shift to 0..255. */
    __m128i moved = _mm_xor_si128(V128(q), _mm_set1_epi8(-128));
    __m128i sums  = _mm_sad_epu8(moved, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += q[i];
    return sum;
#endif
}

/* Each of the four registers of codes has one dword of every 16 weights with a scale (FORM_16), or two of every 32, one
 * in each half (FORM_32): so one register of sums takes all codes of a group, and is scaled once. */
#ifdef NOVA_X86
NOVA_TARGET_AVX512 static void arrange_avx512(uint32_t form, const int8_t *q, int8_t *out) {
    /* From the first 128 bytes or the last, by the mask. */
    const __m512i by_16 = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i by_32 = _mm512_setr_epi32(0, 8, 16, 24, 0, 8, 16, 24, 1, 9, 17, 25, 1, 9, 17, 25);
    const __m512i a = V512(q), b = V512(q + 64), c = V512(q + 128), d = V512(q + 192);
    for (int v = 0; v < 4; v++) {
        __m512i index = form == FORM_16 ? _mm512_add_epi32(by_16, _mm512_set1_epi32(v))
                                        : _mm512_add_epi32(by_32, _mm512_set1_epi32(2 * v));
        __m512i first = _mm512_permutex2var_epi32(a, index, b), last = _mm512_permutex2var_epi32(c, index, d);
        _mm512_storeu_si512(out + 64 * v, _mm512_mask_mov_epi32(first, form == FORM_16 ? 0xff00 : 0xf0f0, last));
    }
}
#else
static void arrange_avx512(uint32_t form, const int8_t *q, int8_t *out) { (void)form, (void)q, (void)out; }
#endif

static void prepare_32(cpu_level level, const float *x, input_32 *out) {
    int8_t  natural[256];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 256, q, out->d);
    for (int b = 0; b < 8; b++) {
        int32_t s = sum_16(q + 32 * b) + sum_16(q + 32 * b + 16);
        out->ds[b] = out->d[b] * (float)s;
        out->s4[b] = -4 * s;
        out->s8[b] = -8 * s;
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_32, q, out->q);
}

static void prepare_16(cpu_level level, const float *x, input_16 *out) {
    int8_t  natural[256];
    float   d[8];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 256, q, d);
    for (int b = 0; b < 16; b++) {
        int32_t s = sum_16(q + 16 * b);
        if (level == CPU_AVX512) {
            out->u.by_16.d[b]   = d[b / 2];
            out->u.by_16.s32[b] = -32 * s;
        } else {
            out->u.by_32.d[b / 2] = d[b / 2];
            out->u.by_32.ds32[b]  = -32.0f * d[b / 2] * (float)s;
        }
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_16, q, out->q);
    else memset(out->u.by_32.ds32 + 16, 0, sizeof out->u - sizeof out->u.by_32);
}

static void prepare_group(cpu_level level, uint32_t form, const float *x, void *out) {
    switch (form) {
        case FORM_32: prepare_32(level, x, (input_32 *)out); break;
        case FORM_16: prepare_16(level, x, (input_16 *)out); break;
        default:      memcpy(out, x, sizeof(input_float));
    }
}

static void narrow_prepare(cpu_level level, uint32_t form, const float *x, size_t n_in, size_t begin, size_t end,
                           void *out) {
    size_t   group = form_group(form), bytes = form_input_bytes(form);
    uint8_t *p = (uint8_t *)out + begin / group * bytes;
    for (size_t i = begin; i < end; i += group, p += bytes) {
        if (i + group <= n_in) {
            prepare_group(level, form, x + i, p);
            continue;
        }
        float  last[256] = { 0 };
        size_t rest = n_in - i;   /* at the end of the group, or alone in it */
        memcpy(n_in < group ? last : last + group - rest, x + i, rest * sizeof *x);
        prepare_group(level, form, last, p);
    }
}

/* ---- One call of a kernel ---- */

typedef struct narrow_job {
    const uint8_t *rows;        /* the first row */
    size_t         row_bytes, n_in, n_rows;
    const uint8_t *in[NARROW_MAX];
    float         *out[NARROW_MAX];
} narrow_job;

typedef void (*narrow_kernel)(const narrow_job *job);

/* ---- Plain C: weights as floats, times the quantised activations ---- */

static float plain_dot(uint32_t form, const float *w, const void *in) {
    float sum = 0;
    if (form == FORM_FLOAT) {
        const float *x = ((const input_float *)in)->x;
        for (int i = 0; i < 32; i++) sum += w[i] * x[i];
        return sum;
    }
    const int8_t *q = (const int8_t *)in;   /* first in both forms */
    const float  *d = form == FORM_32 ? ((const input_32 *)in)->d : ((const input_16 *)in)->u.by_32.d;
    for (int b = 0; b < 8; b++, w += 32, q += 32) {
        float part = 0;
        for (int i = 0; i < 32; i++) part += w[i] * (float)q[i];
        sum += part * d[b];
    }
    return sum;
}

static void narrow_plain(const narrow_job *job, uint32_t type, uint32_t n_col) {
    const type_layout *info = type_of(type);
    uint32_t form = narrow_form(type), group = form_group(form), input_bytes = form_input_bytes(form);
    size_t   end  = narrow_input_bytes(form, job->n_in), n = size_min(group, job->n_in);
    for (size_t r = 0; r < job->n_rows; r++) {
        const uint8_t *row = job->rows + r * job->row_bytes;
        float w[256] = { 0 }, sum[NARROW_MAX] = { 0 };
        for (size_t at = 0, i = 0; at < end; at += input_bytes, i += group) {
            info->to_float(row + size_min(i, job->n_in - n) / info->block_weights * info->block_bytes, w, n);
            for (uint32_t c = 0; c < n_col; c++) sum[c] += plain_dot(form, w, job->in[c] + at);
        }
        for (uint32_t c = 0; c < n_col; c++) job->out[c][r] = sum[c];
    }
}

#ifdef NOVA_X86

/* ---- What both levels share ---- */

#define INLINE_AVX2   NOVA_TARGET_AVX2 NOVA_INLINE
#define INLINE_AVX512 NOVA_TARGET_AVX512 NOVA_INLINE

/* One stream of addresses does not keep enough reads from memory under way. So the rows of a call are walked in
 * NARROW_STREAMS parts side by side, a tile of each part's row at a time, and each stream is fetched ahead. */
#define NARROW_STREAMS    4
#define NARROW_TILE_BYTES 768
#define NARROW_AHEAD      2048

#define NARROW_PADDED     272   /* the largest group of a type whose rows may be shorter than one: Q8_0's */

/* DO(c) for every column of 1, 2, 4 or 8, a constant: arrays indexed like this become registers in every compiler. */
#define COLUMNS(n, DO)                                      \
    do {                                                    \
        DO(0);                                              \
        if ((n) > 1) { DO(1); }                             \
        if ((n) > 2) { DO(2); DO(3); }                      \
        if ((n) > 4) { DO(4); DO(5); DO(6); DO(7); }        \
    } while (0)

/* Before a loop of a constant number of rounds: all of them (registers are indexed), or some (speed alone). */
#if defined(__clang__)
#define NARROW_UNROLL      _Pragma("clang loop unroll(full)")
#define NARROW_UNROLL_SOME
#elif defined(__GNUC__)
#define NARROW_UNROLL      _Pragma("GCC unroll 4")
#define NARROW_UNROLL_SOME _Pragma("GCC unroll 4")
#else
#define NARROW_UNROLL
#define NARROW_UNROLL_SOME
#endif

NOVA_INLINE uint32_t type_group_bytes(uint32_t type) {
#define GROUP_BYTES_CASE(name, number, weights, bytes) \
    case number: return form_group(type_form(type)) / weights * bytes;
    switch (type) { TENSOR_TYPES(GROUP_BYTES_CASE) }
#undef GROUP_BYTES_CASE
    return 0;
}

NOVA_INLINE uint32_t type_tile_groups(uint32_t type) {
    uint32_t bytes = type_group_bytes(type);
    return bytes < NARROW_TILE_BYTES ? NARROW_TILE_BYTES / bytes : 1;
}

/* A part of every row. */
typedef struct narrow_tile {
    size_t in, in_end;   /* of the prepared activations, in bytes */
    size_t p, p_last;    /* of the row: here, and where its last group starts */
} narrow_tile;

/* Behind the last row this asks for what is not there, which does no harm. */
NOVA_INLINE void fetch_group(const uint8_t *p, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += CACHE_LINE)
        _mm_prefetch((const char *)((uintptr_t)p + NARROW_AHEAD + i), _MM_HINT_T0);
}

/* ---- AVX-512 ---- */


/* 256 codes in the order of arrange_avx512, and what they are multiplied by. */
typedef struct group_avx512 {
    __m512i codes[4];
    __m512  scale;   /* of each dword of sums */
    __m512  min;     /* in the upper half: of eight blocks */
} group_avx512;

/* A dword for each of eight blocks, in both halves; and one for each half. */
INLINE_AVX512 __m512i per_block(int b0, int b1, int b2, int b3, int b4, int b5, int b6, int b7) {
    return _mm512_setr_epi32(b0, b1, b2, b3, b4, b5, b6, b7, b0, b1, b2, b3, b4, b5, b6, b7);
}
INLINE_AVX512 __m512i per_half(int h0, int h1) {
    return _mm512_setr_epi32(h0, h0, h0, h0, h0, h0, h0, h0, h1, h1, h1, h1, h1, h1, h1, h1);
}

/* Eight blocks of 32 are gathered from three windows of 64 bytes: blocks 0 1 2, 3 4 5, 6 7. */
typedef struct windows_avx512 { __m512i a, b, c; } windows_avx512;

/* `shift`: where a window starts behind its first block; the last ends where the group ends. */
INLINE_AVX512 void windows_load(windows_avx512 *w, const uint8_t *p, uint32_t bytes, uint32_t shift) {
    w->a = V512(p + shift);
    w->b = V512(p + 3 * bytes + shift);
    w->c = V512(p + 8 * bytes - 64);
}

/* Where in its window each block's byte `at` lies, in every byte of the block's dwords. */
INLINE_AVX512 __m512i windows_index(int bytes, int shift, int at) {
    const int every = 0x01010101, a = at - shift, c = at + 64 - 2 * bytes;
    return per_block(a * every, (a + bytes) * every, (a + 2 * bytes) * every, a * every, (a + bytes) * every,
                     (a + 2 * bytes) * every, c * every, (c + bytes) * every);
}

/* A mask of bytes for both halves. */
#define BOTH_HALVES(bytes) ((uint64_t)(bytes) * 0x100000001u)

INLINE_AVX512 __m512i windows_gather(const windows_avx512 *w, __m512i index) {
    __m512i v = _mm512_permutexvar_epi8(index, w->a);
    v = _mm512_mask_permutexvar_epi8(v, BOTH_HALVES(0x00fff000), index, w->b);
    return _mm512_mask_permutexvar_epi8(v, BOTH_HALVES(0xff000000), index, w->c);
}

/* Eight bytes of each block, from the one that `first` names: dword h of them in half h. */
INLINE_AVX512 __m512i codes_index(__m512i first) {
    return _mm512_add_epi8(first, _mm512_add_epi8(per_half(0, 0x04040404), _mm512_set1_epi32(0x03020100)));
}

INLINE_AVX512 void nibbles_avx512(__m512i codes, __m512i *low, __m512i *high) {
    const __m512i nibble = _mm512_set1_epi8(15);
    *low  = _mm512_and_si512(codes, nibble);
    *high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
}

/* For what is not codes: of each block the half at byte `first`, then that at `second`, then the dword at `third`. */
INLINE_AVX512 __m512i heads_index(int bytes, int first, int second, int third) {
    const int every = 0x01010101, c = 64 - 2 * bytes;
#define PAIR(x, y) (0x01000100 + 0x0101 * (x) + 0x01010000 * (y))
#define DWORD(x) (0x03020100 + 0x01010101 * (x))
    const __m512i from = _mm512_setr_epi32(
        PAIR(0, bytes), PAIR(2 * bytes, 0), PAIR(bytes, 2 * bytes), PAIR(c, c + bytes),
        PAIR(0, bytes), PAIR(2 * bytes, 0), PAIR(bytes, 2 * bytes), PAIR(c, c + bytes),
        DWORD(0), DWORD(bytes), DWORD(2 * bytes), DWORD(0), DWORD(bytes), DWORD(2 * bytes), DWORD(c), DWORD(c + bytes));
#undef PAIR
#undef DWORD
    first *= every, second *= every, third *= every;
    return _mm512_add_epi8(from, _mm512_setr_epi32(first, first, first, first, second, second, second, second,
                                                   third, third, third, third, third, third, third, third));
}

INLINE_AVX512 __m512i heads_gather(const windows_avx512 *w, __m512i index) {
    __m512i v = _mm512_permutexvar_epi8(index, w->a);
    v = _mm512_mask_permutexvar_epi8(v, 0x00fff0000fc00fc0, index, w->b);
    return _mm512_mask_permutexvar_epi8(v, 0xff000000f000f000, index, w->c);
}

INLINE_AVX512 __m512 lower_halves(__m512i v) { return _mm512_cvtph_ps(_mm512_castsi512_si256(v)); }

/* Sets bit 4 of codes by the fifth bits in the upper half of `heads`: register v's are byte v of a block's dword. */
INLINE_AVX512 __m512i add_bit_5(__m512i codes, __m512i heads, int v) {
    const __m512i index = per_block(0x20202020, 0x24242424, 0x28282828, 0x2c2c2c2c,
                                    0x30303030, 0x34343434, 0x38383838, 0x3c3c3c3c);
    const __m512i which = per_half(0x08040201, (int)0x80402010);
    __m512i bits = _mm512_permutexvar_epi8(_mm512_add_epi8(index, _mm512_set1_epi8((char)v)), heads);
    return _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(bits, which), codes, _mm512_set1_epi8(16));
}

/* Q4_0, Q4_1, Q5_0, Q5_1: what lies where is said in quant.c. */
INLINE_AVX512 void unpack_nibbles_avx512(uint32_t type, const uint8_t *p, group_avx512 *g) {
    const bool has_min = type == TYPE_Q4_1 || type == TYPE_Q5_1, has_bit_5 = type == TYPE_Q5_0 || type == TYPE_Q5_1;
    const int  bytes = (int)type_group_bytes(type) / 8;
    const int  bits_at = has_min ? 4 : 2, codes_at = bits_at + (has_bit_5 ? 4 : 0);
    const int  shift = has_bit_5 ? 8 : 0;   /* the second eight bytes of codes end beyond the first windows */
    windows_avx512 w;
    windows_load(&w, p, (uint32_t)bytes, 0);
    __m512i heads = heads_gather(&w, heads_index(bytes, 0, has_min ? 2 : 0, bits_at));
    const __m512i first = codes_index(windows_index(bytes, 0, codes_at));
    nibbles_avx512(windows_gather(&w, first), &g->codes[0], &g->codes[2]);
    if (shift) windows_load(&w, p, (uint32_t)bytes, (uint32_t)shift);
    const __m512i second = codes_index(windows_index(bytes, shift, codes_at + 8));
    nibbles_avx512(windows_gather(&w, second), &g->codes[1], &g->codes[3]);
    if (has_bit_5) {
        g->codes[0] = add_bit_5(g->codes[0], heads, 0);
        g->codes[1] = add_bit_5(g->codes[1], heads, 1);
        g->codes[2] = add_bit_5(g->codes[2], heads, 2);
        g->codes[3] = add_bit_5(g->codes[3], heads, 3);
    }
    g->scale = g->min = lower_halves(heads);
    if (has_min) g->scale = _mm512_shuffle_f32x4(g->min, g->min, 0x44);
}

/* Q8_0: blocks are gathered from four windows of two blocks; the codes are moved to 0..255. */
INLINE_AVX512 void unpack_q8_0_avx512(const uint8_t *p, group_avx512 *g) {
    const __m512i move   = _mm512_set1_epi8(-128), halves = _mm512_set1_epi32(0x23220100);
    const __m512i blocks = _mm512_set1_epi64(0x2222222200000000);   /* the second of a window starts 34 bytes later */
    __m512i w[4], scales;
    for (int i = 0; i < 4; i++) w[i] = V512(p + 68 * i);
    scales = _mm512_permutexvar_epi8(halves, w[0]);
    scales = _mm512_mask_permutexvar_epi8(scales, 0x00f000f0, halves, w[1]);
    scales = _mm512_mask_permutexvar_epi8(scales, 0x0f000f00, halves, w[2]);
    scales = _mm512_mask_permutexvar_epi8(scales, 0xf000f000, halves, w[3]);
    g->scale = g->min = lower_halves(scales);
    NARROW_UNROLL
    for (int v = 0; v < 4; v++) {
        const int     shift = v == 3 ? 4 : 0;   /* the last eight bytes end beyond the first windows */
        const __m512i index = codes_index(_mm512_add_epi8(blocks, _mm512_set1_epi8((char)(2 + 8 * v - shift))));
        if (shift)
            for (int i = 0; i < 4; i++) w[i] = V512(p + 68 * i + shift);
        __m512i codes = _mm512_permutexvar_epi8(index, w[0]);
        codes = _mm512_mask_permutexvar_epi8(codes, BOTH_HALVES(0x0000ff00), index, w[1]);
        codes = _mm512_mask_permutexvar_epi8(codes, BOTH_HALVES(0x00ff0000), index, w[2]);
        codes = _mm512_mask_permutexvar_epi8(codes, BOTH_HALVES(0xff000000), index, w[3]);
        g->codes[v] = _mm512_xor_si512(codes, move);
    }
}

/* d times eight scales, dmin times eight minima, from the head of a K-quant: d, dmin and 12 bytes of 6-bit factors. A
 * dword takes the byte with a factor's lower bits, and that with its upper two bits, if it has those elsewhere. */
INLINE_AVX512 __m512 factors_k_avx512(__m128i head) {
#define AT(low, high) (4 + (low)) | (4 + (high)) << 8
    const __m512i index = _mm512_setr_epi32(
        AT(0, 0), AT(1, 0), AT(2, 0), AT(3, 0), AT(8, 0), AT(9, 1), AT(10, 2), AT(11, 3),
        AT(4, 0), AT(5, 0), AT(6, 0), AT(7, 0), AT(8, 4), AT(9, 5), AT(10, 6), AT(11, 7));
#undef AT
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4);
    const __m512i lower = per_block(63, 63, 63, 63, 15, 15, 15, 15);
    const __m512i upper = per_block(0, 0, 0, 0, 0x30, 0x30, 0x30, 0x30);
    __m512i bytes   = _mm512_permutexvar_epi8(index, _mm512_castsi128_si512(head));
    __m512i factors = _mm512_and_si512(_mm512_srlv_epi32(bytes, shift), lower);
    factors = _mm512_or_si512(factors, _mm512_and_si512(_mm512_srli_epi32(bytes, 10), upper));
    __m256i halves = _mm256_permutexvar_epi16(_mm256_setr_epi32(0, 0, 0, 0, 0x10001, 0x10001, 0x10001, 0x10001),
                                              _mm256_castsi128_si256(head));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(factors), _mm512_cvtph_ps(halves));
}

/* Q4_K, Q5_K: two sub-blocks share 32 bytes of codes, low bits and high bits. */
INLINE_AVX512 void unpack_k_avx512(uint32_t type, const uint8_t *p, group_avx512 *g) {
    const __m512i dwords = _mm512_add_epi32(per_block(0, 0, 8, 8, 16, 16, 24, 24), per_half(0, 1));
    const __m512i shift  = per_block(0, 4, 0, 4, 0, 4, 0, 4), nibble = _mm512_set1_epi8(15);
    const __m512i turn   = per_block(4, 3, 2, 1, 0, 31, 30, 29), bit = _mm512_set1_epi8(16);   /* bit k to bit 4 */
    const uint8_t *codes = p + (type == TYPE_Q5_K ? 48 : 16);
    __m512i a = V512(codes), b = V512(codes + 64), high = V512(p + 16);
    NARROW_UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i both = _mm512_permutex2var_epi32(a, _mm512_add_epi32(dwords, _mm512_set1_epi32(2 * v)), b);
        g->codes[v] = _mm512_and_si512(_mm512_srlv_epi32(both, shift), nibble);
        if (type == TYPE_Q5_K) {
            __m512i bits = _mm512_permutexvar_epi32(_mm512_add_epi32(per_half(0, 1), _mm512_set1_epi32(2 * v)), high);
            g->codes[v] = _mm512_or_si512(g->codes[v], _mm512_and_si512(_mm512_rolv_epi32(bits, turn), bit));
        }
    }
    g->min   = factors_k_avx512(V128(p));
    g->scale = _mm512_shuffle_f32x4(g->min, g->min, 0x44);
}

/* Q6_K: register v has dword v of each sub-block. Per half of the block, four runs of two sub-blocks: the first two in
 * the low nibbles, the others in the high nibbles of the same bytes; all four share 32 bytes of upper bits. */
INLINE_AVX512 void unpack_q6_k_avx512(const uint8_t *p, group_avx512 *g) {
    const __m512i low   = per_block(0, 4, 8, 12, 0, 4, 8, 12), high = per_block(0, 4, 0, 4, 0, 4, 0, 4);
    const __m512i shift = per_block(0, 0, 0, 0, 4, 4, 4, 4), turn = per_block(4, 4, 2, 2, 0, 0, 30, 30);
    const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(0x30);
    __m512i a = V512(p), b = V512(p + 64), bits = V512(p + 128);
    NARROW_UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i l = _mm512_permutex2var_epi32(a, _mm512_add_epi32(low, per_half(v, 16 + v)), b);
        __m512i h = _mm512_permutexvar_epi32(_mm512_add_epi32(high, per_half(v, 8 + v)), bits);
        g->codes[v] = _mm512_or_si512(_mm512_and_si512(_mm512_srlv_epi32(l, shift), nibble),
                                      _mm512_and_si512(_mm512_rolv_epi32(h, turn), upper));
    }
    __m512 d = _mm512_cvtph_ps(_mm256_set1_epi16((short)load_u16(p + 208)));
    g->scale = g->min = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(V128(p + 192))));
}

/* Eight dwords in both halves. */
INLINE_AVX512 __m512i both_halves(const int32_t *p) { return _mm512_broadcast_i32x8(V256(p)); }

/* What a column's integer sums start from, and what they are multiplied by. */
INLINE_AVX512 __m512i start_avx512(uint32_t type, const uint8_t *in) {
    const input_32 *in_32 = (const input_32 *)(const void *)in;
    switch (type) {
        case TYPE_Q4_0: return both_halves(in_32->s4);
        case TYPE_Q5_0: return both_halves(in_32->s8);
        case TYPE_Q8_0: return _mm512_slli_epi32(both_halves(in_32->s4), 4);   /* code - 128 */
        case TYPE_Q6_K: return V512(((const input_16 *)(const void *)in)->u.by_16.s32);
        default:        return _mm512_setzero_si512();
    }
}
INLINE_AVX512 __m512 scale_avx512(uint32_t type, const uint8_t *in) {
    if (type_form(type) == FORM_16) return _mm512_loadu_ps(((const input_16 *)(const void *)in)->u.by_16.d);
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(((const input_32 *)(const void *)in)->d));
}

/* Adds a group to a column's sums. */
INLINE_AVX512 __m512 column_avx512(uint32_t type, const group_avx512 *g, const uint8_t *in, __m512 acc) {
    __m512i sum = start_avx512(type, in);
    sum = _mm512_dpbusd_epi32(sum, g->codes[0], V512(in));
    sum = _mm512_dpbusd_epi32(sum, g->codes[1], V512(in + 64));
    sum = _mm512_dpbusd_epi32(sum, g->codes[2], V512(in + 128));
    sum = _mm512_dpbusd_epi32(sum, g->codes[3], V512(in + 192));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(g->scale, scale_avx512(type, in)), acc);
    if (type_form(type) == FORM_16) return acc;
    __m512 ds = _mm512_broadcast_f32x8(_mm256_loadu_ps(((const input_32 *)(const void *)in)->ds));
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) acc = _mm512_mask3_fmadd_ps(g->min, ds, acc, 0xff00);
    if (type == TYPE_Q4_K || type == TYPE_Q5_K) acc = _mm512_mask3_fnmadd_ps(g->min, ds, acc, 0xff00);
    return acc;
}

/* 16 weights of a float type. */
INLINE_AVX512 __m512 floats_avx512(uint32_t type, const uint8_t *p) {
    if (type == TYPE_F32) return _mm512_loadu_ps((const void *)p);
    if (type == TYPE_F16) return _mm512_cvtph_ps(V256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(V256(p)), 16));
}

/* Adds a group of a row to the sums of n columns. */
INLINE_AVX512 void group_avx512_add(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                                    __m512 *acc) {
    if (type_form(type) == FORM_FLOAT) {
        __m512 w0 = floats_avx512(type, p), w1 = floats_avx512(type, p + type_group_bytes(type) / 2);
#define DO(c)                                                                                     \
    acc[c] = _mm512_fmadd_ps(w0, _mm512_loadu_ps((const void *)(in[c] + at)), acc[c]);            \
    acc[c] = _mm512_fmadd_ps(w1, _mm512_loadu_ps((const void *)(in[c] + at + 64)), acc[c])
        COLUMNS(n, DO);
#undef DO
        return;
    }
    group_avx512 g;
    switch (type) {
        case TYPE_Q8_0: unpack_q8_0_avx512(p, &g); break;
        case TYPE_Q4_K: case TYPE_Q5_K: unpack_k_avx512(type, p, &g); break;
        case TYPE_Q6_K: unpack_q6_k_avx512(p, &g); break;
        default:        unpack_nibbles_avx512(type, p, &g);
    }
#define DO(c) acc[c] = column_avx512(type, &g, in[c] + at, acc[c])
    COLUMNS(n, DO);
#undef DO
}

/* Sums of four vectors. */
INLINE_AVX512 __m128 sum_4_avx512(const __m512 *v, size_t stride) {
    __m512 a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
    a = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    c = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    a = _mm512_add_ps(_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(a, c, 0xdd));   /* a lane each */
    a = _mm512_add_ps(a, _mm512_shuffle_ps(a, a, 0x4e));
    a = _mm512_add_ps(a, _mm512_shuffle_ps(a, a, 0xb1));
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, a));
}

/* Adds a tile of one row to the sums of n columns, which lie in memory between tiles. */
INLINE_AVX512 void tile_avx512(uint32_t type, uint32_t n, const uint8_t *row, narrow_tile tile,
                               const uint8_t *const *in, __m512 *sums) {
    __m512 acc[NARROW_MAX];
#define DO(c) acc[c] = sums[c]
    COLUMNS(n, DO);
#undef DO
    for (; tile.in < tile.in_end; tile.in += form_input_bytes(type_form(type))) {
        fetch_group(row + tile.p, type_group_bytes(type));
        group_avx512_add(type, n, row + tile.p, in, tile.in, acc);
        tile.p = size_min(tile.p + type_group_bytes(type), tile.p_last);
    }
#define DO(c) sums[c] = acc[c]
    COLUMNS(n, DO);
#undef DO
}

INLINE_AVX512 void rows_avx512(uint32_t type, uint32_t n, const narrow_job *job) {
    const uint32_t groups   = type_tile_groups(type), group_bytes = type_group_bytes(type);
    const bool     is_short = job->n_in < form_group(type_form(type));
    const size_t   length   = type_row_bytes(type, job->n_in), end = narrow_input_bytes(type_form(type), job->n_in);
    const size_t   n_steps  = (job->n_rows + NARROW_STREAMS - 1) / NARROW_STREAMS;
    uint8_t        padded[NARROW_PADDED] = { 0 };
    narrow_tile    tile;
    tile.p_last = is_short ? 0 : length - group_bytes;
    for (size_t i = 0; i < n_steps; i++) {
        __m512 sums[NARROW_STREAMS][NARROW_MAX];
        for (int s = 0; s < NARROW_STREAMS; s++)
            for (uint32_t c = 0; c < n; c++) sums[s][c] = _mm512_setzero_ps();
        tile.p = 0;
        for (tile.in = 0; tile.in < end; tile.in = tile.in_end) {
            tile.in_end = size_min(tile.in + groups * form_input_bytes(type_form(type)), end);
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps) {
                const uint8_t *row = job->rows + r * job->row_bytes;
                if (is_short) row = (const uint8_t *)memcpy(padded, row, length);
                tile_avx512(type, n, row, tile, job->in, sums[s]);
            }
            tile.p = size_min(tile.p + groups * group_bytes, tile.p_last);
        }
        for (uint32_t c = 0; c < n; c++) {
            float four[NARROW_STREAMS];
            _mm_storeu_ps(four, sum_4_avx512(&sums[0][c], NARROW_MAX));
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps)
                job->out[c][r] = four[s];
        }
    }
}

/* ---- AVX2: activations and codes in natural order ---- */

/* Sums of four products each: unsigned codes, so small that pairs of products fit 16 bits, times activations. */
INLINE_AVX2 __m256i dot_unsigned_avx2(__m256i codes, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
}

/* Q8_0's codes are signed: their signs go to the activations. */
INLINE_AVX2 __m256i dot_avx2(uint32_t type, __m256i codes, __m256i x) {
    if (type == TYPE_Q8_0) return dot_unsigned_avx2(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    return dot_unsigned_avx2(codes, x);
}

/* acc + sum * scale[0] */
INLINE_AVX2 __m256 add_scaled_avx2(__m256 acc, __m256i sum, const float *scale) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(scale), acc);
}

/* Four dwords at a distance. */
INLINE_AVX2 __m128i dwords_avx2(const uint8_t *p, uint32_t bytes) {
    return _mm_setr_epi32((int)load_u32(p), (int)load_u32(p + bytes), (int)load_u32(p + 2 * bytes),
                          (int)load_u32(p + 3 * bytes));
}

/* Scales of eight blocks of 32, and what a sum of activations is multiplied by. */
INLINE_AVX2 void scales_32_avx2(uint32_t type, const uint8_t *p, __m256 *scale, __m256 *min) {
    const uint32_t bytes = type_group_bytes(type) / 8;
    __m128i a = dwords_avx2(p, bytes), b = dwords_avx2(p + 4 * bytes, bytes);   /* each starts with d, or d and m */
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) {
        __m256 l = _mm256_cvtph_ps(a), h = _mm256_cvtph_ps(b);
        *scale = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(l, h, 0x88)), 0xd8));
        *min   = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(l, h, 0xdd)), 0xd8));
        return;
    }
    const __m128i low = _mm_set1_epi32(0xffff);
    *scale = _mm256_cvtph_ps(_mm_packus_epi32(_mm_and_si128(a, low), _mm_and_si128(b, low)));
    *min   = _mm256_mul_ps(*scale, _mm256_set1_ps(type == TYPE_Q4_0 ? -8.0f : -16.0f));   /* Q8_0: not used */
}

/* 32 codes of a block with 4 or 5 bits. */
INLINE_AVX2 __m256i codes_32_avx2(uint32_t type, const uint8_t *p) {
    const uint32_t at = type == TYPE_Q4_0 ? 2 : type == TYPE_Q4_1 ? 4 : type == TYPE_Q5_0 ? 6 : 8;
    __m256i both  = _mm256_broadcastsi128_si256(V128(p + at));
    __m256i codes = _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
    if (type == TYPE_Q4_0 || type == TYPE_Q4_1) return codes;
    const __m256i replicate = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i which     = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_u32(p + at - 4)), replicate);
    __m256i set   = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, which), which);
    return _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

#define IN_32(c) ((const input_32 *)(const void *)(in[c] + at))

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 */
INLINE_AVX2 void group_32_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                               __m256 *acc) {
    float  s[NARROW_MAX][8];
    __m256 scale, min;
    scales_32_avx2(type, p, &scale, &min);
#define DO(c)                                                                                            \
    _mm256_storeu_ps(s[c], _mm256_mul_ps(scale, _mm256_loadu_ps(IN_32(c)->d)));                          \
    if (type != TYPE_Q8_0) acc[c] = _mm256_fmadd_ps(min, _mm256_loadu_ps(IN_32(c)->ds), acc[c])
    COLUMNS(n, DO);
#undef DO
    NARROW_UNROLL_SOME
    for (int b = 0; b < 8; b++, p += type_group_bytes(type) / 8) {
        __m256i codes = type == TYPE_Q8_0 ? V256(p + 2) : codes_32_avx2(type, p);
#define DO(c) acc[c] = add_scaled_avx2(acc[c], dot_avx2(type, codes, V256(IN_32(c)->q + 32 * b)), &s[c][b])
        COLUMNS(n, DO);
#undef DO
    }
}

/* d times eight scales and dmin times eight minima from the head of a K-quant: the 6-bit factors by four at a time. */
INLINE_AVX2 void factors_k_avx2(const uint8_t *p, __m256 *scale, __m256 *min) {
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, bits_4_5 = 0x30303030;
    uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    uint64_t scales = (a & low6) | (uint64_t)((c & low4) | ((a >> 2) & bits_4_5)) << 32;
    uint64_t minima = (b & low6) | (uint64_t)(((c >> 4) & low4) | ((b >> 2) & bits_4_5)) << 32;
    __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(p)));   /* d, dmin */
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)scales)));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)minima)));
    *scale = _mm256_mul_ps(s, _mm256_broadcastss_ps(d));
    *min   = _mm256_mul_ps(m, _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}

/* Q4_K, Q5_K */
INLINE_AVX2 void group_k_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                              __m256 *acc) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    float  s[NARROW_MAX][8];
    __m256 scale, min;
    factors_k_avx2(p, &scale, &min);
#define DO(c)                                                                       \
    _mm256_storeu_ps(s[c], _mm256_mul_ps(scale, _mm256_loadu_ps(IN_32(c)->d)));     \
    acc[c] = _mm256_fnmadd_ps(min, _mm256_loadu_ps(IN_32(c)->ds), acc[c])
    COLUMNS(n, DO);
#undef DO
    const uint8_t *codes = p + (type == TYPE_Q5_K ? 48 : 16);
    __m256i        high  = V256(p + 16);   /* Q5_K: fifth bits, the next sub-block's in bit 0 of each byte */
    NARROW_UNROLL_SOME
    for (int run = 0; run < 4; run++) {
        __m256i both = V256(codes + 32 * run);
        __m256i even = _mm256_and_si256(both, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        if (type == TYPE_Q5_K) {
            even = _mm256_or_si256(even, _mm256_and_si256(_mm256_slli_epi16(high, 4), bit));
            odd  = _mm256_or_si256(odd, _mm256_and_si256(_mm256_slli_epi16(high, 3), bit));
            high = _mm256_srli_epi16(high, 2);
        }
#define DO(c)                                                                                                        \
    acc[c] = add_scaled_avx2(acc[c], dot_unsigned_avx2(even, V256(IN_32(c)->q + 64 * run)), &s[c][2 * run]);         \
    acc[c] = add_scaled_avx2(acc[c], dot_unsigned_avx2(odd, V256(IN_32(c)->q + 64 * run + 32)), &s[c][2 * run + 1])
        COLUMNS(n, DO);
#undef DO
    }
}

/* Q6_K */
INLINE_AVX2 void group_q6_k_avx2(uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at, __m256 *acc) {
#define IN_16(c) ((const input_16 *)(const void *)(in[c] + at))
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(0x30);
    __m128i bytes  = V128(p + 192);
    __m256i scales = _mm256_cvtepi8_epi16(bytes);
    __m256  d      = _mm256_cvtph_ps(_mm_set1_epi16((short)load_u16(p + 208)));
    __m256  first  = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    __m256  second = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
    float   s[NARROW_MAX][8];
#define DO(c)                                                                             \
    _mm256_storeu_ps(s[c], _mm256_mul_ps(d, _mm256_loadu_ps(IN_16(c)->u.by_32.d)));       \
    acc[c] = _mm256_fmadd_ps(first, _mm256_loadu_ps(IN_16(c)->u.by_32.ds32), acc[c]);     \
    acc[c] = _mm256_fmadd_ps(second, _mm256_loadu_ps(IN_16(c)->u.by_32.ds32 + 8), acc[c])
    COLUMNS(n, DO);
#undef DO
    /* Even sub-blocks' scales in the lower lane, odd ones' in the upper: each lane of 32 codes has its own. */
    const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    scales = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(scales, pairs), 0xd8);
    for (int half = 0; half < 2; half++) {
        __m256i high = V256(p + 128 + 32 * half);
        NARROW_UNROLL_SOME
        for (int run = 0; run < 4; run++) {
            int     j   = 4 * half + run;
            __m256i low = V256(p + 64 * half + 32 * (run % 2));
            if (run >= 2) low = _mm256_srli_epi16(low, 4);
            __m256i bits  = _mm256_and_si256(_mm256_slli_epi16(high, 4), upper);
            __m256i codes = _mm256_or_si256(_mm256_and_si256(low, nibble), bits);
            __m256i scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(0x0100 + 0x0202 * j)));
            high = _mm256_srli_epi16(high, 2);
#define DO(c)                                                                                      \
    acc[c] = add_scaled_avx2(acc[c], _mm256_madd_epi16(                                            \
                                         _mm256_maddubs_epi16(codes, V256(IN_16(c)->q + 32 * j)), scale), &s[c][j])
            COLUMNS(n, DO);
#undef DO
        }
    }
}

/* 8 weights of a float type. */
INLINE_AVX2 __m256 floats_avx2(uint32_t type, const uint8_t *p) {
    if (type == TYPE_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    if (type == TYPE_F16) return _mm256_cvtph_ps(V128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(V128(p)), 16));
}

INLINE_AVX2 void group_float_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                                  __m256 *acc) {
    NARROW_UNROLL_SOME
    for (uint32_t i = 0; i < 4; i++) {
        __m256 w = floats_avx2(type, p + i * type_group_bytes(type) / 4);
#define DO(c) acc[c] = _mm256_fmadd_ps(w, _mm256_loadu_ps((const float *)(const void *)(in[c] + at + 32 * i)), acc[c])
        COLUMNS(n, DO);
#undef DO
    }
}

INLINE_AVX2 void group_avx2_add(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                                __m256 *acc) {
    switch (type) {
        case TYPE_F32: case TYPE_F16: case TYPE_BF16: group_float_avx2(type, n, p, in, at, acc); break;
        case TYPE_Q4_K: case TYPE_Q5_K:               group_k_avx2(type, n, p, in, at, acc); break;
        case TYPE_Q6_K:                               group_q6_k_avx2(n, p, in, at, acc); break;
        default:                                      group_32_avx2(type, n, p, in, at, acc);
    }
}

/* Sums of four vectors. */
INLINE_AVX2 __m128 sum_4_avx2(const __m256 *v, size_t stride) {
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[stride]), _mm256_hadd_ps(v[2 * stride], v[3 * stride]));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* Adds a tile of one row to the sums of n columns, which lie in memory between tiles. */
INLINE_AVX2 void tile_avx2(uint32_t type, uint32_t n, const uint8_t *row, narrow_tile tile,
                           const uint8_t *const *in, __m256 *sums) {
    __m256 acc[NARROW_MAX];
#define DO(c) acc[c] = sums[c]
    COLUMNS(n, DO);
#undef DO
    for (; tile.in < tile.in_end; tile.in += form_input_bytes(type_form(type))) {
        fetch_group(row + tile.p, type_group_bytes(type));
        group_avx2_add(type, n, row + tile.p, in, tile.in, acc);
        tile.p = size_min(tile.p + type_group_bytes(type), tile.p_last);
    }
#define DO(c) sums[c] = acc[c]
    COLUMNS(n, DO);
#undef DO
}

INLINE_AVX2 void rows_avx2(uint32_t type, uint32_t n, const narrow_job *job) {
    const uint32_t groups   = type_tile_groups(type), group_bytes = type_group_bytes(type);
    const bool     is_short = job->n_in < form_group(type_form(type));
    const size_t   length   = type_row_bytes(type, job->n_in), end = narrow_input_bytes(type_form(type), job->n_in);
    const size_t   n_steps  = (job->n_rows + NARROW_STREAMS - 1) / NARROW_STREAMS;
    uint8_t        padded[NARROW_PADDED] = { 0 };
    narrow_tile    tile;
    tile.p_last = is_short ? 0 : length - group_bytes;
    for (size_t i = 0; i < n_steps; i++) {
        __m256 sums[NARROW_STREAMS][NARROW_MAX];
        for (int s = 0; s < NARROW_STREAMS; s++)
            for (uint32_t c = 0; c < n; c++) sums[s][c] = _mm256_setzero_ps();
        tile.p = 0;
        for (tile.in = 0; tile.in < end; tile.in = tile.in_end) {
            tile.in_end = size_min(tile.in + groups * form_input_bytes(type_form(type)), end);
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps) {
                const uint8_t *row = job->rows + r * job->row_bytes;
                if (is_short) row = (const uint8_t *)memcpy(padded, row, length);
                tile_avx2(type, n, row, tile, job->in, sums[s]);
            }
            tile.p = size_min(tile.p + groups * group_bytes, tile.p_last);
        }
        for (uint32_t c = 0; c < n; c++) {
            float four[NARROW_STREAMS];
            _mm_storeu_ps(four, sum_4_avx2(&sums[0][c], NARROW_MAX));
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps)
                job->out[c][r] = four[s];
        }
    }
}

/* ---- The kernels' table ---- */

#define NARROW_KERNEL(level, LEVEL, name, n)                                             \
    NOVA_TARGET_##LEVEL static void narrow_##name##_##level##_##n(const narrow_job *job) { \
        rows_##level(TYPE_##name, n, job);                                               \
    }
#define NARROW_KERNELS(name, form)                                                       \
    NARROW_KERNEL(avx2, AVX2, name, 1)                                                   \
    NARROW_KERNEL(avx2, AVX2, name, 2)                                                   \
    NARROW_KERNEL(avx2, AVX2, name, 4)                                                   \
    NARROW_KERNEL(avx2, AVX2, name, 8)                                                   \
    NARROW_KERNEL(avx512, AVX512, name, 1)                                               \
    NARROW_KERNEL(avx512, AVX512, name, 2)                                               \
    NARROW_KERNEL(avx512, AVX512, name, 4)                                               \
    NARROW_KERNEL(avx512, AVX512, name, 8)
NARROW_TYPES(NARROW_KERNELS)

/* For n = 1, 2, 4, 8 columns; NULL for a type without. */
static narrow_kernel narrow_kernel_of(cpu_level level, uint32_t type, uint32_t n) {
#define NARROW_KERNEL_ROW(name, form)                                                    \
    case TYPE_##name: {                                                                  \
        static const narrow_kernel kernels[2][4] = {                                     \
            { narrow_##name##_avx2_1, narrow_##name##_avx2_2,                            \
              narrow_##name##_avx2_4, narrow_##name##_avx2_8 },                          \
            { narrow_##name##_avx512_1, narrow_##name##_avx512_2,                        \
              narrow_##name##_avx512_4, narrow_##name##_avx512_8 } };                    \
        return kernels[level == CPU_AVX512][n == 8 ? 3 : n / 2];                         \
    }
    switch (type) { NARROW_TYPES(NARROW_KERNEL_ROW) }
#undef NARROW_KERNEL_ROW
    return NULL;
}

#undef IN_16
#undef IN_32
#undef BOTH_HALVES
#undef COLUMNS
#undef INLINE_AVX2
#undef INLINE_AVX512
#endif

#undef V128
#undef V256
#undef V512

static void narrow_matmul(cpu_level level, const weight *w, const void *const *inputs, uint32_t n_col,
                          uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out) {
    uint32_t   n = n_col <= 1 ? 1 : n_col <= 2 ? 2 : n_col <= 4 ? 4 : 8;
    narrow_job job;
    job.rows      = w->data + row_begin * w->row_bytes;
    job.row_bytes = w->row_bytes;
    job.n_in      = w->n_in;
    job.n_rows    = row_end - row_begin;
    for (uint32_t c = 0; c < n; c++) {   /* a kernel's columns beyond n_col repeat the first */
        job.in[c]  = (const uint8_t *)inputs[c < n_col ? c : 0];
        job.out[c] = out + (c < n_col ? c : 0) * ld_out + row_begin;
    }
#ifdef NOVA_X86
    narrow_kernel kernel = level == CPU_PLAIN ? NULL : narrow_kernel_of(level, w->type, n);
    if (kernel) {
        kernel(&job);
        return;
    }
#endif
    (void)level;
    narrow_plain(&job, w->type, n_col);
}

/* ==== src/cpu_wide.h ========================================================================================== */

/* Matmul for many columns: a panel of rows is unpacked to int8 (or float) into the cache and used for all columns. */
#ifndef NOVA_CPU_WIDE_H
#define NOVA_CPU_WIDE_H


/* Columns are packed by tiles for all weights of one form; types tell which form they read. */
static uint32_t wide_form(uint32_t type);                                          /* 0 .. WIDE_FORMS - 1 */
static size_t   wide_input_bytes(cpu_level level, uint32_t form, size_t n_in, size_t n_col);  /* a multiple of 64 */
static uint32_t wide_tiles(cpu_level level, uint32_t form, size_t n_col);          /* units of sharing wide_prepare */
#define WIDE_FORMS 2

/* Packs tiles tile_begin..tile_end. Column c starts at x + columns[c] * ld_x; `columns` NULL: 0, 1, 2, ...
 * `out` is aligned to 64. */
static void wide_prepare(cpu_level level, uint32_t form, const float *x, size_t ld_x, const uint32_t *columns,
                         size_t n_in, size_t n_col, uint32_t tile_begin, uint32_t tile_end, void *out);

/* Scratch of one thread (the unpacked panel), aligned to 64. */
static size_t wide_scratch_bytes(cpu_level level, uint32_t type, size_t n_in);
/* Rows are best handed out in multiples of this. */
static uint32_t wide_panel_rows(cpu_level level, uint32_t type, size_t n_in);

/* Column c goes to out + columns[c] * ld_out, rows row_begin <= r < row_end of it. */
static void wide_matmul(cpu_level level, const weight *w, const void *input, size_t n_col, const uint32_t *columns,
                        uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out, void *scratch);

#endif

/* ==== src/cpu_wide.c ========================================================================================== */

/* Matmul for many columns: see cpu_wide.h.
 *
 * Rows go by panels: `depth` weights of some rows are unpacked to int8 codes and float scales in the thread's scratch,
 * where they stay in the L2 cache while all columns pass. A panel is made of strips, and columns are packed into tiles;
 * one call of a kernel multiplies one strip by one tile. Between two depths the sums lie in `out`.
 *
 * Codes. A weight is scale * code, or scale * code + offset, with one scale for 32 or 16 weights. Codes are centred
 * (Q4_1's 0..15 become -8..7, and its minimum makes up for it): that keeps offsets small, and also sums of products, as
 * the AVX2 kernels need it. Activations are packed as code + 128 in unsigned bytes, since the instructions multiply
 * unsigned by signed bytes. What that adds to a sum, 128 times the sum of the weights' codes, depends on the row alone:
 * it is found once, when the row is unpacked, and sums start from its negative.
 *
 * An element of `out` gets its terms in the order of the weights, block by block, one after the other, whichever tile
 * its column and whichever strip its row fall into, and wherever a depth ends. So columns and rows never meet.
 *
 * A new format is a row of WIDE_TYPES and two functions that unpack a row, plain and fast. */

/* How a type is computed. Kinds differ by the kernels that can do them without overflow. */
typedef enum wide_kind {
    WIDE_FLOAT,        /* to float */
    WIDE_32,           /* a scale for 32 codes within -16..15 */
    WIDE_32_OFFSET,    /* the same with an offset */
    WIDE_32_BYTE,      /* a scale for 32 codes of any int8 */
    WIDE_16,           /* a scale for 16 codes within -32..31 */
    WIDE_KINDS
} wide_kind;

enum { FORM_WIDE_FLOAT, FORM_WIDE_INT8 };   /* of packed columns */

#define CHUNK_CODES  256   /* weights of a row that are unpacked at once */
#define CHUNK_FLOATS 64

/* One row's chunk, unpacked. */
typedef struct wide_chunk {
    union {
        int8_t codes[CHUNK_CODES];
        float  floats[CHUNK_FLOATS];
    } w;
    float scale[16];   /* of 16 blocks of 16; or of 8 blocks of 32, and behind them 8 offsets */
} wide_chunk;

/* Unpacks n weights, at most a chunk, whole blocks of the type. */
typedef void (*wide_unpack_fn)(const uint8_t *p, uint32_t n, wide_chunk *out);

typedef struct wide_type {
    uint32_t       type;
    wide_kind      kind;
    wide_unpack_fn unpack[2];   /* plain; AVX2 and above */
} wide_type;

/* ---- Unpacking a row, plain ---- */

static void wide_f32(const uint8_t *p, uint32_t n, wide_chunk *out) { memcpy(out->w.floats, p, n * sizeof(float)); }

static void wide_f16(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t i = 0; i < n; i++) out->w.floats[i] = half_to_float(load_u16(p + 2 * i));
}

static void wide_bf16(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t i = 0; i < n; i++) out->w.floats[i] = bf16_to_float(load_u16(p + 2 * i));
}

/* 16 bytes hold codes 0..15 in their low halves and 16..31 in their high ones, fifth bits in a word of their own. */
static void wide_codes_4(const uint8_t *p, int centre, int8_t *codes) {
    for (int i = 0; i < 16; i++) {
        codes[i]      = (int8_t)((p[i] & 15) - centre);
        codes[i + 16] = (int8_t)((p[i] >> 4) - centre);
    }
}

static void wide_codes_5(const uint8_t *p, uint32_t fifth, int8_t *codes) {
    wide_codes_4(p, 16, codes);
    for (int i = 0; i < 32; i++) codes[i] = (int8_t)(codes[i] + (int)((fifth >> i) & 1u) * 16);
}

static void wide_q4_0(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 18) {
        out->scale[b] = half_to_float(load_u16(p));
        wide_codes_4(p + 2, 8, out->w.codes + 32 * b);
    }
}

static void wide_q4_1(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 20) {
        out->scale[b]     = half_to_float(load_u16(p));
        out->scale[b + 8] = half_to_float(load_u16(p + 2)) + 8 * out->scale[b];
        wide_codes_4(p + 4, 8, out->w.codes + 32 * b);
    }
}

static void wide_q5_0(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 22) {
        out->scale[b] = half_to_float(load_u16(p));
        wide_codes_5(p + 6, load_u32(p + 2), out->w.codes + 32 * b);
    }
}

static void wide_q5_1(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 24) {
        out->scale[b]     = half_to_float(load_u16(p));
        out->scale[b + 8] = half_to_float(load_u16(p + 2)) + 16 * out->scale[b];
        wide_codes_5(p + 8, load_u32(p + 4), out->w.codes + 32 * b);
    }
}

static void wide_q8_0(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 34) {
        out->scale[b] = half_to_float(load_u16(p));
        memcpy(out->w.codes + 32 * b, p + 2, 32);
    }
}

/* Eight scales and eight minima of 6 bits in 12 bytes, as Q4_K and Q5_K have them: 0..3 lie in the low 6 bits of bytes
 * 0..3 and 4..7; 4..7 have their low 4 bits in the halves of bytes 8..11 and their high 2 bits above those of 0..3.
 * Gives scales in one, minima in the other word, a byte each. */
static void wide_k_scales(const uint8_t *p, uint64_t *scales, uint64_t *minima) {
    uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
    uint32_t scale_high = (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    uint32_t min_high   = ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    *scales = (a & 0x3f3f3f3fu) | (uint64_t)scale_high << 32;
    *minima = (b & 0x3f3f3f3fu) | (uint64_t)min_high << 32;
}

static void wide_k_head(const uint8_t *p, float centre, float *scale) {
    float    d = half_to_float(load_u16(p)), dmin = half_to_float(load_u16(p + 2));
    uint64_t scales, minima;
    wide_k_scales(p + 4, &scales, &minima);
    for (int i = 0; i < 8; i++) {
        scale[i]     = d * (float)((scales >> (8 * i)) & 255);
        scale[i + 8] = centre * scale[i] - dmin * (float)((minima >> (8 * i)) & 255);
    }
}

static void wide_q4_k(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;   /* a chunk is one block */
    wide_k_head(p, 8, out->scale);
    for (int i = 0; i < CHUNK_CODES; i++) {
        uint8_t byte = p[16 + i / 64 * 32 + i % 32];
        out->w.codes[i] = (int8_t)((i / 32 % 2 ? byte >> 4 : byte & 15) - 8);
    }
}

static void wide_q5_k(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    wide_k_head(p, 16, out->scale);
    for (int i = 0; i < CHUNK_CODES; i++) {
        uint8_t byte = p[48 + i / 64 * 32 + i % 32];
        int     fifth = (p[16 + i % 32] >> (i / 32)) & 1;
        out->w.codes[i] = (int8_t)((i / 32 % 2 ? byte >> 4 : byte & 15) + 16 * fifth - 16);
    }
}

static void wide_q6_k(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    float d = half_to_float(load_u16(p + 208));
    for (int i = 0; i < 16; i++) out->scale[i] = d * (float)(int8_t)p[192 + i];
    for (int i = 0; i < CHUNK_CODES; i++) {
        int     run = i / 32 % 4;   /* four runs of 32 weights share 64 bytes of low and 32 bytes of high bits */
        uint8_t low = p[i / 128 * 64 + run % 2 * 32 + i % 32], high = p[128 + i / 128 * 32 + i % 32];
        out->w.codes[i] = (int8_t)(((run / 2 ? low >> 4 : low & 15) | ((high >> (2 * run)) & 3) << 4) - 32);
    }
}

/* ---- Unpacking a row, AVX2 ---- */

#ifdef NOVA_X86

NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
NOVA_TARGET_AVX2 NOVA_INLINE __m128i wide_load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
NOVA_TARGET_AVX2 NOVA_INLINE void    wide_store_256(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }

NOVA_TARGET_AVX2 NOVA_INLINE float wide_half_avx2(const uint8_t *p) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u16(p))));
}

/* One half of each of n blocks, at most 8, to floats. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_halves_avx2(const uint8_t *p, size_t stride, uint32_t n, float *out) {
    if (n < 8) {
        for (uint32_t i = 0; i < n; i++) out[i] = wide_half_avx2(p + i * stride);
        return;
    }
#define HALF(i) (short)load_u16(p + i * stride)
    __m128i v = _mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), HALF(4), HALF(5), HALF(6), HALF(7));
#undef HALF
    _mm256_storeu_ps(out, _mm256_cvtph_ps(v));
}

/* The same for d and m behind it: out[0..7] = d, out[8..15] = m + centre * d. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_scales_avx2(const uint8_t *p, size_t stride, uint32_t n, float centre,
                                                   float *out) {
    wide_halves_avx2(p, stride, n, out);
    wide_halves_avx2(p + 2, stride, n, out + 8);
    for (uint32_t i = 0; i < n; i++) out[i + 8] += centre * out[i];
}

/* Bits `shift`.. of every byte that `mask` leaves. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_bits_avx2(__m256i v, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(v, shift), _mm256_set1_epi8((char)mask));
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_store_centred(int8_t *codes, __m256i v, int centre) {
    wide_store_256(codes, _mm256_sub_epi8(v, _mm256_set1_epi8((char)centre)));
}

/* As wide_codes_4 and wide_codes_5, before centring. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_codes_4_avx2(const uint8_t *p) {
    __m128i v    = wide_load_128(p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_codes_5_avx2(const uint8_t *p, uint32_t fifth) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit    = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i       own    = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)fifth), spread), bit);
    __m256i       set    = _mm256_cmpeq_epi8(own, bit);
    return _mm256_or_si256(wide_codes_4_avx2(p), _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

NOVA_TARGET_AVX2
static void wide_f16_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out->w.floats + i, _mm256_cvtph_ps(wide_load_128(p + 2 * i)));
    for (; i < n; i++) out->w.floats[i] = wide_half_avx2(p + 2 * i);
}

NOVA_TARGET_AVX2
static void wide_bf16_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        wide_store_256(out->w.floats + i, _mm256_slli_epi32(_mm256_cvtepu16_epi32(wide_load_128(p + 2 * i)), 16));
    for (; i < n; i++) out->w.floats[i] = bf16_to_float(load_u16(p + 2 * i));
}

NOVA_TARGET_AVX2
static void wide_q4_0_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_halves_avx2(p, 18, n / 32, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 18)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_4_avx2(p + 2), 8);
}

NOVA_TARGET_AVX2
static void wide_q4_1_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_scales_avx2(p, 20, n / 32, 8, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 20)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_4_avx2(p + 4), 8);
}

NOVA_TARGET_AVX2
static void wide_q5_0_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_halves_avx2(p, 22, n / 32, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 22)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_5_avx2(p + 6, load_u32(p + 2)), 16);
}

NOVA_TARGET_AVX2
static void wide_q5_1_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_scales_avx2(p, 24, n / 32, 16, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 24)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_5_avx2(p + 8, load_u32(p + 4)), 16);
}

NOVA_TARGET_AVX2
static void wide_q8_0_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_halves_avx2(p, 34, n / 32, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 34) wide_store_256(out->w.codes + 32 * b, wide_load_256(p + 2));
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_k_head_avx2(const uint8_t *p, float centre, float *scale) {
    uint64_t scales, minima;
    wide_k_scales(p + 4, &scales, &minima);
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scales)));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)minima)));
    s = _mm256_mul_ps(s, _mm256_set1_ps(wide_half_avx2(p)));
    m = _mm256_mul_ps(m, _mm256_set1_ps(wide_half_avx2(p + 2)));
    _mm256_storeu_ps(scale, s);
    _mm256_storeu_ps(scale + 8, _mm256_sub_ps(_mm256_mul_ps(_mm256_set1_ps(centre), s), m));
}

NOVA_TARGET_AVX2
static void wide_q4_k_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    wide_k_head_avx2(p, 8, out->scale);
    for (int i = 0; i < 4; i++) {
        __m256i v = wide_load_256(p + 16 + 32 * i);
        wide_store_centred(out->w.codes + 64 * i, wide_bits_avx2(v, 0, 15), 8);
        wide_store_centred(out->w.codes + 64 * i + 32, wide_bits_avx2(v, 4, 15), 8);
    }
}

NOVA_TARGET_AVX2
static void wide_q5_k_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    wide_k_head_avx2(p, 16, out->scale);
    __m256i high = wide_load_256(p + 16);
    for (int i = 0; i < 4; i++) {
        __m256i v = wide_load_256(p + 48 + 32 * i);
        __m256i fifth_0 = _mm256_slli_epi16(wide_bits_avx2(high, 0, 1), 4);
        __m256i fifth_1 = _mm256_slli_epi16(wide_bits_avx2(high, 1, 1), 4);
        wide_store_centred(out->w.codes + 64 * i, _mm256_or_si256(wide_bits_avx2(v, 0, 15), fifth_0), 16);
        wide_store_centred(out->w.codes + 64 * i + 32, _mm256_or_si256(wide_bits_avx2(v, 4, 15), fifth_1), 16);
        high = _mm256_srli_epi16(high, 2);
    }
}

NOVA_TARGET_AVX2
static void wide_q6_k_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    __m256  d = _mm256_set1_ps(wide_half_avx2(p + 208));
    __m128i s = wide_load_128(p + 192);
    _mm256_storeu_ps(out->scale, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)), d));
    _mm256_storeu_ps(out->scale + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(s, 8))), d));
    for (int i = 0; i < 2; i++) {
        int8_t *codes = out->w.codes + 128 * i;
        __m256i a = wide_load_256(p + 64 * i), b = wide_load_256(p + 64 * i + 32);
        __m256i high = wide_load_256(p + 128 + 32 * i);
        __m256i h0 = _mm256_slli_epi16(wide_bits_avx2(high, 0, 3), 4);
        __m256i h1 = _mm256_slli_epi16(wide_bits_avx2(high, 2, 3), 4);
        wide_store_centred(codes, _mm256_or_si256(wide_bits_avx2(a, 0, 15), h0), 32);
        wide_store_centred(codes + 32, _mm256_or_si256(wide_bits_avx2(b, 0, 15), h1), 32);
        wide_store_centred(codes + 64, _mm256_or_si256(wide_bits_avx2(a, 4, 15), wide_bits_avx2(high, 0, 0x30)), 32);
        wide_store_centred(codes + 96, _mm256_or_si256(wide_bits_avx2(b, 4, 15), wide_bits_avx2(high, 2, 0x30)), 32);
    }
}

#define WIDE_UNPACK(plain, fast) { plain, fast }
#else
#define WIDE_UNPACK(plain, fast) { plain, NULL }
#endif

static const wide_type WIDE_TYPES[] = {
    { TYPE_F32, WIDE_FLOAT, WIDE_UNPACK(wide_f32, wide_f32) },
    { TYPE_F16, WIDE_FLOAT, WIDE_UNPACK(wide_f16, wide_f16_avx2) },
    { TYPE_BF16, WIDE_FLOAT, WIDE_UNPACK(wide_bf16, wide_bf16_avx2) },
    { TYPE_Q4_0, WIDE_32, WIDE_UNPACK(wide_q4_0, wide_q4_0_avx2) },
    { TYPE_Q4_1, WIDE_32_OFFSET, WIDE_UNPACK(wide_q4_1, wide_q4_1_avx2) },
    { TYPE_Q5_0, WIDE_32, WIDE_UNPACK(wide_q5_0, wide_q5_0_avx2) },
    { TYPE_Q5_1, WIDE_32_OFFSET, WIDE_UNPACK(wide_q5_1, wide_q5_1_avx2) },
    { TYPE_Q8_0, WIDE_32_BYTE, WIDE_UNPACK(wide_q8_0, wide_q8_0_avx2) },
    { TYPE_Q4_K, WIDE_32_OFFSET, WIDE_UNPACK(wide_q4_k, wide_q4_k_avx2) },
    { TYPE_Q5_K, WIDE_32_OFFSET, WIDE_UNPACK(wide_q5_k, wide_q5_k_avx2) },
    { TYPE_Q6_K, WIDE_16, WIDE_UNPACK(wide_q6_k, wide_q6_k_avx2) },
};

/* The model refuses files with other types, so there is no error to tell. */
static const wide_type *wide_type_of(uint32_t type) {
    size_t i = 0;
    while (i + 1 < COUNT_OF(WIDE_TYPES) && WIDE_TYPES[i].type != type) i++;
    return &WIDE_TYPES[i];
}

/* Byte offset of weight k, the first of a block, in a row. */
static size_t wide_offset(const wide_type *t, uint32_t k) { return type_row_bytes(t->type, k); }

/* ---- What a level offers ---- */

#define WIDE_MAX_ROWS    32   /* of a strip */
#define WIDE_MAX_COLUMNS 12   /* of a tile */

/* Multiplies n weights of a strip's rows by a tile, into columns out[0], out[1], ...: rows 0 .. rows - 1 of the strip.
 * Sums go on from what is there, but for the `first` call. */
typedef void (*wide_kernel_fn)(const uint8_t *strip, const uint8_t *tile, uint32_t n, float *const *out, uint32_t rows,
                               bool first);

/* Unpacks n weights of as many rows as a strip has. */
typedef void (*wide_strip_fn)(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip);

/* How a level computes a kind. A fast level's strip of floats: [weight][row]. Of codes, for each 32 weights: a part, or
 * two: codes as [group of four weights][row][4], what sums start from, scales; then offsets, if the kind has any. */
typedef struct wide_method {
    uint32_t rows;            /* of a strip */
    uint32_t columns;         /* of a tile, at most */
    uint32_t strips;          /* of a panel: many, to read a tile from the L1 cache many times */
    uint32_t depth;           /* of a panel: a tile's depth fits the L1, a panel the L2 cache */
    uint32_t strip_bytes;     /* of a strip, for 32 weights of each row */
    wide_strip_fn         unpack;
    const wide_kernel_fn *kernels;   /* for 1 .. columns columns */
} wide_method;

/* Packed columns, for each 32 elements of a tile of n columns. Floats: [element][column]. Int8: [group of four]
 * [column][4], then [column] d, then [column] d * sum of codes. */
#define TILE_BLOCK 40   /* times n: bytes of an int8 block, and where d and d * sum lie in it */
#define TILE_D     32
#define TILE_DS    36

/* ---- Plain ---- */

#define PLAIN_ROWS 8

/* Strip: [chunk][row] as unpacked. */
static void wide_strip_plain(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    uint32_t    size = t->kind == WIDE_FLOAT ? CHUNK_FLOATS : CHUNK_CODES;
    wide_chunk *out  = (wide_chunk *)(void *)strip;
    for (uint32_t k = 0; k < n; k += size)
        for (uint32_t r = 0; r < PLAIN_ROWS; r++)
            t->unpack[0](rows[r] + wide_offset(t, k), (uint32_t)size_min(n - k, size), out++);
}

static float wide_dot_floats(const wide_chunk *w, const float *x, uint32_t n) {
    float    sum[8] = { 0 };
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++) sum[j] += w->w.floats[i + j] * x[i + j];
    for (; i < n; i++) sum[i % 8] += w->w.floats[i] * x[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

NOVA_INLINE int32_t wide_dot_int8(const int8_t *w, const int8_t *x, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += w[i] * x[i];
    return sum;
}

static float wide_dot_codes(const wide_chunk *w, const uint8_t *x, uint32_t n, wide_kind kind) {
    float sum = 0;
    for (uint32_t b = 0; b < n / 32; b++, x += TILE_BLOCK) {
        const int8_t *codes = w->w.codes + 32 * b, *q = (const int8_t *)x;
        float         d = load_f32(x + TILE_D), ds = load_f32(x + TILE_DS);
        if (kind == WIDE_16) {
            sum += w->scale[2 * b] * (float)wide_dot_int8(codes, q, 16) * d;
            sum += w->scale[2 * b + 1] * (float)wide_dot_int8(codes + 16, q + 16, 16) * d;
        } else {
            sum += w->scale[b] * (float)wide_dot_int8(codes, q, 32) * d;
        }
        if (kind == WIDE_32_OFFSET) sum += w->scale[b + 8] * ds;
    }
    return sum;
}

static void wide_multiply_plain(const uint8_t *strip, const uint8_t *tile, uint32_t n, float *out, uint32_t rows,
                                bool first, wide_kind kind) {
    uint32_t size = kind == WIDE_FLOAT ? CHUNK_FLOATS : CHUNK_CODES;
    size_t   step = kind == WIDE_FLOAT ? CHUNK_FLOATS * sizeof(float) : CHUNK_CODES / 32 * TILE_BLOCK;
    for (uint32_t r = 0; r < rows; r++) {
        const wide_chunk *w   = (const wide_chunk *)(const void *)strip + r;
        const uint8_t    *x   = tile;
        float             sum = first ? 0 : out[r];
        for (uint32_t k = 0; k < n; k += size, w += PLAIN_ROWS, x += step) {
            uint32_t m = (uint32_t)size_min(n - k, size);
            if (kind == WIDE_FLOAT) sum += wide_dot_floats(w, (const float *)(const void *)x, m);
            else sum += wide_dot_codes(w, x, m, kind);
        }
        out[r] = sum;
    }
}

#define PLAIN_KERNEL(name, kind)                                                                          \
    static void name##_1(const uint8_t *strip, const uint8_t *tile, uint32_t n, float *const *out, uint32_t rows, \
                         bool first) {                                                                    \
        wide_multiply_plain(strip, tile, n, out[0], rows, first, kind);                                   \
    }                                                                                                     \
    static const wide_kernel_fn name[] = { name##_1 };

PLAIN_KERNEL(wide_float_plain, WIDE_FLOAT)
PLAIN_KERNEL(wide_32_plain, WIDE_32)
PLAIN_KERNEL(wide_32_offset_plain, WIDE_32_OFFSET)
PLAIN_KERNEL(wide_16_plain, WIDE_16)

/* ---- Kernels for several columns ----
 *
 * A kernel is one inlined function, made for each number of columns: n_col is a constant there, the accumulators of the
 * columns below it live in registers, and the others are never touched. Columns are written out by EACH_..., because
 * compilers do not unroll loops at -O2. */

#ifdef NOVA_X86

#define EACH_6(X)  X(0) X(1) X(2) X(3) X(4) X(5)
#define EACH_8(X)  EACH_6(X) X(6) X(7)
#define EACH_12(X) EACH_8(X) X(8) X(9) X(10) X(11)

#define KERNEL_TAKES  const uint8_t *w, const uint8_t *x, uint32_t n, float *const *out, uint32_t rows, bool first
#define KERNEL_PASSES w, x, n, out, rows, first, n_col
#define KERNEL(name, columns, target, call)                                                            \
    target static void name##_##columns(KERNEL_TAKES) {                                                \
        const int n_col = columns;                                                                     \
        call;                                                                                          \
    }
#define KERNELS_1_TO_6(name, target, call)                                                             \
    KERNEL(name, 1, target, call) KERNEL(name, 2, target, call) KERNEL(name, 3, target, call)          \
    KERNEL(name, 4, target, call) KERNEL(name, 5, target, call) KERNEL(name, 6, target, call)
#define NAMES_1_TO_6(name) name##_1, name##_2, name##_3, name##_4, name##_5, name##_6
#define KERNELS_6(name, target, call)                                                                  \
    KERNELS_1_TO_6(name, target, call)                                                                 \
    static const wide_kernel_fn name[] = { NAMES_1_TO_6(name) };
#define KERNELS_12(name, target, call)                                                                 \
    KERNELS_1_TO_6(name, target, call)                                                                 \
    KERNEL(name, 7, target, call) KERNEL(name, 8, target, call) KERNEL(name, 9, target, call)          \
    KERNEL(name, 10, target, call) KERNEL(name, 11, target, call) KERNEL(name, 12, target, call)       \
    static const wide_kernel_fn name[] = {                                                             \
        NAMES_1_TO_6(name), name##_7, name##_8, name##_9, name##_10, name##_11, name##_12              \
    };

/* Compilers must not see through these: they would add in another order or load far ahead, and run out of registers. */
#if defined(__GNUC__) || defined(__clang__)
#define HOLD_SUM(v)     __asm__("" : "+v"(v))
#define HOLD_POINTER(p) __asm__("" : "+r"(p))
#else
#define HOLD_SUM(v)     (void)(v)
#define HOLD_POINTER(p) (void)(p)
#endif

/* Where part p of a block finds its elements: parts of 16 weights follow each other, parts of 32 share the block. */
#define PART_OF_X(x, p, groups, n_col) ((x) + ((groups) == 8 ? 0 : 4 * (groups) * (p) * (n_col)))

/* ---- AVX2: strips of 8 rows, 16 for floats; tiles of 6 columns ----
 *
 * Products are summed in 16 bits, two of every four weights in a lane. vpmaddubsw saturates beyond +-32767, but two
 * products of 0..255 by codes within -32..31 reach 16320 at most. Additions wrap, so only what a lane holds in the end
 * must fit: |x| <= 127 times a code, 16 products by codes within -16..15 or 8 by -32..31, make at most 32512. Codes of
 * a whole byte are split into 16 * high + low, two parts with scales of their own: high within -8..7, low 0..15, which
 * make at most 30480. */

NOVA_TARGET_AVX2 NOVA_INLINE __m256 wide_floats_256(const void *p) { return _mm256_loadu_ps((const float *)p); }

NOVA_TARGET_AVX2 NOVA_INLINE void wide_group_avx2(__m256i *sum, const uint8_t *w, const uint8_t *x, int n_col) {
    __m256i v = wide_load_256(w);
#define COLUMN(c)                                                              \
    if (c < n_col) {                                                           \
        __m256i four = _mm256_set1_epi32((int)load_u32(x + 4 * c));            \
        sum[c] = _mm256_add_epi16(sum[c], _mm256_maddubs_epi16(four, v));      \
        HOLD_SUM(sum[c]);                                                      \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += sum[column] * scale * d[column] */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_scale_avx2(__m256 *acc, const __m256i *sum, const uint8_t *scale,
                                                  const uint8_t *d, int n_col) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256        s    = wide_floats_256(scale);
#define COLUMN(c)                                                                            \
    if (c < n_col) {                                                                         \
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(sum[c], ones)), s);    \
        acc[c]   = _mm256_fmadd_ps(v, _mm256_set1_ps(load_f32(d + 4 * c)), acc[c]);          \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += w * x[column] */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_add_avx2(__m256 *acc, const uint8_t *w, const uint8_t *x, int n_col) {
    __m256 v = wide_floats_256(w);
#define COLUMN(c) if (c < n_col) acc[c] = _mm256_fmadd_ps(_mm256_set1_ps(load_f32(x + 4 * c)), v, acc[c]);
    EACH_6(COLUMN)
#undef COLUMN
}

/* The same with two registers of rows. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_add_16_avx2(__m256 *acc, const uint8_t *w, const uint8_t *x, int n_col) {
    __m256 v0 = wide_floats_256(w), v1 = wide_floats_256(w + 32);
#define COLUMN(c)                                                \
    if (c < n_col) {                                             \
        __m256 f = _mm256_set1_ps(load_f32(x + 4 * c));          \
        acc[2 * c]     = _mm256_fmadd_ps(f, v0, acc[2 * c]);     \
        acc[2 * c + 1] = _mm256_fmadd_ps(f, v1, acc[2 * c + 1]); \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* Lanes of the rows that are there. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_mask_avx2(uint32_t rows) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)rows), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

NOVA_TARGET_AVX2 NOVA_INLINE __m256 wide_begin_avx2(const float *out, uint32_t rows, bool first) {
    return first ? _mm256_setzero_ps() : _mm256_maskload_ps(out, wide_mask_avx2(rows));
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_end_avx2(float *out, uint32_t rows, __m256 acc) {
    if (rows >= 8) _mm256_storeu_ps(out, acc);
    else _mm256_maskstore_ps(out, wide_mask_avx2(rows), acc);
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_codes_avx2(KERNEL_TAKES, int n_col, int parts, int groups, bool offsets) {
    __m256 acc[6];
#define COLUMN(c) if (c < n_col) acc[c] = wide_begin_avx2(out[c], rows, first);
    EACH_6(COLUMN)
#undef COLUMN
    for (uint32_t b = 0; b < n / 32; b++, x += TILE_BLOCK * n_col) {
        for (int p = 0; p < parts; p++, w += 32 * groups + 64) {
            const uint8_t *q = PART_OF_X(x, p, groups, n_col);
            __m256i        sum[6], start = wide_load_256(w + 32 * groups);
            HOLD_POINTER(q);
#define COLUMN(c) if (c < n_col) sum[c] = start;
            EACH_6(COLUMN)
#undef COLUMN
#define GROUP(g) if (g < groups) wide_group_avx2(sum, w + 32 * g, q + 4 * g * n_col, n_col);
            EACH_8(GROUP)
#undef GROUP
            wide_scale_avx2(acc, sum, w + 32 * groups + 32, x + TILE_D * n_col, n_col);
        }
        if (offsets) {
            wide_add_avx2(acc, w, x + TILE_DS * n_col, n_col);
            w += 32;
        }
    }
#define COLUMN(c) if (c < n_col) wide_end_avx2(out[c], rows, acc[c]);
    EACH_6(COLUMN)
#undef COLUMN
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_floats_avx2(KERNEL_TAKES, int n_col) {
    uint32_t low = rows < 8 ? rows : 8, high = rows - low;
    __m256   acc[12];
#define COLUMN(c)                                                        \
    if (c < n_col) {                                                     \
        acc[2 * c]     = wide_begin_avx2(out[c], low, first);            \
        acc[2 * c + 1] = wide_begin_avx2(out[c] + 8, high, first);       \
    }
    EACH_6(COLUMN)
#undef COLUMN
    for (uint32_t k = 0; k < n; k++, w += 64, x += 4 * n_col) wide_add_16_avx2(acc, w, x, n_col);
#define COLUMN(c)                                                        \
    if (c < n_col) {                                                     \
        wide_end_avx2(out[c], low, acc[2 * c]);                          \
        wide_end_avx2(out[c] + 8, high, acc[2 * c + 1]);                 \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

KERNELS_6(wide_32_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 1, 8, false))
KERNELS_6(wide_32_offset_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 1, 8, true))
KERNELS_6(wide_32_byte_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 2, 8, false))
KERNELS_6(wide_16_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 2, 4, false))
KERNELS_6(wide_float_avx2, NOVA_TARGET_AVX2, wide_floats_avx2(KERNEL_PASSES))

/* Four registers of 8 rows: bytes 0..3 of each, bytes 4..7, ... */
typedef struct wide_turned_avx2 { __m256i v0, v1, v2, v3; } wide_turned_avx2;

/* Turns 16 bytes of each of 8 rows. */
NOVA_TARGET_AVX2 NOVA_INLINE wide_turned_avx2 wide_turn_avx2(const void *rows, size_t stride) {
    const uint8_t *p = (const uint8_t *)rows;
#define ROW(r)  wide_load_128(p + (r) * stride)
#define ROWS(r) _mm256_inserti128_si256(_mm256_castsi128_si256(ROW(r)), ROW(r + 4), 1)
    __m256i r0 = ROWS(0), r1 = ROWS(1), r2 = ROWS(2), r3 = ROWS(3);
#undef ROWS
#undef ROW
    __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpacklo_epi32(r2, r3);
    __m256i c = _mm256_unpackhi_epi32(r0, r1), d = _mm256_unpackhi_epi32(r2, r3);
    wide_turned_avx2 t;
    t.v0 = _mm256_unpacklo_epi64(a, b);
    t.v1 = _mm256_unpackhi_epi64(a, b);
    t.v2 = _mm256_unpacklo_epi64(c, d);
    t.v3 = _mm256_unpackhi_epi64(c, d);
    return t;
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_store_turned_avx2(uint8_t *out, size_t stride, wide_turned_avx2 t) {
    wide_store_256(out, t.v0);
    wide_store_256(out + stride, t.v1);
    wide_store_256(out + 2 * stride, t.v2);
    wide_store_256(out + 3 * stride, t.v3);
}

/* What a part takes of a code: all, the high or the low half of a byte. */
enum { TAKE_ALL, TAKE_HIGH, TAKE_LOW };

NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_take_avx2(__m256i v, int take) {
    const __m256i sign = _mm256_set1_epi8(8);
    if (take == TAKE_LOW) return wide_bits_avx2(v, 0, 15);
    return take == TAKE_HIGH ? _mm256_sub_epi8(_mm256_xor_si256(wide_bits_avx2(v, 4, 15), sign), sign) : v;
}

/* A part of 8 rows: codes, what sums start from (-128 times the codes' sum, by lanes), scales. Returns its end. */
NOVA_TARGET_AVX2
static uint8_t *wide_part_avx2(const int8_t *codes, uint32_t groups, int take, const float *scale, uint8_t *out) {
    const __m256i x128 = _mm256_set1_epi8(-128);
    __m256i       sum  = _mm256_setzero_si256();
    for (uint32_t g = 0; g < groups; g += 4, codes += 16, out += 128) {
        wide_turned_avx2 t = wide_turn_avx2(codes, sizeof(wide_chunk));
        t.v0 = wide_take_avx2(t.v0, take);
        t.v1 = wide_take_avx2(t.v1, take);
        t.v2 = wide_take_avx2(t.v2, take);
        t.v3 = wide_take_avx2(t.v3, take);
        wide_store_turned_avx2(out, 32, t);
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v0));
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v1));
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v2));
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v3));
    }
    wide_store_256(out, sum);
    __m256 factor = _mm256_set1_ps(take == TAKE_HIGH ? 16.0f : 1.0f);
    _mm256_storeu_ps((float *)(void *)(out + 32), _mm256_mul_ps(wide_floats_256(scale), factor));
    return out + 64;
}

NOVA_TARGET_AVX2
static void wide_strip_codes_avx2(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[8];
    float      scale[16 * 8];
    for (uint32_t k = 0; k < n; k += CHUNK_CODES) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_CODES);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 8; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (int i = 0; i < 16; i += 4)
            wide_store_turned_avx2((uint8_t *)&scale[8 * i], 32, wide_turn_avx2(chunk->scale + i, sizeof *chunk));
        for (uint32_t b = 0; b < size / 32; b++) {
            const int8_t *codes = chunk->w.codes + 32 * b;
            if (t->kind == WIDE_16) {
                strip = wide_part_avx2(codes, 4, TAKE_ALL, scale + 8 * (2 * b), strip);
                strip = wide_part_avx2(codes + 16, 4, TAKE_ALL, scale + 8 * (2 * b + 1), strip);
            } else if (t->kind == WIDE_32_BYTE) {
                strip = wide_part_avx2(codes, 8, TAKE_HIGH, scale + 8 * b, strip);
                strip = wide_part_avx2(codes, 8, TAKE_LOW, scale + 8 * b, strip);
            } else {
                strip = wide_part_avx2(codes, 8, TAKE_ALL, scale + 8 * b, strip);
            }
            if (t->kind != WIDE_32_OFFSET) continue;
            memcpy(strip, scale + 8 * (b + 8), 32);
            strip += 32;
        }
    }
}

NOVA_TARGET_AVX2
static void wide_strip_floats_avx2(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[16];
    for (uint32_t k = 0; k < n; k += CHUNK_FLOATS) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_FLOATS);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 16; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (uint32_t i = 0; i < size; i += 4, strip += 256) {
            wide_store_turned_avx2(strip, 64, wide_turn_avx2(chunk[0].w.floats + i, sizeof(wide_chunk)));
            wide_store_turned_avx2(strip + 32, 64, wide_turn_avx2(chunk[8].w.floats + i, sizeof(wide_chunk)));
        }
    }
}

/* ---- AVX-512: strips of 32 rows in two registers; tiles of 6 columns, 12 for floats ----
 *
 * Integer sums start from the bits of MAGIC. A sum s within +-2^22 then reads as the float MAGIC + s, and
 * (MAGIC + s) * scale - MAGIC * scale takes one multiply-add, where converting s and multiplying takes two operations.
 * It is s * scale, rounded once: MAGIC * scale is exact, because MAGIC has 2 significant bits and a scale at most 19 (a
 * half's 11 times an integer of 8). s is at most 32 * 128 * 127 < 2^19; on the way to it integers wrap. */
#define MAGIC      12582912.0f   /* 1.5 * 2^23 */
#define MAGIC_BITS 0x4b400000

NOVA_TARGET_AVX512 NOVA_INLINE __m512i wide_load_512(const void *p) { return _mm512_loadu_si512(p); }
NOVA_TARGET_AVX512 NOVA_INLINE void    wide_store_512(void *p, __m512i v) { _mm512_storeu_si512(p, v); }

NOVA_TARGET_AVX512 NOVA_INLINE void wide_group_avx512(__m512i *sum, const uint8_t *w, const uint8_t *x, int n_col) {
    __m512i w0 = wide_load_512(w), w1 = wide_load_512(w + 64);
#define COLUMN(c)                                                        \
    if (c < n_col) {                                                     \
        __m512i v = _mm512_set1_epi32((int)load_u32(x + 4 * c));         \
        sum[2 * c]     = _mm512_dpbusd_epi32(sum[2 * c], v, w0);         \
        sum[2 * c + 1] = _mm512_dpbusd_epi32(sum[2 * c + 1], v, w1);     \
        HOLD_SUM(sum[2 * c]);                                            \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += sum[column] * scale * d[column] */
NOVA_TARGET_AVX512 NOVA_INLINE void wide_scale_avx512(__m512 *acc, const __m512i *sum, const uint8_t *scale,
                                                      const uint8_t *d, int n_col) {
    const __m512 magic = _mm512_set1_ps(-MAGIC);
    __m512       s0 = _mm512_loadu_ps(scale), s1 = _mm512_loadu_ps(scale + 64);
    __m512       t0 = _mm512_mul_ps(s0, magic), t1 = _mm512_mul_ps(s1, magic);
#define COLUMN(c)                                                                     \
    if (c < n_col) {                                                                  \
        __m512 v  = _mm512_set1_ps(load_f32(d + 4 * c));                              \
        __m512 p0 = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[2 * c]), s0, t0);         \
        __m512 p1 = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[2 * c + 1]), s1, t1);     \
        acc[2 * c]     = _mm512_fmadd_ps(p0, v, acc[2 * c]);                          \
        acc[2 * c + 1] = _mm512_fmadd_ps(p1, v, acc[2 * c + 1]);                      \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += w * x[column] */
NOVA_TARGET_AVX512 NOVA_INLINE void wide_add_avx512(__m512 *acc, const uint8_t *w, const uint8_t *x, int n_col) {
    __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 64);
#define COLUMN(c)                                                \
    if (c < n_col) {                                             \
        __m512 v = _mm512_set1_ps(load_f32(x + 4 * c));          \
        acc[2 * c]     = _mm512_fmadd_ps(v, w0, acc[2 * c]);     \
        acc[2 * c + 1] = _mm512_fmadd_ps(v, w1, acc[2 * c + 1]); \
    }
    EACH_12(COLUMN)
#undef COLUMN
}

/* Bits of the rows that are there. */
NOVA_INLINE uint32_t wide_mask_avx512(uint32_t rows) { return rows >= 32 ? 0xffffffffu : (1u << rows) - 1; }

NOVA_TARGET_AVX512 NOVA_INLINE void wide_begin_avx512(__m512 *acc, float *const *out, uint32_t rows, bool first,
                                                      int n_col) {
    uint32_t mask = first ? 0 : wide_mask_avx512(rows);
#define COLUMN(c)                                                                            \
    if (c < n_col) {                                                                         \
        acc[2 * c]     = _mm512_maskz_loadu_ps((__mmask16)mask, out[c]);                     \
        acc[2 * c + 1] = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), out[c] + 16);        \
    }
    EACH_12(COLUMN)
#undef COLUMN
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_end_avx512(const __m512 *acc, float *const *out, uint32_t rows, int n_col) {
    uint32_t mask = wide_mask_avx512(rows);
#define COLUMN(c)                                                                            \
    if (c < n_col) {                                                                         \
        _mm512_mask_storeu_ps(out[c], (__mmask16)mask, acc[2 * c]);                          \
        _mm512_mask_storeu_ps(out[c] + 16, (__mmask16)(mask >> 16), acc[2 * c + 1]);         \
    }
    EACH_12(COLUMN)
#undef COLUMN
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_codes_avx512(KERNEL_TAKES, int n_col, int parts, int groups, bool offsets) {
    __m512 acc[12];
    wide_begin_avx512(acc, out, rows, first, n_col);
    for (uint32_t b = 0; b < n / 32; b++, x += TILE_BLOCK * n_col) {
        for (int p = 0; p < parts; p++, w += 128 * groups + 256) {
            const uint8_t *q = PART_OF_X(x, p, groups, n_col), *start = w + 128 * groups;
            __m512i        sum[12], s0 = wide_load_512(start), s1 = wide_load_512(start + 64);
#define COLUMN(c) if (c < n_col) sum[2 * c] = s0, sum[2 * c + 1] = s1;
            EACH_6(COLUMN)
#undef COLUMN
#define GROUP(g) if (g < groups) wide_group_avx512(sum, w + 128 * g, q + 4 * g * n_col, n_col);
            EACH_8(GROUP)
#undef GROUP
            wide_scale_avx512(acc, sum, start + 128, x + TILE_D * n_col, n_col);
        }
        if (offsets) {
            wide_add_avx512(acc, w, x + TILE_DS * n_col, n_col);
            w += 128;
        }
    }
    wide_end_avx512(acc, out, rows, n_col);
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_floats_avx512(KERNEL_TAKES, int n_col) {
    __m512 acc[24];
    wide_begin_avx512(acc, out, rows, first, n_col);
    for (uint32_t k = 0; k < n; k++, w += 128, x += 4 * n_col) wide_add_avx512(acc, w, x, n_col);
    wide_end_avx512(acc, out, rows, n_col);
}

KERNELS_6(wide_32_avx512, NOVA_TARGET_AVX512, wide_codes_avx512(KERNEL_PASSES, 1, 8, false))
KERNELS_6(wide_32_offset_avx512, NOVA_TARGET_AVX512, wide_codes_avx512(KERNEL_PASSES, 1, 8, true))
KERNELS_6(wide_16_avx512, NOVA_TARGET_AVX512, wide_codes_avx512(KERNEL_PASSES, 2, 4, false))
KERNELS_12(wide_float_avx512, NOVA_TARGET_AVX512, wide_floats_avx512(KERNEL_PASSES))

typedef struct wide_turned_avx512 { __m512i v0, v1, v2, v3; } wide_turned_avx512;

/* Turns 16 bytes of each of 16 rows: bytes 0..3 of each, bytes 4..7, ... */
NOVA_TARGET_AVX512 NOVA_INLINE wide_turned_avx512 wide_turn_avx512(const void *rows, size_t stride) {
    const uint8_t *p = (const uint8_t *)rows;
#define ROW(r)     wide_load_128(p + (r) * stride)
#define ROWS(r)                                                                                              \
    _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(ROW(r)), ROW(r + 4), 1), \
                                          ROW(r + 8), 2), ROW(r + 12), 3)
    __m512i r0 = ROWS(0), r1 = ROWS(1), r2 = ROWS(2), r3 = ROWS(3);
#undef ROWS
#undef ROW
    __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpacklo_epi32(r2, r3);
    __m512i c = _mm512_unpackhi_epi32(r0, r1), d = _mm512_unpackhi_epi32(r2, r3);
    wide_turned_avx512 t;
    t.v0 = _mm512_unpacklo_epi64(a, b);
    t.v1 = _mm512_unpackhi_epi64(a, b);
    t.v2 = _mm512_unpacklo_epi64(c, d);
    t.v3 = _mm512_unpackhi_epi64(c, d);
    return t;
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_store_turned_avx512(uint8_t *out, size_t stride, wide_turned_avx512 t) {
    wide_store_512(out, t.v0);
    wide_store_512(out + stride, t.v1);
    wide_store_512(out + 2 * stride, t.v2);
    wide_store_512(out + 3 * stride, t.v3);
}

/* A part of 16 rows, half of a strip's: codes, what sums start from, scales. Returns its end. */
NOVA_TARGET_AVX512
static uint8_t *wide_part_avx512(const int8_t *codes, uint32_t groups, const float *scale, uint8_t *out) {
    const __m512i x128 = _mm512_set1_epi8(-128);
    __m512i       sum  = _mm512_setzero_si512();
    for (uint32_t g = 0; g < groups; g += 4, codes += 16, out += 512) {
        wide_turned_avx512 t = wide_turn_avx512(codes, sizeof(wide_chunk));
        wide_store_turned_avx512(out, 128, t);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v0);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v1);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v2);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v3);
    }
    wide_store_512(out, _mm512_sub_epi32(_mm512_set1_epi32(MAGIC_BITS), sum));
    wide_store_512(out + 128, wide_load_512(scale));
    return out + 256;
}

NOVA_TARGET_AVX512
static void wide_half_strip_avx512(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[16];
    float      scale[16 * 16];
    for (uint32_t k = 0; k < n; k += CHUNK_CODES) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_CODES);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 16; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (int i = 0; i < 16; i += 4)
            wide_store_turned_avx512((uint8_t *)&scale[16 * i], 64, wide_turn_avx512(chunk->scale + i, sizeof *chunk));
        for (uint32_t b = 0; b < size / 32; b++) {
            const int8_t *codes = chunk->w.codes + 32 * b;
            if (t->kind == WIDE_16) {
                strip = wide_part_avx512(codes, 4, scale + 16 * (2 * b), strip);
                strip = wide_part_avx512(codes + 16, 4, scale + 16 * (2 * b + 1), strip);
            } else {
                strip = wide_part_avx512(codes, 8, scale + 16 * b, strip);
            }
            if (t->kind != WIDE_32_OFFSET) continue;
            memcpy(strip, scale + 16 * (b + 8), 64);
            strip += 128;
        }
    }
}

static void wide_strip_codes_avx512(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_half_strip_avx512(t, rows, n, strip);
    wide_half_strip_avx512(t, rows + 16, n, strip + 64);
}

NOVA_TARGET_AVX512
static void wide_strip_floats_avx512(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[32];
    for (uint32_t k = 0; k < n; k += CHUNK_FLOATS) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_FLOATS);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 32; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (uint32_t i = 0; i < size; i += 4, strip += 512) {
            wide_store_turned_avx512(strip, 128, wide_turn_avx512(chunk[0].w.floats + i, sizeof(wide_chunk)));
            wide_store_turned_avx512(strip + 64, 128, wide_turn_avx512(chunk[16].w.floats + i, sizeof(wide_chunk)));
        }
    }
}

#endif

/* ---- The table of levels and kinds ---- */

#define FLOAT_BYTES(rows)                        ((rows) * 32 * 4)
#define CODE_BYTES(rows, parts, groups, offsets) ((rows) * ((parts) * ((groups) * 4 + 8) + (offsets) * 4))

static const wide_method WIDE_METHODS[][WIDE_KINDS] = {
    {   /* rows, columns, strips, depth, bytes of 32 weights */
        { 8, 1, 1, 512, 8 * sizeof(wide_chunk) / 2, wide_strip_plain, wide_float_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_32_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_32_offset_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_32_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_16_plain },
    },
#ifdef NOVA_X86
    {
        { 16, 6, 4, 512, FLOAT_BYTES(16), wide_strip_floats_avx2, wide_float_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 1, 8, 0), wide_strip_codes_avx2, wide_32_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 1, 8, 1), wide_strip_codes_avx2, wide_32_offset_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 2, 8, 0), wide_strip_codes_avx2, wide_32_byte_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 2, 4, 0), wide_strip_codes_avx2, wide_16_avx2 },
    },
    {
        { 32, 12, 4, 1024, FLOAT_BYTES(32), wide_strip_floats_avx512, wide_float_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 1, 8, 0), wide_strip_codes_avx512, wide_32_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 1, 8, 1), wide_strip_codes_avx512, wide_32_offset_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 1, 8, 0), wide_strip_codes_avx512, wide_32_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 2, 4, 0), wide_strip_codes_avx512, wide_16_avx512 },
    },
#endif
};

static const wide_method *wide_method_of(cpu_level level, wide_kind kind) {
    return &WIDE_METHODS[size_min((size_t)level, COUNT_OF(WIDE_METHODS) - 1)][kind];
}

/* ---- Packing columns ---- */

static uint32_t wide_form(uint32_t type) {
    return wide_type_of(type)->kind == WIDE_FLOAT ? FORM_WIDE_FLOAT : FORM_WIDE_INT8;
}

/* All kinds of a form have tiles of the same width. */
static uint32_t wide_columns(cpu_level level, uint32_t form) {
    return wide_method_of(level, form == FORM_WIDE_FLOAT ? WIDE_FLOAT : WIDE_32)->columns;
}

static uint32_t wide_tiles(cpu_level level, uint32_t form, size_t n_col) {
    uint32_t columns = wide_columns(level, form);
    return (uint32_t)((n_col + columns - 1) / columns);
}

/* First column of a tile. Tiles are as even as can be: a narrow one would leave the processor waiting for sums. */
static size_t wide_tile_begin(uint32_t tile, uint32_t tiles, size_t n_col) {
    return tiles ? (size_t)((uint64_t)n_col * tile / tiles) : 0;
}

static size_t wide_column_bytes(uint32_t form, size_t n_in) {
    return form == FORM_WIDE_FLOAT ? n_in * sizeof(float) : n_in / 32 * TILE_BLOCK;
}

static size_t wide_input_bytes(cpu_level level, uint32_t form, size_t n_in, size_t n_col) {
    (void)level;
    size_t bytes;
    if (n_in > SIZE_MAX / 8 || !size_mul(wide_column_bytes(form, n_in), n_col, &bytes) || bytes > SIZE_MAX - 64)
        return SIZE_MAX / 64 * 64;   /* which nobody can allocate */
    return size_align(bytes, 64);
}

/* Elements k .. n_in - 1 of n_col columns x[0], x[1], ... */
static void wide_pack_floats_plain(const float *const *x, uint32_t n_col, size_t k, size_t n_in, uint8_t *out) {
    for (out += 4 * n_col * k; k < n_in; k++)
        for (uint32_t c = 0; c < n_col; c++, out += 4) memcpy(out, &x[c][k], 4);
}

static void wide_pack_int8_plain(const float *x, size_t n_in, uint8_t *out) {
    for (size_t k = 0; k < n_in; k += 32, out += TILE_BLOCK) {
        int8_t  q[32];
        float   d;
        int32_t sum = 0;
        input_quantise(CPU_PLAIN, x + k, 32, q, &d);
        for (int i = 0; i < 32; i++) sum += q[i];
        float ds = d * (float)sum;
        memcpy(out, q, 32);
        memcpy(out + TILE_D, &d, 4);
        memcpy(out + TILE_DS, &ds, 4);
    }
}

#ifdef NOVA_X86

/* Four elements of four columns from c on. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_pack_4x4(const float *const *x, uint32_t c, uint32_t n_col, size_t k,
                                                uint8_t *out) {
    __m128 a = _mm_loadu_ps(x[c] + k), b = _mm_loadu_ps(x[c + 1] + k);
    __m128 d = _mm_loadu_ps(x[c + 2] + k), e = _mm_loadu_ps(x[c + 3] + k);
    _MM_TRANSPOSE4_PS(a, b, d, e);
    float *p = (float *)(void *)out + k * n_col + c;
    _mm_storeu_ps(p, a);
    _mm_storeu_ps(p + n_col, b);
    _mm_storeu_ps(p + 2 * n_col, d);
    _mm_storeu_ps(p + 3 * n_col, e);
}

NOVA_TARGET_AVX2
static void wide_pack_floats_avx2(const float *const *x, uint32_t n_col, size_t n_in, uint8_t *out) {
    size_t k = 0;
    if (n_col >= 4)
        for (; k + 4 <= n_in; k += 4) {
            for (uint32_t c = 0; c + 4 <= n_col; c += 4) wide_pack_4x4(x, c, n_col, k, out);
            if (n_col % 4) wide_pack_4x4(x, n_col - 4, n_col, k, out);   /* some of them once more */
        }
    wide_pack_floats_plain(x, n_col, k, n_in, out);
}

/* One block of up to 8 columns, q[column], turned to groups of four by columns. With four columns or more, whole
 * registers are stored: what they write behind their n_col columns is overwritten next; the last one is cut. */
NOVA_TARGET_AVX2
static void wide_pack_block_avx2(const int8_t *q, __m256i d, uint32_t n_col, uint8_t *out) {
    const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi8(1), mask = wide_mask_avx2(n_col);
    __m256i       sum = _mm256_setzero_si256();
#define STORE(v)                                                               \
    if (n_col >= 4) wide_store_256(out, v);                                    \
    else _mm256_maskstore_epi32((int *)(void *)out, mask, v);                  \
    out += 4 * n_col;
#define GROUP(v)                                                               \
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, v));                \
    STORE(_mm256_xor_si256(v, flip))
    for (int half = 0; half < 2; half++) {
        wide_turned_avx2 t = wide_turn_avx2(q + 16 * half, CHUNK_CODES);
        GROUP(t.v0)
        GROUP(t.v1)
        GROUP(t.v2)
        GROUP(t.v3)
    }
    STORE(d)
#undef GROUP
#undef STORE
    __m256 sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
    _mm256_maskstore_ps((float *)(void *)out, mask, _mm256_mul_ps(_mm256_castsi256_ps(d), sums));
}

NOVA_TARGET_AVX2
static void wide_pack_int8_avx2(cpu_level level, const float *const *x, uint32_t n_col, size_t n_in, uint8_t *out) {
    int8_t q[8][CHUNK_CODES];
    float  d[8][CHUNK_CODES / 32], by_block[CHUNK_CODES / 32][8];
    memset(q, 0, sizeof q);
    memset(d, 0, sizeof d);
    for (size_t k = 0; k < n_in; k += CHUNK_CODES) {
        size_t size = size_min(n_in - k, CHUNK_CODES);
        for (uint32_t c = 0; c < n_col; c++) input_quantise(level, x[c] + k, size, q[c], d[c]);
        wide_store_turned_avx2((uint8_t *)by_block[0], sizeof by_block[0], wide_turn_avx2(d[0], sizeof d[0]));
        wide_store_turned_avx2((uint8_t *)by_block[4], sizeof by_block[0], wide_turn_avx2(d[0] + 4, sizeof d[0]));
        for (size_t b = 0; b < size / 32; b++, out += TILE_BLOCK * n_col)
            wide_pack_block_avx2(q[0] + 32 * b, wide_load_256(by_block[b]), n_col, out);
    }
}

#endif

static void wide_pack(cpu_level level, uint32_t form, const float *const *x, uint32_t n_col, size_t n_in,
                      uint8_t *out) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        if (form == FORM_WIDE_FLOAT) wide_pack_floats_avx2(x, n_col, n_in, out);
        else wide_pack_int8_avx2(level, x, n_col, n_in, out);
        return;
    }
#endif
    (void)level;
    if (form == FORM_WIDE_FLOAT) wide_pack_floats_plain(x, n_col, 0, n_in, out);
    else wide_pack_int8_plain(x[0], n_in, out);
}

static void wide_prepare(cpu_level level, uint32_t form, const float *x, size_t ld_x, const uint32_t *columns,
                         size_t n_in, size_t n_col, uint32_t tile_begin, uint32_t tile_end, void *out) {
    uint32_t tiles = wide_tiles(level, form, n_col);
    for (uint32_t t = tile_begin; t < tile_end; t++) {
        const float *from[WIDE_MAX_COLUMNS];
        size_t       begin = wide_tile_begin(t, tiles, n_col);
        uint32_t     n     = (uint32_t)(wide_tile_begin(t + 1, tiles, n_col) - begin);
        uint8_t     *tile  = (uint8_t *)out + begin * wide_column_bytes(form, n_in);
        for (uint32_t c = 0; c < n; c++) from[c] = x + (columns ? columns[begin + c] : begin + c) * ld_x;
        wide_pack(level, form, from, n, n_in, tile);
    }
}

/* ---- Multiplying ---- */

/* Of the panels of rows with n_in weights: a short row needs less memory. */
static uint32_t wide_depth(const wide_method *m, size_t n_in) {
    return n_in < m->depth ? (uint32_t)size_align(n_in, CHUNK_CODES) : m->depth;
}

static size_t wide_scratch_bytes(cpu_level level, uint32_t type, size_t n_in) {
    const wide_method *m = wide_method_of(level, wide_type_of(type)->kind);
    return size_align((size_t)m->strips * (wide_depth(m, n_in) / 32) * m->strip_bytes, 64);
}

static uint32_t wide_panel_rows(cpu_level level, uint32_t type, size_t n_in) {
    (void)n_in;
    return wide_method_of(level, wide_type_of(type)->kind)->rows;
}

/* A matmul in progress: what does not change, and the panel. */
typedef struct wide_job {
    const wide_type   *t;
    const wide_method *m;
    const weight      *w;
    const uint8_t     *input;
    size_t             n_col;
    const uint32_t    *columns;
    float             *out;
    size_t             ld_out;
    uint8_t           *panel;
    size_t             strip_bytes;
    uint32_t           begin, end;   /* rows of the panel */
    uint32_t           k, n;         /* its n weights from k on */
} wide_job;

/* A strip without enough rows repeats the last one. */
static void wide_unpack_panel(const wide_job *j) {
    uint8_t *strip = j->panel;
    for (size_t r = j->begin; r < j->end; r += j->m->rows, strip += j->strip_bytes) {
        const uint8_t *rows[WIDE_MAX_ROWS];
        for (uint32_t i = 0; i < j->m->rows; i++)
            rows[i] = j->w->data + size_min(r + i, j->end - 1) * j->w->row_bytes + wide_offset(j->t, j->k);
        j->m->unpack(j->t, rows, j->n, strip);
    }
}

/* The panel times all columns. */
static void wide_multiply_panel(const wide_job *j) {
    uint32_t form = wide_form(j->w->type), tiles = (uint32_t)((j->n_col + j->m->columns - 1) / j->m->columns);
    size_t   column = wide_column_bytes(form, j->w->n_in), before = wide_column_bytes(form, j->k);
    for (uint32_t t = 0; t < tiles; t++) {
        size_t         c     = wide_tile_begin(t, tiles, j->n_col), n_col = wide_tile_begin(t + 1, tiles, j->n_col) - c;
        const uint8_t *tile  = j->input + c * column + n_col * before, *strip = j->panel;
        for (size_t r = j->begin; r < j->end; r += j->m->rows, strip += j->strip_bytes) {
            float *out[WIDE_MAX_COLUMNS];
            for (size_t i = 0; i < n_col; i++)
                out[i] = j->out + (j->columns ? j->columns[c + i] : c + i) * j->ld_out + r;
            j->m->kernels[n_col - 1](strip, tile, j->n, out, (uint32_t)size_min(j->m->rows, j->end - r), j->k == 0);
        }
    }
}

static void wide_matmul(cpu_level level, const weight *w, const void *input, size_t n_col, const uint32_t *columns,
                        uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out, void *scratch) {
    wide_job j;
    j.t       = wide_type_of(w->type);
    j.m       = wide_method_of(level, j.t->kind);
    j.w       = w;
    j.input   = (const uint8_t *)input;
    j.n_col   = n_col;
    j.columns = columns;
    j.out     = out;
    j.ld_out  = ld_out;
    j.panel   = (uint8_t *)scratch;
    uint32_t depth = wide_depth(j.m, w->n_in), panel_rows = j.m->strips * j.m->rows;
    j.strip_bytes = (size_t)(depth / 32) * j.m->strip_bytes;
    for (j.begin = row_begin; j.begin < row_end; j.begin = j.end) {
        j.end = j.begin + (uint32_t)size_min(row_end - j.begin, panel_rows);
        for (j.k = 0; j.k < w->n_in; j.k += j.n) {
            j.n = (uint32_t)size_min(w->n_in - j.k, depth);
            wide_unpack_panel(&j);
            wide_multiply_panel(&j);
        }
    }
}

#undef EACH_6
#undef EACH_8
#undef EACH_12
#undef KERNEL_TAKES
#undef KERNEL_PASSES
#undef KERNEL
#undef KERNELS_1_TO_6
#undef KERNELS_6
#undef KERNELS_12
#undef NAMES_1_TO_6
#undef PLAIN_KERNEL
#undef PART_OF_X
#undef HOLD_SUM
#undef HOLD_POINTER
#undef MAGIC
#undef MAGIC_BITS

/* ==== src/cpu_vector.h ======================================================================================== */

/* The CPU's work on vectors: norms, activations, rotary positions, sums. Lengths are arbitrary; nothing needs alignment
 * and no result depends on it. The plain and fast versions agree within a few units in the last place. */
#ifndef NOVA_CPU_VECTOR_H
#define NOVA_CPU_VECTOR_H


typedef enum norm_kind { NORM_RMS = 0, NORM_LAYER = 1 } norm_kind;

/* y = normalised x times w (NULL: 1) plus b (NULL: 0). Sums are kept in double or pairwise, whatever the length.
 * RMS: x / sqrt(mean(x^2) + eps). Layer: (x - mean) / sqrt(variance + eps). y may be x. */
static void vector_norm(cpu_level level, norm_kind kind, float *y, const float *x, const float *w, const float *b,
                        size_t n, float eps);

/* The activation of a feed-forward layer; source of the names: the models' papers. */
typedef enum activation {
    ACT_NONE = 0,
    ACT_SILU,       /* x * sigmoid(x) */
    ACT_GELU,       /* tanh form, as Gemma and GPT-2 */
    ACT_GELU_ERF,
    ACT_RELU,
    ACT_RELU_SQR    /* max(x, 0)^2 */
} activation;

/* y = act(x), in place allowed. exp and tanh are within 2 ulp of the exact ones, also for huge and tiny x; NaN stays
 * NaN; of -infinity only ACT_NONE makes something other than 0. */
static void vector_act(cpu_level level, activation act, float *y, const float *x, size_t n);
/* y = act(gate) * up */
static void vector_glu(cpu_level level, activation act, float *y, const float *gate, const float *up, size_t n);

static void  vector_add(cpu_level level, float *y, const float *x, size_t n);              /* y += x */
NOVA_UNUSED static void  vector_scale(cpu_level level, float *y, float scale, size_t n);               /* y *= scale */
NOVA_UNUSED static float vector_dot(cpu_level level, const float *a, const float *b, size_t n);
/* Softmax in place; the largest element is subtracted first. Zeros where all is -infinity. */
NOVA_UNUSED static void  vector_softmax(cpu_level level, float *x, size_t n);
/* Index of the largest element, the first of equals; NaN never wins. False when every element is NaN or n is 0. */
NOVA_UNUSED static bool  vector_argmax(cpu_level level, const float *x, size_t n, size_t *index);
/* False when an element is a NaN or an infinity. */
static bool  vector_finite(cpu_level level, const float *x, size_t n);

static void vector_half_from_float(cpu_level level, uint16_t *y, const float *x, size_t n);  /* nearest even */
static void vector_float_from_half(cpu_level level, float *y, const uint16_t *x, size_t n);

/* Rotary position embedding of one head (RoFormer, arXiv 2104.09864), in place. Pairs are (2i, 2i+1) ("norm") or
 * (i, i + n_rot/2) ("neox"); pair i is turned by the angle whose cosine and sine are cos_sin[2i], cos_sin[2i+1].
 * n_rot is even and at most the head's length; the rest of the head is left alone. */
static void vector_rope(cpu_level level, float *x, const float *cos_sin, uint32_t n_rot, bool neox);

#endif

/* ==== src/cpu_vector.c ======================================================================================== */

/* The CPU's work on vectors: see cpu_vector.h.
 *
 * Each level has functions of one register (or number), and the same loops over them. What memory bounds anyway has no
 * version of its own for AVX-512. */

/* ---- Constants of the fast functions ----
 *
 * exp(x) = 2^n * e^r with |r| <= ln(2)/2, and e^r = 1 + r + r^2 (EXP_2 + EXP_3 r + ...): minimax in the relative error,
 * below 2^-28, by Remez's exchange with the coefficients rounded to floats one after the other. So are the others. */
#define LOG2_E   1.44269504f
#define LN2_HIGH 0.693147182f
#define LN2_LOW  -1.90465430e-9f
#define EXP_2    4.999999404e-1f
#define EXP_3    1.666651666e-1f
#define EXP_4    4.166810215e-2f
#define EXP_5    8.369193412e-3f
#define EXP_6    1.383893308e-3f
#define EXP_LOW  -104.0f   /* below, and above, the result is 0 and infinity */
#define EXP_HIGH 89.0f

/* tanh(x) = x + x^3 (TANH_1 + TANH_2 x^2 + ...) up to TANH_MIDDLE, 2^-29; above it 1 - 2 / (e^2x + 1). */
#define TANH_MIDDLE 0.55f
#define TANH_1      -3.333331645e-1f
#define TANH_2      1.333254427e-1f
#define TANH_3      -5.384754762e-2f
#define TANH_4      2.105071396e-2f
#define TANH_5      -6.242848933e-3f

/* The normal distribution's tail: P(X > x) = e^(-x^2/2) t (TAIL_0 + TAIL_1 t + ...) with t = 1 / (1 + TAIL_T x), for
 * 0 <= x <= TAIL_END, 2^-25.9. Behind that it is below the smallest float. */
#define TAIL_T   0.319999993f
#define TAIL_END 15.0f
#define TAIL_0   1.276544631e-1f
#define TAIL_1   1.278202832e-1f
#define TAIL_2   1.131133512e-1f
#define TAIL_3   9.571313113e-2f
#define TAIL_4   3.353587911e-2f
#define TAIL_5   4.142346978e-2f
#define TAIL_6   -1.667760516e-4f
#define TAIL_7   -9.459164739e-2f
#define TAIL_8   7.209257782e-2f
#define TAIL_9   -1.659473963e-2f

#define GELU_1   1.595769122f     /* 2 sqrt(2/pi): gelu(x) = x sigmoid(GELU_1 x + GELU_3 x^3) */
#define GELU_3   7.135481283e-2f  /* 0.044715 of that */

/* ---- Plain: one number, in double, so that the float it is rounded to is nearly always the nearest ---- */

static bool is_nan_bits(float x) { return (load_u32(&x) & 0x7fffffffu) > 0x7f800000u; }

/* Taylor's series up to r^11: its rest is below 2^-44. */
static double exp_double(double x) {
    static const double inverse[] = { 1.0, 1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 1.0 / 7, 1.0 / 8, 1.0 / 9,
                                      1.0 / 10, 1.0 / 11 };
    double  n = floor(x * 1.44269504088896341 + 0.5), r = x - n * 0.693147180559945309, p = 1, power;
    int64_t bits = (1023 + (int64_t)n) * ((int64_t)1 << 52);
    for (int k = 11; k > 0; k--) p = 1 + p * r * inverse[k];
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float exp_plain(float x) {
    if (is_nan_bits(x)) return x;
    if (x < EXP_LOW) return 0;
    return x > EXP_HIGH ? INFINITY : (float)exp_double((double)x);
}

static float tanh_plain(float x) { return (float)tanh((double)x); }

/* 1 / (1 + e^-x) */
static double sigmoid_double(double x) {
    double e = x > -700 && x < 700 ? exp_double(x < 0 ? x : -x) : 0;
    return (x < 0 ? e : 1.0) / (1.0 + e);
}

/* x times its share, which is 0 where x is -infinity. */
static float gate_plain(double x, double share) { return share == 0 ? 0.0f : (float)(x * share); }

static float act_plain(activation act, float x) {
    double d = (double)x;
    if (is_nan_bits(x)) return x;
    switch (act) {
    case ACT_NONE:     return x;
    case ACT_SILU:     return gate_plain(d, sigmoid_double(d));
    case ACT_GELU:     return gate_plain(d, sigmoid_double(1.5957691216057308 * (d + 0.044715 * d * d * d)));
    case ACT_GELU_ERF: return gate_plain(d, 0.5 * erfc(-d * 0.70710678118654752));
    case ACT_RELU:     return x > 0 ? x : 0;
    case ACT_RELU_SQR: return x > 0 ? x * x : 0;
    }
    return x;
}

/* ---- Plain: vectors ---- */

static void norm_plain(norm_kind kind, float *y, const float *x, const float *w, const float *b, size_t n, double eps) {
    double mean = 0, squares = 0;
    if (kind == NORM_LAYER) {
        for (size_t i = 0; i < n; i++) mean += (double)x[i];
        mean /= (double)n;
    }
    for (size_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1.0 / sqrt(squares / (double)n + eps);
    for (size_t i = 0; i < n; i++) {
        float v = (float)(((double)x[i] - mean) * scale);
        if (w) v *= w[i];
        y[i] = b ? v + b[i] : v;
    }
}

static void glu_plain(activation act, float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = up ? act_plain(act, gate[i]) * up[i] : act_plain(act, gate[i]);
}

static float dot_plain(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

static void softmax_plain(float *x, size_t n) {
    float  top = -FLT_MAX;
    double sum = 0;
    for (size_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; i++) sum += (double)(x[i] = exp_plain(x[i] - top));
    for (size_t i = 0; i < n; i++) x[i] = sum == 0 ? 0 : (float)((double)x[i] / sum);
}

static bool argmax_plain(const float *x, size_t n, size_t *index) {
    bool  found = false;
    float top   = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_nan_bits(x[i]) || (found && x[i] <= top)) continue;
        found  = true;
        top    = x[i];
        *index = i;
    }
    return found;
}

static bool finite_plain(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((load_u32(x + i) & 0x7f800000u) == 0x7f800000u) return false;
    return true;
}

/* half_to_float without a branch, for loops of which compilers make vectors: exponent and mantissa move to their
 * places, and a product, exact also from and to subnormals, corrects the exponent's bias. */
NOVA_INLINE float half_moved(uint16_t h) {
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t special = rest >= 0x0f800000u ? 0x7f800000u : 0;   /* infinities and NaNs */
    float    f;
    memcpy(&f, &rest, sizeof f);
    f *= 5192296858534827628530496329220096.0f;   /* 2^112 */
    memcpy(&rest, &f, sizeof f);
    rest |= sign | special;
    memcpy(&f, &rest, sizeof f);
    return f;
}

static void float_from_half_plain(float *y, const uint16_t *x, size_t n) {
    for (; n >= 16; n -= 16, x += 16, y += 16)
        for (size_t i = 0; i < 16; i++) y[i] = half_moved(x[i]);
    for (size_t i = 0; i < n; i++) y[i] = half_moved(x[i]);
}

static void rope_plain(float *x, const float *cos_sin, uint32_t begin, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2;
    for (uint32_t i = begin; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i, *b = neox ? x + i + half : a + 1;
        float  c = cos_sin[2 * i], s = cos_sin[2 * i + 1], u = *a, v = *b;
        *a = u * c - v * s;
        *b = u * s + v * c;
    }
}

#ifdef NOVA_X86

/* ---- AVX2: functions of a register ---- */

#define AVX2   NOVA_TARGET_AVX2 NOVA_INLINE
#define AVX512 NOVA_TARGET_AVX512 NOVA_INLINE

AVX2 __m256 set_avx2(float x) { return _mm256_set1_ps(x); }

/* Lanes below n. */
AVX2 __m256i lanes_avx2(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)size_min(n, 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 __m256 exp_avx2(__m256 x) {
    x = _mm256_blendv_ps(x, set_avx2(EXP_LOW), _mm256_cmp_ps(x, set_avx2(EXP_LOW), _CMP_LT_OQ));
    x = _mm256_blendv_ps(x, set_avx2(EXP_HIGH), _mm256_cmp_ps(x, set_avx2(EXP_HIGH), _CMP_GT_OQ));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, set_avx2(LOG2_E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, set_avx2(LN2_LOW), _mm256_fnmadd_ps(n, set_avx2(LN2_HIGH), x));
    __m256 p = _mm256_fmadd_ps(r, set_avx2(EXP_6), set_avx2(EXP_5));
    p = _mm256_fmadd_ps(p, r, set_avx2(EXP_4));
    p = _mm256_fmadd_ps(p, r, set_avx2(EXP_3));
    p = _mm256_fmadd_ps(p, r, set_avx2(EXP_2));
    p = _mm256_fmadd_ps(p, r, set_avx2(1));
    p = _mm256_fmadd_ps(p, r, set_avx2(1));
    /* In two steps, since neither 2^128 nor a subnormal power is a normal float; the second rounds, once. */
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i rest  = _mm256_sub_epi32(whole, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

AVX2 __m256 tanh_avx2(__m256 x) {
    const __m256 sign = set_avx2(-0.0f), one = set_avx2(1);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_fmadd_ps(z, set_avx2(TANH_5), set_avx2(TANH_4));
    p = _mm256_fmadd_ps(p, z, set_avx2(TANH_3));
    p = _mm256_fmadd_ps(p, z, set_avx2(TANH_2));
    p = _mm256_fmadd_ps(p, z, set_avx2(TANH_1));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, z), a, a);
    __m256 e   = exp_avx2(_mm256_add_ps(a, a));
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(set_avx2(2), _mm256_add_ps(e, one)));
    p = _mm256_blendv_ps(p, big, _mm256_cmp_ps(a, set_avx2(TANH_MIDDLE), _CMP_GT_OQ));
    return _mm256_or_ps(p, _mm256_and_ps(sign, x));
}

/* x times its share, which is 0 where x is -infinity. */
AVX2 __m256 gate_avx2(__m256 x, __m256 share) {
    return _mm256_and_ps(_mm256_mul_ps(x, share), _mm256_cmp_ps(share, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}

AVX2 __m256 sigmoid_avx2(__m256 x) {
    const __m256 one = set_avx2(1);
    __m256 e = exp_avx2(_mm256_or_ps(x, set_avx2(-0.0f)));
    __m256 above = _mm256_blendv_ps(one, e, x);   /* chosen by x's sign */
    return _mm256_div_ps(above, _mm256_add_ps(e, one));
}

/* P(X < x) of the normal distribution. */
AVX2 __m256 normal_avx2(__m256 x) {
    __m256 a = _mm256_andnot_ps(set_avx2(-0.0f), x);
    a = _mm256_blendv_ps(a, set_avx2(TAIL_END), _mm256_cmp_ps(a, set_avx2(TAIL_END), _CMP_GT_OQ));
    __m256 t = _mm256_div_ps(set_avx2(1), _mm256_fmadd_ps(a, set_avx2(TAIL_T), set_avx2(1)));
    __m256 p = _mm256_fmadd_ps(t, set_avx2(TAIL_9), set_avx2(TAIL_8));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_7));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_6));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_5));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_4));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_3));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_2));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_1));
    p = _mm256_mul_ps(_mm256_fmadd_ps(p, t, set_avx2(TAIL_0)), t);
    /* The square's rounding error is a factor of its own. */
    __m256 square = _mm256_mul_ps(a, a), error = _mm256_fmsub_ps(a, a, square);
    __m256 e = exp_avx2(_mm256_mul_ps(square, set_avx2(-0.5f)));
    e = _mm256_fnmadd_ps(_mm256_mul_ps(error, set_avx2(0.5f)), e, e);
    __m256 tail = _mm256_mul_ps(p, e);
    return _mm256_blendv_ps(_mm256_sub_ps(set_avx2(1), tail), tail, x);
}

AVX2 __m256 act_avx2(activation act, __m256 x) {
    __m256 positive;
    switch (act) {
    case ACT_NONE:     break;
    case ACT_SILU:     return gate_avx2(x, sigmoid_avx2(x));
    case ACT_GELU:
        return gate_avx2(x, sigmoid_avx2(_mm256_mul_ps(
                                x, _mm256_fmadd_ps(_mm256_mul_ps(x, x), set_avx2(GELU_3), set_avx2(GELU_1)))));
    case ACT_GELU_ERF: return gate_avx2(x, normal_avx2(x));
    case ACT_RELU:
    case ACT_RELU_SQR:
        positive = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ), x);   /* a NaN stays */
        return act == ACT_RELU ? positive : _mm256_mul_ps(positive, positive);
    }
    return x;
}

/* ---- AVX2: vectors ---- */

NOVA_TARGET_AVX2
static double sum_lanes_avx2(__m256d a, __m256d b) {
    a = _mm256_add_pd(a, b);
    __m128d c = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

/* The sum of (x - mean), or of its square. */
NOVA_TARGET_AVX2
static double moment_avx2(const float *x, size_t n, double mean, bool square) {
    __m256d m = _mm256_set1_pd(mean), sum[2] = { _mm256_setzero_pd(), _mm256_setzero_pd() };
    size_t  i = 0;
    double  rest = 0;
    for (; i + 8 <= n; i += 8) {
        __m256d a = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), m);
        __m256d b = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)), m);
        sum[0] = square ? _mm256_fmadd_pd(a, a, sum[0]) : _mm256_add_pd(a, sum[0]);
        sum[1] = square ? _mm256_fmadd_pd(b, b, sum[1]) : _mm256_add_pd(b, sum[1]);
    }
    for (; i < n; i++) {
        double a = (double)x[i] - mean;
        rest += square ? a * a : a;
    }
    return sum_lanes_avx2(sum[0], sum[1]) + rest;
}

NOVA_TARGET_AVX2
static void norm_avx2(norm_kind kind, float *y, const float *x, const float *w, const float *b, size_t n, double eps) {
    double  mean  = kind == NORM_LAYER ? moment_avx2(x, n, 0, false) / (double)n : 0;
    double  scale = 1.0 / sqrt(moment_avx2(x, n, mean, true) / (double)n + eps);
    __m256d m = _mm256_set1_pd(mean), s = _mm256_set1_pd(scale);
    size_t  i = 0;
    for (; i + 4 <= n; i += 4) {
        __m128 v = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), m), s));
        if (w) v = _mm_mul_ps(v, _mm_loadu_ps(w + i));
        if (b) v = _mm_add_ps(v, _mm_loadu_ps(b + i));
        _mm_storeu_ps(y + i, v);
    }
    for (; i < n; i++) {
        float v = (float)(((double)x[i] - mean) * scale);
        if (w) v *= w[i];
        y[i] = b ? v + b[i] : v;
    }
}

NOVA_TARGET_AVX2
static void glu_avx2(activation act, float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256  v     = act_avx2(act, _mm256_maskload_ps(gate + i, lanes));
        if (up) v = _mm256_mul_ps(v, _mm256_maskload_ps(up + i, lanes));
        _mm256_maskstore_ps(y + i, lanes, v);
    }
}

NOVA_TARGET_AVX2
static void add_avx2(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++) y[i] += x[i];
}

NOVA_TARGET_AVX2
static void scale_avx2(float *y, float scale, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), set_avx2(scale)));
    for (; i < n; i++) y[i] *= scale;
}

NOVA_TARGET_AVX2
static float vector_dot_avx2(const float *a, const float *b, size_t n) {
    __m256 sum[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps() };
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++)
            sum[k] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * k), _mm256_loadu_ps(b + i + 8 * k), sum[k]);
    for (; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        sum[0] = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, lanes), _mm256_maskload_ps(b + i, lanes), sum[0]);
    }
    __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
    __m128 h   = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* Keys are integers in the order of the floats; -0 is 0; a NaN is the least of all. */
AVX2 __m256i key_avx2(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), sign = _mm256_srai_epi32(bits, 31);
    __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan  = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
    __m256i key  = _mm256_sub_epi32(_mm256_xor_si256(size, sign), sign);
    return _mm256_blendv_epi8(key, _mm256_set1_epi32(INT32_MIN), nan);
}

NOVA_TARGET_AVX2
static int32_t greatest_key_avx2(const float *x, size_t n) {
    __m256i a = _mm256_set1_epi32(INT32_MIN), b = a;
    size_t  i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_max_epi32(a, key_avx2(_mm256_loadu_ps(x + i)));
        b = _mm256_max_epi32(b, key_avx2(_mm256_loadu_ps(x + i + 8)));
    }
    for (; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        a = _mm256_max_epi32(a, _mm256_blendv_epi8(a, key_avx2(_mm256_maskload_ps(x + i, lanes)), lanes));
    }
    int32_t out[8], greatest = INT32_MIN;
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_max_epi32(a, b));
    for (int k = 0; k < 8; k++) greatest = out[k] > greatest ? out[k] : greatest;
    return greatest;
}

NOVA_TARGET_AVX2
static bool argmax_avx2(const float *x, size_t n, size_t *index) {
    int32_t greatest = greatest_key_avx2(x, n);
    if (greatest == INT32_MIN) return false;
    const __m256i key = _mm256_set1_epi32(greatest);
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256i equal = _mm256_and_si256(lanes, _mm256_cmpeq_epi32(key, key_avx2(_mm256_maskload_ps(x + i, lanes))));
        int     mask  = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
        if (!mask) continue;
        for (*index = i; !(mask & 1); mask >>= 1) (*index)++;
        return true;
    }
    return false;
}

NOVA_TARGET_AVX2
static bool finite_avx2(const float *x, size_t n) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256i bits  = _mm256_and_si256(_mm256_castps_si256(_mm256_maskload_ps(x + i, lanes)), exponent);
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
    }
    return _mm256_testz_si256(bad, bad) != 0;
}

NOVA_TARGET_AVX2
static void half_from_float_avx2(uint16_t *y, const float *x, size_t n) {
    for (; n >= 8; n -= 8, x += 8, y += 8)
        _mm_storeu_si128((__m128i *)(void *)y, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
    for (size_t i = 0; i < n; i++) y[i] = float_to_half(x[i]);
}

NOVA_TARGET_AVX2
static void float_from_half_avx2(float *y, const uint16_t *x, size_t n) {
    for (; n >= 8; n -= 8, x += 8, y += 8)
        _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x)));
    for (size_t i = 0; i < n; i++) y[i] = half_to_float(x[i]);
}

/* (c0, s0, c1, s1, ...) of eight pairs to eight cosines and eight sines. */
AVX2 void split_avx2(const float *cos_sin, __m256 *c, __m256 *s) {
    __m256 a = _mm256_loadu_ps(cos_sin), b = _mm256_loadu_ps(cos_sin + 8);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *c = _mm256_shuffle_ps(low, high, 0x88);
    *s = _mm256_shuffle_ps(low, high, 0xdd);
}

NOVA_TARGET_AVX2
static void rope_avx2(float *x, const float *cos_sin, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2, i = 0;
    if (neox)
        for (; i + 8 <= half; i += 8) {
            __m256 c, s, a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            split_avx2(cos_sin + 2 * i, &c, &s);
            _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
        }
    else
        for (; i + 4 <= half; i += 4) {
            __m256 turn = _mm256_loadu_ps(cos_sin + 2 * i), v = _mm256_loadu_ps(x + 2 * i);
            __m256 sine = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_movehdup_ps(turn));
            _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, _mm256_moveldup_ps(turn)), sine));
        }
    rope_plain(x, cos_sin, i, n_rot, neox);
}

/* x = e^(x - top); gives the sum. */
NOVA_TARGET_AVX2
static double exponentials_avx2(float *x, size_t n, float top) {
    __m256d sum[2] = { _mm256_setzero_pd(), _mm256_setzero_pd() };
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256  e     = exp_avx2(_mm256_sub_ps(_mm256_maskload_ps(x + i, lanes), set_avx2(top)));
        _mm256_maskstore_ps(x + i, lanes, e);
        e = _mm256_and_ps(e, _mm256_castsi256_ps(lanes));
        sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
        sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
    }
    return sum_lanes_avx2(sum[0], sum[1]);
}

/* ---- AVX-512: functions of a register, as above ---- */

AVX512 __m512 set_avx512(float x) { return _mm512_set1_ps(x); }

AVX512 __mmask16 lanes_avx512(size_t n) { return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffffu); }

/* e^x for x <= 0; x below EXP_LOW gives a number without meaning, a NaN stays. */
AVX512 __m512 exp_core_avx512(__m512 x) {
    __m512 n = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(_mm512_mul_ps(x, set_avx512(LOG2_E))));
    __m512 r = _mm512_fnmadd_ps(n, set_avx512(LN2_LOW), _mm512_fnmadd_ps(n, set_avx512(LN2_HIGH), x));
    __m512 p = _mm512_fmadd_ps(r, set_avx512(EXP_6), set_avx512(EXP_5));
    p = _mm512_fmadd_ps(p, r, set_avx512(EXP_4));
    p = _mm512_fmadd_ps(p, r, set_avx512(EXP_3));
    p = _mm512_fmadd_ps(p, r, set_avx512(EXP_2));
    p = _mm512_fmadd_ps(p, r, set_avx512(1));
    p = _mm512_fmadd_ps(p, r, set_avx512(1));
    return _mm512_scalef_ps(p, n);
}

AVX512 __m512 exp_avx512(__m512 x) {
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, set_avx512(EXP_LOW), _CMP_LT_OQ), set_avx512(EXP_LOW));
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, set_avx512(EXP_HIGH), _CMP_GT_OQ), set_avx512(EXP_HIGH));
    return exp_core_avx512(x);
}

AVX512 __m512 tanh_avx512(__m512 x) {
    const __m512 sign = set_avx512(-0.0f), one = set_avx512(1);
    __m512 a = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_fmadd_ps(z, set_avx512(TANH_5), set_avx512(TANH_4));
    p = _mm512_fmadd_ps(p, z, set_avx512(TANH_3));
    p = _mm512_fmadd_ps(p, z, set_avx512(TANH_2));
    p = _mm512_fmadd_ps(p, z, set_avx512(TANH_1));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, z), a, a);
    __m512 e   = exp_avx512(_mm512_add_ps(a, a));
    __m512 big = _mm512_sub_ps(one, _mm512_div_ps(set_avx512(2), _mm512_add_ps(e, one)));
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(a, set_avx512(TANH_MIDDLE), _CMP_GT_OQ), big);
    return _mm512_or_ps(p, _mm512_and_ps(sign, x));
}

AVX512 __m512 gate_avx512(__m512 x, __m512 share) {
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(share, _mm512_setzero_ps(), _CMP_NEQ_UQ), x, share);
}

AVX512 __m512 sigmoid_avx512(__m512 x) {
    const __m512 one = set_avx512(1);
    __m512 e = exp_avx512(_mm512_or_ps(x, set_avx512(-0.0f)));
    __m512 above = _mm512_mask_mov_ps(one, _mm512_movepi32_mask(_mm512_castps_si512(x)), e);
    return _mm512_div_ps(above, _mm512_add_ps(e, one));
}

AVX512 __m512 normal_avx512(__m512 x) {
    __m512 a = _mm512_andnot_ps(set_avx512(-0.0f), x);
    a = _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, set_avx512(TAIL_END), _CMP_GT_OQ), set_avx512(TAIL_END));
    __m512 t = _mm512_div_ps(set_avx512(1), _mm512_fmadd_ps(a, set_avx512(TAIL_T), set_avx512(1)));
    __m512 p = _mm512_fmadd_ps(t, set_avx512(TAIL_9), set_avx512(TAIL_8));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_7));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_6));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_5));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_4));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_3));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_2));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_1));
    p = _mm512_mul_ps(_mm512_fmadd_ps(p, t, set_avx512(TAIL_0)), t);
    __m512 square = _mm512_mul_ps(a, a), error = _mm512_fmsub_ps(a, a, square);
    __m512 e = exp_avx512(_mm512_mul_ps(square, set_avx512(-0.5f)));
    e = _mm512_fnmadd_ps(_mm512_mul_ps(error, set_avx512(0.5f)), e, e);
    __m512 tail = _mm512_mul_ps(p, e);
    return _mm512_mask_mov_ps(_mm512_sub_ps(set_avx512(1), tail), _mm512_movepi32_mask(_mm512_castps_si512(x)), tail);
}

AVX512 __m512 act_avx512(activation act, __m512 x) {
    __m512 positive;
    switch (act) {
    case ACT_NONE:     break;
    case ACT_SILU:     return gate_avx512(x, sigmoid_avx512(x));
    case ACT_GELU:
        return gate_avx512(x, sigmoid_avx512(_mm512_mul_ps(
                                  x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), set_avx512(GELU_3), set_avx512(GELU_1)))));
    case ACT_GELU_ERF: return gate_avx512(x, normal_avx512(x));
    case ACT_RELU:
    case ACT_RELU_SQR:
        positive = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ), x);
        return act == ACT_RELU ? positive : _mm512_mul_ps(positive, positive);
    }
    return x;
}

/* ---- AVX-512: vectors ---- */

NOVA_TARGET_AVX512
static void glu_avx512(activation act, float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_avx512(n - i);
        __m512    v     = act_avx512(act, _mm512_maskz_loadu_ps(lanes, gate + i));
        if (up) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, up + i));
        _mm512_mask_storeu_ps(y + i, lanes, v);
    }
}

NOVA_TARGET_AVX512
static double exponentials_avx512(float *x, size_t n, float top) {
    __m512d sum[2] = { _mm512_setzero_pd(), _mm512_setzero_pd() };
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_avx512(n - i);
        __m512    e     = exp_avx512(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), set_avx512(top)));
        _mm512_mask_storeu_ps(x + i, lanes, e);
        e = _mm512_maskz_mov_ps(lanes, e);
        sum[0] = _mm512_add_pd(sum[0], _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
        sum[1] = _mm512_add_pd(sum[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)));
    }
    sum[0] = _mm512_add_pd(sum[0], sum[1]);
    return sum_lanes_avx2(_mm512_castpd512_pd256(sum[0]), _mm512_extractf64x4_pd(sum[0], 1));
}

static void softmax_fast(cpu_level level, float *x, size_t n) {
    size_t at;
    float  top = argmax_avx2(x, n, &at) && x[at] > -FLT_MAX ? x[at] : -FLT_MAX;
    double sum = level == CPU_AVX512 ? exponentials_avx512(x, n, top) : exponentials_avx2(x, n, top);
    scale_avx2(x, sum == 0 ? 0 : (float)(1 / sum), n);
}

#endif

/* ---- By level ---- */

#ifdef NOVA_X86
#define BY_LEVEL(level, plain, avx2, avx512) \
    switch (level) {                         \
    case CPU_AVX512: avx512; break;          \
    case CPU_AVX2:   avx2; break;            \
    default:         plain; break;           \
    }
#else
#define BY_LEVEL(level, plain, avx2, avx512) (void)(level); plain;
#endif
#define FROM_AVX2(level, plain, avx2) BY_LEVEL(level, plain, avx2, avx2)

static void vector_norm(cpu_level level, norm_kind kind, float *y, const float *x, const float *w, const float *b,
                        size_t n, float eps) {
    FROM_AVX2(level, norm_plain(kind, y, x, w, b, n, (double)eps), norm_avx2(kind, y, x, w, b, n, (double)eps))
}

static void vector_act(cpu_level level, activation act, float *y, const float *x, size_t n) {
    vector_glu(level, act, y, x, NULL, n);
}

static void vector_glu(cpu_level level, activation act, float *y, const float *gate, const float *up, size_t n) {
    BY_LEVEL(level, glu_plain(act, y, gate, up, n), glu_avx2(act, y, gate, up, n), glu_avx512(act, y, gate, up, n))
}

static void vector_add(cpu_level level, float *y, const float *x, size_t n) {
    FROM_AVX2(level, for (size_t i = 0; i < n; i++) y[i] += x[i], add_avx2(y, x, n))
}

NOVA_UNUSED static void vector_scale(cpu_level level, float *y, float scale, size_t n) {
    FROM_AVX2(level, for (size_t i = 0; i < n; i++) y[i] *= scale, scale_avx2(y, scale, n))
}

NOVA_UNUSED static float vector_dot(cpu_level level, const float *a, const float *b, size_t n) {
    float dot;
    FROM_AVX2(level, dot = dot_plain(a, b, n), dot = vector_dot_avx2(a, b, n))
    return dot;
}

NOVA_UNUSED static void vector_softmax(cpu_level level, float *x, size_t n) {
    FROM_AVX2(level, softmax_plain(x, n), softmax_fast(level, x, n))
}

NOVA_UNUSED static bool vector_argmax(cpu_level level, const float *x, size_t n, size_t *index) {
    bool found;
    FROM_AVX2(level, found = argmax_plain(x, n, index), found = argmax_avx2(x, n, index))
    return found;
}

static bool vector_finite(cpu_level level, const float *x, size_t n) {
    bool finite;
    FROM_AVX2(level, finite = finite_plain(x, n), finite = finite_avx2(x, n))
    return finite;
}

static void vector_half_from_float(cpu_level level, uint16_t *y, const float *x, size_t n) {
    FROM_AVX2(level, for (size_t i = 0; i < n; i++) y[i] = float_to_half(x[i]), half_from_float_avx2(y, x, n))
}

static void vector_float_from_half(cpu_level level, float *y, const uint16_t *x, size_t n) {
    FROM_AVX2(level, float_from_half_plain(y, x, n), float_from_half_avx2(y, x, n))
}

static void vector_rope(cpu_level level, float *x, const float *cos_sin, uint32_t n_rot, bool neox) {
    FROM_AVX2(level, rope_plain(x, cos_sin, 0, n_rot, neox), rope_avx2(x, cos_sin, n_rot, neox))
}

/* ==== src/cpu_attend.h ======================================================================================== */

/* Attention on the CPU over cache pages, with a running softmax (FlashAttention, arXiv 2205.14135): scores of a page
 * are never kept, and any number of pages can follow each other.
 *
 * A page holds KV_PAGE tokens of one KV head. K lies transposed, [head_dim_k][KV_PAGE], so that 16 tokens' scores come
 * from one multiply-add; V lies [KV_PAGE][head_dim_v]. Both F32 or F16.
 *
 * Order: a query's result depends on its own keys alone: bit-identical for any number of queries computed together.
 * Scores of -infinity weigh nothing; a NaN or +infinity among a query's scores makes its result NaN. */
#ifndef NOVA_CPU_ATTEND_H
#define NOVA_CPU_ATTEND_H


#define KV_PAGE 64

typedef struct attend_shape {
    uint32_t head_dim_k, head_dim_v;   /* any, up to 1024 */
    uint32_t type_k, type_v;           /* TYPE_F32 or TYPE_F16 */
    float    scale;                    /* of q . k */
    float    soft_cap;                 /* score = cap * tanh(score / cap); 0: none */
} attend_shape;

/* One query's running state: greatest score, sum of exponentials, weighted sum of values (head_dim_v floats). */
typedef struct attend_state {
    float  top, sum;
    float *acc;
} attend_state;

static void attend_begin(attend_state *s, float *acc, uint32_t head_dim_v);
/* An attention sink: a learned score that takes weight and has no value (gpt-oss). */
NOVA_UNUSED static void attend_sink(attend_state *s, float score, uint32_t head_dim_v);

/* Bytes of scratch for attend_page with up to n_q queries, aligned to 64. */
static size_t attend_scratch_bytes(const attend_shape *shape, uint32_t n_q);

/* Lets query i (q[i], head_dim_k floats) see the page's tokens first[i] <= t < last[i] (none when first >= last).
 * Tokens outside may hold anything, NaN included. */
static void attend_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                        attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                        const void *v_page, void *scratch);

/* out = acc / sum; zeros when the query saw nothing. out may be acc. */
static void attend_end(const attend_state *s, float *out, uint32_t head_dim_v);

/* Stores one token's key and value (floats) into slot t of a page. */
static void attend_store(cpu_level level, const attend_shape *shape, void *k_page, void *v_page, uint32_t t,
                         const float *k, const float *v);
static size_t attend_k_page_bytes(const attend_shape *shape);   /* multiples of 64 */
static size_t attend_v_page_bytes(const attend_shape *shape);

#endif

/* ==== src/cpu_attend.c ======================================================================================== */

/* Attention on the CPU: see cpu_attend.h.
 *
 * On a page it is a product, a softmax and a product: scores = queries x K, weights = softmax(scores),
 * acc += weights x V. Both products are computed by tiles of some rows (queries) by some registers of columns (tokens,
 * then dimensions), and every element of a result is one chain of multiply-adds, from the first term to the last: so
 * tiles of all shapes give the same bits, and it does not matter which queries come together.
 *
 * Few queries read K and V where they lie. For many, pages of halves are first converted to floats, once. */

/* ---- States ----
 *
 * The greatest score starts at -FLT_MAX instead of -infinity, so that no difference of scores is ever inf - inf: scores
 * of -infinity, and nothing else, weigh nothing. */

static void attend_begin(attend_state *s, float *acc, uint32_t head_dim_v) {
    s->top = -FLT_MAX;
    s->sum = 0;
    s->acc = acc;
    for (uint32_t d = 0; d < head_dim_v; d++) acc[d] = 0;
}

NOVA_UNUSED static void attend_sink(attend_state *s, float score, uint32_t head_dim_v) {
    float top = score > s->top ? score : s->top, keep = exp_plain(s->top - top);
    s->sum = s->sum * keep + exp_plain(score - top);
    s->top = top;
    for (uint32_t d = 0; d < head_dim_v; d++) s->acc[d] *= keep;
}

static void attend_end(const attend_state *s, float *out, uint32_t head_dim_v) {
    for (uint32_t d = 0; d < head_dim_v; d++) out[d] = s->sum == 0 ? 0 : s->acc[d] / s->sum;
}

/* ---- Pages ---- */

static size_t attend_k_page_bytes(const attend_shape *shape) {
    return (size_t)KV_PAGE * shape->head_dim_k * type_row_bytes(shape->type_k, 1);
}

static size_t attend_v_page_bytes(const attend_shape *shape) {
    return (size_t)KV_PAGE * shape->head_dim_v * type_row_bytes(shape->type_v, 1);
}

static void store_key(cpu_level level, uint32_t type, void *page, const float *k, uint32_t n, uint32_t t) {
    if (type == TYPE_F32) {
        float *to = (float *)page + t;
        for (uint32_t d = 0; d < n; d++) to[(size_t)d * KV_PAGE] = k[d];
        return;
    }
    uint16_t *to = (uint16_t *)page + t, halves[64];
    for (uint32_t d = 0; d < n; d += 64) {
        uint32_t some = (uint32_t)size_min(64, n - d);
        vector_half_from_float(level, halves, k + d, some);
        for (uint32_t i = 0; i < some; i++) to[(size_t)(d + i) * KV_PAGE] = halves[i];
    }
}

static void attend_store(cpu_level level, const attend_shape *shape, void *k_page, void *v_page, uint32_t t,
                         const float *k, const float *v) {
    uint32_t n = shape->head_dim_v;
    store_key(level, shape->type_k, k_page, k, shape->head_dim_k, t);
    if (shape->type_v == TYPE_F32) memcpy((float *)v_page + (size_t)t * n, v, n * sizeof *v);
    else vector_half_from_float(level, (uint16_t *)v_page + (size_t)t * n, v, n);
}

/* ---- Scratch: the page's K and V as floats, and rows of scores ---- */

#define TILE_ROWS  8    /* most queries in a tile */
#define BEST_ROWS  6    /* the best number, when there are many */
#define GROUP_ROWS 24   /* queries between which K, and then V, stays in the first cache */

static size_t attend_scratch_bytes(const attend_shape *shape, uint32_t n_q) {
    size_t rows = size_min(GROUP_ROWS, n_q);
    return ((size_t)shape->head_dim_k + shape->head_dim_v + rows) * KV_PAGE * sizeof(float);
}

/* ---- Plain ---- */

static const float *page_floats(cpu_level level, uint32_t type, const void *page, float *scratch, size_t n) {
    if (type == TYPE_F32) return (const float *)page;
    vector_float_from_half(level, scratch, (const uint16_t *)page, n);
    return scratch;
}

static void scores_plain(const attend_shape *shape, const float *q, const float *k, float *scores) {
    for (uint32_t t = 0; t < KV_PAGE; t++) scores[t] = 0;
    for (uint32_t d = 0; d < shape->head_dim_k; d++)
        for (uint32_t t = 0; t < KV_PAGE; t++) scores[t] += q[d] * k[(size_t)d * KV_PAGE + t];
    for (uint32_t t = 0; t < KV_PAGE; t++) {
        scores[t] *= shape->scale;
        if (shape->soft_cap != 0) scores[t] = shape->soft_cap * tanh_plain(scores[t] / shape->soft_cap);
    }
}

/* By sixteens, of which compilers make vectors even at -O2. */
static void values_plain(float *NOVA_RESTRICT acc, const float *weights, uint32_t first, uint32_t last,
                         const float *NOVA_RESTRICT v, size_t n) {
    for (uint32_t t = first; t < last; t++) {
        const float *row = v + t * n;
        float        w   = weights[t];
        size_t       d   = 0;
        for (; d + 16 <= n; d += 16)
            for (size_t j = 0; j < 16; j++) acc[d + j] += w * row[d + j];
        for (; d < n; d++) acc[d] += w * row[d];
    }
}

static void query_plain(const attend_shape *shape, const float *q, attend_state *s, uint32_t first, uint32_t last,
                        const float *k, const float *v) {
    float scores[KV_PAGE], top = s->top;
    scores_plain(shape, q, k, scores);
    for (uint32_t t = first; t < last; t++) top = scores[t] > top ? scores[t] : top;
    float keep = exp_plain(s->top - top);
    s->top = top;
    s->sum *= keep;
    for (uint32_t d = 0; d < shape->head_dim_v; d++) s->acc[d] *= keep;
    for (uint32_t t = first; t < last; t++) s->sum += scores[t] = exp_plain(scores[t] - top);
    values_plain(s->acc, scores, first, last, v, shape->head_dim_v);
}

static void page_plain(const attend_shape *shape, uint32_t n_q, const float *const *q, attend_state *states,
                       const uint32_t *first, const uint32_t *last, const void *k_page, const void *v_page,
                       float *scratch) {
    size_t       n_k = (size_t)KV_PAGE * shape->head_dim_k, n_v = (size_t)KV_PAGE * shape->head_dim_v;
    const float *k = page_floats(CPU_PLAIN, shape->type_k, k_page, scratch, n_k);
    const float *v = page_floats(CPU_PLAIN, shape->type_v, v_page, scratch + n_k, n_v);
    for (uint32_t i = 0; i < n_q; i++)
        if (first[i] < last[i]) query_plain(shape, q[i], &states[i], first[i], last[i], k, v);
}

#ifdef NOVA_X86

/* Loops over registers, which must be unrolled; not by "unroll" in clang, which does so before it inlines. */
#if defined(__clang__)
#define ATTEND_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define ATTEND_UNROLL _Pragma("GCC unroll 8")
#else
#define ATTEND_UNROLL
#endif

/* ---- A product of rows: c[r] = keep[r] * c[r] + sum over i of a[r][i] * b[i], where b[i] is a row of the page ---- */

typedef struct row_product {
    const float *a[TILE_ROWS];
    float       *c[TILE_ROWS];
    float        keep[TILE_ROWS];
    const void  *b;               /* halves or floats */
    bool         half;            /* then n_col is a multiple of 16 */
    size_t       n_b, n_col;      /* rows of b, and their length */
    const void  *next;            /* what will be read behind b, and the bytes from there to its next row */
    size_t       next_bytes;
} row_product;

/* Memory is asked for so many rows ahead, since the processor itself looks no further than its next few hundred
 * instructions and the end of a memory page. Each row asks for the cache lines that a tile reads of it. */
#define ROWS_AHEAD 32

NOVA_INLINE void read_ahead(const row_product *p, bool half, size_t i, size_t at, size_t width) {
    size_t      size = half ? sizeof(uint16_t) : sizeof(float), row = p->n_col * size, j = i + ROWS_AHEAD;
    const char *from = (const char *)p->b + j * row + at * size;
    if (j >= p->n_b) from = at + width < p->n_col ? (const char *)p->b + (j - p->n_b) * row + (at + width) * size
                                                  : (const char *)p->next + (j - p->n_b) * p->next_bytes;
    _mm_prefetch(from, _MM_HINT_T0);
    if (width * size > 64) _mm_prefetch(from + 64, _MM_HINT_T0);
}

/* The sixteen (eight) columns from `at` on of the ith row of b: all that a new type of the cache has to bring. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256 load_avx2(const row_product *p, bool half, bool whole, size_t i, size_t at,
                                              __m256i lanes) {
    const uint16_t *halves = (const uint16_t *)p->b + i * p->n_col + at;
    const float    *floats = (const float *)p->b + i * p->n_col + at;
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves));
    return whole ? _mm256_loadu_ps(floats) : _mm256_maskload_ps(floats, lanes);   /* a mask costs something */
}

NOVA_TARGET_AVX512 NOVA_INLINE __m512 load_avx512(const row_product *p, bool half, size_t i, size_t at,
                                                  __mmask16 lanes) {
    const uint16_t *halves = (const uint16_t *)p->b + i * p->n_col + at;
    if (half) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves));
    return _mm512_maskz_loadu_ps(lanes, (const float *)p->b + i * p->n_col + at);
}

#define EVERY_ROW      ATTEND_UNROLL for (int r = 0; r < rows; r++)
#define EVERY_REGISTER ATTEND_UNROLL for (int v = 0; v < registers; v++)

/* Columns at .. at + 16 * registers of c. Only a tile of one register may have lanes that are not its own. */
NOVA_TARGET_AVX512 NOVA_INLINE
void attend_tile_avx512(const row_product *p, int rows, int registers, bool half, size_t at) {
    const __mmask16 lanes = registers > 1 ? (__mmask16)0xffff : lanes_avx512(p->n_col - at);
    const float    *a[TILE_ROWS];
    __m512          sum[TILE_ROWS][8], b[8];
    EVERY_ROW {
        const __m512 keep = _mm512_set1_ps(p->keep[r]);
        a[r] = p->a[r];
        EVERY_REGISTER sum[r][v] = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, p->c[r] + at + 16 * (size_t)v), keep);
    }
    for (size_t i = 0; i < p->n_b; i++) {
        if (half) read_ahead(p, half, i, at, 16 * (size_t)registers);
        EVERY_REGISTER b[v] = load_avx512(p, half, i, at + 16 * (size_t)v, lanes);
        EVERY_ROW {
            __m512 x = _mm512_set1_ps(a[r][i]);
            EVERY_REGISTER sum[r][v] = _mm512_fmadd_ps(x, b[v], sum[r][v]);
        }
    }
    EVERY_ROW EVERY_REGISTER _mm512_mask_storeu_ps(p->c[r] + at + 16 * (size_t)v, lanes, sum[r][v]);
}

NOVA_TARGET_AVX2 NOVA_INLINE
void attend_tile_avx2(const row_product *p, int rows, int registers, bool half, size_t at) {
    const __m256i lanes = registers > 1 ? _mm256_set1_epi32(-1) : lanes_avx2(p->n_col - at);
    const float  *a[TILE_ROWS];
    __m256        sum[TILE_ROWS][8], b[8];
    EVERY_ROW {
        const __m256 keep = _mm256_set1_ps(p->keep[r]);
        a[r] = p->a[r];
        EVERY_REGISTER sum[r][v] = _mm256_mul_ps(_mm256_maskload_ps(p->c[r] + at + 8 * (size_t)v, lanes), keep);
    }
    for (size_t i = 0; i < p->n_b; i++) {
        if (half) read_ahead(p, half, i, at, 8 * (size_t)registers);
        EVERY_REGISTER b[v] = load_avx2(p, half, registers > 1, i, at + 8 * (size_t)v, lanes);
        EVERY_ROW {
            __m256 x = _mm256_set1_ps(a[r][i]);
            EVERY_REGISTER sum[r][v] = _mm256_fmadd_ps(x, b[v], sum[r][v]);
        }
    }
    EVERY_ROW EVERY_REGISTER _mm256_maskstore_ps(p->c[r] + at + 8 * (size_t)v, lanes, sum[r][v]);
}

/* All columns of a number of rows. */
#define PRODUCT_ROWS(name, tile, attribute, rows, registers, lanes)                       \
    attribute static void name(const row_product *p) {                                        \
        size_t at = 0;                                                                    \
        if (p->half) {                                                                    \
            for (; at + lanes * registers <= p->n_col; at += lanes * registers)           \
                tile(p, rows, registers, true, at);                                       \
            for (; at < p->n_col; at += lanes) tile(p, rows, 1, true, at);                \
        } else {                                                                          \
            for (; at + lanes * registers <= p->n_col; at += lanes * registers)           \
                tile(p, rows, registers, false, at);                                      \
            for (; at < p->n_col; at += lanes) tile(p, rows, 1, false, at);               \
        }                                                                                 \
    }

PRODUCT_ROWS(product_1_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 1, 8, 8)
PRODUCT_ROWS(product_2_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 2, 4, 8)
PRODUCT_ROWS(product_3_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 3, 2, 8)
PRODUCT_ROWS(product_4_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 4, 2, 8)
PRODUCT_ROWS(product_5_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 5, 2, 8)
PRODUCT_ROWS(product_6_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 6, 2, 8)
PRODUCT_ROWS(product_7_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 7, 1, 8)
PRODUCT_ROWS(product_8_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 8, 1, 8)
PRODUCT_ROWS(product_1_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 1, 4, 16)
PRODUCT_ROWS(product_2_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 2, 4, 16)
PRODUCT_ROWS(product_3_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 3, 4, 16)
PRODUCT_ROWS(product_4_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 4, 4, 16)
PRODUCT_ROWS(product_5_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 5, 4, 16)
PRODUCT_ROWS(product_6_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 6, 4, 16)
PRODUCT_ROWS(product_7_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 7, 2, 16)
PRODUCT_ROWS(product_8_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 8, 2, 16)

static void multiply(cpu_level level, const row_product *p, uint32_t rows) {
    static void (*const by_rows[2][TILE_ROWS])(const row_product *) = {
        { product_1_avx2, product_2_avx2, product_3_avx2, product_4_avx2, product_5_avx2, product_6_avx2,
          product_7_avx2, product_8_avx2 },
        { product_1_avx512, product_2_avx512, product_3_avx512, product_4_avx512, product_5_avx512, product_6_avx512,
          product_7_avx512, product_8_avx512 },
    };
    by_rows[level == CPU_AVX512][rows - 1](p);
}

/* ---- The softmax of one row: scores become weights, the state moves on. Gives what the sums so far shrink by. ----
 *
 * Weights below e^-87 are taken for 0, before they become subnormal and slow: where the bits of score - top, which is
 * no positive number, are from those of -87 to those of -infinity. A comparison of floats would not do, as some
 * compilers under -ffast-math do not care on which side of it a NaN falls. */

#define BITS_MINUS_87  ((int32_t)0xc2ae0000u)
#define BITS_MINUS_INF ((int32_t)0xff800000u)

/* Not the compilers' own reductions, which may choose an order, and take it that there is no NaN. */
NOVA_TARGET_AVX2 NOVA_INLINE float sum_of_avx2(__m256 x) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

NOVA_TARGET_AVX2 NOVA_INLINE float max_of_avx2(__m256 x) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

NOVA_TARGET_AVX512 NOVA_INLINE float sum_of_avx512(__m512 x) {
    return sum_of_avx2(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

NOVA_TARGET_AVX512 NOVA_INLINE float max_of_avx512(__m512 x) {
    return max_of_avx2(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

/* The greatest score so far; a NaN among the scores does not matter here, it shows in its weight. */
NOVA_INLINE float top_so_far(float before, float page) { return page > before ? page : before; }

NOVA_TARGET_AVX2
static float softmax_row_avx2(const attend_shape *shape, attend_state *s, float *row, uint32_t first, uint32_t last) {
    const __m256 scale = set_avx2(shape->scale), cap = set_avx2(shape->soft_cap), none = set_avx2(-FLT_MAX);
    __m256  score[KV_PAGE / 8], greatest = none, sum = _mm256_setzero_ps();
    __m256i seen[KV_PAGE / 8];
    for (int v = 0; v < KV_PAGE / 8; v++) {
        __m256i t = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * v));
        seen[v]  = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)first), t),
                                       _mm256_cmpgt_epi32(_mm256_set1_epi32((int)last), t));
        score[v] = _mm256_mul_ps(_mm256_loadu_ps(row + 8 * v), scale);
        if (shape->soft_cap != 0) score[v] = _mm256_mul_ps(cap, tanh_avx2(_mm256_div_ps(score[v], cap)));
        score[v] = _mm256_blendv_ps(none, score[v], _mm256_castsi256_ps(seen[v]));
        greatest = _mm256_max_ps(greatest, score[v]);
    }
    float        top_now = top_so_far(s->top, max_of_avx2(greatest)), keep = 1;
    const __m256 top     = set_avx2(top_now);
    for (int v = 0; v < KV_PAGE / 8; v++) {
        __m256  x     = _mm256_sub_ps(score[v], top), p = exp_avx2(x);
        __m256i bits  = _mm256_castps_si256(x);
        __m256i tiny = _mm256_andnot_si256(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(BITS_MINUS_INF)),
                                            _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(BITS_MINUS_87)));
        p   = _mm256_and_ps(p, _mm256_castsi256_ps(_mm256_andnot_si256(tiny, seen[v])));
        sum = _mm256_add_ps(sum, p);
        _mm256_storeu_ps(row + 8 * v, p);
    }
    if (top_now > s->top) keep = _mm256_cvtss_f32(exp_avx2(set_avx2(s->top - top_now)));
    s->top = top_now;
    s->sum = s->sum * keep + sum_of_avx2(sum);
    return keep;
}

NOVA_TARGET_AVX512
static float softmax_row_avx512(const attend_shape *shape, attend_state *s, float *row, uint32_t first, uint32_t last) {
    const __m512   scale = set_avx512(shape->scale), cap = set_avx512(shape->soft_cap), none = set_avx512(-FLT_MAX);
    const uint64_t seen  = (~(uint64_t)0 << first) & (~(uint64_t)0 >> (KV_PAGE - last));
    __m512 score[KV_PAGE / 16], sum[KV_PAGE / 16];
    ATTEND_UNROLL for (int v = 0; v < KV_PAGE / 16; v++) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(row + 16 * v), scale);
        if (shape->soft_cap != 0) x = _mm512_mul_ps(cap, tanh_avx512(_mm512_div_ps(x, cap)));
        score[v] = _mm512_mask_mov_ps(none, (__mmask16)(seen >> 16 * v), x);
    }
    __m512 greatest = _mm512_max_ps(_mm512_max_ps(score[0], score[1]), _mm512_max_ps(score[2], score[3]));
    float  top_now  = top_so_far(s->top, max_of_avx512(greatest)), keep = 1;
    ATTEND_UNROLL for (int v = 0; v < KV_PAGE / 16; v++) {
        __m512    x     = _mm512_sub_ps(score[v], set_avx512(top_now));
        __m512i   bits  = _mm512_castps_si512(x);
        __mmask16 large = _mm512_cmple_epi32_mask(bits, _mm512_set1_epi32(BITS_MINUS_87));
        __mmask16 other = _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(BITS_MINUS_INF));
        sum[v] = _mm512_maskz_mov_ps((__mmask16)((seen >> 16 * v) & (uint64_t)(large | other)), exp_core_avx512(x));
        _mm512_storeu_ps(row + 16 * v, sum[v]);
    }
    if (top_now > s->top) keep = _mm512_cvtss_f32(exp_avx512(set_avx512(s->top - top_now)));
    s->top = top_now;
    s->sum = s->sum * keep + sum_of_avx512(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
    return keep;
}

/* ---- A page ---- */

/* Queries that see something, and their rows of scores, then weights. */
typedef struct attend_group {
    uint32_t      n;
    const float  *q[GROUP_ROWS];
    attend_state *state[GROUP_ROWS];
    uint32_t      first[GROUP_ROWS], last[GROUP_ROWS];
    float         keep[GROUP_ROWS];
    float        *rows;
} attend_group;

static uint32_t tile_rows(uint32_t left) { return left <= TILE_ROWS ? left : BEST_ROWS; }

static void scores_of(cpu_level level, const attend_shape *shape, const attend_group *g, row_product *p) {
    p->n_b   = shape->head_dim_k;
    p->n_col = KV_PAGE;
    memset(g->rows, 0, (size_t)g->n * KV_PAGE * sizeof(float));
    for (uint32_t at = 0, n; at < g->n; at += n) {
        n = tile_rows(g->n - at);
        for (uint32_t r = 0; r < n; r++) {
            p->a[r] = g->q[at + r];
            p->c[r] = g->rows + (size_t)(at + r) * KV_PAGE;
            p->keep[r] = 1;
        }
        multiply(level, p, n);
    }
}

/* Adds tokens begin .. end of the page to the group's queries at .. at + n. */
static void add_values(cpu_level level, attend_group *g, row_product *p, const uint8_t *v_page, size_t row_bytes,
                       uint32_t at, uint32_t n, uint32_t begin, uint32_t end) {
    if (begin >= end) return;
    for (uint32_t r = 0; r < n; r++) {
        p->a[r]    = g->rows + (size_t)(at + r) * KV_PAGE + begin;
        p->c[r]    = g->state[at + r]->acc;
        p->keep[r] = g->keep[at + r];
        g->keep[at + r] = 1;   /* applied */
    }
    p->b    = v_page + begin * row_bytes;
    p->n_b  = end - begin;
    p->next = p->b;   /* what follows a page is not known here */
    multiply(level, p, n);
}

/* What one query sees and its neighbour does not must not be touched for the neighbour, even with a weight of 0: it may
 * be an infinity. So tiles take the tokens that all their queries see, and the rest is done one by one. */
static void values_of(cpu_level level, const attend_shape *shape, attend_group *g, row_product *p,
                      const uint8_t *v_page) {
    size_t row_bytes = (size_t)shape->head_dim_v * (p->half ? sizeof(uint16_t) : sizeof(float));
    p->n_col = shape->head_dim_v;
    for (uint32_t at = 0, n; at < g->n; at += n) {
        uint32_t begin = 0, end = KV_PAGE;
        n = tile_rows(g->n - at);
        for (uint32_t r = at; r < at + n; r++) {
            if (g->first[r] > begin) begin = g->first[r];
            if (g->last[r] < end) end = g->last[r];
        }
        if (begin >= end) begin = end = KV_PAGE;
        for (uint32_t r = at; r < at + n; r++)
            add_values(level, g, p, v_page, row_bytes, r, 1, g->first[r], (uint32_t)size_min(begin, g->last[r]));
        add_values(level, g, p, v_page, row_bytes, at, n, begin, end);
        for (uint32_t r = at; r < at + n; r++) add_values(level, g, p, v_page, row_bytes, r, 1, end, g->last[r]);
    }
}

typedef struct page_view {
    const void *k, *v;
    bool        half_k, half_v;
} page_view;

static void attend_rows(cpu_level level, const attend_shape *shape, attend_group *g, const page_view *page) {
    row_product p;
    p.b          = page->k;
    p.half       = page->half_k;
    p.next       = page->v;
    p.next_bytes = shape->head_dim_v * (page->half_v ? sizeof(uint16_t) : sizeof(float));
    scores_of(level, shape, g, &p);
    for (uint32_t r = 0; r < g->n; r++) {
        float *row = g->rows + (size_t)r * KV_PAGE;
        g->keep[r] = level == CPU_AVX512 ? softmax_row_avx512(shape, g->state[r], row, g->first[r], g->last[r])
                                         : softmax_row_avx2(shape, g->state[r], row, g->first[r], g->last[r]);
    }
    p.half = page->half_v;
    values_of(level, shape, g, &p, (const uint8_t *)page->v);
}

/* From so many queries on, converting a page once is faster than converting what each tile reads. */
#define CONVERT_ROWS 17

static page_view view_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const void *k_page,
                           const void *v_page, float *scratch) {
    size_t    n_k = (size_t)KV_PAGE * shape->head_dim_k, n_v = (size_t)KV_PAGE * shape->head_dim_v;
    page_view view;
    view.half_k = shape->type_k != TYPE_F32 && n_q < CONVERT_ROWS;
    view.half_v = shape->type_v != TYPE_F32 && n_q < CONVERT_ROWS && shape->head_dim_v % 16 == 0;
    view.k      = view.half_k ? k_page : page_floats(level, shape->type_k, k_page, scratch, n_k);
    view.v      = view.half_v ? v_page : page_floats(level, shape->type_v, v_page, scratch + n_k, n_v);
    return view;
}

static void page_fast(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                      attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                      const void *v_page, float *scratch) {
    page_view    view = view_page(level, shape, n_q, k_page, v_page, scratch);
    attend_group g;
    g.n    = 0;
    g.rows = scratch + (size_t)KV_PAGE * ((size_t)shape->head_dim_k + shape->head_dim_v);
    for (uint32_t i = 0; i < n_q; i++) {
        if (first[i] < last[i]) {
            g.q[g.n]     = q[i];
            g.state[g.n] = &states[i];
            g.first[g.n] = first[i];
            g.last[g.n]  = last[i];
            g.n++;
        }
        if (g.n == 0 || (g.n < GROUP_ROWS && i + 1 < n_q)) continue;
        attend_rows(level, shape, &g, &view);
        g.n = 0;
    }
}

#endif

static void attend_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                        attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                        const void *v_page, void *scratch) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        page_fast(level, shape, n_q, q, states, first, last, k_page, v_page, (float *)scratch);
        return;
    }
#endif
    (void)level;
    page_plain(shape, n_q, q, states, first, last, k_page, v_page, (float *)scratch);
}

/* ==== src/unicode.h =========================================================================================== */

/* UTF-8, classes of characters, and canonical composition (NFC), from the Unicode Character Database 15.0.0. */
#ifndef NOVA_UNICODE_H
#define NOVA_UNICODE_H


/* A byte that starts no well-formed UTF-8 reads as this, one byte long. It has U+FFFD's class. */
#define UTF8_INVALID 0xFFFFFFFFu

/* The code point at `p` of `n` >= 1 bytes, and its length. Well-formed is what Unicode's table 3-7 lists: no
 * surrogates, nothing longer than need be. */
static uint32_t utf8_get(const char *p, size_t n, size_t *length);
/* Writes a code point, which must be a valid one, into 4 bytes; returns how many it took. */
static size_t utf8_put(uint32_t cp, char *out);

/* Classes as tokenizers tell them apart, as bits, so that a pattern's set is a mask. The letter is the table's. */
#define UNICODE_BIT(letter) (1u << ((letter) & 31))
enum {
    UNICODE_UPPER  = UNICODE_BIT('u'),  /* Lu, Lt */
    UNICODE_LOWER  = UNICODE_BIT('l'),  /* Ll */
    UNICODE_OTHER  = UNICODE_BIT('o'),  /* Lm, Lo */
    UNICODE_MARK   = UNICODE_BIT('m'),  /* Mn, Mc, Me */
    UNICODE_NUMBER = UNICODE_BIT('n'),  /* Nd, Nl, No */
    UNICODE_PUNCT  = UNICODE_BIT('p'),  /* P* */
    UNICODE_SYMBOL = UNICODE_BIT('s'),  /* S* */
    UNICODE_WHITE  = UNICODE_BIT('w'),  /* the property White_Space */
    UNICODE_REST   = UNICODE_BIT('x'),  /* controls, formats, private use, unassigned */
    UNICODE_LETTER = UNICODE_UPPER | UNICODE_LOWER | UNICODE_OTHER
};

static uint32_t unicode_class(uint32_t cp);

/* Bytes at the start of `text` that are in NFC beyond doubt, ending where a character begins that nothing before it can
 * change; text.n when all of it is. */
static size_t unicode_nfc_span(str text);
/* Appends `text` in NFC to `out`. Bytes that are not UTF-8 stay as they are. Time is linear in text.n, whatever it
 * holds; takes temporary memory from out->h. False when memory ends. */
static bool unicode_nfc(str text, text_buffer *out);

#endif

/* ==== src/unicode.c =========================================================================================== */

/* UTF-8, classes of characters, canonical composition: see unicode.h. The rules of the last are those of Unicode
 * Standard Annex 15 and of chapter 3.11 and 3.12 of the standard. */

typedef struct unicode_range { uint32_t first, n, value; } unicode_range;

/* ---- Tables, written by src/unicode.py ---- */

/* Unicode Character Database 15.0.0. */

/* A letter a code point: see unicode.h. Rows of 64, found through unicode_index below U+20000. */
static const char unicode_rows[396][65] = {
    "xxxxxxxxxwwwwwxxxxxxxxxxxxxxxxxxwpppsppppppsppppnnnnnnnnnnppsssp",
    "puuuuuuuuuuuuuuuuuuuuuuuuuupppspsllllllllllllllllllllllllllpspsx",
    "xxxxxwxxxxxxxxxxxxxxxxxxxxxxxxxxwpssssspssopsxssssnnslppsnopnnnp",
    "uuuuuuuuuuuuuuuuuuuuuuusuuuuuuullllllllllllllllllllllllsllllllll",
    "ulululululululululululululululululululululululululululullulululu",
    "lulululullulululululululululululululululululululululululuululull",
    "luululuuluuulluuuuluuluuullluuluulululuululluluuluuululuulloulll",
    "oooouuluuluululululululululullulululululululululluululuuulululul",
    "ulululululululululululululululululululululululululullllllluuluul",
    "luluuuulululululllllllllllllllllllllllllllllllllllllllllllllllll",
    "llllllllllllllllllllollllllllllllllllllllllllllloooooooooooooooo",
    "oossssoooooooooooossssssssssssssooooosssssssososssssssssssssssss",
    "MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM",
    "MMMMMMMMMMMMMMMmMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMululOsulxxolllPu",
    "xxxxssuPuuuxuxuuluuuuuuuuuuuuuuuuuxuuuuuuuuullllllllllllllllllll",
    "lllllllllllllllulluuulllululululululululululululllllulsuluulluuu",
    "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuullllllllllllllll",
    "llllllllllllllllllllllllllllllllulululululululululululululululul",
    "ulsMMMMMmmululululululululululululululululululululululululululul",
    "uululululululullulululululululululululululululululululululululul",
    "ululululululululululululululululululululululululxuuuuuuuuuuuuuuu",
    "uuuuuuuuuuuuuuuuuuuuuuuxxoppppppllllllllllllllllllllllllllllllll",
    "lllllllllppxxsssxMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMpM",
    "pMMpMMpMxxxxxxxxoooooooooooooooooooooooooooxxxxooooppxxxxxxxxxxx",
    "xxxxxxsssppsppssMMMMMMMMMMMpxpppoooooooooooooooooooooooooooooooo",
    "oooooooooooMMMMMMMMMMMMMMMMMMMMMnnnnnnnnnnppppooMooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooopoMMMMMMMxsMMMMMMooMMsMMMMoonnnnnnnnnnooosso",
    "ppppppppppppppxxoMooooooooooooooooooooooooooooooMMMMMMMMMMMMMMMM",
    "MMMMMMMMMMMxxooooooooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooommmmmmmmmmmoxxxxxxxxxxxxxx",
    "nnnnnnnnnnoooooooooooooooooooooooooooooooooMMMMMMMMMoospppoxxMss",
    "ooooooooooooooooooooooMMMMoMMMMMMMMMoMMMoMMMMMxxpppppppppppppppx",
    "oooooooooooooooooooooooooMMMxxpxoooooooooooxxxxxoooooooooooooooo",
    "oooooooosooooooxxxxxxxxxMMMMMMMMoooooooooooooooooooooooooooooooo",
    "ooooooooooMMMMMMMMMMMMMMMMMMMMMMMMxMMMMMMMMMMMMMMMMMMMMMMMMMMMMM",
    "mmmmoooooooooooooooooooooooooooooooooooooooooooooooooooooommMomm",
    "mmmmmmmmmmmmmMmmoMMMMmmmOOOOOOOOoommppnnnnnnnnnnpooooooooooooooo",
    "ommmxooooooooxxooxxooooooooooooooooooooooxoooooooxoxxxooooxxMoMm",
    "mmmmmxxmmxxmmMoxxxxxxxxMxxxxOOxOoommxxnnnnnnnnnnoossnnnnnnssopMx",
    "xmmmxooooooxxxxooxxooooooooooooooooooooooxoooooooxoOxoOxooxxMxmm",
    "mmmxxxxmmxxmmMxxxmxxxxxxxOOOoxOxxxxxxxnnnnnnnnnnmmooompxxxxxxxxx",
    "xmmmxoooooooooxoooxooooooooooooooooooooooxoooooooxooxoooooxxMomm",
    "mmmmmmxmmmxmmMxxoxxxxxxxxxxxxxxxoommxxnnnnnnnnnnpsxxxxxxxommmmmm",
    "xmmmxooooooooxxooxxooooooooooooooooooooooxoooooooxooxoooooxxMoMm",
    "mmmmmxxmmxxmmMxxxxxxxmMMxxxxOOxooommxxnnnnnnnnnnsonnnnnnxxxxxxxx",
    "xxmoxooooooxxxoooxooooxxxooxoxooxxxooxxxoooxxxooooooooooooxxxxMm",
    "mmmxxxmmmxmmmMxxoxxxxxxMxxxxxxxxxxxxxxnnnnnnnnnnnnnssssssssxxxxx",
    "mmmmmooooooooxoooxoooooooooooooooooooooooxooooooooooooooooxxMomm",
    "mmmmmxmmmxmmmMxxxxxxxMMxoooxxoxxoommxxnnnnnnnnnnxxxxxxxpnnnnnnns",
    "ommmpooooooooxoooxoooooooooooooooooooooooxooooooooooxoooooxxMomm",
    "mmMmmxmmmxmmmMxxxxxxxMMxxxxxxooxoommxxnnnnnnnnnnxoomxxxxxxxxxxxx",
    "mmmmoooooooooxoooxoooooooooooooooooooooooooooooooooooooooooMMoMm",
    "mmmmmxmmmxmmmMosxxxxoooMnnnnnnnooommxxnnnnnnnnnnnnnnnnnnnsoooooo",
    "xmmmxooooooooooooooooooxxxooooooooooooooooooooooooxoooooooooxoxx",
    "oooooooxxxMxxxxMmmmmmxmxmmmmmmmMxxxxxxnnnnnnnnnnxxmmpxxxxxxxxxxx",
    "xoooooooooooooooooooooooooooooooooooooooooooooooomoommmmMMMxxxxs",
    "ooooooomMMMMmmmpnnnnnnnnnnppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xooxoxoooooxooooooooooooooooooooooooxoxoooooooooomoommmmMMMmmoxx",
    "oooooxoxMMMMmmmxnnnnnnnnnnxxooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ossspppppppppppppppspsssMMssssssnnnnnnnnnnnnnnnnnnnnsMsMsMppppmm",
    "oooOooooxooooOooooOooooOooooOooooooooooooOoooxxxxMMMMMMmMmMMMMmm",
    "MMMMMpMMooooommmmmmMmmmmxmmmmMmmmmMmmmmMmmmmMmmmmmmmmmmmmMmmmxss",
    "ssssssMssssssxsspppppssssppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooommmMmmmmmmmmMmMMmmmmo",
    "nnnnnnnnnnppppppoooooommmmoooommmommmoommmmmmmooommmmooooooooooo",
    "oommmmmmmmmmmMomnnnnnnnnnnmmmmssuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu",
    "uuuuuuxuxxxxxuxxlllllllllllllllllllllllllllllllllllllllllllpolll",
    "oooooooooooooooooooooooooooooooooOOOOOOOOOOOOOOOOOOOOOoooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooOOOOOOOOOOOOOOOOOOOOOOOO",
    "OOOooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooxooooxxoooooooxoxooooxxoooooooooooooooooooooooooooooooo",
    "oooooooooxooooxxoooooooooooooooooooooooooooooooooxooooxxooooooox",
    "oxooooxxoooooooooooooooxoooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooxooooxxoooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooxxMMMpppppppppnnnnnnnnnnnnnnnnnnnnxxx",
    "oooooooooooooooossssssssssxxxxxxuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu",
    "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuxxllllllxx",
    "pooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooooospooooooooooooooooo",
    "wooooooooooooooooooooooooooppxxxoooooooooooooooooooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooopppnnnooooooooxxxxxxx",
    "oooooooooooooooooommMMxxxxxxxxxooooooooooooooooooommMppxxxxxxxxx",
    "oooooooooooooooooommxxxxxxxxxxxxoooooooooooooxoooxmmxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmm",
    "mmmmmmmmmmmmmmmmmmMmpppopppsoMxxnnnnnnnnnnxxxxxxnnnnnnnnnnxxxxxx",
    "pppppppppppmmmxmnnnnnnnnnnxxxxxxoooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxxxxx",
    "ooooommooooooooooooooooooooooooooooooooooMoxxxxxoooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooxmmmmmmmmmmmmxxxxmmmmmmmmmMMMxxxx",
    "sxxxppnnnnnnnnnnooooooooooooooooooooooooooooooxxoooooxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooxxxxoooooooooooooooo",
    "ooooooooooxxxxxxnnnnnnnnnnnxxxssssssssssssssssssssssssssssssssss",
    "oooooooooooooooooooooooMMmmmxxppoooooooooooooooooooooooooooooooo",
    "ooooooooooooooooooooommmmmmmmmmxMmmmmmmmmmmmmmmmmmmmmMMMMMMMMxxM",
    "nnnnnnnnnnxxxxxxnnnnnnnnnnxxxxxxpppppppoppppppxxMMMMMMMMMMMMMMmM",
    "MMMMMMMMMMMMMMMxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "mmmmmoooooooooooooooooooooooooooooooooooooooooooooooMMmmmmmmmmmm",
    "mmmmMooooooooxxxnnnnnnnnnnpppppppssssssssssMMMMMMMMMsssssssssppx",
    "mmmoooooooooooooooooooooooooooooommmmmmmmmMMmmoonnnnnnnnnnoooooo",
    "ooooooooooooooooooooooooooooooooooooooMmmmmmmmmmmmMMxxxxxxxxpppp",
    "oooooooooooooooooooooooooooooooooooommmmmmmmmmmmmmmmmmmMxxxppppp",
    "nnnnnnnnnnxxxooonnnnnnnnnnoooooooooooooooooooooooooooooooooooopp",
    "lllllllllxxxxxxxuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuxxuuu",
    "ppppppppxxxxxxxxMMMpMMMMMMMMMMMMMmMMMMMMMooooMooooooMoomMMoxxxxx",
    "lllllllllllllllllllllllllllllllllllllllllllloooooooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooolllllllllllllolllllll",
    "lllllllllllllllllllllllllllooooooooooooooooooooooooooooooooooooo",
    "ulululululululululululululululululululululululululululululululul",
    "ulululululululululululllllllllululululululululululululululululul",
    "lllllllluuuuuuuullllllxxuuuuuuxxlllllllluuuuuuuulllllllluuuuuuuu",
    "llllllxxuuuuuuxxllllllllxuxuxuxulllllllluuuuuuuulLlLlLlLlLlLlLxx",
    "lllllllluuuuuuuulllllllluuuuuuuulllllllluuuuuuuulllllxlluuuUusLs",
    "sslllxlluUuUussslllLxxlluuuUxssslllLlllluuuUusSSxxlllxlluUuUuSsx",
    "WWwwwwwwwwwxxxxxppppppppppppppppppppppppwwxxxxxwpppppppppppppppp",
    "ppppspppppppppppppsppppppppppppwxxxxxxxxxxxxxxxxnoxxnnnnnnsssppo",
    "nnnnnnnnnnsssppxoooooooooooooxxxssssssssssssssssssssssssssssssss",
    "sxxxxxxxxxxxxxxxMMMMMMMMMMMMMmmmmMmmmMMMMMMMMMMMMxxxxxxxxxxxxxxx",
    "ssussssussluuulluuulsusssuuuuussssssusUsusUUuusluuuuloooolsslluu",
    "sssssullllsssslsnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnulnnnnnssxxxxssssssssssssssssssssssssssssssssssssssssssssssss",
    "ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss",
    "ssssssssppppsssssssssssssssssssssssssssssPPsssssssssssssssssssss",
    "sssssssssssssssssssssssssssssssssssssssxxxxxxxxxxxxxxxxxxxxxxxxx",
    "sssssssssssxxxxxxxxxxxxxxxxxxxxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnssssssssssssssssssssssssssssssssssss",
    "ssssssssssssssssssssssssssssssssssssssssssnnnnnnnnnnnnnnnnnnnnnn",
    "ssssssssssssssssssssssssssssssssssssssssppppppppppppppnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnssssssssssssssssssssssssssssssssssssssssssss",
    "sssssppsssssssssssssssssssssssssssssssppppppppppssssssssssssssss",
    "sssppppppppppppppppppppppsssssssssssssssssssssssssssssssssssssss",
    "ssssssssssssssssssssssssppppssssssssssssssssssssssssssssssssppss",
    "ssssssssssssssssssssssssssssSsssssssssssssssssssssssssssssssssss",
    "ssssssssssssssssssssssssssssssssssssssssssssssssssssxxssssssssss",
    "ssssssssssssssssssssssxsssssssssssssssssssssssssssssssssssssssss",
    "lllllllllllllllllllllllllllllllluluuullulululuuuulullulllllloouu",
    "ulululululululululululululululululullssssssululMMMulxxxxxppppnpp",
    "llllllllllllllllllllllllllllllllllllllxlxxxxxlxxoooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooxxxxxxxopxxxxxxxxxxxxxxM",
    "oooooooooooooooooooooooxxxxxxxxxoooooooxoooooooxoooooooxooooooox",
    "oooooooxoooooooxoooooooxoooooooxMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM",
    "pppppppppppppppppppppppppppppppppppppppppppppppopppppppppppppppp",
    "ppppppppppppppppssppppppppppppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ssssssssssssssssssssssssssxsssssssssssssssssssssssssssssssssssss",
    "ssssssssssssssssssssssssssssssssssssssssssssssssssssxxxxxxxxxxxx",
    "ssssssssssssssssssssssxxxxxxxxxxxxxxxxxxxxxxxxxxssssssssssssxxxx",
    "wpppsoonppppppppppssppppppppppppsnnnnnnnnnMMMMMMpooooossnnnoopss",
    "xooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooxxMMssooopooooooooooooooooooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooopoooo",
    "xxxxxoooooooooooooooooooooooooooooooooooooooooooxooooooooooooooo",
    "oooooooooooooooxssnnnnssssssssssoooooooooooooooooooooooooooooooo",
    "ssssssssssssssssssssssssssssssssssssxxxxxxxxxxxxoooooooooooooooo",
    "sssssssssssssssssssssssssssssssxnnnnnnnnnnssssssssssssssssssssss",
    "ssssssssnnnnnnnnsnnnnnnnnnnnnnnnssssssssssssssssssssssssssssssss",
    "nnnnnnnnnnsssssssssssssssssssssssssssssssssssssssnnnnnnnnnnnnnnn",
    "oooooooooooooxxxssssssssssssssssssssssssssssssssssssssssssssssss",
    "sssssssxxxxxxxxxoooooooooooooooooooooooooooooooooooooooooooooopp",
    "ooooooooooooopppoooooooooooooooonnnnnnnnnnooxxxxxxxxxxxxxxxxxxxx",
    "ulululululululululululululululululululululululoMmmmpMMMMMMMMMMpo",
    "ululululululululululululululooMMoooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooonnnnnnnnnnMMppppppxxxxxxxx",
    "sssssssssssssssssssssssooooooooossulululululululllululululululul",
    "ululululululululululululululululululululululululollllllllululuul",
    "ululululossululoululllululululululululululuuuuuluuuuulululululul",
    "ululuuuululxxxxxulxlxlululxxxxxxxxxxxxxxxxxxxxxxxxoooulooolooooo",
    "oomoooMoooomooooooooooooooooooooooommmmmssssMxxxnnnnnnssssxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooppppxxxxxxxx",
    "mmoooooooooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmm",
    "mmmmMmxxxxxxxxppnnnnnnnnnnxxxxxxMMMMMMMMMMMMMMMMMMoooooopppopoom",
    "nnnnnnnnnnoooooooooooooooooooooooooooommmmmMMMppoooooooooooooooo",
    "ooooooommmmmmmmmmmmMxxxxxxxxxxxpoooooooooooooooooooooooooooooxxx",
    "mmmmoooooooooooooooooooooooooooooooooooooooooooooooMmmmmmmmmmmmm",
    "Mpppppppppppppxonnnnnnnnnnxxxxppooooomoooooooooonnnnnnnnnnooooox",
    "ooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmmmmxxxxxxxxx",
    "ooomoooooooommxxnnnnnnnnnnxxppppooooooooooooooooooooooosssommmoo",
    "ooooooooooooooooooooooooooooooooooooooooooooooooMoMMMooMMoooooMM",
    "oMoxxxxxxxxxxxxxxxxxxxxxxxxoooppooooooooooommmmmppooomMxxxxxxxxx",
    "xooooooxxooooooxxooooooxxxxxxxxxoooooooxoooooooxllllllllllllllll",
    "lllllllllllllllllllllllllllsoooolllllllllossxxxxllllllllllllllll",
    "llllllllllllllllllllllllllllllllllllllllllllllllllllllllllllllll",
    "ooooooooooooooooooooooooooooooooooommmmmmmmpmMxxnnnnnnnnnnxxxxxx",
    "ooooooooooooooooooooooooooooooooooooxxxxxxxxxxxxoooooooooooooooo",
    "oooooooxxxxoooooooooooooooooooooooooooooooooooooooooooooooooxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "OOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOO",
    "OOOOOOOOOOOOOOooOoOooOOOOOOOOOOoOoOooOOoooOOOOOOOOOOOOOOOOOOOOOO",
    "OOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOxxOOOOOOOOOOOOOOOO",
    "OOOOOOOOOOOOOOOOOOOOOOOOOOxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "lllllllxxxxxxxxxxxxlllllxxxxxOMOooooooooosOOOOOOOOOOOOOxOOOOOxOx",
    "OOxOOxOOOOOOOOOooooooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooooooooooooooossssssssssssss",
    "sssxxxxxxxxxxxxxxxxooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooopp",
    "ssssssssssssssssoooooooooooooooooooooooooooooooooooooooooooooooo",
    "ooooooooooooooooxxoooooooooooooooooooooooooooooooooooooooooooooo",
    "ooooooooxxxxxxxsxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxoooooooooooossss",
    "mmmmmmmmmmmmmmmmppppppppppxxxxxxMMMMMMMMMMMMMMMMpppppppppppppppp",
    "pppppppppppppppppppxppppppppppppppspsssxpsppxxxxoooooxoooooooooo",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooxxx",
    "xpppsppppppsppppnnnnnnnnnnppsssppuuuuuuuuuuuuuuuuuuuuuuuuuupppsp",
    "sllllllllllllllllllllllllllpspspppppppoooooooooooooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooox",
    "xxooooooxxooooooxxooooooxxoooxxxsssssssxsssssssxxxxxxxxxxxxxssxx",
    "ooooooooooooxooooooooooooooooooooooooooxoooooooooooooooooooxooxo",
    "ooooooooooooooxxooooooooooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxxx",
    "pppxxxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnxxxsssssssss",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnsssssss",
    "ssssssssssnnsssxsssssssssssssxxxsxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxsssssssssssssssssssssssssssssssssssssssssssssMxx",
    "oooooooooooooooooooooooooooooxxxoooooooooooooooooooooooooooooooo",
    "oooooooooooooooooxxxxxxxxxxxxxxxMnnnnnnnnnnnnnnnnnnnnnnnnnnnxxxx",
    "oooooooooooooooooooooooooooooooonnnnxxxxxxxxxooooooooooooooooooo",
    "onoooooooonxxxxxooooooooooooooooooooooooooooooooooooooMMMMMxxxxx",
    "ooooooooooooooooooooooooooooooxpoooooooooooooooooooooooooooooooo",
    "ooooxxxxoooooooopnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuullllllllllllllllllllllll",
    "lllllllllllllllloooooooooooooooooooooooooooooooooooooooooooooooo",
    "ooooooooooooooooooooooooooooooxxnnnnnnnnnnxxxxxxuuuuuuuuuuuuuuuu",
    "uuuuuuuuuuuuuuuuuuuuxxxxllllllllllllllllllllllllllllllllllllxxxx",
    "ooooooooooooooooooooooooooooooooooooooooxxxxxxxxoooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooxxxxxxxxxxxpuuuuuuuuuuuxuuuu",
    "uuuuuuuuuuuxuuuuuuuxuuxlllllllllllxlllllllllllllllxlllllllxllxxx",
    "oooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxxxxxxx",
    "ooooooooooooooooooooooxxxxxxxxxxooooooooxxxxxxxxxxxxxxxxxxxxxxxx",
    "ooooooxooooooooooooooooooooooooooooooooooooooooooxoooooooooxxxxx",
    "ooooooxxoxooooooooooooooooooooooooooooooooooooooooooooxooxxxoxxo",
    "ooooooooooooooooooooooxpnnnnnnnnooooooooooooooooooooooossnnnnnnn",
    "oooooooooooooooooooooooooooooooxxxxxxxxnnnnnnnnnxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxoooooooooooooooooooxooxxxxxnnnnn",
    "oooooooooooooooooooooonnnnnnxxxpooooooooooooooooooooooooooxxxxxp",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxxnnoo",
    "nnnnnnnnnnnnnnnnxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "ommmxmmxxxxxmMmMooooxoooxoooooooooooooooooooooooooooooxxMMMxxxxM",
    "nnnnnnnnnxxxxxxxpppppppppxxxxxxxooooooooooooooooooooooooooooonnp",
    "ooooooooooooooooooooooooooooonnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooosooooooooooooooooooooooooooooMMxxxxnnnnnpppppppxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxppppppp",
    "ooooooooooooooooooooooxxnnnnnnnnoooooooooooooooooooxxxxxnnnnnnnn",
    "ooooooooooooooooooxxxxxxxppppxxxxxxxxxxxxnnnnnnnxxxxxxxxxxxxxxxx",
    "oooooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuxxxxxxxxxxxxx",
    "lllllllllllllllllllllllllllllllllllllllllllllllllllxxxxxxxnnnnnn",
    "ooooooooooooooooooooooooooooooooooooMMMMxxxxxxxxnnnnnnnnnnxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnx",
    "ooooooooooooooooooooooooooooooooooooooooooxMMpxxooxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxMMM",
    "ooooooooooooooooooooooooooooonnnnnnnnnnoxxxxxxxxoooooooooooooooo",
    "ooooooMMMMMMMMMMMnnnnpppppxxxxxxxxxxxxxxxxxxxxxxoooooooooooooooo",
    "ooMMMMppppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxoooooooooooooooo",
    "ooooonnnnnnnxxxxxxxxxxxxxxxxxxxxoooooooooooooooooooooooxxxxxxxxx",
    "mmmooooooooooooooooooooooooooooooooooooooooooooooooooooommmmmmmm",
    "mmmmmmMpppppppxxxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnMoommoxxxxxxxxxM",
    "mmmooooooooooooooooooooooooooooooooooooooooooooommmmmmmmmMMppxpp",
    "ppmxxxxxxxxxxxxxoooooooooooooooooooooooooxxxxxxxnnnnnnnnnnxxxxxx",
    "MMMooooooooooooooooooooooooooooooooooooMmmmmmmmmmmmMMxnnnnnnnnnn",
    "ppppommoxxxxxxxxoooooooooooooooooooooooooooooooooooMppoxxxxxxxxx",
    "mmmoooooooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmmm",
    "MooooppppmMmmpmmnnnnnnnnnnopopppxnnnnnnnnnnnnnnnnnnnnxxxxxxxxxxx",
    "ooooooooooooooooooxooooooooooooooooooooooooommmmmmmmmMMmppppppmo",
    "omxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooxoxooooxoooooooooooooooxoooooooooopxxxxxxoooooooooooooooo",
    "ooooooooooooooooooooooooooooooommmmmmmmmmMMxxxxxnnnnnnnnnnxxxxxx",
    "mmmmxooooooooxxooxxooooooooooooooooooooooxoooooooxooxoooooxMMoMm",
    "mmmmmxxmmxxmmMxxoxxxxxxMxxxxxooooommxxMMMMMMMxxxMMMMMxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmm",
    "mmMmmmMoooopppppnnnnnnnnnnppxpMoooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooMmmmmmmmmmMmmMmm",
    "mmMMoopoxxxxxxxxnnnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooooooMmmmmmmxxmmmmmmmM",
    "Mpppppppppppppppppppppppoooommxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmmmmmM",
    "mpppoxxxxxxxxxxxnnnnnnnnnnxxxxxxpppppppppppppxxxxxxxxxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmMMopxxxxxx",
    "nnnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooxxmmmmmmmmmmmmmmMxxxxnnnnnnnnnnnnppps",
    "oooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooommmmmmmmmmmmmMMpxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu",
    "llllllllllllllllllllllllllllllllnnnnnnnnnnnnnnnnnnnxxxxxxxxxxxxo",
    "oooooooxxoxxooooooooxooxooooooooooooooooooooooooMmmmmmxmmxxmmMMo",
    "momMpppxxxxxxxxxnnnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxooooooooxxoooooooooooooooooooooo",
    "ooooooooooooooooommmmmmmxxmmmmmmMopomxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ommmmmmmmmmoooooooooooooooooooooooooooooooooooooooomMmmmmmommmmp",
    "pppppppMxxxxxxxxommmmmmmmmmmoooooooooooooooooooooooooooooooooooo",
    "oooooooooommmmmmmmmmmmmmmMpppopppppxxxxxxxxxxxxxoooooooooooooooo",
    "ppppppppppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooxooooooooooooooooooooooooooooooooooooommmmmmmmxmmmmmmmM",
    "opppppxxxxxxxxxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnxxxppoooooooooooooo",
    "ooooooooooooooooxxmmmmmmmmmmmmmmmmmmmmmmxmmmmmmmmmmmmmmxxxxxxxxx",
    "oooooooxooxoooooooooooooooooooooooooooooooooooooommmmmmxxxmxmmxm",
    "mmMmMMomxxxxxxxxnnnnnnnnnnxxxxxxooooooxooxoooooooooooooooooooooo",
    "oooooooooommmmmxmmxmmmmMoxxxxxxxnnnnnnnnnnxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxooooooooooooooooooommmmppxxxxxxx",
    "mmomoooooooooooooxoooooooooooooooooooooooooooooooooommmmmmmxxxmm",
    "mMMpppppppppppppnnnnnnnnnnxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxoxxxxxxxxxxxxxxx",
    "nnnnnnnnnnnnnnnnnnnnnsssssssssssssssssssssssssssssxxxxxxxxxxxxxp",
    "ooooooooooooooooooooooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnxpppppxxxxxxxxxxx",
    "ooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxoooooooooooooooooooooooooooooooooooooooooooooooo",
    "oooooooooooooooooooooooooooooooooooooooooooooooooppxxxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooxxxxxxxxxxxxxxxx",
    "moooooommmmmmmmmmmmmmmxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooxnnnnnnnnnnxxxxppoooooooooooooooo",
    "nnnnnnnnnnxxxxxxooooooooooooooooooooooooooooooxxMMMMMpxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooMMMMMMMpppppssss",
    "oooopsxxxxxxxxxxnnnnnnnnnnxnnnnnnnxoooooooooooooooooooooxxxxxooo",
    "ooooooooooooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuullllllllllllllllllllllllllllllll",
    "nnnnnnnnnnnnnnnnnnnnnnnppppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooxxxxmommmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm",
    "mmmmmmmmxxxxxxxmmmmoooooooooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxoopomxxxxxxxxxxxMMxxxxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxxxxxx",
    "ooooooooooooooooooooooxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxooooxoooooooxoox",
    "oooooooooooooooooooooooooooooooooooxxxxxxxxxxxxxxxoxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxoooxxoxxxxxxxxxxxxxxooooxxxxxxxxoooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooxxxxxoooooooooooooxxx",
    "oooooooooxxxxxxxooooooooooxxsmMpxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmxxmmmmmmmmmmmmmmmm",
    "mmmmmmmxxxxxxxxxssssssssssssssssssssssssssssssssssssssssssssssss",
    "ssssxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ssssssssssssssssssssssssssssssssssssssssssssssssssssssxxxxxxxxxx",
    "sssssssssssssssssssssssssssssssssssssssxxsssssssssssssssssssssss",
    "ssssssssssssssssssssssssssssssSSSSSSSMMMMMsssMMMMMMxxxxxxxxMMMMM",
    "MMMssMMMMMMMssssssssssssssssssssssssssssssMMMMsssssssssssssSSSSS",
    "Sssssssssssssssssssssssssssssssssssssssssssxxxxxxxxxxxxxxxxxxxxx",
    "ssMMMsxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "nnnnnnnnnnnnnnnnnnnnxxxxxxxxxxxxnnnnnnnnnnnnnnnnnnnnxxxxxxxxxxxx",
    "sssssssssssssssssssssssxxxxxxxxxnnnnnnnnnnnnnnnnnnnnnnnnnxxxxxxx",
    "uuuuuuuuuuuuuuuuuuuuuuuuuulllllllllllllllllllllllllluuuuuuuuuuuu",
    "uuuuuuuuuuuuuulllllllxlllllllllllllllllluuuuuuuuuuuuuuuuuuuuuuuu",
    "uulllllllllllllllllllllllllluxuuxxuxxuuxxuuuuxuuuuuuuullllxlxlll",
    "llllxllllllllllluuuuuuuuuuuuuuuuuuuuuuuuuullllllllllllllllllllll",
    "lllluuxuuuuxxuuuuuuuuxuuuuuuuxlllllllllllllllllllllllllluuxuuuux",
    "uuuuuxuxxxuuuuuuuxlllllllllllllllllllllllllluuuuuuuuuuuuuuuuuuuu",
    "uuuuuulllllllllllllllllllllllllluuuuuuuuuuuuuuuuuuuuuuuuuullllll",
    "lllllllllllllllllllluuuuuuuuuuuuuuuuuuuuuuuuuullllllllllllllllll",
    "lllllllluuuuuuuuuuuuuuuuuuuuuuuuuulllllllllllllllllllllllllluuuu",
    "uuuuuuuuuuuuuuuuuuuuuulllllllllllllllllllllllllluuuuuuuuuuuuuuuu",
    "uuuuuuuuuullllllllllllllllllllllllllllxxuuuuuuuuuuuuuuuuuuuuuuuu",
    "uslllllllllllllllllllllllllslllllluuuuuuuuuuuuuuuuuuuuuuuuusllll",
    "lllllllllllllllllllllslllllluuuuuuuuuuuuuuuuuuuuuuuuusllllllllll",
    "lllllllllllllllslllllluuuuuuuuuuuuuuuuuuuuuuuuusllllllllllllllll",
    "lllllllllslllllluuuuuuuuuuuuuuuuuuuuuuuuusllllllllllllllllllllll",
    "lllsllllllulxxnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmssssmmmmm",
    "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmssssssssmssssssssss",
    "ssssmsspppppxxxxxxxxxxxxxxxmmmmmxmmmmmmmmmmmmmmmxxxxxxxxxxxxxxxx",
    "llllllllllollllllllllllllllllllxxxxxxllllllxxxxxxxxxxxxxxxxxxxxx",
    "MMMMMMMxMMMMMMMMMMMMMMMMMxxMMMMMMMxMMxMMMMMxxxxxoooooooooooooooo",
    "ooooooooooooooooooooooooooooooooooooooooooooooxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxMxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "oooooooooooooooooooooooooooooooooooooooooooooxxxMMMMMMMoooooooxx",
    "nnnnnnnnnnxxxxosxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxooooooooooooooooooooooooooooooMxxxxxxxxxxxxxxxxx",
    "ooooooooooooooooooooooooooooooooooooooooooooMMMMnnnnnnnnnnxxxxxs",
    "xxxxxxxxxxxxxxxxooooooooooooooooooooooooooooMMMMnnnnnnnnnnxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxoooooooxooooxooxooooooooooooooox",
    "oooooxxnnnnnnnnnMMMMMMMxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "uuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuullllllllllllllllllllllllllllll",
    "llllMMMMMMMoxxxxnnnnnnnnnnxxxxppxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnsnnnsnnnnxxxxxxxxxxx",
    "xnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnsnnnnnnnnnnnnnnnxx",
    "ooooxoooooooooooooooooooooooooooxooxoxxoxooooooooooxooooxoxoxxxx",
    "xxoxxxxoxoxoxoooxooxoxxoxoxoxoxoxooxoxxooooxoooooooxooooxooooxox",
    "ooooooooooxoooooooooooooooooxxxxxoooxoooooxoooooooooooooooooxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxssxxxxxxxxxxxxxx",
    "ssssssssssssssssssssssssssssssssssssssssssssxxxxssssssssssssssss",
    "ssssssssssssssssssssxxxxxxxxxxxxsssssssssssssssxxsssssssssssssss",
    "xsssssssssssssssxsssssssssssssssssssssssssssssssssssssxxxxxxxxxx",
    "nnnnnnnnnnnnnsssssssssssssssssssssssssssssssssssssssssssssssssss",
    "ssssssssssssssssssssssssssssssssssssssssssssssxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxssssssssssssssssssssssssss",
    "sssxxxxxxxxxxxxxssssssssssssssssssssssssssssssssssssssssssssxxxx",
    "sssssssssxxxxxxxssxxxxxxxxxxxxxxssssssxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "ssssssssssssssssssssssssxxxxsssssssssssssssssxxxsssssssssssssxxx",
    "sssssssssssssssssssssssssssssssssssssssssssssssssssssssxxxxsssss",
    "ssssssssssssssssssssssssssxxxxxxssssssssssssxxxxsxxxxxxxxxxxxxxx",
    "ssssssssssssxxxxssssssssssssssssssssssssssssssssssssssssssssssss",
    "ssssssssxxxxxxxxssssssssssxxxxxxssssssssssssssssssssssssssssssss",
    "ssssssssxxxxxxxxssssssssssssssssssssssssssssssxxssxxxxxxxxxxxxxx",
    "ssssssssssssssssssssxxxxxxxxxxxxssssssssssssssxxsssssssssssssxxx",
    "sssssssssxxxxxxxssssssssssssssssssssssssssssssssssssssssssssssxs",
    "ssssssxxxxxxxxssssssssssssssxxxxsssssssssxxxxxxxsssssssssxxxxxxx",
    "sssssssssssssssssssxssssssssssssssssssssssssssssssssssssssssssss",
    "sssssssssssxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxnnnnnnnnnnxxxxxx"
};

static const uint16_t unicode_index[2048] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59,
    60, 61, 62, 63, 64, 65, 66, 67, 26, 68, 69, 70, 26, 71, 72, 73, 74, 75, 76, 77, 78, 26, 26, 26, 26, 26, 26, 26, 26,
    79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105,
    106, 107, 108, 12, 109, 109, 110, 109, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 122, 122, 122,
    122, 123, 122, 122, 122, 124, 125, 126, 127, 122, 122, 122, 122, 122, 122, 122, 122, 122, 128, 129, 130, 122, 122,
    122, 122, 122, 122, 131, 132, 122, 122, 122, 133, 122, 134, 135, 122, 16, 136, 109, 137, 138, 139, 140, 141, 142,
    143, 144, 145, 122, 122, 122, 146, 147, 148, 149, 150, 151, 26, 152, 153, 154, 155, 156, 122, 122, 122, 122, 122,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 122, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 157, 158, 26, 26, 26, 26, 159, 160, 161, 162, 163, 164,
    165, 166, 167, 168, 169, 170, 171, 172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 183, 184, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 186, 186, 186, 186, 187, 188, 186, 189, 190,
    191, 192, 193, 26, 26, 26, 26, 194, 195, 196, 197, 198, 199, 26, 200, 201, 202, 203, 204, 205, 206, 26, 207, 208,
    209, 210, 211, 185, 185, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 185, 26, 26, 26, 26, 225,
    226, 227, 185, 228, 229, 230, 231, 232, 185, 233, 234, 235, 236, 237, 238, 239, 240, 241, 185, 26, 242, 243, 244,
    245, 185, 185, 185, 185, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255, 256, 257, 258, 259, 260, 261, 262, 263,
    264, 265, 266, 185, 185, 267, 268, 269, 270, 185, 185, 271, 272, 273, 274, 275, 276, 277, 278, 185, 185, 279, 185,
    280, 281, 282, 283, 284, 285, 286, 287, 288, 87, 289, 185, 185, 185, 290, 291, 292, 185, 293, 294, 295, 185, 185,
    185, 185, 296, 297, 298, 299, 300, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 301, 185, 302, 303, 26,
    26, 26, 304, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 305, 306, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 307, 308, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 26, 26, 26, 26, 26, 26, 26, 26, 26, 278, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 26, 26, 26, 26, 26, 26, 26, 26, 87, 309, 203, 310, 311, 312,
    313, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 314, 315, 185, 26, 316, 317, 318, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26,
    26, 319, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 26, 320, 242, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 321, 26, 26, 26, 26,
    322, 323, 26, 26, 26, 26, 26, 324, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 26, 325, 326,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 327, 328, 122, 329, 122, 122, 122, 330, 331, 332, 333, 334, 122, 335, 185, 336, 122, 337, 185,
    185, 338, 339, 340, 341, 342, 343, 344, 345, 346, 347, 348, 349, 350, 351, 352, 353, 122, 122, 122, 122, 122, 122,
    122, 122, 354, 355, 356, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 357,
    185, 185, 185, 358, 359, 360, 185, 361, 362, 185, 185, 185, 185, 363, 364, 185, 185, 185, 185, 185, 185, 185, 365,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 366, 26, 26, 26, 367, 368, 369, 185, 185, 185, 185, 185, 185,
    185, 185, 185, 185, 185, 370, 371, 185, 372, 185, 185, 185, 373, 374, 375, 376, 185, 185, 185, 185, 377, 122, 378,
    379, 380, 122, 381, 382, 383, 384, 185, 185, 122, 122, 122, 122, 122, 122, 122, 122, 122, 122, 122, 122, 122, 122,
    122, 385, 122, 386, 122, 387, 388, 389, 390, 185, 122, 122, 122, 122, 122, 391, 392, 393, 122, 122, 394, 395, 185,
    185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185, 185,
};

/* From there on; what is not listed is 'x'. */
static const unicode_range unicode_far[9] = {
    {0x20000, 42720, 'o'}, {0x2A700, 4154, 'o'}, {0x2B740, 222, 'o'}, {0x2B820, 5762, 'o'}, {0x2CEB0, 7473, 'o'},
    {0x2F800, 542, 'O'}, {0x30000, 4939, 'o'}, {0x31350, 4192, 'o'}, {0xE0100, 240, 'm'},
};

/* Canonical combining classes that are not 0. */
static const unicode_range unicode_combining[388] = {
    {0x300, 21, 230}, {0x315, 1, 232}, {0x316, 4, 220}, {0x31A, 1, 232}, {0x31B, 1, 216}, {0x31C, 5, 220},
    {0x321, 2, 202}, {0x323, 4, 220}, {0x327, 2, 202}, {0x329, 11, 220}, {0x334, 5, 1}, {0x339, 4, 220},
    {0x33D, 8, 230}, {0x345, 1, 240}, {0x346, 1, 230}, {0x347, 3, 220}, {0x34A, 3, 230}, {0x34D, 2, 220},
    {0x350, 3, 230}, {0x353, 4, 220}, {0x357, 1, 230}, {0x358, 1, 232}, {0x359, 2, 220}, {0x35B, 1, 230},
    {0x35C, 1, 233}, {0x35D, 2, 234}, {0x35F, 1, 233}, {0x360, 2, 234}, {0x362, 1, 233}, {0x363, 13, 230},
    {0x483, 5, 230}, {0x591, 1, 220}, {0x592, 4, 230}, {0x596, 1, 220}, {0x597, 3, 230}, {0x59A, 1, 222},
    {0x59B, 1, 220}, {0x59C, 6, 230}, {0x5A2, 6, 220}, {0x5A8, 2, 230}, {0x5AA, 1, 220}, {0x5AB, 2, 230},
    {0x5AD, 1, 222}, {0x5AE, 1, 228}, {0x5AF, 1, 230}, {0x5B0, 1, 10}, {0x5B1, 1, 11}, {0x5B2, 1, 12}, {0x5B3, 1, 13},
    {0x5B4, 1, 14}, {0x5B5, 1, 15}, {0x5B6, 1, 16}, {0x5B7, 1, 17}, {0x5B8, 1, 18}, {0x5B9, 2, 19}, {0x5BB, 1, 20},
    {0x5BC, 1, 21}, {0x5BD, 1, 22}, {0x5BF, 1, 23}, {0x5C1, 1, 24}, {0x5C2, 1, 25}, {0x5C4, 1, 230}, {0x5C5, 1, 220},
    {0x5C7, 1, 18}, {0x610, 8, 230}, {0x618, 1, 30}, {0x619, 1, 31}, {0x61A, 1, 32}, {0x64B, 1, 27}, {0x64C, 1, 28},
    {0x64D, 1, 29}, {0x64E, 1, 30}, {0x64F, 1, 31}, {0x650, 1, 32}, {0x651, 1, 33}, {0x652, 1, 34}, {0x653, 2, 230},
    {0x655, 2, 220}, {0x657, 5, 230}, {0x65C, 1, 220}, {0x65D, 2, 230}, {0x65F, 1, 220}, {0x670, 1, 35},
    {0x6D6, 7, 230}, {0x6DF, 4, 230}, {0x6E3, 1, 220}, {0x6E4, 1, 230}, {0x6E7, 2, 230}, {0x6EA, 1, 220},
    {0x6EB, 2, 230}, {0x6ED, 1, 220}, {0x711, 1, 36}, {0x730, 1, 230}, {0x731, 1, 220}, {0x732, 2, 230},
    {0x734, 1, 220}, {0x735, 2, 230}, {0x737, 3, 220}, {0x73A, 1, 230}, {0x73B, 2, 220}, {0x73D, 1, 230},
    {0x73E, 1, 220}, {0x73F, 3, 230}, {0x742, 1, 220}, {0x743, 1, 230}, {0x744, 1, 220}, {0x745, 1, 230},
    {0x746, 1, 220}, {0x747, 1, 230}, {0x748, 1, 220}, {0x749, 2, 230}, {0x7EB, 7, 230}, {0x7F2, 1, 220},
    {0x7F3, 1, 230}, {0x7FD, 1, 220}, {0x816, 4, 230}, {0x81B, 9, 230}, {0x825, 3, 230}, {0x829, 5, 230},
    {0x859, 3, 220}, {0x898, 1, 230}, {0x899, 3, 220}, {0x89C, 4, 230}, {0x8CA, 5, 230}, {0x8CF, 5, 220},
    {0x8D4, 14, 230}, {0x8E3, 1, 220}, {0x8E4, 2, 230}, {0x8E6, 1, 220}, {0x8E7, 2, 230}, {0x8E9, 1, 220},
    {0x8EA, 3, 230}, {0x8ED, 3, 220}, {0x8F0, 1, 27}, {0x8F1, 1, 28}, {0x8F2, 1, 29}, {0x8F3, 3, 230}, {0x8F6, 1, 220},
    {0x8F7, 2, 230}, {0x8F9, 2, 220}, {0x8FB, 5, 230}, {0x93C, 1, 7}, {0x94D, 1, 9}, {0x951, 1, 230}, {0x952, 1, 220},
    {0x953, 2, 230}, {0x9BC, 1, 7}, {0x9CD, 1, 9}, {0x9FE, 1, 230}, {0xA3C, 1, 7}, {0xA4D, 1, 9}, {0xABC, 1, 7},
    {0xACD, 1, 9}, {0xB3C, 1, 7}, {0xB4D, 1, 9}, {0xBCD, 1, 9}, {0xC3C, 1, 7}, {0xC4D, 1, 9}, {0xC55, 1, 84},
    {0xC56, 1, 91}, {0xCBC, 1, 7}, {0xCCD, 1, 9}, {0xD3B, 2, 9}, {0xD4D, 1, 9}, {0xDCA, 1, 9}, {0xE38, 2, 103},
    {0xE3A, 1, 9}, {0xE48, 4, 107}, {0xEB8, 2, 118}, {0xEBA, 1, 9}, {0xEC8, 4, 122}, {0xF18, 2, 220}, {0xF35, 1, 220},
    {0xF37, 1, 220}, {0xF39, 1, 216}, {0xF71, 1, 129}, {0xF72, 1, 130}, {0xF74, 1, 132}, {0xF7A, 4, 130},
    {0xF80, 1, 130}, {0xF82, 2, 230}, {0xF84, 1, 9}, {0xF86, 2, 230}, {0xFC6, 1, 220}, {0x1037, 1, 7}, {0x1039, 2, 9},
    {0x108D, 1, 220}, {0x135D, 3, 230}, {0x1714, 2, 9}, {0x1734, 1, 9}, {0x17D2, 1, 9}, {0x17DD, 1, 230},
    {0x18A9, 1, 228}, {0x1939, 1, 222}, {0x193A, 1, 230}, {0x193B, 1, 220}, {0x1A17, 1, 230}, {0x1A18, 1, 220},
    {0x1A60, 1, 9}, {0x1A75, 8, 230}, {0x1A7F, 1, 220}, {0x1AB0, 5, 230}, {0x1AB5, 6, 220}, {0x1ABB, 2, 230},
    {0x1ABD, 1, 220}, {0x1ABF, 2, 220}, {0x1AC1, 2, 230}, {0x1AC3, 2, 220}, {0x1AC5, 5, 230}, {0x1ACA, 1, 220},
    {0x1ACB, 4, 230}, {0x1B34, 1, 7}, {0x1B44, 1, 9}, {0x1B6B, 1, 230}, {0x1B6C, 1, 220}, {0x1B6D, 7, 230},
    {0x1BAA, 2, 9}, {0x1BE6, 1, 7}, {0x1BF2, 2, 9}, {0x1C37, 1, 7}, {0x1CD0, 3, 230}, {0x1CD4, 1, 1}, {0x1CD5, 5, 220},
    {0x1CDA, 2, 230}, {0x1CDC, 4, 220}, {0x1CE0, 1, 230}, {0x1CE2, 7, 1}, {0x1CED, 1, 220}, {0x1CF4, 1, 230},
    {0x1CF8, 2, 230}, {0x1DC0, 2, 230}, {0x1DC2, 1, 220}, {0x1DC3, 7, 230}, {0x1DCA, 1, 220}, {0x1DCB, 2, 230},
    {0x1DCD, 1, 234}, {0x1DCE, 1, 214}, {0x1DCF, 1, 220}, {0x1DD0, 1, 202}, {0x1DD1, 37, 230}, {0x1DF6, 1, 232},
    {0x1DF7, 2, 228}, {0x1DF9, 1, 220}, {0x1DFA, 1, 218}, {0x1DFB, 1, 230}, {0x1DFC, 1, 233}, {0x1DFD, 1, 220},
    {0x1DFE, 1, 230}, {0x1DFF, 1, 220}, {0x20D0, 2, 230}, {0x20D2, 2, 1}, {0x20D4, 4, 230}, {0x20D8, 3, 1},
    {0x20DB, 2, 230}, {0x20E1, 1, 230}, {0x20E5, 2, 1}, {0x20E7, 1, 230}, {0x20E8, 1, 220}, {0x20E9, 1, 230},
    {0x20EA, 2, 1}, {0x20EC, 4, 220}, {0x20F0, 1, 230}, {0x2CEF, 3, 230}, {0x2D7F, 1, 9}, {0x2DE0, 32, 230},
    {0x302A, 1, 218}, {0x302B, 1, 228}, {0x302C, 1, 232}, {0x302D, 1, 222}, {0x302E, 2, 224}, {0x3099, 2, 8},
    {0xA66F, 1, 230}, {0xA674, 10, 230}, {0xA69E, 2, 230}, {0xA6F0, 2, 230}, {0xA806, 1, 9}, {0xA82C, 1, 9},
    {0xA8C4, 1, 9}, {0xA8E0, 18, 230}, {0xA92B, 3, 220}, {0xA953, 1, 9}, {0xA9B3, 1, 7}, {0xA9C0, 1, 9},
    {0xAAB0, 1, 230}, {0xAAB2, 2, 230}, {0xAAB4, 1, 220}, {0xAAB7, 2, 230}, {0xAABE, 2, 230}, {0xAAC1, 1, 230},
    {0xAAF6, 1, 9}, {0xABED, 1, 9}, {0xFB1E, 1, 26}, {0xFE20, 7, 230}, {0xFE27, 7, 220}, {0xFE2E, 2, 230},
    {0x101FD, 1, 220}, {0x102E0, 1, 220}, {0x10376, 5, 230}, {0x10A0D, 1, 220}, {0x10A0F, 1, 230}, {0x10A38, 1, 230},
    {0x10A39, 1, 1}, {0x10A3A, 1, 220}, {0x10A3F, 1, 9}, {0x10AE5, 1, 230}, {0x10AE6, 1, 220}, {0x10D24, 4, 230},
    {0x10EAB, 2, 230}, {0x10EFD, 3, 220}, {0x10F46, 2, 220}, {0x10F48, 3, 230}, {0x10F4B, 1, 220}, {0x10F4C, 1, 230},
    {0x10F4D, 4, 220}, {0x10F82, 1, 230}, {0x10F83, 1, 220}, {0x10F84, 1, 230}, {0x10F85, 1, 220}, {0x11046, 1, 9},
    {0x11070, 1, 9}, {0x1107F, 1, 9}, {0x110B9, 1, 9}, {0x110BA, 1, 7}, {0x11100, 3, 230}, {0x11133, 2, 9},
    {0x11173, 1, 7}, {0x111C0, 1, 9}, {0x111CA, 1, 7}, {0x11235, 1, 9}, {0x11236, 1, 7}, {0x112E9, 1, 7},
    {0x112EA, 1, 9}, {0x1133B, 2, 7}, {0x1134D, 1, 9}, {0x11366, 7, 230}, {0x11370, 5, 230}, {0x11442, 1, 9},
    {0x11446, 1, 7}, {0x1145E, 1, 230}, {0x114C2, 1, 9}, {0x114C3, 1, 7}, {0x115BF, 1, 9}, {0x115C0, 1, 7},
    {0x1163F, 1, 9}, {0x116B6, 1, 9}, {0x116B7, 1, 7}, {0x1172B, 1, 9}, {0x11839, 1, 9}, {0x1183A, 1, 7},
    {0x1193D, 2, 9}, {0x11943, 1, 7}, {0x119E0, 1, 9}, {0x11A34, 1, 9}, {0x11A47, 1, 9}, {0x11A99, 1, 9},
    {0x11C3F, 1, 9}, {0x11D42, 1, 7}, {0x11D44, 2, 9}, {0x11D97, 1, 9}, {0x11F41, 2, 9}, {0x16AF0, 5, 1},
    {0x16B30, 7, 230}, {0x16FF0, 2, 6}, {0x1BC9E, 1, 1}, {0x1D165, 2, 216}, {0x1D167, 3, 1}, {0x1D16D, 1, 226},
    {0x1D16E, 5, 216}, {0x1D17B, 8, 220}, {0x1D185, 5, 230}, {0x1D18A, 2, 220}, {0x1D1AA, 4, 230}, {0x1D242, 3, 230},
    {0x1E000, 7, 230}, {0x1E008, 17, 230}, {0x1E01B, 7, 230}, {0x1E023, 2, 230}, {0x1E026, 5, 230}, {0x1E08F, 1, 230},
    {0x1E130, 7, 230}, {0x1E2AE, 1, 230}, {0x1E2EC, 4, 230}, {0x1E4EC, 2, 232}, {0x1E4EE, 1, 220}, {0x1E4EF, 1, 230},
    {0x1E8D0, 7, 220}, {0x1E944, 6, 230}, {0x1E94A, 1, 7},
};

/* Canonical decompositions, one step each: a code point, and the one or two (else 0) that it stands for. */
static const uint32_t unicode_pairs[2061][3] = {
    {0xC0, 0x41, 0x300}, {0xC1, 0x41, 0x301}, {0xC2, 0x41, 0x302}, {0xC3, 0x41, 0x303}, {0xC4, 0x41, 0x308},
    {0xC5, 0x41, 0x30A}, {0xC7, 0x43, 0x327}, {0xC8, 0x45, 0x300}, {0xC9, 0x45, 0x301}, {0xCA, 0x45, 0x302},
    {0xCB, 0x45, 0x308}, {0xCC, 0x49, 0x300}, {0xCD, 0x49, 0x301}, {0xCE, 0x49, 0x302}, {0xCF, 0x49, 0x308},
    {0xD1, 0x4E, 0x303}, {0xD2, 0x4F, 0x300}, {0xD3, 0x4F, 0x301}, {0xD4, 0x4F, 0x302}, {0xD5, 0x4F, 0x303},
    {0xD6, 0x4F, 0x308}, {0xD9, 0x55, 0x300}, {0xDA, 0x55, 0x301}, {0xDB, 0x55, 0x302}, {0xDC, 0x55, 0x308},
    {0xDD, 0x59, 0x301}, {0xE0, 0x61, 0x300}, {0xE1, 0x61, 0x301}, {0xE2, 0x61, 0x302}, {0xE3, 0x61, 0x303},
    {0xE4, 0x61, 0x308}, {0xE5, 0x61, 0x30A}, {0xE7, 0x63, 0x327}, {0xE8, 0x65, 0x300}, {0xE9, 0x65, 0x301},
    {0xEA, 0x65, 0x302}, {0xEB, 0x65, 0x308}, {0xEC, 0x69, 0x300}, {0xED, 0x69, 0x301}, {0xEE, 0x69, 0x302},
    {0xEF, 0x69, 0x308}, {0xF1, 0x6E, 0x303}, {0xF2, 0x6F, 0x300}, {0xF3, 0x6F, 0x301}, {0xF4, 0x6F, 0x302},
    {0xF5, 0x6F, 0x303}, {0xF6, 0x6F, 0x308}, {0xF9, 0x75, 0x300}, {0xFA, 0x75, 0x301}, {0xFB, 0x75, 0x302},
    {0xFC, 0x75, 0x308}, {0xFD, 0x79, 0x301}, {0xFF, 0x79, 0x308}, {0x100, 0x41, 0x304}, {0x101, 0x61, 0x304},
    {0x102, 0x41, 0x306}, {0x103, 0x61, 0x306}, {0x104, 0x41, 0x328}, {0x105, 0x61, 0x328}, {0x106, 0x43, 0x301},
    {0x107, 0x63, 0x301}, {0x108, 0x43, 0x302}, {0x109, 0x63, 0x302}, {0x10A, 0x43, 0x307}, {0x10B, 0x63, 0x307},
    {0x10C, 0x43, 0x30C}, {0x10D, 0x63, 0x30C}, {0x10E, 0x44, 0x30C}, {0x10F, 0x64, 0x30C}, {0x112, 0x45, 0x304},
    {0x113, 0x65, 0x304}, {0x114, 0x45, 0x306}, {0x115, 0x65, 0x306}, {0x116, 0x45, 0x307}, {0x117, 0x65, 0x307},
    {0x118, 0x45, 0x328}, {0x119, 0x65, 0x328}, {0x11A, 0x45, 0x30C}, {0x11B, 0x65, 0x30C}, {0x11C, 0x47, 0x302},
    {0x11D, 0x67, 0x302}, {0x11E, 0x47, 0x306}, {0x11F, 0x67, 0x306}, {0x120, 0x47, 0x307}, {0x121, 0x67, 0x307},
    {0x122, 0x47, 0x327}, {0x123, 0x67, 0x327}, {0x124, 0x48, 0x302}, {0x125, 0x68, 0x302}, {0x128, 0x49, 0x303},
    {0x129, 0x69, 0x303}, {0x12A, 0x49, 0x304}, {0x12B, 0x69, 0x304}, {0x12C, 0x49, 0x306}, {0x12D, 0x69, 0x306},
    {0x12E, 0x49, 0x328}, {0x12F, 0x69, 0x328}, {0x130, 0x49, 0x307}, {0x134, 0x4A, 0x302}, {0x135, 0x6A, 0x302},
    {0x136, 0x4B, 0x327}, {0x137, 0x6B, 0x327}, {0x139, 0x4C, 0x301}, {0x13A, 0x6C, 0x301}, {0x13B, 0x4C, 0x327},
    {0x13C, 0x6C, 0x327}, {0x13D, 0x4C, 0x30C}, {0x13E, 0x6C, 0x30C}, {0x143, 0x4E, 0x301}, {0x144, 0x6E, 0x301},
    {0x145, 0x4E, 0x327}, {0x146, 0x6E, 0x327}, {0x147, 0x4E, 0x30C}, {0x148, 0x6E, 0x30C}, {0x14C, 0x4F, 0x304},
    {0x14D, 0x6F, 0x304}, {0x14E, 0x4F, 0x306}, {0x14F, 0x6F, 0x306}, {0x150, 0x4F, 0x30B}, {0x151, 0x6F, 0x30B},
    {0x154, 0x52, 0x301}, {0x155, 0x72, 0x301}, {0x156, 0x52, 0x327}, {0x157, 0x72, 0x327}, {0x158, 0x52, 0x30C},
    {0x159, 0x72, 0x30C}, {0x15A, 0x53, 0x301}, {0x15B, 0x73, 0x301}, {0x15C, 0x53, 0x302}, {0x15D, 0x73, 0x302},
    {0x15E, 0x53, 0x327}, {0x15F, 0x73, 0x327}, {0x160, 0x53, 0x30C}, {0x161, 0x73, 0x30C}, {0x162, 0x54, 0x327},
    {0x163, 0x74, 0x327}, {0x164, 0x54, 0x30C}, {0x165, 0x74, 0x30C}, {0x168, 0x55, 0x303}, {0x169, 0x75, 0x303},
    {0x16A, 0x55, 0x304}, {0x16B, 0x75, 0x304}, {0x16C, 0x55, 0x306}, {0x16D, 0x75, 0x306}, {0x16E, 0x55, 0x30A},
    {0x16F, 0x75, 0x30A}, {0x170, 0x55, 0x30B}, {0x171, 0x75, 0x30B}, {0x172, 0x55, 0x328}, {0x173, 0x75, 0x328},
    {0x174, 0x57, 0x302}, {0x175, 0x77, 0x302}, {0x176, 0x59, 0x302}, {0x177, 0x79, 0x302}, {0x178, 0x59, 0x308},
    {0x179, 0x5A, 0x301}, {0x17A, 0x7A, 0x301}, {0x17B, 0x5A, 0x307}, {0x17C, 0x7A, 0x307}, {0x17D, 0x5A, 0x30C},
    {0x17E, 0x7A, 0x30C}, {0x1A0, 0x4F, 0x31B}, {0x1A1, 0x6F, 0x31B}, {0x1AF, 0x55, 0x31B}, {0x1B0, 0x75, 0x31B},
    {0x1CD, 0x41, 0x30C}, {0x1CE, 0x61, 0x30C}, {0x1CF, 0x49, 0x30C}, {0x1D0, 0x69, 0x30C}, {0x1D1, 0x4F, 0x30C},
    {0x1D2, 0x6F, 0x30C}, {0x1D3, 0x55, 0x30C}, {0x1D4, 0x75, 0x30C}, {0x1D5, 0xDC, 0x304}, {0x1D6, 0xFC, 0x304},
    {0x1D7, 0xDC, 0x301}, {0x1D8, 0xFC, 0x301}, {0x1D9, 0xDC, 0x30C}, {0x1DA, 0xFC, 0x30C}, {0x1DB, 0xDC, 0x300},
    {0x1DC, 0xFC, 0x300}, {0x1DE, 0xC4, 0x304}, {0x1DF, 0xE4, 0x304}, {0x1E0, 0x226, 0x304}, {0x1E1, 0x227, 0x304},
    {0x1E2, 0xC6, 0x304}, {0x1E3, 0xE6, 0x304}, {0x1E6, 0x47, 0x30C}, {0x1E7, 0x67, 0x30C}, {0x1E8, 0x4B, 0x30C},
    {0x1E9, 0x6B, 0x30C}, {0x1EA, 0x4F, 0x328}, {0x1EB, 0x6F, 0x328}, {0x1EC, 0x1EA, 0x304}, {0x1ED, 0x1EB, 0x304},
    {0x1EE, 0x1B7, 0x30C}, {0x1EF, 0x292, 0x30C}, {0x1F0, 0x6A, 0x30C}, {0x1F4, 0x47, 0x301}, {0x1F5, 0x67, 0x301},
    {0x1F8, 0x4E, 0x300}, {0x1F9, 0x6E, 0x300}, {0x1FA, 0xC5, 0x301}, {0x1FB, 0xE5, 0x301}, {0x1FC, 0xC6, 0x301},
    {0x1FD, 0xE6, 0x301}, {0x1FE, 0xD8, 0x301}, {0x1FF, 0xF8, 0x301}, {0x200, 0x41, 0x30F}, {0x201, 0x61, 0x30F},
    {0x202, 0x41, 0x311}, {0x203, 0x61, 0x311}, {0x204, 0x45, 0x30F}, {0x205, 0x65, 0x30F}, {0x206, 0x45, 0x311},
    {0x207, 0x65, 0x311}, {0x208, 0x49, 0x30F}, {0x209, 0x69, 0x30F}, {0x20A, 0x49, 0x311}, {0x20B, 0x69, 0x311},
    {0x20C, 0x4F, 0x30F}, {0x20D, 0x6F, 0x30F}, {0x20E, 0x4F, 0x311}, {0x20F, 0x6F, 0x311}, {0x210, 0x52, 0x30F},
    {0x211, 0x72, 0x30F}, {0x212, 0x52, 0x311}, {0x213, 0x72, 0x311}, {0x214, 0x55, 0x30F}, {0x215, 0x75, 0x30F},
    {0x216, 0x55, 0x311}, {0x217, 0x75, 0x311}, {0x218, 0x53, 0x326}, {0x219, 0x73, 0x326}, {0x21A, 0x54, 0x326},
    {0x21B, 0x74, 0x326}, {0x21E, 0x48, 0x30C}, {0x21F, 0x68, 0x30C}, {0x226, 0x41, 0x307}, {0x227, 0x61, 0x307},
    {0x228, 0x45, 0x327}, {0x229, 0x65, 0x327}, {0x22A, 0xD6, 0x304}, {0x22B, 0xF6, 0x304}, {0x22C, 0xD5, 0x304},
    {0x22D, 0xF5, 0x304}, {0x22E, 0x4F, 0x307}, {0x22F, 0x6F, 0x307}, {0x230, 0x22E, 0x304}, {0x231, 0x22F, 0x304},
    {0x232, 0x59, 0x304}, {0x233, 0x79, 0x304}, {0x340, 0x300, 0}, {0x341, 0x301, 0}, {0x343, 0x313, 0},
    {0x344, 0x308, 0x301}, {0x374, 0x2B9, 0}, {0x37E, 0x3B, 0}, {0x385, 0xA8, 0x301}, {0x386, 0x391, 0x301},
    {0x387, 0xB7, 0}, {0x388, 0x395, 0x301}, {0x389, 0x397, 0x301}, {0x38A, 0x399, 0x301}, {0x38C, 0x39F, 0x301},
    {0x38E, 0x3A5, 0x301}, {0x38F, 0x3A9, 0x301}, {0x390, 0x3CA, 0x301}, {0x3AA, 0x399, 0x308}, {0x3AB, 0x3A5, 0x308},
    {0x3AC, 0x3B1, 0x301}, {0x3AD, 0x3B5, 0x301}, {0x3AE, 0x3B7, 0x301}, {0x3AF, 0x3B9, 0x301}, {0x3B0, 0x3CB, 0x301},
    {0x3CA, 0x3B9, 0x308}, {0x3CB, 0x3C5, 0x308}, {0x3CC, 0x3BF, 0x301}, {0x3CD, 0x3C5, 0x301}, {0x3CE, 0x3C9, 0x301},
    {0x3D3, 0x3D2, 0x301}, {0x3D4, 0x3D2, 0x308}, {0x400, 0x415, 0x300}, {0x401, 0x415, 0x308}, {0x403, 0x413, 0x301},
    {0x407, 0x406, 0x308}, {0x40C, 0x41A, 0x301}, {0x40D, 0x418, 0x300}, {0x40E, 0x423, 0x306}, {0x419, 0x418, 0x306},
    {0x439, 0x438, 0x306}, {0x450, 0x435, 0x300}, {0x451, 0x435, 0x308}, {0x453, 0x433, 0x301}, {0x457, 0x456, 0x308},
    {0x45C, 0x43A, 0x301}, {0x45D, 0x438, 0x300}, {0x45E, 0x443, 0x306}, {0x476, 0x474, 0x30F}, {0x477, 0x475, 0x30F},
    {0x4C1, 0x416, 0x306}, {0x4C2, 0x436, 0x306}, {0x4D0, 0x410, 0x306}, {0x4D1, 0x430, 0x306}, {0x4D2, 0x410, 0x308},
    {0x4D3, 0x430, 0x308}, {0x4D6, 0x415, 0x306}, {0x4D7, 0x435, 0x306}, {0x4DA, 0x4D8, 0x308}, {0x4DB, 0x4D9, 0x308},
    {0x4DC, 0x416, 0x308}, {0x4DD, 0x436, 0x308}, {0x4DE, 0x417, 0x308}, {0x4DF, 0x437, 0x308}, {0x4E2, 0x418, 0x304},
    {0x4E3, 0x438, 0x304}, {0x4E4, 0x418, 0x308}, {0x4E5, 0x438, 0x308}, {0x4E6, 0x41E, 0x308}, {0x4E7, 0x43E, 0x308},
    {0x4EA, 0x4E8, 0x308}, {0x4EB, 0x4E9, 0x308}, {0x4EC, 0x42D, 0x308}, {0x4ED, 0x44D, 0x308}, {0x4EE, 0x423, 0x304},
    {0x4EF, 0x443, 0x304}, {0x4F0, 0x423, 0x308}, {0x4F1, 0x443, 0x308}, {0x4F2, 0x423, 0x30B}, {0x4F3, 0x443, 0x30B},
    {0x4F4, 0x427, 0x308}, {0x4F5, 0x447, 0x308}, {0x4F8, 0x42B, 0x308}, {0x4F9, 0x44B, 0x308}, {0x622, 0x627, 0x653},
    {0x623, 0x627, 0x654}, {0x624, 0x648, 0x654}, {0x625, 0x627, 0x655}, {0x626, 0x64A, 0x654}, {0x6C0, 0x6D5, 0x654},
    {0x6C2, 0x6C1, 0x654}, {0x6D3, 0x6D2, 0x654}, {0x929, 0x928, 0x93C}, {0x931, 0x930, 0x93C}, {0x934, 0x933, 0x93C},
    {0x958, 0x915, 0x93C}, {0x959, 0x916, 0x93C}, {0x95A, 0x917, 0x93C}, {0x95B, 0x91C, 0x93C}, {0x95C, 0x921, 0x93C},
    {0x95D, 0x922, 0x93C}, {0x95E, 0x92B, 0x93C}, {0x95F, 0x92F, 0x93C}, {0x9CB, 0x9C7, 0x9BE}, {0x9CC, 0x9C7, 0x9D7},
    {0x9DC, 0x9A1, 0x9BC}, {0x9DD, 0x9A2, 0x9BC}, {0x9DF, 0x9AF, 0x9BC}, {0xA33, 0xA32, 0xA3C}, {0xA36, 0xA38, 0xA3C},
    {0xA59, 0xA16, 0xA3C}, {0xA5A, 0xA17, 0xA3C}, {0xA5B, 0xA1C, 0xA3C}, {0xA5E, 0xA2B, 0xA3C}, {0xB48, 0xB47, 0xB56},
    {0xB4B, 0xB47, 0xB3E}, {0xB4C, 0xB47, 0xB57}, {0xB5C, 0xB21, 0xB3C}, {0xB5D, 0xB22, 0xB3C}, {0xB94, 0xB92, 0xBD7},
    {0xBCA, 0xBC6, 0xBBE}, {0xBCB, 0xBC7, 0xBBE}, {0xBCC, 0xBC6, 0xBD7}, {0xC48, 0xC46, 0xC56}, {0xCC0, 0xCBF, 0xCD5},
    {0xCC7, 0xCC6, 0xCD5}, {0xCC8, 0xCC6, 0xCD6}, {0xCCA, 0xCC6, 0xCC2}, {0xCCB, 0xCCA, 0xCD5}, {0xD4A, 0xD46, 0xD3E},
    {0xD4B, 0xD47, 0xD3E}, {0xD4C, 0xD46, 0xD57}, {0xDDA, 0xDD9, 0xDCA}, {0xDDC, 0xDD9, 0xDCF}, {0xDDD, 0xDDC, 0xDCA},
    {0xDDE, 0xDD9, 0xDDF}, {0xF43, 0xF42, 0xFB7}, {0xF4D, 0xF4C, 0xFB7}, {0xF52, 0xF51, 0xFB7}, {0xF57, 0xF56, 0xFB7},
    {0xF5C, 0xF5B, 0xFB7}, {0xF69, 0xF40, 0xFB5}, {0xF73, 0xF71, 0xF72}, {0xF75, 0xF71, 0xF74}, {0xF76, 0xFB2, 0xF80},
    {0xF78, 0xFB3, 0xF80}, {0xF81, 0xF71, 0xF80}, {0xF93, 0xF92, 0xFB7}, {0xF9D, 0xF9C, 0xFB7}, {0xFA2, 0xFA1, 0xFB7},
    {0xFA7, 0xFA6, 0xFB7}, {0xFAC, 0xFAB, 0xFB7}, {0xFB9, 0xF90, 0xFB5}, {0x1026, 0x1025, 0x102E},
    {0x1B06, 0x1B05, 0x1B35}, {0x1B08, 0x1B07, 0x1B35}, {0x1B0A, 0x1B09, 0x1B35}, {0x1B0C, 0x1B0B, 0x1B35},
    {0x1B0E, 0x1B0D, 0x1B35}, {0x1B12, 0x1B11, 0x1B35}, {0x1B3B, 0x1B3A, 0x1B35}, {0x1B3D, 0x1B3C, 0x1B35},
    {0x1B40, 0x1B3E, 0x1B35}, {0x1B41, 0x1B3F, 0x1B35}, {0x1B43, 0x1B42, 0x1B35}, {0x1E00, 0x41, 0x325},
    {0x1E01, 0x61, 0x325}, {0x1E02, 0x42, 0x307}, {0x1E03, 0x62, 0x307}, {0x1E04, 0x42, 0x323}, {0x1E05, 0x62, 0x323},
    {0x1E06, 0x42, 0x331}, {0x1E07, 0x62, 0x331}, {0x1E08, 0xC7, 0x301}, {0x1E09, 0xE7, 0x301}, {0x1E0A, 0x44, 0x307},
    {0x1E0B, 0x64, 0x307}, {0x1E0C, 0x44, 0x323}, {0x1E0D, 0x64, 0x323}, {0x1E0E, 0x44, 0x331}, {0x1E0F, 0x64, 0x331},
    {0x1E10, 0x44, 0x327}, {0x1E11, 0x64, 0x327}, {0x1E12, 0x44, 0x32D}, {0x1E13, 0x64, 0x32D}, {0x1E14, 0x112, 0x300},
    {0x1E15, 0x113, 0x300}, {0x1E16, 0x112, 0x301}, {0x1E17, 0x113, 0x301}, {0x1E18, 0x45, 0x32D},
    {0x1E19, 0x65, 0x32D}, {0x1E1A, 0x45, 0x330}, {0x1E1B, 0x65, 0x330}, {0x1E1C, 0x228, 0x306}, {0x1E1D, 0x229, 0x306},
    {0x1E1E, 0x46, 0x307}, {0x1E1F, 0x66, 0x307}, {0x1E20, 0x47, 0x304}, {0x1E21, 0x67, 0x304}, {0x1E22, 0x48, 0x307},
    {0x1E23, 0x68, 0x307}, {0x1E24, 0x48, 0x323}, {0x1E25, 0x68, 0x323}, {0x1E26, 0x48, 0x308}, {0x1E27, 0x68, 0x308},
    {0x1E28, 0x48, 0x327}, {0x1E29, 0x68, 0x327}, {0x1E2A, 0x48, 0x32E}, {0x1E2B, 0x68, 0x32E}, {0x1E2C, 0x49, 0x330},
    {0x1E2D, 0x69, 0x330}, {0x1E2E, 0xCF, 0x301}, {0x1E2F, 0xEF, 0x301}, {0x1E30, 0x4B, 0x301}, {0x1E31, 0x6B, 0x301},
    {0x1E32, 0x4B, 0x323}, {0x1E33, 0x6B, 0x323}, {0x1E34, 0x4B, 0x331}, {0x1E35, 0x6B, 0x331}, {0x1E36, 0x4C, 0x323},
    {0x1E37, 0x6C, 0x323}, {0x1E38, 0x1E36, 0x304}, {0x1E39, 0x1E37, 0x304}, {0x1E3A, 0x4C, 0x331},
    {0x1E3B, 0x6C, 0x331}, {0x1E3C, 0x4C, 0x32D}, {0x1E3D, 0x6C, 0x32D}, {0x1E3E, 0x4D, 0x301}, {0x1E3F, 0x6D, 0x301},
    {0x1E40, 0x4D, 0x307}, {0x1E41, 0x6D, 0x307}, {0x1E42, 0x4D, 0x323}, {0x1E43, 0x6D, 0x323}, {0x1E44, 0x4E, 0x307},
    {0x1E45, 0x6E, 0x307}, {0x1E46, 0x4E, 0x323}, {0x1E47, 0x6E, 0x323}, {0x1E48, 0x4E, 0x331}, {0x1E49, 0x6E, 0x331},
    {0x1E4A, 0x4E, 0x32D}, {0x1E4B, 0x6E, 0x32D}, {0x1E4C, 0xD5, 0x301}, {0x1E4D, 0xF5, 0x301}, {0x1E4E, 0xD5, 0x308},
    {0x1E4F, 0xF5, 0x308}, {0x1E50, 0x14C, 0x300}, {0x1E51, 0x14D, 0x300}, {0x1E52, 0x14C, 0x301},
    {0x1E53, 0x14D, 0x301}, {0x1E54, 0x50, 0x301}, {0x1E55, 0x70, 0x301}, {0x1E56, 0x50, 0x307}, {0x1E57, 0x70, 0x307},
    {0x1E58, 0x52, 0x307}, {0x1E59, 0x72, 0x307}, {0x1E5A, 0x52, 0x323}, {0x1E5B, 0x72, 0x323}, {0x1E5C, 0x1E5A, 0x304},
    {0x1E5D, 0x1E5B, 0x304}, {0x1E5E, 0x52, 0x331}, {0x1E5F, 0x72, 0x331}, {0x1E60, 0x53, 0x307}, {0x1E61, 0x73, 0x307},
    {0x1E62, 0x53, 0x323}, {0x1E63, 0x73, 0x323}, {0x1E64, 0x15A, 0x307}, {0x1E65, 0x15B, 0x307},
    {0x1E66, 0x160, 0x307}, {0x1E67, 0x161, 0x307}, {0x1E68, 0x1E62, 0x307}, {0x1E69, 0x1E63, 0x307},
    {0x1E6A, 0x54, 0x307}, {0x1E6B, 0x74, 0x307}, {0x1E6C, 0x54, 0x323}, {0x1E6D, 0x74, 0x323}, {0x1E6E, 0x54, 0x331},
    {0x1E6F, 0x74, 0x331}, {0x1E70, 0x54, 0x32D}, {0x1E71, 0x74, 0x32D}, {0x1E72, 0x55, 0x324}, {0x1E73, 0x75, 0x324},
    {0x1E74, 0x55, 0x330}, {0x1E75, 0x75, 0x330}, {0x1E76, 0x55, 0x32D}, {0x1E77, 0x75, 0x32D}, {0x1E78, 0x168, 0x301},
    {0x1E79, 0x169, 0x301}, {0x1E7A, 0x16A, 0x308}, {0x1E7B, 0x16B, 0x308}, {0x1E7C, 0x56, 0x303},
    {0x1E7D, 0x76, 0x303}, {0x1E7E, 0x56, 0x323}, {0x1E7F, 0x76, 0x323}, {0x1E80, 0x57, 0x300}, {0x1E81, 0x77, 0x300},
    {0x1E82, 0x57, 0x301}, {0x1E83, 0x77, 0x301}, {0x1E84, 0x57, 0x308}, {0x1E85, 0x77, 0x308}, {0x1E86, 0x57, 0x307},
    {0x1E87, 0x77, 0x307}, {0x1E88, 0x57, 0x323}, {0x1E89, 0x77, 0x323}, {0x1E8A, 0x58, 0x307}, {0x1E8B, 0x78, 0x307},
    {0x1E8C, 0x58, 0x308}, {0x1E8D, 0x78, 0x308}, {0x1E8E, 0x59, 0x307}, {0x1E8F, 0x79, 0x307}, {0x1E90, 0x5A, 0x302},
    {0x1E91, 0x7A, 0x302}, {0x1E92, 0x5A, 0x323}, {0x1E93, 0x7A, 0x323}, {0x1E94, 0x5A, 0x331}, {0x1E95, 0x7A, 0x331},
    {0x1E96, 0x68, 0x331}, {0x1E97, 0x74, 0x308}, {0x1E98, 0x77, 0x30A}, {0x1E99, 0x79, 0x30A}, {0x1E9B, 0x17F, 0x307},
    {0x1EA0, 0x41, 0x323}, {0x1EA1, 0x61, 0x323}, {0x1EA2, 0x41, 0x309}, {0x1EA3, 0x61, 0x309}, {0x1EA4, 0xC2, 0x301},
    {0x1EA5, 0xE2, 0x301}, {0x1EA6, 0xC2, 0x300}, {0x1EA7, 0xE2, 0x300}, {0x1EA8, 0xC2, 0x309}, {0x1EA9, 0xE2, 0x309},
    {0x1EAA, 0xC2, 0x303}, {0x1EAB, 0xE2, 0x303}, {0x1EAC, 0x1EA0, 0x302}, {0x1EAD, 0x1EA1, 0x302},
    {0x1EAE, 0x102, 0x301}, {0x1EAF, 0x103, 0x301}, {0x1EB0, 0x102, 0x300}, {0x1EB1, 0x103, 0x300},
    {0x1EB2, 0x102, 0x309}, {0x1EB3, 0x103, 0x309}, {0x1EB4, 0x102, 0x303}, {0x1EB5, 0x103, 0x303},
    {0x1EB6, 0x1EA0, 0x306}, {0x1EB7, 0x1EA1, 0x306}, {0x1EB8, 0x45, 0x323}, {0x1EB9, 0x65, 0x323},
    {0x1EBA, 0x45, 0x309}, {0x1EBB, 0x65, 0x309}, {0x1EBC, 0x45, 0x303}, {0x1EBD, 0x65, 0x303}, {0x1EBE, 0xCA, 0x301},
    {0x1EBF, 0xEA, 0x301}, {0x1EC0, 0xCA, 0x300}, {0x1EC1, 0xEA, 0x300}, {0x1EC2, 0xCA, 0x309}, {0x1EC3, 0xEA, 0x309},
    {0x1EC4, 0xCA, 0x303}, {0x1EC5, 0xEA, 0x303}, {0x1EC6, 0x1EB8, 0x302}, {0x1EC7, 0x1EB9, 0x302},
    {0x1EC8, 0x49, 0x309}, {0x1EC9, 0x69, 0x309}, {0x1ECA, 0x49, 0x323}, {0x1ECB, 0x69, 0x323}, {0x1ECC, 0x4F, 0x323},
    {0x1ECD, 0x6F, 0x323}, {0x1ECE, 0x4F, 0x309}, {0x1ECF, 0x6F, 0x309}, {0x1ED0, 0xD4, 0x301}, {0x1ED1, 0xF4, 0x301},
    {0x1ED2, 0xD4, 0x300}, {0x1ED3, 0xF4, 0x300}, {0x1ED4, 0xD4, 0x309}, {0x1ED5, 0xF4, 0x309}, {0x1ED6, 0xD4, 0x303},
    {0x1ED7, 0xF4, 0x303}, {0x1ED8, 0x1ECC, 0x302}, {0x1ED9, 0x1ECD, 0x302}, {0x1EDA, 0x1A0, 0x301},
    {0x1EDB, 0x1A1, 0x301}, {0x1EDC, 0x1A0, 0x300}, {0x1EDD, 0x1A1, 0x300}, {0x1EDE, 0x1A0, 0x309},
    {0x1EDF, 0x1A1, 0x309}, {0x1EE0, 0x1A0, 0x303}, {0x1EE1, 0x1A1, 0x303}, {0x1EE2, 0x1A0, 0x323},
    {0x1EE3, 0x1A1, 0x323}, {0x1EE4, 0x55, 0x323}, {0x1EE5, 0x75, 0x323}, {0x1EE6, 0x55, 0x309}, {0x1EE7, 0x75, 0x309},
    {0x1EE8, 0x1AF, 0x301}, {0x1EE9, 0x1B0, 0x301}, {0x1EEA, 0x1AF, 0x300}, {0x1EEB, 0x1B0, 0x300},
    {0x1EEC, 0x1AF, 0x309}, {0x1EED, 0x1B0, 0x309}, {0x1EEE, 0x1AF, 0x303}, {0x1EEF, 0x1B0, 0x303},
    {0x1EF0, 0x1AF, 0x323}, {0x1EF1, 0x1B0, 0x323}, {0x1EF2, 0x59, 0x300}, {0x1EF3, 0x79, 0x300}, {0x1EF4, 0x59, 0x323},
    {0x1EF5, 0x79, 0x323}, {0x1EF6, 0x59, 0x309}, {0x1EF7, 0x79, 0x309}, {0x1EF8, 0x59, 0x303}, {0x1EF9, 0x79, 0x303},
    {0x1F00, 0x3B1, 0x313}, {0x1F01, 0x3B1, 0x314}, {0x1F02, 0x1F00, 0x300}, {0x1F03, 0x1F01, 0x300},
    {0x1F04, 0x1F00, 0x301}, {0x1F05, 0x1F01, 0x301}, {0x1F06, 0x1F00, 0x342}, {0x1F07, 0x1F01, 0x342},
    {0x1F08, 0x391, 0x313}, {0x1F09, 0x391, 0x314}, {0x1F0A, 0x1F08, 0x300}, {0x1F0B, 0x1F09, 0x300},
    {0x1F0C, 0x1F08, 0x301}, {0x1F0D, 0x1F09, 0x301}, {0x1F0E, 0x1F08, 0x342}, {0x1F0F, 0x1F09, 0x342},
    {0x1F10, 0x3B5, 0x313}, {0x1F11, 0x3B5, 0x314}, {0x1F12, 0x1F10, 0x300}, {0x1F13, 0x1F11, 0x300},
    {0x1F14, 0x1F10, 0x301}, {0x1F15, 0x1F11, 0x301}, {0x1F18, 0x395, 0x313}, {0x1F19, 0x395, 0x314},
    {0x1F1A, 0x1F18, 0x300}, {0x1F1B, 0x1F19, 0x300}, {0x1F1C, 0x1F18, 0x301}, {0x1F1D, 0x1F19, 0x301},
    {0x1F20, 0x3B7, 0x313}, {0x1F21, 0x3B7, 0x314}, {0x1F22, 0x1F20, 0x300}, {0x1F23, 0x1F21, 0x300},
    {0x1F24, 0x1F20, 0x301}, {0x1F25, 0x1F21, 0x301}, {0x1F26, 0x1F20, 0x342}, {0x1F27, 0x1F21, 0x342},
    {0x1F28, 0x397, 0x313}, {0x1F29, 0x397, 0x314}, {0x1F2A, 0x1F28, 0x300}, {0x1F2B, 0x1F29, 0x300},
    {0x1F2C, 0x1F28, 0x301}, {0x1F2D, 0x1F29, 0x301}, {0x1F2E, 0x1F28, 0x342}, {0x1F2F, 0x1F29, 0x342},
    {0x1F30, 0x3B9, 0x313}, {0x1F31, 0x3B9, 0x314}, {0x1F32, 0x1F30, 0x300}, {0x1F33, 0x1F31, 0x300},
    {0x1F34, 0x1F30, 0x301}, {0x1F35, 0x1F31, 0x301}, {0x1F36, 0x1F30, 0x342}, {0x1F37, 0x1F31, 0x342},
    {0x1F38, 0x399, 0x313}, {0x1F39, 0x399, 0x314}, {0x1F3A, 0x1F38, 0x300}, {0x1F3B, 0x1F39, 0x300},
    {0x1F3C, 0x1F38, 0x301}, {0x1F3D, 0x1F39, 0x301}, {0x1F3E, 0x1F38, 0x342}, {0x1F3F, 0x1F39, 0x342},
    {0x1F40, 0x3BF, 0x313}, {0x1F41, 0x3BF, 0x314}, {0x1F42, 0x1F40, 0x300}, {0x1F43, 0x1F41, 0x300},
    {0x1F44, 0x1F40, 0x301}, {0x1F45, 0x1F41, 0x301}, {0x1F48, 0x39F, 0x313}, {0x1F49, 0x39F, 0x314},
    {0x1F4A, 0x1F48, 0x300}, {0x1F4B, 0x1F49, 0x300}, {0x1F4C, 0x1F48, 0x301}, {0x1F4D, 0x1F49, 0x301},
    {0x1F50, 0x3C5, 0x313}, {0x1F51, 0x3C5, 0x314}, {0x1F52, 0x1F50, 0x300}, {0x1F53, 0x1F51, 0x300},
    {0x1F54, 0x1F50, 0x301}, {0x1F55, 0x1F51, 0x301}, {0x1F56, 0x1F50, 0x342}, {0x1F57, 0x1F51, 0x342},
    {0x1F59, 0x3A5, 0x314}, {0x1F5B, 0x1F59, 0x300}, {0x1F5D, 0x1F59, 0x301}, {0x1F5F, 0x1F59, 0x342},
    {0x1F60, 0x3C9, 0x313}, {0x1F61, 0x3C9, 0x314}, {0x1F62, 0x1F60, 0x300}, {0x1F63, 0x1F61, 0x300},
    {0x1F64, 0x1F60, 0x301}, {0x1F65, 0x1F61, 0x301}, {0x1F66, 0x1F60, 0x342}, {0x1F67, 0x1F61, 0x342},
    {0x1F68, 0x3A9, 0x313}, {0x1F69, 0x3A9, 0x314}, {0x1F6A, 0x1F68, 0x300}, {0x1F6B, 0x1F69, 0x300},
    {0x1F6C, 0x1F68, 0x301}, {0x1F6D, 0x1F69, 0x301}, {0x1F6E, 0x1F68, 0x342}, {0x1F6F, 0x1F69, 0x342},
    {0x1F70, 0x3B1, 0x300}, {0x1F71, 0x3AC, 0}, {0x1F72, 0x3B5, 0x300}, {0x1F73, 0x3AD, 0}, {0x1F74, 0x3B7, 0x300},
    {0x1F75, 0x3AE, 0}, {0x1F76, 0x3B9, 0x300}, {0x1F77, 0x3AF, 0}, {0x1F78, 0x3BF, 0x300}, {0x1F79, 0x3CC, 0},
    {0x1F7A, 0x3C5, 0x300}, {0x1F7B, 0x3CD, 0}, {0x1F7C, 0x3C9, 0x300}, {0x1F7D, 0x3CE, 0}, {0x1F80, 0x1F00, 0x345},
    {0x1F81, 0x1F01, 0x345}, {0x1F82, 0x1F02, 0x345}, {0x1F83, 0x1F03, 0x345}, {0x1F84, 0x1F04, 0x345},
    {0x1F85, 0x1F05, 0x345}, {0x1F86, 0x1F06, 0x345}, {0x1F87, 0x1F07, 0x345}, {0x1F88, 0x1F08, 0x345},
    {0x1F89, 0x1F09, 0x345}, {0x1F8A, 0x1F0A, 0x345}, {0x1F8B, 0x1F0B, 0x345}, {0x1F8C, 0x1F0C, 0x345},
    {0x1F8D, 0x1F0D, 0x345}, {0x1F8E, 0x1F0E, 0x345}, {0x1F8F, 0x1F0F, 0x345}, {0x1F90, 0x1F20, 0x345},
    {0x1F91, 0x1F21, 0x345}, {0x1F92, 0x1F22, 0x345}, {0x1F93, 0x1F23, 0x345}, {0x1F94, 0x1F24, 0x345},
    {0x1F95, 0x1F25, 0x345}, {0x1F96, 0x1F26, 0x345}, {0x1F97, 0x1F27, 0x345}, {0x1F98, 0x1F28, 0x345},
    {0x1F99, 0x1F29, 0x345}, {0x1F9A, 0x1F2A, 0x345}, {0x1F9B, 0x1F2B, 0x345}, {0x1F9C, 0x1F2C, 0x345},
    {0x1F9D, 0x1F2D, 0x345}, {0x1F9E, 0x1F2E, 0x345}, {0x1F9F, 0x1F2F, 0x345}, {0x1FA0, 0x1F60, 0x345},
    {0x1FA1, 0x1F61, 0x345}, {0x1FA2, 0x1F62, 0x345}, {0x1FA3, 0x1F63, 0x345}, {0x1FA4, 0x1F64, 0x345},
    {0x1FA5, 0x1F65, 0x345}, {0x1FA6, 0x1F66, 0x345}, {0x1FA7, 0x1F67, 0x345}, {0x1FA8, 0x1F68, 0x345},
    {0x1FA9, 0x1F69, 0x345}, {0x1FAA, 0x1F6A, 0x345}, {0x1FAB, 0x1F6B, 0x345}, {0x1FAC, 0x1F6C, 0x345},
    {0x1FAD, 0x1F6D, 0x345}, {0x1FAE, 0x1F6E, 0x345}, {0x1FAF, 0x1F6F, 0x345}, {0x1FB0, 0x3B1, 0x306},
    {0x1FB1, 0x3B1, 0x304}, {0x1FB2, 0x1F70, 0x345}, {0x1FB3, 0x3B1, 0x345}, {0x1FB4, 0x3AC, 0x345},
    {0x1FB6, 0x3B1, 0x342}, {0x1FB7, 0x1FB6, 0x345}, {0x1FB8, 0x391, 0x306}, {0x1FB9, 0x391, 0x304},
    {0x1FBA, 0x391, 0x300}, {0x1FBB, 0x386, 0}, {0x1FBC, 0x391, 0x345}, {0x1FBE, 0x3B9, 0}, {0x1FC1, 0xA8, 0x342},
    {0x1FC2, 0x1F74, 0x345}, {0x1FC3, 0x3B7, 0x345}, {0x1FC4, 0x3AE, 0x345}, {0x1FC6, 0x3B7, 0x342},
    {0x1FC7, 0x1FC6, 0x345}, {0x1FC8, 0x395, 0x300}, {0x1FC9, 0x388, 0}, {0x1FCA, 0x397, 0x300}, {0x1FCB, 0x389, 0},
    {0x1FCC, 0x397, 0x345}, {0x1FCD, 0x1FBF, 0x300}, {0x1FCE, 0x1FBF, 0x301}, {0x1FCF, 0x1FBF, 0x342},
    {0x1FD0, 0x3B9, 0x306}, {0x1FD1, 0x3B9, 0x304}, {0x1FD2, 0x3CA, 0x300}, {0x1FD3, 0x390, 0}, {0x1FD6, 0x3B9, 0x342},
    {0x1FD7, 0x3CA, 0x342}, {0x1FD8, 0x399, 0x306}, {0x1FD9, 0x399, 0x304}, {0x1FDA, 0x399, 0x300}, {0x1FDB, 0x38A, 0},
    {0x1FDD, 0x1FFE, 0x300}, {0x1FDE, 0x1FFE, 0x301}, {0x1FDF, 0x1FFE, 0x342}, {0x1FE0, 0x3C5, 0x306},
    {0x1FE1, 0x3C5, 0x304}, {0x1FE2, 0x3CB, 0x300}, {0x1FE3, 0x3B0, 0}, {0x1FE4, 0x3C1, 0x313}, {0x1FE5, 0x3C1, 0x314},
    {0x1FE6, 0x3C5, 0x342}, {0x1FE7, 0x3CB, 0x342}, {0x1FE8, 0x3A5, 0x306}, {0x1FE9, 0x3A5, 0x304},
    {0x1FEA, 0x3A5, 0x300}, {0x1FEB, 0x38E, 0}, {0x1FEC, 0x3A1, 0x314}, {0x1FED, 0xA8, 0x300}, {0x1FEE, 0x385, 0},
    {0x1FEF, 0x60, 0}, {0x1FF2, 0x1F7C, 0x345}, {0x1FF3, 0x3C9, 0x345}, {0x1FF4, 0x3CE, 0x345}, {0x1FF6, 0x3C9, 0x342},
    {0x1FF7, 0x1FF6, 0x345}, {0x1FF8, 0x39F, 0x300}, {0x1FF9, 0x38C, 0}, {0x1FFA, 0x3A9, 0x300}, {0x1FFB, 0x38F, 0},
    {0x1FFC, 0x3A9, 0x345}, {0x1FFD, 0xB4, 0}, {0x2000, 0x2002, 0}, {0x2001, 0x2003, 0}, {0x2126, 0x3A9, 0},
    {0x212A, 0x4B, 0}, {0x212B, 0xC5, 0}, {0x219A, 0x2190, 0x338}, {0x219B, 0x2192, 0x338}, {0x21AE, 0x2194, 0x338},
    {0x21CD, 0x21D0, 0x338}, {0x21CE, 0x21D4, 0x338}, {0x21CF, 0x21D2, 0x338}, {0x2204, 0x2203, 0x338},
    {0x2209, 0x2208, 0x338}, {0x220C, 0x220B, 0x338}, {0x2224, 0x2223, 0x338}, {0x2226, 0x2225, 0x338},
    {0x2241, 0x223C, 0x338}, {0x2244, 0x2243, 0x338}, {0x2247, 0x2245, 0x338}, {0x2249, 0x2248, 0x338},
    {0x2260, 0x3D, 0x338}, {0x2262, 0x2261, 0x338}, {0x226D, 0x224D, 0x338}, {0x226E, 0x3C, 0x338},
    {0x226F, 0x3E, 0x338}, {0x2270, 0x2264, 0x338}, {0x2271, 0x2265, 0x338}, {0x2274, 0x2272, 0x338},
    {0x2275, 0x2273, 0x338}, {0x2278, 0x2276, 0x338}, {0x2279, 0x2277, 0x338}, {0x2280, 0x227A, 0x338},
    {0x2281, 0x227B, 0x338}, {0x2284, 0x2282, 0x338}, {0x2285, 0x2283, 0x338}, {0x2288, 0x2286, 0x338},
    {0x2289, 0x2287, 0x338}, {0x22AC, 0x22A2, 0x338}, {0x22AD, 0x22A8, 0x338}, {0x22AE, 0x22A9, 0x338},
    {0x22AF, 0x22AB, 0x338}, {0x22E0, 0x227C, 0x338}, {0x22E1, 0x227D, 0x338}, {0x22E2, 0x2291, 0x338},
    {0x22E3, 0x2292, 0x338}, {0x22EA, 0x22B2, 0x338}, {0x22EB, 0x22B3, 0x338}, {0x22EC, 0x22B4, 0x338},
    {0x22ED, 0x22B5, 0x338}, {0x2329, 0x3008, 0}, {0x232A, 0x3009, 0}, {0x2ADC, 0x2ADD, 0x338},
    {0x304C, 0x304B, 0x3099}, {0x304E, 0x304D, 0x3099}, {0x3050, 0x304F, 0x3099}, {0x3052, 0x3051, 0x3099},
    {0x3054, 0x3053, 0x3099}, {0x3056, 0x3055, 0x3099}, {0x3058, 0x3057, 0x3099}, {0x305A, 0x3059, 0x3099},
    {0x305C, 0x305B, 0x3099}, {0x305E, 0x305D, 0x3099}, {0x3060, 0x305F, 0x3099}, {0x3062, 0x3061, 0x3099},
    {0x3065, 0x3064, 0x3099}, {0x3067, 0x3066, 0x3099}, {0x3069, 0x3068, 0x3099}, {0x3070, 0x306F, 0x3099},
    {0x3071, 0x306F, 0x309A}, {0x3073, 0x3072, 0x3099}, {0x3074, 0x3072, 0x309A}, {0x3076, 0x3075, 0x3099},
    {0x3077, 0x3075, 0x309A}, {0x3079, 0x3078, 0x3099}, {0x307A, 0x3078, 0x309A}, {0x307C, 0x307B, 0x3099},
    {0x307D, 0x307B, 0x309A}, {0x3094, 0x3046, 0x3099}, {0x309E, 0x309D, 0x3099}, {0x30AC, 0x30AB, 0x3099},
    {0x30AE, 0x30AD, 0x3099}, {0x30B0, 0x30AF, 0x3099}, {0x30B2, 0x30B1, 0x3099}, {0x30B4, 0x30B3, 0x3099},
    {0x30B6, 0x30B5, 0x3099}, {0x30B8, 0x30B7, 0x3099}, {0x30BA, 0x30B9, 0x3099}, {0x30BC, 0x30BB, 0x3099},
    {0x30BE, 0x30BD, 0x3099}, {0x30C0, 0x30BF, 0x3099}, {0x30C2, 0x30C1, 0x3099}, {0x30C5, 0x30C4, 0x3099},
    {0x30C7, 0x30C6, 0x3099}, {0x30C9, 0x30C8, 0x3099}, {0x30D0, 0x30CF, 0x3099}, {0x30D1, 0x30CF, 0x309A},
    {0x30D3, 0x30D2, 0x3099}, {0x30D4, 0x30D2, 0x309A}, {0x30D6, 0x30D5, 0x3099}, {0x30D7, 0x30D5, 0x309A},
    {0x30D9, 0x30D8, 0x3099}, {0x30DA, 0x30D8, 0x309A}, {0x30DC, 0x30DB, 0x3099}, {0x30DD, 0x30DB, 0x309A},
    {0x30F4, 0x30A6, 0x3099}, {0x30F7, 0x30EF, 0x3099}, {0x30F8, 0x30F0, 0x3099}, {0x30F9, 0x30F1, 0x3099},
    {0x30FA, 0x30F2, 0x3099}, {0x30FE, 0x30FD, 0x3099}, {0xF900, 0x8C48, 0}, {0xF901, 0x66F4, 0}, {0xF902, 0x8ECA, 0},
    {0xF903, 0x8CC8, 0}, {0xF904, 0x6ED1, 0}, {0xF905, 0x4E32, 0}, {0xF906, 0x53E5, 0}, {0xF907, 0x9F9C, 0},
    {0xF908, 0x9F9C, 0}, {0xF909, 0x5951, 0}, {0xF90A, 0x91D1, 0}, {0xF90B, 0x5587, 0}, {0xF90C, 0x5948, 0},
    {0xF90D, 0x61F6, 0}, {0xF90E, 0x7669, 0}, {0xF90F, 0x7F85, 0}, {0xF910, 0x863F, 0}, {0xF911, 0x87BA, 0},
    {0xF912, 0x88F8, 0}, {0xF913, 0x908F, 0}, {0xF914, 0x6A02, 0}, {0xF915, 0x6D1B, 0}, {0xF916, 0x70D9, 0},
    {0xF917, 0x73DE, 0}, {0xF918, 0x843D, 0}, {0xF919, 0x916A, 0}, {0xF91A, 0x99F1, 0}, {0xF91B, 0x4E82, 0},
    {0xF91C, 0x5375, 0}, {0xF91D, 0x6B04, 0}, {0xF91E, 0x721B, 0}, {0xF91F, 0x862D, 0}, {0xF920, 0x9E1E, 0},
    {0xF921, 0x5D50, 0}, {0xF922, 0x6FEB, 0}, {0xF923, 0x85CD, 0}, {0xF924, 0x8964, 0}, {0xF925, 0x62C9, 0},
    {0xF926, 0x81D8, 0}, {0xF927, 0x881F, 0}, {0xF928, 0x5ECA, 0}, {0xF929, 0x6717, 0}, {0xF92A, 0x6D6A, 0},
    {0xF92B, 0x72FC, 0}, {0xF92C, 0x90CE, 0}, {0xF92D, 0x4F86, 0}, {0xF92E, 0x51B7, 0}, {0xF92F, 0x52DE, 0},
    {0xF930, 0x64C4, 0}, {0xF931, 0x6AD3, 0}, {0xF932, 0x7210, 0}, {0xF933, 0x76E7, 0}, {0xF934, 0x8001, 0},
    {0xF935, 0x8606, 0}, {0xF936, 0x865C, 0}, {0xF937, 0x8DEF, 0}, {0xF938, 0x9732, 0}, {0xF939, 0x9B6F, 0},
    {0xF93A, 0x9DFA, 0}, {0xF93B, 0x788C, 0}, {0xF93C, 0x797F, 0}, {0xF93D, 0x7DA0, 0}, {0xF93E, 0x83C9, 0},
    {0xF93F, 0x9304, 0}, {0xF940, 0x9E7F, 0}, {0xF941, 0x8AD6, 0}, {0xF942, 0x58DF, 0}, {0xF943, 0x5F04, 0},
    {0xF944, 0x7C60, 0}, {0xF945, 0x807E, 0}, {0xF946, 0x7262, 0}, {0xF947, 0x78CA, 0}, {0xF948, 0x8CC2, 0},
    {0xF949, 0x96F7, 0}, {0xF94A, 0x58D8, 0}, {0xF94B, 0x5C62, 0}, {0xF94C, 0x6A13, 0}, {0xF94D, 0x6DDA, 0},
    {0xF94E, 0x6F0F, 0}, {0xF94F, 0x7D2F, 0}, {0xF950, 0x7E37, 0}, {0xF951, 0x964B, 0}, {0xF952, 0x52D2, 0},
    {0xF953, 0x808B, 0}, {0xF954, 0x51DC, 0}, {0xF955, 0x51CC, 0}, {0xF956, 0x7A1C, 0}, {0xF957, 0x7DBE, 0},
    {0xF958, 0x83F1, 0}, {0xF959, 0x9675, 0}, {0xF95A, 0x8B80, 0}, {0xF95B, 0x62CF, 0}, {0xF95C, 0x6A02, 0},
    {0xF95D, 0x8AFE, 0}, {0xF95E, 0x4E39, 0}, {0xF95F, 0x5BE7, 0}, {0xF960, 0x6012, 0}, {0xF961, 0x7387, 0},
    {0xF962, 0x7570, 0}, {0xF963, 0x5317, 0}, {0xF964, 0x78FB, 0}, {0xF965, 0x4FBF, 0}, {0xF966, 0x5FA9, 0},
    {0xF967, 0x4E0D, 0}, {0xF968, 0x6CCC, 0}, {0xF969, 0x6578, 0}, {0xF96A, 0x7D22, 0}, {0xF96B, 0x53C3, 0},
    {0xF96C, 0x585E, 0}, {0xF96D, 0x7701, 0}, {0xF96E, 0x8449, 0}, {0xF96F, 0x8AAA, 0}, {0xF970, 0x6BBA, 0},
    {0xF971, 0x8FB0, 0}, {0xF972, 0x6C88, 0}, {0xF973, 0x62FE, 0}, {0xF974, 0x82E5, 0}, {0xF975, 0x63A0, 0},
    {0xF976, 0x7565, 0}, {0xF977, 0x4EAE, 0}, {0xF978, 0x5169, 0}, {0xF979, 0x51C9, 0}, {0xF97A, 0x6881, 0},
    {0xF97B, 0x7CE7, 0}, {0xF97C, 0x826F, 0}, {0xF97D, 0x8AD2, 0}, {0xF97E, 0x91CF, 0}, {0xF97F, 0x52F5, 0},
    {0xF980, 0x5442, 0}, {0xF981, 0x5973, 0}, {0xF982, 0x5EEC, 0}, {0xF983, 0x65C5, 0}, {0xF984, 0x6FFE, 0},
    {0xF985, 0x792A, 0}, {0xF986, 0x95AD, 0}, {0xF987, 0x9A6A, 0}, {0xF988, 0x9E97, 0}, {0xF989, 0x9ECE, 0},
    {0xF98A, 0x529B, 0}, {0xF98B, 0x66C6, 0}, {0xF98C, 0x6B77, 0}, {0xF98D, 0x8F62, 0}, {0xF98E, 0x5E74, 0},
    {0xF98F, 0x6190, 0}, {0xF990, 0x6200, 0}, {0xF991, 0x649A, 0}, {0xF992, 0x6F23, 0}, {0xF993, 0x7149, 0},
    {0xF994, 0x7489, 0}, {0xF995, 0x79CA, 0}, {0xF996, 0x7DF4, 0}, {0xF997, 0x806F, 0}, {0xF998, 0x8F26, 0},
    {0xF999, 0x84EE, 0}, {0xF99A, 0x9023, 0}, {0xF99B, 0x934A, 0}, {0xF99C, 0x5217, 0}, {0xF99D, 0x52A3, 0},
    {0xF99E, 0x54BD, 0}, {0xF99F, 0x70C8, 0}, {0xF9A0, 0x88C2, 0}, {0xF9A1, 0x8AAA, 0}, {0xF9A2, 0x5EC9, 0},
    {0xF9A3, 0x5FF5, 0}, {0xF9A4, 0x637B, 0}, {0xF9A5, 0x6BAE, 0}, {0xF9A6, 0x7C3E, 0}, {0xF9A7, 0x7375, 0},
    {0xF9A8, 0x4EE4, 0}, {0xF9A9, 0x56F9, 0}, {0xF9AA, 0x5BE7, 0}, {0xF9AB, 0x5DBA, 0}, {0xF9AC, 0x601C, 0},
    {0xF9AD, 0x73B2, 0}, {0xF9AE, 0x7469, 0}, {0xF9AF, 0x7F9A, 0}, {0xF9B0, 0x8046, 0}, {0xF9B1, 0x9234, 0},
    {0xF9B2, 0x96F6, 0}, {0xF9B3, 0x9748, 0}, {0xF9B4, 0x9818, 0}, {0xF9B5, 0x4F8B, 0}, {0xF9B6, 0x79AE, 0},
    {0xF9B7, 0x91B4, 0}, {0xF9B8, 0x96B8, 0}, {0xF9B9, 0x60E1, 0}, {0xF9BA, 0x4E86, 0}, {0xF9BB, 0x50DA, 0},
    {0xF9BC, 0x5BEE, 0}, {0xF9BD, 0x5C3F, 0}, {0xF9BE, 0x6599, 0}, {0xF9BF, 0x6A02, 0}, {0xF9C0, 0x71CE, 0},
    {0xF9C1, 0x7642, 0}, {0xF9C2, 0x84FC, 0}, {0xF9C3, 0x907C, 0}, {0xF9C4, 0x9F8D, 0}, {0xF9C5, 0x6688, 0},
    {0xF9C6, 0x962E, 0}, {0xF9C7, 0x5289, 0}, {0xF9C8, 0x677B, 0}, {0xF9C9, 0x67F3, 0}, {0xF9CA, 0x6D41, 0},
    {0xF9CB, 0x6E9C, 0}, {0xF9CC, 0x7409, 0}, {0xF9CD, 0x7559, 0}, {0xF9CE, 0x786B, 0}, {0xF9CF, 0x7D10, 0},
    {0xF9D0, 0x985E, 0}, {0xF9D1, 0x516D, 0}, {0xF9D2, 0x622E, 0}, {0xF9D3, 0x9678, 0}, {0xF9D4, 0x502B, 0},
    {0xF9D5, 0x5D19, 0}, {0xF9D6, 0x6DEA, 0}, {0xF9D7, 0x8F2A, 0}, {0xF9D8, 0x5F8B, 0}, {0xF9D9, 0x6144, 0},
    {0xF9DA, 0x6817, 0}, {0xF9DB, 0x7387, 0}, {0xF9DC, 0x9686, 0}, {0xF9DD, 0x5229, 0}, {0xF9DE, 0x540F, 0},
    {0xF9DF, 0x5C65, 0}, {0xF9E0, 0x6613, 0}, {0xF9E1, 0x674E, 0}, {0xF9E2, 0x68A8, 0}, {0xF9E3, 0x6CE5, 0},
    {0xF9E4, 0x7406, 0}, {0xF9E5, 0x75E2, 0}, {0xF9E6, 0x7F79, 0}, {0xF9E7, 0x88CF, 0}, {0xF9E8, 0x88E1, 0},
    {0xF9E9, 0x91CC, 0}, {0xF9EA, 0x96E2, 0}, {0xF9EB, 0x533F, 0}, {0xF9EC, 0x6EBA, 0}, {0xF9ED, 0x541D, 0},
    {0xF9EE, 0x71D0, 0}, {0xF9EF, 0x7498, 0}, {0xF9F0, 0x85FA, 0}, {0xF9F1, 0x96A3, 0}, {0xF9F2, 0x9C57, 0},
    {0xF9F3, 0x9E9F, 0}, {0xF9F4, 0x6797, 0}, {0xF9F5, 0x6DCB, 0}, {0xF9F6, 0x81E8, 0}, {0xF9F7, 0x7ACB, 0},
    {0xF9F8, 0x7B20, 0}, {0xF9F9, 0x7C92, 0}, {0xF9FA, 0x72C0, 0}, {0xF9FB, 0x7099, 0}, {0xF9FC, 0x8B58, 0},
    {0xF9FD, 0x4EC0, 0}, {0xF9FE, 0x8336, 0}, {0xF9FF, 0x523A, 0}, {0xFA00, 0x5207, 0}, {0xFA01, 0x5EA6, 0},
    {0xFA02, 0x62D3, 0}, {0xFA03, 0x7CD6, 0}, {0xFA04, 0x5B85, 0}, {0xFA05, 0x6D1E, 0}, {0xFA06, 0x66B4, 0},
    {0xFA07, 0x8F3B, 0}, {0xFA08, 0x884C, 0}, {0xFA09, 0x964D, 0}, {0xFA0A, 0x898B, 0}, {0xFA0B, 0x5ED3, 0},
    {0xFA0C, 0x5140, 0}, {0xFA0D, 0x55C0, 0}, {0xFA10, 0x585A, 0}, {0xFA12, 0x6674, 0}, {0xFA15, 0x51DE, 0},
    {0xFA16, 0x732A, 0}, {0xFA17, 0x76CA, 0}, {0xFA18, 0x793C, 0}, {0xFA19, 0x795E, 0}, {0xFA1A, 0x7965, 0},
    {0xFA1B, 0x798F, 0}, {0xFA1C, 0x9756, 0}, {0xFA1D, 0x7CBE, 0}, {0xFA1E, 0x7FBD, 0}, {0xFA20, 0x8612, 0},
    {0xFA22, 0x8AF8, 0}, {0xFA25, 0x9038, 0}, {0xFA26, 0x90FD, 0}, {0xFA2A, 0x98EF, 0}, {0xFA2B, 0x98FC, 0},
    {0xFA2C, 0x9928, 0}, {0xFA2D, 0x9DB4, 0}, {0xFA2E, 0x90DE, 0}, {0xFA2F, 0x96B7, 0}, {0xFA30, 0x4FAE, 0},
    {0xFA31, 0x50E7, 0}, {0xFA32, 0x514D, 0}, {0xFA33, 0x52C9, 0}, {0xFA34, 0x52E4, 0}, {0xFA35, 0x5351, 0},
    {0xFA36, 0x559D, 0}, {0xFA37, 0x5606, 0}, {0xFA38, 0x5668, 0}, {0xFA39, 0x5840, 0}, {0xFA3A, 0x58A8, 0},
    {0xFA3B, 0x5C64, 0}, {0xFA3C, 0x5C6E, 0}, {0xFA3D, 0x6094, 0}, {0xFA3E, 0x6168, 0}, {0xFA3F, 0x618E, 0},
    {0xFA40, 0x61F2, 0}, {0xFA41, 0x654F, 0}, {0xFA42, 0x65E2, 0}, {0xFA43, 0x6691, 0}, {0xFA44, 0x6885, 0},
    {0xFA45, 0x6D77, 0}, {0xFA46, 0x6E1A, 0}, {0xFA47, 0x6F22, 0}, {0xFA48, 0x716E, 0}, {0xFA49, 0x722B, 0},
    {0xFA4A, 0x7422, 0}, {0xFA4B, 0x7891, 0}, {0xFA4C, 0x793E, 0}, {0xFA4D, 0x7949, 0}, {0xFA4E, 0x7948, 0},
    {0xFA4F, 0x7950, 0}, {0xFA50, 0x7956, 0}, {0xFA51, 0x795D, 0}, {0xFA52, 0x798D, 0}, {0xFA53, 0x798E, 0},
    {0xFA54, 0x7A40, 0}, {0xFA55, 0x7A81, 0}, {0xFA56, 0x7BC0, 0}, {0xFA57, 0x7DF4, 0}, {0xFA58, 0x7E09, 0},
    {0xFA59, 0x7E41, 0}, {0xFA5A, 0x7F72, 0}, {0xFA5B, 0x8005, 0}, {0xFA5C, 0x81ED, 0}, {0xFA5D, 0x8279, 0},
    {0xFA5E, 0x8279, 0}, {0xFA5F, 0x8457, 0}, {0xFA60, 0x8910, 0}, {0xFA61, 0x8996, 0}, {0xFA62, 0x8B01, 0},
    {0xFA63, 0x8B39, 0}, {0xFA64, 0x8CD3, 0}, {0xFA65, 0x8D08, 0}, {0xFA66, 0x8FB6, 0}, {0xFA67, 0x9038, 0},
    {0xFA68, 0x96E3, 0}, {0xFA69, 0x97FF, 0}, {0xFA6A, 0x983B, 0}, {0xFA6B, 0x6075, 0}, {0xFA6C, 0x242EE, 0},
    {0xFA6D, 0x8218, 0}, {0xFA70, 0x4E26, 0}, {0xFA71, 0x51B5, 0}, {0xFA72, 0x5168, 0}, {0xFA73, 0x4F80, 0},
    {0xFA74, 0x5145, 0}, {0xFA75, 0x5180, 0}, {0xFA76, 0x52C7, 0}, {0xFA77, 0x52FA, 0}, {0xFA78, 0x559D, 0},
    {0xFA79, 0x5555, 0}, {0xFA7A, 0x5599, 0}, {0xFA7B, 0x55E2, 0}, {0xFA7C, 0x585A, 0}, {0xFA7D, 0x58B3, 0},
    {0xFA7E, 0x5944, 0}, {0xFA7F, 0x5954, 0}, {0xFA80, 0x5A62, 0}, {0xFA81, 0x5B28, 0}, {0xFA82, 0x5ED2, 0},
    {0xFA83, 0x5ED9, 0}, {0xFA84, 0x5F69, 0}, {0xFA85, 0x5FAD, 0}, {0xFA86, 0x60D8, 0}, {0xFA87, 0x614E, 0},
    {0xFA88, 0x6108, 0}, {0xFA89, 0x618E, 0}, {0xFA8A, 0x6160, 0}, {0xFA8B, 0x61F2, 0}, {0xFA8C, 0x6234, 0},
    {0xFA8D, 0x63C4, 0}, {0xFA8E, 0x641C, 0}, {0xFA8F, 0x6452, 0}, {0xFA90, 0x6556, 0}, {0xFA91, 0x6674, 0},
    {0xFA92, 0x6717, 0}, {0xFA93, 0x671B, 0}, {0xFA94, 0x6756, 0}, {0xFA95, 0x6B79, 0}, {0xFA96, 0x6BBA, 0},
    {0xFA97, 0x6D41, 0}, {0xFA98, 0x6EDB, 0}, {0xFA99, 0x6ECB, 0}, {0xFA9A, 0x6F22, 0}, {0xFA9B, 0x701E, 0},
    {0xFA9C, 0x716E, 0}, {0xFA9D, 0x77A7, 0}, {0xFA9E, 0x7235, 0}, {0xFA9F, 0x72AF, 0}, {0xFAA0, 0x732A, 0},
    {0xFAA1, 0x7471, 0}, {0xFAA2, 0x7506, 0}, {0xFAA3, 0x753B, 0}, {0xFAA4, 0x761D, 0}, {0xFAA5, 0x761F, 0},
    {0xFAA6, 0x76CA, 0}, {0xFAA7, 0x76DB, 0}, {0xFAA8, 0x76F4, 0}, {0xFAA9, 0x774A, 0}, {0xFAAA, 0x7740, 0},
    {0xFAAB, 0x78CC, 0}, {0xFAAC, 0x7AB1, 0}, {0xFAAD, 0x7BC0, 0}, {0xFAAE, 0x7C7B, 0}, {0xFAAF, 0x7D5B, 0},
    {0xFAB0, 0x7DF4, 0}, {0xFAB1, 0x7F3E, 0}, {0xFAB2, 0x8005, 0}, {0xFAB3, 0x8352, 0}, {0xFAB4, 0x83EF, 0},
    {0xFAB5, 0x8779, 0}, {0xFAB6, 0x8941, 0}, {0xFAB7, 0x8986, 0}, {0xFAB8, 0x8996, 0}, {0xFAB9, 0x8ABF, 0},
    {0xFABA, 0x8AF8, 0}, {0xFABB, 0x8ACB, 0}, {0xFABC, 0x8B01, 0}, {0xFABD, 0x8AFE, 0}, {0xFABE, 0x8AED, 0},
    {0xFABF, 0x8B39, 0}, {0xFAC0, 0x8B8A, 0}, {0xFAC1, 0x8D08, 0}, {0xFAC2, 0x8F38, 0}, {0xFAC3, 0x9072, 0},
    {0xFAC4, 0x9199, 0}, {0xFAC5, 0x9276, 0}, {0xFAC6, 0x967C, 0}, {0xFAC7, 0x96E3, 0}, {0xFAC8, 0x9756, 0},
    {0xFAC9, 0x97DB, 0}, {0xFACA, 0x97FF, 0}, {0xFACB, 0x980B, 0}, {0xFACC, 0x983B, 0}, {0xFACD, 0x9B12, 0},
    {0xFACE, 0x9F9C, 0}, {0xFACF, 0x2284A, 0}, {0xFAD0, 0x22844, 0}, {0xFAD1, 0x233D5, 0}, {0xFAD2, 0x3B9D, 0},
    {0xFAD3, 0x4018, 0}, {0xFAD4, 0x4039, 0}, {0xFAD5, 0x25249, 0}, {0xFAD6, 0x25CD0, 0}, {0xFAD7, 0x27ED3, 0},
    {0xFAD8, 0x9F43, 0}, {0xFAD9, 0x9F8E, 0}, {0xFB1D, 0x5D9, 0x5B4}, {0xFB1F, 0x5F2, 0x5B7}, {0xFB2A, 0x5E9, 0x5C1},
    {0xFB2B, 0x5E9, 0x5C2}, {0xFB2C, 0xFB49, 0x5C1}, {0xFB2D, 0xFB49, 0x5C2}, {0xFB2E, 0x5D0, 0x5B7},
    {0xFB2F, 0x5D0, 0x5B8}, {0xFB30, 0x5D0, 0x5BC}, {0xFB31, 0x5D1, 0x5BC}, {0xFB32, 0x5D2, 0x5BC},
    {0xFB33, 0x5D3, 0x5BC}, {0xFB34, 0x5D4, 0x5BC}, {0xFB35, 0x5D5, 0x5BC}, {0xFB36, 0x5D6, 0x5BC},
    {0xFB38, 0x5D8, 0x5BC}, {0xFB39, 0x5D9, 0x5BC}, {0xFB3A, 0x5DA, 0x5BC}, {0xFB3B, 0x5DB, 0x5BC},
    {0xFB3C, 0x5DC, 0x5BC}, {0xFB3E, 0x5DE, 0x5BC}, {0xFB40, 0x5E0, 0x5BC}, {0xFB41, 0x5E1, 0x5BC},
    {0xFB43, 0x5E3, 0x5BC}, {0xFB44, 0x5E4, 0x5BC}, {0xFB46, 0x5E6, 0x5BC}, {0xFB47, 0x5E7, 0x5BC},
    {0xFB48, 0x5E8, 0x5BC}, {0xFB49, 0x5E9, 0x5BC}, {0xFB4A, 0x5EA, 0x5BC}, {0xFB4B, 0x5D5, 0x5B9},
    {0xFB4C, 0x5D1, 0x5BF}, {0xFB4D, 0x5DB, 0x5BF}, {0xFB4E, 0x5E4, 0x5BF}, {0x1109A, 0x11099, 0x110BA},
    {0x1109C, 0x1109B, 0x110BA}, {0x110AB, 0x110A5, 0x110BA}, {0x1112E, 0x11131, 0x11127}, {0x1112F, 0x11132, 0x11127},
    {0x1134B, 0x11347, 0x1133E}, {0x1134C, 0x11347, 0x11357}, {0x114BB, 0x114B9, 0x114BA}, {0x114BC, 0x114B9, 0x114B0},
    {0x114BE, 0x114B9, 0x114BD}, {0x115BA, 0x115B8, 0x115AF}, {0x115BB, 0x115B9, 0x115AF}, {0x11938, 0x11935, 0x11930},
    {0x1D15E, 0x1D157, 0x1D165}, {0x1D15F, 0x1D158, 0x1D165}, {0x1D160, 0x1D15F, 0x1D16E}, {0x1D161, 0x1D15F, 0x1D16F},
    {0x1D162, 0x1D15F, 0x1D170}, {0x1D163, 0x1D15F, 0x1D171}, {0x1D164, 0x1D15F, 0x1D172}, {0x1D1BB, 0x1D1B9, 0x1D165},
    {0x1D1BC, 0x1D1BA, 0x1D165}, {0x1D1BD, 0x1D1BB, 0x1D16E}, {0x1D1BE, 0x1D1BC, 0x1D16E}, {0x1D1BF, 0x1D1BB, 0x1D16F},
    {0x1D1C0, 0x1D1BC, 0x1D16F}, {0x2F800, 0x4E3D, 0}, {0x2F801, 0x4E38, 0}, {0x2F802, 0x4E41, 0},
    {0x2F803, 0x20122, 0}, {0x2F804, 0x4F60, 0}, {0x2F805, 0x4FAE, 0}, {0x2F806, 0x4FBB, 0}, {0x2F807, 0x5002, 0},
    {0x2F808, 0x507A, 0}, {0x2F809, 0x5099, 0}, {0x2F80A, 0x50E7, 0}, {0x2F80B, 0x50CF, 0}, {0x2F80C, 0x349E, 0},
    {0x2F80D, 0x2063A, 0}, {0x2F80E, 0x514D, 0}, {0x2F80F, 0x5154, 0}, {0x2F810, 0x5164, 0}, {0x2F811, 0x5177, 0},
    {0x2F812, 0x2051C, 0}, {0x2F813, 0x34B9, 0}, {0x2F814, 0x5167, 0}, {0x2F815, 0x518D, 0}, {0x2F816, 0x2054B, 0},
    {0x2F817, 0x5197, 0}, {0x2F818, 0x51A4, 0}, {0x2F819, 0x4ECC, 0}, {0x2F81A, 0x51AC, 0}, {0x2F81B, 0x51B5, 0},
    {0x2F81C, 0x291DF, 0}, {0x2F81D, 0x51F5, 0}, {0x2F81E, 0x5203, 0}, {0x2F81F, 0x34DF, 0}, {0x2F820, 0x523B, 0},
    {0x2F821, 0x5246, 0}, {0x2F822, 0x5272, 0}, {0x2F823, 0x5277, 0}, {0x2F824, 0x3515, 0}, {0x2F825, 0x52C7, 0},
    {0x2F826, 0x52C9, 0}, {0x2F827, 0x52E4, 0}, {0x2F828, 0x52FA, 0}, {0x2F829, 0x5305, 0}, {0x2F82A, 0x5306, 0},
    {0x2F82B, 0x5317, 0}, {0x2F82C, 0x5349, 0}, {0x2F82D, 0x5351, 0}, {0x2F82E, 0x535A, 0}, {0x2F82F, 0x5373, 0},
    {0x2F830, 0x537D, 0}, {0x2F831, 0x537F, 0}, {0x2F832, 0x537F, 0}, {0x2F833, 0x537F, 0}, {0x2F834, 0x20A2C, 0},
    {0x2F835, 0x7070, 0}, {0x2F836, 0x53CA, 0}, {0x2F837, 0x53DF, 0}, {0x2F838, 0x20B63, 0}, {0x2F839, 0x53EB, 0},
    {0x2F83A, 0x53F1, 0}, {0x2F83B, 0x5406, 0}, {0x2F83C, 0x549E, 0}, {0x2F83D, 0x5438, 0}, {0x2F83E, 0x5448, 0},
    {0x2F83F, 0x5468, 0}, {0x2F840, 0x54A2, 0}, {0x2F841, 0x54F6, 0}, {0x2F842, 0x5510, 0}, {0x2F843, 0x5553, 0},
    {0x2F844, 0x5563, 0}, {0x2F845, 0x5584, 0}, {0x2F846, 0x5584, 0}, {0x2F847, 0x5599, 0}, {0x2F848, 0x55AB, 0},
    {0x2F849, 0x55B3, 0}, {0x2F84A, 0x55C2, 0}, {0x2F84B, 0x5716, 0}, {0x2F84C, 0x5606, 0}, {0x2F84D, 0x5717, 0},
    {0x2F84E, 0x5651, 0}, {0x2F84F, 0x5674, 0}, {0x2F850, 0x5207, 0}, {0x2F851, 0x58EE, 0}, {0x2F852, 0x57CE, 0},
    {0x2F853, 0x57F4, 0}, {0x2F854, 0x580D, 0}, {0x2F855, 0x578B, 0}, {0x2F856, 0x5832, 0}, {0x2F857, 0x5831, 0},
    {0x2F858, 0x58AC, 0}, {0x2F859, 0x214E4, 0}, {0x2F85A, 0x58F2, 0}, {0x2F85B, 0x58F7, 0}, {0x2F85C, 0x5906, 0},
    {0x2F85D, 0x591A, 0}, {0x2F85E, 0x5922, 0}, {0x2F85F, 0x5962, 0}, {0x2F860, 0x216A8, 0}, {0x2F861, 0x216EA, 0},
    {0x2F862, 0x59EC, 0}, {0x2F863, 0x5A1B, 0}, {0x2F864, 0x5A27, 0}, {0x2F865, 0x59D8, 0}, {0x2F866, 0x5A66, 0},
    {0x2F867, 0x36EE, 0}, {0x2F868, 0x36FC, 0}, {0x2F869, 0x5B08, 0}, {0x2F86A, 0x5B3E, 0}, {0x2F86B, 0x5B3E, 0},
    {0x2F86C, 0x219C8, 0}, {0x2F86D, 0x5BC3, 0}, {0x2F86E, 0x5BD8, 0}, {0x2F86F, 0x5BE7, 0}, {0x2F870, 0x5BF3, 0},
    {0x2F871, 0x21B18, 0}, {0x2F872, 0x5BFF, 0}, {0x2F873, 0x5C06, 0}, {0x2F874, 0x5F53, 0}, {0x2F875, 0x5C22, 0},
    {0x2F876, 0x3781, 0}, {0x2F877, 0x5C60, 0}, {0x2F878, 0x5C6E, 0}, {0x2F879, 0x5CC0, 0}, {0x2F87A, 0x5C8D, 0},
    {0x2F87B, 0x21DE4, 0}, {0x2F87C, 0x5D43, 0}, {0x2F87D, 0x21DE6, 0}, {0x2F87E, 0x5D6E, 0}, {0x2F87F, 0x5D6B, 0},
    {0x2F880, 0x5D7C, 0}, {0x2F881, 0x5DE1, 0}, {0x2F882, 0x5DE2, 0}, {0x2F883, 0x382F, 0}, {0x2F884, 0x5DFD, 0},
    {0x2F885, 0x5E28, 0}, {0x2F886, 0x5E3D, 0}, {0x2F887, 0x5E69, 0}, {0x2F888, 0x3862, 0}, {0x2F889, 0x22183, 0},
    {0x2F88A, 0x387C, 0}, {0x2F88B, 0x5EB0, 0}, {0x2F88C, 0x5EB3, 0}, {0x2F88D, 0x5EB6, 0}, {0x2F88E, 0x5ECA, 0},
    {0x2F88F, 0x2A392, 0}, {0x2F890, 0x5EFE, 0}, {0x2F891, 0x22331, 0}, {0x2F892, 0x22331, 0}, {0x2F893, 0x8201, 0},
    {0x2F894, 0x5F22, 0}, {0x2F895, 0x5F22, 0}, {0x2F896, 0x38C7, 0}, {0x2F897, 0x232B8, 0}, {0x2F898, 0x261DA, 0},
    {0x2F899, 0x5F62, 0}, {0x2F89A, 0x5F6B, 0}, {0x2F89B, 0x38E3, 0}, {0x2F89C, 0x5F9A, 0}, {0x2F89D, 0x5FCD, 0},
    {0x2F89E, 0x5FD7, 0}, {0x2F89F, 0x5FF9, 0}, {0x2F8A0, 0x6081, 0}, {0x2F8A1, 0x393A, 0}, {0x2F8A2, 0x391C, 0},
    {0x2F8A3, 0x6094, 0}, {0x2F8A4, 0x226D4, 0}, {0x2F8A5, 0x60C7, 0}, {0x2F8A6, 0x6148, 0}, {0x2F8A7, 0x614C, 0},
    {0x2F8A8, 0x614E, 0}, {0x2F8A9, 0x614C, 0}, {0x2F8AA, 0x617A, 0}, {0x2F8AB, 0x618E, 0}, {0x2F8AC, 0x61B2, 0},
    {0x2F8AD, 0x61A4, 0}, {0x2F8AE, 0x61AF, 0}, {0x2F8AF, 0x61DE, 0}, {0x2F8B0, 0x61F2, 0}, {0x2F8B1, 0x61F6, 0},
    {0x2F8B2, 0x6210, 0}, {0x2F8B3, 0x621B, 0}, {0x2F8B4, 0x625D, 0}, {0x2F8B5, 0x62B1, 0}, {0x2F8B6, 0x62D4, 0},
    {0x2F8B7, 0x6350, 0}, {0x2F8B8, 0x22B0C, 0}, {0x2F8B9, 0x633D, 0}, {0x2F8BA, 0x62FC, 0}, {0x2F8BB, 0x6368, 0},
    {0x2F8BC, 0x6383, 0}, {0x2F8BD, 0x63E4, 0}, {0x2F8BE, 0x22BF1, 0}, {0x2F8BF, 0x6422, 0}, {0x2F8C0, 0x63C5, 0},
    {0x2F8C1, 0x63A9, 0}, {0x2F8C2, 0x3A2E, 0}, {0x2F8C3, 0x6469, 0}, {0x2F8C4, 0x647E, 0}, {0x2F8C5, 0x649D, 0},
    {0x2F8C6, 0x6477, 0}, {0x2F8C7, 0x3A6C, 0}, {0x2F8C8, 0x654F, 0}, {0x2F8C9, 0x656C, 0}, {0x2F8CA, 0x2300A, 0},
    {0x2F8CB, 0x65E3, 0}, {0x2F8CC, 0x66F8, 0}, {0x2F8CD, 0x6649, 0}, {0x2F8CE, 0x3B19, 0}, {0x2F8CF, 0x6691, 0},
    {0x2F8D0, 0x3B08, 0}, {0x2F8D1, 0x3AE4, 0}, {0x2F8D2, 0x5192, 0}, {0x2F8D3, 0x5195, 0}, {0x2F8D4, 0x6700, 0},
    {0x2F8D5, 0x669C, 0}, {0x2F8D6, 0x80AD, 0}, {0x2F8D7, 0x43D9, 0}, {0x2F8D8, 0x6717, 0}, {0x2F8D9, 0x671B, 0},
    {0x2F8DA, 0x6721, 0}, {0x2F8DB, 0x675E, 0}, {0x2F8DC, 0x6753, 0}, {0x2F8DD, 0x233C3, 0}, {0x2F8DE, 0x3B49, 0},
    {0x2F8DF, 0x67FA, 0}, {0x2F8E0, 0x6785, 0}, {0x2F8E1, 0x6852, 0}, {0x2F8E2, 0x6885, 0}, {0x2F8E3, 0x2346D, 0},
    {0x2F8E4, 0x688E, 0}, {0x2F8E5, 0x681F, 0}, {0x2F8E6, 0x6914, 0}, {0x2F8E7, 0x3B9D, 0}, {0x2F8E8, 0x6942, 0},
    {0x2F8E9, 0x69A3, 0}, {0x2F8EA, 0x69EA, 0}, {0x2F8EB, 0x6AA8, 0}, {0x2F8EC, 0x236A3, 0}, {0x2F8ED, 0x6ADB, 0},
    {0x2F8EE, 0x3C18, 0}, {0x2F8EF, 0x6B21, 0}, {0x2F8F0, 0x238A7, 0}, {0x2F8F1, 0x6B54, 0}, {0x2F8F2, 0x3C4E, 0},
    {0x2F8F3, 0x6B72, 0}, {0x2F8F4, 0x6B9F, 0}, {0x2F8F5, 0x6BBA, 0}, {0x2F8F6, 0x6BBB, 0}, {0x2F8F7, 0x23A8D, 0},
    {0x2F8F8, 0x21D0B, 0}, {0x2F8F9, 0x23AFA, 0}, {0x2F8FA, 0x6C4E, 0}, {0x2F8FB, 0x23CBC, 0}, {0x2F8FC, 0x6CBF, 0},
    {0x2F8FD, 0x6CCD, 0}, {0x2F8FE, 0x6C67, 0}, {0x2F8FF, 0x6D16, 0}, {0x2F900, 0x6D3E, 0}, {0x2F901, 0x6D77, 0},
    {0x2F902, 0x6D41, 0}, {0x2F903, 0x6D69, 0}, {0x2F904, 0x6D78, 0}, {0x2F905, 0x6D85, 0}, {0x2F906, 0x23D1E, 0},
    {0x2F907, 0x6D34, 0}, {0x2F908, 0x6E2F, 0}, {0x2F909, 0x6E6E, 0}, {0x2F90A, 0x3D33, 0}, {0x2F90B, 0x6ECB, 0},
    {0x2F90C, 0x6EC7, 0}, {0x2F90D, 0x23ED1, 0}, {0x2F90E, 0x6DF9, 0}, {0x2F90F, 0x6F6E, 0}, {0x2F910, 0x23F5E, 0},
    {0x2F911, 0x23F8E, 0}, {0x2F912, 0x6FC6, 0}, {0x2F913, 0x7039, 0}, {0x2F914, 0x701E, 0}, {0x2F915, 0x701B, 0},
    {0x2F916, 0x3D96, 0}, {0x2F917, 0x704A, 0}, {0x2F918, 0x707D, 0}, {0x2F919, 0x7077, 0}, {0x2F91A, 0x70AD, 0},
    {0x2F91B, 0x20525, 0}, {0x2F91C, 0x7145, 0}, {0x2F91D, 0x24263, 0}, {0x2F91E, 0x719C, 0}, {0x2F91F, 0x243AB, 0},
    {0x2F920, 0x7228, 0}, {0x2F921, 0x7235, 0}, {0x2F922, 0x7250, 0}, {0x2F923, 0x24608, 0}, {0x2F924, 0x7280, 0},
    {0x2F925, 0x7295, 0}, {0x2F926, 0x24735, 0}, {0x2F927, 0x24814, 0}, {0x2F928, 0x737A, 0}, {0x2F929, 0x738B, 0},
    {0x2F92A, 0x3EAC, 0}, {0x2F92B, 0x73A5, 0}, {0x2F92C, 0x3EB8, 0}, {0x2F92D, 0x3EB8, 0}, {0x2F92E, 0x7447, 0},
    {0x2F92F, 0x745C, 0}, {0x2F930, 0x7471, 0}, {0x2F931, 0x7485, 0}, {0x2F932, 0x74CA, 0}, {0x2F933, 0x3F1B, 0},
    {0x2F934, 0x7524, 0}, {0x2F935, 0x24C36, 0}, {0x2F936, 0x753E, 0}, {0x2F937, 0x24C92, 0}, {0x2F938, 0x7570, 0},
    {0x2F939, 0x2219F, 0}, {0x2F93A, 0x7610, 0}, {0x2F93B, 0x24FA1, 0}, {0x2F93C, 0x24FB8, 0}, {0x2F93D, 0x25044, 0},
    {0x2F93E, 0x3FFC, 0}, {0x2F93F, 0x4008, 0}, {0x2F940, 0x76F4, 0}, {0x2F941, 0x250F3, 0}, {0x2F942, 0x250F2, 0},
    {0x2F943, 0x25119, 0}, {0x2F944, 0x25133, 0}, {0x2F945, 0x771E, 0}, {0x2F946, 0x771F, 0}, {0x2F947, 0x771F, 0},
    {0x2F948, 0x774A, 0}, {0x2F949, 0x4039, 0}, {0x2F94A, 0x778B, 0}, {0x2F94B, 0x4046, 0}, {0x2F94C, 0x4096, 0},
    {0x2F94D, 0x2541D, 0}, {0x2F94E, 0x784E, 0}, {0x2F94F, 0x788C, 0}, {0x2F950, 0x78CC, 0}, {0x2F951, 0x40E3, 0},
    {0x2F952, 0x25626, 0}, {0x2F953, 0x7956, 0}, {0x2F954, 0x2569A, 0}, {0x2F955, 0x256C5, 0}, {0x2F956, 0x798F, 0},
    {0x2F957, 0x79EB, 0}, {0x2F958, 0x412F, 0}, {0x2F959, 0x7A40, 0}, {0x2F95A, 0x7A4A, 0}, {0x2F95B, 0x7A4F, 0},
    {0x2F95C, 0x2597C, 0}, {0x2F95D, 0x25AA7, 0}, {0x2F95E, 0x25AA7, 0}, {0x2F95F, 0x7AEE, 0}, {0x2F960, 0x4202, 0},
    {0x2F961, 0x25BAB, 0}, {0x2F962, 0x7BC6, 0}, {0x2F963, 0x7BC9, 0}, {0x2F964, 0x4227, 0}, {0x2F965, 0x25C80, 0},
    {0x2F966, 0x7CD2, 0}, {0x2F967, 0x42A0, 0}, {0x2F968, 0x7CE8, 0}, {0x2F969, 0x7CE3, 0}, {0x2F96A, 0x7D00, 0},
    {0x2F96B, 0x25F86, 0}, {0x2F96C, 0x7D63, 0}, {0x2F96D, 0x4301, 0}, {0x2F96E, 0x7DC7, 0}, {0x2F96F, 0x7E02, 0},
    {0x2F970, 0x7E45, 0}, {0x2F971, 0x4334, 0}, {0x2F972, 0x26228, 0}, {0x2F973, 0x26247, 0}, {0x2F974, 0x4359, 0},
    {0x2F975, 0x262D9, 0}, {0x2F976, 0x7F7A, 0}, {0x2F977, 0x2633E, 0}, {0x2F978, 0x7F95, 0}, {0x2F979, 0x7FFA, 0},
    {0x2F97A, 0x8005, 0}, {0x2F97B, 0x264DA, 0}, {0x2F97C, 0x26523, 0}, {0x2F97D, 0x8060, 0}, {0x2F97E, 0x265A8, 0},
    {0x2F97F, 0x8070, 0}, {0x2F980, 0x2335F, 0}, {0x2F981, 0x43D5, 0}, {0x2F982, 0x80B2, 0}, {0x2F983, 0x8103, 0},
    {0x2F984, 0x440B, 0}, {0x2F985, 0x813E, 0}, {0x2F986, 0x5AB5, 0}, {0x2F987, 0x267A7, 0}, {0x2F988, 0x267B5, 0},
    {0x2F989, 0x23393, 0}, {0x2F98A, 0x2339C, 0}, {0x2F98B, 0x8201, 0}, {0x2F98C, 0x8204, 0}, {0x2F98D, 0x8F9E, 0},
    {0x2F98E, 0x446B, 0}, {0x2F98F, 0x8291, 0}, {0x2F990, 0x828B, 0}, {0x2F991, 0x829D, 0}, {0x2F992, 0x52B3, 0},
    {0x2F993, 0x82B1, 0}, {0x2F994, 0x82B3, 0}, {0x2F995, 0x82BD, 0}, {0x2F996, 0x82E6, 0}, {0x2F997, 0x26B3C, 0},
    {0x2F998, 0x82E5, 0}, {0x2F999, 0x831D, 0}, {0x2F99A, 0x8363, 0}, {0x2F99B, 0x83AD, 0}, {0x2F99C, 0x8323, 0},
    {0x2F99D, 0x83BD, 0}, {0x2F99E, 0x83E7, 0}, {0x2F99F, 0x8457, 0}, {0x2F9A0, 0x8353, 0}, {0x2F9A1, 0x83CA, 0},
    {0x2F9A2, 0x83CC, 0}, {0x2F9A3, 0x83DC, 0}, {0x2F9A4, 0x26C36, 0}, {0x2F9A5, 0x26D6B, 0}, {0x2F9A6, 0x26CD5, 0},
    {0x2F9A7, 0x452B, 0}, {0x2F9A8, 0x84F1, 0}, {0x2F9A9, 0x84F3, 0}, {0x2F9AA, 0x8516, 0}, {0x2F9AB, 0x273CA, 0},
    {0x2F9AC, 0x8564, 0}, {0x2F9AD, 0x26F2C, 0}, {0x2F9AE, 0x455D, 0}, {0x2F9AF, 0x4561, 0}, {0x2F9B0, 0x26FB1, 0},
    {0x2F9B1, 0x270D2, 0}, {0x2F9B2, 0x456B, 0}, {0x2F9B3, 0x8650, 0}, {0x2F9B4, 0x865C, 0}, {0x2F9B5, 0x8667, 0},
    {0x2F9B6, 0x8669, 0}, {0x2F9B7, 0x86A9, 0}, {0x2F9B8, 0x8688, 0}, {0x2F9B9, 0x870E, 0}, {0x2F9BA, 0x86E2, 0},
    {0x2F9BB, 0x8779, 0}, {0x2F9BC, 0x8728, 0}, {0x2F9BD, 0x876B, 0}, {0x2F9BE, 0x8786, 0}, {0x2F9BF, 0x45D7, 0},
    {0x2F9C0, 0x87E1, 0}, {0x2F9C1, 0x8801, 0}, {0x2F9C2, 0x45F9, 0}, {0x2F9C3, 0x8860, 0}, {0x2F9C4, 0x8863, 0},
    {0x2F9C5, 0x27667, 0}, {0x2F9C6, 0x88D7, 0}, {0x2F9C7, 0x88DE, 0}, {0x2F9C8, 0x4635, 0}, {0x2F9C9, 0x88FA, 0},
    {0x2F9CA, 0x34BB, 0}, {0x2F9CB, 0x278AE, 0}, {0x2F9CC, 0x27966, 0}, {0x2F9CD, 0x46BE, 0}, {0x2F9CE, 0x46C7, 0},
    {0x2F9CF, 0x8AA0, 0}, {0x2F9D0, 0x8AED, 0}, {0x2F9D1, 0x8B8A, 0}, {0x2F9D2, 0x8C55, 0}, {0x2F9D3, 0x27CA8, 0},
    {0x2F9D4, 0x8CAB, 0}, {0x2F9D5, 0x8CC1, 0}, {0x2F9D6, 0x8D1B, 0}, {0x2F9D7, 0x8D77, 0}, {0x2F9D8, 0x27F2F, 0},
    {0x2F9D9, 0x20804, 0}, {0x2F9DA, 0x8DCB, 0}, {0x2F9DB, 0x8DBC, 0}, {0x2F9DC, 0x8DF0, 0}, {0x2F9DD, 0x208DE, 0},
    {0x2F9DE, 0x8ED4, 0}, {0x2F9DF, 0x8F38, 0}, {0x2F9E0, 0x285D2, 0}, {0x2F9E1, 0x285ED, 0}, {0x2F9E2, 0x9094, 0},
    {0x2F9E3, 0x90F1, 0}, {0x2F9E4, 0x9111, 0}, {0x2F9E5, 0x2872E, 0}, {0x2F9E6, 0x911B, 0}, {0x2F9E7, 0x9238, 0},
    {0x2F9E8, 0x92D7, 0}, {0x2F9E9, 0x92D8, 0}, {0x2F9EA, 0x927C, 0}, {0x2F9EB, 0x93F9, 0}, {0x2F9EC, 0x9415, 0},
    {0x2F9ED, 0x28BFA, 0}, {0x2F9EE, 0x958B, 0}, {0x2F9EF, 0x4995, 0}, {0x2F9F0, 0x95B7, 0}, {0x2F9F1, 0x28D77, 0},
    {0x2F9F2, 0x49E6, 0}, {0x2F9F3, 0x96C3, 0}, {0x2F9F4, 0x5DB2, 0}, {0x2F9F5, 0x9723, 0}, {0x2F9F6, 0x29145, 0},
    {0x2F9F7, 0x2921A, 0}, {0x2F9F8, 0x4A6E, 0}, {0x2F9F9, 0x4A76, 0}, {0x2F9FA, 0x97E0, 0}, {0x2F9FB, 0x2940A, 0},
    {0x2F9FC, 0x4AB2, 0}, {0x2F9FD, 0x29496, 0}, {0x2F9FE, 0x980B, 0}, {0x2F9FF, 0x980B, 0}, {0x2FA00, 0x9829, 0},
    {0x2FA01, 0x295B6, 0}, {0x2FA02, 0x98E2, 0}, {0x2FA03, 0x4B33, 0}, {0x2FA04, 0x9929, 0}, {0x2FA05, 0x99A7, 0},
    {0x2FA06, 0x99C2, 0}, {0x2FA07, 0x99FE, 0}, {0x2FA08, 0x4BCE, 0}, {0x2FA09, 0x29B30, 0}, {0x2FA0A, 0x9B12, 0},
    {0x2FA0B, 0x9C40, 0}, {0x2FA0C, 0x9CFD, 0}, {0x2FA0D, 0x4CCE, 0}, {0x2FA0E, 0x4CED, 0}, {0x2FA0F, 0x9D67, 0},
    {0x2FA10, 0x2A0CE, 0}, {0x2FA11, 0x4CF8, 0}, {0x2FA12, 0x2A105, 0}, {0x2FA13, 0x2A20E, 0}, {0x2FA14, 0x2A291, 0},
    {0x2FA15, 0x9EBB, 0}, {0x2FA16, 0x4D56, 0}, {0x2FA17, 0x9EF9, 0}, {0x2FA18, 0x9EFE, 0}, {0x2FA19, 0x9F05, 0},
    {0x2FA1A, 0x9F0F, 0}, {0x2FA1B, 0x9F16, 0}, {0x2FA1C, 0x9F3B, 0}, {0x2FA1D, 0x2A600, 0},
};

/* The rows of unicode_pairs that may be composed, in the order of their two parts. */
static const uint16_t unicode_composed[941] = {
    912, 909, 913, 0, 1, 2, 3, 53, 55, 238, 4, 572, 5, 165, 208, 210, 570, 415, 57, 417, 419, 421, 59, 61, 63, 65, 6,
    425, 67, 427, 431, 433, 429, 7, 8, 9, 598, 69, 71, 73, 10, 596, 77, 212, 214, 594, 240, 75, 439, 441, 445, 198, 79,
    447, 81, 83, 187, 85, 87, 449, 453, 236, 451, 455, 457, 11, 12, 13, 89, 91, 93, 97, 14, 610, 167, 216, 218, 612, 95,
    459, 98, 463, 189, 465, 100, 467, 102, 106, 469, 104, 475, 473, 477, 479, 481, 200, 108, 15, 483, 112, 485, 110,
    489, 487, 16, 17, 18, 19, 114, 116, 246, 20, 616, 118, 169, 220, 222, 161, 614, 191, 499, 501, 120, 503, 124, 224,
    226, 505, 122, 509, 126, 128, 511, 132, 513, 232, 130, 521, 136, 523, 234, 134, 527, 525, 21, 22, 23, 138, 140, 142,
    24, 640, 144, 146, 171, 228, 230, 163, 638, 529, 148, 533, 531, 539, 541, 543, 545, 150, 549, 547, 551, 553, 555,
    652, 25, 152, 658, 250, 557, 154, 656, 654, 155, 559, 157, 159, 561, 563, 26, 27, 28, 29, 54, 56, 239, 30, 573, 31,
    166, 209, 211, 571, 416, 58, 418, 420, 422, 60, 62, 64, 66, 32, 426, 68, 428, 432, 434, 430, 33, 34, 35, 599, 70,
    72, 74, 36, 597, 78, 213, 215, 595, 241, 76, 440, 442, 446, 199, 80, 448, 82, 84, 188, 86, 88, 450, 454, 237, 452,
    456, 458, 565, 37, 38, 39, 90, 92, 94, 40, 611, 168, 217, 219, 613, 96, 460, 99, 197, 464, 190, 466, 101, 468, 103,
    107, 470, 105, 476, 474, 478, 480, 482, 201, 109, 41, 484, 113, 486, 111, 490, 488, 42, 43, 44, 45, 115, 117, 247,
    46, 617, 119, 170, 221, 223, 162, 615, 192, 500, 502, 121, 504, 125, 225, 227, 506, 123, 510, 127, 129, 512, 133,
    514, 233, 131, 522, 566, 137, 524, 235, 135, 528, 526, 47, 48, 49, 139, 141, 143, 50, 641, 145, 147, 172, 229, 231,
    164, 639, 530, 149, 534, 532, 540, 542, 544, 546, 151, 550, 548, 567, 552, 554, 556, 653, 51, 153, 659, 251, 558,
    52, 657, 568, 655, 156, 560, 158, 160, 562, 564, 875, 258, 835, 576, 574, 580, 578, 181, 202, 204, 185, 423, 602,
    600, 606, 604, 461, 620, 618, 624, 622, 491, 244, 493, 242, 206, 179, 175, 173, 177, 577, 575, 581, 579, 182, 203,
    205, 186, 424, 603, 601, 607, 605, 462, 621, 619, 625, 623, 492, 245, 494, 243, 207, 180, 176, 174, 178, 586, 584,
    590, 588, 587, 585, 591, 589, 435, 437, 436, 438, 495, 497, 496, 498, 515, 516, 517, 518, 535, 536, 537, 538, 569,
    630, 628, 634, 632, 636, 631, 629, 635, 633, 637, 644, 642, 648, 646, 650, 645, 643, 649, 647, 651, 195, 193, 194,
    183, 184, 443, 444, 248, 249, 196, 831, 259, 830, 829, 668, 669, 833, 841, 261, 682, 683, 843, 262, 696, 697, 845,
    857, 263, 856, 855, 268, 712, 713, 883, 264, 726, 727, 874, 872, 265, 871, 870, 269, 740, 885, 266, 752, 753, 887,
    826, 838, 760, 270, 823, 822, 660, 661, 827, 825, 762, 271, 676, 677, 764, 272, 688, 689, 839, 837, 766, 273, 850,
    849, 275, 704, 705, 853, 768, 277, 720, 721, 866, 867, 770, 278, 863, 862, 276, 732, 733, 868, 772, 279, 744, 745,
    881, 879, 851, 267, 854, 864, 274, 869, 880, 280, 281, 285, 302, 304, 284, 282, 306, 283, 300, 310, 312, 287, 314,
    289, 316, 286, 318, 324, 288, 326, 328, 330, 332, 322, 303, 305, 293, 291, 307, 292, 301, 311, 313, 296, 315, 290,
    317, 295, 319, 325, 297, 327, 329, 331, 333, 323, 294, 298, 299, 308, 309, 320, 321, 334, 335, 337, 336, 338, 340,
    341, 339, 342, 343, 344, 353, 354, 365, 364, 366, 369, 370, 372, 371, 373, 374, 377, 375, 376, 378, 379, 381, 380,
    382, 383, 385, 384, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 471, 472, 507, 508, 519, 520, 582,
    592, 583, 593, 608, 609, 626, 627, 662, 664, 666, 774, 663, 665, 667, 775, 776, 777, 778, 779, 780, 781, 670, 672,
    674, 782, 671, 673, 675, 783, 784, 785, 786, 787, 788, 789, 678, 680, 679, 681, 684, 686, 685, 687, 690, 692, 694,
    790, 691, 693, 695, 791, 792, 793, 794, 795, 796, 797, 698, 700, 702, 798, 699, 701, 703, 799, 800, 801, 802, 803,
    804, 805, 706, 708, 710, 707, 709, 711, 714, 716, 718, 715, 717, 719, 722, 724, 723, 725, 728, 730, 729, 731, 734,
    736, 738, 735, 737, 739, 741, 742, 743, 746, 748, 750, 806, 747, 749, 751, 807, 808, 809, 810, 811, 812, 813, 754,
    756, 758, 814, 755, 757, 759, 815, 816, 817, 818, 819, 820, 821, 824, 836, 878, 828, 846, 847, 848, 840, 882, 859,
    860, 861, 894, 895, 896, 897, 899, 898, 900, 901, 902, 903, 904, 905, 906, 907, 908, 911, 910, 914, 915, 916, 917,
    918, 919, 920, 921, 930, 931, 922, 923, 924, 925, 932, 933, 926, 927, 928, 929, 934, 935, 936, 937, 966, 941, 942,
    943, 944, 945, 946, 947, 948, 949, 950, 951, 952, 953, 954, 955, 956, 957, 958, 959, 960, 961, 962, 963, 964, 965,
    967, 993, 968, 969, 970, 971, 972, 973, 974, 975, 976, 977, 978, 979, 980, 981, 982, 983, 984, 985, 986, 987, 988,
    989, 990, 991, 992, 994, 995, 996, 997, 998, 1493, 1494, 1495, 1496, 1497, 1498, 1499, 1501, 1500, 1502, 1503, 1504,
    1505,
};

/* ---- End of the tables ---- */

/* ---- UTF-8 ---- */

static uint32_t utf8_get(const char *p, size_t n, size_t *length) {
    const unsigned char *b = (const unsigned char *)p;
    uint32_t c = b[0];
    *length = 1;
    if (c < 0x80) return c;
    /* The second byte's range keeps out what is overlong, a surrogate, or above U+10FFFF. */
    uint32_t least = 0x80, most = 0xBF;
    size_t   want;
    if (c >= 0xC2 && c <= 0xDF) {
        want = 2;
        c &= 0x1F;
    } else if (c >= 0xE0 && c <= 0xEF) {
        want = 3;
        if (c == 0xE0) least = 0xA0;
        if (c == 0xED) most = 0x9F;
        c &= 0x0F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        want = 4;
        if (c == 0xF0) least = 0x90;
        if (c == 0xF4) most = 0x8F;
        c &= 0x07;
    } else {
        return UTF8_INVALID;
    }
    if (n < want || b[1] < least || b[1] > most) return UTF8_INVALID;
    for (size_t i = 1; i < want; i++) {
        if ((b[i] & 0xC0) != 0x80) return UTF8_INVALID;
        c = c << 6 | (b[i] & 0x3F);
    }
    *length = want;
    return c;
}

static size_t utf8_put(uint32_t cp, char *out) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xFF) | cp);
    return n;
}

/* ---- Classes ---- */

/* The range that holds the code point, or NULL. */
static const unicode_range *unicode_find(const unicode_range *ranges, size_t n, uint32_t cp) {
    for (size_t lo = 0, hi = n; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        if (cp < ranges[mid].first) hi = mid;
        else if (cp - ranges[mid].first < ranges[mid].n) return &ranges[mid];
        else lo = mid + 1;
    }
    return NULL;
}

/* The table's letter: upper case where normalisation has to look, because the character is not allowed in NFC, may
 * compose with the one before it, or has a combining class. */
static uint32_t unicode_letter(uint32_t cp) {
    const size_t block = sizeof unicode_rows[0] - 1;
    if (cp < COUNT_OF(unicode_index) * block) return (uint32_t)unicode_rows[unicode_index[cp / block]][cp % block];
    if (cp == UTF8_INVALID) return 's';
    const unicode_range *range = unicode_find(unicode_far, COUNT_OF(unicode_far), cp);
    return range ? range->value : 'x';
}

static uint32_t unicode_class(uint32_t cp) { return UNICODE_BIT(unicode_letter(cp)); }

/* ---- Canonical composition ---- */

#define HANGUL_L 0x1100u
#define HANGUL_V 0x1161u
#define HANGUL_T 0x11A7u   /* one before the first trailing consonant */
#define HANGUL_S 0xAC00u
#define HANGUL_N_L 19u
#define HANGUL_N_V 21u
#define HANGUL_N_T 28u

/* A code point below its combining class, so that one word is compared and moved. */
#define NFC_CP(x)    ((x) & 0x1FFFFFu)
#define NFC_CCC(x)   ((x) >> 24)
#define NFC_BYTE     0x110000u  /* and a byte that is not UTF-8, behind the code points */
#define NFC_STEPS    4          /* most code points that one decomposes into, and so most steps */
#define NFC_SHORT    16         /* up to here a run of marks is sorted by insertion */

typedef struct nfc_buffer {
    const host *h;
    uint32_t   *p;
    size_t      n, cap;
} nfc_buffer;

static bool nfc_reserve(nfc_buffer *b, size_t n) {
    if (n <= b->cap) return true;
    size_t cap = size_max(n, b->cap + b->cap / 2 + 64), bytes;
    if (!size_mul(cap, sizeof(uint32_t), &bytes)) return false;
    void *p = mem_resize(b->h, b->p, b->cap * sizeof(uint32_t), bytes);
    if (!p) return false;
    b->p   = (uint32_t *)p;
    b->cap = cap;
    return true;
}

static void nfc_free(nfc_buffer *b) { mem_free(b->h, b->p, b->cap * sizeof(uint32_t)); }

static uint32_t nfc_tagged(uint32_t cp) {
    const unicode_range *range = unicode_find(unicode_combining, COUNT_OF(unicode_combining), cp);
    return cp | (range ? range->value : 0) << 24;
}

/* The decomposition's row, or NULL. */
static const uint32_t *nfc_row(uint32_t cp) {
    for (size_t lo = 0, hi = COUNT_OF(unicode_pairs); lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        if (unicode_pairs[mid][0] == cp) return unicode_pairs[mid];
        if (unicode_pairs[mid][0] < cp) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* Writes the full decomposition of a code point, at most NFC_STEPS, and returns its length. Only the first part of a
 * pair decomposes further, so the second parts come out in the reverse order of their finding. */
static size_t nfc_decompose(uint32_t cp, uint32_t *out) {
    uint32_t tail[NFC_STEPS];
    size_t   n_tail = 0, n = 0;
    if (cp - HANGUL_S < HANGUL_N_L * HANGUL_N_V * HANGUL_N_T) {
        uint32_t s = cp - HANGUL_S;
        out[0] = HANGUL_L + s / (HANGUL_N_V * HANGUL_N_T);
        out[1] = HANGUL_V + s / HANGUL_N_T % HANGUL_N_V;
        out[2] = HANGUL_T + s % HANGUL_N_T;
        return out[2] == HANGUL_T ? 2 : 3;
    }
    for (const uint32_t *row = nfc_row(cp); row && n_tail < NFC_STEPS - 1; row = nfc_row(cp)) {
        cp = row[1];
        if (row[2]) tail[n_tail++] = nfc_tagged(row[2]);
    }
    out[n++] = nfc_tagged(cp);
    while (n_tail) out[n++] = tail[--n_tail];
    return n;
}

/* What two characters compose to, or 0. */
static uint32_t nfc_compose_pair(uint32_t a, uint32_t b) {
    if (a - HANGUL_L < HANGUL_N_L && b - HANGUL_V < HANGUL_N_V)
        return HANGUL_S + ((a - HANGUL_L) * HANGUL_N_V + (b - HANGUL_V)) * HANGUL_N_T;
    if (a - HANGUL_S < HANGUL_N_L * HANGUL_N_V * HANGUL_N_T && (a - HANGUL_S) % HANGUL_N_T == 0 &&
        b - (HANGUL_T + 1) < HANGUL_N_T - 1)
        return a + (b - HANGUL_T);
    for (size_t lo = 0, hi = COUNT_OF(unicode_composed); lo < hi;) {
        size_t          mid = lo + (hi - lo) / 2;
        const uint32_t *row = unicode_pairs[unicode_composed[mid]];
        if (row[1] == a && row[2] == b) return row[0];
        if (row[1] < a || (row[1] == a && row[2] < b)) lo = mid + 1;
        else hi = mid;
    }
    return 0;
}

/* Sorts marks by combining class, stably. A long run is counted into `spare`, which has room for it. */
static void nfc_sort(uint32_t *p, size_t n, uint32_t *spare) {
    if (n <= NFC_SHORT) {
        for (size_t i = 1; i < n; i++) {
            uint32_t x = p[i];
            size_t   k = i;
            for (; k > 0 && NFC_CCC(p[k - 1]) > NFC_CCC(x); k--) p[k] = p[k - 1];
            p[k] = x;
        }
        return;
    }
    size_t at[257];
    memset(at, 0, sizeof at);
    for (size_t i = 0; i < n; i++) at[NFC_CCC(p[i]) + 1]++;
    for (size_t c = 1; c < 257; c++) at[c] += at[c - 1];
    for (size_t i = 0; i < n; i++) spare[at[NFC_CCC(p[i])]++] = p[i];
    memcpy(p, spare, n * sizeof *p);
}

static void nfc_order(uint32_t *p, size_t n, uint32_t *spare) {
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && NFC_CCC(p[i]) != 0) i++;
        if (i - start > 1) nfc_sort(p + start, i - start, spare);
        if (i < n) i++;
    }
}

/* Composes in place; returns the new length. A character is blocked from its starter by one between them whose class is
 * not lower. */
static size_t nfc_compose(uint32_t *p, size_t n) {
    size_t   out = 0, starter = SIZE_MAX;
    uint32_t last = 0;   /* class of the character before, among those kept behind the starter */
    for (size_t i = 0; i < n; i++) {
        uint32_t ccc   = NFC_CCC(p[i]);
        bool     reach = starter != SIZE_MAX && (out == starter + 1 || (last != 0 && last < ccc));
        uint32_t whole = reach ? nfc_compose_pair(NFC_CP(p[starter]), NFC_CP(p[i])) : 0;
        if (whole) {
            p[starter] = whole;   /* composites are starters */
            continue;
        }
        if (ccc == 0) starter = out;
        last     = ccc;
        p[out++] = p[i];
    }
    return out;
}

/* Appends one stretch in NFC: characters of which only the first may be one that normalisation leaves alone. */
static bool nfc_stretch(str text, nfc_buffer *work, text_buffer *out) {
    work->n = 0;
    for (size_t at = 0, length; at < text.n; at += length) {
        if (!nfc_reserve(work, 2 * (work->n + NFC_STEPS))) return false;   /* the other half is nfc_order's */
        uint32_t cp = utf8_get(text.p + at, text.n - at, &length);
        if (cp == UTF8_INVALID) cp = NFC_BYTE | (unsigned char)text.p[at];
        work->n += nfc_decompose(cp, work->p + work->n);
    }
    nfc_order(work->p, work->n, work->p + work->n);
    work->n = nfc_compose(work->p, work->n);
    if (!text_reserve(out, 4 * work->n)) return false;
    for (size_t i = 0; i < work->n; i++) {
        uint32_t cp = NFC_CP(work->p[i]);
        if (cp >= NFC_BYTE) out->p[out->n++] = (char)(cp & 0xFF);
        else out->n += utf8_put(cp, out->p + out->n);
    }
    return true;
}

static bool nfc_looks(uint32_t cp) { return (unicode_letter(cp) & 0x20) == 0; }

static size_t unicode_nfc_span(str text) {
    size_t calm = 0;   /* where the last character starts that normalisation leaves alone */
    for (size_t at = 0, length; at < text.n; at += length) {
        if ((unsigned char)text.p[at] < 0x80) {
            length = 1;
            calm   = at;
            continue;
        }
        if (nfc_looks(utf8_get(text.p + at, text.n - at, &length))) return calm;
        calm = at;
    }
    return text.n;
}

static bool unicode_nfc(str text, text_buffer *out) {
    nfc_buffer work;
    memset(&work, 0, sizeof work);
    work.h  = out->h;
    bool ok = true;
    for (size_t at = 0; ok && at < text.n;) {
        size_t span = unicode_nfc_span(str_of(text.p + at, text.n - at)), length;
        ok = text_append(out, text.p + at, span);
        at += span;
        size_t end = at;
        while (end < text.n) {   /* the stretch: a calm character, if one is there, and all that follow and are not */
            if (!nfc_looks(utf8_get(text.p + end, text.n - end, &length)) && end > at) break;
            end += length;
        }
        if (ok && end > at) ok = nfc_stretch(str_of(text.p + at, end - at), &work, out);
        at = end;
    }
    nfc_free(&work);
    return ok;
}

/* ==== src/pretokenize.h ======================================================================================= */

/* Cuts text into the words that byte-level BPE encodes one by one, as tokenizer.ggml.pre names it. */
#ifndef NOVA_PRETOKENIZE_H
#define NOVA_PRETOKENIZE_H


/* The end of what a pattern matches at `at`, or `at` where it matches nothing. at < end. */
typedef size_t (*pre_match_fn)(const char *p, size_t at, size_t end);

#define PRE_STAGES 4

typedef struct pre_rule {
    const char  *name;
    pre_match_fn stages[PRE_STAGES];  /* each cuts what the one before it left whole; NULL behind the last */
    bool         nfc;                 /* the text is normalised first */
    bool         whole;               /* a word that is a token is that token, whatever the merges say */
    bool         bos;                 /* the model wants BOS unless the file says otherwise */
} pre_rule;

/* The rule of that name; NULL: unknown. */
static const pre_rule *pre_find(str name);

typedef struct pre_words {
    const pre_rule *rule;
    const char     *p;
    size_t          at;
    size_t          limit[PRE_STAGES + 1];  /* ends of the pieces that `at` lies in: all, the first stage's, ... */
} pre_words;

/* Every byte of the text is in one word, and no word is empty. Time is linear in its length, whatever it holds. */
static void pre_begin(pre_words *w, const pre_rule *rule, str text);
static bool pre_next(pre_words *w, str *word);

#endif

/* ==== src/pretokenize.c ======================================================================================= */

/* The patterns of the pre-tokenizers, matched by hand: see pretokenize.h. Above each stands the regular expression that
 * its tokenizer.json (or tiktoken's source) has; where a file's pattern is known from llama.cpp alone, that.
 * None goes back over more than one run of characters, and no run is passed more than a fixed number of times. */

/* ---- Characters ---- */

/* The class at `at` and where the next character starts; 0 at the end. */
NOVA_INLINE uint32_t pre_class(const char *p, size_t at, size_t end, size_t *next) {
    if (at >= end) return 0;
    size_t   length;
    uint32_t cp = utf8_get(p + at, end - at, &length);
    *next = at + length;
    return unicode_class(cp);
}

/* The end of the run of characters of these classes from `at`. */
static size_t pre_run(const char *p, size_t at, size_t end, uint32_t classes) {
    size_t next = at;
    while (pre_class(p, at, end, &next) & classes) at = next;
    return at;
}

/* The same for ASCII characters out of a list. */
static size_t pre_run_of(const char *p, size_t at, size_t end, const char *list) {
    while (at < end && p[at] && strchr(list, p[at])) at++;
    return at;
}

NOVA_INLINE bool is_newline(char c) { return c == '\r' || c == '\n'; }

/* ---- Parts that patterns share ---- */

/* \s+(?!\S)|\s+     white space; the last character of a run is left to the word that follows. */
static size_t pre_white(const char *p, size_t at, size_t end) {
    size_t last = at, next = at, i = at;
    while (pre_class(p, i, end, &next) & UNICODE_WHITE) {
        last = i;
        i    = next;
    }
    return i == end || last == at ? i : last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+     white space up to the last line end in it. */
static size_t pre_white_lines(const char *p, size_t at, size_t end) {
    size_t last = at, next = at, i = at, line = at;
    while (pre_class(p, i, end, &next) & UNICODE_WHITE) {
        last = i;
        i    = next;
        if (is_newline(p[last])) line = i;
    }
    if (line > at) return line;
    return i == end || last == at ? i : last;
}

/* \p{N}{1,most} */
static size_t pre_digits(const char *p, size_t at, size_t end, size_t most) {
    size_t next = at;
    for (size_t n = 0; n < most && (pre_class(p, at, end, &next) & UNICODE_NUMBER); n++) at = next;
    return at;
}

/* 's|'t|'re|'ve|'m|'ll|'d     and with `fold` in any case, where U+017F (long s) counts as an s. */
static size_t pre_contraction(const char *p, size_t at, size_t end, bool fold) {
    static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (end - at < 2 || p[at] != '\'') return at;
    if (fold && end - at >= 3 && memcmp(p + at + 1, "\xC5\xBF", 2) == 0) return at + 3;
    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        size_t n = strlen(tails[i]), k = 0;
        if (n > end - at - 1) continue;
        while (k < n && (p[at + 1 + k] == tails[i][k] || (fold && p[at + 1 + k] == tails[i][k] - 'a' + 'A'))) k++;
        if (k == n) return at + 1 + n;
    }
    return at;
}

/* ---- Whole patterns ---- */

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t pre_gpt2(const char *p, size_t at, size_t end) {
    size_t to = pre_contraction(p, at, end, false);
    if (to > at) return to;
    size_t   from = at + (p[at] == ' '), next = from;
    uint32_t c = pre_class(p, from, end, &next);
    if (c == 0 || (c & UNICODE_WHITE)) return pre_white(p, at, end);
    if (c & UNICODE_LETTER) return pre_run(p, next, end, UNICODE_LETTER);
    if (c & UNICODE_NUMBER) return pre_run(p, next, end, UNICODE_NUMBER);
    return pre_run(p, next, end, ~(uint32_t)(UNICODE_WHITE | UNICODE_LETTER | UNICODE_NUMBER));
}

/* What llama 3's pattern and its descendants differ in. */
typedef struct pre_style {
    bool        contractions;
    uint32_t    letters;   /* what words are made of */
    size_t      digits;    /* most in one word */
    const char *tail;      /* characters that go with punctuation before them */
} pre_style;

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s\p{N}LETTERS]+[TAIL]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t pre_words_of(const pre_style *style, const char *p, size_t at, size_t end) {
    size_t to = style->contractions ? pre_contraction(p, at, end, true) : at;
    if (to > at) return to;
    size_t   next = at, behind = at;
    uint32_t c = pre_class(p, at, end, &next);
    if (c & style->letters) return pre_run(p, next, end, style->letters);
    if (c & UNICODE_NUMBER) return pre_digits(p, at, end, style->digits);
    uint32_t second = pre_class(p, next, end, &behind);
    if ((second & style->letters) && !is_newline(p[at])) return pre_run(p, behind, end, style->letters);
    uint32_t other = ~(UNICODE_WHITE | UNICODE_NUMBER | style->letters);
    if (p[at] == ' ' && (second & other)) return pre_run_of(p, pre_run(p, behind, end, other), end, style->tail);
    if (c & UNICODE_WHITE) return pre_white_lines(p, at, end);
    return pre_run_of(p, pre_run(p, next, end, other), end, style->tail);
}

static size_t pre_llama3(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, UNICODE_LETTER, 3, "\r\n"};
    return pre_words_of(&style, p, at, end);
}

static size_t pre_qwen2(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, UNICODE_LETTER, 1, "\r\n"};
    return pre_words_of(&style, p, at, end);
}

static size_t pre_qwen35(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, UNICODE_LETTER | UNICODE_MARK, 1, "\r\n"};
    return pre_words_of(&style, p, at, end);
}

/* UPPER*LOWER+ or, unless `first`, UPPER+LOWER*, where UPPER is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and LOWER is
 * [\p{Ll}\p{Lm}\p{Lo}\p{M}]. In the first, a run of UPPER gives back what is behind its last character that is both.
 * The second is tried where the first failed, so that behind its run comes no LOWER. */
static size_t pre_cased(const char *p, size_t at, size_t end, bool first) {
    const uint32_t both = UNICODE_OTHER | UNICODE_MARK;
    size_t   i = at, next = at, shared = at;
    uint32_t c;
    while ((c = pre_class(p, i, end, &next)) & (UNICODE_UPPER | both)) {
        i = next;
        if (c & both) shared = i;
    }
    if (c & UNICODE_LOWER) return pre_run(p, next, end, UNICODE_LOWER | both);
    return first ? shared : i;
}

/* [^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER*     A mark may be the prefix or part of the word. */
static size_t pre_cased_word(const char *p, size_t at, size_t end) {
    size_t   next = at, to;
    uint32_t c      = pre_class(p, at, end, &next);
    bool     prefix = !is_newline(p[at]) && !(c & (UNICODE_LETTER | UNICODE_NUMBER));
    bool     part   = (c & (UNICODE_LETTER | UNICODE_MARK)) != 0;
    for (int first = 1; first >= 0; first--) {
        if (prefix && (to = pre_cased(p, next, end, first != 0)) > next) return to;
        if (part && (to = pre_cased(p, at, end, first != 0)) > at) return to;
    }
    return at;
}

/* WORD(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[TAIL]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where WORD is pre_cased_word's pattern. */
static size_t pre_cased_words(const pre_style *style, const char *p, size_t at, size_t end) {
    size_t to = pre_cased_word(p, at, end);
    if (to > at) return style->contractions && to < end ? pre_contraction(p, to, end, true) : to;
    size_t   from = at + (p[at] == ' '), next = from;
    uint32_t c = pre_class(p, from, end, &next);
    if (from == at && (c & UNICODE_NUMBER)) return pre_digits(p, at, end, style->digits);
    const uint32_t other = ~(uint32_t)(UNICODE_WHITE | UNICODE_LETTER | UNICODE_NUMBER);
    if (c & other) return pre_run_of(p, pre_run(p, next, end, other), end, style->tail);
    return pre_white_lines(p, at, end);
}

static size_t pre_gpt4o(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, 0, 3, "\r\n/"};
    return pre_cased_words(&style, p, at, end);
}

static size_t pre_tekken(const char *p, size_t at, size_t end) {
    static const pre_style style = {false, 0, 1, "\r\n/"};
    return pre_cased_words(&style, p, at, end);
}

static bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+     which leaves controls and the like unmatched */
static size_t pre_deepseek3(const char *p, size_t at, size_t end) {
    const uint32_t letters = UNICODE_LETTER | UNICODE_MARK, signs = UNICODE_PUNCT | UNICODE_SYMBOL;
    size_t   next = at, behind = at, i = at + 1;
    uint32_t c      = pre_class(p, at, end, &next);
    uint32_t second = pre_class(p, next, end, &behind);
    if ((c & signs) && (unsigned char)p[at] < 0x80) {
        while (i < end && is_ascii_letter(p[i])) i++;
        if (i > at + 1) return i;
    }
    if (c & letters) return pre_run(p, next, end, letters);
    if (!(c & signs) && !is_newline(p[at]) && (second & letters)) return pre_run(p, behind, end, letters);
    if (p[at] == ' ' && (second & signs)) return pre_run_of(p, pre_run(p, behind, end, signs), end, "\r\n");
    if (c & signs) return pre_run_of(p, pre_run(p, next, end, signs), end, "\r\n");
    return c & UNICODE_WHITE ? pre_white_lines(p, at, end) : at;
}

/* [\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+ */
static size_t pre_cjk(const char *p, size_t at, size_t end) {
    for (size_t length; at < end; at += length) {
        uint32_t cp = utf8_get(p + at, end - at, &length);
        if (!((cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF))) break;
    }
    return at;
}

/* [\p{P}MORE]+ */
static size_t pre_punctuation(const char *p, size_t at, size_t end, const char *more) {
    for (size_t next = at; at < end; at = next)
        if (!(pre_class(p, at, end, &next) & UNICODE_PUNCT) && !(p[at] && strchr(more, p[at]))) break;
    return at;
}

static size_t pre_signs(const char *p, size_t at, size_t end) { return pre_punctuation(p, at, end, "$+<=>^~|"); }
static size_t pre_falcon(const char *p, size_t at, size_t end) { return pre_punctuation(p, at, end, "$+<=>^~|`"); }

static size_t pre_digit(const char *p, size_t at, size_t end) { return pre_digits(p, at, end, 1); }
static size_t pre_digits_3(const char *p, size_t at, size_t end) { return pre_digits(p, at, end, 3); }
static size_t pre_number(const char *p, size_t at, size_t end) { return pre_run(p, at, end, UNICODE_NUMBER); }

/* [0-9][0-9][0-9] */
static size_t pre_ascii_digits_3(const char *p, size_t at, size_t end) {
    size_t to = pre_run_of(p, at, size_min(at + 3, end), "0123456789");
    return to == at + 3 ? to : at;
}

/* ---- The rules ---- */

/* Which names share a pattern, which of them take whole words and which want BOS is as in llama.cpp's llama-vocab.cpp.
 * Who normalises is not, for there nobody does: see transformers' tokenization_qwen2, _qwen3_5 and _cohere. */
static const pre_rule pre_rules[] = {
#define WORDS_DIGIT    {pre_digit, pre_gpt2, NULL, NULL}
#define WORDS_DEEPSEEK {pre_digits_3, pre_cjk, pre_deepseek3, NULL}
#define WORDS_ONE(fn)  {fn, NULL, NULL, NULL}
    /* name             stages                nfc    whole  bos */
    {"default",         {pre_signs, pre_gpt2, pre_number, pre_ascii_digits_3}, false, false, false},
    {"falcon",          {pre_falcon, pre_gpt2, pre_ascii_digits_3, NULL}, false, false, false},
    {"gpt-2",           WORDS_ONE(pre_gpt2),   false, false, false},
    {"phi-2",           WORDS_ONE(pre_gpt2),   false, false, false},
    {"exaone4",         WORDS_ONE(pre_gpt2),   false, false, false},
    {"smollm",          WORDS_DIGIT,           false, false, false},
    {"starcoder",       WORDS_DIGIT,           false, false, false},
    {"refact",          WORDS_DIGIT,           false, false, false},
    {"codeshell",       WORDS_DIGIT,           false, false, false},
    {"command-r",       WORDS_DIGIT,           true,  false, false},
    {"llama-bpe",       WORDS_ONE(pre_llama3), false, true,  true},
    {"llama3",          WORDS_ONE(pre_llama3), false, true,  true},
    {"llama-v3",        WORDS_ONE(pre_llama3), false, true,  true},
    {"falcon3",         WORDS_ONE(pre_llama3), false, true,  true},
    {"falcon-h1",       WORDS_ONE(pre_llama3), false, true,  true},
    {"pixtral",         WORDS_ONE(pre_llama3), false, true,  true},
    {"lfm2",            WORDS_ONE(pre_llama3), false, true,  true},
    {"smaug-bpe",       WORDS_ONE(pre_llama3), false, false, false},
    {"dbrx",            WORDS_ONE(pre_llama3), false, false, false},
    {"glm4",            WORDS_ONE(pre_llama3), false, false, false},
    {"chatglm-bpe",     WORDS_ONE(pre_llama3), false, false, false},
    {"qwen2",           WORDS_ONE(pre_qwen2),  true,  false, false},
    {"deepseek-r1-qwen", WORDS_ONE(pre_qwen2), true,  false, false},
    {"stablelm2",       WORDS_ONE(pre_qwen2),  false, false, false},
    {"hunyuan",         WORDS_ONE(pre_qwen2),  false, false, false},
    {"qwen35",          WORDS_ONE(pre_qwen35), true,  false, false},
    {"gpt-4o",          WORDS_ONE(pre_gpt4o),  false, false, false},
    {"llama4",          WORDS_ONE(pre_gpt4o),  false, false, false},
    {"minimax-m2",      WORDS_ONE(pre_gpt4o),  false, false, false},
    {"tekken",          WORDS_ONE(pre_tekken), false, true,  true},
    {"deepseek-v3",     WORDS_DEEPSEEK,        false, false, false},
    {"hunyuan-dense",   WORDS_DEEPSEEK,        false, false, false},
#undef WORDS_DIGIT
#undef WORDS_DEEPSEEK
#undef WORDS_ONE
};

static const pre_rule *pre_find(str name) {
    for (size_t i = 0; i < COUNT_OF(pre_rules); i++)
        if (str_is(name, pre_rules[i].name)) return &pre_rules[i];
    return NULL;
}

/* ---- Cutting ---- */

static void pre_begin(pre_words *w, const pre_rule *rule, str text) {
    memset(w, 0, sizeof *w);
    w->rule     = rule;
    w->p        = text.p;
    w->limit[0] = text.n;
}

/* Where the piece ends that starts at `at`: a match, or what lies before the next one. */
static size_t pre_piece(pre_match_fn match, const char *p, size_t at, size_t end) {
    size_t length, to = match(p, at, end);
    if (to > at) return to;
    for (to = at; to < end; to += length) {
        if (to > at && match(p, to, end) > to) break;
        utf8_get(p + to, end - to, &length);
    }
    return to;
}

static bool pre_next(pre_words *w, str *word) {
    size_t from = w->at, end = w->limit[0];
    if (from >= end) return false;
    for (int i = 0; i < PRE_STAGES && w->rule->stages[i]; i++) {
        if (w->limit[i + 1] <= from) w->limit[i + 1] = pre_piece(w->rule->stages[i], w->p, from, end);
        end = w->limit[i + 1];
    }
    *word = str_of(w->p + from, end - from);
    w->at = end;
    return true;
}

/* ==== src/vocab.h ============================================================================================= */

/* A tokenizer's vocabulary: texts to ids and back, merges, special tokens. Texts are never copied from the file: one
 * hash table finds a token by its text, another a merge by its two ids. 16 bytes a token and 14 a merge. */
#ifndef NOVA_VOCAB_H
#define NOVA_VOCAB_H


#define ID_BITS     21             /* a merge packs three ids into 64 bits */
#define VOCAB_MOST  ((1u << ID_BITS) - 1)
#define ENDS_MOST   32
#define NO_RANK     UINT32_MAX
#define TOKEN_MARK        ((char)0xFF)   /* see TOKENIZER_MARKED */
#define SPM_SPACE       "\xE2\x96\x81" /* U+2581, what SentencePiece writes for a space */
#define SPM_SPACE_BYTES 3u

/* The numbers are those of tokenizer.ggml.token_type. */
typedef enum token_type {
    VOCAB_UNDEFINED = 0, VOCAB_NORMAL, VOCAB_UNKNOWN, VOCAB_CONTROL, VOCAB_USER, VOCAB_UNUSED, VOCAB_BYTE,
    TOKEN_TYPE_COUNT
} token_type;

/* Numbers found by a hash, open addressing: in a slot's low `bits` the number plus 1, above it a part of the hash. */
typedef struct number_table {
    uint32_t *slots;
    uint32_t  n, bits;
} number_table;

/* A token that text is searched for before it is cut into words. */
typedef struct special {
    str     text;
    int32_t id;
    bool    control;
} special;

typedef struct vocab {
    const gguf_value *tokens, *types, *scores;   /* arrays of the file; types may be NULL */
    bool              is_spm;                    /* "llama" */
    bool              space_prefix, add_bos, add_eos;
    const pre_rule   *rule;                      /* of "gpt2" */
    uint32_t          n_vocab, n_merges, n_special, n_ends;
    uint32_t         *place;                     /* of each token's string in the file, from the first's */
    number_table      by_text;                   /* ids of all but control, unknown and byte tokens */
    uint32_t         *slot_place;                /* `place` of the id in each of its slots */
    uint64_t         *merges;                    /* by rank: left, right and whole, ID_BITS each */
    number_table      by_pair;                   /* ranks */
    special          *specials;                  /* in the order of their texts */
    bool              starts[256];               /* first bytes that specials have, as they stand in a text */
    bool              begins[128];               /* ASCII characters that control tokens begin with, in either case */
    bool              joins[256];                /* of "llama": bytes that stand before a space inside a token */
    int32_t           byte_id[256];              /* -1: none */
    int32_t           ascii_id[128];             /* of "llama": the tokens of single characters; -1: none */
    int32_t           bos, eos, unk;             /* -1: none */
    int32_t           ends[ENDS_MOST];
    size_t            max_text, max_piece;       /* longest text in by_text; longest piece */
} vocab;

/* Contract of tokenizer_open. */
static nova_result vocab_open(vocab **out, arena *a, const host *h, const gguf *g, nova_error *error);

/* The token that a text spells, among those that text can become; -1: none. */
static int32_t vocab_find(const vocab *v, str text);
/* The rank of a merge of two ids, left << ID_BITS | right, and what it makes; NO_RANK: there is none. */
static uint32_t merge_find(const vocab *v, uint64_t pair, int32_t *whole);
/* The character that names a byte in a "gpt2" vocabulary. */
static uint32_t byte_char(uint32_t byte);

enum { FIND_USER = 1, FIND_CONTROL = 2, FIND_MARKED = 4 };
/* The longest special token of the wanted kinds that starts at `at`: its id, and where it ends; -1: none. With
 * FIND_MARKED, a mark behind its first byte or inside it hides a control token; for others marks are as not there. */
static int32_t special_find(const vocab *v, str text, size_t at, uint32_t want, size_t *end);

static bool   vocab_is_end(const vocab *v, int32_t id);
/* Contract of tokenizer_piece. */
static size_t vocab_piece(const vocab *v, int32_t id, bool first, bool want_special, char *out, size_t capacity);

#endif

/* ==== src/vocab.c ============================================================================================= */

/* A tokenizer's vocabulary: see vocab.h. */

#define PROBES_MOST 1024   /* steps in a hash table, which only a file made for it comes near */
#define MERGE_BATCH 32     /* merges read at once, so that their memory comes in while others are looked at */

static str text_at(const vocab *v, uint32_t place) {
    const uint8_t *p = v->tokens->data + place;
    return str_of((const char *)p + 8, (size_t)load_u64(p));
}

static str token_text(const vocab *v, uint32_t id) { return text_at(v, v->place[id]); }

static token_type token_type_of(const vocab *v, uint32_t id) {
    if (!v->types) return VOCAB_NORMAL;
    if (v->types->item == GGUF_I32)
        return (token_type)load_u32(v->types->data + id * sizeof(uint32_t)); /* as most are */
    return (token_type)gguf_item_int(v->types, id);
}

/* ---- Hash tables ---- */

#if defined(__GNUC__) || defined(__clang__)
#define VOCAB_PREFETCH(p) __builtin_prefetch(p)
#else
#define VOCAB_PREFETCH(p) ((void)(p))
#endif

#define HASH_ODD 0x9e3779b97f4a7c15u   /* 2^64 over the golden ratio */

static uint64_t hash_mix(uint64_t h) {
    h = (h ^ h >> 32) * HASH_ODD;
    return h ^ h >> 29;
}

/* Eight bytes a step: texts are hashed by the hundred thousand when a file opens. */
static uint64_t hash_text(str s) {
    uint64_t h = s.n * HASH_ODD, last = 0;
    for (; s.n > 8; s.p += 8, s.n -= 8) h = hash_mix(h ^ load_u64(s.p)) * HASH_ODD;
    if (s.n >= 4) last = load_u32(s.p) | (uint64_t)load_u32(s.p + s.n - 4) << 32;
    else for (size_t i = 0; i < s.n; i++) last = last << 8 | (unsigned char)s.p[i];
    return hash_mix((h ^ last) * HASH_ODD);
}

static uint64_t hash_pair(uint64_t pair) { return hash_mix(pair * HASH_ODD); }

static bool table_init(number_table *x, arena *a, uint32_t n) {
    x->n    = n + n / 2 + 8;
    x->bits = 1;
    while (n >> x->bits) x->bits++;
    x->slots = (uint32_t *)arena_zalloc(a, (size_t)x->n * sizeof(uint32_t));
    return x->slots != NULL;
}

NOVA_INLINE uint32_t table_home(const number_table *x, uint64_t hash) { return (uint32_t)((hash >> 32) * x->n >> 32); }
NOVA_INLINE uint32_t table_next(const number_table *x, uint32_t i) { return i + 1 == x->n ? 0 : i + 1; }
NOVA_INLINE uint32_t table_number(const number_table *x, uint32_t slot) { return (slot & ((1u << x->bits) - 1)) - 1; }
NOVA_INLINE bool     table_like(const number_table *x, uint32_t slot, uint64_t hash) {
    return (slot ^ (uint32_t)hash) >> x->bits == 0;
}

/* Puts a number into the first free slot and says which; false when that is too far. */
static bool table_put(number_table *x, uint64_t hash, uint32_t number, uint32_t *slot) {
    uint32_t i = table_home(x, hash);
    for (int probes = 0; probes < PROBES_MOST; probes++, i = table_next(x, i)) {
        if (x->slots[i]) continue;
        x->slots[i] = (uint32_t)hash >> x->bits << x->bits | (number + 1);
        *slot = i;
        return true;
    }
    return false;
}

static int32_t vocab_find_hashed(const vocab *v, str text, uint64_t hash) {
    const number_table *x = &v->by_text;
    for (uint32_t i = table_home(x, hash), slot; (slot = x->slots[i]) != 0; i = table_next(x, i)) {
        bool like = table_like(x, slot, hash);
        if (like && str_eq(text_at(v, v->slot_place[i]), text)) return (int32_t)table_number(x, slot);
    }
    return -1;
}

static int32_t vocab_find(const vocab *v, str text) {
    return text.n == 0 || text.n > v->max_text ? -1 : vocab_find_hashed(v, text, hash_text(text));
}

static uint32_t merge_find(const vocab *v, uint64_t pair, int32_t *whole) {
    const number_table *x = &v->by_pair;
    uint64_t hash = hash_pair(pair);
    for (uint32_t i = table_home(x, hash), slot; (slot = x->slots[i]) != 0; i = table_next(x, i)) {
        uint32_t rank = table_number(x, slot);
        if (!table_like(x, slot, hash) || v->merges[rank] >> ID_BITS != pair) continue;
        *whole = (int32_t)(v->merges[rank] & VOCAB_MOST);
        return rank;
    }
    return NO_RANK;
}

/* ---- GPT-2's names of bytes ---- */

/* Printable bytes stand for themselves, the others for U+0100 onwards in their order. */
static uint32_t byte_char(uint32_t b) {
    if (b <= 32) return 256 + b;
    if (b >= 127 && b <= 160) return 256 + 33 + (b - 127);
    return b == 173 ? 256 + 67 : b;
}

/* The byte that a character names, or -1. */
static int char_byte(uint32_t c) {
    if (c < 256) return byte_char(c) == c ? (int)c : -1;
    c -= 256;
    return c <= 32 ? (int)c : c <= 66 ? (int)(c - 33 + 127) : c == 67 ? 173 : -1;
}

/* ---- Opening ---- */

typedef struct vocab_opening {
    vocab      *v;
    arena      *a;
    const host *h;
    const gguf *g;
    nova_error *error;
} vocab_opening;

#define TRY_VOCAB(call)                                \
    do {                                               \
        nova_result try_result = (call);               \
        if (try_result != NOVA_OK) return try_result;  \
    } while (0)

/* `at`: the place in the file, or NULL. */
static nova_result open_fail(const vocab_opening *o, nova_result code, const void *at, const char *format, ...)
    NOVA_PRINTF(4, 5);
static nova_result open_fail(const vocab_opening *o, nova_result code, const void *at, const char *format, ...) {
    char    what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return fail_at(o->error, code, at ? (uint64_t)((const uint8_t *)at - o->g->data) : NOVA_NOWHERE, "%s", what);
}

static nova_result open_kind(vocab_opening *o) {
    str model = {NULL, 0}, pre = str_c("default");
    TRY_VOCAB(gguf_get_str(o->g, "tokenizer.ggml.model", &model, o->error));
    if (!model.p) return open_fail(o, NOVA_ERROR_FORMAT, NULL, "the file has no key \"tokenizer.ggml.model\"");
    o->v->is_spm = str_is(model, "llama");
    if (o->v->is_spm) return NOVA_OK;
    if (!str_is(model, "gpt2"))
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, model.p, "tokenizer \"%.*s\" is not supported", STR_ARG(model));
    TRY_VOCAB(gguf_get_str(o->g, "tokenizer.ggml.pre", &pre, o->error));
    o->v->rule = pre_find(pre);
    if (!o->v->rule)
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, pre.p, "pre-tokenizer \"%.*s\" is not supported", STR_ARG(pre));
    return NOVA_OK;
}

/* An array with an item a token, NULL where the file has none. */
static nova_result open_array(vocab_opening *o, const char *key, bool real, const gguf_value **out) {
    const gguf_value *array = gguf_find(o->g, str_c(key));
    *out = array;
    if (!array) return NOVA_OK;
    gguf_type item = array->type == GGUF_ARRAY ? array->item : GGUF_STRING;
    bool      none = item == GGUF_STRING || item == GGUF_ARRAY || item == GGUF_BOOL;
    if (none || (!real && (item == GGUF_F32 || item == GGUF_F64)))
        return open_fail(o, NOVA_ERROR_FORMAT, array->data, "key \"%s\" is no array of %s", key,
                         real ? "numbers" : "integers");
    if (array->n != o->v->n_vocab)
        return open_fail(o, NOVA_ERROR_FORMAT, array->data, "key \"%s\" has %llu items for %u tokens", key,
                         (unsigned long long)array->n, o->v->n_vocab);
    return NOVA_OK;
}

/* The array of strings that a key must hold. */
static nova_result open_texts(vocab_opening *o, const char *key, const gguf_value **out) {
    *out = gguf_find(o->g, str_c(key));
    if (!*out) return open_fail(o, NOVA_ERROR_FORMAT, NULL, "the file has no key \"%s\"", key);
    if (gguf_array_is(*out, GGUF_STRING)) return NOVA_OK;
    return open_fail(o, NOVA_ERROR_FORMAT, (*out)->data, "key \"%s\" is no array of strings", key);
}

/* By its bits: a host may have been compiled for numbers that are all finite. */
/* Types and scores, which from here on can be trusted; counts the special tokens. */
static nova_result open_numbers(vocab_opening *o) {
    vocab *v = o->v;
    TRY_VOCAB(open_array(o, "tokenizer.ggml.token_type", false, &v->types));
    TRY_VOCAB(open_array(o, "tokenizer.ggml.scores", true, &v->scores));
    if (v->is_spm && !v->scores)
        return open_fail(o, NOVA_ERROR_FORMAT, NULL, "the file has no key \"tokenizer.ggml.scores\"");
    for (uint32_t i = 0; i < v->n_vocab; i++) {
        int64_t type = v->types ? gguf_item_int(v->types, i) : (int64_t)VOCAB_NORMAL;
        if (type < 0 || type >= TOKEN_TYPE_COUNT)
            return open_fail(o, NOVA_ERROR_FORMAT, v->types->data, "token %u has type %lld", i, (long long)type);
        if (v->is_spm && !f32_is_finite(gguf_item_f32(v->scores, i)))
            return open_fail(o, NOVA_ERROR_FORMAT, v->scores->data, "the score of token %u is no finite number", i);
        v->n_special += type == VOCAB_CONTROL || type == VOCAB_UNKNOWN || type == VOCAB_USER;
    }
    return NOVA_OK;
}

static nova_result open_arrays(vocab_opening *o) {
    vocab *v = o->v;
    TRY_VOCAB(open_texts(o, "tokenizer.ggml.tokens", &v->tokens));
    const gguf_value *tokens = v->tokens;
    if (tokens->n == 0) return open_fail(o, NOVA_ERROR_FORMAT, tokens->data, "key \"tokenizer.ggml.tokens\" is empty");
    if (tokens->n > VOCAB_MOST || (uint64_t)(tokens->end - tokens->data) > UINT32_MAX)
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, tokens->data, "a vocabulary of %llu tokens is too large",
                         (unsigned long long)tokens->n);
    v->n_vocab = (uint32_t)tokens->n;
    return open_numbers(o);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0x0A>" names, or -1. */
static int byte_named(str s) {
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return -1;
    int high = hex_digit(s.p[3]), low = hex_digit(s.p[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Notes what stands before a space that has something else before it. */
static void note_joins(vocab *v, str s) {
    size_t at = 0;
    while (s.n - at >= SPM_SPACE_BYTES && memcmp(s.p + at, SPM_SPACE, SPM_SPACE_BYTES) == 0) at += SPM_SPACE_BYTES;
    for (const char *end = s.p + s.n, *p = s.p + at; (size_t)(end - p) >= SPM_SPACE_BYTES; p++) {
        p = (const char *)memchr(p, SPM_SPACE[0], (size_t)(end - p) - (SPM_SPACE_BYTES - 1));
        if (!p) return;
        if (p > s.p && memcmp(p, SPM_SPACE, SPM_SPACE_BYTES) == 0) v->joins[(unsigned char)p[-1]] = true;
    }
}

/* As the text of a special token stands in a text that special_find reads: with SentencePiece's spaces. */
static nova_result open_special(vocab_opening *o, uint32_t id, str text, token_type type) {
    vocab *v = o->v;
    size_t     spaces = 0;
    for (size_t i = 0; v->is_spm && i < text.n; i++) spaces += text.p[i] == ' ';
    if (spaces) {
        size_t size = text.n + spaces * (SPM_SPACE_BYTES - 1), n = 0;
        char  *p    = (char *)arena_alloc(o->a, size);
        if (!p) return fail_memory(o->error, size, "a special token");
        for (size_t i = 0; i < text.n; i++) {
            size_t part = text.p[i] == ' ' ? SPM_SPACE_BYTES : 1;
            memcpy(p + n, part == 1 ? text.p + i : SPM_SPACE, part);
            n += part;
        }
        text = str_of(p, size);
    }
    special *s = &v->specials[v->n_special++];
    s->text    = text;
    s->id      = (int32_t)id;
    s->control = type != VOCAB_USER;
    return NOVA_OK;
}

/* What text can become this token. Of equal texts the first stands. */
static nova_result open_plain(vocab_opening *o, uint32_t id, str text) {
    vocab *v    = o->v;
    uint64_t   hash = hash_text(text);
    uint32_t   slot = 0;
    v->max_text = size_max(v->max_text, text.n);
    if (v->is_spm) note_joins(v, text);
    if (vocab_find_hashed(v, text, hash) >= 0) return NOVA_OK;
    if (!table_put(&v->by_text, hash, id, &slot))
        return open_fail(o, NOVA_ERROR_FORMAT, text.p, "token %u: the texts of too many tokens hash alike", id);
    v->slot_place[slot] = v->place[id];
    return NOVA_OK;
}

static nova_result open_token(vocab_opening *o, uint32_t id, str text) {
    vocab     *v    = o->v;
    token_type type = token_type_of(v, id);
    int        byte = byte_named(text);
    bool       hidden = type == VOCAB_CONTROL || type == VOCAB_UNKNOWN;
    v->place[id] = (uint32_t)((const uint8_t *)text.p - 8 - v->tokens->data);
    if (type == VOCAB_BYTE && byte < 0)
        return open_fail(o, NOVA_ERROR_FORMAT, text.p, "token %u is a byte but reads \"%.*s\"", id, STR_ARG(text));
    if (text.n > v->max_piece) v->max_piece = size_max(v->max_piece, vocab_piece(v, (int32_t)id, false, true, NULL, 0));
    if (type == VOCAB_BYTE || (!v->types && v->is_spm && byte >= 0)) {
        if (v->is_spm && v->byte_id[byte] < 0) v->byte_id[byte] = (int32_t)id;
        return NOVA_OK;
    }
    if (text.n == 0) return NOVA_OK;
    if (hidden || type == VOCAB_USER) TRY_VOCAB(open_special(o, id, text, type));
    return hidden ? NOVA_OK : open_plain(o, id, text);
}

/* ---- Special tokens ---- */

static bool special_less(const special *a, const special *b) {
    int order = memcmp(a->text.p, b->text.p, size_min(a->text.n, b->text.n));
    return order ? order < 0 : a->text.n != b->text.n ? a->text.n < b->text.n : a->id < b->id;
}

static void special_sift(special *s, size_t i, size_t n) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && special_less(&s[child], &s[child + 1])) child++;
        if (!special_less(&s[i], &s[child])) return;
        special top = s[i];
        s[i]     = s[child];
        s[child] = top;
    }
}

static void special_sort(special *s, size_t n) {
    for (size_t i = n / 2; i-- > 0;) special_sift(s, i, n);
    for (size_t i = n; i-- > 1;) {
        special top = s[0];
        s[0] = s[i];
        s[i] = top;
        special_sift(s, 0, i);
    }
}

/* Of the specials lo ... hi - 1, which agree in `depth` bytes and have more: those whose next byte is `c`. */
static void special_narrow(const special *s, size_t depth, unsigned char c, uint32_t *lo, uint32_t *hi) {
    uint32_t a = *lo, b = *hi;
    while (a < b) {
        uint32_t mid = a + (b - a) / 2;
        if ((unsigned char)s[mid].text.p[depth] < c) a = mid + 1;
        else b = mid;
    }
    *lo = a;
    for (b = *hi; a < b;) {
        uint32_t mid = a + (b - a) / 2;
        if ((unsigned char)s[mid].text.p[depth] <= c) a = mid + 1;
        else b = mid;
    }
    *hi = a;
}

static int32_t special_find(const vocab *v, str text, size_t at, uint32_t want, size_t *end) {
    uint32_t lo = 0, hi = v->n_special, part = 0;   /* part: bytes of a space's three that were read */
    int32_t  found = -1;
    bool     marked = false;                        /* behind the first byte */
    for (size_t i = at, depth = 0; i < text.n && lo < hi; depth++) {
        if ((want & FIND_MARKED) && text.p[i] == TOKEN_MARK) {
            marked = true;
            for (i++; i < text.n && text.p[i] == TOKEN_MARK; i++) {}
            if (i == text.n) break;
        }
        char c = text.p[i];
        if (c == ' ' && v->is_spm) {
            c    = SPM_SPACE[part];
            part = (part + 1) % SPM_SPACE_BYTES;
        }
        i += part == 0;
        special_narrow(v->specials, depth, (unsigned char)c, &lo, &hi);
        for (; lo < hi && v->specials[lo].text.n == depth + 1; lo++) {
            const special *s = &v->specials[lo];
            bool hidden = marked || (depth == 0 && (want & FIND_MARKED) && i < text.n && text.p[i] == TOKEN_MARK);
            if (part || !(want & (s->control ? FIND_CONTROL : FIND_USER)) || (s->control && hidden)) continue;
            if (found >= 0 && *end == i) continue;   /* of equal texts the first */
            found = s->id;
            *end  = i;
        }
    }
    return found;
}

/* Is there a special token of just this text? */
static bool special_is(const vocab *v, str text) {
    uint32_t lo = 0, hi = v->n_special;
    for (size_t depth = 0; depth < text.n && lo < hi; depth++) {
        special_narrow(v->specials, depth, (unsigned char)text.p[depth], &lo, &hi);
        if (depth + 1 == text.n) return lo < hi && v->specials[lo].text.n == text.n;
        while (lo < hi && v->specials[lo].text.n == depth + 1) lo++;
    }
    return false;
}

/* Single characters, which words are first taken apart into. */
static void open_characters(vocab *v) {
    char name[4];
    for (uint32_t b = 0; b < 256 && !v->is_spm; b++)
        v->byte_id[b] = vocab_find(v, str_of(name, utf8_put(byte_char(b), name)));
    for (uint32_t c = 0; c < 128 && v->is_spm; c++) v->ascii_id[c] = vocab_find(v, str_of(name, utf8_put(c, name)));
}

static nova_result open_vocab(vocab_opening *o) {
    vocab *v = o->v;
    size_t     special_bytes = v->n_special * sizeof(special), place_bytes = v->n_vocab * sizeof(uint32_t);
    v->place    = (uint32_t *)arena_alloc(o->a, place_bytes);
    v->specials = (special *)arena_alloc(o->a, special_bytes);
    if (table_init(&v->by_text, o->a, v->n_vocab))
        v->slot_place = (uint32_t *)arena_alloc(o->a, v->by_text.n * sizeof(uint32_t));
    if (!v->place || !v->specials || !v->slot_place)
        return fail_memory(o->error, place_bytes * 4 + special_bytes, "the vocabulary");
    memset(v->byte_id, 0xFF, sizeof v->byte_id);
    v->n_special = 0;
    gguf_strings strings = gguf_strings_of(v->tokens);
    str          text;
    for (uint32_t id = 0; gguf_strings_next(&strings, &text); id++) TRY_VOCAB(open_token(o, id, text));
    special_sort(v->specials, v->n_special);
    for (uint32_t i = 0; i < v->n_special; i++) {
        unsigned char c = (unsigned char)v->specials[i].text.p[0], lower = c | 0x20;
        v->starts[c] = true;
        if (!v->specials[i].control || c >= sizeof v->begins) continue;
        v->begins[c] = true;
        if (lower >= 'a' && lower <= 'z') v->begins[lower] = v->begins[lower ^ 0x20] = true;
    }
    if (v->is_spm) v->starts[(unsigned char)' '] = v->starts[(unsigned char)SPM_SPACE[0]];
    open_characters(v);
    return NOVA_OK;
}

/* ---- Merges ---- */

/* A merge as it is read: "left right". */
typedef struct merge_text {
    str      text, left, right;
    uint64_t left_hash, right_hash;
    uint64_t pair;     /* NO_PAIR: it is left out */
    int32_t  whole;
} merge_text;

#define NO_PAIR UINT64_MAX

typedef struct merge_reader {
    int32_t whole;     /* what the last merge makes */
    char   *scratch;   /* max_text bytes */
} merge_reader;

/* The token that the parts spell together; -1: none. Lists of merges go by what they make, so the last one's token and
 * the next are tried first. */
static int32_t merge_whole(const vocab *v, const merge_text *m, const merge_reader *r) {
    str    left = m->left, right = m->right;
    size_t n    = left.n + right.n;
    if (n > v->max_text) return -1;
    for (int32_t id = r->whole; id >= 0 && id < r->whole + 2 && (uint32_t)id < v->n_vocab; id++) {
        str s = token_text(v, (uint32_t)id);
        if (s.n == n && memcmp(s.p, left.p, left.n) == 0 && memcmp(s.p + left.n, right.p, right.n) == 0 &&
            token_type_of(v, (uint32_t)id) == VOCAB_NORMAL)
            return id;
    }
    memcpy(r->scratch, left.p, left.n);
    memcpy(r->scratch + left.n, right.p, right.n);
    return vocab_find(v, str_of(r->scratch, n));
}

/* The four steps of reading a merge. Each asks for the memory that the next one needs. */

static nova_result merge_cut(vocab_opening *o, uint32_t rank, str text, merge_text *m) {
    const number_table *x     = &o->v->by_text;
    const char         *space = text.n > 1 ? (const char *)memchr(text.p + 1, ' ', text.n - 1) : NULL;
    if (!space || space + 1 == text.p + text.n)
        return open_fail(o, NOVA_ERROR_FORMAT, text.p, "merge %u is \"%.*s\", not two tokens", rank, STR_ARG(text));
    m->text       = text;
    m->left       = str_of(text.p, (size_t)(space - text.p));
    m->right      = str_of(space + 1, text.n - m->left.n - 1);
    m->left_hash  = hash_text(m->left);
    m->right_hash = hash_text(m->right);
    VOCAB_PREFETCH(&x->slots[table_home(x, m->left_hash)]);
    VOCAB_PREFETCH(&x->slots[table_home(x, m->right_hash)]);
    VOCAB_PREFETCH(&o->v->slot_place[table_home(x, m->left_hash)]);
    VOCAB_PREFETCH(&o->v->slot_place[table_home(x, m->right_hash)]);
    return NOVA_OK;
}

static void merge_fetch(const vocab *v, const merge_text *m) {
    uint32_t left = table_home(&v->by_text, m->left_hash), right = table_home(&v->by_text, m->right_hash);
    if (v->by_text.slots[left]) VOCAB_PREFETCH(v->tokens->data + v->slot_place[left]);
    if (v->by_text.slots[right]) VOCAB_PREFETCH(v->tokens->data + v->slot_place[right]);
}

/* A merge with a control token in it, or that makes one, is left out: text must not become one. */
static nova_result merge_resolve(vocab_opening *o, uint32_t rank, merge_text *m, merge_reader *r) {
    const vocab *v     = o->v;
    int32_t      left  = vocab_find_hashed(v, m->left, m->left_hash);
    int32_t      right = vocab_find_hashed(v, m->right, m->right_hash);
    m->whole = merge_whole(v, m, r);
    if (left >= 0 && right >= 0 && m->whole >= 0) {
        r->whole = m->whole;
        m->pair  = (uint64_t)left << ID_BITS | (uint64_t)right;
        VOCAB_PREFETCH(&v->by_pair.slots[table_home(&v->by_pair, hash_pair(m->pair))]);
        return NOVA_OK;
    }
    size_t n = m->left.n + m->right.n;
    m->pair = NO_PAIR;
    if ((left >= 0 || special_is(v, m->left)) && (right >= 0 || special_is(v, m->right)) &&
        (m->whole >= 0 || (n <= v->max_text && special_is(v, str_of(r->scratch, n)))))
        return NOVA_OK;
    return open_fail(o, NOVA_ERROR_FORMAT, m->text.p, "merge %u, \"%.*s\", is of or makes an unknown token", rank,
                     STR_ARG(m->text));
}

/* Of twins the first will be found: it comes earlier on the way from the same slot. */
static nova_result merge_put(vocab_opening *o, uint32_t rank, const merge_text *m) {
    vocab   *v = o->v;
    uint32_t slot;
    v->merges[rank] = UINT64_MAX;
    if (m->pair == NO_PAIR) return NOVA_OK;
    v->merges[rank] = m->pair << ID_BITS | (uint64_t)m->whole;
    if (table_put(&v->by_pair, hash_pair(m->pair), rank, &slot)) return NOVA_OK;
    return open_fail(o, NOVA_ERROR_FORMAT, m->text.p, "merge %u: too many merges hash alike", rank);
}

static nova_result merges_read(vocab_opening *o, const gguf_value *array, merge_reader *r) {
    merge_text   batch[MERGE_BATCH];
    gguf_strings strings = gguf_strings_of(array);
    str          text;
    for (uint32_t rank = 0, n; rank < o->v->n_merges; rank += n) {
        for (n = 0; n < MERGE_BATCH && gguf_strings_next(&strings, &text); n++)
            TRY_VOCAB(merge_cut(o, rank + n, text, &batch[n]));
        for (uint32_t i = 0; i < n; i++) merge_fetch(o->v, &batch[i]);
        for (uint32_t i = 0; i < n; i++) TRY_VOCAB(merge_resolve(o, rank + i, &batch[i], r));
        for (uint32_t i = 0; i < n; i++) TRY_VOCAB(merge_put(o, rank + i, &batch[i]));
    }
    return NOVA_OK;
}

static nova_result open_merges(vocab_opening *o) {
    vocab            *v = o->v;
    const gguf_value *array;
    TRY_VOCAB(open_texts(o, "tokenizer.ggml.merges", &array));
    if (array->n > UINT32_MAX / 16)
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, array->data, "%llu merges are too many",
                         (unsigned long long)array->n);
    v->n_merges = (uint32_t)array->n;
    v->merges   = (uint64_t *)arena_alloc(o->a, v->n_merges * sizeof(uint64_t));
    if (!v->merges || !table_init(&v->by_pair, o->a, v->n_merges))
        return fail_memory(o->error, v->n_merges * (size_t)14, "the merges");
    merge_reader r;
    size_t       size = v->max_text + 1;
    r.whole   = -1;
    r.scratch = (char *)mem_alloc(o->h, size);
    if (!r.scratch) return fail_memory(o->error, size, "reading the merges");
    nova_result result = merges_read(o, array, &r);
    mem_free(o->h, r.scratch, size);
    return result;
}

/* ---- Tokens with a job ---- */

static nova_result open_id(vocab_opening *o, const char *key, int32_t *id) {
    const gguf_value *value  = gguf_find(o->g, str_c(key));
    uint32_t          number = 0;
    if (!value) return NOVA_OK;
    TRY_VOCAB(gguf_get_u32(o->g, key, &number, o->error));
    if (number >= o->v->n_vocab)
        return open_fail(o, NOVA_ERROR_FORMAT, value->data, "key \"%s\": %u is none of %u tokens", key, number,
                         o->v->n_vocab);
    *id = (int32_t)number;
    return NOVA_OK;
}

static bool vocab_is_end(const vocab *v, int32_t id) {
    for (uint32_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == id) return true;
    return false;
}

static void add_end(vocab *v, int32_t id) {
    if (id >= 0 && v->n_ends < ENDS_MOST && !vocab_is_end(v, id)) v->ends[v->n_ends++] = id;
}

/* Special tokens that end a text by what they are called, for files name only one of several. */
static void open_ends(vocab *v) {
    static const char *const names[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>",
        "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "<|end_of_text|>", "<end_of_utterance>", "<turn|>",
        "[e~[", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
        "<\xEF\xBD\x9C" "end" SPM_SPACE "of" SPM_SPACE "sentence\xEF\xBD\x9C>",
    };
    /* Where there are others for the end of a turn, "<|end|>" ends no more than a message (gpt-oss). */
    bool turns = special_is(v, str_c("<|return|>")) || special_is(v, str_c("<|flush|>"));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        size_t  end = 0;
        str     name = str_c(names[i]);
        int32_t id = special_find(v, name, 0, FIND_USER | FIND_CONTROL, &end);
        if (id >= 0 && end == name.n && !(turns && str_is(name, "<|end|>"))) add_end(v, id);
    }
}

static nova_result open_jobs(vocab_opening *o) {
    vocab *v   = o->v;
    int32_t    eot = -1, eom = -1;
    v->add_bos = v->is_spm || v->rule->bos;
    v->space_prefix = v->is_spm;
    v->unk = v->bos = v->eos = -1;
    if (v->is_spm && v->n_vocab > 2) {   /* SentencePiece's own */
        v->bos = 1;
        v->eos = 2;
    }
    TRY_VOCAB(open_id(o, "tokenizer.ggml.bos_token_id", &v->bos));
    TRY_VOCAB(open_id(o, "tokenizer.ggml.eos_token_id", &v->eos));
    TRY_VOCAB(open_id(o, "tokenizer.ggml.eot_token_id", &eot));
    TRY_VOCAB(open_id(o, "tokenizer.ggml.eom_token_id", &eom));
    if (v->is_spm) {
        v->unk = 0;
        TRY_VOCAB(open_id(o, "tokenizer.ggml.unknown_token_id", &v->unk));
        TRY_VOCAB(gguf_get_bool(o->g, "tokenizer.ggml.add_space_prefix", &v->space_prefix, o->error));
    }
    TRY_VOCAB(gguf_get_bool(o->g, "tokenizer.ggml.add_bos_token", &v->add_bos, o->error));
    TRY_VOCAB(gguf_get_bool(o->g, "tokenizer.ggml.add_eos_token", &v->add_eos, o->error));
    add_end(v, v->eos);
    add_end(v, eot);
    add_end(v, eom);
    open_ends(v);
    return NOVA_OK;
}

static nova_result vocab_open(vocab **out, arena *a, const host *h, const gguf *g, nova_error *error) {
    vocab_opening o;
    o.v     = (vocab *)arena_zalloc(a, sizeof(vocab));
    o.a     = a;
    o.h     = h;
    o.g     = g;
    o.error = error;
    if (!o.v) return fail_memory(error, sizeof(vocab), "the tokenizer");
    TRY_VOCAB(open_kind(&o));
    TRY_VOCAB(open_arrays(&o));
    TRY_VOCAB(open_vocab(&o));
    if (!o.v->is_spm) TRY_VOCAB(open_merges(&o));
    TRY_VOCAB(open_jobs(&o));
    *out = o.v;
    return NOVA_OK;
}

/* ---- Decoding ---- */

typedef struct piece_writer { char *out; size_t n, capacity; } piece_writer;

static void piece_put(piece_writer *o, char c) {
    if (o->n < o->capacity) o->out[o->n] = c;
    o->n++;
}

static void piece_all(piece_writer *o, str text) {
    for (size_t i = 0; i < text.n; i++) piece_put(o, text.p[i]);
}

static void piece_spm(piece_writer *o, str text, bool first) {
    for (size_t at = 0, length; at < text.n; at += length) {
        bool space = text.n - at >= SPM_SPACE_BYTES && memcmp(text.p + at, SPM_SPACE, SPM_SPACE_BYTES) == 0;
        length = space ? SPM_SPACE_BYTES : 1;
        if (!(space && first && at == 0)) piece_put(o, space ? ' ' : text.p[at]);
    }
}

/* A token with a character that names no byte is no word of bytes: it stands for itself. */
static void piece_bpe(piece_writer *o, str text) {
    for (size_t at = 0, length; at < text.n; at += length) {
        int byte = char_byte(utf8_get(text.p + at, text.n - at, &length));
        if (byte < 0) {
            o->n = 0;
            piece_all(o, text);
            return;
        }
        piece_put(o, (char)byte);
    }
}

static size_t vocab_piece(const vocab *v, int32_t id, bool first, bool want_special, char *out, size_t capacity) {
    if (id < 0 || (uint32_t)id >= v->n_vocab) return 0;
    str          text = token_text(v, (uint32_t)id);
    token_type   type = token_type_of(v, (uint32_t)id);
    int          byte = type == VOCAB_BYTE || (!v->types && v->is_spm) ? byte_named(text) : -1;
    piece_writer o;
    o.out      = out;
    o.n        = 0;
    o.capacity = capacity;
    if (byte >= 0) piece_put(&o, (char)byte);
    else if (type == VOCAB_CONTROL || type == VOCAB_UNKNOWN) piece_all(&o, want_special ? text : str_of(NULL, 0));
    else if (v->is_spm) piece_spm(&o, text, first && v->space_prefix);
    else if (type == VOCAB_USER) piece_all(&o, text);
    else piece_bpe(&o, text);
    return o.n;
}


/* ==== src/tokenizer.h ========================================================================================= */

/* Text to token ids and back: SentencePiece-style BPE with scores ("llama"), byte-level BPE ("gpt2"). */
#ifndef NOVA_TOKENIZER_H
#define NOVA_TOKENIZER_H


typedef vocab tokenizer;

/* Builds from the tokenizer.ggml.* keys. Everything goes into the arena; token texts stay in the file. `h` gives memory
 * that is returned before the end.
 * Hostile input: lengths of arrays that disagree, ids out of range, merges of unknown tokens, malformed byte tokens
 * ("<0x-1>"), huge or empty tokens. Errors: FORMAT, UNSUPPORTED (model or pre-tokenizer: named), MEMORY. */
static nova_result tokenizer_open(tokenizer **out, arena *a, const host *h, const gguf *g, nova_error *error);

static uint32_t tokenizer_n_vocab(const tokenizer *t);

/* A flag beside nova.h's: bytes 0xFF in the text (which no UTF-8 has) are marks that tokenizer_mark left. They keep a
 * control token from being seen there and are dropped before encoding. */
#define TOKENIZER_MARKED 0x100u

/* Contract of nova_tokenize. Tokens of the type user-defined are always seen, control tokens with NOVA_PARSE_SPECIAL
 * alone: the leftmost first, of those the longest. Bytes that are not UTF-8 are kept where the vocabulary has bytes. */
static nova_result tokenizer_encode(const tokenizer *t, const host *h, str text, uint32_t flags,
                                    int32_t *ids, size_t capacity, size_t *n_ids, nova_error *error);

/* Appends `text` to `out` with a mark (0xFF) behind the first byte of everything that would be parsed as a control
 * token, and behind every ASCII character that a control token begins with, in either case: no control token forms
 * either where the text's parts are cut, put together, or changed in case, as long as each mark goes with its character.
 * Bytes 0xFF of the text itself become U+FFFD. False when memory ends. */
static bool tokenizer_mark(const tokenizer *t, str text, text_buffer *out);
static bool tokenizer_begins_control(const tokenizer *t, char c);   /* such an ASCII character */

/* Writes the bytes of one token, at most `capacity` of them, and returns how many it has. Control tokens have none
 * unless `want_special`. The first token of a text that has bytes is the `first`: in a "llama" vocabulary it loses its
 * leading space (and may then have none). */
static size_t tokenizer_piece(const tokenizer *t, int32_t id, bool first, bool want_special, char *out,
                              size_t capacity);
static size_t tokenizer_max_piece(const tokenizer *t);   /* bytes of the longest piece */
static bool   tokenizer_is_end(const tokenizer *t, int32_t id);
static bool   tokenizer_adds_bos(const tokenizer *t);
static int32_t tokenizer_bos(const tokenizer *t);   /* -1: none */
static int32_t tokenizer_eos(const tokenizer *t);

/* Bytes at the end of (p, n) that start a UTF-8 character whose rest is still to come: 0 to 3. */
static size_t utf8_incomplete_tail(const char *p, size_t n);

#endif

/* ==== src/tokenizer.c ========================================================================================= */

/* Text to token ids and back: see tokenizer.h.
 *
 * Both kinds merge neighbouring symbols of a word, the best pair first, of equals the leftmost. They differ in where
 * words end, in what the symbols are at first, and in what a pair is worth:
 *   llama  characters; a pair is worth the score of the token that it spells (SentencePiece's bpe_model)
 *   gpt2   bytes; a pair is worth its place in the list of merges (GPT-2's encoder.py) */

static nova_result tokenizer_open(tokenizer **out, arena *a, const host *h, const gguf *g, nova_error *error) {
    return vocab_open(out, a, h, g, error);
}

static uint32_t tokenizer_n_vocab(const tokenizer *t) { return t->n_vocab; }
static size_t   tokenizer_max_piece(const tokenizer *t) { return t->max_piece; }
static bool     tokenizer_adds_bos(const tokenizer *t) { return t->add_bos && t->bos >= 0; }
static int32_t  tokenizer_bos(const tokenizer *t) { return t->bos; }
static int32_t  tokenizer_eos(const tokenizer *t) { return t->eos; }
static bool     tokenizer_is_end(const tokenizer *t, int32_t id) { return vocab_is_end(t, id); }

static size_t tokenizer_piece(const tokenizer *t, int32_t id, bool first, bool want_special, char *out,
                              size_t capacity) {
    return vocab_piece(t, id, first, want_special, out, capacity);
}

/* ---- Merging a word's symbols ---- */

typedef struct encoder {
    const vocab *v;
    const host  *h;
    int32_t     *ids;
    size_t       capacity, n;
    bool         unknown;    /* the last id says that text is unknown */
    text_buffer  plain;      /* the text with a space in front */
    text_buffer  section;    /* the text between two special tokens, where it cannot be read as it lies */
    text_buffer  composed;   /* the same in NFC */
    char        *name;       /* max_text bytes for a word in GPT-2's characters, where words are looked up */
} encoder;

static void emit_id(encoder *e, int32_t id) {
    if (e->n < e->capacity) e->ids[e->n] = id;
    e->n++;
    e->unknown = false;
}

/* Text that no token spells: its bytes where all have one; else the unknown token, once in a row. */
static void emit_unknown(encoder *e, const char *p, size_t n) {
    const vocab *v = e->v;
    bool bytes = true;
    for (size_t i = 0; i < n; i++) bytes = bytes && v->byte_id[(unsigned char)p[i]] >= 0;
    if (bytes) {
        for (size_t i = 0; i < n; i++) emit_id(e, v->byte_id[(unsigned char)p[i]]);
    } else if (v->unk >= 0 && !e->unknown) {
        emit_id(e, v->unk);
        e->unknown = true;
    }
}

/* A piece of the word. What merging it with the next one is worth stands in `rank`, the less the better. */
typedef struct symbol {
    uint32_t from;    /* in the word; the end is where the next one starts */
    int32_t  id;      /* -1: no token */
    uint32_t rank;    /* NO_RANK: they do not merge */
    int32_t  whole;   /* what they would make */
} symbol;

/* A score as a rank: floats in their order, turned around. */
static uint32_t score_rank(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    if (bits == 0x80000000u) bits = 0;   /* -0 */
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

/* Values the pair of `s` and `next`, which ends at `end`. */
static void symbol_rank(const vocab *v, const char *word, symbol *s, const symbol *next, uint32_t end) {
    if (!v->is_spm) {
        s->rank = merge_find(v, (uint64_t)(uint32_t)s->id << ID_BITS | (uint32_t)next->id, &s->whole);
    } else {
        s->whole = vocab_find(v, str_of(word + s->from, end - s->from));
        s->rank  = s->whole < 0 ? NO_RANK : score_rank(gguf_item_f32(v->scores, (uint64_t)s->whole));
    }
}

static int32_t symbol_id(const vocab *v, const char *p, size_t n) {
    unsigned char c = (unsigned char)p[0];
    return !v->is_spm ? v->byte_id[c] : c < 128 ? v->ascii_id[c] : vocab_find(v, str_of(p, n));
}

/* The symbols that a word starts as, at most one a byte. Bytes that a "gpt2" vocabulary lacks are left out, as its
 * original does. */
static size_t symbols_of(const vocab *v, str word, symbol *s) {
    size_t n = 0, length = 1;
    for (size_t at = 0; at < word.n; at += length) {
        if (v->is_spm) utf8_get(word.p + at, word.n - at, &length);
        s[n].from = (uint32_t)at;
        s[n].id   = symbol_id(v, word.p + at, length);
        s[n].rank = NO_RANK;
        n += v->is_spm || s[n].id >= 0;
    }
    return n;
}

static void emit_symbol(encoder *e, str word, const symbol *s, uint32_t end) {
    if (s->id >= 0) emit_id(e, s->id);
    else emit_unknown(e, word.p + s->from, end - s->from);
}

#define WORD_SHORT 32   /* bytes */

/* Merges by looking through all pairs each time. s[n] is room for the end. */
static void merge_short(encoder *e, str word, symbol *s, size_t n) {
    s[n].from = (uint32_t)word.n;
    for (size_t i = 0; i + 1 < n; i++) symbol_rank(e->v, word.p, &s[i], &s[i + 1], s[i + 2].from);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank) best = i;
        if (n < 2 || s[best].rank == NO_RANK) break;
        s[best].id = s[best].whole;
        memmove(&s[best + 1], &s[best + 2], (n - best - 1) * sizeof *s);   /* and the end */
        n--;
        if (best > 0) symbol_rank(e->v, word.p, &s[best - 1], &s[best], s[best + 1].from);
        if (best + 1 < n) symbol_rank(e->v, word.p, &s[best], &s[best + 1], s[best + 2].from);
        else s[best].rank = NO_RANK;
    }
    for (size_t i = 0; i < n; i++) emit_symbol(e, word, &s[i], s[i + 1].from);
}

/* The same for words of any length: the symbols as a list, and above it a tournament whose winner has the best pair.
 * Node i stands above nodes 2i and 2i + 1; symbol i is node leaves + i. */
typedef struct long_word {
    symbol   *s;
    uint32_t *next, *prev;   /* next of the last is n */
    uint32_t *winner;        /* the best of the symbols below a node */
    uint32_t  n, leaves;
} long_word;

/* Leaves that no symbol has are the last symbol, which never merges. */
NOVA_INLINE uint32_t winner_of(const long_word *w, uint32_t node) {
    if (node < w->leaves) return w->winner[node];
    return node - w->leaves < w->n ? node - w->leaves : w->n - 1;
}

static uint32_t winner_play(const long_word *w, uint32_t node) {
    uint32_t a = winner_of(w, 2 * node), b = winner_of(w, 2 * node + 1);
    return w->winner[node] = w->s[b].rank < w->s[a].rank ? b : a;
}

/* Symbol i's rank has changed. Above a node that somebody else won before and after, nothing has. */
static void winner_update(const long_word *w, uint32_t i) {
    for (uint32_t node = (w->leaves + i) / 2; node > 0; node /= 2) {
        uint32_t before = w->winner[node];
        if (winner_play(w, node) != i && before != i) return;
    }
}

static void long_rank(encoder *e, const long_word *w, str word, uint32_t i) {
    uint32_t next = w->next[i];
    if (next == w->n) {
        w->s[i].rank = NO_RANK;
    } else {
        uint32_t behind = w->next[next];
        symbol_rank(e->v, word.p, &w->s[i], &w->s[next], behind == w->n ? (uint32_t)word.n : w->s[behind].from);
    }
    winner_update(w, i);
}

static void merge_long(encoder *e, str word, const long_word *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        w->next[i] = i + 1;
        w->prev[i] = i - 1;
    }
    for (uint32_t i = 0; i + 1 < w->n; i++)
        symbol_rank(e->v, word.p, &w->s[i], &w->s[i + 1], i + 2 == w->n ? (uint32_t)word.n : w->s[i + 2].from);
    for (uint32_t node = w->leaves - 1; node > 0; node--) (void)winner_play(w, node);
    for (uint32_t best; best = w->winner[1], w->s[best].rank != NO_RANK;) {
        uint32_t gone = w->next[best];
        w->s[best].id   = w->s[best].whole;
        w->s[gone].rank = NO_RANK;
        w->next[best]   = w->next[gone];
        if (w->next[best] < w->n) w->prev[w->next[best]] = best;
        winner_update(w, gone);
        long_rank(e, w, word, best);
        if (best > 0) long_rank(e, w, word, w->prev[best]);
    }
    for (uint32_t i = 0; i < w->n; i = w->next[i])
        emit_symbol(e, word, &w->s[i], w->next[i] == w->n ? (uint32_t)word.n : w->s[w->next[i]].from);
}

static bool encode_long(encoder *e, str word) {
    long_word w;
    w.leaves = 1;
    while (w.leaves < word.n) w.leaves *= 2;
    size_t count = word.n + word.n + w.leaves, bytes;
    if (!size_mul(word.n, sizeof(symbol), &bytes) || !size_add(bytes, count * sizeof(uint32_t), &bytes)) return false;
    char *memory = (char *)mem_alloc(e->h, bytes);
    if (!memory) return false;
    w.s      = (symbol *)(void *)memory;
    w.next   = (uint32_t *)(void *)(memory + word.n * sizeof(symbol));
    w.prev   = w.next + word.n;
    w.winner = w.prev + word.n;
    w.n      = (uint32_t)symbols_of(e->v, word, w.s);
    if (w.n > 0) merge_long(e, word, &w);
    mem_free(e->h, memory, bytes);
    return true;
}

/* Is the word a token as it stands? */
static int32_t find_whole(const encoder *e, str word) {
    size_t n = 0;
    for (size_t i = 0; i < word.n; i++) {
        char   name[4];
        size_t length = utf8_put(byte_char((unsigned char)word.p[i]), name);
        if (n + length > e->v->max_text) return -1;
        memcpy(e->name + n, name, length);
        n += length;
    }
    return vocab_find(e->v, str_of(e->name, n));
}

static bool encode_word(encoder *e, str word) {
    symbol  s[WORD_SHORT + 1];
    int32_t whole = e->name ? find_whole(e, word) : -1;
    if (whole >= 0) {
        emit_id(e, whole);
        return true;
    }
    if (word.n > WORD_SHORT) return encode_long(e, word);
    merge_short(e, word, s, symbols_of(e->v, word, s));
    return true;
}

/* ---- Encoding ---- */

/* Copies a section without its marks, with spaces as SentencePiece writes them, and one in front where `lead`. */
static bool section_copy(encoder *e, str text, bool marked, bool lead) {
    text_buffer *b    = &e->section;
    size_t       from = 0;
    b->n = 0;
    if (lead) text_append(b, SPM_SPACE, SPM_SPACE_BYTES);
    for (size_t at = 0; at < text.n; at++) {
        bool space = e->v->is_spm && text.p[at] == ' ';
        if (!space && !(marked && text.p[at] == TOKEN_MARK)) continue;
        text_append(b, text.p + from, at - from);
        if (space) text_append(b, SPM_SPACE, SPM_SPACE_BYTES);
        from = at + 1;
    }
    return text_append(b, text.p + from, text.n - from);
}

/* A "llama" section is cut before a space behind something else, where no token can lie across: words apart. */
static bool encode_spm(encoder *e, str text) {
    size_t from = 0;
    bool   open = false;   /* what comes before is no space and joins none */
    for (size_t at = 0; at < text.n;) {
        if (text.n - at < SPM_SPACE_BYTES || memcmp(text.p + at, SPM_SPACE, SPM_SPACE_BYTES) != 0) {
            open = !e->v->joins[(unsigned char)text.p[at++]];
            continue;
        }
        if (open) {
            if (!encode_word(e, str_of(text.p + from, at - from))) return false;
            from = at;
        }
        open = false;
        at += SPM_SPACE_BYTES;
    }
    return encode_word(e, str_of(text.p + from, text.n - from));
}

static bool encode_bpe(encoder *e, str text) {
    const pre_rule *rule = e->v->rule;
    if (rule->nfc && unicode_nfc_span(text) < text.n) {
        e->composed.n = 0;
        if (!unicode_nfc(text, &e->composed)) return false;
        text = str_of(e->composed.p, e->composed.n);
    }
    pre_words words;
    str       word;
    pre_begin(&words, rule, text);
    while (pre_next(&words, &word))
        if (!encode_word(e, word)) return false;
    return true;
}

/* Text between special tokens, with a space in front where `lead`. */
static bool encode_section(encoder *e, str text, bool marked, bool lead) {
    e->unknown = false;
    if (e->v->is_spm || (marked && memchr(text.p, TOKEN_MARK, text.n))) {
        if (!section_copy(e, text, marked, lead)) return false;
        text = str_of(e->section.p, e->section.n);
    }
    if (text.n == 0) return true;
    return e->v->is_spm ? encode_spm(e, text) : encode_bpe(e, text);
}

static bool encode_sections(encoder *e, str text, uint32_t want, bool lead) {
    const vocab *v      = e->v;
    bool         marked = (want & FIND_MARKED) != 0;
    size_t       from   = 0;
    for (size_t at = 0, end = 0; at < text.n;) {
        bool    maybe = v->starts[(unsigned char)text.p[at]] && !(marked && text.p[at] == TOKEN_MARK);
        int32_t id    = maybe ? special_find(v, text, at, want, &end) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (at > from && !encode_section(e, str_of(text.p + from, at - from), marked, lead)) return false;
        emit_id(e, id);
        at = from = end;
    }
    return from == text.n || encode_section(e, str_of(text.p + from, text.n - from), marked, lead);
}

/* Where SentencePiece's space goes in front. A plain text is normalised as a whole, user-defined tokens being a part of
 * it: once, at its start. A text with control tokens is the sections between its special tokens, and each starts so
 * (Hugging Face's LlamaTokenizer, legacy, and mistral-common); fine-tunes add their turn marks as either type. */
static bool encode_text(encoder *e, str text, uint32_t want) {
    if (!e->v->space_prefix || text.n == 0) return encode_sections(e, text, want, false);
    if (want & FIND_CONTROL) return encode_sections(e, text, want, true);
    if (!text_append(&e->plain, " ", 1) || !text_append(&e->plain, text.p, text.n)) return false;
    return encode_sections(e, str_of(e->plain.p, e->plain.n), want, false);
}

static nova_result tokenizer_encode(const vocab *v, const host *h, str text, uint32_t flags,
                                    int32_t *ids, size_t capacity, size_t *n_ids, nova_error *error) {
    encoder e;
    memset(&e, 0, sizeof e);
    e.v        = v;
    e.h        = h;
    e.ids      = ids;
    e.capacity = capacity;
    *n_ids     = 0;
    if (text.n > INT32_MAX / 4) return fail(error, NOVA_ERROR_ARGUMENT, "a text of %zu bytes is too long", text.n);
    text_init(&e.plain, h, 0);
    text_init(&e.section, h, 0);
    text_init(&e.composed, h, 0);
    bool ok = true;
    if (!v->is_spm && v->rule->whole) ok = (e.name = (char *)mem_alloc(h, v->max_text + 1)) != NULL;
    if ((flags & NOVA_ADD_SPECIAL) && tokenizer_adds_bos(v)) emit_id(&e, v->bos);
    uint32_t want = FIND_USER;
    if (flags & NOVA_PARSE_SPECIAL) want |= FIND_CONTROL;
    if (flags & TOKENIZER_MARKED) want |= FIND_MARKED;
    ok = ok && encode_text(&e, text, want);
    if ((flags & NOVA_ADD_SPECIAL) && v->add_eos && v->eos >= 0) emit_id(&e, v->eos);
    mem_free(h, e.name, v->max_text + 1);
    text_free(&e.plain);
    text_free(&e.section);
    text_free(&e.composed);
    if (!ok) return fail(error, NOVA_ERROR_MEMORY, "out of memory: a text of %zu bytes cannot be encoded", text.n);
    *n_ids = e.n;
    if (e.n > capacity) return fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu ids, not %zu", e.n, capacity);
    return NOVA_OK;
}

static bool tokenizer_begins_control(const vocab *v, char c) {
    return (unsigned char)c < sizeof v->begins && v->begins[(unsigned char)c];
}

static bool tokenizer_mark(const vocab *v, str text, text_buffer *out) {
    /* The mark inside U+FFFD keeps a token that holds this character from forming. */
    static const char replacement[] = {'\xEF', TOKEN_MARK, '\xBF', '\xBD'}, mark[] = {TOKEN_MARK};
    size_t from = 0, end = 0;
    for (size_t at = 0; at < text.n; at++) {
        bool lost = text.p[at] == TOKEN_MARK;
        bool maybe = v->starts[(unsigned char)text.p[at]];
        bool own   = tokenizer_begins_control(v, text.p[at]) ||
                   (maybe && special_find(v, text, at, FIND_CONTROL, &end) >= 0);
        if (!lost && !own) continue;
        text_append(out, text.p + from, at + !lost - from);
        text_append(out, lost ? replacement : mark, lost ? sizeof replacement : sizeof mark);
        from = at + 1;
    }
    return text_append(out, text.p + from, text.n - from);
}

static size_t utf8_incomplete_tail(const char *p, size_t n) {
    for (size_t tail = 1; tail <= 3 && tail <= n; tail++) {
        const unsigned char *b = (const unsigned char *)p + n - tail;
        if ((b[0] & 0xC0) == 0x80) continue;
        /* The smallest and largest that may follow show whether the bytes so far are the start of anything. */
        size_t length, want = b[0] >= 0xF0 ? 4 : b[0] >= 0xE0 ? 3 : b[0] >= 0xC0 ? 2 : 1;
        char   low[4], high[4];
        if (want <= tail) return 0;
        memset(low, 0x80, sizeof low);
        memset(high, 0xBF, sizeof high);
        memcpy(low, b, tail);
        memcpy(high, b, tail);
        bool start = utf8_get(low, want, &length) != UTF8_INVALID || utf8_get(high, want, &length) != UTF8_INVALID;
        return start ? tail : 0;
    }
    return 0;
}

/* ==== src/letters.h =========================================================================================== */

/* Characters as Python's str knows them: UTF-8, blanks, what repr() prints, upper and lower case.
 *
 * All text here is valid UTF-8 with marks: a byte 0xFF (which no UTF-8 has) belongs to the character before it, takes no
 * room and compares equal to nothing at all (see tokenizer_mark). letter_clean makes such text from any bytes. */
#ifndef NOVA_LETTERS_H
#define NOVA_LETTERS_H


#define LETTER_MARK    0xFFu
#define LETTER_UNKNOWN 0xFFFDu

/* The character at `p`, marks in and behind it included: its code point into *c, and its length, at least 1.
 * p < end; what is no UTF-8 is LETTER_UNKNOWN, byte by byte. */
static size_t letter_next(const char *p, const char *end, uint32_t *c);
/* The length of the character that ends at `end`; p < end. */
static size_t letter_last(const char *p, const char *end, uint32_t *c);
static size_t letter_count(const char *p, size_t n);       /* characters */
static size_t letter_put(char out[4], uint32_t c);         /* to UTF-8; surrogates and beyond become LETTER_UNKNOWN */
/* Bytes at the start of (p, n) that are valid UTF-8; n when all are. */
static size_t letter_valid(const char *p, size_t n);

static bool letter_is_space(uint32_t c);
static bool letter_is_alpha(uint32_t c);
static bool letter_is_digit(uint32_t c);       /* any number, that is: also what str.isnumeric() alone accepts */
static bool letter_is_alnum(uint32_t c);
static bool letter_is_printable(uint32_t c);   /* repr() shows it as it is; unassigned code points count as printable */

typedef enum letter_case { LETTER_LOWER, LETTER_UPPER, LETTER_TITLE } letter_case;

/* The character in another case: 1 to 3 code points into `out`, and their number. */
static uint32_t letter_convert(letter_case to, uint32_t c, uint32_t out[3]);
static bool     letter_is_lower(uint32_t c);   /* has an upper case and is not half of one */
static bool     letter_is_upper(uint32_t c);   /* has a different lower case */

#endif

/* ==== src/letters.c =========================================================================================== */

/* Characters as Python's str knows them: see letters.h. */

/* ---- UTF-8 ---- */

NOVA_INLINE bool letter_is_tail(unsigned char b) { return (b & 0xC0) == 0x80; }

/* Continuation bytes that a first byte asks for, or -1 when it can start nothing. */
static int letter_tail_length(unsigned char b) {
    if (b < 0x80) return 0;
    if (b >= 0xC2 && b <= 0xDF) return 1;
    if (b >= 0xE0 && b <= 0xEF) return 2;
    if (b >= 0xF0 && b <= 0xF4) return 3;
    return -1;
}

/* Overlong forms, surrogates and numbers beyond the last plane are no characters. */
static bool letter_in_range(uint32_t c, int tail) {
    static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
    return c >= least[tail] && c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
}

static size_t letter_next(const char *p, const char *end, uint32_t *c) {
    const char *q = p;
    while (q + 1 < end && (unsigned char)*q == LETTER_MARK) q++;
    unsigned char b    = (unsigned char)*q++;
    int           tail = letter_tail_length(b);
    *c                 = LETTER_UNKNOWN;
    if (tail >= 0) {
        uint32_t    code = tail == 0 ? b : b & (0x3Fu >> tail);
        int         got  = 0;
        const char *r    = q;
        for (; r < end && got < tail; r++) {
            unsigned char t = (unsigned char)*r;
            if (t == LETTER_MARK) continue;
            if (!letter_is_tail(t)) break;
            code = code << 6 | (t & 0x3Fu);
            got++;
        }
        if (got == tail && letter_in_range(code, tail)) {
            *c = code;
            q  = r;
        }
    }
    while (q < end && (unsigned char)*q == LETTER_MARK) q++;
    return (size_t)(q - p);
}

static size_t letter_last(const char *p, const char *end, uint32_t *c) {
    const char *q = end - 1;
    while (q > p && (letter_is_tail((unsigned char)*q) || (unsigned char)*q == LETTER_MARK)) q--;
    size_t n = letter_next(q, end, c);
    return q + n == end ? (size_t)(end - q) : 1;
}

static size_t letter_count(const char *p, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)p[i];
        count += !letter_is_tail(b) && b != LETTER_MARK;
    }
    return count;
}

static size_t letter_put(char out[4], uint32_t c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = LETTER_UNKNOWN;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t tail = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    for (size_t i = tail; i > 0; i--, c >>= 6) out[i] = (char)(0x80u | (c & 0x3F));
    static const unsigned char first[4] = {0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(first[tail] | c);
    return tail + 1;
}

static size_t letter_valid(const char *p, size_t n) {
    if (n == 0) return 0;
    const char *end = p + n, *q = p;
    while (q < end) {
        unsigned char b    = (unsigned char)*q;
        int           tail = letter_tail_length(b);
        if (tail < 0 || end - q <= tail) break;
        uint32_t code = tail == 0 ? b : b & (0x3Fu >> tail);
        int      i    = 1;
        for (; i <= tail && letter_is_tail((unsigned char)q[i]); i++) code = code << 6 | ((unsigned char)q[i] & 0x3Fu);
        if (i <= tail || !letter_in_range(code, tail)) break;
        q += tail + 1;
    }
    return (size_t)(q - p);
}

/* ---- Properties. Source: Python's str.isspace and str.isprintable ---- */

static bool letter_is_space(uint32_t c) {
    if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool letter_is_alpha(uint32_t c) { return (unicode_class(c) & UNICODE_LETTER) != 0; }

static bool letter_is_digit(uint32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : unicode_class(c) == UNICODE_NUMBER; }

static bool letter_is_alnum(uint32_t c) { return letter_is_alpha(c) || letter_is_digit(c); }

static bool letter_is_printable(uint32_t c) {
    /* First and last of the ranges of controls, formats, private use and blanks other than the space. */
    static const uint32_t hidden[][2] = {
        {0, 31}, {127, 160}, {0xAD, 0xAD}, {0x600, 0x605}, {0x61C, 0x61C}, {0x6DD, 0x6DD}, {0x70F, 0x70F},
        {0x890, 0x891}, {0x8E2, 0x8E2}, {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200F}, {0x2028, 0x202F},
        {0x205F, 0x206F}, {0x3000, 0x3000}, {0xD800, 0xF8FF}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0x110BD, 0x110BD},
        {0x110CD, 0x110CD}, {0x13430, 0x13438}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0001, 0xE0001},
        {0xE0020, 0xE007F}, {0xF0000, 0xFFFFD}, {0x100000, 0x10FFFD},
    };
    if (c >= 32 && c < 127) return true;
    for (size_t i = 0; i < COUNT_OF(hidden); i++)
        if (c >= hidden[i][0] && c <= hidden[i][1]) return false;
    return true;
}

/* ---- Case. Source: UnicodeData.txt and SpecialCasing.txt of Unicode 14, as Python 3.11 has them ---- */

/* Every `step`-th code point from `first` to `last` becomes itself plus `delta`. */
typedef struct letter_range {
    uint32_t first, last;
    uint8_t  step;
    int32_t  delta;
} letter_range;

typedef struct letter_many {
    uint32_t from;
    uint16_t to[3];   /* zeros behind the last */
} letter_many;

static const letter_range letter_lower_ranges[] = {
    {0x41, 0x5A, 1, 32}, {0xC0, 0xD6, 1, 32}, {0xD8, 0xDE, 1, 32}, {0x100, 0x12E, 2, 1}, {0x132, 0x136, 2, 1},
    {0x139, 0x147, 2, 1}, {0x14A, 0x176, 2, 1}, {0x178, 0x178, 1, -121}, {0x179, 0x17D, 2, 1}, {0x181, 0x181, 1, 210},
    {0x182, 0x184, 2, 1}, {0x186, 0x186, 1, 206}, {0x187, 0x187, 1, 1}, {0x189, 0x18A, 1, 205}, {0x18B, 0x18B, 1, 1},
    {0x18E, 0x18E, 1, 79}, {0x18F, 0x18F, 1, 202}, {0x190, 0x190, 1, 203}, {0x191, 0x191, 1, 1}, {0x193, 0x193, 1, 205},
    {0x194, 0x194, 1, 207}, {0x196, 0x196, 1, 211}, {0x197, 0x197, 1, 209}, {0x198, 0x198, 1, 1},
    {0x19C, 0x19C, 1, 211}, {0x19D, 0x19D, 1, 213}, {0x19F, 0x19F, 1, 214}, {0x1A0, 0x1A4, 2, 1},
    {0x1A6, 0x1A6, 1, 218}, {0x1A7, 0x1A7, 1, 1}, {0x1A9, 0x1A9, 1, 218}, {0x1AC, 0x1AC, 1, 1}, {0x1AE, 0x1AE, 1, 218},
    {0x1AF, 0x1AF, 1, 1}, {0x1B1, 0x1B2, 1, 217}, {0x1B3, 0x1B5, 2, 1}, {0x1B7, 0x1B7, 1, 219}, {0x1B8, 0x1B8, 1, 1},
    {0x1BC, 0x1BC, 1, 1}, {0x1C4, 0x1C4, 1, 2}, {0x1C5, 0x1C5, 1, 1}, {0x1C7, 0x1C7, 1, 2}, {0x1C8, 0x1C8, 1, 1},
    {0x1CA, 0x1CA, 1, 2}, {0x1CB, 0x1DB, 2, 1}, {0x1DE, 0x1EE, 2, 1}, {0x1F1, 0x1F1, 1, 2}, {0x1F2, 0x1F4, 2, 1},
    {0x1F6, 0x1F6, 1, -97}, {0x1F7, 0x1F7, 1, -56}, {0x1F8, 0x21E, 2, 1}, {0x220, 0x220, 1, -130}, {0x222, 0x232, 2, 1},
    {0x23A, 0x23A, 1, 10795}, {0x23B, 0x23B, 1, 1}, {0x23D, 0x23D, 1, -163}, {0x23E, 0x23E, 1, 10792},
    {0x241, 0x241, 1, 1}, {0x243, 0x243, 1, -195}, {0x244, 0x244, 1, 69}, {0x245, 0x245, 1, 71}, {0x246, 0x24E, 2, 1},
    {0x370, 0x372, 2, 1}, {0x376, 0x376, 1, 1}, {0x37F, 0x37F, 1, 116}, {0x386, 0x386, 1, 38}, {0x388, 0x38A, 1, 37},
    {0x38C, 0x38C, 1, 64}, {0x38E, 0x38F, 1, 63}, {0x391, 0x3A1, 1, 32}, {0x3A3, 0x3AB, 1, 32}, {0x3CF, 0x3CF, 1, 8},
    {0x3D8, 0x3EE, 2, 1}, {0x3F4, 0x3F4, 1, -60}, {0x3F7, 0x3F7, 1, 1}, {0x3F9, 0x3F9, 1, -7}, {0x3FA, 0x3FA, 1, 1},
    {0x3FD, 0x3FF, 1, -130}, {0x400, 0x40F, 1, 80}, {0x410, 0x42F, 1, 32}, {0x460, 0x480, 2, 1}, {0x48A, 0x4BE, 2, 1},
    {0x4C0, 0x4C0, 1, 15}, {0x4C1, 0x4CD, 2, 1}, {0x4D0, 0x52E, 2, 1}, {0x531, 0x556, 1, 48}, {0x10A0, 0x10C5, 1, 7264},
    {0x10C7, 0x10C7, 1, 7264}, {0x10CD, 0x10CD, 1, 7264}, {0x13A0, 0x13EF, 1, 38864}, {0x13F0, 0x13F5, 1, 8},
    {0x1C90, 0x1CBA, 1, -3008}, {0x1CBD, 0x1CBF, 1, -3008}, {0x1E00, 0x1E94, 2, 1}, {0x1E9E, 0x1E9E, 1, -7615},
    {0x1EA0, 0x1EFE, 2, 1}, {0x1F08, 0x1F0F, 1, -8}, {0x1F18, 0x1F1D, 1, -8}, {0x1F28, 0x1F2F, 1, -8},
    {0x1F38, 0x1F3F, 1, -8}, {0x1F48, 0x1F4D, 1, -8}, {0x1F59, 0x1F5F, 2, -8}, {0x1F68, 0x1F6F, 1, -8},
    {0x1F88, 0x1F8F, 1, -8}, {0x1F98, 0x1F9F, 1, -8}, {0x1FA8, 0x1FAF, 1, -8}, {0x1FB8, 0x1FB9, 1, -8},
    {0x1FBA, 0x1FBB, 1, -74}, {0x1FBC, 0x1FBC, 1, -9}, {0x1FC8, 0x1FCB, 1, -86}, {0x1FCC, 0x1FCC, 1, -9},
    {0x1FD8, 0x1FD9, 1, -8}, {0x1FDA, 0x1FDB, 1, -100}, {0x1FE8, 0x1FE9, 1, -8}, {0x1FEA, 0x1FEB, 1, -112},
    {0x1FEC, 0x1FEC, 1, -7}, {0x1FF8, 0x1FF9, 1, -128}, {0x1FFA, 0x1FFB, 1, -126}, {0x1FFC, 0x1FFC, 1, -9},
    {0x2126, 0x2126, 1, -7517}, {0x212A, 0x212A, 1, -8383}, {0x212B, 0x212B, 1, -8262}, {0x2132, 0x2132, 1, 28},
    {0x2160, 0x216F, 1, 16}, {0x2183, 0x2183, 1, 1}, {0x24B6, 0x24CF, 1, 26}, {0x2C00, 0x2C2F, 1, 48},
    {0x2C60, 0x2C60, 1, 1}, {0x2C62, 0x2C62, 1, -10743}, {0x2C63, 0x2C63, 1, -3814}, {0x2C64, 0x2C64, 1, -10727},
    {0x2C67, 0x2C6B, 2, 1}, {0x2C6D, 0x2C6D, 1, -10780}, {0x2C6E, 0x2C6E, 1, -10749}, {0x2C6F, 0x2C6F, 1, -10783},
    {0x2C70, 0x2C70, 1, -10782}, {0x2C72, 0x2C72, 1, 1}, {0x2C75, 0x2C75, 1, 1}, {0x2C7E, 0x2C7F, 1, -10815},
    {0x2C80, 0x2CE2, 2, 1}, {0x2CEB, 0x2CED, 2, 1}, {0x2CF2, 0x2CF2, 1, 1}, {0xA640, 0xA66C, 2, 1},
    {0xA680, 0xA69A, 2, 1}, {0xA722, 0xA72E, 2, 1}, {0xA732, 0xA76E, 2, 1}, {0xA779, 0xA77B, 2, 1},
    {0xA77D, 0xA77D, 1, -35332}, {0xA77E, 0xA786, 2, 1}, {0xA78B, 0xA78B, 1, 1}, {0xA78D, 0xA78D, 1, -42280},
    {0xA790, 0xA792, 2, 1}, {0xA796, 0xA7A8, 2, 1}, {0xA7AA, 0xA7AA, 1, -42308}, {0xA7AB, 0xA7AB, 1, -42319},
    {0xA7AC, 0xA7AC, 1, -42315}, {0xA7AD, 0xA7AD, 1, -42305}, {0xA7AE, 0xA7AE, 1, -42308}, {0xA7B0, 0xA7B0, 1, -42258},
    {0xA7B1, 0xA7B1, 1, -42282}, {0xA7B2, 0xA7B2, 1, -42261}, {0xA7B3, 0xA7B3, 1, 928}, {0xA7B4, 0xA7C2, 2, 1},
    {0xA7C4, 0xA7C4, 1, -48}, {0xA7C5, 0xA7C5, 1, -42307}, {0xA7C6, 0xA7C6, 1, -35384}, {0xA7C7, 0xA7C9, 2, 1},
    {0xA7D0, 0xA7D0, 1, 1}, {0xA7D6, 0xA7D8, 2, 1}, {0xA7F5, 0xA7F5, 1, 1}, {0xFF21, 0xFF3A, 1, 32},
    {0x10400, 0x10427, 1, 40}, {0x104B0, 0x104D3, 1, 40}, {0x10570, 0x1057A, 1, 39}, {0x1057C, 0x1058A, 1, 39},
    {0x1058C, 0x10592, 1, 39}, {0x10594, 0x10595, 1, 39}, {0x10C80, 0x10CB2, 1, 64}, {0x118A0, 0x118BF, 1, 32},
    {0x16E40, 0x16E5F, 1, 32}, {0x1E900, 0x1E921, 1, 34},
};

static const letter_range letter_upper_ranges[] = {
    {0x61, 0x7A, 1, -32}, {0xB5, 0xB5, 1, 743}, {0xE0, 0xF6, 1, -32}, {0xF8, 0xFE, 1, -32}, {0xFF, 0xFF, 1, 121},
    {0x101, 0x12F, 2, -1}, {0x131, 0x131, 1, -232}, {0x133, 0x137, 2, -1}, {0x13A, 0x148, 2, -1}, {0x14B, 0x177, 2, -1},
    {0x17A, 0x17E, 2, -1}, {0x17F, 0x17F, 1, -300}, {0x180, 0x180, 1, 195}, {0x183, 0x185, 2, -1},
    {0x188, 0x188, 1, -1}, {0x18C, 0x18C, 1, -1}, {0x192, 0x192, 1, -1}, {0x195, 0x195, 1, 97}, {0x199, 0x199, 1, -1},
    {0x19A, 0x19A, 1, 163}, {0x19E, 0x19E, 1, 130}, {0x1A1, 0x1A5, 2, -1}, {0x1A8, 0x1A8, 1, -1}, {0x1AD, 0x1AD, 1, -1},
    {0x1B0, 0x1B0, 1, -1}, {0x1B4, 0x1B6, 2, -1}, {0x1B9, 0x1B9, 1, -1}, {0x1BD, 0x1BD, 1, -1}, {0x1BF, 0x1BF, 1, 56},
    {0x1C5, 0x1C5, 1, -1}, {0x1C6, 0x1C6, 1, -2}, {0x1C8, 0x1C8, 1, -1}, {0x1C9, 0x1C9, 1, -2}, {0x1CB, 0x1CB, 1, -1},
    {0x1CC, 0x1CC, 1, -2}, {0x1CE, 0x1DC, 2, -1}, {0x1DD, 0x1DD, 1, -79}, {0x1DF, 0x1EF, 2, -1}, {0x1F2, 0x1F2, 1, -1},
    {0x1F3, 0x1F3, 1, -2}, {0x1F5, 0x1F5, 1, -1}, {0x1F9, 0x21F, 2, -1}, {0x223, 0x233, 2, -1}, {0x23C, 0x23C, 1, -1},
    {0x23F, 0x240, 1, 10815}, {0x242, 0x242, 1, -1}, {0x247, 0x24F, 2, -1}, {0x250, 0x250, 1, 10783},
    {0x251, 0x251, 1, 10780}, {0x252, 0x252, 1, 10782}, {0x253, 0x253, 1, -210}, {0x254, 0x254, 1, -206},
    {0x256, 0x257, 1, -205}, {0x259, 0x259, 1, -202}, {0x25B, 0x25B, 1, -203}, {0x25C, 0x25C, 1, 42319},
    {0x260, 0x260, 1, -205}, {0x261, 0x261, 1, 42315}, {0x263, 0x263, 1, -207}, {0x265, 0x265, 1, 42280},
    {0x266, 0x266, 1, 42308}, {0x268, 0x268, 1, -209}, {0x269, 0x269, 1, -211}, {0x26A, 0x26A, 1, 42308},
    {0x26B, 0x26B, 1, 10743}, {0x26C, 0x26C, 1, 42305}, {0x26F, 0x26F, 1, -211}, {0x271, 0x271, 1, 10749},
    {0x272, 0x272, 1, -213}, {0x275, 0x275, 1, -214}, {0x27D, 0x27D, 1, 10727}, {0x280, 0x280, 1, -218},
    {0x282, 0x282, 1, 42307}, {0x283, 0x283, 1, -218}, {0x287, 0x287, 1, 42282}, {0x288, 0x288, 1, -218},
    {0x289, 0x289, 1, -69}, {0x28A, 0x28B, 1, -217}, {0x28C, 0x28C, 1, -71}, {0x292, 0x292, 1, -219},
    {0x29D, 0x29D, 1, 42261}, {0x29E, 0x29E, 1, 42258}, {0x345, 0x345, 1, 84}, {0x371, 0x373, 2, -1},
    {0x377, 0x377, 1, -1}, {0x37B, 0x37D, 1, 130}, {0x3AC, 0x3AC, 1, -38}, {0x3AD, 0x3AF, 1, -37},
    {0x3B1, 0x3C1, 1, -32}, {0x3C2, 0x3C2, 1, -31}, {0x3C3, 0x3CB, 1, -32}, {0x3CC, 0x3CC, 1, -64},
    {0x3CD, 0x3CE, 1, -63}, {0x3D0, 0x3D0, 1, -62}, {0x3D1, 0x3D1, 1, -57}, {0x3D5, 0x3D5, 1, -47},
    {0x3D6, 0x3D6, 1, -54}, {0x3D7, 0x3D7, 1, -8}, {0x3D9, 0x3EF, 2, -1}, {0x3F0, 0x3F0, 1, -86},
    {0x3F1, 0x3F1, 1, -80}, {0x3F2, 0x3F2, 1, 7}, {0x3F3, 0x3F3, 1, -116}, {0x3F5, 0x3F5, 1, -96},
    {0x3F8, 0x3F8, 1, -1}, {0x3FB, 0x3FB, 1, -1}, {0x430, 0x44F, 1, -32}, {0x450, 0x45F, 1, -80}, {0x461, 0x481, 2, -1},
    {0x48B, 0x4BF, 2, -1}, {0x4C2, 0x4CE, 2, -1}, {0x4CF, 0x4CF, 1, -15}, {0x4D1, 0x52F, 2, -1}, {0x561, 0x586, 1, -48},
    {0x10D0, 0x10FA, 1, 3008}, {0x10FD, 0x10FF, 1, 3008}, {0x13F8, 0x13FD, 1, -8}, {0x1C80, 0x1C80, 1, -6254},
    {0x1C81, 0x1C81, 1, -6253}, {0x1C82, 0x1C82, 1, -6244}, {0x1C83, 0x1C84, 1, -6242}, {0x1C85, 0x1C85, 1, -6243},
    {0x1C86, 0x1C86, 1, -6236}, {0x1C87, 0x1C87, 1, -6181}, {0x1C88, 0x1C88, 1, 35266}, {0x1D79, 0x1D79, 1, 35332},
    {0x1D7D, 0x1D7D, 1, 3814}, {0x1D8E, 0x1D8E, 1, 35384}, {0x1E01, 0x1E95, 2, -1}, {0x1E9B, 0x1E9B, 1, -59},
    {0x1EA1, 0x1EFF, 2, -1}, {0x1F00, 0x1F07, 1, 8}, {0x1F10, 0x1F15, 1, 8}, {0x1F20, 0x1F27, 1, 8},
    {0x1F30, 0x1F37, 1, 8}, {0x1F40, 0x1F45, 1, 8}, {0x1F51, 0x1F57, 2, 8}, {0x1F60, 0x1F67, 1, 8},
    {0x1F70, 0x1F71, 1, 74}, {0x1F72, 0x1F75, 1, 86}, {0x1F76, 0x1F77, 1, 100}, {0x1F78, 0x1F79, 1, 128},
    {0x1F7A, 0x1F7B, 1, 112}, {0x1F7C, 0x1F7D, 1, 126}, {0x1FB0, 0x1FB1, 1, 8}, {0x1FBE, 0x1FBE, 1, -7205},
    {0x1FD0, 0x1FD1, 1, 8}, {0x1FE0, 0x1FE1, 1, 8}, {0x1FE5, 0x1FE5, 1, 7}, {0x214E, 0x214E, 1, -28},
    {0x2170, 0x217F, 1, -16}, {0x2184, 0x2184, 1, -1}, {0x24D0, 0x24E9, 1, -26}, {0x2C30, 0x2C5F, 1, -48},
    {0x2C61, 0x2C61, 1, -1}, {0x2C65, 0x2C65, 1, -10795}, {0x2C66, 0x2C66, 1, -10792}, {0x2C68, 0x2C6C, 2, -1},
    {0x2C73, 0x2C73, 1, -1}, {0x2C76, 0x2C76, 1, -1}, {0x2C81, 0x2CE3, 2, -1}, {0x2CEC, 0x2CEE, 2, -1},
    {0x2CF3, 0x2CF3, 1, -1}, {0x2D00, 0x2D25, 1, -7264}, {0x2D27, 0x2D27, 1, -7264}, {0x2D2D, 0x2D2D, 1, -7264},
    {0xA641, 0xA66D, 2, -1}, {0xA681, 0xA69B, 2, -1}, {0xA723, 0xA72F, 2, -1}, {0xA733, 0xA76F, 2, -1},
    {0xA77A, 0xA77C, 2, -1}, {0xA77F, 0xA787, 2, -1}, {0xA78C, 0xA78C, 1, -1}, {0xA791, 0xA793, 2, -1},
    {0xA794, 0xA794, 1, 48}, {0xA797, 0xA7A9, 2, -1}, {0xA7B5, 0xA7C3, 2, -1}, {0xA7C8, 0xA7CA, 2, -1},
    {0xA7D1, 0xA7D1, 1, -1}, {0xA7D7, 0xA7D9, 2, -1}, {0xA7F6, 0xA7F6, 1, -1}, {0xAB53, 0xAB53, 1, -928},
    {0xAB70, 0xABBF, 1, -38864}, {0xFF41, 0xFF5A, 1, -32}, {0x10428, 0x1044F, 1, -40}, {0x104D8, 0x104FB, 1, -40},
    {0x10597, 0x105A1, 1, -39}, {0x105A3, 0x105B1, 1, -39}, {0x105B3, 0x105B9, 1, -39}, {0x105BB, 0x105BC, 1, -39},
    {0x10CC0, 0x10CF2, 1, -64}, {0x118C0, 0x118DF, 1, -32}, {0x16E60, 0x16E7F, 1, -32}, {0x1E922, 0x1E943, 1, -34},
};

static const letter_many letter_upper_many[] = {
    {0xDF, {0x53, 0x53, 0x0}}, {0x149, {0x2BC, 0x4E, 0x0}}, {0x1F0, {0x4A, 0x30C, 0x0}}, {0x390, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}}, {0x587, {0x535, 0x552, 0x0}}, {0x1E96, {0x48, 0x331, 0x0}},
    {0x1E97, {0x54, 0x308, 0x0}}, {0x1E98, {0x57, 0x30A, 0x0}}, {0x1E99, {0x59, 0x30A, 0x0}},
    {0x1E9A, {0x41, 0x2BE, 0x0}}, {0x1F50, {0x3A5, 0x313, 0x0}}, {0x1F52, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}}, {0x1F56, {0x3A5, 0x313, 0x342}}, {0x1F80, {0x1F08, 0x399, 0x0}},
    {0x1F81, {0x1F09, 0x399, 0x0}}, {0x1F82, {0x1F0A, 0x399, 0x0}}, {0x1F83, {0x1F0B, 0x399, 0x0}},
    {0x1F84, {0x1F0C, 0x399, 0x0}}, {0x1F85, {0x1F0D, 0x399, 0x0}}, {0x1F86, {0x1F0E, 0x399, 0x0}},
    {0x1F87, {0x1F0F, 0x399, 0x0}}, {0x1F88, {0x1F08, 0x399, 0x0}}, {0x1F89, {0x1F09, 0x399, 0x0}},
    {0x1F8A, {0x1F0A, 0x399, 0x0}}, {0x1F8B, {0x1F0B, 0x399, 0x0}}, {0x1F8C, {0x1F0C, 0x399, 0x0}},
    {0x1F8D, {0x1F0D, 0x399, 0x0}}, {0x1F8E, {0x1F0E, 0x399, 0x0}}, {0x1F8F, {0x1F0F, 0x399, 0x0}},
    {0x1F90, {0x1F28, 0x399, 0x0}}, {0x1F91, {0x1F29, 0x399, 0x0}}, {0x1F92, {0x1F2A, 0x399, 0x0}},
    {0x1F93, {0x1F2B, 0x399, 0x0}}, {0x1F94, {0x1F2C, 0x399, 0x0}}, {0x1F95, {0x1F2D, 0x399, 0x0}},
    {0x1F96, {0x1F2E, 0x399, 0x0}}, {0x1F97, {0x1F2F, 0x399, 0x0}}, {0x1F98, {0x1F28, 0x399, 0x0}},
    {0x1F99, {0x1F29, 0x399, 0x0}}, {0x1F9A, {0x1F2A, 0x399, 0x0}}, {0x1F9B, {0x1F2B, 0x399, 0x0}},
    {0x1F9C, {0x1F2C, 0x399, 0x0}}, {0x1F9D, {0x1F2D, 0x399, 0x0}}, {0x1F9E, {0x1F2E, 0x399, 0x0}},
    {0x1F9F, {0x1F2F, 0x399, 0x0}}, {0x1FA0, {0x1F68, 0x399, 0x0}}, {0x1FA1, {0x1F69, 0x399, 0x0}},
    {0x1FA2, {0x1F6A, 0x399, 0x0}}, {0x1FA3, {0x1F6B, 0x399, 0x0}}, {0x1FA4, {0x1F6C, 0x399, 0x0}},
    {0x1FA5, {0x1F6D, 0x399, 0x0}}, {0x1FA6, {0x1F6E, 0x399, 0x0}}, {0x1FA7, {0x1F6F, 0x399, 0x0}},
    {0x1FA8, {0x1F68, 0x399, 0x0}}, {0x1FA9, {0x1F69, 0x399, 0x0}}, {0x1FAA, {0x1F6A, 0x399, 0x0}},
    {0x1FAB, {0x1F6B, 0x399, 0x0}}, {0x1FAC, {0x1F6C, 0x399, 0x0}}, {0x1FAD, {0x1F6D, 0x399, 0x0}},
    {0x1FAE, {0x1F6E, 0x399, 0x0}}, {0x1FAF, {0x1F6F, 0x399, 0x0}}, {0x1FB2, {0x1FBA, 0x399, 0x0}},
    {0x1FB3, {0x391, 0x399, 0x0}}, {0x1FB4, {0x386, 0x399, 0x0}}, {0x1FB6, {0x391, 0x342, 0x0}},
    {0x1FB7, {0x391, 0x342, 0x399}}, {0x1FBC, {0x391, 0x399, 0x0}}, {0x1FC2, {0x1FCA, 0x399, 0x0}},
    {0x1FC3, {0x397, 0x399, 0x0}}, {0x1FC4, {0x389, 0x399, 0x0}}, {0x1FC6, {0x397, 0x342, 0x0}},
    {0x1FC7, {0x397, 0x342, 0x399}}, {0x1FCC, {0x397, 0x399, 0x0}}, {0x1FD2, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}}, {0x1FD6, {0x399, 0x342, 0x0}}, {0x1FD7, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}}, {0x1FE3, {0x3A5, 0x308, 0x301}}, {0x1FE4, {0x3A1, 0x313, 0x0}},
    {0x1FE6, {0x3A5, 0x342, 0x0}}, {0x1FE7, {0x3A5, 0x308, 0x342}}, {0x1FF2, {0x1FFA, 0x399, 0x0}},
    {0x1FF3, {0x3A9, 0x399, 0x0}}, {0x1FF4, {0x38F, 0x399, 0x0}}, {0x1FF6, {0x3A9, 0x342, 0x0}},
    {0x1FF7, {0x3A9, 0x342, 0x399}}, {0x1FFC, {0x3A9, 0x399, 0x0}}, {0xFB00, {0x46, 0x46, 0x0}},
    {0xFB01, {0x46, 0x49, 0x0}}, {0xFB02, {0x46, 0x4C, 0x0}}, {0xFB03, {0x46, 0x46, 0x49}},
    {0xFB04, {0x46, 0x46, 0x4C}}, {0xFB05, {0x53, 0x54, 0x0}}, {0xFB06, {0x53, 0x54, 0x0}},
    {0xFB13, {0x544, 0x546, 0x0}}, {0xFB14, {0x544, 0x535, 0x0}}, {0xFB15, {0x544, 0x53B, 0x0}},
    {0xFB16, {0x54E, 0x546, 0x0}}, {0xFB17, {0x544, 0x53D, 0x0}},
};

static const letter_many letter_title_many[] = {
    {0xDF, {0x53, 0x73, 0x0}}, {0x1C4, {0x1C5, 0x0, 0x0}}, {0x1C6, {0x1C5, 0x0, 0x0}}, {0x1C7, {0x1C8, 0x0, 0x0}},
    {0x1C9, {0x1C8, 0x0, 0x0}}, {0x1CA, {0x1CB, 0x0, 0x0}}, {0x1CC, {0x1CB, 0x0, 0x0}}, {0x1F1, {0x1F2, 0x0, 0x0}},
    {0x1F3, {0x1F2, 0x0, 0x0}}, {0x587, {0x535, 0x582, 0x0}}, {0x1F80, {0x1F88, 0x0, 0x0}},
    {0x1F81, {0x1F89, 0x0, 0x0}}, {0x1F82, {0x1F8A, 0x0, 0x0}}, {0x1F83, {0x1F8B, 0x0, 0x0}},
    {0x1F84, {0x1F8C, 0x0, 0x0}}, {0x1F85, {0x1F8D, 0x0, 0x0}}, {0x1F86, {0x1F8E, 0x0, 0x0}},
    {0x1F87, {0x1F8F, 0x0, 0x0}}, {0x1F90, {0x1F98, 0x0, 0x0}}, {0x1F91, {0x1F99, 0x0, 0x0}},
    {0x1F92, {0x1F9A, 0x0, 0x0}}, {0x1F93, {0x1F9B, 0x0, 0x0}}, {0x1F94, {0x1F9C, 0x0, 0x0}},
    {0x1F95, {0x1F9D, 0x0, 0x0}}, {0x1F96, {0x1F9E, 0x0, 0x0}}, {0x1F97, {0x1F9F, 0x0, 0x0}},
    {0x1FA0, {0x1FA8, 0x0, 0x0}}, {0x1FA1, {0x1FA9, 0x0, 0x0}}, {0x1FA2, {0x1FAA, 0x0, 0x0}},
    {0x1FA3, {0x1FAB, 0x0, 0x0}}, {0x1FA4, {0x1FAC, 0x0, 0x0}}, {0x1FA5, {0x1FAD, 0x0, 0x0}},
    {0x1FA6, {0x1FAE, 0x0, 0x0}}, {0x1FA7, {0x1FAF, 0x0, 0x0}}, {0x1FB2, {0x1FBA, 0x345, 0x0}},
    {0x1FB3, {0x1FBC, 0x0, 0x0}}, {0x1FB4, {0x386, 0x345, 0x0}}, {0x1FB7, {0x391, 0x342, 0x345}},
    {0x1FC2, {0x1FCA, 0x345, 0x0}}, {0x1FC3, {0x1FCC, 0x0, 0x0}}, {0x1FC4, {0x389, 0x345, 0x0}},
    {0x1FC7, {0x397, 0x342, 0x345}}, {0x1FF2, {0x1FFA, 0x345, 0x0}}, {0x1FF3, {0x1FFC, 0x0, 0x0}},
    {0x1FF4, {0x38F, 0x345, 0x0}}, {0x1FF7, {0x3A9, 0x342, 0x345}}, {0xFB00, {0x46, 0x66, 0x0}},
    {0xFB01, {0x46, 0x69, 0x0}}, {0xFB02, {0x46, 0x6C, 0x0}}, {0xFB03, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x66, 0x6C}}, {0xFB05, {0x53, 0x74, 0x0}}, {0xFB06, {0x53, 0x74, 0x0}},
    {0xFB13, {0x544, 0x576, 0x0}}, {0xFB14, {0x544, 0x565, 0x0}}, {0xFB15, {0x544, 0x56B, 0x0}},
    {0xFB16, {0x54E, 0x576, 0x0}}, {0xFB17, {0x544, 0x56D, 0x0}},
};

static uint32_t letter_lookup(const letter_range *table, size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > table[middle].last) low = middle + 1;
        else high = middle;
    }
    if (low == n || c < table[low].first || (c - table[low].first) % table[low].step) return c;
    return (uint32_t)((int32_t)c + table[low].delta);
}

static uint32_t letter_lookup_many(const letter_many *table, size_t n, uint32_t c, uint32_t out[3]) {
    for (size_t i = 0; i < n && table[i].from <= c; i++) {
        if (table[i].from != c) continue;
        uint32_t count = 0;
        for (; count < 3 && table[i].to[count]; count++) out[count] = table[i].to[count];
        return count;
    }
    return 0;
}

/* Characters that are their own title case: Georgian, and the ligatures that have one of their own. */
static bool letter_is_title(uint32_t c) {
    return (c >= 0x10D0 && c <= 0x10FF) || c == 0x1C5 || c == 0x1C8 || c == 0x1CB || c == 0x1F2 ||
           (c >= 0x1F88 && c <= 0x1FAF && (c & 8)) || c == 0x1FBC || c == 0x1FCC || c == 0x1FFC;
}

static uint32_t letter_convert(letter_case to, uint32_t c, uint32_t out[3]) {
    out[0] = c;
    if (c < 0x80) {
        bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        if (to == LETTER_LOWER ? upper : lower) out[0] = c ^ 0x20;
        return 1;
    }
    uint32_t n = 0;
    if (to == LETTER_LOWER) {
        if (c == 0x130) {   /* the one lower case of two: i with a dot above */
            out[0] = 'i';
            out[1] = 0x307;
            return 2;
        }
        out[0] = letter_lookup(letter_lower_ranges, COUNT_OF(letter_lower_ranges), c);
        return 1;
    }
    if (to == LETTER_TITLE) {
        if (letter_is_title(c)) return 1;
        n = letter_lookup_many(letter_title_many, COUNT_OF(letter_title_many), c, out);
    }
    if (!n) n = letter_lookup_many(letter_upper_many, COUNT_OF(letter_upper_many), c, out);
    if (n) return n;
    out[0] = letter_lookup(letter_upper_ranges, COUNT_OF(letter_upper_ranges), c);
    return 1;
}

/* Ligatures that begin with a capital and go on small are neither upper nor lower case. */
static bool letter_is_mixed(uint32_t c) { return letter_is_title(c) && !(c >= 0x10D0 && c <= 0x10FF); }

static bool letter_is_lower(uint32_t c) {
    uint32_t out[3];
    if (letter_is_mixed(c)) return false;
    return letter_convert(LETTER_UPPER, c, out) > 1 || out[0] != c;
}

static bool letter_is_upper(uint32_t c) {
    uint32_t out[3];
    if (letter_is_mixed(c)) return false;
    return letter_convert(LETTER_LOWER, c, out) > 1 || out[0] != c;
}

/* ==== src/jinja_value.h ======================================================================================= */

/* Templates' ground: the memory and the bounds of one rendering, the values it computes with, lists, dictionaries,
 * equality, order, iteration. Semantics: Python's, as far as templates can see them.
 *
 * Lists and dictionaries never change once they are built: the sandbox of chat templates forbids the methods that would
 * change them. So they are shared freely, and a slice is a view. What does change (namespaces, cyclers, generators) has
 * a serial number, by which regions know whether their memory is still in use. */
#ifndef NOVA_JINJA_VALUE_H
#define NOVA_JINJA_VALUE_H


/* ---- One rendering ---- */

/* Bounds: a hostile template ends in an error within these. */
#define JINJA_MAX_BYTES ((size_t)8 << 20)  /* of memory in all */
#define JINJA_MAX_STEPS 2500000            /* a step is about 10 ns of work */
#define JINJA_MAX_NEST  64                 /* of expressions and statements in the text, of values in each other */
#define JINJA_MAX_DEPTH 400                /* of the interpreter in itself; a level takes about 250 bytes of stack */

typedef struct jinja_block jinja_block;

typedef struct jinja {
    const host  *h;
    host         counted;    /* the same memory, counted against JINJA_MAX_BYTES */
    nova_error  *error;
    nova_result  failed;     /* NOVA_OK until the first failure, which is the one that is told */
    uint32_t     line;       /* of the template, at work now */
    uint32_t     steps;      /* that are left */
    uint32_t     depth;
    size_t       bytes;      /* taken from the host */
    bool         over;       /* a request was refused because of JINJA_MAX_BYTES */
    jinja_block *blocks;     /* newest first */
    char        *next, *end; /* free bytes in the newest */
    uint64_t     serial;     /* counts regions and what can change */
    uint64_t     touched;    /* the oldest serial number of what was changed since the innermost region began */
    const char  *kept;       /* where the long string ends that a namespace was given last */
    char        *room, *room_end;   /* free bytes behind a string that is being built up piece by piece */
    uint64_t     room_serial;
    int64_t      now;        /* Unix time */
    bool         begins[128]; /* characters that control tokens begin with, where strings are marked */
} jinja;

static void jinja_open(jinja *j, const host *h, nova_error *error);
static void jinja_close(jinja *j);

/* Fails with a sentence about the template; its line comes in front. Returns false, for `return jinja_fail(...)`. */
static bool jinja_fail(jinja *j, const char *format, ...) NOVA_PRINTF(2, 3);
static bool jinja_fail_memory(jinja *j);
/* Counts work; false when there was too much of it. */
NOVA_INLINE bool jinja_step(jinja *j, size_t n);
static bool jinja_fail_steps(jinja *j);
/* One level deeper; false (and no level) at the bound. */
static bool jinja_enter(jinja *j);
NOVA_INLINE void jinja_leave(jinja *j) { j->depth--; }

/* Memory until the end, or until its region ends; aligned to 8. NULL has failed already. */
static void *jinja_alloc(jinja *j, size_t size);
/* An array of n elements; growing one at the end of the memory costs nothing. */
static void *jinja_grow(jinja *j, void *array, uint32_t n, uint32_t *cap, size_t element);

/* A region: what is allocated in it is dead at its end, unless something older was changed meanwhile. */
typedef struct jinja_region {
    jinja_block *blocks;
    char        *next, *end;
    uint64_t     serial, touched;
} jinja_region;

static void     jinja_region_open(jinja *j, jinja_region *r);
static void     jinja_region_close(jinja *j, const jinja_region *r);
static uint64_t jinja_serial(jinja *j);                       /* for what can change */
NOVA_INLINE void jinja_touch(jinja *j, uint64_t serial) { if (serial < j->touched) j->touched = serial; }

/* ---- Values ---- */

typedef enum jkind {
    J_MISSING,    /* not assigned: never seen by a template */
    J_UNDEFINED,  /* s: the name, or the sentence; sub: a jundefined; of: the kind of object that lacks it */
    J_NONE,
    J_BOOL,       /* i */
    J_INT,        /* i */
    J_BIG,        /* s: the digits of an integer beyond 64 bits, which can be printed and nothing else */
    J_FLOAT,      /* f */
    J_STRING,     /* s, n bytes; flags */
    J_LIST,       /* items, n */
    J_TUPLE,      /* items, n */
    J_DICT,       /* dict */
    J_RANGE,      /* range */
    J_VIEW,       /* dict; sub: a jview */
    J_GENERATOR,  /* generator */
    J_NAMESPACE,  /* space */
    J_MACRO,      /* macro */
    J_METHOD,     /* method */
    J_FUNCTION,   /* native */
    J_LOOP,       /* loop */
    J_CYCLER,     /* cycler */
    J_JOINER,     /* joiner */
    J_KINDS
} jkind;

enum { J_SAFE = 1, J_MARKED = 2, J_GROUP = 4 };   /* flags: Markup; may hold marks; a tuple of groupby's */

typedef enum jundefined { JU_NAME, JU_ATTRIBUTE, JU_ELEMENT, JU_SENTENCE } jundefined;
typedef enum jview { JV_KEYS, JV_VALUES, JV_ITEMS } jview;

typedef struct jdict      jdict;
typedef struct jrange     jrange;
typedef struct jgenerator jgenerator;
typedef struct jspace     jspace;
typedef struct jmethod    jmethod;
typedef struct jnative    jnative;
typedef struct jcycler    jcycler;
typedef struct jjoiner    jjoiner;
typedef struct jmacro     jmacro;
typedef struct jloop      jloop;   /* the interpreter's */

typedef struct jvalue {
    uint8_t  kind, flags, sub, of;
    uint32_t n;
    union {
        int64_t              i;
        double               f;
        const char          *s;
        const struct jvalue *items;
        const jdict         *dict;
        const jrange        *range;
        jgenerator          *generator;
        jspace              *space;
        const jmethod       *method;
        const jnative       *native;
        jcycler             *cycler;
        jjoiner             *joiner;
        const jmacro        *macro;
        jloop               *loop;
        const void          *object;   /* any of these, to be compared */
    } u;
} jvalue;

struct jrange  { int64_t start, stop, step; uint32_t n; };
struct jspace  { jdict *attributes; uint64_t serial; };
struct jcycler { jvalue items; uint32_t at; };
struct jjoiner { jvalue between; bool used; };
struct jmacro  { jvalue name; const struct jnode *node; struct jframe *outer; };   /* name: none for a call block's */

NOVA_INLINE jvalue jv_make(jkind kind) { jvalue v; memset(&v, 0, sizeof v); v.kind = (uint8_t)kind; return v; }
NOVA_INLINE jvalue jv_none(void) { return jv_make(J_NONE); }
NOVA_INLINE jvalue jv_bool(bool b) { jvalue v = jv_make(J_BOOL); v.u.i = b; return v; }
NOVA_INLINE jvalue jv_int(int64_t i) { jvalue v = jv_make(J_INT); v.u.i = i; return v; }
NOVA_INLINE jvalue jv_float(double f) { jvalue v = jv_make(J_FLOAT); v.u.f = f; return v; }
static jvalue jv_string(const char *s, size_t n, uint32_t flags);
static jvalue jv_c(const char *z);   /* of a literal */
static jvalue jv_items(jkind kind, const jvalue *items, size_t n);
static jvalue jv_undefined(jundefined why, str name);
static jvalue jv_lacking(const jvalue *object, const jvalue *name);   /* an attribute or element that is not there */

NOVA_INLINE str  jv_str(const jvalue *v) { return str_of(v->u.s, v->n); }
NOVA_INLINE bool jv_is_string(const jvalue *v) { return v->kind == J_STRING; }
NOVA_INLINE bool jv_is_array(const jvalue *v) { return v->kind == J_LIST || v->kind == J_TUPLE; }
NOVA_INLINE bool jv_is_integer(const jvalue *v) { return v->kind == J_INT || v->kind == J_BOOL; }
NOVA_INLINE bool jv_is_number(const jvalue *v) { return jv_is_integer(v) || v->kind == J_FLOAT; }
NOVA_INLINE bool jv_given(const jvalue *v) { return v->kind != J_MISSING; }   /* an argument */

static const char *jv_type(const jvalue *v);                   /* Python's name of the type */
static bool jinja_fail_undefined(jinja *j, const jvalue *v);   /* "'x' is undefined" */
static bool jinja_fail_type(jinja *j, const char *what, const jvalue *v);   /* "WHAT: not for a 'int'" */
static bool jv_true(const jvalue *v);                          /* bool(v) */
/* len(v); false and no failure when it has none. */
static bool jv_length(const jvalue *v, uint32_t *n);

/* a == b, or -1 after a failure. */
static int jv_equal(jinja *j, const jvalue *a, const jvalue *b);
/* The sign of a - b (-1, 0, 1) into *sign; 2 for numbers that have no order. Fails for kinds that cannot be ordered. */
static bool jv_compare(jinja *j, const jvalue *a, const jvalue *b, int *sign);
/* item in container, or -1 after a failure. */
static int jv_contains(jinja *j, const jvalue *container, const jvalue *item);
static bool jv_hashable(const jvalue *v);

/* ---- Strings ---- */

/* A string that grows at the end of the memory. After a failure it ignores what comes. */
typedef struct jtext {
    jinja   *j;
    char    *p;
    size_t   n, cap;
    uint32_t flags;
} jtext;

static void   jtext_open(jtext *t, jinja *j);
static bool   jtext_add(jtext *t, const char *p, size_t n);
static bool   jtext_add_c(jtext *t, const char *z);
static bool   jtext_add_char(jtext *t, uint32_t c);
static bool   jtext_add_string(jtext *t, const jvalue *v);   /* with its marks */
static bool   jtext_repeat(jtext *t, const char *p, size_t n, size_t times);
static bool   jtext_close(jtext *t, jvalue *out);

static bool jinja_copy(jinja *j, const char *p, size_t n, const char **out);
/* Any bytes as a string: what is no UTF-8 becomes U+FFFD. Copies only where it must. */
static bool jinja_import(jinja *j, const char *p, size_t n, jvalue *out);
static bool jinja_concat(jinja *j, const jvalue *a, const jvalue *b, jvalue *out);
/* A namespace keeps this: if it is a long string, more is likely to be appended to it. */
static void jinja_keep(jinja *j, const jvalue *v);
static bool jstring_equal(const jvalue *a, const jvalue *b);
static int  jstring_compare(const jvalue *a, const jvalue *b);

/* ---- Lists ---- */

typedef struct jlist {
    jinja   *j;
    jvalue  *items;
    uint32_t n, cap;
} jlist;

static void   jlist_open(jlist *l, jinja *j);
static bool   jlist_add(jlist *l, jvalue v);
static jvalue jlist_close(const jlist *l, jkind kind);

/* ---- Dictionaries, in the order of insertion ---- */

typedef struct jpair { jvalue key, value; } jpair;   /* also the two items of a tuple */

struct jdict {
    jpair    *pairs;
    uint32_t  n, cap;
    uint32_t *slots;      /* index + 1 into pairs, 0: free; only for more than JDICT_SMALL pairs */
    uint32_t  n_slots;
};

#define JDICT_SMALL 8

static jdict *jdict_open(jinja *j);
/* Sets or replaces. The key must be hashable. */
static bool   jdict_set(jinja *j, jdict *d, const jvalue *key, const jvalue *value);
static bool   jdict_set_c(jinja *j, jdict *d, const char *key, jvalue value);
/* The value, or NULL: not there, or j failed. */
static const jvalue *jdict_get(jinja *j, const jdict *d, const jvalue *key);
/* Orders pairs by their keys, stable. */
static bool jpair_sort(jinja *j, jpair *pairs, uint32_t n, bool reverse);
static jvalue jv_dict(const jdict *d);
static jvalue jv_view(const jdict *d, jview which);

/* ---- Iteration ---- */

typedef struct jiter {
    jvalue   of;
    uint32_t at;     /* items passed; for strings bytes */
} jiter;

/* What map, select and their like give: computed one by one, gone once passed. */
typedef int (*jgenerator_fn)(jinja *j, jgenerator *g, jvalue *out);   /* as jiter_next */

struct jgenerator {
    jgenerator_fn next;
    jiter         from;
    jvalue        a, b;      /* what `next` needs */
    const void   *data;
    uint64_t      serial;
};

/* Fails for what cannot be iterated; so does jiter_next, for who opened without asking. */
static bool jiter_open(jinja *j, jiter *it, const jvalue *v);
/* 1 and an item, 0 at the end, -1 after a failure. */
static int  jiter_next(jinja *j, jiter *it, jvalue *out);
static bool jv_is_iterable(const jvalue *v);
static bool jv_to_list(jinja *j, const jvalue *v, jvalue *out);   /* list(v) */

/* ---- What is written in C ---- */

typedef struct jargs {
    jvalue      *given;      /* after binding: one for every parameter, J_MISSING where none was given */
    uint32_t     n;
    const jpair *named;
    uint32_t     n_named;
} jargs;

/* `self` is the object of a method, the subject of a filter or test; nothing for functions. */
typedef bool (*jnative_fn)(jinja *j, const jvalue *self, const jargs *a, jvalue *out);

struct jnative {
    const char *name;
    const char *parameters;   /* their names with blanks between; NULL: takes what comes, unbound */
    uint32_t    n_required;
    jnative_fn  fn;           /* NULL: Python has it, this interpreter not */
};

struct jmethod { const jnative *native; jvalue self; };

#define JINJA_MAX_PARAMETERS 6

static const jnative *jnative_find(const jnative *table, size_t n, str name);
static bool jnative_call(jinja *j, const jnative *native, const jvalue *self, const jargs *a, jvalue *out);

#endif

/* ==== src/jinja_value.c ======================================================================================= */

/* Templates' ground: see jinja_value.h. */

/* A test may define this to see that nothing reads a region's memory behind its end. */
#ifndef JINJA_SCRUB
#define JINJA_SCRUB(p, n) (void)0
#endif

/* ---- One rendering ---- */

static void *jinja_counted_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    jinja *j = (jinja *)user;
    if (new_size > old_size && new_size - old_size > JINJA_MAX_BYTES - j->bytes) {
        j->over = true;
        return NULL;
    }
    void *p = j->h->alloc(j->h->alloc_user, pointer, old_size, new_size);
    if (p || new_size == 0) j->bytes = j->bytes - old_size + new_size;
    return p;
}

static void jinja_open(jinja *j, const host *h, nova_error *error) {
    memset(j, 0, sizeof *j);
    j->h       = h;
    j->counted = host_init(jinja_counted_alloc, j, h->log, h->log_user);
    j->error   = error;
    j->steps   = JINJA_MAX_STEPS;
    j->touched = UINT64_MAX;
}

static bool jinja_fail(jinja *j, const char *format, ...) {
    if (j->failed != NOVA_OK) return false;
    char text[sizeof ((nova_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *to = text;
    for (const char *from = text; *from; from++)
        if ((unsigned char)*from != LETTER_MARK) *to++ = *from;
    *to = 0;
    if (j->line) j->failed = fail(j->error, NOVA_ERROR_TEMPLATE, "template line %u: %s", j->line, text);
    else j->failed = fail(j->error, NOVA_ERROR_TEMPLATE, "the conversation %s", text);
    return false;
}

static bool jinja_fail_memory(jinja *j) {
    if (j->over) return jinja_fail(j, "needs more than %zu MiB of memory", JINJA_MAX_BYTES >> 20);
    if (j->failed == NOVA_OK) j->failed = fail(j->error, NOVA_ERROR_MEMORY, "out of memory in a chat template");
    return false;
}

static bool jinja_fail_steps(jinja *j) {
    j->steps = 0;
    return jinja_fail(j, "takes more than %d steps: an endless loop?", JINJA_MAX_STEPS);
}

NOVA_INLINE bool jinja_step(jinja *j, size_t n) {
    if (n > j->steps) return jinja_fail_steps(j);
    j->steps -= (uint32_t)n;
    return true;
}

static bool jinja_enter(jinja *j) {
    if (j->depth >= JINJA_MAX_DEPTH) return jinja_fail(j, "recursion is too deep");
    j->depth++;
    return true;
}

/* ---- Memory ---- */

struct jinja_block {
    jinja_block *older;
    size_t       size;   /* of the whole block */
};

#define JINJA_BLOCK ((size_t)32 << 10)

static void jinja_drop_blocks(jinja *j, jinja_block *until) {
    while (j->blocks != until) {
        jinja_block *older = j->blocks->older;
        mem_free(&j->counted, j->blocks, j->blocks->size);
        j->blocks = older;
    }
}

static void jinja_close(jinja *j) {
    jinja_drop_blocks(j, NULL);
    j->next = j->end = NULL;
}

/* `size` bytes, not aligned, so that strings can grow where they end. */
static char *jinja_take(jinja *j, size_t size, size_t align) {
    size_t pad = (size_t)-(intptr_t)j->next & (align - 1);
    if (size > JINJA_MAX_BYTES) {
        j->over = true;
        jinja_fail_memory(j);
        return NULL;
    }
    if ((size_t)(j->end - j->next) < pad + size) {
        size_t       whole = size_max(JINJA_BLOCK, sizeof(jinja_block) + size);
        jinja_block *block = (jinja_block *)mem_alloc(&j->counted, whole);
        if (!block) {
            jinja_fail_memory(j);
            return NULL;
        }
        block->older = j->blocks;
        block->size  = whole;
        j->blocks    = block;
        j->next      = (char *)(block + 1);
        j->end       = (char *)block + whole;
        pad          = 0;
    }
    char *p = j->next + pad;
    j->next = p + size;
    return p;
}

static void *jinja_alloc(jinja *j, size_t size) { return jinja_take(j, size, 8); }

/* Can what ends at `end` grow by `size` in place? Then it has. */
static bool jinja_extend(jinja *j, const char *end, size_t size) {
    if (end != j->next || (size_t)(j->end - j->next) < size) return false;
    j->next += size;
    return true;
}

static void *jinja_grow(jinja *j, void *array, uint32_t n, uint32_t *cap, size_t element) {
    if (n < *cap) return array;
    uint32_t more = *cap ? *cap : 4;   /* cannot overflow: the memory ends long before */
    if (*cap && jinja_extend(j, (const char *)array + *cap * element, more * element)) {
        *cap += more;
        return array;
    }
    void *p = jinja_alloc(j, (*cap + more) * element);
    if (!p) return NULL;
    if (n) memcpy(p, array, n * element);
    *cap += more;
    return p;
}

static uint64_t jinja_serial(jinja *j) { return ++j->serial; }

static void jinja_region_open(jinja *j, jinja_region *r) {
    r->blocks  = j->blocks;
    r->next    = j->next;
    r->end     = j->end;
    r->serial  = jinja_serial(j);
    r->touched = j->touched;
    j->touched = UINT64_MAX;
}

static void jinja_region_close(jinja *j, const jinja_region *r) {
    bool alive = j->touched < r->serial;
    if (r->touched < j->touched) j->touched = r->touched;
    if (alive) return;
    if (r->blocks) JINJA_SCRUB(r->next, (size_t)((j->blocks == r->blocks ? j->next : r->end) - r->next));
    jinja_drop_blocks(j, r->blocks);
    j->next = r->next;
    j->end  = r->end;
    if (j->room_serial > r->serial) j->room = j->room_end = NULL;
}

/* ---- Values ---- */

static jvalue jv_string(const char *s, size_t n, uint32_t flags) {
    jvalue v = jv_make(J_STRING);
    v.u.s    = s;
    v.n      = (uint32_t)n;
    v.flags  = (uint8_t)flags;
    return v;
}

static jvalue jv_c(const char *z) { return jv_string(z, strlen(z), 0); }

static jvalue jv_items(jkind kind, const jvalue *items, size_t n) {
    jvalue v  = jv_make(kind);
    v.u.items = items;
    v.n       = (uint32_t)n;
    return v;
}

static jvalue jv_undefined(jundefined why, str name) {
    jvalue v = jv_make(J_UNDEFINED);
    v.sub    = (uint8_t)why;
    v.u.s    = name.p;
    v.n      = (uint32_t)name.n;
    return v;
}

static jvalue jv_lacking(const jvalue *object, const jvalue *name) {
    jvalue v = jv_undefined(JU_ELEMENT, str_c(""));
    if (jv_is_string(name)) v = jv_undefined(JU_ATTRIBUTE, jv_str(name));
    v.of = object->kind;
    return v;
}

static const char *const jkind_names[J_KINDS] = {
    "missing", "Undefined", "NoneType", "bool", "int", "int", "float", "str", "list", "tuple", "dict", "range",
    "dict view", "generator", "Namespace", "Macro", "method", "function", "LoopContext", "Cycler", "Joiner",
};

static const char *jv_type(const jvalue *v) { return jkind_names[v->kind]; }

static bool jinja_fail_undefined(jinja *j, const jvalue *v) {
    str name = jv_str(v);
    if (v->sub == JU_SENTENCE) return jinja_fail(j, "%.*s", STR_ARG(name));
    const char *of = jkind_names[v->of];
    if (v->sub == JU_ATTRIBUTE) return jinja_fail(j, "a '%s' has no attribute '%.*s'", of, STR_ARG(name));
    if (v->sub == JU_ELEMENT) return jinja_fail(j, "a '%s' has no such element", of);
    return jinja_fail(j, "'%.*s' is undefined", STR_ARG(name));
}

static bool jinja_fail_type(jinja *j, const char *what, const jvalue *v) {
    if (v->kind == J_UNDEFINED) return jinja_fail_undefined(j, v);
    return jinja_fail(j, "%s: not for a '%s'", what, jv_type(v));
}

static bool jv_length(const jvalue *v, uint32_t *n) {
    switch (v->kind) {
    case J_UNDEFINED: *n = 0; return true;
    case J_STRING: *n = (uint32_t)letter_count(v->u.s, v->n); return true;
    case J_LIST:
    case J_TUPLE: *n = v->n; return true;
    case J_DICT:
    case J_VIEW: *n = v->u.dict->n; return true;
    case J_RANGE: *n = v->u.range->n; return true;
    default: return false;
    }
}

static bool jv_true(const jvalue *v) {
    switch (v->kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL:
    case J_INT: return v->u.i != 0;
    case J_FLOAT: return v->u.f != 0;
    case J_STRING: return v->n != 0;
    default: break;
    }
    uint32_t n;
    return !jv_length(v, &n) || n != 0;
}

/* ---- Equality ---- */

/* The sign of i - f, exactly; 2 for NaN. */
static int jv_compare_mixed(int64_t i, double f) {
    if (f != f) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static int jv_compare_numbers(const jvalue *a, const jvalue *b) {
    if (a->kind == J_FLOAT && b->kind == J_FLOAT) {
        if (a->u.f != a->u.f || b->u.f != b->u.f) return 2;
        return a->u.f < b->u.f ? -1 : a->u.f > b->u.f;
    }
    if (b->kind == J_FLOAT) return jv_compare_mixed(a->u.i, b->u.f);
    if (a->kind == J_FLOAT) {
        int sign = jv_compare_mixed(b->u.i, a->u.f);
        return sign == 2 ? 2 : -sign;
    }
    return a->u.i < b->u.i ? -1 : a->u.i > b->u.i;
}

static int jv_equal_arrays(jinja *j, const jvalue *a, const jvalue *b, uint32_t n) {
    if (!jinja_enter(j)) return -1;
    int equal = 1;
    for (uint32_t i = 0; i < n && equal == 1; i++) equal = jv_equal(j, &a[i], &b[i]);
    jinja_leave(j);
    return equal;
}

static int jv_equal_dicts(jinja *j, const jdict *a, const jdict *b, bool values) {
    if (a->n != b->n) return 0;
    if (!jinja_enter(j)) return -1;
    int equal = 1;
    for (uint32_t i = 0; i < a->n && equal == 1; i++) {
        const jvalue *other = jdict_get(j, b, &a->pairs[i].key);
        if (!other) equal = j->failed == NOVA_OK ? 0 : -1;
        else if (values) equal = jv_equal(j, &a->pairs[i].value, other);
    }
    jinja_leave(j);
    return equal;
}

static int jv_equal(jinja *j, const jvalue *a, const jvalue *b) {
    if (!jinja_step(j, 1)) return -1;
    if (jv_is_number(a) && jv_is_number(b)) return jv_compare_numbers(a, b) == 0;
    if (a->kind != b->kind) return 0;
    switch (a->kind) {
    case J_UNDEFINED:
    case J_NONE: return 1;
    case J_BIG:
    case J_STRING: return jinja_step(j, size_min(a->n, b->n) >> 6) ? jstring_equal(a, b) : -1;
    case J_LIST:
    case J_TUPLE: return a->n == b->n ? jv_equal_arrays(j, a->u.items, b->u.items, a->n) : 0;
    case J_DICT: return a->u.dict == b->u.dict ? 1 : jv_equal_dicts(j, a->u.dict, b->u.dict, true);
    case J_VIEW:
        if (a->sub != b->sub || a->sub == JV_VALUES) return 0;
        return jv_equal_dicts(j, a->u.dict, b->u.dict, a->sub == JV_ITEMS);
    case J_RANGE: {
        const jrange *x = a->u.range, *y = b->u.range;
        return x->n == y->n && (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    default: return a->u.object == b->u.object;
    }
}

/* ---- Order ---- */

static bool jv_compare_arrays(jinja *j, const jvalue *a, const jvalue *b, int *sign) {
    if (!jinja_enter(j)) return false;
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
    int      equal = 1;
    while (i < n && (equal = jv_equal(j, &a->u.items[i], &b->u.items[i])) == 1) i++;
    bool ok = equal >= 0;
    if (ok && i < n) ok = jv_compare(j, &a->u.items[i], &b->u.items[i], sign);
    else if (ok) *sign = a->n < b->n ? -1 : a->n > b->n;
    jinja_leave(j);
    return ok;
}

static bool jv_compare(jinja *j, const jvalue *a, const jvalue *b, int *sign) {
    if (!jinja_step(j, 1)) return false;
    if (jv_is_number(a) && jv_is_number(b)) {
        *sign = jv_compare_numbers(a, b);
        return true;
    }
    if (jv_is_string(a) && jv_is_string(b)) {
        *sign = jstring_compare(a, b);
        return jinja_step(j, size_min(a->n, b->n) >> 6);
    }
    if (jv_is_array(a) && a->kind == b->kind) return jv_compare_arrays(j, a, b, sign);
    if (a->kind == J_UNDEFINED) return jinja_fail_undefined(j, a);
    if (b->kind == J_UNDEFINED) return jinja_fail_undefined(j, b);
    return jinja_fail(j, "a '%s' and a '%s' have no order", jv_type(a), jv_type(b));
}

/* Stable: the runs of 1, 2, 4, ... pairs are merged until one is left. */
static bool jpair_sort(jinja *j, jpair *pairs, uint32_t n, bool reverse) {
    jpair *from = pairs, *to = n > 1 ? (jpair *)jinja_alloc(j, n * sizeof *to) : pairs;
    if (n > 1 && !to) return false;
    for (uint32_t run = 1; run < n; run *= 2) {
        for (uint32_t start = 0; start < n; start += 2 * run) {
            uint32_t a = start, a_end = n - start < run ? n : start + run;
            uint32_t b = a_end, b_end = n - a_end < run ? n : a_end + run;
            for (uint32_t i = start; i < b_end; i++) {
                int sign = 0;
                if (a < a_end && b < b_end && !jv_compare(j, &from[b].key, &from[a].key, &sign)) return false;
                bool take_b = a == a_end || (b < b_end && sign == (reverse ? 1 : -1));
                to[i]       = from[take_b ? b++ : a++];
            }
        }
        jpair *swap = from;
        from        = to;
        to          = swap;
    }
    if (from != pairs) memcpy(pairs, from, n * sizeof *pairs);
    return true;
}

/* ---- Strings ---- */

static bool jstring_equal(const jvalue *a, const jvalue *b) {
    if (!((a->flags | b->flags) & J_MARKED)) return str_eq(jv_str(a), jv_str(b));
    return jstring_compare(a, b) == 0;
}

/* UTF-8 keeps the order of code points. */
static int jstring_compare(const jvalue *a, const jvalue *b) {
    size_t n = size_min(a->n, b->n);
    if (!((a->flags | b->flags) & J_MARKED)) {
        int sign = n ? memcmp(a->u.s, b->u.s, n) : 0;
        return sign ? (sign < 0 ? -1 : 1) : a->n < b->n ? -1 : a->n > b->n;
    }
    const unsigned char *p = (const unsigned char *)a->u.s, *p_end = p + a->n;
    const unsigned char *q = (const unsigned char *)b->u.s, *q_end = q + b->n;
    for (;; p++, q++) {
        while (p < p_end && *p == LETTER_MARK) p++;
        while (q < q_end && *q == LETTER_MARK) q++;
        if (p == p_end || q == q_end) return (p < p_end) - (q < q_end);
        if (*p != *q) return *p < *q ? -1 : 1;
    }
}

static void jtext_open(jtext *t, jinja *j) {
    memset(t, 0, sizeof *t);
    t->j = j;
}

static bool jtext_reserve(jtext *t, size_t n) {
    if (t->j->failed != NOVA_OK) return false;
    if (t->cap - t->n >= n) return true;
    if (t->p && jinja_extend(t->j, t->p + t->cap, n)) {
        t->cap += n;
        return true;
    }
    if (n > JINJA_MAX_BYTES) {   /* below it nothing here can overflow */
        t->j->over = true;
        return jinja_fail_memory(t->j);
    }
    size_t cap = size_max(t->n + n, t->cap + t->cap / 2);
    char  *p   = jinja_take(t->j, cap, 1);
    if (!p) return false;
    if (t->n) memcpy(p, t->p, t->n);
    t->p   = p;
    t->cap = cap;
    return true;
}

static bool jtext_add(jtext *t, const char *p, size_t n) {
    if (!jtext_reserve(t, n) || !jinja_step(t->j, n >> 6)) return false;
    if (n) memcpy(t->p + t->n, p, n);
    t->n += n;
    return true;
}

static bool jtext_add_c(jtext *t, const char *z) { return jtext_add(t, z, strlen(z)); }

static bool jtext_add_char(jtext *t, uint32_t c) {
    char utf8[4];
    return jtext_add(t, utf8, letter_put(utf8, c));
}

static bool jtext_add_string(jtext *t, const jvalue *v) {
    t->flags |= v->flags & J_MARKED;
    return jtext_add(t, v->u.s, v->n);
}

static bool jtext_repeat(jtext *t, const char *p, size_t n, size_t times) {
    size_t size;
    if (!size_mul(n, times, &size)) size = SIZE_MAX;
    if (!size || !jtext_reserve(t, size)) return !size && t->j->failed == NOVA_OK;
    if (n == 1) {
        memset(t->p + t->n, *p, times);
        t->n += times;
        return jinja_step(t->j, times >> 6);
    }
    for (size_t i = 0; i < times; i++)
        if (!jinja_step(t->j, 1) || !jtext_add(t, p, n)) return false;
    return true;
}

static bool jtext_close(jtext *t, jvalue *out) {
    if (t->j->failed != NOVA_OK) return false;
    if (t->p && t->p + t->cap == t->j->next) t->j->next = t->p + t->n;
    *out = jv_string(t->n ? t->p : "", t->n, t->flags);
    return true;
}

static bool jinja_copy(jinja *j, const char *p, size_t n, const char **out) {
    char *copy = jinja_take(j, n, 1);
    if (!copy || !jinja_step(j, n >> 6)) return false;
    if (n) memcpy(copy, p, n);
    *out = copy;
    return true;
}

static bool jinja_import(jinja *j, const char *p, size_t n, jvalue *out) {
    if (n > JINJA_MAX_BYTES) {
        j->over = true;
        return jinja_fail_memory(j);
    }
    size_t valid = letter_valid(p, n);
    *out         = jv_string(n ? p : "", n, 0);
    if (valid == n) return jinja_step(j, n >> 5);
    jtext t;
    jtext_open(&t, j);
    while (n) {
        if (!jtext_add(&t, p, valid) || !jinja_step(j, 1 + (valid >> 5))) return false;
        if (valid == n) break;
        jtext_add_char(&t, LETTER_UNKNOWN);
        p += valid + 1;
        n -= valid + 1;
        valid = letter_valid(p, n);
    }
    return jtext_close(&t, out);
}

#define JINJA_LONG 1024

static void jinja_keep(jinja *j, const jvalue *v) {
    if (jv_is_string(v) && v->n >= JINJA_LONG) j->kept = v->u.s + v->n;
}

/* Where `size` bytes behind `end`, the end of a string, can be appended to it: NULL when others lie there. */
static char *jinja_room(jinja *j, const char *end, size_t size) {
    if (jinja_extend(j, end, size)) return j->next - size;
    if (end != j->room || (size_t)(j->room_end - j->room) < size) return NULL;
    j->room += size;
    return j->room - size;
}

/* A chain of concatenations copies every part once: what ends where the memory ends grows in place, and so does what a
 * template builds up in a namespace. */
static bool jinja_concat(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    uint32_t flags = (uint32_t)(a->flags | b->flags) & J_MARKED;
    size_t   n     = (size_t)a->n + b->n, spare;
    char    *p     = a->n ? jinja_room(j, a->u.s + a->n, b->n) : NULL;
    if (p) {
        if (b->n) memcpy(p, b->u.s, b->n);
        *out = jv_string(a->u.s, n, flags);
        return jinja_step(j, b->n >> 6);
    }
    spare = a->n >= JINJA_LONG && a->u.s + a->n == j->kept ? n / 2 : 0;
    p     = jinja_take(j, n + spare, 1);
    if (!p) return false;
    if (spare) {
        j->room        = p + n;
        j->room_end    = p + n + spare;
        j->room_serial = jinja_serial(j);
    }
    if (a->n) memcpy(p, a->u.s, a->n);
    if (b->n) memcpy(p + a->n, b->u.s, b->n);
    *out = jv_string(p, (size_t)a->n + b->n, flags);
    return jinja_step(j, out->n >> 6);
}

/* ---- Lists ---- */

static void jlist_open(jlist *l, jinja *j) {
    memset(l, 0, sizeof *l);
    l->j = j;
}

static bool jlist_add(jlist *l, jvalue v) {
    if (!jinja_step(l->j, 1)) return false;
    jvalue *items = (jvalue *)jinja_grow(l->j, l->items, l->n, &l->cap, sizeof *items);
    if (!items) return false;
    l->items         = items;
    l->items[l->n++] = v;
    return true;
}

static jvalue jlist_close(const jlist *l, jkind kind) { return jv_items(kind, l->items, l->n); }

/* ---- Dictionaries ---- */

static bool jv_hashable(const jvalue *v) {
    if (v->kind == J_LIST || v->kind == J_DICT || v->kind == J_VIEW) return false;
    if (v->kind == J_TUPLE)
        for (uint32_t i = 0; i < v->n; i++)   /* a tuple in a tuple is no key that anybody needs */
            if (v->u.items[i].kind == J_TUPLE || !jv_hashable(&v->u.items[i])) return false;
    return true;
}

static uint64_t jv_hash_number(const jvalue *v) {
    uint64_t bits;
    if (v->kind == J_FLOAT && !(fabs(v->u.f) < 9e18 && (double)(int64_t)v->u.f == v->u.f)) memcpy(&bits, &v->u.f, 8);
    else bits = (uint64_t)(v->kind == J_FLOAT ? (int64_t)v->u.f : v->u.i);
    return (bits ^ bits >> 32) * 0x9e3779b97f4a7c15u;
}

static uint64_t jv_hash(const jvalue *v) {
    if (jv_is_number(v)) return jv_hash_number(v);
    if (v->kind == J_STRING || v->kind == J_BIG) {
        if (!(v->flags & J_MARKED)) return hash_bytes(v->u.s, v->n, 0);
        uint64_t h = 0xcbf29ce484222325u;   /* hash_bytes of what is no mark */
        for (uint32_t i = 0; i < v->n; i++)
            if ((unsigned char)v->u.s[i] != LETTER_MARK) h = (h ^ (unsigned char)v->u.s[i]) * 0x100000001b3u;
        return h ^ (h >> 29);
    }
    uint64_t h = v->kind;
    if (v->kind == J_TUPLE)
        for (uint32_t i = 0; i < v->n; i++) h = h * 31 + (v->u.items[i].kind == J_TUPLE ? 0 : jv_hash(&v->u.items[i]));
    return h * 0x9e3779b97f4a7c15u;
}

static jdict *jdict_open(jinja *j) {
    jdict *d = (jdict *)jinja_alloc(j, sizeof *d);
    if (d) memset(d, 0, sizeof *d);
    return d;
}

/* The pair with this key; n when there is none, then *slot is where its number belongs. Probing is counted as work, so
 * keys that were chosen to collide end in an error. */
static uint32_t jdict_find(jinja *j, const jdict *d, const jvalue *key, uint32_t *slot) {
    if (!d->n_slots) {
        for (uint32_t i = 0; i < d->n; i++) {
            int equal = jv_equal(j, &d->pairs[i].key, key);
            if (equal) return equal == 1 ? i : d->n;
        }
        return d->n;
    }
    if (!jinja_step(j, key->kind == J_STRING ? key->n >> 4 : 1)) return d->n;
    uint32_t mask = d->n_slots - 1;
    for (uint32_t at = (uint32_t)jv_hash(key) & mask;; at = (at + 1) & mask) {
        *slot = at;
        if (!d->slots[at]) return d->n;
        int equal = jv_equal(j, &d->pairs[d->slots[at] - 1].key, key);
        if (equal) return equal == 1 ? d->slots[at] - 1 : d->n;
    }
}

static bool jdict_index(jinja *j, jdict *d) {
    uint32_t  n_slots = d->n_slots ? d->n_slots * 2 : 4 * JDICT_SMALL;
    uint32_t *slots   = (uint32_t *)jinja_alloc(j, n_slots * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0, n_slots * sizeof *slots);
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = (uint32_t)jv_hash(&d->pairs[i].key) & (n_slots - 1);
        while (slots[at]) {
            if (!jinja_step(j, 1)) return false;
            at = (at + 1) & (n_slots - 1);
        }
        slots[at] = i + 1;
    }
    d->slots   = slots;
    d->n_slots = n_slots;
    return true;
}

static bool jdict_set(jinja *j, jdict *d, const jvalue *key, const jvalue *value) {
    uint32_t slot = 0, i = jdict_find(j, d, key, &slot);
    if (j->failed != NOVA_OK) return false;
    if (i < d->n) {
        d->pairs[i].value = *value;
        return true;
    }
    jpair *pairs = (jpair *)jinja_grow(j, d->pairs, d->n, &d->cap, sizeof *pairs);
    if (!pairs) return false;
    d->pairs         = pairs;
    pairs[i].key     = *key;
    pairs[i].value   = *value;
    d->n++;
    if (d->n_slots) d->slots[slot] = d->n;
    if (d->n > JDICT_SMALL && d->n * 2 > d->n_slots) return jdict_index(j, d);
    return true;
}

static bool jdict_set_c(jinja *j, jdict *d, const char *key, jvalue value) {
    jvalue k = jv_c(key);
    return jdict_set(j, d, &k, &value);
}

static const jvalue *jdict_get(jinja *j, const jdict *d, const jvalue *key) {
    uint32_t slot = 0, i = jdict_find(j, d, key, &slot);
    return i < d->n && j->failed == NOVA_OK ? &d->pairs[i].value : NULL;
}

static jvalue jv_dict(const jdict *d) {
    jvalue v = jv_make(J_DICT);
    v.u.dict = d;
    return v;
}

static jvalue jv_view(const jdict *d, jview which) {
    jvalue v = jv_make(J_VIEW);
    v.u.dict = d;
    v.sub    = (uint8_t)which;
    return v;
}

/* ---- Iteration ---- */

static bool jv_is_iterable(const jvalue *v) {
    uint32_t n;
    return v->kind == J_GENERATOR || jv_length(v, &n);
}

static bool jiter_open(jinja *j, jiter *it, const jvalue *v) {
    it->of = *v;
    it->at = 0;
    return jv_is_iterable(v) || jinja_fail_type(j, "iteration", v);
}

/* The i-th item of a dictionary or of a view of it. A pair is a tuple of two where it lies. */
static jvalue jdict_item(const jvalue *of, uint32_t i) {
    const jpair *pair = &of->u.dict->pairs[i];
    if (of->kind == J_VIEW && of->sub == JV_ITEMS) return jv_items(J_TUPLE, &pair->key, 2);
    return of->kind == J_VIEW && of->sub == JV_VALUES ? pair->value : pair->key;
}

static int jiter_next(jinja *j, jiter *it, jvalue *out) {
    if (!jinja_step(j, 1)) return -1;
    const jvalue *of = &it->of;
    switch (of->kind) {
    case J_STRING: {
        if (it->at >= of->n) return 0;
        uint32_t c;
        size_t   n = letter_next(of->u.s + it->at, of->u.s + of->n, &c);
        *out       = jv_string(of->u.s + it->at, n, of->flags & J_MARKED);
        it->at += (uint32_t)n;
        return 1;
    }
    case J_LIST:
    case J_TUPLE:
        if (it->at >= of->n) return 0;
        *out = of->u.items[it->at++];
        return 1;
    case J_DICT:
    case J_VIEW:
        if (it->at >= of->u.dict->n) return 0;
        *out = jdict_item(of, it->at++);
        return 1;
    case J_RANGE:
        if (it->at >= of->u.range->n) return 0;
        *out = jv_int(of->u.range->start + of->u.range->step * it->at++);
        return 1;
    case J_GENERATOR: return of->u.generator->next(j, of->u.generator, out);
    case J_UNDEFINED: return 0;
    default: jinja_fail_type(j, "iteration", of); return -1;
    }
}

static bool jv_to_list(jinja *j, const jvalue *v, jvalue *out) {
    jiter it;
    jlist list;
    if (!jiter_open(j, &it, v)) return false;
    if (v->kind == J_LIST || v->kind == J_TUPLE) {
        *out = jv_items(J_LIST, v->u.items, v->n);
        return true;
    }
    jlist_open(&list, j);
    jvalue item;
    int    got;
    while ((got = jiter_next(j, &it, &item)) == 1)
        if (!jlist_add(&list, item)) return false;
    *out = jlist_close(&list, J_LIST);
    return got == 0;
}

static int jv_contains(jinja *j, const jvalue *container, const jvalue *item) {
    if (container->kind == J_DICT || (container->kind == J_VIEW && container->sub == JV_KEYS)) {
        if (!jv_hashable(item)) return jinja_fail_type(j, "a key", item) ? 1 : -1;
        return jdict_get(j, container->u.dict, item) ? 1 : j->failed == NOVA_OK ? 0 : -1;
    }
    jiter it;
    if (!jiter_open(j, &it, container)) return -1;
    jvalue candidate;
    int    got;
    while ((got = jiter_next(j, &it, &candidate)) == 1) {
        int equal = jv_equal(j, &candidate, item);
        if (equal) return equal;
    }
    return got;
}

/* ---- What is written in C ---- */

static const jnative *jnative_find(const jnative *table, size_t n, str name) {
    for (size_t i = 0; i < n && name.n; i++)
        if (table[i].name[0] == name.p[0] && str_is(name, table[i].name)) return &table[i];
    return NULL;
}

/* The place of a parameter in a list like "a b c"; the number of all of them when it is not there (or for NULL). */
static uint32_t jnative_parameter(const char *list, const jvalue *name) {
    uint32_t i = 0;
    for (const char *p = list; *p; i++) {
        size_t n = strcspn(p, " ");
        if (name && str_eq(jv_str(name), str_of(p, n))) return i;
        p += n;
        p += *p == ' ';
    }
    return i;
}

static bool jnative_call(jinja *j, const jnative *native, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jinja_step(j, 2)) return false;
    if (!native->fn) return jinja_fail(j, "%s is not supported", native->name);
    if (!native->parameters) return native->fn(j, self, a, out);
    jvalue   bound[JINJA_MAX_PARAMETERS];
    uint32_t n = jnative_parameter(native->parameters, NULL);
    if (a->n > n) return jinja_fail(j, "%s takes at most %u arguments, not %u", native->name, n, a->n);
    for (uint32_t i = 0; i < n; i++) bound[i] = i < a->n ? a->given[i] : jv_make(J_MISSING);
    for (uint32_t i = 0; i < a->n_named; i++) {
        uint32_t at = jnative_parameter(native->parameters, &a->named[i].key);
        if (at == n || jv_given(&bound[at]))
            return jinja_fail(j, "%s: argument '%.*s' is %s", native->name, STR_ARG(jv_str(&a->named[i].key)),
                              at == n ? "unknown" : "given twice");
        bound[at] = a->named[i].value;
    }
    for (uint32_t i = 0; i < native->n_required; i++)
        if (!jv_given(&bound[i])) return jinja_fail(j, "%s: argument %u is missing", native->name, i + 1);
    jargs call;
    call.given   = bound;
    call.n       = n;
    call.named   = NULL;
    call.n_named = 0;
    return native->fn(j, self, &call, out);
}

/* ==== src/jinja_print.h ======================================================================================= */

/* Values to text and back: Python's str(), repr(), json.dumps(), int() and float(), whatever the locale is. */
#ifndef NOVA_JINJA_PRINT_H
#define NOVA_JINJA_PRINT_H


#define JFLOAT_TEXT 32

/* repr() of a float: the shortest digits that read back as the same number. Terminated; its length. */
static size_t jfloat_text(char out[JFLOAT_TEXT], double x);
/* printf's `format` ("%.*e", "%.*f" or "%.*g", perhaps with '#') with a point whatever the locale says. */
static size_t jfloat_format(char *out, size_t size, const char *format, int precision, double x);
/* digits[.digits][e[+-]digits], correctly rounded. The caller has checked the form. */
static double jfloat_parse(str digits);
/* float(text) and int(text, base) of Python. False when the text is no number; also for integers beyond 64 bits,
 * then *beyond is set. */
static bool jv_parse_float(str text, double *out);
static bool jv_parse_int(str text, int base, int64_t *out, bool *beyond);

static bool jtext_add_str(jtext *t, const jvalue *v);     /* str(v) */
static bool jtext_add_repr(jtext *t, const jvalue *v);    /* repr(v) */
static bool jv_to_string(jinja *j, const jvalue *v, jvalue *out);   /* str(v), never J_SAFE */
static bool jv_soft_string(jinja *j, const jvalue *v, jvalue *out); /* the same, but a string stays what it is */

typedef struct json_style {
    bool   ascii, sort_keys, lines;
    jvalue indent;           /* with `lines`: a string */
    jvalue comma, colon;     /* strings */
} json_style;

static bool jtext_add_json(jtext *t, const jvalue *v, const json_style *style);

#endif

/* ==== src/jinja_print.c ======================================================================================= */

/* Values to text and back: see jinja_print.h. */

/* ---- Floats ---- */

/* The decimal point of printf is the locale's, up to several bytes: whatever stands between the digits. */
static size_t jfloat_format(char *out, size_t size, const char *format, int precision, double x) {
    int n = snprintf(out, size, format, precision, x);
    if (n < 0 || (size_t)n >= size) return 0;
    char *from = out, *to = out;
    while (*from) {
        bool plain = (*from >= '0' && *from <= '9') || *from == '-' || *from == '+' || (*from | 0x20) == 'e' ||
                     (*from | 0x20) == 'n' || (*from | 0x20) == 'a' || (*from | 0x20) == 'i' || (*from | 0x20) == 'f';
        if (plain) {
            *to++ = *from++;
            continue;
        }
        *to++ = '.';
        while (*from && !(*from >= '0' && *from <= '9') && (*from | 0x20) != 'e') from++;
    }
    *to = 0;
    return (size_t)(to - out);
}

/* strtod's decimal point is the locale's too, so the digits go in as one integer with an exponent. Digits beyond what
 * decides the rounding (767, Steele and White) count only as "not zero". */
static double jfloat_parse(str s) {
    char   buffer[800];
    size_t n = 0, i = 0;
    long   exponent = 0, given = 0;
    bool   point = false, rest = false;
    for (; i < s.n && s.p[i] != 'e' && s.p[i] != 'E'; i++) {
        if (s.p[i] == '.') {
            point = true;
            continue;
        }
        if (n == 0 && s.p[i] == '0') {
            exponent -= point;
        } else if (n < 770) {
            buffer[n++] = s.p[i];
            exponent -= point;
        } else {
            rest |= s.p[i] != '0';
            exponent += !point;
        }
    }
    if (i < s.n) {
        bool negative = s.p[++i] == '-';
        i += s.p[i] == '-' || s.p[i] == '+';
        for (; i < s.n; i++)
            if (given < 1000000) given = given * 10 + (s.p[i] - '0');
        if (negative) given = -given;
    }
    if (!n) return 0;
    if (rest) {
        buffer[n++] = '1';
        exponent--;
    }
    snprintf(buffer + n, sizeof buffer - n, "e%ld", exponent + given);
    return strtod(buffer, NULL);
}

/* Writes digits (without point, no zeros at the end) and the decimal exponent as repr() does. */
static size_t jfloat_layout(char *out, bool negative, const char *digits, size_t n, int exponent) {
    char *p = out;
    if (negative) *p++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *p++ = digits[0];
        if (n > 1) *p++ = '.';
        memcpy(p, digits + 1, n - 1);
        p += n - 1;
        return (size_t)(p - out) + (size_t)snprintf(p, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        memcpy(p, "0.0000", 6);
        p += 1 - exponent;
        memcpy(p, digits, n);
        p += n;
    } else {
        for (size_t i = 0; i <= (size_t)exponent || i < n; i++) {
            *p++ = i < n ? digits[i] : '0';
            if (i == (size_t)exponent) *p++ = '.';
        }
        if (p[-1] == '.') *p++ = '0';
    }
    *p = 0;
    return (size_t)(p - out);
}

static size_t jfloat_text(char out[JFLOAT_TEXT], double x) {
    if (x != x || x - x != 0) {
        const char *name = x != x ? "nan" : x < 0 ? "-inf" : "inf";
        memcpy(out, name, strlen(name) + 1);
        return strlen(name);
    }
    if (x == 0) return jfloat_layout(out, f64_is_negative(x), "0", 1, 0);
    char   digits[24], text[JFLOAT_TEXT];
    size_t n        = 0;
    int    exponent = 0;
    /* Up to 15 digits of a normal number survive the way there and back, so 15 with the zeros dropped are the shortest;
     * 17 always do. */
    for (int precision = fabs(x) < DBL_MIN ? 0 : 14; precision < 17; precision++) {
        jfloat_format(text, sizeof text, "%.*e", precision, fabs(x));
        n = 0;
        const char *p = text;
        for (; *p != 'e'; p++)
            if (*p != '.') digits[n++] = *p;
        exponent = (int)strtol(p + 1, NULL, 10);
        if (jfloat_parse(str_c(text)) == fabs(x)) break;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    return jfloat_layout(out, x < 0, digits, n, exponent);
}

/* ---- Numbers from text ---- */

static str str_strip(str s) {
    uint32_t c;
    while (s.n) {
        size_t n = letter_next(s.p, s.p + s.n, &c);
        if (!letter_is_space(c)) break;
        s = str_of(s.p + n, s.n - n);
    }
    while (s.n) {
        size_t n = letter_last(s.p, s.p + s.n, &c);
        if (!letter_is_space(c)) break;
        s.n -= n;
    }
    return s;
}

/* Digits with single underscores between them: their number, 0 when there are none or an underscore stands wrong.
 * Copies them to `out` when it is given. */
static size_t digits_length(str s, size_t at, char *out, size_t *n_out) {
    size_t i = at;
    while (i < s.n) {
        if (s.p[i] == '_' && i > at && s.p[i - 1] != '_' && i + 1 < s.n && s.p[i + 1] >= '0' && s.p[i + 1] <= '9') {
            i++;
            continue;
        }
        if (s.p[i] < '0' || s.p[i] > '9') break;
        if (out) out[(*n_out)++] = s.p[i];
        i++;
    }
    return i - at;
}

static bool str_is_word(str s, const char *word) {
    size_t n = strlen(word);
    if (s.n != n) return false;
    for (size_t i = 0; i < n; i++)
        if ((s.p[i] | 0x20) != word[i]) return false;
    return true;
}

static bool jv_parse_float(str text, double *out) {
    str  s        = str_strip(text);
    bool negative = s.n && s.p[0] == '-';
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) s = str_of(s.p + 1, s.n - 1);
    double x = 0;
    if (str_is_word(s, "inf") || str_is_word(s, "infinity")) {
        x = HUGE_VAL;
    } else if (str_is_word(s, "nan")) {
        x = NAN;
    } else {
        char   clean[1024];   /* nobody's number is longer */
        size_t n = 0, whole, part = 0;
        if (s.n + 1 > sizeof clean) return false;
        whole    = digits_length(s, 0, clean, &n);
        size_t i = whole;
        if (i < s.n && s.p[i] == '.') {
            clean[n++] = '.';
            part       = digits_length(s, ++i, clean, &n);
            i += part;
        }
        if (whole + part == 0) return false;
        if (i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
            clean[n++] = 'e';
            i++;
            if (i < s.n && (s.p[i] == '-' || s.p[i] == '+')) clean[n++] = s.p[i++];
            size_t power = digits_length(s, i, clean, &n);
            if (!power) return false;
            i += power;
        }
        if (i != s.n) return false;
        x = jfloat_parse(str_of(clean, n));
    }
    *out = negative ? -x : x;
    return true;
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'z') return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
    return 99;
}

/* The base that a prefix like "0x" names, or 0. */
static int prefix_base(str s) {
    if (s.n < 2 || s.p[0] != '0') return 0;
    switch (s.p[1] | 0x20) {
    case 'x': return 16;
    case 'o': return 8;
    case 'b': return 2;
    default: return 0;
    }
}

static bool jv_parse_int(str text, int base, int64_t *out, bool *beyond) {
    str  s        = str_strip(text);
    bool negative = s.n && s.p[0] == '-', zeros = true;
    *beyond       = false;
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) s = str_of(s.p + 1, s.n - 1);
    int  prefix = prefix_base(s);
    bool any    = base == 0;
    if (any) base = prefix ? prefix : 10;
    bool after_prefix = prefix && prefix == base;
    if (after_prefix) s = str_of(s.p + 2, s.n - 2);
    uint64_t x = 0, most = negative ? (uint64_t)1 << 63 : INT64_MAX;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '_' && (i > 0 || after_prefix) && i + 1 < s.n && s.p[i + 1] != '_') continue;
        int d = digit_value(s.p[i]);
        if (d >= base) return false;
        if (x > (most - (uint64_t)d) / (uint64_t)base) *beyond = true;
        else x = x * (uint64_t)base + (uint64_t)d;
        zeros = zeros && d == 0;
    }
    if (!s.n || (any && !prefix && s.p[0] == '0' && !zeros)) return false;
    *out = negative ? (int64_t)(0 - x) : (int64_t)x;
    return !*beyond;
}

/* ---- str() and repr() ---- */

static bool jtext_add_quoted(jtext *t, const jvalue *v) {
    bool        single = v->n && memchr(v->u.s, '\'', v->n), both = single && memchr(v->u.s, '"', v->n);
    char        quote  = single && !both ? '"' : '\'', escape[12];
    const char *end    = v->u.s + v->n;
    if (!jinja_step(t->j, v->n >> 3)) return false;
    t->flags |= v->flags & J_MARKED;
    jtext_add(t, &quote, 1);
    for (const char *p = v->u.s; p < end;) {
        uint32_t c;
        size_t   n = letter_next(p, end, &c);
        escape[0]  = '\\';
        escape[2]  = 0;
        if (c == '\n') escape[1] = 'n';
        else if (c == '\r') escape[1] = 'r';
        else if (c == '\t') escape[1] = 't';
        else if (c == '\\' || c == (uint32_t)(unsigned char)quote) escape[1] = (char)c;
        else if (letter_is_printable(c)) escape[0] = 0;
        else if (c < 0x100) snprintf(escape, sizeof escape, "\\x%02x", c);
        else snprintf(escape, sizeof escape, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        if (!escape[0]) jtext_add(t, p, n);
        else jtext_add_c(t, escape);
        p += n;
    }
    return jtext_add(t, &quote, 1);
}

static bool jtext_add_integer(jtext *t, int64_t i) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)i);
    return jtext_add_c(t, text);
}

static bool jtext_add_items(jtext *t, const char *open, const jvalue *items, uint32_t n, const char *close) {
    if (!jinja_enter(t->j)) return false;
    jtext_add_c(t, open);
    for (uint32_t i = 0; i < n; i++) {
        if (i) jtext_add_c(t, ", ");
        if (!jtext_add_repr(t, &items[i])) break;
    }
    jinja_leave(t->j);
    return jtext_add_c(t, close);
}

static bool jtext_add_dict(jtext *t, const jdict *d) {
    if (!jinja_enter(t->j)) return false;
    jtext_add_c(t, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) jtext_add_c(t, ", ");
        jtext_add_repr(t, &d->pairs[i].key);
        jtext_add_c(t, ": ");
        if (!jtext_add_repr(t, &d->pairs[i].value)) break;
    }
    jinja_leave(t->j);
    return jtext_add_c(t, "}");
}

static bool jtext_add_view(jtext *t, const jvalue *v) {
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    jvalue list;
    return jv_to_list(t->j, v, &list) && jtext_add_items(t, names[v->sub], list.u.items, list.n, "])");
}

static bool jtext_add_range(jtext *t, const jrange *r) {
    jtext_add_c(t, "range(");
    jtext_add_integer(t, r->start);
    jtext_add_c(t, ", ");
    jtext_add_integer(t, r->stop);
    if (r->step != 1) {
        jtext_add_c(t, ", ");
        jtext_add_integer(t, r->step);
    }
    return jtext_add_c(t, ")");
}

static bool jtext_add_repr(jtext *t, const jvalue *v) {
    char number[JFLOAT_TEXT];
    if (!jinja_step(t->j, 4)) return false;
    switch (v->kind) {
    case J_UNDEFINED: return jtext_add_c(t, "Undefined");
    case J_NONE: return jtext_add_c(t, "None");
    case J_BOOL: return jtext_add_c(t, v->u.i ? "True" : "False");
    case J_INT: return jtext_add_integer(t, v->u.i);
    case J_BIG: return jtext_add(t, v->u.s, v->n);
    case J_FLOAT: return jinja_step(t->j, 40) && jtext_add(t, number, jfloat_text(number, v->u.f));
    case J_STRING:
        if (!(v->flags & J_SAFE)) return jtext_add_quoted(t, v);
        return jtext_add_c(t, "Markup(") && jtext_add_quoted(t, v) && jtext_add_c(t, ")");
    case J_LIST: return jtext_add_items(t, "[", v->u.items, v->n, "]");
    case J_TUPLE: return jtext_add_items(t, "(", v->u.items, v->n, v->n == 1 ? ",)" : ")");
    case J_DICT: return jtext_add_dict(t, v->u.dict);
    case J_VIEW: return jtext_add_view(t, v);
    case J_RANGE: return jtext_add_range(t, v->u.range);
    case J_NAMESPACE:
        return jtext_add_c(t, "<Namespace ") && jtext_add_dict(t, v->u.space->attributes) && jtext_add_c(t, ">");
    case J_METHOD:
        return jtext_add_c(t, "<built-in method ") && jtext_add_c(t, v->u.method->native->name) && jtext_add_c(t, ">");
    case J_FUNCTION:
        return jtext_add_c(t, "<function ") && jtext_add_c(t, v->u.native->name) && jtext_add_c(t, ">");
    case J_MACRO:
        if (!jv_is_string(&v->u.macro->name)) return jtext_add_c(t, "<Macro anonymous>");
        return jtext_add_c(t, "<Macro ") && jtext_add_quoted(t, &v->u.macro->name) && jtext_add_c(t, ">");
    default: return jtext_add_c(t, "<") && jtext_add_c(t, jv_type(v)) && jtext_add_c(t, " object>");
    }
}

static bool jtext_add_str(jtext *t, const jvalue *v) {
    if (v->kind == J_STRING) return jtext_add_string(t, v);
    if (v->kind == J_UNDEFINED) return t->j->failed == NOVA_OK;
    return jtext_add_repr(t, v);
}

static bool jv_to_string(jinja *j, const jvalue *v, jvalue *out) {
    if (v->kind == J_STRING) {
        *out       = *v;
        out->flags = v->flags & J_MARKED;
        return true;
    }
    jtext t;
    jtext_open(&t, j);
    return jtext_add_str(&t, v) && jtext_close(&t, out);
}

static bool jv_soft_string(jinja *j, const jvalue *v, jvalue *out) {
    if (v->kind != J_STRING) return jv_to_string(j, v, out);
    *out = *v;
    return true;
}

/* ---- JSON, as json.dumps writes it ---- */

static bool jtext_add_json_string(jtext *t, const jvalue *v, bool ascii) {
    const char *end = v->u.s + v->n, *plain = v->u.s;
    char        escape[16];
    if (!jinja_step(t->j, v->n >> (ascii ? 3 : 4))) return false;
    t->flags |= v->flags & J_MARKED;
    jtext_add(t, "\"", 1);
    for (const char *p = v->u.s; p < end;) {
        unsigned char b = (unsigned char)*p;
        uint32_t      c = b;
        size_t        n = 1;
        if (b != '"' && b != '\\' && b >= 0x20 && (b < 0x80 || b == LETTER_MARK || !ascii)) {
            p++;
            continue;
        }
        if (b >= 0x80) n = letter_next(p, end, &c);
        jtext_add(t, plain, (size_t)(p - plain));
        const char *letters = "\"\"\\\\\bb\ff\nn\rr\tt";
        while (*letters && (unsigned char)letters[0] != c) letters += 2;
        if (*letters) snprintf(escape, sizeof escape, "\\%c", letters[1]);
        else if (c < 0x10000) snprintf(escape, sizeof escape, "\\u%04x", c);
        else snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
        jtext_add_c(t, escape);
        p += n;
        plain = p;
    }
    jtext_add(t, plain, (size_t)(end - plain));
    return jtext_add(t, "\"", 1);
}

static bool jtext_add_json_float(jtext *t, double f) {
    char text[JFLOAT_TEXT];
    if (f != f) return jtext_add_c(t, "NaN");
    if (f - f != 0) return jtext_add_c(t, f < 0 ? "-Infinity" : "Infinity");
    return jinja_step(t->j, 40) && jtext_add(t, text, jfloat_text(text, f));
}

static bool jtext_add_json_scalar(jtext *t, const jvalue *v, bool ascii) {
    switch (v->kind) {
    case J_NONE: return jtext_add_c(t, "null");
    case J_BOOL: return jtext_add_c(t, v->u.i ? "true" : "false");
    case J_INT: return jtext_add_integer(t, v->u.i);
    case J_BIG: return jtext_add(t, v->u.s, v->n);
    case J_FLOAT: return jtext_add_json_float(t, v->u.f);
    case J_STRING: return jtext_add_json_string(t, v, ascii);
    default: return jinja_fail_type(t->j, "JSON", v);
    }
}

static bool jtext_add_json_key(jtext *t, const jvalue *key, bool ascii) {
    if (key->kind == J_STRING) return jtext_add_json_string(t, key, ascii);
    jtext_add(t, "\"", 1);
    return jtext_add_json_scalar(t, key, ascii) && jtext_add(t, "\"", 1);
}

static void jtext_add_json_line(jtext *t, const json_style *style, uint32_t level) {
    if (!style->lines) return;
    jtext_add(t, "\n", 1);
    for (uint32_t i = 0; i < level; i++) jtext_add_string(t, &style->indent);
}

/* `level` of nesting; a list's items are pairs without keys. */
static bool jtext_add_json_at(jtext *t, const jvalue *v, const json_style *style, uint32_t level) {
    bool dict = v->kind == J_DICT;
    if (!dict && !jv_is_array(v)) return jtext_add_json_scalar(t, v, style->ascii);
    uint32_t     n     = dict ? v->u.dict->n : v->n;
    const jpair *pairs = dict ? v->u.dict->pairs : NULL;
    if (n == 0) return jtext_add_c(t, dict ? "{}" : "[]");
    if (dict && style->sort_keys) {
        jpair *sorted = (jpair *)jinja_alloc(t->j, n * sizeof *sorted);
        if (!sorted) return false;
        memcpy(sorted, pairs, n * sizeof *sorted);
        if (!jpair_sort(t->j, sorted, n, false)) return false;
        pairs = sorted;
    }
    if (!jinja_enter(t->j)) return false;
    jtext_add_c(t, dict ? "{" : "[");
    for (uint32_t i = 0; i < n && jinja_step(t->j, 2); i++) {
        if (i) jtext_add_string(t, &style->comma);
        jtext_add_json_line(t, style, level + 1);
        if (dict) {
            jtext_add_json_key(t, &pairs[i].key, style->ascii);
            jtext_add_string(t, &style->colon);
        }
        jtext_add_json_at(t, dict ? &pairs[i].value : &v->u.items[i], style, level + 1);
    }
    jtext_add_json_line(t, style, level);
    jinja_leave(t->j);
    return jtext_add_c(t, dict ? "}" : "]");
}

static bool jtext_add_json(jtext *t, const jvalue *v, const json_style *style) {
    return jtext_add_json_at(t, v, style, 0);
}

/* ==== src/json.h ============================================================================================== */

/* JSON text (RFC 8259) to template values: objects become dictionaries in their order, numbers as Python reads them. */
#ifndef NOVA_JSON_H
#define NOVA_JSON_H


/* Reads one value from `text`, which `what` names in errors (ARGUMENT: what, where, why). With `marks`, everything that
 * would be parsed as a control token is marked in all strings, keys included. */
static bool json_read(jinja *j, const char *what, str text, const tokenizer *marks, jvalue *out);
/* Any bytes as a string, marked likewise. */
static bool json_string(jinja *j, str bytes, const tokenizer *marks, jvalue *out);

#endif

/* ==== src/json.c ============================================================================================== */

/* JSON text to template values: see json.h. */


typedef struct json_reader {
    jinja           *j;
    const char      *what;
    str              text;
    size_t           at;
    const tokenizer *marks;
} json_reader;

static bool json_fail(json_reader *r, const char *why) {
    jinja *j = r->j;
    if (j->failed == NOVA_OK)
        j->failed = fail(j->error, NOVA_ERROR_ARGUMENT, "%s, byte %zu: %s", r->what, r->at, why);
    return false;
}

static char json_peek(const json_reader *r) { return r->at < r->text.n ? r->text.p[r->at] : 0; }

static char json_skip_blanks(json_reader *r) {
    while (r->at < r->text.n && memchr(" \t\n\r", r->text.p[r->at], 4)) r->at++;
    return json_peek(r);
}

static bool json_string(jinja *j, str bytes, const tokenizer *marks, jvalue *out) {
    if (!jinja_import(j, bytes.p, bytes.n, out)) return false;
    if (!marks || !out->n) return true;
    text_buffer marked;
    text_init(&marked, &j->counted, 0);
    bool ok = jinja_step(j, out->n >> 3);
    if (ok && !tokenizer_mark(marks, jv_str(out), &marked)) ok = jinja_fail_memory(j);
    if (ok && marked.n != out->n) {
        const char *copy;
        ok   = jinja_copy(j, marked.p, marked.n, &copy);
        *out = ok ? jv_string(copy, marked.n, 0) : jv_none();
    }
    out->flags = J_MARKED;   /* also without a mark, so that it is known for the conversation's own */
    text_free(&marked);
    return ok;
}

/* ---- Strings ---- */

static bool json_hex4(json_reader *r, uint32_t *out) {
    uint32_t c = 0;
    for (int i = 0; i < 4; i++) {
        char     b = json_peek(r);
        uint32_t d = b >= '0' && b <= '9' ? (uint32_t)(b - '0') : (b | 0x20) >= 'a' && (b | 0x20) <= 'f'
                         ? (uint32_t)((b | 0x20) - 'a' + 10) : 16;
        if (d == 16) return json_fail(r, "\\u needs four hexadecimal digits");
        c = c << 4 | d;
        r->at++;
    }
    *out = c;
    return true;
}

/* Behind "\u". Two surrogates are one character; a lone one is none. */
static bool json_unicode(json_reader *r, jtext *t) {
    uint32_t c, low;
    if (!json_hex4(r, &c)) return false;
    size_t after = r->at;
    bool two = c >= 0xD800 && c <= 0xDBFF && r->text.n - r->at >= 6;
    if (two && r->text.p[r->at] == '\\' && r->text.p[r->at + 1] == 'u') {
        r->at += 2;
        if (!json_hex4(r, &low)) return false;
        if (low >= 0xDC00 && low <= 0xDFFF) c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        else r->at = after;
    }
    return jtext_add_char(t, c);
}

static bool json_escape(json_reader *r, jtext *t) {
    char        b    = json_peek(r);
    const char *pair = "\"\"\\\\//b\bf\fn\nr\rt\t";
    r->at++;
    if (b == 'u') return json_unicode(r, t);
    while (*pair && *pair != b) pair += 2;
    if (!*pair || !b) return json_fail(r, "an unknown escape in a string");
    return jtext_add(t, pair + 1, 1);
}

static bool json_read_string(json_reader *r, jvalue *out) {
    size_t start = ++r->at;
    jtext  t;
    bool   escaped = false;
    jtext_open(&t, r->j);
    while (r->at < r->text.n && r->text.p[r->at] != '"') {
        if ((unsigned char)r->text.p[r->at] < 0x20) return json_fail(r, "a control character in a string");
        if (r->text.p[r->at] != '\\') {
            r->at++;
            continue;
        }
        escaped = true;
        if (!jtext_add(&t, r->text.p + start, r->at - start)) return false;
        r->at++;
        if (!json_escape(r, &t)) return false;
        start = r->at;
    }
    if (r->at >= r->text.n) return json_fail(r, "a string does not end");
    str bytes = str_of(r->text.p + start, r->at - start);
    r->at++;
    if (escaped) {
        jvalue text;
        if (!jtext_add(&t, bytes.p, bytes.n) || !jtext_close(&t, &text)) return false;
        bytes = jv_str(&text);
    }
    return json_string(r->j, bytes, r->marks, out);
}

/* ---- Numbers ---- */

static size_t json_digits(json_reader *r) {
    size_t start = r->at;
    while (json_peek(r) >= '0' && json_peek(r) <= '9') r->at++;
    return r->at - start;
}

static bool json_read_number(json_reader *r, jvalue *out) {
    size_t start = r->at, whole;
    bool   real = false, beyond;
    r->at += json_peek(r) == '-';
    size_t first = r->at;
    whole        = json_digits(r);
    if (!whole || (whole > 1 && r->text.p[first] == '0')) return json_fail(r, "no value, or a number starts wrongly");
    if (json_peek(r) == '.') {
        real = true;
        r->at++;
        if (!json_digits(r)) return json_fail(r, "a number has no digits behind its point");
    }
    if ((json_peek(r) | 0x20) == 'e') {
        real = true;
        r->at++;
        r->at += json_peek(r) == '-' || json_peek(r) == '+';
        if (!json_digits(r)) return json_fail(r, "a number has no digits in its exponent");
    }
    str text = str_of(r->text.p + start, r->at - start), digits = str_of(r->text.p + first, r->at - first);
    if (!jinja_step(r->j, 4 + (text.n >> 4))) return false;
    if (real) {
        double x = jfloat_parse(digits);
        *out     = jv_float(first > start ? -x : x);
        return true;
    }
    *out = jv_int(0);
    if (!jv_parse_int(text, 10, &out->u.i, &beyond)) {
        *out      = jv_string(text.p, text.n, 0);
        out->kind = J_BIG;
    }
    return true;
}

/* ---- Arrays and objects ---- */

static bool json_read_value(json_reader *r, uint32_t depth, jvalue *out);

static bool json_read_array(json_reader *r, uint32_t depth, jvalue *out) {
    jlist  list;
    jvalue item;
    jlist_open(&list, r->j);
    r->at++;
    if (json_skip_blanks(r) != ']') {
        for (;;) {
            if (!json_read_value(r, depth, &item) || !jlist_add(&list, item)) return false;
            if (json_skip_blanks(r) != ',') break;
            r->at++;
        }
    }
    if (json_peek(r) != ']') return json_fail(r, "expected ',' or ']'");
    r->at++;
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool json_read_object(json_reader *r, uint32_t depth, jvalue *out) {
    jdict *dict = jdict_open(r->j);
    jvalue key, value;
    if (!dict) return false;
    r->at++;
    if (json_skip_blanks(r) != '}') {
        for (;;) {
            if (json_skip_blanks(r) != '"') return json_fail(r, "expected '\"' before a key");
            if (!json_read_string(r, &key)) return false;
            if (json_skip_blanks(r) != ':') return json_fail(r, "expected ':' behind a key");
            r->at++;
            if (!json_read_value(r, depth, &value) || !jdict_set(r->j, dict, &key, &value)) return false;
            if (json_skip_blanks(r) != ',') break;
            r->at++;
        }
    }
    if (json_peek(r) != '}') return json_fail(r, "expected ',' or '}'");
    r->at++;
    *out = jv_dict(dict);
    return true;
}

static bool json_read_word(json_reader *r, jvalue *out) {
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t n = strlen(words[i]);
        if (r->text.n - r->at < n || memcmp(r->text.p + r->at, words[i], n) != 0) continue;
        r->at += n;
        *out = i == 0 ? jv_none() : jv_bool(i == 1);
        return true;
    }
    return json_fail(r, "no such word");
}

static bool json_read_value(json_reader *r, uint32_t depth, jvalue *out) {
    if (!jinja_step(r->j, 1)) return false;
    if (depth >= JINJA_MAX_NEST) return json_fail(r, "nested too deeply");
    char c = json_skip_blanks(r);
    if (c == '"') return json_read_string(r, out);
    if (c == '[') return json_read_array(r, depth + 1, out);
    if (c == '{') return json_read_object(r, depth + 1, out);
    if (c >= 'a' && c <= 'z') return json_read_word(r, out);
    return json_read_number(r, out);
}

static bool json_read(jinja *j, const char *what, str text, const tokenizer *marks, jvalue *out) {
    json_reader r;
    r.j     = j;
    r.what  = what;
    r.text  = text;
    r.at    = 0;
    r.marks = marks;
    if (text.n > JINJA_MAX_BYTES) return json_fail(&r, "too long");
    if (!jinja_step(j, text.n >> 5) || !json_read_value(&r, 0, out)) return false;
    json_skip_blanks(&r);
    return r.at == text.n || json_fail(&r, "something stands behind the value");
}

/* ==== src/jinja_text.h ======================================================================================== */

/* Strings in templates: finding, splitting, stripping, replacing, slicing, changing case, padding.
 *
 * What comes from a J_SAFE string is J_SAFE, as with Python's Markup. Marks count for nothing on either side of a
 * comparison, and stay with their characters. */
#ifndef NOVA_JINJA_TEXT_H
#define NOVA_JINJA_TEXT_H


/* The first (or last) occurrence of `what` in bytes [from, to) of `in`: its place and length, both in bytes of `in`.
 * 1 found, 0 not, -1 failed. */
static int text_find(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at, size_t *n);
static int text_find_last(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at,
                          size_t *n);
/* Does `s` start (or end) with `what`? Then the length of that in bytes, else SIZE_MAX. */
static size_t text_starts(const jvalue *s, const jvalue *what);
static size_t text_ends(const jvalue *s, const jvalue *what);
/* Bytes [from, to) of s as a string of the same flags. */
static jvalue text_part(const jvalue *s, size_t from, size_t to);
static size_t text_offset(const jvalue *s, size_t characters);   /* of a character, in bytes; n behind the end */

enum { TEXT_LEFT = 1, TEXT_RIGHT = 2 };

/* Without blanks (`characters` NULL) or the given characters at its ends. */
static bool text_strip(jinja *j, const jvalue *s, const jvalue *characters, int sides, jvalue *out);
/* str.split and str.rsplit; `by` NULL: at blanks; `most` splits, or all for less than 0. */
static bool text_split(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out);
static bool text_split_right(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out);
/* Lines as str.splitlines() parts them. */
static bool text_lines(jinja *j, const jvalue *s, bool keep_ends, jvalue *out);
static bool text_replace(jinja *j, const jvalue *s, const jvalue *from, const jvalue *to, int64_t most, jvalue *out);
static bool text_convert(jinja *j, const jvalue *s, letter_case to, jvalue *out);
static bool text_swap_case(jinja *j, const jvalue *s, jvalue *out);
static bool text_capitalize(jinja *j, const jvalue *s, jvalue *out);
/* `left` and `right` copies of `fill` around s. */
static bool text_pad(jinja *j, const jvalue *s, int64_t left, int64_t right, uint32_t fill, jvalue *out);
static bool text_repeat(jinja *j, const jvalue *s, int64_t times, jvalue *out);
/* & < > ' " as HTML's entities; the result is J_SAFE, what is J_SAFE already stays as it is. */
static bool text_escape(jinja *j, const jvalue *v, jvalue *out);
/* `count` characters from `start` on, `step` apart, as jslice_range gives them. */
static bool text_slice(jinja *j, const jvalue *s, int64_t start, int64_t step, int64_t count, jvalue *out);

/* What [a:b:c] takes of `length` items: the first index and how many. Missing and none are the defaults. */
static bool jslice_range(jinja *j, const jvalue bounds[3], int64_t length, int64_t *start, int64_t *step,
                         int64_t *count);

#endif

/* ==== src/jinja_text.c ======================================================================================== */

/* Strings in templates: see jinja_text.h. */

static jvalue text_part(const jvalue *s, size_t from, size_t to) {
    return jv_string(s->u.s + from, to - from, s->flags & (J_SAFE | J_MARKED));
}

static size_t text_offset(const jvalue *s, size_t characters) {
    size_t at = 0;
    for (; at < s->n; at++) {
        unsigned char b = (unsigned char)s->u.s[at];
        if ((b & 0xC0) == 0x80 || b == LETTER_MARK) continue;   /* within a character */
        if (characters-- == 0) break;
    }
    return at;
}

/* ---- Finding ---- */

/* The bytes from `at` on that are `what` when marks are left out on both sides; SIZE_MAX when they are not. */
static size_t text_match(const jvalue *in, size_t at, size_t to, const jvalue *what) {
    if (!((in->flags | what->flags) & J_MARKED)) {
        if (to - at < what->n) return SIZE_MAX;
        return what->n == 0 || memcmp(in->u.s + at, what->u.s, what->n) == 0 ? what->n : SIZE_MAX;
    }
    size_t i = at;
    for (size_t k = 0; k < what->n; k++) {
        if ((unsigned char)what->u.s[k] == LETTER_MARK) continue;
        while (i < to && (unsigned char)in->u.s[i] == LETTER_MARK) i++;
        if (i == to || in->u.s[i] != what->u.s[k]) return SIZE_MAX;
        i++;
    }
    while (i < to && what->n && (unsigned char)in->u.s[i] == LETTER_MARK) i++;   /* a mark stays with its character */
    return i - at;
}

/* What one try costs, in steps. */
static size_t text_try_cost(const jvalue *in, const jvalue *what) {
    return (what->n >> ((in->flags | what->flags) & J_MARKED ? 3 : 6)) + 1;
}

static int text_find(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at, size_t *n) {
    size_t cost = text_try_cost(in, what), i = from;
    while (i <= to) {
        if (what->n) {   /* marks never come first */
            const char *next = i < to ? (const char *)memchr(in->u.s + i, what->u.s[0], to - i) : NULL;
            size_t      skip = next ? (size_t)(next - in->u.s) - i : to - i;
            if (!jinja_step(j, skip >> 6)) return -1;
            if (!next) return 0;
            i += skip;
        }
        if (!jinja_step(j, cost)) return -1;
        *n  = text_match(in, i, to, what);
        *at = i;
        if (*n != SIZE_MAX) return 1;
        i++;
    }
    return 0;
}

static int text_find_last(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at,
                          size_t *n) {
    size_t cost = text_try_cost(in, what);
    if (from > to) return 0;
    for (size_t i = to + 1; i-- > from;) {
        if (what->n && (i == to || in->u.s[i] != what->u.s[0])) {
            if ((i & 15) == 0 && !jinja_step(j, 1)) return -1;
            continue;
        }
        if (!jinja_step(j, cost)) return -1;
        *n  = text_match(in, i, to, what);
        *at = i;
        if (*n != SIZE_MAX) return 1;
    }
    return 0;
}

static size_t text_starts(const jvalue *s, const jvalue *what) { return text_match(s, 0, s->n, what); }

static size_t text_ends(const jvalue *s, const jvalue *what) {
    if (!((s->flags | what->flags) & J_MARKED)) {
        return s->n >= what->n && text_match(s, s->n - what->n, s->n, what) != SIZE_MAX ? what->n : SIZE_MAX;
    }
    size_t i = s->n, k = what->n;
    while (k > 0) {
        k--;
        if ((unsigned char)what->u.s[k] == LETTER_MARK) continue;
        while (i > 0 && (unsigned char)s->u.s[i - 1] == LETTER_MARK) i--;
        if (i == 0 || s->u.s[i - 1] != what->u.s[k]) return SIZE_MAX;
        i--;
    }
    return s->n - i;
}

/* ---- Stripping ---- */

static bool text_is_stripped(uint32_t c, const jvalue *characters) {
    if (!characters) return letter_is_space(c);
    for (size_t i = 0; i < characters->n;) {
        uint32_t other;
        i += letter_next(characters->u.s + i, characters->u.s + characters->n, &other);
        if (c == other) return true;
    }
    return false;
}

static bool text_strip(jinja *j, const jvalue *s, const jvalue *characters, int sides, jvalue *out) {
    const char *p = s->u.s, *end = p + s->n;
    size_t      cost = characters ? 1 + (characters->n >> 3) : 1, tries = 0;
    uint32_t    c;
    while ((sides & TEXT_LEFT) && p < end) {
        size_t n = letter_next(p, end, &c);
        if (!text_is_stripped(c, characters)) break;
        p += n;
        if ((++tries & 1) == 0 && !jinja_step(j, cost)) return false;
    }
    while ((sides & TEXT_RIGHT) && p < end) {
        size_t n = letter_last(p, end, &c);
        if (!text_is_stripped(c, characters)) break;
        end -= n;
        if ((++tries & 1) == 0 && !jinja_step(j, cost)) return false;
    }
    *out = text_part(s, (size_t)(p - s->u.s), (size_t)(end - s->u.s));
    return true;
}

/* ---- Splitting ---- */

static bool text_split_blanks(jinja *j, const jvalue *s, int64_t most, jvalue *out) {
    jlist list;
    jlist_open(&list, j);
    jvalue rest;
    if (!text_strip(j, s, NULL, TEXT_LEFT, &rest) || !jinja_step(j, s->n >> 4)) return false;
    while (rest.n) {
        size_t   end = 0;
        uint32_t c;
        if (most >= 0 && list.n >= (uint64_t)most) {   /* the rest, with its blanks behind */
            if (!jlist_add(&list, rest)) return false;
            break;
        }
        while (end < rest.n) {
            size_t n = letter_next(rest.u.s + end, rest.u.s + rest.n, &c);
            if (letter_is_space(c)) break;
            end += n;
        }
        if (!jlist_add(&list, text_part(&rest, 0, end))) return false;
        jvalue behind = text_part(&rest, end, rest.n);
        if (!text_strip(j, &behind, NULL, TEXT_LEFT, &rest)) return false;
    }
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool text_split(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out) {
    if (!by) return text_split_blanks(j, s, most, out);
    if (!by->n) return jinja_fail(j, "split: the separator is empty");
    jlist  list;
    size_t from = 0, at, n;
    int    found = 0;
    jlist_open(&list, j);
    while ((most < 0 || list.n < (uint64_t)most) && (found = text_find(j, s, from, s->n, by, &at, &n)) == 1) {
        if (!jlist_add(&list, text_part(s, from, at))) return false;
        from = at + n;
    }
    if (found < 0 || !jlist_add(&list, text_part(s, from, s->n))) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

static void jlist_reverse(jlist *list) {
    for (uint32_t i = 0; i + 1 < list->n - i; i++) {
        jvalue swap                 = list->items[i];
        list->items[i]              = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
}

static bool text_split_right_blanks(jinja *j, const jvalue *s, int64_t most, jvalue *out) {
    jlist list;
    jlist_open(&list, j);
    jvalue rest;
    if (!text_strip(j, s, NULL, TEXT_RIGHT, &rest) || !jinja_step(j, s->n >> 4)) return false;
    while (rest.n) {
        size_t   start = rest.n;
        uint32_t c;
        if (list.n >= (uint64_t)most) {   /* the rest, with its blanks in front */
            if (!jlist_add(&list, rest)) return false;
            break;
        }
        while (start > 0) {
            size_t n = letter_last(rest.u.s, rest.u.s + start, &c);
            if (letter_is_space(c)) break;
            start -= n;
        }
        if (!jlist_add(&list, text_part(&rest, start, rest.n))) return false;
        jvalue before = text_part(&rest, 0, start);
        if (!text_strip(j, &before, NULL, TEXT_RIGHT, &rest)) return false;
    }
    jlist_reverse(&list);
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool text_split_right(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out) {
    if (most < 0) return text_split(j, s, by, most, out);
    if (!by) return text_split_right_blanks(j, s, most, out);
    if (!by->n) return jinja_fail(j, "rsplit: the separator is empty");
    jlist  list;
    size_t to = s->n, at, n;
    int    found = 0;
    jlist_open(&list, j);
    while (list.n < (uint64_t)most && (found = text_find_last(j, s, 0, to, by, &at, &n)) == 1) {
        if (!jlist_add(&list, text_part(s, at + n, to))) return false;
        to = at;
    }
    if (found < 0 || !jlist_add(&list, text_part(s, 0, to))) return false;
    jlist_reverse(&list);
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool letter_is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static bool text_lines(jinja *j, const jvalue *s, bool keep_ends, jvalue *out) {
    jlist  list;
    size_t start = 0;
    jlist_open(&list, j);
    if (!jinja_step(j, s->n >> 3)) return false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        size_t   n = letter_next(s->u.s + i, s->u.s + s->n, &c);
        i += n;
        if (!letter_is_line_end(c)) continue;
        size_t end = i - n;
        if (c == '\r' && i < s->n && s->u.s[i] == '\n') i++;
        if (!jlist_add(&list, text_part(s, start, keep_ends ? i : end))) return false;
        start = i;
    }
    if (start < s->n && !jlist_add(&list, text_part(s, start, s->n))) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

/* ---- Making new strings ---- */

static bool text_close(jtext *t, const jvalue *like, jvalue *out) {
    if (!jtext_close(t, out)) return false;
    out->flags |= like->flags & J_SAFE;
    return true;
}

/* What a template puts into the conversation's text must not make a control token with what follows ("&lt;" to "<"): a
 * mark at its end. A whole token stays one. */
static bool text_ends_with_mark(const jinja *j, const jvalue *s, const jvalue *to) {
    for (size_t i = 0; (s->flags & J_MARKED) && i < to->n; i++)
        if ((unsigned char)to->u.s[i] < sizeof j->begins && j->begins[(unsigned char)to->u.s[i]]) return true;
    return false;
}

static bool text_replace(jinja *j, const jvalue *s, const jvalue *from, const jvalue *to, int64_t most, jvalue *out) {
    jtext  t;
    size_t start = 0, search = 0, at = 0, n = 0;
    int    found = 0;
    bool   mark  = text_ends_with_mark(j, s, to);
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    for (int64_t count = 0; most < 0 || count < most; count++) {
        found = text_find(j, s, search, s->n, from, &at, &n);
        if (found != 1) break;
        jtext_add(&t, s->u.s + start, at - start);
        if (!jtext_add_string(&t, to) || (mark && !jtext_add(&t, "\xFF", 1))) return false;
        start = at + n;
        if (from->n) {
            search = start;
        } else {   /* an empty string is found between all characters */
            uint32_t c;
            if (at >= s->n) break;
            search = at + letter_next(s->u.s + at, s->u.s + s->n, &c);
        }
    }
    if (found < 0) return false;
    if (!t.n && start == 0) {   /* nothing was found: the string itself */
        *out = text_part(s, 0, s->n);
        return true;
    }
    jtext_add(&t, s->u.s + start, s->n - start);
    return text_close(&t, s, out);
}

/* Appends the character of `n` bytes at p in another case, its marks behind it. */
static void jtext_add_converted(jtext *t, const char *p, size_t n, letter_case to, uint32_t c) {
    uint32_t other[3], count = letter_convert(to, c, other);
    if (count == 1 && other[0] == c) {
        jtext_add(t, p, n);
        return;
    }
    for (uint32_t i = 0; i < count; i++) jtext_add_char(t, other[i]);
    if (memchr(p, (int)LETTER_MARK, n)) jtext_add(t, "\xFF", 1);
}

static bool letter_has_case_at(const char *p, size_t n) {
    uint32_t c;
    letter_next(p, p + n, &c);
    return letter_is_lower(c) || letter_is_upper(c) || letter_is_mixed(c);
}

/* A capital sigma behind a letter and before none is a final one. Source: SpecialCasing.txt */
static bool text_is_final_sigma(const jvalue *s, size_t at, size_t n) {
    uint32_t before = 0, behind = 0;
    if (at > 0) letter_last(s->u.s, s->u.s + at, &before);
    if (at + n < s->n) letter_next(s->u.s + at + n, s->u.s + s->n, &behind);
    return (letter_is_lower(before) || letter_is_upper(before)) && !letter_is_lower(behind) && !letter_is_upper(behind);
}

/* The character at byte `at` in another case; the bytes it takes. */
static size_t jtext_add_cased(jtext *t, const jvalue *s, size_t at, letter_case to) {
    uint32_t c;
    size_t   n = letter_next(s->u.s + at, s->u.s + s->n, &c);
    if (c == 0x3A3 && to == LETTER_LOWER && text_is_final_sigma(s, at, n)) jtext_add_char(t, 0x3C2);
    else jtext_add_converted(t, s->u.s + at, n, to, c);
    return n;
}

static bool text_convert(jinja *j, const jvalue *s, letter_case to, jvalue *out) {
    jtext t;
    bool  inside = false;   /* of a word: behind a character with case */
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    if (!jinja_step(j, s->n)) return false;
    for (size_t i = 0; i < s->n;) {
        size_t n = jtext_add_cased(&t, s, i, to == LETTER_TITLE && inside ? LETTER_LOWER : to);
        inside   = to == LETTER_TITLE && letter_has_case_at(s->u.s + i, n);
        i += n;
    }
    return text_close(&t, s, out);
}

static bool text_swap_case(jinja *j, const jvalue *s, jvalue *out) {
    jtext t;
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    if (!jinja_step(j, s->n)) return false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        letter_next(s->u.s + i, s->u.s + s->n, &c);
        letter_case to = letter_is_lower(c) ? LETTER_UPPER : letter_is_upper(c) ? LETTER_LOWER : LETTER_TITLE;
        i += jtext_add_cased(&t, s, i, to);   /* a title case is its own, and the rest has no case */
    }
    return text_close(&t, s, out);
}

static bool text_capitalize(jinja *j, const jvalue *s, jvalue *out) {
    jtext t;
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    if (s->n && jinja_step(j, s->n)) {
        size_t i = jtext_add_cased(&t, s, 0, LETTER_TITLE);
        while (i < s->n) i += jtext_add_cased(&t, s, i, LETTER_LOWER);
    }
    return text_close(&t, s, out);
}

/* As many as anybody can have: what is beyond the memory's end fails all the same. */
static size_t text_times(int64_t n) {
    return n > (int64_t)JINJA_MAX_BYTES ? JINJA_MAX_BYTES + 1 : n > 0 ? (size_t)n : 0;
}

static bool text_pad(jinja *j, const jvalue *s, int64_t left, int64_t right, uint32_t fill, jvalue *out) {
    jtext t;
    char  utf8[4];
    jtext_open(&t, j);
    size_t n = letter_put(utf8, fill);
    jtext_repeat(&t, utf8, n, text_times(left));
    jtext_add_string(&t, s);
    jtext_repeat(&t, utf8, n, text_times(right));
    return text_close(&t, s, out);
}

static bool text_repeat(jinja *j, const jvalue *s, int64_t times, jvalue *out) {
    jtext t;
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    jtext_repeat(&t, s->u.s, s->n, text_times(times));
    return text_close(&t, s, out);
}

static bool text_escape(jinja *j, const jvalue *v, jvalue *out) {
    static const char *const entities[] = {"&&amp;", "<&lt;", ">&gt;", "'&#39;", "\"&#34;"};
    jvalue s;
    if (!jv_soft_string(j, v, &s)) return false;
    *out = s;
    if (s.flags & J_SAFE) return true;
    jtext  t;
    size_t start = 0;
    jtext_open(&t, j);
    t.flags = s.flags & J_MARKED;
    if (!jinja_step(j, s.n >> 4)) return false;
    for (size_t i = 0; i < s.n; i++) {
        size_t k = 0;
        while (k < COUNT_OF(entities) && entities[k][0] != s.u.s[i]) k++;
        if (k == COUNT_OF(entities)) continue;
        jtext_add(&t, s.u.s + start, i - start);
        jtext_add_c(&t, entities[k] + 1);
        start = i + 1;
    }
    jtext_add(&t, s.u.s + start, s.n - start);
    if (!jtext_close(&t, out)) return false;
    out->flags |= J_SAFE;
    return true;
}

/* ---- Slices ---- */

/* An end of a slice: counted from the end when negative, then held within [low, high]. */
static bool jslice_bound(jinja *j, const jvalue *v, int64_t fallback, int64_t length, int64_t low, int64_t high,
                         int64_t *out) {
    *out = fallback;
    if (!jv_given(v) || v->kind == J_NONE) return true;
    if (!jv_is_integer(v)) return jinja_fail_type(j, "a slice's end", v);
    int64_t i = v->u.i;
    if (i < 0) i = i < -length ? low : i + length;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

static bool jslice_range(jinja *j, const jvalue bounds[3], int64_t length, int64_t *start, int64_t *step,
                         int64_t *count) {
    int64_t stop;
    *step = 1;
    if (jv_given(&bounds[2]) && bounds[2].kind != J_NONE) {
        if (!jv_is_integer(&bounds[2])) return jinja_fail_type(j, "a slice's step", &bounds[2]);
        *step = bounds[2].u.i;
    }
    if (*step == 0) return jinja_fail(j, "a slice's step is 0");
    if (*step > INT32_MAX) *step = INT32_MAX;   /* as good as endless, and nothing overflows */
    if (*step < -INT32_MAX) *step = -INT32_MAX;
    bool    back = *step < 0;
    int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
    if (!jslice_bound(j, &bounds[0], back ? high : low, length, low, high, start)) return false;
    if (!jslice_bound(j, &bounds[1], back ? low : high, length, low, high, &stop)) return false;
    int64_t way = back ? *start - stop : stop - *start, size = back ? -*step : *step;
    *count      = way > 0 ? (way - 1) / size + 1 : 0;
    return true;
}

static bool text_slice(jinja *j, const jvalue *s, int64_t start, int64_t step, int64_t count, jvalue *out) {
    *out = text_part(s, 0, 0);
    if (count <= 0) return true;
    if (!jinja_step(j, s->n >> 3)) return false;
    if (step == 1) {
        size_t from = text_offset(s, (size_t)start);
        jvalue rest = text_part(s, from, s->n);
        *out        = text_part(&rest, 0, text_offset(&rest, (size_t)count));
        return true;
    }
    jtext  t;
    size_t at = step < 0 ? text_offset(s, (size_t)start + 1) : text_offset(s, (size_t)start);
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    for (int64_t i = 0; i < count && jinja_step(j, 1); i++) {
        uint32_t c;
        if (step > 0) {
            jtext_add(&t, s->u.s + at, letter_next(s->u.s + at, s->u.s + s->n, &c));
            for (int64_t k = 0; k < step && at < s->n; k++) at += letter_next(s->u.s + at, s->u.s + s->n, &c);
        } else {
            size_t n = letter_last(s->u.s, s->u.s + at, &c);
            jtext_add(&t, s->u.s + at - n, n);
            for (int64_t k = 0; k < -step && at > 0; k++) at -= letter_last(s->u.s, s->u.s + at, &c);
        }
    }
    return text_close(&t, s, out);
}

/* ==== src/jinja_format.h ====================================================================================== */

/* Formatting in templates: "..." % arguments and "...".format(arguments). */
#ifndef NOVA_JINJA_FORMAT_H
#define NOVA_JINJA_FORMAT_H


/* format % argument */
static bool format_percent(jinja *j, const jvalue *format, const jvalue *argument, jvalue *out);

/* How a field reaches into an argument: object.name, or object[name] (`element`). */
typedef bool (*format_reach_fn)(jinja *j, const jvalue *object, const jvalue *name, bool element, jvalue *out);

/* format.format(arguments) */
static bool format_fields(jinja *j, const jvalue *format, const jargs *a, format_reach_fn reach, jvalue *out);

#endif

/* ==== src/jinja_format.c ====================================================================================== */

/* Formatting in templates: see jinja_format.h. Source of the rules: Python's library reference, "printf-style String
 * Formatting" and "Format String Syntax". */

/* How one value is to be shown, from either syntax. */
typedef struct format_spec {
    uint32_t fill;
    char     align;      /* '<' '>' '^' '=', 0: the kind's own */
    char     sign;       /* '+' ' ' '-' */
    bool     alternate;  /* '#' */
    char     comma;      /* ',' '_' between thousands, 0 */
    char     type;       /* 0: the kind's own */
    int64_t  width, precision;   /* precision -1: not given */
} format_spec;

/* No number has more digits; more would be zeros only. */
#define FORMAT_MAX_PRECISION 400
#define FORMAT_MAX_NUMBER    1200

static format_spec format_default(void) {
    format_spec s;
    memset(&s, 0, sizeof s);
    s.fill      = ' ';
    s.sign      = '-';
    s.precision = -1;
    return s;
}

/* Appends `body`, filled up to the width: behind its first `n_sign` bytes (sign and prefix) for the alignment '='. */
static bool format_pad(jtext *t, str body, size_t n_sign, const format_spec *s, char align) {
    char    utf8[4];
    size_t  n_fill = letter_put(utf8, s->fill);
    int64_t gap    = s->width - (int64_t)letter_count(body.p, body.n), left = 0;
    if (s->align) align = s->align;
    if (gap < 0) gap = 0;
    if (gap > (int64_t)JINJA_MAX_BYTES) gap = (int64_t)JINJA_MAX_BYTES + 1;
    if (align == '>' || align == '=') left = gap;
    if (align == '^') left = gap / 2;
    if (align == '=') jtext_add(t, body.p, n_sign);
    jtext_repeat(t, utf8, n_fill, (size_t)left);
    if (align == '=') jtext_add(t, body.p + n_sign, body.n - n_sign);
    else jtext_add(t, body.p, body.n);
    return jtext_repeat(t, utf8, n_fill, (size_t)(gap - left));
}

static bool format_string(jtext *t, const jvalue *v, const format_spec *s) {
    str text = jv_str(v);
    if (s->precision >= 0) text.n = text_offset(v, s->precision > (int64_t)v->n ? v->n : (size_t)s->precision);
    t->flags |= v->flags & J_MARKED;
    return format_pad(t, text, 0, s, '<');
}

/* Sign, prefix, digits with separators, the rest (point and what is behind it). */
static bool format_number(jtext *t, bool negative, const char *prefix, str whole, str rest, const format_spec *s) {
    char   out[FORMAT_MAX_NUMBER + 16];
    size_t n = 0, group = s->comma == '_' && s->type && strchr("xXob", s->type) ? 4 : 3;
    if (whole.n + whole.n / 3 + rest.n > FORMAT_MAX_NUMBER) return jinja_fail(t->j, "a number is too long");
    if (negative) out[n++] = '-';
    else if (s->sign != '-') out[n++] = s->sign;
    for (; *prefix; prefix++) out[n++] = *prefix;
    size_t n_sign = n;
    for (size_t i = 0; i < whole.n; i++) {
        if (s->comma && i && (whole.n - i) % group == 0) out[n++] = s->comma;
        out[n++] = whole.p[i];
    }
    if (rest.n) memcpy(out + n, rest.p, rest.n);
    return format_pad(t, str_of(out, n + rest.n), n_sign, s, '>');
}

static bool format_integer(jtext *t, int64_t i, const format_spec *s) {
    char     digits[72], *p = digits + sizeof digits;
    char     type = s->type ? s->type : 'd';
    uint64_t x    = i < 0 ? 0 - (uint64_t)i : (uint64_t)i, base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8
                                                                : type == 'b' ? 2 : 10;
    const char *letters = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef", *prefix = "";
    do {
        *--p = letters[x % base];
        x /= base;
    } while (x);
    if (s->alternate && base != 10) prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : "0b";
    return format_number(t, i < 0, prefix, str_of(p, (size_t)(digits + sizeof digits - p)), str_of("", 0), s);
}

/* Without type and precision repr's digits; with a precision as 'g', but with a digit behind the point. */
static bool format_float(jtext *t, double x, const format_spec *s) {
    char   digits[FORMAT_MAX_NUMBER], shape[8] = "%.*f";
    char   type = s->type == '%' ? 'f' : s->type == 'n' || !s->type ? 'g' : s->type == 'F' ? 'f' : s->type;
    size_t n;
    if (s->precision > FORMAT_MAX_PRECISION) return jinja_fail(t->j, "a precision over %d", FORMAT_MAX_PRECISION);
    if (!jinja_step(t->j, 60)) return false;
    if (s->type == '%') x *= 100;
    bool negative = f64_is_negative(x) && x == x;
    if (s->alternate) memcpy(shape, "%#.*f", 6);
    shape[strlen(shape) - 1] = type;
    if (!s->type && s->precision < 0) n = jfloat_text(digits, fabs(x));
    else n = jfloat_format(digits, sizeof digits, shape, s->precision < 0 ? 6 : (int)s->precision, fabs(x));
    if (s->type == 'F' || s->type == 'E' || s->type == 'G')
        for (size_t i = 0; i < n; i++)
            if (digits[i] >= 'a' && digits[i] <= 'z') digits[i] = (char)(digits[i] - 'a' + 'A');
    if (!s->type && s->precision >= 0 && x - x == 0 && !strpbrk(digits, ".e"))
        n += (size_t)snprintf(digits + n, 3, ".0");
    if (s->type == '%') digits[n++] = '%';
    size_t whole = 0;
    while (whole < n && digits[whole] >= '0' && digits[whole] <= '9') whole++;
    return format_number(t, negative, "", str_of(digits, whole), str_of(digits + whole, n - whole), s);
}

/* ---- "..." % arguments ---- */

typedef struct format_percents {
    jinja        *j;
    jtext         t;
    const char   *p, *end;
    const jvalue *argument;
    uint32_t      used;      /* of a tuple's items, or 1 for the argument itself */
    bool          safe;
} format_percents;

static bool format_take(format_percents *f, jvalue *out) {
    const jvalue *a = f->argument;
    uint32_t      n = a->kind == J_TUPLE ? a->n : 1;
    if (f->used >= n) return jinja_fail(f->j, "not enough arguments for a format");
    *out = a->kind == J_TUPLE ? a->u.items[f->used] : *a;
    f->used++;
    return true;
}

/* Digits or '*'. */
static bool format_amount(format_percents *f, int64_t *out) {
    *out = 0;
    if (f->p < f->end && *f->p == '*') {
        jvalue v;
        f->p++;
        if (!format_take(f, &v)) return false;
        if (!jv_is_integer(&v)) return jinja_fail_type(f->j, "'*' in a format", &v);
        *out = v.u.i;
        return true;
    }
    for (; f->p < f->end && *f->p >= '0' && *f->p <= '9'; f->p++)
        if (*out < INT32_MAX) *out = *out * 10 + (*f->p - '0');
    return true;
}

/* Flags, width, precision and a length that means nothing; left before the type. */
static bool format_percent_spec(format_percents *f, format_spec *s) {
    bool zero = false, left = false;
    for (; f->p < f->end && strchr("-+ #0", *f->p) && *f->p; f->p++) {
        if (*f->p == '-') left = true;
        else if (*f->p == '0') zero = true;
        else if (*f->p == '#') s->alternate = true;
        else if (*f->p == '+' || s->sign != '+') s->sign = *f->p;
    }
    if (!format_amount(f, &s->width)) return false;
    if (s->width < 0) {
        left     = true;
        s->width = s->width < -INT32_MAX ? INT32_MAX : -s->width;
    }
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        if (!format_amount(f, &s->precision)) return false;
        if (s->precision < 0) s->precision = 0;
    }
    if (f->p < f->end && strchr("hlL", *f->p) && *f->p) f->p++;
    s->align = left ? '<' : '>';
    if (zero && !left) {
        s->fill  = '0';
        s->align = '=';
    }
    return true;
}

/* %(name) */
static bool format_percent_name(format_percents *f, jvalue *out) {
    const char *start = ++f->p;
    uint32_t    depth = 1;
    for (; f->p < f->end; f->p++) {
        depth += *f->p == '(';
        if (*f->p == ')' && --depth == 0) break;
    }
    if (f->p == f->end) return jinja_fail(f->j, "a format's '(' does not end");
    if (f->argument->kind != J_DICT) return jinja_fail(f->j, "a format with names needs a mapping");
    jvalue        key   = jv_string(start, (size_t)(f->p++ - start), J_MARKED);
    const jvalue *value = jdict_get(f->j, f->argument->u.dict, &key);
    if (!value) return jinja_fail(f->j, "a format's argument '%.*s' is missing", STR_ARG(jv_str(&key)));
    *out    = *value;
    f->used = 1;
    return true;
}

/* %d of at least `precision` digits. */
static bool format_percent_integer(format_percents *f, const jvalue *v, format_spec *s) {
    int64_t i = v->u.i;
    if (v->kind == J_FLOAT && strchr("diu", s->type)) {
        if (!(fabs(v->u.f) < 9e18)) return jinja_fail(f->j, "an integer beyond 64 bits");
        i = (int64_t)v->u.f;
    } else if (!jv_is_integer(v)) {
        return jinja_fail_type(f->j, "an integer's format", v);
    }
    if (strchr("iu", s->type)) s->type = 'd';
    if (s->precision >= 0) {
        /* Digits first, padded with zeros behind the sign; then the width. */
        format_spec digits = *s;
        jtext       inner;
        jvalue      body;
        digits.fill      = '0';
        digits.align     = '=';
        digits.width     = s->precision + (i < 0 || s->sign != '-');
        digits.precision = -1;
        jtext_open(&inner, f->j);
        if (!format_integer(&inner, i, &digits) || !jtext_close(&inner, &body)) return false;
        if (s->align == '=') s->align = '>', s->fill = ' ';
        return format_pad(&f->t, jv_str(&body), 0, s, '>');
    }
    return format_integer(&f->t, i, s);
}

static bool format_percent_text(format_percents *f, const jvalue *v, format_spec *s) {
    jvalue text;
    jtext  repr;
    if (s->align == '=') s->align = '>';
    if (s->fill == '0') s->fill = ' ';
    if (s->type == 'r' || s->type == 'a') {
        jtext_open(&repr, f->j);
        if (!jtext_add_repr(&repr, v) || !jtext_close(&repr, &text)) return false;
    } else if (s->type == 'c' && jv_is_integer(v)) {
        char utf8[4];
        if (v->u.i < 0 || v->u.i > 0x10FFFF) return jinja_fail(f->j, "%%c: no such character");
        const char *copy;
        size_t      n = letter_put(utf8, (uint32_t)v->u.i);
        if (!jinja_copy(f->j, utf8, n, &copy)) return false;
        text = jv_string(copy, n, 0);
    } else {
        if (s->type == 'c' && !(jv_is_string(v) && letter_count(v->u.s, v->n) == 1))
            return jinja_fail_type(f->j, "%c", v);
        if (f->safe ? !text_escape(f->j, v, &text) : !jv_to_string(f->j, v, &text)) return false;
    }
    return format_string(&f->t, &text, s);
}

static bool format_percent_one(format_percents *f) {
    format_spec s = format_default();
    jvalue      v = jv_none();
    bool        named = f->p < f->end && *f->p == '(';
    if (named && !format_percent_name(f, &v)) return false;
    if (!format_percent_spec(f, &s)) return false;
    if (f->p == f->end) return jinja_fail(f->j, "a format ends behind '%%'");
    s.type = *f->p++;
    if (s.type == '%') return jtext_add(&f->t, "%", 1);
    if (!s.type || !strchr("diuoxXeEfFgGcrsa", s.type)) return jinja_fail(f->j, "unknown format '%%%c'", s.type);
    if (!named && !format_take(f, &v)) return false;
    if (strchr("diuoxX", s.type)) return format_percent_integer(f, &v, &s);
    if (!strchr("eEfFgG", s.type)) return format_percent_text(f, &v, &s);
    if (!jv_is_number(&v)) return jinja_fail_type(f->j, "a float's format", &v);
    return format_float(&f->t, v.kind == J_FLOAT ? v.u.f : (double)v.u.i, &s);
}

static bool format_percent(jinja *j, const jvalue *format, const jvalue *argument, jvalue *out) {
    format_percents f;
    memset(&f, 0, sizeof f);
    f.j        = j;
    f.p        = format->u.s;
    f.end      = format->u.s + format->n;
    f.argument = argument;
    f.safe     = (format->flags & J_SAFE) != 0;
    jtext_open(&f.t, j);
    f.t.flags = format->flags & J_MARKED;
    while (f.p < f.end) {
        const char *percent = (const char *)memchr(f.p, '%', (size_t)(f.end - f.p));
        const char *until   = percent ? percent : f.end;
        if (!jtext_add(&f.t, f.p, (size_t)(until - f.p)) || !jinja_step(j, 2)) return false;
        f.p = until;
        if (percent && (f.p++, !format_percent_one(&f))) return false;
    }
    bool rest = argument->kind == J_TUPLE ? f.used < argument->n : !f.used;
    bool free_to_stay = argument->kind == J_DICT || argument->kind == J_LIST || argument->kind == J_UNDEFINED;
    if (rest && !free_to_stay) return jinja_fail(j, "not all arguments of a format are used");
    if (!jtext_close(&f.t, out)) return false;
    out->flags |= format->flags & J_SAFE;
    return true;
}

/* ---- "...".format(arguments) ---- */

typedef struct format_reader {
    jinja          *j;
    const jargs    *a;
    format_reach_fn reach;
    uint32_t        automatic;   /* fields without a number so far */
    bool            numbered, safe;
} format_reader;

static bool format_is_align(uint32_t c) { return c == '<' || c == '>' || c == '^' || c == '='; }

/* [[fill]align][sign][#][0][width][,_][.precision][type] */
static bool format_parse_spec(jinja *j, str text, format_spec *s) {
    const char *p = text.p, *end = p + text.n;
    uint32_t    c;
    size_t      n = p < end ? letter_next(p, end, &c) : 0;
    if (n && p + n < end && format_is_align((unsigned char)p[n])) {
        s->fill  = c;
        s->align = p[n];
        p += n + 1;
    } else if (n && format_is_align(c)) {
        s->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) s->sign = *p++;
    if (p < end && *p == '#') s->alternate = *p++ == '#';
    if (p < end && *p == '0') {
        if (!s->align) s->fill = '0', s->align = 'z';   /* '=' for numbers, the kind's own for the rest */
        p++;
    }
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (s->width < INT32_MAX) s->width = s->width * 10 + (*p - '0');
    if (p < end && (*p == ',' || *p == '_')) s->comma = *p++;
    if (p < end && *p == '.') {
        s->precision = 0;
        if (++p == end || *p < '0' || *p > '9') return jinja_fail(j, "a format has no digits behind '.'");
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (s->precision < INT32_MAX) s->precision = s->precision * 10 + (*p - '0');
    }
    if (p < end) s->type = *p++;
    return p == end || jinja_fail(j, "a format like '%.*s' is unknown", STR_ARG(text));
}

static bool format_value(jtext *t, const jvalue *v, str text) {
    jinja      *j = t->j;
    format_spec s = format_default();
    if (!text.n) return jtext_add_str(t, v);
    if (!format_parse_spec(j, text, &s)) return false;
    bool zero = s.align == 'z';
    if (v->kind == J_STRING) {
        if (zero) s.align = 0;
        if ((s.type && s.type != 's') || s.align == '=' || s.sign != '-' || s.comma || s.alternate)
            return jinja_fail(j, "a format like '%.*s' is not for strings", STR_ARG(text));
        return format_string(t, v, &s);
    }
    if (zero) s.align = '=';
    if (jv_is_integer(v) && s.type == 'c') {
        char utf8[4];
        if (s.sign != '-' || s.comma || v->u.i < 0 || v->u.i > 0x10FFFF) return jinja_fail(j, "no such character");
        return format_pad(t, str_of(utf8, letter_put(utf8, (uint32_t)v->u.i)), 0, &s, '<');
    }
    if (jv_is_integer(v) && (!s.type || strchr("bdoxXn", s.type))) {
        if (s.precision >= 0) return jinja_fail(j, "an integer's format has a precision");
        if (s.type == 'n') s.type = 'd';
        return format_integer(t, v->u.i, &s);
    }
    if (jv_is_number(v) && (!s.type || strchr("eEfFgGn%", s.type)))
        return format_float(t, v->kind == J_FLOAT ? v->u.f : (double)v->u.i, &s);
    return jinja_fail_type(j, "a format", v);
}

/* The argument that a field's first part names. */
static bool format_argument(format_reader *r, str name, jvalue *out) {
    bool digits = true;
    for (size_t i = 0; i < name.n; i++) digits = digits && name.p[i] >= '0' && name.p[i] <= '9';
    if (digits) {
        uint32_t i = 0;
        if (name.n ? r->automatic != 0 : r->numbered)
            return jinja_fail(r->j, "a format mixes fields with and without numbers");
        for (size_t k = 0; k < name.n; k++) i = i < 100000 ? i * 10 + (uint32_t)(name.p[k] - '0') : i;
        if (name.n) r->numbered = true;
        else i = r->automatic++;
        if (i >= r->a->n) return jinja_fail(r->j, "a format's argument %u is missing", i);
        *out = r->a->given[i];
        return true;
    }
    for (uint32_t i = 0; i < r->a->n_named; i++) {
        const jvalue *key = &r->a->named[i].key;
        if (!jinja_step(r->j, 1)) return false;
        if (!jv_is_string(key) || !str_eq(jv_str(key), name)) continue;
        *out = r->a->named[i].value;
        return true;
    }
    return jinja_fail(r->j, "a format's argument '%.*s' is missing", STR_ARG(name));
}

/* name(.attribute | [element])* */
static bool format_field_value(format_reader *r, str field, jvalue *out) {
    size_t i = 0;
    while (i < field.n && field.p[i] != '.' && field.p[i] != '[') i++;
    if (!format_argument(r, str_of(field.p, i), out)) return false;
    while (i < field.n) {
        bool   element = field.p[i] == '[', number = true;
        size_t start = ++i;
        while (i < field.n && (element ? field.p[i] != ']' : field.p[i] != '.' && field.p[i] != '[')) i++;
        if (i == start || (element && i == field.n)) return jinja_fail(r->j, "a format's field ends too early");
        jvalue name = jv_string(field.p + start, i - start, J_MARKED), of = *out;
        for (size_t k = start; k < i; k++) number = number && field.p[k] >= '0' && field.p[k] <= '9';
        bool beyond;
        if (element && number) {
            name = jv_int(0);
            if (!jv_parse_int(str_of(field.p + start, i - start), 10, &name.u.i, &beyond))
                return jinja_fail(r->j, "a format's index is too large");
        }
        i += element;
        if (element && i < field.n && field.p[i] != '.' && field.p[i] != '[')
            return jinja_fail(r->j, "only '.' or '[' may follow ']' in a format");
        if (!r->reach(r->j, &of, &name, element, out)) return false;
    }
    return true;
}

static bool format_read(format_reader *r, jtext *t, str format, int depth);

/* Between the braces: field[!conversion][:spec], the spec perhaps with fields of its own. */
static bool format_field(format_reader *r, jtext *t, str field, int depth) {
    size_t name = 0;
    bool   inside = false;
    while (name < field.n && (inside || (field.p[name] != '!' && field.p[name] != ':'))) {
        inside = field.p[name] == '[' || (inside && field.p[name] != ']');
        name++;
    }
    jvalue v, spec = jv_c("");
    jtext  text;
    size_t i          = name;
    char   conversion = 0;
    if (!format_field_value(r, str_of(field.p, name), &v)) return false;
    if (i < field.n && field.p[i] == '!') {
        if (i + 1 == field.n || !memchr("rsa", field.p[i + 1], 3) || (i + 2 < field.n && field.p[i + 2] != ':'))
            return jinja_fail(r->j, "a format's conversion is unknown");
        conversion = field.p[i + 1];
        i += 2;
    }
    jtext_open(&text, r->j);
    if (i < field.n && (!format_read(r, &text, str_of(field.p + i + 1, field.n - i - 1), depth + 1) ||
                        !jtext_close(&text, &spec))) return false;
    if (conversion == 's' && !jv_to_string(r->j, &v, &v)) return false;
    if (conversion == 'r' || conversion == 'a') {
        jtext_open(&text, r->j);
        if (!jtext_add_repr(&text, &v) || !jtext_close(&text, &v)) return false;
    }
    if (!r->safe || depth > 0) return format_value(t, &v, jv_str(&spec));
    jtext_open(&text, r->j);   /* of Markup: what is not safe is escaped */
    bool   safe = jv_is_string(&v) && (v.flags & J_SAFE);
    jvalue shown;
    if (!format_value(&text, &v, jv_str(&spec)) || !jtext_close(&text, &shown)) return false;
    return (safe || text_escape(r->j, &shown, &shown)) && jtext_add_string(t, &shown);
}

static bool format_read(format_reader *r, jtext *t, str format, int depth) {
    if (depth > 2) return jinja_fail(r->j, "a format's fields are nested too deeply");
    for (size_t i = 0; i < format.n;) {
        size_t start = i;
        while (i < format.n && format.p[i] != '{' && format.p[i] != '}') i++;
        if (!jtext_add(t, format.p + start, i - start) || !jinja_step(r->j, 2)) return false;
        if (i == format.n) break;
        if (depth == 0 && i + 1 < format.n && format.p[i + 1] == format.p[i]) {
            jtext_add(t, format.p + i, 1);
            i += 2;
            continue;
        }
        if (format.p[i] == '}') return jinja_fail(r->j, "a format has a single '}'");
        start = ++i;
        for (uint32_t open = 1; i < format.n; i++) {
            open += format.p[i] == '{';
            if (format.p[i] == '}' && --open == 0) break;
        }
        if (i == format.n) return jinja_fail(r->j, "a format has a single '{'");
        if (!format_field(r, t, str_of(format.p + start, i - start), depth)) return false;
        i++;
    }
    return true;
}

static bool format_fields(jinja *j, const jvalue *format, const jargs *a, format_reach_fn reach, jvalue *out) {
    format_reader r;
    jtext         t;
    memset(&r, 0, sizeof r);
    r.j     = j;
    r.a     = a;
    r.reach = reach;
    r.safe  = (format->flags & J_SAFE) != 0;
    jtext_open(&t, j);
    t.flags = J_MARKED;   /* of the format or of what it shows */
    if (!format_read(&r, &t, jv_str(format), 0) || !jtext_close(&t, out)) return false;
    out->flags |= format->flags & J_SAFE;
    return true;
}

/* ==== src/jinja_member.h ====================================================================================== */

/* What a value has: object.name and object[key] with all methods of Python's types that the sandbox allows. */
#ifndef NOVA_JINJA_MEMBER_H
#define NOVA_JINJA_MEMBER_H


/* object.name: the attribute, else the element, else undefined. Fails for a member of something undefined. */
static bool jinja_attribute(jinja *j, const jvalue *object, const jvalue *name, jvalue *out);
/* object[key]: the element, else the attribute, else undefined. */
static bool jinja_element(jinja *j, const jvalue *object, const jvalue *key, jvalue *out);
/* object[a:b:c] */
static bool jinja_slice(jinja *j, const jvalue *object, const jvalue bounds[3], jvalue *out);

/* Arguments of natives: a missing one, and none, is the fallback. */
static bool jarg_int(jinja *j, const jvalue *v, int64_t fallback, int64_t *out);
static bool jarg_string(jinja *j, const jvalue *v);   /* fails when it is no string */
NOVA_INLINE bool jarg_true(const jvalue *v, bool fallback) { return jv_given(v) ? jv_true(v) : fallback; }
/* sep.join(items): of strings alone, or of anything (`any`). */
static bool jinja_join(jinja *j, const jvalue *between, const jvalue *items, bool any, jvalue *out);

#endif

/* ==== src/jinja_member.c ====================================================================================== */

/* What a value has: see jinja_member.h. */

static bool jarg_int(jinja *j, const jvalue *v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (!jv_given(v) || v->kind == J_NONE) return true;
    if (!jv_is_integer(v)) return jinja_fail_type(j, "an integer argument", v);
    *out = v->u.i;
    return true;
}

static bool jarg_string(jinja *j, const jvalue *v) {
    return jv_is_string(v) || jinja_fail_type(j, "a string argument", v);
}

/* A separator or a set of characters: NULL for the default. */
static bool jarg_characters(jinja *j, const jvalue *v, const jvalue **out) {
    *out = jv_given(v) && v->kind != J_NONE ? v : NULL;
    return !*out || jarg_string(j, v);
}

/* ---- Methods of strings ---- */

static bool jstr_capitalize(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_capitalize(j, self, out);
}

static bool jstr_lower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_convert(j, self, LETTER_LOWER, out);
}

static bool jstr_upper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_convert(j, self, LETTER_UPPER, out);
}

static bool jstr_title(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_convert(j, self, LETTER_TITLE, out);
}

static bool jstr_swapcase(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_swap_case(j, self, out);
}

static bool jstr_strip_sides(jinja *j, const jvalue *self, const jargs *a, int sides, jvalue *out) {
    const jvalue *characters;
    return jarg_characters(j, &a->given[0], &characters) && text_strip(j, self, characters, sides, out);
}

static bool jstr_strip(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_strip_sides(j, self, a, TEXT_LEFT | TEXT_RIGHT, out);
}

static bool jstr_lstrip(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_strip_sides(j, self, a, TEXT_LEFT, out);
}

static bool jstr_rstrip(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_strip_sides(j, self, a, TEXT_RIGHT, out);
}

static bool jstr_split(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *by;
    int64_t       most;
    return jarg_characters(j, &a->given[0], &by) && jarg_int(j, &a->given[1], -1, &most) &&
           text_split(j, self, by, most, out);
}

static bool jstr_rsplit(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *by;
    int64_t       most;
    return jarg_characters(j, &a->given[0], &by) && jarg_int(j, &a->given[1], -1, &most) &&
           text_split_right(j, self, by, most, out);
}

static bool jstr_splitlines(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return text_lines(j, self, jarg_true(&a->given[0], false), out);
}

/* The three parts around a separator; all of the string on one side when there is none. */
static bool jstr_parts(jinja *j, const jvalue *self, const jargs *a, bool last, jvalue *out) {
    size_t at, n;
    if (!jarg_string(j, &a->given[0])) return false;
    if (!a->given[0].n) return jinja_fail(j, "partition: the separator is empty");
    int found = last ? text_find_last(j, self, 0, self->n, &a->given[0], &at, &n)
                     : text_find(j, self, 0, self->n, &a->given[0], &at, &n);
    jvalue *parts = found < 0 ? NULL : (jvalue *)jinja_alloc(j, 3 * sizeof *parts);
    if (!parts) return false;
    if (!found) {
        at = last ? 0 : self->n;
        n  = 0;
    }
    parts[0] = text_part(self, 0, at);
    parts[1] = text_part(self, at, at + n);
    parts[2] = text_part(self, at + n, self->n);
    *out     = jv_items(J_TUPLE, parts, 3);
    return true;
}

static bool jstr_partition(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_parts(j, self, a, false, out);
}

static bool jstr_rpartition(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_parts(j, self, a, true, out);
}

static bool jstr_removeprefix(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jarg_string(j, &a->given[0])) return false;
    size_t n = text_starts(self, &a->given[0]);
    *out     = text_part(self, n == SIZE_MAX ? 0 : n, self->n);
    return true;
}

static bool jstr_removesuffix(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jarg_string(j, &a->given[0])) return false;
    size_t n = text_ends(self, &a->given[0]);
    *out     = text_part(self, 0, self->n - (n == SIZE_MAX ? 0 : n));
    return true;
}

static bool jstr_replace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t most;
    jvalue  to = a->given[1];
    if (!jarg_string(j, &a->given[0]) || !jarg_string(j, &to) || !jarg_int(j, &a->given[2], -1, &most)) return false;
    if ((self->flags & J_SAFE) && !text_escape(j, &to, &to)) return false;
    return text_replace(j, self, &a->given[0], &to, most, out);
}

/* The part that find's arguments `start` and `end` leave, in bytes; false when it is impossible or after a failure. */
static bool jstr_range(jinja *j, const jvalue *self, const jargs *a, size_t *from, size_t *to) {
    jvalue bounds[3] = {a->given[1], a->given[2], jv_make(J_MISSING)};
    *from            = 0;
    *to              = self->n;
    if (!jv_given(&bounds[0]) && !jv_given(&bounds[1])) return true;
    int64_t length = (int64_t)letter_count(self->u.s, self->n), start, step, count;
    if (!jinja_step(j, self->n >> 4) || !jslice_range(j, bounds, length, &start, &step, &count)) return false;
    if (count == 0 && jv_is_integer(&bounds[0]) && bounds[0].u.i > length) return false;
    *from = text_offset(self, (size_t)start);
    *to   = text_offset(self, (size_t)(start + count));
    return true;
}

static bool jstr_tells(jinja *j, const jvalue *self, const jargs *a, bool at_end, jvalue *out) {
    const jvalue *what = &a->given[0];
    uint32_t      n    = what->kind == J_TUPLE ? what->n : 1;
    size_t        from, to;
    bool          any  = false;
    if (what->kind == J_TUPLE) what = what->u.items;
    bool   range = jstr_range(j, self, a, &from, &to);
    jvalue part  = range ? text_part(self, from, to) : jv_none();
    for (uint32_t i = 0; i < n && !any; i++) {
        if (!jarg_string(j, &what[i]) || !jinja_step(j, 1 + (what[i].n >> 6))) return false;
        any = range && (at_end ? text_ends(&part, &what[i]) : text_starts(&part, &what[i])) != SIZE_MAX;
    }
    *out = jv_bool(any);
    return j->failed == NOVA_OK;
}

static bool jstr_startswith(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_tells(j, self, a, false, out);
}

static bool jstr_endswith(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_tells(j, self, a, true, out);
}

/* The place of an occurrence in characters, or -1; `must`: a failure instead. */
static bool jstr_find_any(jinja *j, const jvalue *self, const jargs *a, bool last, bool must, jvalue *out) {
    size_t from, to, at, n;
    int    found = 0;
    if (!jarg_string(j, &a->given[0])) return false;
    if (jstr_range(j, self, a, &from, &to))
        found = last ? text_find_last(j, self, from, to, &a->given[0], &at, &n)
                     : text_find(j, self, from, to, &a->given[0], &at, &n);
    if (j->failed != NOVA_OK) return false;
    if (!found && must) return jinja_fail(j, "index: '%.*s' is not found", STR_ARG(jv_str(&a->given[0])));
    *out = jv_int(found ? (int64_t)letter_count(self->u.s, at) : -1);
    return jinja_step(j, self->n >> 5);
}

static bool jstr_find(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, false, false, out);
}

static bool jstr_rfind(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, true, false, out);
}

static bool jstr_index(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, false, true, out);
}

static bool jstr_rindex(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, true, true, out);
}

static bool jstr_count(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    size_t  from, to, at, n;
    int     found = 0;
    int64_t count = 0;
    if (!jarg_string(j, &a->given[0])) return false;
    if (jstr_range(j, self, a, &from, &to)) {
        if (!a->given[0].n) count = (int64_t)letter_count(self->u.s + from, to - from) + 1;
        else
            for (; (found = text_find(j, self, from, to, &a->given[0], &at, &n)) == 1; from = at + n) count++;
    }
    *out = jv_int(count);
    return j->failed == NOVA_OK;
}

static bool jinja_join(jinja *j, const jvalue *between, const jvalue *items, bool any, jvalue *out) {
    jtext  t;
    jiter  it;
    jvalue item, shown;
    bool   safe = between->flags & J_SAFE;
    int    got;
    jtext_open(&t, j);
    if (!jiter_open(j, &it, items)) return false;
    for (uint32_t i = 0; (got = jiter_next(j, &it, &item)) == 1; i++) {
        if (!any && !jv_is_string(&item) && !safe) return jinja_fail_type(j, "join", &item);
        if (i) jtext_add_string(&t, between);
        if (safe && !text_escape(j, &item, &shown)) return false;
        if (!(safe ? jtext_add_string(&t, &shown) : jtext_add_str(&t, &item))) return false;
    }
    if (got < 0 || !jtext_close(&t, out)) return false;
    if (safe) out->flags |= J_SAFE;
    return true;
}

static bool jstr_join(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jinja_join(j, self, &a->given[0], false, out);
}

static bool jstr_pad_sides(jinja *j, const jvalue *self, const jargs *a, int sides, jvalue *out) {
    int64_t  width;
    uint32_t fill = ' ';
    if (!jarg_int(j, &a->given[0], 0, &width)) return false;
    if (jv_given(&a->given[1])) {
        const jvalue *f = &a->given[1];
        if (!jarg_string(j, f)) return false;
        if (!f->n || letter_next(f->u.s, f->u.s + f->n, &fill) != f->n)
            return jinja_fail(j, "the fill character must be one");
    }
    int64_t n = (int64_t)letter_count(self->u.s, self->n), gap = width > n ? width - n : 0;
    int64_t left = sides == TEXT_LEFT ? gap : sides == TEXT_RIGHT ? 0 : gap / 2 + (gap & width & 1);   /* as CPython */
    return jinja_step(j, self->n >> 5) && text_pad(j, self, left, gap - left, fill, out);
}

static bool jstr_center(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_pad_sides(j, self, a, TEXT_LEFT | TEXT_RIGHT, out);
}

static bool jstr_ljust(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_pad_sides(j, self, a, TEXT_RIGHT, out);
}

static bool jstr_rjust(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_pad_sides(j, self, a, TEXT_LEFT, out);
}

static bool jstr_zfill(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t width, n = (int64_t)letter_count(self->u.s, self->n);
    if (!jarg_int(j, &a->given[0], 0, &width)) return false;
    size_t sign = self->n && (self->u.s[0] == '-' || self->u.s[0] == '+');
    jvalue head = text_part(self, 0, sign), rest = text_part(self, sign, self->n);
    return text_pad(j, &rest, width > n ? width - n : 0, 0, '0', &rest) && jinja_concat(j, &head, &rest, out);
}

static bool jstr_expandtabs(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t size, column = 0;
    jtext   t;
    if (!jarg_int(j, &a->given[0], 8, &size) || !jinja_step(j, self->n >> 2)) return false;
    jtext_open(&t, j);
    t.flags = self->flags & J_MARKED;
    for (size_t i = 0; i < self->n && j->failed == NOVA_OK;) {
        uint32_t c;
        size_t   n = letter_next(self->u.s + i, self->u.s + self->n, &c);
        if (c == '\t') {
            int64_t gap = size > 0 ? size - column % size : 0;
            jtext_repeat(&t, " ", 1, gap > (int64_t)JINJA_MAX_BYTES ? JINJA_MAX_BYTES + 1 : (size_t)gap);
            column += gap;
        } else {
            jtext_add(&t, self->u.s + i, n);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        i += n;
    }
    if (!jtext_close(&t, out)) return false;
    out->flags |= self->flags & J_SAFE;
    return true;
}

static bool jstr_format(jinja *j, const jvalue *self, const jargs *a, jvalue *out);
static bool jstr_format_map(jinja *j, const jvalue *self, const jargs *a, jvalue *out);

/* ---- Tests of strings ---- */

typedef bool (*letter_test)(uint32_t c);

/* Does every character pass, and is there one? */
static bool jstr_all(jinja *j, const jvalue *self, letter_test test, jvalue *out) {
    bool all = self->n != 0;
    for (size_t i = 0; i < self->n && all;) {
        uint32_t c;
        i += letter_next(self->u.s + i, self->u.s + self->n, &c);
        all = test(c);
    }
    *out = jv_bool(all);
    return jinja_step(j, self->n >> 2);
}

static bool letter_is_ascii(uint32_t c) { return c < 0x80; }

static bool jstr_isspace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_space, out);
}

static bool jstr_isprintable(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jstr_all(j, self, letter_is_printable, out)) return false;
    if (!self->n) *out = jv_bool(true);
    return true;
}

static bool jstr_isascii(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jstr_all(j, self, letter_is_ascii, out)) return false;
    if (!self->n) *out = jv_bool(true);
    return true;
}

static bool jstr_isalpha(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_alpha, out);
}

static bool jstr_isdigit(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_digit, out);
}

static bool jstr_isalnum(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_alnum, out);
}

static bool jstr_is_case(jinja *j, const jvalue *self, bool upper, jvalue *out) {
    bool any = false, other = false;
    for (size_t i = 0; i < self->n;) {
        uint32_t c;
        i += letter_next(self->u.s + i, self->u.s + self->n, &c);
        any   = any || (upper ? letter_is_upper(c) : letter_is_lower(c));
        other = other || (upper ? letter_is_lower(c) : letter_is_upper(c));
    }
    *out = jv_bool(any && !other);
    return jinja_step(j, self->n >> 1);
}

static bool jstr_isupper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_is_case(j, self, true, out);
}

static bool jstr_islower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_is_case(j, self, false, out);
}

static const jnative str_methods[] = {
    {"capitalize", "", 0, jstr_capitalize},
    {"casefold", "", 0, NULL},
    {"center", "width fillchar", 1, jstr_center},
    {"count", "sub start end", 1, jstr_count},
    {"encode", "encoding errors", 0, NULL},
    {"endswith", "suffix start end", 1, jstr_endswith},
    {"expandtabs", "tabsize", 0, jstr_expandtabs},
    {"find", "sub start end", 1, jstr_find},
    {"format", NULL, 0, jstr_format},
    {"format_map", "mapping", 1, jstr_format_map},
    {"index", "sub start end", 1, jstr_index},
    {"isalnum", "", 0, jstr_isalnum},
    {"isalpha", "", 0, jstr_isalpha},
    {"isascii", "", 0, jstr_isascii},
    {"isdecimal", "", 0, jstr_isdigit},
    {"isdigit", "", 0, jstr_isdigit},
    {"isidentifier", "", 0, NULL},
    {"islower", "", 0, jstr_islower},
    {"isnumeric", "", 0, jstr_isdigit},
    {"isprintable", "", 0, jstr_isprintable},
    {"isspace", "", 0, jstr_isspace},
    {"istitle", "", 0, NULL},
    {"isupper", "", 0, jstr_isupper},
    {"join", "iterable", 1, jstr_join},
    {"ljust", "width fillchar", 1, jstr_ljust},
    {"lower", "", 0, jstr_lower},
    {"lstrip", "chars", 0, jstr_lstrip},
    {"maketrans", NULL, 0, NULL},
    {"partition", "sep", 1, jstr_partition},
    {"removeprefix", "prefix", 1, jstr_removeprefix},
    {"removesuffix", "suffix", 1, jstr_removesuffix},
    {"replace", "old new count", 2, jstr_replace},
    {"rfind", "sub start end", 1, jstr_rfind},
    {"rindex", "sub start end", 1, jstr_rindex},
    {"rjust", "width fillchar", 1, jstr_rjust},
    {"rpartition", "sep", 1, jstr_rpartition},
    {"rsplit", "sep maxsplit", 0, jstr_rsplit},
    {"rstrip", "chars", 0, jstr_rstrip},
    {"split", "sep maxsplit", 0, jstr_split},
    {"splitlines", "keepends", 0, jstr_splitlines},
    {"startswith", "prefix start end", 1, jstr_startswith},
    {"strip", "chars", 0, jstr_strip},
    {"swapcase", "", 0, jstr_swapcase},
    {"title", "", 0, jstr_title},
    {"translate", "table", 1, NULL},
    {"upper", "", 0, jstr_upper},
    {"zfill", "width", 1, jstr_zfill},
};

/* ---- Methods of the other types ---- */

static bool dict_get(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jv_hashable(&a->given[0])) return jinja_fail_type(j, "a key", &a->given[0]);
    const jvalue *value = jdict_get(j, self->u.dict, &a->given[0]);
    *out                = value ? *value : jv_given(&a->given[1]) ? a->given[1] : jv_none();
    return j->failed == NOVA_OK;
}

static bool dict_items(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = jv_view(self->u.dict, JV_ITEMS);
    return true;
}

static bool dict_keys(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = jv_view(self->u.dict, JV_KEYS);
    return true;
}

static bool dict_values(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = jv_view(self->u.dict, JV_VALUES);
    return true;
}

/* Nothing can tell a copy of what never changes. */
static bool any_copy(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = *self;
    return true;
}

static bool array_count(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jiter   it;
    jvalue  item;
    int     got;
    int64_t count = 0;
    if (!jiter_open(j, &it, self)) return false;
    while ((got = jiter_next(j, &it, &item)) == 1) {
        int equal = jv_equal(j, &item, &a->given[0]);
        if (equal < 0) return false;
        count += equal;
    }
    *out = jv_int(count);
    return got == 0;
}

static bool array_index(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  bounds[3] = {a->given[1], a->given[2], jv_make(J_MISSING)}, item;
    int64_t start, step, count;
    int     got;
    jiter   it;
    uint32_t n;
    if (!jv_length(self, &n) || !jslice_range(j, bounds, n, &start, &step, &count)) return false;
    if (!jiter_open(j, &it, self)) return false;
    for (int64_t i = 0; i < start + count && (got = jiter_next(j, &it, &item)) == 1; i++) {
        int equal = i < start ? 0 : jv_equal(j, &item, &a->given[0]);
        if (equal < 0) return false;
        *out = jv_int(i);
        if (equal) return true;
    }
    return jinja_fail(j, "index: the value is not in the %s", jv_type(self));
}

static const jnative dict_methods[] = {
    {"copy", "", 0, any_copy},          {"fromkeys", NULL, 0, NULL},
    {"get", "key default", 1, dict_get}, {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},         {"values", "", 0, dict_values},
};

static const jnative list_methods[] = {
    {"copy", "", 0, any_copy},
    {"count", "value", 1, array_count},
    {"index", "value start stop", 1, array_index},
};

static const jnative tuple_methods[] = {
    {"count", "value", 1, array_count},
    {"index", "value start stop", 1, array_index},
};

static bool cycler_next(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jcycler *c = self->u.cycler;
    (void)j, (void)a;
    *out  = c->items.u.items[c->at];
    c->at = (c->at + 1) % c->items.n;
    return true;
}

static bool cycler_reset(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    self->u.cycler->at = 0;
    *out               = jv_none();
    return true;
}

static const jnative cycler_methods[] = {
    {"next", "", 0, cycler_next},
    {"reset", "", 0, cycler_reset},
};

/* ---- Access ---- */

/* What the sandbox refuses, because it would change a value that others see. */
static bool jinja_is_refused(jkind kind, str name) {
    static const char *const of_list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *const       *names     = kind == J_LIST ? of_list : of_dict;
    size_t n = kind == J_LIST ? COUNT_OF(of_list) : kind == J_DICT ? COUNT_OF(of_dict) : 0;
    for (size_t i = 0; i < n && name.n; i++)
        if (names[i][0] == name.p[0] && str_is(name, names[i])) return true;
    return false;
}

static const jnative *jinja_find_method(jkind kind, str name) {
    switch (kind) {
    case J_STRING: return jnative_find(str_methods, COUNT_OF(str_methods), name);
    case J_DICT: return jnative_find(dict_methods, COUNT_OF(dict_methods), name);
    case J_LIST: return jnative_find(list_methods, COUNT_OF(list_methods), name);
    case J_TUPLE:
    case J_RANGE: return jnative_find(tuple_methods, COUNT_OF(tuple_methods), name);
    case J_CYCLER: return jnative_find(cycler_methods, COUNT_OF(cycler_methods), name);
    default: return NULL;
    }
}

/* Attributes that are no methods. */
static bool jinja_find_field(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    str name = jv_str(key);
    if (object->kind == J_NAMESPACE) {
        const jvalue *value = jdict_get(j, object->u.space->attributes, key);
        if (value) *out = *value;
        return value != NULL;
    }
    if (object->kind == J_TUPLE && (object->flags & J_GROUP)) {
        bool grouper = str_is(name, "grouper");
        if (grouper || str_is(name, "list")) *out = object->u.items[grouper ? 0 : 1];
        return grouper || str_is(name, "list");
    }
    if (object->kind == J_RANGE) {
        const jrange *r = object->u.range;
        bool          start = str_is(name, "start"), stop = str_is(name, "stop");
        *out = jv_int(start ? r->start : stop ? r->stop : r->step);
        return start || stop || str_is(name, "step");
    }
    if (object->kind == J_CYCLER && str_is(name, "current")) {
        *out = object->u.cycler->items.u.items[object->u.cycler->at];
        return true;
    }
    return false;
}

/* The attribute alone: 1 found, 0 not, -1 failed. What the sandbox refuses is found, and undefined. */
static int jinja_own_attribute(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    str name = jv_str(key);
    if (!jinja_step(j, 2)) return -1;
    if (jinja_is_refused((jkind)object->kind, name)) {
        *out = jv_undefined(JU_SENTENCE, str_c("the sandbox forbids methods that change a list or dictionary"));
        return 1;
    }
    const jnative *native = jinja_find_method((jkind)object->kind, name);
    if (native) {
        jmethod *method = (jmethod *)jinja_alloc(j, sizeof *method);
        if (!method) return -1;
        method->native = native;
        method->self   = *object;
        *out           = jv_make(J_METHOD);
        out->u.method  = method;
        return 1;
    }
    return jinja_find_field(j, object, key, out) ? 1 : j->failed == NOVA_OK ? 0 : -1;
}

/* The element alone, likewise. */
static int jinja_own_element(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    if (object->kind == J_DICT) {
        const jvalue *value = jv_hashable(key) ? jdict_get(j, object->u.dict, key) : NULL;
        if (value) *out = *value;
        return value ? 1 : j->failed == NOVA_OK ? 0 : -1;
    }
    uint32_t n;
    bool     indexed = jv_is_array(object) || object->kind == J_STRING || object->kind == J_RANGE;
    if (!indexed || !jv_is_integer(key) || !jv_length(object, &n)) return 0;
    int64_t i = key->u.i < 0 ? key->u.i + n : key->u.i;
    if (i < 0 || i >= n) return 0;
    if (jv_is_array(object)) *out = object->u.items[i];
    else if (object->kind == J_RANGE) *out = jv_int(object->u.range->start + object->u.range->step * i);
    else if (!text_slice(j, object, i, 1, 1, out)) return -1;
    return 1;
}

static bool jinja_attribute(jinja *j, const jvalue *object, const jvalue *name, jvalue *out) {
    if (object->kind == J_UNDEFINED) return jinja_fail_undefined(j, object);
    int found = jinja_own_attribute(j, object, name, out);
    if (!found) found = jinja_own_element(j, object, name, out);
    if (!found) *out = jv_lacking(object, name);
    return found >= 0;
}

static bool jinja_element(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    if (object->kind == J_UNDEFINED) return jinja_fail_undefined(j, object);
    int found = jinja_own_element(j, object, key, out);
    if (!found && jv_is_string(key)) found = jinja_own_attribute(j, object, key, out);
    if (!found) *out = jv_lacking(object, key);
    return found >= 0;
}

static bool jinja_slice(jinja *j, const jvalue *object, const jvalue bounds[3], jvalue *out) {
    int64_t  start, step, count;
    uint32_t n;
    if (!jv_is_array(object) && object->kind != J_STRING && object->kind != J_RANGE)
        return jinja_fail_type(j, "a slice", object);
    if (!jv_length(object, &n) || !jslice_range(j, bounds, n, &start, &step, &count)) return false;
    if (object->kind == J_STRING) return text_slice(j, object, start, step, count, out);
    if (object->kind == J_RANGE) {
        const jrange *r     = object->u.range;
        jrange       *slice = (jrange *)jinja_alloc(j, sizeof *slice);
        if (!slice) return false;
        slice->start = count > 0 ? r->start + start * r->step : r->start;
        slice->step  = count > 1 ? r->step * step : 1;   /* or else it might overflow, and says nothing */
        slice->stop  = (int64_t)((uint64_t)slice->start + (uint64_t)slice->step * (uint64_t)count);
        slice->n     = (uint32_t)count;
        *out         = jv_make(J_RANGE);
        out->u.range = slice;
        return true;
    }
    if (step == 1) {   /* a view */
        *out = jv_items((jkind)object->kind, count ? object->u.items + start : NULL, (size_t)count);
        return true;
    }
    jlist list;
    jlist_open(&list, j);
    for (int64_t i = 0; i < count; i++)
        if (!jlist_add(&list, object->u.items[start + i * step])) return false;
    *out = jlist_close(&list, (jkind)object->kind);
    return true;
}

/* ---- Formatting ---- */

static bool jstr_format_reach(jinja *j, const jvalue *object, const jvalue *name, bool element, jvalue *out) {
    return element ? jinja_element(j, object, name, out) : jinja_attribute(j, object, name, out);
}

static bool jstr_format(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return format_fields(j, self, a, jstr_format_reach, out);
}

static bool jstr_format_map(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jargs named;
    if (a->given[0].kind != J_DICT) return jinja_fail_type(j, "format_map", &a->given[0]);
    memset(&named, 0, sizeof named);
    named.named   = a->given[0].u.dict->pairs;
    named.n_named = a->given[0].u.dict->n;
    return format_fields(j, self, &named, jstr_format_reach, out);
}

/* ==== src/jinja_operate.h ===================================================================================== */

/* Operators on values, as Python's types define them. */
#ifndef NOVA_JINJA_OPERATE_H
#define NOVA_JINJA_OPERATE_H


typedef enum joperator {
    JO_ADD, JO_SUB, JO_MUL, JO_DIV, JO_FLOORDIV, JO_MOD, JO_POW, JO_CONCAT,
    JO_EQ, JO_NE, JO_LT, JO_LE, JO_GT, JO_GE, JO_IN, JO_NOT_IN
} joperator;

/* JO_ADD to JO_CONCAT */
static bool jinja_operate(jinja *j, joperator op, const jvalue *a, const jvalue *b, jvalue *out);
/* JO_EQ to JO_NOT_IN: 1, 0, or -1 after a failure. */
static int jinja_relate(jinja *j, joperator op, const jvalue *a, const jvalue *b);
static bool jinja_negate(jinja *j, const jvalue *a, jvalue *out);

#endif

/* ==== src/jinja_operate.c ===================================================================================== */

/* Operators on values: see jinja_operate.h. */

static bool jinja_fail_operands(jinja *j, const char *op, const jvalue *a, const jvalue *b) {
    if (a->kind == J_UNDEFINED) return jinja_fail_undefined(j, a);
    if (b->kind == J_UNDEFINED) return jinja_fail_undefined(j, b);
    return jinja_fail(j, "'%s' is not for a '%s' and a '%s'", op, jv_type(a), jv_type(b));
}

static bool jinja_fail_beyond(jinja *j) { return jinja_fail(j, "an integer beyond 64 bits"); }

static double jv_double(const jvalue *v) { return v->kind == J_FLOAT ? v->u.f : (double)v->u.i; }

/* ---- Integers, which end at 64 bits ---- */

static bool integer_multiply(int64_t a, int64_t b, int64_t *out) {
    if (a == 0 || b == 0) {
        *out = 0;
        return true;
    }
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    bool     negative = (a < 0) != (b < 0);
    if (x > (negative ? (uint64_t)1 << 63 : INT64_MAX) / y) return false;
    *out = (int64_t)(negative ? 0 - x * y : x * y);
    return true;
}

/* Rounded down; the rest has the divisor's sign. b is not 0; false beyond 64 bits. */
static bool integer_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest) {
    if (a == INT64_MIN && b == -1) return false;
    *quotient = a / b;
    *rest     = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return true;
}

static bool integer_power(int64_t base, int64_t exponent, int64_t *out) {
    *out = 1;
    while (exponent > 0) {
        if ((exponent & 1) && !integer_multiply(*out, base, out)) return false;
        exponent >>= 1;
        if (exponent && !integer_multiply(base, base, &base)) return false;
    }
    return true;
}

static bool operate_integers(jinja *j, joperator op, int64_t a, int64_t b, jvalue *out) {
    int64_t x = 0, rest = 0;
    bool    fits = true;
    switch (op) {
    case JO_ADD:
        fits = b > 0 ? a <= INT64_MAX - b : a >= INT64_MIN - b;
        x    = fits ? a + b : 0;
        break;
    case JO_SUB:
        fits = b < 0 ? a <= INT64_MAX + b : a >= INT64_MIN + b;
        x    = fits ? a - b : 0;
        break;
    case JO_MUL: fits = integer_multiply(a, b, &x); break;
    case JO_FLOORDIV:
    case JO_MOD:
        if (b == 0) return jinja_fail(j, "division by zero");
        fits = integer_divide(a, b, &x, &rest);
        if (op == JO_MOD) x = fits ? rest : 0;
        fits = fits || op == JO_MOD;
        break;
    default: fits = integer_power(a, b, &x); break;
    }
    if (!fits) return jinja_fail_beyond(j);
    *out = jv_int(x);
    return true;
}

/* ---- Floats ---- */

static double float_modulo(double a, double b) {
    double m = fmod(a, b);
    if (m == 0) return copysign(0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static double float_floor_divide(double a, double b) {
    double m = fmod(a, b), whole = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0)) whole -= 1;
    if (whole == 0) return copysign(0, a / b);
    double down = floor(whole);
    return whole - down > 0.5 ? down + 1 : down;
}

static bool operate_floats(jinja *j, joperator op, double a, double b, jvalue *out) {
    if ((op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD) && b == 0) return jinja_fail(j, "division by zero");
    double x = 0;
    switch (op) {
    case JO_ADD: x = a + b; break;
    case JO_SUB: x = a - b; break;
    case JO_MUL: x = a * b; break;
    case JO_DIV: x = a / b; break;
    case JO_FLOORDIV: x = float_floor_divide(a, b); break;
    case JO_MOD: x = float_modulo(a, b); break;
    default:
        if (a == 0 && b < 0) return jinja_fail(j, "zero to a negative power");
        if (a < 0 && a - a == 0 && b - b == 0 && floor(b) != b) return jinja_fail(j, "a complex number");
        x = pow(a, b);
        if (x - x != 0 && a - a == 0 && b - b == 0) return jinja_fail(j, "a power is too large");
        break;
    }
    *out = jv_float(x);
    return true;
}

static bool operate_numbers(jinja *j, joperator op, const jvalue *a, const jvalue *b, jvalue *out) {
    bool integers = jv_is_integer(a) && jv_is_integer(b);
    if (!integers || op == JO_DIV || (op == JO_POW && b->u.i < 0))
        return operate_floats(j, op, jv_double(a), jv_double(b), out);
    return operate_integers(j, op, a->u.i, b->u.i, out);
}

/* ---- Strings and lists ---- */

/* Markup escapes what it is added to. */
static bool operate_add_strings(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    jvalue x = *a, y = *b;
    bool   safe = ((a->flags | b->flags) & J_SAFE) != 0;
    if (safe && (!text_escape(j, a, &x) || !text_escape(j, b, &y))) return false;
    if (!jinja_concat(j, &x, &y, out)) return false;
    if (safe) out->flags |= J_SAFE;
    return true;
}

static bool operate_repeat_items(jinja *j, const jvalue *a, int64_t times, jvalue *out) {
    size_t n = 0, size = 0;
    if (times < 0) times = 0;
    if ((uint64_t)times > JINJA_MAX_BYTES || !size_mul(a->n, (size_t)times, &n) || n > JINJA_MAX_BYTES / sizeof *a)
        n = JINJA_MAX_BYTES;   /* fails just below */
    if (a->n == 0) n = 0;
    if (!size_mul(n, sizeof *a, &size) || !jinja_step(j, n >> 2)) return false;
    jvalue *items = (jvalue *)jinja_alloc(j, size);
    if (!items) return false;
    for (size_t i = 0; i < n; i++) items[i] = a->u.items[i % a->n];
    *out = jv_items((jkind)a->kind, items, n);
    return true;
}

static bool operate_add_items(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    size_t n = (size_t)a->n + b->n;
    if (!jinja_step(j, n >> 2)) return false;
    jvalue *items = (jvalue *)jinja_alloc(j, n * sizeof *items);   /* both fit, so their sum cannot overflow */
    if (!items) return false;
    if (a->n) memcpy(items, a->u.items, a->n * sizeof *items);
    if (b->n) memcpy(items + a->n, b->u.items, b->n * sizeof *items);
    *out = jv_items((jkind)a->kind, items, n);
    return true;
}

static bool operate_concat(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    jvalue x, y;
    return jv_to_string(j, a, &x) && jv_to_string(j, b, &y) && jinja_concat(j, &x, &y, out);
}

static bool operate_multiply(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    if (jv_is_integer(a)) {
        const jvalue *swap = a;
        a                  = b;
        b                  = swap;
    }
    if (jv_is_string(a) && jv_is_integer(b)) return text_repeat(j, a, b->u.i, out);
    if (jv_is_array(a) && jv_is_integer(b)) return operate_repeat_items(j, a, b->u.i, out);
    return jinja_fail_operands(j, "*", a, b);
}

static bool jinja_operate(jinja *j, joperator op, const jvalue *a, const jvalue *b, jvalue *out) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (op == JO_CONCAT) return operate_concat(j, a, b, out);
    if (jv_is_number(a) && jv_is_number(b)) return operate_numbers(j, op, a, b, out);
    if (op == JO_ADD && jv_is_string(a) && jv_is_string(b)) return operate_add_strings(j, a, b, out);
    if (op == JO_ADD && jv_is_array(a) && a->kind == b->kind) return operate_add_items(j, a, b, out);
    if (op == JO_MUL) return operate_multiply(j, a, b, out);
    if (op == JO_MOD && jv_is_string(a)) return format_percent(j, a, b, out);
    return jinja_fail_operands(j, names[op], a, b);
}

static bool jinja_negate(jinja *j, const jvalue *a, jvalue *out) {
    if (a->kind == J_FLOAT) *out = jv_float(-a->u.f);
    else if (!jv_is_integer(a)) return jinja_fail_type(j, "'-'", a);
    else if (a->u.i == INT64_MIN) return jinja_fail_beyond(j);
    else *out = jv_int(-a->u.i);
    return true;
}

/* ---- Relations ---- */

/* item in container, with Python's rule for strings. */
static int relate_in(jinja *j, const jvalue *container, const jvalue *item) {
    size_t at, n;
    if (!jv_is_string(container)) return jv_contains(j, container, item);
    if (!jarg_string(j, item)) return -1;
    return text_find(j, container, 0, container->n, item, &at, &n);
}

static int jinja_relate(jinja *j, joperator op, const jvalue *a, const jvalue *b) {
    int result, sign = 0;
    switch (op) {
    case JO_EQ: return jv_equal(j, a, b);
    case JO_NE: result = jv_equal(j, a, b); return result < 0 ? -1 : !result;
    case JO_IN: return relate_in(j, b, a);
    case JO_NOT_IN: result = relate_in(j, b, a); return result < 0 ? -1 : !result;
    default: break;
    }
    if (!jv_compare(j, a, b, &sign)) return -1;
    switch (op) {
    case JO_LT: return sign == -1;
    case JO_LE: return sign == -1 || sign == 0;
    case JO_GT: return sign == 1;
    default: return sign == 1 || sign == 0;
    }
}

/* ==== src/jinja_test.h ======================================================================================== */

/* The tests of Jinja 3.1: what stands behind `is`. */
#ifndef NOVA_JINJA_TEST_H
#define NOVA_JINJA_TEST_H


static const jnative *jinja_test(str name);   /* NULL: there is none of this name */
/* 1, 0, or -1 after a failure. */
static int jinja_call_test(jinja *j, const jnative *test, const jvalue *v, const jargs *a);

#endif

/* ==== src/jinja_test.c ======================================================================================== */

/* What stands behind `is`: see jinja_test.h. Source: Jinja's "List of Builtin Tests". */

static const jnative *jinja_filter(str name);   /* for "is filter"; from further down */

static int jinja_call_test(jinja *j, const jnative *test, const jvalue *v, const jargs *a) {
    jvalue result = jv_bool(false);
    if (!jnative_call(j, test, v, a, &result)) return -1;
    return jv_true(&result);
}

static bool test_is(jvalue *out, bool is) {
    *out = jv_bool(is);
    return true;
}

#define JINJA_KIND_TEST(name, condition)                                                       \
    static bool test_##name(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {        \
        (void)j, (void)a;                                                                      \
        return test_is(out, condition);                                                        \
    }

JINJA_KIND_TEST(defined, self->kind != J_UNDEFINED)
JINJA_KIND_TEST(undefined, self->kind == J_UNDEFINED)
JINJA_KIND_TEST(none, self->kind == J_NONE)
JINJA_KIND_TEST(boolean, self->kind == J_BOOL)
JINJA_KIND_TEST(true, self->kind == J_BOOL && self->u.i)
JINJA_KIND_TEST(false, self->kind == J_BOOL && !self->u.i)
JINJA_KIND_TEST(integer, self->kind == J_INT || self->kind == J_BIG)
JINJA_KIND_TEST(float, self->kind == J_FLOAT)
JINJA_KIND_TEST(number, jv_is_number(self) || self->kind == J_BIG)
JINJA_KIND_TEST(string, self->kind == J_STRING)
JINJA_KIND_TEST(mapping, self->kind == J_DICT)
JINJA_KIND_TEST(sequence, jv_is_array(self) || self->kind == J_DICT || self->kind == J_STRING ||
                self->kind == J_RANGE || self->kind == J_UNDEFINED)
JINJA_KIND_TEST(iterable, jv_is_iterable(self) || self->kind == J_LOOP)
JINJA_KIND_TEST(callable, self->kind == J_MACRO || self->kind == J_METHOD || self->kind == J_FUNCTION ||
                self->kind == J_LOOP || self->kind == J_JOINER || self->kind == J_UNDEFINED)
JINJA_KIND_TEST(escaped, self->kind == J_STRING && (self->flags & J_SAFE))

static bool test_case(jinja *j, const jvalue *self, bool upper, jvalue *out) {
    jvalue s;
    return jv_to_string(j, self, &s) && jstr_is_case(j, &s, upper, out);
}

static bool test_lower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return test_case(j, self, false, out);
}

static bool test_upper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return test_case(j, self, true, out);
}

static bool test_divides(jinja *j, const jvalue *self, const jvalue *by, int64_t rest, jvalue *out) {
    jvalue modulo, expected = jv_int(rest);
    if (!jinja_operate(j, JO_MOD, self, by, &modulo)) return false;
    int equal = jv_equal(j, &modulo, &expected);
    return equal >= 0 && test_is(out, equal == 1);
}

static bool test_divisibleby(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return test_divides(j, self, &a->given[0], 0, out);
}

static bool test_even(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue two = jv_int(2);
    (void)a;
    return test_divides(j, self, &two, 0, out);
}

static bool test_odd(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue two = jv_int(2);
    (void)a;
    return test_divides(j, self, &two, 1, out);
}

static bool test_filter(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    return test_is(out, jv_is_string(self) && jinja_filter(jv_str(self)) != NULL);
}

static bool test_test(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    return test_is(out, jv_is_string(self) && jinja_test(jv_str(self)) != NULL);
}

/* The same object; for what has no identity here, the same kind and value. */
static bool test_sameas(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *b = &a->given[0];
    (void)j;
    if (self->kind != b->kind || self->n != b->n) return test_is(out, false);
    if (jv_is_string(self)) return test_is(out, jstring_equal(self, b));
    if (self->kind == J_NONE || self->kind == J_UNDEFINED) return test_is(out, true);
    if (self->kind == J_FLOAT) return test_is(out, self->u.f == b->u.f);
    if (jv_is_integer(self)) return test_is(out, self->u.i == b->u.i);
    return test_is(out, self->u.object == b->u.object);
}

#define JINJA_RELATION_TEST(name, op)                                                          \
    static bool test_##name(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {        \
        int is = jinja_relate(j, op, self, &a->given[0]);                                      \
        return is >= 0 && test_is(out, is == 1);                                               \
    }

JINJA_RELATION_TEST(eq, JO_EQ)
JINJA_RELATION_TEST(ne, JO_NE)
JINJA_RELATION_TEST(lt, JO_LT)
JINJA_RELATION_TEST(le, JO_LE)
JINJA_RELATION_TEST(gt, JO_GT)
JINJA_RELATION_TEST(ge, JO_GE)
JINJA_RELATION_TEST(in, JO_IN)

static const jnative jinja_tests[] = {
    {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},
    {"divisibleby", "num", 1, test_divisibleby},
    {"defined", "", 0, test_defined},
    {"undefined", "", 0, test_undefined},
    {"filter", "", 0, test_filter},
    {"test", "", 0, test_test},
    {"none", "", 0, test_none},
    {"boolean", "", 0, test_boolean},
    {"false", "", 0, test_false},
    {"true", "", 0, test_true},
    {"integer", "", 0, test_integer},
    {"float", "", 0, test_float},
    {"lower", "", 0, test_lower},
    {"upper", "", 0, test_upper},
    {"string", "", 0, test_string},
    {"mapping", "", 0, test_mapping},
    {"number", "", 0, test_number},
    {"sequence", "", 0, test_sequence},
    {"iterable", "", 0, test_iterable},
    {"callable", "", 0, test_callable},
    {"sameas", "other", 1, test_sameas},
    {"escaped", "", 0, test_escaped},
    {"in", "seq", 1, test_in},
    {"==", "other", 1, test_eq},
    {"eq", "other", 1, test_eq},
    {"equalto", "other", 1, test_eq},
    {"!=", "other", 1, test_ne},
    {"ne", "other", 1, test_ne},
    {">", "other", 1, test_gt},
    {"gt", "other", 1, test_gt},
    {"greaterthan", "other", 1, test_gt},
    {"ge", "other", 1, test_ge},
    {">=", "other", 1, test_ge},
    {"<", "other", 1, test_lt},
    {"lt", "other", 1, test_lt},
    {"lessthan", "other", 1, test_lt},
    {"<=", "other", 1, test_le},
    {"le", "other", 1, test_le},
};

static const jnative *jinja_test(str name) { return jnative_find(jinja_tests, COUNT_OF(jinja_tests), name); }

/* ==== src/jinja_filter.h ====================================================================================== */

/* The filters of Jinja 3.1 with those of chat templates (tojson), as far as chat templates may want them. */
#ifndef NOVA_JINJA_FILTER_H
#define NOVA_JINJA_FILTER_H


/* NULL: there is none of this name. Without `fn`: Jinja has it, this interpreter not. */
static const jnative *jinja_filter(str name);

#endif

/* ==== src/jinja_filter.c ====================================================================================== */

/* Filters: see jinja_filter.h. Source: Jinja's "List of Builtin Filters". */

/* NULL for what is missing or none. */
static const jvalue *jarg_or_null(const jvalue *v) { return jv_given(v) && v->kind != J_NONE ? v : NULL; }

static jargs jargs_none(void) {
    jargs a;
    memset(&a, 0, sizeof a);
    return a;
}

/* ---- Attributes by path: "a.b.0" ---- */

/* The next part of a path at *at; digits alone are an index. */
static jvalue path_part(const jvalue *path, size_t *at) {
    const char *start = path->u.s + *at, *dot = (const char *)memchr(start, '.', path->n - *at);
    size_t      n     = dot ? (size_t)(dot - start) : path->n - *at;
    bool        digits = n > 0, beyond;
    int64_t     index;
    for (size_t i = 0; i < n; i++) digits = digits && start[i] >= '0' && start[i] <= '9';
    *at += n + 1;
    if (digits && jv_parse_int(str_of(start, n), 10, &index, &beyond)) return jv_int(index);
    return jv_string(start, n, path->flags & J_MARKED);
}

/* The item itself when there is no path. `fallback` (or NULL) takes the place of what is undefined on the way. */
static bool path_get(jinja *j, const jvalue *item, const jvalue *path, const jvalue *fallback, jvalue *out) {
    *out = *item;
    if (!path || !jv_given(path) || path->kind == J_NONE) return true;
    size_t at = 0;
    do {   /* a number is a path of one part */
        jvalue of = *out, part = jv_is_string(path) ? path_part(path, &at) : *path;
        if (!jinja_element(j, &of, &part, out)) return false;
        if (fallback && out->kind == J_UNDEFINED) *out = *fallback;
    } while (jv_is_string(path) && at <= path->n);
    return true;
}

/* The same, in lower case when it is a string and case shall not count. */
static bool path_key(jinja *j, const jvalue *item, const jvalue *path, bool cased, const jvalue *fallback,
                     jvalue *out) {
    if (!path_get(j, item, path, fallback, out)) return false;
    if (cased || !jv_is_string(out)) return true;
    jvalue s = *out;
    return text_convert(j, &s, LETTER_LOWER, out);
}

/* ---- Strings ---- */

static bool filter_upper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_soft_string(j, self, &s) && text_convert(j, &s, LETTER_UPPER, out);
}

static bool filter_lower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_soft_string(j, self, &s) && text_convert(j, &s, LETTER_LOWER, out);
}

static bool filter_capitalize(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_soft_string(j, self, &s) && text_capitalize(j, &s, out);
}

/* Words begin behind blanks and - ( { [ < only. */
static bool filter_title(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    jtext  t;
    bool   first = true;
    (void)a;
    if (!jv_soft_string(j, self, &s) || !jinja_step(j, s.n >> 1)) return false;
    jtext_open(&t, j);
    for (size_t i = 0; i < s.n && j->failed == NOVA_OK;) {
        uint32_t c;
        size_t   n    = letter_next(s.u.s + i, s.u.s + s.n, &c);
        jvalue   part = text_part(&s, i, i + n), other;
        bool     gap  = letter_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
        if (gap) other = part;
        else if (!text_convert(j, &part, first ? LETTER_UPPER : LETTER_LOWER, &other)) return false;
        jtext_add_string(&t, &other);
        first = gap;
        i += n;
    }
    return jtext_close(&t, out);
}

static bool filter_trim(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue        s;
    const jvalue *characters = jarg_or_null(&a->given[0]);
    if (characters && !jarg_string(j, characters)) return false;
    return jv_soft_string(j, self, &s) && text_strip(j, &s, characters, TEXT_LEFT | TEXT_RIGHT, out);
}

static bool filter_replace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  s, from, to;
    int64_t most;
    return jv_to_string(j, self, &s) && jv_to_string(j, &a->given[0], &from) && jv_to_string(j, &a->given[1], &to) &&
           jarg_int(j, &a->given[2], -1, &most) && text_replace(j, &s, &from, &to, most, out);
}

static bool filter_center(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  s, width[2] = {jv_int(80), jv_make(J_MISSING)};
    int64_t given;
    if (!jv_soft_string(j, self, &s) || !jarg_int(j, &a->given[0], 80, &given)) return false;
    width[0]   = jv_int(given);
    jargs call = jargs_none();
    call.given = width;
    call.n     = 2;
    return jstr_center(j, &s, &call, out);
}

static bool filter_string(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jv_soft_string(j, self, out);
}

static bool filter_safe(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jv_to_string(j, self, out)) return false;
    out->flags |= J_SAFE;
    return true;
}

static bool filter_escape(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_escape(j, self, out);
}

static bool filter_forceescape(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_to_string(j, self, &s) && text_escape(j, &s, out);
}

static bool filter_format(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s, argument = jv_items(J_TUPLE, a->given, a->n);
    if (a->n && a->n_named) return jinja_fail(j, "format takes arguments with or without names, not both");
    if (a->n_named) {
        jdict *names = jdict_open(j);
        if (!names) return false;
        for (uint32_t i = 0; i < a->n_named; i++)
            if (!jdict_set(j, names, &a->named[i].key, &a->named[i].value)) return false;
        argument = jv_dict(names);
    }
    return jv_soft_string(j, self, &s) && format_percent(j, &s, &argument, out);
}

static bool filter_indent(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  by = a->given[0], blank = jv_c(" "), newline = jv_c("\n"), text, lines;
    int64_t width;
    bool    first = jarg_true(&a->given[1], false), empty = jarg_true(&a->given[2], false);
    if (!jv_is_string(&by) && (!jarg_int(j, &by, 4, &width) || !text_repeat(j, &blank, width, &by))) return false;
    if (!jv_is_string(self)) return jinja_fail_type(j, "indent", self);
    if (!jinja_concat(j, self, &newline, &text) || !text_lines(j, &text, false, &lines)) return false;
    jtext t;
    jtext_open(&t, j);
    for (uint32_t i = 0; i < lines.n && jinja_step(j, 1); i++) {
        const jvalue *line = &lines.u.items[i];
        if (i) jtext_add_c(&t, "\n");
        if (i ? line->n || empty : first) jtext_add_string(&t, &by);
        jtext_add_string(&t, line);
    }
    if (!jtext_close(&t, out)) return false;
    out->flags |= self->flags & J_SAFE;
    return true;
}

static bool filter_truncate(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t length, leeway;
    jvalue  end = jv_given(&a->given[2]) ? a->given[2] : jv_c("..."), cut, blank = jv_c(" ");
    uint32_t size;
    if (!jv_length(self, &size)) return jinja_fail_type(j, "truncate", self);
    if (!jarg_int(j, &a->given[0], 255, &length) || !jarg_int(j, &a->given[3], 5, &leeway) || !jarg_string(j, &end))
        return false;
    int64_t n_end = (int64_t)letter_count(end.u.s, end.n);
    if (length < n_end || leeway < 0) return jinja_fail(j, "truncate: the length is below that of the end");
    *out = *self;
    if ((int64_t)size - leeway <= length) return true;
    if (!jv_is_string(self)) return jinja_fail_type(j, "truncate", self);
    if (!jinja_step(j, self->n >> 4)) return false;
    if (!text_slice(j, self, 0, 1, length - n_end, &cut)) return false;
    size_t at, n;
    int    found = jarg_true(&a->given[1], false) ? 0 : text_find_last(j, &cut, 0, cut.n, &blank, &at, &n);
    if (found < 0) return false;
    if (found) cut = text_part(&cut, 0, at);
    return jinja_concat(j, &cut, &end, out);
}

static bool filter_wordcount(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  s;
    int64_t count  = 0;
    bool    inside = false;
    (void)a;
    if (!jv_soft_string(j, self, &s) || !jinja_step(j, s.n >> 2)) return false;
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        i += letter_next(s.u.s + i, s.u.s + s.n, &c);
        bool word = letter_is_alnum(c) || c == '_';
        count += word && !inside;
        inside = word;
    }
    *out = jv_int(count);
    return true;
}

static bool filter_urlencode(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    jtext  t;
    (void)a;
    if (jv_is_iterable(self) && !jv_is_string(self)) return jinja_fail(j, "urlencode is supported for strings alone");
    if (!jv_to_string(j, self, &s) || !jinja_step(j, s.n >> 2)) return false;
    jtext_open(&t, j);
    for (size_t i = 0; i < s.n; i++) {
        unsigned char b = (unsigned char)s.u.s[i];
        char          hex[8];
        if (b == LETTER_MARK) continue;
        if (b && (digit_value((char)b) < 36 || strchr("_.-~/", b))) jtext_add(&t, s.u.s + i, 1);
        else if (snprintf(hex, sizeof hex, "%%%02X", b) > 0) jtext_add_c(&t, hex);
    }
    return jtext_close(&t, out);
}

/* tojson as chat templates have it: no HTML escapes, other defaults. */
static bool filter_tojson(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *indent = &a->given[1], *parts = &a->given[2];
    json_style    style;
    jvalue        blank = jv_c(" ");
    jtext         t;
    memset(&style, 0, sizeof style);
    style.ascii     = jarg_true(&a->given[0], false);
    style.sort_keys = jarg_true(&a->given[3], false);
    style.lines     = jv_given(indent) && indent->kind != J_NONE;
    style.comma     = style.lines ? jv_c(",") : jv_c(", ");
    style.colon     = jv_c(": ");
    if (style.lines) {
        style.indent = *indent;
        if (jv_is_integer(indent) && !text_repeat(j, &blank, indent->u.i, &style.indent)) return false;
        if (!jarg_string(j, &style.indent)) return false;
    }
    if (jv_given(parts) && parts->kind != J_NONE) {
        const jvalue *two = parts->u.items;
        if (!jv_is_array(parts) || parts->n != 2 || !jv_is_string(&two[0]) || !jv_is_string(&two[1]))
            return jinja_fail(j, "tojson: separators must be two strings");
        style.comma = parts->u.items[0];
        style.colon = parts->u.items[1];
    }
    jtext_open(&t, j);
    return jtext_add_json(&t, self, &style) && jtext_close(&t, out);
}

/* ---- Numbers ---- */

static bool filter_int(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t base, i = 0;
    double  f = 0;
    bool    beyond = false, real = self->kind == J_FLOAT;
    *out           = jv_given(&a->given[0]) ? a->given[0] : jv_int(0);
    if (!jarg_int(j, &a->given[1], 10, &base)) return false;
    if (self->kind == J_UNDEFINED) return jinja_fail_undefined(j, self);
    if (jv_is_integer(self)) {
        *out = jv_int(self->u.i);
        return true;
    }
    if (jv_is_string(self)) {
        bool usable = base == 0 || (base >= 2 && base <= 36);
        if (!jinja_step(j, self->n >> 3)) return false;
        if (usable && jv_parse_int(jv_str(self), (int)base, &i, &beyond)) {
            *out = jv_int(i);
            return true;
        }
        real = !beyond && jv_parse_float(jv_str(self), &f);
    } else if (real) {
        f = self->u.f;
    }
    if (beyond || self->kind == J_BIG) return jinja_fail(j, "int: an integer beyond 64 bits");
    if (!real || f != f || (f - f != 0 && jv_is_string(self))) return true;   /* no number: the default */
    if (!(fabs(f) < 9223372036854775808.0)) return jinja_fail(j, "int: an integer beyond 64 bits");
    *out = jv_int((int64_t)f);
    return true;
}

static bool filter_float(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    double f = 0;
    *out     = jv_given(&a->given[0]) ? a->given[0] : jv_float(0);
    if (self->kind == J_UNDEFINED) return jinja_fail_undefined(j, self);
    if (jv_is_integer(self)) *out = jv_float((double)self->u.i);
    if (self->kind == J_FLOAT) *out = *self;
    if (jv_is_string(self) && jv_parse_float(jv_str(self), &f)) *out = jv_float(f);
    return true;
}

static bool filter_abs(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jv_is_number(self)) return jinja_fail_type(j, "abs", self);
    if (self->kind == J_FLOAT) *out = jv_float(fabs(self->u.f));
    else if (self->u.i == INT64_MIN) return jinja_fail(j, "abs: an integer beyond 64 bits");
    else *out = jv_int(self->u.i < 0 ? -self->u.i : self->u.i);
    return true;
}

/* x rounded to `digits` behind the point, half to even, exactly. */
static double round_digits(double x, int64_t digits) {
    char text[FORMAT_MAX_NUMBER];
    if (x - x != 0 || digits > 350) return x;
    if (digits >= 0) {
        jfloat_format(text, sizeof text, "%.*f", (int)digits, x);
        double magnitude = jfloat_parse(str_c(text + (text[0] == '-')));
        return text[0] == '-' ? -magnitude : magnitude;
    }
    double unit = digits < -308 ? HUGE_VAL : pow(10, (double)-digits), n = x / unit, down = floor(n);
    bool   up   = n - down > 0.5 || (n - down == 0.5 && fmod(down, 2) != 0);
    return digits < -308 ? 0 * x : (down + up) * unit;
}

/* The same for whole tens, hundreds, ...: `digits` is below 0. */
static bool round_integer(jinja *j, int64_t i, int64_t digits, jvalue *out) {
    int64_t unit = 1, rest, down;
    for (; digits < 0 && unit <= INT64_MAX / 10; digits++) unit *= 10;
    if (digits < 0) {   /* a unit beyond 64 bits */
        *out = jv_int(0);
        return digits < -1 || (i <= INT64_MAX / 2 && i >= INT64_MIN / 2) || jinja_fail(j, "an integer beyond 64 bits");
    }
    rest     = i % unit;
    down     = i - rest;
    bool beyond = rest > unit / 2 || rest < -(unit / 2), half = unit > 1 && (rest == unit / 2 || rest == -(unit / 2));
    jvalue   whole = jv_int(down), more = jv_int(i < 0 ? -unit : unit);
    if (beyond || (half && (down / unit) % 2 != 0)) return jinja_operate(j, JO_ADD, &whole, &more, out);
    *out = whole;
    return true;
}

static bool filter_round(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t digits;
    jvalue  how = jv_given(&a->given[1]) ? a->given[1] : jv_c("common");
    if (!jarg_int(j, &a->given[0], 0, &digits) || !jarg_string(j, &how) || !jinja_step(j, 100)) return false;
    bool up = str_is(jv_str(&how), "ceil"), down = str_is(jv_str(&how), "floor");
    if (!up && !down && !str_is(jv_str(&how), "common"))
        return jinja_fail(j, "round: the method must be common, ceil or floor");
    if (!jv_is_number(self)) return jinja_fail_type(j, "round", self);
    double x = self->kind == J_FLOAT ? self->u.f : (double)self->u.i, unit = pow(10, (double)digits);
    if (!up && !down && self->kind == J_FLOAT) *out = jv_float(round_digits(x, digits));
    else if (!up && !down && digits < 0) return round_integer(j, self->u.i, digits, out);
    else if (!up && !down) *out = jv_int(self->u.i);
    else if (x - x != 0) return jinja_fail(j, "round: no finite number");
    else *out = jv_float((up ? ceil(x * unit) : floor(x * unit)) / unit);
    return true;
}

/* ---- Sequences ---- */

static bool filter_length(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    uint32_t n;
    (void)a;
    if (!jv_length(self, &n)) return jinja_fail_type(j, "length", self);
    *out = jv_int(n);
    return jinja_step(j, jv_is_string(self) ? self->n >> 4 : 1);
}

static bool filter_first(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jiter it;
    (void)a;
    if (!jiter_open(j, &it, self)) return false;
    int got = jiter_next(j, &it, out);
    if (!got) *out = jv_undefined(JU_SENTENCE, str_c("the sequence has no first item"));
    return got >= 0;
}

static bool filter_last(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    uint32_t n;
    jvalue   list, at;
    (void)a;
    if (!jv_length(self, &n)) return jinja_fail_type(j, "last", self);
    *out = jv_undefined(JU_SENTENCE, str_c("the sequence has no last item"));
    if (n == 0) return true;
    if (jv_is_string(self)) {
        at = jv_int(-1);
        return jinja_element(j, self, &at, out);
    }
    if (!jv_to_list(j, self, &list)) return false;
    *out = list.u.items[list.n - 1];
    return true;
}

static bool filter_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jv_to_list(j, self, out);
}

static bool filter_default(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool use = self->kind == J_UNDEFINED || (jarg_true(&a->given[1], false) && !jv_true(self));
    *out     = !use ? *self : jv_given(&a->given[0]) ? a->given[0] : jv_c("");
    return j->failed == NOVA_OK;
}

static bool filter_join(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue between = jv_c(""), items = *self;
    if (jv_given(&a->given[0]) && !jv_to_string(j, &a->given[0], &between)) return false;
    if (jv_given(&a->given[1]) && a->given[1].kind != J_NONE) {
        jlist  list;
        jiter  it;
        jvalue item;
        int    got;
        jlist_open(&list, j);
        if (!jiter_open(j, &it, self)) return false;
        while ((got = jiter_next(j, &it, &item)) == 1) {
            jvalue part;
            if (!path_get(j, &item, &a->given[1], NULL, &part) || !jlist_add(&list, part)) return false;
        }
        if (got < 0) return false;
        items = jlist_close(&list, J_LIST);
    }
    return jinja_join(j, &between, &items, true, out);
}

/* Pairs of key and item, for all that sorts. */
static bool sort_pairs(jinja *j, const jvalue *items, const jvalue *path, bool cased, const jvalue *fallback,
                       jpair **pairs, uint32_t *n) {
    jvalue list;
    if (!jv_to_list(j, items, &list)) return false;
    *n     = list.n;
    *pairs = (jpair *)jinja_alloc(j, (list.n + 1) * sizeof **pairs);
    if (!*pairs) return false;
    for (uint32_t i = 0; i < list.n; i++) {
        (*pairs)[i].value = list.u.items[i];
        if (!path_key(j, &list.u.items[i], path, cased, fallback, &(*pairs)[i].key)) return false;
    }
    return true;
}

static bool sort_values(jinja *j, const jpair *pairs, uint32_t n, jvalue *out) {
    jlist list;
    jlist_open(&list, j);
    for (uint32_t i = 0; i < n; i++)
        if (!jlist_add(&list, pairs[i].value)) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

/* Several attributes, with commas between them, make keys that are lists. */
static bool sort_by_many(jinja *j, jpair *pairs, uint32_t n, const jvalue *paths, bool cased) {
    jvalue comma = jv_c(","), parts;
    if (!text_split(j, paths, &comma, -1, &parts)) return false;
    for (uint32_t i = 0; i < n; i++) {
        jlist key;
        jlist_open(&key, j);
        for (uint32_t k = 0; k < parts.n; k++) {
            jvalue part;
            if (!path_key(j, &pairs[i].value, &parts.u.items[k], cased, NULL, &part)) return false;
            if (!jlist_add(&key, part)) return false;
        }
        pairs[i].key = jlist_close(&key, J_LIST);
    }
    return true;
}

static bool filter_sort(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool          reverse = jarg_true(&a->given[0], false), cased = jarg_true(&a->given[1], false);
    const jvalue *path = &a->given[2];
    bool          many = jv_is_string(path) && memchr(path->u.s, ',', path->n);
    jpair        *pairs;
    uint32_t      n;
    return sort_pairs(j, self, many ? NULL : path, cased, NULL, &pairs, &n) &&
           (!many || sort_by_many(j, pairs, n, path, cased)) && jpair_sort(j, pairs, n, reverse) &&
           sort_values(j, pairs, n, out);
}

static bool filter_dictsort(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool   cased = jarg_true(&a->given[0], false), reverse = jarg_true(&a->given[2], false);
    jvalue by = jv_given(&a->given[1]) ? a->given[1] : jv_c("key"), items, at = jv_int(0);
    jpair *pairs;
    uint32_t n;
    if (!jarg_string(j, &by)) return false;
    if (str_is(jv_str(&by), "value")) at = jv_int(1);
    else if (!str_is(jv_str(&by), "key")) return jinja_fail(j, "dictsort: only by key or by value");
    if (self->kind != J_DICT) return jinja_fail_type(j, "dictsort", self);
    items = jv_view(self->u.dict, JV_ITEMS);
    return sort_pairs(j, &items, &at, cased, NULL, &pairs, &n) && jpair_sort(j, pairs, n, reverse) &&
           sort_values(j, pairs, n, out);
}

static bool filter_extreme(jinja *j, const jvalue *self, const jargs *a, int wanted, jvalue *out) {
    jpair   *pairs;
    uint32_t n, best = 0;
    if (!sort_pairs(j, self, &a->given[1], jarg_true(&a->given[0], false), NULL, &pairs, &n)) return false;
    *out = jv_undefined(JU_SENTENCE, str_c("the sequence has no items to compare"));
    for (uint32_t i = 1; i < n; i++) {
        int sign;
        if (!jv_compare(j, &pairs[i].key, &pairs[best].key, &sign)) return false;
        if (sign == wanted) best = i;
    }
    if (n) *out = pairs[best].value;
    return true;
}

static bool filter_min(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_extreme(j, self, a, -1, out);
}

static bool filter_max(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_extreme(j, self, a, 1, out);
}

/* The first key of every group, as it was written, and the group's items. */
static bool filter_groupby(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *path = &a->given[0], *fallback = jarg_or_null(&a->given[1]);
    bool          cased = jarg_true(&a->given[2], false);
    jpair        *pairs;
    uint32_t      n;
    jlist         groups, list;
    if (!sort_pairs(j, self, path, cased, fallback, &pairs, &n) || !jpair_sort(j, pairs, n, false)) return false;
    jlist_open(&groups, j);
    for (uint32_t i = 0, from = 0; i < n; i++) {
        int same = i + 1 < n ? jv_equal(j, &pairs[i].key, &pairs[i + 1].key) : 0;
        if (same < 0) return false;
        if (same) continue;
        jvalue *pair = (jvalue *)jinja_alloc(j, 2 * sizeof *pair);
        if (!pair || !path_get(j, &pairs[from].value, path, fallback, &pair[0])) return false;
        jlist_open(&list, j);
        for (; from <= i; from++)
            if (!jlist_add(&list, pairs[from].value)) return false;
        pair[1]      = jlist_close(&list, J_LIST);
        jvalue group = jv_items(J_TUPLE, pair, 2);
        group.flags  = J_GROUP;
        if (!jlist_add(&groups, group)) return false;
    }
    *out = jlist_close(&groups, J_LIST);
    return true;
}

static bool filter_sum(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jiter  it;
    jvalue item, part, sum = jv_given(&a->given[1]) ? a->given[1] : jv_int(0);
    int    got;
    if (jv_is_string(&sum)) return jinja_fail(j, "sum: not for strings");
    if (!jiter_open(j, &it, self)) return false;
    while ((got = jiter_next(j, &it, &item)) == 1) {
        jvalue before = sum;
        if (!path_get(j, &item, &a->given[0], NULL, &part)) return false;
        if (!jinja_operate(j, JO_ADD, &before, &part, &sum)) return false;
    }
    *out = sum;
    return got == 0;
}

/* ---- Generators: nothing is computed, and nothing fails, before an item is asked for ---- */

static jgenerator *generator_open(jinja *j, jgenerator_fn next, const jvalue *items, const void *data, jvalue *out) {
    jgenerator *g = (jgenerator *)jinja_alloc(j, sizeof *g);
    if (!g) return NULL;
    memset(g, 0, sizeof *g);
    g->next    = next;
    g->from.of = *items;
    g->a       = jv_none();
    g->b       = jv_none();
    g->data    = data;
    g->serial  = jinja_serial(j);
    *out       = jv_make(J_GENERATOR);
    out->u.generator = g;
    return g;
}

static int generator_pass(jinja *j, jgenerator *g, jvalue *out) { return jiter_next(j, &g->from, out); }

/* What makes a list of its subject, when it is asked for. */
typedef struct generator_list {
    jnative_fn make;
    jargs      args;
} generator_list;

static int generator_make_list(jinja *j, jgenerator *g, jvalue *out) {
    const generator_list *list = (const generator_list *)g->data;
    jvalue items;
    if (!jinja_enter(j) || !list->make(j, &g->from.of, &list->args, &items)) return -1;
    jinja_leave(j);
    g->next    = generator_pass;
    g->from.of = items;
    jinja_touch(j, g->serial);
    return generator_pass(j, g, out);
}

static bool args_copy(jinja *j, const jargs *a, uint32_t skip, jargs *out) {
    uint32_t n     = a->n - skip;
    jvalue  *given = (jvalue *)jinja_alloc(j, n * sizeof *given);
    jpair   *named = (jpair *)jinja_alloc(j, a->n_named * sizeof *named);
    if (!given || !named) return false;
    if (n) memcpy(given, a->given + skip, n * sizeof *given);
    if (a->n_named) memcpy(named, a->named, a->n_named * sizeof *named);
    out->given   = given;
    out->n       = n;
    out->named   = named;
    out->n_named = a->n_named;
    return true;
}

static bool generator_later(jinja *j, jnative_fn make, const jvalue *self, const jargs *a, jvalue *out) {
    generator_list *list = (generator_list *)jinja_alloc(j, sizeof *list);
    if (!list || !args_copy(j, a, 0, &list->args)) return false;
    list->make = make;
    return generator_open(j, generator_make_list, self, list, out) != NULL;
}

static bool items_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (self->kind != J_DICT && self->kind != J_UNDEFINED) return jinja_fail_type(j, "items", self);
    *out = self->kind == J_DICT ? jv_view(self->u.dict, JV_ITEMS) : *self;
    return true;
}

static bool filter_items(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, items_list, self, a, out);
}

static bool filter_reverse(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue bounds[3] = {jv_none(), jv_none(), jv_int(-1)}, list, back;
    (void)a;
    if (jv_is_string(self)) return jinja_slice(j, self, bounds, out);
    if (!jv_is_iterable(self)) return jinja_fail_type(j, "reverse", self);
    if (!jv_to_list(j, self, &list) || !jinja_slice(j, &list, bounds, &back)) return false;
    if (self->kind != J_GENERATOR)
        return generator_open(j, generator_pass, &back, NULL, out) != NULL;
    *out = back;   /* what Python cannot walk backwards it makes a list of */
    return true;
}

static bool unique_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool     cased = jarg_true(&a->given[0], false);
    jdict   *seen  = jdict_open(j);
    jpair   *pairs;
    uint32_t n;
    jlist    list;
    if (!seen || !sort_pairs(j, self, &a->given[1], cased, NULL, &pairs, &n)) return false;
    jlist_open(&list, j);
    for (uint32_t i = 0; i < n; i++) {
        if (!jv_hashable(&pairs[i].key)) return jinja_fail_type(j, "unique", &pairs[i].key);
        uint32_t before = seen->n;
        if (!jdict_set(j, seen, &pairs[i].key, &pairs[i].value)) return false;
        if (seen->n > before && !jlist_add(&list, pairs[i].value)) return false;
    }
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool filter_unique(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, unique_list, self, a, out);
}

static bool batch_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t size;
    jvalue  list;
    jlist   rows, row;
    bool    fill = jarg_or_null(&a->given[1]) != NULL;
    if (!jarg_int(j, &a->given[0], 0, &size) || !jv_to_list(j, self, &list)) return false;
    jlist_open(&rows, j);
    for (uint32_t i = 0; i < list.n;) {
        jlist_open(&row, j);
        do {
            if (!jlist_add(&row, list.u.items[i++])) return false;
        } while (i < list.n && (int64_t)row.n != size);
        while (fill && (int64_t)row.n < size)
            if (!jlist_add(&row, a->given[1])) return false;
        if (!jlist_add(&rows, jlist_close(&row, J_LIST))) return false;
    }
    *out = jlist_close(&rows, J_LIST);
    return true;
}

static bool filter_batch(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, batch_list, self, a, out);
}

static bool slice_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t  slices;
    uint32_t at = 0;
    jvalue   list;
    jlist    rows, row;
    bool     fill = jarg_or_null(&a->given[1]) != NULL;
    if (!jarg_int(j, &a->given[0], 0, &slices) || !jv_to_list(j, self, &list)) return false;
    if (slices == 0) return jinja_fail(j, "slice: no slices");
    jlist_open(&rows, j);
    for (int64_t i = 0; i < slices; i++) {
        int64_t n = list.n / slices + (i < list.n % slices);
        jlist_open(&row, j);
        for (int64_t k = 0; k < n; k++)
            if (!jlist_add(&row, list.u.items[at++])) return false;
        if (fill && i >= list.n % slices && !jlist_add(&row, a->given[1])) return false;
        if (!jlist_add(&rows, jlist_close(&row, J_LIST))) return false;
    }
    *out = jlist_close(&rows, J_LIST);
    return true;
}

static bool filter_slice(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, slice_list, self, a, out);
}

/* What map and select call: a filter or test with the rest of their arguments. */
typedef struct generator_call {
    const jnative *native;
    jargs          args;
    bool           negate;
    const char    *problem;   /* why it cannot be called, to be told when it is */
} generator_call;

static generator_call *generator_call_open(jinja *j, const jargs *a, uint32_t skip, bool filter) {
    generator_call *call = (generator_call *)jinja_alloc(j, sizeof *call);
    if (!call) return NULL;
    memset(call, 0, sizeof *call);
    if (a->n < skip) return call;   /* select without a test: what is true */
    const jvalue *given = &a->given[skip - 1];
    str           name  = jv_is_string(given) ? jv_str(given) : str_of("", 0);
    call->native        = filter ? jinja_filter(name) : jinja_test(name);
    if (!call->native) call->problem = filter ? "no filter of this name" : "no test of this name";
    return args_copy(j, a, skip, &call->args) ? call : NULL;
}

static int generator_map_path(jinja *j, jgenerator *g, jvalue *out) {
    jvalue item;
    int    got = jiter_next(j, &g->from, &item);
    if (got != 1) return got;
    return path_get(j, &item, &g->a, g->b.kind == J_NONE ? NULL : &g->b, out) ? 1 : -1;
}

/* Generators of generators call each other, so a chain of them counts as depth. */
static int generator_map_filter(jinja *j, jgenerator *g, jvalue *out) {
    const generator_call *call = (const generator_call *)g->data;
    jvalue item;
    if (call->problem) return jinja_fail(j, "map: %s", call->problem) ? 1 : -1;
    if (!jinja_enter(j)) return -1;
    int got = jiter_next(j, &g->from, &item);
    if (got == 1 && !jnative_call(j, call->native, &item, &call->args, out)) got = -1;
    jinja_leave(j);
    return got;
}

static int generator_select(jinja *j, jgenerator *g, jvalue *out) {
    const generator_call *call = (const generator_call *)g->data;
    jvalue tested;
    int    got;
    if (call->problem) return jinja_fail(j, "select: %s", call->problem) ? 1 : -1;
    if (!jinja_enter(j)) return -1;
    while ((got = jiter_next(j, &g->from, out)) == 1) {
        int pass = -1;
        if (path_get(j, out, &g->a, NULL, &tested))
            pass = call->native ? jinja_call_test(j, call->native, &tested, &call->args) : jv_true(&tested);
        if (pass < 0) got = -1;
        if (pass < 0 || (pass == 1) != call->negate) break;
    }
    jinja_leave(j);
    return got;
}

/* Nothing, for what is false: none, too. */
static bool generator_empty(jinja *j, jvalue *out) {
    jvalue nothing = jv_items(J_LIST, NULL, 0);
    return generator_open(j, generator_pass, &nothing, NULL, out) != NULL;
}

static bool filter_map(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jgenerator     *g;
    generator_call *call;
    if (!jv_true(self)) return generator_empty(j, out);
    for (uint32_t i = 0; i < a->n_named && a->n == 0; i++) {
        if (!str_is(jv_str(&a->named[i].key), "attribute")) continue;
        g = generator_open(j, generator_map_path, self, NULL, out);
        if (!g) return false;
        for (uint32_t k = 0; k < a->n_named; k++) {
            str name = jv_str(&a->named[k].key);
            if (str_is(name, "attribute")) g->a = a->named[k].value;
            else if (str_is(name, "default")) g->b = a->named[k].value;
            else return jinja_fail(j, "map: argument '%.*s' is unknown", STR_ARG(name));
        }
        return true;
    }
    call = generator_call_open(j, a, 1, true);
    if (call && !call->native) call->problem = call->problem ? call->problem : "it needs a filter or an attribute";
    return call && generator_open(j, generator_map_filter, self, call, out);
}

static bool filter_choose(jinja *j, const jvalue *self, const jargs *a, bool attribute, bool negate, jvalue *out) {
    if (!jv_true(self)) return generator_empty(j, out);
    generator_call *call = generator_call_open(j, a, attribute ? 2 : 1, false);
    if (!call) return false;
    call->negate = negate;
    if (attribute && !a->n) call->problem = "it needs an attribute";
    jgenerator *g = generator_open(j, generator_select, self, call, out);
    if (g && attribute && a->n) g->a = a->given[0];
    return g != NULL;
}

static bool filter_select(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, false, false, out);
}

static bool filter_reject(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, false, true, out);
}

static bool filter_selectattr(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, true, false, out);
}

static bool filter_rejectattr(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, true, true, out);
}

/* The attribute, never the element. */
static bool filter_attr(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jarg_string(j, &a->given[0])) return false;
    if (self->kind == J_UNDEFINED) return jinja_fail_undefined(j, self);
    int found = jinja_own_attribute(j, self, &a->given[0], out);
    if (!found) *out = jv_lacking(self, &a->given[0]);
    return found >= 0;
}

static const jnative jinja_filters[] = {
    {"abs", "", 0, filter_abs},
    {"attr", "name", 1, filter_attr},
    {"batch", "linecount fill_with", 1, filter_batch},
    {"capitalize", "", 0, filter_capitalize},
    {"center", "width", 0, filter_center},
    {"count", "", 0, filter_length},
    {"d", "default_value boolean", 0, filter_default},
    {"default", "default_value boolean", 0, filter_default},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    {"e", "", 0, filter_escape},
    {"escape", "", 0, filter_escape},
    {"filesizeformat", NULL, 0, NULL},
    {"first", "", 0, filter_first},
    {"float", "default", 0, filter_float},
    {"forceescape", "", 0, filter_forceescape},
    {"format", NULL, 0, filter_format},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default base", 0, filter_int},
    {"items", "", 0, filter_items},
    {"join", "d attribute", 0, filter_join},
    {"last", "", 0, filter_last},
    {"length", "", 0, filter_length},
    {"list", "", 0, filter_list},
    {"lower", "", 0, filter_lower},
    {"map", NULL, 0, filter_map},
    {"max", "case_sensitive attribute", 0, filter_max},
    {"min", "case_sensitive attribute", 0, filter_min},
    {"pprint", NULL, 0, NULL},
    {"random", NULL, 0, NULL},
    {"reject", NULL, 0, filter_reject},
    {"rejectattr", NULL, 0, filter_rejectattr},
    {"replace", "old new count", 2, filter_replace},
    {"reverse", "", 0, filter_reverse},
    {"round", "precision method", 0, filter_round},
    {"safe", "", 0, filter_safe},
    {"select", NULL, 0, filter_select},
    {"selectattr", NULL, 0, filter_selectattr},
    {"slice", "slices fill_with", 1, filter_slice},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort},
    {"string", "", 0, filter_string},
    {"striptags", NULL, 0, NULL},
    {"sum", "attribute start", 0, filter_sum},
    {"title", "", 0, filter_title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {"trim", "chars", 0, filter_trim},
    {"truncate", "length killwords end leeway", 0, filter_truncate},
    {"unique", "case_sensitive attribute", 0, filter_unique},
    {"upper", "", 0, filter_upper},
    {"urlencode", "", 0, filter_urlencode},
    {"urlize", NULL, 0, NULL},
    {"wordcount", "", 0, filter_wordcount},
    {"wordwrap", NULL, 0, NULL},
    {"xmlattr", NULL, 0, NULL},
};

static const jnative *jinja_filter(str name) { return jnative_find(jinja_filters, COUNT_OF(jinja_filters), name); }

/* ==== src/jinja_global.h ====================================================================================== */

/* The functions that every chat template has: Jinja's own, raise_exception and strftime_now. */
#ifndef NOVA_JINJA_GLOBAL_H
#define NOVA_JINJA_GLOBAL_H


static const jnative *jinja_global(str name);   /* NULL: there is none of this name */

#endif

/* ==== src/jinja_global.c ====================================================================================== */

/* Functions that every template has: see jinja_global.h. Source: Jinja's "List of Global Functions". */



#define JINJA_MAX_RANGE 100000   /* the sandbox's own bound */

static bool global_range(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t x[3] = {0, 0, 1};
    (void)self;
    if (a->n < 1 || a->n > 3 || a->n_named) return jinja_fail(j, "range takes 1 to 3 arguments");
    for (uint32_t i = 0; i < a->n; i++) {
        if (!jv_is_integer(&a->given[i])) return jinja_fail_type(j, "range", &a->given[i]);
        x[a->n == 1 ? 1 : i] = a->given[i].u.i;
    }
    if (x[2] == 0) return jinja_fail(j, "range: the step is 0");
    jrange *r = (jrange *)jinja_alloc(j, sizeof *r);
    if (!r) return false;
    uint64_t way  = x[2] > 0 ? (uint64_t)x[1] - (uint64_t)x[0] : (uint64_t)x[0] - (uint64_t)x[1];
    uint64_t size = x[2] > 0 ? (uint64_t)x[2] : 0 - (uint64_t)x[2];
    uint64_t n    = (x[2] > 0 ? x[1] > x[0] : x[0] > x[1]) ? (way - 1) / size + 1 : 0;
    if (n > JINJA_MAX_RANGE) return jinja_fail(j, "range: more than %d items", JINJA_MAX_RANGE);
    r->start     = x[0];
    r->stop      = x[1];
    r->step      = x[2];
    r->n         = (uint32_t)n;
    *out         = jv_make(J_RANGE);
    out->u.range = r;
    return true;
}

/* dict(mapping or pairs, name=value, ...) */
static jdict *global_make_dict(jinja *j, const jargs *a) {
    jdict *d = jdict_open(j);
    if (!d) return NULL;
    if (a->n > 1) {
        jinja_fail(j, "at most one argument without a name is expected");
        return NULL;
    }
    jiter  it;
    jvalue item, pairs = a->n ? a->given[0] : jv_items(J_LIST, NULL, 0), both;
    int    got;
    if (pairs.kind == J_DICT) pairs = jv_view(pairs.u.dict, JV_ITEMS);
    if (!jiter_open(j, &it, &pairs)) return NULL;
    while ((got = jiter_next(j, &it, &item)) == 1) {
        if (!jv_to_list(j, &item, &both)) return NULL;
        if (both.n != 2 || !jv_hashable(&both.u.items[0])) {
            jinja_fail(j, "a dictionary is made of pairs with keys that are no lists");
            return NULL;
        }
        if (!jdict_set(j, d, &both.u.items[0], &both.u.items[1])) return NULL;
    }
    for (uint32_t i = 0; i < a->n_named && got == 0; i++)
        if (!jdict_set(j, d, &a->named[i].key, &a->named[i].value)) return NULL;
    return got == 0 ? d : NULL;
}

static bool global_dict(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jdict *d = global_make_dict(j, a);
    (void)self;
    if (d) *out = jv_dict(d);
    return d != NULL;
}

static bool global_namespace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jspace *space = (jspace *)jinja_alloc(j, sizeof *space);
    (void)self;
    if (!space) return false;
    space->serial     = jinja_serial(j);
    space->attributes = global_make_dict(j, a);
    *out              = jv_make(J_NAMESPACE);
    out->u.space      = space;
    return space->attributes != NULL;
}

static bool global_cycler(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jcycler *c     = (jcycler *)jinja_alloc(j, sizeof *c);
    jvalue  *items = c ? (jvalue *)jinja_alloc(j, (a->n + 1) * sizeof *items) : NULL;
    (void)self;
    if (!items) return false;
    if (!a->n || a->n_named) return jinja_fail(j, "cycler needs items");
    memcpy(items, a->given, a->n * sizeof *items);
    c->items      = jv_items(J_TUPLE, items, a->n);
    c->at         = 0;
    *out          = jv_make(J_CYCLER);
    out->u.cycler = c;
    return true;
}

static bool global_joiner(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jjoiner *joiner = (jjoiner *)jinja_alloc(j, sizeof *joiner);
    (void)self;
    if (!joiner) return false;
    joiner->between = jv_given(&a->given[0]) ? a->given[0] : jv_c(", ");
    joiner->used    = false;
    *out            = jv_make(J_JOINER);
    out->u.joiner   = joiner;
    return true;
}

static bool global_raise_exception(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue text;
    (void)self, (void)out;
    if (!jv_to_string(j, &a->given[0], &text)) return false;
    return jinja_fail(j, "%.*s", (int)text.n, text.u.s);
}

/* ---- The date, in English whatever the locale is. Source: C11 7.27.3.5, and glibc's flags ---- */

static int date_days(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 ? 366 : 365; }

/* ISO 8601: a week belongs to the year that has its Thursday. */
static int date_iso_week(const struct tm *t, int *year) {
    int thursday = t->tm_yday - (t->tm_wday + 6) % 7 + 3;
    *year        = t->tm_year + 1900;
    if (thursday < 0) {
        thursday += date_days(--*year);
    } else if (thursday >= date_days(*year)) {
        thursday -= date_days(*year);
        ++*year;
    }
    return thursday / 7 + 1;
}

typedef struct date_number {
    char letter;
    int  width;
    char pad;
    int  value;
} date_number;

/* A directive that is a number: its text, or "" when it is none. `flag`: '-' no padding, '_' blanks, '0' zeros. */
static void date_number_text(const struct tm *t, char letter, char flag, char text[16]) {
    int year, week = date_iso_week(t, &year), hour = t->tm_hour % 12 ? t->tm_hour % 12 : 12, full = t->tm_year + 1900;
    const date_number all[] = {
        {'Y', 1, '0', full},         {'C', 2, '0', full / 100},      {'y', 2, '0', full % 100},
        {'m', 2, '0', t->tm_mon + 1}, {'d', 2, '0', t->tm_mday},     {'e', 2, ' ', t->tm_mday},
        {'H', 2, '0', t->tm_hour},   {'k', 2, ' ', t->tm_hour},      {'I', 2, '0', hour},
        {'l', 2, ' ', hour},         {'M', 2, '0', t->tm_min},       {'S', 2, '0', t->tm_sec},
        {'f', 6, '0', 0},            {'j', 3, '0', t->tm_yday + 1},  {'w', 1, '0', t->tm_wday},
        {'V', 2, '0', week},         {'G', 1, '0', year},            {'g', 2, '0', year % 100},
        {'u', 1, '0', t->tm_wday ? t->tm_wday : 7},
        {'U', 2, '0', (t->tm_yday + 7 - t->tm_wday) / 7},
        {'W', 2, '0', (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7},
    };
    text[0] = 0;
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (all[i].letter != letter) continue;
        char pad = flag == '_' ? ' ' : flag == '0' ? '0' : all[i].pad;
        if (flag == '-') snprintf(text, 16, "%d", all[i].value);
        else snprintf(text, 16, pad == ' ' ? "%*d" : "%0*d", all[i].width, all[i].value);
    }
}

/* A directive that is a name; NULL when it is none. Names of days and months are cut to `*cut` letters. */
static const char *date_name(const struct tm *t, char letter, int *cut) {
    static const char *const days[]   = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March", "April", "May", "June", "July", "August",
                                         "September", "October", "November", "December"};
    *cut = letter == 'a' || letter == 'b' || letter == 'h' ? 3 : 16;
    switch (letter) {
    case 'a':
    case 'A': return days[t->tm_wday % 7];
    case 'b':
    case 'h':
    case 'B': return months[t->tm_mon % 12];
    case 'p': return t->tm_hour < 12 ? "AM" : "PM";
    case 'P': return t->tm_hour < 12 ? "am" : "pm";
    case 'n': return "\n";
    case 't': return "\t";
    case '%': return "%";
    case 'z':
    case 'Z': return "";   /* the time names no zone */
    default: return NULL;
    }
}

/* A directive that stands for several; NULL when it is none. */
static const char *date_compound(char letter) {
    switch (letter) {
    case 'D':
    case 'x': return "%m/%d/%y";
    case 'F': return "%Y-%m-%d";
    case 'R': return "%H:%M";
    case 'T':
    case 'X': return "%H:%M:%S";
    case 'c': return "%a %b %e %H:%M:%S %Y";
    case 'r': return "%I:%M:%S %p";
    default: return NULL;
    }
}

static void date_add(jtext *out, const struct tm *t, const char *format, size_t n);

static void date_add_directive(jtext *out, const struct tm *t, char flag, char letter) {
    char        number[16];
    int         cut;
    const char *name = date_name(t, letter, &cut), *compound = date_compound(letter);
    date_number_text(t, letter, flag, number);
    if (number[0]) {
        jtext_add_c(out, number);
    } else if (name) {
        for (; *name && cut > 0; name++, cut--)
            jtext_add_char(out, (uint32_t)(flag == '^' && *name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name));
    } else if (compound) {
        date_add(out, t, compound, strlen(compound));
    } else {
        jtext_add(out, "%", 1);
        if (flag) jtext_add(out, &flag, 1);
        jtext_add(out, &letter, 1);
    }
}

static void date_add(jtext *out, const struct tm *t, const char *format, size_t n) {
    for (size_t i = 0; i < n && jinja_step(out->j, 8); i++) {
        if (format[i] != '%' || i + 1 == n) {
            jtext_add(out, format + i, 1);
            continue;
        }
        bool flagged = i + 2 < n && memchr("-_0^", format[i + 1], 4);
        char flag    = flagged ? format[i + 1] : 0;
        i += flagged ? 2 : 1;
        date_add_directive(out, t, flag, format[i]);
    }
}

static bool global_strftime_now(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    struct tm t;
    jtext     text;
    (void)self;
    if (!jarg_string(j, &a->given[0])) return false;
    if (!clock_local(j->now, &t)) return jinja_fail(j, "strftime_now: the system does not tell the local time");
    jtext_open(&text, j);
    date_add(&text, &t, a->given[0].u.s, a->given[0].n);
    return jtext_close(&text, out);
}

static const jnative jinja_globals[] = {
    {"range", NULL, 0, global_range},
    {"dict", NULL, 0, global_dict},
    {"lipsum", NULL, 0, NULL},
    {"cycler", NULL, 0, global_cycler},
    {"joiner", "sep", 0, global_joiner},
    {"namespace", NULL, 0, global_namespace},
    {"raise_exception", "message", 1, global_raise_exception},
    {"strftime_now", "format", 1, global_strftime_now},
};

static const jnative *jinja_global(str name) { return jnative_find(jinja_globals, COUNT_OF(jinja_globals), name); }

/* ==== src/jinja_lex.h ========================================================================================= */

/* Template text to tokens, by the rules of Jinja 3.1's lexer with trim_blocks and lstrip_blocks. */
#ifndef NOVA_JINJA_LEX_H
#define NOVA_JINJA_LEX_H


typedef enum jtoken_kind {
    JT_END,                         /* of the template */
    JT_DATA,                        /* value: text between tags */
    JT_VARIABLE_BEGIN, JT_VARIABLE_END, JT_BLOCK_BEGIN, JT_BLOCK_END,
    JT_NAME, JT_STRING,             /* value: a string */
    JT_INTEGER, JT_FLOAT,           /* value */
    JT_ADD, JT_SUB, JT_MUL, JT_DIV, JT_FLOORDIV, JT_MOD, JT_POW, JT_TILDE,
    JT_EQ, JT_NE, JT_LT, JT_LE, JT_GT, JT_GE,
    JT_LPAREN, JT_RPAREN, JT_LBRACKET, JT_RBRACKET, JT_LBRACE, JT_RBRACE,
    JT_ASSIGN, JT_DOT, JT_COLON, JT_PIPE, JT_COMMA, JT_SEMICOLON
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    uint32_t    line;
    jvalue      value;
} jtoken;

typedef struct jlexer {
    jinja      *j;
    const char *start, *p, *end;
    uint32_t    line;
    char        state;           /* 0: between tags; else the tag's second character: '%', '{' */
    char        pending;         /* the tag that comes behind the data token just given */
    bool        line_starting;   /* the last tag's end took a line end with it */
    uint32_t    n_open;
    char        open[JINJA_MAX_NEST];   /* brackets to be closed */
} jlexer;

/* The text must live as long as the lexer. */
static bool jlexer_open(jlexer *x, jinja *j, str text);
static bool jlexer_next(jlexer *x, jtoken *out);
/* For messages: what a token is, or looks like. */
static str jtoken_text(const jtoken *t);

#endif

/* ==== src/jinja_lex.c ========================================================================================= */

/* Template text to tokens: see jinja_lex.h. */

/* Line ends become "\n", and one at the very end is dropped. */
static bool jlexer_open(jlexer *x, jinja *j, str text) {
    jvalue source;
    memset(x, 0, sizeof *x);
    if (!jinja_import(j, text.p, text.n, &source)) return false;
    if (source.n && memchr(source.u.s, '\r', source.n)) {
        char  *to = (char *)jinja_alloc(j, source.n);
        size_t n  = 0;
        if (!to || !jinja_step(j, source.n >> 3)) return false;
        for (size_t i = 0; i < source.n; i++) {
            bool end = source.u.s[i] == '\r';
            to[n++]  = end ? '\n' : source.u.s[i];
            if (end && i + 1 < source.n && source.u.s[i + 1] == '\n') i++;
        }
        source = jv_string(to, n, 0);
    }
    x->j             = j;
    x->start         = source.u.s;
    x->p             = source.u.s;
    x->end           = source.u.s + source.n - (source.n && source.u.s[source.n - 1] == '\n');
    x->line          = 1;
    x->line_starting = true;
    return true;
}

static char lex_at(const jlexer *x, size_t i) { return (size_t)(x->end - x->p) > i ? x->p[i] : 0; }

static bool lex_has(const jlexer *x, const char *p, const char *what) {
    size_t n = strlen(what);
    return (size_t)(x->end - p) >= n && memcmp(p, what, n) == 0;
}

static const char *lex_skip_blanks(const jlexer *x, const char *p) {
    while (p < x->end) {
        uint32_t c;
        size_t   n = letter_next(p, x->end, &c);
        if (!letter_is_space(c)) break;
        p += n;
    }
    return p;
}

static bool lex_move(jlexer *x, const char *to) {
    for (const char *p = x->p; p < to; p++) x->line += *p == '\n';
    bool ok   = jinja_step(x->j, 1 + ((size_t)(to - x->p) >> 4));
    x->p      = to;
    x->j->line = x->line;
    return ok;
}

/* ---- Between tags ---- */

/* A tag's end at p, `close` being "%}" or the like: where the text goes on, or NULL when there is none. With '-' all
 * blanks behind go too; without sign, and where blocks are trimmed, one line end. */
static const char *lex_tag_end(const jlexer *x, const char *p, const char *close, bool plus, bool trim) {
    char sign = p < x->end && (*p == '-' || (*p == '+' && plus)) ? *p : 0;
    p += sign != 0;
    if (!lex_has(x, p, close)) return NULL;
    p += 2;
    if (sign == '-') return lex_skip_blanks(x, p);
    return p + (trim && !sign && p < x->end && *p == '\n');
}

/* Goes behind a tag's end. */
static bool lex_leave_tag(jlexer *x, const char *behind) {
    x->line_starting = behind[-1] == '\n';
    return lex_move(x, behind);
}

/* "{%", perhaps a sign, and the word alone: where it ends, or NULL. */
static const char *lex_word_tag(const jlexer *x, const char *p, const char *word, bool trim, bool plus) {
    p += 2;
    p += p < x->end && (*p == '-' || *p == '+');
    p = lex_skip_blanks(x, p);
    if (!lex_has(x, p, word)) return NULL;
    return lex_tag_end(x, lex_skip_blanks(x, p + strlen(word)), "%}", plus, trim);
}

/* What stays of the text [from, tag) before a tag: "-" takes all blanks, and a block tag that begins its line takes
 * those of the line, unless "+" keeps them. */
static const char *lex_strip(const jlexer *x, const char *from, const char *tag, bool variable) {
    char        sign = (size_t)(x->end - tag) > 2 ? tag[2] : 0;
    const char *end  = tag;
    uint32_t    c;
    while (sign != '+' && end > from) {
        size_t n = letter_last(from, end, &c);
        if (!letter_is_space(c)) break;
        if (sign != '-' && (variable || c == '\n')) break;
        end -= n;
    }
    if (sign == '-' || sign == '+' || variable) return end;
    bool begins_line = end > from ? end[-1] == '\n' : x->line_starting;
    return begins_line ? end : tag;
}

static bool lex_comment(jlexer *x) {
    const char *p = x->p + 2;
    p += p < x->end && (*p == '-' || *p == '+');
    if (p == x->end) return lex_move(x, p);   /* Jinja, too, takes no offence where nothing follows */
    for (; p < x->end; p++) {
        const char *behind = lex_tag_end(x, p, "#}", true, true);
        if (behind) return lex_leave_tag(x, behind);
    }
    return jinja_fail(x->j, "a comment does not end");
}

/* Gives the text of a raw block. */
static bool lex_raw(jlexer *x, const char *body, jtoken *out) {
    if (!lex_leave_tag(x, body)) return false;
    if (body == x->end) return true;
    for (const char *p = body; p < x->end; p++) {
        const char *behind = lex_has(x, p, "{%") ? lex_word_tag(x, p, "endraw", true, true) : NULL;
        if (!behind) continue;
        out->kind  = JT_DATA;
        out->line  = x->line;
        out->value = jv_string(body, (size_t)(lex_strip(x, body, p, false) - body), 0);
        return lex_leave_tag(x, behind);
    }
    return jinja_fail(x->j, "a raw block does not end");
}

/* Text up to the next tag, or that tag. Sets out->kind to JT_END for comments, which are no tokens. */
static bool lex_between(jlexer *x, jtoken *out) {
    const char *tag = x->p;
    if (!x->pending) {
        while (tag < x->end && !(tag[0] == '{' && x->end - tag > 1 && memchr("%{#", tag[1], 3))) tag++;
        const char *end = tag < x->end ? lex_strip(x, x->p, tag, tag[1] == '{') : tag;
        out->kind       = JT_DATA;
        out->line       = x->line;
        out->value      = jv_string(x->p, (size_t)(end - x->p), 0);
        x->pending      = tag < x->end ? tag[1] : 0;
        return lex_move(x, tag);
    }
    char kind  = x->pending;
    x->pending = 0;
    if (kind == '#') return lex_comment(x);
    const char *raw = kind == '%' ? lex_word_tag(x, tag, "raw", false, false) : NULL;
    if (raw) return lex_raw(x, raw, out);
    x->state  = kind;
    out->kind = kind == '%' ? JT_BLOCK_BEGIN : JT_VARIABLE_BEGIN;
    tag += 2;
    return lex_move(x, tag + (tag < x->end && (*tag == '-' || *tag == '+')));
}

/* ---- Inside tags ---- */

static bool lex_is_digit(char c) { return c >= '0' && c <= '9'; }

static bool lex_is_name(char c) {
    return lex_is_digit(c) || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (unsigned char)c >= 0x80;
}

/* Digits with single underscores between them: where they end. */
static const char *lex_digits(const jlexer *x, const char *p) {
    while (p < x->end && lex_is_digit(*p)) {
        p++;
        if (x->end - p > 1 && *p == '_' && lex_is_digit(p[1])) p++;
    }
    return p;
}

/* Where a float ends, or `p` when there is none. It needs digits on both sides of its point. */
static const char *lex_float(const jlexer *x, const char *p) {
    const char *whole = lex_digits(x, p), *end = p, *part = whole;
    if (whole == p || (p > x->start && p[-1] == '.')) return p;
    if (x->end - whole > 1 && *whole == '.' && lex_is_digit(whole[1])) part = end = lex_digits(x, whole + 1);
    if (part < x->end && (*part | 0x20) == 'e') {
        const char *power = part + 1;
        power += power < x->end && (*power == '-' || *power == '+');
        if (power < x->end && lex_is_digit(*power)) end = lex_digits(x, power);
    }
    return end;
}

/* Is there a digit of this base at p, or an underscore and one? */
static bool lex_has_digit(const jlexer *x, const char *p, int base) {
    p += p < x->end && *p == '_';
    return p < x->end && digit_value(*p) < base;
}

/* Where an integer ends: 0x1F, 0o17, 0b11, 17, or zeros alone. */
static const char *lex_integer(const jlexer *x, const char *p) {
    int base = prefix_base(str_of(p, (size_t)(x->end - p)));
    if (base && lex_has_digit(x, p + 2, base)) p += 2;
    else base = *p == '0' ? 1 : 10;
    while (lex_has_digit(x, p, base)) p += *p == '_' ? 2 : 1;
    return p;
}

static bool lex_number(jlexer *x, jtoken *out) {
    const char *end  = lex_float(x, x->p);
    bool        real = end > x->p, beyond;
    if (!real) end = lex_integer(x, x->p);
    str text  = str_of(x->p, (size_t)(end - x->p));
    out->kind = real ? JT_FLOAT : JT_INTEGER;
    out->value = real ? jv_float(0) : jv_int(0);
    if (real ? !jv_parse_float(text, &out->value.u.f) : !jv_parse_int(text, 0, &out->value.u.i, &beyond))
        return jinja_fail(x->j, "the number %.*s is too large", STR_ARG(text));
    return lex_move(x, end);
}

/* The number of hexadecimal digits that an escape takes. */
static size_t lex_escape_width(char letter) { return letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0; }

/* An escape, behind its backslash, as Python's codec "unicode-escape" reads it: where it ends, or NULL. */
static const char *lex_escape(jlexer *x, jtext *t, const char *p, const char *end) {
    static const char plain[] = "\\\\\'\'\"\"a\ab\bf\fn\nr\rt\tv\v";
    uint32_t c = 0;
    size_t   n = 0, width = lex_escape_width(*p);
    if (*p == '\n') return p + 1;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == *p) return jtext_add(t, plain + i + 1, 1) ? p + 1 : NULL;
    if (width) {
        for (n = 1; n <= width && p + n < end; n++) {
            int digit = digit_value(p[n]);
            if (digit >= 16) break;
            c = c << 4 | (uint32_t)digit;
        }
        if (n <= width || c > 0x10FFFF) {
            jinja_fail(x->j, "an escape \\%c in a string is cut off", *p);
            return NULL;
        }
        return jtext_add_char(t, c) ? p + n : NULL;
    }
    for (; n < 3 && p + n < end && p[n] >= '0' && p[n] <= '7'; n++) c = c * 8 + (uint32_t)(p[n] - '0');
    if (n) return jtext_add_char(t, c) ? p + n : NULL;
    if (*p == 'N') {
        jinja_fail(x->j, "characters by name (\\N) are not supported");
        return NULL;
    }
    jtext_add(t, "\\", 1);
    if ((unsigned char)*p < 0x80) return jtext_add(t, p, 1) ? p + 1 : NULL;
    char code[16];   /* the codec sees other characters as escapes already, so that the backslash escapes a backslash */
    n = letter_next(p, end, &c);
    snprintf(code, sizeof code, c < 0x100 ? "x%02x" : c < 0x10000 ? "u%04x" : "U%08x", c);
    return jtext_add_c(t, code) ? p + n : NULL;
}

static bool lex_string(jlexer *x, jtoken *out) {
    char        quote = *x->p;
    const char *start = x->p + 1, *p = start;
    bool        escaped = false;
    while (p < x->end && *p != quote) {
        escaped = escaped || *p == '\\';
        p += *p == '\\' && x->end - p > 1 ? 2 : 1;
    }
    if (p >= x->end) return jinja_fail(x->j, "a string does not end");
    out->kind  = JT_STRING;
    out->value = jv_string(start, (size_t)(p - start), 0);
    if (escaped) {
        jtext t;
        jtext_open(&t, x->j);
        for (const char *q = start; q < p;) {
            const char *back = (const char *)memchr(q, '\\', (size_t)(p - q)), *until = back ? back : p;
            if (!jtext_add(&t, q, (size_t)(until - q)) || !jinja_step(x->j, 1)) return false;
            q = until;
            if (back && !(q = lex_escape(x, &t, back + 1, p))) return false;
        }
        if (!jtext_close(&t, &out->value)) return false;
    }
    return lex_move(x, p + 1);
}

typedef struct lex_operator {
    const char *text;
    jtoken_kind kind;
} lex_operator;

/* Longer ones first. */
static const lex_operator lex_operators[] = {
    {"//", JT_FLOORDIV}, {"**", JT_POW}, {"==", JT_EQ}, {"!=", JT_NE}, {">=", JT_GE}, {"<=", JT_LE}, {"+", JT_ADD},
    {"-", JT_SUB}, {"/", JT_DIV}, {"*", JT_MUL}, {"%", JT_MOD}, {"~", JT_TILDE}, {"[", JT_LBRACKET},
    {"]", JT_RBRACKET}, {"(", JT_LPAREN}, {")", JT_RPAREN}, {"{", JT_LBRACE}, {"}", JT_RBRACE}, {">", JT_GT},
    {"<", JT_LT}, {"=", JT_ASSIGN}, {".", JT_DOT}, {":", JT_COLON}, {"|", JT_PIPE}, {",", JT_COMMA},
    {";", JT_SEMICOLON},
};

static bool lex_bracket(jlexer *x, jtoken_kind kind) {
    const char *close = kind == JT_LPAREN ? ")" : kind == JT_LBRACKET ? "]" : kind == JT_LBRACE ? "}" : NULL;
    if (close) {
        if (x->n_open == COUNT_OF(x->open)) return jinja_fail(x->j, "brackets are nested too deeply");
        x->open[x->n_open++] = *close;
    } else if (kind == JT_RPAREN || kind == JT_RBRACKET || kind == JT_RBRACE) {
        if (!x->n_open) return jinja_fail(x->j, "unexpected '%c'", *x->p);
        char expected = x->open[--x->n_open];
        if (expected != *x->p) return jinja_fail(x->j, "unexpected '%c', expected '%c'", *x->p, expected);
    }
    return true;
}

static bool lex_inside(jlexer *x, jtoken *out) {
    bool        block  = x->state == '%';
    const char *behind = x->n_open ? NULL : lex_tag_end(x, x->p, block ? "%}" : "}}", block, block);
    if (behind) {
        out->kind = block ? JT_BLOCK_END : JT_VARIABLE_END;
        x->state  = 0;
        return lex_leave_tag(x, behind);
    }
    char c = lex_at(x, 0);
    if (lex_is_digit(c)) return lex_number(x, out);
    if (c == '"' || c == '\'') return lex_string(x, out);
    if (lex_is_name(c)) {
        const char *end = x->p;
        while (end < x->end && lex_is_name(*end)) end++;
        out->kind  = JT_NAME;
        out->value = jv_string(x->p, (size_t)(end - x->p), 0);
        return lex_move(x, end);
    }
    for (size_t i = 0; i < COUNT_OF(lex_operators); i++) {
        if (!lex_has(x, x->p, lex_operators[i].text)) continue;
        out->kind = lex_operators[i].kind;
        return lex_bracket(x, out->kind) && lex_move(x, x->p + strlen(lex_operators[i].text));
    }
    return jinja_fail(x->j, "unexpected character '%c'", c);
}

static bool jlexer_next(jlexer *x, jtoken *out) {
    for (;;) {
        out->kind  = JT_END;
        out->value = jv_none();
        if (x->state && !lex_move(x, lex_skip_blanks(x, x->p))) return false;
        out->line = x->line;
        if (x->p >= x->end) return true;
        if (!(x->state ? lex_inside(x, out) : lex_between(x, out))) return false;
        if (out->kind == JT_DATA && out->value.n == 0) continue;   /* nothing between two tags */
        if (out->kind != JT_END) return true;
    }
}

static str jtoken_text(const jtoken *t) {
    static const char *const names[] = {"the end of the template", "text", "{{", "}}", "{%", "%}"};
    if (t->kind <= JT_BLOCK_END) return str_c(names[t->kind]);
    if (t->kind == JT_NAME) return jv_str(&t->value);
    if (t->kind <= JT_FLOAT) return str_c(t->kind == JT_STRING ? "a string" : "a number");
    for (size_t i = 0; i < COUNT_OF(lex_operators); i++)
        if (lex_operators[i].kind == t->kind) return str_c(lex_operators[i].text);
    return str_c("?");
}

/* ==== src/jinja_parse.h ======================================================================================= */

/* Tokens to a tree: the grammar of Jinja 3.1 with the extensions of chat templates (break, continue, generation).
 * Blocks, inheritance, includes and imports have no meaning in a single template and are refused. */
#ifndef NOVA_JINJA_PARSE_H
#define NOVA_JINJA_PARSE_H


typedef enum jnode_kind {
    /* Expressions. A list is a chain by `next`. */
    JN_CONST,         /* value */
    JN_NAME,          /* value: the name; up, slot */
    JN_TUPLE,         /* a: items; also a target */
    JN_LIST,          /* a: items */
    JN_DICT,          /* a: key, value, key, value, ... */
    JN_ATTRIBUTE,     /* a.value */
    JN_ELEMENT,       /* a[b] */
    JN_SLICE,         /* as b of an element: a, b, c, each perhaps NULL */
    JN_CALL,          /* a(b: arguments) */
    JN_FILTER,        /* a | native(b: arguments); a NULL: the text of a block */
    JN_TEST,          /* a is native(b: arguments) */
    JN_NOT,           /* a */
    JN_NEGATE,        /* a */
    JN_PLUS,          /* a */
    JN_CHAIN,         /* a, then b: links of arithmetic, from left to right */
    JN_COMPARE,       /* a, then b: links of relations, all of which must hold */
    JN_AND,           /* a: operands */
    JN_OR,            /* a: operands */
    JN_CONDITION,     /* b if a else c (perhaps NULL) */
    JN_LINK,          /* op, a: an operand of a chain */
    JN_ARGUMENT,      /* a; op: a jargument; value: its name */
    JN_MEMBER_TARGET, /* value.b's value: what `set` may assign besides names; b: a constant */
    /* Statements */
    JN_DATA,          /* value: text */
    JN_OUTPUT,        /* a */
    JN_IF,            /* a: branches */
    JN_BRANCH,        /* a: condition, NULL for else; b: body */
    JN_FOR,           /* a: target, b: iterable, c: body, d: else, e: condition (perhaps NULL); op: recursive */
    JN_SET,           /* a: target, b: value */
    JN_SET_BLOCK,     /* a: target, b: filter or NULL, c: body */
    JN_MACRO,         /* value: name, a: parameters, c: body; up, slot of the name */
    JN_CALL_BLOCK,    /* a: parameters, b: call, c: body */
    JN_GENERATION,    /* c: body */
    JN_FILTER_BLOCK,  /* b: filter, c: body */
    JN_WITH,          /* a: targets, b: values, c: body */
    JN_BREAK,
    JN_CONTINUE,
    JN_PARAMETER      /* value: name, a: default or NULL; slot */
} jnode_kind;

typedef enum jargument { JA_PLAIN, JA_NAMED, JA_MANY, JA_MANY_NAMED } jargument;   /* x, name=x, *x, **x */

typedef struct jnode  jnode;
typedef struct jscope jscope;

struct jnode {
    uint8_t        kind, op, height;   /* height: 1 for a leaf, at most JINJA_MAX_NEST */
    uint32_t       line;
    jnode         *next, *a, *b, *c, *d, *e;
    jvalue         value;
    /* Filled in by jinja_bind. */
    uint32_t       up, slot;           /* of a name: so many functions out, and where in its frame */
    uint32_t       test_slot;          /* of a loop's target, for the loop's condition */
    const jnative *native;             /* of a filter or test; NULL: there is none of this name */
    jscope        *scope;              /* of the body */
    jscope        *other_scope;        /* of a loop's else */
    jscope        *test_scope;         /* of a loop's condition */
};

/* The statements of a template; NULL for an empty one, or after a failure. */
static bool jinja_parse(jinja *j, str text, jnode **out);

#endif

/* ==== src/jinja_parse.c ======================================================================================= */

/* Tokens to a tree: see jinja_parse.h. */

typedef struct jparser {
    jinja   *j;
    jlexer   lexer;
    jtoken   now, ahead;
    bool     has_ahead;
    uint32_t nest;       /* recursion of the parser */
    uint32_t n_loops;    /* around, within the function */
} jparser;

/* ---- Tokens ---- */

static bool parse_advance(jparser *p) {
    if (p->has_ahead) {
        p->now       = p->ahead;
        p->has_ahead = false;
        return true;
    }
    return jlexer_next(&p->lexer, &p->now);
}

/* The token behind the next. */
static const jtoken *parse_look(jparser *p) {
    if (!p->has_ahead) {
        if (!jlexer_next(&p->lexer, &p->ahead)) return NULL;
        p->has_ahead = true;
    }
    return &p->ahead;
}

static bool parse_is(const jparser *p, jtoken_kind kind) { return p->now.kind == kind; }

static bool parse_is_name(const jparser *p, const char *name) {
    return p->now.kind == JT_NAME && str_is(jv_str(&p->now.value), name);
}

static bool parse_fail(jparser *p, const char *expected) {
    p->j->line = p->now.line;
    return jinja_fail(p->j, "expected %s, not '%.*s'", expected, STR_ARG(jtoken_text(&p->now)));
}

static bool parse_expect(jparser *p, jtoken_kind kind, const char *what) {
    return parse_is(p, kind) ? parse_advance(p) : parse_fail(p, what);
}

/* Takes the token when it is there; *taken tells. */
static bool parse_take(jparser *p, jtoken_kind kind, bool *taken) {
    *taken = parse_is(p, kind);
    return !*taken || parse_advance(p);
}

static bool parse_take_name(jparser *p, const char *name, bool *taken) {
    *taken = parse_is_name(p, name);
    return !*taken || parse_advance(p);
}

/* ---- Nodes ---- */

static bool parse_nest(jparser *p) {
    p->j->line = p->now.line;
    return ++p->nest <= JINJA_MAX_NEST || jinja_fail(p->j, "nested too deeply");
}

static jnode *parse_node(jparser *p, jnode_kind kind) {
    jnode *n = (jnode *)jinja_alloc(p->j, sizeof *n);
    if (!n || !jinja_step(p->j, 2)) return NULL;
    memset(n, 0, sizeof *n);
    n->kind   = (uint8_t)kind;
    n->line   = p->now.line;
    n->height = 1;
    n->value  = p->now.value;
    return n;
}

/* Counts `child` and what follows it into the height of n, which the interpreter's recursion follows. */
static bool parse_adopt(jparser *p, jnode *n, const jnode *child) {
    for (; child; child = child->next)
        if (child->height >= n->height) n->height = (uint8_t)(child->height + 1);
    return n->height <= JINJA_MAX_NEST || jinja_fail(p->j, "nested too deeply");
}

static bool parse_adopt_all(jparser *p, jnode *n) {
    return parse_adopt(p, n, n->a) && parse_adopt(p, n, n->b) && parse_adopt(p, n, n->c) && parse_adopt(p, n, n->d) &&
           parse_adopt(p, n, n->e);
}

/* ---- Expressions ---- */

static bool parse_expression(jparser *p, jnode **out);
static bool parse_operators(jparser *p, int least, jnode **out);
static bool parse_postfix(jparser *p, jnode **node);

/* How a tuple without brackets is read, and where it ends. */
typedef enum parse_mode {
    PARSE_FULL,
    PARSE_PLAIN,     /* no "if ... else" */
    PARSE_TARGET,    /* names */
    PARSE_MEMBERS    /* names and members of namespaces */
} parse_mode;

static bool parse_tuple(jparser *p, parse_mode mode, bool parentheses, const char *end, jnode **out);

static bool parse_list(jparser *p, jnode **out) {
    jnode *list = parse_node(p, JN_LIST), **tail;
    if (!list || !parse_advance(p)) return false;
    tail = &list->a;
    while (!parse_is(p, JT_RBRACKET)) {
        if (list->a && !parse_expect(p, JT_COMMA, "','")) return false;
        if (parse_is(p, JT_RBRACKET)) break;
        if (!parse_expression(p, tail)) return false;
        tail = &(*tail)->next;
    }
    *out = list;
    return parse_advance(p) && parse_adopt_all(p, list);
}

static bool parse_dict(jparser *p, jnode **out) {
    jnode *dict = parse_node(p, JN_DICT), **tail;
    if (!dict || !parse_advance(p)) return false;
    tail = &dict->a;
    while (!parse_is(p, JT_RBRACE)) {
        if (dict->a && !parse_expect(p, JT_COMMA, "','")) return false;
        if (parse_is(p, JT_RBRACE)) break;
        if (!parse_expression(p, tail) || !parse_expect(p, JT_COLON, "':'")) return false;
        tail = &(*tail)->next;
        if (!parse_expression(p, tail)) return false;
        tail = &(*tail)->next;
    }
    *out = dict;
    return parse_advance(p) && parse_adopt_all(p, dict);
}

/* Strings side by side are one. */
static bool parse_strings(jparser *p, jnode **out) {
    jnode *n = parse_node(p, JN_CONST);
    if (!n || !parse_advance(p)) return false;
    while (parse_is(p, JT_STRING)) {
        jvalue before = n->value;
        if (!jinja_concat(p->j, &before, &p->now.value, &n->value) || !parse_advance(p)) return false;
    }
    *out = n;
    return true;
}

static bool parse_name(jparser *p, bool target, jnode **out) {
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    jnode *n = parse_node(p, JN_NAME);
    if (!n) return false;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!str_is(jv_str(&n->value), words[i])) continue;
        if (target) return jinja_fail(p->j, "cannot assign to '%s'", words[i]);
        n->kind  = JN_CONST;
        n->value = i < 4 ? jv_bool(i < 2) : jv_none();
        break;
    }
    *out = n;
    return parse_advance(p);
}

static bool parse_primary(jparser *p, jnode **out) {
    jnode *n;
    switch (p->now.kind) {
    case JT_NAME: return parse_name(p, false, out);
    case JT_STRING: return parse_strings(p, out);
    case JT_INTEGER:
    case JT_FLOAT:
        *out = n = parse_node(p, JN_CONST);
        return n && parse_advance(p);
    case JT_LPAREN:
        return parse_advance(p) && parse_tuple(p, PARSE_FULL, true, NULL, out) && parse_expect(p, JT_RPAREN, "')'");
    case JT_LBRACKET: return parse_list(p, out);
    case JT_LBRACE: return parse_dict(p, out);
    default: return parse_fail(p, "an expression");
    }
}

/* What may be assigned to: a name, a namespace's member (`members`), or a tuple of these. */
static bool parse_target_primary(jparser *p, bool members, jnode **out) {
    bool parenthesis;
    if (!parse_take(p, JT_LPAREN, &parenthesis)) return false;
    if (parenthesis) {
        if (!parse_nest(p) || !parse_tuple(p, PARSE_TARGET, true, NULL, out)) return false;
        p->nest--;
        return parse_expect(p, JT_RPAREN, "')'");
    }
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name to assign to");
    if (!parse_name(p, true, out) || !members || !parse_is(p, JT_DOT)) return p->j->failed == NOVA_OK;
    (*out)->kind = JN_MEMBER_TARGET;
    if (!parse_advance(p)) return false;
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name");
    (*out)->b = parse_node(p, JN_CONST);
    return (*out)->b && parse_advance(p);
}

static bool parse_is_tuple_end(const jparser *p, const char *end) {
    return parse_is(p, JT_VARIABLE_END) || parse_is(p, JT_BLOCK_END) || parse_is(p, JT_RPAREN) ||
           (end && parse_is_name(p, end));
}

/* One expression, or a tuple of several with commas between them. */
static bool parse_tuple(jparser *p, parse_mode mode, bool parentheses, const char *end, jnode **out) {
    jnode  *items = NULL, **tail = &items, *tuple;
    bool    comma = false;
    uint32_t line = p->now.line;
    for (;;) {
        if (parse_is_tuple_end(p, end)) break;
        bool ok = mode == PARSE_FULL    ? parse_expression(p, tail)
                  : mode == PARSE_PLAIN ? parse_operators(p, 1, tail)
                                        : parse_target_primary(p, mode == PARSE_MEMBERS, tail);
        if (!ok) return false;
        tail = &(*tail)->next;
        if (!parse_is(p, JT_COMMA)) break;
        comma = true;
        if (!parse_advance(p)) return false;
    }
    *out = items;
    if (!comma && items) return true;
    if (!items && !parentheses) return parse_fail(p, "an expression");
    *out = tuple = parse_node(p, JN_TUPLE);
    if (!tuple) return false;
    tuple->line = line;
    tuple->a    = items;
    return parse_adopt_all(p, tuple);
}

/* One argument, plain, *, ** or with a name. `*seen` is the kind of the one before: kinds come in their order. */
static bool parse_argument(jparser *p, jargument *seen, jnode **out) {
    jnode    *n    = parse_node(p, JN_ARGUMENT);
    jargument kind = parse_is(p, JT_MUL) ? JA_MANY : parse_is(p, JT_POW) ? JA_MANY_NAMED : JA_PLAIN;
    *out           = n;
    if (!n) return false;
    if (parse_is(p, JT_NAME)) {
        const jtoken *behind = parse_look(p);
        if (!behind) return false;
        if (behind->kind == JT_ASSIGN) kind = JA_NAMED;
    }
    bool right = kind == JA_PLAIN ? *seen == JA_PLAIN : kind == JA_MANY ? *seen < JA_MANY : *seen != JA_MANY_NAMED;
    if (!right) return jinja_fail(p->j, "arguments stand in the wrong order");
    if (*seen < kind) *seen = kind;
    n->op = (uint8_t)kind;
    if (kind != JA_PLAIN && !parse_advance(p)) return false;
    if (kind == JA_NAMED && !parse_advance(p)) return false;
    return parse_expression(p, &n->a) && parse_adopt_all(p, n);
}

/* The arguments in parentheses, which begin now. */
static bool parse_arguments(jparser *p, jnode **out) {
    jargument seen = JA_PLAIN;
    jnode   **tail = out;
    if (!parse_advance(p)) return false;
    while (!parse_is(p, JT_RPAREN)) {
        if (*out && !parse_expect(p, JT_COMMA, "','")) return false;
        if (parse_is(p, JT_RPAREN)) break;
        if (!parse_argument(p, &seen, tail)) return false;
        tail = &(*tail)->next;
    }
    return parse_advance(p);
}

static bool parse_call(jparser *p, jnode **node) {
    jnode *n = parse_node(p, JN_CALL);
    if (!n) return false;
    n->a = *node;
    if (!parse_arguments(p, &n->b)) return false;
    *node = n;
    return parse_adopt_all(p, n);
}

/* An end of a slice, or NULL where nothing stands. */
static bool parse_slice_end(jparser *p, jnode **out) {
    if (parse_is(p, JT_COLON) || parse_is(p, JT_RBRACKET) || parse_is(p, JT_COMMA)) return true;
    return parse_expression(p, out);
}

static bool parse_subscript_part(jparser *p, jnode **out) {
    jnode *n = parse_node(p, JN_SLICE);
    bool   colon;
    if (!n || !parse_slice_end(p, &n->a) || !parse_take(p, JT_COLON, &colon)) return false;
    if (!colon) {
        *out = n->a;
        return n->a || parse_fail(p, "an expression");
    }
    if (!parse_slice_end(p, &n->b) || !parse_take(p, JT_COLON, &colon)) return false;
    if (colon && !parse_slice_end(p, &n->c)) return false;
    *out = n;
    return parse_adopt_all(p, n);
}

static bool parse_subscript(jparser *p, jnode **node) {
    jnode *n = parse_node(p, JN_ELEMENT), **tail;
    if (!n || !parse_advance(p)) return false;
    tail = &n->b;
    while (!parse_is(p, JT_RBRACKET)) {
        if (n->b && !parse_expect(p, JT_COMMA, "','")) return false;
        if (!parse_subscript_part(p, tail)) return false;
        if (n->b != *tail && (n->b->kind == JN_SLICE || (*tail)->kind == JN_SLICE))
            return jinja_fail(p->j, "a slice of several dimensions is not supported");
        tail = &(*tail)->next;
    }
    if (!n->b || n->b->next) {
        jnode *tuple = parse_node(p, JN_TUPLE);
        if (!tuple) return false;
        tuple->a = n->b;
        n->b     = tuple;
        if (!parse_adopt_all(p, tuple)) return false;
    }
    n->a  = *node;
    *node = n;
    return parse_advance(p) && parse_adopt_all(p, n);
}

/* ".name", or ".0" for an index. */
static bool parse_member(jparser *p, jnode **node) {
    if (!parse_advance(p)) return false;
    bool   name = parse_is(p, JT_NAME);
    jnode *n    = parse_node(p, name ? JN_ATTRIBUTE : JN_ELEMENT);
    if (!n) return false;
    if (!name && !parse_is(p, JT_INTEGER)) return parse_fail(p, "a name or a number");
    if (!name && !(n->b = parse_node(p, JN_CONST))) return false;
    n->a  = *node;
    *node = n;
    return parse_advance(p) && parse_adopt_all(p, n);
}

static bool parse_postfix(jparser *p, jnode **node) {
    for (;;) {
        bool ok;
        if (parse_is(p, JT_DOT)) ok = parse_member(p, node);
        else if (parse_is(p, JT_LBRACKET)) ok = parse_subscript(p, node);
        else if (parse_is(p, JT_LPAREN)) ok = parse_call(p, node);
        else return true;
        if (!ok) return false;
    }
}

/* The name of a filter or test, perhaps with dots; now the node's value. */
static bool parse_dotted(jparser *p, jnode *n) {
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name");
    n->value = p->now.value;
    n->line  = p->now.line;
    if (!parse_advance(p)) return false;
    while (parse_is(p, JT_DOT)) {
        if (!parse_advance(p)) return false;
        if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name");
        jvalue before = n->value, dot = jv_c("."), both;
        if (!jinja_concat(p->j, &before, &dot, &both)) return false;
        if (!jinja_concat(p->j, &both, &p->now.value, &n->value) || !parse_advance(p)) return false;
    }
    return true;
}

/* The name of a filter and its arguments. */
static bool parse_filter(jparser *p, jnode **node) {
    jnode *n = parse_node(p, JN_FILTER);
    if (!n || !parse_dotted(p, n)) return false;
    n->a = *node;
    if (parse_is(p, JT_LPAREN) && !parse_arguments(p, &n->b)) return false;
    *node = n;
    return parse_adopt_all(p, n);
}

/* Whether an argument without parentheses follows a test: "is divisibleby 3". */
static bool parse_begins_argument(const jparser *p) {
    switch (p->now.kind) {
    case JT_NAME: return !parse_is_name(p, "else") && !parse_is_name(p, "or") && !parse_is_name(p, "and");
    case JT_STRING:
    case JT_INTEGER:
    case JT_FLOAT:
    case JT_LBRACKET:
    case JT_LBRACE: return true;
    default: return false;
    }
}

static bool parse_test(jparser *p, jnode **node) {
    bool   negated;
    jnode *n = parse_node(p, JN_TEST);
    if (!n || !parse_advance(p) || !parse_take_name(p, "not", &negated) || !parse_dotted(p, n)) return false;
    n->a = *node;
    if (parse_is(p, JT_LPAREN)) {
        if (!parse_arguments(p, &n->b)) return false;
    } else if (parse_begins_argument(p)) {
        if (parse_is_name(p, "is")) return jinja_fail(p->j, "tests cannot be chained with 'is'");
        if (!(n->b = parse_node(p, JN_ARGUMENT))) return false;
        n->b->op = JA_PLAIN;
        if (!parse_primary(p, &n->b->a) || !parse_postfix(p, &n->b->a) || !parse_adopt_all(p, n->b)) return false;
    }
    if (!parse_adopt_all(p, n)) return false;
    *node = n;
    if (!negated) return true;
    jnode *inverse = parse_node(p, JN_NOT);
    if (!inverse) return false;
    inverse->line = n->line;
    inverse->a    = n;
    *node         = inverse;
    return parse_adopt_all(p, inverse);
}

static bool parse_filters_and_tests(jparser *p, jnode **node) {
    for (;;) {
        bool ok;
        if (parse_is(p, JT_PIPE)) ok = parse_advance(p) && parse_filter(p, node);
        else if (parse_is_name(p, "is")) ok = parse_test(p, node);
        else if (parse_is(p, JT_LPAREN)) ok = parse_call(p, node);
        else return true;
        if (!ok) return false;
    }
}

static bool parse_unary(jparser *p, bool filters, jnode **out) {
    bool sign = parse_is(p, JT_SUB) || parse_is(p, JT_ADD);
    if (sign) {
        jnode *n = parse_node(p, parse_is(p, JT_SUB) ? JN_NEGATE : JN_PLUS);
        *out     = n;
        if (!n || !parse_nest(p) || !parse_advance(p) || !parse_unary(p, false, &n->a)) return false;
        if (!parse_adopt_all(p, n)) return false;
        p->nest--;
    } else if (!parse_primary(p, out)) {
        return false;
    }
    return parse_postfix(p, out) && (!filters || parse_filters_and_tests(p, out));
}

/* How strongly operators bind. */
enum { LEVEL_OR = 1, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_ADD, LEVEL_CONCAT, LEVEL_MULTIPLY, LEVEL_POWER };

typedef struct parse_operator {
    jtoken_kind kind;
    uint8_t     level, op;
} parse_operator;

static const parse_operator parse_operators_table[] = {
    {JT_ADD, LEVEL_ADD, JO_ADD}, {JT_SUB, LEVEL_ADD, JO_SUB}, {JT_MUL, LEVEL_MULTIPLY, JO_MUL},
    {JT_DIV, LEVEL_MULTIPLY, JO_DIV}, {JT_FLOORDIV, LEVEL_MULTIPLY, JO_FLOORDIV}, {JT_MOD, LEVEL_MULTIPLY, JO_MOD},
    {JT_POW, LEVEL_POWER, JO_POW}, {JT_TILDE, LEVEL_CONCAT, JO_CONCAT}, {JT_EQ, LEVEL_COMPARE, JO_EQ},
    {JT_NE, LEVEL_COMPARE, JO_NE}, {JT_LT, LEVEL_COMPARE, JO_LT}, {JT_LE, LEVEL_COMPARE, JO_LE},
    {JT_GT, LEVEL_COMPARE, JO_GT}, {JT_GE, LEVEL_COMPARE, JO_GE},
};

/* The level and joperator of the operator that stands here; level 0 when none does. *words: how many tokens it is. */
static bool parse_operator_here(jparser *p, int *level, uint8_t *op, int *words) {
    *level = 0;
    *op    = 0;
    *words = 1;
    if (p->now.kind != JT_NAME) {
        for (size_t i = 0; i < COUNT_OF(parse_operators_table); i++)
            if (parse_operators_table[i].kind == p->now.kind) {
                *level = parse_operators_table[i].level;
                *op    = parse_operators_table[i].op;
            }
        return true;
    }
    if (parse_is_name(p, "or")) *level = LEVEL_OR;
    if (parse_is_name(p, "and")) *level = LEVEL_AND;
    if (parse_is_name(p, "in")) *level = LEVEL_COMPARE, *op = JO_IN;
    if (parse_is_name(p, "not")) {
        const jtoken *behind = parse_look(p);
        if (!behind) return false;
        if (behind->kind == JT_NAME && str_is(jv_str(&behind->value), "in")) {
            *level = LEVEL_COMPARE;
            *op    = JO_NOT_IN;
            *words = 2;
        }
    }
    return true;
}

/* All operators of one level, from left to right, behind their first operand. */
static bool parse_level(jparser *p, int level, jnode **node) {
    bool   logic = level == LEVEL_OR || level == LEVEL_AND;
    jnode *n = parse_node(p, level == LEVEL_OR ? JN_OR : level == LEVEL_AND ? JN_AND
                                 : level == LEVEL_COMPARE ? JN_COMPARE : JN_CHAIN);
    jnode **tail;
    int     here, words;
    uint8_t op;
    if (!n) return false;
    n->a = *node;
    tail = logic ? &n->a->next : &n->b;
    while (parse_operator_here(p, &here, &op, &words) && here == level) {
        jnode *operand, *link = logic ? NULL : parse_node(p, JN_LINK);
        if (!logic && !link) return false;
        while (words-- > 0)
            if (!parse_advance(p)) return false;
        if (!parse_operators(p, level + 1, logic ? &operand : &link->a)) return false;
        if (link) {
            link->op = op;
            operand  = link;
            if (!parse_adopt_all(p, link)) return false;
        }
        *tail = operand;
        tail  = &operand->next;
    }
    *node = n;
    return p->j->failed == NOVA_OK && parse_adopt_all(p, n);
}

/* An expression of operators that bind at least as strongly as `least`. */
static bool parse_operators(jparser *p, int least, jnode **out) {
    int     level, words;
    uint8_t op;
    if (least <= LEVEL_NOT && parse_is_name(p, "not")) {
        jnode *n = parse_node(p, JN_NOT);
        *out     = n;
        if (!n || !parse_nest(p) || !parse_advance(p) || !parse_operators(p, LEVEL_NOT, &n->a)) return false;
        p->nest--;
        if (!parse_adopt_all(p, n)) return false;
    } else if (!parse_unary(p, true, out)) {
        return false;
    }
    while (parse_operator_here(p, &level, &op, &words) && level && level >= least)
        if (!parse_level(p, level, out)) return false;
    return p->j->failed == NOVA_OK;
}

static bool parse_expression(jparser *p, jnode **out) {
    bool condition, otherwise;
    if (!parse_nest(p) || !parse_operators(p, LEVEL_OR, out)) return false;
    while (parse_is_name(p, "if")) {
        jnode *n = parse_node(p, JN_CONDITION);
        if (!n || !parse_take_name(p, "if", &condition) || !parse_operators(p, LEVEL_OR, &n->a)) return false;
        n->b = *out;
        if (!parse_take_name(p, "else", &otherwise)) return false;
        if (otherwise && !parse_expression(p, &n->c)) return false;
        *out = n;
        if (!parse_adopt_all(p, n)) return false;
    }
    p->nest--;
    return true;
}

/* ---- Statements ---- */

/* Statements until one of the tags in `ends` (with blanks between them), which is the token then; NULL: to the end of
 * the template. */
static bool parse_body(jparser *p, const char *ends, jnode **out);

static bool parse_name_in(const jparser *p, const char *list) {
    str name = p->now.kind == JT_NAME ? jv_str(&p->now.value) : str_of("", 0);
    for (const char *word = list; *word && name.n;) {
        size_t n = strcspn(word, " ");
        if (str_eq(name, str_of(word, n))) return true;
        word += n;
        word += *word == ' ';
    }
    return false;
}

/* Closes the tag that is open, reads a body, and takes the end tag's name. */
static bool parse_statements(jparser *p, const char *ends, jnode **out, bool keep_end) {
    bool colon;
    if (!parse_take(p, JT_COLON, &colon) || !parse_expect(p, JT_BLOCK_END, "'%}'")) return false;
    if (!parse_body(p, ends, out)) return false;
    return keep_end || parse_advance(p);
}

static bool parse_if(jparser *p, jnode *n) {
    jnode **tail = &n->a;
    for (bool more = true; more;) {
        jnode *branch = parse_node(p, JN_BRANCH);
        bool   last   = parse_is_name(p, "else");
        if (!branch || !parse_advance(p)) return false;
        if (!last && !parse_tuple(p, PARSE_PLAIN, false, NULL, &branch->a)) return false;
        if (!parse_statements(p, last ? "endif" : "elif else endif", &branch->b, true)) return false;
        more  = !parse_is_name(p, "endif");
        *tail = branch;
        tail  = &branch->next;
        if (!parse_adopt_all(p, branch)) return false;
    }
    return parse_advance(p);
}

static bool parse_for(jparser *p, jnode *n) {
    bool taken, recursive;
    if (!parse_advance(p) || !parse_tuple(p, PARSE_TARGET, false, "in", &n->a)) return false;
    if (!parse_is_name(p, "in")) return parse_fail(p, "'in'");
    if (!parse_advance(p) || !parse_tuple(p, PARSE_PLAIN, false, "recursive", &n->b)) return false;
    if (!parse_take_name(p, "if", &taken) || (taken && !parse_expression(p, &n->e))) return false;
    if (!parse_take_name(p, "recursive", &recursive)) return false;
    n->op = recursive;
    p->n_loops++;
    if (!parse_statements(p, "else endfor", &n->c, true)) return false;
    p->n_loops--;
    if (!parse_take_name(p, "else", &taken)) return false;
    if (taken) return parse_statements(p, "endfor", &n->d, false);
    return parse_advance(p);
}

/* A filter behind a set block's target, perhaps several. */
static bool parse_set(jparser *p, jnode *n) {
    bool assign;
    if (!parse_advance(p) || !parse_tuple(p, PARSE_MEMBERS, false, NULL, &n->a)) return false;
    if (!parse_take(p, JT_ASSIGN, &assign)) return false;
    if (assign) return parse_tuple(p, PARSE_FULL, false, NULL, &n->b);
    n->kind = JN_SET_BLOCK;
    while (parse_is(p, JT_PIPE))
        if (!parse_advance(p) || !parse_filter(p, &n->b)) return false;
    return parse_statements(p, "endset", &n->c, false);
}

/* (a, b=1) */
static bool parse_parameters(jparser *p, jnode **out) {
    jnode **tail = out;
    bool    optional = false;
    if (!parse_expect(p, JT_LPAREN, "'('")) return false;
    while (!parse_is(p, JT_RPAREN)) {
        bool assign;
        if (*out && !parse_expect(p, JT_COMMA, "','")) return false;
        jnode *n = parse_node(p, JN_PARAMETER);
        if (!n) return false;
        if (!parse_is(p, JT_NAME)) return parse_fail(p, "a parameter's name");
        if (!parse_advance(p) || !parse_take(p, JT_ASSIGN, &assign)) return false;
        if (assign && !parse_expression(p, &n->a)) return false;
        if (!assign && optional) return jinja_fail(p->j, "a parameter without a default follows one with it");
        optional = assign;
        *tail    = n;
        tail     = &n->next;
        if (!parse_adopt_all(p, n)) return false;
    }
    return parse_advance(p);
}

/* The body of a function, in which the loops around do not count. */
static bool parse_function(jparser *p, const char *ends, jnode **out) {
    uint32_t n_loops = p->n_loops;
    p->n_loops       = 0;
    if (!parse_statements(p, ends, out, false)) return false;
    p->n_loops = n_loops;
    return true;
}

static bool parse_macro(jparser *p, jnode *n) {
    if (!parse_advance(p)) return false;
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a macro's name");
    n->value = p->now.value;
    return parse_advance(p) && parse_parameters(p, &n->a) && parse_function(p, "endmacro", &n->c);
}

static bool parse_call_block(jparser *p, jnode *n) {
    if (!parse_advance(p)) return false;
    if (parse_is(p, JT_LPAREN) && !parse_parameters(p, &n->a)) return false;
    if (!parse_expression(p, &n->b)) return false;
    if (n->b->kind != JN_CALL) return jinja_fail(p->j, "a call block needs a call");
    return parse_function(p, "endcall", &n->c);
}

static bool parse_generation(jparser *p, jnode *n) {
    return parse_advance(p) && parse_function(p, "endgeneration", &n->c);
}

static bool parse_filter_block(jparser *p, jnode *n) {
    if (!parse_advance(p) || !parse_filter(p, &n->b)) return false;
    while (parse_is(p, JT_PIPE))
        if (!parse_advance(p) || !parse_filter(p, &n->b)) return false;
    return parse_statements(p, "endfilter", &n->c, false);
}

static bool parse_with(jparser *p, jnode *n) {
    jnode **target = &n->a, **value = &n->b;
    if (!parse_advance(p)) return false;
    while (!parse_is(p, JT_BLOCK_END)) {
        if (n->a && !parse_expect(p, JT_COMMA, "','")) return false;
        if (!parse_tuple(p, PARSE_TARGET, false, NULL, target)) return false;
        if (!parse_expect(p, JT_ASSIGN, "'='") || !parse_expression(p, value)) return false;
        target = &(*target)->next;
        value  = &(*value)->next;
    }
    return parse_statements(p, "endwith", &n->c, false);
}

static bool parse_jump(jparser *p, jnode *n) {
    if (!p->n_loops) return jinja_fail(p->j, "'%.*s' outside a loop", STR_ARG(jv_str(&n->value)));
    return parse_advance(p);
}

/* {% print a, b %} */
static bool parse_print(jparser *p, jnode **out) {
    jnode **tail = out;
    if (!parse_advance(p)) return false;
    while (!parse_is(p, JT_BLOCK_END)) {
        if (*out && !parse_expect(p, JT_COMMA, "','")) return false;
        jnode *n = parse_node(p, JN_OUTPUT);
        if (!n || !parse_expression(p, &n->a) || !parse_adopt_all(p, n)) return false;
        *tail = n;
        tail  = &n->next;
    }
    return true;
}

typedef struct parse_tag {
    const char *name;
    jnode_kind  kind;
    bool      (*parse)(jparser *p, jnode *n);
} parse_tag;

static const parse_tag parse_tags[] = {
    {"if", JN_IF, parse_if},
    {"for", JN_FOR, parse_for},
    {"set", JN_SET, parse_set},
    {"macro", JN_MACRO, parse_macro},
    {"call", JN_CALL_BLOCK, parse_call_block},
    {"generation", JN_GENERATION, parse_generation},
    {"filter", JN_FILTER_BLOCK, parse_filter_block},
    {"with", JN_WITH, parse_with},
    {"break", JN_BREAK, parse_jump},
    {"continue", JN_CONTINUE, parse_jump},
};

/* The statement whose name stands now, up to the end of its last tag. */
static bool parse_statement(jparser *p, const char *ends, jnode **out) {
    if (!parse_nest(p)) return false;
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a tag's name");
    size_t i = 0;
    while (i < COUNT_OF(parse_tags) && !parse_is_name(p, parse_tags[i].name)) i++;
    if (i < COUNT_OF(parse_tags)) {
        jnode *n = parse_node(p, parse_tags[i].kind);
        *out     = n;
        if (!n || !parse_tags[i].parse(p, n) || !parse_adopt_all(p, n)) return false;
    } else if (parse_is_name(p, "print")) {
        if (!parse_print(p, out)) return false;
    } else {
        bool known = parse_name_in(p, "block extends include import from autoescape");
        return jinja_fail(p->j, "%s tag '%.*s'%s%s", known ? "unsupported" : "unknown", STR_ARG(jv_str(&p->now.value)),
                          ends ? "; to be closed here: " : "", ends ? ends : "");
    }
    p->nest--;
    return parse_expect(p, JT_BLOCK_END, "'%}'");
}

static bool parse_body(jparser *p, const char *ends, jnode **out) {
    jnode **tail = out;
    *out         = NULL;
    for (;;) {
        switch (p->now.kind) {
        case JT_DATA:
            if (!(*tail = parse_node(p, JN_DATA)) || !parse_advance(p)) return false;
            break;
        case JT_VARIABLE_BEGIN:
            if (!(*tail = parse_node(p, JN_OUTPUT)) || !parse_advance(p)) return false;
            if (!parse_tuple(p, PARSE_FULL, false, NULL, &(*tail)->a) || !parse_adopt_all(p, *tail)) return false;
            if (!parse_expect(p, JT_VARIABLE_END, "'}}'")) return false;
            break;
        case JT_BLOCK_BEGIN:
            if (!parse_advance(p)) return false;
            if (ends && parse_name_in(p, ends)) return true;
            if (!parse_statement(p, ends, tail)) return false;
            break;
        default:
            if (!ends) return true;
            p->j->line = p->now.line;
            return jinja_fail(p->j, "the template ends where one of these is missing: %s", ends);
        }
        while (*tail) tail = &(*tail)->next;
    }
}

static bool jinja_parse(jinja *j, str text, jnode **out) {
    jparser p;
    memset(&p, 0, sizeof p);
    p.j     = j;
    j->line = 1;
    return jlexer_open(&p.lexer, j, text) && parse_advance(&p) && parse_body(&p, NULL, out);
}

/* ==== src/jinja_scope.h ======================================================================================= */

/* Which variable a name means. Jinja compiles a template to Python functions, and what a name sees follows from that:
 * `if` opens no scope; a loop's body opens one that begins anew with every turn; a macro sees what surrounds it as it
 * is when it is called; and what a scope assigns only further down is undefined above, even if the template was given a
 * variable of that name. This module decides all that before the template runs: every name becomes a place in the
 * frame of a function, so many functions out. */
#ifndef NOVA_JINJA_SCOPE_H
#define NOVA_JINJA_SCOPE_H


/* What a variable holds when its scope begins. */
typedef enum jload {
    JLOAD_PARAMETER,  /* what the caller put there */
    JLOAD_GIVEN,      /* the template's variable of that name, or nothing */
    JLOAD_OUTER,      /* what the variable of that name around holds now */
    JLOAD_NOTHING
} jload;

typedef struct jsymbol {
    str      name;
    jload    load;
    uint32_t slot;
    uint32_t outer_up, outer_slot;
} jsymbol;

/* What runs in a frame of its own: the template, a macro, a recursive loop. */
typedef struct jfunction {
    uint32_t n_slots;
} jfunction;

#define JSLOT_NONE UINT32_MAX

struct jscope {
    jscope    *parent;
    jfunction *function;
    jsymbol   *symbols;
    uint32_t   n, cap;
    uint32_t   loop;                        /* of a loop's body: the slot of `loop` */
    uint32_t   caller, named, positional;   /* of a macro: the slots of caller, kwargs, varargs, or JSLOT_NONE */
};

/* Binds all names, and all filters and tests, which must be known unless they stand in the branch of a condition. */
static bool jinja_bind(jinja *j, jnode *statements, jscope **out);

#endif

/* ==== src/jinja_scope.c ======================================================================================= */

/* Which variable a name means: see jinja_scope.h. Source of the rules: Jinja 3.1's idtracking and compiler. */

/* ---- Scopes ---- */

static jscope *scope_open(jinja *j, jscope *parent, bool function) {
    jscope *s = (jscope *)jinja_alloc(j, sizeof *s);
    if (!s) return NULL;
    memset(s, 0, sizeof *s);
    s->parent     = parent;
    s->loop       = JSLOT_NONE;
    s->caller     = JSLOT_NONE;
    s->named      = JSLOT_NONE;
    s->positional = JSLOT_NONE;
    s->function   = parent ? parent->function : NULL;
    if (function || !parent) {
        s->function = (jfunction *)jinja_alloc(j, sizeof *s->function);
        if (!s->function) return NULL;
        s->function->n_slots = 0;
    }
    return s;
}

static jsymbol *scope_find(jinja *j, const jscope *s, str name) {
    jinja_step(j, s->n >> 3);
    for (uint32_t i = 0; i < s->n; i++)
        if (str_eq(s->symbols[i].name, name)) return &s->symbols[i];
    return NULL;
}

/* The sym of that name in `s` or around it; *up is how many functions out. */
static jsymbol *scope_find_around(jinja *j, const jscope *s, str name, uint32_t *up) {
    *up = 0;
    for (; s; s = s->parent) {
        jsymbol *found = scope_find(j, s, name);
        if (found) return found;
        if (s->parent && s->parent->function != s->function) ++*up;
    }
    return NULL;
}

static jsymbol *scope_define(jinja *j, jscope *s, str name, jload load) {
    jsymbol *sym = scope_find(j, s, name);
    if (!sym) {
        jsymbol *symbols = (jsymbol *)jinja_grow(j, s->symbols, s->n, &s->cap, sizeof *symbols);
        if (!symbols) return NULL;
        s->symbols   = symbols;
        sym       = &symbols[s->n++];
        sym->name = name;
        sym->slot = s->function->n_slots++;
    }
    sym->load       = load;
    sym->outer_up   = 0;
    sym->outer_slot = 0;
    return j->failed == NOVA_OK ? sym : NULL;
}

static bool scope_parameter(jinja *j, jscope *s, str name, uint32_t *slot) {
    jsymbol *sym = scope_define(j, s, name, JLOAD_PARAMETER);
    if (sym) *slot = sym->slot;
    return sym != NULL;
}

/* A name is read in `s`: when nothing around has it, the template's variable is meant. */
static bool scope_load(jinja *j, jscope *s, str name) {
    uint32_t up;
    if (scope_find_around(j, s, name, &up)) return j->failed == NOVA_OK;
    return scope_define(j, s, name, JLOAD_GIVEN) != NULL;
}

/* A name is assigned in `s`. `maybe`: in a branch of a condition, so that what was there before may stay. */
static bool scope_store(jinja *j, jscope *s, str name, bool maybe) {
    uint32_t up = 0;
    if (scope_find(j, s, name)) return j->failed == NOVA_OK;
    jsymbol *outer = s->parent ? scope_find_around(j, s->parent, name, &up) : NULL;
    if (outer && s->parent->function != s->function) up++;
    uint32_t outer_slot = outer ? outer->slot : 0;
    jsymbol *sym     = scope_define(j, s, name, outer ? JLOAD_OUTER : maybe ? JLOAD_GIVEN : JLOAD_NOTHING);
    if (!sym) return false;
    sym->outer_up   = up;
    sym->outer_slot = outer_slot;
    return true;
}

/* ---- First walk: what the statements of one scope read and assign, not those of the scopes inside ---- */

typedef struct binder {
    jinja   *j;
    uint32_t n_loops;   /* around, macros included */
} binder;

static bool collect_expression(binder *b, jscope *s, const jnode *n);

static bool collect_list(binder *b, jscope *s, const jnode *n) {
    for (; n; n = n->next)
        if (!collect_expression(b, s, n)) return false;
    return true;
}

static bool collect_expression(binder *b, jscope *s, const jnode *n) {
    if (!n) return true;
    if (!jinja_step(b->j, 1)) return false;
    if (n->kind == JN_NAME || n->kind == JN_MEMBER_TARGET) return scope_load(b->j, s, jv_str(&n->value));
    return collect_list(b, s, n->a) && collect_list(b, s, n->b) && collect_list(b, s, n->c);
}

/* A target of `set` (parameter false), or of a loop or `with`. */
static bool collect_target(binder *b, jscope *s, jnode *n, bool parameter, bool maybe) {
    uint32_t slot;
    if (n->kind == JN_TUPLE) {
        for (jnode *item = n->a; item; item = item->next)
            if (!collect_target(b, s, item, parameter, maybe)) return false;
        return true;
    }
    if (n->kind == JN_MEMBER_TARGET) return scope_load(b->j, s, jv_str(&n->value));
    if (parameter) return scope_parameter(b->j, s, jv_str(&n->value), &slot);
    return scope_store(b->j, s, jv_str(&n->value), maybe);
}

static bool collect_statements(binder *b, jscope *s, jnode *n, bool maybe) {
    for (; n; n = n->next) {
        bool ok = jinja_step(b->j, 1);
        switch (n->kind) {
        case JN_OUTPUT: ok = ok && collect_expression(b, s, n->a); break;
        case JN_IF:
            for (jnode *branch = n->a; branch && ok; branch = branch->next)
                ok = collect_expression(b, s, branch->a) && collect_statements(b, s, branch->b, true);
            break;
        case JN_FOR: ok = ok && collect_expression(b, s, n->b); break;
        case JN_SET: ok = ok && collect_expression(b, s, n->b) && collect_target(b, s, n->a, false, maybe); break;
        case JN_SET_BLOCK: ok = ok && collect_target(b, s, n->a, false, maybe); break;
        case JN_MACRO: ok = ok && scope_store(b->j, s, jv_str(&n->value), maybe); break;
        case JN_CALL_BLOCK: ok = ok && collect_expression(b, s, n->b); break;
        case JN_FILTER_BLOCK: ok = ok && collect_expression(b, s, n->b); break;
        case JN_WITH: ok = ok && collect_list(b, s, n->b); break;
        default: break;
        }
        if (!ok) return false;
    }
    return true;
}

/* ---- Second walk: places for names, and the scopes inside ---- */

static bool bind_statements(binder *b, jscope *s, jnode *n, bool soft);
static bool bind_expression(binder *b, jscope *s, jnode *n, bool soft);

static bool bind_list(binder *b, jscope *s, jnode *n, bool soft) {
    for (; n; n = n->next)
        if (!bind_expression(b, s, n, soft)) return false;
    return true;
}

static bool bind_name(binder *b, jscope *s, str name, jnode *n) {
    jsymbol *sym = scope_find_around(b->j, s, name, &n->up);
    b->j->line      = n->line;
    if (!sym) return jinja_fail(b->j, "'%.*s' is used where no scope knows it", STR_ARG(name));
    n->slot = sym->slot;
    return true;
}

/* A filter or test must be known; `soft`: only when it is used. */
static bool bind_native(binder *b, jnode *n, bool soft) {
    str name   = jv_str(&n->value);
    n->native  = n->kind == JN_FILTER ? jinja_filter(name) : jinja_test(name);
    b->j->line = n->line;
    if (n->native || soft) return true;
    return jinja_fail(b->j, "no %s of this name: '%.*s'", n->kind == JN_FILTER ? "filter" : "test", STR_ARG(name));
}

static bool bind_expression(binder *b, jscope *s, jnode *n, bool soft) {
    if (!n) return true;
    if (!jinja_step(b->j, 1)) return false;
    if (n->kind == JN_NAME || n->kind == JN_MEMBER_TARGET) return bind_name(b, s, jv_str(&n->value), n);
    if (n->kind == JN_CONDITION) soft = true;
    if ((n->kind == JN_FILTER || n->kind == JN_TEST) && !bind_native(b, n, soft)) return false;
    return bind_list(b, s, n->a, soft) && bind_list(b, s, n->b, soft) && bind_list(b, s, n->c, soft);
}

/* The places of a loop's target in the scope of its condition. */
static bool bind_test_target(binder *b, jscope *test, jnode *n) {
    for (jnode *item = n->kind == JN_TUPLE ? n->a : NULL; item; item = item->next)
        if (!bind_test_target(b, test, item)) return false;
    jsymbol *sym = n->kind == JN_NAME ? scope_find(b->j, test, jv_str(&n->value)) : NULL;
    if (sym) n->test_slot = sym->slot;
    return true;
}

static bool bind_refuse_loop(binder *b, const jnode *target) {
    for (const jnode *item = target->kind == JN_TUPLE ? target->a : NULL; item; item = item->next)
        if (!bind_refuse_loop(b, item)) return false;
    b->j->line = target->line;
    if (target->kind == JN_NAME && str_is(jv_str(&target->value), "loop"))
        return jinja_fail(b->j, "within a loop its variable 'loop' cannot be assigned");
    return true;
}

static bool bind_for(binder *b, jscope *s, jnode *n, bool soft) {
    if (!bind_expression(b, s, n->b, soft)) return false;
    jscope *body = scope_open(b->j, s, n->op != 0), *around = body;
    if (!body || !scope_parameter(b->j, body, str_c("loop"), &body->loop)) return false;
    b->n_loops++;
    if (!bind_refuse_loop(b, n->a) || !collect_target(b, body, n->a, true, false)) return false;
    if (!collect_statements(b, body, n->c, false) || !bind_expression(b, body, n->a, false)) return false;
    n->scope = body;
    if (n->op) {   /* what the condition and `else` see lies in the same frame, but is no part of the body */
        around = scope_open(b->j, s, false);
        if (!around) return false;
        around->function = body->function;
    }
    jscope *outside = n->op ? around : s;
    if (n->e) {
        jscope *test = scope_open(b->j, outside, false);
        if (!test || !collect_target(b, test, n->a, true, false) || !collect_expression(b, test, n->e)) return false;
        if (!bind_test_target(b, test, n->a) || !bind_expression(b, test, n->e, false)) return false;
        n->test_scope = test;
    }
    if (!bind_statements(b, body, n->c, false)) return false;
    b->n_loops--;
    if (n->d) {
        n->other_scope = scope_open(b->j, outside, false);
        if (!n->other_scope || !collect_statements(b, n->other_scope, n->d, false)) return false;
        if (!bind_statements(b, n->other_scope, n->d, false)) return false;
    }
    return true;
}

/* Is a name read anywhere in these statements? */
static bool bind_mentions(binder *b, const jnode *n, const char *name) {
    for (; n; n = n->next) {
        jinja_step(b->j, 1);
        if (n->kind == JN_NAME && str_is(jv_str(&n->value), name)) return true;
        if (bind_mentions(b, n->a, name) || bind_mentions(b, n->b, name) || bind_mentions(b, n->c, name) ||
            bind_mentions(b, n->d, name) || bind_mentions(b, n->e, name)) return true;
    }
    return false;
}

/* One of caller, kwargs, varargs: a parameter when the body reads it and no parameter has its name. */
static bool bind_special(binder *b, jscope *s, const jnode *n, const char *name, uint32_t *slot) {
    for (const jnode *p = n->a; p; p = p->next)
        if (str_is(jv_str(&p->value), name)) return true;
    if (!bind_mentions(b, n->c, name)) return true;
    return scope_parameter(b->j, s, str_c(name), slot);
}

/* A macro, call block or generation block: parameters and body in a function of their own. */
static bool bind_function(binder *b, jscope *s, jnode *n) {
    jscope *body = scope_open(b->j, s, true);
    if (!body) return false;
    for (jnode *p = n->a; p; p = p->next)
        if (!scope_parameter(b->j, body, jv_str(&p->value), &p->slot)) return false;
    if (!bind_special(b, body, n, "caller", &body->caller) || !bind_special(b, body, n, "kwargs", &body->named) ||
        !bind_special(b, body, n, "varargs", &body->positional)) return false;
    for (jnode *p = n->a; p; p = p->next) {
        if (!collect_expression(b, body, p->a)) return false;
        b->j->line = n->line;
        if (!p->a && str_is(jv_str(&p->value), "caller") && bind_mentions(b, n->c, "caller"))
            return jinja_fail(b->j, "a parameter 'caller' needs a default");
    }
    if (!collect_statements(b, body, n->c, false)) return false;
    for (jnode *p = n->a; p; p = p->next)
        if (!bind_expression(b, body, p->a, false)) return false;
    n->scope = body;
    return bind_statements(b, body, n->c, false);
}

/* A scope in the same function for a body, which a filter may follow. */
static bool bind_block(binder *b, jscope *s, jnode *n) {
    jscope *body = scope_open(b->j, s, false);
    if (!body) return false;
    n->scope = body;
    if (n->kind == JN_WITH)
        for (jnode *target = n->a; target; target = target->next)
            if (!collect_target(b, body, target, true, false)) return false;
    if (!collect_statements(b, body, n->c, false)) return false;
    if (n->kind == JN_WITH && !bind_list(b, body, n->a, false)) return false;
    if (n->kind != JN_WITH && !bind_expression(b, body, n->b, false)) return false;
    return bind_statements(b, body, n->c, false);
}

static bool bind_set(binder *b, jscope *s, jnode *n, bool soft) {
    if (b->n_loops && !bind_refuse_loop(b, n->a)) return false;
    if (!bind_expression(b, s, n->a, soft)) return false;
    return n->kind == JN_SET ? bind_expression(b, s, n->b, soft) : bind_block(b, s, n);
}

static bool bind_statements(binder *b, jscope *s, jnode *n, bool soft) {
    for (; n; n = n->next) {
        bool ok = jinja_step(b->j, 1);
        switch (n->kind) {
        case JN_OUTPUT: ok = ok && bind_expression(b, s, n->a, soft); break;
        case JN_IF:
            for (jnode *branch = n->a; branch && ok; branch = branch->next)
                ok = bind_expression(b, s, branch->a, true) && bind_statements(b, s, branch->b, true);
            break;
        case JN_FOR: ok = ok && bind_for(b, s, n, soft); break;
        case JN_SET:
        case JN_SET_BLOCK: ok = ok && bind_set(b, s, n, soft); break;
        case JN_MACRO: ok = ok && bind_name(b, s, jv_str(&n->value), n) && bind_function(b, s, n); break;
        case JN_CALL_BLOCK: ok = ok && bind_expression(b, s, n->b, soft) && bind_function(b, s, n); break;
        case JN_GENERATION: ok = ok && bind_function(b, s, n); break;
        case JN_FILTER_BLOCK: ok = ok && bind_block(b, s, n); break;
        case JN_WITH: ok = ok && bind_list(b, s, n->b, soft) && bind_block(b, s, n); break;
        default: break;
        }
        if (!ok) return false;
    }
    return true;
}

static bool jinja_bind(jinja *j, jnode *statements, jscope **out) {
    binder b;
    b.j       = j;
    b.n_loops = 0;
    *out      = scope_open(j, NULL, true);
    return *out && collect_statements(&b, *out, statements, false) && bind_statements(&b, *out, statements, false);
}

/* ==== src/jinja_run.h ========================================================================================= */

/* Runs a template: the tree of jinja_parse, bound by jinja_scope, over given variables. */
#ifndef NOVA_JINJA_RUN_H
#define NOVA_JINJA_RUN_H


/* Appends what the template prints to `out`, whose memory counts against JINJA_MAX_BYTES. */
static bool jinja_run(jinja *j, str text, const jdict *variables, text_buffer *out);

#endif

/* ==== src/jinja_run.c ========================================================================================= */

/* Runs a template: see jinja_run.h. A walk over the tree, whose depth jinja_enter bounds; so frames of C are kept
 * small: every kind of node has a function of its own, and nothing large lies on the stack. */

typedef struct jframe {
    struct jframe *outer;   /* of the function around */
    jvalue        *slots;
} jframe;

typedef struct jrun {
    jinja       *j;
    const jdict *variables;
    text_buffer *out;
    text_buffer  captured;    /* what macros and blocks print, the innermost at the end */
    uint32_t     n_captures;  /* open now; none: printing goes to `out` */
    jvalue       block_text;  /* what the innermost filter of a block takes */
} jrun;

struct jloop {
    jrun        *run;
    const jnode *node;
    jframe      *frame;             /* in which the loop runs */
    jframe      *outer;             /* in which it is written: for recursive ones */
    jvalue       iterable;
    jiter        it;
    jvalue       before, current, after;
    bool         tested;            /* what `it` gives has passed the condition already */
    bool         peeked;            /* `after` is the next item, or missing at the end */
    int64_t      index0, depth0;
    int64_t      length;            /* once it was asked for and had to be counted, else -1 */
    jvalue       changed;           /* the arguments of the last call of loop.changed */
    uint64_t     serial;
};

typedef enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE, JFLOW_FAIL } jflow;

static bool  run_eval(jrun *r, jframe *f, const jnode *n, jvalue *out);
static jflow run_statements(jrun *r, jframe *f, const jnode *n);
static bool  run_call(jrun *r, const jvalue *callee, const jargs *a, jvalue *out);

/* ---- Frames and scopes ---- */

static jframe *frame_open(jrun *r, const jfunction *function, jframe *outer) {
    jframe *f = (jframe *)jinja_alloc(r->j, sizeof *f);
    if (!f || !jinja_step(r->j, 1 + (function->n_slots >> 3))) return NULL;
    f->outer = outer;
    f->slots = (jvalue *)jinja_alloc(r->j, function->n_slots * sizeof *f->slots);
    if (!f->slots) return NULL;
    memset(f->slots, 0, function->n_slots * sizeof *f->slots);   /* J_MISSING */
    return f;
}

static jframe *frame_out(jframe *f, uint32_t up) {
    while (up--) f = f->outer;
    return f;
}

static bool scope_resolve(jrun *r, str name, jvalue *out) {
    jvalue        key   = jv_string(name.p, name.n, 0);
    const jvalue *given = jdict_get(r->j, r->variables, &key);
    if (r->j->failed != NOVA_OK) return false;
    const jnative *global = given ? NULL : jinja_global(name);
    *out                  = given ? *given : jv_make(global ? J_FUNCTION : J_MISSING);
    if (global) out->u.native = global;
    return true;
}

static bool scope_enter(jrun *r, jframe *f, const jscope *s) {
    if (!jinja_step(r->j, s->n >> 1)) return false;
    for (uint32_t i = 0; i < s->n; i++) {
        const jsymbol *sym = &s->symbols[i];
        jvalue        *slot   = &f->slots[sym->slot];
        switch (sym->load) {
        case JLOAD_PARAMETER: break;
        case JLOAD_GIVEN:
            if (!scope_resolve(r, sym->name, slot)) return false;
            break;
        case JLOAD_OUTER: *slot = frame_out(f, sym->outer_up)->slots[sym->outer_slot]; break;
        case JLOAD_NOTHING: *slot = jv_make(J_MISSING); break;
        }
    }
    return true;
}

static void scope_leave(jframe *f, const jscope *s) {
    for (uint32_t i = 0; i < s->n; i++) f->slots[s->symbols[i].slot] = jv_make(J_MISSING);
}

/* ---- Printing ---- */

/* As text_reserve grows the buffer, so is it counted. */
static bool run_reserve(jrun *r, size_t n) {
    text_buffer *b = r->out;
    size_t       need = 0, cap = size_max(64, b->cap + b->cap / 2);
    bool         fits = size_add(b->n, n, &need) && (!b->limit || need <= b->limit);
    if (fits && need > b->cap) fits = size_max(need, cap) <= JINJA_MAX_BYTES - r->j->bytes;
    if (fits) return true;
    r->j->over = true;
    return jinja_fail_memory(r->j);
}

static bool run_print_bytes(jrun *r, const char *p, size_t n) {
    text_buffer *b = r->n_captures ? &r->captured : r->out;
    if (n == 0) return true;
    if (!jinja_step(r->j, 1 + (n >> 6)) || (b == r->out && !run_reserve(r, n))) return false;
    return text_append(b, p, n) || jinja_fail_memory(r->j);
}

static bool run_print(jrun *r, const jvalue *v) {
    jvalue text;
    return jv_to_string(r->j, v, &text) && run_print_bytes(r, text.u.s, text.n);
}

static size_t capture_open(jrun *r) {
    r->n_captures++;
    return r->captured.n;
}

/* The text that was printed since `start`. */
static bool capture_close(jrun *r, size_t start, jvalue *out) {
    size_t      n = r->captured.n - start;
    const char *copy;
    r->n_captures--;
    *out = jv_c("");
    if (n == 0) return true;
    if (!jinja_copy(r->j, r->captured.p + start, n, &copy)) return false;
    *out          = jv_string(copy, n, memchr(copy, (int)LETTER_MARK, n) ? J_MARKED : 0);
    r->captured.n = start;
    return true;
}

/* ---- Assignment ---- */

static bool run_assign(jrun *r, jframe *f, const jnode *target, bool test, const jvalue *v);

static bool run_unpack(jrun *r, jframe *f, const jnode *tuple, bool test, const jvalue *v) {
    jiter  it;
    jvalue item;
    if (!jiter_open(r->j, &it, v)) return false;
    for (const jnode *target = tuple->a; target; target = target->next) {
        int got = jiter_next(r->j, &it, &item);
        if (got == 0) return jinja_fail(r->j, "too few values to unpack");
        if (got < 0 || !run_assign(r, f, target, test, &item)) return false;
    }
    int got = jiter_next(r->j, &it, &item);
    return got == 0 || (got > 0 && jinja_fail(r->j, "too many values to unpack"));
}

/* `test`: the places that a loop's condition sees. */
static bool run_assign(jrun *r, jframe *f, const jnode *target, bool test, const jvalue *v) {
    if (target->kind == JN_TUPLE) return run_unpack(r, f, target, test, v);
    if (target->kind == JN_NAME) {
        if (test) f->slots[target->test_slot] = *v;
        else frame_out(f, target->up)->slots[target->slot] = *v;
        return true;
    }
    const jvalue *space = &frame_out(f, target->up)->slots[target->slot];
    if (space->kind != J_NAMESPACE)
        return jinja_fail(r->j, "'%.*s' is no namespace, whose members alone can be assigned",
                          STR_ARG(jv_str(&target->value)));
    jinja_touch(r->j, space->u.space->serial);
    jinja_keep(r->j, v);
    return jdict_set(r->j, space->u.space->attributes, &target->b->value, v);
}

/* ---- Calls ---- */

/* Adds the items of *x or the pairs of **x. */
static bool run_argument_many(jrun *r, const jvalue *v, bool named, jlist *given, jdict *names) {
    jiter  it;
    jvalue item;
    int    got;
    if (named) {
        if (v->kind != J_DICT) return jinja_fail_type(r->j, "**", v);
        for (uint32_t i = 0; i < v->u.dict->n; i++) {
            const jpair *pair = &v->u.dict->pairs[i];
            if (!jv_is_string(&pair->key)) return jinja_fail_type(r->j, "an argument's name", &pair->key);
            if (!jdict_set(r->j, names, &pair->key, &pair->value)) return false;
        }
        return true;
    }
    if (!jiter_open(r->j, &it, v)) return false;
    while ((got = jiter_next(r->j, &it, &item)) == 1)
        if (!jlist_add(given, item)) return false;
    return got == 0;
}

static bool run_arguments(jrun *r, jframe *f, const jnode *n, jargs *a) {
    jlist  given;
    jdict *names = NULL;
    jvalue v;
    memset(a, 0, sizeof *a);
    jlist_open(&given, r->j);
    for (; n; n = n->next) {
        if (n->op != JA_PLAIN && n->op != JA_MANY && !names && !(names = jdict_open(r->j))) return false;
        if (!run_eval(r, f, n->a, &v)) return false;
        bool ok = n->op == JA_PLAIN   ? jlist_add(&given, v)
                  : n->op == JA_NAMED ? jdict_set(r->j, names, &n->value, &v)
                                      : run_argument_many(r, &v, n->op == JA_MANY_NAMED, &given, names);
        if (!ok) return false;
    }
    a->given   = given.items;
    a->n       = given.n;
    a->named   = names ? names->pairs : NULL;
    a->n_named = names ? names->n : 0;
    return true;
}

/* The argument of that name; counts it into *used. */
static const jvalue *args_named(const jargs *a, str name, uint32_t *used) {
    for (uint32_t i = 0; i < a->n_named; i++) {
        if (!str_eq(jv_str(&a->named[i].key), name)) continue;
        ++*used;
        return &a->named[i].value;
    }
    return NULL;
}

/* What a macro makes of arguments that no parameter has: kwargs and varargs where it reads them. */
static bool macro_bind_rest(jrun *r, jframe *f, const jmacro *m, const jargs *a, uint32_t n_parameters, uint32_t used) {
    const jscope *s = m->node->scope;
    if (s->named != JSLOT_NONE) {
        jdict *rest = jdict_open(r->j);
        if (!rest) return false;
        for (uint32_t i = 0; i < a->n_named; i++) {
            bool taken = str_is(jv_str(&a->named[i].key), "caller") && s->caller != JSLOT_NONE;
            for (const jnode *p = m->node->a; p && !taken; p = p->next)
                taken = jstring_equal(&p->value, &a->named[i].key);
            if (!taken && !jdict_set(r->j, rest, &a->named[i].key, &a->named[i].value)) return false;
        }
        f->slots[s->named] = jv_dict(rest);
    } else if (used < a->n_named) {
        return jinja_fail(r->j, "macro '%.*s' does not take an argument that it is given by name",
                          STR_ARG(jv_str(&m->node->value)));
    }
    uint32_t many = a->n > n_parameters ? a->n - n_parameters : 0;
    if (s->positional != JSLOT_NONE) f->slots[s->positional] = jv_items(J_TUPLE, many ? a->given + (a->n - many) : NULL, many);
    return s->positional != JSLOT_NONE || !many ||
           jinja_fail(r->j, "macro '%.*s' takes at most %u arguments", STR_ARG(jv_str(&m->node->value)), n_parameters);
}

static bool macro_bind(jrun *r, jframe *f, const jmacro *m, const jargs *a) {
    const jscope *s    = m->node->scope;
    uint32_t      i    = 0, used = 0;
    for (const jnode *p = m->node->a; p; p = p->next, i++) {
        if (!jinja_step(r->j, 1 + (a->n_named >> 1))) return false;
        if (i < a->n) {
            f->slots[p->slot] = a->given[i];
            continue;
        }
        const jvalue *named = args_named(a, jv_str(&p->value), &used);
        if (named) f->slots[p->slot] = *named;
    }
    if (s->caller != JSLOT_NONE) {
        const jvalue *caller = args_named(a, str_c("caller"), &used);
        f->slots[s->caller]  = caller ? *caller : jv_undefined(JU_SENTENCE, str_c("there is no caller"));
    }
    return macro_bind_rest(r, f, m, a, i, used);
}

/* Defaults see the parameters before them. */
static bool macro_defaults(jrun *r, jframe *f, const jmacro *m) {
    for (const jnode *p = m->node->a; p; p = p->next) {
        jvalue v = jv_undefined(JU_NAME, jv_str(&p->value));
        if (f->slots[p->slot].kind != J_MISSING) continue;
        if (p->a && !run_eval(r, f, p->a, &v)) return false;
        f->slots[p->slot] = v;
    }
    return true;
}

/* What the body leaves behind is dropped before its text is copied out. */
static bool run_macro(jrun *r, const jmacro *m, const jargs *a, jvalue *out) {
    jinja_region region;
    if (!jinja_enter(r->j) || !jinja_step(r->j, 6)) return false;
    jinja_region_open(r->j, &region);
    size_t  start = capture_open(r);
    jframe *f     = frame_open(r, m->node->scope->function, m->outer);
    bool    ok    = f && macro_bind(r, f, m, a) && scope_enter(r, f, m->node->scope) && macro_defaults(r, f, m) &&
              run_statements(r, f, m->node->c) == JFLOW_NEXT;
    if (!ok) return false;
    jinja_region_close(r->j, &region);
    jinja_leave(r->j);
    return capture_close(r, start, out);
}

/* ---- Loops ---- */

/* The next item that the loop's condition lets pass: 1, 0 at the end, -1 after a failure. */
static int loop_pull(jloop *loop, jvalue *out) {
    jrun        *r = loop->run;
    const jnode *n = loop->node;
    for (;;) {
        jvalue pass;
        int    got = jiter_next(r->j, &loop->it, out);
        if (got != 1 || !n->e || loop->tested) return got;
        if (!run_assign(r, loop->frame, n->a, true, out) || !run_eval(r, loop->frame, n->e, &pass)) return -1;
        if (jv_true(&pass)) return 1;
    }
}

static bool loop_peek(jloop *loop) {
    if (loop->peeked) return true;
    int got = loop_pull(loop, &loop->after);
    if (got < 0) return false;
    if (got == 0) loop->after = jv_make(J_MISSING);
    loop->peeked = true;
    if (loop->it.of.kind == J_GENERATOR) jinja_touch(loop->run->j, loop->serial);
    return true;
}

static int loop_advance(jloop *loop) {
    jvalue item;
    int    got = 1;
    if (loop->peeked) {
        item         = loop->after;
        loop->peeked = false;
        got          = item.kind != J_MISSING;
    } else {
        got = loop_pull(loop, &item);
    }
    if (got != 1) return got;
    loop->index0++;
    loop->before  = loop->current;
    loop->current = item;
    return 1;
}

/* How many items there are; what has no length is read to its end and kept. */
static bool loop_length(jloop *loop, int64_t *out) {
    uint32_t n;
    jinja   *j = loop->run->j;
    if (loop->length >= 0) {
        *out = loop->length;
        return true;
    }
    if (!loop->node->e && jv_length(&loop->iterable, &n)) {
        *out = loop->length = n;
        return jinja_step(j, jv_is_string(&loop->iterable) ? loop->iterable.n >> 4 : 1);
    }
    jlist  rest;
    jvalue item;
    int    got;
    jlist_open(&rest, j);
    if (loop->peeked && loop->after.kind != J_MISSING && !jlist_add(&rest, loop->after)) return false;
    while (!(loop->peeked && loop->after.kind == J_MISSING) && (got = loop_pull(loop, &item)) != 0)
        if (got < 0 || !jlist_add(&rest, item)) return false;
    /* From now on the loop goes over that list. */
    loop->peeked = false;
    loop->tested = true;
    loop->it.of  = jlist_close(&rest, J_LIST);
    loop->it.at  = 0;
    jinja_touch(j, loop->serial);
    *out = loop->length = loop->index0 + 1 + rest.n;
    return true;
}

static bool loop_cycle(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jloop *loop = self->u.loop;
    if (!a->n || a->n_named) return jinja_fail(j, "loop.cycle needs items");
    *out = a->given[loop->index0 % a->n];
    return true;
}

static bool loop_changed(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jloop  *loop = self->u.loop;
    jvalue  now  = jv_items(J_TUPLE, a->given, a->n);
    int     same = loop->changed.kind == J_MISSING ? 0 : jv_equal(j, &loop->changed, &now);
    if (same < 0) return false;
    if (!same) loop->changed = now;
    jinja_touch(j, loop->serial);
    *out = jv_bool(!same);
    return true;
}

static const jnative loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle},
    {"changed", NULL, 0, loop_changed},
};

static bool loop_neighbour(jloop *loop, bool after, jvalue *out) {
    if (after && !loop_peek(loop)) return false;
    *out = after ? loop->after : loop->before;
    if (out->kind == J_MISSING) *out = jv_undefined(JU_SENTENCE, str_c("the loop has no such item"));
    return true;
}

static bool loop_attribute(jloop *loop, const jvalue *self, const jvalue *key, jvalue *out) {
    str     name = jv_str(key);
    int64_t length = 0;
    bool    back = str_is(name, "revindex"), back0 = str_is(name, "revindex0");
    if (back || back0 || str_is(name, "length")) {
        if (!loop_length(loop, &length)) return false;
        *out = jv_int(back ? length - loop->index0 : back0 ? length - loop->index0 - 1 : length);
    } else if (str_is(name, "last")) {
        if (!loop_peek(loop)) return false;
        *out = jv_bool(loop->after.kind == J_MISSING);
    } else if (str_is(name, "previtem") || str_is(name, "nextitem")) {
        return loop_neighbour(loop, name.p[0] == 'n', out);
    } else if (str_is(name, "first")) {
        *out = jv_bool(loop->index0 == 0);
    } else if (str_is(name, "index0")) {
        *out = jv_int(loop->index0);
    } else if (str_is(name, "index")) {
        *out = jv_int(loop->index0 + 1);
    } else if (str_is(name, "depth0")) {
        *out = jv_int(loop->depth0);
    } else if (str_is(name, "depth")) {
        *out = jv_int(loop->depth0 + 1);
    } else {
        const jnative *native = jnative_find(loop_methods, COUNT_OF(loop_methods), name);
        jmethod       *method = native ? (jmethod *)jinja_alloc(loop->run->j, sizeof *method) : NULL;
        *out                  = jv_lacking(self, key);
        if (!native) return true;
        if (!method) return false;
        method->native = native;
        method->self   = *self;
        *out           = jv_make(J_METHOD);
        out->u.method  = method;
    }
    return true;
}

static jloop *loop_open(jrun *r, jframe *f, jframe *outer, const jnode *n, const jvalue *iterable, int64_t depth0) {
    jloop *loop = (jloop *)jinja_alloc(r->j, sizeof *loop);
    if (!loop) return NULL;
    memset(loop, 0, sizeof *loop);
    loop->run      = r;
    loop->node     = n;
    loop->frame    = f;
    loop->outer    = outer;
    loop->iterable = *iterable;
    loop->index0   = -1;
    loop->length   = -1;
    loop->depth0   = depth0;
    loop->serial   = jinja_serial(r->j);
    if (!jiter_open(r->j, &loop->it, iterable)) return NULL;
    return !n->test_scope || scope_enter(r, f, n->test_scope) ? loop : NULL;
}

/* One turn. *whole: the body was run to its end. */
static jflow loop_turn(jrun *r, jframe *f, jloop *loop, bool *whole) {
    const jnode *n = loop->node;
    jvalue       v = jv_make(J_LOOP);
    v.u.loop     = loop;
    f->slots[n->scope->loop] = v;
    if (!run_assign(r, f, n->a, false, &loop->current) || !scope_enter(r, f, n->scope)) return JFLOW_FAIL;
    jflow flow = run_statements(r, f, n->c);
    if (flow == JFLOW_NEXT) *whole = true;
    return flow;
}

/* Memory that a turn took is free again behind it; only what a generator computes must outlive its turn. As in Jinja,
 * `else` runs when no turn came to the end of the body. */
static jflow run_loop(jrun *r, jframe *f, jframe *outer, const jnode *n, const jvalue *iterable, int64_t depth0) {
    jloop *loop  = loop_open(r, f, outer, n, iterable, depth0);
    bool   whole = false;
    jflow  flow  = loop ? JFLOW_NEXT : JFLOW_FAIL;
    while (flow == JFLOW_NEXT || flow == JFLOW_CONTINUE) {
        jinja_region region;
        bool         lasting = loop->it.of.kind != J_GENERATOR;
        int          got     = loop_advance(loop);
        if (got < 0 || !jinja_step(r->j, 2)) return JFLOW_FAIL;
        if (got == 0) break;
        jinja_region_open(r->j, &region);
        if (!lasting) jinja_touch(r->j, loop->serial);
        flow = loop_turn(r, f, loop, &whole);
        if (flow != JFLOW_FAIL) jinja_region_close(r->j, &region);
    }
    if (flow == JFLOW_FAIL) return flow;
    scope_leave(f, n->scope);
    if (n->test_scope) scope_leave(f, n->test_scope);
    if (whole || !n->d) return JFLOW_NEXT;
    if (!scope_enter(r, f, n->other_scope)) return JFLOW_FAIL;
    flow = run_statements(r, f, n->d);
    if (flow != JFLOW_FAIL) scope_leave(f, n->other_scope);
    return flow;
}

/* A recursive loop runs like a macro, for the outermost round too. */
static bool run_loop_recursive(jrun *r, jframe *outer, const jnode *n, const jvalue *iterable, int64_t depth0,
                               jvalue *out) {
    if (!jinja_enter(r->j)) return false;
    size_t  start = capture_open(r);
    jframe *f     = frame_open(r, n->scope->function, outer);
    if (!f || run_loop(r, f, outer, n, iterable, depth0) != JFLOW_NEXT) return false;
    jinja_leave(r->j);
    return capture_close(r, start, out);
}

static jflow run_for(jrun *r, jframe *f, const jnode *n) {
    jvalue iterable, text;
    if (!run_eval(r, f, n->b, &iterable)) return JFLOW_FAIL;
    r->j->line = n->line;
    if (!n->op) return run_loop(r, f, f, n, &iterable, 0);
    return run_loop_recursive(r, f, n, &iterable, 0, &text) && run_print(r, &text) ? JFLOW_NEXT : JFLOW_FAIL;
}

/* loop(items) in a recursive loop. */
static bool run_call_loop(jrun *r, const jloop *loop, const jargs *a, jvalue *out) {
    if (!loop->node->op) return jinja_fail(r->j, "only a recursive loop can be called");
    if (a->n != 1 || a->n_named) return jinja_fail(r->j, "loop() takes one argument");
    return run_loop_recursive(r, loop->outer, loop->node, &a->given[0], loop->depth0 + 1, out);
}

/* ---- What can be called ---- */

static bool run_call_joiner(jrun *r, jjoiner *joiner, jvalue *out) {
    (void)r;
    *out         = joiner->used ? joiner->between : jv_c("");
    joiner->used = true;
    return true;
}

static bool run_call(jrun *r, const jvalue *callee, const jargs *a, jvalue *out) {
    switch (callee->kind) {
    case J_FUNCTION: return jnative_call(r->j, callee->u.native, callee, a, out);
    case J_METHOD: return jnative_call(r->j, callee->u.method->native, &callee->u.method->self, a, out);
    case J_MACRO: return run_macro(r, callee->u.macro, a, out);
    case J_LOOP: return run_call_loop(r, callee->u.loop, a, out);
    case J_JOINER: return run_call_joiner(r, callee->u.joiner, out);
    default: return jinja_fail_type(r->j, "a call", callee);
    }
}

static bool eval_call(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue callee;
    jargs  a;
    if (!run_eval(r, f, n->a, &callee) || !run_arguments(r, f, n->b, &a)) return false;
    r->j->line = n->line;
    return run_call(r, &callee, &a, out);
}

/* ---- Expressions ---- */

static bool eval_name(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    (void)r;
    *out = frame_out(f, n->up)->slots[n->slot];
    if (out->kind == J_MISSING) *out = jv_undefined(JU_NAME, jv_str(&n->value));
    return true;
}

static bool eval_items(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jlist  list;
    jvalue item;
    jlist_open(&list, r->j);
    for (const jnode *x = n->a; x; x = x->next)
        if (!run_eval(r, f, x, &item) || !jlist_add(&list, item)) return false;
    *out = jlist_close(&list, n->kind == JN_TUPLE ? J_TUPLE : J_LIST);
    return true;
}

static bool eval_dict(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jdict *d = jdict_open(r->j);
    if (!d) return false;
    for (const jnode *x = n->a; x; x = x->next->next) {
        jvalue key, value;
        if (!run_eval(r, f, x, &key) || !run_eval(r, f, x->next, &value)) return false;
        if (!jv_hashable(&key)) return jinja_fail(r->j, "a '%s' cannot be a key", jv_type(&key));
        if (!jdict_set(r->j, d, &key, &value)) return false;
    }
    *out = jv_dict(d);
    return true;
}

static bool eval_attribute(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue object;
    if (!run_eval(r, f, n->a, &object)) return false;
    r->j->line = n->line;
    if (object.kind == J_LOOP) return loop_attribute(object.u.loop, &object, &n->value, out);
    if (object.kind == J_MACRO && str_is(jv_str(&n->value), "name")) {
        *out = object.u.macro->name;
        return true;
    }
    return jinja_attribute(r->j, &object, &n->value, out);
}

static bool eval_slice(jrun *r, jframe *f, const jnode *n, const jvalue *object, jvalue *out) {
    jvalue bounds[3] = {jv_none(), jv_none(), jv_none()};
    if (n->a && !run_eval(r, f, n->a, &bounds[0])) return false;
    if (n->b && !run_eval(r, f, n->b, &bounds[1])) return false;
    if (n->c && !run_eval(r, f, n->c, &bounds[2])) return false;
    return jinja_slice(r->j, object, bounds, out);
}

static bool eval_element(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue object, key;
    if (!run_eval(r, f, n->a, &object)) return false;
    r->j->line = n->line;
    if (n->b->kind == JN_SLICE) return eval_slice(r, f, n->b, &object, out);
    if (!run_eval(r, f, n->b, &key)) return false;
    r->j->line = n->line;
    if (object.kind == J_LOOP && jv_is_string(&key))
        return loop_attribute(object.u.loop, &object, &key, out);
    return jinja_element(r->j, &object, &key, out);
}

static bool eval_filter(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue subject = r->block_text;
    jargs  a;
    if (n->a && !run_eval(r, f, n->a, &subject)) return false;
    if (!run_arguments(r, f, n->b, &a)) return false;
    r->j->line = n->line;
    if (!n->native) return jinja_fail(r->j, "no filter of this name: '%.*s'", STR_ARG(jv_str(&n->value)));
    return jnative_call(r->j, n->native, &subject, &a, out);
}

static bool eval_test(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue subject;
    jargs  a;
    if (!run_eval(r, f, n->a, &subject) || !run_arguments(r, f, n->b, &a)) return false;
    r->j->line = n->line;
    if (!n->native) return jinja_fail(r->j, "no test of this name: '%.*s'", STR_ARG(jv_str(&n->value)));
    return jnative_call(r->j, n->native, &subject, &a, out);
}

static bool eval_unary(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue v;
    if (!run_eval(r, f, n->a, &v)) return false;
    r->j->line = n->line;
    if (n->kind == JN_NEGATE) return jinja_negate(r->j, &v, out);
    if (n->kind == JN_NOT) *out = jv_bool(!jv_true(&v));
    else if (!jv_is_number(&v)) return jinja_fail_type(r->j, "'+'", &v);
    else *out = v.kind == J_BOOL ? jv_int(v.u.i) : v;
    return true;
}

static bool eval_chain(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue left, right;
    if (!run_eval(r, f, n->a, &left)) return false;
    for (const jnode *link = n->b; link; link = link->next) {
        if (!run_eval(r, f, link->a, &right)) return false;
        r->j->line = link->line;
        if (!jinja_operate(r->j, (joperator)link->op, &left, &right, out)) return false;
        left = *out;
    }
    return true;
}

static bool eval_compare(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue left, right;
    int    is = 1;
    if (!run_eval(r, f, n->a, &left)) return false;
    for (const jnode *link = n->b; link && is; link = link->next) {
        if (!run_eval(r, f, link->a, &right)) return false;
        r->j->line = link->line;
        is         = jinja_relate(r->j, (joperator)link->op, &left, &right);
        if (is < 0) return false;
        left = right;
    }
    *out = jv_bool(is == 1);
    return true;
}

/* `and` and `or` give the operand that decides. */
static bool eval_logic(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    for (const jnode *operand = n->a; operand; operand = operand->next) {
        if (!run_eval(r, f, operand, out)) return false;
        if (jv_true(out) == (n->kind == JN_OR)) return true;
    }
    return true;
}

static bool eval_condition(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue condition;
    if (!run_eval(r, f, n->a, &condition)) return false;
    if (jv_true(&condition)) return run_eval(r, f, n->b, out);
    if (n->c) return run_eval(r, f, n->c, out);
    *out = jv_undefined(JU_SENTENCE, str_c("an inline if without else was false"));
    return true;
}

static bool eval_by_kind(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    switch (n->kind) {
    case JN_TUPLE:
    case JN_LIST: return eval_items(r, f, n, out);
    case JN_DICT: return eval_dict(r, f, n, out);
    case JN_ATTRIBUTE: return eval_attribute(r, f, n, out);
    case JN_ELEMENT: return eval_element(r, f, n, out);
    case JN_CALL: return eval_call(r, f, n, out);
    case JN_FILTER: return eval_filter(r, f, n, out);
    case JN_TEST: return eval_test(r, f, n, out);
    case JN_NOT:
    case JN_NEGATE:
    case JN_PLUS: return eval_unary(r, f, n, out);
    case JN_CHAIN: return eval_chain(r, f, n, out);
    case JN_COMPARE: return eval_compare(r, f, n, out);
    case JN_AND:
    case JN_OR: return eval_logic(r, f, n, out);
    case JN_CONDITION: return eval_condition(r, f, n, out);
    default: return jinja_fail(r->j, "no expression");
    }
}

static bool run_eval(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    if (!jinja_step(r->j, 1)) return false;
    if (n->kind == JN_CONST) {
        *out = n->value;
        return true;
    }
    if (n->kind == JN_NAME) return eval_name(r, f, n, out);
    if (!jinja_enter(r->j)) return false;
    bool ok = eval_by_kind(r, f, n, out);
    jinja_leave(r->j);
    return ok;
}

/* ---- Statements ---- */

static jflow flow_of(bool ok) { return ok ? JFLOW_NEXT : JFLOW_FAIL; }

static jflow exec_output(jrun *r, jframe *f, const jnode *n) {
    jinja_region region;
    jvalue       v;
    if (n->a->kind == JN_CONST || n->a->kind == JN_NAME) return flow_of(run_eval(r, f, n->a, &v) && run_print(r, &v));
    jinja_region_open(r->j, &region);
    if (!jinja_step(r->j, 1) || !run_eval(r, f, n->a, &v) || !run_print(r, &v)) return JFLOW_FAIL;
    jinja_region_close(r->j, &region);
    return JFLOW_NEXT;
}

static jflow exec_if(jrun *r, jframe *f, const jnode *n) {
    for (const jnode *branch = n->a; branch; branch = branch->next) {
        jvalue v = jv_bool(true);
        if (branch->a && !run_eval(r, f, branch->a, &v)) return JFLOW_FAIL;
        if (jv_true(&v)) return run_statements(r, f, branch->b);
    }
    return JFLOW_NEXT;
}

static jflow exec_set(jrun *r, jframe *f, const jnode *n) {
    jvalue v;
    if (!run_eval(r, f, n->b, &v)) return JFLOW_FAIL;
    r->j->line = n->line;
    return flow_of(run_assign(r, f, n->a, false, &v));
}

/* Runs a body in a scope of its own and gives what it printed, through the filter that may follow. */
static jflow exec_captured(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    size_t start = capture_open(r);
    if (!scope_enter(r, f, n->scope)) return JFLOW_FAIL;
    jflow flow = run_statements(r, f, n->c);
    if (flow == JFLOW_FAIL || !capture_close(r, start, out)) return JFLOW_FAIL;
    if (flow == JFLOW_NEXT && n->b) {
        r->block_text = *out;
        if (!run_eval(r, f, n->b, out)) return JFLOW_FAIL;
    }
    scope_leave(f, n->scope);
    return flow;
}

static jflow exec_set_block(jrun *r, jframe *f, const jnode *n) {
    jvalue v;
    jflow  flow = exec_captured(r, f, n, &v);
    return flow == JFLOW_NEXT ? flow_of(run_assign(r, f, n->a, false, &v)) : flow;
}

static jflow exec_filter_block(jrun *r, jframe *f, const jnode *n) {
    jvalue v;
    jflow  flow = exec_captured(r, f, n, &v);
    return flow == JFLOW_NEXT ? flow_of(run_print(r, &v)) : flow;
}

static bool run_make_macro(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jmacro *m = (jmacro *)jinja_alloc(r->j, sizeof *m);
    if (!m) return false;
    m->name      = n->kind == JN_MACRO ? n->value : jv_none();
    m->node      = n;
    m->outer     = f;
    *out         = jv_make(J_MACRO);
    out->u.macro = m;
    return true;
}

static jflow exec_macro(jrun *r, jframe *f, const jnode *n) {
    jvalue macro;
    if (!run_make_macro(r, f, n, &macro)) return JFLOW_FAIL;
    frame_out(f, n->up)->slots[n->slot] = macro;
    return JFLOW_NEXT;
}

/* The call gets the block's body as the argument `caller`. */
static jflow exec_call_block(jrun *r, jframe *f, const jnode *n) {
    jvalue callee, caller, v;
    jargs  a;
    if (!run_eval(r, f, n->b->a, &callee) || !run_arguments(r, f, n->b->b, &a)) return JFLOW_FAIL;
    jdict *names = jdict_open(r->j);
    if (!names || !run_make_macro(r, f, n, &caller)) return JFLOW_FAIL;
    for (uint32_t i = 0; i < a.n_named; i++)
        if (!jdict_set(r->j, names, &a.named[i].key, &a.named[i].value)) return JFLOW_FAIL;
    if (!jdict_set_c(r->j, names, "caller", caller)) return JFLOW_FAIL;
    a.named    = names->pairs;
    a.n_named  = names->n;
    r->j->line = n->line;
    return flow_of(run_call(r, &callee, &a, &v) && run_print(r, &v));
}

/* What a model has generated: printed like the rest, in a function of its own. */
static jflow exec_generation(jrun *r, jframe *f, const jnode *n) {
    jmacro m;
    jargs  none;
    jvalue text;
    memset(&none, 0, sizeof none);
    m.name  = jv_none();
    m.node  = n;
    m.outer = f;
    return flow_of(run_macro(r, &m, &none, &text) && run_print(r, &text));
}

static jflow exec_with(jrun *r, jframe *f, const jnode *n) {
    if (!scope_enter(r, f, n->scope)) return JFLOW_FAIL;
    const jnode *value = n->b;
    for (const jnode *target = n->a; target; target = target->next, value = value->next) {
        jvalue v;
        if (!run_eval(r, f, value, &v) || !run_assign(r, f, target, false, &v)) return JFLOW_FAIL;
    }
    jflow flow = run_statements(r, f, n->c);
    if (flow != JFLOW_FAIL) scope_leave(f, n->scope);
    return flow;
}

static jflow exec_by_kind(jrun *r, jframe *f, const jnode *n) {
    switch (n->kind) {
    case JN_DATA: return flow_of(run_print_bytes(r, n->value.u.s, n->value.n));
    case JN_OUTPUT: return exec_output(r, f, n);
    case JN_IF: return exec_if(r, f, n);
    case JN_FOR: return run_for(r, f, n);
    case JN_SET: return exec_set(r, f, n);
    case JN_SET_BLOCK: return exec_set_block(r, f, n);
    case JN_MACRO: return exec_macro(r, f, n);
    case JN_CALL_BLOCK: return exec_call_block(r, f, n);
    case JN_GENERATION: return exec_generation(r, f, n);
    case JN_FILTER_BLOCK: return exec_filter_block(r, f, n);
    case JN_WITH: return exec_with(r, f, n);
    case JN_BREAK: return JFLOW_BREAK;
    default: return JFLOW_CONTINUE;
    }
}

static jflow run_statements(jrun *r, jframe *f, const jnode *n) {
    jflow flow = JFLOW_NEXT;
    if (!n) return flow;
    if (!jinja_enter(r->j)) return JFLOW_FAIL;
    for (; n && flow == JFLOW_NEXT; n = n->next) {
        r->j->line = n->line;
        flow       = jinja_step(r->j, 1) ? exec_by_kind(r, f, n) : JFLOW_FAIL;
    }
    jinja_leave(r->j);
    return flow;
}

static bool jinja_run(jinja *j, str text, const jdict *variables, text_buffer *out) {
    jrun    r;
    jnode  *statements;
    jscope *root;
    memset(&r, 0, sizeof r);
    r.j          = j;
    r.variables  = variables;
    r.out        = out;
    r.block_text = jv_c("");
    text_init(&r.captured, &j->counted, 0);
    bool ok = jinja_parse(j, text, &statements) && jinja_bind(j, statements, &root);
    if (ok) {
        jframe *f = frame_open(&r, root->function, NULL);
        ok        = f && scope_enter(&r, f, root) && run_statements(&r, f, statements) == JFLOW_NEXT;
    }
    text_free(&r.captured);
    return ok;
}

/* ==== src/chat.h ============================================================================================== */

/* Chat templates: a conversation to text by the template of its model.
 * Source of the semantics: Jinja 3.1 as Hugging Face's transformers set it up: an immutable sandbox, trim_blocks and
 * lstrip_blocks, loop controls, generation blocks, tojson without HTML escapes, raise_exception, strftime_now. */
#ifndef NOVA_CHAT_H
#define NOVA_CHAT_H


typedef struct chat_input {
    const nova_chat *chat;
    str              template_text;
    str              bos, eos;   /* the texts of bos_token and eos_token; empty: the variable is not defined */
    const tokenizer *marks;      /* not NULL: mark special tokens in everything that comes from messages and tools */
} chat_input;

/* Bounds of one rendering: a hostile template ends in an error within these. */
#define CHAT_MAX_BYTES JINJA_MAX_BYTES

/* Renders into `out` (initialised by the caller), which a failure leaves as it was. The template's variables are
 * messages, tools (none when there are none), documents (none), add_generation_prompt, bos_token, eos_token, and over
 * these the members of variables_json. A message has the members that are given: role, content, tool_calls, and over
 * these those of extra_json; content is none where there are tool calls instead. Strings of variables_json itself are
 * the host's own words and not marked; those inside its lists and objects (documents) are.
 * Errors: TEMPLATE (line and reason; the template's own message from raise_exception), ARGUMENT (bad JSON in the chat),
 * MEMORY. */
static nova_result chat_render(const chat_input *in, const host *h, text_buffer *out, nova_error *error);

#endif

/* ==== src/chat.c ============================================================================================== */

/* Chat templates: see chat.h. */


static bool chat_fail(jinja *j, const char *what, const char *why) {
    if (j->failed == NOVA_OK) j->failed = fail(j->error, NOVA_ERROR_ARGUMENT, "%s: %s", what, why);
    return false;
}

/* Reads JSON that must be of a kind. */
static bool chat_read(jinja *j, const char *what, const char *json, jkind kind, const tokenizer *marks, jvalue *out) {
    if (!json_read(j, what, str_c(json), marks, out)) return false;
    return out->kind == kind || chat_fail(j, what, kind == J_LIST ? "an array is expected" : "an object is expected");
}

static bool chat_set_string(jinja *j, jdict *d, const char *key, str text, const tokenizer *marks) {
    jvalue v;
    return json_string(j, text, marks, &v) && jdict_set_c(j, d, key, v);
}

static bool chat_set_members(jinja *j, jdict *d, const jdict *members) {
    for (uint32_t i = 0; i < members->n; i++)
        if (!jdict_set(j, d, &members->pairs[i].key, &members->pairs[i].value)) return false;
    return true;
}

static bool chat_message(jinja *j, const chat_input *in, size_t index, jvalue *out) {
    const nova_message *m = &in->chat->messages[index];
    jdict              *d = jdict_open(j);
    jvalue              v;
    char                what[64];
    if (!d) return false;
    snprintf(what, sizeof what, "messages[%zu]", index);
    if (!m->role) return chat_fail(j, what, "the role is NULL");
    if (!chat_set_string(j, d, "role", str_c(m->role), in->marks)) return false;
    if (m->content && !chat_set_string(j, d, "content", str_c(m->content), in->marks)) return false;
    if (!m->content && m->tool_calls_json && !jdict_set_c(j, d, "content", jv_none())) return false;
    if (m->tool_calls_json) {
        snprintf(what, sizeof what, "messages[%zu].tool_calls_json", index);
        if (!chat_read(j, what, m->tool_calls_json, J_LIST, in->marks, &v)) return false;
        if (!jdict_set_c(j, d, "tool_calls", v)) return false;
    }
    if (m->extra_json) {
        snprintf(what, sizeof what, "messages[%zu].extra_json", index);
        if (!chat_read(j, what, m->extra_json, J_DICT, in->marks, &v)) return false;
        if (!chat_set_members(j, d, v.u.dict)) return false;
    }
    *out = jv_dict(d);
    return true;
}

static bool chat_messages(jinja *j, const chat_input *in, jvalue *out) {
    jlist  list;
    jvalue message;
    jlist_open(&list, j);
    for (size_t i = 0; i < in->chat->n_messages; i++)
        if (!chat_message(j, in, i, &message) || !jlist_add(&list, message)) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

/* Read twice where strings are marked, to take those of the object itself unmarked. */
static bool chat_extra_variables(jinja *j, const chat_input *in, jdict *d) {
    const char *what = "variables_json", *json = in->chat->variables_json;
    jvalue      plain, marked;
    if (!json) return true;
    if (!chat_read(j, what, json, J_DICT, NULL, &plain)) return false;
    marked = plain;
    if (in->marks && !chat_read(j, what, json, J_DICT, in->marks, &marked)) return false;
    for (uint32_t i = 0; i < plain.u.dict->n; i++) {
        const jpair *pair = &plain.u.dict->pairs[i];
        bool         own  = jv_is_string(&pair->value) || i >= marked.u.dict->n;
        if (!jdict_set(j, d, &pair->key, own ? &pair->value : &marked.u.dict->pairs[i].value)) return false;
    }
    return true;
}

static bool chat_variables(jinja *j, const chat_input *in, jdict *d) {
    jvalue messages, tools = jv_none();
    if (!chat_messages(j, in, &messages)) return false;
    if (in->chat->tools_json && !chat_read(j, "tools_json", in->chat->tools_json, J_LIST, in->marks, &tools)) return false;
    if (in->bos.n && !chat_set_string(j, d, "bos_token", in->bos, NULL)) return false;
    if (in->eos.n && !chat_set_string(j, d, "eos_token", in->eos, NULL)) return false;
    return jdict_set_c(j, d, "messages", messages) && jdict_set_c(j, d, "tools", tools) &&
           jdict_set_c(j, d, "documents", jv_none()) &&
           jdict_set_c(j, d, "add_generation_prompt", jv_bool(!in->chat->no_generation_prompt)) &&
           chat_extra_variables(j, in, d);
}

static nova_result chat_render(const chat_input *in, const host *h, text_buffer *out, nova_error *error) {
    jinja  j;
    size_t before = out->n;
    error_clear(error);
    jinja_open(&j, h, error);
    j.now             = in->chat->now ? in->chat->now : clock_unix();
    for (size_t c = 0; in->marks && c < sizeof j.begins; c++)
        j.begins[c] = tokenizer_begins_control(in->marks, (char)c);
    jdict *variables  = jdict_open(&j);
    if (variables && chat_variables(&j, in, variables)) jinja_run(&j, in->template_text, variables, out);
    jinja_close(&j);
    if (j.failed != NOVA_OK) {
        out->n      = before;
        out->failed = false;
    }
    return j.failed;
}

/* ==== src/model.h ============================================================================================= */

/* A model: the mapped file, its hyper-parameters, and for every layer the tensors by their role. Immutable once open. */
#ifndef NOVA_MODEL_H
#define NOVA_MODEL_H


/* ---- Tensors by role ---- */

/* What the sizes of tensors are called; their values are a model's or a layer's (dim_of). */
typedef enum model_dim { DIM_ONE, DIM_EMBD, DIM_Q, DIM_K, DIM_V, DIM_ATT, DIM_FF, DIM_VOCAB, DIM_ROPE, DIM_COUNT } model_dim;

/* role, name in the file, row length, rows (DIM_ONE: a vector) */
#define MODEL_TENSORS(X)                                      \
    X(TOKEN_EMBD, "token_embd", DIM_EMBD, DIM_VOCAB)          \
    X(OUTPUT_NORM, "output_norm", DIM_EMBD, DIM_ONE)          \
    X(OUTPUT, "output", DIM_EMBD, DIM_VOCAB)                  \
    X(ROPE_FREQS, "rope_freqs", DIM_ROPE, DIM_ONE)            \
    X(ROPE_LONG, "rope_factors_long", DIM_ROPE, DIM_ONE)      \
    X(ROPE_SHORT, "rope_factors_short", DIM_ROPE, DIM_ONE)

#define LAYER_TENSORS(X)                                      \
    X(ATTN_NORM, "attn_norm", DIM_EMBD, DIM_ONE)              \
    X(ATTN_Q, "attn_q", DIM_EMBD, DIM_Q)                      \
    X(ATTN_K, "attn_k", DIM_EMBD, DIM_K)                      \
    X(ATTN_V, "attn_v", DIM_EMBD, DIM_V)                      \
    X(ATTN_OUT, "attn_output", DIM_ATT, DIM_EMBD)             \
    X(FFN_NORM, "ffn_norm", DIM_EMBD, DIM_ONE)                \
    X(FFN_GATE, "ffn_gate", DIM_EMBD, DIM_FF)                 \
    X(FFN_UP, "ffn_up", DIM_EMBD, DIM_FF)                     \
    X(FFN_DOWN, "ffn_down", DIM_FF, DIM_EMBD)

typedef enum role {
#define ROLE_ENUM(role, name, n_in, n_out) ROLE_##role,
    MODEL_TENSORS(ROLE_ENUM) ROLE_MODEL_COUNT,
    ROLE_LAYER_FIRST = ROLE_MODEL_COUNT - 1,
    LAYER_TENSORS(ROLE_ENUM) ROLE_COUNT
#undef ROLE_ENUM
} role;

#define ROLE_BIT(role) ((uint64_t)1 << ROLE_##role)

/* One tensor in use. A matrix is read where it lies; a vector is always float32 (in the file, or converted). */
typedef struct model_tensor {
    weight       w;      /* data NULL: the model has none */
    const float *vec;    /* a vector's floats, NULL for a matrix */
    const float *bias;   /* "<name>.bias", or NULL */
} model_tensor;

/* ---- Architectures ---- */

typedef struct arch {
    const char *name;
    uint64_t    required, optional;   /* ROLE_BITs: tensors that must and that may be there */
    norm_kind   norm;
    activation  act;                  /* of the feed-forward layer; gated where ROLE_FFN_GATE is required */
    bool        rope_neox;            /* pairs (i, i + n/2), else (2i, 2i + 1) */
    bool        rope_whole_head;      /* n_rot must be the head size */
} arch;

/* ---- Hyper-parameters ---- */

typedef enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_LONGROPE } rope_scaling;

/* Rotary positions as the file describes them; program.c makes frequencies of it. */
typedef struct rope_params {
    rope_scaling scaling;
    uint32_t     n_rot;
    uint32_t     n_ctx_orig;                 /* context before scaling */
    float        freq_base, factor;          /* factor: of the scaling, 1: none */
    float        attn_factor;                /* multiplies cosine and sine */
    float        ext_factor, beta_fast, beta_slow, log_multiplier;   /* YaRN, arXiv 2309.00071; ext_factor < 0: by type */
} rope_params;

typedef struct model_layer {
    uint32_t n_head, n_head_kv, n_ff;
    model_tensor t[ROLE_COUNT - ROLE_MODEL_COUNT];
} model_layer;

#define LAYER_TENSOR(layer, role) (&(layer)->t[ROLE_##role - ROLE_MODEL_COUNT])

struct nova_model {
    host        h;
    arena       a;
    file_map    file;
    bool        owns_file;
    bool        vocab_only;
    gguf        g;
    tokenizer  *tok;
    str         chat_template;      /* n 0: none */
    const char *name, *type_name;   /* terminated */
    uint64_t    n_params;

    const arch *kind;
    uint32_t    n_layer, n_embd, n_vocab, n_ctx_train;
    uint32_t    head_dim_k, head_dim_v;
    float       norm_eps;
    float       attn_scale;         /* of q . k */
    rope_params rope;
    model_tensor t[ROLE_MODEL_COUNT];
    model_layer *layers;
};

/* The value of a dim for a layer (`l` NULL: for tensors of the model itself). */
static uint32_t dim_of(const nova_model *m, const model_layer *l, model_dim d);

#endif

/* ==== src/model.c ============================================================================================= */

/* A model: see model.h. Opening reads the header, finds every tensor by role, and checks its shape; no weight is touched. */

/* ---- Architectures: one row each ---- */

#define BLOCK_TENSORS                                                                                              \
    (ROLE_BIT(TOKEN_EMBD) | ROLE_BIT(OUTPUT_NORM) | ROLE_BIT(ATTN_NORM) | ROLE_BIT(ATTN_Q) | ROLE_BIT(ATTN_K) |    \
     ROLE_BIT(ATTN_V) | ROLE_BIT(ATTN_OUT) | ROLE_BIT(FFN_NORM) | ROLE_BIT(FFN_UP) | ROLE_BIT(FFN_DOWN))
#define ROPE_TENSORS (ROLE_BIT(ROPE_FREQS) | ROLE_BIT(ROPE_LONG) | ROLE_BIT(ROPE_SHORT))

static const arch archs[] = {
    {"llama", BLOCK_TENSORS | ROLE_BIT(FFN_GATE), ROLE_BIT(OUTPUT) | ROPE_TENSORS, NORM_RMS, ACT_SILU, false, true},
    {"arcee", BLOCK_TENSORS, ROLE_BIT(OUTPUT) | ROPE_TENSORS, NORM_RMS, ACT_RELU_SQR, false, true},
};

typedef struct role_info {
    const char *name;
    model_dim   n_in, n_out;
} role_info;

static const role_info role_infos[ROLE_COUNT] = {
#define ROLE_INFO(role, name, n_in, n_out) {name, n_in, n_out},
    MODEL_TENSORS(ROLE_INFO) LAYER_TENSORS(ROLE_INFO)
#undef ROLE_INFO
};

#define MAX_HEAD_DIM 1024   /* what the attention kernels keep in registers and scratch */

static uint32_t dim_of(const nova_model *m, const model_layer *l, model_dim d) {
    switch (d) {
    case DIM_ONE:   return 1;
    case DIM_EMBD:  return m->n_embd;
    case DIM_VOCAB: return m->n_vocab;
    case DIM_ROPE:  return m->rope.n_rot / 2;
    case DIM_Q:     return l ? l->n_head * m->head_dim_k : 0;
    case DIM_K:     return l ? l->n_head_kv * m->head_dim_k : 0;
    case DIM_V:     return l ? l->n_head_kv * m->head_dim_v : 0;
    case DIM_ATT:   return l ? l->n_head * m->head_dim_v : 0;
    case DIM_FF:    return l ? l->n_ff : 0;
    case DIM_COUNT: break;
    }
    return 0;
}

/* ---- Hyper-parameters ---- */

/* "llama.block_count" from "block_count". */
typedef struct key_name { char z[128]; } key_name;

static key_name arch_key(const nova_model *m, const char *name) {
    key_name k;
    snprintf(k.z, sizeof k.z, "%s.%s", m->kind->name, name);
    return k;
}

static nova_result read_u32(const nova_model *m, const char *name, uint32_t *out, nova_error *error) {
    return gguf_get_u32(&m->g, arch_key(m, name).z, out, error);
}

static nova_result read_f32(const nova_model *m, const char *name, float *out, nova_error *error) {
    return gguf_get_f32(&m->g, arch_key(m, name).z, out, error);
}

/* A size that must be there, from 1 to `limit`. */
static nova_result read_size(const nova_model *m, const char *name, uint32_t limit, uint32_t *out, nova_error *error) {
    uint32_t    v      = 0;
    nova_result result = read_u32(m, name, &v, error);
    if (result != NOVA_OK) return result;
    key_name k = arch_key(m, name);
    if (!gguf_find(&m->g, str_c(k.z))) return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is missing", k.z);
    if (v == 0 || v > limit) return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is %u, not 1 to %u", k.z, v, limit);
    *out = v;
    return NOVA_OK;
}

/* One number for all layers, or an array with one a layer. Missing: `fallback`, or an error where that is 0. */
static nova_result read_layer_u32(const nova_model *m, const char *name, uint32_t il, uint32_t fallback, uint32_t limit,
                                  uint32_t *out, nova_error *error) {
    key_name          k = arch_key(m, name);
    const gguf_value *v = gguf_find(&m->g, str_c(k.z));
    if (!v && fallback) {
        *out = fallback;
        return NOVA_OK;
    }
    if (!v || v->type != GGUF_ARRAY) return read_size(m, name, limit, out, error);
    bool integers = v->item != GGUF_F32 && v->item != GGUF_F64 && v->item != GGUF_STRING && v->item != GGUF_ARRAY;
    if (!integers || v->n != m->n_layer)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "the key '%s' is no array of %u integers", k.z, m->n_layer);
    int64_t n = gguf_item_int(v, il);
    if (n < 1 || n > (int64_t)limit)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "the key '%s' has %lld for layer %u, not 1 to %u", k.z,
                       (long long)n, il, limit);
    *out = (uint32_t)n;
    return NOVA_OK;
}

#define TRY(call)                                        \
    do {                                                 \
        nova_result try_result = (call);                 \
        if (try_result != NOVA_OK) return try_result;    \
    } while (0)

static nova_result read_layers(nova_model *m, nova_error *error) {
    const uint32_t limit = 1u << 24;   /* above any model, and low enough that products stay in 64 bits */
    size_t bytes;
    if (m->n_layer > m->g.n_tensors)
        return fail(error, NOVA_ERROR_FORMAT, "%u layers, but only %u tensors", m->n_layer, m->g.n_tensors);
    if (!size_mul(m->n_layer, sizeof(model_layer), &bytes)) return fail_memory(error, SIZE_MAX, "layers");
    m->layers = (model_layer *)arena_zalloc(&m->a, bytes);
    if (!m->layers) return fail_memory(error, bytes, "layers");
    for (uint32_t il = 0; il < m->n_layer; il++) {
        model_layer *l = &m->layers[il];
        TRY(read_layer_u32(m, "attention.head_count", il, 0, 65536, &l->n_head, error));
        TRY(read_layer_u32(m, "attention.head_count_kv", il, l->n_head, 65536, &l->n_head_kv, error));
        TRY(read_layer_u32(m, "feed_forward_length", il, 0, limit, &l->n_ff, error));
        if (l->n_head % l->n_head_kv != 0)
            return fail(error, NOVA_ERROR_FORMAT, "layer %u: %u heads do not share %u KV heads evenly", il, l->n_head,
                        l->n_head_kv);
    }
    return NOVA_OK;
}

static nova_result read_rope(nova_model *m, nova_error *error) {
    static const struct { const char *name; rope_scaling kind; } scalings[] = {
        {"none", ROPE_SCALING_NONE}, {"linear", ROPE_SCALING_LINEAR},
        {"yarn", ROPE_SCALING_YARN}, {"longrope", ROPE_SCALING_LONGROPE}};
    rope_params *r = &m->rope;
    memset(r, 0, sizeof *r);
    r->n_rot       = m->head_dim_k;
    r->n_ctx_orig  = m->n_ctx_train;
    r->freq_base   = 10000.0f;
    r->attn_factor = 1.0f;
    r->ext_factor  = -1.0f;
    r->beta_fast   = 32.0f;
    r->beta_slow   = 1.0f;
    r->scaling     = ROPE_SCALING_LINEAR;   /* the format's default, without effect at factor 1 */
    str type = {NULL, 0};
    TRY(read_u32(m, "rope.dimension_count", &r->n_rot, error));
    TRY(read_u32(m, "rope.scaling.original_context_length", &r->n_ctx_orig, error));
    TRY(read_f32(m, "rope.freq_base", &r->freq_base, error));
    TRY(read_f32(m, "rope.scale_linear", &r->factor, error));   /* the older name */
    TRY(read_f32(m, "rope.scaling.factor", &r->factor, error));
    TRY(read_f32(m, "rope.scaling.attn_factor", &r->attn_factor, error));
    TRY(read_f32(m, "rope.scaling.yarn_ext_factor", &r->ext_factor, error));
    TRY(read_f32(m, "rope.scaling.yarn_beta_fast", &r->beta_fast, error));
    TRY(read_f32(m, "rope.scaling.yarn_beta_slow", &r->beta_slow, error));
    TRY(read_f32(m, "rope.scaling.yarn_log_multiplier", &r->log_multiplier, error));
    TRY(gguf_get_str(&m->g, arch_key(m, "rope.scaling.type").z, &type, error));
    if (type.n) {
        size_t i = 0;
        while (i < COUNT_OF(scalings) && !str_is(type, scalings[i].name)) i++;
        if (i == COUNT_OF(scalings))
            return fail(error, NOVA_ERROR_UNSUPPORTED, "RoPE scaling '%.*s' is not supported", STR_ARG(type));
        r->scaling = scalings[i].kind;
    }
    if (r->factor == 0.0f || r->scaling == ROPE_SCALING_NONE) r->factor = 1.0f;
    if (r->n_rot == 0 || r->n_rot % 2 != 0 || r->n_rot > m->head_dim_k || (m->kind->rope_whole_head && r->n_rot != m->head_dim_k))
        return fail(error, NOVA_ERROR_FORMAT, "RoPE turns %u of %u dimensions of a head", r->n_rot, m->head_dim_k);
    if (!(r->freq_base > 0.0f) || !(r->factor > 0.0f) || r->n_ctx_orig == 0 || !(r->beta_fast > 0.0f) || !(r->beta_slow > 0.0f))
        return fail(error, NOVA_ERROR_FORMAT, "RoPE base, scaling factor, betas and original context must be positive");
    return NOVA_OK;
}

static nova_result read_hyper_parameters(nova_model *m, nova_error *error) {
    TRY(read_size(m, "context_length", 1u << 30, &m->n_ctx_train, error));
    TRY(read_size(m, "embedding_length", 1u << 24, &m->n_embd, error));
    TRY(read_size(m, "block_count", 65535, &m->n_layer, error));
    TRY(read_layers(m, error));
    uint32_t n_head = m->layers[0].n_head;
    if (m->n_embd / n_head == 0)
        return fail(error, NOVA_ERROR_FORMAT, "%u heads for a width of %u", n_head, m->n_embd);
    m->head_dim_k = m->n_embd / n_head;
    TRY(read_u32(m, "attention.key_length", &m->head_dim_k, error));
    m->head_dim_v = m->head_dim_k;
    TRY(read_u32(m, "attention.value_length", &m->head_dim_v, error));
    if (m->head_dim_k == 0 || m->head_dim_k > MAX_HEAD_DIM || m->head_dim_v == 0 || m->head_dim_v > MAX_HEAD_DIM)
        return fail(error, NOVA_ERROR_UNSUPPORTED, "head sizes of %u and %u (1 to %d are supported)", m->head_dim_k,
                    m->head_dim_v, MAX_HEAD_DIM);
    m->attn_scale = 0.0f;
    TRY(read_f32(m, "attention.scale", &m->attn_scale, error));
    if (m->attn_scale == 0.0f) m->attn_scale = 1.0f / sqrtf((float)m->head_dim_k);
    m->norm_eps = -1.0f;
    const char *eps = m->kind->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    TRY(read_f32(m, eps, &m->norm_eps, error));
    if (!(m->norm_eps >= 0.0f))
        return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is missing or negative", arch_key(m, eps).z);
    m->n_vocab = tokenizer_n_vocab(m->tok);
    return read_rope(m, error);
}

/* ---- Tensors ---- */

static const float *vector_floats(nova_model *m, const gguf_tensor *gt) {
    if (gt->type == TYPE_F32 && (uintptr_t)gt->data % sizeof(float) == 0) return (const float *)(const void *)gt->data;
    size_t bytes;
    if (!size_mul((size_t)gt->ne[0], sizeof(float), &bytes)) return NULL;
    float *f = (float *)arena_alloc(&m->a, bytes);
    if (f) type_of(gt->type)->to_float(gt->data, f, (size_t)gt->ne[0]);
    return f;
}

/* The vector `name` of n floats, or NULL with NOVA_OK where there is none. */
static nova_result find_vector(nova_model *m, const char *name, uint32_t n, const float **out, bool *used, nova_error *error) {
    const gguf_tensor *gt = gguf_find_tensor(&m->g, str_c(name));
    *out = NULL;
    if (!gt) return NOVA_OK;
    if (gt->n_dims != 1 || gt->ne[0] != n)
        return fail(error, NOVA_ERROR_FORMAT, "the tensor '%s' has %u dimensions and rows of %llu, not one of %u", name,
                    gt->n_dims, (unsigned long long)gt->ne[0], n);
    used[gt - m->g.tensors] = true;
    *out = vector_floats(m, gt);
    return *out ? NOVA_OK : fail_memory(error, n, "a vector");
}

static nova_result find_matrix(nova_model *m, const char *name, uint32_t n_in, uint32_t n_out, weight *w, bool *used,
                               nova_error *error) {
    const gguf_tensor *gt = gguf_find_tensor(&m->g, str_c(name));
    if (!gt) return NOVA_OK;
    if (gt->n_dims != 2 || gt->ne[0] != n_in || gt->ne[1] != n_out)
        return fail(error, NOVA_ERROR_FORMAT, "the tensor '%s' has %u dimensions and is %llu x %llu, not %u x %u", name,
                    gt->n_dims, (unsigned long long)gt->ne[0], (unsigned long long)gt->ne[1], n_in, n_out);
    used[gt - m->g.tensors] = true;
    w->type      = gt->type;
    w->n_in      = n_in;
    w->n_out     = n_out;
    w->row_bytes = type_row_bytes(gt->type, n_in);
    w->data      = gt->data;
    return NOVA_OK;
}

/* Finds one role's weight and bias; `il` < 0: a tensor of the model itself. */
static nova_result find_role(nova_model *m, int il, uint32_t r, bool *used, nova_error *error) {
    const role_info *info   = &role_infos[r];
    const model_layer     *l      = il < 0 ? NULL : &m->layers[il];
    model_tensor *t      = il < 0 ? &m->t[r] : &m->layers[il].t[r - ROLE_MODEL_COUNT];
    uint32_t         n_in   = dim_of(m, l, info->n_in), n_out = dim_of(m, l, info->n_out);
    bool             vector = info->n_out == DIM_ONE;
    char             name[96], bias[96];
    char             prefix[24] = "";
    if (il >= 0) snprintf(prefix, sizeof prefix, "blk.%d.", il);
    snprintf(name, sizeof name, "%s%s.weight", prefix, info->name);
    snprintf(bias, sizeof bias, "%s%s.bias", prefix, info->name);
    if (vector) TRY(find_vector(m, name, n_in, &t->vec, used, error));
    else TRY(find_matrix(m, name, n_in, n_out, &t->w, used, error));
    TRY(find_vector(m, bias, vector ? n_in : n_out, &t->bias, used, error));
    bool there = vector ? t->vec != NULL : t->w.data != NULL;
    if (!there && (m->kind->required >> r & 1)) return fail(error, NOVA_ERROR_FORMAT, "the tensor '%s' is missing", name);
    return NOVA_OK;
}

static nova_result find_roles(nova_model *m, bool *used, nova_error *error) {
    uint64_t known = m->kind->required | m->kind->optional;
    for (uint32_t r = 0; r < ROLE_MODEL_COUNT; r++)
        if (known >> r & 1) TRY(find_role(m, -1, r, used, error));
    for (uint32_t il = 0; il < m->n_layer; il++)
        for (uint32_t r = ROLE_MODEL_COUNT; r < ROLE_COUNT; r++)
            if (known >> r & 1) TRY(find_role(m, (int)il, r, used, error));
    for (uint32_t i = 0; i < m->g.n_tensors; i++)
        if (!used[i])
            return fail(error, NOVA_ERROR_UNSUPPORTED, "the tensor '%.*s' is not known to the architecture '%s'",
                        STR_ARG(m->g.tensors[i].name), m->kind->name);
    if (!m->t[ROLE_OUTPUT].w.data) m->t[ROLE_OUTPUT] = m->t[ROLE_TOKEN_EMBD];   /* tied */
    return NOVA_OK;
}

static nova_result find_tensors(nova_model *m, nova_error *error) {
    bool *used = (bool *)mem_zalloc(&m->h, m->g.n_tensors);
    if (!used) return fail_memory(error, m->g.n_tensors, "tensor marks");
    nova_result result = find_roles(m, used, error);
    mem_free(&m->h, used, m->g.n_tensors);
    return result;
}

/* ---- Opening ---- */

static const char *copy_terminated(nova_model *m, str s) {
    char *z = (char *)arena_alloc(&m->a, s.n + 1);
    if (!z) return NULL;
    if (s.n) memcpy(z, s.p, s.n);
    z[s.n] = 0;
    return z;
}

/* The type that most bytes of the file are in. */
static const char *main_type(const nova_model *m) {
    uint64_t bytes[TYPE_LIMIT] = {0};
    uint32_t best = TYPE_F32;
    for (uint32_t i = 0; i < m->g.n_tensors; i++) {
        const gguf_tensor *t = &m->g.tensors[i];
        bytes[t->type] += t->n_bytes;
        if (bytes[t->type] > bytes[best]) best = t->type;
    }
    return type_of(best)->name;
}

static nova_result read_names(nova_model *m, nova_error *error) {
    str name = {NULL, 0};
    nova_error ignored;
    gguf_get_str(&m->g, "general.name", &name, &ignored);   /* of another type: nothing depends on it */
    gguf_get_str(&m->g, "tokenizer.chat_template", &m->chat_template, &ignored);
    m->name = copy_terminated(m, name);
    if (!m->name) return fail_memory(error, name.n + 1, "the name");
    m->type_name = main_type(m);
    for (uint32_t i = 0; i < m->g.n_tensors; i++) {
        const uint64_t *ne = m->g.tensors[i].ne;
        m->n_params += ne[0] * ne[1] * ne[2] * ne[3];   /* checked by gguf_read */
    }
    return NOVA_OK;
}

static nova_result find_arch(nova_model *m, nova_error *error) {
    str name = {NULL, 0};
    TRY(gguf_get_str(&m->g, "general.architecture", &name, error));
    if (!name.n) return fail(error, NOVA_ERROR_FORMAT, "the key 'general.architecture' is missing");
    for (size_t i = 0; i < COUNT_OF(archs); i++)
        if (str_is(name, archs[i].name)) m->kind = &archs[i];
    if (!m->kind) return fail(error, NOVA_ERROR_UNSUPPORTED, "the architecture '%.*s' is not supported", STR_ARG(name));
    return NOVA_OK;
}

static nova_result model_open(nova_model *m, const nova_model_desc *d, nova_error *error) {
    if (d->data) {
        m->file.data = (const uint8_t *)d->data;
        m->file.size = d->size;
    } else {
        TRY(file_open(&m->file, &m->h, d->path, d->read_to_memory, d->progress, d->progress_user, error));
        m->owns_file = true;
    }
    TRY(gguf_read(&m->g, &m->a, m->file.data, m->file.size, m->vocab_only, error));
    TRY(read_names(m, error));
    TRY(tokenizer_open(&m->tok, &m->a, &m->h, &m->g, error));
    if (m->vocab_only) {
        m->n_vocab = tokenizer_n_vocab(m->tok);
        return NOVA_OK;
    }
    TRY(find_arch(m, error));
    TRY(read_hyper_parameters(m, error));
    return find_tensors(m, error);
}

NOVA_API nova_model *nova_model_open(const nova_model_desc *desc, nova_error *error) {
    error_clear(error);
    if (!desc || (!desc->path && !desc->data)) {
        fail(error, NOVA_ERROR_ARGUMENT, "no model file was named");
        return NULL;
    }
    host        h = host_init(desc->alloc, desc->alloc_user, desc->log, desc->log_user);
    nova_model *m = (nova_model *)mem_zalloc(&h, sizeof *m);
    if (!m) {
        fail_memory(error, sizeof *m, "the model");
        return NULL;
    }
    m->h          = h;
    m->vocab_only = desc->vocab_only;
    arena_init(&m->a, &m->h);
    if (model_open(m, desc, error) != NOVA_OK) {
        nova_model_close(m);
        return NULL;
    }
    return m;
}

NOVA_API void nova_model_close(nova_model *model) {
    if (!model) return;
    host h = model->h;
    arena_free(&model->a);
    if (model->owns_file) file_close(&model->file, &h);
    mem_free(&h, model, sizeof *model);
}

/* ---- What the file holds ---- */

NOVA_API void nova_model_get_info(const nova_model *model, nova_model_info *info) {
    memset(info, 0, sizeof *info);
    info->architecture      = model->kind ? model->kind->name : "";
    info->name              = model->name;
    info->type              = model->type_name;
    info->n_bytes           = model->file.size;
    info->n_params          = model->n_params;
    info->n_tensors         = model->g.n_tensors;
    info->n_meta            = model->g.n_meta;
    info->n_layer           = model->n_layer;
    info->n_embd            = model->n_embd;
    info->n_head            = model->layers ? model->layers[0].n_head : 0;
    info->n_head_kv         = model->layers ? model->layers[0].n_head_kv : 0;
    info->n_vocab           = model->n_vocab;
    info->n_ctx_train       = model->n_ctx_train;
    info->has_chat_template = model->chat_template.n != 0;
}

NOVA_API bool nova_model_tensor(const nova_model *model, uint32_t index, nova_tensor_info *info) {
    if (index >= model->g.n_tensors) return false;
    const gguf_tensor *t = &model->g.tensors[index];
    info->name    = t->name.p;
    info->n_name  = t->name.n;
    info->type    = type_of(t->type)->name;
    info->n_dims  = t->n_dims;
    info->offset  = (uint64_t)(t->data - model->g.data);
    info->n_bytes = t->n_bytes;
    memcpy(info->dims, t->ne, sizeof info->dims);
    return true;
}

NOVA_API bool nova_model_meta(const nova_model *model, uint32_t index, const char **key, size_t *n_key, char *value,
                              size_t size) {
    if (index >= model->g.n_meta) return false;
    const gguf_meta *meta = &model->g.meta[index];
    *key   = meta->key.p;
    *n_key = meta->key.n;
    if (size) gguf_print(&meta->value, value, size);
    return true;
}

/* ==== src/text.c ============================================================================================== */

/* The public functions for text: tokens, and conversations by the model's template. */

NOVA_API nova_result nova_tokenize(const nova_model *model, const char *text, size_t n, uint32_t flags, int32_t *ids,
                                   size_t capacity, size_t *n_ids, nova_error *error) {
    if (!model || (!text && n) || !n_ids || (!ids && capacity))
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_tokenize: an argument is NULL");
    error_clear(error);
    return tokenizer_encode(model->tok, &model->h, str_of(text, n), flags & ~(uint32_t)TOKENIZER_MARKED, ids, capacity,
                            n_ids, error);
}

NOVA_API nova_result nova_detokenize(const nova_model *model, const int32_t *ids, size_t n_ids, char *text,
                                     size_t capacity, size_t *n, nova_error *error) {
    if (!model || (!ids && n_ids) || !n || (!text && capacity))
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_detokenize: an argument is NULL");
    error_clear(error);
    size_t total = 0;
    bool   first = true;   /* until a token has come that has bytes of its own, were it only the space that a first one loses */
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer_n_vocab(model->tok))
            return fail(error, NOVA_ERROR_ARGUMENT, "token %zu is %d, not 0 to %u", i, ids[i],
                        tokenizer_n_vocab(model->tok) - 1);
        size_t room = total < capacity ? capacity - total : 0;
        size_t size = tokenizer_piece(model->tok, ids[i], first, false, room ? text + total : NULL, room);
        if (first) first = tokenizer_piece(model->tok, ids[i], false, false, NULL, 0) == 0;
        total += size;
    }
    *n = total;
    if (total > capacity) return fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu bytes, not %zu", total, capacity);
    return NOVA_OK;
}

NOVA_API bool nova_token_is_end(const nova_model *model, int32_t id) {
    return model && id >= 0 && (uint32_t)id < tokenizer_n_vocab(model->tok) && tokenizer_is_end(model->tok, id);
}

/* ---- Conversations ---- */

/* The text of a special token, for a template's bos_token and eos_token. Its length, 0 for none. */
static size_t special_text(const nova_model *m, int32_t id, char *text, size_t size) {
    if (id < 0) return 0;
    return size_min(size, tokenizer_piece(m->tok, id, false, true, text, size));
}

static nova_result chat_to_text(const nova_model *model, const nova_chat *chat, bool mark, text_buffer *out, nova_error *error) {
    if (!model || !chat || (!chat->messages && chat->n_messages))
        return fail(error, NOVA_ERROR_ARGUMENT, "no model or no conversation was given");
    error_clear(error);
    char       bos[256], eos[256];
    chat_input in;
    memset(&in, 0, sizeof in);
    in.chat          = chat;
    in.template_text = chat->template_text ? str_c(chat->template_text) : model->chat_template;
    if (!in.template_text.n) return fail(error, NOVA_ERROR_TEMPLATE, "the model has no chat template");
    in.bos   = str_of(bos, special_text(model, tokenizer_bos(model->tok), bos, sizeof bos));
    in.eos   = str_of(eos, special_text(model, tokenizer_eos(model->tok), eos, sizeof eos));
    in.marks = mark ? model->tok : NULL;
    return chat_render(&in, &model->h, out, error);
}

NOVA_API nova_result nova_chat_format(const nova_model *model, const nova_chat *chat, char *text, size_t capacity,
                                      size_t *n, nova_error *error) {
    if (!model || !n || (!text && capacity)) return fail(error, NOVA_ERROR_ARGUMENT, "nova_chat_format: an argument is NULL");
    text_buffer out;
    text_init(&out, &model->h, CHAT_MAX_BYTES);
    nova_result result = chat_to_text(model, chat, false, &out, error);
    if (result == NOVA_OK) {
        *n = out.n;
        if (out.n > capacity) result = fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu bytes, not %zu", out.n, capacity);
        else if (out.n) memcpy(text, out.p, out.n);
    }
    text_free(&out);
    return result;
}

NOVA_API nova_result nova_chat_tokenize(const nova_model *model, const nova_chat *chat, int32_t *ids, size_t capacity,
                                        size_t *n_ids, nova_error *error) {
    if (!model || !n_ids || (!ids && capacity))
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_chat_tokenize: an argument is NULL");
    text_buffer out;
    text_init(&out, &model->h, CHAT_MAX_BYTES);
    nova_result result = chat_to_text(model, chat, true, &out, error);
    if (result == NOVA_OK) {
        /* A template writes every special token itself, BOS included: none is added, as its authors expect. */
        result = tokenizer_encode(model->tok, &model->h, str_of(out.p, out.n), NOVA_PARSE_SPECIAL | TOKENIZER_MARKED,
                                  ids, capacity, n_ids, error);
    }
    text_free(&out);
    return result;
}

/* ==== src/program.h =========================================================================================== */

/* A program: the forward pass of a model as a flat list of operations over buffers, compiled once when an engine opens.
 * The executors run the rows in order; what changes per pass (columns, positions, pages) is in a `pass`, never in a row.
 *
 * A buffer holds one row of floats a column (token). Behind OP_GATHER the columns are those whose logits are wanted. */
#ifndef NOVA_PROGRAM_H
#define NOVA_PROGRAM_H


typedef enum buffer_id {
    BUF_X,          /* the residual stream, n_embd */
    BUF_NORMED,
    BUF_Q, BUF_K, BUF_V,
    BUF_ATT,        /* the heads' outputs */
    BUF_FF, BUF_FF2,
    BUF_T,          /* what a matmul gives before it is added to the residual */
    BUF_LOGITS,     /* of at most program.n_logits columns at a time */
    BUF_COUNT
} buffer_id;

typedef enum op_kind {
    OP_EMBED,       /* dst = rows of w[0] by the columns' ids */
    OP_NORM,        /* dst = norm(src) * vec + bias */
    OP_MATMUL,      /* r[i] = w[i] src + bias[i] for i < n_w, then by `epilogue` */
    OP_STORE,       /* turns src (queries) and keys by position; puts keys and values into the cache */
    OP_ATTEND,      /* dst = attention of the queries src over the cache */
    OP_GATHER,      /* keeps the columns of dst and src whose logits are wanted */
    OP_KIND_COUNT
} op_kind;

typedef enum op_epilogue {
    EPILOGUE_NONE,  /* dst[i] = r[i] */
    EPILOGUE_ADD,   /* dst[0] += r[0] */
    EPILOGUE_ACT,   /* dst[0] = act(r[0]) */
    EPILOGUE_GLU    /* dst[0] = act(r[0]) * r[1] */
} op_epilogue;

#define OP_WEIGHTS 3

typedef struct op {
    op_kind       kind;
    op_epilogue   epilogue;
    activation    act;
    norm_kind     norm;
    uint32_t      layer;
    uint32_t      n_w;
    buffer_id     src;
    buffer_id     dst[OP_WEIGHTS];
    const weight *w[OP_WEIGHTS];
    const float  *bias[OP_WEIGHTS];   /* NULL: none */
    const float  *vec;                /* a norm's weight */
    bool          gathered;           /* works on the gathered columns */
} op;

/* Frequencies of rotary positions: pair i at position p is turned by p * freq[i], and its cosine and sine grow by
 * `magnitude`. */
typedef struct rope_table {
    uint32_t n_pairs;
    double  *freq;
    double   magnitude;
} rope_table;

typedef struct program {
    op        *ops;
    uint32_t   n_ops, n_body;         /* ops[n_body..] make logits, for n_logits gathered columns at a time */
    uint32_t   width[BUF_COUNT];      /* floats a column, 0: unused */
    rope_table rope;
} program;

/* `n_ctx` chooses between long and short rope factors. Everything goes into the arena. Errors: MEMORY. */
static nova_result program_build(program *p, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error);

/* Cosine and sine of every pair at a position (which may be negative): n_pairs times two floats. */
static void rope_fill(const rope_table *t, int64_t position, double magnitude, float *cos_sin);

#endif

/* ==== src/program.c =========================================================================================== */

/* Compiles a model into a program: see program.h. */

/* ---- Rotary positions ---- */

#define TWO_PI 6.283185307179586

/* YaRN (arXiv 2309.00071, section 3.2): the pair whose wave turns `beta` times within the original context. */
static double yarn_pair(const rope_params *r, double beta) {
    return r->n_rot * log(r->n_ctx_orig / (beta * TWO_PI)) / (2.0 * log((double)r->freq_base));
}

/* Share of a pair's position that is left as it is (1: fast pairs) instead of divided by the factor (0: slow ones). */
static double yarn_ramp(const rope_params *r, uint32_t pair) {
    double low  = fmax(0.0, floor(yarn_pair(r, r->beta_fast)));
    double high = fmin(r->n_rot - 1.0, ceil(yarn_pair(r, r->beta_slow)));
    double at   = ((double)pair - low) / fmax(0.001, high - low);
    return 1.0 - fmin(1.0, fmax(0.0, at));
}

/* YaRN's attention temperature: with a factor s the logits grow by (0.1 ln s + 1)^2, half of it on each of q and k. */
static double yarn_magnitude(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0; }

static const float *rope_divisors(const nova_model *m, uint32_t n_ctx) {
    if (m->rope.scaling == ROPE_SCALING_LONGROPE || m->t[ROLE_ROPE_LONG].vec) {
        role r = n_ctx > m->rope.n_ctx_orig ? ROLE_ROPE_LONG : ROLE_ROPE_SHORT;
        if (m->t[r].vec) return m->t[r].vec;
    }
    return m->t[ROLE_ROPE_FREQS].vec;
}

static nova_result rope_build(rope_table *t, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error) {
    const rope_params *r        = &m->rope;
    const float       *divisors = rope_divisors(m, n_ctx);
    bool               yarn     = r->scaling == ROPE_SCALING_YARN;
    double             ext      = r->ext_factor >= 0.0f ? r->ext_factor : yarn ? 1.0 : 0.0;
    t->n_pairs = r->n_rot / 2;
    t->freq    = (double *)arena_alloc(a, t->n_pairs * sizeof *t->freq);
    if (!t->freq) return fail_memory(error, t->n_pairs * sizeof *t->freq, "rope frequencies");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        double freq = pow(r->freq_base, -2.0 * i / r->n_rot);
        double keep = ext != 0.0 ? yarn_ramp(r, i) * ext : 0.0;
        if (divisors) freq /= divisors[i];
        t->freq[i] = freq * (keep + (1.0 - keep) / r->factor);
    }
    t->magnitude = r->attn_factor;
    if (ext != 0.0) t->magnitude *= yarn_magnitude(r->factor, 1.0);
    if (ext != 0.0 && r->log_multiplier != 0.0f) t->magnitude /= yarn_magnitude(r->factor, r->log_multiplier);
    return NOVA_OK;
}

static void rope_fill(const rope_table *t, int64_t position, double magnitude, float *cos_sin) {
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        double angle = (double)position * t->freq[i];
        cos_sin[2 * i]     = (float)(cos(angle) * magnitude);
        cos_sin[2 * i + 1] = (float)(sin(angle) * magnitude);
    }
}

/* ---- Rows ---- */

static op *emit_op(program *p, op_kind kind, uint32_t layer, buffer_id src, buffer_id dst) {
    op *o = &p->ops[p->n_ops++];
    memset(o, 0, sizeof *o);
    o->kind   = kind;
    o->layer  = layer;
    o->src    = src;
    o->dst[0] = dst;
    return o;
}

static op *emit_norm(program *p, const nova_model *m, uint32_t layer, const model_tensor *t) {
    op *o = emit_op(p, OP_NORM, layer, BUF_X, BUF_NORMED);
    o->norm    = m->kind->norm;
    o->vec     = t->vec;
    o->bias[0] = t->bias;
    return o;
}

static void add_weight(op *o, const model_tensor *t, buffer_id dst) {
    o->w[o->n_w]    = &t->w;
    o->bias[o->n_w] = t->bias;
    o->dst[o->n_w]  = dst;
    o->n_w++;
}

static op *emit_matmul(program *p, uint32_t layer, buffer_id src, buffer_id dst, const model_tensor *t, op_epilogue e) {
    op *o = emit_op(p, OP_MATMUL, layer, src, dst);
    o->epilogue = e;
    add_weight(o, t, dst);
    return o;
}

static void emit_attention(program *p, const nova_model *m, uint32_t il) {
    const model_layer *l = &m->layers[il];
    emit_norm(p, m, il, LAYER_TENSOR(l, ATTN_NORM));
    op *qkv = emit_matmul(p, il, BUF_NORMED, BUF_Q, LAYER_TENSOR(l, ATTN_Q), EPILOGUE_NONE);
    add_weight(qkv, LAYER_TENSOR(l, ATTN_K), BUF_K);
    add_weight(qkv, LAYER_TENSOR(l, ATTN_V), BUF_V);
    emit_op(p, OP_STORE, il, BUF_Q, BUF_Q);
    emit_op(p, OP_ATTEND, il, BUF_Q, BUF_ATT);
}

static void emit_feed_forward(program *p, const nova_model *m, uint32_t il) {
    const model_layer *l    = &m->layers[il];
    const model_tensor *gate = LAYER_TENSOR(l, FFN_GATE);
    emit_norm(p, m, il, LAYER_TENSOR(l, FFN_NORM));
    op *up = emit_matmul(p, il, BUF_NORMED, BUF_FF, gate->w.data ? gate : LAYER_TENSOR(l, FFN_UP), EPILOGUE_ACT);
    up->act = m->kind->act;
    if (gate->w.data) {
        up->epilogue = EPILOGUE_GLU;
        add_weight(up, LAYER_TENSOR(l, FFN_UP), BUF_FF2);
    }
    emit_matmul(p, il, BUF_FF, BUF_X, LAYER_TENSOR(l, FFN_DOWN), EPILOGUE_ADD);
}

#define OPS_PER_LAYER 9
#define OPS_OUTSIDE   4

static void emit_all(program *p, const nova_model *m) {
    op *embed = emit_op(p, OP_EMBED, 0, BUF_X, BUF_X);
    embed->n_w  = 1;
    embed->w[0] = &m->t[ROLE_TOKEN_EMBD].w;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        emit_attention(p, m, il);
        /* Behind the last attention a column no longer serves others: those without logits end here. */
        if (il + 1 == m->n_layer) emit_op(p, OP_GATHER, il, BUF_ATT, BUF_X);
        emit_matmul(p, il, BUF_ATT, BUF_X, LAYER_TENSOR(&m->layers[il], ATTN_OUT), EPILOGUE_ADD);
        emit_feed_forward(p, m, il);
    }
    p->n_body = p->n_ops;
    emit_norm(p, m, m->n_layer - 1, &m->t[ROLE_OUTPUT_NORM]);
    emit_matmul(p, m->n_layer - 1, BUF_NORMED, BUF_LOGITS, &m->t[ROLE_OUTPUT], EPILOGUE_NONE);
    bool gathered = false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        p->ops[i].gathered = gathered;
        if (p->ops[i].kind == OP_GATHER) gathered = true;
    }
}

/* ---- Buffers ---- */

static void widen(program *p, buffer_id b, uint32_t width) {
    if (width > p->width[b]) p->width[b] = width;
}

static void size_buffers(program *p, const nova_model *m) {
    widen(p, BUF_X, m->n_embd);
    widen(p, BUF_NORMED, m->n_embd);
    widen(p, BUF_T, m->n_embd);
    for (uint32_t il = 0; il < m->n_layer; il++) {
        const model_layer *l = &m->layers[il];
        widen(p, BUF_Q, dim_of(m, l, DIM_Q));
        widen(p, BUF_K, dim_of(m, l, DIM_K));
        widen(p, BUF_V, dim_of(m, l, DIM_V));
        widen(p, BUF_ATT, dim_of(m, l, DIM_ATT));
        widen(p, BUF_FF, l->n_ff);
        if (LAYER_TENSOR(l, FFN_GATE)->w.data) widen(p, BUF_FF2, l->n_ff);
    }
    widen(p, BUF_LOGITS, m->n_vocab);
}

static nova_result program_build(program *p, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error) {
    memset(p, 0, sizeof *p);
    size_t bytes = ((size_t)m->n_layer * OPS_PER_LAYER + OPS_OUTSIDE) * sizeof(op);
    p->ops = (op *)arena_alloc(a, bytes);
    if (!p->ops) return fail_memory(error, bytes, "the program");
    emit_all(p, m);
    size_buffers(p, m);
    return rope_build(&p->rope, a, m, n_ctx, error);
}

/* ==== src/kv.h ================================================================================================ */

/* The cache of keys and values: a pool of pages of KV_PAGE tokens, and the page table of a sequence.
 *
 * A sequence that slides keeps its first n_sinks tokens and a window of the latest; what lies between is dropped in
 * blocks (StreamingLLM, arXiv 2309.17453). Positions count inside the cache. No key is ever turned again for it: all keys
 * stay as they were stored, at the position they had in the whole text, and a query looks at the sinks as if it stood
 * n_dropped positions earlier. So sliding costs nothing and works for quantised keys. */
#ifndef NOVA_KV_H
#define NOVA_KV_H


typedef struct kv_layer {
    attend_shape shape;
    uint32_t     n_head_kv;
    size_t       k_bytes, v_bytes;   /* of one head's page */
    uint8_t     *pages;              /* of this layer: [page][head] K, then [head] V */
    size_t       page_bytes;
} kv_layer;

typedef struct kv_pool {
    uint32_t  n_layer, n_pages;
    kv_layer *layers;
    uint32_t *free_pages;            /* a stack of page numbers */
    uint32_t  n_free;
} kv_pool;

/* One text's place in the pool. */
typedef struct kv_seq {
    uint32_t *table;                 /* page numbers: of the sinks, then of the window */
    uint32_t  capacity;              /* of the table */
    uint32_t  n_pages;
    uint32_t  n_sink_pages;          /* 0 while nothing was dropped */
    uint32_t  window_page;           /* the text's page that follows the sink pages in the table */
    uint32_t  n_sinks;               /* tokens; in use from the first drop on */
    int64_t   n_tokens;              /* stored since the start */
    int64_t   n_dropped;
} kv_seq;

/* Pages that a sequence of at most n_ctx tokens needs, with the slack of a sliding window that ends inside two pages. */
static uint32_t kv_pages_for(uint32_t n_ctx);

static uint8_t *kv_k_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head);
static uint8_t *kv_v_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head);

/* The page that holds text page `text_page` (a token's position / KV_PAGE), which must be held. */
static uint32_t kv_page_of(const kv_seq *s, int64_t text_page);

/* Tokens that are held: sinks and window. */
static int64_t kv_held(const kv_seq *s);
/* First token of the window; all from here to n_tokens are held. */
static int64_t kv_window_start(const kv_seq *s);

/* Makes room in the table for n further tokens. False when the pool has no more pages; then nothing changed. */
static bool kv_reserve(kv_pool *p, kv_seq *s, uint32_t n);
/* Drops the n oldest tokens behind the sinks; n is less than the window. */
static void kv_drop(kv_pool *p, kv_seq *s, uint32_t n);
/* Forgets all tokens from position n_tokens on; only for a sequence that dropped none, or for n_tokens 0. */
static void kv_truncate(kv_pool *p, kv_seq *s, int64_t n_tokens);

#endif

/* ==== src/kv.c ================================================================================================ */

/* The cache's pages: see kv.h. */

static uint32_t kv_pages_for(uint32_t n_ctx) { return n_ctx / KV_PAGE + (n_ctx % KV_PAGE != 0) + 2; }

static uint8_t *kv_k_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head) {
    const kv_layer *l = &p->layers[layer];
    return l->pages + (size_t)page * l->page_bytes + head * l->k_bytes;
}

static uint8_t *kv_v_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head) {
    const kv_layer *l = &p->layers[layer];
    return l->pages + (size_t)page * l->page_bytes + l->n_head_kv * l->k_bytes + head * l->v_bytes;
}

static uint32_t kv_page_of(const kv_seq *s, int64_t text_page) {
    if (text_page < (int64_t)s->n_sink_pages) return s->table[text_page];
    return s->table[s->n_sink_pages + (text_page - (int64_t)s->window_page)];
}

static int64_t kv_held(const kv_seq *s) { return s->n_tokens - s->n_dropped; }

static int64_t kv_window_start(const kv_seq *s) { return s->n_dropped ? s->n_sinks + s->n_dropped : 0; }

/* Text pages that the table covers: it ends behind the last token's page. */
static int64_t covered_pages(const kv_seq *s) {
    return s->n_dropped ? (int64_t)s->window_page + (s->n_pages - s->n_sink_pages) : (int64_t)s->n_pages;
}

static bool kv_reserve(kv_pool *p, kv_seq *s, uint32_t n) {
    int64_t want = (s->n_tokens + n + KV_PAGE - 1) / KV_PAGE - covered_pages(s);
    if (want <= 0) return true;
    if (want > (int64_t)p->n_free || want > (int64_t)(s->capacity - s->n_pages)) return false;
    while (want-- > 0) s->table[s->n_pages++] = p->free_pages[--p->n_free];
    return true;
}

static void give_back(kv_pool *p, kv_seq *s, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) p->free_pages[p->n_free++] = s->table[first + i];
    memmove(s->table + first, s->table + first + n, (s->n_pages - first - n) * sizeof *s->table);
    s->n_pages -= n;
}

static void kv_drop(kv_pool *p, kv_seq *s, uint32_t n) {
    if (s->n_dropped == 0) {
        s->n_sink_pages = (s->n_sinks + KV_PAGE - 1) / KV_PAGE;
        s->window_page  = s->n_sink_pages;
    }
    s->n_dropped += n;
    int64_t first = kv_window_start(s) / KV_PAGE;   /* inside the last sink page while little was dropped */
    if (first > (int64_t)s->window_page) {
        give_back(p, s, s->n_sink_pages, (uint32_t)(first - (int64_t)s->window_page));
        s->window_page = (uint32_t)first;
    }
}

static void kv_truncate(kv_pool *p, kv_seq *s, int64_t n_tokens) {
    if (n_tokens == 0) s->n_dropped = 0, s->n_sink_pages = 0, s->window_page = 0;
    uint32_t keep = (uint32_t)((n_tokens + KV_PAGE - 1) / KV_PAGE);
    if (keep < s->n_pages) give_back(p, s, keep, s->n_pages - keep);
    s->n_tokens = n_tokens;
}

/* ==== src/cpu.h =============================================================================================== */

/* The CPU executor: runs the rows of a program over the columns of a pass, on all threads of a pool. */
#ifndef NOVA_CPU_H
#define NOVA_CPU_H


/* One sequence's columns in a pass: consecutive tokens from position seq->n_tokens on, whose pages are reserved. */
typedef struct pass_run {
    const kv_seq *seq;
    uint32_t      first_col, n_col;
    uint32_t      first_out, n_out;   /* among the gathered columns: the run's last n_out ones */
} pass_run;

/* What is evaluated at once. */
typedef struct pass {
    uint32_t        n_col, n_run, n_out;
    const int32_t  *ids;      /* of the columns, each a valid id */
    const pass_run *runs;     /* in order, without gaps */
} pass;

/* Which columns go the narrow and which the wide way. It follows from each run alone, so that neighbours in a pass never
 * change a result. */
typedef struct column_split {
    uint32_t *narrow, *wide;
    uint32_t  n_narrow, n_wide;
} column_split;

typedef struct cpu_machine {
    cpu_level         level;
    pool             *threads;
    const nova_model *model;
    const program    *prog;
    const kv_pool    *kv;
    uint32_t          n_batch, n_seqs, n_logits, n_threads;

    float        *buf[BUF_COUNT];
    float        *cos_sin;        /* [n_batch][2 * n_pairs] of the columns' positions */
    float        *sink_turn;      /* [n_seqs][2 * n_pairs]: by minus what each run has dropped */
    uint32_t     *col_run;        /* [n_batch] the run of a column */
    uint32_t     *out_col;        /* [n_batch] the column of a gathered one */
    column_split  all, out, window;
    uint8_t      *narrow_in;      /* [n_narrow][narrow_stride], several forms side by side */
    uint8_t      *wide_in;
    uint8_t      *own;            /* [n_threads][own_stride]: each thread's own scratch */
    size_t        narrow_stride, wide_bytes, own_stride;
    atomic_int32 *counters;       /* [n_ops]: shares of work taken */

    const pass   *now;            /* while running */
    uint32_t      op_first, op_last;
    uint32_t      x_first;        /* gathered column that is column 0 of the head's window */
    atomic_int32  stop_at;        /* operations from this one on do not run */
    bool        (*cancelled)(void *user);
    void         *cancelled_user;
} cpu_machine;

/* Lays the executor's memory out from `base` (aligned to 64); the bytes it takes. With base NULL it only counts.
 * model, prog, kv, level, n_batch, n_seqs, n_logits and n_threads must be set. */
static size_t cpu_layout(cpu_machine *c, uint8_t *base);

/* Runs the body of the program for a pass; then cpu_head gives logits of gathered columns first..first + n, n at most
 * n_logits, in buf[BUF_LOGITS]. Cancelled: NOVA_CANCELLED, and the sequences are as before. */
static nova_result cpu_body(cpu_machine *c, const pass *p);
static nova_result cpu_head(cpu_machine *c, uint32_t first, uint32_t n);

#endif

/* ==== src/cpu.c =============================================================================================== */

/* The CPU executor: see cpu.h. Every thread walks through the same rows; a barrier stands behind each. */

/* ---- Memory ---- */

static uint8_t *carve(uint8_t *base, size_t *at, size_t bytes) {
    uint8_t *p = base ? base + *at : NULL;
    *at += size_align(bytes, CACHE_LINE);
    return p;
}

/* The distinct forms that an operation's weights read their input in. */
typedef struct form_set {
    uint32_t form[OP_WEIGHTS];
    size_t   offset[OP_WEIGHTS];   /* of the form's area */
    uint32_t n;
    size_t   bytes;                /* of all areas */
} form_set;

static void add_form(form_set *s, uint32_t form, size_t bytes) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->form[i] == form) return;
    s->form[s->n]   = form;
    s->offset[s->n] = s->bytes;
    s->n++;
    s->bytes += bytes;
}

static size_t form_offset(const form_set *s, uint32_t form) {
    uint32_t i = 0;
    while (i + 1 < s->n && s->form[i] != form) i++;
    return s->offset[i];
}

static form_set narrow_forms(const op *o) {
    form_set s;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < o->n_w; i++) {
        uint32_t form = narrow_form(o->w[i]->type);
        add_form(&s, form, narrow_input_bytes(form, o->w[i]->n_in));
    }
    return s;
}

static form_set wide_forms(const cpu_machine *c, const op *o, size_t n_col) {
    form_set s;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < o->n_w; i++) {
        uint32_t form = wide_form(o->w[i]->type);
        add_form(&s, form, wide_input_bytes(c->level, form, o->w[i]->n_in, n_col));
    }
    return s;
}

/* Attention takes up to so many queries of one KV head at once. */
#define ATTEND_QUERIES 64

static uint32_t attend_columns(uint32_t n_rep) { return n_rep < ATTEND_QUERIES ? ATTEND_QUERIES / n_rep : 1; }

/* What one thread of OP_ATTEND needs for a block of queries. */
typedef struct attend_work {
    const float **q;
    float        *turned;   /* the queries as the sinks see them */
    attend_state *states;
    float        *acc;
    uint32_t     *first, *last;
    int64_t      *position;
    uint8_t      *scratch;
} attend_work;

static size_t attend_layout(attend_work *w, const attend_shape *shape, uint32_t n_q, uint8_t *base) {
    size_t at = 0;
    w->q        = (const float **)(void *)carve(base, &at, n_q * sizeof *w->q);
    w->turned   = (float *)(void *)carve(base, &at, (size_t)n_q * shape->head_dim_k * sizeof(float));
    w->states   = (attend_state *)(void *)carve(base, &at, n_q * sizeof *w->states);
    w->acc      = (float *)(void *)carve(base, &at, (size_t)n_q * shape->head_dim_v * sizeof(float));
    w->first    = (uint32_t *)(void *)carve(base, &at, n_q * sizeof *w->first);
    w->last     = (uint32_t *)(void *)carve(base, &at, n_q * sizeof *w->last);
    w->position = (int64_t *)(void *)carve(base, &at, n_q * sizeof *w->position);
    w->scratch  = carve(base, &at, attend_scratch_bytes(shape, n_q));
    return at;
}

/* The largest needs of any operation. */
static void size_scratch(cpu_machine *c) {
    c->narrow_stride = c->wide_bytes = c->own_stride = 0;
    for (uint32_t i = 0; i < c->prog->n_ops; i++) {
        const op *o = &c->prog->ops[i];
        if (o->kind == OP_ATTEND) {
            const model_layer *l     = &c->model->layers[o->layer];
            uint32_t           n_rep = l->n_head / l->n_head_kv;
            attend_work        unused;
            c->own_stride = size_max(c->own_stride, attend_layout(&unused, &c->kv->layers[o->layer].shape,
                                                                  n_rep * attend_columns(n_rep), NULL));
        }
        if (o->kind != OP_MATMUL) continue;
        c->narrow_stride = size_max(c->narrow_stride, narrow_forms(o).bytes);
        c->wide_bytes    = size_max(c->wide_bytes, wide_forms(c, o, c->n_batch).bytes);
        for (uint32_t k = 0; k < o->n_w; k++)
            c->own_stride = size_max(c->own_stride, wide_scratch_bytes(c->level, o->w[k]->type, o->w[k]->n_in));
    }
    c->own_stride = size_align(c->own_stride, CACHE_LINE);
}

static void carve_split(column_split *s, uint8_t *base, size_t *at, uint32_t n) {
    s->narrow = (uint32_t *)(void *)carve(base, at, n * sizeof(uint32_t));
    s->wide   = (uint32_t *)(void *)carve(base, at, n * sizeof(uint32_t));
}

static size_t cpu_layout(cpu_machine *c, uint8_t *base) {
    size_t at = 0, n = c->n_batch, turn = 2 * (size_t)c->prog->rope.n_pairs * sizeof(float);
    size_scratch(c);
    for (int b = 0; b < BUF_COUNT; b++) {
        size_t columns = b == BUF_LOGITS ? c->n_logits : n;
        c->buf[b] = (float *)(void *)carve(base, &at, columns * c->prog->width[b] * sizeof(float));
    }
    c->cos_sin   = (float *)(void *)carve(base, &at, n * turn);
    c->sink_turn = (float *)(void *)carve(base, &at, c->n_seqs * turn);
    c->col_run   = (uint32_t *)(void *)carve(base, &at, n * sizeof(uint32_t));
    c->out_col   = (uint32_t *)(void *)carve(base, &at, n * sizeof(uint32_t));
    carve_split(&c->all, base, &at, c->n_batch);
    carve_split(&c->out, base, &at, c->n_batch);
    carve_split(&c->window, base, &at, c->n_batch);
    c->narrow_in = carve(base, &at, size_min(n, (size_t)c->n_seqs * NARROW_MAX) * c->narrow_stride);
    c->wide_in   = carve(base, &at, c->wide_bytes);
    c->own       = carve(base, &at, c->n_threads * c->own_stride);
    c->counters  = (atomic_int32 *)(void *)carve(base, &at, c->prog->n_ops * sizeof *c->counters);
    return at;
}

/* ---- Columns ---- */

static float *column(const cpu_machine *c, buffer_id b, uint32_t col) {
    if (b == BUF_X) col += c->x_first;
    return c->buf[b] + (size_t)col * c->prog->width[b];
}

static const column_split *columns_of(const cpu_machine *c, const op *o) {
    if (c->op_first >= c->prog->n_body) return &c->window;
    return o->gathered ? &c->out : &c->all;
}

static uint32_t n_columns(const column_split *s) { return s->n_narrow + s->n_wide; }

static uint32_t column_at(const column_split *s, uint32_t i) {
    return i < s->n_narrow ? s->narrow[i] : s->wide[i - s->n_narrow];
}

static void split_add(column_split *s, uint32_t col, bool narrow) {
    if (narrow) s->narrow[s->n_narrow++] = col;
    else s->wide[s->n_wide++] = col;
}

static void split_columns(cpu_machine *c, const pass *p) {
    c->all.n_narrow = c->all.n_wide = c->out.n_narrow = c->out.n_wide = 0;
    for (uint32_t r = 0; r < p->n_run; r++) {
        const pass_run *run = &p->runs[r];
        for (uint32_t i = 0; i < run->n_col; i++) {
            c->col_run[run->first_col + i] = r;
            split_add(&c->all, run->first_col + i, run->n_col <= NARROW_MAX);
        }
        for (uint32_t i = 0; i < run->n_out; i++) {
            c->out_col[run->first_out + i] = run->first_col + run->n_col - run->n_out + i;
            split_add(&c->out, run->first_out + i, run->n_out <= NARROW_MAX);
        }
    }
}

static int64_t column_position(const cpu_machine *c, uint32_t col) {
    const pass_run *run = &c->now->runs[c->col_run[col]];
    return run->seq->n_tokens + (col - run->first_col);
}

/* ---- The operations ---- */

typedef void (*op_fn)(cpu_machine *c, const op *o, uint32_t index, uint32_t n);

/* Ids to rows, and the angles of this pass. */
static void op_embed(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const weight *w     = o->w[0];
    size_t        pairs = c->prog->rope.n_pairs;
    for (uint32_t col = index; col < c->now->n_col; col += n) {
        size_t row = (size_t)c->now->ids[col];
        type_of(w->type)->to_float(w->data + row * w->row_bytes, column(c, BUF_X, col), w->n_in);
        rope_fill(&c->prog->rope, column_position(c, col), c->prog->rope.magnitude, c->cos_sin + 2 * pairs * col);
    }
    for (uint32_t r = index; r < c->now->n_run; r += n) {
        int64_t dropped = c->now->runs[r].seq->n_dropped;
        if (dropped) rope_fill(&c->prog->rope, -dropped, 1.0, c->sink_turn + 2 * pairs * r);
    }
}

static void op_norm(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const column_split *cols = columns_of(c, o);
    for (uint32_t i = index; i < n_columns(cols); i += n) {
        uint32_t col = column_at(cols, i);
        vector_norm(c->level, o->norm, column(c, o->dst[0], col), column(c, o->src, col), o->vec, o->bias[0],
                    c->prog->width[o->src], c->model->norm_eps);
    }
}

/* -- Matmul -- */

/* Elements of one column that a thread prepares at once. */
#define PREPARE_SHARE 2048

static void prepare_narrow(cpu_machine *c, const op *o, const column_split *cols, const form_set *forms, uint32_t index, uint32_t n) {
    uint32_t n_in   = o->w[0]->n_in;
    uint32_t shares = (n_in + PREPARE_SHARE - 1) / PREPARE_SHARE;
    uint32_t tasks  = forms->n * cols->n_narrow * shares;
    for (uint32_t t = index; t < tasks; t += n) {
        uint32_t share = t % shares, i = t / shares % cols->n_narrow, f = t / shares / cols->n_narrow;
        size_t   begin = (size_t)share * PREPARE_SHARE;
        narrow_prepare(c->level, forms->form[f], column(c, o->src, cols->narrow[i]), n_in, begin,
                       size_min(n_in, begin + PREPARE_SHARE), c->narrow_in + i * c->narrow_stride + forms->offset[f]);
    }
}

static void prepare_wide(cpu_machine *c, const op *o, const column_split *cols, const form_set *forms, uint32_t index, uint32_t n) {
    for (uint32_t f = 0; f < forms->n; f++) {
        uint32_t tiles = wide_tiles(c->level, forms->form[f], cols->n_wide);
        uint32_t begin = (uint32_t)((uint64_t)tiles * index / n), end = (uint32_t)((uint64_t)tiles * (index + 1) / n);
        if (begin < end)
            wide_prepare(c->level, forms->form[f], column(c, o->src, 0), c->prog->width[o->src], cols->wide, o->w[0]->n_in,
                         cols->n_wide, begin, end, c->wide_in + forms->offset[f]);
    }
}

typedef struct matmul_inputs {
    const column_split *cols;
    form_set            narrow, wide;
    uint8_t            *own;
} matmul_inputs;

/* Rows begin..end of weight k for all columns, bias added. */
static void matmul_rows(cpu_machine *c, const op *o, const matmul_inputs *in, uint32_t k, buffer_id dst, uint32_t begin, uint32_t end) {
    const weight       *w    = o->w[k];
    const column_split *cols = in->cols;
    size_t              ld   = c->prog->width[dst];
    for (uint32_t first = 0; first < cols->n_narrow; first += NARROW_MAX) {
        uint32_t    n      = (uint32_t)size_min(NARROW_MAX, cols->n_narrow - first);
        size_t      offset = form_offset(&in->narrow, narrow_form(w->type));
        const void *x[NARROW_MAX];
        for (uint32_t i = 0; i < n; i++) x[i] = c->narrow_in + (first + i) * c->narrow_stride + offset;
        for (uint32_t i = 0; i < n;) {   /* columns that lie side by side go together */
            uint32_t m = 1;
            while (i + m < n && cols->narrow[first + i + m] == cols->narrow[first + i] + m) m++;
            narrow_matmul(c->level, w, x + i, m, begin, end, column(c, dst, cols->narrow[first + i]), ld);
            i += m;
        }
    }
    if (cols->n_wide)
        wide_matmul(c->level, w, c->wide_in + form_offset(&in->wide, wide_form(w->type)), cols->n_wide, cols->wide, begin,
                    end, column(c, dst, 0), ld, in->own);
    if (!o->bias[k]) return;
    for (uint32_t i = 0; i < n_columns(cols); i++)
        vector_add(c->level, column(c, dst, column_at(cols, i)) + begin, o->bias[k] + begin, end - begin);
}

static void matmul_epilogue(cpu_machine *c, const op *o, const column_split *cols, uint32_t begin, uint32_t end) {
    for (uint32_t i = 0; i < n_columns(cols); i++) {
        uint32_t col = column_at(cols, i);
        float   *y   = column(c, o->dst[0], col) + begin;
        if (o->epilogue == EPILOGUE_ADD) vector_add(c->level, y, column(c, BUF_T, col) + begin, end - begin);
        if (o->epilogue == EPILOGUE_ACT) vector_act(c->level, o->act, y, y, end - begin);
        if (o->epilogue == EPILOGUE_GLU)
            vector_glu(c->level, o->act, y, y, column(c, o->dst[1], col) + begin, end - begin);
    }
}

/* Rows that a thread takes at once: small enough to share evenly, large enough to stream. */
static uint32_t rows_at_once(const cpu_machine *c, const op *o, const column_split *cols, uint32_t rows, uint32_t n) {
    uint32_t unit = 16;
    if (cols->n_wide) unit = wide_panel_rows(c->level, o->w[0]->type, o->w[0]->n_in);
    if (n == 1 && !cols->n_wide) return rows;
    uint32_t share = (rows / (n * 4) + unit - 1) / unit * unit;
    return (uint32_t)size_max(share, unit);
}

static void op_matmul(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    matmul_inputs in;
    in.cols   = columns_of(c, o);
    in.narrow = narrow_forms(o);
    in.wide   = wide_forms(c, o, in.cols->n_wide);
    in.own    = c->own + index * c->own_stride;
    if (in.cols->n_narrow) prepare_narrow(c, o, in.cols, &in.narrow, index, n);
    if (in.cols->n_wide) prepare_wide(c, o, in.cols, &in.wide, index, n);
    pool_barrier(c->threads);

    /* The weights of a GLU go through the same rows together; other weights one behind the other. */
    bool     together = o->epilogue == EPILOGUE_GLU;
    uint32_t rows = 0;
    for (uint32_t k = 0; k < (together ? 1 : o->n_w); k++) rows += o->w[k]->n_out;
    uint32_t chunk = rows_at_once(c, o, in.cols, rows, n);
    atomic_int32 *counter = &c->counters[o - c->prog->ops];
    uint32_t taken = pool_take(counter), before = 0;
    for (uint32_t k = 0; k < (together ? 1 : o->n_w); k++) {
        uint32_t n_out = o->w[k]->n_out, chunks = (n_out + chunk - 1) / chunk;
        while (taken < before + chunks) {
            uint32_t  begin = (taken - before) * chunk, end = (uint32_t)size_min(n_out, begin + chunk);
            buffer_id dst   = o->epilogue == EPILOGUE_ADD ? BUF_T : o->dst[k];
            matmul_rows(c, o, &in, k, dst, begin, end);
            if (together) matmul_rows(c, o, &in, 1, o->dst[1], begin, end);
            matmul_epilogue(c, o, in.cols, begin, end);
            taken = pool_take(counter);
        }
        before += chunks;
    }
}

/* -- Attention -- */

static void op_store(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const kv_layer    *kv    = &c->kv->layers[o->layer];
    const model_layer *l     = &c->model->layers[o->layer];
    uint32_t           n_rep = l->n_head / l->n_head_kv, dk = kv->shape.head_dim_k, dv = kv->shape.head_dim_v;
    uint32_t           n_rot = 2 * c->prog->rope.n_pairs;
    bool               neox  = c->model->kind->rope_neox;
    for (uint32_t task = index; task < c->now->n_col * l->n_head_kv; task += n) {
        uint32_t     col = task / l->n_head_kv, head = task % l->n_head_kv;
        const float *turn = c->cos_sin + (size_t)n_rot * col;
        float       *k = column(c, BUF_K, col) + (size_t)head * dk;
        float       *q = column(c, o->src, col) + (size_t)head * n_rep * dk;
        vector_rope(c->level, k, turn, n_rot, neox);
        for (uint32_t i = 0; i < n_rep; i++) vector_rope(c->level, q + (size_t)i * dk, turn, n_rot, neox);
        int64_t  at   = column_position(c, col);
        uint32_t page = kv_page_of(c->now->runs[c->col_run[col]].seq, at / KV_PAGE);
        attend_store(c->level, &kv->shape, kv_k_page(c->kv, o->layer, page, head), kv_v_page(c->kv, o->layer, page, head),
                     (uint32_t)(at % KV_PAGE), k, column(c, BUF_V, col) + (size_t)head * dv);
    }
}

/* A block of queries: columns of one run times heads that share a KV head. */
typedef struct query_block {
    const pass_run *run;
    uint32_t        first_col, n_col;
    uint32_t        head_kv, first_head, n_head;
    uint32_t        layer;
} query_block;

static void attend_range(cpu_machine *c, const query_block *b, const attend_work *w, int64_t from, int64_t to, bool causal) {
    uint32_t n_q = b->n_col * b->n_head;
    for (int64_t page = from / KV_PAGE; page * KV_PAGE < to; page++) {
        int64_t base = page * KV_PAGE;
        for (uint32_t i = 0; i < n_q; i++) {
            int64_t end = causal && w->position[i] + 1 < to ? w->position[i] + 1 : to;
            w->first[i] = from > base ? (uint32_t)(from - base) : 0;
            w->last[i]  = end <= base ? 0 : end - base < KV_PAGE ? (uint32_t)(end - base) : KV_PAGE;
        }
        uint32_t at = kv_page_of(b->run->seq, page);
        attend_page(c->level, &c->kv->layers[b->layer].shape, n_q, w->q, w->states, w->first, w->last,
                    kv_k_page(c->kv, b->layer, at, b->head_kv), kv_v_page(c->kv, b->layer, at, b->head_kv), w->scratch);
    }
}

/* The sinks as the queries see them from n_dropped positions earlier: turning a turned query back is one more turn. */
static void attend_sinks(cpu_machine *c, const query_block *b, attend_work *w, uint32_t run_index) {
    const attend_shape *shape = &c->kv->layers[b->layer].shape;
    uint32_t            n_q = b->n_col * b->n_head, n_rot = 2 * c->prog->rope.n_pairs;
    for (uint32_t i = 0; i < n_q; i++) {
        float *turned = w->turned + (size_t)i * shape->head_dim_k;
        memcpy(turned, w->q[i], shape->head_dim_k * sizeof(float));
        vector_rope(c->level, turned, c->sink_turn + (size_t)n_rot * run_index, n_rot, c->model->kind->rope_neox);
        w->q[i] = turned;
    }
    attend_range(c, b, w, 0, b->run->seq->n_sinks, false);
}

static void attend_block(cpu_machine *c, const op *o, const query_block *b, attend_work *w) {
    const kv_seq *seq = b->run->seq;
    uint32_t      dk = c->kv->layers[b->layer].shape.head_dim_k, dv = c->kv->layers[b->layer].shape.head_dim_v;
    uint32_t      n_q = 0;
    for (uint32_t i = 0; i < b->n_col; i++)
        for (uint32_t h = 0; h < b->n_head; h++, n_q++) {
            w->q[n_q]        = column(c, o->src, b->first_col + i) + (size_t)(b->first_head + h) * dk;
            w->position[n_q] = column_position(c, b->first_col + i);
            attend_begin(&w->states[n_q], w->acc + (size_t)n_q * dv, dv);
        }
    attend_range(c, b, w, kv_window_start(seq), w->position[n_q - 1] + 1, true);
    if (seq->n_dropped) attend_sinks(c, b, w, (uint32_t)(b->run - c->now->runs));
    for (uint32_t i = 0; i < n_q; i++)
        attend_end(&w->states[i], column(c, o->dst[0], b->first_col + i / b->n_head) + (size_t)(b->first_head + i % b->n_head) * dv,
                   dv);
}

static void op_attend(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const model_layer *l     = &c->model->layers[o->layer];
    uint32_t           n_rep = l->n_head / l->n_head_kv, cols = attend_columns(n_rep);
    attend_work        w;
    attend_layout(&w, &c->kv->layers[o->layer].shape, n_rep * cols, c->own + index * c->own_stride);
    atomic_int32 *counter = &c->counters[o - c->prog->ops];
    uint32_t      taken   = pool_take(counter), before = 0;
    for (uint32_t r = 0; r < c->now->n_run; r++) {
        const pass_run *run    = &c->now->runs[r];
        uint32_t        blocks = (run->n_col + cols - 1) / cols;
        /* Few columns: the heads of a group part, so that every thread has some. */
        uint32_t parts = blocks * l->n_head_kv >= 2 * n ? 1 : (uint32_t)size_min(n_rep, 2 * n);
        uint32_t tasks = blocks * l->n_head_kv * parts;
        while (taken < before + tasks) {
            uint32_t    t = taken - before, part = t % parts, block = blocks - 1 - t / parts / l->n_head_kv;  /* the longest first */
            query_block b;
            b.run        = run;
            b.layer      = o->layer;
            b.head_kv    = t / parts % l->n_head_kv;
            b.first_col  = run->first_col + block * cols;
            b.n_col      = (uint32_t)size_min(cols, run->n_col - block * cols);
            b.first_head = b.head_kv * n_rep + n_rep * part / parts;
            b.n_head     = b.head_kv * n_rep + n_rep * (part + 1) / parts - b.first_head;
            attend_block(c, o, &b, &w);
            taken = pool_take(counter);
        }
        before += tasks;
    }
}

/* Gathered columns lie at or behind their place, so that copying in order overwrites none that is still wanted. */
static void op_gather(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    buffer_id both[2];
    both[0] = o->src;
    both[1] = o->dst[0];
    for (uint32_t b = index; b < 2; b += n)
        for (uint32_t i = 0; i < c->now->n_out; i++)
            if (c->out_col[i] != i)
                memcpy(column(c, both[b], i), column(c, both[b], c->out_col[i]), c->prog->width[both[b]] * sizeof(float));
}

static const op_fn op_fns[OP_KIND_COUNT] = {op_embed, op_norm, op_matmul, op_store, op_attend, op_gather};

/* ---- Running ---- */

static void cpu_task(void *arg, uint32_t index, uint32_t n) {
    cpu_machine *c = (cpu_machine *)arg;
    for (uint32_t i = c->op_first; i < c->op_last; i++) {
        const op *o = &c->prog->ops[i];
        if (o->gathered && n_columns(columns_of(c, o)) == 0) return;   /* no logits are wanted; the same for all threads */
        op_fns[o->kind](c, o, index, n);
        /* All threads must stop at the same row, so the row's number is what is published in front of the barrier: one
         * thread may be a row ahead when another reads it. */
        if (index == 0 && c->cancelled && c->cancelled(c->cancelled_user)) atomic_store_relaxed(&c->stop_at, (int32_t)i);
        pool_barrier(c->threads);
        if (atomic_load_relaxed(&c->stop_at) <= (int32_t)i) return;
    }
}

static nova_result cpu_run(cpu_machine *c, uint32_t first, uint32_t last) {
    c->op_first = first;
    c->op_last  = last;
    for (uint32_t i = first; i < last; i++) atomic_store_relaxed(&c->counters[i], 0);
    atomic_store_relaxed(&c->stop_at, INT32_MAX);
    pool_run(c->threads, cpu_task, c);
    return atomic_load_relaxed(&c->stop_at) == INT32_MAX ? NOVA_OK : NOVA_CANCELLED;
}

static nova_result cpu_body(cpu_machine *c, const pass *p) {
    c->now     = p;
    c->x_first = 0;
    split_columns(c, p);
    return cpu_run(c, 0, c->prog->n_body);
}

static nova_result cpu_head(cpu_machine *c, uint32_t first, uint32_t n) {
    const column_split *out = &c->out;
    c->x_first = first;
    c->window.n_narrow = c->window.n_wide = 0;
    for (uint32_t i = 0; i < n_columns(out); i++) {
        uint32_t col = column_at(out, i);
        if (col >= first && col < first + n) split_add(&c->window, col - first, i < out->n_narrow);
    }
    return cpu_run(c, c->prog->n_body, c->prog->n_ops);
}

/* ==== src/sample.h ============================================================================================ */

/* Chooses the next token from logits, by the settings of nova_sampler.
 *
 * The choice depends on the logits, the settings and the seed alone, not on the machine: probabilities are integers,
 * made from each logit by three operations on floats that every machine rounds alike, and sums of integers have no
 * order. */
#ifndef NOVA_SAMPLE_H
#define NOVA_SAMPLE_H


#define SAMPLE_RECENT 64   /* nova_sampler.repeat_last 0 */

typedef struct sampler {
    nova_sampler set;
    uint64_t     random;       /* splitmix64's state (Steele, Lea, Flood 2014); at the start the seed */
    uint32_t     n_vocab;

    /* While picking. The order is by logit, equal ones by id, the likeliest first. */
    const float *logits;       /* penalised */
    float        top;
    float        octaves;      /* of probability, in fixed point, per unit of logit: log2(e) / temperature */
    uint32_t     n_ids;        /* candidates in `ids` */

    /* Scratch, the caller's. */
    float       *penalised;    /* [n_vocab] */
    uint32_t    *ids;          /* [n_vocab], ascending */
    int32_t     *block_key;    /* greatest key of a block of logits */
    uint64_t    *block_sum;    /* sum of its weights */
    uint64_t    *bins;
    uint64_t    *powers;       /* of two, see sample.c */
} sampler;

/* Bytes of scratch, for sampler_place to divide; aligned to 16. */
static size_t sampler_bytes(uint32_t n_vocab);
static void   sampler_place(sampler *s, void *scratch, uint32_t n_vocab);

/* Takes over settings. The random numbers go on; a caller who wants them anew restarts. Errors: ARGUMENT (a value that
 * is no number or out of its range), UNSUPPORTED (a vocabulary of over 2^24 tokens); then the old settings stay. */
static nova_result sampler_set(sampler *s, const nova_sampler *settings, nova_error *error);
static void        sampler_restart(sampler *s);

/* Chooses among n_vocab logits. `recent` are the text's last tokens; those that repeat_last covers are penalised, each
 * once. A logit of -infinity is never chosen. Every choice takes one random number, whatever it leaves to chance; a
 * greedy one takes none. Errors: NUMBER (a NaN, +infinity, or nothing but -infinity). */
static nova_result sampler_pick(sampler *s, const float *logits, const int32_t *recent, size_t n_recent, int32_t *id,
                                nova_error *error);

#endif

/* ==== src/sample.c ============================================================================================ */

/* Choosing a token: see sample.h.
 *
 * Every step keeps a start of the same order, so a step is a cut: all logits above one, and the first few that equal
 * it. Cuts are found without sorting, by histograms over ever narrower ranges, and after a first look at the greatest
 * logit of each block, which tells most blocks to be of no interest. */

#define SAMPLE_BLOCK   64u
#define SAMPLE_BINS    2048u
#define KEY_INFINITY   0x7f800000

/* ---- Logits as integers in the same order: -0 equals 0; a NaN lies beyond one of the infinities ---- */

NOVA_INLINE int32_t key_of(float x) {
    uint32_t bits = load_u32(&x), sign = 0u - (bits >> 31);
    return (int32_t)(((bits & 0x7fffffffu) ^ sign) - sign);
}

static float value_of_key(int32_t key) {
    uint32_t bits = key < 0 ? 0x80000000u | (0u - (uint32_t)key) : (uint32_t)key;
    return load_f32(&bits);
}

/* ---- Probabilities as integers ----
 *
 * The likeliest token weighs WEIGHT_ONE, one that is t octaves less likely 2^-t of it: a power from a table, between
 * its entries a straight line, which is off by less than 2^-21. Weights never grow where logits fall. */

#define POWER_BITS     9u    /* of t's fraction that choose an entry */
#define FRACTION_BITS  25u   /* of t in all: more than a float has */
#define WEIGHT_BITS    39u
#define WEIGHT_ONE     ((uint64_t)1 << WEIGHT_BITS)
#define ONE_OCTAVE     33554432.0f   /* 2^FRACTION_BITS */
#define MOST_OCTAVES   (40 * ONE_OCTAVE)   /* and then it weighs nothing */
#define MOST_VOCAB     (1u << (63 - WEIGHT_BITS))   /* so that sums do not overflow */
#define N_POWERS       (1u << POWER_BITS)

/* No exact value lies within 0.002 of the middle between two integers, so every C library gives the same one. */
static uint64_t power_30(uint32_t i) { return (uint64_t)floor(exp2(30.0 - (double)i / N_POWERS) + 0.5); }

/* An entry has the power above and its distance from the next one below. */
static void fill_powers(uint64_t *powers) {
    for (uint32_t i = 0; i < N_POWERS; i++) powers[i] = power_30(i) << 32 | (power_30(i) - power_30(i + 1));
}

/* t, as a fixed-point number */
NOVA_INLINE int32_t octaves_of(float top, float octaves, float logit) {
    float t = (top - logit) * octaves;
    return (int32_t)(t < MOST_OCTAVES ? t : MOST_OCTAVES);   /* also infinity times 0 */
}

NOVA_INLINE uint64_t weight_at(const uint64_t *powers, int32_t t) {
    uint32_t u     = (uint32_t)t;
    uint64_t entry = powers[(u >> (FRACTION_BITS - POWER_BITS)) & (N_POWERS - 1)];
    uint64_t line  = (entry & 0xffffffffu) * (uint32_t)(u << (32 - (FRACTION_BITS - POWER_BITS)));
    return (entry - line) >> (62 - WEIGHT_BITS + (u >> FRACTION_BITS));
}

static uint64_t weight_of(const sampler *s, float logit) {
    return weight_at(s->powers, octaves_of(s->top, s->octaves, logit));
}

static uint64_t sum_of(const sampler *s) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n_ids; i++) sum += weight_of(s, s->logits[s->ids[i]]);
    return sum;
}

/* The least key of at least this weight, which is above 0. */
static int32_t key_of_weight(const sampler *s, uint64_t wanted) {
    int32_t low = -KEY_INFINITY, high = key_of(s->top);   /* the answer is above low, up to high */
    while ((int64_t)high - low > 1) {
        int32_t middle = (int32_t)(((int64_t)high + low) / 2);
        if (weight_of(s, value_of_key(middle)) >= wanted) high = middle;
        else low = middle;
    }
    return high;
}

/* ---- Opening ---- */

static uint32_t n_blocks(uint32_t n_vocab) { return n_vocab / SAMPLE_BLOCK + (n_vocab % SAMPLE_BLOCK != 0); }

/* Wide elements first, so that each array is aligned. With base NULL only how much it is. */
static size_t sampler_layout(sampler *s, uint8_t *base, uint32_t n_vocab) {
    size_t sums   = n_blocks(n_vocab) * sizeof *s->block_sum, bins = SAMPLE_BINS * sizeof *s->bins;
    size_t powers = N_POWERS * sizeof *s->powers, keys = n_blocks(n_vocab) * sizeof *s->block_key;
    size_t ids    = n_vocab * sizeof *s->ids, penalised = n_vocab * sizeof *s->penalised;
    if (base) {
        s->block_sum = (uint64_t *)(void *)base;
        s->bins      = (uint64_t *)(void *)(base + sums);
        s->powers    = (uint64_t *)(void *)(base + sums + bins);
        s->block_key = (int32_t *)(void *)(base + sums + bins + powers);
        s->ids       = (uint32_t *)(void *)(base + sums + bins + powers + keys);
        s->penalised = (float *)(void *)(base + sums + bins + powers + keys + ids);
    }
    return sums + bins + powers + keys + ids + penalised;
}

static size_t sampler_bytes(uint32_t n_vocab) { return sampler_layout(NULL, NULL, n_vocab); }

static void sampler_place(sampler *s, void *scratch, uint32_t n_vocab) {
    memset(s, 0, sizeof *s);
    s->n_vocab = n_vocab;
    sampler_layout(s, (uint8_t *)scratch, n_vocab);
    fill_powers(s->powers);
}

static nova_result check_setting(const char *name, float value, float most, nova_error *error) {
    bool number = (load_u32(&value) & 0x7f800000u) != 0x7f800000u;
    if (number && value >= 0 && value <= most) return NOVA_OK;
    if (most == FLT_MAX)
        return fail(error, NOVA_ERROR_ARGUMENT, "sampler.%s is %g, not a finite number from 0 on", name, (double)value);
    return fail(error, NOVA_ERROR_ARGUMENT, "sampler.%s is %g, not from 0 to %g", name, (double)value, (double)most);
}

static nova_result sampler_set(sampler *s, const nova_sampler *settings, nova_error *error) {
    if (s->n_vocab > MOST_VOCAB)
        return fail(error, NOVA_ERROR_UNSUPPORTED, "a vocabulary of %u tokens, more than %u", s->n_vocab, MOST_VOCAB);
    nova_result r = check_setting("temperature", settings->temperature, FLT_MAX, error);
    if (r == NOVA_OK) r = check_setting("top_p", settings->top_p, 1, error);
    if (r == NOVA_OK) r = check_setting("min_p", settings->min_p, 1, error);
    if (r == NOVA_OK) r = check_setting("repeat_penalty", settings->repeat_penalty, FLT_MAX, error);
    if (r == NOVA_OK) s->set = *settings;
    return r;
}

static void sampler_restart(sampler *s) { s->random = s->set.seed; }

/* ---- Random numbers ---- */

static uint64_t random_next(sampler *s) {
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* From 0 to n - 1: the upper half of the product of n and a random number. No value is off by more than 2^-64. */
static uint64_t random_below(sampler *s, uint64_t n) {
    uint64_t r = random_next(s), r0 = (uint32_t)r, r1 = r >> 32, n0 = (uint32_t)n, n1 = n >> 32;
    uint64_t middle = r1 * n0 + (r0 * n0 >> 32), other = r0 * n1 + (uint32_t)middle;
    return r1 * n1 + (middle >> 32) + (other >> 32);
}

/* ---- Penalty ---- */

static void penalise(sampler *s, const float *logits, const int32_t *recent, size_t n_recent) {
    float  penalty = s->set.repeat_penalty;
    size_t last    = s->set.repeat_last ? s->set.repeat_last : SAMPLE_RECENT;
    s->logits = logits;
    if (penalty == 0 || penalty == 1 || n_recent == 0) return;
    memcpy(s->penalised, logits, s->n_vocab * sizeof *logits);
    s->logits = s->penalised;
    for (size_t i = n_recent - size_min(last, n_recent); i < n_recent; i++) {
        if (recent[i] < 0 || (uint32_t)recent[i] >= s->n_vocab) continue;
        float x = logits[recent[i]];   /* not the copy: a token that is recent twice is penalised once */
        if ((load_u32(&x) & 0x7f800000u) == 0x7f800000u) continue;
        x = x > 0 ? x / penalty : x * penalty;
        s->penalised[recent[i]] = key_of(x) == KEY_INFINITY ? FLT_MAX : x;
    }
}

/* ---- The first look: the greatest logit of each block and of all ---- */

static int32_t block_scan(const float *x, uint32_t n, int32_t *least) {
    int32_t most[16], low[16];
    for (uint32_t j = 0; j < 16; j++) most[j] = INT32_MIN, low[j] = INT32_MAX;
    for (; n >= 16; n -= 16, x += 16)
        for (uint32_t j = 0; j < 16; j++) {   /* compilers make vectors of this */
            int32_t key = key_of(x[j]);
            most[j] = key > most[j] ? key : most[j];
            low[j]  = key < low[j] ? key : low[j];
        }
    for (uint32_t j = 0; j < n; j++) {
        int32_t key = key_of(x[j]);
        most[j] = key > most[j] ? key : most[j];
        low[j]  = key < low[j] ? key : low[j];
    }
    for (uint32_t j = 1; j < 16; j++) {
        most[0] = most[j] > most[0] ? most[j] : most[0];
        low[0]  = low[j] < low[0] ? low[j] : low[0];
    }
    *least = low[0];
    return most[0];
}

static uint32_t block_length(const sampler *s, uint32_t block) {
    return (uint32_t)size_min(SAMPLE_BLOCK, s->n_vocab - (size_t)block * SAMPLE_BLOCK);
}

static nova_result not_a_logit(const sampler *s, nova_error *error) {
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        int32_t key = key_of(s->logits[i]);
        if (key >= KEY_INFINITY || key < -KEY_INFINITY)
            return fail(error, NOVA_ERROR_NUMBER, "the logit of token %u is %s", i,
                        key == KEY_INFINITY ? "infinite" : "no number");
    }
    return fail(error, NOVA_ERROR_NUMBER, "no token has a logit above -infinity");
}

static nova_result look(sampler *s, nova_error *error) {
    int32_t most = INT32_MIN, least = INT32_MAX;
    for (uint32_t b = 0; b < n_blocks(s->n_vocab); b++) {
        int32_t low, key = block_scan(s->logits + b * SAMPLE_BLOCK, block_length(s, b), &low);
        s->block_key[b] = key;
        most  = key > most ? key : most;
        least = low < least ? low : least;
    }
    if (most >= KEY_INFINITY || most <= -KEY_INFINITY || least < -KEY_INFINITY) return not_a_logit(s, error);
    s->top = value_of_key(most);
    return NOVA_OK;
}

static int32_t likeliest(const sampler *s) {
    uint32_t b = 0, i = 0;
    int32_t  key = key_of(s->top);
    while (s->block_key[b] != key) b++;
    while (key_of(s->logits[b * SAMPLE_BLOCK + i]) != key) i++;
    return (int32_t)(b * SAMPLE_BLOCK + i);
}

/* ---- Cuts ---- */

/* All tokens whose key is at least this become candidates. */
static void gather(sampler *s, int32_t least) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < n_blocks(s->n_vocab); b++) {
        if (s->block_key[b] < least) continue;
        uint32_t first = b * SAMPLE_BLOCK, end = first + block_length(s, b);
        for (uint32_t i = first; i < end; i++) {
            s->ids[n] = i;
            n += key_of(s->logits[i]) >= least;
        }
    }
    s->n_ids = n;
}

/* Keeps the candidates above a key, and of those that have it the first `ties`. */
static void keep(sampler *s, int32_t key, uint64_t ties) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_ids; i++) {
        int32_t k = key_of(s->logits[s->ids[i]]);
        if (k < key || (k == key && ties == 0)) continue;
        if (k == key) ties--;
        s->ids[n++] = s->ids[i];
    }
    s->n_ids = n;
}

/* What counts in a cut: tokens, or their weights. */
static uint64_t measure(const sampler *s, bool by_weight, float logit) {
    return by_weight ? weight_of(s, logit) : 1;
}

/* Keeps the shortest start of the order that measures at least `target`, which is above 0 and at most the candidates'
 * sum; none of them has a key below `low`. */
static void cut(sampler *s, bool by_weight, uint64_t target, int32_t low) {
    int64_t high = key_of(s->top), least = low;
    while (least < high) {
        uint32_t shift = 0, bin = 0;
        while ((high - least) >> shift >= SAMPLE_BINS) shift++;
        memset(s->bins, 0, SAMPLE_BINS * sizeof *s->bins);
        for (uint32_t i = 0; i < s->n_ids; i++) {
            float   logit = s->logits[s->ids[i]];
            int64_t key   = key_of(logit);
            if (key >= least && key <= high) s->bins[(high - key) >> shift] += measure(s, by_weight, logit);
        }
        for (; s->bins[bin] < target; bin++) target -= s->bins[bin];
        high -= (int64_t)bin << shift;
        if (high - ((int64_t)1 << shift) + 1 > least) least = high - ((int64_t)1 << shift) + 1;
    }
    uint64_t each = measure(s, by_weight, value_of_key((int32_t)high));
    keep(s, (int32_t)high, (target + each - 1) / each);
}

/* A key that at least k tokens reach, most often few more: the kth greatest of all blocks' greatest. */
static int32_t bound_of_count(sampler *s, uint32_t k) {
    uint32_t blocks = n_blocks(s->n_vocab);
    if (k > blocks) return -KEY_INFINITY;
    int64_t least = -KEY_INFINITY, high = key_of(s->top);
    while (least < high) {   /* the greatest key that k blocks reach, by halves */
        int64_t  middle = high - (high - least) / 2;
        uint32_t n = 0;
        for (uint32_t b = 0; b < blocks; b++) n += s->block_key[b] >= middle;
        if (n >= k) least = middle;
        else high = middle - 1;
    }
    return (int32_t)least;
}

/* In two steps, of which compilers make vectors of the first. */
static uint64_t block_weight(const sampler *s, const float *logits) {
    float    top = s->top, octaves = s->octaves;
    int32_t  t[SAMPLE_BLOCK];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SAMPLE_BLOCK; i++) t[i] = octaves_of(top, octaves, logits[i]);
    for (uint32_t i = 0; i < SAMPLE_BLOCK; i++) sum += weight_at(s->powers, t[i]);
    return sum;
}

/* The sum of all tokens' weights, and of each block's. */
static uint64_t sum_all(sampler *s) {
    uint64_t sum = 0;
    for (uint32_t b = 0; b < n_blocks(s->n_vocab); b++) {
        const float *logits = s->logits + b * SAMPLE_BLOCK;
        uint64_t     n      = 0;
        if (block_length(s, b) == SAMPLE_BLOCK) n = block_weight(s, logits);
        else for (uint32_t i = 0; i < block_length(s, b); i++) n += weight_of(s, logits[i]);
        s->block_sum[b] = n;
        sum += n;
    }
    return sum;
}

static uint64_t share_of(double p, uint64_t sum) {
    uint64_t share = (uint64_t)ceil(p * (double)sum);
    return share < 1 ? 1 : share > sum ? sum : share;
}

/* ---- Picking ---- */

/* The candidate in whose share of the sum `at` lies. */
static int32_t pick_candidate(const sampler *s, uint64_t at) {
    uint32_t i = 0;
    for (uint64_t w; (w = weight_of(s, s->logits[s->ids[i]])) <= at; i++) at -= w;
    return (int32_t)s->ids[i];
}

static int32_t pick_of_all(sampler *s) {
    uint64_t at = random_below(s, sum_all(s));
    uint32_t b  = 0;
    for (; s->block_sum[b] <= at; b++) at -= s->block_sum[b];
    s->n_ids = block_length(s, b);
    for (uint32_t i = 0; i < s->n_ids; i++) s->ids[i] = b * SAMPLE_BLOCK + i;
    return pick_candidate(s, at);
}

static void apply_top_k(sampler *s) {
    int32_t low = bound_of_count(s, s->set.top_k);
    gather(s, low);
    cut(s, false, s->set.top_k, low);
}

/* Those who weigh less than the average of what may be left out would, all together, still be left out. */
static void apply_top_p(sampler *s, bool gathered) {
    double   p      = (double)s->set.top_p;
    uint64_t sum    = gathered ? sum_of(s) : sum_all(s), target = share_of(p, sum);
    uint64_t spare  = (sum - target) / s->n_vocab;
    int32_t  low    = key_of_weight(s, spare ? spare : 1);
    if (gathered) keep(s, low, UINT64_MAX);
    else gather(s, low);
    cut(s, true, target, low);
}

static int32_t pick(sampler *s) {
    double   octaves = 1.4426950408889634 * (double)ONE_OCTAVE / (double)s->set.temperature;
    bool     top_k = s->set.top_k > 0 && s->set.top_k < s->n_vocab, top_p = s->set.top_p > 0 && s->set.top_p < 1;
    s->octaves = octaves < (double)FLT_MAX ? (float)octaves : FLT_MAX;
    if (!top_k && !top_p && s->set.min_p == 0) return pick_of_all(s);
    if (top_k) apply_top_k(s);
    if (top_p) apply_top_p(s, top_k);
    int32_t low = key_of_weight(s, share_of((double)s->set.min_p, WEIGHT_ONE));
    if (top_k || top_p) keep(s, low, UINT64_MAX);
    else gather(s, low);
    return pick_candidate(s, random_below(s, sum_of(s)));
}

static nova_result sampler_pick(sampler *s, const float *logits, const int32_t *recent, size_t n_recent, int32_t *id,
                                nova_error *error) {
    penalise(s, logits, recent, n_recent);
    nova_result r = look(s, error);
    if (r == NOVA_OK) *id = s->set.temperature == 0 ? likeliest(s) : pick(s);
    s->logits = NULL;
    return r;
}

/* ==== src/engine.h ============================================================================================ */

/* An engine: a compiled program, the executor's memory, the pool of cache pages, the threads. All taken when it opens. */
#ifndef NOVA_ENGINE_H
#define NOVA_ENGINE_H


/* Everything that a descriptor and its defaults come to. */
typedef struct engine_plan {
    uint32_t  n_ctx, n_sessions, n_batch, n_logits, n_threads;
    uint32_t  type_k, type_v;          /* tensor_type */
    cpu_level level;
} engine_plan;

struct nova_engine {
    host              h;
    const nova_model *model;
    engine_plan       plan;
    arena             a;               /* program and tables */
    program           prog;
    kv_pool           kv;
    cpu_machine       cpu;
    pool             *threads;
    uint8_t          *cache, *scratch; /* as allocated; used from the next multiple of 64 on */
    size_t            cache_bytes, scratch_bytes;
    uint32_t          n_open;          /* sessions */

    /* The pass that is being put together. */
    pass              now;
    int32_t          *ids;             /* [n_batch] */
    pass_run         *runs;            /* [n_sessions] */
    nova_session    **run_sessions;    /* [n_sessions] */
};

#endif

/* ==== src/engine.c ============================================================================================ */

/* Opening and closing engines: defaults, sizes, memory. See engine.h. */

#define DEFAULT_CONTEXT  4096
#define DEFAULT_BATCH    512
#define DEFAULT_THREADS  16
#define SMALLEST_BATCH   32
#define BATCH_BYTES      ((size_t)14 << 20)   /* that default batches keep their buffers within */
#define LOGIT_BYTES      ((size_t)6 << 20)
#define MOST_LOGITS      32

/* ---- From a descriptor to numbers ---- */

static const struct { nova_cache_type cache; uint32_t type; } cache_types[] = {
    {NOVA_CACHE_F16, TYPE_F16},
    {NOVA_CACHE_F32, TYPE_F32},
};

static nova_result plan_cache(nova_cache_type cache, uint32_t *type, nova_error *error) {
    for (size_t i = 0; i < COUNT_OF(cache_types); i++)
        if (cache_types[i].cache == cache) {
            *type = cache_types[i].type;
            return NOVA_OK;
        }
    return fail(error, NOVA_ERROR_ARGUMENT, "cache type %d is not known", (int)cache);
}

static nova_result plan_device(const char *device, nova_error *error) {
    if (!device || !strcmp(device, "auto") || !strcmp(device, "cpu")) return NOVA_OK;
    if (!strncmp(device, "gpu", 3)) return fail(error, NOVA_ERROR_DEVICE, "device '%s': this version runs on the CPU alone", device);
    return fail(error, NOVA_ERROR_ARGUMENT, "device '%s' is none of auto, cpu, gpu, gpu:N", device);
}

/* Bytes that one more column costs in the executor's buffers. */
static size_t column_bytes(const program *p) {
    size_t floats = 2 * (size_t)p->rope.n_pairs, widest = 0;
    for (int b = 0; b < BUF_LOGITS; b++) {
        floats += p->width[b];
        widest = size_max(widest, p->width[b]);
    }
    return floats * sizeof(float) + widest * 2;   /* and its quantised form */
}

static nova_result engine_plan_make(engine_plan *plan, const nova_model *m, const nova_engine_desc *d, nova_error *error) {
    memset(plan, 0, sizeof *plan);
    if (m->vocab_only) return fail(error, NOVA_ERROR_ARGUMENT, "the model was opened for its vocabulary alone");
    if (d->n_ctx == 1) return fail(error, NOVA_ERROR_ARGUMENT, "a context of 1 token holds no token and its successor: 2 is the least");
    if (d->n_ctx > 1u << 30) return fail(error, NOVA_ERROR_ARGUMENT, "a context of %u tokens is beyond %u", d->n_ctx, 1u << 30);
    if (d->n_sessions > 65536) return fail(error, NOVA_ERROR_ARGUMENT, "%u sessions are beyond 65536", d->n_sessions);
    if (d->n_threads > 1024) return fail(error, NOVA_ERROR_ARGUMENT, "%u threads are beyond 1024", d->n_threads);
    TRY(plan_device(d->device, error));
    TRY(plan_cache(d->cache_k, &plan->type_k, error));
    TRY(plan_cache(d->cache_v, &plan->type_v, error));
    plan->n_ctx      = d->n_ctx ? d->n_ctx : (uint32_t)size_max(2, size_min(m->n_ctx_train, DEFAULT_CONTEXT));
    plan->n_sessions = d->n_sessions ? d->n_sessions : 1;
    plan->n_threads  = d->n_threads ? d->n_threads : (uint32_t)size_min(cpu_cores(), DEFAULT_THREADS);
    plan->level      = cpu_level_of(cpu_features() & ~d->cpu_without);
    plan->n_logits   = (uint32_t)size_max(1, size_min(MOST_LOGITS, LOGIT_BYTES / sizeof(float) / m->n_vocab));
    return NOVA_OK;
}

static void plan_batch(engine_plan *plan, const nova_engine_desc *d, const program *p) {
    size_t n = d->n_batch;
    if (n == 0) {
        n = size_min(DEFAULT_BATCH, BATCH_BYTES / column_bytes(p) / 8 * 8);
        n = size_max(n, SMALLEST_BATCH);
    }
    n = size_min(n, (size_t)plan->n_ctx * plan->n_sessions);
    plan->n_batch  = (uint32_t)size_max(n, plan->n_sessions);   /* a column for each session at least */
    plan->n_logits = (uint32_t)size_min(plan->n_logits, plan->n_batch);
}

/* ---- The pieces ---- */

/* Sizes of pages; memory comes later. */
static nova_result cache_measure(nova_engine *e, nova_error *error) {
    const nova_model *m    = e->model;
    kv_pool          *kv   = &e->kv;
    size_t            pages, total = 0, bytes;
    kv->n_layer = m->n_layer;
    kv->layers  = (kv_layer *)arena_zalloc(&e->a, m->n_layer * sizeof(kv_layer));
    if (!kv->layers) return fail_memory(error, m->n_layer * sizeof(kv_layer), "the cache's layers");
    bool fits = size_mul(kv_pages_for(e->plan.n_ctx), e->plan.n_sessions, &pages) && pages < UINT32_MAX;
    for (uint32_t il = 0; fits && il < m->n_layer; il++) {
        kv_layer *l = &kv->layers[il];
        l->n_head_kv        = m->layers[il].n_head_kv;
        l->shape.head_dim_k = m->head_dim_k;
        l->shape.head_dim_v = m->head_dim_v;
        l->shape.type_k     = e->plan.type_k;
        l->shape.type_v     = e->plan.type_v;
        l->shape.scale      = m->attn_scale;
        l->shape.soft_cap   = 0.0f;
        l->k_bytes          = attend_k_page_bytes(&l->shape);
        l->v_bytes          = attend_v_page_bytes(&l->shape);
        l->page_bytes       = l->n_head_kv * (l->k_bytes + l->v_bytes);
        fits = size_mul(l->page_bytes, pages, &bytes) && size_add(total, bytes, &total);
    }
    if (!fits || !size_add(total, CACHE_LINE, &total))
        return fail(error, NOVA_ERROR_ARGUMENT, "a cache for %u sessions of %u tokens is beyond this machine's addresses",
                    e->plan.n_sessions, e->plan.n_ctx);
    kv->n_pages  = (uint32_t)pages;
    e->cache_bytes = total;
    return NOVA_OK;
}

static uint8_t *line_aligned(uint8_t *p) { return p + (CACHE_LINE - (uintptr_t)p % CACHE_LINE) % CACHE_LINE; }

static nova_result cache_take(nova_engine *e, nova_error *error) {
    kv_pool *kv = &e->kv;
    e->cache         = (uint8_t *)mem_alloc(&e->h, e->cache_bytes);
    kv->free_pages = (uint32_t *)arena_alloc(&e->a, kv->n_pages * sizeof(uint32_t));
    if (!e->cache || !kv->free_pages) return fail_memory(error, e->cache_bytes, "the cache");
    uint8_t *at = line_aligned(e->cache);
    for (uint32_t il = 0; il < kv->n_layer; il++) {
        kv->layers[il].pages = at;
        at += kv->layers[il].page_bytes * kv->n_pages;
    }
    for (uint32_t i = 0; i < kv->n_pages; i++) kv->free_pages[i] = kv->n_pages - 1 - i;   /* page 0 goes first */
    kv->n_free = kv->n_pages;
    return NOVA_OK;
}

/* Where the executor's and the pass's memory lies; with base NULL only how much it is. */
static size_t scratch_layout(nova_engine *e, uint8_t *base) {
    cpu_machine *c = &e->cpu;
    c->level     = e->plan.level;
    c->model     = e->model;
    c->prog      = &e->prog;
    c->kv        = &e->kv;
    c->n_batch   = e->plan.n_batch;
    c->n_seqs    = e->plan.n_sessions;
    c->n_logits  = e->plan.n_logits;
    c->n_threads = e->plan.n_threads;
    size_t at = cpu_layout(c, base);
    e->ids          = (int32_t *)(void *)carve(base, &at, c->n_batch * sizeof(int32_t));
    e->runs         = (pass_run *)(void *)carve(base, &at, c->n_seqs * sizeof(pass_run));
    e->run_sessions = (nova_session **)(void *)carve(base, &at, c->n_seqs * sizeof(nova_session *));
    return at;
}

/* Everything that needs no memory to speak of: program and sizes. */
static nova_result engine_measure(nova_engine *e, const nova_engine_desc *d, nova_error *error) {
    TRY(engine_plan_make(&e->plan, e->model, d, error));
    TRY(program_build(&e->prog, &e->a, e->model, e->plan.n_ctx, error));
    plan_batch(&e->plan, d, &e->prog);
    TRY(cache_measure(e, error));
    e->scratch_bytes = scratch_layout(e, NULL) + CACHE_LINE;
    return NOVA_OK;
}

static nova_result engine_take(nova_engine *e, const nova_engine_desc *d, nova_error *error) {
    TRY(cache_take(e, error));
    e->scratch = (uint8_t *)mem_alloc(&e->h, e->scratch_bytes);
    if (!e->scratch) return fail_memory(error, e->scratch_bytes, "the engine's buffers");
    scratch_layout(e, line_aligned(e->scratch));
    TRY(pool_open(&e->threads, &e->h, e->plan.n_threads, d->parallel, d->parallel_user, error));
    e->cpu.threads = e->threads;
    return NOVA_OK;
}

/* ---- The interface ---- */

static const char *const cpu_level_names[CPU_LEVELS] = {"plain", "avx2", "avx512"};

NOVA_API void nova_get_cpu_info(nova_cpu_info *info) {
    info->features = cpu_features();
    info->level    = cpu_level_names[cpu_level_of(info->features)];
    info->n_cores  = cpu_cores();
}

static nova_engine *engine_new(const nova_model *m, const nova_engine_desc *d, nova_error *error) {
    host h = host_init(d->alloc ? d->alloc : m->h.alloc, d->alloc ? d->alloc_user : m->h.alloc_user,
                       d->log ? d->log : m->h.log, d->log ? d->log_user : m->h.log_user);
    nova_engine *e = (nova_engine *)mem_zalloc(&h, sizeof *e);
    if (!e) {
        fail_memory(error, sizeof *e, "the engine");
        return NULL;
    }
    e->h     = h;
    e->model = m;
    arena_init(&e->a, &e->h);
    return e;
}

NOVA_API nova_engine *nova_engine_open(nova_model *model, const nova_engine_desc *desc, nova_error *error) {
    nova_engine_desc none;
    memset(&none, 0, sizeof none);
    if (!model) return NULL;   /* the error of the failed open stands */
    if (!desc) desc = &none;
    error_clear(error);
    nova_engine *e = engine_new(model, desc, error);
    if (!e) return NULL;
    float_mode  mode   = float_mode_enter();   /* for the rotary frequencies */
    nova_result result = engine_measure(e, desc, error);
    float_mode_leave(mode);
    if (result != NOVA_OK || engine_take(e, desc, error) != NOVA_OK) {
        nova_engine_close(e);
        return NULL;
    }
    if (e->plan.n_ctx > model->n_ctx_train)
        log_text(&e->h, NOVA_LOG_WARNING, "a context of %u tokens, but the model was trained for %u: text may degrade beyond",
                 e->plan.n_ctx, model->n_ctx_train);
    return e;
}

NOVA_API void nova_engine_close(nova_engine *engine) {
    if (!engine) return;
    host h = engine->h;
    pool_close(engine->threads);
    mem_free(&h, engine->cache, engine->cache_bytes);
    mem_free(&h, engine->scratch, engine->scratch_bytes);
    arena_free(&engine->a);
    mem_free(&h, engine, sizeof *engine);
}

NOVA_API void nova_engine_get_info(const nova_engine *engine, nova_engine_info *info) {
    memset(info, 0, sizeof *info);
    info->n_ctx         = engine->plan.n_ctx;
    info->n_sessions    = engine->plan.n_sessions;
    info->n_batch       = engine->plan.n_batch;
    info->n_threads     = engine->plan.n_threads;
    info->cache_bytes   = engine->cache_bytes;
    info->scratch_bytes = engine->scratch_bytes;
    info->cpu           = cpu_level_names[engine->plan.level];
    info->device        = "cpu";
    info->n_ops         = engine->prog.n_ops;
}

NOVA_API nova_result nova_engine_size(const nova_model *model, const nova_engine_desc *desc, nova_engine_info *info,
                                      nova_error *error) {
    nova_engine_desc none;
    memset(&none, 0, sizeof none);
    if (!model || !info) return fail(error, NOVA_ERROR_ARGUMENT, "nova_engine_size: an argument is NULL");
    if (!desc) desc = &none;
    error_clear(error);
    nova_engine *e = engine_new(model, desc, error);
    if (!e) return NOVA_ERROR_MEMORY;
    nova_result result = engine_measure(e, desc, error);
    if (result == NOVA_OK) nova_engine_get_info(e, info);
    nova_engine_close(e);
    return result;
}

/* ==== src/session.c =========================================================================================== */

/* Sessions: feeding, choosing, scoring, batches. The public interface over an engine.
 *
 * A chosen token is not evaluated at once but by the call that needs what follows it: it is `pending` until then, so that
 * several sessions' tokens can go in one pass, and the last token of an answer costs nothing. */

#define DEFAULT_SINKS  4
#define NO_TOKEN       (-1)

struct nova_session {
    nova_engine      *engine;
    nova_session_desc desc;
    uint32_t          n_sinks;
    kv_seq            seq;
    int32_t          *ids;        /* the held tokens, evaluated ones: [n_ctx] */
    uint64_t          hash;       /* over all tokens evaluated since the start */
    int32_t           pending;    /* chosen, not evaluated, or NO_TOKEN */
    bool              has_logits; /* `logits` are those behind the last evaluated token */
    float            *logits;     /* [n_vocab] */
    sampler           sample;
    char             *text;       /* of the last token, terminated */
    size_t            text_size;
    char              held_back[4];   /* the start of a character whose rest is to come */
    size_t            n_held_back;
    atomic_int32      cancel;
    size_t            bytes;      /* of this block */
};

/* ---- Opening ---- */

/* The session and everything it owns, in one block; with base NULL only how much it is. */
static size_t session_layout(nova_session *s, uint8_t *base, const nova_engine *e) {
    size_t at = 0, n_ctx = e->plan.n_ctx, n_vocab = e->model->n_vocab;
    carve(base, &at, sizeof *s);
    uint32_t *table  = (uint32_t *)(void *)carve(base, &at, kv_pages_for(e->plan.n_ctx) * sizeof(uint32_t));
    int32_t  *ids    = (int32_t *)(void *)carve(base, &at, n_ctx * sizeof(int32_t));
    float    *logits = (float *)(void *)carve(base, &at, n_vocab * sizeof(float));
    uint8_t  *scratch = carve(base, &at, sampler_bytes((uint32_t)n_vocab));
    size_t    text_size = tokenizer_max_piece(e->model->tok) + 8;   /* and what is held back, and an end */
    char     *text   = (char *)carve(base, &at, text_size);
    if (!base) return at;
    s->seq.table    = table;
    s->seq.capacity = kv_pages_for(e->plan.n_ctx);
    s->ids          = ids;
    s->logits       = logits;
    s->text         = text;
    s->text_size    = text_size;
    sampler_place(&s->sample, scratch, (uint32_t)n_vocab);
    return at;
}

static nova_result session_check(const nova_engine *e, const nova_session_desc *d, uint32_t *n_sinks, nova_error *error) {
    if (e->n_open >= e->plan.n_sessions)
        return fail(error, NOVA_ERROR_ARGUMENT, "the engine was opened for %u sessions, all of which are open", e->plan.n_sessions);
    *n_sinks = d->n_sinks == NOVA_NO_SINKS ? 0 : d->n_sinks ? d->n_sinks : DEFAULT_SINKS;
    if (d->limit != NOVA_LIMIT_SLIDE) return NOVA_OK;
    if (d->n_sinks == 0) *n_sinks = (uint32_t)size_min(*n_sinks, e->plan.n_ctx / 4);   /* the default yields to a tiny context */
    if (*n_sinks > e->plan.n_ctx - 2)
        return fail(error, NOVA_ERROR_ARGUMENT, "%u sinks leave no window in a context of %u tokens", *n_sinks, e->plan.n_ctx);
    return NOVA_OK;
}

NOVA_API nova_session *nova_session_open(nova_engine *engine, const nova_session_desc *desc, nova_error *error) {
    nova_session_desc none;
    memset(&none, 0, sizeof none);
    if (!engine) return NULL;   /* the error of the failed open stands */
    if (!desc) desc = &none;
    error_clear(error);
    uint32_t n_sinks = 0;
    if (session_check(engine, desc, &n_sinks, error) != NOVA_OK) return NULL;
    size_t   bytes = session_layout(NULL, NULL, engine) + CACHE_LINE;
    uint8_t *block = (uint8_t *)mem_zalloc(&engine->h, bytes);
    if (!block) {
        fail_memory(error, bytes, "a session");
        return NULL;
    }
    nova_session *s = (nova_session *)(void *)block;
    session_layout(s, block, engine);
    s->engine  = engine;
    s->desc    = *desc;
    s->bytes   = bytes;
    s->n_sinks = n_sinks;
    s->seq.n_sinks = n_sinks;
    if (sampler_set(&s->sample, &desc->sampler, error) != NOVA_OK) {
        mem_free(&engine->h, block, bytes);
        return NULL;
    }
    engine->n_open++;
    nova_session_reset(s);
    return s;
}

NOVA_API void nova_session_close(nova_session *session) {
    if (!session) return;
    nova_engine *e = session->engine;
    kv_truncate(&e->kv, &session->seq, 0);
    e->n_open--;
    mem_free(&e->h, session, session->bytes);
}

NOVA_API void nova_session_reset(nova_session *session) {
    if (!session) return;
    kv_truncate(&session->engine->kv, &session->seq, 0);
    session->pending     = NO_TOKEN;
    session->has_logits  = false;
    session->hash        = 0;
    session->n_held_back = 0;
    sampler_restart(&session->sample);
}

NOVA_API nova_result nova_session_set_sampler(nova_session *session, const nova_sampler *settings, nova_error *error) {
    if (!session || !settings) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_set_sampler: an argument is NULL");
    error_clear(error);
    TRY(sampler_set(&session->sample, settings, error));
    sampler_restart(&session->sample);
    return NOVA_OK;
}

/* A session that is NULL because an open failed: that error stands. */
static nova_result no_session(nova_error *error) {
    if (error && error->code < 0) return error->code;
    return fail(error, NOVA_ERROR_ARGUMENT, "there is no session");
}

/* ---- Evaluating ---- */

static uint64_t hash_ids(uint64_t hash, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    return hash;
}

static bool pass_cancelled(void *user) {
    const nova_engine *e = (const nova_engine *)user;
    for (uint32_t i = 0; i < e->now.n_run; i++)
        if (atomic_load_relaxed(&e->run_sessions[i]->cancel)) return true;
    return false;
}

/* Consumes a session's wish to be cancelled. */
static bool take_cancel(nova_session *s) { return atomic_exchange(&s->cancel, 0) != 0; }

static void pass_begin(nova_engine *e) {
    memset(&e->now, 0, sizeof e->now);
    e->now.ids  = e->ids;
    e->now.runs = e->runs;
    e->cpu.cancelled      = pass_cancelled;
    e->cpu.cancelled_user = e;
}

/* Adds a session's tokens to the pass: the pending one, if there is one, and n others. The last n_out of them get logits.
 * Their pages are reserved. */
static void pass_add(nova_engine *e, nova_session *s, const int32_t *ids, uint32_t n, uint32_t n_out) {
    pass_run *run = &e->runs[e->now.n_run];
    run->seq       = &s->seq;
    run->first_col = e->now.n_col;
    run->first_out = e->now.n_out;
    run->n_out     = n_out;
    if (s->pending != NO_TOKEN) e->ids[e->now.n_col++] = s->pending;
    if (n) memcpy(e->ids + e->now.n_col, ids, n * sizeof *ids);
    e->now.n_col += n;
    e->now.n_out += n_out;
    run->n_col = e->now.n_col - run->first_col;
    e->run_sessions[e->now.n_run++] = s;
}

/* The body of the pass has run: its tokens are now part of their sessions. */
static void pass_commit(nova_engine *e) {
    for (uint32_t i = 0; i < e->now.n_run; i++) {
        nova_session   *s   = e->run_sessions[i];
        const pass_run *run = &e->runs[i];
        const int32_t  *ids = e->ids + run->first_col;
        memcpy(s->ids + kv_held(&s->seq), ids, run->n_col * sizeof *ids);
        s->hash = hash_ids(s->hash, ids, run->n_col);
        s->seq.n_tokens += run->n_col;
        s->pending    = NO_TOKEN;
        s->has_logits = false;
    }
}

/* The logits of every gathered column, window by window. `fn` NULL: into the sessions. */
static nova_result pass_logits(nova_engine *e, nova_logits_fn fn, void *user, size_t first_index) {
    size_t n_vocab = e->model->n_vocab;
    for (uint32_t r = 0, at = 0; at < e->now.n_out;) {
        uint32_t n = (uint32_t)size_min(e->plan.n_logits, e->now.n_out - at);
        TRY(cpu_head(&e->cpu, at, n));
        for (uint32_t i = 0; i < n; i++) {
            const float *logits = e->cpu.buf[BUF_LOGITS] + i * n_vocab;
            while (at + i >= e->runs[r].first_out + e->runs[r].n_out) r++;
            nova_session *s = e->run_sessions[r];
            if (at + i + 1 == e->runs[r].first_out + e->runs[r].n_out) {
                memcpy(s->logits, logits, n_vocab * sizeof *logits);
                s->has_logits = true;
            }
            if (fn && !fn(user, first_index + at + i, logits)) return NOVA_CANCELLED;
        }
        at += n;
    }
    return NOVA_OK;
}

/* ---- Room ---- */

/* Drops so many of a sliding session's tokens that n further ones fit. */
static void slide(nova_session *s, uint32_t n) {
    int64_t  n_ctx = s->engine->plan.n_ctx, held = kv_held(&s->seq), window = held - s->n_sinks;
    int64_t  over  = held + n - n_ctx;
    if (over <= 0) return;
    /* In blocks of a page, so that the prompt's start is not dropped a token at a time; a tiny window goes by quarters. */
    int64_t block = (int64_t)size_min(KV_PAGE, (size_t)(n_ctx - s->n_sinks + 3) / 4);
    int64_t drop  = (over + block - 1) / block * block;
    if (drop >= window) drop = over;
    kv_drop(&s->engine->kv, &s->seq, (uint32_t)drop);
    memmove(s->ids + s->n_sinks, s->ids + s->n_sinks + drop, (size_t)(window - drop) * sizeof *s->ids);
}

/* Most tokens that go into one pass of a session: a sliding one must keep part of its window in front of them. */
static uint32_t most_at_once(const nova_session *s) {
    const engine_plan *p = &s->engine->plan;
    if (s->desc.limit != NOVA_LIMIT_SLIDE) return p->n_batch;
    return (uint32_t)size_max(1, size_min(p->n_batch, (p->n_ctx - s->n_sinks) / 2));
}

static nova_result check_room(const nova_session *s, int64_t held, size_t n, nova_error *error) {
    uint32_t n_ctx = s->engine->plan.n_ctx;
    if (s->desc.limit == NOVA_LIMIT_SLIDE || (uint64_t)held + n <= n_ctx) return NOVA_OK;
    if (held == 0)
        return fail(error, NOVA_ERROR_CONTEXT_FULL, "%zu tokens do not fit the context of %u", n, n_ctx);
    return fail(error, NOVA_ERROR_CONTEXT_FULL, "%zu more tokens behind %lld do not fit the context of %u", n, (long long)held,
                n_ctx);
}

static nova_result check_ids(const nova_session *s, const int32_t *ids, size_t n, nova_error *error) {
    uint32_t n_vocab = s->engine->model->n_vocab;
    if (!ids || n == 0) return fail(error, NOVA_ERROR_ARGUMENT, "there are no tokens to evaluate");
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
            return fail(error, NOVA_ERROR_ARGUMENT, "token %zu is %d, not 0 to %u", i, ids[i], n_vocab - 1);
    return NOVA_OK;
}

/* Room for n tokens in the cache, which a sliding session makes. */
static nova_result reserve(nova_session *s, uint32_t n, nova_error *error) {
    TRY(check_room(s, kv_held(&s->seq), n, error));
    slide(s, n);
    if (kv_reserve(&s->engine->kv, &s->seq, n)) return NOVA_OK;
    return fail(error, NOVA_ERROR_CONTEXT_FULL, "no cache page is left for %u tokens", n);
}

/* ---- Feeding ---- */

typedef struct feed {
    const int32_t *ids;
    size_t         n;
    nova_logits_fn fn;      /* NULL: logits of the last token only, into the session */
    void          *user;
} feed;

static nova_result not_a_number(const nova_session *s, nova_error *error) {
    return fail(error, NOVA_ERROR_NUMBER, "the logits behind token %lld are no finite numbers", (long long)s->seq.n_tokens - 1);
}

/* One pass: the pending token, if there is one, and some of the ids. *taken is how many of these. */
static nova_result feed_pass(nova_session *s, const feed *f, size_t at, size_t *taken, nova_error *error) {
    nova_engine *e       = s->engine;
    uint32_t     pending = s->pending != NO_TOKEN;
    uint32_t     n       = (uint32_t)size_min(f->n - at, most_at_once(s) - pending);
    TRY(reserve(s, n + pending, error));
    pass_begin(e);
    pass_add(e, s, f->ids + at, n, f->fn ? n : at + n == f->n);
    if (cpu_body(&e->cpu, &e->now) != NOVA_OK) return fail(error, NOVA_CANCELLED, "cancelled");
    pass_commit(e);
    *taken = n;
    if (pass_logits(e, f->fn, f->user, at) != NOVA_OK) return fail(error, NOVA_CANCELLED, "cancelled");
    if (s->has_logits && !vector_finite(e->cpu.level, s->logits, e->model->n_vocab)) {
        s->has_logits = false;
        return not_a_number(s, error);
    }
    return NOVA_OK;
}

static nova_result feed_all(nova_session *s, const feed *f, nova_error *error) {
    for (size_t at = 0, taken = 0; at < f->n; at += taken) {
        if (take_cancel(s)) return fail(error, NOVA_CANCELLED, "cancelled");
        nova_result result = feed_pass(s, f, at, &taken, error);
        if (result == NOVA_CANCELLED) take_cancel(s);
        if (result != NOVA_OK) return result;
        if (s->desc.progress && !s->desc.progress(s->desc.progress_user, "prompt", at + taken, f->n))
            return fail(error, NOVA_CANCELLED, "cancelled");
    }
    return NOVA_OK;
}

static nova_result feed_checked(nova_session *s, const int32_t *ids, size_t n, nova_logits_fn fn, void *user, nova_error *error) {
    if (!s) return no_session(error);
    error_clear(error);
    TRY(check_ids(s, ids, n, error));
    TRY(check_room(s, kv_held(&s->seq), n + (s->pending != NO_TOKEN), error));
    feed f;
    f.ids  = ids;
    f.n    = n;
    f.fn   = fn;
    f.user = user;
    s->n_held_back = 0;   /* what comes now is another text than the token that was cut */
    return feed_all(s, &f, error);
}

NOVA_API nova_result nova_session_feed(nova_session *session, const int32_t *ids, size_t n, nova_error *error) {
    return feed_checked(session, ids, n, NULL, NULL, error);
}

NOVA_API nova_result nova_session_score(nova_session *session, const int32_t *ids, size_t n, nova_logits_fn fn, void *user,
                                        nova_error *error) {
    if (!fn) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_score: no function for the logits");
    return feed_checked(session, ids, n, fn, user, error);
}

/* ---- Setting ---- */

/* How many of the ids the cache holds already as their start, and must keep. */
static size_t common_start(const nova_session *s, const int32_t *ids, size_t n) {
    size_t held = (size_t)kv_held(&s->seq), total = (size_t)s->seq.n_tokens, common = 0;
    if (s->seq.n_dropped) return n > total && hash_ids(0, ids, total) == s->hash ? total : 0;
    while (common < held && common < n && s->ids[common] == ids[common]) common++;
    return common;
}

NOVA_API nova_result nova_session_set(nova_session *session, const int32_t *ids, size_t n, nova_error *error) {
    nova_session *s = session;
    if (!s) return no_session(error);
    error_clear(error);
    TRY(check_ids(s, ids, n, error));
    TRY(check_room(s, 0, n, error));
    size_t common = common_start(s, ids, n);
    s->pending = NO_TOKEN;
    if (common == n && (int64_t)n == s->seq.n_tokens && s->has_logits) return NOVA_OK;
    if (common == n) common--;   /* the last token's logits are wanted */
    if ((int64_t)common < s->seq.n_tokens) {
        kv_truncate(&s->engine->kv, &s->seq, (int64_t)common);
        s->hash       = hash_ids(0, ids, common);
        s->has_logits = false;
    }
    return feed_checked(s, ids + common, n - common, NULL, NULL, error);
}

NOVA_API nova_result nova_session_chat(nova_session *session, const nova_chat *chat, nova_error *error) {
    nova_session *s = session;
    if (!s) return no_session(error);
    const nova_model *m = s->engine->model;
    size_t            n = 0;
    nova_error        ignored;
    nova_result result = nova_chat_tokenize(m, chat, NULL, 0, &n, error ? error : &ignored);
    if (result != NOVA_ERROR_TOO_SMALL) return result == NOVA_OK ? check_ids(s, NULL, 0, error) : result;
    int32_t *ids = (int32_t *)mem_alloc(&s->engine->h, n * sizeof *ids);
    if (!ids) return fail_memory(error, n * sizeof *ids, "the conversation's tokens");
    size_t capacity = n;
    result = nova_chat_tokenize(m, chat, ids, capacity, &n, error);
    if (result == NOVA_OK) result = nova_session_set(s, ids, n, error);
    mem_free(&s->engine->h, ids, capacity * sizeof *ids);
    return result;
}

/* ---- Choosing ---- */

/* Appends a token's bytes to what was held back, and lets whole characters out. */
static void next_text(nova_session *s, int32_t id, bool end, nova_token *token) {
    size_t n = s->n_held_back;
    memcpy(s->text, s->held_back, n);
    n += tokenizer_piece(s->engine->model->tok, id, false, false, s->text + n, s->text_size - n - 1);
    s->n_held_back = end ? 0 : utf8_incomplete_tail(s->text, n);
    n -= s->n_held_back;
    memcpy(s->held_back, s->text + n, s->n_held_back);
    s->text[n]    = 0;
    token->id     = id;
    token->n_text = n;
    token->text   = s->text;
}

static nova_result choose(nova_session *s, nova_token *token, nova_error *error) {
    size_t  held   = (size_t)kv_held(&s->seq);
    size_t  wanted = s->sample.set.repeat_last ? s->sample.set.repeat_last : SAMPLE_RECENT;
    size_t  recent = size_min(held, wanted);
    int32_t id     = NO_TOKEN;
    float_mode mode = float_mode_enter();
    nova_result result = sampler_pick(&s->sample, s->logits, s->ids + held - recent, recent, &id, error);
    float_mode_leave(mode);
    if (result != NOVA_OK) return result;
    s->pending = id;
    bool end = !s->desc.ignore_end && tokenizer_is_end(s->engine->model->tok, id);
    next_text(s, id, end, token);
    return end ? NOVA_END : NOVA_OK;
}

/* Is the session ready to choose once its pending token is evaluated? Reserves the room for that. */
static nova_result prepare_next(nova_session *s, nova_error *error) {
    if (take_cancel(s)) return fail(error, NOVA_CANCELLED, "cancelled");
    if (s->pending == NO_TOKEN)
        return s->has_logits ? NOVA_OK : fail(error, NOVA_ERROR_ARGUMENT, "nothing was fed yet that a token could follow");
    return reserve(s, 1, error);
}

/* Logits of a pass whose tokens are part of their sessions now: they come in any case, so that no session is left between. */
static void finish_pass(nova_engine *e, nova_session *const *sessions, size_t n, nova_result *results) {
    e->cpu.cancelled = NULL;
    pass_logits(e, NULL, NULL, 0);
    for (size_t i = 0; i < n; i++)
        if (results[i] == NOVA_OK && !vector_finite(e->cpu.level, sessions[i]->logits, e->model->n_vocab)) {
            sessions[i]->has_logits = false;
            results[i] = NOVA_ERROR_NUMBER;
        }
}

/* Evaluates the pending tokens of all sessions whose result is OK, in one pass. A cancelled session leaves the pass, which
 * is then run again for the others. */
static void evaluate_pending(nova_session *const *sessions, size_t n, nova_result *results) {
    nova_engine *e = sessions[0]->engine;
    for (;;) {
        pass_begin(e);
        for (size_t i = 0; i < n; i++)
            if (results[i] == NOVA_OK && sessions[i]->pending != NO_TOKEN) pass_add(e, sessions[i], NULL, 0, 1);
        if (e->now.n_run == 0) return;
        if (cpu_body(&e->cpu, &e->now) == NOVA_OK) break;
        for (size_t i = 0; i < n; i++)
            if (results[i] == NOVA_OK && take_cancel(sessions[i])) results[i] = NOVA_CANCELLED;
    }
    pass_commit(e);
    finish_pass(e, sessions, n, results);
}

/* The error of a result that came out of a pass. */
static nova_result pass_error(const nova_session *s, nova_result result, nova_error *error) {
    return result == NOVA_ERROR_NUMBER ? not_a_number(s, error) : fail(error, result, "%s", nova_result_text(result));
}

static nova_result next_checked(nova_session *const *sessions, size_t n, nova_token *tokens, nova_result *results,
                                nova_error *error) {
    nova_result first = NOVA_OK;   /* the first session's that failed, whose error is told */
    error_clear(error);
    for (size_t i = 0; i < n; i++) {
        memset(&tokens[i], 0, sizeof tokens[i]);
        tokens[i].id   = NO_TOKEN;
        tokens[i].text = "";
        results[i] = prepare_next(sessions[i], first == NOVA_OK ? error : NULL);
        if (first == NOVA_OK) first = results[i];
    }
    evaluate_pending(sessions, n, results);
    for (size_t i = 0; i < n; i++) {
        nova_error *where = first == NOVA_OK ? error : NULL;
        if (results[i] == NOVA_OK) results[i] = choose(sessions[i], &tokens[i], where);
        else if (first == NOVA_OK) pass_error(sessions[i], results[i], where);
        if (first == NOVA_OK && results[i] != NOVA_END) first = results[i];
    }
    return first;
}

NOVA_API nova_result nova_session_next_batch(nova_session *const *sessions, size_t n, nova_token *tokens,
                                             nova_result *results, nova_error *error) {
    if (!sessions || !n || !tokens || !results) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_next_batch: an argument is NULL");
    for (size_t i = 0; i < n; i++) {
        if (!sessions[i] || sessions[i]->engine != sessions[0]->engine)
            return fail(error, NOVA_ERROR_ARGUMENT, "session %zu is NULL or of another engine", i);
        for (size_t j = 0; j < i; j++)
            if (sessions[j] == sessions[i]) return fail(error, NOVA_ERROR_ARGUMENT, "sessions %zu and %zu are the same", j, i);
    }
    return next_checked(sessions, n, tokens, results, error);
}

NOVA_API nova_result nova_session_next(nova_session *session, nova_token *token, nova_error *error) {
    if (!session) return no_session(error);
    if (!token) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_next: no place for the token");
    nova_result result;
    nova_result first = next_checked(&session, 1, token, &result, error);
    return first == NOVA_OK ? result : first;
}

NOVA_API const float *nova_session_logits(nova_session *session, nova_error *error) {
    if (!session) return NULL;
    error_clear(error);
    nova_result result = prepare_next(session, error);
    if (result == NOVA_OK && session->pending != NO_TOKEN) {
        evaluate_pending(&session, 1, &result);
        if (result != NOVA_OK) pass_error(session, result, error);
    }
    return result == NOVA_OK ? session->logits : NULL;
}

NOVA_API void nova_session_cancel(nova_session *session) {
    if (session) atomic_store_release(&session->cancel, 1);
}

NOVA_API void nova_session_get_info(const nova_session *session, nova_session_info *info) {
    info->n_tokens  = (uint64_t)session->seq.n_tokens + (session->pending != NO_TOKEN);
    info->n_dropped = (uint64_t)session->seq.n_dropped;
    info->n_ctx     = session->engine->plan.n_ctx;
}

#ifndef NOVA_TEST_STAYS   /* a test that wants its own code compiled by the same rules */
#if defined(__clang__)
#if defined(__x86_64__) || defined(__FAST_MATH__) || __FINITE_MATH_ONLY__
#pragma float_control(pop)
#endif
#elif defined(_MSC_VER)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma pop_macro("__FAST_MATH__")
#pragma GCC pop_options
#endif
#endif
