/* Runs the decode kernel a fixed number of times on a fixed shape and prints a checksum.
 *
 * Made for instruction counts: the inputs, the number of calls and therefore the work are the
 * same in every run. Nothing is timed here.
 *
 *     valgrind --tool=callgrind --toggle-collect=kda_decode_step \
 *         --callgrind-out-file=build/callgrind.out build/bench_kda
 */
#include "kda_decode.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 1, HEADS = 8, K_DIM = 128, V_DIM = 128, CALLS = 16 };

static uint32_t lcg_state = 12345u;

/* Uniform in [-1, 1). */
static float uniform(void)
{
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return (float)(lcg_state >> 8) / 8388608.0f - 1.0f;
}

static float *uniforms(size_t n, float scale, float shift)
{
    float *values = malloc(n * sizeof *values);
    if (values == NULL)
        exit(2);
    for (size_t i = 0; i < n; i++)
        values[i] = shift + scale * uniform();
    return values;
}

int main(void)
{
    static const int32_t slot[BATCH] = {0};
    const size_t keys = (size_t)BATCH * HEADS * K_DIM;
    const size_t values = (size_t)BATCH * HEADS * V_DIM;
    const size_t states = (size_t)BATCH * HEADS * K_DIM * V_DIM;
    float *a_log = uniforms(HEADS, 4.0f, -3.0f);
    float *dt_bias = uniforms((size_t)HEADS * K_DIM, 1.0f, 0.0f);
    float *state = uniforms(states, 1.0f, 0.0f);
    float *o = uniforms(values, 0.0f, 0.0f);
    double checksum = 0.0;

    for (int call = 0; call < CALLS; call++) {
        float *q = uniforms(keys, 1.0f, 0.0f);
        float *k = uniforms(keys, 1.0f, 0.0f);
        float *v = uniforms(values, 1.0f, 0.0f);
        float *x = uniforms(keys, 2.0f, 0.0f);
        float *beta = uniforms((size_t)BATCH * HEADS, 0.5f, 0.5f);
        const kda_decode_args args = {
            .batch = BATCH, .heads = HEADS, .k_dim = K_DIM, .v_dim = V_DIM,
            .slot = slot, .q = q, .k = k, .v = v, .x = x, .beta = beta,
            .a_log = a_log, .dt_bias = dt_bias, .state = state, .o = o,
        };
        if (kda_decode_step(&args) != 0)
            return 1;
        for (size_t i = 0; i < values; i++)
            checksum += (double)o[i] * (double)(i + 1);
        free(q);
        free(k);
        free(v);
        free(x);
        free(beta);
    }
    for (size_t i = 0; i < states; i++)
        checksum += state[i];
    printf("checksum %.9e\n", checksum);
    free(a_log);
    free(dt_bias);
    free(state);
    free(o);
    return 0;
}
