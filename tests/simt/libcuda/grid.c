/* grid.c - runs one launch, on the machine of its stream. */
#include "emulated.h"
#include "device/simt.h"

#include <stdio.h>
#include <string.h>

void grid_run(struct stream *s, const struct work *w)
{
    struct simt_report report = {.steps = 0};
    int fault_result = 0, nothing = 0;
    pthread_mutex_lock(&emulated.lock);
    if (!s->machine)
        s->machine = simt_open();
    if (s->machine)
        buffers_map(s->machine);
    s->unjoined = true;
    uint64_t number = emulated.n_launches++;
    pthread_mutex_unlock(&emulated.lock);
    s->outside.armed = fault_is_armed;
    s->outside.stuck_at = fault_number(FAULT_STUCK, &nothing);
    s->outside.lost_at = fault_number(FAULT_LOST, &nothing);
    s->outside.fault_at = fault_number(FAULT_STEP, &fault_result);
    struct simt_launch launch = {.kernel = w->grid.kernel,
                                 .args = w->grid.args,
                                 .n_threads = w->grid.n_threads,
                                 .n_blocks = w->grid.n_blocks,
                                 .n_resident = w->grid.n_resident,
                                 .shared_bytes = w->grid.shared_bytes,
                                 .seed = emulated.settings.seed + number,
                                 .schedule = emulated.settings.schedule,
                                 .mute = emulated.settings.mute,
                                 .outside = &s->outside};
    if (!s->machine)
        snprintf(report.kind, sizeof report.kind, "no memory");
    else if (simt_run(s->machine, &launch, &report) == 0)
        return;
    if (strcmp(report.kind, "stopped") == 0)
        return;
    bool asked = strcmp(report.kind, "fault") == 0;
    if (!asked) {
        fprintf(stderr, "SIMT emulator: %s, launch %llu, seed %llu: ", w->grid.kernel->name,
                (unsigned long long)number, (unsigned long long)launch.seed);
        simt_report_print(&report, stderr);
    }
    pthread_mutex_lock(&emulated.lock);
    emulated_poison(asked ? fault_result : RESULT_ILLEGAL_ADDRESS);
    pthread_mutex_unlock(&emulated.lock);
}
