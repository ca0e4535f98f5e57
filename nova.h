/* nova - runs quantised GGUF language models inside your program, offline.
 *
 * Copy nova.h and nova.c into your project, compile nova.c as C11 or C++17, link the system's own libraries
 * (Linux: -lm -lpthread -ldl), and include this header, which is also the manual.
 *
 * Three objects
 *   nova_model    the file, mapped and read-only. May be shared by engines on many threads.
 *   nova_engine   what running it takes: the compiled program, worker threads, scratch memory, and a pool of
 *                 cache pages. An engine and its sessions belong to one thread at a time.
 *   nova_session  one text: its place in the cache and its sampler. Light; an engine runs many.
 *
 * Rules that hold everywhere
 *   - Descriptors are structs that you zero first; a field left zero means the default its comment states.
 *     A NULL descriptor is one of all zeros, where nothing in it is required.
 *   - A call that can fail returns a nova_result, or NULL, and fills the nova_error that you may pass last
 *     (NULL: you do not want to know). On success the error's code is NOVA_OK.
 *   - Passing on a NULL object from a failed open is allowed: the call fails as the open did and leaves the error as
 *     it stands, so a chain of opens needs one check at its end. Closing NULL does nothing.
 *   - A failed call changes nothing that its comment does not name; the object stays usable.
 *   - nova never aborts, exits, prints, throws, installs signal handlers, or keeps global state.
 *   - Text is UTF-8. Paths too, on Windows as well.
 *   - Generating a token allocates nothing: an engine takes its memory when it opens. (On a GPU, the first batch of a number
 *     of sessions that had none yet makes its kernels.)
 *   - No function may be called from inside a callback unless the callback's comment says so.
 *
 * MIT license, see LICENSE.
 */
#ifndef NOVA_H
#define NOVA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOVA_VERSION "0.1.0"

/* Define NOVA_API yourself to export from a DLL, or as `static` to include nova.c into one file of yours. */
#ifndef NOVA_API
#ifdef __cplusplus
#define NOVA_API extern "C"
#else
#define NOVA_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------------
 * Results and errors
 * ------------------------------------------------------------------------------------------------------------ */

#define NOVA_RESULTS(X)                                                       \
    X(NOVA_OK, 0, "no error")                                                 \
    X(NOVA_END, 1, "the text has ended")                                      \
    X(NOVA_CANCELLED, 2, "cancelled")                                         \
    X(NOVA_ERROR_ARGUMENT, -1, "bad argument")                                \
    X(NOVA_ERROR_MEMORY, -2, "out of memory")                                 \
    X(NOVA_ERROR_FILE, -3, "file cannot be opened or read")                   \
    X(NOVA_ERROR_FORMAT, -4, "file is damaged or of another format")          \
    X(NOVA_ERROR_UNSUPPORTED, -5, "not supported")                            \
    X(NOVA_ERROR_CONTEXT_FULL, -6, "the context is full")                     \
    X(NOVA_ERROR_TOO_SMALL, -7, "the buffer is too small")                    \
    X(NOVA_ERROR_TEMPLATE, -8, "the chat template failed")                    \
    X(NOVA_ERROR_THREAD, -9, "threads cannot be started")                     \
    X(NOVA_ERROR_DEVICE, -10, "no such device, or it failed")                 \
    X(NOVA_ERROR_NUMBER, -11, "the model computed something that is no number")

typedef enum nova_result {
#define NOVA_RESULT_ENUM(name, number, text) name = number,
    NOVA_RESULTS(NOVA_RESULT_ENUM)
#undef NOVA_RESULT_ENUM
} nova_result;

#define NOVA_NOWHERE UINT64_MAX

typedef struct nova_error {
    nova_result code;
    uint64_t    offset;        /* in bytes from the file's start, or NOVA_NOWHERE */
    char        message[320];  /* one line: what, and where (key, tensor, token, numbers) */
} nova_error;

