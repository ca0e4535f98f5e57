/* GGUF files in memory with small vocabularies of both kinds, for test_tokenizer.c and fuzz_tokenizer.c. Include nova.c
 * before. */
#ifndef NOVA_TOY_VOCAB_H
#define NOVA_TOY_VOCAB_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A file that grows ---- */

typedef struct toy_file {
    uint8_t *p;
    size_t   n, cap;
} toy_file;

static void toy_bytes(toy_file *f, const void *p, size_t n) {
    if (f->n + n > f->cap) {
        f->cap = 2 * f->cap + n + 64;
        f->p   = (uint8_t *)realloc(f->p, f->cap);
        if (!f->p) abort();
    }
    if (n) memcpy(f->p + f->n, p, n);
    f->n += n;
}

static void toy_u32(toy_file *f, uint32_t x) { toy_bytes(f, &x, 4); }
static void toy_u64(toy_file *f, uint64_t x) { toy_bytes(f, &x, 8); }
static void toy_str(toy_file *f, const char *p, size_t n) { toy_u64(f, n); toy_bytes(f, p, n); }
static void toy_name(toy_file *f, const char *z) { toy_str(f, z, strlen(z)); }

/* ---- What it says ---- */

typedef struct toy_token { char text[64]; size_t n; int32_t type; float score; } toy_token;
typedef struct toy_merge { char text[64]; } toy_merge;

#define TOY_TOKENS 1024
#define TOY_MERGES 1024

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
    uint32_t    tokens_item;                           /* GGUF_STRING, or else an array of u32 */
    int         no_tokens, no_merges;
} toy;

static void toy_init(toy *t, const char *model, const char *pre) {
    memset(t, 0, sizeof *t);
    t->model = model;
    t->pre   = pre;
    t->bos = t->eos = t->eot = t->unk = -1;
    t->add_bos = t->add_eos = t->add_space_prefix = -1;
    t->type_item   = GGUF_I32;
    t->score_item  = GGUF_F32;
    t->tokens_item = GGUF_STRING;
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

static void toy_key(toy_file *f, uint64_t *count, const char *key, uint32_t type) {
    toy_name(f, key);
    toy_u32(f, type);
    ++*count;
}

static void toy_id(toy_file *f, uint64_t *count, const char *key, int64_t id) {
    if (id < 0) return;
    toy_key(f, count, key, GGUF_U32);
    toy_u32(f, (uint32_t)id);
}

static void toy_flag(toy_file *f, uint64_t *count, const char *key, int flag) {
    uint8_t byte = (uint8_t)flag;
    if (flag < 0) return;
    toy_key(f, count, key, GGUF_BOOL);
    toy_bytes(f, &byte, 1);
}

static void toy_text(toy_file *f, uint64_t *count, const char *key, const char *text) {
    if (!text) return;
    toy_key(f, count, key, GGUF_STRING);
    toy_name(f, text);
}

/* Items of an array that has one a token, cut or lengthened to `n`. */
static void toy_array(toy_file *f, uint64_t *count, const toy *t, const char *key, uint32_t item, uint32_t n) {
    if (n == UINT32_MAX) return;
    toy_key(f, count, key, GGUF_ARRAY);
    toy_u32(f, item);
    toy_u64(f, n);
    for (uint32_t i = 0; i < n; i++) {
        const toy_token *k = &t->tokens[i < t->n_tokens ? i : 0];
        if (item == GGUF_STRING) toy_str(f, k->text, k->n);
        else if (item == GGUF_F32) toy_bytes(f, &k->score, 4);
        else if (item == GGUF_I32 || item == GGUF_U32) toy_u32(f, (uint32_t)k->type);
        else if (item == GGUF_BOOL) toy_bytes(f, "\1", 1);
        else abort();
    }
}

/* The file; free its `p`. */
static toy_file toy_write(const toy *t) {
    toy_file f    = {NULL, 0, 0}, keys = {NULL, 0, 0};
    uint64_t count = 0;
    toy_text(&keys, &count, "tokenizer.ggml.model", t->model);
    toy_text(&keys, &count, "tokenizer.ggml.pre", t->pre);
    if (!t->no_tokens) toy_array(&keys, &count, t, "tokenizer.ggml.tokens", t->tokens_item, t->n_tokens);
    toy_array(&keys, &count, t, "tokenizer.ggml.token_type", t->type_item, t->n_types);
    if (t->model && strcmp(t->model, "llama") == 0)
        toy_array(&keys, &count, t, "tokenizer.ggml.scores", t->score_item, t->n_scores);
    if (!t->no_merges && t->model && strcmp(t->model, "llama") != 0) {
        toy_key(&keys, &count, "tokenizer.ggml.merges", GGUF_ARRAY);
        toy_u32(&keys, GGUF_STRING);
        toy_u64(&keys, t->n_merges);
        for (uint32_t i = 0; i < t->n_merges; i++) toy_name(&keys, t->merges[i].text);
    }
    toy_id(&keys, &count, "tokenizer.ggml.bos_token_id", t->bos);
    toy_id(&keys, &count, "tokenizer.ggml.eos_token_id", t->eos);
    toy_id(&keys, &count, "tokenizer.ggml.eot_token_id", t->eot);
    toy_id(&keys, &count, "tokenizer.ggml.unknown_token_id", t->unk);
    toy_flag(&keys, &count, "tokenizer.ggml.add_bos_token", t->add_bos);
    toy_flag(&keys, &count, "tokenizer.ggml.add_eos_token", t->add_eos);
    toy_flag(&keys, &count, "tokenizer.ggml.add_space_prefix", t->add_space_prefix);
    toy_bytes(&f, "GGUF", 4);
    toy_u32(&f, 3);
    toy_u64(&f, 0);
    toy_u64(&f, count);
    toy_bytes(&f, keys.p, keys.n);
    free(keys.p);
    return f;
}

/* ---- Two that work ---- */

/* Byte-level: all bytes, some merges, control and user-defined tokens. */
static void toy_bpe(toy *t, const char *pre) {
    static const char *const joins[][2] = {
        {"t", "h"}, {"h", "e"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"\xC4\xA0", "t"}, {"l", "l"}, {"e", "r"}, {"i", "n"},
        {"in", "g"}, {"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"\xC4\xA0", "\xC4\xA0"}, {"\xC4\xA0\xC4\xA0", "\xC4\xA0\xC4\xA0"},
        {"\xC4\x8A", "\xC4\x8A"}, {"1", "2"}, {"12", "3"}, {"'", "s"}, {"\xC3\x83", "\xC2\xA9"}, {"l", "o"}, {"he", "ll"},
        {"hell", "o"}, {"\xC4\xA0", "hello"}, {"o", "w"},
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
        "\xE2\x96\x81", "e", "t", "a", "o", "h", "l", "s", "r", "n", "i", "he", "th", "the", "\xE2\x96\x81the", "\xE2\x96\x81t",
        "ll", "llo", "hello", "hell", "\xE2\x96\x81hello", "er", "in", "aa", "aaaa", "\xC3\xA9", "\xE2\x96\x81\xE2\x96\x81", "lo",
        "</s", "<", "/", ">", "</", "s>",
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
