/* The public functions for text: tokens, and conversations by the model's template. */
#include "model.h"

NOVA_API nova_result nova_tokenize(const nova_model *model, const char *text, size_t n, uint32_t flags, int32_t *ids,
                                   size_t capacity, size_t *n_ids, nova_error *error) {
    if (!model || (!text && n) || !n_ids || (!ids && capacity))
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_tokenize: an argument is NULL");
    error_clear(error);
    return tokenizer_encode(model->tok, &model->h, str_of(text, n), flags & ~(uint32_t)TOKENIZER_MARKED, ids, capacity,
                            n_ids, error);
}

NOVA_API nova_result nova_detokenize(const nova_model *model, const int32_t *ids, size_t n_ids, char *text,
                                     size_t capacity, size_t *n, nova_error *error) {
    if (!model || (!ids && n_ids) || !n || (!text && capacity))
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_detokenize: an argument is NULL");
    error_clear(error);
    size_t total = 0;
    bool   first = true;   /* until a token has come that has bytes of its own, were it only the space that a first one loses */
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer_n_vocab(model->tok))
            return fail(error, NOVA_ERROR_ARGUMENT, "token %zu is %d, not 0 to %u", i, ids[i],
                        tokenizer_n_vocab(model->tok) - 1);
        size_t room = total < capacity ? capacity - total : 0;
        size_t size = tokenizer_piece(model->tok, ids[i], first, false, room ? text + total : NULL, room);
        if (first) first = tokenizer_piece(model->tok, ids[i], false, false, NULL, 0) == 0;
        total += size;
    }
    *n = total;
    if (total > capacity) return fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu bytes, not %zu", total, capacity);
    return NOVA_OK;
}

NOVA_API bool nova_token_is_end(const nova_model *model, int32_t id) {
    return model && id >= 0 && (uint32_t)id < tokenizer_n_vocab(model->tok) && tokenizer_is_end(model->tok, id);
}

/* ---- Conversations ---- */

/* The text of a special token, for a template's bos_token and eos_token. Its length, 0 for none. */
static size_t special_text(const nova_model *m, int32_t id, char *text, size_t size) {
    if (id < 0) return 0;
    return size_min(size, tokenizer_piece(m->tok, id, false, true, text, size));
}

static nova_result chat_to_text(const nova_model *model, const nova_chat *chat, bool mark, text_buffer *out, nova_error *error) {
    if (!model || !chat || (!chat->messages && chat->n_messages))
        return fail(error, NOVA_ERROR_ARGUMENT, "no model or no conversation was given");
    error_clear(error);
    char       bos[256], eos[256];
    chat_input in;
    memset(&in, 0, sizeof in);
    in.chat          = chat;
    in.template_text = chat->template_text ? str_c(chat->template_text) : model->chat_template;
    if (!in.template_text.n) return fail(error, NOVA_ERROR_TEMPLATE, "the model has no chat template");
    in.bos   = str_of(bos, special_text(model, tokenizer_bos(model->tok), bos, sizeof bos));
    in.eos   = str_of(eos, special_text(model, tokenizer_eos(model->tok), eos, sizeof eos));
    in.marks = mark ? model->tok : NULL;
    return chat_render(&in, &model->h, out, error);
}

NOVA_API nova_result nova_chat_format(const nova_model *model, const nova_chat *chat, char *text, size_t capacity,
                                      size_t *n, nova_error *error) {
    if (!model || !n || (!text && capacity)) return fail(error, NOVA_ERROR_ARGUMENT, "nova_chat_format: an argument is NULL");
    text_buffer out;
    text_init(&out, &model->h, CHAT_MAX_BYTES);
    nova_result result = chat_to_text(model, chat, false, &out, error);
    if (result == NOVA_OK) {
        *n = out.n;
        if (out.n > capacity) result = fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu bytes, not %zu", out.n, capacity);
        else if (out.n) memcpy(text, out.p, out.n);
    }
    text_free(&out);
    return result;
}

NOVA_API nova_result nova_chat_tokenize(const nova_model *model, const nova_chat *chat, int32_t *ids, size_t capacity,
                                        size_t *n_ids, nova_error *error) {
    if (!model || !n_ids || (!ids && capacity))
        return fail(error, NOVA_ERROR_ARGUMENT, "nova_chat_tokenize: an argument is NULL");
    text_buffer out;
    text_init(&out, &model->h, CHAT_MAX_BYTES);
    nova_result result = chat_to_text(model, chat, true, &out, error);
    if (result == NOVA_OK) {
        /* A template writes every special token itself, BOS included: none is added, as its authors expect. */
        result = tokenizer_encode(model->tok, &model->h, str_of(out.p, out.n), NOVA_PARSE_SPECIAL | TOKENIZER_MARKED,
                                  ids, capacity, n_ids, error);
    }
    text_free(&out);
    return result;
}