/* The table's text for a code; never NULL. Any thread. */
NOVA_API const char *nova_result_text(nova_result result);
/* NOVA_VERSION of the nova.c that was linked. Any thread. */
NOVA_API const char *nova_version(void);

/* ---------------------------------------------------------------------------------------------------------------
 * What the host may bring
 * ------------------------------------------------------------------------------------------------------------ */

/* One function for all memory. `pointer` NULL: allocate; `new_size` 0: free and return NULL; else resize.
 * `old_size` is what was asked for before. Returns memory aligned to 16, or NULL (the old block then stands).
 * Must be callable from any thread that uses the model or engine. */
typedef void *(*nova_alloc_fn)(void *user, void *pointer, size_t old_size, size_t new_size);

typedef enum nova_log_level { NOVA_LOG_INFO = 0, NOVA_LOG_WARNING = 1 } nova_log_level;
/* One line without its end. Comes on the calling thread, inside the call that has something to say. */
typedef void (*nova_log_fn)(void *user, nova_log_level level, const char *line);

/* Tells how far a long call is, from 0 to `total` in its own units. Return false to cancel it. `what` is a word or
 * two for a person. Comes on the calling thread. */
typedef bool (*nova_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* The host's thread pool: must run task(arg, 0, n) ... task(arg, n - 1, n) all at the same time, each on a thread of
 * its own (they wait for each other; the calling thread may be one of them), and return when all have returned. */
typedef void (*nova_task_fn)(void *arg, uint32_t index, uint32_t n);
typedef void (*nova_parallel_fn)(void *user, nova_task_fn task, void *arg, uint32_t n);

/* ---------------------------------------------------------------------------------------------------------------
 * Model
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct nova_model nova_model;

typedef struct nova_model_desc {
    const char      *path;           /* the GGUF file, of several the first (-00001-of-00003.gguf); required unless `data` is given */
    const void      *data;           /* or the file's bytes, yours, at any address; they must stay as they are until the close */
    size_t           size;           /* of `data`, in bytes */
    bool             read_to_memory; /* read the file instead of mapping it: for files that may shrink meanwhile */
    bool             vocab_only;     /* the tokenizer and chat template alone: no tensor is looked at */
    nova_alloc_fn    alloc;          /* default: the C library's */
    void            *alloc_user;
    nova_log_fn      log;            /* default: silence */
    void            *log_user;
    nova_progress_fn progress;       /* for reading the file into memory; default: none */
    void            *progress_user;
} nova_model_desc;

/* Opens a GGUF file (version 2 or 3). The weights stay where they are: mapped, shared with other processes.
 * Errors: FILE, FORMAT (with offset), UNSUPPORTED (architecture, tensor type, tokenizer: named), MEMORY, CANCELLED.
 * Any thread. */
NOVA_API nova_model *nova_model_open(const nova_model_desc *desc, nova_error *error);
/* Every engine of the model must be closed before. */
NOVA_API void nova_model_close(nova_model *model);

typedef struct nova_model_info {
    const char *architecture;     /* "llama"; lives as long as the model, like all text here */
    const char *name;             /* general.name, or "" */
    const char *type;             /* of most weights: "Q4_K" */
    uint64_t    n_bytes;          /* of the file */
    uint64_t    n_params;         /* weights in all tensors */
    uint32_t    n_tensors, n_meta;
    uint32_t    n_layer, n_embd, n_head, n_head_kv, n_vocab;
    uint32_t    n_ctx_train;      /* tokens it was trained for */
    bool        has_chat_template;
} nova_model_info;

NOVA_API void nova_model_get_info(const nova_model *model, nova_model_info *info);

typedef struct nova_tensor_info {
    const char *name;             /* not terminated: n_name bytes */
    size_t      n_name;
    const char *type;             /* "Q4_K" */
    uint32_t    n_dims;
    uint64_t    dims[4];          /* dims[0] is the length of a row; unused ones are 1 */
    uint64_t    offset, n_bytes;  /* in the file */
} nova_tensor_info;

