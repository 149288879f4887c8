/* KDA decode step in float32.
 *
 * Per sequence and value head, with state S[K][V]:
 *
 *     k <- k / sqrt(sum(k^2) + eps)              q <- q * K^-1/2
 *     g  = -exp(a_log) * softplus(x + dt_bias)   log decay per key channel
 *     S <- diag(exp(g)) S
 *     u  = beta * (v - k^T S)
 *     S <- S + k u^T
 *     o  = q^T S
 *
 * Port of the GPU kernel. The launch grid is kept: one program per (sequence, head, tile of
 * KDA_BLOCK_V value columns). Value columns do not interact, so programs share no state and
 * each one reads what it needs from the arguments. */
#include "kda_decode.h"

#include <math.h>

#define KDA_NORM_EPS 1e-6f
#define KDA_SOFTPLUS_LINEAR 20.0f

static float softplus(float x)
{
    /* log1p(exp(x)) equals x to float precision here, and exp would overflow further up. */
    return x > KDA_SOFTPLUS_LINEAR ? x : log1pf(expf(x));
}

/* One program: columns [pid_v * KDA_BLOCK_V, +KDA_BLOCK_V) of one sequence's head. */
static void kda_decode_program(const kda_decode_args *args, int pid_v, int pid_h, int pid_b)
{
    const int k_dim = args->k_dim;
    const int v_dim = args->v_dim;
    const long row = (long)pid_b * args->heads + pid_h;
    const long column = (long)pid_v * KDA_BLOCK_V;

    const float *p_q = args->q + row * k_dim;
    const float *p_k = args->k + row * k_dim;
    const float *p_v = args->v + row * v_dim + column;
    const float *p_x = args->x + row * k_dim;
    const float *p_dt_bias = args->dt_bias + (long)pid_h * k_dim;
    const long slot = args->slot[pid_b];
    float *p_state = args->state + (slot * args->heads + pid_h) * k_dim * v_dim + column;
    float *p_o = args->o + row * v_dim + column;

    float b_q[KDA_MAX_K];
    float b_k[KDA_MAX_K];
    float b_decay[KDA_MAX_K];

    /* Query and key. */
    const float scale = 1.0f / sqrtf((float)k_dim);
    float square_sum = 0.0f;
    for (int i = 0; i < k_dim; i++)
        square_sum += p_k[i] * p_k[i];
    const float inverse_norm = 1.0f / sqrtf(square_sum + KDA_NORM_EPS);
    for (int i = 0; i < k_dim; i++) {
        b_q[i] = p_q[i] * scale;
        b_k[i] = p_k[i] * inverse_norm;
    }

    /* Gate, in float32 whatever the activations are stored in. */
    const float rate = -expf(args->a_log[pid_h]);
    for (int i = 0; i < k_dim; i++)
        b_decay[i] = expf(rate * softplus(p_x[i] + p_dt_bias[i]));

    /* Decay the tile and read the prediction k^T S. */
    float b_u[KDA_BLOCK_V] = {0.0f};
    for (int i = 0; i < k_dim; i++) {
        float *s = p_state + (long)i * v_dim;
        for (int j = 0; j < KDA_BLOCK_V; j++) {
            s[j] *= b_decay[i];
            b_u[j] += b_k[i] * s[j];
        }
    }

    const float beta = args->beta[row];
    for (int j = 0; j < KDA_BLOCK_V; j++)
        b_u[j] = beta * (p_v[j] - b_u[j]);

    /* Rank-one update and output. */
    float b_o[KDA_BLOCK_V] = {0.0f};
    for (int i = 0; i < k_dim; i++) {
        float *s = p_state + (long)i * v_dim;
        for (int j = 0; j < KDA_BLOCK_V; j++) {
            s[j] += b_k[i] * b_u[j];
            b_o[j] += b_q[i] * s[j];
        }
    }
    for (int j = 0; j < KDA_BLOCK_V; j++)
        p_o[j] = b_o[j];
}

int kda_decode_step(const kda_decode_args *args)
{
    if (args->batch < 1 || args->heads < 1)
        return -1;
    if (args->k_dim < 1 || args->k_dim > KDA_MAX_K)
        return -1;
    if (args->v_dim < 1 || args->v_dim % KDA_BLOCK_V != 0)
        return -1;

    const int tiles = args->v_dim / KDA_BLOCK_V;
    for (int pid_b = 0; pid_b < args->batch; pid_b++)
        for (int pid_h = 0; pid_h < args->heads; pid_h++)
            for (int pid_v = 0; pid_v < tiles; pid_v++)
                kda_decode_program(args, pid_v, pid_h, pid_b);
    return 0;
}
