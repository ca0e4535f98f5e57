/* nova - the command line over nova.h: run, chat, info, tokenize, logits, perplexity, bench.
 *
 * Results go to stdout, everything for people to stderr. Exit status: 0 done, 1 failed, 2 bad usage.
 * Build: cc -O2 -o nova examples/nova.c nova.c -lm -lpthread -ldl      (Windows: -lshell32)
 * MIT license, see LICENSE.
 */
#include "options.h"   /* first: it brings system.h */

/* ---------------------------------------------------------------------------------------------------------------
 * What people see: lines on stderr, colours, a progress bar
 * ------------------------------------------------------------------------------------------------------------ */

static PRINTF_LIKE(1, 2) int failed(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("nova: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_FAILED;
}

static bool has_colours(void) {
    const char *no_color = getenv("NO_COLOR");   /* no-color.org: any text that is not empty */
    return is_terminal(stderr) && !(no_color && *no_color);
}

static const char *dim(void) { return has_colours() ? "\x1b[2m" : ""; }
static const char *plain(void) { return has_colours() ? "\x1b[0m" : ""; }

/* Shows on a terminal once something has taken a second. */
typedef struct bar {
    double began, drawn;   /* ms; drawn 0: nothing stands on the terminal */
} bar;

#define BAR_WIDTH 30

static void bar_begin(bar *b) {
    memset(b, 0, sizeof *b);
    b->began = now_ms();
}

static void bar_draw(bar *b, const char *what, double done, double total, const char *note) {
    double now = now_ms();
    if (now - b->began < 1000 || now - b->drawn < 100 || total <= 0 || !is_terminal(stderr)) return;
    char line[BAR_WIDTH + 1];
    int  full = (int)(done / total * BAR_WIDTH);
    for (int i = 0; i < BAR_WIDTH; i++) line[i] = i < full ? '#' : '.';
    line[BAR_WIDTH] = 0;
    fprintf(stderr, "\r%-10.10s [%s] %3.0f%%  %-18.18s", what, line, done / total * 100, note);
    fflush(stderr);
    b->drawn = now;
}

static void bar_end(bar *b) {
    if (b->drawn > 0) fprintf(stderr, "\r%78s\r", "");   /* wider than the bar: a ^C may stand behind it */
    b->drawn = 0;
}

/* "91.1 MiB" */
static const char *bytes_text(uint64_t n, char *out, size_t size) {
    static const char *const UNITS[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)n;
    size_t unit  = 0;
    while (value >= 1024 && unit + 1 < COUNT_OF(UNITS)) value /= 1024, unit++;
    snprintf(out, size, unit ? "%.1f %s" : "%.0f %s", value, UNITS[unit]);
    return out;
}

static double per_second(double n, double ms) { return ms > 0 ? n * 1e3 / ms : 0; }

/* ---------------------------------------------------------------------------------------------------------------
 * A job: one call at work, what it opened, what it writes
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct job {
    options           o;
    const char       *call;
    nova_model       *model;
    nova_engine      *engine;
    nova_session     *session;
    nova_model_info   info;
    nova_engine_info  engine_info;
    nova_error        error;
    double            load_ms;
    bar               progress;
    bool              statistics;    /* of the kernels are wanted */
    bool              own_bar;       /* the call draws one for its whole, so that parts must not */
    uint64_t          n_fed;         /* tokens of the last feeding that were evaluated */
    text              out;           /* the JSON object */
    int               write_error;   /* errno of the write that failed; 0: none */
} job;

/* Results: false once the reader has gone or the disk is full, which job_finish reports. */
static bool out_write(job *j, const char *p, size_t n) {
    if (!j->write_error && fwrite(p, 1, n, stdout) != n) j->write_error = errno ? errno : EIO;
    return !j->write_error;
}

static bool out_flush(job *j) {
    if (!j->write_error && fflush(stdout) != 0) j->write_error = errno ? errno : EIO;
    return !j->write_error;
}

/* The library's error as this program's one line. */
static int job_failed(const job *j) {
    const nova_error *e = &j->error;
    const char       *message = e->message[0] ? e->message : nova_result_text(e->code);
    if (e->offset != NOVA_NOWHERE)
        return failed("%s: %s (at byte %llu)", j->o.model, message, (unsigned long long)e->offset);
    if (!j->model && e->code != NOVA_ERROR_FILE && j->o.model) return failed("%s: %s", j->o.model, message);
    return failed("%s", message);
}

static void on_log(void *user, nova_log_level level, const char *line) {
    const job *j = (const job *)user;
    if (level == NOVA_LOG_WARNING) fprintf(stderr, "nova: warning: %s\n", line);
    else if (j->o.verbose) fprintf(stderr, "nova: %s\n", line);
}

/* A nova_progress_fn. */
static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    job *j   = (job *)user;
    j->n_fed = total;
    if (!j->own_bar) bar_draw(&j->progress, what, (double)done, (double)total, "");
    return true;
}

static bool job_open_model(job *j, bool vocab_only) {
    nova_model_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.path          = j->o.model;
    desc.vocab_only    = vocab_only;
    desc.log           = on_log;
    desc.log_user      = j;
    desc.progress      = on_progress;
    desc.progress_user = j;
    bar_begin(&j->progress);
    double began = now_ms();
    j->model     = nova_model_open(&desc, &j->error);
    j->load_ms   = now_ms() - began;
    bar_end(&j->progress);
    if (j->model) nova_model_get_info(j->model, &j->info);
    return j->model != NULL;
}

static nova_engine_desc engine_desc(const job *j, uint32_t n_ctx) {
    nova_engine_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.n_ctx     = n_ctx;
    desc.n_threads = j->o.n_threads;
    desc.cache_k   = (nova_cache_type)j->o.cache_k;
    desc.cache_v   = (nova_cache_type)j->o.cache_v;
    desc.device      = j->o.gpu_layers ? j->o.device : "cpu";
    desc.gpu_layers  = j->o.gpu_layers;
    desc.gpu_without = j->o.gpu_without;
    desc.gpu_force   = j->o.gpu_force;
    desc.vram_bytes  = j->o.vram;
    desc.gpu_statistics = j->statistics;
    return desc;
}

/* Engine and its one session. */
static bool job_open_engine(job *j, uint32_t n_ctx) {
    nova_engine_desc  desc  = engine_desc(j, n_ctx);
    nova_session_desc session;
    double            began = now_ms();
    desc.progress      = on_progress;
    desc.progress_user = j;
    bar_begin(&j->progress);
    j->engine = nova_engine_open(j->model, &desc, &j->error);
    bar_end(&j->progress);
    j->load_ms += now_ms() - began;
    if (!j->engine) return false;
    nova_engine_get_info(j->engine, &j->engine_info);
    memset(&session, 0, sizeof session);
    session.sampler.temperature    = j->o.temperature;
    session.sampler.top_k          = j->o.top_k;
    session.sampler.top_p          = j->o.top_p;
    session.sampler.min_p          = j->o.min_p;
    session.sampler.repeat_penalty = j->o.repeat_penalty;
    session.sampler.seed           = j->o.seed;
    session.limit                  = (nova_limit)j->o.limit;
    session.n_sinks                = j->o.n_sinks ? j->o.n_sinks : NOVA_NO_SINKS;
    session.ignore_end             = j->o.ignore_end;
    session.progress               = on_progress;
    session.progress_user          = j;
    j->session = nova_session_open(j->engine, &session, &j->error);
    return j->session != NULL;
}

static bool job_open(job *j, uint32_t n_ctx) { return job_open_model(j, false) && job_open_engine(j, n_ctx); }

/* Closes everything; a result that could not be written makes `status` a failure. */
static int job_finish(job *j, int status) {
    if (j->o.json && status == EXIT_DONE) {
        text_char(&j->out, '\n');
        out_write(j, j->out.p, j->out.n);
    }
    out_flush(j);
    if (j->write_error && status == EXIT_DONE) {
        status = EXIT_FAILED;
        if (!is_broken_pipe(j->write_error)) failed("cannot write the result: %s", strerror(j->write_error));
    }
    nova_session_close(j->session);
    nova_engine_close(j->engine);
    nova_model_close(j->model);
    text_free(&j->out);
    return status;
}

static const char *model_name(const job *j) { return j->info.name[0] ? j->info.name : j->info.architecture; }

static void print_memory(const job *j) {
    char model[32], cache[32], scratch[32], peak[32];
    bytes_text(j->info.n_bytes, model, sizeof model);
    bytes_text(j->engine_info.cache_bytes, cache, sizeof cache);
    bytes_text(j->engine_info.scratch_bytes, scratch, sizeof scratch);
    bytes_text(peak_rss_bytes(), peak, sizeof peak);
    fprintf(stderr, "%smemory     model %s, cache %s, scratch %s; peak %s%s\n", dim(), model, cache,
            scratch, peak, plain());
}

/* ---- Input ---- */

typedef struct input {
    char   buffer[1 << 16];
    size_t at, n;
    bool   ended;
} input;

typedef enum line_result { LINE_READ, LINE_END, LINE_INTERRUPTED, LINE_FAILED } line_result;

