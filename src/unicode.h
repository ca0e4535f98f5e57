/* UTF-8, classes of characters, and canonical composition (NFC), from the Unicode Character Database 15.0.0. */
#ifndef NOVA_UNICODE_H
#define NOVA_UNICODE_H

#include "base.h"

/* A byte that starts no well-formed UTF-8 reads as this, one byte long. It has U+FFFD's class. */
#define UTF8_INVALID 0xFFFFFFFFu

/* The code point at `p` of `n` >= 1 bytes, and its length. Well-formed is what Unicode's table 3-7 lists: no
 * surrogates, nothing longer than need be. */
static uint32_t utf8_get(const char *p, size_t n, size_t *length);
/* Writes a code point, which must be a valid one, into 4 bytes; returns how many it took. */
static size_t utf8_put(uint32_t cp, char *out);

/* Classes as tokenizers tell them apart, as bits, so that a pattern's set is a mask. The letter is the table's. */
#define UNICODE_BIT(letter) (1u << ((letter) & 31))
enum {
    UNICODE_UPPER  = UNICODE_BIT('u'),  /* Lu, Lt */
    UNICODE_LOWER  = UNICODE_BIT('l'),  /* Ll */
    UNICODE_OTHER  = UNICODE_BIT('o'),  /* Lm, Lo */
    UNICODE_MARK   = UNICODE_BIT('m'),  /* Mn, Mc, Me */
    UNICODE_NUMBER = UNICODE_BIT('n'),  /* Nd, Nl, No */
    UNICODE_PUNCT  = UNICODE_BIT('p'),  /* P* */
    UNICODE_SYMBOL = UNICODE_BIT('s'),  /* S* */
    UNICODE_WHITE  = UNICODE_BIT('w'),  /* the property White_Space */
    UNICODE_REST   = UNICODE_BIT('x'),  /* controls, formats, private use, unassigned */
    UNICODE_LETTER = UNICODE_UPPER | UNICODE_LOWER | UNICODE_OTHER
};

static uint32_t unicode_class(uint32_t cp);

/* Bytes at the start of `text` that are in NFC beyond doubt, ending where a character begins that nothing before it can
 * change; text.n when all of it is. */
static size_t unicode_nfc_span(str text);
/* Appends `text` in NFC to `out`. Bytes that are not UTF-8 stay as they are. Time is linear in text.n, whatever it
 * holds; takes temporary memory from out->h. False when memory ends. */
static bool unicode_nfc(str text, text_buffer *out);

#endif
