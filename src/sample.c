/* Choosing a token: see sample.h.
 *
 * Every step keeps a start of the same order, so a step is a cut: all logits above one, and the first few that equal
 * it. Cuts are found without sorting, by histograms over ever narrower ranges, and after a first look at the greatest
 * logit of each block, which tells most blocks to be of no interest. */
#include "sample.h"

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
