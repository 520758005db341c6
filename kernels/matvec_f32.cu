// A small matrix of float32 times activations, without matrix instructions: y[row, n] = sum over k of x[row, k] W[n, k].
//
// A lane sums k = 64 j + 2 lane + {0, 1} in ascending order by fused multiply-adds, and lanes meet in one fixed tree. That ROWS
// activations and OUTPUTS rows of W share what a warp reads changes no bit.
#include "activation.h"

#ifndef ROWS
#error "ROWS: activations of a warp; their buffer holds a multiple of it"
#endif
#ifndef OUTPUTS
#error "OUTPUTS: rows of W of a warp"
#endif
#ifndef BESIDE
#define BESIDE 0   // 1: beside the grid before it, which lets this one start when x is there, and does not write it
#endif
#define WARPS 4
#define STEP 64        // k that a warp reads at once
#define AT_ONCE 4      // of those steps; K is a multiple of 256

// x: activations of x_rows rows in tiles of x_tile (0: step layout), `depth` values each. W [n][depth], zeros behind K. y f32
// [.][y_stride]: rows below `rows` and columns below n are written. Grid: WARPS * OUTPUTS columns, ROWS rows.
LUCE_KERNEL_RESIDENT(matvec_f32, WARPS * WARP, BESIDE ? 6 : 1)
(u16* x, i32 x_rows, i32 x_tile, i32 depth, const f32* RESTRICT w, i32 n, f32* y, i32 rows, i32 y_stride) {
  const Activations a = {x, x_rows, x_tile, depth};
  const i32 out = (block_x() * WARPS + warp()) * OUTPUTS, first = block_y() * ROWS;
  pdl_launch();
  if (!BESIDE) pdl_wait();
  if (out < n) {
    f32 sums[ROWS][OUTPUTS] = {};
    for (i32 from = 2 * lane(); from < depth; from += AT_ONCE * STEP) {
      UNROLL
      for (int step = 0; step < AT_ONCE; step++) {
        const i32 k = from + step * STEP;
        f32x2 factors[OUTPUTS];
        UNROLL
        for (int o = 0; o < OUTPUTS; o++) factors[o] = *(const f32x2*)(w + (i64)min_(out + o, n - 1) * depth + k);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          const u32 pair = *(const u32*)(a.at + activation_index(a, first + r, k));
          UNROLL
          for (int o = 0; o < OUTPUTS; o++) {
            sums[r][o] = fma_(bf16_low(pair), factors[o].x, sums[r][o]);
            sums[r][o] = fma_(bf16_high(pair), factors[o].y, sums[r][o]);
          }
        }
      }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int o = 0; o < OUTPUTS; o++) {
        f32 sum = sums[r][o];
        UNROLL
        for (int lanes = 16; lanes > 0; lanes /= 2) sum = add(sum, shfl_xor(sum, lanes));
        if (lane() == 0 && first + r < rows && out + o < n) y[(i64)(first + r) * y_stride + out + o] = sum;
      }
    }
  }
  if (BESIDE) pdl_wait();  // who waits for this grid waits for the one before, too
}
LUCE_EXPORT(matvec_f32)