/* The index-th tensor, 0 <= index < n_tensors; false outside. */
NOVA_API bool nova_model_tensor(const nova_model *model, uint32_t index, nova_tensor_info *info);
/* The index-th metadata entry as text, 0 <= index < n_meta: the key, and the value printed into `value` (cut to
 * `size` - 1 bytes and terminated; arrays as their length and first elements). False outside. */
NOVA_API bool nova_model_meta(const nova_model *model, uint32_t index, const char **key, size_t *n_key,
                              char *value, size_t size);

/* ---------------------------------------------------------------------------------------------------------------
 * Text and tokens. All of these: any thread.
 * ------------------------------------------------------------------------------------------------------------ */

enum {
    NOVA_ADD_SPECIAL   = 1,  /* put the tokens in front and behind that the model asks for (BOS, EOS) */
    NOVA_PARSE_SPECIAL = 2   /* take "<|im_start|>" and its like as the tokens they name: never for a user's text */
};

/* Text (n bytes, any bytes) to ids. Writes at most `capacity` ids; *n_ids is their number, or, with
 * NOVA_ERROR_TOO_SMALL, the number that is needed (3 n + 8 always suffices). Takes temporary memory; time is linear in n.
 * Errors: TOO_SMALL, MEMORY, ARGUMENT. */
NOVA_API nova_result nova_tokenize(const nova_model *model, const char *text, size_t n, uint32_t flags,
                                   int32_t *ids, size_t capacity, size_t *n_ids, nova_error *error);
/* Ids to text, control tokens left out; the inverse of nova_tokenize for whole texts. *n is the number of bytes, or
 * what is needed with NOVA_ERROR_TOO_SMALL. Not terminated. Bytes that are not UTF-8 come out as they are.
 * Errors: TOO_SMALL, ARGUMENT (an id out of range), MEMORY. */
NOVA_API nova_result nova_detokenize(const nova_model *model, const int32_t *ids, size_t n_ids,
                                     char *text, size_t capacity, size_t *n, nova_error *error);
/* Does the id end a text (EOS, end of turn)? False for ids out of range. */
NOVA_API bool nova_token_is_end(const nova_model *model, int32_t id);

typedef struct nova_message {
    const char *role;              /* "system", "user", "assistant", "tool" */
    const char *content;           /* may be NULL: none */
    const char *tool_calls_json;   /* a JSON array, as in the OpenAI interface; NULL: none */
    const char *extra_json;        /* a JSON object of further fields ("reasoning_content", "name"); NULL: none */
} nova_message;

typedef struct nova_chat {
    const nova_message *messages;
    size_t              n_messages;
    const char         *tools_json;           /* a JSON array of tool definitions; NULL: none */
    const char         *variables_json;       /* a JSON object of further template variables; NULL: none */
    const char         *template_text;        /* default: the model's own (an error where it has none) */
    bool                no_generation_prompt; /* end behind the last message instead of where the answer starts */
    int64_t             now;                  /* Unix time for templates that print the date; 0: the clock's */
} nova_chat;

/* A conversation by the chat template to text. *n as in nova_detokenize.
 * Errors: TEMPLATE (with the template's line), TOO_SMALL, MEMORY, ARGUMENT (bad JSON, NULL role). */
NOVA_API nova_result nova_chat_format(const nova_model *model, const nova_chat *chat, char *text, size_t capacity,
                                      size_t *n, nova_error *error);
/* The same to ids. Special tokens are those of the template alone: what looks like one in a message is plain text. */
NOVA_API nova_result nova_chat_tokenize(const nova_model *model, const nova_chat *chat, int32_t *ids, size_t capacity,
                                        size_t *n_ids, nova_error *error);

