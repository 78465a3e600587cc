#include "power.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SAMPLES 3

void power_put(json_t *row)
{
    const char *command = getenv("GPU_POWER");
    double watts = 0, mhz = 0;
    int n = 0;
    for (int i = 0; command && *command && i < SAMPLES; i++) {
        double w = 0, m = 0;
        FILE *f = popen(command, "r");
        n += f && fscanf(f, "%lf, %lf", &w, &m) == 2;
        watts += w;
        mhz += m;
        if (f)
            pclose(f);
        if (i + 1 < SAMPLES)
            nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    }
    json_object_set_new(row, "watts", n == SAMPLES ? json_real(watts / n) : json_null());
    json_object_set_new(row, "sm_mhz", n == SAMPLES ? json_real(mhz / n) : json_null());
}
