/* For tests of whole engines: a tiny model with its engine and session, and the logits behind given tokens. To be included
 * behind nova.c. */
#ifndef NOVA_RIG_H
#define NOVA_RIG_H

#include "tiny_model.h"

typedef struct rig {
    nova_model   *model;
    nova_engine  *engine;
    nova_session *session;
    nova_error    error;
} rig;

/* False, with `error`, where opening fails; rig_close is called in any case. */
static bool rig_try(rig *r, const tiny *t, const nova_engine_desc *ed, const nova_session_desc *sd) {
    nova_model_desc md;
    memset(&md, 0, sizeof md);
    memset(r, 0, sizeof *r);
    md.data    = t->bytes;
    md.size    = t->n_bytes;
    r->model   = nova_model_open(&md, &r->error);
    r->engine  = nova_engine_open(r->model, ed, &r->error);
    r->session = nova_session_open(r->engine, sd, &r->error);
    return r->session != NULL;
}

static void rig_close(rig *r) {
    nova_session_close(r->session);
    nova_engine_close(r->engine);
    nova_model_close(r->model);
}

static nova_engine_desc engine_desc(uint32_t n_ctx, uint32_t n_threads) {
    nova_engine_desc d;
    memset(&d, 0, sizeof d);
    d.n_ctx     = n_ctx;
    d.n_threads = n_threads;
    d.cache_k   = NOVA_CACHE_F32;
    d.cache_v   = NOVA_CACHE_F32;
    return d;
}

static void random_ids(int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(3 + test_below(TINY_VOCAB - 3));
}

typedef struct rows { float *p; size_t n, n_vocab; } rows;

static bool keep_rows(void *user, size_t index, const float *logits) {
    rows *r = (rows *)user;
    CHECK(index == r->n, "row %zu came as number %zu", index, r->n);
    memcpy(r->p + r->n * r->n_vocab, logits, r->n_vocab * sizeof *logits);
    r->n++;
    return true;
}

/* Logits behind each of the ids, fed in pieces of `step`. */
static float *score(nova_session *s, const int32_t *ids, uint32_t n, uint32_t step, nova_error *error) {
    float *all = (float *)calloc((size_t)n * TINY_VOCAB, sizeof *all);
    for (uint32_t at = 0; at < n; at += step) {
        rows r;
        r.p       = all + (size_t)at * TINY_VOCAB;
        r.n       = 0;
        r.n_vocab = TINY_VOCAB;
        uint32_t m = at + step < n ? step : n - at;
        CHECK(nova_session_score(s, ids + at, m, keep_rows, &r, error) == NOVA_OK, "%s", error->message);
        CHECK(r.n == m, "%zu rows for %u tokens", r.n, m);
    }
    return all;
}

static double nmse(const float *a, const double *b, size_t n) {
    double err = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        err += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        sum += b[i] * b[i];
    }
    return err / sum;
}

#endif