/* ---------------------------------------------------------------------------------------------------------------
 * Engine
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct nova_engine nova_engine;

/* Of cached keys and values, chosen apart. Q8_0 and Q4_0 quantise every 32 dimensions of a token by a scale. */
typedef enum nova_cache_type { NOVA_CACHE_F16 = 0, NOVA_CACHE_F32 = 1, NOVA_CACHE_Q8_0 = 2, NOVA_CACHE_Q4_0 = 3 } nova_cache_type;

/* Abilities that a GPU may have and an engine may be told not to use: matrix units for halves and for bytes, dot products of
 * bytes, arithmetic in halves, operations of a subgroup, mapped device memory. Without any, what every device has is left. */
enum {
    NOVA_GPU_MATRIX_F16 = 1, NOVA_GPU_MATRIX_S8 = 2, NOVA_GPU_DOT = 4, NOVA_GPU_F16 = 8, NOVA_GPU_SUBGROUP = 16, NOVA_GPU_MAPPED = 32
};

/* Instruction sets that a processor may have and an engine may be told not to use. */
enum { NOVA_CPU_AVX2 = 1, NOVA_CPU_AVX512 = 2 };

typedef struct nova_cpu_info {
    const char *level;     /* the instruction set an engine would use: "plain", "avx2", "avx512" */
    uint32_t    features;  /* NOVA_CPU_... */
    uint32_t    n_cores;   /* that this process may use */
} nova_cpu_info;

/* What the processor offers. Any thread. */
NOVA_API void nova_get_cpu_info(nova_cpu_info *info);

typedef struct nova_gpu_info {
    char        name[256];         /* the driver's */
    const char *kind;              /* "discrete", "integrated", "virtual", "cpu", "other" */
    uint64_t    memory_bytes, free_bytes;   /* of its own memory; free: by the driver's budget, where it tells */
    uint32_t    api_major, api_minor;       /* of Vulkan */
    uint32_t    subgroup;          /* lanes */
    uint32_t    abilities;         /* NOVA_GPU_... */
} nova_gpu_info;

/* The devices that Vulkan has here, in the order of "gpu:N": up to `capacity` into infos; *n is their number, which may be 0.
 * Errors: DEVICE (no Vulkan here: not an error for an engine whose device is "auto"), MEMORY. Any thread. */
NOVA_API nova_result nova_list_gpus(nova_gpu_info *infos, uint32_t capacity, uint32_t *n, nova_error *error);

/* A Vulkan device of the host's, to run on instead of one of nova's own. Handles pass as pointers. The device must be of Vulkan
 * 1.1 or later and outlive the engine; nova destroys none of these. */
typedef struct nova_vulkan {
    void       *get_instance_proc_addr;   /* PFN_vkGetInstanceProcAddr */
    void       *instance, *physical_device, *device, *queue;   /* VkInstance, ..., the queue being one that computes */
    uint32_t    queue_family;
    const void *features;                 /* what VkDeviceCreateInfo.pNext was: its chain tells which features are on; NULL: none */
    const char *const *extensions;        /* the device extensions that are on */
    uint32_t    n_extensions;
    void      (*lock)(void *user);        /* around every use of the queue; default: nobody else uses it meanwhile */
    void      (*unlock)(void *user);
    void       *lock_user;
} nova_vulkan;

