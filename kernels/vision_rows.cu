// Rows of the vision tower that no product writes, as activations in the prefill layout, without sums: patches out of shades or
// numbers, and rows that are normalised.
#include "activation.h"

#define WARPS 8

DEVICE void load8(const f32* at, f32 (&v)[8]) {
  f32x4 a = *(const f32x4*)at, b = *(const f32x4*)(at + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
DEVICE void store8(const Activations& to, i32 row, i32 k, const f32 (&v)[8]) {
  *(u32x4*)(to.at + activation_index(to, row, k)) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
}

// What each shade of a channel stands for. shades u8 [rows][channels * size], table f32 [channels][256]; width a multiple of 8,
// zeros behind it. A warp takes a row: grid (rows / 8), 256 threads.
LUCE_KERNEL(patches_of_shades, 32 * WARPS)(const u8* shades, const f32* RESTRICT table, i32 rows, i32 width, i32 size, u16* out, i32 out_rows,
                                           i32 depth) {
  pdl_wait();
  pdl_launch();
  i32 row = block_x() * WARPS + warp();
  Activations to = {out, out_rows, out_rows, depth};
  if (row >= rows) return;
  for (i32 k = 8 * lane(); k < depth; k += 8 * WARP) {
    f32 v[8] = {};
    if (k < width) {
      u32x2 eight = *(const u32x2*)(shades + (i64)row * width + k);
      UNROLL for (i32 i = 0; i < 8; i++) v[i] = table[(k + i) / size * 256 + ((i < 4 ? eight.x : eight.y) >> (i % 4 * 8) & 255)];
    }
    store8(to, row, k, v);
  }
}
LUCE_EXPORT(patches_of_shades)

// The same of numbers f32 [rows][width].
LUCE_KERNEL(patches_of_values, 32 * WARPS)(const f32* values, i32 rows, i32 width, u16* out, i32 out_rows, i32 depth) {
  pdl_wait();
  pdl_launch();
  i32 row = block_x() * WARPS + warp();
  Activations to = {out, out_rows, out_rows, depth};
  if (row >= rows) return;
  for (i32 k = 8 * lane(); k < depth; k += 8 * WARP) {
    f32 v[8] = {};
    if (k < width) load8(values + (i64)row * width + k, v);
    store8(to, row, k, v);
  }
}
LUCE_EXPORT(patches_of_values)

// LayerNorm of rows x f32 [rows * group][width], `group` of them side by side in a row of the output (the merger's 2 x 2
// patches); width a multiple of 8, zeros behind them. A warp takes a row of the output: grid (rows / 8), 256 threads. A sum is
// one fixed tree: eight consecutive values in order, every 256th eight, lanes.
LUCE_KERNEL(layer_norm, 32 * WARPS)(const f32* x, const f32* RESTRICT weight, const f32* RESTRICT bias, f32 eps, i32 rows, i32 width,
                                    i32 group, u16* out, i32 out_rows, i32 depth) {
  pdl_wait();
  pdl_launch();
  i32 row = block_x() * WARPS + warp();
  if (row >= rows) return;
  Activations to = {out, out_rows, out_rows, depth};
  f32 scale = div(1.0f, (f32)width), v[8];
  for (i32 g = 0; g < group; g++) {
    const f32* from = x + ((i64)row * group + g) * width;
    f32 sum = 0.0f, square = 0.0f;
    for (i32 k = 8 * lane(); k < width; k += 8 * WARP) {
      load8(from + k, v);
      UNROLL for (i32 j = 0; j < 8; j++) sum = add(sum, v[j]);
    }
    f32 mean = mul(warp_sum(sum), scale);
    for (i32 k = 8 * lane(); k < width; k += 8 * WARP) {
      load8(from + k, v);
      UNROLL for (i32 j = 0; j < 8; j++) {
        f32 off = sub(v[j], mean);
        square = fma_(off, off, square);
      }
    }
    f32 inverse = div(1.0f, sqrt_(add(mul(warp_sum(square), scale), eps)));
    for (i32 k = 8 * lane(); k < width; k += 8 * WARP) {
      f32 w[8], b[8];
      load8(from + k, v);
      load8(weight + k, w);
      load8(bias + k, b);
      UNROLL for (i32 j = 0; j < 8; j++) v[j] = fma_(mul(sub(v[j], mean), inverse), w[j], b[j]);
      store8(to, row, g * width + k, v);
    }
  }
  UNROLL for (i32 j = 0; j < 8; j++) v[j] = 0.0f;
  for (i32 k = group * width + 8 * lane(); k < depth; k += 8 * WARP) store8(to, row, k, v);
}
LUCE_EXPORT(layer_norm)
