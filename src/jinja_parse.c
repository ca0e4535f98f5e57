/* Tokens to a tree: see jinja_parse.h. */
#include "jinja_parse.h"

typedef struct jparser {
    jinja   *j;
    jlexer   lexer;
    jtoken   now, ahead;
    bool     has_ahead;
    uint32_t nest;       /* recursion of the parser */
    uint32_t n_loops;    /* around, within the function */
} jparser;

/* ---- Tokens ---- */

static bool parse_advance(jparser *p) {
    if (p->has_ahead) {
        p->now       = p->ahead;
        p->has_ahead = false;
        return true;
    }
    return jlexer_next(&p->lexer, &p->now);
}

/* The token behind the next. */
static const jtoken *parse_look(jparser *p) {
    if (!p->has_ahead) {
        if (!jlexer_next(&p->lexer, &p->ahead)) return NULL;
        p->has_ahead = true;
    }
    return &p->ahead;
}

static bool parse_is(const jparser *p, jtoken_kind kind) { return p->now.kind == kind; }

static bool parse_is_name(const jparser *p, const char *name) {
    return p->now.kind == JT_NAME && str_is(jv_str(&p->now.value), name);
}

static bool parse_fail(jparser *p, const char *expected) {
    p->j->line = p->now.line;
    return jinja_fail(p->j, "expected %s, not '%.*s'", expected, STR_ARG(jtoken_text(&p->now)));
}

static bool parse_expect(jparser *p, jtoken_kind kind, const char *what) {
    return parse_is(p, kind) ? parse_advance(p) : parse_fail(p, what);
}

/* Takes the token when it is there; *taken tells. */
static bool parse_take(jparser *p, jtoken_kind kind, bool *taken) {
    *taken = parse_is(p, kind);
    return !*taken || parse_advance(p);
}

static bool parse_take_name(jparser *p, const char *name, bool *taken) {
    *taken = parse_is_name(p, name);
    return !*taken || parse_advance(p);
}

/* ---- Nodes ---- */

static bool parse_nest(jparser *p) {
    p->j->line = p->now.line;
    return ++p->nest <= JINJA_MAX_NEST || jinja_fail(p->j, "nested too deeply");
}

static jnode *parse_node(jparser *p, jnode_kind kind) {
    jnode *n = (jnode *)jinja_alloc(p->j, sizeof *n);
    if (!n || !jinja_step(p->j, 2)) return NULL;
    memset(n, 0, sizeof *n);
    n->kind   = (uint8_t)kind;
    n->line   = p->now.line;
    n->height = 1;
    n->value  = p->now.value;
    return n;
}

/* Counts `child` and what follows it into the height of n, which the interpreter's recursion follows. */
static bool parse_adopt(jparser *p, jnode *n, const jnode *child) {
    for (; child; child = child->next)
        if (child->height >= n->height) n->height = (uint8_t)(child->height + 1);
    return n->height <= JINJA_MAX_NEST || jinja_fail(p->j, "nested too deeply");
}

static bool parse_adopt_all(jparser *p, jnode *n) {
    return parse_adopt(p, n, n->a) && parse_adopt(p, n, n->b) && parse_adopt(p, n, n->c) && parse_adopt(p, n, n->d) &&
           parse_adopt(p, n, n->e);
}

/* ---- Expressions ---- */

static bool parse_expression(jparser *p, jnode **out);
static bool parse_operators(jparser *p, int least, jnode **out);
static bool parse_postfix(jparser *p, jnode **node);

/* How a tuple without brackets is read, and where it ends. */
typedef enum parse_mode {
    PARSE_FULL,
    PARSE_PLAIN,     /* no "if ... else" */
    PARSE_TARGET,    /* names */
    PARSE_MEMBERS    /* names and members of namespaces */
} parse_mode;

static bool parse_tuple(jparser *p, parse_mode mode, bool parentheses, const char *end, jnode **out);

static bool parse_list(jparser *p, jnode **out) {
    jnode *list = parse_node(p, JN_LIST), **tail;
    if (!list || !parse_advance(p)) return false;
    tail = &list->a;
    while (!parse_is(p, JT_RBRACKET)) {
        if (list->a && !parse_expect(p, JT_COMMA, "','")) return false;
        if (parse_is(p, JT_RBRACKET)) break;
        if (!parse_expression(p, tail)) return false;
        tail = &(*tail)->next;
    }
    *out = list;
    return parse_advance(p) && parse_adopt_all(p, list);
}

