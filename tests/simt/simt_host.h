/* simt_host.h - the intrinsics of kernels/device/simt.h as calls into the emulator; included by simt.h only.
 * Each use of an intrinsic is a site with a name and a number, so that reports can name it and one site at a
 * time can be muted (emulator.h). Kernels see no more of the emulator than this.
 * Thread: the fibers of a grid. */
#pragma once
#include <assert.h>

#define SIMT_GLOBAL
#define SIMT_SHARED

/* Muting removes one of these from a site: its whole effect, its ordering while the value stays, or its
 * scope. */
enum simt_aspect { SIMT_WHOLE = 1, SIMT_ACQUIRE = 2, SIMT_RELEASE = 4, SIMT_SCOPE = 8 /* cta, not more */ };
enum simt_scope { SIMT_WEAK /* a plain access */, SIMT_CTA, SIMT_GPU, SIMT_SYS };
enum simt_shuffle { SIMT_INDEX, SIMT_XOR, SIMT_BALLOT, SIMT_MAX, SIMT_MIN };

struct simt_site {
    const char *word, *file, *function, *kernel_file; /* place of the use, and the source that includes it */
    uint32_t line, sm;
    uint32_t aspects; /* aspects that can be muted */
};

struct simt_kernel {
    const char *name, *file;
    void (*run)(const void *args);
    size_t args_size;
    uint32_t threads, sm;
    uint32_t look_spins; /* polls of a waiting thread between two looks at the abort word */
};

/* Both tables are linker sections: __start_/__stop_ are their ends. */
#define SIMT_SITE(word_, aspects_)                                                                           \
    __extension__({                                                                                          \
        static struct simt_site simt_site_ __attribute__((section("simt_sites"), aligned(8))) = {            \
            word_, __FILE__, __func__, __BASE_FILE__, __LINE__, SIMT_SM, aspects_};                          \
        &simt_site_;                                                                                         \
    })

#define SIMT_KERNEL(name_, args_type, threads_, blocks_per_sm)                                               \
    static void name_(args_type args);                                                                       \
    static void name_##_run(const void *args)                                                                \
    {                                                                                                        \
        name_(*(const args_type *)args);                                                                     \
    }                                                                                                        \
    static struct simt_kernel name_##_kernel __attribute__((section("simt_kernels"), aligned(8), used)) = {  \
        #name_, __BASE_FILE__, name_##_run, sizeof(args_type), threads_, SIMT_SM, SIMT_LOOK_SPINS};          \
    static void name_(args_type args)

uint32_t simt_emu_thread(void);
uint32_t simt_emu_n_threads(void);
uint32_t simt_emu_block(void);
uint32_t simt_emu_n_blocks(void);
void *simt_emu_carve(const struct simt_site *at, size_t offset, size_t bytes);
size_t simt_emu_shared_bytes(void); /* of the block's dynamic shared memory */
bool simt_emu_bar(const struct simt_site *at, uint32_t id, uint32_t n, bool p);
void simt_emu_syncwarp(const struct simt_site *at);
uint32_t simt_emu_shuffle(const struct simt_site *at, enum simt_shuffle how, uint32_t v, uint32_t arg);
void simt_emu_mma(const struct simt_site *at, bool a_signed, int32_t *c, const uint32_t *a,
                  const uint32_t *b);
