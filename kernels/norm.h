// The arithmetic of RMS norm: eight consecutive values a thread in order, the lanes of a warp, then the sums of a row's warps (256
// values each) in the lanes of one. Whoever makes these steps in this order gives a row the same bits.
#pragma once
#include "device.h"

DEVICE void load8(const f32* at, f32 (&v)[8]) {
  f32x4 a = *(const f32x4*)at, b = *(const f32x4*)(at + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}

DEVICE f32 square_sum(const f32 (&v)[8]) {
  f32 sum = 0.0f;
  UNROLL
  for (i32 j = 0; j < 8; j++) sum = fma_(v[j], v[j], sum);
  return sum;
}
DEVICE void norm_values(f32 (&v)[8], f32 sum, const f32 (&factor)[8], f32 eps, i32 width) {
  f32 inverse = div(1.0f, sqrt_(add(div(sum, (f32)width), eps)));
  UNROLL
  for (i32 j = 0; j < 8; j++) v[j] = mul(mul(v[j], inverse), factor[j]);
}