static bool parse_dict(jparser *p, jnode **out) {
    jnode *dict = parse_node(p, JN_DICT), **tail;
    if (!dict || !parse_advance(p)) return false;
    tail = &dict->a;
    while (!parse_is(p, JT_RBRACE)) {
        if (dict->a && !parse_expect(p, JT_COMMA, "','")) return false;
        if (parse_is(p, JT_RBRACE)) break;
        if (!parse_expression(p, tail) || !parse_expect(p, JT_COLON, "':'")) return false;
        tail = &(*tail)->next;
        if (!parse_expression(p, tail)) return false;
        tail = &(*tail)->next;
    }
    *out = dict;
    return parse_advance(p) && parse_adopt_all(p, dict);
}

/* Strings side by side are one. */
static bool parse_strings(jparser *p, jnode **out) {
    jnode *n = parse_node(p, JN_CONST);
    if (!n || !parse_advance(p)) return false;
    while (parse_is(p, JT_STRING)) {
        jvalue before = n->value;
        if (!jinja_concat(p->j, &before, &p->now.value, &n->value) || !parse_advance(p)) return false;
    }
    *out = n;
    return true;
}

static bool parse_name(jparser *p, bool target, jnode **out) {
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    jnode *n = parse_node(p, JN_NAME);
    if (!n) return false;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!str_is(jv_str(&n->value), words[i])) continue;
        if (target) return jinja_fail(p->j, "cannot assign to '%s'", words[i]);
        n->kind  = JN_CONST;
        n->value = i < 4 ? jv_bool(i < 2) : jv_none();
        break;
    }
    *out = n;
    return parse_advance(p);
}

static bool parse_primary(jparser *p, jnode **out) {
    jnode *n;
    switch (p->now.kind) {
    case JT_NAME: return parse_name(p, false, out);
    case JT_STRING: return parse_strings(p, out);
    case JT_INTEGER:
    case JT_FLOAT:
        *out = n = parse_node(p, JN_CONST);
        return n && parse_advance(p);
    case JT_LPAREN:
        return parse_advance(p) && parse_tuple(p, PARSE_FULL, true, NULL, out) && parse_expect(p, JT_RPAREN, "')'");
    case JT_LBRACKET: return parse_list(p, out);
    case JT_LBRACE: return parse_dict(p, out);
    default: return parse_fail(p, "an expression");
    }
}

/* What may be assigned to: a name, a namespace's member (`members`), or a tuple of these. */
static bool parse_target_primary(jparser *p, bool members, jnode **out) {
    bool parenthesis;
    if (!parse_take(p, JT_LPAREN, &parenthesis)) return false;
    if (parenthesis) {
        if (!parse_nest(p) || !parse_tuple(p, PARSE_TARGET, true, NULL, out)) return false;
        p->nest--;
        return parse_expect(p, JT_RPAREN, "')'");
    }
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name to assign to");
    if (!parse_name(p, true, out) || !members || !parse_is(p, JT_DOT)) return p->j->failed == NOVA_OK;
    (*out)->kind = JN_MEMBER_TARGET;
    if (!parse_advance(p)) return false;
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name");
    (*out)->b = parse_node(p, JN_CONST);
    return (*out)->b && parse_advance(p);
}

static bool parse_is_tuple_end(const jparser *p, const char *end) {
    return parse_is(p, JT_VARIABLE_END) || parse_is(p, JT_BLOCK_END) || parse_is(p, JT_RPAREN) ||
           (end && parse_is_name(p, end));
}

