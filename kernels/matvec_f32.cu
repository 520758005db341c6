// A small matrix of float32 times activations: y[row, n] = sum over k of x[row, k] W[n, k]. A block has ROWS activations and OUTPUTS rows
// of W, its warps take chunks of K in turn; neither changes a bit.
#include "matvec.h"

#ifndef ROWS
#error "ROWS: activations of a block; their buffer holds a multiple of it"
#endif
#ifndef OUTPUTS
#error "OUTPUTS: rows of W of a block"
#endif
#ifndef BESIDE
#define BESIDE 0   // 1: beside the grid before it, which lets this one start when x is there, and does not write it
#endif
#define WARPS (BESIDE ? 4 : 8)
#define STEPS (OUTPUTS == 1 && !(BESIDE && ROWS > 1) ? 16 : 4)  // few registers beside another grid
#define RESULTS (ROWS * OUTPUTS)

// x: activations of x_rows rows in tiles of x_tile (0: step layout), `depth` values each. W [n][depth], zeros behind K. y f32
// [.][y_stride]: rows below `rows` and columns below n are written. Grid: OUTPUTS columns, ROWS rows. Shared memory: RESULTS floats a chunk.
LUCE_KERNEL_RESIDENT(matvec_f32, WARPS * WARP, BESIDE ? 6 : 1)
(u16* x, i32 x_rows, i32 x_tile, i32 depth, const f32* RESTRICT w, i32 n, f32* y, i32 rows, i32 y_stride) {
  const Activations a = {x, x_rows, x_tile, depth};
  const i32 out = block_x() * OUTPUTS, first = block_y() * ROWS, chunks = ceil_div(depth, MATVEC_CHUNK);
  f32* parts = (f32*)shared_memory();
  shared_ends(parts + chunks * RESULTS);
  pdl_launch();
  f32x2 ready[STEPS][OUTPUTS];  // the first chunk's weights, constants: before the wait
  const i32 begin = warp() * MATVEC_CHUNK;
  if (STEPS == 16) matvec_weights(ready, w, out, n, depth, begin, min_(depth, begin + MATVEC_CHUNK));
  if (!BESIDE) pdl_wait();
  for (i32 chunk = warp(); chunk < chunks; chunk += WARPS) {
    f32 sums[ROWS][OUTPUTS];
    if (STEPS == 16 && chunk == warp()) matvec_chunk<STEPS>(a, first, w, out, n, chunk, sums, ready);
    else matvec_chunk<STEPS>(a, first, w, out, n, chunk, sums);
    UNROLL
    for (int i = 0; i < RESULTS; i++)
      if (lane() == i % WARP) parts[chunk * RESULTS + i] = sums[i / OUTPUTS][i % OUTPUTS];
  }
  sync_block();
  for (i32 i = thread(); i < RESULTS; i += WARPS * WARP) {
    f32 sum = 0.0f;
    for (i32 chunk = 0; chunk < chunks; chunk++) sum = add(sum, parts[chunk * RESULTS + i]);
    const i32 row = first + i / OUTPUTS, column = out + i % OUTPUTS;
    if (row < rows && column < n) y[(i64)row * y_stride + column] = sum;
  }
  if (BESIDE) pdl_wait();  // who waits for this grid waits for the one before, too
}
LUCE_EXPORT(matvec_f32)