/* One line without its "\n" or "\r\n", appended to `line`. What was written goes out before it waits. */
static line_result read_line(job *j, input *in, text *line) {
    size_t before = line->n;
    for (;;) {
        char *from    = in->buffer + in->at;
        char *newline = in->n > in->at ? (char *)memchr(from, '\n', in->n - in->at) : NULL;
        text_add(line, from, newline ? (size_t)(newline - from) : in->n - in->at);
        in->at = newline ? (size_t)(newline - in->buffer) + 1 : in->n;
        if (newline) {
            if (line->n > before && line->p[line->n - 1] == '\r') line->p[--line->n] = 0;
            return LINE_READ;
        }
        if (in->ended) return line->n > before ? LINE_READ : LINE_END;
        if (!out_flush(j)) return LINE_END;
        long got = read_stdin(in->buffer, sizeof in->buffer);
        if (got < 0) return errno == EINTR ? LINE_INTERRUPTED : LINE_FAILED;
        in->at    = 0;
        in->n     = (size_t)got;
        in->ended = got == 0;
    }
}

/* All of a file, "-" being standard input, without one newline at its end. */
static bool read_text(const char *path, text *out) {
    bool  standard = strcmp(path, "-") == 0;
    FILE *file     = standard ? stdin : open_file(path, "rb");
    if (!file) return failed("cannot open '%s': %s", path, strerror(errno)), false;
    size_t got;
    do {
        text_reserve(out, 1 << 16);
        got = fread(out->p + out->n, 1, 1 << 16, file);
        out->n += got;
    } while (got > 0);
    out->p[out->n] = 0;
    bool bad = ferror(file) != 0;
    if (bad) failed("cannot read '%s': %s", path, strerror(errno));
    if (!standard) fclose(file);
    if (!bad && out->n && out->p[out->n - 1] == '\n') out->n--;
    if (!bad && out->n && out->p[out->n - 1] == '\r') out->n--;
    return !bad;
}

/* ---- Tokens ---- */

typedef struct id_list {
    int32_t *p;
    size_t   n, cap;
} id_list;

static void ids_reserve(id_list *ids, size_t extra) {
    if (extra <= ids->cap - ids->n) return;
    ids->cap = ids->n + extra + ids->cap / 2;
    ids->p   = (int32_t *)resize_or_exit(ids->p, ids->cap, sizeof *ids->p);
}

/* Appends the ids of a text. */
static bool encode(job *j, const char *p, size_t n, uint32_t flags, id_list *ids) {
    size_t n_new = 0;
    ids_reserve(ids, n + 8);   /* always enough: nova.h */
    if (nova_tokenize(j->model, p, n, flags, ids->p + ids->n, ids->cap - ids->n, &n_new, &j->error) < 0) return false;
    ids->n += n_new;
    return true;
}

/* Appends what the model wants in front of a text (BOS). NOVA_ADD_SPECIAL may add an end behind it too, which a prompt
 * must not have: so a text of one letter tells what comes in front. */
static bool encode_front(job *j, id_list *ids) {
    id_list with = {NULL, 0, 0}, without = {NULL, 0, 0};
    bool    good = encode(j, "a", 1, NOVA_ADD_SPECIAL, &with) && encode(j, "a", 1, 0, &without);
    size_t  n    = 0;
    while (good && n + without.n < with.n && memcmp(with.p + n, without.p, without.n * sizeof *with.p) != 0) n++;
    ids_reserve(ids, n + 1);
    for (size_t i = 0; i < n; i++) ids->p[ids->n++] = with.p[i];
    free(with.p);
    free(without.p);
    return good;
}

/* ---------------------------------------------------------------------------------------------------------------
 * run
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct answer_stats {
    uint64_t n_prompt, n_answer;
    double   prompt_ms, answer_ms;
    bool     ended;          /* by the model's own token */
    char     last;           /* last byte of the text, 0: none */
} answer_stats;

/* Generates until the end, -n, or an error. `collect` gets the text (may be NULL), `ids` the tokens (may be NULL). */
static nova_result generate(job *j, bool stream, text *collect, id_list *ids, answer_stats *stats) {
    nova_result r     = NOVA_OK;
    double      began = now_ms();
    while (r == NOVA_OK && stats->n_answer < j->o.n_predict) {
        nova_token token;
        r = nova_session_next(j->session, &token, &j->error);
        if (r != NOVA_OK && r != NOVA_END) break;
        stats->n_answer++;
        if (ids) {
            ids_reserve(ids, 1);
            ids->p[ids->n++] = token.id;
        }
        if (token.n_text == 0) continue;
        stats->last = token.text[token.n_text - 1];
        if (collect) text_add(collect, token.text, token.n_text);
        if (stream && !(out_write(j, token.text, token.n_text) && out_flush(j))) break;
    }
    stats->answer_ms = now_ms() - began;
    stats->ended     = r == NOVA_END;
    return stats->ended ? NOVA_OK : r;
}

static int run_failed(const job *j) {
    if (j->error.code != NOVA_ERROR_CONTEXT_FULL) return job_failed(j);
    return failed("%s: -c N gives more room, --limit slide no end", j->error.message);
}

static bool feed_raw(job *j, const text *prompt) {
    id_list  ids   = {NULL, 0, 0};
    uint32_t flags = j->o.special ? NOVA_PARSE_SPECIAL : 0;
    bool     good  = encode_front(j, &ids) && encode(j, prompt->p, prompt->n, flags, &ids);
    if (!good) job_failed(j);
    else if (ids.n == 0) good = !failed("the prompt is empty, and the model asks for no token in front of it");
    else if (nova_session_feed(j->session, ids.p, ids.n, &j->error) != NOVA_OK) good = !run_failed(j);
    free(ids.p);
    return good;
}

static bool feed_chat(job *j, const text *prompt) {
    nova_message messages[2];
    nova_chat    chat;
    memset(messages, 0, sizeof messages);
    memset(&chat, 0, sizeof chat);
    messages[0].role    = "system";
    messages[0].content = j->o.system;
    messages[1].role    = "user";
    messages[1].content = prompt->p;
    chat.messages   = j->o.system ? messages : messages + 1;
    chat.n_messages = j->o.system ? 2 : 1;
    return nova_session_chat(j->session, &chat, &j->error) == NOVA_OK || !run_failed(j);
}

/* Feeds the prompt; false after saying why. */
static bool run_feed(job *j, const text *prompt, answer_stats *stats) {
    bar_begin(&j->progress);
    double began = now_ms();
    bool   good  = j->o.raw ? feed_raw(j, prompt) : feed_chat(j, prompt);
    stats->prompt_ms = now_ms() - began;
    bar_end(&j->progress);
    stats->n_prompt = j->n_fed;
    return good;
}

static void run_json(job *j, const text *answer, const id_list *ids, const answer_stats *stats) {
    json_open(&j->out, NULL, '{');
    json_text_n(&j->out, "text", answer->p, answer->n);
    json_ids(&j->out, "ids", ids->p, ids->n);
    json_text(&j->out, "stop", stats->ended ? "end" : "length");
    json_int(&j->out, "n_prompt", stats->n_prompt);
    json_int(&j->out, "n_generated", stats->n_answer);
    json_real(&j->out, "pp_tps", per_second((double)stats->n_prompt, stats->prompt_ms));
    json_real(&j->out, "tg_tps", per_second((double)stats->n_answer, stats->answer_ms));
    json_real(&j->out, "load_ms", j->load_ms);
    json_int(&j->out, "seed", j->o.seed);
    json_int(&j->out, "cache_bytes", j->engine_info.cache_bytes);
    json_int(&j->out, "scratch_bytes", j->engine_info.scratch_bytes);
    json_int(&j->out, "peak_rss_bytes", peak_rss_bytes());
    json_close(&j->out, '}');
}

static void run_report(const job *j, const answer_stats *stats) {
    fprintf(stderr, "%sprompt     %llu tokens, %.1f tokens/s\n", dim(), (unsigned long long)stats->n_prompt,
            per_second((double)stats->n_prompt, stats->prompt_ms));
    fprintf(stderr, "generation %llu tokens, %.1f tokens/s", (unsigned long long)stats->n_answer,
            per_second((double)stats->n_answer, stats->answer_ms));
    if (j->o.temperature > 0) fprintf(stderr, ", seed %llu", (unsigned long long)j->o.seed);
    fprintf(stderr, "%s\n", plain());
    print_memory(j);
}

static int run_generate(job *j, const text *prompt) {
    answer_stats stats;
    memset(&stats, 0, sizeof stats);
    text    answer = {NULL, 0, 0};
    id_list ids    = {NULL, 0, 0};
    if (!run_feed(j, prompt, &stats)) return EXIT_FAILED;
    bool        stream = !j->o.json;
    nova_result r      = generate(j, stream, stream ? NULL : &answer, stream ? NULL : &ids, &stats);
    if (stream && (r == NOVA_OK || stats.last)) out_write(j, "\n", 1);
    out_flush(j);
    if (r == NOVA_OK && !j->write_error) run_report(j, &stats);
    if (r == NOVA_OK && j->o.json) run_json(j, &answer, &ids, &stats);
    text_free(&answer);
    free(ids.p);
    return r == NOVA_OK ? EXIT_DONE : run_failed(j);
}

