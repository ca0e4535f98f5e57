/* Any bytes as a GGUF file: refused with a reason, or safe to use. For libFuzzer; with -DFUZZ_REPLAY a program that
 * replays the files and folders it is given. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "gguf_walk.h"
#ifdef FUZZ_REPLAY
#include "fuzz_replay.h"
#endif

#ifdef __cplusplus
extern "C"
#endif
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_read(const uint8_t *data, size_t size, bool vocab_only) {
    host       h = host_init(NULL, NULL, NULL, NULL);
    arena      a;
    gguf       g;
    nova_error error;
    error_clear(&error);
    arena_init(&a, &h);
    nova_result result = gguf_read(&g, &a, data, size, vocab_only, &error);
    if (result == NOVA_OK) walk_gguf(&g);
    else if (error.code != result || !error.message[0] || (error.offset != NOVA_NOWHERE &&
                                                           error.offset > size)) abort();
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *exact = (uint8_t *)malloc(size ? size : 1);   /* a block that ends where the file ends */
    if (!exact) return 0;
    if (size) memcpy(exact, data, size);
    fuzz_read(exact, size, false);
    fuzz_read(exact, size, true);
    free(exact);
    return 0;
}
