/* Uses everything of a GGUF file that was accepted: what was let through must be safe to touch. Behind nova.c. */
#ifndef NOVA_GGUF_WALK_H
#define NOVA_GGUF_WALK_H

static volatile uint64_t walk_sum;   /* so that no read is optimised away */

static inline void walk_array(const gguf_value *v) {
    if (v->item == GGUF_STRING) {
        gguf_strings s = gguf_strings_of(v);
        str item;
        uint64_t n = 0;
        for (; gguf_strings_next(&s, &item); n++)
            for (size_t i = 0; i < item.n; i++) walk_sum += (unsigned char)item.p[i];
        if (n != v->n || s.at != v->end) abort();
    } else if (v->item != GGUF_ARRAY) {
        for (uint64_t i = 0; i < v->n; i++) {
            float f = gguf_item_f32(v, i);
            walk_sum += f > 0;
            if (v->item != GGUF_F32 && v->item != GGUF_F64) walk_sum += (uint64_t)gguf_item_int(v, i);
        }
    }
}

static inline void walk_value(const gguf *g, const gguf_meta *m) {
    char       text[200], key[300];
    uint32_t   u = 0;
    float      f = 0;
    bool       b = false;
    str        s = str_of("", 0);
    nova_error error;
    if (gguf_find(g, m->key) != &m->value) abort();
    if (m->value.data < g->data || m->value.end > g->data + g->size || m->value.data > m->value.end) abort();
    gguf_print(&m->value, text, sizeof text);
    if (strlen(text) >= sizeof text) abort();
    for (size_t size = 1; size < 12; size++) {
        gguf_print(&m->value, text, size);
        if (strlen(text) >= size) abort();
    }
    if (m->value.type == GGUF_ARRAY) walk_array(&m->value);
    if (m->key.n >= sizeof key) return;
    memcpy(key, m->key.p, m->key.n);
    key[m->key.n] = 0;
    if (gguf_get_u32(g, key, &u, &error) != NOVA_OK) walk_sum += strlen(error.message);
    if (gguf_get_f32(g, key, &f, &error) == NOVA_OK && !(f - f == 0)) abort();
    if (gguf_get_bool(g, key, &b, &error) == NOVA_OK) walk_sum += b;
    if (gguf_get_str(g, key, &s, &error) == NOVA_OK)
        for (size_t i = 0; i < s.n; i++) walk_sum += (unsigned char)s.p[i];
}

static inline void walk_gguf(const gguf *g) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->n_meta; i++) walk_value(g, &g->meta[i]);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const gguf_tensor *t = &g->tensors[i];
        if (gguf_find_tensor(g, t->name) != t) abort();
        if (t->data < g->data || t->n_bytes > (uint64_t)(g->data + g->size - t->data)) abort();
        if ((uint64_t)(t->data - g->data) % g->alignment != 0) abort();
        if (t->n_bytes) walk_sum += t->data[0] + (uint64_t)t->data[t->n_bytes - 1];
        bytes += t->n_bytes;
    }
    if (bytes > g->size) abort();
}

#endif
