// A small matrix of float32 times activations: y[row, n] = sum over k of x[row, k] W[n, k]. That ROWS activations and OUTPUTS rows of W share
// what a warp reads changes no bit.
#include "matvec.h"

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
    matvec_sums<ROWS, OUTPUTS, 4>(a, first, w, out, n, sums);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      UNROLL
      for (int o = 0; o < OUTPUTS; o++)
        if (lane() == 0 && first + r < rows && out + o < n) y[(i64)(first + r) * y_stride + out + o] = sums[r][o];
    }
  }
  if (BESIDE) pdl_wait();  // who waits for this grid waits for the one before, too
}
LUCE_EXPORT(matvec_f32)
