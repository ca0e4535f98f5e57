/* Renders chat templates for tests/check_chat.py. Every line of the input is a request in JSON:
 *   {"template": TEXT, "messages": [{"role": , "content": , "tool_calls_json": , "extra_json": }, ...], "tools_json": ,
 *    "variables_json": , "bos": , "eos": , "no_generation_prompt": , "now": }
 * of which all but the first two may be left out; every line of the output is the answer, {"text": TEXT} or
 * {"error": MESSAGE}. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#define MOST_MESSAGES 4096

static jinja request_memory;   /* where a request and its strings live */

static const jvalue *member(const jvalue *object, const char *name) {
    jvalue key = jv_c(name);
    return object->kind == J_DICT ? jdict_get(&request_memory, object->u.dict, &key) : NULL;
}

/* A string member, terminated; NULL when there is none. */
static const char *text_member(const jvalue *object, const char *name) {
    const jvalue *v = member(object, name);
    if (!v || v->kind != J_STRING) return NULL;
    char *z = (char *)jinja_alloc(&request_memory, (size_t)v->n + 1);
    if (!z) return NULL;
    memcpy(z, v->u.s, v->n);
    z[v->n] = 0;
    return z;
}

static str str_member(const jvalue *object, const char *name) {
    const jvalue *v = member(object, name);
    return v && v->kind == J_STRING ? jv_str(v) : str_of("", 0);
}

static void answer(const char *key, const char *p, size_t n) {
    jtext      t;
    json_style style;
    jvalue     out = jv_string(p, n, 0);
    memset(&style, 0, sizeof style);
    jtext_open(&t, &request_memory);
    if (jtext_add_json(&t, &out, &style) && jtext_close(&t, &out))
        printf("{\"%s\": %.*s}\n", key, (int)out.n, out.u.s);
    else
        printf("{\"error\": \"the answer is too long\"}\n");
}

static void render(const jvalue *request, nova_message *messages) {
    nova_chat     chat;
    chat_input    in;
    nova_error    error;
    text_buffer   out;
    host          h        = host_init(NULL, NULL, NULL, NULL);
    const jvalue *list     = member(request, "messages"), *now = member(request, "now");
    const jvalue *no_start = member(request, "no_generation_prompt");
    memset(&chat, 0, sizeof chat);
    memset(&in, 0, sizeof in);
    for (uint32_t i = 0; list && list->kind == J_LIST && i < list->n && i < MOST_MESSAGES; i++) {
        const jvalue *m             = &list->u.items[i];
        messages[i].role            = text_member(m, "role");
        messages[i].content         = text_member(m, "content");
        messages[i].tool_calls_json = text_member(m, "tool_calls_json");
        messages[i].extra_json      = text_member(m, "extra_json");
        chat.n_messages             = i + 1;
    }
    chat.messages             = messages;
    chat.tools_json           = text_member(request, "tools_json");
    chat.variables_json       = text_member(request, "variables_json");
    chat.no_generation_prompt = no_start && jv_true(no_start);
    chat.now                  = now ? now->u.i : 0;
    in.chat                   = &chat;
    in.template_text          = str_member(request, "template");
    in.bos                    = str_member(request, "bos");
    in.eos                    = str_member(request, "eos");
    text_init(&out, &h, CHAT_MAX_BYTES);
    if (chat_render(&in, &h, &out, &error) == NOVA_OK) answer("text", out.p ? out.p : "", out.n);
    else answer("error", error.message, strlen(error.message));
    text_free(&out);
}

static bool read_line(text_buffer *line) {
    int c;
    line->n = 0;
    while ((c = getchar()) != EOF && c != '\n') {
        char b = (char)c;
        if (!text_append(line, &b, 1)) return false;
    }
    return c != EOF || line->n;
}

int main(void) {
    static nova_message messages[MOST_MESSAGES];
    host        h = host_init(NULL, NULL, NULL, NULL);
    text_buffer line;
    text_init(&line, &h, 0);
    while (read_line(&line)) {
        nova_error error;
        jvalue     request;
        jinja_open(&request_memory, &h, &error);
        if (json_read(&request_memory, "request", str_of(line.p, line.n), NULL, &request)) render(&request, messages);
        else printf("{\"error\": \"bad request: %s\"}\n", error.message);
        fflush(stdout);
        jinja_close(&request_memory);
    }
    text_free(&line);
    return 0;
}
