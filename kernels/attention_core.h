// Pieces of every softmax of attention, of the text model and of the vision tower. Macro: HEAD_DIM.
#pragma once
#include "quick_maths.h"

#if !defined(HEADS) || !defined(HEAD_DIM)
#error "attention needs HEADS, HEAD_DIM"
#endif

#define CORE_BYTES 128  // a core matrix: 8 rows of 8 bf16

// The larger number; NaN loses.
DEVICE f32 larger(f32 a, f32 b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return __builtin_fmaxf(a, b);
#endif
}

#define MINUS_INFINITY as_f32(0xff800000u)
#define NOT_A_NUMBER as_f32(0x7fc00000u)

// c of the tree: scores to exponents of 2.
DEVICE f32 score_scale() { return div(1.44269504f, sqrt_((f32)HEAD_DIM)); }

// 2^x for x <= 0, relative error 3e-6 (a probability is rounded to bf16 anyway) from 2^-125 on; exactly 1 at 0, exactly 0 at and
// below 2^-127 and for NaN.
DEVICE f32 exp2_below(f32 x) {
  x = larger(x, -127.0f);
#if defined(__CUDA_ARCH__)
  return quick_exp2(x);
#else
  f32 n = add(x, 12582912.0f), r = sub(x, sub(n, 12582912.0f));
  f32 p = 9.58285294e-3f;
  p = fma_(p, r, 5.59064262e-2f);
  p = fma_(p, r, 2.40240991e-1f);
  p = fma_(p, r, 6.93124175e-1f);
  p = fma_(p, r, 1.0f);
  return as_f32(as_u32(p) + (as_u32(n) << 23));
#endif
}
// 2^(c (from - to)), the factor that sums relative to `from` take on when `to` is the maximum. Exactly 1 if equal; both may
// be -infinity.
DEVICE f32 rescale(f32 from, f32 to, f32 c) { return exp2_below(mul(sub(from, to == MINUS_INFINITY ? 0.0f : to), c)); }

// p of the tree; offset is -c m'. Of a hidden score, -infinity, exactly 0.
DEVICE f32 probability(f32 score, f32 c, f32 offset) { return exp2_below(fma_(score, c, offset)); }

// Four core matrices as fragments: lane i names row i % 8 of matrix i / 8. From shared memory where tiles are staged there.
#if HAS_BULK
#define fragments(r, row) ldmatrix_x4(r, row)
#else
DEVICE void fragments(u32 (&r)[4], const u8* row) {
  u64 mine = (u64)row;
  UNROLL for (i32 i = 0; i < 4; i++) r[i] = ((const u32*)shfl(mine, i * 8 + lane() / 4))[lane() % 4];
}
#endif

DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1); }

// `threads` threads meet, by a named barrier where there is one; elsewhere these are all of the block.
DEVICE void meet(i32 id, i32 threads) {
#if HAS_BULK
  barrier_sync(id, threads);
#else
  sync_block();
#endif
}

// Sum over the four lanes of a row of fragments.
DEVICE f32 quad_sum(f32 v) {
  v = add(v, shfl_xor(v, 1));
  return add(v, shfl_xor(v, 2));
}
DEVICE f32 quad_max(f32 v) {
  v = larger(v, shfl_xor(v, 1));
  return larger(v, shfl_xor(v, 2));
}