typedef struct nova_engine_desc {
    uint32_t         n_ctx;       /* tokens that a session can hold, 2 at least; default: the smaller of trained and 4096 */
    uint32_t         n_sessions;  /* open at the same time; default 1 */
    uint32_t         n_batch;     /* tokens evaluated at once; default: 512, fewer where the CPU's scratch would pass 16 MiB */
    uint32_t         n_threads;   /* default: the processor's cores, 16 at most */
    nova_parallel_fn parallel;    /* default: worker threads of the engine, which sleep when idle */
    void            *parallel_user;
    nova_cache_type  cache_k;     /* default F16 */
    nova_cache_type  cache_v;
    const char      *device;      /* "auto" (default): the best GPU that is none of a CPU's making, else the CPU; "cpu"; "gpu": the
                                     best that Vulkan has; "gpu:N": the N-th; "gpu:0,gpu:1": layers split over both */
    uint64_t         vram_bytes;  /* most GPU memory to use, on each device; default: what the driver says is free */
    uint32_t         gpu_layers;  /* most layers on GPUs, the output counting as one; default: as many as fit */
    uint32_t         cpu_without; /* NOVA_CPU_...: instruction sets not to use */
    uint32_t         gpu_without; /* NOVA_GPU_...: abilities not to use */
    uint32_t         gpu_force;   /* one NOVA_GPU_...: an ability whose kernels are taken wherever they can run, even by a device that
                                     is a CPU: for tests and reports; default: what suits the device */
    const nova_vulkan *vulkan;    /* the host's device, read while opening alone; `device` then is "auto" or "gpu" */
    const void      *gpu_cache;   /* what nova_engine_gpu_cache gave in an earlier run: compiling then takes no time. What is
                                     damaged or of another driver is ignored */
    size_t           gpu_cache_size;
    bool             gpu_statistics;   /* keep what nova_engine_kernels tells of the driver's; opening takes longer */
    nova_progress_fn progress;    /* for the GPU's copy of the weights; default: none */
    void            *progress_user;
    nova_alloc_fn    alloc;       /* default: the model's */
    void            *alloc_user;
    nova_log_fn      log;         /* default: the model's */
    void            *log_user;
} nova_engine_desc;

/* Takes everything that running needs: memory for n_sessions full contexts, scratch, threads.
 * Errors: ARGUMENT, MEMORY, THREAD, DEVICE, UNSUPPORTED, CANCELLED (by `progress`). */
NOVA_API nova_engine *nova_engine_open(nova_model *model, const nova_engine_desc *desc, nova_error *error);
/* Every session of the engine must be closed before. */
NOVA_API void nova_engine_close(nova_engine *engine);

typedef struct nova_engine_info {
    uint32_t    n_ctx, n_sessions, n_batch, n_threads;
    uint64_t    cache_bytes;      /* the cache pages */
    uint64_t    scratch_bytes;    /* everything else that was taken */
    uint64_t    vram_bytes;       /* of GPUs */
    uint64_t    imported_bytes;   /* of these: pages of the file, which a GPU that shares the main memory reads where they lie */
    const char *cpu;              /* the instruction set in use: "plain", "avx2", "avx512" */
    const char *device;           /* "cpu", or the GPU's name */
    uint32_t    n_ops;            /* operations a token */
    uint32_t    n_layers, gpu_layers;   /* of the model and on GPUs, the output counting as one */
    uint64_t    n_submits, n_dispatches, n_barriers;   /* since opening: work given to GPUs */
    uint64_t    gpu_wait_ns, gpu_longest_ns;           /* the time that was waited for it; the longest of one submit */
} nova_engine_info;

NOVA_API void nova_engine_get_info(const nova_engine *engine, nova_engine_info *info);
/* The compiled kernels of the engine's GPUs as bytes that the host may keep, for nova_engine_desc.gpu_cache. *n is their number,
 * or what is needed with NOVA_ERROR_TOO_SMALL; 0 where there is no GPU. Errors: TOO_SMALL, DEVICE, MEMORY. The engine's thread. */
NOVA_API nova_result nova_engine_gpu_cache(nova_engine *engine, void *data, size_t capacity, size_t *n, nova_error *error);

