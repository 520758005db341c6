// AMD gfx11 and gfx12 (wave32) through clang's builtins, no header of ROCm. Included by device.h.
#pragma once

#define DEVICE static inline __attribute__((device, always_inline))
#define METHOD inline __attribute__((device, always_inline))
#define DEVICE_CALL static __attribute__((device, noinline))
#define LUCE_KERNEL(name, threads) \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, threads))) void name
#define LUCE_KERNEL_RESIDENT(name, threads, blocks) LUCE_KERNEL(name, threads)
#define LUCE_KERNEL_CLUSTER(name, threads, blocks, cluster) LUCE_KERNEL(name, threads)
#define LUCE_EXPORT(name)
#define RESTRICT __restrict__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("nounroll")
#pragma clang fp contract(off)

#define HAS_MMA 1  // by shuffles and fma: right, and not fast
#define HAS_BULK 0
#define HAS_WGMMA 0
#define HAS_PDL 0
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1150__) || \
    defined(__gfx1151__) || defined(__gfx1200__) || defined(__gfx1201__)
#define HAS_WMMA 1
#else
#define HAS_WMMA 0
#endif

DEVICE i32 thread() { return (i32)__builtin_amdgcn_workitem_id_x(); }
DEVICE i32 block_threads() { return (i32)__builtin_amdgcn_workgroup_size_x(); }
DEVICE i32 block_x() { return (i32)__builtin_amdgcn_workgroup_id_x(); }
DEVICE i32 block_y() { return (i32)__builtin_amdgcn_workgroup_id_y(); }
DEVICE i32 block_z() { return (i32)__builtin_amdgcn_workgroup_id_z(); }
DEVICE i32 grid_x() { return (i32)(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()); }
DEVICE i32 grid_y() { return (i32)(__builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y()); }
DEVICE i32 grid_z() { return (i32)(__builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()); }

extern __attribute__((device, shared, aligned(128))) u8 luce_shared[];
DEVICE u8* shared_memory() { return luce_shared; }
DEVICE void shared_ends(const void*) {}

DEVICE u32 as_u32(f32 v) { return __builtin_bit_cast(u32, v); }
DEVICE f32 as_f32(u32 v) { return __builtin_bit_cast(f32, v); }
DEVICE u64 as_u64(f64 v) { return __builtin_bit_cast(u64, v); }
DEVICE f64 as_f64(u64 v) { return __builtin_bit_cast(f64, v); }

DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// There are no barriers for a part of a block: all of it meets. So without bulk copies, and so without warps that do nothing but
// copy, every warp of a block comes by the same barriers.
DEVICE void barrier_sync(i32, i32) { sync_block(); }
DEVICE void barrier_arrive(i32, i32) { sync_block(); }
DEVICE void sync_warp() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier(); }
DEVICE u32 shfl(u32 v, i32 from) { return (u32)__builtin_amdgcn_ds_bpermute(from << 2, (i32)v); }
DEVICE u32 ballot_(bool v) { return __builtin_amdgcn_ballot_w32(v); }
DEVICE u32 most_of_warp(u32 v) {
  for (int step = 16; step > 0; step >>= 1) {
    u32 other = shfl(v, (int)(thread() & 31) ^ step);
    v = other > v ? other : v;
  }
  return v;
}
DEVICE i32 popcount(u32 v) { return __builtin_popcount(v); }
DEVICE i32 leading_zeros(u32 v) { return v ? __builtin_clz(v) : 32; }

