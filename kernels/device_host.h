// The host build: a block's threads run on the CPU, so that every kernel can be tested without a GPU. Included by device.h.
//
// Two ways to run threads, chosen at compile time. Fibers (the default) are quick and run in one fixed order. With
// LUCE_HOST_THREADS each is a thread of the system, so that the address and thread sanitizers see what races and what
// strays; keep those cases small. Blocks (with CLUSTER: clusters of them) run one after another, so a block that waits for a later one is a deadlock; it
// is reported, as is every trap. Shared memory starts as NaN in every block; a bulk copy poisons its destination at
// once and delivers when somebody waits for it, so that nobody can read too early unnoticed.
//
// What threads do with each other is in host_runtime.cpp, which is compiled once. Tests compile hundreds of modules and run
// little in each: so nothing of the standard C++ library here, whose headers took a third of that time.
#pragma once

#include <string.h>

#define DEVICE static inline
#define METHOD inline
#define DEVICE_CALL static inline
#define LUCE_KERNEL(name, threads)                       \
  static const int name##_max_threads = threads;         \
  static void name
#define LUCE_KERNEL_RESIDENT(name, threads, blocks) LUCE_KERNEL(name, threads)
#define LUCE_KERNEL_CLUSTER(name, threads, blocks, cluster) LUCE_KERNEL(name, threads)
// The entry that the host device calls: 0, or what went wrong.
#define LUCE_EXPORT(name)                                                                        \
  extern "C" __attribute__((visibility("default"))) const char* name##_host(const i32* shape, i64 shared, void** arguments) { \
    return luce_host::launch(name, name##_max_threads, shape, shared, arguments);                 \
  }
#define RESTRICT __restrict__
#define UNROLL
#define NO_UNROLL
#define HAS_MMA 1
#define HAS_WMMA 0
#define HAS_BULK 1
#define HAS_WGMMA 1
#define HAS_PDL 1

#ifdef LUCE_HOST_THREADS
#define LUCE_LOCAL __thread
#else
#define LUCE_LOCAL
#endif

namespace luce_host {

#if defined(TOGETHER)  // blocks of the whole grid, which wait for each other
constexpr i32 BLOCKS_TOGETHER = TOGETHER;
#elif defined(CLUSTER)
constexpr i32 BLOCKS_TOGETHER = CLUSTER;
#else
constexpr i32 BLOCKS_TOGETHER = 1;
#endif

// The block that runs, or a cluster of them: block `rank` has threads rank * each .. and the rank-th piece of the shared memory.
struct Place {
  i32 threads, each, index[3], grid[3];
  u8* shared;
  i64 shared_bytes, shared_step;
};
extern LUCE_LOCAL Place* block;
extern LUCE_LOCAL i32 current;  // the thread

// What the lanes of a warp show to each other.
struct Payload { u32 words[6][WARP]; };
// B of a matrix instruction in shared memory: core matrices of 8 columns x 8 k (wgmma.h).
struct Tile { const u8* at; u32 k_stride, column_stride; };

[[noreturn]] void fail(const char* what);
void meet(i32 id, i32 threads, bool wait);
void meet_cluster();
// All lanes of a warp show a word or two to each other; valid until the lane's next exchange but one.
const u32* exchange(u32 mine);
const Payload& exchange(u32 mine, u32 more);
// d = (keep ? d : 0) + a b: a[16 x 16] in words 0 to 3, b[16 x columns] in words 4 and 5 or in `tile`; fragments of m16n8k16.
void multiply(f32* d, const u32 (&mine)[6], i32 columns, bool keep, const Tile* tile, bool half);
// Others run on; `changed`: what one of them may wait for is there now.
void let_others_run();
void changed();
void bar_init(u64* bar, u32 count);
void bar_expect(u64* bar, u32 bytes);
void bar_bytes(u64* bar, u32 bytes);  // so many came otherwise than by bulk_load
void bar_wait(u64* bar, u32 parity);
void bulk_load(void* to, const void* from, u32 bytes, u64* bar);
void bulk_store(f32* to, const f32* from, u32 bytes, bool adds);
void bulk_store_wait();
const char* launch(void (*run)(const void*), const void* call, i32 most, i32 together, const i32* shape, i64 shared);

template <class... Arguments> struct Call {
  void (*kernel)(Arguments...);
  void** arguments;
  template <class Value> Value next() { return *(Value*)*arguments++; }
};
struct Run {
  template <class... Arguments> Run(void (*kernel)(Arguments...), Arguments... values) { kernel(values...); }
};
template <class... Arguments> void run(const void* data) {
  Call<Arguments...> call = *(const Call<Arguments...>*)data;
  Run{call.kernel, call.template next<Arguments>()...};  // braces: from left to right
}
template <class... Arguments>
const char* launch(void (*kernel)(Arguments...), i32 most, const i32* shape, i64 shared, void** arguments) {
  Call<Arguments...> call = {kernel, arguments};
  return launch(run<Arguments...>, &call, most, BLOCKS_TOGETHER, shape, shared);
}

}  // namespace luce_host

