// Products of a GEMM, f32, to the activations of the next one, value by value, where no epilogue does it: FUNCTION names what.
//
//   ROUND    v + bias                     (bias may be null, here and below)
//   GELU     gelu, tanh form, of v + bias
//   GELU_ERF the exact one
//   SWIGLU   silu(gate) * up; columns come as 8 gates, the 8 ups of the same indices, 8 gates ... (16-row blocks of weights)
#include "activation.h"
#include "batch.h"

#define ROUND 0
#define GELU 1
#define GELU_ERF 2
#define SWIGLU 3
#ifndef FUNCTION
#error "FUNCTION"
#endif

DEVICE f32 apply(f32 v) { return FUNCTION == GELU ? gelu_tanh_(v) : FUNCTION == GELU_ERF ? gelu_erf_(v) : v; }

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
        y[j] = FUNCTION == SWIGLU ? mul(silu_(row[2 * k + j]), row[2 * k + 8 + j]) : apply(bias ? add(row[k + j], bias[k + j]) : row[k + j]);
    store_activations<8>(to, r, k, y, k < depth);
  }
}
LUCE_EXPORT(pointwise)

// x += y + bias, f32 rows; `table` rows (x = y + bias + table, say position embeddings) are added if it is given. Grid (blocks,
// rows); width a multiple of 4.
LUCE_KERNEL(add_bias, 256)(i32 rows, f32* x, const f32* y, i32 stride, const f32* RESTRICT bias, const f32* RESTRICT table, i32 width) {
  pdl_wait();
  pdl_launch();
  i32 r = block_y();
  if (r >= rows) return;
  for (i32 k = block_x() * block_threads() + thread(); k < width; k += grid_x() * block_threads()) {
    f32 v = y[(i64)r * stride + k];
    if (bias) v = add(v, bias[k]);
    x[(i64)r * width + k] = add(table ? table[(i64)r * width + k] : x[(i64)r * width + k], v);
  }
}
LUCE_EXPORT(add_bias)
