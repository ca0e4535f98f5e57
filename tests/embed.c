/* A program that holds nova, seen from outside: built as C and as C++ against either object, and with nova.c inside its own
 * file, by `make test`. It needs no model: it checks what must hold before one is there. */
#ifdef EMBED_ONE_FILE
#include "nova.c"
#else
#include "nova.h"
#endif
#include "test.h"

#include <string.h>

static size_t held, calls, fail_at_call;

/* Counts what is held, checks the old size it is told, and can fail at the Nth call. */
static void *counting_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    CHECK(user == &held, "the host's pointer comes along");
    if (new_size == 0) {
        if (pointer) {
            char *block = (char *)pointer - 16;
            CHECK(*(size_t *)(void *)block == old_size, "frees %zu bytes of %zu", old_size, *(size_t *)(void *)block);
            held -= old_size;
            free(block);
        }
        return NULL;
    }
    if (++calls == fail_at_call) return NULL;
    CHECK((pointer == NULL) == (old_size == 0), "old size %zu", old_size);
    char *block = (char *)realloc(pointer ? (char *)pointer - 16 : NULL, new_size + 16);
    if (!block) return NULL;
    held = held - old_size + new_size;
    memcpy(block, &new_size, sizeof new_size);
    return block + 16;
}

static int lines;
static void counting_log(void *user, nova_log_level level, const char *line) {
    (void)level;
    CHECK(user == &lines && line != NULL && strchr(line, '\n') == NULL, "one line");
    lines++;
}

static void test_words(void) {
    static const int codes[] = {
#define NUMBER(name, number, text) number,
        NOVA_RESULTS(NUMBER)
#undef NUMBER
    };
    CHECK(strcmp(nova_version(), NOVA_VERSION) == 0, "%s", nova_version());
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *text = nova_result_text((nova_result)codes[i]);
        CHECK(text != NULL && *text != 0, "a text for %d", codes[i]);
        for (size_t j = 0; j < i; j++) {
            CHECK(strcmp(text, nova_result_text((nova_result)codes[j])) != 0, "%d and %d differ", codes[i], codes[j]);
        }
    }
    CHECK(nova_result_text((nova_result)9) != NULL, "a text for a code that is none");
}

/* A chain of opens on something that is no model fails at its end as it did at its start, and leaves nothing behind. */
static void test_chain(const nova_model_desc *desc, nova_result expected) {
    nova_error error;
    memset(&error, 0x5a, sizeof error);
    nova_model *model = nova_model_open(desc, &error);
    CHECK(model == NULL, "it is no model");
    CHECK(error.code == expected, "%d: %s", error.code, error.message);
    CHECK(memchr(error.message, 0, sizeof error.message) != NULL && error.message[0] != 0, "has a message");
    CHECK(strchr(error.message, '\n') == NULL, "in one line: %s", error.message);
    nova_error first = error;

    nova_engine  *engine = nova_engine_open(model, NULL, &error);
    nova_session *session = nova_session_open(engine, NULL, &error);
    nova_token    token;
    int32_t       id = 1;
    CHECK(engine == NULL && session == NULL, "nothing opens on NULL");
    CHECK(nova_session_feed(session, &id, 1, &error) == first.code, "feed fails as the open did");
    CHECK(nova_session_next(session, &token, &error) == first.code, "next fails as the open did");
    CHECK(error.code == first.code && error.offset == first.offset && strcmp(error.message, first.message) == 0,
          "the first error stands: %s", error.message);
    CHECK(nova_session_next(session, &token, NULL) < 0, "no error wanted");
    nova_session_close(session);
    nova_engine_close(engine);
    nova_model_close(model);
    CHECK(held == 0, "%zu bytes left", held);
}

int main(void) {
    static const unsigned char nonsense[64] = {'n', 'o', 't', ' ', 'a', ' ', 'm', 'o', 'd', 'e', 'l'};
    nova_model_desc            desc;

    test_begin(1);
    test_words();

    memset(&desc, 0, sizeof desc);
    desc.alloc = counting_alloc;
    desc.alloc_user = &held;
    desc.log = counting_log;
    desc.log_user = &lines;
    test_chain(&desc, NOVA_ERROR_ARGUMENT);
    test_chain(NULL, NOVA_ERROR_ARGUMENT);
    desc.path = "no such file.gguf";
    test_chain(&desc, NOVA_ERROR_FILE);
    desc.path = ".";
    test_chain(&desc, NOVA_ERROR_FILE);
    desc.path = NULL;
    desc.data = nonsense;
    desc.size = sizeof nonsense;
    test_chain(&desc, NOVA_ERROR_FORMAT);
    desc.size = 3;
    test_chain(&desc, NOVA_ERROR_FORMAT);

    /* A container without content, and the allocator failing at each call in turn: refused every time, nothing lost. */
    static const unsigned char empty[64] = {'G', 'G', 'U', 'F', 3};
    desc.data = empty;
    desc.size = sizeof empty;
    for (fail_at_call = 1; fail_at_call < 100; fail_at_call++) {
        nova_error error;
        calls = 0;
        CHECK(nova_model_open(&desc, &error) == NULL && error.code < 0, "%s", error.message);
        CHECK(held == 0, "%zu bytes left after failure %zu", held, fail_at_call);
        if (calls < fail_at_call) break;
        CHECK(error.code == NOVA_ERROR_MEMORY, "call %zu: %s", fail_at_call, error.message);
    }
    CHECK(fail_at_call < 100, "ends");
    nova_model_close(NULL);
    nova_engine_close(NULL);
    nova_session_close(NULL);
    return test_end();
}
