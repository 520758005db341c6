// The tree of a product with a small float32 matrix, without matrix instructions. Over a chunk of 1,024 K a lane sums k = 64 j + 2 lane +
// {0, 1} in ascending order by fused multiply-adds, and lanes meet in one fixed tree; chunks are added in ascending order.
#pragma once
#include "activation.h"

#define MATVEC_CHUNK 1024
#define MATVEC_STEP 64     // k that a warp reads at once

// Weights of STEPS steps from k `from` on, below `end`: of rows out, out + 1, ... (at most n - 1) of W [n][depth].
template <int STEPS, int OUTPUTS_AT_ONCE>
DEVICE void matvec_weights(f32x2 (&factors)[STEPS][OUTPUTS_AT_ONCE], const f32* w, i32 out, i32 n, i32 depth, i32 from, i32 end) {
  UNROLL
  for (int step = 0; step < STEPS; step++) {
    const i32 k = from + step * MATVEC_STEP + 2 * lane();
    if (k >= end) break;
    UNROLL
    for (int o = 0; o < OUTPUTS_AT_ONCE; o++) factors[step][o] = *(const f32x2*)(w + (i64)min_(out + o, n - 1) * depth + k);
  }
}

// sums[r][o] = activations first + r times row out + o (at most n - 1) of W [n][a.depth] over one chunk, in every lane. STEPS: whose weights are
// loaded before the first is used, 4 or (all of a chunk's) 16; `ready`: these weights, where they are there.
template <int STEPS, int ROWS_AT_ONCE, int OUTPUTS_AT_ONCE>
DEVICE void matvec_chunk(const Activations& a, i32 first, const f32* w, i32 out, i32 n, i32 chunk, f32 (&sums)[ROWS_AT_ONCE][OUTPUTS_AT_ONCE],
                         const f32x2 (*ready)[OUTPUTS_AT_ONCE] = nullptr) {
  // From one step to the next a lane's activations lie equally far apart in both layouts.
  const i32 begin = chunk * MATVEC_CHUNK, end = min_(a.depth, begin + MATVEC_CHUNK), apart = (a.tile == 0 ? a.rows : a.tile) * MATVEC_STEP;
  const u16* at[ROWS_AT_ONCE];
  UNROLL
  for (int r = 0; r < ROWS_AT_ONCE; r++) {
    at[r] = a.at + activation_index(a, first + r, begin + 2 * lane());
    UNROLL
    for (int o = 0; o < OUTPUTS_AT_ONCE; o++) sums[r][o] = 0.0f;
  }
  for (i32 from = begin; from < end; from += STEPS * MATVEC_STEP) {
    f32x2 factors[STEPS][OUTPUTS_AT_ONCE];
    if (ready == nullptr) matvec_weights(factors, w, out, n, a.depth, from, end);
    UNROLL
    for (int step = 0; step < STEPS; step++) {
      if (STEPS > 4 && from + step * MATVEC_STEP >= end) break;  // K is a multiple of 256
      UNROLL
      for (int r = 0; r < ROWS_AT_ONCE; r++) {
        const u32 pair = *(const u32*)(at[r] + step * apart);
        UNROLL
        for (int o = 0; o < OUTPUTS_AT_ONCE; o++) {
          const f32x2 factor = ready == nullptr ? factors[step][o] : ready[step][o];
          sums[r][o] = fma_(operand_low(pair), factor.x, sums[r][o]);
          sums[r][o] = fma_(operand_high(pair), factor.y, sums[r][o]);
        }
      }
    }
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++) at[r] += STEPS * apart;
  }
  UNROLL
  for (int r = 0; r < ROWS_AT_ONCE; r++) {
    UNROLL
    for (int o = 0; o < OUTPUTS_AT_ONCE; o++) {
      UNROLL
      for (int lanes = 16; lanes > 0; lanes /= 2) sums[r][o] = add(sums[r][o], shfl_xor(sums[r][o], lanes));
      sums[r][o] = times_unit(sums[r][o]);
    }
  }
}
