/* libFuzzer target for chat templates. The input is parts with zero bytes between them:
 *   template, content, extra_json, tool_calls_json, tools_json, variables_json
 * (empty: none), rendered plainly and with marks, which must give the same but for the marks, within the bounds.
 * With -DFUZZ_REPLAY a main runs the files and folders that are given (fuzz_replay.h). */
#define JINJA_SCRUB(p, n) memset(p, 0xDB, n)   /* so that nothing reads what a region left */

#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#include "toy_vocab.h"
#ifdef FUZZ_REPLAY
#include "fuzz_replay.h"
#endif

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static size_t bytes_now, bytes_peak;

static void *fuzz_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    void *p = libc_alloc(user, pointer, old_size, new_size);
    if (!p && new_size) return NULL;
    bytes_now += new_size - old_size;
    if (bytes_now > bytes_peak) bytes_peak = bytes_now;
    return p;
}

/* The tokenizer whose control tokens are marked: of the toy vocabulary, opened once. */
static const tokenizer *fuzz_tokenizer(void) {
    static arena      a;
    static host       h;
    static toy        vocabulary;
    static tokenizer *t;
    nova_error        error;
    gguf              g;
    if (t) return t;
    h = host_init(NULL, NULL, NULL, NULL);
    arena_init(&a, &h);
    toy_bpe(&vocabulary, "gpt-2");
    toy_file f = toy_write(&vocabulary);
    need(gguf_read(&g, &a, f.p, f.n, true, &error) == NOVA_OK, "the toy vocabulary is a file");
    need(tokenizer_open(&t, &a, &h, &g, &error) == NOVA_OK, "the toy vocabulary opens");
    return t;   /* the file stays, as token texts lie in it */
}

/* Renders into `out`, which the caller frees. *bound: a bound of nova's own was met. */
static nova_result render(char *const parts[6], const tokenizer *marks, text_buffer *out, host *h, bool *bound) {
    nova_message m;
    nova_chat    chat;
    chat_input   in;
    nova_error   error;
    memset(&m, 0, sizeof m);
    memset(&chat, 0, sizeof chat);
    memset(&in, 0, sizeof in);
    m.role              = "user";
    m.content           = parts[1];
    m.extra_json        = parts[2];
    m.tool_calls_json   = parts[3];
    chat.messages       = &m;
    chat.n_messages     = 1;
    chat.tools_json     = parts[4];
    chat.variables_json = parts[5];
    chat.now            = 1764547200;
    in.chat             = &chat;
    in.template_text    = str_c(parts[0] ? parts[0] : "");
    in.bos              = str_c("<|bos|>");
    in.marks            = marks;
    *h                  = host_init(fuzz_alloc, NULL, NULL, NULL);
    bytes_peak          = bytes_now;
    text_init(out, h, CHAT_MAX_BYTES);
    nova_result result = chat_render(&in, h, out, &error);
    *bound = strstr(error.message, "steps") || strstr(error.message, "MiB") || strstr(error.message, "too deep");
    need(error.code == result, "the error says what is returned");
    need(result == NOVA_OK || (error.message[0] && !strchr(error.message, '\n')), "an error is one line");
    need(result == NOVA_OK || result == NOVA_ERROR_TEMPLATE || result == NOVA_ERROR_ARGUMENT,
         "a result of the contract");
    need(result == NOVA_OK || out->n == 0, "a failure leaves no text");
    need(bytes_peak <= CHAT_MAX_BYTES, "the bound on memory");
    return result;
}

static size_t without_marks(char *p, size_t n) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != LETTER_MARK) p[to++] = p[i];
    return to;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char       *parts[6], *copy = (char *)malloc(size + 1);
    text_buffer plain, marked;
    host        h, h2;
    bool        bound, bound2;
    if (size) memcpy(copy, data, size);
    copy[size] = 0;
    char *p    = copy;
    for (size_t i = 0; i < 6; i++) {
        parts[i] = *p ? p : NULL;
        p += strlen(p);
        if (p < copy + size) p++;
    }
    nova_result result = render(parts, NULL, &plain, &h, &bound),
                other  = render(parts, fuzz_tokenizer(), &marked, &h2, &bound2);
    if (!bound && !bound2) {
        need(result == other, "marks change no result");
        marked.n = without_marks(marked.p, marked.n);
        need(str_eq(str_of(plain.p, plain.n), str_of(marked.p, marked.n)), "marks change no text");
    }
    text_free(&plain);
    text_free(&marked);
    need(bytes_now == 0, "all memory is freed");
    free(copy);
    return 0;
}