static int call_run(job *j) {
    text prompt = {NULL, 0, 0};
    if (!j->o.prompt == !j->o.file) return bad_usage(j->call, "run: give the prompt with either -p or -f");
    if (j->o.raw && j->o.system) return bad_usage(j->call, "run: --system needs a chat template, --raw takes none");
    bool from_file = j->o.file || strcmp(j->o.prompt, "-") == 0;
    text_put(&prompt, from_file ? "" : j->o.prompt);
    if (from_file && !read_text(j->o.file ? j->o.file : "-", &prompt)) return text_free(&prompt), EXIT_FAILED;
    int status = EXIT_FAILED;
    if (!job_open(j, j->o.n_ctx)) {
        job_failed(j);
    } else if (!j->info.has_chat_template && j->o.system) {
        failed("--system: the model has no chat template");
    } else {
        if (!j->info.has_chat_template && !j->o.raw) {
            fprintf(stderr, "%sno chat template in the model: as with --raw%s\n", dim(), plain());
            j->o.raw = true;
        }
        status = run_generate(j, &prompt);
    }
    text_free(&prompt);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------
 * chat
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct conversation {
    job          *j;
    nova_message *messages;   /* contents are ours */
    size_t        n, cap;
    bool          at_terminal;
} conversation;

enum { CHAT_ON = -1 };   /* go on; else the program's exit status */

static char *copy_text(const char *p, size_t n) {
    char *copy = (char *)resize_or_exit(NULL, n + 1, 1);
    if (n) memcpy(copy, p, n);
    copy[n] = 0;
    return copy;
}

static void chat_push(conversation *c, const char *role, const char *p, size_t n) {
    if (c->n == c->cap) {
        c->cap      = c->cap * 2 + 16;
        c->messages = (nova_message *)resize_or_exit(c->messages, c->cap, sizeof *c->messages);
    }
    nova_message *m = &c->messages[c->n++];
    memset(m, 0, sizeof *m);
    m->role    = role;
    m->content = copy_text(p, n);
}

static void chat_remove(conversation *c, size_t at) {
    nova_message *m = c->messages + at;
    free((void *)(uintptr_t)m->content);   /* ours, though the interface has it const */
    memmove(m, m + 1, (--c->n - at) * sizeof *m);
}

static bool chat_has_system(const conversation *c) { return c->n && strcmp(c->messages[0].role, "system") == 0; }

static int chat_help(conversation *c, const char *rest);

/* Keeps the system message. */
static int chat_reset(conversation *c, const char *rest) {
    (void)rest;
    while (c->n > (chat_has_system(c) ? 1u : 0u)) chat_remove(c, c->n - 1);
    nova_session_reset(c->j->session);
    return CHAT_ON;
}

/* Puts in, replaces, or, without a text, takes out the system message. */
static int chat_system(conversation *c, const char *rest) {
    if (chat_has_system(c)) chat_remove(c, 0);
    if (!*rest) return CHAT_ON;
    chat_push(c, "system", rest, strlen(rest));
    nova_message pushed = c->messages[c->n - 1];
    memmove(c->messages + 1, c->messages, (c->n - 1) * sizeof pushed);
    c->messages[0] = pushed;
    return CHAT_ON;
}

static int chat_exit(conversation *c, const char *rest) {
    (void)c, (void)rest;
    return EXIT_DONE;
}

static const struct command {
    const char *name, *help;
    int (*fn)(conversation *c, const char *rest);
} CHAT_COMMANDS[] = {
    {"/help", "these lines", chat_help},
    {"/reset", "forget the conversation, keep the system message", chat_reset},
    {"/system", "TEXT: set the system message; without TEXT: none", chat_system},
    {"/exit", "leave (so does the end of the input)", chat_exit},
};

static int chat_help(conversation *c, const char *rest) {
    (void)c, (void)rest;
    for (size_t i = 0; i < COUNT_OF(CHAT_COMMANDS); i++)
        fprintf(stderr, "%-8s %s\n", CHAT_COMMANDS[i].name, CHAT_COMMANDS[i].help);
    fprintf(stderr, "A \\ at a line's end continues the message on the next; a space in front makes /text a message;\n"
                    "Ctrl-C stops an answer.\n");
    return CHAT_ON;
}

static int chat_command(conversation *c, const char *line) {
    size_t n = strcspn(line, " \n");
    for (size_t i = 0; i < COUNT_OF(CHAT_COMMANDS); i++)
        if (strlen(CHAT_COMMANDS[i].name) == n && memcmp(CHAT_COMMANDS[i].name, line, n) == 0)
            return CHAT_COMMANDS[i].fn(c, line + n + strspn(line + n, " \n"));
    failed("no command '%.*s': /help lists them, a space in front makes it a message", (int)(n < 40 ? n : 40), line);
    return c->at_terminal ? (int)CHAT_ON : (int)EXIT_FAILED;
}

/* One message: lines joined by trailing backslashes. */
static line_result chat_read(conversation *c, input *in, text *message) {
    text_clear(message);
    for (const char *prompt = "> ";; prompt = ". ") {
        if (c->at_terminal) {
            fputs(prompt, stderr);
            fflush(stderr);
        }
        line_result r = read_line(c->j, in, message);
        if (r != LINE_READ) return r;
        if (!message->n || message->p[message->n - 1] != '\\') return LINE_READ;
        message->p[message->n - 1] = '\n';
    }
}

/* Evaluates what is new of the conversation, then generates. A Ctrl-C that came too late for the last answer would
 * cancel this one: it shows as a cancellation without an interrupt, and is tried again. */
static nova_result chat_evaluate(conversation *c, text *answer, answer_stats *stats) {
    job        *j = c->j;
    nova_chat   chat;
    nova_result r;
    memset(&chat, 0, sizeof chat);
    chat.messages   = c->messages;
    chat.n_messages = c->n;
    interrupts      = 0;
    j->n_fed        = 0;
    answering       = j->session;
    bar_begin(&j->progress);
    double began = now_ms();
    do r = nova_session_chat(j->session, &chat, &j->error);
    while (r == NOVA_CANCELLED && interrupts == 0);
    bar_end(&j->progress);
    stats->prompt_ms = now_ms() - began;
    stats->n_prompt  = j->n_fed;
    if (r == NOVA_OK) r = generate(j, true, answer, NULL, stats);
    answering = NULL;
    return r;
}

/* Says what went wrong, and what to do about it. */
static int chat_trouble(conversation *c, nova_result r) {
    if (r == NOVA_OK || r == NOVA_CANCELLED) return CHAT_ON;
    if (r != NOVA_ERROR_CONTEXT_FULL) job_failed(c->j);
    else failed("%s: /reset starts anew; -c N gives more room, --limit slide no end", c->j->error.message);
    return c->at_terminal ? (int)CHAT_ON : (int)EXIT_FAILED;
}

static int chat_answer(conversation *c, const text *message) {
    answer_stats stats;
    text         answer = {NULL, 0, 0};
    memset(&stats, 0, sizeof stats);
    chat_push(c, "user", message->p, message->n);
    nova_result r = chat_evaluate(c, &answer, &stats);
    bool open_line = c->at_terminal ? stats.last != 0 && stats.last != '\n' : stats.last != 0 || r == NOVA_OK;
    if (open_line) out_write(c->j, "\n", 1);
    else if (r == NOVA_CANCELLED) fputc('\n', stderr);   /* the terminal's ^C */
    out_flush(c->j);
    if (answer.n || r == NOVA_OK) chat_push(c, "assistant", answer.p, answer.n);
    else chat_remove(c, c->n - 1);   /* the question was not taken up */
    text_free(&answer);
    if (c->at_terminal && r == NOVA_OK)
        fprintf(stderr, "%s[%llu tokens, %.1f/s; %llu tokens, %.1f/s]%s\n", dim(), (unsigned long long)stats.n_prompt,
                per_second((double)stats.n_prompt, stats.prompt_ms), (unsigned long long)stats.n_answer,
                per_second((double)stats.n_answer, stats.answer_ms), plain());
    return c->j->write_error ? (int)EXIT_DONE : chat_trouble(c, r);
}

static int chat_interrupted(void) {
    if (interrupts > 1) return EXIT_DONE;
    fprintf(stderr, "\n%sCtrl-C again or /exit leaves%s\n", dim(), plain());
    return CHAT_ON;
}

static int chat_loop(conversation *c, input *in) {
    text message = {NULL, 0, 0};
    int  status  = CHAT_ON;
    interrupts   = 0;
    while (status == CHAT_ON) {
        line_result r = chat_read(c, in, &message);
        if (r == LINE_INTERRUPTED) {
            status = chat_interrupted();
            continue;
        }
        if (r == LINE_FAILED) status = failed("cannot read the input: %s", strerror(errno));
        else if (r == LINE_END) status = EXIT_DONE;
        else if (message.n == 0) status = CHAT_ON;
        else if (message.p[0] == '/') status = chat_command(c, message.p);
        else status = chat_answer(c, &message);
        if (r == LINE_END && c->at_terminal) fputc('\n', stderr);
        interrupts = 0;   /* those of an answer do not count for the prompt behind it */
    }
    text_free(&message);
    return status;
}

static int call_chat(job *j) {
    conversation c;
    memset(&c, 0, sizeof c);
    c.j           = j;
    c.at_terminal = is_terminal(stdin);
    if (!job_open(j, j->o.n_ctx)) return job_failed(j);
    if (!j->info.has_chat_template) return failed("the model has no chat template: nova run does without");
    if (j->o.system) chat_push(&c, "system", j->o.system, strlen(j->o.system));
    if (c.at_terminal)
        fprintf(stderr, "%scontext %u; /help lists the commands%s\n", dim(), j->engine_info.n_ctx, plain());
    input *in = (input *)resize_or_exit(NULL, 1, sizeof *in);
    memset(in, 0, sizeof *in);
    if (c.at_terminal) catch_interrupts();
    int status = chat_loop(&c, in);
    while (c.n) chat_remove(&c, c.n - 1);
    free(c.messages);
    free(in);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------
 * info
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct type_sum {
    const char *type;
    uint64_t    n_tensors, n_bytes;
} type_sum;

#define MAX_TYPES 64   /* ggml has 40 */

/* Tensors by type, in the file's order; returns the number of types. */
static size_t info_types(const job *j, type_sum *sums) {
    size_t           n = 0;
    nova_tensor_info t;
    for (uint32_t i = 0; nova_model_tensor(j->model, i, &t); i++) {
        size_t k = 0;
        while (k < n && strcmp(sums[k].type, t.type) != 0) k++;
        if (k == MAX_TYPES) continue;
        if (k == n) memset(&sums[n++], 0, sizeof *sums);
        sums[k].type = t.type;
        sums[k].n_tensors++;
        sums[k].n_bytes += t.n_bytes;
    }
    return n;
}

/* The value of a metadata key as text, "" where there is none. */
static void meta_find(const job *j, const char *wanted, char *value, size_t size) {
    const char *key;
    size_t      n_key;
    for (uint32_t i = 0; nova_model_meta(j->model, i, &key, &n_key, value, size); i++)
        if (n_key == strlen(wanted) && memcmp(key, wanted, n_key) == 0) return;
    value[0] = 0;
}

/* Text of a file on a terminal: control characters as JSON writes them, at most `most` bytes. */
static void info_put(job *j, const char *p, size_t n, size_t most) {
    text shown = {NULL, 0, 0};
    text_add_clean(&shown, p, n < most ? n : most, false);
    out_write(j, shown.p, shown.n);
    if (n > most) out_write(j, "...", 3);
    text_free(&shown);
}

static PRINTF_LIKE(3, 4) void info_line(job *j, const char *what, const char *format, ...) {
    char    line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    char head[32];
    int  n = snprintf(head, sizeof head, "%-14s ", what);
    out_write(j, head, (size_t)n);
    info_put(j, line, strlen(line), sizeof line);
    out_write(j, "\n", 1);
}

static void info_people(job *j, const nova_engine_info *e) {
    const nova_model_info *m = &j->info;
    char     a[32], b[32], kind[64], pre[64];
    type_sum sums[MAX_TYPES];
    size_t   n_types = info_types(j, sums);
    meta_find(j, "tokenizer.ggml.model", kind, sizeof kind);
    meta_find(j, "tokenizer.ggml.pre", pre, sizeof pre);
    if (m->name[0]) info_line(j, "name", "%s", m->name);
    info_line(j, "architecture", "%s: %u layers of width %u, %u heads (%u for K and V)", m->architecture, m->n_layer,
              m->n_embd, m->n_head, m->n_head_kv);
    info_line(j, "file", "%s, %.1f M weights, %.2f bits each, mostly %s", bytes_text(m->n_bytes, a, sizeof a),
              (double)m->n_params * 1e-6, m->n_params ? (double)m->n_bytes * 8 / (double)m->n_params : 0, m->type);
    info_line(j, "context", "%u tokens in training", m->n_ctx_train);
    info_line(j, "tokenizer", "%s%s%s%s, %u tokens", kind, pre[0] ? " (" : "", pre, pre[0] ? ")" : "", m->n_vocab);
    info_line(j, "chat template", "%s", m->has_chat_template ? "yes" : "none");
    info_line(j, "tensors", "%u", m->n_tensors);
    for (size_t i = 0; i < n_types; i++)
        info_line(j, "", "%-8s %4llu  %s", sums[i].type, (unsigned long long)sums[i].n_tensors,
                  bytes_text(sums[i].n_bytes, a, sizeof a));
    info_line(j, "to run it", "cache %s, scratch %s (context %u, batch %u, %u threads, %s %s)",
              bytes_text(e->cache_bytes, a, sizeof a), bytes_text(e->scratch_bytes, b, sizeof b), e->n_ctx,
              e->n_batch, e->n_threads, e->device, e->cpu);
}

static void info_people_lists(job *j) {
    static char value[1024];
    const char *key;
    size_t      n_key;
    nova_tensor_info t;
    if (j->o.all) info_line(j, "metadata", "%u", j->info.n_meta);
    for (uint32_t i = 0; j->o.all && nova_model_meta(j->model, i, &key, &n_key, value, sizeof value); i++) {
        out_write(j, "  ", 2);
        info_put(j, key, n_key, 200);
        out_write(j, " = ", 3);
        info_put(j, value, strlen(value), 120);
        out_write(j, "\n", 1);
    }
    for (uint32_t i = 0; j->o.tensors && nova_model_tensor(j->model, i, &t); i++) {
        char line[160];
        int  n = snprintf(line, sizeof line, "  %12llu %10llu  %-7s [%llu", (unsigned long long)t.offset,
                          (unsigned long long)t.n_bytes, t.type, (unsigned long long)t.dims[0]);
        out_write(j, line, (size_t)n);
        for (uint32_t d = 1; d < t.n_dims && d < 4; d++) {
            n = snprintf(line, sizeof line, ", %llu", (unsigned long long)t.dims[d]);
            out_write(j, line, (size_t)n);
        }
        out_write(j, "]  ", 3);
        info_put(j, t.name, t.n_name, 200);
        out_write(j, "\n", 1);
    }
}

static void info_json_lists(job *j, text *o) {
    const size_t     size  = 1 << 16;
    char            *value = (char *)resize_or_exit(NULL, size, 1);
    const char      *key;
    size_t           n_key;
    nova_tensor_info t;
    if (j->o.all) json_open(o, "metadata", '{');
    for (uint32_t i = 0; j->o.all && nova_model_meta(j->model, i, &key, &n_key, value, size); i++) {
        json_key(o, key, n_key);
        json_string(o, value, strlen(value));
    }
    if (j->o.all) json_close(o, '}');
    if (j->o.tensors) json_open(o, "tensors", '[');
    for (uint32_t i = 0; j->o.tensors && nova_model_tensor(j->model, i, &t); i++) {
        json_open(o, NULL, '{');
        json_text_n(o, "name", t.name, t.n_name);
        json_text(o, "type", t.type);
        json_open(o, "dims", '[');
        for (uint32_t d = 0; d < t.n_dims && d < 4; d++) json_int(o, NULL, t.dims[d]);
        json_close(o, ']');
        json_int(o, "offset", t.offset);
        json_int(o, "n_bytes", t.n_bytes);
        json_close(o, '}');
    }
    if (j->o.tensors) json_close(o, ']');
    free(value);
}

static void json_engine(text *o, const nova_engine_info *e) {
    json_text(o, "device", e->device);
    json_text(o, "cpu", e->cpu);
    json_int(o, "n_threads", e->n_threads);
    json_int(o, "n_ctx", e->n_ctx);
    json_int(o, "n_batch", e->n_batch);
    json_int(o, "n_ops", e->n_ops);
    json_int(o, "cache_bytes", e->cache_bytes);
    json_int(o, "scratch_bytes", e->scratch_bytes);
    json_int(o, "vram_bytes", e->vram_bytes);
}

static void json_model(text *o, const nova_model_info *m) {
    json_text(o, "name", m->name);
    json_text(o, "architecture", m->architecture);
    json_text(o, "type", m->type);
    json_int(o, "n_bytes", m->n_bytes);
    json_int(o, "n_params", m->n_params);
    json_int(o, "n_layer", m->n_layer);
    json_int(o, "n_embd", m->n_embd);
    json_int(o, "n_head", m->n_head);
    json_int(o, "n_head_kv", m->n_head_kv);
    json_int(o, "n_vocab", m->n_vocab);
    json_int(o, "n_ctx_train", m->n_ctx_train);
    json_int(o, "n_tensors", m->n_tensors);
    json_bool(o, "has_chat_template", m->has_chat_template);
}

static void info_json(job *j, const nova_engine_info *e) {
    text    *o = &j->out;
    char     value[64];
    type_sum sums[MAX_TYPES];
    size_t   n_types = info_types(j, sums);
    json_open(o, NULL, '{');
    json_model(o, &j->info);
    meta_find(j, "tokenizer.ggml.model", value, sizeof value);
    json_text(o, "tokenizer", value);
    meta_find(j, "tokenizer.ggml.pre", value, sizeof value);
    json_text(o, "pre_tokenizer", value);
    json_open(o, "types", '[');
    for (size_t i = 0; i < n_types; i++) {
        json_open(o, NULL, '{');
        json_text(o, "type", sums[i].type);
        json_int(o, "n_tensors", sums[i].n_tensors);
        json_int(o, "n_bytes", sums[i].n_bytes);
        json_close(o, '}');
    }
    json_close(o, ']');
    json_open(o, "engine", '{');
    json_engine(o, e);
    json_close(o, '}');
    info_json_lists(j, o);
    json_close(o, '}');
}

static const char *const gpu_abilities[] = {"matrix-f16", "matrix-s8", "dot", "f16", "subgroup", "mapped"};

static void gpu_json(text *o, const nova_gpu_info *g) {
    json_open(o, NULL, '{');
    json_text(o, "name", g->name);
    json_text(o, "kind", g->kind);
    json_int(o, "memory_bytes", g->memory_bytes);
    json_int(o, "free_bytes", g->free_bytes);
    json_int(o, "subgroup", g->subgroup);
    json_open(o, "abilities", '[');
    for (size_t i = 0; i < COUNT_OF(gpu_abilities); i++)
        if (g->abilities >> i & 1) json_text(o, NULL, gpu_abilities[i]);
    json_close(o, ']');
    json_close(o, '}');
}

static void gpu_people(job *j, uint32_t index, const nova_gpu_info *g) {
    char name[16], memory[32], free_text[32], abilities[96] = "";
    snprintf(name, sizeof name, "gpu:%u", index);
    for (size_t i = 0; i < COUNT_OF(gpu_abilities); i++)
        if (g->abilities >> i & 1) strcat(strcat(abilities, " "), gpu_abilities[i]);
    info_line(j, name, "%s (%s), %s of %s free, Vulkan %u.%u;%s", g->name, g->kind, bytes_text(g->free_bytes, free_text, sizeof free_text),
              bytes_text(g->memory_bytes, memory, sizeof memory), g->api_major, g->api_minor, abilities);
}

static int info_devices(job *j) {
    nova_cpu_info cpu;
    nova_gpu_info gpus[16];
    uint32_t      n = 0;
    nova_result   result = nova_list_gpus(gpus, COUNT_OF(gpus), &n, &j->error);
    nova_get_cpu_info(&cpu);
    if (j->o.json) {
        json_open(&j->out, NULL, '{');
        json_open(&j->out, "cpu", '{');
        json_text(&j->out, "level", cpu.level);
        json_int(&j->out, "n_cores", cpu.n_cores);
        json_close(&j->out, '}');
        json_open(&j->out, "gpus", '[');
        for (uint32_t i = 0; i < n && i < COUNT_OF(gpus); i++) gpu_json(&j->out, &gpus[i]);
        json_close(&j->out, ']');
        json_bool(&j->out, "vulkan", result == NOVA_OK);
        if (result != NOVA_OK) json_text(&j->out, "why", j->error.message);
        json_close(&j->out, '}');
    } else {
        info_line(j, "cpu", "%s, %u cores", cpu.level, cpu.n_cores);
        for (uint32_t i = 0; i < n && i < COUNT_OF(gpus); i++) gpu_people(j, i, &gpus[i]);
        if (result != NOVA_OK) info_line(j, "gpu", "none: %s", j->error.message);
        else if (n == 0) info_line(j, "gpu", "none: Vulkan is there, but has no device");
    }
    return EXIT_DONE;
}

static int call_info(job *j) {
    if (j->o.devices) return info_devices(j);
    if (!job_open_model(j, false)) return job_failed(j);
    nova_engine_desc desc = engine_desc(j, j->o.n_ctx);
    nova_engine_info size;
    if (nova_engine_size(j->model, &desc, &size, &j->error) != NOVA_OK) return job_failed(j);
    if (j->o.json) {
        info_json(j, &size);
    } else {
        info_people(j, &size);
        info_people_lists(j);
    }
    return EXIT_DONE;
}

/* ---------------------------------------------------------------------------------------------------------------
 * tokenize
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct request {
    text    content;
    id_list ids;
    bool    has_text, has_ids;
} request;

static bool request_ids(json_in *in, id_list *ids) {
    if (!json_take(in, '[')) return json_wrong(in, "an array of ids is expected");
    if (json_take(in, ']')) return true;
    do {
        ids_reserve(ids, 1);
        if (!json_read_id(in, &ids->p[ids->n])) return false;
        ids->n++;
    } while (json_take(in, ','));
    return json_take(in, ']') || json_wrong(in, "',' or ']' is expected");
}

static bool request_member(json_in *in, request *r, text *key) {
    text_clear(key);
    if (!json_read_string(in, key)) return false;
    if (!json_take(in, ':')) return json_wrong(in, "':' is expected");
    bool is_text = key->n == 4 && memcmp(key->p, "text", 4) == 0;
    bool is_ids  = key->n == 3 && memcmp(key->p, "ids", 3) == 0;
    if (!is_text && !is_ids) return json_skip_value(in, 1);
    if (r->has_text || r->has_ids) return json_wrong(in, "one of \"text\" and \"ids\" is expected, once");
    r->has_text = is_text;
    r->has_ids  = is_ids;
    return is_text ? json_read_string(in, &r->content) : request_ids(in, &r->ids);
}

/* One line: an object with "text" or "ids"; other members are passed over. */
static bool request_read(json_in *in, request *r, text *key) {
    text_clear(&r->content);
    r->ids.n    = 0;
    r->has_text = r->has_ids = false;
    if (!json_take(in, '{')) return json_wrong(in, "an object is expected");
    if (!json_take(in, '}')) {
        do {
            if (!request_member(in, r, key)) return false;
        } while (json_take(in, ','));
        if (!json_take(in, '}')) return json_wrong(in, "',' or '}' is expected");
    }
    json_space(in);
    if (in->p != in->end) return json_wrong(in, "nothing is expected behind the object");
    return r->has_text || r->has_ids || json_wrong(in, "neither \"text\" nor \"ids\"");
}

/* Text of ids, whatever its length. */
static bool decode(job *j, const id_list *ids, text *out) {
    size_t n = 0;
    text_clear(out);
    text_reserve(out, ids->n * 8 + 64);
    nova_result r = nova_detokenize(j->model, ids->p, ids->n, out->p, out->cap, &n, &j->error);
    if (r == NOVA_ERROR_TOO_SMALL) {
        text_reserve(out, n);
        r = nova_detokenize(j->model, ids->p, ids->n, out->p, out->cap, &n, &j->error);
    }
    out->n = n;
    return r == NOVA_OK;
}

static bool request_answer(job *j, request *r, text *reply) {
    static text piece;
    bool        good;
    text_clear(reply);
    json_open(reply, NULL, '{');
    if (r->has_text) {
        good = encode(j, r->content.p, r->content.n, 0, &r->ids);
        json_ids(reply, "ids", r->ids.p, r->ids.n);
    } else {
        good = decode(j, &r->ids, &piece);
        if (good) json_text_n(reply, "text", piece.p, piece.n);
    }
    json_close(reply, '}');
    text_char(reply, '\n');
    return good;
}

static int tokenize_lines(job *j) {
    input    *in     = (input *)resize_or_exit(NULL, 1, sizeof *in);
    text      line   = {NULL, 0, 0}, key = {NULL, 0, 0}, reply = {NULL, 0, 0};
    request   r;
    int       status = EXIT_DONE;
    uint64_t  number = 0;
    memset(in, 0, sizeof *in);
    memset(&r, 0, sizeof r);
    ids_reserve(&r.ids, 64);
    while (status == EXIT_DONE && !j->write_error) {
        text_clear(&line);
        line_result got = read_line(j, in, &line);
        if (got == LINE_END) break;
        number++;
        json_in json = {line.p, line.p, line.p + line.n, NULL};
        if (got != LINE_READ) status = failed("cannot read the input: %s", strerror(errno));
        else if (!request_read(&json, &r, &key))
            status = failed("line %llu, byte %llu: %s", (unsigned long long)number,
                            (unsigned long long)(json.p - json.start) + 1, json.wrong);
        else if (!request_answer(j, &r, &reply)) 
            status = failed("line %llu: %s", (unsigned long long)number, j->error.message);
        else out_write(j, reply.p, reply.n);
    }
    text_free(&line), text_free(&key), text_free(&reply), text_free(&r.content);
    free(r.ids.p);
    free(in);
    return status;
}

static int tokenize_text(job *j) {
    text    content = {NULL, 0, 0};
    id_list ids     = {NULL, 0, 0};
    int     status  = EXIT_DONE;
    if (strcmp(j->o.prompt, "-") != 0) text_put(&content, j->o.prompt);
    else if (!read_text("-", &content)) status = EXIT_FAILED;
    if (status == EXIT_DONE && !encode(j, content.p, content.n, j->o.special ? NOVA_PARSE_SPECIAL : 0, &ids))
        status = job_failed(j);
    if (status == EXIT_DONE) {
        json_open(&j->out, NULL, '{');
        json_ids(&j->out, "ids", ids.p, ids.n);
        json_close(&j->out, '}');
        /* Without --json the bare list, as `nova logits --ids` takes it. */
        const char *from = strchr(j->out.p, '[') + 1;
        if (!j->o.json) out_write(j, from, strcspn(from, "]")), out_write(j, "\n", 1);
    }
    text_free(&content);
    free(ids.p);
    return status;
}

static int call_tokenize(job *j) {
    if (j->o.jsonl == (j->o.prompt != NULL)) return bad_usage(j->call, "tokenize: give either --jsonl or -p");
    if (j->o.jsonl && j->o.special) return bad_usage(j->call, "tokenize: --special goes with -p alone");
    if (j->o.jsonl && j->o.json) return bad_usage(j->call, "tokenize: --jsonl and --json exclude each other");
    if (!job_open_model(j, true)) return job_failed(j);
    return j->o.jsonl ? tokenize_lines(j) : tokenize_text(j);
}

/* ---------------------------------------------------------------------------------------------------------------
 * logits
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct logits_file {
    FILE         *file;
    unsigned char *row;
    uint32_t      n_vocab;
    size_t        n_rows;
    bool          bad;
} logits_file;

/* A nova_logits_fn. Little-endian on every machine. */
static bool logits_write(void *user, size_t index, const float *logits) {
    logits_file *f = (logits_file *)user;
    (void)index;
    for (uint32_t i = 0; i < f->n_vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], 4);
        for (int k = 0; k < 4; k++) f->row[(size_t)i * 4 + (size_t)k] = (unsigned char)(bits >> 8 * k);
    }
    f->n_rows++;
    f->bad = fwrite(f->row, 4, f->n_vocab, f->file) != f->n_vocab;
    return !f->bad;
}