DEVICE i32 luce_rank() { return luce_host::BLOCKS_TOGETHER == 1 ? 0 : luce_host::current / luce_host::block->each; }
DEVICE i32 thread() { return luce_host::BLOCKS_TOGETHER == 1 ? luce_host::current : luce_host::current % luce_host::block->each; }
DEVICE i32 block_threads() { return luce_host::block->each; }
DEVICE i32 block_x() { return luce_host::block->index[0] + luce_rank(); }
DEVICE i32 block_y() { return luce_host::block->index[1]; }
DEVICE i32 block_z() { return luce_host::block->index[2]; }
DEVICE i32 grid_x() { return luce_host::block->grid[0]; }
DEVICE i32 grid_y() { return luce_host::block->grid[1]; }
DEVICE i32 grid_z() { return luce_host::block->grid[2]; }
DEVICE u8* shared_memory() { return luce_host::block->shared + luce_rank() * luce_host::block->shared_step; }
DEVICE i32 shared_bytes() { return (i32)luce_host::block->shared_bytes; }
DEVICE void shared_ends(const void* at) {
  if ((const u8*)at > shared_memory() + luce_host::block->shared_bytes) luce_host::fail("too little shared memory for what the kernel lays out");
}

DEVICE u32 as_u32(f32 v) { u32 r; memcpy(&r, &v, 4); return r; }
DEVICE f32 as_f32(u32 v) { f32 r; memcpy(&r, &v, 4); return r; }
DEVICE u64 as_u64(f64 v) { u64 r; memcpy(&r, &v, 8); return r; }
DEVICE f64 as_f64(u64 v) { f64 r; memcpy(&r, &v, 8); return r; }

DEVICE void sync_block() { luce_host::meet(0, luce_host::block->each, true); }
DEVICE void sync_warp() { luce_host::exchange(0); }
DEVICE void barrier_sync(i32 id, i32 threads) { luce_host::meet(id, threads, true); }
DEVICE void barrier_arrive(i32 id, i32 threads) { luce_host::meet(id, threads, false); }
DEVICE u32 shfl(u32 v, i32 from) { return luce_host::exchange(v)[from & (WARP - 1)]; }
DEVICE u32 ballot_(bool v) {
  const u32* all = luce_host::exchange(v);
  u32 bits = 0;
  for (int i = 0; i < WARP; i++) bits |= all[i] << i;
  return bits;
}
DEVICE u32 most_of_warp(u32 v) {
  for (int step = 16; step > 0; step >>= 1) {
    u32 other = shfl(v, (int)(thread() & 31) ^ step);
    v = other > v ? other : v;
  }
  return v;
}
DEVICE i32 popcount(u32 v) { return __builtin_popcount(v); }
DEVICE i32 leading_zeros(u32 v) { return v ? __builtin_clz(v) : 32; }

