/* Characters as Python's str knows them: UTF-8, blanks, what repr() prints, upper and lower case.
 *
 * All text here is valid UTF-8 with marks: a byte 0xFF (which no UTF-8 has) belongs to the character before it, takes no
 * room and compares equal to nothing at all (see tokenizer_mark). letter_clean makes such text from any bytes. */
#ifndef NOVA_LETTERS_H
#define NOVA_LETTERS_H

#include "unicode.h"

#define LETTER_MARK    0xFFu
#define LETTER_UNKNOWN 0xFFFDu

/* The character at `p`, marks in and behind it included: its code point into *c, and its length, at least 1.
 * p < end; what is no UTF-8 is LETTER_UNKNOWN, byte by byte. */
static size_t letter_next(const char *p, const char *end, uint32_t *c);
/* The length of the character that ends at `end`; p < end. */
static size_t letter_last(const char *p, const char *end, uint32_t *c);
static size_t letter_count(const char *p, size_t n);       /* characters */
static size_t letter_put(char out[4], uint32_t c);         /* to UTF-8; surrogates and beyond become LETTER_UNKNOWN */
/* Bytes at the start of (p, n) that are valid UTF-8; n when all are. */
static size_t letter_valid(const char *p, size_t n);

static bool letter_is_space(uint32_t c);
static bool letter_is_alpha(uint32_t c);
static bool letter_is_digit(uint32_t c);       /* any number, that is: also what str.isnumeric() alone accepts */
static bool letter_is_alnum(uint32_t c);
static bool letter_is_printable(uint32_t c);   /* repr() shows it as it is; unassigned code points count as printable */

typedef enum letter_case { LETTER_LOWER, LETTER_UPPER, LETTER_TITLE } letter_case;

/* The character in another case: 1 to 3 code points into `out`, and their number. */
static uint32_t letter_convert(letter_case to, uint32_t c, uint32_t out[3]);
static bool     letter_is_lower(uint32_t c);   /* has an upper case and is not half of one */
static bool     letter_is_upper(uint32_t c);   /* has a different lower case */

#endif
