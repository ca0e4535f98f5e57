/* Pages of the cache on the CPU: the keys and values of KV_PAGE tokens of one KV head.
 *
 * K lies transposed, [head_dim][KV_PAGE], so that 16 tokens' scores come from one multiply-add; V lies [KV_PAGE][head_dim].
 * F32 and F16 are plain. Q8_0 and Q4_0 quantise every 32 dimensions of a token by a scale of their own, a half, as GGUF's types of
 * these names do; the codes lie as above, the scales behind them:
 *   K: codes [head_dim][KV_PAGE], scales [blocks][KV_PAGE]; Q4_0: token t in the low half of byte t, t + 32 in its high half.
 *   V: codes [KV_PAGE][blocks][32], scales [KV_PAGE][blocks]; Q4_0: dimension j of a block in the low half of byte j, j + 16 in
 *      its high half. The last block's dimensions that are not there are 0. */
#ifndef NOVA_CPU_PAGE_H
#define NOVA_CPU_PAGE_H

#include "cpu_vector.h"

#define KV_PAGE 64

/* F32 or F16; else Q8_0 or Q4_0. */
static bool   page_is_plain(uint32_t type);
static size_t page_k_bytes(uint32_t type, uint32_t head_dim);   /* multiples of 64 */
static size_t page_v_bytes(uint32_t type, uint32_t head_dim);

/* For a quantised type: spreads a head's outliers over its dimensions, in place, by Walsh-Hadamard transforms of 2^k dimensions, as
 * large as fit one behind the other (QuaRot, arXiv 2404.00456). It is its own inverse and keeps inner products: keys and queries are
 * both spread, and values, whose weighted sums are spread back. */
static void page_spread(uint32_t type, float *x, uint32_t head_dim);

/* Puts a token's floats into slot t. What no finite number of the type holds becomes NaN (Q8_0, Q4_0: its whole block). */
static void page_store_k(cpu_level level, uint32_t type, void *page, uint32_t head_dim, uint32_t t, const float *k);
static void page_store_v(cpu_level level, uint32_t type, void *page, uint32_t head_dim, uint32_t t, const float *v);

/* All of a page as floats, laid out alike; `scratch` (KV_PAGE * head_dim floats), or the page itself where it is F32. Every level
 * gives the same bits. */
static const float *page_k_floats(cpu_level level, uint32_t type, const void *page, uint32_t head_dim, float *scratch);
static const float *page_v_floats(cpu_level level, uint32_t type, const void *page, uint32_t head_dim, float *scratch);

#endif
