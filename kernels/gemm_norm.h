// The RMS norm of a product's few rows, by every CTA for itself into its shared memory: where the rows are few, reading them is
// quicker than another kernel and the wait for its end. The arithmetic and its order are those of rms_norm: a warp has pieces of 256
// values of a row, whose sums meet in `room` [row][32].
#pragma once
#include "activation.h"
#include "norm.h"

// As store_activations (activation.h) in the step layout. Where all lanes stored their first words, then their second, those of four or eight of
// them would go to one bank: so they begin with different ones.
DEVICE void store_normed(const Activations& to, i32 row, i32 k, const f32 (&v)[8]) {
  u32 words[4];
  UNROLL
  for (i32 j = 0; j < 4; j++) words[j] = pack_activations(v[2 * j], v[2 * j + 1]);
#if MINIMA
  f32 sum = sum_of_eight(words[0], words[1], words[2], words[3]);
  sum = add(sum, shfl_xor(sum, 1));
  sum = add(sum, shfl_xor(sum, 2));
  if (lane() % 4 == 0) store_activation_sum(to, row, k >> 5, sum);
#endif
  const i32 first = lane() >> 3;
  u16* at = to.at + activation_index(to, row, k);
  UNROLL
  for (i32 j = 0; j < 4; j++) {
    const u32 low = first & 1 ? words[j ^ 1] : words[j], high = first & 1 ? words[j ^ 3] : words[j ^ 2];
    *(u32*)(at + (j ^ first) * 8) = first & 2 ? high : low;
  }
}

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
    store_normed(to, to_row + row, k, v[i]);
  }
  sync_block();  // `room` is for partial sums again
}