void simt_emu_mma16(const struct simt_site *at, int32_t *c, const uint32_t *a, uint32_t b);
uint64_t simt_emu_load(const struct simt_site *at, const void *p, uint32_t size, enum simt_scope scope);
void simt_emu_store(const struct simt_site *at, void *p, uint32_t size, uint64_t v, enum simt_scope scope);
uint32_t simt_emu_add(const struct simt_site *at, uint32_t *p, uint32_t v, enum simt_scope scope);
uint32_t simt_emu_add_shared(const struct simt_site *at, uint32_t *p, uint32_t v);
void simt_emu_fence(const struct simt_site *at, enum simt_scope scope);
void simt_emu_fence_proxy(const struct simt_site *at);
void simt_emu_mbar_init(const struct simt_site *at, uint64_t *m, uint32_t arrivals);
void simt_emu_mbar_arrive(const struct simt_site *at, uint64_t *m, uint32_t expect_bytes);
bool simt_emu_mbar_try_wait(const struct simt_site *at, uint64_t *m, uint32_t parity);
void simt_emu_bulk_copy(const struct simt_site *at, void *dst, const void *src, uint32_t bytes, uint64_t *m);
void simt_emu_cp_async16(const struct simt_site *at, void *dst, const void *src);
void simt_emu_cp_async_commit(void);
void simt_emu_cp_async_wait(const struct simt_site *at, uint32_t n);
void simt_emu_cp_async_arrive(const struct simt_site *at, uint64_t *m);
void simt_emu_prefetch(const void *p);
void simt_emu_nanosleep(uint32_t ns);
uint64_t simt_emu_globaltimer(void);
uint64_t simt_emu_clock(void);

static inline uint32_t simt_emu_float_bits(float f)
{
    return (union {
               float f;
               uint32_t u;
           }){.f = f}
        .u;
}
static inline float simt_emu_bits_float(uint32_t u)
{
    return (union {
               uint32_t u;
               float f;
           }){.u = u}
        .f;
}

#define simt_thread()             simt_emu_thread()
#define simt_n_threads()          simt_emu_n_threads()
#define simt_block()              simt_emu_block()
#define simt_n_blocks()           simt_emu_n_blocks()
#define simt_carve(offset, bytes) simt_emu_carve(SIMT_SITE("carve", 0), offset, bytes)

#define simt_bar_sync(id, n)  ((void)simt_emu_bar(SIMT_SITE("bar_sync", SIMT_WHOLE), id, n, false))
#define simt_bar_or(id, n, p) simt_emu_bar(SIMT_SITE("bar_or", SIMT_WHOLE), id, n, p)
#define simt_syncwarp()       simt_emu_syncwarp(SIMT_SITE("syncwarp", SIMT_WHOLE))

#define simt_shfl_u32(v, lane)     simt_emu_shuffle(SIMT_SITE("shfl", 0), SIMT_INDEX, v, lane)
#define simt_shfl_xor_u32(v, mask) simt_emu_shuffle(SIMT_SITE("shfl_xor", 0), SIMT_XOR, v, mask)
#define simt_shfl_f32(v, lane)                                                                               \
    simt_emu_bits_float(simt_emu_shuffle(SIMT_SITE("shfl", 0), SIMT_INDEX, simt_emu_float_bits(v), lane))
#define simt_shfl_xor_f32(v, mask)                                                                           \
    simt_emu_bits_float(simt_emu_shuffle(SIMT_SITE("shfl_xor", 0), SIMT_XOR, simt_emu_float_bits(v), mask))
#define simt_ballot(p)           simt_emu_shuffle(SIMT_SITE("ballot", 0), SIMT_BALLOT, (p) ? 1 : 0, 0)
#define simt_redux_max_u32(v)    simt_emu_shuffle(SIMT_SITE("redux_max", 0), SIMT_MAX, v, 0)
#define simt_redux_min_u32(v)    simt_emu_shuffle(SIMT_SITE("redux_min", 0), SIMT_MIN, v, 0)
#define simt_mma_u8s8(c, a, b)   simt_emu_mma(SIMT_SITE("mma_u8s8", 0), false, c, a, b)
#define simt_mma_s8s8(c, a, b)   simt_emu_mma(SIMT_SITE("mma_s8s8", 0), true, c, a, b)
#define simt_mma16_s8s8(c, a, b) simt_emu_mma16(SIMT_SITE("mma16_s8s8", 0), c, a, b)

static inline int32_t simt_dp4a(uint32_t a, uint32_t b, int32_t c)
{
    uint32_t sum = (uint32_t)c;
    for (uint32_t shift = 0; shift < 32; shift += 8)
        sum += (uint32_t)((int8_t)(a >> shift) * (int8_t)(b >> shift));
    return (int32_t)sum;
}

