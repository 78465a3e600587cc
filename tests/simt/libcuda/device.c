/* device.c - the device, its one context, and the common begin and end of every call. */
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct emulated emulated = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
_Thread_local bool emulated_current;

unsigned long long emulated_number(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static enum simt_schedule schedule_setting(void)
{
    const char *text = getenv("SIMT_SCHEDULE");
    static const char *const names[] = {
        [SIMT_UNIFORM] = "uniform",  [SIMT_STARVE_BLOCK] = "starve", [SIMT_WARP_AHEAD] = "ahead",
        [SIMT_N_SCHEDULES] = "seed", [SIMT_IN_ORDER] = "order",
    };
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], text) == 0)
            return (enum simt_schedule)i;
    return EMULATED_SCHEDULE;
}

static int mute_setting(void)
{
    const char *text = getenv("SIMT_MUTE");
    if (!text || !*text)
        return -1;
    char words[200];
    for (int i = 0; strcmp(text, "list") == 0 && i < simt_n_mutations(); i++) {
        simt_mutation_text(i, words, sizeof words);
        fprintf(stderr, "%d %s\n", i, words);
    }
    return strcmp(text, "list") == 0 ? -1 : atoi(text);
}

void emulated_settings_read(void)
{
    emulated.settings.n_sms = (uint32_t)emulated_number("SIMT_BLOCKS", 3);
    emulated.settings.sm = (uint32_t)emulated_number("SIMT_DEVICE_SM", 90);
    emulated.settings.threads = (uint32_t)emulated_number("SIMT_THREADS", 128);
    emulated.settings.shared_per_block = emulated_number("SIMT_SHARED_KB", 99) * 1024;
    emulated.settings.memory_bytes = emulated_number("SIMT_MEMORY_MB", 64) << 20;
    emulated.settings.time_limit = emulated_number("SIMT_TIME_LIMIT", 0) != 0;
    emulated.settings.local_bytes = (uint32_t)emulated_number("SIMT_LOCAL", 0);
    emulated.settings.host_mute = getenv("SIMT_HOST_MUTE") ? atol(getenv("SIMT_HOST_MUTE")) : -1;
    emulated.settings.takes_cubins = emulated_number("SIMT_CUBINS", 0) != 0;
    emulated.settings.integrated = emulated_number("SIMT_INTEGRATED", 0) != 0;
    emulated.settings.pins_managed = emulated_number("SIMT_MANAGED", 0) != 0;
    emulated.settings.seed = emulated_number("SIMT_SEED", 1);
    emulated.settings.schedule = schedule_setting();
    emulated.settings.mute = mute_setting();
    faults_read();
}

int call_begin(void)
{
    pthread_mutex_lock(&emulated.lock);
    int result = emulated.sticky;
    if (!emulated.initialised)
        result = RESULT_NOT_INITIALIZED;
    else if (!emulated_current || !emulated.n_retained)
        result = RESULT_INVALID_CONTEXT;
    if (result)
        pthread_mutex_unlock(&emulated.lock);
    return result;
}

int call_end(int result)
{
    pthread_mutex_unlock(&emulated.lock);
    return result;
}

int call_begin_alone(const char *call)
{
    int result = call_begin();
    if (result)
        return result;
    if (streams_captured_here())
        return call_end(RESULT_CAPTURE_UNSUPPORTED);
    if (emulated.n_cooperative) {
        fprintf(
            stderr,
            "SIMT emulator: misuse: %s while a grid runs that was launched as a whole: a GPU would wait for "
            "its end\n",
            call);
        emulated_poison(RESULT_ILLEGAL_ADDRESS);
        return call_end(emulated.sticky);
    }
    while (emulated.n_grids && !emulated.sticky)
        pthread_cond_wait(&emulated.changed, &emulated.lock);
    if (emulated.sticky)
        return call_end(emulated.sticky);
    host_joins_all();
    return 0;
}

void emulated_poison(int result)
{
    if (!emulated.sticky)
        emulated.sticky = result;
    for (struct object *o = emulated.objects; o; o = o->next)
        if (o->kind == OBJECT_STREAM)
            ((struct stream *)o)->outside.stop = true;
    pthread_cond_broadcast(&emulated.changed);
}

void *object_open(enum object_kind kind, size_t size)
{
    struct object *o = calloc(1, size);
    if (!o)
        return NULL;
    *o = (struct object){kind, emulated.objects};
    emulated.objects = o;
    return o;
}

void *object_check(const void *handle, enum object_kind kind)
{
    for (struct object *o = emulated.objects; o; o = o->next)
        if (o == handle && o->kind == kind)
            return o;
    return NULL;
}

void object_close(struct object *o)
{
    struct object **at = &emulated.objects;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    if (o->kind == OBJECT_MODULE)
        free(((struct module *)o)->text);
    if (o->kind == OBJECT_GRAPH || o->kind == OBJECT_EXEC)
        work_free(((struct graph *)o)->first);
    free(o);
}

