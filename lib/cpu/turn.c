#include "turn.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static uint64_t n_asked, n_given;

static struct timespec soon(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 100000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

void turn_take(void (*waits)(void *context), void *context)
{
    pthread_mutex_lock(&lock);
    uint64_t mine = n_asked++;
    while (n_given != mine) {
        struct timespec until = soon();
        pthread_cond_timedwait(&given, &lock, &until);
        waits(context);
    }
    pthread_mutex_unlock(&lock);
}

bool turn_try(void)
{
    pthread_mutex_lock(&lock);
    bool free = n_asked == n_given;
    n_asked += free;
    pthread_mutex_unlock(&lock);
    return free;
}

void turn_give(void)
{
    pthread_mutex_lock(&lock);
    n_given++;
    if (n_given != n_asked)
        pthread_cond_broadcast(&given);
    pthread_mutex_unlock(&lock);
}

bool turn_is_asked(void)
{
    pthread_mutex_lock(&lock);
    bool asked = n_asked - n_given > 1;
    pthread_mutex_unlock(&lock);
    return asked;
}
