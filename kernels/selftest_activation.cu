// Stores rows through activation.h, for tests: every width that a producer may have.
#include "activation.h"
#ifndef WIDTH
#error "WIDTH: consecutive values a lane has"
#endif

// x f32 [rows][k]; a block stores a row.
LUCE_KERNEL(selftest_activation, 1024)(const f32* x, u16* to, i32 height, i32 tile, i32 depth, i32 k) {
  Activations a = {to, height, tile, depth};
  i32 row = block_x();
  for (i32 at = thread() * WIDTH; at < ceil_div(depth, WIDTH * block_threads()) * WIDTH * block_threads(); at += block_threads() * WIDTH) {
    f32 v[WIDTH];
    for (i32 i = 0; i < WIDTH; i++) v[i] = at + i < k ? x[(i64)row * k + at + i] : 0.0f;
    store_activations(a, row, at, v, at < depth);
  }
}
LUCE_EXPORT(selftest_activation)
