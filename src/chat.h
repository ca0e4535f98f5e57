/* Chat templates: a conversation to text by the template of its model.
 * Source of the semantics: Jinja 3.1 as Hugging Face's transformers set it up: an immutable sandbox, trim_blocks and
 * lstrip_blocks, loop controls, generation blocks, tojson without HTML escapes, raise_exception, strftime_now. */
#ifndef NOVA_CHAT_H
#define NOVA_CHAT_H

#include "jinja_run.h"
#include "tokenizer.h"

typedef struct chat_input {
    const nova_chat *chat;
    str              template_text;
    str              bos, eos;   /* the texts of bos_token and eos_token; empty: the variable is not defined */
    const tokenizer *marks;      /* not NULL: mark special tokens in everything that comes from messages and tools */
} chat_input;

/* Bounds of one rendering: a hostile template ends in an error within these. */
#define CHAT_MAX_BYTES JINJA_MAX_BYTES

/* Renders into `out` (initialised by the caller), which a failure leaves as it was. The template's variables are
 * messages, tools (none when there are none), documents (none), add_generation_prompt, bos_token, eos_token, and over
 * these the members of variables_json. A message has the members that are given: role, content, tool_calls, and over
 * these those of extra_json; content is none where there are tool calls instead. Strings of variables_json itself are
 * the host's own words and not marked; those inside its lists and objects (documents) are.
 * Errors: TEMPLATE (line and reason; the template's own message from raise_exception), ARGUMENT (bad JSON in the chat),
 * MEMORY. */
static nova_result chat_render(const chat_input *in, const host *h, text_buffer *out, nova_error *error);

#endif
