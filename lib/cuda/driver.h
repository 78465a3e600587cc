/* driver.h - the CUDA driver, loaded at run time: one binary starts with and without a GPU.
 *
 * The library is opened by name; its few functions and constants that Hearth uses are declared here. Works
 * from driver R525 (CUDA 12.0) on. Every error names the call and has the driver's own text.
 * Thread: open before other threads start (it sets environment variables); then any thread that has made the
 * device's context current. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_MIN_VERSION 12000 /* as cuDriverGetVersion counts: 1000 x major + 10 x minor */

enum cuda_result { /* results that decide something; all others are only reported */
                   CUDA_SUCCESS = 0,
                   CUDA_OUT_OF_MEMORY = 2,
                   CUDA_STUB_LIBRARY = 34,       /* library for linking, without a driver behind it */
                   CUDA_DEVICE_UNAVAILABLE = 46, /* another process has exclusive use of it */
                   CUDA_NO_DEVICE = 100,
                   CUDA_INVALID_PTX = 218,
                   CUDA_NO_JIT = 221, /* libnvidia-ptxjitcompiler is not installed */
                   CUDA_UNSUPPORTED_PTX = 222,
                   CUDA_NOT_READY = 600,
                   CUDA_SYSTEM_NOT_READY = 802, /* the switches between GPUs are not set up */
                   CUDA_DRIVER_MISMATCH = 803,  /* between library and kernel module */
};
enum cuda_device_attribute {
    CUDA_THREADS_PER_BLOCK = 1, /* most threads */
    CUDA_CLOCK_KHZ = 13,
    CUDA_N_SMS = 16,
    CUDA_KERNEL_TIME_LIMIT = 17,
    CUDA_INTEGRATED = 18,
    CUDA_COMPUTE_MODE = 20,
    CUDA_MEMORY_CLOCK_KHZ = 36,
    CUDA_MEMORY_BUS_BITS = 37,
    CUDA_L2_BYTES = 38,
    CUDA_CAPABILITY_MAJOR = 75,
    CUDA_CAPABILITY_MINOR = 76,
    CUDA_COOPERATIVE_LAUNCH = 95,
    CUDA_SHARED_PER_BLOCK = 97, /* most that a block may request */
};
enum cuda_function_attribute {
    CUDA_FUNCTION_LOCAL = 3,
    CUDA_FUNCTION_REGISTERS = 4,
    CUDA_FUNCTION_SHARED = 8
};
enum cuda_jit_option {
    CUDA_JIT_ERROR_LOG = 5,
    CUDA_JIT_ERROR_LOG_SIZE = 6,
};
#define CUDA_PROHIBITED            2  /* a compute mode: no contexts */
#define CUDA_POINTER_IS_MANAGED    8  /* a pointer attribute */
#define CUDA_CONTEXT_BLOCKING_SYNC 4u /* waiting threads sleep */
#define CUDA_HOST_PORTABLE         1u
#define CUDA_HOST_MAPPED           2u
#define CUDA_STREAM_NON_BLOCKING   1u
#define CUDA_EVENT_DEFAULT         0u
#define CUDA_CAPTURE_THREAD_LOCAL  1

/* X(call, exported symbol, parameters); all return a CUresult. Device memory is a uint64_t address; contexts,
 * modules, functions, streams, events and graphs are opaque pointers. Every library has all of them, except
 * that cuPointerGetAttribute may be NULL. */
#define CUDA_CALLS(X)                                                                                        \
    X(cuInit, cuInit, (unsigned flags))                                                                      \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                                \
    X(cuGetErrorName, cuGetErrorName, (int result, const char **text))                                       \
    X(cuGetErrorString, cuGetErrorString, (int result, const char **text))                                   \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *n))                                                          \
    X(cuDeviceGet, cuDeviceGet, (int *device, int ordinal))                                                  \
    X(cuDeviceGetName, cuDeviceGetName, (char *name, int size, int device))                                  \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                   \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, int device))                                   \
    X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, (int device, unsigned flags))               \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **context, int device))                      \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int device))                                 \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (void *context))                                                     \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                            \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t * available, size_t * total))                                   \
    X(cuMemAlloc, cuMemAlloc_v2, (uint64_t * memory, size_t bytes))                                          \
    X(cuMemFree, cuMemFree_v2, (uint64_t memory))                                                            \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                         \
    X(cuMemFreeHost, cuMemFreeHost, (void *memory))                                                          \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                               \
      (uint64_t * device_address, void *memory, unsigned flags))                                             \
    X(cuPointerGetAttribute, cuPointerGetAttribute, (void *value, int attribute, uint64_t address))          \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes))                          \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))                                \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream))  \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))        \
    X(cuMemsetD8Async, cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void *stream))      \
    X(cuModuleLoadDataEx, cuModuleLoadDataEx,                                                                \
      (void **module, const void *image, unsigned n_options, int *options, void **values))                   \
    X(cuModuleUnload, cuModuleUnload, (void *module))                                                        \
    X(cuModuleGetFunction, cuModuleGetFunction, (void **function, void *module, const char *name))           \
    X(cuFuncGetAttribute, cuFuncGetAttribute, (int *value, int attribute, void *function))                   \
    X(cuFuncSetAttribute, cuFuncSetAttribute, (void *function, int attribute, int value))                    \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,              \
      (int *n_blocks, void *function, int n_threads, size_t shared_bytes))                                   \
    X(cuLaunchKernel, cuLaunchKernel,                                                                        \
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,         \
       unsigned shared_bytes, void *stream, void **parameters, void **extra))                                \
    X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel,                                                  \
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,         \
       unsigned shared_bytes, void *stream, void **parameters))                                              \
    X(cuStreamCreate, cuStreamCreate, (void **stream, unsigned flags))                                       \
    X(cuStreamDestroy, cuStreamDestroy_v2, (void *stream))                                                   \
    X(cuStreamSynchronize, cuStreamSynchronize, (void *stream))                                              \
    X(cuStreamQuery, cuStreamQuery, (void *stream))                                                          \
    X(cuEventCreate, cuEventCreate, (void **event, unsigned flags))                                          \
    X(cuEventDestroy, cuEventDestroy_v2, (void *event))                                                      \
    X(cuEventRecord, cuEventRecord, (void *event, void *stream))                                             \
    X(cuEventElapsedTime, cuEventElapsedTime, (float *ms, void *start, void *end))                           \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (void *stream, int mode))                               \
    X(cuStreamEndCapture, cuStreamEndCapture, (void *stream, void **graph))                                  \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
    X(cuGraphLaunch, cuGraphLaunch, (void *exec, void *stream))                                              \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (void *exec))                                                  \
    X(cuGraphDestroy, cuGraphDestroy, (void *graph))

