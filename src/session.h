/* A session: one text, its place in the cache, its sampler. */
#ifndef NOVA_SESSION_H
#define NOVA_SESSION_H

#include "engine.h"
#include "sample.h"

#define NO_TOKEN       (-1)

struct nova_session {
    nova_engine      *engine;
    nova_session_desc desc;
    uint32_t          n_sinks;
    kv_seq            seq;
    int32_t          *ids;        /* the held tokens, evaluated ones: [n_ctx] */
    uint64_t          hash;       /* over all tokens evaluated since the start */
    int32_t           pending;    /* chosen, not evaluated, or NO_TOKEN */
    bool              has_logits; /* `logits` are those behind the last evaluated token */
    float            *logits;     /* [n_vocab] */
    bool              sparse;     /* all of `logits` but the last choices is -infinity */
    uint32_t          n_choices, choices[GPU_MOST_CHOICES];   /* the ids that are not */
    int32_t           only_choice;   /* the likeliest, where nothing else is known; else NO_TOKEN */
    sampler           sample;
    char             *text;       /* of the last token, terminated */
    size_t            text_size;
    char              held_back[4];   /* the start of a character whose rest is to come */
    size_t            n_held_back;
    atomic_int32      cancel;
    size_t            bytes;      /* of this block */
};

/* Room for n tokens in the cache, which a sliding session makes; the page that the next one goes to is the session's own then. */
static nova_result session_reserve(nova_session *s, uint32_t n, nova_error *error);
/* A session that is NULL because an open failed: that error stands. */
static nova_result no_session(nova_error *error);

#endif
