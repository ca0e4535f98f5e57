/* The command line's options: one row each, and the parser that the rows drive. */
#ifndef NOVA_EXAMPLES_OPTIONS_H
#define NOVA_EXAMPLES_OPTIONS_H

#include "system.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* One line, with where to read more; `call` may be NULL. */
static PRINTF_LIKE(2, 3) int bad_usage(const char *call, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("nova: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (see: nova help%s%s)\n", call ? " " : "", call ? call : "");
    return EXIT_USAGE;
}

enum { RUN = 1, CHAT = 2, INFO = 4, TOKENIZE = 8, LOGITS = 16, PERPLEXITY = 32, BENCH = 64, KERNELS = 128 };
enum { GENERATE = RUN | CHAT, MEASURE = LOGITS | PERPLEXITY | BENCH, EVERY = 255 };

typedef struct options {
    const char *model, *prompt, *file, *output, *system, *ids, *device;
    uint32_t    n_threads, n_ctx, n_predict, n_sinks, n_chunks, n_prompt, n_gen, n_runs, top_k, gpu_layers, gpu_without, gpu_force;
    uint64_t    seed, vram;
    float       temperature, top_p, min_p, repeat_penalty;
    int         cache_k, cache_v, limit;   /* as nova_cache_type, nova_limit */
    bool        json, jsonl, raw, special, ignore_end, devices, all, tensors, one_by_one, code, verbose, help;
} options;

typedef enum option_kind {
    OPTION_FLAG,     /* bool */
    OPTION_TEXT,     /* const char * */
    OPTION_COUNT,    /* uint32_t, min to max */
    OPTION_BIG,      /* uint64_t */
    OPTION_SIZE,     /* uint64_t: 512M, 6G */
    OPTION_REAL,     /* float, min to max */
    OPTION_CHOICE,   /* int: the index in `value`, names parted by '|' */
    OPTION_SET,      /* uint32_t: bits, by the names' order in `value`, parted by ',' */
    OPTION_DEVICE,   /* const char * */
    OPTION_LATER     /* known, but of a later version */
} option_kind;

typedef struct option {
    unsigned    calls;
    const char *name, *value;   /* value: what stands behind the name in the help */
    option_kind kind;
    size_t      at;             /* in options */
    uint32_t    min, max;
    const char *help;
} option;

#define AT(field) offsetof(options, field)
#define MANY      0x7fffffffu