static bool logits_parse(const char *z, id_list *ids) {
    uint64_t id;
    for (;;) {
        if (!parse_digits(&z, INT32_MAX, &id)) return false;
        ids_reserve(ids, 1);
        ids->p[ids->n++] = (int32_t)id;
        if (!*z) return true;
        if (*z++ != ',') return false;
    }
}

static nova_result logits_evaluate(job *j, const id_list *ids, logits_file *f) {
    if (!j->o.one_by_one) return nova_session_score(j->session, ids->p, ids->n, logits_write, f, &j->error);
    for (size_t i = 0; i < ids->n && !f->bad; i++) {
        nova_result  r      = nova_session_feed(j->session, ids->p + i, 1, &j->error);
        const float *logits = r == NOVA_OK ? nova_session_logits(j->session, &j->error) : NULL;
        if (!logits) return r != NOVA_OK ? r : j->error.code;
        logits_write(f, i, logits);
    }
    return NOVA_OK;
}

static int logits_to_file(job *j, const id_list *ids) {
    logits_file f;
    memset(&f, 0, sizeof f);
    f.n_vocab = j->info.n_vocab;
    f.file    = open_file(j->o.output, "wb");
    if (!f.file) return failed("cannot write '%s': %s", j->o.output, strerror(errno));
    f.row = (unsigned char *)resize_or_exit(NULL, f.n_vocab, 4);
    bar_begin(&j->progress);
    nova_result r = logits_evaluate(j, ids, &f);
    bar_end(&j->progress);
    if (fclose(f.file) != 0) f.bad = true;
    free(f.row);
    if (!f.bad && r == NOVA_OK) return EXIT_DONE;
    int   why   = errno;
    FILE *empty = open_file(j->o.output, "wb");   /* rather nothing than a part; removing might hit a device */
    if (empty) fclose(empty);
    return f.bad ? failed("cannot write '%s': %s", j->o.output, strerror(why)) : job_failed(j);
}