int cuInit(unsigned flags)
{
    if (flags)
        return RESULT_INVALID_VALUE;
    pthread_mutex_lock(&emulated.lock);
    emulated_settings_read();
    host_watch_find();
    int result = fault_due(FAULT_INIT);
    emulated.initialised = !result;
    return call_end(result);
}

int cuDriverGetVersion(int *version)
{
    *version = 12040;
    return CUDA_SUCCESS;
}

static const struct {
    int result;
    const char *name, *text;
} words[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {RESULT_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {RESULT_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {RESULT_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {RESULT_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {RESULT_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {RESULT_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {RESULT_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {RESULT_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {RESULT_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {RESULT_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {RESULT_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {RESULT_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {RESULT_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {RESULT_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {RESULT_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int cuGetErrorName(int result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (words[i].result == result)
            *text = words[i].name;
    return *text ? CUDA_SUCCESS : RESULT_INVALID_VALUE;
}

int cuGetErrorString(int result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (words[i].result == result)
            *text = words[i].text;
    return *text ? CUDA_SUCCESS : RESULT_INVALID_VALUE;
}

int cuDeviceGetCount(int *n)
{
    *n = 1;
    return emulated.initialised ? CUDA_SUCCESS : RESULT_NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : RESULT_INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "SIMT emulator");
    return device == 0 ? CUDA_SUCCESS : RESULT_INVALID_DEVICE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = emulated.settings.memory_bytes;
    return device == 0 ? CUDA_SUCCESS : RESULT_INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const struct {
        enum cuda_device_attribute which;
        int value;
    } attributes[] = {
        {CUDA_CLOCK_KHZ, 1000000},
        {CUDA_THREADS_PER_BLOCK, (int)emulated.settings.threads},
        {CUDA_N_SMS, (int)emulated.settings.n_sms},
        {CUDA_KERNEL_TIME_LIMIT, emulated.settings.time_limit},
        {CUDA_INTEGRATED, emulated.settings.integrated},
        {CUDA_COMPUTE_MODE, 0},
        {CUDA_MEMORY_CLOCK_KHZ, 1000000},
        {CUDA_MEMORY_BUS_BITS, 64},
        {CUDA_L2_BYTES, 1 << 20},
        {CUDA_CAPABILITY_MAJOR, (int)emulated.settings.sm / 10},
        {CUDA_CAPABILITY_MINOR, (int)emulated.settings.sm % 10},
        {CUDA_COOPERATIVE_LAUNCH, 1},
        {CUDA_SHARED_PER_BLOCK, (int)emulated.settings.shared_per_block},
    };
    for (size_t i = 0; device == 0 && i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].which == (enum cuda_device_attribute)attribute) {
            *value = attributes[i].value;
            return CUDA_SUCCESS;
        }
    return device == 0 ? RESULT_INVALID_VALUE : RESULT_INVALID_DEVICE;
}

int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
    (void)flags;
    return device == 0 ? CUDA_SUCCESS : RESULT_INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    if (device != 0)
        return RESULT_INVALID_DEVICE;
    pthread_mutex_lock(&emulated.lock);
    if (!emulated.initialised)
        return call_end(RESULT_NOT_INITIALIZED);
    if (emulated.n_retained++ == 0)
        emulated.sticky = CUDA_SUCCESS;
    *context = &emulated;
    return call_end(CUDA_SUCCESS);
}

static struct stream *any_stream(void)
{
    for (struct object *o = emulated.objects; o; o = o->next)
        if (o->kind == OBJECT_STREAM)
            return (struct stream *)o;
    return NULL;
}

/* The context ends with all that belongs to it. */
static void close_context(void)
{
    emulated_poison(RESULT_INVALID_CONTEXT);
    for (struct stream *s; (s = any_stream());) {
        stream_end(s);
        object_close(&s->object);
    }
    while (emulated.objects)
        object_close(emulated.objects);
    buffers_close();
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    if (device != 0)
        return RESULT_INVALID_DEVICE;
    pthread_mutex_lock(&emulated.lock);
    if (!emulated.n_retained)
        return call_end(RESULT_INVALID_CONTEXT);
    if (emulated.n_retained == 1 && emulated.n_cooperative && !emulated.sticky)
        fprintf(stderr, "SIMT emulator: misuse: the context is released while a grid runs\n");
    if (emulated.n_retained == 1)
        close_context();
    emulated.n_retained--;
    return call_end(CUDA_SUCCESS);
}

int cuCtxSetCurrent(void *context)
{
    if (context && context != &emulated)
        return RESULT_INVALID_CONTEXT;
    emulated_current = context != NULL;
    return CUDA_SUCCESS;
}

int cuCtxSynchronize(void)
{
    int result = call_begin_alone("cuCtxSynchronize");
    if (result)
        return result;
    late_copies_arrive();
    return call_end(CUDA_SUCCESS);
}