static const option OPTIONS[] = {
    {EVERY, "-m", "FILE", OPTION_TEXT, AT(model), 0, 0, "the model, a GGUF file"},

    {RUN, "-p", "TEXT", OPTION_TEXT, AT(prompt), 0, 0, "the prompt; - reads it from standard input"},
    {RUN, "-f", "FILE", OPTION_TEXT, AT(file), 0, 0, "the prompt from a file, without its last newline"},
    {RUN, "--raw", NULL, OPTION_FLAG, AT(raw), 0, 0, "no chat template: continue the text as it stands"},
    {RUN, "--special", NULL, OPTION_FLAG, AT(special), 0, 0, "with --raw: take <|im_start|> and its like as tokens"},
    {GENERATE, "--system", "TEXT", OPTION_TEXT, AT(system), 0, 0, "the system message"},
    {GENERATE, "-n", "N", OPTION_COUNT, AT(n_predict), 0, MANY, "most tokens of an answer (run: 128; chat: no limit)"},
    {GENERATE, "--temp", "X", OPTION_REAL, AT(temperature), 0, 100, "temperature (0.8); 0 is greedy"},
    {GENERATE, "--top-k", "N", OPTION_COUNT, AT(top_k), 0, MANY, "keep the N likeliest tokens (40); 0 keeps all"},
    {GENERATE, "--top-p", "X", OPTION_REAL, AT(top_p), 0, 1, "keep the likeliest that reach X together (0.95)"},
    {GENERATE, "--min-p", "X", OPTION_REAL, AT(min_p), 0, 1, "keep those X times as likely as the likeliest (0.05)"},
    {GENERATE, "--repeat-penalty", "X", OPTION_REAL, AT(repeat_penalty), 0, 10, "make recent tokens less likely (1)"},

    {INFO, "--devices", NULL, OPTION_FLAG, AT(devices), 0, 0, "what the machine offers; needs no model"},
    {INFO, "--all", NULL, OPTION_FLAG, AT(all), 0, 0, "every metadata entry too"},
    {INFO, "--tensors", NULL, OPTION_FLAG, AT(tensors), 0, 0, "every tensor too"},

    {TOKENIZE, "--jsonl", NULL, OPTION_FLAG, AT(jsonl), 0, 0, "lines {\"text\":\"...\"} to {\"ids\":[...]} and back"},
    {TOKENIZE, "-p", "TEXT", OPTION_TEXT, AT(prompt), 0, 0, "print the ids of this text; - reads standard input"},
    {TOKENIZE, "--special", NULL, OPTION_FLAG, AT(special), 0, 0, "with -p: take <|im_start|> and its like as tokens"},

    {LOGITS, "--ids", "1,2,3", OPTION_TEXT, AT(ids), 0, 0, "the tokens to evaluate"},
    {LOGITS, "-o", "FILE", OPTION_TEXT, AT(output), 0, 0, "for float32 [ids][vocabulary], little-endian"},
    {LOGITS, "--one-by-one", NULL, OPTION_FLAG, AT(one_by_one), 0, 0, "feed one id at a time, as generation does"},

    {PERPLEXITY, "-f", "FILE", OPTION_TEXT, AT(file), 0, 0, "the text; - reads standard input"},
    {PERPLEXITY, "--chunks", "N", OPTION_COUNT, AT(n_chunks), 1, MANY, "score the first N windows only"},

    {BENCH, "-p", "N", OPTION_COUNT, AT(n_prompt), 0, 1u << 24, "tokens of the prompt (512)"},
    {BENCH, "-n", "N", OPTION_COUNT, AT(n_gen), 0, 1u << 24, "tokens to generate (128)"},
    {BENCH, "-r", "N", OPTION_COUNT, AT(n_runs), 1, 1000, "runs, of which the median counts (3)"},

    {KERNELS, "--code", NULL, OPTION_FLAG, AT(code), 0, 0, "with --json: the driver's disassembly too"},

    {EVERY & ~(unsigned)CHAT, "--json", NULL, OPTION_FLAG, AT(json), 0, 0, "one JSON object on stdout"},
    {EVERY, "-t", "N", OPTION_COUNT, AT(n_threads), 1, 1024, "threads (the processor's cores)"},
    {EVERY, "-c", "N", OPTION_COUNT, AT(n_ctx), 2, MANY, "context in tokens (trained, 4096 at most)"},
    {EVERY, "--device", "auto|cpu|gpu|gpu:N|gpu:N,gpu:N", OPTION_DEVICE, AT(device), 0, 0, "where to run (auto)"},
    {EVERY, "--vram", "SIZE", OPTION_SIZE, AT(vram), 0, 0, "most GPU memory to use: 512M, 6G"},
    {EVERY, "--gpu-layers", "N", OPTION_COUNT, AT(gpu_layers), 0, MANY, "most layers on GPUs, the output being one (all that fit)"},
    {EVERY, "--gpu-without", "matrix-f16|matrix-s8|dot|f16|subgroup|mapped", OPTION_SET, AT(gpu_without), 0, 0,
     "abilities of a GPU not to use, parted by commas"},
    {EVERY, "--gpu-force", "matrix-f16|matrix-s8|dot|f16|subgroup", OPTION_SET, AT(gpu_force), 0, 0,
     "the ability whose kernels to take (what suits the device)"},
    {EVERY, "--seed", "N", OPTION_BIG, AT(seed), 0, 0, "for random choices (from the clock; bench: 1)"},
    {EVERY, "--cache-k", "f16|f32|q8_0|q4_0", OPTION_CHOICE, AT(cache_k), 0, 0, "how the cache holds K (f16)"},
    {EVERY, "--cache-v", "f16|f32|q8_0|q4_0", OPTION_CHOICE, AT(cache_v), 0, 0, "how the cache holds V (f16)"},
    {EVERY, "--limit", "error|slide", OPTION_CHOICE, AT(limit), 0, 0, "at the context's end stop, or drop the oldest"},
    {EVERY, "--sinks", "N", OPTION_COUNT, AT(n_sinks), 0, MANY, "first tokens that sliding never drops (4)"},
    {EVERY, "--ignore-eos", NULL, OPTION_FLAG, AT(ignore_end), 0, 0, "go on behind the text's end"},
    {EVERY, "--verbose", NULL, OPTION_FLAG, AT(verbose), 0, 0, "what the library has to say, on stderr"},

    {RUN | MEASURE, "--plan", "FILE", OPTION_LATER, 0, 0, 0, NULL},
    {RUN | MEASURE, "--sparsity", "P", OPTION_LATER, 0, 0, 0, NULL},
    {RUN | MEASURE, "--quality", "P", OPTION_LATER, 0, 0, 0, NULL},
    {BENCH, "--trace", "FILE", OPTION_LATER, 0, 0, 0, NULL},
};