/* One expression, or a tuple of several with commas between them. */
static bool parse_tuple(jparser *p, parse_mode mode, bool parentheses, const char *end, jnode **out) {
    jnode  *items = NULL, **tail = &items, *tuple;
    bool    comma = false;
    uint32_t line = p->now.line;
    for (;;) {
        if (parse_is_tuple_end(p, end)) break;
        bool ok = mode == PARSE_FULL    ? parse_expression(p, tail)
                  : mode == PARSE_PLAIN ? parse_operators(p, 1, tail)
                                        : parse_target_primary(p, mode == PARSE_MEMBERS, tail);
        if (!ok) return false;
        tail = &(*tail)->next;
        if (!parse_is(p, JT_COMMA)) break;
        comma = true;
        if (!parse_advance(p)) return false;
    }
    *out = items;
    if (!comma && items) return true;
    if (!items && !parentheses) return parse_fail(p, "an expression");
    *out = tuple = parse_node(p, JN_TUPLE);
    if (!tuple) return false;
    tuple->line = line;
    tuple->a    = items;
    return parse_adopt_all(p, tuple);
}

/* One argument, plain, *, ** or with a name. `*seen` is the kind of the one before: kinds come in their order. */
static bool parse_argument(jparser *p, jargument *seen, jnode **out) {
    jnode    *n    = parse_node(p, JN_ARGUMENT);
    jargument kind = parse_is(p, JT_MUL) ? JA_MANY : parse_is(p, JT_POW) ? JA_MANY_NAMED : JA_PLAIN;
    *out           = n;
    if (!n) return false;
    if (parse_is(p, JT_NAME)) {
        const jtoken *behind = parse_look(p);
        if (!behind) return false;
        if (behind->kind == JT_ASSIGN) kind = JA_NAMED;
    }
    bool right = kind == JA_PLAIN ? *seen == JA_PLAIN : kind == JA_MANY ? *seen < JA_MANY : *seen != JA_MANY_NAMED;
    if (!right) return jinja_fail(p->j, "arguments stand in the wrong order");
    if (*seen < kind) *seen = kind;
    n->op = (uint8_t)kind;
    if (kind != JA_PLAIN && !parse_advance(p)) return false;
    if (kind == JA_NAMED && !parse_advance(p)) return false;
    return parse_expression(p, &n->a) && parse_adopt_all(p, n);
}

/* The arguments in parentheses, which begin now. */
static bool parse_arguments(jparser *p, jnode **out) {
    jargument seen = JA_PLAIN;
    jnode   **tail = out;
    if (!parse_advance(p)) return false;
    while (!parse_is(p, JT_RPAREN)) {
        if (*out && !parse_expect(p, JT_COMMA, "','")) return false;
        if (parse_is(p, JT_RPAREN)) break;
        if (!parse_argument(p, &seen, tail)) return false;
        tail = &(*tail)->next;
    }
    return parse_advance(p);
}

static bool parse_call(jparser *p, jnode **node) {
    jnode *n = parse_node(p, JN_CALL);
    if (!n) return false;
    n->a = *node;
    if (!parse_arguments(p, &n->b)) return false;
    *node = n;
    return parse_adopt_all(p, n);
}

/* An end of a slice, or NULL where nothing stands. */
static bool parse_slice_end(jparser *p, jnode **out) {
    if (parse_is(p, JT_COLON) || parse_is(p, JT_RBRACKET) || parse_is(p, JT_COMMA)) return true;
    return parse_expression(p, out);
}

static bool parse_subscript_part(jparser *p, jnode **out) {
    jnode *n = parse_node(p, JN_SLICE);
    bool   colon;
    if (!n || !parse_slice_end(p, &n->a) || !parse_take(p, JT_COLON, &colon)) return false;
    if (!colon) {
        *out = n->a;
        return n->a || parse_fail(p, "an expression");
    }
    if (!parse_slice_end(p, &n->b) || !parse_take(p, JT_COLON, &colon)) return false;
    if (colon && !parse_slice_end(p, &n->c)) return false;
    *out = n;
    return parse_adopt_all(p, n);
}

static bool parse_subscript(jparser *p, jnode **node) {
    jnode *n = parse_node(p, JN_ELEMENT), **tail;
    if (!n || !parse_advance(p)) return false;
    tail = &n->b;
    while (!parse_is(p, JT_RBRACKET)) {
        if (n->b && !parse_expect(p, JT_COMMA, "','")) return false;
        if (!parse_subscript_part(p, tail)) return false;
        if (n->b != *tail && (n->b->kind == JN_SLICE || (*tail)->kind == JN_SLICE))
            return jinja_fail(p->j, "a slice of several dimensions is not supported");
        tail = &(*tail)->next;
    }
    if (!n->b || n->b->next) {
        jnode *tuple = parse_node(p, JN_TUPLE);
        if (!tuple) return false;
        tuple->a = n->b;
        n->b     = tuple;
        if (!parse_adopt_all(p, tuple)) return false;
    }
    n->a  = *node;
    *node = n;
    return parse_advance(p) && parse_adopt_all(p, n);
}

