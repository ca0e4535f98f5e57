/* Chat templates: an interpreter for the part of Jinja that real templates use.
 * Source of the semantics: Jinja 3.1 as Hugging Face sets it up (trim_blocks, lstrip_blocks, loop controls, tojson
 * without HTML escapes, raise_exception, strftime_now). */
#ifndef NOVA_CHAT_H
#define NOVA_CHAT_H

#include "tokenizer.h"

typedef struct chat_input {
    const nova_chat *chat;
    str              template_text;
    str              bos, eos;        /* the texts of bos_token and eos_token */
    const tokenizer *marks;           /* not NULL: mark special tokens in everything that comes from messages */
} chat_input;

/* Bounds of one rendering: a hostile template ends in an error within these. */
#define CHAT_MAX_BYTES ((size_t)8 << 20)
#define CHAT_MAX_STEPS 2000000
#define CHAT_MAX_DEPTH 64

/* Renders into `out` (initialised by the caller). Errors: TEMPLATE (line and reason; the template's own message from
 * raise_exception), ARGUMENT (bad JSON in the chat), MEMORY. */
static nova_result chat_render(const chat_input *in, const host *h, text_buffer *out, nova_error *error);

#endif
