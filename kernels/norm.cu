// Norms: f32 rows to the bf16 activations that a weight GEMM reads.
//
// The threads of a block depend on the row's length alone (norm_threads in luce/compute/norms.py), so a row's sum is one
// fixed tree: eight consecutive values a thread in order, lanes of a warp, warps.
#include "activation.h"
#include "batch.h"

#define NORM_THREADS 1024

// Sum over the block by one fixed tree, in every thread; `room`: 4 bytes a warp.
DEVICE f32 block_sum(f32 v, f32* room) {
  v = warp_sum(v);
  sync_block();
  if (lane() == 0) room[warp()] = v;
  sync_block();
  return warp_sum(lane() < block_threads() / WARP ? room[lane()] : 0.0f);
}

DEVICE void load8(const f32* at, f32 (&v)[8]) {
  f32x4 a = *(const f32x4*)at, b = *(const f32x4*)(at + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}

// out row r = x / sqrt(mean(x^2) + eps) * scale of row r of x f32 [.][width], or with `samples` of row samples[r].row.
// Grid (rows of the layout, or fewer), norm_threads(width) threads, 128 bytes of shared memory; width a multiple of 8, at most 8,192.
// Rows at or past pass->rows (pass->samples) are left alone.
DEVICE void norm_row(const Pass* pass, const Sample* samples, const f32* RESTRICT x, const f32* RESTRICT scale, f32 eps, i32 width,
                     Activations to, f32* wide) {
  f32* room = (f32*)shared_memory();
  i32 r = block_x(), k = 8 * thread();
  f32 factor[8], v[8] = {};
  bool inside = k < width;
  if (inside) load8(scale + k, factor);  // weights do not wait for the kernel before
  pdl_wait();
  pdl_launch();
  if (r >= (samples ? pass->samples : pass->rows)) return;
  const f32* row = x + (i64)(samples ? samples[r].row : r) * width;
  f32 sum = 0.0f;
  if (inside) load8(row + k, v);
  UNROLL
  for (i32 j = 0; j < 8; j++) sum = fma_(v[j], v[j], sum);
  sum = block_sum(sum, room);
  f32 inverse = div(1.0f, sqrt_(add(div(sum, (f32)width), eps)));
  UNROLL
  for (i32 j = 0; j < 8; j++) v[j] = inside ? mul(mul(v[j], inverse), factor[j]) : 0.0f;
  store_activations<8>(to, r, k, v, k < to.depth);
  if (wide && inside) {
    f32* at = wide + (i64)r * width + k;
    *(f32x4*)at = {v[0], v[1], v[2], v[3]};
    *(f32x4*)(at + 4) = {v[4], v[5], v[6], v[7]};
  }
}
LUCE_KERNEL_RESIDENT(rms_norm, NORM_THREADS, 2)(const Pass* pass, const Sample* samples, const f32* x, const f32* scale, f32 eps, i32 width, u16* out,
                                    i32 out_rows, i32 tile, i32 depth) {
  norm_row(pass, samples, x, scale, eps, width, {out, out_rows, tile, depth}, nullptr);
}
LUCE_EXPORT(rms_norm)

// The same, and the rows before they are rounded to bf16: wide f32 [.][width], for a router.
LUCE_KERNEL_RESIDENT(rms_norm_wide, NORM_THREADS, 2)(const Pass* pass, const Sample* samples, const f32* x, const f32* scale, f32 eps, i32 width, u16* out,
                                         i32 out_rows, i32 tile, i32 depth, f32* wide) {
  norm_row(pass, samples, x, scale, eps, width, {out, out_rows, tile, depth}, wide);
}
LUCE_EXPORT(rms_norm_wide)

// LayerNorm of rows x f32 [rows * group][width], `group` of them side by side in a row of the output (the merger's 2 x 2
// patches). Grid (rows), any number of threads up to 1024 that is the same for one width; 128 + 8 group bytes of shared memory.
LUCE_KERNEL(layer_norm, NORM_THREADS)(const f32* RESTRICT x, const f32* RESTRICT weight, const f32* RESTRICT bias, f32 eps, i32 width,
                                      i32 group, u16* out, i32 out_rows, i32 tile, i32 depth) {
  f32 *room = (f32*)shared_memory(), *mean = room + 32, *inverse = mean + group;
  pdl_wait();
  pdl_launch();
  const f32* rows = x + (i64)block_x() * group * width;
  f32 scale = div(1.0f, (f32)width), v[8];
  for (i32 g = 0; g < group; g++) {
    const f32* row = rows + (i64)g * width;
    f32 sum = 0.0f, square = 0.0f;
    for (i32 k = 8 * thread(); k < width; k += 8 * block_threads()) {
      load8(row + k, v);
      UNROLL
      for (i32 j = 0; j < 8; j++) sum = add(sum, v[j]);
    }
    f32 middle = mul(block_sum(sum, room), scale);
    for (i32 k = 8 * thread(); k < width; k += 8 * block_threads()) {
      load8(row + k, v);
      UNROLL
      for (i32 j = 0; j < 8; j++) {
        f32 off = sub(v[j], middle);
        square = fma_(off, off, square);
      }
    }
    square = block_sum(square, room);
    if (thread() == 0) {
      mean[g] = middle;
      inverse[g] = div(1.0f, sqrt_(add(mul(square, scale), eps)));
    }
  }
  sync_block();
  Activations to = {out, out_rows, tile, depth};
  for (i32 start = 0; start < depth; start += 8 * block_threads()) {
    i32 k = start + 8 * thread(), g = k / width, at = k - g * width;
    f32 y[8] = {};
    if (g < group) {
      load8(rows + k, v);
      UNROLL
      for (i32 j = 0; j < 8; j++) y[j] = add(mul(mul(sub(v[j], mean[g]), inverse[g]), weight[at + j]), bias[at + j]);
    }
    store_activations<8>(to, block_x(), k, y, k < depth);
  }
}
LUCE_EXPORT(layer_norm)