/* ".name", or ".0" for an index. */
static bool parse_member(jparser *p, jnode **node) {
    if (!parse_advance(p)) return false;
    bool   name = parse_is(p, JT_NAME);
    jnode *n    = parse_node(p, name ? JN_ATTRIBUTE : JN_ELEMENT);
    if (!n) return false;
    if (!name && !parse_is(p, JT_INTEGER)) return parse_fail(p, "a name or a number");
    if (!name && !(n->b = parse_node(p, JN_CONST))) return false;
    n->a  = *node;
    *node = n;
    return parse_advance(p) && parse_adopt_all(p, n);
}

static bool parse_postfix(jparser *p, jnode **node) {
    for (;;) {
        bool ok;
        if (parse_is(p, JT_DOT)) ok = parse_member(p, node);
        else if (parse_is(p, JT_LBRACKET)) ok = parse_subscript(p, node);
        else if (parse_is(p, JT_LPAREN)) ok = parse_call(p, node);
        else return true;
        if (!ok) return false;
    }
}

/* The name of a filter or test, perhaps with dots; now the node's value. */
static bool parse_dotted(jparser *p, jnode *n) {
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name");
    n->value = p->now.value;
    n->line  = p->now.line;
    if (!parse_advance(p)) return false;
    while (parse_is(p, JT_DOT)) {
        if (!parse_advance(p)) return false;
        if (!parse_is(p, JT_NAME)) return parse_fail(p, "a name");
        jvalue before = n->value, dot = jv_c("."), both;
        if (!jinja_concat(p->j, &before, &dot, &both)) return false;
        if (!jinja_concat(p->j, &both, &p->now.value, &n->value) || !parse_advance(p)) return false;
    }
    return true;
}

/* The name of a filter and its arguments. */
static bool parse_filter(jparser *p, jnode **node) {
    jnode *n = parse_node(p, JN_FILTER);
    if (!n || !parse_dotted(p, n)) return false;
    n->a = *node;
    if (parse_is(p, JT_LPAREN) && !parse_arguments(p, &n->b)) return false;
    *node = n;
    return parse_adopt_all(p, n);
}

/* Whether an argument without parentheses follows a test: "is divisibleby 3". */
static bool parse_begins_argument(const jparser *p) {
    switch (p->now.kind) {
    case JT_NAME: return !parse_is_name(p, "else") && !parse_is_name(p, "or") && !parse_is_name(p, "and");
    case JT_STRING:
    case JT_INTEGER:
    case JT_FLOAT:
    case JT_LBRACKET:
    case JT_LBRACE: return true;
    default: return false;
    }
}

static bool parse_test(jparser *p, jnode **node) {
    bool   negated;
    jnode *n = parse_node(p, JN_TEST);
    if (!n || !parse_advance(p) || !parse_take_name(p, "not", &negated) || !parse_dotted(p, n)) return false;
    n->a = *node;
    if (parse_is(p, JT_LPAREN)) {
        if (!parse_arguments(p, &n->b)) return false;
    } else if (parse_begins_argument(p)) {
        if (parse_is_name(p, "is")) return jinja_fail(p->j, "tests cannot be chained with 'is'");
        if (!(n->b = parse_node(p, JN_ARGUMENT))) return false;
        n->b->op = JA_PLAIN;
        if (!parse_primary(p, &n->b->a) || !parse_postfix(p, &n->b->a) || !parse_adopt_all(p, n->b)) return false;
    }
    if (!parse_adopt_all(p, n)) return false;
    *node = n;
    if (!negated) return true;
    jnode *inverse = parse_node(p, JN_NOT);
    if (!inverse) return false;
    inverse->line = n->line;
    inverse->a    = n;
    *node         = inverse;
    return parse_adopt_all(p, inverse);
}

