// Norms: f32 rows to the activations that a weight GEMM reads.
//
// The threads of a block depend on the row's length alone (norm_threads in luce/compute/norms.py), so a row's sum is one
// fixed tree: eight consecutive values a thread in order, lanes of a warp, warps.
#include "activation.h"
#include "batch.h"
#include "norm.h"

#define NORM_THREADS 1024
#ifndef PREFILL_ROWS
#define PREFILL_ROWS 2
#endif

// Sum over the block by one fixed tree, in every thread; `room`: 4 bytes a warp.
DEVICE f32 block_sum(f32 v, f32* room) {
  v = warp_sum(v);
  sync_block();
  if (lane() == 0) room[warp()] = v;
  sync_block();
  return warp_sum(lane() < block_threads() / WARP ? room[lane()] : 0.0f);
}

struct Norm {
  i32 rows;
  const Sample* samples;
  const f32* x;
  const f32* scale;
  f32 eps;
  i32 width;
  Activations to;
  f32* wide;   // may be null
};

DEVICE void store_wide(const Norm& n, i32 r, i32 k, const f32 (&v)[8]) {
  f32* at = n.wide + (i64)r * n.width + k;
  *(f32x4*)at = {v[0], v[1], v[2], v[3]};
  *(f32x4*)(at + 4) = {v[4], v[5], v[6], v[7]};
}
DEVICE const f32* row_at(const Norm& n, i32 r) { return n.x + (i64)(n.samples ? n.samples[r].row : r) * n.width; }

// The row at `from`, row r of the result, by this block.
DEVICE void norm_row(const Norm& n, const f32* from, i32 r, const f32 (&factor)[8]) {
  const i32 k = 8 * thread();
  const bool inside = k < n.width;
  f32 v[8] = {};
  if (inside) load8(from + k, v);
  f32 sum = block_sum(square_sum(v), (f32*)shared_memory());
  norm_values(v, sum, factor, n.eps, n.width);
  store_activations<8>(n.to, r, k, v, k < n.to.depth);
  if (n.wide && inside) store_wide(n, r, k, v);
}

// ROWS (2 or 4) rows in the prefill layout at once, so that what is written for one k is 32 or 64 bytes in one place.
template <int ROWS> DEVICE void norm_rows(const Norm& n, i32 r, bool inside, const f32 (&factor)[8]) {
  const i32 rows = n.rows, k = 8 * thread(), place = lane() % ROWS;
  if (r >= rows) return;
  f32 v[ROWS][8] = {};
  u32 words[ROWS][4];
  UNROLL
  for (i32 i = 0; i < ROWS; i++)
    if (inside && r + i < rows) load8(row_at(n, r + i) + k, v[i]);
  UNROLL
  for (i32 i = 0; i < ROWS; i++) {
    f32 sum = block_sum(square_sum(v[i]), (f32*)shared_memory());
    norm_values(v[i], sum, factor, n.eps, n.width);
    if (n.wide && inside && r + i < rows) store_wide(n, r + i, k, v[i]);
    f32 sums[4];
    UNROLL
    for (i32 j = 0; j < 4; j++) {
      words[i][j] = pack_activations(v[i][2 * j], v[i][2 * j + 1]);
      sums[j] = add(operand_low(words[i][j]), operand_high(words[i][j]));
    }
    f32 eight = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    eight = add(eight, shfl_xor(eight, 1));
    eight = add(eight, shfl_xor(eight, 2));
    if (r + i < rows && warp() * 256 < n.to.depth) store_activation_sums(n.to, r + i, warp() * 256, eight);
  }
  // ROWS lanes with as many rows each: afterwards lane p has row p of all these lanes' k.
  UNROLL
  for (i32 step = 1; step < ROWS; step *= 2) {
    const bool upper = lane() & step;
    UNROLL
    for (i32 pair = 0; pair < ROWS / 2; pair++) {
      const i32 low = step == 1 ? 2 * pair : pair, high = low + step;
      UNROLL
      for (i32 j = 0; j < 4; j++) {
        u32 other = shfl_xor(upper ? words[low][j] : words[high][j], step);
        if (upper) words[low][j] = other;
        else words[high][j] = other;
      }
    }
  }
  UNROLL
  for (i32 i = 0; i < ROWS; i++) {
    const i32 at = k - 8 * place + 8 * i;
    if (r + place < rows && at < n.to.depth)
      *(u32x4*)(n.to.at + activation_index(n.to, r + place, at)) = {words[i][0], words[i][1], words[i][2], words[i][3]};
  }
}

DEVICE void norm(const Norm& n) {
  f32 factor[8] = {};
  bool inside = 8 * thread() < n.width;
  if (inside) load8(n.scale + 8 * thread(), factor);  // weights do not wait for the kernel before, nor do descriptors
  pdl_launch();   // the product behind it may fill its rings with weights while the one before ends
  const i32 r = block_x();
  const f32* from = !n.to.tile && r < n.rows ? row_at(n, r) : nullptr;
  pdl_wait();
  if (!n.to.tile) {
    if (from) norm_row(n, from, r, factor);
  } else if (PREFILL_ROWS == 4) norm_rows<4>(n, block_x() * 4, inside, factor);
  else norm_rows<2>(n, block_x() * 2, inside, factor);
}

// out row r = x / sqrt(mean(x^2) + eps) * scale of row r of x f32 [.][width], or with `samples` of row samples[r].row.
// Grid (rows of the layout, or fewer), norm_threads(width) threads,
// 128 bytes of shared memory; width a multiple of 8, at most 8,192.
// Rows at or past pass->rows (pass->samples) are left alone.
LUCE_KERNEL_RESIDENT(rms_norm, NORM_THREADS, 1)(const Pass* pass, const Sample* samples, const f32* x, const f32* scale, f32 eps, i32 width,
                                                u16* out, i32 out_rows, i32 tile, i32 depth) {
  norm({samples ? pass->samples : pass->rows, samples, x, scale, eps, width, {out, out_rows, tile, depth}, nullptr});
}
LUCE_EXPORT(rms_norm)

// The same, and the rows before they are rounded: wide f32 [.][width], for a router.
LUCE_KERNEL_RESIDENT(rms_norm_wide, NORM_THREADS, 1)(const Pass* pass, const Sample* samples, const f32* x, const f32* scale, f32 eps, i32 width,
                                                     u16* out, i32 out_rows, i32 tile, i32 depth, f32* wide) {
  norm({samples ? pass->samples : pass->rows, samples, x, scale, eps, width, {out, out_rows, tile, depth}, wide});
}
LUCE_EXPORT(rms_norm_wide)