/* One compiled kernel of an engine's GPUs. */
typedef struct nova_kernel_info {
    const char *name;              /* of the shader; all text lives as long as the call */
    const char *specialisation;    /* the constants it was compiled with, parted by commas */
    uint32_t    n_token, n_prompt; /* dispatches of a generated token, and of a full batch of a prompt */
    uint32_t    subgroup;          /* lanes it was compiled for; 0: the driver chose */
    /* By the driver, with gpu_statistics: names and values as it calls them (VK_KHR_pipeline_executable_properties). */
    uint32_t           n_statistics;
    const char *const *statistics;
    const double      *values;
    const char        *code;       /* its own disassembly, NULL: none */
} nova_kernel_info;

/* Return false to end the list. */
typedef bool (*nova_kernel_fn)(void *user, const nova_kernel_info *kernel);

/* Tells of every kernel that the engine's GPUs need for a token and for a full batch, compiling what was not used yet.
 * Errors: DEVICE, MEMORY. The engine's thread. */
NOVA_API nova_result nova_engine_kernels(nova_engine *engine, nova_kernel_fn fn, void *user, nova_error *error);

/* What nova_engine_open would take for this descriptor, without taking it: cache_bytes, scratch_bytes and vram_bytes of
 * `info`, the layers that would go to GPUs, and the numbers that defaults resolve to; `device` is "cpu" or "gpu". Where a GPU is
 * meant it is opened and closed again. vram_bytes holds as long as others leave the GPU as much free memory as now.
 * Errors: as nova_engine_open. */
NOVA_API nova_result nova_engine_size(const nova_model *model, const nova_engine_desc *desc, nova_engine_info *info,
                                      nova_error *error);

/* ---------------------------------------------------------------------------------------------------------------
 * Session
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct nova_session nova_session;

/* Zero is greedy: always the likeliest token. The steps apply in this order: penalty, temperature, top_k, top_p, min_p.
 * The same seed, text and settings give the same tokens on every machine whose logits agree. */
typedef struct nova_sampler {
    float    temperature;     /* 0: greedy */
    uint32_t top_k;           /* keep the k likeliest; 0: all */
    float    top_p;           /* keep the likeliest that together reach p; 0 or 1: all */
    float    min_p;           /* keep those at least min_p times as likely as the likeliest; 0: all */
    float    repeat_penalty;  /* divides positive logits of recent tokens, multiplies negative ones; 0 or 1: none */
    uint32_t repeat_last;     /* how many tokens are recent; 0: 64 */
    uint64_t seed;
} nova_sampler;

typedef enum nova_limit {
    NOVA_LIMIT_ERROR = 0,  /* a full context is NOVA_ERROR_CONTEXT_FULL */
    NOVA_LIMIT_SLIDE = 1   /* the oldest tokens behind the sinks are dropped in blocks, and it goes on without end */
} nova_limit;

#define NOVA_NO_SINKS UINT32_MAX

typedef struct nova_session_desc {
    nova_sampler     sampler;
    nova_limit       limit;
    uint32_t         n_sinks;       /* first tokens that sliding never drops; default 4, NOVA_NO_SINKS for none */
    bool             ignore_end;    /* go on behind tokens that end a text */
    nova_progress_fn progress;      /* while feeding: tokens done; default: none */
    void            *progress_user;
} nova_session_desc;

/* Errors: ARGUMENT (more sessions than the engine was opened for; a sampler value that is no number), MEMORY. */
NOVA_API nova_session *nova_session_open(nova_engine *engine, const nova_session_desc *desc, nova_error *error);
NOVA_API void          nova_session_close(nova_session *session);

/* A session of the same engine that goes on from where this one is, with its sampler and settings, in the same cache pages until one of them
 * writes: so sessions that begin alike hold the beginning once. Errors: as nova_session_open. The engine's thread. */
NOVA_API nova_session *nova_session_fork(const nova_session *session, nova_error *error);

/* Everything that a session is, as bytes: tokens, cache, sampler, logits, so that it goes on exactly as it would have. They are for the
 * same model file and cache types, whatever the device, context or batch. *n is their number, or what is needed with TOO_SMALL.
 * Errors: TOO_SMALL, DEVICE, MEMORY. The engine's thread. */
