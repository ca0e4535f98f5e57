/* Faults on purpose. An allocator that counts, fails the call that it is told to, and notices a wrong old_size,
 * pointers that are not its own, writes behind a block's end, and leaks; and nova's hook for calls of the system.
 * Include it before nova.c. The loop that finds every way to fail (SQLite's):
 *
 *     for (long n = 1;; n++) {
 *         faults f;
 *         faults_init(&f, n);
 *         ... run with alloc = faults_alloc, alloc_user = &f; check that a failure is reported as one ...
 *         long failed = f.failed;
 *         CHECK(faults_end(&f) == 0, "%s", f.first_error);
 *         if (!failed) break;
 *     }
 */
#ifndef NOVA_FAULTS_H
#define NOVA_FAULTS_H

/* What nova.c would tell the system's headers, were it the first to include them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#if defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1
#endif

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The hook: NOVA_FAULT("map"), "read", "thread", "mutex" ---- */

typedef struct fault_hook { const char *kind; long at, seen, hits; } fault_hook;
static fault_hook fault_armed;

/* The `at`-th call of the kind from now fails, counted from 1. NULL: none any more. */
static inline void fault_arm(const char *kind, long at) {
    fault_armed.kind = kind;
    fault_armed.at   = at;
    fault_armed.seen = fault_armed.hits = 0;
}

static inline int fault_hit(const char *kind) {
    if (!fault_armed.kind || strcmp(kind, fault_armed.kind) != 0 || ++fault_armed.seen != fault_armed.at) return 0;
    fault_armed.hits++;
    return 1;
}

#define NOVA_FAULT(kind) fault_hit(kind)

/* ---- The allocator ---- */

#if defined(__SANITIZE_ADDRESS__)
#define FAULTS_GUARD 0   /* the sanitizer sees what is written behind the end */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAULTS_GUARD 0
#endif
#endif
#ifndef FAULTS_GUARD
#define FAULTS_GUARD 16
#endif

typedef struct faults_block { unsigned char *p; size_t size; } faults_block;

typedef struct faults {
    long          calls;         /* that asked for memory */
    long          fail_at;       /* this one fails, counted from 1; 0: none */
    int           fail_on;       /* and all behind it */
    size_t        most;          /* bytes alive at one time that are granted; 0: no limit */
    long          failed;        /* how many did */
    size_t        n_live, bytes_live, bytes_peak;
    long          errors;
    char          first_error[120];
    faults_block *blocks;
    size_t        cap;
    volatile long busy;
} faults;

static inline void faults_lock(faults *f) {
#if defined(__GNUC__) || defined(__clang__)
    while (__atomic_exchange_n(&f->busy, 1, __ATOMIC_ACQUIRE)) { }
#else
    while (_InterlockedExchange(&f->busy, 1)) { }
#endif
}

static inline void faults_unlock(faults *f) {
#if defined(__GNUC__) || defined(__clang__)
    __atomic_store_n(&f->busy, 0, __ATOMIC_RELEASE);
#else
    _InterlockedExchange(&f->busy, 0);
#endif
}

static inline void faults_init(faults *f, long fail_at) {
    memset(f, 0, sizeof *f);
    f->fail_at = fail_at;
}

static inline void faults_error(faults *f, const char *what, size_t a, size_t b) {
    if (f->errors++ == 0) snprintf(f->first_error, sizeof f->first_error, "%s (%llu, %llu)", what,
                                   (unsigned long long)a, (unsigned long long)b);
}

/* Where the block stands in the list; f->n_live when it is not ours. The youngest is asked first. */
static inline size_t faults_find(const faults *f, const void *p) {
    for (size_t i = f->n_live; i-- > 0;)
        if (f->blocks[i].p == p) return i;
    return f->n_live;
}

static inline void faults_check_guard(faults *f, const faults_block *b) {
    for (size_t i = 0; i < FAULTS_GUARD; i++)
        if (b->p[b->size + i] != 0xFD) {
            faults_error(f, "written behind a block's end: size, at", b->size, i);
            return;
        }
}

static inline void faults_drop(faults *f, size_t i) {
    faults_check_guard(f, &f->blocks[i]);
    f->bytes_live -= f->blocks[i].size;
    memset(f->blocks[i].p, 0xDD, f->blocks[i].size);
    free(f->blocks[i].p);
    f->blocks[i] = f->blocks[--f->n_live];
}

static inline void *faults_add(faults *f, size_t size) {
    if (f->n_live == f->cap) {
        f->cap    = f->cap ? 2 * f->cap : 256;
        f->blocks = (faults_block *)realloc(f->blocks, f->cap * sizeof *f->blocks);
    }
    unsigned char *p = size < SIZE_MAX - FAULTS_GUARD ? (unsigned char *)malloc(size + FAULTS_GUARD) : NULL;
    if (!p) return NULL;
    memset(p, 0xA5, size);
    memset(p + size, 0xFD, FAULTS_GUARD);
    f->blocks[f->n_live].p      = p;
    f->blocks[f->n_live++].size = size;
    f->bytes_live += size;
    if (f->bytes_live > f->bytes_peak) f->bytes_peak = f->bytes_live;
    return p;
}

static inline int faults_refuses(faults *f, size_t old_size, size_t new_size) {
    f->calls++;
    int no = f->fail_at && (f->calls == f->fail_at || (f->fail_on && f->calls > f->fail_at));
    no     = no || (f->most && f->bytes_live - old_size + new_size > f->most);
    if (no) f->failed++;
    return no;
}

/* Under the lock. A block always moves when it is resized, so that stale pointers show. */
static inline void *faults_serve(faults *f, void *pointer, size_t old_size, size_t new_size) {
    size_t i = pointer ? faults_find(f, pointer) : f->n_live;
    if (pointer && i == f->n_live) {
        faults_error(f, "freed twice or not ours: old_size, new_size", old_size, new_size);
        return NULL;
    }
    if (pointer && f->blocks[i].size != old_size) faults_error(f, "wrong old_size: given, real", old_size,
                                                               f->blocks[i].size);
    if (!pointer && old_size != 0) faults_error(f, "old_size without a block", old_size, new_size);
    size_t real = pointer ? f->blocks[i].size : 0;
    if (new_size == 0) {
        if (pointer) faults_drop(f, i);
        return NULL;
    }
    if (faults_refuses(f, real, new_size)) return NULL;
    void *p = faults_add(f, new_size);
    if (p && pointer) {
        memcpy(p, pointer, real < new_size ? real : new_size);
        faults_drop(f, i);
    }
    return p;
}

/* A nova_alloc_fn; `user` is the faults. */
static inline void *faults_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    faults *f = (faults *)user;
    faults_lock(f);
    void *p = faults_serve(f, pointer, old_size, new_size);
    faults_unlock(f);
    return p;
}

/* The number of errors; every block that is still alive is one. Frees everything; first_error stays readable. */
static inline long faults_end(faults *f) {
    if (f->n_live) faults_error(f, "leaked: blocks, bytes", f->n_live, f->bytes_live);
    while (f->n_live) faults_drop(f, f->n_live - 1);
    free(f->blocks);
    f->blocks = NULL;
    f->cap    = 0;
    return f->errors;
}

#endif
