/* Strings in templates: finding, splitting, stripping, replacing, slicing, changing case, padding.
 *
 * What comes from a J_SAFE string is J_SAFE, as with Python's Markup. Marks count for nothing on either side of a
 * comparison, and stay with their characters. */
#ifndef NOVA_JINJA_TEXT_H
#define NOVA_JINJA_TEXT_H

#include "jinja_print.h"

/* The first (or last) occurrence of `what` in bytes [from, to) of `in`: its place and length, both in bytes of `in`.
 * 1 found, 0 not, -1 failed. */
static int text_find(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at, size_t *n);
static int text_find_last(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at,
                          size_t *n);
/* Does `s` start (or end) with `what`? Then the length of that in bytes, else SIZE_MAX. */
static size_t text_starts(const jvalue *s, const jvalue *what);
static size_t text_ends(const jvalue *s, const jvalue *what);
/* Bytes [from, to) of s as a string of the same flags. */
static jvalue text_part(const jvalue *s, size_t from, size_t to);
static size_t text_offset(const jvalue *s, size_t characters);   /* of a character, in bytes; n behind the end */

enum { TEXT_LEFT = 1, TEXT_RIGHT = 2 };

/* Without blanks (`characters` NULL) or the given characters at its ends. */
static bool text_strip(jinja *j, const jvalue *s, const jvalue *characters, int sides, jvalue *out);
/* str.split and str.rsplit; `by` NULL: at blanks; `most` splits, or all for less than 0. */
static bool text_split(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out);
static bool text_split_right(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out);
/* Lines as str.splitlines() parts them. */
static bool text_lines(jinja *j, const jvalue *s, bool keep_ends, jvalue *out);
static bool text_replace(jinja *j, const jvalue *s, const jvalue *from, const jvalue *to, int64_t most, jvalue *out);
static bool text_convert(jinja *j, const jvalue *s, letter_case to, jvalue *out);
static bool text_swap_case(jinja *j, const jvalue *s, jvalue *out);
static bool text_capitalize(jinja *j, const jvalue *s, jvalue *out);
/* `left` and `right` copies of `fill` around s. */
static bool text_pad(jinja *j, const jvalue *s, int64_t left, int64_t right, uint32_t fill, jvalue *out);
static bool text_repeat(jinja *j, const jvalue *s, int64_t times, jvalue *out);
/* & < > ' " as HTML's entities; the result is J_SAFE, what is J_SAFE already stays as it is. */
static bool text_escape(jinja *j, const jvalue *v, jvalue *out);
/* `count` characters from `start` on, `step` apart, as jslice_range gives them. */
static bool text_slice(jinja *j, const jvalue *s, int64_t start, int64_t step, int64_t count, jvalue *out);

/* What [a:b:c] takes of `length` items: the first index and how many. Missing and none are the defaults. */
static bool jslice_range(jinja *j, const jvalue bounds[3], int64_t length, int64_t *start, int64_t *step,
                         int64_t *count);

#endif