DEVICE u32 atomic_add(u32* at, u32 v) { return __atomic_fetch_add(at, v, __ATOMIC_ACQ_REL); }
DEVICE u64 atomic_add(u64* at, u64 v) { return __atomic_fetch_add(at, v, __ATOMIC_ACQ_REL); }
template <class T> DEVICE T luce_atomic_max(T* at, T v) {
  T old = __atomic_load_n(at, __ATOMIC_ACQUIRE);
  while (old < v && !__atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
  return old;
}
DEVICE u32 atomic_max(u32* at, u32 v) { return luce_atomic_max(at, v); }
DEVICE u64 atomic_max(u64* at, u64 v) { return luce_atomic_max(at, v); }
DEVICE u32 atomic_or(u32* at, u32 v) { return __atomic_fetch_or(at, v, __ATOMIC_ACQ_REL); }
DEVICE u32 atomic_add_ordered(u32* at, u32 v) { return atomic_add(at, v); }
// Grids and blocks run one after the other: a value that is not there yet never comes.
DEVICE void trap(const char* what);
DEVICE void await_device(const u32* at, u32 value) {
  if (__atomic_load_n(at, __ATOMIC_ACQUIRE) < value) trap("a block waits for one that runs after it");
}
DEVICE void grid_arrive(u32* at) {
  atomic_add(at, 1);
  luce_host::changed();
}
DEVICE void grid_wait(const u32* at, u32 value) {
  while (__atomic_load_n(at, __ATOMIC_ACQUIRE) < value) luce_host::let_others_run();
}
DEVICE void fence_device() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void fence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void publish_(u32* at, u32 value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
  luce_host::changed();
}
DEVICE void await_(const u32* at, u32 value) {
  while (__atomic_load_n(at, __ATOMIC_ACQUIRE) < value) luce_host::let_others_run();
}

// Compiled with -ffp-contract=off.
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
DEVICE f32 soft_f16_to_f32(u16 h);
DEVICE u32 native_pack_bf16(f32 low, f32 high) { return soft_pack_bf16(low, high); }
DEVICE f32 native_f16_to_f32(u16 h) { return soft_f16_to_f32(h); }
DEVICE u32 soft_pack_f16(f32 low, f32 high);
DEVICE u32 native_pack_f16(f32 low, f32 high) { return soft_pack_f16(low, high); }
DEVICE u32 prmt(u32 a, u32 b, u32 select) {
  u64 bytes = ((u64)b << 32) | a;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 byte = (u32)(bytes >> 8 * (select >> 4 * i & 7) & 0xff);
    if (select >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << 8 * i;
  }
  return r;
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
  // In double the product is exact and the sum is rounded far below bf16's last place.
  f64 low = (f64)as_f32(a << 16) * as_f32(b << 16) + as_f32(c << 16);
  f64 high = (f64)as_f32(a & 0xffff0000u) * as_f32(b & 0xffff0000u) + as_f32(c & 0xffff0000u);
  return soft_pack_bf16((f32)low, (f32)high);
}
// To f32, and where that is not exact its last bit is set, so that rounding once more to fewer bits is rounding once.
DEVICE f32 luce_odd_f32(f64 v) {
  f32 near = (f32)v;
  if ((f64)near == v || v != v) return near;
  u32 bits = as_u32(near);
  if (__builtin_fabs((f64)near) > __builtin_fabs(v)) bits--;
  return as_f32(bits | 1u);
}
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
  f64 low = (f64)soft_f16_to_f32((u16)a) * soft_f16_to_f32((u16)b) + soft_f16_to_f32((u16)c);
  f64 high = (f64)soft_f16_to_f32((u16)(a >> 16)) * soft_f16_to_f32((u16)(b >> 16)) + soft_f16_to_f32((u16)(c >> 16));
  return soft_pack_f16(luce_odd_f32(low), luce_odd_f32(high));
}
DEVICE void mma_bf16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  luce_host::multiply(c, {a0, a1, a2, a3, b0, b1}, 8, true, nullptr, false);
}
DEVICE void mma_f16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  luce_host::multiply(c, {a0, a1, a2, a3, b0, b1}, 8, true, nullptr, true);
}
DEVICE void cp_async16(void* to, const void* from) { memcpy(to, from, 16); }
DEVICE void cp_async_commit() {}
template <int PENDING> DEVICE void cp_async_wait() {}
DEVICE void luce_ldmatrix(u32 (&r)[4], const void* row, bool transposed) {
  u64 address = (u64)row;
  const luce_host::Payload& all = luce_host::exchange((u32)address, (u32)(address >> 32));
  int lane = luce_host::current % WARP;
  for (int matrix = 0; matrix < 4; matrix++) {
    u16 pair[2];
    for (int i = 0; i < 2; i++) {
      int y = lane / 4, x = lane % 4 * 2 + i;
      int line = matrix * 8 + (transposed ? x : y);
      pair[i] = ((const u16*)(all.words[0][line] | (u64)all.words[1][line] << 32))[transposed ? y : x];
    }
    r[matrix] = pair[0] | (u32)pair[1] << 16;
  }
}
DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row) { luce_ldmatrix(r, row, false); }
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row) { luce_ldmatrix(r, row, true); }
DEVICE void load_stream16(const void* at, u32& x, u32& y, u32& z, u32& w) {
  const u32* words = (const u32*)at;
  x = words[0], y = words[1], z = words[2], w = words[3];
}

DEVICE void bar_init(u64* bar, u32 count) { luce_host::bar_init(bar, count); }
DEVICE void bar_init_fence() {}
DEVICE void proxy_fence() {}
DEVICE void bar_expect(u64* bar, u32 bytes) { luce_host::bar_expect(bar, bytes); }
DEVICE void bar_arrive(u64* bar) { bar_expect(bar, 0); }
DEVICE void bulk_load(void* to, const void* from, u32 bytes, u64* bar) { luce_host::bulk_load(to, from, bytes, bar); }
DEVICE void bar_wait(u64* bar, u32 parity) { luce_host::bar_wait(bar, parity); }
DEVICE void pdl_wait() {}
DEVICE void pdl_launch() {}
DEVICE void trap(const char* what) { luce_host::fail(what); }
