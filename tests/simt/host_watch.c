/* host_watch.c - the calls that a compiler puts before accesses for ThreadSanitizer (compiler-rt,
 * tsan_interface.h), in place of its runtime: those to memory which a device shares go to the emulated
 * driver. memcpy() of the compiled sources is host_watch_memcpy(). Declared in host_watch.h. */
#include "host_watch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) struct simt_host_watch simt_host_watch;

#define HERE __builtin_return_address(0)

static bool may_be_shared(const volatile void *p)
{
    uintptr_t at = (uintptr_t)p;
    return at >= atomic_load_explicit(&simt_host_watch.low, memory_order_relaxed) &&
           at < atomic_load_explicit(&simt_host_watch.high, memory_order_relaxed);
}

static bool report(enum simt_host_access what, const volatile void *p, size_t size, uint64_t *value,
                   const void *pc)
{
    if (!size || !may_be_shared(p))
        return false;
    return atomic_load(&simt_host_watch.access)(what, (void *)(uintptr_t)p, size, value, pc);
}

/* --- plain accesses: the call is before the access --- */

void __tsan_init(void);
void __tsan_func_entry(void *pc);
void __tsan_func_exit(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *pc)
{
    (void)pc;
}
void __tsan_func_exit(void) {}

#define PLAIN(name, what, size)                                                                              \
    void __tsan_##name##size(void *p);                                                                       \
    void __tsan_##name##size(void *p)                                                                        \
    {                                                                                                        \
        (void)report(what, p, size, NULL, HERE);                                                             \
    }
#define PLAINS(size)                                                                                         \
    PLAIN(read, SIMT_HOST_READ, size)                                                                        \
    PLAIN(write, SIMT_HOST_WRITE, size)                                                                      \
    PLAIN(unaligned_read, SIMT_HOST_READ, size)                                                              \
    PLAIN(unaligned_write, SIMT_HOST_WRITE, size)
PLAINS(1)
PLAINS(2)
PLAINS(4)
PLAINS(8)
PLAINS(16)

void __tsan_read_range(void *p, size_t size);
void __tsan_write_range(void *p, size_t size);
void __tsan_read_range(void *p, size_t size)
{
    (void)report(SIMT_HOST_READ, p, size, NULL, HERE);
}
void __tsan_write_range(void *p, size_t size)
{
    (void)report(SIMT_HOST_WRITE, p, size, NULL, HERE);
}

void *host_watch_memcpy(void *to, const void *from, size_t size);
void *host_watch_memcpy(void *to, const void *from, size_t size)
{
    (void)report(SIMT_HOST_READ, from, size, NULL, HERE);
    (void)report(SIMT_HOST_WRITE, to, size, NULL, HERE);
    return memcpy(to, from, size);
}

/* clang's names, for copies and fills that the source has as assignments. */
void *__tsan_memcpy(void *to, const void *from, size_t size);
void *__tsan_memmove(void *to, const void *from, size_t size);
void *__tsan_memset(void *to, int value, size_t size);
void *__tsan_memcpy(void *to, const void *from, size_t size)
{
    (void)report(SIMT_HOST_READ, from, size, NULL, HERE);
    (void)report(SIMT_HOST_WRITE, to, size, NULL, HERE);
    return memcpy(to, from, size);
}
void *__tsan_memmove(void *to, const void *from, size_t size)
{
    (void)report(SIMT_HOST_READ, from, size, NULL, HERE);
    (void)report(SIMT_HOST_WRITE, to, size, NULL, HERE);
    return memmove(to, from, size);
}
void *__tsan_memset(void *to, int value, size_t size)
{
    (void)report(SIMT_HOST_WRITE, to, size, NULL, HERE);
    return memset(to, value, size);
}

/* --- atomic accesses: the call is the access; orders are those of the C ABI, 0 is relaxed --- */

/* No protocol between host and device has one. */
static void refuse_update(const volatile void *p)
{
    if (report(SIMT_HOST_READ, p, 1, NULL, NULL))
        abort();
}

#define ATOMIC(bits, type)                                                                                   \
    type __tsan_atomic##bits##_load(const volatile type *p, int order);                                      \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int order);                                   \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, type v, int order,   \
                                                      int otherwise);                                        \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *expected, type v, int order,     \
                                                    int otherwise);                                          \
    type __tsan_atomic##bits##_load(const volatile type *p, int order)                                       \
    {                                                                                                        \
        uint64_t v = 0;                                                                                      \
        if (bits >= 32 && report(order ? SIMT_HOST_ACQUIRE : SIMT_HOST_LOOK, p, bits / 8, &v, HERE))         \
            return (type)v;                                                                                  \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                         \
    }                                                                                                        \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int order)                                    \
    {                                                                                                        \
        uint64_t value = (uint64_t)v;                                                                        \
        if (bits < 32 || !report(order ? SIMT_HOST_RELEASE : SIMT_HOST_SET, p, bits / 8, &value, HERE))      \
            __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                        \
    }                                                                                                        \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, type v, int order,   \
                                                      int otherwise)                                         \
    {                                                                                                        \
        (void)order, (void)otherwise;                                                                        \
        refuse_update(p);                                                                                    \
        return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);           \
    }                                                                                                        \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *expected, type v, int order,     \
                                                    int otherwise)                                           \
    {                                                                                                        \
        return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, order, otherwise);              \
    }
#define UPDATE(bits, type, name, does)                                                                       \
    type __tsan_atomic##bits##_##name(volatile type *p, type v, int order);                                  \
    type __tsan_atomic##bits##_##name(volatile type *p, type v, int order)                                   \
    {                                                                                                        \
        (void)order;                                                                                         \
        refuse_update(p);                                                                                    \
        return does(p, v, __ATOMIC_SEQ_CST);                                                                 \
    }
#define UPDATES(bits, type)                                                                                  \
    UPDATE(bits, type, exchange, __atomic_exchange_n)                                                        \
    UPDATE(bits, type, fetch_add, __atomic_fetch_add)                                                        \
    UPDATE(bits, type, fetch_sub, __atomic_fetch_sub)                                                        \
    UPDATE(bits, type, fetch_or, __atomic_fetch_or)                                                          \
    UPDATE(bits, type, fetch_and, __atomic_fetch_and)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
UPDATES(8, uint8_t)
UPDATES(16, uint16_t)
UPDATES(32, uint32_t)
UPDATES(64, uint64_t)

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order)
{
    (void)order;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
