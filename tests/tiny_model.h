/* A tiny llama or arcee model with random weights, as a GGUF in memory and as plain floats, and its forward pass in
 * double precision: the plainest code that can be right, for comparing the runtime with. */
#ifndef NOVA_TINY_MODEL_H
#define NOVA_TINY_MODEL_H

#include "gguf_writer.h"
#include "test.h"

#define TINY_LAYERS 3
#define TINY_VOCAB  (3 + 256 + 5)

typedef struct tiny_layer { float *attn_norm, *q, *k, *v, *out, *ffn_norm, *gate, *up, *down; } tiny_layer;

typedef struct tiny {
    uint32_t   n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, n_ctx;
    bool       arcee;
    float     *embd, *norm, *head;
    tiny_layer layers[TINY_LAYERS];
    gguf_writer file;
    unsigned char *bytes;   /* the file */
    size_t     n_bytes;
} tiny;

static float tiny_massive;   /* not 0: one channel of the residual stream is so many times as large as the others */

static float *tiny_random(size_t n, float scale, float around) {
    float *w = (float *)malloc(n * sizeof *w);
    for (size_t i = 0; i < n; i++) w[i] = around + scale * test_uniform();
    return w;
}

static float *tiny_matrix(tiny *t, const char *name, uint32_t n_in, uint32_t n_out, float gain) {
    float   *w = tiny_random((size_t)n_in * n_out, gain * sqrtf(3.0f / (float)n_in), 0);
    uint64_t ne[2];
    ne[0] = n_in;
    ne[1] = n_out;
    if (tiny_massive != 0 && !strcmp(name, "token_embd.weight"))
        for (uint32_t r = 0; r < n_out; r++) w[(size_t)r * n_in + 3] *= tiny_massive;
    gw_tensor(&t->file, name, TYPE_F32, 2, ne, w, (size_t)n_in * n_out * sizeof *w);
    return w;
}

static float *tiny_vector(tiny *t, const char *name, uint32_t n) {
    float   *w = tiny_random(n, 0.5f, 1.0f);
    uint64_t ne = n;
    gw_tensor(&t->file, name, TYPE_F32, 1, &ne, w, n * sizeof *w);
    return w;
}

