/* Template text to tokens, by the rules of Jinja 3.1's lexer with trim_blocks and lstrip_blocks. */
#ifndef NOVA_JINJA_LEX_H
#define NOVA_JINJA_LEX_H

#include "jinja_print.h"

typedef enum jtoken_kind {
    JT_END,                         /* of the template */
    JT_DATA,                        /* value: text between tags */
    JT_VARIABLE_BEGIN, JT_VARIABLE_END, JT_BLOCK_BEGIN, JT_BLOCK_END,
    JT_NAME, JT_STRING,             /* value: a string */
    JT_INTEGER, JT_FLOAT,           /* value */
    JT_ADD, JT_SUB, JT_MUL, JT_DIV, JT_FLOORDIV, JT_MOD, JT_POW, JT_TILDE,
    JT_EQ, JT_NE, JT_LT, JT_LE, JT_GT, JT_GE,
    JT_LPAREN, JT_RPAREN, JT_LBRACKET, JT_RBRACKET, JT_LBRACE, JT_RBRACE,
    JT_ASSIGN, JT_DOT, JT_COLON, JT_PIPE, JT_COMMA, JT_SEMICOLON
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    uint32_t    line;
    jvalue      value;
} jtoken;

typedef struct jlexer {
    jinja      *j;
    const char *start, *p, *end;
    uint32_t    line;
    char        state;           /* 0: between tags; else the tag's second character: '%', '{' */
    char        pending;         /* the tag that comes behind the data token just given */
    bool        line_starting;   /* the last tag's end took a line end with it */
    uint32_t    n_open;
    char        open[JINJA_MAX_NEST];   /* brackets to be closed */
} jlexer;

/* The text must live as long as the lexer. */
static bool jlexer_open(jlexer *x, jinja *j, str text);
static bool jlexer_next(jlexer *x, jtoken *out);
/* For messages: what a token is, or looks like. */
static str jtoken_text(const jtoken *t);

#endif