struct cuda_driver {
    void *library; /* NULL: closed */
    int version;   /* 12040: CUDA 12.4 */
#define CUDA_MEMBER(call, symbol, parameters) int(*call) parameters;
    CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Sets the environment variables that the driver reads. cuda_driver_open() calls it; a program with several
 * threads calls it before they start, so that nothing is left to set later. */
void cuda_driver_environment(const char *cache_directory);

/* Opens the library (`path`; NULL or "": libcuda.so.1) and initialises it. cache_directory: where the driver
 * keeps compiled kernels; NULL or "": CUDA_CACHE_PATH or the driver's default. Errors: -ENODEV: no library,
 * one that lacks a function, a driver too old, no device. -EIO: the driver does not start, which may pass.
 * -ENOMEM. */
int cuda_driver_open(struct cuda_driver *d, const char *path, const char *cache_directory, struct error *err);
void cuda_driver_close(struct cuda_driver *d); /* a closed one is fine */

/* Returns 0 if `result` is CUDA_SUCCESS. Otherwise sets "<call>: <NAME>, <text>" and returns -ENOMEM, -ENODEV
 * (no device) or -EIO (it may pass, or needs an operator). */
int cuda_check(const struct cuda_driver *d, struct error *err, const char *call, int result);
#define CUDA_TRY(d, err, call, ...) cuda_check((d), (err), #call, (d)->call(__VA_ARGS__))

/* Sends a launch that is awaited without a driver call: under WDDM (WSL2) it may stay in the driver's queue
 * until its stream is queried. Returns 0, also while work continues, or the stream's error. */
int cuda_flush(const struct cuda_driver *d, void *stream, struct error *err);

struct cuda_device {
    int ordinal, handle;
    void *context; /* the primary context, retained, and current on the thread that opened it */
    char name[96];
    uint32_t sm; /* 90: compute capability 9.0 */
    uint32_t n_sms;
    uint32_t max_threads; /* most threads of a block */
    size_t shared_per_block, l2_bytes, memory_bytes;
    uint64_t bandwidth; /* bytes/s of the memory bus; 0: the driver does not report it */
    int has_time_limit; /* a display is attached: the driver ends kernels after seconds */
    int is_integrated;  /* its memory is the host's */
};

/* Opens the device that can run Hearth's kernels and has the most memory, skipping devices that another
 * process uses exclusively; or the device of that ordinal (>= 0). Errors: -ENODEV names what is missing:
 * compute capability 8.0, cooperative launches, a compute mode that allows contexts. -EIO: all suitable
 * devices are in use, which may pass. */
int cuda_device_open(struct cuda_device *out, const struct cuda_driver *d, int ordinal, struct error *err);
void cuda_device_close(struct cuda_device *dev, const struct cuda_driver *d);

struct cuda_module_origin {
    bool is_cubin; /* machine code of the build; else PTX, which the driver compiled */
    /* PTX though the build has cubins of the kernel: why none was taken, as a clause; else "". */
    char reason[200];
};

struct ptx_image;
/* Loads the best cubin of `name` for the device. If there is none, or the driver refuses it (one that is
 * older than the build's ptxas does), compiles the newest PTX that the device can run. `origin` may be NULL.
 * Errors: -ENODEV: there is no such PTX. -EIO: the driver's compiler rejects it or is missing; the text has
 * its log, as far as it fits. */
int cuda_module_open(void **module, const struct cuda_driver *d, const struct cuda_device *dev,
                     const struct ptx_image *images, const char *name, struct cuda_module_origin *origin,
                     struct error *err);
