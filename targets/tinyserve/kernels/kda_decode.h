/* Kimi Delta Attention (KDA): one decode step for a batch of sequences.
 *
 * All arrays are dense, row-major and owned by the caller. Inputs are valid for the
 * duration of the call only: a serving loop writes the next token into the same buffers. */
#ifndef TINYSERVE_KDA_DECODE_H
#define TINYSERVE_KDA_DECODE_H

#include <stdint.h>

#define KDA_BLOCK_V 32
#define KDA_MAX_K 256

typedef struct {
    int32_t batch;        /* sequences decoded together, >= 1 */
    int32_t heads;        /* value heads, >= 1 */
    int32_t k_dim;        /* 1..KDA_MAX_K */
    int32_t v_dim;        /* a multiple of KDA_BLOCK_V */
    const int32_t *slot;  /* [batch]: where in the state pool each sequence lives, no duplicates */
    const float *q;       /* [batch][heads][k_dim] */
    const float *k;       /* [batch][heads][k_dim], not yet normalised */
    const float *v;       /* [batch][heads][v_dim] */
    const float *x;       /* [batch][heads][k_dim]: gate pre-activation of this token */
    const float *beta;    /* [batch][heads], in (0, 1) */
    const float *a_log;   /* [heads]: weight */
    const float *dt_bias; /* [heads][k_dim]: weight */
    float *state;         /* [slots][heads][k_dim][v_dim]: updated in place, listed slots only */
    float *o;             /* [batch][heads][v_dim]: written */
} kda_decode_args;

/* Returns 0, or -1 for a shape outside the limits above (nothing is written then). */
int kda_decode_step(const kda_decode_args *args);

#endif
