/* Greedy continuations by libllama on the CPU, for comparison; built where llama.cpp is installed.
 *   reference_greedy MODEL.gguf N OUT.f32 [BACKEND.so|best [batch]] < prompts > ids
 * stdin:  a prompt a line, as ids parted by commas; behind a semicolon may stand the N ids to go along with, whatever
 *         this evaluation would have chosen.
 * stdout: for each prompt the N ids that follow, parted by commas: the likeliest ones, or those to go along with.
 * OUT:    float32 [prompts][N][n_vocab], the logits that stand before each.
 * BACKEND is one of llama.cpp's CPU backends, `best` the one that it chooses itself. Tokens are evaluated one by one
 * behind the prompt; with `batch` all at once, where the ids are known. */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IDS 1024

static void quiet(enum ggml_log_level level, const char *text, void *user) { (void)level; (void)text; (void)user; }

/* The last n_out of n ids give logits. */
static int decode(struct llama_context *ctx, struct llama_batch *batch, const llama_token *ids, int n, int pos,
                  int n_out) {
    batch->n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch->token[i]     = ids[i];
        batch->pos[i]       = pos + i;
        batch->n_seq_id[i]  = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i]    = i >= n - n_out;
    }
    return llama_decode(ctx, *batch);
}

static int read_ids(char *text, llama_token *ids) {
    int n = 0;
    for (char *p = text ? strtok(text, ",\n") : NULL; p && n < MAX_IDS; p = strtok(NULL, ",\n")) ids[n++] = atoi(p);
    return n;
}

static llama_token likeliest(const float *logits, int vocab) {
    llama_token best = 0;
    for (int v = 1; v < vocab; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 6)
        return fprintf(stderr, "usage: reference_greedy MODEL.gguf N OUT.f32 [BACKEND.so|best [batch]]\n"), 2;
    int n_predict = atoi(argv[2]), whole = argc > 5;
    llama_log_set(quiet, NULL);
    if (argc < 5 || strcmp(argv[4], "best") == 0) ggml_backend_load_all();
    else if (!ggml_backend_load(argv[4])) return fprintf(stderr, "cannot load %s\n", argv[4]), 1;
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model) return fprintf(stderr, "cannot load %s\n", argv[1]), 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = MAX_IDS;
    cp.n_batch = cp.n_ubatch = MAX_IDS;
    cp.n_threads = cp.n_threads_batch = 2;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    struct llama_batch batch = llama_batch_init(MAX_IDS, 0, 1);
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE *out = fopen(argv[3], "wb");
    static char line[65536];
    if (!ctx || !out) return 1;
    while (fgets(line, sizeof line, stdin)) {
        static llama_token ids[2 * MAX_IDS];
        char *along = strchr(line, ';');
        if (along) *along++ = 0;
        int n = read_ids(line, ids), known = read_ids(along, ids + n);
        if (n + n_predict > MAX_IDS || (along ? known != n_predict : whole)) return 2;
        llama_memory_clear(llama_get_memory(ctx), true);
        int n_first = whole ? n + n_predict - 1 : n, n_out = whole ? n_predict : 1;
        if (decode(ctx, &batch, ids, n_first, 0, n_out)) return 1;
        for (int i = 0; i < n_predict; i++) {
            const float *logits = llama_get_logits_ith(ctx, whole ? n - 1 + i : -1);
            if (!along) ids[n + i] = likeliest(logits, vocab);
            fwrite(logits, sizeof(float), (size_t)vocab, out);
            printf("%s%d", i ? "," : "", ids[n + i]);
            if (!whole && i + 1 < n_predict && decode(ctx, &batch, ids + n + i, 1, n + i, 1)) return 1;
        }
        printf("\n");
    }
    return fclose(out) != 0;
}
