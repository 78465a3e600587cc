/* fault.c - failures requested by the environment. */
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int result;
} kinds[N_FAULTS] = {
    [FAULT_INIT] = {"init", CUDA_SYSTEM_NOT_READY},
    [FAULT_ALLOC] = {"alloc", CUDA_OUT_OF_MEMORY},
    [FAULT_HOST_ALLOC] = {"host_alloc", CUDA_OUT_OF_MEMORY},
    [FAULT_JIT] = {"jit", CUDA_INVALID_PTX},
    [FAULT_EVENT] = {"event", CUDA_OUT_OF_MEMORY},
    [FAULT_RECORD] = {"record", RESULT_ILLEGAL_ADDRESS},
    [FAULT_LAUNCH] = {"launch", RESULT_ILLEGAL_ADDRESS},
    [FAULT_QUERY] = {"query", RESULT_UNKNOWN},
    [FAULT_STEP] = {"step", RESULT_ILLEGAL_ADDRESS},
    [FAULT_STUCK] = {"stuck", 0},
    [FAULT_LOST] = {"lost", 0},
};

static struct {
    uint64_t number, count;
    int result;
} asked[N_FAULTS];

/* "name", "name:number" or "name:number:result". */
static bool read_one(const char *text)
{
    size_t length = strcspn(text, ":");
    for (int f = 0; f < N_FAULTS; f++) {
        if (strlen(kinds[f].name) != length || strncmp(kinds[f].name, text, length) != 0)
            continue;
        char *end = NULL;
        asked[f].number = text[length] ? strtoull(text + length + 1, &end, 10) : 1;
        asked[f].result = end && *end == ':' ? atoi(end + 1) : kinds[f].result;
        return asked[f].number > 0;
    }
    return false;
}

void faults_read(void)
{
    char text[256], *rest = NULL;
    memset(asked, 0, sizeof asked);
    snprintf(text, sizeof text, "%s", getenv("SIMT_FAULT") ? getenv("SIMT_FAULT") : "");
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (!read_one(one)) {
            fprintf(stderr, "SIMT_FAULT: %s is no fault\n", one);
            exit(2);
        }
}

bool fault_is_armed(void)
{
    const char *path = getenv("SIMT_FAULT_WHEN");
    return !path || access(path, F_OK) == 0;
}

int fault_due(enum fault f)
{
    if (!asked[f].number || (f == FAULT_QUERY && !fault_is_armed()))
        return 0;
    return ++asked[f].count == asked[f].number ? asked[f].result : 0;
}

uint64_t fault_number(enum fault f, int *result)
{
    *result = asked[f].result;
    return asked[f].number;
}