static void options_default(options *o, unsigned call) {
    memset(o, 0, sizeof *o);
    o->n_predict      = call == RUN ? 128 : UINT32_MAX;
    o->n_sinks        = 4;
    o->n_chunks       = UINT32_MAX;
    o->n_prompt       = 512;
    o->gpu_layers     = UINT32_MAX;
    o->n_gen          = 128;
    o->n_runs         = 3;
    o->temperature    = 0.8f;
    o->top_k          = 40;
    o->top_p          = 0.95f;
    o->min_p          = 0.05f;
    o->repeat_penalty = 1;
    o->seed           = call == BENCH ? 1 : (uint32_t)((uint64_t)time(NULL) * 1000003u + (uint64_t)(now_ms() * 1e3));
}

/* Digits alone, up to `max`; moves *z behind them. */
static bool parse_digits(const char **z, uint64_t max, uint64_t *value) {
    if (**z < '0' || **z > '9') return false;
    for (*value = 0; **z >= '0' && **z <= '9'; ++*z) {
        unsigned digit = (unsigned)(**z - '0');
        if (*value > (max - digit) / 10) return false;
        *value = *value * 10 + digit;
    }
    return true;
}

static bool parse_whole(const char *z, uint64_t min, uint64_t max, uint64_t *value) {
    return parse_digits(&z, max, value) && !*z && *value >= min;
}

static bool parse_size(const char *z, uint64_t *value) {
    static const char UNITS[] = "kKmMgGtT";
    if (!parse_digits(&z, UINT64_MAX, value)) return false;
    const char *unit = *z ? (const char *)memchr(UNITS, *z, sizeof UNITS - 1) : NULL;
    if (!unit) return !*z;
    int shift = 10 * (1 + (int)(unit - UNITS) / 2);
    if (*value > UINT64_MAX >> shift) return false;
    *value <<= shift;
    z++;
    return !*z || strcmp(z, "B") == 0 || strcmp(z, "iB") == 0;
}

/* Decimal notation only: strtod alone would take "nan", "0x1p3" and leading blanks. */
static bool parse_real(const char *z, double min, double max, float *value) {
    char *end;
    if (!*z || strspn(z, "0123456789.eE+-") != strlen(z)) return false;
    double number = strtod(z, &end);
    if (*end || !(number >= min && number <= max)) return false;
    *value = (float)number;
    return true;
}

static bool parse_choice(const char *z, const char *names, int *value) {
    size_t n = strlen(z);
    for (*value = 0;; ++*value) {
        size_t length = strcspn(names, "|");
        if (length == n && memcmp(z, names, n) == 0) return true;
        if (!names[length]) return false;
        names += length + 1;
    }
}

static bool parse_set(const char *z, const char *names, uint32_t *bits) {
    for (*bits = 0;;) {
        char   word[32];
        size_t n = strcspn(z, ",");
        int    bit;
        if (n >= sizeof word) return false;
        memcpy(word, z, n);
        word[n] = 0;
        if (!parse_choice(word, names, &bit)) return false;
        *bits |= 1u << bit;
        if (!z[n]) return true;
        z += n + 1;
    }
}

