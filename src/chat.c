/* Chat templates: see chat.h. */
#include "chat.h"

#include <fenv.h>

#include "json.h"
#include "platform.h"

static bool chat_fail(jinja *j, const char *what, const char *why) {
    if (j->failed == NOVA_OK) j->failed = fail(j->error, NOVA_ERROR_ARGUMENT, "%s: %s", what, why);
    return false;
}

/* Reads JSON that must be of a kind. */
static bool chat_read(jinja *j, const char *what, const char *json, jkind kind, const tokenizer *marks, jvalue *out) {
    if (!json_read(j, what, str_c(json), marks, out)) return false;
    return out->kind == kind || chat_fail(j, what, kind == J_LIST ? "an array is expected" : "an object is expected");
}

static bool chat_set_string(jinja *j, jdict *d, const char *key, str text, const tokenizer *marks) {
    jvalue v;
    return json_string(j, text, marks, &v) && jdict_set_c(j, d, key, v);
}

static bool chat_set_members(jinja *j, jdict *d, const jdict *members) {
    for (uint32_t i = 0; i < members->n; i++)
        if (!jdict_set(j, d, &members->pairs[i].key, &members->pairs[i].value)) return false;
    return true;
}

static bool chat_message(jinja *j, const chat_input *in, size_t index, jvalue *out) {
    const nova_message *m = &in->chat->messages[index];
    jdict              *d = jdict_open(j);
    jvalue              v;
    char                what[64];
    if (!d) return false;
    snprintf(what, sizeof what, "messages[%zu]", index);
    if (!m->role) return chat_fail(j, what, "the role is NULL");
    if (!chat_set_string(j, d, "role", str_c(m->role), in->marks)) return false;
    if (m->content && !chat_set_string(j, d, "content", str_c(m->content), in->marks)) return false;
    if (!m->content && m->tool_calls_json && !jdict_set_c(j, d, "content", jv_none())) return false;
    if (m->tool_calls_json) {
        snprintf(what, sizeof what, "messages[%zu].tool_calls_json", index);
        if (!chat_read(j, what, m->tool_calls_json, J_LIST, in->marks, &v)) return false;
        if (!jdict_set_c(j, d, "tool_calls", v)) return false;
    }
    if (m->extra_json) {
        snprintf(what, sizeof what, "messages[%zu].extra_json", index);
        if (!chat_read(j, what, m->extra_json, J_DICT, in->marks, &v)) return false;
        if (!chat_set_members(j, d, v.u.dict)) return false;
    }
    *out = jv_dict(d);
    return true;
}

static bool chat_messages(jinja *j, const chat_input *in, jvalue *out) {
    jlist  list;
    jvalue message;
    jlist_open(&list, j);
    for (size_t i = 0; i < in->chat->n_messages; i++)
        if (!chat_message(j, in, i, &message) || !jlist_add(&list, message)) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

/* Read twice where strings are marked, to take those of the object itself unmarked. */
static bool chat_extra_variables(jinja *j, const chat_input *in, jdict *d) {
    const char *what = "variables_json", *json = in->chat->variables_json;
    jvalue      plain, marked;
    if (!json) return true;
    if (!chat_read(j, what, json, J_DICT, NULL, &plain)) return false;
    marked = plain;
    if (in->marks && !chat_read(j, what, json, J_DICT, in->marks, &marked)) return false;
    for (uint32_t i = 0; i < plain.u.dict->n; i++) {
        const jpair *pair = &plain.u.dict->pairs[i];
        bool         own  = jv_is_string(&pair->value) || i >= marked.u.dict->n;
        if (!jdict_set(j, d, &pair->key, own ? &pair->value : &marked.u.dict->pairs[i].value)) return false;
    }
    return true;
}

static bool chat_variables(jinja *j, const chat_input *in, jdict *d) {
    jvalue messages, tools = jv_none();
    if (!chat_messages(j, in, &messages)) return false;
    if (in->chat->tools_json && !chat_read(j, "tools_json", in->chat->tools_json, J_LIST, in->marks, &tools)) return false;
    if (in->bos.n && !chat_set_string(j, d, "bos_token", in->bos, NULL)) return false;
    if (in->eos.n && !chat_set_string(j, d, "eos_token", in->eos, NULL)) return false;
    return jdict_set_c(j, d, "messages", messages) && jdict_set_c(j, d, "tools", tools) &&
           jdict_set_c(j, d, "documents", jv_none()) &&
           jdict_set_c(j, d, "add_generation_prompt", jv_bool(!in->chat->no_generation_prompt)) &&
           chat_extra_variables(j, in, d);
}

static nova_result chat_render(const chat_input *in, const host *h, text_buffer *out, nova_error *error) {
    jinja      j;
    size_t     before = out->n;
    int        way    = fegetround();         /* the C library's, when it prints and reads numbers: x87's on x86 */
    float_mode mode   = float_mode_enter();
    fesetround(FE_TONEAREST);
    error_clear(error);
    jinja_open(&j, h, error);
    j.now             = in->chat->now ? in->chat->now : clock_unix();
    for (size_t c = 0; in->marks && c < sizeof j.begins; c++)
        j.begins[c] = tokenizer_begins_control(in->marks, (char)c);
    jdict *variables  = jdict_open(&j);
    if (variables && chat_variables(&j, in, variables)) jinja_run(&j, in->template_text, variables, out);
    jinja_close(&j);
    fesetround(way);
    float_mode_leave(mode);
    if (j.failed != NOVA_OK) {
        out->n      = before;
        out->failed = false;
    }
    return j.failed;
}
