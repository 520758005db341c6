// The RMS norm of a product's few rows, by every CTA for itself into its shared memory: where the rows are few, reading them is
// quicker than another kernel and the wait for its end. The arithmetic and its order are those of rms_norm: a warp has pieces of 256
// values of a row, whose sums meet in `room` [row][32].
#pragma once
#include "activation.h"
#include "norm.h"

// `wait`: until the rows are there. Rows f32 [rows][width], their depth 256 records; NORM: pieces of a warp. Of the normed values those of `count`
// records from `first` are kept, in `to` from row `to_row` on.
template <class Wait>
DEVICE void norm_activations(const Wait& wait, const f32* x, const f32* scale, f32 eps, i32 width, i32 rows, i32 records, i32 first, i32 count,
                             const Activations& to, i32 to_row, f32* room) {
  const i32 pieces = rows * records;
  const u32 divisor = 0xffffffffu / (u32)records + 1;  // one record: 0, and the product with it is wrong
  auto place = [&](i32 i, i32& row, i32& part, i32& k) {
    const i32 piece = warp() + i * ALL_WARPS;
    row = records == 1 ? piece : (i32)mul_high((u32)piece, divisor);
    part = piece - row * records;
    k = part * 256 + 8 * lane();
    return piece < pieces;
  };
  f32 v[NORM][8] = {}, factor[NORM][8] = {};
  i32 row, part, k;
  UNROLL
  for (i32 i = 0; i < NORM; i++)
    if (place(i, row, part, k) && k < width) load8(scale + k, factor[i]);  // constants: before the wait
  wait();
  UNROLL
  for (i32 i = 0; i < NORM; i++)
    if (place(i, row, part, k) && k < width) load8(x + (i64)row * width + k, v[i]);
  UNROLL
  for (i32 i = 0; i < NORM; i++) {
    f32 sum = warp_sum(square_sum(v[i]));
    if (place(i, row, part, k) && lane() == 0) room[row * 32 + part] = sum;
  }
  sync_block();
  UNROLL
  for (i32 i = 0; i < NORM; i++) {
    if (!place(i, row, part, k) || part < first || part >= first + count) continue;  // whole warps
    k -= first * 256;
    norm_values(v[i], warp_sum(lane() < records ? room[row * 32 + lane()] : 0.0f), factor[i], eps, width);
#if MINIMA
    store_activations<8>(to, to_row + row, k, v[i]);
#else
    UNROLL
    for (i32 j = 0; j < 8; j += 2) *(u32*)(to.at + activation_index(to, to_row + row, k + j)) = pack_activations(v[i][j], v[i][j + 1]);
#endif
  }
  sync_block();  // `room` is for partial sums again
}