static bool parse_filters_and_tests(jparser *p, jnode **node) {
    for (;;) {
        bool ok;
        if (parse_is(p, JT_PIPE)) ok = parse_advance(p) && parse_filter(p, node);
        else if (parse_is_name(p, "is")) ok = parse_test(p, node);
        else if (parse_is(p, JT_LPAREN)) ok = parse_call(p, node);
        else return true;
        if (!ok) return false;
    }
}

static bool parse_unary(jparser *p, bool filters, jnode **out) {
    bool sign = parse_is(p, JT_SUB) || parse_is(p, JT_ADD);
    if (sign) {
        jnode *n = parse_node(p, parse_is(p, JT_SUB) ? JN_NEGATE : JN_PLUS);
        *out     = n;
        if (!n || !parse_nest(p) || !parse_advance(p) || !parse_unary(p, false, &n->a)) return false;
        if (!parse_adopt_all(p, n)) return false;
        p->nest--;
    } else if (!parse_primary(p, out)) {
        return false;
    }
    return parse_postfix(p, out) && (!filters || parse_filters_and_tests(p, out));
}

/* How strongly operators bind. */
enum { LEVEL_OR = 1, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_ADD, LEVEL_CONCAT, LEVEL_MULTIPLY, LEVEL_POWER };

typedef struct parse_operator {
    jtoken_kind kind;
    uint8_t     level, op;
} parse_operator;

static const parse_operator parse_operators_table[] = {
    {JT_ADD, LEVEL_ADD, JO_ADD}, {JT_SUB, LEVEL_ADD, JO_SUB}, {JT_MUL, LEVEL_MULTIPLY, JO_MUL},
    {JT_DIV, LEVEL_MULTIPLY, JO_DIV}, {JT_FLOORDIV, LEVEL_MULTIPLY, JO_FLOORDIV}, {JT_MOD, LEVEL_MULTIPLY, JO_MOD},
    {JT_POW, LEVEL_POWER, JO_POW}, {JT_TILDE, LEVEL_CONCAT, JO_CONCAT}, {JT_EQ, LEVEL_COMPARE, JO_EQ},
    {JT_NE, LEVEL_COMPARE, JO_NE}, {JT_LT, LEVEL_COMPARE, JO_LT}, {JT_LE, LEVEL_COMPARE, JO_LE},
    {JT_GT, LEVEL_COMPARE, JO_GT}, {JT_GE, LEVEL_COMPARE, JO_GE},
};

/* The level and joperator of the operator that stands here; level 0 when none does. *words: how many tokens it is. */
static bool parse_operator_here(jparser *p, int *level, uint8_t *op, int *words) {
    *level = 0;
    *op    = 0;
    *words = 1;
    if (p->now.kind != JT_NAME) {
        for (size_t i = 0; i < COUNT_OF(parse_operators_table); i++)
            if (parse_operators_table[i].kind == p->now.kind) {
                *level = parse_operators_table[i].level;
                *op    = parse_operators_table[i].op;
            }
        return true;
    }
    if (parse_is_name(p, "or")) *level = LEVEL_OR;
    if (parse_is_name(p, "and")) *level = LEVEL_AND;
    if (parse_is_name(p, "in")) *level = LEVEL_COMPARE, *op = JO_IN;
    if (parse_is_name(p, "not")) {
        const jtoken *behind = parse_look(p);
        if (!behind) return false;
        if (behind->kind == JT_NAME && str_is(jv_str(&behind->value), "in")) {
            *level = LEVEL_COMPARE;
            *op    = JO_NOT_IN;
            *words = 2;
        }
    }
    return true;
}

