// Products of a GEMM, f32, to the activations of the next one, value by value, where no epilogue does it: FUNCTION names what.
//
//   ROUND    v + bias (bias may be null)
//   SWIGLU   silu(gate) * up; columns come as 8 gates, the 8 ups of the same indices, 8 gates ... (16-row blocks of weights)
#include "activation.h"
#include "batch.h"

#define ROUND 0
#define SWIGLU 1
#ifndef FUNCTION
#error "FUNCTION"
#endif

// Grid (blocks along the depth, rows). x f32 [.][stride]; width (of the output) a multiple of 8, 0 up to depth behind it. Of
// `rows` rows, or pass->rows if there is a pass.
LUCE_KERNEL(pointwise, 256)(const Pass* pass, i32 rows, const f32* x, i32 stride, const f32* RESTRICT bias, i32 width,
                            u16* out, i32 out_rows, i32 tile, i32 depth) {
  pdl_wait();
  pdl_launch();
  i32 r = block_y();
  if (r >= (pass ? pass->rows : rows)) return;
  const f32* row = x + (i64)r * stride;
  Activations to = {out, out_rows, tile, depth};
  for (i32 start = block_x() * 8 * block_threads(); start < depth; start += grid_x() * 8 * block_threads()) {
    i32 k = start + 8 * thread();
    f32 y[8] = {};
    if (k < width)
      for (i32 j = 0; j < 8; j++)
        y[j] = FUNCTION == SWIGLU ? mul(silu_(row[2 * k + j]), row[2 * k + 8 + j]) : bias ? add(row[k + j], bias[k + j]) : row[k + j];
    store_activations<8>(to, r, k, y, k < depth);
  }
}
LUCE_EXPORT(pointwise)
