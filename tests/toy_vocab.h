/* GGUF files in memory with small vocabularies of both kinds, for test_tokenizer.c and fuzz_tokenizer.c. Include nova.c
 * before. */
#ifndef NOVA_TOY_VOCAB_H
#define NOVA_TOY_VOCAB_H

#include "gguf_writer.h"

/* ---- What a file says ---- */

typedef struct toy_token { char text[64]; size_t n; int32_t type; float score; } toy_token;
typedef struct toy_merge { char text[64]; } toy_merge;

#define TOY_TOKENS 1024
#define TOY_MERGES 2048

typedef struct toy {
    const char *model, *pre;   /* NULL: no such key */
    toy_token   tokens[TOY_TOKENS];
    toy_merge   merges[TOY_MERGES];
    uint32_t    n_tokens, n_merges;
    int64_t     bos, eos, eot, unk;                    /* -1: no such key */
    int         add_bos, add_eos, add_space_prefix;    /* -1: no such key */
    /* What may be wrong with it. */
    uint32_t    n_types, n_scores;                     /* items of these arrays; UINT32_MAX: no such key */
    uint32_t    type_item, score_item;                 /* their item types */
    uint32_t    tokens_item;                           /* GW_STRING, or else an array of u32 */
    int         no_tokens, no_merges;
} toy;

static void toy_init(toy *t, const char *model, const char *pre) {
    memset(t, 0, sizeof *t);
    t->model = model;
    t->pre   = pre;
    t->bos = t->eos = t->eot = t->unk = -1;
    t->add_bos = t->add_eos = t->add_space_prefix = -1;
    t->type_item   = GW_I32;
    t->score_item  = GW_F32;
    t->tokens_item = GW_STRING;
}

static int32_t toy_add_n(toy *t, const char *text, size_t n, int32_t type, float score) {
    toy_token *k = &t->tokens[t->n_tokens];
    if (t->n_tokens == TOY_TOKENS || n > sizeof k->text) abort();
    memcpy(k->text, text, n);
    k->n     = n;
    k->type  = type;
    k->score = score;
    t->n_types = t->n_scores = t->n_tokens + 1;
    return (int32_t)t->n_tokens++;
}

static int32_t toy_add(toy *t, const char *text, int32_t type, float score) {
    return toy_add_n(t, text, strlen(text), type, score);
}

static int32_t toy_find(const toy *t, const char *text) {
    for (uint32_t i = 0; i < t->n_tokens; i++)
        if (t->tokens[i].n == strlen(text) && memcmp(t->tokens[i].text, text, t->tokens[i].n) == 0) return (int32_t)i;
    return -1;
}

/* Adds the merge, and the token that it makes where there is none yet. */
static void toy_join(toy *t, const char *left, const char *right) {
    char whole[64];
    if (t->n_merges == TOY_MERGES) abort();
    snprintf(t->merges[t->n_merges++].text, sizeof t->merges[0].text, "%s %s", left, right);
    snprintf(whole, sizeof whole, "%s%s", left, right);
    if (toy_find(t, whole) < 0) toy_add(t, whole, 1, 0.0f);
}

/* An array that has an item a token, cut or lengthened to `n`. */
static void toy_array(gguf_writer *w, const toy *t, const char *key, uint32_t item, uint32_t n) {
    if (n == UINT32_MAX) return;
    gw_array_head(w, key, item, n);
    for (uint32_t i = 0; i < n; i++) {
        const toy_token *k = &t->tokens[i < t->n_tokens ? i : 0];
        if (item == GW_STRING) gw_put_str(&w->meta, k->text, k->n);
        else gw_put(&w->meta, item == GW_F32 ? (const void *)&k->score : (const void *)&k->type, gw_item_size(item));
    }
}

typedef struct toy_file { uint8_t *p; size_t n; } toy_file;