/* auto, cpu, gpu, gpu:N, gpu:N,gpu:N,... */
static bool parse_device(const char *z) {
    int      choice;
    uint64_t index;
    if (parse_choice(z, "auto|cpu|gpu", &choice)) return true;
    for (;;) {
        if (strncmp(z, "gpu:", 4) != 0) return false;
        z += 4;
        if (!parse_digits(&z, 255, &index)) return false;
        if (!*z) return true;
        if (*z++ != ',') return false;
    }
}

/* Stores one value; false when `value` is none of the option's. */
static bool option_store(const option *opt, options *o, const char *value) {
    void    *at = (char *)o + opt->at;
    uint64_t whole;
    switch (opt->kind) {
    case OPTION_FLAG: return *(bool *)at = true;
    case OPTION_TEXT: return *(const char **)at = value, true;
    case OPTION_COUNT:
        if (!parse_whole(value, opt->min, opt->max, &whole)) return false;
        return *(uint32_t *)at = (uint32_t)whole, true;
    case OPTION_BIG: return parse_whole(value, 0, UINT64_MAX, (uint64_t *)at);
    case OPTION_SIZE: return parse_size(value, (uint64_t *)at);
    case OPTION_REAL: return parse_real(value, opt->min, opt->max, (float *)at);
    case OPTION_CHOICE: return parse_choice(value, opt->value, (int *)at);
    case OPTION_SET: return parse_set(value, opt->value, (uint32_t *)at);
    case OPTION_DEVICE: return *(const char **)at = value, parse_device(value);
    case OPTION_LATER: break;
    }
    return false;
}

static int option_refuse(const option *opt, const char *call, const char *value) {
    switch (opt->kind) {
    case OPTION_COUNT:
        return bad_usage(call, "%s takes a whole number from %u to %u, not '%s'", opt->name, opt->min,
                         opt->max, value);
    case OPTION_BIG: return bad_usage(call, "%s takes a whole number, not '%s'", opt->name, value);
    case OPTION_SIZE: return bad_usage(call, "%s takes a size like 512M or 6G, not '%s'", opt->name, value);
    case OPTION_REAL:
        return bad_usage(call, "%s takes a number from %u to %u, not '%s'", opt->name, opt->min,
                         opt->max, value);
    case OPTION_CHOICE:
    case OPTION_SET:
    case OPTION_DEVICE: return bad_usage(call, "%s takes %s, not '%s'", opt->name, opt->value, value);
    case OPTION_FLAG: return bad_usage(call, "%s takes no value", opt->name);
    case OPTION_LATER: return bad_usage(call, "%s: not in this version", opt->name);
    case OPTION_TEXT: break;
    }
    return bad_usage(call, "%s: bad value '%s'", opt->name, value);
}

/* The row of an argument "--name" or "--name=value" of n_name bytes in front of the '='. */
static const option *option_find(unsigned call, const char *name, size_t n_name) {
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        const option *o = &OPTIONS[i];
        if ((o->calls & call) && strlen(o->name) == n_name && memcmp(o->name, name, n_name) == 0) return o;
    }
    return NULL;
}

/* EXIT_DONE, or EXIT_USAGE after saying why. */
static int options_parse(options *o, unsigned call, const char *call_name, char **argv) {
    options_default(o, call);
    for (; *argv; argv++) {
        const char *arg = *argv;
        if (!strcmp(arg, "-h") || !strcmp(arg, "--help")) return o->help = true, EXIT_DONE;
        size_t        n_name = arg[0] == '-' && arg[1] == '-' ? strcspn(arg, "=") : strlen(arg);
        const option *opt    = option_find(call, arg, n_name);
        if (!opt && arg[0] == '-' && arg[1]) return bad_usage(call_name, "%s: unknown option '%s'", call_name, arg);
        if (!opt) return bad_usage(call_name, "%s: unexpected argument '%s'", call_name, arg);
        const char *value = arg[n_name] ? arg + n_name + 1 : NULL;
        if (opt->kind == OPTION_LATER || (opt->kind == OPTION_FLAG && value)) return option_refuse(opt, call_name, arg);
        if (opt->kind != OPTION_FLAG && !value && !(value = *++argv))
            return bad_usage(call_name, "%s: %s needs a value (%s)", call_name, opt->name, opt->value);
        if (!option_store(opt, o, value)) return option_refuse(opt, call_name, value);
    }
    return EXIT_DONE;
}

#endif