/* All operators of one level, from left to right, behind their first operand. */
static bool parse_level(jparser *p, int level, jnode **node) {
    bool   logic = level == LEVEL_OR || level == LEVEL_AND;
    jnode *n = parse_node(p, level == LEVEL_OR ? JN_OR : level == LEVEL_AND ? JN_AND
                                 : level == LEVEL_COMPARE ? JN_COMPARE : JN_CHAIN);
    jnode **tail;
    int     here, words;
    uint8_t op;
    if (!n) return false;
    n->a = *node;
    tail = logic ? &n->a->next : &n->b;
    while (parse_operator_here(p, &here, &op, &words) && here == level) {
        jnode *operand, *link = logic ? NULL : parse_node(p, JN_LINK);
        if (!logic && !link) return false;
        while (words-- > 0)
            if (!parse_advance(p)) return false;
        if (!parse_operators(p, level + 1, logic ? &operand : &link->a)) return false;
        if (link) {
            link->op = op;
            operand  = link;
            if (!parse_adopt_all(p, link)) return false;
        }
        *tail = operand;
        tail  = &operand->next;
    }
    *node = n;
    return p->j->failed == NOVA_OK && parse_adopt_all(p, n);
}

/* An expression of operators that bind at least as strongly as `least`. */
static bool parse_operators(jparser *p, int least, jnode **out) {
    int     level, words;
    uint8_t op;
    if (least <= LEVEL_NOT && parse_is_name(p, "not")) {
        jnode *n = parse_node(p, JN_NOT);
        *out     = n;
        if (!n || !parse_nest(p) || !parse_advance(p) || !parse_operators(p, LEVEL_NOT, &n->a)) return false;
        p->nest--;
        if (!parse_adopt_all(p, n)) return false;
    } else if (!parse_unary(p, true, out)) {
        return false;
    }
    while (parse_operator_here(p, &level, &op, &words) && level && level >= least)
        if (!parse_level(p, level, out)) return false;
    return p->j->failed == NOVA_OK;
}

static bool parse_expression(jparser *p, jnode **out) {
    bool condition, otherwise;
    if (!parse_nest(p) || !parse_operators(p, LEVEL_OR, out)) return false;
    while (parse_is_name(p, "if")) {
        jnode *n = parse_node(p, JN_CONDITION);
        if (!n || !parse_take_name(p, "if", &condition) || !parse_operators(p, LEVEL_OR, &n->a)) return false;
        n->b = *out;
        if (!parse_take_name(p, "else", &otherwise)) return false;
        if (otherwise && !parse_expression(p, &n->c)) return false;
        *out = n;
        if (!parse_adopt_all(p, n)) return false;
    }
    p->nest--;
    return true;
}

/* ---- Statements ---- */

/* Statements until one of the tags in `ends` (with blanks between them), which is the token then; NULL: to the end of
 * the template. */
static bool parse_body(jparser *p, const char *ends, jnode **out);

static bool parse_name_in(const jparser *p, const char *list) {
    str name = p->now.kind == JT_NAME ? jv_str(&p->now.value) : str_of("", 0);
    for (const char *word = list; *word && name.n;) {
        size_t n = strcspn(word, " ");
        if (str_eq(name, str_of(word, n))) return true;
        word += n;
        word += *word == ' ';
    }
    return false;
}

/* Closes the tag that is open, reads a body, and takes the end tag's name. */
static bool parse_statements(jparser *p, const char *ends, jnode **out, bool keep_end) {
    bool colon;
    if (!parse_take(p, JT_COLON, &colon) || !parse_expect(p, JT_BLOCK_END, "'%}'")) return false;
    if (!parse_body(p, ends, out)) return false;
    return keep_end || parse_advance(p);
}

static bool parse_if(jparser *p, jnode *n) {
    jnode **tail = &n->a;
    for (bool more = true; more;) {
        jnode *branch = parse_node(p, JN_BRANCH);
        bool   last   = parse_is_name(p, "else");
        if (!branch || !parse_advance(p)) return false;
        if (!last && !parse_tuple(p, PARSE_PLAIN, false, NULL, &branch->a)) return false;
        if (!parse_statements(p, last ? "endif" : "elif else endif", &branch->b, true)) return false;
        more  = !parse_is_name(p, "endif");
        *tail = branch;
        tail  = &branch->next;
        if (!parse_adopt_all(p, branch)) return false;
    }
    return parse_advance(p);
}