static int logits_check(const job *j, const id_list *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if ((uint32_t)ids->p[i] >= j->info.n_vocab)
            return failed("id %d, number %llu of --ids, is not in the vocabulary (0 to %u)", (int)ids->p[i],
                          (unsigned long long)i + 1, j->info.n_vocab - 1);
    return EXIT_DONE;
}

/* The default context, or more where there are more ids. */
static bool logits_open(job *j, size_t n_ids) {
    nova_engine_desc desc = engine_desc(j, j->o.n_ctx);
    nova_engine_info size;
    if (nova_engine_size(j->model, &desc, &size, &j->error) != NOVA_OK) return false;
    return job_open_engine(j, j->o.n_ctx || n_ids <= size.n_ctx ? j->o.n_ctx : (uint32_t)n_ids);
}

static int call_logits(job *j) {
    id_list ids = {NULL, 0, 0};
    if (!j->o.ids) return bad_usage(j->call, "logits: no tokens: give them with --ids 1,2,3");
    if (!j->o.output) return bad_usage(j->call, "logits: no file for the result: give it with -o FILE");
    if (!strcmp(j->o.output, j->o.model)) return bad_usage(j->call, "logits: -o would overwrite the model");
    int status = EXIT_FAILED;
    if (!logits_parse(j->o.ids, &ids))
        status = bad_usage(j->call, "--ids takes whole numbers like 1,2,3, not '%.60s'", j->o.ids);
    else if (!job_open_model(j, false)) job_failed(j);
    else if (logits_check(j, &ids) != EXIT_DONE) status = EXIT_FAILED;
    else if (!logits_open(j, ids.n)) job_failed(j);
    else status = logits_to_file(j, &ids);
    if (status == EXIT_DONE && j->o.json) {
        json_open(&j->out, NULL, '{');
        json_text(&j->out, "file", j->o.output);
        json_int(&j->out, "n_ids", ids.n);
        json_int(&j->out, "n_vocab", j->info.n_vocab);
        json_close(&j->out, '}');
    }
    free(ids.p);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------
 * perplexity: the windows of llama.cpp's llama-perplexity in its default mode (tools/perplexity/perplexity.cpp).
 * The text, BOS in front where the model asks for it, is cut into windows of the context's length; what does not fill
 * the last is dropped. The first token of every window gives way to BOS. Tokens from the middle of the window on
 * predict the next: n_ctx - 1 - n_ctx / 2 of them.
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct score {
    const int32_t *next;      /* the token behind the first logits that come */
    uint32_t       n_vocab;
    uint64_t       n;
    double         sum, sum2; /* of negative log-likelihoods, and of their squares */
} score;

static double negative_log_likelihood(const float *logits, uint32_t n, int32_t id) {
    float  top = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++) top = logits[i] > top ? logits[i] : top;
    for (uint32_t i = 0; i < n; i++) sum += expf(logits[i] - top);
    return log(sum) - ((double)logits[id] - top);
}

