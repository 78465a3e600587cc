/* simt.h - the device intrinsics: everything a kernel in plain C may ask of the GPU beyond C itself.
 *
 * The same source is compiled twice. For a GPU (clang --target=nvptx64) each intrinsic below is one inline
 * PTX instruction, in simt_ptx.h; CMake's hearth_ptx() has the compiler flags that this needs. For the host
 * each is a call into the emulator (tests/simt/simt_host.h), which schedules the threads, checks the
 * collectives and looks for races. So a kernel uses these intrinsics and no builtin, no C11 atomic, no
 * volatile: clang 19 miscompiles or refuses ordered atomics on this target.
 *
 * KERNEL     SIMT_KERNEL(name, struct name_args, threads, blocks_per_sm) { ... args.x ... }
 *            One parameter, a struct by value. `threads` is a multiple of 32, and is the launch's block size.
 * POINTERS   SIMT_GLOBAL float *x;   SIMT_SHARED float *s;   (address spaces: ld.global, ld.shared)
 *            A kernel never marks data `const ... restrict` that is written while it runs: clang may then
 *            read it through the non-coherent cache.
 *            Copy 16 bytes as simt_u4, not as a struct: the emulator sees vectors, not block copies.
 * IDS        simt_thread() simt_n_threads() simt_block() simt_n_blocks() simt_lane() simt_warp()
 * SHARED     simt_carve(offset, bytes): a part of the block's dynamic shared memory. Offsets are multiples of
 *            16; parts do not overlap. Its contents are undefined at the start.
 *
 * BLOCK      simt_bar_sync(id, n)     n threads (whole warps) meet; memory is ordered. id: a constant, 0..15
 *            simt_bar_or(id, n, p)    the same; returns whether any thread passed p != 0
 * WARP       all 32 lanes make the same call:
 *            simt_syncwarp()          the only one that orders memory between lanes
 *            simt_shfl_u32(v, lane) simt_shfl_f32(v, lane)
 *            simt_shfl_xor_u32(v, mask) simt_shfl_xor_f32(v, mask)
 *            simt_ballot(p)           a bit per lane
 *            simt_redux_max_u32(v) simt_redux_min_u32(v)      of all lanes'
 *            simt_mma_u8s8(c, a, b) simt_mma_s8s8(c, a, b)    m16n8k32: c[4] += a[4] * b[2], see below
 *            simt_mma16_s8s8(c, a, b)                         m16n8k16: c[4] += a[2] * b
 *
 * THREAD     simt_dp4a(a, b, c)       c + the dot product of two words' four int8
 *            simt_permute(a, b, by)   byte i is byte (by >> 4 i & 7) of a, then b; bit 3 of the four lowest
 *                                     nibbles of `by` is 0, and its upper half does not matter
 *
 * ORDERED    relaxed, acquire and release at gpu scope (the device) or sys scope (the host too), u32; some
 *            have _u64 forms. Memory that another thread accesses unordered may be accessed by these
 *            alone.
 *            simt_ld_relaxed_gpu(p) simt_ld_acquire_gpu(p) simt_ld_relaxed_sys(p) simt_ld_acquire_sys(p)
 *            simt_st_relaxed_gpu(p, v) simt_st_release_gpu(p, v) simt_st_relaxed_sys(p, v)
 *            simt_st_release_sys(p, v)
 *            simt_ld_relaxed_gpu_u64 simt_st_relaxed_gpu_u64: one access of 8 bytes, which arrives whole
 *            simt_ld_relaxed_gpu_u4: four accesses of 4 bytes, in any order; 16-byte aligned
 *            simt_ld_relaxed_sys_u64 simt_ld_acquire_sys_u64 simt_st_relaxed_sys_u64 simt_st_release_sys_u64
 *            simt_red_relaxed_gpu_add(p, v) simt_red_release_gpu_add(p, v)      add; no result
 *            simt_atom_relaxed_gpu_add(p, v) simt_atom_acq_rel_gpu_add(p, v)    add; return the old value
 *            simt_fence_acq_rel_gpu() simt_fence_acq_rel_sys()
 *            simt_atom_shared_add(p, v)    in shared memory; returns the old value; orders nothing
 *
 * COPIES     asynchronous, global to shared; a copy may end at any time until a wait for it returns.
 *            sm_80: simt_cp_async16(dst, src)      16 bytes, by this thread; ordinary (generic) accesses
 *                   simt_cp_async_commit() simt_cp_async_wait(n)   until at most n (constant) groups are open
 *                   simt_cp_async_arrive(mbar)     one arrival when this thread's copies so far have ended
 *            sm_90: simt_bulk_copy(dst, src, bytes, mbar)   bytes and both addresses multiples of 16; through
 *                   the async proxy: it sees ordinary writes only after a simt_fence_proxy_async() by the
 *                   writer or the copier, ordered between the two; complete_tx(bytes) on mbar at the end
 * MBARRIER   in shared memory, 8 bytes, SIMT_SHARED uint64_t *:
 *            simt_mbar_init(m, arrivals)           then simt_fence_mbar_init() (sm_90) and a simt_bar_sync
 *            simt_mbar_arrive(m)                   release; simt_mbar_arrive_expect_tx(m, bytes) (sm_90)
 *            simt_mbar_try_wait(m, parity)         acquire; true once the phase of that parity has ended
 *
 * REGISTERS  simt_opaque(v)           returns v and hides its value from the compiler, so that what depends
 *            on it is computed in place, not ahead of loops and branches, where it would occupy registers
 * PREFETCH   simt_prefetch_l2(p)      starts loading a line of global memory into L2
 * TIME       simt_nanosleep(ns) simt_globaltimer()
 *            simt_clock()             ticks of this SM; other SMs have other origins
 *            SIMT_LOOK_SPINS          turns of a polling loop between two looks at what seldom changes
 * ENDING     there is no trap: it would destroy the context. A kernel that cannot continue records why and
 *            returns; its waits also watch an abort word (dependency.h).
 *
 * Fragments of m16n8k32 (PTX ISA, g = lane / 4, t = lane % 4): a[0] = row g, k 4t..4t+3; a[1] = row g+8, the
 * same k; a[2], a[3] = these rows at k 16+4t..; b[0] = column g, k 4t..; b[1] = column g, k 16+4t..; c[0],
 * c[1] = row g, columns 2t, 2t+1; c[2], c[3] = row g+8. The lowest byte of a word is the lowest k. m16n8k16
 * is its first half: a[0], a[1] and one word of b.
 *
 * Thread: device threads; each entry says how many must call it together. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SIMT_SM
#error "SIMT_SM is 80 or 90: the device generation this source is compiled for"
#endif

#define SIMT_LANES  32
#define SIMT_INLINE static inline __attribute__((always_inline))

#define simt_u4 uint32_t __attribute__((vector_size(16))) /* one 16-byte access; components [0]..[3] */

/* Put before a loop that seldom runs: keeps it from being unrolled into code that often runs. */
#define SIMT_SMALL_LOOP _Pragma("clang loop unroll(disable)")

#define SIMT_TEXT(x)  SIMT_TEXT_(x)
#define SIMT_TEXT_(x) #x

#ifdef __NVPTX__
#include "simt_ptx.h"
#else
#include "simt/simt_host.h"
#endif

#ifndef __NVPTX__ /* simt_ptx.h has its own */
#define simt_lane() (simt_thread() % SIMT_LANES)
#define simt_warp() (simt_thread() / SIMT_LANES)
#endif
