/* libFuzzer target for the tokenizers. The first byte chooses:
 *   0       the rest is a GGUF file; its tokenizer, if it opens, encodes a fixed text and gives all pieces
 *   else    the rest is a text for one of the toy vocabularies, about which everything that must hold is checked
 * With -DFUZZ_REPLAY a main runs the files and folders that are given (fuzz_replay.h). */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#include "toy_vocab.h"

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

typedef struct encoded { int32_t *ids; size_t n; } encoded;

static encoded encode(const tokenizer *t, const host *h, str text, uint32_t flags) {
    encoded    e;
    nova_error error;
    size_t     needed = 0;
    nova_result result = tokenizer_encode(t, h, text, flags, NULL, 0, &e.n, &error);
    need(result == NOVA_OK || (result == NOVA_ERROR_TOO_SMALL && e.n > 0), "counting");
    e.ids  = (int32_t *)malloc(e.n * sizeof *e.ids + 1);
    result = tokenizer_encode(t, h, text, flags, e.ids, e.n, &needed, &error);
    need(result == NOVA_OK && needed == e.n, "the count is what it takes");
    for (size_t i = 0; i < e.n; i++)
        need(e.ids[i] >= 0 && (uint32_t)e.ids[i] < tokenizer_n_vocab(t), "ids are in range");
    return e;
}

static void fuzz_file(const uint8_t *data, size_t size) {
    static const char text[] =
        "the hello  \xFF</s><|im_start|>\n\xE2\x96\x81 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa e\xCC\x81";
    host       h = host_init(NULL, NULL, NULL, NULL);
    arena      a;
    gguf       g;
    tokenizer *t = NULL;
    nova_error error;
    char       piece[64];
    arena_init(&a, &h);
    nova_result result = gguf_read(&g, &a, data, size, true, &error);
    if (result == NOVA_OK) result = tokenizer_open(&t, &a, &h, &g, &error);
    if (result == NOVA_OK) {
        for (uint32_t flags = 0; flags < 4; flags++) free(encode(t, &h, str_of(text, sizeof text - 1), flags).ids);
        for (uint32_t id = 0; id < tokenizer_n_vocab(t); id++)
            need(tokenizer_piece(t, (int32_t)id, id % 2, true, piece, sizeof piece) <= tokenizer_max_piece(t),
                 "longest piece");
    } else {
        need(error.code == result && error.message[0], "errors say what");
    }
    arena_free(&a);
}

static bool has_spm_space(str text) {
    for (size_t i = 0; i + 2 < text.n; i++)
        if (memcmp(text.p + i, "\xE2\x96\x81", 3) == 0) return true;
    return false;
}

/* Decodes as nova_detokenize does and compares. */
static void same_text(const tokenizer *t, const encoded *e, str text) {
    char  *p     = (char *)malloc(text.n + tokenizer_max_piece(t) + 1);
    size_t n     = 0;
    bool   first = true;
    for (size_t i = 0; i < e->n && n <= text.n; i++) {
        n += tokenizer_piece(t, e->ids[i], first, false, p + n, tokenizer_max_piece(t));
        if (tokenizer_piece(t, e->ids[i], false, false, NULL, 0)) first = false;
    }
    need(str_eq(str_of(p, n), text), "the text comes back");
    free(p);
}

static void fuzz_text(toy_file file, str text) {
    host       h = host_init(NULL, NULL, NULL, NULL);
    arena      a;
    gguf       g;
    tokenizer *t = NULL;
    nova_error error;
    arena_init(&a, &h);
    need(gguf_read(&g, &a, file.p, file.n, true, &error) == NOVA_OK, "the toy file is good");
    need(tokenizer_open(&t, &a, &h, &g, &error) == NOVA_OK, "the toy vocabulary is good");
    encoded plain = encode(t, &h, text, 0);
    bool    kept  = t->is_spm ? !has_spm_space(text) : !t->rule->nfc;
    if (kept) same_text(t, &plain, text);
    /* Marked text holds no control token, and encodes to what it does without special tokens. */
    text_buffer marked;
    text_init(&marked, &h, 0);
    need(tokenizer_mark(t, text, &marked), "marking");
    encoded hidden = encode(t, &h, str_of(marked.p, marked.n), NOVA_PARSE_SPECIAL | TOKENIZER_MARKED);
    for (size_t i = 0; i < hidden.n; i++)
        need(token_type_of(t, (uint32_t)hidden.ids[i]) != VOCAB_CONTROL, "no control token is seen in marked text");
    if (!t->is_spm && (!text.n || !memchr(text.p, 0xFF, text.n)))
        need(hidden.n == plain.n && memcmp(hidden.ids, plain.ids, plain.n * sizeof *plain.ids) == 0,
             "marks change nothing else");
    need(utf8_incomplete_tail(text.p, text.n) <= size_min(3, text.n), "the tail");
    text_free(&marked);
    free(hidden.ids);
    free(encode(t, &h, text, NOVA_PARSE_SPECIAL | NOVA_ADD_SPECIAL).ids);
    free(plain.ids);
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static toy      vocabulary;
    static toy_file files[COUNT_OF(pre_rules) + 1];   /* made when first asked for */
    if (size == 0) return 0;
    if (data[0] == 0) {
        fuzz_file(data + 1, size - 1);
        return 0;
    }
    uint32_t kind = data[0] % (uint32_t)COUNT_OF(files);
    if (!files[kind].p) {
        if (kind == 0) toy_spm(&vocabulary);
        else toy_bpe(&vocabulary, pre_rules[kind - 1].name);
        files[kind] = toy_write(&vocabulary);
    }
    fuzz_text(files[kind], str_of((const char *)data + 1, size - 1));
    return 0;
}

#ifdef FUZZ_REPLAY
#include "fuzz_replay.h"
#endif