/* A nova_logits_fn. */
static bool score_add(void *user, size_t index, const float *logits) {
    score *s   = (score *)user;
    double nll = negative_log_likelihood(logits, s->n_vocab, s->next[index]);
    s->sum += nll;
    s->sum2 += nll * nll;
    s->n++;
    return true;
}

static double score_perplexity(const score *s) { return exp(s->sum / (double)s->n); }

/* Standard error of the perplexity: that of the mean, carried through the exponential. */
static double score_error(const score *s) {
    double mean = s->sum / (double)s->n, variance = s->sum2 / (double)s->n - mean * mean;
    return s->n > 1 && variance > 0 ? sqrt(variance / (double)(s->n - 1)) * exp(mean) : 0;
}

static nova_result perplexity_window(job *j, const int32_t *ids, uint32_t n_ctx, score *s) {
    uint32_t half = n_ctx / 2;
    nova_session_reset(j->session);
    nova_result r = nova_session_feed(j->session, ids, half, &j->error);
    s->next = ids + half + 1;
    if (r == NOVA_OK) r = nova_session_score(j->session, ids + half, n_ctx - 1 - half, score_add, s, &j->error);
    return r;
}

static bool perplexity_windows(job *j, const id_list *ids, int32_t bos, uint32_t n_chunks, score *s) {
    uint32_t n_ctx = j->engine_info.n_ctx;
    int32_t *window = (int32_t *)resize_or_exit(NULL, n_ctx, sizeof *window);
    bool     drawn = is_terminal(stderr), good = true;
    bar      whole;
    bar_begin(&whole);
    for (uint32_t i = 0; good && i < n_chunks; i++) {
        char note[32] = "";
        memcpy(window, ids->p + (size_t)i * n_ctx, n_ctx * sizeof *window);
        if (bos >= 0) window[0] = bos;
        good = perplexity_window(j, window, n_ctx, s) == NOVA_OK;
        if (!good) break;
        snprintf(note, sizeof note, "%.4f", score_perplexity(s));
        if (drawn) bar_draw(&whole, "windows", i + 1, n_chunks, note);
        else fprintf(stderr, "%s[%u]%s", i ? ", " : "", i + 1, note);
    }
    bar_end(&whole);
    if (!drawn && s->n) fputc('\n', stderr);
    free(window);
    return good;
}