static bool parse_for(jparser *p, jnode *n) {
    bool taken, recursive;
    if (!parse_advance(p) || !parse_tuple(p, PARSE_TARGET, false, "in", &n->a)) return false;
    if (!parse_is_name(p, "in")) return parse_fail(p, "'in'");
    if (!parse_advance(p) || !parse_tuple(p, PARSE_PLAIN, false, "recursive", &n->b)) return false;
    if (!parse_take_name(p, "if", &taken) || (taken && !parse_expression(p, &n->e))) return false;
    if (!parse_take_name(p, "recursive", &recursive)) return false;
    n->op = recursive;
    p->n_loops++;
    if (!parse_statements(p, "else endfor", &n->c, true)) return false;
    p->n_loops--;
    if (!parse_take_name(p, "else", &taken)) return false;
    if (taken) return parse_statements(p, "endfor", &n->d, false);
    return parse_advance(p);
}

/* A filter behind a set block's target, perhaps several. */
static bool parse_set(jparser *p, jnode *n) {
    bool assign;
    if (!parse_advance(p) || !parse_tuple(p, PARSE_MEMBERS, false, NULL, &n->a)) return false;
    if (!parse_take(p, JT_ASSIGN, &assign)) return false;
    if (assign) return parse_tuple(p, PARSE_FULL, false, NULL, &n->b);
    n->kind = JN_SET_BLOCK;
    while (parse_is(p, JT_PIPE))
        if (!parse_advance(p) || !parse_filter(p, &n->b)) return false;
    return parse_statements(p, "endset", &n->c, false);
}

/* (a, b=1) */
static bool parse_parameters(jparser *p, jnode **out) {
    jnode **tail = out;
    bool    optional = false;
    if (!parse_expect(p, JT_LPAREN, "'('")) return false;
    while (!parse_is(p, JT_RPAREN)) {
        bool assign;
        if (*out && !parse_expect(p, JT_COMMA, "','")) return false;
        jnode *n = parse_node(p, JN_PARAMETER);
        if (!n) return false;
        if (!parse_is(p, JT_NAME)) return parse_fail(p, "a parameter's name");
        if (!parse_advance(p) || !parse_take(p, JT_ASSIGN, &assign)) return false;
        if (assign && !parse_expression(p, &n->a)) return false;
        if (!assign && optional) return jinja_fail(p->j, "a parameter without a default follows one with it");
        optional = assign;
        *tail    = n;
        tail     = &n->next;
        if (!parse_adopt_all(p, n)) return false;
    }
    return parse_advance(p);
}

/* The body of a function, in which the loops around do not count. */
static bool parse_function(jparser *p, const char *ends, jnode **out) {
    uint32_t n_loops = p->n_loops;
    p->n_loops       = 0;
    if (!parse_statements(p, ends, out, false)) return false;
    p->n_loops = n_loops;
    return true;
}

static bool parse_macro(jparser *p, jnode *n) {
    if (!parse_advance(p)) return false;
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a macro's name");
    n->value = p->now.value;
    return parse_advance(p) && parse_parameters(p, &n->a) && parse_function(p, "endmacro", &n->c);
}

static bool parse_call_block(jparser *p, jnode *n) {
    if (!parse_advance(p)) return false;
    if (parse_is(p, JT_LPAREN) && !parse_parameters(p, &n->a)) return false;
    if (!parse_expression(p, &n->b)) return false;
    if (n->b->kind != JN_CALL) return jinja_fail(p->j, "a call block needs a call");
    return parse_function(p, "endcall", &n->c);
}

static bool parse_generation(jparser *p, jnode *n) {
    return parse_advance(p) && parse_function(p, "endgeneration", &n->c);
}

static bool parse_filter_block(jparser *p, jnode *n) {
    if (!parse_advance(p) || !parse_filter(p, &n->b)) return false;
    while (parse_is(p, JT_PIPE))
        if (!parse_advance(p) || !parse_filter(p, &n->b)) return false;
    return parse_statements(p, "endfilter", &n->c, false);
}

static bool parse_with(jparser *p, jnode *n) {
    jnode **target = &n->a, **value = &n->b;
    if (!parse_advance(p)) return false;
    while (!parse_is(p, JT_BLOCK_END)) {
        if (n->a && !parse_expect(p, JT_COMMA, "','")) return false;
        if (!parse_tuple(p, PARSE_TARGET, false, NULL, target)) return false;
        if (!parse_expect(p, JT_ASSIGN, "'='") || !parse_expression(p, value)) return false;
        target = &(*target)->next;
        value  = &(*value)->next;
    }
    return parse_statements(p, "endwith", &n->c, false);
}

