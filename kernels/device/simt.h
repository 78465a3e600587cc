/* simt.h - the device vocabulary: everything a kernel in plain C may ask of the GPU beyond C itself.
 *
 * The same source is compiled twice. For a GPU (clang --target=nvptx64) each word below is one inline PTX
 * instruction, in simt_ptx.h; CMake's hearth_ptx() knows the flags without which that goes wrong. For the
 * host each word is a call into the emulator (tests/simt/simt_host.h), which schedules the threads, checks
 * the collectives and looks for races. A kernel therefore uses these words and no builtin, no C11 atomic, no
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
 * BLOCK      simt_bar_sync(id, n)        n threads (whole warps) meet; memory is ordered. id: a constant,
 * 0..15 simt_bar_or(id, n, p)       the same, and tells whether any thread brought p != 0 WARP       all 32
 * lanes, the same call: simt_syncwarp()             the only one that orders memory between lanes
 *            simt_shfl_u32(v, lane) simt_shfl_f32(v, lane) simt_shfl_xor_u32(v, mask) simt_shfl_xor_f32(v,
 * mask) simt_ballot(p)              a bit per lane simt_mma_u8s8(c, a, b) simt_mma_s8s8(c, a, b)    m16n8k32:
 * c[4] += a[4] * b[2], see below
 *            simt_mma16_s8s8(c, a, b)          m16n8k16: c[4] += a[2] * b
 *
 * THREAD     simt_dp4a(a, b, c)                c + the dot product of two words' four int8
 *
 * ORDERED    relaxed, acquire and release at gpu scope (the device) or sys scope (the host too), u32; the
 *            _u64 forms at sys scope. Nothing else may touch memory that another thread touches unordered.
 *            simt_ld_relaxed_gpu(p) simt_ld_acquire_gpu(p) simt_ld_relaxed_sys(p) simt_ld_acquire_sys(p)
 *            simt_st_relaxed_gpu(p, v) simt_st_release_gpu(p, v) simt_st_relaxed_sys(p, v)
 *            simt_st_release_sys(p, v)
 *            simt_ld_relaxed_sys_u64 simt_ld_acquire_sys_u64 simt_st_relaxed_sys_u64 simt_st_release_sys_u64
 *            simt_red_relaxed_gpu_add(p, v) simt_red_release_gpu_add(p, v)      add, no answer
 *            simt_atom_relaxed_gpu_add(p, v) simt_atom_acq_rel_gpu_add(p, v)    add, the old value
 *            simt_fence_acq_rel_gpu() simt_fence_acq_rel_sys()
 *            simt_atom_shared_add(p, v)            in shared memory, the old value; orders
 *                                                  nothing
 *
 * COPIES     asynchronous, global to shared; they end at any time until a wait says so.
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
 * REGISTERS  simt_opaque(v)                    v, of which the compiler knows nothing: what follows from it
 * is computed where it stands, not ahead of loops and branches, where it would take up registers
 *
 * AHEAD      simt_prefetch_l2(p)              a line of global memory on its way into L2
 *
 * TIME       simt_nanosleep(ns) simt_globaltimer()
 *            SIMT_LOOK_SPINS: turns of a polling loop between two looks at what seldom changes
 * ENDING     there is no trap: it would take the context along. A kernel that cannot go on writes why and
 *            returns; its waits also watch an abort word (dependency.h).
 *
 * Fragments of m16n8k32 (PTX ISA, g = lane / 4, t = lane % 4): a[0] = row g, k 4t..4t+3; a[1] = row g+8, the
 * same k; a[2], a[3] = these rows at k 16+4t..; b[0] = column g, k 4t..; b[1] = column g, k 16+4t..; c[0],
 * c[1] = row g, columns 2t, 2t+1; c[2], c[3] = row g+8. The lowest byte of a word is the lowest k. m16n8k16
 * is its first half: a[0], a[1] and one word of b. */
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

/* Before a loop that is seldom run: as it stands, not unrolled into what runs often. */
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
