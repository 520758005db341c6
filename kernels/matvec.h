// The tree of a product with a small float32 matrix, without matrix instructions. Over a chunk of 1,024 K a lane sums k = 64 j + 2 lane +
// {0, 1} in ascending order by fused multiply-adds, and lanes meet in one fixed tree; chunks are added in ascending order.
#pragma once
#include "activation.h"

#define MATVEC_CHUNK 1024
#define MATVEC_STEP 64     // k that a warp reads at once
#define MATVEC_AT_ONCE 4   // of those steps, whose weights are loaded before the first is used; K is a multiple of 256

// sums[r][o] = activations first + r times row out + o (at most n - 1) of W [n][a.depth] over one chunk, in every lane.
template <int ROWS_AT_ONCE, int OUTPUTS_AT_ONCE>
DEVICE void matvec_chunk(const Activations& a, i32 first, const f32* w, i32 out, i32 n, i32 chunk, f32 (&sums)[ROWS_AT_ONCE][OUTPUTS_AT_ONCE]) {
  // From one step to the next a lane's activations lie equally far apart in both layouts.
  const i32 begin = chunk * MATVEC_CHUNK, end = min_(a.depth, begin + MATVEC_CHUNK), apart = (a.tile == 0 ? a.rows : a.tile) * MATVEC_STEP;
  const u16* at[ROWS_AT_ONCE];
  UNROLL
  for (int r = 0; r < ROWS_AT_ONCE; r++) at[r] = a.at + activation_index(a, first + r, begin + 2 * lane());
  UNROLL
  for (int r = 0; r < ROWS_AT_ONCE; r++) {
    UNROLL
    for (int o = 0; o < OUTPUTS_AT_ONCE; o++) sums[r][o] = 0.0f;
  }
  for (i32 from = begin + 2 * lane(); from < end; from += MATVEC_AT_ONCE * MATVEC_STEP) {
    f32x2 factors[MATVEC_AT_ONCE][OUTPUTS_AT_ONCE];
    UNROLL
    for (int step = 0; step < MATVEC_AT_ONCE; step++) {
      UNROLL
      for (int o = 0; o < OUTPUTS_AT_ONCE; o++) factors[step][o] = *(const f32x2*)(w + (i64)min_(out + o, n - 1) * a.depth + from + step * MATVEC_STEP);
    }
    UNROLL
    for (int step = 0; step < MATVEC_AT_ONCE; step++) {
      UNROLL
      for (int r = 0; r < ROWS_AT_ONCE; r++) {
        const u32 pair = *(const u32*)(at[r] + step * apart);
        UNROLL
        for (int o = 0; o < OUTPUTS_AT_ONCE; o++) {
          sums[r][o] = fma_(bf16_low(pair), factors[step][o].x, sums[r][o]);
          sums[r][o] = fma_(bf16_high(pair), factors[step][o].y, sums[r][o]);
        }
      }
    }
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++) at[r] += MATVEC_AT_ONCE * apart;
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
