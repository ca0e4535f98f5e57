/* The CPU executor: runs the rows of a program over the columns of a pass, on all threads of a pool. */
#ifndef NOVA_CPU_H
#define NOVA_CPU_H

#include "cpu_narrow.h"
#include "cpu_wide.h"
#include "kv.h"
#include "pool.h"
#include "program.h"

/* One sequence's columns in a pass: consecutive tokens from position seq->n_tokens on, whose pages are reserved. */
typedef struct pass_run {
    const kv_seq *seq;
    uint32_t      first_col, n_col;
    uint32_t      first_out, n_out;   /* among the gathered columns: the run's last n_out ones */
} pass_run;

/* What is evaluated at once. */
typedef struct pass {
    uint32_t        n_col, n_run, n_out;
    const int32_t  *ids;      /* of the columns, each a valid id */
    const pass_run *runs;     /* in order, without gaps */
} pass;

/* Which columns go the narrow and which the wide way. It follows from each run alone, so that neighbours in a pass never
 * change a result. */
typedef struct column_split {
    uint32_t *narrow, *wide;
    uint32_t  n_narrow, n_wide;
} column_split;

typedef struct cpu_machine {
    cpu_level         level;
    pool             *threads;
    const nova_model *model;
    const program    *prog;
    const kv_pool    *kv;
    uint32_t          n_batch, n_seqs, n_logits, n_threads;

    float        *buf[BUF_COUNT];
    float        *cos_sin[ROPE_KINDS];     /* [n_batch][2 * n_pairs] of the columns' positions */
    float        *sink_turn[ROPE_KINDS];   /* [n_seqs][2 * n_pairs]: by minus what each run has dropped */
    uint32_t     *col_run;        /* [n_batch] the run of a column */
    uint32_t     *out_col;        /* [n_batch] the column of a gathered one */
    column_split  all, out, window;
    uint8_t      *narrow_in;      /* [n_narrow][narrow_stride], several forms side by side */
    uint8_t      *expert_in;      /* what experts read, prepared: every column goes the narrow way, some of them n_expert_used times */
    uint8_t      *wide_in;
    uint8_t      *own;            /* [n_threads][own_stride]: each thread's own scratch */
    size_t        narrow_stride, wide_bytes, own_stride, expert_bytes;
    atomic_int32 *counters;       /* [n_ops]: shares of work taken */

    const pass   *now;            /* while running */
    uint32_t      op_first, op_last;
    uint32_t      x_first;        /* gathered column that is column 0 of the head's window */
    atomic_int32  stop_at;        /* operations from this one on do not run */
    bool        (*cancelled)(void *user);
    void         *cancelled_user;
} cpu_machine;

/* Lays the executor's memory out from `base` (aligned to 64); the bytes it takes. With base NULL it only counts.
 * model, prog, kv, level, n_batch, n_seqs, n_logits and n_threads must be set. */
static size_t cpu_layout(cpu_machine *c, uint8_t *base);

/* Runs the operations before `last` (n_body: the whole body) for a pass; then cpu_head gives logits of gathered columns first..first + n, n at most
 * n_logits, in buf[BUF_LOGITS]. Cancelled: NOVA_CANCELLED, and the sequences are as before. */
static nova_result cpu_body(cpu_machine *c, const pass *p, uint32_t last);
static nova_result cpu_head(cpu_machine *c, uint32_t first, uint32_t n);

#endif
