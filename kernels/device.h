// What every kernel builds on: the same names for CUDA (NVRTC), HIP (clang, hiprtc) and the host build.
//
// A kernel includes this header and our own ones alone: no vendor header is needed on any target. All shared memory is
// dynamic (`shared_memory()`), all reductions are 32 lanes wide, every float operation that a result depends on
// goes through add, sub, mul, fma_, div, sqrt_, which round to nearest even and are never contracted.
//
//   HAS_MMA    mma_bf16, mma_f16: m16n8k16 with the PTX fragment layout (NVIDIA from sm_80, host; AMD by shuffles and fma)
//   HAS_WMMA   wmma_bf16: 16x16x16 (gfx11, gfx12)
//   HAS_BULK   mbarriers and bulk copies into shared memory (NVIDIA from sm_90, host)
//   HAS_WGMMA  warpgroup products (sm_90a, host); wgmma.h
//   HAS_PDL    a grid may start while the one before it ends (NVIDIA from sm_90)
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

#define WARP 32

// 1: orders are shown to NVIDIA's racecheck (tests/kernels/compute_sanitizer.py), which takes an order between two threads from barriers
// to which both come. It follows neither lanes over sync_warp and one of them on to an mbarrier, nor a number in shared memory. So
// every lane arrives at mbarriers, numbers change by atomic operations, and mbarriers stand beside them. Nothing else differs.
#ifndef SHOW_ORDERS
#define SHOW_ORDERS 0
#endif

#if defined(LUCE_HOST)
#include "device_host.h"
#elif defined(__HIP__) || defined(__HIPCC_RTC__)
#include "device_hip.h"
#else
#include "device_cuda.h"
#endif

struct alignas(8) u32x2 { u32 x, y; };
struct alignas(16) u32x4 { u32 x, y, z, w; };
struct alignas(8) f32x2 { f32 x, y; };
struct alignas(16) f32x4 { f32 x, y, z, w; };

DEVICE i32 lane() { return thread() & (WARP - 1); }
DEVICE i32 warp() { return thread() / WARP; }

DEVICE f32 shfl(f32 v, i32 from) { return as_f32(shfl(as_u32(v), from)); }
DEVICE i32 shfl(i32 v, i32 from) { return (i32)shfl((u32)v, from); }
DEVICE u64 shfl(u64 v, i32 from) { return ((u64)shfl((u32)(v >> 32), from) << 32) | shfl((u32)v, from); }
template <class T> DEVICE T shfl_xor(T v, i32 mask) { return shfl(v, lane() ^ mask); }
// Lane i gets the value of lane i + delta; the last `delta` lanes their own.
template <class T> DEVICE T shfl_down(T v, i32 delta) { i32 from = lane() + delta; return shfl(v, from < WARP ? from : lane()); }

#if HAS_BULK
#define WARP_ARRIVALS (SHOW_ORDERS ? WARP : 1)
// What this warp did before is done: WARP_ARRIVALS arrivals.
DEVICE void bar_arrive_warp(u64* bar) {
  sync_warp();
  if (SHOW_ORDERS || lane() == 0) bar_arrive(bar);
}
#define SHOWN_BARS 64  // beside numbers, with SHOW_ORDERS, at the end of a launch's shared memory (tests/kernels/shown_orders.py)
DEVICE u64* shown_bar(i32 index) {
  if (index >= SHOWN_BARS) trap("more orders to show than there are barriers for them");
  return (u64*)(shared_memory() + shared_bytes()) - SHOWN_BARS + index;
}
#endif

template <class T> DEVICE T min_(T a, T b) { return b < a ? b : a; }
template <class T> DEVICE T max_(T a, T b) { return a < b ? b : a; }
DEVICE i32 ceil_div(i32 a, i32 b) { return (a + b - 1) / b; }

// One 16-byte load that passes through neither L1 nor, for long, L2: weights and caches that are read once a step.
DEVICE u32x4 load_stream(const void* at) { u32x4 v; load_stream16(at, v.x, v.y, v.z, v.w); return v; }

#include "numbers.h"
#include "operands.h"
#include "maths.h"
