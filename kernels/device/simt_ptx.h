/* simt_ptx.h - the intrinsics of simt.h as inline PTX; included by simt.h only. Every statement except
 * simt_dp4a()'s and simt_permute()'s is volatile and clobbers memory, so that the compiler keeps its place;
 * -fconvergent-functions (hearth_ptx() in cmake/Ptx.cmake) keeps it from being copied into branches. */
#pragma once

#define SIMT_GLOBAL __attribute__((address_space(1)))
#define SIMT_SHARED __attribute__((address_space(3)))

/* clang has no launch bounds in C on this target: the comment goes into the PTX, where hearth_ptx() turns it
 * into .maxntid and .minnctapersm. */
#define SIMT_KERNEL(name, args_type, threads, blocks_per_sm)                                                 \
    __asm__("// simt.bounds " #name " " SIMT_TEXT(threads) " " SIMT_TEXT(blocks_per_sm));                    \
    __attribute__((nvptx_kernel)) void name(args_type args);                                                 \
    __attribute__((nvptx_kernel)) void name(args_type args)

extern SIMT_SHARED char simt_arena[] __attribute__((aligned(128))); /* without it clang writes .align 1 */

#define simt_thread()             ((uint32_t)__nvvm_read_ptx_sreg_tid_x())
#define simt_n_threads()          ((uint32_t)__nvvm_read_ptx_sreg_ntid_x())
#define simt_block()              SIMT_OPAQUE(__nvvm_read_ptx_sreg_ctaid_x())
#define simt_n_blocks()           SIMT_OPAQUE(__nvvm_read_ptx_sreg_nctaid_x())
#define simt_carve(offset, bytes) ((SIMT_SHARED void *)(simt_arena + (offset)))

/* Recomputes lane and warp at each use, from a value that the compiler cannot see through. Otherwise it
 * computes all that depends on them once, at the start, and runs out of registers where many are needed. */
#define SIMT_OPAQUE(v)                                                                                       \
    __extension__({                                                                                          \
        uint32_t v_ = (v);                                                                                   \
        __asm__ volatile("" : "+r"(v_));                                                                     \
        v_;                                                                                                  \
    })
#define simt_lane() SIMT_OPAQUE(simt_thread() % SIMT_LANES)
#define simt_warp() SIMT_OPAQUE(simt_thread() / SIMT_LANES)

/* Block and warp. */
#define simt_bar_sync(id, n) __asm__ volatile("bar.sync %0, %1;" ::"n"(id), "r"((uint32_t)(n)) : "memory")
#define simt_bar_or(id, n, p)                                                                                \
    __extension__({                                                                                          \
        uint32_t any_;                                                                                       \
        __asm__ volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; "           \
                         "selp.u32 %0, 1, 0, q; }"                                                           \
                         : "=r"(any_)                                                                        \
                         : "n"(id), "r"((uint32_t)(n)), "r"((uint32_t)(p))                                   \
                         : "memory");                                                                        \
        any_ != 0;                                                                                           \
    })

SIMT_INLINE void simt_syncwarp(void)
{
    __asm__ volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}

#define SIMT_SHUFFLE(name, mode, type, constraint)                                                           \
    SIMT_INLINE type name(type v, uint32_t arg)                                                              \
    {                                                                                                        \
        type r;                                                                                              \
        __asm__ volatile("shfl.sync." mode ".b32 %0, %1, %2, 0x1f, 0xffffffff;"                              \
                         : "=" constraint(r)                                                                 \
                         : constraint(v), "r"(arg)                                                           \
                         : "memory");                                                                        \
        return r;                                                                                            \
    }
SIMT_SHUFFLE(simt_shfl_u32, "idx", uint32_t, "r")
SIMT_SHUFFLE(simt_shfl_f32, "idx", float, "f")
SIMT_SHUFFLE(simt_shfl_xor_u32, "bfly", uint32_t, "r")
SIMT_SHUFFLE(simt_shfl_xor_f32, "bfly", float, "f")

SIMT_INLINE uint32_t simt_ballot(bool p)
{
    uint32_t r;
    __asm__ volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
                     : "=r"(r)
                     : "r"((uint32_t)p)
                     : "memory");
    return r;
}

#define SIMT_REDUX(name, op)                                                                                 \
    SIMT_INLINE uint32_t name(uint32_t v)                                                                    \
    {                                                                                                        \
        uint32_t r;                                                                                          \
        __asm__ volatile("redux.sync." op ".u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v) : "memory");         \
        return r;                                                                                            \
    }
SIMT_REDUX(simt_redux_max_u32, "max")
SIMT_REDUX(simt_redux_min_u32, "min")

#define SIMT_MMA(name, types)                                                                                \
    SIMT_INLINE void name(int32_t c[4], const uint32_t a[4], const uint32_t b[2])                            \
    {                                                                                                        \
        __asm__ volatile("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 "                              \
                         "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                             \
                         : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                    \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                \
    }
SIMT_MMA(simt_mma_u8s8, "u8.s8")
SIMT_MMA(simt_mma_s8s8, "s8.s8")

SIMT_INLINE void simt_mma16_s8s8(int32_t c[4], const uint32_t a[2], uint32_t b)
{
    __asm__ volatile(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* Not volatile: it accesses neither memory nor other threads. */
SIMT_INLINE int32_t simt_dp4a(uint32_t a, uint32_t b, int32_t c)
{
    __asm__("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
    return c;
}

SIMT_INLINE uint32_t simt_permute(uint32_t a, uint32_t b, uint32_t by)
{
    uint32_t v;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(by));
    return v;
}

/* Ordered accesses. */
#define SIMT_LOAD(name, op, type, bits, constraint)                                                          \
    SIMT_INLINE type name(const SIMT_GLOBAL type *p)                                                         \
    {                                                                                                        \
        type v;                                                                                              \
        __asm__ volatile("ld." op ".global." bits " %0, [%1];" : "=" constraint(v) : "l"(p) : "memory");     \
        return v;                                                                                            \
    }
#define SIMT_STORE(name, op, type, bits, constraint)                                                         \
    SIMT_INLINE void name(SIMT_GLOBAL type *p, type v)                                                       \
    {                                                                                                        \
        __asm__ volatile("st." op ".global." bits " [%0], %1;" ::"l"(p), constraint(v) : "memory");          \
    }
SIMT_LOAD(simt_ld_relaxed_gpu, "relaxed.gpu", uint32_t, "u32", "r")
SIMT_LOAD(simt_ld_acquire_gpu, "acquire.gpu", uint32_t, "u32", "r")
SIMT_LOAD(simt_ld_relaxed_sys, "relaxed.sys", uint32_t, "u32", "r")
SIMT_LOAD(simt_ld_acquire_sys, "acquire.sys", uint32_t, "u32", "r")
SIMT_LOAD(simt_ld_relaxed_gpu_u64, "relaxed.gpu", uint64_t, "u64", "l")
SIMT_LOAD(simt_ld_relaxed_sys_u64, "relaxed.sys", uint64_t, "u64", "l")
SIMT_LOAD(simt_ld_acquire_sys_u64, "acquire.sys", uint64_t, "u64", "l")

SIMT_INLINE simt_u4 simt_ld_relaxed_gpu_u4(const SIMT_GLOBAL uint32_t *p)
{
    simt_u4 v;
    __asm__ volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "l"(p)
                     : "memory");
    return v;
}

SIMT_STORE(simt_st_relaxed_gpu, "relaxed.gpu", uint32_t, "u32", "r")
SIMT_STORE(simt_st_release_gpu, "release.gpu", uint32_t, "u32", "r")
SIMT_STORE(simt_st_relaxed_sys, "relaxed.sys", uint32_t, "u32", "r")
SIMT_STORE(simt_st_release_sys, "release.sys", uint32_t, "u32", "r")
SIMT_STORE(simt_st_relaxed_gpu_u64, "relaxed.gpu", uint64_t, "u64", "l")
SIMT_STORE(simt_st_relaxed_sys_u64, "relaxed.sys", uint64_t, "u64", "l")
SIMT_STORE(simt_st_release_sys_u64, "release.sys", uint64_t, "u64", "l")

#define SIMT_REDUCE(name, op)                                                                                \
    SIMT_INLINE void name(SIMT_GLOBAL uint32_t *p, uint32_t v)                                               \
    {                                                                                                        \
        __asm__ volatile("red." op ".global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");                 \
    }
SIMT_REDUCE(simt_red_relaxed_gpu_add, "relaxed.gpu")
SIMT_REDUCE(simt_red_release_gpu_add, "release.gpu")

#define SIMT_ATOMIC(name, op)                                                                                \
    SIMT_INLINE uint32_t name(SIMT_GLOBAL uint32_t *p, uint32_t v)                                           \
    {                                                                                                        \
        uint32_t old;                                                                                        \
        __asm__ volatile("atom." op ".global.add.u32 %0, [%1], %2;"                                          \
                         : "=r"(old)                                                                         \
                         : "l"(p), "r"(v)                                                                    \
                         : "memory");                                                                        \
        return old;                                                                                          \
    }
SIMT_ATOMIC(simt_atom_relaxed_gpu_add, "relaxed.gpu")
SIMT_ATOMIC(simt_atom_acq_rel_gpu_add, "acq_rel.gpu")

SIMT_INLINE uint32_t simt_atom_shared_add(SIMT_SHARED uint32_t *p, uint32_t v)
{
    uint32_t old;
    __asm__ volatile("atom.relaxed.cta.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

#define SIMT_STATEMENT(name, text)                                                                           \
    SIMT_INLINE void name(void)                                                                              \
    {                                                                                                        \
        __asm__ volatile(text ::: "memory");                                                                 \
    }
SIMT_STATEMENT(simt_fence_acq_rel_gpu, "fence.acq_rel.gpu;")
SIMT_STATEMENT(simt_fence_acq_rel_sys, "fence.acq_rel.sys;")

/* mbarriers and copies. */
SIMT_INLINE void simt_mbar_init(SIMT_SHARED uint64_t *m, uint32_t arrivals)
{
    __asm__ volatile("mbarrier.init.shared.b64 [%0], %1;" ::"l"(m), "r"(arrivals) : "memory");
}

SIMT_INLINE void simt_mbar_arrive(SIMT_SHARED uint64_t *m)
{
    __asm__ volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"l"(m) : "memory");
}

#if SIMT_SM >= 90 /* 1 us: without a limit a test may sleep for the system's own, which is undocumented */
#define SIMT_MBAR_TEST  "mbarrier.try_wait.parity.shared.b64"
#define SIMT_MBAR_LIMIT ", 1000"
#else
#define SIMT_MBAR_TEST  "mbarrier.test_wait.parity.shared.b64"
#define SIMT_MBAR_LIMIT ""
#endif
SIMT_INLINE bool simt_mbar_try_wait(SIMT_SHARED uint64_t *m, uint32_t parity)
{
    uint32_t ended;
    __asm__ volatile("{ .reg .pred p; " SIMT_MBAR_TEST " p, [%1], %2" SIMT_MBAR_LIMIT
                     "; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended)
                     : "l"(m), "r"(parity)
                     : "memory");
    return ended != 0;
}

#if SIMT_SM >= 90
SIMT_STATEMENT(simt_fence_mbar_init, "fence.mbarrier_init.release.cluster;")
SIMT_STATEMENT(simt_fence_proxy_async, "fence.proxy.async;")

SIMT_INLINE void simt_mbar_arrive_expect_tx(SIMT_SHARED uint64_t *m, uint32_t bytes)
{
    __asm__ volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"l"(m), "r"(bytes)
                     : "memory");
}

/* shared::cluster is the form that every driver since PTX 7.8 accepts; a block without a cluster is its
 * own. */
SIMT_INLINE void simt_bulk_copy(SIMT_SHARED void *dst, const SIMT_GLOBAL void *src, uint32_t bytes,
                                SIMT_SHARED uint64_t *m)
{
    __asm__ volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"l"(dst),
        "l"(src), "r"(bytes), "l"(m)
        : "memory");
}
#else
SIMT_INLINE void simt_fence_mbar_init(void) {}
SIMT_INLINE void simt_fence_proxy_async(void) {}
#endif

SIMT_INLINE void simt_cp_async16(SIMT_SHARED void *dst, const SIMT_GLOBAL void *src)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"l"(dst), "l"(src) : "memory");
}

SIMT_STATEMENT(simt_cp_async_commit, "cp.async.commit_group;")
#define simt_cp_async_wait(n) __asm__ volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

SIMT_INLINE void simt_cp_async_arrive(SIMT_SHARED uint64_t *m)
{
    __asm__ volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"l"(m) : "memory");
}

SIMT_INLINE uint32_t simt_opaque(uint32_t v)
{
    __asm__ volatile("" : "+r"(v));
    return v;
}

SIMT_INLINE void simt_prefetch_l2(const SIMT_GLOBAL void *p)
{
    __asm__ volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

/* Time. */
#define SIMT_LOOK_SPINS 1024 /* tens of microseconds */

SIMT_INLINE void simt_nanosleep(uint32_t ns)
{
    __asm__ volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory");
}

SIMT_INLINE uint64_t simt_globaltimer(void)
{
    uint64_t t;
    __asm__ volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

SIMT_INLINE uint64_t simt_clock(void)
{
    uint64_t t;
    __asm__ volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
}
