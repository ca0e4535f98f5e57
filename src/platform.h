/* The system: threads, atomics, time, files, the processor's features, floating-point modes. */
#ifndef NOVA_PLATFORM_H
#define NOVA_PLATFORM_H

#include "base.h"

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

/* ---- Libraries found at run time ---- */

typedef void (*any_function)(void);

/* By its system name ("libvulkan.so.1", "vulkan-1.dll"), through the system's own search path; NULL: not there. */
NOVA_UNUSED static void        *library_open(const char *name);
NOVA_UNUSED static any_function library_function(void *library, const char *name);   /* NULL: it has none */
NOVA_UNUSED static void         library_close(void *library);

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
