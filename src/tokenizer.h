/* Text to token ids and back: SentencePiece-style BPE with scores ("llama"), byte-level BPE ("gpt2"). */
#ifndef NOVA_TOKENIZER_H
#define NOVA_TOKENIZER_H

#include "vocab.h"

typedef vocab tokenizer;

/* Builds from the tokenizer.ggml.* keys. Everything goes into the arena; token texts stay in the file. `h` gives memory
 * that is returned before the end.
 * Hostile input: lengths of arrays that disagree, ids out of range, merges of unknown tokens, malformed byte tokens
 * ("<0x-1>"), huge or empty tokens. Errors: FORMAT, UNSUPPORTED (model or pre-tokenizer: named), MEMORY. */
static nova_result tokenizer_open(tokenizer **out, arena *a, const host *h, const gguf *g, nova_error *error);

static uint32_t tokenizer_n_vocab(const tokenizer *t);

/* A flag beside nova.h's: bytes 0xFF in the text (which no UTF-8 has) are marks that tokenizer_mark left. They keep a
 * control token from being seen there and are dropped before encoding. */
#define TOKENIZER_MARKED 0x100u

/* Contract of nova_tokenize. Tokens of the type user-defined are always seen, control tokens with NOVA_PARSE_SPECIAL
 * alone: the leftmost first, of those the longest. Bytes that are not UTF-8 are kept where the vocabulary has bytes. */
static nova_result tokenizer_encode(const tokenizer *t, const host *h, str text, uint32_t flags,
                                    int32_t *ids, size_t capacity, size_t *n_ids, nova_error *error);

/* Appends `text` to `out` with a mark (0xFF) behind the first byte of everything that would be parsed as a control
 * token, and behind every ASCII character that a control token begins with, in either case: no control token forms
 * either where the text's parts are cut, put together, or changed in case, as long as each mark goes with its character.
 * Bytes 0xFF of the text itself become U+FFFD. False when memory ends. */
static bool tokenizer_mark(const tokenizer *t, str text, text_buffer *out);
static bool tokenizer_begins_control(const tokenizer *t, char c);   /* such an ASCII character */

/* Writes the bytes of one token, at most `capacity` of them, and returns how many it has. Control tokens have none
 * unless `want_special`. The first token of a text that has bytes is the `first`: in a "llama" vocabulary it loses its
 * leading space (and may then have none). */
static size_t tokenizer_piece(const tokenizer *t, int32_t id, bool first, bool want_special, char *out,
                              size_t capacity);
static size_t tokenizer_max_piece(const tokenizer *t);   /* bytes of the longest piece */
static bool   tokenizer_is_end(const tokenizer *t, int32_t id);
static bool   tokenizer_adds_bos(const tokenizer *t);
static int32_t tokenizer_bos(const tokenizer *t);   /* -1: none */
static int32_t tokenizer_eos(const tokenizer *t);

/* Bytes at the end of (p, n) that start a UTF-8 character whose rest is still to come: 0 to 3. */
static size_t utf8_incomplete_tail(const char *p, size_t n);

#endif