static void tiny_vocabulary(tiny *t) {
    static char        bytes[256][8];
    static const char *tokens[TINY_VOCAB];
    static float       scores[TINY_VOCAB];
    static int32_t     types[TINY_VOCAB];
    static const char *const first[3] = {"<unk>", "<s>", "</s>"}, *const last[5] = {"\xe2\x96\x81", "a", "b", "ab", "\xe2\x96\x81" "a"};
    for (int i = 0; i < TINY_VOCAB; i++) {
        if (i >= 3 && i < 259) snprintf(bytes[i - 3], sizeof bytes[0], "<0x%02X>", i - 3);
        tokens[i] = i < 3 ? first[i] : i < 259 ? bytes[i - 3] : last[i - 259];
        scores[i] = i < 259 ? 0.0f : -(float)(i - 258);
        types[i]  = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
    }
    gw_str(&t->file, "tokenizer.ggml.model", "llama");
    gw_array_str(&t->file, "tokenizer.ggml.tokens", tokens, NULL, TINY_VOCAB);
    gw_array(&t->file, "tokenizer.ggml.scores", GW_F32, scores, TINY_VOCAB);
    gw_array(&t->file, "tokenizer.ggml.token_type", GW_I32, types, TINY_VOCAB);
    gw_u32(&t->file, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(&t->file, "tokenizer.ggml.eos_token_id", 2);
    gw_bool(&t->file, "tokenizer.ggml.add_bos_token", true);
    gw_str(&t->file, "tokenizer.chat_template",
                    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
}

static void tiny_u32(tiny *t, const char *key, uint32_t v) {
    char name[80];
    snprintf(name, sizeof name, "%s.%s", t->arcee ? "arcee" : "llama", key);
    gw_u32(&t->file, name, v);
}

static void tiny_f32(tiny *t, const char *key, float v) {
    char name[80];
    snprintf(name, sizeof name, "%s.%s", t->arcee ? "arcee" : "llama", key);
    gw_f32(&t->file, name, v);
}

/* Shapes come from the seed. n_layer at most TINY_LAYERS. */
static void tiny_make(tiny *t, uint32_t n_layer, bool arcee) {
    memset(t, 0, sizeof *t);
    t->n_layer   = n_layer;
    t->arcee     = arcee;
    t->head_dim  = 8 + 8 * test_below(3);
    t->n_head_kv = 1 + test_below(2);
    t->n_head    = t->n_head_kv * (1 + test_below(3));
    t->n_embd    = t->head_dim * t->n_head;
    t->n_ff      = 40 + 8 * test_below(10);
    t->n_vocab   = TINY_VOCAB;
    t->n_ctx     = 1024;
    gw_init(&t->file);
    gw_str(&t->file, "general.architecture", arcee ? "arcee" : "llama");
    gw_str(&t->file, "general.name", "tiny");
    tiny_u32(t, "context_length", t->n_ctx);
    tiny_u32(t, "embedding_length", t->n_embd);
    tiny_u32(t, "block_count", n_layer);
    tiny_u32(t, "feed_forward_length", t->n_ff);
    tiny_u32(t, "attention.head_count", t->n_head);
    tiny_u32(t, "attention.head_count_kv", t->n_head_kv);
    tiny_f32(t, "attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_f32(t, "rope.freq_base", 1000.0f);
    tiny_vocabulary(t);
    uint32_t kv = t->n_head_kv * t->head_dim;
    t->embd = tiny_matrix(t, "token_embd.weight", t->n_embd, t->n_vocab, 4.0f);
    for (uint32_t i = 0; i < n_layer; i++) {
        tiny_layer *l = &t->layers[i];
        char        name[64];
#define TINY_NAME(suffix) (snprintf(name, sizeof name, "blk.%u." suffix ".weight", i), name)
        l->attn_norm = tiny_vector(t, TINY_NAME("attn_norm"), t->n_embd);
        l->q         = tiny_matrix(t, TINY_NAME("attn_q"), t->n_embd, t->n_embd, 1.5f);
        l->k         = tiny_matrix(t, TINY_NAME("attn_k"), t->n_embd, kv, 1.5f);
        l->v         = tiny_matrix(t, TINY_NAME("attn_v"), t->n_embd, kv, 1.0f);
        l->out       = tiny_matrix(t, TINY_NAME("attn_output"), t->n_embd, t->n_embd, 1.5f);
        l->ffn_norm  = tiny_vector(t, TINY_NAME("ffn_norm"), t->n_embd);
        if (!arcee) l->gate = tiny_matrix(t, TINY_NAME("ffn_gate"), t->n_embd, t->n_ff, 1.5f);
        l->up        = tiny_matrix(t, TINY_NAME("ffn_up"), t->n_embd, t->n_ff, 1.0f);
        l->down      = tiny_matrix(t, TINY_NAME("ffn_down"), t->n_ff, t->n_embd, 1.0f);
#undef TINY_NAME
    }
    t->norm = tiny_vector(t, "output_norm.weight", t->n_embd);
    t->head = tiny_matrix(t, "output.weight", t->n_embd, t->n_vocab, 2.0f);
    t->bytes = gw_exact(&t->file, &t->n_bytes);
}

static void tiny_free(tiny *t) {
    gw_free(&t->file);
    free(t->bytes);
    free(t->embd), free(t->norm), free(t->head);
    for (uint32_t i = 0; i < t->n_layer; i++) {
        tiny_layer *l = &t->layers[i];
        free(l->attn_norm), free(l->q), free(l->k), free(l->v), free(l->out);
        free(l->ffn_norm), free(l->gate), free(l->up), free(l->down);
    }
}

static void tiny_multiply(double *y, const float *w, const double *x, uint32_t n_in, uint32_t n_out) {
    for (uint32_t r = 0; r < n_out; r++) {
        y[r] = 0;
        for (uint32_t i = 0; i < n_in; i++) y[r] += (double)w[(size_t)r * n_in + i] * x[i];
    }
}

static void tiny_norm(double *y, const double *x, const float *w, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / n + 1e-5) * (double)w[i];
}

static void tiny_rope(double *x, uint32_t n, int64_t position) {
    for (uint32_t i = 0; i < n / 2; i++) {
        double a = (double)position * pow(1000.0, -2.0 * i / n), c = cos(a), s = sin(a), u = x[2 * i], v = x[2 * i + 1];
        x[2 * i]     = u * c - v * s;
        x[2 * i + 1] = u * s + v * c;
    }
}

static void tiny_attend(const tiny *t, double *out, const double *q, const double *k, const double *v, uint32_t n) {
    uint32_t d = t->head_dim, kv = t->n_head_kv * d;
    double  *p = (double *)malloc(n * sizeof *p);
    for (uint32_t h = 0; h < t->n_head; h++) {
        uint32_t g = h / (t->n_head / t->n_head_kv);
        double   top = -1e300, sum = 0;
        for (uint32_t j = 0; j < n; j++) {
            p[j] = 0;
            for (uint32_t i = 0; i < d; i++) p[j] += q[h * d + i] * k[(size_t)j * kv + g * d + i];
            p[j] /= sqrt((double)d);
            if (p[j] > top) top = p[j];
        }
        for (uint32_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
        for (uint32_t i = 0; i < d; i++) {
            out[h * d + i] = 0;
            for (uint32_t j = 0; j < n; j++) out[h * d + i] += p[j] / sum * v[(size_t)j * kv + g * d + i];
        }
    }
    free(p);
}

static void tiny_feed_forward(const tiny *t, const tiny_layer *l, double *x) {
    double *n = (double *)malloc(t->n_embd * sizeof(double)), *y = (double *)malloc(t->n_embd * sizeof(double));
    double *g = (double *)malloc(t->n_ff * sizeof(double)), *u = (double *)malloc(t->n_ff * sizeof(double));
    tiny_norm(n, x, l->ffn_norm, t->n_embd);
    tiny_multiply(u, l->up, n, t->n_embd, t->n_ff);
    if (l->gate) tiny_multiply(g, l->gate, n, t->n_embd, t->n_ff);
    for (uint32_t i = 0; i < t->n_ff; i++) u[i] = l->gate ? g[i] / (1 + exp(-g[i])) * u[i] : u[i] > 0 ? u[i] * u[i] : 0;
    tiny_multiply(y, l->down, u, t->n_ff, t->n_embd);
    for (uint32_t i = 0; i < t->n_embd; i++) x[i] += y[i];
    free(n), free(y), free(g), free(u);
}

/* Logits [n][n_vocab] behind every one of the ids. */
static double *tiny_logits(const tiny *t, const int32_t *ids, uint32_t n) {
    uint32_t e = t->n_embd, kv = t->n_head_kv * t->head_dim;
    double  *x = (double *)malloc((size_t)n * e * sizeof *x), *k = (double *)malloc((size_t)n * kv * sizeof *k);
    double  *v = (double *)malloc((size_t)n * kv * sizeof *v), *logits = (double *)malloc((size_t)n * t->n_vocab * sizeof *logits);
    double  *h = (double *)malloc(e * sizeof *h), *q = (double *)malloc(e * sizeof *q), *a = (double *)malloc(e * sizeof *a);
    for (size_t i = 0; i < (size_t)n * e; i++) x[i] = (double)t->embd[(size_t)ids[i / e] * e + i % e];
    for (uint32_t il = 0; il < t->n_layer; il++) {
        const tiny_layer *l = &t->layers[il];
        for (uint32_t c = 0; c < n; c++) {
            double *xc = x + (size_t)c * e;
            tiny_norm(h, xc, l->attn_norm, e);
            tiny_multiply(q, l->q, h, e, e);
            tiny_multiply(k + (size_t)c * kv, l->k, h, e, kv);
            tiny_multiply(v + (size_t)c * kv, l->v, h, e, kv);
            for (uint32_t i = 0; i < t->n_head; i++) tiny_rope(q + i * t->head_dim, t->head_dim, c);
            for (uint32_t i = 0; i < t->n_head_kv; i++) tiny_rope(k + (size_t)c * kv + i * t->head_dim, t->head_dim, c);
            tiny_attend(t, a, q, k, v, c + 1);
            tiny_multiply(h, l->out, a, e, e);
            for (uint32_t i = 0; i < e; i++) xc[i] += h[i];
            tiny_feed_forward(t, l, xc);
        }
    }
    for (uint32_t c = 0; c < n; c++) {
        tiny_norm(h, x + (size_t)c * e, t->norm, e);
        tiny_multiply(logits + (size_t)c * t->n_vocab, t->head, h, e, t->n_vocab);
    }
    free(x), free(k), free(v), free(h), free(q), free(a);
    return logits;
}

#endif