DEVICE u32 atomic_add(u32* at, u32 v) { return __hip_atomic_fetch_add(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u64 atomic_add(u64* at, u64 v) { return __hip_atomic_fetch_add(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u32 atomic_max(u32* at, u32 v) { return __hip_atomic_fetch_max(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u64 atomic_max(u64* at, u64 v) { return __hip_atomic_fetch_max(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u32 atomic_or(u32* at, u32 v) { return __hip_atomic_fetch_or(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE u32 atomic_add_ordered(u32* at, u32 v) { return __hip_atomic_fetch_add(at, v, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE void await_device(const u32* at, u32 value) {
  while (__hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) < value) __builtin_amdgcn_s_sleep(1);
}
DEVICE void grid_arrive(u32* at) { __hip_atomic_fetch_add(at, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT); }
DEVICE void grid_wait(const u32* at, u32 value) {
  while (__hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) < value) __builtin_amdgcn_s_sleep(1);
}
DEVICE void fence_device() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
DEVICE void fence_block() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup"); }
DEVICE void publish_(u32* at, u32 value) { __hip_atomic_store(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP); }
DEVICE void await_(const u32* at, u32 value) {
  while (__hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) < value) {}
}

DEVICE f32 add(f32 a, f32 b) { return a + b; }
DEVICE f32 sub(f32 a, f32 b) { return a - b; }
DEVICE f32 mul(f32 a, f32 b) { return a * b; }
DEVICE f32 fma_(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
DEVICE f32 div(f32 a, f32 b) { return a / b; }
DEVICE f32 sqrt_(f32 a) { return __builtin_sqrtf(a); }
DEVICE f64 add(f64 a, f64 b) { return a + b; }
DEVICE f64 sub(f64 a, f64 b) { return a - b; }
DEVICE f64 mul(f64 a, f64 b) { return a * b; }
DEVICE f64 fma_(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
DEVICE f64 div(f64 a, f64 b) { return a / b; }
DEVICE u32 mul_high(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }

DEVICE u32 soft_pack_bf16(f32 low, f32 high);
DEVICE u32 native_pack_bf16(f32 low, f32 high) { return soft_pack_bf16(low, high); }
DEVICE f32 native_f16_to_f32(u16 h) { return (f32)__builtin_bit_cast(_Float16, h); }
DEVICE u16 luce_f16(f32 v) { return __builtin_bit_cast(u16, (_Float16)v); }
DEVICE u32 native_pack_f16(f32 low, f32 high) { return luce_f16(low) | (u32)luce_f16(high) << 16; }
DEVICE u32 prmt(u32 a, u32 b, u32 select) {
  // v_perm numbers the bytes of its second operand 0 to 3 and of its first 4 to 7.
  u32 bytes = (select & 7u) | ((select >> 4 & 7u) << 8) | ((select >> 8 & 7u) << 16) | ((select >> 12 & 7u) << 24);
  return __builtin_amdgcn_perm(b, a, bytes);
}
DEVICE u32 dot_bytes(u32 a, u32 b, u32 c) {
  for (i32 i = 0; i < 32; i += 8) c += (a >> i & 255u) * (b >> i & 255u);
  return c;
}
DEVICE u32 low_twice(u32 x) { return prmt(x, x, 0x1010u); }
DEVICE u32 high_twice(u32 x) { return prmt(x, x, 0x3232u); }
DEVICE u32 and_or(u32 a, u32 b, u32 c) { return (a & b) | c; }
DEVICE u32 xor_and(u32 a, u32 b, u32 c) { return (a ^ b) & c; }
DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  return soft_pack_bf16(fma_(as_f32(a << 16), as_f32(b << 16), as_f32(c << 16)),
                        fma_(as_f32(a & 0xffff0000u), as_f32(b & 0xffff0000u), as_f32(c & 0xffff0000u)));
}

typedef _Float16 luce_halves __attribute__((ext_vector_type(2)));
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
  return __builtin_bit_cast(u32, __builtin_elementwise_fma(__builtin_bit_cast(luce_halves, a), __builtin_bit_cast(luce_halves, b),
                                                           __builtin_bit_cast(luce_halves, c)));
}

#include "by_shuffles.h"
DEVICE void mma_bf16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { mma_by_shuffles<PairOfBf16>(c, a0, a1, a2, a3, b0, b1); }
DEVICE void mma_f16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { mma_by_shuffles<PairOfF16>(c, a0, a1, a2, a3, b0, b1); }
DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row) { ldmatrix_by_shuffles(r, row); }
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row) { ldmatrix_trans_by_shuffles(r, row); }

#if HAS_WMMA
typedef short wmma_half __attribute__((ext_vector_type(8)));
typedef short wmma_whole __attribute__((ext_vector_type(16)));
typedef f32 wmma_sums __attribute__((ext_vector_type(8)));
#if defined(__gfx1200__) || defined(__gfx1201__)
// Operand fragment of a lane: row (A) or column (B) lane % 16, k = 8 (lane / 16) + 0..7, two to a word.
#define WMMA_WORDS 4
DEVICE i32 wmma_k() { return (thread() & 31) / 16 * 8; }
// Row of sum i in this lane; its column is lane % 16.
DEVICE i32 wmma_row(i32 i) { return (thread() & 31) / 16 * 8 + i; }
#else
// Operand fragment of a lane: row (A) or column (B) lane % 16, all 16 k, two to a word; both halves of the wave hold the same.
#define WMMA_WORDS 8
DEVICE i32 wmma_k() { return 0; }
DEVICE i32 wmma_row(i32 i) { return 2 * i + (thread() & 31) / 16; }
#endif
struct WmmaOperand { u32 words[WMMA_WORDS]; };
// c += a b: 16x16x16, bf16 in, f32 sums.
DEVICE void wmma_bf16(f32 (&c)[8], const WmmaOperand& a, const WmmaOperand& b) {
  wmma_sums sums;
  for (int i = 0; i < 8; i++) sums[i] = c[i];
#if WMMA_WORDS == 4
  sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(wmma_half, a), __builtin_bit_cast(wmma_half, b), sums);
#else
  sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(wmma_whole, a), __builtin_bit_cast(wmma_whole, b), sums);
#endif
  for (int i = 0; i < 8; i++) c[i] = sums[i];
}
#endif

struct alignas(16) luce_words16 { u32 x, y, z, w; };
DEVICE void cp_async16(void* to, const void* from) { *(luce_words16*)to = *(const luce_words16*)from; }
DEVICE void cp_async_commit() {}
template <int PENDING> DEVICE void cp_async_wait() {}
DEVICE void load_stream16(const void* at, u32& x, u32& y, u32& z, u32& w) {
  typedef u32 words __attribute__((ext_vector_type(4)));
  words v = __builtin_nontemporal_load((const words*)at);
  x = v.x; y = v.y; z = v.z; w = v.w;
}
DEVICE void pdl_wait() {}
DEVICE void pdl_launch() {}
DEVICE void trap(const char*) { __builtin_trap(); }