static bool parse_jump(jparser *p, jnode *n) {
    if (!p->n_loops) return jinja_fail(p->j, "'%.*s' outside a loop", STR_ARG(jv_str(&n->value)));
    return parse_advance(p);
}

/* {% print a, b %} */
static bool parse_print(jparser *p, jnode **out) {
    jnode **tail = out;
    if (!parse_advance(p)) return false;
    while (!parse_is(p, JT_BLOCK_END)) {
        if (*out && !parse_expect(p, JT_COMMA, "','")) return false;
        jnode *n = parse_node(p, JN_OUTPUT);
        if (!n || !parse_expression(p, &n->a) || !parse_adopt_all(p, n)) return false;
        *tail = n;
        tail  = &n->next;
    }
    return true;
}

typedef struct parse_tag {
    const char *name;
    jnode_kind  kind;
    bool      (*parse)(jparser *p, jnode *n);
} parse_tag;

static const parse_tag parse_tags[] = {
    {"if", JN_IF, parse_if},
    {"for", JN_FOR, parse_for},
    {"set", JN_SET, parse_set},
    {"macro", JN_MACRO, parse_macro},
    {"call", JN_CALL_BLOCK, parse_call_block},
    {"generation", JN_GENERATION, parse_generation},
    {"filter", JN_FILTER_BLOCK, parse_filter_block},
    {"with", JN_WITH, parse_with},
    {"break", JN_BREAK, parse_jump},
    {"continue", JN_CONTINUE, parse_jump},
};

/* The statement whose name stands now, up to the end of its last tag. */
static bool parse_statement(jparser *p, const char *ends, jnode **out) {
    if (!parse_nest(p)) return false;
    if (!parse_is(p, JT_NAME)) return parse_fail(p, "a tag's name");
    size_t i = 0;
    while (i < COUNT_OF(parse_tags) && !parse_is_name(p, parse_tags[i].name)) i++;
    if (i < COUNT_OF(parse_tags)) {
        jnode *n = parse_node(p, parse_tags[i].kind);
        *out     = n;
        if (!n || !parse_tags[i].parse(p, n) || !parse_adopt_all(p, n)) return false;
    } else if (parse_is_name(p, "print")) {
        if (!parse_print(p, out)) return false;
    } else {
        bool known = parse_name_in(p, "block extends include import from autoescape");
        return jinja_fail(p->j, "%s tag '%.*s'%s%s", known ? "unsupported" : "unknown", STR_ARG(jv_str(&p->now.value)),
                          ends ? "; to be closed here: " : "", ends ? ends : "");
    }
    p->nest--;
    return parse_expect(p, JT_BLOCK_END, "'%}'");
}

static bool parse_body(jparser *p, const char *ends, jnode **out) {
    jnode **tail = out;
    *out         = NULL;
    for (;;) {
        switch (p->now.kind) {
        case JT_DATA:
            if (!(*tail = parse_node(p, JN_DATA)) || !parse_advance(p)) return false;
            break;
        case JT_VARIABLE_BEGIN:
            if (!(*tail = parse_node(p, JN_OUTPUT)) || !parse_advance(p)) return false;
            if (!parse_tuple(p, PARSE_FULL, false, NULL, &(*tail)->a) || !parse_adopt_all(p, *tail)) return false;
            if (!parse_expect(p, JT_VARIABLE_END, "'}}'")) return false;
            break;
        case JT_BLOCK_BEGIN:
            if (!parse_advance(p)) return false;
            if (ends && parse_name_in(p, ends)) return true;
            if (!parse_statement(p, ends, tail)) return false;
            break;
        default:
            if (!ends) return true;
            p->j->line = p->now.line;
            return jinja_fail(p->j, "the template ends where one of these is missing: %s", ends);
        }
        while (*tail) tail = &(*tail)->next;
    }
}

static bool jinja_parse(jinja *j, str text, jnode **out) {
    jparser p;
    memset(&p, 0, sizeof p);
    p.j     = j;
    j->line = 1;
    return jlexer_open(&p.lexer, j, text) && parse_advance(&p) && parse_body(&p, NULL, out);
}
