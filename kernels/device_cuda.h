// NVIDIA. Included by device.h; inline PTX alone, no header of the toolkit.
#pragma once

#define DEVICE __device__ __forceinline__
#define METHOD DEVICE  // of a struct
#define DEVICE_CALL static __device__ __noinline__  // a function that is called, to keep code small
#define LUCE_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
#define LUCE_KERNEL_RESIDENT(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name
#define LUCE_KERNEL_CLUSTER(name, threads, blocks, cluster) \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks) name
#define LUCE_EXPORT(name)
#define RESTRICT __restrict__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

#define HAS_MMA (__CUDA_ARCH__ >= 800)
#define HAS_WMMA 0
#define HAS_BULK (__CUDA_ARCH__ >= 900)
#define HAS_PDL (__CUDA_ARCH__ >= 900)
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

DEVICE i32 thread() { return (i32)threadIdx.x; }
DEVICE i32 block_threads() { return (i32)blockDim.x; }
DEVICE i32 block_x() { return (i32)blockIdx.x; }
DEVICE i32 block_y() { return (i32)blockIdx.y; }
DEVICE i32 block_z() { return (i32)blockIdx.z; }
DEVICE i32 grid_x() { return (i32)gridDim.x; }
DEVICE i32 grid_y() { return (i32)gridDim.y; }
DEVICE i32 grid_z() { return (i32)gridDim.z; }

DEVICE u8* shared_memory() {
  extern __shared__ __align__(1024) u8 luce_shared[];
  return luce_shared;
}
DEVICE i32 shared_bytes() {  // of the launch
  i32 bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}
// What a kernel lays out in shared memory ends here; the host build checks that the launch has so much.
DEVICE void shared_ends(const void*) {}
DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

DEVICE u32 as_u32(f32 v) { return __float_as_uint(v); }
DEVICE f32 as_f32(u32 v) { return __uint_as_float(v); }
DEVICE u64 as_u64(f64 v) { return (u64)__double_as_longlong(v); }
DEVICE f64 as_f64(u64 v) { return __longlong_as_double((i64)v); }

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
// Barriers 1 to 15 of a block for `threads` threads, a multiple of 32.
DEVICE void barrier_sync(i32 id, i32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void barrier_arrive(i32 id, i32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE u32 shfl(u32 v, i32 from) { return __shfl_sync(0xffffffffu, v, from); }
DEVICE u32 ballot_(bool v) { return __ballot_sync(0xffffffffu, v); }
// The largest of a warp's values, in every lane.
DEVICE u32 most_of_warp(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
DEVICE i32 popcount(u32 v) { return __popc(v); }
DEVICE i32 leading_zeros(u32 v) { return __clz((i32)v); }

DEVICE u32 atomic_add(u32* at, u32 v) { return atomicAdd(at, v); }
DEVICE u64 atomic_add(u64* at, u64 v) { return atomicAdd(at, v); }
DEVICE u32 atomic_max(u32* at, u32 v) { return atomicMax(at, v); }
DEVICE u64 atomic_max(u64* at, u64 v) { return atomicMax(at, v); }
DEVICE u32 atomic_or(u32* at, u32 v) { return atomicOr(at, v); }
// Of those that add to one counter in device memory this way: what a thread (and whoever it had a barrier with since) wrote before is
// seen after every later add, by that thread and whoever has a barrier with it. Lighter than fences around an add.
DEVICE u32 atomic_add_ordered(u32* at, u32 v) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(v) : "memory");
  return old;
}
// What was written before another block's atomic_add_ordered to `at` is seen after this has seen `value` or more there.
DEVICE void await_device(const u32* at, u32 value) {
  u32 found;
  for (;;) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    if (found >= value) return;
    asm volatile("nanosleep.u32 64;");
  }
}
// Blocks of a grid that all run at once: what a thread (and whoever it had a barrier with) wrote before it arrived is seen by whoever has
// waited for `value` arrivals, and by whoever it has a barrier with then.
DEVICE void grid_arrive(u32* at) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory"); }
DEVICE void grid_wait(const u32* at, u32 value) {
  u32 found;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
  while (found < value);
}
DEVICE void fence_device() { __threadfence(); }
DEVICE void fence_block() { __threadfence_block(); }
// A number in shared memory that only grows: what was written before publish_ is seen after await_ has seen `value` or more.
#if SHOW_ORDERS
DEVICE void publish_(u32* at, u32 value) {
  __threadfence_block();
  atomicMax(at, value);
}
DEVICE void await_(const u32* at, u32 value) {
  while (atomicAdd((u32*)at, 0u) < value) {}
  __threadfence_block();
}
#else
DEVICE void publish_(u32* at, u32 value) { asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(at)), "r"(value) : "memory"); }
DEVICE void await_(const u32* at, u32 value) {
  u32 found;
  do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(found) : "r"(shared_address(at)) : "memory");
  while (found < value);
}
#endif

