/* Greedy continuations by libllama on the CPU, for comparison; built where llama.cpp is installed.
 *   reference_greedy MODEL.gguf N OUT.f32 < prompts > ids
 * stdin:  a prompt a line, as ids parted by commas.
 * stdout: for each prompt the N ids that follow, one evaluated at a time, parted by commas.
 * OUT:    float32 [prompts][N][n_vocab], the logits that each was chosen from. */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char *text, void *user) { (void)level; (void)text; (void)user; }

static int decode(struct llama_context *ctx, struct llama_batch *batch, const llama_token *ids, int n, int pos) {
    batch->n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch->token[i]     = ids[i];
        batch->pos[i]       = pos + i;
        batch->n_seq_id[i]  = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i]    = i + 1 == n;
    }
    return llama_decode(ctx, *batch);
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: reference_greedy MODEL.gguf N OUT.f32 < prompts > ids\n"), 2;
    int n_predict = atoi(argv[2]);
    llama_log_set(quiet, NULL);
    ggml_backend_load_all();
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model) return fprintf(stderr, "cannot load %s\n", argv[1]), 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 1024;
    cp.n_batch = cp.n_ubatch = 512;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    struct llama_batch batch = llama_batch_init(512, 0, 1);
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE *out = fopen(argv[3], "wb");
    static char line[65536];
    if (!ctx || !out) return 1;
    while (fgets(line, sizeof line, stdin)) {
        static llama_token ids[512];
        int n = 0;
        for (char *p = strtok(line, ",\n"); p && n < 512; p = strtok(NULL, ",\n")) ids[n++] = atoi(p);
        llama_memory_clear(llama_get_memory(ctx), true);
        if (decode(ctx, &batch, ids, n, 0)) return 1;
        for (int i = 0; i < n_predict; i++) {
            const float *logits = llama_get_logits_ith(ctx, -1);
            llama_token best = 0;
            for (int v = 1; v < vocab; v++)
                if (logits[v] > logits[best]) best = v;
            fwrite(logits, sizeof(float), (size_t)vocab, out);
            printf("%s%d", i ? "," : "", best);
            if (i + 1 < n_predict && decode(ctx, &batch, &best, 1, n + i)) return 1;
        }
        printf("\n");
    }
    return fclose(out) != 0;
}