static int perplexity_report(job *j, const score *s, uint32_t n_chunks, double ms, bool bos) {
    double perplexity = score_perplexity(s);
    if (j->o.json) {
        json_open(&j->out, NULL, '{');
        json_real(&j->out, "perplexity", perplexity);
        json_real(&j->out, "standard_error", score_error(s));
        json_int(&j->out, "n_tokens", s->n);
        json_int(&j->out, "n_chunks", n_chunks);
        json_int(&j->out, "n_ctx", j->engine_info.n_ctx);
        json_bool(&j->out, "bos", bos);
        json_real(&j->out, "ms", ms);
        json_close(&j->out, '}');
        return EXIT_DONE;
    }
    char line[64];
    int  n = snprintf(line, sizeof line, "perplexity: %.4f\n", perplexity);
    fprintf(stderr, "%s%llu tokens scored in %u windows of %u, %.1f s; standard error %.4f%s\n", dim(),
            (unsigned long long)s->n, n_chunks, j->engine_info.n_ctx, ms * 1e-3, score_error(s), plain());
    out_write(j, line, (size_t)n);
    return EXIT_DONE;
}

static int perplexity_of(job *j, const text *content) {
    id_list ids = {NULL, 0, 0};
    score   s;
    memset(&s, 0, sizeof s);
    s.n_vocab = j->info.n_vocab;
    int  status = EXIT_FAILED;
    bool good   = encode_front(j, &ids);
    int32_t bos = ids.n ? ids.p[0] : -1;
    good = good && encode(j, content->p, content->n, 0, &ids);
    uint32_t n_ctx = j->engine_info.n_ctx;
    size_t   most  = ids.n / n_ctx;
    double   began = now_ms();
    uint32_t n_chunks = most < j->o.n_chunks ? (uint32_t)most : j->o.n_chunks;
    if (!good) status = job_failed(j);
    else if (most == 0) failed("the text has %llu tokens, one window needs %u: give more text or a smaller -c",
                               (unsigned long long)ids.n, n_ctx);
    else if (!perplexity_windows(j, &ids, bos, n_chunks, &s)) status = job_failed(j);
    else status = perplexity_report(j, &s, n_chunks, now_ms() - began, bos >= 0);
    free(ids.p);
    return status;
}

static int call_perplexity(job *j) {
    text content = {NULL, 0, 0};
    if (!j->o.file) return bad_usage(j->call, "perplexity: no text: give one with -f FILE");
    if (j->o.n_ctx && j->o.n_ctx < 4) return bad_usage(j->call, "perplexity: a window (-c) has 4 tokens at least");
    int status = EXIT_FAILED;
    j->own_bar = true;
    if (!read_text(j->o.file, &content)) status = EXIT_FAILED;
    else if (!job_open(j, j->o.n_ctx ? j->o.n_ctx : 512)) job_failed(j);
    else status = perplexity_of(j, &content);
    text_free(&content);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------
 * bench: as llama-bench does it, so that the numbers compare: a prompt of random tokens from an empty context, and a
 * generation from an empty context that evaluates -n tokens one by one.
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct bench {
    job     *j;
    int32_t *prompt;          /* n_prompt random ids, one at least */
    double  *pp_tps, *tg_tps, *first_ms, *host_us;   /* n_runs each */
    double   submits, dispatches, barriers;   /* a token */
    double   longest_ms;                      /* of a submit */
    uint32_t step, n_steps, run;
} bench;

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *values, uint32_t n) {
    double *sorted = (double *)resize_or_exit(NULL, n, sizeof *sorted);
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_doubles);
    double middle = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    free(sorted);
    return middle;
}

/* Prompt of n tokens, then one choice, which evaluates nothing: what it takes is the host's part of a token. */
static bool bench_prompt(bench *b, uint32_t n, double *feed_ms, double *choice_ms) {
    job       *j = b->j;
    nova_token token;
    nova_session_reset(j->session);
    double began = now_ms();
    if (nova_session_feed(j->session, b->prompt, n, &j->error) != NOVA_OK) return false;
    double fed = now_ms();
    if (nova_session_next(j->session, &token, &j->error) < 0) return false;
    *feed_ms   = fed - began;
    *choice_ms = now_ms() - fed;
    return true;
}

/* n tokens evaluated one by one: the first is fed, every choice but the first evaluates the one before it. */
static bool bench_generate(bench *b, uint32_t n, double *ms) {
    job       *j = b->j;
    nova_token token;
    nova_session_reset(j->session);
    nova_engine_info before, after;
    nova_engine_get_info(j->engine, &before);
    double began = now_ms();
    if (nova_session_feed(j->session, b->prompt, 1, &j->error) != NOVA_OK) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (nova_session_next(j->session, &token, &j->error) < 0) return false;
        bar_draw(&j->progress, "bench", b->step + (double)i / n, b->n_steps, "generation");
    }
    *ms = now_ms() - began;
    nova_engine_get_info(j->engine, &after);
    b->submits    = (double)(after.n_submits - before.n_submits) / n;
    b->dispatches = (double)(after.n_dispatches - before.n_dispatches) / n;
    b->barriers   = (double)(after.n_barriers - before.n_barriers) / n;
    b->longest_ms = (double)after.gpu_longest_ns * 1e-6;
    if (after.n_submits > before.n_submits)   /* what is no waiting for a GPU is the host's */
        b->host_us[b->run] = (*ms * 1e3 - (double)(after.gpu_wait_ns - before.gpu_wait_ns) * 1e-3) / n;
    return true;
}

static bool bench_runs(bench *b) {
    job     *j        = b->j;
    uint32_t n_prompt = j->o.n_prompt, n_gen = j->o.n_gen;
    double   ms, choice_ms;
    bar_begin(&j->progress);
    b->n_steps = 1 + 2 * j->o.n_runs;
    if (!bench_prompt(b, n_prompt ? n_prompt : 1, &ms, &choice_ms)) return false;   /* warms up caches and clocks */
    for (uint32_t i = 0; i < j->o.n_runs; i++) {
        b->step = 1 + i;
        bar_draw(&j->progress, "bench", b->step, b->n_steps, "prompt");
        if (!bench_prompt(b, n_prompt ? n_prompt : 1, &ms, &choice_ms)) return false;
        b->pp_tps[i]   = per_second(n_prompt, ms);
        b->first_ms[i] = ms + choice_ms;
        b->host_us[i]  = choice_ms * 1e3;
    }
    if (n_gen && !bench_generate(b, n_gen < 8 ? n_gen : 8, &ms)) return false;
    for (uint32_t i = 0; i < j->o.n_runs; i++) {
        b->step = 1 + j->o.n_runs + i;
        b->run  = i;
        if (n_gen && !bench_generate(b, n_gen, &ms)) return false;
        b->tg_tps[i] = n_gen ? per_second(n_gen, ms) : 0;
    }
    bar_end(&j->progress);
    return true;
}

static void json_runs(text *o, const char *key, const double *values, uint32_t n) {
    json_open(o, key, '[');
    for (uint32_t i = 0; i < n; i++) json_real(o, NULL, values[i]);
    json_close(o, ']');
}

static void bench_json(bench *b) {
    job     *j = b->j;
    text    *o = &j->out;
    uint32_t n = j->o.n_runs;
    json_open(o, NULL, '{');
    json_real(o, "pp_tps", median(b->pp_tps, n));
    json_real(o, "tg_tps", median(b->tg_tps, n));
    json_real(o, "load_ms", j->load_ms);
    json_real(o, "first_token_ms", median(b->first_ms, n));
    json_int(o, "peak_rss_bytes", peak_rss_bytes());
    json_real(o, "submits_per_token", b->submits);
    json_real(o, "dispatches_per_token", b->dispatches);
    json_real(o, "barriers_per_token", b->barriers);
    json_real(o, "longest_submit_ms", b->longest_ms);
    json_real(o, "host_us_per_token", median(b->host_us, n));
    json_engine(o, &j->engine_info);
    json_int(o, "n_prompt", j->o.n_prompt);
    json_int(o, "n_gen", j->o.n_gen);
    json_int(o, "n_runs", n);
    json_int(o, "seed", j->o.seed);
    json_runs(o, "pp_runs", b->pp_tps, n);
    json_runs(o, "tg_runs", b->tg_tps, n);
    json_open(o, "model", '{');
    json_model(o, &j->info);
    json_close(o, '}');
    json_text(o, "version", nova_version());
    json_close(o, '}');
}

static void bench_row(job *j, const char *what, uint32_t n_tokens, const double *tps) {
    char   line[128];
    double low = tps[0], high = tps[0];
    for (uint32_t i = 1; i < j->o.n_runs; i++) low = tps[i] < low ? tps[i] : low, high = tps[i] > high ? tps[i] : high;
    int n = snprintf(line, sizeof line, "%-12s %6u tokens %10.2f tokens/s   (%.2f to %.2f)\n", what, n_tokens,
                     median(tps, j->o.n_runs), low, high);
    out_write(j, line, (size_t)n);
}