NOVA_API nova_result nova_session_save(nova_session *session, void *data, size_t capacity, size_t *n, nova_error *error);
/* Makes the session what was saved. All of it is checked first, by a checksum too: where it fails, the session is as before (but on
 * DEVICE, which leaves it empty). The settings of the session's descriptor stay; the sampler's do not. Errors: FORMAT (damaged, of another version,
 * of another model or cache), CONTEXT_FULL (more tokens than this context or pool holds), MEMORY, DEVICE. */
NOVA_API nova_result nova_session_load(nova_session *session, const void *data, size_t n, nova_error *error);

/* Appends tokens and evaluates them, so that the next one can be chosen.
 * Errors: ARGUMENT (an id out of range, no ids), CONTEXT_FULL (with both numbers; nothing was appended), CANCELLED (what was
 * evaluated so far stays; nova_session_get_info tells), NUMBER. */
NOVA_API nova_result nova_session_feed(nova_session *session, const int32_t *ids, size_t n, nova_error *error);
/* Makes the session hold exactly these tokens, evaluating only what the cache does not hold already as a common start. */
NOVA_API nova_result nova_session_set(nova_session *session, const int32_t *ids, size_t n, nova_error *error);
/* A conversation by the chat template: nova_chat_tokenize and nova_session_set. Takes temporary memory. */
NOVA_API nova_result nova_session_chat(nova_session *session, const nova_chat *chat, nova_error *error);
/* Forgets all tokens; the sampler starts again from its seed. */
NOVA_API void nova_session_reset(nova_session *session);
/* Replaces the sampler; its random numbers start again from the seed. Errors: ARGUMENT. */
NOVA_API nova_result nova_session_set_sampler(nova_session *session, const nova_sampler *sampler, nova_error *error);

typedef struct nova_token {
    int32_t     id;
    const char *text;    /* whole UTF-8 characters that are complete now, terminated; often empty; until the next call */
    size_t      n_text;
} nova_token;

/* Chooses the next token, appends it, and gives its text. NOVA_END when it ends the text (the token is then that
 * end, and `text` what was still held back). The token is evaluated by the call that needs it.
 * Errors: ARGUMENT (nothing was fed yet), CONTEXT_FULL, CANCELLED, NUMBER. */
NOVA_API nova_result nova_session_next(nova_session *session, nova_token *token, nova_error *error);
/* The same for n different sessions of one engine, whose weights are then read once for all. results[i] is what
 * nova_session_next would give for sessions[i]. Returns OK when every session got a token or its end; else the first
 * session's error. */
NOVA_API nova_result nova_session_next_batch(nova_session *const *sessions, size_t n, nova_token *tokens,
                                             nova_result *results, nova_error *error);

/* The logits behind the last token, n_vocab floats, until the next call that evaluates or closes.
 * NULL and an error when nothing was fed. */
NOVA_API const float *nova_session_logits(nova_session *session, nova_error *error);
/* Feeds tokens and gives the logits behind each, in order, on the calling thread. The callback returns false to cancel. */
typedef bool (*nova_logits_fn)(void *user, size_t index, const float *logits);
NOVA_API nova_result nova_session_score(nova_session *session, const int32_t *ids, size_t n, nova_logits_fn fn,
                                        void *user, nova_error *error);

/* Ends the call that the session is in with NOVA_CANCELLED, soon; without one, the next call. From any thread, also
 * inside callbacks, as long as the session is not being closed. */
NOVA_API void nova_session_cancel(nova_session *session);

typedef struct nova_session_info {
    uint64_t n_tokens;    /* appended since the start, dropped ones included */
    uint64_t n_dropped;   /* of these, dropped by sliding */
    uint32_t n_ctx;
} nova_session_info;

NOVA_API void nova_session_get_info(const nova_session *session, nova_session_info *info);

#ifdef __cplusplus
}
#endif
#endif
