// The tree of a product with a small float32 matrix, without matrix instructions: a lane sums k = 64 j + 2 lane + {0, 1} in ascending order by
// fused multiply-adds, and lanes meet in one fixed tree.
#pragma once
#include "activation.h"

#define MATVEC_STEP 64  // k that a warp reads at once

// sums[r][o] = activations first + r times row out + o (at most n - 1) of W [n][a.depth], in every lane. AT_ONCE: steps whose weights are
// loaded before the first is used; which changes no bit.
template <int ROWS_AT_ONCE, int OUTPUTS_AT_ONCE, int AT_ONCE>
DEVICE void matvec_sums(const Activations& a, i32 first, const f32* RESTRICT w, i32 out, i32 n, f32 (&sums)[ROWS_AT_ONCE][OUTPUTS_AT_ONCE]) {
  for (i32 from = 2 * lane(); from < a.depth; from += AT_ONCE * MATVEC_STEP) {
    f32x2 factors[AT_ONCE][OUTPUTS_AT_ONCE];
    UNROLL
    for (int step = 0; step < AT_ONCE; step++) {
      const i32 k = from + step * MATVEC_STEP;
      UNROLL
      for (int o = 0; o < OUTPUTS_AT_ONCE; o++)
        if (AT_ONCE <= 4 || k < a.depth) factors[step][o] = *(const f32x2*)(w + (i64)min_(out + o, n - 1) * a.depth + k);
    }
    UNROLL
    for (int step = 0; step < AT_ONCE; step++) {  // depth is a multiple of 256
      const i32 k = from + step * MATVEC_STEP;
      if (AT_ONCE > 4 && k >= a.depth) break;
      UNROLL
      for (int r = 0; r < ROWS_AT_ONCE; r++) {
        const u32 pair = *(const u32*)(a.at + activation_index(a, first + r, k));
        UNROLL
        for (int o = 0; o < OUTPUTS_AT_ONCE; o++) {
          sums[r][o] = fma_(bf16_low(pair), factors[step][o].x, sums[r][o]);
          sums[r][o] = fma_(bf16_high(pair), factors[step][o].y, sums[r][o]);
        }
      }
    }
  }
  UNROLL
  for (int r = 0; r < ROWS_AT_ONCE; r++) {
    UNROLL
    for (int o = 0; o < OUTPUTS_AT_ONCE; o++) {
      UNROLL
      for (int lanes = 16; lanes > 0; lanes /= 2) sums[r][o] = add(sums[r][o], shfl_xor(sums[r][o], lanes));
    }
  }
}
