/* Chooses the next token from logits, by the settings of nova_sampler.
 *
 * The choice depends on the logits, the settings and the seed alone, not on the machine: probabilities are integers,
 * made from each logit by three operations on floats that every machine rounds alike, and sums of integers have no
 * order. */
#ifndef NOVA_SAMPLE_H
#define NOVA_SAMPLE_H

#include "base.h"

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
