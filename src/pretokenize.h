/* Cuts text into the words that byte-level BPE encodes one by one, as tokenizer.ggml.pre names it. */
#ifndef NOVA_PRETOKENIZE_H
#define NOVA_PRETOKENIZE_H

#include "unicode.h"

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
