/* A tokenizer's vocabulary: texts to ids and back, merges, special tokens. Texts are never copied from the file: one
 * hash table finds a token by its text, another a merge by its two ids. 16 bytes a token and 14 a merge. */
#ifndef NOVA_VOCAB_H
#define NOVA_VOCAB_H

#include "gguf.h"
#include "pretokenize.h"

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
