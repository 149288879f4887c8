/* Stand-in for a communication library's dispatch and combine: each call waits for its peers (here: sleeps) and notes
   CLOCK_MONOTONIC at entry and exit, inside the native code. */
#include <stdint.h>
#include <string.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void wait_us(int64_t us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, 0);
}

void intranode_dispatch(int64_t us, int64_t *stamps) {
    stamps[0] = now_ns();
    wait_us(us);
    stamps[1] = now_ns();
}

void intranode_combine(int64_t us, int64_t *stamps) {
    stamps[0] = now_ns();
    wait_us(us + 0 * stamps[0]);
    stamps[1] = now_ns();
    __asm__ volatile("" ::: "memory"); /* keeps the two functions apart for the linker's identical-code folding */
}

void copy_blocks(char *to, const char *from, int64_t bytes, int64_t *stamps) {
    stamps[0] = now_ns();
    memcpy(to, from, bytes);
    stamps[1] = now_ns();
}