static void bench_people(bench *b) {
    job  *j = b->j;
    char  model[32], cache[32], scratch[32], peak[32];
    const nova_engine_info *e = &j->engine_info;
    info_line(j, "model", "%s, %s, %s, %.1f M weights", model_name(j), j->info.type,
              bytes_text(j->info.n_bytes, model, sizeof model), (double)j->info.n_params * 1e-6);
    info_line(j, "engine", "%s %s, %u threads, context %u, batch %u", e->device, e->cpu, e->n_threads,
              e->n_ctx, e->n_batch);
    if (j->o.n_prompt) bench_row(j, "prompt", j->o.n_prompt, b->pp_tps);
    if (j->o.n_gen) bench_row(j, "generation", j->o.n_gen, b->tg_tps);
    info_line(j, "first token", "%.1f ms behind the prompt's start; choosing a token takes %.0f us",
              median(b->first_ms, j->o.n_runs), median(b->host_us, j->o.n_runs));
    if (b->submits > 0)
        info_line(j, "gpu", "%u of %u layers; a token: %.2f submits, %.0f dispatches, %.0f barriers; the longest submit took %.1f ms",
                  e->gpu_layers, e->n_layers, b->submits, b->dispatches, b->barriers, b->longest_ms);
    info_line(j, "load", "%.1f ms", j->load_ms);
    info_line(j, "memory", "cache %s, scratch %s, peak %s", bytes_text(e->cache_bytes, cache, sizeof cache),
              bytes_text(e->scratch_bytes, scratch, sizeof scratch), bytes_text(peak_rss_bytes(), peak, sizeof peak));
}

/* A context that both tests fit in, unless -c says another. */
static uint32_t bench_context(const options *o) {
    return o->n_ctx ? o->n_ctx : (o->n_prompt > o->n_gen ? o->n_prompt : o->n_gen) + 1;
}

static int call_bench(job *j) {
    bench b;
    memset(&b, 0, sizeof b);
    b.j = j;
    if (!j->o.n_prompt && !j->o.n_gen) return bad_usage(j->call, "bench: nothing to do with -p 0 -n 0");
    j->own_bar       = true;
    j->o.temperature = 0;
    j->o.ignore_end  = true;
    if (!job_open(j, bench_context(&j->o))) return job_failed(j);
    uint32_t n       = j->o.n_prompt ? j->o.n_prompt : 1, n_runs = j->o.n_runs;
    uint64_t state   = j->o.seed;
    double  *results = (double *)resize_or_exit(NULL, (size_t)n_runs * 4, sizeof *results);
    b.prompt         = (int32_t *)resize_or_exit(NULL, n, sizeof *b.prompt);
    b.pp_tps   = results;
    b.tg_tps   = results + n_runs;
    b.first_ms = results + 2 * n_runs;
    b.host_us  = results + 3 * n_runs;
    for (uint32_t i = 0; i < n; i++) b.prompt[i] = (int32_t)(random_next(&state) % j->info.n_vocab);
    int status = EXIT_DONE;
    if (!bench_runs(&b)) {
        bar_end(&j->progress);
        status = job_failed(j);
    } else if (j->o.json) {
        bench_json(&b);
    } else {
        bench_people(&b);
    }
    free(results);
    free(b.prompt);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------
 * kernels
 * ------------------------------------------------------------------------------------------------------------ */

static bool kernel_json(void *user, const nova_kernel_info *k) {
    job  *j = (job *)user;
    text *o = &j->out;
    json_open(o, NULL, '{');
    json_text(o, "name", k->name);
    json_text(o, "specialisation", k->specialisation);
    json_int(o, "dispatches_per_token", k->n_token);
    json_int(o, "dispatches_per_batch", k->n_prompt);
    json_int(o, "subgroup", k->subgroup);
    json_open(o, "statistics", '{');
    for (uint32_t i = 0; i < k->n_statistics; i++) json_real(o, k->statistics[i], k->values[i]);
    json_close(o, '}');
    if (j->o.code && k->code) json_text(o, "code", k->code);
    json_close(o, '}');
    return true;
}

static bool kernel_people(void *user, const nova_kernel_info *k) {
    job *j = (job *)user;
    text line = {NULL, 0, 0};
    text_printf(&line, "%-18s %4u a token %4u a batch  (%s)", k->name, k->n_token, k->n_prompt, k->specialisation);
    for (uint32_t i = 0; i < k->n_statistics; i++)
        if (k->values[i] != 0) text_printf(&line, "%s %s %.10g", i ? "," : " :", k->statistics[i], k->values[i]);
    text_char(&line, '\n');
    out_write(j, line.p, line.n);
    text_free(&line);
    return true;
}

static int call_kernels(job *j) {
    j->statistics = true;
    if (!j->o.device) j->o.device = "gpu";
    if (!job_open(j, j->o.n_ctx)) return job_failed(j);
    if (j->o.json) {
        json_open(&j->out, NULL, '{');
        json_engine(&j->out, &j->engine_info);
        json_open(&j->out, "kernels", '[');
    }
    if (nova_engine_kernels(j->engine, j->o.json ? kernel_json : kernel_people, j, &j->error) != NOVA_OK) return job_failed(j);
    if (j->o.json) {
        json_close(&j->out, ']');
        json_close(&j->out, '}');
    }
    return EXIT_DONE;
}

/* ---------------------------------------------------------------------------------------------------------------
 * The calls, their help, and the start
 * ------------------------------------------------------------------------------------------------------------ */

static const struct call {
    const char *name, *usage, *help;
    unsigned    bit;
    int (*fn)(job *j);   /* NULL: of a later version */
} CALLS[] = {
    {"run", "-m FILE -p TEXT", "answer one prompt", RUN, call_run},
    {"chat", "-m FILE", "hold a conversation on the terminal", CHAT, call_chat},
    {"info", "-m FILE | --devices", "tell what a model file holds, or what the machine offers", INFO, call_info},
    {"tokenize", "-m FILE --jsonl | -p TEXT", "turn text into token ids and back", TOKENIZE, call_tokenize},
    {"logits", "-m FILE --ids 1,2,3 -o FILE", "write the logits behind given tokens to a file", LOGITS, call_logits},
    {"perplexity", "-m FILE -f TEXT", "measure how well a model predicts a text", PERPLEXITY, call_perplexity},
    {"bench", "-m FILE", "measure the speed", BENCH, call_bench},
    {"kernels", "-m FILE", "tell what a GPU runs for a model, kernel by kernel", KERNELS, call_kernels},
    {"profile", "", "", 0, NULL},
    {"plan", "", "", 0, NULL},
    {"pack", "", "", 0, NULL},
};

static const struct call *call_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(CALLS); i++)
        if (strcmp(CALLS[i].name, name) == 0) return &CALLS[i];
    return NULL;
}

static void help_options(unsigned call, bool common) {
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        const option *o = &OPTIONS[i];
        char          head[64];
        if (!o->help || !(o->calls & call) || (o->calls == EVERY) != common) continue;
        snprintf(head, sizeof head, "%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("  %-28s %s\n", head, o->help);
    }
}

static int help_all(void) {
    printf("nova %s: runs GGUF language models\n\n", nova_version());
    for (size_t i = 0; i < COUNT_OF(CALLS); i++)
        if (CALLS[i].fn) printf("  nova %-10s %-28s %s\n", CALLS[i].name, CALLS[i].usage, CALLS[i].help);
    printf("\n  nova help CALL tells the options of a call, nova --version the version.\n");
    return EXIT_DONE;
}

static int help_call(const struct call *call) {
    printf("nova %s %s\n  %s\n\n", call->name, call->usage, call->help);
    help_options(call->bit, false);
    printf("\nof every call:\n");
    help_options(call->bit, true);
    if (call->bit == TOKENIZE)
        printf("\nNo special tokens are added, and none seen in a text, except where --special asks for it.\n");
    printf("\nExit status: 0 done, 1 failed (one line on stderr), 2 bad usage.\n");
    return EXIT_DONE;
}

static int start(int argc, char **argv) {
    static job  j;
    const char *name    = argc > 1 ? argv[1] : "help";
    bool        is_help = !strcmp(name, "help") || !strcmp(name, "-h") || !strcmp(name, "--help");
    if (argc < 2) return bad_usage(NULL, "what shall it do? run, chat, info, tokenize, logits, perplexity, bench");
    if (!strcmp(name, "--version")) return printf("nova %s\n", nova_version()), EXIT_DONE;
    if (is_help && argc == 2) return help_all();
    if (is_help) name = argv[2];
    const struct call *call = call_find(name);
    if (!call) return bad_usage(NULL, "there is no call '%s'", name);
    if (!call->fn) return bad_usage(NULL, "%s: not in this version", name);
    if (is_help) return help_call(call);
    j.call     = call->name;
    int status = options_parse(&j.o, call->bit, call->name, argv + 2);
    if (status != EXIT_DONE) return status;
    if (j.o.help) return help_call(call);
    if (!j.o.model && !j.o.devices) return bad_usage(call->name, "%s: no model: give one with -m FILE", call->name);
    return job_finish(&j, call->fn(&j));
}

int main(int argc, char **argv) {
    argv       = system_start(&argc, argv);
    int status = start(argc, argv);
    if (fflush(stdout) != 0 && status == EXIT_DONE) status = EXIT_FAILED;
    return status;
}