/* A selector's bit 3 would ask for a byte's sign: no kernel means that. */
static inline uint32_t simt_permute(uint32_t a, uint32_t b, uint32_t by)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    assert((by & 0x8888) == 0);
    for (uint32_t i = 0; i < 4; i++)
        v |= (uint32_t)(both >> (by >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return v;
}

/* Checks the pointer's type by passing it to a typed parameter. */
static inline const uint32_t *simt_emu_p32(const uint32_t *p)
{
    return p;
}
static inline const uint64_t *simt_emu_p64(const uint64_t *p)
{
    return p;
}
#define SIMT_LD(word, aspects, p, scope)                                                                     \
    ((uint32_t)simt_emu_load(SIMT_SITE(word, (aspects) | SIMT_SCOPE), simt_emu_p32(p), 4, scope))
#define SIMT_LD64(word, aspects, p, scope)                                                                   \
    simt_emu_load(SIMT_SITE(word, (aspects) | SIMT_SCOPE), simt_emu_p64(p), 8, scope)
static inline simt_u4 simt_emu_load4(const struct simt_site *at, const uint32_t *p, enum simt_scope scope)
{
    simt_u4 v;
    assert((uintptr_t)p % sizeof v == 0);
    for (uint32_t i = 0; i < 4; i++)
        v[i] = (uint32_t)simt_emu_load(at, p + i, 4, scope);
    return v;
}
#define SIMT_LD4(word, aspects, p, scope)                                                                    \
    simt_emu_load4(SIMT_SITE(word, (aspects) | SIMT_SCOPE), simt_emu_p32(p), scope)
#define SIMT_ST(word, aspects, p, v, scope)                                                                  \
    simt_emu_store(SIMT_SITE(word, (aspects) | SIMT_SCOPE), (uint32_t *)simt_emu_p32(p), 4, (uint32_t)(v),   \
                   scope)
#define SIMT_ST64(word, aspects, p, v, scope)                                                                \
    simt_emu_store(SIMT_SITE(word, (aspects) | SIMT_SCOPE), (uint64_t *)simt_emu_p64(p), 8, v, scope)
#define SIMT_ADD(word, aspects, p, v, scope)                                                                 \
    simt_emu_add(SIMT_SITE(word, (aspects) | SIMT_SCOPE), p, v, scope)
#define SIMT_FENCE(word, scope) simt_emu_fence(SIMT_SITE(word, SIMT_WHOLE | SIMT_SCOPE), scope)

#define simt_ld_relaxed_gpu(p)          SIMT_LD("ld_relaxed_gpu", 0, p, SIMT_GPU)
#define simt_ld_acquire_gpu(p)          SIMT_LD("ld_acquire_gpu", SIMT_ACQUIRE, p, SIMT_GPU)
#define simt_ld_relaxed_sys(p)          SIMT_LD("ld_relaxed_sys", 0, p, SIMT_SYS)
#define simt_ld_acquire_sys(p)          SIMT_LD("ld_acquire_sys", SIMT_ACQUIRE, p, SIMT_SYS)
#define simt_ld_relaxed_gpu_u64(p)      SIMT_LD64("ld_relaxed_gpu_u64", 0, p, SIMT_GPU)
#define simt_ld_relaxed_sys_u64(p)      SIMT_LD64("ld_relaxed_sys_u64", 0, p, SIMT_SYS)
#define simt_ld_relaxed_gpu_u4(p)       SIMT_LD4("ld_relaxed_gpu_u4", 0, p, SIMT_GPU)
#define simt_ld_acquire_sys_u64(p)      SIMT_LD64("ld_acquire_sys_u64", SIMT_ACQUIRE, p, SIMT_SYS)
#define simt_st_relaxed_gpu(p, v)       SIMT_ST("st_relaxed_gpu", 0, p, v, SIMT_GPU)
#define simt_st_release_gpu(p, v)       SIMT_ST("st_release_gpu", SIMT_RELEASE, p, v, SIMT_GPU)
#define simt_st_relaxed_sys(p, v)       SIMT_ST("st_relaxed_sys", 0, p, v, SIMT_SYS)
#define simt_st_release_sys(p, v)       SIMT_ST("st_release_sys", SIMT_RELEASE, p, v, SIMT_SYS)
#define simt_st_relaxed_gpu_u64(p, v)   SIMT_ST64("st_relaxed_gpu_u64", 0, p, v, SIMT_GPU)
#define simt_st_relaxed_sys_u64(p, v)   SIMT_ST64("st_relaxed_sys_u64", 0, p, v, SIMT_SYS)
#define simt_st_release_sys_u64(p, v)   SIMT_ST64("st_release_sys_u64", SIMT_RELEASE, p, v, SIMT_SYS)
#define simt_red_relaxed_gpu_add(p, v)  ((void)SIMT_ADD("red_relaxed_gpu_add", 0, p, v, SIMT_GPU))
#define simt_red_release_gpu_add(p, v)  ((void)SIMT_ADD("red_release_gpu_add", SIMT_RELEASE, p, v, SIMT_GPU))
#define simt_atom_relaxed_gpu_add(p, v) SIMT_ADD("atom_relaxed_gpu_add", 0, p, v, SIMT_GPU)
#define simt_atom_acq_rel_gpu_add(p, v)                                                                      \
    SIMT_ADD("atom_acq_rel_gpu_add", SIMT_ACQUIRE | SIMT_RELEASE, p, v, SIMT_GPU)
#define simt_atom_shared_add(p, v) simt_emu_add_shared(SIMT_SITE("atom_shared_add", 0), p, v)
#define simt_fence_acq_rel_gpu()   SIMT_FENCE("fence_acq_rel_gpu", SIMT_GPU)
#define simt_fence_acq_rel_sys()   SIMT_FENCE("fence_acq_rel_sys", SIMT_SYS)

#define simt_mbar_init(m, n) simt_emu_mbar_init(SIMT_SITE("mbar_init", 0), m, n)
#define simt_mbar_arrive(m)  simt_emu_mbar_arrive(SIMT_SITE("mbar_arrive", SIMT_RELEASE), m, 0)
#define simt_mbar_try_wait(m, parity)                                                                        \
    simt_emu_mbar_try_wait(SIMT_SITE("mbar_try_wait", SIMT_WHOLE), m, parity)
#if SIMT_SM >= 90
#define simt_fence_mbar_init()   simt_emu_fence_proxy(SIMT_SITE("fence_mbar_init", SIMT_WHOLE))
#define simt_fence_proxy_async() simt_emu_fence_proxy(SIMT_SITE("fence_proxy_async", SIMT_WHOLE))
#define simt_mbar_arrive_expect_tx(m, bytes)                                                                 \
    simt_emu_mbar_arrive(SIMT_SITE("mbar_arrive_expect_tx", SIMT_WHOLE | SIMT_RELEASE), m, bytes)
#define simt_bulk_copy(dst, src, bytes, m) simt_emu_bulk_copy(SIMT_SITE("bulk_copy", 0), dst, src, bytes, m)
#else
#define simt_fence_mbar_init()   ((void)0)
#define simt_fence_proxy_async() ((void)0)
#endif
#define simt_cp_async16(dst, src) simt_emu_cp_async16(SIMT_SITE("cp_async16", 0), dst, src)
#define simt_cp_async_commit()    simt_emu_cp_async_commit()
#define simt_cp_async_wait(n)     simt_emu_cp_async_wait(SIMT_SITE("cp_async_wait", SIMT_WHOLE), n)
#define simt_cp_async_arrive(m)   simt_emu_cp_async_arrive(SIMT_SITE("cp_async_arrive", SIMT_WHOLE), m)

#define simt_prefetch_l2(p) simt_emu_prefetch(p)
#define simt_opaque(v)      (v)
#define SIMT_LOOK_SPINS     8 /* each turn costs the emulator a switch */
#define simt_nanosleep(ns)  simt_emu_nanosleep(ns)
#define simt_globaltimer()  simt_emu_globaltimer()
#define simt_clock()        simt_emu_clock()