DEVICE f32 add(f32 a, f32 b) { return __fadd_rn(a, b); }
DEVICE f32 sub(f32 a, f32 b) { return __fsub_rn(a, b); }
DEVICE f32 mul(f32 a, f32 b) { return __fmul_rn(a, b); }
DEVICE f32 fma_(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEVICE f32 div(f32 a, f32 b) { return __fdiv_rn(a, b); }
DEVICE f32 sqrt_(f32 a) { return __fsqrt_rn(a); }
DEVICE f64 add(f64 a, f64 b) { return __dadd_rn(a, b); }
DEVICE f64 sub(f64 a, f64 b) { return __dsub_rn(a, b); }
DEVICE f64 mul(f64 a, f64 b) { return __dmul_rn(a, b); }
DEVICE f64 fma_(f64 a, f64 b, f64 c) { return __fma_rn(a, b, c); }
DEVICE f64 div(f64 a, f64 b) { return __ddiv_rn(a, b); }
DEVICE u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }

DEVICE u32 soft_pack_bf16(f32 low, f32 high);
DEVICE u32 native_pack_bf16(f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE u32 native_pack_f16(f32 low, f32 high) {
  u32 r;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
#else
  asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %2; cvt.rn.f16.f32 h, %1; mov.b32 %0, {l, h};}" : "=r"(r) : "f"(high), "f"(low));
#endif
  return r;
}
DEVICE f32 native_f16_to_f32(u16 h) {
  f32 f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
// Byte permute: nibbles of `select` name bytes of b:a, lowest first; with its top bit set a nibble means that byte's sign, eight times
// (not on HIP).
DEVICE u32 prmt(u32 a, u32 b, u32 select) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
  return r;
}
// (a & b) | c in one instruction.
DEVICE u32 and_or(u32 a, u32 b, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// (a ^ b) & c in one instruction.
DEVICE u32 xor_and(u32 a, u32 b, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// c + the sum of products of a's and b's bytes.
DEVICE u32 dot_bytes(u32 a, u32 b, u32 c) {
  u32 r;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// One half of x twice; operands of fma_bf16x2 name halves for nothing.
DEVICE u32 low_twice(u32 x) {
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(r) : "r"(x));
  return r;
}
DEVICE u32 high_twice(u32 x) {
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(r) : "r"(x));
  return r;
}
#if __CUDA_ARCH__ >= 800
// a * b + c on both bf16 halves, one rounding each.
DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {  // the same on f16
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// c += a b: m16n8k16, bf16 in, f32 sums. Fragments as in PTX: a = (row g, k 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8);
// b = (k 2t, column g), (2t + 8, g); c = (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), with g = lane / 4, t = lane % 4.
DEVICE void mma_bf16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma_f16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {  // the same of f16
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// 16 bytes from device to shared memory, in the background of this thread's group.
DEVICE void cp_async16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
// Four 8x8 matrices of bf16 into mma fragments; lane i gives the address of row i % 8 of matrix i / 8.
DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
#endif

DEVICE void load_stream16(const void* at, u32& x, u32& y, u32& z, u32& w) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(at));
}

#if __CUDA_ARCH__ >= 900
// mbarriers in shared memory (u64). A phase completes when `count` arrivals and all expected bytes are in.
DEVICE void bar_init(u64* bar, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count)); }
// After bar_init and before the first bulk copy, by the thread that initialised.
DEVICE void bar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Ordinary shared-memory stores before it are seen by bulk copies and wgmma after it.
DEVICE void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// One arrival that announces `bytes` more.
DEVICE void bar_expect(u64* bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
DEVICE void bar_arrive(u64* bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory"); }
// Wait for the phase of this parity (0 for the first) to be over.
DEVICE void bar_wait(u64* bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra WAIT;\n}"
               ::"r"(shared_address(bar)), "r"(parity) : "memory");
}
// `bytes` (a multiple of 16, both addresses too) into shared memory; counts on `bar`.
DEVICE void bulk_load(void* to, const void* from, u32 bytes, u64* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
// Wait until the grid before this one in the stream has written everything; let the next one start.
DEVICE void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
DEVICE void pdl_wait() {}
DEVICE void pdl_launch() {}
#endif

DEVICE void trap(const char*) { asm volatile("trap;"); }