/* The file; free its `p`. */
static toy_file toy_write(const toy *t) {
    gguf_writer w;
    toy_file    f;
    bool        spm = t->model && strcmp(t->model, "llama") == 0;
    gw_init(&w);
    if (t->model) gw_str(&w, "tokenizer.ggml.model", t->model);
    if (t->pre) gw_str(&w, "tokenizer.ggml.pre", t->pre);
    if (!t->no_tokens) toy_array(&w, t, "tokenizer.ggml.tokens", t->tokens_item, t->n_tokens);
    toy_array(&w, t, "tokenizer.ggml.token_type", t->type_item, t->n_types);
    if (spm) toy_array(&w, t, "tokenizer.ggml.scores", t->score_item, t->n_scores);
    if (!spm && !t->no_merges) {
        gw_array_head(&w, "tokenizer.ggml.merges", GW_STRING, t->n_merges);
        for (uint32_t i = 0; i < t->n_merges; i++) gw_put_str(&w.meta, t->merges[i].text, strlen(t->merges[i].text));
    }
    if (t->bos >= 0) gw_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)t->bos);
    if (t->eos >= 0) gw_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)t->eos);
    if (t->eot >= 0) gw_u32(&w, "tokenizer.ggml.eot_token_id", (uint32_t)t->eot);
    if (t->unk >= 0) gw_u32(&w, "tokenizer.ggml.unknown_token_id", (uint32_t)t->unk);
    if (t->add_bos >= 0) gw_bool(&w, "tokenizer.ggml.add_bos_token", (unsigned)t->add_bos);
    if (t->add_eos >= 0) gw_bool(&w, "tokenizer.ggml.add_eos_token", (unsigned)t->add_eos);
    if (t->add_space_prefix >= 0) gw_bool(&w, "tokenizer.ggml.add_space_prefix", (unsigned)t->add_space_prefix);
    f.p = gw_exact(&w, &f.n);
    gw_free(&w);
    return f;
}

/* ---- Two that work ---- */

/* Byte-level: all bytes, some merges, control and user-defined tokens. */
static void toy_bpe(toy *t, const char *pre) {
    static const char *const joins[][2] = {
        {"t", "h"},
        {"h", "e"},
        {"th", "e"},
        {"\xC4\xA0", "the"},
        {"\xC4\xA0", "t"},
        {"l", "l"},
        {"e", "r"},
        {"i", "n"},
        {"in", "g"},
        {"a", "a"},
        {"aa", "aa"},
        {"aaaa", "aaaa"},
        {"\xC4\xA0", "\xC4\xA0"},
        {"\xC4\xA0\xC4\xA0", "\xC4\xA0\xC4\xA0"},
        {"\xC4\x8A", "\xC4\x8A"},
        {"1", "2"},
        {"12", "3"},
        {"'", "s"},
        {"\xC3\x83", "\xC2\xA9"},
        {"l", "o"},
        {"he", "ll"},
        {"hell", "o"},
        {"\xC4\xA0", "hello"},
        {"o", "w"},
    };
    toy_init(t, "gpt2", pre);
    for (uint32_t b = 0; b < 256; b++) {
        char name[8];
        toy_add_n(t, name, utf8_put(byte_char(b), name), 1, 0.0f);
    }
    for (size_t i = 0; i < sizeof joins / sizeof joins[0]; i++) toy_join(t, joins[i][0], joins[i][1]);
    t->bos = toy_add(t, "<|bos|>", 3, 0.0f);
    t->eos = toy_add(t, "<|im_end|>", 3, 0.0f);
    toy_add(t, "<|im_start|>", 3, 0.0f);
    toy_add(t, "<|im", 3, 0.0f);
    toy_add(t, "<tool>", 4, 0.0f);
    toy_add(t, "<tool>s", 4, 0.0f);
    toy_add(t, "<|im_user", 4, 0.0f);
}

/* SentencePiece: unknown, control, all bytes, pieces. */
static void toy_spm(toy *t) {
    static const char *const pieces[] = {
        "\xE2\x96\x81",
        "e",
        "t",
        "a",
        "o",
        "h",
        "l",
        "s",
        "r",
        "n",
        "i",
        "he",
        "th",
        "the",
        "\xE2\x96\x81the",
        "\xE2\x96\x81t",
        "ll",
        "llo",
        "hello",
        "hell",
        "\xE2\x96\x81hello",
        "er",
        "in",
        "aa",
        "aaaa",
        "\xC3\xA9",
        "\xE2\x96\x81\xE2\x96\x81",
        "lo",
        "</s",
        "<",
        "/",
        ">",
        "</",
        "s>",
    };
    toy_init(t, "llama", "default");
    toy_add(t, "<unk>", 2, 0.0f);
    toy_add(t, "<s>", 3, 0.0f);
    toy_add(t, "</s>", 3, 0.0f);
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        toy_add(t, name, 6, 0.0f);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) toy_add(t, pieces[i], 1, -(float)((i * 7) % 31));
    toy_add(t, "<tool>", 4, 0.0f);
    toy_add(t, "<end of turn>", 3, 0.0f);
    toy_add(t, "\xE2\x96\x81<PRE>", 4, 0.0f);
    t->unk = 0;
    t->bos = 1;
    t->eos = 2;
}

#endif
