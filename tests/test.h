/* What every test uses: checks that count, a seeded random generator, the closing line. */
#ifndef NOVA_TEST_H
#define NOVA_TEST_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Microsoft's long double is a double; a C library of another dialect would take the 80-bit one. */
#ifdef _MSC_VER
#define erfcl erfc
#define expl exp
#define fabsl fabs
#define frexpl frexp
#define ldexpl ldexp
#define sqrtl sqrt
#define tanhl tanh
#endif

static int      test_passed, test_failed, test_skipped;
static uint64_t test_seed;

/* One check. On failure it prints where and what, and the test goes on. */
#define CHECK(condition, ...)                                                                   \
    do {                                                                                        \
        if (condition) {                                                                        \
            test_passed++;                                                                      \
        } else {                                                                                \
            test_failed++;                                                                      \
            if (test_failed <= 50) {                                                            \
                printf("%s:%d: FAILED: %s: ", __FILE__, __LINE__, #condition);                  \
                printf(__VA_ARGS__);                                                            \
                printf("\n");                                                                   \
            }                                                                                   \
        }                                                                                       \
    } while (0)

#define SKIP(...)                                                                               \
    do {                                                                                        \
        test_skipped++;                                                                         \
        printf("%s:%d: skipped: ", __FILE__, __LINE__);                                         \
        printf(__VA_ARGS__);                                                                    \
        printf("\n");                                                                           \
    } while (0)

/* Takes the seed from NOVA_SEED, or from `fallback`, and prints it. */
static inline void test_begin(uint64_t fallback) {
    const char *given = getenv("NOVA_SEED");
    test_seed = given ? strtoull(given, NULL, 0) : fallback;
    printf("seed %llu\n", (unsigned long long)test_seed);
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t test_random(void) {
    uint64_t z = (test_seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t test_below(uint32_t n) { return (uint32_t)(test_random() % n); }
static inline float    test_uniform(void) { return (float)((double)(test_random() >> 11) / 4503599627370496.0 - 1.0); }  /* -1..1 */

static inline int test_end(void) {
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed != 0;
}

#endif
